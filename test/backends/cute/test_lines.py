"""Strided outputs that warps gather by rows in shared memory: each element inside of the tensor is stored once."""

from __future__ import annotations

import dataclasses
import itertools
import re
import types

import pytest
import torch
from backends.cute import gemms

from helion.backends.cute.codegen.epilogue import fragment, positions
from helion.backends.cute.codegen.outputs.strided import store_strided
from helion.backends.cute.codegen.setups import strided_registers
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.dtypes import itemsize
from helion.backends.cute.plan.epilogue import Epilogue, EpilogueOutput
from helion.backends.cute.plan.records import Choice, GemmPlan
from helion.backends.cute.plan.shared import lines_shape, shared_memory, stores_lines
from helion.backends.cute.roles import grammar as g

ROWS, COLUMNS = 77, 37


def planned(choice: Choice, dtype: str = "bfloat16", **changes: object) -> GemmPlan:
    given = {"kind": "strided", "pitch": COLUMNS, "column_pitch": 1} | changes
    output = EpilogueOutput(name="out", value=0, dtype=dtype, **given)  # type: ignore[arg-type]
    problem = gemms.product(ROWS, COLUMNS, 520, output=dtype, epilogue=Epilogue(outputs=(output,)))
    return plan_gemm(problem, choice, gemms.HOPPER)


def stored(plan: GemmPlan) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how often each element is stored by all tiles, and what, as the printed text says: numbers of elements."""
    (output,) = plan.problem.outputs
    counted, values = torch.zeros(ROWS, COLUMNS, dtype=torch.int64), torch.zeros(ROWS, COLUMNS, dtype=torch.int64)
    places, atom = fragment(plan), plan.epilogue_n // 2
    role = g.Role(name="consumer", first_warp=0, warps=plan.consumer_warps, program=(), team=plan.teams - 1)
    text = "\n".join(store_strided(plan, output, role))
    before, after, _ = text.split("cute.arch.sync_warp()")
    programs = [compile(part, "lines", "exec") for part in ("\n".join(positions(plan, "tile_m")), before, after)]
    team = (plan.teams - 1) * plan.consumer_warps

    class Out:
        def __setitem__(self, place: tuple[int, int], value: int) -> None:
            counted[place] += 1
            values[place] = value

    for tile_m in range(plan.work[0]):
        for tile_n in range(plan.work[1]):
            for subtile in range(plan.subtiles):
                for warp in range(plan.consumer_warps):
                    held: dict[tuple[int, int, int], int] = {}
                    for phase in (1, 2):
                        for lane in range(32):
                            names = {"tile_m": tile_m, "tile_n": tile_n, "subtile": subtile, "store_warp": warp}
                            names |= {"lane": lane, "cutlass": types.SimpleNamespace(range_constexpr=range)}
                            exec(programs[0], names)
                            rounded = []
                            for i in range(places.values):
                                row = eval(places.row_offset, {"i": eval(places.row_of, {"i": i})})
                                column = i % atom // 4 * 8 + i % 2
                                rounded.append((names["first_row"] + row) * 1000 + names["first_column"] + column)
                            names |= {"out_output_rounded": rounded, "out_output_rows": held, "out_output": Out()}
                            exec(programs[phase], names)
                    assert {warp + team} == {each[0] for each in held}
    return counted, values


@pytest.mark.parametrize(
    "choice",
    [
        Choice(tile=(64, 64, 64)),
        Choice(tile=(256, 32, 64), epilogue_n=16),
        Choice(tile=(64, 128, 64), epilogue_n=64, pingpong=True),
    ],
    ids=lambda choice: "x".join(map(str, (*choice.tile[:2], choice.epilogue_n))),
)
def test_each_element_is_stored_once(choice: Choice) -> None:
    plan = planned(choice)
    counted, values = stored(plan)
    assert bool((counted == 1).all())
    assert torch.equal(values, torch.arange(ROWS)[:, None] * 1000 + torch.arange(COLUMNS))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_shared_memory_has_the_rows_of_each_warp(dtype: str) -> None:
    plan = planned(Choice(tile=(128, 64, 64)), dtype)
    (output,) = plan.problem.outputs
    size = 2 if dtype == "bfloat16" else 4
    assert lines_shape(plan, output) == (8, 16, 32 + 16 // size)
    (found,) = [each for each in shared_memory(plan) if each.name == "shared_lines"]
    assert found.size_bytes == 8 * 16 * (32 + 16 // size) * size


def test_warps_have_apart_what_they_gather_of_outputs_of_several_types() -> None:
    """A warp may gather one output while others are at the next one."""
    plan = planned(Choice(tile=(128, 64, 64), pingpong=True), "bfloat16")
    (first,) = plan.problem.outputs
    kinds = ("bfloat16", "bool", "float32")
    outputs = tuple(dataclasses.replace(first, name=f"out_{kind}", dtype=kind) for kind in kinds)
    several = Epilogue(outputs=outputs)
    plan = dataclasses.replace(plan, problem=dataclasses.replace(plan.problem, epilogue=several))
    text, bytes_of = "\n".join(strided_registers(plan)), dict[str, list[range]]()
    for kind in kinds:
        layout = re.search(rf"out_{kind}_output_rows = .*\(\((\d+), (\d+), (\d+)\), stride=\((\d+), (\d+), 1\)\)", text)
        assert layout is not None
        warps, rows, columns, step, pitch = map(int, layout.groups())
        size = itemsize(kind)
        held = (rows - 1) * pitch + columns
        bytes_of[kind] = [range(warp * step * size, (warp * step + held) * size) for warp in range(warps)]
    (found,) = [each for each in shared_memory(plan) if each.name == "shared_lines"]
    for one, other in itertools.product(kinds, kinds):
        for warp, after in itertools.pairwise(range(len(bytes_of[one]))):
            assert bytes_of[one][warp].stop <= bytes_of[other][after].start
        assert bytes_of[one][-1].stop <= found.size_bytes


def test_other_outputs_are_stored_from_registers() -> None:
    plan = planned(Choice(tile=(128, 64, 64)))
    (output,) = plan.problem.outputs
    assert stores_lines(plan, output)
    assert not stores_lines(plan, dataclasses.replace(output, pitch=1, column_pitch=ROWS))
    assert not stores_lines(plan, dataclasses.replace(output, adds=True))
    assert not stores_lines(dataclasses.replace(plan, unit="tcgen05"), output)
