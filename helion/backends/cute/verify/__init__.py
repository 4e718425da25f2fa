"""Verification that roles cannot deadlock, overrun a buffer or read stale data, and that they fit their resources."""
