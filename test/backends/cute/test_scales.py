"""Products with factors of blocks of K: how they are read, planned, printed and verified, and what they compute."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import pytest
import torch
from backends.cute import gemms, lockstep, rows, scaled_kernels

import helion
import helion.language as hl
from helion import exc, hardware
from helion.backends.cute.codegen.module import build
from helion.backends.cute.lower.product import product_of
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.records import Choice, GemmPlan
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.plan.scales import BlockScales, Scale
from helion.backends.cute.roles import grammar as g
from helion.backends.cute.roles.edits import edit_role, rewrite
from helion.backends.cute.roles.overlapped import (
    GROUP,
    GroupLoop,
    Rest,
    TurnMma,
    TurnPromote,
    TurnScales,
    overlapped_mainloop,
)
from helion.backends.cute.roles.programs import kernel_program
from helion.backends.cute.verify.cluster import Cluster
from helion.backends.cute.verify.smaller import smaller
from helion.backends.cute.verify.state import Fault
from helion.backends.cute.verify.verify import trips, verify

TARGETS = ("sm_90", "sm_100")
ODD = (200, 136, 400)


# From programs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", scaled_kernels.CASES)
def test_what_is_written_is_computed(name: str) -> None:
    case = scaled_kernels.CASES[name]
    extents = (200, 136, 384) if case.whole_blocks else ODD
    given = scaled_kernels.arguments(case, *extents)
    wanted = scaled_kernels.reference(case, *given)
    error = (case.kernel(*given).double() - wanted).norm(dim=1) / wanted.norm(dim=1)
    assert float(error.max()) < 4e-3
    for target in TARGETS:
        bound = case.kernel.bind(given, target=target)
        assert bound.seeds and bound.seeds[0].heuristic.startswith("Cute")
        plan = bound.plan().gemm
        assert plan.problem.scales is not None and plan.problem.scales.k == 128
        assert plan.tile[2] * plan.promote_k_tiles == 128
        assert "factors of blocks of 128 along K: sa" in str(bound.plan())


@pytest.mark.parametrize(
    ("name", "extents", "row", "column"),
    [
        ("by_id", ODD, (4, 1, 1, False), (1, 2, 128, True)),
        ("by_begin", ODD, (4, 1, 1, False), (1, 2, 128, True)),
        ("gathered", ODD, (1, 200, 1, False), (4, 1, 128, False)),
        ("expanded", ODD, (4, 1, 1, False), (1, 136, 1, False)),
        ("nested", (200, 136, 384), (3, 1, 1, False), (1, 2, 128, True)),
        ("nested_grid", (200, 136, 384), (3, 1, 1, False), (3, 1, 128, True)),
        ("normed", ODD, (4, 1, 1, False), (1, 136, 1, False)),
        ("by_id", (64, 96, 128), (1, 0, 1, False), (0, 0, 1, False)),
    ],
)
def test_factors_are_read_off_the_program(
    name: str, extents: tuple[int, int, int], row: tuple[Any, ...], column: tuple[Any, ...]
) -> None:
    case = scaled_kernels.CASES[name]
    given = scaled_kernels.arguments(case, *extents)
    scales = product_of(case.kernel.bind(given)._analysis.program).problem.scales
    assert scales is not None
    found = [scales.of("row"), scales.of("column")]
    assert [(each.pitch, each.k_pitch, each.lines, each.whole) for each in found if each] == [row, column]


@helion.kernel(backend="cute", static_shapes=True)
def by_tile_of_any_size(a: torch.Tensor, b: torch.Tensor, sa: torch.Tensor) -> torch.Tensor:
    m, k = a.size()
    n = b.size(1)
    out = torch.empty([m, n], dtype=torch.bfloat16, device=a.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc += hl.dot(a[tile_m, tile_k], b[tile_k, tile_n]) * sa[tile_m, tile_k.id][:, None]
        out[tile_m, tile_n] = acc.to(torch.bfloat16)
    return out


@helion.kernel(backend="cute", static_shapes=True)
def combined(
    a: torch.Tensor, b: torch.Tensor, sa: torch.Tensor, sb: torch.Tensor, how: hl.constexpr, start: hl.constexpr
) -> torch.Tensor:
    m, k = a.size()
    n = b.size(1)
    out = torch.empty([m, n], dtype=torch.bfloat16, device=a.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.full([tile_m, tile_n], start, dtype=torch.float32)
        for tile_k in hl.tile(k, block_size=128):
            part = hl.dot(a[tile_m, tile_k], b[tile_k, tile_n])
            acc = acc + how(part, sa, sb, tile_m, tile_n, tile_k)
        out[tile_m, tile_n] = acc.to(torch.bfloat16)
    return out


def rounded(part: Any, sa: Any, sb: Any, m: Any, n: Any, k: Any) -> Any:
    return part * (sa[m, k.id].to(torch.bfloat16) * sb[k.id, n.begin // 128].to(torch.bfloat16))[:, None]


def divided(part: Any, sa: Any, sb: Any, m: Any, n: Any, k: Any) -> Any:
    return part / sa[m, k.id][:, None]


def twice(part: Any, sa: Any, sb: Any, m: Any, n: Any, k: Any) -> Any:
    return part * sa[m, k.id][:, None] * sa[m, k.begin // 128][:, None]


def other_blocks(part: Any, sa: Any, sb: Any, m: Any, n: Any, k: Any) -> Any:
    return part * sa[m, k.id][:, None] * sb[k.begin // 256, n.begin // 128]


def shifted(part: Any, sa: Any, sb: Any, m: Any, n: Any, k: Any) -> Any:
    return part * sa[m, k.id - 1][:, None]


def numbered(part: Any, sa: Any, sb: Any, m: Any, n: Any, k: Any) -> Any:
    return part * sa[m, k.id][:, None] * 2.0


def squared(part: Any, sa: Any, sb: Any, m: Any, n: Any, k: Any) -> Any:
    return part * part * sa[m, k.id][:, None]


def first_row(part: Any, sa: Any, sb: Any, m: Any, n: Any, k: Any) -> Any:
    return part * sa[m, k.id][:, None] + 1.0


def few(part: Any, sa: Any, sb: Any, m: Any, n: Any, k: Any) -> Any:
    return part * sb[k.id, n.begin // 64]


@pytest.mark.parametrize(
    ("how", "start", "message"),
    [
        (rounded, 0.0, "bfloat16 among the factors"),
        (divided, 0.0, "div of the partial sums of a K tile"),
        (twice, 0.0, "several factors per row"),
        (other_blocks, 0.0, "blocks of 128 and of 256 along K"),
        (shifted, 0.0, "sa is picked by something else|with an offset"),
        (numbered, 0.0, "not by numbers"),
        (squared, 0.0, "the result of one dot"),
        (first_row, 0.0, "add"),
        (few, 0.0, "sb has 2 factors along a dimension of which 4 are read"),
        (numbered, 1.0, "start from zero"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_other_sums_are_refused(how: Any, start: float, message: str) -> None:
    case = scaled_kernels.CASES["by_id"]
    given = scaled_kernels.arguments(case, 256, 256, 512)
    with pytest.raises(exc.CuteUnsupported, match=message):
        combined.bind((*given, how, start)).plan()


def test_a_tile_that_a_config_sizes_is_no_block() -> None:
    a, b, sa, _ = scaled_kernels.arguments(scaled_kernels.CASES["by_id"], 256, 256, 512)
    with pytest.raises(exc.CuteUnsupported, match=r"tile_k\.id, whose tile's size a config decides; give hl\.tile"):
        by_tile_of_any_size.bind((a, b, sa)).plan()


@pytest.mark.parametrize("target", TARGETS)
def test_every_tile_of_the_space_has_its_factors(target: str) -> None:
    """No config gives a tile more than the program's one factor."""
    given = scaled_kernels.arguments(scaled_kernels.CASES["by_begin"], 512, 512, 512)
    bound = scaled_kernels.by_begin.bind(given, target=target)
    for columns, deep in ((32, 128), (64, 128), (128, 128)):
        rows = 64 if columns == 128 else 128
        plan = bound.plan(helion.Config(block_sizes=[rows, columns, deep]))
        assert plan.gemm.tile == (rows, columns, deep)
    for blocks in ([64, 256, 128], [64, 64, 256]):
        rows, columns, deep = bound.plan(helion.Config(block_sizes=blocks)).gemm.tile
        assert rows == 64 and columns <= 128 and deep == 128


# Plans -------------------------------------------------------------------------------------------------------------------


def changed(**changes: Any) -> BlockScales:
    scales = gemms.blockwise().scales
    assert scales is not None
    return dataclasses.replace(scales, **changes)


ROW = Scale(name="rows", side="row", dtype="float32", pitch=32, k_pitch=1)
PLAIN = Choice(tile=(128, 128, 128))


@pytest.mark.parametrize(
    ("target", "scales", "choice", "message"),
    [
        ("sm_90", changed(), Choice(tile=(128, 128, 256)), "blocks of 128 along K with 1 K tiles of 256"),
        ("sm_90", changed(), dataclasses.replace(PLAIN, promote_k_tiles=2), "with 2 K tiles of 128 per block"),
        ("sm_90", changed(), dataclasses.replace(PLAIN, promote=False), "promoted after each block"),
        ("sm_90", changed(), Choice(tile=(128, 64, 128), ctas_per_sm=2), "no registers for a second CTA"),
        ("sm_90", changed(k=256), Choice(tile=(128, 64, 128), splits=2), "one K tile each"),
        ("sm_90", changed(k=64), PLAIN, "blocks of 64 along K; multiples of 128 up to 1024"),
        ("sm_90", changed(k=2048), PLAIN, "blocks of 2048 along K"),
        ("sm_90", changed(factors=()), PLAIN, "one per row and one per column"),
        ("sm_90", changed(factors=(ROW, ROW)), PLAIN, "per row, row; one per row and one per column"),
        ("sm_90", changed(factors=(dataclasses.replace(ROW, dtype="int8"),)), PLAIN, "rows is of int8"),
        ("sm_90", changed(factors=(dataclasses.replace(ROW, pitch=-1),)), PLAIN, "strides of -1"),
        (
            "sm_90",
            changed(factors=(dataclasses.replace(ROW, lines=64, whole=True),)),
            PLAIN,
            "a tile of 128 lines where rows has a factor for 64",
        ),
        ("sm_90", changed(), Choice(tile=(128, 256, 128)), "256 accumulator registers per thread"),
        ("sm_100", changed(), PLAIN, "128 accumulator registers per thread; up to 64 leave room"),
        ("sm_100", changed(), dataclasses.replace(PLAIN, promote=True), "neither promoted nor rounded"),
    ],
)
def test_plans_that_are_refused(target: str, scales: BlockScales, choice: Choice, message: str) -> None:
    problem = dataclasses.replace(gemms.blockwise(), scales=scales)
    with pytest.raises(Refusal, match=message):
        plan_gemm(problem, choice, hardware.target(target))


def test_scales_of_two_products_are_refused() -> None:
    problem = gemms.blockwise(epilogue=gemms.swiglu(4096, gemms.E4M3))
    with pytest.raises(Refusal, match="for one matmul, or a batch of one dimension"):
        plan_gemm(problem, Choice(tile=(128, 64, 128)), gemms.HOPPER)


# The printed text, executed ------------------------------------------------------------------------------------------------


def scaled_rows(n: int, k: int) -> Any:
    return gemms.blockwise(90, n, k, columns=1, epilogue=rows.ROWS["rms_norm"](n))


RUN = {
    "wgmma": (gemms.blockwise(90, 120, 144), PLAIN, gemms.HOPPER),
    "wgmma_two_columns": (gemms.blockwise(64, 256, 256), Choice(tile=(64, 64, 128), cluster=(1, 4)), gemms.HOPPER),
    "wgmma_columns": (
        gemms.blockwise(90, 120, 272, columns=1),
        Choice(tile=(128, 64, 128), cluster=(1, 2)),
        gemms.HOPPER,
    ),
    "wgmma_tall": (gemms.blockwise(200, 24, 144, columns=1), Choice(tile=(256, 32, 128), epilogue_n=16), gemms.HOPPER),
    "wgmma_one_row": (gemms.blockwise(1, 56, 272, columns=32), Choice(tile=(64, 64, 128)), gemms.HOPPER),
    "wgmma_shared_rows": (
        gemms.blockwise(60, 56, 272, rows=32, columns=None),
        Choice(tile=(64, 64, 128)),
        gemms.HOPPER,
    ),
    "wgmma_columns_only": (
        gemms.blockwise(63, 56, 272, rows=None, columns=1),
        Choice(tile=(64, 64, 128)),
        gemms.HOPPER,
    ),
    "wgmma_one": (gemms.blockwise(63, 56, 272, rows=None, columns=64), Choice(tile=(64, 64, 128)), gemms.HOPPER),
    "wgmma_256": (gemms.blockwise(90, 56, 528, block=256), Choice(tile=(128, 64, 128)), gemms.HOPPER),
    "wgmma_bf16": (
        gemms.blockwise(60, 56, 136, operands="bfloat16", epilogue=gemms.bias("silu")),
        Choice(tile=(64, 64, 64)),
        gemms.HOPPER,
    ),
    "wgmma_rows": (scaled_rows(120, 272), Choice(tile=(128, 64, 128), cluster=(1, 2)), gemms.HOPPER),
    "wgmma_112_columns": (
        gemms.blockwise(60, 104, 272, columns=1),
        Choice(tile=(64, 112, 128), epilogue_n=8),
        gemms.HOPPER,
    ),
    "tcgen05": (gemms.blockwise(90, 120, 272), Choice(tile=(128, 64, 128), cluster=(1, 2)), gemms.BLACKWELL),
    "tcgen05_columns": (gemms.blockwise(90, 56, 272, columns=1), Choice(tile=(128, 64, 128)), gemms.BLACKWELL),
    "tcgen05_few_columns": (
        gemms.blockwise(90, 40, 272, columns=1),
        Choice(tile=(128, 48, 128), epilogue_n=8),
        gemms.BLACKWELL,
    ),
    "tcgen05_64": (gemms.blockwise(60, 120, 272, columns=1), Choice(tile=(64, 128, 128)), gemms.BLACKWELL),
    "tcgen05_256": (gemms.blockwise(90, 56, 528, block=256), Choice(tile=(128, 64, 128)), gemms.BLACKWELL),
    "tcgen05_rows": (scaled_rows(120, 272), Choice(tile=(128, 64, 128), cluster=(1, 2)), gemms.BLACKWELL),
}


#: Of what others have together.
PROVED = (
    *("wgmma_two_columns", "wgmma_one_row", "wgmma_shared_rows", "wgmma_columns_only", "wgmma_one", "wgmma_bf16"),
    *("tcgen05_columns", "tcgen05_rows"),
)


@pytest.mark.parametrize("name", [name for name in RUN if name not in PROVED or os.environ.get("HELION_PROVE") == "1"])
def test_the_text_multiplies_each_block_by_its_factors(name: str) -> None:
    problem, choice, target = RUN[name]
    plan = plan_gemm(problem, choice, target)
    generator = torch.Generator().manual_seed(5)
    a, b = (torch.randn(lines, problem.k, generator=generator) + 0.25 for lines in (problem.m, problem.n))
    factors = {each.name: _factors(plan, each, generator) for each in _scales(plan).factors}
    vectors = {each.name: torch.randn(problem.n, generator=generator) for each in problem.epilogue.operands}
    cluster = lockstep.Blocks(plan, a, b, factors, vectors)
    cluster.run()
    wanted = torch.zeros(problem.m, problem.n, dtype=torch.float64)
    for at, first in enumerate(range(0, problem.k, _scales(plan).k)):
        part = a.double()[:, first : first + _scales(plan).k] @ b.double()[:, first : first + _scales(plan).k].t()
        for each in _scales(plan).factors:
            lines = torch.arange(part.shape[0 if each.side == "row" else 1]) // each.lines
            picked = factors[each.name].double()[lines, at]
            part = part * (picked[:, None] if each.side == "row" else picked)
        wanted += part
    if problem.epilogue.of_kind("row") and not problem.epilogue.reduces_rows:
        wanted = torch.nn.functional.silu(wanted + vectors["bias"].double())
    elif problem.epilogue.reduces_rows:
        wanted = _normed(plan, wanted, vectors)
    found = cluster.matrix(problem.outputs[0].name)[: problem.m].double()
    error = (found - wanted).norm(dim=1) / wanted.norm(dim=1)
    assert float(error.max()) < (4e-3 if problem.epilogue.instructions else 3e-3)


def _scales(plan: GemmPlan) -> BlockScales:
    assert plan.problem.scales is not None
    return plan.problem.scales


def _factors(plan: GemmPlan, scale: Scale, generator: torch.Generator) -> torch.Tensor:
    extent = plan.problem.m if scale.side == "row" else plan.problem.n
    lines = -(-extent // scale.lines)
    return torch.rand(lines, -(-plan.problem.k // _scales(plan).k), generator=generator) + 0.25


def _normed(plan: GemmPlan, sums: torch.Tensor, vectors: dict[str, torch.Tensor]) -> torch.Tensor:
    inverse = torch.rsqrt(sums.square().mean(1, keepdim=True) + 1e-5)
    (weight,) = vectors.values()
    return sums * inverse * weight.double()


# The verifier --------------------------------------------------------------------------------------------------------------

SMALL = Choice(tile=(64, 32, 128), ab_stages=3, epilogue_n=16)
PROGRAMS = {
    "wgmma": (gemms.blockwise(), SMALL, gemms.HOPPER),
    "wgmma_256": (gemms.blockwise(block=256), SMALL, gemms.HOPPER),
    "wgmma_pingpong": (gemms.blockwise(), dataclasses.replace(SMALL, pingpong=True), gemms.HOPPER),
    "wgmma_splits": (gemms.blockwise(), dataclasses.replace(SMALL, splits=2), gemms.HOPPER),
    "tcgen05": (gemms.blockwise(), SMALL, gemms.BLACKWELL),
    "tcgen05_256": (gemms.blockwise(block=256), SMALL, gemms.BLACKWELL),
    "tcgen05_pair": (
        gemms.blockwise(epilogue=gemms.scaled_residual(4096)),
        Choice(tile=(256, 32, 128), cluster=(2, 1), ctas_per_mma=2, ab_stages=2, epilogue_n=16, accumulator_stages=2),
        gemms.BLACKWELL,
    ),
    "tcgen05_grid": (gemms.blockwise(512, 512), dataclasses.replace(SMALL, grid_splits=2), gemms.BLACKWELL),
}


def program(name: str) -> g.KernelProgram:
    problem, choice, target = PROGRAMS[name]
    return kernel_program(plan_gemm(problem, choice, target))


def simulate(kernel: g.KernelProgram, every: int) -> None:
    for seed, (tiles, k_tiles) in enumerate(trips(kernel.plan)[::every]):
        Cluster(kernel, tiles=tiles, k_tiles=k_tiles, seed=seed).run()


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_verified(name: str) -> None:
    kernel = program(name)
    verify(kernel)
    simulate(kernel, 11)


@pytest.mark.parametrize(
    ("name", "role", "dropped", "message"),
    [
        ("wgmma", "store", g.LoadScales, "scales of"),
        ("wgmma", "store", g.ClearSums, "accumulator of tile"),
        ("wgmma", "store", g.WgmmaWait, "still adds"),
        ("wgmma", "store", g.Promote, "accumulator of tile"),
        ("wgmma_256", "store", g.LoadScales, "scales of"),
        ("wgmma_256", "store", g.Promote, "accumulator of tile"),
        ("tcgen05", "store", g.LoadScales, "scales of"),
        ("tcgen05", "store", g.ClearSums, "accumulator of tile"),
        ("tcgen05", "store", g.Wait, "consists of"),
        ("tcgen05", "store", g.Promote, "accumulator of tile"),
        ("tcgen05", "store", g.Release, "deadlock"),
        ("tcgen05", "multiply", g.Acquire, "consists of"),
        ("tcgen05", "multiply", g.SelectSums, "consists of"),
        ("tcgen05", "multiply", g.Commit, "deadlock"),
        ("tcgen05_256", "multiply", g.SelectSums, "consists of"),
        ("tcgen05_pair", "store", g.Advance, "consists of|deadlock|stale residual"),
        ("tcgen05_pair", "multiply", g.Acquire, "consists of"),
    ],
)
def test_planted_faults_are_found(name: str, role: str, dropped: type[g.Step], message: str) -> None:
    faulty = edit_role(program(name), role, lambda step: () if isinstance(step, dropped) else (step,))
    with pytest.raises(Fault, match=message):
        simulate(faulty, 1)


def test_factors_that_are_loaded_once_per_tile_are_found() -> None:
    """In front of the loop over blocks, so that every block has the factors of the first."""
    kernel = program("wgmma")

    def rule(step: g.Step) -> tuple[g.Step, ...]:
        if isinstance(step, g.LoadScales):
            return ()
        return (g.LoadScales(), step) if isinstance(step, g.KLoop) else (step,)

    with pytest.raises(Fault, match="multiplied by the scales of"):
        simulate(edit_role(kernel, "store", rule), 1)


def test_factors_are_asked_for_before_operands_are_waited_for() -> None:
    """So that they come while the products of the block are computed."""
    for name in PROGRAMS:
        store = next(role for role in program(name).roles if role.name.startswith("store"))
        kept: list[g.Step] = []
        rewrite(store.program, lambda step, kept=kept: (kept.append(step) or step,))  # type: ignore[misc]
        kinds = [type(step) for step in kept]
        assert kinds.index(g.LoadScales) < kinds.index(g.Wait) < kinds.index(g.Promote)


def test_sizes_and_tiles_that_factors_need_are_named() -> None:
    case = scaled_kernels.CASES["by_id"]
    given = scaled_kernels.arguments(case, *ODD)
    with pytest.raises(
        exc.CuteUnsupported, match="the size of the dimension that sa has factors for is known only at run"
    ):
        helion.kernel(case.kernel.fn, backend="cute", static_shapes=False).bind(given)


OVERLAPPED = {"wgmma_acc_stages": 2, "block_sizes": [128, 128, 128], "wgmma_k_splits": 1, "wgmma_grid_splits": 1}


@pytest.mark.parametrize("k", [1024, 1152, 1280, 1408])
def test_two_accumulators_take_turns(k: int) -> None:
    """One K tile is promoted while the unit multiplies the next, in groups and one of those that are left."""
    case = scaled_kernels.CASES["by_begin"]
    bound = case.kernel.bind(scaled_kernels.arguments(case, 300, 264, k), target="sm_90")
    gemm = bound.plan({**bound.default_config().to_dict(), **OVERLAPPED}).gemm
    assert gemm.accumulator_stages == 2
    text, tiles = build(gemm), k // 128
    assert f"for k_tile in cutlass.range(0, {tiles // GROUP * GROUP}, {GROUP}, unroll=1):" in text
    assert "math.fma(other_sums[i], other_row_factors[" in text and text.count("sums_shape, cutlass.Float32)") == 3
    assert text.count("warpgroup.wait_group(") == GROUP + tiles % GROUP
    assert text.count("warpgroup.wait_group(0)") == 1 + (tiles % GROUP > 0)


def test_turns_without_scales_have_two_k_tiles() -> None:
    """The second K tile of a turn adds to its accumulator, and both stages are released after it."""
    case = scaled_kernels.CASES["by_begin"]
    problem = case.kernel.bind(scaled_kernels.arguments(case, 300, 264, 1408), target="sm_90").plan().gemm.problem
    choice = Choice(tile=(128, 128, 128), accumulator_stages=2, promote_k_tiles=2)
    gemm = plan_gemm(dataclasses.replace(problem, scales=None), choice, hardware.target("sm_90"))
    program, text = kernel_program(gemm), build(gemm)
    verify(program)
    assert f"for k_tile in cutlass.range(0, {11 // (2 * GROUP) * 2 * GROUP}, {2 * GROUP}, unroll=1):" in text
    assert text.count("total.store(total.load() + other_sums.load())") == text.count(
        "total.store(total.load() + sums.load())"
    )
    few = smaller(program)
    for seed, k_tiles in enumerate((1, 2, 3, 4 * GROUP - 1, 4 * GROUP + 2)):
        Cluster(few, tiles=2, k_tiles=k_tiles, seed=seed).run()
    cleared = edit_role(
        program, "store", lambda step: (dataclasses.replace(step, first=True) if isinstance(step, TurnMma) else step,)
    )
    with pytest.raises(Fault, match="is overwritten before it is promoted"):
        verify(cleared)
    with pytest.raises(Refusal, match="3 stages of A and B; at least 4"):
        plan_gemm(gemm.problem, dataclasses.replace(choice, ab_stages=3), hardware.target("sm_90"))


@pytest.mark.parametrize("size", [4, 6])
def test_larger_groups_follow_the_protocol(size: int) -> None:
    """A warpgroup waits for all MMAs after each group; the last K tiles are one of the shorter sequences."""
    case = scaled_kernels.CASES["by_begin"]
    bound = case.kernel.bind(scaled_kernels.arguments(case, 300, 264, 1024), target="sm_90")
    program = kernel_program(bound.plan({**bound.default_config().to_dict(), **OVERLAPPED}).gemm)

    def larger(step: g.Step) -> tuple[g.Step, ...]:
        if isinstance(step, GroupLoop):
            return overlapped_mainloop(True, size)[1:]
        return () if isinstance(step, Rest) else (step,)

    few = smaller(edit_role(program, "store", larger))
    for seed, k_tiles in enumerate(range(1, 2 * size + 2)):
        Cluster(few, tiles=2, k_tiles=k_tiles, seed=seed).run()


@pytest.mark.parametrize(
    ("kind", "change", "fault"),
    [
        (g.WgmmaWait, {"pending": 1}, "promoted while the matrix unit still adds"),
        (TurnMma, {"turn": 0}, "is overwritten before it is promoted"),
        (TurnScales, {"turn": 0}, "multiplied by the scales of"),
        (
            TurnPromote,
            {"turn": 0},
            "promoted while the matrix unit still adds|by the scales of|the accumulator of block",
        ),
    ],
)
def test_wrong_turns_are_faults(kind: type[g.Step], change: dict[str, int], fault: str) -> None:
    """Plant a wait for too few MMAs, and steps of the wrong accumulator."""
    case = scaled_kernels.CASES["by_begin"]
    bound = case.kernel.bind(scaled_kernels.arguments(case, 300, 264, 1024), target="sm_90")
    program = kernel_program(bound.plan({**bound.default_config().to_dict(), **OVERLAPPED}).gemm)
    verify(program)

    def plant(step: g.Step) -> tuple[g.Step, ...]:
        return (dataclasses.replace(step, **change) if isinstance(step, kind) else step,)  # type: ignore[arg-type]

    with pytest.raises(Fault, match=fault):
        verify(edit_role(program, "store", plant))


def test_turns_need_promotion_after_each_k_tile() -> None:
    case = scaled_kernels.CASES["by_begin"]
    problem = case.kernel.bind(scaled_kernels.arguments(case, 300, 264, 1024), target="sm_90").plan().gemm.problem
    plain = dataclasses.replace(problem, scales=None)
    for given, choice in (
        (problem, Choice(tile=(64, 128, 128), accumulator_stages=2, pingpong=True)),
        (problem, Choice(tile=(64, 128, 128), accumulator_stages=2, splits=2)),
        (plain, Choice(tile=(128, 128, 128), accumulator_stages=2, promote_k_tiles=4)),
        (dataclasses.replace(plain, operand_dtype="bfloat16"), Choice(tile=(128, 128, 64), accumulator_stages=2)),
    ):
        with pytest.raises(Refusal, match="2 accumulators of wgmma"):
            plan_gemm(given, choice, hardware.target("sm_90"))
