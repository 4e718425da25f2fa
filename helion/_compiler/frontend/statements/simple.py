"""Expressions as statements, assertions, and statements that leave the code around them."""

from __future__ import annotations

import ast

from .... import exc
from ...._shapes import Expr
from ..expressions.conditions import truth_on_host
from ..purity import is_pure
from ..runtime_values import Opaque, hinted, opaques
from ..values import HostTensorValue
from ..walk.scope import Break, Continue, Raised, Return, Scope, UserError, evaluate, try_evaluate


def walk_expression(s: Scope, node: ast.Expr) -> None:
    if isinstance(node.value, ast.Constant):
        return  # a docstring
    if isinstance(node.value, (ast.Yield, ast.YieldFrom, ast.Await)):
        raise exc.StatementNotSupported(statement=f"`{ast.unparse(node.value)}`", where=s.where, remedy="")
    evaluate(s, node.value)


def walk_pass(s: Scope, node: ast.Pass) -> None:
    pass


def walk_return(s: Scope, node: ast.Return) -> None:
    if s.t.on_device and s.frame.is_kernel:
        raise exc.NotAllowedOnDevice(what="A return statement")
    if s.t.builder.depth != s.frame.depth:
        raise exc.EarlyReturnNotAllowedOnDevice(function=s.frame.source.name)
    raise Return(None if node.value is None else evaluate(s, node.value))


def walk_assert(s: Scope, node: ast.Assert) -> None:
    if s.t.on_device:
        raise exc.StatementNotSupported(
            statement="An assert statement", where="device", remedy="; move it to the host code around the loop"
        )
    test = evaluate(s, node.test)
    if isinstance(test, Expr):
        _learn(s, test)
    if isinstance(test, (Expr, HostTensorValue, Opaque)):
        return  # depends on run-time values: the generated host code checks it on every call
    if not truth_on_host(s, test):
        s.at(node)
        _fail_assertion(s, node)


def _learn(s: Scope, test: Expr) -> None:
    """Specialize on a size after ``assert x.size(1) == 64``: it becomes a constant and part of the key."""
    if test.op != "eq" or not test.hint:
        return
    for number, other in (test.args, reversed(test.args)):
        if (
            isinstance(other, int)
            and isinstance(number, Expr)
            and number.op == "host"
            and number.args[0] in s.t.numbers.symbols
        ):
            s.t.numbers.specialize(number)


def walk_raise(s: Scope, node: ast.Raise) -> None:
    """Raise the user's error: now if nothing has to run before it, else in the generated host code."""
    if s.t.on_device:
        raise exc.NotAllowedOnDevice(what="A raise statement")
    value = None if node.exc is None else evaluate(s, node.exc)
    if isinstance(value, type) and issubclass(value, BaseException) and is_pure(value):
        value = value()
    if isinstance(value, Exception) and not s.walk.uncertain and not s.t.world.effects and not s.walk.roots:
        raise UserError(value)
    raise Raised()


def _fail_assertion(s: Scope, node: ast.Assert) -> None:
    """Raise for an assertion that certainly fails."""
    if s.walk.uncertain or s.t.world.effects or s.walk.roots:
        raise Raised()
    message = None if node.msg is None else try_evaluate(s, node.msg)
    text = "" if message is None or next(opaques(message), None) is not None else str(hinted(message))
    raise AssertionError(text or f"{ast.unparse(node)} ({s.frame.source.location(node).short()})")


def walk_break(s: Scope, node: ast.Break) -> None:
    raise exc.JumpNotAllowedOnDevice(what="break") if s.t.on_device else Break()


def walk_continue(s: Scope, node: ast.Continue) -> None:
    raise exc.JumpNotAllowedOnDevice(what="continue") if s.t.on_device else Continue()
