"""Gradients of kernels against torch's own, of the same functions in fp64; never against our forward."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from gradients.kernels import CASES, Case, longer_than_read

import helion
import helion.language as hl

CASES_BY_NAME = [pytest.param(case, id=case.name) for case in CASES]
PROVE = os.environ.get("HELION_PROVE") == "1"


def in_float64(arguments: Sequence[Any]) -> list[Any]:
    """Arguments whose floats are leaves in fp64."""
    return [
        a.detach().double().requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point() else a
        for a in arguments
    ]


def tensors(values: Any) -> tuple[torch.Tensor, ...]:
    return values if isinstance(values, tuple) else (values,)


def expected(case: Case, arguments: Sequence[Any], grads: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """torch's gradients in fp64, zeros where it finds no way."""
    given = in_float64(arguments)
    leaves = [a for a in given if isinstance(a, torch.Tensor) and a.requires_grad]
    outputs = tensors(case.reference(*given))
    found = torch.autograd.grad(outputs, leaves, [g.double() for g in grads], allow_unused=True)
    return [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, found, strict=True)]


def incoming(case: Case, arguments: Sequence[Any], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Gradients of the results, with a mean away from zero."""
    generator = torch.Generator().manual_seed(11)
    shapes = [o.shape for o in tensors(case.reference(*in_float64(arguments)))]
    return tuple((torch.randn(s, generator=generator, dtype=torch.float64) + 0.5).to(dtype) for s in shapes)


def check(found: Sequence[torch.Tensor | None], wanted: Sequence[torch.Tensor], dtype: torch.dtype, tol: float) -> None:
    given = [g for g in found if g is not None]
    assert len(given) == len(wanted)
    for gradient, reference in zip(given, wanted, strict=True):
        assert gradient.shape == reference.shape
        assert gradient.dtype == dtype
        error = (gradient.double() - reference).abs().max() if reference.numel() else torch.zeros(())
        assert error <= tol * (1 + reference.abs().max()), f"error {error:.2e}"


@pytest.fixture
def filled() -> Iterator[None]:
    """Memory that nobody has written is NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
@pytest.mark.parametrize("case", CASES_BY_NAME)
def test_backward(case: Case, dtype: torch.dtype) -> None:
    arguments = case.arguments(dtype)
    grads = incoming(case, arguments, dtype)
    found = helion.experimental.backward(case.kernel, grads if len(grads) > 1 else grads[0], *arguments)
    tol = 1e-5 if dtype == torch.float32 or case.single else 1e-11
    check(tensors(found), expected(case, arguments, grads), dtype, tol)


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name) for case in CASES if not (case.single or case.detaches)]
)
def test_gradcheck(case: Case) -> None:
    given = in_float64(case.arguments(torch.float64))
    assert torch.autograd.gradcheck(case.kernel.differentiable(), given, fast_mode=not PROVE, nondet_tol=1e-12)


@pytest.mark.parametrize("case", CASES_BY_NAME if PROVE else CASES_BY_NAME[::3])
def test_bfloat16(case: Case) -> None:
    """Gradients in bf16 are those in fp64 of the same values, to the precision that bf16 has."""
    arguments = case.arguments(torch.bfloat16)
    grads = incoming(case, arguments, torch.bfloat16)
    found = helion.experimental.backward(case.kernel, grads if len(grads) > 1 else grads[0], *arguments)
    check(tensors(found), expected(case, arguments, grads), torch.bfloat16, 0.03)


@pytest.mark.parametrize("case", CASES_BY_NAME)
def test_autograd(case: Case) -> None:
    """Twice each: the first call records its host code, a later one may go straight to the backward kernel."""
    arguments = case.arguments(torch.float32)
    grads = incoming(case, arguments, torch.float32)
    wanted = expected(case, arguments, grads)
    function = case.kernel.differentiable()
    for _ in range(2):
        leaves = [
            a.detach().requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point() else a
            for a in arguments
        ]
        outputs = tensors(function(*leaves))
        asked = [a for a in leaves if isinstance(a, torch.Tensor) and a.requires_grad]
        found = torch.autograd.grad(outputs, asked, grads)
        check(found, wanted, torch.float32, 1e-5)


#: Cases whose reference gives ties to all of a row, where the kernel does what torch does for pairs of its tiles.
BY_TILES = ("maxima_by_tiles",)
SPECIAL = [case for case in CASES if case.name not in BY_TILES]


def special(kind: str, tensor: Any, generator: torch.Generator) -> Any:
    """Floats that are zeros, small integers, which tie, or zeros in half of the places."""
    if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
        return tensor
    if kind == "zeros":
        return torch.zeros_like(tensor)
    if kind == "ties":
        return torch.randint(-1, 2, tensor.shape, generator=generator).to(tensor.dtype)
    return torch.where(torch.rand(tensor.shape, generator=generator) < 0.5, torch.zeros_like(tensor), tensor)


@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in (SPECIAL if PROVE else SPECIAL[::8])])
def test_zeros_and_ties(case: Case) -> None:
    """Padding, dropout and relu make zeros: the gradient is torch's there, and nan only where that is."""
    generator = torch.Generator().manual_seed(5)
    for kind in ("zeros", "ties", "half"):
        arguments = [special(kind, a, generator) for a in case.arguments(torch.float64)]
        grads = incoming(case, arguments, torch.float64)
        wanted = expected(case, arguments, grads)
        found = tensors(helion.experimental.backward(case.kernel, grads if len(grads) > 1 else grads[0], *arguments))
        tol = 1e-5 if case.single else 1e-8
        for gradient, reference in zip([g for g in found if g is not None], wanted, strict=True):
            torch.testing.assert_close(gradient, reference, rtol=tol, atol=tol, equal_nan=True)


def test_tensors_without_elements_have_gradients() -> None:
    """All lanes are masked, and no element is added to: its address would be that of no memory."""
    x, w = torch.randn(5, 0, requires_grad=True), torch.randn(0, requires_grad=True)
    out = longer_than_read.differentiable()(x, w)
    found = torch.autograd.grad(out, (x, w), torch.ones_like(out))
    assert out.shape == (5, 3) and not out.any()
    assert [each.shape for each in found] == [x.shape, w.shape]


def test_softmaxes_leave_no_rounding_of_a_row_in_one_element() -> None:
    """The maximum that a softmax subtracts has the derivative 0, not the rounding of a sum over the row."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(8, 4096, generator=generator, requires_grad=True)
    grad = torch.randn(8, 4096, generator=generator) + 0.5
    (found,) = torch.autograd.grad(logs_of_rows.differentiable()(x), x, grad)
    softmax = torch.softmax(x.detach().double(), 1)
    terms = softmax * grad.double().sum(1, keepdim=True)
    error = (found.double() - (grad.double() - terms)).abs()
    assert bool((error <= 2.0**-19 * (grad.double().abs() + terms.abs())).all())


@helion.kernel(autotune_effort="none")
def logs_of_rows(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.log_softmax(x[tile, :], 1)
    return out


@helion.kernel
def leaky_peak(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    m, n = x.size()
    out = torch.empty([m], dtype=x.dtype, device=x.device)
    place = torch.zeros([m], dtype=torch.int64, device=x.device)
    for tile in hl.tile(m):
        top = hl.full([tile], float("-inf"), dtype=x.dtype)
        best = hl.zeros([tile], dtype=torch.int64)
        total = hl.zeros([tile], dtype=x.dtype)
        for at in hl.grid(n):
            value = x[tile, at]
            best = torch.where(value > top, at, best)
            top = torch.maximum(top, value)
            total = total * 0.5 + value * value
            place[tile] = best
        out[tile] = top * total
    return out, place


def test_integers_that_every_iteration_stores_need_no_gradient() -> None:
    x = torch.randn(6, 20, dtype=torch.float64, requires_grad=True)
    out, place = leaky_peak.differentiable()(x)
    out.sum().backward()
    weights = 0.5 ** torch.arange(19, -1, -1, dtype=torch.float64)
    leaf = x.detach().requires_grad_()
    ((leaf * leaf * weights).sum(1) * leaf.amax(1)).sum().backward()
    torch.testing.assert_close(x.grad, leaf.grad)
    assert torch.equal(place, x.argmax(1))
