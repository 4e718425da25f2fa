"""Merged values of variables over all iterations of a host loop."""

from __future__ import annotations

import ast
from typing import Any

from .... import exc
from ...._shapes import Expr, hint_of, number_key
from ...._support.records import dataclass, replace
from ..captures import UNNAMED
from ..frames import path_to
from ..values import HostTensorValue, describe
from .scope import Scope
from .shared_memory import unite

NUMBERS = (int, float, Expr)


@dataclass(frozen=True)
class Number:
    """A number that may differ in every iteration."""

    hint: Any


def merged_items(s: Scope, items: list[Any], name: str) -> Any:
    """Return one value for all items of a sequence."""
    first = items[0]
    if all(type(item) is tuple and len(item) == len(first) for item in items):
        return tuple(merged_items(s, list(column), name) for column in zip(*items, strict=True))
    for other in items[1:]:
        check_same_type(name, first, other)
    if isinstance(first, NUMBERS):
        return Number(hint_of(first))
    if isinstance(first, HostTensorValue):
        storage = s.t.tensors.new_storage()
        for tensor in items:
            unite(s.walk, storage, tensor.storage)
        aligned = all(tensor.aligned for tensor in items)
        return replace(first, storage=storage, source="", made="", aligned=aligned, member=None, part=None)
    return first


def item_of(s: Scope, items: Any, index: Expr, node: ast.expr) -> Any:
    """Return the item of a sequence whose index changes from one iteration to the next."""
    item = merged_items(s, list(items), ast.unparse(node))
    if not isinstance(item, (HostTensorValue, Number)):
        return item
    source = ""
    if s.t.on_device:
        source = f"{path_to(items, s.walk.kernel_frame)}[{index.render(lambda leaf: str(leaf.args[0]))}]"
        if source.startswith("["):
            raise exc.InvalidSequenceSubscription(got=describe(index))
    if isinstance(item, HostTensorValue):
        place = items[0].member
        return replace(item, source=source, member=None if place is None else replace(place, number=index))
    name = s.t.numbers.fresh_name("host_item", len(s.t.numbers.drawn))
    s.t.numbers.drawn[name] = source or UNNAMED
    return Expr("host", (name,), item.hint)


def differs(name: str, first: Any, last: Any) -> exc.Base:
    """Return the error for a variable that one compiled kernel cannot take in every iteration."""
    error = exc.CantCombineTypesInControlFlow(
        name=name, before=describe(first), after=describe(last), construct="host loop"
    )
    if isinstance(first, HostTensorValue) and isinstance(last, HostTensorValue):
        error.message += " For tensors of several shapes, call the kernel once for each."
    return error


def open_extents(first: HostTensorValue, last: HostTensorValue) -> set[tuple[str, int]]:
    """Return the sizes and strides that may differ because they are known at run time only."""
    pairs = (("size", first.shape, last.shape), ("stride", first.strides, last.strides))
    return {
        (what, dim)
        for what, before, after in pairs
        for dim, (a, b) in enumerate(zip(before, after, strict=False))
        if (isinstance(a, Expr) or isinstance(b, Expr)) and number_key(a) != number_key(b)
    }


def check_same_type(name: str, first: Any, last: Any, dynamic: bool = False) -> None:
    """Refuse values that one compiled kernel cannot take in different iterations. ``dynamic``: sizes and strides known
    at run time only may differ.
    """
    free = open_extents(first, last) if dynamic else set()

    def kind(value: Any) -> Any:
        if isinstance(value, HostTensorValue):
            extents = [("size", i, n) for i, n in enumerate(value.shape)]
            extents += [("stride", i, n) for i, n in enumerate(value.strides)]
            fixed = tuple((what, i, number_key(n)) for what, i, n in extents if (what, i) not in free)
            return (value.dtype, value.device, value.ndim, fixed)
        if isinstance(value, NUMBERS):
            return value.kind if isinstance(value, Expr) else type(value)
        return None

    if kind(first) != kind(last) or (kind(first) is None and not same(first, last)):
        raise differs(name, first, last)


def same(first: Any, last: Any) -> bool:
    """Return whether two values that are neither numbers nor tensors are equivalent."""
    if first is last:
        return True
    if type(first) is not type(last):
        return False
    if isinstance(first, (list, tuple)):
        return len(first) == len(last) and all(map(same, first, last))
    if isinstance(first, dict):
        return first.keys() == last.keys() and all(same(value, last[key]) for key, value in first.items())
    if isinstance(first, Expr):
        return number_key(first) == number_key(last)
    return not isinstance(first, HostTensorValue) and bool(first == last)
