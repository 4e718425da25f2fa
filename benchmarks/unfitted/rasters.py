"""Images, sound, stencils of physics, Monte Carlo paths and statistics of series."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, FP16, FP32, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def shrink_by_thirds(images: torch.Tensor) -> torch.Tensor:
    """Average squares of 3 x 3 pixels of uint8 images `[B, H, W]`, rounded to uint8."""
    b, height, width = images.size()
    rows, cols = height // 3, width // 3
    parts = images.view(b, rows, 3, cols, 3)
    out = torch.empty([b, rows, cols], dtype=torch.uint8, device=images.device)
    for tb, tr, tc in hl.tile([b, rows, cols]):
        total = hl.zeros([tb, tr, tc], dtype=torch.int32)
        for i in hl.static_range(3):
            for j in hl.static_range(3):
                total += parts[tb, tr, i, tc, j].to(torch.int32)
        out[tb, tr, tc] = ((total + 4) // 9).to(torch.uint8)
    return out


def shrink_by_thirds_torch(images: torch.Tensor) -> torch.Tensor:
    b, height, width = images.size()
    parts = images.view(b, height // 3, 3, width // 3, 3)
    return ((parts.sum([2, 4], dtype=torch.int32) + 4) // 9).to(torch.uint8)


def make_shrink_by_thirds(device: str, small: bool) -> Arguments:
    shape = (2, 15, 21) if small else (96, 1080, 1920)
    return (torch.randint(0, 256, shape, device=device, dtype=torch.uint8),)


CELLS.add(shrink_by_thirds, make_shrink_by_thirds, shrink_by_thirds_torch)


@helion.kernel
def to_lab(images: torch.Tensor) -> torch.Tensor:
    """Convert sRGB images `[B, 3, P]` in uint8 to the CIE Lab space, in fp16."""
    b, _, p = images.size()
    out = torch.empty([b, 3, p], dtype=torch.float16, device=images.device)
    for tb, tp in hl.tile([b, p]):
        r = linear_light(images[tb, 0, tp])
        g = linear_light(images[tb, 1, tp])
        blue = linear_light(images[tb, 2, tp])
        x = lab_root((0.4124564 * r + 0.3575761 * g + 0.1804375 * blue) / 0.95047)
        y = lab_root(0.2126729 * r + 0.7151522 * g + 0.0721750 * blue)
        z = lab_root((0.0193339 * r + 0.1191920 * g + 0.9503041 * blue) / 1.08883)
        out[tb, 0, tp] = (116.0 * y - 16.0).to(torch.float16)
        out[tb, 1, tp] = (500.0 * (x - y)).to(torch.float16)
        out[tb, 2, tp] = (200.0 * (y - z)).to(torch.float16)
    return out


def linear_light(code: torch.Tensor) -> torch.Tensor:
    """Return the intensity of a code of sRGB."""
    v = code.to(torch.float32) / 255.0
    return torch.where(v > 0.04045, torch.pow((v + 0.055) / 1.055, 2.4), v / 12.92)


def lab_root(t: torch.Tensor) -> torch.Tensor:
    """Return the cube root, or the line that replaces it near zero."""
    return torch.where(t > 0.008856, torch.pow(torch.clamp(t, min=1e-6), 1.0 / 3.0), 7.787 * t + 16.0 / 116.0)


def to_lab_torch(images: torch.Tensor) -> torch.Tensor:
    r, g, blue = linear_light(images).unbind(1)
    x = lab_root((0.4124564 * r + 0.3575761 * g + 0.1804375 * blue) / 0.95047)
    y = lab_root(0.2126729 * r + 0.7151522 * g + 0.0721750 * blue)
    z = lab_root((0.0193339 * r + 0.1191920 * g + 0.9503041 * blue) / 1.08883)
    return torch.stack([116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)], 1).to(FP16)


def make_to_lab(device: str, small: bool) -> Arguments:
    shape = (2, 3, 77) if small else (16, 3, 1000 * 750)
    return (torch.randint(0, 256, shape, device=device, dtype=torch.uint8),)


CELLS.add(to_lab, make_to_lab, to_lab_torch)


@helion.kernel
def letterbox(images: torch.Tensor, size: int) -> torch.Tensor:
    """Fit uint8 images `[B, H, W, 3]` into squares `[B, 3, S, S]` in fp16, bilinear, with gray at both sides."""
    b, height, width, _ = images.size()
    flat = images.view(-1)
    ratio = float(max(height, width)) / size
    inner_h, inner_w = int(height / ratio), int(width / ratio)
    top, left = (size - inner_h) // 2, (size - inner_w) // 2
    out = torch.empty([b, 3, size, size], dtype=torch.float16, device=images.device)
    for tb, tr, tc in hl.tile([b, size, size], block_size=[1, None, None]):
        y = torch.clamp((tr.index - top).to(torch.float32) * ratio + 0.5 * ratio - 0.5, min=0.0)
        x = torch.clamp((tc.index - left).to(torch.float32) * ratio + 0.5 * ratio - 0.5, min=0.0)
        y0 = torch.clamp(y.to(torch.int32), max=height - 1)
        x0 = torch.clamp(x.to(torch.int32), max=width - 1)
        y1, x1 = torch.clamp(y0 + 1, max=height - 1), torch.clamp(x0 + 1, max=width - 1)
        fy, fx = (y - y0.to(torch.float32))[:, None], (x - x0.to(torch.float32))[None, :]
        inside = ((tr.index >= top) & (tr.index < top + inner_h))[:, None]
        inside = inside & ((tc.index >= left) & (tc.index < left + inner_w))[None, :]
        upper, lower = (tb.begin * height + y0) * width, (tb.begin * height + y1) * width
        for channel in hl.static_range(3):
            a = flat[(upper[:, None] + x0[None, :]) * 3 + channel].to(torch.float32)
            c = flat[(upper[:, None] + x1[None, :]) * 3 + channel].to(torch.float32)
            d = flat[(lower[:, None] + x0[None, :]) * 3 + channel].to(torch.float32)
            e = flat[(lower[:, None] + x1[None, :]) * 3 + channel].to(torch.float32)
            over, under = a + fx * (c - a), d + fx * (e - d)
            value = torch.where(inside, over + fy * (under - over), 114.0) / 255.0
            out[tb.begin, channel, tr, tc] = value.to(torch.float16)
    return out


def letterbox_torch(images: torch.Tensor, size: int) -> torch.Tensor:
    _b, height, width, _ = images.size()
    ratio = max(height, width) / size
    inner = [int(height / ratio), int(width / ratio)]
    top, left = (size - inner[0]) // 2, (size - inner[1]) // 2
    x = images.permute(0, 3, 1, 2).to(FP32)
    x = F.interpolate(x, scale_factor=1.0 / ratio, mode="bilinear", recompute_scale_factor=False)
    x = F.pad(x, [left, size - inner[1] - left, top, size - inner[0] - top], value=114.0)
    return (x / 255.0).to(FP16)


def make_letterbox(device: str, small: bool) -> Arguments:
    b, height, width, size = (2, 18, 32, 16) if small else (16, 1080, 1920, 640)
    return torch.randint(0, 256, [b, height, width, 3], device=device, dtype=torch.uint8), size


CELLS.add(letterbox, make_letterbox, letterbox_torch)


@helion.kernel
def cut_and_mix(images: torch.Tensor, partner: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    """Replace a box `(top, left, bottom, right)` of each image `[B, C, H, W]` by that of its partner."""
    b, c, height, width = images.size()
    out = torch.empty_like(images)
    for tb, tc, tr, tw in hl.tile([b, c, height, width], block_size=[1, None, None, None]):
        i = tb.begin
        rows = (tr.index >= boxes[i, 0]) & (tr.index < boxes[i, 2])
        cols = (tw.index >= boxes[i, 1]) & (tw.index < boxes[i, 3])
        inside = (rows[:, None] & cols[None, :])[None, :, :]
        own = hl.load(images, [i, tc, tr, tw], extra_mask=~inside)
        other = hl.load(images, [partner[i], tc, tr, tw], extra_mask=inside)
        out[i, tc, tr, tw] = torch.where(inside, other, own)
    return out


def cut_and_mix_torch(images: torch.Tensor, partner: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    _b, _c, height, width = images.size()
    top, left, bottom, right = (each[:, None] for each in boxes.unbind(1))
    y, x = torch.arange(height, device=images.device), torch.arange(width, device=images.device)
    rows, cols = (y >= top) & (y < bottom), (x >= left) & (x < right)
    return torch.where((rows[:, :, None] & cols[:, None, :])[:, None], images[partner], images)


def make_cut_and_mix(device: str, small: bool) -> Arguments:
    b, c, height, width = (5, 3, 14, 18) if small else (512, 3, 224, 224)
    low = torch.rand([b, 2], device=device) * 0.5
    boxes = torch.cat([low, low + torch.rand([b, 2], device=device) * 0.5], 1)
    boxes = (boxes * torch.tensor([height, width, height, width], device=device)).to(torch.int32)
    return normal(device, b, c, height, width, dtype=FP16), torch.randint(0, b, [b], device=device), boxes


CELLS.add(cut_and_mix, make_cut_and_mix, cut_and_mix_torch)


@helion.kernel
def thin_edges(strength: torch.Tensor, dx: torch.Tensor, dy: torch.Tensor, low: float) -> torch.Tensor:
    """Keep strengths `[B, H, W]` that are maxima along their gradient and at least `low`, as Canny's filter does."""
    b, height, width = strength.size()
    out = torch.empty_like(strength)
    for tb, tr, tc in hl.tile([b, height, width], block_size=[1, None, None]):
        i = tb.begin
        here = strength[i, tr, tc]
        gx, gy = dx[i, tr, tc].to(torch.float32), dy[i, tr, tc].to(torch.float32)
        up, down = torch.clamp(tr.index - 1, min=0), torch.clamp(tr.index + 1, max=height - 1)
        left, right = torch.clamp(tc.index - 1, min=0), torch.clamp(tc.index + 1, max=width - 1)
        flat = torch.abs(gy) < 0.41421356 * torch.abs(gx)
        steep = torch.abs(gx) < 0.41421356 * torch.abs(gy)
        falling = gx * gy > 0
        n, s = strength[i, up, tc], strength[i, down, tc]
        w, e = strength[i, tr, left], strength[i, tr, right]
        nw, se = strength[i, up, left], strength[i, down, right]
        ne, sw = strength[i, up, right], strength[i, down, left]
        diagonal = torch.where(falling, torch.maximum(nw, se), torch.maximum(ne, sw))
        most = torch.where(flat, torch.maximum(w, e), torch.where(steep, torch.maximum(n, s), diagonal))
        out[i, tr, tc] = torch.where((here >= most) & (here >= low), here, 0.0)
    return out


def thin_edges_torch(strength: torch.Tensor, dx: torch.Tensor, dy: torch.Tensor, low: float) -> torch.Tensor:
    _b, height, width = strength.size()
    padded = F.pad(high(strength)[:, None], [1, 1, 1, 1], mode="replicate")[:, 0].to(strength.dtype)

    def at(row: int, column: int) -> torch.Tensor:
        return padded[:, 1 + row : 1 + row + height, 1 + column : 1 + column + width]

    gx, gy = high(dx), high(dy)
    slope = 0.41421356
    falling = torch.maximum(at(-1, -1), at(1, 1))
    diagonal = torch.where(gx * gy > 0, falling, torch.maximum(at(-1, 1), at(1, -1)))
    most = torch.where(gx.abs() < slope * gy.abs(), torch.maximum(at(-1, 0), at(1, 0)), diagonal)
    most = torch.where(gy.abs() < slope * gx.abs(), torch.maximum(at(0, -1), at(0, 1)), most)
    return torch.where((strength >= most) & (strength >= low), strength, 0.0)


def make_thin_edges(device: str, small: bool) -> Arguments:
    shape = (2, 15, 21) if small else (16, 1080, 1920)
    dx, dy = normal(device, *shape, dtype=FP16), normal(device, *shape, dtype=FP16)
    return (dx.abs() + dy.abs()), dx, dy, 0.5


CELLS.add(thin_edges, make_thin_edges, thin_edges_torch)


@helion.kernel
def normalized_log_mel(energies: torch.Tensor) -> torch.Tensor:
    """Return `log10` of energies `[B, M, T]`, at most 8 below the largest of a clip, moved to about -1 to 1, in fp16."""
    b, mels, frames = energies.size()
    size = mels * frames
    flat = energies.view(b, size)
    top = torch.zeros([b], dtype=torch.float32, device=energies.device)
    out = torch.empty([b, size], dtype=torch.float16, device=energies.device)
    for clip, at in hl.tile([b, size], block_size=[1, None]):
        hl.atomic_max(top, [clip.begin], flat[clip.begin, at].amax(0))
    hl.barrier()
    for clip, at in hl.tile([b, size], block_size=[1, None]):
        limit = torch.log10(torch.clamp(top[clip.begin], min=1e-10)) - 8.0
        v = torch.log10(torch.clamp(flat[clip.begin, at], min=1e-10))
        out[clip.begin, at] = ((torch.maximum(v, limit) + 4.0) / 4.0).to(torch.float16)
    return out.view(b, mels, frames)


def normalized_log_mel_torch(energies: torch.Tensor) -> torch.Tensor:
    v = energies.clamp(min=1e-10).log10()
    v = torch.maximum(v, v.amax([1, 2], keepdim=True) - 8.0)
    return ((v + 4.0) / 4.0).to(FP16)


def make_normalized_log_mel(device: str, small: bool) -> Arguments:
    shape = (3, 8, 37) if small else (128, 80, 3000)
    return ((torch.randn(shape, device=device) * 6.0).exp(),)


CELLS.add(normalized_log_mel, make_normalized_log_mel, normalized_log_mel_torch)


@helion.kernel
def companded_bytes(sound: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    """Compress int16 samples `[B, N]`, times a gain of each clip, to bytes by the mu law."""
    b, n = sound.size()
    out = torch.empty([b, n], dtype=torch.uint8, device=sound.device)
    for tb, tn in hl.tile([b, n]):
        v = torch.clamp(sound[tb, tn].to(torch.float32) * gain[tb][:, None] / 32768.0, -1.0, 1.0)
        y = torch.copysign(torch.log1p(255.0 * torch.abs(v)) / 5.545177444479562, v)
        out[tb, tn] = torch.floor((y + 1.0) * 127.5 + 0.5).to(torch.uint8)
    return out


def companded_bytes_torch(sound: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    v = (sound.to(gain.dtype) * gain[:, None] / 32768.0).clamp(-1.0, 1.0)
    y = torch.sign(v) * torch.log1p(255.0 * v.abs()) / 5.545177444479562
    return torch.floor((y + 1.0) * 127.5 + 0.5).to(torch.uint8)


def make_companded_bytes(device: str, small: bool) -> Arguments:
    b, n = (3, 1003) if small else (64, 960_001)
    sound = torch.randint(-32768, 32768, [b, n], device=device).to(torch.int16)
    return sound, torch.rand([b], device=device) + 0.5


CELLS.add(companded_bytes, make_companded_bytes, companded_bytes_torch)


@helion.kernel
def preemphasized_frames(sound: torch.Tensor, window: torch.Tensor, hop: int) -> torch.Tensor:
    """Cut clips `[B, N]` into frames of the window's length, with mean removed, emphasized and windowed, in bf16."""
    b, n = sound.size()
    length = hl.specialize(window.size(0))
    frames = (n - length) // hop + 1
    out = torch.empty([b, frames, length], dtype=torch.bfloat16, device=sound.device)
    flat = sound.view(-1)
    for tb, tf in hl.tile([b, frames]):
        start = tb.index[:, None, None] * n + tf.index[None, :, None] * hop
        within = hl.arange(length)
        x = flat[start + within[None, None, :]]
        before = flat[start + torch.clamp(within - 1, min=0)[None, None, :]]
        mean = x.mean(-1, keepdim=True)
        y = (x - mean) - 0.97 * (before - mean)
        out[tb, tf, :] = (y * window[:][None, None, :]).to(torch.bfloat16)
    return out


def preemphasized_frames_torch(sound: torch.Tensor, window: torch.Tensor, hop: int) -> torch.Tensor:
    frames = sound.unfold(1, window.size(0), hop)
    x = frames - frames.mean(-1, keepdim=True)
    before = torch.cat([x[..., :1], x[..., :-1]], -1)
    return ((x - 0.97 * before) * window).to(BF16)


def make_preemphasized_frames(device: str, small: bool) -> Arguments:
    b, n, length, hop = (2, 203, 40, 16) if small else (64, 480_000, 400, 160)
    return normal(device, b, n), torch.hann_window(length, device=device), hop


CELLS.add(preemphasized_frames, make_preemphasized_frames, preemphasized_frames_torch)
