"""The walk over a kernel's source: its records, and functions that statements and expressions share."""
