"""MSCCL++ execution plans: one-sided programs, read, judged and written."""
