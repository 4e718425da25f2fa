"""The numbers by which loops are known: those of the program as traced, which rewrites may reorder."""

from __future__ import annotations

from .grammar import ForAttrs, Op, Program, Root


def loops_of(program: Program) -> tuple[Root | Op, ...]:
    """Grid loops and the loops inside of them, in program order; the place of each is its number."""
    found: list[Root | Op] = []
    for root in program.roots:
        found.append(root)
        found += (op for op in root.body.walk() if isinstance(op.attrs, ForAttrs))
    return tuple(found)
