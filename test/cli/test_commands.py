"""The subcommands of ``python -m helion``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import helion
from helion.__main__ import main

ROOT = Path(__file__).resolve().parents[2]


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    example = str(ROOT / "examples" / "softmax.py")
    assert main(["explain", f"{example}::softmax", "--args", "bf16[4096,8192]", "--target", "sm_100", "--code"]) == 0
    shown = capsys.readouterr().out
    assert "softmax on sm_100" in shown and "@triton.jit" in shown and "declined:" in shown
    assert main(["explain", f"{example}::nothing", "--args", "bf16[4,8]"]) == 2
    assert "has no kernel 'nothing'" in capsys.readouterr().err
    assert main(["explain", "no_file.py::softmax"]) == 2
    assert main(["doctor"]) == 0
    assert torch.__version__ in capsys.readouterr().out


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out == f"helion {helion.__version__}\n"


def test_a_kernel_is_explained_for_sizes_that_may_differ(capsys: pytest.CaptureFixture[str]) -> None:
    example = str(ROOT / "examples" / "softmax.py")
    assert main(["explain", f"{example}::softmax", "--args", "x=bf16[4096,8192]", "--dynamic", "--code"]) == 0
    assert "static_shapes=False" in capsys.readouterr().out
