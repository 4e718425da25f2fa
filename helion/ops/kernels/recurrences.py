"""Linear recurrences over a sequence: linear attention with decay, the gated delta rule, and the selective scan.

The state of a recurrence stays in registers. Linear attention and the delta rule advance it by a chunk of the sequence
at a time, with matmuls. The selective scan of state-space models advances it by one position at a time. With few channels, parts of
a sequence keep all SMs busy: kernels find the state at the end of each part, and with which state it begins.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.experimental
import helion.language as hl

from .._operators import Operator, check, check_tensor, rows

#: Positions of a chunk of the delta rule.
CHUNK = 64
#: Channels of a program of the scan, and programs of a call, by which the number of parts is chosen; positions of a part
#: (benchmarks/results/ops/nvidia-h200-scan.jsonl).
SCAN_CHANNELS, SCAN_PROGRAMS, SCAN_POSITIONS = 32, 1024, 128


@helion.kernel(static_shapes=False)
def linear_attention_kernel(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, scale: float
) -> torch.Tensor:
    """Compute `scale * q[t] @ state[t]`, with `state[t] = exp(decay[t]) * state[t - 1] + outer(k[t], v[t])`.

    The tensors are `q[H, S, D]`, `k[H, S, D]`, `v[H, S, E]` and fp32 `decay[H, S]`.
    """
    heads, length = q.size(0), q.size(1)
    depth, width = hl.specialize(q.size(2)), hl.specialize(v.size(2))
    out = torch.empty([heads, length, width], dtype=v.dtype, device=q.device)
    for tile_h, tile_e in hl.tile([heads, width], block_size=[1, None]):
        head = tile_h.begin
        state = hl.zeros([depth, tile_e], dtype=torch.float32)
        for chunk in hl.tile(length):
            query, key, value = q[head, chunk, :], k[head, chunk, :], v[head, chunk, tile_e]
            steps = decay[head, chunk]
            since = hl.cumsum(steps, dim=0)  # decay from the beginning of the chunk up to each position
            until = torch.sum(steps, dim=0) - since
            earlier = chunk.index[:, None] >= chunk.index[None, :]
            between = torch.where(earlier, since[:, None] - since[None, :], float("-inf"))
            scores = hl.dot(query, key.T) * torch.exp(between)
            result = hl.dot(scores.to(v.dtype), value)
            result = result + hl.dot(query, state.to(q.dtype)) * torch.exp(since)[:, None]
            out[head, chunk, tile_e] = result * scale
            decayed = (key.to(torch.float32) * torch.exp(until)[:, None]).to(k.dtype)
            state = state * torch.exp(torch.sum(steps, dim=0)) + hl.dot(decayed.T, value)
    return out


@helion.kernel(static_shapes=False)
def delta_chunks_kernel(
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    shared: int,
    chunk: hl.constexpr,
    keeps: hl.constexpr,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute `fresh[H, S, E]` and `erased[H, S, D]` so that `fresh - erased @ state` are the values that a chunk adds.

    `state` is that before the chunk. Within it, the values of a position depend on those before it. This triangular
    system of equations is solved by forward substitution, since products of powers lose all digits where keys repeat.
    One that `keeps` the inverse matrices `[H, S, chunk]` returns them, too.
    """
    heads, length = v.size(0), v.size(1)
    depth, width = hl.specialize(k.size(2)), hl.specialize(v.size(2))
    fresh = torch.empty([heads, length, width], dtype=v.dtype, device=v.device)
    erased = torch.empty([heads, length, depth], dtype=v.dtype, device=v.device)
    inverses = torch.empty([heads, length if keeps else 0, chunk], dtype=v.dtype, device=v.device)
    for tile_h, tile in hl.tile([heads, length], block_size=[1, chunk]):
        head = tile_h.begin
        key = k[head // shared, tile, :]
        rate = beta[head, tile].to(torch.float32)
        since = hl.cumsum(decay[head, tile], dim=0)  # decay from the beginning of the chunk up to each position
        row, column = tile.index[:, None], tile.index[None, :]
        between = torch.exp(torch.where(row > column, since[:, None] - since[None, :], float("-inf")))
        lower = hl.dot(key, key.T) * between * rate[:, None]
        inverse = torch.where(row == column, 1.0, 0.0)
        for step in hl.grid(chunk):
            own = row == tile.begin + step
            factors = torch.sum(torch.where(own, lower, 0.0), dim=0)
            inverse = inverse - torch.where(own, torch.sum(factors[:, None] * inverse, dim=0)[None, :], 0.0)
        solution = inverse.to(v.dtype)
        if keeps:
            inverses[head, tile, :] = solution
        faded = key.to(torch.float32) * (rate * torch.exp(since))[:, None]
        erased[head, tile, :] = hl.dot(solution, faded.to(v.dtype))
        fresh[head, tile, :] = hl.dot(solution, (v[head, tile, :].to(torch.float32) * rate[:, None]).to(v.dtype))
    return fresh, erased, inverses


@helion.kernel(static_shapes=False)
def gated_delta_rule_kernel(
    q: torch.Tensor,
    k: torch.Tensor,
    fresh: torch.Tensor,
    erased: torch.Tensor,
    decay: torch.Tensor,
    state: torch.Tensor,
    shared: int,
    scale: float,
    chunk: hl.constexpr,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the results `[H, S, E]` and the last state, from `state[H, D, E]` and the solutions of all chunks."""
    heads, length = fresh.size(0), fresh.size(1)
    depth, width = hl.specialize(q.size(2)), hl.specialize(fresh.size(2))
    out = torch.empty([heads, length, width], dtype=fresh.dtype, device=q.device)
    last = torch.empty([heads, depth, width], dtype=torch.float32, device=q.device)
    for tile_h, tile_e in hl.tile([heads, width], block_size=[1, None]):
        head = tile_h.begin
        group = head // shared
        memory = state[head, :, tile_e]
        for tile in hl.tile(length, block_size=chunk):
            query, key = q[group, tile, :], k[group, tile, :]
            steps = decay[head, tile]
            since = hl.cumsum(steps, dim=0)
            until = torch.sum(steps, dim=0) - since
            read = hl.dot(erased[head, tile, :], memory.to(fresh.dtype))
            values = (fresh[head, tile, tile_e].to(torch.float32) - read).to(fresh.dtype)
            seen = tile.index[:, None] >= tile.index[None, :]
            between = torch.exp(torch.where(seen, since[:, None] - since[None, :], float("-inf")))
            scores = hl.dot(query, key.T) * between
            result = hl.dot(scores.to(fresh.dtype), values)
            result = result + hl.dot(query, memory.to(q.dtype)) * torch.exp(since)[:, None]
            out[head, tile, tile_e] = result * scale
            decayed = (key.to(torch.float32) * torch.exp(until)[:, None]).to(fresh.dtype)
            memory = memory * torch.exp(torch.sum(steps, dim=0)) + hl.dot(decayed.T, values)
        last[head, :, tile_e] = memory
    return out, last


@helion.kernel(static_shapes=False)
def selective_scan_kernel(
    x: torch.Tensor, dt: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, skip: torch.Tensor
) -> torch.Tensor:
    """Compute `sum(state[t] * c[t]) + skip * x[t]`, with `state[t] = exp(dt[t] * a) * state[t - 1] + dt[t] * b[t] * x[t]`.

    The tensors are `x[B, L, C]`, `dt[B, L, C]`, `a[C, N]`, `b[B, L, N]`, `c[B, L, N]` and `skip[C]`.
    """
    batch, length, channels = x.size()
    states = hl.specialize(a.size(1))
    out = torch.empty([batch, length, channels], dtype=x.dtype, device=x.device)
    for tile_b, tile_c in hl.tile([batch, channels], block_size=[1, None]):
        sequence = tile_b.begin
        rate = a[tile_c, :states].to(torch.float32)
        through = skip[tile_c].to(torch.float32)
        state = hl.zeros([tile_c, states], dtype=torch.float32)
        for t in hl.grid(length):
            value = x[sequence, t, tile_c].to(torch.float32)
            step = dt[sequence, t, tile_c].to(torch.float32)
            entering = (step * value)[:, None] * b[sequence, t, :states].to(torch.float32)[None, :]
            state = state * torch.exp(step[:, None] * rate) + entering
            read = torch.sum(state * c[sequence, t, :states].to(torch.float32)[None, :], dim=-1)
            out[sequence, t, tile_c] = read + through * value
    return out


@helion.kernel(static_shapes=False)
def scan_ends_kernel(
    x: torch.Tensor, dt: torch.Tensor, a: torch.Tensor, b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the last states `[B, C, N]` of scans that begin with 0, and the sums `[B, C]` of their steps."""
    batch, length, channels = x.size()
    states = hl.specialize(a.size(1))
    ends = torch.empty([batch, channels, states], dtype=torch.float32, device=x.device)
    sums = torch.empty([batch, channels], dtype=torch.float32, device=x.device)
    for tile_b, tile_c in hl.tile([batch, channels], block_size=[1, None]):
        sequence = tile_b.begin
        rate = a[tile_c, :states].to(torch.float32)
        state = hl.zeros([tile_c, states], dtype=torch.float32)
        total = hl.zeros([tile_c], dtype=torch.float32)
        for t in hl.grid(length):
            step = dt[sequence, t, tile_c].to(torch.float32)
            entering = step * x[sequence, t, tile_c].to(torch.float32)
            state = state * torch.exp(step[:, None] * rate)
            state = state + entering[:, None] * b[sequence, t, :states].to(torch.float32)[None, :]
            total = total + step
        ends[sequence, tile_c, :] = state
        sums[sequence, tile_c] = total
    return ends, sums


@helion.kernel(static_shapes=False)
def scan_starts_kernel(ends: torch.Tensor, sums: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """Compute the state that each part of a sequence begins with, from `ends[B, P, C, N]` and `sums[B, P, C]`."""
    batch, parts, channels = sums.size()
    states = hl.specialize(a.size(1))
    starts = torch.empty_like(ends)
    for tile_b, tile_c in hl.tile([batch, channels], block_size=[1, None]):
        sequence = tile_b.begin
        rate = a[tile_c, :states].to(torch.float32)
        state = hl.zeros([tile_c, states], dtype=torch.float32)
        for part in hl.grid(parts):
            starts[sequence, part, tile_c, :] = state
            state = state * torch.exp(sums[sequence, part, tile_c][:, None] * rate) + ends[sequence, part, tile_c, :]
    return starts


@helion.kernel(static_shapes=False)
def scan_parts_kernel(
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    skip: torch.Tensor,
    starts: torch.Tensor,
) -> torch.Tensor:
    """Compute what `selective_scan_kernel` does, with a first state `starts[B, C, N]`."""
    batch, length, channels = x.size()
    states = hl.specialize(a.size(1))
    out = torch.empty([batch, length, channels], dtype=x.dtype, device=x.device)
    for tile_b, tile_c in hl.tile([batch, channels], block_size=[1, None]):
        sequence = tile_b.begin
        rate = a[tile_c, :states].to(torch.float32)
        through = skip[tile_c].to(torch.float32)
        state = starts[sequence, tile_c, :states]
        for t in hl.grid(length):
            value = x[sequence, t, tile_c].to(torch.float32)
            step = dt[sequence, t, tile_c].to(torch.float32)
            entering = (step * value)[:, None] * b[sequence, t, :states].to(torch.float32)[None, :]
            state = state * torch.exp(step[:, None] * rate) + entering
            read = torch.sum(state * c[sequence, t, :states].to(torch.float32)[None, :], dim=-1)
            out[sequence, t, tile_c] = read + through * value
    return out


def _scan_parts(batch: int, length: int, channels: int) -> int:
    """Return the number of equal parts of a sequence that gives all SMs programs."""
    programs = batch * -(-channels // SCAN_CHANNELS)
    most = min(SCAN_PROGRAMS // max(programs, 1), length // SCAN_POSITIONS)
    return next((parts for parts in range(most, 1, -1) if length % parts == 0), 1)


def _run_scan(
    x: torch.Tensor, dt: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, skip: torch.Tensor
) -> torch.Tensor:
    batch, length, channels = x.shape
    parts = _scan_parts(batch, length, channels)
    if parts == 1:
        whole: torch.Tensor = selective_scan_kernel(x, dt, a, b, c, skip)
        return whole
    x, dt, b, c = (t.reshape(batch * parts, length // parts, t.size(2)) for t in (x, dt, b, c))
    ends, sums = scan_ends_kernel(x, dt, a, b)
    starts = scan_starts_kernel(ends.unflatten(0, (batch, parts)), sums.unflatten(0, (batch, parts)), a)
    out: torch.Tensor = scan_parts_kernel(x, dt, a, b, c, skip, starts.flatten(0, 1))
    return out.view(batch, length, channels)


def _derived(
    kernel: helion.Kernel, grad: torch.Tensor, inputs: tuple[torch.Tensor, ...], *numbers: float
) -> tuple[torch.Tensor, ...]:
    """Run the backward kernel that the compiler derives from a kernel."""
    found = helion.experimental.backward(kernel, grad, *inputs, *numbers)
    return tuple(g.contiguous() for g in found)


_attention_backward = Operator(
    "linear_attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor decay, float scale) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    linear_attention_kernel,
    run=lambda grad, *args: _derived(linear_attention_kernel, grad, args[:4], args[4]),
    fake=lambda grad, *args: tuple(t.new_empty(t.shape) for t in args[:4]),
)
_scan_backward = Operator(
    "selective_scan_backward(Tensor grad, Tensor x, Tensor dt, Tensor a, Tensor b, Tensor c, Tensor skip) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    selective_scan_kernel,
    run=lambda grad, *args: _derived(selective_scan_kernel, grad, args),
    fake=lambda grad, *args: tuple(t.new_empty(t.shape) for t in args),
)
_attention_backward.differentiate_once()
_scan_backward.differentiate_once()
_attention = Operator(
    "linear_attention(Tensor q, Tensor k, Tensor v, Tensor decay, float scale) -> Tensor",
    linear_attention_kernel,
    fake=lambda q, k, v, decay, scale: v.new_empty(v.shape),
)
_scan = Operator(
    "selective_scan(Tensor x, Tensor dt, Tensor a, Tensor b, Tensor c, Tensor skip) -> Tensor",
    selective_scan_kernel,
    scan_ends_kernel,
    scan_starts_kernel,
    scan_parts_kernel,
    run=_run_scan,
    fake=lambda x, *others: x.new_empty(x.shape),
)


def _run_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    shared: int,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    fresh, erased, _ = delta_chunks_kernel(k, v, decay, beta, shared, CHUNK, False)
    found: tuple[torch.Tensor, torch.Tensor] = gated_delta_rule_kernel(
        q, k, fresh, erased, decay, state, shared, scale, CHUNK
    )
    return found


_delta_rule = Operator(
    "gated_delta_rule(Tensor q, Tensor k, Tensor v, Tensor decay, Tensor beta, Tensor state, SymInt shared, float scale) "
    "-> (Tensor, Tensor)",
    delta_chunks_kernel,
    gated_delta_rule_kernel,
    run=_run_delta_rule,
    fake=lambda q, k, v, decay, beta, state, *options: (v.new_empty(v.shape), state.new_empty(state.shape)),
)


def _save_attention(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors)


def _save_scan(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


_attention.differentiate(
    _save_attention, lambda ctx, grad: (*_attention_backward(grad, *ctx.saved_tensors, ctx.scale), None)
)
_scan.differentiate(_save_scan, lambda ctx, grad: tuple(_scan_backward(grad, *ctx.saved_tensors)))


def linear_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, *, scale: float | None = None
) -> torch.Tensor:
    """Compute causal linear attention with a decay per head and position.

    The state of a head is a matrix: `state[t] = exp(decay[t]) * state[t - 1] + outer(k[t], v[t])`, and the result
    `scale * q[t] @ state[t]`. Sums are in fp32. fp32 tensors are multiplied in TF32 on a GPU. The backward kernel is
    derived by the compiler.

    Args:
        q: `[B, H, S, D]`; float32, bfloat16 or float16.
        k: `[B, H, S, D]` of the same dtype.
        v: `[B, H, S, E]` of the same dtype.
        decay: fp32 `[B, H, S]`, logarithms of the factors of the state, at most 0.
        scale: factor of the result; None means `1 / sqrt(D)`.

    Returns:
        `[B, H, S, E]` in the dtype of `v`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape or device.
    """
    op = "linear_attention"
    check_tensor(op, "q", q, dims=4, least_dims=1)
    check_tensor(op, "k", k, dtypes=(q.dtype,), shape=q.shape, like=q)
    check_tensor(op, "v", v, dtypes=(q.dtype,), dims=4, least_dims=1, like=q)
    check_tensor(op, "v", v, dtypes=(q.dtype,), shape=(*q.shape[:3], v.size(3)))
    check_tensor(op, "decay", decay, dtypes=(torch.float32,), shape=q.shape[:3], like=q)
    factor = q.size(3) ** -0.5 if scale is None else float(scale)
    flat = (*(rows(t, kept=2) for t in (q, k, v)), rows(decay))
    out: torch.Tensor = _attention(*flat, factor)
    return out.view(v.shape)


def gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    *,
    scale: float | None = None,
    state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute causal linear attention whose state forgets what a key held before it writes. There is no gradient.

    The state of a head is a matrix: `kept = exp(decay[t]) * state[t - 1]`, and
    `state[t] = kept + outer(k[t], beta[t] * (v[t] - k[t] @ kept))`. The result is `scale * q[t] @ state[t]`. Models
    divide keys by their length, so that the state stays bounded. Sums are in fp32. fp32 tensors are multiplied in TF32
    on a GPU.

    Args:
        q: `[B, G, S, D]`; float32, bfloat16 or float16. G divides H: consecutive heads of `v` share a head.
        k: `[B, G, S, D]` of the same dtype.
        v: `[B, H, S, E]` of the same dtype.
        decay: fp32 `[B, H, S]`, logarithms of the factors of the state, at most 0.
        beta: `[B, H, S]`, the part that a position writes, from 0 to 1; float32, bfloat16 or float16.
        scale: factor of the result; None means `1 / sqrt(D)`.
        state: fp32 `[B, H, D, E]`, the state before the first position; None means 0.

    Returns:
        The results, `[B, H, S, E]` in the dtype of `v`, and the state after the last position, fp32 `[B, H, D, E]`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape or device.
    """
    op = "gated_delta_rule"
    check_tensor(op, "q", q, dims=4, least_dims=1)
    batch, groups, length, depth = q.shape
    check_tensor(op, "k", k, dtypes=(q.dtype,), shape=q.shape, like=q)
    check_tensor(op, "v", v, dtypes=(q.dtype,), dims=4, least_dims=1, like=q)
    heads, width = v.size(1), v.size(3)
    check_tensor(op, "v", v, dtypes=(q.dtype,), shape=(batch, heads, length, width))
    divides = groups > 0 and heads > 0 and heads % groups == 0
    check(op, "q", divides, f"of a number of heads that divides {heads}", f"{groups} heads")
    check_tensor(op, "decay", decay, dtypes=(torch.float32,), shape=v.shape[:3], like=q)
    check_tensor(op, "beta", beta, shape=v.shape[:3], like=q)
    if state is None:
        state = q.new_zeros(batch, heads, depth, width, dtype=torch.float32)
    check_tensor(op, "state", state, dtypes=(torch.float32,), shape=(batch, heads, depth, width), like=q)
    factor = depth**-0.5 if scale is None else float(scale)
    flat = *(rows(t.detach(), kept=2) for t in (q, k, v)), *(rows(t.detach()) for t in (decay, beta))
    out, last = _delta_rule(*flat, rows(state.detach(), kept=2), heads // groups, factor)
    return out.view(v.shape), last.view(state.shape)


def selective_scan(
    x: torch.Tensor, dt: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, skip: torch.Tensor
) -> torch.Tensor:
    """Compute the scan of a selective state-space model, as in Mamba, in fp32.

    The state of a channel is a vector: `state[t] = exp(dt[t] * a) * state[t - 1] + dt[t] * b[t] * x[t]`, and the result
    `sum(state[t] * c[t]) + skip * x[t]`. The backward kernel is derived by the compiler, and stores the states of all
    positions.

    Args:
        x: `[B, L, C]`; float32, bfloat16 or float16.
        dt: `[B, L, C]`, the step of each position; any of these dtypes.
        a: `[C, N]`; any of these dtypes.
        b: `[B, L, N]`; any of these dtypes.
        c: `[B, L, N]`; any of these dtypes.
        skip: `[C]`; any of these dtypes.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape or device.
    """
    op = "selective_scan"
    check_tensor(op, "x", x, dims=3, least_dims=1)
    batch, length, channels = x.shape
    check_tensor(op, "dt", dt, shape=x.shape, like=x)
    check_tensor(op, "a", a, dims=2, least_dims=1, like=x)
    check_tensor(op, "a", a, shape=(channels, a.size(1)))
    check_tensor(op, "b", b, shape=(batch, length, a.size(1)), like=x)
    check_tensor(op, "c", c, shape=b.shape, like=x)
    check_tensor(op, "skip", skip, shape=(channels,), like=x)
    out: torch.Tensor = _scan(x, dt, a, b, c, skip)
    return out
