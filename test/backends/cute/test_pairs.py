"""Numbers of 4 bits of which neighbors along K share a byte, and numbers that neighbors along K share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from backends.cute.products import BF16

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.lower.weights.pairs import with_pairs

M, N, K, GROUP = 37, 72, 384, 128


@helion.kernel(backend="cute", static_shapes=True)
def halves(x: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    """Signed numbers, along the rows of ``packed[K / 2, N]``; the odd ones are the low ones of their bytes."""
    (m, k), n = x.size(), packed.size(1)
    pairs = x.view(m, k // 2, 2)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_p in hl.tile(k // 2):
            both = packed[tile_p, tile_n]
            acc = hl.dot(pairs[tile_m, tile_p, 0], (both >> 4).to(x.dtype), acc=acc)
            acc = hl.dot(pairs[tile_m, tile_p, 1], ((both << 4) >> 4).to(x.dtype), acc=acc)
        out[tile_m, tile_n] = acc
    return out


@helion.kernel(backend="cute", static_shapes=True)
def with_zeros(x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """Unsigned numbers of ``packed[N, K / 2]``, with a scale and a zero point of 8 bits for each group; on the left."""
    (m, k), n = x.size(), packed.size(0)
    pairs = x.view(m, k // 2, 2)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_n, tile_m in hl.tile([n, m]):
        acc = hl.zeros([tile_n, tile_m], dtype=torch.float32)
        for tile_p in hl.tile(k // 2):
            both = packed[tile_n, tile_p].to(torch.int32)
            group = tile_p.index // (GROUP // 2)
            factor, start = scale[tile_n, group], zero[tile_n, group].to(torch.int32)
            low = ((both & 15) - start).to(torch.float32) * factor
            high = ((both >> 4) - start).to(torch.float32) * factor
            acc = hl.dot(low.to(x.dtype), pairs[tile_m, tile_p, 0].T, acc=acc)
            acc = hl.dot(high.to(x.dtype), pairs[tile_m, tile_p, 1].T, acc=acc)
        out[tile_m, tile_n] = acc.T
    return out


@helion.kernel(backend="cute", static_shapes=True)
def joined(x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """One dot of ``packed[K / 2, N]``, less 8; tiles of pairs lie in one group."""
    (m, k), n = x.size(), packed.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    block = hl.register_block_size(16, 64)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_p in hl.tile(k // 2, block_size=block):
            both = packed[tile_p, tile_n]
            low, high = (both & 15).to(torch.float32) - 8.0, (both >> 4).to(torch.float32) - 8.0
            weights = hl.join(low, high).permute(0, 2, 1).reshape(block * 2, tile_n.block_size)
            factor = scale[tile_p.begin // (GROUP // 2), tile_n]
            rows = x[tile_m, tile_p.begin * 2 + hl.arange(block * 2)]
            acc = hl.dot(rows, (weights * factor[None, :]).to(x.dtype), acc=acc)
        out[tile_m, tile_n] = acc
    return out


@helion.kernel(backend="cute", static_shapes=True)
def of_groups(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """int8 weights ``[K, N]``, times the scale of their group before they are rounded."""
    (m, k), n = x.size(), w.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            factor = scale[tile_k.index // GROUP, tile_n]
            acc = hl.dot(x[tile_m, tile_k], (w[tile_k, tile_n].to(torch.float32) * factor).to(x.dtype), acc=acc)
        out[tile_m, tile_n] = acc
    return out


@helion.kernel(backend="cute", static_shapes=True)
def of_tiles(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The same by tiles of one group each, of ``w[N, K]``."""
    (m, k), n = x.size(), w.size(0)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k, block_size=64):
            factor = scale[tile_n, tile_k.begin // GROUP]
            weights = (w[tile_n, tile_k].to(torch.float32) * factor[:, None]).to(x.dtype)
            acc = hl.dot(x[tile_m, tile_k], weights.T, acc=acc)
        out[tile_m, tile_n] = acc
    return out


@helion.kernel(backend="cute", static_shapes=True)
def mixed(x: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    """Even elements meet signed numbers, and odd ones unsigned numbers."""
    (m, k), n = x.size(), packed.size(1)
    pairs = x.view(m, k // 2, 2)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_p in hl.tile(k // 2):
            both = packed[tile_p, tile_n]
            acc = hl.dot(pairs[tile_m, tile_p, 0], ((both << 4) >> 4).to(x.dtype), acc=acc)
            acc = hl.dot(pairs[tile_m, tile_p, 1], ((both >> 4) & 15).to(x.dtype), acc=acc)
        out[tile_m, tile_n] = acc
    return out


@helion.kernel(backend="cute", static_shapes=True)
def wrapped(x: torch.Tensor, packed: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """A difference of bytes may exceed their type."""
    (m, k), n = x.size(), packed.size(1)
    pairs = x.view(m, k // 2, 2)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_p in hl.tile(k // 2):
            both, start = packed[tile_p, tile_n], zero[tile_n][None, :]
            acc = hl.dot(pairs[tile_m, tile_p, 0], (((both << 4) >> 4) - start).to(x.dtype), acc=acc)
            acc = hl.dot(pairs[tile_m, tile_p, 1], ((both >> 4) - start).to(x.dtype), acc=acc)
        out[tile_m, tile_n] = acc
    return out


@helion.kernel(backend="cute", static_shapes=True)
def across(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """A tile may lie in two groups, and has the scale of the first one."""
    (m, k), n = x.size(), w.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            factor = scale[tile_k.begin // GROUP, tile_n]
            acc = hl.dot(x[tile_m, tile_k], (w[tile_k, tile_n].to(torch.float32) * factor).to(x.dtype), acc=acc)
        out[tile_m, tile_n] = acc
    return out


def made(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + 0.25).to(dtype)


def codes(*shape: int, dtype: torch.dtype = torch.int8) -> torch.Tensor:
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(5)).to(torch.uint8).view(dtype)


def signed(code: torch.Tensor) -> torch.Tensor:
    return (code ^ 8) - 8


def numbers(packed: torch.Tensor, along: int) -> torch.Tensor:
    """Return the codes of both halves of bytes, low ones first."""
    bits = packed.int() & 255
    return torch.stack((bits & 15, bits >> 4), along + 1).flatten(along, along + 1)


def relative(result: torch.Tensor, exact: torch.Tensor) -> float:
    return float((result.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize(("dtype", "limit"), [(BF16, 4e-3), (torch.float16, 5e-4), (torch.float32, 2e-3)])
def test_halves_of_bytes_are_one_dot(dtype: torch.dtype, limit: float) -> None:
    x, packed = made(M, K, seed=1, dtype=dtype), codes(K // 2, N)
    bound = halves.bind((x, packed), target="sm_90")
    both = torch.stack((packed.int() >> 4, ((packed << 4) >> 4).int()), 1).flatten(0, 1)
    assert relative(bound(x, packed), x.double() @ both.double()) < limit
    assert bound.plan().gemm.whole.k == K


def test_zero_points_of_groups() -> None:
    x, packed = made(M, K, seed=1, dtype=BF16), codes(N, K // 2, dtype=torch.uint8)
    scale, zero = made(N, K // GROUP, seed=2).abs(), codes(N, K // GROUP, dtype=torch.uint8)
    bound = with_zeros.bind((x, packed, scale, zero), target="sm_90")
    weights = numbers(packed, 1) - zero.int().repeat_interleave(GROUP, 1)
    weights = (weights.float() * scale.repeat_interleave(GROUP, 1)).to(BF16)
    assert relative(bound(x, packed, scale, zero), x.double() @ weights.double().T) < 4e-3


def test_a_joined_dot_of_both_halves() -> None:
    x, packed, scale = made(M, K, seed=1, dtype=BF16), codes(K // 2, N, dtype=torch.uint8), made(K // GROUP, N, seed=2)
    bound = joined.bind((x, packed, scale), target="sm_90")
    weights = ((numbers(packed, 0) - 8).float() * scale.repeat_interleave(GROUP, 0)).to(BF16)
    assert relative(bound(x, packed, scale), x.double() @ weights.double()) < 4e-3


@pytest.mark.parametrize("k", [K, 300])
def test_scales_of_groups_in_an_operand(k: int) -> None:
    groups = -(-k // GROUP)
    x, w = made(M, k, seed=1, dtype=BF16), codes(k, N)
    scale = made(groups, N, seed=2)
    weights = (w.float() * scale.repeat_interleave(GROUP, 0)[:k]).to(BF16).double()
    bound = of_groups.bind((x, w, scale), target="sm_90")
    assert relative(bound(x, w, scale), x.double() @ weights) < 4e-3
    turned, factor = w.T.contiguous(), scale.T.contiguous()
    bound = of_tiles.bind((x, turned, factor), target="sm_90")
    assert relative(bound(x, turned, factor), x.double() @ weights) < 4e-3


@pytest.mark.parametrize(
    ("kernel", "more", "reason"),
    [
        (mixed, [], "lshift"),
        (wrapped, [codes(N)], "lshift"),
        (across, [made(K // GROUP, N, seed=2)], "without offsets"),
    ],
    ids=["mixed", "wrapped", "across"],
)
def test_other_conversions_are_refused(kernel: Any, more: list[torch.Tensor], reason: str) -> None:
    x, w = made(M, K, seed=1, dtype=BF16), codes(K if kernel is across else K // 2, N)
    with pytest.raises(exc.CuteUnsupported, match=reason):
        kernel.bind((x, w, *more), target="sm_90")


@pytest.mark.parametrize(("m", "target", "taken"), [(2048, "h200", True), (16, "h200", False), (2048, "b200", False)])
def test_auto_takes_many_rows(m: int, target: str, taken: bool) -> None:
    given = (
        torch.empty(m, 4096, dtype=BF16, device="meta"),
        torch.empty(2048, 11008, dtype=torch.uint8, device="meta"),
    )
    scale = torch.empty(32, 11008, device="meta")
    auto = helion.kernel(joined.fn, backend="auto", static_shapes=True).bind((*given, scale), target=target)
    assert any(key.startswith("wgmma") for key in dict(auto.seeds[0].config)) == taken


@pytest.mark.parametrize("target", ["h100", "b200"])
@pytest.mark.parametrize("case", ["halves", "with_zeros", "joined", "of_groups", "of_tiles"])
@pytest.mark.prove
def test_kernels_compile_without_spills(case: str, target: str) -> None:
    x = made(M, K, seed=1, dtype=BF16)
    arguments: dict[str, Callable[[], tuple[torch.Tensor, ...]]] = {
        "halves": lambda: (x, codes(K // 2, N)),
        "with_zeros": lambda: (
            x,
            codes(N, K // 2, dtype=torch.uint8),
            made(N, K // GROUP, seed=2),
            codes(N, K // GROUP, dtype=torch.uint8),
        ),
        "joined": lambda: (x, codes(K // 2, N, dtype=torch.uint8), made(K // GROUP, N, seed=2)),
        "of_groups": lambda: (x, codes(K, N), made(K // GROUP, N, seed=2)),
        "of_tiles": lambda: (x, codes(N, K), made(N, K // GROUP, seed=2)),
    }
    bound = globals()[case].bind(arguments[case](), target=target)
    assert bound.resources(bound.default_config()).spill_bytes == 0


def test_programs_without_pairs_are_unchanged() -> None:
    x, w = made(M, K, seed=1, dtype=BF16), codes(K, N)
    general = helion.kernel(of_groups.fn, backend="triton", static_shapes=True)
    program = general.bind((x, w, made(K // GROUP, N, seed=2)), target="sm_90")._analysis.program
    assert with_pairs(program).program is program


def test_conversions_are_evaluated_on_the_cpu_under_another_default_device() -> None:
    x, packed = (torch.empty_like(each, device="meta") for each in (made(M, K, seed=1, dtype=BF16), codes(K // 2, N)))
    kernel = helion.kernel(halves.fn, backend="cute", static_shapes=True)
    with torch.device("meta"):
        assert kernel.bind((x, packed), target="h100").plan().gemm.whole.k == K
