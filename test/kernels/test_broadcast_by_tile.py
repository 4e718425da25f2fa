"""Values of fewer dimensions stand where their tiles do in larger ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc


def slices(a: torch.Tensor, b: torch.Tensor, k: hl.constexpr) -> torch.Tensor:
    out = torch.empty_like(a)
    for i, j in hl.tile([a.size(0), a.size(1)]):
        out[i, j, 0:k] = a[i, j, 0:k] + b[i, 0:k]
    return out


def several_functions(a: torch.Tensor, b: torch.Tensor, k: hl.constexpr) -> torch.Tensor:
    out = torch.empty_like(a)
    for i, j in hl.tile([a.size(0), a.size(1)]):
        v = torch.where(b[i, :] > 0, a[i, j, :] * b[i, :], a[i, j, :])
        v += b[i, :]
        out[i, j, :] = v - b[i, :].expand_as(v) + b[i, :].sum(1, keepdim=True)
    return out


def expected(function: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    b = b[:, None]
    return a + b if function is slices else torch.where(b > 0, a * b, a) + b.sum(2, keepdim=True)


@pytest.mark.parametrize("function", [slices, several_functions], ids=lambda f: f.__name__)
@pytest.mark.parametrize("mode", ["static", "dynamic", "eager", "checked"])
def test_tiles_and_whole_dimensions(function: Any, mode: str) -> None:
    kernel = helion.kernel(
        function,
        static_shapes=mode != "dynamic",
        ref_mode=helion.RefMode.EAGER if mode == "eager" else helion.RefMode.OFF,
        checked=mode == "checked",
    )
    for shape in ((4, 6, 7), (4, 4, 4), (5, 1, 16), (1, 5, 3), (4, 6, 1)):
        a, b = torch.randn(shape) + 0.5, torch.randn(shape[0], shape[2]) + 0.5
        torch.testing.assert_close(kernel(a, b, shape[2]), expected(function, a, b))


def twice_in_the_target(x: torch.Tensor, k: hl.constexpr) -> torch.Tensor:
    out = torch.empty([x.size(0), k, k])
    for i in hl.tile(x.size(0)):
        out[i, :, :] = hl.zeros([i, k, k]) + x[i, 0:k]
    return out


def other_order(x: torch.Tensor, k: hl.constexpr) -> torch.Tensor:
    out = torch.empty([x.size(0), x.size(0), k])
    for i, j in hl.tile([x.size(0), x.size(0)]):
        out[i, j, :] = hl.zeros([i, j, k]) + x[i, 0:k].T
    return out


def no_tile(x: torch.Tensor, k: hl.constexpr) -> torch.Tensor:
    out = torch.empty([k, x.size(0)])
    for i in hl.tile(x.size(0)):
        out[:, i] = hl.zeros([k, i]) + x[0, 0:k]
    return out


@pytest.mark.parametrize("function", [twice_in_the_target, other_order, no_tile], ids=lambda f: f.__name__)
@pytest.mark.parametrize("columns", [7, 16])
def test_what_tiles_do_not_decide_is_refused(function: Any, columns: int) -> None:
    with pytest.raises(exc.ShapeMismatch, match="aligned at the right"):
        helion.kernel(function).bind((torch.randn(5, columns), columns))
