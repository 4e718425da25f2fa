"""Loops: grid loops become roots, device loops become ``for`` ops, others are unrolled."""

from __future__ import annotations

import ast
import types
from dataclasses import replace
from typing import Any

import torch

from .... import exc
from .... import language as hl
from ...._shapes import Expr, hint_of, next_power_of_2
from ...ir.grammar import Block, Bound, ForAttrs, Keep, LoopAxis, Op, Operand, OperandRef, Region, Root, WhileAttrs
from .. import host_tensors
from ..expressions.operators import Expressions
from ..frames import assigned_names
from ..runtime_values import Opaque, refuse_opaque
from ..torch_pointwise import truth
from ..values import DeviceValue, HostTensorValue, LoopSpec, Missing, Tile, TileTuple, describe
from ..walk.scope import Break, Continue, device_value_on_host
from .carried import Carried, CarriedValues, Trial

_LOOPS = {
    hl.jagged_tile: "hl.jagged_tile",
    hl.tile: "hl.tile",
    hl.grid: "hl.grid",
    hl.static_range: "hl.static_range",
    range: "range",
}

#: A host while loop that runs longer is taken for endless.
_MAX_HOST_ITERATIONS = 10_000


def _bounds(spec: LoopSpec) -> tuple[Any, Any, Any]:
    return spec.begins[0], spec.ends[0], spec.sizes[0] or 1


class Loops(CarriedValues):
    """Walks ``for`` statements."""

    def _is_grid_loop(self, e: Expressions, statement: ast.stmt) -> bool:
        if not isinstance(statement, ast.For) or not isinstance(statement.iter, ast.Call):
            return False
        function = e.try_eval(statement.iter.func)
        return function is hl.tile or function is hl.grid

    def _has_grid_loop(self, e: Expressions, node: ast.stmt) -> bool:
        """Whether a grid loop is a statement of a branch or of a loop, or of one in there."""
        if not isinstance(node, (ast.If, ast.For, ast.While, ast.With, ast.Try)):
            return False
        inner = [*node.body, *getattr(node, "orelse", ()), *getattr(node, "finalbody", ())]
        inner += [statement for handler in getattr(node, "handlers", ()) for statement in handler.body]
        return any(self._is_grid_loop(e, statement) or self._has_grid_loop(e, statement) for statement in inner)

    def do_For(self, e: Expressions, node: ast.For) -> None:
        function = e.eval(node.iter.func) if isinstance(node.iter, ast.Call) else None
        name = _LOOPS.get(function) if isinstance(function, (type, types.FunctionType)) else None
        if name is None or (name == "range" and not self.t.on_device):
            self._unrolled(e, node, e.eval(node.iter))
            return
        if node.orelse:
            raise exc.DeviceLoopElseBlock()
        if name == "hl.jagged_tile":
            self._device_loop(e, node, self._jagged_spec(e, node))
            return
        known = len(self.t.drawn)
        spec = self._loop_spec(e, name, node)
        if name == "hl.static_range":
            self._unrolled(e, node, range(*(self._constant(v) for v in _bounds(spec))))
        elif name == "range" and self._indexes_sequences(e, node) and all(isinstance(b, int) for b in _bounds(spec)):
            self._unrolled(e, node, range(*_bounds(spec)))
        elif self.t.on_device:
            self._device_loop(e, node, spec)
        else:
            self._place_header(node, len(self.t.drawn) > known)
            self._root(e, node, spec)

    def _indexes_sequences(self, e: Expressions, node: ast.For) -> bool:
        """Whether the body takes items of a Python sequence by the loop variable: a loop on the device cannot."""
        target = node.target.id if isinstance(node.target, ast.Name) else ""
        for part in (part for statement in node.body for part in ast.walk(statement)):
            if isinstance(part, ast.Subscript) and isinstance(part.value, (ast.Name, ast.Attribute)):
                names = {n.id for n in ast.walk(part.slice) if isinstance(n, ast.Name)}
                if target in names and isinstance(e.try_eval(part.value), (list, tuple)):
                    return True
        return False

    def _constant(self, value: Any) -> int:
        if not isinstance(value, int):
            raise exc.TypeInferenceError(f"hl.static_range needs constant bounds, got {describe(value)}.")
        return value

    def _unrolled(self, e: Expressions, node: ast.For, iterable: Any) -> None:
        for item in e.iterate(iterable, node.iter):
            self.bind(e, node.target, item)
            if not self._iteration(e, node.body):
                return
        self.execute_all(e, node.orelse)

    def _iteration(self, e: Expressions, body: list[ast.stmt]) -> bool:
        """Walks the body of a loop that is unrolled once; False if it ends the loop."""
        try:
            self.execute_all(e, body)
        except Continue:
            pass
        except Break:
            return False
        return True

    def _loop_spec(self, e: Expressions, name: str, node: ast.For) -> LoopSpec:
        call = node.iter
        assert isinstance(call, ast.Call)
        args = [self._read_bound(e, a) for a in call.args]
        kwargs = {k.arg: e.eval(k.value) for k in call.keywords}
        e.at(call)
        refuse_opaque((args, kwargs))
        if not 1 <= len(args) <= 3 or (len(args) == 3 and name == "hl.tile" and "block_size" in kwargs):
            raise exc.TypeInferenceError(f"{name} takes one or two bounds, got {len(args)} arguments.")
        extra_name = "block_size" if name == "hl.tile" else "step"
        extra = kwargs.pop(extra_name, args[2] if len(args) == 3 else None)
        if kwargs:
            raise exc.TypeInferenceError(f"{name} has no argument {next(iter(kwargs))!r}.")
        if len(args) == 1 or args[1] is None:
            begins, ends = None, args[0]
        else:
            begins, ends = args[0], args[1]
        sequence = isinstance(ends, (tuple, list))
        ends = tuple(ends) if sequence else (ends,)
        if not ends:
            raise exc.TypeInferenceError(
                f"{name} got no dimension to walk over; give a tensor without dimensions one, as x.reshape(1) does."
            )
        if begins is None:
            begins = (0,) * len(ends)
        elif isinstance(begins, (tuple, list)) != sequence:
            raise exc.IncorrectTileUsage(how="with a list as one bound and a scalar as the other")
        else:
            begins = tuple(begins) if sequence else (begins,)
        sizes = tuple(extra) if isinstance(extra, (tuple, list)) else (extra,) * len(ends)
        if not len(begins) == len(ends) == len(sizes):
            raise exc.TypeInferenceError(
                f"{name} got {len(begins)} begins, {len(ends)} ends and {len(sizes)} {extra_name}s."
            )
        return LoopSpec(name, name != "hl.tile", begins, ends, sizes, sequence)

    def _read_bound(self, e: Expressions, node: ast.expr) -> Any:
        """A bound of a loop. The host reads numbers that size a grid off tensors that hold one."""
        if isinstance(node, (ast.List, ast.Tuple)) and not self.t.on_device:
            return [self._read_bound(e, element) for element in node.elts]
        value = e.eval(node)
        if isinstance(value, HostTensorValue) and not self.t.on_device and not value.ndim:
            return self._read_number(e, value, node)
        return value

    def _read_number(self, e: Expressions, tensor: HostTensorValue, node: ast.expr) -> Any:
        """The number in a tensor of the host's, as if ``node`` had ``.item()`` behind it."""
        if tensor.dtype.is_floating_point:
            return tensor
        number = host_tensors.item(self.t, tensor.dtype)
        self.t.drawn[number.args[0]] = ""
        call = ast.Call(ast.Attribute(node, "item", ast.Load()), [], [])
        self.header_reads.append(Keep(number.args[0], ast.copy_location(call, node)))
        return number

    def _place_header(self, node: ast.For, reads: bool) -> None:
        """What launches need of a grid loop's header, which is no part of the generated host code. ``reads``: it has
        the host read a tensor."""
        raise NotImplementedError

    def _jagged_spec(self, e: Expressions, node: ast.For) -> LoopSpec:
        """A loop up to the largest row length."""
        call = node.iter
        assert isinstance(call, ast.Call)
        parents = [e.eval(a) for a in call.args]
        e.at(call)
        if not self.t.on_device:
            raise exc.InvalidJaggedTileUsage("it must stand inside an hl.tile loop over the rows.")
        if len(parents) != 1 or not isinstance(parents[0], DeviceValue) or not parents[0].dims:
            raise exc.InvalidJaggedTileUsage(
                f"it takes one device tile of row lengths, got {', '.join(map(describe, parents)) or 'nothing'}."
            )
        lengths = parents[0]
        if lengths.dtype.is_floating_point or lengths.dtype == torch.bool:
            raise exc.InvalidJaggedTileUsage(f"row lengths must be integers, got {lengths!r}.")
        if any(d.block is None for d in lengths.dims):
            raise exc.InvalidJaggedTileUsage(f"row lengths must have the dimensions of tiles, got {lengths!r}.")
        lengths = self.t.cast(lengths, self.t.context.index_dtype)
        longest = self.t.reduce("max", lengths, range(lengths.ndim), lengths.dtype)
        longest = self.t.pointwise("maximum", longest, 0)
        return LoopSpec("hl.jagged_tile", False, (0,), (longest,), (None,), False, jagged=lengths)

    def _axes(self, spec: LoopSpec, target: ast.expr, operands: list[Operand]) -> list[tuple[LoopAxis, Block]]:
        names = [t.id if isinstance(t, ast.Name) else "" for t in getattr(target, "elts", [target])]
        if len(names) != len(spec.ends):
            names = [f"{names[0]}_{i}" for i in range(len(spec.ends))]
        return [self._axis(spec, i, names[i] or f"axis_{i}", operands) for i in range(len(spec.ends))]

    def _axis(self, spec: LoopSpec, i: int, name: str, operands: list[Operand]) -> tuple[LoopAxis, Block]:
        begin, end, size = self.t.known(spec.begins[i]), self.t.known(spec.ends[i]), spec.sizes[i]
        for bound in (begin, end):
            if isinstance(bound, Tile):
                raise exc.TileOfTile()
            if isinstance(bound, HostTensorValue):
                remedy = (
                    "load the number from it first"
                    if self.t.on_device
                    else "the host needs the number to size the grid, so bind its `.item()` to a variable and use that "
                    "(reading it waits for the device)"
                )
                raise exc.TypeInferenceError(
                    f"A bound of {spec.name} must be an integer, got {describe(bound)}; {remedy}."
                )
            if isinstance(bound, Opaque):
                raise bound.error.with_traceback(None)
            if isinstance(bound, bool) or not isinstance(bound, (int, Expr, DeviceValue)):
                raise exc.TypeInferenceError(f"A bound of {spec.name} must be an integer, got {describe(bound)}.")
            if isinstance(bound, DeviceValue) and bound.dims:
                raise exc.TypeInferenceError(f"A bound of {spec.name} must be a scalar, got {bound!r}.")
        if isinstance(begin, int) and isinstance(end, int) and begin > end:
            raise exc.InvalidTileRange(begin=begin, end=end)
        if not self.t.on_device and not self.t.is_never_negative(end - begin):
            # nothing to walk over, as for range(); a negative number of tiles would be taken off other loops' tiles
            end = Expr("max", (begin, end), max(hint_of(begin), hint_of(end)))
        extent = None if isinstance(begin, DeviceValue) or isinstance(end, DeviceValue) else end - begin
        block = self._block(spec, size, extent, name)
        step = 1 if not spec.scalar or size is None else size
        bounds = self._bound(begin, operands), self._bound(end, operands)
        jagged = None
        if spec.jagged is not None:
            operands.append(spec.jagged.value)
            jagged = OperandRef(len(operands) - 1)
        return LoopAxis(block.id, *bounds, spec.scalar, step, jagged), block

    def _bound(self, bound: Any, operands: list[Operand]) -> Bound:
        if isinstance(bound, DeviceValue):
            operands.append(bound.value)
            return OperandRef(len(operands) - 1)
        return bound

    def _block(self, spec: LoopSpec, size: Any, extent: Any, name: str) -> Block:
        if spec.scalar:
            return self.t.new_block("grid", extent, size=1, name=name)
        if size is None:
            maximum = next_power_of_2(max(1, extent)) if isinstance(extent, int) else None
            return self.t.new_block("tile", extent, name=name, max_size=maximum)
        if isinstance(size, Expr) and size.op == "block":
            block = self.t.blocks[size.args[0]]
            if block.id in self.t.active_blocks:
                raise exc.NestedDeviceLoopsConflict(block=block.name)
            if extent is None or hint_of(extent) > hint_of(0 if block.extent is None else block.extent):
                self.t.update_block(block.id, extent=extent)
            return self.t.blocks[block.id]
        if isinstance(size, Expr) and any(leaf.op == "tunable" for leaf in size.leaves()):
            return self.t.new_block("tile", extent, size=self._of_tunables(size), name=name)
        if isinstance(size, Expr):
            size = self.t.specialize(size)
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise exc.TypeInferenceError(
                f"block_size must be a positive integer or a registered block size, got {describe(size)}."
            )
        if size & (size - 1):
            raise exc.BackendUnsupported(
                what=f"block_size={size}", backend="Triton", remedy=": it must be a power of two"
            )
        return self.t.new_block("tile", extent, size=size, name=name)

    def _of_tunables(self, size: Expr) -> Expr:
        """A block size that depends on tunables only: the arguments in it become part of the specialization key."""

        def leaf(expr: Expr) -> Any:
            return expr if expr.op == "tunable" else self.t.specialize(expr)

        if any(inner.op == "block" for inner in size.leaves()):
            raise exc.TypeInferenceError("A block size cannot depend on both a tunable and another block size.")
        return size.evaluate(leaf)

    def _loop_variable(self, axes: list[tuple[LoopAxis, Block]], spec: LoopSpec) -> Any:
        variables: list[Any] = []
        for axis, block in axes:
            tile = Tile(self.t, block, axis.end if isinstance(axis.end, int) else None, spec.jagged)
            self.t.active_blocks[block.id] = tile
            variables.append(self.t.tile_field(tile, "index") if axis.scalar else tile)
        if not spec.sequence:
            return variables[0]
        return tuple(variables) if spec.scalar else TileTuple(variables)

    def _bind_loop_target(self, e: Expressions, target: ast.expr, variable: Any, spec: LoopSpec) -> None:
        if isinstance(target, (ast.Tuple, ast.List)) and not spec.sequence:
            raise exc.FailedToUnpackTile(count=len(target.elts))
        self.bind(e, target, variable)

    def _root(self, e: Expressions, node: ast.For, spec: LoopSpec) -> None:
        if self.grid_loop is not node:
            raise exc.NestedGridLoop(name=spec.name, parent="another statement")
        frame = e.frame
        outer = dict(frame.names)
        frame.host_names = frozenset(n for n, v in outer.items() if not isinstance(v, Missing))
        operands: list[Operand] = []
        axes = self._axes(spec, node.target, operands)
        with self.t.builder.region() as ops:
            self._bind_loop_target(e, node.target, self._loop_variable(axes, spec), spec)
            self.execute_all(e, node.body)
        self.t.active_blocks.clear()
        self.t.builder.location = None
        location = frame.source.location(node)
        body = Region((), tuple(ops), ())
        axes_only = tuple(axis for axis, _ in axes)
        self.roots.append(
            Root(axes=axes_only, body=body, location=location, phase=self.t.phase, launch=self.launches - 1)
        )
        left = {n: device_value_on_host(n) for n in frame.names if n not in outer}
        frame.host_names = frozenset()
        frame.names = {**outer, **left}

    def _device_loop(self, e: Expressions, node: ast.For, spec: LoopSpec) -> None:
        before = dict(e.frame.names)
        bounds: list[Operand] = []
        snapshot = self.t.snapshot()
        widened: dict[str, torch.dtype] = {}
        while True:
            axes = self._axes(spec, node.target, bounds)
            trial = self._trace_body(e, node, spec, axes, before, widened)
            grown = {n: v.dtype for n, v in self._grown(trial, before).items() if n not in widened}
            if not grown:
                break
            # a number that changes in the loop has to be a run-time scalar: trace again with it as one
            widened.update(grown)
            self.t.restore(snapshot)
            bounds.clear()
            e.frame.names = dict(before)
        e.at(node)
        carried, temporaries = self._carried(trial, before)
        results = {c.name: self.t.builder.value(c.param.dtype, c.param.dims, c.name) for c in carried}
        region = Region(tuple(c.param for c in carried), tuple(trial.ops), tuple(c.after for c in carried))
        attrs = ForAttrs(tuple(_shift_bounds(axis, len(carried)) for axis, _ in axes), len(carried))
        operands = (*(c.initial for c in carried), *bounds)
        self.t.builder.append(Op("for", operands, tuple(results.values()), attrs, (region,), self.t.builder.location))
        e.frame.names = self._names_after(node, trial, before, results, temporaries)

    def _trace_body(
        self,
        e: Expressions,
        node: ast.For,
        spec: LoopSpec,
        axes: list[tuple[LoopAxis, Block]],
        before: dict[str, Any],
        widened: dict[str, torch.dtype],
    ) -> Trial:
        params = self._params(assigned_names(node.body), before, widened)
        e.frame.names = {**before, **{n: self.t.wrap(v) for n, v in params.items()}}
        with self.t.builder.region() as ops:
            self._bind_loop_target(e, node.target, self._loop_variable(axes, spec), spec)
            self.execute_all(e, node.body)
        for _, block in axes:
            self.t.active_blocks.pop(block.id, None)
        return Trial(params, ops, e.frame.names)

    # --- while -----------------------------------------------------------------------------------------------------------

    def do_While(self, e: Expressions, node: ast.While) -> None:
        if node.orelse:
            raise exc.DeviceLoopElseBlock()
        if self.t.on_device:
            self._device_while(e, node)
            return
        for _ in range(_MAX_HOST_ITERATIONS):
            if not e.truth_on_host(e.eval(node.test)) or not self._iteration(e, node.body):
                return
        raise exc.StatementNotSupported(
            statement=f"A while loop of more than {_MAX_HOST_ITERATIONS} iterations", where="host", remedy=""
        )

    def _device_while(self, e: Expressions, node: ast.While) -> None:
        before = dict(e.frame.names)
        snapshot = self.t.snapshot()
        widened: dict[str, torch.dtype] = {}
        while True:
            params = self._params(assigned_names(node.body), before, widened)
            e.frame.names = {**before, **{n: self.t.wrap(v) for n, v in params.items()}}
            with self.t.builder.region() as ops:
                self.execute_all(e, node.body)
            trial = Trial(params, ops, e.frame.names)
            grown = {n: v.dtype for n, v in self._grown(trial, before).items() if n not in widened}
            if not grown:
                break
            widened.update(grown)
            self.t.restore(snapshot)
            e.frame.names = dict(before)
        carried, temporaries = self._carried(trial, before)
        condition = self._condition(e, node, carried, before)
        results = {c.name: self.t.builder.value(c.param.dtype, c.param.dims, c.name) for c in carried}
        body = Region(tuple(c.param for c in carried), tuple(trial.ops), tuple(c.after for c in carried))
        operands = tuple(c.initial for c in carried)
        location = self.t.builder.location
        self.t.builder.append(Op("while", operands, tuple(results.values()), WhileAttrs(), (condition, body), location))
        e.frame.names = self._names_after(node, trial, before, results, temporaries)

    def _condition(self, e: Expressions, node: ast.While, carried: list[Carried], before: dict[str, Any]) -> Region:
        """The condition as a region of its own, evaluated before every iteration."""
        params = {c.name: self.t.builder.value(c.param.dtype, c.param.dims, c.name) for c in carried}
        e.frame.names = {**before, **{n: self.t.wrap(v) for n, v in params.items()}}
        with self.t.builder.region() as ops:
            test = e.eval(node.test)
            e.at(node.test)
            if isinstance(test, Tile):
                raise exc.IncorrectTileUsage(how="as a condition")
            if not isinstance(test, (DeviceValue, Expr)):
                raise exc.StatementNotSupported(
                    statement=f"`while {ast.unparse(node.test)}` with a condition that never changes",
                    where="device",
                    remedy="; the loop would run never or forever",
                )
            value = self.t.as_device(truth(self.t, test))
            if any(not d.is_one for d in value.dims):
                raise exc.ConditionNotScalar(statement=f"while {ast.unparse(node.test)}", shape=repr(value))
            value = self.t.reshape(value, ())
        return Region(tuple(params.values()), tuple(ops), (value.value,))


def _shift_bounds(axis: LoopAxis, by: int) -> LoopAxis:
    """Bounds are operands after the carried values."""
    begin, end, jagged = (
        OperandRef(b.at + by) if isinstance(b, OperandRef) else b for b in (axis.begin, axis.end, axis.jagged)
    )
    return replace(axis, begin=begin, end=end, jagged=jagged)  # type: ignore[arg-type]
