"""Operands of a GEMM that warps copy or convert, as facts describe them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from ...._compiler.facts.records import KernelFacts, MatmulFact, MemoryOpFact
from ...._shapes import dtype_name
from ..plan.copied import Copied, CopySource, granule_of, raw_major
from ..plan.dtypes import per_byte
from ..plan.epilogue import EpilogueOperand, OperandKind
from ..plan.records import TMA_ALIGNMENT_BYTES, GemmProblem
from .picks import LINES, axis_of_pick, is_picked

#: Instructions of an element in special functions: the unit's four cycles, with range and scale, and those of a polynomial
#: more (erf has 26 in the SASS of ``packed_geglu``).
SPECIAL_OPS, POLYNOMIAL_OPS = 6, 12


def load_of(facts: KernelFacts, slot: int | None) -> MemoryOpFact | None:
    return next((op for op in facts.memory_ops if op.slot == slot and op.kind == "load"), None)


def multiplied_dtype(facts: KernelFacts, fact: MatmulFact) -> torch.dtype:
    """Return the type that the operands are multiplied in: 16-bit ones may be widened before the matmul."""
    held = {
        None if op is None else op.dtype for op in (load_of(facts, slot) for slot in (fact.lhs_slot, fact.rhs_slot))
    }
    (first, *others) = held
    return first if not others and first in (torch.bfloat16, torch.float16) else fact.lhs_dtype


def has_one_source(facts: KernelFacts, fact: MatmulFact) -> bool:
    """Return whether the operands of a matmul are computed from one tensor each. Others multiply products of groups of
    4-bit integers."""
    load = load_of(facts, fact.rhs_slot), load_of(facts, fact.lhs_slot)
    if any(op is not None and per_byte(dtype_name(op.dtype)) > 1 for op in load):
        return True
    slots = {op.slot for op in facts.memory_ops if op.kind == "load" and op.region == fact.region}
    return slots <= {fact.lhs_slot, fact.rhs_slot}


def copied_operands(facts: KernelFacts, fact: MatmulFact, operands: Sequence[EpilogueOperand]) -> Iterator[Copied]:
    """Yield the operands that warps copy, with their main source. A second B is copied if the first one is."""
    dtype = multiplied_dtype(facts, fact)
    for operand, slot, computed in (
        ("a", fact.lhs_slot, fact.lhs_prologue and fact.lhs_dtype == dtype),  # 16-bit ones that are widened stay
        ("b", fact.rhs_slot, fact.rhs_prologue and fact.rhs_dtype == dtype),
    ):
        op = load_of(facts, slot)
        picked = op is not None and is_picked(op)
        if op is not None and op.dtype == dtype and not computed and not picked and not _is_odd(op, fact.k_axis):
            continue
        along_k = op is not None and _stride(op, fact.k_axis) == 1
        kept = dtype_name(fact.lhs_dtype if op is None or computed else op.dtype)
        source = CopySource(
            name=f"source_{operand}", dtype=kept, pitch=0 if along_k else 1, k_pitch=1 if along_k else 2
        )
        granule = 0
        if op is not None and picked:
            of_k = axis_of_pick(op) == fact.k_axis
            source = replace(source, k_picked=1) if of_k else replace(source, picked=1)
            yield Copied(operand=operand, sources=(source,), lines=LINES)
            continue
        if op is not None and op.static and not computed and op.dtype == dtype:
            steps = [n for at, n in zip(op.subscript_axes, op.strides, strict=True) if at != fact.k_axis]
            granule = granule_of(replace(source, pitch=math.gcd(*steps)), 0)
            if source.k_pitch > 1 and 1 in steps and _is_contiguous(op):
                source = replace(source, k_pitch=math.gcd(_stride(op, fact.k_axis), *(n for n in steps if n != 1)))
        if op is not None and op.static and not _is_contiguous(op):
            lines = [
                n for at, n in zip(op.subscript_axes, op.strides, strict=True) if at in {*op.tile_axes} - {fact.k_axis}
            ]
            source = replace(source, pitch=min(lines, default=0), k_pitch=_stride(op, fact.k_axis))
        tiles = None if op is None or granule else _raw_source(op, fact, source, dtype)
        source = tiles or source
        yield Copied(operand=operand, sources=(source,), granule=granule, raw=tiles is not None)
        if operand == "b":
            seconds = [each.label for each in operands if each.kind == "product"]
            for label in seconds:
                yield Copied(operand=label, sources=(source,), granule=granule, raw=tiles is not None)


def sums_along_k(
    facts: KernelFacts, fact: MatmulFact, axes: tuple[int, int]
) -> Iterator[tuple[EpilogueOperand, Copied]]:
    """Yield the vectors of sums along K that the loop of a matmul carries: operands of the epilogue, and what is summed.

    ``axes`` are those of the lines and columns of the output.
    """
    for op in facts.memory_ops:
        lines = [axis for axis in op.subscript_axes if axis in axes]
        if (
            op.kind != "load"
            or op.region != fact.region
            or len(lines) != 1
            or fact.k_axis not in dict(op.reductions_fed)
        ):
            continue
        kind: OperandKind = "column" if lines == [axes[0]] else "row"
        operand = EpilogueOperand(name=f"sums_{op.slot}", kind=kind, dtype="float32", pitch=1)
        source = CopySource(
            name=f"summed_{op.slot}",
            dtype=dtype_name(op.dtype),
            pitch=_stride(op, lines[0]),
            k_pitch=_stride(op, fact.k_axis),
        )
        yield operand, Copied(operand=operand.label, sources=(source,))


def _raw_source(op: MemoryOpFact, fact: MatmulFact, source: CopySource, dtype: torch.dtype) -> CopySource | None:
    """Return the source of a copied operand as TMA loads it, or None. Operands of 8 and 32 bits have to be K-major."""
    if not op.static:
        return None
    along_k, others = _stride(op, fact.k_axis), []
    for at, step in zip(op.subscript_axes, op.strides, strict=True):
        others += [step] if at != fact.k_axis else []
    if along_k == 1:
        pitch, k_pitch = math.gcd(*others), 1
    elif _is_contiguous(op) and dtype.itemsize == 2:
        others.remove(1)
        pitch, k_pitch = 1, math.gcd(along_k, *others)
    else:
        return None
    found = replace(source, dtype=dtype_name(op.dtype), pitch=pitch, k_pitch=k_pitch)
    return found if raw_major(found, ()) is not None else None


def _stride(op: MemoryOpFact, axis: int | None) -> int:
    return next((n for at, n in zip(op.subscript_axes, op.strides, strict=True) if at == axis), 0)


def _is_odd(op: MemoryOpFact, k_axis: int | None) -> bool:
    """Return whether TMA cannot load tiles of a tensor for the matrix unit."""
    contiguous = _stride(op, k_axis) == 1 or (_is_contiguous(op) and op.itemsize == 2)
    steps = [n for n in op.strides if n != 1] if op.static else []
    return op.static and (not contiguous or any(n * op.itemsize % TMA_ALIGNMENT_BYTES for n in steps))


def _is_contiguous(op: MemoryOpFact) -> bool:
    """Return whether a tile has neighbors in memory, unlike one of a matrix whose neighbors are of other ones of a batch.

    Tiles of another loop over a dimension, and of indices that are computed, have axes that no subscript has.
    """
    others = {*op.tile_axes} - {*op.subscript_axes}
    subscripts = {*op.subscript_axes} - {*op.tile_axes}
    units = {axis for axis, step in zip(op.subscript_axes, op.strides, strict=True) if step == 1}
    if units & {*op.tile_axes}:
        return True
    return bool(units and others) and (None in units or len(others) == len(subscripts))


def is_strided(op: MemoryOpFact) -> bool:
    """Return whether a matrix has strides that TMA cannot take."""
    steps = [n for n, extent in zip(op.strides, op.extents, strict=True) if n != 1 and extent > 1]
    return op.static and (not _is_contiguous(op) or any(n * op.itemsize % TMA_ALIGNMENT_BYTES for n in steps))


def ends_in_a_granule(store: MemoryOpFact) -> bool:
    """Return whether rows of an output end within 16 bytes, which TMA stores whole."""
    rows = [extent for step, extent in zip(store.strides, store.extents, strict=True) if step == 1]
    return store.static and bool(rows) and rows[-1] * store.itemsize % TMA_ALIGNMENT_BYTES != 0


def products_of(facts: KernelFacts) -> tuple[MatmulFact, ...]:
    """Return the matmuls of the first loop that has any: others over the same columns recompute them, or are terms of
    sums."""
    (first, *_) = facts.matmuls
    return tuple(fact for fact in facts.matmuls if fact.region == first.region and not fact.chained)


def of_same_tiles(facts: KernelFacts) -> list[MatmulFact]:
    """Return the matmuls of all loops over K."""
    parents = {region.region: region.parent for region in facts.regions}
    return [each for each in facts.matmuls if parents[each.region] == parents[facts.matmuls[0].region]]


def more_terms(facts: KernelFacts) -> tuple[MatmulFact, ...]:
    """Return the first matmul of each further term that is added to the same accumulators: of one left operand, or of as
    many right ones."""
    products, found = products_of(facts), of_same_tiles(facts)
    first: dict[tuple[int, int | None, bool], MatmulFact] = {}
    for each in found:
        load = load_of(facts, each.lhs_slot)
        first.setdefault((each.region, None if load is None else load.storage, each.lhs_prologue), each)
    if any(each is not products[0] and each in products for each in first.values()):
        return tuple(first.values())[1:]
    return tuple([each for each in found if each not in products][:: len(products)])


def shared_bytes(facts: KernelFacts, problem: GemmProblem) -> int:
    """Return the bytes of an epilogue's matrices that a matmul of a batch reads after another one."""
    ops = {f"operand_{op.slot}": op for op in facts.memory_ops if op.kind == "load" and op.static}
    read = problem.repeats * problem.m * problem.n
    found = (
        ops[each.name] for each in problem.epilogue.operands if each.name in ops and each.kind in ("exact", "strided")
    )
    return sum(max(0, read - op.accessed_numel) * op.itemsize for op in found)


def element_ops(facts: KernelFacts) -> int:
    """Return the instructions of an epilogue for each element of the accumulators, besides the rounding of a store."""
    product, loops = facts.matmuls[0], {fact.region for fact in facts.matmuls}
    ops = sum(
        work.ops + SPECIAL_OPS * work.sfu_ops + POLYNOMIAL_OPS * work.polynomials
        for work in facts.work
        if work.region not in loops and {product.m_axis, product.n_axis} <= set(work.axes)
    )
    return max(0, ops - 1)
