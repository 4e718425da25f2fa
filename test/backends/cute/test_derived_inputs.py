"""Gradients that are derived from attention whose scores read other inputs: biases, numbers, and scores without values."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from backends.cute.test_derivative import derived

import helion
import helion.language as hl
from helion._compiler.autodiff.transform import Backward, StagedBackward


def biased(q, k, v, bias, scale: float, kind: hl.constexpr):
    """`[B, H, S, D]` with a bias for each element, key or query of some of the heads, or times the distance."""
    batch, heads, m, _ = q.size()
    n, dims = k.size(2), hl.specialize(q.size(3))
    out = torch.empty_like(q)
    for b, h, tile_m in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(n):
            scores = hl.dot(q[b.begin, h.begin, tile_m, :], k[b.begin, h.begin, tile_n, :].T) * scale
            if kind == "whole":
                scores = scores + bias[b.begin, h.begin, tile_m, tile_n]
            if kind == "of heads":
                scores = scores + bias[h.begin, tile_m, tile_n]
            if kind == "turned":
                scores = scores + bias[0, tile_n, tile_m].T
            if kind == "of keys":
                scores = scores + 2 * bias[b.begin, tile_n][None, :]
            if kind == "of queries":
                scores = scores * bias[tile_m, h.begin][:, None]
            if kind == "slopes":
                distance = (tile_n.index[None, :] - tile_m.index[:, None]).to(torch.float32)
                scores = scores + bias[h.begin] * distance
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights = torch.exp(scores - raised[:, None])
            shrink = torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[b.begin, h.begin, tile_n, :], acc=acc * shrink[:, None])
            highest = raised
        out[b.begin, h.begin, tile_m, :] = (acc / total[:, None]).to(out.dtype)
    return out


def with_sinks(q, k, v, sinks, stored: hl.constexpr):
    """Causal `[H, S, D]` in base 2, with a score without a value for each head, and the logarithms of the sums if asked."""
    heads, m, dims = q.size()
    dims = hl.specialize(dims)
    out = torch.empty_like(q)
    logsum = torch.empty([heads, m], dtype=torch.float32, device=q.device)
    for h, tile_m in hl.tile([heads, m], block_size=[1, None]):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(0, tile_m.end):
            scores = hl.dot(q[h.begin, tile_m, :], k[h.begin, tile_n, :].T) * (dims**-0.5 * math.log2(math.e))
            scores = torch.where(tile_n.index[None, :] <= tile_m.index[:, None], scores, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights = torch.exp2(scores - raised[:, None])
            shrink = torch.exp2(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[h.begin, tile_n, :], acc=acc * shrink[:, None])
            highest = raised
        total = total + torch.exp2(sinks[h.begin].to(torch.float32) * math.log2(math.e) - highest)
        out[h.begin, tile_m, :] = (acc / total[:, None]).to(out.dtype)
        if stored:
            logsum[h.begin, tile_m] = highest + torch.log2(total)
    return (out, logsum) if stored else out


KINDS = ("whole", "of heads", "turned", "of keys", "of queries", "slopes")


def shape_of(kind: str, batch: int, heads: int, m: int, n: int) -> tuple[int, ...]:
    """Return the shape of a bias."""
    shapes: dict[str, tuple[int, ...]] = {
        "whole": (batch, heads, m, n),
        "of heads": (heads, m, n),
        "turned": (1, n, m),
        "of keys": (batch, n),
        "of queries": (m, heads),
        "slopes": (heads,),
    }
    return shapes[kind]


def biased_reference(q, k, v, bias, scale: float, kind: str):
    scores = q @ k.mT * scale
    if kind in ("whole", "of heads"):
        scores = scores + bias
    if kind == "turned":
        scores = scores + bias.mT
    if kind == "of keys":
        scores = scores + 2 * bias[:, None, None, :]
    if kind == "of queries":
        scores = scores * bias.T[:, :, None]
    if kind == "slopes":
        rows, columns = (torch.arange(x.size(2), device=x.device) for x in (q, k))
        scores = scores + bias[:, None, None] * (columns - rows[:, None])
    return torch.softmax(scores, -1) @ v


def hide(bias: torch.Tensor) -> None:
    """Hide all keys of some rows of a bias of heads by large finite numbers, and the first or the last of others."""
    lowest, (_, m, n) = torch.finfo(torch.bfloat16).min, bias.shape
    bias[0, : m // 2] = lowest
    bias[1, :, : n * 2 // 3] = lowest
    bias[2, :, n // 3 :] = -1e30


def close(found: Any, wanted: Any, limit: float = 6e-3) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        assert (one.double() - other).norm() < limit * other.norm()


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_biases(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A number of the launch, and a bias in the dimensions in which it varies; of the second call also, which is direct."""
    made = derived(monkeypatch)
    torch.manual_seed(3)
    sizes = ((2, 3, 40, 32), (2, 3, 50, 32), (2, 3, 50, 32))
    tensors = [(torch.randn(size) + 0.2).bfloat16().requires_grad_() for size in sizes]
    tensors.append((torch.randn(shape_of(kind, 2, 3, 40, 50)) * (0.02 if kind == "slopes" else 0.5)).requires_grad_())
    exact = [x.detach().double().requires_grad_() for x in tensors]
    function = helion.kernel(backend="cute")(biased).differentiable()
    for scale in (0.2, 0.3):
        out = function(*tensors, scale, kind)
        given = torch.randn_like(out)
        result = biased_reference(*exact, scale, kind)
        close([out], [result.detach()])
        found, wanted = torch.autograd.grad(out, tensors, given), torch.autograd.grad(result, exact, given.double())
        close(found[:3], wanted[:3])
        close(found[3:], wanted[3:], 2e-2 if kind == "slopes" else 6e-3)  # differences of sums over all elements
    assert [type(each.of) for each in made] == [StagedBackward]
    assert "attention_again" not in made[0].text


def test_rows_hidden_by_finite_numbers_have_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    made = derived(monkeypatch)
    torch.manual_seed(4)
    tensors = [(torch.randn(2, 3, n, 32) + 0.2).bfloat16().requires_grad_() for n in (40, 50, 50)]
    bias = torch.randn(3, 40, 50)
    hide(bias)
    tensors.append(bias.requires_grad_())
    exact = [x.detach().double().requires_grad_() for x in tensors]
    out = helion.kernel(backend="cute")(biased).differentiable()(*tensors, 0.2, "of heads")
    result = biased_reference(*exact, 0.2, "of heads")
    close([out], [result.detach()])
    given = torch.randn_like(out)
    close(torch.autograd.grad(out, tensors, given), torch.autograd.grad(result, exact, given.double()))
    assert "peak_rows" in made[0].text


def test_biases_without_gradients_are_not_computed_with(monkeypatch: pytest.MonkeyPatch) -> None:
    made = derived(monkeypatch)
    q, k, v = (torch.randn(1, 3, n, 32).bfloat16().requires_grad_() for n in (40, 50, 50))
    function = helion.kernel(backend="cute")(biased).differentiable()
    function(q, k, v, torch.randn(3, 40, 50), 0.2, "of heads")
    assert "gradient_of_input" not in made[0].text
    function(*(x.detach() for x in (q, k, v)), torch.randn(3, 40, 50).requires_grad_(), 0.2, "of heads")
    assert "gradient_of_queries" not in made[1].text
    assert "gradients_of_keys" not in made[1].text


@pytest.mark.parametrize(("stored", "dtype"), [(False, torch.float32), (True, torch.bfloat16)])
def test_gradients_of_scores_without_values(monkeypatch: pytest.MonkeyPatch, stored: bool, dtype: torch.dtype) -> None:
    made = derived(monkeypatch)
    torch.manual_seed(4)
    tensors = [(torch.randn(3, 70, 32) + 0.2).bfloat16().requires_grad_() for _ in range(3)]
    tensors.append((torch.randn(3) + 1).to(dtype).requires_grad_())
    exact = [x.detach().double().requires_grad_() for x in tensors]
    scores = (exact[0] @ exact[1].mT / math.sqrt(32)).masked_fill(torch.ones(70, 70).triu(1).bool(), -math.inf)
    joined = torch.cat((scores, exact[3][:, None, None].expand(3, 70, 1)), -1)
    result, logarithms = torch.softmax(joined, -1)[..., :-1] @ exact[2], torch.logsumexp(joined, -1) * math.log2(math.e)
    given, more = torch.randn(3, 70, 32).bfloat16(), torch.randn(3, 70) * stored
    wanted = torch.autograd.grad((result * given).sum() + (logarithms * more).sum(), exact)
    function = helion.kernel(backend="cute")(with_sinks).differentiable()
    for _ in range(2):
        found = function(*tensors, stored)
        results, gradients = (found, (given, more)) if stored else ((found,), (given,))
        close(results, (result.detach(), logarithms.detach())[: len(results)])
        close(torch.autograd.grad(results, tensors, gradients), wanted)
    assert [type(each.of) for each in made] == [StagedBackward]


def test_configs_are_those_of_the_kernel_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel with a config runs as it is; its gradients compute logarithms again."""
    made = derived(monkeypatch)
    tensors = [torch.randn(3, 70, 32).bfloat16().requires_grad_() for _ in range(3)]
    tensors.append(torch.randn(3))
    config = helion.Config(block_sizes=[64, 64])
    helion.kernel(backend="cute", config=config)(with_sinks).differentiable()(*tensors, False)
    assert "attention_again" in made[0].text


def test_results_that_gradients_read_may_not_change() -> None:
    """The first call is recorded, later ones are direct."""
    tensors = [torch.randn(3, 70, 32).bfloat16().requires_grad_() for _ in range(3)]
    function = helion.kernel(backend="cute")(with_sinks).differentiable()
    for _ in range(2):
        out = function(*tensors, torch.zeros(3), False)
        total = out.sum()
        with torch.no_grad():
            out.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(total, tensors)


def documents(q, k, v, own, kept, safe: hl.constexpr):
    """Causal in documents, without the keys that are not ``kept``. Queries without keys give 0, or no numbers unless ``safe``."""
    heads, m, dims = q.size()
    dims = hl.specialize(dims)
    out = torch.empty_like(q)
    for h, tile_m in hl.tile([heads, m], block_size=[1, None]):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        query = (q[h.begin, tile_m, :] * 0.2).to(q.dtype)
        for tile_n in hl.tile(0, tile_m.end):
            scores = hl.dot(query, k[h.begin, tile_n, :].T)
            seen = tile_n.index[None, :] <= tile_m.index[:, None]
            seen = seen & (own[tile_n][None, :] == own[tile_m][:, None]) & kept[tile_n][None, :]
            scores = torch.where(seen, scores, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            less = torch.where(raised == float("-inf"), 0.0, raised)
            weights = torch.exp(scores - less[:, None])
            shrink = torch.exp(highest - less)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[h.begin, tile_n, :], acc=acc * shrink[:, None])
            highest = raised
        if safe:
            total = torch.where(total > 0, total, 1.0)
        out[h.begin, tile_m, :] = (acc / total[:, None]).to(out.dtype)
    return out


@pytest.mark.parametrize("safe", [True, False])
def test_masks_of_documents(monkeypatch: pytest.MonkeyPatch, safe: bool) -> None:
    """A mask that is a band in part, which bounds the loop, and exponents less a maximum that may be minus infinity."""
    made = derived(monkeypatch)
    torch.manual_seed(6)
    tensors = [(torch.randn(3, 140, 32) + 0.2).bfloat16().requires_grad_() for _ in range(3)]
    own, kept = torch.arange(140, dtype=torch.int32) // 48, torch.arange(140) % 7 != 3
    if safe:
        kept[:5] = False  # queries without keys
    seen = (torch.ones(140, 140).tril() > 0) & (own[:, None] == own) & kept
    some = seen.any(-1)
    exact = [x.detach().double().requires_grad_() for x in tensors]
    scores = (exact[0] @ exact[1].mT * 0.2).masked_fill(~seen, -math.inf).masked_fill(~some[:, None], 0.0)
    result = (torch.softmax(scores, -1) @ exact[2]) * some[:, None]
    kernel = helion.kernel(documents, backend="cute")
    bound = kernel.bind((*(x.detach() for x in tensors), own, kept, safe))
    assert bound.plan(helion.Config(block_sizes=[64, 64])).attention.problem.band.last == 0
    given = torch.randn(3, 140, 32).bfloat16()
    wanted = torch.autograd.grad(result, exact, given.double())
    close([kernel(*(x.detach() for x in tensors), own, kept, safe)], [result.detach()])
    for _ in range(2):
        out = kernel.differentiable()(*tensors, own, kept, safe)
        close([out], [result.detach()])
        close(torch.autograd.grad(out, tensors, given), wanted)
    assert [type(each.of) for each in made] == [StagedBackward]


def beginning_with_sinks(qkv, sinks, scale: float):
    """`[S, 3, H, D]`, whose parts are views, with the sinks as initial maxima, and queries that are scaled in their type."""
    m, _, heads, dims = qkv.size()
    dims = hl.specialize(dims)
    q, k, v = qkv[:, 0], qkv[:, 1], qkv[:, 2]
    out = torch.empty([m, heads, dims], dtype=qkv.dtype, device=qkv.device)
    for h, tile_m in hl.tile([heads, m], block_size=[1, None]):
        highest = hl.zeros([tile_m], dtype=torch.float32) + sinks[h.begin]
        total = hl.full([tile_m], 1.0, dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        query = (q[tile_m, h.begin, :] * scale).to(q.dtype)
        for tile_n in hl.tile(m):
            scores = hl.dot(query, k[tile_n, h.begin, :].T)
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights = torch.exp(scores - raised[:, None])
            shrink = torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[tile_n, h.begin, :], acc=acc * shrink[:, None])
            highest = raised
        out[tile_m, h.begin, :] = (acc / total[:, None]).to(out.dtype)
    return out


def test_views_and_initial_sinks(monkeypatch: pytest.MonkeyPatch) -> None:
    made = derived(monkeypatch)
    torch.manual_seed(7)
    tensors = [(torch.randn(90, 3, 2, 32) + 0.2).bfloat16().requires_grad_(), torch.randn(2).requires_grad_()]
    exact = [x.detach().double().requires_grad_() for x in tensors]
    q, k, v = (exact[0][:, at].transpose(0, 1) for at in range(3))
    joined = torch.cat((q @ k.mT * 0.3, exact[1][:, None, None].expand(2, 90, 1)), -1)
    result = (torch.softmax(joined, -1)[..., :-1] @ v).transpose(0, 1)
    out = helion.kernel(backend="cute")(beginning_with_sinks).differentiable()(*tensors, 0.3)
    given = torch.randn_like(out)
    close([out], [result.detach()])
    close(torch.autograd.grad(out, tensors, given), torch.autograd.grad(result, exact, given.double()))
    assert [type(each.of) for each in made] == [StagedBackward]


def rectified(q, k, v):
    """Scores with an operation that no rule of the derivation has."""
    m, dims = q.size(0), hl.specialize(q.size(1))
    out = torch.empty_like(q)
    for tile_m in hl.tile(m):
        highest = hl.full([tile_m], -1e30, dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(k.size(0)):
            scores = hl.dot(q[tile_m, :], k[tile_n, :].T)
            scores = torch.relu(scores)
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights = torch.exp(scores - raised[:, None])
            shrink = torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[tile_n, :], acc=acc * shrink[:, None])
            highest = raised
        out[tile_m, :] = (acc / total[:, None]).to(out.dtype)
    return out


def test_other_scores_are_differentiated_op_by_op(monkeypatch: pytest.MonkeyPatch) -> None:
    made = derived(monkeypatch)
    q, k, v = (torch.randn(40, 32).bfloat16().requires_grad_() for _ in range(3))
    helion.kernel(backend="cute")(rectified).differentiable()(q, k, v)
    assert [type(each.of) for each in made] == [Backward]


def packed(qkv, dims: hl.constexpr):
    """`[B, S, 3, H, D]`, all in one tensor."""
    batch, m, heads = qkv.size(0), qkv.size(1), qkv.size(3)
    out = torch.empty([batch, m, heads, dims], dtype=qkv.dtype, device=qkv.device)
    for b, h, tile_m in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(m):
            scores = hl.dot(qkv[b.begin, tile_m, 0, h.begin, :], qkv[b.begin, tile_n, 1, h.begin, :].T) * 0.2
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights = torch.exp(scores - raised[:, None])
            shrink = torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(qkv.dtype), qkv[b.begin, tile_n, 2, h.begin, :], acc=acc * shrink[:, None])
            highest = raised
        out[b.begin, tile_m, h.begin, :] = (acc / total[:, None]).to(out.dtype)
    return out


def test_one_tensor_of_queries_keys_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    made = derived(monkeypatch)
    torch.manual_seed(8)
    qkv = (torch.randn(2, 70, 3, 2, 64) + 0.2).bfloat16().requires_grad_()
    exact = qkv.detach().double().requires_grad_()
    q, k, v = (exact[:, :, at].transpose(1, 2) for at in range(3))
    result = (torch.softmax(q @ k.mT * 0.2, -1) @ v).transpose(1, 2)
    function = helion.kernel(backend="cute")(packed).differentiable()
    for _ in range(2):
        out = function(qkv, 64)
        given = torch.randn_like(out)
        wanted = torch.autograd.grad(result, [exact], given.double(), retain_graph=True)
        close(torch.autograd.grad(out, [qkv], given), wanted)
    assert [type(each.of) for each in made] == [StagedBackward]
