"""Windows of images: depthwise convolution, resizing, pooling; and a function given by points."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, Arguments, Cells, normal

CELLS = Cells()


@helion.kernel
def depthwise7(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Depthwise convolution of `x[B, C, H, W]` by `w[C, 7, 7]` with zeros around the image."""
    b, c, h, wide = x.size()
    out = torch.empty_like(x)
    for tile_b, tile_c, rows, columns in hl.tile([b, c, h, wide], block_size=[1, 1, None, None]):
        image, channel = tile_b.begin, tile_c.begin
        acc = hl.zeros([rows, columns], dtype=torch.float32) + bias[channel].to(torch.float32)
        for dy in hl.static_range(7):
            for dx in hl.static_range(7):
                row, column = rows.index + dy - 3, columns.index + dx - 3
                inside = ((row >= 0) & (row < h))[:, None] & ((column >= 0) & (column < wide))[None, :]
                values = hl.load(x, [image, channel, row, column], extra_mask=inside)
                acc += values.to(torch.float32) * w[channel, dy, dx].to(torch.float32)
        out[image, channel, rows, columns] = acc.to(x.dtype)
    return out


def depthwise7_torch(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x, w[:, None], bias, padding=3, groups=x.size(1))


def make_depthwise7(device: str, small: bool) -> Arguments:
    b, c, h, wide = (2, 5, 9, 13) if small else (32, 192, 56, 56)
    return (
        normal(device, b, c, h, wide, dtype=BF16),
        normal(device, c, 7, 7, dtype=BF16),
        normal(device, c, dtype=BF16),
    )


CELLS.add(depthwise7, make_depthwise7, depthwise7_torch)


@helion.kernel
def resize_aligned(x: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Bilinear resizing of `x[N, H, W]`, corners on corners."""
    n, h, w = x.size()
    out = torch.empty([n, height, width], dtype=x.dtype, device=x.device)
    for tile_n, rows, columns in hl.tile([n, height, width]):
        at_y = rows.index.to(torch.float32) * ((h - 1) / (height - 1))
        at_x = columns.index.to(torch.float32) * ((w - 1) / (width - 1))
        top, left = torch.floor(at_y).to(torch.int32), torch.floor(at_x).to(torch.int32)
        bottom, right = torch.clamp(top + 1, max=h - 1), torch.clamp(left + 1, max=w - 1)
        below, beyond = (at_y - top)[None, :, None], (at_x - left)[None, None, :]
        upper = x[tile_n, top, left].to(torch.float32) * (1 - beyond) + x[tile_n, top, right].to(torch.float32) * beyond
        lower = x[tile_n, bottom, left].to(torch.float32) * (1 - beyond)
        lower += x[tile_n, bottom, right].to(torch.float32) * beyond
        out[tile_n, rows, columns] = (upper * (1 - below) + lower * below).to(x.dtype)
    return out


def resize_aligned_torch(x: torch.Tensor, height: int, width: int) -> torch.Tensor:
    return F.interpolate(x[None], size=(height, width), mode="bilinear", align_corners=True)[0]


def make_resize_aligned(device: str, small: bool) -> Arguments:
    n, h, w, height, width = (3, 7, 11, 13, 21) if small else (256, 200, 200, 384, 384)
    return normal(device, n, h, w, dtype=BF16), height, width


CELLS.add(resize_aligned, make_resize_aligned, resize_aligned_torch)


@helion.kernel
def adaptive_pool(x: torch.Tensor) -> torch.Tensor:
    """Means of the windows of `x[N, C, 7, P, 7, Q]`."""
    n, c, rows, _, columns, _ = x.size()
    out = torch.empty([n, c, rows, columns], dtype=x.dtype, device=x.device)
    for tile_n, tile_c in hl.tile([n, c], block_size=[1, None]):
        windows = x[tile_n.begin, tile_c, :, :, :, :].to(torch.float32)
        out[tile_n.begin, tile_c, :, :] = windows.mean(-1).mean(2).to(x.dtype)
    return out


def adaptive_pool_torch(x: torch.Tensor) -> torch.Tensor:
    n, c, rows, height, columns, width = x.size()
    return F.adaptive_avg_pool2d(x.reshape(n, c, rows * height, columns * width), (rows, columns))


CELLS.add(
    adaptive_pool,
    lambda device, small: (normal(device, *((2, 5, 7, 4, 7, 5) if small else (64, 512, 7, 4, 7, 5)), dtype=BF16),),
    adaptive_pool_torch,
)


@helion.kernel
def interpolate(x: torch.Tensor, points: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Linear interpolation of `x[M, N]` in a function given at increasing ``points``."""
    m, n = x.size()
    count = hl.specialize(points.size(0))
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile([m, n]):
        at = x[tile_m, tile_n]
        below = (points[:][None, None, :] <= at[:, :, None]).to(torch.int32).sum(-1) - 1
        left = torch.clamp(below, 0, count - 2)
        x0, x1 = points[left], points[left + 1]
        y0, y1 = values[left], values[left + 1]
        share = torch.clamp((at - x0) / (x1 - x0), 0.0, 1.0)
        out[tile_m, tile_n] = y0 + share * (y1 - y0)
    return out


def interpolate_torch(x: torch.Tensor, points: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    left = torch.clamp(torch.searchsorted(points, x, right=True) - 1, 0, points.numel() - 2)
    share = torch.clamp((x - points[left]) / (points[left + 1] - points[left]), 0.0, 1.0)
    return values[left] + share * (values[left + 1] - values[left])


def make_interpolate(device: str, small: bool) -> Arguments:
    points = torch.linspace(-2.5, 2.5, 64, device=device) ** 3
    return normal(device, *((7, 33) if small else (4096, 2048))), points, normal(device, 64)


CELLS.add(interpolate, make_interpolate, interpolate_torch)
