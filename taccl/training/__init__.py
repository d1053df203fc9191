"""Training steps: layers, what they communicate, and how long a step takes where both overlap."""
