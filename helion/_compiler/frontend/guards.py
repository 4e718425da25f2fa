"""The result of a trace, and its assumptions about globals and about objects that it reads through them.

Later processes read both without importing the front end.
"""

from __future__ import annotations

import pickle
import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch

from ... import exc
from ..._exact import are_same, exact_key, is_constant
from ..._support.records import dataclass, field
from .purity import is_library_module

if TYPE_CHECKING:
    from ..ir.grammar import Program

#: Attributes of a result that are pickled by themselves, and the attribute with both.
_PROGRAMS, _PICKLED = ("program", "recorded"), "_programs"
Kind = Literal["item", "attribute", "absent", "length", "content", "keys", "state"]
_ALIASES = ("np", "hl", "tl", "F")
_WHOLE: dict[str, Callable[[Any], Any]] = {
    "length": len,
    "content": frozenset,
    "keys": tuple,
    "state": lambda function: function(),
}


def tensor_key(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return the properties of a captured tensor that code depends on."""
    return (tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), tensor.device.type)


@dataclass(frozen=True)
class Guard:
    """An assumption that ``owner[key]`` (of a namespace or a container) or ``owner.key`` is unchanged.

    Constants are compared by type and bits, tensors by type and shape, methods by function and owner, other objects by
    identity. Other kinds of assumptions: the ``length`` of a list, the ``content`` of a set, the ordered ``keys`` of a
    dict, or the ``state`` that a function reads. An ``absent`` attribute must still be absent.
    """

    kind: Kind
    owner: Any
    key: Any
    value: Any

    def holds(self) -> bool:
        """Return whether the assumption is still true."""
        if self.kind == "absent":
            return not hasattr(self.owner, self.key)
        if self.kind in _WHOLE:
            return exact_key(_WHOLE[self.kind](self.owner)) == exact_key(self.value)
        try:
            now = self.owner[self.key] if self.kind == "item" else getattr(self.owner, self.key)
        except (KeyError, IndexError, AttributeError, ValueError):
            return False
        if isinstance(now, torch.Tensor):
            return tensor_key(now) == self.value
        if isinstance(now, types.MethodType) and isinstance(self.value, types.MethodType):  # each read makes a new one
            return now.__func__ is self.value.__func__ and now.__self__ is self.value.__self__
        return now is self.value or (is_constant(now) and is_constant(self.value) and are_same(now, self.value))


def guard(kind: Kind, owner: Any, key: Any, value: Any) -> Guard | None:
    """Return the assumption for reading ``value``; None for constant objects: torch's, and libraries under their usual
    names.
    """
    if isinstance(owner, types.ModuleType) and owner.__name__.split(".")[0] == "torch":
        return None
    if (
        isinstance(value, types.ModuleType)
        and is_library_module(value)
        and key in (*value.__name__.split("."), *_ALIASES)
    ):
        return None
    return Guard(kind, owner, key, tensor_key(value) if isinstance(value, torch.Tensor) else value)


@dataclass(frozen=True)
class Traced:
    """The result of a trace.

    ``specialized``: origins (paths into the arguments) of numbers the program depends on, by host name. ``origins``:
    those of the numbers that are read at run time.

    ``warnings``: warnings for the user. ``guards``: assumptions about globals. ``seeds``: the number of seeds that each
    launch with random numbers draws from torch's generator, in order.

    ``recorded``: the program as recorded, including functions that have their own derivatives. ``misplaced``: the error
    of a call with CPU tensors, because device code uses a tensor that host code makes on a GPU. ``acts``: another run
    on copies of the arguments may be seen outside.
    """

    program: Program
    specialized: Mapping[str, Any]
    warnings: tuple[exc.Base, ...]
    guards: tuple[Guard, ...]
    seeds: tuple[int, ...] = ()
    origins: Mapping[str, Any] = field(default_factory=dict)
    recorded: Program | None = field(default_factory=lambda: None)  # a default of the class would hide a pickled one
    misplaced: exc.Base | None = None
    acts: bool = False

    def with_guards(self, guards: tuple[Guard, ...]) -> Traced:
        """Return the result with other guards; programs that were pickled stay so."""
        made = object.__new__(Traced)
        made.__dict__.update({**self.__dict__, "guards": guards})
        return made

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name not in _PROGRAMS}
        return state if _PICKLED in state else {**state, _PICKLED: pickle.dumps((self.program, self.recorded))}

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Read the programs of a result that was pickled, on their first use."""
            if name not in _PROGRAMS or _PICKLED not in self.__dict__:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            self.__dict__.update(zip(_PROGRAMS, pickle.loads(self.__dict__[_PICKLED]), strict=True))
            return self.__dict__[name]
