"""Compare the default configs of every benchmark cell with those that another checkout chooses. This needs no GPU.

    python scripts/defaults.py --keep build/defaults.tsv [--targets h200,sm_90]
    python scripts/defaults.py --against build/defaults.tsv

The first command writes one line per cell and target: the default config, its heuristic, its predicted time in
microseconds, and all seeds by rank. The second one runs in the changed checkout. It prints every cell whose default
differs, with both configs and predicted times. It exits with 1 if one differs on a target of `--same`.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "test")]

from benchmarks import cells  # noqa: E402
from helion import exc  # noqa: E402
from helion._testing import import_path  # noqa: E402

if TYPE_CHECKING:
    from benchmarks.cells import Cell

COLUMNS = ("suite", "kernel", "case", "dtype", "target", "heuristic", "us", "default", "seeds")
Key = tuple[str, ...]
Row = dict[str, str]


def all_cells() -> list[Cell]:
    """Return every cell of the table of seeds and of the benchmarks, once."""
    made = (*cells.table_cells(), *cells.general_cells(), *cells.unseen_cells(), *cells.workload_cells())
    return list({cell.key: cell for cell in (*made, *cells.holdout_cells())}.values())


def row(cell: Cell, target: str, text: object) -> Row:
    """Return the columns of one cell."""
    key = dict(zip(COLUMNS, (*cell.key, target), strict=False))
    try:
        bound = cell.function.bind(cell.args, target=target)
        chosen = bound.default_config()
    except exc.Base as refusal:
        return key | {"heuristic": "refused", "us": "0", "default": type(refusal).__name__, "seeds": ""}
    of = {seed.config: seed.heuristic for seed in bound.seeds}
    us = next((seed.predicted.time_us for seed in bound.seeds if seed.config == chosen), 0.0)
    ranked = " | ".join(text(bound, seed.config) for seed in bound.seeds)  # type: ignore[operator]
    made = {"heuristic": of.get(chosen, "conservative"), "us": f"{us:.1f}"}
    return key | made | {"default": text(bound, chosen), "seeds": ranked}  # type: ignore[operator]


def rows(targets: list[str]) -> dict[Key, Row]:
    """Return the rows of all cells for the targets."""
    text = import_path(ROOT / "scripts" / "seeds.py").config_text
    found, began = {}, time.process_time()
    for cell in all_cells():
        for target in targets:
            made = row(cell, target, text)
            found[tuple(made[name] for name in COLUMNS[:5])] = made
    print(f"{len(found)} cells in {time.process_time() - began:.0f} s of CPU time", file=sys.stderr)
    return found


def kept(path: Path) -> dict[Key, Row]:
    lines = (dict(zip(COLUMNS, one.split("\t"), strict=True)) for one in path.read_text().splitlines()[1:])
    return {tuple(line[name] for name in COLUMNS[:5]): line for line in lines}


def compare(before: dict[Key, Row], after: dict[Key, Row], same: list[str]) -> bool:
    """Print the changed defaults, and return whether one is on a target of ``same``."""
    changed = [key for key in after if key in before and before[key]["default"] != after[key]["default"]]
    for key in changed:
        print("\t".join(key))
        for sign, one in (("-", before[key]), ("+", after[key])):
            print(f"  {sign} {one['heuristic']}, {one['us']} us predicted: {one['default']}")
    later = [key for key in after if key in before and before[key]["seeds"] != after[key]["seeds"]]
    for name, keys in (("defaults", changed), ("lists of seeds", later)):
        print(f"changed {name}:", dict(collections.Counter(key[4] for key in keys)) or "none")
    return any(key[4] in same for key in changed)


def main() -> None:
    parser = argparse.ArgumentParser(description="compare default configs with those of another checkout")
    parser.add_argument("--keep", type=Path, help="write the rows of this checkout")
    parser.add_argument("--against", type=Path, help="compare with the rows of another checkout")
    parser.add_argument("--targets", default="h200,sm_90")
    parser.add_argument("--same", default="h200", help="targets whose defaults must not change")
    arguments = parser.parse_args()
    made = rows(arguments.targets.split(","))
    if arguments.keep:
        lines = ("\t".join(one[name] for name in COLUMNS) for one in made.values())
        arguments.keep.write_text("\n".join(("\t".join(COLUMNS), *lines)) + "\n")
    if arguments.against and compare(kept(arguments.against), made, arguments.same.split(",")):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
