"""Scans along rows and over time."""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl

from .cell import BF16, Arguments, Cells, high, normal

CELLS = Cells()


def _affine(a: torch.Tensor, b: torch.Tensor, a2: torch.Tensor, b2: torch.Tensor) -> Any:
    return a * a2, b * a2 + b2


@helion.kernel
def advantages(
    rewards: torch.Tensor, values: torch.Tensor, done: torch.Tensor, gamma: float, lam: float
) -> torch.Tensor:
    """Generalized advantage estimates of `[B, T]`, with `values[B, T + 1]`."""
    b, t = rewards.size()
    out = torch.empty_like(rewards)
    now, later = values.narrow(1, 0, t), values.narrow(1, 1, t)
    for tile in hl.tile(b):
        alive = 1.0 - done[tile, :].to(torch.float32)
        delta = rewards[tile, :] + gamma * later[tile, :] * alive - now[tile, :]
        _, out[tile, :] = hl.associative_scan(_affine, (alive * (gamma * lam), delta), dim=1, reverse=True)
    return out


def advantages_reference(
    rewards: torch.Tensor, values: torch.Tensor, done: torch.Tensor, gamma: float, lam: float
) -> torch.Tensor:
    out, last = torch.empty_like(rewards), torch.zeros_like(rewards[:, 0])
    for t in reversed(range(rewards.size(1))):
        alive = 1 - done[:, t].to(rewards.dtype)
        delta = rewards[:, t] + gamma * values[:, t + 1] * alive - values[:, t]
        last = delta + gamma * lam * alive * last
        out[:, t] = last
    return out


def make_advantages(device: str, small: bool) -> Arguments:
    b, t = (9, 65) if small else (8192, 1000)
    return normal(device, b, t), normal(device, b, t + 1), torch.rand([b, t], device=device) > 0.95, 0.99, 0.95


def _pair_affine(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x[0] * y[0], x[1] * y[0] + y[1]


def advantages_torch(
    rewards: torch.Tensor, values: torch.Tensor, done: torch.Tensor, gamma: float, lam: float
) -> torch.Tensor:
    from torch._higher_order_ops.associative_scan import associative_scan

    alive = 1 - done.to(rewards.dtype)
    delta = rewards + gamma * values[:, 1:] * alive - values[:, :-1]
    return associative_scan(_pair_affine, (gamma * lam * alive, delta), 1, reverse=True)[1]


CELLS.add(advantages, make_advantages, advantages_reference, advantages_torch)


@helion.kernel
def selective_scan(
    x: torch.Tensor, delta: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor
) -> torch.Tensor:
    """State-space scan of `x[B, T, D]` with states `[D, N]`, `b` and `c` of `[B, T, N]`."""
    batch, t, d = x.size()
    n = hl.specialize(a.size(1))
    out = torch.empty_like(x)
    for tile_b, tile_d in hl.tile([batch, d], block_size=[1, None]):
        state = hl.zeros([tile_d, n], dtype=torch.float32)
        rates = a[tile_d, :]
        for at in hl.grid(t):
            dt = delta[tile_b.begin, at, tile_d].to(torch.float32)
            v = x[tile_b.begin, at, tile_d].to(torch.float32)
            state = (
                state * torch.exp(dt[:, None] * rates)
                + (dt * v)[:, None] * b[tile_b.begin, at, :].to(torch.float32)[None, :]
            )
            out[tile_b.begin, at, tile_d] = (
                (state * c[tile_b.begin, at, :].to(torch.float32)[None, :]).sum(-1).to(x.dtype)
            )
    return out


def selective_scan_reference(
    x: torch.Tensor, delta: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor
) -> torch.Tensor:
    state = torch.zeros([x.size(0), x.size(2), a.size(1)], dtype=a.dtype, device=x.device)
    out = []
    for t in range(x.size(1)):
        state = state * torch.exp(delta[:, t, :, None] * a) + (delta[:, t] * x[:, t])[:, :, None] * b[:, t, None, :]
        out.append((state * c[:, t, None, :]).sum(-1))
    return torch.stack(out, 1)


def make_selective_scan(device: str, small: bool) -> Arguments:
    b, t, c, n = (2, 9, 33, 16) if small else (8, 512, 2048, 16)
    return (
        normal(device, b, t, c, dtype=BF16),
        torch.rand([b, t, c], device=device).to(BF16),
        -torch.rand([c, n], device=device),
        normal(device, b, t, n, dtype=BF16),
        normal(device, b, t, n, dtype=BF16),
    )


def selective_scan_torch(
    x: torch.Tensor, delta: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor
) -> torch.Tensor:
    from torch._higher_order_ops.associative_scan import associative_scan

    dt = delta.to(a.dtype)
    decay = torch.exp(dt[..., None] * a)
    states = associative_scan(_pair_affine, (decay, (dt * x)[..., None] * b[:, :, None, :].to(a.dtype)), 1)[1]
    return (states * c[:, :, None, :]).sum(-1).to(x.dtype)


CELLS.add(selective_scan, make_selective_scan, selective_scan_reference, selective_scan_torch)


@helion.kernel
def running_mean(x: torch.Tensor) -> torch.Tensor:
    """Mean of all steps up to each one, along T of `x[B, T, D]`."""
    b, t, d = x.size()
    out = torch.empty_like(x)
    for tile_b, tile_d in hl.tile([b, d]):
        total = torch.cumsum(x[tile_b, :, tile_d].to(torch.float32), dim=1)
        out[tile_b, :, tile_d] = (total / (hl.arange(t) + 1)[None, :, None].to(torch.float32)).to(x.dtype)
    return out


def running_mean_torch(x: torch.Tensor) -> torch.Tensor:
    return (high(x).cumsum(1) / torch.arange(1, x.size(1) + 1, device=x.device)[None, :, None]).to(x.dtype)


CELLS.add(
    running_mean,
    lambda device, small: (normal(device, *((2, 33, 17) if small else (32, 1000, 768)), dtype=BF16),),
    running_mean_torch,
)


def _reset_add(flag: torch.Tensor, value: torch.Tensor, next_flag: torch.Tensor, next_value: torch.Tensor) -> Any:
    return torch.maximum(flag, next_flag), torch.where(next_flag > 0, next_value, value + next_value)


@helion.kernel
def resetting_sums(x: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Running sums of each row that start anew where `starts` is set."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        _, out[tile, :] = hl.associative_scan(_reset_add, (starts[tile, :].to(torch.int32), x[tile, :]), dim=1)
    return out


def resetting_sums_torch(x: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    total = x.double().cumsum(1)
    at = torch.arange(x.size(1), device=x.device).expand_as(x)
    first = torch.where(starts, at, 0).cummax(1).values
    before = torch.where(first > 0, total.gather(1, (first - 1).clamp(min=0)), 0.0)
    return (total - before).to(x.dtype)


def make_resetting_sums(device: str, small: bool) -> Arguments:
    m, n = (9, 65) if small else (8192, 2000)
    return normal(device, m, n), torch.rand([m, n], device=device) > 0.95


CELLS.add(resetting_sums, make_resetting_sums, resetting_sums_torch)
