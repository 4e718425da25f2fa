"""Dynamic programming, recurrences and pitch of sequences."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def viterbi_tags(emissions: torch.Tensor, transitions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return best scores `[B]` and tags `[B, T]` of chains with emissions `[B, T, S]` and transitions `[S, S]` from
    each tag."""
    b, t, s = emissions.size()
    s = hl.specialize(s)
    back = torch.empty([b, t, s], dtype=torch.int32, device=emissions.device)
    tags = torch.empty([b, t], dtype=torch.int32, device=emissions.device)
    best = torch.empty([b], dtype=torch.float32, device=emissions.device)
    for bi in hl.grid(b):
        moves = transitions[:, :]
        score = emissions[bi, 0, :]
        for at in range(1, t):
            through = score[:, None] + moves
            score = torch.amax(through, 0) + emissions[bi, at, :]
            back[bi, at, :] = torch.argmax(through, 0).to(torch.int32)
        best[bi] = torch.amax(score, 0)
        tag = torch.argmax(score, 0).to(torch.int32)
        tags[bi, t - 1] = tag
        for i in range(1, t):
            tag = back[bi, t - i, tag]
            tags[bi, t - 1 - i] = tag
    return best, tags


def viterbi_tags_torch(emissions: torch.Tensor, transitions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    score, back = emissions[:, 0], []
    for at in range(1, emissions.size(1)):
        most, source = (score[:, :, None] + transitions).max(1)
        score = most + emissions[:, at]
        back.append(source)
    best, tag = score.max(1)
    tags = [tag]
    for source in reversed(back):
        tags.append(source.gather(1, tags[-1][:, None])[:, 0])
    return best, torch.stack(tags[::-1], 1).to(torch.int32)


def make_viterbi_tags(device: str, small: bool) -> Arguments:
    b, t, s = (3, 9, 16) if small else (2048, 64, 32)
    return normal(device, b, t, s), normal(device, s, s)


CELLS.add(viterbi_tags, make_viterbi_tags, viterbi_tags_torch)


@helion.kernel
def ctc_alphas(logp: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return losses `[B]` and forward scores `[B, T, 2 L + 1]` of CTC, of log-probabilities `[T, B, V]` (blank is 0)
    and labels `[B, 2 L + 1]` with the blanks between."""
    t, b, _ = logp.size()
    s = hl.specialize(labels.size(1))
    alphas = torch.empty([b, t, s], dtype=torch.float32, device=logp.device)
    loss = torch.empty([b], dtype=torch.float32, device=logp.device)
    low = -1e30
    for bi in hl.grid(b):
        state = hl.arange(s)
        label = labels[bi, :]
        two_before = hl.load(labels, [bi, state - 2], extra_mask=state >= 2)
        skips = (state >= 2) & (label != 0) & (label != two_before)
        alphas[bi, 0, :] = torch.where(state < 2, logp[0, bi, label].to(torch.float32), low)
        for at in range(1, t):
            stay = alphas[bi, at - 1, :]
            one = hl.load(alphas, [bi, at - 1, state - 1], extra_mask=state >= 1)
            one = torch.where(state >= 1, one, low)
            two = hl.load(alphas, [bi, at - 1, state - 2], extra_mask=skips)
            two = torch.where(skips, two, low)
            most = torch.maximum(torch.maximum(stay, one), two)
            total = torch.exp(stay - most) + torch.exp(one - most) + torch.exp(two - most)
            alphas[bi, at, :] = most + torch.log(total) + logp[at, bi, label].to(torch.float32)
        last = alphas[bi, t - 1, s - 1]
        before = alphas[bi, t - 1, s - 2]
        loss[bi] = -torch.logaddexp(last, before)
    return loss, alphas


def ctc_alphas_torch(logp: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    b, s = labels.size()
    low = -1e30
    before = F.pad(labels, (2, 0))[:, :s]
    skips = (torch.arange(s, device=labels.device) >= 2) & (labels != 0) & (labels != before)
    rows = high(logp).gather(2, labels.long().expand(logp.size(0), b, s))
    alphas = [torch.where(torch.arange(s, device=labels.device) < 2, rows[0], low)]
    for at in range(1, logp.size(0)):
        stay = alphas[-1]
        one = F.pad(stay, (1, 0), value=low)[:, :s]
        two = torch.where(skips, F.pad(stay, (2, 0), value=low)[:, :s], low)
        alphas.append(torch.logaddexp(torch.logaddexp(stay, one), two) + rows[at])
    last = alphas[-1]
    return -torch.logaddexp(last[:, -1], last[:, -2]), torch.stack(alphas, 1)


def make_ctc_alphas(device: str, small: bool) -> Arguments:
    t, b, v, length = (11, 3, 17, 4) if small else (100, 256, 1000, 40)
    labels = torch.zeros([b, 2 * length + 1], dtype=torch.int32, device=device)
    labels[:, 1::2] = torch.randint(1, v, [b, length], device=device, dtype=torch.int32)
    return torch.log_softmax(normal(device, t, b, v), -1), labels


CELLS.add(ctc_alphas, make_ctc_alphas, ctc_alphas_torch)


def then(
    cost: torch.Tensor, value: torch.Tensor, more: torch.Tensor, next_value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Join two steps of `value -> min(next_value, value + more)`."""
    return cost + more, torch.minimum(next_value, value + more)


@helion.kernel
def time_warping(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return distances `[N]` of series `x[N, T]` and `y[N, U]` by dynamic time warping, row by row with a scan of
    minima."""
    n, t = x.size()
    u = hl.specialize(y.size(1))
    out = torch.empty([n], dtype=torch.float32, device=x.device)
    row = torch.empty([n, u + 1], dtype=torch.float32, device=x.device)
    for i in hl.grid(n):
        other = y[i, :]
        place = hl.arange(u)
        row[i, 0] = 0.0
        hl.store(row, [i, place + 1], hl.full([u], 1e30, dtype=torch.float32))
        for at in range(t):
            cost = torch.abs(other - x[i, at])
            enter = torch.minimum(hl.load(row, [i, place]), hl.load(row, [i, place + 1])) + cost
            _, reached = hl.associative_scan(then, (cost, enter), dim=0)
            row[i, 0] = 1e30
            hl.store(row, [i, place + 1], reached)
        out[i] = row[i, u]
    return out


def time_warping_torch(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    row = F.pad(torch.full_like(y, 1e30), (1, 0), value=0.0)
    for at in range(x.size(1)):
        cost = (y - x[:, at, None]).abs()
        enter = torch.minimum(row[:, :-1], row[:, 1:]) + cost
        sums = torch.cumsum(cost, 1)
        reached = sums + torch.cummin(enter - sums, 1).values
        row = F.pad(reached, (1, 0), value=1e30)
    return row[:, -1]


def make_time_warping(device: str, small: bool) -> Arguments:
    n, t, u = (3, 9, 13) if small else (2048, 96, 128)
    return normal(device, n, t), normal(device, n, u)


CELLS.add(time_warping, make_time_warping, time_warping_torch)


@helion.kernel
def pitch_differences(x: torch.Tensor, hop: int, lags: int) -> torch.Tensor:
    """Return squared differences `[B, F, L]` of windows of 512 samples and those up to L samples later, each over its
    mean."""
    b, n = x.size()
    frames = (n - 512 - lags) // hop + 1
    out = torch.empty([b, frames, lags], dtype=torch.float32, device=x.device)
    for tile_b, tile_f, tile_l in hl.tile([b, frames, lags], block_size=[1, 1, None]):
        bi, begin = tile_b.begin, tile_f.begin * hop
        acc = hl.zeros([tile_l], dtype=torch.float32)
        for tile_s in hl.tile(512):
            own = x[bi, tile_s.index + begin]
            later = x[bi, begin + tile_s.index[:, None] + tile_l.index[None, :]]
            difference = own[:, None] - later
            acc += (difference * difference).sum(0)
        out[bi, tile_f.begin, tile_l] = acc
    hl.barrier()
    for tile_b, tile_f in hl.tile([b, frames]):
        d = out[tile_b, tile_f, :]
        lag = hl.arange(lags).to(torch.float32)
        mean = torch.cumsum(d, -1) / torch.clamp(lag, min=1.0)
        out[tile_b, tile_f, :] = torch.where(lag > 0, d / torch.clamp(mean, min=1e-9), 1.0)
    return out


def pitch_differences_torch(x: torch.Tensor, hop: int, lags: int) -> torch.Tensor:
    windows = x.unfold(1, 512 + lags, hop)
    own = windows[..., :512]
    d = torch.stack([((own - windows[..., lag : lag + 512]) ** 2).sum(-1) for lag in range(lags)], -1)
    lag = torch.arange(lags, device=x.device)
    mean = torch.cumsum(d, -1) / torch.clamp(lag, min=1)
    return torch.where(lag > 0, d / torch.clamp(mean, min=1e-9), 1.0)


def pitch_differences_baseline(x: torch.Tensor, hop: int, lags: int) -> torch.Tensor:
    windows = x.unfold(1, 512 + lags, hop)
    own, later = windows[..., :512], windows.unfold(2, 512, 1)[:, :, :lags]
    d = ((own[:, :, None] - later) ** 2).sum(-1)
    lag = torch.arange(lags, device=x.device)
    mean = torch.cumsum(d, -1) / torch.clamp(lag, min=1)
    return torch.where(lag > 0, d / torch.clamp(mean, min=1e-9), 1.0)


def make_pitch_differences(device: str, small: bool) -> Arguments:
    b, n, hop, lags = (2, 900, 100, 37) if small else (16, 80000, 160, 256)
    return normal(device, b, n), hop, lags


CELLS.add(pitch_differences, make_pitch_differences, pitch_differences_torch, pitch_differences_baseline)


@helion.kernel
def recurrence_gradient(
    gate: torch.Tensor, states: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return gradients of inputs and gates of `h[t] = gate[t] h[t - 1] + x[t]`, all `[B, T, C]`, from that of the
    states."""
    b, t, c = gate.size()
    grad_x = torch.empty_like(grad)
    grad_gate = torch.empty_like(gate)
    for tile_b, tile_c in hl.tile([b, c], block_size=[1, None]):
        bi = tile_b.begin
        later = hl.zeros([tile_c], dtype=torch.float32)
        for i in range(t):
            at = t - 1 - i
            own = grad[bi, at, tile_c].to(torch.float32) + later
            grad_x[bi, at, tile_c] = own.to(grad.dtype)
            slope = hl.zeros([tile_c], dtype=torch.float32)
            if at > 0:
                slope = own * states[bi, at - 1, tile_c].to(torch.float32)
            grad_gate[bi, at, tile_c] = slope.to(gate.dtype)
            later = own * gate[bi, at, tile_c].to(torch.float32)
    return grad_x, grad_gate


def recurrence_gradient_torch(
    gate: torch.Tensor, states: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    g, a = high(grad), high(gate)
    later, rows = torch.zeros_like(g[:, 0]), []
    for at in range(gate.size(1) - 1, -1, -1):
        rows.append(g[:, at] + later)
        later = rows[-1] * a[:, at]
    own = torch.stack(rows[::-1], 1)
    before = F.pad(high(states), (0, 0, 1, 0))[:, :-1]
    return own.to(grad.dtype), (own * before).to(gate.dtype)


def make_recurrence_gradient(device: str, small: bool) -> Arguments:
    b, t, c = (2, 13, 37) if small else (16, 128, 4096)
    gate = torch.sigmoid(normal(device, b, t, c) + 2).to(BF16)
    return gate, normal(device, b, t, c, dtype=BF16), normal(device, b, t, c, dtype=BF16)


CELLS.add(recurrence_gradient, make_recurrence_gradient, recurrence_gradient_torch)
