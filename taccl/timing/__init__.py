"""When messages start and end, deadlines, and loops as machine code."""
