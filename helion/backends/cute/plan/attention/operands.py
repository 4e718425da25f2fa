"""The inputs and outputs of attention: matrices of a head, their places, and sources of formulas."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from ....._support.records import dataclass
from ..dtypes import NUMBER, SEED
from .numbers import text_of

VECTOR, PAIR = 8, 2
"""Elements of a source that a thread loads at once: of 16 bits in aligned rows, and of others."""
SourceKind = Literal["exact", "query", "key", "head", "number", "table"]

GATHER = "gather"
"""The operation that reads an element of a table: of an index, and of the table's source."""
OMITTED = (
    "dropped rounded units loaded key_span query_span key_range lift replaced latent q_rest k_rest loop_outputs values"
)
"""Fields of problems that their text leaves out where they are empty."""
INTEGERS = ("int32", "int64")
"""Types of sources that are compared as integers, and not computed with."""


def text_without(record: Any, names: Sequence[str]) -> str:
    """Return the text of a record without the fields ``names``."""
    shown = [each.name for each in dataclasses.fields(record) if each.name not in names]
    return f"{type(record).__name__}({', '.join(f'{name}={getattr(record, name)!r}' for name in shown)})"


@dataclass(frozen=True)
class Place:
    """An integer that depends on the head: ``axis`` (coordinate number ``arguments[0]`` of the head), ``number``, or
    ``add``, ``sub``, ``mul``, ``floordiv``, ``mod``, ``min`` and ``max`` of two places. Integers that are loaded for a head are its last
    coordinates."""

    op: str
    arguments: tuple[Place | int, ...]

    @property
    def coordinates(self) -> frozenset[int]:
        """Numbers of the coordinates of a head that it depends on."""
        if self.op == "axis":
            return frozenset(each for each in self.arguments if isinstance(each, int))
        return frozenset[int]().union(*(each.coordinates for each in self.arguments if isinstance(each, Place)))

    def text(self, axes: tuple[str, ...]) -> str:
        """Return the expression of the place, given those of the coordinates."""
        if self.op in ("axis", "number"):
            (number,) = self.arguments
            assert isinstance(number, int)
            return axes[number] if self.op == "axis" else text_of(number)
        one, other = (each.text(axes) for each in self.arguments if isinstance(each, Place))
        if self.op in ("min", "max"):
            return f"cutlass.{self.op}({one}, {other})"
        return f"({one} {_SIGNS[self.op]} {other})"


_SIGNS = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%"}


@dataclass(frozen=True, kw_only=True)
class Mode:
    """A dimension of a tensor other than those of a tile: its size, stride in elements, and the index of a head."""

    size: int
    stride: int
    at: Place


@dataclass(frozen=True, kw_only=True, repr=False)
class Matrix:
    """A tensor of one matrix per head, whose rows are queries or keys and whose columns are contiguous.

    ``offset`` counts elements before the first matrix, ``pitch`` elements from one row to the next. ``row`` is the row of
    index 0, if it is not row 0. ``base`` is the row at which the matrix of a head begins, where heads are rows for TMA.
    A ``turned`` matrix has contiguous rows instead, and a ``pitch`` from one column to the next.
    """

    name: str
    dtype: str
    columns: int
    pitch: int
    offset: int = 0
    modes: tuple[Mode, ...] = ()
    row: Place | None = None
    base: Place | None = None
    pages: Pages | None = None
    turned: bool = False

    @property
    def strides(self) -> tuple[int, int]:
        """Elements from one row, and from one column, to the next."""
        return (1, self.pitch) if self.turned else (self.pitch, 1)

    def __repr__(self) -> str:
        return text_without(self, () if self.turned else ("turned",))


SPAN_DIMENSIONS = 2
"""Dimensions that a span of rows adds to a TMA descriptor."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """An input of a formula.

    It is ``exact``, a number per query and key, or per query and column of the output. Or it has one per ``query``,
    ``key`` or ``head``, or it is a ``number`` of each launch.

    ``pitches`` are the strides along queries and along keys, in elements, 0 where there is no such dimension.
    """

    name: str
    kind: SourceKind
    dtype: str
    pitches: tuple[int, int] = (0, 0)
    offset: int = 0
    modes: tuple[Mode, ...] = ()

    @property
    def label(self) -> str:
        """Its name in generated code, distinct from the kernel's own names."""
        return f"{self.name}_operand"

    @property
    def passed(self) -> Source:
        """The source that a launch passes for it."""
        return self

    @property
    def argument(self) -> str:
        """The dtype of the tensor that a launch passes, or the kind of the scalar."""
        if self.passed.kind != "number":
            return self.passed.dtype
        return SEED if self.passed.dtype in INTEGERS else NUMBER


@dataclass(frozen=True, kw_only=True)
class Table(Source):
    """``size`` numbers per head, which a formula selects by computed indices, as biases by distance.

    Indices out of it read the first or the last one: those of elements that are masked.
    """

    size: int


@dataclass(frozen=True, kw_only=True)
class RandomNumbers(Source):
    """Uniform numbers in [0, 1), as if they were a tensor of all numbers of ``seed`` in order.

    The seed is an integer per head, or a number. Offsets of 64 bits are ``wide``; others wrap at 2**32.
    """

    seed: Source
    wide: bool

    @property
    def passed(self) -> Source:
        return self.seed


@dataclass(frozen=True, kw_only=True)
class Pages:
    """Keys in pages of ``size`` rows. ``table`` has the page of each ``size`` keys of a head."""

    table: Source
    size: int
    most: int
    """Pages of a head at most."""
    distance: int
    """Rows from one page to the next."""
