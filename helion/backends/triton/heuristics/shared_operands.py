"""Loads that the rows of a thread share in elementwise kernels."""

from __future__ import annotations

from typing import ClassVar

from ...._compiler.facts.records import KernelFacts, MemoryOpFact
from ...._support.records import dataclass, replace
from ..proposal import TritonProposal
from ..resources.time.roots import SECTOR_BYTES
from .tuned import Tuned, tuned

#: Bytes that rows share, for each byte of their own, from which fewer warps with more rows each are tried.
_NEARLY = 0.75


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "pairs"

    #: Rows and columns of a program whose loads have one of both axes each, and its warps.
    rows: int
    columns: int
    warps: int


def pair_tile(tiles: TritonProposal, axis: int, first: int, facts: KernelFacts) -> TritonProposal | None:
    """Return a tile for pairs of rows and columns, where no load has both axes; None for other kernels.

    A thread loads what each axis has once for all of its elements (measurement ``pairs_of_elements``).
    """
    loads = [op for op in facts.memory_ops if op.kind == "load"]
    if facts.random_tiles or any({axis, first} <= set(op.tile_axes) or op.gathered for op in loads):
        return None
    numbers = tuned(_Numbers)
    rows, run = numbers.rows, numbers.columns
    if rows > facts.axes[axis].padded or run > facts.axes[first].padded:
        return None
    sizes = {**tiles.block_sizes, axis: rows, first: run}
    reason = f"{tiles.reason}, of {rows} x {run}: pairs of a thread share operands"
    return replace(tiles, reason=reason, block_sizes=sizes, num_warps=numbers.warps)


def sharing_rows(first: int, facts: KernelFacts) -> int | None:
    """Return the innermost axis whose tiles share loads of nearly as many bytes as those of their own accesses."""
    for axis in reversed(facts.tunable_axes):
        common, own = common_and_own(axis.block_id, first, facts)
        if axis.block_id != first and axis.extent != 1 and common and common >= _NEARLY * own:
            return None if _has_parts(axis.block_id, first, facts) else axis.block_id
    return None


def _has_parts(axis: int, first: int, facts: KernelFacts) -> bool:
    """Return whether tiles of rows are stored in parts of elements, as by ``x[rows, columns, 0]``.

    Each part is an access and a register of its own, and more rows multiply both (measurement ``rows_of_parts``).
    """
    tiled = (op for op in facts.memory_ops if not op.gathered and {axis, first} <= set(op.tile_axes))
    return any(op.inner_axis is None and op.kind == "store" for op in tiled)


def common_and_own(axis: int, first: int, facts: KernelFacts) -> tuple[int, int]:
    """Return the bytes of each element along ``first`` that loads move once for all tiles along ``axis``, and those that
    each tile moves.
    """
    accesses = [op for op in facts.memory_ops if first in op.tile_axes and not op.gathered]
    common = sum(_lane_bytes(op, first) for op in accesses if op.kind == "load" and axis not in op.tile_axes)
    own = sum(_lane_bytes(op, first) for op in accesses if op.kind != "load" or axis in op.tile_axes)
    return common, own


def _lane_bytes(op: MemoryOpFact, axis: int) -> int:
    """Return the bytes that an access moves for each element along an axis, unused ones of its sectors included."""
    at = op.subscript_axes.index(axis) if axis in op.subscript_axes else None
    step = 1 if at is None else max(1, op.strides[at] * max(1, op.scales[at]))
    return op.itemsize * min(step, max(1, SECTOR_BYTES // op.itemsize))
