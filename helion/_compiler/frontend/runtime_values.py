"""Values of host code that are known at run time only, and plain values for symbolic ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch

from ... import exc
from ..._shapes import Expr, hint_of
from ..._support.records import dataclass
from .state import TraceState
from .values import Shape

#: An example of each kind of run-time number.
SAMPLES: dict[type, Any] = {int: 64, float: 1.0, bool: True}
MUTABLE = (list, dict, set)


@dataclass(eq=False)
class Opaque:
    """A value of host code that the compiler does not follow.

    It is the result of a function that runs at run time only, or of a statement that the compiler cannot follow. Host
    code may pass it on; any use that the compiler depends on raises ``error``, which names its origin.
    """

    error: Exception

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise self.error.with_traceback(None)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        raise next(opaques((args, kwargs or {}))).error

    def __repr__(self) -> str:
        return "a value that is known at run time only"


for _name in (
    "bool", "int", "float", "index", "len", "iter", "getitem", "setitem", "contains", "call", "eq", "ne", "lt", "le", "gt", "ge", "hash", "str",
    "format", "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod", "pow", "rpow", "neg",
):  # fmt: skip
    setattr(Opaque, f"__{_name}__", Opaque._refuse)


def opaque(what: str, because: str = "") -> Opaque:
    """Return a value known at run time only, which is computed by ``what``."""
    return Opaque(exc.KnownAtRunTime(what=what, because=because))


def opaques(value: Any) -> Iterator[Opaque]:
    """Yield the opaque values in a value."""
    if isinstance(value, Opaque):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from opaques(item)
    elif isinstance(value, (tuple, list, set, frozenset)):
        for item in value:
            yield from opaques(item)
    elif isinstance(value, slice):
        yield from opaques((value.start, value.stop, value.step))


def refuse_opaque(values: Any) -> None:
    """Raise for a value that the compiler depends on and that is known at run time only."""
    found = next(opaques(values), None)
    if found is not None:
        raise found.error.with_traceback(None)


def numbers_in(value: Any) -> Iterator[Expr]:
    """Yield the symbolic numbers in a value."""
    if isinstance(value, Expr):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from numbers_in(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from numbers_in(item)
    elif isinstance(value, slice):
        yield from numbers_in((value.start, value.stop, value.step))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type) and type(value).__module__ != Shape.__module__:
        for item in vars(value).values() if hasattr(value, "__dict__") else ():
            yield from numbers_in(item)


def is_runtime(t: TraceState, value: Any) -> bool:
    """Return whether a symbolic number depends on more than the arguments, so that it cannot be part of a key."""
    return isinstance(value, Expr) and any(
        leaf.op != "host" or leaf.args[0] in t.numbers.loop_numbers or leaf.args[0] not in t.numbers.symbols
        for leaf in value.leaves()
    )


def decided_by_config(value: Any) -> bool:
    """Return whether a symbolic number depends on block sizes or tunables."""
    kinds = {leaf.op for leaf in value.leaves()} if isinstance(value, Expr) else set()
    return bool(kinds & {"block", "tunable"})


def settle(t: TraceState, value: Any) -> Any:
    """Return a value with plain numbers for symbolic ones, which become part of the specialization key. Raises for
    numbers that do not come from the arguments.
    """
    return _replaced(value, t.numbers.specialize)


def hinted(value: Any) -> Any:
    """Return a value with the numbers seen at bind time."""
    return _replaced(value, hint_of)


def _replaced(value: Any, number: Callable[[Expr], Any]) -> Any:
    if isinstance(value, Expr):
        return number(value)
    if isinstance(value, Shape):
        return torch.Size([_replaced(item, number) for item in value])
    if isinstance(value, slice):
        return slice(*(_replaced(item, number) for item in (value.start, value.stop, value.step)))
    if isinstance(value, (list, tuple)) and _is_abstract(value):
        items = [_replaced(item, number) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if type(value) is dict and _is_abstract(value):
        return {key: _replaced(item, number) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and next(numbers_in(value), None) is not None:
        copied = object.__new__(type(value))
        for name, item in vars(value).items():
            object.__setattr__(copied, name, _replaced(item, number))
        return copied
    return value


def _is_abstract(value: Any) -> bool:
    """Return whether a container has symbolic numbers or abstract sizes in it."""
    items = value.values() if isinstance(value, dict) else value
    nested = (dict, list, tuple)
    return next(numbers_in(value), None) is not None or any(
        isinstance(item, Shape) or (isinstance(item, nested) and _is_abstract(item)) for item in items
    )


def containers_in(value: Any, found: dict[int, Any] | None = None) -> dict[int, Any]:
    """Return the lists, dicts and sets in a value, by identity."""
    found = {} if found is None else found
    if isinstance(value, MUTABLE):
        if id(value) in found:
            return found
        found[id(value)] = value
    if isinstance(value, dict):
        for item in value.values():
            containers_in(item, found)
    elif isinstance(value, (list, tuple)):
        for item in value:
            containers_in(item, found)
    return found
