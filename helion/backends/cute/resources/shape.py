"""A GEMM as its facts describe it, for decisions before a plan is made."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch

from ...._compiler.facts.records import AxisFact, KernelFacts, MatmulFact, MemoryOpFact
from ...._shapes import dtype_name
from ...._support.records import dataclass, field, replace
from ..plan.chained.choice import MIDDLE_SLOT
from ..plan.copied import NIBBLE_GROUP, raw_major
from ..plan.counts import shares_rows
from ..plan.dtypes import itemsize, per_byte
from ..plan.epilogue import (
    MAX_PRODUCTS,
    Epilogue,
    EpilogueOperand,
    EpilogueOutput,
    Instruction,
    OperandKind,
    OutputKind,
)
from ..plan.finish import with_most_rows
from ..plan.operands import gains_by_turning, stores_along_m
from ..plan.records import Batch, GemmProblem, Groups, Major, Term
from ..plan.scales import MICRO_FORMATS, Ends
from .groups import groups_of_blocks, has_groups_of_k, rows_of_groups, without_offsets
from .panels import with_panels
from .picks import LINES, is_picked, with_column_pairs, with_picks
from .scales import block_scales, blocks_of_k, depth_of, fixed_size, scale_loads
from .sources import (
    copied_operands,
    element_ops,
    ends_in_a_granule,
    has_one_source,
    is_strided,
    load_of,
    more_terms,
    multiplied_dtype,
    of_same_tiles,
    products_of,
    shared_bytes,
    sums_along_k,
)


@dataclass(frozen=True, kw_only=True)
class ProductShape:
    """A GEMM from facts. ``problem`` has the right extents, dtypes, majors, operands and outputs. Of its epilogue it
    has the reductions, with their dependences.

    ``blocks`` are those of M, N and K, of which N is no tile where programs hold ``whole_rows``. ``root`` is the number
    of the grid loop, None if it has one dimension. ``batch_blocks`` are those of batch tiles, of one matmul each.
    """

    problem: GemmProblem
    blocks: tuple[int, int, int]
    root: int | None
    whole_rows: bool = False
    batch_blocks: tuple[int, ...] = ()
    fixed: Mapping[int, int] = field(default_factory=dict)
    """Tile sizes that the program sets, by block."""
    depth: int | None = None
    """K of a tile, if the program has all of K at once."""
    element_ops: int = 0
    """Instructions of the epilogue for each element of D."""
    shared_bytes: int = 0
    """Bytes of an epilogue's matrices that another matmul of the batch has read."""

    def allows(self, tile: tuple[int, int, int]) -> bool:
        """Return whether a tile has the extents that the program sets."""
        return all(self.fixed.get(block, side) == side for block, side in zip(self.blocks, tile, strict=True))

    @property
    def products(self) -> int:
        """Matmuls of one A."""
        return 1 + len(self.problem.epilogue.of_kind("product"))

    @property
    def flops(self) -> int:
        depth = self.problem.k + sum(term.k for term in self.problem.terms)
        return 2 * self.problem.repeats * self.problem.m * self.problem.n * depth * self.products

    @property
    def bytes_moved(self) -> int:
        """Bytes from and to global memory, each tensor once."""
        return bytes_moved(self.problem) - self.shared_bytes


def _by_columns(fact: MatmulFact) -> bool:
    """Return whether a matmul multiplies a middle in a loop over columns, which is no dimension of the program's own grid."""
    return MIDDLE_SLOT in (fact.lhs_slot, fact.rhs_slot)


@functools.lru_cache(maxsize=256)
def bytes_moved(problem: GemmProblem) -> int:
    """Return the bytes from and to global memory, each tensor once."""
    a, b = (problem.batches if any(problem.batch_pitches(name)) or not problem.batch else 1 for name in ("a", "b"))
    a = a if problem.groups is None else 1
    seconds = [each.label for each in problem.epilogue.of_kind("product")]
    sides = (("a", a * problem.m), ("b", b * problem.n), *((label, b * problem.n) for label in seconds))
    depth = problem.k + sum(term.k for term in problem.terms)
    loaded = {label: problem.loaded_dtype(label) for label, _ in sides}
    operands = sum(lines * depth * itemsize(loaded[label]) // per_byte(loaded[label]) for label, lines in sides)
    read = (each for kind in ("exact", "strided") for each in problem.epilogue.of_kind(kind))
    exact = sum(itemsize(each.dtype) for each in read)
    stored = sum(itemsize(each.dtype) for each in problem.matrices)
    return operands + problem.repeats * problem.m * problem.n * (stored + exact)


@dataclass(frozen=True, kw_only=True)
class _Sides:
    """Properties that the matmuls of a kernel share. ``nested``: K is processed in blocks, each by an inner loop.
    ``grouped``: loops go over the rows of groups, whose number data decide. ``held``: dots have all of K at once."""

    fact: MatmulFact
    others: Sequence[MatmulFact]
    extents: tuple[int, int, int]
    rows: int
    columns: int
    inner: int
    whole: int | None
    nested: bool
    grouped: bool = False
    held: bool = False
    terms: Sequence[MatmulFact] = ()
    parts: int | None = None
    """The axis of the grid over parts of K, if there is one."""
    of_groups: bool = False
    """True if each matmul of the batch has the K of its group."""


def shape_of(facts: KernelFacts) -> ProductShape | str:
    """Return the GEMM of a kernel, or the reason why its facts show none."""
    facts = with_panels(with_column_pairs(with_picks(facts)))
    sides = _sides(facts)
    if isinstance(sides, str):
        return sides
    facts = facts if sides.whole is None else _with_rows(facts, sides.columns)
    axes = (sides.rows, sides.columns)
    stores = _stores(facts, axes)
    if isinstance(stores, str):
        return stores
    if sides.whole is None and _lines(stores[0], axes) == axes[::-1]:  # the GEMM of the transposed operands
        axes = axes[::-1]
    batch = _batch_axes(facts, sides, (*axes, sides.inner))
    if any(axis.extent is None or not (axis.on_grid or axis.kind == "scalar") for axis in batch):
        return "there are more dimensions than M, N, K and those of a batch"
    number = facts.regions[sides.fact.region].root
    dimensions = next(len(region.axes) for region in facts.regions if region.root == number and region.parent is None)
    problem = _problem(facts, sides, axes, stores)
    turns = _turns(facts, sides, batch)
    if turns and not batch and stores_along_m(problem):
        axes = axes[::-1]
        problem = _stored_along_m(_problem(facts, sides, axes, stores))
    elif turns and gains_by_turning(problem):
        axes = axes[::-1]
        problem = _stored_by_threads(_problem(facts, sides, axes, stores))
    problem = _with_batch(facts, sides, axes, problem, batch)
    blocks, grouped = (*axes, sides.inner), sides.whole is None or shares_rows(problem)
    return ProductShape(
        problem=problem,
        blocks=blocks,
        root=number if dimensions > 1 and grouped and not _by_columns(sides.fact) else None,
        whole_rows=sides.whole is not None,
        batch_blocks=tuple(axis.block_id for axis in batch if axis.kind == "tile")
        + _tiles(facts, sides.parts, *(each.k_axis for each in sides.terms if each.k_axis != sides.fact.k_axis)),
        element_ops=element_ops(facts),
        shared_bytes=shared_bytes(facts, problem),
        depth=problem.line if sides.held else NIBBLE_GROUP if any(each.is_packed for each in problem.copied) else None,
        fixed={
            block: size for block in blocks if block != sides.whole and (size := fixed_size(facts, block)) is not None
        },
    )


def _sides(facts: KernelFacts) -> _Sides | str:
    """Return the sides of the one matmul, or of several of the same tiles; or the reason why there is none."""
    if not facts.matmuls:
        return "the kernel has no matmul"
    fact, *others = products_of(facts)
    if len(others) >= MAX_PRODUCTS:
        return f"the kernel has {1 + len(others)} matmuls, not one to {MAX_PRODUCTS}"
    if any(_axes(each) != _axes(fact) for each in others):
        return "the matmuls of the kernel have different tiles"
    nested = bool(blocks_of_k(fact, facts))
    m, n = (_extent(facts, axis) for axis in (fact.m_axis, fact.n_axis))
    all_rows = rows_of_groups(fact, facts)
    parts = _parts_of_k(facts, fact)
    k = depth_of(fact, facts) if nested or parts is not None else _extent(facts, fact.k_axis)
    whole = _whole_axis(fact, facts)
    rows, inner = _tile(facts, fact.m_axis), _tile(facts, fact.k_axis)
    held = fact.k_axis is not None and facts.axes[fact.k_axis].kind == "full"
    inner = facts.axes[fact.k_axis].block_id if held and fact.k_axis is not None else inner
    columns = _tile(facts, fact.n_axis) if whole is None else whole
    if rows is None or columns is None or inner is None:
        return "M, N and K of the matmul are not three tiles, nor is N a whole dimension"
    m = m if all_rows is None else all_rows
    if m is None or n is None or k is None:
        return "an extent of the matmul depends on data"
    return _Sides(
        fact=fact,
        others=others,
        extents=(m, n, k),
        rows=rows,
        columns=columns,
        inner=inner,
        whole=whole,
        nested=nested,
        grouped=all_rows is not None,
        held=held,
        terms=more_terms(facts),
        parts=parts,
        of_groups=has_groups_of_k(facts, fact),
    )


def _parts_of_k(facts: KernelFacts, fact: MatmulFact) -> int | None:
    """Return the axis of the grid whose programs each add a part of K by atomics."""
    if fact.k_axis is None or facts.axes[fact.k_axis].extent is not None:
        return None
    accessed = (*facts.memory_ops, *facts.atomics)
    indexed = {axis for op in accessed for axis in (*op.subscript_axes, *op.tile_axes)}
    rest = [at for at, axis in enumerate(facts.axes) if axis.on_grid and at not in indexed]
    return rest[0] if len(rest) == 1 and all(op.kind != "store" for op in accessed) else None


def _stores(facts: KernelFacts, axes: tuple[int, int]) -> list[MemoryOpFact] | str:
    """Return one store of each output, matrices first; or the reason why they are no outputs of a GEMM."""
    stored = [*(op for op in facts.memory_ops if op.kind == "store"), *facts.atomics]
    stores = [*{(op.storage, op.slot if _is_part(op) else None): _indexed(op) for op in stored}.values()]
    stores.sort(key=lambda store: len(_walked(store, axes)), reverse=True)
    if not stores or any(_walked(store, axes) not in (axes, axes[::-1], axes[:1]) for store in stores):
        return "the kernel stores something other than tiles of the matmul, or numbers per row"
    return stores


def _indexed(store: MemoryOpFact) -> MemoryOpFact:
    """Return a store with the axis of the only tile index that is computed, such as of ``out[row, head * 64 + column]``."""
    rest = [axis for axis in store.tile_axes if axis not in store.subscript_axes]
    if len(rest) != 1 or store.subscript_axes.count(None) != 1:
        return store
    return replace(store, subscript_axes=tuple(rest[0] if axis is None else axis for axis in store.subscript_axes))


def _is_part(store: MemoryOpFact) -> bool:
    """Return whether it may store a part of the tensor, of which others store the rest."""
    return _indexed(store) != store or store.accessed_numel < math.prod(store.extents)


def _problem(facts: KernelFacts, sides: _Sides, axes: tuple[int, int], stores: Sequence[MemoryOpFact]) -> GemmProblem:
    """Return the problem of one matmul of a batch; ``axes`` are those of the lines and columns of its first output."""
    fact, (m, n, k) = sides.fact, sides.extents
    layouts = fact.lhs_layout, fact.rhs_layout
    if axes[0] != sides.rows:
        m, n, layouts = n, m, layouts[::-1]
    majors: list[Major] = ["k" if layout == "k_major" else "mn" for layout in layouts]
    swaps = {"a": "b", "b": "a"} if axes[0] != sides.rows else {}
    seconds = tuple(_second(sides.others, 0))
    copied = tuple(
        replace(each, operand=swaps.get(each.operand, each.operand) + (f"_of_{term}" if term else ""))
        for term, of_term in enumerate((fact, *sides.terms))
        for each in copied_operands(facts, of_term, seconds)
    )
    computed = fact.lhs_prologue or fact.rhs_prologue or None in (fact.lhs_slot, fact.rhs_slot)
    plain = any(each.is_packed for each in copied) or not (copied and computed)
    for each in copied:
        if each.operand in ("a", "b"):
            majors["ab".index(each.operand)] = (each.raw and raw_major(each.sources[0], ())) or "k"
    walked = [*axes, None if sides.nested or sides.parts is not None else fact.k_axis]
    if sides.grouped and (left := load_of(facts, fact.lhs_slot)) is not None and left.static:
        walked[axes.index(sides.rows)] = None  # all rows are those of the operand
    of_groups = sides.grouped or sides.of_groups or groups_of_blocks(fact, facts) is not None
    loads = without_offsets(facts) if of_groups else facts
    sums = tuple(sums_along_k(facts, fact, axes))
    products = tuple(_second(sides.others, _pitch(majors[1], n, k)))
    scales = block_scales(fact, facts, axes, k) if plain else None
    operands = (*products, *_operands(loads, axes), *(operand for operand, _ in sums))
    problem = GemmProblem(
        m=m,
        n=n,
        k=k,
        operand_dtype=MICRO_FORMATS.get(fact.lhs_format) or dtype_name(multiplied_dtype(facts, fact)),
        output_dtype=dtype_name(stores[0].dtype),
        a_pitch=_pitch(majors[0], m, k, fact.lhs_dtype.itemsize),
        b_pitch=_pitch(majors[1], n, k, fact.rhs_dtype.itemsize),
        d_pitch=_pitches(stores[0], axes, n),
        a_major=majors[0],
        b_major=majors[1],
        epilogue=_epilogue(operands, facts, stores, axes, n),
        terms=tuple(_terms(facts, sides, (m, n), majors)),
        absent=_absent(facts, sides, ("b", *(each.label for each in products))),
        scales=scales,
        rounded=_rounded(fact, sides) if scales is None else "",
        copied=copied,
        summed=tuple(summed for _, summed in sums),
        runtime=_runtime(facts, zip(("size_m", "size_n", "size_k"), walked, strict=True)),
    )
    return with_most_rows(problem)


def _rounded(fact: MatmulFact, sides: _Sides) -> str:
    """Return the type that the matmul of a K tile seems to be rounded to: a loop carries it, but adds another value than it."""
    plain = fact.added or fact.accumulator_loop is None or sides.nested or sides.others or sides.terms
    return "" if plain or fact.lhs_dtype.itemsize != 2 else dtype_name(fact.lhs_dtype)


def _stored_along_m(problem: GemmProblem) -> GemmProblem:
    """Return the problem of a transposed matmul, whose output TMA stores in tiles that are contiguous along M."""
    (output,) = problem.outputs
    turned = replace(output, kind="exact", pitch=1, column_pitch=_even(problem.m))
    operands = tuple(
        replace(each, pitch=1, column_pitch=_even(problem.m)) if each.kind == "exact" else each
        for each in problem.epilogue.operands
    )
    return replace(problem, epilogue=replace(problem.epilogue, operands=operands, outputs=(turned,)), d_pitch=1)


def _stored_by_threads(problem: GemmProblem) -> GemmProblem:
    """Return the problem of a transposed matmul, whose matrices are contiguous along M."""
    pitch = _even(problem.m)
    outputs = tuple(replace(each, kind="strided", pitch=1, column_pitch=pitch) for each in problem.outputs)
    operands = tuple(
        replace(each, kind="strided", pitch=1, column_pitch=pitch) if each.kind == "exact" else each
        for each in problem.epilogue.operands
    )
    epilogue = replace(problem.epilogue, operands=operands, outputs=outputs)
    return replace(problem, epilogue=epilogue, d_pitch=1)


def _terms(facts: KernelFacts, sides: _Sides, extents: tuple[int, int], majors: Sequence[Major]) -> Iterator[Term]:
    """Yield the further terms of a sum, with the majors of the first."""
    for each in sides.terms:
        k = _extent(facts, each.k_axis)
        if k is not None:
            a, b = (_pitch(major, extent, k) for major, extent in zip(majors, extents, strict=True))
            yield Term(k=k, a_pitch=a, b_pitches=(b,) * (1 + len(sides.others)))


def _absent(facts: KernelFacts, sides: _Sides, bases: Sequence[str]) -> tuple[str, ...]:
    """Return as many labels of right operands as terms add nothing to. Facts do not say which accumulators those are."""
    terms = 1 + len(sides.terms)
    cells = {(term, at) for term in range(terms) for at in range(len(bases))} if terms > 1 else set()
    more, gone = len(cells) - len(of_same_tiles(facts)), list[str]()
    for term, at in sorted(cells, key=lambda cell: (cell[1] % terms == cell[0], cell)):
        covered = any(cell[0] == term and cell[1] != at for cell in cells) and any(
            cell[1] == at and cell[0] != term for cell in cells
        )
        if len(gone) < more and covered:
            cells.remove((term, at))
            gone.append(f"{bases[at]}_of_{term}" if term else bases[at])
    return tuple(gone)


def _batch_axes(facts: KernelFacts, sides: _Sides, blocks: Sequence[int]) -> list[AxisFact]:
    """Return the axes other than M, N and K."""
    over = {*blocks, *(facts.axes[at].block_id for at in blocks_of_k(sides.fact, facts))}
    over |= {facts.axes[each.k_axis].block_id for each in sides.terms if each.k_axis is not None}
    over |= {facts.axes[at].block_id for at in (sides.parts,) if at is not None}
    scales = scale_loads(sides.fact, facts) if sides.fact.lhs_format else ()
    over |= {facts.axes[at].block_id for op in scales for at in op.subscript_axes if at is not None}
    rest = [(at, axis) for at, axis in enumerate(facts.axes) if axis.block_id not in over]
    looped = {at for region in facts.regions for at in region.axes}
    looped |= {
        at for op in (*facts.memory_ops, *facts.atomics) for at in (*op.subscript_axes, *op.tile_axes) if at is not None
    }
    return [axis for at, axis in rest if at in looped and (sides.whole is None or axis.on_grid)]


def _with_batch(
    facts: KernelFacts, sides: _Sides, axes: tuple[int, int], problem: GemmProblem, batch: Sequence[AxisFact]
) -> GemmProblem:
    size = math.prod(axis.extent or 1 for axis in batch)
    blocks = groups_of_blocks(sides.fact, facts)
    if blocks is not None and axes[0] == sides.rows and not batch:
        problem, size = replace(problem, groups=blocks), blocks.size
    if sides.grouped and axes[0] == sides.rows:
        problem = replace(problem, groups=Groups(name="offsets", size=size, dtype="int32"))
    if size == 1:
        return problem
    slots = sides.fact.lhs_slot, sides.fact.rhs_slot
    if axes[0] != sides.rows:
        slots = slots[::-1]
    varying = [] if len(batch) != 1 else _runtime(facts, [("batches", batch[0].block_id)])
    batches = _batch(facts, slots, problem, size)
    if problem.groups is not None:
        batches = replace(batches, a=0, d=0, more=(0,) * len(batches.more))
    problem = dataclasses.replace(problem, batch=batches, runtime=(*problem.runtime, *varying))
    if sides.of_groups and not (batches.a or batches.b):
        problem = replace(problem, ends=Ends(side="batch", groups=Groups(name="offsets", size=size, dtype="int32")))
    return problem


def _extent(facts: KernelFacts, axis: int | None) -> int | None:
    return None if axis is None else facts.axes[axis].extent


def _runtime(facts: KernelFacts, axes: Iterable[tuple[str, int | None]]) -> tuple[str, ...]:
    """Return the names of extents that vary between launches; their values in the problem guide the choice of tiles."""
    return tuple(name for name, axis in axes if axis is not None and not facts.axes[axis].static)


def _turns(facts: KernelFacts, sides: _Sides, batch: Sequence[AxisFact]) -> bool:
    """Return whether the matmul may be computed transposed: one, or those of a batch of one dimension without groups."""
    grouped = sides.grouped or sides.of_groups or groups_of_blocks(sides.fact, facts) is not None
    return sides.whole is None and has_one_source(facts, sides.fact) and not (batch and (grouped or len(batch) > 1))


def _batch(facts: KernelFacts, slots: tuple[int | None, int | None], problem: GemmProblem, size: int) -> Batch:
    """Return the batch; operands, loaded in ``slots``, have a stride of 0 if all matmuls read one matrix."""

    def pitch(slot: int | None, matrix: int) -> int:
        op = next((op for op in facts.memory_ops if op.slot == slot and op.kind == "load"), None)
        return 0 if op is not None and op.accessed_numel <= matrix else _even(matrix)

    m, n, k = problem.m, problem.n, problem.k
    output = problem.outputs[0]
    elements = max(m * problem.d_pitch, n * output.column_pitch if output.kind == "strided" else 0)
    a, b = pitch(slots[0], m * k), pitch(slots[1], n * k)
    return Batch(
        size=size,
        a=a,
        b=b,
        terms=tuple(a if label.startswith("a_of_") else b for label in problem.term_labels),
        d=_even(elements),
        operands=tuple(0 for _ in problem.epilogue.operands),
        more=tuple(_even(m * output.pitch) for output in problem.outputs[1:]),
    )


def _whole_axis(fact: MatmulFact, facts: KernelFacts) -> int | None:
    """Return the axis of N where programs hold all of it, at once or in a loop over tiles of it."""
    if fact.n_axis is None:
        return None
    axis = facts.axes[fact.n_axis]
    walked = (
        axis.kind in ("tile", "fixed")
        and not axis.on_grid
        and fact.m_axis is not None
        and facts.axes[fact.m_axis].on_grid
    )
    return fact.n_axis if axis.kind == "full" or walked else None


def _with_rows(facts: KernelFacts, columns: int) -> KernelFacts:
    """Replace the axes of other loops over the columns, nested directly in the grid, by the axis of N."""
    grids = {region.region for region in facts.regions if region.parent is None}
    loops = [region for region in facts.regions if region.parent in grids] if facts.axes[columns].kind != "full" else []
    again = {axis for region in loops for axis in region.axes}

    def renamed(op: MemoryOpFact) -> MemoryOpFact:
        return replace(op, subscript_axes=tuple(columns if axis in again else axis for axis in op.subscript_axes))

    return replace(facts, memory_ops=tuple(map(renamed, facts.memory_ops)))


def _walked(store: MemoryOpFact, axes: tuple[int, int]) -> tuple[int, ...]:
    """Return those of M and N that index the tensor."""
    return tuple(axis for axis in store.subscript_axes if axis in axes)


def _lines(store: MemoryOpFact, axes: tuple[int, int]) -> tuple[int, ...]:
    """Return the same with the contiguous axis last."""
    walked = _walked(store, axes)
    strides = [stride for axis, stride in zip(store.subscript_axes, store.strides, strict=True) if axis in axes]
    return walked[::-1] if len(walked) == 2 and strides[0] == 1 != strides[1] else walked


def _pitches(store: MemoryOpFact, axes: tuple[int, int], n: int) -> int:
    return _even(n) if len(_walked(store, axes)) == len(axes) else 1


#: Row reductions by the program's name for them; positions need a second step.
_REDUCTIONS = {"max": "row_maximum", "argmax": "row_maximum", "min": "row_minimum", "argmin": "row_minimum"}


def _epilogue(
    operands: tuple[EpilogueOperand, ...],
    facts: KernelFacts,
    stores: Sequence[MemoryOpFact],
    axes: tuple[int, int],
    n: int,
) -> Epilogue:
    """Return the row reductions, each after those that it depends on, and the outputs."""
    instructions: list[Instruction] = []

    def step(op: str, *arguments: int) -> int:
        instructions.append(Instruction(op, arguments))
        return len(operands) + len(instructions)

    value, found, numbers_only = 0, None, all(_output_kind(store, axes) == "column" for store in stores)
    over = [fact for fact in facts.reductions if fact.axis == axes[1]]
    stages = [stage for fact in over for stage in fact.stages]
    powers = [number in fact.exponential_stages for fact in over for number in range(len(fact.stages))]
    for number, operand in enumerate(operands, start=1) if stages else ():
        value = step("add", value, number) if operand.kind in ("exact", "strided", "product") else value
    for stage, has_powers in zip(stages, powers, strict=True):
        top = None
        for name in stage:
            term = step("exp", value) if has_powers and numbers_only and name == "sum" else value
            found = step(_REDUCTIONS.get(name, "row_sum"), term)
            top = found if name == "max" else top
            found = step("row_first", value, found) if name.startswith("arg") else found
        assert found is not None
        value = step("sub", value if numbers_only else 0, found if top is None else top)
    outputs = tuple(
        EpilogueOutput(
            name=f"{'added' if store.kind == 'atomic' else 'output'}_{store.slot}",
            value=value if len(_walked(store, axes)) == len(axes) or found is None else found,
            kind=_output_kind(store, axes),
            dtype=dtype_name(store.dtype),
            pitch=_pitches(store, axes, n),
            adds=store.kind == "atomic",
            lines=LINES if is_picked(store) else None,
            picked=1 if is_picked(store) else 0,
        )
        for store in stores
    )
    plain = len(outputs) == 1 and outputs[0].kind == "exact" and not outputs[0].adds
    return Epilogue(operands=operands, instructions=tuple(instructions), outputs=() if plain else outputs)


def _output_kind(store: MemoryOpFact, axes: tuple[int, int]) -> OutputKind:
    if len(_walked(store, axes)) < len(axes):
        return "column"
    by_threads = is_picked(store) or is_strided(store) or ends_in_a_granule(store) or _lines(store, axes) != axes
    return "strided" if by_threads else "exact"


def _axes(fact: MatmulFact) -> tuple[int | None, int | None, int | None]:
    return fact.m_axis, fact.n_axis, fact.k_axis


def _tile(facts: KernelFacts, axis: int | None) -> int | None:
    """Return the block of an axis, if it has tiles."""
    found = None if axis is None else facts.axes[axis]
    return found.block_id if found is not None and found.kind in ("tile", "fixed") else None


def _tiles(facts: KernelFacts, *axes: int | None) -> tuple[int, ...]:
    """Return the blocks of axes whose tiles a config has sizes for."""
    return tuple(facts.axes[at].block_id for at in axes if at is not None and facts.axes[at].kind == "tile")


def _pitch(major: Major, other: int, k: int, size: int = 1) -> int:
    return _even(k if major == "k" else other, size)


def _even(line: int, size: int = 1) -> int:
    """Return a pitch that TMA accepts for elements of ``size`` bytes; the problem itself was checked before."""
    return -(-line * size // 16) * 16 // size


def _second(others: Sequence[MatmulFact], pitch: int) -> Iterator[EpilogueOperand]:
    for other in others:
        name, dtype = f"product_{other.number}", dtype_name(other.rhs_dtype)
        yield EpilogueOperand(name=name, kind="product", dtype=dtype, pitch=pitch)


def _operands(facts: KernelFacts, axes: tuple[int, int]) -> Iterator[EpilogueOperand]:
    seen: set[tuple[int, tuple[int | None, ...]]] = set()
    multiplied = {slot for each in facts.matmuls for slot in (each.lhs_slot, each.rhs_slot)}
    multiplied |= {op.slot for each in facts.matmuls for op in scale_loads(each, facts)}
    written: set[int] = set()
    if facts.random_tiles:
        yield EpilogueOperand(name="random", kind="uniform", dtype="int32", pitch=facts.axes[axes[1]].extent or 0)
    for op in facts.memory_ops:
        if op.kind == "store":
            written.add(op.storage)
        key = (op.storage, op.subscript_axes)
        if op.kind == "load" and op.slot not in multiplied and op.storage not in written and key not in seen:
            seen.add(key)
            added = op.dtype == torch.int32 and facts.matmuls[0].lhs_dtype == torch.int8
            kind = "integers" if added else _kind(op, axes)
            pitch = _even(facts.axes[axes[1]].extent or 0) if kind in ("exact", "strided") else 1
            yield EpilogueOperand(name=f"operand_{op.slot}", kind=kind, dtype=dtype_name(op.dtype), pitch=pitch)


def _kind(op: MemoryOpFact, axes: tuple[int, int]) -> OperandKind:
    along = {axis for axis, stride in zip(op.subscript_axes, op.strides, strict=True) if stride}
    if set(axes) <= along:
        return "strided" if is_strided(op) else "exact"
    return "row" if axes[1] in along else "column"
