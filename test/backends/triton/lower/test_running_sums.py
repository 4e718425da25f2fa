"""What Triton makes of sums that a loop carries: moved behind the loop only where nothing else reads them."""

from __future__ import annotations

import inspect

import pytest
import torch

import helion
import helion.language as hl
from helion.backends.triton.plan import lowered
from helion.backends.triton.toolchain import compile_offline
from helion.backends.triton.toolchain.signature import offline_signature

#: What the pass leaves of a tile whose parts are summed up behind the loop.
MOVED = "efficient_layout"


def ttgir(kernel: helion.Kernel, target: str, unroll: int = 0) -> str:
    bound = kernel.bind((torch.empty(63, 5000, device="meta"),), target=target)
    config = bound.config_spec.normalize(
        {"block_sizes": [1, 1024], "num_warps": 4, "range_unroll_factors": [0, unroll]}
    )
    function = bound.compile_config(config)
    (jit,) = (v for k, v in inspect.unwrap(function).__globals__.items() if k.startswith("_helion_"))
    signature = offline_signature(bound._analysis.code(config).plan, bound.target)
    return compile_offline(jit, **signature).asm["ttgir"]


@helion.kernel
def read_in_the_loop(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.empty_like(x)
    total = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    for row in hl.tile(x.size(0)):
        before = hl.zeros([row], dtype=torch.float32)
        for column in hl.tile(x.size(1)):
            values = x[row, column]
            out[row, column] = values + before[:, None]
            before = before + values.sum(1)
        total[row] = before
    return out, total


@helion.kernel
def read_in_the_loop_alone(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for row in hl.tile(x.size(0)):
        before = hl.zeros([row], dtype=torch.float32)
        for column in hl.tile(x.size(1)):
            values = x[row, column]
            out[row, column] = values + before[:, None]
            before = before + values.sum(1)
    return out


@helion.kernel
def read_twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    square = torch.empty_like(total)
    for row in hl.tile(x.size(0)):
        acc = hl.zeros([row], dtype=torch.float32)
        for column in hl.tile(x.size(1)):
            acc = acc + x[row, column].sum(1)
        total[row] = acc
        square[row] = acc * acc
    return total, square


@helion.kernel
def read_once(x: torch.Tensor) -> torch.Tensor:
    total = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    for row in hl.tile(x.size(0)):
        acc = hl.zeros([row], dtype=torch.float32)
        for column in hl.tile(x.size(1)):
            acc = acc + x[row, column].sum(1)
        total[row] = acc
    return total


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
@pytest.mark.parametrize("kernel", [read_in_the_loop, read_in_the_loop_alone, read_twice])
def test_sums_that_something_else_reads_stay_in_the_loop(kernel: helion.Kernel, target: str) -> None:
    assert MOVED not in ttgir(kernel, target)


def test_other_sums_are_left_to_triton_without_registers_for_their_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """With registers, the compiler itself moves them (``rewrites/late_reductions``)."""
    read_once.reset()
    assert MOVED not in ttgir(read_once, "sm_90")
    monkeypatch.setattr(lowered, "accumulator_room", lambda limit: 0)
    read_once.reset()
    assert MOVED in ttgir(read_once, "sm_90")
    read_once.reset()


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
@pytest.mark.parametrize("unroll", [2, 3])
def test_sums_of_repeated_bodies_stay_in_the_loop(unroll: int, target: str) -> None:
    assert MOVED not in ttgir(read_once, target, unroll)
