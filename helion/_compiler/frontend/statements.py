"""Statements of a kernel's source: one walk evaluates host code and records device code."""

from __future__ import annotations

import ast
from typing import Any

import torch

from ... import exc
from ... import language as hl
from ..._shapes import Expr
from ..source import FunctionSource
from .expressions import Expressions
from .frames import Frame
from .loops import Loops
from .values import DeviceValue, HostTensorValue, Tile, describe
from .walk import Return


class Walker(Loops):
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
            if self.barrier_statements and self.barrier_statements[-1] > self.loop_statements[-1]:
                e.node = self.body[self.barrier_statements[-1]]
                raise exc.BarrierOnlyAllowedAtTopLevel()
        except Return as result:
            return result.value
        except exc.Base as error:
            raise error.at(e.location()) from None
        return None

    def _walk_host(self, e: Expressions, statements: list[ast.stmt]) -> None:
        """Walk host statements with the grid loops among them, and keep what the generated function will run."""
        for position, statement in enumerate(statements):
            if isinstance(statement, ast.If) and self._has_grid_loop(e, statement):
                self._walk_taken(e, statement)
                continue
            self.body.append(statement)
            if self._is_grid_loop(e, statement):
                self._check_between(e)
                self.loop_statements.append(len(self.body) - 1)
            elif self._is_barrier(e, statement):
                self.barrier_statements.append(len(self.body) - 1)
                self.t.phase += 1
                continue
            try:
                self.execute(e, statement)
            except Return:
                self.body += statements[position + 1 :]
                raise

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
        if not isinstance(call, ast.Call) or e.try_eval(call.func) is not hl.barrier:
            return False
        e.at(statement)
        if not self.loop_statements:
            raise exc.BarrierOnlyAllowedAtTopLevel()
        return True

    def _check_between(self, e: Expressions) -> None:
        """Between the last grid loop and the one at the end of the body only barriers may stand."""
        if not self.loop_statements:
            return
        for at in range(self.loop_statements[-1] + 1, len(self.body) - 1):
            if at not in self.barrier_statements and not _is_docstring(self.body[at]):
                e.node = self.body[at]
                raise exc.TopLevelStatementBetweenLoops()

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
            raise exc.NotAllowedOnDevice(what="An assert statement")
        test = e.eval(node.test)
        if isinstance(test, Expr):
            self._learn(test)
        if isinstance(test, (Expr, HostTensorValue)):
            return  # depends on run-time values: the generated host code checks it on every call
        if not test:
            e.at(node)
            message = "" if node.msg is None else str(e.eval(node.msg))
            raise AssertionError(message or f"{ast.unparse(node)} ({e.frame.source.location(node).short()})")

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

    def do_Import(self, e: Expressions, node: ast.Import) -> None:
        raise exc.StatementNotSupported(
            statement="An import statement", where=e.where, remedy="; import at the top of the file"
        )

    do_ImportFrom = do_Import


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_product(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.MatMult)
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.matmul", "torch.mm", "torch.bmm")


def kernel_source_frame(source: FunctionSource, module_globals: dict[str, Any], names: dict[str, Any]) -> Frame:
    return Frame(source, module_globals, {}, names, is_kernel=True)
