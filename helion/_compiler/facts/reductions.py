"""Reductions: one fact per region and reduced axis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ..ir.grammar import Op, Operand, PointwiseAttrs, ReduceAttrs, Value
from ..ir.ops import OPS
from .flow import Flow
from .kept import kept_values
from .liveness import Liveness
from .records import AccumulatorFact, AxisFact, Category, LateReductionFact, MemoryOpFact, ReducedTile, ReductionFact
from .walk import Walk


def reduction_facts(
    walk: Walk,
    flow: Flow,
    liveness: Liveness,
    axes: tuple[AxisFact, ...],
    memory_ops: tuple[MemoryOpFact, ...],
    accumulators: tuple[AccumulatorFact, ...],
    late: Mapping[int, LateReductionFact],
) -> tuple[ReductionFact, ...]:
    groups: dict[tuple[int, int], list[tuple[Op, int]]] = {}
    for op, axis, bit in flow.reduce_bits:
        groups.setdefault((walk.homes[op.number], axis), []).append((op, bit))
    homes: dict[int, set[int]] = {}
    for region, axis in groups:
        homes.setdefault(region, set()).add(axis)
    facts = []
    for (region, axis), found in groups.items():
        loads = [op for op in memory_ops if op.kind == "load"]
        feeding = [op for op in loads if dict(op.reductions_fed).get(axis)]
        re_read = _re_read(axes[axis], feeding, loads, found, walk, flow)
        group = _group_regions(walk, region, homes)
        tiles = liveness.peak_of(group)
        values = [next(op.values()) for op, _ in found]
        facts.append(
            ReductionFact(
                axis=axis,
                region=region,
                root=walk.regions[region].root,
                names=tuple(dict.fromkeys(op.attrs.name for op, _ in found)),
                category=_category(axes[axis]),
                extent=axes[axis].extent or 0,
                tile=max((walk.tile(value)[0] for value in values), key=len),
                itemsize=max(value.dtype.itemsize for value in values),
                input_load_itemsize=_input_itemsize(feeding, loads, axis),
                num_loads=sum(op.region in group for op in loads),
                re_read=re_read is not None,
                re_read_slot=None if re_read is None else re_read.load_slot,
                store_only_re_read=_store_only(feeding, loads, axis),
                carried_2d=sum(len(a.axes) >= 2 and a.axes[-1] == axis for a in accumulators),
                body_live_tiles=sum(axis in tile_axes for tile_axes, _ in tiles),
                live_tiles=tiles,
                per_feature_accumulator=any(_feeds_features(op, walk, axes) for op, _ in found),
                stages=_stages(found, flow),
                kept=kept_values(axis, walk.bodies[region], found, _levels(found, flow), walk),
                exponential_stages=_exponential_stages(found, flow, walk),
                gone=frozenset.intersection(*(_gone(op, axis) for op, _ in found)),
                after=_after([late.get(op.number) for op, _ in found]),
                tiles=_tiles([op for op, _ in found], axis, walk),
            )
        )
    return tuple(facts)


def _tiles(found: Sequence[Op], axis: int, walk: Walk) -> tuple[ReducedTile, ...]:
    """Return the reductions over an axis by name, tile and place of the axis."""
    counts = Counter[tuple[str, tuple[int, ...], int]]()
    for op in found:
        (value,) = op.values()
        reduced = op.attributes(ReduceAttrs)
        dim = next(dim for dim in reduced.dims if axis in value.dims[dim].blocks)
        at = sum(len(each.blocks) for each in value.dims[:dim]) + value.dims[dim].blocks.index(axis)
        counts[reduced.name, walk.tile(value)[0], at] += 1
    return tuple(ReducedTile(name=name, axes=axes, at=at, count=n) for (name, axes, at), n in counts.items())


def _after(found: Sequence[LateReductionFact | None]) -> int | None:
    """Return the innermost region in which late reductions may run, None if one of them stays in its loop."""
    places = [fact.after for fact in found if fact is not None]
    return max(places) if len(places) == len(found) else None


def _gone(op: Op, axis: int) -> frozenset[int]:
    """Return the axes after ``axis`` that a reduction reduces too."""
    (value,) = op.values()
    blocks = [value.dims[dim].blocks for dim in op.attributes(ReduceAttrs).dims]
    at = next(place for place, axes in enumerate(blocks) if axis in axes)
    return frozenset(later for axes in blocks[at + 1 :] for later in axes)


def _levels(found: list[tuple[Op, int]], flow: Flow) -> list[int]:
    """Return the depth of dependence of each reduction. In program order it follows those that it depends on."""
    levels: list[int] = []
    for at, (_, bit) in enumerate(found):
        needed = [levels[i] for i, (op, _) in enumerate(found[:at]) if flow.of(op.result) & bit]
        levels.append(1 + max(needed, default=-1))
    return levels


def _stages(found: list[tuple[Op, int]], flow: Flow) -> tuple[tuple[str, ...], ...]:
    """Return the names of reductions by depth of dependence."""
    levels = _levels(found, flow)
    return tuple(
        tuple(op.attributes(ReduceAttrs).name for (op, _), level in zip(found, levels, strict=True) if level == stage)
        for stage in range(1 + max(levels))
    )


def _exponential_stages(found: list[tuple[Op, int]], flow: Flow, walk: Walk) -> tuple[int, ...]:
    sums = [op.attributes(ReduceAttrs).name == "sum" and _is_exponential(op.operands[0], walk) for op, _ in found]
    return tuple(sorted({level for level, powers in zip(_levels(found, flow), sums, strict=True) if powers}))


def _is_exponential(value: Operand, walk: Walk) -> bool:
    """Return whether a value is an exponential, in all its valid elements."""
    made = walk.makers.of(value)
    while made is not None and made.kind in ("mask", "view"):
        made = walk.makers.of(made.operands[0])
    return made is not None and made.kind == "pointwise" and made.attributes(PointwiseAttrs).name in ("exp", "exp2")


def _category(axis: AxisFact) -> Category:
    if axis.extent is None and axis.outer is None:
        return "declined"
    if axis.on_grid:
        whole = axis.kind == "fixed" and axis.size is not None and axis.extent is not None and axis.size >= axis.extent
        return "full_grid" if whole else "grid_tile"
    if axis.kind == "full":
        return "full_slice"
    return "user_tile" if axis.tunable else "fixed"


def _group_regions(walk: Walk, home: int, homes: dict[int, set[int]]) -> list[int]:
    """Return the home region and the loops inside it over one of its reduced axes that are no other home."""
    regions, stack = [], [home]
    while stack:
        region = stack.pop(0)
        regions.append(region)
        for op in walk.bodies[region].ops:
            for inner in walk.inner.get(op.number, ()):
                fact = walk.regions[inner]
                if fact.kind == "loop" and inner not in homes and set(fact.axes) & homes[home]:
                    stack.append(inner)
    return regions


def _re_read(
    axis: AxisFact,
    feeding: list[MemoryOpFact],
    loads: list[MemoryOpFact],
    found: list[tuple[Op, int]],
    walk: Walk,
    flow: Flow,
) -> MemoryOpFact | None:
    """Return the first load whose row is needed again after a reduction.

    For a row that is kept whole, the load feeds two of the reductions, or one and a store without being reduced. For a
    row that the kernel itself loops over, another loop loads it again.
    """
    values = {op.attrs.slot: op.results[0] for op in walk.loads}
    for fact in feeding:
        if axis.block_id not in fact.tile_axes:
            continue
        if axis.kind != "full":
            again = [op for op in loads if op.storage == fact.storage and op.region != fact.region]
            if any(len(op.tile_axes) == len(fact.tile_axes) for op in again):
                return fact
            continue
        bits = flow.of(values[fact.slot])
        reduced = sum(bool(bits & bit) for _, bit in found)
        if reduced >= 2 or (reduced == 1 and fact.feeds_store):
            return fact
    return None


def _input_itemsize(feeding: list[MemoryOpFact], loads: list[MemoryOpFact], axis: int) -> int:
    chosen = feeding or [op for op in loads if op.subscript_axes and op.subscript_axes[-1] == axis]
    return min((op.itemsize for op in chosen), default=0)


def _store_only(feeding: list[MemoryOpFact], loads: list[MemoryOpFact], axis: int) -> bool:
    """Return whether a tensor that is reduced is also needed, unreduced, for a store of the row."""
    tensors = {op.storage for op in feeding if axis in op.tile_axes}
    return any(op.storage in tensors and op.feeds_store and axis in op.tile_axes for op in loads)


def _feeds_features(op: Op, walk: Walk, axes: tuple[AxisFact, ...]) -> bool:
    """Return whether the reduction's result is added to a loop-carried accumulator over whole axes."""
    result = op.results[0]
    feature = walk.tile(result)[0]
    if not feature or any(axes[a].kind != "full" for a in feature):
        return False
    region = walk.homes[op.number]
    body = walk.bodies[region]
    carried = {r.number for r in body.results if isinstance(r, Value)}
    reached = {result.number}
    for later in body.ops:
        if OPS[later.kind].keeps_lanes and any(v.number in reached for v in later.values()):
            reached.add(later.results[0].number)
    return bool(reached & carried)


def accumulator_facts(walk: Walk, dot_loops: dict[int, set[int]]) -> tuple[AccumulatorFact, ...]:
    """Return the facts of values that sequential loops carry.

    ``dot_loops`` has, by loop, the numbers of yielded values that hold dot results.
    """
    facts = []
    for region, body in zip(walk.regions, walk.bodies, strict=True):
        if region.kind != "loop":
            continue
        for param, after in zip(body.params, body.results, strict=True):
            axes, _ = walk.tile(param)
            if axes:
                loop = dot_loops.get(region.region, ())
                facts.append(AccumulatorFact(axes=axes, of_dot=isinstance(after, Value) and after.number in loop))
    return tuple(facts)
