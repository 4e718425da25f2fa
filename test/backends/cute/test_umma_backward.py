"""Gradients of attention on tcgen05: the simulation of their roles, the values of the printed text, binaries and refusals."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any

import pytest
import torch
from backends.cute.edited_roles import edited, without
from backends.cute.printed_registers import unwritten_registers
from backends.cute.test_backward import NAMES, bound_of, case_of
from backends.cute.test_dropout import cases as dropped_cases
from backends.cute.test_sequence_gradients import NAMES as SEQUENCE_NAMES
from backends.cute.test_sequence_gradients import cases as sequences
from backends.cute.umma_gradients import evaluate_as

import helion
from helion import exc
from helion.backends.cute.execute import evaluators
from helion.backends.cute.plan.attention.backward import BackwardChoice
from helion.backends.cute.plan.attention.gradients import BackwardProblem
from helion.backends.cute.plan.attention.umma_backward import UmmaBackwardPlan, plan_umma_backward
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.roles import grammar as g
from helion.backends.cute.roles.attention import grammar as a
from helion.backends.cute.roles.attention import umma as u
from helion.backends.cute.roles.attention import umma_backward as b
from helion.backends.cute.shapes import shape_of_plan
from helion.backends.cute.verify.attention.rules import execute
from helion.backends.cute.verify.attention.umma_backward import UmmaBackwardMachine
from helion.backends.cute.verify.attention.verify import verify_backward
from helion.backends.cute.verify.state import Fault
from helion.hardware import target

BLACKWELL = target("sm_100")
PARTS = {
    **{name: "that are added to dq.* in memory" for name in NAMES if name.startswith("all")},
    **dict.fromkeys(("keys, 256 dimensions", "shared keys, 256 dimensions"), "whose sums are too wide for one pass"),
    **dict.fromkeys(("queries, stored bias", "keys, added bias"), "in float32"),
}
"""Parts that are refused by name, by case."""
REFUSED = tuple(PARTS)
TAKEN = tuple(name for name in NAMES if name not in REFUSED)
SIMULATED = ("queries, causal", "shared keys, causal", "keys", "queries, capped in a window")


SEQUENCES = tuple(name for name in SEQUENCE_NAMES if not name.startswith("all"))
"""Those that add nothing to memory."""


@functools.cache
def problem(name: str) -> BackwardProblem:
    return bound_of(case_of(name), "b200").plan().backward.problem


def plan(name: str, groups: int = 2, **changes: Any) -> UmmaBackwardPlan:
    choice = dataclasses.replace(BackwardChoice(groups=groups, keys=32), **changes)
    return plan_umma_backward(problem(name), choice, BLACKWELL)


# Programs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SIMULATED)
def test_programs_are_right(name: str) -> None:
    for groups, stages in itertools.product((1, 2), (2, 3)):
        verify_backward(b.umma_backward_program(plan(name, groups, stages=stages)))


@pytest.mark.prove
@pytest.mark.parametrize("name", SIMULATED)
def test_programs_are_right_under_many_schedules(name: str) -> None:
    for groups, stages, seed in itertools.product((1, 2), (2, 4), range(50)):
        program = b.umma_backward_program(plan(name, groups, stages=stages))
        UmmaBackwardMachine(program, tiles=seed % 6, seed=seed).run(execute)


BEFORE, AFTER = u.TensorFence(after=False), u.TensorFence(after=True)
FAULTS = {
    "no wait for blocks": ("multiply", without(g.Wait("first_read")), "stale"),
    "no wait for other blocks": ("multiply", without(g.Wait("second_read")), "stale"),
    "no wait for rows": ("multiply", without(g.Wait("rows_read")), "stale|was not stored"),
    "no wait for left operands": ("multiply", without(g.Wait("lefts_read")), "is multiplied while"),
    "no products": ("multiply", without(a.ProductMma(1, "second_read")), "is read while"),
    "no gradients": (
        "multiply",
        lambda each: () if isinstance(each, b.GradientOfBlock) and each.gradient == 1 else (each,),
        "overwrites the left|finished with",
    ),
    "products before gradients": (
        "multiply",
        lambda each: (
            (dataclasses.replace(each, body=(each.body[-3], *each.body[:-3], *each.body[-2:])),)
            if isinstance(each, a.GroupLoop) and b.GradientOfBlock(0, "second_free") in each.body
            else (each,)
        ),
        "overwrites the|is multiplied while|or MMAs write it",
    ),
    "blocks are not released": ("multiply", without(g.Release("first_free")), "deadlock"),
    "other blocks are not released": ("multiply", without(g.Release("second_free")), "deadlock"),
    "blocks are released before their gradients": (
        "multiply",
        lambda each: (
            (g.Release("first_free"), g.Advance("first_free"), each) if isinstance(each, b.OtherBlocks) else (each,)
        ),
        "stale|filled while|more than|left over",
    ),
    "products are not committed": ("multiply", without(u.CommitMma("scores_fill")), "deadlock"),
    "sums are not committed": ("multiply", without(u.CommitMma("output_fill")), "deadlock"),
    "MMAs without a fence": ("multiply", without(AFTER), "without a fence after"),
    "gradients of the wrong block": (
        "multiply",
        lambda each: (dataclasses.replace(each, last=False),) if isinstance(each, b.GradientOfBlock) else (each,),
        "stale|is multiplied while",
    ),
    "no wait for products": ("compute", without(g.Wait("scores_read")), "is read while"),
    "products without a fence": ("compute", without(AFTER), "without a fence after"),
    "left operands without a fence": ("compute", without(BEFORE), "an arrival without a fence"),
    "left operands are not committed": ("compute", without(g.Commit("lefts_fill")), "deadlock"),
    "left operands are not computed": (
        "compute",
        lambda each: () if isinstance(each, b.Lefts) and each.masked else (each,),
        "is multiplied while",
    ),
    "unmasked diagonal": (
        "compute",
        lambda each: (b.Lefts(masked=False, first=each.first),) if isinstance(each, b.Lefts) else (each,),
        "is not masked",
    ),
    "no wait for sums": ("compute", without(g.Wait("output_read")), "or while MMAs add to it"),
    "outputs are not computed": ("compute", without(b.FinishGradient(1)), "is stored while"),
    "no proxy fence": ("compute", without(g.FenceShared()), "without a fence"),
    "no barrier": ("compute", without(a.GroupSync()), "is stored while|filled|stale"),
    "no wait for stores": ("compute", without(g.StoreWait(0)), "being stored|leaves while"),
    "rows are not released": ("compute", without(g.Release("rows_read")), "deadlock"),
    "memory is freed early": ("compute", without(g.BarrierSync("end")), "is in use|left over"),
    "blocks are loaded early": ("load", without(g.Acquire("first_fill")), "filled while|stale|negative|deadlock"),
    "rows are loaded early": (
        "load_rows",
        without(g.Acquire("rows_fill")),
        "filled|stale|negative|deadlock|being stored",
    ),
}
"""By name: the role, the edit, and the message."""


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found(name: str) -> None:
    role, edit, message = FAULTS[name]
    for groups in (1, 2):
        program = b.umma_backward_program(plan("shared keys, causal", groups, stages=2))
        changed = edited(program, role, edit)
        assert changed != program, "the fault changes nothing"
        with pytest.raises((Fault, AssertionError), match=message):
            verify_backward(changed)


def test_numbers_of_streamed_rows_are_awaited() -> None:
    program = b.umma_backward_program(plan("keys"))
    assert all(program.plan.staged.values())
    with pytest.raises(Fault, match="stale numbers"):
        verify_backward(edited(program, "compute", without(g.Advance("second_read"))))


def test_tensor_memory_is_checked() -> None:
    made = plan("keys", keys=64)
    assert made.memory_columns == 2 * (2 * 64 + 2 * 64)
    with pytest.raises(Fault, match="512 columns of tensor memory; a CTA has 256"):
        verify_backward(b.umma_backward_program(dataclasses.replace(made, tensor_memory_limit_columns=256)))


# Values ----------------------------------------------------------------------------------------------------------------


def check_values(monkeypatch: pytest.MonkeyPatch, name: str, choice: BackwardChoice, static: bool = True) -> None:
    """Compare the printed text with fp64."""
    case, plans = case_of(name), list[UmmaBackwardPlan]()
    monkeypatch.setitem(evaluators.EVALUATORS, BackwardProblem, evaluate_as(choice, plans))  # type: ignore[arg-type]
    found = helion.kernel(backend="cute", static_shapes=static)(case.kernel)(*case.arguments)
    assert plans
    for one, other in zip((found,) if torch.is_tensor(found) else found, case.wanted, strict=True):
        assert (one.double() - other).norm() < 4e-3 * other.norm()


@pytest.mark.parametrize("name", ["queries, causal", "shared keys, causal"])
def test_values_of_the_text(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    check_values(monkeypatch, name, BackwardChoice(groups=1, keys=32))


@pytest.mark.parametrize(
    ("name", "static"),
    [
        ("queries", False),
        *(pytest.param(name, static, marks=pytest.mark.prove) for name in SEQUENCES[1:] for static in (True, False)),
    ],
)
def test_values_of_sequences(monkeypatch: pytest.MonkeyPatch, name: str, static: bool) -> None:
    """Streamed rows that loaded integers bound: those out of a tile's span are read as 0."""
    choice = BackwardChoice(groups=1, keys=32)
    monkeypatch.setitem(evaluators.EVALUATORS, BackwardProblem, evaluate_as(choice))  # type: ignore[arg-type]
    case = sequences()[name]
    found = helion.kernel(backend="cute", static_shapes=static)(case.kernel)(*case.arguments)
    for one, other in zip((found,) if torch.is_tensor(found) else found, case.wanted, strict=True):
        assert (one.double() - other).norm() < 4e-3 * other.norm()
    made = bound_of(case, "b200").plan()
    assert made.backward.problem.spans_keys
    assert not unwritten_registers(shape_of_plan(made).kernel(made).source)


@pytest.mark.prove
@pytest.mark.parametrize("name", ["gradient of queries with dropout", "gradients of keys with dropout"])
def test_values_with_dropout(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    choice = BackwardChoice(groups=1, keys=32)
    monkeypatch.setitem(evaluators.EVALUATORS, BackwardProblem, evaluate_as(choice))  # type: ignore[arg-type]
    case = dropped_cases()[name]
    found = helion.kernel(backend="cute")(case.kernel)(*case.arguments)
    for one, other in zip((found,) if torch.is_tensor(found) else found, case.wanted, strict=True):
        assert (one.double() - other).norm() < 4e-3 * other.norm()
    bound = bound_of(case, "b200")
    assert all(bound.resources(seed.config).spill_bytes == 0 for seed in bound.seeds)


OF_ONE_GROUP = ("queries, 256 dimensions", "keys, causal", "keys, documents")
"""Cases of so many dimensions that tensor memory holds the sums of one group."""


@pytest.mark.prove
@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("choice", [(1, 48), (2, 32)], ids=str)
@pytest.mark.parametrize("name", TAKEN)
def test_values_of_all_texts(monkeypatch: pytest.MonkeyPatch, name: str, choice: tuple[int, int], static: bool) -> None:
    groups, keys = choice
    groups = 1 if name in OF_ONE_GROUP else groups
    check_values(monkeypatch, name, BackwardChoice(groups=groups, keys=keys), static)


# Kernels ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TAKEN)
def test_every_register_is_written(name: str) -> None:
    made = bound_of(case_of(name), "b200").plan()
    assert not unwritten_registers(shape_of_plan(made).kernel(made).source)


@pytest.mark.prove
@pytest.mark.parametrize("name", TAKEN)
def test_binaries_do_not_spill(name: str) -> None:
    """Compile seeds, and tiles of two groups, for sm_100a; MMAs are those of the first block, of the loop, and of the last."""
    bound = bound_of(case_of(name), "b200")
    wider = {**bound.default_config(), "block_sizes": [256, 32], "tcgen05_kv_stages": None}
    configs = [seed.config for seed in bound.seeds]
    for config in (*configs, *([wider] if name not in OF_ONE_GROUP else [])):
        found, made = bound.resources(config), bound.plan(config).backward
        assert found.spill_bytes == 0
        assert found.tensor_memory_columns >= made.memory_columns
        products = sum(matrix.columns for matrix in made.problem.owned) // 16
        assert found.sass_counts["UTCHMMA"] == 2 * (products + len(made.problem.gradients) * made.keys // 16)


def test_auto_takes_triton() -> None:
    """No Blackwell GPU has run these kernels."""
    case = case_of("keys")
    meta = tuple(each.to("meta") if torch.is_tensor(each) else each for each in case.arguments)
    assert helion.kernel(backend="auto")(case.kernel).bind(meta, target="b200").backend_on_gpu == "triton"


def test_keys_of_configs() -> None:
    bound = bound_of(case_of("keys"), "b200")
    config = {**bound.default_config(), "block_sizes": [256, 64], "tcgen05_kv_stages": 2}
    made = bound.plan(config).backward
    assert (made.groups, made.keys, made.stages) == (2, 64, 2)
    assert "tensor memory: 512 of 512 columns" in str(bound.plan(config))
    with pytest.raises(exc.InvalidConfig, match="tcgen05_key_splits.*it is for attention itself"):
        bound.plan({**bound.default_config(), "tcgen05_key_splits": 2})


@pytest.mark.parametrize("name", REFUSED)
def test_parts_without_tcgen05_are_refused_by_name(name: str) -> None:
    message = f"gradients of attention {PARTS[name]}.* are implemented for wgmma, and not for tcgen05.*backend='triton'"
    with pytest.raises(exc.CuteUnsupported, match=message):
        bound_of(case_of(name), "b200").plan()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"groups": 3}, "tiles of 384 rows; 128 and 256 are implemented"),
        ({"keys": 144}, "blocks of 144 rows; multiples of 16 up to 128"),
        ({"keys": 128}, "need 768 columns of tensor memory; a CTA has 512"),
        ({"stages": 5}, "5 stages of blocks; 2 to 4"),
        ({"scheduler": "dynamic"}, "static tile scheduler"),
    ],
    ids=str,
)
def test_refused_choices(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(Refusal, match=message):
        plan("keys", **changes)
