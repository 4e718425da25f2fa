"""Results of Python and torch that shortcuts would change: and / or, reductions of no lanes, promotion before a
logarithm, integers beyond 32 and 64 bits.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc


@helion.kernel
def and_or(x: torch.Tensor, n: int, f: float) -> torch.Tensor:
    out = torch.empty([x.size(0), 7], dtype=torch.float64, device=x.device)
    for i in hl.grid(x.size(0)):
        v = x[i]
        out[i, 0] = v or 7.0
        out[i, 1] = v and 7.0
        out[i, 2] = n or 5
        out[i, 3] = f or v
        out[i, 4] = n and f and x[i]
        out[i, 5] = (v > 0 or n > 3) + 0
        out[i, 6] = bool(n) + bool(f)
    return out


@pytest.mark.parametrize(("n", "f"), [(0, 2.5), (4, 0.0), (3, -1.5), (2**40, math.inf)])
def test_and_and_or_give_one_of_their_operands(n, f):
    x = torch.tensor([-3.0, 0.0, 2.0])
    rows = [(v or 7.0, v and 7.0, n or 5, f or v, n and f and v, v > 0 or n > 3, bool(n) + bool(f)) for v in x.tolist()]
    assert torch.equal(and_or(x, n, f), torch.tensor(rows, dtype=torch.float64))


@helion.kernel(checked=True)
def runs_of_positives(x: torch.Tensor) -> torch.Tensor:
    n = x.size(0)
    out = torch.zeros([n], dtype=torch.int32, device=x.device)
    for i in hl.grid(n):
        end = i
        while end < n and x[end] > 0:
            end = end + 1
        if (i > 0 and x[i - 1] > 0) or i == n - 1:
            end = -end
        out[i] = end - i
    return out


def test_a_decided_condition_reads_no_memory():
    x = torch.tensor([1.0, 1.0, 0.0, 2.0, 3.0])
    assert runs_of_positives(x).tolist() == [2, -3, -4, 2, -9]


@helion.kernel
def has_zero(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    some, every = (torch.empty([x.size(0)], dtype=torch.bool, device=x.device) for _ in range(2))
    for tile in hl.tile(x.size(0)):
        some[tile] = (x[tile, :] == 0).any(-1)
        every[tile] = (x[tile, :] == 0).all(-1)
    return some, every


@helion.kernel
def jagged_has_zero(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    out = torch.empty([offsets.size(0) - 1], dtype=torch.bool, device=values.device)
    for tile in hl.tile(offsets.size(0) - 1):
        start = offsets[tile]
        found = hl.zeros([tile], dtype=torch.bool)
        for at in hl.jagged_tile(offsets[tile.index + 1] - start):
            found = found | (values[start[:, None] + at.index[None, :]] == 0).any(1)
        out[tile] = found
    return out


@pytest.mark.parametrize("static", [True, False])
def test_any_of_no_lanes_is_false(static):
    some, every = helion.kernel(has_zero.fn, static_shapes=static)(torch.ones(3, 0))
    assert not some.any() and every.all()


@pytest.mark.parametrize("blocks", [[1, 4], [4, 1], [8, 16]])
def test_any_of_rows_of_several_lengths(blocks):
    values = torch.ones(13)
    values[5] = 0
    kernel = helion.kernel(jagged_has_zero.fn, config=helion.Config(block_sizes=blocks))
    found = kernel(values, torch.tensor([0, 3, 3, 4, 11, 13]))
    assert found.tolist() == [False, False, False, True, False]


@helion.kernel
def logarithms(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    out = torch.empty([a.size(0), 2], dtype=dtype, device=a.device)
    for tile in hl.tile(a.size(0)):
        out[tile, 0] = torch.xlogy(a[tile], b[tile])
        out[tile, 1] = torch.addcdiv(a[tile].to(dtype), a[tile], b[tile])
    return out


@pytest.mark.parametrize(("one", "other"), [(torch.float64, torch.float32), (torch.float16, torch.int32)])
def test_operands_are_promoted_before_a_logarithm(one, other):
    a, b = torch.tensor([7, 100, 3]).to(one), torch.tensor([2**17, 3, 90]).to(other)
    expected = torch.stack([torch.xlogy(a, b), torch.addcdiv(a, a, b)], 1)
    torch.testing.assert_close(logarithms(a, b, one), expected, rtol=torch.finfo(one).eps, atol=0)


@helion.kernel
def times(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * n
    return out


def test_integers_beyond_64_bits_are_refused():
    x = torch.ones(1, dtype=torch.float64)
    assert times(x, 2**63 - 1).item() == float(2**63 - 1)
    for n in (2**63, 2**64, -(2**63) - 1):
        with pytest.raises(OverflowError, match="does not fit a signed integer of 64 bits; pass it as a float"):
            times(x, n)


@helion.kernel
def drawn(x: torch.Tensor, seed: int) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = hl.rand([tile], seed)
    return out


def test_a_seed_beyond_64_bits_has_a_remedy() -> None:
    x = torch.ones(4)
    for seed, instead in ((2**63 + 5, 5), (2**64 - 1, 2**63 - 1), (-(2**63) - 1, 2**63 - 1)):
        message = f"kernel 'drawn': argument 'seed' of {seed} does not fit .* or as {instead}, .* where it is a seed"
        with pytest.raises(OverflowError, match=message):
            drawn(x, seed)
        assert drawn(x, instead).shape == x.shape


@helion.kernel
def integers(x: torch.Tensor, i: torch.Tensor, n: int, f: float) -> torch.Tensor:
    out = torch.empty([4], dtype=torch.int64, device=x.device)
    for _ in hl.grid(1):
        out[0] = int(x[0])
        out[1] = int(i[0])
        out[2] = int(n)
        out[3] = int(f)
    return out


def test_int_keeps_all_bits():
    found = integers(torch.tensor([3e9]), torch.tensor([2**40 + 1]), 2**41 + 1, -5e9)
    assert found.tolist() == [3_000_000_000, 2**40 + 1, 2**41 + 1, -5_000_000_000]


@helion.kernel
def bounded(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.empty([x.size(0), 4], dtype=torch.int64, device=x.device)
    for tile in hl.tile(x.size(0)):
        v = x[tile]
        out[tile, 0] = v.clamp(max=n)
        out[tile, 1] = v.clamp(min=-n, max=n)
        out[tile, 2] = max(v.amin(0), 1000)
        out[tile, 3] = min(v.amax(0), n)
    return out


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
@pytest.mark.parametrize("n", [100, 40000, 2**40])
def test_bounds_that_a_dtype_does_not_hold(dtype, n):
    x = torch.tensor([0, 7, torch.iinfo(dtype).max]).to(dtype)
    values = x.tolist()
    rows = [(min(v, n), max(min(v, n), -n), 1000, min(max(values), n)) for v in values]
    assert bounded(x, n).tolist() == [list(row) for row in rows]


@pytest.mark.parametrize(
    "fill",
    [
        lambda v: v.clamp(max=300),
        lambda v: v.masked_fill(v > 3, 300),
        lambda v: torch.full_like(v, -256),
        lambda v: v + torch.full([], 300, dtype=torch.uint8),
    ],
)
def test_constants_that_a_dtype_does_not_hold_are_refused(fill):
    with pytest.raises(exc.TorchOpTracingError, match="it does not fit torch.uint8, which holds 0 to 255"):
        applied(torch.zeros(3, dtype=torch.uint8), fill)


@helion.kernel
def applied(x: torch.Tensor, function: Callable[..., Any]) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = function(x[tile])
    return out
