"""Programs and plans hash, compare, and go to other processes."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import PROVE

import helion
import helion.language as hl
from helion._compiler.ir.grammar import Program
from helion._compiler.ir.host_module import Launch
from helion._compiler.ir.printer import print_program
from helion._compiler.ir.structure import structure
from helion._compiler.ir.verifier import verify
from helion._shapes import Expr
from helion._testing import as_meta, import_path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(p.stem for p in (ROOT / "examples").glob("*.py") if p.stem != "demo" and p.stem[0] != "_")
#: Reads (program, name, settings, config) and gives the module that is made of each.
ELSEWHERE = """
import pickle, sys
from helion._compiler.frontend.guards import Traced
from helion.backends import BACKENDS
from helion.hardware import target
from helion.pipeline import Analysis

for program, name, settings, config in pickle.load(sys.stdin.buffer):
    code = Analysis(Traced(program, {}, (), ()), name, target("sm_90"), settings, BACKENDS["triton"]).code(config)
    print(repr((code.text, hash(code.plan) == hash(pickle.loads(pickle.dumps(code.plan))))))
"""


def bound_of(example: str) -> Any:
    _, kernel, args = next(iter(import_path(ROOT / "examples" / f"{example}.py").cases()))
    return kernel.bind(as_meta(args), target="sm_90")


@pytest.mark.parametrize("example", EXAMPLES)
def test_programs_and_plans_survive_pickling(example: str) -> None:
    bound = bound_of(example)
    program, plan = bound._analysis.program, bound._analysis.code(bound.conservative_config()).plan
    for given in (program, plan):
        copy = pickle.loads(pickle.dumps(given))
        assert copy is not given and copy == given and hash(copy) == hash(given)
    copy = pickle.loads(pickle.dumps(program))
    assert verify(copy, "pickling") is copy and print_program(copy) == print_program(program)


def test_another_process_prints_the_same_text() -> None:
    bounds = [bound_of(example) for example in (EXAMPLES if PROVE else EXAMPLES[::10])]
    given, texts = [], []
    for bound in bounds:
        analysis, config = bound._analysis, bound.conservative_config()
        given.append((analysis.program, analysis.name, analysis.settings, config))
        texts.append(analysis.code(config).text)
    command = [sys.executable, "-c", ELSEWHERE]
    done = subprocess.run(command, input=pickle.dumps(given), stdout=subprocess.PIPE, cwd=ROOT, check=True)
    assert list(map(ast.literal_eval, done.stdout.decode().splitlines())) == [(text, True) for text in texts]


@helion.kernel
def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * factor
    return out


def program_of(*shape: int) -> Program:
    return scaled.bind((torch.empty(shape), 2.0))._analysis.program


CHANGES: list[Callable[[Program], Program]] = [
    lambda p: replace(p, index_dtype=torch.int64),
    lambda p: replace(p, roots=tuple(replace(root, phase=1) for root in p.roots)),
    lambda p: replace(p, roots=tuple(replace(r, body=replace(r.body, ops=r.body.ops[:-1])) for r in p.roots)),
    lambda p: replace(p, host=replace(p.host, function=ast.parse("def f(): pass").body[0])),
    lambda p: replace(p, host=replace(p.host, symbols={**p.host.symbols, "n": "x.size(0)"})),
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_differs_is_told_apart(change: Callable[[Program], Program]) -> None:
    program = program_of(77)
    assert program == program_of(77) and hash(program) == hash(program_of(77))
    assert change(program) != program
    assert program_of(78) != program


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0, 0.0),
        (0.0, -0.0),
        (1, True),
        ((1,), [1]),
        (Expr("host", ("n",), 3), Expr("host", ("n",), 4)),
        (Launch(0), Launch(1)),
    ],
)
def test_numbers_of_different_kinds_are_different(one: Any, other: Any) -> None:
    assert structure(one) == structure(one)
    assert structure(one) != structure(other)


def test_no_number_is_a_number() -> None:
    assert structure(float("nan")) == structure(float("nan"))
