"""Split-K partials that a later grid loop adds up: one matmul over all of K in this backend."""

from __future__ import annotations

import pytest
import torch
from backends.cute.products import BF16

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.lower.rewrites.partials import with_whole_k

M, K, N = 70, 300, 45


def in_parts(x: torch.Tensor, y: torch.Tensor, parts: hl.constexpr) -> torch.Tensor:
    (m, k), n = x.size(), y.size(1)
    step = helion.cdiv(k, parts)
    partial = torch.empty([parts, m, n], dtype=torch.float32, device=x.device)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for part, tile_m, tile_n in hl.tile([parts, m, n], block_size=[1, None, None]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(part.begin * step, min(part.begin * step + step, k)):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        partial[part.begin, tile_m, tile_n] = acc
    hl.barrier()
    for tile_m, tile_n in hl.tile([m, n]):
        out[tile_m, tile_n] = torch.sum(partial[:, tile_m, tile_n], dim=0)
    return out


def by_tiles(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """Parts are tiles of K; the sum is written out, the second loop goes along N first, and has an epilogue."""
    (m, k), n = x.size(), y.size(1)
    partial = torch.empty([3, m, n], dtype=torch.float32, device=x.device)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n, part in hl.tile([m, n, k], block_size=[None, None, 128]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(part.begin, part.end):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        partial[part.id, tile_m, tile_n] = acc
    hl.barrier()
    for tile_n, tile_m in hl.tile([n, m]):
        total = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for at in hl.static_range(3):
            total = total + partial[at, tile_m, tile_n]
        total = torch.relu(total + bias[tile_n][None, :]) + residual[tile_m, tile_n].to(torch.float32)
        out[tile_m, tile_n] = total
    return out


def missing(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The sum leaves one part out."""
    (m, k), n = x.size(), y.size(1)
    partial = torch.empty([3, m, n], dtype=torch.float32, device=x.device)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n, part in hl.tile([m, n, k], block_size=[None, None, 128]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(part.begin, part.end):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        partial[part.id, tile_m, tile_n] = acc
    hl.barrier()
    for tile_m, tile_n in hl.tile([m, n]):
        out[tile_m, tile_n] = partial[0, tile_m, tile_n] + partial[2, tile_m, tile_n]
    return out


def overlapping(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Parts have elements along K in common."""
    (m, k), n = x.size(), y.size(1)
    partial = torch.empty([3, m, n], dtype=torch.float32, device=x.device)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for part, tile_m, tile_n in hl.tile([3, m, n], block_size=[1, None, None]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(part.begin * 90, min(part.begin * 90 + 120, k)):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        partial[part.begin, tile_m, tile_n] = acc
    hl.barrier()
    for tile_m, tile_n in hl.tile([m, n]):
        out[tile_m, tile_n] = torch.sum(partial[:, tile_m, tile_n], dim=0)
    return out


def returned(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The caller gets the partials, too."""
    (m, k), n = x.size(), y.size(1)
    partial = torch.empty([2, m, n], dtype=torch.float32, device=x.device)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for part, tile_m, tile_n in hl.tile([2, m, n], block_size=[1, None, None]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(part.begin * 150, min(part.begin * 150 + 150, k)):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        partial[part.begin, tile_m, tile_n] = acc
    hl.barrier()
    for tile_m, tile_n in hl.tile([m, n]):
        out[tile_m, tile_n] = torch.sum(partial[:, tile_m, tile_n], dim=0)
    return out, partial


def rounded(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Partials are rounded to 16 bits."""
    (m, k), n = x.size(), y.size(1)
    partial = torch.empty([2, m, n], dtype=torch.bfloat16, device=x.device)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for part, tile_m, tile_n in hl.tile([2, m, n], block_size=[1, None, None]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(part.begin * 150, min(part.begin * 150 + 150, k)):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        partial[part.begin, tile_m, tile_n] = acc
    hl.barrier()
    for tile_m, tile_n in hl.tile([m, n]):
        out[tile_m, tile_n] = torch.sum(partial[:, tile_m, tile_n].to(torch.float32), dim=0)
    return out


def activated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Each part has an activation of its own, which is no part of a sum."""
    (m, k), n = x.size(), y.size(1)
    partial = torch.empty([2, m, n], dtype=torch.float32, device=x.device)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for part, tile_m, tile_n in hl.tile([2, m, n], block_size=[1, None, None]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(part.begin * 150, min(part.begin * 150 + 150, k)):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        partial[part.begin, tile_m, tile_n] = torch.relu(acc)
    hl.barrier()
    for tile_m, tile_n in hl.tile([m, n]):
        out[tile_m, tile_n] = torch.sum(partial[:, tile_m, tile_n], dim=0)
    return out


def largest(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The second loop takes the greatest part, and no sum."""
    (m, k), n = x.size(), y.size(1)
    partial = torch.empty([2, m, n], dtype=torch.float32, device=x.device)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for part, tile_m, tile_n in hl.tile([2, m, n], block_size=[1, None, None]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(part.begin * 150, min(part.begin * 150 + 150, k)):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        partial[part.begin, tile_m, tile_n] = acc
    hl.barrier()
    for tile_m, tile_n in hl.tile([m, n]):
        out[tile_m, tile_n] = torch.amax(partial[:, tile_m, tile_n], dim=0)
    return out


def operands(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(M, K, generator=generator) + 0.2, torch.randn(K, N, generator=generator) + 0.3
    return x.to(dtype), y.to(dtype)


@pytest.mark.parametrize(("parts", "dtype"), [(7, BF16), (1, torch.float16), (4, torch.float32)])
def test_partials_of_parts_are_one_matmul(parts: int, dtype: torch.dtype) -> None:
    x, y = operands(dtype)
    kernel = helion.kernel(in_parts, backend="cute", static_shapes=True)
    bound = kernel.bind((x, y, parts), target="sm_90")
    torch.testing.assert_close(
        bound(x, y, parts).double(), x.double() @ y.double(), rtol=2e-2 if dtype == BF16 else 3e-3, atol=2e-2
    )
    assert bound.plan().gemm.problem.k == K


def test_a_sum_written_out_has_an_epilogue() -> None:
    x, y = operands(torch.float32)
    generator = torch.Generator().manual_seed(4)
    bias, residual = torch.randn(N, generator=generator), torch.randn(M, N, generator=generator)
    bound = helion.kernel(by_tiles, backend="cute", static_shapes=True).bind((x, y, bias, residual), target="sm_90")
    exact = torch.relu(x.double() @ y.double() + bias) + residual
    torch.testing.assert_close(bound(x, y, bias, residual).double(), exact, rtol=3e-3, atol=3e-2)


def test_more_parts_than_k_tiles_leave_some_empty() -> None:
    x, y = operands(BF16)
    bound = helion.kernel(in_parts, backend="cute", static_shapes=True).bind((x, y, 299), target="sm_90")
    torch.testing.assert_close(bound(x, y, 299).double(), x.double() @ y.double(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("function", [missing, overlapping, returned, rounded, activated, largest])
def test_other_partials_stay_in_memory(function: object) -> None:
    x, y = operands(BF16)
    general = helion.kernel(function, backend="triton", static_shapes=True).bind((x, y), target="sm_90")
    program = general._analysis.program
    assert with_whole_k(program).program is program
    with pytest.raises(exc.CuteUnsupported, match="has 2 grid loops"):
        helion.kernel(function, backend="cute", static_shapes=True).bind((x, y), target="sm_90")
