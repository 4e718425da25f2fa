"""Row kernels with rarer inputs and outputs, checked on a GPU by ``benchmarks/row_kernels.py``: masks, lengths, fp16,
int8, padded rows, sums written in place, rows that are counted at launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import row_pairs
import torch

import helion.language as hl

GROUP = 128


def masked(x: torch.Tensor, mask: torch.Tensor, length: torch.Tensor, total: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        inside = hl.arange(x.size(1))[None, :] < length[tile][:, None]
        row = torch.where(mask[tile, :] & inside, x[tile, :].to(torch.float32), -1e30)
        total[tile] = torch.logsumexp(row, -1)


def quantized(x: torch.Tensor, low: torch.Tensor, scale: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        step = torch.amax(torch.abs(row), -1) / 127.0
        scale[tile] = step
        low[tile, :] = torch.round(row / step[:, None]).to(torch.int8)


def centred(x: torch.Tensor, gain: torch.Tensor, shift: torch.Tensor, out: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32) * gain[tile].to(torch.float32)[:, None]
        out[tile, :] = (row - row.mean(-1)[:, None] + shift[:].to(torch.float32)).to(out.dtype)


def cross_entropy(x: torch.Tensor, labels: torch.Tensor, loss: torch.Tensor) -> None:
    flat = x.view(-1)
    for tile in hl.tile(x.size(0)):
        picked = hl.load(flat, [tile.index * x.size(1) + labels[tile]]).to(torch.float32)
        loss[tile] = torch.logsumexp(x[tile, :].to(torch.float32), -1) - picked


def added_in_place(x: torch.Tensor, residual: torch.Tensor, out: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        total = (x[tile, :].to(torch.float32) + residual[tile, :].to(torch.float32)).to(residual.dtype)
        residual[tile, :] = total
        row = total.to(torch.float32)
        out[tile, :] = (row * torch.rsqrt((row * row).mean(-1) + 1e-5)[:, None]).to(out.dtype)


def log_softmax(x: torch.Tensor, out: torch.Tensor) -> None:
    hl.specialize(x.size(1))
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        out[tile, :] = (row - torch.logsumexp(row, -1)[:, None]).to(out.dtype)


def smoothed(x: torch.Tensor, labels: torch.Tensor, ignored: int, loss: torch.Tensor, normalizer: torch.Tensor) -> None:
    flat = x.view(-1)
    for tile in hl.tile(x.size(0)):
        label = labels[tile]
        kept = label != ignored
        picked = hl.load(flat, [tile.index * x.size(1) + torch.where(kept, label, 0)]).to(torch.float32)
        row = x[tile, :].to(torch.float32)
        total = torch.logsumexp(row, -1)
        loss[tile] = torch.where(kept, 0.9 * (total - picked) + 0.1 * (total - row.mean(-1)), 0.0)
        normalizer[tile] = torch.where(kept, 1e-3 * total * total, 0.0)


def gated_halves(x: torch.Tensor, low: torch.Tensor, scale: torch.Tensor) -> None:
    n = low.size(1)
    gate, up = x[:, :n], x[:, n:]
    for tile in hl.tile(x.size(0)):
        row = torch.nn.functional.silu(gate[tile, :].to(torch.float32)) * up[tile, :].to(torch.float32)
        step = torch.clamp(torch.amax(torch.abs(row), -1), min=1e-8) / 448.0
        scale[tile] = step
        low[tile, :] = (row / step[:, None]).to(low.dtype)


def summed_lanes(x: torch.Tensor, total: torch.Tensor) -> None:
    m, n = x.size()
    block = hl.register_block_size(n)
    for tile in hl.tile(m):
        lanes = hl.zeros([tile, block], dtype=torch.float32)
        for part in hl.tile(n, block_size=block):
            lanes += torch.exp(x[tile, part].to(torch.float32) * 0.1)
        total[tile] = lanes.sum(-1)


def from_fp8(x: torch.Tensor, scale: torch.Tensor, out: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32) * scale[tile][:, None]
        out[tile, :] = (row * torch.rsqrt((row * row).mean(-1) + 1e-6)[:, None]).to(out.dtype)


def unsigned(x: torch.Tensor, low: torch.Tensor, scale: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        least, most = torch.amin(row, -1), torch.amax(row, -1)
        step = torch.clamp(most - least, min=1e-8) / 255.0
        scale[tile] = step
        low[tile, :] = torch.round((row - least[:, None]) / step[:, None]).to(torch.uint8)


def groups_of_norm(
    x: torch.Tensor, residual: torch.Tensor, gain: torch.Tensor, low: torch.Tensor, scale: torch.Tensor
) -> None:
    n = x.size(1)
    for tile in hl.tile(x.size(0)):
        total = (x[tile, :].to(torch.float32) + residual[tile, :].to(torch.float32)).to(residual.dtype)
        residual[tile, :] = total
        row = total.to(torch.float32)
        normed = row * torch.rsqrt((row * row).mean(-1) + 1e-5)[:, None] * gain[:].to(torch.float32)
        groups = normed.reshape(tile, n // GROUP, GROUP)
        step = torch.clamp(torch.amax(torch.abs(groups), -1), min=1e-10) / 448.0
        scale[tile, :] = step
        low[tile, :] = (groups / step[:, :, None]).reshape(tile, n).to(low.dtype)


def heads(x: torch.Tensor, out: torch.Tensor) -> None:
    n = x.size(1)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32).reshape(tile, n // GROUP, GROUP)
        scale = torch.rsqrt((row * row).mean(-1, keepdim=True) + 1e-5)
        out[tile, :] = (row * scale).reshape(tile, n).to(out.dtype)


def of_channels(x: torch.Tensor, gain: torch.Tensor, shift: torch.Tensor, out: torch.Tensor) -> None:
    for tile_b, tile_c in hl.tile([x.size(0), x.size(1)]):
        row = x[tile_b, tile_c, :].to(torch.float32)
        centred = row - row.mean(-1, keepdim=True)
        scale = torch.rsqrt((centred * centred).mean(-1, keepdim=True) + 1e-5)
        by, plus = gain[tile_c].to(torch.float32), shift[tile_b].to(torch.float32)
        out[tile_b, tile_c, :] = (centred * scale * by[None, :, None] + plus[:, None, None]).to(out.dtype)


def extremes(x: torch.Tensor, out: torch.Tensor, total: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        out[tile, :] = torch.softmax(row, -1).to(out.dtype)
        total[tile] = torch.logsumexp(row, -1)


def of_batches(x: torch.Tensor, gain: torch.Tensor, out: torch.Tensor, scale: torch.Tensor) -> None:
    for tile_b, tile_m in hl.tile([x.size(0), x.size(1)]):
        row = x[tile_b, tile_m, :].to(torch.float32)
        r = torch.rsqrt((row * row).mean(-1) + 1e-5)
        scale[tile_b, tile_m] = r
        out[tile_b, tile_m, :] = (row * r[:, :, None] * gain[:].to(torch.float32)).to(out.dtype)


def strided(x: torch.Tensor, residual: torch.Tensor, out: torch.Tensor) -> None:
    n = hl.specialize(x.size(1))
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32) + residual[tile, :].to(torch.float32)
        out[tile, :] = (row * torch.rsqrt((row * row).sum(-1) / n + 1e-5)[:, None]).to(out.dtype)


def single_rows(x: torch.Tensor, labels: torch.Tensor, out: torch.Tensor, loss: torch.Tensor) -> None:
    for i in hl.grid(x.size(0)):
        row = x[i, :].to(torch.float32)
        total = torch.logsumexp(row, -1)
        loss[i] = total - x[i, labels[i]].to(torch.float32)
        out[i, :] = (row - total).to(out.dtype)


#: A kernel, its settings, its arguments, and the check of what it has written.
Odd = tuple[Callable[..., None], dict[str, Any], tuple[Any, ...], Callable[[], bool]]


class Numbers:
    """Tensors of one device."""

    def __init__(self, device: str) -> None:
        self.device = device

    def random(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return (torch.randn(shape, device=self.device) * 2 + 3).to(dtype)

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.full(shape, 7.0, device=self.device).to(dtype)

    def padded(self, m: int, n: int) -> torch.Tensor:
        """Return rows with a gap after each, unless their length is odd."""
        return self.random(m, n + 40)[:, :n] if n % 8 == 0 else self.random(m, n)

    def integers(self, low: int, high: int, count: int) -> torch.Tensor:
        return torch.randint(low, high, (count,), device=self.device)


def near(got: torch.Tensor, want: torch.Tensor, relative: float) -> bool:
    size = want.square().mean(-1, keepdim=True).sqrt()
    return bool(((got.double() - want).abs() <= relative * (want.abs() + 0.2 * size)).all())


def _masked(make: Numbers, m: int, n: int) -> Odd:
    x, mask = make.random(m, n), torch.rand(m, n, device=make.device) < 0.7
    length, total = make.integers(1, n, m), make.empty(m)
    inside = mask & (torch.arange(n, device=make.device) < length[:, None])
    wanted = torch.logsumexp(torch.where(inside, x.double(), -1e30), -1)
    return masked, {}, (x, mask, length, total), lambda: near(total, wanted, 2e-5)


def _cross_entropy(make: Numbers, m: int, n: int) -> Odd:
    x, labels, loss = make.random(m, n), make.integers(0, n, m), make.empty(m)
    lost = torch.logsumexp(x.double(), -1) - x.double().gather(1, labels[:, None])[:, 0]
    return cross_entropy, {}, (x, labels, loss), lambda: bool(((loss.double() - lost).abs() < 1e-5).all())


def _int8(make: Numbers, m: int, n: int) -> Odd:
    half, low, scale = make.random(m, n, dtype=torch.float16), make.empty(m, n, dtype=torch.int8), make.empty(m)
    exact = half.double() / (half.double().abs().amax(-1) / 127)[:, None]
    return quantized, {}, (half, low, scale), lambda: bool(((low.double() - exact).abs() < 0.501).all())


def _centred(make: Numbers, m: int, n: int) -> Odd:
    wide, gain = make.random(m, n, dtype=torch.float32), make.random(m, dtype=torch.float16)
    shift, out = make.random(n), make.empty(m, n, dtype=torch.float16)
    row = wide.double() * gain.double()[:, None]
    want = row - row.mean(-1, keepdim=True) + shift.double()
    return centred, {}, (wide, gain, shift, out), lambda: near(out, want, 2**-10)


def _in_place(make: Numbers, m: int, n: int) -> Odd:
    x, residual, out = make.padded(m, n), make.padded(m, n), make.empty(m, n, dtype=torch.bfloat16)
    sums = (x.float() + residual.float()).bfloat16()
    normed = sums.double() * torch.rsqrt(sums.double().square().mean(-1, keepdim=True) + 1e-5)
    arguments = (x, residual, out)
    return added_in_place, {}, arguments, lambda: torch.equal(residual, sums) and near(out, normed, 2**-8 * 1.02)


def _counted_at_launch(make: Numbers, m: int, n: int) -> Odd:
    x, out = make.random(m, n), make.empty(m, n, dtype=torch.bfloat16)
    want = torch.log_softmax(x.double(), -1)
    return log_softmax, dict(static_shapes=False), (x, out), lambda: near(out, want, 2**-8 * 1.02)


def _smoothed(make: Numbers, m: int, n: int) -> Odd:
    x, labels, ignored = make.random(m, n), make.integers(0, n, m), -100
    labels[::3] = ignored
    loss, normalizer, kept, wide = make.empty(m), make.empty(m), labels != ignored, x.double()
    total, picked = torch.logsumexp(wide, -1), wide.gather(1, torch.where(kept, labels, 0)[:, None])[:, 0]
    lost = torch.where(kept, 0.9 * (total - picked) + 0.1 * (total - wide.mean(-1)), 0.0)
    added = torch.where(kept, 1e-3 * total * total, 0.0)

    def check() -> bool:
        return bool(((loss.double() - lost).abs() < 1e-5).all()) and near(normalizer, added, 1e-5)

    return smoothed, {}, (x, labels, ignored, loss, normalizer), check


def _gated_halves(make: Numbers, m: int, n: int) -> Odd:
    n = n // 8 * 8
    x, low, scale = make.random(m, 2 * n), make.empty(m, n, dtype=torch.float8_e4m3fn), make.empty(m)
    gate, up = x.double().chunk(2, 1)
    row = torch.nn.functional.silu(gate) * up
    step = row.abs().amax(-1) / 448
    want = row / step[:, None]
    return gated_halves, {}, (x, low, scale), lambda: near(low, want, 2**-4 * 1.02) and near(scale, step, 1e-5)


def _summed_lanes(make: Numbers, m: int, n: int) -> Odd:
    x, total = make.random(m, n), make.empty(m)
    want = torch.exp(x.double() * 0.1).sum(-1)
    return summed_lanes, {}, (x, total), lambda: near(total, want, 1e-5)


def _extremes(make: Numbers, m: int, n: int) -> Odd:
    """Return rows whose maximum is large, infinite, or that of a mask."""
    x, out, total = make.random(m, n), make.empty(m, n, dtype=torch.bfloat16), make.empty(m)
    least = torch.finfo(torch.bfloat16).min
    for at, value in enumerate((65536.0, 3.38e38, least, float("inf"), float("-inf"), float("nan"), 40000.0)):
        x[at, ::3] = value
    x[7], x[8], x[9] = least, float("-inf"), 65280.0
    want, sums = torch.softmax(x.double(), -1), torch.logsumexp(x.double(), -1)

    def check() -> bool:
        close = torch.allclose(out.double(), want, rtol=2**-8, atol=1e-37, equal_nan=True)
        return close and torch.allclose(total.double(), sums, rtol=2e-6, atol=2e-6, equal_nan=True)

    return extremes, {}, (x, out, total), check


def _of_batches(make: Numbers, m: int, n: int) -> Odd:
    x, gain = make.random(4, m // 4, n), make.random(n)
    out, scale = make.empty(4, m // 4, n, dtype=torch.bfloat16), make.empty(4, m // 4)
    r = torch.rsqrt(x.double().square().mean(-1) + 1e-5)
    want = x.double() * r[..., None] * gain.double()
    return of_batches, {}, (x, gain, out, scale), lambda: near(out, want, 2**-8 * 1.02) and near(scale, r, 1e-5)


def _from_fp8(make: Numbers, m: int, n: int) -> Odd:
    x, scale = make.random(m, n, dtype=torch.float8_e4m3fn), make.random(m, dtype=torch.float32)
    out = make.empty(m, n, dtype=torch.bfloat16)
    row = x.double() * scale.double()[:, None]
    want = row * torch.rsqrt(row.square().mean(-1, keepdim=True) + 1e-6)
    return from_fp8, {}, (x, scale, out), lambda: near(out, want, 2**-8 * 1.02)


def _unsigned(make: Numbers, m: int, n: int) -> Odd:
    x, low, scale = make.random(m, n), make.empty(m, n, dtype=torch.uint8), make.empty(m)
    wide = x.double()
    exact = (wide - wide.amin(-1, keepdim=True)) / ((wide.amax(-1) - wide.amin(-1)) / 255)[:, None]
    return unsigned, {}, (x, low, scale), lambda: bool(((low.double() - exact).abs() < 0.501).all())


def _groups_of_norm(make: Numbers, m: int, n: int) -> Odd:
    n = n // GROUP * GROUP
    x, residual, gain = make.random(m, n), make.random(m, n), make.random(n)
    low, scale = make.empty(m, n, dtype=torch.float8_e4m3fn), make.empty(m, n // GROUP)
    sums = (x.float() + residual.float()).bfloat16()
    normed = sums.double() * torch.rsqrt(sums.double().square().mean(-1, keepdim=True) + 1e-5) * gain.double()
    parts = normed.view(m, -1, GROUP)
    step = parts.abs().amax(-1) / 448
    want = (parts / step[:, :, None]).view(m, n)

    def check() -> bool:
        return torch.equal(residual, sums) and near(scale, step, 1e-5) and near(low, want, 2**-4 * 1.02)

    return groups_of_norm, {}, (x, residual, gain, low, scale), check


def _heads(make: Numbers, m: int, n: int) -> Odd:
    n = n // GROUP * GROUP
    x, out = make.random(m, n), make.empty(m, n, dtype=torch.bfloat16)
    parts = x.double().view(m, -1, GROUP)
    want = (parts * torch.rsqrt(parts.square().mean(-1, keepdim=True) + 1e-5)).view(m, n)
    return heads, {}, (x, out), lambda: near(out, want, 2**-8 * 1.02)


def _of_channels(make: Numbers, m: int, n: int) -> Odd:
    x, gain, shift = make.random(4, m // 4, n), make.random(m // 4), make.random(4, dtype=torch.float32)
    out = make.empty(4, m // 4, n, dtype=torch.bfloat16)
    want = torch.nn.functional.layer_norm(x.double(), (n,), eps=1e-5) * gain.double()[:, None]
    want = want + shift.double()[:, None, None]
    return of_channels, {}, (x, gain, shift, out), lambda: near(out, want, 2**-8 * 1.02)


def _strided(make: Numbers, m: int, n: int) -> Odd:
    n = n // 8 * 8
    x, residual, out = (make.random(m, n + pad)[:, :n] for pad in (8, 40, 16))
    row = x.double() + residual.double()
    want = row * torch.rsqrt(row.square().mean(-1, keepdim=True) + 1e-5)
    return strided, dict(static_shapes=False), (x, residual, out), lambda: near(out, want, 2**-8 * 1.02)


def _single_rows(make: Numbers, m: int, n: int) -> Odd:
    x, labels, out, loss = (
        make.random(m, n),
        make.integers(0, n, m),
        make.empty(m, n, dtype=torch.bfloat16),
        make.empty(m),
    )
    want = torch.log_softmax(x.double(), -1)
    lost = -want.gather(1, labels[:, None])[:, 0]

    def check() -> bool:
        return near(out, want, 2**-8 * 1.02) and bool(((loss.double() - lost).abs() < 1e-5).all())

    return single_rows, {}, (x, labels, out, loss), check


CASES: dict[str, Callable[[Numbers, int, int], Odd]] = {
    "masked": _masked,
    "single rows": _single_rows,
    "strided": _strided,
    **row_pairs.CASES,
    "cross entropy": _cross_entropy,
    "int8": _int8,
    "fp32 to fp16": _centred,
    "in place": _in_place,
    "counted at launch": _counted_at_launch,
    "ignored labels": _smoothed,
    "gated halves": _gated_halves,
    "lanes": _summed_lanes,
    "extremes": _extremes,
    "batches": _of_batches,
    "fp8 in": _from_fp8,
    "unsigned": _unsigned,
    "groups": _groups_of_norm,
    "heads": _heads,
    "channels": _of_channels,
}
NAMES = tuple(CASES)
SIZES = (1000, 1003, 20008, 50257)


def case(name: str, m: int, n: int, device: str) -> Odd:
    """Return the kernel of a name with tensors of a device."""
    return CASES[name](Numbers(device), m, n)
