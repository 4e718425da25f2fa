"""Latent attention on a Hopper GPU against fp64, and its times. See ``attention_on_gpu.py``, which runs each in its own
process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Say, Lock, Timer = Callable[..., None], Callable[[], Any], Callable[..., Callable[..., float]]
LENGTHS = ((700, 0, 37), (1, 64 * 3, 64), (2000, 65, 1999))
TIMED = ((32, 8192, 2), (1, 65536, 64), (128, 4096, 1), (32, 8192, 4), (1, 65536, 32), (4, 32768, 16))
"""Sequences of 128 heads, rows of each, and parts of these."""


def check(dims: int, width: int, say: Say, on_gpu: Lock) -> None:
    """Launch decoding in one and several parts, from pages, and prefill, three times each."""
    import torch
    from backends.cute import latent_kernels as cases

    import helion

    made: dict[Any, Any] = {}
    meta = functools.partial(torch.empty, dtype=torch.bfloat16, device="meta")
    lengths = torch.empty(3, dtype=torch.int32, device="meta")
    for static, splits, lazy, scaled in ((True, 1, False, False), (False, 3, True, True), (True, 16, True, False)):
        config = helion.Config(block_sizes=[64, 64], wgmma_key_splits=splits, wgmma_lazy_rescale=lazy)
        kernel = helion.kernel(cases.decoded, backend="cute", config=config, static_shapes=static)
        kernel.bind((meta(3, 100, dims), meta(3, 2000, dims), lengths, width, scaled), target="h100").resources(config)
        made[splits] = kernel, scaled
    pages, prefill = (helion.kernel(each, backend="cute", static_shapes=False) for each in (cases.paged, cases.causal))
    table = torch.empty(3, 40, dtype=torch.int32, device="meta")
    bound = pages.bind((meta(3, 128, dims), meta(64 * 64, dims), table, lengths, 64, width), target="h100")
    bound.resources(bound.default_config())
    bound = prefill.bind((meta(2, 3, 300, dims), meta(2, 700, dims), meta(width), width), target="h100")
    bound.resources(bound.default_config())
    others = {
        each: helion.kernel(getattr(cases, each), backend="cute", static_shapes=False)
        for each in ("summed", "packed", "apart")
    }
    bound = others["summed"].bind((meta(3, 100, dims), meta(3, 2000, dims), lengths, width, True), target="h100")
    bound.resources(bound.default_config())
    bound = others["packed"].bind(cases.packed_of((500, 700), (600, 700), dims, width, "meta"), target="h100")
    bound.resources(bound.default_config())
    halves = cases.parts_of(meta(3, 100, dims), meta(3, 2000, dims), lengths, width)
    bound = others["apart"].bind(halves, target="h100")
    bound.resources(bound.default_config())
    lock = on_gpu()
    for at, some in enumerate(LENGTHS):
        torch.manual_seed(at)
        runs: dict[str, tuple[Any, Any, Any]] = {}
        for splits, (kernel, scaled) in made.items():
            given = (*cases.caches(some, 2000, 100, dims, "cuda"), width, scaled)
            runs[f"{splits} parts"] = kernel, given, cases.of_decoded(*given)
        given = (*cases.pages(some, 64, 40, 128, dims, "cuda"), 64, width)
        runs["pages"] = pages, given, cases.of_paged(*given)
        q, cache = (
            torch.randn(size, device="cuda").bfloat16() for size in ((2, 3, 100 + at * 65, dims), (2, 700, dims))
        )
        given = q, cache, torch.rand(width, device="cuda").bfloat16() + 0.5, width
        runs["prefill"] = prefill, given, cases.of_causal(*given)
        given = (*cases.caches(some, 2000, 100, dims, "cuda"), width, True)
        runs["scores in two parts"] = others["summed"], given, cases.of_decoded(*given)
        given = cases.caches(some, 2000, 100, dims, "cuda")
        runs["two tensors"] = others["apart"], cases.parts_of(*given, width), cases.of_decoded(*given, width)
        given = cases.packed_of((100 + at, 1, 130), (150, 40 + at, 130), dims, width, "cuda")
        runs["sequences"] = others["packed"], given, cases.of_packed(*given)
        for name, (kernel, given, wanted) in runs.items():
            found = [kernel(*given) for _ in range(3)]
            torch.cuda.synchronize()
            pairs = [
                (one if isinstance(one, tuple) else (one,), wanted if isinstance(wanted, tuple) else (wanted,))
                for one in found
            ]
            errors = [((x.double() - y).norm() / y.norm()).item() for one, other in pairs for x, y in zip(one, other, strict=True)]  # fmt: skip
            same = all(torch.equal(x, y) for one, _ in pairs for x, y in zip(one, pairs[0][0], strict=True))
            say(kind="check", name=f"latent {dims}/{width}, {name}", seed=at, output=0, dtype="bfloat16", ok=max(errors) < 6e-3 and same, error=float(f"{max(errors):.3g}"), same=same)  # fmt: skip
    lock.close()


def measured(number: int, say: Say, on_gpu: Lock, timer: Timer) -> None:
    """Time decoding number ``number`` of ``TIMED``, or after these a prefill of 16 heads."""
    import torch
    from backends.cute import latent_kernels as cases

    import helion

    meta = functools.partial(torch.empty, dtype=torch.bfloat16, device="meta")
    random = functools.partial(torch.randn, dtype=torch.bfloat16, device="cuda")
    if number < len(TIMED):
        batch, n, splits = TIMED[number]
        config = helion.Config(block_sizes=[64, 64], wgmma_key_splits=splits, wgmma_lazy_rescale=True)
        kernel = helion.kernel(cases.decoded, backend="cute", config=config)
        shapes, more = ((batch, 128, 576), (batch, n, 576)), (512, False)
        given = (*map(meta, shapes), torch.empty(batch, dtype=torch.int32, device="meta"), *more)
        line = {"name": f"latent decode, {splits} parts", "causal": False, "shape": (batch, 128, 1, 1, n)}
    else:
        config, kernel = None, helion.kernel(cases.causal, backend="cute")
        shapes, more = ((1, 16, 4096, 576), (1, 4096, 576), (512,)), (512,)
        given = (*map(meta, shapes), *more)
        line = {"name": "latent prefill", "causal": True, "shape": (1, 16, 1, 4096, 4096)}
    bound = kernel.bind(given, target="h100")
    bound.resources(config or bound.default_config())
    lock = on_gpu()
    lengths = [torch.full([given[0].size(0)], n - 5, dtype=torch.int32, device="cuda")] if number < len(TIMED) else []
    run = functools.partial(kernel, *map(random, shapes), *lengths, *more)
    say(kind="gradients", d=576, us=round(timer(torch)(run), 1), right=True, **line)
    lock.close()
