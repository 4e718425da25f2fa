"""Many launches of attention on a Hopper GPU: of random sizes, and of the same arguments, whose results have the same bits. See
``attention_on_gpu.py``, which runs each kind in its own process."""

from __future__ import annotations

import functools
import random
import time
from typing import Any

from backends.cute import sizes_on_gpu
from backends.cute.gradients_on_gpu import Lock, Say

LAUNCHES, REPEATS, MOST = 10_000, 3000, 700
LIMIT = 2e-2
"""The limit of the error of each launch, relative to its result."""
SECONDS, PROGRESS = 40.0, 2.0


def stress(dims: int, mask: str, say: Say, on_gpu: Lock) -> None:
    """Launch attention and its gradients with random sizes from 2 on, and compare each launch with fp32.

    Sizes of 1 have binaries of their own, whose compilation would take most of the time. A line each ``PROGRESS`` seconds has the longest time of a launch and its sizes, so that compilation differs from a hang.
    """
    import torch

    made = {name: sizes_on_gpu.kernels(name, dims, mask, 8, 4, 577, 601)[0] for name in ("", "_queries_backward")}
    drawn = random.Random(dims)
    torch.manual_seed(dims)
    pool = (torch.randn(4, 8 * MOST * dims, device="cuda") + 0.2).bfloat16()
    launch = functools.partial(_launch, made, pool, dims, mask)
    launch(4, 577, 601)  # compiles for this GPU without the lock
    lock = on_gpu()
    start = said = time.time()
    worst, launches, slowest = torch.zeros(2, device="cuda"), 0, (0.0, ())
    while launches < LAUNCHES and time.time() - start < SECONDS:
        groups, n = drawn.randint(2, 4), drawn.randint(2, MOST)
        m = drawn.randint(2, n if mask != "full" else MOST)
        begun = time.time()
        worst = torch.maximum(worst, launch(groups, m, n))
        slowest = max(slowest, (round(time.time() - begun, 3), (groups, m, n)))
        launches += 2
        if time.time() - said > PROGRESS:
            torch.cuda.synchronize()
            said, (took, sizes) = time.time(), slowest
            say(kind="progress", launches=launches, seconds=round(said - start, 1), slowest_s=took, sizes=sizes)
            slowest = 0.0, ()
    for name, error in zip(("out", "dq"), worst.tolist(), strict=True):
        say(kind="check", name=f"{launches} launches of random sizes, d{dims} {mask}, {name}", ok=error < LIMIT, error=float(f"{error:.3g}"), same=True)  # fmt: skip
    lock.close()


def _launch(made: dict[str, Any], pool: Any, dims: int, mask: str, groups: int, m: int, n: int) -> Any:
    """Launch both kernels, and return the errors of the result and of the gradient of queries."""
    import torch

    causal, width = sizes_on_gpu.MASKS[mask]
    shapes = ((2 * groups, m), (groups, n), (groups, n), (2 * groups, m))
    q, k, v, grad = (
        each[: heads * rows * dims].view(heads, rows, dims) for each, (heads, rows) in zip(pool, shapes, strict=True)
    )
    wide = [x.float().repeat_interleave(2, 0) for x in (k, v)]
    after = torch.arange(n, device="cuda")[None, :] - torch.arange(m, device="cuda")[:, None]
    seen = (after <= n - m) & ((after > n - m - width) if width else True) if causal else after < n
    scores = (q.float() @ wide[0].mT * dims**-0.5).masked_fill(~seen, float("-inf"))
    weights = torch.softmax(scores, -1)
    out, along = weights @ wide[1], (grad.float() @ wide[1].mT * weights).sum(-1)
    wanted = (weights * (grad.float() @ wide[1].mT - along[..., None])) @ wide[0] * dims**-0.5
    logsum = torch.logsumexp(scores, -1) * sizes_on_gpu.LOG2E
    more = 2, None, causal, width, 0.0
    found = made[""](q, k, v, None, *more)[0], made["_queries_backward"](grad, q, k, v, logsum, along, *more)
    errors = [
        (x.float() - y).norm() / y.norm().clamp(min=1e-2 * y.numel() ** 0.5)
        for x, y in zip(found, (out, wanted), strict=True)
    ]
    return torch.stack(errors)


def repeats(number: int, module: str, say: Say, on_gpu: Lock) -> None:
    """Launch a case ``REPEATS`` times with the same arguments, and compare all bits with those of the first launch."""
    import importlib

    import torch

    import helion

    cases: Any = importlib.import_module(f"backends.cute.{module}").cases
    case = cases()[number]
    kernel = helion.kernel(backend="cute")(case.kernel)
    bound = kernel.bind(tuple(x.to("meta") if torch.is_tensor(x) else x for x in case.arguments), target="h100")
    config = bound.seeds[0].config
    bound.resources(config)
    lock = on_gpu()
    torch.manual_seed(number)
    case = cases(device="cuda")[number]
    bound = kernel.bind(case.arguments)
    bound.set_config(config)
    first = bound(*case.arguments)
    first = (first,) if torch.is_tensor(first) else first
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(REPEATS):
        found = bound(*case.arguments)
        for one, other in zip((found,) if torch.is_tensor(found) else found, first, strict=True):
            differing += (one != other).sum()
    count = int(differing)
    say(kind="check", name=f"{REPEATS} launches of {case.name}", ok=count == 0, differing=count, same=count == 0, error=0.0)  # fmt: skip
    lock.close()
