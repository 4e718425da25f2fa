"""Which of these kernels run on what, beside the same computation in PyTorch and the fastest call of a library."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

import helion

from . import attention, products, rows

BF16, FP16, FP32, E4M3 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
Arguments = tuple[Any, ...]


@dataclass
class Maker:
    """Makes the tensors of a cell, one after another: random ones, each from a stream of its own, or none on ``meta``."""

    device: str
    seed: int = 0
    made: int = 0

    def stream(self) -> torch.Generator:
        self.made += 1
        return torch.Generator(self.device).manual_seed(1000 * self.seed + self.made)

    def normal(self, *shape: int, dtype: torch.dtype, mean: float = 0.25, scale: float = 1.0) -> torch.Tensor:
        if self.device == "meta":
            return torch.empty(shape, dtype=dtype, device="meta")
        values = torch.randn(shape, generator=self.stream(), device=self.device) + mean
        return (values * scale).to(dtype)

    def integers(self, *shape: int, low: int = 0, high: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        if self.device == "meta":
            return torch.empty(shape, dtype=dtype, device="meta")
        return torch.randint(low, high, shape, generator=self.stream(), device=self.device, dtype=dtype)


@dataclass(frozen=True, kw_only=True)
class Unseen:
    """One kernel: ``arguments`` of a maker, a dtype and numbers; ``shapes`` are what is timed, ``small`` what the
    interpreter takes. ``library`` is the fastest call at hand where the reference is not that."""

    kernel: helion.Kernel
    reference: Callable[..., Any]
    arguments: Callable[..., Arguments]
    shapes: Sequence[tuple[torch.dtype, tuple[int, ...]]]
    small: Sequence[tuple[torch.dtype, tuple[int, ...]]]
    library: Callable[..., Any] | None = None


def wide(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.promote_types(x.dtype, FP32)) if x.is_floating_point() and x.dtype.itemsize > 1 else x.to(FP32)


# --- attention ----------------------------------------------------------------------------------------------------------


def _heads(make: Maker, dtype: torch.dtype, b: int, h: int, m: int, n: int, d: int) -> Arguments:
    return make.normal(b, h, m, d, dtype=dtype), *(make.normal(b, h, n, d, dtype=dtype, mean=0.5) for _ in range(2))


def _grouped(make: Maker, dtype: torch.dtype, b: int, h: int, g: int, m: int, d: int) -> Arguments:
    return make.normal(b, h, m, d, dtype=dtype), *(make.normal(b, g, m, d, dtype=dtype, mean=0.5) for _ in range(2))


def _softmax_of(scores: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(wide(scores), -1).to(v.dtype) @ v


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def _repeated(k: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return k.repeat_interleave(q.size(1) // k.size(1), 1)


def _below(m: int, n: int, device: Any) -> torch.Tensor:
    return torch.arange(m, device=device)[:, None] >= torch.arange(n, device=device)


def _causal_gqa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scores = wide(q @ _repeated(k, q).mT) / math.sqrt(q.size(-1))
    scores = scores.masked_fill(~_below(q.size(2), q.size(2), q.device), float("-inf"))
    return torch.softmax(scores, -1).to(q.dtype) @ _repeated(v, q), torch.logsumexp(scores, -1)


def _library_gqa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    found = torch.ops.aten._scaled_dot_product_flash_attention(q, _repeated(k, q), _repeated(v, q), is_causal=True)
    return found[0], found[1]


def _window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> torch.Tensor:
    scores = 30 * torch.tanh(wide(q @ k.mT) / math.sqrt(q.size(-1)) / 30)
    at = torch.arange(q.size(1), device=q.device)
    apart = at[:, None] - at
    return _softmax_of(scores.masked_fill((apart < 0) | (apart >= window), float("-inf")), v)


def _windowed(make: Maker, dtype: torch.dtype, b: int, m: int, d: int, window: int) -> Arguments:
    return *(make.normal(b, m, d, dtype=dtype) for _ in range(3)), window


def _sequences(make: Maker, dtype: torch.dtype, count: int, longest: int, h: int, d: int) -> Arguments:
    """From ``longest`` keys down to a quarter of them."""
    lengths = [longest - (longest * 3 // 4) * at // max(1, count - 1) for at in range(count)]
    starts = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    total = int(starts[-1])
    tensors = (make.normal(total, h, d, dtype=dtype) for _ in range(3))
    return *tensors, starts.to(make.device), longest


def _varlen(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, starts: torch.Tensor, longest: int) -> torch.Tensor:
    at = torch.arange(q.size(0), device=q.device)
    own = (at[:, None] >= starts[None, 1:]).sum(1)
    scores = wide(torch.einsum("mhd,nhd->hmn", q, k)) / math.sqrt(q.size(-1))
    scores = scores.masked_fill(own[:, None] != own, float("-inf"))
    return torch.einsum("hmn,nhd->mhd", torch.softmax(scores, -1).to(v.dtype), v)


def _cache(make: Maker, dtype: torch.dtype, b: int, h: int, g: int, n: int, d: int) -> Arguments:
    return make.normal(b, h, d, dtype=dtype), *(make.normal(b, g, n, d, dtype=dtype) for _ in range(2))


def _decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    b, h, d = q.shape
    grouped = q.view(b, k.size(1), -1, d)
    return _softmax_of(grouped @ k.mT / math.sqrt(d), v).view(b, h, d)


def _library_decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q[:, :, None], k, v, enable_gqa=True)[:, :, 0]


def _pages(make: Maker, dtype: torch.dtype, b: int, h: int, g: int, n: int, d: int) -> Arguments:
    """Pages of 16 keys in no order; sequences of n keys, one less for each."""
    count = -(-n // 16)
    cached = (make.normal(b * count, 16, g, d, dtype=dtype) for _ in range(2))
    order = torch.randperm(b * count, generator=torch.Generator().manual_seed(1)).view(b, count)
    lengths = torch.tensor([n - i for i in range(b)], dtype=torch.int32)
    return make.normal(b, h, d, dtype=dtype), *cached, order.to(make.device), lengths.to(make.device)


def _paged(
    q: torch.Tensor, pages_k: torch.Tensor, pages_v: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    k, v = (pages[table].flatten(1, 2).transpose(1, 2) for pages in (pages_k, pages_v))
    b, h, d = q.shape
    scores = wide(q.view(b, k.size(1), -1, d) @ k.mT) / math.sqrt(d)
    beyond = torch.arange(k.size(2), device=q.device) >= lengths[:, None]
    return _softmax_of(scores.masked_fill(beyond[:, None, None, :], float("-inf")), v).view(b, h, d)


def _latents(make: Maker, dtype: torch.dtype, b: int, h: int, n: int, width: int, rest: int) -> Arguments:
    return make.normal(b, h, width + rest, dtype=dtype), make.normal(b, n, width + rest, dtype=dtype), width


def _latent(q: torch.Tensor, latent: torch.Tensor, width: int) -> torch.Tensor:
    return _softmax_of(q @ latent.mT / math.sqrt(q.size(-1)), latent[:, :, :width])


def _library_latent(q: torch.Tensor, latent: torch.Tensor, width: int) -> torch.Tensor:
    cached = latent[:, None]
    return F.scaled_dot_product_attention(q[:, None], cached, cached[..., :width])[:, 0]


def _gradients(causal: bool) -> Callable[..., Arguments]:
    def made(make: Maker, dtype: torch.dtype, b: int, m: int, d: int) -> Arguments:
        q, k, v, grad = (make.normal(b, m, d, dtype=dtype, mean=mean) for mean in (0.25, 0.0, 0.5, 0.1))
        if make.device == "meta":
            sums = make.normal(b, m, dtype=FP32)
            return q, k, v, grad, sums, sums
        parts = [_forward_sums(*each, causal) for each in zip(q, k, v, grad, strict=True)]
        lse, delta = (torch.stack(each).float() for each in zip(*parts, strict=True))
        return q, k, v, grad, lse, delta

    return made


def _forward_sums(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-sums of the scores of one head, and the sums of output by gradient."""
    scores = wide(q) @ wide(k).mT / math.sqrt(q.size(-1))
    if causal:
        scores = scores.masked_fill(~_below(q.size(0), k.size(0), q.device), float("-inf"))
    out = torch.softmax(scores, -1) @ wide(v)
    return torch.logsumexp(scores, -1), (out * wide(grad)).sum(-1)


def _backward(causal: bool) -> Callable[..., Any]:
    def run(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor, lse: torch.Tensor, delta: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        scale = 1 / math.sqrt(q.size(-1))
        p = torch.exp(wide(q @ k.mT) * scale - lse[:, :, None])
        if causal:
            p = p.masked_fill(~_below(q.size(1), k.size(1), q.device), 0.0)
        ds = (p * (wide(grad @ v.mT) - delta[:, :, None]) * scale).to(q.dtype)
        first = ds @ k
        return first if causal else wide(first), ds.mT @ q, p.to(q.dtype).mT @ grad

    return run


def _library_backward(causal: bool) -> Callable[..., Any]:
    def run(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor, lse: torch.Tensor, delta: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Forward and backward: the library keeps more than the sums between them."""
        with torch.enable_grad():
            leaves = [each[None].detach().requires_grad_() for each in (q, k, v)]
            queries, keys, values = leaves
            out = F.scaled_dot_product_attention(queries, keys, values, is_causal=causal)
            found = torch.autograd.grad(out, leaves, grad[None])
        first = found[0][0]
        return first if causal else wide(first), found[1][0], found[2][0]

    return run


def _decayed(make: Maker, dtype: torch.dtype, b: int, m: int, d: int) -> Arguments:
    tensors = (make.normal(b, m, d, dtype=dtype, scale=d**-0.25) for _ in range(3))
    return *tensors, -make.normal(b, dtype=FP32).abs() / 64 if make.device != "meta" else make.normal(b, dtype=FP32)


def _linear_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    at = torch.arange(q.size(1), device=q.device)
    apart = at[:, None] - at
    weights = torch.where(apart >= 0, torch.exp(decay[:, None, None] * apart.clamp(min=0)), 0.0)
    return ((wide(q @ k.mT) * weights).to(v.dtype) @ v).to(v.dtype)


# --- products -----------------------------------------------------------------------------------------------------------


def _tokens(make: Maker, dtype: torch.dtype, t: int, n: int, k: int) -> Arguments:
    return make.normal(t, n, dtype=dtype, scale=t**-0.5), make.normal(t, k, dtype=dtype)


def _product(make: Maker, dtype: torch.dtype, m: int, k: int, n: int) -> Arguments:
    return make.normal(m, k, dtype=dtype), make.normal(k, n, dtype=dtype, scale=k**-0.5)


def _biased(make: Maker, dtype: torch.dtype, m: int, k: int, n: int) -> Arguments:
    return *_product(make, dtype, m, k, n), make.normal(n, dtype=dtype)


def _layer(make: Maker, dtype: torch.dtype, m: int, k: int, n: int) -> Arguments:
    weight = make.normal(n, k, dtype=dtype, scale=k**-0.5)
    return make.normal(m, k, dtype=dtype), weight, make.normal(n, dtype=dtype)


def _perceptron(make: Maker, dtype: torch.dtype, m: int, k: int, hidden: int, n: int) -> Arguments:
    second = make.normal(hidden, n, dtype=dtype, scale=hidden**-0.5)
    return *_product(make, dtype, m, k, hidden), second


def _pairs(make: Maker, dtype: torch.dtype, m: int, k: int, other: int, n: int) -> Arguments:
    return *_product(make, dtype, m, k, n), *_product(make, dtype, m, other, n)


def _adapted(make: Maker, dtype: torch.dtype, m: int, k: int, n: int, rank: int) -> Arguments:
    x, weight, _ = _layer(make, dtype, m, k, n)
    return x, weight, make.normal(rank, k, dtype=dtype, scale=k**-0.5), make.normal(n, rank, dtype=dtype)


def _whole_numbers(make: Maker, dtype: torch.dtype, m: int, k: int, n: int) -> Arguments:
    x, w = (make.integers(side, k, low=-9, high=10, dtype=torch.int8) for side in (m, n))
    return x, w, make.normal(m, dtype=FP32, mean=1.0), make.normal(n, dtype=FP32, scale=1 / k, mean=1.0)


def _whole_weights(make: Maker, dtype: torch.dtype, m: int, k: int, n: int) -> Arguments:
    w = make.integers(n, k, low=-9, high=10, dtype=torch.int8)
    return make.normal(m, k, dtype=dtype), w, make.normal(n, dtype=FP32, mean=1.0, scale=1 / k)


def _packed_weights(make: Maker, dtype: torch.dtype, m: int, k: int, n: int) -> Arguments:
    packed = make.integers(k // 2, n, low=-128, high=128, dtype=torch.int8)
    return make.normal(m, k, dtype=dtype), packed, make.normal(k // 128, n, dtype=dtype, scale=k**-0.5)


def _small_floats(make: Maker, dtype: torch.dtype, m: int, k: int, n: int) -> Arguments:
    x, w = (make.normal(side, k, dtype=dtype) for side in (m, n))
    return x, w, make.normal(m, dtype=FP32, mean=1.0), make.normal(n, dtype=FP32, scale=1 / k, mean=1.0)


def _blocks(make: Maker, dtype: torch.dtype, m: int, k: int, n: int) -> Arguments:
    x, w = (make.normal(side, k, dtype=dtype) for side in (m, n))
    by = -(-n // 128)
    scales = make.normal(m, k // 128, dtype=FP32, mean=1.0), make.normal(by, k // 128, dtype=FP32, mean=1.0)
    return x, w, scales[0], scales[1]


def _scaled(x: torch.Tensor, w: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor) -> torch.Tensor:
    precise = x.dtype.itemsize == 8 or not x.is_floating_point()
    both = (x.to(torch.float64 if precise else FP32), w.to(torch.float64 if precise else FP32))
    return (both[0] @ both[1].T * x_scale[:, None] * w_scale).to(BF16)


def _library_int8(x: torch.Tensor, w: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor) -> torch.Tensor:
    return (torch._int_mm(x, w.T) * x_scale[:, None] * w_scale).to(BF16)


def _library_fp8(x: torch.Tensor, w: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor) -> torch.Tensor:
    return torch._scaled_mm(x, w.T, scale_a=x_scale[:, None], scale_b=w_scale[None, :], out_dtype=BF16)


def _blockwise(x: torch.Tensor, w: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor) -> torch.Tensor:
    by_k = x_scale.repeat_interleave(128, 1)
    by_n = w_scale.repeat_interleave(128, 0)[: w.size(0)].repeat_interleave(128, 1)
    return ((wide(x) * by_k) @ (wide(w) * by_n).T).to(BF16)


def _library_blockwise(x: torch.Tensor, w: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor) -> torch.Tensor:
    turned = x_scale.T.contiguous().T
    return torch._scaled_mm(x, w.T, scale_a=turned, scale_b=w_scale.T, out_dtype=BF16)


def _weight_only(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (wide(x @ w.to(x.dtype).T) * scale).to(x.dtype)


def _grouped_int4(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    weight = torch.stack([(packed << 4) >> 4, packed >> 4], dim=1).flatten(0, 1)
    return x @ (wide(weight) * wide(scales).repeat_interleave(128, 0)).to(x.dtype)


def _images(make: Maker, dtype: torch.dtype, b: int, side: int, c: int, f: int) -> Arguments:
    x = make.normal(b, side + 2, side + 2, c, dtype=dtype)
    return x, make.normal(3, 3, c, f, dtype=dtype, scale=(9 * c) ** -0.5)


def _convolved(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    found = F.conv2d(x.permute(0, 3, 1, 2), w.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last))
    return found.permute(0, 2, 3, 1).contiguous()


def _shifted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x[:, 1:] @ y[1:]


def _points(make: Maker, dtype: torch.dtype, m: int, n: int, k: int) -> Arguments:
    return make.normal(m, k, dtype=dtype), make.normal(n, k, dtype=dtype)


def _weight_gradient(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return wide(grad.T @ x)


def _long(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.gelu(torch.addmm(bias, x, y))


def _two_layers(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ first) @ second


def _two_sums(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    return torch.addmm(a @ b, c, d)


def _adapter(x: torch.Tensor, weight: torch.Tensor, down: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.addmm(x @ weight.T, x @ down.T, up.T)


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.linear(x, weight, bias)


def _tuned(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return wide(x @ y)


# --- rows ---------------------------------------------------------------------------------------------------------------


def _one(make: Maker, dtype: torch.dtype, *shape: int) -> Arguments:
    return (make.normal(*shape, dtype=dtype),)


def _two(make: Maker, dtype: torch.dtype, *shape: int) -> Arguments:
    return make.normal(*shape, dtype=dtype), make.normal(*shape, dtype=dtype, mean=0.0)


def _statistics(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    variance, mean = torch.var_mean(wide(x), dim=(0, 2), correction=0)
    return mean, variance


def _steps(make: Maker, dtype: torch.dtype, b: int, t: int, c: int) -> Arguments:
    width = make.normal(b, t, c, dtype=dtype, scale=0.1, mean=1.0)
    return make.normal(b, t, c, dtype=dtype), make.normal(c, dtype=dtype, mean=-4.0, scale=0.2), width


def _scanned(x: torch.Tensor, a: torch.Tensor, dt: torch.Tensor) -> torch.Tensor:
    h = torch.zeros_like(wide(x[:, 0]))
    found = []
    for step in range(x.size(1)):
        width = wide(dt[:, step])
        h = torch.exp(wide(a) * width) * h + width * wide(x[:, step])
        found.append(h)
    return torch.stack(found, 1).to(x.dtype)


def _recurrent(make: Maker, dtype: torch.dtype, c: int, t: int) -> Arguments:
    gate = make.normal(c, t, dtype=dtype, mean=5.0, scale=0.1)
    return gate, make.normal(c, t, dtype=dtype)


def _recurrence(gate: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    h = torch.zeros_like(wide(x[:, 0]))
    found = []
    for step in range(x.size(1)):
        h = wide(gate[:, step]) * h + wide(x[:, step])
        found.append(h)
    return torch.stack(found, 1).to(x.dtype)


def _running(x: torch.Tensor) -> torch.Tensor:
    return torch.cumsum(wide(x), -1).to(x.dtype)


def _counted(make: Maker, dtype: torch.dtype, n: int, bins: int) -> Arguments:
    return make.integers(n, high=bins, dtype=dtype), bins


def _counts(x: torch.Tensor, bins: int) -> torch.Tensor:
    return torch.zeros(bins, dtype=torch.int32, device=x.device).index_add_(0, x, torch.ones_like(x, dtype=torch.int32))


def _scattered(make: Maker, dtype: torch.dtype, m: int, n: int, count: int) -> Arguments:
    return make.normal(m, n, dtype=dtype), make.integers(m, high=count), count


def _scatter(values: torch.Tensor, at: torch.Tensor, count: int) -> torch.Tensor:
    found = torch.zeros(count, values.size(1), dtype=wide(values).dtype, device=values.device)
    return found.index_add_(0, at, wide(values))


def _looked_up(make: Maker, dtype: torch.dtype, m: int, length: int, v: int, n: int) -> Arguments:
    return make.normal(v, n, dtype=dtype), make.integers(m, length, high=v)


def _mean_of_rows(table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return F.embedding_bag(ids, table, mode="mean")


def _labelled(make: Maker, dtype: torch.dtype, m: int, v: int) -> Arguments:
    return make.normal(m, v, dtype=dtype), make.integers(m, high=v)


def _loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(wide(logits), labels, reduction="none")


def _probabilities(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def _distilled(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    s, t = torch.log_softmax(wide(student), -1), torch.log_softmax(wide(teacher), -1)
    return (t.exp() * (t - s)).sum(-1)


def _focal(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    x, y = wide(logits), wide(targets)
    p = torch.sigmoid(x)
    soft = torch.relu(x) - x * y + torch.log1p(torch.exp(-x.abs()))
    return ((1 - (p * y + (1 - p) * (1 - y))) ** 2 * soft).to(logits.dtype)


def _column_sums(x: torch.Tensor) -> torch.Tensor:
    return wide(x).sum(0)


def _heads_first(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).contiguous()


ATTENTION = (
    Unseen(
        kernel=attention.flash_forward,
        reference=_attention,
        arguments=_heads,
        shapes=(
            (BF16, (4, 32, 4096, 4096, 128)),
            (FP16, (2, 16, 8192, 8192, 64)),
            (BF16, (1, 16, 1000, 4097, 128)),
            (BF16, (2, 8, 4096, 4096, 256)),
            (FP32, (2, 8, 2048, 2048, 64)),
            (BF16, (1, 8, 2048, 2048, 512)),
        ),
        small=((FP32, (1, 2, 33, 45, 16)), (BF16, (1, 1, 40, 63, 32))),
    ),
    Unseen(
        kernel=attention.causal_gqa,
        reference=_causal_gqa,
        library=_library_gqa,
        arguments=_grouped,
        shapes=((BF16, (2, 32, 8, 4096, 128)), (FP16, (1, 16, 2, 16384, 64)), (BF16, (1, 28, 4, 1000, 96))),
        small=((FP32, (1, 4, 2, 45, 16)), (BF16, (1, 2, 1, 63, 32))),
    ),
    Unseen(
        kernel=attention.softcapped_window,
        reference=_window,
        arguments=_windowed,
        shapes=((BF16, (64, 2048, 128, 1024)), (FP16, (32, 4097, 64, 512))),
        small=((FP32, (2, 45, 16, 7)),),
    ),
    Unseen(
        kernel=attention.varlen_forward,
        reference=_varlen,
        arguments=_sequences,
        shapes=((BF16, (8, 2048, 16, 128)), (FP16, (16, 1000, 12, 64))),
        small=((FP32, (3, 40, 2, 16)),),
    ),
    Unseen(
        kernel=attention.decode_one_token,
        reference=_decode,
        library=_library_decode,
        arguments=_cache,
        shapes=((BF16, (64, 64, 8, 8192, 128)), (BF16, (128, 32, 8, 4097, 128))),
        small=((FP32, (2, 8, 2, 77, 16)),),
    ),
    Unseen(
        kernel=attention.decode_split_keys,
        reference=_decode,
        library=_library_decode,
        arguments=_cache,
        shapes=((BF16, (8, 64, 8, 16384, 128)), (FP16, (1, 32, 8, 65536, 128)), (BF16, (16, 32, 4, 4096, 64))),
        small=((FP32, (2, 8, 2, 77, 16)),),
    ),
    Unseen(
        kernel=attention.paged_decode,
        reference=_paged,
        arguments=_pages,
        shapes=((BF16, (64, 32, 8, 8192, 128)), (FP16, (128, 32, 32, 2048, 64))),
        small=((FP32, (3, 8, 2, 41, 16)),),
    ),
    Unseen(
        kernel=attention.latent_decode,
        reference=_latent,
        library=_library_latent,
        arguments=_latents,
        shapes=((BF16, (64, 128, 4096, 512, 64)), (BF16, (132, 16, 8192, 512, 64))),
        small=((FP32, (2, 16, 45, 32, 16)),),
    ),
    Unseen(
        kernel=attention.causal_backward,
        reference=_backward(True),
        library=_library_backward(True),
        arguments=_gradients(True),
        shapes=((BF16, (64, 4096, 128)), (FP16, (128, 2048, 64)), (BF16, (16, 1000, 256))),
        small=((FP32, (2, 45, 16)),),
    ),
    Unseen(
        kernel=attention.fused_backward,
        reference=_backward(False),
        library=_library_backward(False),
        arguments=_gradients(False),
        shapes=((BF16, (64, 2048, 128)), (FP16, (96, 4096, 64))),
        small=((FP32, (2, 45, 16)),),
    ),
    Unseen(
        kernel=attention.decayed_linear_attention,
        reference=_linear_attention,
        arguments=_decayed,
        shapes=((BF16, (64, 4096, 128)), (BF16, (128, 2048, 64)), (FP16, (16, 8192, 256))),
        small=((FP32, (2, 45, 16)),),
    ),
)

PRODUCTS = (
    Unseen(
        kernel=products.weight_gradient,
        reference=_weight_gradient,
        arguments=_tokens,
        shapes=((BF16, (65536, 256, 256)), (BF16, (32768, 1024, 512)), (FP32, (16384, 300, 300))),
        small=((FP32, (130, 20, 33)), (BF16, (300, 17, 16))),
    ),
    Unseen(
        kernel=products.long_product,
        reference=_long,
        arguments=_biased,
        shapes=((BF16, (256, 65536, 256)), (FP16, (16, 28672, 4096)), (BF16, (512, 20000, 300))),
        small=((FP32, (17, 300, 20)), (BF16, (33, 129, 16))),
    ),
    Unseen(
        kernel=products.tuned_split,
        reference=_tuned,
        arguments=_product,
        shapes=((BF16, (128, 16384, 512)), (FP16, (64, 65536, 64))),
        small=((FP32, (17, 300, 20)),),
    ),
    Unseen(
        kernel=products.two_layers,
        reference=_two_layers,
        arguments=_perceptron,
        shapes=((BF16, (16384, 128, 512, 128)), (FP16, (4096, 256, 1024, 256))),
        small=((FP32, (33, 16, 40, 16)),),
    ),
    Unseen(
        kernel=products.sum_of_two,
        reference=_two_sums,
        arguments=_pairs,
        shapes=((BF16, (4096, 4096, 1024, 4096)), (FP16, (512, 4096, 4096, 512))),
        small=((FP32, (17, 30, 20, 33)),),
    ),
    Unseen(
        kernel=products.adapter,
        reference=_adapter,
        arguments=_adapted,
        shapes=((BF16, (4096, 4096, 4096, 16)), (BF16, (32, 4096, 11008, 64)), (FP16, (1000, 3000, 1000, 8))),
        small=((FP32, (17, 30, 20, 16)),),
    ),
    Unseen(
        kernel=products.dense_int8,
        reference=_scaled,
        library=_library_int8,
        arguments=_whole_numbers,
        shapes=((torch.int8, (4096, 4096, 4096)), (torch.int8, (32, 8192, 8192)), (torch.int8, (1000, 1000, 3000))),
        small=((torch.int8, (17, 70, 33)),),
    ),
    Unseen(
        kernel=products.weight_only_int8,
        reference=_weight_only,
        arguments=_whole_weights,
        shapes=((BF16, (4096, 4096, 4096)), (BF16, (16, 8192, 8192))),
        small=((BF16, (17, 70, 33)),),
    ),
    Unseen(
        kernel=products.grouped_int4_weights,
        reference=_grouped_int4,
        arguments=_packed_weights,
        shapes=((BF16, (2048, 4096, 11008)), (FP16, (16, 4096, 4096))),
        small=((BF16, (17, 256, 33)),),
    ),
    Unseen(
        kernel=products.rowwise_fp8,
        reference=_scaled,
        library=_library_fp8,
        arguments=_small_floats,
        shapes=((E4M3, (8192, 8192, 8192)), (E4M3, (64, 8192, 8192)), (E4M3, (4096, 2048, 1000))),
        small=((E4M3, (17, 70, 33)),),
    ),
    Unseen(
        kernel=products.blockwise_fp8,
        reference=_blockwise,
        library=_library_blockwise,
        arguments=_blocks,
        shapes=((E4M3, (4096, 7168, 4096)), (E4M3, (64, 7168, 2048))),
        small=((E4M3, (17, 256, 140)),),
    ),
    Unseen(
        kernel=products.convolution_nhwc,
        reference=_convolved,
        arguments=_images,
        shapes=((BF16, (32, 56, 64, 64)), (BF16, (32, 28, 256, 256)), (FP16, (8, 64, 96, 320))),
        small=((FP32, (1, 5, 17, 20)),),
    ),
    Unseen(
        kernel=products.shifted_product,
        reference=_shifted,
        arguments=_product,
        shapes=((BF16, (4096, 4097, 4096)), (BF16, (2048, 2049, 50257))),
        small=((FP32, (17, 34, 20)),),
    ),
    Unseen(
        kernel=products.linear_layer,
        reference=_linear,
        arguments=_layer,
        shapes=((FP32, (4096, 4096, 4096)), (FP32, (1000, 3000, 1000)), (BF16, (64, 4096, 50257))),
        small=((FP32, (17, 34, 20)),),
    ),
    Unseen(
        kernel=products.manhattan,
        reference=lambda x, y: torch.cdist(wide(x), wide(y), p=1),
        arguments=_points,
        shapes=((FP32, (4096, 4096, 64)), (BF16, (1000, 2000, 128))),
        small=((FP32, (17, 20, 33)),),
    ),
)

ROWS = (
    Unseen(
        kernel=rows.channel_statistics,
        reference=_statistics,
        arguments=_one,
        shapes=((BF16, (32, 256, 3136)), (FP32, (64, 64, 12544))),
        small=((FP32, (3, 9, 45)),),
    ),
    Unseen(
        kernel=rows.column_sums_in_parts,
        reference=_column_sums,
        arguments=_one,
        shapes=((BF16, (131072, 1024)), (FP32, (50000, 300)), (BF16, (4096, 16384))),
        small=((FP32, (70, 33)),),
    ),
    Unseen(
        kernel=rows.selective_scan,
        reference=_scanned,
        arguments=_steps,
        shapes=((BF16, (8, 256, 4096)), (FP32, (2, 256, 2048))),
        small=((FP32, (2, 9, 33)),),
    ),
    Unseen(
        kernel=rows.linear_recurrence,
        reference=_recurrence,
        arguments=_recurrent,
        shapes=((BF16, (16384, 256)), (FP32, (4096, 250))),
        small=((FP32, (5, 70)),),
    ),
    Unseen(
        kernel=rows.row_running_sum,
        reference=_running,
        arguments=_one,
        shapes=((FP32, (4096, 8192)), (BF16, (16384, 1000)), (FP32, (64, 131072))),
        small=((FP32, (5, 70)),),
    ),
    Unseen(
        kernel=rows.value_counts,
        reference=_counts,
        arguments=_counted,
        shapes=((torch.int32, (1 << 26, 256)), (torch.int64, (1 << 24, 65536))),
        small=((torch.int32, (100, 7)),),
    ),
    Unseen(
        kernel=rows.scatter_rows,
        reference=_scatter,
        arguments=_scattered,
        shapes=((BF16, (262144, 128, 10000)), (FP32, (65536, 300, 4096))),
        small=((FP32, (20, 33, 5)),),
    ),
    Unseen(
        kernel=rows.embedding_mean,
        reference=_mean_of_rows,
        arguments=_looked_up,
        shapes=((BF16, (16384, 32, 100000, 256)), (FP32, (4096, 20, 50000, 100))),
        small=((FP32, (9, 5, 12, 33)),),
    ),
    Unseen(
        kernel=rows.heads_first,
        reference=_heads_first,
        arguments=_one,
        shapes=((BF16, (8, 4096, 32, 128)), (FP16, (16, 1000, 12, 64))),
        small=((FP32, (2, 5, 3, 17)),),
    ),
    Unseen(
        kernel=rows.channels_last,
        reference=_heads_first,
        arguments=_one,
        shapes=((BF16, (64, 256, 3136)), (FP32, (32, 3, 50176))),
        small=((FP32, (2, 5, 33)),),
    ),
    Unseen(
        kernel=rows.vocabulary_loss,
        reference=_loss,
        arguments=_labelled,
        shapes=((BF16, (8192, 50257)), (BF16, (4096, 128256)), (FP32, (4096, 50257))),
        small=((FP32, (5, 70)),),
    ),
    Unseen(
        kernel=rows.row_probabilities,
        reference=_probabilities,
        arguments=_one,
        shapes=((BF16, (8192, 50257)), (BF16, (65536, 1001)), (FP32, (16384, 4097))),
        small=((FP32, (5, 70)),),
    ),
    Unseen(
        kernel=rows.distillation_loss,
        reference=_distilled,
        arguments=_two,
        shapes=((BF16, (8192, 32000)), (BF16, (4096, 50257)), (FP32, (4096, 8192))),
        small=((FP32, (5, 70)),),
    ),
    Unseen(
        kernel=rows.focal_map,
        reference=_focal,
        arguments=_two,
        shapes=((BF16, (8192, 8192)), (FP32, (4097, 1000))),
        small=((FP32, (5, 70)),),
    ),
)

ALL = (*ATTENTION, *PRODUCTS, *ROWS)
