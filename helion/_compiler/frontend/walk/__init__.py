"""The walk over a kernel's source: its records, and what statements and expressions share."""
