"""Triton's own rewrites of a program, behind those that a config asks for."""
