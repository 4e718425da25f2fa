"""4-bit floats two to a byte, and 16 small numbers by one wide load."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import Config, exc
from helion.backends.triton.toolchain.offline import compile_offline
from helion.backends.triton.toolchain.signature import offline_signature

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
CODES = torch.arange(256, dtype=torch.uint8)
STORAGES = (CODES, CODES.view(torch.float4_e2m1fn_x2), CODES.view(16, 16))


@helion.kernel
def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    low, high = torch.empty(x.shape, device=x.device), torch.empty(x.shape, device=x.device)
    for tile in hl.tile(x.size()):
        low[tile], high[tile] = hl.float4_e2m1fn_x2_to_float32(x[tile])
    return low, high


@helion.kernel
def groups_of_float4(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    out = torch.empty([*offsets.size(), 16], dtype=torch.float16, device=x.device)
    for a, b in hl.tile(offsets.size()):
        values = hl.load_float4_e2m1fn_x16_to_float16(x, offsets[a, b], extra_mask=offsets[a, b] != 2)
        for at in hl.static_range(16):
            out[a, b, at] = values[at]
    return out


@helion.kernel
def groups_of_bfloat16(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    out = torch.empty([*offsets.size(), 16], dtype=torch.float16, device=x.device)
    for a, b in hl.tile(offsets.size()):
        values = hl.load_bfloat16_x16_to_float16(x, offsets[a, b], extra_mask=offsets[a, b] != 2)
        for at in hl.static_range(16):
            out[a, b, at] = values[at]
    return out


@helion.kernel
def dot_of_float4(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Rows of 4-bit floats times vectors of floats, one group after the other."""
    out = torch.empty([x.size(0)], device=x.device)
    groups = hl.specialize(x.size(1)) // 8
    for rows in hl.tile(x.size(0)):
        acc = hl.zeros([rows])
        for group in range(groups):
            values = hl.load_float4_e2m1fn_x16_to_float16(x, rows.index * groups + group)
            for at in hl.static_range(16):
                acc += values[at].to(torch.float32) * y[group * 16 + at]
        out[rows] = acc
    return out


def ways(kernel: helion.Kernel, args: tuple[Any, ...], sizes: list[int], static: bool = True) -> list[Any]:
    bound = helion.kernel(kernel.fn, static_shapes=static).bind(args)
    return [bound.run_ref(*args), bound.compile_config(Config(block_sizes=sizes))(*args)]


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("shape", [(256,), (1,), (63,), (5, 17)])
def test_halves(shape: tuple[int, ...], static: bool) -> None:
    codes = torch.randint(0, 256, shape, dtype=torch.uint8)
    for given in (codes, codes.view(torch.float4_e2m1fn_x2)):
        for low, high in ways(halves, (given,), [8] * len(shape), static):
            assert torch.equal(low, E2M1[(codes & 15).long()]) and torch.equal(high, E2M1[(codes >> 4).long()])
    for low, _ in ways(halves, (CODES,), [64]):
        assert torch.equal(low.signbit(), (CODES & 8) != 0)


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("storage", range(3))
def test_groups_of_float4(storage: int, dtype: torch.dtype, static: bool) -> None:
    offsets = torch.tensor([[3, 1, 2], [0, 31, 7]], dtype=dtype)
    expected = torch.stack([E2M1[(CODES & 15).long()], E2M1[(CODES >> 4).long()]], -1).reshape(32, 16)[offsets.long()]
    expected[0, 2] = 0
    for found in ways(groups_of_float4, (STORAGES[storage], offsets), [1, 4], static):
        assert torch.equal(found, expected.half())


@pytest.mark.parametrize("static", [True, False])
def test_groups_of_bfloat16(static: bool) -> None:
    x = (torch.randn(300) * 1e4 + 7).to(torch.bfloat16)
    offsets = torch.tensor([[3, 1, 2], [0, 17, 7]])
    expected = x[:288].view(18, 16)[offsets].half()
    expected[0, 2] = 0
    for found in ways(groups_of_bfloat16, (x, offsets), [2, 2], static):
        assert torch.equal(found, expected)


def test_a_product() -> None:
    x, y = torch.randint(0, 256, (13, 24), dtype=torch.uint8), torch.randn(48) + 1
    matrix = torch.stack([E2M1[(x & 15).long()], E2M1[(x >> 4).long()]], -1).reshape(13, 48)
    for found in ways(dot_of_float4, (x, y), [8]):
        torch.testing.assert_close(found, (matrix.double() @ y.double()).float())


@pytest.mark.parametrize("kernel, count", [(groups_of_float4, 1), (groups_of_bfloat16, 4)], ids=lambda k: str(k))
def test_loads_are_wide(kernel: helion.Kernel, count: int) -> None:
    dtype = torch.uint8 if count == 1 else torch.bfloat16
    bound = kernel.bind((torch.zeros(1 << 14, dtype=dtype), torch.zeros(64, 8, dtype=torch.int32)), target="sm_90")
    plan = bound._analysis.code(bound.default_config()).plan
    function = inspect.unwrap(bound.compile_config()).__globals__["tl"].int64 and bound.compile_config()
    jitted = next(
        v
        for n, v in inspect.unwrap(function).__globals__.items()
        if n.startswith("_helion_") and hasattr(v, "arg_names")
    )
    ptx = compile_offline(jitted, **offline_signature(plan, bound.target)).asm["ptx"]
    wide = re.findall(r"ld\.global(?:\.\w+::\w+)*\.(?:v2\.)?b64", ptx)
    assert len(wide) % count == 0 and wide
    assert not re.findall(r"ld\.global\S*\.b(?:8|16)\b", ptx)


# --- refusals -----------------------------------------------------------------------------------------------------------


@helion.kernel
def of_host_tensor(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.shape, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile] = hl.float4_e2m1fn_x2_to_float32(x)[0]
    return out


@helion.kernel
def of_a_tile(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.shape, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile] = hl.load_float4_e2m1fn_x16_to_float16(x[tile], tile)[0]
    return out


OFFSETS = torch.zeros(2, 3, dtype=torch.int64)


@pytest.mark.parametrize(
    "kernel, args, error, text",
    [
        (halves, (torch.zeros(8, dtype=torch.int8),), exc.InvalidAPIUsage, r"got torch\.int8"),
        (
            groups_of_float4,
            (torch.zeros(64), OFFSETS),
            exc.InvalidAPIUsage,
            r"torch\.float4_e2m1fn_x2, got torch\.float32",
        ),
        (groups_of_bfloat16, (torch.zeros(64).half(), OFFSETS), exc.InvalidAPIUsage, r"got torch\.float16"),
        (groups_of_float4, (CODES, OFFSETS.float()), exc.InvalidAPIUsage, "must be integers"),
        (of_host_tensor, (CODES,), exc.HostTensorDirectUsage, "'x'"),
        (of_a_tile, (CODES,), exc.InvalidAPIUsage, "must be a host tensor"),
    ],
    ids=lambda v: getattr(v, "name", None),
)
def test_refusals(kernel: helion.Kernel, args: tuple[Any, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        kernel.bind(args)


def test_storage_is_contiguous_and_aligned() -> None:
    with pytest.raises(exc.InvalidAPIUsage, match=r"must be contiguous.*storage\.contiguous"):
        groups_of_float4(CODES.view(16, 16).T, OFFSETS)
    with pytest.raises(exc.InvalidAPIUsage, match="multiple of 8 bytes"):
        groups_of_float4(CODES[1:], OFFSETS)


def test_a_module_without_helion() -> None:
    bound = groups_of_float4.bind((CODES, OFFSETS))
    text = bound.to_code(options=helion.OutputCodeOptions(allow_helion_deps=False))
    assert "import helion" not in text and "def flat_words(tensor):" in text
