"""Bounds of the keys that a query sees, loaded for each query: of a tile for its blocks, and of a thread's rows for masks."""

from __future__ import annotations

from ...plan.attention.numbers import text_of
from ...plan.attention.records import AttentionPlan, ScorePlan, Source
from . import numbers
from .formula import head_axes, read

WARP = 32


def bounds_of(plan: ScorePlan) -> dict[str, tuple[Source, int]]:
    """Return the loaded bounds of a plan, and what is added to each, by name."""
    key_range = plan.problem.key_range if isinstance(plan, AttentionPlan) else None
    return {} if key_range is None else key_range.bounds


def span_names(plan: ScorePlan) -> list[str]:
    """Return the names of the first key of a tile and of the number of its keys, where these are loaded."""
    return (["origin"] if "begins" in bounds_of(plan) else []) + (["limit"] if plan.is_limited else [])


def names(plan: ScorePlan) -> list[str]:
    """Return the names of all loaded numbers that the blocks of a tile depend on."""
    extremes = {"begins": "most_begins", "ends": "least_ends"}
    return [*span_names(plan), *(extremes[name] for name in bounds_of(plan))]


def plus_origin(plan: ScorePlan) -> str:
    return "origin + " if "begins" in bounds_of(plan) else ""


def less_origin(plan: ScorePlan) -> str:
    return " - origin" if "begins" in bounds_of(plan) else ""


def row_names(plan: ScorePlan) -> list[str]:
    """Return the names of the registers with the bounds of a thread's rows."""
    return [f"row_{name}" for name in bounds_of(plan)]


def functions(plan: AttentionPlan) -> list[list[str]]:
    """Return the functions of a tile's bounds, which a warp computes together."""
    return [
        [
            f"def {name}_of_tile({', '.join(_arguments(plan, source))}):",
            f"    least, most = cutlass.Int32({text_of(plan.problem.keys)}), cutlass.Int32(0)",
            f"    for at in range({plan.rows // WARP}):",
            f"        bound = {_bound(plan, source, shift, f'tile_m * {plan.rows} + at * {WARP} + lane')}",
            "        least, most = cutlass.min(least, bound), cutlass.max(most, bound)",
            "    for offset in (1, 2, 4, 8, 16):",
            "        least = cutlass.min(least, cute.arch.shuffle_sync_bfly(least, offset=offset))",
            "        most = cutlass.max(most, cute.arch.shuffle_sync_bfly(most, offset=offset))",
            "    return cute.arch.make_warp_uniform(least), cute.arch.make_warp_uniform(most)",
        ]
        for name, (source, shift) in bounds_of(plan).items()
    ]


def _arguments(plan: AttentionPlan, source: Source) -> list[str]:
    return ["tile_m", "lane", *head_axes(plan.problem), f"vector_{source.label}", *numbers.parameters(plan)]


def _bound(plan: ScorePlan, source: Source, shift: int, query: str) -> str:
    """Return the bound of a query, within the keys that there are."""
    loaded = f"cutlass.Int32({read(plan, source, head_axes(plan.problem), query, '0', 1)})"
    moved = f"{loaded} + {shift}" if shift else loaded
    return f"cutlass.max(cutlass.min({moved}, {text_of(plan.problem.keys)}), 0)"


def of_tile(plan: ScorePlan) -> list[str]:
    """Return the definitions of a tile's first key and of the number of its keys, and of its bounds, in the kernel."""
    if not isinstance(plan, AttentionPlan) or not plan.is_limited:
        return []
    bounds = bounds_of(plan)
    if not bounds:
        return _limit(plan)
    lines = [
        f"least_{name}, most_{name} = {name}_of_tile({', '.join(_arguments(plan, source))})"
        for name, (source, _) in bounds.items()
    ]
    end = "most_ends" if "ends" in bounds else text_of(plan.problem.keys)
    return [
        *lines,
        *(["origin = least_begins"] if "begins" in bounds else []),
        f"limit = cutlass.max({end}{less_origin(plan)}, 0)",
    ]


def _limit(plan: AttentionPlan) -> list[str]:
    """Return the definition of the keys of a tile: those of its sequence, or all."""
    keys, length = text_of(plan.problem.keys), plan.problem.length
    if length is None:
        return [f"limit = cutlass.Int32({keys})"]
    loaded = read(plan, length, head_axes(plan.problem), "0", "0", 1)
    return [f"limit = cutlass.max(cutlass.min(cutlass.Int32({loaded}), {keys}), 0)"]


def of_rows(plan: ScorePlan) -> list[str]:
    """Return the loads of the bounds of a thread's rows in the kernel."""
    lines = []
    for name, (source, shift) in bounds_of(plan).items():
        lines.append("for row in cutlass.range_constexpr(2):")
        lines.append(f"    row_{name}[row] = {_bound(plan, source, shift, 'first_query + 8 * row')}")
    return lines


def registers(plan: ScorePlan) -> list[str]:
    """Return the definitions of the registers of a thread's rows."""
    return [f"{name} = cute.make_rmem_tensor(2, cutlass.Int32)" for name in row_names(plan)]
