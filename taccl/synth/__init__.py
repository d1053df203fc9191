"""Searches for schedules: engines, the templates they start from, and what they share."""
