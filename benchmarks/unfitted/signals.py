"""Signals and codes: frames, bands, resampling, moving statistics, hashes, bits and distances of strings."""

from __future__ import annotations

import torch

import helion
import helion.language as hl

from .cell import FP16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def mel_energies(real: torch.Tensor, imag: torch.Tensor, bank: torch.Tensor) -> torch.Tensor:
    """Logarithms of the energies of spectra `[T, F]` in the bands of `bank[F, M]`."""
    t, f = real.size()
    m = bank.size(1)
    out = torch.empty([t, m], dtype=torch.float32, device=real.device)
    for frames, bands in hl.tile([t, m]):
        acc = hl.zeros([frames, bands])
        for bins in hl.tile(f):
            re, im = real[frames, bins].to(torch.float32), imag[frames, bins].to(torch.float32)
            power = re * re + im * im
            acc = torch.addmm(acc, power.to(bank.dtype), bank[bins, bands])
        out[frames, bands] = torch.log(torch.clamp(acc, min=1e-10))
    return out


def mel_energies_torch(real: torch.Tensor, imag: torch.Tensor, bank: torch.Tensor) -> torch.Tensor:
    power = high(real) ** 2 + high(imag) ** 2
    return torch.log((power.to(bank.dtype) @ bank).to(power.dtype).clamp(min=1e-10))


def make_mel_energies(device: str, small: bool) -> Arguments:
    t, f, m = (21, 65, 20) if small else (65536, 513, 80)
    return normal(device, t, f, dtype=FP16), normal(device, t, f, dtype=FP16), torch.rand([f, m], device=device).half()


CELLS.add(mel_energies, make_mel_energies, mel_energies_torch)


@helion.kernel
def overlapped_frames(signal: torch.Tensor, window: torch.Tensor, hop: int) -> torch.Tensor:
    """Windowed frames `[B, F, L]` of signals `[B, N]`, each `hop` samples after the one before."""
    b, n = signal.size()
    length = window.size(0)
    count = (n - length) // hop + 1
    out = torch.empty([b, count, length], dtype=signal.dtype, device=signal.device)
    for tile_b, frames, samples in hl.tile([b, count, length]):
        at = frames.index[:, None] * hop + samples.index[None, :]
        out[tile_b, frames, samples] = signal[tile_b, at] * window[samples][None, None, :]
    return out


CELLS.add(
    overlapped_frames,
    lambda device, small: (
        normal(device, *((2, 203) if small else (16, 480000))),
        torch.hann_window(20 if small else 400, device=device),
        7 if small else 160,
    ),
    lambda signal, window, hop: signal.unfold(1, window.size(0), hop) * window,
)


@helion.kernel
def resample_by_phases(x: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """Three samples for each two of `x[B, N]`, by the filters `taps[3, L]` of three phases."""
    b, n = x.size()
    length = hl.specialize(taps.size(1))
    count = (n - length) // 2
    out = torch.empty([b, count, 3], dtype=x.dtype, device=x.device)
    for tile_b, tile in hl.tile([b, count]):
        for phase in hl.static_range(3):
            acc = hl.zeros([tile_b, tile])
            for tap in hl.static_range(length):
                acc += x[tile_b, tile.index * 2 + (2 * phase // 3 + tap)] * taps[phase, tap]
            out[tile_b, tile, phase] = acc
    return out.view(b, count * 3)


def resample_by_phases_torch(x: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    length = taps.size(1)
    count = (x.size(1) - length) // 2
    windows = x.unfold(1, length, 1)
    phases = [(windows[:, 2 * p // 3 :: 2][:, :count] * taps[p]).sum(-1) for p in range(3)]
    return torch.stack(phases, -1).flatten(1)


CELLS.add(
    resample_by_phases,
    lambda device, small: (
        normal(device, *((3, 75) if small else (64, 160000))),
        normal(device, 3, 5 if small else 16, scale=0.2),
    ),
    resample_by_phases_torch,
)


@helion.kernel
def welford_columns(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance of each column of `x[N, C]`, merged tile by tile."""
    n, c = x.size()
    means = torch.empty([c], dtype=torch.float32, device=x.device)
    variances = torch.empty([c], dtype=torch.float32, device=x.device)
    for columns in hl.tile(c):
        mean, squares = hl.zeros([columns]), hl.zeros([columns])
        for rows in hl.tile(n):
            count = rows.end - rows.begin
            values = x[rows, columns].to(torch.float32)
            here = values.sum(0) / count
            centred = values - here[None, :]
            distance = here - mean
            mean = mean + distance * count / rows.end
            squares = squares + (centred * centred).sum(0) + distance * distance * rows.begin * count / rows.end
        means[columns] = mean
        variances[columns] = squares / (n - 1)
    return means, variances


def welford_columns_torch(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    variance, mean = torch.var_mean(high(x), 0)
    return mean, variance


CELLS.add(
    welford_columns,
    lambda device, small: (normal(device, *((40, 63) if small else (8192, 4097)), dtype=FP16),),
    welford_columns_torch,
)


def ordered(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the smaller and the larger of each pair."""
    return torch.minimum(a, b), torch.maximum(a, b)


@helion.kernel
def median_of_five(x: torch.Tensor) -> torch.Tensor:
    """Medians of each five neighbours in the rows of `[B, N]`."""
    b, n = x.size()
    out = torch.empty([b, n - 4], dtype=x.dtype, device=x.device)
    for rows, tile in hl.tile([b, n - 4]):
        v0, v1, v2, v3, v4 = (x[rows, tile.index + i] for i in range(5))
        v0, v1 = ordered(v0, v1)
        v3, v4 = ordered(v3, v4)
        v3 = torch.maximum(v0, v3)
        v1 = torch.minimum(v1, v4)
        v1, v2 = ordered(v1, v2)
        out[rows, tile] = torch.maximum(v1, torch.minimum(v2, v3))
    return out


CELLS.add(
    median_of_five,
    lambda device, small: (
        torch.randint(-999, 999, (5, 77) if small else (1000, 40961), device=device).to(torch.int16),
    ),
    lambda x: x.unfold(1, 5, 1).sort(-1).values[..., 2],
)


@helion.kernel
def autocorrelation(x: torch.Tensor, padded: torch.Tensor, lags: int) -> torch.Tensor:
    """Sums of `x[t] * x[t + lag]` over rows `[B, N]`, divided by those of lag 0; `padded` has zeros at the end."""
    b, n = x.size()
    out = torch.empty([b, lags], dtype=torch.float32, device=x.device)
    for rows, lag in hl.tile([b, lags], block_size=[None, 1]):
        acc, power = hl.zeros([rows]), hl.zeros([rows])
        for tile in hl.tile(n):
            now = x[rows, tile]
            acc += (now * padded[rows, tile.index + lag.begin]).sum(1)
            power += (now * now).sum(1)
        out[rows, lag.begin] = acc / power
    return out


def autocorrelation_torch(x: torch.Tensor, padded: torch.Tensor, lags: int) -> torch.Tensor:
    n = x.size(1)
    sums = torch.stack([(x * padded[:, lag : lag + n]).sum(1) for lag in range(lags)], 1)
    return sums / (x * x).sum(1, keepdim=True)


def make_autocorrelation(device: str, small: bool) -> Arguments:
    b, n, lags = (5, 63, 4) if small else (4096, 4097, 16)
    x = normal(device, b, n) + torch.rand([b, 1], device=device)
    return x, torch.nn.functional.pad(x, (0, lags)), lags


CELLS.add(autocorrelation, make_autocorrelation, autocorrelation_torch)


@helion.kernel
def gram_hashes(tokens: torch.Tensor, buckets: int) -> torch.Tensor:
    """Buckets of the pairs and triples of tokens `[B, T]` that end at each place but the first two: `[B, T - 2, 2]`."""
    b, t = tokens.size()
    out = torch.empty([b, t - 2, 2], dtype=torch.int32, device=tokens.device)
    for rows, tile in hl.tile([b, t - 2]):
        first = tokens[rows, tile].to(torch.int64)
        second = tokens[rows, tile.index + 1].to(torch.int64)
        third = tokens[rows, tile.index + 2].to(torch.int64)
        pair = second * 1000003 ^ third
        out[rows, tile, 0] = (pair % buckets).to(torch.int32)
        out[rows, tile, 1] = ((first * 998244353 ^ pair) % buckets).to(torch.int32)
    return out


def gram_hashes_torch(tokens: torch.Tensor, buckets: int) -> torch.Tensor:
    first, second, third = (tokens[:, i : tokens.size(1) - 2 + i].long() for i in range(3))
    pair = second * 1000003 ^ third
    return torch.stack([pair % buckets, (first * 998244353 ^ pair) % buckets], -1).int()


CELLS.add(
    gram_hashes,
    lambda device, small: (
        torch.randint(0, 50257, (3, 65) if small else (2048, 4097), device=device, dtype=torch.int32),
        1021 if small else 999983,
    ),
    gram_hashes_torch,
)

MULTIPLIERS = (2654435761, 2246822519, 3266489917, 668265263)


@helion.kernel
def bloom_test(keys: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """Keys of which all four hashed bits are set in the words of a filter, whose number is a power of two."""
    bits = words.size(0) * 32
    out = torch.empty([keys.size(0)], dtype=torch.bool, device=keys.device)
    for tile in hl.tile(keys.size(0)):
        key = keys[tile]
        hit = hl.full([tile], 1, dtype=torch.int32)
        for i in hl.static_range(4):
            place = ((key * MULTIPLIERS[i]) >> 11) & (bits - 1)
            hit = hit & (words[place >> 5] >> (place & 31).to(torch.int32))
        out[tile] = (hit & 1) != 0
    return out


def bloom_test_torch(keys: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    hit = torch.ones_like(keys, dtype=torch.int32)
    for multiplier in MULTIPLIERS:
        place = ((keys * multiplier) >> 11) & (words.size(0) * 32 - 1)
        hit = hit & (words[place >> 5] >> (place & 31).int())
    return (hit & 1) != 0


def make_bloom_test(device: str, small: bool) -> Arguments:
    n, size = (1001, 64) if small else (8_000_000, 1 << 18)
    words = [torch.randint(-(1 << 31), 1 << 31, [size], device=device).to(torch.int32) for _ in range(2)]
    return torch.randint(0, 1 << 40, [n], device=device), words[0] | words[1]


CELLS.add(bloom_test, make_bloom_test, bloom_test_torch)


@helion.kernel
def pack_signs(x: torch.Tensor) -> torch.Tensor:
    """Bytes of the signs of each eight numbers in the rows of `[N, K]`, the first in the lowest bit."""
    n, k = x.size()
    groups = x.view(n, k // 8, 8)
    out = torch.empty([n, k // 8], dtype=torch.uint8, device=x.device)
    for rows, columns in hl.tile([n, k // 8]):
        positive = (groups[rows, columns, :] > 0).to(torch.int32)
        out[rows, columns] = (positive << hl.arange(8)).sum(2).to(torch.uint8)
    return out


CELLS.add(
    pack_signs,
    lambda device, small: (normal(device, *((33, 72) if small else (16384, 8192)), dtype=FP16),),
    lambda x: ((x > 0).unflatten(1, (-1, 8)).int() << torch.arange(8, device=x.device)).sum(2).to(torch.uint8),
)


@helion.kernel
def edit_distances(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Edit distances of N pairs of words, stored as `[L, N]` letters."""
    length, n = a.size()
    length = hl.specialize(length)
    out = torch.empty([n], dtype=torch.int32, device=a.device)
    for tile in hl.tile(n):
        above = [hl.full([tile], j, dtype=torch.int32) for j in range(length + 1)]
        for i in hl.static_range(length):
            letter = a[i, tile]
            row = [above[0] + 1]
            for j in hl.static_range(length):
                changed = above[j] + (letter != b[j, tile]).to(torch.int32)
                row.append(torch.minimum(changed, torch.minimum(above[j + 1], row[j]) + 1))
            above = row
        out[tile] = above[length]
    return out


def edit_distances_torch(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    length, n = a.shape
    above = [torch.full([n], j, dtype=torch.int32, device=a.device) for j in range(length + 1)]
    for i in range(length):
        row = [above[0] + 1]
        for j in range(length):
            changed = above[j] + (a[i] != b[j]).int()
            row.append(torch.minimum(changed, torch.minimum(above[j + 1], row[j]) + 1))
        above = row
    return above[length]


CELLS.add(
    edit_distances,
    lambda device, small: tuple(
        torch.randint(0, 4, [4, 63] if small else [10, 1000000], device=device).to(torch.int8) for _ in range(2)
    ),
    edit_distances_torch,
)
