"""What an iteration of a host loop changes in place: containers, and attributes of objects."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

import torch

from .... import exc
from ..runtime_values import opaque
from ..values import HostTensorValue
from .scope import Scope
from .unfollowed import SavedHost, changed_containers, head_of, save_host

#: Iterations that each change attributes of other objects than those before: these are objects that they make.
_MAX_TRIALS = 8


@dataclass
class Mutations:
    """Containers by identity, and owners of attributes by theirs and the attribute's name."""

    containers: dict[int, Any] = field(default_factory=dict)
    attributes: dict[tuple[int, str], Any] = field(default_factory=dict)
    trials: int = 0


@dataclass(frozen=True)
class _Before:
    host: SavedHost
    poisoned: frozenset[int]
    attributes: dict[tuple[int, str], tuple[Any, Any]]


def begin(s: Scope, known: Mutations, loop: ast.stmt) -> _Before:
    """An iteration begins, in which only the run knows what is in containers and attributes that an iteration changes."""
    for key, container in known.containers.items():
        names = (f"`{name}`" for name, value in s.frame.names.items() if value is container)
        s.t.world.poisoned[key] = (
            container,
            opaque(f"what is in {next(names, 'a container')}", f" (`{head_of(loop)}` changes it)"),
        )
    for (key, name), owner in known.attributes.items():
        s.t.world.attributes[(key, name)] = (owner, opaque(f"`{name}`", f" (`{head_of(loop)}` assigns it)"))
    return _Before(save_host(s), frozenset(s.t.world.poisoned), dict(s.t.world.attributes))


def extend(s: Scope, known: Mutations, before: _Before, loop: ast.stmt) -> bool:
    """Adds what has changed since ``before``; whether there was anything to add."""
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
    """Containers from before the iteration, or from outside of the kernel, that may hold something else now."""
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
    """Whether what is followed in place of something from outside still holds the same."""
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
