"""Costs, bounds and replay of programs on a topology."""
