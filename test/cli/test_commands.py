"""The subcommands of ``python -m helion``."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import helion
from helion.__main__ import main
from helion._support import distribution
from helion.cli import bench, doctor

ROOT = Path(__file__).resolve().parents[2]


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    example = str(ROOT / "examples" / "softmax.py")
    assert main(["explain", f"{example}::softmax", "--args", "bf16[4096,8192]", "--target", "sm_100", "--code"]) == 0
    shown = capsys.readouterr().out
    assert "softmax on sm_100" in shown and "@triton.jit" in shown and "declined:" in shown
    assert main(["explain", f"{example}::nothing", "--args", "bf16[4,8]"]) == 2
    assert "has no kernel 'nothing'" in capsys.readouterr().err
    assert main(["explain", "no_file.py::softmax"]) == 2


def test_tables_of_the_reference_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    for what, line in (
        ("torch", "torch.nn.functional.softplus"),
        ("configs", "num_stages: "),
        ("settings", "index_dtype (HELION_INDEX_DTYPE="),
        ("variables", "HELION_CACHE_DIR: "),
        ("errors", "ReadModifyWriteRace: "),
    ):
        assert main(["list", what]) == 0
        assert any(each.startswith(line) for each in capsys.readouterr().out.splitlines())
    assert main(["list", "torch", "CUMSUM"]) == 0
    assert set(capsys.readouterr().out.split()) >= {"Tensor.cumsum", "torch.cumsum"}
    assert main(["list", "torch", "fft"]) == 1
    assert capsys.readouterr().out == "no line of torch has 'fft' in it\n"


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
    assert re.search(r"^ +CPU tensors  the results of a kernel equal those of torch", said, re.MULTILINE)
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


def test_another_distribution_of_the_same_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "helion-1.5.1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: helion\nVersion: 1.5.1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    try:
        distribution.clash.cache_clear()
        assert distribution.clash() == ""  # a checkout on the path has no files there
        (folder / "RECORD").write_text("helion/__init__.py,,\n")
        distribution.clash.cache_clear()
        assert "1.5.1 is another project's" in distribution.clash()
        (found,) = doctor._clash()
        assert found.state == "fails" and "pip uninstall helion helion-tiles" in found.text
    finally:
        distribution.clash.cache_clear()


def test_texts_name_our_distribution() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert f'name = "{distribution.NAME}"' in text
    for path in (*(ROOT / "helion").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"):
        assert not re.search(r"pip install '?helion(?!-tiles)", path.read_text()), path


def test_the_doctor_asks_for_what_the_package_asks_for() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    for name, (least, _) in doctor.SUPPORTED.items():
        assert re.search(f'"{name}>={least}(,<[0-9.]+)?"', text)


def test_a_kernel_is_timed_beside_its_reference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:

    def timed(function: Callable[[], object], *_: object, **__: object) -> float:
        function()
        return 0.25

    monkeypatch.setattr(bench, "do_bench", timed)
    path = tmp_path / "doubled.py"
    path.write_text(_DOUBLED)
    assert main(["bench", f"{path}::doubled", "--args", "f32[5,7]", "--no-compile"]) == 0
    said, noticed = capsys.readouterr()
    assert "there is no GPU: the interpreter runs the kernel" in noticed.splitlines()[0]
    assert re.search(r"^  helion +250.0 us$", said, re.MULTILINE)
    assert re.search(r"^  eager +250.0 us  1.00 times the kernel's time$", said, re.MULTILINE)
    assert "  right: largest difference from the reference in fp64 is 0.0e+00" in said
    assert re.search(r"^  predicted +\d+\.\d us, for sm_90$", said, re.MULTILINE)
    assert main(["bench", f"{path}::doubled", "--args", "f32[5,7]", "--reference", "tripled", "--json"]) == 2
    assert "doubled: output 0 of 1: Tensor-likes are not close!" in capsys.readouterr().err
    assert main(["bench", f"{path}::doubled", "--args", "f32[5,7]", "--reference", "none"]) == 2
    assert "has no function 'none' to compare with" in capsys.readouterr().err


_DOUBLED = """
import torch
import helion
import helion.language as hl


@helion.kernel
def doubled(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] * 2
    return out


def reference(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def tripled(x: torch.Tensor) -> torch.Tensor:
    return x * 3
"""
