"""Evaluation of the expressions of a kernel's source."""
