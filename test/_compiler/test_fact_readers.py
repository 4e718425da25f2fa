"""Facts are there to be read: by heuristics, by the resource model, by the space, or by what is shown of them.

Attributes of the real records are watched while facts are collected and while they are used for all examples, so that
neither an attribute of the same name elsewhere nor a line that never runs counts as a reader.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from backends.cute.row_kernels import softmax_with_statistics

import helion
import helion.language as hl
from benchmarks.unseen.table import ALL, Maker
from benchmarks.workloads.table import WORKLOADS
from examples.matmul import matmul
from helion._compiler.facts import records
from helion._compiler.facts.summary import summarize
from helion._testing import EXAMPLES_DIR, import_path
from helion.runtime.bound import BoundKernel

SEEDS = import_path(EXAMPLES_DIR.parent / "scripts" / "seeds.py")
FACTS = tuple(each for _, each in inspect.getmembers(records, dataclasses.is_dataclass))

#: GPUs with asynchronous matrix units, with and without tensor memory; their heuristics differ.
TARGETS = ("h200", "sm_100")
AMD = "gfx942"
#: What is read while other facts are made of it, and by nobody later.
COMPOSED: dict[str, str] = {}


def members(fact: type) -> list[str]:
    """Fields, properties and methods."""
    derived = property, functools.cached_property
    own = [name for name, value in vars(fact).items() if inspect.isfunction(value) or isinstance(value, derived)]
    return [field.name for field in dataclasses.fields(fact)] + [name for name in own if not name.startswith("_")]


@contextlib.contextmanager
def watched(*facts: type) -> Iterator[set[str]]:
    """Collects ``Class.member`` for what is read of instances, except by the methods that dataclasses come with."""
    read: set[str] = set()
    known = {fact: frozenset(members(fact)) for fact in facts}
    own = ("<string>", dataclasses.__file__)

    def get(self: Any, name: str) -> Any:
        kind = type(self)
        if name in known.get(kind, ()) and sys._getframe(1).f_code.co_filename not in own:
            read.add(f"{kind.__name__}.{name}")
        return object.__getattribute__(self, name)

    with pytest.MonkeyPatch.context() as patch:
        for fact in facts:
            patch.setattr(fact, "__getattribute__", get)
        yield read


def unread(facts: tuple[type, ...], read: set[str]) -> set[str]:
    return {f"{fact.__name__}.{name}" for fact in facts for name in members(fact)} - read


def first_cells() -> list:
    """The first case of every example and of every other kernel of the table."""
    cells: dict[tuple[str, str], Any] = {}
    for cell in SEEDS.cells():
        cells.setdefault((cell.suite, cell.kernel), cell)
    return list(cells.values())


def _unseen(name: str, target: str, backend: str = "") -> BoundKernel:
    one = next(each for each in (*ALL, *WORKLOADS) if each.kernel.name == name)
    one.kernel.reset()
    dtype, extents = one.shapes[0]
    kernel = helion.kernel(backend=backend)(one.kernel.fn) if backend else one.kernel
    return kernel.bind(one.arguments(Maker("meta"), dtype, *extents), target=target)


@helion.kernel(static_shapes=True)
def row_products(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.softmax(x[tile, :] @ y[:, :], -1)
    return out


@helion.kernel(static_shapes=True)
def image_sums(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for image in hl.grid(x.size(0)):
        total = hl.zeros([], dtype=torch.float32)
        for rows, columns in hl.tile(x.size()[1:]):
            total = total + x[image, rows, columns].sum()
        out[image] = total
    return out


@helion.kernel(static_shapes=True)
def sorted_rows(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.sort(x[tile, :], -1).values
    return out


@helion.kernel(static_shapes=True, backend="cute")
def row_softmax(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.softmax(x[tile, :].float(), -1).to(x.dtype)
    return out


@pytest.mark.prove
def test_every_fact_is_read() -> None:
    cells = first_cells()
    for kernel in (
        *(cell.function for cell in cells),
        softmax_with_statistics,
        matmul,
        row_products,
        image_sums,
        sorted_rows,
    ):
        kernel.reset()  # what other tests have asked of it is kept, and would not be read again
    bound = [SEEDS.bind(cell, target) for cell in cells for target in TARGETS]
    rows = torch.empty([1024, 1024], dtype=torch.bfloat16, device="meta")
    bound += [softmax_with_statistics.bind((rows, rows), target=target) for target in TARGETS]
    bound.append(matmul.bind(tuple(torch.empty(1001, 1001, device="meta") for _ in range(2)), target=TARGETS[0]))
    bound += [
        _unseen(name, target)
        for name, target in (
            ("fused_backward", AMD),
            ("tuned_split", AMD),
            ("rowwise_fp8", TARGETS[0]),
            ("causal_gqa", TARGETS[0]),
            ("gated_state_scan", TARGETS[0]),
        )
    ]
    bound.append(image_sums.bind((torch.empty(64, 300, 200, device="meta"),), target=TARGETS[0]))
    bound += [_unseen(name, TARGETS[0], backend="cute") for name in ("causal_gqa", "fused_backward")]
    bound += [kernel.bind((rows,), target=TARGETS[0]) for kernel in (sorted_rows, row_softmax)]
    products = row_products.bind((rows, rows), target=TARGETS[0])
    with watched(*FACTS) as collecting:
        for each in (*bound, products):
            assert each.facts and each.facts.unfused
    with watched(*FACTS) as using:
        for each in bound:
            assert summarize(each.facts) and each.seeds and each.default_config()
        # what is left of a kernel whose products are computed first is predicted by itself
        config = products.config_spec.normalize({"block_sizes": [1], "unfuse_matmul": [64, 64, 32]})
        assert products._analysis.predict(config).fits
    assert unread(FACTS, using) == set(COMPOSED)
    assert set(COMPOSED) <= collecting


@dataclasses.dataclass(frozen=True, slots=True)
class Planted:
    used: int
    compared: int
    idle: int = 0

    @property
    def idle_property(self) -> int:
        return self.used

    def idle_method(self) -> int:
        return self.used


@dataclasses.dataclass(frozen=True)
class Elsewhere:
    idle: int = 0


def test_a_planted_fact_that_nobody_reads_is_reported() -> None:
    with watched(Planted, Elsewhere) as read:
        fact = Planted(used=1, compared=2)
        assert fact.used == 1 and fact == dataclasses.replace(fact) and hash(fact) and Elsewhere().idle == 0
    assert read == {"Planted.used", "Elsewhere.idle"}
    assert unread((Planted,), read) == {f"Planted.{n}" for n in ("compared", "idle", "idle_property", "idle_method")}
    with watched() as nothing:
        assert fact.idle == 0
    assert not nothing and len(FACTS) > 10
