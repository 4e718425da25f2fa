"""Facts are there to be read: by heuristics, by the resource model, by the space, or by what is shown of them."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Iterable
from pathlib import Path

import helion
from helion._compiler.facts import records

ROOT = Path(helion.__file__).parent
READERS = (
    "backends/triton/resources/**/*.py",
    "autotuner/**/*.py",
    "pipeline.py",
    "runtime/explain.py",
    "runtime/bound.py",
)
FACTS = tuple(each for _, each in inspect.getmembers(records, dataclasses.is_dataclass))

#: What nobody reads and why it is there; one that is read fails.
UNREAD = {
    "AccumulatorFact.loop": "whose accumulator it is",
    "MatmulWithReductionEpilogueFact.reduction": "one of the two facts it is composed of",
    "AttentionFact.scores": "one of the two facts it is composed of",
    "AttentionFact.output": "one of the two facts it is composed of",
    "ReductionFact.walked_tiles": "what a pass over a row in chunks carries",
}


def read_names(trees: Iterable[ast.AST]) -> set[str]:
    """Attributes that are loaded anywhere in the trees."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    return {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}


def members(fact: type) -> list[str]:
    """Fields, properties and methods."""
    own = [name for name, value in vars(fact).items() if inspect.isfunction(value) or isinstance(value, property)]
    return [field.name for field in dataclasses.fields(fact)] + [name for name in own if not name.startswith("_")]


def unread(facts: Iterable[type], read: set[str]) -> set[str]:
    return {f"{fact.__name__}.{name}" for fact in facts for name in members(fact) if name not in read}


def test_every_fact_is_read() -> None:
    """By name, so that a fact passes too where another record has an attribute of its name."""
    files = [path for pattern in READERS for path in ROOT.glob(pattern)]
    trees = [ast.parse(path.read_text()) for path in (*files, Path(records.__file__))]
    assert unread(FACTS, read_names(trees)) == set(UNREAD)


@dataclasses.dataclass(frozen=True)
class Planted:
    used: int
    written: int
    idle: int

    @property
    def idle_property(self) -> int:
        return self.used

    def idle_method(self) -> int:
        return self.used


def test_a_planted_fact_that_nobody_reads_is_reported() -> None:
    tree = ast.parse("def f(fact):\n    fact.written = fact.used\n    idle_property = idle_method = 1")
    assert unread([Planted], read_names([tree])) == {
        f"Planted.{name}" for name in ("written", "idle", "idle_property", "idle_method")
    }
    assert len(FACTS) > 10
