"""Analyses and code that a former process has kept: what a later one saves, and what makes it analyse again."""

from __future__ import annotations

import dataclasses
import os
import pickle
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from backends.cute.products import BF16, matmul

import helion
import helion.language as hl
from helion import pipeline
from helion._compiler.host.program import PLAIN
from helion.backends import BACKENDS
from helion.runtime import stub_driver
from helion.runtime.specialization import kept, remembered
from helion.runtime.variants.variant import Variant

FACTOR = 3.0
Asked = list[str]


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=BF16, device="meta")


def scaled(value: torch.Tensor) -> torch.Tensor:
    return value * 2.0


def shifted(value: torch.Tensor) -> torch.Tensor:
    return value + 1.0


helper = scaled


def row_sums(x: torch.Tensor, count: int = 4) -> torch.Tensor:
    count = hl.specialize(count)
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile] = helper(x[tile, :].float()).sum(-1) * FACTOR + count
    return out


def applied(x: torch.Tensor, function: Any) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = function(x[tile, :].float())
    return out


@dataclasses.dataclass
class Pair:
    first: torch.Tensor
    second: torch.Tensor


def of_pair(pair: Pair) -> torch.Tensor:
    out = torch.empty_like(pair.first)
    for tile in hl.tile(out.size(0)):
        out[tile, :] = pair.first[tile, :] + pair.second[tile, :]
    return out


@pytest.fixture(autouse=True)
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Take tensors for those of a GPU, with an empty cache; list the backends that kernels are analysed for."""
    monkeypatch.setenv("HELION_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("HELION_VERIFY", raising=False)
    monkeypatch.setattr(type(BACKENDS["cute"]), "is_installed", True)
    monkeypatch.setattr(remembered, "stub", types.SimpleNamespace(on_gpu=lambda v: not isinstance(v, int)))
    found: Asked = []
    original = pipeline._analyse_with
    monkeypatch.setattr(pipeline, "_analyse_with", lambda *args: found.append(args[0].name) or original(*args))
    return found


def variant_of(function: Callable[..., Any], *args: Any, **settings: Any) -> Variant:
    """Return the variant that a new process would make."""
    kernel = helion.kernel(function, **{"backend": "auto", **settings})
    bound: Variant = kernel.variant(args, "h200").variant
    return bound


def run_before(function: Callable[..., Any], *args: Any, **settings: Any) -> Variant:
    """Return the variant of a process that has run its default config."""
    found = variant_of(function, *args, **settings)
    kept.keep(found.specialized, found.full(None))
    return found


def is_found(function: Callable[..., Any], *args: Any, **settings: Any) -> bool:
    return variant_of(function, *args, **settings).specialized.kept is not None


@pytest.mark.parametrize("backend", ["triton", "cute"])
def test_kept_code_reads_its_plan_on_first_use(backend: str) -> None:
    variant = variant_of(matmul.fn, meta(4096, 512), meta(512, 264), backend=backend)
    code = variant.specialized.analysis.code(variant.full(None))
    content = pickle.dumps(code)
    assert f"backends.{backend}.plan".encode() not in content.replace(code.__getstate__()["_plan"], b"")
    found = pickle.loads(pickle.dumps(pickle.loads(content)))
    assert (found.text, found.needs_alignment, found.warnings) == (code.text, code.needs_alignment, code.warnings)
    assert variant.specialized.analysis.backend.emit(found.plan, PLAIN).text == code.text


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("kept/*/*.pickle"))


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize(
    ("function", "args"), [(matmul.fn, (meta(4096, 512), meta(512, 264))), (row_sums, (meta(300, 520), 3))]
)
def test_a_later_process_makes_nothing(
    function: Any, args: tuple[Any, ...], static: bool, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_before(function, *args, static_shapes=static)
    config = first.full(None)
    asked.clear()
    with monkeypatch.context() as patch:
        for name in ("space", "facts", "seeds"):
            patch.setattr(pipeline.Analysis, name, None)
        later = variant_of(function, *args, static_shapes=static)
        of = later.specialized
        assert of.kept is not None and of.kept.config == config
        assert later.analysis.text(config) == first.analysis.text(config)
        assert later.analysis.space_key == first.analysis.space_key
        assert later.analysis.call_facts == first.analysis.call_facts
        assert not {"program", "recorded"} & vars(later.analysis.traced).keys()
    assert asked == []
    for name in ("device", "index_dtype", "target"):
        assert getattr(later.face.env, name) == getattr(first.face.env, name)
    assert later.analysis.program == first.analysis.program
    assert later.analysis.traced.recorded == first.analysis.traced.recorded
    assert later.bucket == first.bucket and of.numbers == first.specialized.numbers
    assert later.key == first.key and later.is_current()
    assert later.analysis.default_config == config
    assert len(later.analysis.others) == len(first.analysis.others) and asked == []
    assert later.analysis.backend_candidates == first.analysis.backend_candidates and asked != []
    assert [each.backend for each in later.analysis.alternatives] == [e.backend for e in first.analysis.alternatives]
    assert repr(later.analysis.facts) == repr(first.analysis.facts)
    other = first.analysis.seeds.seeds[-1].config
    assert later.analysis.text(other) == first.analysis.text(other)


def test_globals_and_functions_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    x = meta(300, 520)
    run_before(row_sums, x, 3)
    assert is_found(row_sums, x, 3)
    for name, value in (("FACTOR", 3), ("FACTOR", 3.5), ("FACTOR", -3.0), ("helper", shifted), ("helper", torch.exp)):
        with monkeypatch.context() as patch:
            patch.setitem(globals(), name, value)
            assert not is_found(row_sums, x, 3)
    assert is_found(row_sums, x, 3)


def test_arguments_settings_and_variables_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    x = meta(300, 520)
    run_before(row_sums, x, 3)
    assert not is_found(row_sums, x, 4)
    assert not is_found(row_sums, meta(300, 521), 3)
    assert not is_found(row_sums, x.T.contiguous().T, 3)
    assert not is_found(row_sums, x, 3, static_shapes=False)
    assert not is_found(row_sums, x, 3, fast_math=True)
    assert not is_found(row_sums, x, 3, backend="triton")
    for name in ("HELION_COMPILE_LIMIT_SECONDS", "HELION_VERIFY", "HELION_SKIP_CACHE"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "1")
            assert not is_found(row_sums, x, 3)
    assert is_found(row_sums, x, 3)


def test_other_versions_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    x = meta(300, 520)
    run_before(row_sums, x, 3)
    monkeypatch.setattr(remembered, "version_of", lambda backend: "another")
    assert not is_found(row_sums, x, 3)


def test_functions_among_the_arguments_are_recognized(tmp_path: Path) -> None:
    x, two = meta(300, 520), 2.0
    run_before(applied, x, scaled)
    assert is_found(applied, x, scaled) and not is_found(applied, x, shifted)
    run_before(applied, x, lambda value: value * two)  # it has state that its code does not show
    run_before(of_pair, Pair(x, x))
    assert len(files(tmp_path)) == 1


def test_the_only_config_is_kept(asked: Asked) -> None:
    given = helion.Config(block_sizes=[2], num_warps=2)
    first = run_before(row_sums, meta(300, 520), 3, configs=[given])
    asked.clear()
    later = variant_of(row_sums, meta(300, 520), 3, configs=[given])
    assert later.full(given) == first.full(given) and later.full(None) == first.full(None) and asked == []
    assert not is_found(row_sums, meta(300, 520), 3, configs=[helion.Config(block_sizes=[4])])
    assert not is_found(row_sums, meta(300, 520), 3)


def test_an_analysis_without_a_config(asked: Asked) -> None:
    bound = helion.kernel(row_sums, backend="auto").bind((meta(300, 520), 3), target="h200")
    name = bound.backend_on_gpu
    asked.clear()
    later = variant_of(row_sums, meta(300, 520), 3)
    assert later.analysis.backend.name == name and asked == []
    assert later.full(None) == bound.default_config()
    kept.keep(later.specialized, later.full(None))
    found = variant_of(row_sums, meta(300, 520), 3).specialized.kept
    assert found is not None and found.config == later.full(None)


def test_a_kept_call_is_written_the_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELION_TARGET", "h200")
    x = torch.zeros(300, 520, dtype=BF16)
    before = run_before(row_sums, x, 3, backend="triton")
    with stub_driver() as driver:
        kernel = helion.kernel(row_sums, backend="triton")
        for written, launched in ((0, 1), (1, 2), (1, 3)):
            kernel(x, 3)
            assert (len(kernel.calls.recent_variants()), len(driver.launches)) == (written, launched)
        assert kernel.bind((x, 3)).config == before.full(None)
        fresh = helion.kernel(row_sums, backend="triton", fast_math=True)
        fresh(x, 3)
        assert len(fresh.calls.recent_variants()) == 1


@pytest.mark.parametrize("damage", ["content", "digest", "writable"])
def test_files_that_others_may_have_written_are_not_read(damage: str, tmp_path: Path) -> None:
    x = meta(300, 520)
    run_before(row_sums, x, 3)
    (path,) = files(tmp_path)
    if damage == "content":
        path.write_bytes(path.read_bytes() + b"x")
    elif damage == "digest":
        next(tmp_path.glob("kept/*.sha256")).write_text("0" * 64)
    else:
        os.chmod(path, 0o777)
    assert not is_found(row_sums, x, 3)


def test_after_another_backend_nothing_is_kept(tmp_path: Path) -> None:
    found = variant_of(row_sums, meta(300, 520), 3)
    if len(found.analysis.alternatives):
        found.specialized.switch_backend("it failed")
        kept.keep(found.specialized, found.full(None))
    assert files(tmp_path) == []


def test_a_folder_keeps_the_latest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_MOST", 2)
    folder = tmp_path / "kept" / "00"
    folder.mkdir(parents=True)
    for at in range(4):
        path = folder / f"{at}.pickle"
        path.write_text("")
        kept._files.digest_file(path).write_text("")
        os.utime(path, (at, at))
    kept._make_room(folder)
    assert [path.name for path in sorted(folder.iterdir())] == ["2.pickle", "3.pickle"]
    assert len(list(folder.parent.glob("*.sha256"))) == 2
