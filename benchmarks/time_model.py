"""How well predicted times rank configs: fitted on half of the kernels of a sweep, scored on the other half.

    python benchmarks/time_model.py              several halves held out in turn, then what the product has, by kernel
    python benchmarks/time_model.py --fit        writes the parameters that the product has, from all kernels

Neither needs a GPU: the times are those of benchmarks/results/nvidia-h200-sweeps.tsv and nvidia-h200-samples.tsv, with
matmuls of nvidia-h200-recent-samples.tsv in the product. The fit stays near the rates that benchmarks/calibrate.py has measured. What the product has is scored on
nvidia-h200-holdout.tsv and nvidia-h200-unfitted-samples.tsv too, which no fit sees. Fitting takes scipy (``pip install --group fit``).
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.cells import Cell, holdout_cells, swept_cells, timed_cells, unfitted_cells  # noqa: E402
from benchmarks.sweep import (  # noqa: E402
    HOLDOUT,
    KEPT,
    KEPT_TARGET,
    OTHER_SAMPLES,
    OTHER_TARGET,
    RECENT,
    SAMPLES,
    UNFITTED,
    Timed,
    measured_facts,
    parse,
)
from helion._compiler.facts.records import KernelFacts  # noqa: E402
from helion.autotuner.proposal import Predicted  # noqa: E402
from helion.backends.protocol import Backend  # noqa: E402
from helion.backends.triton.resources.time import predict  # noqa: E402
from helion.backends.triton.resources.time.launch import Launch  # noqa: E402
from helion.backends.triton.resources.time.model import parts  # noqa: E402
from helion.backends.triton.resources.time.parameters import FITTED, Parameters, fitted, write  # noqa: E402
from helion.backends.triton.resources.time.record import Demand  # noqa: E402
from helion.hardware import Target, target  # noqa: E402

Array = npt.NDArray[np.float64]
FactsOf = Callable[[KernelFacts], KernelFacts]

CALIBRATION = ROOT / "benchmarks" / "results" / "calibration" / "nvidia-h200.json"
#: Rates of one unit each, which mean the same in a kernel; a wait or a product in a loop is more than the bare one.
HELD = ("launch_us", "memory_share", "cache_speedup", "program_us", "warp_us", "special_ops")
#: Parameters of memory and its cache, which few kernels with matmuls wait for: a fit to these leaves them as they are.
OF_MEMORY = (
    "memory_share",
    "cache_speedup",
    "sector_share",
    "written_share",
    "near_share",
    "crowded",
    "crowd_share",
    "run_share",
    "kept_share",
    "lost_share",
    "first_share",
    "last_share",
    "first_others",
    "others_share",
    "shifted_share",
    "line_atomic_us",
    "lane_atomic_us",
)
#: Ways to halve the kernels that are scored: one alone may be lucky.
SPLITS = 3
#: The sweep's times of the same config differ by 1.2 % at the median, from the first to the last of several.
NOISE = 0.01
#: What the kept sweep was measured with.
MEASURED = {"device": "H200", "date": "2026-11-20", "versions": "torch 2.11, CUDA 13.0, Triton 3.6"}
#: Errors of a model within a cell, to see which of them a rank correlation asks for.
ERRORS = (0.03, 0.05, 0.08, 0.1, 0.15)
#: Cells with fewer configs say nothing about order.
LEAST_CONFIGS = 5
#: A config that is this near to the best is as good.
NEAR = 1.02

#: Where each parameter begins, and between what it stays: what is physically possible.
RANGES: Mapping[str, tuple[float, float, float]] = {
    "launch_us": (5, 0.5, 9),
    "memory_share": (0.88, 0.82, 0.95),
    "cache_speedup": (2.5, 1.5, 5),
    "sector_share": (0.6, 0.01, 1),
    "written_share": (0.5, 0.001, 10),
    "line_cycles": (2, 0.3, 6),
    "near_share": (0.7, 0.05, 1),
    "crowded": (0.01, 1e-4, 0.1),
    "crowd_share": (0.08, 0.01, 1),
    "run_share": (0.01, 1e-4, 0.1),
    "kept_share": (0.2, 0.05, 0.6),
    "lost_share": (0.7, 0.1, 1.5),
    "first_share": (0.03, 0.001, 0.3),
    "first_others": (0.25, 0.001, 0.5),
    "others_share": (0.5, 0.001, 1),
    "shifted_share": (0.8, 0.001, 1),
    "last_share": (0.005, 0.0005, 0.05),
    "simple_ops": (2, 1, 3.5),
    "special_ops": (6, 2, 10),
    "special_issue": (2, 0.5, 8),
    "walked_ops": (0.3, 0.001, 3),
    "walked_special": (0.3, 0.001, 3),
    "access_ops": (3, 1, 10),
    "line_atomic_us": (0.0054, 0.0006, 0.05),
    "lane_atomic_us": (0.00205, 0.0005, 0.01),
    "program_ops": (50, 10, 200),
    "dependency": (2, 1.5, 5),
    "step_waits": (1, 0.01, 2),
    "step_ops": (0.3, 0.001, 4),
    "program_us": (0.055, 0.01, 0.15),
    "warp_us": (0.006, 0.001, 0.03),
    "start_us": (0.524, 0.1, 0.6),
    "wait_us": (0.7, 0.05, 1),
    "stored_wait": (5, 0.5, 8),
    "looped_wait": (0.5, 0.05, 1.5),
    "boxed_wait": (1.5, 0.05, 5),
    "fenced_wait": (0.5, 0.05, 5),
    "byte_us": (1e-4, 3e-6, 1e-3),
    "fill_us": (0.7, 0.1, 2),
    "pipelined_us": (0.7, 0.02, 3),
    "port_share": (1, 0.001, 3),
    "exchange_us": (0.1, 0.001, 2),
    "barrier_us": (0.1, 0.005, 1),
    "shuffle_us": (0.01, 5e-4, 0.1),
    "store_us": (0.05, 0.001, 1),
    "descriptor_us": (0.5, 0.01, 3),
    "repeated": (0.5, 0.01, 1),
    "turned_us": (1e-5, 1e-7, 1e-3),
    "hidden": (0.5, 0.01, 1),
    "matrix": (1.2, 1.05, 2),
    "synchronous": (1.6, 1.4, 4),
    "converted": (3, 1, 8),
    "product_us": (0.05, 0.001, 0.6),
    "operand_share": (0.5, 0.01, 1.5),
    "spill_free": (1, 0.7, 1.3),
    "spill_cost": (1.2, 0.8, 20),
    "abandoned": (1, 0.01, 20),
    "shuttled": (0.1, 0.001, 10),
    "accumulator_spill": (2, 0.1, 20),
    "spill_us": (1e-5, 1e-6, 2e-4),
    "spill_misses": (0.5, 0.01, 10),
    "tail": (0.4, 0.01, 1),
    "skew": (0.5, 0.1, 1),
    "drain": (0.3, 0.001, 1.5),
    "sharp": (10, 4, 30),
    "lone": (3, 1, 12),
    "joined": (1, 0.01, 10),
    "chained": (1, 0.3, 12),
    "together": (3, 1, 12),
    "staged": (4, 1, 12),
    "uneven": (0.5, 0.001, 1),
}
#: Weights of the fit: of parameters that leave where they begin, of a cell's absolute times beside the order in it, and
#: the logarithm of a time over the best of its cell from which on it counts less.
_STAY, _ABSOLUTE, _SLOW = 0.02, 0.5, 0.5
#: Of a measured parameter, how far the fit may go from it: a kernel is no benchmark of one unit. The same of one that stays.
_MEASURED, _STAYS = 0.15, 0.001
#: Errors above this count less than their square.
_LARGE = 0.03
_STEPS = 40


@dataclasses.dataclass(frozen=True, kw_only=True)
class Swept:
    """A cell of a sweep: times in microseconds, those that the product predicts, and the place of the first seed.

    ``demands`` are those of each config's grid loops, with matmuls if the kernel has any. ``beside`` are the microseconds
    predicted for everything else: the rest of unfused kernels, copies and partials.
    """

    key: tuple[str, str, str]
    us: Array
    predicted: Array
    demands: tuple[tuple[Demand, ...], ...]
    beside: Array
    configs: tuple[Mapping[str, object], ...]
    seed: int | None

    @property
    def kernel(self) -> str:
        return self.key[0]

    @property
    def has_products(self) -> bool:
        return any(demand.products for demand in self.demands[0])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """Of one cell: rank correlation, the share of pairs further apart than the noise that are in order, and times over the
    best of the config that is predicted to be the first, of the best among the first five, and of the first seed."""

    key: tuple[str, str, str]
    correlation: float
    ordered: float
    first: float
    first_five: float
    seed: float | None


def swept(
    rows: Iterable[Timed], cells: Iterable[Cell], on: str = KEPT_TARGET, timed: FactsOf = measured_facts
) -> list[Swept]:
    """The cells with rows, each once and in their order. ``timed`` gives the facts of the code that was timed."""
    by_cell: dict[tuple[str, str, str], list[Timed]] = {}
    for row in rows:
        by_cell.setdefault(row.key, []).append(row)
    return [_swept(cell, found, on, timed) for cell in cells if (found := by_cell.pop(cell.key[1:], None))]


def unfitted() -> list[Swept]:
    """The kernels of benchmarks/unfitted. Rows of windows share loads in the code that was timed."""
    return swept(parse(UNFITTED.read_text()), unfitted_cells(), timed=lambda facts: facts)


def _swept(cell: Cell, timed: Sequence[Timed], on: str, facts_of: FactsOf) -> Swept:
    bound = cell.function.bind(cell.args, target=on)
    analysis, space = bound._analysis, bound.config_spec
    configs = [space.normalize(row.config) for row in timed]
    seed = analysis.seeds.seeds[0].config if analysis.seeds.seeds else None
    facts = facts_of(analysis.facts)
    counted = [_counted(analysis.backend, facts, space.decode(config), target(on)) for config in configs]
    return Swept(
        key=cell.key[1:],
        us=np.array([row.microseconds for row in timed]),
        predicted=np.array([us for us, _, _ in counted]),
        demands=tuple(asked for _, asked, _ in counted),
        beside=np.array([us for _, _, us in counted]),
        configs=tuple(row.config for row in timed),
        seed=configs.index(seed) if seed in configs else None,
    )


def _counted(
    backend: Backend[Any], facts: KernelFacts, decisions: Any, on: Target
) -> tuple[float, tuple[Demand, ...], float]:
    """The predicted time, the demands that a fit changes, and the microseconds of everything else."""
    calls: list[tuple[bool, list[Demand]]] = []

    def noted(facts: KernelFacts, launch: Launch, predicted: Predicted, target: Target) -> list[Demand]:
        found = original(facts, launch, predicted, target)
        calls.append((bool(facts.matmuls), found))
        return found

    original = predict.demanded
    # a time that was kept from an earlier call has no demands
    with mock.patch.object(predict, "demanded", noted), mock.patch.multiple(predict, _RECENT={}, _RECENTLY=0):
        us = backend.predict(facts, decisions, on).time_us
    products = any(has_products for has_products, _ in calls)
    asked = tuple(each for has_products, found in calls if has_products == products for each in found)
    parameters = fitted().products if products else fitted().others
    return us, asked, us - sum(parts(each, parameters, on).total for each in asked)


class Table:
    """The demands of many cells as one array, so that one evaluation of the model gives all times."""

    def __init__(self, cells: Sequence[Swept], on: str = KEPT_TARGET) -> None:
        self.cells, self.target = cells, target(on)
        each = [config for cell in cells for config in cell.demands]
        rows = np.array([demand for config in each for demand in config], dtype=np.float64)
        self.beside = np.concatenate([cell.beside for cell in cells])
        self.asked = Demand(*rows.T)
        self.config = np.repeat(np.arange(len(each)), [len(config) for config in each])
        self.cell = np.repeat(np.arange(len(cells)), [len(cell.us) for cell in cells])
        self.log_us = np.log(np.concatenate([cell.us for cell in cells]))
        self.count = np.bincount(self.cell)

    def times(self, parameters: Parameters) -> Array:
        return self.beside + np.bincount(self.config, weights=parts(self.asked, parameters, self.target, np).total)

    def mean(self, values: Array) -> Array:
        """Of each cell."""
        return np.bincount(self.cell, weights=values) / self.count

    def residuals(self, parameters: Parameters) -> Array:
        """Errors of logarithms: within each cell, and of each cell as a whole."""
        error = np.log(self.times(parameters)) - self.log_us
        whole = self.mean(error)
        apart = self.log_us - self.mean(self.log_us)[self.cell]
        spread = np.sqrt(self.mean(apart**2))
        best = np.full(len(self.cells), np.inf)
        np.minimum.at(best, self.cell, self.log_us)
        slow = 1 + (self.log_us - best[self.cell]) / _SLOW
        weight = 0.3 / np.sqrt(self.count[self.cell] * (spread[self.cell] + NEAR - 1) * slow)
        return np.concatenate([(error - whole[self.cell]) * weight, _ABSOLUTE * whole])

    def by_cell(self, values: Array) -> list[Array]:
        return np.split(values, np.cumsum(self.count)[:-1])


def fit(table: Table, measured: Mapping[str, float] | None = None) -> Parameters:
    """The parameters that order the configs of each cell best, by least squares; those that were ``measured`` stay near.

    Of kernels with matmuls, those of memory stay as they are.
    """
    from scipy.optimize import least_squares

    known = {name: _near(value, RANGES[name]) for name, value in (measured or {}).items()}
    if table.cells[0].has_products:
        own = fitted().products
        known |= {name: _near(getattr(own, name), RANGES[name], _STAYS) for name in OF_MEMORY}
    start, low, high = np.array(list({**RANGES, **known}.values())).T

    def named(scaled: Array) -> Parameters:
        return Parameters(**dict(zip(RANGES, map(float, scaled * start), strict=True)))

    def residuals(scaled: Array) -> Array:
        return np.concatenate([table.residuals(named(scaled)), _STAY * np.log(scaled)])

    bounds = (low / start, high / start)
    found = least_squares(
        residuals, np.ones(len(start)), bounds=bounds, loss="soft_l1", f_scale=_LARGE, max_nfev=_STEPS
    )
    return named(found.x)


def _near(value: float, bounds: tuple[float, float, float], off: float = _MEASURED) -> tuple[float, float, float]:
    """Where a measured parameter begins, and between what it stays."""
    _, low, high = bounds
    value = min(max(value, low), high)
    return value, min(value, max(low, value * (1 - off))), max(value, min(high, value * (1 + off))) + 1e-12


def scores(table: Table, times: Array) -> list[Score]:
    """Of the cells with enough configs."""
    return scores_of(zip(table.cells, table.by_cell(times), strict=True))


def of_product(cells: Iterable[Swept]) -> list[Score]:
    """The same of the times that the product predicts, which know what rewrites make of a kernel."""
    return scores_of((cell, cell.predicted) for cell in cells)


def scores_of(each: Iterable[tuple[Swept, Array]]) -> list[Score]:
    return [_score(cell, predicted) for cell, predicted in each if len(cell.us) >= LEAST_CONFIGS]


def _score(cell: Swept, predicted: Array) -> Score:
    order, best = np.argsort(predicted, kind="stable"), cell.us.min()
    return Score(
        key=cell.key,
        correlation=rank_correlation(predicted, cell.us),
        ordered=ordered(predicted, cell.us),
        first=cell.us[order[0]] / best,
        first_five=cell.us[order[:5]].min() / best,
        seed=None if cell.seed is None else cell.us[cell.seed] / best,
    )


def rank_correlation(a: Array, b: Array) -> float:
    """Spearman's, with mean ranks for equal values; 0 where all are equal."""
    ranks = [_ranks(a), _ranks(b)]
    if not all(each.std() for each in ranks):
        return 0.0
    return float(np.corrcoef(*ranks)[0, 1])


def ordered(predicted: Array, measured: Array) -> float:
    """Of pairs that measure further apart than twice the noise, those that are predicted in the same order; equal
    predictions count a half."""
    apart = np.subtract.outer(np.log(measured), np.log(measured))
    order = np.sign(np.subtract.outer(predicted, predicted))[apart > 2 * NOISE]
    return float((1 + order).mean() / 2) if order.size else 1.0


def repeated(cells: Sequence[Swept], off: float = NOISE, seed: int = 0) -> list[Score]:
    """Scores of times that chance puts ``off`` by this part. By the noise of a measurement, it is what no model can exceed."""
    table, noise = Table(cells), np.random.default_rng(seed)
    return scores(table, np.exp(table.log_us + noise.normal(0, off, len(table.log_us))))


def error_of(table: Table, times: Array) -> float:
    """How far off times are within a cell, at the median of cells: the root mean square of logarithms."""
    off = np.log(times) - table.log_us
    return float(np.median(np.sqrt(table.mean((off - table.mean(off)[table.cell]) ** 2))))


def _ranks(values: Array) -> Array:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]


def half_of(kernel: str, split: int = 0) -> int:
    """0 or 1, by the kernel's name alone: cells of one kernel are never on both sides."""
    return hashlib.md5(kernel.encode()).digest()[-1 - split] % 2


def mean_of(ratios: Iterable[float]) -> float:
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def summary(found: Sequence[Score]) -> str:
    kernels: dict[str, list[float]] = {}
    for score in found:
        kernels.setdefault(score.key[0], []).append(score.first)
    near = sum(score.first_five <= NEAR for score in found) / len(found)
    return (
        f"{len(found)} cells: median rank correlation {np.median([score.correlation for score in found]):.3f}; "
        f"first pick / best {mean_of(score.first for score in found):.3f}, worst kernel "
        f"{max(map(mean_of, kernels.values())):.3f}; one of five within {NEAR}: {near:.0%}; pairs in order: "
        f"{np.mean([score.ordered for score in found]):.0%}{_of_seeds(found)}"
    )


def _of_seeds(found: Sequence[Score]) -> str:
    """How far first seeds are from the best, where the sweep has timed any."""
    seeds = [score.seed for score in found if score.seed is not None]
    return f"; first seed / best {mean_of(seeds):.3f} of {len(seeds)}" if seeds else ""


def comparison(found: Sequence[Score]) -> list[str]:
    """Of each kernel, the model's first pick beside the first seed, where the sweep has timed both."""
    kernels: dict[str, list[Score]] = {}
    for score in found:
        kernels.setdefault(score.key[0], []).append(score)
    lines = [f"{'kernel':28} cells  correlation  model / best  worst  rule / best  worst"]
    for kernel, group in sorted(kernels.items()):
        both = [(score.first, score.seed) for score in group if score.seed is not None]
        ours, seeds = [first for first, _ in both], [seed for _, seed in both]
        lines.append(
            f"{kernel:28} {len(group):5d} {np.median([s.correlation for s in group]):12.2f} "
            f"{mean_of(ours):13.3f} {max(ours, default=math.nan):6.2f} {mean_of(seeds):12.3f} {max(seeds, default=math.nan):6.2f}"
        )
    return lines


def held_out(
    cells: Sequence[Swept], measured: Mapping[str, float], split: int
) -> tuple[list[tuple[str, str]], list[Score]]:
    """What both directions come to, as name and summary, and the scores of all cells, each by parameters of the other half."""
    lines, scored = [], []
    for fitted_half in (0, 1):
        sides = [[c for c in cells if (half_of(c.kernel, split) == fitted_half) == inside] for inside in (True, False)]
        inside, outside = map(Table, sides)
        parameters = fit(inside, measured)
        lines.append((f"split {split}, half {fitted_half}, fitted", summary(scores(inside, inside.times(parameters)))))
        found = scores(outside, outside.times(parameters))
        lines.append((f"split {split}, half {1 - fitted_half}, held out", summary(found)))
        scored += found
    return lines, scored


def main() -> int:
    parser = argparse.ArgumentParser(description="score predicted times on the kept sweep")
    parser.add_argument("--fit", action="store_true", help="write the parameters that the product has")
    parser.add_argument(
        "--calibration", type=Path, default=CALIBRATION, help="what benchmarks/calibrate.py has written"
    )
    options = parser.parse_args()
    parameters = json.loads(options.calibration.read_text())["parameters"]
    measured = {name: parameters[name] for name in HELD}
    rows, samples = (parse(file.read_text()) for file in (KEPT, SAMPLES))
    sampled = {row.key for row in samples}
    cells = swept([*rows, *samples], timed_cells())
    groups = {
        "with products": [cell for cell in cells if cell.has_products],
        "without": [cell for cell in cells if not cell.has_products],
    }
    if options.fit:
        later = swept(parse(RECENT.read_text()), swept_cells())
        products = fit(Table([*groups["with products"], *(cell for cell in later if cell.has_products)]), measured)
        others = fit(Table(groups["without"]), measured)
        FITTED.write_text(write(dataclasses.replace(fitted(), **MEASURED, products=products, others=others)))
        fitted.cache_clear()
        cells = swept([*rows, *samples], timed_cells())
    everything = []
    for split in range(SPLITS):
        for name, group in groups.items():
            lines, scored = held_out(group, measured, split)
            everything += scored
            print(*(f"{name}, {what}: {line}" for what, line in lines), sep="\n")
    for name, found in (
        ("held out", everything),
        ("parameters of the product", of_product(cells)),
        ("measured again", repeated(cells)),
    ):
        for what, inside in (("kept sweep", False), ("samples", True)):
            print(f"{what}, {name}: {summary([score for score in found if (score.key in sampled) == inside])}")
    for group, parameters in zip(groups.items(), (fitted().products, fitted().others), strict=True):
        table = Table(group[1])
        print(f"{group[0]}, error within a cell: {error_of(table, table.times(parameters)):.3f}")
    for off in ERRORS:
        print(f"times {off:.0%} off: {summary(repeated(cells, off))}")
    held = of_product(swept(parse(HOLDOUT.read_text()), holdout_cells()))
    print(f"kernels that nothing is fitted to, parameters of the product: {summary(held)}")
    print(f"kernels as users write them, which nothing is fitted to: {summary(of_product(unfitted()))}")
    recent = of_product(swept(parse(RECENT.read_text()), swept_cells()))
    print(f"samples around later seeds, to which matmuls are fitted too: {summary(recent)}")
    other = swept(parse(OTHER_SAMPLES.read_text()), swept_cells(), OTHER_TARGET)
    print(f"{OTHER_TARGET}, which nothing is fitted to: {summary(of_product(other))}")
    print("", "kernels that nothing is fitted to:", *comparison(held), sep="\n")
    print("", "held out, by kernel, all splits:", *comparison(everything), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
