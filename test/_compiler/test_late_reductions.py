"""Reductions run after the loop that accumulates them, wherever the loop does nothing else with their sum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from harness import facts_of, tensor

import helion
import helion.language as hl
from helion._compiler.rewrites.late_reductions.threads import Lanes, folds_of

F32 = torch.float32


def backward_sums(dy: torch.Tensor, x: torch.Tensor, mean: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    n, c, s = x.shape
    first = torch.empty([c], dtype=torch.float32, device=x.device)
    second = torch.empty([c], dtype=torch.float32, device=x.device)
    for tile_c in hl.tile(c):
        a = hl.zeros([tile_c], dtype=torch.float32)
        b = hl.zeros([tile_c], dtype=torch.float32)
        for tile_n, tile_s in hl.tile([n, s]):
            grad = dy[tile_n, tile_c, tile_s].to(torch.float32)
            value = x[tile_n, tile_c, tile_s].to(torch.float32) - mean[tile_c][None, :, None]
            a += grad.sum(dim=(0, 2))
            b += (grad * value).sum(dim=(0, 2))
        first[tile_c] = a
        second[tile_c] = b
    return first, second


def backward_sums_wanted(dy: torch.Tensor, x: torch.Tensor, mean: torch.Tensor) -> tuple[torch.Tensor, ...]:
    grad = dy.double()
    return grad.sum((0, 2)), (grad * (x.double() - mean.double()[None, :, None])).sum((0, 2))


def nested(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    n, c, s = x.shape
    total = torch.empty([c], dtype=torch.float32, device=x.device)
    most = torch.empty([c], dtype=x.dtype, device=x.device)
    for tile_c in hl.tile(c):
        a = hl.zeros([tile_c], dtype=torch.float32)
        b = hl.full([tile_c], float("-inf"), dtype=torch.float32)
        for tile_n in hl.tile(n):
            for tile_s in hl.tile(s):
                value = x[tile_n, tile_c, tile_s]
                a += (value.to(torch.float32) + 1).sum(2).sum(0)
                b = torch.maximum(b, value.amax(2).amax(0).to(torch.float32))
        total[tile_c] = a
        most[tile_c] = b.to(x.dtype)
    return total, most


def nested_wanted(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x.double() + 1).sum((0, 2)), x.amax((0, 2))


def middle(x: torch.Tensor) -> torch.Tensor:
    b, m, n = x.shape
    out = torch.empty([b, n], dtype=torch.float32, device=x.device)
    for tile_b, tile_n in hl.tile([b, n]):
        squares = hl.zeros([tile_b, tile_n], dtype=torch.float32)
        for tile_m in hl.tile(m):
            value = x[tile_b, tile_m, tile_n].to(torch.float32)
            squares += (value * value).sum(1)
        out[tile_b, tile_n] = torch.sqrt(squares / m)
    return out


def middle_wanted(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x.double().square().mean(1).sqrt(),)


def counts(x: torch.Tensor, begin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    m, n = x.shape
    out = torch.empty([m], dtype=torch.int64, device=x.device)
    least = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        count = begin[tile_m]
        low = x[tile_m, 0].to(torch.float32)
        for tile_n in hl.tile(n):
            value = x[tile_m, tile_n].to(torch.float32)
            count = count + (value > 0).sum(-1)
            low = torch.minimum(low, value.amin(-1))
        out[tile_m] = count
        least[tile_m] = low
    return out, least


def counts_wanted(x: torch.Tensor, begin: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return begin + (x > 0).sum(-1), x.amin(-1)


def two_terms(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    m, n = x.shape
    out = torch.empty([m, 1], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, 1], dtype=torch.float32)
        for tile_n in hl.tile(n):
            acc = x[tile_m, tile_n].to(torch.float32).sum(-1, keepdim=True) + acc
            acc += bias[tile_m][:, None]
            acc += torch.exp(y[tile_m, tile_n].to(torch.float32)).sum(-1)[:, None]
        out[tile_m, :] = acc
    return out


def jagged(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(x.size(0), block_size=1):
        acc = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(2, lengths[tile_m.begin]):
            acc += (x[tile_m, tile_n].to(torch.float32) + 1).sum(-1)
        out[tile_m] = acc
    return out


def jagged_wanted(x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (torch.stack([(row[2 : int(n)].double() + 1).sum() for row, n in zip(x, lengths, strict=True)]),)


def gradients(g: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    t, n = g.shape
    k = x.size(1)
    weight = torch.empty([n, k], dtype=torch.float32, device=g.device)
    bias = torch.empty([n], dtype=torch.float32, device=g.device)
    for tile_n, tile_k in hl.tile([n, k]):
        acc = hl.zeros([tile_n, tile_k], dtype=torch.float32)
        sums = hl.zeros([tile_n], dtype=torch.float32)
        for tile_t in hl.tile(t):
            rows = g[tile_t, tile_n]
            acc = torch.addmm(acc, rows.T, x[tile_t, tile_k])
            sums += rows.to(torch.float32).sum(0)
        weight[tile_n, tile_k] = acc
        if tile_k.begin == 0:
            bias[tile_n] = sums
    return weight, bias


def gradients_wanted(g: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return g.double().T @ x.double(), g.double().sum(0)


def values(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[[], tuple[Any, ...]], list[list[int]]]] = {
    "backward_sums": (
        backward_sums,
        backward_sums_wanted,
        lambda: (values(5, 3, 331), values(5, 3, 331), values(3, dtype=F32)),
        [[1, 2, 128], [2, 4, 64], [1, 1, 256], [4, 1, 32]],
    ),
    "nested": (
        nested,
        nested_wanted,
        lambda: (values(5, 3, 331),),
        [[1, 2, 128], [2, 4, 64], [1, 1, 256], [2, 1, 512]],
    ),
    "middle": (middle, middle_wanted, lambda: (values(3, 301, 72),), [[1, 64, 64], [2, 16, 32], [1, 128, 16]]),
    "counts": (
        counts,
        counts_wanted,
        lambda: (values(7, 1000, dtype=F32), torch.arange(7)),
        [[1, 128], [4, 64], [8, 16]],
    ),
    "jagged": (
        jagged,
        jagged_wanted,
        lambda: (values(6, 301), torch.tensor([0, 2, 63, 301, 3, 129], dtype=torch.int32)),
        [[64], [16]],
    ),
    "gradients": (
        gradients,
        gradients_wanted,
        lambda: (values(301, 72), values(301, 40)),
        [[64, 16, 32], [16, 32, 64]],
    ),
}


def loop_lines(code: str) -> list[str]:
    """Return the lines of the loops of a kernel."""
    return [line for line in code.split("@triton.jit")[-1].splitlines() if line.startswith(" " * 8)]


def code_of(function: Callable[..., Any], args: tuple[Any, ...], *sizes: int, warps: int = 4, **settings: Any) -> str:
    kernel = helion.kernel(function, backend="triton", **settings)
    return kernel.bind(args, target="sm_90").to_triton_code(helion.Config(block_sizes=list(sizes), num_warps=warps))


def moved(code: str) -> bool:
    """Return whether the loops of a kernel accumulate tiles."""
    return any("_tile" in line.split("=")[0] for line in loop_lines(code))


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, static: bool) -> None:
    """Tails are odd, and programs of few threads have several elements of each result."""
    function, wanted, make, tiles = CASES[name]
    args = make()
    kernel = helion.kernel(function, static_shapes=static, backend="triton", autotune_effort="none")
    bound = kernel.bind(args)
    for sizes in tiles:
        for warps in (1, 4):
            config = helion.Config(block_sizes=sizes, num_warps=warps)
            found = bound.compile_config(config)(*args)
            for got, want in zip(found if isinstance(found, tuple) else (found,), wanted(*args), strict=True):
                assert torch.allclose(got.double(), want.double(), rtol=2e-6, atol=1e-4), (sizes, warps)


@pytest.mark.parametrize("name", CASES)
def test_loops_reduce_nothing_but_the_elements_of_a_thread(name: str) -> None:
    function, _, make, tiles = CASES[name]
    code = code_of(function, make(), *tiles[0])
    assert moved(code)
    # a reduction in the loop is of a reshaped tile, over a dimension that is in one thread
    reduced = [line for line in loop_lines(code) if "tl.sum(" in line or "tl.reduce(" in line]
    reshaped = [line for line in loop_lines(code) if "tl.reshape(" in line]
    assert len(reduced) == len(reshaped)
    assert not any("tl.sum(tl.sum(" in line for line in reduced)


def test_nested_loops_carry_one_tile() -> None:
    """The inner loop begins with the tile of the outer one, and nothing is reduced between them."""
    code = code_of(nested, CASES["nested"][2](), 1, 2, 128, warps=8)
    inside = [line for line in loop_lines(code) if "tl.sum(" in line or "tl.reduce(" in line or "tl.full(" in line]
    assert inside == []


def test_an_accumulator_keeps_terms_that_no_reduction_is_part_of() -> None:
    x, y, bias = values(7, 300), values(7, 300), values(7, dtype=F32)
    config = helion.Config(block_sizes=[2, 64], num_warps=1)
    bound = helion.kernel(two_terms, backend="triton").bind((x, y, bias))
    code = bound.to_triton_code(config)
    assert moved(code)
    assert sum("_tile" in line.split("=")[0] for line in loop_lines(code)) == 2
    wanted = x.double().sum(-1) + y.double().exp().sum(-1) + 5 * bias.double()
    assert torch.allclose(bound.compile_config(config)(x, y, bias)[:, 0].double(), wanted, rtol=1e-6, atol=1e-4)


def decayed(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(x.size(0)):
        acc = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(x.size(1)):
            acc = acc * 0.5 + x[tile_m, tile_n].to(torch.float32).sum(-1)
        out[tile_m] = acc
    return out


def read_in_the_loop(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), x.size(1)], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(x.size(0)):
        acc = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(x.size(1)):
            acc += x[tile_m, tile_n].to(torch.float32).sum(-1)
            out[tile_m, tile_n] = acc[:, None] + x[tile_m, tile_n]
    return out


def decayed_in_an_inner_loop(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(x.size(0)):
        acc = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(x.size(1)):
            acc += x[tile_m, tile_n].to(torch.float32).sum(-1)
            for _ in hl.tile(x.size(0)):
                acc = acc * 0.5
        out[tile_m] = acc
    return out


def highest_of_sums(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(x.size(0)):
        acc = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(x.size(1)):
            acc = torch.maximum(acc, x[tile_m, tile_n].to(torch.float32).sum(-1))
        out[tile_m] = acc
    return out


def rounded_in_each_step(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(x.size(0)):
        acc = hl.zeros([tile_m], dtype=x.dtype)
        for tile_n in hl.tile(x.size(1)):
            acc += x[tile_m, tile_n].sum(-1)
        out[tile_m] = acc
    return out


def rounded_sums(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(x.size(0)):
        acc = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(x.size(1)):
            acc += x[tile_m, tile_n].sum(-1).to(torch.float32)
        out[tile_m] = acc
    return out


def read_once(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(x.size(0)):
        acc = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(x.size(1)):
            acc += x[tile_m, tile_n].to(torch.float32).sum(-1)
        out[tile_m] = acc
    return out


def read_twice(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), 2], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(x.size(0)):
        first = hl.zeros([tile_m], dtype=torch.float32)
        second = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(x.size(1)):
            total = x[tile_m, tile_n].to(torch.float32).sum(-1)
            first += total
            second += total * total
        out[tile_m, 0] = first
        out[tile_m, 1] = second
    return out


def with_a_matmul(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    m, n = x.size(0), y.size(1)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    squares = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n], block_size=[None, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile_k in hl.tile(x.size(1)):
            a = x[tile_m, tile_k]
            acc = torch.addmm(acc, a, y[tile_k, tile_n])
            total += a.to(torch.float32).pow(2).sum(-1)
        out[tile_m, tile_n] = acc
        squares[tile_m] = total
    return out, squares


@pytest.mark.parametrize(
    "function",
    [
        decayed,
        read_in_the_loop,
        decayed_in_an_inner_loop,
        highest_of_sums,
        rounded_in_each_step,
        rounded_sums,
        read_twice,
    ],
)
def test_other_accumulators_are_reduced_in_each_step(function: Callable[..., Any]) -> None:
    args = (tensor(128, 4096),)
    sizes = [16, 256, 32] if function is decayed_in_an_inner_loop else [16, 256]
    assert not moved(code_of(function, args, *sizes, warps=4))
    assert not facts_of(function, *args).late_reductions


def summed_scores(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    n = x.size(0)
    out = torch.empty([n], dtype=torch.float32, device=x.device)
    for tile_n in hl.tile(n):
        total = hl.zeros([tile_n], dtype=torch.float32)
        for tile_m in hl.tile(y.size(0)):
            scores = torch.sigmoid(hl.dot(y[tile_m, :], x[tile_n, :].T)) * y[tile_m, 0][:, None]
            total += scores.sum(0)
        out[tile_n] = total
    return out


def test_loops_with_matmuls_reduce_rows_and_results_in_each_step() -> None:
    """Lanes of one warp share a row, and a result has the threads that the matrix unit gives it."""
    args = (tensor(128, 4096), tensor(4096, 64))
    assert not moved(code_of(with_a_matmul, args, 64, 64, warps=4))
    (fact,) = facts_of(with_a_matmul, *args).late_reductions
    assert fact.multiplies and not fact.may_run({0: 64, 1: 64, 2: 64}, 128)
    args = (tensor(4096, 64), tensor(4096, 64))
    assert not moved(code_of(summed_scores, args, 64, 64, warps=4))
    assert not facts_of(summed_scores, *args).late_reductions


def test_columns_beside_a_matmul_are_reduced_later_in_few_registers() -> None:
    args = (tensor(4096, 1024), tensor(4096, 1024))
    (fact,) = facts_of(gradients, *args).late_reductions
    for warps, k, late in ((8, 64, True), (4, 64, True), (1, 64, False), (8, 2048, False)):
        assert fact.may_run({0: 128, 1: 128, 2: k}, 32 * warps) == late
        assert moved(code_of(gradients, args, 128, 128, k, warps=warps)) == late


def test_a_loop_of_few_steps_reduces_inside() -> None:
    (x,) = CASES["middle"][2]()
    assert moved(code_of(middle, (x,), 1, 16, 64))
    assert not moved(code_of(middle, (x,), 1, 16, 128))


def test_threads_with_many_loads_of_a_tensor_reduce_in_each_step() -> None:
    """Rows of 4099 elements begin anywhere, so that a load has one element."""
    assert moved(code_of(middle, (tensor(2, 4096, 4096),), 1, 64, 128, warps=4))
    assert not moved(code_of(middle, (tensor(2, 4096, 4096),), 1, 64, 128, warps=2))
    assert not moved(code_of(middle, (tensor(2, 4096, 4099),), 1, 64, 128, warps=4))
    assert moved(code_of(middle, (tensor(2, 4096, 4099),), 1, 64, 128, warps=32))


def test_an_inner_loop_of_one_step_passes_its_tile_on() -> None:
    (x,) = CASES["nested"][2]()
    inside = [line for line in loop_lines(code_of(nested, (x,), 1, 1, 512)) if "tl.sum(" in line]
    assert inside == []
    assert not moved(code_of(nested, (x,), 1, 8, 512))
    (fact, _) = facts_of(nested, x).late_reductions
    assert [fact.repeats({0: 1, 1: n, 2: 512}) for n in (1, 8)] == [True, False]


def test_registers_limit_the_tiles() -> None:
    """Two tiles of 128 elements a thread do not fit: these are results of their own, which no thread may combine."""
    args = (tensor(4, 4096, 4096), tensor(4, 4096, 4096), tensor(4096, dtype=F32))
    assert moved(code_of(backward_sums, args, 8, 1, 64, warps=2))
    assert not moved(code_of(backward_sums, args, 128, 1, 64, warps=2))


def test_results_of_single_threads_stay_in_the_loop() -> None:
    """256 columns of vectors take all threads of four warps, so that each sums its own rows."""
    x = tensor(2, 4096, 4096)
    assert not moved(code_of(middle, (x,), 1, 1024, 16, warps=4))
    assert moved(code_of(middle, (x,), 1, 256, 16, warps=4))


@pytest.mark.parametrize(
    ("lanes", "reduced", "first", "threads", "folds", "sharing"),
    [
        ((1, 1, 2048), (0, 2), 2, 128, (1, 1, 2), 128),
        ((64, 1, 256), (0, 2), 2, 256, (8, 1, 1), 256),
        ((1, 128, 64), (1,), 2, 256, (1, 4, 1), 32),
        ((1, 128, 64), (2,), 2, 256, (1, 1, 1), 8),
        ((1, 16, 1024), (1,), 2, 128, (1, 16, 1), 1),
        ((8, 8), (0,), 1, 128, (1, 1), 8),
        # either of two dimensions may be the next one
        ((16, 2, 256), (0, 2), 2, 512, (1, 1, 1), 256),
        ((64, 2, 256), (0, 2), 2, 512, (4, 1, 1), 256),
        ((64, 128), (0,), None, 128, (1, 1), 8),
    ],
)
def test_threads(
    lanes: tuple[int, ...],
    reduced: tuple[int, ...],
    first: int | None,
    threads: int,
    folds: tuple[int, ...],
    sharing: int,
) -> None:
    found = folds_of(lanes, reduced, Lanes(first=first, vector=8, vectors=(8,)), threads)
    assert (found.folds, found.sharing) == (folds, sharing)


def test_rows_that_are_read_from_a_multiple_on_have_as_many_elements_in_a_thread() -> None:
    """Loads of rows of 10001 elements are aligned after the loop has its steps, so that vectors are as long as possible."""
    x = tensor(5, 10001)
    bound = helion.kernel(read_once, backend="triton").bind((x,), target="sm_90")
    code = bound.to_triton_code(helion.Config(block_sizes=[1, 2048], num_warps=32))
    assert "tl.multiple_of" in code and moved(code) and "tl.reshape" not in code


def test_facts_name_the_region_after_the_outermost_loop() -> None:
    facts = facts_of(nested, tensor(64, 256, 3136))
    assert {fact.after for fact in facts.late_reductions} == {0}
    assert {fact.region for fact in facts.late_reductions} == {2}
    assert all(fact.after == 0 for fact in facts.reductions)


def test_the_model_counts_exchanges_once() -> None:
    """A tile of few elements takes most of its time in exchanges when each step has them."""
    args = (tensor(64, 256, 3136), tensor(64, 256, 3136), tensor(256, dtype=F32))
    analysis = helion.kernel(backward_sums, backend="triton").bind(args, target="h200")._analysis
    config = helion.Config(block_sizes=[1, 1, 2048], num_warps=4, num_stages=1)
    late = analysis.predict(analysis.full_config(config))
    facts = replace(
        analysis.facts,
        late_reductions=(),
        reductions=tuple(replace(fact, after=None) for fact in analysis.facts.reductions),
    )
    decisions = analysis.space.decode(analysis.full_config(config))
    inside = analysis.backend.predict(facts, decisions, analysis.target)
    assert late.time_us < 0.8 * inside.time_us
    assert late.registers_per_thread > inside.registers_per_thread
