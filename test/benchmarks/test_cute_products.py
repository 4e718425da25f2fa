"""Matmuls that the CuTe backend runs on request: their cases on a GPU, evaluated on the CPU."""

from __future__ import annotations

import pytest
import torch

import helion
import helion.language as hl
from benchmarks import cute_products, few_rows
from helion.backends.cute.resources.shape import shape_of


@pytest.mark.parametrize(
    "name",
    ["turned_output", "activated_odd", "softmax_odd", "fp8_n_major", "batched_four_bytes"],
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


@pytest.mark.parametrize("name", ["activated", "four_bytes", "tf32_n_major", "int8_weights", "turned_output"])
def test_facts_show_the_copies_of_the_plan(name: str) -> None:
    case = cute_products.CASES[name]
    bound = helion.kernel(case.kernel, backend="cute").bind(case.tensors(False, "meta"), target="h200")
    shape = shape_of(bound.facts)
    assert not isinstance(shape, str)
    seen, planned = shape.problem.copied, bound.plan().gemm.problem.copied
    assert {(each.operand, each.granule) for each in seen} == {(each.operand, each.granule) for each in planned}


def test_facts_show_that_widened_operands_are_not_copied() -> None:
    def widened(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        (m, k), n = x.size(), y.size(1)
        for tile_m, tile_n in hl.tile([m, n]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                rows, columns = x[tile_m, tile_k].to(torch.float32), y[tile_k, tile_n].to(torch.float32)
                acc = hl.dot(rows, columns, acc=acc)
            out[tile_m, tile_n] = acc.to(out.dtype)
        return out

    tensors = [torch.empty(256, 256, dtype=torch.bfloat16, device="meta") for _ in range(3)]
    bound = helion.kernel(widened, backend="cute").bind(tuple(tensors), target="h200")
    shape = shape_of(bound.facts)
    assert not isinstance(shape, str)
    assert shape.problem.copied == bound.plan().gemm.problem.copied == ()


def test_timed_configs_of_few_rows_convert_weights_in_registers() -> None:
    case = cute_products.CASES["int8_linear_few_rows"]
    bound = helion.kernel(case.kernel, backend="cute").bind(case.tensors(True, "meta"), target="h200")
    found = [*few_rows.configs(case)]
    plans = [bound.plan(helion.Config(**keys)).gemm for keys in found]
    assert len(plans) > 4 and all(plan.converts for plan in plans)
    assert {plan.parts for plan in plans} >= {2, 4}
