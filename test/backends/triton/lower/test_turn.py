"""Products that are computed as their transposes: which, what they give, and what they are compiled to."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import program_of, space_of, tensor

import helion
import helion.language as hl
from helion._compiler.rewrites.swap_ab import swappable_matmuls
from helion.backends.triton.toolchain.offline import compile_offline
from helion.backends.triton.toolchain.signature import offline_signature

FP32 = torch.float32


def accumulated(x, y):
    m, k = x.size()
    out = torch.empty([m, y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, y.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


def added(x, y, bias):
    """The product goes to the sum by an addition; a bias is where it begins, a function what follows."""
    m, k = x.size()
    out = torch.empty([m, y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, y.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32) + bias[tile_n]
        for tile_k in hl.tile(k):
            acc += torch.matmul(x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = torch.relu(acc) + tile_m.index[:, None]
    return out


def normed(x, y):
    """The left operand is read by something else, too, and the loop carries another sum."""
    m, k = x.size()
    out = torch.empty([m, y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, y.size(1)]):
        squares = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            rows = x[tile_m, tile_k]
            squares += (rows * rows).sum(-1)
            acc = torch.addmm(acc, rows, y[tile_k, tile_n])
        out[tile_m, tile_n] = acc * torch.rsqrt(squares)[:, None]
    return out


def read(x, y):
    """The sum is read inside the loop."""
    m, k = x.size()
    out = torch.empty([m, y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, y.size(1)]):
        top = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            top = torch.maximum(top, acc)
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc + top
    return out


def exact(x, y):
    m, k = x.size()
    out = torch.empty([m, y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, y.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = acc
    return out


def operands(*shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return tuple(torch.randn(shape) + 0.25 for shape in shapes)


def _added(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.relu(x.double() @ y.double() + bias.double()) + torch.arange(x.size(0))[:, None]


def _normed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x.double() @ y.double()) * torch.rsqrt((x.double() ** 2).sum(-1, keepdim=True))


CASES: dict[str, tuple[Callable[..., Any], Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "odd": (accumulated, lambda x, y: x.double() @ y.double(), operands((63, 100), (100, 130))),
    "one row": (accumulated, lambda x, y: x.double() @ y.double(), operands((1, 257), (257, 64))),
    "added": (added, _added, operands((33, 70), (70, 65), (65,))),
    "normed": (normed, _normed, operands((33, 70), (70, 65))),
}


@pytest.mark.parametrize("name", CASES)
def test_turned_products_are_right(name: str) -> None:
    fn, reference, args = CASES[name]
    shared = {} if fn is normed else {"split_k": 2}  # each program has sums of the same rows there
    for beside in ({}, shared):
        config = helion.Config(block_sizes=[16, 64, 32], swap_ab=True, **beside)
        kernel = helion.kernel(fn, static_shapes=True, config=config)
        assert kernel.bind(args).to_triton_code().count("tl.permute") >= 3
        torch.testing.assert_close(kernel(*args).double(), reference(*args), rtol=1e-2, atol=5e-2)


def stored_each_time(x, y):
    m, k = x.size()
    out = torch.empty([m, y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, y.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            out[tile_m, tile_n] = acc
    return out


def sum_before(x, y):
    m, k = x.size()
    out = torch.empty([m, y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, y.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        before = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            before = acc
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc - before
    return out


def last_product(x, y):
    m, k = x.size()
    out = torch.empty([m, y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, y.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        last = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            last = torch.matmul(x[tile_m, tile_k], y[tile_k, tile_n])
            acc = acc + last
        out[tile_m, tile_n] = acc - last
    return out


def carried_twice(x, y):
    m, k = x.size()
    out = torch.empty([m, y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, y.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        most = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            most = torch.maximum(most, acc)
        out[tile_m, tile_n] = acc + most
    return out


def test_products_that_cannot_be_turned() -> None:
    row, column = tensor(64, 64, dtype=FP32), tensor(64, 64, dtype=FP32).t()
    half = tensor(64, 64)
    for fn, args, found in (
        (accumulated, (row, row), 1),
        (accumulated, (row, column), 0),
        (accumulated, (column, row), 0),
        (accumulated, (half, half), 0),
        (read, (row, row), 0),
        (stored_each_time, (row, row), 0),
        (sum_before, (row, row), 0),
        (last_product, (row, row), 0),
        (carried_twice, (row, row), 0),
    ):
        assert len(swappable_matmuls(program_of(fn, *args, static_shapes=True))) == found
    assert not swappable_matmuls(program_of(exact, row, row, static_shapes=True, dot_precision="ieee"))
    space = space_of(accumulated, row, column, static_shapes=True)
    wish = helion.Config(swap_ab=True)
    (change,) = space.adjusted(wish)
    assert "the left one alone is K-major" in change.why and "swap_ab" not in space.normalize(wish)
    for target in ("sm_80", "sm_100", "gfx942"):
        space = space_of(accumulated, row, row, on=target, static_shapes=True)
        (change,) = space.adjusted(wish)
        assert "does not need K-major TF32 operands" in change.why and "swap_ab" not in space.normalize(wish)


def test_configs_with_too_few_columns_for_the_matrix_unit() -> None:
    row = tensor(512, 512, dtype=FP32)
    space = space_of(accumulated, row, row, static_shapes=True)

    def turned(sizes: list[int], **keys: Any) -> bool:
        return space.normalize(helion.Config(block_sizes=sizes, swap_ab=True, **keys))["swap_ab"]

    assert turned([16, 64, 32], num_warps=4) and turned([64, 128, 32], num_warps=8)
    assert not turned([64, 32, 32], num_warps=4) and not turned([128, 64, 32], num_warps=8)
    assert not turned([64, 64, 32], num_warps=2) and not turned([64, 64, 32], range_unroll_factors=[0, 2])


@pytest.mark.parametrize(
    ("indexing", "sizes", "warps"),
    [("pointer", [16, 64, 64], 4), ("tensor_descriptor", [256, 128, 32], 8), ("pointer", [128, 128, 32], 8)],
)
def test_the_asynchronous_unit_takes_them_without_spills(indexing: str, sizes: list[int], warps: int) -> None:
    row = tensor(1024, 1024, dtype=FP32)
    kernel = helion.kernel(accumulated, static_shapes=True)
    bound = kernel.bind((row, row), target="sm_90")
    wish = {"block_sizes": sizes, "num_warps": warps, "num_stages": 3, "indexing": indexing, "swap_ab": True}
    config = bound.config_spec.normalize(helion.Config(**wish))
    bound.set_config(config)
    taken, predicted = bound.resources(), bound._analysis.predict(config)
    assert taken.fits and taken.spill_bytes == 0
    assert taken.shared_bytes <= predicted.shared_bytes <= 1.10 * taken.shared_bytes + 2048
    plan = bound._analysis.code(config).plan
    function = inspect.unwrap(bound.compile_config(config)).__globals__[plan.kernel_names[0]]
    text = str(compile_offline(function, **offline_signature(plan, bound.target)).asm["ptx"])
    assert "wgmma.mma_async.sync.aligned.m64n" in text and "mma.sync" not in text
