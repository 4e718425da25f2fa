"""Keys that queries see by integers which are loaded for each, or for a head: the text of derived kernels.

Integers of queries, as those of their sequence, may have any order. A tile of keys reads the rows from the first one that
may see one of them to the last. Other rows between are hidden by their own integers. Integers of heads are numbers of keys.
Keys after them may be no numbers: they are not read, and have no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...._compiler.ir.grammar import HostTensor
from ...._shapes import Expr
from ..plan.attention.operands import Matrix, Mode, Place
from ..plan.attention.records import AttentionOutput, AttentionProblem
from ..plan.epilogue import Constant
from .indexed import FIRST, Indexed, indexed_source
from .scores import made_by

NAMES = "begins", "ends"
"""The parameters of kernels with scores: the first key that each query sees, and the one after the last."""
OF_KEYS = "first_rows", "last_rows"
"""Those of kernels whose tiles are keys: the first query that may see each key, and the one after the last."""


LENGTHS = "lengths"
"""The parameter of the number of keys of a head."""


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """The text that keys of loaded ranges have: one for each query (``is_loaded``), or the first ones of a head, whose number
    has the indices ``length``. All others are empty, and loops those over ``queries`` and ``keys``."""

    is_loaded: bool
    length: str
    queries: str
    keys: str

    @property
    def parameters(self) -> tuple[str, ...]:
        return NAMES if self.is_loaded else (LENGTHS,) if self.length else ()

    @property
    def of_keys(self) -> tuple[str, ...]:
        return OF_KEYS if self.is_loaded else ()

    @property
    def loads(self) -> list[str]:
        """The line that loads the ranges of a tile of queries, or of a head."""
        return ["first, last = begins[tile_m], ends[tile_m]"] if self.is_loaded else self._of_head

    @property
    def _of_head(self) -> list[str]:
        return [f"length = {LENGTHS}[{self.length}]"] if self.length else []

    @property
    def loads_of_keys(self) -> list[str]:
        """The line that loads the ranges of a tile of keys, or of a head."""
        return ["first_row, last_row = first_rows[tile_n], last_rows[tile_n]"] if self.is_loaded else self._of_head

    @property
    def loads_in_loop(self) -> list[str]:
        """The line that loads the ranges of queries in the loop of a tile of keys."""
        return self.loads if self.is_loaded else []

    @property
    def seen(self) -> list[str]:
        """The conditions by which a query sees a key."""
        key = "tile_n.index[None, :]"
        if self.is_loaded:
            return [f"({key} >= first[:, None])", f"({key} < last[:, None])"]
        return [f"({key} < length)"] if self.length else []

    @property
    def loop_of_keys(self) -> str:
        if self.is_loaded:
            return "hl.tile(torch.amin(first), torch.amax(last))"
        return f"hl.tile({'length' if self.length else self.keys})"

    @property
    def loop_of_queries(self) -> str:
        return "hl.tile(torch.amin(first_row), torch.amax(last_row))" if self.is_loaded else f"hl.tile({self.queries})"

    def of_rows(self, weights: str) -> str:
        """Return the line of weights for a tile of keys, 0 for rows that see none of them."""
        if not self.is_loaded:
            return weights
        name, _, value = weights.partition(" = ")
        row = "tile_m.index[:, None]"
        inside = f"({row} >= first_row[None, :]) & ({row} < last_row[None, :])"
        return f"{name} = torch.where({inside}, {value}, 0.0)"

    def gradient(self, text: str) -> str:
        """Return the gradient of a tile of keys, 0 for those after the last one."""
        return f"torch.where((tile_n.index < length)[:, None], {text}, 0.0)" if self.length else text

    def product(self, text: str) -> str:
        """Return products of rows, 0 for those without keys, whose outputs may be no numbers."""
        if self.is_loaded:
            return f"torch.where((begins[tile_m] < ends[tile_m])[:, None], {text}, 0.0)"
        return f"torch.where({LENGTHS}[{self.length}] > 0, {text}, 0.0)" if self.length else text

    def lines(self, keys: str) -> list[str]:
        """Return the host code of the rows that may see each of ``keys``: the ends so far, and the least begin of all later
        rows, do not decrease."""
        if not self.is_loaded:
            return []
        return [
            f"key = torch.arange({keys}, dtype=begins.dtype, device=begins.device)",
            "first_rows = torch.searchsorted(ends.cummax(0).values, key, right=True, out_int32=True)",
            "least = begins.flip(0).cummin(0).values.flip(0)",
            "last_rows = torch.searchsorted(least, key, right=True, out_int32=True)",
        ]


def without_hidden(
    problem: AttentionProblem, tensors: Sequence[HostTensor | Expr], ids: dict[str, int]
) -> tuple[AttentionProblem, bool]:
    """Return the problem without the numbers that outputs are for queries without keys, as comparisons of the bounds ``ids``
    choose them. Return also whether such rows of the matrix are 0. ``tensors`` are those of the formula of outputs."""
    if not ids:
        return problem, False
    finish = problem.finish
    bounds = dict[int | Constant, str]()
    names = {tensor: name for name, tensor in ids.items()}
    for at, each in enumerate(tensors, finish.starts):
        if isinstance(each, HostTensor) and each.id in names:
            bounds[at] = names[each.id]
    comparisons = {("gt", NAMES[::-1]), ("lt", NAMES)}
    outputs, zeros = list[AttentionOutput](), False
    for output in problem.outputs:
        chosen = made_by(finish, output.value)
        tested = None if chosen is None or chosen.op != "where" else made_by(finish, chosen.arguments[0])
        if chosen is not None and tested is not None:
            _, value, other = chosen.arguments
            named = (tested.op, tuple(bounds.get(each, "") for each in tested.arguments))
            if named in comparisons and isinstance(value, int) and isinstance(other, Constant):
                zeros = zeros or (output.kind == "exact" and float(other.text) == 0)
                output = replace(output, value=value)
        outputs.append(output)
    return replace(problem, outputs=tuple(outputs)), zeros


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The loaded bounds of keys: ids of the tensors of ``ranges`` by name, and how the ``length`` of a head is indexed."""

    ranges: dict[str, int]
    length: Indexed | None

    @property
    def ids(self) -> dict[str, int]:
        """The ids of the tensors of all bounds, by name."""
        return self.ranges | ({} if self.length is None else {LENGTHS: self.length.tensor.id})


def bounds_of(problem: AttentionProblem, read: Sequence[HostTensor]) -> Bounds | None:
    """Return the bounds of keys, which are the last tensors of those that are ``read``, or None for other forms of bounds."""
    ranges = {} if problem.key_range is None else _ranges(problem, read[len(read) - 2 :])
    length = None if problem.key_span is None else _length(problem, read[-1])
    unknown = problem.key_span is not None and length is None
    if ranges is None or unknown or (ranges and problem.loaded):
        return None
    return Bounds(ranges=ranges, length=length)


def _ranges(problem: AttentionProblem, tensors: Sequence[HostTensor]) -> dict[str, int] | None:
    """Return the ids of the tensors of both bounds of a range, each with a number for every query, or None for others."""
    found = problem.key_range
    if found is None or len(found.bounds) < 2 or found.shifts != (0, 0) or len(tensors) != 2:
        return None
    indexed = [indexed_source(tensor, source, problem) for tensor, source in zip(tensors, found.sources, strict=True)]
    if any(each is None or each.dims != ("rows",) for each in indexed) or tensors[0].dtype != tensors[1].dtype:
        return None
    return dict(zip(NAMES, (each.id for each in tensors), strict=True))


def _length(problem: AttentionProblem, tensor: HostTensor) -> Indexed | None:
    """Return how the numbers of keys of heads are indexed, by coordinates that queries and keys share, or None."""
    span, first = problem.key_span, len(problem.heads)
    if len(problem.loaded) != 1 or span is None or span.begin is not None or span.ends != (Place("axis", (first,)),):
        return None
    found = indexed_source(tensor, problem.loaded[0], problem)
    shared = {mode.at for matrix in (problem.k, problem.v) for mode in matrix.modes}
    return found if found is not None and all(dim == FIRST or dim in shared for dim in found.dims) else None


def with_heads(problem: AttentionProblem) -> AttentionProblem:
    """Return the problem with a dimension for each coordinate of keys and values, which may be rows of one matrix for TMA."""
    return replace(problem, k=_with_heads(problem.k, problem.heads), v=_with_heads(problem.v, problem.heads))


def _with_heads(matrix: Matrix, heads: Sequence[int]) -> Matrix:
    base = matrix.base
    axis, rows = (None, None) if base is None or base.op != "mul" else base.arguments
    if not isinstance(axis, Place) or axis.op != "axis" or not isinstance(rows, Place) or rows.op != "number":
        return matrix
    ((at,), (count,)) = axis.arguments, rows.arguments
    if not isinstance(at, int) or not isinstance(count, int):
        return matrix
    mode = Mode(size=heads[at], stride=count * matrix.pitch, at=axis)
    return replace(matrix, base=None, modes=(*matrix.modes, mode))
