"""What Triton makes of loops whose variables change places: each must be carried, or the GPU computes something else."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion.backends.triton.toolchain import compile_offline
from helion.backends.triton.toolchain.signature import offline_signature


def ttir(kernel: helion.Kernel, *args: Any) -> str:
    bound = kernel.bind(args, target="sm_90")
    config = bound.conservative_config()
    function = bound.compile_config(config)
    (jit,) = (v for k, v in inspect.unwrap(function).__globals__.items() if k.startswith("_helion_"))
    signature = offline_signature(bound._analysis.code(config).plan, bound.target)
    return compile_offline(jit, **signature).asm["ttir"]


def carried(text: str) -> list[int]:
    """How many values each loop carries."""
    return [found.count("=") for found in re.findall(r"iter_args\(([^)]*)\)", text)]


@helion.kernel
def fibonacci(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        a, b = x[tile], x[tile]
        for j in hl.grid(9):
            a, b = b, a + b
        out[tile] = a
    return out


@helion.kernel
def swapped_in_a_branch(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([2, x.size(0)], device=x.device)
    for tile in hl.tile(x.size(0)):
        a, b, c = x[tile], x[tile], x[tile]
        for j in hl.grid(9):
            if x[j] > 0:
                a, b = b, a
            else:
                a, b, c = c, a, b + 1
        out[0, tile] = a
        out[1, tile] = b
    return out


@helion.kernel
def through_an_inner_loop(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        a, b = x[tile], x[tile]
        for j in hl.grid(9):
            for i in hl.grid(3):
                a = b
            b = b + x[tile] * j
        out[tile] = a
    return out


@helion.kernel
def while_swapping(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        a, b, n = x[tile], x[tile], x[0]
        while n < 20:
            a, b = b, a + b
            n = n + 1
        out[tile] = a
    return out


@pytest.mark.parametrize(
    ("kernel", "counts"), [(fibonacci, [2]), (swapped_in_a_branch, [3]), (through_an_inner_loop, [2])]
)
def test_every_changing_name_is_carried(kernel: helion.Kernel, counts: list[int]) -> None:
    assert carried(ttir(kernel, torch.empty(1000))) == counts


def test_while_carries_every_changing_name() -> None:
    (loop,) = re.findall(r"scf\.while \(([^)]*)\)", ttir(while_swapping, torch.empty(1000)))
    assert loop.count("=") == 4  # a, b, n and the condition
