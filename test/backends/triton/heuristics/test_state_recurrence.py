"""First configs of loops over single indices that carry a tile with a whole dimension."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl
from benchmarks.unfitted.scans import selective_scan
from helion._shapes import cdiv
from helion.hardware import target

NAME = "TritonStateRecurrenceHeuristic"


def delta_rule(q, k, v, beta):
    """Each step writes the part of a value that the state does not give yet; two sums in a step."""
    b, t, e = v.size()
    d = hl.specialize(q.size(2))
    out = torch.empty_like(v)
    for tile_b, tile_e in hl.tile([b, e], block_size=[1, None]):
        i = tile_b.begin
        state = hl.zeros([tile_e, d], dtype=torch.float32)
        for step in hl.grid(t):
            key = k[i, step, :].to(torch.float32)[None, :]
            error = v[i, step, tile_e].to(torch.float32) - (state * key).sum(-1)
            state = state + (error * beta[i, step].to(torch.float32))[:, None] * key
            out[i, step, tile_e] = (state * q[i, step, :].to(torch.float32)[None, :]).sum(-1).to(v.dtype)
    return out


def state_space(x, width, rates, into, read):
    """A state of few numbers for each channel."""
    b, t, c = x.size()
    n = hl.specialize(rates.size(1))
    out = torch.empty_like(x)
    for tile_b, tile_c in hl.tile([b, c], block_size=[1, None]):
        i = tile_b.begin
        state = hl.zeros([tile_c, n], dtype=torch.float32)
        rate = rates[tile_c, :].to(torch.float32)
        for step in hl.grid(t):
            size = width[i, step, tile_c].to(torch.float32)
            entered = size * x[i, step, tile_c].to(torch.float32)
            state = torch.exp(rate * size[:, None]) * state + entered[:, None] * into[i, step, :].to(torch.float32)
            out[i, step, tile_c] = (state * read[i, step, :].to(torch.float32)).sum(-1).to(x.dtype)
    return out


def _deltas(b: int, t: int, d: int, e: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    return tuple(tensor(*shape, dtype=dtype) for shape in ((b, t, d), (b, t, d), (b, t, e), (b, t)))


def _spaces(b: int, t: int, c: int, n: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    return tuple(tensor(*shape, dtype=dtype) for shape in ((b, t, c), (b, t, c), (c, n), (b, t, n), (b, t, n)))


_BF16, _FP32 = torch.bfloat16, torch.float32
CASES: tuple[tuple[Callable[..., Any], tuple[torch.Tensor, ...]], ...] = (
    (delta_rule, _deltas(32, 1024, 64, 64, _BF16)),
    (delta_rule, _deltas(16, 2048, 128, 128, _FP32)),
    (delta_rule, _deltas(1, 77, 1000, 63, _BF16)),
    (state_space, _spaces(8, 2048, 4096, 16, _BF16)),
    (state_space, _spaces(2, 512, 1000, 16, _FP32)),
)


def _bound(
    kernel: Callable[..., Any], args: tuple[Any, ...], on: str | None = "h200", **settings: Any
) -> helion.BoundKernel:
    return helion.kernel(kernel, **{"static_shapes": True, **settings}).bind(args, target=on)


@pytest.mark.parametrize("on", ["h200", "sm_80", "gfx942"])
@pytest.mark.parametrize(("kernel", "args"), CASES)
def test_loads_are_ahead_and_each_scheduler_has_a_program(
    kernel: Callable[..., Any], args: tuple[torch.Tensor, ...], on: str
) -> None:
    seed = _bound(kernel, args, on).seeds[0]
    assert seed.heuristic == NAME and not seed.predicted.spills
    b, _, channels = args[0].shape[0], args[0].shape[1], (args[2] if kernel is delta_rule else args[0]).shape[2]
    (tile,) = seed.config["block_sizes"]
    programs = b * cdiv(channels, tile)
    assert programs >= min(b * channels, 3 * target(on).num_sms) or tile == 1
    stages, unrolled = seed.config["range_num_stages"][1], seed.config["range_unroll_factors"][1]
    if stages:
        # Triton pipelines no loop that carries a value over more than one turn
        assert seed.config["prefetch_distance"] in (0, unrolled)
        assert 3 * seed.predicted.shared_bytes <= target(on).smem_per_sm_bytes
    else:
        assert seed.config["prefetch_distance"] >= 2 and seed.config["prefetch_distance"] % unrolled == 0
    whole = args[0].shape[2] if kernel is delta_rule else args[2].shape[1]
    assert tile * 2 ** math.ceil(math.log2(whole)) <= 32 * 64 * seed.config["num_warps"]


def test_where_nothing_can_be_loaded_ahead_others_are_asked() -> None:
    bound = _bound(*CASES[0], checked=True)
    assert all(seed.heuristic != NAME for seed in bound.seeds)


def test_few_steps_are_no_recurrence() -> None:
    bound = _bound(delta_rule, _deltas(32, 8, 64, 64, _BF16))
    assert all(seed.heuristic != NAME for seed in bound.seeds)


def test_first_config_gives_what_torch_gives() -> None:
    torch.manual_seed(0)
    b, t, d, e = 2, 17, 33, 5
    args = tuple(torch.randn(shape) * 0.3 + 0.2 for shape in ((b, t, d), (b, t, d), (b, t, e), (b, t)))
    bound = _bound(delta_rule, args, None)
    assert bound.default_config()["prefetch_distance"] > 1
    q, k, v, beta = (x.double() for x in args)
    state, rows = torch.zeros(b, e, d, dtype=torch.float64), []
    for step in range(t):
        key = k[:, step, None, :]
        error = v[:, step] - (state * key).sum(-1)
        state = state + (error * beta[:, step, None])[..., None] * key
        rows.append((state * q[:, step, None, :]).sum(-1))
    expected = torch.stack(rows, 1)
    assert (bound(*args).double() - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_steps_of_registers_have_two_programs_on_each_scheduler() -> None:
    x, states = tensor(8, 512, 2048), tensor(8, 512, 16)
    bound = selective_scan.bind((x, x, tensor(2048, 16, dtype=torch.float32), states, states), target="h200")
    seed = next(seed for seed in bound.seeds if seed.heuristic == NAME)
    assert seed.config["block_sizes"] == [16] and seed.config["prefetch_distance"] == 8
