"""Products of groups of rows, in the ways that kernels spell them, and plans of such products."""

from __future__ import annotations

import dataclasses

import torch

import helion
import helion.language as hl
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.epilogue import Epilogue, EpilogueOperand, Instruction
from helion.backends.cute.plan.records import Batch, Choice, GemmPlan, GemmProblem, Groups
from helion.hardware import target as target_of

K, N = 72, 136


@helion.kernel(backend="cute")
def by_bounds(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    rows, k = x.size()
    groups, _, n = w.size()
    out = torch.zeros([rows, n], dtype=x.dtype, device=x.device)
    for tile_g, tile_n in hl.tile([groups, n], block_size=[1, None]):
        g = tile_g.begin
        for tile_m in hl.tile(offsets[g], offsets[g + 1]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_m, tile_k], w[g, tile_k, tile_n], acc=acc)
            out[tile_m, tile_n] = acc.to(x.dtype)
    return out


@helion.kernel(backend="cute")
def by_lengths(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    rows, k = x.size()
    n = w.size(2)
    out = torch.zeros([rows, n], dtype=x.dtype, device=x.device)
    for g in hl.grid(offsets.size(0) - 1):
        start = offsets[g]
        length = offsets[g + 1] - start
        if length > 0:
            for tile_m, tile_n in hl.tile([length, n]):
                acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
                for tile_k in hl.tile(k):
                    acc = hl.dot(x[start + tile_m.index, tile_k], w[g, tile_k, tile_n], acc=acc)
                out[start + tile_m.index, tile_n] = acc.to(x.dtype)
    return out


@helion.kernel(backend="cute")
def by_columns_last(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Columns are the innermost loop."""
    rows, k = x.size()
    groups, _, n = w.size()
    out = torch.zeros([rows, n], dtype=x.dtype, device=x.device)
    for g in hl.grid(groups):
        start, end = offsets[g], offsets[g + 1]
        for tile_m in hl.tile(start, end):
            for tile_n in hl.tile(n):
                acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
                for tile_k in hl.tile(k):
                    acc = torch.addmm(acc, x[tile_m, tile_k], w[g, tile_k, tile_n])
                out[tile_m, tile_n] = acc.to(x.dtype)
    return out


@helion.kernel(backend="cute")
def jagged(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    rows, k = x.size()
    groups, _, n = w.size()
    out = torch.zeros([rows, n], dtype=x.dtype, device=x.device)
    for tile_g in hl.tile(groups, block_size=1):
        starts = offsets[tile_g]
        for tile_m in hl.jagged_tile(offsets[tile_g.index + 1] - starts):
            place = starts[:, None] + tile_m.index[None, :]
            for tile_n in hl.tile(n):
                acc = hl.zeros([tile_g, tile_m, tile_n], dtype=torch.float32)
                for tile_k in hl.tile(k):
                    acc = hl.dot(x[place, tile_k], w[tile_g, tile_k, tile_n], acc=acc)
                out[place, tile_n] = acc.to(x.dtype)
    return out


@helion.kernel(backend="cute")
def by_masks(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor, longest: int = 310) -> torch.Tensor:
    """The grid goes over the first ``longest`` rows of each group, and masks leave out those of others."""
    groups, k, n = w.size()
    out = torch.zeros([x.size(0), n], dtype=x.dtype, device=x.device)
    for tile_g, tile_m, tile_n in hl.tile([groups, longest, n], block_size=[1, None, None]):
        row = offsets[tile_g.begin] + tile_m.index
        inside = (offsets[tile_g.begin + 1] > row)[:, None]
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, hl.load(x, [row, tile_k], extra_mask=inside), w[tile_g.begin, tile_k, tile_n])
        hl.store(out, [row, tile_n], acc.to(x.dtype), extra_mask=inside)
    return out


@helion.kernel(backend="cute")
def by_blocks(x: torch.Tensor, w: torch.Tensor, group_of: torch.Tensor) -> torch.Tensor:
    """Each block of 64 rows has a group."""
    (rows, k), n = x.size(), w.size(2)
    out = torch.empty([rows, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([rows, n], block_size=[64, None]):
        group = group_of[tile_m.id]
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], w[group, tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


@helion.kernel(backend="cute")
def fused(
    x: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    bias: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor,
    offsets: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two products of each group, with a bias and a scale of the group, a weight of each row and a residual."""
    rows, k = x.size()
    groups, n, _ = gate.size()
    out = torch.zeros([rows, n], dtype=x.dtype, device=x.device)
    plain = torch.zeros([rows, n], dtype=torch.float32, device=x.device)
    for g, tile_n in hl.tile([groups, n], block_size=[1, None]):
        for tile_m in hl.tile(offsets[g.id], offsets[g.id + 1]):
            first = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            second = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                first = hl.dot(x[tile_m, tile_k], gate[g.id, tile_n, tile_k].T, acc=first)
                second = hl.dot(x[tile_m, tile_k], up[g.id, tile_n, tile_k].T, acc=second)
            value = torch.nn.functional.silu(first + bias[g.id, tile_n][None, :]) * second * scale[g.id]
            plain[tile_m, tile_n] = value
            out[tile_m, tile_n] = (value * weight[tile_m][:, None] + residual[tile_m, tile_n]).to(x.dtype)
    return out, plain


SPELLINGS = {each.name: each for each in (by_bounds, by_lengths, by_columns_last, jagged, by_masks)}


def problem(groups: int = 5, rows: int = 700, **changes: object) -> GemmProblem:
    batch = Batch(size=groups, a=0, b=K * N, d=0)
    known = GemmProblem(
        m=rows, n=N, k=K, operand_dtype="bfloat16", output_dtype="bfloat16", a_pitch=K, b_pitch=N, d_pitch=N,
        b_major="mn", batch=batch, groups=Groups(name="offsets", size=groups, dtype="int64"),
    )  # fmt: skip
    return dataclasses.replace(known, **changes)  # type: ignore[arg-type]


RESIDUAL = Epilogue(
    operands=(
        EpilogueOperand(name="residual", kind="exact", dtype="bfloat16", pitch=N),
        EpilogueOperand(name="bias", kind="row", dtype="float32", pitch=1),
        EpilogueOperand(name="weight", kind="column", dtype="float32", pitch=1),
    ),
    instructions=(Instruction("add", (0, 1)), Instruction("add", (4, 2)), Instruction("mul", (5, 3))),
)
WITH_RESIDUAL = problem(epilogue=RESIDUAL, batch=Batch(size=5, a=0, b=K * N, d=0, operands=(0, N, 0)))
CHOICES = {
    "sm_90": Choice(tile=(128, 128, 64), cluster=(2, 1), store_stages=2),
    "sm_90 ping-pong": Choice(tile=(64, 128, 64), cluster=(1, 2), pingpong=True, group=1),
    "sm_90 splits": Choice(tile=(64, 64, 64), splits=2),
    "sm_100": Choice(tile=(128, 128, 64), cluster=(2, 2), group=2),
    "sm_100 pairs": Choice(tile=(256, 128, 64), cluster=(2, 1), ctas_per_mma=2),
}


def plan_of(choice: str, of: GemmProblem | None = None) -> GemmPlan:
    return plan_gemm(of or problem(), CHOICES[choice], target_of(choice.split()[0]))
