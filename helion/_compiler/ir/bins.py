"""Recognition of atomics into bins: each lane adds a number to the element that a tile of indices selects."""

from __future__ import annotations

from ..._shapes import Number
from ..._support.records import dataclass
from .grammar import Index, MemoryAttrs, Op, Operand, PointwiseAttrs, Program, Value
from .rewrite import Makers

#: Ops between the number and the atomic that keep it the same in all lanes.
_HOPS = 8
#: Numbers up to it are exact in all dtypes.
_LARGEST = 127


@dataclass(frozen=True, slots=True)
class Bins:
    """The elements that an atomic adds to: subscript ``at`` selects one of ``size``, and each lane adds ``amount``.

    ``amount`` is None where each lane has a value of its own.
    """

    at: int
    size: Number
    amount: int | None


def bins_of(op: Op, makers: Makers, program: Program) -> Bins | None:
    """Return the bins of an atomic whose result nothing reads; None for one that orders memory, or adds one value of no
    lane's own.
    """
    attrs = op.attributes(MemoryAttrs)
    if attrs.atomic != "add" or (attrs.sem, attrs.scope) != ("relaxed", "gpu"):
        return None
    if attrs.mark is not None or attrs.padded:
        return None
    at = _selecting(attrs.indices, attrs.rank)
    added, tensor = op.operands[0], program.tensors[attrs.tensor]
    amount = _amount(added, makers)
    own = isinstance(added, Value) and added.dims == op.result.dims and added.dtype == tensor.dtype
    if at is None or (amount is None and not own):
        return None
    return Bins(at, tensor.shape[at], amount)


def _selecting(indices: tuple[Index, ...], rank: int) -> int | None:
    """Return the subscript whose tile of indices has all dimensions, where the others are numbers."""
    lanes = [at for at, index in enumerate(indices) if index.kind != "scalar"]
    if len(lanes) != 1 or not rank:
        return None
    (at,) = lanes
    index = indices[at]
    return at if index.kind == "tensor" and index.positions == tuple(range(rank)) else None


def _amount(operand: Operand, makers: Makers) -> int | None:
    """Return the number that an operand has in all lanes and in any dtype; None if that is not known."""
    for _ in range(_HOPS):
        if not isinstance(operand, Value):
            is_count = type(operand) in (int, float) and operand == int(operand) and 1 <= operand <= _LARGEST
            return int(operand) if is_count else None
        op = makers.of(operand)
        is_cast = op is not None and isinstance(op.attrs, PointwiseAttrs) and op.attrs.name == "cast"
        if op is None or not (is_cast or op.kind in ("full", "view")):
            return None
        operand = op.operands[0]
    return None


__all__ = ["Bins", "bins_of"]
