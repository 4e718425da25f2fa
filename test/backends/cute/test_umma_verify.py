"""The simulation of attention's roles on tcgen05: right programs pass under random schedules, planted faults are found."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from backends.cute.edited_roles import edited, without
from backends.cute.test_attention_verify import CAUSAL, WINDOW, flat, problem

from helion.backends.cute.plan.attention import records as r
from helion.backends.cute.plan.attention.umma import UmmaChoice, UmmaPlan, plan_umma_attention
from helion.backends.cute.plan.epilogue import Constant, Instruction
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.roles import grammar as g
from helion.backends.cute.roles.attention import grammar as a
from helion.backends.cute.roles.attention import umma as u
from helion.backends.cute.verify.attention.rules import execute
from helion.backends.cute.verify.attention.umma import UmmaMachine
from helion.backends.cute.verify.attention.verify import verify_attention
from helion.backends.cute.verify.state import Fault
from helion.hardware import target

BLACKWELL = target("sm_100")


SCALED = r.Formula(instructions=(Instruction("mul", (0, Constant("0.125"))),), value=1)
"""A formula of queries."""
SUMMED = r.Formula(starts=r.STARTS, instructions=(Instruction("mul", (0, 1)),), value=3)


def plan(
    band: r.Band | None = None,
    dims: int = 64,
    own: bool | None = None,
    of: dict[str, Any] | None = None,
    **changes: Any,
) -> UmmaPlan:
    choice = dataclasses.replace(UmmaChoice(groups=2, keys=64, lazy=True), **changes)
    made = plan_umma_attention(dataclasses.replace(problem(dims, band=band), **(of or {})), choice, BLACKWELL)
    return made if own is None else dataclasses.replace(made, own_output=own)


@pytest.mark.parametrize("band", [None, CAUSAL, WINDOW], ids=["full", "causal", "window"])
@pytest.mark.parametrize("groups", [1, 2])
def test_programs_are_right(groups: int, band: r.Band | None) -> None:
    for stages, own in itertools.product((2, 3), (False, True)):
        verify_attention(u.umma_program(plan(band, groups=groups, stages=stages, own=own)))


@pytest.mark.parametrize("total", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_programs_without_a_softmax_are_right(groups: int, total: bool) -> None:
    of: dict[str, Any] = {"softmax": False, "finish": SUMMED if total else r.Formula(starts=r.STARTS)}
    if not total:
        of["outputs"] = (dataclasses.replace(problem().outputs[0], value=0),)
    for own in (False, True):
        made = plan(CAUSAL, own=own, groups=groups, lazy=False, of=of)
        program = u.umma_program(made)
        assert made.problem.needs_total == total
        assert a.Rescale() not in flat(program.role("correct").program)
        verify_attention(program)
        early = edited(program, "multiply", without(g.Acquire("output_fill")))
        if own:  # else the queries of the next tile wait for the output of this one
            with pytest.raises(Fault, match="was not stored"):
                verify_attention(early)
        with pytest.raises(Fault, match="is multiplied while"):
            verify_attention(edited(program, "multiply", without(g.Wait("weights_read"))))


QUERY_FAULTS = {
    "queries are not computed": ("correct", without(a.TransformQueries()), "before all warps have computed"),
    "queries are not fenced": (
        "correct",
        lambda each: (
            (dataclasses.replace(each, body=tuple(x for x in each.body if x != g.FenceShared())),)
            if isinstance(each, a.GroupLoop) and a.TransformQueries() in each.body
            else (each,)
        ),
        "before all warps have computed",
    ),
    "computed queries are not awaited": ("multiply", without(g.Wait("queries_read")), "before all warps|stale"),
    "queries are computed early": ("correct", without(g.Wait("q_read")), "are computed as those"),
    "queries are not committed": ("correct", without(g.Commit("queries_fill")), "deadlock"),
}


@pytest.mark.parametrize("name", QUERY_FAULTS)
@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
def test_planted_faults_of_computed_queries_are_found(name: str, own: bool) -> None:
    role, edit, message = QUERY_FAULTS[name]
    program = u.umma_program(plan(CAUSAL, own=own, stages=2, of={"query": SCALED}))
    verify_attention(program)
    changed = edited(program, role, edit)
    assert changed != program, "the fault changes nothing"
    with pytest.raises(Fault, match=message):
        verify_attention(changed)


@pytest.mark.prove
@pytest.mark.parametrize("band", [None, CAUSAL, WINDOW], ids=["full", "causal", "window"])
@pytest.mark.parametrize("groups", [1, 2])
def test_programs_are_right_under_many_schedules(groups: int, band: r.Band | None) -> None:
    for stages, own, seed in itertools.product((2, 3, 6), (False, True), range(50)):
        program = u.umma_program(plan(band, groups=groups, stages=stages, own=own))
        UmmaMachine(program, tiles=seed % 6, seed=seed).run(execute)


BEFORE, AFTER = u.TensorFence(after=False), u.TensorFence(after=True)
FAULTS = {
    "no wait for keys": ("multiply", without(g.Wait("k_read")), "stale"),
    "no wait for values": ("multiply", without(g.Wait("v_read")), "stale"),
    "no wait for queries": ("multiply", without(g.Wait("q_read")), "stale"),
    "no wait for weights": ("multiply", without(g.Wait("weights_read")), "is multiplied while"),
    "no wait for corrections": ("multiply", without(g.Acquire("output_fill")), "was not stored|with the factors"),
    "keys are not released": ("multiply", without(g.Release("k_read")), "deadlock"),
    "values are not released": ("multiply", without(g.Release("v_read")), "deadlock"),
    "values are released for each group": (
        "multiply",
        lambda each: each.body if isinstance(each, u.LastGroup) else (each,),
        "more than|stale|filled|released while|left over",
    ),
    "scores are not committed": ("multiply", without(u.CommitMma("scores_fill")), "deadlock"),
    "outputs are not committed": ("multiply", without(u.CommitMma("output_fill")), "deadlock"),
    "MMAs without a fence": ("multiply", without(AFTER), "without a fence after"),
    "no wait for scores": ("softmax", without(g.Wait("scores_read")), "are read while"),
    "scores without a fence": ("softmax", without(AFTER), "without a fence after"),
    "weights without a fence": ("softmax", without(BEFORE), "an arrival without a fence"),
    "weights are not committed": ("softmax", without(g.Commit("weights_fill")), "deadlock"),
    "weights are not stored": ("softmax", without(u.WriteWeights()), "is multiplied while|are summed as"),
    "weights are not summed": ("softmax", without(u.AddWeights()), "are not summed|without all of its blocks"),
    "messages overwrite others": ("softmax", without(g.Acquire("message_fill")), "overwrites"),
    "messages are not committed": ("softmax", without(g.Commit("message_fill")), "deadlock"),
    "factors are not sent": ("softmax", without(u.WriteFactors()), "is read as"),
    "sums are not sent": ("softmax", without(u.WriteTotals()), "is read as"),
    "unmasked diagonal": (
        "softmax",
        lambda each: (u.Maxima(masked=False),) if each == u.Maxima(masked=True) else (each,),
        "is not masked",
    ),
    "no wait for messages": ("correct", without(g.Wait("message_read")), "is read as"),
    "messages are not released": ("correct", without(g.Release("message_read")), "deadlock"),
    "no wait for outputs": ("correct", without(g.Wait("output_read")), "while MMAs add to it"),
    "outputs without a fence": ("correct", without(AFTER), "without a fence after"),
    "corrections without a fence": ("correct", without(BEFORE), "an arrival without a fence"),
    "outputs are not released": ("correct", without(g.Release("output_read")), "deadlock"),
    "no rescaling": ("correct", without(a.Rescale()), "with the factors of"),
    "outputs are not finished": ("correct", without(u.FinishRow()), "is stored while|was not stored"),
    "no barrier": ("correct", without(g.BarrierSync("correction")), "is stored while|being stored|overwrites"),
    "no proxy fence": ("correct", without(g.FenceShared()), "without a fence"),
    "memory is freed early": ("softmax", without(g.BarrierSync("end")), "is in use|left over"),
    "keys are loaded early": ("load", without(g.Acquire("k_fill")), "filled while|stale|negative|deadlock"),
    "values are loaded early": ("load", without(g.Acquire("v_fill")), "filled while|stale|negative|deadlock"),
    "values of another block": (
        "load",
        lambda each: (dataclasses.replace(each, behind=False),) if isinstance(each, a.LoadBlock) else (each,),
        "stale",
    ),
}
"""By name: the role, the edit, and the message."""


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
def test_planted_faults_are_found(name: str, own: bool) -> None:
    role, edit, message = FAULTS[name]
    program = u.umma_program(plan(CAUSAL, own=own, stages=2))
    changed = edited(program, role, edit)
    assert changed != program, "the fault changes nothing"
    with pytest.raises((Fault, AssertionError), match=message):
        verify_attention(changed)


DROPPED = {
    "weights are changed before they are summed": (
        lambda each: (u.DropWeights(each.first), each) if isinstance(each, u.AddWeights) else (each,),
        "or before they are summed",
    ),
    "weights are not changed": (
        lambda each: () if isinstance(each, u.DropWeights) else (each,),
        "are stored from",
    ),
    "the first block's weights are another's": (
        lambda each: (u.DropWeights(),) if isinstance(each, u.DropWeights) else (each,),
        "is printed as",
    ),
}


@pytest.mark.parametrize("name", DROPPED)
def test_planted_faults_of_changed_weights_are_found(name: str) -> None:
    edit, message = DROPPED[name]
    program = u.umma_program(plan(CAUSAL, of={"dropped": SCALED}))
    verify_attention(program)
    changed = edited(program, "softmax", edit)
    assert changed != program, "the fault changes nothing"
    with pytest.raises(Fault, match=message):
        verify_attention(changed)


SPLIT: dict[str, Any] = {"keys": 4096, "queries": 200}
SPLIT_FAULTS = {
    "partials are not stored": (without(g.StorePartials()), "before all warps have released|not stored"),
    "partials are not released": (without(g.WorkspaceRelease()), "before all warps have released"),
    "partials are not combined": (without(a.CombinePartials()), "from its own keys alone"),
    "counters are not reset": (without(g.ResetTileCounter()), "counters are left|not stored once"),
    "outputs of all parts": (
        lambda each: each.body if isinstance(each, a.LastSplit) else (each,),
        "before all of them are there|not stored once",
    ),
    "no barrier": (without(g.BarrierSync("correction")), "before all warps|read as that|is stored while|being stored"),
    "buffers are written early": (
        lambda each: (
            (dataclasses.replace(each, body=tuple(x for x in each.body if x != a.FirstWarp((g.StoreWait(0),)))),)
            if isinstance(each, a.LastSplit)
            else (each,)
        ),
        "overwrites one that is being stored",
    ),
    "outputs are not given back": (without(g.Release("output_read")), "deadlock"),
    "partials without a fence": (without(BEFORE), "an arrival without a fence"),
    "partials of unfinished outputs": (without(g.Wait("output_read")), "while MMAs add to it"),
}
"""By name: the edit of the correcting role, and the message."""


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("splits", [2, 5, 64])
def test_programs_with_split_keys_are_right(groups: int, splits: int) -> None:
    program = u.umma_program(plan(groups=groups, splits=splits, of=SPLIT))
    assert program.plan.own_output and program.plan.pieces == program.plan.tiles * splits
    verify_attention(program)
    for seed in range(4):
        few = dataclasses.replace(program, plan=dataclasses.replace(program.plan, splits=min(splits, 3)))
        UmmaMachine(few, tiles=3, seed=seed).run(execute)


@pytest.mark.parametrize("name", SPLIT_FAULTS)
@pytest.mark.parametrize("groups", [1, 2])
def test_planted_faults_of_split_keys_are_found(name: str, groups: int) -> None:
    edit, message = SPLIT_FAULTS[name]
    program = u.umma_program(plan(groups=groups, splits=2, stages=2, of=SPLIT))
    changed = edited(program, "correct", edit)
    assert changed != program, "the fault changes nothing"
    with pytest.raises((Fault, AssertionError), match=message):
        verify_attention(changed)


def test_queries_are_loaded_after_the_output_that_takes_their_memory() -> None:
    program = u.umma_program(plan(CAUSAL, own=False, stages=2))
    with pytest.raises(Fault, match="being stored|filled while"):
        verify_attention(edited(program, "correct", without(g.StoreWait(0))))
    own = u.umma_program(plan(CAUSAL, own=True, stages=2))
    with pytest.raises(Fault, match="deadlock"):
        verify_attention(edited(own, "multiply", without(u.CommitMma("q_read"))))


def test_tensor_memory_is_checked() -> None:
    made = plan(dims=128, keys=128)
    assert (made.score_columns, made.memory_columns) == (256, 512)
    verify_attention(u.umma_program(made))
    with pytest.raises(Fault, match="512 columns of tensor memory; a CTA has 256"):
        verify_attention(u.umma_program(dataclasses.replace(made, tensor_memory_limit_columns=256)))
    with pytest.raises(Refusal, match="need 640 columns of tensor memory; a CTA has 512"):
        plan(dims=256)


def test_predicted_shares_of_the_tensor_pipe() -> None:
    """Longer heads keep the tensor pipe busy; one group alone overlaps with nothing."""
    shares = [plan(dims=dims, keys=128).tensor_share for dims in (32, 64, 128)]
    assert shares == sorted(shares) and 0.1 < shares[0] < shares[-1] < 1
    assert plan(dims=128, keys=128, groups=1).tensor_share < 0.7 * shares[-1]
    fewer = plan(dims=128, keys=128, polynomial=0)
    assert plan(dims=128, keys=128).polynomial > 0 and fewer.polynomial == 0
    assert fewer.tensor_share < shares[-1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"groups": 3}, "tiles of 384 queries; 128 and 256 are implemented"),
        ({"keys": 144}, "blocks of 144 keys; multiples of 16 up to 128"),
        ({"stages": 7}, "7 stages of K and V; 2 to 6"),
        ({"splits": 24}, "16 blocks of keys are split among 24 CTAs"),
        ({"splits": 2, "of": {"band": CAUSAL, "queries": 300}}, "all queries of a head are one tile, or see all keys"),
        ({"polynomial": 8}, "8 of 16 exponentials by a polynomial; even numbers up to 6"),
        ({"polynomial": 3}, "3 of 16 exponentials"),
    ],
    ids=str,
)
def test_refused_choices(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(Refusal, match=message):
        plan(**changes)
