"""How well the predicted times of the cute backend's plans agree with kept ones, and which parameters fit them best.

    python benchmarks/cute_fit.py [--rounds N]

Parameters are fitted on one half of the products and scored on the other, both ways; then on all: those of products, of products
whose rows a cluster reduces, and of those that leave few rows to a second kernel. Printed are the error of predictions, and how
much longer the plan of the least predicted time takes than the best one that was measured.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import json
import math
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "test")]

import torch  # noqa: E402
from backends.cute import export, products, row_kernels, scaled_kernels  # noqa: E402

import helion  # noqa: E402
from benchmarks import cute  # noqa: E402
from helion import exc  # noqa: E402
from helion.backends.cute.plan.records import GemmPlan  # noqa: E402
from helion.backends.cute.resources.shape import ProductShape  # noqa: E402
from helion.backends.cute.resources.time import (  # noqa: E402
    CACHED_RATES,
    RATES,
    ROW_RATES,
    Rates,
    predicted_time,
    stays_cached,
)

RESULTS = ROOT / "benchmarks/results/cute"
TARGET = helion.hardware.target("h200")
LEAST_CHOICE = 4
"""Plans of a product that there have to be for a choice among them."""
START = dataclasses.replace(
    RATES,
    matrix=0.95, sustained=0.75, sustained_us=300.0, cooperative=0.97, promoted=0.72, l2=2.3, l2_of_few=4.7, memory=0.9,
    memory_of_few=2.7, multicast=0.75, stored=1.1, k_tile_us=0.15, overlap=4.0, launch_us=4.0, fill_us=0.8, tile_us=0.3,
    split_us=0.7,
)  # fmt: skip
"""Where fits begin: round numbers, by data sheets."""
NOT_FITTED = ("exchange_us", "workspace_us")


@dataclasses.dataclass(frozen=True)
class Kind:
    """Plans with parameters of their own: those in use, where a fit begins, and which of them it moves."""

    name: str
    rates: Rates
    start: Rates
    fitted: tuple[str, ...]


KINDS = (
    Kind("products", RATES, START, tuple(f.name for f in dataclasses.fields(Rates) if f.name not in NOT_FITTED)),
    Kind("rows of a cluster", ROW_RATES, ROW_RATES, ("launch_us", "ring_us", "slices_us", "k_tile_us")),
    Kind(
        "rows in memory",
        CACHED_RATES,
        RATES,
        ("fill_us", "stored", "l2", "l2_of_few", "memory", "memory_of_few", "k_tile_us", "split_us", "workspace_us"),
    ),
)


@dataclasses.dataclass(frozen=True)
class Sample:
    product: str
    plan: GemmPlan
    bytes_moved: int
    us: float

    def error(self, rates: Rates | None) -> float:
        return abs(math.log(predicted_time(self.plan, self.bytes_moved, TARGET, rates).total_us / self.us))


def samples() -> Iterator[Sample]:
    """Of the kernels of test/backends/cute/export.py, and of the configs that benchmarks/cute.py tries."""
    plans = export.exported_plans()
    for row in json.loads((RESULTS / "nvidia-h200.json").read_text())["rows"]:
        if row["name"] in plans and row["ok"] and "us" in row:
            yield _sample(plans[row["name"]], row["us"])
    others = {*row_kernels.CASES, *scaled_kernels.CASES}  # these have parameters of their own
    cases = {case.name: case for case in cute.timed_cases() if not case.batch and case.epilogue not in others}
    for row in json.loads((RESULTS / "nvidia-h200-times.json").read_text()):
        if row["case"] in cases:
            yield from _configs(cases[row["case"]], row)


def _configs(case: cute.Case, row: dict) -> Iterator[Sample]:
    kernel, args = case.arguments("meta")
    bound = kernel.bind(args, target="h200")
    depth = 128 if case.dtype in (cute.E4M3, cute.E5M2) else 64
    tried = {name: dict(cute.TRIED[name]) for name in row["us"] if name in cute.TRIED}
    for keys in tried.values():
        m, n, k = keys["block_sizes"]
        keys["block_sizes"] = [m, n, k * depth // 64]
    tried["cute"] = dict(eval(row["seed"], {"helion": helion}))
    for name, keys in tried.items():
        with contextlib.suppress(exc.InvalidConfig):  # it was legal when it was timed
            yield _sample(bound.plan(bound.config_spec.normalize(keys)).gemm, row["us"][name])


def row_samples() -> Iterator[Sample]:
    """Of products of few rows, which are reduced, by configs that benchmarks/cute.py does not try."""
    for row in json.loads((RESULTS / "nvidia-h200-rows.json").read_text()):
        kernel, args = cute.Case(name="", m=row["m"], n=row["n"], k=row["k"], epilogue=row["chain"]).arguments("meta")
        bound = kernel.bind(args, target="h200")
        for config, us in row["us"].items():
            keys = eval(config, {"helion": helion})
            yield _sample(bound.plan(bound.config_spec.normalize(keys)).gemm, us)


def _sample(plan: GemmPlan, us: float) -> Sample:
    problem = dataclasses.replace(plan.whole, a_pitch=0, b_pitch=0, d_pitch=0)
    moved = ProductShape(problem=plan.problem, blocks=(0, 1, 2), root=0).bytes_moved
    return Sample(product=repr(problem), plan=plan, bytes_moved=moved, us=us)


def loss(rates: Rates, rows: Sequence[Sample]) -> float:
    """What is off by much counts no more than what is off by 0.6."""
    return statistics.mean(min(row.error(rates), 0.6) ** 1.5 for row in rows)


def choices(rates: Rates | None, rows: Sequence[Sample]) -> list[float]:
    """By product: the time of the plan that would be chosen over that of the best."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        predicted = predicted_time(row.plan, row.bytes_moved, TARGET, rates).total_us
        found.setdefault(row.product, []).append((predicted, row.us))
    return [min(each)[1] / min(us for _, us in each) for each in found.values() if len(each) >= LEAST_CHOICE]


def fit(kind: Kind, rows: Sequence[Sample], rounds: int) -> Rates:
    """Random steps of one parameter at a time, which become smaller."""
    draw, best, found = random.Random(0), kind.start, loss(kind.start, rows)
    for at in range(rounds):
        name = draw.choice(kind.fitted)
        step = math.exp(draw.gauss(0, 0.3 * 0.8 ** (8 * at / rounds)))
        tried = dataclasses.replace(best, **{name: getattr(best, name) * step})
        if tried.multicast <= 1 and tried.memory <= 1 and 1.5 <= tried.overlap <= 64 and loss(tried, rows) < found:
            best, found = tried, loss(tried, rows)
    return best


def score(name: str, rates: Rates | None, rows: Sequence[Sample]) -> str:
    errors, ratios = [row.error(rates) for row in rows], choices(rates, rows)
    return (
        f"{name}: {len(rows)} timings, off by {100 * statistics.median(errors):.1f} % at the median;"
        f" {len(ratios)} choices, {statistics.geometric_mean(ratios):.3f} of the best, {max(ratios):.3f} at worst"
    )


def half(row: Sample) -> int:
    return hashlib.sha256(row.product.encode()).digest()[0] % 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=900, help="steps of a fit")
    options = parser.parse_args()
    products.values = lambda *shape, dtype, **how: torch.empty(*shape, dtype=dtype, device="meta")
    row_kernels.values = products.values
    few = [row for row in row_samples() if row.plan.by_rows or stays_cached(row.plan, TARGET)]
    by_rows = [row for row in few if row.plan.by_rows]
    for kind, rows in zip(KINDS, (list(samples()), by_rows, [row for row in few if not row.plan.by_rows]), strict=True):
        print(score(f"{kind.name} as they are", kind.rates, rows))
        for seen in range(2):
            rates = fit(kind, [row for row in rows if half(row) == seen], options.rounds)
            print(score(f"fitted on half {seen}, the other half", rates, [row for row in rows if half(row) != seen]))
        rates = fit(kind, rows, options.rounds)
        print(score("fitted on all", rates, rows))
        print({name: round(getattr(rates, name), 3) for name in kind.fitted})
    print(score("all of few rows, each with its own", None, few))


if __name__ == "__main__":
    main()
