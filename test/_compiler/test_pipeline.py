"""The steps of the compiler: all named, in order, printed, and checked one by one."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc
from helion._compiler.ir.build import Numbers
from helion._compiler.ir.grammar import (
    ForAttrs,
    GatherAttrs,
    Op,
    Program,
    ReduceAttrs,
    Region,
    Variables,
    WhileAttrs,
)
from helion._compiler.ir.ops import OPS
from helion._compiler.ir.printer import print_program
from helion._compiler.ir.rewrite import map_ops
from helion._compiler.ir.verifier import verify
from helion._compiler.pipeline import PASSES, run_passes, step_names
from helion._compiler.rewrites import REWRITES
from helion._compiler.rewrites.steps import (
    CHOOSE_BRANCHES,
    FLATTEN,
    INSERT_CHECKS,
    ORDER_MEMORY,
    ROLL,
    SUBTILE,
    Step,
    StepInputs,
    run_steps,
)
from helion.backends import BACKENDS
from helion.backends.triton.codegen.ops import checks as ops_checks
from helion.backends.triton.codegen.ops import control as ops_control
from helion.backends.triton.codegen.ops import inline as ops_inline
from helion.backends.triton.codegen.ops import lanes as ops_lanes
from helion.backends.triton.codegen.ops import matmul as ops_matmul
from helion.backends.triton.codegen.ops import memory as ops_memory
from helion.backends.triton.codegen.ops import values as ops_values
from helion.backends.triton.lower.carries import share_variables
from helion.backends.triton.lower.pin_reductions import pin_reductions
from helion.backends.triton.lower.steps import unbatch_dots, unread_atomics, widen_gathers

STEPS = BACKENDS["triton"].steps
NAMES = step_names(STEPS)


@helion.kernel
def sums(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.empty_like(x)
    total = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    for row in hl.tile(x.size(0)):
        before = hl.zeros([row], dtype=torch.float32)
        for column in hl.tile(x.size(1)):
            values = x[row, column]
            out[row, column] = values + before[:, None]
            before = before + values.sum(1)
        total[row] = before
    return out, total


@helion.kernel
def swapped(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        value = x[tile]
        a, b = value, value
        c = hl.zeros([tile])
        for _ in hl.grid(9):
            a, b = b, a + b
            c = c + a
        while c.sum() < 0:
            c = c + 1
        out[tile] = a + c
    return out


@helion.kernel
def picked(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    out = torch.empty(index.shape, dtype=x.dtype, device=x.device)
    for row in hl.tile(x.size(0)):
        out[row, :] = torch.gather(x[row, :], 1, index[row, :])
    return out


@helion.kernel
def counted(x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(counts)
    for tile in hl.tile(x.size(0)):
        hl.atomic_add(counts, [tile], 1.0)
        out[tile] = hl.atomic_add(counts, [tile], x[tile])
    return out


@helion.kernel
def products(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for batch, row in hl.tile([x.size(0), x.size(1)]):
        out[batch, row, :] = torch.bmm(x[batch, row, :], y[batch, :, :])
    return out


ARGS: dict[str, tuple[helion.Kernel, tuple[Any, ...]]] = {
    "sums": (sums, (torch.ones(5, 7),)),
    "swapped": (swapped, (torch.ones(5),)),
    "counted": (counted, (torch.ones(5), torch.zeros(5))),
    "products": (products, (torch.ones(4, 16, 16), torch.ones(4, 16, 16))),
    "picked": (picked, (torch.ones(5, 3), torch.zeros(5, 11, dtype=torch.int64))),
}


def generate(name: str) -> Any:
    """The code of the conservative config, made anew."""
    kernel, args = ARGS[name]
    bound = helion.kernel(kernel.fn).bind(args, target="sm_90")
    return bound._analysis.code(bound.conservative_config())


def inputs(program: Program) -> StepInputs:
    sizes = {block.id: 16 for block in program.blocks}
    return StepInputs(sizes=sizes, threads=128, steady=True)


def program_of(name: str) -> Program:
    kernel, args = ARGS[name]
    return kernel.bind(args)._analysis.program


# --- names ---------------------------------------------------------------------------------------------------------------


def test_every_step_is_dumped_in_order(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HELION_DUMP", "all")
    generate("sums")
    said = capsys.readouterr().err
    assert tuple(re.findall(r"^--- after (\S+) ---$", said, re.MULTILINE)) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_one_step_is_dumped(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HELION_DUMP", name)
    generate("swapped")
    said = capsys.readouterr().err
    assert re.findall(r"^--- after (\S+) ---$", said, re.MULTILINE) == [name]
    assert "names no step" not in said


def test_an_unknown_name_lists_all_steps(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HELION_DUMP", "rolls")
    run_passes(program_of("sums"), STEPS)
    assert f"names no step rolls; there are {', '.join(NAMES)}, all" in capsys.readouterr().err


SHARED = {s.name for s in (CHOOSE_BRANCHES, ROLL, FLATTEN, SUBTILE, ORDER_MEMORY, INSERT_CHECKS)}


def test_names_differ_and_begin_with_the_backend() -> None:
    shared = SHARED | {rewrite.key for rewrite in REWRITES}
    assert len(NAMES) == len(PASSES) + len(STEPS) + 1
    for name, backend in BACKENDS.items():
        assert all(s.name.startswith(f"{name}.") for s in backend.steps if s.name not in shared)
    assert not any("." in name for name in shared)


def test_steps_of_several_backends_are_named_once() -> None:
    own = Step("toy.own", lambda program, _: program)
    assert step_names((*STEPS, ROLL, own)) == (*NAMES, "toy.own")


# --- checks --------------------------------------------------------------------------------------------------------------


def spoiled(program: Program) -> Program:
    """``program`` with a barrier that has an operand, at the end of each root."""
    numbers = Numbers.after(program)

    def spoil(region: Region) -> Region:
        return replace(region, ops=(*region.ops, Op(numbers.op(), "barrier", (1,), (), None)))

    return program.map_regions(spoil)


@pytest.mark.parametrize("at", range(len(PASSES)), ids=[step.__name__ for step in PASSES])
def test_an_invalid_result_of_a_pass_names_it(at: int) -> None:
    def planted(program: Program) -> Program:
        return spoiled(PASSES[at](program))

    planted.__name__ = PASSES[at].__name__
    with pytest.raises(exc.VerifierError, match=rf"{planted.__name__}\b.*a barrier has operands"):
        run_passes(program_of("sums"), passes=(*PASSES[:at], planted, *PASSES[at + 1 :]))


@pytest.mark.parametrize("name", [step.name for step in STEPS])
def test_an_invalid_result_of_a_step_names_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the whole way to code, so that it is the list that is run."""

    planted = tuple(replace(s, rewrite=_then_spoil(s)) if s.name == name else s for s in STEPS)
    monkeypatch.setattr(type(BACKENDS["triton"]), "steps", planted)
    with pytest.raises(exc.VerifierError, match=rf"{re.escape(name)}\b.*a barrier has operands"):
        generate("sums")


def _then_spoil(step: Step) -> Callable[[Program, StepInputs], Program]:
    return lambda program, given: spoiled(step.rewrite(program, given))


def test_nothing_is_checked_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that changes nothing gives back its program, and the verifier is not asked again."""
    program = spoiled(program_of("sums"))
    monkeypatch.setenv("HELION_VERIFY", "0")
    assert run_steps(program, inputs(program), (Step("same", lambda p, _: p),)) is program
    monkeypatch.setenv("HELION_VERIFY", "1")
    with pytest.raises(exc.VerifierError, match="same"):
        run_steps(program, inputs(program), (Step("same", lambda p, _: p),))


WRONG: list[tuple[str, type, Callable[[Any], Any], str]] = [
    ("swapped", ForAttrs, lambda a: replace(a, variables=_at(taken=9)), "of values that it does not carry"),
    ("swapped", WhileAttrs, lambda a: replace(a, variables=_at(fresh=1)), "of values that it does not carry"),
    ("swapped", ForAttrs, lambda a: replace(a, variables=_at(updated=0)), "that its body does not compute"),
    ("picked", GatherAttrs, lambda a: replace(a, doubled=-1), "a gather along no dimension"),
    ("picked", GatherAttrs, lambda a: replace(a, dim=2), "a gather along no dimension"),
]


def _at(**positions: int) -> Variables:
    chosen = {part: frozenset({at}) for part, at in positions.items()}
    return Variables(**{"taken": frozenset(), "fresh": frozenset(), "updated": frozenset(), **chosen})


@pytest.mark.parametrize(("name", "kind", "change", "message"), WRONG)
def test_wrong_attributes_are_refused(name: str, kind: type, change: Callable[[Any], Any], message: str) -> None:
    def spoil(op: Op) -> Op:
        return replace(op, attrs=change(op.attrs)) if isinstance(op.attrs, kind) else op

    program = map_ops(program_of(name), spoil)
    with pytest.raises(exc.VerifierError, match=message):
        verify(program, "test")


# --- printing ------------------------------------------------------------------------------------------------------------


def test_every_kind_of_op_has_one_printer() -> None:
    tables = (ops_values, ops_memory, ops_checks, ops_matmul, ops_lanes, ops_inline, ops_control)
    assert sorted(kind for table in tables for kind in table.OPS) == sorted(OPS.keys() - {"vjp"})


# --- the steps of Triton -------------------------------------------------------------------------------------------------


def test_running_sums_that_the_body_reads_are_kept() -> None:
    program = program_of("sums")
    made = pin_reductions(program, inputs(program))
    assert [op.attrs.kept for op in made.walk() if isinstance(op.attrs, ReduceAttrs)] == [True]
    assert "over 1 kept" in print_program(made)
    other = program_of("swapped")
    assert pin_reductions(other, inputs(other)) is other


@pytest.mark.parametrize(("lanes", "doubled"), [((4, 4), 0), ((16, 4), 0), ((4, 8), 1), ((4, 16), 2), ((1, 64), 6)])
def test_sources_of_gathers_are_doubled_up_to_the_index(lanes: tuple[int, int], doubled: int) -> None:
    program = program_of("picked")
    (op,) = (op for op in program.walk() if op.kind == "gather")
    value, index = op.values()
    sizes = {value.dims[1].blocks[0]: lanes[0], index.dims[1].blocks[0]: lanes[1]}
    given = replace(inputs(program), sizes={**inputs(program).sizes, **sizes})
    made = widen_gathers(program, given)
    assert [op.attrs.doubled for op in made.walk() if isinstance(op.attrs, GatherAttrs)] == [doubled]
    assert (made is program) == (doubled == 0)


def test_atomics_that_nothing_reads_are_marked() -> None:
    program = program_of("counted")
    made = unread_atomics(program, inputs(program))
    assert [op.attrs.unread for op in made.walk() if op.kind == "atomic"] == [True, False]
    assert print_program(made).count(" unread") == 1
    other = program_of("sums")
    assert unread_atomics(other, inputs(other)) is other


@pytest.mark.parametrize(("size", "single"), [(1, True), (2, False)])
def test_products_of_one_matrix_are_marked(size: int, single: bool) -> None:
    program = program_of("products")
    batch = program.roots[0].axes[0].block
    given = replace(inputs(program), sizes={**inputs(program).sizes, batch: size})
    made = unbatch_dots(program, given)
    assert [op.attrs.single for op in made.walk() if op.kind == "dot"] == [single]
    assert (made is program) == (not single) and (" single" in print_program(made)) == single


def test_carried_values_share_variables_where_they_can() -> None:
    """``a`` and ``b`` begin as one value, read at two positions; ``a`` takes the place of ``b``."""
    program = program_of("swapped")
    made = share_variables(program, inputs(program))
    loops = {op.kind: op for op in made.walk() if isinstance(op.attrs, (ForAttrs, WhileAttrs))}
    names = [param.name for param in loops["for"].regions[0].params]
    variables = loops["for"].attrs.variables
    parts = {p: sorted(names[at] for at in getattr(variables, p)) for p in ("taken", "fresh", "updated")}
    assert parts == {"taken": ["c"], "fresh": ["a"], "updated": ["c"]}
    # what the first loop leaves is read by the second alone
    assert loops["while"].attrs.variables == Variables(frozenset({0}), frozenset(), frozenset({0}))
    assert verify(made, "test") is made
