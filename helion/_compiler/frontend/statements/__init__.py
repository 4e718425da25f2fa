"""Tracing of the statements of a kernel's source."""
