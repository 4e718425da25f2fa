"""Tuning of bound kernels: candidates are precompiled in separate processes, and run in isolation."""
