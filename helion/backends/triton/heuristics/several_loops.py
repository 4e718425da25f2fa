"""Kernels of several grid loops: the proposals of each heuristic, with larger tiles for the loops that it leaves out.

A heuristic finds the tiles of the loop that it knows. The tile of another loop may then have few elements, as of one that
applies what the first one reduces. It grows as long as the predicted time becomes shorter, and by more where SMs become
idle. Or it has too many, as of sums before a matmul, and is halved. With a barrier and no host code in between, loops
may have one cooperative launch of persistent programs. It is proposed if it is predicted to be faster.

A whole dimension of a loop without a matmul may leave no registers for the tiles of another loop. Examples are parts
of keys that a last loop puts together. It is then reduced in chunks (measurement ``parts_beside_products``).

Loops that all map elements have tiles and orders of their own: each is a kernel of one loop to the heuristic.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, cast

from ...._compiler.facts.records import AxisFact, KernelFacts
from ...._shapes import previous_power_of_2
from ...._support.records import dataclass, replace
from ....autotuner import margins
from ....autotuner.proposal import Declined, Heuristic, Predicted, Proposal
from ....hardware import Target
from ..proposal import TritonProposal
from ..together import TOGETHER
from .choose import trust, unless_faster
from .families.tile_results import with_larger_tiles
from .nearby import with_nearby
from .predicted_time import proposal_us
from .registry import HEURISTICS as RULES
from .sizing import Chunks, Sizes, clamp, estimate, extent_of, halve, is_contiguous, programs_of
from .tuned import Tuned, tuned


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "several_loops"

    #: Elements of a tile that stays as proposed.
    enough: int
    #: Predicted time with twice as many elements, relative to the time with a smaller tile, up to which it grows.
    shorter: float
    #: Persistent programs on each SM, which all run at once.
    per_sm: tuple[int, ...]
    #: Fewest columns of a tile of sums, and most elements.
    narrow: int
    summed: int
    #: Elements of a chunk of a whole dimension with all of the whole dimensions next to it.
    chunk: int


_TUNED = tuned(_Numbers)


@dataclass(frozen=True)
class OfAllLoops:
    """A heuristic that completes the proposals of another one for kernels of several grid loops."""

    rule: Heuristic

    @property
    def name(self) -> str:
        return self.rule.name

    @property
    def promote_seed_to_default(self) -> bool:
        return self.rule.promote_seed_to_default

    @property
    def fallback_only(self) -> bool:
        return self.rule.fallback_only

    def competes_within(self, facts: KernelFacts, target: Target) -> float:
        return self.rule.competes_within(facts, target)

    def propose(self, facts: KernelFacts, target: Target) -> tuple[Proposal, ...] | Declined:
        found = self.rule.propose(facts, target)
        if facts.num_roots == 1:
            if isinstance(found, Declined) or not self.rule.promote_seed_to_default:
                return found
            following = itertools.dropwhile(lambda rule: rule is not self.rule, RULES)
            found = with_nearby(found, facts, target, itertools.islice(following, 1, None))
            return with_larger_tiles(found, facts, target)
        if isinstance(found, Declined):
            chunks = _chunks(facts)
            again = self.rule.propose(_with_chunks(facts, chunks), target) if chunks else found
            if isinstance(again, Declined):
                return found
            found = tuple(replace(cast("TritonProposal", each), reduction_loops=chunks) for each in again)
        if facts.pointwise is not None and (each := loop_by_loop(self.rule, facts, target)) is not None:
            return (*in_one_launch(each, facts, target), each)
        first = with_smaller_tiles(cast("TritonProposal", found[0]), facts, target)
        first = with_half_lines(with_other_loops(with_rules_alone(first, facts, target), facts, target), facts, target)
        first = each_alone(first, facts, target)
        return (*in_one_launch(first, facts, target), first, *found[1:])


def loop_by_loop(rule: Heuristic, facts: KernelFacts, target: Target) -> TritonProposal | None:
    """Return the tiles and orders that a rule proposes for each grid loop alone; None where it declines one of them.

    All loops have as many warps: those of one of the proposals, whichever is predicted to be faster.
    """
    found: list[TritonProposal] = []
    for alone in facts.apart:
        proposals = rule.propose(alone.value, target)
        if isinstance(proposals, Declined):
            return None
        found.append(cast("TritonProposal", proposals[0]))
    return min(_together(found, facts), key=lambda each: proposal_us(facts, each, target))


def _together(found: list[TritonProposal], facts: KernelFacts) -> list[TritonProposal]:
    """Return the proposals for each grid loop as those of the kernel, with the warps of each of them."""
    sizes, orders, flat = dict[int, int](), dict[int, tuple[int, ...]](), dict[int, bool]()
    chunks = dict[int, int | None]()
    for root, (before, each) in enumerate(zip(_loops_before(facts), found, strict=True)):
        own = {axis for region in facts.regions if region.root == root for axis in region.axes}
        sizes |= {axis: size for axis, size in each.block_sizes.items() if axis in own}
        moved = {axis for op in facts.memory_ops if facts.regions[op.region].root == root for axis in op.tile_axes}
        chunks |= {axis: size for axis, size in each.reduction_loops.items() if axis in moved - chunks.keys()}
        orders.update((root, order) for order in each.loop_orders.values())
        flat |= {root if number >= 0 else number - before: flag for number, flag in each.flatten_loops.items()}
    reason = "; ".join(f"loop {at}: {each.reason}" for at, each in enumerate(found))
    made = replace(
        found[0], reason=reason, block_sizes=sizes, loop_orders=orders, flatten_loops=flat, reduction_loops=chunks
    )
    return [replace(made, num_warps=warps) for warps in dict.fromkeys(each.num_warps for each in found)]


def each_alone(proposal: TritonProposal, facts: KernelFacts, target: Target) -> TritonProposal:
    """Return a proposal, or that of the rule and its nearby tiles for each grid loop alone where it is much faster.

    The rule of one grid loop knows nothing of the others, nor do nearby tiles (measurement ``loops_alone``).
    """
    if facts.matmuls or not facts.reductions:
        return proposal
    if proposal.pid_type is not None or proposal.launch or proposal.ranges:
        return proposal
    found: list[TritonProposal] = []
    for alone in facts.apart:
        made = _made_by_rules(alone.value, target)
        if made is None or made.pid_type is not None or made.launch or made.ranges:
            return proposal
        found.append(made)
    grown = [with_other_loops(each, facts, target) for each in _together(found, facts)]
    timed = [(each, proposal_us(facts, each, target)) for each in grown]
    gathers = any(op.gathered for op in facts.memory_ops)  # predictions hardly rank tiles of computed subscripts
    ratio = trust(target).gathers_alone if gathers else trust(target).loops_alone
    return unless_faster((proposal, proposal_us(facts, proposal, target)), timed, ratio)


def _made_by_rules(alone: KernelFacts, target: Target) -> TritonProposal | None:
    """Return the first proposal of the first rule for the kernel of one grid loop, or a nearby one."""
    for at, rule in enumerate(RULES):
        found = rule.propose(alone, target)
        if not isinstance(found, Declined) and (rule.promote_seed_to_default or rule is RULES[-1]):
            return cast("TritonProposal", with_nearby(found, alone, target, RULES[at + 1 :])[0])
    return None


def with_rules_alone(proposal: TritonProposal, facts: KernelFacts, target: Target) -> TritonProposal:
    """Return a proposal with the tiles of rules for grid loops with a loop of unknown length, if these are faster.

    The rule of another grid loop leaves one element to such a loop (measurement ``triangles_beside_sums``).
    """
    multiplying = {facts.regions[fact.region].root for fact in facts.matmuls}
    unknown = [
        axis for axis in facts.tunable_axes if axis.extent is None and proposal.block_sizes.get(axis.block_id) == 1
    ]
    for root in {root for axis in unknown for root in _roots_of(axis, facts)} - multiplying:
        own = {axis for region in facts.regions if region.root == root for axis in region.axes}
        alone = (rule.propose(facts.apart[root].value, target) for rule in RULES)
        found = next((each for each in alone if not isinstance(each, Declined)), ())
        if not found:
            continue
        made = cast("TritonProposal", found[0])
        sizes = {axis: size for axis, size in made.block_sizes.items() if axis in own}
        reason = f"{proposal.reason}; loop {root}: {made.reason}"
        ours = replace(proposal, reason=reason, block_sizes={**proposal.block_sizes, **sizes})
        tried = [ours, replace(ours, num_warps=made.num_warps)]
        timed = [(each, proposal_us(facts, each, target)) for each in (proposal, *tried)]
        if all(not _spills_more(each, proposal, facts, target) for each in tried):
            proposal = unless_faster(timed[0], timed[1:], _TUNED.shorter)
    return proposal


def _loops_before(facts: KernelFacts) -> list[int]:
    """Return the number of loops before each grid loop."""
    loops = [region for region in facts.regions if region.kind != "branch"]
    return [at for at, region in enumerate(loops) if region.kind == "root"]


@functools.cache
def heuristics() -> tuple[Heuristic, ...]:
    """Return the heuristics of the registry, each for all loops of a kernel."""
    return cast("tuple[Heuristic, ...]", tuple(map(OfAllLoops, RULES)))


def _chunks(facts: KernelFacts) -> Chunks:
    """Return chunks of the whole dimensions that only loops without a matmul have, if other loops have one.

    Dimensions that fit in one chunk stay whole.
    """
    multiplying = {facts.regions[fact.region].root for fact in facts.matmuls}
    chunks: Chunks = {}
    for axis in facts.rolled_axes if multiplying else ():
        ops = [op for op in facts.memory_ops if axis.block_id in op.tile_axes]
        whole = {facts.axes[each] for op in ops for each in op.tile_axes if facts.axes[each].kind == "full"} - {axis}
        size = previous_power_of_2(max(1, _TUNED.chunk // math.prod(max(1, each.padded) for each in whole)))
        roots = {facts.regions[op.region].root for op in ops}
        if roots and not roots & multiplying and size < axis.padded:
            chunks[axis.block_id] = size
    return chunks


def _with_chunks(facts: KernelFacts, chunks: Chunks) -> KernelFacts:
    """Return facts in which the dimensions are as long as their chunks, for rules that take them whole."""
    sizes = {block: size for block, size in chunks.items() if size is not None}
    axes = (replace(axis, padded=sizes.get(axis.block_id, axis.padded)) for axis in facts.axes)
    return replace(facts, axes=tuple(axes))


def with_smaller_tiles(proposal: TritonProposal, facts: KernelFacts, target: Target) -> TritonProposal:
    """Return a proposal with smaller tiles of the loops that multiply nothing, where these spill or leave SMs idle.

    Each step halves the tile that lowers the spills most, then the predicted time, while that falls. The proposal stays as
    it is unless its own tiles spill and others do not, or take twice as long.
    """
    multiplying = {facts.regions[fact.region].root for fact in facts.matmuls}
    busy = {axis for region in facts.regions if region.root in multiplying for axis in region.axes}
    own = [axis for axis in facts.tunable_axes if multiplying and axis.block_id not in busy]

    def short(sizes: Sizes, _: Chunks) -> tuple[float, ...]:
        smaller = replace(proposal, block_sizes=sizes)
        found = _estimate(smaller, facts, target)
        return not found.fits, found.spill_risk, proposal_us(facts, smaller, target)

    given = dict(proposal.block_sizes)
    first = short(given, {})
    start = _capped(given, own, facts)
    starts = (start, _spread(start, own, facts, target))
    before, sizes = min((_descended(each, own, facts, short) for each in starts), key=lambda found: found[0])
    if any(before[:-1]) or (not any(first[:-1]) and margins.FASTER_RATIO * before[-1] > first[-1]):
        return proposal
    tiles = " x ".join(str(sizes[axis.block_id]) for axis in own if axis.block_id in sizes)
    return replace(proposal, block_sizes=sizes, reason=f"{proposal.reason}, smaller tiles of other loops, {tiles}")


def _descended(
    sizes: Sizes, own: list[AxisFact], facts: KernelFacts, short: Callable[[Sizes, Chunks], tuple[float, ...]]
) -> tuple[tuple[float, ...], Sizes]:
    """Return the tiles to which steps lead that halve one, or double another one for it, with what they are short of."""
    before = short(sizes, {})
    while able := [axis.block_id for axis in own if sizes.get(axis.block_id, 0) > axis.min_size]:
        smaller = halve(able, sizes, {}, facts, short)
        assert smaller is not None
        options = [smaller[0]]
        if not any(before[:-1]):
            wide = all(size >= _least(facts.axes[axis], facts) for axis, size in smaller[0].items() if axis in able)
            options = [*(options if wide else ()), *_traded(own, sizes, facts)]
        if not options:
            break
        timed = [short(each, {}) for each in options]
        after = min(timed)
        if not any(before[:-1]) and after >= before:
            break
        sizes, before = options[timed.index(after)], after
    return before, sizes


def _capped(sizes: Sizes, own: list[AxisFact], facts: KernelFacts) -> Sizes:
    """Return tiles of loops with no more elements than ``summed``, those along the loops halved first."""
    sizes = dict(sizes)
    for root in {root for axis in own for root in axis.roots}:
        there = [axis for axis in own if _roots_of(axis, facts) == {root} and axis.block_id in sizes]
        if all(axis.on_grid for axis in there):
            continue
        for axis in sorted(there, key=lambda axis: axis.on_grid):
            while math.prod(sizes[each.block_id] for each in there) > _TUNED.summed and sizes[axis.block_id] > _least(
                axis, facts
            ):
                sizes[axis.block_id] //= 2
    return sizes


def _spread(sizes: Sizes, own: list[AxisFact], facts: KernelFacts, target: Target) -> Sizes:
    """Return tiles of as many elements, in loops where they are in the grid now, so that more SMs have a program."""
    sizes = dict(sizes)
    for root in {root for axis in own for root in axis.roots}:
        there = [axis for axis in own if _roots_of(axis, facts) == {root} and axis.block_id in sizes]
        grid, loops = [axis for axis in there if axis.on_grid], [axis for axis in there if not axis.on_grid]
        for axis in grid if loops else ():
            more = loops[-1]
            while (
                programs_of(facts, sizes, root) < target.num_sms
                and sizes[axis.block_id] > _least(axis, facts)
                and clamp(2 * sizes[more.block_id], more) > sizes[more.block_id]
            ):
                sizes |= {axis.block_id: sizes[axis.block_id] // 2, more.block_id: 2 * sizes[more.block_id]}
    return sizes


def _least(axis: AxisFact, facts: KernelFacts) -> int:
    return max(axis.min_size, _TUNED.narrow if axis.on_grid and is_contiguous(axis, facts) else 1)


def _roots_of(axis: AxisFact, facts: KernelFacts) -> set[int]:
    return {region.root for region in facts.regions if axis.block_id in region.axes}


def _traded(axes: list[AxisFact], sizes: Sizes, facts: KernelFacts) -> list[Sizes]:
    """Return ``sizes`` with a tile of a loop halved for one of the same loop that doubles."""
    pairs = itertools.permutations([axis for axis in axes if axis.block_id in sizes], 2)
    return [
        {**sizes, fewer.block_id: sizes[fewer.block_id] // 2, more.block_id: clamp(2 * sizes[more.block_id], more)}
        for fewer, more in pairs
        if _roots_of(fewer, facts) == _roots_of(more, facts)
        and sizes[fewer.block_id] > _least(fewer, facts)
        and clamp(2 * sizes[more.block_id], more) > sizes[more.block_id]
    ]


def with_other_loops(proposal: TritonProposal, facts: KernelFacts, target: Target) -> TritonProposal:
    """Return a proposal with larger tiles of the grid loops whose tiles have few elements and that multiply nothing.

    A larger tile that leaves SMs without a program has to be faster by more than the error of the prediction: few programs
    do not load at the full rate, and end late.
    """
    if proposal.pid_type is not None or not proposal.launch.keys() <= {"split_k"}:
        return proposal
    multiplying = {facts.regions[fact.region].root for fact in facts.matmuls}
    given, shortest = proposal, proposal_us(facts, proposal, target)
    for root in range(facts.num_roots):
        grown = root not in multiplying and _elements(proposal.block_sizes, facts, root) < _TUNED.enough
        while grown:
            grown = False
            for axis in _growing(proposal.block_sizes, facts, root):
                sizes = {**proposal.block_sizes, axis.block_id: clamp(2 * proposal.block_sizes[axis.block_id], axis)}
                larger = replace(proposal, block_sizes=sizes)
                us = proposal_us(facts, larger, target)
                idle = programs_of(facts, sizes, root) < target.num_sms
                ratio = trust(target).several_matmuls if idle else _TUNED.shorter
                if us <= ratio * shortest and not _spills_more(larger, proposal, facts, target):
                    proposal, shortest, grown = larger, us, True
                    break
    if proposal is given:
        return given
    others = [size for axis, size in proposal.block_sizes.items() if size != given.block_sizes[axis]]
    return replace(proposal, reason=f"{given.reason}, other loops by {' x '.join(map(str, others))}")


def with_half_lines(proposal: TritonProposal, facts: KernelFacts, target: Target) -> TritonProposal:
    """Return a proposal with half of the shortest lines in loops before a matmul that leave half of the SMs idle.

    Programs of neighbouring lines run at once, so that the L2 cache reads each sector once (measurement ``half_lines``).
    """
    multiplying = {facts.regions[fact.region].root for fact in facts.matmuls}
    sizes = dict(proposal.block_sizes)
    for root in set(range(facts.num_roots)) - multiplying if multiplying else ():
        walked = any(root in _roots_of(axis, facts) and not axis.on_grid for axis in facts.tunable_axes)
        for axis in _axes(facts, root) if walked else ():
            idle = 2 * programs_of(facts, sizes, root) <= target.num_sms
            if idle and sizes.get(axis.block_id) == _least(axis, facts) == _TUNED.narrow:
                sizes[axis.block_id] = max(axis.min_size, _TUNED.narrow // 2)
    if sizes == proposal.block_sizes:
        return proposal
    return replace(proposal, block_sizes=sizes, reason=f"{proposal.reason}, half lines for idle SMs")


def _axes(facts: KernelFacts, root: int) -> Iterator[AxisFact]:
    """Yield the tiled axes of a grid loop that no other loop has, contiguous ones first."""
    own = [axis for axis in facts.tunable_axes if axis.on_grid and axis.roots == (root,)]
    yield from sorted(own, key=lambda axis: not is_contiguous(axis, facts))


def _elements(sizes: Mapping[int, int], facts: KernelFacts, root: int) -> int:
    return math.prod(sizes.get(axis.block_id, 1) for axis in _axes(facts, root))


def _growing(sizes: Mapping[int, int], facts: KernelFacts, root: int) -> Iterator[AxisFact]:
    """Yield the axes along which a tile of twice as many elements is legal, and not longer than twice the axis."""
    for axis in _axes(facts, root):
        size = sizes.get(axis.block_id)
        if size is not None and size < extent_of(axis) and clamp(2 * size, axis) > size:
            yield axis


def _estimate(proposal: TritonProposal, facts: KernelFacts, target: Target) -> Predicted:
    warps, stages = proposal.num_warps or 4, proposal.num_stages or 1
    return estimate(facts, target, proposal.block_sizes, warps, stages, proposal.reduction_loops)


def _spills_more(larger: TritonProposal, proposal: TritonProposal, facts: KernelFacts, target: Target) -> bool:
    before, after = (_estimate(each, facts, target) for each in (proposal, larger))
    return not after.fits or after.spill_risk > before.spill_risk


def in_one_launch(proposal: TritonProposal, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...]:
    """Return a proposal in one cooperative launch, if it is predicted to be faster than a launch for each phase.

    It has as many programs as are predicted to be fastest.
    """
    if (
        not facts.meetings
        or facts.messages
        or target.kind != "cuda"
        or proposal.pid_type is not None
        or proposal.launch
    ):
        return ()
    timed = [
        (proposal_us(facts, each, target), at, each)
        for at, each in enumerate(
            replace(
                tile,
                reason=f"{tile.reason}, in one launch of {each} programs per SM",
                indexing={},
                pid_type="persistent_interleaved",
                launch={TOGETHER: True, "num_sm_multiplier": each},
            )
            for tile in (proposal, *_wider(proposal, facts, target))
            for each in _TUNED.per_sm
            if each <= _estimate(tile, facts, target).occupancy_blocks
        )
    ]
    us, _, best = min(timed, default=(math.inf, 0, proposal))
    return (best,) if us <= trust(target).one_launch * proposal_us(facts, proposal, target) else ()


def _wider(proposal: TritonProposal, facts: KernelFacts, target: Target) -> Iterator[TritonProposal]:
    """Yield the tiles of a matmul with twice the elements along one axis of the grid and twice the warps.

    An SM has one such program for two. With all phases in one launch, fewer programs wait at each barrier.
    """
    for axis in facts.tunable_axes if len(facts.matmuls) > 1 else ():
        size, warps = proposal.block_sizes.get(axis.block_id), 2 * (proposal.num_warps or 4)
        if size is None or not axis.on_grid or size >= extent_of(axis) or clamp(2 * size, axis) == size:
            continue
        sizes = {**proposal.block_sizes, axis.block_id: clamp(2 * size, axis)}
        if min(programs_of(facts, sizes, root) for root in axis.roots) < target.num_sms:
            continue
        wider = replace(proposal, block_sizes=sizes, num_warps=warps, reason=f"{proposal.reason}, twice the tile")
        predicted = _estimate(wider, facts, target)
        if predicted.fits and not predicted.spill_risk:
            yield wider
