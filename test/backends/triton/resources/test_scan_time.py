"""Predicted times of scans: combinations of runs, lanes and warps, and the code that they unroll to."""

from __future__ import annotations

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl
from benchmarks.unseen.rows import row_running_sum
from helion.backends.triton.resources.time.demand import demands
from helion.backends.triton.resources.time.launch import launch_of
from helion.backends.triton.resources.time.record import Demand
from helion.hardware import target

H200 = target("h200")
BF16 = torch.bfloat16


def log_add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    top = torch.maximum(a, b)
    return top + torch.log1p(torch.exp(torch.minimum(a, b) - top))


@helion.kernel
def running_logs(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.size(), dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = hl.associative_scan(log_add, x[tile, :].to(torch.float32), dim=1)
    return out


@helion.kernel
def column_running_sum(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(1)):
        out[:, tile] = hl.cumsum(x[:, tile].to(torch.float32), 0).to(x.dtype)
    return out


def demand(bound: helion.BoundKernel, **config: object) -> Demand:
    full = bound.config_spec.normalize(config)
    analysis = bound._analysis
    (found,) = demands(analysis.facts, launch_of(bound.config_spec.decode(full)), analysis.predict(full), H200)
    return found


def microseconds(bound: helion.BoundKernel, **config: object) -> float:
    return bound._analysis.predict(bound.config_spec.normalize(config)).time_us


def test_lanes_and_warps_combine_each_run_of_a_thread() -> None:
    bound = row_running_sum.bind((tensor(4096, 8192, dtype=torch.float32),), target=H200)
    four, one = (demand(bound, block_sizes=[1], reduction_loops=[None], num_warps=warps) for warps in (4, 1))
    # 16 runs of 4 elements of each thread; the code for sm_90 has 254 additions (measurement ``scanned_rows``)
    additions = 16 * 3 + 16 * (5 + 4) + 64
    assert four.code == pytest.approx(0.7 * (additions + 16 * (5 + 4))) and four.barriers == 2 and four.exchanges == 1
    assert four.chained_cycles == 16 * (5 + 1) * 30
    assert four.straight_issue == pytest.approx(4 * four.code)
    assert not one.barriers and not one.exchanges and one.straight_issue < four.straight_issue / 1.2


def test_rows_that_begin_anywhere_combine_each_element_alone() -> None:
    aligned, odd = (running_logs.bind((tensor(8192, n, dtype=BF16),), target=H200) for n in (4096, 4095))
    whole = {"block_sizes": [1], "reduction_loops": [None], "num_warps": 4}
    assert demand(odd, **whole).code > 2 * demand(aligned, **whole).code
    few, many = (demand(odd, block_sizes=[1], reduction_loops=[512], num_warps=warps) for warps in (1, 8))
    assert many.looped_issue > 1.8 * few.looped_issue


def test_elements_out_of_range_of_all_threads_are_no_code() -> None:
    """Of 64 elements of a thread of a row of 4097, 33 are in range: the code for sm_90 has 328 additions."""
    bound = row_running_sum.bind((tensor(4096, 4097, dtype=torch.float32),), target=H200)
    whole = demand(bound, block_sizes=[1], reduction_loops=[None], num_warps=4)
    assert whole.code == pytest.approx(0.7 * (33 * (5 + 4 + 1) + 33 * (5 + 4)))


def test_threads_along_columns_scan_alone() -> None:
    bound = column_running_sum.bind((tensor(16, 8192, dtype=BF16),), target=H200)
    wide, narrow = (demand(bound, block_sizes=[n], reduction_loops=[None], num_warps=1) for n in (256, 16))
    # lanes along 256 columns leave all rows to each thread; of 16 columns, 16 lanes share a row
    assert not wide.shuffles and not wide.barriers and narrow.shuffles and not narrow.chained_cycles
    assert wide.straight_issue / 256 < narrow.straight_issue / 16
    assert demand(bound, block_sizes=[256], reduction_loops=[None], num_warps=4).barriers


def test_code_beyond_the_instruction_cache_is_fetched_again() -> None:
    """Measured on an H200 for fp16 (``scanned_rows``): 2625 µs in chunks of 4096, 457 in chunks of 512."""
    bound = running_logs.bind((tensor(8192, 4097, dtype=BF16),), target=H200)
    long, short = ({"block_sizes": [1], "reduction_loops": [n], "num_warps": 4} for n in (4096, 512))
    assert microseconds(bound, **long) > 4 * microseconds(bound, **short)
    assert demand(bound, **long).code == pytest.approx(8 * demand(bound, **short).code)
    assert demand(bound, **long).code_runs == 2 and demand(bound, **short).code_runs == 9


def test_polynomials_count_in_each_combination() -> None:
    (fact,) = running_logs.bind((tensor(64, 100, dtype=BF16),), target=H200).facts.scans
    assert fact.polynomials == 1 and fact.sfu_ops >= 2 and fact.ops > 4
    (fact,) = row_running_sum.bind((tensor(64, 100, dtype=torch.float32),), target=H200).facts.scans
    assert (fact.ops, fact.sfu_ops, fact.polynomials) == (1, 0, 0)
