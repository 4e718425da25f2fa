"""Dataclasses whose methods are compiled at their first use.

The standard decorator compiles up to six methods of each class, of which most processes call few (measurement
``late_methods``).
"""

from __future__ import annotations

import dataclasses
import functools
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import field as field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import replace as replace
else:

    def dataclass(cls=None, /, **options):
        """Return a class with the fields and methods that ``dataclasses.dataclass`` gives it.

        It takes the options that ``_made`` names.
        """
        return functools.partial(_made, **options) if cls is None else _made(cls, **options)

    def replace(obj, /, **changes):
        """Return a copy of a record with these fields changed, as ``dataclasses.replace`` does."""
        cls = obj.__class__
        names, plain = _given_names(cls)
        if names is None:
            return dataclasses.replace(obj, **changes)
        if plain:
            given = obj.__dict__
            values = {name: given[name] for name in names}
            values.update(changes)
            if len(values) == len(names):
                made = object.__new__(cls)
                made.__dict__.update(values)
                return made
        for name in names:
            if name not in changes:
                changes[name] = getattr(obj, name)
        return cls(**changes)


_Method = Callable[..., Any]


def _made(
    cls: type,
    *,
    frozen: bool = False,
    eq: bool = True,
    repr: bool = True,
    kw_only: bool = False,
    slots: bool = False,
) -> type:
    own = vars(cls)
    has_hash = own.get("__hash__") is not None or ("__hash__" in own and "__eq__" not in own)
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # the standard decorator would format a signature

    # With frozen, it compiles two methods, and compares the option with that of the classes derived from.
    derived = any(map(dataclasses.is_dataclass, cls.__mro__[1:]))
    options: dict[str, bool] = {"kw_only": kw_only, "slots": slots, "frozen": frozen and derived}
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, **options)(cls)
    made.__dataclass_params__.frozen = frozen
    methods: dict[str, _Method | None] = {
        "__init__": _later(made, "__init__", functools.partial(_initializer, frozen=frozen))
    }
    if repr:
        methods["__repr__"] = _later(made, "__repr__", _representation)
    if eq:
        methods["__eq__"] = _later(made, "__eq__", _equality)
        if not has_hash:
            methods["__hash__"] = _later(made, "__hash__", _hash) if frozen else None
    if frozen and not derived:
        methods |= _refusals(made)
        if slots:
            methods |= {"__getstate__": _state, "__setstate__": _restore}
    for name, method in methods.items():
        if name not in own or name == "__hash__":
            setattr(made, name, method)
    return made


@functools.cache
def _given_names(cls: Any) -> tuple[tuple[str, ...] | None, bool]:
    """Return the names of all fields, and whether records keep them in a dict without further work.

    There are no names for classes that are no records, and where a field is computed.
    """
    made: Any = cls
    if not dataclasses.is_dataclass(cls) or not all([f.init for f in dataclasses.fields(cls)]):
        return None, False
    own_methods = hasattr(made, "__post_init__") or made.__new__ is not object.__new__
    made_here = getattr(made.__init__, "made_for", None) is made
    return tuple([f.name for f in dataclasses.fields(cls)]), made_here and not own_methods and not _has_slots(made)


def _has_slots(cls: type) -> bool:
    """Return whether some field of a record is in a slot."""
    return any(each.__dict__.get("__slots__") for each in cls.__mro__)


def _later(cls: type, name: str, make: Callable[[Any], _Method]) -> _Method:
    """Return a method that puts the one that ``make`` returns in its place at the first call."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = make(cls)
        setattr(cls, name, made)
        return made(self, *args, **kwargs)

    method.made_for = cls  # type: ignore[attr-defined]
    return method


def _compiled(cls: type, name: str, parameters: list[str], lines: list[str], known: dict[str, Any]) -> _Method:
    exec(f"def {name}({', '.join(parameters)}):\n" + "".join(f"    {line}\n" for line in lines), known)
    method: _Method = known[name]
    method.__qualname__ = f"{cls.__qualname__}.{name}"
    method.__module__ = cls.__module__
    method.made_for = cls  # type: ignore[attr-defined]
    return method


def _initializer(cls: Any, frozen: bool) -> _Method:
    known: dict[str, Any] = {"_set": object.__setattr__, "_absent": object()}
    positional, keywords, values = ["self"], ["*"], {}
    for each in dataclasses.fields(cls):
        name, value, default = each.name, each.name, ""
        if each.default_factory is not dataclasses.MISSING:
            known[f"_make_{name}"] = each.default_factory
            default = "_absent"
            value = f"_make_{name}() if {name} is _absent else {name}" if each.init else f"_make_{name}()"
        elif each.default is not dataclasses.MISSING:
            known[f"_default_{name}"] = each.default
            default = f"_default_{name}"
            value = name if each.init else default
        if each.init:
            (keywords if each.kw_only else positional).append(f"{name}={default}" if default else name)
        if each.init or default:
            values[name] = value
    if not frozen:
        lines = [f"self.{name} = {value}" for name, value in values.items()]
    elif _has_slots(cls):
        lines = [f"_set(self, {name!r}, {value})" for name, value in values.items()]
    else:  # half of the time of a call for each field
        lines = ["_own = self.__dict__", *(f"_own[{name!r}] = {value}" for name, value in values.items())]
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    parameters = positional + (keywords if len(keywords) > 1 else [])
    return _compiled(cls, "__init__", parameters, lines or ["pass"], known)


def _representation(cls: Any) -> _Method:
    shown = ", ".join(f"{f.name}={{self.{f.name}!r}}" for f in dataclasses.fields(cls) if f.repr)
    line = f"return f'{{type(self).__qualname__}}({shown})'"
    return reprlib.recursive_repr()(_compiled(cls, "__repr__", ["self"], [line], {}))


def _equality(cls: Any) -> _Method:
    names = [f.name for f in dataclasses.fields(cls) if f.compare]
    mine, others = _values("self", names), _values("other", names)
    line = f"return {mine} == {others} if other.__class__ is self.__class__ else NotImplemented"
    return _compiled(cls, "__eq__", ["self", "other"], [line], {})


def _hash(cls: Any) -> _Method:
    names = [f.name for f in dataclasses.fields(cls) if (f.compare if f.hash is None else f.hash)]
    return _compiled(cls, "__hash__", ["self"], [f"return hash({_values('self', names)})"], {})


#: Stays with a kept hash. A process that reads a pickled record has another one, and other hashes of strings.
_HERE = object()


def hash_once(record: Any) -> int:
    """Return the hash of a frozen record that has no slots, by the fields that are compared, and keep it in the record."""
    where, known = record.__dict__.get("_hash", (None, 0))
    if where is not _HERE:
        known = _hash_of(record.__class__)(record)
        record.__dict__["_hash"] = _HERE, known
    return int(known)


@functools.cache
def _hash_of(cls: Any) -> _Method:
    return _hash(cls)


def _values(of: str, names: list[str]) -> str:
    return f"({''.join(f'{of}.{name}, ' for name in names)})"


def _refusals(cls: Any) -> Mapping[str, _Method]:
    """Return the methods by which a frozen class refuses to change."""
    names = frozenset(f.name for f in dataclasses.fields(cls))

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return {"__setattr__": __setattr__, "__delattr__": __delattr__}


def _state(self: Any) -> list[Any]:
    return [getattr(self, f.name) for f in dataclasses.fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for f, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, f.name, value)
