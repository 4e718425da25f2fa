"""The sample of configs of kernels that no rule was fitted to: how it is drawn, shared, checked and timed."""

from __future__ import annotations

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks import unfitted_sample as sample
from benchmarks.cells import Cell, unfitted_cells
from benchmarks.sweep import UNFITTED, parse
from benchmarks.timing import RecordedTimer
from benchmarks.unfitted import CELLS
from helion import Config

NAMES = ("winsorize", "adamw_half_states")


@functools.cache
def cells() -> dict[str, Cell]:
    return {cell.kernel: cell for cell in unfitted_cells()}


def small(name: str, **changed: Any) -> Cell:
    made = lambda device, seed: CELLS[name].arguments(device, True)  # noqa: E731
    return dataclasses.replace(cells()[name], **{"made": made, **changed})


@pytest.fixture
def claims(tmp_path: Path) -> sample.Claims:
    return sample.Claims(tmp_path)


def configs_of(name: str, count: int = 3) -> list[dict[str, Any]]:
    bound = cells()[name].function.bind(CELLS[name].arguments("cpu", True))
    return [bound.short_config(bound.default_config()).to_dict() | {"num_stages": 1 + at} for at in range(count)]


def prepared(cell: Cell, claims: sample.Claims, **given: Any) -> Any:
    options = {"device_ok": lambda: True, "end": math.inf, "claims": claims} | given
    return sample.prepared(cell, cell.made("cpu", 0), configs_of(cell.kernel), **options)  # type: ignore[misc]


def test_every_unfitted_kernel_has_a_cell_of_triton() -> None:
    assert cells().keys() == CELLS.keys()
    assert {cell.function.settings.backend for cell in cells().values()} == {"triton"}


@pytest.mark.parametrize("name", ["winsorize", "depthwise7", "complex_matmul"])
def test_a_sample_begins_with_the_default_and_the_seeds_and_repeats_none(name: str) -> None:
    cell = cells()[name]
    bound = cell.function.bind(cell.args, target="h200")
    found = [bound.config_spec.normalize(Config(**each)) for each in sample.drawn(cell, 12, "h200")]
    assert len(found) == len(set(found)) == 12
    assert found[0] == bound.default_config()
    assert {seed.config for seed in bound.seeds} <= set(found[:4])
    assert len({(tuple(config["block_sizes"]), config["num_warps"]) for config in found}) >= 6


def test_each_kernel_is_taken_once_and_again_when_given_back(claims: sample.Claims) -> None:
    first = claims.take(["a", "b", "c"])
    assert next(first) == "a"
    assert list(claims.take(["a", "b", "c"])) == ["b", "c"]
    assert list(first) == []
    claims.give_back(["a"])
    assert list(claims.take(["a", "b", "c"])) == ["a"]


def test_wrong_results_have_no_function(claims: sample.Claims) -> None:
    right, none = prepared(small("winsorize"), claims)
    assert [*right] == [0, 1, 2] and none == []
    no_function, wrong = prepared(small("winsorize", baseline=lambda x, *rest: x + 1), claims)
    assert no_function == {} and {why.split(":")[0] for _, why in wrong} == {"wrong"}


def test_no_config_is_compiled_after_the_end(claims: sample.Claims) -> None:
    assert prepared(small("winsorize"), claims, end=-math.inf) == ({}, [])


def test_a_config_that_made_the_device_fail_is_avoided(claims: sample.Claims, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = small("winsorize")
    bound = cell.function.bind(cell.made("cpu", 0))  # type: ignore[misc]
    compiled = type(bound).compile_config

    def fails(of: Any, config: Config) -> Any:
        if config["num_stages"] == 2:
            raise RuntimeError("an illegal memory access")
        return compiled(of, config)

    monkeypatch.setattr(type(bound), "compile_config", fails)
    functions, failed = prepared(cell, claims)
    assert [*functions] == [0, 2] and failed == [(1, "RuntimeError: an illegal memory access")]
    with pytest.raises(sample.DeviceFailedError):
        prepared(cell, claims, device_ok=lambda: False)
    functions, failed = prepared(cell, claims, device_ok=lambda: False)
    assert [*functions] == [0, 2] and failed == [(1, "the device failed: RuntimeError: an illegal memory access")]


def test_times_are_lines_of_the_sweep(claims: sample.Claims, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "unfitted_cells", lambda: [small(name) for name in NAMES])
    samples = {name: configs_of(name) for name in NAMES}
    timer = RecordedTimer({str(at): [10.0 + at] * 11 for at in range(3)})
    rows = list(sample.timed(NAMES, samples, claims, "cpu", math.inf, lambda: timer))
    assert [row["name"] for row in rows] == list(NAMES) and not any(row["failed"] for row in rows)
    text = "".join(line for row in rows for line in sample.lines(row, cells()[row["name"]], samples[row["name"]]))
    found = parse(text)
    assert [(each.kernel, each.microseconds) for each in found] == [
        (name, us) for name in NAMES for us in (10.0, 11.0, 12.0)
    ]
    assert {each.key for each in found} == {cells()[name].key[1:] for name in NAMES}
    assert list(claims.take(NAMES)) == []


def test_kernels_are_given_back_when_the_device_fails(claims: sample.Claims, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise sample.DeviceFailedError

    monkeypatch.setattr(sample, "unfitted_cells", lambda: [small(name) for name in NAMES])
    monkeypatch.setattr(sample, "prepared", fails)
    with pytest.raises(sample.DeviceFailedError):
        list(sample.timed(NAMES, {name: [] for name in NAMES}, claims, "cpu", math.inf, lambda: RecordedTimer({})))
    assert list(claims.take(NAMES)) == list(NAMES)


def test_the_command_asks_for_a_sample(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        sample.main([])
    assert "give --draw or --drawn" in capsys.readouterr().err


def test_the_kept_sample_has_legal_configs() -> None:
    rows = parse(UNFITTED.read_text())
    assert {row.key for row in rows} <= {cell.key[1:] for cell in cells().values()}
    for row in rows[::40]:
        cell = cells()[row.kernel]
        cell.function.bind(cell.args, target="h200").config_spec.normalize(row.config)
