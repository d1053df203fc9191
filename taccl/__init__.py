"""Synthesis of collective-communication algorithms."""
