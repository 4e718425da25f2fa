"""How well the predicted times of the cute backend's plans agree with kept ones, and which parameters fit them best.

    python benchmarks/cute_fit.py [--rounds N]

Parameters are fitted on one half of the products and scored on the other, both ways; then on all. Printed are the error
of predictions, and how much longer the plan of the least predicted time takes than the best one that was measured.
"""

from __future__ import annotations

import argparse
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
from helion.backends.cute.plan.records import GemmPlan  # noqa: E402
from helion.backends.cute.resources.shape import ProductShape  # noqa: E402
from helion.backends.cute.resources.time import RATES, Rates, predicted_time  # noqa: E402

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
class Sample:
    product: str
    plan: GemmPlan
    bytes_moved: int
    us: float

    def error(self, rates: Rates) -> float:
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
        yield _sample(bound.plan(bound.config_spec.normalize(keys)).gemm, row["us"][name])


def _sample(plan: GemmPlan, us: float) -> Sample:
    problem = dataclasses.replace(plan.problem, a_pitch=0, b_pitch=0, d_pitch=0)
    moved = ProductShape(problem=plan.problem, blocks=(0, 1, 2), root=0).bytes_moved
    return Sample(product=repr(problem), plan=plan, bytes_moved=moved, us=us)


def loss(rates: Rates, rows: Sequence[Sample]) -> float:
    """What is off by much counts no more than what is off by 0.6."""
    return statistics.mean(min(row.error(rates), 0.6) ** 1.5 for row in rows)


def choices(rates: Rates, rows: Sequence[Sample]) -> list[float]:
    """By product: the time of the plan that would be chosen over that of the best."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        predicted = predicted_time(row.plan, row.bytes_moved, TARGET, rates).total_us
        found.setdefault(row.product, []).append((predicted, row.us))
    return [min(each)[1] / min(us for _, us in each) for each in found.values() if len(each) >= LEAST_CHOICE]


def fit(rows: Sequence[Sample], rounds: int) -> Rates:
    """Random steps of one parameter at a time, which become smaller."""
    draw, best, found = random.Random(0), START, loss(START, rows)
    names = [each.name for each in dataclasses.fields(Rates) if each.name not in NOT_FITTED]
    for at in range(rounds):
        name = draw.choice(names)
        step = math.exp(draw.gauss(0, 0.3 * 0.8 ** (8 * at / rounds)))
        tried = dataclasses.replace(best, **{name: getattr(best, name) * step})
        if tried.multicast <= 1 and tried.memory <= 1 and 1.5 <= tried.overlap <= 8 and loss(tried, rows) < found:
            best, found = tried, loss(tried, rows)
    return best


def score(name: str, rates: Rates, rows: Sequence[Sample]) -> str:
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
    rows = list(samples())
    print(score("as they are", RATES, rows))
    for seen in range(2):
        rates = fit([row for row in rows if half(row) == seen], options.rounds)
        print(score(f"fitted on half {seen}, the other half", rates, [row for row in rows if half(row) != seen]))
    rates = fit(rows, options.rounds)
    print(score("fitted on all", rates, rows))
    print({each.name: round(getattr(rates, each.name), 3) for each in dataclasses.fields(Rates)})


if __name__ == "__main__":
    main()
