"""Puts an object back to what it was, so that what is followed twice leaves nothing of the first time behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: Collections are copied as they are: what they hold is not to be changed in place.
_COLLECTIONS = (list, dict, set)


class Part:
    """A part of a state that goes back as a whole: what its attributes hold is not changed in place, but for collections,
    and for other parts."""


@dataclass(frozen=True)
class Snapshot:
    """What the attributes of an object held, with copies of its collections."""

    attributes: dict[str, Any]


def snapshot(owner: Any) -> Snapshot:
    """All attributes of ``owner``."""
    return Snapshot(_copied(vars(owner)))


def restore(owner: Any, saved: Snapshot) -> None:
    """Gives ``owner`` the attributes it had; a snapshot may be used again."""
    vars(owner).update(_copied(saved.attributes))


def _copied(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value.copy() if type(value) in _COLLECTIONS else value for name, value in attributes.items()}
