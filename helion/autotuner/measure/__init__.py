"""Evaluation of configs: compile, run in isolation, check results, and time."""
