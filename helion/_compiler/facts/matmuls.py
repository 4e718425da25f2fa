"""Matmuls: one fact per dot, and the loads that feed it through shared memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from ..._shapes import Dim
from ..ir.grammar import DotAttrs, Index, MemoryAttrs, Op, Operand, PointwiseAttrs, Value
from ..ir.operands import accumulator_of
from ..ir.ops import OPS
from .axes import count
from .flow import Flow
from .merged import MergedTiles
from .records import (
    AttentionFact,
    AttentionGradientFact,
    AxisFact,
    Layout,
    MatmulFact,
    ReductionFact,
    RegionFact,
    StagedOperand,
)
from .walk import MAX_HOPS, Walk


def matmul_facts(
    walk: Walk, flow: Flow, axes: tuple[AxisFact, ...]
) -> tuple[tuple[MatmulFact, ...], tuple[StagedOperand, ...], frozenset[int]]:
    """Return the facts of dots, the loads that feed them, and the numbers of loaded values that need no registers."""
    facts, staged, direct = [], [], set()
    both = [[_Side(op.operands[at], walk) for at in (0, 1)] for op in walk.dots]
    makers = set[int]().union(*(_makers_of_operands(op, walk) for op in walk.dots))
    shared = _read_loads(both, _read(walk, lambda op: op.number not in makers and op.kind != "dot", results=True))
    worked = _read_loads(both, _read(walk, lambda op: op.number in makers and op.kind == "pointwise"))
    for number, (op, sides) in enumerate(zip(walk.dots, both, strict=True)):
        facts.append(_fact(number, op, sides, walk, flow, axes))
        for role, side in zip(("lhs", "rhs"), sides, strict=True):
            if side.load is None:
                continue
            attrs = side.load.attributes(MemoryAttrs)
            value = side.load.results[0]
            staged.append(
                StagedOperand(
                    region=walk.homes[side.load.number],
                    dot=number,
                    role=role,  # type: ignore[arg-type]
                    slot=attrs.slot,
                    axes=walk.tile(value)[0],
                    itemsize=walk.tile(value)[1],
                    direct=not side.prologue,
                    after=sum(walk.order[dot.number] < walk.order[side.load.number] for dot in walk.dots),
                    shared=value.number in shared,
                    worked=value.number in worked,
                )
            )
            if value.number not in shared:
                direct.add(value.number)
    return tuple(facts), tuple(staged), frozenset(direct)


class _Side:
    """An operand traced back to its load, through ops with one tensor operand each."""

    def __init__(self, operand: Operand, walk: Walk) -> None:
        self.load: Op | None = None
        self.prologue = False
        self.passed: list[Op] = []
        for _ in range(MAX_HOPS):
            op = walk.makers.of(operand)
            if op is None:
                return
            self.passed.append(op)
            if op.kind == "load":
                self.load = op
                return
            values = [v for v in op.values() if v.dims]
            if not OPS[op.kind].keeps_lanes or len(values) != 1:
                return
            if not OPS[op.kind].is_view:
                self.prologue = True
            operand = values[0]


def _read(walk: Walk, takes: Callable[[Op], bool], results: bool = False) -> set[int]:
    """Return the numbers of the values that some ops read, and of those that regions return."""
    read = {value.number for body in walk.bodies for op in body.ops if takes(op) for value in op.values()}
    if results:
        read.update(value.number for body in walk.bodies for value in body.results if isinstance(value, Value))
    return read


def _read_loads(sides: list[list[_Side]], read: set[int]) -> set[int]:
    """Return the loaded values of operands that are among ``read``, before or after views and masks."""
    staged = (side for pair in sides for side in pair if side.load is not None)
    return {
        side.passed[-1].results[0].number for side in staged if any(op.results[0].number in read for op in side.passed)
    }


def _makers_of_operands(dot: Op, walk: Walk) -> set[int]:
    """Return the numbers of the ops from loads to the operands of a dot that keep the positions of elements."""
    found: set[int] = set()
    waiting = list(dot.operands[:2])
    while waiting:
        op = walk.makers.of(waiting.pop())
        if op is not None and op.number not in found and OPS[op.kind].keeps_lanes:
            found.add(op.number)
            waiting += op.values()
    return found


def _is_indexed(dot: Op, walk: Walk) -> bool:
    """Return whether ops on the way to the operands of a dot read indices."""
    makers = _makers_of_operands(dot, walk)
    made = (op for body in walk.bodies for op in body.ops if op.number in makers)
    sources = (walk.makers.of(value) for op in made for value in op.values())
    return any(source is not None and source.kind == "iota" for source in sources)


def _fact(number: int, op: Op, sides: list[_Side], walk: Walk, flow: Flow, axes: tuple[AxisFact, ...]) -> MatmulFact:
    attrs = op.attributes(DotAttrs)
    lhs, rhs = op.operands[0], op.operands[1]
    assert isinstance(lhs, Value) and isinstance(rhs, Value)
    m, k, n = lhs.dims[-2].block, lhs.dims[-1].block, rhs.dims[-1].block

    def tile(axis: int | None) -> int | None:
        return axis if axis is not None and axes[axis].tunable else None

    def static(dim: Dim) -> int | None:
        if dim.block is not None:
            return axes[dim.block].extent if axes[dim.block].static else None
        return None if dim.blocks else dim.const  # several blocks in one dimension: no axis has its extent

    own = flow.dot_bits[op.number]
    scaled = attrs.scaled
    # An element packs two 4-bit numbers.
    static_k, packed = static(lhs.dims[-1]), 2 if scaled is not None and scaled.lhs_format == "e2m1" else 1
    return MatmulFact(
        number=number,
        region=walk.homes[op.number],
        lhs_rank=len(lhs.dims),
        rhs_rank=len(rhs.dims),
        m_block_id=tile(m),
        n_block_id=tile(n),
        k_block_id=tile(k),
        m_axis=m,
        n_axis=n,
        k_axis=k,
        batch_axes=tuple(dict.fromkeys(b for d in (*lhs.dims[:-2], *rhs.dims[:-2]) for b in d.blocks)),
        static_m=static(lhs.dims[-2]),
        static_n=static(rhs.dims[-1]),
        static_k=None if static_k is None else static_k * packed,
        lhs_dtype=lhs.dtype,
        rhs_dtype=rhs.dtype,
        precision=attrs.precision,
        lhs_format=scaled.lhs_format if scaled is not None else "",
        rhs_format=scaled.rhs_format if scaled is not None else "",
        lhs_slot=_slot(sides[0].load),
        rhs_slot=_slot(sides[1].load),
        lhs_layout=_layout(sides[0].load, lhs.dims[-1], lhs.dims[-2], walk),
        rhs_layout=_layout(sides[1].load, rhs.dims[-2], rhs.dims[-1], walk),
        lhs_prologue=sides[0].prologue,
        rhs_prologue=sides[1].prologue,
        accumulator_loop=_accumulator_loop(op, walk),
        chained=_is_chained(op, walk),
        added=_is_added(op, walk),
        indexed=_is_indexed(op, walk),
        consumes=tuple(i for i, other in enumerate(walk.dots) if other is not op and flow.of(other.results[0]) & own),
    )


def _slot(load: Op | None) -> int | None:
    return None if load is None else load.attrs.slot


def _layout(load: Op | None, k: Dim, other: Dim, walk: Walk) -> Layout | None:
    """Return the dimension of the operand along which memory is contiguous: K, M/N or neither."""
    if load is None:
        return None
    attrs = load.attributes(MemoryAttrs)
    strides = walk.program.tensors[attrs.tensor].strides
    unit = [index for index, stride in zip(attrs.indices, strides, strict=True) if count(stride) == 1]
    if any(_walks(index, load, k, walk) for index in unit):
        return "k_major"
    return "mn_major" if any(_walks(index, load, other, walk) for index in unit) else "strided"


def _walks(index: Index, load: Op, dim: Dim, walk: Walk) -> bool:
    """Return whether an index covers consecutive elements along a dimension of an operand."""
    if index.kind == "block":
        return index.block is not None and index.block == dim.block
    tile = MergedTiles(walk).lanes_of(load.operands[index.operand]) if index.operand is not None else None
    return tile is not None and tile[0] in dim.blocks


def _accumulator_loop(op: Op, walk: Walk) -> int | None:
    """Return the loop that carries the accumulator of a dot.

    Follow the result through additions, casts and scalings to the values that the loop yields.
    """
    region = walk.homes[op.number]
    carried = {result.number for result in walk.bodies[region].results if isinstance(result, Value)}
    reached = {op.results[0].number}
    for later in walk.bodies[region].ops:
        if reached & carried:
            break
        if (OPS[later.kind].keeps_lanes and any(v.number in reached for v in later.values())) or (
            later.kind == "dot" and (added := accumulator_of(later)) is not None and added.number in reached
        ):
            reached.add(later.results[0].number)
    return region if reached & carried else None


def _is_chained(op: Op, walk: Walk) -> bool:
    added = accumulator_of(op)
    maker = None if added is None else walk.makers.of(added)
    return maker is not None and maker.kind == "dot" and walk.homes[maker.number] == walk.homes[op.number]


def _is_added(op: Op, walk: Walk) -> bool:
    """Return whether the dot has an accumulator, or an addition takes its result unchanged."""
    if accumulator_of(op) is not None:
        return True
    body = walk.bodies[walk.homes[op.number]].ops
    return any(later.kind == "pointwise" and _adds(later) and op.results[0] in later.values() for later in body)


def _adds(op: Op) -> bool:
    return op.attributes(PointwiseAttrs).name == "add"


def attention_fact(
    matmuls: tuple[MatmulFact, ...], reductions: tuple[ReductionFact, ...], regions: tuple[RegionFact, ...]
) -> AttentionFact | None:
    """Return the fact of two chained dots in one loop where a reduction covers N of the first, which is K of the second."""
    reduced = {(fact.region, fact.axis) for fact in reductions}
    return next((fact for fact in _chains(matmuls, regions) if (fact.region, fact.key_axis) in reduced), None)


def weighted_fact(
    matmuls: tuple[MatmulFact, ...], reductions: tuple[ReductionFact, ...], regions: tuple[RegionFact, ...]
) -> AttentionFact | None:
    """Return the fact of two chained dots in one loop, and no other, that no reduction joins: weights are not summed."""
    reduced = {(fact.region, fact.axis) for fact in reductions}
    found = next(_chains(matmuls, regions), None) if len(matmuls) == 2 else None
    return None if found is None or (found.region, found.key_axis) in reduced else found


def _chains(matmuls: tuple[MatmulFact, ...], regions: tuple[RegionFact, ...]) -> Iterator[AttentionFact]:
    """Yield two dots of one loop over N of the first, which is K of the second: the second consumes the first."""
    for output in matmuls:
        for at in output.consumes:
            scores = matmuls[at]
            key, query = scores.n_axis, scores.m_axis
            together = scores.region == output.region and output.k_axis == key and output.m_axis == query
            if key is None or not together or key not in regions[output.region].axes:
                continue
            yield AttentionFact(query_axis=query, key_axis=key, region=output.region)


def attention_gradient_facts(
    matmuls: tuple[MatmulFact, ...],
    reductions: tuple[ReductionFact, ...],
    regions: tuple[RegionFact, ...],
    axes: tuple[AxisFact, ...],
) -> tuple[AttentionGradientFact, ...]:
    """Return the loops in which a dot consumes a value computed from two other dots.

    Both dots have tiles of the loop's axis and of an axis whose tile a program keeps. A loop that also reduces its axis
    is a forward pass with scores in two parts, so it is excluded.
    """
    found: dict[int, AttentionGradientFact] = {}
    softmax = {(fact.region, fact.axis) for fact in reductions}
    for fact in matmuls:
        walked = set(regions[fact.region].axes)
        sides = [
            frozenset((matmuls[at].m_axis, matmuls[at].n_axis))
            for at in fact.consumes
            if matmuls[at].region == fact.region and matmuls[at].k_axis not in walked
        ]
        for both in set(sides):
            held = [axis for axis in both if axis is not None and axis not in walked]
            if sides.count(both) < 2 or len(held) != 1 or not both & walked:
                continue
            (walk,) = both & walked
            if walk is not None and axes[held[0]].on_grid and (fact.region, walk) not in softmax:
                found[fact.region] = AttentionGradientFact(
                    region=fact.region, stationary_axis=held[0], streamed_axis=walk
                )
    return tuple(found.values())


def operand_roles(staged: tuple[StagedOperand, ...]) -> dict[int, Literal["lhs", "rhs"]]:
    """Return the role of each load that is a dot operand, by slot."""
    return {operand.slot: operand.role for operand in staged}
