"""HELION_LOGS: which loggers speak, and what they say."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import helion
import helion.language as hl
from helion import knobs

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = """
import sys, logging
sys.path.insert(0, "examples")
import torch, softmax
softmax.softmax(torch.randn(5, 63))
root = logging.getLogger("helion")
print(len(root.handlers), root.propagate, len(logging.getLogger().handlers))
"""


@helion.kernel
def add_one(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] + 1
    return out


def run(logs: str | None) -> tuple[str, list[str]]:
    env = {k: v for k, v in os.environ.items() if k != "HELION_LOGS"} | {"PYTHONPATH": str(ROOT)}
    if logs is not None:
        env["HELION_LOGS"] = logs
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), [line for line in done.stderr.splitlines() if line.startswith("[helion")]


def test_nothing_is_set_up_unless_asked_for() -> None:
    assert run(None) == ("0 True 0", [])


def test_all_is_what_happens_and_plus_adds_why() -> None:
    stdout, lines = run("+all")
    assert stdout == "1 False 0"
    info = [line for line in lines if "] INFO: " in line]
    assert [line.split(": ", 1)[1].split()[0] for line in info] == ["bound", "default", "compiled"]
    assert info[0].startswith("[helion.runtime.variants.variant] INFO: bound softmax for sm_90 in ")
    assert " key " in info[0] and ".py: helion.Config(" in info[2]
    debug = "\n".join(line for line in lines if "] DEBUG: " in line)
    assert (
        "facts of softmax: KernelFacts(" in debug
        and "seed 1 of softmax, by TritonStreamingReductionHeuristic (" in debug
    )
    assert "no seed of softmax by " in debug


@pytest.mark.prove
def test_one_logger_alone() -> None:
    _, lines = run("helion.pipeline")
    assert len(lines) == 1 and lines[0].startswith("[helion.pipeline] INFO: default config of softmax on sm_90 by ")


@pytest.mark.parametrize("text", ["triton", "+helionx", "all,torch"])
def test_other_names_are_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELION_LOGS", text)
    with pytest.raises(ValueError, match="HELION_LOGS.*expected all, helion or helion"):
        knobs.LOGS.read()


def test_an_application_hears_the_loggers_too(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="helion"):
        add_one(torch.ones(3))
    assert [record.name for record in caplog.records if record.name != "helion.notices"] == [
        "helion.runtime.variants.variant",
        "helion.pipeline",
        "helion.runtime.specialization.compiled",
    ]
