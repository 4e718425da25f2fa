"""Work on images and sequences in other layouts: shuffles, pooling, depthwise filters, caches, sums along time."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, FP16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def deep_to_space(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return pixel shuffle by 2 of `x[B, H, W, 4C]` plus `bias[C]` with SiLU: `[B, 2H, 2W, C]`, channels are last."""
    b, h, w, c4 = x.size()
    c = c4 // 4
    parts = x.view(b * h, w, c, 2, 2)
    out = torch.empty([b, 2 * h, 2 * w, c], dtype=x.dtype, device=x.device)
    cells = out.view(b * h, 2, w, 2, c)
    for rows, columns, channels in hl.tile([b * h, w, c]):
        shift = bias[channels].to(torch.float32)[None, None, :]
        for dy in hl.static_range(2):
            for dx in hl.static_range(2):
                y = parts[rows, columns, channels, dy, dx].to(torch.float32) + shift
                cells[rows, dy, columns, dx, channels] = (y * torch.sigmoid(y)).to(x.dtype)
    return out


def deep_to_space_torch(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    y = F.pixel_shuffle(high(x).permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1)
    return F.silu(y + high(bias)).to(x.dtype).contiguous()


def make_deep_to_space(device: str, small: bool) -> Arguments:
    b, h, w, c = (2, 3, 5, 12) if small else (16, 96, 96, 96)
    return normal(device, b, h, w, 4 * c, dtype=BF16), normal(device, c, dtype=BF16)


CELLS.add(deep_to_space, make_deep_to_space, deep_to_space_torch)


@helion.kernel
def fill_key_pages(
    keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Write tokens `[T, H, D]` to slots of caches in place: keys `[P, H, D / 8, 16, 8]`, values `[P, H, D, 16]`."""
    t, h, d = keys.size()
    h, d = hl.specialize(h), hl.specialize(d)
    page = value_cache.size(3)
    k = keys.view(t, h, d // 8, 8)
    for tokens in hl.tile(t):
        slot = slots[tokens]
        block, place = slot // page, slot % page
        row = k[tokens, :, :, :]
        hh, dd = hl.arange(h), hl.arange(d // 8)
        key_cache[
            block[:, None, None, None],
            hh[None, :, None, None],
            dd[None, None, :, None],
            place[:, None, None, None],
            hl.arange(8)[None, None, None, :],
        ] = row
        value_cache[block[:, None, None], hh[None, :, None], hl.arange(d)[None, None, :], place[:, None, None]] = (
            values[tokens, :, :]
        )
    return key_cache, value_cache


def fill_key_pages_torch(
    keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    block, place = slots // value_cache.size(3), slots % value_cache.size(3)
    key_cache[block, :, :, place] = keys.unflatten(-1, (-1, 8))
    value_cache[block, :, :, place] = values
    return key_cache, value_cache


def make_fill_key_pages(device: str, small: bool) -> Arguments:
    t, h, d, pages = (9, 2, 16, 3) if small else (8192, 8, 128, 1024)
    slots = torch.randperm(pages * 16, device=device)[:t]
    k, v = (normal(device, t, h, d, dtype=BF16) for _ in range(2))
    cache = normal(device, pages, h, d // 8, 16, 8, dtype=BF16)
    return k, v, slots, cache, normal(device, pages, h, d, 16, dtype=BF16)


CELLS.add(fill_key_pages, make_fill_key_pages, fill_key_pages_torch)


@helion.kernel
def symmetrize(a: torch.Tensor) -> torch.Tensor:
    """Return the symmetric part of a square matrix, `(a + a.T) / 2`."""
    n, _ = a.size()
    out = torch.empty_like(a)
    for rows, cols in hl.tile([n, n]):
        out[rows, cols] = 0.5 * (a[rows, cols] + a[cols, rows].T)
    return out


def symmetrize_torch(a: torch.Tensor) -> torch.Tensor:
    return 0.5 * (a + a.T)


def make_symmetrize(device: str, small: bool) -> Arguments:
    n = 67 if small else 6001
    return (normal(device, n, n),)


CELLS.add(symmetrize, make_symmetrize, symmetrize_torch)


@helion.kernel
def shuffle_two_branches(left: torch.Tensor, right: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return channels of `left` and of `relu(right * scale[C])` in turn, both `[B, C, H, W]`: `[B, 2C, H, W]`."""
    b, c, h, w = left.size()
    a, z = left.flatten(2), right.flatten(2)
    out = torch.empty([b, c, 2, h * w], dtype=left.dtype, device=left.device)
    for batch, channels, places in hl.tile([b, c, h * w]):
        out[batch, channels, 0, places] = a[batch, channels, places]
        y = z[batch, channels, places].to(torch.float32) * scale[channels][None, :, None]
        out[batch, channels, 1, places] = torch.relu(y).to(left.dtype)
    return out.view(b, 2 * c, h, w)


def shuffle_two_branches_torch(left: torch.Tensor, right: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    y = torch.relu(high(right) * scale[:, None, None]).to(left.dtype)
    return F.channel_shuffle(torch.cat([left, y], 1), 2)


def shuffle_two_branches_baseline(left: torch.Tensor, right: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    y = torch.relu(high(right) * scale[:, None, None]).to(left.dtype)
    return torch.stack([left, y], 2).flatten(1, 2)


def make_shuffle_two_branches(device: str, small: bool) -> Arguments:
    b, c, h, w = (2, 5, 6, 7) if small else (128, 116, 35, 35)
    left, right = (normal(device, b, c, h, w, dtype=FP16) for _ in range(2))
    return left, right, normal(device, c)


CELLS.add(shuffle_two_branches, make_shuffle_two_branches, shuffle_two_branches_torch, shuffle_two_branches_baseline)


@helion.kernel
def pool_stem(x: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Return max pooling of 3 by 3 with stride 2 and a margin of 1, of `relu(x + shift[C])` for `x[B, H, W, C]`."""
    b, h, w, c = x.size()
    oh, ow = (h + 1) // 2, (w + 1) // 2
    out = torch.empty([b, oh, ow, c], dtype=x.dtype, device=x.device)
    for batch, row, columns, channels in hl.tile([b, oh, ow, c], block_size=[1, 1, None, None]):
        i, y = batch.begin, row.begin
        best = hl.full([columns, channels], float("-inf"), dtype=torch.float32)
        for dy in hl.static_range(3):
            for dx in hl.static_range(3):
                yy = 2 * y + dy - 1
                xx = 2 * columns.index + dx - 1
                inside = (yy >= 0) & (yy < h) & (xx >= 0) & (xx < w)
                v = hl.load(x, [i, yy, xx, channels], extra_mask=inside[:, None]).to(torch.float32)
                best = torch.maximum(best, torch.where(inside[:, None], v, float("-inf")))
        out[i, y, columns, channels] = torch.relu(best + shift[channels][None, :]).to(x.dtype)
    return out


def pool_stem_torch(x: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    y = torch.relu(high(x) + shift).permute(0, 3, 1, 2)
    return F.max_pool2d(y, 3, 2, 1).permute(0, 2, 3, 1).to(x.dtype).contiguous()


def make_pool_stem(device: str, small: bool) -> Arguments:
    b, h, w, c = (2, 7, 9, 12) if small else (128, 112, 112, 64)
    return normal(device, b, h, w, c, dtype=BF16), normal(device, c)


CELLS.add(pool_stem, make_pool_stem, pool_stem_torch)


@helion.kernel
def average_and_max(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and maximum over the places of `x[B, H, W, C]`, both `[B, C]` in fp32."""
    b, h, w, c = x.size()
    places = x.view(b, h * w, c)
    mean = torch.empty([b, c], dtype=torch.float32, device=x.device)
    largest = torch.empty([b, c], dtype=torch.float32, device=x.device)
    for batch, channels in hl.tile([b, c]):
        v = places[batch, :, channels].to(torch.float32)
        mean[batch, channels] = v.mean(1)
        largest[batch, channels] = v.amax(1)
    return mean, largest


def average_and_max_torch(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    v = high(x)
    return v.mean((1, 2)), v.amax((1, 2))


def make_average_and_max(device: str, small: bool) -> Arguments:
    b, h, w, c = (3, 5, 7, 40) if small else (64, 40, 40, 672)
    return (normal(device, b, h, w, c, dtype=FP16) + 0.1,)


CELLS.add(average_and_max, make_average_and_max, average_and_max_torch)


@helion.kernel
def depthwise3_stride2(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Filter channels of `x[B, H, W, C]` by `weight[3, 3, C]` with stride 2, a margin of 1, and hardswish."""
    b, h, w, c = x.size()
    oh, ow = (h + 1) // 2, (w + 1) // 2
    out = torch.empty([b, oh, ow, c], dtype=x.dtype, device=x.device)
    for batch, rows, columns, channels in hl.tile([b, oh, ow, c], block_size=[1, 1, None, None]):
        i, y = batch.begin, rows.begin
        acc = hl.zeros([columns, channels], dtype=torch.float32) + bias[channels].to(torch.float32)[None, :]
        for dy in hl.static_range(3):
            for dx in hl.static_range(3):
                yy = 2 * y + dy - 1
                xx = 2 * columns.index + dx - 1
                inside = (yy >= 0) & (yy < h) & (xx >= 0) & (xx < w)
                v = hl.load(x, [i, yy, xx, channels], extra_mask=inside[:, None]).to(torch.float32)
                acc += v * weight[dy, dx, channels].to(torch.float32)[None, :]
        y_out = acc * torch.clamp(acc / 6.0 + 0.5, 0.0, 1.0)
        out[i, y, columns, channels] = y_out.to(x.dtype)
    return out


def depthwise3_stride2_torch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    kernel = high(weight).permute(2, 0, 1)[:, None]
    y = F.conv2d(high(x).permute(0, 3, 1, 2), kernel, high(bias), stride=2, padding=1, groups=x.size(3))
    return F.hardswish(y).permute(0, 2, 3, 1).to(x.dtype).contiguous()


def depthwise3_stride2_baseline(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    kernel = weight.permute(2, 0, 1)[:, None]
    y = F.conv2d(x.permute(0, 3, 1, 2), kernel, bias, stride=2, padding=1, groups=x.size(3))
    return F.hardswish(high(y)).to(x.dtype).permute(0, 2, 3, 1).contiguous()


def make_depthwise3_stride2(device: str, small: bool) -> Arguments:
    b, h, w, c = (2, 7, 9, 20) if small else (64, 56, 56, 384)
    return normal(device, b, h, w, c, dtype=FP16), normal(device, 3, 3, c, dtype=FP16), normal(device, c, dtype=FP16)


CELLS.add(depthwise3_stride2, make_depthwise3_stride2, depthwise3_stride2_torch, depthwise3_stride2_baseline)


@helion.kernel
def running_features(x: torch.Tensor) -> torch.Tensor:
    """Return means of all frames up to each one: of `x[B, T, D]` along T."""
    b, t, d = x.size()
    out = torch.empty_like(x)
    for batch, cols in hl.tile([b, d], block_size=[1, None]):
        i = batch.begin
        carried = hl.zeros([cols], dtype=torch.float32)
        for frames in hl.tile(t):
            v = x[i, frames, cols].to(torch.float32)
            sums = hl.cumsum(v, 0) + carried[None, :]
            out[i, frames, cols] = (sums / (frames.index + 1).to(torch.float32)[:, None]).to(x.dtype)
            carried += v.sum(0)
    return out


def running_features_torch(x: torch.Tensor) -> torch.Tensor:
    v = high(x)
    counts = torch.arange(1, x.size(1) + 1, device=x.device)
    return (v.cumsum(1) / counts[:, None]).to(x.dtype)


def make_running_features(device: str, small: bool) -> Arguments:
    b, t, d = (2, 37, 20) if small else (64, 1000, 768)
    return (normal(device, b, t, d, dtype=BF16),)


CELLS.add(running_features, make_running_features, running_features_torch)


def log_add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    top = torch.maximum(a, b)
    return top + torch.log1p(torch.exp(torch.minimum(a, b) - top))


@helion.kernel
def running_log_sums(x: torch.Tensor) -> torch.Tensor:
    """Return Log-sum-exp of the elements up to each one, in the rows of `x[M, N]`."""
    out = torch.empty(x.size(), dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = hl.associative_scan(log_add, x[tile, :].to(torch.float32), dim=1)
    return out


def running_log_sums_torch(x: torch.Tensor) -> torch.Tensor:
    return torch.logcumsumexp(high(x), -1)


def running_log_sums_baseline(x: torch.Tensor) -> torch.Tensor:
    v = high(x)
    top = v.amax(-1, keepdim=True)
    return torch.log(torch.exp(v - top).cumsum(-1)) + top


def make_running_log_sums(device: str, small: bool) -> Arguments:
    m, n = (13, 65) if small else (8192, 4097)
    return (normal(device, m, n, dtype=FP16),)


CELLS.add(running_log_sums, make_running_log_sums, running_log_sums_torch, running_log_sums_baseline)


@helion.kernel
def largest_of_neighbours(features: torch.Tensor, neighbours: torch.Tensor) -> torch.Tensor:
    """Return largest difference of each feature to those of K neighbours: features `[N, C]`, neighbours `[N, K]`."""
    n, c = features.size()
    k = hl.specialize(neighbours.size(1))
    out = torch.empty_like(features)
    for points, cols in hl.tile([n, c]):
        best = hl.full([points, cols], float("-inf"), dtype=torch.float32)
        for i in hl.static_range(k):
            best = torch.maximum(best, features[neighbours[points, i], cols].to(torch.float32))
        out[points, cols] = (best - features[points, cols].to(torch.float32)).to(features.dtype)
    return out


def largest_of_neighbours_torch(features: torch.Tensor, neighbours: torch.Tensor) -> torch.Tensor:
    v = high(features)
    return (v[neighbours].amax(1) - v).to(features.dtype)


def make_largest_of_neighbours(device: str, small: bool) -> Arguments:
    n, c, k = (37, 20, 3) if small else (65536, 128, 20)
    return normal(device, n, c, dtype=BF16), torch.randint(0, n, [n, k], device=device)


CELLS.add(largest_of_neighbours, make_largest_of_neighbours, largest_of_neighbours_torch)


@helion.kernel
def merge_image_tokens(
    ids: torch.Tensor, slots: torch.Tensor, table: torch.Tensor, images: torch.Tensor, scale: float
) -> torch.Tensor:
    """Return embeddings of tokens `ids[T]` times `scale`; where `slots[T]` is not -1, that row of `images[V, D]`."""
    t, d = ids.size(0), table.size(1)
    out = torch.empty([t, d], dtype=table.dtype, device=table.device)
    for tokens, cols in hl.tile([t, d]):
        slot = slots[tokens]
        is_image = slot >= 0
        word = hl.load(table, [ids[tokens], cols], extra_mask=~is_image[:, None]).to(torch.float32) * scale
        patch = hl.load(images, [slot, cols], extra_mask=is_image[:, None]).to(torch.float32)
        out[tokens, cols] = torch.where(is_image[:, None], patch, word).to(table.dtype)
    return out


def merge_image_tokens_torch(
    ids: torch.Tensor, slots: torch.Tensor, table: torch.Tensor, images: torch.Tensor, scale: float
) -> torch.Tensor:
    patch = high(images)[slots.clamp(min=0)]
    return torch.where((slots >= 0)[:, None], patch, high(table)[ids] * scale).to(table.dtype)


def merge_image_tokens_baseline(
    ids: torch.Tensor, slots: torch.Tensor, table: torch.Tensor, images: torch.Tensor, scale: float
) -> torch.Tensor:
    patch = high(images[slots.clamp(min=0)])
    return torch.where((slots >= 0)[:, None], patch, high(table[ids]) * scale).to(table.dtype)


def make_merge_image_tokens(device: str, small: bool) -> Arguments:
    t, d, vocabulary, v = (23, 36, 50, 11) if small else (32768, 3584, 32000, 577 * 16)
    slots = torch.randint(-v, v, [t], device=device).clamp(min=-1)
    table, images = normal(device, vocabulary, d, dtype=BF16), normal(device, v, d, dtype=BF16)
    return torch.randint(0, vocabulary, [t], device=device), slots, table, images, 59.87


CELLS.add(merge_image_tokens, make_merge_image_tokens, merge_image_tokens_torch, merge_image_tokens_baseline)
