"""Row kernels that sum over the rows of blocks: values on simulated threads, the CPU, plans, planted faults, refusals."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from backends.cute.test_row_kernels import close, edited, numbers, prepared, run, without
from harness import tensor

import helion
import helion.language as hl
from examples.layer_norm_backward import layer_norm_backward
from examples.rms_norm_backward import rms_norm_backward
from helion import exc
from helion.backends.cute.codegen.rowwise.module import render
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.plan.rowwise.choice import RowChoice
from helion.backends.cute.plan.rowwise.passes import schedule_of
from helion.backends.cute.roles import grammar as g
from helion.backends.cute.roles.rowwise import program as r
from helion.backends.cute.verify.rowwise.simulate import RowCluster
from helion.backends.cute.verify.rowwise.verify import smaller
from helion.backends.cute.verify.state import Fault

EPS = 1e-5
SPAN = 4
"""Rows of a block of the kernels here."""


def rms_gradients(x, w, grad, out, parts):
    for block in hl.tile(x.size(0), block_size=SPAN):
        acc = hl.zeros([x.size(1)], dtype=torch.float32)
        for tile in hl.tile(block.begin, block.end):
            row, given = x[tile, :].to(torch.float32), grad[tile, :].to(torch.float32)
            scale = torch.rsqrt((row * row).mean(-1, keepdim=True) + EPS)
            slope = given * w[:].to(torch.float32)
            out[tile, :] = (scale * slope - row * scale * scale * scale * (row * slope).mean(-1, keepdim=True)).to(
                out.dtype
            )
            acc += (given * row * scale).sum(0)
        parts[block.id, :] = acc


def layer_gradients(x, w, grad, out, weights, biases):
    for block in hl.tile(x.size(0), block_size=SPAN):
        of_weight, of_bias = hl.zeros([x.size(1)], dtype=torch.float32), hl.zeros([x.size(1)], dtype=torch.float32)
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


CHOICES = (
    RowChoice(cluster=1, warps=1, ctas_per_sm=1),
    RowChoice(cluster=1, warps=4, keep="shared"),
    RowChoice(cluster=2, warps=8),
)
OVERLAPPED = (
    RowChoice(cluster=1, warps=4, keep="shared", overlap=True),
    RowChoice(cluster=2, warps=8, ctas_per_sm=1, keep="shared", overlap=True),
)


def _blocks(rows: torch.Tensor) -> torch.Tensor:
    return torch.stack([each.sum(0) for each in rows.split(SPAN)])


@pytest.mark.parametrize("choice", (*CHOICES, *OVERLAPPED), ids=str)
@pytest.mark.parametrize(("dtype", "m", "n"), [(torch.bfloat16, 11, 1000), (torch.float32, 4, 1020)])
def test_gradients_of_norms(choice: RowChoice, dtype: torch.dtype, m: int, n: int) -> None:
    x, grad, w = numbers(m, n, dtype=dtype), numbers(m, n, dtype=dtype, seed=1), numbers(n, dtype=dtype, seed=2)
    wide, given, slope = x.double(), grad.double(), grad.double() * w.double()
    out, weights, biases = torch.full_like(x, 7.0), *(torch.full((-(-m // SPAN), n), 7.0) for _ in range(2))
    run(rms_gradients, (x, w, grad, out, weights), choice, SPAN)
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)
    assert close(out, scale * slope - wide * scale**3 * (wide * slope).mean(-1, keepdim=True))
    assert close(weights, _blocks(given * wide * scale))
    run(layer_gradients, (x, w, grad, out, weights, biases), choice, SPAN)
    hat = torch.nn.functional.layer_norm(wide, (n,), eps=EPS)
    scale = torch.rsqrt(wide.var(-1, correction=0, keepdim=True) + EPS)
    want = scale * (slope - slope.mean(-1, keepdim=True) - hat * (slope * hat).mean(-1, keepdim=True))
    relative = 2**-8 if dtype == torch.bfloat16 else 2e-5
    assert ((out.double() - want).abs() <= relative * (want.abs() + 0.1 * slope.abs().mean())).all()
    assert close(biases, _blocks(given))
    assert ((weights.double() - _blocks(given * hat)).abs() <= 1e-5 * _blocks((given * hat).abs())).all()


def test_gradients_of_rows_of_one_warp_that_overlap() -> None:
    """The warp has results of rows ahead as messages to itself."""
    choice = RowChoice(cluster=1, warps=1, ctas_per_sm=1, keep="shared", overlap=True)
    test_gradients_of_norms(choice, torch.bfloat16, 11, 1000)


@pytest.mark.parametrize("keep", ["registers", "shared"])
def test_gradients_of_rows_that_a_warp_loads_itself(keep: str) -> None:
    """The last block has fewer rows than the others."""
    test_gradients_of_norms(RowChoice(cluster=1, warps=1, ctas_per_sm=12, keep=keep), torch.bfloat16, 23, 1000)


def test_a_gradient_of_two_statistics_has_one_exchange() -> None:
    """Its sums about the mean of a row follow from those about elements of its threads, also far from zero."""
    m, n = 5, 1000
    x, grad = numbers(m, n, dtype=torch.float32) + 300, numbers(m, n, dtype=torch.float32, seed=1)
    w = numbers(n, dtype=torch.float32, seed=2)
    given = (x, w, grad, torch.empty_like(x), torch.empty(2, n), torch.empty(2, n))
    for choice in (RowChoice(cluster=2, warps=8), RowChoice(cluster=2, warps=8, keep="shared", ahead=True)):
        _, plan = prepared(layer_gradients, given, choice, SPAN)
        assert schedule_of(plan.problem).meetings == ((0, 1),)
        assert [each.number for each in schedule_of(plan.problem).passes] == [0, 2]
        run(layer_gradients, given, choice, SPAN)
        wide, slope = x.double(), grad.double() * w.double()
        hat = torch.nn.functional.layer_norm(wide, (n,), eps=EPS)
        scale = torch.rsqrt(wide.var(-1, correction=0, keepdim=True) + EPS)
        want = scale * (slope - slope.mean(-1, keepdim=True) - hat * (slope * hat).mean(-1, keepdim=True))
        assert ((given[3].double() - want).abs() <= 1e-4 * slope.abs().mean()).all()
        assert ((given[4].double() - _blocks(grad.double() * hat)).abs() <= 1e-4 * slope.abs().mean()).all()


@pytest.mark.parametrize(("n", "pitch"), [(1000, 1), (1003, 1), (1000, 2)])
def test_vectors_of_16_bits_are_converted_once(n: int, pitch: int) -> None:
    """Each thread has both parts of a granule in fp32, of pairs, of elements, and of vectors with a stride."""
    x, grad, out = (numbers(6, 1008, seed=seed)[:, :n] for seed in range(3))
    w = numbers(n, pitch, seed=4)[:, 0]
    parts = torch.full((2, 1008), 7.0)[:, :n]
    choice = RowChoice(cluster=2, warps=8)
    _, plan = prepared(rms_gradients, (x, w, grad, out, parts), choice, SPAN)
    assert plan.layout.wide and not plan.layout.bulk_vectors and plan.layout.vector_sizes == (4,)
    run(rms_gradients, (x, w, grad, out, parts), choice, SPAN)
    wide, given, slope = x.double(), grad.double(), grad.double() * w.double()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)
    assert close(out, scale * slope - wide * scale**3 * (wide * slope).mean(-1, keepdim=True))
    assert close(parts, _blocks(given * wide * scale))


def test_long_rows_that_begin_anywhere_have_a_layout() -> None:
    x = torch.empty(300, 50257, device="meta")
    parts = torch.empty(75, 50257, device="meta")
    choice = RowChoice(cluster=16, warps=8, ctas_per_sm=1)
    plan = prepared(layer_gradients, (x, x[0], x, x, parts, parts), choice, SPAN)[1]
    assert plan.layout.by_words and plan.layout.registers_needed <= plan.layout.register_limit - 8


def test_rows_of_one_warp_are_read_again() -> None:
    """Between passes registers hold the sums over rows; a row of several warps has a barrier there."""
    x, w = numbers(8, 1000), numbers(1000)
    for warps in (1, 2):
        choice = RowChoice(cluster=1, warps=warps, keep="shared")
        _, plan = prepared(layer_gradients, (x, w, x, x, torch.empty(2, 1000), torch.empty(2, 1000)), choice, SPAN)
        walk = render(r.row_program(plan)).split("def walk_2(")[1].split("def ")[0]
        assert ("renewed(row.thread" in walk) == (warps == 1)
    choice = RowChoice(cluster=1, warps=1, keep="registers")  # the vector alone is read again
    _, plan = prepared(layer_gradients, (x, w, x, x, torch.empty(2, 1000), torch.empty(2, 1000)), choice, SPAN)
    assert "renewed(row.thread" in render(r.row_program(plan)).split("def walk_2(")[1].split("def ")[0]


def test_rows_with_a_gap_after_each_and_an_end_within_a_granule() -> None:
    """Elements after the end of a row are in no sum, and are not stored."""
    x, grad, out = (numbers(9, 1040, seed=seed)[:, :1003] for seed in range(3))
    w, parts = numbers(1003, seed=4), torch.full((3, 1040), 7.0)[:, :1003]
    run(rms_gradients, (x, w, grad, out, parts), RowChoice(warps=2), SPAN)
    wide, given, slope = x.double(), grad.double(), grad.double() * w.double()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)
    assert close(out, scale * slope - wide * scale**3 * (wide * slope).mean(-1, keepdim=True))
    assert close(parts, _blocks(given * wide * scale))


ANYWHERE = (
    (RowChoice(cluster=1, warps=1, ctas_per_sm=1), 1023),
    (RowChoice(cluster=1, warps=4, keep="shared"), 1023),
    (RowChoice(cluster=2, warps=8, ctas_per_sm=1), 3003),
    (RowChoice(cluster=1, warps=8, ctas_per_sm=1, keep="shared"), 1023),
    (RowChoice(cluster=2, warps=8, ctas_per_sm=1, keep="shared", ahead=True), 1023),
    (RowChoice(cluster=2, warps=8, ctas_per_sm=1, keep="shared", overlap=True), 1023),
)
"""Layouts, and the most columns of which registers hold two sums."""


@pytest.mark.parametrize(
    ("choice", "dtype", "m", "n"),
    [
        (choice, dtype, m, n)
        for choice, most in ANYWHERE
        for dtype, m, n in ((torch.bfloat16, 21, 1001), (torch.float32, 19, 1023), (torch.float16, 18, 3003))
        if n <= most
    ],
    ids=str,
)
def test_rows_that_begin_anywhere(choice: RowChoice, dtype: torch.dtype, m: int, n: int) -> None:
    """Rows of a block begin at several places of a granule, and a block may have fewer rows than places."""
    x, grad, w = numbers(m, n, dtype=dtype), numbers(m, n, dtype=dtype, seed=1), numbers(n, dtype=dtype, seed=2)
    _check_anywhere(choice, x, w, grad, dtype)


@pytest.mark.parametrize("choice", [ANYWHERE[2][0], ANYWHERE[-1][0]], ids=str)
def test_rows_that_begin_anywhere_of_types_of_two_sizes(choice: RowChoice) -> None:
    """Threads take granules of the rows that begin at one place, and add their sums to those of columns in memory."""
    x, grad, w = (
        numbers(*shape, dtype=torch.bfloat16, seed=seed) for seed, shape in enumerate([(21, 1001)] * 2 + [(1001,)])
    )
    _check_anywhere(choice, x, w, grad, torch.float32)


@pytest.mark.parametrize(("n", "pitch"), [(1001, 1013), (1002, 1013), (1002, 1014)])
def test_words_of_rows_with_a_gap_after_each(n: int, pitch: int) -> None:
    """A row may begin within a word and have an even number of columns."""
    x, grad, out = (numbers(9, pitch, seed=seed)[:, :n] for seed in range(3))
    w, parts = numbers(n, seed=4), torch.full((3, pitch), 7.0)[:, :n]
    run(rms_gradients, (x, w, grad, out, parts), CHOICES[2], SPAN)
    wide, given, slope = x.double(), grad.double(), grad.double() * w.double()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)
    assert close(out, scale * slope - wide * scale**3 * (wide * slope).mean(-1, keepdim=True))
    assert close(parts, _blocks(given * wide * scale))


def _check_anywhere(
    choice: RowChoice, x: torch.Tensor, w: torch.Tensor, grad: torch.Tensor, dtype: torch.dtype
) -> None:
    """Check gradients of both norms, with blocks of several numbers of rows."""
    (m, n), wide, given, slope = x.shape, x.double(), grad.double(), grad.double() * w.double()
    for span in (3, 16):
        blocks = -(-m // span)
        out, weights, biases = (
            torch.full_like(x, 7.0, dtype=dtype),
            *(torch.full((blocks, n), 7.0) for _ in range(2)),
        )

        def sums(rows: torch.Tensor, span: int = span) -> torch.Tensor:
            return torch.stack([each.sum(0) for each in rows.split(span)])

        run(rms_gradients, (x, w, grad, out, weights), choice, span)
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)
        assert close(out, scale * slope - wide * scale**3 * (wide * slope).mean(-1, keepdim=True))
        assert close(weights, sums(given * wide * scale))
        run(layer_gradients, (x, w, grad, out, weights, biases), choice, span)
        hat = torch.nn.functional.layer_norm(wide, (n,), eps=EPS)
        assert close(biases, sums(given))
        assert ((weights.double() - sums(given * hat)).abs() <= 2e-6 * sums(given.abs())).all()


def test_every_plan_is_free_of_faults() -> None:
    x = numbers(64, 1024)
    arguments = (x, numbers(1024), x, x, torch.empty(16, 1024))
    for choice in CHOICES:
        program = r.row_program(smaller(prepared(rms_gradients, arguments, choice, SPAN)[1]))
        for seed in range(4):
            RowCluster(program, tiles=seed, seed=seed).run()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_plan_of_rows_that_begin_anywhere_is_free_of_faults(dtype: torch.dtype) -> None:
    x = numbers(64, 1001)
    arguments = (x, numbers(1001), x, x.to(dtype), torch.empty(16, 1001))
    for choice in (*CHOICES, *(choice for choice, _ in ANYWHERE[-2:])):
        program = r.row_program(smaller(prepared(rms_gradients, arguments, choice, SPAN)[1]))
        layout = program.plan.layout
        assert layout.by_columns == (x.dtype != dtype) and layout.by_words == (x.dtype == dtype)
        for seed in range(4):
            RowCluster(program, tiles=seed, seed=seed).run()


@pytest.mark.parametrize(
    ("left_out", "message"),
    [
        (0, "are added before all of the one before are|overwrite those of the block before"),
        (1, "are stored before all warps have added theirs"),
    ],
)
def test_planted_faults_of_sums_in_shared_memory(left_out: int, message: str) -> None:
    """A barrier comes before each addition to the sums of columns, and one before they are stored."""
    x = numbers(64, 1001)
    plan = prepared(rms_gradients, (x, numbers(1001), x, x.float(), torch.empty(16, 1001)), CHOICES[2], SPAN)[1]
    program = r.row_program(smaller(plan))
    places = iter(range(9))

    def without(step: Any) -> tuple[Any, ...]:
        return () if step == r.BarrierSync(r.SUMS) and next(places) == left_out else (step,)

    changed = edited(program, without)
    with pytest.raises(Fault, match=message):
        for seed in range(30):
            RowCluster(changed, tiles=2, seed=seed).run()


def _reordered(loop: r.BlockLoop, before: bool, after: bool) -> tuple[Any, ...]:
    """Return a loop without a step, or one that stores before it has read the rows of the block."""
    body = [step for step in loop.body if isinstance(step, r.RowLoop)]
    if len(loop.body) == 1:
        return (loop,)
    first, last = [r.ClearSums()] if before else [], [r.StoreSums()]
    return (dataclasses.replace(loop, body=(*first, *(() if after else last), *body, *(last if after else ()))),)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [(False, True, "sums that were not cleared"), (True, False, "the sums of block 0 have the rows")],
)
def test_planted_faults_of_sums(before: bool, after: bool, message: str) -> None:
    x = numbers(64, 4096)
    program = r.row_program(
        smaller(prepared(rms_gradients, (x, numbers(4096), x, x, torch.empty(16, 4096)), CHOICES[2], SPAN)[1])
    )
    changed = edited(
        program, lambda step: _reordered(step, before, after) if isinstance(step, r.BlockLoop) else (step,)
    )
    with pytest.raises(Fault, match=message):
        RowCluster(changed, tiles=2, seed=0).run()


@pytest.mark.parametrize(("m", "n"), [(16384, 8192), (2048, 131072), (70, 1000)])
def test_examples_are_row_kernels(m: int, n: int) -> None:
    """Their blocks divide the rows among the clusters of the GPU."""
    x, w = tensor(m, n, dtype=torch.bfloat16), tensor(n, dtype=torch.bfloat16)
    for example, arguments in ((rms_norm_backward, (x, x, w)), (layer_norm_backward, (x, x, w, w))):
        bound = helion.kernel(example.fn, backend="cute", ignore_warnings=[exc.TensorOperationInWrapper]).bind(
            arguments, target="h200"
        )
        span = int(bound.seeds[0].config["block_sizes"][0])
        assert f"blocks of {span} rows" in bound.seeds[0].reason
        assert f"blocks = (tiles + {span - 1}) // {span}" in bound.to_cute_code()


@pytest.mark.parametrize(("m", "n", "span", "ctas"), [(2048, 131072, 293, 1), (131072, 1000, 249, 4)])
def test_blocks_are_as_many_as_clusters(m: int, n: int, span: int, ctas: int) -> None:
    """7 clusters of 16 CTAs, or 4 CTAs of each of 132 SMs, have one block each."""
    x, w = tensor(m, n, dtype=torch.bfloat16), tensor(n, dtype=torch.bfloat16)
    kernel = helion.kernel(layer_norm_backward.fn, backend="cute", ignore_warnings=[exc.TensorOperationInWrapper])
    bound = kernel.bind((x, x, w, w), target="h200")
    assert bound.seeds[0].config["block_sizes"][0] == span
    assert f"min_blocks_per_mp={ctas}," in bound.to_cute_code()


def test_a_config_may_ask_for_any_number_of_rows() -> None:
    x, grad, w = numbers(45, 300).float(), numbers(45, 300, seed=1).float(), numbers(300, seed=2).float()
    config = helion.Config(
        block_sizes=[7, 1], cute_row_ctas_per_sm=4, cute_row_warps=2, cute_row_cluster=1, cute_row_ahead=False
    )
    kernel = helion.kernel(
        rms_norm_backward.fn, backend="cute", config=config, ignore_warnings=[exc.TensorOperationInWrapper]
    )
    assert "blocks = (tiles + 6) // 7" in kernel.bind((grad, x, w), target="h200").to_cute_code()
    inputs = [each.double().requires_grad_() for each in (x, w)]
    want = torch.autograd.grad(torch.nn.functional.rms_norm(inputs[0], [300], inputs[1], EPS), inputs, grad.double())
    assert all(close(each, wanted) for each, wanted in zip(kernel(grad, x, w), want, strict=True))


def test_the_cpu_gives_the_sums() -> None:
    kernel = helion.kernel(rms_norm_backward.fn, backend="cute", ignore_warnings=[exc.TensorOperationInWrapper])
    for n in (300, 301):
        x, grad, w = numbers(45, n).float(), numbers(45, n, seed=1).float(), numbers(n, seed=2).float()
        got = kernel(grad, x, w)
        inputs = [each.double().requires_grad_() for each in (x, w)]
        want = torch.autograd.grad(torch.nn.functional.rms_norm(inputs[0], [n], inputs[1], EPS), inputs, grad.double())
        assert all(close(each, wanted) for each, wanted in zip(got, want, strict=True))


def stored_between(x, out, parts):
    for block in hl.tile(x.size(0), block_size=SPAN):
        acc = hl.zeros([x.size(1)], dtype=torch.float32)
        for tile in hl.tile(block.begin, block.end):
            row = x[tile, :].to(torch.float32)
            out[tile] = row.sum(-1)
            acc = acc * 0.5 + row.sum(0)
        parts[block.id, :] = acc


def begun_at_one(x, out, parts):
    for block in hl.tile(x.size(0), block_size=SPAN):
        acc = hl.full([x.size(1)], 1.0, dtype=torch.float32)
        for tile in hl.tile(block.begin, block.end):
            row = x[tile, :].to(torch.float32)
            out[tile] = row.sum(-1)
            acc += row.sum(0)
        parts[block.id, :] = acc


def largest_of_blocks(x, out, parts):
    for block in hl.tile(x.size(0), block_size=SPAN):
        acc = hl.zeros([x.size(1)], dtype=torch.float32)
        for tile in hl.tile(block.begin, block.end):
            row = x[tile, :].to(torch.float32)
            out[tile] = row.sum(-1)
            acc = torch.maximum(acc, torch.amax(row, 0))
        parts[block.id, :] = acc


def of_halves(x, out, parts):
    for block in hl.tile(x.size(0), block_size=SPAN):
        acc = hl.zeros([x.size(1)], dtype=torch.float32)
        for tile in hl.tile(block.begin, block.end):
            row = x[tile, :].to(torch.float32)
            out[tile] = row.sum(-1)
            acc += row.sum(0)
        parts[block.id, :] = acc.to(parts.dtype)


@pytest.mark.parametrize(
    ("fn", "dtype", "reason"),
    [
        (stored_between, torch.float32, "parts is no sum over the rows of a block, one term for each tile"),
        (begun_at_one, torch.float32, "parts is no sum over the rows of a block that begins at 0"),
        (largest_of_blocks, torch.float32, "parts is no sum over the rows of a block, one term for each tile"),
        (of_halves, torch.bfloat16, "sums over rows are stored as bfloat16; float32 is implemented"),
    ],
)
def test_refusals_of_sums(fn: Any, dtype: torch.dtype, reason: str) -> None:
    arguments = tensor(16, 1000), tensor(16), tensor(4, 1000, dtype=dtype)
    with pytest.raises(exc.CuteUnsupported, match=reason):
        helion.kernel(fn, backend="cute").bind(arguments, target="h100").to_cute_code()


def _own_loads(keep: str, m: int = 64) -> r.RowProgram:
    x, parts = numbers(m, 1000), torch.empty(-(-m // SPAN), 1000)
    choice = RowChoice(cluster=1, warps=1, ctas_per_sm=12, keep=keep)
    return r.row_program(smaller(prepared(rms_gradients, (x, x[0], x, x, parts), choice, SPAN)[1]))


@pytest.mark.parametrize("keep", ["registers", "shared"])
def test_a_warp_that_loads_its_own_rows_keeps_its_stages(keep: str) -> None:
    program = _own_loads(keep)
    assert [role.name for role in program.roles] == ["rows"] and program.plan.layout.cta_threads == 32
    for seed in range(4):
        RowCluster(program, tiles=3, seed=seed).run()

    def early(step: g.Step) -> tuple[g.Step, ...]:
        before = r.TakeChunk if keep == "registers" else r.WalkRow
        return (r.Refill("ring_read"), step) if isinstance(step, before) else (step,)

    cursor = "ring_read" if keep == "registers" else ""
    for broken in (without(r.Refill, cursor)(program), without(r.FillRing)(program), edited(program, early)):
        with pytest.raises((Fault, ValueError)):
            RowCluster(broken, tiles=3, seed=0).run()


def test_rows_that_load_themselves_are_of_one_warp_and_have_sums() -> None:
    x, parts = numbers(8, 1000), torch.empty(2, 1000)
    for choice in (RowChoice(cluster=1, warps=2, ctas_per_sm=12), RowChoice(cluster=2, warps=8, ctas_per_sm=12)):
        with pytest.raises(Refusal, match="12 CTAs per SM: more than 8 load their own rows, which is implemented for"):
            prepared(rms_gradients, (x, x[0], x, x, parts), choice, SPAN)


def centred_on_labels(x, labels, scale, out, total, parts):
    flat = x.view(-1)
    for block in hl.tile(x.size(0), block_size=SPAN):
        acc = hl.zeros([x.size(1)], dtype=torch.float32)
        for tile in hl.tile(block.begin, block.end):
            picked = hl.load(flat, [tile.index * x.size(1) + labels[tile]]).to(torch.float32)
            row = x[tile, :].to(torch.float32) - picked[:, None]
            size = (row * row).mean(-1)
            total[tile] = size
            scaled = row * torch.rsqrt(size)[:, None] * scale[tile].to(torch.float32)[:, None]
            out[tile, :] = scaled.to(out.dtype)
            acc += scaled.sum(0)
        parts[block.id, :] = acc


@pytest.mark.parametrize("choice", OVERLAPPED, ids=str)
def test_gathers_and_numbers_of_rows_that_overlap(choice: RowChoice) -> None:
    """The numbers of a row are loaded for its reduction, and again for its map."""
    m, n = 11, 1000
    x, scale = numbers(m, n), numbers(m, dtype=torch.float32, seed=1)
    labels = torch.randint(0, n, (m,), generator=torch.Generator().manual_seed(2))
    out, total, parts = torch.empty_like(x), torch.empty(m), torch.empty(3, n)
    run(centred_on_labels, (x, labels, scale, out, total, parts), choice, SPAN)
    row = x.double() - x.double().gather(1, labels[:, None])
    size = row.square().mean(-1)
    scaled = row * (scale.double() / size.sqrt())[:, None]
    assert close(total, size) and close(out, scaled) and close(parts, _blocks(scaled))
