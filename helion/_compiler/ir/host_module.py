"""The host code of a program: the user's function around its device loops."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ... import exc
from ..._shapes import Expr, Number, number_key
from ..._support.records import dataclass
from ..source import Location, Place
from .structure import Structural


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Assumptions of a launch on a tensor that host code made. The host expression ``source`` evaluates to the tensor.

    ``shape`` and ``strides`` count elements; None for those that the launch reads at run time. ``device`` is None for
    that of the arguments. ``made`` names the tensor in every variant of the program.
    """

    source: str
    made: str
    dtype: torch.dtype
    shape: tuple[Number | None, ...]
    strides: tuple[Number | None, ...]
    device: torch.device | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """An assumption of a launch: indices from ``begin`` up to ``end``, exclusive, are within ``size`` elements.

    They are those of the loop variable ``tile``, in dimension ``dim`` of the tensor that the user calls ``name``. The
    bounds include a shift. Without ``tile``, ``begin`` is the only index, and negative ones count from the end.
    """

    tile: str
    begin: Number
    end: Number
    name: str
    dim: int
    size: Number
    location: Location | None


#: The least and the greatest int32.
LEAST, GREATEST = -(2**31), 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrow:
    """An assumption of a launch that computes in 32 bits: a number is not below the least int32, or not above the
    greatest one."""

    least: Number = 0
    greatest: Number = 0

    @property
    def key(self) -> tuple[Any, ...]:
        """Structural identity."""
        return number_key(self.least), number_key(self.greatest)

    def holds(self, leaf: Callable[[Expr], Any]) -> bool:
        """Return whether it holds; ``leaf`` gives the values of leaves."""
        least, greatest = (n.evaluate(leaf) if isinstance(n, Expr) else n for n in (self.least, self.greatest))
        return bool(least >= LEAST and greatest <= GREATEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """The tensor of peer ``number``, of ``count`` ranks, in the tuple ``of``, an argument. A host loop may count
    ``number``."""

    of: str
    number: Number
    count: int


def out_of_range(index: int, name: str, dim: int, size: int) -> exc.Base:
    """Return the error for an index of a dimension of ``size`` elements."""
    return exc.InvalidAPIUsage(
        f"Index {index} is out of range for dimension {dim} of {name!r}, which has {size} elements."
    )


def past_the_end(tile: str, end: int, name: str, dim: int, size: int) -> exc.Base:
    """Return the error for indices of the loop variable ``tile``, below ``end``, in a dimension of ``size`` elements."""
    return exc.ShapeMismatch(
        lhs=f"{tile} (up to {end})",
        rhs=f"dimension {dim} of {name!r} ({size} elements)",
        detail=": the tile reaches past the end; shorten the loop, or use hl.load or hl.store with extra_mask",
    )


class Launch(ast.stmt):
    """A statement of the host code in place of grid loops, which launches kernels. ``number`` is the launch of their
    roots."""

    _fields = ("number",)

    def __init__(self, number: int = 0) -> None:
        super().__init__()
        self.number = number


class Keep(ast.stmt):
    """An assignment ``name = value`` in host code, present if a launch needs ``name``."""

    _fields = ("name", "value")

    def __init__(self, name: str = "", value: ast.expr | None = None) -> None:
        super().__init__()
        self.name, self.value = name, value or ast.Constant(None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostModule(Structural):
    """The user's function around the device loops.

    - ``function``: its syntax tree, with a ``Launch`` in place of grid loops, which may be inside a loop.
    - ``registered``: block ids by the calls of ``hl.register_block_size`` (by line and column).
    - ``tunable_calls``: names by the calls of ``hl.register_tunable``.
    - ``specialized_calls``: calls of ``hl.specialize``.
    - ``placed_calls``: calls of factories that get the device of the tensor ``placed_by``.
    - ``symbols``: the host expression of every run-time number, by name. Those of ``specialized`` are the same in every
      launch, with the value of their hints.
    - ``deferred_symbols``: the numbers that are known only right before the launch.
    - ``captures``: names of the results that launches may need, by expression (by first and last line and column).
      There is one name for each evaluation of the expression. In a loop around a launch, evaluations count from the
      beginning of an iteration.
    - ``source_globals``: the globals of the user's module that the function names. The value is the name of the module
      if the global is one, "" otherwise.
    """

    name: str
    function: ast.FunctionDef
    source_module: str
    device_source: str
    registered: Mapping[tuple[int, int], int]
    tunable_calls: Mapping[tuple[int, int], str]
    specialized_calls: frozenset[tuple[int, int]]
    symbols: Mapping[str, str]
    deferred_symbols: Mapping[str, str]
    captures: Mapping[Place, tuple[str, ...]]
    source_globals: Mapping[str, str]
    #: Assumptions that are checked before each launch.
    checks: tuple[tuple[Check, ...], ...] = ()
    #: Indices to compare with sizes before each launch.
    reaches: tuple[tuple[Reach, ...], ...] = ()
    #: Numbers that must fit int32 in each launch.
    narrow: tuple[tuple[Narrow, ...], ...] = ()
    #: A parameter that holds a tensor from the first statement to the last, if such a parameter exists.
    reference: str = ""
    #: With dynamic shapes: assumptions of the code on sizes and strides of the arguments.
    argument_checks: tuple[str, ...] = ()
    placed_calls: frozenset[tuple[int, int]] = frozenset()
    placed_by: str = ""
    specialized: frozenset[str] = frozenset()
    #: Names of numbers that change from one iteration of a host loop to the next.
    changing: frozenset[str] = frozenset()
