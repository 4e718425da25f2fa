"""Tensors of a kernel that may share memory, in some iteration of the host loops around launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..host.data import one_of
from ..values import HostTensorValue
from .scope import Walk

#: Number of iterations after which a pattern of shared memory that has not repeated is assumed never to repeat.
_MAX_ROUNDS = 64


def unite(walk: Walk, first: int, second: int) -> None:
    """Record that two memories may be one."""
    first, second = _representative(walk, first), _representative(walk, second)
    if first != second:
        walk.shared[max(first, second)] = min(first, second)


def one_of_several(walk: Walk, values: list[HostTensorValue]) -> HostTensorValue | None:
    """Return a tensor that is one of several at run time."""
    made = one_of(walk.t, values)
    for value in values if made is not None else ():
        unite(walk, values[0].storage, value.storage)
    return made


def may_share(walk: Walk, one: HostTensorValue, other: HostTensorValue) -> bool:
    """Return whether two tensors may share memory."""
    return _representative(walk, one.storage) == _representative(walk, other.storage)


def _representative(walk: Walk, storage: int) -> int:
    while storage in walk.shared:
        storage = walk.shared[storage]
    return storage


def share(
    walk: Walk,
    before: dict[str, Any],
    start: dict[str, Any],
    after: dict[str, Any],
    names: Sequence[str],
    first_new: int,
) -> None:
    """Simulate iterations until they repeat, and record the tensors of the kernels that share memory in one. ``names``
    are the variables whose tensors change.
    """
    slots = {start[name].storage: at for at, name in enumerate(names)}
    ends = [after[name].storage for name in names]
    used = {tensor.storage for tensor in walk.t.tensors.program} | set(slots)
    known = set(walk.t.tensors.storage_numbers.values())
    # a memory is that of a number from before the loop, or the one that iteration ``at`` made
    state: list[tuple[int, int]] = [(-1, before[name].storage) for name in names]
    seen: set[tuple[Any, ...]] = set()
    for at in range(_MAX_ROUNDS):
        key = tuple((number, at - made if made >= 0 else -1) for made, number in state)
        if key in seen:
            return

        def actual(storage: int, at: int = at, state: list[tuple[int, int]] = state) -> tuple[int, int]:
            if storage in slots:
                return state[slots[storage]]
            return (at, storage) if storage > first_new and storage not in known else (-1, storage)

        seen.add(key)
        places: dict[tuple[int, int], int] = {}
        for storage in sorted(used):
            unite(walk, places.setdefault(actual(storage), storage), storage)
        if walk.t.host_loops:  # for the enclosing loop, which identifies the memory by its first number
            for storage, slot in slots.items():
                if state[slot][0] < 0:
                    unite(walk, storage, state[slot][1])
        state = [actual(storage) for storage in ends]
    for storage in used:
        unite(walk, storage, min(used))


def settle_storages(walk: Walk) -> None:
    """Give the tensors of the program the numbers of the memory that they share."""
    walk.t.tensors.program[:] = [replace(x, storage=_representative(walk, x.storage)) for x in walk.t.tensors.program]
