"""Arithmetic that several heuristics share: sizes, waves and eviction."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar

from ...._compiler.facts.records import AxisFact, KernelFacts, MemoryOpFact
from ...._shapes import cdiv, previous_power_of_2
from ...._support.records import dataclass
from ....autotuner.proposal import Predicted
from ....hardware import Target
from ..resources.matrix import tile_shape
from ..resources.predict import predict
from .tuned import Tuned, tuned

#: Least fields of a record, and its bytes: lanes share lines of shorter ones anyway, and longer ones share no line.
_FIELDS, _RECORD_BYTES = 3, range(8, 65)


def clamp(size: int, axis: AxisFact) -> int:
    """Return ``size`` clamped to the range that the kernel itself allows for the axis."""
    high = axis.max_size if axis.max_size is not None else size
    return max(axis.min_size, min(size, high))


def all_sizes(
    facts: KernelFacts, block_sizes: Mapping[int, int], chunks: Mapping[int, int | None] | None = None
) -> dict[int, int]:
    """Return the size of every axis.

    Tiles have the given size, else their smallest. Whole dimensions have the size in ``chunks``, else the padded one.
    Sizes decided by a tunable of the kernel are as given, else its default.
    """
    sizes: dict[int, int] = {}
    for axis in facts.axes:
        if axis.kind == "tile":
            sizes[axis.block_id] = block_sizes.get(axis.block_id, axis.min_size)
        elif axis.kind == "full":
            chunk = (chunks or {}).get(axis.block_id)
            sizes[axis.block_id] = max(1, axis.padded) if chunk is None else chunk
        else:
            sizes[axis.block_id] = block_sizes.get(axis.block_id, axis.size or 1) if axis.choices else axis.size or 1
    return sizes


def is_chosen(axis: AxisFact) -> bool:
    """Return whether a config decides the size: a tile, or a size that follows from a tunable of the kernel."""
    return axis.tunable or bool(axis.choices)


def nearest_size(size: int, axis: AxisFact) -> int:
    """Return ``size`` clamped to the allowed range, or the nearest size that the axis's tunable gives."""
    if not axis.choices:
        return clamp(size, axis)
    return min((given for _, given in axis.choices), key=lambda given: abs(math.log2(max(1, given) / size)))


def tiles(facts: KernelFacts, sizes: Mapping[int, int]) -> dict[int, int]:
    """Return the sizes that are slots of ``block_sizes``; ``tunables`` gives the others."""
    return {axis: size for axis, size in sizes.items() if facts.axes[axis].tunable}


def tunables(facts: KernelFacts, sizes: Mapping[int, int]) -> dict[str, object]:
    """Return the values of the kernel's tunables that give the sizes; of several values for one size, the first."""
    return {
        axis.chosen_by: next(value for value, size in axis.choices if size == sizes[axis.block_id])
        for axis in facts.axes
        if axis.choices and axis.block_id in sizes
    }


def estimate(
    facts: KernelFacts,
    target: Target,
    block_sizes: Mapping[int, int],
    num_warps: int,
    num_stages: int,
    chunks: Mapping[int, int | None] | None = None,
) -> Predicted:
    """Return the prediction for a launch with these sizes."""
    return predict(facts, all_sizes(facts, block_sizes, chunks), num_warps, num_stages, target)


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "sizing"

    #: Bytes that an SM keeps in flight from which threads take several vectors each, and rows fewer threads.
    wide_in_flight_bytes: int


def has_wide_memory(target: Target) -> bool:
    """Return whether memory needs so many bytes in flight per SM that each thread takes several vectors."""
    return target.in_flight_bytes >= tuned(_Numbers).wide_in_flight_bytes


#: Rows per warp of the asynchronous matrix unit, and the fewest warps that it takes.
WARP_ROWS, _GROUP_WARPS = 16, 4


def most_warps(facts: KernelFacts, sizes: Mapping[int, int], target: Target) -> int:
    """Return the warps beyond which chained matmuls would have fewer rows than each warp takes."""
    most = target.max_threads_per_block // target.warp_size
    if not target.has("wgmma"):
        return most
    rows = (tile_shape(fact, all_sizes(facts, sizes))[0] for fact in facts.matmuls if fact.chained)
    return min((most, *(n // WARP_ROWS for n in rows if n >= WARP_ROWS * _GROUP_WARPS)))


Sizes = dict[int, int]
Chunks = dict[int, int | None]


def halve(
    able: Sequence[int],
    sizes: Sizes,
    chunks: Chunks,
    facts: KernelFacts,
    short: Callable[[Sizes, Chunks], tuple[float, ...]],
) -> tuple[Sizes, Chunks] | None:
    """Return ``sizes`` and ``chunks`` with the axes of ``able`` halved that lower ``short`` the most.

    It halves one axis. It halves two or all where several places have the same pressure and no single axis lowers it.
    It halves the largest where nothing helps, and returns None without axes to halve.
    """
    if not able:
        return None
    now = all_sizes(facts, sizes, chunks)

    def halved(axes: Iterable[int]) -> tuple[Sizes, Chunks]:
        half = {axis: now[axis] // 2 for axis in axes}
        return (
            sizes | {axis: size for axis, size in half.items() if axis not in chunks},
            chunks | {axis: size for axis, size in half.items() if axis in chunks},
        )

    before = short(sizes, chunks)
    for together in sorted({1, min(2, len(able)), len(able)}):
        options = [halved(axes) for axes in itertools.combinations(able, together)]
        after = [short(*option) for option in options]
        if min(after) < before:
            return options[after.index(min(after))]
    return halved((max(able, key=lambda axis: (now[axis], axis)),))


def wave_efficiency(blocks: int, target: Target) -> float:
    """Return the fraction of the SMs' time that is used when ``blocks`` equal blocks run one per SM."""
    return blocks / (cdiv(blocks, target.num_sms) * target.num_sms)


def extent_of(axis: AxisFact) -> int:
    """Return the elements along the axis; its size, or 1, where the extent is not known."""
    return axis.extent if axis.extent is not None else axis.size or 1


def beside_short_rows(facts: KernelFacts, least_bytes: int) -> tuple[int, ...]:
    """Return the axes of tiles next to whole dimensions shorter than ``least_bytes``, such as the colours of a pixel.

    Rows of pixels are then contiguous. Loads may have another such axis than stores. Accesses without some axis of the
    grid, such as those of tables, do not count.
    """
    found: dict[int, None] = {}
    grid = {axis.block_id for axis in facts.tunable_axes}
    for op in facts.memory_ops:
        whole = [axis for axis in op.tile_axes if facts.axes[axis].kind == "full"]
        run = math.prod(extent_of(facts.axes[axis]) for axis in whole)
        if not whole or op.gathered or not grid <= set(op.tile_axes) or run * op.itemsize >= least_bytes:
            continue
        places = zip(op.subscript_axes, op.strides, op.scales, strict=True)
        beside = (a for a, stride, scale in places if a in op.tile_axes and stride * scale == run)
        found.update((axis, None) for axis in beside if axis is not None and facts.axes[axis].tunable)
    return tuple(found)


def record_bytes(facts: KernelFacts) -> int | None:
    """Return the bytes of the longest record, of which three loads or more take a field each; None without records.

    Such are points and matrices of few numbers. The lanes of a warp then read at strides of a record, and the loads of all
    fields share lines of memory. The L1 cache keeps them while a thread has one record (measurement ``record_fields``).
    """
    grid = {axis.block_id for axis in facts.tunable_axes}
    loads = [op for op in facts.memory_ops if op.kind == "load" and not op.gathered and grid <= set(op.tile_axes)]
    fields = Counter(op.name for op in loads)
    records = [_nearest(op) * op.itemsize for op in loads if fields[op.name] >= _FIELDS and _nearest(op) > 1]
    return max((size for size in records if size in _RECORD_BYTES), default=None)


def _nearest(op: MemoryOpFact) -> int:
    """Return the elements in memory from one element of a tile to the nearest other one."""
    places = zip(op.subscript_axes, op.strides, strict=True)
    return min((stride for axis, stride in places if axis in op.tile_axes), default=1)


def is_contiguous(axis: AxisFact, facts: KernelFacts) -> bool:
    """Return whether some tensor of two dimensions or more is contiguous along the axis.

    A row of one that nothing else moves, such as ``edges[0, tile]``, counts if no axis has another such access.
    """
    along = [
        (found, len(op.tile_axes) > 1 or len({each for each in op.subscript_axes if each is not None}) > 1)
        for op in (*facts.memory_ops, *facts.atomics)
        for found, stride in zip(op.subscript_axes, op.strides, strict=True)
        if found is not None and stride == 1 and op.rank > 1
    ]
    moved = any(moves for _, moves in along)
    return any(found == axis.block_id and moves >= moved for found, moves in along)


def grid_extent(facts: KernelFacts, root: int | None = None) -> int:
    """Return the product of the extents of all grid axes, or of those of one root."""
    axes = (facts.axes[a] for a in facts.grid_axes)
    return math.prod(extent_of(axis) for axis in axes if root is None or root in axis.roots)


def programs_of(facts: KernelFacts, sizes: Mapping[int, int], root: int | None = None) -> int:
    """Return the number of programs of one grid loop, or of all axes of the grid."""
    axes = [facts.axes[a] for a in facts.grid_axes if root is None or root in facts.axes[a].roots]
    return math.prod(cdiv(extent_of(axis), sizes.get(axis.block_id) or axis.size or 1) for axis in axes)


def warps_for_threads(threads: int, target: Target) -> int:
    """Return ``threads`` (of 32 lanes each, as on CUDA) as a legal number of the target's warps."""
    most = target.max_threads_per_block // target.warp_size
    return max(1, min(most, previous_power_of_2(threads // target.warp_size)))


def stream_loads(facts: KernelFacts) -> dict[int, str]:
    """Return the eviction policy "first" for every load, for kernels that read nothing twice."""
    return dict.fromkeys(_load_slots(facts), "first")


def keep_load(facts: KernelFacts, slot: int | None) -> dict[int, str]:
    """Return the eviction policies that keep the load in ``slot`` in the cache; empty without a slot."""
    slots = _load_slots(facts)
    return {} if slot is None else {s: "last" if s == slot else "first" for s in slots}


def _load_slots(facts: KernelFacts) -> tuple[int, ...]:
    return tuple(op.load_slot for op in facts.memory_ops if op.load_slot is not None)
