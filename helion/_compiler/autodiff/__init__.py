"""Derivatives of programs: the backward of a grid loop as the source of another kernel.

``differentiate`` visits the ops of a grid loop in reverse, with one rule for each kind of op. It writes the gradients
as source text in the kernel language. The result is an ordinary kernel that is bound, explained and tuned like any
other.
"""
