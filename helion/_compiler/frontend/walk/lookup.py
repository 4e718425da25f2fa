"""Lookup of names without effects, and host expressions by which launches pass tensors."""

from __future__ import annotations

import ast
from typing import Any

from ..frames import is_plain_object, resolve_source
from ..runtime_values import Opaque
from ..values import HostTensorValue
from .kinds import ABSTRACT
from .scope import Scope


def peek(s: Scope, node: ast.expr) -> Any:
    """Return the value of a name or an attribute without recording anything; None if that needs an evaluation."""
    if isinstance(node, ast.Name):
        return s.frame.peek(node.id)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        owner = peek(s, node.value)
        found = owner.get(node.slice.value) if isinstance(owner, dict) else None
        inside = isinstance(owner, list) and isinstance(node.slice.value, int) and node.slice.value < len(owner)
        return owner[node.slice.value] if inside else found
    owner = peek(s, node.value) if isinstance(node, ast.Attribute) else None
    if owner is None or isinstance(owner, (*ABSTRACT, Opaque)) or not is_plain_object(owner, node.attr):  # type: ignore[attr-defined]
        return None
    return getattr(owner, node.attr, None)  # type: ignore[attr-defined]


def name_tensor(s: Scope, value: HostTensorValue) -> None:
    """Find the host expression by which the launch passes a tensor, before its first use on the device."""
    if s.t.tensors.number_of(value) is None:
        resolve_source(s.t, value, s.walk.kernel_frame)
