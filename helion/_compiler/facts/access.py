"""Facts of one access of memory, and of one scan or sort."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Literal

import torch

from ..._support.records import dataclass
from ..passes.analysis.row_windows import SharedRows

#: Of a stride passed at launch, compilers know only whether it is a multiple of this.
_KNOWN_MULTIPLE = 16


@dataclass(frozen=True, kw_only=True)
class MemoryOpFact:
    """One load, store or atomic, in program order. ``slot`` is its number there; atomics have their own numbering.

    - ``subscript_axes``: for each subscript, the axis whose indices it holds, possibly through affine arithmetic; None
      for scalars and gathers.
    - ``strides``, ``extents``: those of the host tensor, in elements.
    - ``scales``: the factor of the index of each subscript, such as 2 for ``x[2 * tile.index]`` and ``x[2]``.
    - ``tile_axes``: the axes of the accessed tile.
    - ``accessed_numel``: the number of different elements that all programs access; dimensions of stride 0 count once.
    - ``matmul_operand``: ``lhs`` or ``rhs`` when the load feeds a dot through at most casts, views and one-operand ops.
    - ``reductions_fed``: per axis, the number of reductions that the value reaches without crossing another reduction.
    - ``feeds_store``: true if the value reaches a store in that way.
    - ``looped``: per axis that can be rolled, the number of times that a load of a row is repeated in chunks.
    - ``cast_itemsize``: the bytes of an element in memory, or of its converted dtype if that is wider.
    - ``place``: bytes after a multiple of 16 at which the tensor begins, for arguments that begin at multiples.
    - ``static``: true if strides and extents are compile-time constants; otherwise they are those seen when binding.
    - ``row_major``: true if strides are those of one run in row-major order in every call.
    - ``run``: true for an access of one run in memory whose elements a flattened grid visits in order.
    - ``after``: the number of dots that precede the access.
    - ``quotients``: axes with the constants that subscripts divide their indices by, such as 64 for ``tile.index // 64``.
      So many neighbours along the axis access one element.
    - ``steps``: for computed subscripts, the mean distance in memory of neighbours along each axis, in elements; empty for
      those that data selects, and for accesses that are not gathered.
    - ``bins``: the elements among which an atomic adds a number to each that a tile of indices selects; else 0.
    - ``summed``: true if each lane adds a value of its own to its bin; otherwise all add the same number.
    - ``atomic``: the operation of an atomic, such as ``add``; else empty.
    - ``per_tile``: true for a store into a tensor whose size depends on that of tiles, such as sums of each tile. Unless
      the kernel loads it, host code reads all of it after the launch.
    """

    slot: int
    load_slot: int | None
    kind: Literal["load", "store", "atomic"]
    storage: int
    name: str
    dtype: torch.dtype
    region: int
    tile_axes: tuple[int, ...]
    subscript_axes: tuple[int | None, ...]
    strides: tuple[int, ...]
    extents: tuple[int, ...]
    scales: tuple[int, ...]
    gathered: bool
    accessed_numel: int
    matmul_operand: Literal["lhs", "rhs"] | None
    reductions_fed: tuple[tuple[int, int], ...]
    feeds_store: bool
    looped: tuple[tuple[int, int], ...] = ()
    cast_itemsize: int = 0
    place: int = 0
    static: bool = True
    row_major: bool = False
    run: bool = False
    after: int = 0
    quotients: tuple[tuple[int, int], ...] = ()
    bins: int = 0
    summed: bool = False
    steps: tuple[tuple[int, float], ...] = ()
    atomic: str = ""
    per_tile: bool = False

    @functools.cached_property
    def itemsize(self) -> int:
        """Bytes of one element in memory."""
        return self.dtype.itemsize

    @functools.cached_property
    def inner_axis(self) -> int | None:
        """Axis along which neighbours of the tile are neighbours in memory."""
        for axis, stride in zip(self.subscript_axes, self.strides, strict=True):
            if stride == 1 and axis in self.tile_axes:
                return axis
        return None

    @functools.cached_property
    def aligned(self) -> int:
        """Elements of which rows along the inner axis begin at multiples, 0 for any number.

        It is 1 without neighbours, and where strides that are passed at launch are odd for all that is known of them. So it is
        for views that do not begin at a multiple of 16 bytes, of which compilers know nothing else.
        """
        if self.place:
            return 1
        if self.run:
            return 0
        inner, aligned = self.inner_axis, 0
        for axis, stride, scale in zip(self.subscript_axes, self.strides, self.scales, strict=True):
            unknown = not self.static and stride > 1 and stride % _KNOWN_MULTIPLE != 0
            if unknown or inner is None or (axis == inner and stride == 1 and scale != 1):
                return 1
            if axis != inner:
                aligned = math.gcd(aligned, stride * scale)
        return aligned

    @functools.cached_property
    def step(self) -> int:
        """The largest step between neighbours of the tile along one dimension of the tensor, in its elements."""
        scales = zip(self.subscript_axes, self.scales, strict=True)
        return max((scale for axis, scale in scales if axis is not None), default=1)

    @property
    def rank(self) -> int:
        return len(self.strides)

    def is_one_run(self, extents: Mapping[int, int | None], parts: int = 1) -> bool:
        """Return whether the accessed elements are contiguous in memory, in row-major order of ``extents``.

        Each element has so many ``parts``, such as those of complex numbers, of which an access takes one.
        """
        following = parts
        for axis, extent in tuple(extents.items())[::-1]:
            places = [at for at, each in enumerate(self.subscript_axes) if each == axis]
            if not (self.static or self.row_major) or self.gathered or extent is None or len(places) != 1:
                return False
            (at,) = places
            if extent > 1 and (self.strides[at] != following or self.extents[at] != extent or self.scales[at] != 1):
                return False
            following *= extent
        return following == parts * self.accessed_numel

    def has_run_of_vectors(self, extents: Mapping[int, int | None], vector_bytes: int) -> bool:
        """Return whether all elements are one run, or those of inner ``extents`` that begins at vectors."""
        return self.is_one_run(extents) or self.is_run_in_part(extents, vector_bytes)

    def is_run_in_part(self, extents: Mapping[int, int | None], vector_bytes: int) -> bool:
        """Return whether the innermost of ``extents`` are contiguous, and rows are aligned for vectors only as one run.

        All other strides are multiples of a vector.
        """
        if not self.static or self.gathered or self.place:
            return False
        following, merged, last = 1, list[int](), 1
        for axis, extent in tuple(extents.items())[::-1]:
            places = [at for at, each in enumerate(self.subscript_axes) if each == axis]
            if extent is None or len(places) != 1:
                break
            (at,) = places
            if extent > 1 and (self.strides[at] != following or self.scales[at] != 1):
                break
            last = last if merged else extent
            merged.append(at)
            following *= extent
        rest = [
            n
            for at, (n, size) in enumerate(zip(self.strides, self.extents, strict=True))
            if at not in merged and size > 1
        ]
        aligned = math.gcd(following, *rest) * self.itemsize % vector_bytes == 0
        return len(merged) > 1 and aligned and last * self.itemsize % vector_bytes != 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RowWindow(SharedRows):
    """Loads of tiles with ``axis`` in grid loop ``root``, in groups that differ by whole rows."""

    root: int
    axis: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ScanFact:
    """One prefix scan (``scan``), or reduction by a user's function (``fold``), along ``axis``.

    Its values span ``tile``, with ``itemsize`` bytes for each position, of all values together. One combination takes
    ``ops``, ``sfu_ops`` and ``polynomials`` of a ``WorkFact``.
    """

    kind: Literal["scan", "fold"]
    axis: int | None
    tile: tuple[int, ...] = ()
    itemsize: int = 0
    ops: int = 1
    sfu_ops: int = 0
    polynomials: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class SortFact:
    """One sort along ``axis`` of keys that span ``tile``, with ``itemsize`` bytes each."""

    axis: int | None
    tile: tuple[int, ...]
    itemsize: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ReducedTile:
    """Reductions of one name over one dimension of tiles of equal axes.

    ``at`` is the place of the reduced axis among ``axes``: both dimensions of a square matrix have the same axis.
    ``count`` are the reductions.
    """

    name: str
    axes: tuple[int, ...]
    at: int
    count: int
