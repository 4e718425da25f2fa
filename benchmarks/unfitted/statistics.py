"""Statistics of rows: moments, extremes, quantiles and losses."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, FP16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def shape_of_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mean, standard deviation, skewness and excess kurtosis of each row."""
    m, _n = x.size()
    mean = torch.empty([m], dtype=torch.float32, device=x.device)
    std, skew, kurt = torch.empty_like(mean), torch.empty_like(mean), torch.empty_like(mean)
    for tile in hl.tile(m):
        row = x[tile, :].to(torch.float32)
        mu = row.mean(-1)
        c = row - mu[:, None]
        c2 = c * c
        var = c2.mean(-1)
        mean[tile] = mu
        std[tile] = torch.sqrt(var)
        skew[tile] = (c2 * c).mean(-1) / (var * torch.sqrt(var))
        kurt[tile] = (c2 * c2).mean(-1) / (var * var) - 3.0
    return mean, std, skew, kurt


def shape_of_rows_torch(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    x = high(x)
    mu = x.mean(-1)
    c = x - mu[:, None]
    var = (c * c).mean(-1)
    return mu, var.sqrt(), (c**3).mean(-1) / var**1.5, (c**4).mean(-1) / var**2 - 3


def make_shape_of_rows(device: str, small: bool) -> Arguments:
    return ((normal(device, *((37, 63) if small else (8192, 4097))).exp()).to(FP16),)


CELLS.add(shape_of_rows, make_shape_of_rows, shape_of_rows_torch)


@helion.kernel
def extreme_places(
    x: torch.Tensor, valid: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Smallest and largest valid element of each row, and their places as int32."""
    m, _n = x.size()
    low, up = torch.empty([m], dtype=x.dtype, device=x.device), torch.empty([m], dtype=x.dtype, device=x.device)
    at_low = torch.empty([m], dtype=torch.int32, device=x.device)
    at_up = torch.empty_like(at_low)
    for tile in hl.tile(m):
        row, ok = x[tile, :], valid[tile, :]
        a = torch.where(ok, row, float("inf"))
        b = torch.where(ok, row, float("-inf"))
        low[tile], up[tile] = a.amin(-1), b.amax(-1)
        at_low[tile] = a.argmin(-1)
        at_up[tile] = b.argmax(-1)
    return low, up, at_low, at_up


def extreme_places_torch(
    x: torch.Tensor, valid: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    a, b = x.masked_fill(~valid, float("inf")), x.masked_fill(~valid, float("-inf"))
    return a.amin(-1), b.amax(-1), a.argmin(-1).int(), b.argmax(-1).int()


def make_extreme_places(device: str, small: bool) -> Arguments:
    m, n = (29, 1000) if small else (16384, 2047)
    x = (
        torch.stack([torch.randperm(n, device=device) for _ in range(16)])[torch.arange(m, device=device) % 16].float()
        * 0.25
    )
    return x, torch.rand([m, n], device=device) < 0.8


CELLS.add(extreme_places, make_extreme_places, extreme_places_torch)


@helion.kernel
def nucleus(probabilities: torch.Tensor, p: float) -> torch.Tensor:
    """Probabilities of each row of which the more likely ones sum to less than p, normalized; the others are 0."""
    m, _n = probabilities.size()
    out = torch.empty_like(probabilities)
    for tile in hl.tile(m):
        row = probabilities[tile, :]
        ordered = torch.sort(row, -1, descending=True)[0]
        before = torch.cumsum(ordered, -1) - ordered
        threshold = torch.where(before < p, ordered, float("inf")).amin(-1)
        kept = torch.where(row >= threshold[:, None], row, 0.0)
        out[tile, :] = kept / kept.sum(-1)[:, None]
    return out


def nucleus_torch(q: torch.Tensor, p: float) -> torch.Tensor:
    ordered = torch.sort(q, -1, descending=True)[0]
    before = torch.cumsum(ordered, -1) - ordered
    threshold = torch.where(before < p, ordered, float("inf")).amin(-1)
    kept = torch.where(q >= threshold[:, None], q, 0.0)
    return kept / kept.sum(-1, keepdim=True)


CELLS.add(
    nucleus,
    lambda device, small: (torch.softmax(normal(device, *((11, 100) if small else (4096, 1000)), scale=3.0), -1), 0.9),
    nucleus_torch,
)


@helion.kernel
def quartiles(x: torch.Tensor) -> torch.Tensor:
    """Three quartiles (lower elements) of each row."""
    m, n = x.size()
    out = torch.empty([m, 3], dtype=x.dtype, device=x.device)
    for tile in hl.tile(m):
        ordered = torch.sort(x[tile, :], -1)[0]
        lane = hl.arange(n)[None, :]
        for i in hl.static_range(3):
            out[tile, i] = torch.where(lane == (n - 1) * (i + 1) // 4, ordered, 0.0).sum(-1)
    return out


def quartiles_torch(x: torch.Tensor) -> torch.Tensor:
    n = x.size(1)
    return torch.sort(x, -1)[0][:, [(n - 1) * (i + 1) // 4 for i in range(3)]]


CELLS.add(quartiles, lambda device, small: (normal(device, *((17, 63) if small else (32768, 256))),), quartiles_torch)


@helion.kernel
def entmax_bisect(x: torch.Tensor) -> torch.Tensor:
    """1.5-entmax of each row by 20 halvings of the interval of its threshold."""
    out = torch.empty_like(x)
    n = x.size(1)
    for tile in hl.tile(x.size(0)):
        z = x[tile, :].to(torch.float32) * 0.5
        top = z.amax(-1)
        low = top - 1.0
        width = 1.0 - 1.0 / math.sqrt(n)
        for _ in range(20):
            width = width * 0.5
            middle = low + width
            r = torch.relu(z - middle[:, None])
            low = torch.where((r * r).sum(-1) >= 1.0, middle, low)
        r = torch.relu(z - low[:, None])
        q = r * r
        out[tile, :] = (q / q.sum(-1)[:, None]).to(x.dtype)
    return out


def entmax_bisect_torch(x: torch.Tensor) -> torch.Tensor:
    z = high(x) * 0.5
    low = z.amax(-1, keepdim=True) - 1
    width = 1 - 1 / math.sqrt(x.size(1))
    for _ in range(20):
        width *= 0.5
        r = torch.relu(z - low - width)
        low = torch.where((r * r).sum(-1, keepdim=True) >= 1, low + width, low)
    q = torch.relu(z - low) ** 2
    return (q / q.sum(-1, keepdim=True)).to(x.dtype)


CELLS.add(
    entmax_bisect,
    lambda device, small: (normal(device, *((15, 333) if small else (8192, 1001)), dtype=BF16, scale=2.0),),
    entmax_bisect_torch,
)


@helion.kernel
def bce_with_gradient(
    logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weighted binary cross entropy, summed up over all elements, and its gradient."""
    m, n = logits.size()
    loss = torch.zeros([1], dtype=torch.float32, device=logits.device)
    grad = torch.empty_like(logits)
    for rows, columns in hl.tile([m, n]):
        z, t = logits[rows, columns].to(torch.float32), targets[rows, columns].to(torch.float32)
        w = weights[columns].to(torch.float32)[None, :]
        p = torch.sigmoid(z)
        value = torch.relu(z) - z * t + torch.log1p(torch.exp(-torch.abs(z)))
        hl.atomic_add(loss, [0], (w * value).sum())
        grad[rows, columns] = (w * (p - t)).to(logits.dtype)
    return loss, grad


def bce_with_gradient_torch(
    logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    z, t, w = high(logits), targets.to(high(logits).dtype), high(weights)
    value = F.binary_cross_entropy_with_logits(z, t, weight=w.expand_as(z), reduction="sum")
    return value[None], (w * (torch.sigmoid(z) - t)).to(logits.dtype)


def make_bce_with_gradient(device: str, small: bool) -> Arguments:
    m, n = (63, 41) if small else (65536, 527)
    return normal(device, m, n, dtype=BF16), torch.rand([m, n], device=device) < 0.3, torch.rand([n], device=device)


CELLS.add(bce_with_gradient, make_bce_with_gradient, bce_with_gradient_torch)
