"""Numbers known at launch whose powers of two a kernel knows: vectors of rows of any length, and the values."""

from __future__ import annotations

import inspect
import re

import pytest
import torch

import helion
import helion.language as hl
from helion.backends.triton.toolchain.offline import compile_offline
from helion.backends.triton.toolchain.signature import offline_signature


@helion.kernel(static_shapes=False)
def softmax(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        v = x[tile, :].float()
        v = torch.exp(v - v.amax(1, keepdim=True))
        out[tile, :] = (v / v.sum(1, keepdim=True)).to(x.dtype)
    return out


@helion.kernel(static_shapes=False)
def scaled(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile(x.size()):
        out[tile_m, tile_n] = x[tile_m, tile_n] * scale[tile_n]
    return out


@helion.kernel()
def group_means(x: torch.Tensor, groups: int) -> torch.Tensor:
    """Means of groups of columns, whose number is an argument."""
    n, c = x.size()
    parts = x.view(n, groups, c // groups)
    out = torch.empty([n, groups], dtype=x.dtype, device=x.device)
    for tile, group in hl.tile([n, groups], block_size=[None, 1]):
        out[tile, group.begin] = parts[tile, group.begin, :].mean(-1)
    return out


@helion.kernel()
def shifted(x: torch.Tensor, by: int) -> torch.Tensor:
    n = x.size(1) - by
    out = torch.empty([x.size(0), n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([x.size(0), n]):
        out[tile_m, tile_n] = x[tile_m, tile_n.index + by] + 1
    return out


WIDTHS = (1, 2, 3, 63, 96, 100, 1000, 1002, 1024, 4097)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", WIDTHS)
def test_rows_of_any_length(width: int, dtype: torch.dtype) -> None:
    """One compiled form is right for all lengths: the same kernel takes them in turn."""
    x, scale = torch.randn(5, width).to(dtype), torch.randn(width).to(dtype)
    close = {"atol": 1e-2, "rtol": 1e-2} if dtype == torch.bfloat16 else {"atol": 1e-6, "rtol": 1e-5}
    torch.testing.assert_close(softmax(x), torch.softmax(x.float(), 1).to(dtype), **close)
    torch.testing.assert_close(scaled(x, scale), x * scale, **close)


@pytest.mark.parametrize("groups", [1, 2, 3, 5, 6, 10, 30])
def test_views_by_a_number(groups: int) -> None:
    x = torch.randn(7, 240 * 5)
    torch.testing.assert_close(group_means(x, groups), x.view(7, groups, -1).mean(-1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("by", [0, 1, 2, 4, 7, 8, 16, 24, 99])
def test_shifts(by: int) -> None:
    x = torch.randn(5, 100)
    torch.testing.assert_close(shifted(x, by), x[:, by:] + 1)


def test_a_length_that_is_empty() -> None:
    assert softmax(torch.empty(0, 10)).shape == (0, 10)
    assert scaled(torch.empty(4, 0), torch.empty(0)).shape == (4, 0)


@pytest.mark.parametrize("number", [-48, -7, -2, 0, 1, 2, 6, 8, 10, 12, 16, 40, 1000, 2**31, 2**62])
def test_the_power_of_two(number: int) -> None:
    code = softmax.bind((torch.empty(8, 1000, device="meta"),), target="h200").to_code()
    (formula,) = re.findall(r"_UNIT_x_size_1 = (.*)", code)
    unit = eval(formula, {"x_size_1": number})
    assert number % unit == 0 and unit in (1, 2, 4, 8, 16) and (unit == 16 or number % (2 * unit))


def test_multiples_of_16_have_no_constant() -> None:
    """Triton knows them itself, and a number that only counts rows is in no vector."""
    code = helion.kernel(softmax.fn, static_shapes=False).bind((torch.empty(8, 1024, device="meta"),), target="h200")
    assert "_UNIT" not in code.to_code()
    other = helion.kernel(softmax.fn, static_shapes=False).bind((torch.empty(7, 1000, device="meta"),), target="h200")
    assert set(re.findall(r"_UNIT_\w+", other.to_code())) == {"_UNIT_x_size_1"}


@pytest.mark.parametrize(("groups", "bits"), [(32, 32), (40, 128), (64, 16)])
def test_rows_of_groups_have_vectors(groups: int, bits: int) -> None:
    """Of 320 columns in 16 bits, 10, 8 and 5 are in a group: a vector has a power of two of them."""
    x = torch.empty(4096, 320, device="meta", dtype=torch.bfloat16)
    bound = helion.kernel(group_means.fn, backend="triton").bind((x, groups), target="h200")
    config = helion.Config(block_sizes=[64], num_warps=1, reduction_loops=[None])
    full = bound.config_spec.normalize(config)
    plan = bound._analysis.code(full).plan
    kernel = inspect.unwrap(bound.compile_config(full)).__globals__[plan.kernel_names[0]]
    ptx = compile_offline(kernel, **offline_signature(plan, bound.target)).asm["ptx"]
    widths = {32 * int(n or 1) if b == "32" else int(b) for n, b in re.findall(r"ld\.global(?:\.v(\d))?\.b(\d+)", ptx)}
    assert max(widths) == bits
