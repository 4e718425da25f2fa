"""Compile the first seed of every line of the table of seeds with the real assemblers. This needs no GPU.

    python scripts/prove_seeds.py [--targets sm_90,sm_100] [--kernels softmax,jsd] [--changed] [--dry]

The script writes test/seeds/compiled.tsv: the resources of each binary, the reason of a spill, and a digest of the
config. test/seeds/seeds.tsv has the config in full, with the predicted resources.

The script exits with 1 when a seed does not compile, does not fit its target or takes more shared memory than
predicted. It also does when a seed spills too much. The limit is 1024 bytes; it is 0 if 16 rows of the widest tile take
at most half of the register file. A few bytes that ptxas spills with half of the registers unused are listed and
accepted. `--changed` compiles only seeds that are not in the file with the same config; `--dry` does not write the
file.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from helion.runtime.bound import BoundKernel

TABLE = ROOT / "test" / "seeds" / "compiled.tsv"
#: The targets of the file. All targets of the table compile; the file has the resources for these.
KEPT_TARGETS = ("sm_90", "h200", "sm_100")
KEY = ("suite", "kernel", "case", "dtype", "target")
NUMBERS = ("registers", "spilled", "shared", "shared_limit")
COLUMNS = (*KEY, "seed", *NUMBERS, "note")

#: Rows of the smallest matmul. A tile of so many rows must not spill if it takes at most half of the register file.
LEAST_ROWS, REGISTER_BYTES = 16, 4
MOST_SPILLED = 1024
#: ptxas at times spills a few bytes with most registers unused, for more warps per SM.
MOST_CHOSEN = 64
#: Largest median error of predicted registers, as a fraction.
REGISTER_ERROR = 0.20


def digest(config: str) -> str:
    """Return eight hexadecimal digits that identify the text of a config."""
    return hashlib.sha256(config.encode()).hexdigest()[:8]


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """Registers a thread and bytes of shared memory a block."""

    registers: int
    shared: int

    @classmethod
    def of(cls, line: Mapping[str, str]) -> Predicted:
        """Return the predicted resources of a line of the table of seeds."""
        return cls(registers=int(line["registers"]), shared=int(line["shared"]))


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """One line. Registers a thread, bytes spilled a thread, bytes of shared memory a block; ``seed`` is the digest of
    the config's text."""

    key: tuple[str, ...]
    seed: str
    registers: int
    spilled: int
    shared: int
    shared_limit: int
    note: str

    @property
    def text(self) -> str:
        return "\t".join((*self.key, self.seed, *(str(getattr(self, name)) for name in NUMBERS), self.note))

    def complaints(self, predicted: Predicted) -> list[str]:
        """Return the complaints about the binary; none if it is as predicted."""
        found = []
        if self.shared > self.shared_limit:
            found.append(f"{self.shared} bytes of shared memory do not fit {self.shared_limit}")
        if self.shared > predicted.shared:
            found.append(f"{self.shared} bytes of shared memory, {predicted.shared} were predicted")
        if self.spilled > MOST_SPILLED or (self.spilled and self.note.startswith("rows")):
            found.append(f"{self.spilled} bytes spilled, {self.note}")
        return found


Row = tuple[Compiled, Predicted]


def parse(text: str) -> list[Compiled]:
    """Return the lines of a file's text, without comments and the head."""
    found = []
    for one in text.splitlines():
        columns = one.split("\t")
        if one.startswith("#") or columns[0] == COLUMNS[0]:
            continue
        at = len(KEY) + 1
        numbers = dict(zip(NUMBERS, map(int, columns[at : at + len(NUMBERS)]), strict=True))
        found.append(Compiled(key=tuple(columns[: len(KEY)]), seed=columns[len(KEY)], note=columns[-1], **numbers))
    return found


def head() -> str:
    """Return the first lines of the file: the compilers, and the columns."""
    import triton

    return f"# Triton {triton.__version__}\n" + "\t".join(COLUMNS) + "\n"


def widest_row_bytes(bound: BoundKernel, config: Any) -> int:
    """Return the bytes of one row of the widest resident tile."""
    sizes = bound.config_spec.sizes(config)
    snapshots = (*bound.facts.resident_tiles, *bound.facts.held_tiles)
    tiles = (tile for root in snapshots for tiles in root for tile in tiles)
    return max((itemsize * sizes[axes[-1]] for axes, itemsize in tiles if axes), default=0)


def why_spilled(bound: BoundKernel, config: Any, real: Any) -> str:
    """Return the note for a kernel that spills."""
    width = widest_row_bytes(bound, config)
    half = bound.target.registers_per_sm * REGISTER_BYTES // 2
    if LEAST_ROWS * width > half:
        return f"{LEAST_ROWS} rows of {width} bytes are more than {half}"
    if 2 * real.registers <= real.registers_limit and real.spill_bytes <= MOST_CHOSEN:
        return f"the assembler's choice at {real.registers} of {real.registers_limit} registers"
    return f"rows of {width} bytes"


def compile_seed(seeds: Any, cell: Any, target: str) -> Row | str | None:
    """Return the line of one cell, the reason why it does not compile, or None if the table has no seed for it."""
    from helion import exc
    from helion.backends.triton.toolchain.offline import OfflineCompileError

    try:
        bound = seeds.bind(cell, target)
        if not bound.seeds:
            return None
    except exc.BackendUnsupported:
        return None
    first = bound.seeds[0]
    try:
        real = bound.resources(first.config)
    except OfflineCompileError as error:
        return f"does not compile: {error.detail.splitlines()[-1] if error.detail else error}"
    made = Compiled(
        key=(*cell.key, target),
        seed=digest(seeds.config_text(bound, first.config)),
        registers=real.registers,
        spilled=real.spill_bytes,
        shared=real.shared_bytes,
        shared_limit=real.limit_bytes,
        note=why_spilled(bound, first.config, real) if real.spill_bytes else "",
    )
    return made, Predicted(registers=first.predicted.registers_per_thread, shared=first.predicted.shared_bytes)


def prove(seeds: Any, cells: Iterable[Any], targets: Iterable[str]) -> Iterator[Row | str]:
    """Yield the lines of ``cells``, and a text for each that does not compile."""
    targets = tuple(targets)
    for cell in cells:
        for target in targets:
            made = compile_seed(seeds, cell, target)
            if isinstance(made, str):
                yield f"{' '.join((*cell.key, target))}: {made}"
            elif made is not None:
                yield made


def register_error(rows: Iterable[Row]) -> float:
    """Return the median relative error of the prediction; rows that spill are left out."""
    errors = [abs(p.registers - r.registers) / r.registers for r, p in rows if not r.spilled]
    return statistics.median(errors) if errors else 0.0


def summary(rows: list[Row]) -> str:
    spilling = [r for r, _ in rows if r.spilled]
    over = [r for r, p in rows if p.shared > 1.1 * r.shared + 2048]
    lines = [
        f"{len(rows)} compiled, {len(spilling)} spill, at most {max((r.spilled for r in spilling), default=0)} bytes",
        f"registers: median error {register_error(rows):.1%}; shared memory: {len(over)} predicted above 1.1 x + 2 KiB",
    ]
    lines += [f"SPILL {' '.join(r.key)}: {r.spilled} bytes, {r.note}" for r in spilling]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="compile the seeds offline and record what they take")
    parser.add_argument("--targets", default=",".join(KEPT_TARGETS))
    parser.add_argument("--kernels", default="", help="these alone, by name")
    parser.add_argument("--changed", action="store_true", help="only what is not in the file with the same config")
    parser.add_argument("--dry", action="store_true", help="do not write the file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="helion-seeds-") as cache:
        os.environ["TRITON_CACHE_DIR"] = os.path.join(cache, "triton")
        os.environ["HELION_CACHE_DIR"] = os.path.join(cache, "helion")
        rows, failures = run(arguments)
    failures += [f"{' '.join(r.key)}: {what}" for r, predicted in rows for what in r.complaints(predicted)]
    print(summary(rows))
    if failures:
        print(*(f"FAILED {failure}" for failure in failures), sep="\n")
        raise SystemExit(1)


def run(arguments: argparse.Namespace) -> tuple[list[Row], list[str]]:
    """Compile what was asked for, and write the file with what it had of the rest."""
    from helion._testing import import_path  # after the cache folder is chosen

    seeds = import_path(ROOT / "scripts" / "seeds.py")
    known = {r.key: r for r in parse(TABLE.read_text())} if TABLE.exists() else {}
    kernels, targets = arguments.kernels.split(",") if arguments.kernels else [], arguments.targets.split(",")
    cells = [cell for cell in seeds.cells() if not kernels or cell.kernel in kernels]
    rows: list[Row] = []
    failures: list[str] = []
    began = time.perf_counter()
    for at, cell in enumerate(cells):
        for target in targets:
            old = known.get((*cell.key, target))
            chosen = _chosen(seeds, cell, target) if arguments.changed and old is not None else None
            if old is not None and chosen is not None and old.seed == digest(chosen["config"]):
                rows.append((old, Predicted.of(chosen)))
                continue
            for made in prove(seeds, [cell], [target]):
                if isinstance(made, str):
                    failures.append(made)
                    print(f"FAILED {made}", flush=True)
                else:
                    rows.append(made)
                    compiled, predicted = made
                    if (wrong := compiled.complaints(predicted)) or compiled.spilled:
                        print(f"{' '.join(compiled.key)}: {wrong or compiled.note}", flush=True)
        if at % 50 == 49:
            print(f"{at + 1} of {len(cells)} cells, {time.perf_counter() - began:.0f} s", flush=True)
    if not arguments.dry:
        merged = known | {r.key: r for r, _ in rows}
        order = [(*cell.key, target) for cell in seeds.cells() for target in seeds.TARGETS]
        TABLE.write_text(head() + "".join(f"{merged[key].text}\n" for key in order if key in merged))
    return rows, failures


def _chosen(seeds: Any, cell: Any, target: str) -> dict[str, str]:
    return dict(zip(seeds.COLUMNS, seeds.line(cell, target), strict=True))


if __name__ == "__main__":
    main()
