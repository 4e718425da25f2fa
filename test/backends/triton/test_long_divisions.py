"""Division of int64 tiles by scalars through reciprocals: every sign, the ends of the range, and where it is taken."""

from __future__ import annotations

import pytest
import torch

import helion
import helion.language as hl

ENDS = torch.iinfo(torch.int64)
NUMBERS = (0, 1, 2, 3, 7, 2**31, 2**32 - 1, 2**32, 2**62 - 1, 2**62, 2**62 + 1, ENDS.max - 1, ENDS.max)
EDGES = (*NUMBERS, *(-each for each in NUMBERS if each), ENDS.min)


@helion.kernel(backend="triton")
def divided(x: torch.Tensor, by: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    quotient, rest = torch.empty_like(x), torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        size = by[0]
        quotient[tile] = x[tile] // size
        rest[tile] = x[tile] % size
    return quotient, rest


@helion.kernel(backend="triton", static_shapes=False)
def buckets_of(keys: torch.Tensor, buckets: int) -> torch.Tensor:
    out = torch.empty_like(keys)
    for tile in hl.tile(keys.size(0)):
        out[tile] = (keys[tile] * 1000003) % buckets
    return out


@helion.kernel(backend="triton")
def halves(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] // 6
    return out


def wrapped(number: int) -> int:
    return (number - ENDS.min) % 2**64 + ENDS.min


def some(count: int) -> list[int]:
    """Return numbers of all sizes."""
    return (torch.randint(ENDS.min, ENDS.max, (count,)) >> torch.randint(0, 63, (count,))).tolist()


@pytest.mark.parametrize("divisor", [each for each in EDGES if each])
def test_quotients_and_remainders_are_pythons(divisor: int) -> None:
    numbers = [*EDGES, *some(500)]
    quotient, rest = divided(torch.tensor(numbers), torch.tensor([divisor]))
    assert quotient.tolist() == [wrapped(each // divisor) for each in numbers]
    assert rest.tolist() == [each % divisor for each in numbers]


def test_random_divisors() -> None:
    for divisor in filter(None, some(20)):
        numbers = [divisor * 3, divisor * 3 - 1, divisor * 3 + 1, *some(100)]
        numbers = [each for each in numbers if ENDS.min <= each <= ENDS.max]
        quotient, rest = divided(torch.tensor(numbers), torch.tensor([divisor]))
        assert quotient.tolist() == [wrapped(each // divisor) for each in numbers]
        assert rest.tolist() == [each % divisor for each in numbers]


@pytest.mark.parametrize("count", [63, 1000, 4097])
def test_buckets_of_keys(count: int) -> None:
    keys = torch.randint(0, 2**40, (count,))
    assert torch.equal(buckets_of(keys, 999983), (keys * 1000003) % 999983)
    assert "_long_remainder(" in buckets_of.bind((keys, 999983)).to_triton_code()


def test_others_are_left() -> None:
    x = torch.arange(100)
    assert "def _long_" not in halves.bind((x,)).to_triton_code()
    assert "def _long_" not in divided.bind((x.int(), x.int()[1:2])).to_triton_code()
    assert torch.equal(halves(x), x // 6)
