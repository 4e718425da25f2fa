"""Composites of integers and booleans, whose inner sums are sums of floats, against eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import helion
import helion.language as hl
from helion import exc

Row = Callable[[torch.Tensor], torch.Tensor]
CONFIG = helion.Config(block_sizes=[2])


@helion.kernel(config=CONFIG)
def rows(x: torch.Tensor, f: Row) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=torch.float32)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = f(x[tile, :])
    return out


#: Of integers eager mode refuses all but the first; what they stand for is what it gives for the same numbers as floats.
COMPOSITES: dict[str, Row] = {
    "logsumexp": lambda v: v + torch.logsumexp(v, -1, keepdim=True),
    "softmax": lambda v: torch.softmax(v, -1),
    "log_softmax": lambda v: F.log_softmax(v, -1),
    "layer_norm": lambda v: F.layer_norm(v, (7,)),
    "norm": lambda v: v + torch.norm(v, dim=-1, keepdim=True),
}


@pytest.mark.parametrize("dtype", [torch.int32, torch.int8, torch.bool], ids=str)
@pytest.mark.parametrize("name", COMPOSITES)
def test_sums_inside_are_sums_of_floats(name: str, dtype: torch.dtype) -> None:
    x = (torch.arange(35).reshape(5, 7) * 5 % 13 % 5).to(dtype)
    expected = COMPOSITES[name](x.double()).float()
    torch.testing.assert_close(rows(x, COMPOSITES[name]), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.int32, torch.float16], ids=str)
def test_alpha_keeps_the_dtype(dtype: torch.dtype) -> None:
    x = (torch.arange(35).reshape(5, 7) % 3).to(dtype)
    forms: list[Row] = [lambda v: torch.add(v, v, alpha=2)]
    if dtype != torch.bool:
        forms.append(lambda v: torch.sub(v, v, alpha=3))
    for form in forms:
        assert torch.equal(rows(x, form), form(x).float())


@helion.kernel(config=CONFIG)
def of_two(x: torch.Tensor, y: torch.Tensor, f: Callable[..., torch.Tensor], out: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        out[tile] = f(x[tile], y[tile])
    return out


SCALED: tuple[Callable[..., torch.Tensor], ...] = (
    lambda a, b: torch.add(a, b, alpha=2),
    lambda a, b: torch.rsub(a, b, alpha=3),
    lambda a, b: torch.addcmul(a, b, b, value=2),
)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("form", SCALED, ids=["add", "rsub", "addcmul"])
def test_operands_are_promoted_before_they_are_scaled(form: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    x, y = torch.tensor([7, 100, 0]).to(dtype), torch.tensor([100, -128, 127], dtype=torch.int8)
    for left, right in ((x, y), (y, x)):
        expected = form(left, right)
        assert torch.equal(of_two(left, right, form, torch.empty_like(expected)), expected)


def test_alpha_of_integers_is_an_integer() -> None:
    with pytest.raises(exc.TypeInferenceError, match=r"torch\.add of integers takes an integer as alpha, got 0\.5"):
        rows(torch.ones(5, 7, dtype=torch.int32), lambda v: torch.add(v, v, alpha=0.5))


#: Lanes out of range hold 0, which wraps like the numbers in range.
WRAPPING: list[tuple[torch.dtype, Row]] = [
    (torch.uint8, lambda v: v + (v - 1).abs().prod(-1, keepdim=True).float()),
    (torch.uint8, lambda v: v + (v // 3).clamp(-5, 50).sum(-1, keepdim=True).float()),
    (torch.int8, lambda v: v + (v - 100 - 100 > 0).sum(-1, keepdim=True).float()),
    (torch.uint8, lambda v: torch.special.entr(v)),
]


@pytest.mark.parametrize("at", range(len(WRAPPING)))
def test_lanes_out_of_range_wrap(at: int) -> None:
    dtype, form = WRAPPING[at]
    x = (torch.arange(35).reshape(5, 7) * 5 % 13 + 90).to(dtype)
    torch.testing.assert_close(rows(x, form), form(x).float(), rtol=1e-5, atol=1e-5)
