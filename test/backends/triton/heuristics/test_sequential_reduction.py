"""Programs of one row that take steps in order, and reduce a tile in each."""

from __future__ import annotations

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl
from benchmarks.unfitted import CELLS
from helion.autotuner.proposal import Declined
from helion.backends.triton.heuristics.families.reduction.sequential import TritonSequentialReductionHeuristic
from helion.hardware import target

GPU = target("h200")


@helion.kernel
def forward_scores(emissions: torch.Tensor, moves: torch.Tensor) -> torch.Tensor:
    b, t, s = emissions.size()
    s = hl.specialize(s)
    out = torch.empty([b, s], dtype=torch.float32, device=emissions.device)
    for bi in hl.grid(b):
        between = moves[:, :]
        score = emissions[bi, 0, :]
        for at in range(1, t):
            score = torch.logsumexp(score[:, None] + between, 0) + emissions[bi, at, :]
        out[bi, :] = score
    return out


def bound(states: int) -> helion.runtime.bound.BoundKernel:
    given = tensor(1024, 128, states, dtype=torch.float32), tensor(states, states, dtype=torch.float32)
    return forward_scores.bind(given, target="h200")


@pytest.mark.parametrize(("states", "warps"), [(16, 1), (64, 1), (128, 4)])
def test_few_warps_meet_in_no_barrier(states: int, warps: int) -> None:
    """One warp takes 197 us on an H200 for 64 states, two 324 and four 417."""
    found = bound(states)
    assert found.seeds[0].heuristic == "TritonSequentialReductionHeuristic"
    assert found.default_config() == found.seeds[0].config and found.default_config()["num_warps"] == warps


def test_long_rows_and_kernels_with_tiles_have_other_rules() -> None:
    rule = TritonSequentialReductionHeuristic()
    assert isinstance(rule.propose(bound(256)._analysis.facts, GPU), Declined)
    for name in ("dual_softmax", "soft_dice", "ctc_alphas", "selective_scan", "farthest_points"):
        cell = CELLS[name]
        facts = cell.kernel.bind(cell.arguments("meta", False), target="h200")._analysis.facts
        assert isinstance(rule.propose(facts, GPU), Declined)


def test_default_of_best_tags() -> None:
    cell = CELLS["viterbi_tags"]
    assert cell.kernel.bind(cell.arguments("meta", False), target="h200").default_config()["num_warps"] == 1


@pytest.mark.parametrize(("t", "s"), [(9, 16), (5, 63)])
def test_results_are_right(t: int, s: int) -> None:
    emissions, moves = torch.randn(3, t, s), torch.randn(s, s)
    score = emissions[:, 0]
    for at in range(1, t):
        score = torch.logsumexp(score[:, :, None] + moves, 1) + emissions[:, at]
    torch.testing.assert_close(forward_scores(emissions, moves), score)
