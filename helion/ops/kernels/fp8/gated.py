"""Gated linear units that are quantized to fp8, with a scale for a row or for each group of its columns."""

from __future__ import annotations

import torch

import helion
import helion.language as hl

from ..._operators import Operator, check, check_tensor, rows, split
from ..gated import ACTIVATIONS, silu
from .scales import check_format, check_group, fake_rows, largest_of, scaled


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


_swiglu_fp8 = Operator(
    "swiglu_fp8(Tensor gate, Tensor up, ScalarType dtype) -> (Tensor, Tensor)",
    gated_fp8_kernel,
    run=lambda gate, up, dtype: gated_fp8_kernel(gate, up, silu, dtype, largest_of(dtype)),
    fake=lambda gate, up, dtype: fake_rows(gate, dtype),
)
_swiglu_fp8.refuse_gradients()
_geglu_fp8 = Operator(
    "geglu_fp8(Tensor gate, Tensor up, str activation, ScalarType dtype) -> (Tensor, Tensor)",
    gated_fp8_kernel,
    run=lambda gate, up, activation, dtype: gated_fp8_kernel(
        gate, up, ACTIVATIONS[activation], dtype, largest_of(dtype)
    ),
    fake=lambda gate, up, activation, dtype: fake_rows(gate, dtype),
)
_geglu_fp8.refuse_gradients()


def _gate(
    op: str, gate: torch.Tensor, up: torch.Tensor, activation: str, dtype: torch.dtype, group: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Check the arguments of a gated unit and compute it; return values and scales."""
    check_tensor(op, "gate", gate, least_dims=1)
    check_tensor(op, "up", up, shape=gate.shape, like=gate)
    check_format(op, dtype)
    check_group(op, group, gate.size(-1))
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
