"""Code for groups of rows: the order of their tiles, and views of matrices that begin at the first row of a group.

Every role walks over the same tiles: those of group 0 first. Tiles of a group are in bands of ``plan.group`` tiles
along M, as without groups: all columns of the first band come first. A group has as many tiles along M as cover its
rows, none if it is empty. Tiles are numbered across groups, and a role keeps the group of its last tile, since its
numbers only increase. Rows of another group that a tile loads are not stored. A store by TMA leaves them out because
they are outside of its tensor: dimension 0 of that has the rows of a tile, and the last dimension moves it along the
matrix, by one row for each element.

Tiles of groups of K are loaded in a similar way. Dimension 1 of the tensor has the lines of a tile, and dimension 2 moves
it. A box that begins before the first line has zeros there, and ends with the last line of its group.
"""

from __future__ import annotations

from ..plan.records import GemmPlan, Groups
from .numbers import GROUP_OFFSETS as PARAMETER
from .numbers import columns, extent, groups, in_group, in_groups_of_k, last, longest
from .setups import load_views, residual_views, rows_of, tile_views

NO_TILES = 2**30
"""Tiles of the group after the last one, more than any number of a tile."""


def _groups(plan: GemmPlan) -> Groups:
    assert plan.problem.offsets is not None
    return plan.problem.offsets


def _numbers(plan: GemmPlan) -> str:
    """Return how many offsets, or numbers of blocks, there are."""
    rows = _groups(plan).rows
    if _groups(plan).span is not None:
        return groups(plan)
    return f"{groups(plan)} + 1" if rows is None else str(-(-plan.problem.m // rows))


def parameters(plan: GemmPlan) -> list[str]:
    """Return the name of the offsets, if there are any."""
    return [] if plan.problem.offsets is None else [PARAMETER]


def tensors(plan: GemmPlan) -> list[tuple[str, str]]:
    """Return the host's tensor of offsets by name, if there are any."""
    return [
        (name, f"cute.make_tensor({name}, cute.make_layout({_numbers(plan)}, stride={_groups(plan).pitch}))")
        for name in parameters(plan)
    ]


def start() -> list[str]:
    """Define the group of the first tile, before any has been looked for."""
    return ["row_group = cutlass.Int32(-1)", "earlier_tiles = cutlass.Int32(0)", *_no_rows()]


def _no_rows() -> list[str]:
    return [f"group_{name} = cutlass.Int32(0)" for name in ("begin", "end", "tiles")]


def find(plan: GemmPlan) -> tuple[list[str], str, list[str]]:
    """Return the code that finds the group of tile number ``work``: the lines before a loop, its condition and its
    body."""
    rows, most = plan.tile[0] * plan.cluster_tiles[0], longest(plan)
    of_block = _groups(plan).rows
    if of_block is not None:
        return _blocks(plan), "", []
    ended = [f"group_end = group_begin + cutlass.min(group_end - group_begin, {most})"] if most else []
    body = [
        "earlier_tiles += group_tiles",
        "row_group += 1",
        f"at_group = cutlass.min(row_group, {groups(plan)} - 1)",
        *_bounds(plan),
        *ended,
        f"group_tiles = (cutlass.max(group_end - group_begin, 0) + {rows - 1}) // {rows}",
        f"group_tiles = cutlass.Int32(cutlass.select_(row_group < {groups(plan)}, group_tiles, cutlass.Int32({NO_TILES})))",
    ]
    return [f"row_tile = work // {columns(plan)}"], "row_tile >= earlier_tiles + group_tiles", body


def _bounds(plan: GemmPlan) -> list[str]:
    """Return the code of the first row of group number ``at_group``, and of the row after its last one."""
    span = _groups(plan).span
    if span is not None:
        count = f"cutlass.min({PARAMETER}[at_group].to(cutlass.Int32), {span})"
        return [f"group_begin = at_group * {span}", f"group_end = group_begin + {count}"]
    return [
        f"group_begin = cutlass.max({PARAMETER}[at_group].to(cutlass.Int32), 0)",
        f"group_end = cutlass.min({PARAMETER}[at_group + 1].to(cutlass.Int32), {extent(plan, 'm')})",
    ]


def _blocks(plan: GemmPlan) -> list[str]:
    """Return the code before a tile of blocks of rows: all rows are those of one group, and there is none after the last
    tile. The number of its group follows from its coordinates."""
    tiles, last_group = plan.work[0], f"cutlass.Int32({groups(plan)})"
    return [
        f"row_tile = work // {columns(plan)}",
        f"row_group = cutlass.Int32(cutlass.select_(row_tile < {tiles}, cutlass.Int32(0), {last_group}))",
        f"group_end = cutlass.Int32({plan.problem.m})",
        f"group_tiles = cutlass.Int32({tiles})",
    ]


def tile(plan: GemmPlan) -> list[str]:
    """Return the code of the coordinates of tile number ``work``: along M within its group."""
    lines = ["batch = row_group"] if plan.problem.batch is not None else []
    if (of_block := _groups(plan).rows) is not None:
        block = f"{PARAMETER}[tile_m * {plan.tile[0]} // {of_block}].to(cutlass.Int32)"
        return [
            *_coordinates(plan),
            f"row_group = cutlass.max(cutlass.min({block}, {groups(plan)} - 1), 0)",
            *lines,
        ]
    return [*lines, *_coordinates(plan)]


def _coordinates(plan: GemmPlan) -> list[str]:
    rows, columns_of_work = plan.cluster_tiles
    if plan.group == 1:
        return [
            f"tile_m = (row_tile - earlier_tiles) * {rows} + place[1]",
            f"tile_n = work % {columns(plan)} * {columns_of_work} + place[2]",
        ]
    return [
        f"band = (row_tile - earlier_tiles) // {plan.group} * {plan.group}",
        f"band_rows = cutlass.min(group_tiles - band, {plan.group})",
        f"within = work - (earlier_tiles + band) * {columns(plan)}",
        f"tile_m = (band + within % band_rows) * {rows} + place[1]",
        f"tile_n = within // band_rows * {columns_of_work} + place[2]",
    ]


def views(plan: GemmPlan, of: str) -> list[str]:
    """Return the views of a role that begin at the rows of the group."""
    if of == "loads":
        return load_views(plan, "a", "cute.domain_offset((group_begin, 0), tensor_a)")
    if of == "residuals":
        return residual_views(plan, "cute.domain_offset((group_begin, 0), tensor_{name})")
    high, columns_of_box = plan.store_box
    lines = [
        f"tile_begin = {in_group(plan, f'{rows_of(plan)} * {plan.cta_tile[0]}')}",
        f"tile_rows = cutlass.min(cutlass.max(group_end - tile_begin, 0), {high})",
    ]
    for label in map(plan.problem.label_of, plan.problem.outputs_of("exact")):
        moved = f"cute.domain_offset(({high} - tile_rows, 0, tile_begin + tile_rows), tensor_{label})"
        lines += tile_views(plan, label, (high, columns_of_box), moved)
    return lines


def views_of_k(plan: GemmPlan, name: str) -> list[str]:
    """Return the views of an operand that begin with the current K tile of a group of K, if there are such groups."""
    if not in_groups_of_k(plan):
        return []
    depth = plan.tile[2]
    moved = f"cute.domain_offset((0, k_lines - {depth}, cutlass.min(k_begin, {last(plan, 'k')})), tensor_{name})"
    return [
        f"k_begin = group_begin + k_tile * {depth}",
        f"k_lines = cutlass.min(cutlass.max(group_end - k_begin, 0), {depth})",
        *load_views(plan, name, moved),
    ]


def operand(plan: GemmPlan, pitch: str, lines: str) -> tuple[str, str]:
    """Return shape and strides of the tensor that K tiles of groups are loaded from. Its first element is that of the
    matrix: an access fails if the first one is not in memory, although all of its box is outside."""
    shape = f"({lines}, cutlass.Int32({plan.tile[2]}), cutlass.Int32({extent(plan, 'k')}))"
    return shape, f"(1, {pitch}, {pitch})"


def matrix(plan: GemmPlan, name: str, pitch: str, columns: str) -> tuple[str, str, str]:
    """Return pointer, shape and strides of the tensor that tiles of a group are stored to, of ``columns``.

    It begins one tile before the matrix, so that no distance is negative. Its extents along rows are launch-time
    numbers, because one tile covers the first.
    """
    high = plan.store_box[0]
    shape = f"(cutlass.Int32({high}), {columns}, cutlass.Int32({extent(plan, 'm')} + 1))"
    return f"{name} + {-high} * {pitch}", shape, f"({pitch}, 1, {pitch})"
