"""A product as its facts show it, for what is decided before a plan is made."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...._compiler.facts.records import KernelFacts, MatmulFact, MemoryOpFact
from ...._shapes import dtype_name
from ..plan.dtypes import itemsize
from ..plan.epilogue import Epilogue, EpilogueOperand, OperandKind
from ..plan.records import Batch, GemmProblem, Major


@dataclass(frozen=True, kw_only=True)
class ProductShape:
    """``problem`` has the right extents, dtypes, majors and operands, and no instructions in its epilogue. ``blocks`` are
    those of M, N and K; ``root`` is the number of the grid loop, None where that has one dimension. ``batch_block`` is that
    of tiles of a batch, which are of one product each."""

    problem: GemmProblem
    blocks: tuple[int, int, int]
    root: int | None
    batch_block: int | None = None

    @property
    def products(self) -> int:
        """Of one A."""
        return 1 + len(self.problem.epilogue.of_kind("product"))

    @property
    def flops(self) -> int:
        return 2 * self.problem.batches * self.problem.m * self.problem.n * self.problem.k * self.products

    @property
    def bytes_moved(self) -> int:
        """From and to memory, each tensor once."""
        problem = self.problem
        a, b = (problem.batches if problem.batch_pitch(name) or not problem.batch else 1 for name in ("a", "b"))
        operands = (a * problem.m + b * self.products * problem.n) * problem.k * itemsize(problem.operand_dtype)
        exact = sum(itemsize(each.dtype) for each in problem.epilogue.of_kind("exact"))
        return operands + problem.batches * problem.m * problem.n * (itemsize(problem.output_dtype) + exact)


def shape_of(facts: KernelFacts) -> ProductShape | str:
    """The product of a kernel, or why its facts show none."""
    if len(facts.matmuls) not in (1, 2):
        return f"the kernel has {len(facts.matmuls)} matrix products, not one or two"
    fact, *others = facts.matmuls
    if any((each.m_block_id, each.n_block_id, each.k_block_id) != _blocks(fact) for each in others):
        return "the two products of the kernel have different tiles"
    m, n, k = fact.static_m, fact.static_n, fact.static_k
    if fact.m_block_id is None or fact.n_block_id is None or fact.k_block_id is None:
        return "M, N and K of the product are not three tiles"
    if m is None or n is None or k is None:
        return "an extent of the product is not known when the kernel is compiled"
    stores = [op for op in facts.memory_ops if op.kind == "store"]
    if len(stores) != 1:
        return f"the kernel has {len(stores)} stores, not one"
    axes = (fact.m_block_id, fact.n_block_id)
    if (
        tuple(axis for axis in stores[0].subscript_axes if axis in axes) == axes[::-1]
    ):  # the product is that of the transposed factors
        axes, (m, n) = axes[::-1], (n, m)
    swapped = axes[0] != fact.m_block_id
    layouts = (fact.rhs_layout, fact.lhs_layout) if swapped else (fact.lhs_layout, fact.rhs_layout)
    majors: list[Major] = ["k" if layout == "k_major" else "mn" for layout in layouts]
    problem = GemmProblem(
        m=m,
        n=n,
        k=k,
        operand_dtype=dtype_name(fact.lhs_dtype),
        output_dtype=dtype_name(stores[0].dtype),
        a_pitch=_pitch(majors[0], m, k),
        b_pitch=_pitch(majors[1], n, k),
        d_pitch=_even(n),
        a_major=majors[0],
        b_major=majors[1],
        epilogue=Epilogue(operands=(*_second(others, _pitch(majors[1], n, k)), *_operands(facts, axes))),
    )
    blocks = (*axes, fact.k_block_id)
    slots = (fact.rhs_slot, fact.lhs_slot) if swapped else (fact.lhs_slot, fact.rhs_slot)
    number = facts.regions[fact.region].root
    dimensions = next(len(region.axes) for region in facts.regions if region.root == number and region.parent is None)
    batch = [axis for axis in facts.axes if axis.block_id not in blocks]
    if len(batch) > 1 or any(axis.extent is None for axis in batch):
        return "beside M, N and K there are more dimensions than that of a batch"
    size = (batch[0].extent or 1) if batch else 1
    return ProductShape(
        problem=dataclasses.replace(problem, batch=_batch(facts, slots, problem, size) if size > 1 else None),
        blocks=blocks,
        root=number if dimensions > 1 else None,
        batch_block=batch[0].block_id if batch and batch[0].kind == "tile" else None,
    )


def _batch(facts: KernelFacts, slots: tuple[int | None, int | None], problem: GemmProblem, size: int) -> Batch:
    """Operands, loaded in ``slots``, of which all products read one matrix have a stride of 0."""

    def pitch(slot: int | None, matrix: int) -> int:
        op = next((op for op in facts.memory_ops if op.slot == slot and op.kind == "load"), None)
        return 0 if op is not None and op.accessed_numel <= matrix else _even(matrix)

    m, n, k = problem.m, problem.n, problem.k
    return Batch(
        size=size,
        a=pitch(slots[0], m * k),
        b=pitch(slots[1], n * k),
        d=_even(m * problem.d_pitch),
        operands=tuple(0 for _ in problem.epilogue.operands),
    )


def _blocks(fact: MatmulFact) -> tuple[int | None, int | None, int | None]:
    return fact.m_block_id, fact.n_block_id, fact.k_block_id


def _pitch(major: Major, other: int, k: int) -> int:
    return _even(k if major == "k" else other)


def _even(line: int) -> int:
    """A pitch that the copy engine takes, whatever the dtype; the problem itself was checked before."""
    return -(-line // 16) * 16


def _second(others: Sequence[MatmulFact], pitch: int) -> Iterator[EpilogueOperand]:
    for other in others:
        name, dtype = f"product_{other.number}", dtype_name(other.rhs_dtype)
        yield EpilogueOperand(name=name, kind="product", dtype=dtype, pitch=pitch)


def _operands(facts: KernelFacts, axes: tuple[int, int]) -> Iterator[EpilogueOperand]:
    seen: set[tuple[int, tuple[int | None, ...]]] = set()
    multiplied = {slot for each in facts.matmuls for slot in (each.lhs_slot, each.rhs_slot)}
    for op in facts.memory_ops:
        key = (op.storage, op.subscript_axes)
        if op.kind == "load" and op.slot not in multiplied and key not in seen:
            seen.add(key)
            kind = _kind(op, axes)
            pitch = _even(facts.axes[axes[1]].extent or 0) if kind == "exact" else 1
            yield EpilogueOperand(name=f"operand_{op.slot}", kind=kind, dtype=dtype_name(op.dtype), pitch=pitch)


def _kind(op: MemoryOpFact, axes: tuple[int, int]) -> OperandKind:
    along = {axis for axis, stride in zip(op.subscript_axes, op.strides, strict=True) if stride}
    if set(axes) <= along:
        return "exact"
    return "column" if axes[0] in along else "row"
