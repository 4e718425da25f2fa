"""Blocks and bounds of loops."""

from __future__ import annotations

import ast
from collections.abc import Set
from typing import Any

from .... import exc
from ...._shapes import Expr, Number, fixed_at, hint_of, next_power_of_2, number_key
from ...ir.grammar import Block, Bound, LoopAxis, Operand, OperandRef
from .. import ops
from ..polynomials import of_number
from ..runtime_values import Opaque
from ..values import DeviceValue, HostTensorValue, LoopSpec, Tile, TileTuple, describe
from ..walk.scope import Scope, assign

#: The remedy for a tile of bounds.
_MANY_BOUNDS = (
    "for a bound of each row use hl.jagged_tile; for one row at a time make the outer loop "
    "hl.tile(..., block_size=1), and index the bounds by its `tile.begin`"
)
#: The remedy for a bound with a fraction.
_WHOLE = "convert it with int(...)"


def axes_of(s: Scope, spec: LoopSpec, target: ast.expr, operands: list[Operand]) -> list[tuple[LoopAxis, Block]]:
    """Return a loop's axes with their blocks; bounds that are device values are appended to ``operands``."""
    names = [t.id if isinstance(t, ast.Name) else "" for t in getattr(target, "elts", [target])]
    if len(names) != len(spec.ends):
        names = [f"{names[0]}_{i}" for i in range(len(spec.ends))]
    axes: list[tuple[LoopAxis, Block]] = []
    for i in range(len(spec.ends)):
        walked = {*s.t.blocks.active, *(block.id for _, block in axes)}
        axes.append(_axis(s, spec, i, names[i] or f"axis_{i}", operands, walked))
    return axes


def _axis(
    s: Scope, spec: LoopSpec, i: int, name: str, operands: list[Operand], walked: Set[int]
) -> tuple[LoopAxis, Block]:
    """Return one axis and its block. ``walked`` are the blocks of the loops around it and of the axes before it."""
    begin, end, size = s.t.numbers.known(spec.begins[i]), s.t.numbers.known(spec.ends[i]), spec.sizes[i]
    for bound in (begin, end):
        if isinstance(bound, Tile):
            raise exc.TileOfTile()
        if isinstance(bound, HostTensorValue):
            remedy = _remedy(s, spec, bound)
            raise exc.TypeInferenceError(f"A bound of {spec.name} must be an integer, got {describe(bound)}; {remedy}.")
        if isinstance(bound, Opaque):
            raise bound.error.with_traceback(None)
        if isinstance(bound, bool) or not isinstance(bound, (int, Expr, DeviceValue)):
            raise exc.TypeInferenceError(f"A bound of {spec.name} must be an integer, got {describe(bound)}.")
        if isinstance(bound, DeviceValue) and bound.dims:
            raise exc.TypeInferenceError(f"A bound of {spec.name} must be a scalar, got {bound!r}; {_MANY_BOUNDS}.")
        if isinstance(bound, DeviceValue) and bound.is_floating_point():
            raise exc.TypeInferenceError(f"A bound of {spec.name} must be an integer, got {bound!r}; {_WHOLE}.")
        if isinstance(bound, Expr) and bound.kind is float:
            got = f"got a float, {bound.hint} in this call"
            raise exc.TypeInferenceError(f"A bound of {spec.name} must be an integer, {got}; {_WHOLE}.")
    if isinstance(begin, int) and isinstance(end, int) and begin > end:
        raise exc.InvalidTileRange(begin=begin, end=end)
    if not s.t.on_device and not s.t.numbers.is_never_negative(end - begin):
        # an empty range, as for range(); a negative number of tiles would reduce the tile count of other loops
        end = Expr("max", (begin, end), max(hint_of(begin), hint_of(end)))
    extent = None if isinstance(begin, DeviceValue) or isinstance(end, DeviceValue) else end - begin
    if s.t.on_device:  # some rewrites of loops inside of others need an iteration
        s.t.numbers.rely_on(extent, 1)
    block = _block(s, spec, size, extent, name, walked)
    step = 1 if not spec.scalar or size is None else size
    bounds = _bound(begin, operands), _bound(end, operands)
    jagged = None
    if spec.jagged is not None:
        operands.append(spec.jagged.value)
        jagged = OperandRef(len(operands) - 1)
    return LoopAxis(block.id, *bounds, spec.scalar, step, jagged), block


def _remedy(s: Scope, spec: LoopSpec, bound: HostTensorValue) -> str:
    """Return what to write in place of a tensor as a bound: its sizes, or a number in it."""
    walked = f"to walk over all of it write {spec.name}({bound.source}.size())" if bound.ndim and bound.source else ""
    if walked and bound.dtype.is_floating_point:
        return walked
    number = (
        "load the number from it first"
        if s.t.on_device
        else "the host needs the number to size the grid, so bind its `.item()` to a variable and use that "
        "(reading it waits for the device)"
    )
    return f"{walked}; to stop at a number in it: {number}" if walked else number


def _bound(bound: Any, operands: list[Operand]) -> Bound:
    if isinstance(bound, DeviceValue):
        operands.append(bound.value)
        return OperandRef(len(operands) - 1)
    return bound


def _block(s: Scope, spec: LoopSpec, size: Any, extent: Any, name: str, walked: Set[int]) -> Block:
    if spec.scalar:
        return s.t.blocks.new("grid", extent, size=1, name=name)
    if size is None:
        maximum = next_power_of_2(max(1, extent)) if isinstance(extent, int) else None
        return s.t.blocks.new("tile", extent, name=name, max_size=maximum)
    known = _registered(s, size)
    if known is not None:
        block = s.t.blocks.unwalked(known, walked, name)
        for number in (extent, block.extent) if number_key(extent) != number_key(block.extent) else ():
            s.t.numbers.rely_on(number)  # its tiles are in range of one of the two
        if extent is None or hint_of(extent) > hint_of(0 if block.extent is None else block.extent):
            s.t.blocks.update(block.id, extent=extent)
        return s.t.blocks[block.id]
    if isinstance(size, Expr) and any(leaf.op == "tunable" for leaf in size.leaves()):
        return s.t.blocks.new("tile", extent, size=_of_tunables(s, size), name=name)
    if isinstance(size, Expr):
        size = s.t.numbers.specialize(size)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise exc.TypeInferenceError(
            f"block_size must be a positive integer or a registered block size, got {describe(size)}."
        )
    limits = s.t.context.limits
    step = limits.tile_step
    if limits.powers_of_2 and size & (size - 1) and (step is None or size % step):
        also = "" if step is None else f" or a multiple of {step}"
        raise exc.BackendUnsupported(
            what=f"block_size={size}",
            backend=limits.backend,
            remedy=f": it must be a power of two{also}; helion.next_power_of_2(n) rounds up",
        )
    return s.t.blocks.new("tile", extent, size=size, name=name)


def _registered(s: Scope, size: Any) -> int | None:
    """Return the block whose size a number is: a registered one, or a fraction of one."""
    if not isinstance(size, Expr) or any(leaf.op != "block" for leaf in size.leaves()):
        return None
    dim = s.t.blocks.dim_of_polynomial(of_number(size))
    return None if dim is None else dim.block


def _of_tunables(s: Scope, size: Expr) -> Expr:
    """Return a block size that depends on tunables only: the arguments in it become part of the specialization key."""

    def leaf(expr: Expr) -> Any:
        return expr if expr.op == "tunable" else s.t.numbers.specialize(expr)

    if any(inner.op == "block" for inner in size.leaves()):
        raise exc.TypeInferenceError("A block size cannot depend on both a tunable and another block size.")
    return size.evaluate(leaf)


def _loop_variable(s: Scope, axes: list[tuple[LoopAxis, Block]], spec: LoopSpec) -> Any:
    variables: list[Any] = []
    for axis, block in axes:
        first, last = (bound if isinstance(bound, int) else None for bound in (axis.begin, axis.end))
        tile = Tile(s.t, block, first, last, spec.jagged, _range(axis))
        s.t.blocks.active[block.id] = tile
        variables.append(ops.tile_field(s.t, tile, "index") if axis.scalar else tile)
    if not spec.sequence:
        return variables[0]
    return tuple(variables) if spec.scalar else TileTuple(variables)


def _range(axis: LoopAxis) -> tuple[Number, Number] | None:
    """Return the first index of a loop and the one after its last; None if they are known on the device only."""
    begin, end = axis.begin, axis.end
    if isinstance(begin, OperandRef) or isinstance(end, OperandRef):
        return None
    return begin, end if fixed_at(axis.step, 1) else begin + (end - begin - 1) // axis.step * axis.step + 1


def bind_loop_variable(s: Scope, target: ast.expr, axes: list[tuple[LoopAxis, Block]], spec: LoopSpec) -> None:
    """Assign a loop's tiles or indices to its target."""
    variable = _loop_variable(s, axes, spec)
    if isinstance(target, (ast.Tuple, ast.List)) and not spec.sequence:
        raise exc.FailedToUnpackTile(count=len(target.elts))
    assign(s, target, variable)
