"""Print which row kernels, as users write them, the CuTe backend takes, and its reasons to refuse the others.

    python benchmarks/row_census.py [--target sm_90] [NAME ...]

Nothing is run or compiled, and no GPU is needed. Tensors are on ``meta``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import helion  # noqa: E402
import helion.language as hl  # noqa: E402
from benchmarks import row_forms, row_styles  # noqa: E402
from benchmarks.cute_census import shortened  # noqa: E402

M, N, GROUP = 4096, 8192, 128
FP8 = torch.float8_e4m3fn


def l2_normalize(x: torch.Tensor, out: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        out[tile, :] = (row / torch.clamp(torch.sqrt((row * row).sum(-1, keepdim=True)), min=1e-12)).to(x.dtype)


def gated_rms_norm(x: torch.Tensor, gate: torch.Tensor, w: torch.Tensor, out: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32) * torch.nn.functional.silu(gate[tile, :].to(torch.float32))
        scale = torch.rsqrt((row * row).mean(-1, keepdim=True) + 1e-6)
        out[tile, :] = (row * scale * (1.0 + w[:].to(torch.float32))).to(x.dtype)


def added_layer_norm(x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        total = x[tile, :] + residual[tile, :]
        residual[tile, :] = total
        out[tile, :] = torch.nn.functional.layer_norm(
            total.to(torch.float32), [x.size(1)], w[:].to(torch.float32), b[:].to(torch.float32)
        ).to(x.dtype)
    return out


def softcap_softmax(x: torch.Tensor, cap: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.softmax(torch.tanh(x[tile, :].to(torch.float32) / cap) * cap, -1).to(x.dtype)
    return out


def softmax_of_temperatures(x: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.softmax(x[tile, :].to(torch.float32) / temperature[tile, None], -1).to(x.dtype)
    return out


def masked_softmax(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = torch.where(mask[tile, :], x[tile, :].to(torch.float32), float("-inf"))
        out[tile, :] = torch.softmax(row, -1).to(x.dtype)
    return out


def causal_softmax(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        column = hl.arange(x.size(1))
        row = torch.where(column[None, :] <= tile.index[:, None], x[tile, :].to(torch.float32), float("-inf"))
        out[tile, :] = torch.softmax(row, -1).to(x.dtype)
    return out


def smoothed_cross_entropy(x: torch.Tensor, labels: torch.Tensor, smoothing: float, ignored: int) -> torch.Tensor:
    loss = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    flat = x.view(-1)
    for tile in hl.tile(x.size(0)):
        label = labels[tile]
        kept = label != ignored
        safe = torch.where(kept, label, 0)
        row = x[tile, :].to(torch.float32)
        total = torch.logsumexp(row, -1)
        picked = hl.load(flat, [tile.index * x.size(1) + safe]).to(torch.float32)
        smooth = (1 - smoothing) * (total - picked) + smoothing * (total - row.mean(-1))
        loss[tile] = torch.where(kept, smooth + 1e-4 * total * total, 0.0)
    return loss


def cross_entropy_of_positions(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    loss = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        hit = hl.arange(x.size(1))[None, :] == labels[tile][:, None]
        loss[tile] = torch.logsumexp(row, -1) - torch.where(hit, row, 0.0).sum(-1)
    return loss


def cross_entropy_gradient(x: torch.Tensor, labels: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = torch.softmax(x[tile, :].to(torch.float32), -1)
        hit = hl.arange(x.size(1))[None, :] == labels[tile][:, None]
        out[tile, :] = ((row - torch.where(hit, 1.0, 0.0)) * scale[tile][:, None]).to(x.dtype)
    return out


def kl_of_logits(x: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    loss = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        log_q = torch.log_softmax(x[tile, :].to(torch.float32), -1)
        log_p = torch.log_softmax(teacher[tile, :].to(torch.float32), -1)
        loss[tile] = (torch.exp(log_p) * (log_p - log_q)).sum(-1)
    return loss


def js_of_logarithms(x: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    loss = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        log_q, log_p = x[tile, :].to(torch.float32), teacher[tile, :].to(torch.float32)
        q, p = torch.exp(log_q), torch.exp(log_p)
        middle = torch.log(0.5 * (p + q))
        loss[tile] = (0.5 * (p * (log_p - middle) + q * (log_q - middle))).sum(-1)
    return loss


def clipped_policy_loss(new: torch.Tensor, old: torch.Tensor, reference: torch.Tensor, advantage: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:  # fmt: skip
    loss = torch.empty([new.size(0)], dtype=torch.float32, device=new.device)
    for tile in hl.tile(new.size(0)):
        log = new[tile, :].to(torch.float32)
        ratio = torch.exp(log - old[tile, :].to(torch.float32))
        gain = advantage[tile][:, None]
        least = torch.minimum(ratio * gain, torch.clamp(ratio, 0.8, 1.2) * gain)
        away = reference[tile, :].to(torch.float32) - log
        each = -least + 0.04 * (torch.exp(away) - away - 1.0)
        kept = mask[tile, :].to(torch.float32)
        loss[tile] = (each * kept).sum(-1) / torch.clamp(kept.sum(-1), min=1.0)
    return loss


def log_softmax_gradient(y: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(y)
    for tile in hl.tile(y.size(0)):
        slope = grad[tile, :].to(torch.float32)
        out[tile, :] = (slope - torch.exp(y[tile, :].to(torch.float32)) * slope.sum(-1, keepdim=True)).to(y.dtype)
    return out


def rms_norm_gradient(x: torch.Tensor, w: torch.Tensor, grad: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row, slope = x[tile, :].to(torch.float32), grad[tile, :].to(torch.float32) * w[:].to(torch.float32)
        r = scale[tile][:, None]
        out[tile, :] = (r * slope - row * r * r * r * (row * slope).mean(-1, keepdim=True)).to(x.dtype)
    return out


def rms_norm_gradients(x: torch.Tensor, w: torch.Tensor, grad: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    m, n = x.size()
    span = hl.register_block_size(m)
    out = torch.empty_like(x)
    parts = torch.empty([helion.cdiv(m, span), n], dtype=torch.float32, device=x.device)
    for outer in hl.tile(m, block_size=span):
        acc = hl.zeros([n], dtype=torch.float32)
        for tile in hl.tile(outer.begin, outer.end):
            row, given = x[tile, :].to(torch.float32), grad[tile, :].to(torch.float32)
            slope, r = given * w[:].to(torch.float32), scale[tile][:, None]
            out[tile, :] = (r * slope - row * r * r * r * (row * slope).mean(-1, keepdim=True)).to(x.dtype)
            acc += (given * row * r).sum(0)
        parts[outer.id, :] = acc
    return out, parts.sum(0)


def layer_norm_gradients(x: torch.Tensor, w: torch.Tensor, grad: torch.Tensor, out: torch.Tensor, dw: torch.Tensor, db: torch.Tensor) -> None:  # fmt: skip
    for tile in hl.tile(x.size(0)):
        row, given = x[tile, :].to(torch.float32), grad[tile, :].to(torch.float32)
        mean = row.mean(-1, keepdim=True)
        centred = row - mean
        r = torch.rsqrt((centred * centred).mean(-1, keepdim=True) + 1e-5)
        hat, slope = centred * r, given * w[:].to(torch.float32)
        out[tile, :] = (r * (slope - slope.mean(-1, keepdim=True) - hat * (slope * hat).mean(-1, keepdim=True))).to(
            x.dtype
        )
        hl.atomic_add(dw, [slice(None)], (given * hat).sum(0))
        hl.atomic_add(db, [slice(None)], given.sum(0))


def quantized_rows(x: torch.Tensor, low: torch.Tensor, scale: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        step = torch.amax(torch.abs(row), -1) / 448.0
        scale[tile] = step
        low[tile, :] = (row / step[:, None]).to(low.dtype)


def quantized_groups(x: torch.Tensor, low: torch.Tensor, scale: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32).reshape(tile, x.size(1) // GROUP, GROUP)
        step = torch.amax(torch.abs(row), -1) / 448.0
        scale[tile, :] = step
        low[tile, :] = (row / step[:, :, None]).reshape(tile, x.size(1)).to(low.dtype)


def quantized_group_tiles(x: torch.Tensor, low: torch.Tensor, scale: torch.Tensor) -> None:
    for tile, part in hl.tile(x.size(), block_size=[None, GROUP]):
        row = x[tile, part].to(torch.float32)
        step = torch.amax(torch.abs(row), -1) / 448.0
        scale[tile, part.id] = step
        low[tile, part] = (row / step[:, None]).to(low.dtype)


def quantized_group_loops(x: torch.Tensor, low: torch.Tensor, scale: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        for part in hl.tile(x.size(1), block_size=GROUP):
            row = x[tile, part].to(torch.float32)
            step = torch.amax(torch.abs(row), -1) / 448.0
            scale[tile, part.id] = step
            low[tile, part] = (row / step[:, None]).to(low.dtype)


def quantized_views(x: torch.Tensor, low: torch.Tensor, scale: torch.Tensor) -> None:
    x, low, scale = x.view(-1, GROUP), low.view(-1, GROUP), scale.view(-1)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        step = torch.amax(torch.abs(row), -1) / 448.0
        scale[tile] = step
        low[tile, :] = (row / step[:, None]).to(low.dtype)


def asymmetric_bytes(x: torch.Tensor, low: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        least, most = torch.amin(row, -1), torch.amax(row, -1)
        step = torch.clamp(most - least, min=1e-8) / 255.0
        scale[tile], zero[tile] = step, least
        low[tile, :] = torch.round((row - least[:, None]) / step[:, None]).to(torch.uint8)


def group_norm(x: torch.Tensor) -> torch.Tensor:
    b, c, p = x.size()
    out = torch.empty_like(x)
    rows, stored = x.view(b * 32, c // 32 * p), out.view(b * 32, c // 32 * p)
    for tile in hl.tile(b * 32):
        row = rows[tile, :].to(torch.float32)
        centred = row - row.mean(-1, keepdim=True)
        stored[tile, :] = (centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)
    return out


def softmax_of_batches(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile_b, tile_m in hl.tile([x.size(0), x.size(1)]):
        out[tile_b, tile_m, :] = torch.softmax(x[tile_b, tile_m, :].to(torch.float32), -1).to(x.dtype)
    return out


def rms_norm_of_batches(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for b in hl.grid(x.size(0)):
        for tile in hl.tile(x.size(1)):
            row = x[b, tile, :].to(torch.float32)
            scale = torch.rsqrt((row * row).mean(-1, keepdim=True) + 1e-6)
            out[b, tile, :] = (row * scale * w[:].to(torch.float32)).to(x.dtype)
    return out


def softmax_of_one_row(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for at in hl.grid(x.size(0)):
        out[at, :] = torch.softmax(x[at, :].to(torch.float32), -1).to(x.dtype)
    return out


def norm_of_a_part(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    n = w.size(0)
    out = torch.empty([x.size(0), n], dtype=x.dtype, device=x.device)
    part = x[:, n:]
    for tile in hl.tile(x.size(0)):
        row = part[tile, :].to(torch.float32)
        out[tile, :] = (row * torch.rsqrt((row * row).mean(-1, keepdim=True) + 1e-6) * w[:]).to(x.dtype)
    return out


def swiglu_to_fp8(x: torch.Tensor, low: torch.Tensor, scale: torch.Tensor) -> None:
    n = low.size(1)
    gate, up = x[:, :n], x[:, n:]
    for tile in hl.tile(x.size(0)):
        row = torch.nn.functional.silu(gate[tile, :].to(torch.float32)) * up[tile, :].to(torch.float32)
        step = torch.clamp(torch.amax(torch.abs(row), -1), min=1e-8) / 448.0
        scale[tile] = step
        low[tile, :] = (row / step[:, None]).to(low.dtype)


def largest_with_probability(x: torch.Tensor, place: torch.Tensor, share: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        place[tile] = torch.argmax(row, -1)
        top = torch.amax(row, -1)
        share[tile] = 1.0 / torch.exp(row - top[:, None]).sum(-1)


def moments(x: torch.Tensor, mean: torch.Tensor, deviation: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        mean[tile] = row.mean(-1)
        deviation[tile] = torch.sqrt(torch.var(row, -1))


def cosine_similarity(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        a, b = x[tile, :].to(torch.float32), y[tile, :].to(torch.float32)
        out[tile] = (a * b).sum(-1) * torch.rsqrt((a * a).sum(-1) * (b * b).sum(-1) + 1e-12)
    return out


def entropy(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        log = torch.log_softmax(x[tile, :].to(torch.float32), -1)
        out[tile] = -(torch.exp(log) * log).sum(-1)
    return out


def dropped_softmax(x: torch.Tensor, kept: torch.Tensor, scale: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = torch.softmax(x[tile, :].to(torch.float32), -1)
        out[tile, :] = torch.where(kept[tile, :], row * scale, 0.0).to(x.dtype)
    return out


def sums_of_lanes(x: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    block = hl.register_block_size(n)
    for tile in hl.tile(m):
        acc = hl.zeros([tile, block], dtype=torch.float32)
        for part in hl.tile(n, block_size=block):
            acc += x[tile, part].to(torch.float32)
        out[tile] = acc.sum(-1)
    return out


def huber_rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        off = torch.abs(x[tile, :].to(torch.float32) - y[tile, :].to(torch.float32))
        out[tile] = torch.where(off < 1.0, 0.5 * off * off, off - 0.5).mean(-1)
    return out


def clipped_rows(x: torch.Tensor, limit: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        size = torch.sqrt((row * row).sum(-1, keepdim=True))
        out[tile, :] = (row * torch.clamp(limit / (size + 1e-6), max=1.0)).to(x.dtype)
    return out


def dequantized_norm(x: torch.Tensor, scale: torch.Tensor, out: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32) * scale[tile][:, None]
        out[tile, :] = (row * torch.rsqrt((row * row).mean(-1, keepdim=True) + 1e-6)).to(out.dtype)


def loops_of_three_passes(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty_like(x)
    for tile in hl.tile(m):
        total = hl.zeros([tile], dtype=torch.float32)
        for part in hl.tile(n):
            total += x[tile, part].to(torch.float32).sum(-1)
        mean = total / n
        squares = hl.zeros([tile], dtype=torch.float32)
        for part in hl.tile(n):
            off = x[tile, part].to(torch.float32) - mean[:, None]
            squares += (off * off).sum(-1)
        scale = torch.rsqrt(squares / n + 1e-5)
        for part in hl.tile(n):
            out[tile, part] = ((x[tile, part].to(torch.float32) - mean[:, None]) * scale[:, None] * w[part]).to(x.dtype)
    return out


def tensors(*kinds: str, dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, ...]:
    """Return tensors by kind: rows, wide rows, vectors over columns, numbers per row, and others."""
    shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
        "rows": ((M, N), dtype),
        "wide": ((M, 2 * N), dtype),
        "vector": ((N,), dtype),
        "number": ((M,), torch.float32),
        "label": ((M,), torch.int64),
        "mask": ((M, N), torch.bool),
        "fp8": ((M, N), FP8),
        "bytes": ((M, N), torch.uint8),
        "int8": ((M, N), torch.int8),
        "float rows": ((M, N), torch.float32),
        "groups": ((M, N // GROUP), torch.float32),
        "batches": ((8, M // 8, N), dtype),
        "sums": ((N,), torch.float32),
        "lines": ((M, 1), torch.float32),
        "channels": ((M // 8,), dtype),
        "heads": ((8,), dtype),
    }
    return tuple(torch.empty(shapes[kind][0], dtype=shapes[kind][1], device="meta") for kind in kinds)


CASES: tuple[tuple[Callable[..., Any], tuple[Any, ...]], ...] = (
    (l2_normalize, tensors("rows", "rows")),
    (gated_rms_norm, tensors("rows", "rows", "vector", "rows")),
    (added_layer_norm, tensors("rows", "rows", "vector", "vector")),
    (softcap_softmax, (*tensors("rows"), 30.0)),
    (softmax_of_temperatures, tensors("rows", "number")),
    (masked_softmax, tensors("rows", "mask")),
    (causal_softmax, tensors("rows")),
    (smoothed_cross_entropy, (*tensors("rows", "label"), 0.1, -100)),
    (cross_entropy_of_positions, tensors("rows", "label")),
    (cross_entropy_gradient, tensors("rows", "label", "number")),
    (kl_of_logits, tensors("rows", "rows")),
    (js_of_logarithms, tensors("rows", "rows")),
    (clipped_policy_loss, tensors("rows", "rows", "rows", "number", "mask")),
    (log_softmax_gradient, tensors("rows", "rows")),
    (rms_norm_gradient, tensors("rows", "vector", "rows", "number")),
    (rms_norm_gradients, tensors("rows", "vector", "rows", "number")),
    (layer_norm_gradients, tensors("rows", "vector", "rows", "rows", "sums", "sums")),
    (quantized_rows, tensors("rows", "fp8", "number")),
    (quantized_groups, tensors("rows", "fp8", "groups")),
    (quantized_group_tiles, tensors("rows", "fp8", "groups")),
    (quantized_group_loops, tensors("rows", "fp8", "groups")),
    (quantized_views, tensors("rows", "fp8", "groups")),
    (asymmetric_bytes, tensors("rows", "bytes", "number", "number")),
    (group_norm, tensors("batches")),
    (softmax_of_batches, tensors("batches")),
    (rms_norm_of_batches, tensors("batches", "vector")),
    (softmax_of_one_row, tensors("rows")),
    (norm_of_a_part, tensors("wide", "vector")),
    (swiglu_to_fp8, tensors("wide", "fp8", "number")),
    (largest_with_probability, tensors("rows", "label", "number")),
    (moments, tensors("rows", "number", "number")),
    (cosine_similarity, tensors("rows", "rows")),
    (entropy, tensors("rows")),
    (dropped_softmax, (*tensors("rows", "mask"), 1.25)),
    (sums_of_lanes, tensors("rows")),
    (huber_rows, tensors("rows", "rows")),
    (clipped_rows, (*tensors("rows"), 1.0)),
    (dequantized_norm, tensors("fp8", "number", "rows")),
    (loops_of_three_passes, tensors("rows", "vector")),
)


def more_cases() -> Iterator[tuple[Callable[..., Any], tuple[Any, ...]]]:
    for fn, named in (*row_styles.CASES, *row_forms.CASES):
        yield fn, tuple(each for name in named for each in (tensors(name) if isinstance(name, str) else (name,)))


def answers(names: list[str], target: str) -> Iterator[tuple[str, str]]:
    """Yield each kernel's name with its layout, or the reason of its refusal."""
    for fn, arguments in (*CASES, *more_cases()):
        if names and fn.__name__ not in names:
            continue
        try:
            kernel = helion.kernel(backend="cute", ignore_warnings=[helion.exc.TensorOperationInWrapper])(fn)
            yield fn.__name__, f"yes: {kernel.bind(arguments, target=target).seeds[0].reason}"
        except helion.exc.Base as refused:
            yield fn.__name__, f"no: {shortened(str(refused))}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--target", default="sm_90")
    options = parser.parse_args()
    found = list(answers(options.names, options.target))
    for name, answer in found:
        print(f"{name:28} {answer}")
    print(f"{sum(answer.startswith('yes') for _, answer in found)} of {len(found)} are taken")


if __name__ == "__main__":
    main()
