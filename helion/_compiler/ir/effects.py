"""Memory effects of ops, and the pairs of ops that must keep their order.

Two effects conflict if both can touch one element and one of them writes it. A rewrite that moves, repeats or splits
ops keeps the order of every such pair. Tensors that may share memory have one ``storage``. The offsets of such tensors
in it are unknown, so only accesses through one tensor can be proved disjoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import torch

from ..._shapes import Expr, Number, fixed_at
from ..._support.records import dataclass
from .grammar import (
    ELSEWHERE,
    AddressAttrs,
    AsmAttrs,
    HostTensor,
    Index,
    InlineAttrs,
    MemoryAttrs,
    Op,
    PrintAttrs,
    Program,
    Root,
    TileAttrs,
    Value,
)
from .ops import OPS

#: Dtypes of values that may be memory addresses.
_ADDRESSES = (torch.int64, torch.uint64)
_NONE: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One effect of an op. ``storage`` is the memory that it touches. None is the order that all programs see: that of
    prints, and of all memory around a ``fence``."""

    storage: int | None
    reads: bool
    writes: bool
    fence: bool = False


@dataclass(frozen=True, slots=True)
class Order:
    """The order that an op imposes on memory accesses around it, as other programs see it.

    - ``releases``: a program that sees the op done also sees all accesses that precede it.
    - ``acquires``: accesses that follow the op see what other programs have released.
    """

    releases: bool = False
    acquires: bool = False


#: The effect of a print: visible in program order.
_SEEN = Effect(storage=None, reads=True, writes=True)
_FENCE = Effect(storage=None, reads=True, writes=True, fence=True)
_UNORDERED, _BOTH = Order(), Order(releases=True, acquires=True)
_ORDERS: Mapping[str, Order] = MappingProxyType(
    {
        "relaxed": _UNORDERED,
        "release": Order(releases=True),
        "acquire": Order(acquires=True),
        "acq_rel": _BOTH,
    }
)


def order_of(op: Op) -> Order:
    """Return the memory order that ``op`` itself imposes: that of an atomic's ``sem``.

    A wait for other GPUs is an acquire. A load that waits for marked words must also follow the stores of this program,
    which other GPUs may wait for. The user's inline source that may touch memory, and assembly that is not pure,
    may contain any fence: they impose both orders.
    """
    match op.attrs:
        case MemoryAttrs(sem=sem) if op.kind == "atomic":
            return _ORDERS[sem]
        case MemoryAttrs(mark=int()) if op.kind == "load":
            return _BOTH
        case InlineAttrs(waits=True):
            return _ORDERS["acquire"]
        case InlineAttrs(effect="any") | AsmAttrs(is_pure=False):
            return _BOTH
    return _UNORDERED


def is_fence(op: Op) -> bool:
    """Return whether no memory access may move across ``op``."""
    return order_of(op) is not _UNORDERED


def stays(op: Op) -> bool:
    """Return whether an op has a purpose without a use of its results."""
    return OPS[op.kind].stays or is_fence(op)


def is_message(op: Op) -> bool:
    """Return whether an op signals to other GPUs, or waits for them."""
    match op.attrs:
        case MemoryAttrs(scope="sys") | MemoryAttrs(mark=int()) | InlineAttrs(waits=True):
            return True
    return False


def meets_other_gpus(program: Program) -> bool:
    """Return whether a program waits for other GPUs, or orders its accesses as they see them."""
    return any(map(is_message, program.walk()))


def effects_of(program: Program, op: Op) -> tuple[Effect, ...]:
    """Return all effects of ``op`` and of the ops in its regions, each once."""
    found: dict[Effect, None] = {}
    for inner in op.walk():
        found.update(dict.fromkeys(own_effects(program, inner)))
    return tuple(found)


def own_effects(program: Program, op: Op) -> tuple[Effect, ...]:
    """Return the effects of ``op`` without those of its regions, each once."""
    spec = OPS[op.kind]
    match op.attrs:
        case MemoryAttrs(tensor=tensor):
            own = Effect(storage=program.tensors[tensor].storage, reads=spec.reads, writes=spec.writes)
            return (_FENCE, own) if is_fence(op) else (own,)
        case InlineAttrs(effect="reads" | "any"):
            touched = (
                Effect(storage=storage, reads=True, writes=is_fence(op)) for storage in _touched(program, op, op.attrs)
            )
            return (_FENCE, *touched) if is_fence(op) else tuple(touched)
        case AddressAttrs():
            storages = _everywhere(program)
            return tuple(Effect(storage=storage, reads=spec.reads, writes=spec.writes) for storage in storages)
        case AsmAttrs(is_pure=False):
            return (_FENCE,)
        case PrintAttrs():
            return (_SEEN,)
    return ()


def _everywhere(program: Program) -> tuple[int, ...]:
    return tuple(dict.fromkeys((ELSEWHERE, *(tensor.storage for tensor in program.tensors))))


def _touched(program: Program, op: Op, attrs: InlineAttrs) -> tuple[int, ...]:
    """Return the storages of the tensors that the user's inline source gets; all storages if it may get addresses."""
    given = [program.tensors[at] for at in attrs.tensors]
    if any(dtype in _ADDRESSES for dtype in (*(v.dtype for v in op.values()), *(t.dtype for t in given))):
        return _everywhere(program)
    return tuple(dict.fromkeys(tensor.storage for tensor in given))


def written_by(program: Program, ops: Iterable[Op]) -> frozenset[int | None]:
    """Return the storages that ``ops`` may write, without the ops in their regions.

    None among them means all storages: after a fence, writes of other programs are visible.
    """
    effects = (effect for op in ops for effect in own_effects(program, op) if effect.writes)
    return frozenset(effect.storage for effect in effects if effect.fence or effect.storage is not None)


def storages_of(program: Program, root: Root) -> tuple[frozenset[int | None], frozenset[int | None]]:
    """Return the storages that a grid loop reads, and those that it writes; None is unknown memory."""
    effects = [effect for op in root.body.walk() for effect in own_effects(program, op)]
    read = frozenset(effect.storage for effect in effects if effect.reads)
    return read, frozenset(effect.storage for effect in effects if effect.writes)


def may_alias(a: HostTensor, b: HostTensor) -> bool:
    """Return whether two tensors may share an element."""
    return a.storage == b.storage


def may_meet(a: Effect, b: Effect) -> bool:
    """Return whether two effects must keep their order."""
    if a.fence or b.fence:
        return True
    return a.storage == b.storage and (a.writes or b.writes)


def ordered(program: Program, a: Op, b: Op) -> bool:
    """Return whether the effects of two ops must keep their order."""
    others = effects_of(program, b)
    return any(may_meet(one, other) for one in effects_of(program, a) for other in others)


def apart_along(program: Program, a: Op, b: Op, block: int, indices: Mapping[int, int] = _NONE) -> bool:
    """Return whether two accesses that may conflict do so only at equal indices of ``block``.

    Chunks of ``block`` can then run one after the other, each with both accesses in their order. The result is that of
    one element at a time. ``indices`` are those of ``scalar_indices``.
    """
    if not isinstance(a.attrs, MemoryAttrs) or not isinstance(b.attrs, MemoryAttrs):
        return False
    if a.attrs.tensor != b.attrs.tensor or _overlaps_itself(program.tensors[a.attrs.tensor]):
        return False
    return not (is_fence(a) or is_fence(b)) and any(
        _walks(a, i, block, indices) and _place(a, i, indices) == _place(b, j, indices)
        for i, j in zip(a.attrs.indices, b.attrs.indices, strict=True)
    )


def apart_by_numbers(program: Program, a: Op, b: Op) -> bool:
    """Return whether two accesses of a tensor touch no common element, as of ``out[i, 0]`` and ``out[i, 1]``."""
    if not isinstance(a.attrs, MemoryAttrs) or not isinstance(b.attrs, MemoryAttrs) or is_fence(a) or is_fence(b):
        return False
    if a.attrs.tensor != b.attrs.tensor or _overlaps_itself(program.tensors[a.attrs.tensor]):
        return False
    places = ((_number(i), _number(j)) for i, j in zip(a.attrs.indices, b.attrs.indices, strict=True))
    return any(one is not None and other is not None and one != other for one, other in places)


def _number(index: Index) -> int | None:
    """Return the place of a subscript that is a number, counted from the begin of its dimension; None of others."""
    fixed = index.kind == "scalar" and index.operand is None and isinstance(index.shift, int) and index.shift >= 0
    return int(index.shift) if fixed and isinstance(index.shift, int) else None


def scalar_indices(program: Program) -> dict[int, int]:
    """Return the scalars that are indices of ``hl.grid`` loops, or of tiles of one: the block by the number of the value."""
    return {
        op.result.number: op.attrs.block
        for op in program.walk()
        if isinstance(op.attrs, TileAttrs)
        and (
            op.attrs.field == "index"
            or (op.attrs.field == "begin" and fixed_at(program.blocks[op.attrs.block].size, 1))
        )
    }


def _walks(op: Op, index: Index, block: int, indices: Mapping[int, int]) -> bool:
    if index.kind == "scalar" and index.operand is not None:
        operand = op.operands[index.operand]
        return isinstance(operand, Value) and indices.get(operand.number) == block
    return index.kind == "block" and index.block == block


def _place(op: Op, index: Index, indices: Mapping[int, int]) -> tuple[object, ...]:
    """Return a key that is equal for two indices over a block if they address the same elements."""
    begin = None if index.operand is None else op.operands[index.operand]
    walked = indices.get(begin.number) if isinstance(begin, Value) else None
    return index.kind, index.block, _key(index.shift), begin if walked is None else ("index", walked)


def _key(number: Number) -> object:
    return number.key if isinstance(number, Expr) else number


def _overlaps_itself(tensor: HostTensor) -> bool:
    """Return whether two coordinates of a tensor may be one element.

    Run-time sizes and strides count as those of a tensor without such overlap. A store to an element that two of its
    lanes share is undefined.
    """
    reach = 0
    steps = [(step, n) for n, step in zip(tensor.shape, tensor.strides, strict=True) if isinstance(step, int)]
    if any(step == 0 and not (isinstance(n, int) and n == 1) for step, n in steps):
        return True
    for step, n in sorted((step, n) for step, n in steps if isinstance(n, int) and n != 1):
        if step <= reach:
            return True
        reach += step * (n - 1)
    return False
