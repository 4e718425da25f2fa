"""The benchmark of attention: its references and its kernels agree, and its cells are plans of this backend."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from benchmarks import attention, attention_binaries, attention_report


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


def test_the_page_compares_with_the_fastest_right_library() -> None:
    cell, other = attention.cell(128, True, 4, 16, 16, 4096), attention.cell(128, False, 1, 32, 8, 1, 65536)
    times = {"helion": 500.0, "cudnn": 520.0, "flash": 450.0}
    rows = [
        {"job": "forward:128:causal", "variant": name, **asdict(cell), "us": us, "right": name != "flash", "error": 0.1}
        for name, us in times.items()
    ]
    rows += [
        {"job": "decode:128:1", "variant": name, **asdict(other), "us": us, "right": True}
        for name, us in {"helion": 100.0, "flash": 99.0, "copy": 80.0}.items()
    ]
    start = {
        "device": "X",
        "torch": "2",
        "cudnn": 9,
        "triton": "3",
        "date": "2026-01-01",
        "script": "benchmarks/attention.py",
    }
    rows.append(
        dict(name="decoding", plan_ms=4.0, compile_s=2.5, trace_s=0.6, load_ms=0.5, registers=168, spill_bytes=0)
    )
    page = "\n".join(attention_report.sections({"x": [start, *rows]}))
    assert "| forward, equal and grouped heads | 1 | 1.04 | 1.03 | 1.04 | 0.97 | 0 |" in page
    assert "| decoding, share of the copy rate | 1 | 0.80 | - | 0.80 | 0.85 | 1 |" in page
    assert "| 128 causal, 4 x 16, 4096 x 4096 | 500.0 | 520.0 | 550 | 1.04 | - |" in page
    assert "- 128 causal, 4 x 16, 4096 x 4096: flash: `error 0.1`" in page
    assert "| decoding | 4.0 | 2.5 | 0.6 | - | - | 0.5 | 168 | 0 |" in page


@pytest.mark.parametrize("name", ("decoding", "gradients of keys", "e4m3"))
def test_kinds_whose_compilation_is_timed_are_planned(name: str) -> None:
    took, kernel = attention_binaries.planned(attention_binaries.KINDS[name]())
    assert took > 0 and kernel.unit == "wgmma" and f"smem={kernel.shared_bytes}" in kernel.source
