"""Tiles and orders of programs of kernels whose grid is more than rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl
from benchmarks.unfitted import CELLS
from helion.backends.triton.heuristics.program_order import beside_pieces, near_rows
from helion.backends.triton.proposal import TritonProposal
from helion.hardware import target

BF16, FP32 = torch.bfloat16, torch.float32


@helion.kernel
def thresholds(x: torch.Tensor, limits: torch.Tensor) -> torch.Tensor:
    """Numbers of the elements of each row that exceed each limit."""
    rows, columns = x.size()
    out = torch.empty([rows, limits.size(0)], dtype=torch.int32, device=x.device)
    for tile, limit in hl.tile([rows, limits.size(0)], block_size=[None, 1]):
        count = hl.zeros([tile])
        for part in hl.tile(columns):
            count += (x[tile, part] > limits[limit.begin]).to(torch.float32).sum(1)
        out[tile, limit.begin] = count.to(torch.int32)
    return out


@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_programs_of_the_same_rows_follow_each_other(gpu: str) -> None:
    args = (tensor(8192, 8192, dtype=FP32), tensor(20, dtype=FP32))
    bound = thresholds.bind(args, target=gpu)
    config = bound.default_config()
    assert config["loop_orders"] == [[1, 0]]
    rows_apart = bound._analysis.predict(bound.config_spec.normalize({**config, "loop_orders": [[0, 1]]}))
    assert bound._analysis.predict(config).time_us < 0.85 * rows_apart.time_us
    assert bound.seeds[0].reason.endswith("programs of the same rows together")


def test_rows_that_the_cache_holds_keep_their_order() -> None:
    bound = thresholds.bind((tensor(512, 4096, dtype=FP32), tensor(20, dtype=FP32)), target="h200")
    assert bound.default_config()["loop_orders"] == [[0, 1]]


def test_results_do_not_depend_on_the_order() -> None:
    x, limits = torch.randn(63, 100), torch.randn(5)
    expected = (x[:, None] > limits[None, :, None]).sum(-1).to(torch.int32)
    for order in ([0, 1], [1, 0]):
        config = helion.Config(block_sizes=[16, 32], loop_orders=[order], num_warps=1)
        assert torch.equal(thresholds.bind((x, limits)).compile_config(config)(x, limits), expected)


def test_an_order_that_is_proposed_stays() -> None:
    bound = thresholds.bind((tensor(8192, 8192, dtype=FP32), tensor(20, dtype=FP32)), target="h200")
    facts, gpu = bound._analysis.facts, target("h200")
    plain = TritonProposal(reason="rows", block_sizes={0: 1, 2: 1024}, num_warps=4)
    assert near_rows(plain, facts, gpu).loop_orders == {0: (1, 0)}
    ordered = replace(plain, loop_orders={0: (0, 1)})
    assert near_rows(ordered, facts, gpu) is ordered
    grouped = replace(plain, l2_groupings={0: 4})
    assert near_rows(grouped, facts, gpu) is grouped


@helion.kernel
def summed_edges(x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    """Sums of the rows of each edge's source at its target."""
    out = torch.zeros([x.size(0), x.size(1)], dtype=torch.float32, device=x.device)
    for tile, columns in hl.tile([edges.size(1), x.size(1)]):
        hl.atomic_add(out, [edges[1, tile], columns], x[edges[0, tile], columns].to(torch.float32))
    return out


@pytest.mark.parametrize("width", [64, 100])
def test_rows_of_indices_do_not_shorten_rows_of_elements(width: int) -> None:
    args = (tensor(100000, width, dtype=BF16), tensor(2, 500000, dtype=torch.int64))
    edges, columns = summed_edges.bind(args, target="h200").default_config()["block_sizes"]
    assert columns >= 32 and edges * columns >= 1024


def test_a_run_of_many_dimensions_is_not_divided_for_each_load() -> None:
    cell = CELLS["kron_matrices"]
    config = cell.kernel.bind(cell.arguments("meta", False), target="h200").default_config()
    assert config["flatten_loops"] == [False] and config["loop_orders"] == [[4, 3, 2, 1, 0]]


@pytest.mark.parametrize("name", ["middle_softmax", "channels_first_norm", "perceptual_distance"])
def test_neighbours_of_reduced_columns_are_along_contiguous_memory(name: str) -> None:
    """Measurement ``columns_in_order``."""
    cell = CELLS[name]
    bound = helion.kernel(cell.kernel.fn, backend="triton").bind(cell.arguments("meta", False), target="h200")
    assert bound.seeds[0].heuristic == "TritonColumnReductionHeuristic"
    assert bound.default_config()["loop_orders"] == [[1, 0]]


def test_a_tile_of_all_columns_has_no_neighbours_along_them() -> None:
    kernel = helion.kernel(CELLS["middle_softmax"].kernel.fn, backend="triton")
    bound = kernel.bind((tensor(4096, 1000, 16),), target="h200")
    assert bound.seeds[0].heuristic == "TritonColumnReductionHeuristic"
    assert bound.default_config()["loop_orders"] == [[0, 1]]


@pytest.mark.parametrize(
    ("name", "order"), [("chunk_scan", (2, 3, 1, 0)), ("blocks_times", None), ("packed_scores", None)]
)
def test_programs_along_short_pieces_of_rows(name: str, order: tuple[int, ...] | None) -> None:
    """Heads of 128 bytes lie between rows of a tile; the other kernels have whole rows, or heads apart."""
    bound = CELLS[name].kernel.bind(CELLS[name].arguments("meta", False), target="h200")
    plain = TritonProposal(reason="plain", num_warps=4, num_stages=1)
    made = beside_pieces(plain, bound.facts)
    assert made.loop_orders == ({} if order is None else {0: order})
    assert beside_pieces(replace(plain, pid_type="xyz"), bound.facts).loop_orders == {}


@helion.kernel(backend="triton")
def group_norm(x: torch.Tensor, groups: hl.constexpr) -> torch.Tensor:
    """Norm of groups of channels `[N, S, G, W]`: pieces of rows of all channels."""
    n, s, c = x.size()
    out = torch.empty_like(x)
    parts, result = x.view(n, s, groups, c // groups), out.view(n, s, groups, c // groups)
    for image, group in hl.grid([n, groups]):
        total, squares = hl.zeros([]), hl.zeros([])
        for rows in hl.tile(s):
            v = parts[image, rows, group, :].float()
            total += v.sum()
            squares += (v * v).sum()
        mean = total / (s * (c // groups))
        inverse = torch.rsqrt(squares / (s * (c // groups)) - mean * mean + 1e-5)
        for rows in hl.tile(s):
            result[image, rows, group, :] = ((parts[image, rows, group, :].float() - mean) * inverse).to(x.dtype)
    return out


@pytest.mark.parametrize(("groups", "order"), [(32, [[1, 0]]), (16, [[1, 0]]), (1, [[0, 1]])])
def test_groups_of_channels_follow_each_other(groups: int, order: list[list[int]]) -> None:
    """Programs of neighbouring groups share lines of memory; one group of all channels has no neighbour."""
    x = torch.empty([16, 4096, 320], device="meta", dtype=torch.bfloat16)
    assert group_norm.bind((x, groups), target="h200").default_config()["loop_orders"] == order


def test_groups_in_any_order_are_right() -> None:
    x = torch.randn(2, 37, 30)
    expected = torch.nn.functional.group_norm(x.transpose(1, 2), 3).transpose(1, 2)
    for order in ([0, 1], [1, 0]):
        kernel = helion.kernel(group_norm.fn, config=helion.Config(block_sizes=[16, 32], loop_orders=[order]))
        torch.testing.assert_close(kernel(x, 3), expected, atol=1e-4, rtol=1e-4)
