"""Products whose operands are computed or decoded first, with long inner dimensions, or several to a kernel."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, E4M3, FP16, FP32, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def activated_down(both: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Multiply `silu(g) u` by `w[N, K].T` with g and u the halves of the rows of `both[M, 2 K]`."""
    m = both.size(0)
    n, k = w.size()
    out = torch.empty([m, n], dtype=both.dtype, device=both.device)
    for rows, cols in hl.tile([m, n]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k):
            gate = both[rows, inner].to(torch.float32)
            up = both[rows, inner.index + k].to(torch.float32)
            hidden = (gate * torch.sigmoid(gate) * up).to(both.dtype)
            acc = hl.dot(hidden, w[cols, inner].T, acc=acc)
        out[rows, cols] = acc.to(out.dtype)
    return out


def activated_down_torch(both: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    gate, up = high(both).chunk(2, -1)
    return F.linear((F.silu(gate) * up).to(both.dtype), w)


def make_activated_down(device: str, small: bool) -> Arguments:
    m, k, n = (13, 40, 24) if small else (2048, 5632, 2048)
    return normal(device, m, 2 * k, dtype=BF16), normal(device, n, k, dtype=BF16, scale=k**-0.5)


CELLS.add(activated_down, make_activated_down, activated_down_torch)


@helion.kernel
def batch_normed_linear(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Normalize the columns of `x[M, K]` by running statistics, apply relu, and multiply by `w[K, N]`."""
    m, k = x.size()
    n = w.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for rows, cols in hl.tile([m, n]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k):
            rstd = torch.rsqrt(var[inner] + 1e-5)
            own = (x[rows, inner].to(torch.float32) - mean[inner][None, :]) * rstd[None, :]
            acc = torch.addmm(acc, torch.relu(own).to(w.dtype), w[inner, cols])
        out[rows, cols] = acc.to(out.dtype)
    return out


def batch_normed_linear_torch(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu((high(x) - mean) * torch.rsqrt(var + 1e-5)).to(w.dtype) @ w


def make_batch_normed_linear(device: str, small: bool) -> Arguments:
    m, k, n = (13, 40, 24) if small else (20000, 512, 512)
    var = torch.rand([k], device=device) + 0.5
    return normal(device, m, k, dtype=FP16), normal(device, k), var, normal(device, k, n, dtype=FP16, scale=k**-0.5)


CELLS.add(batch_normed_linear, make_batch_normed_linear, batch_normed_linear_torch)


@helion.kernel
def weight_only_int8(x: torch.Tensor, w: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Multiply `x[M, K]` in fp16 by int8 weights `w[K, N]` with a scale for each column."""
    m, k = x.size()
    n = w.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for rows, cols in hl.tile([m, n]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = torch.addmm(acc, x[rows, inner], w[inner, cols].to(x.dtype))
        out[rows, cols] = (acc * scales[cols].to(torch.float32)[None, :]).to(x.dtype)
    return out


def weight_only_int8_torch(x: torch.Tensor, w: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return (high(x @ w.to(x.dtype)) * high(scales)).to(x.dtype)


def make_weight_only_int8(device: str, small: bool) -> Arguments:
    m, k, n = (13, 40, 24) if small else (256, 5120, 5120)
    w = torch.randint(-127, 128, [k, n], device=device).to(torch.int8)
    return normal(device, m, k, dtype=FP16, scale=0.1), w, (torch.rand([n], device=device) * 1e-2).to(FP16)


CELLS.add(weight_only_int8, make_weight_only_int8, weight_only_int8_torch)


@helion.kernel
def halves_int4(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Multiply `x[M, K]` by 4-bit weights `packed[N, K / 2]` with a scale for each half of a row, `scales[N, 2]`.

    Low bits hold the first half of K, high bits the second.
    """
    m, k = x.size()
    n = packed.size(0)
    half = k // 2
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for rows, cols in hl.tile([m, n]):
        first = hl.zeros([rows, cols], dtype=torch.float32)
        second = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(half):
            byte = packed[cols, inner]
            low = ((byte << 4) >> 4).to(x.dtype)
            first = hl.dot(x[rows, inner], low.T, acc=first)
            second = hl.dot(x[rows, inner.index + half], (byte >> 4).to(x.dtype).T, acc=second)
        y = first * scales[cols, 0][None, :] + second * scales[cols, 1][None, :]
        out[rows, cols] = y.to(x.dtype)
    return out


def halves_int4_torch(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    low, upper = ((packed << 4) >> 4).to(x.dtype), (packed >> 4).to(x.dtype)
    first, second = x.chunk(2, -1)
    return (high(first @ low.T) * scales[:, 0] + high(second @ upper.T) * scales[:, 1]).to(x.dtype)


def make_halves_int4(device: str, small: bool) -> Arguments:
    m, k, n = (13, 96, 24) if small else (32, 8192, 8192)
    packed = torch.randint(-128, 128, [n, k // 2], device=device).to(torch.int8)
    return normal(device, m, k, dtype=BF16, scale=0.1), packed, torch.rand([n, 2], device=device) * 0.1


CELLS.add(halves_int4, make_halves_int4, halves_int4_torch)


@helion.kernel
def fp8_rowwise_gelu(
    x: torch.Tensor, w: torch.Tensor, row_scale: torch.Tensor, column_scale: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Apply gelu to `x[M, K] w[N, K].T` of e4m3 with scales of rows and columns and a bias."""
    m, k = x.size()
    n = w.size(0)
    out = torch.empty([m, n], dtype=torch.bfloat16, device=x.device)
    for rows, cols in hl.tile([m, n]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = hl.dot(x[rows, inner], w[cols, inner].T, acc=acc)
        y = acc * row_scale[rows, 0][:, None] * column_scale[0, cols][None, :] + bias[cols].to(torch.float32)[None, :]
        out[rows, cols] = torch.nn.functional.gelu(y).to(out.dtype)
    return out


def fp8_rowwise_gelu_reference(
    x: torch.Tensor, w: torch.Tensor, row_scale: torch.Tensor, column_scale: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    y = (x.to(row_scale.dtype) @ w.to(row_scale.dtype).T) * row_scale * column_scale
    return F.gelu(y + high(bias)).to(BF16)


def fp8_rowwise_gelu_torch(
    x: torch.Tensor, w: torch.Tensor, row_scale: torch.Tensor, column_scale: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    return F.gelu(torch._scaled_mm(x, w.T, scale_a=row_scale, scale_b=column_scale, out_dtype=BF16) + bias)


def make_fp8_rowwise_gelu(device: str, small: bool) -> Arguments:
    m, k, n = (16, 64, 48) if small else (4096, 3072, 8192)
    row_scale, column_scale = torch.rand([m, 1], device=device) * 0.1, torch.rand([1, n], device=device) * 0.1
    x, w = normal(device, m, k).to(E4M3), normal(device, n, k).to(E4M3)
    return x, w, row_scale, column_scale, normal(device, n, dtype=BF16)


CELLS.add(fp8_rowwise_gelu, make_fp8_rowwise_gelu, fp8_rowwise_gelu_reference, fp8_rowwise_gelu_torch)


@helion.kernel
def relu_gradient_product(grad: torch.Tensor, hidden: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Multiply `grad[M, N]` where `hidden[M, N] > 0` by `w[N, K]`: the gradient of what enters a layer with relu."""
    m, n = grad.size()
    k = w.size(1)
    out = torch.empty([m, k], dtype=grad.dtype, device=grad.device)
    for rows, cols in hl.tile([m, k]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(n):
            own = torch.where(hidden[rows, inner] > 0, grad[rows, inner], 0.0)
            acc = torch.addmm(acc, own.to(w.dtype), w[inner, cols])
        out[rows, cols] = acc.to(out.dtype)
    return out


def relu_gradient_product_torch(grad: torch.Tensor, hidden: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return grad.masked_fill(hidden <= 0, 0.0) @ w


def make_relu_gradient_product(device: str, small: bool) -> Arguments:
    m, n, k = (13, 40, 24) if small else (8192, 3072, 768)
    grad, hidden = normal(device, m, n, dtype=BF16), normal(device, m, n, dtype=BF16)
    return grad, hidden, normal(device, n, k, dtype=BF16, scale=n**-0.5)


CELLS.add(relu_gradient_product, make_relu_gradient_product, relu_gradient_product_torch)


@helion.kernel
def style_gram(features: torch.Tensor) -> torch.Tensor:
    """Return the Gram matrices `[B, C, C]` of fp32 feature maps `[B, C, H, W]`, divided by C H W."""
    b, c, height, width = features.size()
    pixels = height * width
    flat = features.view(b, c, pixels)
    out = torch.empty([b, c, c], dtype=torch.float32, device=features.device)
    for image, rows, cols in hl.tile([b, c, c], block_size=[1, None, None]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(pixels):
            acc = torch.addmm(acc, flat[image.begin, rows, inner], flat[image.begin, cols, inner].T)
        out[image.begin, rows, cols] = acc / (c * pixels)
    return out


def style_gram_torch(features: torch.Tensor) -> torch.Tensor:
    flat = features.flatten(2)
    return torch.bmm(flat, flat.transpose(1, 2)) / flat[0].numel()


def make_style_gram(device: str, small: bool) -> Arguments:
    shape = (2, 24, 5, 7) if small else (8, 256, 64, 64)
    return (normal(device, *shape),)


CELLS.add(style_gram, make_style_gram, style_gram_torch)


@helion.kernel
def long_inner_linear(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return `x[M, K] w[N, K].T + bias` for few rows, few columns and a long K, as in the head of a flattened map."""
    m, k = x.size()
    n = w.size(0)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for rows, cols in hl.tile([m, n]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = torch.addmm(acc, x[rows, inner], w[cols, inner].T)
        out[rows, cols] = (acc + bias[cols].to(torch.float32)[None, :]).to(x.dtype)
    return out


def make_long_inner_linear(device: str, small: bool) -> Arguments:
    m, k, n = (13, 147, 24) if small else (200, 25088, 512)
    w = normal(device, n, k, dtype=FP16, scale=k**-0.5)
    return normal(device, m, k, dtype=FP16), w, normal(device, n, dtype=FP16)


CELLS.add(long_inner_linear, make_long_inner_linear, lambda x, w, bias: F.linear(x, w, bias))


@helion.kernel
def project_heads_out(heads: torch.Tensor, w: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """Add `sum_h heads[B, H, T, D] w[H, D, N]` to a stream `[B, T, N]`: the output projection of attention."""
    b, h, t, d = heads.size()
    d = hl.specialize(d)
    n = w.size(2)
    out = torch.empty_like(residual)
    for batch, rows, cols in hl.tile([b, t, n], block_size=[1, None, None]):
        bi = batch.begin
        acc = residual[bi, rows, cols].to(torch.float32)
        for head in hl.grid(h):
            acc = hl.dot(heads[bi, head, rows, :], w[head, :, cols], acc=acc)
        out[bi, rows, cols] = acc.to(out.dtype)
    return out


def project_heads_out_torch(heads: torch.Tensor, w: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    return residual + heads.transpose(1, 2).flatten(2) @ w.flatten(0, 1)


def make_project_heads_out(device: str, small: bool) -> Arguments:
    b, h, t, d, n = (2, 3, 13, 16, 24) if small else (4, 16, 1500, 64, 1024)
    w = normal(device, h, d, n, dtype=BF16, scale=(h * d) ** -0.5)
    return normal(device, b, h, t, d, dtype=BF16), w, normal(device, b, t, n, dtype=BF16)


CELLS.add(project_heads_out, make_project_heads_out, project_heads_out_torch)


@helion.kernel
def euclidean_distances(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the distances `[M, N]` of fp32 vectors `x[M, D]` and `y[N, D]`, from their products and norms."""
    m, d = x.size()
    n = y.size(0)
    d = hl.specialize(d)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for rows, cols in hl.tile([m, n]):
        a, b = x[rows, :], y[cols, :]
        squares = (a * a).sum(-1)[:, None] + (b * b).sum(-1)[None, :] - 2.0 * hl.dot(a, b.T)
        out[rows, cols] = torch.sqrt(torch.clamp(squares, min=0.0))
    return out


def euclidean_distances_torch(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    squares = (x * x).sum(-1)[:, None] + (y * y).sum(-1) - 2.0 * (x @ y.T)
    return torch.sqrt(torch.clamp(squares, min=0.0))


def make_euclidean_distances(device: str, small: bool) -> Arguments:
    m, n, d = (13, 21, 32) if small else (4096, 6000, 128)
    return normal(device, m, d, dtype=FP32), normal(device, n, d, dtype=FP32)


CELLS.add(euclidean_distances, make_euclidean_distances, euclidean_distances_torch)


@helion.kernel
def sorted_expert_rows(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Multiply rows `offsets[e]` to `offsets[e + 1]` of `x[T, K]` by `w[e, K, N]`."""
    t, k = x.size()
    e, _, n = w.size()
    out = torch.empty([t, n], dtype=x.dtype, device=x.device)
    for expert, cols in hl.tile([e, n], block_size=[1, None]):
        ei = expert.begin
        for rows in hl.tile(offsets[ei], offsets[ei + 1]):
            acc = hl.zeros([rows, cols], dtype=torch.float32)
            for inner in hl.tile(k):
                acc = hl.dot(x[rows, inner], w[ei, inner, cols], acc=acc)
            out[rows, cols] = acc.to(out.dtype)
    return out


def sorted_expert_rows_torch(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    parts = x.tensor_split(offsets[1:-1].cpu().long())
    return torch.cat([part @ own for part, own in zip(parts, w, strict=True)])


def sorted_expert_rows_baseline(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    return torch._grouped_mm(x, w, offs=offsets[1:])


def make_sorted_expert_rows(device: str, small: bool) -> Arguments:
    t, k, n, e = (37, 40, 24, 4) if small else (8192, 1024, 2048, 32)
    ends = torch.randint(0, t + 1, [e - 1], device=device).sort().values
    offsets = torch.nn.functional.pad(ends, [1, 1])
    offsets[-1] = t
    w = normal(device, e, k, n, dtype=BF16, scale=k**-0.5)
    return normal(device, t, k, dtype=BF16), w, offsets.to(torch.int32)


CELLS.add(sorted_expert_rows, make_sorted_expert_rows, sorted_expert_rows_torch, sorted_expert_rows_baseline)
