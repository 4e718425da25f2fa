"""Statistics and weighted sums over places, channels, tokens or layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, FP16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def global_response_norm(x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """Return global response norm of ConvNeXt: `x[B, H, W, C]` by channels' norms relative to their mean, plus x."""
    b, h, w, c = x.size()
    places = x.view(b, h * w, c)
    norms = torch.empty([b, c], dtype=torch.float32, device=x.device)
    out = torch.empty_like(places)
    for batch, channels in hl.tile([b, c]):
        v = places[batch, :, channels].to(torch.float32)
        norms[batch, channels] = torch.sqrt((v * v).sum(1))
    hl.barrier()
    for batch, rows in hl.tile([b, h * w], block_size=[1, None]):
        i = batch.begin
        norm = norms[i, :]
        scale = norm / (norm.mean(-1) + 1e-6) * gamma[:].to(torch.float32) + 1.0
        v = places[i, rows, :].to(torch.float32)
        out[i, rows, :] = (v * scale[None, :] + beta[:].to(torch.float32)[None, :]).to(x.dtype)
    return out.view(b, h, w, c)


def global_response_norm_torch(x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    v = high(x)
    norm = v.norm(dim=(1, 2), keepdim=True)
    return (high(gamma) * v * (norm / (norm.mean(-1, keepdim=True) + 1e-6)) + high(beta) + v).to(x.dtype)


def make_global_response_norm(device: str, small: bool) -> Arguments:
    b, h, w, c = (2, 5, 6, 20) if small else (128, 28, 28, 768)
    return normal(device, b, h, w, c, dtype=BF16), normal(device, c, dtype=BF16), normal(device, c, dtype=BF16)


CELLS.add(global_response_norm, make_global_response_norm, global_response_norm_torch)


@helion.kernel
def class_map(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return best class of each pixel of `logits[B, C, H, W]`, and its probability."""
    b, c, h, w = logits.size()
    planes = logits.view(b, c, h * w)
    best = torch.empty([b, h * w], dtype=torch.int64, device=logits.device)
    sure = torch.empty([b, h * w], dtype=torch.float32, device=logits.device)
    for batch, places in hl.tile([b, h * w]):
        x = planes[batch, :, places].to(torch.float32)
        top = x.amax(1)
        best[batch, places] = torch.argmax(x, 1)
        sure[batch, places] = 1.0 / torch.exp(x - top[:, None, :]).sum(1)
    return best.view(b, h, w), sure.view(b, h, w)


def class_map_torch(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = high(logits)
    return x.argmax(1), torch.softmax(x, 1).amax(1)


def make_class_map(device: str, small: bool) -> Arguments:
    b, c, h, w = (2, 5, 7, 9) if small else (8, 21, 513, 513)
    x = torch.rand([b, c, h, w], device=device).argsort(1).float()
    return ((x * 0.25 + normal(device, b, 1, h, w)).to(FP16),)


CELLS.add(class_map, make_class_map, class_map_torch)


@helion.kernel
def mixture_of_layers(hidden: torch.Tensor, scores: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
    """Return `gamma[1]` times the mean of `hidden[L, T, D]` over layers, weighted by the softmax of `scores[L]`."""
    layers, t, d = hidden.size()
    layers = hl.specialize(layers)
    out = torch.empty([t, d], dtype=hidden.dtype, device=hidden.device)
    for tokens, cols in hl.tile([t, d]):
        weights = torch.softmax(scores[:], dim=0)
        v = hidden[:, tokens, cols].to(torch.float32)
        out[tokens, cols] = (gamma[0] * (v * weights[:, None, None]).sum(0)).to(hidden.dtype)
    return out


def mixture_of_layers_torch(hidden: torch.Tensor, scores: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
    weights = torch.softmax(scores, 0)[:, None, None]
    return (gamma * (high(hidden) * weights).sum(0)).to(hidden.dtype)


def make_mixture_of_layers(device: str, small: bool) -> Arguments:
    layers, t, d = (5, 13, 24) if small else (25, 8192, 1024)
    return normal(device, layers, t, d, dtype=BF16), normal(device, layers), torch.full([1], 1.5, device=device)


CELLS.add(mixture_of_layers, make_mixture_of_layers, mixture_of_layers_torch)


@helion.kernel
def sentence_embeddings(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return means of the tokens of `hidden[B, T, D]` where `mask[B, T]` is not 0, divided by their 2-norms."""
    b, t, d = hidden.size()
    d = hl.specialize(d)
    out = torch.empty([b, d], dtype=torch.float32, device=hidden.device)
    for i in hl.grid(b):
        total = hl.zeros([d], dtype=torch.float32)
        count = hl.zeros([], dtype=torch.float32)
        for tokens in hl.tile(t):
            valid = mask[i, tokens].to(torch.float32)
            total += (hidden[i, tokens, :].to(torch.float32) * valid[:, None]).sum(0)
            count += valid.sum()
        mean = total / torch.clamp(count, min=1e-9)
        out[i, :] = mean / torch.clamp(torch.sqrt((mean * mean).sum(-1)), min=1e-12)
    return out


def sentence_embeddings_torch(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    valid = mask.to(torch.float32)[:, :, None]
    mean = (high(hidden) * valid).sum(1) / valid.sum(1).clamp(min=1e-9)
    return F.normalize(mean, dim=-1)


def make_sentence_embeddings(device: str, small: bool) -> Arguments:
    b, t, d = (5, 21, 40) if small else (512, 384, 768)
    lengths = torch.randint(t // 2, t + 1, [b, 1], device=device)
    return normal(device, b, t, d, dtype=FP16), (torch.arange(t, device=device) < lengths).to(torch.int64)


CELLS.add(sentence_embeddings, make_sentence_embeddings, sentence_embeddings_torch)


@helion.kernel
def cosine_of_channels(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return cosines of the feature vectors at each place of two images `[B, C, H, W]`."""
    n, c, h, w = a.size()
    left, right = a.flatten(2), b.flatten(2)
    out = torch.empty([n, h * w], dtype=torch.float32, device=a.device)
    for image, places in hl.tile([n, h * w]):
        dot = hl.zeros([image, places], dtype=torch.float32)
        aa = hl.zeros([image, places], dtype=torch.float32)
        bb = hl.zeros([image, places], dtype=torch.float32)
        for channels in hl.tile(c):
            x = left[image, channels, places].to(torch.float32)
            y = right[image, channels, places].to(torch.float32)
            dot += (x * y).sum(1)
            aa += (x * x).sum(1)
            bb += (y * y).sum(1)
        out[image, places] = dot / torch.clamp(torch.sqrt(aa * bb), min=1e-8)
    return out.view(n, h, w)


def cosine_of_channels_torch(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    x, y = high(a), high(b)
    return (x * y).sum(1) / torch.clamp(torch.sqrt((x * x).sum(1) * (y * y).sum(1)), min=1e-8)


def make_cosine_of_channels(device: str, small: bool) -> Arguments:
    n, c, h, w = (2, 19, 5, 7) if small else (16, 256, 75, 101)
    a = normal(device, n, c, h, w)
    return a.to(FP16), (a + normal(device, n, c, h, w)).to(FP16)


CELLS.add(cosine_of_channels, make_cosine_of_channels, cosine_of_channels_torch)


@helion.kernel
def explained_variance(values: torch.Tensor, returns: torch.Tensor) -> torch.Tensor:
    """Share of the variance of each row of `returns[M, N]` that `values` explain."""
    m, _ = values.size()
    out = torch.empty([m], dtype=torch.float32, device=values.device)
    for tile in hl.tile(m):
        r = returns[tile, :].to(torch.float32)
        off = r - values[tile, :].to(torch.float32)
        out[tile] = 1.0 - torch.var(off, -1) / torch.clamp(torch.var(r, -1), min=1e-8)
    return out


def explained_variance_torch(values: torch.Tensor, returns: torch.Tensor) -> torch.Tensor:
    r = high(returns)
    return 1 - torch.var(r - high(values), -1) / torch.var(r, -1).clamp(min=1e-8)


def make_explained_variance(device: str, small: bool) -> Arguments:
    m, n = (9, 77) if small else (1000, 50001)
    returns = normal(device, m, n)
    return returns + 0.5 * normal(device, m, n), returns


CELLS.add(explained_variance, make_explained_variance, explained_variance_torch)


@helion.kernel
def variance_covariance_terms(x: torch.Tensor, target: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return hinge of the standard deviation of each column of `x[M, N]` below a target, and the means: a part of
    VICReg."""
    m, n = x.size()
    hinge = torch.empty([n], dtype=torch.float32, device=x.device)
    mean = torch.empty([n], dtype=torch.float32, device=x.device)
    for cols in hl.tile(n):
        v = x[:, cols].to(torch.float32)
        mu = v.mean(0)
        centered = v - mu[None, :]
        mean[cols] = mu
        hinge[cols] = torch.relu(target - torch.sqrt((centered * centered).sum(0) / (m - 1) + 1e-4))
    return hinge, mean


def variance_covariance_terms_torch(x: torch.Tensor, target: float) -> tuple[torch.Tensor, torch.Tensor]:
    v = high(x)
    return torch.relu(target - torch.sqrt(v.var(0) + 1e-4)), v.mean(0)


def make_variance_covariance_terms(device: str, small: bool) -> Arguments:
    m, n = (33, 50) if small else (8192, 8192)
    return normal(device, m, n, dtype=BF16) + 0.25, 2.0


CELLS.add(variance_covariance_terms, make_variance_covariance_terms, variance_covariance_terms_torch)


@helion.kernel
def unit_heads_gradient(grad: torch.Tensor, qkv: torch.Tensor, part: hl.constexpr) -> torch.Tensor:
    """Return the gradient `[T, H, D]` of dividing heads of one part of `qkv[T, 3, H, D]` by their 2-norms."""
    t, _, h, _ = qkv.size()
    heads = qkv[:, part]
    out = torch.empty_like(grad)
    for tokens, own in hl.tile([t, h]):
        x = heads[tokens, own, :].to(torch.float32)
        g = grad[tokens, own, :].to(torch.float32)
        inverse = torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-12)
        y = x * inverse
        out[tokens, own, :] = ((g - y * (g * y).sum(-1, keepdim=True)) * inverse).to(grad.dtype)
    return out


def unit_heads_gradient_torch(grad: torch.Tensor, qkv: torch.Tensor, part: int) -> torch.Tensor:
    x, g = high(qkv[:, part]), high(grad)
    inverse = torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-12)
    y = x * inverse
    return ((g - y * (g * y).sum(-1, keepdim=True)) * inverse).to(grad.dtype)


def make_unit_heads_gradient(device: str, small: bool) -> Arguments:
    t, h, d = (17, 3, 24) if small else (577 * 40, 16, 80)
    return normal(device, t, h, d, dtype=BF16), normal(device, t, 3, h, d, dtype=BF16), 1


CELLS.add(unit_heads_gradient, make_unit_heads_gradient, unit_heads_gradient_torch)


@helion.kernel
def average_frames(x: torch.Tensor) -> torch.Tensor:
    """Average 5 frames of `x[B, T, D]` around every second one; frames outside do not count."""
    b, t, d = x.size()
    after = (t + 1) // 2
    out = torch.empty([b, after, d], dtype=x.dtype, device=x.device)
    for batch, frames, cols in hl.tile([b, after, d], block_size=[1, None, None]):
        i = batch.begin
        total = hl.zeros([frames, cols], dtype=torch.float32)
        count = hl.zeros([frames], dtype=torch.float32)
        for tap in hl.static_range(5):
            at = 2 * frames.index + tap - 2
            inside = (at >= 0) & (at < t)
            total += hl.load(x, [i, at, cols], extra_mask=inside[:, None]).to(torch.float32)
            count += inside.to(torch.float32)
        out[i, frames, cols] = (total / count[:, None]).to(x.dtype)
    return out


def average_frames_torch(x: torch.Tensor) -> torch.Tensor:
    y = F.avg_pool1d(high(x).transpose(1, 2), 5, 2, 2, count_include_pad=False)
    return y.transpose(1, 2).to(x.dtype).contiguous()


def make_average_frames(device: str, small: bool) -> Arguments:
    b, t, d = (2, 15, 20) if small else (64, 1501, 512)
    return (normal(device, b, t, d, dtype=BF16),)


CELLS.add(average_frames, make_average_frames, average_frames_torch)


@helion.kernel
def gelu_to_planes(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return GELU of `x[B, H, W, C]` plus `bias[C]` as planes `[B, C, H, W]`."""
    b, h, w, c = x.size()
    places = x.view(b, h * w, c)
    out = torch.empty([b, c, h * w], dtype=x.dtype, device=x.device)
    for batch, rows, channels in hl.tile([b, h * w, c], block_size=[1, None, None]):
        i = batch.begin
        y = places[i, rows, channels].to(torch.float32) + bias[channels].to(torch.float32)[None, :]
        out[i, channels, rows] = torch.nn.functional.gelu(y, approximate="tanh").to(x.dtype).T
    return out.view(b, c, h, w)


def gelu_to_planes_torch(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    y = F.gelu(high(x) + high(bias), approximate="tanh")
    return y.to(x.dtype).permute(0, 3, 1, 2).contiguous()


def make_gelu_to_planes(device: str, small: bool) -> Arguments:
    b, h, w, c = (2, 5, 7, 20) if small else (64, 37, 37, 1024)
    return normal(device, b, h, w, c, dtype=FP16), normal(device, c, dtype=FP16)


CELLS.add(gelu_to_planes, make_gelu_to_planes, gelu_to_planes_torch)
