"""Kernels to differentiate, each with the same in torch and with arguments."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

import helion
import helion.language as hl


@dataclass(frozen=True)
class Case:
    """``arguments`` of a dtype; tensors of floats among them get gradients."""

    kernel: helion.Kernel
    reference: Callable[..., Any]
    arguments: Callable[[torch.dtype], tuple[Any, ...]]
    #: Whether it accumulates in fp32, whatever the dtype.
    single: bool = False
    #: Whether it detaches values, through which finite differences go on.
    detaches: bool = False

    @property
    def name(self) -> str:
        return self.kernel.name


CASES: list[Case] = []


def case(
    reference: Callable[..., Any], *shapes: Any, single: bool = False, detaches: bool = False
) -> Callable[[Any], Any]:
    """Register a kernel. ``shapes``: of tensors with a mean of 0.3; other arguments as they are, functions of a dtype."""

    def register(fn: Callable[..., Any]) -> helion.Kernel:
        kernel = helion.kernel(fn)

        def arguments(dtype: torch.dtype) -> tuple[Any, ...]:
            generator = torch.Generator().manual_seed(len(shapes))
            made = []
            for shape in shapes:
                if isinstance(shape, tuple):
                    made.append((torch.randn(shape, generator=generator, dtype=torch.float64) * 0.7 + 0.3).to(dtype))
                else:
                    made.append(shape(dtype) if callable(shape) else shape)
            return tuple(made)

        CASES.append(Case(kernel, reference, arguments, single, detaches))
        return kernel

    return register


def positive(*shape: int) -> Callable[[torch.dtype], torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    made = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.4
    return lambda dtype: made.to(dtype)


def integers(high: int, *shape: int) -> Callable[[torch.dtype], torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    made = torch.randint(high, shape, generator=generator)
    return lambda dtype: made


# --- pointwise -----------------------------------------------------------------------------------------------------------


@case(lambda x, y: x + y, (5, 7), (5, 7))
def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] + y[tile]
    return out


@case(lambda x, y: x * y - x / y, (9,), positive(9))
def products_and_quotients(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * y[tile] - x[tile] / y[tile]
    return out


@case(lambda x: torch.sin(x) * torch.exp(-x * x) + torch.cos(x).abs().sqrt(), (11,))
def waves(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        value = x[tile]
        out[tile] = torch.sin(value) * torch.exp(-value * value) + torch.cos(value).abs().sqrt()
    return out


@case(lambda x, s: torch.tanh(x * s) + s, (6, 5), 1.5)
def scaled(x: torch.Tensor, s: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = torch.tanh(x[tile] * s) + s
    return out


@case(lambda x, y, n: x**2 + y**3 + y**-1.5 + y**n + 2.0**x, (8,), positive(8), 2)
def powers(x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] ** 2 + y[tile] ** 3 + y[tile] ** -1.5 + y[tile] ** n + 2.0 ** x[tile]
    return out


@case(lambda x, y: y**x, (8,), positive(8))
def power_of_tensors(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = y[tile] ** x[tile]
    return out


@case(lambda x: torch.where(x > 0.2, x * x, -x).clamp(-0.5, 0.9), (13,))
def chosen(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        value = x[tile]
        out[tile] = torch.clamp(torch.where(value > 0.2, value * value, -value), -0.5, 0.9)
    return out


@case(lambda x, y: torch.maximum(x, y) * torch.minimum(x, 2 * y), (7,), (7,))
def extremes_of_two(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = torch.maximum(x[tile], y[tile]) * torch.minimum(x[tile], 2 * y[tile])
    return out


@case(lambda x: F.gelu(x) + F.silu(x) + F.softplus(x) + F.elu(x) + F.mish(x) + F.logsigmoid(x), (4, 6))
def activations(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        v = x[tile]
        out[tile] = F.gelu(v) + F.silu(v) + F.softplus(v) + F.elu(v) + F.mish(v) + F.logsigmoid(v)
    return out


@case(lambda x, b: x * b + torch.sigmoid(b), (6, 10), (10,))
def broadcast_row(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile(x.size()):
        out[tile_m, tile_n] = x[tile_m, tile_n] * b[tile_n] + torch.sigmoid(b[tile_n])
    return out


@case(lambda x, c: x - c[:, None] * x * x, (6, 10), (6,))
def broadcast_column(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile(x.size()):
        out[tile_m, tile_n] = x[tile_m, tile_n] - c[tile_m][:, None] * x[tile_m, tile_n] * x[tile_m, tile_n]
    return out


@case(lambda a, b: torch.exp(0.3 * a)[:, None] * b[None, :], (5,), (9,))
def outer(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.empty([a.size(0), b.size(0)], dtype=a.dtype, device=a.device)
    for tile_m, tile_n in hl.tile(out.size()):
        out[tile_m, tile_n] = torch.exp(0.3 * a[tile_m])[:, None] * b[tile_n][None, :]
    return out


@case(lambda x, y: x * y, (6, 10), (1, 10))
def broadcast_ones(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile(x.size()):
        out[tile_m, tile_n] = x[tile_m, tile_n] * y[tile_m, tile_n]
    return out


@case(lambda x, y: (x + y, x * y, (x - y).sum(1)), (5, 6), (5, 6))
def three_results(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    first = torch.empty_like(x)
    second = torch.empty_like(x)
    third = x.new_empty(x.size(0))
    for tile in hl.tile(x.size(0)):
        first[tile, :] = x[tile, :] + y[tile, :]
        second[tile, :] = x[tile, :] * y[tile, :]
        third[tile] = (x[tile, :] - y[tile, :]).sum(1)
    return first, second, third


@case(lambda x: x * x[:, :1] + x.sum(1, keepdim=True) * x, (4, 8))
def used_often(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        first = x[tile, 0]
        out[tile, :] = x[tile, :] * first[:, None] + x[tile, :].sum(1)[:, None] * x[tile, :]
    return out


@case(lambda x: (x.float() * 2).to(x.dtype) + x.to(torch.float64).to(x.dtype), (12,), single=True)
def casts(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = (x[tile].to(torch.float32) * 2).to(x.dtype) + x[tile].to(torch.float64).to(x.dtype)
    return out


# --- reductions ----------------------------------------------------------------------------------------------------------


@case(lambda x: x.sum(-1), (7, 9))
def row_sums(x: torch.Tensor) -> torch.Tensor:
    out = x.new_empty(x.size(0))
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile, :].sum(-1)
    return out


@case(lambda x: (x * x).mean(-1) + x.std(-1) + x.var(-1, unbiased=False), (6, 8))
def row_moments(x: torch.Tensor) -> torch.Tensor:
    out = x.new_empty(x.size(0))
    for tile in hl.tile(x.size(0)):
        row = x[tile, :]
        out[tile] = (row * row).mean(-1) + row.std(-1) + row.var(-1, unbiased=False)
    return out


@case(lambda x: x.amax(-1) * 2 - x.amin(-1) + x.max(-1)[0], (6, 8))
def row_extremes(x: torch.Tensor) -> torch.Tensor:
    out = x.new_empty(x.size(0))
    for tile in hl.tile(x.size(0)):
        row = x[tile, :]
        out[tile] = row.amax(-1) * 2 - row.amin(-1) + torch.max(row, -1)[0]
    return out


@case(lambda x: x.prod(-1), (5, 6))
def row_products(x: torch.Tensor) -> torch.Tensor:
    out = x.new_empty(x.size(0))
    for tile in hl.tile(x.size(0)):
        out[tile] = torch.prod(x[tile, :], -1)
    return out


@case(lambda x: torch.linalg.vector_norm(x, dim=1) + x.abs().sum(1), (5, 6))
def row_norms(x: torch.Tensor) -> torch.Tensor:
    out = x.new_empty(x.size(0))
    for tile in hl.tile(x.size(0)):
        out[tile] = torch.linalg.vector_norm(x[tile, :], dim=1) + x[tile, :].abs().sum(1)
    return out


@case(
    lambda x: x * x.detach() / (torch.exp(x).sum(1, keepdim=True).detach() + x.amax(1, keepdim=True)),
    (5, 9),
    detaches=True,
)
def detached(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :]
        total = torch.exp(row).sum(1, keepdim=True)
        out[tile, :] = row * row.detach() / (total.detach() + torch.amax(row, 1, keepdim=True))
    return out


@case(lambda x: torch.softmax(x, 1), (5, 9))
def softmax(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.softmax(x[tile, :], 1)
    return out


@case(lambda x: torch.softmax(x, 1), (5, 9))
def softmax_by_hand(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :]
        powers = torch.exp(row - torch.amax(row, dim=1, keepdim=True))
        out[tile, :] = powers / torch.sum(powers, dim=1, keepdim=True)
    return out


@case(lambda x: F.log_softmax(x, 1) + torch.logsumexp(x, 1, keepdim=True), (5, 9))
def log_softmax(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = F.log_softmax(x[tile, :], 1) + torch.logsumexp(x[tile, :], 1, keepdim=True)
    return out


@case(lambda x, w, eps: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * w, (6, 10), (10,), 1e-2)
def rms_norm(x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :]
        scale = torch.rsqrt(torch.mean(row * row, dim=-1) + eps)
        out[tile, :] = row * scale[:, None] * w[:]
    return out


@case(lambda x, w, b, eps: F.layer_norm(x, [x.size(1)], w, b, eps), (6, 10), (10,), (10,), 1e-2)
def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, eps: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :]
        mean = row.mean(-1, keepdim=True)
        centred = row - mean
        variance = (centred * centred).mean(-1, keepdim=True)
        out[tile, :] = centred * torch.rsqrt(variance + eps) * w[:][None, :] + b[:]
    return out


@case(lambda x, w, b: (F.layer_norm(x, [x.size(1)], w, b, 1e-2), x.mean(1)), (6, 10), (10,), (10,))
def layer_norm_and_mean(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.empty_like(x)
    means = x.new_empty(x.size(0))
    for tile in hl.tile(x.size(0)):
        row = x[tile, :]
        out[tile, :] = F.layer_norm(row, [x.size(1)], w[:], b[:], 1e-2)
        means[tile] = row.mean(-1)
    return out, means


@case(lambda x: x.cumsum(1) * x, (4, 8))
def running_sums(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.cumsum(x[tile, :], 1) * x[tile, :]
    return out


@case(lambda x: x.sum(), (40,))
def total(x: torch.Tensor) -> torch.Tensor:
    out = x.new_zeros([])
    for tile in hl.tile(x.size(0)):
        hl.atomic_add(out, [], x[tile].sum())
    return out


# --- loops ---------------------------------------------------------------------------------------------------------------


@case(lambda x: (x * x).sum(1), (5, 40))
def sums_by_tiles(x: torch.Tensor) -> torch.Tensor:
    out = x.new_empty(x.size(0))
    for tile_m in hl.tile(x.size(0)):
        acc = hl.zeros([tile_m], dtype=x.dtype)
        for tile_n in hl.tile(x.size(1)):
            acc += (x[tile_m, tile_n] * x[tile_m, tile_n]).sum(1)
        out[tile_m] = acc
    return out


@case(lambda x, w: F.layer_norm(x, [x.size(1)], w, None, 1e-2), (5, 24), (24,))
def layer_norm_by_tiles(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty_like(x)
    for tile_m in hl.tile(m):
        total = hl.zeros([tile_m], dtype=x.dtype)
        for tile_n in hl.tile(n):
            total += x[tile_m, tile_n].sum(1)
        mean = total / n
        squares = hl.zeros([tile_m], dtype=x.dtype)
        for tile_n in hl.tile(n):
            centred = x[tile_m, tile_n] - mean[:, None]
            squares += (centred * centred).sum(1)
        scale = torch.rsqrt(squares / n + 1e-2)
        for tile_n in hl.tile(n):
            out[tile_m, tile_n] = (x[tile_m, tile_n] - mean[:, None]) * scale[:, None] * w[tile_n]
    return out


@case(lambda x: torch.softmax(x, 1), (5, 40))
def softmax_online(x: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty_like(x)
    for tile_m in hl.tile(m):
        high = hl.full([tile_m], float("-inf"), dtype=x.dtype)
        total = hl.zeros([tile_m], dtype=x.dtype)
        for tile_n in hl.tile(n, block_size=16):
            values = x[tile_m, tile_n]
            higher = torch.maximum(high, torch.amax(values, 1))
            total = total * torch.exp(high - higher) + torch.exp(values - higher[:, None]).sum(1)
            high = higher
        for tile_n in hl.tile(n):
            out[tile_m, tile_n] = torch.exp(x[tile_m, tile_n] - high[:, None]) / total[:, None]
    return out


@case(lambda x: (x * x).amax(1), (5, 40))
def maxima_by_tiles(x: torch.Tensor) -> torch.Tensor:
    out = x.new_empty(x.size(0))
    for tile_m in hl.tile(x.size(0)):
        high = hl.full([tile_m], float("-inf"), dtype=x.dtype)
        for tile_n in hl.tile(x.size(1), block_size=16):
            high = torch.maximum(high, torch.amax(x[tile_m, tile_n] * x[tile_m, tile_n], 1))
        out[tile_m] = high
    return out


def _recurrence(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    states = []
    for at in range(x.size(1)):
        state = torch.tanh(state * 0.5 + x[:, at])
        states.append(state)
    return torch.stack(states, 1)


@case(_recurrence, (5, 7), (5,))
def recurrence(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        value = state[tile]
        for step in hl.grid(x.size(1)):
            value = torch.tanh(value * 0.5 + x[tile, step])
            out[tile, step] = value
    return out


@case(lambda q, k, v: torch.softmax(q @ k.transpose(1, 2) * 0.25, -1) @ v, (2, 18, 16), (2, 40, 16), (2, 40, 16))
def attention_by_tiles(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    batch, m, width = q.size()
    out = torch.empty_like(q)
    for tile_b, tile_m in hl.tile([batch, m], block_size=[1, None]):
        high = hl.full([tile_b, tile_m], float("-inf"), dtype=q.dtype)
        total = hl.zeros([tile_b, tile_m], dtype=q.dtype)
        acc = hl.zeros([tile_b, tile_m, width], dtype=q.dtype)
        queries = q[tile_b, tile_m, :]
        for tile_n in hl.tile(k.size(1), block_size=16):
            scores = torch.bmm(queries, k[tile_b, tile_n, :].transpose(1, 2)) * 0.25
            higher = torch.maximum(high, torch.amax(scores, -1))
            weights = torch.exp(scores - higher[:, :, None])
            scale = torch.exp(high - higher)
            total = total * scale + weights.sum(-1)
            acc = acc * scale[:, :, None] + torch.bmm(weights, v[tile_b, tile_n, :])
            high = higher
        out[tile_b, tile_m, :] = acc / total[:, :, None]
    return out


@case(lambda x: x * torch.arange(1.0, 6.0, dtype=x.dtype, device=x.device)[:, None], (5, 8))
def grid_of_rows(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for row in hl.grid(x.size(0)):
        out[row, :] = x[row, :] * (row + 1.0)
    return out


@case(lambda x: torch.cat([x[:2] * 2, x[2:] * x[2:]]), (5, 8))
def branch(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for row in hl.grid(x.size(0)):
        value = x[row, :]
        if row < 2:
            value = value * 2
        else:
            value = value * value
        out[row, :] = value
    return out


# --- products ------------------------------------------------------------------------------------------------------------


@case(lambda x, y: x @ y, (20, 24), (24, 18))
def matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=x.dtype)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = acc
    return out


@case(lambda x, y, b: F.gelu(x @ y + b), (20, 24), (24, 18), (18,))
def matmul_bias_gelu(x: torch.Tensor, y: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=x.dtype)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = F.gelu(acc + b[tile_n])
    return out


@case(lambda a, b: torch.bmm(a, b), (3, 17, 16), (3, 16, 18))
def batched_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    batch, m, k = a.size()
    n = b.size(2)
    out = torch.empty([batch, m, n], dtype=a.dtype, device=a.device)
    for tile_b, tile_m, tile_n in hl.tile([batch, m, n]):
        acc = hl.zeros([tile_b, tile_m, tile_n], dtype=a.dtype)
        for tile_k in hl.tile(k):
            acc = torch.baddbmm(acc, a[tile_b, tile_m, tile_k], b[tile_b, tile_k, tile_n])
        out[tile_b, tile_m, tile_n] = acc
    return out


@case(lambda x, w: torch.softmax(x @ w, 1), (10, 16), (16, 20))
def matmul_softmax(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), w.size(1)], dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.softmax(x[tile, :] @ w[:, :], 1)
    return out


@case(lambda q, k, v: torch.softmax(q @ k.transpose(1, 2) / 4.0, -1) @ v, (2, 18, 16), (2, 18, 16), (2, 18, 16))
def attention_of_whole_rows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(q)
    for head in hl.grid(q.size(0)):
        for tile in hl.tile(q.size(1)):
            scores = hl.dot(q[head, tile, :], k[head, :, :].transpose(0, 1)) / 4.0
            out[head, tile, :] = hl.dot(torch.softmax(scores, -1).to(v.dtype), v[head, :, :]).to(out.dtype)
    return out


# --- views, gathers and parts --------------------------------------------------------------------------------------------


@case(lambda x: torch.cat([x[:, :8] * 2, x[:, 8:] * x[:, :8]], 1), (5, 16))
def halves(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        left, right = x[tile, :8], x[tile, 8:]
        out[tile, :8] = left * 2
        out[tile, 8:] = right * left
    return out


@case(lambda x: x.reshape(-1, 4, 4).transpose(1, 2).sum(2).sin(), (5, 16))
def reshaped(x: torch.Tensor) -> torch.Tensor:
    out = x.new_empty([x.size(0), 4])
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.sin(x[tile, :].reshape([tile, 4, 4]).permute(0, 2, 1).sum(2))
    return out


@case(lambda x, y: torch.stack([x, y * x], -1).flatten(1), (5, 8), (5, 8))
def joined(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = x.new_empty([x.size(0), 16])
    for tile in hl.tile(x.size(0)):
        out[tile, :] = hl.join(x[tile, :], y[tile, :] * x[tile, :]).reshape([tile, 16])
    return out


@case(lambda x: x[:, ::2] * x[:, 1::2], (5, 16))
def split(x: torch.Tensor) -> torch.Tensor:
    out = x.new_empty([x.size(0), 8])
    for tile in hl.tile(x.size(0)):
        even, odd = hl.split(x[tile, :].reshape([tile, 8, 2]))
        out[tile, :] = even * odd
    return out


@case(lambda x, y: torch.cat([x, 2 * y], 1), (5, 8), (5, 8))
def concatenated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = x.new_empty([x.size(0), 16])
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.cat([x[tile, :], 2 * y[tile, :]], 1)
    return out


@case(lambda w, i: w[i] * 2, (7, 6), integers(7, 11))
def embedding(w: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    out = w.new_empty([i.size(0), w.size(1)])
    for tile in hl.tile(i.size(0)):
        out[tile, :] = w[i[tile], :] * 2
    return out


@case(lambda x, i: torch.gather(x, 1, i).sin(), (5, 8), integers(8, 5, 8))
def gathered(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.gather(x[tile, :], 1, i[tile, :]).sin()
    return out


@case(lambda x, i: F.cross_entropy(x, i, reduction="none"), (6, 9), integers(9, 6))
def cross_entropy(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    out = x.new_empty(x.size(0))
    flat = x.view(-1)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :]
        high = torch.amax(row, 1)
        total = torch.log(torch.exp(row - high[:, None]).sum(1)) + high
        out[tile] = total - flat[tile.index * x.size(1) + i[tile]]
    return out


@case(lambda x: F.pad(x[1:], (0, 1)) - x, (17,))
def shifted(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    n = x.size(0)
    for tile in hl.tile(n):
        after = hl.load(x, [tile.index + 1], extra_mask=tile.index + 1 < n)
        out[tile] = after - x[tile]
    return out


@case(lambda x, w: x * F.pad(w[1:], (0, 1)), (40, 33), (33,))
def shifted_for_all_rows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Lanes that the mask leaves out are past the end of what all tiles of rows add to."""
    out = torch.empty_like(x)
    (m, n) = x.size()
    for tile_m, tile_n in hl.tile([m, n]):
        after = hl.load(w, [tile_n.index + 1], extra_mask=tile_n.index + 1 < n)
        out[tile_m, tile_n] = x[tile_m, tile_n] * after[None, :]
    return out


@case(lambda x: x * 2.0 + F.pad(x[1:], (0, 0, 0, 1)) ** 2, (6, 10))
def row_after(x: torch.Tensor) -> torch.Tensor:
    """The row after the last one is past the end, and so are all of its lanes."""
    out = torch.empty_like(x)
    m, n = x.size()
    for i in hl.grid(m):
        for tile in hl.tile(n):
            after = hl.load(x, [i + 1, tile], extra_mask=(tile.index >= 0) & (i + 1 < m))
            out[i, tile] = x[i, tile] * 2.0 + after * after
    return out


@case(lambda x, w: F.pad(x * w, (0, 3)), (5, 9), (9,))
def longer_than_read(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The tiles have more columns than the tensors that masks keep them inside of."""
    m, n = x.size()
    out = torch.empty([m, n + 3], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n + 3]):
        value = hl.load(x, [tile_m, tile_n], extra_mask=(tile_n.index < n)[None, :])
        out[tile_m, tile_n] = value * hl.load(w, [tile_n], extra_mask=tile_n.index < n)[None, :]
    return out


@case(lambda x: x * 2.0 + x[:, 1:2] * x[:, 1:2].exp(), (5, 5))
def element_and_column(x: torch.Tensor) -> torch.Tensor:
    """An element of each row is loaded as a number of the row, and as a column."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = x[tile, :] * 2.0 + x[tile, 1][:, None] * torch.exp(x[tile, 1:2])
    return out


@case(lambda x, first: x[3:9] * 2.0, (9,), torch.tensor([3]))
def masked_part(x: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """A loaded number moves the block, so that lanes that the mask leaves out are past the end."""
    out = torch.empty([6], dtype=x.dtype, device=x.device)
    for tile in hl.tile(6):
        row = first[0] + tile.index
        out[tile] = hl.load(x, [row], extra_mask=row < 9) * 2.0
    return out


# --- host code -----------------------------------------------------------------------------------------------------------


@case(lambda x: (x * x).view(3, 4, 5), (3, 4, 5))
def flat_views(x: torch.Tensor) -> torch.Tensor:
    flat = x.view(-1)
    out = torch.empty_like(flat)
    for tile in hl.tile(flat.size(0)):
        out[tile] = flat[tile] * flat[tile]
    return out.view(x.size())


@case(lambda x, w: ((x.T * w.to(x.dtype)).sum(1)).mean() * 3, (5, 6), (5,))
def host_arithmetic(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    turned = x.T
    weights = w.to(x.dtype) * 3
    out = turned.new_empty(turned.size(0))
    for tile in hl.tile(turned.size(0)):
        out[tile] = (turned[tile, :] * weights[None, :]).sum(1)
    return out.mean()


@case(lambda x: (x * 2).relu() + x, (12,))
def two_launches(x: torch.Tensor) -> torch.Tensor:
    middle = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        middle[tile] = x[tile] * 2
    shifted = middle.relu()
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = shifted[tile] + x[tile]
    return out


@case(lambda x, y: x + y * y, (4, 6), (4, 6))
def added_in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = x.clone()
    for tile in hl.tile(out.size()):
        out[tile] += y[tile] * y[tile]
    return out


@case(lambda x: math.sqrt(2.0) * torch.stack([x.sum(0), (x * x).sum(0)]), (6, 5))
def columns(x: torch.Tensor) -> torch.Tensor:
    out = x.new_empty([2, x.size(1)])
    root = math.sqrt(2.0)
    for tile in hl.tile(x.size(1)):
        out[0, tile] = x[:, tile].sum(0) * root
        out[1, tile] = (x[:, tile] * x[:, tile]).sum(0) * root
    return out


@case(
    lambda x, y: (x.diagonal() ** 2, torch.stack([y[i, i // 4 * 4 : i // 4 * 4 + 4].sum() for i in range(len(y))])),
    (7, 7),
    (10, 10),
)
def diagonals(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    elements, blocks = x.new_empty([x.size(0)]), y.new_empty([y.size(0)])
    for i in hl.grid(x.size(0)):
        elements[i] = x[i, i] * x[i, i]
    for rows in hl.tile(y.size(0), block_size=4):
        total = hl.zeros([rows], dtype=y.dtype)
        for inside in hl.tile(rows.begin, rows.end):
            total += y[rows, inside].sum(1)
        blocks[rows] = total
    return elements, blocks


def _by_totals(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    parts = [x[a:b] * (x[a:b] ** 2).sum() for a, b in itertools.pairwise(offsets)]
    return torch.cat([x[: offsets[0]] * 0, *parts, x[offsets[-1] :] * 0])


@case(_by_totals, (9,), lambda dtype: torch.tensor([1, 3, 3, 8]))
def jagged_rows(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for rows in hl.tile(offsets.size(0) - 1):
        start = offsets[rows]
        lengths = offsets[rows.index + 1] - start
        total = hl.zeros([rows], dtype=x.dtype)
        for tile in hl.jagged_tile(lengths):
            values = x[start[:, None] + tile.index[None, :]]
            total += (values * values).sum(1)
        for tile in hl.jagged_tile(lengths):
            places = start[:, None] + tile.index[None, :]
            out[places] = x[places] * total[:, None]
    return out


def _by_group(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    parts = [x[a:b] @ w[g] for g, (a, b) in enumerate(itertools.pairwise(offsets))]
    return torch.cat([x[: offsets[0]] @ w[0] * 0, *parts, x[offsets[-1] :] @ w[0] * 0])


@case(_by_group, (9, 5), (3, 5, 6), lambda dtype: torch.tensor([1, 3, 3, 8]), single=True)
def grouped_rows(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Rows of the output are those of the loop, which begins at the first one of its group."""
    groups, k, n = w.size()
    out = torch.zeros([x.size(0), n], dtype=x.dtype, device=x.device)
    for tile_g, tile_n in hl.tile([groups, n], block_size=[1, None]):
        g = tile_g.begin
        for tile_m in hl.tile(offsets[g], offsets[g + 1]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc += torch.matmul(x[tile_m, tile_k], w[g, tile_k, tile_n]).to(torch.float32)
            out[tile_m, tile_n] = acc.to(x.dtype)
    return out


def _iterated(x: torch.Tensor, w: torch.Tensor, n: int) -> torch.Tensor:
    held, total = w, torch.zeros_like(w)
    for _ in range(n):
        total = total + (x * held[:, None]).sum(1)
        held = torch.sin(held) + w
    return torch.cat([(total * held)[:, None], held.sin()[:, None].expand(-1, 2)], 1)


@case(_iterated, (4, 3), (4,), 3)
def iterated(x: torch.Tensor, w: torch.Tensor, n: int) -> torch.Tensor:
    out = x.new_empty([x.size(0), 3])
    products, sines = out[:, 0], out[:, 1:]
    last = x.new_empty([x.size(0)])
    for tile in hl.tile(x.size(0)):
        held = w[tile]
        total = hl.zeros([tile], dtype=x.dtype)
        for _ in range(n):
            for j in range(x.size(1)):
                total = total + x[tile, j] * held
            held = torch.sin(held) + w[tile]
        products[tile] = total * held
        last[tile] = held
    hl.barrier()
    for tile in hl.tile(x.size(0)):
        sines[tile, :] = torch.sin(last[tile])[:, None].expand([tile, 2])
    return out


# --- loops that carry something, inside of others --------------------------------------------------------------------------


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """Attention, with several heads of queries for one of keys."""
    k, v = (x.repeat_interleave(q.size(1) // x.size(1), 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * 0.25
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    return torch.softmax(scores, -1) @ v


@case(lambda q, k, v: attended(q, k, v, False), (2, 2, 19, 16), (2, 2, 37, 16), (2, 2, 37, 16))
def attention_over_a_grid(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    batch, heads, m, width = q.size()
    out = torch.empty_like(q)
    for b, h in hl.grid([batch, heads]):
        for tile_m in hl.tile(m, block_size=16):
            high = hl.full([tile_m], float("-inf"), dtype=q.dtype)
            total = hl.zeros([tile_m], dtype=q.dtype)
            acc = hl.zeros([tile_m, width], dtype=q.dtype)
            queries = q[b, h, tile_m, :]
            for tile_n in hl.tile(k.size(2), block_size=16):
                scores = hl.dot(queries, k[b, h, tile_n, :].T, out_dtype=q.dtype) * 0.25
                higher = torch.maximum(high, torch.amax(scores, -1))
                weights = torch.exp(scores - higher[:, None])
                scale = torch.exp(high - higher)
                total = total * scale + weights.sum(-1)
                acc = hl.dot(weights, v[b, h, tile_n, :], acc=acc * scale[:, None])
                high = higher
            out[b, h, tile_m, :] = acc / total[:, None]
    return out


@case(lambda q, k, v: attended(q, k, v, True), (2, 4, 37, 16), (2, 2, 37, 16), (2, 2, 37, 16))
def causal_attention_of_groups(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    batch, heads, m, width = q.size()
    group = heads // k.size(1)
    out = torch.empty_like(q)
    for tile_b, tile_h, tile_m in hl.tile([batch, heads, m], block_size=[1, 1, 16]):
        b, h = tile_b.begin, tile_h.begin
        high = hl.full([tile_m], float("-inf"), dtype=q.dtype)
        total = hl.zeros([tile_m], dtype=q.dtype)
        acc = hl.zeros([tile_m, width], dtype=q.dtype)
        for tile_n in hl.tile(0, tile_m.end, block_size=16):
            scores = hl.dot(q[b, h, tile_m, :], k[b, h // group, tile_n, :].T, out_dtype=q.dtype) * 0.25
            scores = torch.where(tile_m.index[:, None] >= tile_n.index[None, :], scores, float("-inf"))
            higher = torch.maximum(high, torch.amax(scores, -1))
            weights = torch.exp(scores - higher[:, None])
            scale = torch.exp(high - higher)
            total = total * scale + weights.sum(-1)
            acc = hl.dot(weights, v[b, h // group, tile_n, :], acc=acc * scale[:, None])
            high = higher
        out[b, h, tile_m, :] = acc / total[:, None]
    return out


def recurrent(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    state, found = torch.zeros_like(x[:, :, 0]), []
    for step in range(x.size(2)):
        state = torch.where(step < lengths[:, None], torch.sin(state * 0.7 + x[:, :, step]), state)
        found.append(state)
    return state


@case(recurrent, (3, 5, 7), lambda dtype: torch.tensor([7, 0, 4]))
def recurrence_of_given_length(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    out = x.new_empty([x.size(0), x.size(1)])
    for row in hl.grid(x.size(0)):
        for tile in hl.tile(x.size(1), block_size=4):
            state = hl.zeros([tile], dtype=x.dtype)
            for step in hl.grid(lengths[row]):
                state = torch.sin(state * 0.7 + x[row, tile, step])
            out[row, tile] = state
    return out


def nested(x: torch.Tensor) -> torch.Tensor:
    state = torch.ones_like(x[:, 0, 0])
    for outer in range(x.size(1)):
        inner = torch.zeros_like(state)
        for step in range(1, x.size(2)):
            inner = torch.tanh(inner * x[:, outer, step] + state)
        state = torch.cos(state * inner) + x[:, outer, 0]
    return state


@case(nested, (6, 3, 5))
def recurrence_in_a_recurrence(x: torch.Tensor) -> torch.Tensor:
    out = x.new_empty([x.size(0)])
    for tile in hl.tile(x.size(0), block_size=4):
        state = hl.full([tile], 1.0, dtype=x.dtype)
        for outer in hl.grid(x.size(1)):
            inner = hl.zeros([tile], dtype=x.dtype)
            for step in hl.grid(1, x.size(2)):
                inner = torch.tanh(inner * x[tile, outer, step] + state)
            state = torch.cos(state * inner) + x[tile, outer, 0]
        out[tile] = state
    return out


@case(lambda x: torch.cat([x[:2].cumprod(1)[:, -1] + 1, x[2:].sum(1)]), (5, 8))
def recurrence_in_a_branch(x: torch.Tensor) -> torch.Tensor:
    out = x.new_empty([x.size(0)])
    for row in hl.grid(x.size(0)):
        value = x[row, 0] * 1.0
        if row < 2:
            for step in hl.grid(1, x.size(1)):
                value = value * x[row, step]
            value = value + 1
        else:
            value = x[row, :].sum(0)
        out[row] = value
    return out
