"""The simulation of attention's roles: right programs pass under random schedules, planted faults are found."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from backends.cute.edited_roles import edited, without
from backends.cute.printed_blocks import function, visited

from helion.backends.cute.codegen.attention import bounds, softmax
from helion.backends.cute.codegen.attention import splits as printed_splits
from helion.backends.cute.plan.attention import operands as o
from helion.backends.cute.plan.attention import records as r
from helion.backends.cute.plan.attention.build import plan_attention
from helion.backends.cute.plan.attention.numbers import LaunchInt
from helion.backends.cute.plan.epilogue import Constant, Instruction
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.roles import grammar as g
from helion.backends.cute.roles.attention import grammar as a
from helion.backends.cute.roles.attention.grammar import AttentionProgram
from helion.backends.cute.roles.attention.programs import LONG_FORMULA, attention_program
from helion.backends.cute.verify.attention.machine import Machine
from helion.backends.cute.verify.attention.rules import execute
from helion.backends.cute.verify.attention.verify import verify_attention
from helion.backends.cute.verify.state import Fault
from helion.hardware import target

HOPPER = target("sm_90")
AXIS = o.Place("axis", (0,))
CAUSAL, WINDOW = r.Band(last=0), r.Band(first=-100, last=0)


def problem(dims: int = 64, queries: int = 1000, keys: int = 1000, band: r.Band | None = None) -> r.AttentionProblem:
    def matrix(name: str, rows: int) -> o.Matrix:
        modes = (o.Mode(size=4, stride=rows * dims, at=AXIS),)
        return o.Matrix(name=name, dtype="bfloat16", columns=dims, pitch=dims, modes=modes)

    out = r.AttentionOutput(name="out", value=3, kind="exact", dtype="bfloat16", matrix=matrix("out", queries))
    return r.AttentionProblem(
        heads=(4,),
        queries=queries,
        keys=keys,
        q=matrix("q", queries),
        k=matrix("k", keys),
        v=matrix("v", keys),
        scale=0.125,
        unit=1.4426950408889634,
        query=r.Formula(),
        score=r.Formula(),
        guarded=False,
        start=float("-inf"),
        band=band or r.Band(),
        finish=r.Formula(starts=r.STARTS, instructions=(Instruction("div", (0, 1)),), value=3),
        outputs=(out,),
    )


def plan(band: r.Band | None = None, dims: int = 64, **changes: Any) -> r.AttentionPlan:
    choice = dataclasses.replace(r.AttentionChoice(groups=2, keys=64, pingpong=True, scheduler="dynamic"), **changes)
    return plan_attention(problem(dims, band=band), choice, HOPPER)


@pytest.mark.parametrize("band", [None, CAUSAL, WINDOW], ids=["full", "causal", "window"])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_programs_are_right(groups: int, band: r.Band | None) -> None:
    for pingpong, stages, scheduler, own in itertools.product(
        (False, True), (2, 3), ("static", "dynamic"), (False, True)
    ):
        made = plan(band, groups=groups, pingpong=pingpong, stages=stages, scheduler=scheduler)
        verify_attention(attention_program(dataclasses.replace(made, own_output=own, row_buffers=1 + own)))


@pytest.mark.prove
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_programs_are_right_under_many_schedules(groups: int) -> None:
    for band, pingpong, stages, scheduler in itertools.product(
        (None, CAUSAL, WINDOW), (False, True), (2, 3, 4), ("static", "dynamic")
    ):
        made = plan(band, groups=groups, pingpong=pingpong, stages=stages, scheduler=scheduler)
        for own, seed in itertools.product((False, True), range(20)):
            program = attention_program(dataclasses.replace(made, own_output=own, row_buffers=1 + own))
            Machine(program, tiles=seed % 6, seed=seed).run(execute)


SPLIT_FAULTS = {
    "partials are not stored": ("attend", without(g.StorePartials()), "before all warps"),
    "partials are not released": ("attend", without(g.WorkspaceRelease()), "before all warps"),
    "partials are not counted": ("attend", without(g.IncrementTileCounter()), "is read as that"),
    "partials are not combined": ("attend", without(a.CombinePartials()), "from its own keys alone"),
    "the counter is not reset": ("attend", without(g.ResetTileCounter()), "left at"),
    "no barrier with split keys": ("attend", without(a.GroupSync()), "before all warps|is read as that"),
}


@pytest.mark.parametrize("name", SPLIT_FAULTS)
def test_planted_faults_of_split_keys_are_found(name: str) -> None:
    role, edit, message = SPLIT_FAULTS[name]
    made = plan(splits=3, scheduler="static")
    verify_attention(attention_program(made))
    with pytest.raises(Fault, match=message):
        verify_attention(edited(attention_program(made), role, edit))


COMBINED_FAULTS = {
    "partials are not stored": ("attend", without(g.StorePartials()), "before all warps"),
    "the part is not counted": ("attend", without(g.IncrementTileCounter()), "awaits all parts before its own"),
    "the other parts are not awaited": ("attend", without(a.AwaitPartials()), "before all of them are there"),
    "partials are not combined": ("attend", without(a.CombinePartials()), "from its own keys alone"),
    "columns are not stored": ("attend", without(a.StoreColumns()), "is not stored once"),
    "columns are not computed": ("attend", without(a.Finish()), "before it is computed"),
}


@pytest.mark.parametrize("name", COMBINED_FAULTS)
def test_planted_faults_of_columns_combined_at_once_are_found(name: str) -> None:
    role, edit, message = COMBINED_FAULTS[name]
    made = dataclasses.replace(plan(groups=1, pingpong=False, splits=3, scheduler="static"), combining=2)
    verify_attention(attention_program(made))
    with pytest.raises(Fault, match=message):
        verify_attention(edited(attention_program(made), role, edit))


def test_columns_are_combined_at_once_where_the_gpu_holds_all_parts() -> None:
    def combining(dims: int = 64, splits: int = 2, heads: int = 4, groups: int = 1, queries: int = 64) -> int:
        given = dataclasses.replace(problem(dims, queries=queries), heads=(heads,))
        return plan_attention(given, r.AttentionChoice(groups=groups, keys=64, splits=splits), HOPPER).combining

    assert [combining(dims, splits) for dims, splits in ((64, 3), (64, 2), (96, 4), (128, 12))] == [1, 2, 2, 4]
    assert [combining(heads=66), combining(heads=67), combining(groups=2), combining(queries=16)] == [2, 1, 1, 1]


BIAS = o.Source(name="bias", kind="exact", dtype="bfloat16", pitches=(1000, 1))


def biased_plan(**changes: Any) -> r.AttentionPlan:
    score = r.Formula(sources=(BIAS,), instructions=(Instruction("add", (0, 1)),), value=2)
    choice = r.AttentionChoice(groups=2, keys=64, scheduler="dynamic", bias_stages=2)
    return plan_attention(dataclasses.replace(problem(), score=score), dataclasses.replace(choice, **changes), HOPPER)


def test_tiles_of_a_bias_are_right() -> None:
    for groups, stages, pingpong in itertools.product((1, 2, 3), (1, 2), (False, True)):
        verify_attention(attention_program(biased_plan(groups=groups, bias_stages=stages, pingpong=pingpong)))


BIAS_FAULTS = {
    "no wait for the bias": ("attend", without(g.Wait("bias_read")), "the bias holds"),
    "the bias is not read": ("attend", without(a.ReadBias("bias_read")), "adds the bias of"),
    "the bias is not released": ("attend", without(g.Release("bias_read")), "deadlock"),
    "the bias is loaded early": ("load", without(g.Acquire("bias_fill")), "the bias holds|negative|deadlock"),
    "the bias is not loaded": ("load", without(a.LoadBias("bias_fill")), "deadlock"),
}


@pytest.mark.parametrize("name", BIAS_FAULTS)
def test_planted_faults_of_a_bias_are_found(name: str) -> None:
    role, edit, message = BIAS_FAULTS[name]
    with pytest.raises(Fault, match=message):
        verify_attention(edited(attention_program(biased_plan()), role, edit))


FAULTS = {
    "no wait for keys": ("attend", without(g.Wait("k_read")), "stale"),
    "no wait for values": ("attend", without(g.Wait("v_read")), "stale"),
    "no wait for queries": ("attend", without(g.Wait("q_read")), "stale"),
    "keys are not released": ("attend", without(g.Release("k_read")), "deadlock"),
    "values are not released": ("attend", without(g.Release("v_free")), "deadlock"),
    "queries are not released": ("attend", without(g.Release("q_read")), "deadlock"),
    "no wait for scores": ("attend", without(g.WgmmaWait(1)), "released while|reads registers"),
    "no wait for outputs": ("attend", without(g.WgmmaWait(0)), "released while|reads registers|while MMAs"),
    "no fence": ("attend", without(g.WgmmaFence()), "without a fence"),
    "no rescaling": ("attend", without(a.Rescale()), "has not been rescaled"),
    "weights are not rounded": ("attend", without(a.RoundWeights()), "overwrite|stale"),
    "the accumulator is not cleared": ("attend", without(a.ClearOutput()), "has blocks"),
    "no turn is taken": ("attend", without(a.TakeTurn()), "left over|more than|deadlock"),
    "no turn is passed": ("attend", without(a.PassTurn()), "deadlock"),
    "no first turn": ("attend", without(a.PassTurn(first=True)), "deadlock"),
    "the last turn stays": ("attend", without(a.TakeTurn(last=True)), "left over"),
    "no group barrier": ("attend", without(a.GroupSync()), "is stored while|overwrites|stale"),
    "no proxy fence": ("attend", without(g.FenceShared()), "without a fence"),
    "no wait for stores": ("attend", without(g.StoreWait(0)), "being stored|leaves while"),
    "keys are loaded early": ("load", without(g.Acquire("k_fill")), "filled while|stale|negative|deadlock"),
    "values are loaded early": ("load", without(g.Acquire("v_fill")), "filled while|stale|negative|deadlock"),
    "values of another block": (
        "load",
        lambda each: (dataclasses.replace(each, behind=False),) if isinstance(each, a.LoadBlock) else (each,),
        "stale",
    ),
    "no ticket": ("load", without(a.TakeTicket()), "not drawn"),
    "tiles are not handed out": ("load", without(a.HandOut()), "deadlock|stale|is not stored once"),
    "unmasked diagonal": (
        "attend",
        lambda each: (a.Softmax(masked=False),) if each == a.Softmax(masked=True) else (each,),
        "is not masked",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
def test_planted_faults_are_found(name: str, own: bool) -> None:
    role, edit, message = FAULTS[name]
    program = attention_program(dataclasses.replace(plan(CAUSAL), own_output=own, row_buffers=1 + own))
    changed = edited(program, role, edit)
    assert changed != program, "the fault changes nothing"
    with pytest.raises((Fault, AssertionError), match=message if own or "stores" not in name else None):
        verify_attention(changed)


@pytest.mark.parametrize(
    ("band", "groups", "keys", "parts"),
    [
        (CAUSAL, 2, 128, ("free",)),
        (CAUSAL, 1, 192, ("free",)),
        (r.Band(last=-128), 2, 128, ("free",)),
        (r.Band(first=-100, last=0), 2, 128, ("free", "edge")),
        (CAUSAL, 2, 64, ("diagonal", "free")),
        (CAUSAL, 2, 176, ("diagonal", "free")),
        (r.Band(last=64), 2, 128, ("diagonal", "free")),
        (r.Band(last=0, period=128), 2, 128, ("diagonal", "free")),
        (r.Band(last=0, shift=AXIS), 2, 128, ("diagonal", "free")),
        (r.Band(last=0, prefix=AXIS), 2, 128, ("diagonal", "free")),
        (r.Band(last=LaunchInt(0, "bound_last", "size")), 2, 128, ("diagonal", "free")),
        (r.Band(), 2, 128, ("free",)),
    ],
    ids=str,
)
def test_the_first_block_has_all_ends_where_tiles_and_blocks_fit(
    band: r.Band, groups: int, keys: int, parts: tuple[str, ...]
) -> None:
    assert plan(band, groups=groups, keys=keys, pingpong=groups > 1).parts == parts


def bent(band: r.Band, operations: int, **changes: Any) -> AttentionProgram:
    """Return the program of scores with a formula of so many operations."""
    formula = r.Formula(instructions=tuple(Instruction("exp", (at,)) for at in range(operations)), value=operations)
    choice = dataclasses.replace(r.AttentionChoice(groups=2, keys=64, pingpong=True), **changes)
    return attention_program(plan_attention(dataclasses.replace(problem(band=band), score=formula), choice, HOPPER))


@pytest.mark.parametrize("groups", [2, 3])
def test_one_loop_computes_all_blocks_of_windows_with_long_formulas(groups: int) -> None:
    for pingpong, scheduler in itertools.product((False, True), ("static", "dynamic")):
        made = bent(WINDOW, LONG_FORMULA, groups=groups, pingpong=pingpong, scheduler=scheduler)
        verify_attention(made)
    (loop,) = (each for each in flat(made.role("attend").program) if isinstance(each, a.BlockLoop))
    assert loop.part == "any" and a.Softmax(masked=True, any=True) in loop.body
    for fault in (a.Softmax(masked=False, any=True), a.Softmax(masked=True, first=True, any=True)):
        changed = edited(made, "attend", lambda each, fault=fault: (fault,) if getattr(each, "any", False) else (each,))
        with pytest.raises(Fault, match="is not masked|first maxima"):
            verify_attention(changed)


@pytest.mark.parametrize(("band", "operations", "groups"), [(WINDOW, 1, 2), (CAUSAL, LONG_FORMULA, 2), (WINDOW, 9, 1)])
def test_other_blocks_have_loops_by_kind(band: r.Band, operations: int, groups: int) -> None:
    steps = flat(bent(band, operations, groups=groups, pingpong=groups > 1).role("attend").program)
    assert not any(each.part == "any" for each in steps if isinstance(each, a.BlockLoop))


def test_maxima_as_outputs_are_those_of_the_rows() -> None:
    """Lazy rescaling leaves sums relative to smaller numbers than the maxima, which outputs must not show."""
    with_maxima = dataclasses.replace(
        problem(),
        finish=r.Formula(starts=r.STARTS, instructions=(Instruction("div", (0, 1)), Instruction("exp", (2,)))),
    )
    lazy = r.AttentionChoice(groups=2, keys=64, lazy=True)
    for given, restores in ((problem(), False), (with_maxima, True)):
        made = plan_attention(given, lazy, HOPPER)
        program = attention_program(made)
        steps = [step for role in program.roles if role.name == "attend" for step in flat(role.program)]
        assert made.restores_maxima == restores == (a.RestoreMaxima() in steps)
        verify_attention(program)
        text = "\n".join(line for lines in softmax.softmax_functions(made) for line in lines)
        assert ("peaks[row] = " in text) == restores
    assert not plan_attention(with_maxima, dataclasses.replace(lazy, lazy=False), HOPPER).restores_maxima


def flat(steps: Sequence[g.Step]) -> list[g.Step]:
    """Return all steps, nested ones included."""
    return [each for step in steps for each in (step, *flat(getattr(step, "body", ())))]


# Blocks of a tile ------------------------------------------------------------------------------------------------------


BANDS = (r.Band(), CAUSAL, WINDOW, r.Band(last=37), r.Band(last=-20), r.Band(first=-5), r.Band(first=-300, last=40))
BANDS += (r.Band(last=90, period=7), r.Band(first=30, last=80, period=40))


@pytest.mark.parametrize("band", BANDS, ids=str)
def test_blocks_and_masks_are_the_band(band: r.Band) -> None:
    for queries, keys, block, groups in itertools.product((1, 129, 300), (1, 100, 300, 577), (64, 176), (1, 3)):
        choice = r.AttentionChoice(groups=groups, keys=block)
        try:
            made = plan_attention(problem(queries=queries, keys=keys, band=band), choice, HOPPER)
        except Refusal:
            continue
        for tile_m in range(-(-queries // made.rows)):
            blocks = dict(visited(made, tile_m))
            for query in range(tile_m * made.rows, min(queries, (tile_m + 1) * made.rows)):
                of_head = query % (band.period or queries)
                low = -(10**9) if band.first is None else of_head + band.first
                high = 10**9 if band.last is None else of_head + band.last
                for at in range(-(-keys // block)):
                    here = range(at * block, (at + 1) * block)
                    seen = [key for key in (here[0], here[-1]) if low <= key <= high and key < keys]
                    inside = max(low, here[0]) <= min(high, here[-1], keys - 1)
                    assert at in blocks or not inside, (queries, keys, tile_m, query, at)
                    assert at not in blocks or blocks[at] or len(seen) == 2, (queries, keys, tile_m, query, at)


@pytest.mark.parametrize("band", [None, CAUSAL], ids=["full", "causal"])
def test_every_tile_is_visited_once(band: r.Band | None) -> None:
    made = plan(band)
    tiles = -(-made.problem.queries // made.rows)
    for heads in (1, 3, 4):
        given = dataclasses.replace(made, heads_per_band=heads)
        place = function(bounds.place_function(given), "place")
        order = [place(at) for at in range(made.tiles)]
        assert sorted(order) == sorted(itertools.product(range(tiles), range(4)))
        if band is not None and heads == 3:
            longest = [tile for tile, _ in order]
            assert longest == sorted(longest, reverse=True), "a band has the head that is left over"


# Elements of a block ---------------------------------------------------------------------------------------------------


def elements(made: r.AttentionPlan, lane: int, query: int, block: int, end: int, first: bool) -> list[float]:
    """Return one thread's scores of a block, as the printed code leaves them before the softmax of zeros."""
    names: dict[str, Any] = {
        "cutlass": SimpleNamespace(Float32=float, Int32=int, min=min, max=max, select_=lambda c, x, y: x if c else y),
        "scores": [0.0] * (made.keys // 2),
        "first_query": query,
        "lane": lane,
        "end": end,
        "block": block,
        "softmax": lambda *given, **more: None,
        "highest": None,
        "total": None,
        "factors": None,
    }
    for text in softmax.softmax_functions(made):
        if text[0].startswith(("def mask", "def apply")):
            exec("\n".join(text), names)
    exec("\n".join(softmax.softmax_call(made, True, first, ("head_0",))), {**names, "head_0": 0})
    return names["scores"]


@pytest.mark.parametrize("first", [False, True], ids=["later", "first"])
@pytest.mark.parametrize("band", BANDS, ids=str)
def test_masked_elements_are_those_out_of_the_band(band: r.Band, first: bool) -> None:
    """Element e of a thread is in row e // 2 % 2 of two, 8 rows distant, and in column e // 4 * 8 + e % 2 + 2 * lane."""
    made = plan_attention(problem(band=band, keys=300), r.AttentionChoice(groups=1, keys=64), HOPPER)
    for lane, query, block in itertools.product((0, 1, 3, 30), (0, 5, 170), range(5)):
        found = elements(made, lane, query, block, block + 1, first)
        for e, value in enumerate(found):
            key, row = block * 64 + e // 4 * 8 + e % 2 + lane % 4 * 2, query + e // 2 % 2 * 8
            of_head = row % (band.period or 10**9)
            low = -(10**9) if band.first is None else of_head + band.first
            high = 10**9 if band.last is None else of_head + band.last
            assert (value == 0.0) == (low <= key <= high and key < 300), (lane, query, block, e)


@pytest.mark.parametrize(
    ("splits", "queries", "dims", "combining"),
    [(3, 5, 64, 1), (16, 64, 128, 1), (2, 70, 16, 1), (4, 16, 128, 1), (4, 70, 96, 2), (16, 16, 64, 4)],
)
def test_combined_partials_are_those_of_all_keys(splits: int, queries: int, dims: int, combining: int) -> None:
    """Execute the printed stores and combination for a few threads: rows that no part has seen have a sum of 0. Of rows of one
    warp, each warp combines a quarter of the columns, and of those combined at once each CTA a part."""
    rng = np.random.default_rng(splits)
    made = plan_attention(problem(dims, queries=queries), r.AttentionChoice(groups=1, keys=64, splits=splits), HOPPER)
    made = dataclasses.replace(made, combining=combining)
    numbers = np.full((4, 128, made.partial_values // 4, made.pieces), np.nan)

    class Partials:
        def __getitem__(self, place: tuple[None, int, int, int]) -> np.ndarray:
            return numbers[:, place[1], place[2], place[3]]

    shown = SimpleNamespace(range=lambda n, unroll=1: range(n), range_constexpr=range, Float32=float)
    shown.select_ = lambda condition, one, other: one if condition else other
    names: dict[str, Any] = {
        "cute": SimpleNamespace(
            make_rmem_tensor=lambda size, dtype: np.zeros(size),
            autovec_copy=lambda source, to: to.__setitem__(slice(None), source),
            arch=SimpleNamespace(fmax=max),
        ),
        "cutlass": shown,
        "partials": Partials(),
        "exp2": lambda x: 2.0**x,
        "group": 0,
    }
    for thread, tile in ((0, 0), (5, 0), (127, 0), (21, -(-queries // 64) - 1)):
        first_query = tile * 64 + thread // 32 * 16 + thread % 32 // 4
        highest, total = rng.normal(size=(splits, 2)), rng.uniform(1, 2, size=(splits, 2))
        output = rng.normal(size=(splits, dims // 2))
        highest[0, 0], total[0, 0], output[0, [e for e in range(dims // 2) if e // 2 % 2 == 0]] = (
            float("-inf"),
            0.0,
            0.0,
        )
        own = {"group_thread": thread, "first_query": first_query}
        for split in range(splits):
            registers = {"highest": highest[split], "total": total[split], "output": output[split]}
            exec(
                "\n".join(printed_splits.put(made)),
                {**names, **own, **registers, "work": tile * splits + split, "split": split},
            )
        if made.spread_columns and thread >= 32:
            continue
        combined = printed_splits.combined_columns(made)
        for part in range(dims // combined):  # of each warp, or CTA
            warp = part if made.spread_columns else thread // 32
            found: dict[str, Any] = {
                "highest": np.zeros(2),
                "total": np.zeros(2),
                "output": np.ones(dims // 2),
                "quad": np.zeros(4),
            }
            own |= {"lane": thread % 32, "group_warp": warp, "first_query": first_query - thread // 32 * 16 + warp * 16}
            given = {**names, **own, **found, "work": tile * splits, "split": part}
            exec("\n".join(printed_splits.combine(made)), given)
            for row in range(2):
                if first_query + 8 * row >= queries:
                    continue
                most = highest[:, row].max()
                factors = 2.0 ** ((highest[:, row] - most) * made.problem.unit * made.problem.scale)
                assert found["highest"][row] == most
                assert np.isclose(found["total"][row], factors @ total[:, row])
                elements = np.array([e for e in range(combined // 2) if e // 2 % 2 == row])
                wanted = factors @ output[:, combined // 2 * part + elements]
                assert np.allclose(found["output"][elements], wanted)


def test_scores_are_rounded_in_pairs() -> None:
    """Execute the printed formula: each rounding to float16 takes two scores of a row, and leaves each at its place."""
    steps = (
        Instruction("round_float16", (0,)),
        Instruction("mul", (1, Constant("0.18"))),
        Instruction("round_float16", (2,)),
    )
    given = dataclasses.replace(problem(), score=r.Formula(instructions=steps, value=3))
    made = plan_attention(given, r.AttentionChoice(groups=1, keys=64), HOPPER)

    def rounded(text: str, write_only_types: Sequence[Any], read_only_args: Sequence[float]) -> list[float]:
        assert len(write_only_types) == len(read_only_args) == 2 and "f16x2" in text
        return [float(np.float16(each)) for each in read_only_args]

    names: dict[str, Any] = {
        "cutlass": SimpleNamespace(Float32=float),
        "cute": SimpleNamespace(arch=SimpleNamespace(inline_ptx=rounded)),
    }
    for text in softmax.softmax_functions(made):
        if text[0].startswith(("def round_pair", "def apply")):
            exec("\n".join(text), names)
    scores = [*np.random.default_rng(0).normal(size=32)]
    found = [*scores]
    names["apply_formula"](found, 0, 0, 0)
    assert found == [float(np.float16(float(np.float16(each)) * 0.18)) for each in scores]
