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


def insert_before(program: Program, reader: Root, made: Sequence[Root]) -> tuple[Root, ...]:
    """Return the grid loops of ``program``, and after them those ``made`` for ``reader``, in phases that follow from
    memory.

    A new loop runs as early as possible. It follows the last phase before the reader's that writes its inputs. Loops
    that can run concurrently share a phase.
    """
    written = [(root.phase, storages_of(program, root)[1]) for root in program.roots if root.phase < reader.phase]
    levels = []
    for root in made:
        read, _ = storages_of(program, root)
        after = [phase for phase, storages in written if None in storages or storages & read]
        levels.append(1 + max(after, default=-1))
    later = (replace(root, phase=root.phase + len({n for n in levels if n <= root.phase})) for root in program.roots)
    first = (
        replace(root, phase=level + len({n for n in levels if n < level}), launch=reader.launch)
        for root, level in zip(made, levels, strict=True)
    )
    return (*later, *first)


__all__ = ["insert_before"]
