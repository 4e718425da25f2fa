"""Loops over the taps of a window are unrolled where rows then share loads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import helion
import helion.language as hl
from helion._compiler.ir.grammar import ForAttrs, MemoryAttrs, Program


def program_of(function: Callable[..., Any], *args: Any, **settings: Any) -> Program:
    program: Program = helion.kernel(function, **settings).bind(args, target="sm_90")._analysis.program
    return program


def loops_in(program: Program) -> int:
    return sum(isinstance(op.attrs, ForAttrs) for op in program.walk())


def depthwise(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    c, h, wide = x.size()
    out = torch.empty_like(x)
    for tc, th, tw in hl.tile([c, h, wide], block_size=[1, None, None]):
        acc = hl.zeros([th, tw], dtype=torch.float32)
        for dy in range(3):
            for dx in range(3):
                rows, columns = th.index + dy - 1, tw.index + dx - 1
                inside = ((rows >= 0) & (rows < h))[:, None] & ((columns >= 0) & (columns < wide))[None, :]
                v = hl.load(x, [tc.begin, rows, columns], extra_mask=inside)
                acc += v.to(torch.float32) * w[tc.begin, dy, dx].to(torch.float32)
        out[tc.begin, th, tw] = acc.to(x.dtype)
    return out


def convolved(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x.double()[None], w.double()[:, None], padding=1, groups=x.size(0))[0]


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize(
    ("dtype", "shape", "tiles"),
    [
        (torch.float32, (2, 63, 65), None),
        (torch.bfloat16, (1, 100, 1000), [4, 128]),
        (torch.bfloat16, (3, 5, 4), [8, 64]),
        (torch.float32, (1, 16, 4097), [1, 256]),
    ],
)
def test_taps_are_separate_and_right(
    static: bool, dtype: torch.dtype, shape: tuple[int, ...], tiles: list[int] | None
) -> None:
    x, w = torch.randn(shape).to(dtype), torch.randn(shape[0], 3, 3).to(dtype)
    program = program_of(depthwise, x, w, static_shapes=static)
    slots = [op.attrs.slot for op in program.walk() if isinstance(op.attrs, MemoryAttrs)]
    assert loops_in(program) == 0 and slots == list(range(19))
    config = None if tiles is None else helion.Config(block_sizes=tiles, num_warps=1)
    kernel = helion.kernel(depthwise, static_shapes=static, config=config)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(kernel(x, w).double(), convolved(x, w), rtol=tolerance, atol=tolerance)


def strided(x: torch.Tensor) -> torch.Tensor:
    n = x.size(0)
    out = torch.empty([n - 6, x.size(1)], device=x.device)
    for t, c in hl.tile(out.size()):
        best = x[t, c]
        total, at = x[t.index + 6, c] * 0.5, 1
        for k in hl.grid(1, 7, 2):
            scale = 1.0 / (k + 1)
            v = x[t.index + (2 * k - k), c]
            total = total + v * scale + at
            best = torch.where(k > 2, torch.maximum(best, v), best)
            at = at + k
        out[t, c] = best * at + total
    return out


@pytest.mark.parametrize("tiles", [[8, 64], [1, 32]])
def test_numbers_of_taps_are_values_of_other_ops(tiles: list[int]) -> None:
    x = torch.randn(50, 70)
    assert loops_in(program_of(strided, x)) == 0
    end, taps = x.size(0) - 6, (1, 3, 5)
    total = x[6:] * 0.5 + sum(x[k : k + end] / (k + 1) for k in taps) + (1 + 2 + 5)
    want = torch.stack([x[:end], x[3 : 3 + end], x[5 : 5 + end]]).amax(0) * 10 + total
    got = helion.kernel(strided, config=helion.Config(block_sizes=tiles, num_warps=2))(x)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_a_list_for_the_loops_as_written_is_read() -> None:
    x, w = torch.randn(2, 20, 30), torch.randn(2, 3, 3)
    config = helion.Config(block_sizes=[2, 32], range_unroll_factors=[0, 0, 3], range_num_stages=[0, 2, 2])
    got = helion.kernel(depthwise, config=config)(x, w)
    torch.testing.assert_close(got.double(), convolved(x, w), rtol=1e-5, atol=1e-5)


def test_gradients_are_those_of_the_loop() -> None:
    x = torch.randn(2, 9, 10, dtype=torch.float64, requires_grad=True)
    w = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)

    def summed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        c, h, wide = x.size()
        out = torch.empty([c, h - 2, wide], dtype=x.dtype, device=x.device)
        for tc, th, tw in hl.tile([c, h - 2, wide], block_size=[1, None, None]):
            acc = hl.zeros([th, tw], dtype=x.dtype)
            for dy in range(3):
                acc = acc + x[tc.begin, th.index + dy, tw] * w[tc.begin, dy, 0]
            out[tc.begin, th, tw] = acc
        return out

    assert loops_in(program_of(summed, x, w)) == 0
    want = sum(x[:, dy : dy + 7] * w[:, dy, 0, None, None] for dy in range(3))
    assert isinstance(want, torch.Tensor)
    expected = torch.autograd.grad(want.sin().sum(), (x, w))
    found = torch.autograd.grad(helion.kernel(summed).differentiable()(x, w).sin().sum(), (x, w))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


# --- loops that stay ------------------------------------------------------------------------------------------------


def along_lines(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), x.size(1) - 4], device=x.device)
    for r, c in hl.tile(out.size()):
        acc = hl.zeros([r, c])
        for k in range(5):
            acc = acc + x[r, c.index + k]
        out[r, c] = acc
    return out


def of_other_tensors(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0) // 8, x.size(1)], device=x.device)
    for r, c in hl.tile(out.size()):
        acc = hl.zeros([r, c])
        for k in range(8):
            acc = acc + x[r.index * 8 + k, c]
        out[r, c] = acc
    return out


def of_many_taps(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0) - 70, x.size(1)], device=x.device)
    for r, c in hl.tile(out.size()):
        acc = hl.zeros([r, c])
        for k in range(70):
            acc = acc + x[r.index + k, c]
        out[r, c] = acc
    return out


def stored_inside(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([3, x.size(0) - 2, x.size(1)], device=x.device)
    for r, c in hl.tile([x.size(0) - 2, x.size(1)]):
        acc = hl.zeros([r, c])
        for k in range(3):
            acc = acc + x[r.index + k, c]
            out[k, r, c] = acc
    return out


def reduced_inside(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0) - 2], device=x.device)
    for r in hl.tile(x.size(0) - 2):
        acc = hl.zeros([r])
        for k in range(3):
            acc = acc + x[r.index + k, :].sum(-1)
        out[r] = acc
    return out


def of_single_columns(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0) - 2], device=x.device)
    for r in hl.tile(out.size(0)):
        acc = hl.zeros([r])
        for k in range(3):
            acc = acc + x[r.index + k, 0]
        out[r] = acc
    return out


def of_equal_places(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), x.size(1) - 5], device=x.device)
    for r, c in hl.tile(out.size()):
        acc = hl.zeros([r, c])
        for i, j in hl.grid([3, 4]):
            acc = acc * 2 + x[r, c.index + i + j]
        out[r, c] = acc
    return out


def beside_other_loops(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0) - 2, x.size(1)], device=x.device)
    for r, c in hl.tile(out.size()):
        acc = hl.zeros([r, c])
        for k in range(3):
            acc = acc + x[r.index + k, c]
        for t in hl.tile(x.size(0)):
            acc = acc + x[t, c].sum(0)
        out[r, c] = acc
    return out


@pytest.mark.parametrize(
    "function",
    [
        along_lines,
        of_other_tensors,
        of_many_taps,
        of_single_columns,
        of_equal_places,
        stored_inside,
        reduced_inside,
        beside_other_loops,
    ],
)
def test_other_loops_stay(function: Callable[..., Any]) -> None:
    assert loops_in(program_of(function, torch.randn(160, 40))) >= 1


def test_loops_of_unknown_length_stay() -> None:
    def summed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        out = torch.empty([x.size(0) - w.size(0), x.size(1)], device=x.device)
        for r, c in hl.tile(out.size()):
            acc = hl.zeros([r, c])
            for k in range(w.size(0)):
                acc = acc + x[r.index + k, c] * w[k]
            out[r, c] = acc
        return out

    x, w = torch.randn(40, 30), torch.randn(4)
    assert loops_in(program_of(summed, x, w, static_shapes=False)) == 1
    assert loops_in(program_of(summed, x, w)) == 0


def test_strides_may_follow_from_sizes_of_the_call() -> None:
    def summed(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty([x.size(0) - 3, x.size(1) - 12], device=x.device)
        for r, c in hl.tile(out.size()):
            acc = hl.zeros([r, c])
            for k in range(4):
                acc = acc + x[r.index + k, c]
            out[r, c] = acc
        return out

    x = torch.randn(63, 100)
    assert loops_in(program_of(summed, x, static_shapes=False)) == 0
    want = sum(x[k : k + 60, :88] for k in range(4))
    torch.testing.assert_close(helion.kernel(summed, static_shapes=False)(x), want)
