"""Generation of tokens and images: sampling, ragged rows, norms of channels."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, FP16, Arguments, Cells, high, normal, offsets_of

CELLS = Cells()


@helion.kernel
def min_p_sample(logits: torch.Tensor, noise: torch.Tensor, temperature: float, least: float) -> torch.Tensor:
    """Tokens drawn with exponential noise from those with a probability of at least ``least`` of the largest."""
    b, _ = logits.size()
    out = torch.empty([b], dtype=torch.int64, device=logits.device)
    for tile in hl.tile(b):
        x = logits[tile, :].to(torch.float32) / temperature
        p = torch.exp(x - torch.amax(x, -1, keepdim=True))
        kept = torch.where(p >= least, p / noise[tile, :], -1.0)
        out[tile] = torch.argmax(kept, -1)
    return out


def min_p_sample_torch(logits: torch.Tensor, noise: torch.Tensor, temperature: float, least: float) -> torch.Tensor:
    x = high(logits) / temperature
    p = torch.exp(x - x.amax(-1, keepdim=True))
    return torch.argmax(torch.where(p >= least, p / noise, -1.0), -1)


def make_min_p_sample(device: str, small: bool) -> Arguments:
    b, v = (9, 65) if small else (128, 128256)
    return normal(device, b, v, dtype=BF16), -torch.log(torch.rand([b, v], device=device) + 1e-9), 0.7, 0.05


CELLS.add(min_p_sample, make_min_p_sample, min_p_sample_torch)


@helion.kernel
def speculative_accept(
    target: torch.Tensor, draft: torch.Tensor, tokens: torch.Tensor, uniform: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Number of accepted tokens of drafts `[B, K]`, and the probabilities of the next token `[B, V]`."""
    b, k = tokens.size()
    v = target.size(2)
    accepted = torch.empty([b], dtype=torch.int32, device=target.device)
    out = torch.empty([b, v], dtype=torch.float32, device=target.device)
    for row in hl.grid(b):
        count = 0
        for i in range(k):
            token = tokens[row, i]
            fits = uniform[row, i] * draft[row, i, token] < target[row, i, token]
            count = torch.where((count == i) & fits, count + 1, count)
        accepted[row] = count
        last = torch.where(count < k, count, 0)
        other = torch.where(count < k, draft[row, last, :], 0.0)
        left = torch.relu(target[row, count, :] - other)
        out[row, :] = left / left.sum(-1)
    return accepted, out


def speculative_accept_torch(
    target: torch.Tensor, draft: torch.Tensor, tokens: torch.Tensor, uniform: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    b, k = tokens.shape
    rows = torch.arange(b, device=tokens.device)
    own = draft.gather(2, tokens[..., None])[..., 0]
    fits = uniform * own < target[:, :k].gather(2, tokens[..., None])[..., 0]
    count = fits.int().cumprod(1).sum(1)
    other = torch.cat([draft, torch.zeros_like(draft[:, :1])], 1)[rows, count]
    left = torch.relu(target[rows, count] - other)
    return count.to(torch.int32), left / left.sum(-1, keepdim=True)


def make_speculative_accept(device: str, small: bool) -> Arguments:
    b, k, v = (5, 3, 33) if small else (128, 4, 32000)
    target, draft = (torch.softmax(normal(device, b, k + i, v), -1) for i in (1, 0))
    return target, draft, torch.randint(0, v, [b, k], device=device), torch.rand([b, k], device=device)


CELLS.add(speculative_accept, make_speculative_accept, speculative_accept_torch)


@helion.kernel
def beam_step(
    logits: torch.Tensor, scores: torch.Tensor, finished: torch.Tensor, padding: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Four best continuations of each beam: scores plus log-probabilities; finished beams continue with padding only."""
    rows, v = logits.size()
    best = torch.empty([rows, 4], dtype=torch.float32, device=logits.device)
    tokens = torch.empty([rows, 4], dtype=torch.int64, device=logits.device)
    for tile in hl.tile(rows):
        x = torch.log_softmax(logits[tile, :].to(torch.float32), dim=-1)
        lanes = hl.arange(v)[None, :]
        ended = torch.where(lanes == padding, 0.0, -1000.0 - lanes)
        x = torch.where(finished[tile][:, None], ended, x) + scores[tile][:, None]
        for i in hl.static_range(4):
            token = torch.argmax(x, -1)
            best[tile, i] = torch.amax(x, -1)
            tokens[tile, i] = token
            x = torch.where(lanes == token[:, None], float("-inf"), x)
    return best, tokens


def beam_step_torch(
    logits: torch.Tensor, scores: torch.Tensor, finished: torch.Tensor, padding: int
) -> tuple[torch.Tensor, torch.Tensor]:
    lanes = torch.arange(logits.size(1), device=logits.device)
    x = torch.log_softmax(logits.float(), -1)
    ended = torch.where(lanes == padding, 0.0, -1000.0 - lanes)
    best, tokens = torch.topk(torch.where(finished[:, None], ended, x) + scores[:, None], 4)
    return best, tokens


def make_beam_step(device: str, small: bool) -> Arguments:
    rows, v = (9, 65) if small else (512, 50257)
    return normal(device, rows, v), normal(device, rows), torch.rand([rows], device=device) < 0.1, 2


CELLS.add(beam_step, make_beam_step, beam_step_torch)


@helion.kernel
def ragged_softmax(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Softmax of rows of different lengths, packed one after another."""
    rows = offsets.size(0) - 1
    out = torch.empty_like(values)
    for tile in hl.tile(rows):
        start = offsets[tile]
        length = offsets[tile.index + 1] - start
        top = hl.full([tile], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile])
        for part in hl.jagged_tile(length):
            x = values[start[:, None] + part.index[None, :]]
            new = torch.maximum(top, torch.amax(x, 1))
            total = total * torch.exp(top - new) + torch.exp(x - new[:, None]).sum(1)
            top = new
        for part in hl.jagged_tile(length):
            at = start[:, None] + part.index[None, :]
            out[at] = torch.exp(values[at] - top[:, None]) / total[:, None]
    return out


def ragged_softmax_torch(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    rows = offsets.size(0) - 1
    row = torch.searchsorted(offsets, torch.arange(values.size(0), device=values.device), right=True) - 1
    top = torch.full([rows], float("-inf"), device=values.device).scatter_reduce(0, row, values, "amax")
    p = torch.exp(values - top[row])
    return p / torch.zeros([rows], device=values.device).index_add(0, row, p)[row]


def make_ragged_softmax(device: str, small: bool) -> Arguments:
    offsets = offsets_of(*((21, 1, 70) if small else (65536, 1, 300)))
    return normal(device, int(offsets[-1])), offsets.to(device)


CELLS.add(ragged_softmax, make_ragged_softmax, ragged_softmax_torch)


@helion.kernel
def group_norm_silu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, groups: int) -> torch.Tensor:
    """Group norm of images `[N, S, C]` with channels last, then a silu; two passes over each group."""
    n, s, c = x.size()
    width = c // groups
    out = torch.empty_like(x)
    packed, result = x.view(n, s, groups, width), out.view(n, s, groups, width)
    gains, shifts = weight.view(groups, width), bias.view(groups, width)
    for image, group in hl.grid([n, groups]):
        total, squares = hl.zeros([], dtype=torch.float32), hl.zeros([], dtype=torch.float32)
        for rows in hl.tile(s):
            v = packed[image, rows, group, :].to(torch.float32)
            total += v.sum()
            squares += (v * v).sum()
        mean = total / (s * width)
        inverse = torch.rsqrt(squares / (s * width) - mean * mean + 1e-5)
        for rows in hl.tile(s):
            v = (packed[image, rows, group, :].to(torch.float32) - mean) * inverse
            v = v * gains[group, :].to(torch.float32)[None, :] + shifts[group, :].to(torch.float32)[None, :]
            result[image, rows, group, :] = (v * torch.sigmoid(v)).to(x.dtype)
    return out


def group_norm_silu_torch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, groups: int) -> torch.Tensor:
    v = F.group_norm(high(x).transpose(1, 2), groups, high(weight), high(bias))
    return F.silu(v).transpose(1, 2).contiguous().to(x.dtype)


def make_group_norm_silu(device: str, small: bool) -> Arguments:
    n, s, c, groups = (2, 37, 30, 3) if small else (16, 4096, 320, 32)
    return normal(device, n, s, c, dtype=BF16), normal(device, c, dtype=BF16), normal(device, c, dtype=BF16), groups


CELLS.add(group_norm_silu, make_group_norm_silu, group_norm_silu_torch)


@helion.kernel
def channels_first_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Layer norm over the channels of images `[N, C, S]`."""
    n, _, s = x.size()
    out = torch.empty_like(x)
    for image, places in hl.tile([n, s]):
        v = x[image, :, places].to(torch.float32)
        v = v - v.mean(1, keepdim=True)
        v = v * torch.rsqrt((v * v).mean(1, keepdim=True) + 1e-6)
        v = v * weight[:].to(torch.float32)[None, :, None] + bias[:].to(torch.float32)[None, :, None]
        out[image, :, places] = v.to(x.dtype)
    return out


def channels_first_norm_torch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    v = F.layer_norm(high(x).transpose(1, 2), [x.size(1)], high(weight), high(bias), 1e-6)
    return v.transpose(1, 2).contiguous().to(x.dtype)


def make_channels_first_norm(device: str, small: bool) -> Arguments:
    n, c, s = (2, 33, 63) if small else (64, 192, 56 * 56)
    return normal(device, n, c, s, dtype=FP16), normal(device, c, dtype=FP16), normal(device, c, dtype=FP16)


CELLS.add(channels_first_norm, make_channels_first_norm, channels_first_norm_torch)


@helion.kernel
def token_shift(x: torch.Tensor, mix: torch.Tensor) -> torch.Tensor:
    """Five mixtures `[5, B, T, C]` of each token of `x[B, T, C]` and the token before it."""
    b, t, c = x.size()
    out = torch.empty([5, b, t, c], dtype=x.dtype, device=x.device)
    for sequence, rows, columns in hl.tile([b, t, c]):
        own = x[sequence, rows, columns].to(torch.float32)
        at = rows.index - 1
        before = hl.load(x, [sequence, at, columns], extra_mask=(at >= 0)[None, :, None]).to(torch.float32)
        for i in hl.static_range(5):
            weight = mix[i, columns].to(torch.float32)[None, None, :]
            out[i, sequence, rows, columns] = (own + (before - own) * weight).to(x.dtype)
    return out


def token_shift_torch(x: torch.Tensor, mix: torch.Tensor) -> torch.Tensor:
    own = high(x)
    before = F.pad(own, (0, 0, 1, 0))[:, :-1]
    return (own + (before - own) * high(mix)[:, None, None]).to(x.dtype)


def make_token_shift(device: str, small: bool) -> Arguments:
    b, t, c = (2, 21, 33) if small else (4, 1000, 4096)
    return normal(device, b, t, c, dtype=BF16), torch.rand([5, c], device=device).to(BF16)


CELLS.add(token_shift, make_token_shift, token_shift_torch)


@helion.kernel
def add_norm_fp8(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Residual sum in place, its RMS norm in e4m3, and a scale for each row."""
    m, n = x.size()
    out = torch.empty([m, n], dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty([m], dtype=torch.float32, device=x.device)
    for rows in hl.tile(m):
        v = x[rows, :].to(torch.float32) + residual[rows, :].to(torch.float32)
        residual[rows, :] = v.to(residual.dtype)
        v = v * torch.rsqrt((v * v).mean(-1, keepdim=True) + 1e-6) * weight[:].to(torch.float32)[None, :]
        scale = torch.clamp(torch.abs(v).amax(-1), min=1e-6) / 448.0
        scales[rows] = scale
        out[rows, :] = (v / scale[:, None]).to(torch.float8_e4m3fn)
    return out, scales, residual


def add_norm_fp8_torch(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    v = high(x) + high(residual)
    kept = residual.copy_(v)
    v = v * torch.rsqrt((v * v).mean(-1, keepdim=True) + 1e-6) * high(weight)
    scale = torch.clamp(v.abs().amax(-1), min=1e-6) / 448.0
    return (v / scale[:, None]).to(torch.float8_e4m3fn), scale, kept


def make_add_norm_fp8(device: str, small: bool) -> Arguments:
    m, n = (33, 63) if small else (8192, 5120)
    return normal(device, m, n, dtype=BF16), normal(device, m, n, dtype=BF16), normal(device, n, dtype=BF16)


CELLS.add(add_norm_fp8, make_add_norm_fp8, add_norm_fp8_torch)
