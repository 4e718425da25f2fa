"""The backend that ``auto`` chose in a former process: analyses that a later one saves, and what makes it choose again."""

from __future__ import annotations

import gc
import json
import threading
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from backends.cute.products import BF16, matmul

import helion
import helion.language as hl
from helion import hardware, pipeline
from helion.backends import BACKENDS
from helion.backends.triton.toolchain import digest
from helion.runtime.specialization import remembered

Asked = list[str]


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=BF16, device="meta")


def row_sums(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile, :].float().sum(-1)
    return out


@pytest.fixture(autouse=True)
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Take tensors for those of a GPU, with an empty cache; list the backends that kernels are analysed for."""
    monkeypatch.setenv("HELION_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(type(BACKENDS["cute"]), "is_installed", True)
    monkeypatch.setattr(remembered, "stub", types.SimpleNamespace(on_gpu=lambda v: isinstance(v, torch.Tensor)))
    found: Asked = []
    original = pipeline._analyse_with
    monkeypatch.setattr(pipeline, "_analyse_with", lambda *args: found.append(args[0].name) or original(*args))
    return found


def bound(function: Callable[..., Any], *args: Any, **settings: Any) -> Any:
    """Bind a kernel as a new process does."""
    return helion.kernel(function, **{"backend": "auto", **settings}).bind(args, target="h200")


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("backends/*/*.json"))


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize(
    ("function", "args"), [(matmul, (meta(4096, 512), meta(512, 264))), (row_sums, (meta(300, 520),))]
)
def test_a_later_process_analyses_one_backend(
    function: Any, args: tuple[torch.Tensor, ...], static: bool, asked: Asked
) -> None:
    function = getattr(function, "fn", function)
    first = bound(function, *args, static_shapes=static)
    assert {*asked} == {"cute", "triton"}
    asked.clear()
    later = bound(function, *args, static_shapes=static)
    assert later.backend == first.backend and asked == [first.backend]
    assert later.default_config() == first.default_config()
    assert later.specialized == first.specialized and later.bucket == first.bucket
    assert later.to_code() == first.to_code()
    ours, theirs = later.variant.analysis, first.variant.analysis
    assert ours.is_chosen and len(ours.others) == len(theirs.others)
    assert asked == [first.backend]
    assert ours.backend_candidates == theirs.backend_candidates
    assert [each.backend for each in ours.alternatives] == [each.backend for each in theirs.alternatives]
    if theirs.alternatives:
        following = ours.drop_backend("it failed")
        assert following.backend is not ours.backend
        assert following.default_config == theirs.alternatives[0].default_config


def test_what_the_choice_depends_on(asked: Asked, tmp_path: Path) -> None:
    for columns, options in ((264, {}), (272, {}), (264, {"dot_precision": "ieee"}), (264, {"static_shapes": False})):
        bound(matmul.fn, meta(64, 64), meta(64, columns), **options)
    assert len(files(tmp_path)) == 4
    helion.kernel(matmul.fn, backend="auto").bind((meta(64, 64), meta(64, 264)), target="b200")
    assert len(files(tmp_path)) == 5
    asked.clear()
    for _ in range(2):
        bound(matmul.fn, meta(64, 64), meta(64, 264), backend="triton")
        bound(matmul.fn, meta(64, 64), meta(64, 264), config=helion.Config(block_sizes=[64, 64, 32]))
    assert len(files(tmp_path)) == 5 and asked.count("triton") == 4


def test_a_backend_that_does_not_take_the_kernel_is_forgotten(asked: Asked, tmp_path: Path) -> None:
    def cumulative(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile, :] = torch.cumsum(x[tile, :], dim=1)
        return out

    first = bound(cumulative, meta(300, 520))
    (path,) = files(tmp_path)
    content = json.loads(path.read_text())
    assert first.backend == content["backend"] == "triton" and content["others"] == 0
    for name in ("cute", "no backend"):
        path.write_text(json.dumps({**content, "backend": name}))
        later = bound(cumulative, meta(300, 520))
        assert later.backend == "triton" and later.default_config() == first.default_config()
        assert json.loads(path.read_text()) == content


@pytest.mark.parametrize("text", ["", "{", "[]", '{"backend": "cute", "others": 1, "numbers": "x("}'])
def test_a_damaged_file_is_written_again(text: str, asked: Asked, tmp_path: Path) -> None:
    bound(row_sums, meta(300, 520))
    (path,) = files(tmp_path)
    whole = path.read_text()
    path.write_text(text)
    asked.clear()
    bound(row_sums, meta(300, 520))
    assert {*asked} == {"cute", "triton"} and path.read_text() == whole


def test_nothing_is_kept_without_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELION_SKIP_CACHE", "1")
    bound(row_sums, meta(300, 520))
    assert files(tmp_path) == []


def test_the_text_of_a_target_has_its_sets_in_order() -> None:
    target = hardware.target("h200")
    assert repr(sorted(target.features)) in target.text and "frozenset" not in target.text
    assert len({hardware.target(name).text for name in hardware.known_targets()}) == len(hardware.known_targets())


def test_a_remembered_backend_begins_what_its_launch_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    for name, backend in BACKENDS.items():
        monkeypatch.setattr(type(backend.toolchain), "begin", lambda self, name=name: begun.append(name))
    first = bound(row_sums, meta(300, 520))
    assert begun == []
    bound(row_sums, meta(300, 520))
    assert begun == [first.backend]


def test_the_digest_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(digest, "_READERS", [])
    monkeypatch.setattr(digest, "_read", lambda: read.append(threading.current_thread().name))
    digest.wait()
    assert read == []
    for _ in range(2):
        digest.begin()
    digest.wait()
    assert read == ["helion-digest"]
    digest.read()
    assert read == ["helion-digest", threading.current_thread().name]


def test_no_argument_is_kept_for_the_other_backends(asked: Asked) -> None:
    for made in ("first", "later"):
        x = torch.ones(300, 520, dtype=BF16)
        memory, kernel = weakref.ref(x), bound(row_sums, x)
        del x
        gc.collect()
        assert memory() is None, made
        assert kernel.variant.analysis.backend_candidates and {*asked} == {"cute", "triton"}
