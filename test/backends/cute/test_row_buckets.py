"""Row kernels whose number of columns only the launch knows: one plan for a bucket, on simulated threads and the CPU."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from backends.cute.row_device import run_rows
from backends.cute.test_row_kernels import (
    EPS,
    H100,
    argmax,
    close,
    cross_entropy,
    layer_norm,
    numbers,
    rms_norm,
    row_sum,
    softmax,
    softmax_backward,
    softmax_loops,
)
from harness import program_of, tensor

import helion
import helion.language as hl
from helion import exc
from helion._compiler.ir.grammar import Program
from helion.backends.cute.execute.problems import check_columns
from helion.backends.cute.lower.rowwise.rows import rows_of
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.plan.rowwise.buckets import bucket_of
from helion.backends.cute.plan.rowwise.choice import RowChoice
from helion.backends.cute.plan.rowwise.layout import layout_of
from helion.backends.cute.plan.rowwise.passes import demand_of
from helion.backends.cute.plan.rowwise.records import SIZE_M, SIZE_N, RowLayout, RowPlan
from helion.backends.cute.verify.rowwise.lengths import check_lengths
from helion.backends.cute.verify.state import Fault

Launch = Callable[..., None]


def bound(
    fn: Callable[..., None],
    arguments: Sequence[torch.Tensor],
    choice: RowChoice,
    span: int = 0,
    program: Program | None = None,
) -> Launch:
    """Return a function that runs the plan for these arguments on others, whose rows may have other lengths."""
    like = [torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device="meta") for each in arguments]
    program = program or program_of(fn, *like, static_shapes=False)
    kernel = rows_of(program)
    layout = layout_of(demand_of(kernel.problem), choice, H100)
    limits = {"shared_limit_bytes": H100.smem_per_block_bytes, "registers_per_sm": H100.registers_per_sm}
    problem = dataclasses.replace(kernel.problem, span=span)
    plan = RowPlan(problem=problem, layout=layout, unit="wgmma", **limits)

    def launch(*given: torch.Tensor) -> None:
        names = dict(zip(inspect.signature(fn).parameters, given, strict=True))
        allocated = {"parts": torch.full((-(-len(given[0]) // SPAN), given[0].shape[1]), 7.0)}

        def value(at: Any) -> Any:
            if isinstance(at, int):
                return {**allocated, **names}.get(program.tensors[at].name, given[0])
            return at.evaluate(lambda leaf: eval(program.host.symbols[leaf.args[0]], {}, names))

        numbers = {name: value(number) for name, number in kernel.runtime}
        ((_, bucket),) = kernel.ranges
        assert numbers[SIZE_N] in bucket
        others = [number for name, number in numbers.items() if name != SIZE_M]
        outputs, operands = [*map(value, kernel.outputs)], [*map(value, kernel.operands)]
        run_rows(plan, outputs, operands, numbers[SIZE_M], 2, others)

    return launch


SPAN = 4
"""Rows of a block of the kernel with sums over rows."""


def layer_gradients(x, w, grad, out, weights, biases):
    for block in hl.tile(x.size(0), block_size=SPAN):
        of_weight, of_bias = torch.zeros_like(w[:].to(torch.float32)), torch.zeros_like(w[:].to(torch.float32))
        for tile in hl.tile(block.begin, block.end):
            row, given = x[tile, :].to(torch.float32), grad[tile, :].to(torch.float32)
            centred = row - row.mean(-1, keepdim=True)
            scale = torch.rsqrt((centred * centred).mean(-1, keepdim=True) + EPS)
            hat, slope = centred * scale, given * w[:].to(torch.float32)
            along = (slope * hat).mean(-1, keepdim=True)
            out[tile, :] = (scale * (slope - slope.mean(-1, keepdim=True) - hat * along)).to(out.dtype)
            of_bias += given.sum(0)
            of_weight += (given * hat).sum(0)
        weights[block.id, :] = of_weight
        biases[block.id, :] = of_bias


def square_totals(x, out, totals):
    parts = torch.empty([helion.cdiv(x.size(0), SPAN), x.size(1)], dtype=torch.float32, device=x.device)
    for block in hl.tile(x.size(0), block_size=SPAN):
        acc = torch.zeros_like(x[0, :], dtype=torch.float32)
        for tile in hl.tile(block.begin, block.end):
            row = x[tile, :].to(torch.float32)
            out[tile, :] = (row - row.mean(-1, keepdim=True)).to(out.dtype)
            acc += (row * row).sum(0)
        parts[block.id, :] = acc
    hl.barrier()
    for columns in hl.tile(x.size(1)):
        total = hl.zeros([columns], dtype=torch.float32)
        for lines in hl.tile(parts.size(0)):
            total += parts[lines, columns].sum(0)
        totals[columns] = total


def masked_logsumexp(x, mask, out):
    for tile in hl.tile(x.size(0)):
        out[tile] = torch.logsumexp(torch.where(mask[tile, :], x[tile, :].to(torch.float32), -1e30), -1)


CHOICES = (
    RowChoice(cluster=1, warps=4, rows=2, ctas_per_sm=1),
    RowChoice(cluster=1, warps=4),
    RowChoice(cluster=2, warps=8, ctas_per_sm=1),
    RowChoice(cluster=4, warps=8, keep="shared"),
)
LENGTHS = {1000: (904, 1000, 1024), 1008: (912, 1008, 1024), 1001: (897, 1001, 1023), 2048: (1800, 2048)}
"""Lengths of rows for the one with which a kernel is bound; the first and the last of a bucket among them."""


def norms(
    n: int, m: int, dtype: torch.dtype
) -> list[tuple[Callable[..., None], tuple[torch.Tensor, ...], torch.Tensor]]:
    x, w, b = numbers(m, n, dtype=dtype), numbers(n, dtype=dtype, seed=1), numbers(n, dtype=dtype, seed=2)
    wide, grad, y = x.double(), numbers(m, n, dtype=dtype, seed=3), torch.softmax(x.float(), -1).to(dtype)
    slope = y.double() * (grad.double() - (y.double() * grad.double()).sum(-1, keepdim=True))
    return [
        (rms_norm, (x, w), wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * w.double()),
        (layer_norm, (x, w, b), torch.nn.functional.layer_norm(wide, (n,), w.double(), b.double(), EPS)),
        (softmax, (x,), torch.softmax(wide, -1)),
        (softmax_loops, (x,), torch.softmax(wide, -1)),
        (softmax_backward, (y, grad), slope),
    ]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize(("n", "dtype"), [(1000, torch.bfloat16), (1001, torch.float32), (1001, torch.bfloat16), (2048, torch.float16)])  # fmt: skip
def test_a_plan_serves_all_lengths_of_its_bucket(choice: RowChoice, n: int, dtype: torch.dtype) -> None:
    first = [bound(fn, (*inputs, inputs[0]), choice) for fn, inputs, _ in norms(n, 6, dtype)]
    for m, length in zip((5, 9, 1), LENGTHS[n], strict=False):
        for launch, (fn, inputs, want) in zip(first, norms(length, m, dtype), strict=True):
            out = torch.full_like(inputs[0], 7.0)
            launch(*inputs, out)
            assert close(out, want), (fn.__name__, length)


@pytest.mark.parametrize("choice", [RowChoice(warps=4, ctas_per_sm=1), RowChoice(cluster=2, ctas_per_sm=1)], ids=str)
@pytest.mark.parametrize("n", [1000, 1001])
def test_sums_over_rows(choice: RowChoice, n: int) -> None:
    """Rows begin at granules, or at several places of one: then a CTA has the same columns of all rows."""

    def given(n: int, m: int) -> tuple[torch.Tensor, ...]:
        x, grad, w = numbers(m, n), numbers(m, n, seed=1), numbers(n, seed=2)
        return (x, w, grad, torch.full_like(x, 7.0), *(torch.full((-(-m // SPAN), n), 7.0) for _ in range(2)))

    first = given(n, 6)
    layer = bound(layer_gradients, first, choice, SPAN)
    squares = bound(square_totals, (first[0], first[3], first[4][0]), choice, SPAN)
    for m, length in zip((11, 5, 3), LENGTHS[n], strict=True):
        x, w, grad, out, weights, biases = given(length, m)
        wide = x.double()
        layer(x, w, grad, out, weights, biases)
        hat = torch.nn.functional.layer_norm(wide, (length,), eps=EPS)
        assert close(biases, sums(grad.double()))
        assert ((weights.double() - sums(grad.double() * hat)).abs() <= 2e-6 * sums(grad.double().abs())).all()
        total = torch.full((length,), 7.0)
        squares(x, torch.full_like(x, 7.0), total)
        assert close(total[None], wide.square().sum(0, keepdim=True))


def sums(rows: torch.Tensor) -> torch.Tensor:
    return torch.stack([each.sum(0) for each in rows.split(SPAN)])


@pytest.mark.parametrize("n", [1008, 1001])
def test_numbers_of_rows(n: int) -> None:
    """Gathers step by the columns of the launch; masks, lengths and positions count them."""
    choice = CHOICES[2]

    def given(n: int, m: int) -> tuple[torch.Tensor, ...]:
        x, mask = numbers(m, n, seed=n), torch.rand(m, n) < 0.7
        return x, mask, torch.randint(n, (m,)), torch.rand(m), torch.full((m,), 7.0)

    x, mask, labels, weight, out = given(n, 6)
    place = torch.zeros(6, dtype=torch.int64)
    masked = bound(masked_logsumexp, (x, mask, out), choice)
    loss = bound(cross_entropy, (x, labels, weight, out), choice)
    largest, added = bound(argmax, (x, place, out), choice), bound(row_sum, (x, out), choice)
    for m, width in zip((5, 9, 1), LENGTHS[n], strict=True):
        x, mask, labels, weight, out = given(width, m)
        wide, place = x.double(), torch.zeros(m, dtype=torch.int64)
        masked(x, mask, out)
        assert close(out, torch.logsumexp(torch.where(mask, wide, -1e30), -1))
        loss(x, labels, weight, out := torch.full((m,), 7.0))
        picked = wide.gather(1, labels[:, None])[:, 0]
        assert close(out, (torch.logsumexp(wide, -1) - picked * 0.5) * weight.double())
        largest(x, place, out := torch.full((m,), 7.0))
        assert torch.equal(place, x.float().argmax(-1)) and torch.equal(out, x.float().amax(-1))
        added(x, out := torch.full((m,), 7.0))
        assert close(out, wide.sum(-1))


def layouts() -> list[RowLayout]:
    """Return layouts of buckets, in one CTA and in eight."""
    choices = RowChoice(warps=16, ctas_per_sm=1, keep="shared"), RowChoice(cluster=8, warps=8, ctas_per_sm=1)
    programs = [program_of(softmax, *(tensor(7, n) for _ in range(2)), static_shapes=False) for n in (12008, 20011)]
    return [layout_of(demand_of(rows_of(each).problem), choice, H100) for each in programs for choice in choices]


def test_planted_faults_of_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks that are left out where a shorter row ends, slices that leave granules, and too few granules of threads."""
    for layout in layouts():
        check_lengths(layout)
        longest = dataclasses.replace(layout, demand=dataclasses.replace(layout.demand, least=layout.demand.n))
        sure = longest._sure_granules() + layout.threads
        with monkeypatch.context() as planted, pytest.raises(Fault, match="is not masked, and a row of"):
            planted.setattr(RowLayout, "_sure_granules", lambda self, sure=sure: sure)
            check_lengths(layout)
        with monkeypatch.context() as planted, pytest.raises(Fault, match="leave some of a row"):
            planted.setattr(RowLayout, "slice_at", lambda self, n: n // self.lanes // self.choice.cluster - 1)
            check_lengths(layout)
        with monkeypatch.context() as planted, pytest.raises(Fault, match="with room for"):
            planted.setattr(RowLayout, "slice_at", lambda self, n: n // self.lanes + 3)
            check_lengths(layout)
        fewer = dataclasses.replace(layout)
        vars(fewer)["thread_granules"] = layout.thread_granules - 1
        with pytest.raises(Fault, match="threads leave some granules"):
            check_lengths(fewer)


def test_buckets_follow_each_other() -> None:
    """Each length has one bucket of its class, and no row has less than four fifths of its longest one's columns."""
    for n in (1, 2, 255, 256, 257, 320, 321, 1000, 1024, 1025, 50257, 131072, 200003):
        for aligned in (True, False):
            if aligned == (n % 16 == 0):
                bucket = bucket_of(n, aligned)
                assert n in bucket and {bucket_of(each, aligned) for each in (bucket[0], bucket[-1])} == {bucket}
                assert bucket[-1] % 16 == (0 if aligned else 15)
                assert n <= 256 or 5 * bucket[0] > 4 * bucket[-1]


def softmax_like(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.softmax(x[tile, :].to(torch.float32), -1).to(out.dtype)
    return out


def test_calls_of_any_length() -> None:
    """A kernel binds anew for another bucket, and for rows that begin elsewhere, and for nothing else."""
    kernel = helion.kernel(softmax_like, backend="cute", static_shapes=False)
    bound: dict[int, list[int]] = {}
    for m, n in ((7, 1003), (3, 1017), (5, 1008), (9, 1024), (5, 2049), (4, 131), (6, 2), (5, 99), (5, 1000)):
        x = numbers(m, n, seed=n)
        assert close(kernel(x), torch.softmax(x.double(), -1)), n
        bound.setdefault(id(kernel.bind((x,))), []).append(n)
    assert [*bound.values()] == [[1003, 1017], [1008, 1024, 1000], [2049], [131], [2], [99]]


def test_other_lengths_are_not_launched() -> None:
    """A bound kernel that is called directly is for the lengths of its bucket, and so is its launch."""
    of_bucket = helion.kernel(softmax_like, backend="cute", static_shapes=False).bind((numbers(7, 1008),))
    for n, number in ((2049, "x_size_1 % 8 == 0 is False"), (2048, "x_size_1 < 1025 is False")):
        with pytest.raises(exc.BoundToOtherArguments, match=number):
            of_bucket(numbers(5, n))
    problem = of_bucket.plan().rows.problem
    check_columns(problem, {SIZE_M: 7, SIZE_N: 904})
    for n in (888, 896, 1025, 1003, 0):
        with pytest.raises(
            Refusal, match=f"rows of {n} columns, and this kernel is for 897 to 1024, in multiples of 8"
        ):
            check_columns(problem, {SIZE_M: 7, SIZE_N: n})


def test_auto_takes_long_rows_of_any_length() -> None:
    """The general backend's one binary is for all lengths: then the ends of a bucket are no condition."""
    auto = helion.kernel(softmax_like, backend="auto", static_shapes=False)
    short, long = (
        auto.bind((torch.empty(4096, n, device="meta", dtype=torch.bfloat16),), target="h200") for n in (1003, 131071)
    )
    of_short, of_long = (tuple(name for name, _, _ in each.variant.specialized.numbers) for each in (short, long))
    assert short.variant.analysis.backend.name == "triton" and of_short == ("x_size_1 % 8 == 0",)
    assert not any(each.backend.name == "cute" for each in short.variant.analysis.alternatives)
    assert long.variant.analysis.backend.name == "cute"
    assert of_long == ("x_size_1 % 8 == 0", "x_size_1 >= 122881", "x_size_1 < 131072")


def padded(x, out):
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.softmax(x[tile, :].to(torch.float32), -1).to(out.dtype)


def merged(x, out):
    rows = x.view(x.size(0), -1)
    for tile in hl.tile(rows.size(0)):
        out[tile] = rows[tile, :].to(torch.float32).sum(-1)


@pytest.mark.parametrize(
    ("fn", "made", "reason"),
    [
        (
            padded,
            lambda: (tensor(7, 1009)[:, :1001], tensor(7, 1001)),
            "are contiguous, unless they are multiples of 8",
        ),
        (
            merged,
            lambda: (tensor(7, 10, 100), tensor(7, dtype=torch.float32)),
            "a number that the host computes; use hl.specialize",
        ),
    ],
)
def test_refusals(fn: Any, made: Any, reason: str) -> None:
    with pytest.raises(exc.CuteUnsupported, match=reason):
        helion.kernel(fn, backend="cute", static_shapes=False).bind(made(), target="h200").to_cute_code()


def test_padded_rows_of_any_length() -> None:
    """Rows of whole granules may have strides of their own, of which only the launch knows the number."""
    first = (numbers(6, 1040)[:, :1000], numbers(6, 1000))
    launch = bound(padded, first, RowChoice(cluster=2, warps=8))
    for m, n, pad in ((5, 904, 16), (3, 1024, 8)):
        x, out = numbers(m, n + pad, seed=n)[:, :n], torch.full((m, n), 7.0, dtype=torch.bfloat16)
        launch(x, out)
        assert close(out, torch.softmax(x.double(), -1))
