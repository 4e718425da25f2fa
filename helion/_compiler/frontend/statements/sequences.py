"""Lists and tuples of values in loops and branches: each item has a name of its own there, such as ``pair[0]``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .... import exc
from ...._shapes import Expr
from ...._support.records import dataclass
from ..values import DeviceValue, Missing, describe

#: Values that a loop may carry.
_ITEMS = (DeviceValue, Expr, int, float)


@dataclass(frozen=True)
class Sequences:
    """Lists and tuples by name, all of whose items are values that a loop may carry."""

    models: dict[str, Any]

    @staticmethod
    def among(names: dict[str, Any], chosen: Iterable[str]) -> Sequences:
        """Return those of the ``chosen`` names."""
        return Sequences({name: names[name] for name in chosen if _is_of_items(names.get(name))})

    @staticmethod
    def in_both(then: dict[str, Any], other: dict[str, Any], chosen: Iterable[str]) -> Sequences:
        """Return those that have one structure after both branches."""
        found = Sequences.among(then, chosen).models
        return Sequences({n: v for n, v in found.items() if _is_of_items(other.get(n)) and _are_alike(v, other[n])})

    def of_items(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return names with those of items in the place of those of sequences."""
        spread: list[str] = []
        for name in names:
            spread += _named(name, self.models[name]) if name in self.models else [name]
        return tuple(spread)

    def spread(self, names: dict[str, Any], construct: str, replaced: Callable[[str], bool]) -> dict[str, Any]:
        """Return values by names with those of items. A sequence of another structure has no items if its name is
        ``replaced`` before it is read; it is refused otherwise.
        """
        result: dict[str, Any] = {}
        for name, value in names.items():
            model = self.models.get(name)
            if model is None:
                result[name] = value
            elif _are_alike(model, value):
                result.update(_named(name, value))
            elif isinstance(value, Missing):
                result.update(dict.fromkeys(_named(name, model), value))
            else:
                error = exc.CantCombineTypesInControlFlow(
                    name=name, before=described(model), after=described(value), construct=construct
                )
                if not replaced(name):
                    raise error
                result.update(dict.fromkeys(_named(name, model), Missing(lambda error=error: error)))  # type: ignore[misc]
        return result

    def gathered(self, names: dict[str, Any]) -> dict[str, Any]:
        """Return values by names with sequences of new items in the place of these."""
        if not self.models:
            return names
        items = {item for name, model in self.models.items() for item in _named(name, model)}
        result = {name: value for name, value in names.items() if name not in items}
        for name, model in self.models.items():
            missing = [names[item] for item in _named(name, model) if isinstance(names[item], Missing)]
            result[name] = missing[0] if missing else _rebuilt(name, model, names)
        return result


def _is_of_items(value: Any) -> bool:
    """Return whether a value is a list or tuple, not an empty one, of items that a loop may carry."""
    return type(value) in (list, tuple) and bool(value) and all(isinstance(i, _ITEMS) or _is_of_items(i) for i in value)


def _are_alike(model: Any, value: Any) -> bool:
    """Return whether two values have as many items in the same places."""
    if type(model) not in (list, tuple):
        return type(value) not in (list, tuple)
    return type(value) is type(model) and len(value) == len(model) and all(map(_are_alike, model, value))


def _named(name: str, value: Any) -> dict[str, Any]:
    """Return the items of a sequence, and those of its sequences, by name."""
    if type(value) not in (list, tuple):
        return {name: value}
    return {n: v for at, item in enumerate(value) for n, v in _named(f"{name}[{at}]", item).items()}


def _rebuilt(name: str, model: Any, names: dict[str, Any]) -> Any:
    if type(model) not in (list, tuple):
        return names[name]
    return type(model)([_rebuilt(f"{name}[{at}]", item, names) for at, item in enumerate(model)])


def described(value: Any) -> str:
    """Return a description for an error message, of sequences with their length."""
    return f"{describe(value)} of {len(value)}" if type(value) in (list, tuple) else describe(value)
