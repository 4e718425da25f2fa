"""Reactions and flows on grids, neighbours of points, and small systems of equations."""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl

from .cell import BF16, Arguments, Cells, high, normal

CELLS = Cells()


def nine_points(x: torch.Tensor, grid: Any, rows: tuple[Any, ...], columns: tuple[Any, ...]) -> torch.Tensor:
    """Return the Laplacian at the middle one of three rows and columns."""
    (up, row, down), (left, column, right) = rows, columns
    near = x[grid, up, column] + x[grid, down, column] + x[grid, row, left] + x[grid, row, right]
    far = x[grid, up, left] + x[grid, up, right] + x[grid, down, left] + x[grid, down, right]
    return 0.2 * near + 0.05 * far - x[grid, row, column]


@helion.kernel
def gray_scott(
    u: torch.Tensor, v: torch.Tensor, feed: torch.Tensor, kill: float, step: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a step of two reacting substances on periodic grids `[B, H, W]`, by nine points, with a feed `[B]` of each
    grid."""
    b, h, w = u.size()
    new_u, new_v = torch.empty_like(u), torch.empty_like(v)
    for tile_b, tile_h, tile_w in hl.tile([b, h, w]):
        up, down = (tile_h.index + h - 1) % h, (tile_h.index + 1) % h
        left, right = (tile_w.index + w - 1) % w, (tile_w.index + 1) % w
        a, c = u[tile_b, tile_h, tile_w], v[tile_b, tile_h, tile_w]
        rate = a * c * c
        f = feed[tile_b][:, None, None]
        new_u[tile_b, tile_h, tile_w] = a + step * (
            nine_points(u, tile_b, (up, tile_h, down), (left, tile_w, right)) - rate + f * (1.0 - a)
        )
        new_v[tile_b, tile_h, tile_w] = c + step * (
            0.5 * nine_points(v, tile_b, (up, tile_h, down), (left, tile_w, right)) + rate - (f + kill) * c
        )
    return new_u, new_v


def gray_scott_torch(
    u: torch.Tensor, v: torch.Tensor, feed: torch.Tensor, kill: float, step: float
) -> tuple[torch.Tensor, torch.Tensor]:
    def laplacian(x: torch.Tensor) -> torch.Tensor:
        up, down = x.roll(1, 1), x.roll(-1, 1)
        near = up + down + x.roll(1, 2) + x.roll(-1, 2)
        return 0.2 * near + 0.05 * (up.roll(1, 2) + up.roll(-1, 2) + down.roll(1, 2) + down.roll(-1, 2)) - x

    f = feed[:, None, None]
    rate = u * v * v
    new_u = u + step * (laplacian(u) - rate + f * (1.0 - u))
    return new_u, v + step * (0.5 * laplacian(v) + rate - (f + kill) * v)


def make_gray_scott(device: str, small: bool) -> Arguments:
    b, h, w = (2, 7, 19) if small else (16, 1024, 1024)
    u, v = (torch.rand([b, h, w], device=device) for _ in range(2))
    return u, v, torch.rand([b], device=device) * 0.05, 0.06, 1.0


CELLS.add(gray_scott, make_gray_scott, gray_scott_torch)


@helion.kernel
def carry_smoke(density: torch.Tensor, velocity: torch.Tensor, step: float, fade: float) -> torch.Tensor:
    """Return densities `[C, H, W]` carried by velocities `[2, H, W]`: each pixel looks back, with bilinear samples."""
    c, h, w = density.size()
    flat = density.view(c, h * w)
    out = torch.empty_like(density)
    for tile_h, tile_w in hl.tile([h, w]):
        y = tile_h.index.to(torch.float32)[:, None] - step * velocity[0, tile_h, tile_w]
        x = tile_w.index.to(torch.float32)[None, :] - step * velocity[1, tile_h, tile_w]
        y, x = torch.clamp(y, 0.0, h - 1.0), torch.clamp(x, 0.0, w - 1.0)
        y0 = torch.clamp(torch.floor(y), max=h - 2.0)
        x0 = torch.clamp(torch.floor(x), max=w - 2.0)
        fy, fx = y - y0, x - x0
        place = y0.to(torch.int32) * w + x0.to(torch.int32)
        for i in range(c):
            upper = flat[i, place] * (1.0 - fx) + flat[i, place + 1] * fx
            lower = flat[i, place + w] * (1.0 - fx) + flat[i, place + w + 1] * fx
            out[i, tile_h, tile_w] = fade * (upper * (1.0 - fy) + lower * fy)
    return out


def carry_smoke_torch(density: torch.Tensor, velocity: torch.Tensor, step: float, fade: float) -> torch.Tensor:
    c, h, w = density.size()
    flat = density.view(c, h * w)
    y = torch.arange(h, device=density.device)[:, None] - step * velocity[0]
    x = torch.arange(w, device=density.device)[None] - step * velocity[1]
    y, x = torch.clamp(y, 0.0, h - 1.0), torch.clamp(x, 0.0, w - 1.0)
    y0, x0 = torch.clamp(torch.floor(y), max=h - 2.0), torch.clamp(torch.floor(x), max=w - 2.0)
    fy, fx = y - y0, x - x0
    place = y0.long() * w + x0.long()
    upper = flat[:, place] * (1.0 - fx) + flat[:, place + 1] * fx
    lower = flat[:, place + w] * (1.0 - fx) + flat[:, place + w + 1] * fx
    return fade * (upper * (1.0 - fy) + lower * fy)


def make_carry_smoke(device: str, small: bool) -> Arguments:
    c, h, w = (2, 9, 17) if small else (4, 2048, 2048)
    return torch.rand([c, h, w], device=device), normal(device, 2, h, w, scale=3.0), 0.7, 0.99


CELLS.add(carry_smoke, make_carry_smoke, carry_smoke_torch)


@helion.kernel
def three_nearest(
    points: torch.Tensor, known: torch.Tensor, features: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features `[B, N, C]` of points `[B, N, 3]`: means of those `[B, M, C]` of the three nearest of
    `known[B, M, 3]`, weighted by their inverse squared distances; and the squared distances `[B, N, 3]`."""
    b, n, _ = points.size()
    m, c = known.size(1), features.size(2)
    out = torch.empty([b, n, c], dtype=features.dtype, device=points.device)
    squares = torch.empty([b, n, 3], dtype=torch.float32, device=points.device)
    for tile_b, tile_n in hl.tile([b, n], block_size=[1, None]):
        bi = tile_b.begin
        x, y, z = points[bi, tile_n, 0], points[bi, tile_n, 1], points[bi, tile_n, 2]
        d1 = hl.full([tile_n], 1e30, dtype=torch.float32)
        d2 = hl.full([tile_n], 1e30, dtype=torch.float32)
        d3 = hl.full([tile_n], 1e30, dtype=torch.float32)
        i1 = hl.zeros([tile_n], dtype=torch.int32)
        i2 = hl.zeros([tile_n], dtype=torch.int32)
        i3 = hl.zeros([tile_n], dtype=torch.int32)
        for j in range(m):
            dx, dy, dz = x - known[bi, j, 0], y - known[bi, j, 1], z - known[bi, j, 2]
            d = dx * dx + dy * dy + dz * dz
            first, second, third = d < d1, d < d2, d < d3
            d3 = torch.where(second, d2, torch.where(third, d, d3))
            i3 = torch.where(second, i2, torch.where(third, j, i3))
            d2 = torch.where(first, d1, torch.where(second, d, d2))
            i2 = torch.where(first, i1, torch.where(second, j, i2))
            d1 = torch.where(first, d, d1)
            i1 = torch.where(first, j, i1)
        squares[bi, tile_n, 0] = d1
        squares[bi, tile_n, 1] = d2
        squares[bi, tile_n, 2] = d3
        w1, w2, w3 = 1.0 / (d1 + 1e-8), 1.0 / (d2 + 1e-8), 1.0 / (d3 + 1e-8)
        total = w1 + w2 + w3
        for tile_c in hl.tile(c):
            acc = features[bi, i1, tile_c].to(torch.float32) * (w1 / total)[:, None]
            acc += features[bi, i2, tile_c].to(torch.float32) * (w2 / total)[:, None]
            acc += features[bi, i3, tile_c].to(torch.float32) * (w3 / total)[:, None]
            out[bi, tile_n, tile_c] = acc.to(features.dtype)
    return out, squares


def three_nearest_torch(
    points: torch.Tensor, known: torch.Tensor, features: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    d = ((points[:, :, None] - known[:, None]) ** 2).sum(-1)
    squares, places = d.topk(3, largest=False)
    weights = 1.0 / (squares + 1e-8)
    weights = weights / weights.sum(-1, keepdim=True)
    batch = torch.arange(points.size(0), device=points.device)[:, None, None]
    return (high(features)[batch, places] * weights[..., None]).sum(2).to(features.dtype), squares


def make_three_nearest(device: str, small: bool) -> Arguments:
    b, n, m, c = (2, 19, 11, 37) if small else (16, 8192, 512, 128)
    features = normal(device, b, m, c, dtype=BF16)
    return torch.rand([b, n, 3], device=device), torch.rand([b, m, 3], device=device), features


CELLS.add(three_nearest, make_three_nearest, three_nearest_torch)


@helion.kernel
def farthest_points(points: torch.Tensor, count: int) -> torch.Tensor:
    """Return places `[B, K]` of points `[B, 3, N]`, each the farthest from those that are chosen before it, from the
    first."""
    b, _, n = points.size()
    n = hl.specialize(n)
    out = torch.empty([b, count], dtype=torch.int32, device=points.device)
    for bi in hl.grid(b):
        x, y, z = points[bi, 0, :], points[bi, 1, :], points[bi, 2, :]
        nearest = hl.full([n], 1e10, dtype=torch.float32)
        last = hl.zeros([], dtype=torch.int32)
        for k in range(count):
            out[bi, k] = last
            dx, dy, dz = x - points[bi, 0, last], y - points[bi, 1, last], z - points[bi, 2, last]
            nearest = torch.minimum(nearest, dx * dx + dy * dy + dz * dz)
            last = torch.argmax(nearest, 0).to(torch.int32)
    return out


def farthest_points_torch(points: torch.Tensor, count: int) -> torch.Tensor:
    b, _, n = points.size()
    nearest = torch.full([b, n], 1e10, dtype=points.dtype, device=points.device)
    last = torch.zeros([b], dtype=torch.int64, device=points.device)
    chosen = []
    for _ in range(count):
        chosen.append(last)
        d = (points - points.gather(2, last[:, None, None].expand(b, 3, 1))) ** 2
        nearest = torch.minimum(nearest, d[:, 0] + d[:, 1] + d[:, 2])
        last = nearest.argmax(1)
    return torch.stack(chosen, 1).to(torch.int32)


def make_farthest_points(device: str, small: bool) -> Arguments:
    b, n, count = (2, 37, 7) if small else (256, 1024, 64)
    return torch.randint(0, 1024, [b, 3, n], device=device).to(torch.float32), count


CELLS.add(farthest_points, make_farthest_points, farthest_points_torch)


@helion.kernel
def pose_equations(
    jacobian: torch.Tensor, residual: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return `J^T W J`, `J^T W r` and the error of each of N problems, `J[N, M, 6]` and `r[N, M]`, with weights of
    Huber."""
    n, m, d = jacobian.size()
    d = hl.specialize(d)
    matrix = torch.empty([n, d, d], dtype=torch.float32, device=jacobian.device)
    vector = torch.empty([n, d], dtype=torch.float32, device=jacobian.device)
    error = torch.empty([n], dtype=torch.float32, device=jacobian.device)
    for tile_n in hl.tile(n):
        squares = hl.zeros([tile_n, d, d], dtype=torch.float32)
        right = hl.zeros([tile_n, d], dtype=torch.float32)
        total = hl.zeros([tile_n], dtype=torch.float32)
        for tile_m in hl.tile(m):
            j, r = jacobian[tile_n, tile_m, :], residual[tile_n, tile_m]
            size = torch.abs(r)
            weight = torch.where(size <= scale, 1.0, scale / torch.clamp(size, min=1e-12))
            weighted = j * weight[:, :, None]
            squares += (weighted[:, :, :, None] * j[:, :, None, :]).sum(1)
            right += (weighted * r[:, :, None]).sum(1)
            total += torch.where(size <= scale, 0.5 * r * r, scale * (size - 0.5 * scale)).sum(1)
        matrix[tile_n, :, :] = squares
        vector[tile_n, :] = right
        error[tile_n] = total
    return matrix, vector, error


def pose_equations_torch(
    jacobian: torch.Tensor, residual: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    size = residual.abs()
    weight = torch.where(size <= scale, 1.0, scale / torch.clamp(size, min=1e-12))
    weighted = jacobian * weight[..., None]
    error = torch.where(size <= scale, 0.5 * residual * residual, scale * (size - 0.5 * scale)).sum(1)
    return weighted.transpose(1, 2) @ jacobian, (weighted * residual[..., None]).sum(1), error


def make_pose_equations(device: str, small: bool) -> Arguments:
    n, m, d = (5, 37, 6) if small else (8192, 256, 6)
    return normal(device, n, m, d), normal(device, n, m), 0.8


CELLS.add(pose_equations, make_pose_equations, pose_equations_torch)


def spread(v: torch.Tensor) -> torch.Tensor:
    """Put two zero bits before each of the ten lowest bits."""
    v = (v | (v << 16)) & 0x030000FF
    v = (v | (v << 8)) & 0x0300F00F
    v = (v | (v << 4)) & 0x030C30C3
    return (v | (v << 2)) & 0x09249249


@helion.kernel
def morton_codes(points: torch.Tensor, low: torch.Tensor, high_end: torch.Tensor) -> torch.Tensor:
    """Return Morton codes `[N]` of 30 bits of points `[N, 3]` in a box from `low[3]` to `high_end[3]`."""
    n = points.size(0)
    codes = torch.empty([n], dtype=torch.int32, device=points.device)
    for tile in hl.tile(n):
        code = hl.zeros([tile], dtype=torch.int32)
        for axis in hl.static_range(3):
            unit = (points[tile, axis] - low[axis]) / (high_end[axis] - low[axis])
            cell = torch.clamp(unit * 1024.0, 0.0, 1023.0).to(torch.int32)
            code = code | (spread(cell) << axis)
        codes[tile] = code
    return codes


def morton_codes_torch(points: torch.Tensor, low: torch.Tensor, high_end: torch.Tensor) -> torch.Tensor:
    cells = torch.clamp((points - low) / (high_end - low) * 1024.0, 0.0, 1023.0).to(torch.int32)
    return spread(cells[:, 0]) | (spread(cells[:, 1]) << 1) | (spread(cells[:, 2]) << 2)


def make_morton_codes(device: str, small: bool) -> Arguments:
    points = torch.rand([100 if small else 8000000, 3], device=device)
    return points, torch.full([3], -0.1, device=device), torch.full([3], 1.2, device=device)


CELLS.add(morton_codes, make_morton_codes, morton_codes_torch)
