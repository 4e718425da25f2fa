"""Narrow numbers, there and back, and an optimizer's step."""

from __future__ import annotations

import torch

import helion
import helion.language as hl

from .cell import BF16, E4M3, FP16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def fp8_both_ways(x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`x / scale` as fp8, the same transposed, and the largest magnitude of x."""
    m, n = x.size()
    q = torch.empty([m, n], dtype=torch.float8_e4m3fn, device=x.device)
    qt = torch.empty([n, m], dtype=torch.float8_e4m3fn, device=x.device)
    largest = torch.zeros([1], dtype=torch.float32, device=x.device)
    for rows, columns in hl.tile([m, n]):
        v = x[rows, columns].to(torch.float32)
        hl.atomic_max(largest, [0], v.abs().amax())
        eight = torch.clamp(v / scale[0], -448.0, 448.0).to(torch.float8_e4m3fn)
        q[rows, columns] = eight
        qt[columns, rows] = eight.T
    return q, qt, largest


def fp8_both_ways_torch(x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    v = x.float()
    q = torch.clamp(v / scale.float(), -448.0, 448.0).to(E4M3)
    return q, q.T.contiguous(), v.abs().amax()[None]


CELLS.add(
    fp8_both_ways,
    lambda device, small: (
        normal(device, *((63, 100) if small else (8192, 4096)), dtype=BF16),
        torch.tensor([0.0125], device=device),
    ),
    fp8_both_ways_torch,
)


@helion.kernel
def int4_groups(x: torch.Tensor, group: hl.constexpr) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Asymmetric 4-bit groups of each row: two numbers a byte, with a scale and a zero point for each group."""
    m, n = x.size()
    g = n // group
    view = x.view(m, g, group // 2, 2)
    packed = torch.empty([m, g, group // 2], dtype=torch.uint8, device=x.device)
    scales = torch.empty([m, g], dtype=torch.float32, device=x.device)
    zeros = torch.empty([m, g], dtype=torch.int8, device=x.device)
    for tm, tg in hl.tile([m, g]):
        even, odd = hl.split(view[tm, tg, :, :].to(torch.float32))
        least = torch.minimum(even, odd).amin(-1)
        most = torch.maximum(even, odd).amax(-1)
        scale = torch.clamp(most - least, min=1e-6) / 15.0
        zero = torch.clamp(torch.floor(-least / scale + 0.5), 0, 15)
        scales[tm, tg] = scale
        zeros[tm, tg] = zero.to(torch.int8)
        a = torch.clamp(torch.floor(even / scale[:, :, None] + zero[:, :, None] + 0.5), 0, 15).to(torch.int32)
        b = torch.clamp(torch.floor(odd / scale[:, :, None] + zero[:, :, None] + 0.5), 0, 15).to(torch.int32)
        packed[tm, tg, :] = (a | (b << 4)).to(torch.uint8)
    return packed, scales, zeros


def int4_groups_torch(x: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    m, n = x.size()
    v = x.float().view(m, n // group, group)
    least, most = v.amin(-1), v.amax(-1)
    scale = (most - least).clamp(min=1e-6) / 15.0
    zero = torch.floor(-least / scale + 0.5).clamp(0, 15)
    q = torch.floor(v / scale[..., None] + zero[..., None] + 0.5).clamp(0, 15).int()
    return (q[..., ::2] | (q[..., 1::2] << 4)).to(torch.uint8), scale, zero.to(torch.int8)


CELLS.add(
    int4_groups,
    lambda device, small: (normal(device, *((63, 192) if small else (8192, 4096)), dtype=BF16), 64),
    int4_groups_torch,
)


@helion.kernel
def mx_dequantize(q: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    """bf16 of fp8 numbers `[M, N]` and a shared power of two, `uint8 - 127`, for each 32 of them."""
    m, n = q.size()
    out = torch.empty([m, n], dtype=torch.bfloat16, device=q.device)
    blocks, grouped = q.view(m, n // 32, 32), out.view(m, n // 32, 32)
    for tm, tb in hl.tile([m, n // 32]):
        power = torch.exp2(exponents[tm, tb].to(torch.float32) - 127.0)
        grouped[tm, tb, :] = (blocks[tm, tb, :].to(torch.float32) * power[:, :, None]).to(torch.bfloat16)
    return out


def mx_dequantize_torch(q: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    m, n = q.size()
    power = torch.exp2(exponents.float() - 127.0)
    return (q.float().view(m, n // 32, 32) * power[..., None]).to(torch.bfloat16).view(m, n)


def make_mx_dequantize(device: str, small: bool) -> Arguments:
    m, n = (63, 96) if small else (8192, 8192)
    return normal(device, m, n, scale=8.0).to(E4M3), torch.randint(
        120, 134, [m, n // 32], device=device, dtype=torch.uint8
    )


CELLS.add(mx_dequantize, make_mx_dequantize, mx_dequantize_torch)


@helion.kernel
def stochastic_bf16(x: torch.Tensor, seed: int) -> torch.Tensor:
    """bf16 of fp32 numbers, rounded up with the probability of their discarded bits."""
    out = torch.empty(x.size(), dtype=torch.bfloat16, device=x.device)
    for rows, columns in hl.tile(x.size()):
        v = x[rows, columns]
        noise = hl.randint([rows, columns], 0, 65536, seed)
        bits = (v.view(torch.int32) + noise) & -65536
        out[rows, columns] = bits.view(torch.float32).to(torch.bfloat16)
    return out


def stochastic_bf16_reference(x: torch.Tensor, seed: int) -> torch.Tensor:
    from helion._support.philox import philox

    at = torch.arange(x.numel(), device=x.device)
    word = philox(torch.tensor(seed, device=x.device), at)[0]
    signed = torch.where(word >= 2**31, word - 2**32, word)
    noise = (signed.abs() % 65536).to(torch.int32).view(x.shape)
    bits = (x.float().view(torch.int32) + noise) & -65536
    return bits.view(torch.float32).to(torch.bfloat16)


def stochastic_bf16_torch(x: torch.Tensor, seed: int) -> torch.Tensor:
    noise = torch.randint(0, 65536, x.shape, device=x.device, dtype=torch.int32)
    return ((x.view(torch.int32) + noise) & -65536).view(torch.float32).to(torch.bfloat16)


CELLS.add(
    stochastic_bf16,
    lambda device, small: (normal(device, *((63, 41) if small else (4096, 4097))), 7),
    stochastic_bf16_reference,
    stochastic_bf16_torch,
)


@helion.kernel
def clipped_nesterov(
    w: torch.Tensor, grad: torch.Tensor, momentum: torch.Tensor, norm: torch.Tensor, lr: float, limit: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Nesterov step in place; the gradient is scaled so that the given norm stays below a limit."""
    for tile in hl.tile(w.size(0)):
        factor = torch.clamp(limit / (norm[()] + 1e-6), max=1.0)
        g = grad[tile].to(torch.float32) * factor + 0.01 * w[tile]
        m = 0.9 * momentum[tile] + g
        momentum[tile] = m
        w[tile] = w[tile] - lr * (g + 0.9 * m)
    return w, momentum


def clipped_nesterov_torch(
    w: torch.Tensor, grad: torch.Tensor, momentum: torch.Tensor, norm: torch.Tensor, lr: float, limit: float
) -> tuple[torch.Tensor, torch.Tensor]:
    g = high(grad) * torch.clamp(limit / (norm + 1e-6), max=1.0) + 0.01 * w
    m = 0.9 * momentum + g
    return w.copy_(w - lr * (g + 0.9 * m)), momentum.copy_(m)


def make_clipped_nesterov(device: str, small: bool) -> Arguments:
    n = 4097 if small else 16_000_003
    return (
        normal(device, n),
        normal(device, n, dtype=FP16),
        normal(device, n),
        torch.tensor(3.0, device=device),
        0.1,
        1.0,
    )


CELLS.add(clipped_nesterov, make_clipped_nesterov, clipped_nesterov_torch)
