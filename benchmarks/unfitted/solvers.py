"""Sciences: forces of neighbours, chains of equations, and many small matrices."""

from __future__ import annotations

import torch

import helion
import helion.language as hl

from .cell import BF16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def neighbour_forces(places: torch.Tensor, neighbours: torch.Tensor, cutoff: float) -> torch.Tensor:
    """Lennard-Jones forces `[N, 3]` of the listed neighbours `[N, K]` of each particle within a cutoff."""
    n, k = neighbours.size()
    out = torch.empty([n, 3], dtype=torch.float32, device=places.device)
    for tile in hl.tile(n):
        x, y, z = places[tile, 0][:, None], places[tile, 1][:, None], places[tile, 2][:, None]
        fx, fy, fz = hl.zeros([tile]), hl.zeros([tile]), hl.zeros([tile])
        for near in hl.tile(k):
            other = neighbours[tile, near]
            dx, dy, dz = x - places[other, 0], y - places[other, 1], z - places[other, 2]
            square = dx * dx + dy * dy + dz * dz
            inverse = torch.where((square < cutoff * cutoff) & (square > 0), 1 / square, 0.0)
            sixth = inverse * inverse * inverse
            force = 24 * inverse * sixth * (2 * sixth - 1)
            fx += (force * dx).sum(1)
            fy += (force * dy).sum(1)
            fz += (force * dz).sum(1)
        out[tile, 0] = fx
        out[tile, 1] = fy
        out[tile, 2] = fz
    return out


def neighbour_forces_torch(places: torch.Tensor, neighbours: torch.Tensor, cutoff: float) -> torch.Tensor:
    d = places[:, None] - places[neighbours]
    square = (d * d).sum(-1)
    inverse = torch.where((square < cutoff * cutoff) & (square > 0), 1 / square, 0.0)
    sixth = inverse**3
    return ((24 * inverse * sixth * (2 * sixth - 1))[..., None] * d).sum(1)


def make_neighbour_forces(device: str, small: bool) -> Arguments:
    n, k = (37, 13) if small else (262144, 48)
    at = torch.arange(n, device=device)
    side = 8 if small else 64
    grid = torch.stack([at % side, at // side % side, at // side // side], 1) * 1.2
    places = grid + torch.rand([n, 3], device=device) * 0.2
    near = (at[:, None] + torch.randint(-3 * side, 3 * side, [n, k], device=device)) % n
    return places, near.to(torch.int32), 2.5


CELLS.add(neighbour_forces, make_neighbour_forces, neighbour_forces_torch)


@helion.kernel
def tridiagonal(low: torch.Tensor, middle: torch.Tensor, top: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Solutions `[T, N]` of N chains of T equations, with the diagonals and right sides `[T, N]`."""
    steps, n = middle.size()
    ratio, out = torch.empty_like(right), torch.empty_like(right)
    for tile in hl.tile(n):
        c = top[0, tile] / middle[0, tile]
        d = right[0, tile] / middle[0, tile]
        ratio[0, tile] = c
        out[0, tile] = d
        for t in range(1, steps):
            scale = 1 / (middle[t, tile] - low[t, tile] * c)
            d = (right[t, tile] - low[t, tile] * d) * scale
            c = top[t, tile] * scale
            ratio[t, tile] = c
            out[t, tile] = d
        for back in range(1, steps):
            at = steps - 1 - back
            d = out[at, tile] - ratio[at, tile] * d
            out[at, tile] = d
    return out


def tridiagonal_torch(low: torch.Tensor, middle: torch.Tensor, top: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    c, d = [top[0] / middle[0]], [right[0] / middle[0]]
    for t in range(1, middle.size(0)):
        scale = 1 / (middle[t] - low[t] * c[-1])
        d.append((right[t] - low[t] * d[-1]) * scale)
        c.append(top[t] * scale)
    out = [d.pop()]
    while d:
        c.pop()
        out.append(d.pop() - c[-1] * out[-1])
    return torch.stack(out[::-1])


def make_tridiagonal(device: str, small: bool) -> Arguments:
    shape = (9, 63) if small else (64, 131072)
    low, top = torch.rand(shape, device=device), torch.rand(shape, device=device)
    return low, 3 + torch.rand(shape, device=device), top, normal(device, *shape)


CELLS.add(tridiagonal, make_tridiagonal, tridiagonal_torch)


@helion.kernel
def kron_matrices(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Kronecker products of batches of matrices `[B, M, N]` and `[B, P, Q]`: `[B, M P, N Q]`."""
    batch, m, n = a.size()
    _, p, q = b.size()
    out = torch.empty([batch, m, p, n, q], dtype=a.dtype, device=a.device)
    for tile_b, tile_m, tile_p, tile_n, tile_q in hl.tile([batch, m, p, n, q]):
        left = a[tile_b, tile_m, tile_n][:, :, None, :, None]
        out[tile_b, tile_m, tile_p, tile_n, tile_q] = left * b[tile_b, tile_p, tile_q][:, None, :, None, :]
    return out.view(batch, m * p, n * q)


CELLS.add(
    kron_matrices,
    lambda device, small: (
        normal(device, *((2, 3, 5) if small else (16, 32, 32)), dtype=BF16),
        normal(device, *((2, 7, 9) if small else (16, 63, 63)), dtype=BF16),
    ),
    lambda a, b: torch.einsum("bmn,bpq->bmpnq", high(a), high(b)).flatten(3).flatten(1, 2).to(a.dtype),
    lambda a, b: (a[:, :, None, :, None] * b[:, None, :, None, :]).flatten(3).flatten(1, 2),
)


@helion.kernel
def cholesky8(x: torch.Tensor) -> torch.Tensor:
    """Lower factors of positive matrices `[8, 8, N]`."""
    n = x.size(2)
    out = torch.zeros_like(x)
    for tile in hl.tile(n):
        rows = []
        for i in hl.static_range(8):
            row = []
            for j in hl.static_range(i + 1):
                value = x[i, j, tile]
                for k in hl.static_range(j):
                    value = value - row[k] * (rows[j][k] if j < i else row[k])
                row.append(torch.sqrt(value) if i == j else value / rows[j][j])
                out[i, j, tile] = row[j]
            rows.append(row)
    return out


def cholesky8_torch(x: torch.Tensor) -> torch.Tensor:
    factor: list[list[torch.Tensor]] = []
    zero = torch.zeros_like(x[0, 0])
    for i in range(8):
        row: list[torch.Tensor] = []
        for j in range(i + 1):
            value = x[i, j]
            for k in range(j):
                value = value - row[k] * (factor[j][k] if j < i else row[k])
            row.append(torch.sqrt(value) if i == j else value / factor[j][j])
        factor.append(row)
    return torch.stack([torch.stack(row + [zero] * (8 - len(row))) for row in factor])


def make_cholesky8(device: str, small: bool) -> Arguments:
    n = 63 if small else 262144
    a = normal(device, 8, 8, n)
    return (torch.einsum("ikn,jkn->ijn", a, a) + 4 * torch.eye(8, device=device)[:, :, None],)


CELLS.add(cholesky8, make_cholesky8, cholesky8_torch)


@helion.kernel
def inverses4(x: torch.Tensor) -> torch.Tensor:
    """Inverses of matrices `[N, 4, 4]`, by elimination without pivots."""
    n = x.size(0)
    out = torch.empty_like(x)
    for tile in hl.tile(n):
        rows = [[x[tile, i, j] for j in range(4)] for i in range(4)]
        right = [[hl.full([tile], float(i == j)) for j in range(4)] for i in range(4)]
        for p in hl.static_range(4):
            scale = 1 / rows[p][p]
            pivot, other = [v * scale for v in rows[p]], [v * scale for v in right[p]]
            factors = [rows[i][p] for i in range(4)]
            rows = [pivot if i == p else [rows[i][j] - factors[i] * pivot[j] for j in range(4)] for i in range(4)]
            right = [other if i == p else [right[i][j] - factors[i] * other[j] for j in range(4)] for i in range(4)]
        for i in hl.static_range(4):
            for j in hl.static_range(4):
                out[tile, i, j] = right[i][j]
    return out


def inverses4_torch(x: torch.Tensor) -> torch.Tensor:
    rows = [list(row.unbind(1)) for row in x.unbind(1)]
    right = [[torch.full_like(rows[0][0], float(i == j)) for j in range(4)] for i in range(4)]
    for p in range(4):
        scale = 1 / rows[p][p]
        rows[p], right[p] = [v * scale for v in rows[p]], [v * scale for v in right[p]]
        for i in range(4):
            if i != p:
                factor = rows[i][p]
                rows[i] = [v - factor * w for v, w in zip(rows[i], rows[p], strict=True)]
                right[i] = [v - factor * w for v, w in zip(right[i], right[p], strict=True)]
    return torch.stack([torch.stack(row, 1) for row in right], 1)


def make_inverses4(device: str, small: bool) -> Arguments:
    n = 63 if small else 1_000_000
    return (normal(device, n, 4, 4, scale=0.5) + 4 * torch.eye(4, device=device),)


CELLS.add(inverses4, make_inverses4, inverses4_torch)
