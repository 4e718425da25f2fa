"""Derived gradients of attention with biases and sinks on a Hopper GPU: against fp64, and their times beside torch's. See
``attention_on_gpu.py``, which runs each kind in its own process."""

from __future__ import annotations

import functools
import math
from typing import Any

from backends.cute.gradients_on_gpu import Lock, Say, Timer

BATCH, HEADS, QUERIES, KEYS, DIMS = 2, 8, 1000, 1500, 64
TIMED = (4, 16, 2048, 2048, 64)


def check(kind: str, say: Say, on_gpu: Lock, hidden: bool = False) -> None:
    """Compare the gradients of two calls with fp64: the first is recorded, the second is direct. The bias has rows that are
    ``hidden``."""
    import torch
    from backends.cute import test_derived_inputs as cases

    import helion

    torch.manual_seed(5)
    sizes = [(BATCH, HEADS, rows, DIMS) for rows in (QUERIES, KEYS, KEYS)]
    shape = cases.shape_of(kind, BATCH, HEADS, QUERIES, KEYS)
    tensors = [(torch.randn(size, device="cuda") + 0.2).bfloat16().requires_grad_() for size in sizes]
    bias = torch.randn(shape, device="cuda") * (2e-3 if kind == "slopes" else 0.5)
    if hidden:
        cases.hide(bias)
    tensors.append(bias.requires_grad_())
    exact = [x.detach().double().requires_grad_() for x in tensors]
    given = torch.randn(sizes[0], device="cuda").bfloat16()
    result = cases.biased_reference(*exact, 0.2, kind)
    wanted = torch.autograd.grad(result, exact, given.double())
    function = helion.kernel(backend="auto")(cases.biased).differentiable()
    torch.autograd.grad(function(*tensors, 0.2, kind), tensors, given)  # compiles all kernels without the lock
    function = helion.kernel(backend="auto")(cases.biased).differentiable()
    lock = on_gpu()
    for call in ("recorded", "direct"):
        out = function(*tensors, 0.2, kind)
        found = (out, *torch.autograd.grad(out, tensors, given))
        torch.cuda.synchronize()
        for name, one, other in zip(("out", "q", "k", "v", "bias"), found, (result.detach(), *wanted), strict=True):
            error = ((one.double() - other).norm() / other.norm()).item()
            limit = 3e-2 if (kind, name) == ("slopes", "bias") else 8e-3
            say(kind="check", name=f"derived bias {kind}{' hidden' if hidden else ''}, {name}", seed=call, ok=error < limit, error=float(f"{error:.3g}"), same=True)  # fmt: skip
    lock.close()


SIZES = (
    (2, 8, 2, 577, 1000),
    (1, 8, 2, 2048, 2048),
    (3, 4, 1, 1000, 1001),
    (2, 8, 2, 65, 4097),
    (2, 16, 4, 2048, 3000),
)
"""Batch, heads, heads of keys, queries and keys of calls with dynamic shapes."""


def any_size(dims: int, mask: str, say: Say, on_gpu: Lock) -> None:
    """Compare derived gradients of many sizes with fp64: kernels are compiled for any, so that later first calls are short."""
    import time

    import torch
    from backends.cute import test_derivative as cases

    import helion

    causal, width = mask != "full", 100 if mask == "window" else None
    function = helion.kernel(backend="auto", static_shapes=False)(cases.attention).differentiable()

    def given_of(sizes: tuple[int, ...]) -> list[Any]:
        batch, heads, groups, m, n = sizes
        shapes = ((heads, m), (groups, n), (groups, n))
        return [(torch.randn(batch, *each, dims, device="cuda") + 0.2).bfloat16().requires_grad_() for each in shapes]

    def both(tensors: list[Any]) -> tuple[Any, ...]:
        out = function(*tensors, causal, None, width)
        return out, *torch.autograd.grad(out, tensors, torch.ones_like(out))

    both(given_of(SIZES[0]))  # compiles without the lock
    both(given_of(SIZES[1]))
    lock = on_gpu()
    for at, sizes in enumerate(SIZES):
        torch.manual_seed(at)
        tensors = given_of(sizes)
        start = time.time()
        both(tensors)
        torch.cuda.synchronize()
        took = time.time() - start
        found, exact = both(tensors), [x.detach().double().requires_grad_() for x in tensors]
        with torch.device("cuda"):
            result = cases.reference(*exact, causal, None, width)
        wanted = torch.autograd.grad(result, exact, torch.ones_like(result))
        for name, one, other in zip(("out", "q", "k", "v"), found, (result, *wanted), strict=True):
            error = ((one.double() - other).norm() / other.norm()).item()
            say(kind="check", name=f"derived for any size, d{dims} {mask}, {name}", seed=at, ok=error < 8e-3, error=float(f"{error:.3g}"), same=True, first_s=round(took, 2), sizes=sizes)  # fmt: skip
    lock.close()


def measured(kind: str, say: Say, on_gpu: Lock, timer: Timer) -> None:
    """Time forward and backward with a bias that has a gradient, and torch's with it as a mask."""
    import torch
    from backends.cute import test_derived_inputs as cases

    import helion

    batch, heads, m, n, dims = TIMED
    sizes = [(batch, heads, rows, dims) for rows in (m, n, n)]
    tensors = [torch.randn(size, device="cuda").bfloat16().requires_grad_() for size in sizes]
    bias = torch.randn(cases.shape_of(kind, batch, heads, m, n), device="cuda").bfloat16().requires_grad_()
    given = torch.randn(sizes[0], device="cuda").bfloat16()
    more = {"d": dims, "causal": False, "shape": (batch, heads, heads, m, n), "right": True}
    ours = helion.kernel(cases.biased).differentiable()
    calls: dict[str, Any] = {"helion": functools.partial(ours, *tensors, bias, 1 / math.sqrt(dims), kind)}
    attend = torch.nn.functional.scaled_dot_product_attention
    calls["torch"] = lambda: attend(*tensors, attn_mask=bias.expand(batch, heads, m, n))
    made = {name: functools.partial(_both, call, (*tensors, bias), given) for name, call in calls.items()}
    for both in made.values():
        both()  # compiles without the lock
    lock = on_gpu()
    for name, both in made.items():
        both()
        say(
            kind="gradients", name=f"bias {kind}, forward and backward, {name}", us=round(timer(torch)(both), 1), **more
        )
    lock.close()


def _both(call: Any, leaves: Any, given: Any) -> Any:
    import torch

    return torch.autograd.grad(call(), leaves, given)
