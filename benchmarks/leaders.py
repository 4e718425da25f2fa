"""Scores of the leaders that a first call times, and the errors of predicted times that select them.

    python benchmarks/leaders.py          on the samples of each GPU, with errors fitted to those of the other one
    python benchmarks/leaders.py --fit    writes the errors that the product has, fitted to the samples of all GPUs

Needs no GPU: the times are those of benchmarks/results/*-samples.tsv and nvidia-h200-holdout.tsv.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.cells import Cell, holdout_cells, swept_cells, timed_cells, unfitted_cells  # noqa: E402
from benchmarks.sweep import (  # noqa: E402
    HOLDOUT,
    KEPT_TARGET,
    OTHER_SAMPLES,
    OTHER_TARGET,
    SAMPLES,
    UNFITTED,
    Timed,
    measured_facts,
    parse,
)
from benchmarks.time_model import FactsOf, mean_of  # noqa: E402
from helion.autotuner.leaders import NUGGET, promising, scale  # noqa: E402
from helion.autotuner.search.domain import SpaceDomain  # noqa: E402
from helion.autotuner.search.kriging import covariance  # noqa: E402
from helion.autotuner.search.time_model import PredictedTime  # noqa: E402
from helion.backends.triton.resources.time.parameters import FITTED, fitted, limiting, write  # noqa: E402

Array = npt.NDArray[np.float64]

#: Leaders of the table, beside the first config; the product times 4.
COUNTS = (0, 1, 2, 3, 4, 6)
#: Configs of a cell and cells of a unit from which an error is fitted, and the largest error of a cell that counts.
_LEAST_CONFIGS, _LEAST_CELLS, _LARGEST = 8, 5, 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampled:
    """A cell of a sample.

    Measured ``us``, logarithms of predictions, features of the configs, the unit that limits the fastest by prediction,
    and the place of the default config, or of the fastest by prediction where the default was not sampled.
    """

    key: tuple[str, str, str]
    us: Array
    log_predicted: Array
    features: Array
    unit: str
    first: int


def sampled(rows: Iterable[Timed], cells: Iterable[Cell], on: str, facts_of: FactsOf = measured_facts) -> list[Sampled]:
    """Return the cells with rows, each once and in their order. ``facts_of`` gives the facts of the code that was timed."""
    by_cell: dict[tuple[str, str, str], list[Timed]] = {}
    for row in rows:
        by_cell.setdefault(row.key, []).append(row)
    return [_sampled(cell, timed, on, facts_of) for cell in cells if (timed := by_cell.pop(cell.key[1:], None))]


def _sampled(cell: Cell, timed: Sequence[Timed], on: str, facts_of: FactsOf) -> Sampled:
    analysis = cell.function.bind(cell.args, target=on)._analysis
    facts, space = facts_of(analysis.facts), analysis.space
    model = PredictedTime(lambda config: analysis.backend.predict(facts, space.decode(config), analysis.target))
    domain = SpaceDomain(space, model, scales=scale)
    configs = [space.normalize(row.config) for row in timed]
    log_predicted = np.array([model.log_time(config) for config in configs])
    fastest = int(np.argmin(log_predicted))
    default = analysis.default_config
    return Sampled(
        key=cell.key[1:],
        us=np.array([row.microseconds for row in timed]),
        log_predicted=log_predicted,
        features=np.array([domain.features(config) for config in configs]),
        unit=limiting(model.predicted(configs[fastest]).units),
        first=configs.index(default) if default in configs else fastest,
    )


def error_of(cell: Sampled) -> float:
    """Return the standard deviation of the logarithms of predicted times, given how errors of near configs correlate."""
    count = len(cell.us)
    inverse = np.linalg.inv(covariance(cell.features, cell.features) + NUGGET * np.eye(count))
    errors, ones = np.log(cell.us) - cell.log_predicted, np.ones(count)
    errors = errors - (ones @ inverse @ errors) / (ones @ inverse @ ones)
    return min(_LARGEST, math.sqrt(errors @ inverse @ errors / (count - 1)))


def fit(cells: Iterable[Sampled]) -> dict[str, float]:
    """Return the root mean square of cells' errors by limiting unit; "" is that of all."""
    by_unit: dict[str, list[float]] = {}
    for cell in cells:
        if len(cell.us) >= _LEAST_CONFIGS:
            by_unit.setdefault(cell.unit, []).append(error_of(cell))
    kept = {unit: errors for unit, errors in sorted(by_unit.items()) if len(errors) >= _LEAST_CELLS}
    every = {"": list(itertools.chain(*by_unit.values())), **kept}
    return {unit: math.sqrt(sum(error**2 for error in errors) / len(errors)) for unit, errors in every.items()}


def over_best(cell: Sampled, errors: Mapping[str, float], leaders: int) -> float:
    """Return the time of the fastest of the first config and its leaders, over the best of the cell."""
    error = errors.get(cell.unit, errors[""])
    found = itertools.islice(promising(cell.features, cell.log_predicted, cell.first, error), leaders)
    return float(cell.us[[cell.first, *found]].min() / cell.us.min())


def by_prediction(cell: Sampled, leaders: int) -> float:
    """Return the same for the leaders by predicted time alone."""
    order = [int(at) for at in np.argsort(cell.log_predicted, kind="stable") if at != cell.first]
    return float(cell.us[[cell.first, *order[:leaders]]].min() / cell.us.min())


def table(cells: Sequence[Sampled], errors: Mapping[str, float]) -> list[str]:
    """Format a line for each number of leaders."""
    lines = []
    for count in COUNTS:
        ours, plain = [over_best(c, errors, count) for c in cells], [by_prediction(c, count) for c in cells]
        lines.append(
            f"first config and {count} leaders / best: {mean_of(ours):.3f}, worst {max(ours):.2f}; by predicted time alone "
            f"{mean_of(plain):.3f}, worst {max(plain):.2f}"
        )
    return lines


def samples() -> dict[str, list[Sampled]]:
    """Return the cells of all samples by GPU."""
    h200 = [
        *sampled(parse(SAMPLES.read_text()), timed_cells(), KEPT_TARGET),
        *sampled(parse(HOLDOUT.read_text()), holdout_cells(), KEPT_TARGET),
    ]
    h100 = sampled(parse(OTHER_SAMPLES.read_text()), swept_cells(), OTHER_TARGET)
    return {KEPT_TARGET: h200, OTHER_TARGET: h100}


def main() -> int:
    parser = argparse.ArgumentParser(description="score the leaders of first calls on the kept samples")
    parser.add_argument("--fit", action="store_true", help="write the errors that the product has")
    options = parser.parse_args()
    by_gpu = samples()
    for name, cells in by_gpu.items():
        errors = fit(itertools.chain(*(others for gpu, others in by_gpu.items() if gpu != name)))
        print(
            f"{name}: {len(cells)} cells, errors fitted elsewhere:",
            {k or "all": round(v, 2) for k, v in errors.items()},
        )
        print(*table(cells, errors), sep="\n")
    users = sampled(parse(UNFITTED.read_text()), unfitted_cells(), KEPT_TARGET, lambda facts: facts)
    print(f"{KEPT_TARGET}: {len(users)} kernels as users write them, errors of the product")
    print(*table(users, fitted().errors), sep="\n")
    if options.fit:
        errors = fit(itertools.chain(*by_gpu.values()))
        FITTED.write_text(write(dataclasses.replace(fitted(), errors=errors)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
