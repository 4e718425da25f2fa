"""Warpgroups without rows in the last tile of a group, which pass on K tiles and multiply nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from backends.cute.grouped_kernels import problem

from helion.backends.cute.codegen.module import render
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.records import Choice
from helion.backends.cute.roles.edits import edit_role
from helion.backends.cute.roles.grammar import Gate, KernelProgram, KLoop, Release, Step, TileLoop
from helion.backends.cute.roles.programs import kernel_program
from helion.backends.cute.verify.state import Fault
from helion.backends.cute.verify.verify import verify
from helion.hardware import target as target_of

TALL = Choice(tile=(128, 128, 64))


def program_of(choice: Choice = TALL) -> KernelProgram:
    return kernel_program(plan_gemm(problem(), choice, target_of("sm_90")))


def gates(program: KernelProgram) -> list[str]:
    loops = [step for role in program.roles for step in role.program if isinstance(step, TileLoop)]
    return [step.who for loop in loops for step in loop.body if isinstance(step, Gate)]


@pytest.mark.parametrize("choice", [TALL, Choice(tile=(256, 128, 64)), Choice(tile=(128, 128, 64), cluster=(1, 2))])
def test_one_of_two_warpgroups_passes_k_tiles_on(choice: Choice) -> None:
    program = program_of(choice)
    assert gates(program) == ["some", "none"]
    verify(program)
    text = render(program)
    assert "if tile_rows > store_warp // 4 * 64:" in text and "if tile_rows <= store_warp // 4 * 64:" in text
    assert text.index("tile_rows = ") < text.index("if tile_rows > ")


@pytest.mark.parametrize("choice", [Choice(tile=(64, 128, 64)), Choice(tile=(128, 128, 64), pingpong=True)])
def test_one_warpgroup_has_rows_of_each_tile(choice: Choice) -> None:
    assert not gates(program_of(choice))


def without_releases(body: tuple[Step, ...]) -> tuple[Step, ...]:
    return tuple(step for step in body if not isinstance(step, Release))


def planted_in_loop(change: Callable[[KLoop], KLoop]) -> Callable[[Step], tuple[Step, ...]]:
    """Return a rewrite of the loop that passes K tiles on."""

    def plant(step: Step) -> tuple[Step, ...]:
        if not isinstance(step, Gate) or step.who != "none":
            return (step,)
        body = tuple(change(each) if isinstance(each, KLoop) else each for each in step.body)
        return (dataclasses.replace(step, body=body),)

    return plant


def in_all(step: Step) -> tuple[Step, ...]:
    """Pass K tiles on in warpgroups with rows, too."""
    return (dataclasses.replace(step, who="some"),) if isinstance(step, Gate) and step.who == "none" else (step,)


FAULTS = (
    planted_in_loop(lambda loop: dataclasses.replace(loop, body=without_releases(loop.body))),
    planted_in_loop(lambda loop: dataclasses.replace(loop, first=1)),
    in_all,
)


@pytest.mark.parametrize("plant", FAULTS)
def test_faults_of_the_warpgroup_without_rows_are_found(plant: Callable[[Step], tuple[Step, ...]]) -> None:
    with pytest.raises(Fault):
        verify(edit_role(program_of(), "store", plant))
