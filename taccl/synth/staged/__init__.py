"""Engine ``taccl``: TACCL's three stages."""
