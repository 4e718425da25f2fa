"""Tiles and orders of kernels that add sums of columns to memory, count bytes of rows, or crop pictures."""

from __future__ import annotations

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl
from benchmarks.unfitted import CELLS

BF16 = torch.bfloat16


def scale_gradient(
    dy: torch.Tensor, x: torch.Tensor, scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of `tanh(x) * scale` for rows `[M, C]`, by elements and by channels, and of a bias."""
    m, c = x.size()
    dx = torch.empty_like(x)
    gain = torch.zeros([c], dtype=torch.float32, device=x.device)
    bias = torch.zeros([c], dtype=torch.float32, device=x.device)
    for rows, columns in hl.tile([m, c]):
        y, d = torch.tanh(x[rows, columns].to(torch.float32)), dy[rows, columns].to(torch.float32)
        dx[rows, columns] = (d * scale[columns].to(torch.float32) * (1 - y * y)).to(x.dtype)
        hl.atomic_add(gain, [columns], (d * y).sum(0))
        hl.atomic_add(bias, [columns], d.sum(0))
    return dx, gain, bias


def standardized(x: torch.Tensor) -> torch.Tensor:
    """Columns of `x[M, C]` divided by their root mean squares, in two phases."""
    m, c = x.size()
    out = torch.empty_like(x)
    squares = torch.zeros([c], dtype=torch.float32, device=x.device)
    for rows, columns in hl.tile([m, c]):
        v = x[rows, columns].to(torch.float32)
        hl.atomic_add(squares, [columns], (v * v).sum(0))
    hl.barrier()
    for rows, columns in hl.tile([m, c]):
        out[rows, columns] = (x[rows, columns] * torch.rsqrt(squares[columns] / m)[None, :]).to(x.dtype)
    return out


def letters(text: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Counts of each byte of each row, by two indices."""
    for rows, columns in hl.tile(text.size()):
        hl.atomic_add(out, [rows.index[:, None] * 256 + text[rows, columns].to(torch.int64)], 1)
    return out


def bound(fn: object, *args: object, target: str = "h200") -> helion.BoundKernel:
    return helion.kernel(fn, backend="triton").bind(args, target=target)


def test_half_of_the_warps_sum_columns() -> None:
    """Measurement ``sums_of_few_warps``."""
    x = tensor(32768, 1024, dtype=BF16)
    for kernel in (bound(scale_gradient, x, x, tensor(1024)), of_cell("dynamic_tanh_gradient")):
        seed = kernel.seeds[0]
        assert seed.config["block_sizes"] == [32, 64] and seed.config["num_warps"] == 2


def of_cell(name: str, target: str = "h200") -> helion.BoundKernel:
    cell = CELLS[name]
    return helion.kernel(cell.kernel.fn, backend="triton").bind(cell.arguments("meta", False), target=target)


def test_single_sums_keep_their_warps() -> None:
    """One number of a program takes one exchange."""
    assert of_cell("bce_with_gradient").default_config()["num_warps"] == 4


@pytest.mark.parametrize("target", ["a100", "h200", "b200"])
def test_grids_run_along_memory(target: str) -> None:
    """Measurement ``grids_in_memory_order``."""
    config = bound(standardized, tensor(200000, 256, dtype=BF16), target=target).default_config()
    assert config["loop_orders"] == [[1, 0], [1, 0]]
    rows, columns = config["block_sizes"][:2]
    assert rows > 2 * columns and columns * 2 >= 64


def test_bytes_are_counted_in_pieces_of_one_row() -> None:
    """Measurement ``histograms_of_bytes``."""
    text, out = tensor(192, 65536, dtype=torch.uint8), tensor(192 * 256, dtype=torch.int32)
    for kernel in (bound(letters, text, out), of_cell("byte_histograms")):
        config = kernel.default_config()
        assert config["block_sizes"] == [1, 256] and config["num_warps"] == 4
    words = bound(letters, tensor(192, 65536, dtype=torch.int32), out)
    assert words.default_config()["block_sizes"] != [1, 256]


def test_few_gathers_of_a_thread_keep_their_rows() -> None:
    """Measurement ``few_gathers``."""
    seed = of_cell("crops_and_flips").seeds[0]
    assert seed.config["block_sizes"] == [2, 256] and "half of the rows" not in seed.reason
    assert "half of the rows" in of_cell("resize_aligned").seeds[0].reason


def test_rows_of_several_programs_stay_in_the_cache() -> None:
    """Measurement ``evicted_rows_of_several``."""
    config = of_cell("autocorrelation").default_config()
    assert "first" not in config["load_eviction_policies"]
    assert (config["block_sizes"], config["num_warps"]) == ([1, 128], 1)


@pytest.mark.parametrize("shape", [(63, 33), (1000, 130)])
def test_sums_of_columns_are_right(shape: tuple[int, int]) -> None:
    x, dy, scale = torch.randn(shape), torch.randn(shape), torch.randn(shape[1])
    config = helion.Config(block_sizes=[32, 64], num_warps=2, l2_groupings=[4])
    dx, gain, bias = helion.kernel(scale_gradient, config=config)(dy, x, scale)
    y = x.tanh()
    torch.testing.assert_close(dx, dy * scale * (1 - y * y))
    torch.testing.assert_close((gain, bias), ((dy * y).sum(0), dy.sum(0)), rtol=1e-4, atol=1e-4)
    config = helion.Config(block_sizes=[256, 32, 32, 64], loop_orders=[[1, 0], [1, 0]])
    expected = x * x.square().mean(0).rsqrt()
    torch.testing.assert_close(helion.kernel(standardized, config=config)(x), expected, rtol=1e-4, atol=1e-4)


def test_counts_of_bytes_are_right() -> None:
    text = torch.randint(0, 256, [5, 1000], dtype=torch.uint8)
    config = helion.Config(block_sizes=[1, 256])
    counts = helion.kernel(letters, config=config)(text, torch.zeros(5 * 256, dtype=torch.int32))
    expected = torch.stack([row.long().bincount(minlength=256) for row in text]).flatten().to(torch.int32)
    torch.testing.assert_close(counts, expected)
