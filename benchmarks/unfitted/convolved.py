"""Convolutions as products, products in the Fourier space, and losses over all pairs of embeddings."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.nn.grad import conv2d_weight

import helion
import helion.language as hl

from .cell import BF16, FP16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def decoder_conv(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return leaky relu of a transposed 4x4 convolution of stride 2 and padding 1: `x[B, H, W, C]`,
    `weight[4, 4, C, D]`."""
    b, h, w, c = x.size()
    d = weight.size(3)
    out = torch.empty([b, h, 2, w, 2, d], dtype=x.dtype, device=x.device)
    for tile_b, tile_h, part, tile_w, tile_d in hl.tile([b, h, 4, w, d], block_size=[1, 1, 1, None, None]):
        bi, y = tile_b.begin, tile_h.begin
        py, px = part.begin // 2, part.begin % 2
        acc = hl.zeros([tile_w, tile_d], dtype=torch.float32)
        for i in hl.static_range(2):
            row = y + py - i
            for j in hl.static_range(2):
                columns = tile_w.index + (px - j)
                inside = (columns >= 0) & (columns < w) & (row >= 0) & (row < h)
                for tile_c in hl.tile(c):
                    v = hl.load(x, [bi, row, columns, tile_c], extra_mask=inside[:, None])
                    acc = hl.dot(v, weight[1 - py + 2 * i, 1 - px + 2 * j, tile_c, tile_d], acc=acc)
        acc = acc + bias[tile_d].to(torch.float32)[None, :]
        out[bi, y, py, tile_w, px, tile_d] = torch.where(acc > 0, acc, 0.2 * acc).to(x.dtype)
    return out.view(b, 2 * h, 2 * w, d)


def decoder_conv_torch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    y = F.conv_transpose2d(x.permute(0, 3, 1, 2), weight.permute(2, 3, 0, 1), bias, stride=2, padding=1)
    return F.leaky_relu(y, 0.2).permute(0, 2, 3, 1)


def make_decoder_conv(device: str, small: bool) -> Arguments:
    b, h, w, c, d = (2, 4, 6, 32, 24) if small else (16, 32, 32, 512, 256)
    weight = normal(device, 4, 4, c, d, dtype=BF16, scale=0.02)
    return normal(device, b, h, w, c, dtype=BF16), weight, normal(device, d, dtype=BF16)


CELLS.add(decoder_conv, make_decoder_conv, decoder_conv_torch)


@helion.kernel
def positional_conv(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return `x + gelu(conv(x))` of `x[B, T, G, C]` by even numbers of taps `weight[K, G, C, C]` in groups, centred in
    time."""
    b, t, g, c = x.size()
    taps = weight.size(0)
    c = hl.specialize(c)
    out = torch.empty_like(x)
    for tile_b, tile_g, tile_t in hl.tile([b, g, t], block_size=[1, 1, None]):
        bi, gi = tile_b.begin, tile_g.begin
        acc = hl.zeros([tile_t, c], dtype=torch.float32)
        for k in range(taps):
            at = tile_t.index + k - taps // 2
            v = hl.load(x, [bi, at, gi, slice(None)], extra_mask=((at >= 0) & (at < t))[:, None])
            acc = hl.dot(v, weight[k, gi, :, :], acc=acc)
        y = F.gelu(acc + bias[gi, :].to(torch.float32)[None, :])
        out[bi, tile_t, gi, :] = (x[bi, tile_t, gi, :].to(torch.float32) + y).to(x.dtype)
    return out


def positional_conv_torch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    _, t, g, c = x.size()
    filters = weight.permute(1, 3, 2, 0).reshape(g * c, c, -1)
    y = F.conv1d(x.flatten(2).transpose(1, 2), filters, bias.flatten(), padding=weight.size(0) // 2, groups=g)
    return x + F.gelu(y[..., :t]).transpose(1, 2).unflatten(2, (g, c))


def make_positional_conv(device: str, small: bool) -> Arguments:
    b, t, g, c, k = (2, 37, 3, 16, 6) if small else (8, 1500, 16, 48, 128)
    weight = normal(device, k, g, c, c, dtype=BF16, scale=(k * c) ** -0.5)
    return normal(device, b, t, g, c, dtype=BF16), weight, normal(device, g, c, dtype=BF16)


CELLS.add(positional_conv, make_positional_conv, positional_conv_torch)


@helion.kernel
def conv_weight_gradient(x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """Return gradient `[3, 3, C, D]` of the weights of a 3x3 convolution of `x[N, H + 2, W + 2, C]`, from
    `grad[N, H, W, D]`."""
    n, h, w, d = grad.size()
    c = x.size(3)
    out = torch.empty([3, 3, c, d], dtype=torch.float32, device=x.device)
    for tile_i, tile_j, tile_c, tile_d in hl.tile([3, 3, c, d], block_size=[1, 1, None, None]):
        i, j = tile_i.begin, tile_j.begin
        acc = hl.zeros([tile_c, tile_d], dtype=torch.float32)
        for ni, y in hl.grid([n, h]):
            for tile_w in hl.tile(w):
                acc = hl.dot(x[ni, y + i, tile_w.index + j, tile_c].T, grad[ni, y, tile_w, tile_d], acc=acc)
        out[i, j, tile_c, tile_d] = acc
    return out


def conv_weight_gradient_torch(x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    sizes = (grad.size(3), x.size(3), 3, 3)
    found = conv2d_weight(x.permute(0, 3, 1, 2), sizes, grad.permute(0, 3, 1, 2))
    return high(found).permute(2, 3, 1, 0)


def make_conv_weight_gradient(device: str, small: bool) -> Arguments:
    n, h, w, c, d = (2, 3, 16, 32, 24) if small else (8, 28, 28, 256, 256)
    return normal(device, n, h + 2, w + 2, c, dtype=BF16), normal(device, n, h, w, d, dtype=BF16)


CELLS.add(conv_weight_gradient, make_conv_weight_gradient, conv_weight_gradient_torch)


@helion.kernel
def spectral_conv(
    real: torch.Tensor, imag: torch.Tensor, weight_real: torch.Tensor, weight_imag: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return complex products `bim,iom->bom` of the modes of a Fourier layer, each part of numbers a tensor in fp32."""
    b, c, m = real.size()
    d = weight_real.size(1)
    out_real = torch.empty([b, d, m], dtype=torch.float32, device=real.device)
    out_imag = torch.empty([b, d, m], dtype=torch.float32, device=real.device)
    for tile_b, tile_d, tile_m in hl.tile([b, d, m]):
        acc_real = hl.zeros([tile_b, tile_d, tile_m], dtype=torch.float32)
        acc_imag = hl.zeros([tile_b, tile_d, tile_m], dtype=torch.float32)
        for i in range(c):
            xr, xi = real[tile_b, i, tile_m][:, None, :], imag[tile_b, i, tile_m][:, None, :]
            wr, wi = weight_real[i, tile_d, tile_m][None, :, :], weight_imag[i, tile_d, tile_m][None, :, :]
            acc_real += xr * wr - xi * wi
            acc_imag += xr * wi + xi * wr
        out_real[tile_b, tile_d, tile_m] = acc_real
        out_imag[tile_b, tile_d, tile_m] = acc_imag
    return out_real, out_imag


def spectral_conv_torch(
    real: torch.Tensor, imag: torch.Tensor, weight_real: torch.Tensor, weight_imag: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = (each.permute(2, 0, 1) for each in (real, imag))
    u, v = (each.permute(2, 0, 1) for each in (weight_real, weight_imag))
    return (x @ u - y @ v).permute(1, 2, 0), (x @ v + y @ u).permute(1, 2, 0)


def make_spectral_conv(device: str, small: bool) -> Arguments:
    b, c, d, m = (3, 5, 7, 37) if small else (32, 64, 64, 1024)
    return (
        normal(device, b, c, m),
        normal(device, b, c, m),
        normal(device, c, d, m, scale=0.1),
        normal(device, c, d, m, scale=0.1),
    )


CELLS.add(spectral_conv, make_spectral_conv, spectral_conv_torch)


@helion.kernel
def late_interaction(queries: torch.Tensor, documents: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return scores `[N]` of documents `[N, T, D]` of so many tokens: the sums over `queries[Q, D]` of the best
    products."""
    q, d = queries.size()
    n = documents.size(0)
    q, d = hl.specialize(q), hl.specialize(d)
    out = torch.empty([n], dtype=torch.float32, device=queries.device)
    for ni in hl.grid(n):
        own = queries[:, :]
        best = hl.full([q], float("-inf"), dtype=torch.float32)
        length = lengths[ni]
        for tile in hl.tile(length):
            scores = hl.dot(own, documents[ni, tile, :].T)
            best = torch.maximum(best, torch.amax(scores, 1))
        out[ni] = best.sum(0)
    return out


def late_interaction_torch(queries: torch.Tensor, documents: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    scores = high(documents @ queries.T)
    keep = torch.arange(documents.size(1), device=queries.device)[None, :, None] < lengths[:, None, None]
    return scores.masked_fill(~keep, -torch.inf).amax(1).sum(-1)


def make_late_interaction(device: str, small: bool) -> Arguments:
    q, n, t, d = (16, 5, 37, 32) if small else (32, 4096, 180, 128)
    lengths = torch.randint(t // 3, t + 1, [n], device=device, dtype=torch.int32)
    make = (F.normalize(normal(device, *shape), dim=-1).to(FP16) for shape in ((q, d), (n, t, d)))
    return *make, lengths


CELLS.add(late_interaction, make_late_interaction, late_interaction_torch)


@helion.kernel
def cosine_pairs(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return cosines `[M, N]` of all pairs of rows of `x[M, K]` and `y[N, K]`; the norms are sums of the same loop."""
    m, k = x.size()
    n = y.size(0)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        norm_x = hl.zeros([tile_m], dtype=torch.float32)
        norm_y = hl.zeros([tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            a, b = x[tile_m, tile_k], y[tile_n, tile_k]
            acc = hl.dot(a, b.T, acc=acc)
            norm_x += (a.to(torch.float32) * a.to(torch.float32)).sum(-1)
            norm_y += (b.to(torch.float32) * b.to(torch.float32)).sum(-1)
        out[tile_m, tile_n] = (acc * torch.rsqrt(norm_x)[:, None] * torch.rsqrt(norm_y)[None, :]).to(x.dtype)
    return out


def cosine_pairs_torch(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (F.normalize(high(x), dim=-1) @ F.normalize(high(y), dim=-1).T).to(x.dtype)


CELLS.add(
    cosine_pairs,
    lambda device, small: tuple(normal(device, *((37, 65) if small else (6000, 512)), dtype=BF16) for _ in range(2)),
    cosine_pairs_torch,
    lambda x, y: F.normalize(x, dim=-1) @ F.normalize(y, dim=-1).T,
)


@helion.kernel
def hardest_triplets(x: torch.Tensor, labels: torch.Tensor, margin: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return triplet losses `[N]` of rows with the farthest of their class and the nearest of others, and its
    distance."""
    n, d = x.size()
    d = hl.specialize(d)
    loss = torch.empty([n], dtype=torch.float32, device=x.device)
    nearest = torch.empty([n], dtype=torch.float32, device=x.device)
    for rows in hl.tile(n):
        own = x[rows, :]
        own_norm = (own.to(torch.float32) * own.to(torch.float32)).sum(-1)
        own_label = labels[rows]
        far = hl.zeros([rows], dtype=torch.float32)
        near = hl.full([rows], float("inf"), dtype=torch.float32)
        for columns in hl.tile(n):
            other = x[columns, :]
            norm = (other.to(torch.float32) * other.to(torch.float32)).sum(-1)
            square = own_norm[:, None] + norm[None, :] - 2.0 * hl.dot(own, other.T)
            distance = torch.sqrt(torch.clamp(square, min=1e-6))
            same = own_label[:, None] == labels[columns][None, :]
            far = torch.maximum(far, torch.amax(torch.where(same, distance, 0.0), 1))
            near = torch.minimum(near, torch.amin(torch.where(same, float("inf"), distance), 1))
        loss[rows] = torch.relu(far - near + margin)
        nearest[rows] = near
    return loss, nearest


def hardest(products: torch.Tensor, norm: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the farthest row of the same label, and the nearest one of another."""
    distance = torch.sqrt(torch.clamp(norm[:, None] + norm[None] - 2.0 * products, min=1e-6))
    same = labels[:, None] == labels[None]
    return distance.masked_fill(~same, 0.0).amax(1), distance.masked_fill(same, torch.inf).amin(1)


def hardest_triplets_torch(x: torch.Tensor, labels: torch.Tensor, margin: float) -> tuple[torch.Tensor, torch.Tensor]:
    far, near = hardest(high(x) @ high(x).T, (high(x) ** 2).sum(-1), labels)
    return torch.relu(far - near + margin), near


def hardest_triplets_baseline(
    x: torch.Tensor, labels: torch.Tensor, margin: float
) -> tuple[torch.Tensor, torch.Tensor]:
    far, near = hardest(high(x @ x.T), (high(x) ** 2).sum(-1), labels)
    return torch.relu(far - near + margin), near


def make_hardest_triplets(device: str, small: bool) -> Arguments:
    n, d, classes = (37, 32, 6) if small else (8192, 256, 1000)
    return normal(device, n, d, dtype=BF16), torch.randint(0, classes, [n], device=device), 0.3


CELLS.add(hardest_triplets, make_hardest_triplets, hardest_triplets_torch, hardest_triplets_baseline)
