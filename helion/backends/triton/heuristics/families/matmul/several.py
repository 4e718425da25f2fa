"""Matmuls for which no other rule promotes a seed: chains of them, reductions over their rows, scans along their
columns.

Takes the first of a few tiles, from large to small, that fits without spilling and gives every SM a program. Without
one, it takes the tile that leaves the fewest SMs idle. Where SMs have few bytes in flight from memory, the stages grow.
A chunk whose rows are multiplied by themselves (linear attention, chunked scans) stays short, because a longer one
computes more masked elements. On H200 the tile of least predicted time replaces that where it takes four fifths of the
time or less. Matmuls have a default of their own because the conservative config has single rows, and matrix units take
16 or 64.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import ClassVar

from ......_compiler.facts.records import KernelFacts
from ......_shapes import cdiv
from ......_support.records import dataclass, replace
from ......autotuner.proposal import Declined, Heuristic, Predicted
from ......hardware import WARP_ROWS, Target
from ....proposal import TritonProposal
from ....resources.matrix import tile_shape
from ... import register_safety as safety
from ...candidates import moderate_sizes
from ...choose import full_first, trust, unless_faster
from ...predicted_time import proposal_us
from ...program_order import beside_pieces
from ...sizing import all_sizes, estimate, most_warps, programs_of, wave_efficiency
from ...tuned import Tuned, tuned
from .grid_order import ordered
from .near_products import near
from .operand_access import boxed_operands, boxes_beside_lines
from .persistent import on_persistent_grid


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "products"

    #: M and N of the tiles, from large to small.
    sides: tuple[tuple[int, int], ...]
    #: Bytes of the tiles along K and stages: a line of the shared memory swizzle of matrix units, or half of it.
    pipelines: tuple[tuple[int, int], ...]
    #: Constants where no matmul has more than this many rows, so that memory bounds it. Longer lines load more at
    #: once, and so do programs of few columns, of which an SM has several.
    few_rows: int
    few_rows_pipelines: tuple[tuple[int, int], ...]
    few_rows_columns: int
    warps: tuple[int, int, int]
    #: Most elements of a result or an operand that one warp multiplies.
    small: int
    #: Further sides and lines that predicted times compare, the usual line first; the number of leading tiles for
    #: which other lines are tried; and the largest ratio of predicted times at which the fastest replaces the tile by
    #: rule.
    wide_sides: tuple[tuple[int, int], ...]
    lines: tuple[int, int, int]
    leading: int
    #: Split-K factors tried for the leading tiles, and the most programs per SM or tiles, or multiple of the tiles of
    #: the largest size.
    parts: tuple[int, int, int, int]
    most_rounds: int
    #: Tiles whose programs leave more than all but one of so many SMs idle are not compared.
    idle: int
    more: int
    #: Most rows of a chunk that are multiplied by one another.
    chunk: int
    #: Most stages.
    most_stages: int
    #: Rows of the asynchronous instruction of one warp group; its columns, bytes along K and stages. It reads 64 rows
    #: and all columns from shared memory, which loads also write. With 128 columns shared memory is busier than the
    #: matrix unit.
    group_rows: int
    group_tile: tuple[int, int, int]
    #: Columns and stages of one warp group that reduces the rows of its result.
    group_columns: tuple[int, ...]
    group_stages: int


_TUNED = tuned(_Numbers)


class TritonProductsHeuristic(Heuristic):
    name: ClassVar[str] = "TritonProductsHeuristic"
    promote_seed_to_default: ClassVar[bool] = True
    fallback_only: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        if not facts.matmuls:
            return Declined("the kernel has no matmul")
        found = tuple(_feasible(facts, target))
        if not found:
            return Declined("no tile of the matmuls fits without spilling")
        sure = tuple(proposal for proposal, certain in found if certain) or tuple(proposal for proposal, _ in found)
        if _chunks(facts):  # programs that share a chunk each multiply it by itself: more of them are no gain as such
            best = min(sure, key=lambda p: _predicted(facts, p, target).time_us)
            predicted = estimate(facts, target, best.block_sizes, best.num_warps or 1, best.num_stages or 1)
            able = target.has("wgmma") and safety.within(predicted, safety.state_with_blocks(target))
            return (_with_block_pointers(best, facts) if able else best,)
        full = full_first(sure, lambda p: _programs(facts, p), target)
        assert full is not None
        deep = _deepened(facts, full, target)
        ruled: tuple[TritonProposal, ...] = (full,) if deep is None else (deep, full)
        wide = _one_group(facts, target) or _reduced_by_one_group(facts, target) if target.has("wgmma") else None
        if wide is not None:
            return (wide, *(ordered(facts, each, target) for each in ruled))
        ruled = tuple(beside_pieces(ordered(facts, each, target), facts) for each in ruled)
        timed = _fastest(facts, target)
        first = ruled[0], proposal_us(facts, ruled[0], target)
        others = () if timed is None else ((timed, proposal_us(facts, timed, target)),)
        best = unless_faster(first, others, trust(target).several_matmuls)
        others_of = (_with_fewer_sums, _with_fewer_rows, _with_more_columns, _with_shared_steps)
        changed = next((each for of in others_of if (each := of(facts, best, target)) is not None), None)
        if changed is not None:
            return changed, best, *ruled
        chosen = ruled if best is ruled[0] else (best, *ruled)
        if (nearby := near(facts, best, target)) is not None:
            chosen = (nearby, *chosen)
        boxed = boxed_operands(facts, all_sizes(facts, chosen[0].block_sizes), target)
        loaded = _with_descriptors(chosen[0], boxed) if boxed else _with_boxes_beside_lines(facts, chosen[0], target)
        if loaded is None:
            return chosen
        persistent = on_persistent_grid(facts, loaded, target)
        return (loaded, *chosen) if persistent is None else (persistent, loaded, *chosen)


def _with_fewer_sums(facts: KernelFacts, tile: TritonProposal, target: Target) -> TritonProposal | None:
    """Return the tile with a longer K, where programs add their products to memory.

    Each then adds less often. While an SM has several programs, some load during the additions of others (measurement
    ``added_products``).
    """
    if len(facts.matmuls) != 1 or not any(op.kind == "atomic" for op in facts.atomics):
        return None
    k = facts.matmuls[0].k_block_id
    if k is None or not facts.axes[k].on_grid or k not in tile.block_sizes:
        return None
    first, found, (size, warps) = proposal_us(facts, tile, target), [], (tile.block_sizes[k], tile.num_warps or 1)
    for longer, more in itertools.product((2, 4), (1, 2)):
        each = replace(
            tile,
            reason=f"{tile.reason}, {size * longer} of K for one addition",
            block_sizes={**tile.block_sizes, k: size * longer},
            num_warps=warps * more,
        )
        predicted = estimate(facts, target, each.block_sizes, warps * more, tile.num_stages or 1)
        if predicted.fits and not predicted.spill_risk and predicted.occupancy_blocks > 1:
            found.append((each, proposal_us(facts, each, target)))
    best = unless_faster((tile, first), found, trust(target).several_matmuls)
    return None if best is tile else best


def _with_fewer_rows(facts: KernelFacts, tile: TritonProposal, target: Target) -> TritonProposal | None:
    """Return the tile with half of the rows or less, for programs that multiply once and then reduce the rows.

    Only other programs of the SM compute while one waits for its operands (measurement ``multiplied_once``).
    """
    fact = facts.matmuls[0]
    m, once = fact.m_block_id, facts.regions[fact.region].kind == "root"
    if len(facts.matmuls) != 1 or not once or m is None or not any(each.tile for each in facts.reductions):
        return None
    found, rows = [], tile.block_sizes.get(m, 1)
    while (rows := rows // 2) >= max(_TUNED.group_rows, facts.axes[m].min_size):
        reason = f"{tile.reason}, {rows} rows of programs that multiply once"
        each = replace(tile, reason=reason, block_sizes={**tile.block_sizes, m: rows}, num_stages=1)
        predicted = estimate(facts, target, each.block_sizes, each.num_warps or 1, 1)
        if predicted.fits and not predicted.spill_risk:
            found.append((each, proposal_us(facts, each, target)))
    best = unless_faster((tile, proposal_us(facts, tile, target)), found, trust(target).fewer_multiplied)
    return None if best is tile else best


def _with_more_columns(facts: KernelFacts, tile: TritonProposal, target: Target) -> TritonProposal | None:
    """Return the tile with twice the columns, for rows that stay while each step of a loop multiplies and reduces them.

    A step then waits once for twice the work (measurement ``reduced_columns``).
    """
    fact = facts.matmuls[0]
    n, loop = fact.n_block_id, facts.regions[fact.region]
    reduced = any(each.axis == n and each.region == fact.region for each in facts.reductions)
    if len(facts.matmuls) != 1 or n is None or fact.k_block_id is not None or not reduced or loop.axes != (n,):
        return None
    found, sizes = [], {**tile.block_sizes, n: 2 * tile.block_sizes.get(n, 1)}
    for warps in ((tile.num_warps or 1), 2 * (tile.num_warps or 1)):
        predicted = estimate(facts, target, sizes, warps, tile.num_stages or 1)
        if warps <= _TUNED.warps[-1] and predicted.fits and not predicted.spill_risk:
            each = replace(tile, reason=f"{tile.reason}, twice the columns", block_sizes=sizes, num_warps=warps)
            found.append((each, proposal_us(facts, each, target)))
    best = unless_faster((tile, proposal_us(facts, tile, target)), found, trust(target).several_matmuls)
    return None if best is tile else best


def _with_shared_steps(facts: KernelFacts, tile: TritonProposal, target: Target) -> TritonProposal | None:
    """Return the tile with split-K, where each SM has one program at most, whose steps compute an operand.

    Each step waits for the operand in shared memory, while another program of the SM could multiply. Predictions count
    less of the wait (measurement ``shared_steps``).
    """
    ratio, programs = trust(target).shared_steps, _programs(facts, tile)
    looped = [fact for fact in facts.matmuls if facts.regions[fact.region].kind == "loop"]
    computed = any((fact.lhs_prologue or fact.rhs_prologue) and not fact.consumes for fact in looped)
    if not (ratio and computed and facts.splittable_k) or tile.launch or programs > target.num_sms:
        return None
    found = [(each, proposal_us(facts, each, target)) for each in _with_parts(facts, tile, target)]
    best = unless_faster((tile, proposal_us(facts, tile, target)), found, ratio)
    return None if best is tile else best


def _with_descriptors(proposal: TritonProposal, slots: frozenset[int]) -> TritonProposal:
    reason = f"{proposal.reason}, descriptors for K-major operands"
    return replace(proposal, indexing=dict.fromkeys(slots, "tensor_descriptor"), reason=reason)


def _with_boxes_beside_lines(facts: KernelFacts, tile: TritonProposal, target: Target) -> TritonProposal | None:
    """Return the tile with a descriptor for rows that are next to columns at a computed place; None for other kernels.

    It has twice the rows and warps, and the most stages, where that is predicted to be faster.
    """
    slots = boxes_beside_lines(facts, all_sizes(facts, tile.block_sizes), target)
    m = facts.matmuls[0].m_block_id
    if not slots or m is None:
        return None
    sizes, warps = {**tile.block_sizes, m: 2 * tile.block_sizes[m]}, 2 * (tile.num_warps or 1)
    found = [_with_descriptors(tile, slots)]
    for stages in range(_TUNED.most_stages, 1, -1):
        predicted = estimate(facts, target, sizes, warps, stages)
        if predicted.fits and not predicted.spill_risk and sizes[m] <= (facts.axes[m].max_size or sizes[m]):
            reason = f"{tile.reason}, twice the rows in {stages} stages"
            taller = replace(tile, reason=reason, block_sizes=sizes, num_warps=warps, num_stages=stages)
            found.append(_with_descriptors(taller, slots))
            break
    return min(found, key=lambda each: proposal_us(facts, each, target))


def _with_block_pointers(proposal: TritonProposal, facts: KernelFacts) -> TritonProposal:
    """Return the proposal with block pointers for left operands of several matmuls (measurement ``left_blocks``).

    Triton copies their tiles without addresses for each element.
    """
    uses = Counter(fact.lhs_slot for fact in facts.matmuls if not fact.lhs_prologue)
    plain = {op.slot for op in facts.memory_ops if op.kind == "load" and op.static and not op.gathered}
    slots = [slot for slot, count in uses.items() if count > 1 and slot in plain]
    reason = f"{proposal.reason}, block pointers for operands of several matmuls" if slots else proposal.reason
    return replace(proposal, indexing=dict.fromkeys(slots, "block_ptr"), reason=reason)


def _one_group(facts: KernelFacts, target: Target) -> TritonProposal | None:
    """Return a proposal for a matmul whose kernel fixes M to the rows of one warp group.

    It has as many columns as the instruction takes, with descriptors along them unless threads gather the rows of the
    other operand (measurement ``gathered_blocks``). Return None for other matmuls, or too few tiles.
    """
    if len(facts.matmuls) != 1:
        return None
    (fact,) = facts.matmuls
    n, k = fact.n_block_id, fact.k_block_id
    if fact.m_axis is None or facts.axes[fact.m_axis].size != _TUNED.group_rows or n is None or k is None:
        return None
    itemsize = max(fact.lhs_dtype.itemsize, fact.rhs_dtype.itemsize)
    columns, line, stages = _TUNED.group_tile
    sizes = moderate_sizes(facts, {"m": _TUNED.group_rows, "n": columns, "k": line // itemsize})
    if itemsize != 2 or sizes.get(n) != columns or sizes.get(k) != line // itemsize:
        return None
    predicted = estimate(facts, target, sizes, _TUNED.warps[0], stages)
    if not predicted.fits or predicted.spill_risk or _steps(facts, sizes) < stages:
        return None
    if wave_efficiency(_count_programs(facts, sizes), target) < trust(target).full_waves:
        return None
    loads = [op for op in facts.memory_ops if op.kind == "load"]
    gathers = any(op.gathered for op in loads if op.slot == fact.lhs_slot)
    right = [op for op in loads if op.slot == fact.rhs_slot and not gathers]
    boxed = {op.slot: "tensor_descriptor" for op in right if op.static and not op.gathered}
    proposal = TritonProposal(
        reason=f"{_TUNED.group_rows} x {columns} tiles of one warp group, {stages} stages",
        block_sizes=sizes,
        num_warps=_TUNED.warps[0],
        num_stages=stages,
        indexing=boxed,
    )
    return ordered(facts, proposal, target)


def _reduced_by_one_group(facts: KernelFacts, target: Target) -> TritonProposal | None:
    """Return a proposal for rows that stay while a loop multiplies them by tiles of the other operand and reduces the
    result.

    One warp group reduces its rows without waiting for another. It has as many columns as leave room for three stages.
    Those columns also keep to the safe percentage of registers, which the rows share. Return None for other kernels.
    """
    if len(facts.matmuls) != 1:
        return None
    (fact,) = facts.matmuls
    m, n = fact.m_block_id, fact.n_block_id
    loop = facts.regions[fact.region]
    reduced = any(each.axis == n and each.region == fact.region for each in facts.reductions)
    if m is None or n is None or fact.k_block_id is not None or not reduced or loop.axes != (n,):
        return None
    stored = any(op.kind != "load" and op.region == fact.region for op in (*facts.memory_ops, *facts.atomics))
    if stored or fact.lhs_slot is None or max(fact.lhs_dtype.itemsize, fact.rhs_dtype.itemsize) != 2:
        return None
    for columns in _TUNED.group_columns:
        sizes = moderate_sizes(facts, {"m": _TUNED.group_rows, "n": columns, "k": 16})
        predicted = estimate(facts, target, sizes, _TUNED.warps[0], _TUNED.group_stages)
        safe = not predicted.spill_risk and safety.within(predicted, safety.products(target))
        if (sizes.get(m), sizes.get(n)) == (_TUNED.group_rows, columns) and predicted.fits and safe:
            reason = f"{_TUNED.group_rows} x {columns} tiles of one warp group, which reduces its rows alone"
            return TritonProposal(
                reason=reason, block_sizes=sizes, num_warps=_TUNED.warps[0], num_stages=_TUNED.group_stages
            )
    return None


def _fastest(facts: KernelFacts, target: Target) -> TritonProposal | None:
    """Return the proposal of least predicted time over all tiles with the usual K line, and over other lines for the
    leading ones.

    Tiles that leave SMs idle alone are compared with split-K (measurement ``split_tiles``).
    """
    itemsize = max(max(fact.lhs_dtype.itemsize, fact.rhs_dtype.itemsize) for fact in facts.matmuls)
    least = target.min_dot(itemsize)[2]

    def tile(sides: tuple[int, int], line: int) -> dict[int, int]:
        m, n = sides
        return moderate_sizes(facts, {"m": m, "n": n, "k": max(least, line // itemsize)})

    sides = {tuple(tile(each, _TUNED.lines[0]).items()): each for each in (*_TUNED.wide_sides, *_TUNED.sides)}
    counts = {sizes: _count_programs(facts, dict(sizes)) for sizes in sides}
    most = max(_TUNED.most_rounds * target.num_sms, _TUNED.more * min(counts.values()))
    usual = [
        (each, _deepest(facts, dict(sizes), target))
        for sizes, each in sides.items()
        if target.num_sms <= _TUNED.idle * counts[sizes] and counts[sizes] <= most
    ]
    timed = [(proposal_us(facts, found, target), each, found) for each, found in usual if found is not None]
    few = [sizes for sizes in sides if facts.splittable_k and target.num_sms > _TUNED.idle * counts[sizes]]
    parted = [found for sizes in few if (found := _deepest(facts, dict(sizes), target)) is not None]
    if not timed:
        return None
    timed.sort(key=lambda option: option[0])
    worth = timed[0][0] * trust(target).other_lines
    for _, each, first in timed[: _TUNED.leading]:
        if (more := _with_more_warps(facts, first, target)) is not None:
            timed.append((proposal_us(facts, more, target), each, more))
        for line in _TUNED.lines[1:]:
            if (found := _deepest(facts, tile(each, line), target)) is not None:
                us = proposal_us(facts, found, target)
                timed += [(us, each, found)] if us <= worth else []
    leaders = [found for _, _, found in timed[: 2 * _TUNED.leading]] if facts.splittable_k else []
    split = [each for found in (*leaders, *parted) for each in _with_parts(facts, found, target)]
    shared = [(each, proposal_us(facts, each, target)) for each in split]
    us, _, whole = min(timed, key=lambda option: option[0])
    chained = any(fact.consumes for fact in facts.matmuls)
    ratio = trust(target).chained_split_k if chained else trust(target).split_k
    best = unless_faster((whole, us), shared, ratio)
    return beside_pieces(ordered(facts, best, target), facts)


def _with_parts(facts: KernelFacts, whole: TritonProposal, target: Target) -> list[TritonProposal]:
    """Return a tile with split-K: programs for a few rounds of the SMs, or for all that run at once if these are more."""
    at_once = _predicted(facts, whole, target).occupancy_blocks
    most = max(_TUNED.most_rounds, at_once) * target.num_sms // _programs(facts, whole)
    most = min(most, _steps(facts, dict(whole.block_sizes)))
    return [
        replace(whole, reason=f"{whole.reason}, split-K by {parts}", launch={"split_k": parts})
        for parts in _TUNED.parts
        if parts <= most
    ]


def _deepest(facts: KernelFacts, sizes: dict[int, int], target: Target) -> TritonProposal | None:
    """Return a tile with the fewest warps and the most stages with which it fits without spilling."""
    percent = safety.products(target)
    warps = _fewest_warps(facts, target, sizes, 1, percent)
    if warps is None or not safety.within(estimate(facts, target, sizes, warps, 1), percent):
        return None
    # some matrix units need one stage less
    room = 1 + target.smem_per_block_bytes // max(1, _staged_bytes(facts, sizes))
    for stages in range(max(1, min(_TUNED.most_stages, _steps(facts, sizes), room)), 0, -1):
        predicted = estimate(facts, target, sizes, warps, stages)
        if predicted.fits and not predicted.spill_risk:
            tiles = " x ".join(str(size) for size in sizes.values())
            reason = f"{tiles} tiles, {stages} stages, the least predicted time"
            return TritonProposal(reason=reason, block_sizes=sizes, num_warps=warps, num_stages=stages)
    return None


def _with_more_warps(facts: KernelFacts, tile: TritonProposal, target: Target) -> TritonProposal | None:
    """Return a tile of several matmuls with twice the warps, of which each then has rows of its own; otherwise None."""
    warps = 2 * (tile.num_warps or 1)
    sizes = all_sizes(facts, tile.block_sizes)
    rows = min(tile_shape(fact, sizes)[0] for fact in facts.matmuls)
    if len(facts.matmuls) == 1 or warps > _TUNED.warps[-1] or rows < WARP_ROWS * warps:
        return None
    predicted = estimate(facts, target, tile.block_sizes, warps, tile.num_stages or 1)
    if not predicted.fits or predicted.spill_risk:
        return None
    return replace(tile, num_warps=warps, reason=f"{tile.reason}, {warps} warps")


def _predicted(facts: KernelFacts, proposal: TritonProposal, target: Target) -> Predicted:
    warps, stages = proposal.num_warps or _TUNED.warps[0], proposal.num_stages or 1
    return estimate(facts, target, proposal.block_sizes, warps, stages)


def _deepened(facts: KernelFacts, proposal: TritonProposal, target: Target) -> TritonProposal | None:
    """Return the proposal with more stages, where its own do not hide the latency of memory."""
    sizes, warps = dict(proposal.block_sizes), proposal.num_warps or _TUNED.warps[0]
    stages = first = proposal.num_stages or 1
    if target.kind != "cuda" or first < _TUNED.pipelines[0][1]:
        return None
    while stages < min(_TUNED.most_stages, _steps(facts, sizes)):
        resident = min(cdiv(_programs(facts, proposal), target.num_sms), _resident(facts, target, sizes, warps, stages))
        if (stages - 1) * resident * _staged_bytes(facts, sizes) >= target.in_flight_bytes:
            break
        predicted = estimate(facts, target, sizes, warps, stages + 1)
        if not predicted.fits or predicted.spill_risk:
            break
        stages += 1
    if stages == first:
        return None
    return replace(proposal, num_stages=stages, reason=f"{proposal.reason}; {stages} stages for bytes in flight")


def _steps(facts: KernelFacts, sizes: dict[int, int]) -> int:
    """Return the steps of the longest loop with an operand, as far as known."""
    every = all_sizes(facts, sizes)
    loops = {facts.regions[operand.region] for operand in facts.staged if facts.regions[operand.region].kind == "loop"}
    axes = ([facts.axes[a] for a in loop.axes] for loop in loops)
    return max((math.prod(cdiv(a.extent or a.mean or 1, every[a.block_id]) for a in each) for each in axes), default=1)


def _resident(facts: KernelFacts, target: Target, sizes: dict[int, int], warps: int, stages: int) -> int:
    return max(1, estimate(facts, target, sizes, warps, stages).occupancy_blocks)


def _staged_bytes(facts: KernelFacts, sizes: dict[int, int]) -> int:
    """Return the bytes of one stage of the loop that stages the most, in the dtypes of memory."""
    every = all_sizes(facts, sizes)
    found: dict[int, dict[int, int]] = {}
    for operand in facts.staged:
        if facts.regions[operand.region].kind == "loop":
            stored = next((op.itemsize for op in facts.memory_ops if op.slot == operand.slot), operand.itemsize)
            found.setdefault(operand.region, {})[operand.slot] = stored * math.prod(every[a] for a in operand.axes)
    return max((sum(slots.values()) for slots in found.values()), default=0)


def _feasible(facts: KernelFacts, target: Target) -> Iterator[tuple[TritonProposal, bool]]:
    """Yield for each tile the widest K, deepest pipeline and fewest warps predicted not to spill.

    The flag tells whether the prediction stays within the safe percentage of registers.
    """
    itemsize = max(max(fact.lhs_dtype.itemsize, fact.rhs_dtype.itemsize) for fact in facts.matmuls)
    least = target.min_dot(itemsize)[2]
    percent = safety.state(target) if _chunks(facts) else safety.products(target)
    pipelines: tuple[tuple[int, int], ...] = _TUNED.pipelines
    sides: tuple[tuple[int, int], ...] = _TUNED.sides
    if _has_few_rows(facts) and target.kind == "cuda":
        pipelines = (*_TUNED.few_rows_pipelines, *_TUNED.pipelines)
        sides = tuple(each for each in _TUNED.sides if each[1] <= _TUNED.few_rows_columns)
    for m, n in sides:
        for line, stages in pipelines:
            k = max(least, line // itemsize)
            sizes = moderate_sizes(facts, {"m": m, "n": n, "k": k})
            sizes |= {axis: min(sizes[axis], _TUNED.chunk) for axis in _chunks(facts) if axis in sizes}
            warps = _fewest_warps(facts, target, sizes, stages, percent if _chunks(facts) else safety.ALL)
            if warps is not None:
                predicted = estimate(facts, target, sizes, warps, stages)
                reason = f"{m} x {n} x {k} tiles, {stages} stages, {predicted.registers_per_thread} registers"
                proposal = TritonProposal(reason=reason, block_sizes=sizes, num_warps=warps, num_stages=stages)
                yield proposal, safety.within(predicted, percent)
                break


def _has_few_rows(facts: KernelFacts) -> bool:
    """Return whether no matmul has more rows than a matrix unit takes at once."""
    return all(
        fact.m_block_id is None and (fact.static_m or _TUNED.few_rows + 1) <= _TUNED.few_rows for fact in facts.matmuls
    )


def _chunks(facts: KernelFacts) -> set[int]:
    """Return the tiles of a loop that are both sides of a matmul."""
    square = {fact.m_block_id for fact in facts.matmuls if fact.m_block_id == fact.n_block_id}
    return {axis for axis in square if axis is not None and not facts.axes[axis].on_grid}


def _fewest_warps(facts: KernelFacts, target: Target, sizes: dict[int, int], stages: int, percent: int) -> int | None:
    """Return the fewest warps whose registers stay within ``percent``, else the fewest that do not spill.

    Return None where every number of warps spills, or the tile does not fit.
    """
    found = None
    few = (1,) if _is_small(facts, sizes) else ()
    for warps in (w for w in (*few, *_TUNED.warps) if w <= most_warps(facts, sizes, target)):
        predicted = estimate(facts, target, sizes, warps, stages)
        if not predicted.fits:
            break
        if not predicted.spill_risk and safety.within(predicted, percent):
            return warps
        if not predicted.spill_risk and found is None:
            found = warps
    return found


def _is_small(facts: KernelFacts, sizes: dict[int, int]) -> bool:
    """Return whether each program multiplies small matrices once: more warps than one would wait for each other."""
    every = all_sizes(facts, sizes)
    shapes = [tile_shape(fact, every) for fact in facts.matmuls]
    once = all(facts.regions[fact.region].kind == "root" for fact in facts.matmuls)
    return once and all(max(m * n, m * k, n * k) <= _TUNED.small for m, n, k in shapes)


def _programs(facts: KernelFacts, proposal: TritonProposal) -> int:
    return _count_programs(facts, proposal.block_sizes)


def _count_programs(facts: KernelFacts, sizes: Mapping[int, int]) -> int:
    """Return the programs of grid loops with a matmul that run at the same time, where they are the most."""
    found: Counter[int] = Counter()
    for root in {facts.regions[fact.region].root for fact in facts.matmuls}:
        found[facts.phases[root] if facts.phases else root] += programs_of(facts, sizes, root)
    return max(found.values())
