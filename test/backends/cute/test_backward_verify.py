"""The simulation of the roles of attention's gradients: right programs pass, planted faults are found."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import pytest
from backends.cute.edited_roles import edited, without
from backends.cute.test_backward import bound_of, case_of

from helion.backends.cute.plan.attention.backward import BackwardChoice, BackwardPlan, plan_backward
from helion.backends.cute.plan.attention.gradients import BackwardProblem
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.roles import grammar as g
from helion.backends.cute.roles.attention import grammar as a
from helion.backends.cute.roles.attention.backward import backward_program
from helion.backends.cute.verify.attention.machine import Machine
from helion.backends.cute.verify.attention.rules import execute
from helion.backends.cute.verify.attention.verify import verify_backward
from helion.backends.cute.verify.state import Fault
from helion.hardware import target

HOPPER = target("sm_90")
QUERIES, KEYS, ALL = "queries, causal", "shared keys, causal", "all, causal"
WIDE, WIDE_SHARED = "keys, 256 dimensions", "shared keys, 256 dimensions"


@functools.cache
def problem(name: str) -> BackwardProblem:
    return bound_of(case_of(name)).plan().backward.problem


def plan(name: str, groups: int = 2, keys: int = 64, **changes: object) -> BackwardPlan:
    return plan_backward(problem(name), BackwardChoice(groups=groups, keys=keys, **changes), HOPPER)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [QUERIES, KEYS, "keys", "queries, capped in a window"])
def test_programs_are_right(name: str) -> None:
    for groups, stages, scheduler in itertools.product((1, 2), (2, 3), ("static", "dynamic")):
        verify_backward(backward_program(plan(name, groups, stages=stages, scheduler=scheduler)))


def test_programs_that_add_to_memory_are_right() -> None:
    for stages, scheduler in itertools.product((2, 3), ("static", "dynamic")):
        verify_backward(backward_program(plan(ALL, stages=stages, scheduler=scheduler)))
    turned = plan("all, 64 and 96 dimensions", keys=96)
    assert turned.turned
    verify_backward(backward_program(turned))


@pytest.mark.parametrize("name", [KEYS, ALL])
def test_tiles_are_drawn_after_the_blocks_of_the_last(name: str) -> None:
    """CTAs with the longest tiles would draw first else, and draw the longest of the others."""
    load = next(role for role in backward_program(plan(name, scheduler="dynamic")).roles if role.name == "load")
    (body,) = (step.body for step in load.program if isinstance(step, a.WorkLoop))
    assert body[-2:] == (a.TakeTicket(), a.HandOut())


def masked_as_free(step: g.Step) -> tuple[g.Step, ...]:
    return (dataclasses.replace(step, masked=False),) if isinstance(step, a.Weights) else (step,)


def without_first(step: g.Step) -> tuple[g.Step, ...]:
    return (dataclasses.replace(step, first=False),) if isinstance(step, a.GradientMma) else (step,)


def numbers_of_another_stage(step: g.Step) -> tuple[g.Step, ...]:
    """Advance a cursor before the numbers of its stage are read."""
    return (g.Advance("second_read"), step) if isinstance(step, a.Differences) else (step,)


FAULTS = {
    "no wait for blocks": ("multiply", without(g.Wait("first_read")), "stale"),
    "no wait for other blocks": ("multiply", without(g.Wait("second_read")), "stale"),
    "no wait for rows": ("multiply", without(g.Wait("rows_read")), "stale"),
    "blocks are not released": ("multiply", without(g.Release("first_free")), "deadlock"),
    "other blocks are not released": ("multiply", without(g.Release("second_free")), "deadlock"),
    "rows are not released": ("multiply", without(g.Release("rows_read")), "deadlock"),
    "no wait for a product": ("multiply", without(g.WgmmaWait(1)), "in state|released while|overwritten while"),
    "no wait for all": ("multiply", without(g.WgmmaWait(0)), "in state|released while|or MMAs|leaves with"),
    "no fence": ("multiply", without(g.WgmmaFence()), "without a fence"),
    "no weights": ("multiply", without(a.Weights(False, "first_read")), "or others held|stale"),
    "no differences": ("multiply", without(a.Differences(False, "second_read")), "overwrites|stale"),
    "unmasked blocks": ("multiply", masked_as_free, "is not masked"),
    "sums go on from the former tile": ("multiply", without_first, "has blocks"),
    "no group barrier": ("multiply", without(a.GroupSync()), "is stored while|overwrites|stale"),
    "no proxy fence": ("multiply", without(g.FenceShared()), "without a fence"),
    "no wait for stores": ("multiply", without(g.StoreWait(0)), "being stored|leaves while"),
    "blocks are loaded early": ("load", without(g.Acquire("first_fill")), "filled while|stale|negative|deadlock"),
    "rows are loaded early": ("load_rows", without(g.Acquire("rows_fill")), "being stored|filled while|stale|negative|deadlock"),
    "numbers of another stage": ("multiply", numbers_of_another_stage, "are read from a stage"),
    "no ticket": ("load", without(a.TakeTicket()), "not drawn"),
    "tiles are not handed out": ("load", without(a.HandOut()), "deadlock|stale|is not stored once"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", [QUERIES, KEYS])
def test_planted_faults_are_found(name: str, fault: str) -> None:
    role, edit, message = FAULTS[fault]
    program = backward_program(plan(name, scheduler="dynamic"))
    changed = edited(program, role, edit)
    assert changed != program, "the fault changes nothing"
    with pytest.raises(Fault, match=message):
        verify_backward(changed)


def first_as_later(step: g.Step) -> tuple[g.Step, ...]:
    return (a.PublishLeft(),) if isinstance(step, a.PublishLeft) else (step,)


def group_alone(step: g.Step) -> tuple[g.Step, ...]:
    return (a.GroupSync(),) if isinstance(step, a.AllGroupsSync) else (step,)


def products_early(step: g.Step) -> tuple[g.Step, ...]:
    """Issue the second product before the sum in its registers is stored."""
    return (
        (step, g.WgmmaFence(), a.ProductMma(1, "second_read"), g.WgmmaCommit())
        if isinstance(step, a.WaitExchange)
        else (step,)
    )


ATOMIC_FAULTS = {
    "no wait for left operands": (without(a.WaitExchange()), "stale"),
    "left operands are not written": (without(a.WriteLeft()), "without a fence|stale"),
    "left operands are not told of": (without(a.PublishLeft()), "deadlock|stale|in state|not added to memory once"),
    "no proxy fence": (without(g.FenceShared()), "without a fence"),
    "no warp barriers": (without(g.WarpSync()), "before all threads|being added"),
    "no wait for additions": (without(g.StoreWait(0)), "being added|being stored|leaves while"),
    "no wait for sums": (without(g.WgmmaWait(1)), "in state|overwrites|freed while"),
    "no wait for all": (without(g.WgmmaWait(0)), "in state|released while|or MMAs|leaves with|overwrites|freed while"),
    "no sums": (without(a.SumMma()), "in state"),
    "sums are not stored": (without(a.WriteSum()), "overwrites|while its part holds"),
    "sums are not added": (without(a.AddSum()), "not added to memory once"),
    "only the group meets": (group_alone, "overwrites queries|stale"),
    "no wait for rows": (without(a.AllRows()), "stale"),
    "products in the registers of sums": (products_early, "overwrites|stale"),
    "the first block is a later one": (first_as_later, "printed as the first one"),
}  # fmt: skip


@pytest.mark.parametrize("fault", ATOMIC_FAULTS)
def test_planted_faults_of_additions_are_found(fault: str) -> None:
    edit, message = ATOMIC_FAULTS[fault]
    program = backward_program(plan(ALL, scheduler="dynamic"))
    changed = edited(program, "multiply", edit)
    assert changed != program, "the fault changes nothing"
    with pytest.raises(Fault, match=message):
        verify_backward(changed)


def wide(name: str, **changes: object) -> BackwardPlan:
    return plan_backward(problem(name), BackwardChoice(groups=2, keys=48, **changes), HOPPER)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [WIDE, WIDE_SHARED])
def test_programs_of_two_passes_are_right(name: str) -> None:
    assert [len(chosen) for chosen in problem(name).passes] == [1, 1]
    for scheduler in ("static", "dynamic"):
        verify_backward(backward_program(wide(name, scheduler=scheduler)))


PASS_FAULTS = {
    "one pass of loads": ("load", without(a.NextPass(loads=True)), "stale|deadlock"),
    "one pass of products": ("multiply", without(a.NextPass()), "stale|as a later one"),
    "no wait for blocks": ("multiply", without(g.Wait("second_read")), "stale"),
    "no wait for a product": ("multiply", without(g.WgmmaWait(0)), "in state|released while"),
    "blocks are not released": ("multiply", without(g.Release("second_free")), "deadlock"),
    "no group barrier": ("multiply", without(a.GroupSync()), "overwrites|stale|is stored while"),
    "no wait for stores": ("multiply", without(g.StoreWait(0)), "being stored|leaves while"),
}  # fmt: skip


@pytest.mark.parametrize("fault", PASS_FAULTS)
def test_planted_faults_of_passes_are_found(fault: str) -> None:
    role, edit, message = PASS_FAULTS[fault]
    program = backward_program(wide(WIDE_SHARED, scheduler="dynamic"))
    changed = edited(program, role, edit)
    assert changed != program, "the fault changes nothing"
    with pytest.raises(Fault, match=message):
        verify_backward(changed)


def test_an_output_in_the_memory_of_what_the_next_pass_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    program = backward_program(wide(WIDE))
    right = program.plan.problem.output_memory
    monkeypatch.setattr(BackwardProblem, "output_memory", lambda problem, gradient: 1 - right(gradient))
    with pytest.raises(Fault, match="stale"):
        Machine(program, tiles=1, seed=0).run(execute)


def test_passes_of_other_sizes_are_refused() -> None:
    """The output of one pass takes the memory of what the other does not read, which has to be as large."""
    found = problem(WIDE)
    narrow = dataclasses.replace(found.owned[1], columns=240), dataclasses.replace(found.streamed[1], columns=240)
    changed = dataclasses.replace(found, owned=(found.owned[0], narrow[0]), streamed=(found.streamed[0], narrow[1]))
    with pytest.raises(Refusal, match="gradients of 256 and 240 dimensions, of which registers hold one at a time"):
        plan_backward(changed, BackwardChoice(groups=1, keys=64), HOPPER)


def test_repetitions_begin_with_the_first_block() -> None:
    program = backward_program(plan(KEYS))

    def skipped(step: g.Step) -> tuple[g.Step, ...]:
        return () if isinstance(step, a.RepeatLoop) and step.begin else (step,)

    with pytest.raises(Fault, match="stale|deadlock|has blocks"):
        verify_backward(edited(program, "multiply", skipped))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"groups": 4}, "tiles of 256 rows; 64, 128 and 192 are implemented"),
        ({"keys": 40}, "blocks of 40 rows; multiples of 16 up to 256 are implemented"),
        ({"stages": 5}, "5 stages of blocks; 2 to 4 are implemented"),
        ({"keys": 256}, "need 456 registers per thread; they have 240"),
    ],
)
def test_choices_that_do_not_fit_are_refused(changes: dict[str, int], message: str) -> None:
    choice = dataclasses.replace(BackwardChoice(groups=2, keys=64), **changes)
    with pytest.raises(Refusal, match=message):
        plan_backward(problem(KEYS), choice, HOPPER)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"groups": 1}, "tiles of 64 rows; a kernel that adds to dq_6, of 128 dimensions, has tiles of 128"),
        ({"keys": 80}, "blocks of 80 rows; a kernel that adds to dq_6 has blocks of 64"),
    ],
)
def test_choices_of_additions_are_refused(changes: dict[str, int], message: str) -> None:
    choice = dataclasses.replace(BackwardChoice(groups=2, keys=64), **changes)
    with pytest.raises(Refusal, match=message):
        plan_backward(problem(ALL), choice, HOPPER)
