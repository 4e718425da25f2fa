"""Filters of images and volumes: blurs, pools, pyramids and mosaics."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, FP16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def box_blur(x: torch.Tensor, radius: int) -> torch.Tensor:
    """Mean over a square of pixels of `x[N, H, W, C]`; pixels outside count as 0."""
    n, h, w, c = x.size()
    out = torch.empty_like(x)
    for tn, th, tw, tc in hl.tile([n, h, w, c], block_size=[1, None, None, None]):
        acc = hl.zeros([th, tw, tc], dtype=torch.float32)
        for i in range(-radius, radius + 1):
            for j in range(-radius, radius + 1):
                rows, columns = th.index + i, tw.index + j
                ok = ((rows >= 0) & (rows < h))[:, None, None] & ((columns >= 0) & (columns < w))[None, :, None]
                acc += hl.load(x, [tn.begin, rows, columns, tc], extra_mask=ok).to(torch.float32)
        side = 2 * radius + 1
        out[tn.begin, th, tw, tc] = (acc / (side * side)).to(x.dtype)
    return out


def box_blur_torch(x: torch.Tensor, radius: int) -> torch.Tensor:
    return F.avg_pool2d(x.permute(0, 3, 1, 2), 2 * radius + 1, 1, radius).permute(0, 2, 3, 1)


CELLS.add(
    box_blur,
    lambda device, small: (normal(device, *((2, 11, 17, 5) if small else (8, 224, 224, 64)), dtype=FP16), 2),
    box_blur_torch,
)


@helion.kernel
def dilated_depthwise(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """3x3 depthwise convolution of `x[N, C, H, W]` with dilation 2, stride 2 and padding 2, and a relu."""
    n, c, h, width = x.size()
    oh, ow = (h - 1) // 2 + 1, (width - 1) // 2 + 1
    out = torch.empty([n, c, oh, ow], dtype=x.dtype, device=x.device)
    for tn, tc, th, tw in hl.tile([n, c, oh, ow], block_size=[1, 1, None, None]):
        acc = hl.zeros([th, tw], dtype=torch.float32) + bias[tc.begin].to(torch.float32)
        for i in hl.static_range(3):
            for j in hl.static_range(3):
                rows, columns = th.index * 2 + (i * 2 - 2), tw.index * 2 + (j * 2 - 2)
                ok = ((rows >= 0) & (rows < h))[:, None] & ((columns >= 0) & (columns < width))[None, :]
                v = hl.load(x, [tn.begin, tc.begin, rows, columns], extra_mask=ok).to(torch.float32)
                acc += v * w[tc.begin, i, j].to(torch.float32)
        out[tn.begin, tc.begin, th, tw] = torch.relu(acc).to(x.dtype)
    return out


def dilated_depthwise_torch(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.relu(F.conv2d(x, w[:, None], bias, stride=2, padding=2, dilation=2, groups=x.size(1)))


def make_dilated_depthwise(device: str, small: bool) -> Arguments:
    n, c, h = (2, 5, 23) if small else (32, 96, 112)
    return (
        normal(device, n, c, h, h, dtype=FP16),
        normal(device, c, 3, 3, dtype=FP16, scale=0.3),
        normal(device, c, dtype=FP16),
    )


CELLS.add(dilated_depthwise, make_dilated_depthwise, dilated_depthwise_torch)


@helion.kernel
def unsharp(x: torch.Tensor, amount: float) -> torch.Tensor:
    """Unsharp mask of uint8 pixels `[N, H, W, 3]` with the kernel (1, 2, 1) in both directions, clamped borders."""
    n, h, w, _c = x.size()
    out = torch.empty_like(x)
    for tn, th, tw in hl.tile([n, h, w]):
        here = x[tn, th, tw, :].to(torch.float32)
        blurred = torch.zeros_like(here)
        for i in hl.static_range(3):
            for j in hl.static_range(3):
                rows = torch.clamp(th.index + (i - 1), 0, h - 1)
                columns = torch.clamp(tw.index + (j - 1), 0, w - 1)
                weight = (2 - abs(i - 1)) * (2 - abs(j - 1)) / 16
                blurred += weight * x[tn, rows, columns, :].to(torch.float32)
        sharp = here + amount * (here - blurred)
        out[tn, th, tw, :] = torch.clamp(torch.floor(sharp + 0.5), 0, 255).to(torch.uint8)
    return out


def unsharp_torch(x: torch.Tensor, amount: float) -> torch.Tensor:
    v = x.permute(0, 3, 1, 2).float()
    k = torch.tensor([1.0, 2.0, 1.0], device=x.device)
    k = (k[:, None] * k[None, :] / 16).expand(3, 1, 3, 3)
    b = F.conv2d(F.pad(v, [1, 1, 1, 1], mode="replicate"), k, groups=3)
    return torch.clamp(torch.floor(v + amount * (v - b) + 0.5), 0, 255).to(torch.uint8).permute(0, 2, 3, 1)


CELLS.add(
    unsharp,
    lambda device, small: (
        torch.randint(0, 256, [2, 13, 21, 3] if small else [16, 720, 1280, 3], device=device, dtype=torch.uint8),
        0.5,
    ),
    unsharp_torch,
)


@helion.kernel
def demosaic(raw: torch.Tensor, gains: torch.Tensor) -> torch.Tensor:
    """Half-size RGB `[N, 3, H / 2, W / 2]` of an RGGB mosaic of uint16 in int32, a gain for each color, in fp16."""
    n, h, w = raw.size()
    cells = raw.view(n, h // 2, 2, w // 2, 2)
    out = torch.empty([n, 3, h // 2, w // 2], dtype=torch.float16, device=raw.device)
    for tn, th, tw in hl.tile([n, h // 2, w // 2]):
        r = cells[tn, th, 0, tw, 0].to(torch.float32)
        g = (cells[tn, th, 0, tw, 1].to(torch.float32) + cells[tn, th, 1, tw, 0].to(torch.float32)) * 0.5
        b = cells[tn, th, 1, tw, 1].to(torch.float32)
        out[tn, 0, th, tw] = (r * gains[0]).to(torch.float16)
        out[tn, 1, th, tw] = (g * gains[1]).to(torch.float16)
        out[tn, 2, th, tw] = (b * gains[2]).to(torch.float16)
    return out


def demosaic_torch(raw: torch.Tensor, gains: torch.Tensor) -> torch.Tensor:
    v = raw.to(gains.dtype)
    g = (v[:, ::2, 1::2] + v[:, 1::2, ::2]) * 0.5
    return (torch.stack([v[:, ::2, ::2], g, v[:, 1::2, 1::2]], 1) * gains[:, None, None]).to(torch.float16)


def make_demosaic(device: str, small: bool) -> Arguments:
    shape = [2, 14, 22] if small else [8, 2160, 3840]
    return torch.randint(0, 4096, shape, device=device, dtype=torch.int32), torch.rand([3], device=device) / 1024


CELLS.add(demosaic, make_demosaic, demosaic_torch)


@helion.kernel
def perceptual_distance(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """`sum_c w (x / |x| - y / |y|)**2` at each pixel of `[N, C, P]`, norms over channels."""
    n, _c, p = x.size()
    out = torch.empty([n, p], dtype=torch.float32, device=x.device)
    for tn, tp in hl.tile([n, p]):
        a, b = x[tn, :, tp].to(torch.float32), y[tn, :, tp].to(torch.float32)
        ra = torch.rsqrt((a * a).sum(1) + 1e-10)
        rb = torch.rsqrt((b * b).sum(1) + 1e-10)
        diff = a * ra[:, None, :] - b * rb[:, None, :]
        out[tn, tp] = (diff * diff * w[:].to(torch.float32)[None, :, None]).sum(1)
    return out


def perceptual_distance_torch(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    a, b = high(x), high(y)
    a = a * torch.rsqrt((a * a).sum(1, keepdim=True) + 1e-10)
    b = b * torch.rsqrt((b * b).sum(1, keepdim=True) + 1e-10)
    return ((a - b) ** 2 * high(w)[:, None]).sum(1)


def make_perceptual_distance(device: str, small: bool) -> Arguments:
    n, c, p = (3, 20, 63) if small else (16, 192, 56 * 56)
    return (
        normal(device, n, c, p, dtype=BF16),
        normal(device, n, c, p, dtype=BF16),
        torch.rand([c], device=device).to(BF16),
    )


CELLS.add(perceptual_distance, make_perceptual_distance, perceptual_distance_torch)


@helion.kernel
def pyramid_merge(lateral: torch.Tensor, coarse: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """`lateral[N, H, W, C] + bias[C]` plus the coarse map `[N, H / 2, W / 2, C]`, each pixel repeated."""
    n, h, w, c = lateral.size()
    out = torch.empty_like(lateral)
    for tn, th, tw, tc in hl.tile([n, h, w, c]):
        up = coarse[tn, th.index // 2, tw.index // 2, tc]
        out[tn, th, tw, tc] = lateral[tn, th, tw, tc] + bias[tc][None, None, None, :] + up
    return out


def pyramid_merge_torch(lateral: torch.Tensor, coarse: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    up = coarse.repeat_interleave(2, 1).repeat_interleave(2, 2)
    return lateral + bias + up


def make_pyramid_merge(device: str, small: bool) -> Arguments:
    n, h, w, c = (2, 6, 10, 33) if small else (8, 100, 152, 256)
    return (
        normal(device, n, h, w, c, dtype=FP16),
        normal(device, n, h // 2, w // 2, c, dtype=FP16),
        normal(device, c, dtype=FP16),
    )


CELLS.add(pyramid_merge, make_pyramid_merge, pyramid_merge_torch)


@helion.kernel
def max_unpool(values: torch.Tensor, places: torch.Tensor, h: int, w: int) -> torch.Tensor:
    """Place pooled values `[P, h, w]` at the int64 places of their planes; all other pixels are 0."""
    p, oh, ow = values.size()
    out = torch.zeros([p, h * w], dtype=values.dtype, device=values.device)
    flat = out.view(-1)
    for tp, ti, tj in hl.tile([p, oh, ow]):
        at = places[tp, ti, tj] + tp.index[:, None, None] * (h * w)
        hl.store(flat, [at], values[tp, ti, tj])
    return out.view(p, h, w)


def max_unpool_torch(values: torch.Tensor, places: torch.Tensor, h: int, w: int) -> torch.Tensor:
    out = torch.zeros([values.size(0), h * w], dtype=values.dtype, device=values.device)
    return out.scatter(1, places.flatten(1), values.flatten(1)).view(-1, h, w)


def make_max_unpool(device: str, small: bool) -> Arguments:
    p, h, w = (5, 12, 18) if small else (2048, 112, 112)
    v, at = F.max_pool2d(normal(device, 1, p, h, w), 2, return_indices=True)
    return v[0], at[0], h, w


CELLS.add(max_unpool, make_max_unpool, max_unpool_torch)


@helion.kernel
def census(x: torch.Tensor) -> torch.Tensor:
    """Bits of a 5x5 neighbourhood that say which pixels are darker than the centre, 0 outside of the image."""
    n, h, w = x.size()
    out = torch.empty([n, h, w], dtype=torch.int32, device=x.device)
    for tn, th, tw in hl.tile([n, h, w]):
        here = x[tn, th, tw]
        bits = hl.zeros([tn, th, tw], dtype=torch.int32)
        for i in hl.static_range(5):
            for j in hl.static_range(5):
                if i != 2 or j != 2:
                    rows, columns = th.index + (i - 2), tw.index + (j - 2)
                    ok = ((rows >= 0) & (rows < h))[None, :, None] & ((columns >= 0) & (columns < w))[None, None, :]
                    v = hl.load(x, [tn, rows, columns], extra_mask=ok)
                    bits = (bits << 1) | (v < here).to(torch.int32)
        out[tn, th, tw] = bits
    return out


def census_torch(x: torch.Tensor) -> torch.Tensor:
    n, h, w = x.size()
    p = F.pad(x, [2, 2, 2, 2])
    bits = torch.zeros([n, h, w], dtype=torch.int32, device=x.device)
    for i in range(5):
        for j in range(5):
            if (i, j) != (2, 2):
                bits = (bits << 1) | (p[:, i : i + h, j : j + w] < x).int()
    return bits


CELLS.add(census, lambda device, small: (normal(device, *((2, 15, 31) if small else (8, 1080, 1920))),), census_torch)


@helion.kernel
def volume_pool(x: torch.Tensor) -> torch.Tensor:
    """Mean over 2x2x2 blocks of `x[B, D, H, W]` with even sizes."""
    b, d, h, w = x.size()
    blocks = x.view(b, d // 2, 2, h // 2, 2, w // 2, 2)
    out = torch.empty([b, d // 2, h // 2, w // 2], dtype=x.dtype, device=x.device)
    for tb, td, th, tw in hl.tile(out.size()):
        acc = hl.zeros([tb, td, th, tw], dtype=torch.float32)
        for i in hl.static_range(2):
            for j in hl.static_range(2):
                acc += blocks[tb, td, i, th, j, tw, :].to(torch.float32).sum(-1)
        out[tb, td, th, tw] = (acc * 0.125).to(x.dtype)
    return out


CELLS.add(
    volume_pool,
    lambda device, small: (normal(device, *((3, 4, 6, 22) if small else (64, 64, 128, 128)), dtype=BF16),),
    lambda x: F.avg_pool3d(high(x)[:, None], 2)[:, 0].to(x.dtype),
)
