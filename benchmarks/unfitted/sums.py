"""Sums over axes of a tile, taken in the steps of a loop."""

from __future__ import annotations

import torch

import helion
import helion.language as hl

from .cell import BF16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def batch_norm_backward_sums(
    grad: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """fp32 gradients of bias and weight of a batch norm of `x[N, C, S]`."""
    n, c, s = x.size()
    bias = torch.empty([c], dtype=torch.float32, device=x.device)
    weight = torch.empty([c], dtype=torch.float32, device=x.device)
    for tile_c in hl.tile(c):
        total = hl.zeros([tile_c], dtype=torch.float32)
        scaled = hl.zeros([tile_c], dtype=torch.float32)
        for tile_n, tile_s in hl.tile([n, s]):
            g = grad[tile_n, tile_c, tile_s].to(torch.float32)
            centered = x[tile_n, tile_c, tile_s].to(torch.float32) - mean[tile_c][None, :, None]
            total += g.sum(dim=(0, 2))
            scaled += (g * centered * rstd[tile_c][None, :, None]).sum(dim=(0, 2))
        bias[tile_c] = total
        weight[tile_c] = scaled
    return bias, weight


def batch_norm_backward_sums_torch(
    grad: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    g = high(grad)
    return g.sum((0, 2)), (g * (high(x) - mean[None, :, None]) * rstd[None, :, None]).sum((0, 2))


def make_batch_norm_backward_sums(device: str, small: bool) -> Arguments:
    n, c, s = (3, 5, 63) if small else (64, 256, 56 * 56)
    pairs = (normal(device, n, c, s, dtype=BF16) for _ in range(2))
    return *pairs, normal(device, c), normal(device, c).abs()


CELLS.add(batch_norm_backward_sums, make_batch_norm_backward_sums, batch_norm_backward_sums_torch)


@helion.kernel
def mid_axis_std(x: torch.Tensor) -> torch.Tensor:
    """Standard deviations over the middle axis of `x[B, M, N]`."""
    b, m, n = x.size()
    out = torch.empty([b, n], dtype=x.dtype, device=x.device)
    for tile_b, tile_n in hl.tile([b, n]):
        total = hl.zeros([tile_b, tile_n], dtype=torch.float32)
        squares = hl.zeros([tile_b, tile_n], dtype=torch.float32)
        for tile_m in hl.tile(m):
            values = x[tile_b, tile_m, tile_n].to(torch.float32)
            total += values.sum(1)
            squares += (values * values).sum(1)
        mean = total / m
        out[tile_b, tile_n] = torch.sqrt(torch.clamp(squares / m - mean * mean, min=0.0)).to(x.dtype)
    return out


def mid_axis_std_torch(x: torch.Tensor) -> torch.Tensor:
    return high(x).std(1, unbiased=False).to(x.dtype)


CELLS.add(
    mid_axis_std,
    lambda device, small: (normal(device, *((3, 100, 70) if small else (64, 1024, 768)), dtype=BF16),),
    mid_axis_std_torch,
)


@helion.kernel
def channel_means(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Means and maxima of the channels of `x[N, C, S]`."""
    n, c, s = x.size()
    mean, top = (torch.empty([n, c], dtype=x.dtype, device=x.device) for _ in range(2))
    for tile_n, tile_c in hl.tile([n, c]):
        total = hl.zeros([tile_n, tile_c], dtype=torch.float32)
        most = hl.full([tile_n, tile_c], float("-inf"), dtype=torch.float32)
        for tile_s in hl.tile(s):
            values = x[tile_n, tile_c, tile_s].to(torch.float32)
            total += values.sum(-1)
            most = torch.maximum(most, values.amax(-1))
        mean[tile_n, tile_c] = (total / s).to(x.dtype)
        top[tile_n, tile_c] = most.to(x.dtype)
    return mean, top


def channel_means_torch(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values = high(x)
    return values.mean(-1).to(x.dtype), values.amax(-1).to(x.dtype)


CELLS.add(
    channel_means,
    lambda device, small: (normal(device, *((3, 5, 63) if small else (64, 512, 56 * 56)), dtype=BF16),),
    channel_means_torch,
)
