"""Engine ``exact``: routes, order and batches in one CP-SAT model."""
