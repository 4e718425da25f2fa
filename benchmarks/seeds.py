"""Times the first seeds on a GPU beside the conservative config, the other backend, eager PyTorch and torch.compile.

    python benchmarks/seeds.py [--suites epilogue,matmul] [--kernels softmax] [--extents 4096] [--dtypes bfloat16]

Device time with a cold L2 by CUDA graph, the median of 15 runs, all variants in turn, random data. A variant counts
only if its result is right: its distance from the same computation in fp64, relative in the 2-norm, must be below the
bound of its dtype. What is compiled is compiled first, by several processes. Writes one JSON file per suite to
benchmarks/results; benchmarks/report.py makes docs/performance.md of them.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import functools
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import helion  # noqa: E402
from benchmarks.cells import Cell, inputs, timed_cells  # noqa: E402
from benchmarks.timing import GraphTimer, Timer, copy_bandwidth, reason  # noqa: E402
from helion._testing import map_tensors  # noqa: E402
from helion.backends import BACKENDS, GENERAL  # noqa: E402
from helion.settings import Settings  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
SUITES = ("epilogue", "reductions", "transfer", "matmul", "pointwise", "general", "unseen", "workloads", "mechanisms")

#: Largest relative distance from fp64, by the least precise dtype of inputs and outputs. Products of fp32 run in TF32.
BOUNDS = {torch.float32: 2e-3, torch.bfloat16: 2e-2, torch.float16: 3e-3}
#: What rows of one file have in common, whenever they were timed.
ONE_RUN = ("device", "torch", "triton", "python", "float32_matmul_precision")
#: Processes that compile and check; each needs a few gigabytes of the device for the results in fp64.
WORKERS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the results. Times are microseconds; ``errors`` are relative to fp64."""

    suite: str
    kernel: str
    case: str
    dtype: str
    heuristic: str
    configs: Mapping[str, str]
    bytes: int
    flops: int
    times: Mapping[str, Mapping[str, float]]
    errors: Mapping[str, float]
    failures: Mapping[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variants:
    """What is timed for one cell: functions without arguments, the configs of ours among them, and what the launch
    moves and computes at least."""

    functions: Mapping[str, Callable[[], Any]]
    configs: Mapping[str, str]
    heuristic: str
    bytes: int
    flops: int


def variants(
    cell: Cell,
    args: tuple[Any, ...],
    *,
    alternates: bool = False,
    compiled: bool = True,
    measured: bool = False,
    forget: bool = True,
) -> Variants:
    """The functions of one cell on ``args``: ``seed``, further seeds if asked for, ``default`` where that is another
    config, ``first call`` for what a first call that measures takes if it differs, the ``conservative`` one of the backend
    for all kernels, defaults of ``others``, ``eager``, ``library`` where one has a call of its own for it (flash and cuDNN
    attention, cuBLAS on narrow numbers), and ``compile`` for torch.compile, which forgets other cells if asked to."""
    bound = cell.function.bind(args)
    slower = others(cell, bound, args)
    general = slower.get(GENERAL, bound)
    chosen = {"seed" if at == 0 else f"seed {at}": seed.config for at, seed in enumerate(bound.seeds)}
    if not alternates:
        chosen = {name: config for name, config in chosen.items() if name == "seed"}
    default = bound.default_config()
    if default not in chosen.values():
        chosen["default"] = default
    if measured and (taken := first_call(cell, args)) not in chosen.values():
        chosen["first call"] = taken
    functions: dict[str, Callable[[], Any]] = {
        name: functools.partial(run_config, bound, config, args) for name, config in chosen.items()
    }
    conservative = general.conservative_config()
    functions["conservative"] = functools.partial(run_config, general, conservative, args)
    functions.update(
        {name: functools.partial(run_config, each, each.default_config(), args) for name, each in slower.items()}
    )
    assert cell.baseline is not None
    functions["eager"] = functools.partial(cell.baseline, *args)
    if cell.library is not None:
        functions["library"] = functools.partial(cell.library, *args)
    if compiled:
        if forget:
            torch._dynamo.reset()
        functions["compile"] = functools.partial(torch.compile(cell.baseline, dynamic=False), *args)
    return Variants(
        functions=functions,
        configs={
            **{name: repr(bound.short_config(config)) for name, config in chosen.items()},
            "conservative": repr(general.short_config(conservative)),
            "default": repr(bound.short_config(default)),
        },
        heuristic=bound.seeds[0].heuristic if bound.seeds else "",
        bytes=least_bytes(cell, args),
        flops=sum(math.prod(m) * 2 for m in products(cell)),
    )


def first_call(cell: Cell, args: tuple[Any, ...]) -> helion.Config:
    """The config of a first call that measures; a process of its own keeps what another one has chosen."""
    settings = {**cell.function.settings.to_dict(), "first_call_seconds": Settings().first_call_seconds}
    kernel = helion.kernel(cell.function.fn, settings=Settings(**settings))
    kernel(*args)
    return kernel.bind(args).config


def others(cell: Cell, used: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """The kernel bound for each further backend, by name, that is installed and takes it; ``used`` runs by default."""
    found = {}
    for name, backend in BACKENDS.items():
        if name == used.backend or not backend.is_installed:
            continue
        kernel = helion.kernel(cell.function.fn, backend=name, static_shapes=cell.function.settings.static_shapes)
        with contextlib.suppress(helion.exc.BackendUnsupported):
            found[name] = kernel.bind(args)
    return found


def run_config(bound: Any, config: Any, args: tuple[Any, ...]) -> Any:
    """Call a kernel with a config."""
    return bound.compile_config(config)(*args)


def products(cell: Cell) -> list[tuple[int, int, int]]:
    """M, K and N of the matrix products of a cell; a batch is rows of one."""
    if cell.summed is None:
        return []
    matrices = [tensor for tensor in cell.args if isinstance(tensor, torch.Tensor) and tensor.dim() > 1]
    found = []
    for x, y in zip(matrices[::2], matrices[1::2], strict=True):
        k = y.size(cell.summed)
        found.append((x.numel() // k, k, y.size(-1) if cell.summed == y.dim() - 2 else y.size(0)))
    return found


def least_bytes(cell: Cell, args: tuple[Any, ...]) -> int:
    """Bytes of all inputs and outputs, each counted once."""
    meta = map_tensors(cell.args, lambda t: torch.empty_like(t, device="meta"))
    assert cell.baseline is not None
    result = cell.baseline(*meta)
    return sum(tensor.numel() * tensor.element_size() for tensor in _tensors((*args, result)))


def _tensors(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    map_tensors(value, keep)
    return found


def relative_error(actual: Any, expected: Any) -> float:
    """The distance of all outputs from ``expected`` relative to its 2-norm; the worst output counts."""
    ours, truth = _tensors(actual), _tensors(expected)
    if [t.shape for t in ours] != [t.shape for t in truth]:
        raise AssertionError(f"outputs of shapes {[t.shape for t in ours]}, expected {[t.shape for t in truth]}")
    worst = 0.0
    for mine, exact in zip(ours, truth, strict=True):
        wide = exact.double()
        error = float((mine.double() - wide).norm() / wide.norm())
        worst = error if math.isnan(error) else max(worst, error)
    return worst


def bound_of(args: tuple[Any, ...]) -> float:
    return max([BOUNDS[torch.float32], *(BOUNDS.get(tensor.dtype, 0.0) for tensor in _tensors(args))])


def checked(cell: Cell, made: Variants, args: tuple[Any, ...]) -> tuple[dict[str, float], dict[str, str]]:
    """Errors by variant, and why a variant does not count: it fails, or its result is wrong."""
    assert cell.baseline is not None
    wide = map_tensors(args, lambda t: t.double() if t.is_floating_point() else t)
    expected = cell.baseline(*wide)
    del wide
    errors: dict[str, float] = {}
    failures: dict[str, str] = {}
    for name, function in made.functions.items():
        try:
            errors[name] = relative_error(function(), expected)
        except Exception as error:  # of any library that is timed: it belongs into the table
            failures[name] = reason(error)
            continue
        if not errors[name] <= bound_of(args):
            failures[name] = f"wrong: the result is {errors[name]:.1e} off, {bound_of(args):.0e} is allowed"
    return errors, failures


@functools.cache
def _cells() -> list[Cell]:
    return timed_cells()


def prepare(index: int, options: Mapping[str, Any]) -> tuple[int, dict[str, float], dict[str, str]]:
    """In a process of its own: compile and check the variants of a cell, so that the disk caches have them."""
    torch.set_float32_matmul_precision("high")
    torch._inductor.config.compile_threads = 1  # the processes are the threads
    cell = _cells()[index]
    args = inputs(cell, "cuda")
    errors, failures = checked(cell, variants(cell, args, **options), args)
    del args
    torch.cuda.empty_cache()
    return index, errors, failures


def measured(cell: Cell, made: Variants, timer: Timer, errors: Mapping[str, float], failures: Mapping[str, str]) -> Row:
    """Time the variants of a cell that are right."""
    times, untimed = timer.time({name: f for name, f in made.functions.items() if name not in failures})
    return Row(
        suite=cell.suite,
        kernel=cell.kernel,
        case=cell.case,
        dtype=cell.dtype,
        heuristic=made.heuristic,
        configs=made.configs,
        bytes=made.bytes,
        flops=made.flops,
        times={name: dataclasses.asdict(value) for name, value in times.items()},
        errors=dict(errors),
        failures={**failures, **untimed},
    )


def chosen_cells(options: argparse.Namespace, cells: Sequence[Cell]) -> list[int]:
    """Positions in ``cells`` of what was asked for."""
    found = []
    for at, cell in enumerate(cells):
        extents = {int(word) for word in cell.case.replace("=", " ").split() if word.isdigit()}
        if (
            cell.suite in options.suites
            and (not options.kernels or cell.kernel in options.kernels)
            and (not options.dtypes or any(dtype in cell.dtype for dtype in options.dtypes))
            and (not options.extents or extents & set(options.extents))
        ):
            found.append(at)
    return found


def rows(
    indices: Sequence[int], timer: Timer, options: Mapping[str, Any], workers: int, seconds: float | None = None
) -> Iterator[Row]:
    """Check everything in ``workers`` processes, then time one cell after another, first calls too.

    After ``seconds`` of checks, the cells that are not ready are left out.
    """
    context = multiprocessing.get_context("spawn")
    verdicts: dict[int, tuple[dict[str, float], dict[str, str]]] = {}
    start = time.perf_counter()
    pool = ProcessPoolExecutor(workers, mp_context=context)
    waiting = [pool.submit(_prepared, index, {**options, "measured": False}) for index in indices]
    try:
        for done in as_completed(waiting, seconds):
            index, errors, failures = done.result()
            verdicts[index] = errors, failures
    except TimeoutError:
        print(f"{len(indices) - len(verdicts)} cells were not ready after {seconds:.0f} s", flush=True)
        for process in multiprocessing.active_children():
            process.terminate()
    pool.shutdown(wait=True, cancel_futures=True)
    print(f"compiled and checked {len(verdicts)} cells in {time.perf_counter() - start:.0f} s", flush=True)
    for index in filter(verdicts.__contains__, indices):
        cell = _cells()[index]
        args = inputs(cell, "cuda")
        made = variants(cell, args, **options)
        errors, failures = verdicts[index]
        if made.functions.keys() - errors.keys() - failures.keys():
            # there was not enough memory for several at once, or a first call has chosen another config
            errors, failures = checked(cell, made, args)
        yield measured(cell, made, timer, errors, failures)


def _prepared(index: int, options: Mapping[str, Any]) -> tuple[int, dict[str, float], dict[str, str]]:
    """``prepare``, or nothing where the memory did not do for what the other processes have in it too."""
    try:
        index, errors, failures = prepare(index, options)
    except RuntimeError as error:
        if _is_for_memory(reason(error)):
            return index, {}, {}
        raise
    return (index, {}, {}) if any(map(_is_for_memory, failures.values())) else (index, errors, failures)


def _is_for_memory(why: str) -> bool:
    """Libraries of products say in a way of their own that they got no memory."""
    return why.startswith("OutOfMemoryError") or "ALLOC_FAILED" in why


def text_of(row: Row) -> str:
    """One line for the terminal: times, and how the seed stands against the others."""
    times = {name: value["median"] for name, value in row.times.items()}
    parts = [f"{name} {value:.1f}" for name, value in times.items()]
    if "seed" in times:
        parts += [
            f"{times[other] / times['seed']:.2f}x {other}" for other in ("conservative", "compile") if other in times
        ]
    parts += [f"{name}: {why[:60]}" for name, why in row.failures.items()]
    return f"{row.kernel} {row.case} {row.dtype}: {', '.join(parts)}"


def environment() -> dict[str, Any]:
    """What the figures depend on."""
    import triton

    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "sms": properties.multi_processor_count,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "backends": [name for name, backend in BACKENDS.items() if backend.is_installed],
        "python": sys.version.split()[0],
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    }


def kept(
    earlier: Mapping[str, Any], head: Mapping[str, Any], found: Sequence[Row]
) -> tuple[dict[str, Any], Sequence[Row]]:
    """``head`` and ``found`` with what an earlier file has of other cells, in the order of that file; ``runs`` counts the runs
    that the rows are of, ``since`` is the date of the first one, and the copy is the fastest of all. Raises ValueError for a file of another device or of other versions."""
    if not earlier:
        return dict(head), found
    before = earlier["environment"]
    differs = [f"{key} is {head[key]} now and was {before[key]}" for key in ONE_RUN if before[key] != head[key]]
    if differs:
        raise ValueError(f"earlier rows of {found[0].suite} cannot be kept: {'; '.join(differs)}")
    rows = {_key(row): row for row in (Row(**fields) for fields in earlier["rows"])}
    rows |= {_key(row): row for row in found}
    backends = sorted({*before.get("backends", ()), *head.get("backends", ())})
    since, runs = before.get("since", before["date"]), before.get("runs", 1) + 1
    copy = max(each.get("copy_gb_per_s", 0) for each in (before, head))
    known = {"backends": backends, "copy_gb_per_s": copy, "since": since, "runs": runs}
    return {**head, **known}, list(rows.values())


def _earlier(path: Path) -> Mapping[str, Any]:
    """What a file of results has, nothing where there is none."""
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return known


def _key(row: Row) -> tuple[str, str, str, str]:
    return row.suite, row.kernel, row.case, row.dtype


def write(path: Path, head: Mapping[str, Any], found: Sequence[Row]) -> None:
    lines = ",\n".join(json.dumps(dataclasses.asdict(row)) for row in found)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{{"environment": {json.dumps(head)},\n"rows": [\n{lines}\n]}}\n')


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def main() -> int:
    parser = argparse.ArgumentParser(description="time the first seeds on a GPU")
    parser.add_argument("--suites", type=_words, default=list(SUITES), help=f"of {','.join(SUITES)}; all by default")
    parser.add_argument("--kernels", type=_words, default=[], help="these alone")
    parser.add_argument("--dtypes", type=_words, default=[], help="these alone, such as bfloat16")
    parser.add_argument("--extents", type=lambda t: list(map(int, _words(t))), default=[], help="sizes to look for")
    parser.add_argument("--part", default="1/1", help="K/N: every Nth cell from the Kth on")
    parser.add_argument("--alternates", action="store_true", help="time all seeds, not only the first")
    parser.add_argument("--first-call", action="store_true", help="time what a first call that measures takes too")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--workers", type=int, default=min(WORKERS, os.cpu_count() or 1))
    parser.add_argument(
        "--seconds", type=float, help="of checks, after which the cells that are not ready are left out"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument(
        "--keep", action="store_true", help="keep the rows of cells in the files that are not timed now"
    )
    options = parser.parse_args()
    unknown = set(options.suites) - set(SUITES)
    if unknown:
        parser.error(f"no suite {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}")
    part, parts = map(int, options.part.split("/"))
    indices = chosen_cells(options, _cells())[part - 1 :: parts]
    if not indices:
        parser.error("no cell is left; loosen --kernels, --dtypes, --extents or --part")
    if not torch.cuda.is_available():
        print(f"{len(indices)} cells, not measured: torch sees no GPU", file=sys.stderr)
        return 1
    torch.set_float32_matmul_precision("high")
    timer = GraphTimer()
    head = {**environment(), "copy_gb_per_s": round(copy_bandwidth(timer))}
    print(head, flush=True)
    flags = {"alternates": options.alternates, "compiled": not options.no_compile, "measured": options.first_call}
    names = {suite: f"{head['device'].lower().replace(' ', '-')}-{suite}.json" for suite in options.suites}
    earlier = {suite: _earlier(RESULTS / name) if options.keep else {} for suite, name in names.items()}
    found: dict[str, list[Row]] = {}
    for row in rows(indices, timer, flags, options.workers, options.seconds):
        found.setdefault(row.suite, []).append(row)
        print(text_of(row), flush=True)
        write(options.out / names[row.suite], *kept(earlier[row.suite], head, found[row.suite]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
