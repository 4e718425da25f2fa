"""Comprehensions and generator expressions."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from .... import exc
from ..frames import assigned_names
from ..purity import operator_of
from ..runtime_values import Opaque, settle
from ..values import HostTensorValue, describe
from ..walk.kinds import ABSTRACT
from ..walk.scope import HARD, Scope, assign, evaluate
from .conditions import truth_on_host
from .displays import noted, plain


def evaluate_list_comprehension(s: Scope, node: ast.ListComp) -> Any:
    return _followed(s, lambda: noted(s, _comprehension(s, node.generators, lambda: evaluate(s, node.elt))))


def evaluate_generator(s: Scope, node: ast.GeneratorExp) -> Any:
    items = _followed(s, lambda: tuple(_comprehension(s, node.generators, lambda: evaluate(s, node.elt))))
    return items if s.t.on_device or isinstance(items, Opaque) else iter(items)


def evaluate_set_comprehension(s: Scope, node: ast.SetComp) -> Any:
    return _followed(s, lambda: set(plain(s, _comprehension(s, node.generators, lambda: evaluate(s, node.elt)))))


def evaluate_dict_comprehension(s: Scope, node: ast.DictComp) -> Any:
    def pair() -> tuple[Any, Any]:
        return plain(s, evaluate(s, node.key)), evaluate(s, node.value)

    return _followed(s, lambda: dict(_comprehension(s, node.generators, pair)))


def _followed(s: Scope, make: Callable[[], Any]) -> Any:
    """Evaluate a comprehension; the result is opaque if it depends on run-time values."""
    outer, relied = dict(s.frame.names), len(s.t.tensors.relied)
    try:
        return make()
    except HARD:
        raise
    except exc.Base as error:
        if s.t.on_device:
            raise
        s.frame.names = outer
        del s.t.tensors.relied[relied:]
        return Opaque(error.at(s.location()))


def _comprehension(s: Scope, generators: list[ast.comprehension], element: Callable[[], Any]) -> list[Any]:
    names = frozenset(assigned_names([generator.target for generator in generators]))
    outer = dict(s.frame.names)
    result: list[Any] = []
    _generate(s, generators, element, result)
    for name in names:  # names that `:=` binds stay
        s.frame.names.pop(name, None)
        if name in outer:
            s.frame.names[name] = outer[name]
    return result


def _generate(s: Scope, generators: list[ast.comprehension], element: Callable[[], Any], result: list[Any]) -> None:
    if not generators:
        result.append(element())
        return
    generator = generators[0]
    for item in iterate(s, evaluate(s, generator.iter), generator.iter):
        # a launch cannot pass a tensor by the name of a comprehension's variable
        s.frame.is_kernel, is_kernel = False, s.frame.is_kernel
        assign(s, generator.target, item)
        s.frame.is_kernel = is_kernel
        if all(truth_on_host(s, evaluate(s, test)) for test in generator.ifs):
            _generate(s, generators[1:], element, result)


def iterate(s: Scope, value: Any, node: ast.AST) -> list[Any]:
    """Return the items of a value, which must be known at compile time."""
    s.at(node)
    if isinstance(value, ABSTRACT):
        if isinstance(value, HostTensorValue) and not s.t.on_device:
            name = value.source or "x"
            raise exc.InvalidAPIUsage(
                f"A loop over the rows of a tensor cannot be followed ({describe(value)}); write for tile in hl.tile({name}.size(0)), "
                f"or for i in range({name}.size(0)) in host code."
            )
        raise exc.InvalidDeviceForLoop(got=describe(value))
    if operator_of(value, "__iter__") is not None or operator_of(value, "__getitem__") is not None:
        raise exc.KnownAtRunTime(what=f"`{ast.unparse(node)}`", because="")
    try:
        return list(settle(s.t, value) if isinstance(value, range) else value)
    except TypeError as error:
        raise exc.InvalidDeviceForLoop(got=describe(value)) from error
