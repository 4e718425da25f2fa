"""Causal attention with grouped queries, forward and backward, as an autograd function.

The forward stores the logarithm of each query's sum of exponentials. Two kernels compute the gradients from it: one owns tiles
of queries, the other tiles of keys, with a loop over the heads that share them. None needs atomics, so that results are the
same in every run.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from comparison import beside_torch, randn, relative_error

import helion
import helion.language as hl


@helion.kernel()
def grouped_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return causal attention of `q[B, H, M, D]` with `k` and `v` of `[B, G, M, D]`, and the logarithms `[B, H, M]` of the
    sums of exponentials."""
    batch, heads, m, _ = q.size()
    shared = heads // k.size(1)
    dims = hl.specialize(q.size(3))
    scale = 1 / math.sqrt(dims)
    out = torch.empty_like(q)
    logsum = torch.empty([batch, heads, m], dtype=torch.float32, device=q.device)
    for b, h, tile_m in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        group, query = h.begin // shared, q[b.begin, h.begin, tile_m, :]
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(tile_m.end):
            scores = hl.dot(query, k[b.begin, group, tile_n, :].T) * scale
            scores = torch.where(tile_m.index[:, None] >= tile_n.index[None, :], scores, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights = torch.exp(scores - raised[:, None])
            shrink = torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[b.begin, group, tile_n, :], acc=acc * shrink[:, None])
            highest = raised
        out[b.begin, h.begin, tile_m, :] = acc / total[:, None]
        logsum[b.begin, h.begin, tile_m] = highest + torch.log(total)
    return out, logsum


@helion.kernel()
def grouped_dq(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor, logsum: torch.Tensor, delta: torch.Tensor
) -> torch.Tensor:
    """Return the gradient of `q`. `delta[B, H, M]` is the row sum of `grad` times the output."""
    batch, heads, m, _ = q.size()
    shared = heads // k.size(1)
    dims = hl.specialize(q.size(3))
    scale = 1 / math.sqrt(dims)
    dq = torch.empty_like(q)
    for b, h, tile_m in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        group, query, upstream = h.begin // shared, q[b.begin, h.begin, tile_m, :], grad[b.begin, h.begin, tile_m, :]
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(tile_m.end):
            key = k[b.begin, group, tile_n, :]
            seen = tile_m.index[:, None] >= tile_n.index[None, :]
            scores = torch.where(seen, hl.dot(query, key.T) * scale, float("-inf"))
            weights = torch.exp(scores - logsum[b.begin, h.begin, tile_m][:, None])
            changes = hl.dot(upstream, v[b.begin, group, tile_n, :].T)
            differences = weights * (changes - delta[b.begin, h.begin, tile_m][:, None])
            acc = hl.dot(differences.to(k.dtype), key, acc=acc)
        dq[b.begin, h.begin, tile_m, :] = acc * scale
    return dq


@helion.kernel()
def grouped_dk_dv(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor, logsum: torch.Tensor, delta: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of `k` and `v`, each summed over the heads of its group."""
    batch, heads, m, _ = q.size()
    groups = k.size(1)
    shared, dims = hl.specialize(heads // groups), hl.specialize(q.size(3))
    scale = 1 / math.sqrt(dims)
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    for b, g, tile_n in hl.tile([batch, groups, m], block_size=[1, 1, None]):
        key, value = k[b.begin, g.begin, tile_n, :], v[b.begin, g.begin, tile_n, :]
        key_sum = hl.zeros([tile_n, dims], dtype=torch.float32)
        value_sum = hl.zeros([tile_n, dims], dtype=torch.float32)
        for at in hl.grid(shared):
            h = g.begin * shared + at
            for tile_m in hl.tile(tile_n.begin, m):
                query, upstream = q[b.begin, h, tile_m, :], grad[b.begin, h, tile_m, :]
                seen = tile_n.index[:, None] <= tile_m.index[None, :]
                scores = torch.where(seen, hl.dot(key, query.T) * scale, float("-inf"))
                weights = torch.exp(scores - logsum[b.begin, h, tile_m][None, :])
                value_sum = hl.dot(weights.to(grad.dtype), upstream, acc=value_sum)
                changes = hl.dot(value, upstream.T) - delta[b.begin, h, tile_m][None, :]
                key_sum = hl.dot((weights * changes).to(q.dtype), query, acc=key_sum)
        dk[b.begin, g.begin, tile_n, :] = key_sum * scale
        dv[b.begin, g.begin, tile_n, :] = value_sum
    return dk, dv


class GroupedAttention(torch.autograd.Function):
    """Causal attention with grouped queries."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out, logsum = grouped_forward(q, k, v)
        ctx.save_for_backward(q, k, v, out, logsum)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q, k, v, out, logsum = ctx.saved_tensors
        grad = grad.contiguous()
        delta = (grad.float() * out.float()).sum(-1)
        return (grouped_dq(q, k, v, grad, logsum, delta), *grouped_dk_dv(q, k, v, grad, logsum, delta))


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    shared = q.size(1) // k.size(1)
    k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    scores = (q @ k.mT / math.sqrt(q.size(3))).masked_fill(~_seen(q), -math.inf)
    return out, torch.logsumexp(scores, -1)


def _seen(q: torch.Tensor) -> torch.Tensor:
    return torch.ones(q.size(2), q.size(2), dtype=torch.bool, device=q.device).tril()


def gradients(function: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor) -> Any:
    """Return the gradients of a function of q, k and v."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    return torch.autograd.grad(function(*leaves), leaves, grad)


def check_gradients(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> float:
    """Return the error of the gradients against autograd in fp32. Raises AssertionError if it is too large."""
    return relative_error(
        lambda *args: gradients(GroupedAttention.apply, *args),
        lambda *args: gradients(lambda *leaves: reference(*leaves)[0], *args),
        (q, k, v, randn(*q.size())),
    )


def cases() -> list[tuple[helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    return [(grouped_forward, (randn(1, 4, 100, 64, mean=0.0), randn(1, 2, 100, 64), randn(1, 2, 100, 64)))]


def main() -> None:
    for kernel, args in cases():
        beside_torch(kernel, reference, args)
        print(f"gradients: error {check_gradients(*args):.1e}")


if __name__ == "__main__":
    main()
