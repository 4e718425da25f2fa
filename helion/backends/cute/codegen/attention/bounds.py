"""The tiles of a launch, and the blocks of keys of each."""

from __future__ import annotations

from ...plan.attention.numbers import text_of
from ...plan.attention.records import Part, ScorePlan
from ..writer import Writer
from . import numbers, spans


def place_function(plan: ScorePlan) -> list[str]:
    """Return the function from the number of a tile to (tile of queries, head).

    Heads are in bands whose K and V stay in the L2 cache. Where tiles differ in length, those of all heads of a band
    come longest first. The last band has the heads that are left over as well: few of their own would begin with the longest
    tiles when other SMs have none left. Tiles of heads that share a tile of a bias follow one another, so that it is in the
    cache.
    """
    tiles, heads, band = numbers.query_tiles(plan), numbers.batches(plan), numbers.heads_per_band(plan)
    lines = [f"def place({', '.join(['work', *numbers.parameters(plan)])}):"]
    if not plan.orders_by_length:
        sharing, leads = numbers.heads_of_bias(plan)
        if sharing == 1:
            return [*lines, f"    return work % {tiles}, work // {tiles}"]
        rest = int(heads) // sharing
        shared, other = f"work % {sharing}", f"work // {int(tiles) * sharing}"
        head = f"({shared}) * {rest} + {other}" if leads else f"{other} * {sharing} + {shared}"
        return [*lines, f"    return work // {sharing} % {tiles}, {head}"]
    of_band = numbers.product(band, tiles)
    reverse = f"{numbers.less(tiles, 1)} - " if plan.problem.band.last is not None else ""
    if numbers.divides(band, heads):
        width = band
        lines += [f"    first = work // {of_band} * {band}", f"    within = work % {of_band}"]
    else:
        width = "width"
        lines += [
            f"    last = {numbers.less(numbers.quotient(heads, band), 1)}",
            f"    number = cutlass.min(work // {of_band}, last)",
            f"    first = number * {band}",
            f"    width = cutlass.select_(number < last, cutlass.Int32({band}), {heads} - first)",
            f"    within = work - first * {tiles}",
        ]
    return [*lines, f"    return {reverse}within // {width}, first + within % {width}"]


def bounds_function(plan: ScorePlan) -> list[str]:
    """Return the function from the tile of queries to its blocks of keys.

    They are blocks ``begin`` to ``end``, at least one. Those from ``whole`` on are masked by an upper bound of the
    keys of a query, those before ``edge`` by a lower one.
    """
    band, rows, keys, total = plan.problem.band, plan.rows, plan.keys, plan.problem.keys
    loaded, origin, shift = spans.bounds_of(plan), spans.less_origin(plan), " + shift" if band.shift else ""
    lines = [f"def blocks_of({', '.join(['tile_m', *spans.names(plan), *numbers.parameters(plan)])}):"]
    blocks = f"cutlass.max((limit + {keys - 1}) // {keys}, 1)" if plan.is_limited else numbers.parts(total, keys)
    of_tile, rows = band.queries_of("tile_m", rows)
    zero, end, whole, begin, edge = "cutlass.Int32(0)", f"cutlass.Int32({blocks})", "end", "zero", "zero"
    if blocks == "2":  # a loop that is known to run once becomes straight code, which needs more registers
        end = f"cute.arch.make_warp_uniform({end})"
    lines.append(f"    zero = {zero}")
    lines.append(f"    end = {end}")
    if band.last is not None:
        least = f"cutlass.max(prefix{origin}, zero)" if band.prefix else "zero"
        lines += [
            f"    seen = {of_tile} + {text_of(band.last)}{shift}{origin}",
            f"    end = cutlass.max(cutlass.min(end, (cutlass.max(seen + {rows}, {least}) + {keys - 1}) // {keys}), 1)",
        ]
        whole = f"cutlass.max(seen + 1, {least}) // {keys}"
    if "ends" in loaded:
        of_rows = f"cutlass.max(least_ends{origin}, zero) // {keys}"
        whole = of_rows if band.last is None else f"cutlass.min({whole}, {of_rows})"
    if band.has_first:
        lines += [
            f"    hidden = {band.first_of(of_tile)}{origin}",
            f"    begin = cutlass.min(cutlass.max(hidden, zero) // {keys}, end - 1)",
        ]
        last = f"{band.first_of(f'{of_tile} + {rows - 1}')}{origin}" if band.chunk else f"hidden + {rows - 1}"
        begin, edge = "begin", f"(cutlass.max({last}, zero) + {keys - 1}) // {keys}"
    if "begins" in loaded:
        of_rows = f"(most_begins{origin} + {keys - 1}) // {keys}"
        edge = f"cutlass.max({edge}, {of_rows})" if band.has_first else of_rows
    return [*lines, f"    return {begin}, end, {whole}, {edge}"]


def part_lengths(plan: ScorePlan) -> list[str]:
    """Return the definitions of the number of blocks of each part, after those of the blocks."""
    parts = plan.parts
    lines, left = [], "end - 1"
    if "diagonal" in parts:
        lines.append("diagonal_blocks = end - 1 - cutlass.max(begin, cutlass.min(whole, end - 1))")
        left = "end - 1 - diagonal_blocks"
    if "edge" in parts:
        lines.append(f"free_blocks = {left} - cutlass.max(begin, cutlass.min(edge, {left}))")
        lines.append(f"edge_blocks = {left} - free_blocks - begin")
    else:
        lines.append(f"free_blocks = {left} - begin")
    return lines


def bounded(plan: ScorePlan) -> str:
    """Return the condition that a bound of the keys masks some of a block."""
    found = {"diagonal": "(block >= whole)", "edge": "(block < edge)"}
    return " | ".join(found[part] for part in plan.parts if part in found)


def side_lengths() -> list[str]:
    """Return the definitions of the last block of a side and of its numbers of blocks, with masks and without."""
    zero = "cutlass.Int32(0)"
    return [
        "side_blocks = cutlass.select_(side == 0, diagonal_blocks, edge_blocks)",
        f"middle_blocks = cutlass.select_(side == 0, free_blocks, {zero})",
        f"last_block = end - 2 - cutlass.select_(side == 0, {zero}, diagonal_blocks + free_blocks)",
    ]


def block_index(plan: ScorePlan, part: Part) -> str:
    """Return the index of a part's block from the loop variable ``at``."""
    if part == "any":
        return "end - 2 - at"
    if part in ("side", "middle"):
        return f"last_block{' - side_blocks' if part == 'middle' else ''} - at"
    passed = [f" - {name}_blocks" for name in plan.parts[: plan.parts.index(part)]]
    return f"end - 2{''.join(passed)} - at"


def take_ticket(out: Writer) -> None:
    """Print the draw of the next tile by the loading warp."""
    out.line("ticket = cutlass.Int32(0)")
    with out.block("if lane == 0:"):
        out.line(
            'ticket = cute.arch.atomic_add(ticket_counter.iterator, cutlass.Int32(1), sem="relaxed", scope="gpu") + work_step'
        )


def hand_out(out: Writer, plan: ScorePlan) -> None:
    """Print the hand-over of the drawn tile to the other roles."""
    if plan.scheduler != "dynamic":
        out.line("work += work_step")
        return
    out.lines(
        (
            "work = cute.arch.make_warp_uniform(ticket)",
            "cute.arch.mbarrier_wait(tile_barriers + 2 + (visited & 1), ((visited >> 1) & 1) ^ 1)",
        )
    )
    with out.block("if lane == 0:"):
        with out.block(f"if work == {numbers.less(numbers.pieces(plan), 1)} + work_step:"):
            out.line("ticket_counter[0] = cutlass.Int32(0)")
        out.line("tile_slots[visited & 1] = work")
        out.line("cute.arch.mbarrier_arrive(tile_barriers + (visited & 1))")


def next_tile(out: Writer, plan: ScorePlan) -> None:
    """Print the read of the next tile by the other roles."""
    if plan.scheduler != "dynamic":
        out.line("work += work_step")
        return
    out.lines(
        (
            "cute.arch.mbarrier_wait(tile_barriers + (visited & 1), (visited >> 1) & 1)",
            "work = cute.arch.make_warp_uniform(tile_slots[visited & 1])",
            "cute.arch.sync_warp()",
        )
    )
    with out.block("with cute.arch.elect_one():"):
        out.line("cute.arch.mbarrier_arrive(tile_barriers + 2 + (visited & 1))")
