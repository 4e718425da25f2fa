"""The choice among candidates: by filled waves, and by predicted times."""

from __future__ import annotations

import pytest
from harness import facts_of, tensor
from sample_kernels import matmul

from helion.backends.triton.heuristics.choose import fastest, full_first, unless_faster
from helion.backends.triton.heuristics.sizing import programs_of
from helion.hardware import target

H100 = target("h100")


@pytest.mark.parametrize(
    ("programs", "chosen"),
    [
        ((30, H100.num_sms, 4000), H100.num_sms),  # the first that fills the waves
        ((H100.num_sms + 1, H100.num_sms // 2, 7), H100.num_sms + 1),  # else the fewest idle SMs
        ((), None),
    ],
)
def test_the_first_that_fills_the_waves(programs: tuple[int, ...], chosen: int | None) -> None:
    assert full_first(programs, lambda each: each, H100) == chosen


@pytest.mark.parametrize(
    ("others", "chosen"),
    [((), "first"), ((("a", 9.0),), "a"), ((("a", 9.1),), "first"), ((("a", 8.0), ("b", 7.5), ("c", 7.5)), "b")],
)
def test_another_must_be_faster_by_the_ratio(others: tuple[tuple[str, float], ...], chosen: str) -> None:
    assert unless_faster(("first", 10.0), others, 0.9) == chosen


def test_a_candidate_without_a_time_is_replaced_by_any() -> None:
    assert unless_faster(("first", float("inf")), (("a", 1e6),), 0.5) == "a"
    assert fastest(()) is None and fastest((("a", 2.0), ("b", 1.0), ("c", 1.0))) == ("b", 1.0)


def test_programs_of_the_grid_and_of_one_loop() -> None:
    facts = facts_of(matmul, tensor(1000, 96), tensor(96, 300))
    m, n = facts.grid_axes
    assert programs_of(facts, {m: 64, n: 128}) == programs_of(facts, {m: 64, n: 128}, 0) == 16 * 3
    assert programs_of(facts, {m: 64, n: 128}, 1) == 1
