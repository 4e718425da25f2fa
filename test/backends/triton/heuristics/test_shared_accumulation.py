"""Tiles of matmuls that were faster with split-K, with two programs of an SM, with wider tiles or with pointers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from benchmarks.unfitted import CELLS
from helion.backends.triton.heuristics.choose import trust
from helion.runtime.bound import BoundKernel
from helion.settings import Settings

BF16 = torch.bfloat16


def _bound(name: str, target: str = "h200", backend: str = "triton") -> BoundKernel:
    cell = CELLS[name]
    settings = Settings(**{**cell.kernel.settings.to_dict(), "backend": backend})
    return helion.kernel(cell.kernel.fn, settings=settings).bind(cell.arguments("meta", False), target=target)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("smooth_by_kernel", {"block_sizes": [64, 64], "num_warps": 4, "num_stages": 3, "split_k": 4}),
        ("context_of_tokens", {"block_sizes": [64], "num_warps": 4, "num_stages": 6, "split_k": 2}),
        ("capacity_experts", {"block_sizes": [128, 128, 64], "num_warps": 4, "num_stages": 3}),
        ("doubled_by_weights", {"block_sizes": [64, 256, 32], "num_warps": 4, "num_stages": 3}),
        ("magnitude_lora", {"block_sizes": [128, 128, 64], "num_warps": 4, "num_stages": 3}),
    ],
)
def test_defaults_are_the_configs_that_were_timed(name: str, expected: dict[str, Any]) -> None:
    bound = _bound(name)
    found = bound.short_config(bound.default_config()).to_dict()
    found.pop("loop_orders", None)
    assert found == expected


def test_a_product_of_the_result_of_a_loop_leaves_it_descriptors() -> None:
    assert "tensor_descriptor" in _bound("lora_linear").default_config()["indexing"]


@pytest.mark.parametrize("name", ["smooth_by_kernel", "context_of_tokens"])
def test_programs_of_many_rows_share_no_sums(name: str) -> None:
    args = {
        "smooth_by_kernel": lambda *, n=65536: (_meta(n, 32), _meta(n, 32), _meta(n, 32), 0.05),
        "context_of_tokens": lambda *, b=256: (
            _meta(b, 512, 8, 64),
            _meta(b, 512, 8, 64),
            torch.empty(b, 8, 64, device="meta"),
        ),
    }[name]()
    bound = helion.kernel(CELLS[name].kernel.fn, backend="triton").bind(args, target="h200")
    assert bound.default_config().config.get("split_k", 1) == 1


@pytest.mark.parametrize(("name", "target"), [("context_of_tokens", "a100"), ("capacity_experts", "a100")])
def test_tiles_stay_where_nothing_was_timed(name: str, target: str) -> None:
    bound = _bound(name, target)
    config = bound.default_config()
    assert not trust(bound.target).shared_steps and config.config.get("split_k", 1) == 1
    assert config["block_sizes"] != [128, 128, 64] or config["num_stages"] != 3


def test_few_tiles_of_a_long_sum_are_compared_with_split_k() -> None:
    bound = helion.kernel(_squared_relu, backend="triton").bind(
        (_meta(2048, 64), _meta(16384, 64), _meta(16384, 64), 0.05), target="h200"
    )
    config = bound.default_config()
    assert config["split_k"] >= 8 and config["block_sizes"][0] >= 64


def test_sums_of_a_softmax_are_not_shared() -> None:
    bound = _bound("packed_encoder")
    assert bound.facts.attention is not None and not bound.facts.splittable_k
    assert bound.default_config().config.get("split_k", 1) == 1


def _meta(*sizes: int) -> torch.Tensor:
    return torch.empty(sizes, dtype=BF16, device="meta")


def _squared_relu(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """Attention whose weights are squares, which no sum divides."""
    m, n = q.size(0), k.size(0)
    hl.specialize(q.size(1))
    e = hl.specialize(v.size(1))
    out = torch.empty([m, e], dtype=q.dtype, device=q.device)
    for rows in hl.tile(m):
        own = q[rows, :]
        acc = hl.zeros([rows, e], dtype=torch.float32)
        for cols in hl.tile(n):
            weights = torch.relu(hl.dot(own, k[cols, :].T)) * scale
            acc = hl.dot((weights * weights).to(v.dtype), v[cols, :], acc=acc)
        out[rows, :] = acc.to(q.dtype)
    return out


def test_shared_sums_are_those_of_one_program() -> None:
    torch.manual_seed(0)
    x, y, values = torch.randn(37, 16), torch.randn(100, 16), torch.randn(100, 16)
    kernel = helion.kernel(CELLS["smooth_by_kernel"].kernel.fn, backend="triton")
    bound = kernel.bind((x, y, values, 0.05), target="h200")
    whole, shared = (
        bound.compile_config(helion.Config(block_sizes=[16, 16], num_warps=4, num_stages=2, split_k=parts))
        for parts in (1, 4)
    )
    torch.testing.assert_close(shared(x, y, values, 0.05), whole(x, y, values, 0.05))
