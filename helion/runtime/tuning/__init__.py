"""Tuning of bound kernels: candidates are compiled ahead in processes of their own, and run where they can do no harm."""
