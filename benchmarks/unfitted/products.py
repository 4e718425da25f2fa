"""Matmuls with packed, normalized, complex, quantized or gathered operands."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, FP16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def zero_point_linear(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """`x[M, K]` times 4-bit weights `packed[K / 2, N]` with scales and zeros of groups of 128 along K."""
    m, k = x.size()
    n = packed.size(1)
    pairs = x.view(m, k // 2, 2)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k // 2, block_size=64):
            byte = packed[tile_k, tile_n].to(torch.int32)
            scale = scales[tile_k.id, tile_n].to(torch.float32)
            zero = zeros[tile_k.id, tile_n].to(torch.float32)
            low = (((byte & 15).to(torch.float32) - zero[None, :]) * scale[None, :]).to(x.dtype)
            high = ((((byte >> 4) & 15).to(torch.float32) - zero[None, :]) * scale[None, :]).to(x.dtype)
            acc = hl.dot(pairs[tile_m, tile_k, 0], low, acc=acc)
            acc = hl.dot(pairs[tile_m, tile_k, 1], high, acc=acc)
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


def zero_point_linear_torch(
    x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    k, n = 2 * packed.size(0), packed.size(1)
    w = torch.stack([packed & 15, packed >> 4], 1).view(k // 128, 128, n).to(torch.float32)
    w = ((w - zeros[:, None].to(torch.float32)) * scales[:, None].to(torch.float32)).view(k, n)
    return x @ w.to(torch.bfloat16).to(x.dtype)


def make_zero_point_linear(device: str, small: bool) -> Arguments:
    m, k, n = (5, 256, 33) if small else (64, 4096, 4096)
    return (
        normal(device, m, k, dtype=BF16),
        torch.randint(0, 256, [k // 2, n], device=device, dtype=torch.uint8),
        torch.rand([k // 128, n], device=device).to(BF16),
        torch.randint(0, 16, [k // 128, n], device=device).to(BF16),
    )


CELLS.add(zero_point_linear, make_zero_point_linear, zero_point_linear_torch)


@helion.kernel
def norm_then_project(x: torch.Tensor, gain: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
    """`rms_norm(x) * gain @ w`: the squares are summed up along the loop over K."""
    m, k = x.size()
    n = w.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        squares = hl.zeros([tile_m], dtype=torch.float32)
        for tile_k in hl.tile(k):
            rows = x[tile_m, tile_k].to(torch.float32)
            squares += (rows * rows).sum(-1)
            acc = torch.addmm(acc, (rows * gain[tile_k].to(torch.float32)[None, :]).to(x.dtype), w[tile_k, tile_n])
        out[tile_m, tile_n] = (acc * torch.rsqrt(squares / k + eps)[:, None]).to(x.dtype)
    return out


def norm_then_project_torch(x: torch.Tensor, gain: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
    v = x.to(torch.promote_types(x.dtype, torch.float32))
    normed = (v * torch.rsqrt((v * v).mean(-1, keepdim=True) + eps) * gain).to(x.dtype)
    return normed @ w


def make_norm_then_project(device: str, small: bool) -> Arguments:
    m, k, n = (33, 96, 65) if small else (4096, 2048, 2048)
    return (
        normal(device, m, k, dtype=BF16),
        normal(device, k, dtype=BF16),
        normal(device, k, n, dtype=BF16, scale=0.02),
        1e-6,
    )


CELLS.add(norm_then_project, make_norm_then_project, norm_then_project_torch)


@helion.kernel
def complex_matmul(
    ar: torch.Tensor, ai: torch.Tensor, br: torch.Tensor, bi: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Real and imaginary part of a product of complex matrices."""
    m, k = ar.size()
    n = br.size(1)
    real = torch.empty([m, n], dtype=ar.dtype, device=ar.device)
    imag = torch.empty([m, n], dtype=ar.dtype, device=ar.device)
    for tile_m, tile_n in hl.tile([m, n]):
        plus = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        minus = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        cross = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            a, b = ar[tile_m, tile_k], ai[tile_m, tile_k]
            c, d = br[tile_k, tile_n], bi[tile_k, tile_n]
            plus = torch.addmm(plus, a, c)
            minus = torch.addmm(minus, b, d)
            cross = torch.addmm(cross, a, d)
            cross = torch.addmm(cross, b, c)
        real[tile_m, tile_n] = (plus - minus).to(ar.dtype)
        imag[tile_m, tile_n] = cross.to(ar.dtype)
    return real, imag


def complex_matmul_torch(
    ar: torch.Tensor, ai: torch.Tensor, br: torch.Tensor, bi: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return ar @ br - ai @ bi, ar @ bi + ai @ br


def make_complex_matmul(device: str, small: bool) -> Arguments:
    m, k, n = (33, 48, 65) if small else (2048, 1024, 2048)
    return (
        normal(device, m, k, dtype=BF16),
        normal(device, m, k, dtype=BF16),
        normal(device, k, n, dtype=BF16),
        normal(device, k, n, dtype=BF16),
    )


CELLS.add(complex_matmul, make_complex_matmul, complex_matmul_torch)


@helion.kernel
def linear_dropout_residual(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, p: float, seed: int
) -> torch.Tensor:
    """`dropout(x @ w.T + bias) + residual` of `[M, N]`."""
    m, k = x.size()
    n = w.size(0)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[tile_n, tile_k].T)
        v = acc + bias[tile_n].to(torch.float32)
        kept = hl.rand([tile_m, tile_n], seed) >= p
        out[tile_m, tile_n] = (torch.where(kept, v / (1.0 - p), 0.0) + residual[tile_m, tile_n].to(torch.float32)).to(
            x.dtype
        )
    return out


def linear_dropout_residual_reference(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, p: float, seed: int
) -> torch.Tensor:
    from helion._support.philox import philox, uniform

    at = torch.arange(residual.numel(), device=x.device)
    drawn = uniform(philox(torch.tensor(seed, device=x.device), at)[0]).view(residual.shape)
    return torch.where(drawn >= p, F.linear(x, w, bias) / (1.0 - p), 0.0) + residual


def linear_dropout_residual_torch(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, p: float, seed: int
) -> torch.Tensor:
    return F.dropout(F.linear(x, w, bias), p) + residual


def make_linear_dropout_residual(device: str, small: bool) -> Arguments:
    m, k, n = (131, 65, 177) if small else (8192, 3072, 768)
    return (
        normal(device, m, k, dtype=BF16),
        normal(device, n, k, dtype=BF16, scale=0.02),
        normal(device, n, dtype=BF16),
        normal(device, m, n, dtype=BF16),
        0.1,
        7,
    )


CELLS.add(
    linear_dropout_residual,
    make_linear_dropout_residual,
    linear_dropout_residual_reference,
    linear_dropout_residual_torch,
    draws=True,
)


@helion.kernel
def dilated_conv(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, dilation: hl.constexpr) -> torch.Tensor:
    """Causal dilated convolution of `x[B, T, C]` with `w[taps, C, D]`, and a gelu."""
    b, t, c = x.size()
    taps, _, d = w.size()
    taps = hl.specialize(taps)
    out = torch.empty([b, t, d], dtype=x.dtype, device=x.device)
    for tile_b, tile_t, tile_d in hl.tile([b, t, d], block_size=[1, None, None]):
        acc = hl.zeros([tile_t, tile_d], dtype=torch.float32)
        for tile_c in hl.tile(c):
            for tap in hl.static_range(taps):
                at = tile_t.index - (taps - 1 - tap) * dilation
                rows = hl.load(x, [tile_b.begin, at, tile_c], extra_mask=(at >= 0)[:, None])
                acc = torch.addmm(acc, rows, w[tap, tile_c, tile_d])
        out[tile_b, tile_t, tile_d] = F.gelu(acc + bias[tile_d].to(torch.float32)).to(x.dtype)[None, :, :]
    return out


def dilated_conv_torch(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, dilation: int) -> torch.Tensor:
    taps = w.size(0)
    padded = F.pad(x.transpose(1, 2), [(taps - 1) * dilation, 0])
    y = F.conv1d(padded, w.permute(2, 1, 0), bias, dilation=dilation)
    return F.gelu(y.transpose(1, 2)).contiguous()


def make_dilated_conv(device: str, small: bool) -> Arguments:
    b, t, c, n, taps = (2, 21, 33, 17, 3) if small else (8, 4096, 256, 256, 3)
    return (
        normal(device, b, t, c, dtype=BF16),
        normal(device, taps, c, n, dtype=BF16, scale=0.05),
        normal(device, n, dtype=BF16),
        4,
    )


CELLS.add(dilated_conv, make_dilated_conv, dilated_conv_torch)


@helion.kernel
def asymmetric_int8(
    x: torch.Tensor,
    w: torch.Tensor,
    column_sums: torch.Tensor,
    row_scale: torch.Tensor,
    row_zero: torch.Tensor,
    scale: torch.Tensor,
) -> torch.Tensor:
    """int8 activations with a zero point of each row times int8 weights `[N, K]`, as bf16."""
    m, k = x.size()
    n = w.size(0)
    out = torch.empty([m, n], dtype=torch.bfloat16, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.int32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], w[tile_n, tile_k].T, acc=acc)
        exact = acc - row_zero[tile_m][:, None] * column_sums[tile_n][None, :]
        out[tile_m, tile_n] = (exact.to(torch.float32) * row_scale[tile_m][:, None] * scale[tile_n][None, :]).to(
            torch.bfloat16
        )
    return out


def asymmetric_int8_reference(
    x: torch.Tensor,
    w: torch.Tensor,
    column_sums: torch.Tensor,
    row_scale: torch.Tensor,
    row_zero: torch.Tensor,
    scale: torch.Tensor,
) -> torch.Tensor:
    acc = x.double() @ w.double().T - row_zero[:, None] * column_sums[None, :]
    return (acc * row_scale[:, None] * scale[None, :]).to(torch.bfloat16)


def asymmetric_int8_torch(
    x: torch.Tensor,
    w: torch.Tensor,
    column_sums: torch.Tensor,
    row_scale: torch.Tensor,
    row_zero: torch.Tensor,
    scale: torch.Tensor,
) -> torch.Tensor:
    acc = torch._int_mm(x, w.T) - row_zero[:, None] * column_sums[None, :]
    return (acc.to(torch.float32) * row_scale[:, None] * scale[None, :]).to(torch.bfloat16)


def make_asymmetric_int8(device: str, small: bool) -> Arguments:
    m, k, n = (33, 65, 41) if small else (4096, 4096, 4096)
    w = torch.randint(-127, 128, [n, k], device=device, dtype=torch.int8)
    return (
        torch.randint(-128, 128, [m, k], device=device, dtype=torch.int8),
        w,
        w.to(torch.int32).sum(1).to(torch.int32),
        torch.rand([m], device=device) * 0.01,
        torch.randint(-10, 10, [m], device=device, dtype=torch.int32),
        torch.rand([n], device=device) * 0.01,
    )


CELLS.add(asymmetric_int8, make_asymmetric_int8, asymmetric_int8_reference, asymmetric_int8_torch)


@helion.kernel
def grouped_pointwise(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """1x1 convolution of `x[P, G, C]` in groups with `w[G, C, D]`, and a hard swish."""
    p, g, c = x.size()
    d = w.size(2)
    out = torch.empty([p, g, d], dtype=x.dtype, device=x.device)
    for tile_g, tile_p, tile_d in hl.tile([g, p, d], block_size=[1, None, None]):
        acc = hl.zeros([tile_p, tile_d], dtype=torch.float32)
        for tile_c in hl.tile(c):
            acc = torch.addmm(acc, x[tile_p, tile_g.begin, tile_c], w[tile_g.begin, tile_c, tile_d])
        v = acc + bias[tile_g.begin, tile_d].to(torch.float32)[None, :]
        out[tile_p, tile_g.begin, tile_d] = (v * torch.clamp(v + 3.0, 0.0, 6.0) / 6.0).to(x.dtype)
    return out


def grouped_pointwise_torch(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.hardswish(torch.einsum("pgc,gcd->pgd", x, w) + bias)


def make_grouped_pointwise(device: str, small: bool) -> Arguments:
    p, g, c, n = (45, 3, 24, 17) if small else (50176, 16, 32, 32)
    return (
        normal(device, p, g, c, dtype=FP16),
        normal(device, g, c, n, dtype=FP16, scale=0.2),
        normal(device, g, n, dtype=FP16),
    )


CELLS.add(grouped_pointwise, make_grouped_pointwise, grouped_pointwise_torch)


@helion.kernel
def strided_conv(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """3x3 convolution with stride 2 and no padding of `x[N, H, W, C]` with `w[3, 3, C, D]`, and a relu."""
    n, h, width, c = x.size()
    d = w.size(3)
    oh, ow = (h - 3) // 2 + 1, (width - 3) // 2 + 1
    out = torch.empty([n, oh, ow, d], dtype=x.dtype, device=x.device)
    for tile_n, tile_h, tile_w, tile_d in hl.tile([n, oh, ow, d], block_size=[1, 1, None, None]):
        acc = hl.zeros([tile_w, tile_d], dtype=torch.float32)
        for i in hl.static_range(3):
            for j in hl.static_range(3):
                for tile_c in hl.tile(c):
                    rows = x[tile_n.begin, tile_h.begin * 2 + i, tile_w.index * 2 + j, tile_c]
                    acc = torch.addmm(acc, rows, w[i, j, tile_c, tile_d])
        out[tile_n.begin, tile_h.begin, tile_w, tile_d] = torch.relu(acc).to(x.dtype)
    return out


def strided_conv_torch(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(F.conv2d(x.permute(0, 3, 1, 2), w.permute(3, 2, 0, 1), stride=2)).permute(0, 2, 3, 1)


def make_strided_conv(device: str, small: bool) -> Arguments:
    n, h, c, o = (2, 9, 17, 24) if small else (32, 57, 128, 256)
    return normal(device, n, h, h, c, dtype=FP16), normal(device, 3, 3, c, o, dtype=FP16, scale=0.05)


CELLS.add(strided_conv, make_strided_conv, strided_conv_torch)


@helion.kernel
def complex_pairs(ar: torch.Tensor, ai: torch.Tensor, br: torch.Tensor, bi: torch.Tensor) -> torch.Tensor:
    """Complex product of `[M, K]` and `[K, N]` as fp32 pairs of real and imaginary parts."""
    m, k = ar.size()
    n = br.size(1)
    out = torch.empty([m, n, 2], dtype=torch.float32, device=ar.device)
    for tile_m, tile_n in hl.tile([m, n]):
        real, imag = hl.zeros([tile_m, tile_n], dtype=torch.float32), hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            a, b = ar[tile_m, tile_k], ai[tile_m, tile_k]
            c, d = br[tile_k, tile_n], bi[tile_k, tile_n]
            real = torch.addmm(real, a, c)
            real = real - hl.dot(b, d)
            imag = torch.addmm(imag, a, d)
            imag = torch.addmm(imag, b, c)
        out[tile_m, tile_n, 0] = real
        out[tile_m, tile_n, 1] = imag
    return out


def complex_pairs_torch(ar: torch.Tensor, ai: torch.Tensor, br: torch.Tensor, bi: torch.Tensor) -> torch.Tensor:
    return torch.stack([high(ar @ br) - high(ai @ bi), high(ar @ bi) + high(ai @ br)], -1)


def make_complex_pairs(device: str, small: bool) -> Arguments:
    m, k, n = (150, 72, 256) if small else (2048, 2048, 2048)
    return tuple(normal(device, *shape, dtype=BF16) for shape in ((m, k), (m, k), (k, n), (k, n)))


CELLS.add(complex_pairs, make_complex_pairs, complex_pairs_torch)


@helion.kernel
def outer_product_mean(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Means over S of the outer products of `a[S, I, C]` and `b[S, J, E]`: `[I, J, C, E]`."""
    s, i, c = a.size()
    _, j, e = b.size()
    left, right = a.view(s, i * c), b.view(s, j * e)
    out = torch.empty([i * c, j * e], dtype=a.dtype, device=a.device)
    for tile_m, tile_n in hl.tile([i * c, j * e]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_s in hl.tile(s):
            acc = torch.addmm(acc, left[tile_s, tile_m].T, right[tile_s, tile_n])
        out[tile_m, tile_n] = (acc / s).to(a.dtype)
    return out.view(i, c, j, e).permute(0, 2, 1, 3)


def outer_product_mean_torch(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (torch.einsum("sic,sje->ijce", a, b) / a.size(0)).to(a.dtype)


CELLS.add(
    outer_product_mean,
    lambda device, small: tuple(
        normal(device, *((16, 6, 32) if small else (512, 128, 32)), dtype=BF16) for _ in range(2)
    ),
    outer_product_mean_torch,
)
