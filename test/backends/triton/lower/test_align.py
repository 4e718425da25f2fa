"""Loops over rows that begin anywhere: right against fp64 whatever the row, and which loops are aligned."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion.backends.triton.toolchain.offline import compile_offline
from helion.backends.triton.toolchain.signature import offline_signature


@helion.kernel()
def probabilities(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.softmax(x[tile, :].to(torch.float32), dim=-1).to(x.dtype)
    return out


@helion.kernel()
def cubed(x: torch.Tensor) -> torch.Tensor:
    """Rows of three dimensions, by a scalar index, a tile of a loop and a fixed one."""
    b, m, _, n = x.size()
    out = torch.empty_like(x)
    for i in hl.grid(b):
        for tile in hl.tile(m):
            for part in hl.tile(n):
                out[i, tile, 1, part] = x[i, tile, 1, part] ** 3
                out[i, tile, 0, part] = x[i, tile, 0, part]
    return out


@helion.kernel()
def planes(x: torch.Tensor) -> torch.Tensor:
    b, m, n = x.size()
    out = torch.empty_like(x)
    for i in hl.grid(b):
        for tile in hl.tile(m):
            first = x[i, tile, 0]
            for part in hl.tile(n):
                out[i, tile, part] = x[i, tile, part] * first[:, None]
    return out


@helion.kernel()
def ranges(x: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile in hl.tile(m):
        acc = hl.full([tile], float("inf"), dtype=torch.float32)
        for part in hl.tile(n):
            acc = torch.minimum(acc, torch.exp(x[tile, part].to(torch.float32)).amin(-1))
        out[tile] = acc
    return out


@helion.kernel()
def scaled_copy(x: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty_like(x)
    for tile in hl.tile(m):
        first = x[tile, 0]
        for part in hl.tile(n):
            out[tile, part] = x[tile, part] * first[:, None]
    return out


@helion.kernel()
def with_weights(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty_like(x)
    for tile in hl.tile(m):
        for part in hl.tile(n):
            out[tile, part] = x[tile, part] * w[part]
    return out


@helion.kernel()
def in_place(x: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    for tile in hl.tile(m):
        for part in hl.tile(n):
            x[tile, part] = x[tile, part] * 2
    return x


@helion.kernel()
def summed(x: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile in hl.tile(m):
        acc = hl.zeros([tile], dtype=torch.float32)
        for part in hl.tile(n):
            acc = acc + x[tile, part].sum(-1)
        out[tile] = acc
    return out


@helion.kernel()
def from_where_it_begins(x: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty_like(x)
    for tile in hl.tile(m):
        for part in hl.tile(n):
            out[tile, part] = x[tile, part] + part.begin
    return out


ALIGNED: dict[helion.Kernel, tuple[tuple[int, ...], Callable[..., Any]]] = {
    probabilities: ((5, 301), lambda x: torch.softmax(x, -1)),
    ranges: ((7, 333), lambda x: torch.exp(x).amin(-1)),
    scaled_copy: ((4, 515), lambda x: x * x[:, :1]),
    planes: ((2, 2, 301), lambda x: x * x[:, :, :1]),
}
AS_THEY_ARE: dict[helion.Kernel, tuple[tuple[int, ...], ...]] = {
    cubed: ((2, 3, 2, 333),),  # two rows that begin elsewhere
    scaled_copy: ((9, 512),),
    with_weights: ((9, 515), (515,)),
    in_place: ((9, 515),),
    summed: ((9, 515),),
    from_where_it_begins: ((9, 515),),
}


def chosen(kernel: helion.Kernel, *args: torch.Tensor, rows: int = 1, chunk: int = 64) -> tuple[Any, dict[str, Any]]:
    bound = kernel.bind(args)
    spec = bound.conservative_config()
    tiles = len(spec["block_sizes"])
    sizes = [rows] + [chunk] * (tiles - 1)
    return bound, {"block_sizes": sizes, "reduction_loops": [chunk] * len(spec["reduction_loops"])}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kernel", ALIGNED, ids=lambda k: k.name)
def test_rows_that_begin_anywhere(kernel: helion.Kernel, dtype: torch.dtype) -> None:
    shape, reference = ALIGNED[kernel]
    x = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) + 1).to(dtype)
    bound, config = chosen(kernel, x)
    assert "tl.multiple_of" in bound.to_triton_code(config)
    expected = reference(x.double())
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(bound.compile_config(config)(x).double(), expected, rtol=2 * eps, atol=2 * eps)


@pytest.mark.parametrize("n", [257, 258, 260, 319])
def test_every_remainder(n: int) -> None:
    """In views, too, whose first row begins anywhere."""
    whole = torch.randn(5, n + 3, generator=torch.Generator().manual_seed(n))
    for x in (whole[:, :n].contiguous(), whole[:, 3:]):
        bound, config = chosen(probabilities, x)
        torch.testing.assert_close(bound.compile_config(config)(x), torch.softmax(x, -1))


def test_what_is_not_finite_and_rows_of_one_value() -> None:
    x = torch.full((4, 301), -3.0)
    x[0, 0], x[1, 300], x[2, 7:290] = float("inf"), float("nan"), float("-inf")
    bound, config = chosen(probabilities, x)
    torch.testing.assert_close(bound.compile_config(config)(x), torch.softmax(x, -1), equal_nan=True)


@pytest.mark.parametrize("kernel", AS_THEY_ARE, ids=lambda k: k.name)
def test_loops_that_stay_as_they_are(kernel: helion.Kernel) -> None:
    args = tuple(torch.randn(shape) for shape in AS_THEY_ARE[kernel])
    bound, config = chosen(kernel, *args)
    assert "tl.multiple_of" not in bound.to_triton_code(config)


def test_tiles_of_several_rows_and_few_tiles_stay_as_they_are() -> None:
    x = torch.randn(9, 515)
    for rows, chunk in ((2, 64), (1, 256), (1, 16)):
        bound, config = chosen(scaled_copy, x, rows=rows, chunk=chunk)
        assert "tl.multiple_of" not in bound.to_triton_code(config)


def test_loads_are_vectors() -> None:
    """Of 8 numbers of 16 bits where no lane is out of range, as the assembler sees them."""
    bound = probabilities.bind((torch.empty(64, 50257, dtype=torch.bfloat16, device="meta"),), target="h200")
    config = {"block_sizes": [1], "reduction_loops": [2048], "num_warps": 8}
    plan = bound._analysis.code(bound.config_spec.normalize(config)).plan
    function = inspect.unwrap(bound.compile_config(config)).__globals__[plan.kernel_names[0]]
    text = compile_offline(function, **offline_signature(plan, bound.target)).asm["ptx"]
    assert "ld.global.v4.b32" in text and "st.global.v4.b32" in text


def test_strides_that_differ_from_call_to_call() -> None:
    """A loop of a known end over rows whose distance only launches know is left as it is."""

    def halved(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        n = hl.specialize(x.size(1))
        for tile in hl.tile(x.size(0)):
            for part in hl.tile(n):
                out[tile, part] = x[tile, part] * 0.5
        return out

    kernel = helion.kernel(halved, static_shapes=False, config=helion.Config(block_sizes=[1, 64]))
    for x in (torch.randn(3, 1001), torch.randn(3, 1100)[:, :1001], torch.randn(1001, 3).T):
        assert torch.equal(kernel(x), x * 0.5)
    bound = helion.kernel(halved, static_shapes=False).bind((torch.empty(7, 1001, device="meta").T.T,), target="h100")
    bound.to_triton_code(bound.default_config())
