"""Dual prices of resources and the cheapest trees under them: for bounds and for engines."""
