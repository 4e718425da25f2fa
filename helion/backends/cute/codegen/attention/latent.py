"""Views of the shared memory of latent attention: V in that of K, and parts of stages that are loaded from two tensors."""

from __future__ import annotations

from ...plan.attention.build import LATENT_STEP
from ...plan.attention.operands import Matrix
from ...plan.attention.records import AttentionPlan


def values_in_keys(plan: AttentionPlan) -> list[str]:
    """Return the view of V in the shared memory of K, with a dimension of the columns of each group.

    A row of K is a row of K of the second MMA, and its columns are N. Both views have the same swizzle, of 8 rows and
    ``LATENT_STEP`` columns, and the same addresses.
    """
    keys, width = plan.keys, plan.output_columns // LATENT_STEP
    shape = f"(({LATENT_STEP}, {width}), (8, {keys // 8}), {plan.column_groups}, {plan.stages})"
    pitch = LATENT_STEP * keys
    stride = f"((1, {pitch}), ({LATENT_STEP}, {8 * LATENT_STEP}), {pitch * width}, {keys * plan.problem.k.columns})"
    return [f"shared_v = cute.make_tensor(shared_k.iterator, cute.make_layout({shape}, stride={stride}))"]


def parts_of_stages(name: str, own_name: str, rows: int, whole: Matrix, rest: Matrix, stages: int) -> list[str]:
    """Return the views of the first columns of each stage of Q or K, and of the ``rest``: both have whole swizzles."""
    own = whole.columns - rest.columns
    lines = []
    for part, first, columns in ((own_name, 0, own), (f"{name}_rest", own, rest.columns)):
        shape = f"((8, {rows // 8}), ({LATENT_STEP}, {columns // LATENT_STEP}), {stages})"
        stride = f"(({LATENT_STEP}, {8 * LATENT_STEP}), (1, {LATENT_STEP * rows}), {rows * whole.columns})"
        begin = f"shared_{name}.iterator" + (f" + {first * rows}" if first else "")
        lines.append(f"shared_{part} = cute.make_tensor({begin}, cute.make_layout({shape}, stride={stride}))")
    return lines
