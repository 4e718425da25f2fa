"""Snapshots of an object's attributes, to undo the changes of a trace that is repeated."""

from __future__ import annotations

from typing import Any

from ..._support.records import dataclass

#: Collections are copied shallowly: their items must not be changed in place.
_COLLECTIONS = (list, dict, set)


class Part:
    """A part of a state that is restored as a whole. Only collections and other parts among its attributes change in
    place.
    """


@dataclass(frozen=True)
class Snapshot:
    """The attributes of an object, with copies of its collections."""

    attributes: dict[str, Any]


def snapshot(owner: Any) -> Snapshot:
    """Return a snapshot of all attributes of ``owner``."""
    return Snapshot(_copied(vars(owner)))


def restore(owner: Any, saved: Snapshot) -> None:
    """Restore the attributes of ``owner``; a snapshot can be used again."""
    vars(owner).update(_copied(saved.attributes))


def _copied(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value.copy() if type(value) in _COLLECTIONS else value for name, value in attributes.items()}
