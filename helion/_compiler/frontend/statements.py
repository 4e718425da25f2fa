"""Statements of a kernel's source: one walk evaluates host code and records device code."""

from __future__ import annotations

import ast
import types
from dataclasses import dataclass
from typing import Any

import torch

from ... import exc
from ... import language as hl
from ..._shapes import Expr, hint_of, next_power_of_2
from ..ir.grammar import Block, Bound, ForAttrs, LoopAxis, Op, Operand, OperandRef, Region, Root, Value
from ..source import FunctionSource
from .expressions import Expressions, is_torch_function
from .frames import Frame, assigned_names, host_number
from .hl_functions import specialize
from .torch_pointwise import truth
from .tracer import Tracer
from .values import DeviceValue, HostTensorValue, LoopSpec, Missing, Tile, TileTuple, describe

_LOOPS = {hl.tile: "hl.tile", hl.grid: "hl.grid", hl.static_range: "hl.static_range", range: "range"}


class _Return(Exception):
    """Ends the walk of a function."""

    def __init__(self, value: Any) -> None:
        self.value = value


@dataclass
class _Trial:
    """One trace of a loop body: the params it was given, its ops, and the names afterwards."""

    params: dict[str, Value]
    ops: list[Op]
    after: dict[str, Any]


class Walker:
    """Walks one kernel. ``roots`` collects its grid loops; ``loop_statements`` where they stand in the body."""

    def __init__(self, t: Tracer, kernel_frame: Frame) -> None:
        self.t = t
        self.kernel_frame = kernel_frame
        self.roots: list[Root] = []
        self.loop_statements: list[int] = []
        self._versions: dict[str, int] = {}

    # --- functions -------------------------------------------------------------------------------------------------------

    def run_kernel(self) -> Any:
        """Walk the kernel's body; gives what it returns."""
        function = self.kernel_frame.source.node
        assert isinstance(function, ast.FunctionDef)
        e = Expressions(self, self.kernel_frame)
        try:
            for position, statement in enumerate(function.body):
                if self._is_grid_loop(e, statement):
                    if self.loop_statements and self.loop_statements[-1] != position - 1:
                        e.node = function.body[self.loop_statements[-1] + 1]
                        raise exc.TopLevelStatementBetweenLoops()
                    self.loop_statements.append(position)
                self.execute(e, statement)
        except _Return as result:
            return result.value
        except exc.Base as error:
            raise error.at(e.location()) from None
        return None

    def run_function(self, frame: Frame) -> Any:
        """Walk a plain function called from device code."""
        e = Expressions(self, frame)
        location = self.t.builder.location
        try:
            if isinstance(frame.source.node, ast.Lambda):
                return e.eval(frame.source.node.body)
            self.execute_all(e, frame.source.node.body)
        except _Return as result:
            return result.value
        except exc.Base as error:
            raise error.at(e.location()) from None
        finally:
            self.t.builder.location = location
        return None

    def execute_all(self, e: Expressions, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self.execute(e, statement)

    def execute(self, e: Expressions, statement: ast.stmt) -> None:
        method = getattr(self, f"do_{type(statement).__name__}", None)
        e.at(statement)
        if method is None:
            name = type(statement).__name__.lower()
            if e.t.on_device:
                raise exc.NotAllowedOnDevice(what=f"A {name} statement")
            raise exc.StatementNotSupported(statement=f"A {name} statement", where="host", remedy="")
        method(e, statement)

    # --- assignments -----------------------------------------------------------------------------------------------------

    def do_Assign(self, e: Expressions, node: ast.Assign) -> None:
        if len(node.targets) > 1:
            if self.t.on_device:
                raise exc.AssignmentMultipleTargets()
            value = e.eval(node.value)
            for target in node.targets:
                self.bind(e, target, value)
            return
        value = e.eval(node.value)
        e.at(node)
        self.bind(e, node.targets[0], value)

    def do_AnnAssign(self, e: Expressions, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.bind(e, node.target, e.eval(node.value))

    def do_AugAssign(self, e: Expressions, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            current = e.frame.lookup(self.t, node.target.id)
            value = e.eval(node.value)
            e.at(node)
            if isinstance(node.op, ast.Add) and isinstance(current, DeviceValue) and _is_product(node.value):
                self.t.warn(exc.TiledKMatmulAccumulationWarning())
            result = e.binary(type(node.op), current, value)
            if self.t.on_device and isinstance(current, DeviceValue) and isinstance(result, DeviceValue):
                # `x += y` keeps the dtype of x, as in eager
                if result.dims != current.dims and current.dims:
                    raise exc.ShapeMismatch(
                        lhs=repr(current), rhs=repr(result), detail=": an in-place operation cannot change the shape"
                    )
                result = self.t.cast(result, current.dtype)
            self.bind(e, node.target, result)
            return
        if isinstance(node.target, ast.Subscript):
            target, index = e.eval(node.target.value), e.eval(node.target.slice)
            value = e.eval(node.value)
            e.at(node)
            if isinstance(target, HostTensorValue):
                if self.t.on_device:
                    e.name_tensor(target)
                    target[index] = e.binary(type(node.op), target[index], value)
                return
            self._assign_item(e, target, index, e.binary(type(node.op), target[index], value), node.target)
            return
        raise exc.InvalidAssignment(target=f"`{ast.unparse(node.target)}`")

    def bind(self, e: Expressions, target: ast.expr, value: Any) -> None:
        """Assign ``value`` to a name, a subscript, or a tuple of them."""
        if isinstance(target, ast.Name):
            self._bind_name(e, target.id, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(e, target, value)
        elif isinstance(target, ast.Subscript):
            container, index = e.eval(target.value), e.eval(target.slice)
            e.at(target)
            self._assign_item(e, container, index, value, target)
        else:
            e.at(target)
            raise exc.InvalidAssignment(target=f"`{ast.unparse(target)}`")

    def _bind_name(self, e: Expressions, name: str, value: Any) -> None:
        frame = e.frame
        if self.t.on_device:
            if name in frame.host_names:
                raise exc.CannotModifyHostVariableOnDevice(name=name)
            if isinstance(value, DeviceValue) and not value.value.name:
                # the value is still under construction: nobody else holds it yet
                object.__setattr__(value.value, "name", name)
        elif frame.is_kernel:
            if isinstance(value, HostTensorValue) and not value.source:
                value.source = name
            elif isinstance(value, Expr) and not (value.op == "host" and value.args[0] == name):
                if value.op != "block" and not _only_blocks(value):
                    if name in frame.names and isinstance(frame.names[name], Expr):
                        raise exc.StatementNotSupported(
                            statement=f"Assigning a second run-time number to {name!r}",
                            where="host",
                            remedy="; use another name",
                        )
                    value = host_number(name, value.hint)
        frame.names[name] = value

    def _unpack(self, e: Expressions, target: ast.Tuple | ast.List, value: Any) -> None:
        if isinstance(value, Tile):
            raise exc.FailedToUnpackTile(count=len(target.elts))
        if isinstance(value, (DeviceValue, HostTensorValue, Expr)) or not hasattr(value, "__iter__"):
            raise exc.FailedToUnpackTupleAssign(value=describe(value), count=len(target.elts))
        items = list(value)
        starred = [i for i, element in enumerate(target.elts) if isinstance(element, ast.Starred)]
        if starred:
            at, extra = starred[0], len(items) - len(target.elts) + 1
            items = [*items[:at], list(items[at : at + extra]), *items[at + extra :]]
        if len(items) != len(target.elts):
            raise exc.FailedToUnpackTupleAssign(value=f"{len(items)} values", count=len(target.elts))
        for element, item in zip(target.elts, items, strict=True):
            self.bind(e, element.value if isinstance(element, ast.Starred) else element, item)

    def _assign_item(self, e: Expressions, container: Any, index: Any, value: Any, node: ast.Subscript) -> None:
        if isinstance(container, HostTensorValue):
            if self.t.on_device:
                e.name_tensor(container)
            container[index] = value
        elif isinstance(container, DeviceValue):
            raise exc.DeviceTensorSubscriptAssignmentNotAllowed(name=ast.unparse(node.value))
        elif isinstance(container, (list, dict)) and not self.t.on_device:
            container[index] = value
        else:
            raise exc.NonTensorSubscriptAssign(got=describe(container))

    # --- simple statements -----------------------------------------------------------------------------------------------

    def do_Expr(self, e: Expressions, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return  # a docstring
        if isinstance(node.value, (ast.Yield, ast.YieldFrom, ast.Await)):
            raise exc.StatementNotSupported(statement=f"`{ast.unparse(node.value)}`", where=e.where, remedy="")
        e.eval(node.value)

    def do_Pass(self, e: Expressions, node: ast.Pass) -> None:
        pass

    def do_Return(self, e: Expressions, node: ast.Return) -> None:
        if self.t.on_device and e.frame.is_kernel:
            raise exc.NotAllowedOnDevice(what="A return statement")
        raise _Return(None if node.value is None else e.eval(node.value))

    def do_Assert(self, e: Expressions, node: ast.Assert) -> None:
        if self.t.on_device:
            raise exc.NotAllowedOnDevice(what="An assert statement")
        test = e.eval(node.test)
        if isinstance(test, (Expr, HostTensorValue)):
            return  # depends on run-time values: the generated host code checks it on every call
        if not test:
            e.at(node)
            message = "" if node.msg is None else str(e.eval(node.msg))
            raise AssertionError(message or f"{ast.unparse(node)} ({e.frame.source.location(node).short()})")

    def do_Import(self, e: Expressions, node: ast.Import) -> None:
        raise exc.StatementNotSupported(
            statement="An import statement", where=e.where, remedy="; import at the top of the file"
        )

    do_ImportFrom = do_Import

    # --- branches --------------------------------------------------------------------------------------------------------

    def do_If(self, e: Expressions, node: ast.If) -> None:
        test = e.eval(node.test)
        e.at(node.test)
        if isinstance(test, Tile):
            raise exc.IncorrectTileUsage(how="as a condition")
        if not self.t.on_device or not isinstance(test, (DeviceValue, Expr)):
            self.execute_all(e, node.body if e.truth_on_host(test) else node.orelse)
            return
        condition = self.t.as_device(truth(self.t, test))
        if any(not d.is_one for d in condition.dims):
            raise exc.ConditionNotScalar(statement=f"if {ast.unparse(node.test)}", shape=repr(condition))
        self._device_if(e, node, self.t.reshape(condition, ()))

    def _device_if(self, e: Expressions, node: ast.If, condition: DeviceValue) -> None:
        before = dict(e.frame.names)
        branches: list[tuple[list[Op], dict[str, Any]]] = []
        for body in (node.body, node.orelse):
            e.frame.names = dict(before)
            with self.t.builder.region() as ops:
                self.execute_all(e, body)
            branches.append((ops, e.frame.names))
        e.at(node)
        (then_ops, then_names), (else_ops, else_names) = branches
        merged = [n for n in {**then_names, **else_names} if then_names.get(n, self) is not else_names.get(n, self)]
        names, results = dict(before), []
        for name in merged:
            pair = (then_names.get(name), else_names.get(name))
            if name not in then_names or name not in else_names or any(isinstance(v, Missing) for v in pair):
                names[name] = _defined_in_one_branch(name)
                continue
            if all(isinstance(v, (int, float, str)) or v is None for v in pair) and pair[0] == pair[1]:
                names[name] = pair[0]
                continue
            results.append((name, *self._join(name, *pair, then_ops, else_ops)))
        values = [self.t.builder.value(then.dtype, then.dims, name) for name, then, _ in results]
        regions = (
            Region((), tuple(then_ops), tuple(then for _, then, _ in results)),
            Region((), tuple(else_ops), tuple(other for _, _, other in results)),
        )
        self.t.builder.append(Op("if", (condition.value,), tuple(values), None, regions, self.t.builder.location))
        for (name, _, _), value in zip(results, values, strict=True):
            names[name] = self.t.wrap(value)
        e.frame.names = names

    def _join(self, name: str, then: Any, other: Any, then_ops: list[Op], else_ops: list[Op]) -> tuple[Value, Value]:
        """The two values of a name after an if, made the same type where a number meets a device value."""
        for value in (then, other):
            if not isinstance(value, (DeviceValue, int, float, Expr)):
                raise exc.CantCombineTypesInControlFlow(
                    name=name, before=describe(then), after=describe(other), construct="if"
                )
        model = then if isinstance(then, DeviceValue) else other if isinstance(other, DeviceValue) else None
        joined = []
        for value, ops in ((then, then_ops), (other, else_ops)):
            if not isinstance(value, DeviceValue):
                value = self._emit_into(ops, value, model)
            joined.append(value)
        if (joined[0].dtype, joined[0].dims) != (joined[1].dtype, joined[1].dims):
            raise exc.ControlFlowTensorMismatch(
                name=name, before=repr(joined[0]), after=repr(joined[1]), construct="if"
            )
        return joined[0].value, joined[1].value

    def _emit_into(self, ops: list[Op], value: Any, model: DeviceValue | None) -> DeviceValue:
        with self.t.builder.region() as extra:
            result = self.t.number(value)
            if model is not None:
                result = self.t.broadcast(self.t.cast(result, model.dtype), model.dims)
        ops.extend(extra)
        return result

    # --- loops -----------------------------------------------------------------------------------------------------------

    def _is_grid_loop(self, e: Expressions, statement: ast.stmt) -> bool:
        if not isinstance(statement, ast.For) or not isinstance(statement.iter, ast.Call):
            return False
        try:
            function = e.eval(statement.iter.func)
        except exc.Base:
            return False
        return function is hl.tile or function is hl.grid

    def do_For(self, e: Expressions, node: ast.For) -> None:
        function = e.eval(node.iter.func) if isinstance(node.iter, ast.Call) else None
        name = _LOOPS.get(function) if isinstance(function, (type, types.FunctionType)) else None
        if name is None or (name == "range" and not self.t.on_device):
            self._unrolled(e, node, e.eval(node.iter))
            return
        if node.orelse:
            raise exc.DeviceLoopElseBlock()
        spec = self._loop_spec(e, name, node)
        if name == "hl.static_range":
            self._unrolled(
                e, node, range(*(self._constant(v) for v in (spec.begins[0], spec.ends[0], spec.sizes[0] or 1)))
            )
        elif self.t.on_device:
            self._device_loop(e, node, spec)
        else:
            self._root(e, node, spec)

    def _constant(self, value: Any) -> int:
        if not isinstance(value, int):
            raise exc.TypeInferenceError(f"hl.static_range needs constant bounds, got {describe(value)}.")
        return value

    def _unrolled(self, e: Expressions, node: ast.For, iterable: Any) -> None:
        for item in e.iterate(iterable, node.iter):
            self.bind(e, node.target, item)
            self.execute_all(e, node.body)
        self.execute_all(e, node.orelse)

    def _loop_spec(self, e: Expressions, name: str, node: ast.For) -> LoopSpec:
        call = node.iter
        assert isinstance(call, ast.Call)
        args = [e.eval(a) for a in call.args]
        kwargs = {k.arg: e.eval(k.value) for k in call.keywords}
        e.at(call)
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

    def _axes(self, spec: LoopSpec, target: ast.expr, operands: list[Operand]) -> list[tuple[LoopAxis, Block]]:
        names = [t.id if isinstance(t, ast.Name) else "" for t in getattr(target, "elts", [target])]
        if len(names) != len(spec.ends):
            names = [f"{names[0]}_{i}" for i in range(len(spec.ends))]
        return [self._axis(spec, i, names[i] or f"axis_{i}", operands) for i in range(len(spec.ends))]

    def _axis(self, spec: LoopSpec, i: int, name: str, operands: list[Operand]) -> tuple[LoopAxis, Block]:
        begin, end, size = spec.begins[i], spec.ends[i], spec.sizes[i]
        for bound in (begin, end):
            if isinstance(bound, Tile):
                raise exc.TileOfTile()
            if isinstance(bound, bool) or not isinstance(bound, (int, Expr, DeviceValue)):
                raise exc.TypeInferenceError(f"A bound of {spec.name} must be an integer, got {describe(bound)}.")
            if isinstance(bound, DeviceValue) and bound.dims:
                raise exc.TypeInferenceError(f"A bound of {spec.name} must be a scalar, got {bound!r}.")
        if isinstance(begin, int) and isinstance(end, int) and begin > end:
            raise exc.InvalidTileRange(begin=begin, end=end)
        extent = None if isinstance(begin, DeviceValue) or isinstance(end, DeviceValue) else end - begin
        block = self._block(spec, size, extent, name)
        step = 1 if not spec.scalar or size is None else size
        return LoopAxis(block.id, self._bound(begin, operands), self._bound(end, operands), spec.scalar, step), block

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
            if extent is None or hint_of(extent) > hint_of(block.extent or 0):
                self.t.update_block(block.id, extent=extent)
            return self.t.blocks[block.id]
        if isinstance(size, Expr):
            size = specialize(self.t, size)
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise exc.TypeInferenceError(
                f"block_size must be a positive integer or a registered block size, got {describe(size)}."
            )
        if size & (size - 1):
            raise exc.BackendUnsupported(
                what=f"block_size={size}", backend="Triton", remedy=": it must be a power of two"
            )
        return self.t.new_block("tile", extent, size=size, name=name)

    def _loop_variable(self, axes: list[tuple[LoopAxis, Block]], spec: LoopSpec) -> Any:
        variables = []
        for axis, block in axes:
            tile = Tile(self.t, block)
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
        if not any(node is statement for statement in self.kernel_frame.source.node.body):  # type: ignore[union-attr]
            raise exc.NestedGridLoop(name=spec.name, parent="another statement")
        frame = e.frame
        outer = dict(frame.names)
        frame.host_names = frozenset(outer)
        operands: list[Operand] = []
        axes = self._axes(spec, node.target, operands)
        with self.t.builder.region() as ops:
            self._bind_loop_target(e, node.target, self._loop_variable(axes, spec), spec)
            self.execute_all(e, node.body)
        self.t.active_blocks.clear()
        self.t.builder.location = None
        location = frame.source.location(node)
        self.roots.append(Root(axes=tuple(a for a, _ in axes), body=Region((), tuple(ops), ()), location=location))
        left = {n: _device_value_on_host(n) for n in frame.names if n not in outer}
        frame.host_names = frozenset()
        frame.names = {**outer, **left}

    def _device_loop(self, e: Expressions, node: ast.For, spec: LoopSpec) -> None:
        before = dict(e.frame.names)
        operands: list[Operand] = []
        snapshot = self.t.snapshot()
        widened: dict[str, torch.dtype] = {}
        while True:
            axes = self._axes(spec, node.target, operands)
            trial = self._trace_body(e, node, spec, axes, before, widened)
            grown = {n: v.dtype for n, v in self._grown(trial, before).items() if n not in widened}
            if not grown:
                break
            # a number that changes in the loop has to be a run-time scalar: trace again with it as one
            widened.update(grown)
            self.t.restore(snapshot)
            operands.clear()
            e.frame.names = dict(before)
        e.at(node)
        self._finish_loop(e, node, axes, trial, before, operands)

    def _trace_body(
        self,
        e: Expressions,
        node: ast.For,
        spec: LoopSpec,
        axes: list[tuple[LoopAxis, Block]],
        before: dict[str, Any],
        widened: dict[str, torch.dtype],
    ) -> _Trial:
        params: dict[str, Value] = {}
        for name in assigned_names(node.body):
            value = before.get(name)
            if isinstance(value, DeviceValue):
                params[name] = self.t.builder.value(value.dtype, value.dims, name)
            elif name in widened:
                params[name] = self.t.builder.value(widened[name], (), name)
        e.frame.names = {**before, **{n: self.t.wrap(v) for n, v in params.items()}}
        with self.t.builder.region() as ops:
            self._bind_loop_target(e, node.target, self._loop_variable(axes, spec), spec)
            self.execute_all(e, node.body)
        for _, block in axes:
            self.t.active_blocks.pop(block.id, None)
        return _Trial(params, ops, e.frame.names)

    def _grown(self, trial: _Trial, before: dict[str, Any]) -> dict[str, DeviceValue]:
        """Numbers from before the loop that its body changed, with their values at its end."""
        found = {}
        for name, value in before.items():
            after = trial.after.get(name)
            if name in trial.params or after is value or not isinstance(value, (int, float, Expr)):
                continue
            if isinstance(after, (int, float)) and type(after) is type(value) and after == value:
                continue
            kind = value.kind if isinstance(value, Expr) else type(value)
            dtype = torch.bool if kind is bool else torch.float32 if kind is float else self.t.context.index_dtype
            if isinstance(after, DeviceValue):
                if after.dims:
                    raise exc.ControlFlowTensorMismatch(
                        name=name, before=describe(value), after=repr(after), construct="loop"
                    )
                dtype = after.dtype
            elif isinstance(after, float) or (isinstance(after, Expr) and after.kind is float):
                dtype = torch.float32
            elif not isinstance(after, (int, Expr)):
                raise exc.CantCombineTypesInControlFlow(
                    name=name, before=describe(value), after=describe(after), construct="loop"
                )
            found[name] = self.t.wrap(Value(-1, dtype, (), name))
        return found

    def _finish_loop(
        self,
        e: Expressions,
        node: ast.For,
        axes: list[tuple[LoopAxis, Block]],
        trial: _Trial,
        before: dict[str, Any],
        bounds: list[Operand],
    ) -> None:
        used = {id(v) for op in trial.ops for inner in op.walk() for v in inner.values()}
        used.update(id(v) for op in trial.ops for inner in op.walk() for r in inner.regions for v in r.results)
        carried: list[tuple[str, Operand, Value, Value]] = []
        names = dict(before)
        for name, param in trial.params.items():
            after = trial.after[name]
            if isinstance(after, DeviceValue) and after.value is param and not self._is_number(before[name]):
                names[name] = before[name]
                carried.append((name, before[name].value, param, param))
                continue
            if not isinstance(after, DeviceValue):
                after = self._emit_number(trial.ops, after, param, name)
            if (after.dtype, after.dims) != (param.dtype, param.dims):
                if id(param) not in used:  # a temporary that happens to reuse the name
                    names[name] = _loop_local(name)
                    continue
                raise exc.ControlFlowTensorMismatch(
                    name=name, before=repr(self.t.wrap(param)), after=repr(after), construct="loop"
                )
            initial = before[name]
            if not isinstance(initial, DeviceValue):
                initial = self.t.cast(self.t.number(initial), param.dtype)
            carried.append((name, initial.value, param, after.value))
        results = [self.t.builder.value(param.dtype, param.dims, name) for name, _, param, _ in carried]
        for (name, _, _, _), result in zip(carried, results, strict=True):
            names[name] = self.t.wrap(result)
        shifted = tuple(_shift_bounds(axis, len(carried)) for axis, _ in axes)
        region = Region(tuple(p for _, _, p, _ in carried), tuple(trial.ops), tuple(r for _, _, _, r in carried))
        operands = (*(i for _, i, _, _ in carried), *bounds)
        attrs = ForAttrs(shifted, len(carried))
        self.t.builder.append(Op("for", operands, tuple(results), attrs, (region,), self.t.builder.location))
        for name in trial.after:
            if name not in before:
                names[name] = _loop_local(name)
        e.frame.names = names

    def _is_number(self, value: Any) -> bool:
        return not isinstance(value, DeviceValue)

    def _emit_number(self, ops: list[Op], value: Any, param: Value, name: str) -> DeviceValue:
        if not isinstance(value, (int, float, Expr)):
            raise exc.CantCombineTypesInControlFlow(
                name=name, before=repr(self.t.wrap(param)), after=describe(value), construct="loop"
            )
        return self._emit_into(ops, value, self.t.wrap(param))


def _shift_bounds(axis: LoopAxis, by: int) -> LoopAxis:
    """Bounds are operands after the carried values."""
    bounds = [OperandRef(b.at + by) if isinstance(b, OperandRef) else b for b in (axis.begin, axis.end)]
    return LoopAxis(axis.block, bounds[0], bounds[1], axis.scalar, axis.step)


def _only_blocks(value: Expr) -> bool:
    return all(leaf.op == "block" for leaf in value.leaves())


def _is_product(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.MatMult)
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.matmul", "torch.mm", "torch.bmm")


def _device_value_on_host(name: str) -> Missing:
    return Missing(lambda: exc.CannotReadDeviceVariableOnHost(name=name))


def _defined_in_one_branch(name: str) -> Missing:
    return Missing(
        lambda: exc.UndefinedVariable(
            name=name, detail=" on every way through the if statement; assign it before, or in both branches"
        )
    )


def _loop_local(name: str) -> Missing:
    return Missing(
        lambda: exc.UndefinedVariable(
            name=name, detail=" after the loop that assigns it, which may run zero times; assign it before the loop"
        )
    )


def kernel_source_frame(source: FunctionSource, module_globals: dict[str, Any], names: dict[str, Any]) -> Frame:
    return Frame(source, module_globals, {}, names, is_kernel=True)


__all__ = ["Walker", "is_torch_function", "kernel_source_frame"]
