"""Analyses of programs, and refusals of programs with races."""
