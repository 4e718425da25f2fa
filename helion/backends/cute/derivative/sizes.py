"""The sizes of derived kernels as their source has them: numbers, or names of what each call gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..plan.attention.operands import Place
from ..plan.attention.records import AttentionProblem
from .indexed import FIRST, Indexed

DISTANCE = "tile_n.index[None, :] - tile_m.index[:, None]"


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The text of the sizes of an attention. With ``aligned`` they are names, which serve kernels for any sizes. Its flags say
    of the first and of the last key of the band, whether it is relative to the last key of all."""

    problem: AttentionProblem
    indexed: Mapping[str, Indexed]
    shared: tuple[int, ...]
    aligned: tuple[bool, bool] | None = None

    @property
    def heads(self) -> tuple[str, ...]:
        if self.aligned is None:
            return tuple(map(str, self.problem.heads))
        dims = self.indexed["q"].dims
        return tuple(f"size_h{at}" if Place("axis", (at,)) in dims else "1" for at in range(len(self.problem.heads)))

    @property
    def groups(self) -> tuple[str, ...]:
        """The sizes of the coordinates of keys."""
        if self.aligned is None:
            pairs = zip(self.problem.heads, self.shared, strict=True)
            return tuple(str(size // number) for size, number in pairs)
        named = zip(self.heads, self.shared, strict=True)
        return tuple(f"{name} // {number}" if number > 1 else name for name, number in named)

    @property
    def queries(self) -> str:
        return str(self.problem.queries) if self.aligned is None else "size_m"

    @property
    def keys(self) -> str:
        return str(self.problem.keys) if self.aligned is None else "size_n"

    @property
    def row(self) -> str:
        """The shape of tensors of one number for each query."""
        return f"[{', '.join((*self.heads, self.queries))}]"

    def shape(self, of: str) -> str:
        """Return the shape of the gradient of q, k or v, with the columns last."""
        own = self.indexed[of].own.ordered
        if self.aligned is None:
            return str(own.shape())
        rows = self.queries if of == "q" else self.keys
        named = {"rows": rows, "columns": str(own.sizes[-1])}
        sizes = self.heads if of == "q" else self.groups
        return f"[{', '.join(named[each] if isinstance(each, str) else _of(each, sizes) for each in own.dims)}]"

    def lines(self, *names: str) -> list[str]:
        """Return the lines that name the sizes in a kernel with these tensors, and make those of columns constants."""
        if self.aligned is None:
            return []
        first = "q" if "q" in names else "grad"
        dims = self.indexed[first].dims
        found = {name: dims.index(Place("axis", (at,))) for at, name in enumerate(self.heads) if name != "1"}
        texts = {name: f"{first}.size({at})" for name, at in found.items()}
        texts[self.queries] = f"{first}.size({dims.index('rows')})"
        if "k" in names:
            texts[self.keys] = f"k.size({self.indexed['k'].dims.index('rows')})"
        columns = ", ".join(f"{name}.size({self.indexed[name].columns})" for name in names)
        lines = [f"    {', '.join(texts)} = {', '.join(texts.values())}", f"    hl.specialize(({columns},))"]
        return [*lines, "    later = size_n - size_m"] if "k" in names and any(self.aligned) else lines

    def seen(self) -> str:
        """Return the text of a mask by the distance of key and query; nothing if all are seen."""
        band, (first, last) = self.problem.band, self.aligned or (False, False)
        parts = [f"({DISTANCE} <= {self._bound(band.last, last)})"] if band.last is not None else []
        parts += [f"({DISTANCE} >= {self._bound(band.first, first)})"] if band.first is not None else []
        return " & ".join(parts)

    def _bound(self, number: int, aligned: bool) -> str:
        if not aligned:
            return str(number)
        more = number - (self.problem.keys - self.problem.queries)
        return f"later + {more}" if more else "later"


def _of(place: Place, sizes: tuple[str, ...]) -> str:
    """Return the size of a dimension at a coordinate of a head, or of a group of heads."""
    if place == FIRST:
        return "1"
    axis = place.arguments[0]
    if isinstance(axis, Place):
        (axis,) = axis.arguments
    assert isinstance(axis, int)
    return sizes[axis]
