"""Grid loops under conditions of the host."""

from __future__ import annotations

import pytest
import torch

import helion
import helion.language as hl


@helion.kernel(config=helion.Config(block_sizes=[16]))
def branching(x: torch.Tensor, n: int, positive: bool) -> torch.Tensor:
    out = torch.empty_like(x)
    if positive:
        if n > 2:
            for tile in hl.tile(x.size(0)):
                out[tile] = x[tile] * n
        elif n == 2:
            other = torch.full_like(x, 5)
            for tile in hl.tile(x.size(0)):
                out[tile] = x[tile] - other[tile]
            return other
        else:
            for tile in hl.tile(x.size(0)):
                out[tile] = x[tile] - 7
    else:
        for tile in hl.tile(x.size(0)):
            out[tile] = -x[tile]
    return out


@helion.kernel(config=helion.Config(block_sizes=[16]), static_shapes=False)
def by_size(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    if x.size(0) > 64:
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile] + y[tile]
    else:
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile] - y[tile]
    return out


def test_every_branch_in_turn() -> None:
    x = torch.randn(63) + 3
    for _ in range(2):
        for n in (3, 4):
            torch.testing.assert_close(branching(x, n, True), n * x)
        torch.testing.assert_close(branching(x, 2, True), torch.full_like(x, 5))
        torch.testing.assert_close(branching(x, 1, True), x - 7)
        torch.testing.assert_close(branching(x, 4, False), -x)


def test_dynamic_sizes_choose_their_branch() -> None:
    for size in (63, 77, 64, 65, 1000):
        x, y = torch.randn(size) + 3, torch.randn(size)
        torch.testing.assert_close(by_size(x, y), x + y if size > 64 else x - y)


def test_the_branch_taken_stands_alone_behind_its_condition() -> None:
    text = branching.bind((torch.empty(63, device="meta"), 2, True)).to_triton_code()
    host = text.split("def branching(")[1].splitlines()[1:]
    assert [line.strip() for line in host] == [
        "out = torch.empty_like(x)",
        "assert positive, 'compiled for the other branch'",
        "assert not n > 2, 'compiled for the other branch'",
        "assert n == 2, 'compiled for the other branch'",
        "other = torch.full_like(x, 5)",
        "_launcher(_helion_branching, (4,), x, other, out, num_warps=4, num_stages=1)",
        "return other",
    ]


def test_a_branch_without_loops_has_nothing_to_launch() -> None:
    @helion.kernel(config=helion.Config(block_sizes=[16]))
    def maybe(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        if x.size(0) > 64:
            for tile in hl.tile(x.size(0)):
                out[tile] = x[tile]
        return out

    torch.testing.assert_close(maybe(torch.ones(65)), torch.ones(65))
    assert maybe(torch.ones(63)).shape == (63,)
    with pytest.raises(helion.exc.NoDeviceLoopsInKernel):
        maybe.bind((torch.ones(63),)).to_triton_code()
