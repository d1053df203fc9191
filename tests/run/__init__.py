"""Programs run for real."""
