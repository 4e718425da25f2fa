"""Attention, and its gradients, of sizes and strides that only launches know: one kernel for all of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from backends.cute import attention_kernels, backward_kernels

import helion
from helion.backends.cute.shapes import shape_of_plan
from helion.ops.kernels import attention as ops

FORWARD = {case.name.split(" (")[0]: (case, arguments) for case, arguments in attention_kernels.cases()}
BACKWARD = {case.name: case for case in backward_kernels.cases()}
SAMPLED = ("published", "causal", "flex capped_window", "rows of heads True", "packed", "documents")
GRADIENTS = ("queries, causal", "shared keys, causal", "all, causal")
SIZES = ((8, 2, 577, 577), (8, 2, 63, 1000), (4, 4, 130, 131), (6, 2, 5, 300))
"""Heads, heads of K and V, queries and keys."""


def dynamic(function: Any, **settings: Any) -> Any:
    return helion.kernel(backend="cute", static_shapes=False, **settings)(function)


def prove_others(names: Any, sampled: tuple[str, ...]) -> list[Any]:
    return [name if name in sampled else pytest.param(name, marks=pytest.mark.prove) for name in names]


def close(found: Any, wanted: Any, limit: float = 6e-3) -> None:
    pairs = (x if isinstance(x, tuple) else (x,) for x in (found, wanted))
    for one, other in zip(*pairs, strict=True):
        assert (one.double() - other.double()).norm() < limit * other.double().norm()


@pytest.mark.parametrize("name", prove_others(FORWARD, SAMPLED))
def test_values(name: str) -> None:
    case, arguments = FORWARD[name]
    close(dynamic(case.kernel)(*arguments), case.reference(*arguments))


@pytest.mark.parametrize("name", prove_others([name for name in BACKWARD if "queries, 96" not in name], GRADIENTS))
def test_gradients(name: str) -> None:
    case = BACKWARD[name]
    close(dynamic(case.kernel)(*case.arguments), tuple(case.wanted))


@pytest.mark.parametrize(("causal", "window"), [(True, 0), (True, 100), (False, 0)])
def test_one_config_for_many_sizes(causal: bool, window: int) -> None:
    config = helion.Config(block_sizes=[128, 64], wgmma_tile_scheduler="dynamic")
    names = ("attention", "attention_queries_backward", "attention_keys_backward")
    forward, of_queries, of_keys = (dynamic(getattr(ops, f"{name}_kernel").fn, config=config) for name in names)
    for at, (heads, groups, m, n) in enumerate(SIZES):
        generator = torch.Generator().manual_seed(at)
        shapes = ((heads, m, 64), (groups, n, 64), (groups, n, 64), (heads, m, 64))
        q, k, v, grad = ((torch.randn(shape, generator=generator) + 0.2).bfloat16() for shape in shapes)
        leaves = [x.double().requires_grad_() for x in (q, k, v)]
        scores = leaves[0] @ leaves[1].repeat_interleave(heads // groups, 0).mT / 8
        after = torch.arange(n) - torch.arange(m)[:, None] - (n - m if causal else n)
        scores = scores.masked_fill((after > 0) | (after <= -window if window else after > 0), float("-inf"))
        out = torch.softmax(scores, -1) @ leaves[2].repeat_interleave(heads // groups, 0)
        logsum = (torch.logsumexp(scores, -1) * 1.4426950408889634).detach().float()
        options = heads // groups, None, causal, window, 0.0
        close(forward(q, k, v, None, *options), (out, logsum))
        given = grad, q, k, v, logsum, (grad * out).sum(-1).detach().float(), *options
        wanted = torch.autograd.grad(out, leaves, grad.double())
        close((of_queries(*given), *of_keys(*given)), wanted)


@pytest.mark.parametrize("name", ["attention", "attention_queries_backward", "attention_keys_backward"])
def test_text_does_not_depend_on_the_bound_sizes(name: str) -> None:
    """Bind a kernel to other sizes: under one config its text is the same, so that no size of the first is part of it."""
    function, texts = getattr(ops, f"{name}_kernel").fn, set()
    for heads, groups, m, n in ((8, 2, 580, 1000), (64, 16, 2000, 6000)):
        q, k, v = (
            torch.empty(x, rows, 128, device="meta").bfloat16() for x, rows in ((heads, m), (groups, n), (groups, n))
        )
        vector = torch.empty(heads, m, device="meta")
        tensors = (q, k, v, None) if name == "attention" else (torch.empty_like(q), q, k, v, vector, vector)
        bound = dynamic(function).bind((*tensors, 4, None, True, 300, 0.0), target="sm_90")
        plan = bound.plan(helion.Config(block_sizes=[128, 64], wgmma_tile_scheduler="dynamic", wgmma_kv_stages=2))
        kernel = shape_of_plan(plan).kernel(plan)
        assert len(kernel.pointers) == len(plan.arguments) + bool(kernel.workspace_bytes)
        texts.add(kernel.source)
    assert len(texts) == 1
