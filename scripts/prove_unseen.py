"""Compile the first seeds of kernels that nothing was tuned on, and of steps of whole workloads, for every GPU. The
script uses the real assemblers and needs no GPU.

    python scripts/prove_unseen.py [--targets sm_90,gfx942] [--kernels entropy,narrow_mlp] [--changed] [--report]

Two processes write test/seeds/unseen.tsv: the real and the predicted resources of each binary, a digest of the
config, the versions of the compilers and the date. Then the script prints the errors of the predictions by GPU and by
family; `--report` prints them only.

The script exits with 1 if a seed does not compile, does not fit, or takes more shared memory than predicted. It also
does if the registers of a GPU have too large an error or too many seeds spill.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "test")]

TABLE = ROOT / "test" / "seeds" / "unseen.tsv"
TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "gfx942", "gfx950")
TEXTS = ("kernel", "case", "target", "heuristic", "seed")
NUMBERS = ("registers", "predicted", "limit", "spilled", "shared", "shared_predicted", "shared_limit", "products")
PROCESSES = 2

#: Median error of registers that are not spilled, on CUDA and on AMD.
REGISTER_ERROR, AMD_REGISTER_ERROR = 0.15, 0.20
#: Bytes that a seed may spill, and the fraction of all that may spill more: 11 of 2820 do.
SPILLED, SPILLING = 64, 0.005
#: Predicted shared memory is at most this times the real bytes, plus this many.
SHARED_FACTOR, SHARED_BYTES = 1.10, 2048
#: The fraction that may be predicted above that: 25 of 2820 are.
ABOVE = 0.01


@dataclass(frozen=True, kw_only=True)
class Row:
    """One seed. Registers per thread, spilled bytes per thread, bytes of shared memory per block; ``products`` is the
    number of matmuls, ``seed`` the digest of the config's text."""

    kernel: str
    case: str
    target: str
    heuristic: str
    seed: str
    registers: int
    predicted: int
    limit: int
    spilled: int
    shared: int
    shared_predicted: int
    shared_limit: int
    products: int

    @property
    def text(self) -> str:
        return "\t".join(str(getattr(self, name)) for name in (*TEXTS, *NUMBERS))

    @property
    def error(self) -> float:
        """Return the relative error of the predicted registers."""
        return abs(min(self.predicted, self.limit) - self.registers) / self.registers

    @property
    def is_above(self) -> bool:
        return self.shared_predicted > SHARED_FACTOR * self.shared + SHARED_BYTES

    def complaints(self) -> list[str]:
        """Return the complaints about the binary; none if it is as predicted."""
        name, found = f"{self.kernel} {self.case} {self.target}", []
        if self.shared > self.shared_limit:
            found.append(f"{name}: {self.shared} bytes of shared memory do not fit {self.shared_limit}")
        if self.shared > self.shared_predicted:
            found.append(f"{name}: {self.shared} bytes of shared memory, {self.shared_predicted} were predicted")
        return found


def parse(text: str) -> list[Row]:
    """Return the rows of a file's text, without comments and the head."""
    lines = [line.split("\t") for line in text.splitlines() if not line.startswith("#")][1:]
    count = len(TEXTS)
    return [
        Row(**dict(zip(TEXTS, line, strict=False)), **dict(zip(NUMBERS, map(int, line[count:]), strict=True)))  # type: ignore[arg-type]
        for line in lines
    ]


def digest(config: str) -> str:
    """Return eight hexadecimal digits that identify the text of a config."""
    return hashlib.sha256(config.encode()).hexdigest()[:8]


def compiled(cell: Any, target: str, known: Row | None = None) -> Row | None:
    """Return the row of the first seed of ``cell``, or None if the target cannot run the kernel. Compile nothing if
    ``known`` has the same config."""
    from helion import exc

    try:
        bound = cell.kernel.bind(cell.args, target=target)
        seed = bound.seeds[0]
    except exc.BackendUnsupported:
        return None
    predicted = seed.predicted
    if known is not None and known.seed == digest(str(bound.short_config(seed.config))):
        now = {"predicted": predicted.registers_per_thread, "shared_predicted": predicted.shared_bytes}
        return replace(known, heuristic=seed.heuristic, **now)
    real = bound.resources(seed.config)
    return Row(
        kernel=cell.kernel.name,
        case=cell.case,
        target=target,
        heuristic=seed.heuristic,
        seed=digest(str(bound.short_config(seed.config))),
        registers=real.registers,
        predicted=predicted.registers_per_thread,
        limit=predicted.register_limit,
        spilled=real.spill_bytes,
        shared=real.shared_bytes,
        shared_predicted=predicted.shared_bytes,
        shared_limit=real.limit_bytes,
        products=len(bound.facts.matmuls),
    )


def all_cells() -> tuple[Any, ...]:
    """Return the kernels with their arguments: those of test/unseen_kernels.py, then those of benchmarks/workloads."""
    from benchmarks.cells import workload_cells  # after the cache folder is chosen
    from helion._testing import import_path

    kernels = import_path(ROOT / "test" / "unseen_kernels.py")
    steps = [
        kernels.Varied(kernel=cell.function, case=f"{cell.case} {cell.dtype}", args=cell.args)
        for cell in workload_cells()
    ]
    return (*kernels.unseen(), *steps)


def compile_some(at: int, targets: Sequence[str], kernels: Sequence[str], known: Sequence[Row]) -> list[Row]:
    """Return the rows of every ``PROCESSES``-th kernel from ``at`` on; see :func:`compiled` for those that are
    ``known``."""
    cells = [cell for cell in all_cells() if not kernels or cell.kernel.name in kernels][at::PROCESSES]
    before = {(row.kernel, row.case, row.target): row for row in known}
    rows = [compiled(c, target, before.get((c.kernel.name, c.case, target))) for c in cells for target in targets]
    return [row for row in rows if row is not None]


def compile_all(targets: Sequence[str], kernels: Sequence[str], known: Sequence[Row] = ()) -> list[Row]:
    """Return all rows, in the order of kernels, cases and targets."""
    with ProcessPoolExecutor(PROCESSES) as pool:
        same = ([what] * PROCESSES for what in (targets, kernels, known))
        parts = pool.map(compile_some, range(PROCESSES), *same)
        rows = [row for part in parts for row in part]
    order = {(cell.kernel.name, cell.case): at for at, cell in enumerate(all_cells())}
    return sorted(rows, key=lambda row: (order[row.kernel, row.case], TARGETS.index(row.target)))


def register_error(rows: Iterable[Row]) -> float:
    """Return the median error of rows without spills."""
    return statistics.median([row.error for row in rows if not row.spilled] or [0.0])


def spilling(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row.spilled > SPILLED]


def complaints(rows: Sequence[Row]) -> list[str]:
    """Return the complaints about each row, and about all of them together."""
    found = [complaint for row in rows for complaint in row.complaints()]
    for target in sorted({row.target for row in rows}):
        bound = AMD_REGISTER_ERROR if target.startswith("gfx") else REGISTER_ERROR
        if (error := register_error(row for row in rows if row.target == target)) > bound:
            found.append(f"{target}: registers are {error:.1%} off in the median")
    if len(spilling(rows)) > SPILLING * len(rows):
        found.append(f"{len(spilling(rows))} of {len(rows)} spill more than {SPILLED} bytes")
    if (above := sum(row.is_above for row in rows)) > ABOVE * len(rows):
        found.append(f"shared memory of {above} of {len(rows)} is predicted too high")
    return found


def table(rows: Sequence[Row], title: str, family: Callable[[Row], str]) -> str:
    """Return the distribution of errors by family."""
    lines = [f"{title:38} seeds  registers: median, 90 %  spill  above"]
    for name in sorted({family(row) for row in rows}):
        own = [row for row in rows if family(row) == name]
        errors = sorted(row.error for row in own if not row.spilled) or [0.0]
        tail = errors[min(len(errors) - 1, len(errors) * 9 // 10)]
        above = sum(row.is_above for row in own)
        lines.append(
            f"{name:38} {len(own):5}          {statistics.median(errors):6.1%} {tail:6.1%}  {len(spilling(own)):5}  {above:5}"
        )
    return "\n".join(lines)


def report(rows: Sequence[Row]) -> str:
    return "\n\n".join(
        (
            table(rows, "GPU", lambda row: row.target),
            table(rows, "family", lambda row: row.heuristic),
            table(rows, "kind", lambda row: f"{row.target}, {'products' if row.products else 'no products'}"),
        )
    )


def versions() -> str:
    """Return the compilers and the day, for the first line of the file."""
    import triton

    from helion.backends.triton.toolchain.offline import ptxas_version
    from helion.hardware import target

    assemblers = f"ptxas {ptxas_version(target('sm_90'))} and {ptxas_version(target('sm_100'))}"
    return f"# Triton {triton.__version__}, {assemblers}, {datetime.date.today().isoformat()}"


def main() -> None:
    parser = argparse.ArgumentParser(description="compile the seeds of kernels that nothing was tuned on")
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--kernels", default="", help="these alone, by name; the file is left as it is")
    parser.add_argument(
        "--changed", action="store_true", help="compile only what the file has with another config or not"
    )
    parser.add_argument("--report", action="store_true", help="say what is in the file; nothing is compiled")
    arguments = parser.parse_args()
    targets, kernels = arguments.targets.split(","), arguments.kernels.split(",") if arguments.kernels else []
    if arguments.report:
        rows = parse(TABLE.read_text())
    else:
        with tempfile.TemporaryDirectory(prefix="helion-unseen-") as cache:
            os.environ.setdefault("TRITON_CACHE_DIR", os.path.join(cache, "triton"))
            os.environ.setdefault("HELION_CACHE_DIR", os.path.join(cache, "helion"))
            rows = compile_all(targets, kernels, parse(TABLE.read_text()) if arguments.changed else ())
        if not kernels and len(targets) == len(TARGETS):
            lines = [versions(), "\t".join((*TEXTS, *NUMBERS)), *(row.text for row in rows)]
            TABLE.write_text("\n".join(lines) + "\n")
    print(report(rows))
    if failures := complaints(rows):
        print(*(f"FAILED {failure}" for failure in failures), sep="\n")
        raise SystemExit(1)


if __name__ == "__main__":
    main()
