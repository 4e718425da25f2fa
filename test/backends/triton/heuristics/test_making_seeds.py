"""What becomes of proposals: seeds, ranked, and reasons why there are none."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable
from typing import Any

import pytest
from harness import facts_of, tensor
from heuristic_kernels import H100, kl_div, matmul_layer_norm, matmul_rms_norm_tiled, split_k, welford
from sample_kernels import add, matmul_to_bf16, scan, softmax

from helion._compiler.facts.records import KernelFacts
from helion.autotuner.proposal import Predicted
from helion.autotuner.seeds import MAX_SEEDS, make_seeds
from helion.backends.triton.heuristics.registry import HEURISTICS
from helion.backends.triton.heuristics.sizing import all_sizes, estimate
from helion.backends.triton.proposal import TritonProposal
from helion.config import Config
from helion.hardware import Target


def test_registry_ends_in_the_fallback_and_names_are_unique() -> None:
    names = [h.name for h in HEURISTICS]
    assert len(set(names)) == len(names)
    assert names[-1] == "TritonFallbackHeuristic"
    assert names == [type(h).__name__ for h in HEURISTICS]


# --- seeds ---------------------------------------------------------------------------------------------------------------


def legal(facts: KernelFacts, gpu: Target, seen: list[TritonProposal] | None = None) -> Callable[[TritonProposal], Any]:
    """A legaliser that takes every proposal as it is."""

    def legalise(proposal: TritonProposal) -> tuple[Config, Predicted]:
        if seen is not None:
            seen.append(proposal)
        warps, stages = proposal.num_warps or 4, proposal.num_stages or 1
        predicted = estimate(facts, gpu, proposal.block_sizes, warps, stages, proposal.reduction_loops)
        sizes = all_sizes(facts, proposal.block_sizes)
        config = Config(
            block_sizes=[sizes[axis.block_id] for axis in facts.tunable_axes],
            reduction_loops=[proposal.reduction_loops.get(axis.block_id) for axis in facts.rolled_axes],
            num_warps=warps,
            num_stages=stages,
        )
        return config, predicted

    return legalise


@pytest.mark.parametrize(
    ("kernel", "args", "first"),
    [
        (matmul_to_bf16, (tensor(1024, 1024), tensor(1024, 1024)), "TritonMatmulHeuristic"),
        (softmax, (tensor(4096, 8192),), "TritonStreamingReductionHeuristic"),
        (welford, (tensor(4096, 8192),), "TritonStreamingReductionHeuristic"),
        (kl_div, (tensor(4096, 8192),) * 2, "TritonUserTiledReductionHeuristic"),
        (add, (tensor(4096, 8192),) * 2, "TritonPointwiseHeuristic"),
        (matmul_layer_norm, (tensor(4096, 512), tensor(512, 512), tensor(512), tensor(512)), "TritonMatmulReductionEpilogueHeuristic"),
        (matmul_rms_norm_tiled, (tensor(4096, 512), tensor(512, 512)), "TritonMatmulTiledReductionEpilogueHeuristic"),
        (split_k, (tensor(256, 4096), tensor(4096, 256)), "TritonMatmulHeuristic"),
        (scan, (tensor(64, 64),), "TritonFallbackHeuristic"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_seeds_are_ranked_and_every_heuristic_is_accounted_for(kernel: Any, args: Any, first: str) -> None:
    facts = facts_of(kernel, *args)
    report = make_seeds(facts, H100, HEURISTICS, legal(facts, H100))
    assert report.seeds[0].heuristic == first
    assert 1 <= len(report.seeds) <= MAX_SEEDS
    assert len({seed.config for seed in report.seeds}) == len(report.seeds)
    given = {seed.heuristic for seed in report.seeds}
    declined = [name for name, _ in report.declined]
    assert not given & set(declined) and len(set(declined)) == len(declined)
    assert given | set(declined) == {h.name for h in HEURISTICS}
    assert all(reason for _, reason in report.declined) and all(seed.reason for seed in report.seeds)


def test_refused_proposals_give_their_reasons() -> None:
    facts = facts_of(softmax, tensor(64, 64))
    report = make_seeds(facts, H100, HEURISTICS, lambda proposal: "131072 bytes are needed, 65536 are there")
    assert report.seeds == ()
    assert dict(report.declined)["TritonFallbackHeuristic"] == "131072 bytes are needed, 65536 are there"


def test_equal_configs_are_one_seed_of_the_first_heuristic() -> None:
    facts = facts_of(softmax, tensor(64, 64))
    one = (Config(num_warps=4), estimate(facts, H100, {}, 4, 1))
    report = make_seeds(facts, H100, HEURISTICS, lambda proposal: one)
    assert [seed.heuristic for seed in report.seeds] == ["TritonStreamingReductionHeuristic"]
    assert (
        dict(report.declined)["TritonFallbackHeuristic"] == "same config as a seed of TritonStreamingReductionHeuristic"
    )


def test_unknown_backend_has_no_seeds() -> None:
    facts = facts_of(softmax, tensor(64, 64))
    assert make_seeds(facts, H100, (), legal(facts, H100)).seeds == ()


def test_seeds_do_not_depend_on_the_kernels_name() -> None:
    source = inspect.getsource(softmax).replace("def softmax", "def something_else")
    linecache.cache["<renamed softmax>"] = (len(source), None, source.splitlines(keepends=True), "<renamed softmax>")
    namespace = dict(softmax.__globals__)
    exec(compile(source, "<renamed softmax>", "exec"), namespace)
    renamed = facts_of(namespace["something_else"], tensor(4096, 8192))
    assert repr(renamed) == repr(facts_of(softmax, tensor(4096, 8192)))
