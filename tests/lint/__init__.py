"""Tests of the lint of topologies."""
