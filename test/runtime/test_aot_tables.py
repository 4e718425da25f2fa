"""Tables of tuned configs beside a kernel's source: found, used per shape, collected, and never in the way of a call."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import helion
from helion import Config
from helion.runtime.specialization import aot

SOURCE = """
import torch, helion, helion.language as hl

def others():
    return [(torch.zeros(300), torch.zeros(300))]

@helion.aot_kernel
def add(x, y):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + y[tile]
    return out

@helion.aot_kernel(static_shapes=False, batched=[[True], None], collect_fn=others)
def dynamic(x, y):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + y[tile]
    return out

@helion.aot_kernel(config=helion.Config(block_sizes=[4]))
def fixed(x, y):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + y[tile]
    return out
"""
TABLE = """
def key_{name}(x, y):
    return int(x.shape[0] > 100)

def autotune_{name}(*args):
    return [dict(block_sizes=[16]), dict(block_sizes=[64], num_warps=2)][key_{name}(*args)]
"""


@pytest.fixture
def module(tmp_path: Path) -> Iterator[Any]:
    path = tmp_path / "ops.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("ops_with_tables", path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules["ops_with_tables"] = made
    spec.loader.exec_module(made)
    yield made
    del sys.modules["ops_with_tables"]


def table(module: Any, text: str, device: str = "cuda_sm90") -> Path:
    path = Path(module.__file__).with_name(f"_helion_aot_ops_{device}.py")
    path.write_text(text)
    return path


def run(kernel: helion.Kernel, size: int) -> Config:
    """Call a kernel, check what it gives, and say which config ran."""
    x, y = torch.randn(size), torch.randn(size)
    assert torch.equal(kernel(x, y), x + y)
    config = kernel.bind((x, y)).config
    assert config is not None
    return config


@pytest.mark.parametrize("name", ["add", "dynamic"])
def test_configs_go_by_shape(module: Any, name: str, capsys: pytest.CaptureFixture) -> None:
    table(module, TABLE.format(name=name))
    kernel = getattr(module, name)
    for size, expected in ((63, (16, 4)), (1000, (64, 2)), (8 + 91, (16, 4)), (101, (64, 2))):
        config = run(kernel, size)
        assert (config.block_sizes[0], config.num_warps) == expected
    assert "block_sizes=[64]" in kernel.bind((torch.zeros(101), torch.zeros(101))).format_kernel_decorator()
    assert capsys.readouterr().err == ""


def test_the_table_of_an_older_gpu_serves_and_that_of_a_newer_one_does_not(module: Any) -> None:
    table(module, "def autotune_add(*args): return dict(block_sizes=[8])", "cuda_sm80")
    table(module, "def autotune_add(*args): return dict(block_sizes=[32])", "cuda_sm100")
    assert run(module.add, 300).block_sizes == [8]
    x = torch.zeros(300)
    assert module.add.bind((x, x), target="sm_100").default_config().block_sizes == [32]
    table(module, "def autotune_add(*args): return helion.Config(block_sizes=[64])\nimport helion")
    module.add.reset()
    assert run(module.add, 300).block_sizes == [64]


@pytest.mark.parametrize(
    "text, why",
    [
        (None, "there is no _helion_aot_ops_cuda_sm90.py next to ops.py"),
        ("def autotune_other(*args): return {}", "has no function autotune_add"),
        ("raise ImportError('gone')", r"cannot be loaded \(ImportError: gone\)"),
        ("def autotune_add(x): return {}", r"its table fails \(TypeError"),
        ("def autotune_add(*args): return 3", r"its table fails \(TypeError"),
        ("def autotune_add(*args): return dict(block_sizes=[3])", r"an invalid config \(block_sizes"),
        ("def autotune_add(*args): return dict(no_key=3)", r"an invalid config \(Invalid config keys"),
    ],
)
def test_a_table_that_is_of_no_use_costs_a_warning(
    module: Any, text: str | None, why: str, capsys: pytest.CaptureFixture
) -> None:
    if text is not None:
        table(module, text)
    plain = helion.kernel(module.add.fn).bind((torch.zeros(300), torch.zeros(300)))
    assert run(module.add, 300) == plain.default_config()
    run(module.add, 300)
    said = [line for line in capsys.readouterr().err.splitlines() if "NoAOTHeuristicWarning" in line]
    assert len(said) == 1 and re.search(why, said[0])


def test_a_key_that_fails_does_not_fail_the_call(module: Any, capsys: pytest.CaptureFixture) -> None:
    table(module, "def key_dynamic(*args): return []\ndef autotune_dynamic(*args): return dict(block_sizes=[32])")
    assert run(module.dynamic, 40).block_sizes == [32]


def test_configs_of_the_decorator_come_first(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table(module, TABLE.format(name="fixed") + TABLE.format(name="add"))
    assert run(module.fixed, 300).block_sizes == [4]
    monkeypatch.setenv("HELION_AOT_MODE", "disabled")
    plain = helion.kernel(module.add.fn).bind((torch.zeros(300), torch.zeros(300)))
    assert run(module.add, 300) == plain.default_config()


def test_a_warning_that_is_not_wanted_is_not_printed(module: Any, capsys: pytest.CaptureFixture) -> None:
    kernel = helion.aot_kernel(module.add.fn, ignore_warnings=[helion.exc.NoAOTHeuristicWarning])
    run(kernel, 300)
    assert "NoAOT" not in capsys.readouterr().err


def test_collecting(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELION_AOT_MODE", "collect")
    tuned = {size: run(module.add, size) for size in (64, 1000)}
    for size in (64, 1000, 64):
        run(module.dynamic, size)
    path = aot.table_path(module.__file__, "cuda_sm90")
    written: dict[str, Any] = {}
    exec(path.read_text(), written)
    assert {tuple(e["sizes"]) for e in written["TABLES"]["add"]} == {(64, 64), (1000, 1000)}
    # what collect_fn gives is measured too
    assert {tuple(e["sizes"]) for e in written["TABLES"]["dynamic"]} == {(64, 64), (1000, 1000), (300, 300)}
    x = torch.zeros(70)
    assert written["autotune_add"](x, x)["block_sizes"] == tuned[64].block_sizes
    assert written["key_add"](x, x) == written["key_add"](torch.zeros(64), torch.zeros(64))
    monkeypatch.setenv("HELION_AOT_MODE", "evaluate")
    module.add.reset()
    assert run(module.add, 990).block_sizes == tuned[1000].block_sizes


def test_tables_written_by_hand_are_not_overwritten(
    module: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    text = TABLE.format(name="add")
    path = table(module, text)
    monkeypatch.setenv("HELION_AOT_MODE", "collect")
    run(module.add, 64)
    assert path.read_text() == text and "was written by hand" in capsys.readouterr().err


def test_wrong_options() -> None:
    with pytest.raises(TypeError, match=r"collect_fn= takes a function"):
        helion.aot_kernel(collect_fn=[1])
    with pytest.raises(TypeError, match="no_setting"):
        helion.aot_kernel(no_setting=3)(test_wrong_options)
