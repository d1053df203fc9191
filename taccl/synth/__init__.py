"""Engines: a problem in, a schedule and its bounds out."""
