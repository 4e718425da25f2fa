"""Pictures, films and sound: sampling, colors, subbands, patches, convolutions of volumes and envelopes."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, FP16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def deformable_columns(x: torch.Tensor, shifts: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    """Columns `[B, H, W, 9, C]` of a deformable 3x3 convolution of `x[B, H, W, C]`: samples at shifted places, by gates."""
    b, h, w, c = x.size()
    pixels = x.view(b * h * w, c)
    moved = shifts.view(b * h * w, 9, 2)
    gated = gates.view(b * h * w, 9)
    out = torch.empty([b * h * w, 9, c], dtype=x.dtype, device=x.device)
    for places, tap, channels in hl.tile([b * h * w, 9, c], block_size=[None, 1, None]):
        k = tap.begin
        image = places.index // (h * w)
        row = (places.index // w) % h
        column = places.index % w
        y = row.to(torch.float32) + (k // 3 - 1) + moved[places, k, 0]
        z = column.to(torch.float32) + (k % 3 - 1) + moved[places, k, 1]
        top, left = torch.floor(y), torch.floor(z)
        fy, fz = y - top, z - left
        acc = hl.zeros([places, channels])
        for dy in hl.static_range(2):
            for dz in hl.static_range(2):
                at_y = top.to(torch.int32) + dy
                at_z = left.to(torch.int32) + dz
                inside = (at_y >= 0) & (at_y < h) & (at_z >= 0) & (at_z < w)
                at = (image * h + torch.clamp(at_y, 0, h - 1)) * w + torch.clamp(at_z, 0, w - 1)
                weight = (fy if dy == 1 else 1 - fy) * (fz if dz == 1 else 1 - fz)
                weight = torch.where(inside, weight, 0.0)
                acc += pixels[at, channels].to(torch.float32) * weight[:, None]
        out[places, k, channels] = (acc * gated[places, k][:, None]).to(x.dtype)
    return out.view(b, h, w, 9, c)


def deformable_columns_torch(x: torch.Tensor, shifts: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    b, h, w, _ = x.shape
    device = x.device
    taps = torch.arange(9, device=device)
    y = torch.arange(h, device=device)[:, None, None] + (taps // 3 - 1) + shifts[..., 0]
    z = torch.arange(w, device=device)[:, None] + (taps % 3 - 1) + shifts[..., 1]
    top, left = y.floor(), z.floor()
    total: torch.Tensor | float = 0.0
    images = torch.arange(b, device=device)[:, None, None, None]
    for dy in range(2):
        for dz in range(2):
            at_y, at_z = top.long() + dy, left.long() + dz
            inside = (at_y >= 0) & (at_y < h) & (at_z >= 0) & (at_z < w)
            weight = (1 - (y - top - dy).abs()) * (1 - (z - left - dz).abs()) * inside
            total = total + high(x)[images, at_y.clamp(0, h - 1), at_z.clamp(0, w - 1)] * weight[..., None]
    return (total * gates[..., None]).to(x.dtype)


def make_deformable_columns(device: str, small: bool) -> Arguments:
    b, h, w, c = (2, 5, 7, 9) if small else (4, 64, 64, 256)
    shifts = normal(device, b, h, w, 9, 2, scale=2.0)
    return normal(device, b, h, w, c, dtype=FP16), shifts, torch.rand([b, h, w, 9], device=device)


CELLS.add(deformable_columns, make_deformable_columns, deformable_columns_torch)


@helion.kernel
def merge_patches(x: torch.Tensor, gain: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Layer norms of each 2x2 pixels of `[B, H, W, C]` beside each other: `[B, H / 2, W / 2, 4 C]`."""
    b, h, w, c = x.size()
    pairs = x.view(b * (h // 2), 2, w // 2, 2, c)
    gains, biases = gain.view(2, 2, c), bias.view(2, 2, c)
    out = torch.empty([b * (h // 2), w // 2, 2, 2, c], dtype=x.dtype, device=x.device)
    for rows, columns in hl.tile([b * (h // 2), w // 2]):
        values = pairs[rows, :, columns, :, :].to(torch.float32).permute(0, 2, 3, 1, 4)
        mean = values.sum(-1).sum(-1).sum(-1) / (4 * c)
        centred = values - mean[:, :, None, None, None]
        square = (centred * centred).sum(-1).sum(-1).sum(-1) / (4 * c)
        scale = torch.rsqrt(square + 1e-5)
        normed = centred * scale[:, :, None, None, None]
        out[rows, columns, :, :, :] = (normed * gains[:, :, :] + biases[:, :, :]).to(x.dtype)
    return out.view(b, h // 2, w // 2, 4 * c)


def merge_patches_torch(x: torch.Tensor, gain: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    parts = [x[:, i::2, j::2] for j in range(2) for i in range(2)]
    return F.layer_norm(high(torch.cat(parts, -1)), gain.shape, high(gain), high(bias), 1e-5).to(x.dtype)


def make_merge_patches(device: str, small: bool) -> Arguments:
    b, h, w, c = (2, 4, 6, 24) if small else (32, 56, 56, 192)
    x = normal(device, b, h, w, c, dtype=BF16)
    return x, normal(device, 4 * c), normal(device, 4 * c)


CELLS.add(merge_patches, make_merge_patches, merge_patches_torch)


@helion.kernel
def shift_hues(image: torch.Tensor, turn: torch.Tensor, saturation: torch.Tensor) -> torch.Tensor:
    """Pictures `[B, 3, H, W]` of bytes with other hues and saturations, one of each for a picture."""
    b, _, h, w = image.size()
    out = torch.empty_like(image)
    for tile_b, rows, columns in hl.tile([b, h, w]):
        red = image[tile_b, 0, rows, columns].to(torch.float32) / 255
        green = image[tile_b, 1, rows, columns].to(torch.float32) / 255
        blue = image[tile_b, 2, rows, columns].to(torch.float32) / 255
        value = torch.maximum(torch.maximum(red, green), blue)
        chroma = value - torch.minimum(torch.minimum(red, green), blue)
        divisor = torch.where(chroma > 0, chroma, 1.0)
        from_red = (green - blue) / divisor
        from_green = (blue - red) / divisor + 2
        from_blue = (red - green) / divisor + 4
        hue = torch.where(value == red, from_red, torch.where(value == green, from_green, from_blue)) / 6
        hue = hue + turn[tile_b][:, None, None]
        hue = hue - torch.floor(hue)
        chroma = torch.clamp(chroma * saturation[tile_b][:, None, None], max=value)
        for channel in hl.static_range(3):
            k = hue * 6 + (5 - 2 * channel)
            k = k - 6 * torch.floor(k / 6)
            part = torch.clamp(torch.minimum(k, 4 - k), 0, 1)
            level = value - chroma * part
            out[tile_b, channel, rows, columns] = torch.round(level * 255).to(torch.uint8)
    return out


def shift_hues_torch(image: torch.Tensor, turn: torch.Tensor, saturation: torch.Tensor) -> torch.Tensor:
    red, green, blue = (image.to(turn.dtype) / 255).unbind(1)
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    divisor = torch.where(chroma > 0, chroma, 1.0)
    from_red, from_green = (green - blue) / divisor, (blue - red) / divisor + 2
    from_blue = (red - green) / divisor + 4
    hue = torch.where(value == red, from_red, torch.where(value == green, from_green, from_blue)) / 6
    hue = hue + turn[:, None, None]
    hue = hue - torch.floor(hue)
    chroma = torch.minimum(chroma * saturation[:, None, None], value)
    levels = []
    for channel in range(3):
        k = torch.remainder(hue * 6 + (5 - 2 * channel), 6)
        levels.append(value - chroma * torch.minimum(k, 4 - k).clamp(0, 1))
    return torch.round(torch.stack(levels, 1) * 255).to(torch.uint8)


def make_shift_hues(device: str, small: bool) -> Arguments:
    shape = (2, 3, 13, 33) if small else (32, 3, 720, 1280)
    image = torch.randint(0, 256, shape, device=device, dtype=torch.uint8)
    return image, torch.rand([shape[0]], device=device) - 0.5, 0.5 + torch.rand([shape[0]], device=device)


CELLS.add(shift_hues, make_shift_hues, shift_hues_torch)


@helion.kernel
def depthwise_volume(padded: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """3x3x3 depthwise convolutions of films `[B, C, T + 2, H + 2, W + 2]`."""
    b, c, t, h, w = padded.size()
    t, h, w = t - 2, h - 2, w - 2
    out = torch.empty([b, c, t, h, w], dtype=padded.dtype, device=padded.device)
    for tile_b, tile_c, tile_t, tile_h, tile_w in hl.tile([b, c, t, h, w], block_size=[1, 1, None, None, None]):
        acc = hl.zeros([tile_t, tile_h, tile_w])
        for i in hl.static_range(3):
            for j in hl.static_range(3):
                for k in hl.static_range(3):
                    value = padded[tile_b.begin, tile_c.begin, tile_t.index + i, tile_h.index + j, tile_w.index + k]
                    acc += value.to(torch.float32) * weight[tile_c.begin, i, j, k].to(torch.float32)
        out[tile_b.begin, tile_c.begin, tile_t, tile_h, tile_w] = (acc + bias[tile_c.begin]).to(padded.dtype)
    return out


def depthwise_volume_torch(padded: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    c = padded.size(1)
    return F.conv3d(high(padded), high(weight)[:, None], high(bias), groups=c).to(padded.dtype)


CELLS.add(
    depthwise_volume,
    lambda device, small: (
        normal(device, *((2, 3, 5, 7, 9) if small else (2, 96, 18, 58, 58)), dtype=FP16),
        normal(device, 3 if small else 96, 3, 3, 3, dtype=FP16, scale=0.2),
        normal(device, 3 if small else 96),
    ),
    depthwise_volume_torch,
    lambda padded, weight, bias: F.conv3d(padded, weight[:, None], bias.to(padded.dtype), groups=padded.size(1)),
)


@helion.kernel
def doubled_by_weights(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Transposed 2x2 convolutions of stride 2 of `x[B, H, W, C]`, by `weight[C, 2, 2, D]`: `[B, 2 H, 2 W, D]`."""
    b, h, w, c = x.size()
    d = weight.size(3)
    pixels = x.view(b * h, w, c)
    out = torch.empty([b * h, 2, w, 2, d], dtype=x.dtype, device=x.device)
    for row, columns, i, j, features in hl.tile([b * h, w, 2, 2, d], block_size=[1, None, 1, 1, None]):
        acc = hl.zeros([columns, features])
        for channels in hl.tile(c):
            acc = torch.addmm(acc, pixels[row.begin, columns, channels], weight[channels, i.begin, j.begin, features])
        acc = torch.relu(acc + bias[features][None, :])
        out[row.begin, i.begin, columns, j.begin, features] = acc.to(x.dtype)
    return out.view(b, 2 * h, 2 * w, d)


def doubled_by_weights_torch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    b, h, w, _ = x.shape
    made = torch.einsum("bhwc,cijd->bhiwjd", high(x), high(weight)) + bias
    return torch.relu(made).reshape(b, 2 * h, 2 * w, -1).to(x.dtype)


def doubled_by_weights_product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    b, h, w, c = x.shape
    made = (x.view(-1, c) @ weight.view(c, -1)).view(b, h, w, 2, 2, -1) + bias.to(x.dtype)
    return torch.relu(made).permute(0, 1, 3, 2, 4, 5).reshape(b, 2 * h, 2 * w, -1)


def make_doubled_by_weights(device: str, small: bool) -> Arguments:
    b, h, w, c, d = (2, 3, 5, 24, 17) if small else (16, 64, 64, 512, 256)
    x = normal(device, b, h, w, c, dtype=BF16)
    return x, normal(device, c, 2, 2, d, dtype=BF16, scale=c**-0.5), normal(device, d)


CELLS.add(doubled_by_weights, make_doubled_by_weights, doubled_by_weights_torch, doubled_by_weights_product)


@helion.kernel
def equalize_by_tables(image: torch.Tensor, tables: torch.Tensor, side: int) -> torch.Tensor:
    """Bytes `[B, H, W]` by tables `[B, R, S, 256]` of squares of the picture, mixed from the nearest four of them."""
    b, h, w = image.size()
    _, r, s, _ = tables.size()
    flat = tables.view(-1)
    out = torch.empty_like(image)
    for tile_b, rows, columns in hl.tile([b, h, w]):
        level = image[tile_b, rows, columns].to(torch.int32)
        y = (rows.index.to(torch.float32) + 0.5) / side - 0.5
        x = (columns.index.to(torch.float32) + 0.5) / side - 0.5
        top, left = torch.floor(y), torch.floor(x)
        fy, fx = (y - top)[None, :, None], (x - left)[None, None, :]
        y0 = torch.clamp(top.to(torch.int32), 0, r - 1)
        y1 = torch.clamp(top.to(torch.int32) + 1, 0, r - 1)
        x0 = torch.clamp(left.to(torch.int32), 0, s - 1)
        x1 = torch.clamp(left.to(torch.int32) + 1, 0, s - 1)
        base = tile_b.index[:, None, None] * r
        a = flat[((base + y0[None, :, None]) * s + x0[None, None, :]) * 256 + level].to(torch.float32)
        c = flat[((base + y0[None, :, None]) * s + x1[None, None, :]) * 256 + level].to(torch.float32)
        d = flat[((base + y1[None, :, None]) * s + x0[None, None, :]) * 256 + level].to(torch.float32)
        e = flat[((base + y1[None, :, None]) * s + x1[None, None, :]) * 256 + level].to(torch.float32)
        upper = a + (c - a) * fx
        lower = d + (e - d) * fx
        out[tile_b, rows, columns] = (upper + (lower - upper) * fy + 0.5).to(torch.uint8)
    return out


def equalize_by_tables_torch(image: torch.Tensor, tables: torch.Tensor, side: int) -> torch.Tensor:
    b, h, w = image.shape
    _, r, s, _ = tables.shape
    y = (torch.arange(h, device=image.device).float() + 0.5) / side - 0.5
    x = (torch.arange(w, device=image.device).float() + 0.5) / side - 0.5
    top, left = y.floor(), x.floor()
    fy, fx = (y - top)[:, None], x - left
    images = torch.arange(b, device=image.device)[:, None, None]

    def level(dy: int, dx: int) -> torch.Tensor:
        at = (top.long() + dy).clamp(0, r - 1)[:, None], (left.long() + dx).clamp(0, s - 1)
        return tables[images, at[0], at[1], image.long()].float()

    upper = level(0, 0) + (level(0, 1) - level(0, 0)) * fx
    lower = level(1, 0) + (level(1, 1) - level(1, 0)) * fx
    return (upper + (lower - upper) * fy + 0.5).to(torch.uint8)


def make_equalize_by_tables(device: str, small: bool) -> Arguments:
    b, h, w, side = (2, 15, 37, 8) if small else (16, 1080, 1920, 135)
    r, s = -(-h // side), -(-w // side)
    image = torch.randint(0, 256, [b, h, w], device=device, dtype=torch.uint8)
    return image, torch.randint(0, 256, [b, r, s, 256], device=device, dtype=torch.uint8), side


CELLS.add(equalize_by_tables, make_equalize_by_tables, equalize_by_tables_torch)


@helion.kernel
def haar_bands(x: torch.Tensor) -> torch.Tensor:
    """The four bands `[B, 4, H / 2, W / 2]` of a Haar step of `[B, H, W]`."""
    b, h, w = x.size()
    out = torch.empty([b, 4, h // 2, w // 2], dtype=x.dtype, device=x.device)
    for tile_b, rows, columns in hl.tile([b, h // 2, w // 2]):
        upper_left = x[tile_b, rows.index * 2, columns.index * 2]
        upper_right = x[tile_b, rows.index * 2, columns.index * 2 + 1]
        lower_left = x[tile_b, rows.index * 2 + 1, columns.index * 2]
        lower_right = x[tile_b, rows.index * 2 + 1, columns.index * 2 + 1]
        out[tile_b, 0, rows, columns] = (upper_left + upper_right + lower_left + lower_right) * 0.5
        out[tile_b, 1, rows, columns] = (upper_left - upper_right + lower_left - lower_right) * 0.5
        out[tile_b, 2, rows, columns] = (upper_left + upper_right - lower_left - lower_right) * 0.5
        out[tile_b, 3, rows, columns] = (upper_left - upper_right - lower_left + lower_right) * 0.5
    return out


def haar_bands_torch(x: torch.Tensor) -> torch.Tensor:
    a, b, c, d = x[:, ::2, ::2], x[:, ::2, 1::2], x[:, 1::2, ::2], x[:, 1::2, 1::2]
    return torch.stack([a + b + c + d, a - b + c - d, a + b - c - d, a - b - c + d], 1) * 0.5


CELLS.add(
    haar_bands,
    lambda device, small: (normal(device, *((2, 14, 38) if small else (48, 1024, 1024))),),
    haar_bands_torch,
)


@helion.kernel
def overlap_add(frames: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
    """Signals `[B, (N - 3) hop]` of frames `[B, N, 4 hop]`, each a hop after the one before, by the sum of windows."""
    b, n, length = frames.size()
    hop = length // 4
    out = torch.empty([b, n - 3, hop], dtype=frames.dtype, device=frames.device)
    for tile_b, blocks, samples in hl.tile([b, n - 3, hop]):
        acc = hl.zeros([tile_b, blocks, samples])
        total = hl.zeros([samples])
        for part in hl.static_range(4):
            at = samples.index + (3 - part) * hop
            weight = window[at]
            acc += frames[tile_b, blocks.index + part, at] * weight[None, None, :]
            total += weight * weight
        out[tile_b, blocks, samples] = acc / torch.clamp(total, min=1e-8)[None, None, :]
    return out.view(b, (n - 3) * hop)


def overlap_add_torch(frames: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
    b, n, length = frames.shape
    hop = length // 4
    parts = (frames * window).view(b, n, 4, hop)
    total = (window * window).view(4, hop).sum(0).clamp(min=1e-8)
    return (sum(parts[:, part : n - 3 + part, 3 - part] for part in range(4)) / total).flatten(1)


CELLS.add(
    overlap_add,
    lambda device, small: (
        normal(device, *((2, 7, 36) if small else (16, 1876, 1024))),
        torch.hann_window(36 if small else 1024, device=device),
    ),
    overlap_add_torch,
)


@helion.kernel
def follow_envelope(x: torch.Tensor, attack: torch.Tensor, release: torch.Tensor) -> torch.Tensor:
    """Envelopes of signals `[T, N]`, which rise by a rate of their own and fall by another one."""
    steps, n = x.size()
    out = torch.empty_like(x)
    for tile in hl.tile(n):
        up, down = attack[tile], release[tile]
        level = hl.zeros([tile])
        for t in range(steps):
            now = torch.abs(x[t, tile])
            level = now + torch.where(now > level, up, down) * (level - now)
            out[t, tile] = level
    return out


def follow_envelope_torch(x: torch.Tensor, attack: torch.Tensor, release: torch.Tensor) -> torch.Tensor:
    level, out = torch.zeros_like(x[0]), []
    for now in x.abs():
        level = now + torch.where(now > level, attack, release) * (level - now)
        out.append(level)
    return torch.stack(out)


def make_follow_envelope(device: str, small: bool) -> Arguments:
    steps, n = (9, 63) if small else (96, 131072)
    return normal(device, steps, n), torch.rand([n], device=device) * 0.5, 0.5 + 0.5 * torch.rand([n], device=device)


CELLS.add(follow_envelope, make_follow_envelope, follow_envelope_torch)
