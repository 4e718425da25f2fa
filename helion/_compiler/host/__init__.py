"""The host function of a kernel: analysis, construction and printing."""
