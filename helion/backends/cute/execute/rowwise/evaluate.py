"""Evaluation of a row kernel on CPU tensors: value by value in fp32, as on the GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from ...plan.epilogue import (
    COLUMN_NUMBER,
    GROUP_REDUCTIONS,
    PARTNER,
    ROW_NUMBER,
    ROW_PLACE,
    Constant,
    EpilogueOperand,
    EpilogueOutput,
)
from ...plan.rowwise.operands import Gather, Repeat
from ...plan.rowwise.records import SIZE_M, SIZE_N, RowProblem, pitch_name
from ...toolchain.kernel import GemmKernel
from ..evaluate import OPERATIONS, REDUCTIONS
from ..problems import Given, check_columns, problem_of, split


def evaluate_rows(kernel: GemmKernel, given: Sequence[Given]) -> None:
    """Run a row kernel on the arguments of a launch: the outputs, the operands, and launch-time integers."""
    problem = problem_of(kernel.problem)
    assert isinstance(problem, RowProblem)
    passed, integers = split(kernel, given)
    launched = dict(zip(problem.runtime, integers, strict=True))
    check_columns(problem, launched)
    m, n = launched.get(SIZE_M, problem.m), launched.get(SIZE_N, problem.n)

    def pitch_of(tensor: EpilogueOperand | EpilogueOutput) -> int:
        known = n if problem.columns_at_launch and tensor.pitch == problem.n else tensor.pitch
        return launched.get(pitch_name(tensor.label), known)

    tensors = [each if isinstance(each, torch.Tensor) else torch.tensor(float(each)) for each in passed]
    outputs, operands = tensors[: len(problem.outputs)], tensors[len(problem.outputs) :]
    values, repeats = [torch.zeros(())], {each.operand: each for each in problem.repeats}
    for described, tensor in zip(problem.epilogue.operands, operands, strict=True):
        repeat = repeats.get(described.label)
        divisor, modulus = _repeated(repeat, launched) if repeat is not None else (1, m)
        value = _operand(replace(described, pitch=pitch_of(described)), tensor, modulus, n).float()
        values.append(value if repeat is None else value[torch.arange(m) // divisor % modulus])
    labels = [described.label for described in problem.epilogue.operands]
    for gather in problem.gathers:
        at, tensor = labels.index(gather.operand), operands[labels.index(gather.operand)]
        columns = _columns(gather, lambda label: values[1 + labels.index(label)])
        pitch = pitch_of(problem.epilogue.operands[at])
        places = torch.arange(m)[:, None] * pitch + columns
        values[1 + at] = torch.as_strided(tensor, (max(0, m - 1) * pitch + n,), (1,))[places].float()
    for instruction in problem.epilogue.instructions:
        arguments = [
            torch.tensor(float(x.text)) if isinstance(x, Constant) else values[x] for x in instruction.arguments
        ]
        values.append(_apply(instruction.op, arguments, m, n))
    for output, out in zip(problem.outputs, outputs, strict=True):
        value, shape = values[output.value], (m, 1 if output.kind == "column" else n)
        value = value.expand(shape)
        if output.kind == "group":
            value = value[:, :: problem.epilogue.grouped[output.value]]
        if output.kind == "pair":
            value = value[:, ::2]
        if output.kind == "total" and problem.line_rows:
            value = value[:, :: problem.epilogue.grouped[output.value]].reshape(m // problem.line_rows, -1)
        elif output.kind in ("sum", "total"):
            value = torch.stack([rows.sum(0) for rows in value.split(problem.span)]) if m else value
        if output.kind == "total":
            value = value.sum(0, keepdim=True)
        torch.as_strided(out, value.shape, (pitch_of(output), 1)).copy_(value)


def _repeated(repeat: Repeat, launched: Mapping[str, int]) -> tuple[int, int]:
    """Return the divisor and the modulus of a repeat in a launch."""
    divisor, modulus = (launched[x] if isinstance(x, str) else x for x in (repeat.divisor, repeat.modulus))
    return divisor, modulus


def _columns(gather: Gather, value: Callable[[str], torch.Tensor]) -> torch.Tensor:
    """Return the column of each row that a gather reads."""
    index = value(gather.index)
    if not gather.comparison:
        return index.long()
    other = torch.tensor(float(gather.other.text)) if isinstance(gather.other, Constant) else value(gather.other)
    return torch.where(OPERATIONS[gather.comparison](index, other) != 0, index.long(), gather.otherwise)


def _operand(described: EpilogueOperand, tensor: torch.Tensor, m: int, n: int) -> torch.Tensor:
    if described.kind == "number":
        return tensor
    if described.kind == "exact":
        return torch.as_strided(tensor, (m, n), (described.pitch, 1))
    if described.kind == "group":
        return torch.as_strided(tensor, (m, n // described.group), (described.pitch, 1)).repeat_interleave(
            described.group, 1
        )
    if described.kind == "row":
        return torch.as_strided(tensor, (n,), (described.pitch,))
    return torch.as_strided(tensor, (m, 1), (described.pitch, 1))


def _apply(op: str, given: Sequence[torch.Tensor], m: int, n: int) -> torch.Tensor:
    if op == COLUMN_NUMBER:
        return torch.arange(n, dtype=torch.float32)
    if op == ROW_NUMBER:
        return torch.arange(m, dtype=torch.float32)[:, None]
    if op == ROW_PLACE:
        divisor, modulus = (int(x) for x in given)
        return (torch.arange(m) // divisor % modulus).float()[:, None]
    if op == PARTNER:
        return given[0].expand(m, n)[:, torch.arange(n) ^ 1]
    if op in GROUP_REDUCTIONS:
        value, size = given[0].expand(m, n), int(given[1])
        groups = value.reshape(-1, size)
        return REDUCTIONS[GROUP_REDUCTIONS[op]](groups).expand(groups.shape).reshape(m, n)
    if op not in REDUCTIONS:
        return OPERATIONS[op](*given)
    return REDUCTIONS[op](given[0].expand(m, n), *given[1:])
