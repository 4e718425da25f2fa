"""Windows, poolings, resizings and norms of pictures, most with channels last."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, FP16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def shifted_windows(x: torch.Tensor, shift: int) -> torch.Tensor:
    """Return windows `[B, H / 7, W / 7, 7, 7, C]` of pictures `[B, H, W, C]` that are rolled by ``shift`` pixels
    before."""
    b, h, w, c = x.size()
    out = torch.empty([b, h // 7, w // 7, 7, 7, c], dtype=x.dtype, device=x.device)
    for bi, wy, wx in hl.grid([b, h // 7, w // 7]):
        rows = (wy * 7 + hl.arange(7) + shift) % h
        columns = (wx * 7 + hl.arange(7) + shift) % w
        out[bi, wy, wx, :, :, :] = x[bi, rows[:, None], columns[None, :], :]
    return out


def shifted_windows_torch(x: torch.Tensor, shift: int) -> torch.Tensor:
    b, h, w, c = x.size()
    rolled = torch.roll(x, (-shift, -shift), (1, 2)).view(b, h // 7, 7, w // 7, 7, c)
    return rolled.permute(0, 1, 3, 2, 4, 5).contiguous()


CELLS.add(
    shifted_windows,
    lambda device, small: (normal(device, *((2, 14, 21, 17) if small else (128, 56, 56, 128)), dtype=BF16), 3),
    shifted_windows_torch,
)


@helion.kernel
def batch_norm_relu(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    mean: torch.Tensor,
    var: torch.Tensor,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return batch norm of `x[N, C, S]` in training and a relu; running means and variances `[C]` change in place."""
    n, c, s = x.size()
    count = n * s
    out = torch.empty_like(x)
    for tile_c in hl.tile(c):
        total = hl.zeros([tile_c], dtype=torch.float32)
        squares = hl.zeros([tile_c], dtype=torch.float32)
        for tile_n, tile_s in hl.tile([n, s]):
            v = x[tile_n, tile_c, tile_s].to(torch.float32)
            total += v.sum(-1).sum(0)
            squares += (v * v).sum(-1).sum(0)
        mu = total / count
        sigma2 = squares / count - mu * mu
        mean[tile_c] = (1.0 - momentum) * mean[tile_c] + momentum * mu
        var[tile_c] = (1.0 - momentum) * var[tile_c] + momentum * sigma2 * count / (count - 1)
        scale = weight[tile_c] * torch.rsqrt(sigma2 + eps)
        shift = bias[tile_c] - mu * scale
        for tile_n, tile_s in hl.tile([n, s]):
            v = x[tile_n, tile_c, tile_s].to(torch.float32)
            out[tile_n, tile_c, tile_s] = torch.relu(v * scale[None, :, None] + shift[None, :, None]).to(x.dtype)
    return out, mean, var


def batch_norm_relu_torch(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    mean: torch.Tensor,
    var: torch.Tensor,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    out = F.batch_norm(high(x), mean, var, weight, bias, training=True, momentum=momentum, eps=eps)
    return torch.relu(out).to(x.dtype), mean, var


def make_batch_norm_relu(device: str, small: bool) -> Arguments:
    n, c, s = (3, 19, 37) if small else (128, 256, 784)
    states = normal(device, c), torch.rand([c], device=device)
    return normal(device, n, c, s, dtype=BF16), normal(device, c), normal(device, c), *states, 0.1, 1e-5


CELLS.add(batch_norm_relu, make_batch_norm_relu, batch_norm_relu_torch)


@helion.kernel
def adaptive_instance_norm(content: torch.Tensor, style: torch.Tensor, eps: float) -> torch.Tensor:
    """Return pictures `[N, S, C]` with the mean and deviation over pixels of another picture `[N, R, C]`."""
    n, s, c = content.size()
    r = style.size(1)
    out = torch.empty_like(content)
    for tile_n, tile_c in hl.tile([n, c]):
        total = hl.zeros([tile_n, tile_c], dtype=torch.float32)
        squares = hl.zeros([tile_n, tile_c], dtype=torch.float32)
        for tile_r in hl.tile(r):
            v = style[tile_n, tile_r, tile_c].to(torch.float32)
            total += v.sum(1)
            squares += (v * v).sum(1)
        new_mean = total / r
        new_std = torch.sqrt(squares / r - new_mean * new_mean + eps)
        total = hl.zeros([tile_n, tile_c], dtype=torch.float32)
        squares = hl.zeros([tile_n, tile_c], dtype=torch.float32)
        for tile_s in hl.tile(s):
            v = content[tile_n, tile_s, tile_c].to(torch.float32)
            total += v.sum(1)
            squares += (v * v).sum(1)
        mean = total / s
        scale = new_std * torch.rsqrt(squares / s - mean * mean + eps)
        for tile_s in hl.tile(s):
            v = content[tile_n, tile_s, tile_c].to(torch.float32)
            v = (v - mean[:, None, :]) * scale[:, None, :] + new_mean[:, None, :]
            out[tile_n, tile_s, tile_c] = v.to(content.dtype)
    return out


def adaptive_instance_norm_torch(content: torch.Tensor, style: torch.Tensor, eps: float) -> torch.Tensor:
    x, y = high(content), high(style)
    variance, mean = torch.var_mean(x, 1, correction=0, keepdim=True)
    new_variance, new_mean = torch.var_mean(y, 1, correction=0, keepdim=True)
    out = (x - mean) * torch.rsqrt(variance + eps) * torch.sqrt(new_variance + eps) + new_mean
    return out.to(content.dtype)


def make_adaptive_instance_norm(device: str, small: bool) -> Arguments:
    n, s, r, c = (2, 37, 19, 33) if small else (16, 4096, 1024, 512)
    return normal(device, n, s, c, dtype=BF16), normal(device, n, r, c, dtype=BF16), 1e-5


CELLS.add(adaptive_instance_norm, make_adaptive_instance_norm, adaptive_instance_norm_torch)


def reflected(index: torch.Tensor, size: int) -> torch.Tensor:
    """Mirror indices at the first and the last element."""
    index = torch.abs(index)
    return torch.where(index >= size, 2 * (size - 1) - index, index)


@helion.kernel
def blur_downsample(x: torch.Tensor) -> torch.Tensor:
    """Return pictures `[N, H, W, C]` of half the size, by the filter (1, 3, 3, 1) in both directions with mirrored
    borders."""
    n, h, w, c = x.size()
    out = torch.empty([n, h // 2, w // 2, c], dtype=x.dtype, device=x.device)
    taps = (0.125, 0.375, 0.375, 0.125)
    for tile_n, tile_h, tile_w, tile_c in hl.tile([n, h // 2, w // 2, c]):
        acc = hl.zeros([tile_n, tile_h, tile_w, tile_c], dtype=torch.float32)
        for i in hl.static_range(4):
            rows = reflected(tile_h.index * 2 + (i - 1), h)
            for j in hl.static_range(4):
                columns = reflected(tile_w.index * 2 + (j - 1), w)
                acc += x[tile_n, rows, columns, tile_c].to(torch.float32) * (taps[i] * taps[j])
        out[tile_n, tile_h, tile_w, tile_c] = acc.to(x.dtype)
    return out


def blur_downsample_torch(x: torch.Tensor) -> torch.Tensor:
    c = x.size(3)
    tap = torch.tensor([0.125, 0.375, 0.375, 0.125], device=x.device, dtype=x.dtype)
    filters = torch.outer(tap, tap).expand(c, 1, 4, 4)
    padded = F.pad(x.permute(0, 3, 1, 2), (1, 1, 1, 1), mode="reflect")
    return F.conv2d(padded, filters, stride=2, groups=c).permute(0, 2, 3, 1)


CELLS.add(
    blur_downsample,
    lambda device, small: (normal(device, *((2, 8, 10, 19) if small else (32, 112, 112, 96)), dtype=BF16),),
    blur_downsample_torch,
)


@helion.kernel
def pixels_to_patches(pixels: torch.Tensor, mean: torch.Tensor, deviation: torch.Tensor) -> torch.Tensor:
    """Return normalized patches `[B, H / 4, W / 4, 4, 4, 3]` in fp16 of bytes `[B, 3, H, W]`."""
    b, c, h, w = pixels.size()
    parts = pixels.view(b, c, h // 4, 4, w // 4, 4)
    out = torch.empty([b, h // 4, w // 4, 4, 4, c], dtype=torch.float16, device=pixels.device)
    for tile_b, tile_h, tile_w in hl.tile([b, h // 4, w // 4]):
        v = parts[tile_b, :, tile_h, :, tile_w, :].to(torch.float32) / 255.0
        v = v.permute(0, 2, 4, 3, 5, 1)
        out[tile_b, tile_h, tile_w, :, :, :] = ((v - mean[:]) / deviation[:]).to(torch.float16)
    return out


def pixels_to_patches_torch(pixels: torch.Tensor, mean: torch.Tensor, deviation: torch.Tensor) -> torch.Tensor:
    b, c, h, w = pixels.size()
    v = (pixels.to(mean.dtype) / 255.0).view(b, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1)
    return ((v - mean) / deviation).to(FP16).contiguous()


def make_pixels_to_patches(device: str, small: bool) -> Arguments:
    shape = (2, 3, 8, 20) if small else (64, 3, 512, 512)
    pixels = torch.randint(0, 256, shape, device=device, dtype=torch.uint8)
    return pixels, torch.rand([3], device=device), torch.rand([3], device=device) + 0.2


CELLS.add(pixels_to_patches, make_pixels_to_patches, pixels_to_patches_torch)


def cubic_weight(distance: torch.Tensor) -> torch.Tensor:
    """Return Keys' cubic with a = -0.75 at distances from 0 to 2."""
    near = (1.25 * distance - 2.25) * distance * distance + 1.0
    far = ((-0.75 * distance + 3.75) * distance - 6.0) * distance + 3.0
    return torch.where(distance <= 1.0, near, far)


@helion.kernel
def bicubic_enlarge(x: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return bicubic resizing of planes `[P, H, W]` to `[P, height, width]`, with clamped borders."""
    p, h, w = x.size()
    out = torch.empty([p, height, width], dtype=x.dtype, device=x.device)
    for tile_p, tile_y, tile_x in hl.tile([p, height, width]):
        y = (tile_y.index.to(torch.float32) + 0.5) * (h / height) - 0.5
        z = (tile_x.index.to(torch.float32) + 0.5) * (w / width) - 0.5
        y0, x0 = torch.floor(y), torch.floor(z)
        acc = hl.zeros([tile_p, tile_y, tile_x], dtype=torch.float32)
        for i in hl.static_range(-1, 3):
            rows = torch.clamp(y0.to(torch.int32) + i, 0, h - 1)
            row_weight = cubic_weight(torch.abs(y - y0 - i))
            for j in hl.static_range(-1, 3):
                columns = torch.clamp(x0.to(torch.int32) + j, 0, w - 1)
                weight = row_weight[:, None] * cubic_weight(torch.abs(z - x0 - j))[None, :]
                acc += x[tile_p, rows, columns].to(torch.float32) * weight
        out[tile_p, tile_y, tile_x] = acc.to(x.dtype)
    return out


CELLS.add(
    bicubic_enlarge,
    lambda device, small: (
        (normal(device, 3, 9, 7, dtype=FP16), 20, 13) if small else (normal(device, 96, 256, 256, dtype=FP16), 448, 448)
    ),
    lambda x, height, width: F.interpolate(high(x)[None], (height, width), mode="bicubic")[0].to(x.dtype),
)


@helion.kernel
def power_mean_pool(x: torch.Tensor, power: torch.Tensor, eps: float) -> torch.Tensor:
    """Return generalized means over pixels of `[N, S, C]` with an exponent of each channel."""
    n, _, c = x.size()
    out = torch.empty([n, c], dtype=x.dtype, device=x.device)
    for tile_n, tile_c in hl.tile([n, c]):
        p = power[tile_c]
        v = torch.clamp(x[tile_n, :, tile_c].to(torch.float32), min=eps)
        mean = torch.exp(torch.log(v) * p[None, None, :]).mean(1)
        out[tile_n, tile_c] = torch.pow(mean, 1.0 / p).to(x.dtype)
    return out


def power_mean_pool_torch(x: torch.Tensor, power: torch.Tensor, eps: float) -> torch.Tensor:
    return (torch.clamp(high(x), min=eps) ** power).mean(1).pow(1.0 / power).to(x.dtype)


def make_power_mean_pool(device: str, small: bool) -> Arguments:
    n, s, c = (3, 49, 37) if small else (256, 196, 2048)
    return normal(device, n, s, c, dtype=BF16), torch.rand([c], device=device) * 3 + 1, 1e-6


CELLS.add(power_mean_pool, make_power_mean_pool, power_mean_pool_torch)


@helion.kernel
def strip_means(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return means of the rows and of the columns of planes: `[N, C, H]` and `[N, C, W]` of `x[N, C, H, W]`."""
    n, c, h, w = x.size()
    of_rows = torch.empty([n, c, h], dtype=x.dtype, device=x.device)
    of_columns = torch.empty([n, c, w], dtype=x.dtype, device=x.device)
    for tile_n, tile_c in hl.tile([n, c]):
        plane = x[tile_n, tile_c, :, :].to(torch.float32)
        of_rows[tile_n, tile_c, :] = plane.mean(3).to(x.dtype)
        of_columns[tile_n, tile_c, :] = plane.mean(2).to(x.dtype)
    return of_rows, of_columns


CELLS.add(
    strip_means,
    lambda device, small: (normal(device, *((2, 5, 9, 14) if small else (32, 256, 56, 56)), dtype=BF16),),
    lambda x: (high(x).mean(3).to(x.dtype), high(x).mean(2).to(x.dtype)),
)


@helion.kernel
def involution(x: torch.Tensor, filters: torch.Tensor) -> torch.Tensor:
    """Return 3x3 filters `[N, H, W, G, 9]` of each pixel and group of channels, applied to `x[N, H, W, G, C]`; zeros
    outside."""
    n, h, w, g, c = x.size()
    c = hl.specialize(c)
    out = torch.empty_like(x)
    for tile_n, tile_h, tile_w, tile_g in hl.tile([n, h, w, g]):
        acc = hl.zeros([tile_n, tile_h, tile_w, tile_g, c], dtype=torch.float32)
        for i in hl.static_range(3):
            rows = tile_h.index + (i - 1)
            row_inside = (rows >= 0) & (rows < h)
            for j in hl.static_range(3):
                columns = tile_w.index + (j - 1)
                inside = row_inside[:, None] & ((columns >= 0) & (columns < w))[None, :]
                near = hl.load(
                    x, [tile_n, rows, columns, tile_g, slice(None)], extra_mask=inside[None, :, :, None, None]
                )
                weight = filters[tile_n, tile_h, tile_w, tile_g, 3 * i + j]
                acc += near.to(torch.float32) * weight.to(torch.float32)[..., None]
        out[tile_n, tile_h, tile_w, tile_g, :] = acc.to(x.dtype)
    return out


def involution_torch(x: torch.Tensor, filters: torch.Tensor) -> torch.Tensor:
    h, w = x.size(1), x.size(2)
    padded = F.pad(high(x), (0, 0, 0, 0, 1, 1, 1, 1))
    near = (padded[:, i : i + h, j : j + w] * high(filters)[..., 3 * i + j, None] for i in range(3) for j in range(3))
    return sum(near, start=torch.zeros_like(x)).to(x.dtype)


def make_involution(device: str, small: bool) -> Arguments:
    n, h, w, g, c = (2, 5, 7, 3, 16) if small else (32, 56, 56, 8, 32)
    return normal(device, n, h, w, g, c, dtype=BF16), normal(device, n, h, w, g, 9, dtype=BF16)


CELLS.add(involution, make_involution, involution_torch)


@helion.kernel
def stereo_costs(left: torch.Tensor, right: torch.Tensor, shifts: int) -> torch.Tensor:
    """Return mean products over channels `[N, H, D, W]` of `left[N, H, W, C]` and the pixel of `right` d places
    before."""
    n, h, w, c = left.size()
    out = torch.empty([n, h, shifts, w], dtype=left.dtype, device=left.device)
    for tile_n, tile_h, tile_w in hl.tile([n, h, w], block_size=[1, 1, None]):
        ni, hi = tile_n.begin, tile_h.begin
        own = left[ni, hi, tile_w, :].to(torch.float32)
        for d in range(shifts):
            places = tile_w.index - d
            other = hl.load(right, [ni, hi, places, slice(None)], extra_mask=(places >= 0)[:, None])
            out[ni, hi, d, tile_w] = ((own * other.to(torch.float32)).sum(-1) / c).to(left.dtype)
    return out


def stereo_costs_torch(left: torch.Tensor, right: torch.Tensor, shifts: int) -> torch.Tensor:
    w = left.size(2)
    padded = F.pad(high(right), (0, 0, shifts, 0))
    costs = [(high(left) * padded[:, :, shifts - d : shifts - d + w]).mean(-1) for d in range(shifts)]
    return torch.stack(costs, 2).to(left.dtype)


def make_stereo_costs(device: str, small: bool) -> Arguments:
    n, h, w, c, shifts = (1, 3, 37, 16, 5) if small else (2, 160, 320, 64, 48)
    return normal(device, n, h, w, c, dtype=FP16), normal(device, n, h, w, c, dtype=FP16), shifts


CELLS.add(stereo_costs, make_stereo_costs, stereo_costs_torch)
