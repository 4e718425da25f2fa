"""The race detector of the interpreter: which pairs of accesses it takes for a race, within a program and between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import helion
import helion.language as hl
from helion import exc
from helion.backends.triton.execute.interpreter import interpret
from helion.backends.triton.execute.interpreter.races import WatchedTensor, detect_races, is_detecting


@triton.jit
def moved_back(x, n: tl.constexpr):
    t = tl.arange(0, n)
    tl.store(x + t, tl.load(x + t + 1))


@triton.jit
def moved_back_in_order(x, n: tl.constexpr):
    t = tl.arange(0, n)
    v = tl.load(x + t + 1)
    tl.debug_barrier()
    tl.store(x + t, v)


@triton.jit
def read_back(x, n: tl.constexpr):
    t = tl.arange(0, n)
    tl.store(x + t, t)
    tl.store(x + n + t, tl.load(x + t))


@triton.jit
def turned(x, n: tl.constexpr):
    t = tl.arange(0, n)
    tl.store(x + (n - 1 - t), tl.load(x + t))


@triton.jit
def transposed_in_place(x, n: tl.constexpr):
    a = tl.arange(0, n)[:, None]
    b = tl.arange(0, n)[None, :]
    tl.store(x + a * n + b, tl.trans(tl.load(x + a * n + b)))


@triton.jit
def by_other_rows(x, n: tl.constexpr):
    """Two accesses with the dimensions exchanged, of the same lanes."""
    a = tl.arange(0, n)[:, None]
    b = tl.arange(0, n)[None, :]
    v = tl.load(x + a * n + b)
    tl.store(x + tl.trans(a) * n + tl.trans(b), tl.trans(v) + 1)


@triton.jit
def wider(x, n: tl.constexpr):
    """Half as many lanes of twice the width."""
    t = tl.arange(0, n)
    tl.store(x + t, t.to(tl.int16))
    wide = tl.load(x.to(tl.pointer_type(tl.int32)) + tl.arange(0, n // 2))
    tl.store(x.to(tl.pointer_type(tl.int32)) + n // 2 + tl.arange(0, n // 2), wide)


@triton.jit
def counted(x, out, n: tl.constexpr):
    t = tl.arange(0, n)
    tl.atomic_add(out + t * 0, tl.load(x + t))
    tl.atomic_add(out + t % 2, 1)


@triton.jit
def counted_and_read(x, out, n: tl.constexpr):
    tl.atomic_add(out + tl.arange(0, n), 1)
    tl.store(x, tl.load(out))


@triton.jit
def masked_apart(x, n: tl.constexpr):
    t = tl.arange(0, n)
    tl.store(x + t, t, mask=t < n // 2)
    v = tl.load(x + n - 1 - t, mask=t < n // 2, other=0)
    tl.store(x + 2 * n + t, v)


def run(kernel: Any, *args: Any, grid: tuple[int, ...] = (1,), **options: Any) -> None:
    with detect_races():
        interpret(kernel, grid, args, options)


def ints(n: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.arange(n, dtype=dtype)


RACES: list[tuple[Any, tuple[Any, ...], int, str]] = [
    (moved_back, (ints(257), 256), 4, r"x\[1\] is read .*, then written"),
    (read_back, (ints(128), 64), 4, r"x\[0\] is written .*, then read"),
    (turned, (ints(256), 256), 4, r"x\[\d+\] is read .*, then written"),
    (wider, (ints(1024, torch.int16), 512), 4, r"x\[0\] is written .*, then read"),
    (counted_and_read, (ints(4), ints(256), 256), 4, r"out\[0\] is updated .*, then read"),
]
HARMLESS: list[tuple[Any, tuple[Any, ...], int]] = [
    (moved_back_in_order, (ints(257), 256), 4),
    (read_back, (ints(512), 256), 4),
    (transposed_in_place, (ints(256), 16), 4),
    (by_other_rows, (ints(256), 16), 4),
    (counted, (ints(256), ints(2), 256), 4),
    (masked_apart, (ints(1024), 256), 4),
]


@pytest.mark.parametrize(("kernel", "args", "warps", "message"), RACES, ids=lambda v: getattr(v, "__name__", ""))
def test_races_of_threads(kernel: Any, args: tuple[Any, ...], warps: int, message: str) -> None:
    with pytest.raises(exc.DataRace, match=message + r".*no barrier in between"):
        run(kernel, *args, num_warps=warps)
    assert not is_detecting()


@pytest.mark.parametrize(("kernel", "args", "warps"), HARMLESS, ids=lambda v: getattr(v, "__name__", ""))
def test_one_thread_does_not_race(kernel: Any, args: tuple[Any, ...], warps: int) -> None:
    run(kernel, *args, num_warps=warps)


def test_more_threads_than_lanes_load_what_one_stored() -> None:
    run(read_back, ints(512), 256, num_warps=8)
    with pytest.raises(exc.DataRace):
        run(read_back, ints(512), 256, num_warps=16)


# --- between programs ---------------------------------------------------------------------------------------------------


def shared_sum(x, out):
    for t in hl.tile(x.size(0)):
        out[t.id * 0] = x[t].sum()
    return out


def same_value(x, out):
    for _ in hl.tile(x.size(0)):
        out[0] = 1.0
    return out


def neighbours(x, out):
    for t in hl.tile(1, x.size(0)):
        x[t] = hl.load(x, [t.index - 1]) + 1
    return x


def ahead(x, out):
    for t in hl.tile(x.size(0) - 1):
        x[t] = hl.load(x, [t.index + 1]) + 1
    return x


def scattered(x, out):
    for t in hl.tile(x.size(0)):
        hl.store(out, [(t.index * 7) % 64], x[t])
    return out


def permuted(x, out):
    for t in hl.tile(x.size(0)):
        hl.store(out, [(t.index * 7) % 128], x[t])
    return out


def atomically(x, out):
    for t in hl.tile(x.size(0)):
        hl.atomic_add(out, [0], x[t].sum())
    return out


def atomically_and_read(x, out):
    for t in hl.tile(x.size(0)):
        hl.atomic_add(out, [t.index], x[t])
        x[t] = x[t] + out[0]
    return out


def behind_a_lock(x, out):
    for t in hl.tile(x.size(0)):
        hl.store(out, [t.id + 1], x[t].sum())
        done = hl.atomic_add(out, [0], 1.0, sem="acq_rel")
        if done == 3.0:
            x[t] = x[t] + out[1] + out[2] + out[3]
    return out


@pytest.mark.parametrize("kernel", [shared_sum, neighbours, ahead, scattered, atomically_and_read])
def test_races_of_programs(kernel: Callable[..., Any]) -> None:
    run = helion.kernel(kernel, config=helion.Config(block_sizes=[32]))
    with detect_races(), pytest.raises(exc.DataRace, match=r"the programs of a launch run in any order") as caught:
        run(torch.arange(128.0), torch.zeros(128))
    assert "src[test_races.py:" in str(caught.value)


@pytest.mark.parametrize("kernel", [same_value, permuted, atomically, behind_a_lock])
def test_programs_apart(kernel: Callable[..., Any]) -> None:
    with detect_races():
        helion.kernel(kernel, config=helion.Config(block_sizes=[32]))(torch.arange(128.0), torch.zeros(128))


def test_launches_do_not_race() -> None:
    """A later launch sees all that an earlier one wrote."""

    def phases(x, out):
        for t in hl.tile(x.size(0)):
            out[t] = x[t] + 1
        hl.barrier()
        for t in hl.tile(x.size(0)):
            x[t] = hl.load(out, [127 - t.index])
        return x

    with detect_races():
        result = helion.kernel(phases, config=helion.Config(block_sizes=[32, 32]))(
            torch.arange(128.0), torch.zeros(128)
        )
    torch.testing.assert_close(result, torch.arange(128.0).flip(0) + 1)


# --- names --------------------------------------------------------------------------------------------------------------


def test_elements_are_named_by_their_subscripts() -> None:
    whole = torch.zeros(4, 10, 6)
    view = WatchedTensor.of("v", whole[1:, ::2].transpose(1, 2))
    address = whole.data_ptr() + 4 * (2 * 60 + 4 * 6 + 3)
    assert view.subscript(address) == "v[1, 3, 2]"
    assert view.subscript(address + 4 * 6) is None  # a column that the view leaves out
    assert view.subscript(address + 1) is None
    assert view.subscript(whole.data_ptr()) is None
    assert WatchedTensor.of("s", torch.zeros(())).subscript(0) is None
