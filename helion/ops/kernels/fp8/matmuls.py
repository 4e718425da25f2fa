"""Matmuls of matrices in fp8, which accumulate in fp32.

Scales of rows apply once, to the accumulator; scales of blocks apply to the product of each block.
"""

from __future__ import annotations

import torch

import helion
import helion.language as hl

from ..._operators import FLOATS, Operator, check, check_tensor, rows
from .scales import FP8, check_block


@helion.kernel(static_shapes=False)
def scaled_matmul_kernel(
    x: torch.Tensor, weight: torch.Tensor, x_scale: torch.Tensor, weight_scale: torch.Tensor, dtype: hl.constexpr
) -> torch.Tensor:
    """Compute `(x[M, K] * x_scale[M, None]) @ (weight[N, K] * weight_scale[N, None]).T`."""
    m = x.size(0)
    n, k = hl.specialize(weight.size())
    out = torch.empty([m, n], dtype=dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], weight[tile_n, tile_k].T, acc=acc)
        out[tile_m, tile_n] = acc * x_scale[tile_m][:, None] * weight_scale[tile_n][None, :]
    return out


@helion.kernel(static_shapes=False)
def block_scaled_matmul_kernel(
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scale: torch.Tensor,
    weight_scale: torch.Tensor,
    dtype: hl.constexpr,
    block: hl.constexpr,
) -> torch.Tensor:
    """Compute `x[M, K] @ weight[N, K].T` with scales `[M, K / block]` and `[N / block, K / block]`."""
    m = x.size(0)
    n, k = hl.specialize(weight.size())
    out = torch.empty([m, n], dtype=dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k, block_size=block):
            product = hl.dot(x[tile_m, tile_k], weight[tile_n, tile_k].T)
            of_columns = weight_scale[tile_n.index // block, tile_k.id]
            acc = acc + product * x_scale[tile_m, tile_k.id][:, None] * of_columns[None, :]
        out[tile_m, tile_n] = acc
    return out


_scaled_matmul = Operator(
    "scaled_matmul(Tensor x, Tensor weight, Tensor x_scale, Tensor weight_scale, ScalarType dtype) -> Tensor",
    scaled_matmul_kernel,
    fake=lambda x, weight, x_scale, weight_scale, dtype: x.new_empty(x.size(0), weight.size(0), dtype=dtype),
)
_scaled_matmul.refuse_gradients()
_block_scaled_matmul = Operator(
    "block_scaled_matmul(Tensor x, Tensor weight, Tensor x_scale, Tensor weight_scale, ScalarType dtype, int block) "
    "-> Tensor",
    block_scaled_matmul_kernel,
    fake=lambda x, weight, x_scale, weight_scale, dtype, block: x.new_empty(x.size(0), weight.size(0), dtype=dtype),
)
_block_scaled_matmul.refuse_gradients()


def scaled_matmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scale: torch.Tensor,
    weight_scale: torch.Tensor,
    *,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """Multiply fp8 activations by the transpose of an fp8 weight, with a scale per row of both. There is no gradient.

    Args:
        x: `[..., K]`; float8_e4m3fn or float8_e5m2.
        weight: `[N, K]`, of the dtype of `x`.
        x_scale: fp32 `[...]`, one per row of `x`.
        weight_scale: fp32 `[N]`.
        dtype: dtype of the result; bfloat16, float16 or float32.

    Returns:
        `[..., N]` of `dtype`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape or device.
    """
    op = "scaled_matmul"
    check_tensor(op, "x", x, dtypes=FP8, least_dims=1)
    check_tensor(op, "weight", weight, dtypes=(x.dtype,), least_dims=2, like=x)
    check_tensor(op, "weight", weight, dtypes=(x.dtype,), shape=(weight.size(0), x.size(-1)))
    check_tensor(op, "x_scale", x_scale, dtypes=(torch.float32,), shape=x.shape[:-1], like=x)
    check_tensor(op, "weight_scale", weight_scale, dtypes=(torch.float32,), shape=weight.shape[:1], like=x)
    check(op, "dtype", dtype in FLOATS, "bfloat16, float16 or float32", dtype)
    out: torch.Tensor = _scaled_matmul(rows(x), weight, x_scale.reshape(-1), weight_scale, dtype)
    return out.view(*x.shape[:-1], weight.size(0))


def block_scaled_matmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scale: torch.Tensor,
    weight_scale: torch.Tensor,
    *,
    dtype: torch.dtype = torch.bfloat16,
    block: int = 128,
) -> torch.Tensor:
    """Multiply fp8 activations by the transpose of an fp8 weight, with a scale per group and per block. There is no gradient.

    Args:
        x: `[..., K]`; float8_e4m3fn or float8_e5m2.
        weight: `[N, K]`, of the dtype of `x`.
        x_scale: fp32 `[..., ceil(K / block)]`, one per `block` columns of a row, as from `quantize_fp8(x, group=block)`.
        weight_scale: fp32 `[ceil(N / block), ceil(K / block)]`, as from `quantize_fp8_blocks`.
        dtype: dtype of the result; bfloat16, float16 or float32.
        block: number of rows and columns of a block, a power of two.

    Returns:
        `[..., N]` of `dtype`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape, device or value.
    """
    op = "block_scaled_matmul"
    check_tensor(op, "x", x, dtypes=FP8, least_dims=1)
    check_tensor(op, "weight", weight, dtypes=(x.dtype,), dims=2, like=x)
    n, k = weight.size(0), x.size(-1)
    check_tensor(op, "weight", weight, dtypes=(x.dtype,), shape=(n, k))
    check_block(op, block)
    steps = -(-k // block)
    check_tensor(op, "x_scale", x_scale, dtypes=(torch.float32,), shape=(*x.shape[:-1], steps), like=x)
    check_tensor(op, "weight_scale", weight_scale, dtypes=(torch.float32,), shape=(-(-n // block), steps), like=x)
    check(op, "dtype", dtype in FLOATS, "bfloat16, float16 or float32", dtype)
    out: torch.Tensor = _block_scaled_matmul(rows(x), weight, rows(x_scale), weight_scale, dtype, block)
    return out.view(*x.shape[:-1], n)
