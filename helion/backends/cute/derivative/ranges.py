"""Keys that queries see by integers which are loaded for each, as those of their sequence: the text of derived kernels.

Integers may have any order. A tile of keys reads the rows from the first one that may see one of them to the last. Other
rows between are hidden by their own integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...._compiler.ir.grammar import HostTensor
from ...._shapes import Expr
from ..plan.attention.records import AttentionOutput, AttentionProblem
from ..plan.epilogue import Constant
from .indexed import indexed_source
from .scores import made_by

NAMES = "begins", "ends"
"""The parameters of kernels with scores: the first key that each query sees, and the one after the last."""
OF_KEYS = "first_rows", "last_rows"
"""Those of kernels whose tiles are keys: the first query that may see each key, and the one after the last."""


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """The text that keys of ``is_loaded`` ranges have; all others are empty, and loops those over ``queries`` and ``keys``."""

    is_loaded: bool
    queries: str
    keys: str

    @property
    def parameters(self) -> tuple[str, ...]:
        return NAMES if self.is_loaded else ()

    @property
    def of_keys(self) -> tuple[str, ...]:
        return OF_KEYS if self.is_loaded else ()

    @property
    def loads(self) -> list[str]:
        """The line that loads the ranges of a tile of queries."""
        return ["first, last = begins[tile_m], ends[tile_m]"] if self.is_loaded else []

    @property
    def loads_of_keys(self) -> list[str]:
        return ["first_row, last_row = first_rows[tile_n], last_rows[tile_n]"] if self.is_loaded else []

    @property
    def seen(self) -> list[str]:
        """The conditions by which a query sees a key."""
        key = "tile_n.index[None, :]"
        return [f"({key} >= first[:, None])", f"({key} < last[:, None])"] if self.is_loaded else []

    @property
    def loop_of_keys(self) -> str:
        return "hl.tile(torch.amin(first), torch.amax(last))" if self.is_loaded else f"hl.tile({self.keys})"

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

    def product(self, text: str) -> str:
        """Return products of rows, 0 for those without keys, whose outputs may be no numbers."""
        return f"torch.where((begins[tile_m] < ends[tile_m])[:, None], {text}, 0.0)" if self.is_loaded else text

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


def loaded_ranges(problem: AttentionProblem, tensors: Sequence[HostTensor]) -> dict[str, int] | None:
    """Return the ids of the tensors of both bounds of a range, each with a number for every query, or None for others."""
    found = problem.key_range
    if found is None or len(found.bounds) < 2 or found.shifts != (0, 0) or len(tensors) != 2:
        return None
    indexed = [indexed_source(tensor, source, problem) for tensor, source in zip(tensors, found.sources, strict=True)]
    if any(each is None or each.dims != ("rows",) for each in indexed) or tensors[0].dtype != tensors[1].dtype:
        return None
    return dict(zip(NAMES, (each.id for each in tensors), strict=True))
