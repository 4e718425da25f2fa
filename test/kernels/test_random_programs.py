"""Random programs against eager: the same statements as a kernel and as plain Python, under random configs.

Rows mix elementwise functions, reductions and broadcasts; control flow mixes loops, branches, swaps and counters.
`make prove` runs many more.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from generated_source import load
from rewrite_pairs import Poison
from sampling import seeds, shown
from trials import check_trials

import helion

ROW_KERNEL = """
@helion.kernel
def kernel(x, f):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = f(x[tile, :])
    return out
"""
ELEMENTWISE = (
    "torch.exp({} * 0.1)", "torch.cos({})", "{}.abs() + 1", "torch.relu({})", "-{}", "{} * 0.5", "{} + 2",
    "1 / ({}.abs() + 1)", "torch.tanh({})", "torch.sigmoid({})", "torch.clamp({}, -1, 1)", "torch.log({}.abs() + 0.5)",
)  # fmt: skip
BINARY = (
    "{} + {}", "{} - {}", "{} * {}", "torch.maximum({}, {})", "torch.minimum({}, {})", "torch.where({} > {}, 1.0, -1.0)",
)  # fmt: skip
REDUCTIONS = (
    "{}.sum(-1, keepdim=True) * 0.1", "{}.mean(-1, keepdim=True)", "{}.amax(-1, keepdim=True)", "{}.mean(1)[:, None]",
    "{}.amin(-1, keepdim=True)", "{}.amax(-1).unsqueeze(-1)", "torch.logsumexp({}, -1, keepdim=True)",
    "{}.var(-1, correction=0, keepdim=True)", "torch.tanh({}).prod(-1, keepdim=True)",
)  # fmt: skip


def row_function(rng: random.Random) -> str:
    """Source of ``f(v)``, from rows to rows."""
    lines, rows, columns = [], ["v"], []
    for at in range(rng.randint(3, 9)):
        name, kind = f"t{at}", rng.random()
        anything = rng.choice(rows + columns)
        if kind < 0.35:
            lines.append(f"{name} = {rng.choice(ELEMENTWISE).format(anything)}")
            (columns if anything in columns else rows).append(name)
        elif kind < 0.6:
            lines.append(f"{name} = {rng.choice(BINARY).format(rng.choice(rows), anything)}")
            rows.append(name)
        elif kind < 0.95:
            lines.append(f"{name} = {rng.choice(REDUCTIONS).format(rng.choice(rows))}")
            columns.append(name)
        else:
            lines.append(f"{name} = torch.softmax({rng.choice(rows)}, -1)")
            rows.append(name)
    body = "".join(f"    {line}\n" for line in lines)
    return f"def f(v):\n{body}    return {' + '.join([rows[-1], *columns[-3:]])}\n"


class ControlFlow:
    """Statements on a, b, c, d (tiles) and m (a counter), with loops and branches up to three deep."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.loops = 0
        self.body = self.block(0, [])

    def expression(self, loops: list[str]) -> str:
        first, second = self.rng.choices("abcd", k=2)
        column = self.rng.choice(loops) if loops else "1"
        return self.rng.choice(
            [
                first, f"{first} + {second}", f"{first} * 0.5 - {second}", f"torch.maximum({first}, {second})",
                f"{first} + x[tile, {column}]", f"{first} + {column} * 0.25", f"-{first}", f"{first} + m",
            ]
        )  # fmt: skip

    def condition(self, loops: list[str]) -> str:
        known = ["x[0, 0] > 0", "x[0, 1] > 0", "x[0, 2] > 0", "m % 2 == 0", "m > 4", "n > 2"]
        return self.rng.choice(known + [f"{loop} % 2 == 1" for loop in loops] + [f"x[0, {loop}] > 0" for loop in loops])

    def block(self, depth: int, loops: list[str]) -> list[str]:
        lines: list[str] = []
        for _ in range(self.rng.randint(1, 4)):
            kind = self.rng.random()
            a, b, c = self.rng.sample("abcd", 3)
            if kind < 0.45 or depth == 3:
                lines.append(f"{a} = {self.expression(loops)}")
            elif kind < 0.55:
                lines.append(f"{a}, {b} = {b}, {self.rng.choice([a, self.expression(loops)])}")
            elif kind < 0.62:
                lines.append(f"{a}, {b}, {c} = {c}, {a}, {b}")
            elif kind < 0.7:
                lines.append(self.rng.choice(["m = m + 1", "m = m * 2", "m += 3"]))
            elif kind < 0.85:
                lines += [f"if {self.condition(loops)}:", *self.inner(depth, loops)]
                if self.rng.random() < 0.6:
                    lines += ["else:", *self.inner(depth, loops)]
            else:
                self.loops += 1
                loop = f"j{self.loops}"
                lines += [f"for {loop} in span({self.rng.choice('23n0')}):", *self.inner(depth, [*loops, loop])]
        return lines

    def inner(self, depth: int, loops: list[str]) -> list[str]:
        return [f"    {line}" for line in self.block(depth + 1, loops)]

    def source(self, device: bool) -> str:
        start = ["a, b, c, d = x[tile, 0], x[tile, 1], x[tile, 2], x[tile, 0] * 2", "m = 1"]
        end = [f"out[{at}, tile] = {name}" for at, name in enumerate("abcdm")]
        body = "".join(f"        {line}\n" for line in [*start, *self.body, *end])
        head = "@helion.kernel\ndef kernel(x, n):\n" if device else "def eager(x, n):\n"
        loop = "hl.tile(x.size(0))" if device else "[slice(None)]"
        text = f"{head}    out = torch.empty([5, x.size(0)], dtype=x.dtype)\n    for tile in {loop}:\n{body}    return out\n"
        return text.replace("span(", "hl.grid(" if device else "range(")


def compare(
    kernel: helion.Kernel, args: tuple[Any, ...], expected: torch.Tensor, rng: random.Random, what: str
) -> None:
    if not torch.isfinite(expected).all() or expected.abs().max() > 1e6:
        return  # rounding would decide
    bound = kernel.bind(args)
    for config in (bound.conservative_config(), bound.config_spec.random(rng)):
        with Poison():
            got = bound.compile_config(config)(*args)
        error = (got - expected).abs() / (expected.abs() + 1)
        assert bool(error.max() < 1e-3), f"{what}\nwith {config}"


def rows(seed: int, directory: Path, kernel: helion.Kernel) -> None:
    rng = random.Random(seed)
    source = row_function(rng)
    f: Callable[..., Any] = load(source, directory, f"row_{seed}").f
    x = torch.randn(5, rng.choice([3, 7, 21, 37]), generator=torch.Generator().manual_seed(seed)) - 0.7
    compare(kernel, (x, f), f(x.double()), rng, source)


def control_flow(seed: int, directory: Path) -> None:
    rng = random.Random(seed)
    program = ControlFlow(rng)
    module = load(f"{program.source(True)}\n{program.source(False)}", directory, f"flow_{seed}")
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))
    n = rng.choice([0, 1, 3])
    compare(module.kernel, (x, n), module.eager(x.double(), n), rng, program.source(True))


@pytest.mark.parametrize("of", seeds(25, 1000), ids=shown)
def test_rows(of: range, tmp_path: Path) -> None:
    kernel = load(ROW_KERNEL, tmp_path, "kernel").kernel
    for seed in of:
        rows(seed, tmp_path, kernel)


@pytest.mark.parametrize("of", seeds(15, 2000), ids=shown)
def test_control_flow(of: range, tmp_path: Path) -> None:
    for seed in of:
        control_flow(seed, tmp_path)


@pytest.mark.parametrize("of", seeds(12, 1000), ids=shown)
def test_forgotten_trials(of: range, tmp_path: Path) -> None:
    for seed in of:
        program = ControlFlow(random.Random(seed))
        check_trials(load(program.source(True), tmp_path, f"trial_{seed}").kernel, (torch.ones(5, 4), 3))
