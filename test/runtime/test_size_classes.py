"""``static_shapes=False``: one bound kernel for the sizes and strides of a class, right for each of them."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import helion
import helion.language as hl
from helion import Config, exc


@helion.kernel(static_shapes=False)
def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] + y[tile]
    return out


@helion.kernel(static_shapes=False)
def scaled_rows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.softmax(x[tile, :].to(torch.float32) * w[:], -1).to(x.dtype)
    return out


@helion.kernel(static_shapes=False)
def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([x.size(0), y.size(1)]):
        acc = hl.zeros([tile_m, tile_n])
        for tile_k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


@helion.kernel(static_shapes=False)
def by_stride(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.size(), dtype=x.dtype, device=x.device)
    factor = 2.0 if x.is_contiguous() else 3.0
    if x.stride(0) > x.stride(1):
        factor = factor + 10
    step = x.stride(0)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] * factor + step
    return out


@helion.kernel(static_shapes=False)
def stored_around_a_loop(a: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(a.size(0)):
        row = a[tile, :]
        c[tile, :] = row + 1
        for columns in hl.tile(a.size(1)):
            c[tile, columns] = c[tile, columns] * 2
        a[tile, :] = row * 3
    return a


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_a_batch_of_one_keeps_arguments_that_share_memory(rows: int) -> None:
    """Each call has its own kernel: the first one decides which batches share code."""
    for shared in (True, False, True):
        a = torch.arange(rows * 19, dtype=torch.float32).view(rows, 19)
        c = a if shared else a.clone()
        row, expected = a.clone(), a * 3
        kernel = helion.kernel(stored_around_a_loop.fn, static_shapes=False)
        for config in (None, Config(block_sizes=[1, 8], reduction_loops=[8]), Config(block_sizes=[4, 8])):
            a.copy_(row)
            c.copy_(row)
            try:
                run = kernel if config is None else kernel.bind((a, c)).compile_config(config)
            except exc.InvalidConfig:  # a row that is held has no chunks
                assert shared
                continue
            torch.testing.assert_close(run(a, c), expected)


def strided(shape: tuple[int, int], layout: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    rows, columns = shape
    made = {
        "plain": lambda: torch.randn(rows, columns),
        "transposed": lambda: torch.randn(columns, rows).T,
        "stepped": lambda: torch.randn(rows, 2 * columns)[:, ::2],
        "padded": lambda: torch.randn(rows, columns + 3)[:, :columns],
        "repeated": lambda: torch.randn(1, columns).expand(rows, columns),
    }[layout]()
    return (made + 1).to(dtype) if layout != "repeated" else (made.to(dtype))


LAYOUTS = ("plain", "transposed", "stepped", "padded", "repeated")
SHAPES = ((128, 128), (64, 96), (96, 64), (2, 3), (63, 2), (33, 33))


def expected_scaled_rows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x.float() * w.float(), -1).to(x.dtype)


CASES: dict[str, tuple[helion.Kernel, Callable[..., Any], Callable[..., Any], list[int]]] = {
    "add": (add, lambda x: (x, x.flip(0) + 1), lambda x, y: x + y, [32, 32]),
    "scaled_rows": (scaled_rows, lambda x: (x, x.new_ones(x.size(1)) * 2), expected_scaled_rows, [4]),
    "product": (product, lambda x: (x, x.T), lambda x, y: (x.double() @ y.double()).to(x.dtype), [16, 16, 16]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_one_compilation_serves_the_class(name: str, dtype: torch.dtype) -> None:
    given, arguments, expected, sizes = CASES[name]
    kernel = helion.kernel(given.fn, static_shapes=False, dot_precision="ieee", size_hints=(4096,))
    bound = kernel.bind(arguments(strided((128, 128), "plain", dtype)))
    run = bound.compile_config(Config(block_sizes=sizes))
    for shape, layout in itertools.product(SHAPES[1:], LAYOUTS):
        args = arguments(strided(shape, layout, dtype))
        assert kernel.bind(args) is bound
        assert kernel.specialization_key(args) == kernel.specialization_key(arguments(strided((9, 9), "plain", dtype)))
        tolerance = {} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
        for found in (run(*args), bound(*args)):
            torch.testing.assert_close(found, expected(*args), **tolerance)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_are_read_at_every_call(layout: str) -> None:
    for shape in SHAPES:
        x = strided(shape, layout)
        factor = (2.0 if x.is_contiguous() else 3.0) + (10 if x.stride(0) > x.stride(1) else 0)
        torch.testing.assert_close(by_stride(x), x * factor + x.stride(0))


def test_what_tells_classes_apart() -> None:
    x = torch.randn(8, 8)
    bound = add.bind((x, x.clone()))
    fixed = torch.randn(8, 8)
    torch._dynamo.mark_static(fixed, -1)
    for small in (torch.randn(1, 8), torch.randn(8, 1), torch.randn(0, 8)):
        assert torch.equal(bound(small, small.clone()), small + small)
    for other in (x.double(), torch.randn(8), fixed):
        assert add.bind((other, other.clone())) is not bound
        with pytest.raises(exc.BoundToOtherArguments):
            bound(other, other.clone())
    again = torch.randn(5, 8)
    torch._dynamo.mark_static(again, -1)
    assert add.bind((again, again.clone())) is add.bind((fixed, fixed.clone()))
    other = torch.randn(8, 5)
    torch._dynamo.mark_static(other, -1)
    assert add.bind((other, other.clone())) is not add.bind((fixed, fixed.clone()))


def test_a_config_that_somebody_asks_for_is_that_of_the_class() -> None:
    kernel = helion.kernel(add.fn, static_shapes=False, size_hints=(128,))
    square, wide, tall = (torch.randn(n, m) for n, m in ((64, 64), (8, 96), (96, 8)))
    assert torch.equal(kernel(wide, wide), wide + wide)
    bound = kernel.bind((square, square))
    assert bound is kernel.bind((wide, wide)) and bound.config is not None
    bound.set_config(Config(block_sizes=[4, 8]))
    for x in (square, wide, tall, square.T):
        assert torch.equal(kernel(x, x), x + x)
        assert kernel.variant((x, x)).config is not None
        assert kernel.variant((x, x)).config.block_sizes == [4, 8]
    tuned = kernel.autotune((tall, tall))
    assert bound.config == tuned and kernel.variant((wide, wide)).config.block_sizes == tuned.block_sizes
    kernel.reset()
    assert kernel.bind((tall, tall)) is not bound


# --- sizes of 0 and 1 ---------------------------------------------------------------------------------------------------


@helion.kernel(static_shapes=False)
def broadcast_sum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x, y = torch.broadcast_tensors(x, y)
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] + y[tile]
    return out


@helion.kernel(static_shapes=False)
def same_rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Index y by the rows of x: the only row of y where it has one."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = x[tile, :] * y[tile, :]
    return out


@helion.kernel(static_shapes=False)
def by_grid(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in hl.grid(x.size(0)):
        out[i, :] = x[i, :] * x.size(0) + y[i, :]
    return out


@helion.kernel(static_shapes=False)
def squeezed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    flat = x.squeeze()
    out = torch.empty_like(flat)
    for tile in hl.tile(flat.size()):
        out[tile] = flat[tile] * 2
    return out


@helion.kernel(static_shapes=False)
def with_branches(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    if x.size(0) == 0:
        return out
    factor = 2.0 if x.size(0) > 1 else 3.0
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] * factor
    return out


@helion.kernel(static_shapes=False)
def flattened(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    flat = x.view(-1, 3)
    out = torch.empty_like(flat)
    for rows in hl.tile(flat.size(0)):
        out[rows, :] = flat[rows, :] * flat[rows, :].sum(1)[:, None]
    return out.view(x.size())


@helion.kernel(static_shapes=False)
def columns(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(1)])
    for tile in hl.tile(x.size(1)):
        acc = hl.zeros([tile])
        for rows in hl.tile(x.size(0)):
            acc = acc + (x[rows, tile] * y[rows, tile]).sum(0)
        out[tile] = acc
    return out


@helion.kernel(static_shapes=False)
def row_by_number(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Read rows that only a dimension of one element has."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = x[tile, :] + y[0, None, :] + y[tile.index * 0, :]
    return out


def like_rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * y if x.size(0) == y.size(0) or y.size(0) == 1 else x * y[: x.size(0)]


def flat_rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x.view(-1, 3) * x.view(-1, 3).sum(1, keepdim=True)).view(x.size())


SMALL: dict[str, tuple[helion.Kernel, Callable[..., torch.Tensor], bool]] = {
    "broadcast_sum": (broadcast_sum, lambda x, y: x + y, True),
    "same_rows": (same_rows, like_rows, True),
    "by_grid": (by_grid, lambda x, y: x * x.size(0) + y, True),
    "squeezed": (squeezed, lambda x, y: x.squeeze() * 2, False),
    "with_branches": (with_branches, lambda x, y: x * (2.0 if x.size(0) > 1 else 3.0), False),
    "flattened": (flattened, flat_rows, True),
    "columns": (columns, lambda x, y: (x * y).sum(0), False),
    "product": (product, lambda x, y: (x.double() @ y.double().T).float(), True),
    "row_by_number": (row_by_number, lambda x, y: x + 2 * y[:1], False),
}
#: Rows of the second argument: as many as the first has, one, or some.
ROWS: dict[str, Callable[[int], int]] = {"equal": lambda n: n, "one": lambda n: 1, "more": lambda n: 63}


def orders() -> Iterator[Any]:
    """Yield kernels, rows of the second argument and orders of the batches; most of them for ``make prove``."""
    all_orders = ((63, 1, 0, 2), (1, 0, 63, 2), (0, 2, 1, 63))
    for at, (name, rows) in enumerate(itertools.product(SMALL, ROWS)):
        # torch refuses the others too, or they do not read the second argument
        if (
            rows == "equal"
            or name in ("same_rows", "product", "row_by_number")
            or (name, rows) == ("broadcast_sum", "one")
        ):
            for number, order in enumerate(all_orders):
                marks = [] if number == at % 3 else [pytest.mark.prove]
                yield pytest.param(name, rows, order, marks=marks, id=f"{name}-{rows}-{order}")


@pytest.mark.parametrize(("name", "rows", "order"), list(orders()))
def test_sizes_of_0_and_1_in_any_order(name: str, rows: str, order: tuple[int, ...]) -> None:
    given, expected, _ = SMALL[name]
    kernel = helion.kernel(given.fn, static_shapes=False, dot_precision="ieee")
    for n in order:
        x, y = torch.randn(n, 33) + 1, torch.randn(ROWS[rows](n), 33) + 1
        if (name, n) == ("row_by_number", 0) or (name == "product" and y.size(0) == 0):
            continue
        got = kernel(x, y.T if name == "product" else y)
        torch.testing.assert_close(got, expected(x, y), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("first", [63, 1, 0])
@pytest.mark.parametrize("name", [name for name, (_, _, shares) in SMALL.items() if shares])
def test_one_compilation_for_all_batches(name: str, first: int) -> None:
    """Whichever is called first."""
    kernel = helion.kernel(SMALL[name][0].fn, static_shapes=False, size_hints=(4096,))
    fixed = torch.randn(33, 17)
    calls = {n: (torch.randn(n, 33), fixed if name == "product" else torch.randn(n, 33)) for n in (first, 63, 1, 0, 5)}
    assert len({kernel.variant(args) for args in calls.values()}) == 1
    assert len({kernel.specialization_key(args) for args in calls.values()}) == 1
    config = kernel.bind(calls[63]).conservative_config()
    kernel.bind(calls[63]).set_config(config)
    for args in calls.values():
        assert kernel.variant(args).config == config


def test_a_batch_of_one_has_gradients() -> None:
    differentiable = helion.kernel(broadcast_sum.fn, static_shapes=False).differentiable()
    for n, rows in ((5, 5), (1, 1), (1, 7), (5, 1), (0, 0)):
        x, y = (torch.randn(count, 3, requires_grad=True) for count in (n, rows))
        weight = torch.randn(max(n, rows) if n else 0, 3)
        (differentiable(x, y) * weight).sum().backward()
        found = x.grad, y.grad
        x.grad = y.grad = None
        ((x + y) * weight).sum().backward()
        for a, b in zip(found, (x.grad, y.grad), strict=True):
            torch.testing.assert_close(a, b)


def test_strides_of_a_dimension_of_one_element() -> None:
    """They may be any, and are not those of other batches."""
    bound = scaled_rows.bind((torch.randn(9, 12), torch.randn(12)))
    for x in (
        torch.randn(3, 12)[1:2],
        torch.randn(4, 30)[:1, 3:15],
        torch.randn(12, 1).T,
        torch.randn(1, 12).expand(1, 12),
    ):
        w = torch.randn(12) + 1
        for found in (scaled_rows(x, w), bound(x, w)):
            torch.testing.assert_close(found, expected_scaled_rows(x, w))


def test_a_backend_that_needs_larger_sizes_says_so() -> None:
    """The launches of the cute backend have at least two rows: others are code of their own."""
    half = {"dtype": torch.float16, "device": "meta"}
    args = [(torch.empty(m, 256, **half), torch.empty(256, 512, **half)) for m in (512, 1)]
    kernel = helion.kernel(product.fn, static_shapes=False, backend="cute")
    bound = kernel.bind(args[0], target="h100")
    assert "x.size(0) > 1" in bound.to_code()


# --- modules as text ----------------------------------------------------------------------------------------------------

MODULE = """
import torch, helion, helion.language as hl

@helion.kernel(static_shapes=False)
def total(x, y):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] * 2 + y[tile]
    return out
"""


def test_the_module_as_text_is_right_for_the_class(tmp_path: Path) -> None:
    source = tmp_path / "of_a_user.py"
    source.write_text(MODULE)
    spec = importlib.util.spec_from_file_location("of_a_user", source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["of_a_user"] = module
    spec.loader.exec_module(module)
    x = torch.randn(32, 32)
    written = tmp_path / "written.py"
    written.write_text(module.total.bind((x, x.clone())).to_code(Config(block_sizes=[8, 8])))
    spec = importlib.util.spec_from_file_location("written", written)
    assert spec is not None and spec.loader is not None
    generated = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generated)
    for shape, layout in itertools.product(SHAPES[1:], LAYOUTS):
        a, b = strided(shape, layout), strided(shape, "plain")
        torch.testing.assert_close(generated.total(a, b), a * 2 + b)
    del sys.modules["of_a_user"]


@helion.kernel(static_shapes=False, config=Config(block_sizes=[4, 16]))
def linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Whole dimensions that must agree: what is not equal has no result, and says so."""
    out = torch.empty([x.size(0), w.size(0)], device=x.device)
    for rows in hl.tile(x.size(0)):
        for columns in hl.tile(w.size(0)):
            out[rows, columns] = (x[rows, None, :] * w[None, columns, :]).sum(-1) + b[None, columns]
    return out


def test_sizes_that_a_kernel_needs_to_be_equal() -> None:
    bound = linear.bind((torch.randn(8, 8), torch.randn(8, 8), torch.randn(8)))
    for rows, columns, k in ((8, 8, 5), (5, 8, 8), (3, 4, 5), (5, 3, 5)):
        args = torch.randn(rows, k), torch.randn(columns, k), torch.randn(columns)
        torch.testing.assert_close(bound.compile_config()(*args), F.linear(*args))
        assert linear.bind(args) is bound
    with pytest.raises(exc.ShapeMismatch):
        linear(torch.randn(8, 8), torch.randn(8, 7), torch.randn(8))


def scaled_by_a_stride(x: torch.Tensor) -> torch.Tensor:
    step = hl.specialize(x.stride(0))
    out = torch.empty([x.size(0), x.size(1)])
    for tile in hl.tile(out.size()):
        out[tile] = x[tile] * step
    return out


def test_a_specialized_stride_is_part_of_the_key() -> None:
    """Also where it is a size of the first tensor that is bound, and not of the second."""
    kernel = helion.kernel(scaled_by_a_stride, static_shapes=False)
    narrow, wide = torch.randn(8, 12), torch.randn(8, 24)[:, :12]
    bound = [kernel.bind((x,)) for x in (narrow, wide)]
    assert bound[0] is not bound[1] and kernel.bind((torch.randn(9, 12),)) is bound[0]
    for each, x in zip(bound, (narrow, wide), strict=True):
        torch.testing.assert_close(each(x), x * x.stride(0))
    with pytest.raises(exc.BoundToOtherArguments, match=r"x\.stride\(0\) is 24, bound for 12"):
        bound[0](wide)
    keys = [kernel.specialization_key((x,)) for x in (narrow, wide, torch.randn(9, 12))]
    assert keys[0] == keys[2] != keys[1]
