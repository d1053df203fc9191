"""Which host takes which rank: orders, their replayed time, a search, and what is written."""
