"""Orders of numbers along odd axes: largest ones, medians, sorted projections, records, and depth buffers."""

from __future__ import annotations

import torch

import helion
import helion.language as hl

from .cell import BF16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def three_largest(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the three largest over time of each channel of `x[B, T, C]` in falling order, and their mean."""
    b, _, c = x.size()
    out = torch.empty([b, 3, c], dtype=x.dtype, device=x.device)
    mean = torch.empty([b, c], dtype=torch.float32, device=x.device)
    for tile_b, tile_c in hl.tile([b, c]):
        most, _ = torch.topk(x[tile_b, :, tile_c], 3, dim=1)
        out[tile_b, :, tile_c] = most
        mean[tile_b, tile_c] = most.to(torch.float32).mean(1)
    return out, mean


def three_largest_torch(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    most = x.topk(3, 1).values
    return most, high(most).mean(1)


CELLS.add(
    three_largest,
    lambda device, small: (normal(device, *((3, 64, 37) if small else (64, 64, 2048)), dtype=BF16),),
    three_largest_torch,
)


@helion.kernel
def background_difference(frames: torch.Tensor, threshold: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return medians over time of bytes `[T, P]`, and where each frame differs from them by more than a threshold."""
    t, p = frames.size()
    t = hl.specialize(t)
    background = torch.empty([p], dtype=torch.uint8, device=frames.device)
    moving = torch.empty([t, p], dtype=torch.bool, device=frames.device)
    for tile in hl.tile(p):
        v = frames[:, tile].to(torch.int32)
        middle = torch.median(v, 0).values
        background[tile] = middle.to(torch.uint8)
        moving[:, tile] = torch.abs(v - middle[None, :]) > threshold
    return background, moving


def background_difference_torch(frames: torch.Tensor, threshold: int) -> tuple[torch.Tensor, torch.Tensor]:
    middle = frames.median(0).values
    return middle, (frames.to(torch.int32) - middle.to(torch.int32)).abs() > threshold


CELLS.add(
    background_difference,
    lambda device, small: (
        torch.randint(0, 256, (9, 100) if small else (15, 1280 * 1024), device=device, dtype=torch.uint8),
        40,
    ),
    background_difference_torch,
)


@helion.kernel
def sliced_distances(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return mean squared differences `[L]` of the sorted rows of projections `x[L, N]` and `y[L, N]`."""
    slices = x.size(0)
    n = hl.specialize(x.size(1))
    out = torch.empty([slices], dtype=torch.float32, device=x.device)
    for tile in hl.tile(slices):
        a, b = torch.sort(x[tile, :], dim=1).values, torch.sort(y[tile, :], dim=1).values
        out[tile] = ((a - b) * (a - b)).sum(1) / n
    return out


CELLS.add(
    sliced_distances,
    lambda device, small: tuple(normal(device, *((5, 64) if small else (2048, 1024))) + i for i in range(2)),
    lambda x, y: ((x.sort(1).values - y.sort(1).values) ** 2).mean(1),
)


@helion.kernel
def pool_valid(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return maxima and means over the first `lengths[B]` tokens of `x[B, T, C]`, one after the other: `[B, 2, C]`."""
    b, _, c = x.size()
    out = torch.empty([b, 2, c], dtype=torch.float32, device=x.device)
    for tile_b, tile_c in hl.tile([b, c]):
        length = lengths[tile_b]
        most = hl.full([tile_b, tile_c], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_b, tile_c], dtype=torch.float32)
        for tile_t in hl.jagged_tile(length):
            v = x[tile_b, tile_t, tile_c].to(torch.float32)
            most = torch.maximum(most, torch.amax(v, 1))
            total += v.sum(1)
        out[tile_b, 0, tile_c] = most
        out[tile_b, 1, tile_c] = total / length.to(torch.float32)[:, None]
    return out


def pool_valid_torch(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    keep = (torch.arange(x.size(1), device=x.device)[None] < lengths[:, None])[..., None]
    v = high(x)
    most = v.masked_fill(~keep, -torch.inf).amax(1)
    return torch.stack([most, torch.where(keep, v, 0.0).sum(1) / lengths[:, None]], 1)


def make_pool_valid(device: str, small: bool) -> Arguments:
    b, t, c = (5, 37, 19) if small else (512, 256, 768)
    lengths = torch.randint(1, t + 1, [b], device=device, dtype=torch.int32)
    return normal(device, b, t, c, dtype=BF16), lengths


CELLS.add(pool_valid, make_pool_valid, pool_valid_torch)


@helion.kernel
def record_highs(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the highest so far of the rows of `x[M, N]`, steps since then, and the number of records of each row."""
    m, n = x.size()
    out = torch.empty_like(x)
    since = torch.empty([m, n], dtype=torch.int32, device=x.device)
    records = torch.empty([m], dtype=torch.int32, device=x.device)
    for tile in hl.tile(m):
        value, at = torch.cummax(x[tile, :], 1)
        place = hl.arange(n)[None, :]
        out[tile, :] = value
        since[tile, :] = (place - at).to(torch.int32)
        records[tile] = (place == at).to(torch.int32).sum(1)
    return out, since, records


def record_highs_torch(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    value, at = x.cummax(1)
    since = torch.arange(x.size(1), device=x.device) - at
    return value, since.to(torch.int32), (since == 0).sum(1).to(torch.int32)


CELLS.add(
    record_highs,
    lambda device, small: (normal(device, *((5, 100) if small else (8192, 2048))),),
    record_highs_torch,
)


@helion.kernel
def depth_buffer(pixels: torch.Tensor, depth: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the nearest point of each pixel and its depth, of points with positive depths; -1 and 0 without one."""
    nearest = torch.full([count], 2**63 - 1, dtype=torch.int64, device=depth.device)
    point = torch.empty([count], dtype=torch.int32, device=depth.device)
    depths = torch.empty([count], dtype=torch.float32, device=depth.device)
    for tile in hl.tile(pixels.size(0)):
        bits = depth[tile].view(torch.int32).to(torch.int64)
        hl.atomic_min(nearest, [pixels[tile]], (bits << 32) | tile.index.to(torch.int64))
    hl.barrier()
    for tile in hl.tile(count):
        key = nearest[tile]
        empty = key == 2**63 - 1
        point[tile] = torch.where(empty, -1, (key & 0xFFFFFFFF).to(torch.int32))
        depths[tile] = torch.where(empty, 0.0, (key >> 32).to(torch.int32).view(torch.float32))
    return point, depths


def depth_buffer_torch(pixels: torch.Tensor, depth: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    most = 2**63 - 1
    keys = depth.float().view(torch.int32).long() << 32 | torch.arange(depth.size(0), device=depth.device)
    nearest = torch.full([count], most, device=depth.device).scatter_reduce(0, pixels.long(), keys, "amin")
    depths = (nearest >> 32).to(torch.int32).view(torch.float32)
    empty = nearest == most
    return torch.where(empty, -1, nearest & 0xFFFFFFFF).to(torch.int32), torch.where(empty, 0.0, depths)


def make_depth_buffer(device: str, small: bool) -> Arguments:
    n, count = (100, 64) if small else (2000000, 1024 * 768)
    return torch.randint(0, count, [n], device=device, dtype=torch.int32), torch.rand([n], device=device) + 0.1, count


CELLS.add(depth_buffer, make_depth_buffer, depth_buffer_torch)
