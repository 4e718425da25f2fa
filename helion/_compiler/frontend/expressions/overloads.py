"""Operators that user classes define."""

from __future__ import annotations

import ast
from typing import Any

from ..purity import operator_of
from ..walk.scope import Scope, call


def overloaded(s: Scope, name: str, *operands: Any) -> Any:
    """Return the result of an operator that a user's class defines; NotImplemented for operators of abstract values."""
    method = operator_of(operands[0], f"__{name}__")
    if method is not None:
        s.t.world.assume("attribute", type(operands[0]), f"__{name}__", method)
    return NotImplemented if method is None else call(s, method, operands, {}, s.node or ast.Constant(None))
