"""Records of rewrites: what follows from them, without a line elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import helion.language as hl
from helion import config
from helion._compiler import rewrites
from helion._compiler.decisions import Decisions
from helion._compiler.facts import collect
from helion._compiler.ir.grammar import Program
from helion._compiler.rewrites import LEGALIZED, REWRITES
from helion._compiler.rewrites.legality import in_order_of_legality, legalize
from helion._compiler.rewrites.record import LaunchKey, Rewrite, RuleContext
from helion.backends import BACKENDS
from helion.backends.triton.lower import steps as triton_steps
from helion.fields import IntegerFragment
from helion.hardware import target
from test import harness

STEPS = [step.name for step in BACKENDS["triton"].steps]


def doubled(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * 2 + 1
    return out


PROGRAM = harness.program_of(doubled, torch.empty(37))
CONTEXT = RuleContext(program=PROGRAM, target=target("sm_90"), rewritten=lambda decisions: PROGRAM)


def unchanged(program: Program, value: Any, inputs: Any) -> Program:
    return program


def record(**changed: Any) -> Rewrite:
    given = {"key": "mine", "doc": "Mine.", "applies": lambda p, t: "", "needs": "a reason", "apply": unchanged}
    return Rewrite(**{**given, **changed})


def decisions(**values: Any) -> Decisions:
    return Decisions(
        sizes={0: 16},
        chunked=frozenset(),
        entries={"static_ranges": {(1, 0): True, (2, 0): True}, "load_eviction_policies": {0: "last", 7: "first"}},
        values={"pid_type": "flat", **values},
    )


# --- the order -----------------------------------------------------------------------------------------------------------


def unordered(names: list[str]) -> list[str]:
    """Rewrites that run before a step that they name in ``after``."""
    return [
        f"{rewrite.key} after {step}"
        for rewrite in REWRITES
        for step in rewrite.after
        if names.index(step) > names.index(rewrite.key)
    ]


def test_steps_run_after_those_that_they_need() -> None:
    assert not unordered(STEPS) and any(rewrite.after for rewrite in REWRITES)
    assert "precompute_operands after split_k" in unordered(STEPS[::-1])


def test_every_rewrite_is_a_step_once() -> None:
    assert [name for name in STEPS if name in rewrites.keys()] == [rewrite.key for rewrite in REWRITES]


def test_rules_run_after_those_that_decide_them() -> None:
    at = {rewrite.key: number for number, rewrite in enumerate(LEGALIZED)}
    assert set(at) == {rewrite.key for rewrite in REWRITES}
    for each in REWRITES:
        assert all(at[key] < at[each.key] for key in each.yields_to)
        assert all(at[each.key] < at[key] for key in each.resets if key in at)
    first, second, third = record(key="a", yields_to=frozenset("c")), record(key="b"), record(key="c", resets={"b": 0})
    assert [each.key for each in in_order_of_legality((first, second, third))] == ["c", "a", "b"]


def test_slices_of_the_order_join_to_all() -> None:
    assert rewrites.between(REWRITES, None, "split_k") + rewrites.between(REWRITES, "split_k", None) == REWRITES
    with pytest.raises(ValueError, match="no_key"):
        rewrites.schedule("no_key", None)


# --- keys ----------------------------------------------------------------------------------------------------------------


def test_keys_and_their_documentation_are_those_of_the_records() -> None:
    declared = {rewrite.key: rewrite.doc for rewrite in REWRITES}
    declared |= {key.key: key.doc for rewrite in REWRITES for key in rewrite.launch}
    without_rewrite = {"cooperative_launch", "kpack"}
    assert declared.keys() | without_rewrite == config.OWN_KEYS and not declared.keys() & without_rewrite
    assert declared.items() <= config.KEYS.items()
    assert set(rewrites.keys()) <= set(BACKENDS["triton"].key_prefixes)


def test_checked_kernels_have_no_rewrite_that_drops_checks() -> None:
    reason = "checked kernels are compiled as written"
    assert record().why_absent(PROGRAM, CONTEXT.target, checked=True) == reason
    assert record(in_checked=True).why_absent(PROGRAM, CONTEXT.target, checked=True) == ""
    never = record(applies=lambda p, t: "no loop")
    assert never.why_absent(PROGRAM, CONTEXT.target, checked=False) == "no loop"


# --- legality ------------------------------------------------------------------------------------------------------------


def test_a_value_that_does_not_fit_is_off() -> None:
    never = record(fit=lambda context, value, decisions: False)
    assert legalize(never, CONTEXT, decisions(mine=True)).values["mine"] is False
    lower = record(off=0, fit=lambda context, value, decisions: min(value, 3))
    assert legalize(lower, CONTEXT, decisions(mine=8)).values["mine"] == 3
    given = decisions(other=True)
    assert legalize(record(), CONTEXT, given) is given


def test_a_rewrite_yields_to_others_and_resets_others() -> None:
    yields = record(yields_to=frozenset(("other",)))
    assert legalize(yields, CONTEXT, decisions(mine=True, other=True)).values["mine"] is False
    assert legalize(yields, CONTEXT, decisions(mine=True, other=False)).values["mine"] is True
    resets = record(resets={"other": 1, "static_ranges": False, "no_such_key": 0}, numbered=True)
    made = legalize(resets, CONTEXT, decisions(mine=True, other=8, pid_type="xyz"))
    assert made.values == {"mine": True, "other": 1, "pid_type": "flat"}
    assert made.entries["static_ranges"] == {(1, 0): False, (2, 0): False}
    kept = decisions(mine=False, other=8, pid_type="xyz")
    assert legalize(resets, CONTEXT, kept) is kept


def test_options_of_a_kernel_that_is_not_made_are_reset() -> None:
    launch = LaunchKey(
        key="mine_num_warps", doc="", of="num_warps", range=IntegerFragment(1, 8), values=lambda t: (1, 2)
    )
    made = record(launch=(launch,))
    assert made.keys == ("mine", "mine_num_warps")
    assert legalize(made, CONTEXT, decisions(mine=False, mine_num_warps=2)).values["mine_num_warps"] is None
    assert legalize(made, CONTEXT, decisions(mine=True, mine_num_warps=2)).values["mine_num_warps"] == 2


def test_options_of_loads_that_are_gone_are_reset() -> None:
    made = legalize(record(removes=frozenset(("accesses",))), CONTEXT, decisions(mine=True))
    assert made.entries["load_eviction_policies"] == {0: "last", 7: ""}
    without = replace(CONTEXT, rewritten=lambda decisions: replace(PROGRAM, roots=()))
    made = legalize(record(removes=frozenset(("accesses",))), without, decisions(mine=True))
    assert made.entries["load_eviction_policies"] == {0: "", 7: ""}


# --- facts ---------------------------------------------------------------------------------------------------------------


def test_facts_of_rewrites_are_computed_once_and_by_key(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Program] = []
    mine = record(fact=lambda context: asked.append(context.program) or "mine")
    monkeypatch.setattr(collect, "REWRITES", (*REWRITES, mine))
    facts = collect.collect_facts(PROGRAM, ())
    assert set(facts.rewrites) == {"mine", *(rewrite.key for rewrite in REWRITES)} and not asked
    assert facts.rewrite("mine") == facts.rewrite("mine") == "mine" and len(asked) == 1
    assert facts.rewrite("no_key") is None and not facts.precomputable and not facts.swappable_ab
    changed = facts.with_rewrites(fuse_loops=(1, 2))
    assert (changed.fusible_axes, facts.fusible_axes, changed.rewrite("mine")) == ((1, 2), (), "mine")


# --- legality --------------------------------------------------------------------------------------------------------------


def test_legality_sees_the_program_after_the_steps_that_remove_its_parts() -> None:
    first = [step.name for step in triton_steps.REWRITING]
    assert triton_steps.STEPS[: len(first)] == triton_steps.REWRITING
    assert {each.key for each in REWRITES if each.removes} | {"split_k", "peel_masks"} <= set(first)
