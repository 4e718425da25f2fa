"""Gradients of attention on a Hopper GPU: the cases against fp64, and times beside torch's. See ``attention_on_gpu.py``, which
runs each in its own process."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

SHAPES = {  # by (head dimension, causal): batch, heads, heads of K and V, queries
    (128, False): [(4, 32, 32, 4096), (1, 16, 16, 16384)],
    (128, True): [(4, 32, 32, 4096), (1, 16, 16, 16384), (2, 32, 8, 4096)],
    (64, False): [(4, 32, 32, 4096), (2, 16, 16, 8192)],
    (64, True): [(4, 32, 32, 4096), (1, 16, 2, 16384)],
    (256, False): [(2, 16, 16, 4096)],
    (256, True): [(2, 16, 16, 4096), (2, 16, 4, 4096)],
    (192, True): [(2, 16, 16, 4096)],
}
COLUMNS = {192: 128}
"""Dimensions of values, where they are not those of queries."""
LIMITS = (2e-3, 6e-3)
"""Limits of relative errors in fp16 and bf16."""
Say, Lock, Timer = Callable[..., None], Callable[[], Any], Callable[..., Callable[..., float]]


def check(
    number: int,
    say: Say,
    on_gpu: Lock,
    static: bool = True,
    module: str = "backward_kernels",
    limit: float | None = None,
) -> None:
    """Check all seeds of a case: values against fp64, and the same bits in three runs; ``static``: for its sizes alone.

    The ``limit`` of errors is that of the type, if it is not given.
    """
    import torch

    import helion

    kernels = importlib.import_module(f"backends.cute.{module}")
    case = kernels.cases()[number]
    kernel = helion.kernel(backend="cute", static_shapes=static)(case.kernel)
    meta = tuple(each.to("meta") if torch.is_tensor(each) else each for each in case.arguments)
    bound = kernel.bind(meta, target="h100")
    configs = [seed.config for seed in bound.seeds]
    for config in configs:
        bound.resources(config)
    lock = on_gpu()
    torch.manual_seed(number)
    dtype = torch.float16 if number % 3 == 0 else torch.bfloat16
    case = kernels.cases(device="cuda", dtype=dtype)[number]
    for at, config in enumerate(configs):
        bound = kernel.bind(case.arguments)
        bound.set_config(config)
        runs = [bound(*case.arguments) for _ in range(3)]
        runs = [(run,) if torch.is_tensor(run) else run for run in runs]
        torch.cuda.synchronize()
        same = all(torch.equal(one, other) for run in runs[1:] for one, other in zip(run, runs[0], strict=True))
        for place, (one, other) in enumerate(zip(runs[-1], case.wanted, strict=True)):
            error = ((one.double() - other).norm() / other.norm()).item()
            say(
                kind="check",
                name=f"{module}: {case.name}{'' if static else ', any size'}",
                seed=at,
                output=place,
                dtype=str(dtype),
                ok=error < (limit or LIMITS[dtype is torch.bfloat16]) and (same or not case.ordered),
                error=float(f"{error:.3g}"),
                same=same,
            )
    lock.close()


def derived(dims: int, causal: bool, say: Say, on_gpu: Lock, timer: Timer) -> None:
    """Check and time the gradients that are derived from an attention, without and with stored logarithms of sums, and time
    torch's."""
    import torch
    from backends.cute.attention_kernels import attention, rows_of_heads

    import helion

    torch.manual_seed(2)
    batch, heads, m = 2, 16, 4096
    sizes = [(batch, heads, m, dims)] * 4
    *leaves, given = ((torch.randn(size, device="cuda") + 0.1).bfloat16() for size in sizes)
    few = [x[:1, :1].double().requires_grad_() for x in leaves]
    scores = few[0] @ few[1].mT * dims**-0.5
    seen = torch.ones(m, m, device="cuda", dtype=torch.bool).tril() if causal else torch.ones(m, m, device="cuda") > 0
    result = torch.softmax(scores.masked_fill(~seen, float("-inf")), -1) @ few[2]
    wanted = torch.autograd.grad(result, few, given[:1, :1].double())
    more = {"d": dims, "causal": causal, "shape": (batch, heads, heads, m, m), "right": True}
    calls = {}
    for kernel in (rows_of_heads, attention.fn):
        stored = kernel is rows_of_heads
        tensors = [(x.transpose(1, 2) if stored else x).contiguous().requires_grad_() for x in leaves]
        out = helion.kernel(backend="cute")(kernel).differentiable()(*tensors, causal)
        out, upstream = (out[0], given.transpose(1, 2).contiguous()) if stored else (out, given)
        calls[stored] = functools.partial(torch.autograd.grad, out, tensors, upstream, retain_graph=True)
        calls[stored]()  # compiles without the lock
    lock = on_gpu()
    for stored, call in calls.items():
        name = "with logsum" if stored else "derived"
        for what, one, other in zip("qkv", call(), wanted, strict=True):
            one = (one.transpose(1, 2) if stored else one)[:1, :1].double()
            error = ((one - other).norm() / other.norm()).item()
            say(kind="check", name=f"{name} d{dims}, {what}", ok=error < 6e-3, error=float(f"{error:.3g}"), same=True)
        say(kind="gradients", name=name, us=round(timer(torch)(call), 1), **more)
    us = _torch("torch", [*leaves, given], causal, timer)
    say(kind="gradients", name="torch", us=round(us, 1), **more)
    lock.close()


def sequences(dims: int, length: int, say: Say, on_gpu: Lock, timer: Timer) -> None:
    """Time the gradients of causal attention of sequences of up to ``length`` rows, 32768 in all, by backend, without the host's
    part of a call."""
    import torch

    import helion
    from helion.ops.kernels.varlen import (
        ALL,
        _ranges,
        _rows_of_keys,
        varlen_keys_backward_kernel,
        varlen_queries_backward_kernel,
    )

    torch.manual_seed(3)
    rows, heads = 32768, 16
    lengths = torch.randint(length // 4, length + 1, (8 * rows // length,))
    offsets = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)))
    offsets = offsets[offsets < rows]
    offsets = torch.cat((offsets, torch.tensor([rows])))
    begins, ends = _ranges(offsets, offsets, rows, ALL, True)
    host = [begins, ends, *_rows_of_keys(begins, ends, rows)]
    meta = [torch.empty(rows, heads, dims, dtype=torch.bfloat16, device="meta")] * 4
    numbers = [torch.empty(heads, rows, device="meta")] * 2
    of_queries, of_keys = varlen_queries_backward_kernel.fn, varlen_keys_backward_kernel.fn
    bounds = []
    for kernel, integers, whole in (of_queries, host[:2], ()), (of_keys, host[2:], ()), (of_keys, host[2:], (True,)):
        arguments = (*meta, *numbers, *(each.to("meta") for each in integers), 1, dims**-0.5, 0.0, *whole)
        for backend in ("cute", "triton")[: 1 if whole else 2]:
            bound = helion.kernel(kernel, backend=backend, static_shapes=False).bind(arguments, target="h200")
            configs = [seed.config for seed in bound.seeds][:1]
            for config in configs if backend == "cute" else ():
                bound.resources(config)
            bounds += [(kernel, backend, config, integers, whole) for config in configs]
    lock = on_gpu()
    tensors = [torch.randn(rows, heads, dims, device="cuda").bfloat16() for _ in range(4)]
    given = torch.full((heads, rows), 8.0, device="cuda"), torch.zeros(heads, rows, device="cuda")
    more = {"d": dims, "causal": True, "shape": (len(offsets) - 1, heads, heads, length, length), "right": True}
    for kernel, backend, config, integers, whole in bounds:
        arguments = (*tensors, *given, *(each.cuda() for each in integers), 1, dims**-0.5, 0.0, *whole)
        launch = helion.kernel(kernel, backend=backend, static_shapes=False).bind(arguments)
        launch.set_config(config)
        launch(*arguments)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch(*arguments)
        us = timer(torch)(graph.replay)
        keys = f"{config['block_sizes']} {config.get('wgmma_tile_scheduler', '')}"
        name = f"{backend} {kernel.__name__}{' of all' if whole else ''}"
        say(kind="gradients", name=name, us=round(us, 1), keys=keys, **more)
    lock.close()


def dropout(dims: int, say: Say, on_gpu: Lock, timer: Timer) -> None:
    """Time attention with dropout and its gradients, by backend."""
    import torch
    from backends.cute import dropped_kernels as kernels

    import helion

    batch, heads, m = 2, 16, 2048
    size, options = (batch, heads, m, dims), (kernels.SEED, kernels.DROPPED)
    functions = (kernels.attention_with_dropout, 3), (kernels.gradient_of_queries, 4), (kernels.gradients_of_keys, 4)
    bounds = []
    for function, count in functions:
        more = (False,) if count == 3 else ()
        meta = [torch.empty(size, dtype=torch.bfloat16, device="meta")] * count
        numbers = [torch.empty(batch, heads, m, device="meta")] * (2 if count == 4 else 0)
        for backend in ("cute", "triton"):
            bound = helion.kernel(function, backend=backend).bind((*meta, *numbers, *options, *more), target="h200")
            config = bound.seeds[0].config
            if backend == "cute":
                bound.resources(config)
            bounds.append((function, count, backend, config, bound.seeds[0].predicted.time_us, more))
    lock = on_gpu()
    tensors = [torch.randn(size, device="cuda").bfloat16() for _ in range(4)]
    given = torch.full((batch, heads, m), 8.0, device="cuda"), torch.zeros(batch, heads, m, device="cuda")
    for function, count, backend, config, predicted, more in bounds:
        arguments = (*tensors[:count], *(given if count == 4 else ()), *options, *more)
        launch = helion.kernel(function, backend=backend).bind(arguments)
        launch.set_config(config)
        us = timer(torch)(functools.partial(launch, *arguments))
        shape, keys = (batch, heads, heads, m, m), f"{config['block_sizes']} predicted {predicted:.0f} us"
        name = f"{backend} {function.__name__}"
        say(kind="gradients", name=name, us=round(us, 1), keys=keys, d=dims, causal=False, shape=shape, right=True)
    lock.close()


def kinds(dims: int) -> tuple[str, ...]:
    """Return the kernels that are timed for heads of ``dims`` dimensions, and torch's."""
    return ("torch", *(("flash",) if dims > 128 else ()), "queries", "keys", *(("all",) if dims == 128 else ()))


def measured(dims: int, causal: bool, kind: str, say: Say, on_gpu: Lock, timer: Timer) -> None:
    """Time one kernel of each shape, for all seeds, or torch's backward. The time of all gradients has the zeros that they are
    added to, and the conversion of the gradient of queries."""
    import torch
    from backends.cute import backward_kernels as kernels

    import helion

    function = {
        "queries": kernels.gradient_of_queries,
        "keys": kernels.gradients_of_shared_keys,
        "all": kernels.all_gradients,
    }
    for batch, heads, groups, m in SHAPES[dims, causal]:
        columns = (dims, dims, COLUMNS.get(dims, dims), COLUMNS.get(dims, dims))
        sizes = [(batch, each, m, d) for each, d in zip((heads, groups, groups, heads), columns, strict=True)]
        more = {"d": dims, "causal": causal, "shape": (batch, heads, groups, m, m)}
        if kind in ("torch", "flash"):
            lock = on_gpu()
            us = _torch(kind, [torch.randn(size, device="cuda").bfloat16() for size in sizes], causal, timer)
            say(kind="gradients", name=kind, us=round(us, 1), right=True, **more)
            lock.close()
            continue
        order = [0, 2, 1, 3] if kind == "keys" else [0, 1, 2, 3]
        meta = [torch.empty([size[at] for at in order], dtype=torch.bfloat16, device="meta") for size in sizes]
        numbers = [torch.empty(batch, heads, m, device="meta")] * 2
        bound = helion.kernel(backend="cute")(function[kind]).bind((*meta, *numbers, causal), target="h100")
        configs = [seed.config for seed in bound.seeds]
        if kind == "keys" and dims == 64:
            configs.append(helion.Config(**{**configs[0], "block_sizes": [128, 64]}))
        if dims == 256:
            others = {"block_sizes": [128, 48], "wgmma_kv_stages": 2}
            configs = [configs[0], *(helion.Config(**{**each, **others}) for each in configs[:2]), configs[2]]
        for config in configs:
            bound.resources(config)
        lock = on_gpu()
        torch.manual_seed(1)
        tensors = [(torch.randn(size, device="cuda") + 0.1).bfloat16() for size in sizes]
        few = [each[:1, : max(1, each.size(1) // groups)] for each in tensors]
        seen = torch.ones(m, m, device="cuda", dtype=torch.bool).tril() if causal else None
        given = torch.full((batch, heads, m), 8.0, device="cuda"), torch.zeros(batch, heads, m, device="cuda")
        wanted = None
        if m <= 4096:
            logsum, delta, wanted = kernels.gradients(*few, seen)
            given[0][:1, : logsum.size(1)], given[1][:1, : delta.size(1)] = logsum, delta
        arguments = [x.transpose(1, 2).contiguous() for x in tensors] if kind == "keys" else tensors
        for config in configs:
            launch = helion.kernel(backend="cute")(function[kind]).bind((*arguments, *given, causal))
            launch.set_config(config)
            call = functools.partial(launch, *arguments, *given, causal)
            right = wanted is None or _is_right(kind, call(), wanted)
            us = timer(torch)((lambda call=call: call()[0].bfloat16()) if kind == "all" else call)
            keys = str({key: config[key] for key in ("block_sizes", "wgmma_kv_stages", "wgmma_tile_scheduler")})
            say(kind="gradients", name=kind, us=round(us, 1), right=right, keys=keys, **more)
        lock.close()


def _is_right(kind: str, found: Any, wanted: Any) -> bool:
    """Compare the first heads of all gradients of a kernel with fp64."""
    found = [x.transpose(1, 2) for x in found] if kind == "keys" else [found] if kind == "queries" else found
    wanted = wanted[1:] if kind == "keys" else wanted[: len(found)]
    pairs = [(one[:1, : other.size(1)].double(), other) for one, other in zip(found, wanted, strict=True)]
    return all(bool((one - other).norm() < 6e-3 * other.norm()) for one, other in pairs)


def _torch(kind: str, tensors: list[Any], causal: bool, timer: Timer) -> float:
    """Return the time of the backward of torch's attention by cuDNN, or by its own kernels."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    *leaves, grad = (each.detach().requires_grad_() for each in tensors)
    shared = leaves[0].size(1) != leaves[1].size(1)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION if kind == "flash" else SDPBackend.CUDNN_ATTENTION):
        out = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal, enable_gqa=shared)
    return timer(torch)(lambda: torch.autograd.grad(out, leaves, grad, retain_graph=True))
