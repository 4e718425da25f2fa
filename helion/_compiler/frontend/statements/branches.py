"""``if`` statements: resolved when compiling where the condition is known, recorded where it is not."""

from __future__ import annotations

import ast
from typing import Any

import torch

from .... import exc
from ...._shapes import Expr
from ...ir.grammar import Op, Region, Value
from ..expressions.operators import Expressions
from ..torch_pointwise import truth
from ..values import DeviceValue, Missing, Tile, describe
from ..walk.scope import WalkerBase, defined_in_one_branch


class Branches(WalkerBase):
    """Walks ``if`` statements."""

    def do_If(self, e: Expressions, node: ast.If) -> None:
        test = e.eval(node.test)
        e.at(node.test)
        if isinstance(test, Tile):
            raise exc.IncorrectTileUsage(how="as a condition")
        if not self.t.on_device and e.is_open(test):
            self.open_if(e, node, test)
            return
        if not self.t.on_device or not isinstance(test, (DeviceValue, Expr)):
            self.execute_all(e, node.body if e.truth_on_host(test) else node.orelse)
            return
        condition = self.t.as_device(truth(self.t, test))
        if any(not d.is_one for d in condition.dims):
            raise exc.ConditionNotScalar(statement=f"if {ast.unparse(node.test)}", shape=repr(condition))
        self._device_if(e, node, self.t.reshape(condition, ()))

    def open_if(self, e: Expressions, node: ast.If, test: Any) -> None:
        """A condition of host code that is known at run time only."""
        raise NotImplementedError

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
        unchanged = {n: v for n, v in then_names.items() if else_names.get(n, self) is v}
        names, results = {**before, **unchanged}, []
        for name in merged:
            pair = (then_names.get(name), else_names.get(name))
            if name not in then_names or name not in else_names or any(isinstance(v, Missing) for v in pair):
                names[name] = defined_in_one_branch(name)
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
        number = other if model is then else then
        joined = []
        for value, ops in ((then, then_ops), (other, else_ops)):
            if not isinstance(value, DeviceValue):
                self._check_number(name, value, model, "if")
                mixed = model is None and _is_float(other if value is then else then) and type(value) is int
                value = self._emit_into(ops, float(value) if mixed else value, model, widen=_is_float(number))
            elif _is_float(number) and not value.dtype.is_floating_point:
                with self.t.builder.region() as extra:
                    value = self.t.cast(value, self.t.default_dtype())
                ops.extend(extra)
            joined.append(value)
        if (joined[0].dtype, joined[0].dims) != (joined[1].dtype, joined[1].dims):
            raise exc.ControlFlowTensorMismatch(
                name=name, before=repr(joined[0]), after=repr(joined[1]), construct="if"
            )
        return joined[0].value, joined[1].value

    def _check_number(self, name: str, value: Any, model: DeviceValue | None, construct: str) -> None:
        """A number becomes a device value only where its kind fits: 1 is no bool, and in a loop 0.5 is no int64."""
        if model is None:
            return
        kind = value.kind if isinstance(value, Expr) else type(value)
        ranks = {bool: 0, int: 1, float: 2}
        rank = 0 if model.dtype == torch.bool else 2 if model.dtype.is_floating_point else 1
        wider = ranks[kind] > rank and construct == "loop"
        if wider or (kind is bool) != (rank == 0):
            raise exc.ControlFlowTensorMismatch(
                name=name, before=repr(model), after=describe(value), construct=construct
            )

    def _emit_into(self, ops: list[Op], value: Any, model: DeviceValue | None, widen: bool = False) -> DeviceValue:
        """A number as a device value like ``model``; ``widen``: in the default float dtype where that is an integer."""
        with self.t.builder.region() as extra:
            result = self.t.number(value)
            if model is not None:
                keep = model.dtype.is_floating_point or not widen
                dtype = model.dtype if keep else self.t.default_dtype()
                result = self.t.broadcast(self.t.cast(result, dtype), model.dims)
        ops.extend(extra)
        return result


def _is_float(value: Any) -> bool:
    kind = value.kind if isinstance(value, Expr) else type(value)
    return kind is float
