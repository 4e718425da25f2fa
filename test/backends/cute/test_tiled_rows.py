"""Kernels that walk over the columns of their rows in tiles: which come to reductions of whole rows, and which do not."""

from __future__ import annotations

import pytest
import torch
from backends.cute.products import BOUNDS, row_error, values
from backends.cute.row_kernels import BF16, FP32

import helion
import helion.language as hl
from helion import exc
from helion._testing import EXAMPLES_DIR, import_path
from helion.backends.cute.plan.records import RowFinish, TileFinish


def matrices(m: int = 77, n: int = 296, k: int = 136) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = values(m, k, dtype=FP32, device="cpu"), values(k, n, dtype=FP32, device="cpu", seed=1, mean=-0.2)
    return x.to(BF16), (y * k**-0.5).to(BF16)


@pytest.mark.parametrize("name", ["rms_norm", "l2_normalize", "logsumexp"])
def test_examples(name: str) -> None:
    example = import_path(EXAMPLES_DIR / f"matmul_{name}_tiled.py")
    kernel = helion.kernel(getattr(example, f"matmul_{name}_tiled").fn, backend="cute")
    more = [values(296, dtype=BF16, device="cpu", seed=3)] if name == "rms_norm" else []
    x, y = matrices()
    found = kernel(x, y, *more)
    wanted = example.reference(x.double(), y.double(), *(each.double() for each in more))
    assert row_error(found.view(77, -1), wanted.view(77, -1)) < BOUNDS[BF16]
    plan = kernel.bind((x, y, *more)).plan().gemm
    assert plan.cluster[1] * plan.tile[1] >= 296


@pytest.mark.parametrize(("name", "kind"), [("rms_norm", RowFinish), ("logsumexp", TileFinish)])
def test_examples_with_rows_that_no_cluster_holds(name: str, kind: type) -> None:
    """Numbers per row come from those of tiles, matrices from what the product leaves."""
    example = import_path(EXAMPLES_DIR / f"matmul_{name}_tiled.py")
    kernel = helion.kernel(getattr(example, f"matmul_{name}_tiled").fn, backend="cute")
    x, y = matrices(5, 4104, 72)
    more = [values(4104, dtype=BF16, device="cpu", seed=3)] if name == "rms_norm" else []
    found, wanted = kernel(x, y, *more), example.reference(x.double(), y.double(), *(each.double() for each in more))
    assert row_error(found.view(5, -1), wanted.view(5, -1)) < BOUNDS[BF16]
    assert isinstance(kernel.bind((x, y, *more)).plan().gemm.finish, kind)


@pytest.mark.parametrize(("name", "message"), [("layernorm", "tile in an epilogue"), ("softmax", "without offsets")])
def test_examples_that_hand_on_more_than_reductions_are_refused(name: str, message: str) -> None:
    example = import_path(EXAMPLES_DIR / f"matmul_{name}_tiled.py")
    kernel = helion.kernel(getattr(example, f"matmul_{name}_tiled").fn, backend="cute")
    more = [torch.ones(296, dtype=BF16)] * 2 if name == "layernorm" else []
    with pytest.raises(exc.CuteUnsupported, match=message):
        kernel.bind((*matrices(), *more))


@helion.kernel(backend="cute")
def two_products(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """softmax, whose second loop computes the product once more."""
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        top = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
            raised = torch.maximum(top, torch.amax(acc, dim=-1))
            total = torch.exp(top - raised) * total + torch.exp(acc - raised[:, None]).sum(-1)
            top = raised
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
            out[tile_m, tile_n] = (torch.exp(acc - top[:, None]) / total[:, None]).to(x.dtype)
    return out


@helion.kernel(backend="cute")
def quantized(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums in bf16 and of each row the largest size, from 1 on."""
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    largest = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        size = hl.full([tile_m], 1.0, dtype=torch.float32)
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
            size = torch.maximum(size, torch.amax(torch.abs(acc), dim=-1))
            out[tile_m, tile_n] = acc.to(x.dtype)
        largest[tile_m] = size
    return out, largest


def test_a_product_that_is_computed_again() -> None:
    x, y = matrices()
    assert row_error(two_products(x, y), (x.double() @ y.double()).softmax(1)) < BOUNDS[BF16]
    assert len(two_products.bind((x, y)).plan().gemm.problem.epilogue.operands) == 0


def test_what_a_running_maximum_begins_with_counts() -> None:
    x, y = matrices()
    for scale in (1.0, 0.01):
        out, largest = quantized(x, y * scale)
        exact = x.double() @ (y * scale).double()
        assert row_error(out, exact) < BOUNDS[BF16]
        torch.testing.assert_close(largest, exact.abs().amax(1).clamp_min(1.0).float())


@helion.kernel(backend="cute")
def running(x: torch.Tensor, y: torch.Tensor, step: hl.constexpr) -> torch.Tensor:
    """The rescaled sum of a softmax but for one thing."""
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        top = hl.full([tile_m], 0.0 if step == "top" else float("-inf"), dtype=torch.float32)
        total = hl.full([tile_m], 1.0 if step == "total" else 0.0, dtype=torch.float32)
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
            raised = torch.maximum(top, torch.amax(acc * 2.0 if step == "other" else acc, dim=-1))
            terms = torch.exp(acc - raised[:, None]).sum(-1)
            if step == "unscaled":
                total = total + terms
            elif step == "base":
                total = total * torch.exp2(top - raised) + terms
            elif step == "turned":
                total = total * torch.exp(raised - top) + terms
            else:
                total = total * torch.exp(top - raised) + terms
            top = raised
        out[tile_m] = total + top
    return out


@pytest.mark.parametrize("step", ["top", "total", "other", "unscaled", "base", "turned"])
def test_sums_that_are_rescaled_in_another_way_are_refused(step: str) -> None:
    with pytest.raises(exc.CuteUnsupported, match="hand on|hands on|rescaled sum"):
        running.bind((*matrices(), step))
    assert running.bind((*matrices(), "")).plan()


def test_a_tile_s_own_reduction_is_none_of_the_row() -> None:
    @helion.kernel(backend="cute")
    def by_tile(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        m, k = x.size()
        n = y.size(1)
        out = torch.empty([m, n], dtype=x.dtype, device=x.device)
        for tile_m in hl.tile(m):
            for tile_n in hl.tile(n):
                acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
                for tile_k in hl.tile(k):
                    acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
                out[tile_m, tile_n] = (acc - torch.amax(acc, dim=-1, keepdim=True)).to(x.dtype)
        return out

    with pytest.raises(exc.CuteUnsupported, match="reductions of a tile's columns"):
        by_tile.bind(matrices())
