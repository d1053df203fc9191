"""The network: a directed graph of resources, its files, its links and its symmetries."""
