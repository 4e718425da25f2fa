"""Blocks of K with scales, as facts describe them."""

from __future__ import annotations

from collections.abc import Sequence

from ...._compiler.facts.records import KernelFacts, MatmulFact, MemoryOpFact, RegionFact
from ...._shapes import dtype_name
from ..plan.records import SWIZZLE_BYTES
from ..plan.runtime import MAX_PROMOTE_K_TILES
from ..plan.scales import ATOM_BLOCKS, MICRO_FORMATS, SCALE_DTYPES, BlockScales, Scale, Side, micro_block


def fixed_size(facts: KernelFacts, block: int) -> int | None:
    """Return the tile size of a block, if the program sets it."""
    return next((axis.size for axis in facts.axes if axis.block_id == block and axis.kind == "fixed"), None)


#: Lines that share a scale where facts do not show their number.
SHARED_LINES = 128


def _loops(fact: MatmulFact, facts: KernelFacts) -> list[RegionFact]:
    """Return the loop over the tiles of K, and one over blocks of them, if any."""
    regions = {region.region: region for region in facts.regions}
    found = [regions[fact.region]]
    parent = found[0].parent
    if parent is not None and regions[parent].kind == "loop":
        (*axes,) = regions[parent].axes
        if all(facts.axes[axis].kind == "scalar" for axis in axes):
            found.append(regions[parent])
    return found


def blocks_of_k(fact: MatmulFact, facts: KernelFacts) -> tuple[int, ...]:
    """Return the axes of a loop over blocks of K."""
    return tuple(axis for region in _loops(fact, facts)[1:] for axis in region.axes)


def depth_of(fact: MatmulFact, facts: KernelFacts) -> int | None:
    """Return K of the left operand, for a loop over a block of it."""
    left = next((op for op in facts.memory_ops if op.slot == fact.lhs_slot and op.kind == "load"), None)
    if left is None or not left.static:
        return None
    return next((n for axis, n in zip(left.subscript_axes, left.extents, strict=True) if axis == fact.k_axis), None)


def scale_loads(fact: MatmulFact, facts: KernelFacts) -> list[MemoryOpFact]:
    """Return the loads other than operands in the loops over K, if there are such loops."""
    if fact.lhs_format:
        return [op for op in facts.memory_ops if op.kind == "load" and _has_micro_scales(op, fact)]
    if fact.k_axis is not None and facts.axes[fact.k_axis].kind == "full":
        return []
    regions = {region.region for region in _loops(fact, facts)}
    multiplied = {slot for each in facts.matmuls for slot in (each.lhs_slot, each.rhs_slot)}
    return [op for op in facts.memory_ops if op.kind == "load" and op.region in regions and op.slot not in multiplied]


def block_scales(fact: MatmulFact, facts: KernelFacts, axes: tuple[int, int], k: int) -> BlockScales | None:
    """Return scales per row and per column as far as facts show them: their presence, not their values."""
    found = scale_loads(fact, facts)
    if not found:
        return None
    if fact.lhs_format:
        return BlockScales(
            k=micro_block(MICRO_FORMATS.get(fact.lhs_format, ""), dtype_name(found[0].dtype)),
            factors=tuple(_micro_scale(found, axes, side) for side in ("row", "column")),
        )
    line = SWIZZLE_BYTES // fact.lhs_dtype.itemsize
    factors: dict[Side, Scale] = {}
    for op in sorted(found, key=lambda op: len(op.tile_axes), reverse=True):
        side: Side = "row" if axes[0] in op.tile_axes or "column" in factors else "column"
        whole = not set(axes) & set(op.tile_axes)
        lines = (fixed_size(facts, axes[1]) or SHARED_LINES) if whole or op.gathered else 1
        factors[side] = Scale(
            name=f"factor_{op.slot}",
            side=side,
            dtype=dtype_name(op.dtype),
            pitch=1,
            k_pitch=1,
            lines=lines,
            whole=whole,
        )
    size = max(line, min(_shared_along_k(fact, facts, found, k), MAX_PROMOTE_K_TILES * line))
    return BlockScales(k=size // line * line, factors=tuple(factors.values()))


def _has_micro_scales(op: MemoryOpFact, fact: MatmulFact) -> bool:
    """Return whether a load is of scales in a microscaling format: of all blocks of K of rows, or of columns."""
    sides = [axis for axis in op.subscript_axes if axis in (fact.m_axis, fact.n_axis)]
    multiplied = op.slot in (fact.lhs_slot, fact.rhs_slot)
    return not multiplied and dtype_name(op.dtype) in SCALE_DTYPES and len(op.subscript_axes) == 2 and len(sides) == 1


def _micro_scale(found: Sequence[MemoryOpFact], axes: tuple[int, int], side: Side) -> Scale:
    """Return scales of rows or columns, in rows that TMA could load."""
    axis = axes[side == "column"]
    names = [f"factor_{op.slot}" for op in found if axis in op.subscript_axes]
    return Scale(
        name="".join(names[:1]) or side, side=side, dtype=dtype_name(found[0].dtype), pitch=ATOM_BLOCKS, k_pitch=1
    )


def _shared_along_k(fact: MatmulFact, facts: KernelFacts, found: Sequence[MemoryOpFact], k: int) -> int:
    """Return the elements of K with one scale: those of a tile of known size, or from the extents of the scales."""
    for axis in blocks_of_k(fact, facts):
        return -(-k // (facts.axes[axis].extent or k))
    assert fact.k_axis is not None
    if (size := facts.axes[fact.k_axis].size) is not None:
        return size
    for op in found:
        blocks = [n for axis, n in zip(op.subscript_axes, op.extents, strict=True) if axis is None and n > 1]
        if len(blocks) == 1:
            return 1 << (-(-k // blocks[0]) - 1).bit_length()
    return SHARED_LINES
