"""Values of bf16 that are computed on in fp32: they are rounded as in eager mode, by a fast instruction where the target has that."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl
from helion.backends.triton.toolchain.offline import compile_offline
from helion.backends.triton.toolchain.sass import opcode_counts
from helion.backends.triton.toolchain.signature import offline_signature

BF16 = torch.bfloat16


def chain(x, y):
    """Rounded three times between the load and the store."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = (x[tile] * 1.1 + y[tile]) * 0.7
    return out


def stored_and_read(x, y):
    """What is rounded is stored, and computed on; the carried sum is of bf16."""
    out, sums = torch.empty_like(x), torch.empty_like(y)
    for tile in hl.tile(x.size(0)):
        scaled = x[tile] * 1.3
        out[tile] = scaled
        total = scaled + y[tile]
        for _ in hl.grid(3):
            total = total * 0.9 + scaled
        sums[tile] = total
    return out, sums


def moved(x, y):
    """Between the operations numbers are chosen, negated, and viewed."""
    m, n = hl.specialize(x.size(0)), x.size(1)
    out = torch.empty_like(x)
    for tile in hl.tile(n):
        scaled = x[:, tile] * 1.7
        chosen = torch.where(scaled > 0.3, -scaled, 0.01)
        bounded = torch.minimum(torch.abs(chosen), y[None, tile] + 0.125).clamp(max=0.77)
        turned = torch.where(y[None, tile] > 0, bounded, x[:, tile]).transpose(0, 1).reshape([tile, m]) * 1.3
        out[:, tile] = turned.transpose(0, 1) + 0.25
    return out


def rows(x, y):
    """A softmax that is rounded after every operation, of rows that no tile divides."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        scaled = x[tile, :] * 2.1
        shifted = scaled - scaled.amax(-1, keepdim=True)
        out[tile, :] = shifted * 0.5 + shifted.sum(-1)[:, None] * y[0]
    return out


def mixed(x, y):
    """Operands of other dtypes, and of none."""
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        scaled = x[tile] * 1.7
        counts = scaled.to(torch.float32) + (scaled > y[tile].to(torch.float32))
        out[tile] = torch.where(scaled > 0, scaled, counts) * 1.1 + scaled.abs().to(torch.float32).to(torch.bfloat16)
    return out


def product(x, y):
    """Scores are rounded to bf16 before the softmax, as those of torch.matmul are."""
    m = x.size(0)
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        best = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        for tile_n in hl.tile(y.size(1)):
            scores = torch.matmul(x[tile_m, :], y[:, tile_n]) * 0.3
            best = torch.maximum(best, torch.amax(scores, -1))
        out[tile_m] = best
    return out


def eager_stored(x, y):
    scaled = x * 1.3
    total = scaled + y
    for _ in range(3):
        total = total * 0.9 + scaled
    return scaled, total


def eager_moved(x, y):
    scaled = x * 1.7
    chosen = torch.where(scaled > 0.3, -scaled, 0.01)
    bounded = torch.minimum(torch.abs(chosen), y[None] + 0.125).clamp(max=0.77)
    return torch.where(y[None] > 0, bounded, x) * 1.3 + 0.25


def eager_mixed(x, y):
    scaled = x * 1.7
    counts = scaled.float() + (scaled > y.float())
    return torch.where(scaled > 0, scaled, counts) * 1.1 + scaled.abs()


def eager_rows(x, y):
    scaled = x * 2.1
    shifted = scaled - scaled.amax(-1, keepdim=True)
    return shifted * 0.5 + shifted.sum(-1)[:, None] * y[0]


CASES: dict[Callable, tuple[tuple[int, ...], tuple[int, ...], Callable, float]] = {
    chain: ((1000,), (1000,), lambda x, y: (x * 1.1 + y) * 0.7, 0.0),
    stored_and_read: ((257,), (257,), eager_stored, 0.0),
    moved: ((4, 63), (63,), eager_moved, 0.0),
    mixed: ((63,), (63,), eager_mixed, 1e-6),
    rows: ((7, 63), (7,), eager_rows, 2e-2),  # sums of bf16 in another order
    product: ((33, 16), (16, 45), lambda x, y: ((x @ y) * 0.3).amax(-1).float(), 2e-2),
}


@pytest.mark.parametrize("function", CASES, ids=lambda each: each.__name__)
def test_values_are_those_of_eager_mode(function: Callable) -> None:
    shape, other, eager, tolerance = CASES[function]
    torch.manual_seed(0)
    x, y = torch.randn(shape).to(BF16), (torch.randn(other) + 0.3).to(BF16)
    if x.ndim == 1:
        x[:3] = torch.tensor([float("nan"), float("inf"), -3.3e38])
    bound = helion.kernel(function).bind((x, y))
    for warps in (1, 16):
        config = {**bound.default_config(), "num_warps": warps}
        assert "_rounded_bf16(" in bound.to_triton_code(config)
        made = bound.compile_config(config)(x, y)
        torch.testing.assert_close(made, eager(x, y), rtol=tolerance, atol=tolerance, equal_nan=True)


def code(function: Callable, dtype: torch.dtype = BF16, target: str = "sm_90") -> str:
    shape, other, *_ = CASES[function]
    arguments = (tensor(*shape, dtype=dtype), tensor(*other, dtype=dtype))
    bound = helion.kernel(function).bind(arguments, target=target)
    return bound.to_triton_code({**bound.default_config(), "num_warps": 1})


def test_what_is_computed_on_stays_in_fp32_and_what_is_stored_is_of_bf16() -> None:
    lines = code(chain)
    assert len(re.findall(r"= _rounded_bf16\(", lines)) == 2
    assert len(re.findall(r"\.to\(tl\.bfloat16\)", lines)) == 1
    both = code(stored_and_read)
    assert re.search(r"scaled_fp32 = _rounded_bf16\(.*\)\n\s+scaled = scaled_fp32.to\(tl.bfloat16\)", both)


def test_extremes_and_choices_are_not_rounded_again() -> None:
    lines = code(moved)
    assert not re.search(r"_rounded_bf16\(tl\.(minimum|abs|where)", lines)
    assert len(re.findall(r"= _rounded_bf16\(", lines)) == 3


@pytest.mark.parametrize(("dtype", "target"), [(torch.float16, "sm_90"), (torch.float32, "sm_90"), (BF16, "gfx942")])
def test_other_dtypes_and_targets_are_rounded_one_by_one(dtype: torch.dtype, target: str) -> None:
    assert "_rounded_bf16" not in code(chain, dtype, target)


@pytest.mark.parametrize(("function", "warps"), [(rows, 1), (rows, 8), (moved, 4), (stored_and_read, 8)])
def test_whatever_is_rounded_compiles(function: Callable, warps: int) -> None:
    """Threads may have one lane, or several the same."""
    shape, other, *_ = CASES[function]
    arguments = (tensor(*shape, dtype=BF16), tensor(*other, dtype=BF16))
    bound = helion.kernel(function).bind(arguments, target="sm_90")
    assert bound.resources({**bound.default_config(), "num_warps": warps}).fits


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_the_assembler_takes_the_fast_instruction(target: str) -> None:
    bound = helion.kernel(chain).bind((tensor(4096, dtype=BF16), tensor(4096, dtype=BF16)), target=target)
    config = bound.default_config()
    plan = bound._analysis.code(config).plan
    function = inspect.unwrap(bound.compile_config(config)).__globals__[plan.kernel_names[0]]
    opcodes = opcode_counts(compile_offline(function, **offline_signature(plan, bound.target)).asm["cubin"])
    assert opcodes["F2F"] == 0 < opcodes["F2FP"]
