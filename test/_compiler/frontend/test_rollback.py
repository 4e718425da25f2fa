"""What is traced twice leaves nothing of the first time behind: every attribute of a trace goes back to what it was."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType, NoneType
from typing import Any

import pytest
import torch
from harness import context_for, tensor

import helion.language as hl
from helion import exc
from helion._compiler.context import CompileContext
from helion._compiler.frontend import memory, ops
from helion._compiler.frontend import trace as entry
from helion._compiler.frontend.journal import Part
from helion._compiler.frontend.rules import Rules
from helion._compiler.frontend.torch.functions import RULES
from helion._compiler.frontend.tracer import Tracer
from helion._compiler.frontend.values import HostTensorValue
from helion._compiler.ir.build import Builder
from helion._compiler.ir.printer import print_program

_COLLECTIONS = (list, dict, set)


def traced(fn: Callable[..., Any], *args: Any) -> entry.Traced:
    arguments = dict(zip(inspect.signature(fn).parameters, args, strict=True))
    return entry.trace(fn, arguments, context_for(), frozenset())


def parts(t: Tracer) -> dict[str, Part]:
    return {type(part).__name__: part for part in t.parts}


def contents(value: Any) -> Any:
    """A value that can be compared later: collections as they are now, anything else itself."""
    return (type(value), value.copy()) if type(value) in _COLLECTIONS else value


def disturb(part: Part, name: str) -> None:
    """Change an attribute as traces do: collections grow, anything else is replaced."""
    value, new = getattr(part, name), object()
    if type(value) is list:
        value.append(new)
    elif type(value) is dict:
        value[new] = new
    elif type(value) is set:
        value.add(new)
    elif not isinstance(value, (Part, Builder)):  # they have attributes of their own
        setattr(part, name, new)


ATTRIBUTES = [
    (where, name) for where, part in parts(Tracer(context_for(), RULES)).items() for name in sorted(vars(part))
]


@pytest.mark.parametrize(("where", "name"), ATTRIBUTES)
def test_every_attribute_goes_back(where: str, name: str) -> None:
    t = Tracer(context_for(), RULES)
    part = parts(t)[where]
    before = contents(getattr(part, name))
    saved = t.snapshot()
    for _ in range(2):  # a snapshot may be used again
        disturb(part, name)
        t.restore(saved)
        assert contents(getattr(part, name)) == before


@pytest.mark.parametrize(("where", "name"), ATTRIBUTES)
def test_nothing_else_in_a_part_can_change(where: str, name: str) -> None:
    """Objects that are changed in place are parts, or collections, or put back by ``restore`` by name."""
    value = getattr(parts(Tracer(context_for(), RULES))[where], name)
    fixed = (int, bool, str, frozenset, torch.device, CompileContext, Rules, FunctionType, NoneType)
    assert type(value) in _COLLECTIONS or isinstance(value, (Part, Builder, *fixed))


def test_the_builder_goes_back() -> None:
    t = Tracer(context_for(), RULES)
    with t.builder.region() as recorded:
        kept = ops.full(t, (), 1.0, torch.float32)
        saved = t.snapshot()
        dropped = ops.full(t, (), 2.0, torch.float32)
        t.restore(saved)
        assert [op.results for op in recorded] == [(kept.value,)]
        again = ops.full(t, (), 3.0, torch.float32)
    assert again.value.number == dropped.value.number


def test_host_tensors_go_back() -> None:
    t = Tracer(context_for(), RULES)
    known = HostTensorValue(t, (4, 8), (8, 1), torch.float32, torch.device("meta"), 0, "x")
    before, saved = dict(vars(known)), t.snapshot()
    known.source, known.aligned = "", False
    t.torch_call(torch.Tensor.t_, (known,), {})
    assert known.shape == (8, 4)
    HostTensorValue(t, (2,), (1,), torch.float32, torch.device("meta"), 1)
    t.restore(saved)
    assert vars(known) == before
    assert known.meta.shape == (4, 8)
    assert t.tensors.made == [known]


def collections_in(value: Any) -> list[Any]:
    items = value.values() if isinstance(value, dict) else value
    return [item for item in items if type(item) in _COLLECTIONS]


def with_counter(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for rows in hl.tile(x.size(0)):
        steps = 0  # a number that the loop changes is found out by tracing it
        for columns in hl.tile(x.size(1)):
            hl.atomic_add(count, [0], 1)
            steps = steps + 1
            out[rows, columns] = x[rows, columns] * steps
    return out


def with_two_counters(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for rows in hl.tile(x.size(0)):
        outer = 0
        for columns in hl.tile(x.size(1)):
            inner = 0
            for more in hl.tile(x.size(1)):
                inner = inner + outer
                hl.atomic_add(count, [0], inner + x[rows, more].sum())
            outer = outer + 1
            out[rows, columns] = x[rows, columns] * inner
    return out


def in_a_host_loop(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    for _step in range(3):
        y = torch.zeros_like(x)
        for rows in hl.tile(x.size(0)):
            hl.atomic_add(count, [0], x[rows, 0].sum())
            y[rows, :] = x[rows, :] * 2
        x = y
    return x


def with_a_while(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for rows in hl.tile(x.size(0)):
        left = 4
        while left > 0:
            hl.atomic_add(count, [0], left)
            left = left - 1
        out[rows, :] = x[rows, :] * left
    return out


KERNELS = (with_counter, with_two_counters, in_a_host_loop, with_a_while)


@pytest.mark.parametrize("fn", KERNELS, ids=lambda fn: fn.__name__)
def test_collections_hold_nothing_that_is_changed_in_place(fn: Callable[..., Any], monkeypatch: Any) -> None:
    made: list[Tracer] = []

    class Watched(Tracer):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(entry, "Tracer", Watched)
    traced(fn, tensor(64, 32, dtype=torch.float32), tensor(1, dtype=torch.float32))
    held = [value for part in made[0].parts for value in vars(part).values() if type(value) in _COLLECTIONS]
    assert not [items for value in held if (items := collections_in(value))]


def atomic_slots(fn: Callable[..., Any]) -> list[int]:
    program = traced(fn, tensor(64, 32, dtype=torch.float32), tensor(1, dtype=torch.float32)).program
    return [op.attrs.slot for root in program.roots for op in root.body.walk() if op.kind == "atomic"]


@pytest.mark.parametrize("fn", KERNELS, ids=lambda fn: fn.__name__)
def test_atomics_are_counted_once(fn: Callable[..., Any]) -> None:
    assert atomic_slots(fn) == [0]


def test_warnings_come_once() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty([64, 64], dtype=x.dtype, device=x.device)
        for rows, columns in hl.tile([64, 64]):
            steps, acc = 0, hl.zeros([rows, columns])
            for inner in hl.tile(32):
                steps = steps + 1
                acc += x[rows, inner] @ y[inner, columns]
            out[rows, columns] = acc * steps
        return out

    warnings = traced(fn, tensor(64, 32, dtype=torch.float32), tensor(32, 64, dtype=torch.float32)).warnings
    assert [type(warning) for warning in warnings] == [exc.TiledKMatmulAccumulationWarning]


@pytest.mark.parametrize("fn", KERNELS, ids=lambda fn: fn.__name__)
def test_going_back_is_as_never_having_traced(fn: Callable[..., Any], monkeypatch: Any) -> None:
    """What is recorded, forgotten and recorded again gives the same program."""
    arguments = (tensor(64, 32, dtype=torch.float32), tensor(1, dtype=torch.float32))
    expected = print_program(traced(fn, *arguments).program)

    def twice(once: Callable[..., Any]) -> Callable[..., Any]:
        def call(t: Tracer, *args: Any, **kwargs: Any) -> Any:
            saved = t.snapshot()
            once(t, *args, **kwargs)
            t.restore(saved)
            return once(t, *args, **kwargs)

        return call

    for owner, names in (
        (Tracer, ("torch_call", "tile_index")),
        (memory, ("load", "store", "atomic")),
        (ops, ("full",)),
    ):
        for name in names:
            monkeypatch.setattr(owner, name, twice(getattr(owner, name)))
    assert print_program(traced(fn, *arguments).program) == expected
