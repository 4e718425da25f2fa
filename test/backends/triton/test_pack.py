"""Operands of matrix products that are copied first, to aligned rows or to rows along K: which, what that gives, and how they are
loaded then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import program_of, space_of, tensor

import helion
import helion.language as hl
from helion import exc
from helion._compiler.rewrites.copy_operands import mn_major_operands, scattered_results, unaligned_operands
from helion.backends.triton.execute.interpreter.races import detect_races


def plain(x, y):
    m, k = x.size()
    out = torch.empty([m, y.size(1)], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, y.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


def gram(x, y):
    """One tensor is both operands, in tiles of different blocks, and is read again behind the product."""
    k, m = x.size()
    out = torch.empty([m, m], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, m]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_k, tile_m].t(), x[tile_k, tile_n])
        out[tile_m, tile_n] = acc * y[tile_n] + x[0, tile_n]
    return out


def whole_tile_sums(x, y):
    """Rows of the product are summed up: zeros out of range are part of the sums."""
    m, k = x.size()
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(y.size(1)):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            total += acc.sum(-1)
        out[tile_m] = total
    return out


def in_place(x, y):
    """The kernel writes what it multiplies."""
    m, k = x.size()
    for tile_m in hl.tile(m):
        for tile_n in hl.tile(k):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            x[tile_m, tile_n] = acc
    return x


def shifted(x, y):
    m, k = x.size()
    out = torch.empty([m, y.size(1)], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, y.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k - 1):
            acc = torch.addmm(acc, x[tile_m, tile_k.index + 1], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


def operands(dtype: torch.dtype, *shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return tuple((torch.randn(shape) + 0.25).to(dtype) for shape in shapes)


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.double() @ y.double()


def _gram(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x.double().t() @ x.double()) * y.double() + x[0].double()


def dotted(x, y):
    """The operands, of which the left one is loaded with its dimensions exchanged, by ``hl.dot``."""
    k, m = x.size()
    out = torch.empty([m, y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, y.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_k, tile_m].T, y[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = acc
    return out


def _dotted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.double().t() @ y.double()


def last_batch(x, y):
    """The matrices of both operands are slices along the last dimension."""
    m, k, c = x.size()
    out = torch.empty([m, y.size(0), c], dtype=torch.float32, device=x.device)
    for tile_m, tile_n, tile_c in hl.tile([m, y.size(0), c]):
        acc = hl.zeros([tile_c, tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            left = x[tile_m, tile_k, tile_c].permute(2, 0, 1)
            acc = torch.baddbmm(acc, left, y[tile_n, tile_k, tile_c].permute(2, 1, 0))
        out[tile_m, tile_n, tile_c] = acc.permute(1, 2, 0)
    return out


def last_batch_added(x, y):
    """What a result is added to is read from the tensor that it is stored to."""
    m, k, c = x.size()
    out = torch.ones([m, y.size(0), c], dtype=torch.float32, device=x.device)
    for tile_m, tile_n, tile_c in hl.tile([m, y.size(0), c]):
        acc = hl.zeros([tile_c, tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            left = x[tile_m, tile_k, tile_c].permute(2, 0, 1)
            acc = torch.baddbmm(acc, left, y[tile_n, tile_k, tile_c].permute(2, 1, 0))
        out[tile_m, tile_n, tile_c] += acc.permute(1, 2, 0)
    return out


def each_batch(x, y):
    """The same, one index of the last dimension a program."""
    m, k, c = x.size()
    out = torch.empty([m, y.size(0), c], dtype=torch.float32, device=x.device)
    for tile_c, tile_m, tile_n in hl.tile([c, m, y.size(0)], block_size=[1, None, None]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k, tile_c.begin], y[tile_n, tile_k, tile_c.begin].T)
        out[tile_m, tile_n, tile_c.begin] = acc
    return out


def some_batches(x, y):
    """Every other index of the last dimension; the others keep their numbers."""
    m, k, c = x.size()
    out = torch.ones([m, y.size(0), c], dtype=torch.float32, device=x.device)
    for tile_c, tile_m, tile_n in hl.tile([c // 2, m, y.size(0)], block_size=[1, None, None]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k, tile_c.begin], y[tile_n, tile_k, tile_c.begin].T)
        out[tile_m, tile_n, tile_c.begin + tile_c.begin] = acc
    return out


def diagonal_batches(x, y):
    """One index selects two dimensions of the result; all others keep their numbers."""
    m, k, c = x.size()
    out = torch.ones([c, m, y.size(0), c], dtype=torch.float32, device=x.device)
    for tile_c, tile_m, tile_n in hl.tile([c, m, y.size(0)], block_size=[1, None, None]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k, tile_c.begin], y[tile_n, tile_k, tile_c.begin].T)
        out[tile_c.begin, tile_m, tile_n, tile_c.begin] = acc
    return out


def taps(x, y):
    """Each of two columns of weights is multiplied with its own columns."""
    m, k, _ = x.size()
    n = y.size(1) - 1
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            for tap in hl.static_range(2):
                acc = hl.dot(x[tile_m, tile_k, tap], y[tile_k, tile_n.index + tap], acc=acc)
        out[tile_m, tile_n] = acc
    return out


def _last_batch(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.einsum("mkc,nkc->mnc", x.double(), y.double())


def _some_batches(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.ones([x.size(0), y.size(0), x.size(2)], dtype=torch.float64)
    half = x.size(2) // 2
    out[..., : 2 * half : 2] = _last_batch(x, y)[..., :half]
    return out


def _diagonal_batches(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out, found = torch.ones([x.size(2), x.size(0), y.size(0), x.size(2)], dtype=torch.float64), _last_batch(x, y)
    for at in range(x.size(2)):
        out[at, ..., at] = found[..., at]
    return out


def _taps(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return product(x[..., 0], y[:, :-1]) + product(x[..., 1], y[:, 1:])


CASES: dict[str, tuple[Callable[..., Any], Callable[..., torch.Tensor], tuple[torch.Tensor, ...], list[int]]] = {
    "both": (plain, product, operands(torch.float32, (33, 77), (77, 65)), [16, 32, 32]),
    "left alone": (plain, product, operands(torch.bfloat16, (63, 1000 + 1), (1001, 64)), [32, 32, 64]),
    "right alone": (plain, product, operands(torch.float16, (40, 64), (64, 3)), [16, 16, 16]),
    "transposed": (plain, lambda x, y: product(x, y), (operands(torch.float32, (70, 33))[0].t(), operands(torch.float32, (70, 45))[0]), [16, 32, 32]),
    "every other column": (plain, product, (operands(torch.bfloat16, (63, 2001))[0][:, 1::2], operands(torch.bfloat16, (1000, 64))[0]), [32, 32, 64]),
    "apart in both": (plain, product, (operands(torch.float16, (66, 77))[0][::2], operands(torch.float16, (231, 130))[0][::3, ::2]), [16, 32, 32]),
    "every third column of rows": (plain, product, (operands(torch.float32, (210, 33))[0][::3].t(), operands(torch.float32, (70, 90))[0][:, ::2]), [16, 32, 32]),
    "gram": (gram, _gram, operands(torch.float32, (70, 45), (45,)), [16, 32, 32]),
    "loaded transposed": (dotted, _dotted, operands(torch.bfloat16, (100, 33), (100, 65)), [16, 32, 32]),
    "sums of tiles": (whole_tile_sums, lambda x, y: product(x, y).sum(-1), operands(torch.float32, (33, 77), (77, 65)), [16, 32, 32]),
    "batches along the last dimension": (last_batch, _last_batch, operands(torch.bfloat16, (33, 70, 6), (20, 70, 6)), [16, 32, 1, 32]),
    "added to": (last_batch_added, lambda x, y: _last_batch(x, y) + 1, operands(torch.float32, (33, 70, 100), (20, 70, 100)), [16, 16, 1, 32]),
    "one batch a program": (each_batch, _last_batch, operands(torch.bfloat16, (33, 70, 6), (20, 70, 6)), [16, 32, 32]),
    "every other batch": (some_batches, _some_batches, operands(torch.bfloat16, (33, 70, 7), (20, 70, 7)), [16, 32, 32]),
    "a diagonal of batches": (diagonal_batches, _diagonal_batches, operands(torch.bfloat16, (33, 70, 6), (20, 70, 6)), [16, 32, 32]),
    "one index of the last dimension": (taps, _taps, operands(torch.float32, (33, 40, 2), (40, 50)), [16, 32, 16]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_packed_operands_give_the_same(name: str) -> None:
    fn, reference, args, sizes = CASES[name]
    config = helion.Config(block_sizes=sizes, pack_operands=True)
    kernel = helion.kernel(fn, static_shapes=True, config=config)
    copies = {
        line.split(" = ")[0].strip()
        for line in kernel.bind(args).to_triton_code().splitlines()
        if " = torch.empty" in line and "_helion_packed" in line
    }
    program = program_of(fn, *args, static_shapes=True)
    found = (*unaligned_operands(program), *scattered_results(program))
    assert len(copies) == len({(each.tensor.id, each.blocks) for each in found}) > 0
    with detect_races():
        result = kernel(*args)
    expected = reference(*args)
    error = 2**-7 if result.dtype == torch.bfloat16 else 2**-9 if result.dtype == torch.float16 else 1e-5
    assert (result.double() - expected).abs().max() <= error * expected.abs().max()


def test_matrices_without_neighbours_are_copied_whole() -> None:
    x, y = (torch.empty(size, dtype=torch.float16, device="meta") for size in ((4096, 2048), (1024, 1024)))
    args = x[:, ::2], y
    (each,) = unaligned_operands(program_of(plain, *args, static_shapes=True))
    assert each.tensor.strides == (2048, 2) and each.to == each.along == 1
    assert helion.kernel(plain, backend="triton").bind(args, target="h200").default_config()["pack_operands"]


def test_results_are_copied_where_their_tensor_has_no_other_access() -> None:
    for name, count in (
        ("batches along the last dimension", 1),
        ("one batch a program", 1),
        ("every other batch", 0),
        ("a diagonal of batches", 0),
        ("added to", 0),
        ("one index of the last dimension", 0),
    ):
        fn, _, args, _ = CASES[name]
        assert len(scattered_results(program_of(fn, *args, static_shapes=True))) == count


NARROW = torch.float8_e4m3fn


#: Kernel, reference, arguments, keys beside, and how many operands are copied.
CROSSWISE: dict[str, tuple[Callable[..., Any], Callable[..., torch.Tensor], tuple[torch.Tensor, ...], dict[str, Any], int]] = {
    "odd": (plain, product, operands(torch.float32, (33, 77), (77, 65)), {}, 1),
    "odd, packed": (plain, product, operands(torch.float32, (33, 77), (77, 65)), {"pack_operands": True}, 2),
    "aligned, in parts": (plain, product, operands(torch.float32, (33, 64), (64, 64)), {"split_k": 2}, 1),
    "both": (dotted, _dotted, operands(torch.float32, (100, 33), (100, 65)), {"pid_type": "xyz"}, 2),
    "gram": (gram, _gram, operands(torch.float32, (70, 45), (45,)), {"pid_type": "persistent_blocked"}, 2),
    "8 bits": (dotted, _dotted, operands(NARROW, (100, 33), (100, 65)), {}, 2),
    "sums of tiles": (whole_tile_sums, lambda x, y: product(x, y).sum(-1), operands(torch.float32, (33, 77), (77, 65)), {}, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", CROSSWISE)
def test_operands_copied_along_k_give_the_same(name: str) -> None:
    fn, reference, args, beside, copied = CROSSWISE[name]
    config = helion.Config(block_sizes=[16, 32, 32], transpose_operands=True, **beside)
    kernel = helion.kernel(fn, static_shapes=True, config=config)
    program = program_of(fn, *args, static_shapes=True)
    assert len({each.load.number for each in (*mn_major_operands(program), *_packed(program, beside))}) == copied
    assert kernel.bind(args).to_triton_code().count("_helion_packed") >= copied
    with detect_races():
        result = kernel(*args)
    expected = reference(*args)
    assert (result.double() - expected).abs().max() <= 1e-5 * expected.abs().max()


def _packed(program: Any, beside: dict[str, Any]) -> tuple[Any, ...]:
    return unaligned_operands(program) if "pack_operands" in beside else ()


def test_operands_that_are_not_copied_along_k() -> None:
    row, column = tensor(64, 64, dtype=torch.float32), tensor(64, 64, dtype=torch.float32).t()
    for args, found in (((row, row), 1), ((row, column), 0), ((column, row), 2), ((tensor(64, 64), tensor(64, 64)), 0)):
        assert len(mn_major_operands(program_of(plain, *args, static_shapes=True))) == found
    assert not mn_major_operands(program_of(plain, row, row, static_shapes=True, dot_precision="ieee"))
    assert not mn_major_operands(program_of(plain, row, row, static_shapes=False))
    for args, target, why in (
        ((row, column), "sm_90", "MN-major"),
        ((row, row), "sm_100", "does not need K-major"),
    ):
        space, asked = space_of(plain, *args, on=target, static_shapes=True), helion.Config(transpose_operands=True)
        assert space.normalize(asked) == space.conservative()
        assert [why in str(said) for said in space.adjusted(asked)] == [True]


@pytest.mark.parametrize("indexing", ["pointer", ["tensor_descriptor", "tensor_descriptor", "pointer"]])
def test_the_asynchronous_unit_reads_rows_along_k(indexing: Any) -> None:
    row = tensor(1000, 1000, dtype=torch.float32)
    bound = helion.kernel(plain, static_shapes=True).bind((row, row), target="sm_90")
    wish = {"block_sizes": [128, 256, 32], "num_warps": 8, "num_stages": 4, "transpose_operands": True}
    config = bound.config_spec.normalize(helion.Config(indexing=indexing, **wish))
    assert not bound.config_spec.normalize(helion.Config(**wish, swap_ab=True))["swap_ab"]
    bound.set_config(config)
    taken, predicted = bound.resources(), bound._analysis.predict(config)
    assert taken.spill_bytes == 0 and taken.shared_bytes <= predicted.shared_bytes <= 1.10 * taken.shared_bytes + 2048
    assert (
        bound._analysis.predict(config).time_us
        < bound._analysis.predict({**config, "transpose_operands": False}).time_us
    )


@pytest.mark.parametrize("beside", [{"split_k": 2}, {"pid_type": "persistent_blocked"}, {"pid_type": "xyz"}])
def test_packing_goes_with_other_keys(beside: dict[str, Any]) -> None:
    x, y = operands(torch.float32, (33, 77), (77, 65))
    config = helion.Config(block_sizes=[16, 32, 32], pack_operands=True, **beside)
    result = helion.kernel(plain, static_shapes=True, config=config)(x, y)
    torch.testing.assert_close(result.double(), product(x, y), rtol=1e-4, atol=1e-4)


def whole_rows(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.softmax(x[tile, :], 1)
    return out


def test_operands_that_are_not_packed() -> None:
    odd, even = tensor(64, 77), tensor(77, 64)
    for fn, args, found in (
        (plain, (odd, even), 1),
        (plain, (tensor(64, 64), tensor(64, 64)), 0),
        (shifted, (odd, even), 0),
    ):
        assert len(unaligned_operands(program_of(fn, *args, static_shapes=True))) == found
    square = tensor(77, 77)
    (other,) = unaligned_operands(program_of(in_place, square, square.clone(), static_shapes=True))
    assert other.tensor.name == "y"  # what the kernel writes may not be read from a copy
    assert not unaligned_operands(program_of(plain, torch.empty(64, 77), torch.empty(77, 64), static_shapes=False))
    space = space_of(plain, tensor(64, 64), tensor(64, 64), static_shapes=True)
    assert space.normalize(helion.Config(pack_operands=True)) == space.conservative()
    assert "not aligned to 16 bytes" in str(*space.adjusted(helion.Config(pack_operands=True)))
    with pytest.raises(exc.InvalidConfig, match=r"pack_operands cannot be True"):  # no product, whatever the sizes
        space_of(whole_rows, tensor(64, 64), static_shapes=True).normalize(helion.Config(pack_operands=True))


@pytest.mark.parametrize("indexing", ["pointer", "tensor_descriptor"])
def test_packed_operands_are_loaded_in_whole_vectors(indexing: str) -> None:
    args = tensor(1001, 777), tensor(777, 1301)
    bound = helion.kernel(plain, static_shapes=True).bind(args, target="sm_90")
    wish = {"block_sizes": [128, 128, 64], "num_warps": 8, "num_stages": 3, "indexing": indexing, "pack_operands": True}
    config = bound.config_spec.normalize(helion.Config(**wish))
    product_kernel = bound.to_triton_code(config, output_origin_lines=False).split("@triton.jit")[2]
    loads = [line for line in product_kernel.splitlines() if "load =" in line or "load_1 =" in line]
    assert len(loads) == 2 and not any("mask" in line for line in loads)
    bound.set_config(config)
    taken, predicted = bound.resources(), bound._analysis.predict(config)
    assert taken.spill_bytes == 0
    # two buffers at least for each stage that is prefetched: they are copied asynchronously
    assert 2 * (128 + 128) * 64 * 2 <= taken.shared_bytes <= predicted.shared_bytes <= 1.10 * taken.shared_bytes + 2048


def test_copied_batches_run_one_matrix_after_the_other() -> None:
    x = torch.empty([384, 384, 128], dtype=torch.bfloat16, device="meta")
    seed = helion.kernel(each_batch, static_shapes=True).bind((x, x), target="h200").seeds[0].config
    assert seed["pack_operands"] and seed["loop_orders"] == [[2, 1, 0]]
    rows, columns = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((4096, 4097), (4097, 4096)))
    alone = helion.kernel(plain, static_shapes=True).bind((rows, columns), target="h200").seeds[0].config
    assert alone["pack_operands"] and alone["loop_orders"] == [[0, 1]]
