"""Kernels of users that walk over the columns of their rows in tiles, with references in fp64 by what the product is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

import helion
import helion.language as hl

F = torch.nn.functional


@helion.kernel(backend="cute")
def welford(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """layer_norm by Chan's update of each tile, and the product once more."""
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        count = hl.zeros([tile_m], dtype=torch.float32)
        mean = hl.zeros([tile_m], dtype=torch.float32)
        deviations = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            width = tile_n.end - tile_n.begin
            part = acc.sum(-1) / width
            dev = ((acc - part[:, None]) ** 2).sum(-1)
            new = count + width
            delta = part - mean
            mean = mean + delta * width / new
            deviations = deviations + dev + delta * delta * count * width / new
            count = new
        rstd = torch.rsqrt(deviations / count + 1e-5)
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            out[tile_m, tile_n] = ((acc - mean[:, None]) * rstd[:, None] * weight[tile_n] + bias[tile_n]).to(x.dtype)
    return out


@helion.kernel(backend="cute")
def logaddexp(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """logsumexp as a sum of those of tiles."""
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        lse = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            lse = torch.logaddexp(lse, torch.logsumexp(acc, -1))
        out[tile_m] = lse
    return out


@helion.kernel(backend="cute")
def running_mean(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Rows less their mean, to which each tile adds its part."""
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        mean = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            mean = mean + acc.sum(-1) / n
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            out[tile_m, tile_n] = (acc - mean[:, None]).to(x.dtype)
    return out


@helion.kernel(backend="cute")
def chosen_maximum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """logsumexp, whose maximum is chosen by a condition."""
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        top = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            here = acc.amax(-1)
            new = torch.where(here > top, here, top)
            total = total * torch.exp(top - new) + torch.exp(acc - new[:, None]).sum(-1)
            top = new
        out[tile_m] = top + torch.log(total)
    return out


@helion.kernel(backend="cute")
def masked(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """logsumexp of rows and columns that a mask leaves, which are all of them."""
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        top = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            acc = torch.where((tile_m.index[:, None] < m) & (tile_n.index[None, :] < n), acc, float("-inf"))
            new = torch.maximum(top, acc.amax(-1))
            total = total * torch.exp(top - new) + torch.exp(acc - new[:, None]).sum(-1)
            top = new
        out[tile_m] = top + torch.log(total)
    return out


@helion.kernel(backend="cute")
def argmax(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The place of the largest number, of the tile that raised it last."""
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m], dtype=torch.int64, device=x.device)
    for tile_m in hl.tile(m):
        top = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        at = hl.zeros([tile_m], dtype=torch.int64)
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            here = acc.amax(-1)
            where = acc.argmax(-1) + tile_n.begin
            at = torch.where(here > top, where, at)
            top = torch.maximum(top, here)
        out[tile_m] = at
    return out


@helion.kernel(backend="cute")
def rms_norm_backward(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """What the gradient of rms_norm of a product is, of two sums in one loop."""
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        square = hl.zeros([tile_m], dtype=torch.float32)
        dot = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            square += (acc * acc).sum(-1)
            dot += (acc * grad[tile_m, tile_n].float() * weight[tile_n].float()).sum(-1)
        total = torch.rsqrt(square / n + 1e-6)
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            out[tile_m, tile_n] = (
                total[:, None]
                * (grad[tile_m, tile_n].float() * weight[tile_n].float() - acc * (total * total * dot / n)[:, None])
            ).to(x.dtype)
    return out


@helion.kernel(backend="cute")
def softmax_backward(x: torch.Tensor, y: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """What the gradient of softmax of a product is, whose two sums are rescaled together."""
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        top = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        dot = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            new = torch.maximum(top, acc.amax(-1))
            power = torch.exp(acc - new[:, None])
            factor = torch.exp(top - new)
            total = total * factor + power.sum(-1)
            dot = dot * factor + (power * grad[tile_m, tile_n]).sum(-1)
            top = new
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            power = torch.exp(acc - top[:, None]) / total[:, None]
            out[tile_m, tile_n] = (power * (grad[tile_m, tile_n] - (dot / total)[:, None])).to(x.dtype)
    return out


@helion.kernel(backend="cute")
def softmax_of_three_loops(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Maximum, sum and quotient one after the other, of sums that are read back."""
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        top = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            out[tile_m, tile_n] = acc
            top = torch.maximum(top, acc.amax(-1))
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            power = torch.exp(out[tile_m, tile_n] - top[:, None])
            total += power.sum(-1)
        for tile_n in hl.tile(n):
            out[tile_m, tile_n] = torch.exp(out[tile_m, tile_n] - top[:, None]) / total[:, None]
    return out


@helion.kernel(backend="cute")
def statistics(
    x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """layer_norm of two sums in one loop, with mean and reciprocal deviation as outputs."""
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    tmp = torch.empty([m, n], dtype=torch.float32, device=x.device)
    means = torch.empty([m], dtype=torch.float32, device=x.device)
    deviations = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        total = hl.zeros([tile_m], dtype=torch.float32)
        square = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            total += acc.sum(-1)
            square += (acc * acc).sum(-1)
            tmp[tile_m, tile_n] = acc
        mean = total / n
        rstd = torch.rsqrt(square / n - mean * mean + 1e-5)
        means[tile_m] = mean
        deviations[tile_m] = rstd
        for tile_n in hl.tile(n):
            out[tile_m, tile_n] = (
                (tmp[tile_m, tile_n] - mean[:, None]) * rstd[:, None] * weight[tile_n] + bias[tile_n]
            ).to(x.dtype)
    return out, means, deviations


def _gradient(function: Callable[[torch.Tensor], torch.Tensor], sums: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.autograd.functional.vjp(function, sums, grad)[1]
    return found


#: Kernel -> (what it takes beside x and y, what it means, of the product and these in fp64).
KERNELS: Mapping[str, tuple[Any, str, Callable[..., Any]]] = {
    "welford": (welford, "wb", lambda s, w, b: F.layer_norm(s, [s.size(1)], w, b, 1e-5)),
    "logaddexp": (logaddexp, "", lambda s: s.logsumexp(1)),
    "running_mean": (running_mean, "", lambda s: s - s.mean(1, keepdim=True)),
    "chosen_maximum": (chosen_maximum, "", lambda s: s.logsumexp(1)),
    "masked": (masked, "", lambda s: s.logsumexp(1)),
    "argmax": (argmax, "", lambda s: s.argmax(1)),
    "rms_norm_backward": (
        rms_norm_backward,
        "wg",
        lambda s, w, g: _gradient(lambda s: F.rms_norm(s, [s.size(1)], w, 1e-6), s, g),
    ),
    "softmax_backward": (softmax_backward, "g", lambda s, g: _gradient(lambda s: s.softmax(1), s, g)),
    "softmax_of_three_loops": (softmax_of_three_loops, "", lambda s: s.softmax(1)),
    "statistics": (
        statistics,
        "wb",
        lambda s, w, b: (
            F.layer_norm(s, [s.size(1)], w, b, 1e-5),
            s.mean(1),
            torch.rsqrt(s.var(1, correction=0) + 1e-5),
        ),
    ),
}
