"""Steps in memory of computed subscripts whose neighbours are near: those of images, windows and interpolations.

A clamp, a remainder, a mask or a scaled position moves by few elements from one index of its axis to the next one.
An index that is loaded may be anywhere. Positions after a loaded begin are near each other, as those of packed rows are.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.grammar import IotaAttrs, MemoryAttrs, Op, Operand, PointwiseAttrs, TileAttrs, Value
from .axes import count
from .records import AxisFact
from .walk import Walk

#: Steps of an index by axis. None is a step that only the launch knows, as that of a scaled position.
_Steps = dict[int, float | None]

_SAME = frozenset(("cast", "floor", "ceil", "round", "trunc", "neg", "abs", "relu"))
#: Ops with a number that permute or drop bits: neighbours stay in the same sectors of memory.
_BITS = frozenset(("bitwise_and", "bitwise_or", "bitwise_xor"))
_BETWEEN = frozenset(("minimum", "maximum", "fmin", "fmax", "clamp"))
_DEPTH = 24


def steps_of(op: Op, walk: Walk, axes: Sequence[AxisFact]) -> tuple[tuple[int, float], ...]:
    """Return the mean distance in memory, in elements, between neighbours along each axis of an access.

    It is empty where an index is only loaded, or unknown in another way.
    """
    attrs = op.attributes(MemoryAttrs)
    tensor = walk.program.tensors[attrs.tensor]
    found: dict[int, float] = {}
    for index, stride, extent in zip(attrs.indices, tensor.strides, tensor.shape, strict=True):
        steps: _Steps | None = {}
        if index.kind == "block" and index.block is not None:
            steps = {index.block: 1.0}
        elif index.kind == "tensor" and index.operand is not None:
            steps = _steps(op.operands[index.operand], walk, _DEPTH)
        if steps is None:
            return ()
        for axis, step in steps.items():
            if step is None:
                along = axes[axis].extent
                if not along:
                    return ()
                step = count(extent) / along
            found[axis] = found.get(axis, 0.0) + abs(step) * count(stride)
    return tuple(sorted(found.items()))


def _steps(operand: Operand, walk: Walk, depth: int) -> _Steps | None:
    """Return the steps of an index, or None if data selects it."""
    if not isinstance(operand, Value):
        return {}
    op = walk.makers.of(operand)
    if op is None or not depth:
        return None
    if isinstance(op.attrs, IotaAttrs):
        return {op.attrs.block: float(op.attrs.step)}
    if isinstance(op.attrs, TileAttrs) or op.kind in ("number", "full"):
        return {}
    if op.kind == "load":
        return None if op.result.dims else {}
    if op.kind == "view":
        return _steps(op.operands[0], walk, depth - 1)
    if not isinstance(op.attrs, PointwiseAttrs):
        return None
    name, operands = op.attrs.name, op.operands[1:] if op.attrs.name == "where" else op.operands
    parts = [_steps(each, walk, depth - 1) for each in operands]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        begins = [each for each, part in zip(operands, parts, strict=True) if part is None]
        return _from_begins(begins, known, walk) if name == "add" else None
    if not any(known):
        return {}
    if name in _SAME:
        return known[0]
    if name in _BETWEEN or name == "where":
        return {axis: part[axis] for part in known for axis in part}
    if name in ("add", "sub"):
        return _sum(known, -1.0 if name == "sub" else 1.0)
    first, *others = known
    if len(known) != 2 or (not first and name != "mul" and name not in _BITS) or (any(others) and first):
        return None
    factor = op.operands[0] if not first else op.operands[1]
    scaled = first or others[0]
    if name == "mul":
        return {axis: _scaled(step, factor) for axis, step in scaled.items()}
    if name in ("div", "floordiv"):
        inverse = 1.0 / factor if isinstance(factor, (int, float)) and factor else None
        return {axis: _scaled(step, inverse) for axis, step in scaled.items()}
    if name in ("lshift", "rshift") and isinstance(factor, int):
        return {axis: _scaled(step, 2.0 ** (factor if name == "lshift" else -factor)) for axis, step in scaled.items()}
    return scaled if name in ("remainder", "fmod") or name in _BITS else None


def _from_begins(begins: Sequence[Operand], known: Sequence[_Steps], walk: Walk) -> _Steps | None:
    """Return the steps of positions after loaded begins, as those of packed rows; None for other sums.

    From one begin to the next one it is a mean row, which only the launch knows.
    """
    axes = [block for begin in begins for block in _loaded_along(begin, walk, _DEPTH)]
    after = [axis for part in known for axis in part]
    if len(axes) != 1 or not after or axes[0] in after:
        return None
    return {axes[0]: None} | {axis: step for part in known for axis, step in part.items()}


def _loaded_along(operand: Operand, walk: Walk, depth: int) -> tuple[int, ...]:
    """Return the axes of a vector that is loaded, through views and casts; empty for other values."""
    op = walk.makers.of(operand) if isinstance(operand, Value) and depth else None
    if op is None:
        return ()
    if op.kind == "load":
        return tuple(block for dim in op.result.dims for block in dim.blocks)
    if op.kind == "view" or (isinstance(op.attrs, PointwiseAttrs) and op.attrs.name in _SAME):
        return _loaded_along(op.operands[0], walk, depth - 1)
    return ()


def _sum(parts: Sequence[_Steps], sign: float) -> _Steps:
    first, second = parts
    found = dict(first)
    for axis, step in second.items():
        if axis not in found:
            found[axis] = step
        else:
            before = found[axis]
            found[axis] = None if before is None or step is None else before + sign * step
    return found


def _scaled(step: float | None, factor: object) -> float | None:
    return step * factor if step is not None and isinstance(factor, (int, float)) else None
