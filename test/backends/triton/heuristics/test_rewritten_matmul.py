"""Products whose operands are copied to aligned rows first."""

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


@pytest.mark.parametrize(("m", "k", "n"), [(4097, 4097, 4097), (4096, 4096, 777), (17, 4097, 4097), (333, 333, 333)])
def test_rows_that_begin_anywhere_are_copied(m: int, k: int, n: int) -> None:
    kernel = bound(m, k, n)
    config = kernel.default_config()
    assert config["pack_operands"] and not config.get("turn_products", False)
    assert kernel._analysis.predict(config).fits


def test_copies_of_tf32_operands_are_multiplied_turned_around() -> None:
    config = bound(1001, 1001, 1001, torch.float32).default_config()
    assert config["pack_operands"] and config["turn_products"]


@pytest.mark.parametrize(
    ("m", "k", "n", "gpu"), [(4096, 4096, 4096, "h200"), (100, 100, 100, "h200"), (4097, 4097, 4097, "sm_80")]
)
def test_others_are_multiplied_as_they_are(m: int, k: int, n: int, gpu: str) -> None:
    assert not bound(m, k, n, gpu=gpu).default_config().get("pack_operands", False)
