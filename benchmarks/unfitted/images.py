"""Stencils, windows and lookups of images and volumes."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import Arguments, Cells, normal

CELLS = Cells()


@helion.kernel
def morphology(x: torch.Tensor) -> torch.Tensor:
    """Maximum minus minimum of the 3x3 neighbourhood of uint8 pixels, with clamped borders."""
    n, h, w = x.size()
    out = torch.empty_like(x)
    for tile_n, tile_h, tile_w in hl.tile([n, h, w]):
        most = x[tile_n, tile_h, tile_w]
        least = x[tile_n, tile_h, tile_w]
        for i in hl.static_range(3):
            for j in hl.static_range(3):
                rows = torch.clamp(tile_h.index + (i - 1), 0, h - 1)
                columns = torch.clamp(tile_w.index + (j - 1), 0, w - 1)
                v = x[tile_n, rows, columns]
                most, least = torch.maximum(most, v), torch.minimum(least, v)
        out[tile_n, tile_h, tile_w] = most - least
    return out


def morphology_torch(x: torch.Tensor) -> torch.Tensor:
    p = F.pad(x[:, None].float(), [1, 1, 1, 1], mode="replicate")
    return (F.max_pool2d(p, 3, 1) + F.max_pool2d(-p, 3, 1))[:, 0].to(torch.uint8)


CELLS.add(
    morphology,
    lambda device, small: (
        torch.randint(0, 256, [2, 17, 23] if small else [16, 1080, 1920], device=device, dtype=torch.uint8),
    ),
    morphology_torch,
)


@helion.kernel
def tone_curve(x: torch.Tensor, table: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    """A table of 256 numbers for each channel of uint8 images `[N, 3, P]`, times a gain of each image, as fp16."""
    n, c, p = x.size()
    out = torch.empty([n, c, p], dtype=torch.float16, device=x.device)
    flat = table.view(-1)
    for tile_n, tile_c, tile_p in hl.tile([n, c, p]):
        at = tile_c.index[None, :, None] * 256 + x[tile_n, tile_c, tile_p].to(torch.int32)
        out[tile_n, tile_c, tile_p] = (flat[at] * gain[tile_n][:, None, None]).to(torch.float16)
    return out


def tone_curve_torch(x: torch.Tensor, table: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    c = torch.arange(x.size(1), device=x.device)[None, :, None]
    return (table[c, x.long()] * gain[:, None, None]).to(torch.float16)


def make_tone_curve(device: str, small: bool) -> Arguments:
    n, p = (3, 77) if small else (32, 512 * 512)
    return (
        torch.randint(0, 256, [n, 3, p], device=device, dtype=torch.uint8),
        torch.rand([3, 256], device=device),
        torch.rand([n], device=device),
    )


CELLS.add(tone_curve, make_tone_curve, tone_curve_torch)


@helion.kernel
def affine_warp(x: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
    """Bilinear samples of `x[N, C, H, W]` at `theta[N, 2, 3] @ (column, row, 1)`, zero outside."""
    n, c, h, w = x.size()
    flat = x.view(-1)
    out = torch.empty_like(x)
    for tile_n, tile_h, tile_w in hl.tile([n, h, w], block_size=[1, None, None]):
        i = tile_n.begin
        row, column = tile_h.index.to(torch.float32)[:, None], tile_w.index.to(torch.float32)[None, :]
        u = theta[i, 0, 0] * column + theta[i, 0, 1] * row + theta[i, 0, 2]
        v = theta[i, 1, 0] * column + theta[i, 1, 1] * row + theta[i, 1, 2]
        u0, v0 = torch.floor(u), torch.floor(v)
        fu, fv = u - u0, v - v0
        left, top = u0.to(torch.int32), v0.to(torch.int32)
        for channel in hl.grid(c):
            total = hl.zeros([tile_h, tile_w], dtype=torch.float32)
            for dy in hl.static_range(2):
                for dx in hl.static_range(2):
                    a, b = left + dx, top + dy
                    inside = (a >= 0) & (a < w) & (b >= 0) & (b < h)
                    value = hl.load(flat, [((i * c + channel) * h + b) * w + a], extra_mask=inside)
                    weight = (fu if dx else 1.0 - fu) * (fv if dy else 1.0 - fv)
                    total += value * weight
            out[i, channel, tile_h, tile_w] = total
    return out


def affine_warp_torch(x: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
    _n, _c, h, w = x.size()
    row = torch.arange(h, device=x.device, dtype=x.dtype)[:, None].expand(h, w)
    column = torch.arange(w, device=x.device, dtype=x.dtype)[None, :].expand(h, w)
    at = torch.einsum("nij,jhw->nihw", theta, torch.stack([column, row, torch.ones_like(row)]))
    grid = torch.stack([at[:, 0] * 2 / (w - 1) - 1, at[:, 1] * 2 / (h - 1) - 1], -1)
    return F.grid_sample(x, grid, align_corners=True, padding_mode="zeros")


def make_affine_warp(device: str, small: bool) -> Arguments:
    n, c, h, w = (2, 3, 17, 23) if small else (32, 3, 512, 512)
    theta = torch.tensor([[0.93, 0.11, 1.3], [-0.09, 1.04, -2.2]]).repeat(n, 1, 1).to(device)
    return normal(device, n, c, h, w), theta


CELLS.add(affine_warp, make_affine_warp, affine_warp_torch)


@helion.kernel
def diffuse(u: torch.Tensor, kappa: torch.Tensor, step: float) -> torch.Tensor:
    """One explicit step of diffusion with a coefficient of each cell, in three dimensions with fixed borders."""
    a, b, c = u.size()
    out = u.clone()
    for ti, tj, tk in hl.tile([1, 1, 1], [a - 1, b - 1, c - 1]):
        here, k = u[ti, tj, tk], kappa[ti, tj, tk]
        flux = (0.5 * (k + kappa[ti.index + 1, tj, tk])) * (u[ti.index + 1, tj, tk] - here)
        flux += (0.5 * (k + kappa[ti.index - 1, tj, tk])) * (u[ti.index - 1, tj, tk] - here)
        flux += (0.5 * (k + kappa[ti, tj.index + 1, tk])) * (u[ti, tj.index + 1, tk] - here)
        flux += (0.5 * (k + kappa[ti, tj.index - 1, tk])) * (u[ti, tj.index - 1, tk] - here)
        flux += (0.5 * (k + kappa[ti, tj, tk.index + 1])) * (u[ti, tj, tk.index + 1] - here)
        flux += (0.5 * (k + kappa[ti, tj, tk.index - 1])) * (u[ti, tj, tk.index - 1] - here)
        out[ti, tj, tk] = here + step * flux
    return out


def diffuse_torch(u: torch.Tensor, kappa: torch.Tensor, step: float) -> torch.Tensor:
    flux = torch.zeros_like(u)[1:-1, 1:-1, 1:-1]
    here, k = u[1:-1, 1:-1, 1:-1], kappa[1:-1, 1:-1, 1:-1]
    for dim in range(3):
        for shift in (-1, 1):
            at = [slice(1, -1)] * 3
            at[dim] = slice(1 + shift, u.size(dim) - 1 + shift)
            flux = flux + 0.5 * (k + kappa[tuple(at)]) * (u[tuple(at)] - here)
    out = u.clone()
    out[1:-1, 1:-1, 1:-1] = here + step * flux
    return out


def make_diffuse(device: str, small: bool) -> Arguments:
    shape = (7, 9, 21) if small else (256, 256, 256)
    return normal(device, *shape), torch.rand(shape, device=device), 0.1


CELLS.add(diffuse, make_diffuse, diffuse_torch)


@helion.kernel
def shallow_water(
    h: torch.Tensor, u: torch.Tensor, v: torch.Tensor, dt: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One step of the linear shallow-water equations on a periodic grid."""
    m, n = h.size()
    h2, u2, v2 = torch.empty_like(h), torch.empty_like(u), torch.empty_like(v)
    for ti, tj in hl.tile([m, n]):
        up, down = (ti.index + (m - 1)) % m, (ti.index + 1) % m
        left, right = (tj.index + (n - 1)) % n, (tj.index + 1) % n
        u2[ti, tj] = u[ti, tj] - dt * 0.5 * (h[ti, right] - h[ti, left]) + 0.01 * dt * v[ti, tj]
        v2[ti, tj] = v[ti, tj] - dt * 0.5 * (h[down, tj] - h[up, tj]) - 0.01 * dt * u[ti, tj]
        h2[ti, tj] = h[ti, tj] - dt * 0.5 * ((u[ti, right] - u[ti, left]) + (v[down, tj] - v[up, tj]))
    return h2, u2, v2


def shallow_water_torch(
    h: torch.Tensor, u: torch.Tensor, v: torch.Tensor, dt: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    def dx(t: torch.Tensor) -> torch.Tensor:
        return t.roll(-1, 1) - t.roll(1, 1)

    def dy(t: torch.Tensor) -> torch.Tensor:
        return t.roll(-1, 0) - t.roll(1, 0)

    return (
        h - dt * 0.5 * (dx(u) + dy(v)),
        u - dt * 0.5 * dx(h) + 0.01 * dt * v,
        v - dt * 0.5 * dy(h) - 0.01 * dt * u,
    )


def make_shallow_water(device: str, small: bool) -> Arguments:
    shape = (19, 33) if small else (2048, 2500)
    return normal(device, *shape), normal(device, *shape), normal(device, *shape), 0.1


CELLS.add(shallow_water, make_shallow_water, shallow_water_torch)
