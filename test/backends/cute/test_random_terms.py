"""Random sums of matmuls: loops, accumulators, and operands of any layout, beside fp64."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from backends.cute import products

from helion._testing import import_path
from helion.backends.cute.codegen.module import build

WEIGHTS = (1.0, -0.5, 0.25, 2.0)
HEAD = "import torch\nimport helion\nimport helion.language as hl\n\n\n@helion.kernel(backend='cute')\n"


@dataclass
class Sums:
    """A kernel as text. ``terms`` has the tensors of each accumulator's dots, and ``starts`` what they begin with."""

    m: int
    n: int
    dtype: torch.dtype
    starts: list[float]
    terms: list[list[tuple[str, str]]]
    shapes: dict[str, tuple[int, int]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        names, sums = sorted(self.shapes), range(len(self.starts))
        total = " + ".join(f"{WEIGHTS[at]} * c{at}" for at in sums)
        return "\n".join((
            f"{HEAD}def kernel({', '.join(names)}):",
            f"    out = torch.empty([{self.m}, {self.n}], dtype=torch.float32, device={names[0]}.device)",
            f"    for i, j in hl.tile([{self.m}, {self.n}]):",
            *(f"        c{at} = hl.full([i, j], {self.starts[at]}, dtype=torch.float32)" for at in sums),
            *self.lines,
            f"        out[i, j] = {total}",
            "    return out",
        ))  # fmt: skip

    def tensor(self, name: str, rows: int, columns: int, turned: bool) -> str:
        """Return the name of a matrix, whose transpose the kernel reads if it is ``turned``."""
        name = f"{name}_turned" if turned else name
        self.shapes[name] = (columns, rows) if turned else (rows, columns)
        return name

    def exact(self, given: dict[str, torch.Tensor]) -> torch.Tensor:
        read = {name: (each.t() if name.endswith("_turned") else each).double() for name, each in given.items()}
        sums = (
            start + sum((read[a] @ read[b] for a, b in terms), start=torch.zeros(()))
            for start, terms in zip(self.starts, self.terms, strict=True)
        )
        return sum((weight * each for weight, each in zip(WEIGHTS, sums, strict=False)), start=torch.zeros(()))


def drawn(rng: random.Random) -> Sums:
    count = rng.randint(1, 4)
    made = Sums(
        m=rng.choice((130, 64, 203)),
        n=rng.choice((104, 75, 40)),
        dtype=rng.choice((torch.bfloat16, torch.float16, torch.float32)),
        starts=[rng.choice((0.0, 0.0, 0.5)) for _ in range(count)],
        terms=[[] for _ in range(count)],
    )
    loops = rng.randint(1, 3)
    for loop in range(loops):
        added = [at for at in range(count) if rng.random() < 0.75] or [rng.randrange(count)]
        added = sorted({*added, *(at for at in range(count) if not made.terms[at])}) if loop == loops - 1 else added
        made.lines += _loop(made, rng, loop, added * rng.randint(1, 2))
    return made


def _loop(made: Sums, rng: random.Random, loop: int, added: list[int]) -> Iterator[str]:
    """Yield the lines of a loop that adds to accumulators, of which some may be repeated."""
    k = rng.choice((72, 64, 77, 24))
    yield f"        for d in hl.tile({k}):"
    for at in added:
        a = made.tensor(f"a{loop}{rng.randrange(2)}", made.m, k, rng.random() < 0.3)
        b = made.tensor(f"b{loop}{rng.randrange(3)}", k, made.n, rng.random() < 0.3)
        left = f"{a}[d, i].T" if a.endswith("_turned") else f"{a}[i, d]"
        right = f"{b}[j, d].T" if b.endswith("_turned") else f"{b}[d, j]"
        made.terms[at].append((a, b))
        yield f"            c{at} = hl.dot({left}, {right}, acc=c{at})"


@pytest.mark.parametrize("seed", [3, *(pytest.param(seed, marks=pytest.mark.prove) for seed in range(40))])
def test_random_sums_are_those_of_fp64(seed: int, tmp_path: Path) -> None:
    made = drawn(random.Random(seed))
    path = tmp_path / f"sums_{seed}.py"
    path.write_text(made.text + "\n")
    given = {
        name: (products.values(*shape, dtype=torch.float32, device="cpu", seed=at) / 8).to(made.dtype)
        for at, (name, shape) in enumerate(sorted(made.shapes.items()))
    }
    bound = import_path(path).kernel.bind(tuple(given.values()), target=("sm_90", "sm_100")[seed % 2])
    wanted = made.exact(given)
    assert (bound(*given.values()).double() - wanted).norm() < 1e-5 * wanted.norm()
    build(bound.plan().gemm)  # verifies the roles
