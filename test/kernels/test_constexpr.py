"""``hl.constexpr`` in a kernel's body: values of a call, and conditions that a config decides."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import helion
import helion.language as hl
from helion import exc


def by_flag(x: torch.Tensor, flag: bool, n: int) -> torch.Tensor:
    flag = hl.constexpr(flag)
    count = hl.constexpr(n)
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        if flag:
            out[t] = x[t] + count
        else:
            out[t] = x[t] - hl.zeros([t, count]).sum(1)
    return out


def test_values_of_a_call() -> None:
    x = torch.randn(11)
    kernel = helion.kernel(by_flag)
    assert torch.equal(kernel(x, True, 2), x + 2)
    assert torch.equal(kernel(x, False, 2), x)
    assert torch.equal(kernel(x, True, 3), x + 3)


def small(x: torch.Tensor) -> torch.Tensor:
    size = hl.register_block_size(x.size(0))
    is_small = hl.constexpr(size < 16)
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0), block_size=size):
        if is_small:
            out[t] = x[t] + 1
        else:
            out[t] = x[t] - 1
    return out


def small_of_two(x: torch.Tensor) -> torch.Tensor:
    size, other = hl.register_block_size(x.size(0)), hl.register_block_size(4)
    is_large = not (size < 16 and other <= 4)
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0), block_size=size):
        for _ in hl.tile(4, block_size=other):
            if not is_large:
                out[t] = x[t] + 1
            else:
                out[t] = x[t] - 1
    return out


def small_chain(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        if 2 <= t.block_size < 16 or t.block_size > 4096:
            v = x[t]
            out[t] = v + 1
        else:
            v = x[t][:, None] - hl.full([t, 4], 1.0)
            out[t] = v.amax(1)
    return out


def small_with_loops(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        step = hl.zeros([t])
        if t.block_size < 16:
            for _ in hl.grid(2):
                step = step + 0.5
        else:
            step = step - 1
        out[t] = x[t] + step
    return out


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("function", [small, small_of_two, small_chain, small_with_loops], ids=lambda f: f.__name__)
def test_conditions_on_block_sizes(function: Callable[..., torch.Tensor], static: bool) -> None:
    x = torch.randn(48)  # of whole vectors, so that no tile has code of its own
    bound = helion.kernel(function, static_shapes=static).bind((x,))
    more = [4] if function is small_of_two else []
    for size, change in ((8, 1), (32, -1)):
        config = helion.Config(block_sizes=[size, *more])
        torch.testing.assert_close(bound.compile_config(config)(x), x + change)
        kernel = bound.to_triton_code(config).split("@triton.jit")[1].split("\n\n\n")[0]
        assert not any(line.strip().startswith("if ") for line in kernel.splitlines())


def two_shapes(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        if t.block_size < 16:
            v = x[t]
        else:
            v = x[t][:, None]
        out[t] = v + 1
    return out


def test_a_name_of_two_shapes() -> None:
    with pytest.raises(exc.ControlFlowTensorMismatch):
        helion.kernel(two_shapes).bind((torch.randn(50),))


def only_computed(x: torch.Tensor) -> torch.Tensor:
    size = hl.register_block_size(x.size(0))
    _ = size < 16 and size > 2
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0), block_size=size):
        out[t] = x[t]
    return out


def test_a_condition_that_nobody_asks() -> None:
    x = torch.randn(5)
    assert torch.equal(helion.kernel(only_computed)(x), x)


def test_values_in_reference_mode() -> None:
    x = torch.randn(11)
    kernel = helion.kernel(by_flag, ref_mode=helion.RefMode.EAGER)
    assert torch.equal(kernel(x, True, 2), x + 2)
    assert torch.equal(kernel(x, False, 2), x)
