"""Kernels of further kinds, in the ways in which users write them: what the heuristics make of code that is no example."""

from __future__ import annotations

import torch

import helion
import helion.language as hl


@helion.kernel()
def logsumexp_rows(x: torch.Tensor) -> torch.Tensor:
    """fp32 `[M]` of `x[M, N]`."""
    m, _ = x.size()
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile in hl.tile(m):
        out[tile] = torch.logsumexp(x[tile, :].to(torch.float32), dim=-1)
    return out


@helion.kernel()
def tiled_logsumexp(x: torch.Tensor) -> torch.Tensor:
    """The same in one pass over tiles of the row."""
    m, n = x.size()
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            values = x[tile_m, tile_n].to(torch.float32)
            raised = torch.maximum(highest, values.amax(-1))
            total = total * torch.exp(highest - raised) + torch.exp(values - raised[:, None]).sum(-1)
            highest = raised
        out[tile_m] = highest + torch.log(total)
    return out


@helion.kernel()
def cosine_similarity(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """fp32 `[M]`, of the rows of `x[M, N]` and `y[M, N]`."""
    m, _ = x.size()
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile in hl.tile(m):
        a, b = x[tile, :].to(torch.float32), y[tile, :].to(torch.float32)
        out[tile] = (a * b).sum(-1) * torch.rsqrt((a * a).sum(-1) * (b * b).sum(-1) + 1e-6)
    return out


@helion.kernel()
def softmax_backward(gradient: torch.Tensor, probabilities: torch.Tensor) -> torch.Tensor:
    m, _ = gradient.size()
    out = torch.empty_like(gradient)
    for tile in hl.tile(m):
        g, p = gradient[tile, :].to(torch.float32), probabilities[tile, :].to(torch.float32)
        out[tile, :] = p * (g - (g * p).sum(-1, keepdim=True))
    return out


@helion.kernel(ignore_warnings=[helion.exc.TensorOperationInWrapper])
def rms_norm_gradients(g: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of `x[M, N]` and, in fp32, of `weight[N]`."""
    m, n = x.size()
    n = hl.specialize(n)
    grad_x = torch.empty_like(x)
    block = hl.register_block_size(m)
    parts = x.new_empty([helion.cdiv(m, block), n], dtype=torch.float32)
    for rows in hl.tile(m, block_size=block):
        grad_weight = hl.zeros([n], dtype=torch.float32)
        for tile in hl.tile(rows.begin, rows.end):
            values, gradient = x[tile, :].to(torch.float32), g[tile, :].to(torch.float32)
            scale = torch.rsqrt((values * values).mean(-1) + 1e-5)[:, None]
            grad_weight = grad_weight + (gradient * values * scale).sum(0)
            weighted = gradient * weight[:].to(torch.float32)[None, :]
            common = (weighted * values).mean(-1)[:, None]
            grad_x[tile, :] = weighted * scale - values * common * scale * scale * scale
        parts[rows.id, :] = grad_weight
    return grad_x, parts.sum(0)


@helion.kernel()
def group_norm(x: torch.Tensor) -> torch.Tensor:
    """`x[batch, groups, channels, pixels]`, normalised over the last two dimensions."""
    batch, groups, _, _ = x.size()
    out = torch.empty_like(x)
    for tile_b, tile_g in hl.tile([batch, groups]):
        values = x[tile_b, tile_g, :, :].to(torch.float32)
        centred = values - values.mean(dim=(-2, -1), keepdim=True)
        variance = (centred * centred).mean(dim=(-2, -1), keepdim=True)
        out[tile_b, tile_g, :, :] = centred * torch.rsqrt(variance + 1e-5)
    return out


@helion.kernel()
def column_sum(x: torch.Tensor) -> torch.Tensor:
    """fp32 `[N]` of `x[M, N]`."""
    m, n = x.size()
    out = torch.empty([n], dtype=torch.float32, device=x.device)
    for tile_n in hl.tile(n):
        total = hl.zeros([tile_n], dtype=torch.float32)
        for tile_m in hl.tile(m):
            total = total + x[tile_m, tile_n].to(torch.float32).sum(0)
        out[tile_n] = total
    return out


@helion.kernel()
def row_argmax(x: torch.Tensor) -> torch.Tensor:
    m, _ = x.size()
    out = torch.empty([m], dtype=torch.int64, device=x.device)
    for tile in hl.tile(m):
        out[tile] = torch.argmax(x[tile, :], dim=-1)
    return out


@helion.kernel()
def log_softmax_3d(x: torch.Tensor) -> torch.Tensor:
    batch, length, _ = x.size()
    out = torch.empty_like(x)
    for tile_b, tile_s in hl.tile([batch, length]):
        out[tile_b, tile_s, :] = torch.log_softmax(x[tile_b, tile_s, :].to(torch.float32), dim=-1)
    return out


@helion.kernel()
def bias_gelu_residual(x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile([m, n]):
        values = x[tile_m, tile_n].to(torch.float32) + bias[tile_n].to(torch.float32)
        out[tile_m, tile_n] = torch.nn.functional.gelu(values) + residual[tile_m, tile_n].to(torch.float32)
    return out


@helion.kernel()
def add_transposed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """`x[M, N] + y[N, M].T`."""
    m, n = x.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        out[tile_m, tile_n] = x[tile_m, tile_n] + y[tile_n, tile_m].T
    return out


@helion.kernel()
def matmul_bias_gelu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    _, n = weight.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], weight[tile_k, tile_n])
        out[tile_m, tile_n] = torch.nn.functional.gelu(acc + bias[tile_n].to(torch.float32))
    return out


@helion.kernel()
def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`x[M, K] @ weight[N, K].T`."""
    m, k = x.size()
    n, _ = weight.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], weight[tile_n, tile_k].T)
        out[tile_m, tile_n] = acc
    return out


@helion.kernel()
def batched_matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    batch, m, k = x.size()
    _, _, n = y.size()
    out = torch.empty([batch, m, n], dtype=x.dtype, device=x.device)
    for tile_b, tile_m, tile_n in hl.tile([batch, m, n]):
        acc = hl.zeros([tile_b, tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.baddbmm(acc, x[tile_b, tile_m, tile_k], y[tile_b, tile_k, tile_n])
        out[tile_b, tile_m, tile_n] = acc
    return out


# --- the same in PyTorch ------------------------------------------------------------------------------------------------


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _logsumexp(x: torch.Tensor) -> torch.Tensor:
    return torch.logsumexp(_wide(x), -1)


def _cosine(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x, y = _wide(x), _wide(y)
    return (x * y).sum(-1) * torch.rsqrt((x * x).sum(-1) * (y * y).sum(-1) + 1e-6)


def _softmax_backward(gradient: torch.Tensor, probabilities: torch.Tensor) -> torch.Tensor:
    g, p = _wide(gradient), _wide(probabilities)
    return (p * (g - (g * p).sum(-1, keepdim=True))).to(gradient.dtype)


def _rms_norm_gradients(g: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values, gradient = _wide(x), _wide(g)
    scale = torch.rsqrt((values * values).mean(-1, keepdim=True) + 1e-5)
    weighted = gradient * _wide(weight)
    grad_x = weighted * scale - values * (weighted * values).mean(-1, keepdim=True) * scale**3
    return grad_x.to(x.dtype), (gradient * values * scale).sum(0)


def _group_norm(x: torch.Tensor) -> torch.Tensor:
    values = _wide(x)
    variance, mean = torch.var_mean(values, dim=(-2, -1), keepdim=True, correction=0)
    return ((values - mean) * torch.rsqrt(variance + 1e-5)).to(x.dtype)


def _column_sum(x: torch.Tensor) -> torch.Tensor:
    return _wide(x).sum(0)


def _argmax(x: torch.Tensor) -> torch.Tensor:
    return x.argmax(-1)


def _log_softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(_wide(x), -1).to(x.dtype)


def _bias_gelu_residual(x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    return (torch.nn.functional.gelu(_wide(x) + _wide(bias)) + _wide(residual)).to(x.dtype)


def _add_transposed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y.T


def _matmul_bias_gelu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(_wide(x @ weight) + _wide(bias)).to(x.dtype)


def _linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x @ weight.T


#: Kernel, reference, dtype, and the shape of each argument.
KERNELS = (
    (logsumexp_rows, _logsumexp, torch.bfloat16, ((65536, 768),)),
    (logsumexp_rows, _logsumexp, torch.float16, ((8192, 5120),)),
    (logsumexp_rows, _logsumexp, torch.float32, ((131072, 63),)),
    (logsumexp_rows, _logsumexp, torch.bfloat16, ((4096, 50257),)),
    (tiled_logsumexp, _logsumexp, torch.bfloat16, ((8192, 32000),)),
    (tiled_logsumexp, _logsumexp, torch.float32, ((4096, 50257),)),
    (tiled_logsumexp, _logsumexp, torch.bfloat16, ((65536, 2048),)),
    (tiled_logsumexp, _logsumexp, torch.bfloat16, ((16384, 8192),)),
    (tiled_logsumexp, _logsumexp, torch.float32, ((131072, 512),)),
    (cosine_similarity, _cosine, torch.bfloat16, ((131072, 768), (131072, 768))),
    (cosine_similarity, _cosine, torch.float32, ((16384, 6144), (16384, 6144))),
    (cosine_similarity, _cosine, torch.bfloat16, ((8192, 10000), (8192, 10000))),
    (softmax_backward, _softmax_backward, torch.bfloat16, ((65536, 1536), (65536, 1536))),
    (softmax_backward, _softmax_backward, torch.bfloat16, ((16384, 4097), (16384, 4097))),
    (softmax_backward, _softmax_backward, torch.float32, ((8192, 16000), (8192, 16000))),
    (rms_norm_gradients, _rms_norm_gradients, torch.bfloat16, ((65536, 1024), (65536, 1024), (1024,))),
    (rms_norm_gradients, _rms_norm_gradients, torch.bfloat16, ((16384, 4096), (16384, 4096), (4096,))),
    (rms_norm_gradients, _rms_norm_gradients, torch.float32, ((8192, 8192), (8192, 8192), (8192,))),
    (rms_norm_gradients, _rms_norm_gradients, torch.bfloat16, ((131072, 512), (131072, 512), (512,))),
    (rms_norm_gradients, _rms_norm_gradients, torch.float32, ((4096, 2048), (4096, 2048), (2048,))),
    (rms_norm_gradients, _rms_norm_gradients, torch.bfloat16, ((32768, 2048), (32768, 2048), (2048,))),
    (group_norm, _group_norm, torch.bfloat16, ((64, 32, 8, 1024),)),
    (group_norm, _group_norm, torch.float32, ((32, 32, 16, 256),)),
    (group_norm, _group_norm, torch.bfloat16, ((256, 32, 4, 196),)),
    (column_sum, _column_sum, torch.bfloat16, ((65536, 1024),)),
    (column_sum, _column_sum, torch.float32, ((8192, 8192),)),
    (column_sum, _column_sum, torch.bfloat16, ((4096, 4096),)),
    (column_sum, _column_sum, torch.float32, ((131072, 256),)),
    (column_sum, _column_sum, torch.bfloat16, ((16384, 1000),)),
    (row_argmax, _argmax, torch.float32, ((65536, 1000),)),
    (row_argmax, _argmax, torch.bfloat16, ((8192, 16384),)),
    (log_softmax_3d, _log_softmax, torch.bfloat16, ((64, 1024, 1000),)),
    (log_softmax_3d, _log_softmax, torch.bfloat16, ((16, 512, 32000),)),
    (bias_gelu_residual, _bias_gelu_residual, torch.bfloat16, ((16384, 4096), (4096,), (16384, 4096))),
    (bias_gelu_residual, _bias_gelu_residual, torch.bfloat16, ((4097, 11008), (11008,), (4097, 11008))),
    (bias_gelu_residual, _bias_gelu_residual, torch.float32, ((10000, 1000), (1000,), (10000, 1000))),
    (add_transposed, _add_transposed, torch.bfloat16, ((8192, 8192), (8192, 8192))),
    (add_transposed, _add_transposed, torch.float32, ((4097, 6000), (6000, 4097))),
    (matmul_bias_gelu, _matmul_bias_gelu, torch.bfloat16, ((4096, 4096), (4096, 11008), (11008,))),
    (matmul_bias_gelu, _matmul_bias_gelu, torch.bfloat16, ((2000, 3000), (3000, 5000), (5000,))),
    (matmul_bias_gelu, _matmul_bias_gelu, torch.float16, ((8192, 768), (768, 3072), (3072,))),
    (matmul_bias_gelu, _matmul_bias_gelu, torch.bfloat16, ((64, 4096), (4096, 4096), (4096,))),
    (linear, _linear, torch.bfloat16, ((4096, 4096), (4096, 4096))),
    (linear, _linear, torch.bfloat16, ((300, 8192), (8192, 8192))),
    (linear, _linear, torch.bfloat16, ((32, 4096), (12288, 4096))),
    (linear, _linear, torch.float32, ((2048, 2048), (2048, 2048))),
    (batched_matmul, torch.bmm, torch.bfloat16, ((64, 512, 64), (64, 64, 512))),
    (batched_matmul, torch.bmm, torch.bfloat16, ((16, 1024, 1024), (16, 1024, 1024))),
    (batched_matmul, torch.bmm, torch.float16, ((256, 128, 128), (256, 128, 128))),
)

#: The dimension of the second matrix that a product sums over.
SUMMED = {"matmul_bias_gelu": 0, "linear": 1, "batched_matmul": 1}
