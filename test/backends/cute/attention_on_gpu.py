"""Runs attention kernels of the cute backend on a Hopper GPU: first all cases against fp64, then times with torch's.

    python3 test/backends/cute/attention_on_gpu.py --out FOLDER [--seconds N] [NAME ...]

Each kernel has its own process, which compiles without the GPU and waits for it; one that hangs is ended, and the others
go on. Results are lines of JSON in FOLDER/attention.jsonl, with a summary on the standard output. The DSL may be in
/tmp/dsl.
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "test")]
if Path("/tmp/dsl").is_dir():
    sys.path.append("/tmp/dsl")

AT_ONCE, GPU_SECONDS, REPEATS = 15, 25.0, 25
SHAPES = {  # by (head dimension, causal): batch, heads, heads of K and V, queries, keys
    (128, False): [(4, 32, 32, 4096, 4096), (1, 16, 16, 16384, 16384), (1, 16, 16, 1000, 4097)],
    (128, True): [(4, 32, 32, 4096, 4096), (1, 16, 16, 16384, 16384), (2, 32, 8, 4096, 4096), (8, 16, 16, 1024, 1024)],
    (64, False): [(4, 32, 32, 4096, 4096), (2, 16, 16, 8192, 8192), (16, 12, 12, 577, 577)],
    (64, True): [(4, 32, 32, 4096, 4096), (1, 16, 2, 16384, 16384)],
    (256, False): [(2, 8, 8, 4096, 4096), (4, 16, 16, 4096, 4096)],
    (256, True): [(4, 16, 16, 4096, 4096)],
}
DECODE = [
    (2, 32, 8, 1, 8192, 128),
    (1, 8, 8, 16, 20000, 64),
    (16, 32, 8, 1, 4096, 128),
    (4, 32, 32, 1, 4096, 128),
    (1, 32, 8, 1, 131072, 128),
]
"""Batch, heads, heads of K and V, queries, keys, head dimension."""
VARIANTS = [
    (dims, causal, keys)
    for dims, causal, keys in (
        (64, False, {"block_sizes": [1, 192, 128], "wgmma_kv_stages": 2, "wgmma_pingpong": True}),
        (64, False, {"block_sizes": [1, 192, 128], "wgmma_kv_stages": 2, "wgmma_pingpong": False}),
        (64, False, {"block_sizes": [1, 192, 128], "wgmma_kv_stages": 3, "wgmma_pingpong": True}),
        (64, False, {"block_sizes": [1, 192, 128], "wgmma_kv_stages": 4, "wgmma_pingpong": False}),
        (64, False, {"block_sizes": [1, 192, 112], "wgmma_kv_stages": 2, "wgmma_pingpong": True}),
        (64, False, {"block_sizes": [1, 128, 192], "wgmma_kv_stages": 2, "wgmma_pingpong": True}),
        (64, True, {"block_sizes": [1, 192, 128], "wgmma_kv_stages": 2, "wgmma_pingpong": True}),
        (64, True, {"block_sizes": [1, 192, 128], "wgmma_kv_stages": 2, "wgmma_pingpong": False}),
        (64, True, {"block_sizes": [1, 128, 128], "wgmma_kv_stages": 2, "wgmma_pingpong": True}),
        (128, False, {"block_sizes": [1, 128, 176], "wgmma_pingpong": True}),
        (128, False, {"block_sizes": [1, 128, 160], "wgmma_pingpong": False}),
        (128, False, {"block_sizes": [1, 128, 128], "wgmma_pingpong": False}),
        (128, True, {"block_sizes": [1, 128, 128], "wgmma_pingpong": False}),
        (128, True, {"block_sizes": [1, 128, 128], "wgmma_kv_stages": 2, "wgmma_pingpong": True}),
    )
]
"""Head dimension, causal, and keys that differ from the default config."""
HOOKS = ("softcap", "window", "capped_window")


def say(**line: object) -> None:
    print(json.dumps(line), flush=True)


class Held:
    """The lock of the GPU. A process that says nothing for ``GPU_SECONDS`` while it holds the lock is ended."""

    def __init__(self) -> None:
        self.file = open(os.environ["ATTENTION_LOCK"], "w")
        fcntl.flock(self.file, fcntl.LOCK_EX)
        say(kind="begin")

    def close(self) -> None:
        say(kind="end")
        self.file.close()


def on_gpu() -> Held:
    return Held()


def timer(torch):
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")

    def measure(run, repeats: int = REPEATS) -> float:
        for _ in range(3):
            run()
        torch.cuda.synchronize()
        pairs = []
        for _ in range(repeats):
            flush.zero_()
            torch.cuda._sleep(400_000)  # the launch is queued before the first event
            one, other = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            one.record()
            run()
            other.record()
            pairs.append((one, other))
        torch.cuda.synchronize()
        return statistics.median(one.elapsed_time(other) for one, other in pairs) * 1e3

    return measure


# Children --------------------------------------------------------------------------------------------------------------


THREE_GROUPS = (0, 1, 2, 7, 8, 9)
"""Cases that are checked with three consumer groups as well."""


def check(number: int, rows: int = 0, static: bool = True) -> None:
    """Check the seeds of a case, or its first seed with tiles of ``rows`` queries; ``static``: for its sizes alone."""
    import torch
    from backends.cute import attention_kernels as kernels

    import helion

    torch.manual_seed(number)
    dtype = torch.float16 if number % 3 == 0 else torch.bfloat16
    case, _ = kernels.cases(large=True)[number]
    kernel = helion.kernel(backend="cute", static_shapes=static)(case.kernel)
    start = time.time()
    seeds = _compiled(kernel, kernels.cases(device="meta", dtype=dtype, large=True)[number][1], rows)
    took = time.time() - start
    lock = on_gpu()
    _, arguments = kernels.cases(device="cuda", dtype=dtype, large=True)[number]
    wanted = case.reference(*arguments)
    wanted = (wanted,) if torch.is_tensor(wanted) else wanted
    for at, config in enumerate(seeds):
        bound = kernel.bind(arguments)
        bound.set_config(config)
        runs = []
        for _ in range(3):
            found = bound(*arguments)
            runs.append((found,) if torch.is_tensor(found) else found)
        torch.cuda.synchronize()
        same = all(torch.equal(one, other) for run in runs[1:] for one, other in zip(run, runs[0], strict=True))
        for place, (one, other) in enumerate(zip(runs[-1], wanted, strict=True)):
            error = ((one.double() - other).norm() / other.norm()).item()
            off = (one.double() - other).flatten(0, -2).norm(dim=-1) if one.ndim > 3 else (one.double() - other).abs()
            size = other.flatten(0, -2).norm(dim=-1) if one.ndim > 3 else other.abs() + 1
            worst = (off / (size + 0.05 * size.mean())).max().item()
            limit = 6e-3 if dtype is torch.bfloat16 else 2e-3
            say(
                kind="check",
                name=f"{case.name}, {rows} queries" if rows else case.name if static else f"{case.name}, any size",
                seed=at,
                output=place,
                dtype=str(dtype),
                ok=error < limit and worst < 10 * limit and same,
                error=float(f"{error:.3g}"),
                worst_row=float(f"{worst:.3g}"),
                same=same,
                compile_s=round(took, 1),
            )
    lock.close()


def _compiled(kernel, arguments, rows):
    """Compile all seeds without the GPU, and return their configs."""
    import helion

    bound = kernel.bind(arguments, target="h100")
    configs = [seed.config for seed in bound.seeds]
    if rows:
        *others, _, keys = configs[0].block_sizes
        configs = [helion.Config(**{**configs[0], "block_sizes": [*others, rows, min(keys, 128)]})]
    for config in configs[:2]:
        bound.resources(config)
    return configs[:2]


def measured(dims: int, causal: bool, which: str, keys: dict | None = None) -> None:
    import torch
    from backends.cute import attention_kernels as kernels

    import helion

    for shape in SHAPES[dims, causal][: 2 if keys else 9]:
        batch, heads, groups, m, n = shape
        if keys and heads != groups:
            continue
        sizes = (batch, heads, m, dims), (batch, groups, n, dims), (batch, groups, n, dims)
        backend, _, seed = which.partition("-")
        mod = getattr(kernels, which) if which in HOOKS else kernels.causal
        plain = heads == groups and which not in HOOKS
        kernel = helion.kernel(backend="cute" if which in HOOKS else backend)(
            (kernels.attention if plain else kernels.flex_attention).fn
        )
        more = (causal,) if plain else (mod,)
        meta = [torch.empty(size, dtype=torch.bfloat16, device="meta") for size in sizes]
        bound = kernel.bind((*meta, *more), target="h100")
        config = bound.seeds[min(int(seed or 0), len(bound.seeds) - 1)].config
        if keys:
            config = helion.Config(**{**config, **keys})
        predicted = bound._analysis.predict(config).time_us
        bound.resources(config)
        lock = on_gpu()
        torch.manual_seed(1)
        tensors = [kernels.random(*size, device="cuda", mean=0.0 if at == 0 else 0.25) for at, size in enumerate(sizes)]
        bound = kernel.bind((*tensors, *more))
        bound.set_config(config)
        found = bound(*tensors, *more)
        few = [tensors[0][:1, : heads // groups], *(each[:1, :1] for each in tensors[1:])]
        wanted = kernels.reference(*few, mod=mod if causal or which in HOOKS else None)[0]
        error = ((found[:1, : heads // groups].double() - wanted).norm() / wanted.norm()).item()
        us = timer(torch)(functools.partial(bound, *tensors, *more))
        say(
            kind="time",
            name=which + (str(keys) if keys else ""),
            d=dims,
            causal=causal,
            shape=shape,
            us=round(us, 1),
            predicted_us=round(predicted, 1),
            right=error < 6e-3,
            error=float(f"{error:.3g}"),
            config=repr(dict(config)),
        )
        lock.close()


def decode() -> None:
    """Time few queries with the keys in `[B, S, H, D]`, and torch's beside them."""
    import torch
    from backends.cute import attention_kernels as kernels
    from torch.nn.attention import SDPBackend, sdpa_kernel

    import helion

    kernel = helion.kernel(backend="cute")(kernels.rows_of_heads)
    bounds = []
    for batch, heads, groups, m, n, dims in DECODE:
        sizes = (batch, m, heads, dims), (batch, n, groups, dims), (batch, n, groups, dims)
        meta = (torch.empty(size, dtype=torch.bfloat16, device="meta") for size in sizes)
        bound = kernel.bind((*meta, True), target="h100")
        for seed in bound.seeds:
            bound.resources(seed.config)
        bounds.append((sizes, [(seed.config, seed.predicted.time_us) for seed in bound.seeds]))
    lock = on_gpu()
    measure = timer(torch)
    for (batch, heads, groups, m, n, dims), (sizes, configs) in zip(DECODE, bounds, strict=True):
        tensors = [kernels.random(*size, device="cuda") for size in sizes]
        more = {"kind": "time", "d": dims, "causal": True, "shape": (batch, heads, groups, m, n), "right": True}
        for config, predicted in configs:
            bound = kernel.bind((*tensors, True))
            bound.set_config(config)
            us = measure(functools.partial(bound, *tensors, True))
            say(name="cute", us=round(us, 1), predicted_us=round(predicted, 1), config=repr(dict(config)), **more)
        q, k, v = (x.transpose(1, 2) for x in tensors)
        call = functools.partial(torch.nn.functional.scaled_dot_product_attention, q, k, v, enable_gqa=heads != groups)
        for backend, label in ((SDPBackend.CUDNN_ATTENTION, "cudnn"), (SDPBackend.FLASH_ATTENTION, "flash")):
            try:
                with sdpa_kernel(backend), torch.no_grad():
                    say(name=label, us=round(measure(call), 1), **more)
            except RuntimeError as error:
                say(kind="error", name=label, what=str(error)[:200])
        half = torch.empty(tensors[1].numel(), dtype=torch.bfloat16, device="cuda")
        say(name="copy", us=round(measure(functools.partial(half.copy_, torch.empty_like(half))), 1), **more)
    lock.close()


def library() -> None:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    attend = torch.nn.functional.scaled_dot_product_attention
    lock = on_gpu()
    say(
        kind="device",
        device=torch.cuda.get_device_name(),
        torch=torch.__version__,
        cudnn=torch.backends.cudnn.version(),
    )
    measure = timer(torch)
    for (dims, causal), shapes in SHAPES.items():
        for shape in shapes:
            batch, heads, groups, m, n = shape
            q, k, v = (
                torch.randn(batch, x, rows, dims, device="cuda", dtype=torch.bfloat16)
                for x, rows in ((heads, m), (groups, n), (groups, n))
            )
            for backend, label in ((SDPBackend.CUDNN_ATTENTION, "cudnn"), (SDPBackend.FLASH_ATTENTION, "flash")):
                try:
                    with sdpa_kernel(backend), torch.no_grad():
                        us = measure(lambda: attend(q, k, v, is_causal=causal, enable_gqa=heads != groups))  # noqa: B023
                    say(kind="time", name=label, d=dims, causal=causal, shape=shape, us=round(us, 1), right=True)
                except RuntimeError as error:
                    say(kind="error", name=label, shape=shape, what=str(error)[:200])
    lock.close()


def flex(dims: int, causal: bool, name: str) -> None:
    """Time torch's compiled FlexAttention with the formula ``name``."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def soft(score, b, h, i, j):
        return 30 * torch.tanh(score / 30)

    compiled = torch.compile(flex_attention)
    lock = on_gpu()
    measure = timer(torch)
    for shape in SHAPES[dims, causal][:2]:
        batch, heads, _, m, n = shape
        q, k, v = (torch.randn(batch, heads, rows, dims, device="cuda", dtype=torch.bfloat16) for rows in (m, n, n))
        mask = None
        if "window" in name:
            mask = create_block_mask(lambda b, h, i, j: (i >= j) & (i - j < 100), None, None, m, n)
        mod = soft if "cap" in name else None
        us = measure(lambda: compiled(q, k, v, score_mod=mod, block_mask=mask))  # noqa: B023
        say(kind="time", name=f"flex {name}", d=dims, causal=causal, shape=shape, us=round(us, 1), right=True)
    lock.close()


def child(name: str) -> None:
    from backends.cute import (
        derived_on_gpu,
        fp8_on_gpu,
        gradients_on_gpu,
        latent_on_gpu,
        rounded_on_gpu,
        sizes_on_gpu,
        stress_on_gpu,
    )

    what, *rest = name.split(":")
    if what == "check":
        check(*map(int, rest))
    elif what == "any":
        check(int(rest[0]), static=False)
    elif what == "sizes":
        sizes_on_gpu.check(int(rest[0]), rest[1], say, on_gpu)
    elif what in ("lengths", "spans", "packed", "parts", "tables", "paged"):
        getattr(sizes_on_gpu, what)(int(rest[0]), say, on_gpu, timer)
    elif what == "packed_in_float32":
        sizes_on_gpu.packed_in_float32(int(rest[0]), say, on_gpu)
    elif what == "latent":
        latent_on_gpu.check(int(rest[0]), int(rest[1]), rest[2], say, on_gpu)
    elif what == "rounded":
        rounded_on_gpu.measured(int(rest[0]), say, on_gpu, timer)
    elif what == "latent_times":
        latent_on_gpu.measured(int(rest[0]), say, on_gpu, timer)
    elif what == "size_times":
        sizes_on_gpu.measured(int(rest[0]), rest[1], say, on_gpu, timer)
    elif what == "any_gradients":
        gradients_on_gpu.check(int(rest[0]), say, on_gpu, static=False)
    elif what == "time":
        measured(int(rest[0]), rest[1] == "causal", rest[2])
    elif what == "flex":
        flex(int(rest[0]), rest[1] == "causal", rest[2])
    elif what == "variant":
        dims, causal, keys = VARIANTS[int(rest[0])]
        measured(dims, causal, "cute", keys)
    elif what == "decode":
        decode()
    elif what == "derived":
        gradients_on_gpu.derived(int(rest[0]), rest[1] == "causal", say, on_gpu, timer)
    elif what in ("stress", "repeats"):
        getattr(stress_on_gpu, what)(int(rest[0]), rest[1], say, on_gpu)
    elif what == "bias":
        derived_on_gpu.check(rest[0], say, on_gpu, rest[1:] == ["hidden"])
    elif what == "derived_any":
        derived_on_gpu.any_size(int(rest[0]), rest[1], say, on_gpu)
    elif what == "bias_times":
        derived_on_gpu.measured(rest[0], say, on_gpu, timer)
    elif what == "computed":
        gradients_on_gpu.check(int(rest[0]), say, on_gpu, module="computed_kernels")
    elif what == "dropout":
        gradients_on_gpu.check(int(rest[0]), say, on_gpu, static=rest[1] == "static", module="dropped_kernels")
    elif what == "sequences":
        static = rest[1] == "static"
        gradients_on_gpu.check(int(rest[0]), say, on_gpu, static=static, module="sequence_gradients")
    elif what == "dropout_times":
        gradients_on_gpu.dropout(int(rest[0]), say, on_gpu, timer)
    elif what == "sequence_times":
        gradients_on_gpu.sequences(int(rest[0]), int(rest[1]), say, on_gpu, timer)
    elif what == "narrow":
        static = rest[1:] != ["any"]
        gradients_on_gpu.check(int(rest[0]), say, on_gpu, static, module="fp8_kernels", limit=fp8_on_gpu.ERROR)
    elif what == "narrow_times":
        fp8_on_gpu.measured(int(rest[0]), rest[1] == "causal", say, on_gpu, timer)
    elif what == "gradients":
        gradients_on_gpu.check(int(rest[0]), say, on_gpu)
    elif what == "gradient_times":
        gradients_on_gpu.measured(int(rest[0]), rest[1] == "causal", rest[2], say, on_gpu, timer)
    else:
        library()


# The parent ------------------------------------------------------------------------------------------------------------


def jobs() -> list[str]:
    from backends.cute import attention_kernels as kernels
    from backends.cute import gradients_on_gpu, latent_on_gpu, rounded_on_gpu, sizes_on_gpu
    from backends.cute.test_backward import NAMES
    from backends.cute.test_computed_rows import NAMES as COMPUTED_NAMES
    from backends.cute.test_derived_inputs import KINDS as DERIVED_KINDS
    from backends.cute.test_dropout import NAMES as DROPPED_NAMES
    from backends.cute.test_fp8_attention import NAMES as NARROW_NAMES
    from backends.cute.test_sequence_gradients import NAMES as SEQUENCE_NAMES

    found = ["library"]
    checks = [f"check:{at}" for at in range(len(kernels.cases(device="meta", large=True)))]
    checks += [f"check:{at}:192" for at in THREE_GROUPS]
    times = [f"time:{dims}:{'causal' if causal else 'full'}:cute" for dims, causal in SHAPES]
    others = [f"time:{dims}:{'causal' if causal else 'full'}:cute-1" for dims, causal in SHAPES]
    others += [f"time:{dims}:{'causal' if causal else 'full'}:triton" for dims, causal in SHAPES]
    hooks = [f"{kind}:128:causal:{name}" for name in HOOKS for kind in ("time", "flex")]
    variants = [f"variant:{at}" for at in range(len(VARIANTS))]
    cases = [*range(len(kernels.cases(device="meta", large=True)))]
    return [
        *(f"latent:{dims}:{form}" for dims in ("576:512", "320:256") for form in latent_on_gpu.FORMS),
        *(f"rounded:{at}" for at in range(len(rounded_on_gpu.SHAPES))),
        *(f"latent_times:{at}" for at in range(7)),
        "parts:128",
        "tables:64",
        "tables:128",
        "sizes:128:causal",
        "lengths:64",
        "lengths:128",
        "spans:64",
        "spans:128",
        "packed:64",
        "packed:128",
        "packed_in_float32:64",
        "packed_in_float32:128",
        "paged:64",
        "paged:128",
        *(
            f"sizes:{dims}:{mask}"
            for dims in (64, 128)
            for mask in sizes_on_gpu.MASKS
            if (dims, mask) != (128, "causal")
        ),
        *(f"any:{at}" for at in cases),
        *(f"any_gradients:{at}" for at in range(len(NAMES)) if "queries, 96" not in NAMES[at]),
        *(f"size_times:{dims}:{mask}" for dims in (128, 64) for mask in ("causal", "full")),
        *checks[:3],
        *found,
        *times,
        *checks[3:],
        "decode",
        *(f"gradients:{at}" for at in range(len(NAMES))),
        *(f"computed:{at}" for at in range(len(COMPUTED_NAMES))),
        *(f"stress:{dims}:{mask}" for dims in (64, 128) for mask in sizes_on_gpu.MASKS),
        *(f"repeats:{at}:backward_kernels" for at in range(len(NAMES)) if "all" not in NAMES[at]),
        *(f"{job}:{kind}" for job in ("bias", "bias_times") for kind in DERIVED_KINDS),
        "bias:of heads:hidden",
        *(f"derived_any:{dims}:{mask}" for dims in (64, 128) for mask in sizes_on_gpu.MASKS),
        *(f"derived:{dims}:{mask}" for dims in (64, 128, 256) for mask in ("causal", "full")),
        *(f"sequences:{at}:{sizes}" for at in range(len(SEQUENCE_NAMES)) for sizes in ("static", "any")),
        *(f"dropout_times:{dims}" for dims in (64, 128)),
        *(f"sequence_times:{dims}:{length}" for dims in (64, 128) for length in (512, 1024)),
        *(f"narrow:{at}:{sizes}" for at in range(len(NARROW_NAMES)) for sizes in ("static", "any")),
        *(f"narrow_times:{dims}:{mask}" for dims in (128, 64, 256) for mask in ("full", "causal")),
        *(f"dropout:{at}:{sizes}" for at in range(len(DROPPED_NAMES)) for sizes in ("static", "any")),
        *(
            f"gradient_times:{dims}:{'causal' if causal else 'full'}:{kind}"
            for dims, causal in gradients_on_gpu.SHAPES
            for kind in gradients_on_gpu.kinds(dims)
        ),
        *hooks,
        *variants,
        *others[6:9],
        *others[:6],
        *others[9:],
    ]


def end(process: subprocess.Popen) -> None:
    """End a process of ours, with its group."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=225)
    parser.add_argument("--workers", type=int, default=AT_ONCE, help="processes at a time")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    start, waiting = time.time(), options.names or jobs()
    total = len(waiting)
    lockfile = tempfile.NamedTemporaryFile(suffix=".lock")
    caches = tempfile.mkdtemp()
    paths = [str(ROOT), str(ROOT / "test"), "/tmp/dsl", os.environ.get("PYTHONPATH", "")]
    env = {
        **os.environ,
        "ATTENTION_LOCK": lockfile.name,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": ":".join(filter(None, paths)),
        "HELION_CACHE_DIR": f"{caches}/helion",
        "TRITON_CACHE_DIR": f"{caches}/triton",
    }
    running: dict[str, dict] = {}
    lines: list[dict] = []
    bad: dict[str, str] = {}
    options.out.mkdir(parents=True, exist_ok=True)
    with open(options.out / "attention.jsonl", "w") as log:
        while (waiting or running) and time.time() - start < options.seconds:
            while waiting and len(running) < options.workers:
                name = waiting.pop(0)
                errors = tempfile.TemporaryFile()
                process = subprocess.Popen(
                    [sys.executable, os.path.abspath(__file__), "--child", name],
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env=env,
                    start_new_session=True,
                )
                assert process.stdout is not None
                os.set_blocking(process.stdout.fileno(), False)
                running[name] = {"process": process, "errors": errors, "buffer": b"", "since": None}
            select.select([each["process"].stdout for each in running.values()], [], [], 0.25)
            for name, each in list(running.items()):
                process = each["process"]
                over = process.poll() is not None
                each["buffer"] += process.stdout.read() or b""
                *whole, each["buffer"] = each["buffer"].split(b"\n")
                for line in whole:
                    try:
                        found = json.loads(line)
                    except ValueError:
                        continue
                    each["since"] = None if found["kind"] == "end" else time.time()
                    if found["kind"] in ("begin", "end"):
                        continue
                    lines.append({"job": name, **found})
                    log.write(json.dumps(lines[-1]) + "\n")
                    log.flush()
                    if found["kind"] == "check" and not found["ok"]:
                        print("WRONG", lines[-1], flush=True)
                hung = each["since"] is not None and time.time() - each["since"] > GPU_SECONDS and not over
                if hung:
                    end(process)
                    bad[name] = "hung"
                elif over and process.returncode:
                    each["errors"].seek(0)
                    bad[name] = each["errors"].read()[-900:].decode(errors="replace")
                    print(f"FAILED {name}: {bad[name]}", flush=True)
                if over or hung:
                    log.write(json.dumps({"kind": "job", "job": name, "bad": bad.get(name, "")}) + "\n")
                    del running[name]
        for name, each in running.items():
            end(each["process"])
            bad[name] = "no time left"
    _summary(lines, bad, waiting, total, time.time() - start)


def _summary(lines: list[dict], bad: dict[str, str], waiting: list[str], total: int, seconds: float) -> None:
    checks = [line for line in lines if line["kind"] == "check"]
    print(
        f"\n{sum(line['ok'] for line in checks)} of {len(checks)} checks right, {len({line['name'] for line in checks})} kernels"
    )
    times = [line for line in lines if line["kind"] == "time"]
    for key in dict.fromkeys((line["d"], line["causal"], tuple(line["shape"])) for line in times):
        rows = sorted((x for x in times if (x["d"], x["causal"], tuple(x["shape"])) == key), key=lambda x: x["us"])
        base = next((x["us"] for x in rows if x["name"] == "cudnn"), None)
        batch, heads, _, m, n = key[2]
        flops = 4 * batch * heads * m * n * key[0] * (0.5 if key[1] else 1)
        shown = [
            f"{x['name']}{'' if x['right'] else '*'} {x['us']:.0f} us {flops / x['us'] / 1e6:.0f} TF"
            + (f" ({base / x['us']:.2f})" if base else "")
            + (f" [{x['predicted_us']:.0f}]" if "predicted_us" in x else "")
            for x in rows
        ]
        print(f"d{key[0]} {'causal' if key[1] else 'full'} {key[2]}: " + "; ".join(shown))
    for line in (line for line in lines if line["kind"] == "gradients"):
        batch, heads, _, m, n = line["shape"]
        flops = 10 * batch * heads * m * n * line["d"] * (0.5 if line["causal"] else 1)
        rate = f"{line['us']:.0f} us {flops / line['us'] / 1e6:.0f} TF{'' if line['right'] else ' WRONG'}"
        print(
            f"gradients {line['name']} {line.get('keys', '')} d{line['d']} {'causal' if line['causal'] else 'full'} {line['shape']}: {rate}"
        )
    print(
        f"bad: { {name: why[-160:] for name, why in bad.items()} }; not begun: {waiting}; {total} jobs, {seconds:.0f} s"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2])
    else:
        main()
