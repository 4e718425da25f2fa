"""Reductions of whole rows: what they mean, how they are planned, simulated, printed and compiled."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Callable

import pytest
import torch
from backends.cute import export, gemms, lockstep, run_on_gpu
from backends.cute.combinations import random_row_plans
from backends.cute.rows import ROWS, Chain
from backends.cute.test_module import undefined
from backends.cute.test_verify import drop, drop_kind, first_fault, is_found_at_once, with_counts
from costs import calls

from helion.backends.cute.codegen.epilogue import dealt, dealt_columns, fragment
from helion.backends.cute.codegen.module import render
from helion.backends.cute.execute.evaluators import evaluate
from helion.backends.cute.execute.launcher import launch_gemm
from helion.backends.cute.plan.build import check_problem, plan_gemm
from helion.backends.cute.plan.counts import counts, multicast_masks, row_peers
from helion.backends.cute.plan.passes import passes, per_row
from helion.backends.cute.plan.records import Choice, GemmPlan, GemmProblem
from helion.backends.cute.plan.reductions import exchanges
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.plan.shared import shared_memory
from helion.backends.cute.roles import grammar as g
from helion.backends.cute.roles.edits import Rewrite, edit_role
from helion.backends.cute.roles.programs import kernel_program
from helion.backends.cute.toolchain.kernel import GemmKernel
from helion.backends.cute.toolchain.shared_object import source
from helion.backends.cute.verify.cluster import Cluster
from helion.backends.cute.verify.smaller import smaller
from helion.backends.cute.verify.state import Fault
from helion.backends.cute.verify.verify import _simulate, trips, verify
from helion.hardware import Target

PROVE = os.environ.get("HELION_PROVE") == "1"


def kernel(asked: GemmProblem) -> GemmKernel:
    """As far as evaluating needs it."""
    return GemmKernel(
        name="f", unit="wgmma", pointers=(), ctas=1, threads=32, shared_bytes=0, problem=repr(asked), source=""
    )


# What they mean ------------------------------------------------------------------------------------------------------


def _reference(name: str, x: torch.Tensor, given: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    n = x.shape[1]
    functional = torch.nn.functional
    if name in ("rms_norm", "silu_rms_norm"):
        x = functional.silu(x) if name == "silu_rms_norm" else x
        return [functional.rms_norm(x, (n,), given["weight"], 1e-6)]
    if name == "layer_norm":
        x = x + given["bias"]
        return [functional.layer_norm(x, (n,), given["weight"], given["shift"], 1e-5), x.mean(1)]
    if name == "residual_layer_norm":
        x = x + given["residual"]
        return [functional.layer_norm(x, (n,), eps=1e-5), x]
    if name == "layer_gradient":
        hat, slope = functional.layer_norm(x, (n,), eps=1e-5), given["slope"]
        left = slope - slope.mean(1, keepdim=True) - hat * (slope * hat).mean(1, keepdim=True)
        return [left * (x.var(1, correction=0, keepdim=True) + 1e-5).rsqrt()]
    if name == "argmax":
        x = x + given["bias"]
        return [x.argmax(1), x.amax(1)]
    if name == "quantized":
        scale = x.abs().amax(1) / 127
        return [(x / scale[:, None]).round(), scale]
    return [
        {
            "softmax": lambda: x.softmax(1),
            "log_softmax": lambda: (x + given["bias"]).log_softmax(1),
            "logsumexp": lambda: x.logsumexp(1),
            "l2_normalize": lambda: functional.normalize(x, dim=1),
        }[name]()
    ]


@pytest.mark.parametrize("name", ROWS)
def test_evaluated_as_torch_does(name: str) -> None:
    m, n, k = 63, 1008, 40
    asked = gemms.whole_rows(name, m, n, k)
    check_problem(asked)
    generator = torch.Generator().manual_seed(n)
    a = (torch.randn(m, k, generator=generator) + 0.5).bfloat16()
    b = torch.randn(n, k, generator=generator).bfloat16()
    given = operands(asked, generator)
    outputs = [
        torch.zeros((m, n) if output.kind == "exact" else (m,), dtype=getattr(torch, output.dtype))
        for output in asked.outputs
    ]
    evaluate(kernel(asked), [a, b, *outputs, *given.values()])
    compare(name, a.double() @ b.double().t(), given, outputs)


def operands(asked: GemmProblem, generator: torch.Generator) -> dict[str, torch.Tensor]:
    given = {}
    for operand in asked.epilogue.operands:
        shape = {"exact": (asked.m, asked.n), "row": (asked.n,), "column": (asked.m,)}[operand.kind]
        given[operand.name] = torch.randn(*shape, generator=generator).to(getattr(torch, operand.dtype))
    return given


def compare(name: str, sums: torch.Tensor, given: dict[str, torch.Tensor], outputs: list[torch.Tensor]) -> None:
    wide = {key: value.double() for key, value in given.items()}
    for found, wanted in zip(outputs, _reference(name, sums, wide), strict=True):
        if wanted.dtype == torch.int64:
            assert torch.equal(found.long(), wanted)
        else:
            assert float((found.double() - wanted).norm()) <= 4e-3 * float(wanted.norm())


def test_the_first_of_equal_columns() -> None:
    """And the first that is not a number, as torch's argmax finds them."""
    asked = gemms.whole_rows("argmax", 4, 32, 16)
    sums = torch.zeros(4, 32)
    sums[1, 5], sums[1, 9], sums[2, 3], sums[2, 30] = 2, 2, float("nan"), float("inf")
    a = torch.eye(4, 16).bfloat16()
    b = torch.zeros(32, 16)
    b[:, :4] = sums.t()
    b[3, 2], bias = 0, torch.zeros(32)  # a NaN in B would spread over all rows
    index, largest = torch.zeros(4, dtype=torch.int64), torch.zeros(4).bfloat16()
    b[30, 2] = 7
    evaluate(kernel(asked), [a, b.bfloat16(), index, largest, bias])
    assert index.tolist() == [0, 5, 30, 0] and largest.tolist() == [0, 2, 7, 0]
    bias[11] = float("nan")
    evaluate(kernel(asked), [a, b.bfloat16(), index, largest, bias])
    assert index.tolist() == [11] * 4


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ([("row_sum", 1.0)], "row_sum of a value that is the same in all columns"),
        ([("row_sum", 0), ("row_maximum", 1)], "row_maximum of a value that is the same in all columns"),
        ([("row_first", 0, 0)], "row_first compares with one number per row"),
        ([("row_sum", 0, 0)], "no epilogue operation 'row_sum' of 2 arguments"),
        ([("row_sum", 2)], "reads value 2, which comes later"),
    ],
)
def test_what_is_no_reduction_is_refused(ops: list[tuple[str, ...]], message: str) -> None:
    e = Chain()
    for op, *arguments in ops:
        e(op, *arguments)  # type: ignore[arg-type]
    with pytest.raises(Refusal, match=re.escape(message)):
        e.done().check()


def test_chains_have_an_end() -> None:
    e, value = Chain(), 0
    for _ in range(7):
        value = e("sub", 0, e("row_sum", value))
    with pytest.raises(Refusal, match="7 dependent reductions of a row; up to 6"):
        e.done().check()


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (("d", 3, "exact", "bfloat16", 64), "output d is value 3 of 2"),
        (("d", 0, "column", "float32", 1), "output d has one number per row"),
        (("d", 1, "column", "int16", 1), "outputs of int16"),
        (("d", 1, "column", "float32", 0), "a stride of 0"),
        (("d", 0, "exact", "int64", 64), "outputs of int64"),
        (("d", 0, "exact", "bfloat16", 60), "they overlap"),
    ],
)
def test_what_is_no_output_is_refused(output: tuple[str, int, str, str, int], message: str) -> None:
    e = Chain()
    e("row_sum", 0)
    with pytest.raises(Refusal, match=message):
        check_problem(gemms.product(64, 64, 64, epilogue=e.done(output)))  # type: ignore[arg-type]


def test_d_is_the_first_output() -> None:
    asked = gemms.whole_rows("layer_norm", 64, 64, 64)
    with pytest.raises(Refusal, match="the first output is of bfloat16 and pitch 64"):
        check_problem(dataclasses.replace(asked, d_pitch=128))


# Plans -------------------------------------------------------------------------------------------------------------------


def test_walks_compute_as_little_as_they_can() -> None:
    """Registers keep what the next walk begins with; sums in tensor memory stay what they are."""
    softmax = [(walk.held, walk.computes, walk.keeps) for walk in passes(gemms.hopper("rows_softmax"))]
    assert softmax == [(0, (), 0), (0, (2, 3), 3), (3, (5,), 3)]
    again = passes(
        plan_gemm(gemms.whole_rows("softmax", 64, 1024, 64), gemms.clusters((128, 256, 64), 4), gemms.BLACKWELL)
    )
    assert [(walk.held, walk.computes) for walk in again] == [(0, ()), (0, (2, 3)), (0, (2, 3, 5))]
    norm = passes(gemms.hopper("rows_residual_layer_norm_odd"))
    assert [walk.reads for walk in norm] == [(1,), ()], "the residual is read once"


def test_reductions_that_do_not_wait_for_each_other_are_exchanged_at_once() -> None:
    plan = gemms.hopper("rows_residual_layer_norm_odd")
    assert exchanges(plan) == ((3, 6),)
    assert counts(plan).rows_stage_bytes == 2 * 8 * 128 * 4
    assert exchanges(gemms.hopper("rows_layer_norm_odd")) == ((5,), (9,))
    assert per_row(gemms.hopper("rows_layer_norm_odd"), 1) == (6,)


# By hand: two slots of a number per row of each CTA of the cluster.
@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("rows_rms_norm", 2 * 4 * 128 * 4),
        ("rows_rms_norm_4096", 2 * 16 * 128 * 4),
        ("rows_rms_norm_64", 2 * 8 * 64 * 4),
    ],
)
def test_an_exchange_has_two_slots(name: str, size: int) -> None:
    sizes = {allocation.name: allocation.size_bytes for allocation in shared_memory(gemms.hopper(name))}
    assert sizes["shared_rows"] == size
    assert sizes["rows_barriers"] == 2 * 8


def test_ctas_that_share_an_sm_ask_for_all_of_its_memory() -> None:
    alone = kernel(gemms.whole_rows("rms_norm", 64, 64, 64))
    assert "SetAttribute" not in source(alone)
    assert "cudaKernelSetAttributeForDevice(kernel, 9, 100, device)" in source(
        dataclasses.replace(alone, ctas_per_sm=2)
    )
    plan = gemms.hopper("rows_rms_norm_two_per_sm")
    assert plan.shared_limit_bytes == 233472 // 2 - 1024
    program = kernel_program(plan)
    assert program.warps == 9 and not program.registers
    text = render(program)
    assert "min_blocks_per_mp=2," in text and "preferred_smem_carveout=100," in text


def test_sixteen_ctas_keep_four_stages() -> None:
    for name in ("rms_norm", "softmax", "layer_norm"):
        plan = plan_gemm(gemms.whole_rows(name, 8192, 4096, 512), gemms.clusters((128, 256, 64), 16), gemms.HOPPER)
        assert plan.ab_stages == (3 if name == "layer_norm" else 4), name


def test_rows_are_held_by_the_ctas_along_n() -> None:
    plan = gemms.blackwell("rows_layer_norm_pair")
    assert row_peers(plan, 5) == [1, 3, 5, 7, 9, 11, 13, 15]


@pytest.mark.parametrize(
    ("name", "n", "choice", "message"),
    [
        ("rms_norm", 1024, Choice(tile=(128, 256, 64), cluster=(1, 2)), "2 tiles of 256 hold 512"),
        ("rms_norm", 1024, Choice(tile=(128, 256, 64)), "1 tiles of 256 hold 256"),
        ("rms_norm", 256, Choice(tile=(64, 256, 64), pingpong=True), "without ping-pong"),
        ("rms_norm", 256, Choice(tile=(64, 256, 64), splits=2), "without splitting K"),
        ("rms_norm", 8192, gemms.clusters((128, 256, 64), 32), "up to 16"),
        ("rms_norm", 4096, gemms.clusters((64, 256, 64), 16), "16 CTAs cannot load slices of A"),
        ("rms_norm", 1024, gemms.clusters((128, 256, 64), 4, ctas_per_sm=2), "128 accumulator registers per thread"),
        ("rms_norm", 1024, gemms.clusters((128, 256, 64), 4, ctas_per_sm=3), "3 CTAs on an SM"),
        ("rms_norm", 1024, gemms.clusters((128, 128, 64), 8, ctas_per_sm=2, ab_stages=4), "stages need"),
    ],
)
def test_plans_that_hold_no_row_are_refused(name: str, n: int, choice: Choice, message: str) -> None:
    with pytest.raises(Refusal, match=re.escape(message)):
        plan_gemm(gemms.whole_rows(name, 1024, n, 512), choice, gemms.HOPPER)


def test_places_are_looked_for_among_the_values_that_were_compared() -> None:
    """A product in a sum may be rounded in two ways; registers that keep it have it once."""
    e = Chain(("scale", "row", "float32", 1), ("bias", "row", "float32", 1))
    x = e("add", e("mul", 0, 1), 2)
    epilogue = e.done(("index", e("row_first", x, e("row_maximum", x)), "column", "int64", 1))
    asked, choice = gemms.product(64, 256, 64, epilogue=epilogue), Choice(tile=(128, 256, 64))
    assert passes(plan_gemm(asked, choice, gemms.HOPPER))[1].held == x
    with pytest.raises(Refusal, match="recomputes here"):
        plan_gemm(asked, choice, gemms.BLACKWELL)


def test_a_matrix_that_nothing_reads_is_refused() -> None:
    e = Chain(("residual", "exact", "float32", 256))
    epilogue = e.done(("total", e("row_sum", 0), "column", "float32", 1))
    with pytest.raises(Refusal, match="residual is read by nothing"):
        plan_gemm(gemms.product(64, 256, 64, epilogue=epilogue), Choice(tile=(128, 256, 64)), gemms.HOPPER)


# The printed text ----------------------------------------------------------------------------------------------------------


UNITS = {
    "wgmma": ((128, 64, 64), 4, 240),
    "wgmma_64": ((64, 32, 64), 8, 240),
    "wgmma_tall": ((256, 32, 64), 4, 112),
    "wgmma_two": ((128, 64, 64), 2, 128),
    "tcgen05": ((128, 64, 64), 4, 240),
    "tcgen05_64": ((64, 64, 64), 4, 240),
}
TEXTS = [(name, unit) for i, name in enumerate(ROWS) for j, unit in enumerate(UNITS) if PROVE or (i + j) % 3 == 0]


@pytest.mark.parametrize(("name", "unit"), TEXTS)
def test_the_text_computes_what_torch_does(name: str, unit: str) -> None:
    """All threads of a cluster in lockstep; the last CTA has columns behind the end of the rows."""
    tile, ctas, n = UNITS[unit]
    target = gemms.HOPPER if unit.startswith("wgmma") else gemms.BLACKWELL
    asked = gemms.whole_rows(name, tile[0] - 1, n, 64)
    plan = plan_gemm(asked, Choice(tile=tile, cluster=(1, ctas), epilogue_n=16), target)
    generator = torch.Generator().manual_seed(n)
    sums = torch.randn(tile[0], n, generator=generator) * 3 + 1
    given = operands(dataclasses.replace(asked, m=tile[0]), generator)
    kept = {key: x[: asked.m] if x.dim() == 2 else x for key, x in given.items()}
    compare(name, sums[: asked.m].double(), kept, text_outputs(plan, sums, given))


def text_outputs(plan: GemmPlan, sums: torch.Tensor, given: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """What the text stores."""
    cluster = lockstep.Cluster(plan, [sums], given)
    cluster.run()
    outputs = []
    for output in plan.problem.outputs:
        if output.kind == "exact":
            outputs.append(cluster.matrix(output.name)[: plan.problem.m])
        else:
            column = cluster.columns[output.name]
            assert bool((column.stores == 1).all()), "each number per row is stored once"
            outputs.append(column.values)
    return outputs


@pytest.mark.parametrize("width", [8, 16, 32, 64])
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_threads_read_row_operands_of_their_own_columns(name: str, width: int) -> None:
    """Wherever in shared memory these lie: where tiles of columns change, in their order."""
    stays = plan_gemm(
        gemms.whole_rows(name, 64, 256, 64),
        Choice(tile=(64, 128, 64), cluster=(1, 2), epilogue_n=width),
        gemms.HOPPER,
    )
    changes = plan_gemm(
        gemms.product(64, 256, 64, epilogue=gemms.bias()), Choice(tile=(64, 128, 64), epilogue_n=width), gemms.HOPPER
    )
    for plan in (stays, changes):
        held = {eval(dealt(plan, f"({column})")): column for column in range(128)}
        assert sorted(held) == [*range(128)]
        first, shape, strides = dealt_columns(plan)
        for lane in range(32):
            for subtile in range(plan.subtiles):
                start = eval(first, {"lane": lane}) + subtile * width
                read = [held[start + at] for at in columns(eval(shape), eval(strides))]
                own = subtile * width + eval(fragment(plan).first_column, {"lane": lane})
                assert read == [own + at for at in columns((2, width // 8), (1, 8))]


def columns(shape: tuple[int, int], strides: tuple[int, int]) -> list[int]:
    return [i * strides[0] + j * strides[1] for j in range(shape[1]) for i in range(shape[0])]


JOINED = ("layer_norm", "layer_gradient", "softmax", "log_softmax", "logsumexp", "argmax")


@pytest.mark.parametrize("name", JOINED)
@pytest.mark.parametrize(
    ("tile", "ctas", "n", "mean"),
    [((64, 64), 4, 240, 1.0), ((64, 64), 8, 272, -3.0), ((64, 64), 2, 128, 500.0), ((256, 64), 4, 240, 1.0)],
)
def test_exchanges_at_once_give_what_exchanges_apart_do(
    name: str, tile: tuple[int, int], ctas: int, n: int, mean: float
) -> None:
    """Of few columns some CTAs have none."""
    asked = gemms.whole_rows(name, tile[0], n, 1024)
    plan = plan_gemm(asked, gemms.clusters((*tile, 64), ctas), gemms.HOPPER)
    assert plan.joins and (rows := counts(plan).rows) is not None and rows.stages == 1
    generator = torch.Generator().manual_seed(n)
    sums = torch.randn(tile[0], n, generator=generator) * 3 + mean
    given = operands(asked, generator)
    outputs = text_outputs(plan, sums, given)
    compare(name, sums.double(), given, outputs)
    apart = text_outputs(dataclasses.replace(plan, joins=False), sums, given)
    for found, wanted in zip(outputs, apart, strict=True):
        torch.testing.assert_close(found, wanted, rtol=2.0**-7, atol=4e-3)


@pytest.mark.parametrize("name", JOINED)
def test_what_is_not_finite_stays_so_with_exchanges_at_once(name: str) -> None:
    """In whole rows, in all columns of a CTA, and in one."""
    asked = gemms.whole_rows(name, 64, 240, 1024)
    plan = plan_gemm(asked, gemms.clusters((64, 64, 64), 4), gemms.HOPPER)
    sums = torch.randn(64, 240, generator=torch.Generator().manual_seed(0))
    inf, nan = float("inf"), float("nan")
    sums[0], sums[1, :64], sums[2, 3], sums[3, 5], sums[4, 200] = -inf, -inf, inf, nan, -inf
    sums[5] -= 200
    sums[5, :64] = -inf
    sums[6, 1], sums[6, 230], sums[7, 64:] = inf, nan, -inf
    sums[8], sums[9], sums[10] = torch.linspace(-200, 100, 240), torch.linspace(200, -200, 240), -3e38
    shapes = {"row": (240,), "column": (64,), "exact": (64, 240)}
    given = {operand.name: torch.zeros(shapes[operand.kind]) for operand in asked.epilogue.operands}
    outputs, apart = (text_outputs(each, sums, given) for each in (plan, dataclasses.replace(plan, joins=False)))
    for found, wanted in zip(outputs, apart, strict=True):
        torch.testing.assert_close(found, wanted, rtol=2.0**-7, atol=1e-6, equal_nan=True)


def test_what_is_no_part_of_a_row_is_exchanged_apart() -> None:
    """A sum of squares about a mean of something else, powers of what has no maximum, a factor of the row."""

    def joins(value: Callable[[Chain], int]) -> bool:
        e = Chain(("scale", "column", "float32", 1))
        epilogue = e.done(("total", value(e), "column", "float32", 1))
        asked = gemms.product(64, 256, 1024, epilogue=epilogue)
        return plan_gemm(asked, gemms.clusters((64, 64, 64), 4), gemms.HOPPER).joins

    def powers(e: Chain, about: int, factor: float | int) -> int:
        return e("row_sum", e("exp", e("mul", e("sub", 0, about), factor)))

    def squares(e: Chain, x: int, about: int) -> int:
        d = e("sub", x, about)
        return e("row_sum", e("mul", d, d))

    def products(e: Chain, summed: float) -> int:
        """A sum of elements times a deviation, and the sum of a multiple of these elements."""
        x = e("abs", 0)
        e("row_sum", e("mul", x, summed) if summed != 1.0 else x)
        return e("add", len(e.instructions) + len(e.operands), e("row_sum", e("mul", x, e("sub", 0, e("row_sum", 0)))))

    assert joins(lambda e: powers(e, e("row_maximum", 0), 0.5))
    assert not joins(lambda e: powers(e, e("row_maximum", 0), -0.5))
    assert not joins(lambda e: powers(e, e("row_maximum", 0), 1))
    assert not joins(lambda e: powers(e, e("row_minimum", 0), 0.5))
    assert not joins(lambda e: powers(e, e("row_sum", 0), 0.5))
    assert joins(lambda e: squares(e, 0, e("mul", e("row_sum", 0), 0.125)))
    assert joins(lambda e: products(e, 1.0))
    assert not joins(lambda e: products(e, 2.0))
    assert not joins(lambda e: squares(e, 0, e("row_maximum", 0)))
    assert not joins(lambda e: squares(e, e("abs", 0), e("row_sum", 0)))
    assert not joins(lambda e: e("row_sum", e("mul", 0, e("row_sum", 0))))


@pytest.mark.parametrize("target", [gemms.HOPPER, gemms.BLACKWELL])
@pytest.mark.parametrize(("dtype", "error"), [("float32", 2.0**-23), ("bfloat16", 2.0**-8)])
def test_quotients_by_a_number_of_the_row_are_rounded_once(target: Target, dtype: str, error: float) -> None:
    """By reciprocals: of zero, of what is not finite and of subnormal numbers as well."""
    e = Chain(("divisor", "column", "float32", 1))
    epilogue = e.done(("d", e("div", 0, 1), "exact", dtype, 64), ("same", 1, "column", "float32", 1))
    plan = plan_gemm(gemms.product(64, 64, 64, epilogue=epilogue), Choice(tile=(64, 64, 64)), target)
    special = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-40, 1e-45, 3e38, -2e-38, 1.0])
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(64, generator=generator) * 2.0 ** torch.randint(-120, 120, (64,), generator=generator)
    divisor = torch.cat([special, wide])[:64]
    sums = torch.randn(64, 64, generator=generator) * 2.0 ** torch.randint(-60, 60, (64, 64), generator=generator)
    sums[:, :10] = special
    cluster = lockstep.Cluster(plan, [sums], {"divisor": divisor})
    cluster.run()
    torch.testing.assert_close(cluster.matrix("d"), sums / divisor[:, None], rtol=error, atol=1e-37, equal_nan=True)


@pytest.mark.parametrize("target", [gemms.HOPPER, gemms.BLACKWELL])
def test_numbers_of_a_launch_beside_rows(target: Target) -> None:
    """Beside reductions, and where nothing but the sums is read."""
    e = Chain(("eps", "number", "float32", 1), ("scale", "number", "float32", 1))
    norm = e("maximum", e("sqrt", e("row_sum", e("mul", 0, 0))), 1)
    epilogue = e.done(
        ("d", e("mul", e("div", 0, norm), 2), "exact", "float32", 240), ("n", norm, "column", "float32", 1)
    )
    plan = plan_gemm(gemms.product(64, 240, 64, epilogue=epilogue), gemms.clusters((64, 64, 64), 4), target)
    assert undefined(render(kernel_program(plan))) == set()
    sums = torch.randn(64, 240, generator=torch.Generator().manual_seed(0)) + 1
    cluster = lockstep.Cluster(plan, [sums], {"eps": torch.tensor(16.0), "scale": torch.tensor(-3.0)})
    cluster.run()
    norms = sums.double().norm(dim=1).clamp_min(16.0)
    torch.testing.assert_close(cluster.matrix("d").double(), sums / norms[:, None] * -3, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(cluster.columns["n"].values, norms, rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", ("rows_layer_norm_odd", "rows_quantized_odd", "rows_argmax_odd", "several_outputs"))
def test_what_runs_on_a_gpu_is_compared_with_torch(name: str) -> None:
    """The script that launches kernels finds what `evaluate` computes right, and what is off by a little wrong."""
    plan = gemms.hopper(name)
    described = export.description(plan, "entry")
    tensors = run_on_gpu.inputs(described, torch, device="cpu")
    evaluate(kernel(plan.problem), tensors)
    error, columns, bad = run_on_gpu.compare(described, tensors, torch)
    assert error < 0.04 and columns < 1 and bad == 0
    for output in run_on_gpu.parts(described, tensors)[2]:
        output[7] += 9
    error, columns, bad = run_on_gpu.compare(described, tensors, torch)
    assert max(error / 0.04, columns) > 1


@pytest.mark.parametrize("name", export.OF_ANY_SIZE if PROVE else ("any_product", "any_layer_norm", "any_fp8"))
def test_sizes_drawn_for_a_gpu_are_those_of_its_launches(name: str) -> None:
    """Tensors and numbers of a launch, as the script makes them, go together."""
    plan = plan_gemm(*export.OF_ANY_SIZE[name], gemms.HOPPER)
    for described in run_on_gpu.drawn(export.description(plan, "entry"), 3):
        tensors = run_on_gpu.inputs(described, torch, device="cpu")
        numbers = [number.value for number in run_on_gpu.launch_numbers(described)]
        launch_gemm(kernel(plan.problem), (1,), *tensors, *numbers)
        error, columns, bad = run_on_gpu.compare(described, tensors, torch)
        assert error < 0.04 and columns < 1 and bad == 0


def test_sixteen_ctas_load_a_for_themselves() -> None:
    """Unless a joined exchange, which their loads keep in order, is worth more."""
    asked, choice = gemms.whole_rows("rms_norm", 8192, 4096, 512), gemms.clusters((128, 256, 64), 16)
    plan = plan_gemm(asked, choice, gemms.HOPPER)
    assert not plan.shares_a and counts(plan).ab.empty_arrivals == 8
    assert multicast_masks(plan, 5) == (1 << 5, 1 << 5)
    text = render(kernel_program(plan))
    assert "mcast_mask" not in text and "cta_layout_vmnk" not in text
    for name, k, sharing, joins in (
        ("rms_norm", 4096, False, False),
        ("layer_norm", 512, True, True),
        ("layer_norm", 4096, False, False),
    ):
        plan = plan_gemm(gemms.whole_rows(name, 8192, 4096, k), choice, gemms.HOPPER)
        assert (plan.shares_a, plan.joins) == (sharing, joins), (name, k)
    eight = plan_gemm(gemms.whole_rows("layer_norm", 8192, 2048, 4096), gemms.clusters((128, 256, 64), 8), gemms.HOPPER)
    assert eight.shares_a and eight.joins


# The protocol ------------------------------------------------------------------------------------------------------------


@functools.cache
def program(name: str) -> g.KernelProgram:
    """Rows of few sub-tiles in a cluster of two CTAs along N, unless said. Of few K tiles exchanges stay apart."""
    k = 128 if name == "wgmma_apart" else 4096
    small = Choice(tile=(64, 64, 64), cluster=(1, 2), ab_stages=3)
    pair = Choice(tile=(256, 64, 64), cluster=(2, 2), ctas_per_mma=2, ab_stages=3)
    cases = {
        "wgmma": ("rms_norm", 128, small, gemms.HOPPER),
        "wgmma_two": ("softmax", 256, dataclasses.replace(small, tile=(128, 128, 64)), gemms.HOPPER),
        "wgmma_four": ("layer_norm", 256, dataclasses.replace(small, cluster=(1, 4)), gemms.HOPPER),
        "wgmma_apart": ("layer_norm", 256, dataclasses.replace(small, cluster=(1, 4)), gemms.HOPPER),
        "wgmma_sixteen": (
            "rms_norm",
            512,
            dataclasses.replace(small, tile=(128, 32, 64), cluster=(1, 16), epilogue_n=16),
            gemms.HOPPER,
        ),
        "wgmma_grid": ("argmax", 128, dataclasses.replace(small, cluster=(2, 2)), gemms.HOPPER),
        "wgmma_residual": ("residual_layer_norm", 128, small, gemms.HOPPER),
        "wgmma_alone": ("softmax", 64, dataclasses.replace(small, cluster=(1, 1)), gemms.HOPPER),
        "wgmma_alone_column": ("argmax", 64, dataclasses.replace(small, cluster=(1, 1)), gemms.HOPPER),
        "wgmma_two_per_sm": ("quantized", 128, dataclasses.replace(small, ctas_per_sm=2), gemms.HOPPER),
        "tcgen05": ("layer_norm", 128, dataclasses.replace(small, tile=(128, 64, 64)), gemms.BLACKWELL),
        "tcgen05_column": ("logsumexp", 128, dataclasses.replace(small, tile=(128, 64, 64)), gemms.BLACKWELL),
        "tcgen05_pair": ("residual_layer_norm", 128, pair, gemms.BLACKWELL),
    }
    name, n, choice, target = cases[name]
    return kernel_program(plan_gemm(gemms.whole_rows(name, 4096, n, k), choice, target))


PROGRAMS = (
    "wgmma",
    "wgmma_two",
    "wgmma_four",
    "wgmma_apart",
    "wgmma_sixteen",
    "wgmma_grid",
    "wgmma_residual",
    "wgmma_alone",
    "wgmma_alone_column",
    "wgmma_two_per_sm",
    "tcgen05",
    "tcgen05_column",
    "tcgen05_pair",
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_run_under_random_schedules(name: str) -> None:
    kernel = program(name)
    for seed, (tiles, k_tiles) in enumerate(trips(kernel.plan)[:: 1 if PROVE else 9]):
        Cluster(kernel, tiles=tiles, k_tiles=k_tiles, seed=seed).run()


def drop_at(wanted: g.Step, number: int) -> Rewrite:
    """The step of that number, among equal ones in a loop over sub-tiles."""

    def rule(step: g.Step) -> tuple[g.Step, ...]:
        if not isinstance(step, g.SubtileLoop) or wanted not in step.body:
            return (step,)
        at = [i for i, each in enumerate(step.body) if each == wanted][number]
        return (dataclasses.replace(step, body=(*step.body[:at], *step.body[at + 1 :])),)

    return rule


def a_later_wait(step: g.Step) -> tuple[g.Step, ...]:
    """For one store less."""
    return (g.StoreWait(2),) if step == g.StoreWait(1) else (step,)


def first_warp_alone(step: g.Step) -> tuple[g.Step, ...]:
    return (g.Gate("first_warp", (step,)),) if isinstance(step, g.TmaStore) else (step,)


FAULTS: list[tuple[str, Rewrite, str]] = [
    ("wgmma", drop(g.Advance("rows_place")), "overwrite others|stale reductions|deadlock|arrivals"),
    ("wgmma", drop(g.ArmRows("rows_place", 0)), "deadlock|stale reductions"),
    ("wgmma", drop(g.SendRows("rows_place", 0)), "deadlock"),
    ("wgmma", drop(g.Wait("rows_place")), "stale reductions"),
    ("wgmma", drop(g.GatherRows("rows_place", 0)), "made of reductions of"),
    ("wgmma", drop(g.ClearRows(0)), "reduced over sub-tiles"),
    ("wgmma", drop(g.AddTerms(0)), "reduced over sub-tiles"),
    ("wgmma", drop(g.JoinLanes(0)), "are sent as those of"),
    ("wgmma", drop(g.EvaluateRows(1)), "numbers per row of"),
    ("wgmma_two", drop(g.ArmRows("rows_place", 1)), "deadlock|stale reductions"),
    ("wgmma_two", drop(g.SendRows("rows_place", 1)), "deadlock"),
    ("wgmma_two", drop(g.EvaluateRows(2)), "numbers per row of"),
    ("wgmma_sixteen", drop(g.Release("ab_free")), "deadlock"),
    ("wgmma_sixteen", drop(g.Wait("ab_read")), "stale operands"),
    ("wgmma_sixteen", drop(g.Wait("rows_place")), "stale reductions"),
    ("wgmma_sixteen", drop(g.Advance("rows_place")), "overwrite others|stale reductions|deadlock|arrivals"),
    ("wgmma_apart", drop(g.ArmRows("rows_place", 1)), "deadlock|stale reductions"),
    ("wgmma_apart", drop(g.SendRows("rows_place", 0)), "deadlock"),
    ("wgmma_apart", drop(g.EvaluateRows(1)), "numbers per row of"),
    ("wgmma_two", drop(g.OwnRows()), "is about numbers of tile"),
    ("wgmma_two", drop(g.JoinLanes(0)), "is about reductions of tile"),
    ("wgmma_two", drop(g.JoinLanes(1)), "are sent as those of"),
    ("wgmma_two", drop(g.GatherRows("rows_place", 0)), "made of reductions of"),
    ("wgmma_two", drop(g.GatherRows("rows_place", 1)), "made of reductions of|overwrite others"),
    ("wgmma_two", drop(g.EvaluateRows(1)), "made with the numbers per row of"),
    ("wgmma_two", drop(g.Wait("rows_place")), "stale reductions"),
    ("wgmma_two", drop(g.Advance("rows_place")), "stale reductions|overwrite others|deadlock"),
    ("wgmma_two", drop(g.WarpSync()), "have not synchronized"),
    ("wgmma_two", drop_at(g.WarpSync(), 0), "have not synchronized with the one which has waited"),
    ("wgmma_two", drop_at(g.WarpSync(), 1), "has not synchronized with the others"),
    ("wgmma_two", drop(g.WriteStage()), "is stored while"),
    ("wgmma_two", drop(g.FenceShared()), "is stored while"),
    ("wgmma_two", drop(g.TmaStore()), "not stored once"),
    ("wgmma_two", drop(g.StoreWait(1)), "being stored"),
    ("wgmma_two", a_later_wait, "being stored"),
    ("wgmma_two", first_warp_alone, "not stored once"),
    ("wgmma_four", drop(g.Wait("rows_place")), "stale reductions"),
    ("wgmma_four", drop(g.BarrierSync("epilogue")), "is stored while|reads vectors of tiles"),
    ("wgmma_grid", drop(g.StoreRows()), "not stored once by each warp"),
    ("wgmma_residual", drop(g.WriteStage(1)), "is stored while"),
    ("wgmma_residual", drop(g.TmaStore(1)), "not stored once"),
    ("wgmma_residual", drop_kind(g.StoreWait), "being stored|has left"),
    ("wgmma_residual", drop(g.Wait("residual_read")), "stale residual"),
    ("wgmma_residual", drop(g.FenceShared()), "no fence between"),
    ("wgmma_alone", drop(g.JoinLanes(1)), "made of reductions of"),
    ("wgmma_alone_column", drop(g.BarrierSync("epilogue")), "reads vectors of tiles"),
    ("wgmma_two_per_sm", drop(g.Release("ab_free")), "deadlock"),
    ("tcgen05", drop(g.Release("sums_read")), "deadlock"),
    ("tcgen05", drop(g.Wait("sums_read")), "accumulator of tile"),
    ("tcgen05_column", drop(g.Release("sums_read")), "deadlock"),
    ("tcgen05_pair", drop(g.Advance("rows_place")), "overwrite others|stale reductions|deadlock|arrivals"),
]


@pytest.mark.parametrize(("name", "rewrite", "message"), FAULTS)
def test_a_missing_step_is_found(name: str, rewrite: Rewrite, message: str) -> None:
    kernel = edit_role(program(name), "store", rewrite)
    assert kernel != program(name)
    found = first_fault(kernel)
    assert any(part in found for part in message.split("|")), found
    assert is_found_at_once(kernel)


@pytest.mark.parametrize("name", ["wgmma_two", "wgmma_four", "wgmma_grid"])
def test_too_few_k_tiles_for_a_single_slot_are_found(name: str) -> None:
    """Nothing keeps a CTA from sending what it found of the next tile where the ring of operands holds all of that."""
    kernel = program(name)
    assert kernel.plan.joins and counts(kernel.plan).rows_stage_bytes == 2 * 64 * 4 * kernel.plan.cluster[1] * (
        kernel.plan.tile[0] // 64
    )
    Cluster(kernel, tiles=4, k_tiles=kernel.plan.ab_stages + 1, seed=0).run()
    with pytest.raises(Fault, match="reductions"):
        for seed in range(40):
            Cluster(kernel, tiles=4, k_tiles=kernel.plan.ab_stages, seed=seed).run()


@pytest.mark.parametrize("name", ["wgmma_apart", "tcgen05", "tcgen05_column"])
def test_a_single_slot_of_an_exchange_is_found(name: str) -> None:
    """A CTA that has all parts of one row may send those of the next while another still reads."""
    assert "reductions" in first_fault(with_counts(program(name), "rows", stages=1))
    assert is_found_at_once(with_counts(program(name), "rows", stages=1))


def test_a_cta_that_leaves_before_others_have_written_is_found() -> None:
    """Who does not wait for an exchange may be gone when it arrives."""
    kernel = edit_role(program("wgmma_four"), "store", drop(g.Wait("rows_place"), g.GatherRows("rows_place", 0)))
    assert first_fault(dataclasses.replace(kernel, exit=())) != "nothing"
    kernel = edit_role(program("wgmma_four"), "load", drop(g.Tail("ab_fill")))
    assert "has left" in first_fault(dataclasses.replace(kernel, exit=()), schedules=60)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("field", ["full_arrivals", "transaction_bytes"])
@pytest.mark.parametrize("by", [-4, 1])
def test_a_wrong_count_is_found(name: str, field: str, by: int) -> None:
    kernel = program(name)
    for pipeline in kernel.pipelines:
        right = getattr(pipeline.counts, field)
        if right and right + by > 0:
            wrong = with_counts(kernel, pipeline.name, **{field: right + by})
            assert is_found_at_once(wrong), (pipeline.name, field, right + by)


@functools.cache
def of_eight() -> g.KernelProgram:
    choice = Choice(tile=(64, 32, 64), cluster=(1, 8), ab_stages=2, epilogue_n=16)
    return kernel_program(plan_gemm(gemms.whole_rows("layer_norm", 4096, 256, 4096), choice, gemms.HOPPER))


@pytest.mark.parametrize(
    "rewrite",
    [
        drop(g.Advance("rows_place")),
        drop(g.ArmRows("rows_place", 1)),
        drop(g.SendRows("rows_place", 1)),
        drop(g.Wait("rows_place")),
        drop(g.Release("ab_free")),
        drop(g.Wait("ab_read")),
        drop(g.BarrierSync("epilogue")),
        drop_kind(g.StoreWait),
        drop_kind(g.EvaluateRows),
    ],
)
def test_what_is_wrong_with_eight_ctas_is_wrong_with_few(rewrite: Rewrite) -> None:
    """As many schedules of the smaller cluster find it, which is the one that is simulated."""
    faulty = edit_role(of_eight(), "store", rewrite)
    assert smaller(faulty).plan.cluster == (1, 3)
    assert is_found_at_once(faulty)
    assert first_fault(faulty) != "nothing"


@pytest.mark.parametrize("name", ["ab", "rows"])
@pytest.mark.parametrize("field", ["full_arrivals", "empty_arrivals", "transaction_bytes"])
@pytest.mark.parametrize("by", [-4, 1])
def test_a_wrong_count_of_eight_ctas_is_found_with_few(name: str, field: str, by: int) -> None:
    right = getattr(of_eight().pipeline(name).counts, field)
    if right and right + by > 0:
        assert is_found_at_once(with_counts(of_eight(), name, **{field: right + by}))


def test_verifying_a_large_cluster_costs_little() -> None:
    kernel = kernel_program(gemms.hopper("rows_softmax"))

    def first() -> None:
        _simulate.cache_clear()
        verify(kernel)

    assert calls(first) <= 100_000


RANDOM = 60 if PROVE else 12


@functools.cache
def random_rows() -> list[GemmPlan]:
    return [*random_row_plans(RANDOM).values()]


@pytest.mark.parametrize("number", range(RANDOM))
def test_combinations_are_verified_and_print(number: int) -> None:
    kernel = kernel_program(random_rows()[number])
    verify(kernel)
    assert undefined(render(kernel)) == set()
