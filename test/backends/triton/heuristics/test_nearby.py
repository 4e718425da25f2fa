"""Tiles near those of a rule, where the predicted time says that the rule misses the limit of a kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl
from benchmarks.unfitted import CELLS
from helion._compiler.facts.records import KernelFacts
from helion.autotuner.proposal import Declined, Heuristic
from helion.backends.triton.heuristics import nearby
from helion.backends.triton.heuristics.nearby import with_nearby
from helion.backends.triton.heuristics.predicted_time import proposal_us
from helion.backends.triton.heuristics.sizing import estimate
from helion.backends.triton.proposal import TritonProposal
from helion.hardware import Target, target

GPU = target("h200")


@pytest.mark.parametrize(
    ("name", "sizes", "warps"),
    [
        ("neighbour_attention", [8], 1),
        ("factorization_scores", [4], 1),
        ("common_neighbours", [4, 256], 1),
        # exchanges between warps: 43 us in four planes and 4 warps, 21 in these
        ("strip_means", [1, 1], 1),
        # memory takes a sixth of the time: a program needs no whole lines, 48.6 us with 64 columns, 33.5 in these
        ("three_largest", [1, 16], 1),
    ],
)
def test_measured_kernels_have_their_fast_tiles(name: str, sizes: list[int], warps: int) -> None:
    bound = CELLS[name].kernel.bind(CELLS[name].arguments("meta", False), target="h200")
    config = bound.default_config()
    assert config["block_sizes"] == sizes and config["num_warps"] == warps
    first, rule, *_ = bound.seeds
    assert first.reason.startswith(rule.reason) and "; predicted to be faster in" in first.reason
    assert first.predicted.time_us <= 0.85 * rule.predicted.time_us


def test_programs_have_whole_lines_where_memory_takes_a_part_of_the_time() -> None:
    bound = CELLS["three_largest"].kernel.bind(CELLS["three_largest"].arguments("meta", False), target="h200")
    facts, numbers = bound._analysis.facts, nearby.tuned(nearby._Numbers)
    batch, columns = (axis.block_id for axis in facts.tunable_axes)
    ruled = TritonProposal(reason="", block_sizes={batch: 1, columns: 64}, num_warps=4)
    taken = [each.block_sizes[columns] for each in nearby.steps(ruled, facts, GPU, few=True)]
    assert min(taken) == 32
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nearby, "tuned", lambda _: replace(numbers, lines=0.0))
        whole = [each.block_sizes[columns] for each in nearby.steps(ruled, facts, GPU, few=True)]
    assert min(whole, default=64) == 64


@pytest.mark.parametrize("few", [False, True])
def test_tiles_of_adjacent_elements_are_exchanged(few: bool) -> None:
    cell = CELLS["pitch_differences"]
    bound = helion.kernel(cell.kernel.fn, backend="triton").bind(cell.arguments("meta", False), target="h200")
    facts = bound._analysis.facts.apart[0].value
    lags, samples = (axis.block_id for axis in facts.tunable_axes)
    ruled = TritonProposal(reason="", block_sizes={lags: 16, samples: 256}, num_warps=4)
    tiles = [(each.block_sizes[lags], each.block_sizes[samples]) for each in nearby.steps(ruled, facts, GPU, few=few)]
    assert (256, 16) in tiles


@helion.kernel
def mixed_bits(x: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Sums of hashed elements of each row."""
    rows, columns = x.size()
    out = torch.empty([rows], dtype=torch.int32, device=x.device)
    for tile in hl.tile(rows):
        total = hl.zeros([tile], dtype=torch.int32)
        for part in hl.tile(columns):
            value = x[tile, part]
            for i in hl.static_range(12):
                value = (value ^ (value >> 7)) * keys[i]
            total += value.sum(1)
        out[tile] = total
    return out


@helion.kernel
def row_sums(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile, :].sum(-1)
    return out


def bits(rows: int = 65536, columns: int = 256) -> helion.runtime.bound.BoundKernel:
    return mixed_bits.bind((tensor(rows, columns, dtype=torch.int32), tensor(12, dtype=torch.int32)), target="h200")


def test_steps_stop_at_the_least_predicted_time_of_tiles_that_fit() -> None:
    facts = bits()._analysis.facts
    rows, columns = (axis.block_id for axis in facts.tunable_axes)
    slow = TritonProposal(reason="rows", block_sizes={rows: 1, columns: 16}, num_warps=8, num_stages=1)
    found = with_nearby((slow,), facts, GPU)
    assert len(found) == 2 and found[1] is slow
    best = found[0]
    assert isinstance(best, TritonProposal) and best.num_warps is not None
    assert proposal_us(facts, best, GPU) <= 0.85 * proposal_us(facts, slow, GPU)
    assert not estimate(facts, GPU, best.block_sizes, best.num_warps, 1).spill_risk
    assert all(size <= 512 for size in best.block_sizes.values())


def test_good_tiles_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = bits()._analysis.facts
    rows, columns = (axis.block_id for axis in facts.tunable_axes)
    slow = TritonProposal(reason="rows", block_sizes={rows: 1, columns: 16}, num_warps=8, num_stages=1)
    best, _ = with_nearby((slow,), facts, GPU)
    assert with_nearby((best,), facts, GPU) == (best,)
    assert with_nearby((), facts, GPU) == ()
    prefetched = replace(slow, ranges={"range_num_stages": {columns: 3}})
    for fixed in (replace(slow, pid_type="persistent_blocked"), replace(slow, launch={"split_k": 2}), prefetched):
        assert with_nearby((fixed,), facts, GPU) == (fixed,)
    monkeypatch.setattr(nearby, "proposal_us", lambda *_: pytest.fail("memory limits a sum"))
    assert row_sums.bind((tensor(16384, 8192, dtype=torch.float32),), target="h200").default_config()


@helion.kernel
def nearest(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Squared distances of the rows of `a` to the nearest of `b`."""
    out = torch.empty([a.size(0)], dtype=torch.float32, device=a.device)
    for tile in hl.tile(a.size(0)):
        best = hl.full([tile], 1e30)
        for other in hl.tile(b.size(0)):
            difference = a[tile, :][:, None, :] - b[other, :][None, :, :]
            best = torch.minimum(best, (difference * difference).sum(-1).amin(1))
        out[tile] = best
    return out


def test_programs_of_all_threads_become_smaller() -> None:
    points = tensor(2048, 64, dtype=torch.float32)
    bound = nearest.bind((points, points), target="h200")
    first, rule, *_ = bound.seeds
    assert first.config["num_warps"] < rule.config["num_warps"] and first.config["num_warps"] <= 8
    assert first.predicted.time_us < 0.8 * rule.predicted.time_us and bound.default_config() == first.config
    a, b = torch.randn(37, 24), torch.randn(63, 24)
    torch.testing.assert_close(nearest(a, b), ((a[:, None] - b) ** 2).sum(-1).amin(1))


@helion.kernel
def squares(x: torch.Tensor) -> torch.Tensor:
    """Squares of the matrices `x[N, K, K]`."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        one = x[tile, :, :]
        out[tile, :, :] = (one[:, :, :, None] * one[:, None, :, :]).sum(2)
    return out


def test_tiles_that_registers_do_not_hold_become_smaller() -> None:
    bound = squares.bind((tensor(200000, 12, 12, dtype=torch.float32),), target="h200")
    first, rule, *_ = bound.seeds
    assert first.config["block_sizes"] < rule.config["block_sizes"]
    assert first.predicted.time_us < 0.8 * rule.predicted.time_us
    x = torch.randn(19, 5, 5)
    torch.testing.assert_close(squares(x), x @ x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("columns", [63, 100])
def test_results_are_right_in_nearby_tiles(columns: int) -> None:
    x = torch.randint(-(2**31), 2**31, (77, columns)).to(torch.int32)
    keys = torch.randint(-(2**31), 2**31, (12,)).to(torch.int32)
    value = x
    for key in keys:
        value = (value ^ (value >> 7)) * key
    bound = mixed_bits.bind((x, keys))
    for sizes, warps in (([1, 16], 8), ([8, 64], 1), ([16, 32], 2)):
        found = bound.compile_config(helion.Config(block_sizes=sizes, num_warps=warps))(x, keys)
        assert torch.equal(found, value.sum(1).to(torch.int32))


class Rival(Heuristic):
    name = "Rival"
    promote_seed_to_default = True
    made = TritonProposal(reason="rival", num_warps=1)

    def propose(self, facts: KernelFacts, target: Target) -> tuple[TritonProposal, ...] | Declined:
        return (self.made,)


def test_tiles_of_other_rules_that_are_predicted_to_be_faster_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    facts, usual = bits()._analysis.facts, nearby.proposal_us
    rows, columns = (axis.block_id for axis in facts.tunable_axes)
    slow = TritonProposal(reason="rows", block_sizes={rows: 1, columns: 16}, num_warps=8, num_stages=1)
    for us, count in ((1.0, 1), (1e6, 2)):
        monkeypatch.setattr(nearby, "proposal_us", lambda *of, us=us: us if of[1] is Rival.made else usual(*of))
        assert len(with_nearby((slow,), facts, GPU, [Rival()])) == count


@pytest.mark.parametrize("name", ["overlap_bits", "city_block"])
def test_pairs_of_rows_and_columns_keep_their_tiles(name: str) -> None:
    bound = CELLS[name].kernel.bind(CELLS[name].arguments("meta", False), target="h200")
    assert not any("; predicted to be faster in" in seed.reason for seed in bound.seeds[:1])


def test_kernels_of_two_loops_keep_their_tiles() -> None:
    cell = CELLS["group_norm_silu"]
    bound = cell.kernel.bind(cell.arguments("meta", False), target="h200")
    assert "; predicted to be faster in" not in bound.seeds[0].reason


def test_chunks_of_columns_become_shorter_in_fewer_warps() -> None:
    """Measured on an H200: chunks of 256 of 64 columns in 16 warps 80 to 87 us, of 64 in 8 warps 74.5, of 32 55.9, and of
    32 in 4 warps 81.4.
    """
    cell = CELLS["average_and_max"]
    bound = cell.kernel.bind(cell.arguments("meta", False), target="h200")
    first, rule, *_ = bound.seeds
    assert first.config["reduction_loops"] == [32] and rule.config["reduction_loops"] == [256]
    assert first.config["num_warps"] == 8 < rule.config["num_warps"] and bound.default_config() == first.config
    assert first.predicted.time_us <= 0.85 * rule.predicted.time_us


def test_vectors_take_no_more_threads_than_a_program_may_have() -> None:
    facts = CELLS["average_and_max"].kernel.bind(CELLS["average_and_max"].arguments("meta", False), target="h200").facts
    (rows,) = (axis.block_id for axis in facts.rolled_axes)
    sizes = {axis.block_id: size for axis, size in zip(facts.tunable_axes, (1, 1024), strict=True)}
    given = TritonProposal(reason="", block_sizes=sizes, reduction_loops={rows: 256}, num_warps=16, num_stages=1)
    found = nearby._in_vectors(given, 1e9, facts, GPU)  # any predicted time is alike
    assert (found.num_warps or 1) * GPU.warp_size == GPU.max_threads_per_block and found.reduction_loops == {rows: 32}


def test_chunks_double_until_a_row_is_whole_and_halve_to_a_warp() -> None:
    facts = CELLS["average_and_max"].kernel.bind(CELLS["average_and_max"].arguments("meta", False), target="h200").facts
    (rows,) = (axis.block_id for axis in facts.rolled_axes)
    sizes = {axis.block_id: 1 for axis in facts.tunable_axes}

    def chunks(size: int | None) -> set[int | None]:
        given = TritonProposal(reason="", block_sizes=sizes, reduction_loops={rows: size}, num_warps=8, num_stages=1)
        return {each.reduction_loops[rows] for each in nearby.steps(given, facts, GPU, few=True)}

    assert chunks(256) == {128, 256, 512} and chunks(1024) == {512, 1024, None}
    assert chunks(32) == {32, 64} and chunks(None) == {None}


def test_steps_of_single_elements_keep_their_rule() -> None:
    facts = CELLS["average_and_max"].kernel.bind(CELLS["average_and_max"].arguments("meta", False), target="h200").facts
    (rows,) = (axis.block_id for axis in facts.rolled_axes)
    sizes = {axis.block_id: 1 for axis in facts.tunable_axes}
    single = TritonProposal(reason="", block_sizes=sizes, reduction_loops={rows: 1}, num_warps=8, num_stages=1)
    assert with_nearby((single,), facts, GPU) == (single,)
    assert len(with_nearby((replace(single, reduction_loops={rows: 32}),), facts, GPU)) == 2


def test_running_means_take_columns_of_few_warps() -> None:
    """Measured on an H200: 32 columns in steps of 256 in 8 warps 133 us, 16 in steps of 64 in one warp 77."""
    cell = CELLS["running_features"]
    bound = cell.kernel.bind(cell.arguments("meta", False), target="h200")
    assert bound.default_config()["num_warps"] <= 4
    x = torch.randn(2, 37, 20)
    torch.testing.assert_close(cell.kernel(x), cell.reference(x).to(x.dtype))


def test_whole_rows_of_a_step_have_warps_for_their_registers() -> None:
    """Measured on an H200: 16 rows of 80 in 4 warps 129 us, 128 in 16 warps 67."""
    cell = CELLS["masked_huber"]
    bound = cell.kernel.bind(cell.arguments("meta", False), target="h200")
    first, config = bound.seeds[0], bound.default_config()
    assert first.config == config and config["num_warps"] >= 8 and config["reduction_loops"] == [None]
    assert config["block_sizes"][0] * 128 <= 32 * 32 * config["num_warps"]
