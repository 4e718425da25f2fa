"""Heuristics know facts and target, not each other: any one can go, with its file and its line of the registry."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from conftest import PROVE

from helion._testing import EXAMPLES_DIR, import_path
from helion.autotuner.legalise import legalise
from helion.autotuner.proposal import Declined, Heuristic
from helion.autotuner.seeds import MAX_SEEDS, SeedReport, make_seeds
from helion.backends.triton.heuristics import registry
from helion.backends.triton.heuristics.registry import HEURISTICS
from helion.backends.triton.heuristics.several_loops import OfAllLoops
from helion.backends.triton.proposal import TritonProposal

FILES = {Path(str(sys.modules[type(rule).__module__].__file__)) for rule in HEURISTICS}
SEEDS = import_path(EXAMPLES_DIR.parent / "scripts" / "seeds.py")
TARGETS = ("h200", "sm_90")
PARTS = 8


def imported(tree: ast.Module) -> set[str]:
    """The last names of the modules that are imported, and what is imported from them."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found.update([(node.module or "").split(".")[-1], *(alias.name for alias in node.names)])
        elif isinstance(node, ast.Import):
            found.update(alias.name.split(".")[-1] for alias in node.names)
    return found


def offenders(files: Iterable[Path], texts: dict[Path, str]) -> dict[str, set[str]]:
    """The heuristics that files other than their own import."""
    names = {path.stem for path in files}
    found = {path.name: (imported(ast.parse(text)) & names) - {path.stem} for path, text in texts.items()}
    return {name: modules for name, modules in found.items() if modules}


def texts() -> dict[Path, str]:
    """Every file of the folder but the registry: what heuristics share may not know one of them either."""
    folder = Path(str(registry.__file__)).parent
    return {path: path.read_text() for path in folder.rglob("*.py") if path.name != "registry.py"}


def test_each_heuristic_has_a_file_of_its_own_which_no_other_imports() -> None:
    assert len(FILES) == len(HEURISTICS)
    assert offenders(FILES, texts()) == {}


@pytest.mark.parametrize(
    "planted",
    [
        "from .{} import TritonRule",
        "from . import {}",
        "import helion.backends.triton.heuristics.{}",
        "def f():\n    from .{} import _feasible",
    ],
)
def test_an_import_of_another_heuristic_is_noticed(planted: str) -> None:
    other = min(FILES).stem
    changed = {
        path: text + f"\n{planted.format(other)}\n" if path.stem == "sizing" else text for path, text in texts().items()
    }
    assert offenders(FILES, changed) == {"sizing.py": {other}}


@functools.cache
def bound_examples() -> list:
    """The first case of every example, or of every second one, on a GPU with rules of its own and on one without, with their seeds."""
    cells = {}
    for cell in SEEDS.cells():
        cells.setdefault((cell.suite, cell.kernel), cell)
    looked_at = [*cells.values()] if PROVE else [*cells.values()][::2]
    bound = [SEEDS.bind(cell, target) for cell in looked_at for target in TARGETS]
    assert sum(bool(each.seeds) for each in bound) > len(looked_at)
    return bound


def report(bound, rules: tuple[Heuristic, ...]) -> SeedReport:
    analysis = bound._analysis
    space, predict, lighter = analysis.space, analysis.predict, analysis.backend.with_less_smem
    of_all_loops = tuple(map(OfAllLoops, rules))
    return make_seeds(
        analysis.facts, analysis.target, of_all_loops, lambda proposal: legalise(proposal, space, predict, lighter)
    )


def examples_of(rule: Heuristic) -> list:
    """Those that the rule has a seed for, and of the others a part, which is another for the next rule."""
    bound = bound_examples()
    part = {*bound} if PROVE else {*bound[HEURISTICS.index(rule) % PARTS :: PARTS]}
    return [each for each in bound if each in part or any(seed.heuristic == rule.name for seed in each.seeds)]


@pytest.mark.parametrize("removed", HEURISTICS, ids=lambda rule: rule.name)
def test_without_a_heuristic_the_others_propose_what_they_did(removed: Heuristic) -> None:
    left = tuple(rule for rule in HEURISTICS if rule is not removed)
    stand_ins = {rule.name for rule in HEURISTICS if rule.fallback_only}
    for bound in examples_of(removed):
        before = bound.seeds
        after = report(bound, left).seeds
        assert len(before) < MAX_SEEDS
        # the first of equal proposals is the seed, so those of the removed one may be another's now
        freed = {seed.config for seed in before if seed.heuristic == removed.name}
        kept = [seed for seed in after if seed.config not in freed and seed.heuristic not in stand_ins]
        assert kept == [s for s in before if s.heuristic not in (removed.name, *stand_ins)], bound._analysis.name
        assert after or {seed.heuristic for seed in before} <= {HEURISTICS[-1].name}, bound._analysis.name


class _Promotes(Heuristic):
    name, promote_seed_to_default = "Promotes", True

    def propose(self, facts, target) -> tuple[TritonProposal, ...]:
        return (TritonProposal(reason="", num_warps=8),)


class _StandsIn(Heuristic):
    name, promote_seed_to_default, fallback_only = "StandsIn", True, True

    def propose(self, facts, target) -> tuple[TritonProposal, ...]:
        return (TritonProposal(reason="", num_warps=2),)


class _Declines(Heuristic):
    name, promote_seed_to_default = "Declines", True

    def propose(self, facts, target) -> Declined:
        return Declined("not today")


def test_a_heuristic_that_fallback_only_is_asked_where_none_before_it_promotes() -> None:
    bound = bound_examples()[0]
    alone = report(bound, (_Declines(), _StandsIn()))
    assert [seed.heuristic for seed in alone.seeds] == ["StandsIn"]
    assert alone.declined == (("Declines", "not today"),) and len(alone.promoted) == 1
    behind = report(bound, (_Promotes(), _StandsIn()))
    assert [seed.heuristic for seed in behind.seeds] == ["Promotes"]
    assert behind.declined == (("StandsIn", "it is a fallback, and Promotes promotes a seed"),)
    before = report(bound, (_StandsIn(), _Promotes()))
    assert [seed.heuristic for seed in before.seeds] == ["StandsIn", "Promotes"]
