"""Row kernels in the styles of users: their printed text on simulated threads, against fp64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from backends.cute.row_device import run_rows

import helion
from helion import exc
from helion._testing import EXAMPLES_DIR, import_path
from helion.backends.cute.execute import evaluators
from helion.backends.cute.execute.problems import split
from helion.backends.cute.plan.rowwise.kernel import RowsPlan
from helion.backends.cute.plan.rowwise.records import SIZE_M, RowProblem

row_users = import_path(EXAMPLES_DIR.parent / "benchmarks" / "row_users.py")

REFUSED = {"length_of_power": "powers of an exponent that varies"}
DYNAMIC = {
    "groups_of_channels": "a number that the host computes",
    "causal_rows": "needs a size that is known",
    "length_of_power": "powers of an exponent that varies",
}
OF_GROUPS = ("group_scales", "groups_of_channels")
SIZES = ((3, 2), (5, 63), (7, 1003), (9, 1024), (2, 20011))


def simulated(plan: RowsPlan, kernel: Any, given: Sequence[Any]) -> None:
    """Run a launch on simulated threads."""
    problem = plan.rows.problem
    passed, integers = split(kernel, given)
    launched = dict(zip(problem.runtime, integers, strict=True))
    others = [number for name, number in launched.items() if name != SIZE_M]
    count = len(problem.outputs)
    run_rows(plan.rows, passed[:count], passed[count:], launched.get(SIZE_M, problem.m), 2, others)


def checked(name: str, m: int, n: int, dtype: torch.dtype, static: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    case = row_users.cases("cpu", m, n, dtype)[name]
    options: dict[str, Any] = dict(static_shapes=static, ignore_warnings=[exc.TensorOperationInWrapper])
    bound = helion.kernel(case.fn, backend="cute", **options).bind(case.arguments, target="h200")
    config = bound.seeds[0].config
    plan = bound.plan(config)
    assert plan.rows.problem.columns_at_launch == (not static) or "specialize" in case.fn.__code__.co_names
    monkeypatch.setitem(evaluators.EVALUATORS, RowProblem, lambda *launch: simulated(plan, *launch))
    results = helion.kernel(case.fn, backend="cute", config=config, **options)(*case.arguments)
    assert row_users.error(case, results) <= 1


@pytest.mark.parametrize("name", ["loss_of_ids", "saturating_int8"])
def test_a_kernel_of_any_length(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checked(name, 5, 1003, torch.bfloat16, False, monkeypatch)


@pytest.mark.prove
@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", row_users.names())
def test_users_kernels(name: str, dtype: torch.dtype, static: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = REFUSED if static else DYNAMIC
    for m, n in SIZES:
        if name in OF_GROUPS and n % 64:
            continue
        if name in refused:
            with pytest.raises(exc.Base, match=refused[name]):
                checked(name, m, n, dtype, static, monkeypatch)
        else:
            checked(name, m, n, dtype, static, monkeypatch)
