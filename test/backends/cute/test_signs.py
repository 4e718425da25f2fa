"""Dots that are subtracted from accumulators: residuals, and products of complex numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from backends.cute.edited_source import edited
from backends.cute.products import BF16, row_error, values

import helion
import helion.language as hl
from helion import exc

FP32 = torch.float32
M, N, K = 70, 136, 72


RESIDUAL = """
import torch
import helion.language as hl


def residual(x, w, y):
    m, k = x.shape
    n = w.size(1)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = y[i, j].to(torch.float32)
        for d in hl.tile(k):
            acc = acc - hl.dot(x[i, d], w[d, j])
        out[i, j] = acc
    return out
"""
FIRST, LOOP, STORE = "y[i, j].to(torch.float32)", "acc - hl.dot(x[i, d], w[d, j])", "out[i, j] = acc\n"
FROM_ZERO = RESIDUAL.replace(FIRST, "hl.zeros([i, j], dtype=torch.float32)").replace(
    STORE, "out[i, j] = y[i, j] + torch.relu(acc)\n"
)
OF_INTEGERS = RESIDUAL.replace(FIRST, "hl.zeros([i, j], dtype=torch.int32)").replace(
    STORE, "out[i, j] = acc.to(out.dtype)\n"
)
CHANGES = {
    "as it is": (RESIDUAL, LOOP, LOOP),
    "alpha": (RESIDUAL, LOOP, "torch.addmm(acc, x[i, d], w[d, j], alpha=-1)"),
    "from zero, rounded dots": (FROM_ZERO, LOOP, "acc - x[i, d] @ w[d, j]"),
    "decaying": (RESIDUAL, LOOP, "acc - acc * hl.dot(x[i, d], w[d, j])"),
    "of integers": (OF_INTEGERS, LOOP, "acc - hl.dot(x[i, d], w[d, j], out_dtype=torch.int32)"),
}
"""In "decaying" every tile of K reads the accumulator twice."""


@helion.kernel(backend="cute")
def complex_product(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    m, k = a.shape
    n = c.size(1)
    real = torch.empty([m, n], dtype=FP32, device=a.device)
    imaginary = torch.empty_like(real)
    for i, j in hl.tile([m, n]):
        p = hl.zeros([i, j], dtype=FP32)
        q = hl.zeros([i, j], dtype=FP32)
        for t in hl.tile(k):
            p = hl.dot(a[i, t], c[t, j], acc=p)
            p = p - hl.dot(b[i, t], d[t, j])
            q = hl.dot(a[i, t], d[t, j], acc=q)
            q = hl.dot(b[i, t], c[t, j], acc=q)
        real[i, j] = p
        imaginary[i, j] = q
    return real, imaginary


@helion.kernel(backend="cute")
def two_loops(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    m, k = a.shape
    n = c.size(1)
    out = torch.empty([m, n], dtype=FP32, device=a.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=FP32)
        for t in hl.tile(k):
            acc = acc + hl.dot(a[i, t], c[t, j])
        for t in hl.tile(k):
            acc = acc - hl.dot(b[i, t], d[t, j])
        out[i, j] = acc
    return out


def made(*shape: int, seed: int) -> torch.Tensor:
    return values(*shape, dtype=BF16, device="cpu", seed=seed)


def whole(kernel: helion.Kernel, given: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    got = kernel.bind(given, target="sm_90")(*given)
    return [got] if isinstance(got, torch.Tensor) else [*got]


def changed(name: str, folder: Path) -> helion.Kernel:
    return helion.kernel(backend="cute")(edited(*CHANGES[name], folder / "changed.py").residual)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("as it is", lambda x, w, y: y - x @ w),
        ("alpha", lambda x, w, y: y - x @ w),
        ("from zero, rounded dots", lambda x, w, y: y + torch.relu(-(x @ w))),
    ],
)
def test_an_accumulator_has_the_other_sign(name: str, wanted: Callable[..., torch.Tensor], tmp_path: Path) -> None:
    kernel = changed(name, tmp_path)
    given = made(M, K, seed=1), made(K, N, seed=2), made(M, N, seed=3)
    problem = kernel.bind(given, target="sm_90").plan().gemm.problem
    assert not problem.copied
    assert "neg" in {made.op for made in problem.epilogue.instructions}
    (got,) = whole(kernel, given)
    assert row_error(got, wanted(*(each.double() for each in given))) < 3e-3


def test_terms_of_both_signs_negate_an_operand() -> None:
    a, b, c, d = given = tuple(made(*shape, seed=at) for at, shape in enumerate([(M, K), (M, K), (K, N), (K, N)]))
    got = whole(complex_product, given)
    a, b, c, d = (each.double() for each in given)
    for each, wanted in zip(got, (a @ c - b @ d, a @ d + b @ c), strict=True):
        assert row_error(each, wanted) < 1e-5
    (got,) = whole(two_loops, given)
    assert row_error(got, a @ c - b @ d) < 1e-5


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("decaying", (made(M, K, seed=1), made(K, N, seed=2), made(M, N, seed=3)), "that start from zero"),
        (
            "of integers",
            (torch.ones(M, 64, dtype=torch.int8), torch.ones(64, N, dtype=torch.int8), torch.ones(M, N)),
            "neg of int32",
        ),
    ],
)
def test_what_has_no_sign_is_refused(name: str, given: tuple[torch.Tensor, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(exc.CuteUnsupported, match=message):
        changed(name, tmp_path).bind(given, target="sm_90").plan()
