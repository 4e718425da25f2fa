"""benchmarks/seeds.py without a GPU: small cells in the interpreter, times from a recording."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import helion
from benchmarks import seeds
from benchmarks.cells import Cell, inputs, table_cells, timed_cells
from benchmarks.timing import GraphTimer, RecordedTimer, Times, copy_bandwidth
from helion._testing import map_tensors
from helion.backends import BACKENDS

#: No power of two, and no multiple of a block.
EXTENT = 24
#: Of every suite: labels, log-probabilities, products, tiled columns, masks, an output of integers.
SAMPLE = (
    "matmul_layernorm",
    "matmul_softmax_tiled",
    "cross_entropy",
    "kl_div",
    "welford",
    "fused_linear_jsd",
    "dynamic_quant",
    "gated_rms_norm",
    "matmul",
    "swiglu",
    "rms_norm_gradients",
    "row_probabilities",
    "dropped_residual",
    "swiglu_gradients",
)
RECORDED = {"seed": 2.0, "default": 2.5, "cute": 1.5, "conservative": 3.0, "eager": 4.0, "extra": 1.0}
TIMER = RecordedTimer({name: [value] * 11 for name, value in RECORDED.items()})

all_timed = functools.cache(timed_cells)


@functools.cache
def small(kernel: str, extent: int = EXTENT) -> Cell:
    """The first cell of a kernel, with no dimension above ``extent``."""
    cell = next(cell for cell in all_timed() if cell.kernel == kernel)

    def smaller(like: torch.Tensor) -> torch.Tensor:
        return torch.empty([min(size, extent) for size in like.shape], dtype=like.dtype, device="meta")

    return dataclasses.replace(cell, args=map_tensors(cell.args, smaller), high=extent, made=None)


def with_extra(kernel: str, extra: Any) -> tuple[Cell, seeds.Variants, tuple[Any, ...]]:
    """A small cell with one more variant."""
    cell = small(kernel)
    args = inputs(cell, "cpu")
    made = seeds.variants(cell, args, compiled=False)
    return cell, dataclasses.replace(made, functions={**made.functions, "extra": extra}), args


def row_of(kernel: str, extra: Any) -> seeds.Row:
    cell, made, args = with_extra(kernel, extra)
    return seeds.measured(cell, made, TIMER, *seeds.checked(cell, made, args))


# ---------------------------------------------------------------------------------------------------------------- cells


def test_no_two_cells_have_the_same_key() -> None:
    keys = [cell.key for cell in table_cells()]
    assert len(keys) == len(set(keys))


def test_every_suite_is_timed_and_sampled_here() -> None:
    assert {cell.suite for cell in all_timed()} == set(seeds.SUITES)
    assert {small(kernel).suite for kernel in SAMPLE} == set(seeds.SUITES)


def chosen(**given: Any) -> list[Cell]:
    nothing = {"suites": list(seeds.SUITES), "kernels": [], "dtypes": [], "extents": []}
    return [all_timed()[at] for at in seeds.chosen_cells(argparse.Namespace(**{**nothing, **given}), all_timed())]


def test_all_cells_are_chosen_where_nothing_is_asked_for() -> None:
    assert [cell.key for cell in chosen()] == [cell.key for cell in all_timed()]


def test_cells_are_chosen_by_suite_kernel_dtype_and_extent() -> None:
    assert {cell.suite for cell in chosen(suites=["matmul"])} == {"matmul"}
    assert {cell.kernel for cell in chosen(kernels=["softmax", "add"])} == {"softmax", "add"}
    assert {cell.dtype for cell in chosen(dtypes=["float32"])} == {"float32"}
    assert {cell.case for cell in chosen(kernels=["softmax"], extents=[1000])} == {"131072 rows of 1000"}
    assert {cell.case for cell in chosen(suites=["matmul"], extents=[14336])} == {
        "M=8192 K=4096 N=14336",
        "M=8192 K=14336 N=4096",
    }
    assert chosen(kernels=["softmax"], extents=[4097]) == []


# ------------------------------------------------------------------------------------------------- variants and the gate


def cute(kernel: str) -> list[str]:
    """The variant of the cute backend: where that is installed, of matmuls and of kernels over whole rows."""
    rows = (
        "cross_entropy",
        "kl_div",
        "welford",
        "fused_linear_jsd",
        "dynamic_quant",
        "gated_rms_norm",
        "rms_norm_gradients",
    )
    taken = kernel in ("matmul", "matmul_layernorm", "matmul_softmax_tiled", *rows, "row_probabilities")
    return ["cute"] * (taken and importlib.util.find_spec("cutlass") is not None)


@pytest.mark.parametrize("kernel", SAMPLE)
def test_seed_and_conservative_config_are_right_and_timed(kernel: str) -> None:
    cell = small(kernel)
    args = inputs(cell, "cpu")
    made = seeds.variants(cell, args, compiled=False)
    default = ["default"] * (made.functions.keys() >= {"default"})
    assert list(made.functions) == ["seed", *default, "conservative", *cute(kernel), "eager"]
    assert {"seed", "conservative"} <= set(made.configs)
    errors, failures = seeds.checked(cell, made, args)
    assert not failures
    assert set(errors) == set(made.functions)
    row = seeds.measured(cell, made, TIMER, errors, failures)
    assert row.times["seed"] == {"median": 2.0, "low": 2.0, "high": 2.0}
    assert set(row.times) == set(made.functions)


@pytest.mark.parametrize("kernel", SAMPLE)
def test_the_default_config_is_a_variant(kernel: str) -> None:
    cell = small(kernel)
    args = inputs(cell, "cpu")
    bound = cell.function.bind(args)
    configs = seeds.variants(cell, args, compiled=False).configs
    default = repr(bound.short_config(bound.default_config()))
    assert configs["default" if default != configs["seed"] else "seed"] == default


def test_alternates_are_all_seeds() -> None:
    cell = small("matmul", 200)
    args = inputs(cell, "cpu")
    made = seeds.variants(cell, args, alternates=True, compiled=False)
    count = len(cell.function.bind(args).seeds)
    assert count > 1
    names = ["seed", *(f"seed {at}" for at in range(1, count)), "conservative"]
    assert list(made.configs) == [*names, "default"]
    assert list(made.functions) == [*names, *cute("matmul"), "eager"], "the default is one of the seeds"


def test_bytes_and_operations_are_the_least_possible() -> None:
    product, rows = small("matmul"), small("welford")
    assert seeds.products(product) == [(EXTENT, EXTENT, EXTENT)]
    assert seeds.least_bytes(product, inputs(product, "cpu")) == 3 * EXTENT**2 * 2
    assert seeds.products(rows) == []
    assert seeds.least_bytes(rows, inputs(rows, "cpu")) == 2 * EXTENT**2 * 2 + 2 * EXTENT * 2


def test_a_wrong_result_has_no_time() -> None:
    cell = small("swiglu")
    args = inputs(cell, "cpu")
    assert cell.baseline is not None
    row = row_of("swiglu", lambda: 1.1 * cell.baseline(*args))  # type: ignore[misc]
    assert row.failures == {"extra": "wrong: the result is 1.0e-01 off, 2e-02 is allowed"}
    assert set(row.times) == {"seed", "conservative", "eager"}
    assert row.errors["extra"] == pytest.approx(0.1, rel=0.05)


def test_a_result_of_nan_or_of_another_shape_has_no_time() -> None:
    nan = row_of("swiglu", lambda: torch.full([EXTENT, EXTENT], math.nan))
    assert nan.failures["extra"] == "wrong: the result is nan off, 2e-02 is allowed"
    short = row_of("swiglu", lambda: torch.zeros(EXTENT))
    assert short.failures["extra"].startswith(f"AssertionError: outputs of shapes [torch.Size([{EXTENT}])], expected")


def test_a_variant_that_fails_is_recorded_with_the_reason() -> None:
    def broken() -> None:
        raise RuntimeError("out of registers\nand more that nobody reads")

    def silent() -> None:
        raise ValueError

    assert row_of("swiglu", broken).failures == {"extra": "RuntimeError: out of registers"}
    assert row_of("swiglu", silent).failures == {"extra": "ValueError: "}


def test_a_variant_that_fails_when_timed_is_recorded() -> None:
    cell = small("swiglu")
    args = inputs(cell, "cpu")
    results = iter([cell.baseline(*args)])  # type: ignore[misc]
    row = row_of("swiglu", lambda: next(results))
    assert row.failures == {"extra": "StopIteration: "}
    assert "extra" in row.errors
    assert "extra" not in row.times


def test_relative_errors() -> None:
    one = torch.ones(4)
    assert seeds.relative_error(one, one) == 0.0
    assert seeds.relative_error(one * 1.5, one) == 0.5
    assert seeds.relative_error((one, one * 3), (one, one)) == 2.0
    assert math.isnan(seeds.relative_error(one * math.nan, one))
    assert math.isnan(seeds.relative_error((one * math.nan, one * 3), (one, one)))
    assert math.isnan(seeds.relative_error((one * 3, one * math.nan), (one, one)))
    assert seeds.relative_error(one * math.inf, one) == math.inf
    with pytest.raises(AssertionError, match=r"outputs of shapes .*\[4\].*, expected .*\[2\]"):
        seeds.relative_error(one, one[:2])


def test_the_bound_is_that_of_the_least_precise_input() -> None:
    wide, half = torch.ones(1), torch.ones(1, dtype=torch.bfloat16)
    labels = torch.ones(1, dtype=torch.int64)
    assert seeds.bound_of((wide, labels)) == seeds.BOUNDS[torch.float32]
    assert seeds.bound_of((wide, half)) == seeds.BOUNDS[torch.bfloat16]
    assert seeds.bound_of((labels,)) == seeds.BOUNDS[torch.float32]


# -------------------------------------------------------------------------------------------------------- times and JSON


def test_quartiles() -> None:
    assert Times.of([5.0, 1.0, 3.0, 2.0, 4.0]) == Times(median=3.0, low=2.0, high=4.0)


@pytest.mark.parametrize("repetitions", [1, 10])
def test_few_repetitions_are_refused(repetitions: int) -> None:
    with pytest.raises(ValueError, match=f"a median of {repetitions} runs says too little; take at least 11"):
        GraphTimer(repetitions)


def test_rows_survive_json(tmp_path: Path) -> None:
    rows = [row_of("swiglu", lambda: torch.zeros(EXTENT)), row_of("kl_div", lambda: torch.ones(()))]
    path = tmp_path / "results" / "some.json"
    seeds.write(path, {"device": "None"}, rows)
    found = json.loads(path.read_text())
    assert found["environment"] == {"device": "None"}
    assert [seeds.Row(**fields) for fields in found["rows"]] == rows


def test_the_terminal_shows_ratios_and_reasons() -> None:
    row = row_of("swiglu", lambda: torch.zeros(EXTENT))
    text = (
        "swiglu 8192 by 8192 bfloat16: seed 2.0, conservative 3.0, eager 4.0, 1.50x conservative, extra: AssertionError"
    )
    assert seeds.text_of(row).startswith(text)


@pytest.mark.gpu
def test_a_small_cell_on_a_gpu() -> None:
    cell = small("softmax", 1000)
    args = inputs(cell, "cuda")
    made = seeds.variants(cell, args, alternates=True, compiled=False)
    timer = GraphTimer(11)
    row = seeds.measured(cell, made, timer, *seeds.checked(cell, made, args))
    assert not row.failures
    assert set(row.times) == set(made.functions)
    for times in row.times.values():
        assert 1.0 < times["low"] <= times["median"] <= times["high"] < 1e4  # µs; starting a kernel takes more than 1
    assert copy_bandwidth(timer, 2**26) > 10


def test_the_cute_backend_is_timed_where_it_takes_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = {(cell.kernel, cell.case): cell for cell in timed_cells() if cell.dtype == "bfloat16"}
    product = next(
        cell for (_, case), cell in cells.items() if case == "M=1024 K=1024 N=1024" and cell.suite == "matmul"
    )
    other = next(cell for cell in cells.values() if cell.suite == "pointwise")
    kind = type(BACKENDS["cute"])
    monkeypatch.setattr(kind, "is_installed", True)
    used = product.function.bind(product.args)
    assert {name: each.backend for name, each in seeds.others(product, used, product.args).items()} == {"cute": "cute"}
    assert seeds.others(other, other.function.bind(other.args), other.args) == {}
    monkeypatch.setattr(kind, "is_installed", False)
    assert seeds.others(product, used, product.args) == {}


def test_what_runs_by_default_is_the_seed_and_triton_stands_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The conservative config is that of the backend for all kernels."""
    monkeypatch.setenv("HELION_BACKEND", "cute")
    cell = small("matmul", 200)
    kernel = helion.kernel(cell.function.fn, static_shapes=True)
    cell = dataclasses.replace(cell, function=kernel)
    made = seeds.variants(cell, inputs(cell, "cpu"), compiled=False)
    assert list(made.functions) == ["seed", "conservative", "triton", "eager"]
    assert made.heuristic.startswith("Cute") and "num_warps" in made.configs["conservative"]
