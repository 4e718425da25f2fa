"""C launchers of Triton before 3.7, which are built while kernels compile: a stand-in for its driver counts the builds."""

from __future__ import annotations

import threading
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from triton.backends.nvidia import driver

import helion
import helion.language as hl
from helion.backends.stub import stub_driver
from helion.backends.triton.execute import c_launchers, launcher


@helion.kernel()
def scaled(x: torch.Tensor, factor: float, times: int) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] * factor * times
    return out


class Driver:
    """Triton's driver, whose launchers are lists of types; it builds no other before ``go``."""

    def __init__(self) -> None:
        self.built: list[tuple[str, ...]] = []
        self.go = threading.Event()
        self.go.set()

    def launcher_cls(self, source: Any, metadata: Any) -> None:
        self.go.wait()
        assert metadata.global_scratch_size is None and metadata.launch_pdl is False
        self.built.append(tuple(source.signature.values()))


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Driver:
    """Stand for a GPU and a Triton that has a launcher for each list of types."""
    found = Driver()
    monkeypatch.setattr(triton.runtime, "driver", types.SimpleNamespace(active=found))
    monkeypatch.setattr(driver, "make_launcher", None, raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(c_launchers, "_BUILDS", {})
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return found


def expected(*args: Any) -> None:
    bound = helion.kernel(scaled.fn).bind(args, target="h200")
    bound.variant.compiled.expect_launch(bound.default_config())
    c_launchers.wait()


def test_a_launcher_is_built_once_for_each_list_of_types(
    older: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    x = torch.randn(33, 70)
    for _ in range(2):
        expected(x, 2.5, 3)
    expected(x + 1, 3.5, 3)
    assert older.built == [("*fp32", "*fp32", "fp32", "i32")]
    expected(x.bfloat16(), 2.5, 3)
    assert [types[0] for types in older.built] == ["*fp32", "*bf16"]
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "other"))
    expected(x, 2.5, 3)
    assert older.built[2] == older.built[0]


def test_an_integer_of_one_is_compiled_in(older: Driver) -> None:
    expected(torch.randn(33, 70), 2.5, 1)
    assert older.built == [("*fp32", "*fp32", "fp32", "constexpr")]


def test_no_launcher_is_built_without_need(older: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(33, 70)
    with stub_driver():
        expected(x, 2.5, 3)
    with monkeypatch.context() as patched:  # newer versions have one for all
        patched.delattr(driver, "make_launcher")
        expected(x, 2.5, 3)
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "is_initialized", lambda: False)
        expected(x, 2.5, 3)
    assert older.built == []


def test_a_launch_waits_for_its_launcher(older: Driver) -> None:
    older.go.clear()
    c_launchers.begin(("*fp32",))
    seen: list[bool] = []

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return lambda *args, **options: seen.append(bool(older.built))

    launch = threading.Thread(target=launcher.default_launcher, args=(Kernel(), (1,)))
    launch.start()
    older.go.set()
    launch.join()
    assert seen == [True]


def test_a_launch_waits_for_no_other_launcher(older: Driver) -> None:
    older.go.clear()
    c_launchers.begin(("*fp32",))
    c_launchers.wait(("*bf16",))
    assert older.built == []
    older.go.set()
    c_launchers.wait(("*fp32",))
    assert older.built == [("*fp32",)]


def test_a_failure_is_left_to_the_launch(older: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Driver, "launcher_cls", None)
    c_launchers.begin(("*fp32",))
    c_launchers.wait()
    assert older.built == []
