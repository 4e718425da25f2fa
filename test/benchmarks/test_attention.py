"""The benchmark of attention: its references and its kernels agree, and its cells are plans of this backend."""

from __future__ import annotations

import pytest

from benchmarks import attention


@pytest.mark.parametrize("hook", ("", "softcap", "window", "bias", "slopes", "documents"))
def test_kernels_compute_the_reference(hook: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "WINDOW", 20)
    cell = attention.cell(64, hook in ("", "window", "documents"), 1, 2, 2, 64, hook=hook)
    tensors, given = cell.tensors("cpu"), attention.inputs_of(cell, "cpu")
    found = attention.call_ours(cell, *attention.ours(cell, tensors, given))
    wanted = attention.exact(cell, given, *(x[:1, :1].double() for x in tensors))
    assert attention.error_of(cell, found, wanted) < attention.ERROR


def test_a_cell_of_each_kind_runs_on_this_backend() -> None:
    jobs = attention.jobs()
    for job in ("forward:128:causal", "grouped:64:full", "ragged:64:causal", "hooks:64:bias", "decode:128:1"):
        assert attention.planned(jobs[job][0]).startswith("cute "), job
