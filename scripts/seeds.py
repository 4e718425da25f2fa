"""Write the table of seeds: the configs that the heuristics choose for untuned kernels and shapes. This needs no GPU.

    python scripts/seeds.py            writes test/seeds/seeds.tsv
    python scripts/seeds.py --check    prints how the file differs from what it would write, and exits with 1 if it does

There is one line per kernel, case, dtype and target, tab-separated. Its columns are the facts (`"` if equal to those
of the line above), the heuristic of the first seed, and its config. Keys at their defaults are left out. Then follow
the predicted registers per thread and shared memory per block in bytes. Without a seed the heuristic is `none` and the
config says why; if the target cannot run the kernel, it is `refused`.

The lines cover every case of every example, and the cells of benchmarks/cells.py. Those are matmuls, plain and with
reduction epilogues, reductions over rows of 128 to 131072, and pointwise kernels.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.cells import Cell  # noqa: E402
from benchmarks.cells import table_cells as cells  # noqa: E402
from helion import exc  # noqa: E402
from helion._compiler.facts.summary import summarize  # noqa: E402

if TYPE_CHECKING:
    from helion.runtime.bound import BoundKernel

TABLE = ROOT / "test" / "seeds" / "seeds.tsv"
TARGETS = ("sm_80", "sm_90", "h200", "sm_100", "gfx942")
KEY = ("suite", "kernel", "case", "dtype", "target")
COLUMNS = (*KEY, "facts", "heuristic", "config", "registers", "shared")


def bind(cell: Cell, target: str) -> BoundKernel:
    return cell.function.bind(cell.args, target=target)


def config_text(bound: BoundKernel, config: Any) -> str:
    """Return the config without keys at their defaults, on one line without tabs."""
    return " ".join(f"{key}={value!r}" for key, value in bound.short_config(config).items()).replace(", ", ",")


def line(cell: Cell, target: str) -> tuple[str, ...]:
    """Return the columns of one line, with the facts written out."""
    start = (*cell.key, target)
    try:
        bound = bind(cell, target)
        facts, seeds = summarize(bound.facts), bound.seeds
    except exc.BackendUnsupported as refusal:
        return *start, "", "refused", refusal.message, "", ""
    if not seeds:
        return *start, facts, "none", "; ".join(f"{name}: {reason}" for name, reason in bound.declined), "", ""
    first = seeds[0]
    predicted = first.predicted
    numbers = str(predicted.registers_per_thread), str(predicted.shared_bytes)
    return *start, facts, first.heuristic, config_text(bound, first.config), *numbers


def kept() -> dict[tuple[str, ...], dict[str, str]]:
    """Return the lines of the file by suite, kernel, case, dtype and target: their columns, with the facts written
    out."""
    found = {}
    facts = ""
    for one in TABLE.read_text().splitlines()[1:]:
        columns = dict(zip(COLUMNS, one.split("\t"), strict=True))
        columns["facts"] = facts = facts if columns["facts"] == '"' else columns["facts"]
        found[tuple(columns[name] for name in KEY)] = columns
    return found


def text(chosen: Iterable[Cell]) -> str:
    """Return the lines of ``chosen`` for every target, without the head of the table."""
    lines = []
    for cell in chosen:
        shown = None
        for target in TARGETS:
            columns = list(line(cell, target))
            facts = columns[COLUMNS.index("facts")]
            if facts == shown:
                columns[COLUMNS.index("facts")] = '"'
            shown = facts
            lines.append("\t".join(columns))
    return "".join(f"{one}\n" for one in lines)


def table() -> str:
    return "\t".join(COLUMNS) + "\n" + text(cells())


def main() -> None:
    parser = argparse.ArgumentParser(description="write or check the table of seeds")
    parser.add_argument("--check", action="store_true", help="compare with the file and leave it as it is")
    arguments = parser.parse_args()
    made = table()
    if not arguments.check:
        TABLE.write_text(made)
        print(f"{TABLE.relative_to(ROOT)}: {made.count(chr(10)) - 1} lines, {len(made)} bytes")
        return
    kept = TABLE.read_text()
    if kept != made:
        changes = difflib.unified_diff(kept.splitlines(), made.splitlines(), "kept", "made", lineterm="", n=0)
        print(*changes, sep="\n")
        raise SystemExit("the seeds have changed: run `make seeds` and look at the diff")
    print(f"{TABLE.relative_to(ROOT)} is what the heuristics choose")


if __name__ == "__main__":
    main()
