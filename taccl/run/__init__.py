"""Programs run for real: a process a rank, real bytes, measured beside predicted."""
