"""Attention: two dots in one loop, joined by a softmax over the loop's axis, for tiles of queries.

Candidates come in order of height (query rows). The highest is the tile of published flash attention kernels for heads
of 64 and 128; the lowest fits heads of 576. Of each height, the first tile that fits without spilling is a candidate.
The cheapest candidate wins: its cost is the work of one SM, where rows past the last query and idle SMs count as work.

Narrow 16-bit heads on an asynchronous matrix unit leave registers for two programs of four warps per SM. One program
computes its exponentials while the other runs its matmuls (measurement ``attention_pairs``). Tensor descriptors for keys
and values save registers, so that three programs of 64 rows share an SM. Offline for sm_80 to sm_120, gfx942 and gfx950 the first seeds for heads of 64 to 576 fit and do not spill.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from ......_compiler.facts.records import AttentionFact, KernelFacts
from ......_shapes import cdiv
from ......_support.records import dataclass, replace
from ......autotuner.proposal import Declined, Heuristic, Predicted
from ......hardware import Target
from ....proposal import TritonProposal
from ....resources.matrix import ASYNC_ROWS
from ... import register_safety as safety
from ...amd_options import with_amd_options
from ...choose import trust, unless_faster
from ...predicted_time import proposal_us
from ...sizing import WARP_ROWS, Sizes, clamp, estimate, extent_of, programs_of
from ...tuned import Tuned, tuned
from .tiles import Tile, cost_of, fits, neighbours_along, share_sms, start_sizes

#: Queries, keys, stages and warps. Of one height, the first that fits is a candidate.
_CANDIDATES = (
    Tile(128, 128, 3, 8),
    Tile(128, 128, 2, 8),
    Tile(128, 64, 3, 8),
    Tile(128, 64, 3, 4),
    Tile(128, 64, 2, 8),
    Tile(128, 32, 3, 8),
    Tile(64, 64, 3, 4),
    Tile(64, 64, 2, 4),
    Tile(64, 64, 2, 8),
    Tile(64, 32, 3, 4),
    Tile(64, 32, 2, 4),
    Tile(64, 64, 1, 8),
    Tile(64, 32, 2, 8),
    Tile(64, 16, 2, 8),
    Tile(64, 32, 1, 8),
    Tile(32, 64, 3, 4),
    Tile(32, 32, 2, 4),
    Tile(32, 64, 2, 8),
    Tile(32, 32, 2, 8),
    Tile(32, 16, 2, 8),
    Tile(16, 64, 2, 4),
    Tile(16, 32, 2, 4),
    Tile(16, 16, 1, 4),
)
#: The tile tried first for heads of at most this many elements.
_NARROW, _NARROW_HEAD = Tile(128, 64, 3, 4), 64


@dataclass(frozen=True)
class _Numbers(Tuned):
    rule: ClassVar[str] = "attention_forward"

    #: Queries, keys, stages and warps of the tile tried first for operands of 32 bits on an asynchronous matrix unit. It
    #: reads them from shared memory, twice the bytes of 16-bit ones, once for more queries (measurement
    #: ``attention_tf32``).
    tall: tuple[int, int, int, int]
    #: The widest head for which a separate loop for the masked last tile is known to pay (measurement
    #: ``attention_peeled``).
    peeled_head: int
    #: The widest head for which the order of programs was measured.
    wide_head: int
    #: Most stages of keys and values at loaded positions.
    paged_stages: int
    #: Programs that may share the keys of sums without a maximum.
    parts: tuple[int, ...]


class _Boxed(NamedTuple):
    """A tile for heads of at most ``head`` 16-bit elements and at least ``programs`` programs per SM.

    ``ragged``: the keys may end within a tile, and the masks of that tile are peeled off. ``unrolled``: the unroll
    factor of the loop, which divides its number of steps.
    """

    head: int
    tile: Tile
    programs: float
    ragged: bool = False
    unrolled: int = 1


#: Tiles tried before all others on an asynchronous matrix unit with tensor descriptors for keys and values. The first
#: that fits is taken, among those of the narrowest sufficient head (measurement ``attention_descriptors``). Without
#: stages three programs must share an SM, with stages two are enough.
_BOXED = (
    _Boxed(64, Tile(64, 128, 2, 4), 2, ragged=True),
    _Boxed(128, Tile(64, 128, 1, 4), 3, unrolled=2),
    _Boxed(128, Tile(64, 128, 1, 4), 3),
    _Boxed(128, Tile(64, 64, 3, 4), 1.5, ragged=True),
    _Boxed(256, Tile(128, 64, 2, 8), 1),
)
#: The tile tried first where programs also loop over the queries and few programs share an SM. It also comes first where
#: there are fewer queries than the asynchronous unit takes. The synchronous unit waits for each matmul, so that a second
#: stage hides nothing (measurement ``attention_alone``).
_ALONE = Tile(128, 64, 3, 8)
#: The first tile of its height where rows are too few for the asynchronous unit and two programs share an SM. Every
#: warp reads all queries from shared memory. So eight warps of one program read twice as much as four, and wait for
#: each other (measurement ``attention_few_rows``).
_FEW_ROWS = Tile(32, 64, 2, 4)
#: Number of proposals returned.
_KEPT = 3


class TritonAttentionHeuristic(Heuristic):
    name: ClassVar[str] = "TritonAttentionHeuristic"
    promote_seed_to_default: ClassVar[bool] = True

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        fact = facts.attention
        if fact is None:
            return Declined("no two matmuls joined by a softmax")
        if fact.query_axis is None or not (facts.axes[fact.query_axis].tunable and facts.axes[fact.key_axis].tunable):
            return Declined("queries or keys are not tiles")
        first = _boxed(facts, fact, fact.query_axis, target)
        for percent in (safety.attention(target), safety.ALL):
            found = tuple(itertools.islice(_feasible(facts, fact, fact.query_axis, target, percent), _KEPT))
            if first or found:
                faster = _of_several_scores(facts, fact, fact.query_axis, found, target)
                deeper = _of_pages(facts, fact, found, target)
                lower = () if first or faster else _of_one_group(facts, fact, fact.query_axis, found, target)
                shared = () if first or faster else _sharing_keys(facts, (*lower, *found), target)
                return with_amd_options((*first, *faster, *deeper, *shared, *lower, *found), facts, target)
        return Declined("no tile of queries and keys fits without spilling")


def _of_several_scores(
    facts: KernelFacts, fact: AttentionFact, query: int, found: tuple[TritonProposal, ...], target: Target
) -> tuple[TritonProposal, ...]:
    """Return the tile of least predicted time of a step that weights values twice, if it is faster than the first found.

    Its plan may take all registers: a binary that spills is replaced by the next seed (measurement ``several_scores``).
    """
    weighted = [each for each in facts.matmuls if each.region == fact.region and each.consumes]
    if not found or len(weighted) < 2:
        return ()
    sizes_of = functools.partial(_sizes_of, facts, query, fact.key_axis)
    timed = []
    for tile in _CANDIDATES:
        sizes = sizes_of(tile)
        predicted = fits(facts, target, sizes, tile, safety.ALL) if sizes[query] == tile.held else None
        if predicted is not None:
            programs = programs_of(facts, sizes, facts.attention_root)
            each = _proposal(facts, sizes, tile, predicted, programs, target)
            timed.append((each, proposal_us(facts, each, target)))
    best = unless_faster((found[0], proposal_us(facts, found[0], target)), timed, trust(target).several_matmuls)
    return () if best is found[0] else (best,)


def _of_one_group(
    facts: KernelFacts, fact: AttentionFact, query: int, found: tuple[TritonProposal, ...], target: Target
) -> tuple[TritonProposal, ...]:
    """Return a tile of one group of warps, if it is predicted to be faster than one of two groups for narrow heads.

    Steps that keep more than a softmax leave no registers for all queries in one group. Several programs of half of
    them share an SM (measurement ``attention_moments``).
    """
    narrow = target.has("wgmma") and _has_narrow_heads(facts, fact.key_axis)
    tile = next(each for each in _CANDIDATES if each.held == ASYNC_ROWS)
    if not narrow or not found or (found[0].num_warps or 0) <= tile.warps:
        return ()
    sizes = _sizes_of(facts, query, fact.key_axis, tile)
    predicted = fits(facts, target, sizes, tile, safety.attention(target))
    if predicted is None or sizes[query] != tile.held:
        return ()
    programs = programs_of(facts, sizes, facts.attention_root)
    half = _proposal(facts, sizes, tile, predicted, programs, target)
    first, other = ((each, proposal_us(facts, each, target)) for each in (found[0], half))
    return () if unless_faster(first, (other,), trust(target).several_matmuls) is found[0] else (half,)


def _sharing_keys(facts: KernelFacts, found: tuple[TritonProposal, ...], target: Target) -> tuple[TritonProposal, ...]:
    """Return the first tile found for programs that share the keys, if that is predicted to be faster.

    Without a maximum of the scores, as in a regression by kernels, the sums of parts of the keys need no factors. Few
    queries then fill the SMs. Predictions do not rank other tiles (measurement ``shared_keys``).
    """
    if not found or not facts.splittable_k:
        return ()
    timed = []
    for parts in tuned(_Numbers, target).parts:
        each = replace(
            found[0], reason=f"{found[0].reason}; {parts} programs share the keys", launch={"split_k": parts}
        )
        timed.append((each, proposal_us(facts, each, target)))
    best = unless_faster((found[0], proposal_us(facts, found[0], target)), timed, trust(target).split_k)
    return () if best is found[0] else (best,)


def _of_pages(
    facts: KernelFacts, fact: AttentionFact, found: tuple[TritonProposal, ...], target: Target
) -> tuple[TritonProposal, ...]:
    """Return the first tile found with the most stages that fit, where keys and values are at loaded positions.

    Each of their loads waits for that of its position (measurement ``paged_stages``).
    """
    loads = [op for op in facts.memory_ops if op.region == fact.region and op.kind == "load" and op.gathered]
    if not found or not target.has("wgmma") or sum(op.dtype.is_floating_point for op in loads) < 2:
        return ()
    first = found[0]
    for stages in range(tuned(_Numbers, target).paged_stages, first.num_stages or 1, -1):
        predicted = estimate(facts, target, first.block_sizes, first.num_warps or 1, stages)
        if predicted.fits and not predicted.spill_risk:
            return (replace(first, num_stages=stages, reason=f"{first.reason}, {stages} stages for loaded positions"),)
    return ()


def _boxed(facts: KernelFacts, fact: AttentionFact, query: int, target: Target) -> tuple[TritonProposal, ...]:
    """Return the proposal with tensor descriptors for keys and values, if one fits.

    Of the programs that share an SM, one computes its exponentials while the others run their matmuls.
    """
    head = _head(facts, fact)
    boxes = target.has("wgmma") and target.has("tensor_descriptor") and _are_boxes(facts, fact)
    widths = [each.head for each in _BOXED if boxes and head is not None and head <= each.head]
    for option in (each for each in _BOXED if widths and each.head == widths[0]):
        tile = option.tile
        sizes = _sizes_of(facts, query, fact.key_axis, tile)
        programs = programs_of(facts, sizes, facts.attention_root)
        predicted = fits(facts, target, sizes, tile, safety.attention(target))
        # masks of the last tile need the registers that let programs share an SM: offline 192 with heads of 128 instead
        # of 158
        left = extent_of(facts.axes[fact.key_axis]) % (sizes[fact.key_axis] * option.unrolled)
        if predicted is not None and (option.ragged or left == 0) and programs >= option.programs * target.num_sms:
            loaded = [op.region == fact.region for op in sorted(facts.memory_ops, key=lambda op: op.slot)]
            proposal = _proposal(facts, sizes, tile, predicted, programs, target)
            ways = ["tensor_descriptor" if each else "pointer" for each in loaded]
            order = _queries_first(facts, fact)
            unrolled = {fact.key_axis: option.unrolled} if option.unrolled > 1 else {}
            launch = {**proposal.launch, "indexing": ways}
            return (replace(proposal, loop_orders=order, ranges={"range_unroll_factors": unrolled}, launch=launch),)
    return ()


def _head(facts: KernelFacts, fact: AttentionFact) -> int | None:
    """Return the head size of 16-bit operands if it is a power of two, else None."""
    scores = [product for product in facts.matmuls if product.region == fact.region and product.n_axis == fact.key_axis]
    widths = {product.static_k for product in scores if product.lhs_dtype.itemsize == 2}
    (width,) = widths if len(scores) == 1 == len(widths) else (None,)
    return width if width is not None and width & (width - 1) == 0 else None


def _are_boxes(facts: KernelFacts, fact: AttentionFact) -> bool:
    """Return whether TMA descriptors can load all operands of the loop.

    The tensors need strides known at compile time, and the keys a static extent.
    """
    key = facts.axes[fact.key_axis]
    loads = [op for op in facts.memory_ops if op.region == fact.region and op.kind == "load"]
    return key.static and key.extent is not None and all(op.static and not op.gathered for op in loads)


def _proposal(
    facts: KernelFacts, sizes: Sizes, tile: Tile, predicted: Predicted, programs: int, target: Target
) -> TritonProposal:
    fact = facts.attention
    assert fact is not None and fact.query_axis is not None
    measured = target.has("wgmma") and all(product.lhs_dtype.itemsize == 2 for product in facts.matmuls)
    head = _head(facts, fact) or 0
    numbers = tuned(_Numbers, target)
    wide = measured and _NARROW_HEAD < head <= numbers.wide_head
    key = facts.axes[fact.key_axis]
    peeled = key.static and bool(key.extent) and 0 < head <= numbers.peeled_head
    ragged = peeled and extent_of(key) % sizes[key.block_id] != 0
    return TritonProposal(
        reason=f"{sizes[fact.query_axis]} queries by {sizes[fact.key_axis]} keys, "
        f"{predicted.registers_per_thread} registers, {programs} programs on {target.num_sms} SMs",
        block_sizes=sizes,
        loop_orders=_queries_first(facts, fact) if wide else {},
        num_warps=tile.warps,
        num_stages=tile.stages,
        launch={"peel_masks": True} if measured and (fact.hidden or ragged) else {},
    )


def _queries_first(facts: KernelFacts, fact: AttentionFact) -> dict[int, tuple[int, ...]]:
    """Return ``loop_orders`` in which neighbouring programs read the same keys and values.

    Causal attention keeps the default order, in which the programs with the most work of all heads begin first. Narrow
    heads are faster without this order, except with descriptors (measurement ``attention_order``).
    """
    if fact.diagonal or fact.query_axis is None:
        return {}
    return neighbours_along(facts, facts.attention_root, fact.query_axis)


def _feasible(
    facts: KernelFacts, fact: AttentionFact, query: int, target: Target, percent: int
) -> Iterator[TritonProposal]:
    """Yield the proposals that fit, by increasing cost, and for equal heights in the order of the table."""
    key = fact.key_axis

    sizes_of = functools.partial(_sizes_of, facts, query, key)

    def cost(tile: Tile) -> float:
        sizes = sizes_of(tile)
        walks = 1 if facts.axes[query].on_grid else cdiv(extent_of(facts.axes[query]), sizes[query])
        return cost_of(tile, programs_of(facts, sizes, facts.attention_root), walks * sizes[query], target)

    paired = programs_of(facts, sizes_of(_NARROW), facts.attention_root) > target.num_sms
    first: tuple[Tile, ...] = (_NARROW,) if paired and target.has("wgmma") and _has_narrow_heads(facts, key) else ()
    few = sizes_of(_ALONE)[query] < ASYNC_ROWS and all(each.lhs_dtype.itemsize == 2 for each in facts.matmuls)
    if target.has("wgmma") and (few or (not facts.axes[query].on_grid and _head(facts, fact) is not None)):
        first = (_ALONE,)
    wide = target.has("wgmma") and all(each.lhs_dtype.itemsize == 4 for each in facts.matmuls)
    tall = Tile(*tuned(_Numbers, target).tall)
    if wide and sizes_of(tall)[query] == tall.held:
        first = (*first, tall)
    first = (*first, _FEW_ROWS)
    for tile in sorted((*first, *(each for each in _CANDIDATES if each not in first)), key=cost):
        sizes = sizes_of(tile)
        tile = _one_group(tile, sizes[query], target)
        few = tile == _FEW_ROWS
        predicted = _two_of_few_rows(facts, query, sizes, target) if few else fits(facts, target, sizes, tile, percent)
        if predicted is not None:
            programs = programs_of(facts, sizes, facts.attention_root)
            proposal = _proposal(facts, sizes, tile, predicted, programs, target)
            yield _of_blocks(proposal, facts, fact) if wide and tile == tall else proposal


def _one_group(tile: Tile, rows: int, target: Target) -> Tile:
    """Return the tile with one group of warps where the queries end within it, at the rows that a group takes.

    A second group would take half of the keys of each row. Each step then reduces between the groups, and passes weights
    through shared memory (measurement ``clamped_queries``).
    """
    clamped = target.has("wgmma") and rows == ASYNC_ROWS < tile.held
    return tile._replace(warps=min(tile.warps, ASYNC_ROWS // WARP_ROWS)) if clamped else tile


def _of_blocks(proposal: TritonProposal, facts: KernelFacts, fact: AttentionFact) -> TritonProposal:
    """Return the proposal with block pointers for keys and values of 32 bits.

    Values change their layout on the way to the matrix unit. Through pointers each thread copies single elements of them, and
    through block pointers 16 bytes. Narrower heads are slower so (measurement ``attention_tf32_blocks``).
    """
    widths = [
        each.static_n or 0 for each in facts.matmuls if each.region == fact.region and each.k_axis == fact.key_axis
    ]
    if min(widths, default=0) < _NARROW_HEAD or not _are_boxes(facts, fact):
        return proposal
    loaded = [op.region == fact.region for op in sorted(facts.memory_ops, key=lambda op: op.slot)]
    return replace(
        proposal, launch={**proposal.launch, "indexing": ["block_ptr" if it else "pointer" for it in loaded]}
    )


def _two_of_few_rows(facts: KernelFacts, query: int, sizes: Sizes, target: Target) -> Predicted | None:
    """Return the prediction for a tile of few rows, if two programs of it share an SM."""
    measured = target.has("wgmma") and all(product.lhs_dtype.itemsize == 2 for product in facts.matmuls)
    if not measured or sizes[query] != _FEW_ROWS.held:
        return None
    predicted = estimate(facts, target, sizes, _FEW_ROWS.warps, _FEW_ROWS.stages)
    room = predicted.fits and 2 * predicted.shared_bytes <= target.smem_per_sm_bytes
    busy = share_sms(programs_of(facts, sizes, facts.attention_root), 2, target)
    return predicted if room and busy and safety.within(predicted, safety.FEW_ROWS) else None


def _sizes_of(facts: KernelFacts, query: int, key: int, tile: Tile) -> Sizes:
    sizes = start_sizes(facts)
    walked = {axis: clamp(tile.walked, facts.axes[axis]) for axis in (key, *_other_keys(facts, query, key))}
    return sizes | walked | {query: clamp(tile.held, facts.axes[query])}


def _other_keys(facts: KernelFacts, query: int, key: int) -> tuple[int, ...]:
    """Return the axes of keys of other loops over the same queries, as of the loop over a tile's own keys."""
    scores = [product for product in facts.matmuls if product.m_axis == query and product.n_axis not in (None, key)]
    inner = {product.k_axis for product in facts.matmuls if product.m_axis == query and product.consumes}
    return tuple(
        product.n_axis
        for product in scores
        if product.n_axis is not None and product.n_axis in inner and facts.axes[product.n_axis].tunable
    )


def _has_narrow_heads(facts: KernelFacts, key: int) -> bool:
    """Return whether the head is narrow: 16-bit operands with a K so short that the output accumulator is small as
    well.
    """
    scores = [product for product in facts.matmuls if product.n_axis == key]
    return bool(scores) and all(
        product.lhs_dtype.itemsize == 2 and (product.static_k or _NARROW_HEAD + 1) <= _NARROW_HEAD for product in scores
    )
