"""Kernels run eagerly: every example, what compiled kernels give, and what is refused.

Sizes do not divide tiles. Where both run, the eager kernel takes the tiles of the compiled one, the short last one too.
"""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion._testing import EXAMPLES_DIR, check, import_path
from helion.fields import IntegerFragment
from helion.language._reference import session as _reference
from helion.language._registry import DECLARED
from helion.runtime import ref_mode
from helion.runtime.ref_mode import run_reference

EAGER = helion.RefMode.EAGER


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiles are too small to share among threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def eager(kernel: helion.Kernel, **settings: Any) -> helion.Kernel:
    return helion.kernel(kernel.fn, ref_mode=EAGER, **settings)


def sample(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(shape, generator=generator) + 2).to(dtype)


# --- examples -----------------------------------------------------------------------------------------------------------


def _cases() -> Iterator[Any]:
    for path in sorted(EXAMPLES_DIR.glob("*.py")):
        if path.stem != "demo":  # shows kernels of the other files
            module = import_path(path)
            for case, kernel, args in module.cases():
                yield pytest.param(kernel, module.reference, args, id=f"{path.stem}-{case.replace(' ', '_')}")


CASES = tuple(_cases())
FIRST_CASES = tuple({id(case.values[0]): case for case in reversed(CASES)}.values())


@pytest.mark.parametrize(("kernel", "reference", "args"), CASES)
def test_examples_give_their_reference(
    kernel: helion.Kernel, reference: Callable[..., Any], args: tuple[Any, ...], request: pytest.FixtureRequest
) -> None:
    check(request.node.name, eager(kernel), reference, args)


@pytest.mark.parametrize(("kernel", "reference", "args"), FIRST_CASES)
def test_examples_in_small_tiles_give_their_reference(
    kernel: helion.Kernel, reference: Callable[..., Any], args: tuple[Any, ...], request: pytest.FixtureRequest
) -> None:
    generator = random.Random(request.node.name)
    sizes = [generator.choice((8, 16, 32, 64)) for _ in range(6)]
    check(request.node.name, lambda *a: run_reference(kernel, kernel.normalize_args(*a), sizes), reference, args)


# --- the same as compiled -----------------------------------------------------------------------------------------------


def same_as_compiled(kernel: helion.Kernel, make: Callable[[], tuple[Any, ...]], *block_sizes: Sequence[int]) -> None:
    """Results and mutated arguments agree for each choice of block sizes, and with tiles of whole dimensions.

    A kernel whose results depend on block sizes gives them by its config.
    """
    for sizes in block_sizes:
        compiled_args, eager_args = make(), make()
        compiled = kernel.bind(compiled_args).compile_config({"block_sizes": list(sizes)})(*compiled_args)
        result = run_reference(kernel, kernel.normalize_args(*eager_args), sizes)
        torch.testing.assert_close(result, compiled, rtol=1e-5, atol=1e-5)
        for ours, theirs in zip(eager_args, compiled_args, strict=True):
            if isinstance(ours, torch.Tensor):
                torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@helion.kernel
def shifted(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for i in hl.tile(x.size(0) - 3):
        out[i + 2] = x[i + 3] - x[i]
    return out


@helion.kernel
def both_axes(x: torch.Tensor) -> torch.Tensor:
    """1-D index tensors span a plane, over the same tile too; with two dimensions they are paired: a diagonal."""
    n = x.size(0)
    out = torch.zeros([2, n, n], dtype=x.dtype)
    for i, j in hl.tile([n, n]):
        out[0, i, j] = x[i.index, j.index] + x[i.index[:, None], j.index[None, :]]
        out[1, i, 0] = x[i.index[:, None], i.index[:, None]].squeeze(1) + x[i.index, i.index].sum(1)
    return out


@helion.kernel
def gathered(x: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    out = torch.empty([rows.size(0), columns.size(0)], dtype=x.dtype)
    for i, j in hl.tile([rows.size(0), columns.size(0)]):
        out[i, j] = x[rows[i], columns[j]]
    return out


@helion.kernel
def scattered(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    out = torch.full([2 * x.size(0), x.size(1)], -1.0)
    for i in hl.tile(x.size(0)):
        keep = places[i] % 3 != 0
        hl.store(out, [places[i], slice(None)], x[i, :], extra_mask=keep[:, None])
    return out


@helion.kernel
def one_row(x: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """A dimension of size 1 is broadcast whatever tile walks over it."""
    out = torch.empty_like(x)
    for i, j in hl.tile(x.size()):
        out[i, j] = x[i, j] * row[i, j]
    return out


@helion.kernel
def placed_by_tile(x: torch.Tensor, rows: torch.Tensor, planes: torch.Tensor) -> torch.Tensor:
    """Values of lower rank stand where their tiles do, whichever sizes are equal, and keep to it through other functions."""
    out = torch.empty([5, *x.size()], dtype=x.dtype)
    for i, j, k in hl.tile(x.size()):
        value, row = x[i, j, k], rows[i]
        out[0, i, j, k] = value + row
        out[1, i, j, k] = torch.where(value > row, value.exp().log() * planes[i, k], torch.clamp(value, min=row))
        total = value + 1.0
        total += planes[i, k].abs()
        out[2, i, j, k] = total - torch.lerp(value, planes[k, i].T, 0.25)
        out[3, i, j, k] = hl.zeros([i, j, k]) + x[i, j, k].transpose(0, 2).permute(2, 1, 0) / rows[j]
        out[4, i, j, k] = value + planes[j, k]
    return out


@helion.kernel
def rows_by_tile(x: torch.Tensor, y: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    products, scaled = torch.empty([x.size(0), y.size(1)]), torch.empty_like(x)
    for i in hl.tile(x.size(0)):
        scaled[i, :] = x[i, :] / x[i, :].sum(1) - x[i, :].amax(1) * torch.max(x[i, :], 1)[0]
        for j in hl.tile(y.size(1)):
            products[i, j] = (x[i, :] @ y[:, j]) * rows[i]
    return products, scaled


def plus(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a + b


@helion.kernel
def scanned_by_tile(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    out = torch.empty([4, *x.size()])
    for i in hl.tile(x.size(0)):
        value, row = x[i, :], rows[i]
        out[0, i, :] = value + hl.reduce(plus, value, dim=1, other=0.0)
        out[1, i, :] = hl.cumsum(value, 1) * row
        out[2, i, :] = hl.associative_scan(plus, value, dim=1) * row
        out[3, i, :] = torch.where(value == row, value, torch.nn.functional.silu(value)) ** 2 - row
    return out


@helion.kernel
def in_place(x: torch.Tensor, y: torch.Tensor) -> None:
    for i in hl.tile(x.size(0)):
        before = x[i]
        x[i] = before * 2
        y[i] += before
        y[i] += x[i]


@helion.kernel
def names_of_one_value(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([2, x.size(0)])
    for i in hl.tile(x.size(0)):
        value = x[i]
        old = value
        value += 1
        half = torch.zeros([i], dtype=torch.float16)
        half += value  # keeps its dtype
        out[0, i] = old * value
        out[1, i] = half
    return out


@helion.kernel
def largest_and_sum(x: torch.Tensor) -> torch.Tensor:
    """Accumulators of whole blocks, finished behind the loop."""
    out = torch.empty([2, x.size(0)])
    block = hl.register_block_size(x.size(1))
    for i in hl.tile(x.size(0)):
        best = hl.full([i, block], float("-inf"))
        total = hl.zeros([i, block])
        for j in hl.tile(x.size(1), block_size=block):
            value = x[i, j]
            best = torch.maximum(best, value)
            total += torch.exp(value)
        out[0, i] = best.amax(-1)
        out[1, i] = total.sum(-1)
    return out


@helion.kernel
def fixed_blocks(x: torch.Tensor) -> torch.Tensor:
    """A softmax in blocks of 16, and the sums of the blocks."""
    out = torch.empty([x.size(0), helion.cdiv(x.size(1), 16)])
    for i in hl.tile(x.size(0)):
        for j in hl.tile(x.size(1), block_size=16):
            v = x[i, j]
            shares = torch.softmax(v, -1) + v.mean(-1, keepdim=True) + v.var(-1, correction=0)[:, None]
            x[i, j] = shares
            out[i, j.id] = shares.sum(-1) + (j.end - j.begin) * j.count
    return out


@helion.kernel
def block_products(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Every dimension of the product ends in a short tile."""
    out = torch.empty([x.size(0), y.size(1)])
    for i, j in hl.tile([x.size(0), y.size(1)], block_size=[16, 16]):
        acc = hl.zeros([i, j])
        for k in hl.tile(x.size(1), block_size=16):
            acc = torch.addmm(acc, x[i, k], y[k, j])
            acc = acc + torch.matmul(x[i, k], y[k, j]) + hl.dot(x[i, k], y[k, j], out_dtype=torch.float32)
        out[i, j] = acc
    return out


@helion.kernel
def fields(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), 6], dtype=torch.int64)
    for tile in hl.tile(x.size(0)):
        ones = torch.ones_like(tile.index)
        out[tile, 0] = tile.index
        out[tile, 1] = ones * tile.begin
        out[tile, 2] = ones * tile.end
        out[tile, 3] = ones * hl.tile_id(tile)
        out[tile, 4] = ones * tile.count
        out[tile, 5] = hl.tile_index(tile) + tile.block_size
    return out


@helion.kernel
def loops_of_all_kinds(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([x.size(0)])
    for i in hl.grid(x.size(0)):
        total = 0.0
        for j in hl.grid(1, x.size(1), 2):
            total = total + x[i, j] * j
        for j in range(3):
            total = total + x[i, j]
        for j in hl.static_range(2):
            total = total - x[i, j]
        for tile in hl.tile(ends[i]):
            total = total + x[i, tile].sum()
        if i % 2 == 0:
            total = total * 2
        out[i] = total
    return out


@helion.kernel
def shared_counts(kinds: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Lanes that add to one element come one after the other."""
    turns = torch.zeros_like(counts)
    for i in hl.tile(kinds.size(0)):
        before = hl.atomic_add(counts, [kinds[i]], 1)
        hl.atomic_max(turns, [kinds[i]], before)
    return turns


@helion.kernel
def numbers(x: torch.Tensor, seed: int) -> torch.Tensor:
    out = torch.empty([3, *x.size()])
    for i, j in hl.tile(x.size()):
        out[0, i, j] = hl.rand([i, j], seed)
        out[1, i, j] = hl.randint([i, j], -5, 50, seed)
        out[2, i, j] = hl.zeros([i, j]) + hl.arange(j.block_size)[None, :] * 0
    return out


def add_pairs(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return a * c, b * c + d


@helion.kernel
def scans(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([4, *x.size()])
    for i in hl.tile(x.size(0)):
        v = x[i, :]
        out[0, i, :] = hl.cumsum(v, 1)
        out[1, i, :] = hl.cumsum(v, 1, reverse=True)
        out[2, i, :] = hl.associative_scan(add_pairs, (v * 0.5, v), dim=1)[1]
        out[3, i, :] = hl.reduce(torch.maximum, v, 1, other=float("-inf"))[:, None] + v
    return out


SAME: tuple[tuple[helion.Kernel, Callable[[], tuple[Any, ...]], tuple[Sequence[int], ...]], ...] = (
    (shifted, lambda: (sample(37),), ((8,), (64,))),
    (both_axes, lambda: (sample(21, 21),), ((8, 8), (16, 4), (32, 32))),
    (gathered, lambda: (sample(9, 11), torch.arange(13) % 9, torch.arange(13) * 3 % 11), ((4, 8), (16, 16))),
    (scattered, lambda: (sample(13, 5), torch.arange(13) * 5 % 26), ((4,), (16,))),
    (one_row, lambda: (sample(7, 21), sample(1, 21)), ((4, 8),)),
    (one_row, lambda: (sample(7, 21), sample(7, 1)), ((4, 8),)),
    (placed_by_tile, lambda: (sample(9, 9, 9), sample(9), sample(9, 9)), ((4, 8, 2), (16, 16, 16))),
    (rows_by_tile, lambda: (sample(9, 9), sample(9, 9), sample(9)), ((4, 8), (16, 16))),
    (rows_by_tile, lambda: (sample(9, 20), sample(20, 11), sample(9)), ((4, 8), (16, 16))),
    (scanned_by_tile, lambda: (sample(9, 9), sample(9)), ((4,), (16,))),
    (scanned_by_tile, lambda: (sample(9, 13), sample(9)), ((4,),)),
    (in_place, lambda: (sample(37), sample(37) * 3), ((16,),)),
    (names_of_one_value, lambda: (sample(37),), ((16,),)),
    (largest_and_sum, lambda: (sample(5, 77) - 9,), ((4, 4), (16, 2), (32, 8))),
    (fixed_blocks, lambda: (sample(5, 77),), ((4,), (8,))),
    (fixed_blocks, lambda: (sample(5, 65),), ((4,), (8,))),
    (block_products, lambda: (sample(21, 33), sample(33, 17)), ((),)),
    (fields, lambda: (sample(37),), ((8,), (64,))),
    (loops_of_all_kinds, lambda: (sample(5, 21), torch.tensor([3, 0, 21, 7, 1])), ((8,),)),
    (numbers, lambda: (sample(5, 21), 1234), ((4, 8), (8, 32))),
    (scans, lambda: (sample(5, 16) / 4,), ((4,),)),
)  # fmt: skip


@pytest.mark.parametrize(("kernel", "make", "sizes"), SAME, ids=[f"{k.name}-{i}" for i, (k, _, _) in enumerate(SAME)])
def test_results_are_those_of_the_compiled_kernel(
    kernel: helion.Kernel, make: Callable[[], tuple[Any, ...]], sizes: tuple[Sequence[int], ...]
) -> None:
    same_as_compiled(kernel, make, *sizes)


def test_places_by_tile_are_those_of_torch() -> None:
    x, rows, planes = sample(9, 9, 9), sample(9), sample(9, 9)
    a = rows[:, None, None]
    first = torch.where(x > a, x * planes[:, None], x.clamp(min=a))
    second = x + 1 + planes.abs()[:, None] - torch.lerp(x, planes.T[:, None].expand_as(x), 0.25)
    expected = torch.stack([x + a, first, second, x / rows[None, :, None], x + planes])
    torch.testing.assert_close(eager(placed_by_tile)(x, rows, planes), expected)
    y = sample(9, 9)
    scaled = y / y.sum(1, keepdim=True) - y.amax(1, keepdim=True) * y.amax(1, keepdim=True)
    torch.testing.assert_close(eager(rows_by_tile)(y, planes, rows), ((y @ planes) * rows[:, None], scaled))


def test_whole_dimensions_are_the_default() -> None:
    kinds = torch.arange(37) % 5
    counts = torch.zeros(5, dtype=torch.int64)
    turns = eager(shared_counts)(kinds, counts)
    assert torch.equal(counts, torch.bincount(kinds))
    assert torch.equal(turns, counts - 1)
    x = sample(5, 77)
    result = eager(largest_and_sum)(x)
    torch.testing.assert_close(result, torch.stack([x.amax(1), x.exp().sum(1)]))
    (row,) = eager(fields)(sample(37))[[36]].tolist()
    assert row == [36, 0, 37, 0, 1, 73]


@helion.kernel
def lower_precision(x: torch.Tensor, y: torch.Tensor, acc: torch.Tensor) -> list[torch.Tensor]:
    sums = torch.empty_like(acc)
    products = torch.empty([x.size(0), y.size(1)], dtype=x.dtype)
    for i, j in hl.tile([x.size(0), y.size(1)]):
        sums[i, j] = torch.addmm(acc[i, j], x[i, :], y[:, j])
        products[i, j] = x[i, :] @ y[:, j]
    return [sums, products]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_products_accumulate_in_fp32_whatever_the_operands(dtype: torch.dtype) -> None:
    x, y = sample(7, 300, dtype=dtype), sample(300, 9, dtype=dtype)
    acc = sample(7, 9)
    sums, products = eager(lower_precision)(x, y, acc)
    exact = x.double() @ y.double()
    torch.testing.assert_close(sums.double(), acc + exact, rtol=1e-6, atol=0)
    assert torch.equal(products, (x.float() @ y.float()).to(dtype))


@helion.kernel
def narrow_sums(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], dtype=torch.int32)
    for i, j in hl.tile([x.size(0), y.size(1)]):
        out[i, j] = hl.dot(x[i, :], y[:, j])
    return out


def test_products_of_bytes_are_exact() -> None:
    x = torch.randint(-128, 128, (5, 3000), dtype=torch.int8)
    y = torch.randint(-128, 128, (3000, 7), dtype=torch.int8)
    assert torch.equal(eager(narrow_sums)(x, y), x.int() @ y.int())


@helion.kernel
def through_float8(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for i in hl.tile(1, x.size(0) + 4):
        out[i - 1] = x[i]
    return out


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bool, torch.int16, torch.float64])
def test_lanes_beyond_a_tensor_read_zero_and_write_nothing(dtype: torch.dtype) -> None:
    x = sample(13).to(dtype)
    out = eager(through_float8)(x)
    assert torch.equal(out.float(), torch.cat([x[1:].float(), torch.zeros(1)]))


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 1)])
def test_sizes_zero_and_one(shape: tuple[int, int]) -> None:
    x = torch.ones(shape)
    total = import_path(EXAMPLES_DIR / "long_sum.py").long_sum
    assert eager(total)(x).tolist() == x.sum(1).tolist()


def test_block_sizes_of_the_config_count_where_a_kernel_reads_its_tiles(capsys: pytest.CaptureFixture[str]) -> None:
    config = helion.Config(block_sizes=[8])
    tiles = helion.kernel(fields.fn, ref_mode=EAGER, config=config)
    assert tiles(sample(37))[:, 3].tolist() == [i // 8 for i in range(37)]
    assert capsys.readouterr().err == ""
    whole = helion.kernel(shifted.fn, ref_mode=EAGER, config=config)
    assert torch.equal(whole(sample(37)), whole(sample(37)))
    err = capsys.readouterr().err
    assert err.count("WARNING[BlockSizeIgnoredInInterpretMode]: Kernel 'shifted' runs eagerly") == 1, err
    quiet = helion.kernel(
        shifted.fn, ref_mode=EAGER, config=config, ignore_warnings=[helion.exc.BlockSizeIgnoredInInterpretMode]
    )
    quiet(sample(37))
    assert capsys.readouterr().err == ""


@helion.kernel
def tuned(x: torch.Tensor) -> torch.Tensor:
    factor = hl.register_tunable("factor", IntegerFragment(1, 9, 3))
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        hl.device_print("value", x[tile])
        out[tile] = x[tile] * factor
    return out


def test_tunables_have_the_value_of_the_config_or_their_default(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.ones(2)
    assert eager(tuned)(x).tolist() == [3.0, 3.0]
    assert eager(tuned, config={"factor": 7})(x).tolist() == [7.0, 7.0]
    assert capsys.readouterr().out == "value tensor([1., 1.])\n" * 2


# --- debugging ----------------------------------------------------------------------------------------------------------


@helion.kernel
def talkative(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0), block_size=2):
        value = x[tile]
        print(tile, tile.begin.item(), value)
        breakpoint()
        out[tile] = value
    return out


def test_print_and_breakpoint_work_in_loops(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: seen.append(sys._getframe(1).f_locals["value"].tolist()))
    eager(talkative)(torch.arange(3.0))
    assert capsys.readouterr().out == "tile [0, 2) 0 tensor([0., 1.])\ntile [2, 3) 2 tensor([2.])\n"
    assert seen == [[0.0, 1.0], [2.0]]


def test_a_compiled_kernel_has_its_eager_result() -> None:
    x = sample(37)
    bound = shifted.bind((x,))
    torch.testing.assert_close(bound.run_ref(x), bound(x))


@helion.kernel
def beyond_the_compiler(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        try:
            out[tile] = torch.linalg.svdvals(x[tile, None]).sum()
        except AttributeError:
            raise
    return out


def test_nothing_is_compiled() -> None:
    kernel = eager(beyond_the_compiler)
    torch.testing.assert_close(kernel(torch.ones(4)), torch.full([4], 2.0))
    bound = kernel.bind((torch.ones(4),))
    assert kernel.bind((torch.ones(4),)) is bound
    torch.testing.assert_close(bound(torch.ones(4)), torch.full([4], 2.0))
    with pytest.raises(helion.exc.NotAllowedOnDevice):
        beyond_the_compiler(torch.ones(4))


def test_arguments_that_require_gradients_are_read_and_written() -> None:
    x = torch.ones(5, requires_grad=True)
    eager(in_place)(x, torch.zeros(5))
    assert x.tolist() == [2.0] * 5
    assert not eager(shifted)(x).requires_grad


def test_threads_run_eagerly_and_compiled_side_by_side() -> None:
    x = sample(5, 77)
    expected = torch.stack([x.amax(1), x.exp().sum(1)])
    failures: list[BaseException] = []

    def work(kernel: helion.Kernel) -> None:
        try:
            for _ in range(3):
                torch.testing.assert_close(kernel(x), expected)
        except BaseException as error:
            failures.append(error)

    kernels = [eager(largest_and_sum), eager(largest_and_sum), helion.kernel(largest_and_sum.fn)]
    threads = [threading.Thread(target=work, args=(kernel,)) for kernel in kernels]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# --- the environment ----------------------------------------------------------------------------------------------------

_SCRIPT = """
    import torch, helion, helion.language as hl

    @helion.kernel
    def double(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            print("eager", x[tile].tolist())
            out[tile] = x[tile] * 2
        return out

    print(double.settings.ref_mode, double(torch.arange(3.0)).tolist())
"""


def _run_script(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "script.py"
    file.write_text(textwrap.dedent(_SCRIPT))
    root = str(Path(__file__).resolve().parents[2])
    return subprocess.run(
        [sys.executable, str(file)],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": root, **environment},
        capture_output=True,
        text=True,
    )


def test_helion_interpret_makes_kernels_eager(tmp_path: Path) -> None:
    done = _run_script(tmp_path, HELION_INTERPRET="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "eager [0.0, 1.0, 2.0]\nRefMode.EAGER [0.0, 2.0, 4.0]\n"


def test_two_ways_of_interpreting_exclude_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELION_INTERPRET", "1")
    assert helion.Settings().ref_mode is EAGER
    assert helion.Settings(ref_mode=helion.RefMode.OFF).ref_mode is helion.RefMode.OFF
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(helion.exc.IncompatibleInterpretModes, match="HELION_INTERPRET=1 and TRITON_INTERPRET=1"):
        helion.kernel(shifted.fn)


def test_there_is_no_code_to_print() -> None:
    with pytest.raises(helion.exc.RefEagerModeCodePrintError):
        helion.kernel(shifted.fn, ref_mode=EAGER, print_output_code=True)
    kernel = eager(shifted)
    kernel.settings.print_output_code = True
    with pytest.raises(helion.exc.RefEagerModeCodePrintError):
        kernel(sample(37))
    with pytest.raises(ValueError, match="ref_mode must be"):
        helion.Settings(ref_mode="eager")


# --- refusals -----------------------------------------------------------------------------------------------------------


@helion.kernel
def stores_twice(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for tile in hl.tile(x.size(0)):
        out[places[tile]] = x[tile]
    return out


def test_duplicate_indices_of_a_store_are_refused() -> None:
    kernel = eager(stores_twice)
    x = torch.tensor([10.0, 20.0, 30.0])
    assert kernel(x, torch.tensor([2, 0, 1])).tolist() == [20.0, 30.0, 10.0]
    with pytest.raises(helion.exc.IndexOutOfRange, match="writes 'out' out of range in dimension 0, .* at index 9"):
        kernel(x, torch.tensor([2, 9, -1]))
    with pytest.raises(helion.exc.DuplicateStoreIndicesError, match=r"1 lanes to elements of a tensor of shape \[3\]"):
        kernel(x, torch.tensor([2, 0, 2]))


@helion.kernel
def on_the_host(x: torch.Tensor) -> torch.Tensor:
    return hl.zeros([x.size(0)])


@helion.kernel
def specializes_in_a_loop(x: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        x[tile] = hl.specialize(x.size(0))


@helion.kernel
def registers_in_a_loop(x: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        x[tile] = hl.register_block_size(16)


@helion.kernel
def tile_of_a_tile(x: torch.Tensor) -> None:
    for outer in hl.tile(x.size(0)):
        for inner in hl.tile(outer):
            x[inner] = 0


@helion.kernel
def unpacks_one(x: torch.Tensor) -> None:
    for a, b in hl.tile(x.size(0)):
        x[a] = b


@helion.kernel
def sequence_of_one(x: torch.Tensor) -> None:
    for tile in hl.tile([x.size(0)]):
        x[tile] = tile.begin


@helion.kernel
def mixed_bounds(x: torch.Tensor) -> None:
    for tile in hl.tile(0, [x.size(0)]):
        x[tile] = 0


@helion.kernel
def fractional_bound(x: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0) / 2):
        x[tile] = 0


@helion.kernel
def tile_as_a_number(x: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        x[tile] = x[tile] + tile


@helion.kernel
def too_many_indices(x: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        x[tile] = x[tile, 0]


@helion.kernel
def index_of_floats(x: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        x[tile] = x[x[tile]]


@helion.kernel
def index_of_bools(x: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        x[tile] = x[x[tile] > 0]


@helion.kernel
def constant_out_of_range(x: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        x[tile] = x[1000]


@helion.kernel
def value_of_another_shape(x: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        x[tile] = hl.zeros([3])


@helion.kernel
def value_of_higher_rank(x: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        x[tile] = x[tile][:, None] + x[tile][None, :]


@helion.kernel
def grows_in_place(x: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        value = x[tile]
        value += x[tile][:, None]


@helion.kernel
def stores_a_string(x: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        x[tile] = "one"


@helion.kernel
def number_as_a_mask(x: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        x[tile] = hl.load(x, [tile], extra_mask=x[tile])


@helion.kernel
def unknown_policy(x: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        x[tile] = hl.load(x, [tile], eviction_policy="never")


@helion.kernel
def inner_sizes_differ(x: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        hl.dot(hl.zeros([tile, 3]), hl.zeros([4, tile]))


@helion.kernel
def batches_differ(x: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        hl.dot(hl.zeros([2, tile, 3]), hl.zeros([5, 3, tile]))


@helion.kernel
def product_of_integers(x: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        torch.mm(hl.zeros([tile, 4], dtype=torch.int32), hl.zeros([4, tile], dtype=torch.int32))


@helion.kernel
def product_of_bytes(x: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        torch.mm(hl.zeros([tile, 4], dtype=torch.uint8), hl.zeros([4, tile], dtype=torch.uint8))


@helion.kernel
def product_of_mixed_floats(x: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        hl.dot(hl.zeros([tile, 4], dtype=torch.float8_e4m3fn), hl.zeros([4, tile], dtype=torch.float32))


@helion.kernel
def counts_in_fractions(x: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        count = hl.zeros([tile], dtype=torch.int32)
        count += x[tile]


@helion.kernel
def calls_a_kernel(x: torch.Tensor) -> None:
    nested_kernel(x)


nested_kernel = eager(shifted)

REFUSED: tuple[tuple[helion.Kernel, type[Exception], str], ...] = (
    (on_the_host, helion.exc.DeviceAPIOnHost, r"hl\.zeros may only be called in device code"),
    (specializes_in_a_loop, helion.exc.SpecializeOnDevice, "must be called in host code"),
    (registers_in_a_loop, helion.exc.NotAllowedOnDevice, r"hl\.register_block_size is not allowed in device code"),
    (tile_of_a_tile, helion.exc.TileOfTile, r"use hl\.tile\(tile\.begin, tile\.end\)"),
    (unpacks_one, helion.exc.FailedToUnpackTile, "gives one tile"),
    (sequence_of_one, helion.exc.OverpackedTile, "a sequence of one tile"),
    (mixed_bounds, helion.exc.IncorrectTileUsage, "a list as one bound and a scalar as the other"),
    (fractional_bound, helion.exc.TypeInferenceError, r"must be an integer, got 2\.5"),
    (tile_as_a_number, helion.exc.IncorrectTileUsage, "as a number"),
    (too_many_indices, helion.exc.RankMismatch, "Expected 1 indices .* got 2"),
    (index_of_floats, helion.exc.InvalidIndexingType, r"torch\.float32"),
    (index_of_bools, helion.exc.DataDependentOutputShapeNotSupported, "boolean tensor"),
    (constant_out_of_range, helion.exc.InvalidAPIUsage, "Index 1000 is out of range for dimension 0"),
    (value_of_another_shape, helion.exc.ShapeMismatch, r"\[3\] and \[5\]"),
    (value_of_higher_rank, helion.exc.RankMismatch, "more dimensions than the subscript selects"),
    (grows_in_place, helion.exc.ShapeMismatch, "an in-place operation cannot change the shape"),
    (stores_a_string, helion.exc.RequiresTensorInAssignment, "got a str"),
    (number_as_a_mask, helion.exc.TypeInferenceError, "extra_mask must be a boolean tile"),
    (unknown_policy, helion.exc.InvalidAPIUsage, "eviction_policy must be"),
    (inner_sizes_differ, helion.exc.ShapeMismatch, "the inner dimensions 3 and 4 differ"),
    (batches_differ, helion.exc.DotBatchDimensionMismatch, "batch dimensions"),
    (product_of_integers, helion.exc.TypeInferenceError, r"A matmul of torch\.int32 is not supported"),
    (product_of_bytes, helion.exc.TypeInferenceError, r"A matmul of torch\.uint8 is not supported"),
    (
        product_of_mixed_floats,
        helion.exc.TypeInferenceError,
        r"torch\.float8_e4m3fn and torch\.float32 is not supported",
    ),
    (counts_in_fractions, helion.exc.TypeInferenceError, r"float32, which cannot be stored back into .* torch\.int32"),
    (calls_a_kernel, helion.exc.NestedKernelCallsNotSupported, "'shifted' is called from inside another kernel"),
)


@pytest.mark.parametrize(("kernel", "error", "message"), REFUSED, ids=[k.name for k, _, _ in REFUSED])
def test_refusal(kernel: helion.Kernel, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        run_reference(kernel, (torch.ones(5),))
    # the next run starts afresh
    assert _reference.ACTIVE.get() is None
    with pytest.raises(helion.exc.NotInsideKernel, match=r"hl\.zeros was called outside of a kernel"):
        hl.zeros([3])


def test_a_kernel_needs_a_tensor() -> None:
    with pytest.raises(helion.exc.NoTensorArgs):
        run_reference(in_place, (1, 2))


# --- references ---------------------------------------------------------------------------------------------------------


@helion.kernel
def unreferenced(x: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        x[tile] = hl.cumsum(x[tile], 0)


def test_a_function_without_reference_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(_reference.REFERENCES, hl.cumsum)
    with pytest.raises(helion.exc.BackendUnsupported, match=r"hl\.cumsum is not supported by the eager reference"):
        run_reference(unreferenced, (torch.ones(5),))


def test_a_reference_is_one_function() -> None:
    tripled = _reference.REFERENCES[hl.cumsum]
    try:
        _reference.reference(hl.cumsum)(lambda value, dim: value * 3)
        x = torch.ones(5)
        run_reference(unreferenced, (x,))
        assert x.tolist() == [3.0] * 5
    finally:
        _reference.REFERENCES[hl.cumsum] = tripled


#: Functions whose meaning is text for the GPU.
WITHOUT_REFERENCE = frozenset(("inline_triton", "triton_kernel", "inline_asm_elementwise"))


def test_every_function_has_a_reference() -> None:
    missing = {fn.__name__ for fn in DECLARED if fn not in _reference.REFERENCES}
    assert missing <= WITHOUT_REFERENCE


def test_the_mode_is_left_behind() -> None:
    eager(shifted)(sample(37))
    assert ref_mode._Eager not in map(type, torch.overrides._get_current_function_mode_stack())
