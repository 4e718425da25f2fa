"""Orders of programs that share more than the L2 cache holds."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl
from benchmarks.general import batched_matmul
from benchmarks.unfitted import CELLS
from benchmarks.workloads.products import (
    aligned_experts,
    block_sparse_product,
    gaussian_affinity,
    packed_geglu,
    routed_experts,
)
from helion.backends.triton.heuristics.families.matmul import grid_order
from helion.backends.triton.heuristics.families.matmul.extents import Extents
from helion.backends.triton.heuristics.families.matmul.grid_order import ordered
from helion.backends.triton.heuristics.families.matmul.tiles import single_product, sizer_as_written
from helion.backends.triton.heuristics.predicted_time import proposal_us
from helion.backends.triton.proposal import TritonProposal
from helion.backends.triton.resources.time.demand import rereads_depend_on_groups
from helion.hardware import target

BF16, INT32 = torch.bfloat16, torch.int32


def test_rows_of_many_experts_are_read_by_all_columns_at_once() -> None:
    args = (tensor(16384, 2048, dtype=BF16), tensor(32, 1536, 2048, dtype=BF16), tensor(16384, dtype=torch.int64))
    kernel = aligned_experts.bind((*args, tensor(256, dtype=INT32)), target="h200")
    config = kernel.default_config()
    assert config["loop_orders"] == [[1, 0]] and config["block_sizes"] == [256, 64] and config["num_warps"] == 4
    assert set(config["indexing"]) == {"pointer"}  # threads that gather rows wait for both otherwise
    rows_first = kernel._analysis.predict(kernel._analysis.full_config({**config, "loop_orders": [[0, 1]]}))
    assert kernel._analysis.predict(config).time_us < 0.9 * rows_first.time_us


@pytest.mark.parametrize(
    ("tokens", "experts", "k", "n", "chosen"), [(8192, 64, 2048, 1408, 6), (4096, 8, 4096, 3584, 2)]
)
def test_many_rows_of_an_expert_are_multiplied_by_what_is_read_of_its_matrix(
    tokens: int, experts: int, k: int, n: int, chosen: int
) -> None:
    args = (tensor(tokens, k, dtype=BF16), tensor(experts, k, n, dtype=BF16))
    kernel = routed_experts.bind(
        (*args, tensor(tokens * chosen, dtype=INT32), tensor(experts + 1, dtype=INT32)), target="h200"
    )
    _, rows, _ = kernel.default_config()["block_sizes"]
    assert rows == 256


@helion.kernel
def _blocks_of_experts(x: torch.Tensor, w: torch.Tensor, expert_of: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), w.size(1)], dtype=x.dtype, device=x.device)
    for rows, columns in hl.tile([x.size(0), w.size(1)], block_size=[64, None]):
        e = expert_of[rows.id]
        acc = hl.zeros([rows, columns])
        for inner in hl.tile(x.size(1)):
            acc = hl.dot(x[rows, inner], w[e, columns, inner].T, acc=acc)
        out[rows, columns] = acc.to(x.dtype)
    return out


def test_weights_beside_rows_in_their_order_have_a_descriptor() -> None:
    args = (tensor(16384, 2048, dtype=BF16), tensor(32, 1536, 2048, dtype=BF16), tensor(256, dtype=INT32))
    config = _blocks_of_experts.bind(args, target="h200").default_config()
    assert config["block_sizes"] == [256, 64] and "tensor_descriptor" in config["indexing"]


def test_an_operand_that_two_products_read_is_staged_once() -> None:
    args = (tensor(8192, 4096, dtype=BF16), tensor(4096, 22016, dtype=BF16), tensor(22016, dtype=BF16))
    config = packed_geglu.bind(args, target="h200").default_config()
    assert config["block_sizes"] == [128, 128, 64] and config["num_stages"] == 4 and config["l2_groupings"] > [1]


def test_an_order_that_is_proposed_stays() -> None:
    args = (tensor(4096, 1024, dtype=BF16), tensor(8, 2880, 1024, dtype=BF16), tensor(4096, dtype=torch.int64))
    kernel = aligned_experts.bind((*args, tensor(64, dtype=INT32)), target="h200")
    assert kernel.default_config()["loop_orders"] == [[0, 1]]  # all rows fit the cache
    given = TritonProposal(reason="", block_sizes={1: 128, 2: 64}, num_warps=4, num_stages=3, loop_orders={0: (1, 0)})
    assert ordered(kernel.facts, given, target("h200")) is given


def test_nothing_is_known_of_what_programs_share_where_data_says_what_they_read() -> None:
    args = (tensor(4096, 64, 64, dtype=BF16), tensor(4096, dtype=INT32), tensor(513, dtype=INT32))
    kernel = block_sparse_product.bind((*args, tensor(32768, 4096, dtype=BF16)), target="h200")
    assert all(seed.config["loop_orders"] == [[0, 1]] for seed in kernel.seeds)


def test_sums_beside_a_product_leave_room_for_a_second_program() -> None:
    args = (tensor(5000, 768, dtype=BF16), tensor(10000, 768, dtype=BF16), 0.5)
    config = gaussian_affinity.bind(args, target="h200").default_config()
    assert config["pid_type"] == "flat" and config["num_stages"] == 3 and config["l2_groupings"] == [8]


@pytest.mark.parametrize("gpu", ["h100", "a100", "mi300x"])
@pytest.mark.parametrize(("rows", "depth", "grouped"), [(1000, 512, False), (65536, 4096, True)])
def test_groups_of_rows_are_timed_only_where_the_cache_does_not_keep_what_programs_share(
    rows: int, depth: int, grouped: bool, gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = (tensor(rows, depth, dtype=BF16), tensor(depth, 2048, dtype=BF16), tensor(2048, dtype=BF16))
    kernel, device = packed_geglu.bind(args, target=gpu), target(gpu)
    rows_id, columns_id, depth_id = (axis.block_id for axis in kernel.facts.tunable_axes)
    tile = {rows_id: 64, columns_id: 64, depth_id: 32}
    given = TritonProposal(reason="", block_sizes=tile, num_warps=4, num_stages=3)
    times = {proposal_us(kernel.facts, replace(given, l2_groupings={0: n}), device) for n in (1, 4, 64)}
    assert rereads_depend_on_groups(kernel.facts, device) is grouped
    assert (len(times) > 1) is grouped
    timed = []
    monkeypatch.setattr(grid_order, "proposal_us", lambda facts, proposal, target: timed.append(proposal) or 1.0)
    ordered(kernel.facts, given, device)
    assert any(proposal.l2_groupings for proposal in timed) is (grouped and len(timed) > 0)
    assert len(timed) in ((0, 6) if grouped else (0, 2))  # trust in the order of programs is a row of data


def test_the_sizer_of_a_matmul_as_written_is_shared_by_its_heuristics() -> None:
    facts = packed_geglu.bind(
        (tensor(300, 512, dtype=BF16), tensor(512, 1024, dtype=BF16), tensor(1024, dtype=BF16)), target="h100"
    ).facts
    extents = single_product(facts)
    assert isinstance(extents, Extents)
    assert sizer_as_written(facts, extents, target("h100")) is sizer_as_written(facts, extents, target("h100"))
    others = sizer_as_written(replace(facts), extents, target("h100")), sizer_as_written(facts, extents, target("h200"))
    assert len({id(each) for each in (sizer_as_written(facts, extents, target("h100")), *others)}) == 3


@helion.kernel
def _scores(q: torch.Tensor, k: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    b, h, t, d = q.size()
    for tile_b, tile_h, tile_m, tile_n in hl.tile([b, h, t, k.size(2)], block_size=[1, 1, None, None]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_d in hl.tile(d):
            left = q[tile_b.begin, tile_h.begin, tile_m, tile_d]
            head = tile_h.begin if k.size(1) > 1 else 0
            acc = torch.addmm(acc, left, k[tile_b.begin, head, tile_n, tile_d].T)
        out[tile_b.begin, tile_h.begin, tile_m, tile_n] = acc.to(out.dtype)
    return out


@pytest.mark.parametrize(
    ("keys", "heads", "along"), [(577, 12, True), (4097, 12, True), (576, 12, False), (63, 12, False), (577, 1, False)]
)
@pytest.mark.parametrize("gpu", ["h200", "a100", "mi300x"])
def test_rows_of_a_batch_that_begin_within_sectors_are_written_one_after_the_other(
    keys: int, heads: int, along: bool, gpu: str
) -> None:
    args = (tensor(64, 12, 577, 40, dtype=BF16), tensor(64, heads, keys, 40, dtype=BF16))
    kernel = _scores.bind((*args, tensor(64, 12, 577, keys, dtype=BF16)), target=gpu)
    assert (kernel.default_config()["loop_orders"] == [[3, 2, 1, 0]]) is along


@pytest.mark.parametrize(("name", "order"), [("doubled_by_weights", [4, 3, 2, 1, 0]), ("mix_tokens", [2, 3, 1, 0])])
def test_programs_of_grids_of_many_axes_follow_those_that_share_an_operand(name: str, order: list[int]) -> None:
    kernel = CELLS[name].kernel.bind(CELLS[name].arguments("meta", False), target="h200")
    config = kernel.default_config()
    assert config["loop_orders"] == [order] and config["l2_groupings"] == [1]
    as_written = kernel._analysis.full_config({**config, "loop_orders": [sorted(order)]})
    assert kernel._analysis.predict(config).time_us < 0.97 * kernel._analysis.predict(as_written).time_us


@pytest.mark.parametrize(("rows", "k", "order"), [(577, 577, [2, 1, 0]), (577, 576, [0, 1, 2]), (64, 577, [0, 1, 2])])
def test_batches_of_rows_that_begin_anywhere_follow_each_other(rows: int, k: int, order: list[int]) -> None:
    args = (tensor(64, rows, k, dtype=BF16), tensor(64, k, 64, dtype=BF16))
    assert batched_matmul.bind(args, target="h200").default_config()["loop_orders"] == [order]


def test_groups_of_the_first_axis_are_of_rows_and_not_of_a_batch() -> None:
    cell = CELLS["grouped_pointwise"]
    kernel = cell.kernel.bind(cell.arguments("meta", False), target="h200")
    assert all(seed.config["l2_groupings"] == [1] for seed in kernel.seeds)
    rows = (tensor(16384, 512, dtype=BF16), tensor(512, 1024, dtype=BF16), tensor(1024, dtype=BF16))
    assert packed_geglu.bind(rows, target="h200").default_config()["l2_groupings"] > [1]


@pytest.mark.parametrize("gpu", ["h200", "h100"])
def test_products_with_all_of_k_have_an_order_too(gpu: str) -> None:
    cell = CELLS["rotated_int8"]
    kernel = cell.kernel.bind(cell.arguments("meta", False), target=gpu)
    config = kernel.default_config()
    assert config["loop_orders"] == [[1, 0]]
    as_written = kernel._analysis.full_config({**config, "loop_orders": [[0, 1]]})
    assert kernel._analysis.predict(config).time_us < 0.97 * kernel._analysis.predict(as_written).time_us


@pytest.mark.parametrize(
    ("gpu", "depth", "k"), [("h200", 40, 64), ("h200", 64, 64), ("h200", 80, 128), ("h200", 136, 32), ("h100", 24, 32)]
)
def test_a_k_of_two_lines_or_less_is_one_step(gpu: str, depth: int, k: int) -> None:
    args = (tensor(64, 12, 576, depth, dtype=BF16), tensor(64, 12, 576, depth, dtype=BF16))
    kernel = _scores.bind((*args, tensor(64, 12, 576, 576, dtype=BF16)), target=gpu)
    assert kernel.default_config()["block_sizes"][-1] == k


@pytest.mark.parametrize(("experts", "order"), [(32, [2, 1, 0]), (8, [0, 1, 2])])
def test_matrices_of_a_batch_follow_each_other_where_an_operand_exceeds_the_cache(
    experts: int, order: list[int]
) -> None:
    args = (tensor(experts, 512, 2048, dtype=BF16), tensor(experts, 1408, 2048, dtype=BF16))
    kernel = CELLS["capacity_experts"].kernel
    bound = kernel.bind((*args, tensor(experts, 1408, dtype=BF16), tensor(experts, dtype=INT32)), target="h200")
    assert math.prod(args[1].shape) * 2 > target("h200").l2_bytes or experts == 8
    assert bound.default_config()["loop_orders"] == [order]


@pytest.mark.parametrize(("name", "tile"), [("doubled_by_weights", [64, 256, 32]), ("packed_scores", [64, 128, 64])])
def test_large_batches_of_many_steps_have_a_pipeline(name: str, tile: list[int]) -> None:
    kernel = CELLS[name].kernel.bind(CELLS[name].arguments("meta", False), target="h200")
    config = kernel.default_config()
    assert config["block_sizes"] == tile and config["num_stages"] == (3 if name == "doubled_by_weights" else 2)


@helion.kernel
def _projections(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    b, h, t, k = x.size()
    out = torch.empty([b, h, t, w.size(2)], dtype=x.dtype, device=x.device)
    for tile_b, tile_h, rows, columns in hl.tile([b, h, t, w.size(2)], block_size=[1, 1, None, None]):
        acc = hl.zeros([rows, columns])
        for inner in hl.tile(k):
            left = x[tile_b.begin, tile_h.begin, rows, inner]
            acc = torch.addmm(acc, left, w[tile_h.begin, inner, columns])
        out[tile_b.begin, tile_h.begin, rows, columns] = torch.relu(acc).to(x.dtype)
    return out


@pytest.mark.parametrize(("depth", "tile", "stages"), [(512, [128, 128, 64], 3), (128, [64, 128, 128], 2)])
def test_rows_of_a_large_batch_double_where_the_model_says_so(depth: int, tile: list[int], stages: int) -> None:
    args = (tensor(48, 16, 128, depth, dtype=BF16), tensor(16, depth, 256, dtype=BF16))
    config = _projections.bind(args, target="h200").default_config()
    assert (config["block_sizes"], config["num_stages"]) == (tile, stages)
