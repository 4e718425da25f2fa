"""Series: recurrences, filters over time, sorting steps and counts."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def run_positions(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Position of each element in its run of equal elements, and the number of runs of each row."""
    m, n = x.size()
    where = torch.empty([m, n], dtype=torch.int32, device=x.device)
    runs = torch.empty([m], dtype=torch.int32, device=x.device)
    for tile in hl.tile(m):
        lane = hl.arange(n)
        now = x[tile, :]
        before = hl.load(x, [tile, lane - 1], extra_mask=(lane > 0)[None, :])
        first = (lane[None, :] == 0) | (now != before)
        start = hl.associative_scan(torch.maximum, torch.where(first, lane[None, :], 0), dim=1)
        where[tile, :] = lane[None, :] - start
        runs[tile] = first.to(torch.int32).sum(-1)
    return where, runs


def run_positions_torch(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    n = x.size(1)
    lane = torch.arange(n, device=x.device, dtype=torch.int32)
    first = torch.cat([torch.ones_like(x[:, :1], dtype=torch.bool), x[:, 1:] != x[:, :-1]], 1)
    start = torch.where(first, lane, 0).cummax(1).values
    return lane - start, first.sum(1, dtype=torch.int32)


CELLS.add(
    run_positions,
    lambda device, small: (torch.randint(0, 2, [9, 63] if small else [8192, 1000], device=device, dtype=torch.int8),),
    run_positions_torch,
)


@helion.kernel
def hmm_forward(alpha: torch.Tensor, transition: torch.Tensor, emission: torch.Tensor) -> torch.Tensor:
    """`log sum_i exp(alpha[b, i] + T[i, j]) + emission[b, j]`."""
    b, states = alpha.size()
    out = torch.empty_like(alpha)
    for tb, tj in hl.tile([b, states]):
        top = hl.full([tb, tj], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tb, tj], dtype=torch.float32)
        for ti in hl.tile(states):
            v = alpha[tb, ti][:, :, None] + transition[ti, tj][None, :, :]
            new = torch.maximum(top, v.amax(1))
            total = total * torch.exp(top - new) + torch.exp(v - new[:, None, :]).sum(1)
            top = new
        out[tb, tj] = top + torch.log(total) + emission[tb, tj]
    return out


def hmm_forward_torch(alpha: torch.Tensor, transition: torch.Tensor, emission: torch.Tensor) -> torch.Tensor:
    return torch.logsumexp(alpha[:, :, None] + transition[None], 1) + emission


def make_hmm_forward(device: str, small: bool) -> Arguments:
    b, n = (19, 33) if small else (256, 512)
    return normal(device, b, n), torch.log_softmax(normal(device, n, n), 1), normal(device, b, n)


CELLS.add(hmm_forward, make_hmm_forward, hmm_forward_torch)


@helion.kernel
def word_counts(text: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """ASCII text `[L, W]` in lower case, and words and upper-case letters of each line."""
    lines, width = text.size()
    lower = torch.empty_like(text)
    words = torch.empty([lines], dtype=torch.int32, device=text.device)
    capitals = torch.empty([lines], dtype=torch.int32, device=text.device)
    for tile in hl.tile(lines):
        lane = hl.arange(width)
        c = text[tile, :]
        before = hl.load(text, [tile, lane - 1], extra_mask=(lane > 0)[None, :])
        upper = (c >= 65) & (c <= 90)
        low = torch.where(upper, c + 32, c)
        letter = (low >= 97) & (low <= 122)
        b = torch.where((before >= 65) & (before <= 90), before + 32, before)
        starts = letter & ~((b >= 97) & (b <= 122))
        lower[tile, :] = low
        words[tile] = starts.to(torch.int32).sum(-1)
        capitals[tile] = upper.to(torch.int32).sum(-1)
    return lower, words, capitals


def word_counts_torch(text: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    upper = (text >= 65) & (text <= 90)
    low = torch.where(upper, text + 32, text)
    letter = (low >= 97) & (low <= 122)
    starts = letter & ~F.pad(letter, [1, 0])[:, :-1]
    return low, starts.sum(1, dtype=torch.int32), upper.sum(1, dtype=torch.int32)


CELLS.add(
    word_counts,
    lambda device, small: (
        torch.randint(32, 127, [33, 63] if small else [131072, 256], device=device, dtype=torch.uint8),
    ),
    word_counts_torch,
)


@helion.kernel
def biquad(
    x: torch.Tensor, b0: torch.Tensor, b1: torch.Tensor, b2: torch.Tensor, a1: torch.Tensor, a2: torch.Tensor
) -> torch.Tensor:
    """Second-order IIR filter of each channel of `x[T, C]`, one step after another."""
    t, c = x.size()
    out = torch.empty_like(x)
    for tc in hl.tile(c):
        s1 = hl.zeros([tc], dtype=torch.float32)
        s2 = hl.zeros([tc], dtype=torch.float32)
        p0, p1, p2, q1, q2 = b0[tc], b1[tc], b2[tc], a1[tc], a2[tc]
        for i in hl.grid(t):
            v = x[i, tc]
            y = p0 * v + s1
            s1 = p1 * v - q1 * y + s2
            s2 = p2 * v - q2 * y
            out[i, tc] = y
    return out


def biquad_torch(
    x: torch.Tensor, b0: torch.Tensor, b1: torch.Tensor, b2: torch.Tensor, a1: torch.Tensor, a2: torch.Tensor
) -> torch.Tensor:
    s1, s2 = torch.zeros_like(b0), torch.zeros_like(b0)
    out = []
    for v in x:
        y = b0 * v + s1
        s1, s2 = b1 * v - a1 * y + s2, b2 * v - a2 * y
        out.append(y)
    return torch.stack(out)


def make_biquad(device: str, small: bool) -> Arguments:
    t, c = (40, 63) if small else (64, 262144)
    return normal(device, t, c), *(torch.rand([c], device=device) * 0.4 for _ in range(5))


CELLS.add(biquad, make_biquad, biquad_torch)


@helion.kernel
def fir(x: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """Causal FIR filter of the rows of `x[B, T]`, a loop over its taps."""
    b, t = x.size()
    k = taps.size(0)
    out = torch.empty_like(x)
    for tb, tt in hl.tile([b, t]):
        acc = hl.zeros([tb, tt], dtype=torch.float32)
        for i in range(k):
            at = tt.index - i
            acc += taps[i] * hl.load(x, [tb, at], extra_mask=(at >= 0)[None, :])
        out[tb, tt] = acc
    return out


def fir_torch(x: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    return F.conv1d(F.pad(x[:, None], [taps.size(0) - 1, 0]), taps.flip(0)[None, None])[:, 0]


CELLS.add(
    fir,
    lambda device, small: (normal(device, *((7, 301) if small else (256, 48000))), normal(device, 33, scale=0.1)),
    fir_torch,
)


@helion.kernel
def frame_features(x: torch.Tensor, width: hl.constexpr, hop: hl.constexpr) -> tuple[torch.Tensor, torch.Tensor]:
    """Log energy and zero crossings of overlapping frames of `x[B, T]`."""
    b, t = x.size()
    frames = (t - width) // hop + 1
    energy = torch.empty([b, frames], dtype=torch.float32, device=x.device)
    crossings = torch.empty([b, frames], dtype=torch.int32, device=x.device)
    for tb, tf in hl.tile([b, frames]):
        at = tf.index[:, None] * hop + hl.arange(width)[None, :]
        v = x[tb, at]
        energy[tb, tf] = torch.log((v * v).sum(-1) + 1e-6)
        following = hl.load(x, [tb, at + 1], extra_mask=(hl.arange(width) < width - 1)[None, None, :])
        crossings[tb, tf] = (
            ((v < 0) & (following >= 0) & (hl.arange(width) < width - 1)[None, None, :]).to(torch.int32).sum(-1)
        )
    return energy, crossings


def frame_features_torch(x: torch.Tensor, width: int, hop: int) -> tuple[torch.Tensor, torch.Tensor]:
    f = x.unfold(1, width, hop)
    crossing = (f[..., :-1] < 0) & (f[..., 1:] >= 0)
    return torch.log((f * f).sum(-1) + 1e-6), crossing.sum(-1, dtype=torch.int32)


CELLS.add(
    frame_features,
    lambda device, small: (
        normal(device, *((3, 1000) if small else (128, 160000))),
        64 if small else 400,
        30 if small else 160,
    ),
    frame_features_torch,
)


@helion.kernel
def compare_exchange(x: torch.Tensor, distance: int, block: int) -> torch.Tensor:
    """One stage of a bitonic sort of each row: elements at a distance are put in the order of their block."""
    m, n = x.size()
    out = torch.empty_like(x)
    for rows, columns in hl.tile([m, n]):
        i = columns.index
        partner = i ^ distance
        a, b = x[rows, columns], x[rows, partner]
        first = (i & distance) == 0
        up = (i & block) == 0
        out[rows, columns] = torch.where((first == up)[None, :], torch.minimum(a, b), torch.maximum(a, b))
    return out


def compare_exchange_torch(x: torch.Tensor, distance: int, block: int) -> torch.Tensor:
    i = torch.arange(x.size(1), device=x.device)
    other = x[:, i ^ distance]
    least = ((i & distance) == 0) == ((i & block) == 0)
    return torch.where(least, torch.minimum(x, other), torch.maximum(x, other))


CELLS.add(
    compare_exchange,
    lambda device, small: (
        normal(device, *((9, 64) if small else (4096, 4096))),
        8 if small else 32,
        16 if small else 128,
    ),
    compare_exchange_torch,
)


@helion.kernel
def decayed_states(x: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    """`s[t] = decay[c] s[t - 1] + x[t]` along the middle of `x[B, T, C]`, scanned in tiles of time."""
    b, t, c = x.size()
    out = torch.empty_like(x)
    for tb, tc in hl.tile([b, c]):
        state = hl.zeros([tb, tc], dtype=torch.float32)
        rate = decay[tc]
        for i in range(t):
            state = state * rate[None, :] + x[tb, i, tc].to(torch.float32)
            out[tb, i, tc] = state.to(x.dtype)
    return out


def decayed_states_torch(x: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    state, out = torch.zeros_like(high(x[:, 0])), []
    for i in range(x.size(1)):
        state = state * decay + high(x[:, i])
        out.append(state.to(x.dtype))
    return torch.stack(out, 1)


def make_decayed_states(device: str, small: bool) -> Arguments:
    b, t, c = (2, 50, 33) if small else (16, 64, 16384)
    return normal(device, b, t, c, dtype=BF16), torch.rand([c], device=device)


CELLS.add(decayed_states, make_decayed_states, decayed_states_torch)
