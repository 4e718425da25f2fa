"""Linear layers of transformers: heads as rows, shared operands, scales, and reductions behind the product."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, E4M3, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def normed_head_projection(x: torch.Tensor, w: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
    """`x[B, T, K] @ w[H, D, K].T`, an RMS norm of each head, stored as `[B, H, T, D]`."""
    b, t, k = x.size()
    h, d, _ = w.size()
    d = hl.specialize(d)
    out = torch.empty([b, h, t, d], dtype=x.dtype, device=x.device)
    for bi, hi, rows in hl.tile([b, h, t], block_size=[1, 1, None]):
        batch, head = bi.begin, hi.begin
        acc = hl.zeros([rows, d], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = hl.dot(x[batch, rows, inner], w[head, :, inner].T, acc=acc)
        scale = torch.rsqrt((acc * acc).mean(-1) + eps)
        out[batch, head, rows, :] = (acc * scale[:, None] * gain[:].to(torch.float32)[None, :]).to(x.dtype)
    return out


def normed_head_projection_torch(x: torch.Tensor, w: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
    h, d, _ = w.size()
    y = (x @ w.flatten(0, 1).T).unflatten(-1, [h, d])
    return F.rms_norm(high(y), [d], high(gain), eps).to(x.dtype).transpose(1, 2).contiguous()


def make_normed_head_projection(device: str, small: bool) -> Arguments:
    b, t, k, h, d = (2, 13, 40, 3, 16) if small else (4, 2048, 2560, 32, 128)
    x, w = normal(device, b, t, k, dtype=BF16), normal(device, h, d, k, dtype=BF16, scale=k**-0.5)
    return x, w, normal(device, d, dtype=BF16), 1e-6


CELLS.add(normed_head_projection, make_normed_head_projection, normed_head_projection_torch)


@helion.kernel
def heads_to_stream(heads: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, stream: torch.Tensor) -> torch.Tensor:
    """`stream[B, T, N] + bias` plus the sum over heads of `heads[B, H, T, D] @ w[N, H D].T`."""
    b, h, t, d = heads.size()
    n = w.size(0)
    d = hl.specialize(d)
    out = torch.empty_like(stream)
    for bi, rows, cols in hl.tile([b, t, n], block_size=[1, None, None]):
        batch = bi.begin
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for head in hl.grid(h):
            acc = hl.dot(heads[batch, head, rows, :], w[cols, head * d + hl.arange(d)].T, acc=acc)
        acc = acc + bias[cols].to(torch.float32)[None, :] + stream[batch, rows, cols].to(torch.float32)
        out[batch, rows, cols] = acc.to(stream.dtype)
    return out


def heads_to_stream_torch(
    heads: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, stream: torch.Tensor
) -> torch.Tensor:
    return stream + F.linear(heads.transpose(1, 2).flatten(2), w, bias)


def make_heads_to_stream(device: str, small: bool) -> Arguments:
    b, h, t, d, n = (2, 3, 13, 16, 40) if small else (2, 20, 3000, 128, 2560)
    w = normal(device, n, h * d, dtype=BF16, scale=(h * d) ** -0.5)
    return normal(device, b, h, t, d, dtype=BF16), w, normal(device, n, dtype=BF16), normal(device, b, t, n, dtype=BF16)


CELLS.add(heads_to_stream, make_heads_to_stream, heads_to_stream_torch)


@helion.kernel
def odd_features_mish(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """`mish(x @ w.T + bias)` of `x[M, K]` and `w[N, K]`, whose rows have an odd number of elements."""
    m, k = x.size()
    n = w.size(0)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for rows, cols in hl.tile([m, n]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = hl.dot(x[rows, inner], w[cols, inner].T, acc=acc)
        acc = acc + bias[cols][None, :]
        out[rows, cols] = (acc * torch.tanh(torch.log1p(torch.exp(-torch.abs(acc))) + torch.relu(acc))).to(x.dtype)
    return out


def odd_features_mish_torch(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.mish(high(x @ w.T) + bias).to(x.dtype)


def make_odd_features_mish(device: str, small: bool) -> Arguments:
    m, n, k = (13, 40, 37) if small else (16384, 1024, 1433)
    return normal(device, m, k, dtype=BF16), normal(device, n, k, dtype=BF16, scale=k**-0.5), normal(device, n)


CELLS.add(odd_features_mish, make_odd_features_mish, odd_features_mish_torch)


@helion.kernel
def paired_columns_geglu(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """`gelu(gate) * up` of `x[M, K] @ w[2 N, K].T + bias`, whose columns are gate and up in turn."""
    m, k = x.size()
    n = w.size(0) // 2
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    pairs, biases = w.view(n, 2, k), bias.view(n, 2)
    for rows, cols in hl.tile([m, n]):
        gate = hl.zeros([rows, cols], dtype=torch.float32)
        up = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k):
            own = x[rows, inner]
            gate = hl.dot(own, pairs[cols, 0, inner].T, acc=gate)
            up = hl.dot(own, pairs[cols, 1, inner].T, acc=up)
        gate = F.gelu(gate + biases[cols, 0].to(torch.float32)[None, :])
        out[rows, cols] = (gate * (up + biases[cols, 1].to(torch.float32)[None, :])).to(x.dtype)
    return out


def paired_columns_geglu_torch(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    y = high(F.linear(x, w, bias))
    return (F.gelu(y[:, ::2]) * y[:, 1::2]).to(x.dtype)


def make_paired_columns_geglu(device: str, small: bool) -> Arguments:
    m, n, k = (13, 40, 48) if small else (4096, 5504, 2048)
    w = normal(device, 2 * n, k, dtype=BF16, scale=k**-0.5)
    return normal(device, m, k, dtype=BF16), w, normal(device, 2 * n, dtype=BF16)


CELLS.add(paired_columns_geglu, make_paired_columns_geglu, paired_columns_geglu_torch)


@helion.kernel
def int8_tokens_residual(
    x: torch.Tensor, w: torch.Tensor, token: torch.Tensor, channel: torch.Tensor, residual: torch.Tensor
) -> torch.Tensor:
    """`residual[M, N] + x[M, K] @ w[N, K].T` of int8, with a scale for each token and each channel."""
    m, k = x.size()
    n = w.size(0)
    out = torch.empty_like(residual)
    for rows, cols in hl.tile([m, n]):
        acc = hl.zeros([rows, cols], dtype=torch.int32)
        for inner in hl.tile(k):
            acc = hl.dot(x[rows, inner], w[cols, inner].T, acc=acc)
        y = acc.to(torch.float32) * token[rows][:, None] * channel[cols][None, :]
        out[rows, cols] = (residual[rows, cols].to(torch.float32) + y).to(residual.dtype)
    return out


def int8_tokens_residual_torch(
    x: torch.Tensor, w: torch.Tensor, token: torch.Tensor, channel: torch.Tensor, residual: torch.Tensor
) -> torch.Tensor:
    y = torch._int_mm(x, w.T) if x.is_cuda else x.to(torch.int32) @ w.T.to(torch.int32)
    return (high(residual) + y * token[:, None] * channel[None]).to(residual.dtype)


def make_int8_tokens_residual(device: str, small: bool) -> Arguments:
    m, n, k = (13, 40, 48) if small else (4096, 4096, 11008)
    x, w = (torch.randint(-127, 128, [rows, k], device=device, dtype=torch.int8) for rows in (m, n))
    scales = (torch.rand([rows], device=device) * 1e-2 + 1e-3 for rows in (m, n))
    return x, w, *scales, normal(device, m, n, dtype=BF16)


CELLS.add(int8_tokens_residual, make_int8_tokens_residual, int8_tokens_residual_torch)


@helion.kernel
def fp8_squared_relu(
    x: torch.Tensor, w: torch.Tensor, row_scale: torch.Tensor, column_scale: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """`relu(x[M, K] @ w[N, K].T + bias)^2` of e4m3 with scales of rows and columns, and a bias in bf16."""
    m, k = x.size()
    n = w.size(0)
    out = torch.empty([m, n], dtype=bias.dtype, device=x.device)
    for rows, cols in hl.tile([m, n]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = hl.dot(x[rows, inner], w[cols, inner].T, acc=acc)
        y = acc * row_scale[rows][:, None] * column_scale[cols][None, :]
        y = torch.relu(y + bias[cols].to(torch.float32)[None, :])
        out[rows, cols] = (y * y).to(out.dtype)
    return out


def fp8_squared_relu_torch(
    x: torch.Tensor, w: torch.Tensor, row_scale: torch.Tensor, column_scale: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    y = x.to(row_scale.dtype) @ w.to(row_scale.dtype).T
    y = torch.relu(y * row_scale[:, None] * column_scale[None] + high(bias))
    return (y * y).to(bias.dtype)


def fp8_squared_relu_baseline(
    x: torch.Tensor, w: torch.Tensor, row_scale: torch.Tensor, column_scale: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    y = torch._scaled_mm(x, w.T, scale_a=row_scale[:, None], scale_b=column_scale[None], out_dtype=BF16)
    return torch.square(torch.relu(y + bias))


def make_fp8_squared_relu(device: str, small: bool) -> Arguments:
    m, n, k = (16, 48, 64) if small else (8192, 8192, 2048)
    x, w = normal(device, m, k).to(E4M3), normal(device, n, k).to(E4M3)
    scales = ((torch.rand([rows], device=device) + 0.5) * k**-0.25 for rows in (m, n))
    return x, w, *scales, normal(device, n, dtype=BF16, scale=0.2)


CELLS.add(fp8_squared_relu, make_fp8_squared_relu, fp8_squared_relu_torch, fp8_squared_relu_baseline)


@helion.kernel
def int8_groups_few_rows(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """`x[M, K]` of a few tokens times int8 weights `w[N, K]` with a scale for each 128 along K: `scale[N, K / 128]`."""
    m, k = x.size()
    n = w.size(0)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for rows, cols in hl.tile([m, n]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k, block_size=128):
            part = hl.dot(x[rows, inner], w[cols, inner].to(x.dtype).T)
            acc = acc + part * scale[cols, inner.id].to(torch.float32)[None, :]
        out[rows, cols] = (acc + bias[cols].to(torch.float32)[None, :]).to(x.dtype)
    return out


def int8_groups_few_rows_torch(
    x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    wide = w.to(x.dtype) * scale.to(x.dtype).repeat_interleave(128, 1)
    return F.linear(x, wide, bias)


def make_int8_groups_few_rows(device: str, small: bool) -> Arguments:
    m, n, k = (5, 40, 256) if small else (24, 14336, 4096)
    w = torch.randint(-127, 128, [n, k], device=device, dtype=torch.int8)
    scale = ((torch.rand([n, k // 128], device=device) + 0.5) / (127 * k**0.5)).to(BF16)
    return normal(device, m, k, dtype=BF16), w, scale, normal(device, n, dtype=BF16)


CELLS.add(int8_groups_few_rows, make_int8_groups_few_rows, int8_groups_few_rows_torch)


@helion.kernel
def add_to_main_gradient(main: torch.Tensor, grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """`main[N, K] + grad[T, N].T @ x[T, K]` in place in fp32: a gradient that several batches add up."""
    t, n = grad.size()
    k = x.size(1)
    for rows, cols in hl.tile([n, k]):
        acc = main[rows, cols]
        for inner in hl.tile(t):
            acc = hl.dot(grad[inner, rows].T, x[inner, cols], acc=acc)
        main[rows, cols] = acc
    return main


def add_to_main_gradient_torch(main: torch.Tensor, grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return main.add_(high(grad).T @ high(x))


def add_to_main_gradient_baseline(main: torch.Tensor, grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return main.add_(grad.T @ x)


def make_add_to_main_gradient(device: str, small: bool) -> Arguments:
    t, n, k = (37, 24, 40) if small else (8192, 3072, 2304)
    return normal(device, n, k), normal(device, t, n, dtype=BF16), normal(device, t, k, dtype=BF16)


CELLS.add(add_to_main_gradient, make_add_to_main_gradient, add_to_main_gradient_torch, add_to_main_gradient_baseline)


@helion.kernel
def three_adapter_downs(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """`x[T, K] @ a[3, R, K].T`, the low-rank parts of queries, keys and values: `[3, T, R]` in one pass over x."""
    t, k = x.size()
    r = hl.specialize(a.size(1))
    out = torch.empty([3, t, r], dtype=x.dtype, device=x.device)
    for rows in hl.tile(t):
        q = hl.zeros([rows, r], dtype=torch.float32)
        key = hl.zeros([rows, r], dtype=torch.float32)
        v = hl.zeros([rows, r], dtype=torch.float32)
        for inner in hl.tile(k):
            own = x[rows, inner]
            q = hl.dot(own, a[0, :, inner].T, acc=q)
            key = hl.dot(own, a[1, :, inner].T, acc=key)
            v = hl.dot(own, a[2, :, inner].T, acc=v)
        out[0, rows, :] = q.to(x.dtype)
        out[1, rows, :] = key.to(x.dtype)
        out[2, rows, :] = v.to(x.dtype)
    return out


def three_adapter_downs_torch(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    return (x @ a.flatten(0, 1).T).unflatten(1, [3, a.size(1)]).transpose(0, 1).contiguous()


def make_three_adapter_downs(device: str, small: bool) -> Arguments:
    t, k, r = (13, 40, 16) if small else (16384, 4096, 32)
    return normal(device, t, k, dtype=BF16), normal(device, 3, r, k, dtype=BF16, scale=k**-0.5)


CELLS.add(three_adapter_downs, make_three_adapter_downs, three_adapter_downs_torch)


@helion.kernel
def head_margin(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The class of the largest score of `x[M, D] @ w[V, D].T + bias`, and how far the second one is below it."""
    m, d = x.size()
    v = w.size(0)
    block = hl.register_block_size(v)
    parts = helion.cdiv(v, block)
    tops = torch.empty([2, m, parts], dtype=torch.float32, device=x.device)
    places = torch.empty([m, parts], dtype=torch.int64, device=x.device)
    for rows, cols in hl.tile([m, v], block_size=[None, block]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(d):
            acc = hl.dot(x[rows, inner], w[cols, inner].T, acc=acc)
        acc = torch.where((cols.index < v)[None, :], acc + bias[cols].to(torch.float32)[None, :], float("-inf"))
        place = acc.argmax(-1) + cols.begin
        tops[0, rows, cols.id] = acc.amax(-1)
        places[rows, cols.id] = place
        rest = torch.where(cols.index[None, :] == place[:, None], float("-inf"), acc)
        tops[1, rows, cols.id] = rest.amax(-1)
    two = torch.cat([tops[0], tops[1]], 1).topk(2).values
    part = tops[0].argmax(1)
    return places.gather(1, part[:, None])[:, 0], two[:, 0] - two[:, 1]


def head_margin_torch(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    two = (high(x @ w.T) + high(bias)).topk(2)
    return two.indices[:, 0], two.values[:, 0] - two.values[:, 1]


def make_head_margin(device: str, small: bool) -> Arguments:
    m, v, d = (13, 75, 48) if small else (1024, 32000, 2048)
    w = normal(device, v, d, dtype=BF16, scale=d**-0.5)
    x = w[torch.randint(0, v, [m], device=device)] * 12.0 + normal(device, m, d, dtype=BF16)
    return x, w, normal(device, v, dtype=BF16, scale=0.5)


CELLS.add(head_margin, make_head_margin, head_margin_torch)


@helion.kernel
def capacity_experts(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """`silu(x[E, C, K] @ w[E, N, K].T + bias[E, N])` of the first `counts[E]` tokens of each expert, zeros behind."""
    e, c, k = x.size()
    n = w.size(1)
    out = torch.empty([e, c, n], dtype=x.dtype, device=x.device)
    for expert, rows, cols in hl.tile([e, c, n], block_size=[1, None, None]):
        ei = expert.begin
        count = counts[ei]
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        if rows.begin < count:
            for inner in hl.tile(k):
                acc = hl.dot(x[ei, rows, inner], w[ei, cols, inner].T, acc=acc)
            acc = F.silu(acc + bias[ei, cols].to(torch.float32)[None, :])
        out[ei, rows, cols] = torch.where((rows.index < count)[:, None], acc, 0.0).to(x.dtype)
    return out


def capacity_experts_torch(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    y = F.silu(high(x @ w.transpose(1, 2)) + high(bias)[:, None])
    keep = torch.arange(x.size(1), device=x.device)[None] < counts[:, None]
    return torch.where(keep[..., None], y, 0.0).to(x.dtype)


def make_capacity_experts(device: str, small: bool) -> Arguments:
    e, c, k, n = (3, 21, 40, 48) if small else (32, 512, 2048, 1408)
    counts = torch.randint(c // 4, c + 1, [e], device=device, dtype=torch.int32)
    w = normal(device, e, n, k, dtype=BF16, scale=k**-0.5)
    return normal(device, e, c, k, dtype=BF16), w, normal(device, e, n, dtype=BF16), counts


CELLS.add(capacity_experts, make_capacity_experts, capacity_experts_torch)
