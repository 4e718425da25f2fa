"""Rows that lie in memory between the product and the kernel that finishes them: plans, text, what both compute."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re

import pytest
import torch
from backends.cute import gemms, lockstep
from backends.cute.finishing import Grid, stored_name
from backends.cute.rows import ROWS, Chain, rms_norm_backward, rounded_rms_norm
from backends.cute.test_rows import compare, operands

import helion
import helion.language as hl
from helion.backends.cute.codegen.finish import layouts
from helion.backends.cute.codegen.module import pointer_dtypes, render
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.epilogue import Epilogue
from helion.backends.cute.plan.finish import row_walks, row_words, rows_bytes, shared_words, threads_of
from helion.backends.cute.plan.records import Choice, GemmPlan, GemmProblem, RowFinish, TileFinish
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.plan.workspace import MAX_COUNTERS, rows_offset, workspace_bytes
from helion.backends.cute.roles.edits import edit_role
from helion.backends.cute.roles.finish import (
    AwaitProduct,
    EvaluateNumbers,
    LoadOperands,
    LoadRow,
    StoreColumns,
    finish_steps,
)
from helion.backends.cute.roles.grammar import LaunchFinish, TileLoop
from helion.backends.cute.roles.programs import kernel_program
from helion.backends.cute.verify import finish as verify_module
from helion.backends.cute.verify.finish import verify_finish
from helion.backends.cute.verify.state import Fault
from helion.backends.cute.verify.verify import verify

PROVE = os.environ.get("HELION_PROVE") == "1"
SMALL = Choice(tile=(64, 128, 64), epilogue_n=16, rows_in="memory")


def plan_of(asked: GemmProblem, choice: Choice = SMALL) -> GemmPlan:
    return plan_gemm(asked, choice, gemms.HOPPER)


# What the product leaves ---------------------------------------------------------------------------------------------------


def test_raw_sums_are_left_in_full_precision() -> None:
    plan = plan_of(gemms.whole_rows("silu_rms_norm", 1000, 4104, 64))
    finish = plan.finish
    assert isinstance(finish, RowFinish) and (finish.held, finish.dtype, finish.home, finish.pitch) == (
        0,
        "float32",
        "",
        4104,
    )
    assert plan.problem.epilogue.instructions == () and not plan.by_rows
    assert workspace_bytes(plan) == 4 * MAX_COUNTERS + 1000 * 4104 * 4 == rows_offset(plan) + rows_bytes(finish)


def test_values_that_are_rounded_anyway_are_left_so_and_in_an_output() -> None:
    """Storing rounds them; what comes behind is written over them."""
    plan = plan_of(gemms.product(100, 4104, 64, epilogue=rounded_rms_norm(4104)))
    assert isinstance(plan.finish, RowFinish) and (plan.finish.dtype, plan.finish.home) == ("bfloat16", "d")
    assert plan.problem.epilogue.instructions == () and plan.problem.output_dtype == "bfloat16"
    assert workspace_bytes(plan) == 0 and pointer_dtypes(plan)[-1] != "float32"


def test_rows_are_padded_to_what_the_copy_engine_moves() -> None:
    """The pitch of rows in the workspace is a multiple of 16 bytes, whatever N is."""
    epilogue = Chain()
    epilogue("row_sum", epilogue("exp", epilogue("sub", 0, epilogue("row_sum", 0))))
    asked = gemms.product(9, 4097, 64, epilogue=epilogue.done(("s", 4, "column", "float32", 1)))
    finish = plan_of(asked).finish
    assert isinstance(finish, RowFinish) and (finish.pitch, finish.vector) == (4100, 4)


def test_two_products_leave_what_both_give() -> None:
    plan = gemms.hopper("memory_swiglu_norm")
    assert [each.op for each in plan.problem.epilogue.instructions] == ["silu", "mul"]
    assert isinstance(plan.finish, RowFinish) and row_walks(plan.finish)[0].held == plan.finish.held == 4


def test_an_output_in_front_of_the_rounded_value_keeps_the_sums() -> None:
    """What is stored of the sums themselves cannot be computed of rounded ones."""
    e = Chain()
    rounded = e("round_bfloat16", 0)
    y = e("div", rounded, e("row_sum", rounded))
    epilogue = e.done(("y", y, "exact", "bfloat16", 4104), ("raw", 0, "exact", "float32", 4104))
    finish = plan_of(gemms.product(8, 4104, 64, epilogue=epilogue)).finish
    assert isinstance(finish, RowFinish) and (finish.held, finish.dtype, finish.home) == (0, "float32", "raw")


@pytest.mark.parametrize(("name", "kinds"), [("logsumexp", ["plain", "rescaled"]), ("argmax", ["plain", "first"])])
def test_numbers_per_row_leave_those_of_tiles_and_no_matrix(name: str, kinds: list[str]) -> None:
    plan = plan_of(gemms.whole_rows(name, 1000, 4104, 64))
    assert isinstance(plan.finish, TileFinish) and [part.kind for part in plan.finish.parts] == kinds
    assert plan.finish.tiles == 33 and {output.kind for output in plan.problem.outputs} == {"tile"}
    assert rows_bytes(plan.finish) == 1000 * 2 * 33 * 4


def test_chains_that_tiles_cannot_reduce_leave_their_rows() -> None:
    """The deviation from the mean waits for the mean of the whole row."""
    e = Chain()
    mean = e("mul", e("row_sum", 0), 1 / 4104)
    d = e("sub", 0, mean)
    variance = e("row_sum", e("mul", d, d))
    asked = gemms.product(8, 4104, 64, epilogue=e.done(("v", variance, "column", "float32", 1)))
    assert isinstance(plan_of(asked).finish, RowFinish)


@pytest.mark.parametrize(
    ("asked", "choice", "message"),
    [
        (gemms.product(64, 4104, 64), SMALL, "rows in memory are implemented for one matmul whose rows are reduced"),
        (gemms.whole_rows("rms_norm", 2**20, 4104, 64), SMALL, "bytes in memory; up to"),
        (gemms.whole_rows("argmax", 64, 4104, 64), dataclasses.replace(SMALL, cluster=(1, 2)), "have one CTA each"),
        (
            gemms.whole_rows("argmax", 64, 4104, 64),
            dataclasses.replace(SMALL, grid_splits=2),
            "without numbers per row",
        ),
    ],
)
def test_what_is_not_implemented_is_refused(asked: GemmProblem, choice: Choice, message: str) -> None:
    with pytest.raises(Refusal, match=re.escape(message)):
        plan_of(asked, choice)


@pytest.mark.parametrize(
    ("n", "dtype", "threads", "chunks", "kept"),
    [
        (4104, "float32", 256, 5, True),
        (512, "float32", 128, 1, True),
        (16384, "float32", 512, 8, True),
        (16388, "float32", 512, 9, True),
        (50264, "float32", 1024, 13, True),
        (70000, "float32", 1024, 18, False),
        (4104, "bfloat16", 256, 3, True),
    ],
)
def test_threads_of_a_row(n: int, dtype: str, threads: int, chunks: int, kept: bool) -> None:
    e = Chain()
    e("div", 0, e("row_sum", 0))
    epilogue = e.done() if dtype == "float32" else rounded_without_weight()
    finish = plan_of(
        gemms.product(8, n, 64, output="float32" if dtype == "float32" else dtype, epilogue=epilogue)
    ).finish
    assert isinstance(finish, RowFinish)
    assert (threads_of(finish), finish.chunks, finish.kept) == (threads, chunks, kept)
    assert finish.shared == (kept and n > 16384)
    assert finish.chunks * finish.threads * finish.vector >= n


def rounded_without_weight() -> Epilogue:
    e = Chain()
    x = e("round_bfloat16", 0)
    e("div", x, e("row_sum", x))
    return e.done()


# What they compute ---------------------------------------------------------------------------------------------------------


def run(plan: GemmPlan, sums: torch.Tensor, given: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """The outputs of both kernels, of which the second one's text is executed, and the first one's where it reduces."""
    finish, (m, n) = plan.finish, sums.shape
    assert finish is not None
    asked = finish.problem
    outputs = {
        o.label: torch.zeros(m * n if o.kind == "exact" else m, dtype=getattr(torch, o.dtype)) for o in asked.outputs
    }
    memory = {each.label: given[each.name].reshape(-1).clone() for each in asked.epilogue.operands} | outputs
    memory |= _rows(plan, sums) if isinstance(finish, RowFinish) else _parts(plan, sums, given)
    if isinstance(finish, RowFinish) and finish.home:
        home = next(o.label for o in asked.outputs if o.name == finish.home)
        outputs[home] = memory[home] = memory[stored_name(finish)]
    grid = Grid(finish, memory, layouts(finish))
    grid.run({})
    for name, output in outputs.items():
        if name in grid.memory:
            assert bool((grid.memory[name].stores == 1).all()), "each element is stored once"
    return [outputs[o.label].reshape(m, n) if o.kind == "exact" else outputs[o.label] for o in asked.outputs]


def _rows(plan: GemmPlan, sums: torch.Tensor) -> dict[str, torch.Tensor]:
    """What the product stores, behind each row what is there by chance."""
    finish = plan.finish
    assert isinstance(finish, RowFinish)
    stored = torch.full((len(sums), finish.pitch), float("nan"), dtype=getattr(torch, finish.dtype))
    assert not plan.problem.epilogue.instructions, "the sums themselves are stored"
    stored[:, : sums.shape[1]] = sums
    return {stored_name(finish): stored.reshape(-1)}


def _parts(plan: GemmPlan, sums: torch.Tensor, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    finish, (m, n) = plan.finish, sums.shape
    assert isinstance(finish, TileFinish)
    parts, columns = len(finish.parts), plan.tile[1]
    memory = torch.full((m, parts, finish.tiles), float("nan"))
    for tile in range(finish.tiles):
        of_tile = slice(tile * columns, min(n, (tile + 1) * columns))
        held = torch.zeros(plan.tile[0], of_tile.stop - of_tile.start)
        held[:m] = sums[:, of_tile]
        cut = {name: x[..., of_tile] if x.shape[-1] == n else x for name, x in given.items()}
        cluster = lockstep.Cluster(plan, [held], cut, tile=tile)
        cluster.run()
        for at in range(parts):
            stored = cluster.columns[f"part_{at}"]
            assert bool((stored.stores == 1).all())
            memory[:, at, tile] = stored.values.float()
    return {stored_name(finish, at): memory.reshape(-1)[at * finish.tiles :] for at in range(parts)}


LONG = ("softmax", "residual_layer_norm")
CASES = [(name, 3, 616) for name in ROWS] + [(name, 1, 16408) for name in (ROWS if PROVE else LONG)]


@pytest.mark.parametrize(("name", "m", "n"), [*CASES, *((name, 63, 4104) for name in ROWS)] if PROVE else CASES)
def test_both_kernels_compute_what_torch_does(name: str, m: int, n: int) -> None:
    if name == "quantized":
        n = -(-n // 16) * 16
    elif name in ("logsumexp", "argmax"):
        n = min(n, 1100)  # as many tiles as there are lanes and more are joined below
    asked = gemms.whole_rows(name, m, n, 64)
    generator = torch.Generator().manual_seed(n)
    sums = torch.randn(m, n, generator=generator) * 3 + 0.5
    given = operands(asked, generator)
    compare(name, sums.double(), given, run(plan_of(asked), sums, given))


def test_a_row_that_is_overwritten() -> None:
    asked = gemms.product(3, 600, 64, epilogue=rounded_rms_norm(600))
    generator = torch.Generator().manual_seed(0)
    sums, given = torch.randn(3, 600, generator=generator) + 2, operands(asked, generator)
    (found,) = run(plan_of(asked), sums, given)
    x = sums.bfloat16().double()
    wanted = torch.nn.functional.rms_norm(x, (600,), given["weight"].double(), 1e-6)
    assert float((found.double() - wanted).norm()) <= 4e-3 * float(wanted.norm())


def test_rows_that_are_reduced_against_a_second_matrix() -> None:
    """The gradient of a norm, by torch's own differentiation."""
    m, n = 5, 616
    asked = gemms.product(m, n, 64, epilogue=rms_norm_backward(n))
    generator = torch.Generator().manual_seed(1)
    sums, given = torch.randn(m, n, generator=generator) + 1, operands(asked, generator)
    z = sums.double().requires_grad_()
    torch.nn.functional.rms_norm(z, (n,), given["weight"].double(), 1e-6).backward(given["grad"].double())
    assert z.grad is not None
    for choice in (SMALL, gemms.clusters((64, 256, 64), 4, epilogue_n=16)):
        plan = plan_of(asked, choice)
        if plan.finish is not None:
            (found,) = run(plan, sums, given)
        else:
            tile = torch.zeros(64, n)
            tile[:m] = sums
            padded = {**given, "grad": torch.nn.functional.pad(given["grad"], (0, 0, 0, 64 - m))}
            cluster = lockstep.Cluster(plan, [tile], padded)
            cluster.run()
            found = cluster.matrix("d")[:m]
        assert float((found.double() - z.grad).norm()) <= 4e-3 * float(z.grad.norm())


def test_tiles_of_nothing_but_minus_infinity() -> None:
    """Add nothing to a sum of exponentials, as in torch, unless the whole row is such."""
    asked = gemms.whole_rows("logsumexp", 4, 600, 64)
    sums = torch.randn(4, 600, generator=torch.Generator().manual_seed(2)) - 200
    sums[0, 128:] = float("-inf")
    sums[1] = float("-inf")
    sums[2, 7] = float("nan")
    sums[3, 300] = float("inf")
    (found,) = run(plan_of(asked), sums, {})
    top = sums.double().amax(1)
    wanted = (sums.double() - top[:, None]).exp().sum(1).log() + top
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert bool(wanted[1:].isnan().all()) and float(wanted[0]) < -100


@pytest.mark.parametrize("test", ["isinf", "isfinite"])
def test_a_top_that_is_zero_where_it_is_infinite(test: str) -> None:
    """Sum exponentials as torch.logsumexp does, which gives infinities where the maximum is one."""
    e = Chain()
    top = e("row_maximum", 0)
    about = e("where", e("isinf", top), 0.0, top) if test == "isinf" else e("where", e("isfinite", top), top, 0.0)
    total = e("row_sum", e("exp", e("sub", 0, about)))
    asked = gemms.product(
        5, 600, 64, epilogue=e.done(("lse", e("add", e("log", total), about), "column", "float32", 1))
    )
    plan = plan_of(asked)
    assert isinstance(plan.finish, TileFinish) and [part.kind for part in plan.finish.parts] == ["plain", "rescaled"]
    sums = torch.randn(5, 600, generator=torch.Generator().manual_seed(2)) - 200
    sums[0, 128:] = float("-inf")
    sums[1] = float("-inf")
    sums[2, 7] = float("nan")
    sums[3, 300] = float("inf")
    (found,) = run(plan, sums, {})
    wanted = sums.double().logsumexp(1)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert wanted[1] == -float("inf") and wanted[3] == float("inf")


@pytest.mark.parametrize("zero", [1.0, "top"])
def test_another_number_is_no_such_top(zero: float | str) -> None:
    e = Chain()
    top = e("row_maximum", 0)
    chosen = e("where", e("isinf", top), top, 0.0) if zero == "top" else e("where", e("isinf", top), 1.0, top)
    asked = gemms.product(
        5, 600, 64, epilogue=e.done(("t", e("row_sum", e("exp", e("sub", 0, chosen))), "column", "float32", 1))
    )
    assert isinstance(plan_of(asked).finish, RowFinish)


def test_the_first_of_equal_columns_in_several_tiles() -> None:
    asked = gemms.whole_rows("argmax", 3, 600, 64)
    sums = torch.zeros(3, 600)
    sums[0, [500, 250, 260]] = 3
    sums[1, [599, 130]] = float("nan")
    index, largest = run(plan_of(asked), sums, {"bias": torch.zeros(600)})
    assert index.tolist() == [250, 130, 0] and largest.tolist()[0] == 3 and largest[1].isnan()


# The text ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in gemms.ON_HOPPER if "memory" in name])
def test_two_kernels_of_one_launch(name: str) -> None:
    plan = gemms.hopper(name)
    verify(kernel_program(plan))
    text = render(kernel_program(plan))
    product, finish = (text.index(f"\n    {called}(\n") for called in ("kernel", "finish"))
    assert product < finish and text.count(").launch(") == 2
    launched, awaited = (text.index(f"cute.arch.griddepcontrol_{each}()") for each in ("launch_dependents", "wait"))
    assert launched < text.index("def finish(") < awaited and text.count("use_pdl=True") == 1
    assert plan.finish is not None and text.count("cute.arch.sync_threads()") == len(
        [walk for walk in row_walks(plan.finish) if walk.reduces] if isinstance(plan.finish, RowFinish) else []
    )
    words = shared_words(plan.finish) + row_words(plan.finish)
    assert (f"smem={4 * words}," in text) == bool(words)


def test_elements_beyond_32_bits() -> None:
    text = render(kernel_program(plan_of(gemms.whole_rows("rms_norm", 2**17, 16384, 64))))
    assert "row = cutlass.Int64(cta)" in text
    assert "Int64(cta)" not in render(kernel_program(plan_of(gemms.whole_rows("rms_norm", 2**16, 16384, 64))))


# Faults --------------------------------------------------------------------------------------------------------------------

FAULTY = ("memory_rms_norm_odd", "memory_residual_layer_norm", "memory_softmax_long", "memory_quantized")


@pytest.mark.parametrize("name", [*FAULTY, "memory_logsumexp_long", "memory_argmax_odd"])
def test_every_step_of_a_finish_is_needed(name: str) -> None:
    plan = gemms.hopper(name)
    assert plan.finish is not None
    steps = finish_steps(plan.finish)
    verify_finish(plan, steps)
    for at in range(len(steps)):
        with pytest.raises(Fault):
            verify_finish(plan, (*steps[:at], *steps[at + 1 :]))


@pytest.mark.parametrize("name", FAULTY)
def test_steps_of_a_finish_have_an_order(name: str) -> None:
    plan = gemms.hopper(name)
    assert plan.finish is not None
    steps = finish_steps(plan.finish)
    for at, (step, after) in enumerate(itertools.pairwise(steps)):
        waits = isinstance(step, AwaitProduct)
        begins = isinstance(step, LoadOperands) or (step == EvaluateNumbers(0) and isinstance(after, AwaitProduct))
        if begins or isinstance(step, StoreColumns) or (isinstance(after, LoadRow) and not waits):
            # registers are loaded, and outputs stored, in any order; nothing is read before the wait
            continue
        with pytest.raises(Fault):
            verify_finish(plan, (*steps[:at], after, step, *steps[at + 2 :]))


def test_the_second_kernel_is_launched_once_behind_all_tiles() -> None:
    program = kernel_program(gemms.hopper("memory_rms_norm_odd"))
    without = edit_role(program, "load", lambda step: () if isinstance(step, LaunchFinish) else (step,))
    inside = edit_role(
        without,
        "load",
        lambda step: (TileLoop((LaunchFinish(), *step.body)),) if isinstance(step, TileLoop) else (step,),
    )
    alone = dataclasses.replace(program, plan=dataclasses.replace(program.plan, finish=None))
    for faulty in (without, inside, alone):
        with pytest.raises(Fault, match="a kernel after the matmul is launched"):
            verify(faulty)


def test_memory_of_a_finish_is_checked() -> None:
    rows, tiles = gemms.hopper("memory_rms_norm_odd"), gemms.hopper("memory_argmax_odd")
    assert isinstance(rows.finish, RowFinish) and isinstance(tiles.finish, TileFinish)
    faulty = [
        (rows, dataclasses.replace(rows.finish, chunks=rows.finish.chunks - 1), "leave some of 4104"),
        (rows, dataclasses.replace(rows.finish, vector=8), "vectors of 8 float32"),
        (rows, dataclasses.replace(rows.finish, pitch=4112), "and read with another"),
        (rows, dataclasses.replace(rows.finish, dtype="bfloat16"), "and read with another"),
        (rows, dataclasses.replace(rows.finish, threads=2048), "CTAs of 2048 threads"),
        (tiles, dataclasses.replace(tiles.finish, tiles=16), "16 tiles of 256 columns are joined"),
    ]
    for plan, finish, message in faulty:
        changed = dataclasses.replace(plan, finish=finish)
        with pytest.raises(Fault, match=message):
            verify(kernel_program(changed))


def test_parts_of_two_reductions_have_places_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = gemms.hopper("memory_softmax_long")
    assert plan.finish is not None
    monkeypatch.setattr(verify_module, "part_slot", lambda finish, value: 0)
    with pytest.raises(Fault, match="written twice"):
        verify_finish(plan, finish_steps(plan.finish))


@helion.kernel(backend="cute")
def gated_softmax(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], device=x.device)
    for tile in hl.tile(x.size(0)):
        acc = hl.zeros([tile, y.size(1)], dtype=torch.float32)
        gate = hl.zeros([tile, y.size(1)], dtype=torch.float32)
        for k in hl.tile(x.size(1)):
            acc = hl.dot(x[tile, k], y[k, :], acc=acc)
            gate = hl.dot(x[tile, k], z[k, :], acc=gate)
        out[tile, :] = torch.softmax(acc * torch.sigmoid(gate), 1)
    return out


@pytest.mark.parametrize("n", [7, 16, 40])
def test_rows_shorter_than_the_narrowest_tile_in_memory(n: int) -> None:
    x = torch.randn(200, 5).to(torch.float8_e4m3fn).t()
    y, z = (torch.randn(200, n + 3).to(torch.float8_e4m3fn)[:, :n] for _ in range(2))
    wanted = torch.softmax(x.double() @ y.double() * torch.sigmoid(x.double() @ z.double()), 1)
    torch.testing.assert_close(gated_softmax(x, y, z).double(), wanted, rtol=1e-4, atol=1e-6)
    assert gated_softmax.bind((x, y, z)).config_spec.default_config()


def test_a_full_config_leaves_copies_that_a_cluster_cannot_slice(caplog: pytest.LogCaptureFixture) -> None:
    """Copies of two columns of ``x`` are contiguous along M: four CTAs would load slices of 16 rows of atoms of 64."""
    x = torch.empty(63, 2, dtype=torch.bfloat16, device="meta").T
    y = torch.empty(63, 256, dtype=torch.bfloat16, device="meta")
    bound = gated_softmax.bind((x, y, y), target="sm_90")
    full = bound.config_spec.default_config()
    assert (full["block_sizes"], full["wgmma_cluster_n"], full["wgmma_rows_in"]) == ([64, 64], 4, "cluster")
    bound.to_code(helion.Config(**{**full, "wgmma_copies_in": "memory"}))
    assert "wgmma_copies_in is 'shared', not 'memory'" in caplog.text
