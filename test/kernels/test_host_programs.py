"""Host code against plain Python: random programs, each called several times with other numbers, shapes, strides and
globals. None may be wrong or crash, and few may be refused. `make prove` runs many more."""

from __future__ import annotations

import importlib.util
import itertools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from host_programs import PARAMETERS, Program, build, judge, shrink
from sampling import seeds, shown
from trials import check_trials

from helion import exc

#: The share of programs that may be refused.
REFUSED = 0.10


def loader(directory: Path) -> Callable[[str], dict[str, Any]]:
    numbers = itertools.count()

    def load(source: str) -> dict[str, Any]:
        path = directory / f"program_{next(numbers)}.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(f"{directory.name}_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return vars(module)

    return load


def failure(program: Program, kind: str, load: Callable[[str], dict[str, Any]]) -> str:
    smallest = shrink(program, lambda p: judge(p, load, exc.Base).kind == kind)
    return f"{judge(smallest, load, exc.Base).detail}\n{smallest.text()}"


def check(seeds: range, directory: Path) -> None:
    load, refused = loader(directory), []
    for seed in seeds:
        program = build(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            verdict = judge(program, load, exc.Base)
        assert verdict.kind in ("right", "refused"), f"seed {seed}: {failure(program, verdict.kind, load)}"
        refused += [f"{seed}: {verdict.detail}"] if verdict.kind == "refused" else []
    assert len(refused) <= REFUSED * len(seeds), "\n".join(refused)


# Parts of a range run side by side; the share of refusals is that of many programs.
SAMPLE, PART = 30, 497


@pytest.mark.parametrize("first", [0, *(pytest.param(at, marks=pytest.mark.prove) for at in range(SAMPLE, 5000, PART))])
def test_random_host_programs(first: int, tmp_path: Path) -> None:
    check(range(first, first + (PART if first else SAMPLE)), tmp_path)


@pytest.mark.gpu
@pytest.mark.parametrize("first", [0, 100])
def test_random_host_programs_on_a_gpu(first: int, tmp_path: Path) -> None:
    """Where calls after the first go through guards, and where tensors are made follows torch's default device."""
    with torch.device("cuda"):
        check(range(first, first + 100), tmp_path)


@pytest.mark.parametrize("of", seeds(20, 1000), ids=shown)
def test_forgotten_trials(of: range, tmp_path: Path) -> None:
    load = loader(tmp_path)
    for seed in of:
        program = build(seed)
        module = load(program.source())
        arguments = program.calls[0].arguments
        args = tuple(eval(arguments[name], module) for name in PARAMETERS.split(", "))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                check_trials(module["kernel"], args)
            except ValueError as error:
                assert error.args == ("rows",)  # what programs raise of their own
