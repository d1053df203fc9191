"""Process groups that call collectives at once: solved, written to directories, replayed, told."""
