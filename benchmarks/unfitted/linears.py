"""Linear layers with what follows them: gates, residuals, scales, norms and softmax over the columns."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, FP16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def odd_inner_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply `a[M, K]` by `b[K, N]` in fp16 with an odd K."""
    m, k = a.size()
    n = b.size(1)
    out = torch.empty([m, n], dtype=a.dtype, device=a.device)
    for rows, cols in hl.tile([m, n]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = torch.addmm(acc, a[rows, inner], b[inner, cols])
        out[rows, cols] = acc.to(out.dtype)
    return out


def make_odd_inner_product(device: str, small: bool) -> Arguments:
    m, k, n = (13, 47, 24) if small else (4096, 1007, 3000)
    return normal(device, m, k, dtype=FP16), normal(device, k, n, dtype=FP16, scale=k**-0.5)


CELLS.add(odd_inner_product, make_odd_inner_product, lambda a, b: a @ b)


@helion.kernel
def reglu(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Compute `relu(x g.T) * (x u.T)` with g and u the halves of `w[2 N, K]`."""
    m, k = x.size()
    n = w.size(0) // 2
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for rows, cols in hl.tile([m, n]):
        gate = hl.zeros([rows, cols], dtype=torch.float32)
        up = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k):
            own = x[rows, inner]
            gate = torch.addmm(gate, own, w[cols, inner].T)
            up = torch.addmm(up, own, w[cols.index + n, inner].T)
        out[rows, cols] = (torch.relu(gate) * up).to(x.dtype)
    return out


def reglu_torch(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    gate, up = F.linear(x, w).chunk(2, -1)
    return (torch.relu(high(gate)) * high(up)).to(x.dtype)


def make_reglu(device: str, small: bool) -> Arguments:
    m, k, n = (13, 40, 24) if small else (4096, 2048, 5504)
    return normal(device, m, k, dtype=BF16), normal(device, 2 * n, k, dtype=BF16, scale=k**-0.5)


CELLS.add(reglu, make_reglu, reglu_torch)


@helion.kernel
def interaction_layer(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Compute `relu(x[M, 479] w[N, 479].T + bias)`, the first layer above a recommender's interactions."""
    m, k = x.size()
    n = w.size(0)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for rows, cols in hl.tile([m, n]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = hl.dot(x[rows, inner], w[cols, inner].T, acc=acc)
        out[rows, cols] = torch.relu(acc + bias[cols].to(torch.float32)[None, :]).to(x.dtype)
    return out


def make_interaction_layer(device: str, small: bool) -> Arguments:
    m, k, n = (13, 47, 24) if small else (16384, 479, 1024)
    w = normal(device, n, k, dtype=FP16, scale=k**-0.5)
    return normal(device, m, k, dtype=FP16), w, normal(device, n, dtype=FP16)


CELLS.add(interaction_layer, make_interaction_layer, lambda x, w, bias: torch.relu(F.linear(x, w, bias)))


@helion.kernel
def class_probabilities(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return the softmax of `x[M, K] w[K, 256] + bias` over the columns, in fp32."""
    m, k = x.size()
    n = hl.specialize(w.size(1))
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for rows in hl.tile(m):
        acc = hl.zeros([rows, n], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = torch.addmm(acc, x[rows, inner], w[inner, :])
        out[rows, :] = torch.softmax(acc + bias[:][None, :], dim=-1)
    return out


def class_probabilities_torch(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.softmax(high(x @ w) + bias, -1)


def make_class_probabilities(device: str, small: bool) -> Arguments:
    m, k, n = (13, 40, 32) if small else (32768, 1024, 256)
    w = normal(device, k, n, dtype=BF16, scale=k**-0.5)
    return normal(device, m, k, dtype=BF16), w, normal(device, n)


CELLS.add(class_probabilities, make_class_probabilities, class_probabilities_torch)


@helion.kernel
def post_norm_linear(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor,
    residual: torch.Tensor,
    gain: torch.Tensor,
    shift: torch.Tensor,
) -> torch.Tensor:
    """Return the layer norm of `residual + x[M, K] w[384, K].T + bias`, as in encoders that normalize afterwards."""
    m, k = x.size()
    n = hl.specialize(w.size(0))
    out = torch.empty_like(residual)
    for rows in hl.tile(m):
        acc = hl.zeros([rows, n], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = hl.dot(x[rows, inner], w[:, inner].T, acc=acc)
        y = acc + bias[:].to(torch.float32)[None, :] + residual[rows, :].to(torch.float32)
        centered = y - y.mean(-1, keepdim=True)
        rstd = torch.rsqrt((centered * centered).mean(-1, keepdim=True) + 1e-12)
        y = centered * rstd * gain[:].to(torch.float32)[None, :] + shift[:].to(torch.float32)[None, :]
        out[rows, :] = y.to(out.dtype)
    return out


def post_norm_linear_torch(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor,
    residual: torch.Tensor,
    gain: torch.Tensor,
    shift: torch.Tensor,
) -> torch.Tensor:
    return F.layer_norm(F.linear(x, w, bias) + residual, [w.size(0)], gain, shift, 1e-12)


def make_post_norm_linear(device: str, small: bool) -> Arguments:
    m, k, n = (13, 40, 48) if small else (32768, 1536, 384)
    w, bias = normal(device, n, k, dtype=FP16, scale=k**-0.5), normal(device, n, dtype=FP16)
    gain, shift = normal(device, n, dtype=FP16), normal(device, n, dtype=FP16)
    return normal(device, m, k, dtype=FP16), w, bias, normal(device, m, n, dtype=FP16), gain, shift


CELLS.add(post_norm_linear, make_post_norm_linear, post_norm_linear_torch)


@helion.kernel
def strongest_filter(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return the largest of `x[M, K] w[N, K].T` of each row, in fp32."""
    m, k = x.size()
    n = w.size(0)
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for rows in hl.tile(m):
        best = hl.full([rows], float("-inf"), dtype=torch.float32)
        for cols in hl.tile(n):
            acc = hl.zeros([rows, cols], dtype=torch.float32)
            for inner in hl.tile(k):
                acc = hl.dot(x[rows, inner], w[cols, inner].T, acc=acc)
            acc = torch.where(cols.index[None, :] < n, acc, float("-inf"))
            best = torch.maximum(best, acc.amax(-1))
        out[rows] = best
    return out


def make_strongest_filter(device: str, small: bool) -> Arguments:
    m, k, n = (13, 40, 24) if small else (16384, 768, 2000)
    return normal(device, m, k, dtype=BF16), normal(device, n, k, dtype=BF16, scale=k**-0.5)


CELLS.add(strongest_filter, make_strongest_filter, lambda x, w: high(x @ w.T).amax(-1))


@helion.kernel
def int8_gate_up(
    x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, row_scale: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """Compute a swiglu of int8 rows `x[M, K]` and int8 weights `[N, K]` with `row_scale[M]` and `scales[2, N]`."""
    m, k = x.size()
    n = gate.size(0)
    out = torch.empty([m, n], dtype=torch.bfloat16, device=x.device)
    for rows, cols in hl.tile([m, n]):
        left = hl.zeros([rows, cols], dtype=torch.int32)
        right = hl.zeros([rows, cols], dtype=torch.int32)
        for inner in hl.tile(k):
            own = x[rows, inner]
            left = hl.dot(own, gate[cols, inner].T, acc=left)
            right = hl.dot(own, up[cols, inner].T, acc=right)
        a = left.to(torch.float32) * row_scale[rows][:, None] * scales[0, cols][None, :]
        b = right.to(torch.float32) * row_scale[rows][:, None] * scales[1, cols][None, :]
        out[rows, cols] = (a * torch.sigmoid(a) * b).to(torch.bfloat16)
    return out


def int8_gate_up_reference(
    x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, row_scale: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    a = (x.double() @ gate.double().T).to(row_scale.dtype) * row_scale[:, None] * scales[0]
    b = (x.double() @ up.double().T).to(row_scale.dtype) * row_scale[:, None] * scales[1]
    return (F.silu(a) * b).to(BF16)


def int8_gate_up_torch(
    x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, row_scale: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    a = torch._int_mm(x, gate.T) * row_scale[:, None] * scales[0]
    b = torch._int_mm(x, up.T) * row_scale[:, None] * scales[1]
    return (F.silu(a) * b).to(BF16)


def make_int8_gate_up(device: str, small: bool) -> Arguments:
    m, k, n = (33, 64, 48) if small else (4096, 2560, 4096)
    x, gate, up = (torch.randint(-128, 128, [size, k], device=device).to(torch.int8) for size in (m, n, n))
    return x, gate, up, torch.rand([m], device=device) * 1e-3, torch.rand([2, n], device=device) * 1e-2


CELLS.add(int8_gate_up, make_int8_gate_up, int8_gate_up_reference, int8_gate_up_torch)


@helion.kernel
def masked_tokens_linear(x: torch.Tensor, w: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Multiply `x[K, T].T` by `w[K, N]` and set rows of padding to zero; tokens are contiguous in x."""
    k, t = x.size()
    n = w.size(1)
    out = torch.empty([t, n], dtype=x.dtype, device=x.device)
    for rows, cols in hl.tile([t, n]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = torch.addmm(acc, x[inner, rows].T, w[inner, cols])
        out[rows, cols] = torch.where(keep[rows][:, None], acc, 0.0).to(x.dtype)
    return out


def masked_tokens_linear_torch(x: torch.Tensor, w: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    return (x.T @ w).masked_fill(~keep[:, None], 0.0)


def make_masked_tokens_linear(device: str, small: bool) -> Arguments:
    k, t, n = (40, 13, 24) if small else (1280, 6000, 1280)
    keep = torch.rand([t], device=device) < 0.8
    return normal(device, k, t, dtype=FP16), normal(device, k, n, dtype=FP16, scale=k**-0.5), keep


CELLS.add(masked_tokens_linear, make_masked_tokens_linear, masked_tokens_linear_torch)


@helion.kernel
def bottleneck_adapter(x: torch.Tensor, down: torch.Tensor, up: torch.Tensor, scale: float) -> torch.Tensor:
    """Return `x + scale relu(x[M, D] down[R, D].T) up[D, R].T` with a small R."""
    m, d = x.size()
    r = hl.specialize(down.size(0))
    out = torch.empty_like(x)
    for rows in hl.tile(m):
        hidden = hl.zeros([rows, r], dtype=torch.float32)
        for inner in hl.tile(d):
            hidden = hl.dot(x[rows, inner], down[:, inner].T, acc=hidden)
        hidden = torch.relu(hidden).to(x.dtype)
        for cols in hl.tile(d):
            y = hl.dot(hidden, up[cols, :].T)
            out[rows, cols] = (x[rows, cols].to(torch.float32) + y * scale).to(x.dtype)
    return out


def bottleneck_adapter_torch(x: torch.Tensor, down: torch.Tensor, up: torch.Tensor, scale: float) -> torch.Tensor:
    return x + scale * F.linear(torch.relu(F.linear(x, down)), up)


def make_bottleneck_adapter(device: str, small: bool) -> Arguments:
    m, d, r = (13, 40, 16) if small else (16384, 1024, 64)
    down, up = normal(device, r, d, dtype=BF16, scale=d**-0.5), normal(device, d, r, dtype=BF16, scale=r**-0.5)
    return normal(device, m, d, dtype=BF16), down, up, 0.5


CELLS.add(bottleneck_adapter, make_bottleneck_adapter, bottleneck_adapter_torch)


@helion.kernel
def layer_scale_linear(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, gamma: torch.Tensor, residual: torch.Tensor
) -> torch.Tensor:
    """Return `residual + gamma (x w.T + bias)`; rows of `x[M, K]` are a view of wider ones."""
    m, k = x.size()
    n = w.size(0)
    out = torch.empty([m, n], dtype=residual.dtype, device=x.device)
    for rows, cols in hl.tile([m, n]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = hl.dot(x[rows, inner], w[cols, inner].T, acc=acc)
        y = (acc + bias[cols].to(torch.float32)[None, :]) * gamma[cols][None, :]
        out[rows, cols] = (residual[rows, cols].to(torch.float32) + y).to(out.dtype)
    return out


def layer_scale_linear_torch(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, gamma: torch.Tensor, residual: torch.Tensor
) -> torch.Tensor:
    return (high(residual) + gamma * high(F.linear(x, w, bias))).to(residual.dtype)


def make_layer_scale_linear(device: str, small: bool) -> Arguments:
    m, k, n = (13, 40, 24) if small else (16 * 577, 1024, 1024)
    x = normal(device, m, k + 24, dtype=BF16)[:, 8 : k + 8]
    w, bias = normal(device, n, k, dtype=BF16, scale=k**-0.5), normal(device, n, dtype=BF16)
    return x, w, bias, normal(device, n, scale=0.1), normal(device, m, n, dtype=BF16)


CELLS.add(layer_scale_linear, make_layer_scale_linear, layer_scale_linear_torch)


@helion.kernel
def clamped_swiglu(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Compute `(clamp(u) + 1) g sigmoid(1.702 g)`, `g = min(x w0 + b0, 7)`, u of `w[1]`; weights `[2, K, N]`."""
    m, k = x.size()
    n = w.size(2)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for rows, cols in hl.tile([m, n]):
        gate = hl.zeros([rows, cols], dtype=torch.float32)
        up = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k):
            own = x[rows, inner]
            gate = hl.dot(own, w[0, inner, cols], acc=gate)
            up = hl.dot(own, w[1, inner, cols], acc=up)
        gate = torch.clamp(gate + bias[0, cols].to(torch.float32)[None, :], max=7.0)
        up = torch.clamp(up + bias[1, cols].to(torch.float32)[None, :], -7.0, 7.0)
        out[rows, cols] = ((up + 1.0) * gate * torch.sigmoid(1.702 * gate)).to(x.dtype)
    return out


def clamped_swiglu_torch(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    gate = torch.clamp(high(x @ w[0]) + high(bias[0]), max=7.0)
    up = torch.clamp(high(x @ w[1]) + high(bias[1]), -7.0, 7.0)
    return ((up + 1.0) * gate * torch.sigmoid(1.702 * gate)).to(x.dtype)


def make_clamped_swiglu(device: str, small: bool) -> Arguments:
    m, k, n = (13, 40, 24) if small else (2048, 2880, 2880)
    w = normal(device, 2, k, n, dtype=BF16, scale=k**-0.5)
    return normal(device, m, k, dtype=BF16), w, normal(device, 2, n, dtype=BF16)


CELLS.add(clamped_swiglu, make_clamped_swiglu, clamped_swiglu_torch)


@helion.kernel
def magnitude_lora(
    x: torch.Tensor, w: torch.Tensor, low: torch.Tensor, up: torch.Tensor, magnitude: torch.Tensor
) -> torch.Tensor:
    """Return `(x w.T + low up.T) magnitude` for `x[M, K]`, `low[M, R]` and `magnitude[N]` (DoRA)."""
    m, k = x.size()
    n = w.size(0)
    hl.specialize(low.size(1))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for rows, cols in hl.tile([m, n]):
        acc = hl.dot(low[rows, :], up[cols, :].T)
        for inner in hl.tile(k):
            acc = hl.dot(x[rows, inner], w[cols, inner].T, acc=acc)
        out[rows, cols] = (acc * magnitude[cols][None, :]).to(x.dtype)
    return out


def magnitude_lora_torch(
    x: torch.Tensor, w: torch.Tensor, low: torch.Tensor, up: torch.Tensor, magnitude: torch.Tensor
) -> torch.Tensor:
    return (high(F.linear(x, w) + F.linear(low, up)) * magnitude).to(x.dtype)


def make_magnitude_lora(device: str, small: bool) -> Arguments:
    m, k, n, r = (13, 40, 24, 16) if small else (3000, 3072, 3072, 16)
    x, w = normal(device, m, k, dtype=BF16), normal(device, n, k, dtype=BF16, scale=k**-0.5)
    return x, w, normal(device, m, r, dtype=BF16), normal(device, n, r, dtype=BF16, scale=0.1), normal(device, n)


CELLS.add(magnitude_lora, make_magnitude_lora, magnitude_lora_torch)
