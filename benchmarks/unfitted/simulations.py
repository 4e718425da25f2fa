"""Fields, spins, bones, small matrices and trees of prices."""

from __future__ import annotations

import math

import torch

import helion
import helion.language as hl

from .cell import BF16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def wave_step(now: torch.Tensor, before: torch.Tensor, speed: torch.Tensor, damping: float) -> torch.Tensor:
    """The next pressures `[X, Y, Z]` of a damped wave in a medium whose squared speed differs by place; edges stay zero."""
    x, y, z = now.size()
    out = torch.zeros_like(now)
    for i, j, k in hl.tile([x - 2, y - 2, z - 2]):
        centre = now[i.index + 1, j.index + 1, k.index + 1]
        around = now[i, j.index + 1, k.index + 1] + now[i.index + 2, j.index + 1, k.index + 1]
        around += now[i.index + 1, j, k.index + 1] + now[i.index + 1, j.index + 2, k.index + 1]
        around += now[i.index + 1, j.index + 1, k] + now[i.index + 1, j.index + 1, k.index + 2]
        last = before[i.index + 1, j.index + 1, k.index + 1]
        gain = speed[i.index + 1, j.index + 1, k.index + 1]
        value = (2 - damping) * centre - (1 - damping) * last + gain * (around - 6 * centre)
        out[i.index + 1, j.index + 1, k.index + 1] = value
    return out


def wave_step_torch(now: torch.Tensor, before: torch.Tensor, speed: torch.Tensor, damping: float) -> torch.Tensor:
    inner = slice(1, -1)
    centre = now[inner, inner, inner]
    around = now[:-2, inner, inner] + now[2:, inner, inner] + now[inner, :-2, inner] + now[inner, 2:, inner]
    around = around + now[inner, inner, :-2] + now[inner, inner, 2:]
    last, gain = before[inner, inner, inner], speed[inner, inner, inner]
    value = (2 - damping) * centre - (1 - damping) * last + gain * (around - 6 * centre)
    return torch.nn.functional.pad(value, (1, 1, 1, 1, 1, 1))


def make_wave_step(device: str, small: bool) -> Arguments:
    shape = (5, 7, 17) if small else (320, 320, 320)
    return normal(device, *shape), normal(device, *shape), torch.rand(shape, device=device) * 0.3, 0.01


CELLS.add(wave_step, make_wave_step, wave_step_torch)


@helion.kernel
def maxwell_step(
    ex: torch.Tensor, ey: torch.Tensor, hz: torch.Tensor, permittivity: torch.Tensor, rate: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A step of the fields of a plane: `ex[X, Y + 1]` and `ey[X + 1, Y]` in place by `hz[X, Y]`, and the new `hz`."""
    x, y = hz.size()
    out = torch.empty_like(hz)
    for i, j in hl.tile([x, y - 1]):
        gain = rate / permittivity[i, j.index + 1]
        ex[i, j.index + 1] = ex[i, j.index + 1] + gain * (hz[i, j.index + 1] - hz[i, j])
    for i, j in hl.tile([x - 1, y]):
        gain = rate / permittivity[i.index + 1, j]
        ey[i.index + 1, j] = ey[i.index + 1, j] - gain * (hz[i.index + 1, j] - hz[i, j])
    hl.barrier()
    for i, j in hl.tile([x, y]):
        curl = ex[i, j.index + 1] - ex[i, j] - ey[i.index + 1, j] + ey[i, j]
        out[i, j] = hz[i, j] + rate * curl
    return ex, ey, out


def maxwell_step_torch(
    ex: torch.Tensor, ey: torch.Tensor, hz: torch.Tensor, permittivity: torch.Tensor, rate: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    pad = torch.nn.functional.pad
    ex = ex + pad(rate / permittivity[:, 1:] * (hz[:, 1:] - hz[:, :-1]), (1, 1))
    ey = ey - pad(rate / permittivity[1:] * (hz[1:] - hz[:-1]), (0, 0, 1, 1))
    return ex, ey, hz + rate * (ex[:, 1:] - ex[:, :-1] - ey[1:] + ey[:-1])


def make_maxwell_step(device: str, small: bool) -> Arguments:
    x, y = (17, 33) if small else (4096, 4096)
    fields = normal(device, x, y + 1), normal(device, x + 1, y), normal(device, x, y)
    return *fields, 1 + torch.rand([x, y], device=device), 0.5


CELLS.add(maxwell_step, make_maxwell_step, maxwell_step_torch)


@helion.kernel
def flip_spins(spins: torch.Tensor, color: int, coupling: float, seed: int) -> torch.Tensor:
    """Spins `[B, H, W]` of bytes after a Metropolis step of the squares of one color, on a torus."""
    b, h, w = spins.size()
    out = torch.empty_like(spins)
    for tile_b, rows, columns in hl.tile([b, h, w]):
        up = (rows.index + h - 1) % h
        down = (rows.index + 1) % h
        left = (columns.index + w - 1) % w
        right = (columns.index + 1) % w
        spin = spins[tile_b, rows, columns].to(torch.int32)
        around = spins[tile_b, up, columns].to(torch.int32) + spins[tile_b, down, columns].to(torch.int32)
        around += spins[tile_b, rows, left].to(torch.int32) + spins[tile_b, rows, right].to(torch.int32)
        energy = (2 * spin * around).to(torch.float32)
        drawn = hl.rand([tile_b, rows, columns], seed)
        mine = (rows.index[:, None] + columns.index[None, :]) % 2 == color
        flips = mine[None, :, :] & (drawn < torch.exp(-coupling * energy))
        out[tile_b, rows, columns] = torch.where(flips, -spin, spin).to(torch.int8)
    return out


def flip_spins_torch(spins: torch.Tensor, color: int, coupling: float, seed: int) -> torch.Tensor:
    _, h, w = spins.shape
    around = sum(spins.roll(by, dim).int() for dim in (1, 2) for by in (-1, 1))
    energy = (2 * spins * around).float()
    rows, columns = torch.arange(h, device=spins.device), torch.arange(w, device=spins.device)
    mine = (rows[:, None] + columns) % 2 == color
    flips = mine & (torch.rand_like(energy) < torch.exp(-coupling * energy))
    return torch.where(flips, -spins, spins)


def make_flip_spins(device: str, small: bool) -> Arguments:
    shape = (2, 12, 34) if small else (16, 2048, 2048)
    spins = (torch.randint(0, 2, shape, device=device) * 2 - 1).to(torch.int8)
    return spins, 1, 50.0, 7  # so cold that no draw decides


CELLS.add(flip_spins, make_flip_spins, flip_spins_torch, draws=True)


@helion.kernel
def blocks_times(starts: torch.Tensor, columns: torch.Tensor, blocks: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Products of a matrix of sparse blocks `[Z, S, S]`, whose rows begin at `starts`, and `x[K, N]`."""
    rows = starts.size(0) - 1
    side = hl.specialize(blocks.size(1))
    n = x.size(1)
    out = torch.empty([rows * side, n], dtype=x.dtype, device=x.device)
    for row, tile_n in hl.tile([rows, n], block_size=[1, None]):
        acc = hl.zeros([side, tile_n])
        begin, end = starts[row.begin], starts[row.begin + 1]
        for z in range(begin, end):
            at = columns[z]
            left = blocks[z, :, :]
            right = x[at * side + hl.arange(side), tile_n]
            acc = torch.addmm(acc, left, right)
        out[row.begin * side + hl.arange(side), tile_n] = acc.to(x.dtype)
    return out


def blocks_times_torch(
    starts: torch.Tensor, columns: torch.Tensor, blocks: torch.Tensor, x: torch.Tensor
) -> torch.Tensor:
    side, rows = blocks.size(1), starts.size(0) - 1
    parts = torch.bmm(high(blocks), high(x).view(-1, side, x.size(1))[columns.long()])
    owner = torch.repeat_interleave(torch.arange(rows, device=x.device), starts.diff().long(), output_size=len(columns))
    out = torch.zeros([rows, side, x.size(1)], dtype=parts.dtype, device=x.device)
    return out.index_add(0, owner, parts).flatten(0, 1).to(x.dtype)


def make_blocks_times(device: str, small: bool) -> Arguments:
    rows, across, each, side, n = (5, 4, 2, 16, 33) if small else (256, 256, 32, 32, 1024)
    counts = torch.randint(each // 2, each * 3 // 2 + 1, [rows])
    starts = torch.zeros([rows + 1], dtype=torch.int32)
    starts[1:] = counts.cumsum(0)
    total = int(counts.sum())
    columns = torch.randint(0, across, [total], device=device, dtype=torch.int32)
    blocks = normal(device, total, side, side, dtype=BF16, scale=0.05)
    return starts.to(device), columns, blocks, normal(device, across * side, n, dtype=BF16)


CELLS.add(blocks_times, make_blocks_times, blocks_times_torch)


@helion.kernel
def jacobi_values(matrices: torch.Tensor) -> torch.Tensor:
    """Eigenvalues `[N, 3]` of symmetric matrices `[N, 3, 3]`, by four sweeps of Jacobi's rotations."""
    n = matrices.size(0)
    out = torch.empty([n, 3], dtype=matrices.dtype, device=matrices.device)
    for tile in hl.tile(n):
        a, b, c = matrices[tile, 0, 0], matrices[tile, 1, 1], matrices[tile, 2, 2]
        d, e, f = matrices[tile, 0, 1], matrices[tile, 0, 2], matrices[tile, 1, 2]
        for _ in hl.static_range(4):
            a, b, d, e, f = turned(a, b, d, e, f)
            a, c, e, d, f = turned(a, c, e, d, f)
            b, c, f, d, e = turned(b, c, f, d, e)
        out[tile, 0] = a
        out[tile, 1] = b
        out[tile, 2] = c
    return out


def turned(
    p: torch.Tensor, q: torch.Tensor, pq: torch.Tensor, pr: torch.Tensor, qr: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the entries after the rotation that makes `pq` zero; the third row has `pr` and `qr`."""
    theta = (q - p) * 0.5
    size = torch.abs(theta) + torch.sqrt(theta * theta + pq * pq)
    tangent = torch.where(size > 0, pq / torch.where(size > 0, size, 1.0), 0.0)
    tangent = torch.where(theta < 0, -tangent, tangent)
    cosine = torch.rsqrt(tangent * tangent + 1)
    sine = tangent * cosine
    return p - tangent * pq, q + tangent * pq, pq * 0, cosine * pr - sine * qr, sine * pr + cosine * qr


def jacobi_values_torch(matrices: torch.Tensor) -> torch.Tensor:
    a, b, c = matrices[:, 0, 0], matrices[:, 1, 1], matrices[:, 2, 2]
    d, e, f = matrices[:, 0, 1], matrices[:, 0, 2], matrices[:, 1, 2]
    for _ in range(4):
        a, b, d, e, f = turned(a, b, d, e, f)
        a, c, e, d, f = turned(a, c, e, d, f)
        b, c, f, d, e = turned(b, c, f, d, e)
    return torch.stack([a, b, c], 1)


def make_jacobi_values(device: str, small: bool) -> Arguments:
    x = normal(device, 63 if small else 1_000_000, 3, 3)
    return ((x + x.transpose(1, 2)) * 0.5,)


CELLS.add(jacobi_values, make_jacobi_values, jacobi_values_torch)


@helion.kernel
def skin_vertices(
    points: torch.Tensor, bones: torch.Tensor, weights: torch.Tensor, turns: torch.Tensor, moves: torch.Tensor
) -> torch.Tensor:
    """Points `[V, 3]` of a skin in P poses, moved by four bones each: quaternions `[P, J, 4]` and shifts `[P, J, 3]`."""
    v = points.size(0)
    p = turns.size(0)
    out = torch.empty([p, v, 3], dtype=points.dtype, device=points.device)
    for pose, tile in hl.tile([p, v], block_size=[1, None]):
        x, y, z = points[tile, 0], points[tile, 1], points[tile, 2]
        ax, ay, az = hl.zeros([tile]), hl.zeros([tile]), hl.zeros([tile])
        for i in hl.static_range(4):
            bone = bones[tile, i]
            weight = weights[tile, i]
            qw, qx = turns[pose.begin, bone, 0], turns[pose.begin, bone, 1]
            qy, qz = turns[pose.begin, bone, 2], turns[pose.begin, bone, 3]
            tx, ty, tz = 2 * (qy * z - qz * y), 2 * (qz * x - qx * z), 2 * (qx * y - qy * x)
            ax += weight * (x + qw * tx + qy * tz - qz * ty + moves[pose.begin, bone, 0])
            ay += weight * (y + qw * ty + qz * tx - qx * tz + moves[pose.begin, bone, 1])
            az += weight * (z + qw * tz + qx * ty - qy * tx + moves[pose.begin, bone, 2])
        out[pose.begin, tile, 0] = ax
        out[pose.begin, tile, 1] = ay
        out[pose.begin, tile, 2] = az
    return out


def skin_vertices_torch(
    points: torch.Tensor, bones: torch.Tensor, weights: torch.Tensor, turns: torch.Tensor, moves: torch.Tensor
) -> torch.Tensor:
    q = turns[:, bones.long()]
    point = points[:, None, :].expand((*q.shape[:-1], 3))
    around = 2 * torch.cross(q[..., 1:], point, dim=-1)
    moved = point + q[..., :1] * around + torch.cross(q[..., 1:], around, dim=-1) + moves[:, bones.long()]
    return (moved * weights[..., None]).sum(2)


def make_skin_vertices(device: str, small: bool) -> Arguments:
    v, p, j = (63, 2, 5) if small else (65537, 64, 55)
    turns = torch.nn.functional.normalize(normal(device, p, j, 4), dim=-1)
    weights = torch.softmax(normal(device, v, 4), -1)
    bones = torch.randint(0, j, [v, 4], device=device, dtype=torch.int32)
    return normal(device, v, 3), bones, weights, turns, normal(device, p, j, 3)


CELLS.add(skin_vertices, make_skin_vertices, skin_vertices_torch)


@helion.kernel
def american_puts(
    spot: torch.Tensor, strike: torch.Tensor, volatility: torch.Tensor, years: torch.Tensor, rate: float
) -> torch.Tensor:
    """Prices of American puts `[N]` by trees of 16 steps."""
    out = torch.empty_like(spot)
    for tile in hl.tile(spot.size(0)):
        s, k = spot[tile], strike[tile]
        dt = years[tile] / 16
        spread = volatility[tile] * torch.sqrt(dt)
        up, down = torch.exp(spread), torch.exp(-spread)
        discount = torch.exp(-rate * dt)
        chance = (1 / discount - down) / (up - down)
        prices = [s * torch.exp(spread * (2 * i - 16)) for i in range(17)]
        values = [torch.clamp(k - price, min=0) for price in prices]
        for step in hl.static_range(16):
            left = 16 - step
            prices = [prices[i] * up for i in range(left)]
            held = [discount * (chance * values[i + 1] + (1 - chance) * values[i]) for i in range(left)]
            values = [torch.maximum(held[i], k - prices[i]) for i in range(left)]
        out[tile] = values[0]
    return out


def american_puts_torch(
    spot: torch.Tensor, strike: torch.Tensor, volatility: torch.Tensor, years: torch.Tensor, rate: float
) -> torch.Tensor:
    dt = years / 16
    spread = volatility * dt.sqrt()
    up, down, discount = spread.exp(), (-spread).exp(), (-rate * dt).exp()
    chance = (1 / discount - down) / (up - down)
    places = torch.arange(-16, 17, 2, device=spot.device)[:, None]
    prices = spot * torch.exp(spread * places)
    values = (strike - prices).clamp(min=0)
    for _ in range(16):
        prices = prices[:-1] * up
        held = discount * (chance * values[1:] + (1 - chance) * values[:-1])
        values = torch.maximum(held, strike - prices)
    return values[0]


def make_american_puts(device: str, small: bool) -> Arguments:
    n = 63 if small else 1_000_000
    spot = 80 + 40 * torch.rand([n], device=device)
    volatility, years = 0.1 + 0.3 * torch.rand([n], device=device), 0.25 + torch.rand([n], device=device)
    return spot, torch.full([n], 100.0, device=device), volatility, years, math.log(1.03)


CELLS.add(american_puts, make_american_puts, american_puts_torch)


def lorenz(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, rho: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the derivatives of Lorenz' system."""
    return 10.0 * (y - x), x * (rho - z) - y, x * y - (8.0 / 3.0) * z


@helion.kernel
def lorenz_paths(start: torch.Tensor, rho: torch.Tensor, dt: float, steps: int) -> torch.Tensor:
    """The states `[3, N]` of systems of Lorenz after steps of Runge and Kutta."""
    n = start.size(1)
    out = torch.empty_like(start)
    for tile in hl.tile(n):
        x, y, z, r = start[0, tile], start[1, tile], start[2, tile], rho[tile]
        for _ in range(steps):
            ax, ay, az = lorenz(x, y, z, r)
            bx, by, bz = lorenz(x + 0.5 * dt * ax, y + 0.5 * dt * ay, z + 0.5 * dt * az, r)
            cx, cy, cz = lorenz(x + 0.5 * dt * bx, y + 0.5 * dt * by, z + 0.5 * dt * bz, r)
            dx, dy, dz = lorenz(x + dt * cx, y + dt * cy, z + dt * cz, r)
            x = x + dt / 6 * (ax + 2 * bx + 2 * cx + dx)
            y = y + dt / 6 * (ay + 2 * by + 2 * cy + dy)
            z = z + dt / 6 * (az + 2 * bz + 2 * cz + dz)
        out[0, tile] = x
        out[1, tile] = y
        out[2, tile] = z
    return out


def lorenz_paths_torch(start: torch.Tensor, rho: torch.Tensor, dt: float, steps: int) -> torch.Tensor:
    def slope(state: torch.Tensor) -> torch.Tensor:
        return torch.stack(lorenz(*state, rho))

    state = start
    for _ in range(steps):
        a = slope(state)
        b = slope(state + 0.5 * dt * a)
        c = slope(state + 0.5 * dt * b)
        d = slope(state + dt * c)
        state = state + dt / 6 * (a + 2 * b + 2 * c + d)
    return state


CELLS.add(
    lorenz_paths,
    lambda device, small: (
        normal(device, 3, 63 if small else 1_000_000),
        20 + 8 * torch.rand([63 if small else 1_000_000], device=device),
        0.01,
        3 if small else 16,
    ),
    lorenz_paths_torch,
)
