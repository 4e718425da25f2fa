"""The fast path of calls with tuples among their arguments: the launches are those of the full way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch

import helion
import helion.language as hl
from helion.runtime import stub_driver


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@pytest.fixture
def stub() -> Iterator[Any]:
    with stub_driver() as found:
        yield found


def _kernel(static: bool) -> helion.Kernel:
    @helion.kernel(config=helion.Config(block_sizes=[32]), static_shapes=static)
    def combined(
        x: torch.Tensor, others: tuple[torch.Tensor, ...], pair: Pair, numbers: tuple[int, float]
    ) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            acc = x[tile] * numbers[0] + pair.first[tile] - pair.second[tile] * numbers[1]
            for other in others:
                acc = acc + other[tile]
            out[tile] = acc
        return out

    return combined


def _args(size: int, count: int = 2, scale: int = 3, dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    others = tuple(torch.randn(size, dtype=dtype) for _ in range(count))
    return torch.randn(size), others, Pair(torch.randn(size), torch.randn(size)), (scale, 2.5)


def _forbid_the_full_way(kernel: helion.Kernel) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("went the full way")

    kernel.__dict__["_call_slow"] = refuse


@pytest.mark.parametrize("static", [True, False])
def test_calls_with_tuples_take_the_fast_path(stub: Any, static: bool) -> None:
    kernel = _kernel(static)
    kernel(*_args(100))
    kernel(*_args(64, count=3))
    _forbid_the_full_way(kernel)
    stub.launches.clear()
    for args in (_args(100), _args(64, count=3), _args(100)):
        assert kernel(*args).shape == args[0].shape
    assert [launch.grid[0] for launch in stub.launches] == [4, 2, 4]


@pytest.mark.parametrize(
    "other",
    [
        _args(101),
        _args(100, count=1),
        _args(100, scale=4),
        _args(100, dtype=torch.float64),
        (*_args(100)[:2], tuple(torch.randn(100) for _ in range(2)), (3, 2.5)),
        (*_args(100)[:3], (3, 2.0)),
    ],
    ids=["size", "length", "number", "dtype", "type", "float"],
)
def test_other_tuples_do_not(stub: Any, other: tuple[Any, ...]) -> None:
    kernel = _kernel(True)
    kernel(*_args(100))
    _forbid_the_full_way(kernel)
    kernel(*_args(100))
    with pytest.raises((AssertionError, helion.exc.BaseError), match="full way|no attribute"):
        kernel(*other)


def test_one_tensor_twice_is_another_signature(stub: Any) -> None:
    kernel, args = _kernel(True), _args(100)
    kernel(*args)
    _forbid_the_full_way(kernel)
    x, (first, _), pair, numbers = _args(100)
    with pytest.raises(AssertionError, match="full way"):
        kernel(x, (first, first), pair, numbers)
