"""The cells of ``benchmarks/ops.py``: operator and eager PyTorch agree in the form of their results, without a GPU."""

from __future__ import annotations

import pytest
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks import ops as benchmark
from helion import ops
from helion.testing import outputs

CELLS = list(benchmark.cells())


@pytest.mark.prove
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.key)
def test_forms_of_results(cell: benchmark.Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "DEVICE", "cpu")
    with FakeTensorMode(allow_non_fake_inputs=True):
        args = cell.make()
        found, expected = (outputs(function(*args)) for function in (cell.op, cell.eager))
    assert [t.shape for t in found] == [t.shape for t in expected]
    if cell.name not in ("route", "cross_entropy", "linear_cross_entropy"):  # these give fp32, and int32 indices
        assert [t.dtype for t in found] == [t.dtype for t in expected]


def test_every_operator_has_two_shapes() -> None:
    names = [cell.name for cell in CELLS]
    public = set(dir(ops)) - {"register_all", "patch", "Patches"}
    assert {name for name in public if names.count(name) < 2} == set()
