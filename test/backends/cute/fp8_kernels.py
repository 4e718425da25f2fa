"""Attention of 8-bit operands, and of values with contiguous keys, as users write it, each with its reference in fp64."""

from __future__ import annotations

import math

import torch
from backends.cute.backward_kernels import Case

import helion.language as hl

E4M3 = torch.float8_e4m3fn
RAISED_BY = 8
"""Binary exponent that is added to weights, which are at most 1 else."""


def scales_of_heads(q, k, v, q_scale, k_scale, v_scale, causal: hl.constexpr):
    """`[B, H, S, D]` with values as `[B, H, D, S]`, and a scale for each head. Queries are aligned with the last keys."""
    batch, heads, m, _ = q.size()
    n, shared = k.size(2), heads // k.size(1)
    dims, wide = hl.specialize(q.size(3)), hl.specialize(v.size(2))
    out = torch.empty([batch, heads, m, wide], dtype=torch.bfloat16, device=q.device)
    factor = math.log2(math.e) / math.sqrt(dims)
    for b, h, tile_m in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        head = h.begin // shared
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, wide], dtype=torch.float32)
        scale = q_scale[b.begin, h.begin] * k_scale[b.begin, head] * factor
        query = q[b.begin, h.begin, tile_m, :]
        for tile_n in hl.tile(n):
            scores = hl.dot(query, k[b.begin, head, tile_n, :].T, out_dtype=torch.float32) * scale
            if causal:
                seen = tile_n.index[None, :] <= tile_m.index[:, None] + (n - m)
                scores = torch.where(seen, scores, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights = torch.exp2(scores - raised[:, None] + RAISED_BY)
            shrink = torch.exp2(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[b.begin, head, :, tile_n].T, acc=acc * shrink[:, None])
            highest = raised
        out[b.begin, h.begin, tile_m, :] = (acc / total[:, None] * v_scale[b.begin, head]).to(out.dtype)
    return out


def scales_of_rows(q, k, v, q_scale, k_scale, v_scale, window: hl.constexpr):
    """`[B, S, H, D]`, a scale for each query, key and value, a window, and the logarithms of the sums.

    Weights are multiplied by the scales of the values before they are rounded.
    """
    batch, m, heads, dims = q.size()
    n, dims, wide = k.size(1), hl.specialize(dims), hl.specialize(v.size(3))
    out = torch.empty([batch, m, heads, wide], dtype=torch.float16, device=q.device)
    logsum = torch.empty([batch, heads, m], dtype=torch.float32, device=q.device)
    for b, h, tile_m in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, wide], dtype=torch.float32)
        query, scale = q[b.begin, tile_m, h.begin, :], q_scale[b.begin, h.begin, tile_m] * dims**-0.5
        for tile_n in hl.tile(n):
            scores = hl.dot(query, k[b.begin, tile_n, h.begin, :].T) * scale[:, None]
            scores = scores * k_scale[b.begin, h.begin, tile_n][None, :]
            distance = tile_n.index[None, :] - tile_m.index[:, None]
            scores = torch.where((distance <= window) & (distance >= -window), scores, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights = torch.exp(scores - raised[:, None])
            shrink = torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            weighted = (weights * v_scale[b.begin, h.begin, tile_n][None, :]).to(v.dtype)
            acc = hl.dot(weighted, v[b.begin, tile_n, h.begin, :], acc=acc * shrink[:, None])
            highest = raised
        out[b.begin, tile_m, h.begin, :] = (acc / total[:, None]).to(out.dtype)
        logsum[b.begin, h.begin, tile_m] = highest + torch.log(total)
    return out, logsum


def one_scale(q, k, v, scale: float, values: float):
    """Plain matrices, a number for the scores, one for the values, and a row of heads in `[H, S, D]`."""
    heads, m, dims = q.size()
    n, dims = k.size(1), hl.specialize(dims)
    out = torch.empty([heads, m, dims], dtype=torch.float32, device=q.device)
    for h, tile_m in hl.tile([heads, m], block_size=[1, None]):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(n):
            scores = hl.dot(q[h.begin, tile_m, :], k[h.begin, tile_n, :].T) * scale
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights = torch.exp2((scores - raised[:, None]) * 1.5 + 4)
            shrink = torch.exp2((highest - raised) * 1.5)
            total = total * shrink + weights.sum(-1)
            acc = acc * shrink[:, None] + hl.dot(weights.to(v.dtype), v[h.begin, tile_n, :])
            highest = raised
        out[h.begin, tile_m, :] = acc / total[:, None] * values
    return out


def turned_values(q, k, v, causal: hl.constexpr):
    """Operands of 16 bits, with values as `[B, H, D, S]`."""
    batch, heads, m, _ = q.size()
    n, dims, wide = k.size(2), hl.specialize(q.size(3)), hl.specialize(v.size(2))
    out = torch.empty([batch, heads, m, wide], dtype=q.dtype, device=q.device)
    for b, h, tile_m in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, wide], dtype=torch.float32)
        for tile_n in hl.tile(n):
            scores = hl.dot(q[b.begin, h.begin, tile_m, :], k[b.begin, h.begin, tile_n, :].T) * dims**-0.5
            if causal:
                scores = torch.where(tile_n.index[None, :] <= tile_m.index[:, None], scores, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights = torch.exp(scores - raised[:, None])
            shrink = torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[b.begin, h.begin, :, tile_n].T, acc=acc * shrink[:, None])
            highest = raised
        out[b.begin, h.begin, tile_m, :] = (acc / total[:, None]).to(out.dtype)
    return out


def quantised(x: torch.Tensor, dims: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a tensor in e4m3, and the scales over all but the dimensions ``dims``."""
    scale = x.abs().amax(dims) / torch.finfo(E4M3).max
    for dim in sorted(dims):
        scale = scale.unsqueeze(dim)
    return (x / scale).to(E4M3), scale.squeeze(dims).float()


def turned(x: torch.Tensor) -> torch.Tensor:
    """Return the same values with contiguous rows instead of columns."""
    return x.mT.contiguous().mT


def exact(q, k, v, factor: float, seen=None):
    """Return attention of `[..., S, D]` in fp64, and the logarithms of the sums."""
    wide = [x.repeat_interleave(q.size(-3) // x.size(-3), -3) for x in (k, v)]
    scores = q @ wide[0].mT * factor
    scores = scores if seen is None else scores.masked_fill(~seen, -math.inf)
    return torch.softmax(scores, -1) @ wide[1], torch.logsumexp(scores, -1)


def cases(device: str = "cpu", dtype: torch.dtype = torch.bfloat16, scale: int = 1, batch: int = 2) -> list[Case]:
    """Return attention of about 200 queries and 300 keys, times ``scale``. ``dtype`` is that of operands of 16 bits."""
    m, n = 196 * scale, 304 * scale

    def made(heads: int, rows: int, dims: int, mean: float) -> torch.Tensor:
        return torch.randn(batch, heads, rows, dims, device=device) + mean

    def narrow(heads: int, groups: int, dims: int, wide: int, causal: bool) -> Case:
        q, k, v = made(heads, m, dims, 0.1), made(groups, n, dims, 0.25), made(groups, n, wide, 1.0)
        given = [quantised(each, (2, 3)) for each in (q, k, v)]
        (q, k, v), (of_q, of_k, of_v) = zip(*given, strict=True)
        seen = torch.arange(m, device=device)[:, None] + (n - m) >= torch.arange(n, device=device)
        doubled = [x.double() * s.double()[..., None, None] for x, s in given]
        wanted = exact(*doubled, dims**-0.5, seen if causal else None)[:1]
        arguments = (q, k, v.mT.contiguous(), of_q, of_k, of_v, causal)
        name = f"scales of heads, {dims} and {wide} dimensions{', causal' if causal else ''}"
        return Case(name=name, kernel=scales_of_heads, arguments=arguments, wanted=wanted)

    q, k, v = made(2, m, 128, 0.1), made(2, n, 128, 0.25), made(2, n, 128, 1.0)
    near = (torch.arange(n, device=device) - torch.arange(m, device=device)[:, None]).abs() <= 100
    of_rows = [quantised(each, (3,)) for each in (q, k, v)]
    (q8, k8, v8), scales = zip(*of_rows, strict=True)
    largest = scales[2].max()  # scales of at most 1 keep weights above the smallest e4m3
    doubled = [x.double() * s.double()[..., None] for x, s in of_rows]
    out, logsum = exact(*doubled, 128**-0.5, near)
    rows = [x.transpose(1, 2).contiguous() for x in (q8, k8)]
    by_rows = (*rows, v8.permute(0, 1, 3, 2).contiguous().permute(0, 3, 1, 2), *scales[:2], scales[2] / largest)
    x8, y8, z8 = (each[0] for each in (q8, k8, v8))
    plain = exact(x8.double(), y8.double(), z8.double(), 1.5e-4 * math.log(2))[0] * 0.01
    halves = [x.to(dtype) for x in (q, k, v)]
    below = torch.ones(m, n, device=device, dtype=torch.bool).tril()
    return [
        narrow(4, 2, 64, 64, False),
        narrow(2, 2, 128, 128, True),
        narrow(2, 1, 256, 96, True),
        Case(
            name="scales of rows, window",
            kernel=scales_of_rows,
            arguments=(*by_rows, 100),
            wanted=(out.transpose(1, 2) / largest.double(), logsum),
        ),
        Case(name="one scale", kernel=one_scale, arguments=(x8, y8, turned(z8), 1e-4, 0.01), wanted=(plain,)),
        Case(
            name="turned values, causal",
            kernel=turned_values,
            arguments=(*halves[:2], halves[2].mT.contiguous(), True),
            wanted=exact(*(x.double() for x in halves), 128**-0.5, below)[:1],
        ),
    ]
