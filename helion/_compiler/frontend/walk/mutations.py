"""In-place changes of an iteration of a host loop: containers, and attributes of objects."""

from __future__ import annotations

import ast
from typing import Any

import torch

from .... import exc
from ...._support.records import dataclass, field
from ..runtime_values import opaque
from ..values import HostTensorValue
from .scope import Scope
from .unfollowed import SavedHost, changed_containers, head_of, save_host

#: Limit of iterations that change attributes of other objects than before, which the loop itself then makes.
_MAX_TRIALS = 8


@dataclass
class Mutations:
    """Containers by identity, and owners of attributes by identity and attribute name."""

    containers: dict[int, Any] = field(default_factory=dict)
    attributes: dict[tuple[int, str], Any] = field(default_factory=dict)
    trials: int = 0


@dataclass(frozen=True)
class _Before:
    host: SavedHost
    poisoned: frozenset[int]
    attributes: dict[tuple[int, str], tuple[Any, Any]]


def begin(s: Scope, known: Mutations, loop: ast.stmt) -> _Before:
    """Begin an iteration; containers and attributes that an iteration changes are opaque in it."""
    for key, container in known.containers.items():
        names = (f"`{name}`" for name, value in s.frame.names.items() if value is container)
        s.t.world.poisoned[key] = (
            container,
            opaque(f"the content of {next(names, 'a container')}", f" (`{head_of(loop)}` changes it)"),
        )
    for (key, name), owner in known.attributes.items():
        s.t.world.attributes[(key, name)] = (owner, opaque(f"`{name}`", f" (`{head_of(loop)}` assigns it)"))
    return _Before(save_host(s), frozenset(s.t.world.poisoned), dict(s.t.world.attributes))


def extend(s: Scope, known: Mutations, before: _Before, loop: ast.stmt) -> bool:
    """Add changes since ``before``; return whether there were any."""
    containers = {key: value for key, value in _containers(s, before).items() if key not in known.containers}
    attributes = {
        key: owner
        for key, (owner, value) in s.t.world.attributes.items()
        if key not in known.attributes and (key not in before.attributes or before.attributes[key][1] is not value)
    }
    known.containers |= containers
    known.attributes |= attributes
    known.trials += 1
    if attributes and known.trials > _MAX_TRIALS:
        name = next(name for _, name in attributes)
        raise exc.StatementNotSupported(
            statement=f"An assignment to `{name}` of an object that is made in `{head_of(loop)}`",
            where="host",
            remedy="; make the object before the loop, or keep the value in a variable",
        )
    return bool(containers or attributes)


def _containers(s: Scope, before: _Before) -> dict[int, Any]:
    """Return containers from before the iteration, or from outside of the kernel, whose contents may have changed."""
    changed = {**changed_containers(before.host), **s.walk.changed_outside}
    for key, (container, _) in s.t.world.poisoned.items():
        if key in before.host.contents and key not in before.poisoned:
            changed[key] = container
    for original, copied in s.t.world.copies.values():
        if id(copied) not in before.host.contents and (
            id(copied) in s.t.world.poisoned or not _is_copy(s, copied, original)
        ):
            changed[id(original)] = original
    return changed


def _is_copy(s: Scope, copied: Any, original: Any) -> bool:
    """Return whether the copy of an object from outside still has the same contents."""
    if isinstance(original, torch.Tensor):
        return any(value is copied for (key, _), value in s.t.tensors.lifted.items() if key == id(original))
    if isinstance(copied, HostTensorValue):
        return False
    if isinstance(original, dict):
        same_keys = isinstance(copied, dict) and list(copied) == list(original)
        return same_keys and all(_is_copy(s, copied[key], value) for key, value in original.items())
    if isinstance(original, (list, tuple)) and not isinstance(original, torch.Size):
        same_length = isinstance(copied, (list, tuple)) and len(copied) == len(original)
        return same_length and all(map(lambda a, b: _is_copy(s, a, b), copied, original))
    return copied is original or (isinstance(original, set) and bool(copied == original))
