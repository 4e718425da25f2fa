"""Kernels that walk over the columns of their rows in tiles: which come to reductions of whole rows, and which do not."""

from __future__ import annotations

import pytest
import torch
from backends.cute import tiled_kernels
from backends.cute.products import BOUNDS, row_error, values
from backends.cute.row_kernels import BF16, FP32

import helion
import helion.language as hl
from helion import exc
from helion._testing import EXAMPLES_DIR, import_path
from helion.backends.cute.lower.kernel import known_product
from helion.backends.cute.plan.finish import split
from helion.backends.cute.plan.records import RowFinish, TileFinish
from helion.backends.cute.resources import predict
from helion.backends.cute.resources.shape import shape_of


def matrices(m: int = 77, n: int = 296, k: int = 136) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = values(m, k, dtype=FP32, device="cpu"), values(k, n, dtype=FP32, device="cpu", seed=1, mean=-0.2)
    return x.to(BF16), (y * k**-0.5).to(BF16)


@pytest.mark.parametrize("name", ["rms_norm", "l2_normalize", "logsumexp"])
def test_examples(name: str) -> None:
    example = import_path(EXAMPLES_DIR / f"matmul_{name}_tiled.py")
    kernel = helion.kernel(getattr(example, f"matmul_{name}_tiled").fn, backend="cute")
    more = [values(296, dtype=BF16, device="cpu", seed=3)] if name == "rms_norm" else []
    x, y = matrices()
    found = kernel(x, y, *more)
    wanted = example.reference(x.double(), y.double(), *(each.double() for each in more))
    assert row_error(found.view(77, -1), wanted.view(77, -1)) < BOUNDS[BF16]
    plan = kernel.bind((x, y, *more)).plan().gemm
    assert plan.cluster[1] * plan.tile[1] >= 296


@pytest.mark.parametrize(("name", "kind"), [("rms_norm", RowFinish), ("logsumexp", TileFinish)])
def test_examples_with_rows_that_no_cluster_holds(name: str, kind: type) -> None:
    """Numbers per row come from those of tiles, matrices from what the product leaves."""
    example = import_path(EXAMPLES_DIR / f"matmul_{name}_tiled.py")
    kernel = helion.kernel(getattr(example, f"matmul_{name}_tiled").fn, backend="cute")
    x, y = matrices(5, 4104, 72)
    more = [values(4104, dtype=BF16, device="cpu", seed=3)] if name == "rms_norm" else []
    found, wanted = kernel(x, y, *more), example.reference(x.double(), y.double(), *(each.double() for each in more))
    assert row_error(found.view(5, -1), wanted.view(5, -1)) < BOUNDS[BF16]
    assert isinstance(kernel.bind((x, y, *more)).plan().gemm.finish, kind)


@pytest.mark.parametrize("name", ["layernorm", "softmax"])
@pytest.mark.parametrize(("m", "n", "k"), [(77, 296, 136), (5, 4104, 72), (1, 8, 8)])
def test_examples_that_leave_tiles_of_their_own(name: str, m: int, n: int, k: int) -> None:
    """Rows less the mean of their first tile, or powers about the maximum so far, with what corrects them."""
    example = import_path(EXAMPLES_DIR / f"matmul_{name}_tiled.py")
    kernel = helion.kernel(getattr(example, f"matmul_{name}_tiled").fn, backend="cute")
    more = [values(n, dtype=BF16, device="cpu", seed=3 + at) for at in range(2)] if name == "layernorm" else []
    x, y = matrices(m, n, k)
    found, wanted = kernel(x, y, *more), example.reference(x.double(), y.double(), *(each.double() for each in more))
    assert row_error(found, wanted) < BOUNDS[BF16]
    assert max(kernel.bind((x, y, *more)).default_config()["block_sizes"]) >= n, "host code counts one tile"


@pytest.mark.parametrize("name", tiled_kernels.KERNELS)
def test_tiles_of_columns_as_users_write_them(name: str) -> None:
    kernel, taken, meaning = tiled_kernels.KERNELS[name]
    x, y = matrices()
    known = {
        "w": values(296, dtype=BF16, device="cpu", seed=2),
        "b": values(296, dtype=FP32, device="cpu", seed=3),
        "g": values(77, 296, dtype=BF16, device="cpu", seed=4),
    }
    found, wanted = (
        kernel(x, y, *map(known.get, taken)),
        meaning(x.double() @ y.double(), *(known[each].double() for each in taken)),
    )
    found, wanted = (each if isinstance(each, tuple) else (each,) for each in (found, wanted))
    for one, exact in zip(found, wanted, strict=True):
        if one.dtype == torch.int64:
            assert torch.equal(one, exact)
        else:
            assert row_error(one.view(77, -1), exact.view(77, -1)) < BOUNDS[one.dtype] * 5


def test_facts_show_the_product_that_tiles_compute() -> None:
    """Computed again or not, with the same outputs: seeds and predictions are made of them."""
    known = {"w": (296,), "b": (296,), "g": (77, 296)}
    for name, (kernel, taken, _) in tiled_kernels.KERNELS.items():
        more = (torch.empty(known[each], dtype=BF16) for each in taken)
        analysis = kernel.bind((*matrices(), *more))._analysis
        shape, problem = shape_of(analysis.facts), known_product(analysis.program).problem
        assert not isinstance(shape, str), (name, shape)
        assert (shape.problem.m, shape.problem.n, shape.problem.k) == (problem.m, problem.n, problem.k)
        assert sorted(each.kind for each in shape.problem.outputs) == sorted(each.kind for each in problem.outputs)
        assert analysis.seeds.seeds, name
        if problem.epilogue.reduces_rows and name != "chosen_maximum":  # facts show neither comparison nor choice
            shared = analysis.target.smem_per_block_bytes
            assert type(split(shape.problem, 128, shared)[1]) is type(split(problem, 128, shared)[1]), name


def test_products_that_facts_do_not_show_are_predicted_to_be_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another backend is taken for them, unless nobody else is asked."""
    monkeypatch.setattr(predict, "shape_of", lambda facts: "no product")
    analysis = two_products.bind(matrices())._analysis
    predicted = analysis.predict(analysis.default_config)
    assert predicted.fits and predicted.time_us == float("inf") and predicted.reason == "no product"


@helion.kernel(backend="cute")
def two_products(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """softmax, whose second loop computes the product once more."""
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        top = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
            raised = torch.maximum(top, torch.amax(acc, dim=-1))
            total = torch.exp(top - raised) * total + torch.exp(acc - raised[:, None]).sum(-1)
            top = raised
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
            out[tile_m, tile_n] = (torch.exp(acc - top[:, None]) / total[:, None]).to(x.dtype)
    return out


@helion.kernel(backend="cute")
def quantized(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums in bf16 and of each row the largest size, from 1 on."""
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    largest = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        size = hl.full([tile_m], 1.0, dtype=torch.float32)
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
            size = torch.maximum(size, torch.amax(torch.abs(acc), dim=-1))
            out[tile_m, tile_n] = acc.to(x.dtype)
        largest[tile_m] = size
    return out, largest


def test_a_product_that_is_computed_again() -> None:
    x, y = matrices()
    assert row_error(two_products(x, y), (x.double() @ y.double()).softmax(1)) < BOUNDS[BF16]
    assert len(two_products.bind((x, y)).plan().gemm.problem.epilogue.operands) == 0


def test_what_a_running_maximum_begins_with_counts() -> None:
    x, y = matrices()
    for scale in (1.0, 0.01):
        out, largest = quantized(x, y * scale)
        exact = x.double() @ (y * scale).double()
        assert row_error(out, exact) < BOUNDS[BF16]
        torch.testing.assert_close(largest, exact.abs().amax(1).clamp_min(1.0).float())


@helion.kernel(backend="cute")
def running(x: torch.Tensor, y: torch.Tensor, step: hl.constexpr) -> torch.Tensor:
    """The rescaled sum of a softmax but for one thing."""
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        top = hl.full([tile_m], 0.0 if step == "top" else float("-inf"), dtype=torch.float32)
        total = hl.full([tile_m], 1.0 if step == "total" else 0.0, dtype=torch.float32)
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
            raised = torch.maximum(top, torch.amax(acc * 2.0 if step == "other" else acc, dim=-1))
            terms = torch.exp(acc - raised[:, None]).sum(-1)
            if step == "unscaled":
                total = total + terms
            elif step == "base":
                total = total * torch.exp2(top - raised) + terms
            elif step == "turned":
                total = total * torch.exp(raised - top) + terms
            else:
                total = total * torch.exp(top - raised) + terms
            top = raised
        out[tile_m] = total + top
    return out


@pytest.mark.parametrize("step", ["unscaled", "base", "turned"])
def test_sums_that_depend_on_tiles_are_refused(step: str) -> None:
    with pytest.raises(exc.CuteUnsupported, match="what is stored depends on the width of tiles"):
        running.bind((*matrices(), step))


@pytest.mark.parametrize("step", ["", "top", "total", "other"])
def test_sums_that_are_rescaled_in_another_way(step: str) -> None:
    """A maximum from 0 on, a sum whose first number the first tile takes away, a maximum of other numbers."""
    x, y = matrices()
    sums = x.double() @ y.double()
    top = {"top": sums.amax(1).clamp_min(0), "other": 2 * sums.amax(1)}.get(step, sums.amax(1))
    wanted = (sums - top[:, None]).exp().sum(1) + top
    torch.testing.assert_close(running(x, y, step).double(), wanted, rtol=1e-5, atol=1e-6)


@helion.kernel(backend="cute")
def of_blocks(x: torch.Tensor, y: torch.Tensor, step: hl.constexpr) -> torch.Tensor:
    """Tiles of 64 columns, of which what is stored depends but for one."""
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        mean = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n, block_size=64):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
            mean = mean + acc.sum(-1) / n
            if step == "rounded":
                out[tile_m, tile_n] = (acc - mean[:, None]).to(x.dtype)
        for tile_n in hl.tile(n, block_size=64):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
            if step == "rounded":
                out[tile_m, tile_n] = ((acc - mean[:, None]) + 0.0 * out[tile_m, tile_n]).to(x.dtype)
            else:
                centred = acc - mean[:, None]
                top = torch.amax(centred, dim=-1)[:, None] if step == "block" else 1.0
                out[tile_m, tile_n] = (centred / top).to(x.dtype)
    return out


def test_tiles_of_a_width_that_the_kernel_says() -> None:
    """They are one tile where tiles of any width leave the same, and round the same."""
    x, y = matrices()
    sums = x.double() @ y.double()
    assert row_error(of_blocks(x, y, ""), sums - sums.mean(1, keepdim=True)) < BOUNDS[BF16]
    for step in ("block", "rounded"):
        with pytest.raises(exc.CuteUnsupported, match="depends on the width of tiles"):
            of_blocks.bind((x, y, step))


def test_numbers_of_tiles_pick_what_there_is_one_of_for_each() -> None:
    """A tensor of a fixed number of parts has others than the first one."""

    @helion.kernel(backend="cute")
    def tops(x: torch.Tensor, y: torch.Tensor, parts: hl.constexpr) -> tuple[torch.Tensor, torch.Tensor]:
        m, k = x.size()
        n = y.size(1)
        block = hl.register_block_size(n)
        out = torch.empty([m], dtype=torch.float32, device=x.device)
        each = torch.empty([parts or helion.cdiv(n, block), m], dtype=torch.float32, device=x.device)
        for tile_m in hl.tile(m):
            top = hl.full([tile_m], float("-inf"), dtype=torch.float32)
            for tile_n in hl.tile(n, block_size=block):
                acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
                for tile_k in hl.tile(k):
                    acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
                here = acc.amax(-1)
                each[tile_n.id, tile_m] = here
                top = torch.maximum(top, here)
            out[tile_m] = top
        return out, each

    x, y = matrices()
    found, each = tops(x, y, 0)
    torch.testing.assert_close(found, (x.double() @ y.double()).amax(1).float())
    assert each.shape == (1, 77) and torch.equal(each[0], found)
    with pytest.raises(exc.CuteUnsupported, match="picks one of 5 parts of each"):
        tops.bind((x, y, 5))


def test_a_tile_s_own_reduction_is_none_of_the_row() -> None:
    @helion.kernel(backend="cute")
    def by_tile(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        m, k = x.size()
        n = y.size(1)
        out = torch.empty([m, n], dtype=x.dtype, device=x.device)
        for tile_m in hl.tile(m):
            first = x[tile_m, 0].float()
            for tile_n in hl.tile(n):
                acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
                for tile_k in hl.tile(k):
                    acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
                out[tile_m, tile_n] = (acc - torch.amax(acc, dim=-1, keepdim=True) + first[:, None]).to(x.dtype)
        return out

    with pytest.raises(exc.CuteUnsupported, match="reductions of a tile's columns.*depends on the width of tiles"):
        by_tile.bind(matrices())
