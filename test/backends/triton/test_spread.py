"""Loops behind sums in parts, which programs share: what they give, what is declined, and which seeds ask for them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import program_of, tensor

import helion
import helion.language as hl
from benchmarks.workloads.rows import batch_norm_columns, group_norm_nhwc, unit_columns
from helion import exc
from helion._compiler.ir.rewrite import Declined
from helion._compiler.rewrites.split_k.legality import accumulation_loop, split_epilogue_loops

Args = tuple[Any, ...]


def run(fn: Callable[..., Any], args: Args, sizes: list[int], parts: int) -> Any:
    """The result of ``fn`` with its loops shared, the same in every run."""
    bound = helion.kernel(fn, static_shapes=True).bind(args)
    config = bound.config_spec.normalize(helion.Config(block_sizes=sizes, split_k=parts))
    text = bound.to_triton_code(config)
    assert "_helion_parts_0" in text and config["split_k"] > 1
    again = tuple(each.clone() if isinstance(each, torch.Tensor) else each for each in args)
    result = bound.compile_config(config)(*args)
    repeated = bound.compile_config(config)(*again)
    torch.testing.assert_close(result, repeated, rtol=0, atol=0, equal_nan=True)
    return result


def near(found: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = 2**-7 if found.dtype == torch.bfloat16 else 2e-5
    torch.testing.assert_close(found.double(), expected.double(), rtol=tolerance, atol=tolerance)


def moments(x: torch.Tensor, dims: Any = 0) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.double()
    return x.mean(dims, keepdim=True), x.var(dims, keepdim=True, unbiased=False)


def normed(x: torch.Tensor, dims: Any = 0) -> torch.Tensor:
    mean, variance = moments(x, dims)
    return (x.double() - mean) * torch.rsqrt(variance + 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("m", "c", "sizes", "parts"),
    [(1000, 37, [16, 32, 16], 4), (63, 64, [64, 8, 32], 8), (4097, 9, [8, 64, 128], 64), (1000, 70, [64, 8, 512], 2)],
)
def test_batch_norm(m: int, c: int, sizes: list[int], parts: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = (torch.randn(m, c) + 2).to(dtype)
    weight, bias = torch.randn(c), torch.randn(c)
    out, means, variances = run(batch_norm_columns.fn, (x, weight, bias), sizes, parts)
    near(out, torch.relu(normed(x) * weight.double() + bias.double()))
    near(means, moments(x)[0][0])
    near(variances, moments(x)[1][0])


@pytest.mark.parametrize("parts", [2, 8])
def test_group_norm_of_a_program_for_each_group(parts: int) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(2, 191, 3, 5) + 3, torch.randn(3, 5), torch.randn(3, 5)
    y = normed(x, (1, 3)) * weight.double() + bias.double()
    near(run(group_norm_nhwc.fn, (x, weight, bias), [16, 32], parts), y * torch.sigmoid(y))


def test_norms_of_columns() -> None:
    x, gain = torch.randn(300, 33) + 1, torch.randn(33)
    near(run(unit_columns.fn, (x, gain), [16, 16, 32], 16), x.double() / x.double().norm(dim=0) * gain.double())


def long_rows(x):
    """Rows are what is contiguous; two loops follow, of which the second reads another tensor than the first has stored."""
    m, n = x.size()
    out, signs = torch.empty_like(x), torch.empty([m, n], dtype=torch.int8, device=x.device)
    for tile_m in hl.tile(m):
        total = hl.zeros([tile_m], dtype=torch.float32)
        square = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            values = x[tile_m, tile_n].to(torch.float32)
            total = total + values.sum(1)
            square = square + (values * values).sum(1)
        mean = total / n
        scale = torch.rsqrt(square / n - mean * mean + 1e-5)
        for tile_n in hl.tile(n):
            out[tile_m, tile_n] = ((x[tile_m, tile_n].to(torch.float32) - mean[:, None]) * scale[:, None]).to(x.dtype)
        for tile_n in hl.tile(n):
            signs[tile_m, tile_n] = (x[tile_m, tile_n].to(torch.float32) > mean[:, None]).to(torch.int8)
    return out, signs


def test_several_loops_behind_the_sums() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 1000) + 1
    out, signs = run(long_rows, (x,), [2, 64, 32, 128], 8)
    near(out, normed(x, 1))
    assert torch.equal(signs.bool(), x.double() > moments(x, 1)[0])


def deviations(x):
    """The second loop adds up what needs the sums of the first one, and nothing but sums is stored."""
    m, c = x.size()
    out = torch.empty([c], dtype=torch.float32, device=x.device)
    for tile_c in hl.tile(c):
        total = hl.zeros([tile_c], dtype=torch.float32)
        for tile_m in hl.tile(m):
            total = total + x[tile_m, tile_c].sum(0)
        square = hl.zeros([tile_c], dtype=torch.float32)
        for tile_m in hl.tile(m):
            apart = x[tile_m, tile_c] - (total / m)[None, :]
            square = square + (apart * apart).sum(0)
        out[tile_c] = square
    return out


def centred(x, weight):
    """Batch norm with the variance about the mean: three kernels."""
    m, c = x.size()
    out, variances = torch.empty_like(x), torch.empty([c], dtype=torch.float32, device=x.device)
    for tile_c in hl.tile(c):
        gain = weight[tile_c].to(torch.float32)
        total = hl.zeros([tile_c], dtype=torch.float32)
        for tile_m in hl.tile(m):
            total = total + x[tile_m, tile_c].to(torch.float32).sum(0)
        mean = total / m
        square = hl.zeros([tile_c], dtype=torch.float32)
        least = hl.full([tile_c], float("inf"), dtype=torch.float32)
        for tile_m in hl.tile(m):
            apart = x[tile_m, tile_c].to(torch.float32) - mean[None, :]
            square = square + torch.where((tile_m.index < m)[:, None], apart * apart, 0.0).sum(0)
            least = torch.minimum(least, apart.amin(0))
        variance = square / m
        variances[tile_c] = variance
        scale = torch.rsqrt(variance + 1e-5) * gain
        for tile_m in hl.tile(m):
            y = x[tile_m, tile_c].to(torch.float32) - mean[None, :] - least[None, :]
            out[tile_m, tile_c] = (y * scale[None, :]).to(x.dtype)
    return out, variances


@pytest.mark.parametrize("parts", [2, 16])
def test_sums_about_other_sums(parts: int) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(1000, 37) + 5, torch.randn(37)
    wide, (mean, variance) = x.double(), moments(x)
    near(run(deviations, (x,), [16, 32, 16], parts) / 1000, variance[0])
    out, variances = run(centred, (x, weight), [16, 32, 16, 64], parts)
    near(variances, variance[0])
    apart = wide - mean
    near(out, (apart - apart.amin(0)) * torch.rsqrt(variance + 1e-5) * weight.double())


def test_every_loop_of_sums_has_a_kernel() -> None:
    args = tensor(100352, 64), tensor(64)
    bound = helion.kernel(centred, static_shapes=True).bind(args, target="sm_90")
    text = bound.to_triton_code({"block_sizes": [64, 256, 256, 256], "split_k": 64})
    kernels = [each for each in text.split("@triton.jit") if "tl.program_id" in each]
    # each begins where the one before has ended
    assert ["- walked" in kernel for kernel in kernels] == [False, True, False]
    assert [kernel.count("tl.load(x ") for kernel in kernels] == [1, 1, 1]


def in_place(x, running):
    """The tensor that was summed up is changed where it stands, and so are numbers of each column."""
    m, c = x.size()
    for tile_c in hl.tile(c):
        total = hl.zeros([tile_c], dtype=torch.float32)
        for tile_m in hl.tile(m):
            total = total + x[tile_m, tile_c].sum(0)
        mean = total / m
        running[tile_c] = running[tile_c] * 0.9 + mean * 0.1
        for tile_m in hl.tile(m):
            x[tile_m, tile_c] = x[tile_m, tile_c] - mean[None, :]
    return x


def test_what_is_changed_in_place() -> None:
    torch.manual_seed(0)
    x, running = torch.randn(333, 21) + 4, torch.randn(21)
    mean = x.double().mean(0)
    expected = x.double() - mean, running.double() * 0.9 + mean * 0.1
    near(run(in_place, (x, running), [8, 16, 32], 4), expected[0])
    near(running, expected[1])


def scaled_to_range(x, low: float):
    """Extrema of whole rows of features, which are reduced behind the loop, in all lanes."""
    b, m, c = x.size()
    c = hl.specialize(c)
    out = torch.empty_like(x)
    for tile_b in hl.tile(b, block_size=1):
        top = hl.full([c], float("-inf"), dtype=torch.float32)
        least = hl.full([c], low, dtype=torch.float32)
        for tile_m in hl.tile(m):
            values = x[tile_b.begin, tile_m, :]
            top = torch.maximum(top, values.amax(0))
            least = torch.minimum(least, values.amin(0))
        high, deep = top.amax(0), least.amin(0)
        for tile_m in hl.tile(m):
            out[tile_b.begin, tile_m, :] = (x[tile_b.begin, tile_m, :] - deep) / (high - deep)
    return out


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_extrema_of_padded_lanes(sign: float) -> None:
    torch.manual_seed(0)
    x = sign * (torch.rand(2, 100, 5) + 3)
    wide = x.double()
    high, deep = wide.amax((1, 2), keepdim=True), wide.amin((1, 2), keepdim=True).clamp(max=9.0)
    near(run(scaled_to_range, (x, 9.0), [16, 16], 4), (wide - deep) / (high - deep))


def dropped(x, seed: int):
    m, c = x.size()
    out = torch.empty_like(x)
    for tile_c in hl.tile(c):
        total = hl.zeros([tile_c], dtype=torch.float32)
        for tile_m in hl.tile(m):
            total = total + x[tile_m, tile_c].sum(0)
        for tile_m in hl.tile(m):
            keep = hl.rand([tile_m, tile_c], seed=seed) > 0.25
            out[tile_m, tile_c] = torch.where(keep, x[tile_m, tile_c] - (total / m)[None, :], 0.0)
    return out


def test_random_numbers_are_those_of_their_elements() -> None:
    x = torch.randn(200, 20) + 1
    found = run(dropped, (x, 7), [8, 16, 32], 4)
    whole = helion.kernel(dropped, static_shapes=True, config=helion.Config(block_sizes=[8, 16, 32]))(x, 7)
    torch.testing.assert_close(found, whole)
    assert 0.65 < (found != 0).float().mean() < 0.85


def up_to(x, last: int):
    m, c = x.size()
    out = torch.zeros_like(x)
    for tile_c in hl.tile(c):
        total = hl.zeros([tile_c], dtype=torch.float32)
        for tile_m in hl.tile(last):
            total = total + x[tile_m, tile_c].sum(0)
        for tile_m in hl.tile(last):
            out[tile_m, tile_c] = x[tile_m, tile_c] - (total / m)[None, :]
    return out


def test_loops_whose_end_is_an_argument() -> None:
    x = torch.randn(100, 10) + 1
    kernel = helion.kernel(up_to, static_shapes=True, config=helion.Config(block_sizes=[16, 8, 32], split_k=4))
    for last in (100, 77, 1, 0):
        expected = torch.zeros(100, 10, dtype=torch.float64)
        expected[:last] = x[:last].double() - x[:last].double().sum(0) / 100
        near(kernel(x, last), expected)
    assert "_helion_parts" in kernel.bind((x, 5)).to_triton_code()


def test_every_config_gives_the_same() -> None:
    """Parts beside every other key of the space."""
    torch.manual_seed(0)
    x, weight, rng = torch.randn(200, 16) + 5, torch.randn(16), random.Random(0)
    bound = helion.kernel(centred, static_shapes=True).bind((x, weight))
    mean, variance = moments(x)
    apart = x.double() - mean
    for _ in range(6):
        asked = {field.key: field.random(rng) for field in bound.config_spec.fields}
        sizes = [rng.choice((8, 16, 32)) for _ in range(4)]
        asked |= {
            "block_sizes": sizes,
            "split_k": rng.choice((2, 4, 8)),
            "flatten_loops": [False] * len(asked["flatten_loops"]),
        }
        config = bound.config_spec.repair(asked)
        assert config["split_k"] > 1
        out, variances = bound.compile_config(config)(x, weight)
        near(variances, variance[0])
        near(out, (apart - apart.amin(0)) * torch.rsqrt(variance + 1e-5) * weight.double())


# --- what is declined ------------------------------------------------------------------------------------------------------


def sums_behind(x):
    """A loop that adds up stands behind one that stores."""
    m, c = x.size()
    out, sums = torch.empty_like(x), torch.empty([c], dtype=torch.float32, device=x.device)
    for tile_c in hl.tile(c):
        total = hl.zeros([tile_c], dtype=torch.float32)
        for tile_m in hl.tile(m):
            total = total + x[tile_m, tile_c].sum(0)
        for tile_m in hl.tile(m):
            out[tile_m, tile_c] = x[tile_m, tile_c] - total[None, :]
        square = hl.zeros([tile_c], dtype=torch.float32)
        for tile_m in hl.tile(m):
            square = square + (x[tile_m, tile_c] * total[None, :]).sum(0)
        sums[tile_c] = square
    return out, sums


def stored_between(x):
    """What the first loop gives is stored before the second one adds up."""
    m, c = x.size()
    out, sums = torch.empty_like(x), torch.empty([c], dtype=torch.float32, device=x.device)
    for tile_c in hl.tile(c):
        total = hl.zeros([tile_c], dtype=torch.float32)
        for tile_m in hl.tile(m):
            total = total + x[tile_m, tile_c].sum(0)
        sums[tile_c] = total
        square = hl.zeros([tile_c], dtype=torch.float32)
        for tile_m in hl.tile(m):
            square = square + (x[tile_m, tile_c] * total[None, :]).sum(0)
        for tile_m in hl.tile(m):
            out[tile_m, tile_c] = x[tile_m, tile_c] - square[None, :]
    return out, sums


def last_one(x):
    """Each iteration stores to the same place."""
    m, c = x.size()
    out = torch.empty([c], dtype=torch.float32, device=x.device)
    for tile_c in hl.tile(c):
        total = hl.zeros([tile_c], dtype=torch.float32)
        for tile_m in hl.tile(m):
            total = total + x[tile_m, tile_c].sum(0)
        for tile_m in hl.tile(m):
            out[tile_c] = total + x[tile_m, tile_c].amax(0)
    return out


def shifted(x):
    """What one iteration stores, another one reads."""
    m, c = x.size()
    for tile_c in hl.tile(c):
        total = hl.zeros([tile_c], dtype=torch.float32)
        for tile_m in hl.tile(m):
            total = total + x[tile_m, tile_c].sum(0)
        for tile_m in hl.tile(m - 1):
            x[tile_m, tile_c] = x[tile_m.index + 1, tile_c] - total[None, :]
    return x


def one_after_the_other(x):
    """The second loop reads what the first one has stored."""
    m, c = x.size()
    middle, out = torch.empty_like(x), torch.empty_like(x)
    for tile_c in hl.tile(c):
        total = hl.zeros([tile_c], dtype=torch.float32)
        for tile_m in hl.tile(m):
            total = total + x[tile_m, tile_c].sum(0)
        for tile_m in hl.tile(m):
            middle[tile_m, tile_c] = x[tile_m, tile_c] - total[None, :]
        for tile_m in hl.tile(m):
            out[tile_m, tile_c] = middle[tile_m, tile_c] * 2
    return out


def first_row_kept(x):
    """What is read in front of the sums is stored behind them."""
    m, c = x.size()
    out, row = torch.empty_like(x), torch.zeros([c], dtype=torch.float32, device=x.device)
    for tile_c in hl.tile(c):
        before = row[tile_c]
        total = hl.zeros([tile_c], dtype=torch.float32)
        for tile_m in hl.tile(m):
            total = total + x[tile_m, tile_c].sum(0)
        row[tile_c] = before + total
        for tile_m in hl.tile(m):
            out[tile_m, tile_c] = x[tile_m, tile_c] - total[None, :]
    return out, row


def row_for_the_loop(x):
    """A loop needs what was stored, and changed, once for a tile."""
    m, c = x.size()
    out, row = torch.empty_like(x), torch.zeros([c], dtype=torch.float32, device=x.device)
    for tile_c in hl.tile(c):
        total = hl.zeros([tile_c], dtype=torch.float32)
        for tile_m in hl.tile(m):
            total = total + x[tile_m, tile_c].sum(0)
        old = row[tile_c]
        row[tile_c] = total
        for tile_m in hl.tile(m):
            out[tile_m, tile_c] = x[tile_m, tile_c] - old[None, :]
    return out, row


def counted(x):
    m, c = x.size()
    out, count = torch.empty_like(x), torch.zeros([c], dtype=torch.float32, device=x.device)
    for tile_c in hl.tile(c):
        total = hl.zeros([tile_c], dtype=torch.float32)
        for tile_m in hl.tile(m):
            total = total + x[tile_m, tile_c].sum(0)
        hl.atomic_add(count, [tile_c], total)
        for tile_m in hl.tile(m):
            out[tile_m, tile_c] = x[tile_m, tile_c] - total[None, :]
    return out, count


def of_halves(x):
    """Sums of 16 bits."""
    m, c = x.size()
    out = torch.empty_like(x)
    for tile_c in hl.tile(c):
        total = hl.zeros([tile_c], dtype=torch.bfloat16)
        for tile_m in hl.tile(m):
            total = total + x[tile_m, tile_c].sum(0).to(torch.bfloat16)
        for tile_m in hl.tile(m):
            out[tile_m, tile_c] = x[tile_m, tile_c] - total[None, :]
    return out


def up_to_data(x, lengths):
    m, c = x.size()
    out = torch.zeros_like(x)
    for tile_c in hl.tile(c):
        total = hl.zeros([tile_c], dtype=torch.float32)
        for tile_m in hl.tile(m):
            total = total + x[tile_m, tile_c].sum(0)
        for tile_m in hl.tile(lengths[0]):
            out[tile_m, tile_c] = x[tile_m, tile_c] - total[None, :]
    return out


def of_a_product(x):
    """The sums are those of a product."""
    m, c = x.size()
    c = hl.specialize(c)
    out = torch.empty([c, c], dtype=torch.float32, device=x.device)
    for tile_c in hl.tile(c):
        acc = hl.zeros([tile_c, c], dtype=torch.float32)
        for tile_m in hl.tile(m):
            acc = torch.addmm(acc, x[tile_m, tile_c].T, x[tile_m, :])
        most = acc.amax(1)
        for tile_n in hl.tile(c):
            out[tile_c, tile_n] = most[:, None] + x[tile_c, tile_n]
    return out


X = tensor(256, 64, dtype=torch.float32)


@pytest.mark.parametrize(
    ("fn", "args", "why"),
    [
        (sums_behind, (X,), "carries values"),
        (stored_between, (X,), "stores before the loop"),
        (last_one, (X,), "may access the same element"),
        (shifted, (X,), "may access the same element"),
        (one_after_the_other, (X,), "another loop reads or stores"),
        (first_row_kept, (X,), "read before the sums"),
        (row_for_the_loop, (X,), "only one program has"),
        (counted, (X,), "atomic outside of the loops"),
        (of_halves, (X,), "narrow dtypes"),
        (up_to_data, (X, tensor(2, dtype=torch.int32)), "depend on data|from 0"),
        (of_a_product, (X,), "after that of a matmul"),
    ],
)
def test_loops_that_are_not_shared(fn: Callable[..., Any], args: Args, why: str) -> None:
    program = program_of(fn, *args, static_shapes=True)
    assert split_epilogue_loops(program) == ()
    with pytest.raises(Declined, match=why):
        accumulation_loop(program)
    with pytest.raises(exc.InvalidConfig, match=f"split_k.*({why})"):
        helion.kernel(fn, static_shapes=True).bind(args, target="sm_90").config_spec.normalize(helion.Config(split_k=2))


def one_memory(x, out):
    m, c = x.size()
    for tile_c in hl.tile(c):
        total = hl.zeros([tile_c], dtype=torch.float32)
        for tile_m in hl.tile(m):
            total = total + x[tile_m, tile_c].sum(0)
        for tile_m in hl.tile(m):
            out[tile_m, tile_c] = x[tile_m, tile_c] - total[None, :]
    return out


def test_tensors_that_share_memory_are_not_shared() -> None:
    """Rows of one argument are other rows of the other."""
    whole = torch.randn(101, 8)
    bound = helion.kernel(one_memory, static_shapes=True).bind((whole[:100], whole[1:]))
    with pytest.raises(exc.InvalidConfig, match="may access the same element"):
        bound.config_spec.normalize(helion.Config(block_sizes=[8, 16, 16], split_k=4))
    apart = helion.kernel(one_memory, static_shapes=True).bind((whole[:100], torch.empty(100, 8)))
    assert apart.config_spec.normalize(helion.Config(block_sizes=[8, 16, 16], split_k=4))["split_k"] == 4


# --- the kernels and the seeds ---------------------------------------------------------------------------------------------


def test_second_kernel_begins_where_the_first_ended() -> None:
    args = tensor(401408, 64), tensor(64), tensor(64)
    bound = helion.kernel(batch_norm_columns.fn, static_shapes=True).bind(args, target="sm_90")
    text = bound.to_triton_code({"block_sizes": [64, 256, 256], "split_k": 512})
    first, second = text.split("@triton.jit")[1:]
    assert "ends" not in first and "- walked" in second and second.count("if eq:") == 1


@pytest.mark.parametrize("target", ["sm_90", "sm_80", "gfx942"])
def test_kernels_compile_without_spills(target: str) -> None:
    bound = helion.kernel(centred, static_shapes=True).bind((tensor(100352, 250), tensor(250)), target=target)
    stages = [0, 3, 3, 3]
    bound.set_config({"block_sizes": [64, 128, 128, 128], "split_k": 64, "num_warps": 4, "range_num_stages": stages})
    taken = bound.resources()
    assert taken.fits and taken.spill_bytes == 0


@pytest.mark.parametrize(
    ("kernel", "shape", "programs"),
    [
        (batch_norm_columns, ((401408, 64), (64,), (64,)), 256),
        (batch_norm_columns, ((100352, 256), (256,), (256,)), 256),
    ],
)
def test_few_tiles_of_long_columns_are_shared(kernel: Any, shape: tuple[tuple[int, ...], ...], programs: int) -> None:
    bound = kernel.bind(tuple(tensor(*each) for each in shape), target="h200")
    config = bound.default_config()
    columns = shape[0][1] // config["block_sizes"][0]
    assert config["split_k"] * columns == programs and config["block_sizes"][0] * 2 >= 128


def column_sums(x):
    out = torch.empty([x.size(1)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(1)):
        acc = hl.zeros([tile], dtype=torch.float32)
        for rows in hl.tile(x.size(0)):
            acc += x[rows, tile].to(torch.float32).sum(0)
        out[tile] = acc
    return out


def weight_gradients(dy, x, mean):
    out = torch.empty([x.size(1)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(1)):
        acc = hl.zeros([tile], dtype=torch.float32)
        for rows in hl.tile(x.size(0)):
            acc += (dy[rows, tile].float() * (x[rows, tile].float() - mean[rows][:, None])).sum(0)
        out[tile] = acc
    return out


def test_numbers_of_rows_take_no_part_of_a_chunk() -> None:
    args = (tensor(16384, 3072), tensor(16384, 3072), tensor(16384, dtype=torch.float32))
    config = helion.kernel(weight_gradients).bind(args, target="h200").default_config()
    assert (config["block_sizes"], config["split_k"], config["range_num_stages"]) == ([64, 128], 8, [0, 3])


@pytest.mark.parametrize(
    ("fn", "shape", "tiles", "parts"),
    [(column_sums, (65536, 1024), [64, 256], 16), (long_rows, (16, 1 << 20), [1, 16384, 16384, 16384], 16)],
)
def test_rows_of_few_tiles_are_prefetched(fn: Any, shape: tuple[int, ...], tiles: list[int], parts: int) -> None:
    config = helion.kernel(fn, static_shapes=True).bind((tensor(*shape),), target="h200").default_config()
    assert (config["block_sizes"], config["split_k"], config["num_warps"]) == (tiles, parts, 4)
    assert config["range_num_stages"] == [0] + [3] * (len(tiles) - 1)


@pytest.mark.parametrize(
    ("fn", "shape"), [(column_sums, (2048, 1024)), (long_rows, (16, 32768)), (in_place, (1024, 64))]
)
def test_what_one_program_reads_soon_is_not_shared(fn: Any, shape: tuple[int, int]) -> None:
    args = (tensor(*shape), tensor(shape[1])) if fn is in_place else (tensor(*shape),)
    bound = helion.kernel(fn, static_shapes=True).bind(args, target="h200")
    assert "TritonSplitReductionHeuristic" in dict(bound.declined) and bound.default_config()["split_k"] == 1


def test_groups_of_a_program_each_run_at_the_same_time() -> None:
    shapes = (8, 1024, 32, 40), (32, 40), (32, 40)
    config = group_norm_nhwc.bind(tuple(tensor(*each) for each in shapes), target="h200").default_config()
    assert (config["block_sizes"], config["split_k"], config["num_warps"]) == ([256, 256], 1, 8)
    assert config["loop_orders"] == [[1, 0]]


def test_grids_of_many_tiles_are_not_shared() -> None:
    bound = batch_norm_columns.bind((tensor(512, 65536), tensor(65536), tensor(65536)), target="h200")
    assert bound.default_config()["split_k"] == 1
    assert "TritonSplitReductionHeuristic" not in [seed.heuristic for seed in bound.seeds]
