"""Weights of 4 bits with scales of groups, which warps that multiply convert."""

from __future__ import annotations

import pytest
import torch

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.lower.weights.nibbles import with_nibbles
from helion.ops.kernels.int4_linear import int4_linear_kernel

HALF = 64


@helion.kernel(backend="cute", static_shapes=True)
def unsigned(x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Numbers from 0 to 15, less 8; the weights are on the right."""
    m, (n, groups, _) = x.size(0), packed.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for group in hl.grid(groups):
            both = packed[tile_n, group, :].to(torch.int32)
            low, high = (both & 15) - 8, ((both >> 4) & 15) - 8
            part = hl.dot(x[tile_m, group, 0, :], low.to(x.dtype).T)
            part = hl.dot(x[tile_m, group, 1, :], high.to(x.dtype).T, acc=part)
            acc = acc + part * scale[tile_n, group][None, :]
        out[tile_m, tile_n] = acc
    return out


@helion.kernel(backend="cute", static_shapes=True)
def three_bits(x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    m, (n, groups, _) = x.size(0), packed.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for group in hl.grid(groups):
            both = packed[tile_n, group, :]
            part = hl.dot(x[tile_m, group, 0, :], (both & 7).to(x.dtype).T)
            part = hl.dot(x[tile_m, group, 1, :], ((both >> 4) & 7).to(x.dtype).T, acc=part)
            acc = acc + part * scale[tile_n, group][None, :]
        out[tile_m, tile_n] = acc
    return out


def arguments(m: int, dtype: torch.dtype, n: int = 192, groups: int = 5) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(m)
    x = torch.randn(m, groups, 2, HALF, generator=generator) + 0.25
    packed = torch.randint(-128, 128, (n, groups, HALF), generator=generator).to(torch.int8)
    return x.to(dtype), packed, torch.rand(n, groups, generator=generator) + 0.5


def exact(x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor, *, signed: bool) -> torch.Tensor:
    bits = packed.int() & 255
    weights = torch.stack((bits & 15, bits >> 4), dim=2)
    weights = ((weights ^ 8) - 8 if signed else weights - 8).double() * scale.double()[..., None, None]
    return x.double().flatten(1) @ weights.flatten(1).T


@pytest.mark.parametrize(("m", "dtype"), [(1, torch.bfloat16), (13, torch.float16)])
def test_signed_numbers_of_the_operator(m: int, dtype: torch.dtype) -> None:
    kernel = helion.kernel(int4_linear_kernel.fn, backend="cute", static_shapes=True)
    given = arguments(m, dtype)
    bound = kernel.bind((*given, None), target="h100")
    plan = bound.plan().gemm
    assert plan.converts and plan.promote and (plan.problem.m, plan.problem.n) == (192, m)
    (copied,) = plan.problem.copied
    assert (copied.sources[0].dtype, copied.offset, copied.operand) == ("int4", 0, "a")
    torch.testing.assert_close(bound(*given, None).double(), exact(*given, signed=True), rtol=1e-2, atol=0.3)


@pytest.mark.parametrize("m", [1, 13])
def test_clusters_split_k_for_one_row_as_well(m: int) -> None:
    kernel = helion.kernel(int4_linear_kernel.fn, backend="cute", static_shapes=True)
    shapes, dtypes = ((m, 64, 2, 64), (8192, 64, 64), (8192, 64)), (torch.bfloat16, torch.int8, torch.bfloat16)
    given = (torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in zip(shapes, dtypes, strict=True))
    config = kernel.bind((*given, None), target="h200").default_config()
    assert [config[f"wgmma_{name}"] for name in ("copies_in", "ctas_per_sm", "k_splits")] == ["slices", 2, 2]


def test_unsigned_numbers_with_a_zero_point() -> None:
    given = arguments(40, torch.bfloat16)
    bound = unsigned.bind(given, target="h100")
    (copied,) = bound.plan().gemm.problem.copied
    assert (copied.sources[0].dtype, copied.offset, copied.operand) == ("uint4", -8, "a")
    assert {seed.config["wgmma_copies_in"] for seed in bound.seeds} == {"registers"}
    torch.testing.assert_close(bound(*given).double(), exact(*given, signed=False), rtol=1e-2, atol=0.3)


def test_other_functions_of_bytes_and_many_rows_are_refused() -> None:
    with pytest.raises(exc.CuteUnsupported):
        three_bits.bind(arguments(16, torch.bfloat16), target="h100")
    with pytest.raises(exc.CuteUnsupported, match="4-bit integers, which are implemented with up to 64 rows"):
        unsigned.bind(arguments(65, torch.bfloat16), target="h100")
    with pytest.raises(exc.CuteUnsupported, match="of 4-bit neighbors"):
        unsigned.bind(arguments(16, torch.bfloat16), target="b200")


def test_other_programs_are_unchanged() -> None:
    program = three_bits_program()
    assert with_nibbles(program).program is program


def three_bits_program():  # type: ignore[no-untyped-def]
    kernel = helion.kernel(three_bits.fn, backend="triton", static_shapes=True)
    return kernel.bind(arguments(16, torch.bfloat16), target="h100").plan().program


def test_launches_give_the_rows_of_the_operator() -> None:
    kernel = helion.kernel(int4_linear_kernel.fn, backend="cute", static_shapes=False)
    bound = kernel.bind((*arguments(13, torch.bfloat16), None), target="h100")
    assert bound.plan().gemm.problem.runtime == ("size_n", "pitch_b")
    given = arguments(5, torch.bfloat16)
    torch.testing.assert_close(bound(*given, None).double(), exact(*given, signed=True), rtol=1e-2, atol=0.3)
