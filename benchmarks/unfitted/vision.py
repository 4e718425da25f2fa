"""Vision: regions, boxes, windows and bytes of images."""

from __future__ import annotations

import math

import torch

import helion
import helion.language as hl

from .cell import BF16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def roi_align(features: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    """Means of four bilinear samples in each of 7 by 7 cells of boxes `[N, 4]`, from features `[H, W, C]`."""
    h, w, c = features.size()
    n = boxes.size(0)
    pixels = features.view(h * w, c)
    out = torch.empty([n, 49, c], dtype=features.dtype, device=features.device)
    for box, cell, channels in hl.tile([n, 49, c], block_size=[1, None, None]):
        left, top = boxes[box.begin, 0], boxes[box.begin, 1]
        step_x, step_y = (boxes[box.begin, 2] - left) / 7, (boxes[box.begin, 3] - top) / 7
        acc = hl.zeros([cell, channels])
        for sy in hl.static_range(2):
            for sx in hl.static_range(2):
                y = torch.clamp(top + (cell.index // 7 + (0.25 + 0.5 * sy)) * step_y, 0.0, h - 1.0)
                x = torch.clamp(left + (cell.index % 7 + (0.25 + 0.5 * sx)) * step_x, 0.0, w - 1.0)
                y0, x0 = torch.floor(y), torch.floor(x)
                fy, fx = (y - y0)[:, None], (x - x0)[:, None]
                iy, ix = y0.to(torch.int32), x0.to(torch.int32)
                iy1, ix1 = torch.clamp(iy + 1, max=h - 1), torch.clamp(ix + 1, max=w - 1)
                acc += (1 - fy) * (1 - fx) * pixels[iy * w + ix, channels].to(torch.float32)
                acc += (1 - fy) * fx * pixels[iy * w + ix1, channels].to(torch.float32)
                acc += fy * (1 - fx) * pixels[iy1 * w + ix, channels].to(torch.float32)
                acc += fy * fx * pixels[iy1 * w + ix1, channels].to(torch.float32)
        out[box.begin, cell, channels] = (acc * 0.25).to(features.dtype)
    return out.view(n, 7, 7, c)


def roi_align_torch(features: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    h, w, _ = features.shape
    at = (torch.arange(14, device=boxes.device) + 0.5) / 14
    x = (boxes[:, 0:1] + at * (boxes[:, 2:3] - boxes[:, 0:1])).clamp(0, w - 1)[:, None, :]
    y = (boxes[:, 1:2] + at * (boxes[:, 3:4] - boxes[:, 1:2])).clamp(0, h - 1)[:, :, None]
    y0, x0 = y.floor(), x.floor()
    fy, fx = (y - y0)[..., None], (x - x0)[..., None]
    iy, ix = y0.long(), x0.long()
    iy1, ix1 = (iy + 1).clamp(max=h - 1), (ix + 1).clamp(max=w - 1)
    wide = high(features)
    got = (1 - fy) * ((1 - fx) * wide[iy, ix] + fx * wide[iy, ix1])
    got = got + fy * ((1 - fx) * wide[iy1, ix] + fx * wide[iy1, ix1])
    return got.unflatten(2, (7, 2)).unflatten(1, (7, 2)).mean((2, 4)).to(features.dtype)


def make_roi_align(device: str, small: bool) -> Arguments:
    h, w, c, n = (20, 31, 40, 5) if small else (200, 272, 256, 1000)
    corner = torch.rand([n, 2], device=device) * torch.tensor([w * 0.7, h * 0.7], device=device)
    size = torch.rand([n, 2], device=device) * torch.tensor([w * 0.3, h * 0.3], device=device)
    return normal(device, h, w, c, dtype=BF16), torch.cat([corner, corner + size], 1)


CELLS.add(roi_align, make_roi_align, roi_align_torch)


@helion.kernel
def suppress_words(boxes: torch.Tensor) -> torch.Tensor:
    """Bits of the later boxes of `[N, 4]` that overlap each box by more than a half, 32 to a word; N is a multiple of 32."""
    n = boxes.size(0)
    out = torch.empty([n, n // 32], dtype=torch.int32, device=boxes.device)
    for rows, words in hl.tile([n, n // 32]):
        left, top, right, bottom = (boxes[rows, i][:, None] for i in range(4))
        area = (right - left) * (bottom - top)
        word = hl.zeros([rows, words], dtype=torch.int32)
        for bit in range(32):
            other = words.index * 32 + bit
            x0, y0, x1, y1 = (boxes[other, i][None, :] for i in range(4))
            across = torch.clamp(torch.minimum(right, x1) - torch.maximum(left, x0), min=0.0)
            down = torch.clamp(torch.minimum(bottom, y1) - torch.maximum(top, y0), min=0.0)
            shared = across * down
            union = area + (x1 - x0) * (y1 - y0) - shared
            hit = (shared > 0.5 * union) & (other[None, :] > rows.index[:, None])
            word = word | (hit.to(torch.int32) << bit)
        out[rows, words] = word
    return out


def suppress_words_torch(boxes: torch.Tensor) -> torch.Tensor:
    a, b = boxes[:, None], boxes[None]
    size = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0)
    shared = size[..., 0] * size[..., 1]
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    hit = (shared > 0.5 * (area[:, None] + area[None] - shared)).triu(1)
    bits = hit.unflatten(1, (-1, 32)).to(torch.int64) << torch.arange(32, device=boxes.device)
    return bits.sum(-1).to(torch.int32)


def make_suppress_words(device: str, small: bool) -> Arguments:
    corner = torch.randint(0, 24, [96 if small else 4096, 2], device=device)
    size = torch.randint(4, 24, corner.shape, device=device)
    return (torch.cat([corner, corner + size], 1).to(torch.float32),)


CELLS.add(suppress_words, make_suppress_words, suppress_words_torch)


@helion.kernel
def ssim(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Structural similarity of images `[B, H, W]` with values from 0 to 1, in windows of 7 by 7."""
    b, h, w = x.size()
    out = torch.empty([b, h - 6, w - 6], dtype=torch.float32, device=x.device)
    for tile_b, rows, columns in hl.tile([b, h - 6, w - 6]):
        sx, sy = hl.zeros([tile_b, rows, columns]), hl.zeros([tile_b, rows, columns])
        xx, yy = hl.zeros([tile_b, rows, columns]), hl.zeros([tile_b, rows, columns])
        xy = hl.zeros([tile_b, rows, columns])
        for dy in hl.static_range(7):
            for dx in hl.static_range(7):
                p = x[tile_b, rows.index + dy, columns.index + dx]
                q = y[tile_b, rows.index + dy, columns.index + dx]
                sx, sy = sx + p, sy + q
                xx, yy, xy = xx + p * p, yy + q * q, xy + p * q
        mx, my = sx / 49, sy / 49
        vx, vy, cov = xx / 49 - mx * mx, yy / 49 - my * my, xy / 49 - mx * my
        top = (2 * mx * my + 0.0001) * (2 * cov + 0.0009)
        out[tile_b, rows, columns] = top / ((mx * mx + my * my + 0.0001) * (vx + vy + 0.0009))
    return out


def ssim_torch(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    def mean(t: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.avg_pool2d(t[:, None], 7, 1)[:, 0]

    mx, my = mean(x), mean(y)
    vx, vy, cov = mean(x * x) - mx * mx, mean(y * y) - my * my, mean(x * y) - mx * my
    top = (2 * mx * my + 0.0001) * (2 * cov + 0.0009)
    return top / ((mx * mx + my * my + 0.0001) * (vx + vy + 0.0009))


def make_ssim(device: str, small: bool) -> Arguments:
    shape = (2, 20, 41) if small else (16, 720, 1280)
    x = torch.rand(shape, device=device)
    return x, x * 0.7 + 0.3 * torch.rand(shape, device=device)


CELLS.add(ssim, make_ssim, ssim_torch)


@helion.kernel
def sobel_edges(image: torch.Tensor, threshold: int) -> torch.Tensor:
    """Bytes of 255 where the gradient of the inner pixels of `[H, W]` exceeds a threshold, and of 0 elsewhere."""
    h, w = image.size()
    out = torch.empty([h - 2, w - 2], dtype=torch.uint8, device=image.device)
    for rows, columns in hl.tile([h - 2, w - 2]):
        gx = hl.zeros([rows, columns], dtype=torch.int32)
        gy = hl.zeros([rows, columns], dtype=torch.int32)
        for dy in hl.static_range(3):
            for dx in hl.static_range(3):
                p = image[rows.index + dy, columns.index + dx].to(torch.int32)
                gx += p * ((dx - 1) * (2 - abs(dy - 1)))
                gy += p * ((dy - 1) * (2 - abs(dx - 1)))
        out[rows, columns] = torch.where(torch.abs(gx) + torch.abs(gy) > threshold, 255, 0).to(torch.uint8)
    return out


def sobel_edges_torch(image: torch.Tensor, threshold: int) -> torch.Tensor:
    h, w = image.shape
    gx, gy = 0, 0
    for dy in range(3):
        for dx in range(3):
            p = image[dy : dy + h - 2, dx : dx + w - 2].int()
            gx = gx + p * ((dx - 1) * (2 - abs(dy - 1)))
            gy = gy + p * ((dy - 1) * (2 - abs(dx - 1)))
    return torch.where(abs(gx) + abs(gy) > threshold, 255, 0).to(torch.uint8)


CELLS.add(
    sobel_edges,
    lambda device, small: (
        torch.randint(0, 256, (33, 70) if small else (4320, 7680), device=device, dtype=torch.uint8),
        300,
    ),
    sobel_edges_torch,
)


@helion.kernel
def bilateral(image: torch.Tensor, strength: float) -> torch.Tensor:
    """Means of 5 by 5 pixels around the inner ones of `[H, W]`, by weights of distance and of difference."""
    h, w = image.size()
    out = torch.empty([h - 4, w - 4], dtype=image.dtype, device=image.device)
    for rows, columns in hl.tile([h - 4, w - 4]):
        centre = image[rows.index + 2, columns.index + 2].to(torch.float32)
        total, norm = hl.zeros([rows, columns]), hl.zeros([rows, columns])
        for dy in hl.static_range(5):
            for dx in hl.static_range(5):
                p = image[rows.index + dy, columns.index + dx].to(torch.float32)
                near = math.exp(-((dy - 2) ** 2 + (dx - 2) ** 2) / 4.5)
                weight = near * torch.exp(-strength * (p - centre) * (p - centre))
                total, norm = total + weight * p, norm + weight
        out[rows, columns] = (total / norm).to(image.dtype)
    return out


def bilateral_torch(image: torch.Tensor, strength: float) -> torch.Tensor:
    h, w = image.shape
    centre = high(image)[2 : h - 2, 2 : w - 2]
    total, norm = torch.zeros_like(centre), torch.zeros_like(centre)
    for dy in range(5):
        for dx in range(5):
            p = high(image)[dy : dy + h - 4, dx : dx + w - 4]
            weight = math.exp(-((dy - 2) ** 2 + (dx - 2) ** 2) / 4.5) * torch.exp(-strength * (p - centre) ** 2)
            total, norm = total + weight * p, norm + weight
    return (total / norm).to(image.dtype)


CELLS.add(
    bilateral,
    lambda device, small: (torch.rand((33, 70) if small else (4096, 4096), device=device).to(torch.float16), 8.0),
    bilateral_torch,
)


@helion.kernel
def planar_normalize(pixels: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Bytes `[B, H, W, 3]`, centred and scaled for each channel, as planes `[B, 3, H, W]` in bf16."""
    b, h, w, _ = pixels.size()
    out = torch.empty([b, 3, h, w], dtype=torch.bfloat16, device=pixels.device)
    for tile_b, rows, columns in hl.tile([b, h, w]):
        for channel in hl.static_range(3):
            value = pixels[tile_b, rows, columns, channel].to(torch.float32)
            out[tile_b, channel, rows, columns] = ((value - mean[channel]) * scale[channel]).to(torch.bfloat16)
    return out


CELLS.add(
    planar_normalize,
    lambda device, small: (
        torch.randint(0, 256, (*((2, 17, 33) if small else (128, 224, 224)), 3), device=device, dtype=torch.uint8),
        torch.rand([3], device=device) * 100 + 80,
        torch.rand([3], device=device) / 64,
    ),
    lambda pixels, mean, scale: ((pixels - mean) * scale).permute(0, 3, 1, 2).to(BF16).contiguous(),
)
