"""Costs and replay of programs on a topology, and the rows of results."""
