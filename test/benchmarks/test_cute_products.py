"""Matmuls that the CuTe backend runs on request: their cases on a GPU, evaluated on the CPU."""

from __future__ import annotations

import pytest
import torch

from benchmarks import cute_products


@pytest.mark.parametrize(
    "name",
    ["turned_output", "activated_odd", "softmax_odd", "fp8_n_major", "batched", "batched_four_bytes", "residual"],
)
def test_cases_are_right(name: str) -> None:
    found = cute_products.checked(cute_products.CASES[name], "cpu", 1)
    assert found["ok"] and found["copied"]


def test_errors_are_seen() -> None:
    case = cute_products.CASES["odd_k"]
    x, y, _ = case.tensors(False, "cpu")
    exact = case.exact(x, y, x)
    wrong = exact.clone()
    wrong[-1, -1] *= 2
    assert cute_products.row_error(exact, exact) == 0.0 < cute_products.row_error(wrong, exact)


def test_wrong_elements_are_counted_by_rows_and_columns() -> None:
    exact = torch.rand(5, 7, generator=torch.Generator().manual_seed(0)).double() + 1
    result = exact.clone()
    result[2, 3:5], result[4, 3] = float("nan"), -2.0
    found = cute_products.misplaced(result, exact)
    assert found["wrong"] == 3 / 35 and (found["rows"], found["columns"]) == (2, 2)
    assert [place[:2] for place in found["first"]] == [[2, 3], [2, 4], [4, 3]]
    assert cute_products.misplaced(exact, exact)["wrong"] == 0.0
