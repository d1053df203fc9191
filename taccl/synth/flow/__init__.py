"""Engine ``flow``: routes from a multi-commodity flow."""
