"""The host function of a kernel: what it may be asked, and what becomes of it."""
