"""CPU tensors that stand for those of a GPU at a first call."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest
import torch

from helion.runtime.tuning import autotune, loaded
from helion.runtime.variants import policies


@pytest.fixture
def as_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take every tensor for one of a GPU, with an empty cache."""
    monkeypatch.setenv("HELION_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(policies, "stub", types.SimpleNamespace(on_gpu=lambda value: isinstance(value, torch.Tensor)))
    loaded.forget_loaded()


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many configs each search tried."""
    found: list[int] = []
    original = autotune.tune

    def counted(*args: Any, **options: Any) -> Any:
        result = original(*args, **options)
        found.append(len(result.outcomes))
        return result

    monkeypatch.setattr(autotune, "tune", counted)
    return found
