"""Refuses programs with data races between device loops."""

from __future__ import annotations

from .... import exc
from ...ir.effects import own_effects
from ...ir.grammar import AddressAttrs, InlineAttrs, MemoryAttrs, Op, Program
from ...ir.ops import OPS


def check_dependencies(program: Program) -> Program:
    """Return the program. Raises ``exc.LoopDependencyError`` for a race between roots of one phase, which run
    concurrently.

    A root may not access memory that an earlier one writes, or write memory that an earlier one reads. A root without a
    write raises ``exc.EmptyDeviceLoopAfterDCE``.
    """
    written: set[int] = set()
    read: set[int] = set()
    phase = 0
    for root in program.roots:
        if root.phase != phase:
            phase, written, read = root.phase, set(), set()
        mine: set[int] = set()
        loaded: set[int] = set()
        for op in root.body.walk():
            if isinstance(op.attrs, InlineAttrs):
                _inline(program, op, op.attrs, written | read)
                mine |= {program.tensors[at].storage for at in op.attrs.tensors}
                continue
            if isinstance(op.attrs, AddressAttrs):
                _elsewhere(program, op, written | read if OPS[op.kind].writes else written)
                (mine if OPS[op.kind].writes else loaded).update(
                    e.storage for e in own_effects(program, op) if e.storage is not None
                )
                continue
            if not isinstance(op.attrs, MemoryAttrs):
                continue
            tensor = program.tensors[op.attrs.tensor]
            if tensor.storage in written or (op.kind != "load" and tensor.storage in read):
                raise exc.LoopDependencyError(name=tensor.name, location=op.location)
            (loaded if op.kind == "load" else mine).add(tensor.storage)
        written |= mine
        read |= loaded
        if not mine:
            raise exc.EmptyDeviceLoopAfterDCE(kernel=program.host.name, location=root.location)
    return program


def _elsewhere(program: Program, op: Op, touched: set[int]) -> None:
    """Refuse an access through the user's pointers, which may touch any tensor, if other roots conflict with it."""
    if touched:
        storage = min(touched)
        names = (tensor.name for tensor in program.tensors if tensor.storage == storage)
        raise exc.LoopDependencyError(name=next(names, "of an hl.StackTensor"), location=op.location)


def _inline(program: Program, op: Op, attrs: InlineAttrs, touched: set[int]) -> None:
    """Refuse the user's inline source, which may read and write all its tensors, if other roots access them."""
    for at in attrs.tensors:
        if program.tensors[at].storage in touched:
            raise exc.LoopDependencyError(name=program.tensors[at].name, location=op.location)
