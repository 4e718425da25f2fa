"""Linear layer with a 4-bit weight and a scale per group of columns of each row of it.

A byte holds two columns of a group: one of its first half in the low four bits, and that of its second half in the
high ones. So both halves multiply consecutive columns of the activations. Shifts of int8 extend the sign.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

import helion
import helion.language as hl

from .._low_bits import differentiate_linear
from .._operators import Operator, check, check_tensor, rows, split


@helion.kernel(static_shapes=False)
def quantize_int4_kernel(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize and pack `weight[N, G, 2, H]`, G groups of two halves; return int8 `[N, G, H]` and fp32 scales `[N, G]`."""
    n, groups = weight.size(0), weight.size(1)
    half = hl.specialize(weight.size(3))
    packed = torch.empty([n, groups, half], dtype=torch.int8, device=weight.device)
    scales = torch.empty([n, groups], dtype=torch.float32, device=weight.device)
    for tile_n, tile_g in hl.tile([n, groups]):
        first = weight[tile_n, tile_g, 0, :].to(torch.float32)
        second = weight[tile_n, tile_g, 1, :].to(torch.float32)
        highest = torch.amax(torch.maximum(torch.abs(first), torch.abs(second)), dim=-1)
        scale = torch.where(highest > 0, highest / 7, 1.0)
        scales[tile_n, tile_g] = scale
        low = torch.round(first / scale[:, :, None]).to(torch.int32)
        high = torch.round(second / scale[:, :, None]).to(torch.int32)
        packed[tile_n, tile_g, :] = ((high << 4) | (low & 15)).to(torch.int8)
    return packed, scales


#: The most rows for which a kernel converts the weight on its way. For more, the weight is converted once before.
MOST_ROWS = 256
#: Columns of the result that a program computes.
COLUMNS = 64
#: Bits of a float that with an integer from 0 to 15 in its low bits is this integer plus an offset; and the offset.
EXACT = {torch.bfloat16: (0x4300, 128.0), torch.float16: (0x6400, 1024.0)}


def unpacked(nibbles: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert the low four bits of int8, which are signed, to floats."""
    if dtype not in EXACT:
        return ((nibbles << 4) >> 4).to(dtype)
    bits, offset = EXACT[dtype]
    # some times fewer instructions than a conversion of integers
    return ((nibbles.to(torch.int16) & 15) ^ (bits | 8)).view(dtype) - (offset + 8)


@helion.kernel(static_shapes=False)
def int4_linear_kernel(
    x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Compute `x[M, G, 2, H]`, G groups of two halves, times the transpose of a weight `packed[N, G, H]`, plus `bias[N]`."""
    m = x.size(0)
    n, groups, _ = hl.specialize(packed.size())
    hl.specialize((*x.size()[1:], *x.stride()[1:], *packed.stride(), *scale.stride()))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n], block_size=[None, COLUMNS]):
        acc = hl.zeros(
            [tile_n, tile_m], dtype=torch.float32
        )  # the converted operand comes first: it stays in registers
        for group in hl.grid(groups):
            both = packed[tile_n, group, :]
            product = hl.dot(unpacked(both, x.dtype), x[tile_m, group, 0, :].T)
            product = hl.dot(unpacked(both >> 4, x.dtype), x[tile_m, group, 1, :].T, acc=product)
            acc = acc + product * scale[tile_n, group].to(torch.float32)[:, None]
        if bias is not None:
            acc = acc + bias[tile_n].to(torch.float32)[:, None]
        out[tile_m, tile_n] = acc.T
    return out


@helion.kernel(static_shapes=False)
def dequantize_int4_kernel(packed: torch.Tensor, scale: torch.Tensor, dtype: hl.constexpr) -> torch.Tensor:
    """Compute the weight `[N, G, 2, H]` of a dtype from `packed[N, G, H]` and `scale[N, G]`."""
    n = packed.size(0)
    groups, half = hl.specialize((packed.size(1), packed.size(2)))
    out = torch.empty([n, groups, 2, half], dtype=dtype, device=packed.device)
    for tile_n, tile_g in hl.tile([n, groups]):
        both = packed[tile_n, tile_g, :]
        factor = scale[tile_n, tile_g].to(torch.float32)[:, :, None]
        out[tile_n, tile_g, 0, :] = unpacked(both, dtype).to(torch.float32) * factor
        out[tile_n, tile_g, 1, :] = unpacked(both >> 4, dtype).to(torch.float32) * factor
    return out


def _run(x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    if x.size(0) <= MOST_ROWS or x.dtype not in EXACT:
        return int4_linear_kernel(x, packed, scale, bias)
    weight = dequantize_int4_kernel(packed, scale, x.dtype).flatten(1)
    return F.linear(x.flatten(1), weight, None if bias is None else bias.to(x.dtype))


def _run_backward(grad: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    weight = dequantize_int4_kernel(packed, scale, grad.dtype)
    return (grad @ weight.flatten(1)).view(-1, *weight.shape[1:])


_quantize = Operator(
    "quantize_int4(Tensor weight) -> (Tensor, Tensor)",
    quantize_int4_kernel,
    fake=lambda weight: (
        weight.new_empty(*weight.shape[:2], weight.size(3), dtype=torch.int8),
        weight.new_empty(weight.shape[:2], dtype=torch.float32),
    ),
)
_quantize.refuse_gradients()
_backward = Operator(
    "int4_linear_backward(Tensor grad, Tensor packed, Tensor scale) -> Tensor",
    dequantize_int4_kernel,
    run=_run_backward,
    fake=lambda grad, packed, scale: grad.new_empty(grad.size(0), packed.size(1), 2, packed.size(2)),
)
_backward.differentiate_once()
_int4_linear = Operator(
    "int4_linear(Tensor x, Tensor packed, Tensor scale, Tensor? bias) -> Tensor",
    int4_linear_kernel,
    dequantize_int4_kernel,
    run=_run,
    fake=lambda x, packed, scale, bias: x.new_empty(x.size(0), packed.size(0)),
)
differentiate_linear(_int4_linear, _backward)


def _check_group(op: str, group: int, columns: int) -> None:
    fits = group >= 32 and group & (group - 1) == 0 and columns % group == 0
    check(op, "group", fits, f"a power of two, at least 32, that divides the {columns} columns", group)


def quantize_int4(weight: torch.Tensor, *, group: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize and pack a weight for `int4_linear`. There is no gradient.

    Integers are from -7 to 7. Byte i of a group has its column i in the low four bits, and its column `group / 2 + i`
    in the high ones.

    Args:
        weight: `[N, K]`; float32, bfloat16 or float16.
        group: number of columns with one scale; a power of two, at least 32, that divides K.

    Returns:
        The packed weight, int8 `[N, K / 2]`, and fp32 scales `[N, K / group]`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape or value.
    """
    check_tensor("quantize_int4", "weight", weight, dims=2)
    _check_group("quantize_int4", group, weight.size(1))
    packed, scale = _quantize(weight.unflatten(1, (-1, 2, group // 2)))
    return packed.flatten(1), scale


def int4_linear(
    x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Apply a linear layer with a weight that `quantize_int4` has packed.

    There are gradients with respect to `x` and `bias`; the weight and its scales are constants. The number of columns
    of a group is K divided by the number of scales of a row.

    Args:
        x: `[..., K]`; float32, bfloat16 or float16.
        packed: `[N, K / 2]`; int8.
        scale: `[N, K / group]`; float32, bfloat16 or float16.
        bias: `[N]`, or None; any of these dtypes.

    Returns:
        `[..., N]` in the dtype of `x`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape or device.
    """
    op = "int4_linear"
    check_tensor(op, "x", x, least_dims=1)
    check_tensor(op, "packed", packed, dtypes=(torch.int8,), dims=2, like=x)
    n, k = packed.size(0), x.size(-1)
    check_tensor(op, "packed", packed, dtypes=(torch.int8,), shape=(n, k // 2))
    check_tensor(op, "scale", scale, dims=2, least_dims=1, like=x)
    check_tensor(op, "scale", scale, shape=(n, scale.size(1)))
    groups = scale.size(1)
    check(op, "scale", k % groups == 0, f"of a number of groups that divides the {k} columns", f"{groups} groups")
    _check_group(op, k // groups, k)
    if bias is not None:
        check_tensor(op, "bias", bias, shape=(n,), like=x)
    half = k // groups // 2
    halves, packed = split(rows(x), 1, groups, 2, half), split(packed, 1, groups, half)
    out: torch.Tensor = _int4_linear(halves, packed, scale.detach(), bias)
    return out.view(*x.shape[:-1], n)
