"""Rows of a tile by integers that are loaded: spans of keys and of queries, and bounds of the keys that a query sees."""

from __future__ import annotations

import functools

from ...plan.attention.backward import BackwardPlan
from ...plan.attention.numbers import is_known, text_of
from ...plan.attention.operands import SPAN_DIMENSIONS, Matrix, Source
from ...plan.attention.records import AttentionPlan, ScorePlan, Span
from ...plan.dtypes import itemsize
from . import numbers
from .formula import head_axes, read

WARP = 32
ROWS, MOST_ROWS = 2**30, 2**31 - 1
"""The extent of the rows of a span in TMA's descriptor, and of its other dimensions."""


def bounds_of(plan: ScorePlan) -> dict[str, tuple[Source, int]]:
    """Return the loaded bounds of a plan, and what is added to each, by name."""
    key_range = plan.problem.key_range
    return {} if key_range is None else key_range.bounds


def span_names(plan: ScorePlan) -> list[str]:
    """Return the names of what is loaded for all queries of a tile: the first key, the number of keys, the shift of the
    band, and its prefix."""
    of_band = [name for name in ("shift", "prefix") if getattr(plan.problem.band, name) is not None]
    return (["origin"] if has_origin(plan) else []) + (["limit"] if plan.is_limited else []) + of_band


def has_origin(plan: ScorePlan) -> bool:
    """Return whether the first key of a tile is loaded."""
    span = _key_span(plan)
    return "begins" in bounds_of(plan) or (span is not None and span.begin is not None)


def _key_span(plan: ScorePlan) -> Span | None:
    return plan.problem.key_span if isinstance(plan, AttentionPlan) else None


def names(plan: ScorePlan) -> list[str]:
    """Return the names of all loaded numbers that the blocks of a tile depend on."""
    extremes = {"begins": "most_begins", "ends": "least_ends"}
    return [*span_names(plan), *(extremes[name] for name in bounds_of(plan))]


def plus_origin(plan: ScorePlan) -> str:
    return "origin + " if has_origin(plan) else ""


def less_origin(plan: ScorePlan) -> str:
    return " - origin" if has_origin(plan) else ""


def row_names(plan: ScorePlan) -> list[str]:
    """Return the names of the registers with the bounds of a thread's rows."""
    return [f"row_{name}" for name in bounds_of(plan)]


def functions(plan: ScorePlan) -> list[list[str]]:
    """Return the functions of a tile's bounds, which a warp computes together."""
    return [
        [
            f"def {name}_of_tile({', '.join(_arguments(plan, source))}):",
            f"    least, most = cutlass.Int32({text_of(plan.problem.keys)}), cutlass.Int32(0)",
            f"    for at in range({plan.rows // WARP}):",
            f"        bound = {_bound(plan, source, shift, f'tile_m * {plan.rows} + at * {WARP} + lane')}",
            *_past_the_end(plan, name),
            "        least, most = cutlass.min(least, bound), cutlass.max(most, bound)",
            "    least = cute.arch.warp_redux_sync(least, 'min')",
            "    most = cute.arch.warp_redux_sync(most, 'max')",
            "    return cute.arch.make_warp_uniform(least), cute.arch.make_warp_uniform(most)",
        ]
        for name, (source, shift) in bounds_of(plan).items()
    ]


def _past_the_end(plan: ScorePlan, name: str) -> list[str]:
    """Return the bound of rows past the end, if these must not be seen: all blocks of their tile are masked then."""
    if not isinstance(plan, BackwardPlan) or not plan.clears_rows:
        return []
    row, none = f"tile_m * {plan.rows} + at * {WARP} + lane", "0" if name == "ends" else text_of(plan.problem.keys)
    return [f"        bound = cutlass.select_({row} < {text_of(plan.problem.queries)}, bound, cutlass.Int32({none}))"]


def _arguments(plan: ScorePlan, source: Source) -> list[str]:
    return ["tile_m", "lane", *head_axes(plan.problem), f"vector_{source.label}", *numbers.parameters(plan)]


def _bound(plan: ScorePlan, source: Source, shift: int, query: str) -> str:
    """Return the bound of a query, within the keys that there are."""
    loaded = f"cutlass.Int32({read(plan, source, head_axes(plan.problem), query, '0', 1)})"
    moved = f"{loaded} + {shift}" if shift else loaded
    return f"cutlass.max(cutlass.min({moved}, {text_of(plan.problem.keys)}), 0)"


def coordinates(plan: ScorePlan) -> list[str]:
    """Return the loads of the integers of a head, its last coordinates."""
    if not isinstance(plan, AttentionPlan):
        return []
    axes, loaded = head_axes(plan.problem), plan.problem.loaded
    names = axes[len(axes) - len(loaded) :]
    return [
        f"{name} = cute.arch.make_warp_uniform(cutlass.Int32({read(plan, source, axes, '0', '0', 1)}))"
        for name, source in zip(names, loaded, strict=True)
    ]


def of_tile(plan: ScorePlan) -> list[str]:
    """Return the definitions of what is loaded for a tile, in the kernel."""
    return [*_keys(plan), *_of_band(plan)]


def _of_band(plan: ScorePlan) -> list[str]:
    band, axes = plan.problem.band, head_axes(plan.problem)
    places = {"shift": band.shift, "prefix": band.prefix}
    return [
        f"{name} = cutlass.Int32({place.text(axes)})" if name == "prefix" else f"{name} = {place.text(axes)}"
        for name, place in places.items()
        if place is not None
    ]


def _keys(plan: ScorePlan) -> list[str]:
    """Return the definitions of a tile's first key, of the number of its keys, and of the bounds of its queries."""
    if not plan.is_limited:
        return []
    bounds, axes, span = bounds_of(plan), head_axes(plan.problem), _key_span(plan)
    lines = [
        f"least_{name}, most_{name} = {name}_of_tile({', '.join(_arguments(plan, source))})"
        for name, (source, _) in bounds.items()
    ]
    keys, (streamed, *_) = text_of(plan.problem.keys), plan.problem.blocks.values()
    row = row_of(plan, streamed)
    end = "most_ends" if "ends" in bounds else keys
    if span is not None:
        ends = [f"{keys} - {row}" if row else keys, *(each.text(axes) for each in span.ends)]
        end = functools.reduce(lambda one, other: f"cutlass.min({one}, {other})", ends)
    if has_origin(plan):
        begin = "least_begins" if span is None or span.begin is None else span.begin.text(axes)
        lines.append(f"origin = cutlass.max({begin}, 0)")
    spanned = plan.problem.spans_keys
    lines.append(f"limit = cutlass.max({end}{less_origin(plan)}, 0)" if spanned else f"limit = cutlass.Int32({end})")
    if (
        isinstance(plan, AttentionPlan) and plan.problem.spans_queries
    ):  # tiles beyond the queries of a head have no keys
        lines += of_queries(plan)
        lines.append(f"limit = cutlass.Int32(cutlass.select_(tile_m * {plan.rows} < query_limit, limit, 0))")
    return lines


def of_queries(plan: AttentionPlan) -> list[str]:
    """Return the definition of the number of queries of the head."""
    span, queries = plan.problem.query_span, text_of(plan.problem.queries)
    if span is None:
        return []
    ends = [queries, *(each.text(head_axes(plan.problem)) for each in span.ends)]
    least = functools.reduce(lambda one, other: f"cutlass.min({one}, {other})", ends)
    return [f"query_limit = cutlass.max({least}, 0)"]


def row_of(plan: ScorePlan, matrix: Matrix) -> str:
    """Return the row of index 0 of a matrix, or nothing if it is row 0."""
    return "" if matrix.row is None else matrix.row.text(head_axes(plan.problem))


def row_of_page(plan: ScorePlan, matrix: Matrix, block: str) -> str:
    """Return the row of a block's first key, less the index of that key: the block is within a page."""
    pages = matrix.pages
    assert pages is not None
    page = f"{block} // {pages.size // plan.keys}" if pages.size != plan.keys else block
    loaded = read(plan, pages.table, head_axes(plan.problem), "0", page, pages.most)
    if is_known(pages.distance) and pages.distance == pages.size:
        return f"(cutlass.Int32({loaded}) - {page}) * {pages.size}"
    return f"cutlass.Int32({loaded}) * {text_of(pages.distance)} - ({page}) * {pages.size}"


def end_of(plan: ScorePlan, matrix: Matrix, end: str) -> str:
    """Return the row for TMA after the last one of a span that ends at an index."""
    rows = [each.text(head_axes(plan.problem)) for each in (matrix.base, matrix.row) if each is not None]
    return " + ".join([*rows, end])


def first_row(count: str) -> str:
    """Return the index of a span's first row in TMA's descriptor, which counts it back from the last row."""
    return f"{ROWS} - {count}"


def dimensions(matrix: Matrix) -> list[tuple[str, str]]:
    """Return the extents and strides of the dimensions that a span of rows adds to a matrix.

    A span has n rows and ends before row e. Its row i has the indices ``ROWS`` - n + i of rows, e, and ``ROWS``. Each
    counts rows, the last one backwards, so that their sum is row e - n + i. TMA takes no rows whose first index is
    ``ROWS`` or more, those after the span. Addresses are computed modulo 2**64, which ``ROWS`` * 2**34 bytes are.
    """
    wrap, pitch = 2**64 // ROWS // itemsize(matrix.dtype), text_of(matrix.pitch)
    back = str(wrap - matrix.pitch) if is_known(matrix.pitch) else f"cutlass.Int64({wrap}) - {pitch}"
    return [(f"cutlass.Int32({MOST_ROWS})", pitch), (f"cutlass.Int32({MOST_ROWS})", back)]


def stored(name: str, shared: str, box: tuple[int, int], columns: str, modes: int, first_row: str) -> list[str]:
    """Return the partition of a matrix for its TMA stores, of a span of rows from ``first_row`` on, if given. ``columns`` are the
    tiles of columns that stores choose, and ``modes`` the dimensions of heads."""
    others = ["None"] * (modes + (SPAN_DIMENSIONS if first_row else 0))
    tensor = f"tensor_{name}"
    if first_row:
        tensor = f"cute.domain_offset(({', '.join([first_row, '0', *('0' for _ in others)])}), {tensor})"
    return [
        f"tiles_{name} = cute.local_tile({tensor}, {box}, ({', '.join(['None', columns, *others])}))",
        f"from_{name}, to_{name} = cpasync.tma_partition(",
        f"    tma_{name}, 0, cute.make_layout(1), cute.group_modes({shared}, 0, 2), cute.group_modes(tiles_{name}, 0, 2)",
        ")",
    ]


def places(end: str) -> list[str]:
    """Return the indices of these dimensions for a span that ends before a row."""
    return [end, str(ROWS)]


def of_rows(plan: ScorePlan) -> list[str]:
    """Return the loads of the bounds of a thread's rows in the kernel."""
    lines = []
    for name, (source, shift) in bounds_of(plan).items():
        lines.append("for row in cutlass.range_constexpr(2):")
        lines.append(f"    row_{name}[row] = {_bound(plan, source, shift, 'first_query + 8 * row')}")
    return lines


def of_row(plan: ScorePlan, query: str) -> list[str]:
    """Return the loads of the bounds of one query."""
    return [
        f"{name} = {_bound(plan, source, shift, query)}"
        for name, (source, shift) in zip(row_names(plan), bounds_of(plan).values(), strict=True)
    ]


def registers(plan: ScorePlan) -> list[str]:
    """Return the definitions of the registers of a thread's rows."""
    return [f"{name} = cute.make_rmem_tensor(2, cutlass.Int32)" for name in row_names(plan)]
