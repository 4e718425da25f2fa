"""Loops over one run in memory as one loop: generated text, equality with eager PyTorch, seeds, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion._compiler.ir.grammar import Op
from helion._compiler.ir.loops import loops_of
from helion._compiler.ir.verifier import verify
from helion._compiler.rewrites.flatten_runs import can_flatten_run, flatten_run
from test.harness import program_of


def images(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * 9 + 3).to(dtype)


def stretched(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.size(), dtype=torch.float32, device=x.device)
    for i in hl.grid(x.size(0)):
        low = hl.full([], float("inf"), dtype=torch.float32)
        high = hl.full([], float("-inf"), dtype=torch.float32)
        for rows, columns in hl.tile(x.size()[1:]):
            value = x[i, rows, columns].float()
            low = torch.minimum(low, value.amin())
            high = torch.maximum(high, value.amax())
        for rows, columns in hl.tile(x.size()[1:]):
            out[i, rows, columns] = (x[i, rows, columns].float() - low) / (high - low)
    return out


def mean_square(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Reductions along three dimensions, of which the outer ones are reduced last."""
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for i in hl.grid(x.size(0)):
        total = hl.zeros([], dtype=torch.float32)
        for a, b, c in hl.tile(x.size()[1:]):
            total = total + (x[i, a, b, c] - y[i, a, b, c]).square().sum()
        out[i] = total / x[0].numel()
    return out


def normalized(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Tiles of several planes, reduced along one dimension after the other."""
    out = torch.empty_like(x)
    _, rows, columns = x.size()
    for plane in hl.tile(x.size(0)):
        total = hl.zeros([plane], dtype=torch.float32)
        squares = hl.zeros([plane], dtype=torch.float32)
        for a, b in hl.tile([rows, columns]):
            value = x[plane, a, b]
            total = total + value.sum(-1).sum(-1)
            squares = squares + (value * value).sum((1, 2))
        mean = total / (rows * columns)
        deviation = torch.rsqrt(squares / (rows * columns) - mean * mean + 1e-5)
        for a, b in hl.tile([rows, columns]):
            centered = x[plane, a, b] - mean[:, None, None]
            out[plane, a, b] = centered * deviation[:, None, None] * scale[plane][:, None, None] + 0.5
    return out


def centers(x: torch.Tensor) -> torch.Tensor:
    """Sums weighted by the index along each dimension."""
    out = torch.empty([x.size(0), 3], dtype=torch.float32, device=x.device)
    for i in hl.grid(x.size(0)):
        first = hl.zeros([], dtype=torch.float32)
        second = hl.zeros([], dtype=torch.float32)
        third = hl.zeros([], dtype=torch.float32)
        for a, b, c in hl.tile(x.size()[1:]):
            value = x[i, a, b, c]
            first = first + (value * a.index[:, None, None]).sum()
            second = second + (value * b.index[:, None]).sum()
            third = third + (value * c.index).sum()
        out[i, 0] = first
        out[i, 1] = second
        out[i, 2] = third
    return out


def stretched_eager(x: torch.Tensor) -> torch.Tensor:
    low, high = x.double().amin((1, 2), keepdim=True), x.double().amax((1, 2), keepdim=True)
    return (x.double() - low) / (high - low)


def loops(kernel: Callable[..., Any], *args: Any) -> list[str | None]:
    """The reason why each inner loop over several dimensions is no flat one."""
    program = program_of(kernel, *args)
    nests = [at for at, loop in enumerate(loops_of(program)) if isinstance(loop, Op) and len(loop.attrs.axes) > 1]
    return [can_flatten_run(program, at) for at in nests]


def test_one_loop_over_all_elements() -> None:
    bound = helion.kernel(stretched).bind((images(3, 5, 7),))
    code = bound.to_triton_code(helion.Config(block_sizes=[4, 8, 2, 8], flatten_loops=[True, True]))
    assert "_BLOCK_SIZE_1_2 = tl.constexpr(32)" in code
    assert "_BLOCK_SIZE_3_4 = tl.constexpr(16)" in code
    assert "tl.store(out + (i * 35 + indices_3_4), div, mask=mask_3_4)" in code
    assert "tl.reduce(value_1, 0, _min_nan)" in code
    one = bound.to_triton_code(helion.Config(block_sizes=[4, 8, 2, 8], flatten_loops=[False, True]))
    assert "_BLOCK_SIZE_1 = " in one
    assert "_BLOCK_SIZE_3_4 = " in one


@pytest.mark.parametrize("shape", [(3, 37, 63), (2, 1, 100), (1, 33, 1), (2, 64, 16)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32])
def test_equals_eager(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = images(*shape).abs().to(dtype)
    kernel = helion.kernel(stretched, config=helion.Config(block_sizes=[4, 8, 2, 16], flatten_loops=[True, True]))
    torch.testing.assert_close(kernel(x).double(), stretched_eager(x), atol=1e-6, rtol=1e-6)


def test_sizes_that_differ_from_call_to_call() -> None:
    config = helion.Config(block_sizes=[4, 8, 2, 8], flatten_loops=[True, True])
    kernel = helion.kernel(stretched, config=config, static_shapes=False)
    for shape in ((2, 17, 9), (3, 4, 33)):
        x = images(*shape)
        torch.testing.assert_close(kernel(x).double(), stretched_eager(x), atol=1e-6, rtol=1e-6)
    assert "_BLOCK_SIZE_1_2 = " in kernel.bind((x,)).to_triton_code(config)


def test_three_dimensions() -> None:
    config = helion.Config(block_sizes=[2, 4, 8], flatten_loops=[True])
    x, y = images(2, 3, 17, 9), images(2, 3, 17, 9).flip(1)
    torch.testing.assert_close(helion.kernel(mean_square, config=config)(x, y), (x - y).square().mean((1, 2, 3)))


@pytest.mark.parametrize("shape", [(3, 37, 63), (5, 1, 33), (4, 16, 32)])
def test_tiles_of_planes(shape: tuple[int, ...]) -> None:
    x, scale = images(*shape), images(shape[0])
    config = helion.Config(block_sizes=[2, 4, 16, 2, 16], flatten_loops=[True, True])
    got = helion.kernel(normalized, config=config)(x, scale)
    want = torch.nn.functional.instance_norm(x.double()[None], weight=scale.double()).squeeze(0) + 0.5
    torch.testing.assert_close(got.double(), want, atol=1e-4, rtol=1e-4)
    code = helion.kernel(normalized).bind((x, scale)).to_triton_code(config)
    summed = "value" if shape[1:] == (1, 33) else "sum_tile"
    assert f"tl.sum({summed}" in code.replace("value_1", "value")
    assert "indices_1_2[None, :]" in code or "tl.arange(0, _BLOCK_SIZE_1_2)[None, :]" in code


def test_indices_along_dimensions() -> None:
    x = images(2, 3, 5, 7)
    config = helion.Config(block_sizes=[2, 2, 4], flatten_loops=[True])
    places = torch.meshgrid(*(torch.arange(n).double() for n in x.shape[1:]), indexing="ij")
    want = torch.stack([(x.double() * at).sum((1, 2, 3)) for at in places], -1)
    torch.testing.assert_close(helion.kernel(centers, config=config)(x).double(), want, atol=1e-3, rtol=1e-4)
    code = helion.kernel(centers).bind((x,)).to_triton_code(config)
    assert "= indices_1_2_3 // 35" in code
    assert "= indices_1_2_3 % 7" in code
    bound = helion.kernel(centers, static_shapes=False).bind((x,))
    assert bound.config_spec.normalize({"flatten_loops": []})["flatten_loops"] == []


def test_seeds_flatten_runs() -> None:
    """Rows of 501 bytes begin at odd addresses, and 11 of 512 lanes of each would be idle."""
    bound = helion.kernel(stretched).bind(
        (torch.empty(256, 500, 501, dtype=torch.uint8, device="meta"),), target="h200"
    )
    config = bound.default_config()
    assert config["flatten_loops"] == [True, True]
    first, second = config["block_sizes"][:2], config["block_sizes"][2:]
    assert first[1] == second[1] == 512
    assert min(first[0], second[0]) >= 4
    times = {tuple(seed.config["flatten_loops"]): seed.predicted.time_us for seed in reversed(bound.seeds)}
    assert times[True, True] < 0.8 * times[False, False]
    names = [name for name, _ in bound.declined] + [seed.heuristic for seed in bound.seeds]
    assert {name for name, _ in bound.declined}.isdisjoint(seed.heuristic for seed in bound.seeds)
    assert "TritonStreamingReductionHeuristic" in names


def test_verified_program_keeps_other_loops() -> None:
    program = program_of(stretched, images(3, 5, 7))
    _, first, second = loops_of(program)
    flat = verify(flatten_run(program, first), "flatten")
    made = [loop for loop in loops_of(flat) if isinstance(loop, Op)]
    assert [len(loop.attrs.axes) for loop in made] == [1, 2]
    assert made[1] is second
    assert flat.blocks[-1].extent == 35


def test_declines_where_lanes_need_more_than_their_number() -> None:
    def weighted(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        out = torch.zeros([x.size(0)])
        for i in hl.grid(x.size(0)):
            total = hl.zeros([], dtype=torch.float32)
            for a, b in hl.tile(x.size()[1:]):
                total = total + (x[i, a, b] * w[b][None, :]).sum()
            out[i] = total
        return out

    def summed(x: torch.Tensor, term: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        out = torch.zeros([x.size(0)])
        for i in hl.grid(x.size(0)):
            total = hl.zeros([], dtype=torch.float32)
            for a, b in hl.tile(x.size()[1:]):
                total = total + term(x[i, a, b])
            out[i] = total
        return out

    def row_sum_maximum(value: torch.Tensor) -> torch.Tensor:
        return value.sum(-1).amax()

    def squared_row_sums(value: torch.Tensor) -> torch.Tensor:
        return value.sum(-1).square().sum()

    def sum_and_rows(value: torch.Tensor) -> torch.Tensor:
        return value.sum() + hl.full([value.size(0)], 1.0, dtype=torch.float32).sum()

    x = images(3, 5, 7)
    assert loops(stretched, x) == [None, None]
    assert loops(stretched, x.mT.contiguous().mT) == ["a tensor has the elements in another order"] * 2
    assert loops(stretched, images(3, 5, 8)[:, :, :7]) == ["a tensor has the elements in another order"] * 2
    assert loops(weighted, x, images(7)) == ["a tensor has the elements in another order"]
    assert loops(summed, x, row_sum_maximum) == ["a mask between two reductions adds to them"]
    assert loops(summed, x, squared_row_sums) == ["a reduction keeps a dimension"]
    assert loops(summed, x, sum_and_rows) == ["a reduction does not span all of the dimensions"]
