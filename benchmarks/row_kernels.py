"""Row kernels of the cute backend on a GPU: right against fp64, then their time, a copy's, Triton's and torch.compile's.

    python benchmarks/row_kernels.py --out FOLDER [--seconds N] [--workers N] [--kinds KIND,...] [--shapes TYPE:M:N,...]
        [--layouts N] [NAME ...]

Workers take jobs from one list: a job checks and times one kernel of one shape and type. Workers compile at once, and one
at a time has the GPU. Results are lines of JSON in FOLDER/rows.jsonl. A worker that takes too long is ended, and
its job reported. ``--dry`` runs small shapes on the CPU, to try the script.
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(Path(__file__).parent))
TIMED = (
    ("bfloat16", 2048, 131072),
    ("bfloat16", 4096, 50257),
    ("bfloat16", 16384, 8192),
    ("float32", 2048, 131072),
    ("bfloat16", 4096, 32768),
    ("bfloat16", 8192, 16384),
    ("bfloat16", 131072, 1000),
    ("bfloat16", 32, 4096),
    ("float32", 4096, 50257),
    ("bfloat16", 1024, 262144),
    ("float32", 16384, 8192),
    ("bfloat16", 65536, 2048),
    ("float32", 131072, 1000),
)
CHECKED = (1001, 255, 4099, 32001)
SWEPT = (("bfloat16", 2048, 131072), ("bfloat16", 1024, 262144), ("bfloat16", 16384, 8192))
SEEDS = 4
SWEPT_LAYOUTS = (("bfloat16", 4096, 50257), ("bfloat16", 2048, 131072))
LAYOUTS = 10
SWEPT_AHEAD = (*SWEPT_LAYOUTS, ("bfloat16", 4096, 32768), ("bfloat16", 1024, 262144), ("bfloat16", 16384, 8192))
LAYOUTS_AHEAD = 3
REPEATED = (("softmax", 5003), ("layer_norm", 131072))
JOB_SECONDS = 75.0
DRY = bool(os.environ.get("ROWS_DRY"))
DEVICE = "cpu" if DRY else "cuda"


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def synchronize() -> None:
    import torch

    if not DRY:
        torch.cuda.synchronize()


class Gpu:
    """The GPU, for one process at a time."""

    def __enter__(self) -> None:
        self.file = open(os.environ["ROWS_LOCK"], "w")
        fcntl.flock(self.file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        import torch

        synchronize()
        if not DRY:
            torch.cuda.empty_cache()
        self.file.close()


class Timer:
    """Medians in microseconds with a cold L2 cache."""

    def __init__(self) -> None:
        import torch

        self.torch, self.flush = torch, torch.empty(1 if DRY else 256 << 20, dtype=torch.uint8, device=DEVICE)

    def __call__(self, call: Callable[[], Any], repeats: int = 21) -> float:
        torch, pairs = self.torch, []
        if DRY:
            call()
            return 1.0
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
        random = torch.Generator(DEVICE).manual_seed(seed)
        self.inputs = []
        for kind in self.work.inputs:
            shape = (m, n) if kind == "rows" else (n,)
            made = torch.randn(shape, device=DEVICE, generator=random)
            if self.work.probabilities and not self.inputs:
                made = torch.softmax(3 * made, -1)
            elif kind == "rows":
                made = made * self.work.scale + self.work.shift
            self.inputs.append((made + (1 if kind == "vector" else 0)).to(dtype))
        if self.work.kernel.__name__ == "kl_div":
            self.inputs = self.inputs[::-1]
        self.guarded, self.outputs = [], []
        shapes = {"elements": (m, n), "rows": (m,), "columns": (n,)}
        for _, kind, extent in self.work.outputs:
            shape = shapes[extent]
            size = math.prod(shape)
            whole = torch.empty(size + 2 * self.GUARD, device=DEVICE, dtype=kind or dtype)
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


def compiled_config(fn: Callable[..., None], arguments: Sequence[Any], config: Any, **settings: Any) -> Any:
    """Bind and compile a kernel without the GPU; return the function to call."""
    import helion
    from helion.backends.cute.toolchain.library import folder

    kernel = helion.kernel(fn, backend="cute", config=config, **settings)
    if not DRY:
        names: dict[str, Any] = {}
        exec(compile(kernel.bind(tuple(arguments)).to_cute_code(), "kernel", "exec"), names)
        folder(next(value for key, value in names.items() if key.startswith("_helion_") and hasattr(value, "source")))
    return kernel


def layout_config(
    fn: Callable[..., None], arguments: Sequence[Any], at: int, ahead: bool = False
) -> tuple[Any, str] | None:
    """Return the config of layout number ``at`` and its description; None after the last one.

    With ``ahead``, only layouts that reduce rows ahead are counted, without it only others.
    """
    import helion
    from helion.backends.cute.lower.rowwise.kernel import known_rows
    from helion.backends.cute.plan.rowwise.choices import ranked
    from helion.backends.cute.plan.rowwise.passes import demand_of
    from helion.backends.cute.plan.rowwise.time import described, fastest_span

    bound = helion.kernel(fn, backend="cute").bind(tuple(arguments))
    kernel = known_rows(bound.variant.specialized.analysis.program)
    demand, m = demand_of(kernel.problem), kernel.problem.m
    layouts = [each for each in ranked(demand, m, bound.target) if each.choice.ahead == ahead]
    if at >= len(layouts):
        return None
    layout, config = layouts[at], dict(bound.seeds[0].config)
    span, us = fastest_span(layout, m, bound.target)
    sizes = [*config["block_sizes"]]
    sizes[: 1 + (kernel.blocks is not None)] = [*([] if kernel.blocks is None else [span]), layout.choice.rows]
    config |= {
        f"cute_row_{key}": getattr(layout.choice, key) for key in ("cluster", "warps", "ctas_per_sm", "keep", "ahead")
    }
    return helion.Config(**{**config, "block_sizes": sizes}), f"{described(layout)}: {us:.0f} us"


def checked(case: Case, kernel: Callable[..., Any]) -> dict[str, Any]:
    """Run a kernel four times; return its error, and whether guards hold and runs are the same."""
    import torch

    case.clear()
    kernel(*case.arguments)
    synchronize()
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
    us = timer(lambda: kernel(*case.arguments))
    copy = copied(case.moved, timer, copies)
    return dict(us=round(us, 2), copy_us=round(copy, 2), share=round(copy / us, 3))


def copied(size: int, timer: Timer, copies: dict[int, float]) -> float:
    """Return the microseconds of a copy that reads and writes ``size`` bytes together."""
    import torch

    if size not in copies:
        source, to = (torch.zeros(max(1, size // 8), device=DEVICE) for _ in range(2))
        copies[size] = timer(lambda: to.copy_(source))
    return copies[size]


@dataclass(frozen=True, kw_only=True)
class Job:
    """The work of one step: ``kind`` is ``cute``, ``seed``, ``sweep``, ``ahead``, ``check``, ``triton``, ``compile``, ``suite``,
    ``few``, ``odd``, ``users``, ``lengths``, ``buckets`` or ``repeated``.

    ``at`` is the number of the seed that it times, or of the layout for ``sweep`` and ``ahead``, or 1 for dynamic shapes.
    """

    kind: str
    name: str
    type: str = "bfloat16"
    m: int = 0
    n: int = 0
    at: int = 0

    @property
    def facts(self) -> dict[str, Any]:
        return dict(name=self.name, type=self.type, m=self.m, n=self.n, at=self.at)


class Worker:
    """One process that takes jobs."""

    def __init__(self) -> None:
        with Gpu():
            self.timer = Timer()
        self.copies: dict[int, float] = {}

    def run(self, job: Job) -> None:
        getattr(self, f"_{job.kind}")(job)

    def _case(self, job: Job) -> Case:
        import torch

        return Case(job.name, getattr(torch, job.type), job.m, job.n, 2)

    def _cute(self, job: Job) -> None:
        """Compile a seed, check it, and time it unless the job is only a check."""
        import helion

        with Gpu():
            case = self._case(job)
        arguments = tuple(case.arguments)
        seeds = helion.kernel(case.work.kernel, backend="cute").bind(arguments).seeds
        if job.at >= len(seeds):
            return
        seed = seeds[job.at]
        self._result(job, case, seed.config, seed.reason)

    _check = _seed = _cute

    def _sweep(self, job: Job) -> None:
        """Check and time a layout, by its place in the order of predicted times."""
        with Gpu():
            case = self._case(job)
        found = layout_config(case.work.kernel, tuple(case.arguments), job.at, job.kind == "ahead")
        if found is not None:
            self._result(job, case, *found)

    _ahead = _sweep

    def _result(self, job: Job, case: Case, config: Any, plan: str) -> None:
        line = dict(kind="result", **job.facts, plan=plan)
        line["predicted"] = round(float(plan.split()[-2]), 1) if not DRY else 1.0
        start = time.time()
        kernel = compiled_config(case.work.kernel, case.arguments, config)
        line["compile_s"] = round(time.time() - start, 1)
        with Gpu():
            line |= checked(case, kernel)
            if job.kind != "check":
                line |= timed(case, kernel, self.timer, self.copies)
        say(**line)

    def _triton(self, job: Job) -> None:
        """Time the default config of Triton: what ``auto`` compares with."""
        import helion

        with Gpu():
            case = self._case(job)
            kernel = helion.kernel(case.work.kernel, backend="triton")
        bound = kernel.bind(tuple(case.arguments))
        bound.compile_config(bound.default_config())
        with Gpu():
            us = self.timer(lambda: kernel(*case.arguments))
        say(kind="triton", **job.facts, us=round(us, 2))

    def _compile(self, job: Job) -> None:
        """Time torch.compile of the reference. Its first call, which compiles, does not hold the GPU."""
        import torch

        with Gpu():
            case = self._case(job)
        kinds = [kind or case.dtype for _, kind, _ in case.work.outputs]
        more = (case.dtype,) if job.name == "add_rms_norm_fp8" else ()

        def plain(*inputs: Any) -> Any:
            return [each.to(kind) for each, kind in zip(case.work.reference(*inputs, *more), kinds, strict=True)]

        torch._dynamo.reset()
        call = torch.compile(plain, dynamic=False)
        call(*case.inputs)
        with Gpu():
            us = self.timer(lambda: call(*case.inputs))
        say(kind="compile", **job.facts, us=round(us, 2))

    def _suite(self, job: Job) -> None:
        """Time a cell of the suites as ``auto`` runs it."""
        import row_suites

        shape = (job.name, job.type, job.m, job.n)
        found = row_suites.timed(shape, DEVICE, Gpu, self.timer, lambda size: copied(size, self.timer, self.copies))
        say(kind=job.kind, **job.facts, **found)

    _few = _suite

    def _odd(self, job: Job) -> None:
        import row_oddities

        with Gpu():
            fn, settings, arguments, check = row_oddities.case(job.name, job.m, job.n, DEVICE)
        kernel = compiled_config(fn, arguments, None, **settings)
        with Gpu():
            kernel(*arguments)
            synchronize()
            say(kind="odd", **job.facts, ok=check())

    def _users(self, job: Job) -> None:
        """Check a kernel of a user with other arguments."""
        import row_users
        import torch

        with Gpu():
            cases = row_users.cases(DEVICE, job.m, job.n, getattr(torch, job.type))
        if (case := cases.get(job.name)) is None:
            return
        kernel = compiled_config(case.fn, case.arguments, None, static_shapes=not job.at)
        with Gpu():
            error = row_users.error(case, kernel(*case.arguments))
            say(kind="users", **job.facts, error=float(f"{error:.3g}"), ok=error <= 1)

    def _of_any_length(self, job: Job) -> tuple[Case, Callable[..., Any]]:
        """Compile a kernel for the lengths of a bucket."""
        import helion

        with Gpu():
            case = self._case(job)
        fn, dynamic = case.work.kernel, dict(static_shapes=False)
        seed = helion.kernel(fn, backend="cute", **dynamic).bind(tuple(case.arguments)).seeds[0]
        return case, compiled_config(fn, case.arguments, seed.config, **dynamic)

    def _lengths(self, job: Job) -> None:
        """Check a kernel on the lengths of a bucket."""
        import row_lengths
        import torch

        case, kernel = self._of_any_length(job)
        dtype, lanes = getattr(torch, job.type), 16 // min(each.element_size() for each in case.inputs)
        with Gpu():
            found = row_lengths.checked(lambda m, n: Case(job.name, dtype, m, n, n), kernel, job.n, lanes)
            say(kind="lengths", **job.facts, **found)

    def _buckets(self, job: Job) -> None:
        """Time the kernel of a bucket and that of one length."""
        import helion

        case, kernel = self._of_any_length(job)
        seed = helion.kernel(case.work.kernel, backend="cute").bind(tuple(case.arguments)).seeds[0]
        known = compiled_config(case.work.kernel, case.arguments, seed.config)
        with Gpu():
            found = timed(case, kernel, self.timer, self.copies)
            say(kind="buckets", **job.facts, **found, known_us=round(self.timer(lambda: known(*case.arguments)), 2))

    def _repeated(self, job: Job) -> None:
        """Launch a kernel back to back, often; every result is that of the first launch."""
        import torch
        from row_workloads import WORKLOADS

        import helion

        with Gpu():
            cases = [Case(job.name, torch.bfloat16, m, job.n, m) for m in (1, 37, 211, 500)]
        for case in cases:
            seed = helion.kernel(WORKLOADS[job.name].kernel, backend="cute").bind(tuple(case.arguments)).seeds[0]
            compiled_config(WORKLOADS[job.name].kernel, case.arguments, seed.config)
        kernel = helion.kernel(WORKLOADS[job.name].kernel, backend="cute")
        with Gpu():
            say(kind="repeated", **job.facts, **launches(cases, kernel, 4.0))


def launches(cases: Sequence[Case], kernel: Callable[..., Any], seconds: float) -> dict[str, Any]:
    import torch

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
    return dict(launches=count, wrong=wrong, ok=not wrong and all(case.guards_hold() for case in cases))


Shapes = Sequence[tuple[str, int, int]]


def jobs(names: Sequence[str], kinds: Sequence[str], shapes: Shapes = (), layouts: int = 0) -> list[Job]:
    """Return the jobs: each kernel on long, odd and short rows first, then what is rarer, in turns.

    With ``kinds``, return those alone, one kind after the other; of the suites, kernels among ``names``, or all. With
    ``shapes`` and ``layouts``, sweeps take these types, rows and columns, and as many layouts of each; suites take shapes.
    """
    import row_oddities

    def small(m: int, n: int) -> dict[str, int]:
        return dict(m=min(m, 12), n=min(n, 304 + n % 8)) if DRY else dict(m=m, n=n)

    turns = []
    for at, (dtype, m, n) in enumerate(TIMED):
        turns.append([Job(kind="cute", name=name, type=dtype, **small(m, n)) for name in names])
        turns.append([Job(kind="triton", name=name, type=dtype, **small(m, n)) for name in names])
        if at < len(CHECKED):
            other = ("bfloat16", "float32")[at % 2]
            turns.append([Job(kind="check", name=name, type=other, **small(300, CHECKED[at])) for name in names])
        if at == 0:
            turns.append([Job(kind="repeated", name=name, **small(0, n)) for name, n in REPEATED])
            turns.append(
                [Job(kind="odd", name=name, **small(200, n)) for n in row_oddities.SIZES for name in row_oddities.NAMES]
            )
    turns += [
        [Job(kind="compile", name=name, type=dtype, **small(m, n)) for name in names] for dtype, m, n in TIMED[:5]
    ]
    for at, (dtype, m, n) in itertools.product(range(1, SEEDS), SWEPT):
        turns.append([Job(kind="seed", name=name, type=dtype, at=at, **small(m, n)) for name in names])
    if "sweep" in kinds:
        for at, (dtype, m, n) in itertools.product(range(layouts or LAYOUTS), shapes or SWEPT_LAYOUTS):
            turns.append([Job(kind="sweep", name=name, type=dtype, at=at, **small(m, n)) for name in names])
    if "ahead" in kinds:
        for at, (dtype, m, n) in itertools.product(range(layouts or LAYOUTS_AHEAD), shapes or SWEPT_AHEAD):
            turns.append([Job(kind="ahead", name=name, type=dtype, at=at, **small(m, n)) for name in names])
    if "suite" in kinds:
        import row_suites
        from row_workloads import WORKLOADS

        wanted = () if [*names] == [*WORKLOADS] else names
        cells = [each for each in row_suites.shapes() if (not DRY or each[3] == 1000) and each[0] in (wanted or each)]
        cells = [each for each in cells if not shapes or each[1:] in shapes]
        turns.append([Job(kind="suite", name=name, type=dtype, m=m, n=n) for name, dtype, m, n in cells])
    if "users" in kinds:
        import row_users

        users = [(name, *size) for size in row_users.SIZES for name in row_users.names()]
        turns.append([Job(kind="users", name=name, type=dtype, m=m, n=n, at=at) for name, dtype, m, n, at in users])
    if {"lengths", "buckets"} & {*kinds}:
        import row_lengths

        found = row_lengths.jobs(names)
        turns.append([Job(kind=kind, name=name, type=dtype, **small(m, n)) for kind, name, dtype, m, n in found])
    if "few" in kinds:
        import row_suites

        cells = [(name, dtype, m, n) for name, dtype, m, n in row_suites.few_shapes() if not DRY or n == 1000]
        turns.append([Job(kind="few", name=name, type=dtype, m=m, n=n) for name, dtype, m, n in cells])
    found = [job for turn in turns for job in turn]
    return (
        sorted((job for job in found if job.kind in kinds), key=lambda job: kinds.index(job.kind)) if kinds else found
    )


def take(path: Path) -> int:
    """Return the number of the next job."""
    with open(path, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        number = int(file.read() or 0)
        file.seek(0)
        file.write(str(number + 1))
    return number


def work(out: Path, found: Sequence[Job], end: float) -> None:
    worker = Worker()
    while time.time() < end and (number := take(out / "next")) < len(found):
        job = found[number]
        note = out / f"note-{os.getpid()}"
        note.write_text(f"{time.time()} {number}")
        note.replace(out / f"job-{os.getpid()}")
        try:
            worker.run(job)
        except Exception as error:
            refused = type(error).__name__ == "CuteUnsupported"
            say(
                kind="refused" if refused else "failed",
                what=job.kind,
                **job.facts,
                why=f"{type(error).__name__}: {error}"[:600],
            )
            if "CUDA" in str(error) or "launch" in str(error):
                raise SystemExit(1) from error  # the context of this process may be lost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("build/rows"))
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--workers", type=int, default=15)
    parser.add_argument("--kinds", default="")
    parser.add_argument("--shapes", default="", help="type:rows:columns,... of the kinds sweep, ahead and suite")
    parser.add_argument("--layouts", type=int, default=0, help="layouts of each of these")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--worker", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    from row_workloads import WORKLOADS

    names = options.names or list(WORKLOADS)
    if options.worker:
        shapes = [
            (dtype, int(m), int(n)) for dtype, m, n in (each.split(":") for each in options.shapes.split(",") if each)
        ]
        kinds = [each for each in options.kinds.split(",") if each]
        return work(options.out, jobs(names, kinds, shapes, options.layouts), options.worker)
    end = time.time() + options.seconds
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "next").write_text("0")
    command = [sys.executable, __file__, *names, "--out", str(options.out), "--kinds", options.kinds]
    command += ["--shapes", options.shapes, "--layouts", str(options.layouts)]
    with open(options.out / "rows.jsonl", "w") as out, open(options.out / "errors.txt", "w") as errors:
        _attend([*command, "--worker", str(end - 5)], options, end, out, errors)
    summarize(options.out)


def _attend(command: Sequence[str], options: argparse.Namespace, end: float, out: Any, errors: Any) -> None:
    """Keep the workers running: one that ends early is replaced, one that takes too long is killed."""
    path = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "ROWS_LOCK": str(options.out / "lock"), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    environment |= {"TORCHINDUCTOR_COMPILE_THREADS": "1", "HELION_CACHE_DIR": str(options.out / ".cache")}
    environment |= {"ROWS_DRY": "1"} if options.dry else {}
    running: list[subprocess.Popen[bytes]] = []
    started = 0
    while time.time() < end:
        for each in running:
            place = options.out / f"job-{each.pid}"
            begun, number = place.read_text().split() if place.exists() else (str(end), "")
            if time.time() - float(begun) > JOB_SECONDS:
                each.kill()
                place.unlink()
                line = dict(kind="failed", what="job", name=number, why=f"no result within {JOB_SECONDS:g} s")
                print(json.dumps(line), file=out, flush=True)
        done = [each for each in running if each.poll() == 0]
        running = [each for each in running if each.poll() is None]
        if done and not running:
            break
        while len(running) < options.workers and not done and started < 4 * options.workers:
            running.append(subprocess.Popen(command, stdout=out, stderr=errors, env=environment))
            started += 1
        time.sleep(0.2)
    for each in running:
        each.kill()


def summarize(folder: Path) -> None:
    lines = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines() if line.startswith("{")]
    results = [line for line in lines if line["kind"] == "result"]
    bad = [line for line in lines if not line.get("ok", True)]
    print(f"{len(results)} checked, {len(bad)} wrong; {sum(line['kind'] == 'failed' for line in lines)} failed")
    others = {
        (line["kind"], line["name"], line["type"], line["m"], line["n"]): line["us"]
        for line in lines
        if line["kind"] in ("triton", "compile")
    }
    shown = [line for line in results if "us" in line]
    for line in sorted(shown, key=lambda line: (line["name"], line["type"], line["n"], line["at"])):
        key = (line["name"], line["type"], line["m"], line["n"])
        found = [(kind, others.get((kind, *key))) for kind in ("triton", "compile")]
        beside = "".join(f"  {kind} {us:8.1f} us" for kind, us in found if us)
        text = f"{line['name']:18s} {line['type']:8s} {line['m']:6d} {line['n']:6d} {line['us']:8.1f} us {line['share']:.3f} of copy"
        print(
            f"{text}  predicted {line['predicted']:7.1f}{beside}  {'' if line['ok'] else 'WRONG '}{line['plan'][:90]}"
        )
    for line in (line for line in lines if line["kind"] in ("suite", "few")):
        others = "".join(
            f"  {kind} {line[f'{kind}_us']:8.1f} us" for kind in ("triton", "cute", "compile") if f"{kind}_us" in line
        )
        cell = f"{line['name']:22s} {line['type']:8s} {line['m']:6d} {line['n']:6d}"
        print(f"{cell} {line['backend']:6s} {line['auto_us']:8.1f} us {line['share']:.3f} of copy{others}")
    for line in (line for line in lines if line["kind"] == "buckets"):
        cell = f"{line['name']:22s} {line['type']:8s} {line['m']:6d} {line['n']:6d}"
        print(f"{cell} {line['us']:8.1f} us {line['share']:.3f} of copy  of one length {line['known_us']:8.1f} us")
    for line in (*bad, *(line for line in lines if line["kind"] in ("failed", "repeated"))):
        print(json.dumps(line)[:700])


if __name__ == "__main__":
    main()
