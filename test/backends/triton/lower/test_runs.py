"""Short whole dimensions in one run with the tile before them, and one load for lanes that share an element."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion.backends.triton.execute.interpreter.races import detect_races
from helion.backends.triton.toolchain.offline import compile_offline
from helion.backends.triton.toolchain.signature import offline_signature


def interleaved(x, y):
    """Elements of two rows in turn."""
    m, n = x.size()
    out = torch.empty([m, n, 2], dtype=x.dtype, device=x.device)
    for rows, columns in hl.tile([m, n]):
        out[rows, columns, :] = hl.join(x[rows, columns], y[rows, columns])
    return out


def patches(x):
    """Squares of four pixels, of each of two halves, whose first dimension lies between others in memory."""
    b, h, w = x.size()
    out = torch.empty([b, w // 2, h // 2, 2, 2], dtype=x.dtype, device=x.device)
    pixels = x.view(b, h // 2, 2, w // 2, 2)
    for tile_b, tile_h, tile_w in hl.tile([b, h // 2, w // 2], block_size=[1, 1, None]):
        square = pixels[tile_b.begin, tile_h.begin, :, tile_w, :]
        out[tile_b.begin, tile_w, tile_h.begin, :, :] = square.permute(1, 0, 2)
    return out


def row_sums(x):
    """Sums of rows of four elements, over a loop inside of the grid loop."""
    m, n, four = x.size()
    four = hl.specialize(four)
    out = torch.empty([m, four], dtype=x.dtype, device=x.device)
    for rows in hl.tile(m):
        total = hl.zeros([rows, four], dtype=x.dtype)
        for columns in hl.tile(n):
            total = total + x[rows, columns, :].sum(1)
        out[rows, :] = total
    return out


def turned_in_place(x):
    """Pairs that are stored where they were loaded from."""
    hl.specialize(x.size(1))
    for tile in hl.tile(x.size(0)):
        a, b = hl.split(x[tile, :])
        x[tile, :] = hl.join(b, a)
    return x


def moved(x):
    """Pairs of the next rows, and of rows whose pairs do not begin where the last one ends."""
    n, pair = x.size(0) - 1, hl.specialize(x.size(1))
    out = torch.empty([n, pair + 1], dtype=x.dtype, device=x.device)
    for tile in hl.tile(n):
        out[tile, 0:2] = x[tile.index + 1, :]
        out[tile, 2] = x[tile, 0]
    return out


def made(*shape: int) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(shape)


Case = tuple[Callable[..., Any], Callable[..., torch.Tensor], tuple[torch.Tensor, ...], list[int], int]

#: Kernel, reference, arguments, tiles of one warp, and accesses in one run.
RUNS: dict[str, Case] = {
    "a join": (interleaved, lambda x, y: torch.stack([x, y], -1), (made(7, 37), made(7, 37)), [4, 32], 1),
    "a join of whole tiles": (
        interleaved,
        lambda x, y: torch.stack([x, y], -1),
        (made(8, 64), made(8, 64)),
        [1, 64],
        1,
    ),
    "a lane a thread": (interleaved, lambda x, y: torch.stack([x, y], -1), (made(8, 64), made(8, 64)), [1, 32], 0),
    "patches": (
        patches,
        lambda x: x.view(3, 5, 2, 37, 2).permute(0, 3, 1, 2, 4).contiguous(),
        (made(3, 10, 74),),
        [64],
        2,
    ),
    "halves": (interleaved, lambda x, y: torch.stack([x, y], -1), (made(3, 33).half(), made(3, 33).half()), [2, 64], 1),
    "a vector of its own": (row_sums, lambda x: x.sum(1), (made(5, 37, 4),), [1, 64], 0),
    "half a vector": (row_sums, lambda x: x.sum(1), (made(5, 37, 4).half(),), [1, 64], 1),
    "in place": (turned_in_place, lambda x: x.flip(1), (made(37, 2),), [64], 0),
    "other rows": (moved, lambda x: torch.cat([x[1:], x[:-1, :1]], 1), (made(38, 2),), [64], 0),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", RUNS)
def test_runs(name: str, dynamic: bool) -> None:
    fn, reference, args, sizes, runs = RUNS[name]
    kernel = helion.kernel(fn, static_shapes=not dynamic, config={"block_sizes": sizes, "num_warps": 1})
    expected = reference(*args)
    text = kernel.bind(args).to_triton_code()
    if not dynamic:
        assert text.count("    run") == runs
    with detect_races():
        result = kernel(*(arg.clone() for arg in args))
    tolerance = 1e-2 if result.dtype is torch.half else 1e-6
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)


def scaled(x, scales, group: hl.constexpr):
    """Rows with a scale for each ``group`` columns, and a bias for each pair of rows."""
    m, n = x.size()
    out = torch.empty_like(x)
    for rows, columns in hl.tile([m, n]):
        out[rows, columns] = x[rows, columns] * scales[rows.index // 2, columns.index // group]
    return out


def enlarged(x):
    """Each column three times, from the second on."""
    n = x.size(1)
    out = torch.empty([x.size(0), 4 * (n - 1)], dtype=x.dtype, device=x.device)
    for rows, columns in hl.tile(out.size()):
        out[rows, columns] = x[rows, columns.index // 4 + 1]
    return out


@pytest.mark.parametrize(
    ("sizes", "group", "once"),
    [([4, 32], 8, 2), ([4, 32], 64, 2), ([1, 32], 8, 1), ([4, 128], 12, 0), ([8, 64], 16, 1), ([4, 1], 8, 1)],
    ids=str,
)
def test_shared_elements_are_loaded_once(sizes: list[int], group: int, once: int) -> None:
    x, scales = made(12, 384), made(6, 384 // group)
    bound = helion.kernel(scaled, static_shapes=True).bind((x, scales, group))
    config = {"block_sizes": sizes}
    text = bound.to_triton_code(config)
    assert text.count("tl.broadcast_to(") == once
    # a program that holds each of its rows apart loads the scales of a pair of rows once
    assert once or text.count("tl.load(scales") == sizes[0] // 2
    expected = x * scales.repeat_interleave(2, 0).repeat_interleave(group, 1)
    with detect_races():
        result = bound.compile_config(config)(x, scales, group)
    torch.testing.assert_close(result, expected, rtol=0, atol=0)


@pytest.mark.parametrize("columns", [9, 10], ids=str)
def test_an_offset_of_groups(columns: int) -> None:
    x = made(4, columns)
    kernel = helion.kernel(enlarged, static_shapes=True, config={"block_sizes": [2, 16]})
    # a last tile with lanes out of range loads one element for each lane
    assert ("tl.broadcast_to(" in kernel.bind((x,)).to_triton_code()) == (columns == 9)
    torch.testing.assert_close(kernel(x), x[:, 1:].repeat_interleave(4, 1), rtol=0, atol=0)


def unpacked(packed, scales):
    """Two numbers of each byte, with a scale for each 64 bytes."""
    m, n = packed.size()
    out = torch.empty([m, n, 2], dtype=scales.dtype, device=packed.device)
    for rows, columns in hl.tile([m, n]):
        both = packed[rows, columns].to(torch.int32)
        scale = scales[rows, columns.index // 64].to(torch.float32)
        low, high = (both & 15).to(torch.float32) * scale, (both >> 4).to(torch.float32) * scale
        out[rows, columns, :] = hl.join(low, high).to(scales.dtype)
    return out


def test_a_store_of_pairs_has_whole_vectors() -> None:
    packed, scales = torch.zeros(64, 2048, dtype=torch.uint8), torch.zeros(64, 32, dtype=torch.bfloat16)
    bound = helion.kernel(unpacked, static_shapes=True).bind((packed, scales), target="h200")
    config = bound.config_spec.normalize({"block_sizes": [1, 1024], "num_warps": 4, "num_stages": 1})
    analysis = bound._analysis
    plan = analysis.code(config).plan
    function = inspect.unwrap(bound.compile_config(config)).__globals__[plan.kernel_names[0]]
    compiled = compile_offline(function, **offline_signature(plan, bound.target))
    text = compiled.asm["ptx"]
    assert (text.count("st.global.v4.b32"), text.count("st.global")) == (2, 2)
    assert text.count("ld.global.b16") <= 2, "scales of the eight lanes of a thread"
    assert compiled.metadata.shared == analysis.predict(config).shared_bytes


def halves(x, at, out):
    """Even elements of rows in one plane of `out[N, 2, H]`, odd ones in the other, or both in the plane ``at``."""
    n, _, half = out.size()
    pairs = x.view(n, half, 2)
    for tile in hl.tile(n):
        even, odd = hl.split(pairs[tile, :, :])
        out[tile, 0, :] = even
        if at is None:
            out[tile, 1, :] = odd
        else:
            out[tile, at, :] = odd
    return out


@pytest.mark.parametrize("rows", [63, 1000])
@pytest.mark.parametrize("at", [None, 1])
def test_pairs_are_loaded_in_vectors_beside_stores_to_other_planes(rows: int, at: int | None) -> None:
    x = torch.randn(rows, 128).to(torch.bfloat16)
    kernel = helion.kernel(halves, config={"block_sizes": [8], "num_warps": 1})
    given = (x, at, torch.empty(rows, 2, 64, dtype=x.dtype))
    found = kernel(*given)
    torch.testing.assert_close(found, x.view(rows, 64, 2).transpose(1, 2), rtol=0, atol=0)
    # a plane that the launch knows may be the other one: lanes stay where the stores have them
    assert ("+ run[None, :]" in kernel.bind(given).to_triton_code()) == (at is None)
