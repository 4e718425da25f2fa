"""Printing of subscripts as sums of offsets."""

from __future__ import annotations

import functools
import operator

import torch

from ...._compiler.ir.grammar import Index, MemoryAttrs, Op, Value
from ...._compiler.ir.operands import unaddressed
from ...._shapes import ONE, Dims, Expr, fixed_at
from ...._support.records import dataclass
from ..plan.merged_runs import inner_run
from .emission import Emission


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """The last dimensions of an access as one.

    ``dims`` are those of the access with it, and ``lanes`` its places in memory. ``mask`` is empty where all are in range.
    """

    dims: Dims
    lanes: str
    mask: str


def run_of(e: Emission, attrs: MemoryAttrs, dims: Dims) -> Run | None:
    """Define the lanes of the run that ``attrs`` asks for, in elements from the begin of its dimensions."""
    if not attrs.run:
        return None
    *outer, first = dims[: -attrs.run]
    inner = functools.reduce(operator.mul, dims[-attrs.run :])
    assert first.block is not None
    loop, elements = e.active(first.block), e.size(inner)
    text = f"tl.arange(0, {e.size_text(first * inner)})" + (".to(tl.int64)" if e.wide else "")
    lanes = e.names.fresh("run")
    e.lines.add(f"{lanes} = {text}" if loop.offset == "0" else f"{lanes} = {loop.offset} * {elements} + {text}")
    masks = [e.mask_of((*outer, ONE), range(len(outer)))]
    if loop.mask:
        masks.append(e.spread(f"({lanes} < {loop.end} * {elements})", (len(outer),), len(outer) + 1))
    return Run(dims=(*outer, first * inner), lanes=lanes, mask=" & ".join(filter(None, masks)))


def pointer(e: Emission, op: Op, attrs: MemoryAttrs, dims: Dims, run: Run | None = None) -> str:
    """Return the pointers of an access whose value has the dimensions ``dims``, or those of ``run``."""
    tensor = e.kernel.tensors[attrs.tensor]
    parts: list[str] = []
    far = not e.wide and tensor.made and any(isinstance(extent, Expr) for extent in tensor.shape)
    rank, indices = attrs.rank - attrs.run, attrs.indices[: -attrs.run - 1] if run else attrs.indices
    base, inside = "", _inner_run(e, attrs, parts)
    for at, (index, stride) in enumerate(zip(indices, tensor.strides, strict=False)):
        if index.block in inside:
            continue
        text = index_text(e, op, index, rank)
        if attrs.based and index.block is not None and fixed_at(stride, 1):
            base, text = _based(e, op, index, rank)
        if far and at < tensor.ndim - 1:
            # no argument has the number of its elements
            text = f"{text}.to(tl.int64)"
        if text == "0" or (isinstance(stride, int) and stride == 0 and not index.positions):
            continue
        if isinstance(stride, int) and stride == 0:
            text = f"{text} * 0"
        elif not (isinstance(stride, int) and stride == 1):
            text = f"{text} * {e.number(stride)}"
        parts.append(text)
    if run is not None:
        parts.append(e.spread(run.lanes, (rank - 1,), rank))
    name = e.tensor_names[attrs.tensor]
    if base:
        return f"({name} + {base}) + {' + '.join(reversed(parts))}"
    if attrs.lanes:
        # always 0, as Triton's choice of layouts does not know: vectors are no wider than the elements given
        zero = "tl.minimum(tl.program_id(0), 0)"
        name += f" + {zero if attrs.lanes == 1 else f'tl.multiple_of({zero}, {attrs.lanes})'}"
    bare = attrs.rank and not any(index.positions for index in attrs.indices)
    if bare or unaddressed(attrs.indices, op.operands, dims):
        # the indices do not give the pointers their whole shape: some are into dimensions of size 1
        parts.append(f"tl.zeros({e.shape(dims)}, {e.index_dtype})")
    if attrs.aligned:
        return f"{name} + tl.multiple_of({' + '.join(parts)}, {_multiples(e, attrs)})"
    return f"{name} + ({' + '.join(parts)})" if len(parts) > 1 else f"{name} + {parts[0]}" if parts else name


def _inner_run(e: Emission, attrs: MemoryAttrs, parts: list[str]) -> frozenset[int]:
    """Add the offset along the inner dimensions of a flattened grid that are one run of an access, and return them."""
    bits = 64 if e.wide else 32
    for axis in e.scope.merged:
        taken, elements = inner_run(attrs, e.kernel.tensors, axis.merged)
        if taken:
            parts.append(f"({e.active(axis.block).index}.to(tl.uint{bits}) % {elements}).to(tl.int{bits})")
            return frozenset(part.block for part in axis.merged[-taken:])
    return frozenset()


def _based(e: Emission, op: Op, index: Index, rank: int) -> tuple[str, str]:
    """Return the begin of a tile with the shift of an index, and the lanes of the tile from there."""
    assert index.block is not None
    text = f"tl.arange(0, {e.symbol(index.block)})"
    begin = [e.active(index.block).offset]
    if index.operand is not None:
        begin.append(e.operand(op.operands[index.operand]))
    if not fixed_at(index.shift, 0):
        begin.append(e.number(index.shift))
    return f"({' + '.join(begin)})" if len(begin) > 1 else begin[0], e.spread(text, index.positions, rank)


def _multiples(e: Emission, attrs: MemoryAttrs) -> list[int]:
    """Return, by dimension, the number that the first offset of each row is a multiple of."""
    blocks = (index for index in attrs.indices if index.kind == "block" and index.block is not None)
    (along,) = (index.positions[0] for index in blocks if e.plan.size(index.block) > 1)  # type: ignore[arg-type]
    return [attrs.aligned if at == along else 1 for at in range(attrs.rank)]


def index_text(e: Emission, op: Op, index: Index, rank: int) -> str:
    """Return one index of a subscript: a number, or lanes broadcast over the ``rank`` dimensions of the access.

    An int64 index of a tensor stays one: narrowed, it saves no instruction (measurement ``narrow_indices``).
    """
    kind, shift, positions = index.kind, index.shift, index.positions
    terms = []
    if index.block is not None and kind == "block":
        terms.append(e.active(index.block).index)
    if index.operand is not None:
        value = op.operands[index.operand]
        text = e.operand(value)
        narrow = isinstance(value, Value) and value.dtype != torch.int64
        terms.append(f"{text}.to(tl.int64)" if e.wide and narrow else text)
    if isinstance(shift, Expr) or shift != 0:
        terms.append(e.number(shift))
    text = f"({' + '.join(terms)})" if len(terms) > 1 else terms[0] if terms else "0"
    return text if kind == "scalar" else e.spread(text, positions, rank)
