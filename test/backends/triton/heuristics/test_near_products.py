"""Tiles near those of the rule for several matmuls."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.unfitted import CELLS
from helion.backends.triton.heuristics.choose import trust
from helion.backends.triton.heuristics.families.matmul.near_products import near
from helion.backends.triton.heuristics.families.matmul.several import TritonProductsHeuristic
from helion.backends.triton.heuristics.predicted_time import proposal_us
from helion.backends.triton.proposal import TritonProposal


def _proposed(name: str, gpu: str) -> tuple[TritonProposal, ...]:
    bound = CELLS[name].kernel.bind(CELLS[name].arguments("meta", False), target=gpu)
    found = TritonProductsHeuristic().propose(bound.facts, bound.target)
    assert isinstance(found, tuple)
    return found


@pytest.mark.parametrize(
    ("name", "tile", "warps"),
    [
        ("mean_attention_map", [64, 128], 8),
        ("pair_interactions", [1], 1),
        ("mahalanobis", [256], 8),
        ("pair_bias_gradient", [64, 64], 8),
        ("chunk_scan", [128, 64], 8),
        ("kmeans_step", [256], 4),
    ],
)
def test_tiles_near_the_rule_are_those_that_were_faster(name: str, tile: list[int], warps: int) -> None:
    first = _proposed(name, "h200")[0]
    assert list(first.block_sizes.values()) == tile and first.num_warps == warps


@pytest.mark.parametrize("name", ["mean_attention_map", "pair_interactions", "mahalanobis"])
def test_the_tile_of_the_rule_is_the_next_proposal(name: str) -> None:
    bound = CELLS[name].kernel.bind(CELLS[name].arguments("meta", False), target="h200")
    first, second, *_ = _proposed(name, "h200")
    assert "predicted to be faster" in first.reason and "predicted to be faster" not in second.reason
    times = [proposal_us(bound.facts, each, bound.target) for each in (first, second)]
    assert times[0] <= trust(bound.target).near_products * times[1]


@pytest.mark.parametrize(("name", "gpu"), [("mean_attention_map", "a100"), ("pair_interactions", "mi300x")])
def test_tiles_stay_where_nothing_was_timed_and_where_a_launch_is_proposed(name: str, gpu: str) -> None:
    bound = CELLS[name].kernel.bind(CELLS[name].arguments("meta", False), target=gpu)
    assert near(bound.facts, _proposed(name, gpu)[0], bound.target) is None
    measured = CELLS[name].kernel.bind(CELLS[name].arguments("meta", False), target="h200")
    rule = _proposed(name, "h200")[1]
    assert near(measured.facts, rule, measured.target) is not None
    assert near(measured.facts, replace(rule, launch={"split_k": 2}), measured.target) is None
