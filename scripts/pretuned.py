"""Make helion/autotuner/pretuned.json, the measured configs that first calls try, from the kept sweeps. Needs no GPU.

    python scripts/pretuned.py [--check | --score]

The file has the best config of each swept cell, and the contributed rows. `--check` ends with 1 if the file is not what
would be written. `--score` tries the nearest rows of each cell, with the cell itself left out, and compares their times
with the best. Contributed rows are files of `python -m helion tune --contribute` in benchmarks/results/pretuned.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from benchmarks.cells import Cell, holdout_cells, swept_cells, timed_cells  # noqa: E402
from benchmarks.sweep import (  # noqa: E402
    HOLDOUT,
    KEPT,
    KEPT_TARGET,
    OTHER_SAMPLES,
    OTHER_TARGET,
    SAMPLES,
    Timed,
    parse,
)
from helion.autotuner.pretuned import PACKAGED, Row, extents, formatted, nearest, parsed, row_of, structure  # noqa: E402
from helion.config import Config  # noqa: E402
from helion.pipeline import Analysis  # noqa: E402

CONTRIBUTED = ROOT / "benchmarks" / "results" / "pretuned"
#: The first seed is kept if its time is at most this multiple of the least: a smaller gain is noise.
NEAR = 1.01
#: Keys that a row has also at their defaults, which may change.
_ALWAYS = ("block_sizes", "reduction_loops", "num_warps", "num_stages")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Swept:
    """A swept cell: its analysis, the microseconds of its configs, and its row."""

    cell: Cell
    gpu: str
    analysis: Analysis
    us: Mapping[Config, float]
    first: Config
    row: Row

    @property
    def best(self) -> float:
        return min(self.us.values())


def swept() -> Iterator[Swept]:
    """Yield the cells of all sweeps and samples."""
    h200 = [*parse(KEPT.read_text()), *parse(SAMPLES.read_text())]
    yield from _swept(h200, timed_cells(), KEPT_TARGET)
    yield from _swept(parse(HOLDOUT.read_text()), holdout_cells(), KEPT_TARGET)
    yield from _swept(parse(OTHER_SAMPLES.read_text()), swept_cells(), OTHER_TARGET)


def _swept(rows: Iterable[Timed], cells: Iterable[Cell], on: str) -> Iterator[Swept]:
    by_cell: dict[tuple[str, str, str], list[Timed]] = {}
    for row in rows:
        by_cell.setdefault(row.key, []).append(row)
    for cell in cells:
        timed = by_cell.pop(cell.key[1:], None)
        if timed is not None:
            yield _made(cell, timed, on)


def _made(cell: Cell, timed: Sequence[Timed], on: str) -> Swept:
    analysis = cell.function.bind(cell.args, target=on)._analysis
    us: dict[Config, float] = {}
    for row in timed:
        config = analysis.space.normalize(row.config)
        us[config] = min(row.microseconds, us.get(config, math.inf))
    first = analysis.default_config
    best = min(us, key=us.__getitem__)
    kept = first if us.get(first, math.inf) <= NEAR * us[best] else best
    short = Config(**{key: kept[key] for key in kept if key in _ALWAYS or key in kept.minimize(analysis.space)})
    made = row_of(analysis.facts, analysis.target, analysis.backend.name, short, us[kept], us.get(first))
    return Swept(cell=cell, gpu=on, analysis=analysis, us=us, first=first, row=made)


def contributed() -> list[Row]:
    """Return the rows of all contributed files."""
    return [row for path in sorted(CONTRIBUTED.glob("*.json")) for row in parsed(path.read_text())]


# --- score ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """A cell: the time of its first config, and of the fastest of it and its nearest rows' configs, over the best.

    ``timed`` of the ``found`` configs have a time in the sweep; None if the first config has none.
    """

    name: str
    first: float | None
    nearest: float | None
    found: int
    timed: int


def scored(cells: Sequence[Swept], others: Sequence[Swept]) -> Iterator[Score]:
    """Yield the scores of cells by the rows of ``others`` with their structure, without the cell's own."""
    by_structure: dict[str, list[Swept]] = {}
    for other in others:
        by_structure.setdefault(other.row.structure, []).append(other)
    for each in cells:
        facts = each.analysis.facts
        rows = [other.row for other in by_structure.get(structure(facts), ()) if other is not each]
        space = each.analysis.space
        near = nearest(rows, extents(facts), each.analysis.target, each.analysis.backend.name)
        configs = [space.normalize(config) for config in near]
        timed = [each.us[config] for config in configs if config in each.us]
        first = each.us.get(each.first)
        yield Score(
            name=" ".join((*each.cell.key[1:], each.gpu)),
            first=None if first is None else first / each.best,
            nearest=None if first is None else min((first, *timed)) / each.best,
            found=len(configs),
            timed=len(timed),
        )


def table(title: str, scores: Sequence[Score]) -> list[str]:
    """Format the score of cells that have a row to try and all its times."""
    found = [score for score in scores if score.found]
    known = [s for s in found if s.timed == s.found and s.first is not None and s.nearest is not None]
    lines = [f"{title}: {len(scores)} cells, {len(found)} with rows of others, {len(known)} with times of all of them"]
    if known:
        firsts, nears = [s.first or 1.0 for s in known], [s.nearest or 1.0 for s in known]
        lines.append(f"  first config / best {_mean(firsts):.3f}, worst {max(firsts):.2f}")
        lines.append(f"  with the nearest rows {_mean(nears):.3f}, worst {max(nears):.2f}")
    return lines


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))


def main() -> int:
    parser = argparse.ArgumentParser(description="make the package's measured configs")
    parser.add_argument("--check", action="store_true", help="compare with the file, and do not write it")
    parser.add_argument("--score", action="store_true", help="score rows that leave the cell out")
    options = parser.parse_args()
    cells = list(swept())
    if options.score:
        print(*table("cell left out", list(scored(cells, cells))), sep="\n")
        for gpu in (KEPT_TARGET, OTHER_TARGET):
            mine, others = [c for c in cells if c.gpu == gpu], [c for c in cells if c.gpu != gpu]
            print(*table(f"{gpu}, by rows of the other GPU", list(scored(mine, others))), sep="\n")
        return 0
    text = formatted([*(each.row for each in cells), *contributed()])
    if options.check:
        return int(text != PACKAGED.read_text(encoding="utf-8"))
    PACKAGED.write_text(text, encoding="utf-8")
    print(f"{PACKAGED}: {len(cells)} cells, {len(text)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
