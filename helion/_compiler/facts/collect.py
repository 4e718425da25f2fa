"""Collection of a program's facts."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ..ir.effects import is_message
from ..ir.grammar import Block, ForAttrs, HostTensor, LoopAxis, Op, Program, Root, Value, ViewAttrs
from ..ir.loops import loops_of, tile_of_bound
from ..ir.rewrite import Makers
from ..rewrites import REWRITES
from ..rewrites.flatten_runs import flat_runs
from ..rewrites.peel_masks import hidden_blocks, window_of
from ..rewrites.record import FactContext
from ..rewrites.reduction_loops.roll import loads_in_chunks
from .access import SortFact
from .axes import axis_facts, count, with_means
from .composed import (
    RANDOM,
    epilogue_fact,
    is_polynomial,
    is_sfu,
    pointwise_fact,
    reduced_products,
    tiled_epilogue_fact,
    work_facts,
)
from .flow import trace_flow
from .late import late_reductions
from .liveness import maximal, sweep
from .matmuls import attention_fact, attention_gradient_facts, matmul_facts, operand_roles, weighted_fact
from .memory import atomic_facts, memory_facts
from .records import (
    AttentionFact,
    AttentionGradientFact,
    AxisFact,
    FlatFacts,
    KernelFacts,
    Lazy,
    MatmulFact,
    RewrittenFacts,
    ScanFact,
)
from .reductions import accumulator_facts, reduction_facts
from .row_windows import row_windows
from .walk import TileBound, Walk, walk_program

#: Kinds of ops whose results do not depend on the places of elements.
_UNNUMBERED = frozenset(("number", "full", "view", "mask", "pointwise"))


def collect_facts(program: Program, rollable: tuple[int, ...]) -> KernelFacts:
    """Return the facts of ``program``, in which whole dimensions are not yet rolled.

    ``rollable`` are the blocks that a config may roll into chunks.
    """
    walk = walk_program(program)
    flow = trace_flow(walk)
    axes = axis_facts(walk, rollable)
    matmuls, staged, direct = matmul_facts(walk, flow, axes)
    liveness = sweep(walk, direct)
    looped = {block: loads_in_chunks(program, block) for block in rollable}
    memory_ops = memory_facts(walk, flow, axes, operand_roles(staged), looped)
    axes = with_means(axes, walk, memory_ops)
    accumulators = accumulator_facts(walk, _dot_results(walk, matmuls))
    late = late_reductions(walk)
    reductions = reduction_facts(walk, flow, liveness, axes, memory_ops, accumulators, late)
    products = reduced_products(walk, flow)
    regions = tuple(walk.regions)
    roots = range(len(program.roots))
    return KernelFacts(
        axes=axes,
        regions=regions,
        grid_axes=tuple(axis.block_id for axis in axes if axis.on_grid),
        num_roots=len(program.roots),
        memory_ops=memory_ops,
        matmuls=matmuls,
        reductions=reductions,
        late_reductions=tuple({id(fact): fact for fact in late.values()}.values()),
        accumulators=accumulators,
        staged=staged,
        work=work_facts(walk),
        live_tiles=tuple(liveness.peak_of([r.region for r in regions if r.root == root]) for root in roots),
        resident_tiles=tuple(map(maximal, liveness.resident)),
        needed_tiles=tuple(map(maximal, liveness.needed)),
        held_tiles=tuple(map(maximal, liveness.held)),
        packed_tiles=tuple(map(maximal, liveness.packed)),
        kept_tiles=tuple(map(maximal, liveness.kept)),
        scans=tuple(_scan(op, walk) for op in walk.scans),
        sorts=tuple(_sort(op, walk) for op in walk.other if op.kind == "sort"),
        random_tiles=tuple(walk.tile(op.results[0]) for op in walk.other if op.kind in RANDOM),
        transposed_squares=tuple(walk.tile(op.results[0]) for op in walk.other if _exchanges(op)),
        numbered_axes=frozenset(block for op in walk.other if op.kind not in _UNNUMBERED for block in _blocks(op)),
        atomics=atomic_facts(walk, flow, axes),
        messages=sum(map(is_message, program.walk())),
        phases=_phases(program),
        meetings=len({(r.launch, r.phase) for r in program.roots}) - len({r.launch for r in program.roots}),
        row_windows=row_windows(walk),
        pointwise=pointwise_fact(walk, flow, axes, memory_ops, accumulators, reductions),
        matmul_with_reduction_epilogue=epilogue_fact(matmuls, reductions, axes, products),
        matmul_with_tiled_reduction_epilogue=tiled_epilogue_fact(matmuls, reductions, axes, products),
        attention=_attention(walk, attention_fact(matmuls, reductions, regions)),
        weighted=_attention(walk, weighted_fact(matmuls, reductions, regions)),
        attention_gradients=_attention_gradients(program, attention_gradient_facts(matmuls, reductions, regions, axes)),
        rewrites=_rewrites(program, walk, axes),
        rewritten=_rewritten(program, rollable),
        flat=Lazy(functools.partial(_flat, program, rollable, axes)),
        apart=tuple(Lazy(functools.partial(_alone, program, rollable, at)) for at in roots if len(roots) > 1),
    )


def _alone(program: Program, rollable: tuple[int, ...], at: int) -> KernelFacts:
    """Return the facts of a kernel that has one of the grid loops alone; blocks of other loops have one element."""
    alone = replace(program, roots=(program.roots[at],))
    own = {axis.block for loop in loops_of(alone) for axis in _axes_of(loop)}
    own.update(block for op in alone.walk() for block in _blocks(op))
    own.update(base for block in sorted(own) if (base := program.blocks[block].base) is not None)
    blocks = (each if each.id in own else _of_one(each) for each in program.blocks)
    return collect_facts(replace(alone, blocks=tuple(blocks)), tuple(block for block in rollable if block in own))


def _axes_of(loop: Root | Op) -> tuple[LoopAxis, ...]:
    return loop.axes if isinstance(loop, Root) else loop.attributes(ForAttrs).axes


def _of_one(block: Block) -> Block:
    return Block(id=block.id, kind="tile", extent=1, size=1, name=block.name)


def _phases(program: Program) -> tuple[int, ...]:
    """Return the number of each grid loop's launch and phase, in order of first appearance."""
    places = [(root.launch, root.phase) for root in program.roots]
    return tuple(map(list(dict.fromkeys(places)).index, places))


def _flat(program: Program, rollable: tuple[int, ...], axes: tuple[AxisFact, ...]) -> FlatFacts | None:
    """Return the facts with loops over runs in memory flattened, None without such loops."""
    runs = flat_runs(program)
    if runs is None:
        return None
    return FlatFacts(facts=collect_facts(runs.program, rollable), loops=runs.loops, axes=axes)


def _rewritten(program: Program, rollable: tuple[int, ...]) -> dict[str, Lazy[RewrittenFacts | None]]:
    """Return the facts after each rewrite, computed at first use."""
    models = ((rewrite.key, rewrite.model) for rewrite in REWRITES)
    return {
        key: Lazy(functools.partial(_facts_after, program, rollable, model))
        for key, model in models
        if model is not None
    }


def _facts_after(
    program: Program, rollable: tuple[int, ...], model: Callable[[Program], Program]
) -> RewrittenFacts | None:
    """Return the facts after a rewrite, of the grid loops that the program already has; None if it changes nothing."""
    made = model(program)
    if made is program:
        return None
    own = replace(made, roots=made.roots[: len(program.roots)], blocks=made.blocks[: len(program.blocks)])
    new = replace(made, roots=made.roots[len(program.roots) :])
    copied = (
        sum(_accessed_bytes(made.tensors[op.attrs.tensor]) for op in new.walk() if op.kind in ("load", "store")) // 2
    )
    return RewrittenFacts(facts=collect_facts(own, rollable), copied_bytes=copied)


def _accessed_bytes(tensor: HostTensor) -> int:
    """Return the bytes of a tensor; dimensions of stride 0 are one element."""
    pairs = zip(map(count, tensor.shape), map(count, tensor.strides), strict=True)
    return math.prod(extent for extent, stride in pairs if stride) * tensor.dtype.itemsize


def _rewrites(program: Program, walk: Walk, axes: tuple[AxisFact, ...]) -> dict[str, Lazy[Any]]:
    """Return what heuristics know of each rewrite, computed at first use."""
    context = FactContext(
        program=program,
        dots={op.number: number for number, op in enumerate(walk.dots)},
        extents={axis.block_id: axis.extent for axis in axes},
        padded={axis.block_id: axis.padded for axis in axes},
        collect=functools.partial(collect_facts, rollable=()),
    )
    return {rewrite.key: Lazy(functools.partial(rewrite.fact, context)) for rewrite in REWRITES}


def _attention(walk: Walk, fact: AttentionFact | None) -> AttentionFact | None:
    """Return the fact with the results of the analysis of position masks."""
    if fact is None:
        return None
    program, queries, keys = walk.program, fact.query_axis, fact.key_axis
    begin, end = walk.diagonal.get(keys, (None, None))
    return replace(
        fact,
        hidden=keys in hidden_blocks(program),
        diagonal=isinstance(end, TileBound) and end.block == queries,
        window=None if queries is None else window_of(program, queries, keys),
        chunk=begin.multiple
        if isinstance(begin, TileBound) and begin.block == queries and begin.multiple > 1
        else None,
    )


def _attention_gradients(
    program: Program, found: tuple[AttentionGradientFact, ...]
) -> tuple[AttentionGradientFact, ...]:
    """Return the facts with the results of the analysis of position masks."""
    if not found:
        return ()
    makers, hidden = Makers.among(program.walk()), hidden_blocks(program)
    loops = [(op, op.attrs.axes[0]) for op in program.walk() if isinstance(op.attrs, ForAttrs)]
    bounded = {
        (axis.block, tile.block)
        for op, axis in loops
        for bound in (axis.begin, axis.end)
        if (tile := tile_of_bound(makers, op, bound)) is not None
    }
    return tuple(
        replace(
            fact,
            hidden=fact.streamed_axis in hidden or (fact.streamed_axis, fact.stationary_axis) in bounded,
        )
        for fact in found
    )


def _blocks(op: Op) -> Iterator[int]:
    """Yield the blocks of the results of ``op``."""
    for result in op.results:
        for dim in result.dims:
            yield from dim.blocks


def _exchanges(op: Op) -> bool:
    """Return whether ``op`` permutes a tile so that two dimensions of one axis change places."""
    if not isinstance(op.attrs, ViewAttrs) or op.attrs.name != "permute":
        return False
    (source,) = op.values()
    places: dict[int, int] = {}
    for at in op.attrs.order:
        for block in source.dims[at].blocks:
            if places.setdefault(block, at) > at:
                return True
            places[block] = at
    return False


def _scan(op: Op, walk: Walk) -> ScanFact:
    values = tuple(op.values())
    combined = [inner for inner in op.walk() if inner.kind == "pointwise"]
    return ScanFact(
        kind="scan" if op.kind == "scan" else "fold",
        axis=values[0].dims[op.attrs.dim].block,
        tile=walk.tile(values[0])[0],
        itemsize=sum(max(walk.tile(value)[1] for value in values) for _ in values),
        ops=len(combined),
        sfu_ops=sum(map(is_sfu, combined)),
        polynomials=sum(map(is_polynomial, combined)),
    )


def _sort(op: Op, walk: Walk) -> SortFact:
    tile, itemsize = walk.tile(op.result)
    return SortFact(axis=op.result.dims[-1].block, tile=tile, itemsize=itemsize)


def _dot_results(walk: Walk, matmuls: tuple[MatmulFact, ...]) -> dict[int, set[int]]:
    """Return, by loop, the yielded values with the shape of a dot whose accumulator the loop carries."""
    found: dict[int, set[int]] = {}
    for fact, op in zip(matmuls, walk.dots, strict=True):
        if fact.accumulator_loop is not None:
            product = op.results[0]
            for value in walk.bodies[fact.accumulator_loop].results:
                if isinstance(value, Value) and value.dims == product.dims:
                    found.setdefault(fact.accumulator_loop, set()).add(value.number)
    return found
