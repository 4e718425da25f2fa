"""Row kernels that reduce groups of columns: values on simulated threads, the CPU, choices of layouts, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from backends.cute.test_row_kernels import close, numbers, prepared, run
from harness import tensor

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.codegen.rowwise.module import render
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.plan.rowwise.choice import RowChoice
from helion.backends.cute.roles.rowwise import program as r

GROUP = 128
CHOICES = (
    RowChoice(cluster=1, warps=1),
    RowChoice(cluster=1, warps=2, rows=4, ctas_per_sm=1),
    RowChoice(cluster=2, warps=8),
)


def quantized_groups(x, low, scale):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32).reshape(tile, x.size(1) // GROUP, GROUP)
        step = torch.clamp(torch.amax(torch.abs(row), -1), min=1e-10) / 448.0
        scale[tile, :] = step
        low[tile, :] = (row / step[:, :, None]).reshape(tile, x.size(1)).to(low.dtype)


def normed_groups(x, residual, w, low, scale):
    n = x.size(1)
    for tile in hl.tile(x.size(0)):
        total = x[tile, :].to(torch.float32) + residual[tile, :].to(torch.float32)
        residual[tile, :] = total.to(residual.dtype)
        normed = total * torch.rsqrt((total * total).mean(-1) + 1e-5)[:, None] * w[:].to(torch.float32)
        groups = normed.reshape(tile, n // GROUP, GROUP)
        step = torch.amax(torch.abs(groups), -1, keepdim=True) / 127.0
        scale[tile, :] = step.reshape(tile, n // GROUP)
        low[tile, :] = torch.round(groups / step).reshape(tile, n).to(torch.int8)


def norm_of_heads(x, out, total):
    n = x.size(1)
    for tile in hl.tile(x.size(0)):
        heads = x[tile, :].to(torch.float32).reshape(tile, n // GROUP, GROUP)
        centred = heads - heads.mean(-1, keepdim=True)
        scale = torch.rsqrt((centred * centred).mean(-1, keepdim=True) + 1e-5)
        normed = (centred * scale).reshape(tile, n)
        out[tile, :] = normed.to(out.dtype)
        total[tile] = torch.amax(normed, -1)


def quantized_loops(x, low, scale):
    for tile in hl.tile(x.size(0)):
        for part in hl.tile(x.size(1), block_size=GROUP):
            row = x[tile, part].to(torch.float32)
            step = torch.clamp(torch.amax(torch.abs(row), -1), min=1e-10) / 448.0
            scale[tile, part.id] = step
            low[tile, part] = (row / step[:, None]).to(low.dtype)


def normed_loops(x, w, low, scale):
    n = x.size(1)
    for tile in hl.tile(x.size(0)):
        squares = hl.zeros([tile], dtype=torch.float32)
        for part in hl.tile(n):
            row = x[tile, part].to(torch.float32)
            squares += (row * row).sum(-1)
        inverse = torch.rsqrt(squares / n + 1e-5)
        for part in hl.tile(n, block_size=GROUP):
            normed = x[tile, part].to(torch.float32) * inverse[:, None] * w[part].to(torch.float32)
            step = torch.amax(torch.abs(normed), -1) / 127.0
            scale[tile, part.id] = step
            low[tile, part] = torch.round(normed / step[:, None]).to(torch.int8)


def _groups(x: torch.Tensor) -> torch.Tensor:
    return x.view(x.size(0), -1, GROUP)


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize(("dtype", "n"), [(torch.bfloat16, 640), (torch.float32, 384), (torch.float16, 2944)])
def test_quantization_of_groups(choice: RowChoice, dtype: torch.dtype, n: int) -> None:
    m = 5
    x, low = numbers(m, n, dtype=dtype), torch.full((m, n), 7.0).to(torch.float8_e4m3fn)
    scale = torch.full((m, n // GROUP), 7.0)
    x[1, :GROUP] = 0.0
    try:
        run(quantized_groups, (x, low, scale), choice)
    except Refusal as refusal:
        assert choice.rows > 1 and "one chunk" in str(refusal)
        return
    step = (_groups(x.double()).abs().amax(-1)).clamp(min=1e-10) / 448
    assert close(scale, step)
    assert close(low, (_groups(x.double()) / step[:, :, None]).view(m, n))


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_loops_over_groups(choice: RowChoice) -> None:
    """A loop over tiles of a fixed size that carries nothing reduces each tile for itself."""
    m, n = 5, 1152
    x, w, low = numbers(m, n), numbers(n, seed=2), torch.full((m, n), 7.0).to(torch.float8_e4m3fn)
    scale = torch.full((m, n // GROUP), 7.0)
    run(quantized_loops, (x, low, scale), choice)
    step = _groups(x.double()).abs().amax(-1) / 448
    assert close(scale, step)
    assert close(low, (_groups(x.double()) / step[:, :, None]).view(m, n))
    whole = torch.full((m, n), 7, dtype=torch.int8)
    run(normed_loops, (x, w, whole, scale), choice)
    normed = _groups(x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-5) * w.double())
    step = normed.abs().amax(-1) / 127
    assert close(scale, step)
    assert (_groups(whole.double()) - normed / step[:, :, None]).abs().max() < 0.501


def maxima_of_tiles(x, y, out, each):
    m, k = x.size()
    for tile_m in hl.tile(m):
        for tile_n in hl.tile(y.size(1), block_size=GROUP):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
            each[tile_m, tile_n.id] = acc.amax(-1)
            out[tile_m, tile_n] = acc.to(out.dtype)


def test_groups_of_a_matmul_are_not_rows() -> None:
    arguments = tensor(256, 512), tensor(512, 640), tensor(256, 640), tensor(256, 5, dtype=torch.float32)
    with pytest.raises(exc.CuteUnsupported, match="picks one of 5 parts of each"):
        helion.kernel(maxima_of_tiles, backend="cute").bind(arguments, target="h100").to_cute_code()


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_groups_of_a_norm(choice: RowChoice) -> None:
    """The row's reduction comes before those of its groups, whose numbers are stored once each."""
    m, n = 5, 1152
    x, residual, w = numbers(m, n), numbers(m, n, seed=1), numbers(n, seed=2)
    low, scale = torch.full((m, n), 7, dtype=torch.int8), torch.full((m, n // GROUP), 7.0)
    total = x.float() + residual.float()
    run(normed_groups, (x, residual, w, low, scale), choice)
    assert torch.equal(residual, total.bfloat16())
    normed = total.double() * torch.rsqrt(total.double().square().mean(-1, keepdim=True) + 1e-5) * w.double()
    step = _groups(normed).abs().amax(-1) / 127
    assert close(scale, step)
    assert (_groups(low.double()) - _groups(normed) / step[:, :, None]).abs().max() < 0.501


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_dependent_reductions_of_heads(choice: RowChoice, dtype: torch.dtype) -> None:
    m, n = 3, 896
    x, out, total = numbers(m, n, dtype=dtype), torch.full((m, n), 7.0, dtype=dtype), torch.full((m,), 7.0)
    run(norm_of_heads, (x, out, total), choice)
    want = torch.nn.functional.layer_norm(_groups(x.double()), (GROUP,), eps=1e-5).view(m, n)
    assert ((out.double() - want).abs() <= (2**-8 if dtype == torch.bfloat16 else 2e-5) * (want.abs() + 0.2)).all()
    assert close(total[None], want.amax(-1)[None])


def test_groups_of_a_row_that_is_not_held() -> None:
    """A loop runs over the chunks of a row that one pass reads. The DSL has no empty tensor for the missing sums."""
    x, low, scale = numbers(2, 20096), torch.empty(2, 20096).to(torch.float8_e4m3fn), torch.full((2, 157), 7.0)
    run(quantized_groups, (x, low, scale), RowChoice(warps=2))
    _, plan = prepared(quantized_groups, (x, low, scale), RowChoice(warps=2))
    assert plan.layout.rolled
    assert "terms = cute.make_rmem_tensor(1, Float32)" in render(r.row_program(plan))
    assert close(scale, _groups(x.double()).abs().amax(-1) / 448)


def test_a_cta_has_whole_groups() -> None:
    """3 groups of 16 granules in two CTAs: the second one has a group less."""
    x = numbers(4, 384)
    arguments = (x, torch.empty(4, 384).to(torch.float8_e4m3fn), torch.empty(4, 3))
    _, plan = prepared(quantized_groups, arguments, RowChoice(cluster=2, warps=8))
    assert plan.layout.slice_granules == 32
    assert "butterfly(joined(" in render(r.row_program(plan))


def test_the_cpu_gives_groups() -> None:
    x, low, scale = numbers(37, 640), torch.empty(37, 640).to(torch.float8_e4m3fn), torch.empty(37, 5)
    helion.kernel(quantized_groups, backend="cute")(x, low, scale)
    step = _groups(x.double()).abs().amax(-1) / 448
    assert close(scale, step)
    assert close(low, (_groups(x.double()) / step[:, :, None]).view(37, 640))


def of_columns(x, out):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32).reshape(tile, x.size(1) // GROUP, GROUP)
        out[tile, :] = (row - torch.amax(row, 1)[:, None, :]).reshape(tile, x.size(1)).to(out.dtype)


def transposed(x, out):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32).reshape(tile, x.size(1) // GROUP, GROUP)
        row = row - torch.amax(row, 2)[:, :, None]
        out[tile, :] = row.permute(0, 2, 1).reshape(tile, x.size(1)).to(out.dtype)


def products(x, out):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32).reshape(tile, x.size(1) // GROUP, GROUP)
        out[tile, :] = (row - torch.prod(row, 2)[:, :, None]).reshape(tile, x.size(1)).to(out.dtype)


def of_wide_groups(x, out):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32).reshape(tile, x.size(1) // 512, 512)
        out[tile, :] = (row - torch.amax(row, 2)[:, :, None]).reshape(tile, x.size(1)).to(out.dtype)


def of_other_columns(x, out):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32).reshape(tile, x.size(1) // GROUP, GROUP)
        out[tile, :] = (row - torch.amax(row, 2)[:, None, :]).reshape(tile, x.size(1)).to(out.dtype)


def sums_along_groups(x, out):
    for tile in hl.tile(x.size(0)):
        out[tile, :] = x[tile, :].to(torch.float32).reshape(tile, x.size(1) // GROUP, GROUP).sum(1)


def of_groups_of_groups(x, out):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        sums = row.reshape(tile, x.size(1) // 16, 16).sum(2)
        out[tile, :] = sums.reshape(tile, x.size(1) // GROUP, GROUP // 16).sum(2)


def sums_of_two_views(x, few, many):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        few[tile, :] = row.reshape(tile, 8, 16).sum(2)
        many[tile, :] = row.reshape(tile, 16, 8).sum(2)


@pytest.mark.parametrize(
    ("fn", "n", "reason"),
    [
        (of_columns, 1024, "numbers of the columns of a group"),
        (of_columns, GROUP * GROUP, "numbers of the columns of a group"),
        (of_other_columns, GROUP * GROUP, "numbers of the columns of a group"),
        (transposed, 1024, "permutation of groups of columns"),
        (products, 1024, "sums, maxima and minima in fp32 of the columns of each group"),
        (of_wide_groups, 1024, "reductions of groups of 512 columns are stored, and read by nothing else"),
    ],
)
def test_refusals_of_groups(fn: Any, n: int, reason: str) -> None:
    with pytest.raises(exc.CuteUnsupported, match=reason):
        helion.kernel(fn, backend="cute").bind((tensor(16, n), tensor(16, n)), target="h100").to_cute_code()


@pytest.mark.parametrize(
    ("fn", "n", "reason"),
    [
        (of_groups_of_groups, 1024, "the kernel has rows of 1024 and of 8 columns"),
        (sums_along_groups, GROUP * GROUP, "sums, maxima and minima in fp32 of the columns of each group"),
    ],
)
def test_refusals_of_sums_of_groups(fn: Any, n: int, reason: str) -> None:
    with pytest.raises(exc.CuteUnsupported, match=reason):
        helion.kernel(fn, backend="cute").bind((tensor(16, n), tensor(16, n // GROUP)), target="h100")


def test_groups_of_as_many_columns_as_there_are_groups() -> None:
    """Both dimensions have one block, of 16 columns or 8, and differs by its place."""
    x = numbers(5, 128)
    few, many = torch.empty(5, 8), torch.empty(5, 16)
    helion.kernel(sums_of_two_views, backend="cute")(x, few, many)
    for sums in (few, many):
        assert (sums - x.float().view(5, sums.shape[1], -1).sum(2)).abs().max() < 1e-5
    square, low, scale = numbers(3, GROUP * GROUP), numbers(3, GROUP * GROUP), torch.empty(3, GROUP)
    helion.kernel(quantized_groups, backend="cute")(square, low, scale)
    assert close(scale, _groups(square.double()).abs().amax(-1) / 448)
