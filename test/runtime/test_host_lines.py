"""Errors that the host code of a kernel raises at run time have the user's line."""

from __future__ import annotations

import inspect

import pytest
import torch

import helion
import helion.language as hl


def by_fours(x: torch.Tensor) -> torch.Tensor:
    flat = x.view(-1, 4)
    out = torch.empty_like(flat)
    for tile in hl.tile(flat.size(0)):
        out[tile, :] = flat[tile, :] * 2
    return out


def flattened(x: torch.Tensor) -> torch.Tensor:
    flat = x.view(-1)
    out = torch.empty_like(flat)
    for tile in hl.tile(flat.size(0)):
        out[tile] = flat[tile] * 2
    return out


def refused(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * 2
    ratio = 1 / (x.size(0) - 7)
    return out * ratio


@pytest.mark.parametrize(
    ("fn", "x", "error", "line"),
    (
        (by_fours, torch.randn(5, 3), RuntimeError, 1),
        (flattened, torch.randn(4, 6).T, RuntimeError, 1),
        (refused, torch.randn(7), ZeroDivisionError, 4),
    ),
)
def test_an_error_of_host_code_has_the_user_s_line(fn, x: torch.Tensor, error: type[Exception], line: int) -> None:
    with pytest.raises(error) as caught:
        helion.kernel(fn, static_shapes=False)(x)
    first = inspect.getsourcelines(fn)[1]
    assert f'File "{__file__}", line {first + line}, in {fn.__name__}' in "".join(caught.value.__notes__)
