"""The real DSL's partitions, evaluated on the CPU, against what the epilogue assumes of them."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends.cute import gemms

from helion.backends.cute.codegen.epilogue import fragment, sum_of
from helion.backends.cute.codegen.module import IMPORTS
from helion.backends.cute.codegen.setups import SETUPS, mma_arguments
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.counts import counts
from helion.backends.cute.plan.records import WARP_ROWS, Choice, GemmPlan
from helion.backends.cute.roles.programs import kernel_program
from helion.backends.cute.toolchain.offline import ARCHITECTURES

PLANS = {
    "wgmma": gemms.hopper("bf16"),
    "wgmma_64": plan_gemm(gemms.product(), Choice(tile=(64, 64, 64), epilogue_n=16), gemms.HOPPER),
    "wgmma_8": gemms.hopper("bf16_splits_16"),
    "wgmma_tall": gemms.hopper("bf16_tall"),
    "wgmma_pingpong": gemms.hopper("bf16_pingpong"),
    "tcgen05": gemms.blackwell("bf16"),
    "tcgen05_64": gemms.blackwell("bf16_64"),
    "tcgen05_pair": dataclasses.replace(gemms.blackwell("bf16_pair"), epilogue_n=64),
}


def _rows_and_columns(plan: GemmPlan) -> np.ndarray:
    """[thread, value, (row, column)] as `fragment` says it."""
    places, threads = fragment(plan), counts(plan).consumer_threads
    known = np.zeros((threads, places.values, 2), np.int32)
    columns = np.arange(plan.epilogue_n)
    for thread in range(threads):
        names = {"lane": thread % 32, "store_warp": thread // 32, "store_thread": thread}
        shape, strides = eval(f"dict(shape={places.columns})['shape'], dict(shape={places.columns})['stride']")
        held = [
            sum(c * s for c, s in zip(np.unravel_index(i, shape, order="F"), strides, strict=True))
            for i in range(int(np.prod(shape)))
        ]
        for i in range(places.values):
            row = eval(places.first_row, names) + eval(places.row_offset, {"i": eval(places.row_of, {"i": i})})
            column = eval(places.first_column, names) + held[eval(places.column_of, {"i": i})]
            assert column == eval(places.first_column, names) + eval(places.column_offset, {"i": i})
            known[thread, i] = row, columns[column]
    return known


TEXT = """
import cutlass
from cutlass.cute.runtime import from_dlpack

@cute.jit
def partitions(subtiles: cute.Tensor, whole: cute.Tensor):
    for thread in range({threads}):
        {lines}
        for i in cutlass.range_constexpr({values}):
            row, column = part[i]
            subtiles[thread, i, 0] = cutlass.Int32(row)
            subtiles[thread, i, 1] = cutlass.Int32(column)
        {whole}

def run(subtiles, whole, options):
    arguments = from_dlpack(subtiles), from_dlpack(whole)
    cute.compile(partitions, *arguments, options=options)(*arguments)
"""
WGMMA = """subtile_mma = hopper.make_trivial_tiled_mma({subtile})
        tiled_mma = hopper.make_trivial_tiled_mma({tile})
        part = subtile_mma.get_slice(thread).partition_C(cute.make_identity_tensor(({rows}, {columns})))"""
WHOLE = """all_part = tiled_mma.get_slice(thread).partition_C(cute.make_identity_tensor(({rows}, {n})))
        for i in cutlass.range_constexpr({values}):
            row, column = all_part[i]
            whole[thread, i, 0] = cutlass.Int32(row)
            whole[thread, i, 1] = cutlass.Int32(column)"""
UMMA = """tiled_mma = blackwell.make_trivial_tiled_mma({tile})
        sums_pointer = cute.make_ptr(cutlass.Float32, 0, cute.AddressSpace.tmem, assumed_align=16)
        store_thread = thread
        {setup}
        part = thread_sums.partition_D(cute.make_identity_tensor(({rows}, {columns})))"""


def _text(plan: GemmPlan) -> str:
    rows, columns = plan.cta_tile[0], plan.epilogue_n
    values, threads = fragment(plan).values, counts(plan).consumer_threads
    names: dict[str, Any] = {
        "rows": rows,
        "columns": columns,
        "n": plan.tile[1],
        "tile": mma_arguments(plan, plan.tile[1]),
    }
    if plan.unit == "wgmma":
        lines = WGMMA.format(subtile=mma_arguments(plan, columns), **names)
        whole = WHOLE.format(values=values * plan.subtiles, **names)
    else:
        setup = [
            line
            for line in SETUPS["umma_sums"](plan, kernel_program(plan).role("store"))
            if not line.startswith("store_")
        ]
        end = next(i for i, line in enumerate(setup) if line.startswith("thread_sums"))
        lines, whole = UMMA.format(setup="\n        ".join(setup[: end + 1]), **names), "pass"
    body = TEXT.format(threads=threads, lines=lines, values=values, whole=whole)
    return "\n".join(IMPORTS[plan.unit]) + body


def _module(folder: Path, text: str) -> Any:
    """`text` as a module: the DSL reads the source of what it compiles."""
    path = folder / "partitions.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("partitions", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", PLANS)
def test_threads_hold_the_rows_and_columns_that_the_epilogue_takes_them_for(name: str, tmp_path: Path) -> None:
    pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (the cute extra)")
    plan = PLANS[name]
    places, threads = fragment(plan), counts(plan).consumer_threads
    module = _module(tmp_path, _text(plan))
    subtile = np.full((threads, places.values, 2), -1, np.int32)
    whole = np.full((threads, places.values * plan.subtiles, 2), -1, np.int32)
    module.run(subtile, whole, f"--gpu-arch {ARCHITECTURES[plan.unit]}")

    known = _rows_and_columns(plan)
    np.testing.assert_array_equal(subtile, known)
    covered = {tuple(place) for place in known.reshape(-1, 2).tolist()}
    assert len(covered) == plan.cta_tile[0] * plan.epilogue_n == threads * places.values
    if plan.unit == "wgmma":
        for number in range(plan.subtiles):
            held = [eval(sum_of(plan), {"i": i, "subtile": number}) for i in range(places.values)]
            np.testing.assert_array_equal(whole[:, held], known + np.array([0, number * plan.epilogue_n]))


BOXES = """
import cutlass
from cutlass.cute.runtime import from_dlpack

@cute.jit
def offsets(found: cute.Tensor):
    for number in cutlass.range_constexpr({count}):
        columns, dtype = {cases}[number]
        tile = hopper.make_smem_layout_epi(dtype, LayoutEnum.ROW_MAJOR, (128, columns), 2)
        box = hopper.make_smem_layout_epi(dtype, LayoutEnum.ROW_MAJOR, ({high}, columns), {boxes})
        for row in range(128):
            for column in range(columns):
                for stage in range(2):
                    of_box = row % {high}, column, stage * {of_tile} + row // {high}
                    found[number, row, column, stage, 0] = cutlass.Int32(tile((row, column, stage)))
                    found[number, row, column, stage, 1] = cutlass.Int32(box(of_box))

def run(found, options):
    cute.compile(offsets, from_dlpack(found), options=options)(from_dlpack(found))
"""


def test_rows_of_a_warp_lie_where_its_store_takes_them_from(tmp_path: Path) -> None:
    """The buffer of all warps and those of each are the same memory."""
    pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (the cute extra)")
    widths = {"Int8": (16, 32, 64), "BFloat16": (8, 16, 32, 64), "Float32": (8, 16, 32)}
    cases = [(columns, dtype) for dtype, known in widths.items() for columns in known]
    shown = f"({', '.join(f'({columns}, cutlass.{dtype})' for columns, dtype in cases)})"
    of_tile = 128 // WARP_ROWS
    text = BOXES.format(cases=shown, count=len(cases), high=WARP_ROWS, boxes=2 * of_tile, of_tile=of_tile)
    found = np.full((len(cases), 128, 64, 2, 2), -1, np.int32)
    _module(tmp_path, "\n".join(IMPORTS["wgmma"]) + text).run(found, f"--gpu-arch {ARCHITECTURES['wgmma']}")
    for number, (columns, _) in enumerate(cases):
        of_tiles, of_boxes = np.moveaxis(found[number, :, :columns], -1, 0)
        np.testing.assert_array_equal(of_tiles, of_boxes)
        assert len(np.unique(of_tiles)) == 128 * columns * 2
