"""Tensors whose dimensions are those of heads, rows and columns, as kernels of the language index them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...._compiler.ir.grammar import HostTensor
from ..plan.attention.operands import Matrix, Mode, Place, Source
from ..plan.attention.records import AttentionProblem

Known = tuple[int, int, Place | str]
"""The size and the stride of a dimension, and what it is."""
FIRST = Place("number", (0,))


@dataclass(frozen=True, kw_only=True)
class Indexed:
    """A tensor whose dimensions are those of heads, rows and columns: ``dims`` has a place, ``rows`` or ``columns`` for
    each, and ``sizes`` the elements. A dimension of several elements may be at one of them, as that of q, k and v in one
    tensor."""

    tensor: HostTensor
    dims: tuple[Place | str, ...]
    sizes: tuple[int, ...]

    @property
    def columns(self) -> int:
        """Number of the dimension of columns."""
        return self.dims.index("columns")

    @property
    def is_turned(self) -> bool:
        """True if columns come before rows."""
        return {"rows", "columns"} <= {*self.dims} and self.columns < self.dims.index("rows")

    @property
    def ordered(self) -> Indexed:
        """Return it with the columns last, as gradients are stored."""
        return self._of([*(at for at in range(len(self.dims)) if at != self.columns), self.columns])

    @property
    def chosen(self) -> list[int]:
        """Numbers of the dimensions of several elements of which the tensor is at one."""
        return [
            at for at, (dim, size) in enumerate(zip(self.dims, self.sizes, strict=True)) if _is_number(dim) and size > 1
        ]

    @property
    def own(self) -> Indexed:
        """Return it without these dimensions."""
        chosen = self.chosen
        return self._of([at for at in range(len(self.dims)) if at not in chosen])

    def _of(self, dims: Sequence[int]) -> Indexed:
        return Indexed(
            tensor=self.tensor, dims=tuple(self.dims[at] for at in dims), sizes=tuple(self.sizes[at] for at in dims)
        )

    def shape(self) -> list[int]:
        """Return the shape with the columns last."""
        return [*self.ordered.sizes]

    def text(self, name: str, axes: tuple[str, ...], rows: str, columns: str = ":") -> str:
        """Return the rows of a head as a matrix."""
        return f"{name}[{self.places(axes, rows, columns)}]{'.T' if self.is_turned else ''}"

    def places(self, axes: tuple[str, ...], rows: str = "tile_m", columns: str = "tile_n") -> str:
        """Return the indices of the rows of a head."""
        named = {"rows": rows, "columns": columns}
        return ", ".join(named[each] if isinstance(each, str) else each.text(axes) for each in self.dims)


def indexed_matrix(
    tensor: HostTensor, matrix: Matrix, problem: AttentionProblem, vector: bool = False
) -> Indexed | None:
    """Return how the tensor of a matrix is indexed. A ``vector`` has no columns."""
    rows = problem.keys if matrix in (problem.k, problem.v) else problem.queries
    of_rows, of_columns = matrix.strides
    known: list[Known] = [(rows, of_rows, "rows")]
    known += [] if vector else [(matrix.columns, of_columns, "columns")]
    return _indexed(tensor, [*known, *_known(matrix.modes)], matrix.offset)


def is_of_heads(indexed: Indexed, heads: int) -> bool:
    """Return whether indices are coordinates of a head, of which there are ``heads``, and no integers that are loaded for it."""
    return all(at < heads for each in indexed.dims if isinstance(each, Place) for at in each.coordinates)


def indexed_source(tensor: HostTensor, source: Source, problem: AttentionProblem) -> Indexed | None:
    """Return how the tensor of a formula's source is indexed, with queries as rows and keys as columns."""
    sizes = (problem.queries, problem.keys)
    along = zip(sizes, source.pitches, ("rows", "columns"), strict=True)
    known: list[Known] = [each for each in along if each[1] != 0]
    found = _indexed(tensor, [*known, *_known(source.modes)], source.offset)
    return None if found is None or found.chosen else found


def _known(modes: Sequence[Mode]) -> list[Known]:
    return [(mode.size, mode.stride, mode.at) for mode in modes]


def _is_number(dim: Place | str) -> bool:
    return isinstance(dim, Place) and dim.op == "number"


def _indexed(tensor: HostTensor, known: Sequence[Known], offset: int) -> Indexed | None:
    """Return how a tensor is indexed, if each of its dimensions is known by its stride and covered, but for one at most. That is
    indexed by a number, which gives the ``offset``."""
    dims: list[Place | str] = []
    sizes, strides = (tuple(int(each) for each in numbers) for numbers in (tensor.shape, tensor.strides))
    for size, stride in zip(sizes, strides, strict=True):
        fitting = [what for n, step, what in known if (n, step) == (size, stride)]
        if size == 1:
            dims.append(FIRST)
        elif len(fitting) == 1:
            dims.append(fitting[0])
        elif not fitting and stride and 0 <= offset < size * stride and offset % stride == 0:
            dims.append(Place("number", (offset // stride,)))
            offset = 0
        else:
            return None
    found = Indexed(tensor=tensor, dims=tuple(dims), sizes=sizes)
    whole = offset == 0 and len([each for each in dims if not _is_number(each)]) == len(known)
    return found if whole and len(found.chosen) < 2 else None


def axis_of(place: Place) -> int:
    """Return the coordinate of a head that a place is."""
    (axis,) = place.arguments
    assert isinstance(axis, int)
    return axis


def group_of(place: Place) -> Place:
    """Return the coordinate of a group of heads whose quotient is a place."""
    first = place.arguments[0]
    return first if place.op == "floordiv" and isinstance(first, Place) else place
