"""Gradients that are derived from an attention as a whole: their values, and the kernels that the cute backend takes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from backends.cute.attention_kernels import attention as example
from backends.cute.attention_kernels import rows_of_heads

import helion
import helion.experimental
import helion.language as hl
from helion._compiler.autodiff.transform import StagedBackward
from helion.runtime.torch_interop import gradients


def attention(q, k, v, causal: hl.constexpr, cap: hl.constexpr, window: hl.constexpr):
    """Heads that share keys, and masks by distance that are aligned with the last key."""
    batch, heads, m, _ = q.size()
    n, shared = k.size(2), heads // k.size(1)
    dims, wide = hl.specialize(q.size(3)), hl.specialize(v.size(3))
    out = torch.empty([batch, heads, m, wide], dtype=q.dtype, device=q.device)
    for b, h, tile_m in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, wide], dtype=torch.float32)
        query = q[b.begin, h.begin, tile_m, :]
        for tile_n in hl.tile(n):
            scores = hl.dot(query, k[b.begin, h.begin // shared, tile_n, :].T) * dims**-0.5
            if cap:
                scores = cap * torch.tanh(scores / cap) - 0.5 * scores
            after = tile_n.index[None, :] - tile_m.index[:, None]
            if causal:
                scores = torch.where(after <= n - m, scores, float("-inf"))
            if window:
                scores = torch.where(after > n - m - window, scores, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights = torch.exp(scores - raised[:, None])
            shrink = torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[b.begin, h.begin // shared, tile_n, :], acc=acc * shrink[:, None])
            highest = raised
        out[b.begin, h.begin, tile_m, :] = (acc / total[:, None]).to(out.dtype)
    return out


def with_bias(q, k, v, bias):
    batch, heads, m, _ = q.size()
    n, dims = k.size(2), hl.specialize(q.size(3))
    out = torch.empty_like(q)
    for b, h, tile_m in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(n):
            scores = hl.dot(q[b.begin, h.begin, tile_m, :], k[b.begin, h.begin, tile_n, :].T) * dims**-0.5
            scores = scores + bias[h.begin, tile_m, tile_n]
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[b.begin, h.begin, tile_n, :], acc=acc * shrink[:, None])
            highest = raised
        out[b.begin, h.begin, tile_m, :] = (acc / total[:, None]).to(out.dtype)
    return out


def operands(heads: int, groups: int, m: int, n: int, dims: int, wide: int, dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(1)
    sizes = ((heads, m, dims), (groups, n, dims), (groups, n, wide))
    return [(torch.randn(2, *size) + 0.2).to(dtype).requires_grad_() for size in sizes]


def reference(q, k, v, causal, cap, window):
    shared = q.size(1) // k.size(1)
    k, v = (x.repeat_interleave(shared, 1) for x in (k, v))
    scores = q @ k.mT / math.sqrt(q.size(3))
    scores = cap * torch.tanh(scores / cap) - 0.5 * scores if cap else scores
    m, n = scores.shape[-2:]
    after = torch.arange(n) - torch.arange(m)[:, None]
    scores = scores.masked_fill(after > n - m, -math.inf) if causal else scores
    scores = scores.masked_fill(after <= n - m - window, -math.inf) if window else scores
    return torch.softmax(scores, -1) @ v


def derived(monkeypatch: pytest.MonkeyPatch) -> list[gradients.BackwardKernel]:
    """Return the list of backward kernels that are made from now on."""
    made: list[gradients.BackwardKernel] = []
    load = gradients._load
    monkeypatch.setattr(gradients, "_load", lambda *given: made.append(load(*given)) or made[-1])
    return made


CASES: list[tuple[tuple[int, ...], tuple[Any, ...], torch.dtype]] = [
    ((4, 2, 130, 150, 64, 64), (True, None, None), torch.bfloat16),
    ((2, 2, 70, 150, 64, 96), (False, 2.0, None), torch.float16),
    ((2, 1, 130, 150, 64, 64), (True, None, 50), torch.bfloat16),
]


@pytest.mark.parametrize(
    ("backend", "sizes", "options", "dtype"),
    [
        ("triton", *CASES[2]),
        *(("cute", *case) for case in CASES),
        *(pytest.param("triton", *case, marks=pytest.mark.prove) for case in CASES[:2]),
    ],
)
def test_values(monkeypatch: pytest.MonkeyPatch, backend: str, sizes: Any, options: Any, dtype: torch.dtype) -> None:
    """Compare with fp64, also by kernels of Triton, where rows of a window begin with blocks that they do not see."""
    if backend == "triton":
        sizes = (sizes[0], sizes[1], 40, 70, 32, 32)
    made, tensors = derived(monkeypatch), operands(*sizes, dtype)
    out = helion.kernel(backend=backend)(attention).differentiable()(*tensors, *options)
    given = torch.randn_like(out)
    found = torch.autograd.grad(out, tensors, given)
    assert [type(each.of) for each in made] == [StagedBackward]
    exact = [x.detach().double().requires_grad_() for x in tensors]
    wanted = torch.autograd.grad(reference(*exact, *options), exact, given.double())
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == dtype
        assert (one.double() - other).norm() < (6e-3 if dtype == torch.bfloat16 else 2e-3) * other.norm()


@pytest.mark.parametrize("stored", [False, True])
def test_kernels_for_any_sizes_are_made_once(monkeypatch: pytest.MonkeyPatch, stored: bool) -> None:
    """Derive gradients of a kernel with dynamic shapes: each size has the same kernels, the forward of the user included."""
    made = derived(monkeypatch)
    kernel = helion.kernel(backend="cute", static_shapes=False)(rows_of_heads if stored else attention)
    function = kernel.differentiable()
    for at, sizes in enumerate(((4, 2, 130, 150), (4, 2, 70, 201), (6, 3, 33, 90))):
        tensors = operands(*sizes, 64, 64, torch.bfloat16)
        exact = [x.detach().double().requires_grad_() for x in tensors]
        result = reference(*exact, True, None, None)
        upstream = torch.randn_like(result)
        wanted = torch.autograd.grad(result, exact, upstream)
        for _ in range(2 if at == 0 else 1):  # the second call of a size is direct
            if stored:
                rows = [x.transpose(1, 2).contiguous() for x in tensors]
                out = function(*rows, True)[0].transpose(1, 2)
            else:
                out = function(*tensors, True, None, None)
            found = torch.autograd.grad(out, tensors, upstream.to(out.dtype))
            for one, other in zip((out, *found), (result, *wanted), strict=True):
                assert (one.double() - other).norm() < 6e-3 * other.norm()
    assert len({id(each) for each in made}) == 1 and made[0].of.any_size


def test_gradients_of_biases_have_kernels_for_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Derive them from the kernel with static shapes, since their text has sizes."""
    made, tensors = derived(monkeypatch), operands(2, 2, 40, 50, 64, 64, torch.bfloat16)
    bias = torch.randn(2, 40, 50, requires_grad=True)
    function = helion.kernel(backend="cute", static_shapes=False)(with_bias).differentiable()
    out = function(*tensors, bias)
    upstream = torch.randn_like(out)
    found = torch.autograd.grad(out, (*tensors, bias), upstream)
    exact = [x.detach().double().requires_grad_() for x in (*tensors, bias)]
    q, k, v, added = exact
    wanted = torch.autograd.grad(torch.softmax(q @ k.mT / 8 + added, -1) @ v, exact, upstream.double())
    for one, other in zip(found, wanted, strict=True):
        assert (one.double() - other).norm() < 8e-3 * other.norm()
    assert [each.of.any_size for each in made] == [False]


@pytest.mark.parametrize("with_logarithms", [True, False])
def test_stored_logarithms_are_not_computed_again(monkeypatch: pytest.MonkeyPatch, with_logarithms: bool) -> None:
    """`[B, S, H, D]`, whose kernel returns logarithms. They may have a gradient, and calls after the first are direct."""
    made, tensors = derived(monkeypatch), operands(4, 2, 60, 70, 64, 64, torch.bfloat16)
    rows = [x.detach().transpose(1, 2).contiguous().requires_grad_() for x in tensors]
    exact = [x.detach().double().requires_grad_() for x in tensors]
    scores = exact[0] @ exact[1].repeat_interleave(2, 1).mT / 8
    scores = scores.masked_fill(torch.ones(60, 70).triu(11).bool(), -math.inf)
    result, logarithms = torch.softmax(scores, -1) @ exact[2].repeat_interleave(2, 1), torch.logsumexp(scores, -1)
    given, more = torch.randn(result.shape).double(), torch.randn(logarithms.shape).double() * with_logarithms
    wanted = torch.autograd.grad((result * given).sum() + (logarithms * more).sum(), exact)
    function = helion.kernel(backend="cute")(rows_of_heads).differentiable()
    for _ in range(2):
        out, logsum = function(*rows, True)
        total = (out.transpose(1, 2).double() * given).sum() + (
            (logsum.double() * more).sum() if with_logarithms else 0
        )
        found = torch.autograd.grad(total, rows)
        for one, other in zip(found, wanted, strict=True):
            assert (one.transpose(1, 2).double() - other).norm() < 6e-3 * other.norm()
    assert [type(each.of) for each in made] == [StagedBackward]
    assert "attention_again" not in made[0].text


def test_results_that_are_overwritten() -> None:
    """The first call is recorded, later ones keep the results by autograd: both notice what happens to them."""
    tensors = [x.transpose(1, 2).contiguous() for x in operands(1, 1, 40, 50, 64, 64, torch.bfloat16)]
    rows = [x.detach().requires_grad_() for x in tensors]
    function = helion.kernel(backend="cute")(rows_of_heads).differentiable()
    for _ in range(2):
        out, _ = function(*rows, False)
        total = out.sum()
        with torch.no_grad():
            out.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(total, rows)


@pytest.mark.parametrize("causal", [False, True])
def test_keys_that_the_host_transposes(monkeypatch: pytest.MonkeyPatch, causal: bool) -> None:
    """The example, whose loop ends with the tile: gradients have the shapes of its views."""
    made, tensors = derived(monkeypatch), operands(2, 2, 130, 130, 64, 64, torch.bfloat16)
    out = helion.kernel(backend="cute")(example.fn).differentiable()(*tensors, causal)
    found = torch.autograd.grad(out, tensors, torch.ones_like(out) + out.detach())
    assert [type(each.of) for each in made] == [StagedBackward]
    exact = [x.detach().double().requires_grad_() for x in tensors]
    result = reference(*exact, causal, None, None)
    wanted = torch.autograd.grad(result, exact, torch.ones_like(result) + out.detach().double())
    for one, other in zip(found, wanted, strict=True):
        assert (one.double() - other).norm() < 6e-3 * other.norm()


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_gradients_of_some_tensors(monkeypatch: pytest.MonkeyPatch, missing: int) -> None:
    made, tensors = derived(monkeypatch), operands(2, 2, 60, 70, 64, 64, torch.bfloat16)
    tensors[missing].requires_grad_(False)
    asked = [each for each in tensors if each.requires_grad]
    out = helion.kernel(backend="cute")(attention).differentiable()(*tensors, False, None, None)
    found = torch.autograd.grad(out, asked, torch.ones_like(out))
    assert [type(each.of) for each in made] == [StagedBackward]
    exact = [x.detach().double().requires_grad_(x.requires_grad) for x in tensors]
    result = reference(*exact, False, None, None)
    wanted = torch.autograd.grad(result, [x for x in exact if x.requires_grad], torch.ones_like(result))
    for one, other in zip(found, wanted, strict=True):
        assert (one.double() - other).norm() < 6e-3 * other.norm()


@pytest.mark.parametrize(
    ("dims", "causal", "cap", "deterministic"),
    [(64, True, None, False), (128, False, 2.0, False), (128, True, None, True)],
)
def test_gradients_in_one_kernel(
    monkeypatch: pytest.MonkeyPatch, dims: int, causal: bool, cap: float | None, deterministic: bool
) -> None:
    """Heads that share keys: one kernel, or two in a fixed order where torch is asked for that."""
    made, tensors = derived(monkeypatch), operands(4, 2, 70, 90, dims, dims, torch.bfloat16)
    out = helion.kernel(backend="cute")(attention).differentiable()(*tensors, causal, cap, None)
    (backward,) = made
    names: Any = backward.kernel.__globals__  # type: ignore[attr-defined]
    ran = []
    for name in ("all_gradients", "gradient_of_queries", "gradients_of_keys"):
        monkeypatch.setitem(names, name, lambda *given, name=name, run=names[name]: ran.append(name) or run(*given))
    given = torch.randn_like(out)
    torch.use_deterministic_algorithms(deterministic)
    try:
        found = torch.autograd.grad(out, tensors, given)
    finally:
        torch.use_deterministic_algorithms(False)
    assert ran == (["gradient_of_queries", "gradients_of_keys"] if deterministic else ["all_gradients"])
    exact = [x.detach().double().requires_grad_() for x in tensors]
    wanted = torch.autograd.grad(reference(*exact, causal, cap, None), exact, given.double())
    for one, other in zip(found, wanted, strict=True):
        assert (one.double() - other).norm() < 6e-3 * other.norm()


@pytest.mark.parametrize("backend", ["cute", "triton"])
def test_two_kernels_where_one_is_not_faster(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    """Derive no kernel of all gradients for Triton, nor for some of the tensors, nor for capped scores of narrow heads."""
    for dims, asked, cap in ((128, 2, None), (64, 3, 2.0)) if backend == "cute" else ((128, 3, None),):
        made, tensors = derived(monkeypatch), operands(1, 1, 60, 70, dims, dims, torch.bfloat16)
        tensors = [x.detach().requires_grad_(at < asked) for at, x in enumerate(tensors)]
        helion.kernel(backend=backend)(attention).differentiable()(*tensors, False, cap, None)
        assert "all_gradients" not in made[0].text


@pytest.mark.parametrize("dims", [64, 128, 256])
def test_the_cute_backend_takes_all_kernels(monkeypatch: pytest.MonkeyPatch, dims: int) -> None:
    made, tensors = derived(monkeypatch), operands(2, 1, 60, 70, dims, dims, torch.bfloat16)
    kernel = helion.kernel(backend="cute")(attention)
    kernel.differentiable()(*tensors, True, None, None)
    (backward,) = made
    names: Any = backward.kernel.__globals__  # type: ignore[attr-defined]
    meta = [x.detach().to("meta") for x in tensors]
    numbers = [torch.empty(2, 2, 60, device="meta")] * 2
    grad = torch.empty(2, 2, 60, dims, dtype=torch.bfloat16, device="meta")
    for name, given in (
        ("attention_with_logarithms", (*meta, grad)),
        ("gradient_of_queries", (*meta, grad, *numbers)),
        ("gradients_of_keys", (*meta, grad, *numbers)),
        *([("all_gradients", (*meta, grad, *numbers))] if dims < 256 else []),
    ):
        helion.kernel(backend="cute")(names[name].fn).bind(tuple(given), target="h200").plan()


def test_code_that_is_asked_for_is_one_kernel() -> None:
    tensors = [x.detach() for x in operands(1, 1, 40, 50, 64, 64, torch.bfloat16)]
    kernel, given = helion.kernel(backend="cute")(attention), (False, None, None)
    out = kernel(*tensors, *given)
    _, source, _ = helion.experimental.backward(kernel, torch.ones_like(out), *tensors, *given, return_code=True)
    assert source.count("@helion.kernel") == 1
