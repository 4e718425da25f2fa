"""Bodies, fluids and paths of prices."""

from __future__ import annotations

import torch

import helion
import helion.language as hl

from .cell import Arguments, Cells, normal

CELLS = Cells()


@helion.kernel
def gravity(position: torch.Tensor, mass: torch.Tensor, softening: float) -> torch.Tensor:
    """Accelerations of n bodies `[3, N]`, all pairs."""
    n = mass.size(0)
    out = torch.empty_like(position)
    for ti in hl.tile(n):
        x, y, z = position[0, ti], position[1, ti], position[2, ti]
        ax = hl.zeros([ti], dtype=torch.float32)
        ay = hl.zeros([ti], dtype=torch.float32)
        az = hl.zeros([ti], dtype=torch.float32)
        for tj in hl.tile(n):
            dx = position[0, tj][None, :] - x[:, None]
            dy = position[1, tj][None, :] - y[:, None]
            dz = position[2, tj][None, :] - z[:, None]
            r = torch.rsqrt(dx * dx + dy * dy + dz * dz + softening)
            f = mass[tj][None, :] * r * r * r
            ax += (f * dx).sum(1)
            ay += (f * dy).sum(1)
            az += (f * dz).sum(1)
        out[0, ti] = ax
        out[1, ti] = ay
        out[2, ti] = az
    return out


def gravity_torch(position: torch.Tensor, mass: torch.Tensor, softening: float) -> torch.Tensor:
    d = position[:, None, :] - position[:, :, None]
    r = torch.rsqrt((d * d).sum(0) + softening)
    return (d * (mass * r**3)).sum(-1)


CELLS.add(
    gravity,
    lambda device, small: (
        normal(device, 3, 63 if small else 8192),
        torch.rand([63 if small else 8192], device=device),
        0.01,
    ),
    gravity_torch,
)


@helion.kernel
def stream_collide(f: torch.Tensor, solid: torch.Tensor, omega: float) -> torch.Tensor:
    """One step of a lattice Boltzmann method (D2Q9, BGK) on a periodic grid `f[9, H, W]` with solid cells."""
    _, h, w = f.size()
    out = torch.empty_like(f)
    for ti, tj in hl.tile([h, w]):
        up, down = (ti.index + 1) % h, (ti.index + (h - 1)) % h
        left, right = (tj.index + (w - 1)) % w, (tj.index + 1) % w
        g0 = f[0, ti, tj]
        g1, g3 = f[1, ti, left], f[3, ti, right]
        g2, g4 = f[2, down, tj], f[4, up, tj]
        g5, g6 = f[5, down, left], f[6, down, right]
        g7, g8 = f[7, up, right], f[8, up, left]
        rho = g0 + g1 + g2 + g3 + g4 + g5 + g6 + g7 + g8
        u = (g1 - g3 + g5 - g6 - g7 + g8) / rho
        v = (g2 - g4 + g5 + g6 - g7 - g8) / rho
        still = 1.0 - 1.5 * (u * u + v * v)
        wall = solid[ti, tj]
        for i, (pulled, back, cu, weight) in enumerate(
            (
                (g0, g0, 0.0 * u, 4 / 9),
                (g1, g3, u, 1 / 9),
                (g2, g4, v, 1 / 9),
                (g3, g1, -u, 1 / 9),
                (g4, g2, -v, 1 / 9),
                (g5, g7, u + v, 1 / 36),
                (g6, g8, v - u, 1 / 36),
                (g7, g5, -u - v, 1 / 36),
                (g8, g6, u - v, 1 / 36),
            )
        ):
            equilibrium = weight * rho * (still + 3.0 * cu + 4.5 * cu * cu)
            out[i, ti, tj] = torch.where(wall, back, pulled + omega * (equilibrium - pulled))
    return out


def stream_collide_torch(f: torch.Tensor, solid: torch.Tensor, omega: float) -> torch.Tensor:
    cx, cy = [0, 1, 0, -1, 0, 1, -1, -1, 1], [0, 0, 1, 0, -1, 1, 1, -1, -1]
    opposite = [0, 3, 4, 1, 2, 7, 8, 5, 6]
    weights = [4 / 9] + [1 / 9] * 4 + [1 / 36] * 4
    g = torch.stack([f[i].roll((cy[i], cx[i]), (0, 1)) for i in range(9)])
    rho = g.sum(0)
    u = (g[1] - g[3] + g[5] - g[6] - g[7] + g[8]) / rho
    v = (g[2] - g[4] + g[5] + g[6] - g[7] - g[8]) / rho
    still = 1 - 1.5 * (u * u + v * v)
    out = []
    for i in range(9):
        cu = cx[i] * u + cy[i] * v
        e = weights[i] * rho * (still + 3 * cu + 4.5 * cu * cu)
        out.append(torch.where(solid, g[opposite[i]], g[i] + omega * (e - g[i])))
    return torch.stack(out)


def make_stream_collide(device: str, small: bool) -> Arguments:
    h, w = (19, 33) if small else (2048, 2048)
    return torch.rand([9, h, w], device=device) + 0.5, torch.rand([h, w], device=device) < 0.1, 1.2


CELLS.add(stream_collide, make_stream_collide, stream_collide_torch)


@helion.kernel
def sph_density(position: torch.Tensor, neighbours: torch.Tensor, radius: float) -> torch.Tensor:
    """Density of each particle of `position[N, 3]` by a poly6 kernel over a list of neighbours `[N, K]`; -1 is none."""
    n, k = neighbours.size()
    out = torch.empty([n], dtype=torch.float32, device=position.device)
    for tile in hl.tile(n):
        other = neighbours[tile, :]
        there = other >= 0
        r2 = hl.zeros([tile, k], dtype=torch.float32)
        for axis in hl.static_range(3):
            d = hl.load(position, [other, axis], extra_mask=there) - position[tile, axis][:, None]
            r2 += d * d
        w = torch.relu(radius * radius - r2)
        out[tile] = torch.where(there, w * w * w, 0.0).sum(-1)
    return out


def sph_density_torch(position: torch.Tensor, neighbours: torch.Tensor, radius: float) -> torch.Tensor:
    d = position[neighbours.clamp(min=0)] - position[:, None]
    w = torch.relu(radius * radius - (d * d).sum(-1))
    return torch.where(neighbours >= 0, w**3, 0).sum(-1)


def make_sph_density(device: str, small: bool) -> Arguments:
    n, k = (63, 17) if small else (200_000, 48)
    near = (torch.arange(n, device=device)[:, None] + torch.randint(-300, 300, [n, k], device=device)) % n
    near = torch.where(torch.rand([n, k], device=device) < 0.2, -1, near)
    return torch.rand([n, 3], device=device), near, 0.7


CELLS.add(sph_density, make_sph_density, sph_density_torch)


@helion.kernel
def asian_option(
    spot: torch.Tensor, drift: float, volatility: float, strike: float, steps: int, seed: int
) -> torch.Tensor:
    """Payoffs of paths that begin at `spot[P]`: the mean price over steps of a geometric walk, above a strike."""
    paths = spot.size(0)
    out = torch.empty_like(spot)
    for tile in hl.tile(paths):
        s = torch.log(spot[tile])
        total = hl.zeros([tile], dtype=torch.float32)
        for i in range(steps):
            u = hl.rand([tile], seed + i)
            z = torch.erfinv(2.0 * torch.clamp(u, 1e-6, 1.0 - 1e-6) - 1.0) * 1.4142135
            s = s + drift + volatility * z
            total += torch.exp(s)
        out[tile] = torch.relu(total / steps - strike)
    return out


def asian_option_reference(
    spot: torch.Tensor, drift: float, volatility: float, strike: float, steps: int, seed: int
) -> torch.Tensor:
    from helion._support.philox import philox, uniform

    at = torch.arange(spot.numel(), device=spot.device)
    s, total = torch.log(spot), torch.zeros_like(spot)
    for i in range(steps):
        u = uniform(philox(torch.tensor(seed + i, device=spot.device), at)[0]).to(spot.dtype)
        s = s + drift + volatility * torch.erfinv(2 * u.clamp(1e-6, 1 - 1e-6) - 1) * 1.4142135
        total = total + torch.exp(s)
    return torch.relu(total / steps - strike)


def asian_option_torch(
    spot: torch.Tensor, drift: float, volatility: float, strike: float, steps: int, seed: int
) -> torch.Tensor:
    s, total = torch.log(spot), torch.zeros_like(spot)
    for _ in range(steps):
        s = s + drift + volatility * torch.erfinv(2 * torch.rand_like(spot).clamp(1e-6, 1 - 1e-6) - 1) * 1.4142135
        total = total + torch.exp(s)
    return torch.relu(total / steps - strike)


CELLS.add(
    asian_option,
    lambda device, small: (
        torch.rand([1000 if small else 1_000_000], device=device) + 0.5,
        0.001,
        0.05,
        1.0,
        5 if small else 32,
        11,
    ),
    asian_option_reference,
    asian_option_torch,
)
