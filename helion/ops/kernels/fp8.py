"""Quantization to fp8, alone or after a norm or a gated unit, and the matmuls of such matrices.

A scale belongs to a row, to a group of consecutive columns of a row, or to a square block. The largest magnitude of
these becomes the largest number of the format. Matmuls accumulate in fp32. Scales of rows apply once, to the
accumulator; scales of blocks apply to the product of each block.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl

from .._operators import FLOATS, Operator, check, check_tensor, rows, split
from .gated import ACTIVATIONS, silu

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def scaled(values: torch.Tensor, largest: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Divide the last dimension by a scale, so that its largest magnitude is `largest`; return results and scales."""
    highest = torch.amax(torch.abs(values), dim=-1)
    scale = torch.where(highest > 0, highest / largest, 1.0)
    return values / scale.unsqueeze(-1), scale


@helion.kernel(static_shapes=False)
def quantize_fp8_kernel(x: torch.Tensor, dtype: hl.constexpr, largest: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute fp8 values `[M, N]` and fp32 scales `[M]` with `values * scale` near `x[M, N]`."""
    m = x.size(0)
    n = hl.specialize(x.size(1))
    out = torch.empty([m, n], dtype=dtype, device=x.device)
    scales = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile in hl.tile(m):
        row, scale = scaled(x[tile, :].to(torch.float32), largest)
        scales[tile] = scale
        out[tile, :] = row.to(dtype)
    return out, scales


@helion.kernel(static_shapes=False)
def quantize_fp8_blocks_kernel(
    x: torch.Tensor, dtype: hl.constexpr, largest: float, block: hl.constexpr
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute fp8 values `[M, N]`, and a scale for each square of `block` rows and columns of `x[M, N]`."""
    m, n = x.size()
    out = torch.empty([m, n], dtype=dtype, device=x.device)
    scales = torch.empty([helion.cdiv(m, block), helion.cdiv(n, block)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n], block_size=[block, block]):
        values = x[tile_m, tile_n].to(torch.float32)
        highest = torch.amax(torch.amax(torch.abs(values), dim=-1), dim=0)
        scale = torch.where(highest > 0, highest / largest, 1.0)
        scales[tile_m.id, tile_n.id] = scale
        out[tile_m, tile_n] = (values / scale).to(dtype)
    return out, scales


@helion.kernel(static_shapes=False)
def norm_fp8_kernel(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    centered: hl.constexpr,
    dtype: hl.constexpr,
    largest: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Compute the same of the normalized rows of `x[M, N] + residual[M, N]`, which are not stored; return that sum too.

    With `centered`, rows have their mean subtracted before, as in a layer norm.
    """
    m = x.size(0)
    n = hl.specialize(x.size(1))
    out = torch.empty([m, n], dtype=dtype, device=x.device)
    scales = torch.empty([m], dtype=torch.float32, device=x.device)
    added = None if residual is None else torch.empty([m, n], dtype=residual.dtype, device=x.device)
    for tile in hl.tile(m):
        row = x[tile, :].to(torch.float32)
        if residual is not None and added is not None:
            total = (row + residual[tile, :].to(torch.float32)).to(residual.dtype)
            added[tile, :] = total
            row = total.to(torch.float32)
        if centered:
            row = row - torch.mean(row, dim=-1, keepdim=True)
        row = row * torch.rsqrt(torch.mean(row * row, dim=-1, keepdim=True) + eps) * weight[:].to(torch.float32)
        if bias is not None:
            row = row + bias[:].to(torch.float32)
        row, scale = scaled(row, largest)
        scales[tile] = scale
        out[tile, :] = row.to(dtype)
    return out, scales, added


@helion.kernel(static_shapes=False)
def norm_fp8_groups_kernel(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    centered: hl.constexpr,
    dtype: hl.constexpr,
    largest: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Compute the same of rows `x[M, G, N / G]` with a scale for each of the G groups of a row."""
    m = x.size(0)
    groups, width = hl.specialize(x.size(1)), hl.specialize(x.size(2))
    out = torch.empty([m, groups, width], dtype=dtype, device=x.device)
    scales = torch.empty([m, groups], dtype=torch.float32, device=x.device)
    added = None if residual is None else torch.empty([m, groups, width], dtype=residual.dtype, device=x.device)
    for tile in hl.tile(m):
        row = x[tile, :, :].to(torch.float32)
        if residual is not None and added is not None:
            total = (row + residual[tile, :, :].to(torch.float32)).to(residual.dtype)
            added[tile, :, :] = total
            row = total.to(torch.float32)
        if centered:
            row = row - (torch.sum(torch.sum(row, dim=-1), dim=-1) / (groups * width))[:, None, None]
        squares = torch.sum(torch.sum(row * row, dim=-1), dim=-1) / (groups * width)
        row = row * torch.rsqrt(squares + eps)[:, None, None] * weight[:, :].to(torch.float32)
        if bias is not None:
            row = row + bias[:, :].to(torch.float32)
        row, scale = scaled(row, largest)
        scales[tile, :] = scale
        out[tile, :, :] = row.to(dtype)
    return out, scales, added


@helion.kernel(static_shapes=False)
def gated_fp8_kernel(
    gate: torch.Tensor, up: torch.Tensor, activation: hl.constexpr, dtype: hl.constexpr, largest: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute fp8 values and scales `[M, G]` of `activation(gate) * up`, both `[M, G, N / G]`."""
    m, groups = gate.size(0), gate.size(1)
    width = hl.specialize(gate.size(2))
    out = torch.empty([m, groups, width], dtype=dtype, device=gate.device)
    scales = torch.empty([m, groups], dtype=torch.float32, device=gate.device)
    for tile_m, tile_g in hl.tile([m, groups]):
        activated, _ = activation(gate[tile_m, tile_g, :].to(torch.float32))
        values, scale = scaled(activated * up[tile_m, tile_g, :].to(torch.float32), largest)
        scales[tile_m, tile_g] = scale
        out[tile_m, tile_g, :] = values.to(dtype)
    return out, scales


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


def _largest(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).max


def _fake(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape, dtype=dtype), x.new_empty(x.shape[:-1], dtype=torch.float32)


def _fake_blocks(x: torch.Tensor, dtype: torch.dtype, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = (-(-size // block) for size in x.shape)
    return x.new_empty(x.shape, dtype=dtype), x.new_empty(*blocks, dtype=torch.float32)


_quantize = Operator(
    "quantize_fp8(Tensor x, ScalarType dtype) -> (Tensor, Tensor)",
    quantize_fp8_kernel,
    run=lambda x, dtype: quantize_fp8_kernel(x, dtype, _largest(dtype)),
    fake=_fake,
)
_quantize_blocks = Operator(
    "quantize_fp8_blocks(Tensor x, ScalarType dtype, int block) -> (Tensor, Tensor)",
    quantize_fp8_blocks_kernel,
    run=lambda x, dtype, block: quantize_fp8_blocks_kernel(x, dtype, _largest(dtype), block),
    fake=_fake_blocks,
)


def _norm_operator(name: str) -> Operator:
    """Return the operator of a norm. By its name it adds a residual, and centers rows, which takes a bias."""
    adds, centered = name.startswith("add"), "layer" in name
    inputs = f"Tensor x, {'Tensor residual, ' * adds}Tensor weight, {'Tensor? bias, ' * centered}float eps"

    def run(x: torch.Tensor, *others: Any) -> tuple[torch.Tensor, ...]:
        residual, others = (others[0], others[1:]) if adds else (None, others)
        weight, *bias, eps, dtype = others
        kernel: Any = norm_fp8_kernel if x.dim() == 2 else norm_fp8_groups_kernel
        given = x, residual, weight, bias[0] if bias else None, eps, centered, dtype, _largest(dtype)
        return tuple(kernel(*given)[: 2 + adds])

    fake: Any = lambda x, *o: (*_fake(x, o[-1]), *((o[0].new_empty(o[0].shape),) if adds else ()))  # noqa: E731
    schema = f"{name}({inputs}, ScalarType dtype) -> (Tensor, Tensor{', Tensor' * adds})"
    return Operator(schema, norm_fp8_kernel, norm_fp8_groups_kernel, run=run, fake=fake)


_NORM_NAMES = ("rms_norm_fp8", "add_rms_norm_fp8", "layer_norm_fp8", "add_layer_norm_fp8")
_NORMS = {name: _norm_operator(name) for name in _NORM_NAMES}
_swiglu_fp8 = Operator(
    "swiglu_fp8(Tensor gate, Tensor up, ScalarType dtype) -> (Tensor, Tensor)",
    gated_fp8_kernel,
    run=lambda gate, up, dtype: gated_fp8_kernel(gate, up, silu, dtype, _largest(dtype)),
    fake=lambda gate, up, dtype: _fake(gate, dtype),
)
_geglu_fp8 = Operator(
    "geglu_fp8(Tensor gate, Tensor up, str activation, ScalarType dtype) -> (Tensor, Tensor)",
    gated_fp8_kernel,
    run=lambda gate, up, activation, dtype: gated_fp8_kernel(gate, up, ACTIVATIONS[activation], dtype, _largest(dtype)),
    fake=lambda gate, up, activation, dtype: _fake(gate, dtype),
)
_scaled_matmul = Operator(
    "scaled_matmul(Tensor x, Tensor weight, Tensor x_scale, Tensor weight_scale, ScalarType dtype) -> Tensor",
    scaled_matmul_kernel,
    fake=lambda x, weight, x_scale, weight_scale, dtype: x.new_empty(x.size(0), weight.size(0), dtype=dtype),
)
_block_scaled_matmul = Operator(
    "block_scaled_matmul(Tensor x, Tensor weight, Tensor x_scale, Tensor weight_scale, ScalarType dtype, int block) "
    "-> Tensor",
    block_scaled_matmul_kernel,
    fake=lambda x, weight, x_scale, weight_scale, dtype, block: x.new_empty(x.size(0), weight.size(0), dtype=dtype),
)


def _check_format(op: str, dtype: torch.dtype) -> None:
    check(op, "dtype", dtype in FP8, "torch.float8_e4m3fn or torch.float8_e5m2", dtype)


def _check_group(op: str, group: int | None, columns: int) -> None:
    divides = group is None or (group > 0 and columns % group == 0)
    check(op, "group", divides, f"None, or a divisor of the {columns} columns", group)


def _check_block(op: str, block: int) -> None:
    check(op, "block", block >= 16 and block & (block - 1) == 0, "a power of two, at least 16", block)


def quantize_fp8(
    x: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn, *, group: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize each row of `x`, or each group of its columns, with a scale of its own. There is no gradient.

    Args:
        x: `[..., N]`; float32, bfloat16 or float16.
        dtype: `torch.float8_e4m3fn` or `torch.float8_e5m2`.
        group: number of consecutive columns with one scale, a divisor of N; None: all.

    Returns:
        Values of the shape of `x`, and fp32 scales, `[...]` or `[..., N / group]`; `values * scale` is near `x`. Rows
        and groups of zeros have scale 1.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape or value.
    """
    check_tensor("quantize_fp8", "x", x, least_dims=1)
    _check_format("quantize_fp8", dtype)
    _check_group("quantize_fp8", group, x.size(-1))
    parts = x if group is None else x.view(*x.shape[:-1], x.size(-1) // group, group)
    values, scales = _quantize(rows(parts), dtype)
    return values.view(x.shape), scales.view(parts.shape[:-1])


def quantize_fp8_blocks(
    x: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn, *, block: int = 128
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize each square block of a matrix with a scale of its own, as for weights. There is no gradient.

    Args:
        x: `[M, N]`; float32, bfloat16 or float16.
        dtype: `torch.float8_e4m3fn` or `torch.float8_e5m2`.
        block: number of rows and columns of a block, a power of two. The last blocks may be smaller.

    Returns:
        Values of the shape of `x`, and fp32 scales `[ceil(M / block), ceil(N / block)]`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape or value.
    """
    check_tensor("quantize_fp8_blocks", "x", x, dims=2)
    _check_format("quantize_fp8_blocks", dtype)
    _check_block("quantize_fp8_blocks", block)
    values, scales = _quantize_blocks(x, dtype, block)
    return values, scales


def _norm(
    op: str,
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    dtype: torch.dtype,
    group: int | None,
) -> tuple[torch.Tensor, ...]:
    """Check the arguments of a norm and compute it; return values and scales, and the sum with a residual."""
    check_tensor(op, "x", x, least_dims=1)
    if residual is not None:
        check_tensor(op, "residual", residual, shape=x.shape, like=x)
    check_tensor(op, "weight", weight, shape=x.shape[-1:], like=x)
    if bias is not None:
        check_tensor(op, "bias", bias, shape=x.shape[-1:], like=x)
    _check_format(op, dtype)
    _check_group(op, group, x.size(-1))
    shape, adds = x.shape, [] if residual is None else [rows(residual)]
    parts: list[torch.Tensor | None] = [rows(x), *adds, weight, *([bias] if "layer" in op else [])]
    if group is not None:
        parts = [None if t is None else split(t, t.dim() - 1, shape[-1] // group, group) for t in parts]
    values, scales, *added = _NORMS[op](*parts, eps, dtype)
    return values.view(shape), scales.view(*shape[:-1], *scales.shape[1:]), *(t.view(shape) for t in added)


def rms_norm_fp8(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    group: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalize rows as `rms_norm` does and quantize them as `quantize_fp8` does, in one kernel. There is no gradient.

    Args:
        x: `[..., N]`; float32, bfloat16 or float16.
        weight: `[N]`; any of these dtypes.
        eps: added to the mean of squares.
        dtype: `torch.float8_e4m3fn` or `torch.float8_e5m2`.
        group: number of consecutive columns with one scale, a divisor of N; None: all.

    Returns:
        Values of the shape of `x`, and fp32 scales, `[...]` or `[..., N / group]`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape, device or value.
    """
    values, scales = _norm("rms_norm_fp8", x, None, weight, None, eps, dtype, group)
    return values, scales


def add_rms_norm_fp8(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    group: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Add a residual to `x`, normalize the rows of the sum and quantize them, in one kernel. There is no gradient.

    Args:
        x: `[..., N]`; float32, bfloat16 or float16.
        residual: a tensor of the shape of `x`, of any of these dtypes.
        weight: `[N]`; any of these dtypes.
        eps: added to the mean of squares.
        dtype: `torch.float8_e4m3fn` or `torch.float8_e5m2`.
        group: number of consecutive columns with one scale, a divisor of N; None: all.

    Returns:
        Values of the shape of `x`, fp32 scales, `[...]` or `[..., N / group]`, and `x + residual` in the dtype of `residual`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape, device or value.
    """
    values, scales, added = _norm("add_rms_norm_fp8", x, residual, weight, None, eps, dtype, group)
    return values, scales, added


def layer_norm_fp8(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    group: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalize rows as `layer_norm` does and quantize them as `quantize_fp8` does, in one kernel. There is no gradient.

    Args:
        x: `[..., N]`; float32, bfloat16 or float16.
        weight: `[N]`; any of these dtypes.
        bias: `[N]`; any of these dtypes, or None.
        eps: added to the variance.
        dtype: `torch.float8_e4m3fn` or `torch.float8_e5m2`.
        group: number of consecutive columns with one scale, a divisor of N; None: all.

    Returns:
        Values of the shape of `x`, and fp32 scales, `[...]` or `[..., N / group]`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape, device or value.
    """
    values, scales = _norm("layer_norm_fp8", x, None, weight, bias, eps, dtype, group)
    return values, scales


def add_layer_norm_fp8(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    group: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Add a residual to `x` and do the same as `layer_norm_fp8` with the sum, in one kernel. There is no gradient.

    Args:
        x: `[..., N]`; float32, bfloat16 or float16.
        residual: a tensor of the shape of `x`, of any of these dtypes.
        weight: `[N]`; any of these dtypes.
        bias: `[N]`; any of these dtypes, or None.
        eps: added to the variance.
        dtype: `torch.float8_e4m3fn` or `torch.float8_e5m2`.
        group: number of consecutive columns with one scale, a divisor of N; None: all.

    Returns:
        Values of the shape of `x`, fp32 scales, `[...]` or `[..., N / group]`, and `x + residual` in the dtype of `residual`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape, device or value.
    """
    values, scales, added = _norm("add_layer_norm_fp8", x, residual, weight, bias, eps, dtype, group)
    return values, scales, added


def _gate(
    op: str, gate: torch.Tensor, up: torch.Tensor, activation: str, dtype: torch.dtype, group: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Check the arguments of a gated unit and compute it; return values and scales."""
    check_tensor(op, "gate", gate, least_dims=1)
    check_tensor(op, "up", up, shape=gate.shape, like=gate)
    _check_format(op, dtype)
    _check_group(op, group, gate.size(-1))
    columns = group or gate.size(-1)
    parts = (split(rows(t), 1, t.size(-1) // columns, columns) for t in (gate, up))
    values, scales = _swiglu_fp8(*parts, dtype) if activation == "silu" else _geglu_fp8(*parts, activation, dtype)
    return values.view(gate.shape), scales.view(*gate.shape[:-1], *scales.shape[1 if group else 2 :])


def swiglu_fp8(
    gate: torch.Tensor,
    up: torch.Tensor,
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    group: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute `swiglu` and quantize it as `quantize_fp8` does, in one kernel. There is no gradient.

    Args:
        gate: `[..., N]`; float32, bfloat16 or float16.
        up: a tensor of the shape of `gate`, of any of these dtypes.
        dtype: `torch.float8_e4m3fn` or `torch.float8_e5m2`.
        group: number of consecutive columns with one scale, a divisor of N; None: all.

    Returns:
        Values of the shape of `gate`, and fp32 scales, `[...]` or `[..., N / group]`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape, device or value.
    """
    return _gate("swiglu_fp8", gate, up, "silu", dtype, group)


def geglu_fp8(
    gate: torch.Tensor,
    up: torch.Tensor,
    *,
    approximate: str = "none",
    dtype: torch.dtype = torch.float8_e4m3fn,
    group: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute `geglu` and quantize it as `quantize_fp8` does, in one kernel. There is no gradient.

    Args:
        gate: `[..., N]`; float32, bfloat16 or float16.
        up: a tensor of the shape of `gate`, of any of these dtypes.
        approximate: `"none"`, or `"tanh"` for the approximation.
        dtype: `torch.float8_e4m3fn` or `torch.float8_e5m2`.
        group: number of consecutive columns with one scale, a divisor of N; None: all.

    Returns:
        Values of the shape of `gate`, and fp32 scales, `[...]` or `[..., N / group]`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape, device or value.
    """
    check("geglu_fp8", "approximate", approximate in ("none", "tanh"), "'none' or 'tanh'", approximate)
    return _gate("geglu_fp8", gate, up, "gelu_tanh" if approximate == "tanh" else "gelu", dtype, group)


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
    _check_block(op, block)
    steps = -(-k // block)
    check_tensor(op, "x_scale", x_scale, dtypes=(torch.float32,), shape=(*x.shape[:-1], steps), like=x)
    check_tensor(op, "weight_scale", weight_scale, dtypes=(torch.float32,), shape=(-(-n // block), steps), like=x)
    check(op, "dtype", dtype in FLOATS, "bfloat16, float16 or float32", dtype)
    out: torch.Tensor = _block_scaled_matmul(rows(x), weight, rows(x_scale), weight_scale, dtype, block)
    return out.view(*x.shape[:-1], n)
