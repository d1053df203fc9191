"""Algorithms in closed form."""
