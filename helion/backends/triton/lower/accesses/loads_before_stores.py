"""Loads before earlier stores to other memory, in programs that load and store in turns.

No compiler moves a load before a store, because neither knows that the kernel makes the tensor that it stores to. Each turn
then takes the latency of memory once more (measurement ``turns_of_accesses``). Before::

    %1 = load x[0, b0]; store out[0, b0] <- %1
    %2 = load x[1, b0]; store out[1, b0] <- %1 + %2

After::

    %1 = load x[0, b0]; %2 = load x[1, b0]
    store out[0, b0] <- %1; store out[1, b0] <- %1 + %2

Loads move as far as a thread has registers for them. Other programs hide the latency of a few turns. Programs with
reductions have a step of their own (``early_loads.py``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from ....._compiler.ir.grammar import Op, Program, Region
from ....._compiler.rewrites.steps import StepInputs
from ....._support.records import replace
from .....hardware import REGISTER_BYTES
from ..moving import moved

#: Ops of programs that stay as they are.
_OTHER = frozenset(("dot", "reduce", "fold", "scan", "sort"))
#: Least loads that follow a store, and registers of a thread for those that move before one.
_TURNS, _REGISTERS = 8, 16


def load_before_stores(program: Program, inputs: StepInputs) -> Program:
    """Return the program with loads moved before the stores of many turns."""
    if inputs.checked or any(op.kind in _OTHER for op in program.walk()):
        return program
    sizes = inputs.sizes_in(program)
    room = _REGISTERS * REGISTER_BYTES * inputs.threads
    roots = tuple(replace(root, body=_region(program, root.body, sizes, room)) for root in program.roots)
    same = all(new.body is old.body for new, old in zip(roots, program.roots, strict=True))
    return program if same else replace(program, roots=roots)


def _region(program: Program, region: Region, sizes: Mapping[int, int], room: int) -> Region:
    first = next((op for op in region.ops if op.kind == "store"), None)
    if first is None:
        return region
    ops = [*region.ops]
    accesses = [op.kind for op in ops if op.kind in ("load", "store")]
    if sum(pair == ("store", "load") for pair in itertools.pairwise(accesses)) < _TURNS:
        return region
    late = [op for op in ops[ops.index(first) :] if op.kind == "load"]
    left = room
    for load in late:
        size = load.result.dtype.itemsize * math.prod(dim.lanes(sizes) for dim in load.result.dims)
        if size > left:
            store = _store_before(ops, load)
            if store is not first:
                first, left = store, room
        if size > left:
            continue
        found = moved(program, ops, load.result, first)
        if found != ops:
            ops, left = found, left - size
    return region if ops == [*region.ops] else replace(region, ops=tuple(ops))


def _store_before(ops: list[Op], load: Op) -> Op:
    """Return the last store before a load."""
    return next(op for op in reversed(ops[: ops.index(load)]) if op.kind == "store")
