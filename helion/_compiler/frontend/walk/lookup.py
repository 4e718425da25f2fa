"""What names lead to, and the names that launches pass tensors by."""

from __future__ import annotations

import ast
from typing import Any

from ..frames import is_plain_object, resolve_source
from ..runtime_values import Opaque
from ..values import HostTensorValue
from .kinds import ABSTRACT
from .scope import Scope


def peek(s: Scope, node: ast.expr) -> Any:
    """What a name or an attribute leads to, with nothing noted; None where that takes more than looking."""
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
    """Before the first use on the device: find the host expression the launch passes the tensor by."""
    if s.t.tensors.number_of(value) is None:
        resolve_source(s.t, value, s.walk.kernel_frame)
