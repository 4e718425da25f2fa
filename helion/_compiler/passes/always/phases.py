"""Phases of the kernels of one position in the host code, derived from memory dependences.

A step that adds a grid loop with results for other loops gives it a phase. Before, where ``first`` reads what phase 0
writes, and ``second`` only memory that exists from the start::

    phase 0: store hoisted      phase 1: load hoisted, load y, dot

After::

    phase 0: second     phase 1: store hoisted      phase 2: first      phase 3: load both copies, dot
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...ir.effects import storages_of
from ...ir.grammar import Program, Root


def insert_before(program: Program, reader: Root, made: Sequence[Root], *, alone: bool = False) -> tuple[Root, ...]:
    """Return the grid loops of ``program``, and after them those ``made`` for ``reader``, in phases that follow from
    memory.

    A new loop runs as early as possible. It follows the last phase before the reader's that writes its inputs. Loops
    that can run concurrently share a phase, unless each shall run ``alone``.
    """
    written = [(root.phase, storages_of(program, root)[1]) for root in program.roots if root.phase < reader.phase]
    levels = []
    for root in made:
        read, _ = storages_of(program, root)
        after = [phase for phase, storages in written if None in storages or storages & read]
        levels.append(1 + max(after, default=-1))
    added = [(level, at if alone else 0) for at, level in enumerate(levels)]
    later = (
        replace(root, phase=root.phase + len({each for each in added if each[0] <= root.phase}))
        for root in program.roots
    )
    first = (
        replace(root, phase=own[0] + len({each for each in added if each < own}), launch=reader.launch)
        for root, own in zip(made, added, strict=True)
    )
    return (*later, *first)


__all__ = ["insert_before"]
