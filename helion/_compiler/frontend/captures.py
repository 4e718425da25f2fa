"""Results of host code that launches need: numbers read from tensors, and tensors that are bound to no variable.

They are captured where they are computed, so that the user's code may rebind the variables::

    m = n[0].item()              m = (host_item_0 := n[0].item())
    end = m                      end = m
    m = 3                        m = 3
    for tile in hl.tile(end):    _launcher(.., host_item_0, ..)
"""

from __future__ import annotations

import ast
from typing import Any

from ..._shapes import Expr
from ..source import Place
from .state import TraceState
from .values import HostTensorValue

#: Placeholder in ``drawn`` for a number whose host expression is not known yet.
UNNAMED = ".item()"


def capture(t: TraceState, result: Any, place: Place, node: ast.expr) -> Any:
    """Return ``result`` of the expression ``node`` at ``place``, with names for the unnamed numbers and tensors in it. An
    expression that the trace evaluates several times has a name for each.
    """
    if not _is_open(t, result):
        return result
    plain = isinstance(result, Expr) and result.op == "host"
    name = result.args[0] if plain else t.numbers.fresh_name("host_value", t.numbers.captured)
    t.numbers.captured += 1
    t.numbers.written[name] = node
    t.numbers.captures[place] = (*t.numbers.captures.get(place, ()), name)
    return _named(t, result, name)


def _is_open(t: TraceState, value: Any) -> bool:
    if isinstance(value, Expr):
        return any(t.numbers.drawn.get(leaf.args[0]) == UNNAMED for leaf in value.leaves())
    if isinstance(value, HostTensorValue):
        return not value.source and not value.made
    return isinstance(value, (tuple, list)) and any(_is_open(t, item) for item in value)


def _named(t: TraceState, value: Any, source: str) -> Any:
    if not _is_open(t, value):
        return value
    if isinstance(value, HostTensorValue):
        value.made = source
        seen = t.context.observed.get(source)
        if seen is not None:
            value.shape, value.strides, value.dtype = seen.shape, seen.strides, seen.dtype
            value.checked, value.aligned = True, False
        return value
    if isinstance(value, Expr):
        name = source if source.isidentifier() else t.numbers.fresh_name("host_item", len(t.numbers.drawn))
        t.numbers.drawn[name] = "" if name == source else source
        return Expr("host", (name,), value.hint)
    items = [_named(t, item, f"{source}[{at}]") for at, item in enumerate(value)]
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def keep_tensor(t: TraceState, tensor: HostTensorValue) -> str:
    """Name a tensor that statements have assigned to a variable, and return the name."""
    name = t.numbers.fresh_name("host_value", t.numbers.captured)
    t.numbers.captured += 1
    _named(t, tensor, name)
    return name
