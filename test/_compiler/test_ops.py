"""The table of ops is all that verifier, passes, facts and printer ask of an op they have never heard of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import NoneType
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc
from helion._compiler.frontend import ops
from helion._compiler.frontend.state import TraceState
from helion._compiler.frontend.torch.functions import RULES
from helion._compiler.frontend.values import DeviceValue
from helion._compiler.ir.grammar import Op, Program
from helion._compiler.ir.ops import OPS, OpSpec
from helion._compiler.ir.printer import print_program
from helion._compiler.ir.rewrite import map_ops
from helion._compiler.ir.verifier import verify
from helion.backends.triton.codegen import emit
from helion.backends.triton.codegen.emission import Emission

TOY = OpSpec(mergeable=True, per_lane=True, tile_independent=True)


def record(t: TraceState, x: DeviceValue, y: DeviceValue) -> DeviceValue:
    return ops.emit(t, "toy", (x.value, y.value), x.dtype, x.dims)


def spell(e: Emission, op: Op) -> None:
    x, y = map(e.operand, op.operands)
    e.assign(op, "toy", f"{x} - {y}")


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One row, one rule, one spelling."""
    assert torch.nextafter not in RULES
    monkeypatch.setitem(OPS, "toy", TOY)  # type: ignore[arg-type]
    monkeypatch.setitem(RULES, torch.nextafter, record)
    monkeypatch.setitem(emit._OPS, "toy", spell)  # type: ignore[arg-type]
    yield


def bound_to(function: Callable[..., Any]) -> Any:
    """A kernel made anew, so that it is traced under the tables at hand."""

    @helion.kernel
    def kernel(x: torch.Tensor, y: torch.Tensor, function: Callable[..., Any]) -> torch.Tensor:
        out = torch.empty_like(x)
        for row in hl.tile(x.size(0)):
            a, b = x[row, :].exp(), y[row, :].exp()
            function(b, a)  # dead
            out[row, :] = function(a, b) * function(a, b) + a.sum(1)[:, None]
        return out

    return kernel.bind((torch.ones(5, 77), torch.zeros(5, 77), function))


@pytest.fixture
def bound(toy: None) -> Any:
    return bound_to(torch.nextafter)


def ops_of(program: Program, kind: str) -> list[Op]:
    return [op for op in program.walk() if op.kind == kind]


def test_equal_ones_merge_and_dead_ones_go(bound: Any) -> None:
    program = bound._analysis.program
    assert len(ops_of(program, "toy")) == 1
    assert verify(program, "test") is program
    assert "= toy %" in print_program(program)


def test_it_takes_the_registers_of_a_pointwise_op(bound: Any) -> None:
    plain = bound_to(torch.sub)._analysis.facts
    facts = bound._analysis.facts
    assert (facts.held_tiles, facts.resident_tiles) == (plain.held_tiles, plain.resident_tiles)


def test_it_runs(bound: Any) -> None:
    x, y = torch.randn(5, 77), torch.randn(5, 77)
    expected = (x.exp() - y.exp()) ** 2 + x.exp().sum(1)[:, None]
    torch.testing.assert_close(bound(x, y, torch.nextafter), expected)


def test_what_the_table_says_of_it_is_checked(bound: Any) -> None:
    def without_dims(op: Op) -> Op:
        if op.kind != "toy":
            return op
        return replace(op, results=tuple(replace(result, dims=()) for result in op.results))

    program = bound._analysis.program
    with pytest.raises(exc.VerifierError, match="toy gives float32"):
        verify(map_ops(program, without_dims), "test")


def test_what_no_row_says_may_be_divided_is_not(bound: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rolling takes apart what its row allows: the rest of the row is held at once."""
    assert bound._analysis.rollable == ()
    monkeypatch.setitem(OPS, "toy", replace(TOY, divided_by=frozenset(("roll",))))  # type: ignore[arg-type]
    again = bound_to(torch.nextafter)
    assert len(again._analysis.rollable) == 1


def test_each_class_of_attributes_belongs_to_few_kinds() -> None:
    shared = {spec.attrs for spec in OPS.values() if sum(other.attrs is spec.attrs for other in OPS.values()) > 1}
    assert {each.__name__ for each in shared - {NoneType}} == {"AddressAttrs", "MemoryAttrs"}
