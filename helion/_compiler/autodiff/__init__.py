"""Derivatives of programs: the backward of a device loop as the source of another kernel.

``differentiate`` walks the ops of a grid loop backwards, one rule per kind of op, and writes what it finds as source text
in the language of kernels: a program that binds, explains itself and is tuned as any other.
"""
