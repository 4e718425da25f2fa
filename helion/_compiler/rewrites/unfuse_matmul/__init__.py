"""Computes matmuls in a separate, earlier grid loop, if each program would otherwise hold whole rows of them.

A program that reduces the rows of a matmul has registers for few rows, too few to keep the MMA busy. Before::

    grid b0 in 0..m: %1: [b0, b1] = for b2 in 0..k: dot x[b0, b2], y[b2, b1]
                     %2: [b0] = reduce sum %1 over 1; ..

After, with separate tiles b3, b4, b5 of the matmul, so that the row tiles do not depend on it::

    grid b3 in 0..m, b4 in 0..n: %3: [b3, b4] = for b5 in 0..k: dot x[b3, b5], y[b5, b4]; store products[b3, b4] <- %3
    grid b0 in 0..m: %1: [b0, b1] = load products[b0, b1]
                     %2: [b0] = reduce sum %1 over 1; ..

Each matmul has a launch of its own (measurement ``unfused_alone``). A matmul that a kernel computes again for another pass
over its rows is computed once. The stored values have the dtype
of the accumulator, or a narrower one if all uses cast to it.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from ...._support.records import dataclass, replace
from ....fields import IntegerFragment, PowerOfTwoFragment, values_of
from ....hardware import Target
from ...decisions import Decisions
from ...ir.grammar import ForAttrs, Program, Root
from ...ir.rewrite import Declined
from ..record import FactContext, LaunchKey, Rewrite, RuleContext, TileSides, Values, has_matmul_of_open_sizes
from .loops import offsets_fit, products, split_off, unfuse_matmul

Facts = TypeVar("Facts")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class UnfusedMatmulFact(Generic[Facts]):
    """A kernel whose matmuls are computed first, in separate grid loops: facts of the matmuls (``products``) and of the
    remaining kernel (``rest``).

    Both have the same axes. ``rows``, ``columns`` and ``depths`` are the axes of the matmul tiles: M, N and K.
    """

    products: Facts
    rest: Facts
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    depths: tuple[int, ...]


def _fact(context: FactContext) -> UnfusedMatmulFact[Any] | str:
    """Return the facts of both parts, or the reason why matmuls cannot be computed first."""
    if not context.dots:
        return "the kernel has no matmul"
    try:
        made, sides = split_off(context.program, (None, None, None))
    except Declined as declined:
        return str(declined)
    traced = len(context.program.roots)
    rest, first = (_alone(made, roots) for roots in (made.roots[:traced], made.roots[traced:]))
    return UnfusedMatmulFact(
        products=context.collect(first),
        rest=context.collect(rest),
        rows=sides.rows,
        columns=sides.columns,
        depths=sides.depths,
    )


def _alone(program: Program, roots: tuple[Root, ...]) -> Program:
    """Return a program with some of the grid loops. Tiles of other loops get size 1, so no config key sizes them."""
    part = replace(program, roots=roots)
    walked = {axis.block for root in roots for axis in root.axes}
    walked |= {axis.block for op in part.walk() if isinstance(op.attrs, ForAttrs) for axis in op.attrs.axes}
    blocks = (replace(b, size=1) if b.tunable and b.id not in walked else b for b in program.blocks)
    return replace(part, blocks=tuple(blocks))


#: Sides of tiles.
_LEAST_SIDE, _MOST_SIDE, _MOST_DEPTH = 16, 256, 256
_WARPS, _STAGES = PowerOfTwoFragment(1, 32), IntegerFragment(1, 8)


def matmul_tile(decisions: Decisions) -> tuple[int, int, int] | None:
    """Return the M, N and K of the tiles of unfused matmuls; None if matmuls stay fused."""
    asked = decisions.values.get("unfuse_matmul")
    return None if asked is None else (asked[0], asked[1], asked[2])


def matmul_launch(decisions: Decisions) -> tuple[int, int]:
    """Return the warps and pipeline stages of the kernel of unfused matmuls."""
    values = decisions.values
    return values["matmul_num_warps"] or values["num_warps"], values["matmul_num_stages"] or values["num_stages"]


def _values(program: Program, target: Target) -> Values:
    made, blocks = split_off(program, (None, None, None))
    sides = ((blocks.rows, _MOST_SIDE), (blocks.columns, _MOST_SIDE), (blocks.depths, _MOST_DEPTH))
    least = ([_LEAST_SIDE, *(made.blocks[block].min_size for block in of)] for of, _ in sides)
    pairs = zip(least, sides, strict=True)
    return Values(legal=TileSides(sides=tuple(PowerOfTwoFragment(max(low), high) for low, (_, high) in pairs)))


def _applies(program: Program, target: Target) -> str:
    try:
        products(program)
    except Declined as declined:
        return str(declined)
    return ""


def _fit(context: RuleContext, value: Any, decisions: Decisions) -> Any:
    return value if offsets_fit(context.program) else None


def _warps(target: Target) -> tuple[int, ...]:
    most = min(_WARPS.high, target.max_threads_per_block // target.warp_size)
    return values_of(PowerOfTwoFragment(_WARPS.low, most))


UNFUSE_MATMUL = Rewrite(
    key="unfuse_matmul",
    doc="Tile sizes (M, N, K), such as `[128, 128, 32]`, of a separate kernel that first computes the matmuls whose rows are reduced, and stores them; None computes them where they are used.",
    off=None,
    range=PowerOfTwoFragment(1, _MOST_SIDE),
    values=_values,
    applies=_applies,
    varies=has_matmul_of_open_sizes,
    fit=_fit,
    needs="unfused matmuls need an intermediate below 2**31 elements and a pid_type other than 'xyz', and replace their loops with all options",
    resets={
        "epilogue_subtile": None,
        "split_k": 1,
        "pack_operands": False,
        "precompute_operands": False,
        "fuse_loops": False,
        "flatten_loops": False,
    },
    removes=frozenset(("loops", "accesses")),
    numbered=True,
    launch=(
        LaunchKey(
            key="matmul_num_warps",
            doc="Warps of the kernel that computes such matmuls first; None takes `num_warps`.",
            of="num_warps",
            range=_WARPS,
            values=_warps,
        ),
        LaunchKey(
            key="matmul_num_stages",
            doc="Pipeline stages of its loop; None takes `num_stages`.",
            of="num_stages",
            range=_STAGES,
            values=lambda target: values_of(_STAGES),
        ),
    ),
    fact=_fact,
    apply=lambda program, value, inputs: unfuse_matmul(program, value),
)
