"""Kernels that no rule was fitted to: their results, and the script that times them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import helion
from benchmarks import unfitted_times
from benchmarks.seeds import bound_of, relative_error
from benchmarks.timing import RecordedTimer
from benchmarks.unfitted import CELLS
from helion._testing import map_tensors
from helion.runtime.bound import BoundKernel
from helion.settings import Settings

#: Kernels that order or number the elements of rows, which takes sizes that are known at compilation.
KNOWN_SIZES = ("nucleus", "quartiles")


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", CELLS)
def test_results_are_those_of_the_reference(name: str, static: bool) -> None:
    cell = CELLS[name]
    settings = Settings(**{**cell.kernel.settings.to_dict(), "static_shapes": static})
    kernel = helion.kernel(cell.kernel.fn, settings=settings)
    args = cell.arguments("cpu", True)
    if name in KNOWN_SIZES and not static:
        with pytest.raises(helion.exc.Base, match=r"specialize it with hl\.specialize|mark it with hl\.specialize"):
            kernel(*args)
        return
    got, expected = kernel(*map_tensors(args, torch.clone)), cell.reference(*map_tensors(args, torch.clone))
    assert relative_error(got, expected) <= bound_of(args)


@pytest.mark.parametrize("name", CELLS)
def test_arguments_have_the_same_kinds_in_both_sizes(name: str) -> None:
    def kinds(small: bool) -> list[Any]:
        args = CELLS[name].arguments("meta", small)
        return [(each.dtype, each.dim()) if isinstance(each, torch.Tensor) else type(each) for each in args]

    assert kinds(True) == kinds(False)


RECORDED = {"default": 10.0, "tuned": 8.0, "first_call": 9.0, "compile": 12.0}


def measured(name: str, **given: Any) -> dict[str, Any]:
    timer = RecordedTimer({which: [value] * 11 for which, value in RECORDED.items()})
    options = {"small": True, "tuned": 0.0, "timer": lambda: timer, "compiled": lambda function: function} | given
    return unfitted_times.measured(name, "cpu", **options)


def test_a_row_has_configs_errors_and_times_of_all_variants() -> None:
    row = measured("winsorize")
    assert row["microseconds"] == {"default": 10.0, "first_call": 9.0, "compile": 12.0}
    assert row["configs"].keys() == {"default", "first_call"} and row["errors"].keys() == row["microseconds"].keys()
    assert "failures" not in row


def test_a_first_call_precedes_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    found, said = helion.Config(block_sizes=[16]), list[str]()

    @contextlib.contextmanager
    def turn() -> Iterator[None]:
        said.append("turn")
        yield

    def autotune(bound: Any, *_: Any, **options: Any) -> helion.Config:
        said.append("search")
        return found

    monkeypatch.setattr(unfitted_times, "turn", turn)
    monkeypatch.setattr(BoundKernel, "autotune", autotune)
    row = measured("winsorize", tuned=1.0)
    assert said == ["turn", "search", "turn"]
    assert row["configs"]["tuned"]["block_sizes"] == [16] != row["configs"]["first_call"]["block_sizes"]
    assert row["microseconds"] == RECORDED and "failures" not in row


def test_the_default_is_written_before_a_first_call_that_may_replace_its_backend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short, said = BoundKernel.short_config, list[str]()

    @contextlib.contextmanager
    def turn() -> Iterator[None]:
        said.append("turn")
        yield

    def shortened(bound: Any, config: helion.Config) -> helion.Config:
        said.append("short")
        return short(bound, config)

    monkeypatch.setattr(unfitted_times, "turn", turn)
    monkeypatch.setattr(BoundKernel, "short_config", shortened)
    measured("winsorize")
    assert said == ["short", "turn", "short"]


def test_a_wrong_or_failing_baseline_has_no_time() -> None:
    def fails(*_: Any) -> torch.Tensor:
        raise ValueError("not for this device")

    wrong = measured("winsorize", compiled=lambda function: lambda *args: function(*args) + 1)
    failed = measured("winsorize", compiled=lambda _: fails)
    for row, why in ((wrong, "wrong: the result is"), (failed, "ValueError: not for this device")):
        assert row["microseconds"].keys() == {"default", "first_call"}
        assert row["failures"]["compile"].startswith(why)


def test_a_baseline_that_draws_other_numbers_has_the_same_norm() -> None:
    row = measured("linear_dropout_residual")
    assert "compile" in row["microseconds"] and row["errors"]["default"] < 1e-2
    wrong = measured("linear_dropout_residual", compiled=lambda function: lambda *args: 1.1 * function(*args))
    assert wrong["failures"]["compile"].startswith("wrong: the result is")
    assert "compile" not in wrong["microseconds"]


def test_kernels_that_write_into_arguments_get_fresh_ones() -> None:
    row = measured("adamw_half_states")
    assert max(row["errors"].values()) < 1e-3


def test_unknown_kernels_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        unfitted_times.main(["--kernels", "winsorize,nothing"])
    assert "no kernels nothing; there are confidence" in capsys.readouterr().err


def test_summary_cuts_large_ratios() -> None:
    rows = [{"microseconds": RECORDED}, {"microseconds": {"default": 1.0, "compile": 9.0}}, {"why": "no time left"}]
    assert unfitted_times.summary(rows) == (
        f"compile / default {math.sqrt(1.2 * 3):.3f}, least 1.20 of 2; "
        f"compile / first_call {12 / 9:.3f}, least 1.33 of 1; tuned / default 0.800, least 0.80 of 1"
    )
    assert unfitted_times.summary([]) == "nothing was timed"
