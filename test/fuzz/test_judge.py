"""Bounds of errors, and the runner that applies them: what is accepted, and what is found out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fuzz import families, inputs, judge
from fuzz.inputs import LAYOUTS, Input
from fuzz.judge import Precision
from fuzz.runner import Opened, Runner

X = torch.randn(37, 129, generator=torch.Generator().manual_seed(0)) * 0.7 + 0.5


def expected(reference: Callable[..., Any], precision: str = "float32", operands: str = "float32") -> Any:
    return judge.expect(reference, (X.double(),), Precision(values=precision, operands=operands), 1)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.softmax(x, 1),
        lambda x: torch.logsumexp(x, 1),
        lambda x: torch.cumsum(x, 1) * 0.1,
        lambda x: x @ x.t(),
        lambda x: x.var(1),
        lambda x: torch.exp(-x.abs()) - torch.tanh(x),
    ],
)
def test_results_of_eager_torch_are_within_bounds(function: Callable[..., Any], dtype: str) -> None:
    result = function(X.to(getattr(torch, dtype)).float()).to(getattr(torch, dtype))
    right = judge.expect(function, (X.to(getattr(torch, dtype)).double(),), Precision(operands=dtype), 1)
    assert judge.verdict(result, right) == ""


def test_a_term_left_out_is_found() -> None:
    right = expected(lambda x: x.sum(1))
    assert judge.verdict(X[:, :-1].sum(1), right)
    assert judge.verdict(X.sum(1), right) == ""


def test_one_wrong_element_is_found_and_named() -> None:
    result = torch.tanh(X)
    result[3, 100] += 0.001
    assert "1 of 4773 elements are wrong; the worst, at [3, 100]" in judge.verdict(result, expected(torch.tanh))


def test_nan_shape_and_number_of_results() -> None:
    right = expected(lambda x: (x, x + 1))
    assert judge.verdict((X, X + 1), right) == ""
    assert "1 results" in judge.verdict(X, right)
    assert "shape [129, 37]" in judge.verdict((X, X.t()), right)
    assert "4773 of 4773" in judge.verdict((X, X * torch.nan), right)


def test_integers_are_exact() -> None:
    right = expected(lambda x: torch.argmax(x, 1))
    result = X.argmax(1)
    assert judge.verdict(result, right) == ""
    result[7] -= 1
    assert "1 of 37" in judge.verdict(result, right)


def test_operands_of_products_may_be_rounded() -> None:
    rounded = X.bfloat16().double()
    result = (rounded @ rounded.t()).float()
    assert judge.verdict(result, expected(lambda x: x @ x.t(), operands="bfloat16")) == ""
    assert judge.verdict(result, expected(lambda x: x @ x.t()))


def test_operands_of_tf32_are_cut_off() -> None:
    cut = (X.view(torch.int32) & ~0x1FFF).view(torch.float32).double()
    assert judge.verdict((cut @ cut.t()).float(), expected(lambda x: x @ x.t(), operands="tf32")) == ""
    shorter = X[:, :-2].double()
    assert judge.verdict((shorter @ shorter.t()).float(), expected(lambda x: x @ x.t(), operands="tf32"))


def test_a_reference_that_is_not_finite_judges_nothing() -> None:
    with pytest.raises(ValueError, match="not finite"):
        expected(lambda x: torch.log(x - x.max()))


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_layouts_hold_the_values_that_they_say(layout: str) -> None:
    spec = Input(name="x", shape=(5, 7), dtype="float16", layout=layout)
    (first,), (second,) = inputs.make((spec,), 3, "cpu"), inputs.make((spec,), 3, "cpu")
    assert torch.equal(first, second) and first.shape == (5, 7)
    strides = {"transposed": (1, 5), "strided": (14, 2), "padded": (10, 1), "expanded": (0, 1)}
    assert first.stride() == strides.get(layout, (7, 1)) and first.storage_offset() == (layout == "offset")


# --- faults that are planted ----------------------------------------------------------------------------------------------


def _run(kernel: Callable[..., Any], tmp_path: Path) -> str:
    draft = families.draw(0, True, ("rows",))
    draft = type(draft)(**{**vars(draft), "steps": (), "options": {**draft.options, "weight": "no", "gives": "rows", "layout": "contiguous", "dtype": "float32", "out": "float32"}})  # fmt: skip
    runner = Runner("cpu", tmp_path)
    opened = runner.open(draft)
    judged: Callable[[Opened, Any], Any] = runner.judged
    return str(judged(opened, kernel).kind)


def test_a_copy_is_right(tmp_path: Path) -> None:
    assert _run(lambda x: x.clone(), tmp_path) == "right"


def test_memory_that_nothing_wrote_is_found(tmp_path: Path) -> None:
    def forgets(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        out[:, 1:] = x[:, 1:]
        return out

    assert _run(forgets, tmp_path) == "wrong"


def test_writes_outside_are_found(tmp_path: Path) -> None:
    def beyond(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        out.copy_(x)
        torch.as_strided(out, (1,), (1,), out.storage_offset() + out.numel()).fill_(1.0)
        return out

    assert _run(beyond, tmp_path) == "outside"


def test_inputs_that_change_are_found(tmp_path: Path) -> None:
    def changes(x: torch.Tensor) -> torch.Tensor:
        out = x.clone()
        x.view(-1)[-1] += 1
        return out

    assert _run(changes, tmp_path) == "wrong"


def test_unrounded_products_may_remain_of_a_difference() -> None:
    """A GPU computes ``v - v`` of a product as one FMA, which leaves the product's roundoff."""
    right = expected(lambda x: (lambda product: product - product)(x * 1.7))
    product = X.double() * torch.tensor(1.7).double()
    left = (product - product.float().double()).float()
    assert bool(left.any()) and judge.verdict(left, right) == ""
    assert judge.verdict(left * 1000, right)


def test_a_difference_that_is_zero_exactly_has_the_rounding_of_its_operands() -> None:
    one = torch.tensor([[1.3]], dtype=torch.float64)
    (right,) = judge.expect(lambda x: torch.log_softmax(x, 1), (one,), Precision(), 3)
    assert judge.difference(torch.tensor([[2.0**-26]]), right) == ""
    assert judge.difference(torch.tensor([[1e-5]]), right)
