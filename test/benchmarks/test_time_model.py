"""The script that scores predicted times, and the scores that the product has on the kept sweep."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from conftest import PROVE

from benchmarks.cells import swept_cells, timed_cells
from benchmarks.sweep import KEPT, RECENT, parse
from benchmarks.time_model import (
    RANGES,
    SPLITS,
    Score,
    Swept,
    Table,
    comparison,
    error_of,
    half_of,
    mean_of,
    of_product,
    ordered,
    rank_correlation,
    repeated,
    scores,
    summary,
    swept,
)
from helion.backends.triton.resources.time.parameters import Parameters, fitted


@functools.cache
def kept() -> tuple[Swept, ...]:
    """All cells if HELION_PROVE is set, else every eighth, and every second of the fewer ones with products."""
    cells = timed_cells()
    rows = parse(KEPT.read_text())
    known = {row.key for row in rows}
    timed = [cell for cell in cells if cell.key[1:] in known]
    products, others = ([cell for cell in timed if (cell.summed is not None) == which] for which in (True, False))
    return tuple(swept(rows, timed if PROVE else [*products[::2], *others[::8]]))


def test_predicted_times_order_the_kept_sweep() -> None:
    """Measured over all 260 cells: median rank correlation 0.74, first pick 1.06 of the best, 84 % with one of five
    within 1.02."""
    found = of_product(kept())
    assert np.median([score.correlation for score in found]) >= 0.65
    assert mean_of(score.first for score in found) <= 1.12
    assert np.mean([score.first_five <= 1.02 for score in found]) >= 0.7


def test_predicted_times_are_near_measured_ones() -> None:
    for products in (True, False):
        table = Table([cell for cell in kept() if cell.has_products == products])
        parameters = fitted().products if products else fitted().others
        off = np.log(table.times(parameters)) - table.log_us
        assert abs(np.median(off)) < 0.15 and np.quantile(np.abs(off), 0.75) < 0.35


def test_demands_are_those_that_the_product_predicts_from() -> None:
    """A kernel with masks that are known, one with matmuls of their own kernel, one whose operands are copied."""
    names = ("softcapped_window", "matmul_logsumexp", "biased_product")
    rows = [row for row in parse(RECENT.read_text()) if row.key[0] in names]
    cells = swept(rows, [cell for cell in swept_cells() if cell.kernel in names])
    assert {cell.kernel for cell in cells} == set(names)
    assert all(cell.beside.max() > 1 for cell in cells if cell.kernel == "matmul_logsumexp")
    table = Table(cells)
    predicted = np.concatenate([cell.predicted for cell in cells])
    assert table.times(fitted().products) == pytest.approx(predicted)


def test_times_that_predictions_keep_have_demands_too() -> None:
    cells = timed_cells()[:1]
    row = next(row for row in parse(KEPT.read_text()) if row.key == cells[0].key[1:])
    (cell,) = swept([row, row, row], cells)
    assert cell.demands[0] and cell.demands[0] == cell.demands[1] == cell.demands[2]


def test_parameters_of_the_product_are_within_what_is_possible() -> None:
    for found in (fitted().products, fitted().others):
        for name, (_, low, high) in RANGES.items():
            assert low * 0.999 <= getattr(found, name) <= high * 1.001, name
    assert set(RANGES) == set(Parameters.__dataclass_fields__)


def test_kernels_are_on_one_side_and_both_sides_have_some() -> None:
    kernels = {cell.kernel for cell in kept()}
    halves = {split: {kernel for kernel in kernels if half_of(kernel, split)} for split in range(SPLITS)}
    assert all(half and half != kernels for half in halves.values())
    assert len(set(map(frozenset, halves.values()))) == SPLITS


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 40], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 3], [5, 5, 5], 0.0),
        ([1, 1, 2, 3], [1, 2, 2, 4], 0.8333333),  # mean ranks 1.5 1.5 3 4 and 1 2.5 2.5 4
    ],
)
def test_rank_correlation_has_mean_ranks(a: list[float], b: list[float], expected: float) -> None:
    assert rank_correlation(np.array(a, float), np.array(b, float)) == pytest.approx(expected)


def test_pairs_within_the_noise_have_no_order() -> None:
    measured = np.array([100.0, 101.0, 110.0])
    assert ordered(np.array([2.0, 1.0, 3.0]), measured) == 1.0
    assert ordered(np.array([2.0, 3.0, 2.5]), measured) == 0.5
    assert ordered(np.array([1.0, 1.0, 1.0]), measured) == 0.5
    assert ordered(np.array([1.0, 2.0]), np.array([1.0, 1.01])) == 1.0


def test_a_second_measurement_orders_better_than_any_model_could() -> None:
    found = repeated(kept())
    assert 0.95 < np.median([score.correlation for score in found]) < 1.0
    assert np.mean([score.ordered for score in found]) > 0.95


def test_scores_are_those_of_the_predicted_order() -> None:
    cell = next(cell for cell in kept() if len(cell.us) >= 8)
    (best,) = scores(Table([cell]), cell.us)
    assert best.ordered == 1.0
    assert (best.correlation, best.first, best.first_five) == (pytest.approx(1.0), 1.0, 1.0)
    (worst,) = scores(Table([cell]), -cell.us)
    assert worst.first == cell.us.max() / cell.us.min()


def test_reports_name_every_kernel() -> None:
    found = [
        Score(key=("a", "1 row", "float32"), correlation=0.5, ordered=0.6, first=1.1, first_five=1.0, seed=1.2),
        Score(key=("b", "1 row", "float32"), correlation=0.9, ordered=0.8, first=1.3, first_five=1.1, seed=None),
    ]
    assert summary(found) == (
        "2 cells: median rank correlation 0.700; first pick / best 1.196, worst kernel 1.300; one of five within 1.02: 50%; "
        "pairs in order: 70%; first seed / best 1.200 of 1"
    )
    assert [line.split()[0] for line in comparison(found)] == ["kernel", "a", "b"]
    assert comparison(found)[1].split()[1:] == ["1", "0.50", "1.100", "1.10", "1.200", "1.20"]


def test_errors_are_those_within_cells() -> None:
    table = Table(kept()[:3])
    whole = np.array([2.0, 0.5, 1.0])[table.cell]
    assert error_of(table, np.exp(table.log_us) * whole) == pytest.approx(0.0, abs=1e-9)
    noise = np.random.default_rng(0).normal(0, 0.1, len(table.log_us))
    assert 0.07 < error_of(table, np.exp(table.log_us + noise)) < 0.13
