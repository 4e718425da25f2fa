"""Tiles of kernels that store results of each tile, which host code combines: small tiles write as much as they read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from benchmarks.unfitted import CELLS
from helion._compiler.facts.records import KernelFacts
from helion.backends.triton.resources.traffic import read_after_bytes, work
from helion.hardware import target as target_of
from helion.runtime.bound import BoundKernel

IGNORED = [helion.exc.TensorOperationInWrapper]
BF16 = torch.bfloat16


def sums_of_columns(x: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    block = hl.register_block_size(m)
    parts = torch.empty([helion.cdiv(m, block), n], dtype=torch.float32, device=x.device)
    for rows, columns in hl.tile([m, n], block_size=[block, None]):
        parts[rows.id, columns] = x[rows, columns].to(torch.float32).sum(0)
    return parts.sum(0)


def sums_of_columns_eager(x: torch.Tensor) -> torch.Tensor:
    return x.sum(0)


def sums_of_whole_rows(x: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    block = hl.register_block_size(m)
    parts = torch.empty([helion.cdiv(m, block), n], dtype=torch.float32, device=x.device)
    for rows in hl.tile(m, block_size=block):
        parts[rows.id, :] = x[rows, :].to(torch.float32).sum(0)
    return parts.sum(0)


def norms_and_largest(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    m, n = x.size()
    block = hl.register_block_size(m)
    norms = torch.empty([m], device=x.device)
    tops = torch.empty([helion.cdiv(m, block), n], dtype=torch.float32, device=x.device)
    for rows in hl.tile(m, block_size=block):
        squares = hl.zeros([rows])
        for columns in hl.tile(n):
            values = x[rows, columns].to(torch.float32)
            squares += (values * values).sum(-1)
            tops[rows.id, columns] = values.abs().amax(0)
        norms[rows] = squares.sqrt()
    return norms, tops.amax(0)


def norms_and_largest_eager(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.square().sum(1).sqrt(), x.abs().amax(0)


def softmax_and_sums(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    m, n = x.size()
    block = hl.register_block_size(m)
    out = torch.empty_like(x)
    parts = torch.empty([helion.cdiv(m, block), n], dtype=torch.float32, device=x.device)
    for rows in hl.tile(m, block_size=block):
        values = torch.softmax(x[rows, :].to(torch.float32), -1)
        out[rows, :] = values.to(x.dtype)
        parts[rows.id, :] = values.sum(0)
    return out, parts.sum(0)


def softmax_and_sums_eager(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values = torch.softmax(x, -1)
    return values, values.sum(0)


def added_in_the_kernel(x: torch.Tensor) -> torch.Tensor:
    """A second grid loop loads the parts, which no host code reads."""
    m, n = x.size()
    block = hl.register_block_size(m)
    parts = torch.empty([helion.cdiv(m, block), n], dtype=torch.float32, device=x.device)
    out = torch.empty([n], dtype=torch.float32, device=x.device)
    for rows, columns in hl.tile([m, n], block_size=[block, None]):
        parts[rows.id, columns] = x[rows, columns].to(torch.float32).sum(0)
    hl.barrier()
    for columns in hl.tile(n):
        total = hl.zeros([columns])
        for part in hl.tile(parts.size(0)):
            total += parts[part, columns].sum(0)
        out[columns] = total
    return out


KERNELS = (
    (sums_of_columns, sums_of_columns_eager),
    (sums_of_whole_rows, sums_of_columns_eager),
    (norms_and_largest, norms_and_largest_eager),
    (softmax_and_sums, softmax_and_sums_eager),
)


def bound_for(function: Callable[..., Any], target: str, *shape: int) -> BoundKernel:
    kernel = helion.kernel(function, ignore_warnings=IGNORED)
    return kernel.bind((torch.empty(shape, dtype=BF16, device="meta"),), target=target)


def sizes_of(kernel: BoundKernel) -> dict[int, int]:
    return dict(kernel.config_spec.sizes(kernel.default_config()))


@pytest.mark.parametrize("target", ["h200", "b200", "a100"])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda pair: pair[0].__name__)
def test_results_of_tiles_are_no_larger_than_what_is_read(kernel: tuple[Callable[..., Any], Any], target: str) -> None:
    for shape in ((8192, 11008), (65536, 1024), (1000, 50257)):
        found = bound_for(kernel[0], target, *shape)
        loaded = 2 * shape[0] * shape[1]
        share = read_after_bytes(found.facts, sizes_of(found)) / loaded
        # one row of each tile would be twice the bytes of the elements
        assert share <= (1.0 if kernel[0] is sums_of_whole_rows else 0.5), (shape, found.default_config())


def test_a_seed_says_why_it_has_more_rows() -> None:
    first, rule, *_ = bound_for(norms_and_largest, "h200", 8192, 11008).seeds
    assert first.reason.startswith(rule.reason) and "leave fewer results of tiles" in first.reason
    assert first.predicted.time_us <= 0.85 * rule.predicted.time_us


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda pair: pair[0].__name__)
def test_their_tiles_compute_the_same(kernel: tuple[Callable[..., Any], Callable[..., Any]]) -> None:
    """With the tiles that large tensors have, and rows out of range in the last one."""
    tiles = bound_for(kernel[0], "h200", 8192, 11008).default_config()
    for shape in ((63, 1000), (130, 257)):
        x = torch.randn(shape, dtype=BF16)
        result = helion.kernel(kernel[0], ignore_warnings=IGNORED, config=tiles)(x)
        expected = kernel[1](x.double())
        results, all_expected = (each if isinstance(each, tuple) else (each,) for each in (result, expected))
        for each, wanted in zip(results, all_expected, strict=True):
            rough = 1e-2 if each.dtype == BF16 else 1e-4
            torch.testing.assert_close(each.double(), wanted, rtol=rough, atol=rough)


def facts_of_columns() -> KernelFacts:
    return bound_for(sums_of_columns, "h200", 8192, 11008).facts


def test_bytes_of_results_grow_as_tiles_shrink() -> None:
    facts, gpu = facts_of_columns(), target_of("h200")
    rows, columns = facts.grid_axes
    read = [read_after_bytes(facts, {rows: size, columns: 1024}) for size in (1, 8, 64)]
    assert read == [4 * 11008 * (8192 // size) for size in (1, 8, 64)]
    moved = [work(facts, {rows: size, columns: 1024}, 4, gpu).bytes_moved for size in (1, 8, 64)]
    assert moved == [2 * 8192 * 11008 + bytes_ for bytes_ in read]


def test_what_the_kernel_loads_is_not_read_by_the_host() -> None:
    facts = bound_for(added_in_the_kernel, "h200", 8192, 11008).facts
    assert any(op.per_tile for op in facts.memory_ops)
    assert read_after_bytes(facts, dict.fromkeys(range(len(facts.axes)), 16)) == 0


def test_the_predicted_time_includes_what_host_code_reads() -> None:
    """Of few results, the time is that of the L2 cache."""
    inside, outside = (bound_for(each, "h200", 8192, 11008) for each in (sums_of_columns, sums_of_columns_kept))
    for rows, least in ((1, 60.0), (8, 2.0), (64, 0.1)):
        config = {"block_sizes": [rows, 1024], "num_warps": 8}
        us = [each._analysis.predict(each._analysis.full_config(config)).time_us for each in (inside, outside)]
        assert least < us[0] - us[1] < 2 * 1e-3 * 4 * 11008 * (8192 // rows) / 4.8


def sums_of_columns_kept(x: torch.Tensor) -> torch.Tensor:
    """The same for parts of a constant number of rows, which no choice of tiles changes."""
    m, n = x.size()
    parts = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for rows, columns in hl.tile([m, n]):
        parts[rows.id, columns] = x[rows, columns].to(torch.float32).sum(0)
    return parts


@pytest.mark.parametrize("name", ["rms_norm_gradient", "greedy_head", "head_margin", "long_prefix_sums"])
def test_measured_kernels_keep_their_tiles(name: str) -> None:
    found = CELLS[name].kernel.bind(CELLS[name].arguments("meta", False), target="h200")
    assert any(op.per_tile for op in found.facts.memory_ops)
    assert not any("results of tiles" in seed.reason for seed in found.seeds)
