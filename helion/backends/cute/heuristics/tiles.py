"""Candidate tiles of a GEMM by predicted time, for the heuristics of both matrix units."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from ...._compiler.facts.records import KernelFacts
from ...._shapes import is_power_of_2
from ...._support.records import dataclass, replace
from ....autotuner.proposal import Declined
from ....hardware import Target
from ..bounds import column_step, ctas_per_mma, tile_bounds
from ..legality import key
from ..plan.counts import shares_rows
from ..plan.dtypes import itemsize
from ..plan.operands import can_convert, gathered
from ..plan.records import WGMMA_ROWS, Choice, CopiesIn, GemmPlan, RowsIn, TileFinish
from ..proposal import CuteProposal
from ..resources.predict import plan_of, timing
from ..resources.shape import ProductShape, shape_of
from ..resources.time import Timing, resident_clusters
from ..subtiles import LEAST_SUBTILE, buffers_of, subtile_of

MOST_GROUPED = 16
TALLEST_OF_SEVERAL = 128
MOST_BUFFERS = 4
#: Sub-tiles of matrices that are loaded ahead, and stages of A and B that a single K tile leaves to them.
MORE_RESIDUALS, LEAST_AHEAD = (8, 4), 3
#: Bytes of a line of memory, and of the elements that are stored in lines. Tiles for them may be predicted to take this
#: much of the fastest time: predictions do not see lines.
_LINE_BYTES, _NARROW_BYTES, AS_FAST = 128, 2, 1.05
#: Other seeds have to be predicted within this factor of the best one.
ALTERNATES, WITHIN = 3, 1.5
#: Predicted times within this factor do not order two tilings where each SM has many tiles (cell ``bounded_scores``).
EQUALLY_FAST, MANY_ROUNDS = 1.003, 32
#: The same where tiles have a single K tile, whose stores memory bounds.
EQUALLY_STORED, FEWER_ROUNDS = 1.01, 16
#: Columns of a tile of 64 rows for each warp group, which compute while other groups store.
USUAL_COLUMNS = 128


#: Required time ratio of rows in memory to rows in a cluster, if they do not stay in the L2 cache. Predictions of rows in
#: memory are up to a tenth too long, unlike those of clusters (``epilogues`` of benchmarks/results/cute/nvidia-h200-few-tiles.jsonl).
MEMORY_GAINS = 0.95


#: The same for columns that are no power of two, and for narrow sub-tiles of them; then for partials in memory.
#: The last is of two tiles of a cluster that have all columns: predictions are too long (``swapped`` of the same rows).
#: Powers of two, which leave more columns empty, have not run.
UNEVEN_GAINS, PARTIAL_GAINS, SHARED_GAINS = (0.99, 0.95), 0.99, 1.05
#: Columns to try per number of rows that are no power of two, if none covers N (measurement ``uneven_rounds``).
MOST_UNEVEN = 1
#: Lines of 128 bytes that a cluster of two loads for a CTA while it multiplies a tile of as many rows or columns.
BALANCED_LINES = 64
#: Columns above which two CTAs have half of them each (``swapped`` of benchmarks/results/cute/nvidia-h200-few-tiles.jsonl).
WIDEST_ALONE = 128
#: Limits for their work per SM: relative to wider powers of two, and to narrower ones, whose tiles load more.
LESS_THAN_WIDER, MORE_THAN_NARROWER = 0.95, 1.25


@dataclass(frozen=True, kw_only=True)
class Option:
    """A choice with its plan and time."""

    choice: Choice
    plan: GemmPlan
    time: Timing
    uneven: bool = False
    """True if its columns are no power of two, unless the number of CTAs determines them."""
    shares: bool = False
    """True if two tiles of a cluster have all columns."""


def options(shape: ProductShape, target: Target, choices: Sequence[Choice]) -> list[Option]:
    """Return those of ``choices`` that have a plan, fastest first by ``handicapped_us``; the order of equally fast ones
    stays.

    Of those as fast as a first one with many rounds of tiles, those with the fewest rows and 128 columns come first. Each
    tile costs barriers and waits, and long epilogues of few groups leave gaps. The time of a kernel that memory bounds
    shows neither.
    """
    found = []
    for choice in choices:
        if not shape.allows(choice.tile):
            continue
        plan = plan_of(shape, choice, target)
        if not isinstance(plan, str):
            choice, plan = _with_residuals(shape, choice, plan, target)
            shares = _shares(shape, choice)
            uneven = not shape.whole_rows and not is_power_of_2(choice.tile[1]) and not shares
            time = timing(plan, shape, target)
            found.append(Option(choice=choice, plan=plan, time=time, uneven=uneven, shares=shares))
    found.sort(key=handicapped_us)
    stored = bool(found) and found[0].plan.k_tiles == 1
    rounds, within = (FEWER_ROUNDS, EQUALLY_STORED) if stored else (MANY_ROUNDS, EQUALLY_FAST)
    if not found or found[0].time.waves < rounds:
        return found
    equal = sum(handicapped_us(option) <= within * handicapped_us(found[0]) for option in found)
    return [*sorted(found[:equal], key=_of_tile), *found[equal:]]


def _shares(shape: ProductShape, choice: Choice) -> bool:
    """Return whether two tiles of a cluster have all columns, and load each tile of A once (``swapped`` of
    benchmarks/results/cute/nvidia-h200-few-tiles.jsonl)."""
    return choice.cluster == (1, 2) and choice.tile[1] < shape.problem.n <= 2 * choice.tile[1]


def _of_tile(option: Option) -> tuple[int, float]:
    """Return the key that orders tiles by their rows, then by how far their columns are from the usual ones."""
    rows, columns, _ = option.choice.tile
    return rows, abs(math.log2(columns / USUAL_COLUMNS))


def tiles(shape: ProductShape, target: Target) -> Iterator[tuple[int, int, int]]:
    """Yield tiles, largest first, with a K tile of one swizzled line unless the program sets it.

    No side is twice that of the problem if a smaller one suffices.
    """
    bounds = tile_bounds(shape.problem, target)
    extents = (shape.problem.m, shape.problem.n)
    rows, columns = ([*_halves(*b, extent)] for b, extent in zip(bounds, extents, strict=False))
    if shape.products > 1:  # taller ones of several matmuls have not run on a GPU
        rows = [each for each in rows if each <= TALLEST_OF_SEVERAL]
    deep = shape.fixed.get(shape.blocks[2], bounds[2][0])
    yield from ((m, n, deep) for m, n in itertools.product(rows, columns))
    yield from ((m, n, deep) for m in rows for n in _uneven(shape, m, target))


def _uneven(shape: ProductShape, rows: int, target: Target) -> list[int]:
    """Return columns that are no power of two and minimize the work per SM: waves of tiles, times their columns.

    Columns that cover N load A once, as half of many do in clusters of two, where whole ones leave half of the SMs idle. They
    are the only choices, as are those that the program sets. Halves of more columns than a tile has are a choice.
    """
    step, fixed = column_step(shape.problem, target), shape.fixed.get(shape.blocks[1])
    if step is None or fixed is not None:
        return [] if fixed is None or is_power_of_2(fixed) else [fixed]
    least, most = tile_bounds(shape.problem, target)[1]

    def work(columns: int) -> int:
        tiles = shape.problem.repeats * -(-shape.problem.m // rows) * -(-shape.problem.n // columns)
        return -(-tiles * ctas_per_mma(rows, target) // target.num_sms) * columns

    widths = range(-(-least // step) * step, most + 1, step)
    even = {columns: work(columns) for columns in widths if is_power_of_2(columns)}
    uneven = {columns: work(columns) for columns in widths if columns not in even}

    def is_less(columns: int) -> bool:
        wider = [each for width, each in even.items() if width > columns]
        return uneven[columns] < LESS_THAN_WIDER * min(wider, default=math.inf)

    def promises(columns: int) -> bool:
        narrower = [each for width, each in even.items() if width < columns]
        return is_less(columns) and uneven[columns] <= MORE_THAN_NARROWER * min(narrower, default=math.inf)

    covering, half = (-(-shape.problem.n // (parts * step)) * step for parts in (1, 2))
    halves = [half] if half in uneven and is_less(half) else []
    if covering in uneven:
        idle = 2 * shape.problem.repeats * -(-shape.problem.m // (2 * WGMMA_ROWS)) <= target.num_sms
        return [covering, *(halves if idle and covering > WIDEST_ALONE else [])]

    def loaded(columns: int) -> float:
        return max(1.0, BALANCED_LINES * (1 / rows + 1 / columns)) * uneven[columns]

    found = sorted(filter(promises, uneven), key=lambda columns: (loaded(columns), -columns))[:MOST_UNEVEN]
    return [*halves, *(columns for columns in found if columns != half)]


def _halves(least: int, most: int, extent: int) -> Iterator[int]:
    side = most
    while side >= least:
        if side < 2 * extent or side == least:
            yield side
        side //= 2


def narrowed(choice: Choice, wanted: int = 32, divided: bool = True) -> Choice:
    """Return a choice with at least two sub-tiles of ``wanted`` columns at most, and the fewest buffers that divide them, or
    two."""
    columns = subtile_of(choice.tile[1], wanted, divided)
    return replace(choice, epilogue_n=columns, store_stages=buffers_of(choice.tile[1] // columns, choice.store_stages))


def handicapped_us(option: Option) -> float:
    """Return the time that ranks options, after handicaps."""
    gains = MEMORY_GAINS if option.choice.rows_in == "memory" and not option.time.cached else 1.0
    gains *= PARTIAL_GAINS if option.choice.grid_splits > 1 and not option.choice.split_last else 1.0
    gains *= SHARED_GAINS if option.shares and not is_power_of_2(option.choice.tile[1]) else 1.0
    narrow = option.uneven and subtile_of(option.choice.tile[1], USUAL_COLUMNS) == LEAST_SUBTILE
    gains *= UNEVEN_GAINS[narrow] if option.uneven else 1.0
    return option.time.total_us / gains


def proposals(shape: ProductShape, target: Target, ranked: Sequence[Option]) -> tuple[CuteProposal, ...]:
    """Return the fastest options as proposals, one per tile."""
    chosen: dict[tuple[tuple[int, int, int], RowsIn, CopiesIn], Option] = {}
    fastest: dict[RowsIn, Option] = {}
    for option in ranked:
        fastest.setdefault(option.choice.rows_in, option)
        if option.time.total_us <= WITHIN * ranked[0].time.total_us:
            chosen.setdefault((option.choice.tile, option.choice.rows_in, option.choice.copies_in), option)
    best = [_with_buffers(shape, target, option) for option in list(chosen.values())[:ALTERNATES]]
    if ranked and (lines := _in_whole_lines(shape, target, ranked)) is not None:
        best = [lines, *(option for option in best if option.choice.tile != lines.choice.tile)]
    even = next((option for option in ranked if not option.uneven), None)
    return tuple(_proposal(shape, target, option, fastest, even) for option in best)


def proposed(
    facts: KernelFacts,
    target: Target,
    instruction: str,
    choices: Callable[[ProductShape, Target], Sequence[Choice]],
) -> tuple[CuteProposal, ...] | Declined:
    """Return the proposals of a matmul by one matrix ``instruction`` with tiles of rows and columns."""
    if not target.has(instruction):
        return Declined(f"{target} has no {instruction}")
    shape = shape_of(facts)
    if isinstance(shape, str):
        return Declined(shape)
    if shape.whole_rows:
        return Declined("N is not tiled in the kernel")
    ranked = options(shape, target, choices(shape, target))
    return proposals(shape, target, ranked) or Declined("no tile of the matmul fits")


def _in_whole_lines(shape: ProductShape, target: Target, ranked: Sequence[Option]) -> Option | None:
    """Return an option that stores whole lines, where a tile's stores take as long as its few K tiles.

    Each sub-tile has lines of 128 bytes. Tiles of one warp group are wide, and no CTA waits for another of a cluster
    (measurement ``whole_lines``). With a single K tile, clusters are as fast. Operands that a kernel before has written are
    in the L2 cache, and squarer tiles read fewer of their lines (measurement ``lines_of_copies``).
    """
    first = ranked[0]
    plan = first.plan
    few = plan.unit == "wgmma" and plan.teams > 1 and plan.k_tiles > 1 and plan.problem.groups is None
    few = few and plan.prepare is None
    narrow = all(itemsize(each.dtype) == _NARROW_BYTES for each in plan.problem.matrices)
    if not (few and narrow) or plan.problem.copied or plan.problem.epilogue.of_kind("exact"):
        return None
    alike = [
        option
        for option in ranked
        if option.plan.teams > 1 and option.choice.cluster == (1, 1) and option.choice.tile[0] == WGMMA_ROWS
        if option.time.total_us <= AS_FAST * first.time.total_us and is_power_of_2(option.choice.tile[1])
    ]
    widest = max(alike, key=lambda option: option.choice.tile[1], default=None)
    if widest is None:
        return None
    mainloop = min(o.plan.k_tiles * o.time.k_tile_us for o in ranked if o.choice.tile == widest.choice.tile)
    if widest.time.epilogue_us < mainloop:
        return None
    choice = replace(widest.choice, epilogue_n=_LINE_BYTES // _NARROW_BYTES, store_stages=MOST_BUFFERS)
    stored = plan_of(shape, choice, target)
    if isinstance(stored, str) or stored.ab_stages < 2 * stored.k_tiles:
        return None
    return replace(widest, choice=choice, plan=stored, time=timing(stored, shape, target))


def _with_residuals(shape: ProductShape, choice: Choice, plan: GemmPlan, target: Target) -> tuple[Choice, GemmPlan]:
    """Return a choice that loads more sub-tiles of matrices ahead, and its plan, if A and B keep the stages that a tile fills.

    Their latency is in each tile (``ahead`` of benchmarks/results/cute/nvidia-h200-few-tiles.jsonl).
    """
    least = min(plan.ab_stages, max(LEAST_AHEAD, 2 * plan.k_tiles))
    for stages in MORE_RESIDUALS if plan.has_residual and plan.unit == "wgmma" else ():
        more = replace(choice, residual_stages=stages)
        ahead = plan_of(shape, more, target)
        if not isinstance(ahead, str) and ahead.ab_stages >= least:
            return more, ahead
    return choice, plan


def _with_buffers(shape: ProductShape, target: Target, option: Option) -> Option:
    """Return an option with more buffers of D if they cost no stage of A and B (measurement ``cute_store_buffers``)."""
    buffers = buffers_of(option.plan.subtiles, MOST_BUFFERS)
    choice = replace(option.choice, store_stages=max(buffers, option.choice.store_stages))
    plan = plan_of(shape, choice, target)
    simple = option.plan.teams == option.plan.parts == 1 and option.plan.unit == "wgmma"
    if isinstance(plan, str) or not simple or plan.ab_stages < option.plan.ab_stages:
        return option
    return replace(option, choice=choice, plan=plan)


def _proposal(
    shape: ProductShape, target: Target, option: Option, fastest: Mapping[RowsIn, Option], even: Option | None
) -> CuteProposal:
    choice, plan = option.choice, option.plan
    group = grouping(shape, plan, target)
    values: dict[str, object] = {
        "cluster_m": choice.cluster[0],
        "cluster_n": choice.cluster[1],
        "ab_stages": plan.ab_stages,
        "acc_stages": plan.accumulator_stages if plan.unit == "tcgen05" or plan.accumulator_stages > 1 else None,
        "c_stages": plan.store_stages,
        "epilogue_columns": plan.epilogue_n,
        "pingpong": choice.pingpong if plan.unit == "wgmma" else None,
        "k_splits": choice.splits if plan.unit == "wgmma" else None,
        "grid_splits": choice.grid_splits,
        "split_tiles": "last" if choice.split_last else None,
        "ctas_per_sm": choice.ctas_per_sm if plan.unit == "wgmma" else None,
    }
    if plan.has_residual:
        values["residual_stages"] = choice.residual_stages
    if shape.problem.copied:
        values["copies_in"] = choice.copies_in
    if choice.rows_in == "memory":
        values |= {"rows_in": choice.rows_in, "tile_columns": choice.tile[1]}
    held = shape.problem.epilogue.reduces_rows and choice.rows_in == "cluster"
    alone = () if can_convert(shape.problem) else ("ctas_per_sm",)
    for name in ("pingpong", "k_splits", "grid_splits") if held else alone:
        del values[name]
    sides = zip(shape.blocks, choice.tile, strict=True)
    blocks = {block: size for block, size in sides if block not in shape.fixed}
    if shape.whole_rows:
        blocks.pop(shape.blocks[1], None)
    if shape.depth is not None:
        blocks.pop(shape.blocks[2], None)
    return CuteProposal(
        reason=reason(option, group, target) + _other_place(option, fastest) + _other_columns(option, even),
        block_sizes={**blocks, **dict.fromkeys(shape.batch_blocks, 1)},
        l2_groupings={} if shape.root is None else {shape.root: group},
        unit={key(name, target): value for name, value in values.items() if value is not None},
    )


def reason(option: Option, group: int, target: Target) -> str:
    plan, time = option.plan, option.time
    tile = "x".join(map(str, plan.tile))
    shared = f", clusters of {plan.cluster[0]}x{plan.cluster[1]}" if plan.cluster != (1, 1) else ""
    shared += f", K in {plan.parts} parts" if plan.parts > 1 else ""
    shared += f" of {plan.grid_splits} clusters" if plan.grid_splits > 1 else ""
    shared += " for tiles of the last wave" if plan.whole_tiles else ""
    shared += ", ping-pong" if plan.teams > 1 else ""
    shared += ", two CTAs on an SM" if plan.ctas_per_sm > 1 else ""
    if plan.finish is not None:
        return _reason_of_memory(option, shared, target)
    if plan.problem.epilogue.reduces_rows:
        return _reason_of_rows(option, shared, target)
    split = plan.grid_splits > 1 and not plan.whole_tiles
    k_tiles = -(-plan.k_tiles // plan.grid_splits) if split else plan.k_tiles
    return (
        f"{time.tiles} tiles of {tile} in {_rounds(time.waves)} on {target.num_sms} SMs, {k_tiles} K tiles of"
        f" {time.k_tile_us:.2f} us and an epilogue of {time.epilogue_us:.1f} us each: {time.total_us:.0f} us;"
        f" {plan.ab_stages} stages fit{shared}; {_scheduler(plan, group)}{_producers(plan, time)}"
    )


def _rounds(waves: int) -> str:
    return f"{waves} round{'s' if waves != 1 else ''}"


def _scheduler(plan: GemmPlan, group: int) -> str:
    """Describe the order of tiles, or who decides them."""
    groups = plan.problem.groups
    if groups is None:
        return f"groups of {group} for the L2 cache"
    return f"at most that many tiles: a scheduler on the device gives each of {groups.size} groups of rows those that it fills"


def _producers(plan: GemmPlan, time: Timing) -> str:
    """Describe the operands that TMA does not load."""
    names = [copied.operand.upper() for copied in plan.whole.copied if copied.operand in ("a", "b")]
    if gathered(plan) is not None:
        return "; TMA gathers the rows of A"
    if plan.prepare is not None:
        return f"; kernels before it write {' and '.join(names)} to memory in {time.prepare_us:.0f} us of these"
    how = "warps that multiply convert" if plan.converts else "warps copy"
    return f"; {how} {' and '.join(names)}" if names else ""


def _reason_of_rows(option: Option, shared: str, target: Target) -> str:
    plan, time = option.plan, option.time
    return (
        f"rows of {plan.problem.n} columns in {plan.cluster[1]} CTAs of {plan.tile[0]}x{plan.tile[1]}x{plan.tile[2]}:"
        f" {plan.work[0]} clusters, {resident_clusters(plan.ctas, target) * plan.ctas_per_sm} at once, in {_rounds(time.waves)} on {target.num_sms} SMs,"
        f" {plan.k_tiles} K tiles of {time.k_tile_us:.2f} us and an epilogue of {time.epilogue_us:.1f} us each:"
        f" {time.total_us:.0f} us; {plan.ab_stages} stages fit with {plan.store_stages} sub-tiles{shared}"
    )


def _reason_of_memory(option: Option, shared: str, target: Target) -> str:
    plan, time = option.plan, option.time
    joins = "joins the parts of" if isinstance(plan.finish, TileFinish) else "reads"
    return (
        f"rows of {plan.whole.n} columns in memory: {time.tiles} tiles of {'x'.join(map(str, plan.tile))} in {_rounds(time.waves)} on"
        f" {target.num_sms} SMs, {-(-plan.k_tiles // plan.parts)} K tiles of {time.k_tile_us:.2f} us and an epilogue of"
        f" {time.epilogue_us:.1f} us each, then {time.finish_us:.0f} us of a kernel that {joins} rows: {time.total_us:.0f} us;"
        f" {plan.ab_stages} stages fit{shared}{_producers(plan, time)}"
    )


def _other_place(option: Option, fastest: Mapping[RowsIn, Option]) -> str:
    """Describe the predicted time of the best alternative place for rows, if there is one."""
    others, said = {"cluster": "held by a cluster", "memory": "in memory"}, ""
    for place, best in fastest.items():
        if place != option.choice.rows_in:
            close = place == "memory" and best.time.total_us < option.time.total_us <= handicapped_us(best)
            said += f"; {others[place]} rows would take {best.time.total_us:.0f} us"
            said += f", which would have to be less than {MEMORY_GAINS * option.time.total_us:.0f}" if close else ""
    return said


def _other_columns(option: Option, even: Option | None) -> str:
    """Describe the predicted time of the best tile with a power of two of columns, if this one has none."""
    if even is None or not option.uneven:
        return ""
    return f"; {'x'.join(map(str, even.plan.tile))} would take {even.time.total_us:.0f} us"


def grouping(shape: ProductShape, plan: GemmPlan, target: Target) -> int:
    """Return the tiles along M per group of the tile order: a power of two, the smallest of equals, or the largest where matmuls
    of a batch share A (measurement ``batch_of_heads``).

    It minimizes the lines of A and B that co-resident clusters read, so that these stay in the L2 cache. A group may have
    all tiles along M: those that are left over would read B again.
    """
    rows, columns = plan.work
    shared = shares_rows(plan.problem)
    columns *= plan.problem.batches if shared else 1
    running = min(rows * columns, max(1, target.num_sms // plan.ctas))  # of one matmul of a batch, unless all share A
    height, width = (plan.tile[at] * plan.cluster_tiles[at] for at in (0, 1))
    width *= plan.products if shared else 1

    def lines(group: int) -> int:
        group = min(group, rows)
        beside = min(columns, -(-running // group))
        below = min(rows, group * -(-running // (group * beside)))
        return below * height + beside * width

    groups = [1 << bit for bit in range(MOST_GROUPED.bit_length()) if 1 << bit < 2 * rows]
    return min(groups[::-1] if shared else groups, key=lines)
