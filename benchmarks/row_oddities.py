"""Row kernels with rarer inputs and outputs, checked on a GPU by ``benchmarks/row_kernels.py``: masks, lengths, fp16,
int8, padded rows, sums written in place."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import torch

import helion
import helion.language as hl


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


def cases(m: int, n: int) -> Iterator[tuple[str, Callable[..., None], tuple[Any, ...], Callable[[], bool]]]:
    """Yield (name, kernel, arguments, check) for rows of `n` columns."""

    def numbers(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return (torch.randn(shape, device="cuda") * 2 + 3).to(dtype)

    def near(got: torch.Tensor, want: torch.Tensor, relative: float) -> bool:
        size = want.square().mean(-1, keepdim=True).sqrt()
        return bool(((got.double() - want).abs() <= relative * (want.abs() + 0.2 * size)).all())

    x, mask = numbers(m, n), torch.rand(m, n, device="cuda") < 0.7
    length, total = torch.randint(1, n, (m,), device="cuda"), torch.full((m,), 7.0, device="cuda")
    inside = mask & (torch.arange(n, device="cuda") < length[:, None])
    wanted = torch.logsumexp(torch.where(inside, x.double(), -1e30), -1)
    yield "masked", masked, (x, mask, length, total), lambda: near(total, wanted, 2e-5)
    labels, loss = torch.randint(0, n, (m,), device="cuda"), torch.full((m,), 7.0, device="cuda")
    lost = torch.logsumexp(x.double(), -1) - x.double().gather(1, labels[:, None])[:, 0]
    yield "cross entropy", cross_entropy, (x, labels, loss), lambda: bool(((loss.double() - lost).abs() < 1e-5).all())
    half, low = numbers(m, n, dtype=torch.float16), torch.zeros(m, n, device="cuda", dtype=torch.int8)
    scale = torch.full((m,), 7.0, device="cuda")
    step = half.double().abs().amax(-1) / 127
    exact = half.double() / step[:, None]
    yield "int8", quantized, (half, low, scale), lambda: bool(((low.double() - exact).abs() < 0.501).all())
    wide, gain, shift = numbers(m, n, dtype=torch.float32), numbers(m, dtype=torch.float16), numbers(n)
    out = torch.full((m, n), 7.0, device="cuda", dtype=torch.float16)
    row = wide.double() * gain.double()[:, None]
    want = row - row.mean(-1, keepdim=True) + shift.double()
    yield "fp32 to fp16", centred, (wide, gain, shift, out), lambda: near(out, want, 2**-10)
    padded = numbers(m, n + 40)[:, :n] if (n + 40) % 8 == 0 else numbers(m, n)
    ends = torch.full((m, n), 7.0, device="cuda", dtype=torch.bfloat16)
    residual = numbers(m, n + 24)[:, :n] if (n + 24) % 8 == 0 else numbers(m, n)
    sums = (padded.float() + residual.float()).bfloat16()
    normed = sums.double() * torch.rsqrt(sums.double().square().mean(-1, keepdim=True) + 1e-5)
    yield (
        "in place",
        added_in_place,
        (padded, residual, ends),
        lambda: torch.equal(residual, sums) and near(ends, normed, 2**-8 * 1.02),
    )


def main() -> None:
    for n in (1000, 1003, 4096, 20008, 50257):
        for name, fn, arguments, check in cases(200, n):
            try:
                helion.kernel(fn, backend="cute")(*arguments)
                torch.cuda.synchronize()
                print(json.dumps(dict(kind="odd", name=name, n=n, ok=check())), flush=True)
            except Exception as error:
                why = f"{type(error).__name__}: {error}"[:500]
                print(json.dumps(dict(kind="failed", name=name, type="odd", shape=(200, n), why=why)), flush=True)


if __name__ == "__main__":
    main()
