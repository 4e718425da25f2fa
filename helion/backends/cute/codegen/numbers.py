"""Sizes and strides in generated code: constants of the plan, or names of launch-time numbers."""

from __future__ import annotations

from ..plan.counts import shares_rows, slices, takes_turns, turns
from ..plan.records import GemmPlan, Multiplicand
from ..plan.runtime import is_size
from ..plan.scales import LONGEST
from ..roles.grammar import KLoop, Role, Who
from ..roles.halves import OfKTile
from ..roles.overlapped import Ahead, GroupLoop, Rest
from ..roles.partial import TermLoop
from ..roles.sliced import SliceLoop
from .writer import unrolled

GROUP_OFFSETS = "group_offsets"
"""The kernel's tensor of the first rows, or elements of K, of groups, and the pointer of the host function."""


def number(plan: GemmPlan, name: str, value: int) -> str:
    """Return a number of ``plan.runtime`` by its name, or its constant value."""
    return name if name in plan.problem.runtime else str(value)


def sizes(plan: GemmPlan) -> list[str]:
    """Return the numbers that the kernel itself takes: strides are in its tensors."""
    return [name for name in plan.problem.runtime if is_size(name)]


def extent(plan: GemmPlan, side: str) -> str:
    """Return the extent along ``m``, ``n`` or ``k``."""
    return number(plan, f"size_{side}", getattr(plan.problem, side))


def last(plan: GemmPlan, side: str) -> str:
    """Return the last index along a side."""
    size = extent(plan, side)
    return str(int(size) - 1) if size.isdigit() else f"{size} - 1"


def parts(plan: GemmPlan, side: str, width: int) -> str:
    """Return the number of parts of ``width`` that cover a side."""
    size = extent(plan, side)
    return str(-(-int(size) // width)) if size.isdigit() else f"({size} + {width - 1}) // {width}"


def batch_names(plan: GemmPlan) -> list[str]:
    """Return the index of the matmul along each dimension of the batch, innermost first."""
    levels = plan.problem.batch.levels if plan.problem.batch is not None else ()
    return ["batch", *(f"batch_{at}" for at in range(1, len(levels)))][: len(levels)]


def batch_modes(plan: GemmPlan, label: str) -> list[tuple[str, str, str]]:
    """Return size, stride and index of each dimension of the batch that a tensor has, by the label of the tensor."""
    problem, found = plan.problem, []
    if problem.batch is None:
        return []
    pitches = zip(problem.batch.levels, problem.batch_pitches(label), batch_names(plan), strict=True)
    for at, (level, pitch, name) in enumerate(pitches):
        if pitch:
            known = str(level.size), str(pitch), name
            varying = number(plan, "batches", level.size), number(plan, f"batch_stride_{label}", pitch), name
            found.append(known if at else varying)
    return found


def batched(plan: GemmPlan, label: str) -> str:
    """Return the coordinates of a tensor along the dimensions of the batch that it has."""
    return "".join(f", {index}" for _, _, index in batch_modes(plan, label))


def batch_of(plan: GemmPlan, work: str, each: str, within: str) -> list[str]:
    """Return the code that finds the matmul of a tile, or of a column of tiles, and its number ``within`` ``each`` matmul."""
    lines = [f"batch = {work} // {each}", f"{within} = {work} % {each}"]
    names, levels = batch_names(plan), plan.problem.batch.levels if plan.problem.batch is not None else ()
    for name, outer, level in zip(names, names[1:], levels, strict=False):
        lines += [f"{outer} = {name} // {level.size}", f"{name} = {name} % {level.size}"]
    return lines


def tile_at(plan: GemmPlan, work: str) -> list[str]:
    """Return the code that finds the tile of a work item, in bands of tiles along M, and its matmul in a batch."""
    lines, along, column, of_column = list[str](), columns(plan), "within // band_rows", list[str]()
    if shares_rows(plan.problem):
        of_column = [f"column = {column}", *batch_of(plan, "column", along, "batch_column")]
        along, column = all_columns(plan), "batch_column"
    elif plan.problem.batch:
        lines, work = batch_of(plan, work, product_tiles(plan), "batch_tile"), "batch_tile"
    band = times(plan.group, along)
    return [
        *lines,
        f"band = {work} // {band} * {plan.group}",
        f"band_rows = cutlass.min({rows(plan)} - band, {plan.group})",
        f"within = {work} % {band}",
        f"tile_m = (band + within % band_rows) * {plan.cluster_tiles[0]} + place[1]",
        *of_column,
        f"tile_n = {column} * {plan.cluster_tiles[1]} + place[2]",
    ]


def in_group(plan: GemmPlan, row: str) -> str:
    """Return the row of a matrix for one of the rows that tiles count: those of a group count from its first."""
    return row if plan.problem.groups is None else f"group_begin + {row}"


def k_tiles(plan: GemmPlan) -> str:
    return "k_tiles" if "size_k" in plan.problem.runtime else str(plan.k_tiles)


def k_bounds(plan: GemmPlan) -> tuple[str, str]:
    """Return the first K tile of a CTA, and the one after its last; where CTAs take turns, among its own."""
    if plan.problem.ends is not None or takes_turns(plan):
        return "0", "k_end"
    return ("k_begin", "k_end") if plan.parts > 1 else ("0", k_tiles(plan))


def end_of_k(plan: GemmPlan) -> list[str]:
    """Return the definitions of the end of K of a tile, where it ends with the tile or its group. An empty group has a K tile
    of zeros."""
    ends = plan.problem.ends
    if ends is None:
        return []
    if ends.groups is None:
        return [f"k_end = cutlass.min({k_tiles(plan)}, (tile_{ends.side} + 1) * {ends.tile // plan.tile[2]})"]
    group, depth = "batch" if plan.problem.batch is not None else "0", plan.tile[2]
    return [
        f"group_begin = cutlass.max({GROUP_OFFSETS}[{group}].to(cutlass.Int32), 0)",
        f"group_end = cutlass.min({GROUP_OFFSETS}[{group} + 1].to(cutlass.Int32), {extent(plan, 'k')})",
        f"k_end = cutlass.max((group_end - group_begin + {depth - 1}) // {depth}, 1)",
    ]


def in_groups_of_k(plan: GemmPlan) -> bool:
    """Return whether each matmul of the batch has the K of its group."""
    return plan.problem.ends is not None and plan.problem.ends.groups is not None


def loop_bounds(plan: GemmPlan, loop: KLoop, group: int) -> tuple[str, str]:
    """Return the first K tile of a loop, and the one after its last; within a loop over groups, of a group."""
    if isinstance(loop, TermLoop):
        start, after_term = plan.first_k_tiles[loop.term : loop.term + 2]
        return str(start + loop.first), str(after_term if loop.stop is None else start + loop.stop)
    first, end = k_bounds(plan)
    if isinstance(loop, SliceLoop):
        return "own_slice" if first == "0" else f"{first} + own_slice", f"{end}, {slices(plan)}"
    if isinstance(loop, GroupLoop):
        return "0", f"{plan.k_tiles // loop.size * loop.size}, {loop.size}"
    if group:
        whole = end.isdigit() and int(end) % group == 0
        first, after = "group", f"group + {group}"
        end = after if whole else f"cutlass.min({after}, {end})"
    return " + ".join(part for part in (first, str(loop.first)) if part != "0") or "0", end


def other_k_tile(plan: GemmPlan, step: OfKTile | Ahead | Rest, current: str) -> str:
    """Return the number of a K tile that is not the ``current`` one; empty if there is none."""
    if isinstance(step, Ahead):
        return f"({current} + {step.by})"
    if isinstance(step, Rest):
        return str(plan.k_tiles - step.count) if plan.k_tiles % step.size == step.count else ""
    first, end = k_bounds(plan)
    last = str(int(end) - 1) if end.isdigit() else f"({end} - 1)"
    return {"first": first, "previous": "(k_tile - 1)", "last": last}[step.which]


MOST_APART = 3
"""Columns of B up to which tiles begin with different K tiles."""


def of_k_tile(plan: GemmPlan, k_tile: str) -> str:
    """Return the K tile that a CTA multiplies as number ``k_tile``.

    Where all tiles load the same one to three lines of B, those that run at once begin with different K tiles: the lines are
    in other slices of the L2 cache then. With 16 lines that is slower (measurement ``first_k_tiles``).
    """
    if not plan.sliced or plan.problem.n > MOST_APART or "size_n" in plan.problem.runtime:
        return k_tile
    first, end = k_bounds(plan)
    if first == "0":
        return f"({k_tile} + work) % {end}"
    return f"{first} + ({k_tile} - {first} + work) % ({end} - {first})"


def tile_of(plan: GemmPlan, operand: Multiplicand) -> str:
    """Return the coordinates of the current tile of an operand. K tiles count from the first one of its term; views of
    groups of K begin with the tile."""
    if in_groups_of_k(plan):
        return f"{'tile_m' if operand.base == 'a' else 'tile_n'}, 0, 0"
    first, lines = plan.first_k_tiles[operand.term], "tile_m" if operand.base == "a" else "tile_n"
    first -= -(-operand.k // plan.tile[2]) if operand.absent else 0  # past the end, where TMA writes zeros
    moved = f" {'-' if first > 0 else '+'} {abs(first)}" if first else ""
    moved = f" * {'k_parts' if plan.whole_tiles else plan.parts} + k_part" if takes_turns(plan) else moved
    return f"{lines}, {of_k_tile(plan, 'k_tile')}{moved}{batched(plan, operand.label)}"


def is_of_term(plan: GemmPlan, term: int) -> str:
    """Return the predicate of the K tiles of a term of a sum of matmuls."""
    first, after = plan.first_k_tiles[term : term + 2]
    bounds = [f"k_tile >= {first}"] if term else []
    bounds += [f"k_tile < {after}"] if term < len(plan.problem.terms) else []
    return " and ".join(bounds)


def columns(plan: GemmPlan) -> str:
    """Return the cluster tiles along N."""
    return "work_n" if "size_n" in plan.problem.runtime else str(plan.work[1])


def all_columns(plan: GemmPlan) -> str:
    """Return the cluster tiles along N of all matmuls of a batch."""
    batches = number(plan, "batches", plan.problem.batches)
    known = columns(plan).isdigit() and batches.isdigit()
    return str(int(columns(plan)) * int(batches)) if known else f"({columns(plan)} * {batches})"


def rows(plan: GemmPlan) -> str:
    """Return the cluster tiles along M."""
    grouped = plan.problem.groups is not None and "batches" in plan.problem.runtime
    return "work_m" if "size_m" in plan.problem.runtime or grouped else str(plan.work[0])


def times(number: int, text: str) -> str:
    """Return the product of a number and one that may be a name."""
    return str(number * int(text)) if text.isdigit() else f"({number} * {text})"


def product_tiles(plan: GemmPlan) -> str:
    """Return the cluster tiles of one matmul of a batch."""
    known = rows(plan).isdigit() and columns(plan).isdigit()
    return str(plan.work[0] * plan.work[1]) if known else f"({rows(plan)} * {columns(plan)})"


def pieces(plan: GemmPlan) -> str:
    """Return the work items of the persistent tile loop."""
    known = {"size_m", "size_n", "batches"}.isdisjoint(plan.problem.runtime)
    return str(plan.pieces) if known else "pieces"


def groups(plan: GemmPlan) -> str:
    """Return the number of groups of rows, or of K."""
    assert plan.problem.offsets is not None
    return number(plan, "batches", plan.problem.offsets.size)


def longest(plan: GemmPlan) -> str:
    """Return the most rows of a group that are computed; an empty string if all are."""
    of = plan.problem.groups
    return "" if of is None or of.longest is None else number(plan, LONGEST, of.longest)


def definitions(plan: GemmPlan) -> list[str]:
    """Return the definitions of the names above, from sizes."""
    lines = []
    rows_of_work, columns_of_work = (plan.tile[at] * plan.cluster_tiles[at] for at in (0, 1))
    if k_tiles(plan) == "k_tiles":
        lines.append(f"k_tiles = {parts(plan, 'k', plan.tile[2])}")
    if rows(plan) == "work_m":
        covering = parts(plan, "m", rows_of_work)
        if plan.problem.groups is not None:
            covering = f"{extent(plan, 'm')} // {rows_of_work} + {groups(plan)}"
        lines.append(f"work_m = {covering}")
    if columns(plan) == "work_n":
        lines.append(f"work_n = {parts(plan, 'n', columns_of_work)}")
    if pieces(plan) == "pieces":
        batches = number(plan, "batches", plan.problem.batches)
        repeated = plan.problem.batch is not None and plan.problem.groups is None
        lines.append(f"pieces = {product_tiles(plan)}" + (f" * {batches}" if repeated else ""))
    return lines


def of_team(plan: GemmPlan, role: Role, each: int) -> str:
    """Return the begin of an index among the buffers of both consumer groups, of which each has its own."""
    return "" if plan.teams == 1 else f"{role.team * each} + "


def predicate(plan: GemmPlan, who: Who, first_warp: int) -> str:
    """Return the predicate of a gate, of a role that begins at ``first_warp``."""
    last = f"shared_count[0] == {plan.grid_splits - 1}"
    return {
        "own_turn": f"(ab_copy.count + copy_turn) % {turns(plan)} == 0",
        "leader": "place[0] == 0",
        "first_warp": f"warp == {first_warp}",
        "last_subtile": f"subtile == {plan.subtiles - 1}",
        "owner": f"place[3] == subtile % {plan.splits}",
        "others": f"place[3] != subtile % {plan.splits}",
        "last_part": f"(k_parts == 1) | ({last})" if plan.whole_tiles else last,
        "earlier_part": f"shared_count[0] != {plan.grid_splits - 1}",
        "split_tile": "k_parts > 1",
        "whole_tile": "k_parts == 1",
    }[who]


def steps_of_tile(plan: GemmPlan, first: int, end: int, *, fresh: bool) -> str:
    """Return the range of a loop over the MMAs ``first`` to ``end`` of a K tile.

    It is unrolled after the trace. Loops that overwrite ``fresh`` accumulators of each K tile, and those of tcgen05, change
    the MMA in their body: the main loop would carry it, in other code (measurement ``traced_once``).
    """
    bounds = (first, end) if first else (end,)
    late = plan.unit == "wgmma" and not (fresh and plan.promote)
    return unrolled(*bounds) if late else f"cutlass.range_constexpr({', '.join(map(str, bounds))})"
