"""Matrix products as their users write them: each computes what it says, or is refused with the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc

M, N, K = 72, 144, 96
BF16 = torch.bfloat16
Tile = Any
Sums = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
Store = Callable[[torch.Tensor, torch.Tensor, Tile, Tile], None]


def values(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(shape, generator=generator) + 0.25).to(dtype)


X, Y = values(M, K), values(K, N)
PRODUCT = X.double() @ Y.double()
ROW, COLUMN, MATRIX = values(N), values(M), values(M, N)


@helion.kernel(backend="cute", static_shapes=True)
def summed(x: torch.Tensor, y: torch.Tensor, add: Sums) -> torch.Tensor:
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = add(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


def close(found: torch.Tensor, expected: torch.Tensor, error: float = 5e-3) -> None:
    assert found.shape == expected.shape
    assert (found.double() - expected).norm() <= error * expected.norm()


SUMS: dict[str, Sums] = {
    "addmm": lambda acc, x, y: torch.addmm(acc, x, y),
    "dot": lambda acc, x, y: hl.dot(x, y, acc=acc),
    "dot behind": lambda acc, x, y: acc + hl.dot(x, y),
    "dot in front": lambda acc, x, y: hl.dot(x, y) + acc,
    "mm": lambda acc, x, y: acc + torch.mm(x, y, out_dtype=torch.float32),
    "transposed twice": lambda acc, x, y: torch.addmm(acc, x.T.transpose(0, 1), y.t().T),
    "widened": lambda acc, x, y: acc + torch.matmul(x.to(torch.float32), y.float()),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums(name: str) -> None:
    """All are fp32 sums of exact products."""
    close(summed(X, Y, SUMS[name]), PRODUCT, 1e-6)
    seed = summed.bind((X, Y, SUMS[name]), target="h200").seeds[0]
    assert seed.predicted.fits


@pytest.mark.parametrize(
    ("add", "message"),
    [
        (lambda acc, x, y: acc + (x @ y).half(), r"float16 before it is added .*; hl\.dot\(a, b, acc=acc\)"),
        (lambda acc, x, y: torch.addmm(acc, torch.sin(x), y), "sin in an epilogue"),
        (lambda acc, x, y: acc + hl.dot(x, y) * 2.0, "not by numbers"),
        (lambda acc, x, y: torch.maximum(acc, hl.dot(x, y)), "adds products"),
    ],
)
def test_sums_that_are_refused(add: Sums, message: str) -> None:
    with pytest.raises(exc.CuteUnsupported, match=message):
        summed.bind((X, Y, add))


@helion.kernel(backend="cute", static_shapes=True)
def beginning(x: torch.Tensor, y: torch.Tensor, start: Callable[[Tile, Tile], torch.Tensor]) -> torch.Tensor:
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = start(tile_m, tile_n)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = torch.relu(acc).to(x.dtype)
    return out


def test_what_sums_begin_with() -> None:
    row, matrix = ROW, MATRIX
    close(beginning(X, Y, lambda m, n: hl.full([m, n], 1.5, dtype=torch.float32)), (PRODUCT + 1.5).relu())
    close(beginning(X, Y, lambda m, n: matrix[m, n].float()), (PRODUCT + MATRIX.double()).relu())
    close(
        beginning(X, Y, lambda m, n: hl.zeros([m, n], dtype=torch.float32) + row[n].float()),
        (PRODUCT + ROW.double()).relu(),
    )


@helion.kernel(backend="cute", static_shapes=True)
def stored(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, store: Store) -> torch.Tensor:
    m, k = x.size()
    n = y.size(1)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        store(acc, out, tile_m, tile_n)
    return out


@helion.kernel(backend="cute", static_shapes=True)
def transposed(x: torch.Tensor, y: torch.Tensor, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([n, m], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_n, tile_m] = torch.relu((acc + row[tile_n]) * column[tile_m, None]).T.to(x.dtype)
    return out


def test_outputs_that_lie_the_other_way() -> None:
    """The product is that of the transposed factors."""
    expected = ((PRODUCT + ROW.double()) * COLUMN.double()[:, None]).relu()
    close(transposed(X, Y, ROW, COLUMN), expected.T)
    assert transposed.bind((X, Y, ROW, COLUMN)).plan().gemm.problem.m == N
    out = torch.empty(N, M, dtype=BF16).T
    close(stored(X, Y, out, _plain), PRODUCT)
    close(stored(X, Y, torch.empty(N, M, dtype=BF16), _other_way), PRODUCT.T)


def _plain(acc: torch.Tensor, out: torch.Tensor, m: Tile, n: Tile) -> None:
    out[m, n] = acc.to(out.dtype)


def _other_way(acc: torch.Tensor, out: torch.Tensor, m: Tile, n: Tile) -> None:
    out[n, m] = acc.T.to(out.dtype)


def _added(acc: torch.Tensor, out: torch.Tensor, m: Tile, n: Tile) -> None:
    out[m, n] = (0.5 * acc + 2.0 * out[m, n].float()).to(out.dtype)


@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_outputs_that_are_added_to(layout: str) -> None:
    """Each tile is read where it is stored, also where K is split."""
    out = MATRIX.clone() if layout == "rows" else MATRIX.T.contiguous().T
    close(stored(X, Y, out, _added), 0.5 * PRODUCT + 2 * MATRIX.double())
    bound = stored.bind((X, Y, out, _added), target="h200")
    (operand,) = bound.plan().gemm.problem.epilogue.operands
    assert operand.kind == "exact" and bound.seeds[0].predicted.shared_bytes == bound.plan().shared_bytes


@helion.kernel(backend="cute", static_shapes=True)
def masked(x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = torch.where(mask[tile_m, tile_n], acc, offset[tile_n].to(torch.float32)).to(x.dtype)
    return out


def test_operands_of_8_bits() -> None:
    mask, offset = MATRIX > 0, (ROW * 20).to(torch.int8)
    expected = torch.where(mask, PRODUCT, offset.double())
    close(masked(X, Y, mask, offset), expected)
    with pytest.raises(exc.InvalidConfig, match="sub-tiles of 8 columns of bool"):
        masked.bind((X, Y, mask, offset)).to_code({"block_sizes": [64, 32, 64], "wgmma_epilogue_columns": 8})


@helion.kernel(backend="cute", static_shapes=True)
def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Of any number of dimensions in front."""
    n, k = weight.size()
    flat = x.flatten(0, -2)
    m = flat.shape[0]
    out = torch.empty([*x.shape[:-1], n], dtype=x.dtype, device=x.device)
    rows = out.view(-1, n)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, flat[tile_m, tile_k], weight[tile_n, tile_k].t())
        rows[tile_m, tile_n] = (acc + bias[tile_n]).to(x.dtype)
    return out


def test_dimensions_in_front() -> None:
    for front in ((5,), (3, 24), (2, 3, 4)):
        x, weight = values(*front, K), Y.t().contiguous()
        close(linear(x, weight, ROW), x.double() @ Y.double() + ROW.double())


@pytest.mark.gpu
def test_styles_on_a_gpu() -> None:
    x, y, row, column, matrix = (each.cuda() for each in (X, Y, ROW, COLUMN, MATRIX))
    expected = PRODUCT.cuda()
    for add in SUMS.values():
        close(summed(x, y, add), expected, 1e-4)
    close(beginning(x, y, lambda m, n: matrix[m, n].float()), (expected + matrix.double()).relu())
    close(transposed(x, y, row, column), ((expected + row.double()) * column.double()[:, None]).relu().T)
    for splits in (1, 2):
        config = helion.Config(block_sizes=[64, 64, 64], wgmma_k_splits=splits)
        for out in (matrix.clone(), matrix.T.contiguous().T):
            added = helion.kernel(stored.fn, backend="cute", static_shapes=True, config=config)
            close(added(x, y, out, _added), 0.5 * expected + 2 * matrix.double())
    mask, offset = matrix > 0, (row * 20).to(torch.int8)
    close(masked(x, y, mask, offset), torch.where(mask, expected, offset.double()))


def test_refusals_name_tensors_as_they_are_written() -> None:
    """Not as the kernel's text does, nor without a name where the epilogue has them from outside."""
    numbers, far = torch.arange(N), torch.empty_strided((M, N), (2**26, 2), dtype=torch.float32, device="meta")
    with pytest.raises(exc.CuteUnsupported, match=r"operand store\.\S+cell_contents is of int64"):
        stored.bind((X, Y, torch.empty(M, N, dtype=BF16), lambda acc, out, m, n: _plain(acc + numbers[n], out, m, n)))
    meta = (torch.empty_like(each, device="meta") for each in (X, Y))
    with pytest.raises(exc.CuteUnsupported, match=r": residual with strides of \d+ and 2 spans \d+ elements"):
        with_residual.bind((*meta, far), target="h200")


@helion.kernel(backend="cute", static_shapes=True)
def with_residual(x: torch.Tensor, y: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = (acc + residual[tile_m, tile_n]).to(x.dtype)
    return out


@helion.kernel(backend="cute", static_shapes=True)
def over_an_operand(x: torch.Tensor, y: torch.Tensor, left: hl.constexpr) -> torch.Tensor:
    m, k = x.size()
    n = y.size(1)
    out = x if left else y
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc.to(out.dtype)
    return out


@helion.kernel(backend="cute", static_shapes=True)
def rows_over_an_operand(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = hl.specialize(y.size(1))
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, :])
        x[tile_m, :] = torch.softmax(acc, dim=-1).to(x.dtype)
    return x


@helion.kernel(backend="cute", static_shapes=True)
def gated_over_an_operand(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = gate.size(1)
    for tile_m, tile_n in hl.tile([m, n]):
        gated = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        value = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            left = x[tile_m, tile_k]
            gated = torch.addmm(gated, left, gate[tile_k, tile_n])
            value = torch.addmm(value, left, up[tile_k, tile_n])
        up[tile_m, tile_n] = (torch.relu(gated) * value).to(up.dtype)
    return up


@pytest.mark.parametrize("static", [True, False])
def test_operands_are_not_written_while_others_read_them(static: bool) -> None:
    """Also where a program of the user's reads all of a row before it writes it: several CTAs read it, each in its own time."""
    x, y = values(512, 512), values(512, 512)
    for kernel, arguments, name in (
        (over_an_operand, (x, y, True), "x"),
        (over_an_operand, (x, y, False), "y"),
        (rows_over_an_operand, (x, y), "x"),
        (gated_over_an_operand, (x, y, values(512, 512)), "up"),
    ):
        bound = helion.kernel(kernel.fn, backend="cute", static_shapes=static)
        with pytest.raises(exc.CuteUnsupported, match=f"{name} shares memory with the output {name}.*backend='triton'"):
            bound.bind(arguments)


def test_refusals_name_strides_that_only_launches_know() -> None:
    apart = torch.empty(M, 2 * N, dtype=BF16)[:, ::2]
    kernel = helion.kernel(stored.fn, backend="cute", static_shapes=False)
    with pytest.raises(exc.CuteUnsupported, match=r"out has a stride of \w*stride_1 along N"):
        kernel.bind((X, Y, apart, _plain))
