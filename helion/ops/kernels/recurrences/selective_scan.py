"""The scan of a selective state-space model, one position at a time.

With few channels, parts of a sequence keep all SMs busy: kernels find the state at the end of each part, and with which
state it begins.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.experimental
import helion.language as hl

from ..._operators import Operator, check_tensor

#: Channels of a program of the scan, and programs of a call, by which the number of parts is chosen; positions of a part
#: (benchmarks/results/ops/nvidia-h200-scan.jsonl).
SCAN_CHANNELS, SCAN_PROGRAMS, SCAN_POSITIONS = 32, 1024, 128


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


def _run_backward(grad: torch.Tensor, *args: Any) -> tuple[torch.Tensor, ...]:
    """Run the backward kernel that the compiler derives."""
    found = helion.experimental.backward(selective_scan_kernel, grad, *args)
    return tuple(g.contiguous() for g in found)


_backward = Operator(
    "selective_scan_backward(Tensor grad, Tensor x, Tensor dt, Tensor a, Tensor b, Tensor c, Tensor skip) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    selective_scan_kernel,
    run=_run_backward,
    fake=lambda grad, *args: tuple(t.new_empty(t.shape) for t in args),
)
_backward.differentiate_once()
_scan = Operator(
    "selective_scan(Tensor x, Tensor dt, Tensor a, Tensor b, Tensor c, Tensor skip) -> Tensor",
    selective_scan_kernel,
    scan_ends_kernel,
    scan_starts_kernel,
    scan_parts_kernel,
    run=_run_scan,
    fake=lambda x, *others: x.new_empty(x.shape),
)


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


_scan.differentiate(_save, lambda ctx, grad: tuple(_backward(grad, *ctx.saved_tensors)))


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
