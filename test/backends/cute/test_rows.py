"""Reductions of whole rows: what they mean, how they are planned, simulated, printed and compiled."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch
from backends.cute import gemms, rows
from backends.cute.rows import ROWS, Chain

from helion.backends.cute.execute.evaluate import evaluate
from helion.backends.cute.plan.build import check_problem
from helion.backends.cute.plan.epilogue import Epilogue
from helion.backends.cute.plan.records import GemmProblem
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.toolchain.kernel import GemmKernel


def problem(m: int, n: int, k: int, epilogue: Epilogue) -> GemmProblem:
    found = gemms.product(m, n, k, epilogue=epilogue)
    if not epilogue.outputs:
        return found
    first = epilogue.outputs[0]
    return dataclasses.replace(found, output_dtype=first.dtype, d_pitch=first.pitch)


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
    asked = problem(m, n, k, ROWS[name](n))
    check_problem(asked)
    generator = torch.Generator().manual_seed(n)
    a = (torch.randn(m, k, generator=generator) + 0.5).bfloat16()
    b = torch.randn(n, k, generator=generator).bfloat16()
    given = {}
    for operand in asked.epilogue.operands:
        shape = {"exact": (m, n), "row": (n,), "column": (m,)}[operand.kind]
        given[operand.name] = torch.randn(*shape, generator=generator).to(getattr(torch, operand.dtype))
    outputs = [
        torch.zeros((m, n) if output.kind == "exact" else (m,), dtype=getattr(torch, output.dtype))
        for output in asked.outputs
    ]
    evaluate(kernel(asked), [a, b, *outputs, *given.values()])
    wide = {key: value.double() for key, value in given.items()}
    for found, wanted in zip(outputs, _reference(name, a.double() @ b.double().t(), wide), strict=True):
        if found.dtype == torch.int64:
            assert torch.equal(found, wanted)
        else:
            assert float((found.double() - wanted).norm()) <= 4e-3 * float(wanted.norm())


def test_the_first_of_equal_columns() -> None:
    """And the first that is not a number, as torch's argmax finds them."""
    asked = problem(4, 32, 16, rows.argmax(32))
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
    for _ in range(5):
        value = e("sub", 0, e("row_sum", value))
    with pytest.raises(Refusal, match="5 reductions of a row, one behind the other; up to 4"):
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
        check_problem(problem(64, 64, 64, e.done(output)))  # type: ignore[arg-type]


def test_d_is_the_first_output() -> None:
    asked = problem(64, 64, 64, rows.layer_norm(64))
    with pytest.raises(Refusal, match="the first output is of bfloat16 and pitch 64"):
        check_problem(dataclasses.replace(asked, d_pitch=128))
