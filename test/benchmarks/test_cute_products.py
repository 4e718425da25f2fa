"""Matmuls that the CuTe backend runs on request: their cases on a GPU, evaluated on the CPU."""

from __future__ import annotations

import pytest

from benchmarks import cute_products


@pytest.mark.parametrize("name", ["turned_output", "activated_odd", "softmax_odd", "fp8_n_major"])
def test_cases_are_right(name: str) -> None:
    found = cute_products.checked(cute_products.CASES[name], "cpu", 1)
    assert found["ok"] and found["copied"]


def test_errors_are_seen() -> None:
    case = cute_products.CASES["odd_k"]
    x, y, _ = case.tensors(False, "cpu")
    exact = case.exact(x, y)
    wrong = exact.clone()
    wrong[-1, -1] *= 2
    assert cute_products.row_error(exact, exact) == 0.0 < cute_products.row_error(wrong, exact)
