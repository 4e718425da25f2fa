"""Elementwise arithmetic, and reductions and steps along one axis."""

from __future__ import annotations

import math

import torch

import helion
import helion.language as hl

from .cell import BF16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def option_prices(
    spot: torch.Tensor, strike: torch.Tensor, years: torch.Tensor, rate: float, volatility: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Prices of European calls and puts."""
    call, put = torch.empty_like(spot), torch.empty_like(spot)
    for tile in hl.tile(spot.size(0)):
        s, k, t = spot[tile], strike[tile], years[tile]
        spread = volatility * torch.sqrt(t)
        d1 = (torch.log(s / k) + (rate + 0.5 * volatility * volatility) * t) / spread
        d2 = d1 - spread
        later = k * torch.exp(-rate * t)
        n1 = 0.5 * (1 + torch.erf(d1 * math.sqrt(0.5)))
        n2 = 0.5 * (1 + torch.erf(d2 * math.sqrt(0.5)))
        call[tile] = s * n1 - later * n2
        put[tile] = later * (1 - n2) - s * (1 - n1)
    return call, put


def option_prices_torch(
    spot: torch.Tensor, strike: torch.Tensor, years: torch.Tensor, rate: float, volatility: float
) -> tuple[torch.Tensor, torch.Tensor]:
    spread = volatility * torch.sqrt(years)
    d1 = (torch.log(spot / strike) + (rate + 0.5 * volatility * volatility) * years) / spread
    later = strike * torch.exp(-rate * years)
    n1, n2 = (0.5 * (1 + torch.erf(d * math.sqrt(0.5))) for d in (d1, d1 - spread))
    return spot * n1 - later * n2, later * (1 - n2) - spot * (1 - n1)


def make_option_prices(device: str, small: bool) -> Arguments:
    n = 1001 if small else 16_000_000
    u = [torch.rand([n], device=device) for _ in range(3)]
    return u[0] * 90 + 10, u[1] * 90 + 10, u[2] * 2 + 0.2, 0.02, 0.3


CELLS.add(option_prices, make_option_prices, option_prices_torch)


@helion.kernel
def prune_two_of_four(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The two largest magnitudes of each four neighbours, and zeros for the others; and the mask as bytes."""
    m, n = w.size()
    out = torch.empty([m, n // 4, 4], dtype=w.dtype, device=w.device)
    mask = torch.empty([m, n // 4], dtype=torch.uint8, device=w.device)
    groups = w.view(m, n // 4, 4)
    for rows, columns in hl.tile([m, n // 4]):
        values = [groups[rows, columns, i] for i in range(4)]
        sizes = [value.abs().to(torch.float32) for value in values]
        bits = hl.zeros([rows, columns], dtype=torch.int32)
        for i in hl.static_range(4):
            above = hl.zeros([rows, columns], dtype=torch.int32)
            for j in hl.static_range(4):
                if j < i:
                    above += (sizes[j] >= sizes[i]).to(torch.int32)
                if j > i:
                    above += (sizes[j] > sizes[i]).to(torch.int32)
            keep = above < 2
            out[rows, columns, i] = torch.where(keep, values[i], 0.0)
            bits += keep.to(torch.int32) << i
        mask[rows, columns] = bits.to(torch.uint8)
    return out.view(m, n), mask


def prune_two_of_four_torch(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    groups = w.view(w.size(0), -1, 4)
    sizes = groups.abs().to(torch.float32)
    more = sizes[..., None, :] > sizes[..., :, None]
    same = (sizes[..., None, :] == sizes[..., :, None]) & torch.ones(4, 4, dtype=torch.bool, device=w.device).tril(-1)
    keep = (more | same).sum(-1) < 2
    bits = (keep * torch.tensor([1, 2, 4, 8], device=w.device)).sum(-1).to(torch.uint8)
    return torch.where(keep, groups, 0).view_as(w), bits


CELLS.add(
    prune_two_of_four,
    lambda device, small: (normal(device, *((33, 64) if small else (8192, 8192)), dtype=BF16),),
    prune_two_of_four_torch,
)


@helion.kernel
def factored_step(
    weight: torch.Tensor, gradient: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, rate: float
) -> None:
    """A step of an optimizer whose second moments are an outer product of a row's and a column's."""
    m, n = weight.size()
    total = rows.mean()
    for tile_m, tile_n in hl.tile([m, n]):
        moment = rows[tile_m][:, None] * columns[tile_n][None, :] / total[()]
        step = gradient[tile_m, tile_n].to(torch.float32) * torch.rsqrt(moment + 1e-30)
        weight[tile_m, tile_n] = (weight[tile_m, tile_n].to(torch.float32) - rate * step).to(weight.dtype)


def factored_step_torch(
    weight: torch.Tensor, gradient: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, rate: float
) -> None:
    moment = rows[:, None] * columns[None] / rows.mean()
    weight.copy_((high(weight) - rate * high(gradient) * torch.rsqrt(moment + 1e-30)).to(weight.dtype))


def make_factored_step(device: str, small: bool) -> Arguments:
    m, n = (33, 100) if small else (8192, 4096)
    moments = torch.rand([m], device=device) + 0.5, torch.rand([n], device=device) + 0.5
    return normal(device, m, n, dtype=BF16), normal(device, m, n, dtype=BF16), *moments, 0.01


CELLS.add(factored_step, make_factored_step, factored_step_torch)


@helion.kernel
def middle_softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax along the middle axis of `[B, K, N]`."""
    b, _, n = x.size()
    out = torch.empty_like(x)
    for tile_b, tile_n in hl.tile([b, n]):
        out[tile_b, :, tile_n] = torch.softmax(x[tile_b, :, tile_n].to(torch.float32), dim=1).to(x.dtype)
    return out


CELLS.add(
    middle_softmax,
    lambda device, small: (normal(device, *((3, 21, 65) if small else (64, 150, 16384)), dtype=BF16),),
    lambda x: torch.softmax(high(x), 1).to(x.dtype),
)


def _larger(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.maximum(a, b)


@helion.kernel
def drawdowns(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How far each price of a row is below the highest before it, and the most of each row."""
    m = x.size(0)
    out = torch.empty_like(x)
    most = torch.empty([m], dtype=x.dtype, device=x.device)
    for tile in hl.tile(m):
        prices = x[tile, :]
        peaks = hl.associative_scan(_larger, prices, dim=1)
        fallen = peaks - prices
        out[tile, :] = fallen
        most[tile] = fallen.amax(1)
    return out, most


def drawdowns_torch(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    fallen = x.cummax(1).values - x
    return fallen, fallen.amax(1)


CELLS.add(
    drawdowns, lambda device, small: (normal(device, *((9, 100) if small else (16384, 2520))).abs(),), drawdowns_torch
)


@helion.kernel
def window_maxima(x: torch.Tensor, window: hl.constexpr) -> torch.Tensor:
    """Maxima of each `window` neighbours of the rows of `[M, N]`: `[M, N - window + 1]`."""
    m, n = x.size()
    out = torch.empty([m, n - window + 1], dtype=x.dtype, device=x.device)
    for rows, columns in hl.tile(out.size()):
        most = x[rows, columns]
        for step in hl.static_range(1, window):
            most = torch.maximum(most, x[rows, columns.index + step])
        out[rows, columns] = most
    return out


CELLS.add(
    window_maxima,
    lambda device, small: (normal(device, *((7, 80) if small else (4096, 16384))), 16),
    lambda x, window: x.unfold(1, window, 1).amax(-1),
    lambda x, window: torch.nn.functional.max_pool1d(x, window, 1),
)


@helion.kernel
def transport_rows(cost: torch.Tensor, v: torch.Tensor, mass: torch.Tensor, inverse: float) -> torch.Tensor:
    """A half step of entropic transport: `log(mass) - logsumexp(v - cost * inverse)` of each row."""
    m, _ = cost.size()
    out = torch.empty([m], dtype=torch.float32, device=cost.device)
    for tile in hl.tile(m):
        scores = v[None, :] - cost[tile, :].to(torch.float32) * inverse
        out[tile] = torch.log(mass[tile]) - torch.logsumexp(scores, 1)
    return out


def make_transport_rows(device: str, small: bool) -> Arguments:
    m, n = (33, 100) if small else (16384, 4096)
    return torch.rand([m, n], device=device).to(BF16), normal(device, n), torch.rand([m], device=device) + 0.1, 10.0


CELLS.add(
    transport_rows,
    make_transport_rows,
    lambda cost, v, mass, inverse: torch.log(mass) - torch.logsumexp(v[None] - high(cost) * inverse, 1),
)


@helion.kernel
def transport_columns(cost: torch.Tensor, u: torch.Tensor, mass: torch.Tensor, inverse: float) -> torch.Tensor:
    """The other half step: `log(mass) - logsumexp(u - cost * inverse)` of each column."""
    m, n = cost.size()
    out = torch.empty([n], dtype=torch.float32, device=cost.device)
    for columns in hl.tile(n):
        most = hl.full([columns], -float("inf"), dtype=torch.float32)
        total = hl.zeros([columns])
        for rows in hl.tile(m):
            scores = u[rows][:, None] - cost[rows, columns].to(torch.float32) * inverse
            larger = torch.maximum(most, scores.amax(0))
            total = total * torch.exp(most - larger) + torch.exp(scores - larger[None, :]).sum(0)
            most = larger
        out[columns] = torch.log(mass[columns]) - most - torch.log(total)
    return out


def make_transport_columns(device: str, small: bool) -> Arguments:
    m, n = (33, 100) if small else (4096, 16384)
    return torch.rand([m, n], device=device).to(BF16), normal(device, m), torch.rand([n], device=device) + 0.1, 10.0


CELLS.add(
    transport_columns,
    make_transport_columns,
    lambda cost, u, mass, inverse: torch.log(mass) - torch.logsumexp(u[:, None] - high(cost) * inverse, 0),
)


@helion.kernel
def receptance(w: torch.Tensor, first: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Weighted means over time of `v[B, T, C]`, whose weights `exp(k)` decay by `exp(-w)` a step."""
    b, t, c = k.size()
    out = torch.empty_like(v)
    for tile_b, tile_c in hl.tile([b, c], block_size=[1, None]):
        decay, extra = w[tile_c], first[tile_c]
        above, below = hl.zeros([tile_c]), hl.zeros([tile_c])
        most = hl.full([tile_c], -1e30, dtype=torch.float32)
        for step in range(t):
            key = k[tile_b.begin, step, tile_c].to(torch.float32)
            value = v[tile_b.begin, step, tile_c].to(torch.float32)
            larger = torch.maximum(most, key + extra)
            old, new = torch.exp(most - larger), torch.exp(key + extra - larger)
            out[tile_b.begin, step, tile_c] = ((old * above + new * value) / (old * below + new)).to(v.dtype)
            larger = torch.maximum(most - decay, key)
            old, new = torch.exp(most - decay - larger), torch.exp(key - larger)
            above, below, most = old * above + new * value, old * below + new, larger
    return out


def receptance_torch(w: torch.Tensor, first: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    kf, vf = high(k), high(v)
    above, below = torch.zeros_like(kf[:, 0]), torch.zeros_like(kf[:, 0])
    most, outs = torch.full_like(above, -1e30), []
    for step in range(k.size(1)):
        key, value = kf[:, step], vf[:, step]
        larger = torch.maximum(most, key + first)
        old, new = torch.exp(most - larger), torch.exp(key + first - larger)
        outs.append((old * above + new * value) / (old * below + new))
        larger = torch.maximum(most - w, key)
        old, new = torch.exp(most - w - larger), torch.exp(key - larger)
        above, below, most = old * above + new * value, old * below + new, larger
    return torch.stack(outs, 1).to(v.dtype)


def make_receptance(device: str, small: bool) -> Arguments:
    b, t, c = (2, 9, 37) if small else (32, 256, 4096)
    inputs = normal(device, b, t, c, dtype=BF16), normal(device, b, t, c, dtype=BF16)
    return torch.rand([c], device=device), normal(device, c), *inputs


CELLS.add(receptance, make_receptance, receptance_torch)
