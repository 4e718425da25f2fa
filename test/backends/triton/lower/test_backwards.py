"""Loops that read a row again: which go backwards, and right against fp64 whatever the row's length."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import helion
import helion.language as hl


@helion.kernel()
def centred(x: torch.Tensor) -> torch.Tensor:
    """Read twice: for the mean, and to store."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        out[tile, :] = (row - row.mean(-1, keepdim=True)).to(x.dtype)
    return out


@helion.kernel()
def three_times(x: torch.Tensor) -> torch.Tensor:
    """The second loop adds up, as the first one; the third and the fourth store."""
    m, n = x.size()
    out, squares = torch.empty_like(x), torch.empty_like(x)
    size = hl.register_block_size(n)
    for tile in hl.tile(m):
        total = hl.zeros([tile], dtype=torch.float32)
        for part in hl.tile(n, block_size=size):
            total += x[tile, part].sum(-1)
        spread = hl.zeros([tile], dtype=torch.float32)
        for part in hl.tile(n, block_size=size):
            spread += ((x[tile, part] - total[:, None]) ** 2).sum(-1)
        for part in hl.tile(n, block_size=size):
            out[tile, part] = x[tile, part] / spread[:, None]
        for part in hl.tile(n, block_size=size):
            squares[tile, part] = x[tile, part] * x[tile, part]
    return out + squares


@helion.kernel()
def smeared(x: torch.Tensor) -> torch.Tensor:
    """Each tile reads what the one before it stored."""
    m, n = x.size()
    out = torch.zeros([m, n + 8], dtype=x.dtype, device=x.device)
    size = hl.register_block_size(8)
    for tile in hl.tile(m):
        high = hl.full([tile], float("-inf"), dtype=torch.float32)
        for part in hl.tile(n, block_size=size):
            high = torch.maximum(high, x[tile, part].amax(-1))
        for part in hl.tile(n, block_size=size):
            out[tile, part.index + 8] = out[tile, part] + x[tile, part] - high[:, None]
    return out


@helion.kernel()
def printed(x: torch.Tensor) -> torch.Tensor:
    """What is printed comes in the order of the loop."""
    m, n = x.size()
    out = torch.empty_like(x)
    size = hl.register_block_size(n)
    for tile in hl.tile(m):
        high = hl.full([tile], float("-inf"), dtype=torch.float32)
        for part in hl.tile(n, block_size=size):
            high = torch.maximum(high, x[tile, part].amax(-1))
        for part in hl.tile(n, block_size=size):
            hl.device_print("at", part.begin)
            out[tile, part] = x[tile, part] - high[:, None]
    return out


def _loops(kernel: helion.Kernel, x: torch.Tensor, **config: Any) -> list[bool]:
    """For each loop of the code whether it goes backwards."""
    lines = kernel.bind((x,)).to_triton_code(config).splitlines()
    return [" - walked" in after for line, after in itertools.pairwise(lines) if "in tl.range(" in line]


def _check(kernel: helion.Kernel, x: torch.Tensor, expected: torch.Tensor, **config: Any) -> None:
    bound = kernel.bind((x,))
    torch.testing.assert_close(bound.compile_config(config)(x).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("n", "chunk"), [(1000, 256), (1024, 512), (4097, 512), (65, 64)])
def test_a_row_that_is_read_again_is_read_backwards(n: int, chunk: int) -> None:
    x = torch.randn(3, n) + 5
    assert _loops(centred, x, block_sizes=[1], reduction_loops=[chunk]) == [False, True]
    wide = x.double()
    _check(centred, x, wide - wide.mean(-1, keepdim=True), block_sizes=[1], reduction_loops=[chunk])


def test_loops_that_store_take_turns_and_sums_keep_their_order() -> None:
    x = torch.randn(2, 100)
    assert _loops(three_times, x, block_sizes=[16, 1]) == [False, False, True, False]
    wide = x.double()
    spread = (wide - wide.sum(-1, keepdim=True)).square().sum(-1, keepdim=True)
    _check(three_times, x, wide / spread + wide * wide, block_sizes=[16, 1])


def test_a_loop_of_one_iteration_stays() -> None:
    assert _loops(three_times, torch.randn(2, 100), block_sizes=[128, 1]) == [False] * 4


def test_iterations_that_read_what_others_stored_keep_their_order() -> None:
    x = torch.randn(2, 64)
    assert _loops(smeared, x, block_sizes=[8, 1]) == [False, False]
    wide = x.double()
    shifted = (wide - wide.amax(-1, keepdim=True)).reshape(2, 8, 8).cumsum(1).reshape(2, 64)
    _check(smeared, x, torch.nn.functional.pad(shifted, (8, 0)), block_sizes=[8, 1])


def test_what_is_printed_keeps_its_order() -> None:
    assert _loops(printed, torch.randn(2, 100), block_sizes=[16, 1]) == [False, False]


@pytest.mark.parametrize("n", [1, 256, 1000])
def test_rows_of_a_length_known_at_run_time_are_read_backwards_too(n: int) -> None:
    dynamic = helion.kernel(centred.fn, static_shapes=False)
    config = {"block_sizes": [1], "reduction_loops": [256]}
    assert _loops(dynamic, torch.randn(3, 1000), **config) == [False, True]
    bound = dynamic.bind((torch.randn(3, 1000),))
    x = torch.randn(3, n)
    expected = x.double() - x.double().mean(-1, keepdim=True)
    torch.testing.assert_close(bound.compile_config(config)(x).double(), expected, rtol=1e-5, atol=1e-5)
