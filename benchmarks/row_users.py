"""Row kernels in the styles of more users, with references in fp64: odd lengths, several types, means far from zero, rows
with infinities and NaN. ``benchmarks/row_kernels.py`` checks them on a GPU, and ``test_row_users.py`` on simulated threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

import helion.language as hl

#: Types, rows and columns to check, and 1 for dynamic shapes.
SIZES = (
    ("float32", 200, 50257, 0),
    ("bfloat16", 300, 4096, 1),
    ("float16", 5, 63, 0),
    ("bfloat16", 2, 100003, 0),
    ("float32", 64, 8192, 1),
    ("bfloat16", 37, 1003, 0),
    ("bfloat16", 37, 1003, 1),
    ("bfloat16", 3, 2, 0),
)
BF16, FP16, FP32, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
Tensor = torch.Tensor


def offset_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    m = x.size(0)
    out = torch.empty_like(x)
    rstd = torch.empty([m, 1], dtype=torch.float32, device=x.device)
    for rows in hl.tile(m):
        h = x[rows, :].float()
        scale = torch.rsqrt(h.pow(2).mean(dim=-1, keepdim=True) + eps)
        rstd[rows, :] = scale
        out[rows, :] = (h * scale * (1.0 + weight[None, :].float())).to(x.dtype)
    return out, rstd


def norm_by_moments(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    out = torch.empty_like(x)
    mean = x.new_empty([x.size(0)], dtype=torch.float32)
    var = x.new_empty([x.size(0)], dtype=torch.float32)
    for t in hl.tile(x.size(0)):
        v, mu = torch.var_mean(x[t, :].float(), dim=-1, correction=0)
        mean[t] = mu
        var[t] = v
        out[t, :] = ((x[t, :].float() - mu[:, None]) / torch.sqrt(v[:, None] + 1e-6)).to(out.dtype)
    return out, mean, var


def functional_norms(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    out = torch.empty_like(x)
    n = hl.specialize(x.size(-1))
    for t in hl.tile(x.size(0)):
        out[t, :] = F.layer_norm(x[t, :].float(), [n], w[:].float(), b[:].float(), 1e-5).to(x.dtype)
    return out


def fully_masked_rows(scores: Tensor, keep: Tensor) -> Tensor:
    out = torch.zeros_like(scores)
    for t in hl.tile(scores.size(0)):
        s = torch.where(keep[t, :], scores[t, :].float(), float("-inf"))
        top = s.amax(-1, keepdim=True)
        top = torch.where(top == float("-inf"), 0.0, top)
        e = torch.exp(s - top)
        total = e.sum(-1, keepdim=True)
        out[t, :] = torch.where(total > 0, e / total, 0.0).to(out.dtype)
    return out


def loss_of_ids(logits: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    rows, vocab = logits.shape
    loss = torch.zeros([rows], dtype=torch.float32, device=logits.device)
    lse = torch.empty([rows], dtype=torch.float32, device=logits.device)
    for t in hl.tile(rows):
        ids = target[t]
        z = logits[t, :].to(torch.float32)
        biggest = torch.amax(z, dim=-1)
        norm = torch.log(torch.exp(z - biggest[:, None]).sum(dim=-1)) + biggest
        lse[t] = norm
        chosen = torch.where(hl.arange(vocab)[None, :] == ids[:, None], z, 0.0).sum(-1)
        loss[t] = torch.where(ids == ignore_index, 0.0, norm - chosen)
    return loss, lse


def right_answers(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    right = torch.empty([logits.size(0)], dtype=torch.int32, device=logits.device)
    margin = torch.empty([logits.size(0)], dtype=torch.float32, device=logits.device)
    for t in hl.tile(logits.size(0)):
        row = logits[t, :].float()
        right[t] = (torch.argmax(row, dim=-1) == target[t]).to(torch.int32)
        margin[t] = row.amax(-1) - row.mean(-1)
    return right, margin


def blocks_of_columns(x: Tensor) -> Tensor:
    m, n = x.shape
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for tm in hl.tile(m):
        running = torch.full([tm], float("-inf"), dtype=torch.float32)
        weight = torch.zeros([tm], dtype=torch.float32)
        for tn in hl.tile(n):
            part = x[tm, tn].float()
            new = torch.maximum(running, part.amax(-1))
            weight = weight * torch.exp(running - new) + torch.exp(part - new[:, None]).sum(-1)
            running = new
        out[tm] = running + torch.log(weight)
    return out


def saturating_int8(x: Tensor, zero_point: int) -> tuple[Tensor, Tensor]:
    q = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    s = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for t in hl.tile(x.size(0)):
        row = x[t, :].float()
        step = torch.clamp(row.abs().amax(-1), min=1e-8) / 127.0
        s[t] = step
        q[t, :] = torch.clamp(torch.round(row / step[:, None]) + zero_point, -128.0, 127.0).to(torch.int8)
    return q, s


def mixed_cosine(a: Tensor, b: Tensor) -> Tensor:
    out = torch.empty([a.size(0)], dtype=torch.float32, device=a.device)
    for t in hl.tile(a.size(0)):
        p, q = a[t, :].float(), b[t, :].float()
        dot, pp, qq = (p * q).sum(-1), (p * p).sum(-1), (q * q).sum(-1)
        out[t] = 1.0 - dot / torch.clamp(torch.sqrt(pp) * torch.sqrt(qq), min=1e-8)
    return out


def gated_norm(x: Tensor, z: Tensor, w: Tensor) -> Tensor:
    y = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        h = x[t, :].float() * F.silu(z[t, :].float())
        y[t, :] = (h * torch.rsqrt(torch.mean(h * h, -1, keepdim=True) + 1e-5) * w[None, :].float()).to(y.dtype)
    return y


def normalize_in_place(x: Tensor) -> None:
    for t in hl.tile(x.size(0)):
        row = x[t, :].float()
        x[t, :] = (row / torch.clamp(row.abs().sum(-1, keepdim=True), min=1e-12)).to(x.dtype)


def pixels(x: Tensor) -> Tensor:
    out = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
    for t in hl.tile(x.size(0)):
        row = x[t, :].float()
        low, high = row.amin(-1, keepdim=True), row.amax(-1, keepdim=True)
        share = (row - low) / torch.clamp(high - low, min=1e-6)
        out[t, :] = torch.clamp(torch.round(share * 255.0), 0.0, 255.0).to(torch.uint8)
    return out


def distilled(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    out = torch.empty([student.size(0)], dtype=torch.float32, device=student.device)
    for t in hl.tile(student.size(0)):
        p = torch.log_softmax(student[t, :].float() / temperature, -1)
        q = torch.log_softmax(teacher[t, :].float() / temperature, -1)
        out[t] = (torch.exp(q) * (q - p)).sum(-1) * temperature * temperature
    return out


def policy_gradient(new: Tensor, old: Tensor, advantage: Tensor, keep: Tensor, low: float, high: float) -> Tensor:
    out = torch.empty([new.size(0)], dtype=torch.float32, device=new.device)
    for t in hl.tile(new.size(0)):
        ratio = torch.exp(new[t, :].float() - old[t, :].float())
        gain = advantage[t].float()[:, None]
        term = torch.minimum(ratio * gain, torch.clamp(ratio, 1.0 - low, 1.0 + high) * gain)
        kept = keep[t, :].float()
        out[t] = -(term * kept).sum(-1) / torch.clamp(kept.sum(-1), min=1.0)
    return out


def pinball(x: Tensor, y: Tensor, quantile: float) -> Tensor:
    out = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    for t in hl.tile(x.size(0)):
        d = y[t, :].float() - x[t, :].float()
        out[t] = torch.maximum(quantile * d, (quantile - 1.0) * d).mean(-1).to(out.dtype)
    return out


def batched_softmax(x: Tensor, scale: float) -> Tensor:
    out = torch.empty_like(x)
    for tb, tm in hl.tile([x.size(0), x.size(1)]):
        out[tb, tm, :] = torch.softmax(x[tb, tm, :].float() * scale, dim=-1).to(out.dtype)
    return out


def length_of_power(x: Tensor, p: float) -> Tensor:
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for t in hl.tile(x.size(0)):
        out[t] = torch.pow(torch.pow(x[t, :].float().abs(), p).sum(-1), 1.0 / p)
    return out


def clipped_outliers(x: Tensor, k: float) -> Tensor:
    out = torch.empty_like(x)
    n = x.size(1)
    for t in hl.tile(x.size(0)):
        row = x[t, :].float()
        mean = row.sum(-1, keepdim=True) / n
        deviation = torch.sqrt((row - mean).square().sum(-1, keepdim=True) / n)
        out[t, :] = torch.minimum(torch.maximum(row, mean - k * deviation), mean + k * deviation).to(out.dtype)
    return out


def sampled(logits: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    token = torch.empty([logits.size(0)], dtype=torch.int64, device=logits.device)
    score = torch.empty([logits.size(0)], dtype=torch.float32, device=logits.device)
    for t in hl.tile(logits.size(0)):
        row = logits[t, :].float() + noise[t, :]
        score[t], token[t] = torch.max(row, dim=-1)
    return token, score


def with_bytes_mask(x: Tensor, keep: Tensor, rate: float) -> Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        row = torch.softmax(x[t, :].float(), -1)
        out[t, :] = (row * keep[t, :].float() / (1.0 - rate)).to(out.dtype)
    return out


def typed_softmax(x: Tensor) -> Tensor:
    out = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    for t in hl.tile(x.size(0)):
        out[t, :] = F.softmax(x[t, :], dim=-1, dtype=torch.float32)
    return out


def masked_mean(x: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    mean = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    count = torch.empty([x.size(0)], dtype=torch.int32, device=x.device)
    for t in hl.tile(x.size(0)):
        k = keep[t, :]
        n = k.sum(-1)
        count[t] = n.to(torch.int32)
        mean[t] = torch.where(k, x[t, :].float(), 0.0).sum(-1) / torch.clamp(n.float(), min=1.0)
    return mean, count


def causal_rows(x: Tensor, scale: float) -> Tensor:
    out = torch.empty_like(x)
    m, n = x.size()
    for t in hl.tile(m):
        seen = hl.arange(n)[None, :] <= t.index[:, None]
        row = torch.where(seen, x[t, :].float() * scale, float("-inf"))
        out[t, :] = torch.softmax(row, -1).to(out.dtype)
    return out


def one_by_one(x: Tensor, w: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for i in hl.grid(x.size(0)):
        row = x[i, :].float()
        out[i, :] = (row / torch.sqrt((row * row).mean() + 1e-6) * w[:].float()).to(x.dtype)
    return out


def group_scales(x: Tensor) -> tuple[Tensor, Tensor]:
    m, n = x.size()
    n = hl.specialize(n)
    q = torch.empty([m, n], dtype=torch.float8_e4m3fn, device=x.device)
    s = torch.empty([m, n // 64], dtype=torch.float32, device=x.device)
    for t in hl.tile(m):
        g = x[t, :].float().reshape(t, n // 64, 64)
        step = torch.clamp(g.abs().amax(-1), min=1e-4) / 448.0
        s[t, :] = step
        q[t, :] = (g / step[:, :, None]).reshape(t, n).to(torch.float8_e4m3fn)
    return q, s


def groups_of_channels(x: Tensor, groups: hl.constexpr) -> Tensor:
    b = x.size(0)
    flat = x.view(b * groups, -1)
    out = torch.empty_like(flat)
    for t in hl.tile(flat.size(0)):
        row = flat[t, :].float()
        mean = row.mean(-1, keepdim=True)
        var = (row * row).mean(-1, keepdim=True) - mean * mean
        out[t, :] = ((row - mean) * torch.rsqrt(var + 1e-5)).to(x.dtype)
    return out.view(x.shape)


def zloss_and_gradient(logits: Tensor, target: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    m, n = logits.size()
    loss = torch.empty([m], dtype=torch.float32, device=logits.device)
    grad = torch.empty_like(logits)
    for t in hl.tile(m):
        z = logits[t, :].float()
        lse = torch.logsumexp(z, -1)
        hit = hl.arange(n)[None, :] == target[t][:, None]
        loss[t] = lse - torch.where(hit, z, 0.0).sum(-1) + weight * lse * lse
        p = torch.exp(z - lse[:, None])
        grad[t, :] = (p * (1.0 + 2.0 * weight * lse[:, None]) - torch.where(hit, 1.0, 0.0)).to(grad.dtype)
    return loss, grad


# Cases -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Users:
    """A kernel, its arguments, and its results in fp64."""

    fn: Callable[..., Any]
    arguments: tuple[Any, ...]
    wanted: tuple[Tensor, ...]
    steps: int = 0
    """How far integers may be from those of fp64, where a number lies between two."""
    far: float = 1.0
    """Factor of the allowed error where a difference of large numbers loses digits."""


class Make:
    def __init__(self, device: str, m: int, n: int, dtype: torch.dtype) -> None:
        self.device, self.m, self.n, self.dtype = device, m, n, dtype
        self.random = torch.Generator(device).manual_seed(m * 7919 + n)

    def rows(self, mean: float = 3.0, size: float = 2.0, dtype: torch.dtype | None = None) -> Tensor:
        drawn = torch.randn(self.m, self.n, generator=self.random, device=self.device)
        return (drawn * size + mean).to(dtype or self.dtype)

    def vector(self) -> Tensor:
        return (torch.randn(self.n, generator=self.random, device=self.device) + 1).to(self.dtype)

    def mask(self) -> Tensor:
        return torch.rand(self.m, self.n, generator=self.random, device=self.device) < 0.7

    def labels(self, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.randint(self.n, (self.m,), generator=self.random, device=self.device).to(dtype)


def _quantized(x: Tensor) -> tuple[Tensor, Tensor]:
    step = x.double().abs().amax(-1).clamp(min=1e-8) / 127
    return (x.double() / step[:, None]).round(), step


def cases(device: str, m: int, n: int, dtype: torch.dtype) -> dict[str, Users]:
    """Return the cases of a number of rows and columns; those of groups have a multiple of 64 columns."""
    make = Make(device, m, n, dtype)
    x, y, w, b = make.rows(), make.rows(1.0, 1.0), make.vector(), make.vector()
    far, keep, ids = make.rows(100.0, 1.0), make.mask(), make.labels()
    d, e, v = x.double(), y.double(), w.double()
    found: list[Users] = []

    def add(fn: Callable[..., Any], arguments: tuple[Any, ...], *wanted: Tensor, **more: Any) -> None:
        found.append(Users(fn, arguments, wanted, **more))

    scale = torch.rsqrt(d.square().mean(-1, keepdim=True) + 1e-6)
    add(offset_norm, (x, w, 1e-6), d * scale * (1 + v), scale)
    wide = far.double()
    mean, var = wide.mean(-1), wide.var(-1, correction=0)
    add(norm_by_moments, (far,), (wide - mean[:, None]) / (var[:, None] + 1e-6).sqrt(), mean, var, far=40.0)
    add(functional_norms, (x, w, b), F.layer_norm(d, (n,), v, b.double(), 1e-5))
    some = keep & (torch.arange(m, device=device)[:, None] % 3 > 0)
    add(fully_masked_rows, (x, some), torch.where(some.any(-1, keepdim=True), torch.softmax(torch.where(some, d, -torch.inf), -1).nan_to_num(), 0.0))  # fmt: skip
    lse, picked = torch.logsumexp(d, -1), d.gather(1, ids[:, None])[:, 0]
    ignored = torch.where(torch.arange(m, device=device) % 4 == 1, -100, ids).to(torch.int32)
    add(loss_of_ids, (x, ignored, -100), torch.where(ignored == -100, 0.0, lse - picked), lse, far=4.0)
    add(right_answers, (x, ids), (x.float().argmax(-1) == ids).int(), d.amax(-1) - d.mean(-1), far=4.0)
    add(blocks_of_columns, (far,), torch.logsumexp(wide, -1))
    q, step = _quantized(x)
    add(saturating_int8, (x, 3), (q + 3).clamp(-128, 127).to(torch.int8), step, steps=1)
    other = make.rows(-1.0, 1.0, FP32)
    add(mixed_cosine, (x, other), 1 - F.cosine_similarity(d, other.double(), dim=-1), far=4.0)
    h = d * F.silu(e)
    add(gated_norm, (x, y, w), h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-5) * v)
    inside = x.clone()
    add(normalize_in_place, (inside,), d / d.abs().sum(-1, keepdim=True).clamp(min=1e-12))
    low, high = d.amin(-1, keepdim=True), d.amax(-1, keepdim=True)
    add(pixels, (x,), ((d - low) / (high - low).clamp(min=1e-6) * 255).round().to(torch.uint8), steps=1)
    p, t = torch.log_softmax(d / 2, -1), torch.log_softmax(e / 2, -1)
    add(distilled, (x, y, 2.0), (t.exp() * (t - p)).sum(-1) * 4, far=8.0)
    gain = torch.linspace(-1, 1, m, device=device)
    small, less = (x.float() / 8).to(dtype), (y.float() / 8).to(dtype)
    ratio = (small.double() - less.double()).exp()
    term = torch.minimum(ratio * gain.double()[:, None], ratio.clamp(0.8, 1.3) * gain.double()[:, None])
    add(
        policy_gradient,
        (small, less, gain, keep, 0.2, 0.3),
        -(term * keep).sum(-1) / keep.sum(-1).clamp(min=1),
        far=4.0,
    )
    diff = e - d
    add(pinball, (x, y, 0.9), torch.maximum(0.9 * diff, -0.1 * diff).mean(-1))
    batch = torch.stack([x, y])
    add(batched_softmax, (batch, 0.5), torch.softmax(batch.double() * 0.5, -1))
    add(length_of_power, (x, 3.0), d.abs().pow(3).sum(-1).pow(1 / 3))
    deviation = d.std(-1, correction=0, keepdim=True)
    centre = d.mean(-1, keepdim=True)
    add(clipped_outliers, (x, 1.5), torch.minimum(torch.maximum(d, centre - 1.5 * deviation), centre + 1.5 * deviation))
    noise = make.rows(0.0, 3.0, FP32)
    tossed = x.float() + noise
    add(sampled, (x, noise), tossed.argmax(-1), tossed.amax(-1))
    add(with_bytes_mask, (x, keep.to(torch.uint8), 0.25), torch.softmax(d, -1) * keep / 0.75)
    add(typed_softmax, (x,), torch.softmax(d, -1))
    count = keep.sum(-1)
    add(masked_mean, (x, keep), torch.where(keep, d, 0.0).sum(-1) / count.clamp(min=1), count.int())
    seen = torch.arange(n, device=device)[None] <= torch.arange(m, device=device)[:, None]
    add(causal_rows, (x, 0.5), torch.softmax(torch.where(seen, d * 0.5, -torch.inf), -1))
    add(one_by_one, (x, w), d / (d.square().mean(-1, keepdim=True) + 1e-6).sqrt() * v)
    hit = F.one_hot(ids, n)
    soft = torch.softmax(d, -1)
    add(zloss_and_gradient, (x, ids, 1e-3), lse - picked + 1e-3 * lse * lse, soft * (1 + 2e-3 * lse[:, None]) - hit, far=4.0)  # fmt: skip
    if n % 64 == 0:
        g = d.view(m, n // 64, 64)
        steps = g.abs().amax(-1).clamp(min=1e-4) / 448
        add(group_scales, (x,), (g / steps[..., None]).view(m, n), steps)
        channels = x.view(m, 4, -1)
        wide = channels.double().view(m * 2, -1)
        normed = (wide - wide.mean(-1, keepdim=True)) * torch.rsqrt(wide.var(-1, correction=0, keepdim=True) + 1e-5)
        add(groups_of_channels, (channels, 2), normed.view(channels.shape), far=4.0)
    return {each.fn.__name__: each for each in found}


def names() -> tuple[str, ...]:
    """Return the names of all cases."""
    return tuple(cases("cpu", 2, 64, BF16))


RELATIVE = {BF16: 2**-8, FP16: 2**-11, FP8: 2**-4}


def error(case: Users, results: Any) -> float:
    """Return the largest error of the results of a call, in units of what is allowed."""
    given = results if isinstance(results, tuple) else (case.arguments[0] if results is None else results,)
    worst = 0.0
    for got, want in zip(given, case.wanted, strict=True):
        if not got.dtype.is_floating_point:
            worst = max(worst, float((got.long() - want.long()).abs().max()) / (case.steps or 0.5))
            continue
        rows = want.double().reshape(-1, want.shape[-1]) if want.dim() > 1 else want.double()[None]
        size = rows.square().nan_to_num().mean(-1, keepdim=True).sqrt()
        relative = RELATIVE.get(got.dtype, 2e-5 * case.far) * 1.02 + (1e-5 * case.far if got.dtype in RELATIVE else 0)
        off = (got.double().reshape(rows.shape) - rows).abs() / (relative * (rows.abs() + 0.2 * size) + 1e-30)
        found = off.max().item()
        worst = max(worst, found if found == found else float("inf"))
    return worst
