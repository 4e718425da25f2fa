"""Kernels of other fields (images, physics, signals, statistics, sparse tables, recurrent cells) that nothing was tuned on, at
several shapes and dtypes. Tensors are on ``meta``: nothing here is run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from varied_kernels import BF16, FP16, FP32, INT32, tensor

import helion
import helion.language as hl

INT64, FP64 = torch.int64, torch.float64


# --- images --------------------------------------------------------------------------------------------------------------


@helion.kernel()
def five_point_step(x: torch.Tensor, rate: float) -> torch.Tensor:
    """One explicit step of heat on a grid, without its border."""
    h, w = x.size()
    out = torch.empty([h - 2, w - 2], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([h - 2, w - 2]):
        middle = hl.load(x, [i.index + 1, j.index + 1])
        above, below = hl.load(x, [i.index, j.index + 1]), hl.load(x, [i.index + 2, j.index + 1])
        left, right = hl.load(x, [i.index + 1, j.index]), hl.load(x, [i.index + 1, j.index + 2])
        out[i, j] = middle + (above + below + left + right - 4.0 * middle) * rate
    return out


@helion.kernel()
def linear_light_to_luma(x: torch.Tensor) -> torch.Tensor:
    """Three planes, each through the curve of a display, to one."""
    b, _, n = x.size()
    out = torch.empty([b, n], dtype=x.dtype, device=x.device)
    for image, at in hl.tile([b, n]):
        total = hl.zeros([image, at], dtype=torch.float32)
        for plane, share in ((0, 0.2126), (1, 0.7152), (2, 0.0722)):
            value = torch.clamp(x[image, plane, at].to(torch.float32), 0.0, 1.0)
            curved = 1.055 * torch.pow(value + 1e-8, 1.0 / 2.4) - 0.055
            total = total + share * torch.where(value <= 0.0031308, 12.92 * value, curved)
        out[image, at] = total.to(x.dtype)
    return out


@helion.kernel()
def resized_by_two_weights(x: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Each place mixes the four nearest of a plane; where they are is a table of numbers per row and per column."""
    c, p, q = x.size(0), rows.size(0), columns.size(0)
    out = torch.empty([c, p, q], dtype=x.dtype, device=x.device)
    for plane, i, j in hl.tile([c, p, q], block_size=[1, None, None]):
        y, z = rows[i], columns[j]
        top, left = torch.floor(y), torch.floor(z)
        down, over = (y - top)[:, None], (z - left)[None, :]
        t, s = top.to(torch.int32)[:, None], left.to(torch.int32)[None, :]
        a = hl.load(x, [plane.begin, t, s]).to(torch.float32)
        b = hl.load(x, [plane.begin, t, s + 1]).to(torch.float32)
        d = hl.load(x, [plane.begin, t + 1, s]).to(torch.float32)
        e = hl.load(x, [plane.begin, t + 1, s + 1]).to(torch.float32)
        upper, lower = a + (b - a) * over, d + (e - d) * over
        out[plane.begin, i, j] = (upper + (lower - upper) * down).to(x.dtype)
    return out


@helion.kernel()
def pooled_by_three(x: torch.Tensor) -> torch.Tensor:
    """The greatest of three by three, two apart."""
    c, h, w = x.size()
    out = torch.empty([c, (h - 1) // 2, (w - 1) // 2], dtype=x.dtype, device=x.device)
    for plane, i, j in hl.tile(out.size()):
        best = hl.full([plane, i, j], float("-inf"), dtype=torch.float32)
        for down in hl.static_range(3):
            for over in hl.static_range(3):
                values = hl.load(x, [plane, i.index * 2 + down, j.index * 2 + over])
                best = torch.maximum(best, values.to(torch.float32))
        out[plane, i, j] = best.to(x.dtype)
    return out


@helion.kernel()
def channels_normed_in_batch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Statistics of each channel over batch and pixels, then all of it once more."""
    b, c, p = x.size()
    out = torch.empty_like(x)
    for channel in hl.tile(c):
        total = hl.zeros([channel], dtype=torch.float32)
        squares = hl.zeros([channel], dtype=torch.float32)
        for image, pixel in hl.tile([b, p]):
            values = x[image, channel, pixel].to(torch.float32)
            total = total + values.sum(-1).sum(0)
            squares = squares + (values * values).sum(-1).sum(0)
        mean = total / (b * p)
        scale = torch.rsqrt(squares / (b * p) - mean * mean + 1e-5) * weight[channel].to(torch.float32)
        shift = bias[channel].to(torch.float32) - mean * scale
        for image, pixel in hl.tile([b, p]):
            values = x[image, channel, pixel].to(torch.float32)
            out[image, channel, pixel] = (values * scale[None, :, None] + shift[None, :, None]).to(x.dtype)
    return out


# --- physics and signals -------------------------------------------------------------------------------------------------


@helion.kernel()
def attraction(places: torch.Tensor, mass: torch.Tensor) -> torch.Tensor:
    """What all bodies do to each, in three dimensions."""
    n = places.size(1)
    out = torch.empty_like(places)
    for i in hl.tile(n):
        x, y, z = places[0, i], places[1, i], places[2, i]
        fx, fy, fz = hl.zeros([i]), hl.zeros([i]), hl.zeros([i])
        for j in hl.tile(n):
            dx = places[0, j][None, :] - x[:, None]
            dy = places[1, j][None, :] - y[:, None]
            dz = places[2, j][None, :] - z[:, None]
            nearness = torch.rsqrt(dx * dx + dy * dy + dz * dz + 1e-4)
            pull = mass[j][None, :] * nearness * nearness * nearness
            fx = fx + (dx * pull).sum(1)
            fy = fy + (dy * pull).sum(1)
            fz = fz + (dz * pull).sum(1)
        out[0, i] = fx
        out[1, i] = fy
        out[2, i] = fz
    return out


@helion.kernel()
def second_order_filter(x: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """Each channel feeds back what it gave one and two steps before."""
    t, c = x.size()
    out = torch.empty_like(x)
    for channel in hl.tile(c):
        b0, b1, a1, a2 = taps[0, channel], taps[1, channel], taps[2, channel], taps[3, channel]
        first = hl.zeros([channel], dtype=torch.float32)
        second = hl.zeros([channel], dtype=torch.float32)
        for step in hl.grid(t):
            value = x[step, channel].to(torch.float32)
            given = b0 * value + first
            first = b1 * value - a1 * given + second
            second = 0.0 - a2 * given
            out[step, channel] = given.to(x.dtype)
    return out


@helion.kernel()
def power_of_frequencies(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Two products of the same rows, squared and added."""
    m, k = x.size()
    n = cosine.size(1)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for i, j in hl.tile([m, n]):
        real = hl.zeros([i, j], dtype=torch.float32)
        imaginary = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            rows = x[i, d]
            real = hl.dot(rows, cosine[d, j], acc=real)
            imaginary = hl.dot(rows, sine[d, j], acc=imaginary)
        out[i, j] = torch.log(real * real + imaginary * imaginary + 1e-6)
    return out


# --- statistics ----------------------------------------------------------------------------------------------------------


@helion.kernel()
def mixture_density(x: torch.Tensor, square: torch.Tensor, linear: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """The logarithm of a sum of Gaussians with diagonal covariances: two products, and a sum over their columns."""
    m, d = x.size()
    d = hl.specialize(d)
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for i in hl.tile(m):
        rows = x[i, :]
        scores = hl.dot(rows, linear[:, :]) - hl.dot(rows * rows, square[:, :]) + c[:][None, :]
        top = scores.amax(-1)
        out[i] = top + torch.log(torch.exp(scores - top[:, None]).sum(-1))
    return out


@helion.kernel()
def logistic_gradient(x: torch.Tensor, weight: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Each program's part of the gradient of a logistic regression."""
    m, n = x.size()
    rows = hl.register_block_size(m)
    out = torch.empty([helion.cdiv(m, rows), n], dtype=torch.float32, device=x.device)
    for block in hl.tile(m, block_size=rows):
        total = hl.zeros([n], dtype=torch.float32)
        for row in hl.tile(block.begin, block.end):
            values = x[row, :].to(torch.float32)
            guess = torch.sigmoid((values * weight[:].to(torch.float32)).sum(-1))
            total = total + (values * (guess - truth[row])[:, None]).sum(0)
        out[block.id, :] = total
    return out


@helion.kernel()
def divergence_of_gaussians(mean: torch.Tensor, spread: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Of each row, from its mean and the logarithm of its variance, to one of unit variance."""
    out = torch.empty([mean.size(0)], dtype=torch.float32, device=mean.device)
    for row in hl.tile(mean.size(0)):
        log = spread[row, :].to(torch.float32)
        apart = mean[row, :].to(torch.float32) - other[row, :].to(torch.float32)
        out[row] = 0.5 * (torch.exp(log) + apart * apart - 1.0 - log).sum(-1)
    return out


@helion.kernel()
def best_predecessors(score: torch.Tensor, change: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One step of Viterbi: the best way to each state, and where it comes from."""
    b, n = score.size()
    n = hl.specialize(n)
    best = torch.empty_like(score)
    come = torch.empty([b, n], dtype=torch.int32, device=score.device)
    for batch, state in hl.tile([b, n]):
        ways = score[batch, :][:, :, None] + change[:, state][None, :, :]
        best[batch, state] = ways.amax(1)
        come[batch, state] = torch.argmax(ways, dim=1).to(torch.int32)
    return best, come


# --- tables and routes ---------------------------------------------------------------------------------------------------


@helion.kernel()
def two_best_experts(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    m, n = logits.size()
    number = torch.empty([m, 2], dtype=torch.int32, device=logits.device)
    weight = torch.empty([m, 2], dtype=torch.float32, device=logits.device)
    for row in hl.tile(m):
        values = logits[row, :].to(torch.float32)
        first = torch.argmax(values, dim=-1)
        top = values.amax(-1)
        rest = torch.where(hl.arange(n)[None, :] == first[:, None], float("-inf"), values)
        second = torch.argmax(rest, dim=-1)
        share = torch.sigmoid(top - rest.amax(-1))
        number[row, 0] = first.to(torch.int32)
        number[row, 1] = second.to(torch.int32)
        weight[row, 0] = share
        weight[row, 1] = 1.0 - share
    return number, weight


@helion.kernel()
def sparse_rows_times_vector(
    starts: torch.Tensor, columns: torch.Tensor, values: torch.Tensor, x: torch.Tensor
) -> torch.Tensor:
    """Rows of a compressed matrix; each has as many entries as the table says."""
    m = starts.size(0) - 1
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for row in hl.tile(m):
        begin, end = starts[row], starts[row.index + 1]
        longest = (end - begin).amax()
        total = hl.zeros([row], dtype=torch.float32)
        for step in hl.tile(0, longest):
            at = begin[:, None] + step.index[None, :]
            inside = at < end[:, None]
            number = hl.load(columns, [at], extra_mask=inside)
            entry = hl.load(values, [at], extra_mask=inside).to(torch.float32)
            total = total + (entry * hl.load(x, [number], extra_mask=inside).to(torch.float32)).sum(1)
        out[row] = total
    return out


@helion.kernel()
def rows_updated_by_their_size(
    table: torch.Tensor, state: torch.Tensor, ids: torch.Tensor, grad: torch.Tensor, rate: float
) -> torch.Tensor:
    """Row-wise Adagrad: rows of a table that have a gradient, each with one number of state."""
    n = table.size(1)
    for at in hl.tile(ids.size(0)):
        number = ids[at]
        g = grad[at, :].to(torch.float32)
        now = hl.load(state, [number]) + (g * g).mean(-1)
        hl.store(state, [number], now)
        old = hl.load(table, [number, hl.arange(n)]).to(torch.float32)
        new = old - rate * g * torch.rsqrt(now + 1e-10)[:, None]
        hl.store(table, [number, hl.arange(n)], new.to(table.dtype))
    return table


# --- cells with a state --------------------------------------------------------------------------------------------------


@helion.kernel()
def gated_cell(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """A gated recurrent unit: six products, whose sums meet in three gates."""
    b, k = x.size()
    n = h.size(1)
    out = torch.empty_like(h)
    for i, j in hl.tile([b, n]):
        keep = hl.zeros([i, j], dtype=torch.float32)
        reset = hl.zeros([i, j], dtype=torch.float32)
        fresh = hl.zeros([i, j], dtype=torch.float32)
        before = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            rows = x[i, d]
            keep = hl.dot(rows, w[0, d, j], acc=keep)
            reset = hl.dot(rows, w[1, d, j], acc=reset)
            fresh = hl.dot(rows, w[2, d, j], acc=fresh)
        for d in hl.tile(n):
            rows = h[i, d]
            keep = hl.dot(rows, u[0, d, j], acc=keep)
            reset = hl.dot(rows, u[1, d, j], acc=reset)
            before = hl.dot(rows, u[2, d, j], acc=before)
        z = torch.sigmoid(keep)
        new = torch.tanh(fresh + torch.sigmoid(reset) * before)
        out[i, j] = ((1.0 - z) * new + z * h[i, j].to(torch.float32)).to(h.dtype)
    return out


@helion.kernel()
def delta_rule(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rate: torch.Tensor) -> torch.Tensor:
    """Chunks of tokens read a state, and write what it lacks to it."""
    b, n, d = q.size()
    d, e = hl.specialize(d), hl.specialize(v.size(2))
    out = torch.empty_like(v)
    for batch in hl.tile(b, block_size=1):
        state = hl.zeros([d, e], dtype=torch.float32)
        for chunk in hl.tile(n, block_size=32):
            keys = k[batch.begin, chunk, :]
            known = state.to(q.dtype)
            lacks = v[batch.begin, chunk, :].to(torch.float32) - hl.dot(keys, known)
            lacks = (lacks * rate[batch.begin, chunk][:, None]).to(v.dtype)
            out[batch.begin, chunk, :] = hl.dot(q[batch.begin, chunk, :], known).to(v.dtype)
            state = hl.dot(keys.T, lacks, acc=state)
    return out


@helion.kernel()
def attention_by_distance(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """A learned number for each distance is added to the scores; the far ones share one."""
    b, m, d = q.size()
    n, d = k.size(1), hl.specialize(d)
    most = table.size(1) - 1
    out = torch.empty_like(q)
    for batch, i in hl.tile([b, m], block_size=[1, None]):
        rows = q[batch.begin, i, :]
        top = hl.full([i], float("-inf"), dtype=torch.float32)
        total = hl.zeros([i], dtype=torch.float32)
        acc = hl.zeros([i, d], dtype=torch.float32)
        for j in hl.tile(n):
            apart = torch.clamp((i.index[:, None] - j.index[None, :]).abs(), max=most)
            added = hl.load(table, [batch.begin, apart]).to(torch.float32)
            scores = hl.dot(rows, k[batch.begin, j, :].T) * 0.18 + added
            peak = torch.maximum(top, scores.amax(-1))
            p = torch.exp2(scores - peak[:, None])
            fade = torch.exp2(top - peak)
            total = total * fade + p.sum(-1)
            acc = hl.dot(p.to(v.dtype), v[batch.begin, j, :], acc=acc * fade[:, None])
            top = peak
        out[batch.begin, i, :] = (acc / total[:, None]).to(q.dtype)
    return out


# --- cells ---------------------------------------------------------------------------------------------------------------


Made = Iterator[tuple[helion.Kernel, str, tuple[Any, ...]]]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def fields() -> Made:
    """Every kernel at every shape."""
    yield from _images()
    yield from _signals()
    yield from _statistics()
    yield from _tables()
    yield from _states()


def _images() -> Made:
    for (h, w), dtype in (((4096, 4096), FP32), ((1001, 777), FP64)):
        yield five_point_step, f"{h}x{w} {_name(dtype)}", (tensor(h, w, dtype=dtype), 0.1)
    for (b, n), dtype in (((64, 65536), FP16), ((7, 99999), FP32)):
        yield linear_light_to_luma, f"{b}x{n} {_name(dtype)}", (tensor(b, 3, n, dtype=dtype),)
    for (c, h, p), dtype in (((192, 512, 1024), BF16), ((3, 1000, 333), FP32)):
        x, at = tensor(c, h, h, dtype=dtype), tensor(p, dtype=FP32)
        yield resized_by_two_weights, f"{c}x{h}x{p} {_name(dtype)}", (x, at, at)
        yield pooled_by_three, f"{c}x{h} {_name(dtype)}", (x,)
    for (b, c, p), dtype in (((64, 256, 784), BF16), ((10, 63, 1000), FP32)):
        weight = tensor(c, dtype=dtype)
        yield (
            channels_normed_in_batch,
            f"{b}x{c}x{p} {_name(dtype)}",
            (tensor(b, c, p, dtype=dtype), weight, weight),
        )


def _signals() -> Made:
    for n in (16384, 1000):
        yield attraction, f"{n}", (tensor(3, n, dtype=FP32), tensor(n, dtype=FP32))
    for (t, c), dtype in (((4096, 65536), BF16), ((1000, 300), FP32)):
        yield second_order_filter, f"{t}x{c} {_name(dtype)}", (tensor(t, c, dtype=dtype), tensor(4, c, dtype=FP32))
    for (m, k, n), dtype in (((65536, 512, 257), BF16), ((4096, 1024, 512), FP32), ((1000, 400, 201), FP16)):
        part = tensor(k, n, dtype=dtype)
        yield power_of_frequencies, f"{m}x{k}x{n} {_name(dtype)}", (tensor(m, k, dtype=dtype), part, part)


def _statistics() -> Made:
    for (m, d, n), dtype in (((100_000, 64, 128), BF16), ((5000, 32, 64), FP32), ((4097, 128, 256), FP16)):
        part = tensor(d, n, dtype=dtype)
        args = (tensor(m, d, dtype=dtype), part, part, tensor(n, dtype=FP32))
        yield mixture_density, f"{m}x{d}x{n} {_name(dtype)}", args
    for (m, n), dtype in (((65536, 1024), BF16), ((4097, 300), FP32), ((1000, 16384), FP16)):
        x, case = tensor(m, n, dtype=dtype), f"{m}x{n} {_name(dtype)}"
        yield logistic_gradient, case, (x, tensor(n, dtype=dtype), tensor(m, dtype=FP32))
        yield divergence_of_gaussians, case, (x, x, x)
    for (b, n), dtype in (((4096, 128), FP32), ((100, 37), BF16)):
        args = (tensor(b, n, dtype=dtype), tensor(n, n, dtype=dtype))
        yield best_predecessors, f"{b}x{n} {_name(dtype)}", args


def _tables() -> Made:
    for (m, n), dtype in (((65536, 64), BF16), ((4097, 1000), FP32), ((512, 50257), FP16)):
        yield two_best_experts, f"{m}x{n} {_name(dtype)}", (tensor(m, n, dtype=dtype),)
    for (m, entries, n), dtype in (((100_000, 3_000_000, 100_000), FP32), ((1000, 63_000, 4097), BF16)):
        numbers = tensor(m + 1, dtype=INT32), tensor(entries, dtype=INT32)
        args = (*numbers, tensor(entries, dtype=dtype), tensor(n, dtype=dtype))
        yield sparse_rows_times_vector, f"{m}x{entries} {_name(dtype)}", args
    for (rows, n, count), dtype in (((1_000_000, 128, 65536), FP32), ((50_000, 1000, 4097), BF16)):
        args = (tensor(rows, n, dtype=dtype), tensor(rows, dtype=FP32), tensor(count, dtype=INT64))
        case = f"{rows}x{n}x{count} {_name(dtype)}"
        yield rows_updated_by_their_size, case, (*args, tensor(count, n, dtype=dtype), 0.01)


def _states() -> Made:
    for (b, k, n), dtype in (((4096, 1024, 1024), BF16), ((63, 300, 512), FP32), ((1000, 256, 2048), FP16)):
        gates = tensor(3, k, n, dtype=dtype), tensor(3, n, n, dtype=dtype)
        args = (tensor(b, k, dtype=dtype), tensor(b, n, dtype=dtype), *gates)
        yield gated_cell, f"{b}x{k}x{n} {_name(dtype)}", args
    for (b, n, d), dtype in (((64, 2048, 128), BF16), ((16, 1000, 64), FP16)):
        head = tensor(b, n, d, dtype=dtype)
        yield delta_rule, f"{b}x{n}x{d} {_name(dtype)}", (head, head, head, tensor(b, n, dtype=FP32))
    for (b, m, d), dtype in (((64, 2048, 64), BF16), ((16, 1000, 128), FP16), ((8, 512, 64), FP32)):
        head = tensor(b, m, d, dtype=dtype)
        args = (head, head, head, tensor(b, 513, dtype=FP32))
        yield attention_by_distance, f"{b}x{m}x{d} {_name(dtype)}", args
