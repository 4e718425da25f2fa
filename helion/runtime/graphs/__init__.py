"""Calls of kernels that torch records instead of running: each becomes an operator of ``torch.library``."""
