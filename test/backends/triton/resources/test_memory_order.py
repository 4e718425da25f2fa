"""Predicted memory traffic by the order of programs and by eviction policies."""

from __future__ import annotations

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl
from benchmarks.holdout import power_mean
from benchmarks.unfitted import CELLS
from benchmarks.workloads.gathers import bilinear_samples
from benchmarks.workloads.rows import unit_columns
from helion.backends.triton.resources.time.demand import demands
from helion.backends.triton.resources.time.launch import launch_of
from helion.backends.triton.resources.time.record import Demand
from helion.hardware import target

H100 = target("h100")
BLOCKS = {"pid_type": "persistent_blocked", "num_sm_multiplier": 2}


def demand(bound: helion.BoundKernel, **config: object) -> Demand:
    full = bound.config_spec.normalize(config)
    analysis = bound._analysis
    (found,) = demands(analysis.facts, launch_of(bound.config_spec.decode(full)), analysis.predict(full), H100)
    return found


def memory(bound: helion.BoundKernel, **config: object) -> float:
    return dict(bound._analysis.predict(bound.config_spec.normalize(config)).units)["memory"]


def test_programs_with_blocks_of_tiles_are_anywhere_along_fast_axes() -> None:
    """They select from as many images at once as neighbours do whose images change fastest."""
    images, points = (tensor(*sizes, dtype=torch.float32) for sizes in ((8, 128, 128, 256), (8, 16384, 2)))
    bound = bilinear_samples.bind((images, points), target=H100)
    tile = {"block_sizes": [8, 256], "num_warps": 4}
    of_one = memory(bound, **tile, loop_orders=[[2, 1, 0]])
    assert memory(bound, **tile, **BLOCKS) > 1.5 * of_one


def test_programs_with_blocks_of_tiles_share_no_lines_with_neighbours() -> None:
    """Measurement ``blocks_of_tiles``."""
    bound = unit_columns.bind(
        (tensor(4096, 11008, dtype=torch.bfloat16), tensor(11008, dtype=torch.bfloat16)), target=H100
    )
    tile = {"block_sizes": [16, 512, 4096], "num_warps": 32}
    neighbours = demand(bound, **tile, pid_type="persistent_interleaved")
    assert demand(bound, **tile, **BLOCKS).scattered_bytes > 2 * neighbours.scattered_bytes


@helion.kernel(backend="triton")
def norms(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile, :].abs().sum(-1)
    return out


@helion.kernel(backend="triton")
def deviations(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        mean = x[tile, :].mean(-1)
        out[tile] = (x[tile, :] - mean[:, None]).abs().sum(-1)
    return out


@pytest.mark.parametrize(("kernel", "counted"), [(norms, False), (deviations, True)])
def test_policies_change_only_what_is_read_again(kernel: helion.Kernel, counted: bool) -> None:
    """Measurement ``read_once``."""
    bound = kernel.bind((tensor(4096, 65536, dtype=torch.float32),), target=H100)
    policies = len(bound.config_spec.default_config()["load_eviction_policies"])
    found = demand(bound, block_sizes=[1], reduction_loops=[4096], load_eviction_policies=["first"] * policies)
    assert (found.first_bytes > 0) == counted


def test_a_policy_of_the_only_read_takes_no_time() -> None:
    bound = power_mean.bind((tensor(64, 512, 784, dtype=torch.bfloat16),), target=H100)
    loop = {"block_sizes": [4, 1], "reduction_loops": [256], "num_warps": 4}
    assert demand(bound, **loop) == demand(bound, **loop, load_eviction_policies=["last"])


@pytest.mark.parametrize(("kernel", "passes"), [(norms, 1), (deviations, 2)])
def test_later_passes_lose_what_leaves_the_cache_first(kernel: helion.Kernel, passes: int) -> None:
    """Measurement ``lost_passes``."""
    bound = kernel.bind((tensor(4096, 65536, dtype=torch.float32),), target=H100)
    policies = len(bound.config_spec.default_config()["load_eviction_policies"])
    found = demand(bound, block_sizes=[1], reduction_loops=[4096], load_eviction_policies=["first"] * policies)
    assert found.first_bytes == pytest.approx((passes - 1) * 65536 * 4)


@pytest.mark.parametrize(("rows", "spared"), [(1024, 1024 * 4096 * 2 / 8), (65536, 0.3 * H100.l2_bytes)])
def test_written_lines_stay_where_all_loads_leave_the_cache_first(rows: int, spared: float) -> None:
    """Not where rows are read again (measurement ``spared_lines``)."""
    tile = {"block_sizes": [1], "num_warps": 4}
    first = {**tile, "load_eviction_policies": ["first"]}
    once = norms.bind((tensor(rows, 4096),), target=H100)
    without, found = demand(once, **tile), demand(once, **first)
    assert (without.new_bytes - found.new_bytes) * rows == pytest.approx(spared)
    again = deviations.bind((tensor(rows, 4096),), target=H100)
    chunks = {"block_sizes": [1], "reduction_loops": [1024]}
    policies = len(again.config_spec.default_config()["load_eviction_policies"])
    kept = demand(again, **chunks, load_eviction_policies=["first"] * policies)
    assert kept.new_bytes == demand(again, **chunks).new_bytes


def test_masks_of_bits_keep_neighbours_near() -> None:
    cell = CELLS["compare_exchange"]
    bound = cell.kernel.bind(cell.arguments("meta", False), target="h200")
    (partner,) = (op for op in bound.facts.memory_ops if op.gathered)
    assert dict(partner.steps)[bound.facts.axes[1].block_id] == 1.0


@helion.kernel(backend="triton")
def shifted(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(out.size(0)):
        out[tile] = x[tile.index >> 2] + x[tile.index << 1]
    return out


def test_shifted_positions_are_scaled() -> None:
    bound = shifted.bind((tensor(8192), tensor(4096)), target="h200")
    loads = [op for op in bound.facts.memory_ops if op.kind == "load"]
    assert [[step for _, step in load.steps] for load in loads] == [[0.25], [2.0]]
