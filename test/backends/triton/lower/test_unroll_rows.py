"""Rows of a tile as values of their own, where they share the elements that they load."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from harness import tensor

import helion
import helion.language as hl
from helion.backends.triton.execute.interpreter.races import detect_races

BF16, FP32 = torch.bfloat16, torch.float32


def filtered(x, w):
    """Three taps along rows and three along columns, zeros around."""
    h, n = x.size()
    out = torch.empty_like(x)
    for rows, columns in hl.tile([h, n]):
        acc = hl.zeros([rows, columns], dtype=torch.float32)
        for dy in hl.static_range(3):
            for dx in hl.static_range(3):
                y, at = rows.index + (dy - 1), columns.index + (dx - 1)
                inside = ((y >= 0) & (y < h))[:, None] & ((at >= 0) & (at < n))[None, :]
                acc = acc + hl.load(x, [y, at], extra_mask=inside).to(torch.float32) * w[dy, dx].to(torch.float32)
        out[rows, columns] = acc.to(x.dtype)
    return out


def of_filtered(x, w):
    return F.conv2d(x[None, None].double(), w[None, None].double(), padding=1)[0, 0].to(x.dtype)


def blurred(x, w):
    """Five taps along rows that are clamped, with a weight of each column and of each row."""
    b, h, n = x.size()
    out = torch.empty_like(x)
    for image, rows, columns in hl.tile([b, h, n], block_size=[1, None, None]):
        acc = hl.zeros([rows, columns], dtype=torch.float32)
        for tap in hl.static_range(5):
            at = torch.clamp(rows.index + (tap - 2), 0, h - 1)
            acc += x[image.begin, at, columns].to(torch.float32) * w[tap, columns].to(torch.float32)[None, :]
        out[image.begin, rows, columns] = (acc * (1.0 + rows.index.to(torch.float32))[:, None]).to(x.dtype)
    return out


def of_blurred(x, w):
    at = [torch.clamp(torch.arange(x.size(1)) + tap - 2, 0, x.size(1) - 1) for tap in range(5)]
    total = sum(x.double()[:, rows] * w[tap].double() for tap, rows in enumerate(at))
    return (total * (1 + torch.arange(x.size(1)))[:, None]).to(x.dtype)


def pooled(x):
    """Sums of three rows at every second one, and of all parts of a pair of whole columns."""
    h, n, pair = x.size()
    pair = hl.specialize(pair)
    out = torch.empty([(h - 1) // 2, n, pair], dtype=x.dtype, device=x.device)
    for rows, columns in hl.tile([(h - 1) // 2, n]):
        acc = hl.zeros([rows, columns, pair], dtype=torch.float32)
        for tap in hl.static_range(3):
            acc = acc + x[rows.index * 2 + tap, columns, :].to(torch.float32)
        out[rows, columns, :] = acc.to(x.dtype)
    return out


def of_pooled(x):
    h = (x.size(0) - 1) // 2
    return sum(x.double()[tap : tap + 2 * h : 2] for tap in range(3)).to(x.dtype)


def enlarged(x):
    """Each row twice, with the row before it."""
    h, n = x.size()
    out = torch.empty([2 * h, n], dtype=x.dtype, device=x.device)
    for rows, columns in hl.tile([2 * h, n]):
        at = rows.index // 2
        above = hl.load(x, [at - 1, columns], extra_mask=(at > 0)[:, None])
        out[rows, columns] = x[at, columns] + above
    return out


def of_enlarged(x):
    return (x + F.pad(x, (0, 0, 1, 0))[:-1]).repeat_interleave(2, 0)


def laplacian(x):
    """Five points, of which those outside are 0; all loads but one have masks, each of its own."""
    h, n = x.size()
    out = torch.empty_like(x)
    for rows, columns in hl.tile([h, n]):
        y, at = rows.index, columns.index
        up = hl.load(x, [y - 1, at], extra_mask=(y > 0)[:, None])
        down = hl.load(x, [y + 1, at], extra_mask=((y < h - 1) & (y >= 0))[:, None])
        left = hl.load(x, [y, at - 1], extra_mask=(at > 0)[None, :])
        right = hl.load(x, [y, at + 1], extra_mask=(at < n - 1)[None, :])
        out[rows, columns] = up + down + left + right - 4 * x[rows, columns]
    return out


def of_laplacian(x):
    around = F.pad(x, (1, 1, 1, 1))
    return around[:-2, 1:-1] + around[2:, 1:-1] + around[1:-1, :-2] + around[1:-1, 2:] - 4 * x


def both(x):
    """Three taps along each of two axes of a tile of three."""
    b, h, n = x.size()
    out = torch.empty([b - 2, h - 2, n], dtype=x.dtype, device=x.device)
    for planes, rows, columns in hl.tile([b - 2, h - 2, n]):
        acc = hl.zeros([planes, rows, columns], dtype=torch.float32)
        for dz in hl.static_range(3):
            for dy in hl.static_range(3):
                acc = acc + x[planes.index + dz, rows.index + dy, columns].to(torch.float32)
        out[planes, rows, columns] = acc.to(x.dtype)
    return out


def of_both(x):
    b, h, _ = x.size()
    return sum(x.double()[z : z + b - 2, y : y + h - 2] for z in range(3) for y in range(3)).to(x.dtype)


def in_place(x):
    """Sums of rows that the same tensor takes."""
    h, n = x.size()
    for rows, columns in hl.tile([h - 2, n]):
        x[rows, columns] = x[rows, columns] + x[rows.index + 1, columns] + x[rows.index + 2, columns]
    return x


def normalized(x):
    """Three rows each, divided by their sum over columns."""
    h, n = x.size()
    out = torch.empty([h - 2, n], dtype=x.dtype, device=x.device)
    for rows in hl.tile(h - 2):
        total = x[rows, :] + x[rows.index + 1, :] + x[rows.index + 2, :]
        out[rows, :] = total / total.sum(-1)[:, None]
    return out


def turned(x):
    """Three rows each, as columns."""
    h, n = x.size()
    out = torch.empty([n, h - 2], dtype=x.dtype, device=x.device)
    for rows, columns in hl.tile([h - 2, n]):
        total = x[rows, columns] + x[rows.index + 1, columns] + x[rows.index + 2, columns]
        out[columns, rows] = total.transpose(0, 1)
    return out


def made(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(shape).to(dtype)


Case = tuple[Callable[..., Any], Callable[..., torch.Tensor], tuple[torch.Tensor, ...], list[int], int, int]

#: Kernel, reference, arguments, tiles of one warp, and the loads of rows before and after.
CASES: dict[str, Case] = {
    "a filter": (filtered, of_filtered, (made(16, 64), made(3, 3)), [8, 64], 9, 30),
    "a filter of odd sizes": (filtered, of_filtered, (made(13, 63), made(3, 3)), [8, 64], 9, 30),
    "of fewer rows than a tile": (filtered, of_filtered, (made(3, 1000), made(3, 3)), [4, 64], 9, 18),
    "in fp32": (filtered, of_filtered, (made(9, 65, dtype=FP32), made(3, 3, dtype=FP32)), [4, 32], 9, 18),
    "clamped rows": (blurred, of_blurred, (made(2, 11, 40), made(5, 40)), [4, 32], 5, 8),
    "strided rows": (pooled, of_pooled, (made(21, 33, 2),), [4, 32], 3, 9),
    "repeated rows": (enlarged, of_enlarged, (made(7, 40),), [4, 32], 2, 4),
    "masks of edges": (laplacian, of_laplacian, (made(16, 40, dtype=FP32),), [8, 32], 5, 26),
    "masks of edges and odd sizes": (laplacian, of_laplacian, (made(21, 40, dtype=FP32),), [8, 32], 5, 29),
    "two axes": (both, of_both, (made(5, 9, 40),), [2, 4, 32], 9, 24),
}


#: Those that need constant sizes: a bound of the launch may be no multiple of two, and says nothing of the last row.
STATIC = ("repeated rows", "masks of edges", "masks of edges and odd sizes")


def loads(code: str, name: str = "x") -> int:
    return len(re.findall(rf"tl\.load\({name} \+", code))


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_each_row_is_loaded_once(case: str, static: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELION_VERIFY", "1")
    fn, reference, args, tiles, before, after = CASES[case]
    bound = helion.kernel(fn, static_shapes=static).bind(args)
    config = helion.Config(block_sizes=tiles, num_warps=1, num_stages=1)
    if static or case not in STATIC:
        assert loads(bound.to_triton_code(config)) == after
    more = helion.Config(block_sizes=tiles, num_warps=32, num_stages=1)
    assert loads(bound.to_triton_code(more)) == before, "threads without an element of each row"
    with detect_races():
        got = bound.compile_config(config)(*args)
    want = reference(*args)
    torch.testing.assert_close(got, want, rtol=2e-2 if want.dtype is BF16 else 1e-5, atol=1e-2)


@pytest.mark.parametrize(
    ("fn", "tiles", "why"),
    [
        (in_place, [4, 64], "a row is stored before another one loads it"),
        (normalized, [4], "a sum takes whole tiles"),
        (turned, [4, 64], "rows become columns"),
    ],
)
def test_rows_that_stay_together(fn: Callable[..., Any], tiles: list[int], why: str) -> None:
    bound = helion.kernel(fn).bind((tensor(66, 64),))
    code = bound.to_triton_code(helion.Config(block_sizes=tiles, num_warps=1, num_stages=1))
    assert loads(code) == 3, why


def test_rows_that_share_little_stay_together() -> None:
    def pairs(x):
        h, n = x.size()
        out = torch.empty([h - 1, n], dtype=x.dtype, device=x.device)
        for rows, columns in hl.tile([h - 1, n]):
            out[rows, columns] = x[rows, columns] + x[rows.index + 1, columns] * x[rows.index * 3, 0]
        return out

    bound = helion.kernel(pairs).bind((tensor(65, 64),))
    assert loads(bound.to_triton_code(helion.Config(block_sizes=[2, 64], num_warps=1, num_stages=1))) == 3


def test_filters_that_would_compile_for_long_have_fewer_rows() -> None:
    def taps(x, w):
        h, n = x.size()
        out = torch.empty([h - 6, n - 6], dtype=x.dtype, device=x.device)
        for rows, columns in hl.tile(out.size()):
            acc = hl.zeros([rows, columns], dtype=torch.float32)
            for dy in hl.static_range(7):
                for dx in hl.static_range(7):
                    acc = acc + x[rows.index + dy, columns.index + dx].to(torch.float32) * w[dy, dx]
            out[rows, columns] = acc.to(x.dtype)
        return out

    bound = helion.kernel(taps).bind((tensor(134, 134), tensor(7, 7, dtype=FP32)))
    found = {
        rows: loads(bound.to_triton_code(helion.Config(block_sizes=[rows, 64], num_warps=1, num_stages=1)))
        for rows in (4, 16)
    }
    assert found == {4: 70, 16: 49}
