"""Which tensors of a kernel may have the same memory: in host loops around launches, those that do in some iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..host_data import one_of
from ..values import HostTensorValue
from .scope import Walk

#: Iterations after which a pattern of shared memory that has not come back is taken for one that never does.
_MAX_ROUNDS = 64


def unite(walk: Walk, first: int, second: int) -> None:
    """Two memories may be one."""
    first, second = _representative(walk, first), _representative(walk, second)
    if first != second:
        walk.shared[max(first, second)] = min(first, second)


def one_of_several(walk: Walk, values: list[HostTensorValue]) -> HostTensorValue | None:
    """A tensor that is one of several at run time."""
    made = one_of(walk.t, values)
    for value in values if made is not None else ():
        unite(walk, values[0].storage, value.storage)
    return made


def may_share(walk: Walk, one: HostTensorValue, other: HostTensorValue) -> bool:
    """Whether two tensors may have the same memory."""
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
    """Goes through iterations until they repeat, and notes which tensors of the kernels share memory in one: ``names`` are
    the variables whose tensors change."""
    slots = {start[name].storage: at for at, name in enumerate(names)}
    ends = [after[name].storage for name in names]
    used = {tensor.storage for tensor in walk.t.tensors.program} | set(slots)
    known = set(walk.t.tensors.storage_numbers.values())
    # an actual memory is that of a number from before, or what iteration ``at`` made
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
        if walk.t.host_loops:  # for the loop around this one, which knows the memory by its first number only
            for storage, slot in slots.items():
                if state[slot][0] < 0:
                    unite(walk, storage, state[slot][1])
        state = [actual(storage) for storage in ends]
    for storage in used:
        unite(walk, storage, min(used))


def settle_storages(walk: Walk) -> None:
    """Gives the tensors of the program the memory that they were found to share."""
    walk.t.tensors.program[:] = [replace(x, storage=_representative(walk, x.storage)) for x in walk.t.tensors.program]
