"""Ten kernels that are no examples, for the tuner; the file needs nothing of this repository but the language."""

from __future__ import annotations

import torch

import helion
import helion.language as hl


@helion.kernel()
def residual_silu(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        v = x[tile].to(torch.float32) + y[tile].to(torch.float32)
        out[tile] = (v * torch.sigmoid(v)).to(x.dtype)
    return out


@helion.kernel()
def channel_scale(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for rows, columns in hl.tile(x.size()):
        out[rows, columns] = x[rows, columns] * scale[columns][None, :] + 1
    return out


@helion.kernel()
def l1_normalize(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        v = x[tile, :].to(torch.float32)
        out[tile, :] = (v / v.abs().sum(-1, keepdim=True)).to(x.dtype)
    return out


@helion.kernel()
def row_range(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        v = x[tile, :].to(torch.float32)
        out[tile] = torch.amax(v, -1) - torch.amin(v, -1)
    return out


@helion.kernel()
def mean_square_tiled(x: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            v = x[tile_m, tile_n].to(torch.float32)
            acc = acc + (v * v).sum(-1)
        out[tile_m] = acc / n
    return out


@helion.kernel()
def column_max(x: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty([n], dtype=torch.float32, device=x.device)
    for tile_n in hl.tile(n):
        acc = hl.full([tile_n], float("-inf"), dtype=torch.float32)
        for tile_m in hl.tile(m):
            acc = torch.maximum(acc, torch.amax(x[tile_m, tile_n].to(torch.float32), 0))
        out[tile_n] = acc
    return out


@helion.kernel()
def product_relu(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = torch.relu(acc).to(x.dtype)
    return out


@helion.kernel()
def product_scaled_rows(x: torch.Tensor, y: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = (acc * scale[tile_m][:, None]).to(x.dtype)
    return out


@helion.kernel()
def two_outputs(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = torch.empty_like(x), torch.empty_like(x)
    for tile in hl.tile(x.size()):
        v = x[tile].to(torch.float32)
        a[tile] = torch.exp(-v * v).to(x.dtype)
        b[tile] = torch.tanh(v).to(x.dtype)
    return a, b


@helion.kernel()
def softplus_rows(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        v = x[tile, :].to(torch.float32)
        w = torch.log(1 + torch.exp(v))
        out[tile, :] = (w - w.mean(-1, keepdim=True)).to(x.dtype)
    return out


#: Shapes and dtypes of the arguments, by kernel; factors of products are scaled so that sums stay small.
CASES: dict[str, tuple[tuple[tuple[int, ...], torch.dtype], ...]] = {
    "product_relu": (((4096, 2048), torch.bfloat16), ((2048, 3072), torch.bfloat16)),
    "l1_normalize": (((16384, 5120), torch.bfloat16),),
    "mean_square_tiled": (((8192, 12000), torch.bfloat16),),
    "channel_scale": (((8192, 4096), torch.bfloat16), ((4096,), torch.bfloat16)),
    "column_max": (((16384, 2048), torch.bfloat16),),
    "product_scaled_rows": (
        ((1000, 4096), torch.bfloat16),
        ((4096, 1536), torch.bfloat16),
        ((1000,), torch.bfloat16),
    ),
    "row_range": (((4097, 20000), torch.float32),),
    "softplus_rows": (((32768, 1000), torch.bfloat16),),
    "two_outputs": (((8191, 4097), torch.bfloat16),),
    "residual_silu": (((4096, 8192), torch.bfloat16), ((4096, 8192), torch.bfloat16)),
}


def arguments(name: str, device: str, shrink: int = 1) -> tuple[torch.Tensor, ...]:
    """Repeatable arguments of a kernel, with dimensions divided by ``shrink``."""
    torch.manual_seed(0)
    return tuple(
        torch.randn(*(max(1, size // shrink) for size in shape)).mul(0.5).to(dtype).to(device)
        for shape, dtype in CASES[name]
    )
