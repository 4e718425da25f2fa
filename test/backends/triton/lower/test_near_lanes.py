"""Neighbouring lanes for taps of a window along contiguous memory, in a loop or one after the other."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl
from helion.backends.assembly import by_width

BF16, FP32, U8 = torch.bfloat16, torch.float32, torch.uint8


def filtered(x, taps):
    """A causal filter of rows."""
    b, t = x.size()
    out = torch.empty_like(x)
    for rows, columns in hl.tile([b, t]):
        acc = hl.zeros([rows, columns], dtype=torch.float32)
        for i in range(taps.size(0)):
            at = columns.index - i
            acc += taps[i] * hl.load(x, [rows, at], extra_mask=(at >= 0)[None, :]).to(torch.float32)
        out[rows, columns] = acc.to(x.dtype)
    return out


def of_filtered(x, taps):
    padded = torch.nn.functional.pad(x.double(), (taps.size(0) - 1, 0))
    return sum(tap * padded[:, -i - x.size(1) : padded.size(1) - i] for i, tap in enumerate(taps.double())).to(x.dtype)


def largest(x, radius: int):
    """The largest of the neighbours along rows, less the element, and along columns."""
    h, w = x.size()
    out = torch.empty_like(x)
    for rows, columns in hl.tile([h, w]):
        most = x[rows, columns]
        for i in range(-radius, radius + 1):
            for j in range(-radius, radius + 1):
                y, at = rows.index + i, columns.index + j
                inside = ((y >= 0) & (y < h))[:, None] & ((at >= 0) & (at < w))[None, :]
                most = torch.maximum(most, hl.load(x, [y, at], extra_mask=inside))
        out[rows, columns] = most - x[rows, columns]
    return out


def of_largest(x, radius: int):
    side = 2 * radius + 1
    return torch.nn.functional.max_pool2d(x[None].float(), side, 1, radius)[0].to(x.dtype) - x


def clamped(x, radius: int):
    """Sums of neighbours along rows, with the elements of the edge repeated."""
    h, w = x.size()
    out = torch.empty_like(x)
    for rows, columns in hl.tile([h, w]):
        acc = hl.zeros([rows, columns], dtype=torch.float32)
        for i in range(-radius, radius + 1):
            acc += x[rows, torch.clamp(columns.index + i, 0, w - 1)]
        out[rows, columns] = acc
    return out


def of_clamped(x, radius: int):
    padded = torch.nn.functional.pad(x[None], (radius, radius), mode="replicate")[0]
    return sum(padded[:, i : i + x.size(1)] for i in range(2 * radius + 1))


def made(*shape: int, dtype: torch.dtype = FP32) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randint(0, 200, shape).to(dtype) if dtype is U8 else torch.randn(shape).to(dtype)


def lanes(code: str) -> list[str]:
    """Return the most elements of a thread at once, of each access with such a number."""
    zero = r"tl\.minimum\(tl\.program_id\(0\), 0\)"
    return [wide or "1" for wide in re.findall(rf"\+ (?:tl\.multiple_of\()?{zero}(?:, (\d+)\))?", code)]


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize(
    ("fn", "reference", "args", "found"),
    [
        (filtered, of_filtered, (made(9, 1000), made(33)), ["1"]),
        (filtered, of_filtered, (made(3, 63, dtype=BF16), made(5)), ["2"]),
        (largest, of_largest, (made(33, 65, dtype=U8), 2), ["4", "4", "4"]),
        (clamped, of_clamped, (made(9, 130), 3), ["1"]),
    ],
    ids=["fp32", "bf16", "uint8", "clamped"],
)
def test_accesses_beside_taps_are_narrow(
    fn: Callable[..., Any],
    reference: Callable[..., torch.Tensor],
    args: tuple[Any, ...],
    found: list[str],
    static: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HELION_VERIFY", "1")
    bound = helion.kernel(fn, static_shapes=static).bind(args)
    config = helion.Config(block_sizes=[2, 64], num_warps=1, num_stages=1)
    assert lanes(bound.to_triton_code(config)) == found
    got, want = bound.compile_config(config)(*args), reference(*args)
    torch.testing.assert_close(got, want, rtol=2e-2 if want.dtype is BF16 else 1e-5, atol=2e-2)


def bagged(ids, tables):
    """Sums of rows of tables that host code lays out, whose strides dynamic shapes leave open."""
    count, length, size = ids.size(0), ids.size(1), tables.size(1)
    rows = tables.view(count * size, tables.size(2))
    out = torch.empty([count, rows.size(1)], device=tables.device)
    for table, columns in hl.tile([count, rows.size(1)], block_size=[1, None]):
        acc = hl.zeros([table, columns])
        for item in range(length):
            acc += rows[ids[table, item] + table.begin * size, columns]
        out[table, columns] = acc
    return out


@pytest.mark.parametrize("static", [True, False])
def test_strides_of_host_views_may_be_unknown(static: bool) -> None:
    ids, tables = torch.arange(12).view(3, 4) % 7, made(3, 7, 63)
    expected = torch.stack([table[at].sum(0) for table, at in zip(tables, ids, strict=True)])
    torch.testing.assert_close(helion.kernel(bagged, static_shapes=static)(ids, tables), expected)


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_loads_of_neighbouring_lanes_are_adjacent(target: str) -> None:
    bound = helion.kernel(filtered).bind((tensor(256, 4096, dtype=FP32), tensor(33, dtype=FP32)), target=target)
    config = helion.Config(block_sizes=[8, 128], num_warps=8, num_stages=1)
    ((_, code),) = bound.variant.compiled.assembled(bound.config_spec.normalize(config)).items()
    widths = sum((by_width(part) for part in code.by_depth()), by_width(()))
    assert {(unit, width) for unit, width in widths if unit in ("load", "store")} == {("load", 4), ("store", 4)}


def listed(x, count: hl.constexpr):
    """The largest of ``count`` neighbours along rows, one after the other."""
    h, w = x.size()
    out = torch.empty([h, w - count + 1], dtype=x.dtype, device=x.device)
    for rows, columns in hl.tile(out.size()):
        most = x[rows, columns]
        for step in hl.static_range(1, count):
            most = torch.maximum(most, x[rows, columns.index + step])
        out[rows, columns] = most
    return out


def of_listed(x, count: int):
    return x.unfold(1, count, 1).amax(-1)


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize(
    ("fn", "reference", "args", "found"),
    [
        (listed, of_listed, (made(9, 1000), 9), ["1"] * 10),
        (listed, of_listed, (made(3, 4097, dtype=BF16), 8), ["2"] * 9),
        (listed, of_listed, (made(9, 1000), 6), []),
    ],
    ids=["fp32", "bf16", "few"],
)
def test_listed_taps_are_narrow(
    fn: Callable[..., Any],
    reference: Callable[..., torch.Tensor],
    args: tuple[Any, ...],
    found: list[str],
    static: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HELION_VERIFY", "1")
    bound = helion.kernel(fn, static_shapes=static, backend="triton").bind(args)
    config = helion.Config(block_sizes=[2, 256], num_warps=1, num_stages=1)
    assert lanes(bound.to_triton_code(config)) == found
    torch.testing.assert_close(bound.compile_config(config)(*args), reference(*args), rtol=1e-4, atol=1e-3)


def windows(x):
    """Five rows of five taps, of which a thread loads elements that its own share once."""
    h, w = x.size()
    out = torch.empty([h - 4, w - 4], dtype=x.dtype, device=x.device)
    for rows, columns in hl.tile(out.size()):
        most = x[rows, columns]
        for i in hl.static_range(5):
            for j in hl.static_range(5):
                most = torch.maximum(most, x[rows.index + i, columns.index + j])
        out[rows, columns] = most
    return out


def in_blocks(x):
    """A loop whose steps are far apart."""
    b, t = x.size()
    out = torch.empty([b, 64], dtype=x.dtype, device=x.device)
    for rows, columns in hl.tile([b, 64]):
        acc = hl.zeros([rows, columns], dtype=torch.float32)
        for i in range(t // 64):
            acc += x[rows, columns.index + i * 64]
        out[rows, columns] = acc
    return out


def along_rows(x):
    """A window along the rows, whose columns stay aligned."""
    h, w = x.size()
    out = torch.empty([h - 4, w], dtype=x.dtype, device=x.device)
    for rows, columns in hl.tile([h - 4, w]):
        acc = hl.zeros([rows, columns], dtype=torch.float32)
        for i in range(5):
            acc += x[rows.index + i, columns]
        out[rows, columns] = acc
    return out


def selected(x):
    """Places that data selects."""
    h, w = x.size()
    out = torch.empty([h, w - 8], dtype=x.dtype, device=x.device)
    for rows, columns in hl.tile([h, w - 8]):
        acc = hl.zeros([rows, columns], dtype=torch.float32)
        for i in range(5):
            acc += x[rows, x[0, columns].to(torch.int32) + i]
        out[rows, columns] = acc
    return out


def weighted(x):
    """More aligned loads than taps."""
    h, w = x.size()
    out = torch.empty([h, w - 8], dtype=x.dtype, device=x.device)
    for rows, columns in hl.tile([h, w - 8]):
        acc = hl.zeros([rows, columns], dtype=torch.float32)
        for i in range(5):
            acc += x[rows, columns.index + i] * x[rows.index + i, columns] * x[rows.index + 2 * i, columns]
        out[rows, columns] = acc
    return out


def summed(x):
    """Taps whose sum goes through shared memory."""
    h, w = x.size()
    out = torch.empty([h], dtype=x.dtype, device=x.device)
    for rows in hl.tile(h):
        total = hl.zeros([rows], dtype=torch.float32)
        for columns in hl.tile(w - 8):
            for i in range(5):
                total += x[rows, columns.index + i].sum(-1)
        out[rows] = total
    return out


def in_place(x):
    """Taps of the tensor that is stored to."""
    h, w = x.size()
    for rows, columns in hl.tile([h, w - 8]):
        acc = hl.zeros([rows, columns], dtype=torch.float32)
        for i in range(5):
            acc += x[rows, columns.index + i]
        x[rows, columns] = acc
    return x


@pytest.mark.parametrize("fn", [windows, in_blocks, along_rows, selected, weighted, summed, in_place])
def test_other_accesses_keep_their_vectors(fn: Callable[..., Any]) -> None:
    assert not lanes(helion.kernel(fn).bind((tensor(64, 512, dtype=FP32),)).to_triton_code())


def test_unrolled_taps_share_elements_of_a_thread() -> None:
    bound = helion.kernel(filtered).bind((tensor(64, 512, dtype=FP32), tensor(5, dtype=FP32)))
    config = helion.Config(block_sizes=[2, 128], num_warps=1, num_stages=1)
    assert lanes(bound.to_triton_code(config))
    assert not lanes(bound.to_triton_code(helion.Config(**config, static_ranges=[True])))


def test_other_gpus_keep_their_vectors() -> None:
    args = tensor(64, 512, dtype=FP32), tensor(33, dtype=FP32)
    assert not lanes(helion.kernel(filtered).bind(args, target="gfx942").to_triton_code())
