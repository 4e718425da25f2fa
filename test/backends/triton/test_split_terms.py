"""Split-K of accumulators that subtract, and of sums that all programs along a dimension of the grid repeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl


def complex_gram(re: torch.Tensor, im: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    k, n = re.size()
    real = torch.empty([n, n], dtype=torch.float32, device=re.device)
    imag = torch.empty([n, n], dtype=torch.float32, device=re.device)
    for tile_m, tile_n in hl.tile([n, n]):
        r = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        i = hl.full([tile_m, tile_n], 0.5, dtype=torch.float32)
        for tile_k in hl.tile(k):
            a, b = re[tile_k, tile_m].T, im[tile_k, tile_m].T
            c, d = re[tile_k, tile_n], im[tile_k, tile_n]
            r = hl.dot(a, c, acc=r)
            r = hl.dot(b, d, acc=r)
            i = hl.dot(a, d, acc=i)
            i = i - hl.dot(b, c)
        real[tile_m, tile_n] = r
        imag[tile_m, tile_n] = i
    return real, imag


def complex_expected(re: torch.Tensor, im: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    re, im = re.double(), im.double()
    return re.T @ re + im.T @ im, re.T @ im - im.T @ re + 0.5


def gradients(g: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    t, n = g.size()
    dw = torch.empty([n, x.size(1)], dtype=torch.float32, device=g.device)
    db = torch.empty([n], dtype=torch.float32, device=g.device)
    for tile_n, tile_k in hl.tile([n, x.size(1)]):
        acc = hl.zeros([tile_n, tile_k], dtype=torch.float32)
        sums = hl.zeros([tile_n], dtype=torch.float32)
        for tile_t in hl.tile(t):
            rows = g[tile_t, tile_n]
            acc = torch.addmm(acc, rows.T, x[tile_t, tile_k])
            sums += rows.to(torch.float32).sum(0)
        dw[tile_n, tile_k] = acc
        db[tile_n] = sums
    return dw, db


def guarded_gradients(g: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    t, n = g.size()
    dw = torch.empty([n, x.size(1)], dtype=torch.float32, device=g.device)
    db = torch.empty([n], dtype=torch.float32, device=g.device)
    for tile_n, tile_k in hl.tile([n, x.size(1)]):
        acc = hl.zeros([tile_n, tile_k], dtype=torch.float32)
        sums = hl.full([tile_n], 1.0, dtype=torch.float32)
        for tile_t in hl.tile(t):
            rows = g[tile_t, tile_n]
            acc = torch.addmm(acc, rows.T, x[tile_t, tile_k])
            sums += rows.to(torch.float32).sum(0)
        dw[tile_n, tile_k] = acc
        if tile_k.begin == 0:
            db[tile_n] = sums - 1.0
    return dw, db


def gradients_expected(g: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return g.double().T @ x.double(), g.double().sum(0)


CASES = [
    (complex_gram, complex_expected, 33),
    (gradients, gradients_expected, 49),
    (guarded_gradients, gradients_expected, 49),
]


@pytest.mark.parametrize(("fn", "expected", "columns"), CASES)
@pytest.mark.parametrize(("sizes", "parts"), [([16, 16, 16], 4), ([32, 32, 32], 8), ([64, 16, 64], 2)])
def test_parts_add_up(
    fn: Callable[..., Any], expected: Callable[..., Any], columns: int, sizes: list[int], parts: int
) -> None:
    a, b = torch.randn(257, 33) + 0.25, torch.randn(257, columns) + 0.25
    bound = helion.kernel(fn, backend="triton").bind((a, b))
    config = bound.config_spec.normalize({"block_sizes": sizes, "split_k": parts, "num_warps": 4})
    assert config["split_k"] == parts and bound.to_triton_code(config).count("@triton.jit\ndef _helion") == 2
    for found, want in zip(bound.compile_config(config)(a, b), expected(a, b), strict=True):
        torch.testing.assert_close(found.double(), want, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("fn", [gradients, guarded_gradients])
def test_no_program_races_for_the_sums(fn: Callable[..., Any]) -> None:
    g, x = torch.randn(130, 33), torch.randn(130, 49)
    bound = helion.kernel(fn, backend="triton", checked=True).bind((g, x))
    config = bound.config_spec.normalize({"block_sizes": [16, 16, 16], "split_k": 4, "num_warps": 4})
    for found, want in zip(bound.compile_config(config)(g, x), gradients_expected(g, x), strict=True):
        torch.testing.assert_close(found.double(), want, atol=1e-3, rtol=1e-3)


def test_one_program_stores_the_sums_that_all_repeat() -> None:
    x = torch.empty(65536, 256, dtype=torch.bfloat16, device="meta")
    code = helion.kernel(gradients, backend="triton").bind((x, x), target="h200").to_triton_code()
    first = code.split("@triton.jit\ndef _helion")[1]
    assert "if eq" in first and first.index("if eq") < first.index("tl.store(parts_1")


@pytest.mark.parametrize("name", ["h200", "b200", "a100", "rtx4090"])
@pytest.mark.parametrize("fn", [complex_gram, gradients, guarded_gradients])
def test_few_results_of_many_rows_are_split(fn: Callable[..., Any], name: str) -> None:
    """Two tiles of 128 by 256 would leave the other SMs idle. Before Hopper, operands take registers: K is shorter.

    The assembler says that none spills where the prediction is not sure.
    """
    x = torch.empty(65536, 256, dtype=torch.bfloat16, device="meta")
    bound = helion.kernel(fn, backend="triton").bind((x, x), target=name)
    config = bound.default_config()
    assert config["split_k"] > 1
    whole = bound.config_spec.normalize({**config, "split_k": 1})
    assert 2 * bound._analysis.predict(config).time_us < bound._analysis.predict(whole).time_us
    assert not bound._analysis.predict(config).spill_risk or not bound.resources(config).spill_bytes


def reversed_difference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile(out.size()):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(x.size(1)):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n]) - acc
        out[tile_m, tile_n] = acc
    return out


def sums_of_products(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.empty([x.size(0), y.size(1)], dtype=torch.float32, device=x.device)
    rows = torch.empty([x.size(0), helion.cdiv(y.size(1), 32)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile(out.size(), block_size=[None, 32]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        sums = hl.zeros([tile_m], dtype=torch.float32)
        for tile_k in hl.tile(x.size(1)):
            part = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n])
            acc = acc + part
            sums = sums + part.sum(1)
        out[tile_m, tile_n] = acc
        rows[tile_m, tile_n.id] = sums
    return out, rows


def other_tiles(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.empty([x.size(0), y.size(1)], dtype=torch.float32, device=x.device)
    rows = torch.zeros([x.size(0)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile(out.size()):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        sums = hl.zeros([tile_m], dtype=torch.float32)
        for tile_k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            sums = sums + x[tile_m, tile_k].sum(1)
        out[tile_m, tile_n] = acc
        if tile_n.begin == 16:
            rows[tile_m] = sums
    return out, rows


def first_columns(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.empty([x.size(0), y.size(1)], dtype=torch.float32, device=x.device)
    some = torch.zeros([x.size(0), y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile(out.size()):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
        if tile_n.begin == 0:
            some[tile_m, tile_n] = acc
    return out, some


def other_of_first(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile(out.size()):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = torch.where(tile_n.begin == 0, acc, -acc)
    return out


@pytest.mark.parametrize("fn", [reversed_difference, sums_of_products, other_tiles, first_columns, other_of_first])
def test_what_is_no_sum_or_differs_is_not_split(fn: Callable[..., Any]) -> None:
    """A difference from the accumulator, sums of a tile of the grid, and a condition that depends on the tile's size."""
    x, y = torch.randn(33, 512), torch.randn(512, 70)
    bound = helion.kernel(fn, backend="triton").bind((x, y))
    sizes = [16, 16, 32] if len(bound.default_config()["block_sizes"]) == 3 else [16, 32]
    given = {"block_sizes": sizes, "num_warps": 4}
    try:
        bound.config_spec.normalize({**given, "split_k": 4})
    except helion.exc.InvalidConfig:
        pass
    else:
        assert bound.to_triton_code({**given, "split_k": 4}).count("@triton.jit\ndef _helion") == 1
    assert bound.default_config().config.get("split_k", 1) == 1
