"""Row kernels of the cute backend on a GPU: right against fp64, then their time, a copy's, and torch.compile's, in one run.

    python benchmarks/row_kernels.py --out FOLDER [--seconds N] [--workers N] [NAME ...]

Each pair of kernel and type is a process; a lock keeps one on the GPU at a time while others compile. Results are lines
of JSON in FOLDER/rows.jsonl. A process that is silent too long is ended, and its pair reported.
"""

from __future__ import annotations

import argparse
import fcntl
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(Path(__file__).parent))
SHAPES = (
    (2048, 131072),
    (16384, 8192),
    (131072, 1000),
    (4096, 50257),
    (1024, 262144),
    (65536, 2048),
    (4096, 32768),
    (32, 4096),
)
CHECKED = (1001, 255, 4099, 5120, 32001, 50257, 131072)
TYPES = ("bfloat16", "float32")
WORKER_SECONDS = 150.0


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


class Gpu:
    """The GPU, for one process at a time."""

    def __enter__(self) -> None:
        self.file = open(os.environ["ROWS_LOCK"], "w")
        fcntl.flock(self.file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        import torch

        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self.file.close()


class Timer:
    """Medians in microseconds with a cold L2 cache."""

    def __init__(self) -> None:
        import torch

        self.torch, self.flush = torch, torch.empty(256 << 20, dtype=torch.uint8, device="cuda")

    def __call__(self, call: Callable[[], Any], repeats: int = 21) -> float:
        torch, pairs = self.torch, []
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        for _ in range(repeats):
            self.flush.zero_()
            torch.cuda._sleep(300_000)
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            first.record()
            call()
            last.record()
            pairs.append((first, last))
        torch.cuda.synchronize()
        return statistics.median(a.elapsed_time(b) for a, b in pairs) * 1e3


class Case:
    """Tensors of one kernel. Outputs lie between guards."""

    GUARD = 512

    def __init__(self, name: str, dtype: Any, m: int, n: int, seed: int) -> None:
        import torch
        from row_workloads import WORKLOADS

        self.work, self.m, self.n, self.dtype, self.torch = WORKLOADS[name], m, n, dtype, torch
        random = torch.Generator("cuda").manual_seed(seed)
        self.inputs = []
        for kind in self.work.inputs:
            shape = (m, n) if kind == "rows" else (n,)
            made = torch.randn(shape, device="cuda", generator=random)
            if self.work.probabilities and not self.inputs:
                made = torch.softmax(3 * made, -1)
            elif kind == "rows":
                made = made * self.work.scale + self.work.shift
            self.inputs.append((made + (1 if kind == "vector" else 0)).to(dtype))
        if self.work.kernel.__name__ == "kl_div":
            self.inputs = self.inputs[::-1]
        self.guarded, self.outputs = [], []
        for _, kind, rows in self.work.outputs:
            shape = (m, n) if rows else (m,)
            size = math.prod(shape)
            whole = torch.empty(size + 2 * self.GUARD, device="cuda", dtype=kind or dtype)
            self.guarded.append(whole)
            self.outputs.append(whole[self.GUARD : self.GUARD + size].view(shape))

    @property
    def arguments(self) -> list[Any]:
        return [*self.inputs, *self.outputs]

    @property
    def moved(self) -> int:
        return sum(each.numel() * each.element_size() for each in self.arguments)

    def clear(self) -> None:
        for each in self.guarded:
            each.view(self.torch.uint8).fill_(0xFF)

    def guards_hold(self) -> bool:
        size = self.GUARD
        parts = [part for each in self.guarded for part in (each[:size], each[-size:])]
        return all(bool((part.view(self.torch.uint8) == 0xFF).all()) for part in parts)

    def error(self) -> float:
        """The largest error, in units of what is allowed."""
        torch, work = self.torch, self.work
        inputs = [each.double() for each in self.inputs]
        more = (self.dtype,) if work.kernel.__name__ == "add_rms_norm_fp8" else ()
        wanted, worst = work.reference(*inputs, *more), 0.0
        for got, want, (name, kind, _) in zip(self.outputs, wanted, work.outputs, strict=True):
            if name == "place":
                same = self.inputs[0].gather(1, got[:, None]) == self.inputs[0].gather(1, want[:, None])
                worst = max(worst, 0.0 if bool(same.all()) else math.inf)
                continue
            allowed = {torch.bfloat16: 2**-8 * 1.02, torch.float8_e4m3fn: 2**-4 * 1.02}.get(kind or self.dtype, 4e-5)
            size = want.square().mean().sqrt() if want.dim() < 2 else want.square().mean(-1, keepdim=True).sqrt()
            least = 0.2 if kind is None else 0.05
            beside = want.abs() + least * size + work.slack(*inputs)
            found = ((got.double() - want).abs() / (allowed * beside)).max().item()
            worst = max(worst, found if found == found else math.inf)
        return worst


def compiled_config(name: str, case: Any, config: Any, **settings: Any) -> Callable[..., Any]:
    """Bind and compile a kernel, without the GPU; return the function to call."""
    from row_workloads import WORKLOADS

    import helion
    from helion.backends.cute.toolchain.library import folder

    kernel = helion.kernel(WORKLOADS[name].kernel, backend="cute", config=config, **settings)
    bound = kernel.bind(tuple(case))
    names: dict[str, Any] = {}
    exec(compile(bound.to_cute_code(), "kernel", "exec"), names)
    folder(next(value for key, value in names.items() if key.startswith("_helion_") and hasattr(value, "source")))
    return kernel


def rows_of_check(n: int) -> int:
    """Return the rows of a check: several for each cluster."""
    return 300 if n < 100000 else 90


def checked(case: Case, kernel: Callable[..., Any]) -> dict[str, Any]:
    """Run a kernel four times; return its error, and whether guards hold and runs are the same."""
    import torch

    case.clear()
    kernel(*case.arguments)
    torch.cuda.synchronize()
    first, same = [each.clone() for each in case.outputs], True
    found = dict(error=float(f"{case.error():.3g}"), guards=case.guards_hold())
    for _ in range(3):
        case.clear()
        kernel(*case.arguments)
        pairs = zip(first, case.outputs, strict=True)
        same &= all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in pairs)
    return found | dict(same=same, ok=found["error"] <= 1 and found["guards"] and same)


def timed(case: Case, kernel: Callable[..., Any], timer: Timer, copies: dict[int, float]) -> dict[str, Any]:
    """Return the microseconds of a kernel, and of a copy of the same bytes."""
    import torch

    size, us = case.moved, timer(lambda: kernel(*case.arguments))
    if size not in copies:
        source, to = (torch.zeros(size // 8, device="cuda") for _ in range(2))
        copies[size] = timer(lambda: to.copy_(source))
    return dict(us=round(us, 2), copy_us=round(copies[size], 2), share=round(copies[size] / us, 3))


def measured(name: str, dtype: Any, m: int, n: int, timer: Timer, copies: dict[int, float]) -> None:
    """Check and time the seeds of one kernel and shape; without rows, check them only."""
    from row_workloads import WORKLOADS

    import helion

    def case(timed: bool) -> Case:
        return Case(name, dtype, m if timed else rows_of_check(n), n, 2)

    with Gpu():
        arguments = tuple(case(bool(m)).arguments)
        seeds = helion.kernel(WORKLOADS[name].kernel, backend="cute").bind(arguments).seeds
        del arguments
    for at, seed in enumerate(seeds[: 2 if m else 3]):
        line = dict(kind="result", name=name, type=str(dtype)[6:], m=m, n=n, at=at, plan=seed.reason)
        line["predicted"] = round(float(seed.reason.split()[-2]), 1)
        start = time.time()
        with Gpu():
            small = case(False)
        kernel = compiled_config(name, small.arguments, seed.config)
        if m:
            with Gpu():
                whole = case(True)
            kernel = compiled_config(name, whole.arguments, seed.config)
        line["compile_s"] = round(time.time() - start, 1)
        with Gpu():
            line |= checked(small, compiled_config(name, small.arguments, seed.config))
            if m:
                line |= timed(whole, kernel, timer, copies)
                del whole
            del small
        say(**line)


def worker(name: str, dtype_name: str, seconds: float) -> None:
    import torch

    end, dtype, copies = time.time() + seconds, getattr(torch, dtype_name), dict[int, float]()
    with Gpu():
        timer = Timer()
    for m, n in (*SHAPES, *((0, n) for n in CHECKED)):
        if time.time() > end:
            say(kind="late", name=name, type=dtype_name, shape=(m, n))
            continue
        try:
            measured(name, dtype, m, n, timer, copies)
        except Exception as error:
            say(kind="failed", name=name, type=dtype_name, shape=(m, n), why=f"{type(error).__name__}: {error}"[:600])


def baseline(which: str, name: str, dtype_name: str, seconds: float) -> None:
    """Time torch.compile of the reference, or the kernel with the default config of Triton."""
    import torch

    end, dtype = time.time() + seconds, getattr(torch, dtype_name)
    with Gpu():
        timer = Timer()
    for m, n in SHAPES:
        if time.time() > end:
            return
        try:
            with Gpu():
                say(
                    kind="compile",
                    name=name,
                    type=dtype_name,
                    m=m,
                    n=n,
                    us=round(compiled_us(name, dtype, m, n, timer), 2),
                )
        except Exception as error:
            say(kind="failed", name=f"{which} {name}", type=dtype_name, shape=(m, n), why=str(error)[:300])


def triton_us(name: str, dtype: Any, m: int, n: int, timer: Timer) -> float:
    from row_workloads import WORKLOADS

    import helion

    case = Case(name, dtype, m, n, 2)
    kernel = helion.kernel(WORKLOADS[name].kernel, backend="triton")
    return timer(lambda: kernel(*case.arguments))


def compiled_us(name: str, dtype: Any, m: int, n: int, timer: Timer) -> float:
    import torch

    case = Case(name, dtype, m, n, 2)
    kinds = [kind or dtype for _, kind, _ in case.work.outputs]
    more = (dtype,) if name == "add_rms_norm_fp8" else ()

    def plain(*inputs: Any) -> Any:
        return [each.to(kind) for each, kind in zip(case.work.reference(*inputs, *more), kinds, strict=True)]

    torch._dynamo.reset()
    call = torch.compile(plain, dynamic=False)
    call(*case.inputs)
    return timer(lambda: call(*case.inputs))


def repeated(seconds: float) -> None:
    """Launch kernels back to back, often; every result is that of the first launch."""
    for name, n in (("softmax", 5003), ("layer_norm", 131072)):
        try:
            with Gpu():
                say(**launches(name, n, seconds))
        except Exception as error:
            say(
                kind="failed",
                name=f"repeated {name}",
                type="bfloat16",
                shape=(0, n),
                why=f"{type(error).__name__}: {error}"[:600],
            )


def launches(name: str, n: int, seconds: float) -> dict[str, Any]:
    import torch
    from row_workloads import WORKLOADS

    import helion

    cases = [Case(name, torch.bfloat16, m, n, m) for m in (1, 37, 211, 500)]
    kernel = helion.kernel(WORKLOADS[name].kernel, backend="cute")
    firsts = []
    for case in cases:
        case.clear()
        kernel(*case.arguments)
        firsts.append(case.outputs[0].clone())
    wrong, count, start = 0, 0, time.time()
    while time.time() - start < seconds and count < 10000:
        for case in cases:
            kernel(*case.arguments)
        count += len(cases)
        if count % 100 == 0:
            wrong += sum(not torch.equal(case.outputs[0], first) for case, first in zip(cases, firsts, strict=True))
            for case in cases:
                case.clear()
    return dict(
        kind="repeated",
        name=name,
        n=n,
        launches=count,
        wrong=wrong,
        ok=not wrong and all(c.guards_hold() for c in cases),
    )


def jobs(names: list[str]) -> Iterator[list[str]]:
    yield ["--odd"]
    for name in names:
        yield ["--worker", name, "bfloat16"]
    yield ["--repeated"]
    for which, name in itertools.product(("compile", "triton"), names):
        yield ["--baseline", which, name, "bfloat16"]
    for name in names:
        yield ["--worker", name, "float32"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("build/rows"))
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--worker", nargs=2)
    parser.add_argument("--baseline", nargs=3)
    parser.add_argument("--odd", action="store_true")
    parser.add_argument("--repeated", action="store_true")
    options = parser.parse_args()
    end = float(os.environ.get("ROWS_END", time.time() + options.seconds))
    if options.worker:
        return worker(*options.worker, end - time.time() - 10)
    if options.baseline:
        return baseline(*options.baseline, end - time.time() - 15)
    if options.odd:
        import row_oddities

        return row_oddities.main()
    if options.repeated:
        return repeated(6.0)
    from row_workloads import WORKLOADS

    options.out.mkdir(parents=True, exist_ok=True)
    path = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "ROWS_END": str(end), "ROWS_LOCK": str(options.out / "lock"), "PYTHONPATH": path}
    environment |= {
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "HELION_CACHE_DIR": str(options.out / ".cache"),
    }
    left, running = list(jobs(options.names or list(WORKLOADS))), []
    with open(options.out / "rows.jsonl", "w") as out, open(options.out / "errors.txt", "w") as errors:
        while left or running:
            while left and len(running) < options.workers:
                command = [sys.executable, __file__, *left.pop(0)]
                running.append(subprocess.Popen(command, stdout=out, stderr=errors, env=environment))
            running = [each for each in running if each.poll() is None]
            if time.time() > end:
                for each in running:
                    each.kill()
                break
            time.sleep(0.2)
    summarize(options.out)


def summarize(folder: Path) -> None:
    lines = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines() if line.startswith("{")]
    results = [line for line in lines if line["kind"] == "result"]
    bad = [line for line in results if not line["ok"]]
    print(f"{len(results)} checked, {len(bad)} wrong; {sum(line['kind'] == 'failed' for line in lines)} failed")
    triton = {
        (line["name"], line["type"], line["m"], line["n"]): line["us"] for line in lines if line["kind"] == "triton"
    }
    theirs = {
        (line["name"], line["type"], line["m"], line["n"]): line["us"] for line in lines if line["kind"] == "compile"
    }
    for line in sorted(
        (line for line in results if "us" in line), key=lambda line: (line["name"], line["type"], line["n"], line["at"])
    ):
        other = theirs.get((line["name"], line["type"], line["m"], line["n"]))
        beside = f"  compile {other:8.1f} us" if other else ""
        seed = triton.get((line["name"], line["type"], line["m"], line["n"]))
        beside += f"  triton {seed:8.1f} us" if seed else ""
        text = f"{line['name']:18s} {line['type']:8s} {line['m']:6d} {line['n']:6d} {line['us']:8.1f} us {line['share']:.3f} of copy"
        print(
            f"{text}  predicted {line['predicted']:7.1f}{beside}  {'' if line['ok'] else 'WRONG '}{line['plan'][:90]}"
        )
    for line in (*bad, *(line for line in lines if line["kind"] in ("failed", "repeated", "odd"))):
        print(json.dumps(line)[:700])


if __name__ == "__main__":
    main()
