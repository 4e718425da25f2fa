"""Crops and poolings of pictures, matchings, overlaps of masks, 4-bit floats, and sets of the plane."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, E4M3, FP16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def crops_and_flips(
    pixels: torch.Tensor, tops: torch.Tensor, lefts: torch.Tensor, flips: torch.Tensor, size: int
) -> torch.Tensor:
    """Return planes `[B, 3, size, size]` from -1 to 1 in fp16, of parts of bytes `[B, H, W, 3]`, some of them
    mirrored."""
    b, _, _, c = pixels.size()
    out = torch.empty([b, c, size, size], dtype=torch.float16, device=pixels.device)
    for bi, tile_h, tile_w in hl.tile([b, size, size], block_size=[1, None, None]):
        i = bi.begin
        columns = torch.where(flips[i], size - 1 - tile_w.index, tile_w.index) + lefts[i]
        rows = tile_h.index + tops[i]
        v = pixels[i, rows[:, None], columns[None, :], :].to(torch.float32) / 127.5 - 1.0
        out[i, :, tile_h, tile_w] = v.permute(2, 0, 1).to(torch.float16)
    return out


def crops_and_flips_torch(
    pixels: torch.Tensor, tops: torch.Tensor, lefts: torch.Tensor, flips: torch.Tensor, size: int
) -> torch.Tensor:
    at = torch.arange(size, device=pixels.device)
    columns = torch.where(flips[:, None], size - 1 - at, at) + lefts[:, None]
    rows = at + tops[:, None]
    batch = torch.arange(pixels.size(0), device=pixels.device)[:, None, None]
    v = pixels[batch, rows[:, :, None], columns[:, None, :]]
    return (v.permute(0, 3, 1, 2).to(torch.float32) / 127.5 - 1.0).to(FP16).contiguous()


def make_crops_and_flips(device: str, small: bool) -> Arguments:
    b, h, w, size = (3, 12, 15, 7) if small else (256, 256, 288, 224)
    pixels = torch.randint(0, 256, [b, h, w, 3], device=device, dtype=torch.uint8)
    tops = torch.randint(0, h - size + 1, [b], device=device, dtype=torch.int32)
    lefts = torch.randint(0, w - size + 1, [b], device=device, dtype=torch.int32)
    return pixels, tops, lefts, torch.rand([b], device=device) < 0.5, size


CELLS.add(crops_and_flips, make_crops_and_flips, crops_and_flips_torch)


@helion.kernel
def max_pool_places(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return maxima of 3x3 windows of stride 2 and padding 1 of `x[N, H, W, C]`, and where in its window each one
    is."""
    n, h, w, c = x.size()
    oh, ow = (h + 1) // 2, (w + 1) // 2
    out = torch.empty([n, oh, ow, c], dtype=x.dtype, device=x.device)
    places = torch.empty([n, oh, ow, c], dtype=torch.int8, device=x.device)
    for tile_n, tile_h, tile_w, tile_c in hl.tile([n, oh, ow, c]):
        best = hl.full([tile_n, tile_h, tile_w, tile_c], float("-inf"), dtype=torch.float32)
        place = hl.zeros([tile_n, tile_h, tile_w, tile_c], dtype=torch.int8)
        for k in hl.static_range(9):
            rows = tile_h.index * 2 + (k // 3 - 1)
            columns = tile_w.index * 2 + (k % 3 - 1)
            inside = ((rows >= 0) & (rows < h))[:, None] & ((columns >= 0) & (columns < w))[None, :]
            mask = inside[None, :, :, None]
            v = hl.load(x, [tile_n, rows, columns, tile_c], extra_mask=mask).to(torch.float32)
            better = mask & (v > best)
            best = torch.where(better, v, best)
            place = torch.where(better, k, place).to(torch.int8)
        out[tile_n, tile_h, tile_w, tile_c] = best.to(x.dtype)
        places[tile_n, tile_h, tile_w, tile_c] = place
    return out, places


def max_pool_places_torch(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    h, w = x.size(1), x.size(2)
    padded = F.pad(high(x), (0, 0, 1, 1, 1, 1), value=-torch.inf)
    near = [padded[:, i : i + h : 2, j : j + w : 2] for i in range(3) for j in range(3)]
    best, place = torch.stack(near).max(0)
    return best.to(x.dtype), place.to(torch.int8)


def make_max_pool_places(device: str, small: bool) -> Arguments:
    shape = (2, 7, 10, 19) if small else (64, 112, 112, 64)
    return (torch.rand(shape, device=device).to(BF16),)


CELLS.add(max_pool_places, make_max_pool_places, max_pool_places_torch)


@helion.kernel
def soft_dice(logits: torch.Tensor, masks: torch.Tensor, smooth: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return dice losses `[N]` of sigmoids of logits `[N, P]` and masks of bytes, and their gradients for the
    logits."""
    n, p = logits.size()
    loss = torch.empty([n], dtype=torch.float32, device=logits.device)
    grad = torch.empty_like(logits)
    for tile_n in hl.tile(n):
        both = hl.zeros([tile_n], dtype=torch.float32)
        total = hl.zeros([tile_n], dtype=torch.float32)
        for tile_p in hl.tile(p):
            s = torch.sigmoid(logits[tile_n, tile_p].to(torch.float32))
            m = masks[tile_n, tile_p].to(torch.float32)
            both += (s * m).sum(1)
            total += (s + m).sum(1)
        upper, lower = 2.0 * both + smooth, total + smooth
        loss[tile_n] = 1.0 - upper / lower
        for tile_p in hl.tile(p):
            s = torch.sigmoid(logits[tile_n, tile_p].to(torch.float32))
            m = masks[tile_n, tile_p].to(torch.float32)
            slope = (upper[:, None] - 2.0 * m * lower[:, None]) / (lower * lower)[:, None]
            grad[tile_n, tile_p] = (slope * s * (1.0 - s)).to(logits.dtype)
    return loss, grad


def soft_dice_torch(logits: torch.Tensor, masks: torch.Tensor, smooth: float) -> tuple[torch.Tensor, torch.Tensor]:
    s = torch.sigmoid(high(logits))
    m = masks.to(s.dtype)
    upper, lower = 2.0 * (s * m).sum(1) + smooth, (s + m).sum(1) + smooth
    slope = (upper[:, None] - 2.0 * m * lower[:, None]) / (lower * lower)[:, None]
    return 1.0 - upper / lower, (slope * s * (1.0 - s)).to(logits.dtype)


def make_soft_dice(device: str, small: bool) -> Arguments:
    shape = (5, 1000) if small else (256, 256 * 256)
    return normal(device, *shape, dtype=BF16), torch.randint(0, 2, shape, device=device, dtype=torch.uint8), 1.0


CELLS.add(soft_dice, make_soft_dice, soft_dice_torch)


@helion.kernel
def dual_softmax(scores: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return softmax along rows times softmax along columns of `scores[B, M, N]`, and the best of each row of the
    product."""
    b, m, n = scores.size()
    columns_lse = torch.empty([b, n], dtype=torch.float32, device=scores.device)
    out = torch.empty_like(scores)
    best = torch.empty([b, m], dtype=torch.float32, device=scores.device)
    for tile_b, tile_n in hl.tile([b, n]):
        top = hl.full([tile_b, tile_n], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_b, tile_n], dtype=torch.float32)
        for tile_m in hl.tile(m):
            x = scores[tile_b, tile_m, tile_n].to(torch.float32) / temperature
            new = torch.maximum(top, torch.amax(x, 1))
            total = total * torch.exp(top - new) + torch.exp(x - new[:, None, :]).sum(1)
            top = new
        columns_lse[tile_b, tile_n] = top + torch.log(total)
    hl.barrier()
    for tile_b, tile_m in hl.tile([b, m]):
        x = scores[tile_b, tile_m, :].to(torch.float32) / temperature
        rows_lse = torch.logsumexp(x, 2)
        p = torch.exp(2.0 * x - rows_lse[:, :, None] - columns_lse[tile_b, :][:, None, :])
        out[tile_b, tile_m, :] = p.to(scores.dtype)
        best[tile_b, tile_m] = torch.amax(p, 2)
    return out, best


def dual_softmax_torch(scores: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    x = high(scores) / temperature
    p = torch.softmax(x, 1) * torch.softmax(x, 2)
    return p.to(scores.dtype), p.amax(2)


CELLS.add(
    dual_softmax,
    lambda device, small: (normal(device, *((2, 37, 53) if small else (4, 2400, 2400)), dtype=FP16), 0.4),
    dual_softmax_torch,
)


@helion.kernel
def pack_fp4(x: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes of 4-bit floats (sign, 2 bits of exponent, 1 of mantissa), two a byte, of `x[M, G, 16]`; e4m3
    scales."""
    m, groups, _ = x.size()
    pairs = x.view(m, groups, 8, 2)
    codes = torch.empty([m, groups, 8], dtype=torch.uint8, device=x.device)
    scales = torch.empty([m, groups], dtype=torch.float8_e4m3fn, device=x.device)
    for tile_m, tile_g in hl.tile([m, groups]):
        v = pairs[tile_m, tile_g, :, :].to(torch.float32)
        largest = torch.amax(torch.amax(torch.abs(v), 3), 2)
        block = torch.clamp(largest / (6.0 * scale), 0.002, 448.0).to(torch.float8_e4m3fn)
        scales[tile_m, tile_g] = block
        q = v / (block.to(torch.float32) * scale)[:, :, None, None]
        size = torch.abs(q)
        code = torch.where(q < 0, 8, 0)
        for edge in hl.static_range(7):
            limit = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)[edge]
            code += (size > limit).to(torch.int32)
        low, top = hl.split(code)
        codes[tile_m, tile_g, :] = (low | (top << 4)).to(torch.uint8)
    return codes, scales


def pack_fp4_torch(x: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    v = high(x)
    block = torch.clamp(v.abs().amax(2) / (6.0 * scale), 0.002, 448.0).to(E4M3)
    q = v / (block.to(v.dtype) * scale)[..., None]
    edges = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], device=x.device, dtype=v.dtype)
    code = torch.bucketize(q.abs(), edges) + 8 * (q < 0)
    return (code[..., ::2] | (code[..., 1::2] << 4)).to(torch.uint8), block


CELLS.add(
    pack_fp4,
    lambda device, small: (normal(device, *((5, 7, 16) if small else (8192, 512, 16)), dtype=BF16), 0.01),
    pack_fp4_torch,
)


@helion.kernel
def escape_times(
    real: torch.Tensor, imag: torch.Tensor, center_real: float, center_imag: float, limit: int
) -> torch.Tensor:
    """Return number of steps `[H, W]` until `z * z + c` leaves a circle, for z at `real[W]` and `imag[H]`; at most
    ``limit``."""
    h, w = imag.size(0), real.size(0)
    out = torch.empty([h, w], dtype=torch.int16, device=real.device)
    for tile_h, tile_w in hl.tile([h, w]):
        x = real[tile_w][None, :] + hl.zeros([tile_h, tile_w])
        y = imag[tile_h][:, None] + hl.zeros([tile_h, tile_w])
        steps = hl.zeros([tile_h, tile_w], dtype=torch.int32)
        alive = x * x + y * y <= 4.0
        count = 0
        while (count < limit) and torch.any(alive):
            new_x = x * x - y * y + center_real
            new_y = 2.0 * x * y + center_imag
            x, y = torch.where(alive, new_x, x), torch.where(alive, new_y, y)
            steps += alive.to(torch.int32)
            alive = alive & (x * x + y * y <= 4.0)
            count += 1
        out[tile_h, tile_w] = steps.to(torch.int16)
    return out


def escape_times_torch(
    real: torch.Tensor, imag: torch.Tensor, center_real: float, center_imag: float, limit: int
) -> torch.Tensor:
    x, y = real[None, :].expand(imag.size(0), -1), imag[:, None].expand(-1, real.size(0))
    steps = torch.zeros_like(x, dtype=torch.int32)
    alive = x * x + y * y <= 4.0
    for _ in range(limit):
        new_x, new_y = x * x - y * y + center_real, 2.0 * x * y + center_imag
        x, y = torch.where(alive, new_x, x), torch.where(alive, new_y, y)
        steps = steps + alive
        alive = alive & (x * x + y * y <= 4.0)
    return steps.to(torch.int16)


def make_escape_times(device: str, small: bool) -> Arguments:
    h, w = (19, 37) if small else (3072, 4096)
    real, imag = torch.linspace(-1.6, 1.6, w, device=device), torch.linspace(-1.2, 1.2, h, device=device)
    return real, imag, -0.8, 0.156, 60


CELLS.add(escape_times, make_escape_times, escape_times_torch)


@helion.kernel
def in_polygons(points: torch.Tensor, corners: torch.Tensor) -> torch.Tensor:
    """Return bytes `[N, P]`: is a point of `[N, 2]` in a polygon of corners `[P, 2, K]`, by the parity of crossed
    edges."""
    n = points.size(0)
    p, _, k = corners.size()
    out = torch.empty([n, p], dtype=torch.uint8, device=points.device)
    for tile_n, tile_p in hl.tile([n, p]):
        x, y = points[tile_n, 0][:, None], points[tile_n, 1][:, None]
        inside = hl.zeros([tile_n, tile_p], dtype=torch.int32)
        for i in range(k):
            last = (i + k - 1) % k
            x0, y0 = corners[tile_p, 0, last][None, :], corners[tile_p, 1, last][None, :]
            x1, y1 = corners[tile_p, 0, i][None, :], corners[tile_p, 1, i][None, :]
            spans = (y0 > y) != (y1 > y)
            left = (x - x0) * (y1 - y0) < (y - y0) * (x1 - x0)
            inside = inside ^ (spans & (left == (y1 > y0))).to(torch.int32)
        out[tile_n, tile_p] = inside.to(torch.uint8)
    return out


def in_polygons_torch(points: torch.Tensor, corners: torch.Tensor) -> torch.Tensor:
    x, y = points[:, 0, None, None], points[:, 1, None, None]
    x1, y1 = corners[:, 0], corners[:, 1]
    x0, y0 = x1.roll(1, 1), y1.roll(1, 1)
    left = (x - x0) * (y1 - y0) < (y - y0) * (x1 - x0)
    crossed = ((y0 > y) != (y1 > y)) & (left == (y1 > y0))
    return (crossed.sum(-1) % 2).to(torch.uint8)


def make_in_polygons(device: str, small: bool) -> Arguments:
    n, p, k = (100, 7, 5) if small else (200000, 96, 12)
    angles = torch.sort(torch.rand([p, k], device=device) * 6.28, 1).values
    radius = torch.rand([p, k], device=device) + 0.3
    corners = torch.stack([radius * torch.cos(angles), radius * torch.sin(angles)], 1)
    corners = torch.round((corners + normal(device, p, 2, 1, scale=0.3)) * 256) / 256
    return torch.randint(-256, 257, [n, 2], device=device) / 256, corners


CELLS.add(in_polygons, make_in_polygons, in_polygons_torch)
