"""Products of matrices with sides that matrix units are too large for."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from generated_source import load

import helion
import helion.language as hl
from helion import exc

#: Of K, rows and columns: of one kind of tile each.
TILES = ((1, None, None), (2, 16, 16), (4, None, 8), (8, 8, 8), (16, 1, None), (None, 1, 1), (None, 2, None))


@helion.kernel
def tiled(
    x: torch.Tensor, y: torch.Tensor, tile_k: hl.constexpr, rows: hl.constexpr, columns: hl.constexpr
) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([x.size(0), y.size(1)], block_size=[rows, columns]):
        acc = hl.zeros([tile_m, tile_n])
        for tile in hl.tile(x.size(1), block_size=tile_k):
            acc = hl.dot(x[tile_m, tile], y[tile, tile_n], acc=acc)
        out[tile_m, tile_n] = acc
    return out


@helion.kernel
def whole(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(x.size(0)):
        out[tile_m, :] = hl.dot(x[tile_m, :], y[:, :], out_dtype=torch.float32)
    return out


@helion.kernel
def batched(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), x.size(1), y.size(2)], dtype=torch.float32, device=x.device)
    for tile_b, tile_m, tile_n in hl.tile([x.size(0), x.size(1), y.size(2)]):
        acc = hl.zeros([tile_b, tile_m, tile_n])
        for tile_k in hl.tile(x.size(2), block_size=4):
            acc = torch.baddbmm(acc, x[tile_b, tile_m, tile_k], y[tile_b, tile_k, tile_n])
        out[tile_b, tile_m, tile_n] = acc
    return out


def operands(m: int, k: int, n: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randint(-3, 4, (m, k)).to(dtype), torch.randint(-3, 4, (k, n)).to(dtype)


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x.double() @ y.double()).float()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("tiles", TILES, ids=str)
def test_tiles_of_few_lanes(tiles: tuple[int | None, ...], dtype: torch.dtype) -> None:
    x, y = operands(17, 37, 19, dtype)
    assert torch.equal(tiled(x, y, *tiles), product(x, y))
    assert tiled.bind((x, y, *tiles), target="sm_90").resources().registers > 0


@pytest.mark.parametrize("k", [0, 1, 2, 3])
def test_few_columns_in_all(k: int) -> None:
    for m, n in ((1, 1), (3, 17)):
        x, y = operands(m, k, n, torch.float16)
        assert torch.equal(whole(x, y), product(x, y))
        assert whole.bind((x, y), target="sm_90").resources().registers > 0


def test_batches_of_few_lanes() -> None:
    x, y = torch.randn(3, 5, 10), torch.randn(3, 10, 7)
    torch.testing.assert_close(batched(x, y), torch.bmm(x, y), rtol=1e-5, atol=1e-5)
    assert batched.bind((x, y), target="sm_90").resources().registers > 0


def test_values_that_are_not_finite_stay_in_their_column() -> None:
    """Zeros between the lanes meet zeros, never an infinity or a nan."""
    x, y = operands(4, 9, 4, torch.float32)
    x[1, 8], y[3, 2] = float("inf"), float("nan")
    expected = torch.stack([(x[:, i, None] * y[None, i]) for i in range(9)]).sum(0)
    torch.testing.assert_close(tiled(x, y, 4, None, None), expected, equal_nan=True)


@pytest.mark.prove
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "gfx942"])
def test_all_small_products_compile(target: str) -> None:
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float16, torch.bfloat16, torch.int8)
    for dtype in (
        *dtypes,
        *((torch.float8_e4m3fn,) if target != "sm_80" else ()),
        *(() if "gfx" in target else (torch.float64,)),
    ):
        for tile_k, rows, columns in itertools.product((None, 1, 2, 4, 8, 16), (None, 1, 8), (None, 1, 8)):
            x, y = operands(17, 37, 19, dtype)
            assert tiled.bind((x, y, tile_k, rows, columns), target=target).resources().registers > 0
        for m, k, n in itertools.product((1, 3, 33), (1, 2, 4, 8, 16), (1, 3, 24)):
            assert whole.bind(operands(m, k, n, dtype), target=target).resources().registers > 0


def next_to_groups(
    q: torch.Tensor, w: torch.Tensor, k: torch.Tensor, first: hl.constexpr
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Products of small whole dimensions, and groups of 32 that a reshape merges ``first`` or last."""
    rows, columns = q.size(1), w.size(1)
    width = 32 * k.size(1)
    out = torch.empty([q.size(0), rows, columns], device=q.device)
    added = torch.empty_like(out)
    merged = torch.empty([q.size(0), width], device=q.device)
    for i in hl.grid(q.size(0)):
        if first:
            merged[i, :] = k[i, :, :].reshape(width)
        out[i, :, :] = hl.dot(q[i, :, :], w[:, :])
        added[i, :, :] = hl.dot(q[i, :, :], w[:, :], acc=hl.full([rows, columns], 3.0))
        if not first:
            merged[i, :] = k[i, :, :].reshape(width)
    return out, added, merged


#: Rows, K, columns and groups.
EQUAL_TO_GROUPS = ((4, 64, 32, 4), (32, 8, 16, 8), (32, 64, 8, 8), (6, 6, 6, 6), (5, 32, 5, 5), (4, 8, 4, 8))


@pytest.mark.parametrize(
    "dtype, target", [(torch.float32, "sm_80"), (torch.bfloat16, "sm_90"), (torch.float16, "gfx942")], ids=str
)
def test_sides_equal_to_groups_that_are_merged(dtype: torch.dtype, target: str) -> None:
    """Dimensions of equal size have the same lanes, and a reshape that depends on them leaves matmuls too few."""
    for at, (rows, inner, columns, groups) in enumerate(EQUAL_TO_GROUPS):
        first = at % 2 == 0
        q, w = torch.randn(3, rows, inner).to(dtype), torch.randn(inner, columns).to(dtype)
        k = torch.randn(3, groups, 32)
        w[0, 0] = float("inf")  # the zeros around the operands never meet it
        bound = helion.kernel(next_to_groups, dot_precision="ieee").bind((q, w, k, first), target=target)
        expected = q.double() @ w.double()
        for result, wanted in zip(bound(q, w, k, first), (expected, expected + 3, k.double().flatten(1)), strict=True):
            torch.testing.assert_close(result.double(), wanted, rtol=1e-3, atol=1e-3, equal_nan=True)
        assert groups != 8 or bound.resources().registers > 0


def test_products_of_float64_are_refused_for_amd() -> None:
    with pytest.raises(exc.BackendUnsupported, match="a matmul of float64 on gfx942"):
        whole.bind(operands(16, 16, 16, torch.float64), target="gfx942")


# --- dimensions without elements ---------------------------------------------------------------------------------------


def softmax(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.softmax(x[tile, :], -1)
    return out


def row_sums(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.size(0))
    for tile in hl.tile(x.size(0)):
        acc = hl.zeros([tile])
        for tile_n in hl.tile(x.size(1)):
            acc = acc + x[tile, tile_n].sum(-1)
        out[tile] = acc
    return out


def by_rows(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for row in range(x.size(0)):
        for tile in hl.tile(x.size(1)):
            out[row, tile] = x[row, tile] + 1
    return out


def two_phases(x: torch.Tensor) -> torch.Tensor:
    out, sums = torch.zeros_like(x), torch.empty(x.size(0))
    for tile in hl.tile(x.size(0)):
        sums[tile] = x[tile, :].sum(-1)
    hl.barrier()
    for tile_m, tile_n in hl.tile(x.size()):
        out[tile_m, tile_n] = x[tile_m, tile_n] - sums[tile_m][:, None]
    return out


def column_sums(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(x.size(1))
    for tile_m, tile_n in hl.tile(x.size()):
        hl.atomic_add(out, [tile_n], x[tile_m, tile_n].sum(0))
    return out


REFERENCES: tuple[tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]], ...] = (
    (softmax, lambda x: x.softmax(-1)),
    (row_sums, lambda x: x.sum(-1)),
    (by_rows, lambda x: x + 1),
    (two_phases, lambda x: x - x.sum(-1, keepdim=True)),
    (column_sums, lambda x: x.sum(0)),
)


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize(("function", "reference"), REFERENCES, ids=lambda f: f.__name__)
def test_no_rows_or_columns(
    function: Callable[..., torch.Tensor], reference: Callable[..., torch.Tensor], static: bool
) -> None:
    kernel = helion.kernel(function, static_shapes=static)
    for shape in itertools.product((0, 1, 3), (0, 1, 5)):
        x = torch.randn(shape)
        torch.testing.assert_close(kernel(x), reference(x))
        for target in ("sm_90", "gfx942"):
            assert kernel.bind((x,), target=target).to_triton_code()


def test_an_extremum_of_nothing_is_refused() -> None:
    def largest(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(x.size(0))
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile, :].amax(-1)
        return out

    kernel = helion.kernel(largest)
    assert kernel(torch.ones(0, 5)).shape == (0,)
    with pytest.raises(
        exc.TorchOpTracingError, match="amax was refused by torch: the dimension to reduce has no elements"
    ):
        kernel(torch.ones(3, 0))


def test_a_tensor_without_dimensions_is_not_walked_over() -> None:
    def copied(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size()):
            out[tile] = x[tile]
        return out

    with pytest.raises(exc.TypeInferenceError, match="hl.tile got no dimension to loop over"):
        helion.kernel(copied)(torch.tensor(1.0))


# --- a matrix with a batch of matrices ----------------------------------------------------------------------------------


def matrix_first(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([y.size(0), x.size(0), y.size(2)], dtype=torch.float32, device=x.device)
    for g, m, n in hl.tile([y.size(0), x.size(0), y.size(2)]):
        acc = hl.zeros([g, m, n])
        for k in hl.tile(x.size(1)):
            acc = hl.dot(x[m, k], y[g, k, n], acc=acc)
        out[g, m, n] = acc
    return out


def matrix_second(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), x.size(1), y.size(1)], dtype=torch.float32, device=x.device)
    for g, m in hl.tile([x.size(0), x.size(1)]):
        out[g, m, :] = hl.dot(x[g, m, :], y[:, :])
    return out


def added_to_a_matrix(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The accumulator has no batch: it is repeated as the matrix is."""
    out = torch.empty([y.size(0), x.size(0), y.size(2)], dtype=torch.float32, device=x.device)
    for g, m, n in hl.tile([y.size(0), x.size(0), y.size(2)]):
        out[g, m, n] = hl.dot(x[m, :], y[g, :, n], acc=hl.full([m, n], 1.5))
    return out


@pytest.mark.parametrize("mode", ["static", "dynamic", "eager", "checked"])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_matrix_and_a_batch_of_matrices(mode: str, batch: int) -> None:
    settings = helion.Settings(
        static_shapes=mode != "dynamic",
        ref_mode=helion.RefMode.EAGER if mode == "eager" else helion.RefMode.OFF,
        dot_precision="ieee",
        checked=mode == "checked",
    )
    x, y, z = torch.randn(5, 37) + 0.5, torch.randn(batch, 37, 19) + 0.5, torch.randn(batch, 5, 37) - 0.5
    for function, lhs, rhs, plus in (
        (matrix_first, x, y, 0),
        (matrix_second, z, y[0], 0),
        (added_to_a_matrix, x, y, 1.5),
    ):
        torch.testing.assert_close(helion.kernel(function, settings=settings)(lhs, rhs), lhs @ rhs + plus)


def test_gradients_of_a_matrix_with_a_batch() -> None:
    x, y = torch.randn(5, 13) + 0.5, torch.randn(3, 13, 7) + 0.5
    kernel = helion.kernel(matrix_first, static_shapes=True, dot_precision="ieee")
    mine, theirs = ([v.clone().requires_grad_() for v in (x, y)] for _ in range(2))
    kernel.differentiable()(*mine).sin().sum().backward()
    (theirs[0] @ theirs[1]).sin().sum().backward()
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("call", ["hl.dot(a, b)", "torch.addmm(c, a, b)", "torch.baddbmm(b, a, b)", "torch.bmm(a, b)"])
def test_ranks_that_do_not_go_together(call: str, tmp_path: Path) -> None:
    shape = "x[t, :, :, :]" if "hl" in call else "x[0, t, :, :]"
    text = f"""
import torch, helion.language as hl
def kernel(x):
    for t in hl.tile(x.size(1)):
        a, b, c = x[0, 0, :, :], {shape}, hl.zeros([4, 4])
        x[0, 0, :, :] = {call}
"""
    name = call[: call.index("(")]
    word = "of rank 2 or 3" if "hl" in call else f"{name} takes operands of rank"
    with pytest.raises(exc.ShapeMismatch, match=word):
        helion.kernel(load(text, tmp_path, "ranks").kernel).bind((torch.empty(4, 4, 4, 4),))
