"""The subcommands of ``python -m helion``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import helion
from helion.__main__ import main
from helion.cli import doctor

ROOT = Path(__file__).resolve().parents[2]


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    example = str(ROOT / "examples" / "softmax.py")
    assert main(["explain", f"{example}::softmax", "--args", "bf16[4096,8192]", "--target", "sm_100", "--code"]) == 0
    shown = capsys.readouterr().out
    assert "softmax on sm_100" in shown and "@triton.jit" in shown and "declined:" in shown
    assert main(["explain", f"{example}::nothing", "--args", "bf16[4,8]"]) == 2
    assert "has no kernel 'nothing'" in capsys.readouterr().err
    assert main(["explain", "no_file.py::softmax"]) == 2


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out == f"helion {helion.__version__}\n"


def test_a_kernel_is_explained_for_sizes_that_may_differ(capsys: pytest.CaptureFixture[str]) -> None:
    example = str(ROOT / "examples" / "softmax.py")
    assert main(["explain", f"{example}::softmax", "--args", "x=bf16[4096,8192]", "--dynamic", "--code"]) == 0
    assert "static_shapes=False" in capsys.readouterr().out


def test_the_doctor_tries_things_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert torch.__version__ in said and "kernels work here" in said
    assert re.search(r"^ +CPU tensors  a kernel gives what torch gives", said, re.MULTILINE)
    assert re.search(r"^ +offline  a kernel compiles for sm_90: \d+ registers", said, re.MULTILINE)


def test_what_fails_makes_the_doctor_fail(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(doctor.SUPPORTED, "torch", ("99.0", ""))
    monkeypatch.setitem(doctor.SUPPORTED, "triton", ("1.0", "1.5"))

    def differs(*_: object) -> None:
        raise AssertionError("they differ")

    monkeypatch.setattr(torch.testing, "assert_close", differs)
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.setenv("HELION_CACHE_DIR", str(folder))
    monkeypatch.setenv("HELION_BACKENDS", "x")
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert re.search(r"^! +torch  .*: helion needs 99.0 or newer; pip install -U torch", said, re.MULTILINE)
    assert re.search(r"^- +triton  .*: newer than 1.5, up to which", said, re.MULTILINE)
    assert re.search(r"^! +CPU tensors  AssertionError: they differ", said, re.MULTILINE)
    assert re.search(r"^- +cache  .*others can write there", said, re.MULTILINE)
    assert re.search(r"^- +environment  .*HELION_BACKENDS .did you mean HELION_BACKEND", said, re.MULTILINE)


def test_the_doctor_asks_for_what_the_package_asks_for() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    for name, (least, _) in doctor.SUPPORTED.items():
        assert f'"{name}>={least}"' in text
