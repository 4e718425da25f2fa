"""Plans whose operands warps copy: their protocol, its faults, and their binaries."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re

import pytest
from backends.cute import copies, cubins, gemms
from backends.cute.test_verify import drop, drop_kind, first_fault, is_found_at_once

from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.counts import (
    chunk_elements,
    chunks_of_thread,
    counts,
    elements_of_thread,
    granule_walk,
    is_raw,
    raw_operands,
    turns,
)
from helion.backends.cute.plan.dtypes import itemsize
from helion.backends.cute.plan.records import GemmPlan
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.roles import grammar as g
from helion.backends.cute.roles.edits import Rewrite, edit_role
from helion.backends.cute.roles.halves import ConvertHalf, MmaHalf, OfKTile
from helion.backends.cute.roles.programs import kernel_program
from helion.backends.cute.roles.sliced import AddSlices, ClearSlice, MultiplySlice, PassSlices, ReadColumns, StoreSlice
from helion.backends.cute.verify.cluster import Cluster
from helion.backends.cute.verify.state import Fault
from helion.backends.cute.verify.verify import verify

SAMPLED = (("n_major_tf32", "sm_90"),)
"""Those that are compiled by every run of the tests."""


@pytest.mark.parametrize(("name", "target"), copies.NAMES)
def test_every_plan_is_verified(name: str, target: str) -> None:
    plan = copies.plan(name, target)
    copied = {each.operand for each in plan.problem.copied}
    loads = 0 if len(copied) == 1 + plan.products else 1
    slow = any(not each.granule for each in plan.problem.copied) and not plan.converts
    fast = any(each.granule for each in plan.problem.copied)
    shares = target == "sm_90" and not slow and not plan.has_residual
    assert counts(plan).ab.full_arrivals == loads + (8 // turns(plan) if slow else 0) + (
        (128 if shares else 256) if fast else 0
    )
    assert counts(plan).ab.transaction_bytes == sum(
        size
        for label, size in (
            ("a", counts(plan).a_stage_bytes),
            *((label, counts(plan).b_stage_bytes // plan.products) for label in labels_of_b(plan)),
        )
        if label not in copied
    )
    verify(kernel_program(plan))


def labels_of_b(plan: GemmPlan) -> list[str]:
    return ["b", *(each.label for each in plan.problem.epilogue.of_kind("product"))]


def early(kind: type[g.Step]) -> Rewrite:
    """Move the arrival before a step of ``kind``."""
    return lambda step: (g.CopyCommit("ab_copy"), step) if isinstance(step, kind) else drop_kind(g.CopyCommit)(step)


def met_before(kind: type[g.Step]) -> Rewrite:
    """Remove the meeting of warps before a step of ``kind``."""

    def rewritten(step: g.Step) -> tuple[g.Step, ...]:
        if not isinstance(step, g.TileLoop):
            return (step,)
        at = next(at for at, each in enumerate(step.body) if isinstance(each, kind))
        assert isinstance(step.body[at - 1], g.BarrierSync)
        return (dataclasses.replace(step, body=(*step.body[: at - 1], *step.body[at:])),)

    return rewritten


FAULTS: tuple[tuple[str, Rewrite, str], ...] = (
    ("copy", drop(g.CopyAcquire("ab_copy")), "overwrites|stale|arrivals|has left|deadlock"),
    ("copy", drop(g.Advance("ab_copy")), "stale|deadlock|arrivals|overwrites|has left"),
    ("copy", drop(g.CopyCommit("ab_copy")), "deadlock"),
    ("copy", drop(g.FenceShared()), "before a fence"),
    ("copy", drop(g.WarpSync()), "arrives for the others"),
    ("copy", drop_kind(g.WriteElements), "stale"),
    ("copy", drop_kind(g.LoadElements), "is made of the elements"),
    ("copy", drop(g.LoadElements("b", ahead=1)), "is made of the elements"),
    ("copy", early(g.FenceShared), "before a fence"),
    ("copy", early(g.WarpSync), "arrives for the others"),
    ("store", drop_kind(g.Release), "deadlock"),
    ("multiply", drop_kind(g.Release), "deadlock"),
    ("load", drop(g.TmaLoad("a", "ab_fill")), "deadlock"),
    ("load", drop(g.Acquire("ab_fill")), "overwrites|stale|deadlock|arrivals"),
)


RAW: tuple[tuple[str, Rewrite, str], ...] = (
    ("load_raw", drop(g.Acquire("raw_fill")), "deadlock|arrivals|stale|bytes"),
    ("load_raw", drop_kind(g.LoadRaw), "deadlock"),
    ("load_raw", drop(g.Advance("raw_fill")), "stale|deadlock|arrivals|overwrites|has left"),
    ("copy", drop(g.Wait("raw_read")), "stale raw tile"),
    ("copy", drop_kind(g.ReadRaw), "is made of the raw tile"),
    ("copy", drop(g.Release("raw_read")), "deadlock|arrivals"),
    ("copy", drop(g.Advance("raw_read")), "stale|deadlock|arrivals"),
    ("copy", drop(g.FenceShared()), "before a fence|no fence between"),
    ("copy", drop(g.WarpSync()), "for the others"),
    ("copy", lambda step: step.body if isinstance(step, g.Gate) else (step,), "arrivals|overwrites|stale|deadlock|is made of"),
    ("copy", lambda step: (step, g.Release("raw_read")) if isinstance(step, g.ReadRaw) else drop(g.Release("raw_read"))(step), "no fence between"),
    ("copy", lambda step: (step, g.Release("raw_read")) if isinstance(step, g.FenceShared) else drop(g.Release("raw_read"))(step), "releases a raw tile for the others"),
)  # fmt: skip


IN_REGISTERS: tuple[tuple[str, Rewrite, str], ...] = (
    ("load_raw", drop(g.Acquire("raw_fill")), "deadlock|arrivals|stale|bytes"),
    ("load_raw", drop_kind(g.LoadRaw), "deadlock"),
    ("load_raw", drop(g.Advance("raw_fill")), "stale|deadlock|arrivals|overwrites|has left"),
    ("load", drop(g.TmaLoad("b", "ab_fill")), "deadlock"),
    ("store", drop(g.Wait("raw_read")), "stale raw tile"),
    ("store", drop(g.Wait("ab_read")), "stale operands"),
    ("store", drop_kind(g.ReadRaw), "is multiplied from the raw tile"),
    ("store", drop(ConvertHalf(0)), "half 0 of .* is multiplied from"),
    ("store", drop(ConvertHalf(1)), "half 1 of .* is multiplied from"),
    ("store", drop(MmaHalf("ab_read", 1)), "consists|is missing|accumulator"),
    ("store", drop(g.WgmmaWait(0)), "the matrix unit may still read|still adds to it|overwrites"),
    ("store", drop(g.WgmmaWait(1)), "the matrix unit may still read|being read|overwrites"),
    ("store", drop(g.Release("raw_read")), "deadlock|arrivals"),
    ("store", drop(g.Advance("raw_read")), "stale|deadlock|arrivals"),
    ("store", drop(g.Release("ab_read")), "deadlock|arrivals"),
    ("store", drop(g.Release("ab_free")), "deadlock|arrivals"),
    ("store", drop(g.Advance("ab_free")), "deadlock|arrivals|stale"),
    ("store", drop_kind(g.WgmmaCommit), "before the group of the other half|still"),
    ("store", lambda step: (step, g.Release("raw_read")) if isinstance(step, g.ReadRaw) else drop(g.Release("raw_read"))(step), "no fence between"),
    ("store", lambda step: (g.Release("raw_read"), step) if isinstance(step, g.WarpSync) else drop(g.Release("raw_read"))(step), "releases a raw tile for the others"),
    ("store", drop_kind(g.WgmmaFence), "without a fence"),
    ("store", drop_kind(g.LoadScales), "multiplied by the scales of"),
    ("store", lambda step: step.body if isinstance(step, OfKTile) and step.which == "previous" else (step,), "stale operands|is multiplied from|scales of"),
)  # fmt: skip


@pytest.mark.parametrize(
    "name", ["registers_int8", "registers_fp8", "registers_computed", "registers_int4", "registers_two_ctas"]
)
def test_a_missing_step_of_conversions_in_registers_is_found(name: str) -> None:
    check_faults(IN_REGISTERS, kernel_program(copies.plan(name, "sm_90")))


SLICES: tuple[tuple[str, Rewrite, str], ...] = (
    ("load", drop(g.Acquire("raw_fill")), "deadlock|arrivals|stale|bytes"),
    ("load", drop_kind(g.LoadRaw), "deadlock"),
    ("load", drop(g.Advance("raw_fill")), "stale|deadlock|arrivals|overwrites|has left"),
    ("load", drop(g.TmaLoad("b", "ab_fill")), "deadlock"),
    ("store", drop(g.Wait("raw_read")), "stale raw tile"),
    ("store", drop(g.Wait("ab_read")), "stale operands"),
    ("store", drop_kind(ReadColumns), "is multiplied by the columns of"),
    ("store", drop_kind(MultiplySlice), "the accumulator of|no fence between"),
    ("store", drop_kind(ClearSlice), "the accumulator of"),
    ("store", drop_kind(PassSlices), "stale|deadlock|arrivals"),
    ("store", drop(g.Release("raw_read")), "deadlock|arrivals"),
    ("store", drop(g.Release("ab_read")), "deadlock|arrivals"),
    ("store", drop(g.FenceShared()), "no fence between"),
    ("store", drop(g.WarpSync()), "releases a raw tile for the others"),
    ("store", drop_kind(g.LoadScales), "multiplied by the scales of"),
    ("store", drop_kind(StoreSlice), "which has stored those of"),
    ("store", drop_kind(AddSlices), "the accumulator of|are overwritten before"),
    ("store", met_before(AddSlices), "which has stored those of"),
)  # fmt: skip


@pytest.mark.parametrize("name", ["slices_int8", "slices_int4", "slices_uint4"])
def test_a_missing_step_of_slices_is_found(name: str) -> None:
    check_faults(SLICES, kernel_program(copies.plan(name, "sm_90")))


@pytest.mark.parametrize("name", ["raw_n_major", "raw_both", "raw_fp8"])
def test_a_missing_step_of_raw_tiles_is_found(name: str) -> None:
    check_faults(RAW, kernel_program(copies.plan(name, "sm_90")))


PAST_REGISTERS: tuple[tuple[str, Rewrite, str], ...] = (
    ("copy", drop(g.CopyAcquire("ab_copy")), "overwrites|stale|arrivals|has left|deadlock"),
    ("copy", drop(g.Advance("ab_copy")), "stale|deadlock|arrivals|overwrites|has left"),
    ("copy", drop_kind(g.ArriveAfterCopies), "deadlock"),
    ("copy", drop_kind(g.StartCopies), "stale"),
    ("store", drop_kind(g.OrderCopies), "before a fence orders the copies"),
    ("multiply", drop_kind(g.OrderCopies), "before a fence orders the copies"),
    ("store", drop_kind(g.Release), "deadlock"),
    ("copy", drop(g.TmaLoad("b", "ab_copy")), "deadlock"),
)


@pytest.mark.parametrize(
    ("name", "target"), [("even", "sm_90"), ("even_splits", "sm_90"), ("even_pingpong", "sm_90"), ("even", "sm_100")]
)
def test_a_missing_step_of_cp_async_is_found(name: str, target: str) -> None:
    check_faults(PAST_REGISTERS, kernel_program(copies.plan(name, target)))


BY_TURNS = [(name, target) for name, target in copies.NAMES if turns(copies.plan(name, target)) > 1]


@pytest.mark.parametrize(("name", "target"), BY_TURNS)
def test_a_stage_has_one_of_the_groups_that_take_turns(name: str, target: str) -> None:
    """A group sees the parity of a phase: one that is two rounds ahead would take a raw tile that is not there yet."""
    plan = copies.plan(name, target)
    raw = counts(plan).raw
    assert raw is not None and raw.stages % turns(plan) == plan.ab_stages % turns(plan) == 0
    problem, choice = copies.COPIES[name]
    with pytest.raises(Refusal, match="fill by turns; a multiple of 2"):
        plan_gemm(problem, dataclasses.replace(choice, ab_stages=3), gemms.HOPPER)


def test_groups_that_take_turns_run_ahead_of_each_other() -> None:
    program = kernel_program(copies.plan("raw_n_major", "sm_90"))
    for seed in range(3):
        Cluster(program, tiles=2, k_tiles=17, seed=seed).run()
    raw = program.pipeline("raw")
    odd = dataclasses.replace(raw, counts=dataclasses.replace(raw.counts, stages=raw.counts.stages - 1))
    pipelines = tuple(odd if each is raw else each for each in program.pipelines)
    with pytest.raises(Fault, match="stale|arrivals"):
        for seed in range(12):
            Cluster(dataclasses.replace(program, pipelines=pipelines), tiles=2, k_tiles=25, seed=seed).run()


@pytest.mark.parametrize("name", ["even_pingpong", "tf32_pingpong", "odd_pingpong"])
def test_consumer_groups_wait_for_operands_in_their_turn(name: str) -> None:
    """A wait sees the parity of a phase, which a group that is ahead of its turn would mistake for that of its tile."""
    for role in kernel_program(copies.plan(name, "sm_90")).roles[-2:]:
        (loop,) = (step for step in role.program if isinstance(step, g.TileLoop))
        turn = next(at for at, step in enumerate(loop.body) if step == g.BarrierSync(f"turn_{role.team}"))
        assert loop.body[turn + 1] == g.Wait("ab_read")


@pytest.mark.parametrize(("name", "target"), [("fp8_odd", "sm_90"), ("odd_splits", "sm_90"), ("int8", "sm_100")])
def test_a_missing_step_is_found(name: str, target: str) -> None:
    check_faults(FAULTS, kernel_program(copies.plan(name, target)))


def check_faults(faults: tuple[tuple[str, Rewrite, str], ...], program: g.KernelProgram) -> None:
    tried = 0
    for role, rewrite, message in faults:
        if not any(each.name == role for each in program.roles):
            continue
        kernel = edit_role(program, role, rewrite)
        if kernel == program:
            continue
        tried += 1
        assert is_found_at_once(kernel), (role, message)
        assert re.search(message, first_fault(kernel)), (first_fault(kernel), message)
    assert tried >= len(faults) - 4


def test_stores_of_threads_are_simulated() -> None:
    for name, target in (
        ("strided", "sm_90"),
        ("strided", "sm_100"),
        ("strided_pingpong", "sm_90"),
        ("strided_softmax", "sm_90"),
    ):
        program = kernel_program(copies.plan(name, target))
        role = next(each.name for each in program.roles if each.name.startswith("store"))
        missing = edit_role(program, role, drop(g.StoreStrided()))
        assert "is not stored once" in first_fault(missing) and is_found_at_once(missing)
        early = edit_role(
            program, role, lambda step: (g.StoreStrided(), step) if isinstance(step, g.Evaluate) else (step,)
        )
        assert "is stored with the values of" in first_fault(early) and is_found_at_once(early)


@functools.cache
def measured(name: str, target: str) -> dict[str, object]:
    return cubins.measure(copies.plan(name, target))


def check(name: str, target: str) -> None:
    """No spills, every load of a source in the loop and before it, and what the matrix unit is issued."""
    plan, row = copies.plan(name, target), measured(name, target)
    opcodes = row["opcodes"]
    assert isinstance(opcodes, dict)
    assert row["stack_bytes"] == 0
    assert not {"LDL", "STL"} & {*opcodes}
    assert row["misplaced_barriers"] == []
    for copied in (each for each in plan.problem.copied if each.granule):
        walk = granule_walk(plan, copied)
        assert opcodes["LDGSTS"] >= walk.walks * walk.lines // walk.step
    slow = [each for each in plan.problem.copied if not each.granule]
    loaded = sum(
        elements_of_thread(plan, each, source) for each in slow for source in each.sources[is_raw(plan, each) :]
    )
    for copied in raw_operands(plan):
        chunk = chunk_elements(plan) * itemsize(copied.sources[0].dtype)
        reads = chunks_of_thread(plan, copied) * -(-chunk // 16)
        assert sum(number for name, number in opcodes.items() if name.startswith("LDS")) >= reads
    if loaded:
        partials = plan.tile[1] if plan.grid_splits > 1 else 0
        assert loaded // 16 <= opcodes["LDG"] <= 2 * loaded + partials + 8
    matrices = len(plan.problem.outputs_of("strided")) * plan.subtiles
    assert opcodes.get("STG", 0) >= matrices
    if len(plan.problem.copied) == 1 + plan.products and not plan.has_residual and not raw_operands(plan):
        assert "UTMALDG" not in opcodes
    if plan.sliced:  # 16 rows by 8 columns by 16 elements each
        assert opcodes["HMMA"] >= 64 // 16 * plan.tile[1] // 8 * plan.mma_steps
        return
    assert sum(opcodes.get(name, 0) for name in ("HGMMA", "QGMMA", "UTCHMMA", "UTCQMMA")) >= plan.mma_steps


@pytest.mark.parametrize(("name", "target"), SAMPLED)
def test_binaries(name: str, target: str) -> None:
    check(name, target)


@pytest.mark.prove
@pytest.mark.parametrize(("name", "target"), [each for each in copies.NAMES if each not in SAMPLED])
def test_all_binaries(name: str, target: str) -> None:
    check(name, target)


def test_addresses_are_swizzled() -> None:
    """Recasting a pointer drops its swizzle, so that every write names it."""
    from helion.backends.cute.codegen.module import build

    copied = [
        (name, target) for name, target in copies.NAMES if any(not x.granule for x in copies.COPIES[name][0].copied)
    ]
    for name, target in itertools.islice(copied, 0, None, 5):
        plan = copies.plan(name, target)
        if plan.converts:
            continue
        text = build(plan)
        casts = [line for line in text.splitlines() if "to_chunk = cute.recast_ptr" in line]
        assert casts and all(".inner, dtype=" in line for line in casts)
