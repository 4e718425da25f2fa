"""Two rewrites in one config, and three, give the eager result, with NaN in memory that nobody has written."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rewrite_pairs import configs_of, pairs_of, run_poisoned

import helion
import helion.language as hl


def computed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Both operands are computed, and lie in any way."""
    out = torch.empty([x.size(0), w.size(1)], dtype=torch.float32, device=x.device)
    for a, b in hl.tile(out.size()):
        acc = hl.zeros([a, b])
        for c in hl.tile(x.size(1)):
            acc = hl.dot(x[a, c], torch.exp(w[c, b]), acc=acc)
        out[a, b] = acc
    return out


def both_computed(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), w.size(1)], dtype=torch.float32, device=x.device)
    for a, b in hl.tile(out.size()):
        acc = hl.zeros([a, b])
        for c in hl.tile(x.size(1)):
            acc = hl.dot(torch.relu(x[a, c]), w[c, b].to(x.dtype), acc=acc)
        out[a, b] = torch.sigmoid(acc * scale[b]) + acc
    return out


def normed_rows(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    n = hl.specialize(y.size(1))
    out = torch.empty([x.size(0), n], dtype=torch.float32, device=x.device)
    top = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for a in hl.tile(x.size(0)):
        acc = hl.zeros([a, n])
        for c in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[a, c], y[c, :])
        shown = acc + bias[:]
        top[a] = shown.amax(-1)
        out[a, :] = shown - shown.mean(-1, keepdim=True)
    return out, top


def twice(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two loops that add up products of a turned operand, and a product of their rows."""
    n = w.size(1)
    out = torch.empty([x.size(1), n], dtype=torch.float32, device=x.device)
    third = torch.empty([x.size(1), v.size(1)], dtype=torch.float32, device=x.device)
    for a in hl.tile(x.size(1)):
        acc = hl.zeros([a, n])
        for c in hl.tile(x.size(0)):
            acc = hl.dot(x[c, a].T, w[c, :], acc=acc)
        for c in hl.tile(x.size(0)):
            acc = hl.dot(x[c, a].T, w[c, :], acc=acc)
        out[a, :] = acc
        third[a, :] = hl.dot(acc, v[:, :])
    return out, third


def taps(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A convolution of three taps along rows."""
    batch, length, channels = x.size()
    out = torch.empty([batch, length - 2, w.size(2)], dtype=torch.float32, device=x.device)
    for g in hl.grid(batch):
        for a, b in hl.tile([length - 2, w.size(2)]):
            acc = hl.zeros([a, b])
            for c in hl.tile(channels):
                acc = hl.dot(x[g, a, c], w[0, c, b], acc=acc)
            for c in hl.tile(channels):
                acc = hl.dot(x[g, a.index + 1, c], w[1, c, b], acc=acc)
            for c in hl.tile(channels):
                acc = hl.dot(x[g, a.index + 2, c], w[2, c, b], acc=acc)
            out[g, a, b] = torch.relu(acc)
    return out


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    d = hl.specialize(q.size(1))
    out = torch.empty([q.size(0), d], dtype=torch.float32, device=q.device)
    for a in hl.tile(q.size(0)):
        high, total = hl.full([a], float("-inf")), hl.zeros([a])
        acc = hl.zeros([a, d])
        for b in hl.tile(0, a.end):
            s = hl.dot(q[a, :], k[b, :].T)
            s = torch.where(a.index[:, None] >= b.index[None, :], s, float("-inf"))
            raised = torch.maximum(high, s.amax(-1))
            weights, kept = torch.exp(s - raised[:, None]), torch.exp(high - raised)
            total = total * kept + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[b, :], acc=acc * kept[:, None])
            high = raised
        out[a, :] = acc / total[:, None]
    return out


def recurrence(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for a in hl.tile(x.size(1)):
        state = hl.zeros([a])
        for step in hl.grid(x.size(0)):
            state = state * gate[step, a] + x[step, a]
            out[step, a] = state
    return out


def normed_columns(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Sums over a loop, and a loop behind them."""
    m, n = x.size()
    out = torch.empty_like(x)
    block = hl.register_block_size(m)
    for b in hl.tile(n):
        total, squares = hl.zeros([b]), hl.zeros([b])
        for a in hl.tile(m, block_size=block):
            v = x[a, b]
            total, squares = total + v.sum(0), squares + (v * v).sum(0)
        mean = total / m
        scale = torch.rsqrt(squares / m - mean * mean + 1e-5) * weight[b]
        for a in hl.tile(m, block_size=block):
            out[a, b] = (x[a, b] - mean) * scale
    return out


def layer_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for a in hl.tile(x.size(0)):
        v = x[a, :]
        variance, mean = torch.var_mean(v, -1, correction=0, keepdim=True)
        out[a, :] = (v - mean) * torch.rsqrt(variance + 1e-5) * weight[:]
    return out


def batched(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), x.size(1), y.size(2)], dtype=torch.float32, device=x.device)
    for g, a, b in hl.tile(out.size()):
        acc = hl.zeros([g, a, b])
        for c in hl.tile(x.size(2)):
            acc = torch.baddbmm(acc, x[g, a, c], y[g, c, b])
        out[g, a, b] = acc
    return out


def gated(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """Two products of one loop, in place."""
    for a, b in hl.tile(z.size()):
        one, two = hl.zeros([a, b]), hl.zeros([a, b])
        for c in hl.tile(x.size(1)):
            one = hl.dot(x[a, c], y[c, b], acc=one)
            two = hl.dot(x[a, c], torch.cos(y[c, b]), acc=two)
        z[a, b] = z[a, b] + one * torch.tanh(two)
    return z


def _tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * 0.5 + 0.2).to(dtype)


def _odd(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Rows that begin anywhere."""
    *others, last = shape
    return _tensor(*others, last + 1, dtype=dtype)[..., :last]


def _columns(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Contiguous along the other dimension."""
    *others, a, b = shape
    return _tensor(*others, b, a, dtype=dtype).mT


def _normed_rows(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    value = x @ y + bias
    return value - value.mean(-1, keepdim=True), value.amax(-1)


def _twice(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    value = 2 * x.T @ w
    return value, value @ v


def _taps(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(F.conv1d(x.mT, w.permute(2, 1, 0)).mT)


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    hidden = torch.ones(q.size(0), k.size(0), dtype=torch.bool).tril().logical_not()
    return torch.softmax((q @ k.T).masked_fill(hidden, float("-inf")), -1) @ v


def _recurrence(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    state, rows = torch.zeros_like(x[0]), []
    for row, kept in zip(x, gate, strict=True):
        state = state * kept + row
        rows.append(state)
    return torch.stack(rows)


def _normed_columns(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (x - x.mean(0)) * torch.rsqrt(x.var(0, correction=0) + 1e-5) * weight


@dataclass(frozen=True)
class Case:
    function: Callable[..., Any]
    args: tuple[torch.Tensor, ...]
    reference: Callable[..., Any]
    tolerance: float = 2e-3


def _computed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x @ torch.exp(w)


def _both_computed(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    value = torch.relu(x) @ w.to(x.dtype)
    return torch.sigmoid(value * scale) + value


def _gated(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return z + (x @ y) * torch.tanh(x @ torch.cos(y))


CASES = {
    "computed": Case(computed, (_columns(40, 64), _tensor(64, 20)), _computed),
    "computed, turned": Case(computed, (_tensor(33, 64), _columns(64, 20)), _computed),
    "computed, odd rows": Case(computed, (_odd(40, 64), _odd(64, 20)), _computed, 4e-2),
    "both computed": Case(
        both_computed,
        (_odd(40, 64), (_tensor(64, 36) * 8).to(torch.int8), _tensor(36)),
        _both_computed,
        4e-2,
    ),
    "both computed, fp32": Case(
        both_computed, (_columns(40, 96), (_columns(96, 33) * 8).to(torch.int8), _tensor(33)), _both_computed
    ),
    "normed rows": Case(normed_rows, (_columns(37, 64), _columns(64, 20), _tensor(20)), _normed_rows),
    "normed rows, odd": Case(
        normed_rows, (_odd(37, 62), _odd(62, 20), _tensor(20, dtype=torch.bfloat16)), _normed_rows, 6e-2
    ),
    "twice": Case(twice, (_tensor(64, 17), _tensor(64, 20), _tensor(20, 8)), _twice),
    "taps": Case(taps, (_tensor(2, 21, 32), _tensor(3, 32, 20)), _taps),
    "taps, columns": Case(taps, (_columns(2, 21, 32), _columns(3, 32, 20)), _taps),
    "attention": Case(attention, (_tensor(50, 16), _tensor(50, 16), _tensor(50, 16)), _attention),
    "recurrence": Case(recurrence, (_tensor(13, 40), _tensor(13, 40)), _recurrence),
    "normed columns": Case(normed_columns, (_tensor(77, 20), _tensor(20)), _normed_columns),
    "layer norm": Case(layer_norm, (_tensor(7, 77), _tensor(77)), lambda x, w: F.layer_norm(x, [77], w)),
    "batched": Case(batched, (_columns(3, 20, 48), _tensor(3, 48, 17)), lambda x, y: x @ y),
    "gated": Case(gated, (_odd(33, 64), _odd(64, 20), _tensor(33, 20)), _gated, 6e-2),
    "gated, fp32": Case(gated, (_columns(33, 64), _columns(64, 20), _tensor(33, 20)), _gated),
}


def run_sets(name: str, keys: int, sampled: int, configs: int, seed: int = 0) -> int:
    """Run configs of ``sampled`` sets of so many ``keys``, or of all (0). Returns how many ran."""
    case = CASES[name]
    bound = helion.kernel(case.function, backend="triton").bind(case.args)
    rng = random.Random(f"{name} {keys} {seed}")
    sets = pairs_of(bound, keys)
    rng.shuffle(sets)
    run = 0
    for each in sets:
        found = list(configs_of(bound, each, rng, configs))
        for config in found:
            run_poisoned(f"{name}, {' + '.join(each)},", bound, config, case.reference, case.args, case.tolerance)
        run += bool(found)
        if sampled and run == sampled:
            break
    return run


@pytest.mark.parametrize("name", CASES)
def test_some_pairs(name: str) -> None:
    assert run_sets(name, 2, 2, 1)


@pytest.mark.prove
@pytest.mark.parametrize("name", CASES)
def test_all_pairs(name: str) -> None:
    assert run_sets(name, 2, 0, 4)


@pytest.mark.prove
@pytest.mark.parametrize("name", CASES)
def test_triples(name: str) -> None:
    assert run_sets(name, 3, 40, 2)
