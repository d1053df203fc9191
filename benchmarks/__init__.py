"""What is measured: quality against bounds and classical algorithms, and seconds."""
