"""Gradients that are derived from attention whose queries see ranges of keys, by integers that are loaded for them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from backends.cute.test_derivative import derived

import helion
import helion.language as hl
from helion._compiler.autodiff.transform import StagedBackward

ROWS, HIDDEN = 50, 7


def of_ranges(q, k, v, begins, ends, zeros: hl.constexpr):
    """`[S, H, D]`; rows without keys have what is left of finite masks, or zeros."""
    rows, heads = q.size(0), q.size(1)
    dims, shared = hl.specialize(q.size(2)), heads // k.size(1)
    out = torch.empty_like(q)
    logsum = torch.empty([heads, rows], dtype=torch.float32, device=q.device)
    for tile_h, tile_m in hl.tile([heads, rows], block_size=[1, None]):
        head = tile_h.begin
        query, first, last = q[tile_m, head, :], begins[tile_m], ends[tile_m]
        highest = hl.full([tile_m], -1e30, dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(torch.amin(first), torch.amax(last)):
            scores = hl.dot(query, k[tile_n, head // shared, :].T) * (dims**-0.5 * math.log2(math.e))
            key = tile_n.index[None, :]
            scores = torch.where((key >= first[:, None]) & (key < last[:, None]), scores, -1e30)
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights = torch.exp2(scores - raised[:, None])
            shrink = torch.exp2(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[tile_n, head // shared, :], acc=acc * shrink[:, None])
            highest = raised
        if zeros:
            sees = first < last
            out[tile_m, head, :] = torch.where(sees[:, None], acc / total[:, None], 0.0)
            logsum[head, tile_m] = torch.where(sees, highest + torch.log2(total), float("inf"))
        else:
            out[tile_m, head, :] = acc / total[:, None]
    return (out, logsum) if zeros else out


def reference(q, k, v, begins, ends):
    shared = q.size(1) // k.size(1)
    key = torch.arange(ROWS)
    seen = (key >= begins[:, None]) & (key < ends[:, None])
    some = seen.any(1, keepdim=True)
    scores = torch.einsum("thd,shd->hts", q, k.repeat_interleave(shared, 1)) * q.size(2) ** -0.5
    weights = torch.softmax(scores.masked_fill(~seen, -math.inf).masked_fill(~some, 0.0), -1) * some
    return torch.einsum("hts,shd->thd", weights, v.repeat_interleave(shared, 1))


def ranges(ordered: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first keys and those after the last ones: of sequences after rows of none, or in any order."""
    if ordered:
        ends = torch.tensor([HIDDEN, 20, 21, 45], dtype=torch.int32)
        after = torch.searchsorted(ends, torch.arange(ROWS, dtype=torch.int32), right=True)
        return ends[(after - 1).clamp(min=0)], ends[after.clamp(max=3)]
    begins = torch.randint(0, ROWS - 10, (ROWS,), generator=torch.Generator().manual_seed(3))
    return begins, begins + torch.arange(ROWS) % 11


@pytest.mark.parametrize(
    ("zeros", "ordered", "heads", "backend", "static"),
    [(True, True, (2, 1), "cute", False), (False, False, (2, 2), "triton", True), (True, False, (4, 2), "cute", True)],
)
def test_values(
    monkeypatch: pytest.MonkeyPatch, zeros: bool, ordered: bool, heads: tuple[int, int], backend: str, static: bool
) -> None:
    """Compare with fp64: no kernel keeps what a step of the loop computes. Rows that see no key have no gradient."""
    torch.manual_seed(0)
    made, (begins, ends) = derived(monkeypatch), ranges(ordered)
    tensors = [(torch.randn(ROWS, number, 16) + 0.2).bfloat16() for number in (*heads, heads[1])]
    for each in tensors:
        each.requires_grad_()
    settings: dict[str, Any] = {"backend": backend, "static_shapes": static}
    out = helion.kernel(of_ranges, **settings).differentiable()(*tensors, begins, ends, zeros)
    out = out[0] if zeros else out
    upstream = torch.randn_like(out)
    found = torch.autograd.grad(out, tensors, upstream)
    exact = [each.detach().double().requires_grad_() for each in tensors]
    wanted = torch.autograd.grad(reference(*exact, begins, ends), exact, upstream.double())
    assert [type(each.of) for each in made] == [StagedBackward]
    assert "cummax" in made[0].text and ("attention_again" in made[0].text) == (not zeros)
    for one, other in zip(found, wanted, strict=True):
        assert (one.double() - other).norm() < 6e-3 * other.norm()
    assert not found[0][begins >= ends].any()


def of_lengths(q, k, v, lengths, in_loop: hl.constexpr):
    """`[B, H, S, D]`; each of the batch has its number of keys."""
    batch, heads, rows, _ = q.size()
    keys, shared, dims = k.size(2), heads // k.size(1), hl.specialize(q.size(3))
    out = torch.empty_like(q)
    for b, h, tile_m in hl.tile([batch, heads, rows], block_size=[1, 1, None]):
        length, group = lengths[b.begin], h.begin // shared
        query = q[b.begin, h.begin, tile_m, :]
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(length if in_loop else keys):
            scores = hl.dot(query, k[b.begin, group, tile_n, :].T) * dims**-0.5
            if not in_loop:
                scores = torch.where(tile_n.index[None, :] < length, scores, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights = torch.exp(scores - raised[:, None])
            shrink = torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[b.begin, group, tile_n, :], acc=acc * shrink[:, None])
            highest = raised
        out[b.begin, h.begin, tile_m, :] = acc / total[:, None]
    return out


@pytest.mark.parametrize(("in_loop", "backend"), [(True, "triton"), (True, "cute"), (False, "cute")])
def test_lengths(monkeypatch: pytest.MonkeyPatch, in_loop: bool, backend: str) -> None:
    """Keys after the last one of a loop may be no numbers, and have no gradient."""
    torch.manual_seed(0)
    made, lengths = derived(monkeypatch), torch.tensor([33, 70], dtype=torch.int32)
    tensors = [torch.randn(2, heads, rows, 16).bfloat16() for heads, rows in ((4, 50), (2, 70), (2, 70))]
    exact = [each.double().requires_grad_() for each in tensors]
    hidden = torch.arange(70) >= lengths[:, None, None, None]
    for each in tensors[1:]:
        each.masked_fill_(hidden.mT & in_loop, math.nan)
    for each in tensors:
        each.requires_grad_()
    out = helion.kernel(of_lengths, backend=backend).differentiable()(*tensors, lengths, in_loop)
    upstream = torch.randn_like(out)
    found = torch.autograd.grad(out, tensors, upstream)
    q, k, v = exact
    scores = (q @ k.repeat_interleave(2, 1).mT / 4).masked_fill(hidden, -math.inf)
    wanted = torch.autograd.grad(torch.softmax(scores, -1) @ v.repeat_interleave(2, 1), exact, upstream.double())
    assert [type(each.of) for each in made] == [StagedBackward]
    for one, other in zip(found, wanted, strict=True):
        assert (one.double() - other).norm() < 6e-3 * other.norm()


def test_gradients_of_keys_run_on_request() -> None:
    """Their registers spill where integers of streamed rows hide rows as well: they are left to the general backend."""

    def of_keys(q, k, grad, logsum, begins, ends, first_rows, last_rows):
        heads, dims = q.size(1), hl.specialize(q.size(2))
        out = torch.empty_like(k)
        for tile_h, tile_n in hl.tile([heads, k.size(0)], block_size=[1, None]):
            head = tile_h.begin
            key, first, last = k[tile_n, head, :], first_rows[tile_n], last_rows[tile_n]
            acc = hl.zeros([tile_n, dims], dtype=torch.float32)
            for tile_m in hl.tile(torch.amin(first), torch.amax(last)):
                scores = hl.dot(q[tile_m, head, :], key.T) - logsum[head, tile_m][:, None]
                at, row = tile_n.index[None, :], tile_m.index[:, None]
                hidden = (at < begins[tile_m][:, None]) | (at >= ends[tile_m][:, None])
                scores = torch.where(hidden, float("-inf"), scores)
                inside = (row >= first[None, :]) & (row < last[None, :])
                weights = torch.where(inside, torch.exp2(scores), 0.0)
                changes = weights * hl.dot(grad[tile_m, head, :], key.T)
                acc = hl.dot(changes.to(q.dtype).T, q[tile_m, head, :], acc=acc)
            out[tile_n, head, :] = acc
        return out

    tensors = [torch.empty(4096, 4, 64, dtype=torch.bfloat16, device="meta")] * 3
    integers = [torch.empty(4096, dtype=torch.int32, device="meta")] * 4
    arguments = (*tensors, torch.empty(4, 4096, device="meta"), *integers)
    assert helion.kernel(backend="cute")(of_keys).bind(arguments, target="h200").backend_on_gpu == "cute"
    assert helion.kernel(of_keys).bind(arguments, target="h200").backend_on_gpu == "triton"
