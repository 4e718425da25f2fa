"""Row kernels over grids of several dimensions with shared matrices and gathers, and with fixed tiles of rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from backends.cute.test_row_kernels import EPS, close, numbers, run
from harness import tensor

import helion
import helion.language as hl
from examples.grpo_loss import grpo_loss
from examples.scaled_masked_softmax import scaled_masked_softmax
from helion import exc
from helion.backends.cute.plan.rowwise.choice import RowChoice

CHOICES = (RowChoice(cluster=1, warps=2), RowChoice(cluster=2, warps=8, keep="shared"))


def masked_softmax(x, mask, out):
    """`x[H, M, N]` with `mask[M, N]`, which heads share."""
    for tile_h, tile_m in hl.tile([x.size(0), x.size(1)]):
        row = torch.where(mask[tile_m, :][None, :, :], x[tile_h, tile_m, :].to(torch.float32), -1e4)
        out[tile_h, tile_m, :] = torch.softmax(row, -1).to(out.dtype)


def biased_by_head(x, bias, out):
    """`x[H, M, N]` with `bias[H, N]`, which the rows of a head share."""
    for tile_h, tile_m in hl.tile([x.size(0), x.size(1)]):
        row = x[tile_h, tile_m, :].to(torch.float32) + bias[tile_h, :][:, None, :]
        out[tile_h, tile_m, :] = (row - row.mean(-1, keepdim=True)).to(out.dtype)


def chosen_log_probability(x, labels, out):
    for tile_b, tile_l in hl.tile([x.size(0), x.size(1)]):
        picked = x[tile_b.index[:, None], tile_l.index[None, :], labels[tile_b, tile_l]].to(torch.float32)
        out[tile_b, tile_l] = picked - torch.logsumexp(x[tile_b, tile_l, :].to(torch.float32), -1)


def fixed_norm(x, w, out):
    for tile in hl.tile(x.size(0), block_size=4):
        row = x[tile, :].to(torch.float32)
        out[tile, :] = (row * torch.rsqrt((row * row).mean(-1) + EPS)[:, None] * w[:].to(torch.float32)).to(out.dtype)


def _both(fn: Any, arguments: tuple[torch.Tensor, ...], want: torch.Tensor, choice: RowChoice) -> None:
    """Check a kernel on simulated threads, and on the CPU."""
    *_, out = arguments
    for call in (lambda: run(fn, arguments, choice), lambda: helion.kernel(fn, backend="cute")(*arguments)):
        out.fill_(7.0)
        call()
        assert close(out, want)


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_matrices_that_rows_of_a_grid_share(choice: RowChoice) -> None:
    x, mask, bias = numbers(3, 5, 1008), torch.rand(5, 1008) < 0.5, numbers(3, 1008, seed=1)
    wide = torch.where(mask, x.double(), -1e4)
    _both(masked_softmax, (x, mask, torch.empty_like(x)), torch.softmax(wide, -1), choice)
    wide = x.double() + bias.double()[:, None]
    _both(biased_by_head, (x, bias, torch.empty_like(x)), wide - wide.mean(-1, keepdim=True), choice)


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_one_element_of_each_row_of_a_grid(choice: RowChoice) -> None:
    x, labels = numbers(3, 5, 1003), torch.randint(0, 1003, (3, 5))
    wide = x.double()
    want = wide.gather(-1, labels[..., None])[..., 0] - wide.logsumexp(-1)
    _both(chosen_log_probability, (x, labels, torch.empty(3, 5)), want, choice)


def test_rows_of_a_part_of_a_matrix_are_gathered() -> None:
    whole, labels, out = numbers(3, 5, 1040), torch.randint(0, 1003, (3, 5)), torch.empty(3, 5)
    x = whole[:, :, :1003]
    helion.kernel(chosen_log_probability, backend="cute")(x, labels, out)
    assert close(out, x.double().gather(-1, labels[..., None])[..., 0] - x.double().logsumexp(-1))


def test_shared_rows_need_whole_granules() -> None:
    x, out = (tensor(3, 5, 1003, dtype=torch.bfloat16) for _ in range(2))
    mask = tensor(5, 1003, dtype=torch.bool)
    with pytest.raises(exc.CuteUnsupported, match="rows of an input that repeat.*multiples of 16 elements"):
        helion.kernel(masked_softmax, backend="cute").bind((x, mask, out), target="h100").to_cute_code()


def test_positions_of_rows_in_a_grid() -> None:
    def of_positions(x, out):
        for tile_b, tile_l in hl.tile([x.size(0), x.size(1)]):
            out[tile_b, tile_l] = x[tile_b, tile_l, :].sum(-1) * tile_l.index[None, :]

    x, out = torch.randn(3, 5, 1024), torch.empty(3, 5)
    helion.kernel(of_positions, backend="cute")(x, out)
    torch.testing.assert_close(out.double(), x.double().sum(-1) * torch.arange(5), rtol=1e-5, atol=1e-3)


def test_numbers_of_tiles_in_a_grid_are_refused() -> None:
    def of_tiles(x, out):
        for tile_b, tile_l in hl.tile([x.size(0), x.size(1)]):
            out[tile_b, tile_l] = x[tile_b, tile_l, :].sum(-1) * tile_l.id

    with pytest.raises(exc.CuteUnsupported, match="the id of a tile in a grid over several dimensions"):
        helion.kernel(of_tiles, backend="cute").bind((tensor(3, 5, 1024), tensor(3, 5)), target="h100").to_cute_code()


def biased_softmax(x: torch.Tensor, bias: torch.Tensor, scale: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile_h, tile_m in hl.tile([x.size(0), x.size(1)]):
        row = x[tile_h, tile_m, :].to(torch.float32) * scale + bias[tile_m, :].to(torch.float32)[None, :, :]
        out[tile_h, tile_m, :] = torch.softmax(row, -1).to(out.dtype)
    return out


def test_examples_are_taken_for_long_rows() -> None:
    scores, masked = tensor(4, 512, 131072, dtype=torch.bfloat16), tensor(512, 131072, dtype=torch.bool)
    arguments = scores, masked, 0.125
    assert helion.kernel(scaled_masked_softmax.fn, backend="cute").bind(arguments, target="h200").seeds
    assert helion.kernel(scaled_masked_softmax.fn, backend="auto").bind(arguments, target="h200").backend == "cute"
    bias = scores, scores[0], 0.125  # of the same width: a granule has 16 bytes of both
    auto = helion.kernel(biased_softmax, backend="auto").bind(bias, target="h200")
    assert "not cute: row kernels with a matrix whose rows repeat run on request" in auto.explain()
    logits, tokens = tensor(4, 512, 131072, dtype=torch.bfloat16), tensor(4, 512, dtype=torch.int64)
    given = logits, tokens, tensor(4, 512), tensor(4, 512), tensor(4)
    assert helion.kernel(grpo_loss.fn, backend="cute").bind(given, target="h200").seeds


@pytest.mark.parametrize("m", [8, 9])
def test_a_fixed_tile_of_rows_is_no_decision(m: int) -> None:
    x, w = numbers(m, 1003), numbers(1003, seed=1)
    out = torch.full_like(x, 7.0)
    helion.kernel(fixed_norm, backend="cute")(x, w, out)
    wide = x.double()
    assert close(out, wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * w.double())
    bound = helion.kernel(fixed_norm, backend="cute").bind((x, w, out), target="h100")
    assert f"{m} rows of 1003 columns" in str(bound.plan()) and "rows at a time" not in str(bound.plan())
    assert "cute" in bound.to_cute_code()
    x, out = (tensor(2048, 131072, dtype=torch.bfloat16) for _ in range(2))
    given = x, tensor(131072, dtype=torch.bfloat16), out
    assert helion.kernel(fixed_norm, backend="auto").bind(given, target="h200").backend == "cute"


def quantized_parts(x, low, scale):
    for tile_b, tile_l, part in hl.tile(x.size(), block_size=[1, None, 64]):
        row = x[tile_b, tile_l, part].to(torch.float32)
        step = torch.amax(torch.abs(row), -1) / 448.0
        scale[tile_b, tile_l, part.id] = step
        low[tile_b, tile_l, part] = (row / step[:, :, None]).to(low.dtype)


@pytest.mark.parametrize("choice", [CHOICES[0], RowChoice(cluster=2, warps=8)], ids=str)
def test_parts_of_rows_in_a_grid(choice: RowChoice) -> None:
    x, scale = numbers(2, 5, 1024), torch.empty(2, 5, 16)
    low = torch.empty(2, 5, 1024, dtype=torch.float8_e4m3fn)
    parts = x.float().view(2, 5, 16, 64)
    want = parts.abs().amax(-1) / 448
    for call in (
        lambda: run(quantized_parts, (x, low, scale), choice),
        lambda: helion.kernel(quantized_parts, backend="cute")(x, low, scale),
    ):
        scale.fill_(7.0)
        call()
        assert torch.equal(scale, want)
        quotients = (parts / want[..., None]).view(2, 5, 1024)
        assert ((low.float() - quotients).abs() <= quotients.abs() * 2**-4 * 1.001 + 2**-10).all()


def test_a_last_part_that_is_not_whole_is_refused() -> None:
    arguments = (numbers(2, 5, 1000), tensor(2, 5, 1000, dtype=torch.float8_e4m3fn), torch.empty(2, 5, 16))
    with pytest.raises(exc.CuteUnsupported, match="the index of a tile of columns picks one of 16 parts"):
        helion.kernel(quantized_parts, backend="cute").bind(arguments, target="h100").to_cute_code()
