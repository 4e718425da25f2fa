"""Structural equality of records that hold symbolic numbers, syntax trees or mappings, which do not compare by
value."""

from __future__ import annotations

import ast
from collections.abc import Hashable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from ..._shapes import Expr


class Structural:
    """Records that are equal, with equal hashes, if all their fields are equal, also after pickling.

    Numbers are compared with their type, since 0, 0.0, -0.0 and False are equal in Python.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and structure(self) == structure(other))

    def __hash__(self) -> int:
        return hash(structure(self))


def structure(thing: Any) -> Hashable:
    """Return a key that is equal for two objects exactly when they are structurally equal."""
    kind = type(thing)
    match thing:
        case Expr():
            return (kind, thing.op, structure(thing.args), structure(thing.hint))
        case bool() | int() | float() | complex():
            return (kind, repr(thing))
        case tuple() | list():
            return (kind, *map(structure, thing))
        case frozenset():
            return (kind, frozenset(map(structure, thing)))
        case Mapping():
            return ("mapping", *((structure(key), structure(value)) for key, value in thing.items()))
        case ast.AST():
            return (kind, ast.dump(thing, include_attributes=True))
        case BaseException():
            return (kind, str(thing))
    if is_dataclass(thing) and not isinstance(thing, type):
        return (kind, *(structure(getattr(thing, each.name)) for each in fields(thing)))
    assert isinstance(thing, Hashable)
    return thing
