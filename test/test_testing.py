"""``helion._testing``: what other suites import."""

from __future__ import annotations

import os
import subprocess
import sys
import unittest
from pathlib import Path

import pytest
import torch

import helion
import helion.language as hl
from helion import _testing

SUITE = """
import unittest
import torch
from helion._testing import *
from helion._testing import (
    RefEagerTestBase, RefEagerTestDisabled, TestCase, skipIfCpu, skipIfRefEager, skipIfRocm, skipIfXPU,
    skipUnlessTensorDescriptor,
)

class Both(RefEagerTestBase, TestCase):
    def test_runs(self): pass
    @skipIfRefEager("code")
    def test_code(self): pass
    @skipIfCpu("gpu")
    def test_gpu(self): self.assertTrue(torch.cuda.is_available())
    @skipIfRocm("amd")
    @skipIfXPU("intel")
    @skipUnlessTensorDescriptor("descriptors")
    def test_here(self): pass

class Compiled(RefEagerTestDisabled, TestCase):
    def test_runs(self): pass
"""


@helion.kernel
def add_one(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] + 1
    return out


def _skipped(tmp_path: Path, **environment: str) -> set[str]:
    """The tests of the suite that are skipped."""
    file = tmp_path / "suite.py"
    file.write_text(SUITE)
    command = [sys.executable, "-m", "unittest", "-v", file.name]
    place = {"PYTHONPATH": str(Path(helion.__file__).parents[1])}
    run = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, **place, **environment}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return {
        line.split()[0] + " " + line.split("(")[1].split(".")[1]
        for line in run.stderr.splitlines()
        if "skipped" in line and "..." in line
    }


@pytest.mark.parametrize("interprets", [True, pytest.param(False, marks=pytest.mark.prove)])
def test_skips(tmp_path: Path, interprets: bool) -> None:
    expected = set() if torch.cuda.is_available() else {"test_gpu Both"}
    if interprets:
        expected |= {"test_code Both", "test_runs Compiled"}
    assert _skipped(tmp_path, HELION_INTERPRET=str(int(interprets))) == expected


def test_the_base_class_is_no_test_of_its_own() -> None:
    assert issubclass(_testing.TestCase, unittest.TestCase) and not _testing.TestCase.__test__


def test_code_and_output() -> None:
    x = torch.arange(5.0)
    code, result = _testing.code_and_output(add_one, (x,), block_sizes=[4])
    assert "_BLOCK_SIZE_0 = tl.constexpr(4)" in code
    torch.testing.assert_close(result, x + 1)
    eager = helion.kernel(add_one.fn, ref_mode=helion.RefMode.EAGER)
    code, result = _testing.code_and_output(eager, (x,))
    assert code == ""
    torch.testing.assert_close(result, x + 1)
