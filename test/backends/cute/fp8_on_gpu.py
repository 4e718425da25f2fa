"""Times of attention in e4m3 on a Hopper GPU, with torch's in bf16 and the Triton backend's. See ``attention_on_gpu.py``."""

from __future__ import annotations

import functools
from typing import Any

from backends.cute.gradients_on_gpu import Lock, Say, Timer
from backends.cute.test_fp8_attention import ERROR as ERROR

BATCH, HEADS, ROWS = 4, 32, 4096
OTHERS: dict[int, list[dict[str, Any]]] = {
    64: [{"block_sizes": [128, 256]}, {"block_sizes": [192, 128]}],
    128: [{"block_sizes": [128, 192]}, {"block_sizes": [192, 128]}],
    256: [{"block_sizes": [128, 64]}],
}
"""Keys that differ from the default config, by dimensions of a head."""


def measured(dims: int, causal: bool, say: Say, on_gpu: Lock, timer: Timer) -> None:
    """Time each seed and variants of the first one, Triton's default, and torch's attention in bf16.

    Errors are those from attention of the numbers before they were rounded to either type.
    """
    import torch
    from backends.cute import fp8_kernels as kernels
    from torch.nn.attention import SDPBackend, sdpa_kernel

    import helion

    sizes = (BATCH, HEADS, ROWS, dims)
    narrow = [torch.empty(size, dtype=kernels.E4M3, device="meta") for size in (sizes, sizes, (*sizes[:2], dims, ROWS))]
    meta = (*narrow, *(torch.empty(sizes[:2], device="meta") for _ in range(3)), causal)
    bound = helion.kernel(backend="cute")(kernels.scales_of_heads).bind(meta, target="h100")
    configs = [seed.config for seed in bound.seeds]
    for keys in OTHERS[dims]:
        for alternates in (True, False):
            configs.append(
                helion.Config(**{**configs[0], "wgmma_kv_stages": None, **keys, "wgmma_pingpong": alternates})
            )
    kept = [config for config in configs if _compiles(bound, config)]
    lock = on_gpu()
    torch.manual_seed(1)
    wide = [torch.randn(sizes, device="cuda") + mean for mean in (0.0, 0.25, 1.0)]
    (q, k, v), scales = zip(*(kernels.quantised(each, (2, 3)) for each in wide), strict=True)
    arguments = (q, k, v.mT.contiguous(), *scales, causal)
    few = [x[:1, :1].double() * scale[:1, :1, None, None].double() for x, scale in zip((q, k, v), scales, strict=True)]
    seen = torch.ones(ROWS, ROWS, device="cuda", dtype=torch.bool).tril() if causal else None
    wanted = kernels.exact(*few, dims**-0.5, seen)[0]
    original = kernels.exact(*(each[:1, :1].double() for each in wide), dims**-0.5, seen)[0]

    def error_of(found: Any, reference: Any) -> float:
        return float(f"{((found[:1, :1].double() - reference).norm() / reference.norm()).item():.3g}")

    more = {"d": dims, "causal": causal, "shape": (BATCH, HEADS, HEADS, ROWS, ROWS)}
    for backend, each in [("cute", kept), ("triton", [None])]:
        for config in each:
            run = helion.kernel(backend=backend)(kernels.scales_of_heads).bind(arguments)
            run.set_config(config or run.seeds[0].config)
            found = run(*arguments)
            us = timer(torch)(functools.partial(run, *arguments))
            right = error_of(found, wanted)
            say(
                kind="check",
                name=f"{backend} fp8 of {ROWS} keys, d{dims}",
                config=repr(dict(config or {})),
                ok=right < ERROR,
                error=right,
                same=True,
            )
            say(
                kind="time",
                name=f"{backend} fp8 {config['block_sizes'] if config else ''}",
                us=round(us, 1),
                right=right < ERROR,
                error=error_of(found, original),
                config=repr(dict(config or {})),
                **more,
            )
    halves = [each.bfloat16() for each in wide]
    call = functools.partial(torch.nn.functional.scaled_dot_product_attention, *halves, is_causal=causal)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION), torch.no_grad():
        us, error = timer(torch)(call), error_of(call(), original)
    say(kind="time", name="cudnn", us=round(us, 1), right=True, error=error, **more)
    lock.close()


def _compiles(bound: Any, config: Any) -> bool:
    """Compile a config without the GPU; return whether it is legal."""
    from helion import exc

    try:
        bound.resources(config)
    except exc.InvalidConfig:
        return False
    return True
