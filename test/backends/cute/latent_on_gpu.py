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
FORMS: dict[str, tuple[str, bool, dict[str, Any], Any]] = {
    "one_part": ("decoded", True, {"wgmma_key_splits": 1, "wgmma_lazy_rescale": False}, False),
    "three_parts": ("decoded", False, {"wgmma_key_splits": 3, "wgmma_lazy_rescale": True}, True),
    "sixteen_parts": ("decoded", True, {"wgmma_key_splits": 16, "wgmma_lazy_rescale": True}, False),
    "pages": ("paged", False, {}, None),
    "prefill": ("causal", False, {}, None),
    "two_products": ("summed", False, {}, True),
    "two_tensors": ("apart", False, {}, None),
    "sequences": ("packed", False, {}, None),
}
"""Kernels of ``latent_kernels``, static sizes, keys of their config and their last argument."""


def check(dims: int, width: int, form: str, say: Say, on_gpu: Lock) -> None:
    """Launch the kernel ``form`` with caches of several lengths, three times each, and compare it with fp64."""
    import torch
    from backends.cute import latent_kernels as cases

    import helion

    name, static, keys, more = FORMS[form]
    config = helion.Config(block_sizes=[64, 64], **keys) if keys else None
    function = getattr(cases, name)
    kernel = helion.kernel(function, backend="cute", config=config, static_shapes=static)
    given, _ = _given(cases, name, LENGTHS[0], 0, dims, width, more)
    bound = kernel.bind(tuple(each.to("meta") if torch.is_tensor(each) else each for each in given), target="h100")
    bound.resources(config or bound.default_config())
    lock = on_gpu()
    for at, some in enumerate(LENGTHS):
        torch.manual_seed(at)
        given, wanted = _given(cases, name, some, at, dims, width, more, device="cuda")
        wanted = (wanted,) if torch.is_tensor(wanted) else wanted
        runs = [kernel(*given) for _ in range(3)]
        runs = [(run,) if torch.is_tensor(run) else run for run in runs]
        torch.cuda.synchronize()
        same = all(torch.equal(x, y) for run in runs for x, y in zip(run, runs[0], strict=True))
        for place, (one, other) in enumerate(zip(runs[-1], wanted, strict=True)):
            error = ((one.double() - other).norm() / other.norm()).item()
            ok = error < 6e-3 and same
            say(kind="check", name=f"latent {dims}/{width}, {form}", seed=at, output=place, dtype="bfloat16", ok=ok, error=float(f"{error:.3g}"), same=same)  # fmt: skip
    lock.close()


def _given(
    cases: Any, name: str, lengths: Any, at: int, dims: int, width: int, more: Any, device: str = "cpu"
) -> tuple[Any, Any]:
    """Return arguments of a kernel of ``latent_kernels`` and its reference, or None on the CPU."""
    import torch

    if name in ("decoded", "summed"):
        given = (*cases.caches(lengths, 2000, 100, dims, device), width, more)
        reference = cases.of_decoded
    elif name == "paged":
        given = (*cases.pages(lengths, 64, 40, 128, dims, device), 64, width)
        reference = cases.of_paged
    elif name == "causal":
        sizes = (2, 3, 100 + at * 65, dims), (2, 700, dims)
        q, cache = (torch.randn(size, device=device).bfloat16() for size in sizes)
        given = q, cache, torch.rand(width, device=device).bfloat16() + 0.5, width
        reference = cases.of_causal
    elif name == "packed":
        given = cases.packed_of((100 + at, 1, 130), (150, 40 + at, 130), dims, width, device)
        reference = cases.of_packed
    else:
        whole = cases.caches(lengths, 2000, 100, dims, device)
        wanted = cases.of_decoded(*whole, width) if device == "cuda" else None
        return cases.parts_of(*whole, width), wanted
    return given, reference(*given) if device == "cuda" else None


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
