"""Attention whose scores, or products with values, are rounded to the type of its operands, on a Hopper GPU. See
``attention_on_gpu.py``, which runs each size in its own process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

SHAPES = (
    ((4, 32, 4096, 4096, 128), "bfloat16", "scores"),
    ((1, 16, 1000, 4097, 128), "bfloat16", "scores"),
    ((2, 16, 8192, 8192, 64), "float16", "scores"),
    ((2, 8, 4096, 4096, 256), "bfloat16", "scores"),
    ((4, 32, 4096, 4096, 128), "bfloat16", "products"),
    ((2, 32, 4096, 4096, 64), "bfloat16", "products"),
)
"""Batch, heads, queries, keys and the head dimension, with the type and the rounded values."""
Say, Lock, Timer = Callable[..., None], Callable[[], Any], Callable[..., Callable[..., float]]


def measured(number: int, say: Say, on_gpu: Lock, timer: Timer) -> None:
    """Compare the seeds of both backends for ``SHAPES[number]`` with fp64, and time them and torch's attention."""
    import torch
    from backends.cute.test_rounded_products import attend
    from torch.nn.attention import SDPBackend, sdpa_kernel

    import helion
    from benchmarks.unseen.attention import flash_forward

    (batch, heads, m, n, dims), named, form = SHAPES[number]
    function, leading = (flash_forward.fn, (batch, heads)) if form == "scores" else (attend, (batch * heads,))
    dtype = getattr(torch, named)
    sizes = [(*leading, rows, dims) for rows in (m, n, n)]
    kept = []
    for backend in ("cute", "triton"):
        kernel = helion.kernel(function, backend=backend)
        bound = kernel.bind(tuple(torch.empty(size, dtype=dtype, device="meta") for size in sizes), target="h200")
        for seed in bound.seeds[: 3 if backend == "cute" else 1]:
            if backend == "cute":
                bound.resources(seed.config)
            kept.append((backend, kernel, seed.config, seed.predicted.time_us))
    lock = on_gpu()
    torch.manual_seed(number)
    q, k, v = ((torch.randn(size, device="cuda") + 0.25 * at).to(dtype) for at, size in enumerate(sizes))
    first = (slice(1),) * len(leading)
    scores = q[first].double() @ k[first].double().mT * dims**-0.5
    wanted = torch.softmax(scores, -1) @ v[first].double()
    more = {"d": dims, "causal": False, "shape": (batch, heads, heads, m, n)}
    for backend, kernel, config, predicted in kept:
        bound = kernel.bind((q, k, v))
        bound.set_config(config)
        runs = [bound(q, k, v) for _ in range(3)]
        error = ((runs[0][first].double() - wanted).norm() / wanted.norm()).item()
        same = all(torch.equal(run, runs[0]) for run in runs)
        shown = {key: config[key] for key in config if key == "block_sizes" or key.startswith("wgmma")}
        name = f"rounded {form} {backend} {shown if backend == 'cute' else ''}"
        ok = error < 8e-3 and same
        say(kind="check", name=name, dtype=named, ok=ok, error=float(f"{error:.3g}"), same=same, **more)
        us = timer(torch)(functools.partial(bound, q, k, v))
        say(kind="time", name=name, us=round(us, 1), predicted_us=round(predicted, 1), right=ok, **more)
    whole = (each.view(batch, heads, -1, dims) for each in (q, k, v))
    call = functools.partial(torch.nn.functional.scaled_dot_product_attention, *whole)
    for label, which in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):
        with sdpa_kernel(which), torch.no_grad():
            say(kind="time", name=label, us=round(timer(torch)(call), 1), right=True, **more)
    lock.close()
