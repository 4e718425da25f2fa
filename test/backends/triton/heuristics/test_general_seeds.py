"""Seeds of kernels that are like none of the examples: other epilogues, columns reduced, chains of products, atomics."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest
import sample_kernels
import torch
from harness import tensor
from unseen_kernels import mean_over_time

import helion
import helion.language as hl
from benchmarks.mechanisms import one_hot_counts
from benchmarks.workloads.products import contrastive_loss
from helion.hardware import known_targets, target
from helion.runtime.bound import BoundKernel

BF16, FP32 = torch.bfloat16, torch.float32
GPUS = ("sm_80", "sm_90", "h200", "sm_100", "gfx942")


def sizes(bound: BoundKernel) -> dict[int, int]:
    return bound.config_spec.sizes(bound.seeds[0].config)


# --- kernels -------------------------------------------------------------------------------------------------------------

matmul = helion.kernel(sample_kernels.matmul)


@helion.kernel()
def norm_and_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The rows of an operand are summed up in the loop that multiplies them."""
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        squares = hl.zeros([tile_m], dtype=torch.float32)
        for tile_k in hl.tile(k):
            rows = x[tile_m, tile_k]
            squares += (rows.to(torch.float32) * rows.to(torch.float32)).sum(-1)
            acc = torch.addmm(acc, rows, y[tile_k, tile_n])
        out[tile_m, tile_n] = acc * torch.rsqrt(squares / k)[:, None]
    return out


@helion.kernel()
def norm_then_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The same in a loop of its own."""
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        squares = hl.zeros([tile_m], dtype=torch.float32)
        for tile_k in hl.tile(k):
            squares += (x[tile_m, tile_k].to(torch.float32) ** 2).sum(-1)
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc * torch.rsqrt(squares / k)[:, None]
    return out


@helion.kernel()
def split_k(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = y.size(1)
    out = torch.zeros([m, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n, span in hl.tile([m, n, k]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(span.begin, span.end):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        hl.atomic_add(out, [tile_m, tile_n], acc)
    return out


@helion.kernel()
def two_layers(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    k, n = hl.specialize(k), hl.specialize(second.size(1))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_h in hl.tile(first.size(1)):
            hidden = torch.relu(torch.mm(x[tile_m, :], first[:, tile_h]))
            acc = torch.addmm(acc, hidden, second[tile_h, :])
        out[tile_m, :] = acc
    return out


@helion.kernel()
def summed_rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Products whose rows are summed up: M is a whole dimension."""
    m, k = x.size()
    m = hl.specialize(m)
    out = torch.empty([y.size(1)], dtype=torch.float32, device=x.device)
    for tile_n in hl.tile(y.size(1)):
        acc = hl.zeros([m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[:, tile_k], y[tile_k, tile_n])
        out[tile_n] = acc.sum(0)
    return out


@helion.kernel()
def standardised_columns(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(1)):
        values = x[:, tile].to(torch.float32)
        centred = values - values.mean(0, keepdim=True)
        out[:, tile] = centred * torch.rsqrt((centred * centred).mean(0, keepdim=True))
    return out


@helion.kernel()
def column_sums(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(1)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(1)):
        acc = hl.zeros([tile], dtype=torch.float32)
        for rows in hl.tile(x.size(0)):
            acc += x[rows, tile].to(torch.float32).sum(0)
        out[tile] = acc
    return out


@helion.kernel()
def row_sums(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile, :].to(torch.float32).sum(-1)
    return out


@helion.kernel()
def histogram(x: torch.Tensor, bins: hl.constexpr = 16) -> torch.Tensor:
    out = torch.zeros([bins], dtype=torch.int32, device=x.device)
    for tile in hl.tile(x.size(0)):
        hl.atomic_add(out, [x[tile]], 1)
    return out


@helion.kernel()
def scattered_rows(ids: torch.Tensor, grad: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    for rows, columns in hl.tile(grad.size()):
        hl.atomic_add(out, [ids[rows], columns], grad[rows, columns].to(torch.float32))
    return out


@helion.kernel()
def jagged_sums(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([offsets.size(0) - 1, x.size(1)], dtype=torch.float32, device=x.device)
    for row in hl.tile(out.size(0)):
        begin = offsets[row]
        lengths = offsets[row.index + 1] - begin
        for column in hl.tile(x.size(1)):
            acc = hl.zeros([row, column], dtype=torch.float32)
            for at in hl.jagged_tile(lengths):
                acc = acc + x[begin[:, None] + at.index[None, :], column].to(torch.float32).sum(1)
            out[row, column] = acc
    return out


# --- products ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("kernel", [norm_and_product, norm_then_product])
def test_norms_of_operands_do_not_keep_a_product_from_its_tiles(kernel: helion.Kernel, gpu: str) -> None:
    bound = kernel.bind((tensor(4096, 2048), tensor(2048, 4096)), target=gpu)
    first, fact = bound.seeds[0], bound.facts.matmuls[0]
    assert first.heuristic == "TritonMatmulHeuristic" and first.config == bound.default_config()
    assert sizes(bound)[fact.m_axis] >= 64 and sizes(bound)[fact.n_axis] >= 64
    assert first.predicted.fits and first.predicted.spill_risk == 0


def test_a_loop_beside_the_product_walks_k_in_wider_tiles() -> None:
    bound = norm_then_product.bind((tensor(4096, 2048), tensor(2048, 4096)), target="sm_90")
    norm, product = (axis.block_id for axis in bound.facts.axes if not axis.on_grid)
    assert sizes(bound)[norm] == 128 and sizes(bound)[product] == 64


@pytest.mark.parametrize(("columns", "tile"), [(63, 64), (48, 64), (33, 64), (17, 32), (64, 64), (65, 64)])
def test_a_short_side_is_one_tile(columns: int, tile: int) -> None:
    bound = matmul.bind((tensor(32768, 512), tensor(512, columns)), target="sm_90")
    assert sizes(bound)[1] == tile


def test_parts_of_k_that_leave_sms_idle_get_smaller_tiles() -> None:
    bound = split_k.bind((tensor(16, 16384), tensor(16384, 512)), target="h200")
    programs = 512 // sizes(bound)[1] * (16384 // sizes(bound)[2])
    assert 0.8 * 132 <= programs <= 132


@pytest.mark.parametrize("gpu", known_targets())
def test_products_of_no_special_kind_have_a_default(gpu: str) -> None:
    for kernel, args in (
        (two_layers, (tensor(65536, 128), tensor(128, 512), tensor(512, 128))),
        (summed_rows, (tensor(256, 1024), tensor(1024, 4096))),
    ):
        bound = kernel.bind(args, target=gpu)
        (first,) = (seed for seed in bound.seeds if seed.config == bound.default_config())
        assert first.heuristic in ("TritonProductsHeuristic", "TritonProductsFirstHeuristic")
        assert any(seed.heuristic == "TritonProductsHeuristic" for seed in bound.seeds)
        assert first.predicted.fits and first.predicted.spill_risk == 0
        fact = bound.facts.matmuls[0]
        assert sizes(bound)[fact.m_axis] >= 16 and sizes(bound)[fact.n_axis] >= 16


def test_products_of_a_special_kind_are_left_to_their_rule() -> None:
    bound = matmul.bind((tensor(4096, 4096), tensor(4096, 4096)), target="sm_90")
    assert "TritonMatmulHeuristic promotes" in dict(bound.declined)["TritonProductsHeuristic"]


# --- columns -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize("kernel", [standardised_columns, column_sums])
def test_reductions_across_memory_take_vectors_of_columns(kernel: helion.Kernel, dtype: torch.dtype, gpu: str) -> None:
    columns = 4096 if kernel is standardised_columns else 32768  # fewer share their rows on an H200
    bound = kernel.bind((tensor(8192, columns, dtype=dtype),), target=gpu)
    first = bound.seeds[0]
    assert first.heuristic == "TritonColumnReductionHeuristic" and first.config == bound.default_config()
    assert 16 <= sizes(bound)[0] * dtype.itemsize <= 128
    assert first.predicted.fits and first.predicted.spill_risk == 0
    assert sizes(bound)[1] * sizes(bound)[0] <= 65536


def test_many_columns_take_whole_transactions() -> None:
    bound = column_sums.bind((tensor(4096, 65536),), target="sm_90")
    assert sizes(bound)[0] == 64


def test_rows_of_a_transposed_tensor_are_columns() -> None:
    bound = row_sums.bind((tensor(1024, 4096).t(),), target="sm_90")
    assert bound.seeds[0].heuristic == "TritonColumnReductionHeuristic"
    plain = row_sums.bind((tensor(4096, 1024),), target="sm_90")
    assert plain.seeds[0].heuristic == "TritonStreamingReductionHeuristic"
    assert "contiguous" in dict(plain.declined)["TritonColumnReductionHeuristic"]


@pytest.mark.parametrize("shape", [(64, 2048, 1024), (64, 512, 768)])
def test_steps_that_only_accumulate_prefetch_chunks_in_few_warps(shape: tuple[int, int, int]) -> None:
    """Rows ``late_bytes`` and ``late_stages`` of the tuned numbers: no step waits for other warps."""
    bound = mean_over_time.bind((tensor(*shape), tensor(*shape[:2], dtype=torch.bool)), target="h200")
    first = bound.seeds[0]
    assert first.heuristic == "TritonColumnReductionHeuristic" and first.config["num_warps"] == 4
    assert math.prod(sizes(bound).values()) == 64 * 128
    assert first.config["range_num_stages"] == [0, 3]


def test_two_layers_are_split_only_for_a_gain_as_large_as_that_of_one_matmul() -> None:
    bound = two_layers.bind((tensor(4096, 256), tensor(256, 1024), tensor(1024, 256)), target="h200")
    assert bound.seeds[0].config["split_k"] == 1 and bound.seeds[0].heuristic == "TritonProductsHeuristic"


def test_one_warp_group_reduces_the_rows_of_its_products() -> None:
    """Row ``group_columns`` of the tuned numbers."""
    for shape, tile in (((16384, 128), [64, 128]), ((5000, 256), [64, 64])):
        bound = contrastive_loss.bind((tensor(*shape), tensor(*shape), 0.1), target="h200")
        assert bound.seeds[0].config["block_sizes"] == tile and bound.seeds[0].config["num_warps"] == 4


def _columns(live: int, directory: Path) -> helion.Kernel:
    """A kernel that holds ``live`` tiles of columns."""
    names = [f"x{i}" for i in range(live)]
    lines = ["import torch", "import helion", "import helion.language as hl", "@helion.kernel()"]
    lines += [f"def scaled({', '.join(names)}):", "    out = torch.empty_like(x0)"]
    lines += ["    for tile in hl.tile(x0.size(1)):"]
    lines += [f"        v{i} = x{i}[:, tile].to(torch.float32)" for i in range(live)]
    lines += [f"        s{i} = v{i}.sum(0, keepdim=True)" for i in range(live)]
    lines += [
        "        out[:, tile] = " + " + ".join(f"v{i} * s{(i + 1) % live}" for i in range(live)),
        "    return out",
    ]
    path = directory / f"columns_{live}.py"
    path.write_text("\n".join(lines) + "\n")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.scaled


@pytest.mark.parametrize("gpu", GPUS)
def test_more_tiles_or_wider_ones_never_take_more_rows(gpu: str, tmp_path: Path) -> None:
    rows: dict[torch.dtype, list[int]] = {BF16: [], FP32: []}
    for live in range(1, 9):
        kernel = _columns(live, tmp_path)
        for dtype, found in rows.items():
            bound = kernel.bind((tensor(8192, 2048, dtype=dtype),) * live, target=gpu)
            found.append(sizes(bound)[1] * sizes(bound)[0])
    for found in rows.values():
        assert found == sorted(found, reverse=True)
    assert all(wide <= narrow for wide, narrow in zip(rows[FP32], rows[BF16], strict=True))


# --- what data steers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", known_targets())
def test_atomics_get_tiles_of_a_useful_size(gpu: str) -> None:
    bound = histogram.bind((tensor(1 << 24, dtype=torch.int32),), target=gpu)
    assert bound.seeds[0].heuristic == "TritonScatterHeuristic" and bound.seeds[0].config == bound.default_config()
    longer = len(bound.seeds) > 1  # where adding the bins takes longer than the votes of a histogram
    assert bound.default_config()["block_sizes"] == [8192 if longer else 2048]
    assert longer or gpu not in ("sm_90", "sm_100", "sm_103")
    few = histogram.bind((tensor(1000, dtype=torch.int32),), target=gpu)
    assert few.default_config()["block_sizes"] == [128]


@pytest.mark.parametrize("gpu", ("sm_80", "h100", "sm_100", "gfx942"))
@pytest.mark.parametrize("bins", (64, 256))
def test_tiles_that_are_summed_before_atomics_leave_few_of_them(gpu: str, bins: int) -> None:
    bound = one_hot_counts.bind((tensor(1 << 22, dtype=torch.int32), bins), target=gpu)
    seed, other = bound.seeds[:2]
    assert seed.heuristic == other.heuristic == "TritonScatterHeuristic" and seed.config == bound.default_config()
    (size,), (moderate,) = seed.config["block_sizes"], other.config["block_sizes"]
    assert size >= 4 * moderate and size * bins >= 16384
    assert seed.predicted.spill_risk == 0 and seed.predicted.time_us < 0.7 * other.predicted.time_us


def test_few_programs_keep_moderate_tiles_before_atomics() -> None:
    bound = one_hot_counts.bind((tensor(50, dtype=torch.int32), 256), target="h100")
    assert bound.default_config()["block_sizes"] == [1]


def test_atomics_lie_along_contiguous_memory() -> None:
    ids, grad, out = tensor(65536, dtype=torch.int64), tensor(65536, 768), tensor(50257, 768, dtype=FP32)
    bound = scattered_rows.bind((ids, grad, out), target=target("sm_90"))
    assert bound.default_config()["block_sizes"] == [8, 256]


@helion.kernel()
def loss_and_gradient(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    loss, gradient = torch.zeros([1], dtype=torch.float32, device=x.device), torch.empty_like(x)
    for rows, columns in hl.tile(x.size()):
        difference = x[rows, columns].to(torch.float32) - y[rows, columns].to(torch.float32)
        hl.atomic_add(loss, [0], (difference * difference).sum())
        gradient[rows, columns] = (2 * difference).to(x.dtype)
    return loss, gradient


@pytest.mark.parametrize("gpu", GPUS)
def test_programs_beside_each_other_store_rows_one_after_the_other(gpu: str) -> None:
    bound = loss_and_gradient.bind((tensor(32768, 999), tensor(32768, 999)), target=gpu)
    assert bound.seeds[0].heuristic == "TritonScatterHeuristic"
    assert bound.default_config()["l2_groupings"] == [4]
    x, y = torch.randn(70, 41), torch.randn(70, 41)
    loss, gradient = loss_and_gradient(x, y)
    torch.testing.assert_close(gradient, 2 * (x - y))
    torch.testing.assert_close(loss[0], (x - y).square().sum(), rtol=1e-4, atol=1e-4)


def test_programs_that_only_add_to_memory_keep_their_order() -> None:
    ids, grad, out = tensor(65536, dtype=torch.int64), tensor(65536, 768), tensor(50257, 768, dtype=FP32)
    assert scattered_rows.bind((ids, grad, out), target="h200").default_config()["l2_groupings"] == [1]


@helion.kernel()
def averages(values: torch.Tensor, places: torch.Tensor, out: torch.Tensor, counts: torch.Tensor) -> None:
    for tile in hl.tile(values.size(0)):
        hl.atomic_add(out, [places[tile]], values[tile])
        hl.atomic_add(counts, [places[tile]], 1.0)
    hl.barrier()
    for tile in hl.tile(out.size(0)):
        out[tile] = out[tile] / counts[tile].clamp(min=1.0)


def test_grids_of_one_kernel_have_tiles_of_their_own() -> None:
    """The tile of the first grid leaves no fewer elements to that of the second."""
    args = (tensor(1 << 22, dtype=FP32), tensor(1 << 22, dtype=torch.int64), tensor(1 << 20, dtype=FP32))
    bound = averages.bind((*args, tensor(1 << 20, dtype=FP32)), target="sm_90")
    assert bound.default_config()["block_sizes"] == [2048, 1024]


def test_jagged_rows_are_read_along_columns() -> None:
    bound = jagged_sums.bind((tensor(65536, 128), tensor(1001, dtype=torch.int64)), target="sm_90")
    assert bound.seeds[0].heuristic == "TritonScatterHeuristic"
    assert bound.default_config()["block_sizes"] == [1, 64, 32]


def test_maps_and_reductions_are_no_scatters() -> None:
    bound = row_sums.bind((tensor(64, 64),), target="sm_90")
    assert "reduction of known extent" in dict(bound.declined)["TritonScatterHeuristic"]


def largest_and_both_orders(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    m, n = x.size()
    rows, columns = (
        torch.empty([m, n], dtype=torch.int8, device=x.device),
        torch.empty([n, m], dtype=torch.int8, device=x.device),
    )
    largest = torch.zeros([1], dtype=torch.float32, device=x.device)
    for i, j in hl.tile([m, n]):
        value = x[i, j].to(torch.float32)
        hl.atomic_max(largest, [0], value.abs().amax())
        rows[i, j] = value.to(torch.int8)
        columns[j, i] = value.to(torch.int8).T
    return rows, columns, largest


def test_tiles_of_few_atomics_are_square_where_both_orders_are_stored() -> None:
    bound = helion.kernel(largest_and_both_orders, backend="triton").bind((tensor(8192, 4096),), target="h200")
    assert bound.seeds[0].heuristic == "TritonScatterHeuristic"
    assert bound.seeds[0].config["block_sizes"] == [64, 64]
