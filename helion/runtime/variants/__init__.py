"""The variants of a kernel: which one serves a call, and which config runs first."""
