"""Products that a loop subtracts: which loops add them instead, and the values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import helion
import helion.language as hl


def residual(a: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    m, n = b.shape
    out = torch.empty([m, n], dtype=torch.float32, device=b.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = b[tile_m, tile_n].to(torch.float32)
        for tile_k in hl.tile(a.size(1)):
            acc = acc - hl.dot(a[tile_m, tile_k], x[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


def negative(a: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    m, n = b.shape
    out = torch.empty([m, n], dtype=torch.float32, device=b.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(a.size(1)):
            acc -= hl.dot(a[tile_m, tile_k], x[tile_k, tile_n])
        out[tile_m, tile_n] = acc + b[tile_m, tile_n]
    return out


def both(a: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """One sum that products are added to, and one that they are subtracted from."""
    m, n = b.shape
    out = torch.empty([m, n], dtype=torch.float32, device=b.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = b[tile_m, tile_n].to(torch.float32)
        more = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(a.size(1)):
            acc = acc - hl.dot(a[tile_m, tile_k], x[tile_k, tile_n])
            more = hl.dot(a[tile_m, tile_k], x[tile_k, tile_n], acc=more)
        out[tile_m, tile_n] = acc + more
    return out


def reversed_each_time(a: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The sum is what is subtracted: another number in each step."""
    m, n = b.shape
    out = torch.empty([m, n], dtype=torch.float32, device=b.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = b[tile_m, tile_n].to(torch.float32)
        for tile_k in hl.tile(a.size(1), block_size=16):
            acc = hl.dot(a[tile_m, tile_k], x[tile_k, tile_n]) - acc
        out[tile_m, tile_n] = acc
    return out


def read_inside(a: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The sum is read in each step."""
    m, n = b.shape
    out = torch.empty([m, n], dtype=torch.float32, device=b.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = b[tile_m, tile_n].to(torch.float32)
        most = b[tile_m, tile_n].to(torch.float32)
        for tile_k in hl.tile(a.size(1), block_size=16):
            acc = acc - hl.dot(a[tile_m, tile_k], x[tile_k, tile_n])
            most = torch.maximum(most, acc)
        out[tile_m, tile_n] = most
    return out


def scaled(a: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    m, n = b.shape
    out = torch.empty([m, n], dtype=torch.float32, device=b.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = b[tile_m, tile_n].to(torch.float32)
        for tile_k in hl.tile(a.size(1)):
            acc = acc - hl.dot(a[tile_m, tile_k], x[tile_k, tile_n]) * 2.0
        out[tile_m, tile_n] = acc
    return out


Case = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def alternating(a: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    acc = b
    for k in range(0, a.size(1), 16):
        acc = a[:, k : k + 16] @ x[k : k + 16] - acc
    return acc


def largest(a: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    acc = most = b
    for k in range(0, a.size(1), 16):
        acc = acc - a[:, k : k + 16] @ x[k : k + 16]
        most = torch.maximum(most, acc)
    return most


CHANGED: tuple[tuple[Case, Case], ...] = (
    (residual, lambda a, x, b: b - a @ x),
    (negative, lambda a, x, b: b - a @ x),
    (both, lambda a, x, b: b),
)
KEPT: tuple[tuple[Case, Case], ...] = (
    (reversed_each_time, alternating),
    (read_inside, largest),
    (scaled, lambda a, x, b: b - 2.0 * (a @ x)),
)


def operands(m: int, k: int, n: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    return tuple((torch.randn(*shape) * 0.3).to(dtype) for shape in ((m, k), (k, n), (m, n)))


def _subtracts(bound: helion.BoundKernel) -> bool:
    (root,) = bound._analysis.program.roots
    return any(op.attrs.name == "sub" for op in root.body.walk() if op.kind == "pointwise")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("case", [*CHANGED, *KEPT], ids=lambda case: case[0].__name__)
@pytest.mark.parametrize("shape", [(63, 100, 33), (16, 48, 17)])
def test_the_values(case: tuple[Case, Case], shape: tuple[int, int, int], static: bool, dtype: torch.dtype) -> None:
    kernel, reference = case
    a, x, b = operands(*shape)
    args = a.to(dtype), x.to(dtype), b
    bound = helion.kernel(kernel, static_shapes=static, dot_precision="ieee").bind(args)
    assert _subtracts(bound) == (case in KEPT or dtype == torch.float32)
    expected = reference(*(each.float() for each in args))
    torch.testing.assert_close(bound(*args), expected, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("target", ["h200", "a100", "b200"])
def test_the_accumulator_is_the_matrix_units(target: str) -> None:
    shapes = (1024, 512), (512, 256), (1024, 256)
    args = tuple(torch.empty(shape, device="meta", dtype=torch.bfloat16) for shape in shapes)
    bound = helion.kernel(residual, backend="triton").bind(args, target=target)
    code = bound.to_triton_code(bound.default_config())
    assert " + dot\n" in code and " - dot\n" not in code  # an addition is part of Triton's own product
