"""Attention of sizes known only at launch on a Hopper GPU: one binary for many sizes against fp64, and times with those of a
kernel for one size. See ``attention_on_gpu.py``, which runs each in its own process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

SIZES = [
    (8, 2, 577, 577),
    (8, 2, 63, 1000),
    (4, 1, 1000, 4097),
    (16, 4, 130, 131),
    (24, 6, 4097, 4097),
    (8, 2, 64, 128),
    (8, 2, 5, 300),
    (64, 16, 2048, 2048),
    (8, 2, 577, 577),
]
"""Heads, heads of K and V, queries and keys, in the order of the launches."""
TIMED = [(128, 32, 4096), (128, 128, 4096), (128, 128, 1024), (16, 16, 16384)]
"""Heads, heads of K and V, queries."""
MASKS = {"full": (False, 0), "causal": (True, 0), "window": (True, 100)}
"""The arguments ``causal`` and ``window``."""
Say, Lock, Timer = Callable[..., None], Callable[[], Any], Callable[..., Callable[..., float]]
LOG2E = 1.4426950408889634


def kernels(name: str, dims: int, mask: str, heads: int, groups: int, m: int, n: int) -> tuple[Any, ...]:
    """Return a kernel of the operators for any sizes and, for meta tensors of these sizes, its config and arguments."""
    import torch

    import helion
    from helion.ops.kernels import attention as ops

    function = getattr(ops, f"attention{name}_kernel").fn
    meta = functools.partial(torch.empty, dtype=torch.bfloat16, device="meta")
    q, k, v = meta(heads, m, dims), meta(groups, n, dims), meta(groups, n, dims)
    vector = torch.empty(heads, m, device="meta")
    tensors = (q, k, v, None) if not name else (torch.empty_like(q), q, k, v, vector, vector)
    given = (*tensors, heads // groups, None, *MASKS[mask], 0.0)
    bound = helion.kernel(function, backend="cute", static_shapes=False).bind(given, target="h100")
    config = bound.seeds[0].config
    bound.resources(config)
    return helion.kernel(function, config=config, backend="cute", static_shapes=False), config, given


def check(dims: int, mask: str, say: Say, on_gpu: Lock) -> None:
    """Launch the kernels of attention and of its gradients with all sizes, and compare them with fp64."""
    import torch

    made = {}
    for heads, groups, m, n in SIZES:
        for name in ("", "_queries_backward", "_keys_backward"):
            key = name, heads // groups
            if key not in made:
                made[key] = kernels(name, dims, mask, 64, 64 // (heads // groups), 2048, 4096)[0]
    for heads, groups, m, n in SIZES:  # compiles for the classes of sizes without the lock
        shared, more = heads // groups, (heads // groups, None, *MASKS[mask], 0.0)
        q, k = (torch.ones(x, rows, dims, device="cuda").bfloat16() for x, rows in ((heads, m), (groups, n)))
        numbers = torch.ones(heads, m, device="cuda")
        made["", shared](q, k, k, None, *more)
        for name in ("_queries_backward", "_keys_backward"):
            made[name, shared](q, q, k, k, numbers, numbers, *more)
    lock = on_gpu()
    for at, (heads, groups, m, n) in enumerate(SIZES):
        torch.manual_seed(at)
        causal, width = MASKS[mask]
        q, k, v, grad = (
            (torch.randn(x, rows, dims, device="cuda") + 0.2).bfloat16()
            for x, rows in ((heads, m), (groups, n), (groups, n), (heads, m))
        )
        leaves = [x.double().requires_grad_() for x in (q, k, v)]
        wide = [x.repeat_interleave(heads // groups, 0) for x in leaves[1:]]
        scores = leaves[0] @ wide[0].mT * dims**-0.5
        after = torch.arange(n, device="cuda")[None, :] - torch.arange(m, device="cuda")[:, None]
        seen = (after <= n - m) & ((after > n - m - width) if width else True) if causal else after < n
        scores = scores.masked_fill(~seen, float("-inf"))
        out = torch.softmax(scores, -1) @ wide[1]
        gradients = torch.autograd.grad(out, leaves, grad.double())
        logsum = (torch.logsumexp(scores, -1) * LOG2E).detach().float()
        along = (grad * out).sum(-1).detach().float()
        more = heads // groups, None, causal, width, 0.0
        shared = heads // groups
        forward = made["", shared](q, k, v, None, *more)
        backward = (grad, q, k, v, logsum, along, *more)
        found = {
            "out": (forward[0], out),
            "logsum": (forward[1], logsum),
            "dq": (made["_queries_backward", shared](*backward), gradients[0]),
        }
        found |= dict(
            zip(("dk", "dv"), zip(made["_keys_backward", shared](*backward), gradients[1:], strict=True), strict=True)
        )
        torch.cuda.synchronize()
        for output, (one, other) in found.items():
            error = ((one.double() - other.double()).norm() / other.double().norm()).item()
            name = f"sizes d{dims} {mask} {heads}/{groups} {m}x{n}"
            say(kind="check", name=name, seed=at, output=output, dtype="bfloat16", ok=error < 6e-3, error=float(f"{error:.3g}"), same=True)  # fmt: skip
    lock.close()


def measured(dims: int, mask: str, say: Say, on_gpu: Lock, timer: Timer) -> None:
    """Time the kernels for any size, and the same configs for one size, without the host's part of a call."""
    import torch

    import helion

    for heads, groups, m in TIMED:
        made = {}
        for name in ("", "_queries_backward", "_keys_backward"):
            kernel, config, meta = kernels(name, dims, mask, heads, groups, m, m)
            fixed = helion.kernel(kernel.fn, config=config, backend="cute")
            fixed.bind(meta, target="h100").resources(config)
            made[name or "_forward"] = kernel, fixed, meta
        lock = on_gpu()
        for name, (kernel, fixed, meta) in made.items():
            torch.manual_seed(1)
            given = [torch.randn_like(x, device="cuda") if torch.is_tensor(x) else x for x in meta]
            if "backward" in name:
                given[4].fill_(8.0 + dims / 8)
            for label, function in (("one size", fixed), ("any size", kernel)):
                function(*given)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    function(*given)
                us = timer(torch)(graph.replay)
                shape = (1, heads, groups, m, m)
                say(kind="gradients", name=f"{name} of {label}", d=dims, causal=mask != "full", shape=shape, us=round(us, 1), right=True)  # fmt: skip
        lock.close()


def spans(dims: int, say: Say, on_gpu: Lock, timer: Timer) -> None:
    """Launch attention whose keys have loaded bounds, with keys that are not numbers out of them; time sequences of a batch."""
    import dataclasses

    import torch
    from backends.cute import attention_spans as cases

    import helion

    meta = functools.partial(torch.empty, device="meta")
    made = {}
    for keys, scheduler, pingpong in ((128, "dynamic", True), (64, "static", False), (112, "dynamic", False)):
        config = helion.Config(
            block_sizes=[128, keys],
            wgmma_tile_scheduler=scheduler,
            wgmma_pingpong=pingpong,
            wgmma_lazy_rescale=dims > 64,
        )
        kernel = helion.kernel(cases.of_rows, backend="cute", config=config, static_shapes=False)
        for softcap in (0.0, 20.0):
            for numbers in (torch.int32, torch.int64):
                shapes = (5000, 16, dims), (6000, 4, dims), (6000, 4, dims)
                tensors = [meta(shape, dtype=torch.bfloat16) for shape in shapes]
                bounds = [meta(5000, dtype=numbers) for _ in range(2)]
                kernel.bind((*tensors, None, *bounds, 4, 0.1, softcap), target="h100").resources(config)
        made[keys, scheduler] = kernel
    lock = on_gpu()
    for (keys, scheduler), kernel in made.items():
        for at, (name, case) in enumerate(cases.SEQUENCES.items()):
            for more in ((), (2000, 64, 65, 1, 3)):
                many = dataclasses.replace(
                    case,
                    queries=(*case.queries, *more),
                    keys=None if case.keys is None else (*case.keys, *more[::-1]),
                    dims=(dims, dims),
                    heads=(8, 2),
                )
                given, wanted, logsum = cases.given_of(many, "cuda", at)
                runs = [kernel(*given) for _ in range(3)]
                torch.cuda.synchronize()
                same = all(torch.equal(one, other) for run in runs for one, other in zip(run, runs[0], strict=True))
                error = ((runs[0][0].double() - wanted).norm() / wanted.norm()).item()
                known = torch.isfinite(logsum)
                same &= torch.equal(torch.isfinite(runs[0][1]), known)
                of_sums = (runs[0][1].double() - logsum)[known].abs().max().item()
                say(kind="check", name=f"spans d{dims} {name}, {keys} keys, {scheduler}", seed=len(more), output=0, dtype="bfloat16", ok=error < 6e-3 and of_sums < 1e-2 and same, error=float(f"{error:.3g}"), worst_row=float(f"{of_sums:.3g}"), same=same)  # fmt: skip
    for lengths in ([1024] * 16, [512] * 64, [137 * each % 2000 + 50 for each in range(32)], [4096] * 4):
        for causal in (False, True):
            many = cases.Sequences(queries=lengths, heads=(16, 16), dims=(dims, dims), causal=causal, rest=0)
            given = cases.arguments_of(many, "cuda")
            for (keys, scheduler), kernel in made.items():
                us = timer(torch)(functools.partial(kernel, *given))
                shape = (len(lengths), 16, 16, sum(lengths), sum(lengths))
                say(kind="gradients", name=f"{len(lengths)} sequences, {keys} keys, {scheduler}", d=dims, causal=causal, shape=shape, us=round(us, 1), right=True)  # fmt: skip
    lock.close()


BATCHES = (
    ((100, 1, 130), (150, 40, 130)),
    ((70, 5, 0, 200), (5, 70, 33, 65)),
    ((1000, 37, 64, 128, 129, 2000, 1), (1000, 100, 64, 65, 300, 3000, 1)),
    ([64] * 40, [64] * 40),
)
"""Queries and keys of the sequences of each batch."""


def packed(dims: int, say: Say, on_gpu: Lock, timer: Timer) -> None:
    """Launch attention of a tile of each sequence, whose rows begin at loaded places, with one binary for many batches."""
    import torch
    from backends.cute import attention_spans as cases

    import helion

    made = {}
    for causal in (True, False):
        for more in ({}, {"wgmma_tile_scheduler": "dynamic", "wgmma_pingpong": True}):
            config = helion.Config(block_sizes=[128, 128 if more else 64], **more)
            kernel = helion.kernel(cases.packed, backend="cute", config=config, static_shapes=False)
            given = cases.packed_of((500, 700), (600, 700), 8, 4, dims, dims, causal)
            kernel.bind([x.to("meta") if torch.is_tensor(x) else x for x in given], target="h100").resources(config)
            made[causal, bool(more)] = kernel
    absolute, segments = (helion.kernel(each, backend="cute") for each in (cases.absolute, cases.segments))
    slots = helion.kernel(cases.slots, backend="cute", static_shapes=False)
    shapes = (3, 8, dims), (5, 200, 2, dims), (5, 200, 2, dims)
    meta = [torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in shapes]
    numbers = [torch.empty(3, dtype=torch.int64, device="meta") for _ in range(2)]
    bound = slots.bind((*meta, *numbers), target="h100")
    bound.resources(bound.default_config())
    lock = on_gpu()
    for (causal, dynamic), kernel in made.items():
        for at, (queries, keys) in enumerate(BATCHES):
            torch.manual_seed(at)
            more = [max(each) for each in zip(queries, keys, strict=True)] if causal else keys
            given = cases.packed_of(queries, more, 8, 4, dims, dims, causal, "cuda")
            wanted, runs = cases.of_packed(*given), [kernel(*given) for _ in range(3)]
            torch.cuda.synchronize()
            same = all(torch.equal(one, other) for run in runs for one, other in zip(run, runs[0], strict=True))
            begin, end = int(given[3][0]), int(given[3][-1])
            same &= not runs[0][0][:begin].any() and not runs[0][0][end:].any()
            errors = [((one.double() - other).norm() / other.norm()).item() for one, other in zip(runs[0], wanted, strict=True)]  # fmt: skip
            say(kind="check", name=f"packed d{dims} {'causal' if causal else 'full'}{', dynamic' * dynamic}", seed=at, output=0, dtype="bfloat16", ok=max(errors) < 6e-3 and same, error=float(f"{max(errors):.3g}"), same=same)  # fmt: skip
    q, k, v = ((torch.randn(shape, device="cuda") + 0.2).bfloat16() for shape in shapes)
    k[:, 190:], v[:, 190:] = float("nan"), float("nan")
    given = q, k, v, torch.tensor([4, 0, 2], device="cuda"), torch.tensor([190, 1, 77], device="cuda")
    error = ((slots(*given).double() - cases.of_slots(*given)).norm() / cases.of_slots(*given).norm()).item()
    say(kind="check", name=f"slots d{dims}", seed=0, output=0, dtype="bfloat16", ok=error < 6e-3, error=float(f"{error:.3g}"), same=True)  # fmt: skip
    q, k, v, offsets, _, longest, *_ = cases.packed_of([100, 0, 900], [100, 0, 900], 4, 1, dims, dims, True, "cuda")
    k, v = k[: len(q)], v[: len(q)]
    found = {
        "absolute": (
            absolute(q, k, v, offsets, longest),
            cases.of_packed(q, k, v, offsets, offsets, longest, 1, True)[0],
        ),
        "segments": (segments(q, k, v, offsets, 0.2, longest), _of_segments(q, k, v, offsets, longest)),
    }
    for name, whole in found.items():
        one, other = (each[int(offsets[0]) : int(offsets[-1])] for each in whole)
        error = ((one.double() - other).norm() / other.norm()).item()
        say(kind="check", name=f"{name} d{dims}", seed=0, output=0, dtype="bfloat16", ok=error < 6e-3, error=float(f"{error:.3g}"), same=True)  # fmt: skip
    for lengths in ([1024] * 16, [512] * 64, [137 * each % 2000 + 50 for each in range(32)], [4096] * 4):
        for causal in (False, True):
            given = cases.packed_of(lengths, lengths, 16, 1, dims, dims, causal, "cuda")
            us = timer(torch)(functools.partial(made[causal, True], *given))
            shape = (len(lengths), 16, 16, sum(lengths), sum(lengths))
            say(kind="gradients", name=f"packed, {len(lengths)} sequences", d=dims, causal=causal, shape=shape, us=round(us, 1), right=True)  # fmt: skip
    lock.close()


def packed_in_float32(dims: int, say: Say, on_gpu: Lock) -> None:
    """Launch attention of a tile of each sequence with an output in float32, whose other rows stay zero."""
    import torch
    from backends.cute import attention_spans as cases

    import helion

    def given_of(number: int, device: str) -> tuple[Any, ...]:
        queries, keys = BATCHES[number]
        torch.manual_seed(number)
        return cases.packed_of(queries, [each or 1 for each in keys], 4, 4, dims, dims, False, device)[:6]

    kernel = helion.kernel(cases.packed_in_float32, backend="cute", static_shapes=False)
    meta = [each.to("meta") if torch.is_tensor(each) else each for each in given_of(0, "cpu")]
    bound = kernel.bind(meta, target="h100")
    for seed in bound.seeds:
        bound.resources(seed.config)
    lock = on_gpu()
    for seed in bound.seeds:
        kernel = helion.kernel(cases.packed_in_float32, backend="cute", static_shapes=False, config=seed.config)
        for at in range(len(BATCHES)):
            given = given_of(at, "cuda")
            runs, wanted = [kernel(*given) for _ in range(3)], cases.of_packed(*given, 4, False)[0]
            torch.cuda.synchronize()
            inside = slice(int(given[3][0]), int(given[3][-1]))
            error = ((runs[0][inside].double() - wanted[inside]).norm() / wanted[inside].norm()).item()
            same = all(torch.equal(run, runs[0]) for run in runs)
            clean = not runs[0][: inside.start].any() and not runs[0][inside.stop :].any()
            say(kind="check", name=f"packed d{dims}, float32", seed=at, output=0, dtype="bfloat16", ok=error < 6e-3 and clean and same, error=float(f"{error:.3g}"), same=same)  # fmt: skip
    lock.close()


def _of_segments(q: Any, k: Any, v: Any, offsets: Any, longest: int) -> Any:
    """Return the result of ``segments`` in fp64; rows of no sequence are 0."""
    import torch

    out = torch.zeros_like(q, dtype=torch.float64)
    for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        queries, keys, values = (x[begin:end].double().transpose(0, 1) for x in (q, k, v))
        weights = torch.nn.functional.silu(queries @ keys.mT * 0.2).tril() / longest
        out[begin:end] = (weights @ values).transpose(0, 1)
    return out


def paged(dims: int, say: Say, on_gpu: Lock, timer: Timer) -> None:
    """Launch decoding with keys in pages, in one part or several, and time it."""
    import torch
    from backends.cute import attention_spans as cases

    import helion

    made = {}
    for page, keys, splits in ((64, 64, 1), (128, 64, 3), (128, 128, 16), (256, 128, 1)):
        config = helion.Config(block_sizes=[64, keys], wgmma_key_splits=splits)
        kernel = helion.kernel(cases.paged, backend="cute", config=config, static_shapes=False)
        for numbers in (torch.int32, torch.int64):
            given = cases.paged_of([700, 0, 37], page, 20, 2, 4, dims, numbers=numbers)
            kernel.bind([x.to("meta") if torch.is_tensor(x) else x for x in given], target="h100").resources(config)
        made[page, keys, splits] = kernel
    timed = helion.kernel(cases.paged, backend="cute", static_shapes=False)
    sizes = ((32, 8192, 8), (1, 65536, 8))
    shapes = [((batch, groups, 4, 128), (batch * n, groups, 128), (batch, n // 128)) for batch, n, groups in sizes]
    meta = functools.partial(torch.empty, device="meta")
    for queries, rows, table in shapes:
        given = [meta(shape, dtype=torch.bfloat16) for shape in (queries, rows, rows)]
        bound = timed.bind(
            (*given, meta(table, dtype=torch.int32), meta(queries[0], dtype=torch.int32), 128), target="h100"
        )
        bound.resources(bound.default_config())
    lock = on_gpu()
    for (page, keys, splits), kernel in made.items():
        for at, some in enumerate(([700, 0, 37], [1, page * 3, 64], [page, page + 1, 1999])):
            torch.manual_seed(at)
            given = cases.paged_of(some, page, 40, 2, 4, dims, "cuda", torch.int32 if at % 2 else torch.int64)
            wanted, runs = cases.of_paged(*given), [kernel(*given) for _ in range(3)]
            torch.cuda.synchronize()
            error = ((runs[0].double() - wanted).norm() / wanted.norm()).item()
            same = all(torch.equal(run, runs[0]) for run in runs)
            say(kind="check", name=f"paged d{dims}, pages of {page}, {keys} keys, {splits} parts", seed=at, output=0, dtype="bfloat16", ok=error < 6e-3 and same, error=float(f"{error:.3g}"), same=same)  # fmt: skip
    for (queries, rows, table), (batch, n, groups) in zip(shapes, sizes, strict=True):
        q, k, v = (torch.randn(shape, device="cuda").bfloat16() for shape in (queries, rows, rows))
        order = torch.randperm(batch * n // 128, device="cuda").view(table).int()
        lengths = torch.full([batch], n - 5, dtype=torch.int32, device="cuda")
        us = timer(torch)(functools.partial(timed, q, k, v, order, lengths, 128))
        say(kind="gradients", name=f"paged decode of {n - 5} keys", d=128, causal=False, shape=(batch, 4 * groups, groups, 1, n), us=round(us, 1), right=True)  # fmt: skip
    lock.close()


def parts(dims: int, say: Say, on_gpu: Lock, timer: Timer) -> None:
    """Launch decoding whose keys the user divides among programs, and time it."""
    import torch
    from backends.cute import attention_parts as cases

    import helion

    kernels = {each: helion.kernel(getattr(cases, each), backend="cute", static_shapes=False) for each in ("of_lengths", "of_all")}  # fmt: skip
    for name, kernel in kernels.items():
        for number in (3, 16):
            given = cases.given_of([3000, 2000], 3000, 4, dims, "meta")[: 4 if name == "of_lengths" else 3]
            bound = kernel.bind((*given, number), target="h100")
            bound.resources(bound.default_config())
    lock = on_gpu()
    for name, kernel in kernels.items():
        for at, (some, number) in enumerate((([3000, 37], 3), ([700, 1], 16), ([129, 2000], 3))):
            torch.manual_seed(at)
            n = max(some)
            given = cases.given_of(some if name == "of_lengths" else [n, n], n, 4, dims, "cuda")
            wanted, runs = (
                cases.wanted(*given),
                [kernel(*given[: 4 if name == "of_lengths" else 3], number) for _ in range(3)],
            )
            torch.cuda.synchronize()
            error = ((cases.joined(*runs[0]) - wanted).norm() / wanted.norm()).item()
            same = all(torch.equal(x, y) for run in runs for x, y in zip(run, runs[0], strict=True))
            say(kind="check", name=f"parts d{dims} {name}, {number} parts", seed=at, output=0, dtype="bfloat16", ok=error < 6e-3 and same, error=float(f"{error:.3g}"), same=same)  # fmt: skip
    q, k, v = (torch.randn(size, device="cuda").bfloat16() for size in ((2, 8, 4, dims), *[(2, 32768, 8, dims)] * 2))
    us = timer(torch)(functools.partial(kernels["of_all"], q, k, v, 16))
    say(kind="gradients", name="decode in 16 parts of the user's", d=dims, causal=False, shape=(2, 32, 8, 1, 32768), us=round(us, 1), right=True)  # fmt: skip
    lock.close()


def tables(dims: int, say: Say, on_gpu: Lock, timer: Timer) -> None:
    """Launch attention with biases by computed indices, and time it."""
    import torch
    from backends.cute import attention_tables as cases

    import helion

    made = {}
    for kind in cases.KINDS:
        kernel = made[kind] = helion.kernel(cases.biased, backend="cute", static_shapes=False)
        given = cases.given_of(kind, 4096, 4000, dims, heads=16)
        bound = kernel.bind([x.to("meta") if torch.is_tensor(x) else x for x in given], target="h100")
        bound.resources(bound.default_config())
    lock = on_gpu()
    for kind, kernel in made.items():
        for at, (m, n) in enumerate(((577, 577), (63, 1000), (1000, 4097))):
            torch.manual_seed(at)
            given = cases.given_of(kind, m, n, dims, 8, "cuda")
            wanted, runs = cases.of_biased(*given), [kernel(*given) for _ in range(3)]
            torch.cuda.synchronize()
            error = ((runs[0].double() - wanted).norm() / wanted.norm()).item()
            same = all(torch.equal(run, runs[0]) for run in runs)
            say(kind="check", name=f"tables d{dims} {kind}", seed=at, output=0, dtype="bfloat16", ok=error < 6e-3 and same, error=float(f"{error:.3g}"), same=same)  # fmt: skip
    for kind, kernel in made.items():
        for backend in ("cute", "triton"):
            given = cases.given_of(kind, 4096, 4096, dims, 64, "cuda")
            run = kernel if backend == "cute" else helion.kernel(cases.biased, backend=backend, static_shapes=False)
            us = timer(torch)(functools.partial(run, *given))
            say(kind="gradients", name=f"tables {kind} {backend}", d=dims, causal=False, shape=(1, 64, 64, 4096, 4096), us=round(us, 1), right=True)  # fmt: skip
    lock.close()


LENGTHS = ((3, 2, 4, 700), (3, 2, 4, 20000), (3, 2, 4, 65), (3, 2, 4, 3001))
"""Sequences, groups, heads of a group, and keys of the cache."""


def lengths(dims: int, say: Say, on_gpu: Lock, timer: Timer) -> None:
    """Launch decoding with keys of many numbers, in parts of several CTAs, and compare it with fp64; then time it."""
    import torch
    from backends.cute import attention_kernels as cases

    import helion

    made = {}
    for static in (True, False):
        for splits in (1, 3, 16):
            config = helion.Config(block_sizes=[64, 64], wgmma_key_splits=splits)
            kernel = helion.kernel(cases.cached, backend="cute", config=config, static_shapes=static)
            meta = [
                torch.empty(size, dtype=torch.bfloat16, device="meta")
                for size in ((3, 2, 4, dims), *[(3, 700, 2, dims)] * 2)
            ]
            for numbers in (torch.int32, torch.int64):
                kernel.bind((*meta, torch.empty(3, dtype=numbers, device="meta")), target="h100").resources(config)
            made[static, splits] = kernel
    lock = on_gpu()
    for (static, splits), kernel in made.items():
        for at, (batch, groups, shared, n) in enumerate(LENGTHS[: 1 if static else 9]):
            for some in ([n, 0, 37], [1, n - 1, 64], [64 * 3, 65, n // 2]):
                q, k, v = (torch.randn(size, device="cuda").bfloat16() + 0.2 for size in ((batch, groups, shared, dims), *[(batch, n, groups, dims)] * 2))  # fmt: skip
                for at_b, length in enumerate(some):  # keys that no query sees are not numbers
                    k[at_b, length:], v[at_b, length:] = float("nan"), float("nan")
                given = q, k, v, torch.tensor(some, device="cuda", dtype=torch.int32 if at % 2 else torch.int64)
                wanted, runs = cases.of_cached(*given), [kernel(*given) for _ in range(3)]
                torch.cuda.synchronize()
                error = ((runs[0].double() - wanted).norm() / wanted.norm()).item()
                same = all(torch.equal(run, runs[0]) for run in runs)
                say(kind="check", name=f"lengths d{dims} {'one size' if static else 'any size'}, {splits} parts", seed=at, output=0, dtype="bfloat16", ok=error < 6e-3 and same, error=float(f"{error:.3g}"), same=same)  # fmt: skip
    for batch, n, splits in ((32, 8192, 1), (1, 65536, 16), (1, 65536, 32), (4, 32768, 8)):
        config = helion.Config(block_sizes=[64, 128], wgmma_key_splits=splits)
        q, k, v = (
            torch.randn(size, device="cuda").bfloat16() for size in ((batch, 8, 4, 128), *[(batch, n, 8, 128)] * 2)
        )
        kernel = helion.kernel(cases.cached, backend="cute", config=config, static_shapes=False)
        for number in (n - 5, n // 2):
            us = timer(torch)(functools.partial(kernel, q, k, v, torch.full([batch], number, device="cuda")))
            say(kind="gradients", name=f"decode of {number} keys, {splits} parts", d=128, causal=False, shape=(batch, 32, 8, 1, n), us=round(us, 1), right=True)  # fmt: skip
    lock.close()
