"""Ways to load the operands of a matmul: pointers or tensor descriptors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ......_compiler.facts.records import KernelFacts, MatmulFact, MemoryOpFact
from ......_support.records import dataclass
from ......hardware import Target
from ....resources.matrix import ASYNC_ROWS, is_swapped, tile_shape
from ...tuned import tuned
from .tile_numbers import TileNumbers

#: Bytes of an element from which wgmma reads K-major operands alone.
WIDE_ITEMSIZE = 4
_ALIGNED_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class OperandAccess:
    """Ways to load the operands of a matmul.

    - ``aligned``: rows are aligned to the bytes of one vector.
    - ``descriptors_fit``: tensor descriptors may load the operands.
    - ``plain``: descriptors may load them, and are faster than pointers on a persistent grid.
    - ``descriptors_pay``: descriptors are faster than pointers on any grid.
    - ``slots``: the memory slots that descriptors load, whatever the tile.
    - ``wide_slots``: those that descriptors load where there are many large tiles.
    """

    aligned: bool
    descriptors_fit: bool
    plain: bool
    descriptors_pay: bool
    slots: frozenset[int]
    wide_slots: frozenset[int]


def operand_access(
    facts: KernelFacts, target: Target, *, plain: bool, narrow: bool, rewritten: bool, use_descriptors: bool
) -> OperandAccess:
    """Return the ways to load the operands of the kernel's first matmul.

    ``plain``: the kernel has this matmul alone, between constant bounds. ``narrow``: elements have less than
    ``WIDE_ITEMSIZE`` bytes. ``rewritten``: the facts are those of rewritten operands, which ``use_descriptors`` loads
    with descriptors.
    """
    numbers, fact = tuned(TileNumbers, target), facts.matmuls[0]
    operands = [op for op in facts.memory_ops if op.kind == "load" and op.slot in (fact.lhs_slot, fact.rhs_slot)]
    aligned = not any(_is_unaligned(op) for op in operands)
    static = all(op.static and not op.gathered for op in operands) and target.has("tensor_descriptor")
    fit = static and aligned
    computed = fact.lhs_prologue or fact.rhs_prologue or "strided" in (fact.lhs_layout, fact.rhs_layout)
    simple = plain and fit and not computed
    ragged = numbers.descriptors_for_ragged and not rewritten and _is_ragged(operands)
    masked = ragged and fit and (narrow or are_k_major(fact)) and not computed
    slots = frozenset(op.slot for op in operands)
    beside = _beside_elements(fact, operands, target) if plain and narrow and not rewritten else frozenset()
    tf32 = numbers.descriptors_for_tf32 and simple and are_k_major(fact) and not narrow
    return OperandAccess(
        aligned=aligned,
        descriptors_fit=fit,
        plain=simple and narrow,
        descriptors_pay=numbers.descriptors_along_k and simple and narrow and fact.rhs_layout == "k_major",
        slots=slots if use_descriptors or masked else beside,
        wide_slots=slots if tf32 else frozenset(),
    )


def _beside_elements(fact: MatmulFact, operands: Sequence[MemoryOpFact], target: Target) -> frozenset[int]:
    """Return the slot of B if A consists of single elements at computed places, as of a matrix of constant diagonals.

    The threads load A to registers, and the copies of B by the same threads would wait for it (measurement
    ``boxes_beside_elements``). Vectors of A, as of frames at a multiple of 16 bytes, are copied as well as B is.
    """
    left = [op for op in operands if op.slot == fact.lhs_slot and op.gathered]
    single = fact.lhs_layout == "strided" and any(reads_elements(op, fact) for op in left)
    if not (single and target.has("wgmma") and target.has("tensor_descriptor")) or fact.rhs_prologue:
        return frozenset()
    right = (op for op in operands if op.slot == fact.rhs_slot and op.slot != fact.lhs_slot)
    return frozenset(op.slot for op in right if op.static and not op.gathered and not _is_unaligned(op))


def reads_elements(op: MemoryOpFact, fact: MatmulFact) -> bool:
    """Return whether known steps of the index leave no aligned vectors along K."""
    steps = dict(op.steps)
    if fact.k_axis not in steps or fact.m_axis not in steps:
        return False
    return steps[fact.k_axis] != 1 or bool(steps[fact.m_axis] * op.itemsize % _ALIGNED_BYTES)


def boxed_operands(facts: KernelFacts, sizes: Mapping[int, int], target: Target) -> frozenset[int]:
    """Return the slots of operands of several matmuls that are faster with descriptors, with ``sizes`` of all axes.

    They are those of matmuls in loops along K whose right operand is K-major and whose tile the asynchronous unit takes
    (the adapters of benchmarks/results/nvidia-h200-variants.jsonl). Columns that the kernel fixes are wide (measurement
    ``fixed_sides``). A matmul of loads before the loop leaves it pointers (measurement ``boxed_after_product``).
    """
    if not (tuned(TileNumbers, target).descriptors_along_k and target.has("tensor_descriptor")):
        return frozenset()
    once = [fact for fact in facts.matmuls if facts.regions[fact.region].kind == "root"]
    if any(fact.lhs_slot is not None and fact.rhs_slot is not None for fact in once):
        return frozenset()
    found: set[int] = set()
    for fact in facts.matmuls:
        operands = [op for op in facts.memory_ops if op.kind == "load" and op.slot in (fact.lhs_slot, fact.rhs_slot)]
        fixed = [axis is not None and facts.axes[axis].kind == "fixed" for axis in (fact.m_axis, fact.n_axis)]
        wide_enough = tile_shape(fact, sizes)[1] >= 2 * ASYNC_ROWS
        sides = (fact.m_block_id is not None or fixed[0], fact.n_block_id is not None or (fixed[1] and wide_enough))
        tiled = all(sides) and fact.k_block_id is not None and fact.accumulator_loop is not None
        wide = max(fact.lhs_dtype.itemsize, fact.rhs_dtype.itemsize) >= WIDE_ITEMSIZE
        computed = fact.lhs_prologue or fact.rhs_prologue or fact.lhs_layout == "strided" or len(operands) < 2
        if not tiled or wide or computed or fact.rhs_layout != "k_major" or tile_shape(fact, sizes)[0] < ASYNC_ROWS:
            continue
        if all(op.static and not op.gathered and not _is_unaligned(op) for op in operands):
            found.update(op.slot for op in operands)
    return frozenset(found)


def boxes_beside_lines(facts: KernelFacts, sizes: Mapping[int, int], target: Target) -> frozenset[int]:
    """Return the slot of the rows of a matmul whose columns begin at a computed place, with ``sizes`` of all axes.

    Those are as the weights of a head in a matrix of all heads: `w[head * d + hl.arange(d), inner]`. Pointers load them,
    and a descriptor is faster for the rows (measurement ``boxes_beside_lines``).
    """
    if len(facts.matmuls) != 1 or not (
        tuned(TileNumbers, target).descriptors_along_k and target.has("tensor_descriptor")
    ):
        return frozenset()
    (fact,) = facts.matmuls
    rows, columns, _ = tile_shape(fact, sizes)
    fixed = fact.n_axis is not None and facts.axes[fact.n_axis].kind == "full" and columns >= 2 * ASYNC_ROWS
    tiled = fact.m_block_id is not None and fact.k_block_id is not None and fact.accumulator_loop is not None
    narrow = max(fact.lhs_dtype.itemsize, fact.rhs_dtype.itemsize) < WIDE_ITEMSIZE
    computed = fact.lhs_prologue or fact.rhs_prologue or not are_k_major(fact)
    if not (fixed and tiled and narrow) or computed or rows < 2 * ASYNC_ROWS:
        return frozenset()
    loads: dict[int | None, MemoryOpFact] = {op.slot: op for op in facts.memory_ops if op.kind == "load"}
    left, right = loads.get(fact.lhs_slot), loads.get(fact.rhs_slot)
    if left is None or right is None or left is right or left.gathered or not left.static or _is_unaligned(left):
        return frozenset()
    steps: dict[int | None, float] = dict(right.steps)
    aligned = steps.get(fact.n_axis, 1) * right.itemsize % _ALIGNED_BYTES == 0
    return frozenset((left.slot,)) if right.gathered and steps.get(fact.k_axis) == 1 and aligned else frozenset()


def count_operands(facts: KernelFacts) -> tuple[int, int]:
    """Return the number of left and right operands of matmuls: those of one load count once, and each computed one
    counts.
    """

    def count(slots: list[int | None]) -> int:
        return len({slot for slot in slots if slot is not None}) + slots.count(None)

    return count([fact.lhs_slot for fact in facts.matmuls]), count([fact.rhs_slot for fact in facts.matmuls])


def are_k_major(fact: MatmulFact) -> bool:
    """Return whether both operands are K-major, or A goes through registers."""
    return (fact.lhs_layout, fact.rhs_layout) == ("k_major", "k_major") or is_swapped(fact)


def _is_unaligned(op: MemoryOpFact) -> bool:
    return any(
        stride != 1 and (stride * op.itemsize % _ALIGNED_BYTES or not (op.static or stride % _ALIGNED_BYTES == 0))
        for stride in op.strides
    )


def _is_ragged(operands: Sequence[MemoryOpFact]) -> bool:
    """Return whether rows end within a vector: pointers mask single elements there, descriptors do not."""
    return any(
        stride == 1 and extent * op.itemsize % _ALIGNED_BYTES
        for op in operands
        for stride, extent in zip(op.strides, op.extents, strict=True)
    )
