"""Row kernels: values of the printed text on simulated threads, plans, the protocol with planted faults, and refusals."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from backends.cute.row_device import run_rows
from harness import program_of, tensor

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.codegen.rowwise.module import render
from helion.backends.cute.lower.rowwise.rows import RowKernel, rows_of
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.plan.rowwise.choice import RowChoice
from helion.backends.cute.plan.rowwise.choices import layouts
from helion.backends.cute.plan.rowwise.layout import layout_of
from helion.backends.cute.plan.rowwise.passes import demand_of, schedule_of
from helion.backends.cute.plan.rowwise.records import RowPlan
from helion.backends.cute.roles import grammar as g
from helion.backends.cute.roles.rowwise import program as r
from helion.backends.cute.verify.rowwise.simulate import RowCluster
from helion.backends.cute.verify.rowwise.verify import check_structure, smaller
from helion.backends.cute.verify.state import Fault
from helion.hardware import target

H100 = target("sm_90")
EPS = 1e-5


def rms_norm(x, w, out):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        out[tile, :] = (row * torch.rsqrt((row * row).mean(-1) + EPS)[:, None] * w[:].to(torch.float32)).to(out.dtype)


def layer_norm(x, w, b, out):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        centred = row - row.mean(-1)[:, None]
        scale = torch.rsqrt((centred * centred).mean(-1) + EPS)
        out[tile, :] = (centred * scale[:, None] * w[:].to(torch.float32) + b[:].to(torch.float32)).to(out.dtype)


def softmax(x, out):
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.softmax(x[tile, :].to(torch.float32), dim=-1).to(out.dtype)


def softmax_loops(x, out):
    m, n = x.size()
    for tile_m in hl.tile(m):
        top = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            values = x[tile_m, tile_n].to(torch.float32)
            raised = torch.maximum(top, torch.amax(values, dim=1))
            total = total * torch.exp(top - raised) + torch.exp(values - raised[:, None]).sum(dim=1)
            top = raised
        for tile_n in hl.tile(n):
            values = x[tile_m, tile_n].to(torch.float32)
            out[tile_m, tile_n] = (torch.exp(values - top[:, None]) / total[:, None]).to(out.dtype)


def row_sum(x, out):
    m, n = x.size()
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            acc += x[tile_m, tile_n].to(torch.float32).sum(-1)
        out[tile_m] = acc


def masked_logsumexp(x, mask, length, out):
    for tile in hl.tile(x.size(0)):
        inside = hl.arange(x.size(1))[None, :] < length[tile][:, None]
        row = torch.where(mask[tile, :] & inside, x[tile, :].to(torch.float32), -1e30)
        out[tile] = torch.logsumexp(row, -1)


def add_rms_fp8(x, residual, w, out, low, scale):
    for tile in hl.tile(x.size(0)):
        added = x[tile, :] + residual[tile, :]
        out[tile, :] = added
        row = added.to(torch.float32)
        normed = row * torch.rsqrt((row * row).mean(-1) + EPS)[:, None] * w[:].to(torch.float32)
        step = torch.clamp(torch.amax(torch.abs(normed), -1), min=1e-12) / 448.0
        scale[tile] = step
        low[tile, :] = (normed / step[:, None]).to(torch.float8_e4m3fn)


def softmax_backward(y, grad, out):
    for tile in hl.tile(y.size(0)):
        row, slope = y[tile, :].to(torch.float32), grad[tile, :].to(torch.float32)
        out[tile, :] = (row * (slope - (row * slope).sum(-1)[:, None])).to(out.dtype)


def argmax(x, place, top):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        place[tile] = torch.argmax(row, -1)
        top[tile] = torch.amax(row, -1)


def cross_entropy(x, labels, weight, loss):
    flat = x.view(-1)
    for tile in hl.tile(x.size(0)):
        picked = hl.load(flat, [tile.index * x.size(1) + labels[tile]]).to(torch.float32)
        total = torch.logsumexp(x[tile, :].to(torch.float32), -1)
        loss[tile] = (total - picked * 0.5) * weight[tile]


def about_a_column(x, labels, out):
    flat = x.view(-1)
    for tile in hl.tile(x.size(0)):
        picked = hl.load(flat, [tile.index * x.size(1) + labels[tile]]).to(torch.float32)
        row = x[tile, :].to(torch.float32) - picked[:, None]
        out[tile] = (row * row).sum(-1)


def prepared(
    fn: Callable[..., None], arguments: Sequence[Any], choice: RowChoice, span: int = 0, hidden: bool = False
) -> tuple[RowKernel, RowPlan]:
    given = [torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device="meta") for each in arguments]
    kernel = rows_of(program_of(fn, *given))
    layout = layout_of(demand_of(kernel.problem), choice, H100)
    limits = {"shared_limit_bytes": H100.smem_per_block_bytes, "registers_per_sm": H100.registers_per_sm}
    problem = dataclasses.replace(kernel.problem, span=span, late_sums=choice.overlap, hidden_sums=hidden)
    return kernel, RowPlan(problem=problem, layout=layout, unit="wgmma", **limits)


def run(
    fn: Callable[..., None], arguments: Sequence[torch.Tensor], choice: RowChoice, span: int = 0, hidden: bool = False
) -> None:
    """Run a kernel on simulated threads, in two clusters; outputs are written in place."""
    kernel, plan = prepared(fn, arguments, choice, span, hidden)
    names = [
        tensor_of.name for tensor_of in program_of(fn, *(tensor(*a.shape, dtype=a.dtype) for a in arguments)).tensors
    ]
    given = dict(zip(inspect.signature(fn).parameters, arguments, strict=True))
    outputs = [given[names[at]] for at in kernel.outputs]
    operands = [given.get(names[at], arguments[0]) for at in kernel.operands if isinstance(at, int)]
    run_rows(plan, outputs, operands, plan.problem.m, clusters=2)


def numbers(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 2 + 3).to(dtype)


def close(got: torch.Tensor, want: torch.Tensor) -> bool:
    relative = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float8_e4m3fn: 2**-4}.get(got.dtype, 2e-5)
    size = want.square().mean(-1, keepdim=True).sqrt()
    return bool(((got.double() - want).abs() <= relative * 1.02 * (want.abs() + 0.2 * size)).all())


CHOICES = (
    RowChoice(cluster=1, warps=1, rows=4),
    RowChoice(cluster=1, warps=4),
    RowChoice(cluster=2, warps=8),
    RowChoice(cluster=1, warps=2, rows=2, ctas_per_sm=1, keep="shared"),
)
SIZES = ((5, 1000), (7, 255), (3, 1001), (3, 4099))


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
def test_norms_and_softmax_are_right_for_any_length(choice: RowChoice, dtype: torch.dtype) -> None:
    for m, n in SIZES:
        x, w, b = numbers(m, n, dtype=dtype), numbers(n, dtype=dtype, seed=1), numbers(n, dtype=dtype, seed=2)
        wide = x.double()
        cases = [
            (rms_norm, (x, w), wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * w.double()),
            (layer_norm, (x, w, b), torch.nn.functional.layer_norm(wide, (n,), w.double(), b.double(), EPS)),
            (softmax, (x,), torch.softmax(wide, -1)),
        ]
        for fn, inputs, want in cases:
            out = torch.full_like(x, 7.0)
            try:
                run(fn, (*inputs, out), choice)
            except Refusal:
                assert choice.rows > 1 and n > 4000
                continue
            assert close(out, want), (fn.__name__, m, n)


def test_loops_over_tiles_are_one_pass() -> None:
    x = numbers(3, 2003)
    out = torch.full_like(x, 7.0)
    run(softmax_loops, (x, out), RowChoice(cluster=2, warps=8))
    assert close(out, torch.softmax(x.double(), -1))
    kernel, _ = prepared(softmax_loops, (x, out), RowChoice())
    assert len(kernel.problem.inputs) == 1  # the second load is a held value
    assert schedule_of(kernel.problem).meetings == ((0, 1),)


def reductions_of_lanes(x, total, top):
    block = hl.register_block_size(x.size(1))
    for tile in hl.tile(x.size(0)):
        sums = hl.zeros([tile, block])
        largest = hl.full([tile, block], float("-inf"), dtype=torch.float32)
        for columns in hl.tile(x.size(1), block_size=block):
            row = x[tile, columns].to(torch.float32)
            sums += torch.exp(row * 0.1)
            largest = torch.maximum(largest, row)
        total[tile] = sums.sum(-1) / x.size(1)
        top[tile] = torch.amax(largest, -1)


def test_lanes_that_are_reduced_after_the_loop() -> None:
    """Lanes after the last column, where exp(0) is 1, are no part of the sum."""
    x, total, top = numbers(5, 1003), torch.full((5,), 7.0), torch.full((5,), 7.0)
    run(reductions_of_lanes, (x, total, top), RowChoice(cluster=2, warps=8))
    assert close(total, torch.exp(x.double() * 0.1).mean(-1))
    assert torch.equal(top, x.float().amax(-1))


def test_a_row_that_is_not_held_may_have_any_length() -> None:
    x, out = numbers(2, 40003, dtype=torch.float32), torch.full((2,), 7.0)
    choice = RowChoice(cluster=1, warps=2)
    run(row_sum, (x, out), choice)
    assert prepared(row_sum, (x, out), choice)[1].layout.rolled
    assert close(out, x.double().sum(-1))


HALVES = {
    "equal": (7.0, 7.0),
    "near a power of two": (65280.0, 65024.0, 65280.0, -3.0),
    "large": (65536.0, 65536.0, 66048.0, 1.0),
    "the largest": (3.3895313892515355e38, 3.3762964e38, 3.3895313892515355e38),
    "the smallest": (-3.3895313892515355e38, -3.3895313892515355e38),
    "a mask": (-3.3895313892515355e38, 2.0, 1.0, -float("inf")),
    "an infinity": (float("inf"), 1.0),
    "no number": (float("nan"), 1.0),
    "minus infinity": (-float("inf"),),
    "denormal": (1e-39, 2e-39),
}


@pytest.mark.parametrize("n", [1000, 1001])
def test_powers_about_any_maximum(n: int) -> None:
    """The fused form rounds the maximum times log2(e), and has a slope of 1 for large numbers."""
    rows = [torch.tensor(values)[torch.arange(n) % len(values)] for values in HALVES.values()]
    x = torch.stack([*rows, *((torch.randn(n) * 3 + at) for at in (40000.0, -40000.0, 300.0, 0.1))]).bfloat16()
    out, total = torch.full_like(x, 7.0), torch.full((x.size(0),), 7.0)
    choice = RowChoice(cluster=2, warps=8)
    run(softmax, (x, out), choice)
    assert torch.allclose(out.double(), torch.softmax(x.double(), -1), rtol=2**-8, atol=1e-37, equal_nan=True)
    run(row_logsumexp, (x, total), choice)
    assert torch.allclose(total.double(), torch.logsumexp(x.double(), -1), rtol=2e-7, atol=2e-6, equal_nan=True)
    assert "power_base(" in render(r.row_program(prepared(softmax, (x, out), choice)[1]))


@pytest.mark.parametrize("n", [1003, 1008])
def test_masks_and_lengths(n: int) -> None:
    m, random = 6, torch.Generator().manual_seed(1)
    x, mask = numbers(m, n), torch.rand(m, n, generator=random) < 0.7
    length, out = torch.randint(1, n, (m,), generator=random), torch.full((m,), 7.0)
    run(masked_logsumexp, (x, mask, length, out), RowChoice(cluster=1, warps=4))
    inside = mask & (torch.arange(n) < length[:, None])
    assert close(out, torch.logsumexp(torch.where(inside, x.double(), -1e30), -1))


@pytest.mark.parametrize("n", [1000, 1001])
def test_dependent_reductions_have_an_exchange_each(n: int) -> None:
    m = 3
    x, residual, w = numbers(m, n), numbers(m, n, seed=1), numbers(n, seed=2)
    out, low, scale = torch.full_like(x, 7.0), torch.zeros(m, n).to(torch.float8_e4m3fn), torch.full((m,), 7.0)
    arguments = (x, residual, w, out, low, scale)
    run(add_rms_fp8, arguments, RowChoice(cluster=2, warps=8))
    added = x + residual
    row = added.double()
    normed = row * torch.rsqrt(row.square().mean(-1, keepdim=True) + EPS) * w.double()
    step = normed.abs().amax(-1) / 448
    assert torch.equal(out, added)
    assert close(scale, step)
    assert close(low, normed / step[:, None])
    kernel, _ = prepared(add_rms_fp8, arguments, RowChoice())
    schedule = schedule_of(kernel.problem)
    assert schedule.meetings == ((0,), (1,))
    assert schedule.kept and not schedule.held  # the rounded sum is kept, 2 bytes in place of 4


@pytest.mark.parametrize("n, choice", [(1000, RowChoice(warps=4)), (4099, RowChoice(cluster=2)), (255, CHOICES[0])])
def test_label_gathers(n: int, choice: RowChoice) -> None:
    m = 7
    x, weight = numbers(m, n), numbers(m, dtype=torch.float32, seed=3)
    labels = torch.randint(0, n, (m,), generator=torch.Generator().manual_seed(5))
    wide, picked = x.double(), x.double().gather(1, labels[:, None])
    want = (torch.logsumexp(wide, -1) - picked[:, 0] * 0.5) * weight.double()
    about = (wide - picked).square().sum(-1)
    for run_it in (run, lambda fn, arguments, _: helion.kernel(fn, backend="cute")(*arguments)):
        loss, out = torch.full((m,), 7.0), torch.full((m,), 7.0)
        run_it(cross_entropy, (x, labels, weight, loss), choice)
        run_it(about_a_column, (x, labels, out), choice)
        assert close(loss, want)
        assert close(out, about)


def test_positions_of_maxima() -> None:
    x = numbers(5, 999, dtype=torch.float32)
    x[2, 17] = x[2, 800] = 50.0
    x[3, 5] = float("nan")
    place, top = torch.full((5,), 7), torch.full((5,), 7.0)
    run(argmax, (x, place, top), RowChoice(cluster=2, warps=8, ctas_per_sm=1))
    assert torch.equal(place, torch.argmax(x, -1))
    assert torch.equal(top.nan_to_num(1.5), torch.amax(x, -1).nan_to_num(1.5))


def test_several_inputs_and_padded_rows() -> None:
    y, grad = (numbers(3, 1024, seed=seed)[:, :1000] for seed in (0, 1))
    out = torch.full((3, 1016), 7.0, dtype=torch.bfloat16)[:, :1000]
    kernel = helion.kernel(softmax_backward, backend="cute")
    kernel(y, grad, out)
    wide, slope = y.double(), grad.double()
    want = wide * (slope - (wide * slope).sum(-1, keepdim=True))
    assert close(out, want)
    assert bool((out.as_strided((3, 16), (1016, 1), 1000) == 7).all())


# The protocol ------------------------------------------------------------------------------------------------------------


def programs() -> list[r.RowProgram]:
    found = []
    x = numbers(4, 8192)
    for fn, inputs in ((softmax, (x, x)), (add_rms_fp8, (x, x, x[0], x, x.to(torch.float8_e4m3fn), x[:, 0].float()))):
        for choice in (RowChoice(cluster=2, warps=8), RowChoice(warps=8), RowChoice(cluster=4, warps=8, keep="shared")):
            try:
                found.append(r.row_program(smaller(prepared(fn, inputs, choice)[1])))
            except Refusal:
                assert choice.keep == "shared"
    return found


def test_no_schedule_has_a_fault() -> None:
    for program, tiles in itertools.product(programs(), (0, 1, 2, 5)):
        for seed in range(12):
            RowCluster(program, tiles=tiles, seed=seed).run()


def edited(program: r.RowProgram, edit: Callable[[g.Step], tuple[g.Step, ...]]) -> r.RowProgram:
    def walk(steps: Sequence[g.Step]) -> tuple[g.Step, ...]:
        found: list[g.Step] = []
        for step in steps:
            body = getattr(step, "body", None)
            changed = dataclasses.replace(step, body=walk(body)) if body else step  # type: ignore[type-var]
            found += edit(changed)
        return tuple(found)

    return dataclasses.replace(
        program, roles=tuple(dataclasses.replace(role, program=walk(role.program)) for role in program.roles)
    )


def without(kind: type[g.Step], cursor: str = "") -> Callable[[r.RowProgram], r.RowProgram]:
    def edit(step: g.Step) -> tuple[g.Step, ...]:
        return () if isinstance(step, kind) and getattr(step, "cursor", cursor) in (cursor, "") else (step,)

    return lambda program: edited(program, edit)


def recounted(name: str, **changes: int) -> Callable[[r.RowProgram], r.RowProgram]:
    def change(program: r.RowProgram) -> r.RowProgram:
        counts = getattr(program, name)
        fields = {key: getattr(counts, key) + by for key, by in changes.items()}
        return dataclasses.replace(program, **{name: dataclasses.replace(counts, **fields)})

    return change


FAULTS: dict[str, Callable[[r.RowProgram], r.RowProgram]] = {
    "no wait for a chunk": without(g.Wait, "ring_read"),
    "no wait for messages": without(g.Wait, "exchange_place"),
    "no release": without(g.Release, "ring_read"),
    "no acquire": without(r.AcquireChunk, "ring_fill"),
    "no expected bytes": without(r.ArmExchange, "exchange_place"),
    "no message": without(r.SendMessage, "exchange_place"),
    "the exchange stays at one stage": without(g.Advance, "exchange_place"),
    "the ring stays at one stage": without(g.Advance, "ring_read"),
    "no reduction": without(r.ReduceWarp),
    "no combination": without(r.Combine, "exchange_place"),
    "fewer releases than counted": recounted("ring", empty_arrivals=1),
    "more releases than counted": recounted("ring", empty_arrivals=-1),
    "fewer bytes than expected": recounted("exchange", transaction_bytes=4),
    "more bytes than expected": recounted("exchange", transaction_bytes=-4),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found(name: str) -> None:
    program = programs()[0]
    broken = FAULTS[name](program)
    assert broken != program
    with pytest.raises(Fault):
        for tiles, seed in itertools.product((1, 2, 5), range(40)):
            RowCluster(broken, tiles=tiles, seed=seed).run()


def test_structure_is_checked() -> None:
    program = programs()[0]
    check_structure(program, H100.smem_per_block_bytes)
    with pytest.raises(Fault, match="bytes of shared memory"):
        check_structure(program, 1000)
    for fault in ("fewer releases than counted", "fewer bytes than expected"):
        with pytest.raises(Fault):
            check_structure(FAULTS[fault](program), H100.smem_per_block_bytes)


# Plans and refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [255, 1000, 4096, 50257, 131072, 262144])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_every_length_has_a_layout(n: int, dtype: torch.dtype) -> None:
    x = tensor(4096, n, dtype=dtype)
    out = tensor(4096, n, dtype=dtype)
    found = layouts(demand_of(rows_of(program_of(softmax, x, out)).problem), H100)
    for layout in found:
        choice = layout.choice
        assert layout.shared_bytes <= H100.smem_per_sm_bytes // choice.ctas_per_sm - 1024
        assert choice.cluster * layout.slice_granules * layout.lanes >= n
        assert layout.chunks * layout.chunk_granules >= layout.thread_granules


def test_a_plan_describes_itself() -> None:
    arguments = tensor(4096, 131072), tensor(4096, 131072)
    bound = helion.kernel(softmax, backend="cute").bind(arguments, target="h100")
    text = str(bound.plan())
    assert "4096 rows of 131072 columns" in text
    assert "pass 2" in text and "of two passes at once" in text


def no_row(x, out):
    for tile in hl.tile(x.size(0)):
        out[tile, :] = x[tile, :].cumsum(-1)


def two_lengths(x, y, out):
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile, :].to(torch.float32).sum(-1) + y[tile, :].to(torch.float32).sum(-1)


def products_of_lanes(x, out):
    block = hl.register_block_size(x.size(1))
    for tile in hl.tile(x.size(0)):
        lanes = hl.full([tile, block], 1.0, dtype=torch.float32)
        for columns in hl.tile(x.size(1), block_size=block):
            lanes *= x[tile, columns]
        out[tile] = lanes.sum(-1)


def sums_from_one(x, out):
    block = hl.register_block_size(x.size(1))
    for tile in hl.tile(x.size(0)):
        lanes = hl.full([tile, block], 1.0, dtype=torch.float32)
        for columns in hl.tile(x.size(1), block_size=block):
            lanes += x[tile, columns]
        out[tile] = lanes.sum(-1)


def maxima_of_sums(x, out):
    block = hl.register_block_size(x.size(1))
    for tile in hl.tile(x.size(0)):
        lanes = hl.zeros([tile, block])
        for columns in hl.tile(x.size(1), block_size=block):
            lanes += x[tile, columns]
        out[tile] = torch.amax(lanes, -1)


@pytest.mark.parametrize(
    "fn, shapes, reason",
    [
        (no_row, ((8, 100), (8, 100)), "scan in an epilogue is not implemented"),
        (two_lengths, ((8, 100), (8, 200), (8,)), "rows of 100 and of 200 columns"),
        (softmax, ((8, 2**21), (8, 2**21)), "a thread would hold"),
        (products_of_lanes, ((8, 1000), (8,)), "accumulators with an element for each column of a tile"),
        (sums_from_one, ((8, 1000), (8,)), "accumulators with an element for each column of a tile"),
        (maxima_of_sums, ((8, 1000), (8,)), "accumulators with an element for each column of a tile"),
    ],
)
def test_refusals_say_why(fn: Any, shapes: Any, reason: str) -> None:
    arguments = tuple(tensor(*shape, dtype=torch.float32) for shape in shapes)
    with pytest.raises(exc.CuteUnsupported, match=reason):
        helion.kernel(fn, backend="cute").bind(arguments, target="h100")


def row_logsumexp(x, out):
    for tile in hl.tile(x.size(0)):
        out[tile] = torch.logsumexp(x[tile, :].to(torch.float32), -1)


def test_a_fence_completes_reads_before_a_stage_is_released() -> None:
    """Bulk copies write the stage by the async proxy, which does not wait for loads of the generic one."""
    x = numbers(4, 1000, dtype=torch.float32)
    text = render(r.row_program(prepared(softmax, (x, x), RowChoice(warps=1, rows=4))[1]))
    arrive = text[text.index("def arrive(") :].split("\n\n")[0]
    assert arrive.index("fence_view_async_shared()") < arrive.index("sync_warp()") < arrive.index("mbarrier.arrive")


def test_a_config_that_does_not_fit_is_refused() -> None:
    arguments = tensor(64, 131072), tensor(64, 131072)
    config = helion.Config(cute_row_cluster=1, cute_row_warps=8)
    with pytest.raises(exc.InvalidConfig, match="cute_row_cluster must be one of 2, 4, 8, 16"):
        helion.kernel(softmax, backend="cute", config=config).bind(arguments, target="h100").to_cute_code()


@pytest.mark.parametrize(
    ("choice", "dtype", "n", "pitches", "line"),
    [
        (RowChoice(cluster=2, warps=8), torch.bfloat16, 1003, (1003, 1003), 8),
        (RowChoice(cluster=2, warps=8), torch.float32, 1003, (1067, 1131), 8),
        (RowChoice(cluster=1, warps=1, keep="shared"), torch.bfloat16, 2563, (2563, 2563), 8),
        (RowChoice(cluster=2, warps=8), torch.bfloat16, 1003, (1003, 1011), 1),
        (RowChoice(cluster=2, warps=8), torch.bfloat16, 1008, (1008, 1016), 1),
    ],
    ids=str,
)
def test_parts_of_rows_begin_at_lines(
    choice: RowChoice, dtype: torch.dtype, n: int, pitches: tuple[int, int], line: int
) -> None:
    """Stores of a warp begin at multiples of 128 bytes, where strides of all tensors allow that."""
    x, out, w = numbers(19, pitches[0], dtype=dtype)[:, :n], torch.zeros(19, pitches[1], dtype=dtype), numbers(n)
    layout = prepared(rms_norm, (x, w, out[:, :n]), choice)[1].layout
    assert layout.line_granules == line and layout.slice_granules % line == 0
    run(rms_norm, (x, w, out[:, :n]), choice)
    wide = x.double()
    assert close(out[:, :n], wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * w.double())
    assert (out[:, n:] == 0).all()
