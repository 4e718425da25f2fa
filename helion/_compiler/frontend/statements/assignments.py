"""Statements of a kernel's source: one walk evaluates host code and records device code."""

from __future__ import annotations

import ast
from typing import Any

import torch

from .... import exc
from .... import language as hl
from ...._shapes import Expr
from ...ir.grammar import Keep, Launch
from ...source import FunctionSource, place_of
from ..expressions.operators import Expressions
from ..frames import Frame
from ..runtime_values import Opaque
from ..values import DeviceValue, HostTensorValue, Tile, describe
from ..walk.scope import Raised, Return, UserError
from ..walk.unfollowed import HostStatements


class Walker(HostStatements):
    """The whole walk: functions, assignments and simple statements, with branches and loops from its bases."""

    # --- functions -------------------------------------------------------------------------------------------------------

    def run_kernel(self) -> Any:
        """Walk the kernel's body; gives what it returns."""
        function = self.kernel_frame.source.node
        assert isinstance(function, ast.FunctionDef)
        e = Expressions(self, self.kernel_frame)
        self.t.call = lambda function, args: e.call(function, args, {}, e.node or function_node)
        function_node = function
        try:
            self._walk_host(e, function.body)
            if self.open_barrier is not None:
                e.node = self.open_barrier
                raise exc.BarrierOnlyAllowedAtTopLevel()
        except Return as result:
            self.skipped = self.skipped or any(map(self._has_loops, function.body))
            return result.value
        except Raised:
            self.skipped = True
        except UserError as user:
            raise user.error from None
        except exc.Base as error:
            raise error.at(e.location()) from None
        finally:
            self.settle_storages()
        return None

    def _has_loops(self, statement: ast.stmt) -> bool:
        e = Expressions(self, self.kernel_frame)
        return any(self._is_grid_loop(e, part) for part in ast.walk(statement) if isinstance(part, ast.stmt))

    def _walk_host(self, e: Expressions, statements: list[ast.stmt]) -> None:
        """Walk host statements with the grid loops among them, and keep what the generated function will run."""
        for position, statement in enumerate(statements):
            if self._is_grid_loop(e, statement):
                self._place_launch(e, statement)
            elif self._has_grid_loop(e, statement):
                if isinstance(statement, ast.If):
                    self._walk_taken(e, statement)
                elif isinstance(statement, (ast.With, ast.Try)):
                    self.walk_around(e, statement)
                else:
                    assert isinstance(statement, (ast.For, ast.While))
                    self._walk_host_loop(e, statement)
                continue
            elif self._is_barrier(e, statement):
                self.open_barrier = statement
                self.t.phase += 1
                continue
            else:
                self.body.append(statement)
            if self._is_grid_loop(e, statement):
                self.execute(e, statement)
            else:
                try:
                    self.execute_host(e, statement)
                except Return:
                    rest = statements[position + 1 :]
                    if not any(self._is_grid_loop(e, s) or self._has_grid_loop(e, s) for s in rest):
                        self.body += rest
                    raise
                if isinstance(statement, (ast.If, ast.Try, ast.With, ast.For, ast.While)):
                    self.keep_numbers(e, statement)

    def _walk_taken(self, e: Expressions, node: ast.If) -> None:
        """Grid loops under a condition: the branch taken stands in its place, behind an assertion of the condition."""
        e.at(node.test)
        taken = e.truth_on_host(e.eval(node.test))
        condition = node.test if taken else ast.UnaryOp(ast.Not(), node.test)
        check = ast.Assert(condition, ast.Constant("compiled for the other branch"))
        self.body.append(ast.fix_missing_locations(ast.copy_location(check, node)))
        self._walk_host(e, node.body if taken else node.orelse)

    def run_function(self, frame: Frame) -> Any:
        """Walk a plain function called from device code."""
        e = Expressions(self, frame)
        location = self.t.builder.location
        frame.depth = self.t.builder.depth
        try:
            if isinstance(frame.source.node, ast.Lambda):
                return e.eval(frame.source.node.body)
            self.execute_all(e, frame.source.node.body)
        except Return as result:
            return result.value
        except exc.Base as error:
            raise error.at(e.location()) from None
        finally:
            self.t.builder.location = location
        return None

    def _is_barrier(self, e: Expressions, statement: ast.stmt) -> bool:
        call = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(call, ast.Call) or any(isinstance(part, ast.Call) for part in ast.walk(call.func)):
            return False  # what a call in it does, it does once
        if e.try_eval(call.func) is not hl.barrier:
            return False
        e.at(statement)
        if not any(isinstance(node, Launch) for known in self.body for node in ast.walk(known)):
            raise exc.BarrierOnlyAllowedAtTopLevel()
        return True

    def _place_launch(self, e: Expressions, statement: ast.stmt) -> None:
        """One launch stands for grid loops with nothing but barriers between them; others are launched in order."""
        self.grid_loop, self.open_barrier = statement, None
        if self.launch is self.body and all(map(_is_docstring, self.body[self._launch_at() + 1 :])):
            return
        self._begin_launch(statement)

    def _launch_at(self) -> int:
        """Where the last launch stands in the body being made."""
        return max(at for at, known in enumerate(self.body) if isinstance(known, Launch))

    def _begin_launch(self, statement: ast.stmt) -> None:
        self.body.append(ast.copy_location(Launch(self.launches), statement))
        self.launch = self.body
        self.launches += 1
        self.t.first_tensor = len(self.t.tensors)
        self.t.begin_checks()
        self.t.phase = self.roots[-1].phase + 1 if self.roots else 0

    def _place_header(self, node: ast.For, reads: bool) -> None:
        if reads and any(root.launch == self.launches - 1 for root in self.roots):
            # the loops before it may write what the host reads here: that takes a launch of its own
            self._begin_launch(node)
        kept, self.header_reads = self.header_reads, []
        for part in ast.walk(node.iter):
            if isinstance(part, ast.expr):
                kept += [Keep(name, part) for name in self.t.captures.pop(place_of(part), ())]
        at = self._launch_at()
        self.body[at:at] = [ast.copy_location(keep, node) for keep in reversed(kept)]

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
            if isinstance(current, HostTensorValue) and not self.t.on_device:
                result = e.in_place(type(node.op), current, value)
            else:
                result = e.binary(type(node.op), current, value)
            if self.t.on_device and isinstance(current, DeviceValue) and isinstance(result, DeviceValue):
                if not torch.can_cast(result.dtype, current.dtype):
                    raise exc.TypeInferenceError(
                        f"`{ast.unparse(node)}` gives {result.dtype}, which cannot be stored back into {current!r} in place; convert one of them."
                    )
                # `x += y` keeps the dtype of x, as in eager
                if result.dims != current.dims and current.dims:
                    raise exc.ShapeMismatch(
                        lhs=repr(current), rhs=repr(result), detail=": an in-place operation cannot change the shape"
                    )
                result = self.t.cast(result, current.dtype)
            self.bind(e, node.target, result)
            return
        if isinstance(node.target, ast.Subscript) and self.assign_outside(e, node.target):
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
        if isinstance(node.target, ast.Attribute) and not self.t.on_device:
            current = e.attribute(e.eval(node.target.value), node.target.attr)
            self.assign_attribute(e, node.target, e.binary(type(node.op), current, e.eval(node.value)))
            return
        raise exc.InvalidAssignment(target=f"`{ast.unparse(node.target)}`")

    def bind(self, e: Expressions, target: ast.expr, value: Any) -> None:
        """Assign ``value`` to a name, a subscript, or a tuple of them."""
        if isinstance(target, ast.Name):
            self._bind_name(e, target.id, e.kept(value))
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(e, target, value)
        elif isinstance(target, ast.Attribute):
            self.assign_attribute(e, target, value)
        elif isinstance(target, ast.Subscript) and self.assign_outside(e, target):
            pass
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
            self._forget_sources(name)
            if isinstance(value, HostTensorValue):
                value.source = value.source or name
                self._adopt_late_numbers(value)
        frame.names[name] = value

    def _adopt_late_numbers(self, value: HostTensorValue) -> None:
        """Sizes and strides of an unnamed view can be read off a named view of it."""
        for what, numbers in (("size", value.shape), ("stride", value.strides)):
            for dim, number in enumerate(numbers):
                if isinstance(number, Expr) and number.op == "host" and number.args[0] in self.t.late:
                    owner, _ = self.t.late[number.args[0]]
                    if not owner.source:
                        self.t.late[number.args[0]] = (value, f"{what}({dim})")

    def _forget_sources(self, name: str) -> None:
        """Host expressions that begin with a name lose their meaning when the name is bound again."""
        if name not in self.kernel_frame.names:
            return
        for tensor in self.t.lifted.values():
            if tensor.source == name or tensor.source.startswith((f"{name}[", f"{name}.")):
                tensor.source = ""
        old = self.kernel_frame.names[name]
        if isinstance(old, HostTensorValue) and old.source == name:
            old.source = ""

    def _unpack(self, e: Expressions, target: ast.Tuple | ast.List, value: Any) -> None:
        if isinstance(value, Tile):
            raise exc.FailedToUnpackTile(count=len(target.elts))
        if isinstance(value, Opaque):
            for element in target.elts:
                self.bind(e, element.value if isinstance(element, ast.Starred) else element, value)
            return
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
        elif isinstance(container, (list, dict)) and (not self.t.on_device or e.may_change(container)):
            index = e.plain(index)
            old = container[index] if isinstance(container, list) or index in container else None
            if isinstance(old, HostTensorValue):
                old.source = ""
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
        if self.t.builder.depth != e.frame.depth:
            raise exc.NotAllowedOnDevice(
                what=f"A return statement of {e.frame.source.name!r} under a branch or a loop on device values"
            )
        raise Return(None if node.value is None else e.eval(node.value))

    def do_Assert(self, e: Expressions, node: ast.Assert) -> None:
        if self.t.on_device:
            raise exc.StatementNotSupported(
                statement="An assert statement", where="device", remedy="; move it to the host code around the loop"
            )
        test = e.eval(node.test)
        if isinstance(test, Expr):
            self._learn(test)
        if isinstance(test, (Expr, HostTensorValue, Opaque)):
            return  # depends on run-time values: the generated host code checks it on every call
        if not e.truth_on_host(test):
            e.at(node)
            self.fail_assertion(e, node)

    def _learn(self, test: Expr) -> None:
        """After ``assert x.size(1) == 64`` the size is that constant, and part of the specialization key."""
        if test.op != "eq" or not test.hint:
            return
        for number, other in (test.args, reversed(test.args)):
            if (
                isinstance(other, int)
                and isinstance(number, Expr)
                and number.op == "host"
                and number.args[0] in self.t.symbols
            ):
                self.t.specialize(number)


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_product(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.MatMult)
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.matmul", "torch.mm", "torch.bmm")


def kernel_source_frame(source: FunctionSource, module_globals: dict[str, Any], names: dict[str, Any]) -> Frame:
    return Frame(source, module_globals, {}, names, is_kernel=True)
