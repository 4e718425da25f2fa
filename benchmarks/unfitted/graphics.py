"""Graphics and orbits: colours, rays, hashed grids, rotations, and functions of points."""

from __future__ import annotations

import math

import torch

import helion
import helion.language as hl

from .cell import BF16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def eccentric_anomalies(mean: torch.Tensor, eccentricity: torch.Tensor, steps: int) -> torch.Tensor:
    """Solutions E of `E - e sin E = M` for all pairs of an eccentricity and a mean anomaly, by Newton's method."""
    h, w = eccentricity.size(0), mean.size(0)
    out = torch.empty([h, w], dtype=torch.float32, device=mean.device)
    for rows, columns in hl.tile([h, w]):
        e, m = eccentricity[rows][:, None], mean[columns][None, :]
        x = m + e * torch.sin(m)
        for _ in range(steps):
            x = x - (x - e * torch.sin(x) - m) / (1 - e * torch.cos(x))
        out[rows, columns] = x
    return out


def eccentric_anomalies_torch(mean: torch.Tensor, eccentricity: torch.Tensor, steps: int) -> torch.Tensor:
    e, m = eccentricity[:, None], mean[None]
    x = m + e * torch.sin(m)
    for _ in range(steps):
        x = x - (x - e * torch.sin(x) - m) / (1 - e * torch.cos(x))
    return x


def make_eccentric_anomalies(device: str, small: bool) -> Arguments:
    h, w = (33, 65) if small else (2048, 2048)
    return torch.rand([w], device=device) * 3, torch.rand([h], device=device) * 0.8, 5


CELLS.add(eccentric_anomalies, make_eccentric_anomalies, eccentric_anomalies_torch)


@helion.kernel
def to_yuv420(rgb: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Luma, and chroma at half the resolution, of pixels `[H, W, 3]` in uint8."""
    h, w, _ = rgb.size()
    luma = torch.empty([h, w], dtype=torch.uint8, device=rgb.device)
    chroma = torch.empty([h // 2, w // 2, 2], dtype=torch.uint8, device=rgb.device)
    quads = rgb.view(h // 2, 2, w // 2, 2, 3)
    bright = luma.view(h // 2, 2, w // 2, 2)
    for rows, columns in hl.tile([h // 2, w // 2]):
        u, v = hl.zeros([rows, columns]), hl.zeros([rows, columns])
        for dy in hl.static_range(2):
            for dx in hl.static_range(2):
                r = quads[rows, dy, columns, dx, 0].to(torch.float32)
                g = quads[rows, dy, columns, dx, 1].to(torch.float32)
                b = quads[rows, dy, columns, dx, 2].to(torch.float32)
                y = 0.25 * r + 0.5 * g + 0.0625 * b + 16.0
                bright[rows, dy, columns, dx] = torch.floor(y + 0.5).to(torch.uint8)
                u += -0.125 * r - 0.25 * g + 0.375 * b
                v += 0.375 * r - 0.25 * g - 0.125 * b
        chroma[rows, columns, 0] = torch.floor(u * 0.25 + 128.5).to(torch.uint8)
        chroma[rows, columns, 1] = torch.floor(v * 0.25 + 128.5).to(torch.uint8)
    return luma, chroma


def to_yuv420_torch(rgb: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    r, g, b = rgb.float().unbind(-1)
    y = torch.floor(0.25 * r + 0.5 * g + 0.0625 * b + 16.0 + 0.5).to(torch.uint8)
    u, v = -0.125 * r - 0.25 * g + 0.375 * b, 0.375 * r - 0.25 * g - 0.125 * b
    h, w = y.shape
    both = [x.view(h // 2, 2, w // 2, 2).sum((1, 3)) for x in (u, v)]
    return y, torch.stack([torch.floor(x * 0.25 + 128.5) for x in both], -1).to(torch.uint8)


CELLS.add(
    to_yuv420,
    lambda device, small: (
        torch.randint(0, 256, (*((34, 66) if small else (4320, 7680)), 3), device=device, dtype=torch.uint8),
    ),
    to_yuv420_torch,
)


@helion.kernel
def turn_quarter(x: torch.Tensor) -> torch.Tensor:
    """Images `[B, H, W, 4]` turned by a quarter: pixel (i, j) becomes (W - 1 - j, i)."""
    b, h, w, c = x.size()
    out = torch.empty([b, w, h, c], dtype=x.dtype, device=x.device)
    for tile_b, rows, columns in hl.tile([b, h, w]):
        out[tile_b, w - 1 - columns.index, rows, :] = x[tile_b, rows, columns, :].transpose(1, 2)
    return out


CELLS.add(
    turn_quarter,
    lambda device, small: (
        torch.randint(0, 256, ((2, 33, 17, 4) if small else (32, 1080, 1920, 4)), device=device, dtype=torch.uint8),
    ),
    lambda x: torch.rot90(x, 1, (1, 2)).contiguous(),
)


@helion.kernel
def volume_render(
    density: torch.Tensor, colour: torch.Tensor, width: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Colours of rays `[R, 3]` from S samples a ray, and how much light passes all of them."""
    rays = density.size(0)
    out = torch.empty([rays, 3], dtype=torch.float32, device=density.device)
    left = torch.empty([rays], dtype=torch.float32, device=density.device)
    for tile in hl.tile(rays):
        depth = density[tile, :].to(torch.float32) * width[tile, :]
        passed = hl.cumsum(depth, 1)
        weight = torch.exp(depth - passed) * (1.0 - torch.exp(-depth))
        for channel in hl.static_range(3):
            out[tile, channel] = (weight * colour[tile, :, channel].to(torch.float32)).sum(1)
        left[tile] = torch.exp(-depth.sum(1))
    return out, left


def volume_render_torch(
    density: torch.Tensor, colour: torch.Tensor, width: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    depth = high(density) * width
    weight = torch.exp(depth - depth.cumsum(1)) * (1 - torch.exp(-depth))
    return (weight[..., None] * high(colour)).sum(1), torch.exp(-depth.sum(1))


def make_volume_render(device: str, small: bool) -> Arguments:
    rays, samples = (13, 24) if small else (65536, 192)
    return (
        torch.rand([rays, samples], device=device).to(BF16),
        torch.rand([rays, samples, 3], device=device).to(BF16),
        torch.rand([rays, samples], device=device) * 0.1,
    )


CELLS.add(volume_render, make_volume_render, volume_render_torch)


@helion.kernel
def hashed_features(points: torch.Tensor, table: torch.Tensor, scale: float) -> torch.Tensor:
    """Trilinear sums of the features `table[T, 8]` of the eight hashed corners around `points[N, 3]`; T is a power of 2."""
    n, size, width = points.size(0), table.size(0), hl.specialize(table.size(1))
    out = torch.empty([n, width], dtype=table.dtype, device=table.device)
    for tile in hl.tile(n):
        x, y, z = points[tile, 0] * scale, points[tile, 1] * scale, points[tile, 2] * scale
        bx, by, bz = torch.floor(x), torch.floor(y), torch.floor(z)
        ix, iy, iz = bx.to(torch.int64), by.to(torch.int64), bz.to(torch.int64)
        fx, fy, fz = x - bx, y - by, z - bz
        acc = hl.zeros([tile, width])
        for corner in hl.static_range(8):
            dx, dy, dz = corner % 2, corner // 2 % 2, corner // 4
            place = ((ix + dx) ^ ((iy + dy) * 2654435761) ^ ((iz + dz) * 805459861)) & (size - 1)
            weight = (fx if dx else 1 - fx) * (fy if dy else 1 - fy) * (fz if dz else 1 - fz)
            acc += weight[:, None] * table[place, :].to(torch.float32)
        out[tile, :] = acc.to(table.dtype)
    return out


def hashed_features_torch(points: torch.Tensor, table: torch.Tensor, scale: float) -> torch.Tensor:
    scaled = points * scale
    base = torch.floor(scaled)
    whole, part = base.to(torch.int64), scaled - base
    out = torch.zeros([], device=points.device)
    for corner in range(8):
        d = torch.tensor([corner % 2, corner // 2 % 2, corner // 4], device=points.device)
        x, y, z = (whole + d).unbind(-1)
        place = (x ^ (y * 2654435761) ^ (z * 805459861)) & (table.size(0) - 1)
        weight = torch.where(d.bool(), part, 1 - part).prod(-1)
        out = out + weight[:, None] * high(table)[place]
    return out.to(table.dtype)


def make_hashed_features(device: str, small: bool) -> Arguments:
    n, size = (37, 64) if small else (1 << 19, 1 << 19)
    return torch.rand([n, 3], device=device), normal(device, size, 8, dtype=BF16), 16.0 if small else 512.0


CELLS.add(hashed_features, make_hashed_features, hashed_features_torch)


@helion.kernel
def fourier_features(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Sines and cosines of `2 pi x @ w`, with `x[N, 3]` and `w[3, D]`: `[N, 2 D]`."""
    n, d = x.size(0), w.size(1)
    out = torch.empty([n, 2, d], dtype=torch.float32, device=x.device)
    for rows, columns in hl.tile([n, d]):
        angle = hl.zeros([rows, columns])
        for axis in hl.static_range(3):
            angle += x[rows, axis][:, None] * w[axis, columns][None, :]
        angle = angle * (2 * math.pi)
        out[rows, 0, columns] = torch.sin(angle)
        out[rows, 1, columns] = torch.cos(angle)
    return out.view(n, 2 * d)


def fourier_features_torch(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    angle = (x[:, :, None] * w[None]).sum(1) * (2 * math.pi)
    return torch.cat([torch.sin(angle), torch.cos(angle)], 1)


CELLS.add(
    fourier_features,
    lambda device, small: (
        torch.rand([37 if small else 262144, 3], device=device),
        normal(device, 3, 20 if small else 64),
    ),
    fourier_features_torch,
)


@helion.kernel
def turn_points(points: torch.Tensor, quaternions: torch.Tensor) -> torch.Tensor:
    """Points `[N, 3]`, each turned by its unit quaternion `[N, 4]`."""
    out = torch.empty_like(points)
    for tile in hl.tile(points.size(0)):
        w, x, y, z = (quaternions[tile, i] for i in range(4))
        px, py, pz = points[tile, 0], points[tile, 1], points[tile, 2]
        tx, ty, tz = 2 * (y * pz - z * py), 2 * (z * px - x * pz), 2 * (x * py - y * px)
        out[tile, 0] = px + w * tx + (y * tz - z * ty)
        out[tile, 1] = py + w * ty + (z * tx - x * tz)
        out[tile, 2] = pz + w * tz + (x * ty - y * tx)
    return out


def turn_points_torch(points: torch.Tensor, quaternions: torch.Tensor) -> torch.Tensor:
    w, v = quaternions[:, :1], quaternions[:, 1:]
    t = 2 * torch.linalg.cross(v, points)
    return points + w * t + torch.linalg.cross(v, t)


def make_turn_points(device: str, small: bool) -> Arguments:
    n = 1001 if small else 8_000_000
    return normal(device, n, 3), torch.nn.functional.normalize(normal(device, n, 4), dim=1)


CELLS.add(turn_points, make_turn_points, turn_points_torch)


@helion.kernel
def determinants(x: torch.Tensor) -> torch.Tensor:
    """Determinants of matrices `[N, 3, 3]`."""
    out = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        a, b, c = x[tile, 0, 0], x[tile, 0, 1], x[tile, 0, 2]
        d, e, f = x[tile, 1, 0], x[tile, 1, 1], x[tile, 1, 2]
        g, h, i = x[tile, 2, 0], x[tile, 2, 1], x[tile, 2, 2]
        out[tile] = a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)
    return out


def determinants_torch(x: torch.Tensor) -> torch.Tensor:
    (a, b, c), (d, e, f), (g, h, i) = (row.unbind(1) for row in x.unbind(1))
    return a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)


CELLS.add(determinants, lambda device, small: (normal(device, 1001 if small else 6_000_000, 3, 3),), determinants_torch)


@helion.kernel
def box_overlaps(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Intersection over union of all pairs of boxes `[N, 4]` and `[M, 4]`, as left, top, right, bottom."""
    n, m = a.size(0), b.size(0)
    out = torch.empty([n, m], dtype=torch.float32, device=a.device)
    for rows, columns in hl.tile([n, m]):
        left = torch.maximum(a[rows, 0][:, None], b[columns, 0][None, :])
        top = torch.maximum(a[rows, 1][:, None], b[columns, 1][None, :])
        right = torch.minimum(a[rows, 2][:, None], b[columns, 2][None, :])
        bottom = torch.minimum(a[rows, 3][:, None], b[columns, 3][None, :])
        shared = torch.clamp(right - left, min=0.0) * torch.clamp(bottom - top, min=0.0)
        area_a = (a[rows, 2] - a[rows, 0]) * (a[rows, 3] - a[rows, 1])
        area_b = (b[columns, 2] - b[columns, 0]) * (b[columns, 3] - b[columns, 1])
        out[rows, columns] = shared / (area_a[:, None] + area_b[None, :] - shared)
    return out


def box_overlaps_torch(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    low = torch.maximum(a[:, None, :2], b[None, :, :2])
    far = torch.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = torch.clamp(far - low, min=0).prod(-1)
    areas = [(x[:, 2] - x[:, 0]) * (x[:, 3] - x[:, 1]) for x in (a, b)]
    return shared / (areas[0][:, None] + areas[1][None] - shared)


def make_box_overlaps(device: str, small: bool) -> Arguments:
    def boxes(count: int) -> torch.Tensor:
        corner = torch.rand([count, 2], device=device)
        return torch.cat([corner, corner + torch.rand([count, 2], device=device) * 0.5 + 0.01], 1)

    return (boxes(37), boxes(21)) if small else (boxes(8192), boxes(8192))


CELLS.add(box_overlaps, make_box_overlaps, box_overlaps_torch)
