"""Kernels whose threads meet in global memory, with what they compute in eager PyTorch.

Each runs as one program (its tile holds everything), so that what its threads do to each other is all there is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import helion.language as hl


def shifted(buf, steps):
    """A load of what the iteration before stored, and a store of what others still load."""
    for t in hl.tile(buf.size(0) - 1):
        for _ in range(steps):
            hl.store(buf, [t.index], hl.load(buf, [t.index + 1]))
    return buf


def shifted_eager(buf, steps):
    for _ in range(steps):
        buf[:-1] = buf[1:].clone()
    return buf


def both_branches(x, buf, out, flag):
    for t in hl.tile(x.size(0)):
        hl.store(buf, [t.index], x[t])
        if flag > 0:
            v = hl.load(buf, [t.index + 1])
        else:
            v = hl.load(buf, [t.index + 2])
        out[t] = v
    return out


def both_branches_eager(x, buf, out, flag):
    buf[: x.size(0)] = x
    return buf[1 if flag > 0 else 2 :][: x.size(0)].clone()


def behind_a_branch(x, buf, out, flag):
    for t in hl.tile(x.size(0)):
        hl.store(buf, [t.index], x[t])
        v = hl.zeros([t])
        if flag > 0:
            v = hl.load(buf, [t.index + 1])
        out[t] = v + hl.load(buf, [t.index + 2])
    return out


def behind_a_branch_eager(x, buf, out, flag):
    n = x.size(0)
    buf[:n] = x
    return buf[2 : n + 2] + (buf[1 : n + 1] if flag > 0 else 0)


def reversed_in_place(buf, steps):
    n = buf.size(0)
    for t in hl.tile(n):
        for _ in range(steps):
            v = hl.load(buf, [n - 1 - t.index])
            hl.store(buf, [t.index], v)
    return buf


def reversed_in_place_eager(buf, steps):
    return buf.flip(0) if steps % 2 else buf


def stored_twice(x, buf):
    """The later of two stores stays."""
    n = x.size(0)
    for t in hl.tile(n):
        hl.store(buf, [t.index], x[t] * 2)
        hl.store(buf, [n - 1 - t.index], x[t])
    return buf


def stored_twice_eager(x, buf):
    return x.flip(0)


def nested(buf, out, outer, inner):
    """What an inner loop stored is loaded behind it, and overwritten by the next iteration of the outer one."""
    n = out.size(0)
    for t in hl.tile(n):
        total = hl.zeros([t])
        for i in range(outer):
            for j in range(inner):
                hl.store(buf, [t.index], total + i + j + t.index)
            total = total + hl.load(buf, [n - 1 - t.index])
        out[t] = total
    return out


def nested_eager(buf, out, outer, inner):
    n = out.size(0)
    total = torch.zeros_like(out)
    for i in range(outer):
        for j in range(inner):
            buf[:n] = total + i + j + torch.arange(n, device=out.device)
        total = total + buf[:n].flip(0)
    return total


def behind_no_iteration(x, buf, out, steps):
    n = x.size(0)
    for t in hl.tile(n):
        hl.store(buf, [t.index], x[t])
        for i in range(steps):
            hl.store(buf, [t.index], hl.load(buf, [n - 1 - t.index]) + i)
        out[t] = hl.load(buf, [t.index + 1])
    return out


def behind_no_iteration_eager(x, buf, out, steps):
    n = x.size(0)
    buf[:n] = x
    for i in range(steps):
        buf[:n] = buf[:n].flip(0) + i
    return buf[1 : n + 1].clone()


def while_loop(buf, steps):
    n = buf.size(0)
    for t in hl.tile(n):
        i = 0
        while i < steps:
            hl.store(buf, [t.index], hl.load(buf, [n - 1 - t.index]) + 1)
            i = i + 1
    return buf


def while_loop_eager(buf, steps):
    for _ in range(steps):
        buf = buf.flip(0) + 1
    return buf


def while_memory_says(buf, go):
    """The condition is loaded from what the body stores."""
    n = buf.size(0)
    for t in hl.tile(n):
        while go[0] > 0:
            hl.store(buf, [t.index], buf[t] + 1)
            go[0] = go[0] - 1
    return buf


def while_memory_says_eager(buf, go):
    return buf + go[0]


def atomics(buf, out):
    n = out.size(0)
    for t in hl.tile(n):
        hl.atomic_add(buf, [t.index], 1.0)
        hl.atomic_add(buf, [n - 1 - t.index], 2.0)
        out[t] = hl.load(buf, [n - 1 - t.index])
        hl.atomic_add(buf, [t.index], 4.0)
    return out, buf


def atomics_eager(buf, out):
    return (buf + 3).flip(0), buf + 7


def host_view(buf, out):
    """The same memory by another tensor."""
    moved = buf[1:]
    for t in hl.tile(out.size(0)):
        hl.store(buf, [t.index], t.index * 1.0)
        out[t] = moved[t]
    return out


def host_view_eager(buf, out):
    n = out.size(0)
    buf[:n] = torch.arange(n, device=out.device)
    return buf[1 : n + 1].clone()


def shared_arguments(buf, moved, out):
    for t in hl.tile(out.size(0)):
        v = moved[t]
        hl.store(buf, [t.index], v + 1)
        out[t] = moved[t] + v
    return out


def shared_arguments_eager(buf, moved, out):
    before = moved.clone()
    buf[: out.size(0)] = before + 1
    return moved + before


def prefix_sums(buf, steps):
    """Hillis and Steele, in place."""
    n = buf.size(0)
    for t in hl.tile(n):
        distance = 1
        for _ in range(steps):
            before = hl.load(buf, [t.index - distance], extra_mask=t.index >= distance)
            buf[t] = buf[t] + before
            distance = distance * 2
    return buf


def prefix_sums_eager(buf, steps):
    for step in range(steps):
        d = 2**step
        buf[d:] = buf[d:] + buf[:-d].clone()
    return buf


def few_lanes(x, w, out):
    """A short tile that every warp loads for its own columns, and one thread each overwrites."""
    for t in hl.tile(x.size(0)):
        v = x[t]
        out[t, :] = v[:, None] + w[t, :]
        x[t] = v * 2
    return out, x


def few_lanes_eager(x, w, out):
    return x[:, None] + w, x * 2


def running_total(x, total):
    """One element that every thread loads, and one stores."""
    for _ in hl.grid(1):
        for i in range(x.size(0)):
            total[0] = total[0] + x[i]
    return total


def running_total_eager(x, total):
    return total + x.sum()


def product_of_products(a, b, h, out):
    for t in hl.tile(a.size(0)):
        h[t, :] = hl.dot(a[t, :], b[:, :]).to(a.dtype)
        out[t, :] = hl.dot(h[t, :], b[:, :])
    return out


def product_of_products_eager(a, b, h, out):
    return (a.float() @ b.float()).to(a.dtype).float() @ b.float()


def recurrence(x, w, out):
    """A product whose operand the iteration before stored: its load may not be prefetched."""
    for t in hl.tile(x.size(0)):
        acc = hl.zeros([t, w.size(1)])
        for k in hl.tile(w.size(0), block_size=32):
            v = x[t, k]
            acc = hl.dot(v, w[k, :], acc=acc)
            x[t, k.index + 32] = v * 0.5
        out[t, :] = acc
    return out


def recurrence_eager(x, w, out):
    acc = torch.zeros_like(out)
    for k in range(0, w.size(0), 32):
        acc += x[:, k : k + 32].float() @ w[k : k + 32].float()
        x[:, k + 32 : k + 64] = x[:, k : k + 32] * 0.5
    return acc


@dataclass(frozen=True)
class MemoryCase:
    """``make`` gives new arguments on a device. ``barriers`` is how many the code has; the race detector notices when
    one is taken away, but for the ``unseen`` ones: they keep a store behind the copies of a load that several threads do
    at once, which it cannot tell from the harmless ones that nothing else uses."""

    kernel: Callable[..., Any]
    eager: Callable[..., Any]
    make: Callable[[str], tuple[Any, ...]]
    barriers: int
    tile: int | None = 4096
    num_warps: int = 16
    unseen: tuple[int, ...] = ()


N = 4096


def _random(*shape: int, device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    values = torch.randint(-8, 8, shape, generator=torch.Generator().manual_seed(len(shape) + shape[0]))
    return (values + 0.5).to(device, dtype)


def _zeros(*shape: int, device: str) -> torch.Tensor:
    return torch.zeros(shape, device=device)


def _shared(device: str) -> tuple[torch.Tensor, ...]:
    buf = _random(N + 1, device=device)
    return buf, buf[1:], _zeros(N, device=device)


def _branching(flag: int) -> Callable[[str], tuple[Any, ...]]:
    return lambda d: (_random(N, device=d), _zeros(N + 4, device=d), _zeros(N, device=d), flag)


CASES = {
    "shifted": MemoryCase(shifted, shifted_eager, lambda d: (_random(N + 1, device=d), 5), 2),
    "branch taken": MemoryCase(both_branches, both_branches_eager, _branching(1), 2),
    "branch not taken": MemoryCase(both_branches, both_branches_eager, _branching(-1), 2),
    "behind a branch, taken": MemoryCase(behind_a_branch, behind_a_branch_eager, _branching(1), 2),
    "behind a branch, not taken": MemoryCase(behind_a_branch, behind_a_branch_eager, _branching(-1), 2),
    "reversed in place": MemoryCase(reversed_in_place, reversed_in_place_eager, lambda d: (_random(N, device=d), 3), 2),
    "stored twice": MemoryCase(
        stored_twice, stored_twice_eager, lambda d: (_random(N, device=d), _zeros(N, device=d)), 1
    ),
    "nested": MemoryCase(nested, nested_eager, lambda d: (_zeros(N, device=d), _zeros(N, device=d), 3, 2), 2),
    "behind no iteration": MemoryCase(behind_no_iteration, behind_no_iteration_eager, _branching(0), 3),
    "behind iterations": MemoryCase(behind_no_iteration, behind_no_iteration_eager, _branching(3), 3),
    "while": MemoryCase(while_loop, while_loop_eager, lambda d: (_random(N, device=d), 5), 2),
    "while memory says": MemoryCase(
        while_memory_says,
        while_memory_says_eager,
        lambda d: (_random(N, device=d), torch.full((1,), 3, dtype=torch.int32, device=d)),
        2,
        unseen=(0,),
    ),
    "atomics": MemoryCase(atomics, atomics_eager, lambda d: (_random(N, device=d), _zeros(N, device=d)), 2),
    "view": MemoryCase(host_view, host_view_eager, lambda d: (_zeros(N + 1, device=d), _zeros(N, device=d)), 1),
    "shared arguments": MemoryCase(shared_arguments, shared_arguments_eager, _shared, 2),
    "prefix sums": MemoryCase(prefix_sums, prefix_sums_eager, lambda d: (_random(N, device=d), 12), 2),
    "few lanes": MemoryCase(
        few_lanes,
        few_lanes_eager,
        lambda d: (_random(32, device=d), _random(32, 128, device=d), _zeros(32, 128, device=d)),
        1,
        32,
        8,
        unseen=(0,),
    ),
    "running total": MemoryCase(
        running_total, running_total_eager, lambda d: (_random(37, device=d), _zeros(1, device=d)), 1, None, 4
    ),
    "product of products": MemoryCase(
        product_of_products,
        product_of_products_eager,
        lambda d: (
            _random(64, 64, device=d, dtype=torch.float16) / 64,
            _random(64, 64, device=d, dtype=torch.float16) / 64,
            _zeros(64, 64, device=d).half(),
            _zeros(64, 64, device=d),
        ),
        1,
        64,
        4,
    ),
    "recurrence": MemoryCase(
        recurrence,
        recurrence_eager,
        lambda d: (
            _random(64, 288, device=d, dtype=torch.float16),
            _random(256, 64, device=d, dtype=torch.float16) / 64,
            _zeros(64, 64, device=d),
        ),
        1,
        64,
        4,
    ),
}
