"""Products whose operands are copied first, to aligned rows or along K, or turned around."""

from __future__ import annotations

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl
from helion.runtime.bound import BoundKernel


@helion.kernel(static_shapes=True)
def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    out = torch.empty([m, y.size(1)], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, y.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


def bound(m: int, k: int, n: int, dtype: torch.dtype = torch.bfloat16, gpu: str = "h200") -> BoundKernel:
    return product.bind((tensor(m, k, dtype=dtype), tensor(k, n, dtype=dtype)), target=gpu)


@pytest.mark.parametrize(
    ("m", "k", "n", "gpu"),
    [
        (4097, 4097, 4097, "h200"),
        (4096, 4096, 777, "h200"),
        (17, 4097, 4097, "h200"),
        (333, 333, 333, "h200"),
        (4097, 4097, 4097, "sm_80"),
    ],
)
def test_rows_that_begin_anywhere_are_copied(m: int, k: int, n: int, gpu: str) -> None:
    kernel = bound(m, k, n, gpu=gpu)
    config = kernel.default_config()
    assert config["pack_operands"] and not config.get("swap_ab", False)
    assert kernel._analysis.predict(config).fits


#: Extents, and which keys and tile the kernel has: the fastest that were swept on an H200, or within 1.1 of it.
TF32 = {
    (512, 512, 512): ("swap_ab", [64, 64, 64], 1),
    (2048, 2048, 2048): ("swap_ab", [128, 128, 32], 1),
    (1000, 2048, 3000): ("swap_ab", [128, 128, 32], 1),
    (300, 1000, 4096): ("swap_ab", [64, 128, 64], 1),
    (1024, 65536, 1024): ("swap_ab", [128, 128, 32], 4),
    (4096, 4096, 4096): ("transpose_operands", [128, 256, 32], 1),
    (4097, 4097, 4097): ("transpose_operands", [128, 256, 32], 1),
    (64, 4096, 4096): ("", [64, 64, 32], 8),
    (512, 16384, 512): ("", [128, 64, 32], 16),
    (100, 100, 100): ("", [64, 64, 32], 1),
}


@pytest.mark.parametrize(("m", "k", "n"), TF32)
def test_tf32_operands_reach_the_asynchronous_unit(m: int, k: int, n: int) -> None:
    key, sizes, parts = TF32[m, k, n]
    kernel = bound(m, k, n, torch.float32)
    config = kernel.default_config()
    assert {key} - {""} == {each for each in ("swap_ab", "transpose_operands") if config.get(each, False)}
    assert config["block_sizes"] == sizes and config["split_k"] == parts
    assert config.get("pack_operands", False) == (k == 4097)
    assert (config["indexing"][:2] == ["tensor_descriptor"] * 2) == bool(key)
    assert kernel._analysis.predict(config).fits


def test_copies_along_k_come_first_where_they_are_predicted_to_be_faster_or_nothing_can_be_turned() -> None:
    column = tensor(4096, 4096, dtype=torch.float32).t()
    row = tensor(4096, 4096, dtype=torch.float32)
    seeds = product.bind((row, row), target="h200").seeds
    assert seeds[0].config["transpose_operands"] and seeds[1].config["swap_ab"]
    kernel = product.bind((column, row), target="h200")
    config = kernel.default_config()
    assert config["transpose_operands"] and "swap_ab" not in config
    assert config["indexing"] == ["tensor_descriptor", "tensor_descriptor", "pointer"]
    assert kernel._analysis.predict(config).fits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_aligned_rows_that_end_anywhere_take_descriptors(dtype: torch.dtype) -> None:
    x, y = (tensor(1001, 1008, dtype=dtype)[:, :1001] for _ in range(2))
    config = product.bind((x, y.t()), target="h200").default_config()
    assert config["indexing"][:2] == ["tensor_descriptor"] * 2
    whole = product.bind((tensor(1001, 1008, dtype=dtype), tensor(1001, 1008, dtype=dtype).t()), target="h200")
    assert dtype != torch.float32 or whole.default_config()["indexing"] == ["pointer"] * 3


def test_large_layers_in_tf32_take_descriptors() -> None:
    for size, way in ((4096, "tensor_descriptor"), (2048, "pointer")):
        row = tensor(size, size, dtype=torch.float32)
        assert product.bind((row, row.t()), target="h200").default_config()["indexing"] == [way, way, "pointer"]


@helion.kernel(static_shapes=True)
def batched(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    b, m, k = x.size()
    out = torch.empty([b, m, y.size(2)], dtype=x.dtype, device=x.device)
    for tile_b, tile_m, tile_n in hl.tile([b, m, y.size(2)], block_size=[1, None, None]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_b.begin, tile_m, tile_k], y[tile_b.begin, tile_k, tile_n], acc=acc)
        out[tile_b.begin, tile_m, tile_n] = acc
    return out


def test_batches_are_turned_around() -> None:
    args = tensor(16, 512, 512, dtype=torch.float32), tensor(16, 512, 1024, dtype=torch.float32)
    config = batched.bind(args, target="h200").default_config()
    assert config["swap_ab"] and config["indexing"] == ["tensor_descriptor", "tensor_descriptor", "pointer"]


@helion.kernel(static_shapes=True)
def batched_in_pieces(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Multiply `[B, M, K]` or, with two dimensions, one `[M, K]` for all by `[B, K, N]`."""
    b, k, n = y.size()
    m = x.size(-2)
    out = torch.empty([b, m, n], dtype=x.dtype, device=x.device)
    for tile_b, tile_m, tile_n in hl.tile([b, m, n], block_size=[1, None, None]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            left = x[tile_m, tile_k] if x.ndim == 2 else x[tile_b.begin, tile_m, tile_k]
            acc = torch.addmm(acc, left, y[tile_b.begin, tile_k, tile_n])
        out[tile_b.begin, tile_m, tile_n] = acc.to(x.dtype)
    return out


@pytest.mark.parametrize(
    ("left", "right", "copied"),
    [
        ((8, 2047, 2047), (8, 2047, 2047), True),
        ((513, 513), (64, 513, 512), True),
        ((64, 577, 577), (64, 577, 64), False),
        ((16, 1024, 1024), (16, 1024, 1024), False),
    ],
)
def test_batches_of_unaligned_rows_are_copied_where_that_pays(
    left: tuple[int, ...], right: tuple[int, ...], copied: bool
) -> None:
    kernel = batched_in_pieces.bind(tuple(tensor(*each, dtype=torch.bfloat16) for each in (left, right)), target="h200")
    config = kernel.default_config()
    assert config.get("pack_operands", False) is copied
    assert kernel._analysis.predict(config).fits


@pytest.mark.parametrize("left", [(3, 37, 45), (37, 45)])
@pytest.mark.parametrize("columns", [29, 32])
def test_copies_of_batches_are_right(left: tuple[int, ...], columns: int) -> None:
    x, y = torch.randn(*left).bfloat16(), torch.randn(3, 45, columns).bfloat16()
    config = helion.Config(block_sizes=[32, 16, 16], pack_operands=True)
    found = helion.kernel(batched_in_pieces.fn, static_shapes=True, config=config)(x, y)
    expected = x.double() @ y.double()
    assert (found.double() - expected).norm() <= 4e-3 * expected.norm()


@pytest.mark.parametrize("size", [4096, 100])
def test_others_are_multiplied_as_they_are(size: int) -> None:
    assert not bound(size, size, size).default_config().get("pack_operands", False)


@pytest.mark.gpu
@pytest.mark.parametrize("rewritten", [{}, {"swap_ab": True}, {"transpose_operands": True}])
def test_rewritten_products_are_right_on_a_gpu(rewritten: dict[str, bool]) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(16, 520, 1000, device="cuda"), torch.randn(16, 1000, 1032, device="cuda")
    wish = {"block_sizes": [128, 128, 32], "num_warps": 8, "num_stages": 3, "indexing": "tensor_descriptor"}
    config = helion.Config(**wish, **rewritten) if rewritten else None
    for kernel, args in ((product, (x[0], y[0])), (batched, (x, y))):
        if kernel is batched and "transpose_operands" in rewritten:
            continue
        found = helion.kernel(kernel.fn, static_shapes=True, config=config)(*args)
        expected = args[0].double() @ args[1].double()
        assert (found.double() - expected).norm() <= 1e-3 * expected.norm()
