"""Convolutions as matmuls."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, Cells, normal

CELLS = Cells()


@helion.kernel
def separable_conv1d(x: torch.Tensor, taps: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Depthwise causal convolution of `x[B, T, C]` with `taps[5, C]`, silu, then `@ w[C, D]`."""
    b, t, c = x.size()
    n = taps.size(0)
    d = w.size(1)
    n = hl.specialize(n)
    out = torch.empty([b, t, d], dtype=x.dtype, device=x.device)
    for tile_b, tile_t, tile_d in hl.tile([b, t, d], block_size=[1, None, None]):
        acc = hl.zeros([tile_t, tile_d], dtype=torch.float32)
        for tile_c in hl.tile(c):
            mixed = hl.zeros([tile_t, tile_c], dtype=torch.float32)
            for tap in hl.static_range(n):
                at = tile_t.index - (n - 1 - tap)
                rows = hl.load(x, [tile_b.begin, at, tile_c], extra_mask=(at >= 0)[:, None])
                mixed = mixed + rows.to(torch.float32) * taps[tap, tile_c].to(torch.float32)[None, :]
            acc = hl.dot(F.silu(mixed).to(x.dtype), w[tile_c, tile_d], acc=acc)
        out[tile_b.begin, tile_t, tile_d] = acc.to(x.dtype)
    return out


def separable_conv1d_torch(x: torch.Tensor, taps: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    n, c = taps.size()
    y = F.conv1d(F.pad(x.transpose(1, 2), [n - 1, 0]), taps.T[:, None].contiguous(), groups=c)
    return F.silu(y).transpose(1, 2) @ w


CELLS.add(
    separable_conv1d,
    lambda device, small: (
        normal(device, *((2, 37, 48) if small else (8, 4096, 512)), dtype=BF16),
        normal(device, 5, 48 if small else 512, dtype=BF16),
        normal(device, *((48, 33) if small else (512, 512)), dtype=BF16, scale=0.1),
    ),
    separable_conv1d_torch,
)


@helion.kernel
def patch_embed(images: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """Patches of 16 by 16 of `images[B, 3, H, W]` times `w[3, 16, 16, D]`, plus embeddings of places."""
    b, c, h, wd = images.size()
    d = w.size(3)
    rows, cols = h // 16, wd // 16
    hl.specialize(w.size(2))
    lines = images.view(b, c, rows * 16 * cols, 16)
    out = torch.empty([b, rows * cols, d], dtype=images.dtype, device=images.device)
    for tile_b, tile_p, tile_d in hl.tile([b, rows * cols, d], block_size=[1, None, None]):
        acc = hl.zeros([tile_p, tile_d], dtype=torch.float32)
        row, col = tile_p.index // cols, tile_p.index % cols
        for channel in hl.static_range(3):
            for y in hl.grid(16):
                patch = lines[tile_b.begin, channel, (row * 16 + y) * cols + col, :]
                acc = hl.dot(patch, w[channel, y, :, tile_d], acc=acc)
        v = acc + bias[tile_d].to(torch.float32) + place[tile_p, tile_d].to(torch.float32)
        out[tile_b.begin, tile_p, tile_d] = v.to(images.dtype)
    return out


def patch_embed_torch(images: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    y = F.conv2d(images, w.permute(3, 0, 1, 2), bias, stride=16)
    return y.flatten(2).transpose(1, 2) + place


CELLS.add(
    patch_embed,
    lambda device, small: (
        normal(device, *((2, 3, 48, 64) if small else (64, 3, 224, 224)), dtype=BF16),
        normal(device, 3, 16, 16, 33 if small else 768, dtype=BF16, scale=0.05),
        normal(device, 33 if small else 768, dtype=BF16),
        normal(device, *((12, 33) if small else (196, 768)), dtype=BF16),
    ),
    patch_embed_torch,
)


@helion.kernel
def transposed_conv1d(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Transposed convolution of stride 2 and 4 taps of `x[B, T, C]` with `w[4, C, D]`: even and odd places."""
    b, t, c = x.size()
    d = w.size(2)
    out = torch.empty([b, t + 1, 2, d], dtype=x.dtype, device=x.device)
    for tile_b, tile_t, tile_d in hl.tile([b, t + 1, d], block_size=[1, None, None]):
        even = hl.zeros([tile_t, tile_d], dtype=torch.float32)
        odd = hl.zeros([tile_t, tile_d], dtype=torch.float32)
        for tile_c in hl.tile(c):
            at = tile_t.index
            new = hl.load(x, [tile_b.begin, at, tile_c], extra_mask=(at < t)[:, None])
            old = hl.load(x, [tile_b.begin, at - 1, tile_c], extra_mask=(at > 0)[:, None])
            even = torch.addmm(even, new, w[0, tile_c, tile_d])
            even = torch.addmm(even, old, w[2, tile_c, tile_d])
            odd = torch.addmm(odd, new, w[1, tile_c, tile_d])
            odd = torch.addmm(odd, old, w[3, tile_c, tile_d])
        out[tile_b.begin, tile_t, 0, tile_d] = even.to(x.dtype)
        out[tile_b.begin, tile_t, 1, tile_d] = odd.to(x.dtype)
    return out.view(b, 2 * (t + 1), d)


def transposed_conv1d_torch(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.conv_transpose1d(x.transpose(1, 2), w.permute(1, 2, 0), stride=2).transpose(1, 2).contiguous()


CELLS.add(
    transposed_conv1d,
    lambda device, small: (
        normal(device, *((2, 21, 40) if small else (16, 2048, 512)), dtype=BF16),
        normal(device, *((4, 40, 33) if small else (4, 512, 256)), dtype=BF16, scale=0.05),
    ),
    transposed_conv1d_torch,
)
