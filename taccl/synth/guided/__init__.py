"""Engine ``guided``: list scheduling under dual prices."""
