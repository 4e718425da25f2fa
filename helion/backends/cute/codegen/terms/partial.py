"""MMAs of terms that add to a part of the accumulators: a tiled MMA for each piece, with views of its columns."""

from __future__ import annotations

from ...plan.records import GemmPlan
from ...roles.partial import Piece, PieceViews, TermMma, all_pieces, pieces
from ..numbers import steps_of_tile
from ..setups import hopper_mma, mma_arguments, operand_dsl


def lines(plan: GemmPlan, step: TermMma | PieceViews) -> list[str]:
    return multiply(plan, step) if isinstance(step, TermMma) else set_up(plan)


def set_up(plan: GemmPlan) -> list[str]:
    """Define the tiled MMA of each piece, with its fragments of B, and of sums in registers."""
    return [line for piece in all_pieces(plan) for line in _views(plan, piece)]


def _views(plan: GemmPlan, piece: Piece) -> list[str]:
    (m, n, k), name, columns = plan.tile, piece.name, piece.count * plan.tile[1]
    wgmma, shape = plan.unit == "wgmma", f"{name}_mma.partition_shape_C(({m}, {columns}))"
    if wgmma:
        order = "ROW_MAJOR" if plan.problem.b_major == "k" else "COL_MAJOR"
        mma = hopper_mma(plan, columns)
        layout = f"hopper.make_smem_layout_b(LayoutEnum.{order}, ({m}, {columns}, {k}), {operand_dsl(plan)}, 1)"
        modes, part = "[0, 1]", f"{name}_mma.get_slice(group_layout(store_warp // 4)).partition_B({name}_shared)"
        registers = f"cute.make_layout({shape}, stride=((1, 2, 4), {plan.sum_columns // 2}, 0))"
        sums = [f"{name}_sums = cute.make_tensor(sums.iterator + {piece.first * n // 2}, {registers})"]
    else:
        mma = f"blackwell.make_trivial_tiled_mma({mma_arguments(plan, columns)})"
        layout = f"blackwell.make_smem_layout_b({name}_mma, ({m}, {columns}, {k}), {operand_dsl(plan)}, 1)"
        modes, part = "[0, 1, 2]", f"{name}_shared"
        sums = [f"{name}_layout = {name}_mma.make_fragment_C({shape}).layout"]
    stages = f"cute.make_layout({plan.ab_stages}, stride={plan.sum_columns * k})"
    return [
        f"{name}_mma = {mma}",
        f"{name}_shared = cute.make_tensor(",
        f"    shared_b.iterator + {piece.first * n * k},",
        f"    cute.append(cute.select({layout}.outer, mode={modes}), {stages}),",
        ")",
        f"{name}_b = {name}_mma.make_fragment_B({part})",
        *sums,
    ]


def multiply(plan: GemmPlan, step: TermMma) -> list[str]:
    """Issue the MMAs of a K tile of a term."""
    field = f"{'warpgroup' if plan.unit == 'wgmma' else 'tcgen05'}.Field.ACCUMULATE"
    lines, issued = list[str](), list[str]()
    for piece in pieces(plan, step.term, step.first):
        whole = piece.count == plan.products
        mma, b = ("tiled_mma", "fragment_b") if whole else (f"{piece.name}_mma", f"{piece.name}_b")
        sums = "sums" if whole else f"{piece.name}_sums"
        if not whole and plan.unit == "tcgen05":
            first = piece.first * plan.tile[1]
            lines.append(f"{sums} = cute.make_tensor(sums.iterator + {first}, {piece.name}_layout)")
        lines.append(f"{mma}.set({field}, {not piece.fresh})")
        place = f"[None, None, step, {step.cursor}.index]"
        issued.append(f"    cute.gemm({mma}, {sums}, fragment_a{place}, {b}{place}, {sums})")
        issued += [f"    {mma}.set({field}, True)"] if piece.fresh else []
    fresh = any(piece.fresh for piece in pieces(plan, step.term, step.first))
    return [*lines, f"for step in {steps_of_tile(plan, 0, plan.mma_steps, fresh=fresh)}:", *issued]
