"""A sketch for a machine: what its links, switches and NICs say about good algorithms."""

from taccl.suggest.writing import suggest_sketch

__all__ = ["suggest_sketch"]
