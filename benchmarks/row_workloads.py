"""Row kernels as users write them, with fp64 references, for ``benchmarks/row_kernels.py``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

import helion
import helion.language as hl

EPS = 1e-5


def rms_norm(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        scale = torch.rsqrt((row * row).mean(-1) + EPS)
        out[tile, :] = (row * scale[:, None] * weight[:].to(torch.float32)).to(out.dtype)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, out: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        centred = row - row.mean(-1)[:, None]
        scale = torch.rsqrt((centred * centred).mean(-1) + EPS)
        out[tile, :] = (centred * scale[:, None] * weight[:].to(torch.float32) + bias[:].to(torch.float32)).to(
            out.dtype
        )


def softmax(x: torch.Tensor, out: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.softmax(x[tile, :].to(torch.float32), dim=-1).to(out.dtype)


def softmax_loops(x: torch.Tensor, out: torch.Tensor) -> None:
    m, n = x.size()
    for tile_m in hl.tile(m):
        top = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            values = x[tile_m, tile_n].to(torch.float32)
            raised = torch.maximum(top, torch.amax(values, dim=1))
            total = total * torch.exp(top - raised) + torch.exp(values - raised[:, None]).sum(dim=1)
            top = raised
        for tile_n in hl.tile(n):
            values = x[tile_m, tile_n].to(torch.float32)
            out[tile_m, tile_n] = (torch.exp(values - top[:, None]) / total[:, None]).to(out.dtype)


def logsumexp(x: torch.Tensor, total: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        total[tile] = torch.logsumexp(x[tile, :].to(torch.float32), -1)


def row_sum(x: torch.Tensor, total: torch.Tensor) -> None:
    m, n = x.size()
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            acc += x[tile_m, tile_n].to(torch.float32).sum(-1)
        total[tile_m] = acc


def softmax_backward(y: torch.Tensor, grad: torch.Tensor, out: torch.Tensor) -> None:
    for tile in hl.tile(y.size(0)):
        row, slope = y[tile, :].to(torch.float32), grad[tile, :].to(torch.float32)
        out[tile, :] = (row * (slope - (row * slope).sum(-1)[:, None])).to(out.dtype)


def add_rms_norm_fp8(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    low: torch.Tensor,
    scale: torch.Tensor,
) -> None:
    for tile in hl.tile(x.size(0)):
        added = x[tile, :] + residual[tile, :]
        out[tile, :] = added
        row = added.to(torch.float32)
        normed = row * torch.rsqrt((row * row).mean(-1) + EPS)[:, None] * weight[:].to(torch.float32)
        step = torch.clamp(torch.amax(torch.abs(normed), -1), min=1e-12) / 448.0
        scale[tile] = step
        low[tile, :] = (normed / step[:, None]).to(torch.float8_e4m3fn)


def kl_div(x: torch.Tensor, target: torch.Tensor, total: torch.Tensor) -> None:
    m, n = x.size()
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            wanted, given = target[tile_m, tile_n].to(torch.float32), x[tile_m, tile_n].to(torch.float32)
            acc += torch.where(wanted > 0, wanted * (torch.log(wanted) - given), 0.0).sum(-1)
        total[tile_m] = acc


def argmax(x: torch.Tensor, place: torch.Tensor, total: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        place[tile] = torch.argmax(row, -1)
        total[tile] = torch.amax(row, -1)


def rms_norm_backward(
    x: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor, out: torch.Tensor, of_weight: torch.Tensor
) -> None:
    m, n = x.size()
    block_m = hl.register_block_size(m)
    parts = torch.empty([helion.cdiv(m, block_m), n], dtype=torch.float32, device=x.device)
    for block in hl.tile(m, block_size=block_m):
        acc = hl.zeros([n], dtype=torch.float32)
        for tile in hl.tile(block.begin, block.end):
            row, given = x[tile, :].to(torch.float32), grad[tile, :].to(torch.float32)
            scale = torch.rsqrt((row * row).mean(-1, keepdim=True) + EPS)
            hat, slope = row * scale, given * weight[:].to(torch.float32)
            acc += (given * hat).sum(0)
            out[tile, :] = (scale * (slope - hat * (slope * hat).mean(-1, keepdim=True))).to(out.dtype)
        parts[block.id, :] = acc
    hl.barrier()
    for columns in hl.tile(n):
        total = hl.zeros([columns], dtype=torch.float32)
        for lines in hl.tile(parts.size(0)):
            total += parts[lines, columns].sum(0)
        of_weight[columns] = total


def layer_norm_backward(
    x: torch.Tensor,
    weight: torch.Tensor,
    grad: torch.Tensor,
    out: torch.Tensor,
    of_weight: torch.Tensor,
    of_bias: torch.Tensor,
) -> None:
    m, n = x.size()
    block_m = hl.register_block_size(m)
    weights = torch.empty([helion.cdiv(m, block_m), n], dtype=torch.float32, device=x.device)
    biases = torch.empty([helion.cdiv(m, block_m), n], dtype=torch.float32, device=x.device)
    for block in hl.tile(m, block_size=block_m):
        weight_acc, bias_acc = hl.zeros([n], dtype=torch.float32), hl.zeros([n], dtype=torch.float32)
        for tile in hl.tile(block.begin, block.end):
            row, given = x[tile, :].to(torch.float32), grad[tile, :].to(torch.float32)
            centred = row - row.mean(-1, keepdim=True)
            scale = torch.rsqrt((centred * centred).mean(-1, keepdim=True) + EPS)
            hat, slope = centred * scale, given * weight[:].to(torch.float32)
            weight_acc += (given * hat).sum(0)
            bias_acc += given.sum(0)
            along = (slope * hat).mean(-1, keepdim=True)
            out[tile, :] = (scale * (slope - slope.mean(-1, keepdim=True) - hat * along)).to(out.dtype)
        weights[block.id, :] = weight_acc
        biases[block.id, :] = bias_acc
    hl.barrier()
    for columns in hl.tile(n):
        of_weights, of_biases = hl.zeros([columns], dtype=torch.float32), hl.zeros([columns], dtype=torch.float32)
        for lines in hl.tile(weights.size(0)):
            of_weights += weights[lines, columns].sum(0)
            of_biases += biases[lines, columns].sum(0)
        of_weight[columns] = of_weights
        of_bias[columns] = of_biases


#: Number of dimensions of an output: an element for each row and column, for each row, or for each column.
Extent = Literal["elements", "rows", "columns"]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One kernel: its inputs, "rows" or "vector", its outputs by name with their types (None is that of the inputs) and
    extents, and its reference in fp64 and as torch compiles it."""

    kernel: Callable[..., None]
    inputs: Sequence[str]
    outputs: Sequence[tuple[str, torch.dtype | None, Extent]]
    reference: Callable[..., Sequence[torch.Tensor]]
    probabilities: bool = False
    slack: Callable[..., Any] = lambda *inputs: 0.0
    """What an error is compared with besides the size of a result, where numbers cancel."""
    shift: float = 3.0
    scale: float = 2.0


def _f(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _rms(x: torch.Tensor, w: torch.Tensor) -> Sequence[torch.Tensor]:
    row = _f(x)
    return (row * torch.rsqrt((row * row).mean(-1, keepdim=True) + EPS) * _f(w),)


def _ln(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Sequence[torch.Tensor]:
    return (torch.nn.functional.layer_norm(_f(x), (x.size(1),), _f(w), _f(b), EPS),)


def _fp8(x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor, rounded: torch.dtype) -> Sequence[torch.Tensor]:
    added = (x.to(rounded) + residual.to(rounded)).to(x.dtype)
    row = _f(added)
    normed = row * torch.rsqrt((row * row).mean(-1, keepdim=True) + EPS) * _f(w)
    step = normed.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448.0
    return added, normed / step, step[:, 0]


def _kl(x: torch.Tensor, target: torch.Tensor) -> Sequence[torch.Tensor]:
    given, wanted = _f(x), _f(target)
    return (torch.where(wanted > 0, wanted * (torch.log(wanted) - given), 0.0).sum(-1),)


def _rms_backward(x: torch.Tensor, w: torch.Tensor, grad: torch.Tensor) -> Sequence[torch.Tensor]:
    row, given = _f(x), _f(grad)
    scale = torch.rsqrt((row * row).mean(-1, keepdim=True) + EPS)
    hat, slope = row * scale, given * _f(w)
    return scale * (slope - hat * (slope * hat).mean(-1, keepdim=True)), (given * hat).sum(0)


def _ln_backward(x: torch.Tensor, w: torch.Tensor, grad: torch.Tensor) -> Sequence[torch.Tensor]:
    row, given = _f(x), _f(grad)
    centred = row - row.mean(-1, keepdim=True)
    scale = torch.rsqrt((centred * centred).mean(-1, keepdim=True) + EPS)
    hat, slope = centred * scale, given * _f(w)
    along = (slope * hat).mean(-1, keepdim=True)
    return scale * (slope - slope.mean(-1, keepdim=True) - hat * along), (given * hat).sum(0), given.sum(0)


def _slope(x: torch.Tensor, w: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    return (grad * w).abs().mean() / 4


WORKLOADS: dict[str, Workload] = {
    "rms_norm": Workload(kernel=rms_norm, inputs=("rows", "vector"), outputs=(("out", None, "elements"),), reference=_rms),
    "layer_norm": Workload(
        kernel=layer_norm, inputs=("rows", "vector", "vector"), outputs=(("out", None, "elements"),), reference=_ln
    ),
    "softmax": Workload(
        kernel=softmax, inputs=("rows",), outputs=(("out", None, "elements"),),
        reference=lambda x: (torch.softmax(_f(x), -1),), shift=20.0,
    ),
    "softmax_loops": Workload(
        kernel=softmax_loops, inputs=("rows",), outputs=(("out", None, "elements"),),
        reference=lambda x: (torch.softmax(_f(x), -1),), shift=20.0,
    ),
    "logsumexp": Workload(
        kernel=logsumexp, inputs=("rows",), outputs=(("total", torch.float32, "rows"),),
        reference=lambda x: (torch.logsumexp(_f(x), -1),), shift=20.0,
    ),
    "row_sum": Workload(
        kernel=row_sum, inputs=("rows",), outputs=(("total", torch.float32, "rows"),),
        reference=lambda x: (_f(x).sum(-1),),
    ),
    "softmax_backward": Workload(
        kernel=softmax_backward, inputs=("rows", "rows"), outputs=(("out", None, "elements"),),
        reference=lambda y, g: (_f(y) * (_f(g) - (_f(y) * _f(g)).sum(-1, keepdim=True)),), probabilities=True,
        slack=lambda y, g: y,
    ),
    "add_rms_norm_fp8": Workload(
        kernel=add_rms_norm_fp8, inputs=("rows", "rows", "vector"),
        outputs=(("out", None, "elements"), ("low", torch.float8_e4m3fn, "elements"), ("scale", torch.float32, "rows")),
        reference=_fp8,
    ),
    "kl_div": Workload(
        kernel=kl_div, inputs=("rows", "rows"), outputs=(("total", torch.float32, "rows"),), reference=_kl,
        probabilities=True,
    ),
    "argmax": Workload(
        kernel=argmax, inputs=("rows",),
        outputs=(("place", torch.int64, "rows"), ("total", torch.float32, "rows")),
        reference=lambda x: (torch.argmax(x, -1), torch.amax(_f(x), -1)),
    ),
    "rms_norm_backward": Workload(
        kernel=rms_norm_backward, inputs=("rows", "vector", "rows"),
        outputs=(("out", None, "elements"), ("of_weight", torch.float32, "columns")), reference=_rms_backward,
        slack=_slope,
    ),
    "layer_norm_backward": Workload(
        kernel=layer_norm_backward, inputs=("rows", "vector", "rows"),
        outputs=(
            ("out", None, "elements"), ("of_weight", torch.float32, "columns"), ("of_bias", torch.float32, "columns"),
        ),
        reference=_ln_backward, slack=_slope,
    ),
}  # fmt: skip
