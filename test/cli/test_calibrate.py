"""``python -m helion calibrate``: rates from two amounts, a sweep with simulated times, and the file that is sent."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
import torch

from benchmarks import calibrate as calibration
from benchmarks.calibrate import judged, parameters_of, received, target_of
from helion.__main__ import main
from helion.autotuner.pretuned import parsed
from helion.cli import calibrate, rates
from helion.cli.calibrate import Case
from helion.hardware import Target, target

H100 = target("h100")


def small_cases() -> Any:
    """Yield one case with tensors of the CPU."""
    yield Case(kernel=calibrate.normalized_rows, args=(torch.randn(5, 70) + 1.0, torch.randn(70)))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> dict[str, float]:
    """Stand for a GPU: rates are given, and times of configs are simulated."""
    found = {each.name: 0.5 + at for at, each in enumerate(rates.experiments(H100))}
    found = {"launch": 3.0, **found}
    swept = calibrate.swept
    monkeypatch.setenv("HELION_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Other GPU 9")
    monkeypatch.setattr(calibrate.hardware, "from_device_properties", lambda index: H100)
    monkeypatch.setattr(calibrate, "measure", lambda device, time: found)
    monkeypatch.setattr(calibrate, "cases", small_cases)
    monkeypatch.setattr(calibrate, "swept", lambda cases, seconds: swept(cases, seconds, simulated=True, configs=6))
    return found


def test_a_file_is_sent_and_received(
    measured: dict[str, float], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sent = tmp_path / "sent.json"
    assert main(["calibrate", "--send", str(sent), "--seconds", "60"]) == 0
    assert "attach it to an issue" in capsys.readouterr().out
    data = json.loads(sent.read_text())
    assert target_of(data["row"]) == H100 and data["microseconds"] == measured
    (sweep,) = data["sweeps"]
    assert sweep["kernel"] == "normalized_rows" and sweep["arguments"] == [[5, 70], [70]]
    assert len(sweep["times"]) > 1 and min(t["microseconds"] for t in sweep["times"]) > 0
    assert str(tmp_path) not in sent.read_text()
    kept = received(sent, tmp_path, tmp_path / "pretuned")
    assert kept.name == "other-gpu-9.json"
    assert json.loads(kept.read_text())["parameters"] == parameters_of(measured, H100)
    (line,) = judged(json.loads(kept.read_text()))
    assert line.startswith("normalized_rows") and f"{len(sweep['times'])} configs, rank correlation " in line
    other = {**json.loads(kept.read_text()), "row": {**data["row"], "num_sms": 9, "device": "Other GPU 9"}}
    assert "rows.py, if it has none: Target(name='sm_90', device='Other GPU 9'" in judged(other)[-1]
    (row,) = parsed((tmp_path / "pretuned" / "other-gpu-9.json").read_text())
    assert row.arch == "sm_90" and row.sms == 132 and "num_warps" in row.config


def test_a_report_without_a_file_writes_nothing(measured: dict[str, float], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "--seconds", "0"]) == 0
    out = capsys.readouterr().out
    assert "nothing was written: --send FILE" in out and "products of bfloat16" in out and "configs in" not in out


def test_refusals(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["calibrate", "--send", str(tmp_path / "sent.json")]) == 2
    assert "torch sees none; --dry prints what it would measure" in capsys.readouterr().err
    assert main(["calibrate", "--seconds", "-1"]) == 2
    assert main(["calibrate", "--dry"]) == 0
    other = tmp_path / "other.json"
    other.write_text("[]")
    with pytest.raises(ValueError, match="not made by `python -m helion calibrate --send`"):
        received(other, tmp_path, tmp_path)
    for text in ("[]", "{", "{}"):
        other.write_text(text)
        monkeypatch.setattr("sys.argv", ["calibrate.py", "--received", str(other)])
        with pytest.raises(SystemExit):
            calibration.main()
        assert f"{other} is no file of `python -m helion calibrate --send`" in capsys.readouterr().err


def test_a_rate_is_the_difference_of_two_amounts(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(device: Target) -> Any:
        yield rates.Experiment(name="copy", unit="bytes", less=10, more=30, of=2.0, run=lambda n: lambda: n)

    monkeypatch.setattr(rates, "experiments", made)
    monkeypatch.setattr(rates, "launch", lambda: lambda: 3)
    assert rates.measure(H100, lambda function: 5.0 + 4.0 * function()) == {"launch": 17.0, "copy": 2.0}
    with pytest.raises(ValueError, match="copy: 30 take 1.0 us and 10 take 1.0 us"):
        rates.measure(H100, lambda function: 1.0)


def test_the_kernels_do_what_the_rates_are_of() -> None:
    x = torch.randn(5000)
    assert torch.equal(rates._copied(x, torch.empty_like(x)), x)
    assert torch.equal(
        rates._summed(torch.ones(2 * rates.TILE), torch.empty(rates.TILE), 3), torch.full([rates.TILE], 3.0)
    )
    table = rates.ring(64, 4)
    at = 0
    for _ in range(5):
        at = int(table[at])
    assert rates._chased(table, torch.zeros(1, dtype=torch.int64), 5).item() == at != 0
    one = rates._multiplied(torch.empty(8), 0.5, 2)
    torch.testing.assert_close(one, torch.arange(8) * 0.25 + 0.75)
    torch.testing.assert_close(rates._raised(torch.empty(8), 0.5, 1), torch.exp2(torch.arange(8) * 0.5))
