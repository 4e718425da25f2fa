"""The verifier: it passes the programs that are printed, and finds every fault that is planted in them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator

import pytest
from backends.cute import gemms
from backends.cute.combinations import random_plans
from costs import calls

from helion.backends.cute.codegen.module import build, render
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.records import Choice
from helion.backends.cute.roles import grammar as g
from helion.backends.cute.roles.edits import Rewrite, edit_role
from helion.backends.cute.roles.programs import kernel_program
from helion.backends.cute.roles.registers import register_limit
from helion.backends.cute.verify.cluster import RULES, Cluster, Running
from helion.backends.cute.verify.smaller import smaller
from helion.backends.cute.verify.state import Fault, Warp
from helion.backends.cute.verify.structure import check_structure
from helion.backends.cute.verify.verify import _simulate, least_k_tiles, trips, verify

RANDOM = random_plans(24, seed=1)
PROVE = os.environ.get("HELION_PROVE") == "1"
SMALL = Choice(tile=(64, 64, 64), ab_stages=3)


def program(name: str) -> g.KernelProgram:
    """A program with few stages and sub-tiles, so that all trips around its rings are short."""
    residual = gemms.scaled_residual(4096)
    fp8 = gemms.product(operands=gemms.E4M3, epilogue=gemms.row_and_column_scales())
    pair = Choice(tile=(256, 64, 64), cluster=(2, 1), ctas_per_mma=2, ab_stages=3)
    cases = {
        "wgmma": (gemms.product(), SMALL, gemms.HOPPER),
        "wgmma_two": (gemms.product(), dataclasses.replace(SMALL, tile=(128, 64, 64)), gemms.HOPPER),
        "wgmma_rest": (gemms.product(), dataclasses.replace(SMALL, epilogue_n=16, store_stages=3), gemms.HOPPER),
        "wgmma_cluster": (gemms.product(), dataclasses.replace(SMALL, cluster=(2, 1)), gemms.HOPPER),
        "wgmma_residual": (gemms.product(epilogue=residual), SMALL, gemms.HOPPER),
        "wgmma_pingpong": (gemms.product(), dataclasses.replace(SMALL, pingpong=True), gemms.HOPPER),
        "wgmma_pingpong_residual": (
            gemms.product(epilogue=residual),
            Choice(tile=(64, 128, 64), ab_stages=3, pingpong=True, epilogue_n=16, residual_stages=3),
            gemms.HOPPER,
        ),
        "wgmma_splits": (gemms.product(), dataclasses.replace(SMALL, splits=2), gemms.HOPPER),
        "wgmma_splits_cluster": (
            gemms.product(),
            dataclasses.replace(SMALL, splits=2, cluster=(2, 1)),
            gemms.HOPPER,
        ),
        "wgmma_splits_residual": (
            gemms.product(epilogue=residual),
            dataclasses.replace(SMALL, splits=3, epilogue_n=16),
            gemms.HOPPER,
        ),
        "wgmma_grid": (gemms.product(), dataclasses.replace(SMALL, grid_splits=3), gemms.HOPPER),
        "wgmma_last": (gemms.product(), dataclasses.replace(SMALL, grid_splits=3, split_last=True), gemms.HOPPER),
        "wgmma_last_residual": (
            gemms.product(epilogue=residual),
            Choice(tile=(128, 128, 64), ab_stages=3, cluster=(2, 1), grid_splits=2, residual_stages=3, split_last=True),
            gemms.HOPPER,
        ),
        "wgmma_grid_splits": (
            gemms.product(512, 512),
            dataclasses.replace(SMALL, grid_splits=2, splits=2),
            gemms.HOPPER,
        ),
        "wgmma_grid_residual": (
            gemms.product(epilogue=residual),
            dataclasses.replace(SMALL, tile=(128, 64, 64), grid_splits=2, cluster=(2, 1), residual_stages=3),
            gemms.HOPPER,
        ),
        "tcgen05_grid_pair": (gemms.product(), dataclasses.replace(pair, grid_splits=3), gemms.BLACKWELL),
        "wgmma_promoted": (fp8, dataclasses.replace(SMALL, tile=(64, 64, 128), promote_k_tiles=1), gemms.HOPPER),
        "wgmma_promoted_2": (fp8, dataclasses.replace(SMALL, tile=(64, 64, 128), promote_k_tiles=2), gemms.HOPPER),
        "wgmma_promoted_3_splits": (
            fp8,
            dataclasses.replace(SMALL, tile=(64, 64, 128), promote_k_tiles=3, splits=2),
            gemms.HOPPER,
        ),
        "tcgen05": (gemms.product(), dataclasses.replace(SMALL, tile=(128, 64, 64)), gemms.BLACKWELL),
        "tcgen05_pair": (gemms.product(), pair, gemms.BLACKWELL),
        "tcgen05_pairs": (gemms.product(epilogue=residual), dataclasses.replace(pair, cluster=(2, 2)), gemms.BLACKWELL),
    }
    return kernel_program(plan_gemm(*cases[name]))


SMALL_PROGRAMS = (
    "wgmma",
    "wgmma_two",
    "wgmma_rest",
    "wgmma_cluster",
    "wgmma_residual",
    "wgmma_promoted",
    "wgmma_promoted_2",
    "wgmma_promoted_3_splits",
    "wgmma_pingpong",
    "wgmma_pingpong_residual",
    "wgmma_splits",
    "wgmma_splits_residual",
    "wgmma_splits_cluster",
    "wgmma_grid",
    "wgmma_grid_splits",
    "wgmma_grid_residual",
    "wgmma_last",
    "wgmma_last_residual",
    "tcgen05_grid_pair",
    "tcgen05",
    "tcgen05_pair",
    "tcgen05_pairs",
)


@pytest.mark.parametrize("name", SMALL_PROGRAMS)
def test_programs_run_under_random_schedules(name: str) -> None:
    """0 to 3 rounds of sums, 1 to 3 rounds of operands; every other case unless all are to be proven."""
    kernel = program(name)
    for seed, (tiles, k_tiles) in enumerate(trips(kernel.plan)[:: 1 if PROVE else 3]):
        Cluster(kernel, tiles=tiles, k_tiles=k_tiles, seed=seed).run()


@pytest.mark.parametrize("name", gemms.all_plans())
def test_every_plan_is_verified(name: str) -> None:
    verify(kernel_program(gemms.all_plans()[name]))


@pytest.mark.parametrize("name", RANDOM)
def test_combinations_are_verified(name: str) -> None:
    verify(kernel_program(RANDOM[name]))


@pytest.mark.prove
@pytest.mark.skipif(not PROVE, reason="minutes long; HELION_PROVE=1 runs it")
@pytest.mark.parametrize("name", gemms.all_plans())
def test_every_plan_runs_all_trips(name: str) -> None:
    kernel = kernel_program(gemms.all_plans()[name])
    for seed, (tiles, k_tiles) in enumerate(trips(kernel.plan)):
        Cluster(kernel, tiles=tiles, k_tiles=k_tiles, seed=seed).run()


# Planted faults ----------------------------------------------------------------------------------------------------------


def first_fault(kernel: g.KernelProgram, schedules: int = 12) -> str:
    """What the simulation says first, over all trips under a number of schedules."""
    for seed in range(schedules):
        for tiles, k_tiles in ((1, 1), (2, 1), (1, 4), (2, 3), (4, 2), (3, 7)):
            try:
                more = least_k_tiles(kernel.plan) - 1
                Cluster(kernel, tiles=tiles, k_tiles=k_tiles * kernel.plan.parts + more, seed=seed).run()
            except Fault as fault:
                return str(fault)
    return "nothing"


def is_found_at_once(kernel: g.KernelProgram) -> bool:
    """By the few schedules of what ``verify`` simulates."""
    try:
        _simulate(smaller(kernel))
    except Fault:
        return True
    return False


def drop(*steps: g.Step) -> Rewrite:
    return lambda step: () if step in steps else (step,)


def drop_in_tiles(gone: g.Step) -> Rewrite:
    """Remove a step that each tile has, outside of its loops."""

    def rule(step: g.Step) -> tuple[g.Step, ...]:
        if not isinstance(step, g.TileLoop):
            return (step,)
        return (dataclasses.replace(step, body=tuple(each for each in step.body if each != gone)),)

    return rule


def drop_kind(kind: type[g.Step]) -> Rewrite:
    return lambda step: () if isinstance(step, kind) else (step,)


def drop_gate(who: g.Who) -> Rewrite:
    return lambda step: () if isinstance(step, g.Gate) and step.who == who else (step,)


def open_gate(who: g.Who) -> Rewrite:
    return lambda step: step.body if isinstance(step, g.Gate) and step.who == who else (step,)


def everybody_stores(step: g.Step) -> tuple[g.Step, ...]:
    """Not the last CTA alone."""
    return step.body if isinstance(step, g.Gate) and step.who == "last_part" else (step,)


def the_first_stores(step: g.Step) -> tuple[g.Step, ...]:
    """The wrong CTA."""
    gate = isinstance(step, g.Gate) and step.who == "last_part"
    return (dataclasses.replace(step, who="earlier_part"),) if gate else (step,)


def reset_early(step: g.Step) -> tuple[g.Step, ...]:
    """Before all parts have been counted."""
    return (step, g.ResetTileCounter()) if isinstance(step, g.IncrementTileCounter) else (step,)


def drop_the_second_barrier(step: g.Step) -> tuple[g.Step, ...]:
    """What the first warp has learned is not passed on to the others."""
    body = getattr(step, "body", ())
    gates = [at for at, inner in enumerate(body) if g.IncrementTileCounter() in getattr(inner, "body", ())]
    if not gates:
        return (step,)
    (gate,) = gates
    return (dataclasses.replace(step, body=(*step.body[: gate + 1], *step.body[gate + 2 :])),)


@pytest.mark.parametrize(
    ("name", "role", "rewrite", "message"),
    [
        # Operands
        ("wgmma", "load", drop(g.Acquire("ab_fill")), "overwrites|stale|arrivals|has left|deadlock"),
        ("wgmma", "load", drop(g.Advance("ab_fill")), "stale|deadlock|arrivals|has left"),
        ("wgmma", "load", drop(g.TmaLoad("b", "ab_fill")), "deadlock"),
        ("wgmma", "store", drop(g.Wait("ab_read")), "stale"),
        ("wgmma", "store", drop(g.Release("ab_free")), "deadlock"),
        ("wgmma", "store", drop(g.Advance("ab_read")), "stale|deadlock"),
        ("wgmma", "store", drop(g.Advance("ab_free")), "overwrites|arrivals|deadlock"),
        ("tcgen05", "load", drop(g.Acquire("ab_fill")), "overwrites|stale|deadlock|arrivals"),
        ("tcgen05", "multiply", drop(g.Wait("ab_read")), "stale"),
        ("tcgen05", "multiply", drop(g.Release("ab_read")), "deadlock"),
        ("tcgen05", "multiply", drop(g.Advance("ab_read")), "stale|deadlock"),
        ("tcgen05_pair", "load", drop(g.TmaLoad("a", "ab_fill")), "deadlock"),
        # Products
        ("wgmma", "store", drop(g.WgmmaFence()), "fence"),
        ("wgmma", "store", drop(g.WgmmaCommit()), "overwrites|still adds"),
        ("wgmma", "store", drop(g.WgmmaWait(1)), "overwrites"),
        ("wgmma", "store", drop(g.WgmmaWait(0)), "still adds|overwrites"),
        ("wgmma_promoted", "store", drop(g.ClearSums()), "accumulator of tile"),
        ("wgmma_promoted", "store", drop(g.WgmmaWait(0)), "still adds"),
        # Tensor memory
        ("tcgen05", "multiply", drop(g.Acquire("sums_fill")), "accumulator of tile"),
        ("tcgen05", "multiply", drop(g.Commit("sums_fill")), "deadlock"),
        ("tcgen05", "multiply", drop(g.Advance("sums_fill")), "accumulator of tile|deadlock"),
        ("tcgen05", "multiply", drop(g.SelectSums("sums_fill")), "accumulator of tile"),
        ("tcgen05", "store", drop(g.Wait("sums_read")), "accumulator of tile"),
        ("tcgen05", "store", drop(g.Release("sums_read")), "deadlock"),
        ("tcgen05", "store", drop(g.Advance("sums_read")), "accumulator of tile|deadlock"),
        ("tcgen05", "store", drop(g.AllocateSums()), "before it is allocated"),
        # Stores
        ("wgmma", "store", drop(g.BarrierSync("epilogue")), "is stored while"),
        ("wgmma", "store", drop_kind(g.StoreWait), "being stored|has left"),
        ("wgmma", "store", drop(g.TmaStore()), "not stored once"),
        ("wgmma_rest", "store", drop_in_tiles(g.Gate("first_warp", (g.StoreWait(0),))), "being stored"),
        ("tcgen05_pair", "store", drop(g.WriteStage()), "is stored while"),
        ("wgmma", "store", drop(g.FenceShared()), "is stored while"),
        ("tcgen05", "store", drop(g.FenceShared()), "is stored while"),
        # Epilogue operands
        ("wgmma_residual", "store", drop(g.Wait("residual_read")), "stale residual"),
        ("wgmma_residual", "store", drop(g.FenceShared()), "no fence between"),
        ("wgmma_residual", "store", drop(g.Release("residual_read")), "deadlock"),
        ("wgmma_residual", "store", drop(g.Advance("residual_read")), "stale residual|deadlock"),
        ("wgmma_residual", "load_residual", drop(g.Acquire("residual_fill")), "stale residual|arrivals|deadlock"),
        ("wgmma_residual", "load_residual", drop(g.Advance("residual_fill")), "stale residual|arrivals|deadlock"),
        ("wgmma_promoted_2", "store", drop(g.Promote()), "accumulator of tile"),
        ("wgmma_promoted_2", "store", drop(g.WgmmaWait(0)), "promoted while|overwrites"),
        # Two teams
        ("wgmma_pingpong", "store_1", drop(g.Skip("ab_read", "k_tiles")), "stale|deadlock"),
        ("wgmma_pingpong", "store_0", drop(g.Skip("ab_free", "k_tiles")), "overwrites|arrivals|deadlock"),
        ("wgmma_pingpong", "store_0", drop(g.BarrierArrive("turn_1")), "deadlock"),
        ("wgmma_pingpong", "store_1", drop(g.BarrierArrive("turn_0")), "deadlock"),
        ("wgmma_pingpong", "store_1", drop(g.BarrierSync("turn_1")), "stale|deadlock"),
        ("wgmma_pingpong", "store_1", drop(g.BarrierSync("epilogue_1")), "is stored while"),
        ("wgmma_pingpong_residual", "store_1", drop(g.Skip("residual_read", "subtiles")), "stale residual|deadlock"),
        ("wgmma_pingpong_residual", "store_1", drop(g.FenceShared()), "no fence between"),
        ("wgmma_pingpong_residual", "store_1", drop(g.BarrierSync("stores_1")), "stale residual|deadlock|arrivals"),
        # K split among CTAs
        ("wgmma_splits", "store", drop(g.Acquire("parts_fill")), "deadlock|have not been read"),
        ("wgmma_splits", "store", drop(g.SendPartials("parts_fill")), "deadlock"),
        ("wgmma_splits", "store", drop(g.Advance("parts_fill")), "have not been read|deadlock|arrivals"),
        ("wgmma_splits", "store", drop(g.Wait("parts_read")), "stale partials"),
        ("wgmma_splits", "store", drop(g.AddPartials("parts_read")), "lacks partials"),
        ("wgmma_splits", "store", drop(g.Release("parts_read")), "deadlock"),
        ("wgmma_splits", "store", drop(g.Advance("parts_read")), "stale partials|deadlock"),
        ("wgmma_splits", "store", drop(g.BarrierSync("epilogue")), "is stored while"),
        # K split among clusters
        *(
            (name, "store", rewrite, message)
            for name in ("wgmma_grid", "wgmma_grid_splits", "wgmma_grid_residual", "wgmma_last", "tcgen05_grid_pair")
            for rewrite, message in (
                (drop(g.StorePartials()), "may not be visible"),
                (drop(g.WorkspaceRelease()), "may not be visible"),
                (drop(g.WorkspaceAcquire()), "may not be visible"),
                (drop(g.IncrementTileCounter()), "is not stored once|may not be visible|deadlock"),
                (drop(g.ReducePartials()), "lacks partials of other clusters|has the accumulator of"),
                (drop(g.ResetTileCounter()), "is left at"),
                (
                    drop(g.BarrierSync("epilogue")),
                    "may not be visible|is stored while|lacks partials|has the|reads vectors",
                ),
                (drop_the_second_barrier, "may not be visible|is not stored once|lacks partials|has the"),
                (everybody_stores, "may not be visible"),
                (the_first_stores, "may not be visible"),
                (reset_early, "is not stored once"),
            )
        ),
        ("wgmma_grid_residual", "store", drop_gate("earlier_part"), "deadlock"),
        ("wgmma_last_residual", "store", drop_gate("earlier_part"), "deadlock"),
        ("wgmma_last", "store", drop_gate("whole_tile"), "has the accumulator of"),
        ("wgmma_last", "store", open_gate("whole_tile"), "lacks partials of other clusters"),
        ("wgmma_last", "store", open_gate("split_tile"), "may not be visible"),
        ("wgmma_grid_residual", "store", drop(g.Advance("residual_read")), "deadlock|stale residual|arrivals"),
        ("wgmma_promoted", "store", drop_kind(g.LoadVectors), "before they are loaded"),
        ("wgmma_promoted", "store", drop(g.ShareVectors()), "reads vectors of tiles"),
    ],
)
def test_a_missing_step_is_found(name: str, role: str, rewrite: Rewrite, message: str) -> None:
    kernel = edit_role(program(name), role, rewrite)
    assert kernel != program(name)
    assert any(part in first_fault(kernel) for part in message.split("|")), first_fault(kernel)
    assert is_found_at_once(kernel)


def test_both_ctas_of_a_pair_issuing_is_found() -> None:
    def open_gate(step: g.Step) -> tuple[g.Step, ...]:
        return step.body if isinstance(step, g.Gate) and step.who == "leader" else (step,)

    assert first_fault(edit_role(program("tcgen05_pair"), "multiply", open_gate)) != "nothing"


def test_a_cta_that_leaves_early_is_found() -> None:
    """Without the tail and the exit barrier a release meets a CTA that has left."""
    kernel = edit_role(program("wgmma_cluster"), "load", drop(g.Tail("ab_fill")))
    assert "has left" in first_fault(dataclasses.replace(kernel, exit=()), schedules=60)


def test_a_single_exchange_buffer_is_found() -> None:
    """One barrier per sub-tile is enough for two buffers between registers and TMA, not for one."""
    kernel = program("wgmma")
    single = dataclasses.replace(kernel, plan=dataclasses.replace(kernel.plan, store_stages=1))
    assert "being stored" in first_fault(single) or "is stored while" in first_fault(single)


@dataclasses.dataclass(frozen=True)
class LookAhead(g.Step):
    """A producer that fills ``fill`` slots up front and then always loads the K tile ``distance`` ahead."""

    body: tuple[g.Step, ...]
    fill: int
    distance: int


def _look_ahead(cluster: Cluster, step: LookAhead, warp: Warp) -> Running:
    order = [*range(min(step.fill, cluster.k_tiles)), *range(step.distance, cluster.k_tiles)]
    for warp.k_tile in order:
        yield from cluster.steps(step.body, warp)


@pytest.fixture
def look_ahead() -> Iterator[None]:
    RULES[LookAhead] = _look_ahead
    yield
    del RULES[LookAhead]


@pytest.mark.usefixtures("look_ahead")
@pytest.mark.parametrize(("fill", "distance", "sound"), [(3, 3, True), (2, 2, True), (2, 3, False), (3, 2, False)])
def test_a_gap_between_stages_and_look_ahead_is_found(fill: int, distance: int, sound: bool) -> None:
    """At 3 stages, a steady state that starts elsewhere than the filling ended."""
    kernel = program("wgmma")
    assert kernel.plan.ab_stages == 3

    def gap(step: g.Step) -> tuple[g.Step, ...]:
        return (LookAhead(step.body, fill, distance),) if isinstance(step, g.KLoop) else (step,)

    assert (first_fault(edit_role(kernel, "load", gap)) == "nothing") == sound


def test_as_many_k_tiles_in_flight_as_there_are_slots_is_found() -> None:
    def held(step: g.Step) -> tuple[g.Step, ...]:
        return (g.WgmmaWait(3),) if step == g.WgmmaWait(1) else (step,)

    released_late = edit_role(program("wgmma"), "store", held)
    assert first_fault(released_late) != "nothing"


def with_counts(kernel: g.KernelProgram, name: str, **changes: int) -> g.KernelProgram:
    return dataclasses.replace(
        kernel,
        pipelines=tuple(
            dataclasses.replace(pipeline, counts=dataclasses.replace(pipeline.counts, **changes))
            if pipeline.name == name
            else pipeline
            for pipeline in kernel.pipelines
        ),
    )


@pytest.mark.parametrize("name", SMALL_PROGRAMS)
@pytest.mark.parametrize("field", ["full_arrivals", "empty_arrivals", "transaction_bytes"])
@pytest.mark.parametrize("by", [-1, 1])
def test_a_wrong_count_is_found(name: str, field: str, by: int) -> None:
    kernel = program(name)
    for pipeline in kernel.pipelines:
        right = getattr(pipeline.counts, field)
        if right + by > 0 and right:
            wrong = with_counts(kernel, pipeline.name, **{field: right + by})
            assert is_found_at_once(wrong), (pipeline.name, field, right + by)


def eight_parts() -> g.KernelProgram:
    return kernel_program(plan_gemm(gemms.product(), dataclasses.replace(SMALL, splits=8, epilogue_n=8), gemms.HOPPER))


SPLIT_FAULTS = (
    g.Acquire("parts_fill"),
    g.SendPartials("parts_fill"),
    g.Advance("parts_fill"),
    g.Wait("parts_read"),
    g.AddPartials("parts_read"),
    g.Release("parts_read"),
    g.Advance("parts_read"),
    g.BarrierSync("epilogue"),
    g.StoreWait(0),
)


@pytest.mark.parametrize("step", SPLIT_FAULTS, ids=str)
def test_what_goes_wrong_with_many_parts_of_k_goes_wrong_with_few(step: g.Step) -> None:
    """In the cluster that is simulated and in the whole one; which symptom comes first is up to the schedule."""
    faulty = edit_role(eight_parts(), "store", drop(step))
    few = smaller(faulty)
    assert few.plan.ctas < faulty.plan.ctas
    assert few.plan.rounds == faulty.plan.rounds
    assert is_found_at_once(faulty)
    assert first_fault(faulty, schedules=36) != "nothing"


@pytest.mark.parametrize("field", ["full_arrivals", "empty_arrivals", "transaction_bytes"])
@pytest.mark.parametrize("by", [-1, 1])
def test_a_wrong_count_of_many_parts_is_found_with_few(field: str, by: int) -> None:
    kernel = eight_parts()
    right = getattr(kernel.pipeline("parts").counts, field)
    if right + by > 0:
        assert is_found_at_once(with_counts(kernel, "parts", **{field: right + by}))


@pytest.mark.parametrize(
    "name",
    [
        "sm_90/bf16_multicast_b",
        "sm_90/bf16_splits_16",
        "sm_90/bf16_residual_wide",
        "sm_90/rows_log_softmax_multicast_b",
        "sm_100/bf16_pair_multicast",
        "sm_100/rows_rms_norm",
    ],
)
def test_verifying_and_printing_a_plan_costs_little(name: str) -> None:
    plan = gemms.all_plans()[name]

    def first_print() -> None:
        _simulate.cache_clear()
        build(plan)

    assert calls(first_print) <= 230_000


# Structure ---------------------------------------------------------------------------------------------------------------


def _replace_plan(kernel: g.KernelProgram, **changes: object) -> g.KernelProgram:
    return dataclasses.replace(kernel, plan=dataclasses.replace(kernel.plan, **changes))  # type: ignore[arg-type]


def _limit(kernel: g.KernelProgram, first_warp: int, warps: int, registers: int) -> g.RegisterLimit:
    return register_limit(kernel.plan, kernel.warps, first_warp, warps, registers)


@pytest.mark.parametrize(
    ("name", "registers", "change"),
    [
        ("wgmma", 232, "decrease"),
        ("wgmma", 40, "decrease"),
        ("wgmma_two", 232, "increase"),
        ("wgmma_two", 168, "decrease"),
    ],
)
def test_the_direction_of_a_register_limit_follows_from_the_warps(name: str, registers: int, change: str) -> None:
    """Two warpgroups start with 248 registers a thread, three with 168."""
    kernel = program(name)
    limit = _limit(kernel, 4, 4, registers)
    assert limit.change == change
    text = render(dataclasses.replace(kernel, registers=(limit,)))
    assert f"setmaxregister_{change}({registers})" in text


STRUCTURAL: dict[str, tuple[str, Callable[[g.KernelProgram], g.KernelProgram], str]] = {
    "half the barriers": ("wgmma", lambda k: with_counts(k, "ab", stages=6), "6 slots and 6 barriers"),
    "too much shared memory": ("wgmma", lambda k: _replace_plan(k, ab_stages=30), "shared memory"),
    "too many columns": ("tcgen05", lambda k: _replace_plan(k, accumulator_stages=16), "tensor memory"),
    "a pitch TMA cannot step": (
        "wgmma",
        lambda k: _replace_plan(k, problem=dataclasses.replace(k.plan.problem, a_pitch=4001)),
        "8002 bytes",
    ),
    "barrier for too few threads": (
        "wgmma",
        lambda k: dataclasses.replace(k, barriers=(g.NamedBarrier(name="epilogue", number=1, threads=96),)),
        "for 96 threads; 128 arrive",
    ),
    "barrier number of the CTA": (
        "wgmma",
        lambda k: dataclasses.replace(k, barriers=(g.NamedBarrier(name="epilogue", number=0, threads=128),)),
        "distinct numbers from 1",
    ),
    "roles share a warp": (
        "wgmma",
        lambda k: dataclasses.replace(k, roles=(k.roles[0], dataclasses.replace(k.roles[1], first_warp=0))),
        "takes warps",
    ),
    "registers of half a warpgroup": (
        "wgmma",
        lambda k: dataclasses.replace(k, registers=(_limit(k, 0, 1, 40),)),
        "whole warpgroups",
    ),
    "registers that nobody has given back": (
        "wgmma",
        lambda k: dataclasses.replace(k, registers=(_limit(k, 0, 4, 232), _limit(k, 4, 4, 288))),
        "warps ask for 66560 registers; a CTA launches with 63488",
    ),
    "registers that the launch leaves over": (
        "wgmma_two",
        lambda k: dataclasses.replace(k, registers=(_limit(k, 0, 4, 40), _limit(k, 4, 8, 240))),
        "warps ask for 66560 registers; a CTA launches with 64512",
    ),
    "registers of warps without a limit": (
        "wgmma_two",
        lambda k: dataclasses.replace(k, registers=(_limit(k, 4, 8, 232),)),
        "warps ask for 80896 registers; a CTA launches with 64512",
    ),
    "an odd number of registers": (
        "wgmma_two",
        lambda k: dataclasses.replace(k, registers=(_limit(k, 0, 4, 36), _limit(k, 4, 8, 232))),
        "in steps of 8",
    ),
    "asking for fewer registers than there are": (
        "wgmma",
        lambda k: dataclasses.replace(k, registers=(dataclasses.replace(_limit(k, 4, 4, 232), change="increase"),)),
        "increase to 232 registers of warps that start with 248",
    ),
    "more bytes than a barrier counts": (
        "wgmma",
        lambda k: with_counts(k, "ab", transaction_bytes=2**20),
        "a barrier counts",
    ),
}


@pytest.mark.parametrize("fault", STRUCTURAL)
def test_a_structural_fault_is_found(fault: str) -> None:
    name, plant, message = STRUCTURAL[fault]
    check_structure(program(name))
    with pytest.raises(Fault, match=message):
        check_structure(plant(program(name)))
