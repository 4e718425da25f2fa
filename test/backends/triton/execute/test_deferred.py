"""Functions of kept modules, whose source is read when something is compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import triton
import triton.language as tl

from helion import hardware
from helion.backends.triton.execute import deferred
from helion.backends.triton.execute.executor import EXECUTOR
from helion.backends.triton.toolchain import offline
from helion.runtime.generated import codecache

TEXT = """from __future__ import annotations

import triton
import triton.language as tl

_BLOCK_SIZE_0 = tl.constexpr(64)


@triton.jit
def _one_more(x):
    return x + 1.0


@triton.jit
def _rows(x, out, n):
    at = tl.program_id(0) * _BLOCK_SIZE_0 + tl.arange(0, _BLOCK_SIZE_0)
    tl.store(out + at, _one_more(tl.sum(tl.load(x + at, at < n, 0.0), 0)), at < n)
"""
SIGNATURE = {"x": "*fp32", "out": "*fp32", "n": "i32"}


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELION_CACHE_DIR", str(tmp_path / "helion"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))


def loaded(kept: Any = None) -> dict[str, Any]:
    given = None if kept is None else EXECUTOR.globals_of(kept, TEXT)
    return vars(codecache.load(TEXT, "rows", EXECUTOR.prepare, kept, given))


def compiled(names: dict[str, Any]) -> Any:
    return offline.compile_offline(names["_rows"], signature=SIGNATURE, target=hardware.target("h200"))


def has_source(function: triton.JITFunction) -> bool:
    return "_src" in vars(function)


def test_a_binary_is_found_without_the_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = loaded()
    before = EXECUTOR.kept_module(TEXT, first)
    assert before is not None and not before.known  # nothing was compiled
    binary = compiled(first)
    kept = EXECUTOR.kept_module(TEXT, first)
    assert kept is not None and sorted(kept.known) == ["_one_more", "_rows"]
    names = loaded(kept)
    found = names["_rows"]
    assert type(found) is deferred.DeferredFunction and found.fn is not first["_rows"].fn
    assert [p.name for p in found.params] == [p.name for p in first["_rows"].params]
    assert compiled(names).hash == binary.hash
    assert found.used_global_vals.keys() == {("_BLOCK_SIZE_0", id(names))}
    assert not has_source(found) and not has_source(names["_one_more"])
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "empty"))
    again = compiled(loaded(kept))
    assert (again.hash, again.asm["ptx"]) == (binary.hash, binary.asm["ptx"])  # with the lines of the same source
    first_source = vars(first["_rows"])
    assert all(getattr(found, name) == first_source[name] for name in ("_src", "raw_src", "starting_line_number"))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = found.nothing


def test_another_constant_is_another_hash() -> None:
    first = loaded()
    binary = compiled(first)
    names = loaded(EXECUTOR.kept_module(TEXT, first))
    names["_BLOCK_SIZE_0"] = tl.constexpr(32)
    assert compiled(names).hash != binary.hash and has_source(names["_rows"])


def test_code_of_a_file_elsewhere_is_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept = EXECUTOR.kept_module(TEXT, loaded())
    monkeypatch.setenv("HELION_CACHE_DIR", str(tmp_path / "moved"))
    assert type(loaded(kept)["_rows"]) is triton.JITFunction
