"""Show the compiler at work on three kernels, on any machine: run `python examples/demo.py`.

It prints the kernel source, the facts of the kernel, the chosen config with the reason, and the generated Triton
source. Then it checks a result, and prints the registers and shared memory that NVIDIA's assembler reports for two
GPUs, which need not be present.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import triton

import helion
from helion.testing import DEVICE, check, gpu_median_ms

RESOURCE_TARGETS = ("sm_90", "sm_100")
# The target that facts and seeds are shown for where there is no GPU to ask.
DEFAULT_TARGET = "sm_90"
NARROWEST_WIDTH = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """One kernel to show. Shapes are those of its positional tensor arguments, all bf16."""

    kernel: helion.Kernel
    reference: Callable[..., Any]
    run_shapes: tuple[tuple[int, ...], ...]
    """Small enough for Triton's interpreter."""
    real_shapes: tuple[tuple[int, ...], ...]
    """What facts, seeds, resources and times are shown for."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resources:
    target: str
    registers: str
    spill_bytes: str
    shared: str
    tensor_memory_columns: str
    fits: str
    source: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Times:
    """Median device times in ms, cold L2."""

    kernel: float
    eager: float
    compiled: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Everything shown about one kernel."""

    name: str
    source: str
    real_shapes: str
    run_shapes: str
    facts: str
    heuristic: str
    reason: str
    config: str
    predicted: str
    triton_source: str
    max_error: float
    resources: tuple[Resources, ...]
    times: Times | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


# ---------------------------------------------------------------------------------------------------------- gathering


def subjects() -> tuple[Subject, ...]:
    def subject(name: str, run: tuple[tuple[int, ...], ...], real: tuple[tuple[int, ...], ...]) -> Subject:
        module = importlib.import_module(name)  # a script finds the files in its folder
        return Subject(kernel=getattr(module, name), reference=module.reference, run_shapes=run, real_shapes=real)

    return (
        subject("softmax", ((48, 1000),), ((4096, 8192),)),
        subject("layer_norm", ((48, 1000), (1000,), (1000,)), ((4096, 8192), (8192,), (8192,))),
        subject("matmul_rms_norm", ((77, 130), (130, 63), (63,)), ((65536, 512), (512, 512), (512,))),
    )


def gather(subject: Subject, progress: Callable[[str], None]) -> Report:
    """Compile, run and, with a GPU, time one kernel."""
    kernel = subject.kernel
    on_gpu = DEVICE.type == "cuda"
    progress(f"{kernel.name}: compiling for {_target_name()}")
    real_args = _tensors(subject.real_shapes, DEVICE if on_gpu else torch.device("meta"))
    bound = kernel.bind(real_args) if on_gpu else kernel.bind(real_args, target=DEFAULT_TARGET)
    if not bound.seeds:
        raise SystemExit(f"{kernel.name}: no config fits {_target_name()} for {_shapes(subject.real_shapes)}")
    seed = bound.seeds[0]
    progress(f"{kernel.name}: running")
    error = check(kernel.name, kernel, subject.reference, _tensors(subject.run_shapes, DEVICE))
    return Report(
        name=kernel.name,
        source=textwrap.dedent(inspect.getsource(kernel.fn)),
        real_shapes=_shapes(subject.real_shapes),
        run_shapes=_shapes(subject.run_shapes),
        facts=facts_line(bound.facts),
        heuristic=seed.heuristic,
        reason=seed.reason,
        config=str(seed.config),
        predicted=scalars_line(seed.predicted),
        triton_source=bound.to_triton_code(seed.config),
        max_error=error,
        resources=tuple(_resources(subject, target, progress) for target in RESOURCE_TARGETS),
        times=_times(subject, real_args, progress) if on_gpu else None,
    )


def _resources(subject: Subject, target: str, progress: Callable[[str], None]) -> Resources:
    progress(f"{subject.kernel.name}: assembling for {target}")
    args = _tensors(subject.real_shapes, torch.device("meta"))
    report = subject.kernel.bind(args, target=target).resources()
    return Resources(
        target=target,
        registers=str(report.registers),
        spill_bytes=str(report.spill_bytes),
        shared=f"{report.shared_bytes} of {report.limit_bytes}",
        tensor_memory_columns=str(report.tensor_memory_columns),
        fits="yes" if report.fits else "no",
        source=str(report.source),
    )


def _times(subject: Subject, args: tuple[torch.Tensor, ...], progress: Callable[[str], None]) -> Times:
    progress(f"{subject.kernel.name}: timing against eager and torch.compile")
    compiled = torch.compile(subject.reference)
    return Times(
        kernel=gpu_median_ms(lambda: subject.kernel(*args)),
        eager=gpu_median_ms(lambda: subject.reference(*args)),
        compiled=gpu_median_ms(lambda: compiled(*args)),
    )


def _tensors(shapes: tuple[tuple[int, ...], ...], device: torch.device) -> tuple[torch.Tensor, ...]:
    """Make bf16 tensors with a mean of 0.5; on `meta`, without values."""
    tensors = tuple(torch.empty(shape, dtype=torch.bfloat16, device=device) for shape in shapes)
    if device.type != "meta":
        generator = torch.Generator(device=device).manual_seed(0)
        for tensor in tensors:
            tensor.normal_(mean=0.5, std=1.0, generator=generator)
    return tensors


def facts_line(facts: Any) -> str:
    """Return a `KernelFacts` in one line: the number of each kind, then the compositions."""
    counted = (
        (facts.axes, "axis", "axes"),
        (facts.memory_ops, "memory op", "memory ops"),
        (facts.matmuls, "matmul", "matmuls"),
        (facts.reductions, "reduction", "reductions"),
        (facts.accumulators, "loop-carried accumulator", "loop-carried accumulators"),
    )
    parts = [f"{len(items)} {one if len(items) == 1 else many}" for items, one, many in counted if items]
    composed = (
        (facts.pointwise, "pointwise"),
        (facts.matmul_with_reduction_epilogue, "matmul with reduction epilogue"),
        (facts.attention, "attention"),
    )
    names = [name for fact, name in composed if fact]
    return ", ".join(parts) + (f" => {', '.join(names)}" if names else "")


def scalars_line(record: Any) -> str:
    """Return the numbers and flags of a record as `name=value, ...`; its `str` if it is not a dataclass."""
    if not dataclasses.is_dataclass(record):
        return str(record)
    values = ((field.name, getattr(record, field.name)) for field in dataclasses.fields(record))
    return ", ".join(
        f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in values
        if isinstance(value, (bool, int, float, str))
    )


def _shapes(shapes: tuple[tuple[int, ...], ...]) -> str:
    return "bf16 " + ", ".join(f"[{', '.join(map(str, shape))}]" for shape in shapes)


def _target_name() -> str:
    return torch.cuda.get_device_name() if DEVICE.type == "cuda" else DEFAULT_TARGET


# ----------------------------------------------------------------------------------------------------------- printing


class Printer(Protocol):
    def heading(self, text: str) -> None: ...
    def line(self, text: str) -> None: ...
    def code(self, source: str) -> None: ...
    def table(self, table: Table) -> None: ...


class RichPrinter:
    def __init__(self) -> None:
        import rich.console  # an optional extra, needed by this printer alone

        narrow = not sys.stdout.isatty()
        self._console = rich.console.Console(width=NARROWEST_WIDTH + 20 if narrow else None, highlight=False)

    def heading(self, text: str) -> None:
        self._console.rule(f"[bold]{text}", align="left")

    def line(self, text: str) -> None:
        self._console.print(text, markup=False)

    def code(self, source: str) -> None:
        import rich.syntax

        self._console.print(rich.syntax.Syntax(source.strip("\n"), "python", background_color="default"))

    def table(self, table: Table) -> None:
        import rich.markup
        import rich.table

        drawn = rich.table.Table(title=table.title, title_justify="left", show_lines=True)
        for column in table.columns:
            drawn.add_column(column, overflow="fold")
        for row in table.rows:
            drawn.add_row(*map(rich.markup.escape, row))
        self._console.print(drawn)


class PlainPrinter:
    def heading(self, text: str) -> None:
        print(f"\n== {text} ==")

    def line(self, text: str) -> None:
        print(text)

    def code(self, source: str) -> None:
        print(textwrap.indent(source.strip("\n"), "    "))

    def table(self, table: Table) -> None:
        print(table.title)
        widths = [max(len(cell) for cell in column) for column in zip(table.columns, *table.rows, strict=True)]
        spare = max(shutil.get_terminal_size().columns, NARROWEST_WIDTH) - 2 * len(widths)
        while sum(widths) > spare:  # the widest column gives way, a character at a time
            widths[widths.index(max(widths))] -= 1
        for row in (table.columns, tuple("-" * width for width in widths), *table.rows):
            cells = [textwrap.wrap(cell, width) or [""] for cell, width in zip(row, widths, strict=True)]
            for number in range(max(map(len, cells))):
                texts = (cell[number] if number < len(cell) else "" for cell in cells)
                print("  ".join(text.ljust(width) for text, width in zip(texts, widths, strict=True)).rstrip())
        print()


def facts_table(reports: Sequence[Report]) -> Table:
    return Table(
        title="What the compiler read off the kernels",
        columns=("kernel", "arguments", "facts"),
        rows=tuple((report.name, report.real_shapes, report.facts) for report in reports),
    )


def seed_table(report: Report) -> Table:
    return Table(
        title=f"{report.name}, {report.real_shapes}",
        columns=("", "first config for " + _target_name()),
        rows=(
            ("rule", report.heuristic),
            ("reason", report.reason),
            ("config", report.config),
            ("predicted", report.predicted),
        ),
    )


def results_table(reports: Sequence[Report]) -> Table:
    return Table(
        title="Results of running them here",
        columns=("kernel", "arguments", "max error against PyTorch in fp64"),
        rows=tuple((report.name, report.run_shapes, f"{report.max_error:.2e}") for report in reports),
    )


def resources_table(reports: Sequence[Report]) -> Table:
    return Table(
        title="Default config, per thread (registers, spills) and block; the GPUs need not be present",
        columns=("kernel", "target", "registers", "spill bytes", "shared bytes", "TMEM columns", "fits", "source"),
        rows=tuple((report.name, *dataclasses.astuple(entry)) for report in reports for entry in report.resources),
    )


def times_table(reports: Sequence[Report]) -> Table:
    timed = tuple((report, report.times) for report in reports if report.times is not None)
    return Table(
        title="Median device time in ms (cold L2, compilation excluded)",
        columns=("kernel", "arguments", "this", "eager", "torch.compile", "torch.compile / this"),
        rows=tuple(
            (
                report.name,
                report.real_shapes,
                f"{times.kernel:.4f}",
                f"{times.eager:.4f}",
                f"{times.compiled:.4f}",
                f"{times.compiled / times.kernel:.2f}",
            )
            for report, times in timed
        ),
    )


def show(reports: Sequence[Report], printer: Printer, seconds: float) -> None:
    """Print in the order in which the compiler works."""
    first = reports[0]
    printer.heading(f"1. The kernel {first.name}, as written")
    printer.code(first.source)
    printer.heading("2. Facts")
    printer.table(facts_table(reports))
    printer.heading("3. Configs, chosen from the facts and the target; nothing was tuned")
    for report in reports:
        printer.table(seed_table(report))
    printer.heading(f"4. The Triton source of {first.name} for {first.real_shapes} on {_target_name()}")
    printer.code(first.triton_source)
    printer.heading("5. Results")
    printer.table(results_table(reports))
    if any(report.times for report in reports):
        printer.table(times_table(reports))
    printer.heading("6. Resources")
    printer.table(resources_table(reports))
    machine = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU, Triton interpreter"
    printer.line(f"Ran on {machine}; torch {torch.__version__}, triton {triton.__version__}; {seconds:.1f} s in total")


def main() -> None:
    start = time.perf_counter()

    def progress(text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\033[K{text} ...", end="", file=sys.stderr, flush=True)

    reports = [gather(subject, progress) for subject in subjects()]
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    printer: Printer = RichPrinter() if importlib.util.find_spec("rich") else PlainPrinter()
    show(reports, printer, time.perf_counter() - start)


if __name__ == "__main__":
    main()
