"""Fuzzed gradients: right in the interpreter, and wrong derivatives are reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import PROVE

from fuzz import families, gradients
from helion._compiler.autodiff import pointwise

SEEDS = {"elements": 5, "indexed": 1, "rows": 4}
"""A seed of some families whose kernel is differentiated in a moment."""
NO_FAILURES = {"begun", "right", "refused", "skipped", "unjudged"}


def kinds(family: str, seed: int, folder: Path) -> list[str]:
    draft = families.draw(seed, True, (family,))
    return [line["kind"] for line in gradients.runs(draft, "cpu", folder)]


@pytest.mark.parametrize("family", SEEDS)
def test_gradients_are_right_in_the_interpreter(family: str, tmp_path: Path) -> None:
    assert kinds(family, SEEDS[family], tmp_path) == ["begun", *["right"] * (1 + gradients.CONFIGS)]
    for seed in range(20 if PROVE else 0):
        assert NO_FAILURES.issuperset(kinds(family, seed, tmp_path))


def test_a_wrong_derivative_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pointwise.POINTWISE, "tanh", ("{g} * {y}",))  # type: ignore[arg-type]
    assert kinds("rows", SEEDS["rows"], tmp_path) == ["begun", "wrong"]
