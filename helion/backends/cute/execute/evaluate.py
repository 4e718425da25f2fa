"""Evaluation of a kernel on CPU tensors: accumulation in fp32, then the epilogue value by value, as on the GPU."""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from ...._support.philox import WORD, philox, uniform
from ..plan.copied import E2M1, Copied, CopySource
from ..plan.dtypes import per_byte
from ..plan.epilogue import (
    BLOCK_REDUCTIONS,
    COLUMN_NUMBER,
    INTEGER_SUM,
    JOINED,
    PARTNER,
    ROW_NUMBER,
    Constant,
    EpilogueOperand,
    EpilogueOutput,
    LineNumbers,
)
from ..plan.operands import steps_of
from ..plan.records import GemmProblem, Groups, Major
from ..plan.scales import BlockScales, Ends, factors_of
from ..toolchain.kernel import GemmKernel
from .messages import await_messages, signal_peers
from .problems import Given, launched, split


def _truth(name: str) -> Callable[..., torch.Tensor]:
    """Return a comparison of torch as 1 or 0."""
    compare = getattr(torch, name)
    return lambda *values: compare(*values).float()


OPERATIONS: Mapping[str, Callable[..., torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "neg": torch.neg,
    "abs": torch.abs,
    "relu": torch.relu,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "tanh": torch.tanh,
    "one_plus_tanh": lambda x: 1 + torch.tanh(x),
    "erf": torch.erf,
    "sigmoid": torch.sigmoid,
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    **{name: getattr(torch, name) for name in ("exp2", "expm1", "log2", "log10", "log1p", "floor", "ceil", "trunc")},
    **{name: _truth(name) for name in ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite")},
    "where": lambda condition, x, y: torch.where(condition != 0, x, y),
    "round": torch.round,
    "round_float16": lambda x: x.half().float(),
    "round_bfloat16": lambda x: x.bfloat16().float(),
    "round_float8_e4m3fn": lambda x: x.clamp(-448.0, 448.0).to(torch.float8_e4m3fn).float(),
}
REDUCTIONS: Mapping[str, Callable[..., torch.Tensor]] = {
    "row_sum": lambda x: x.sum(1, keepdim=True),
    "row_maximum": lambda x: x.amax(1, keepdim=True),
    "row_minimum": lambda x: x.amin(1, keepdim=True),
    "row_first": lambda x, at: ((x == at) | (x.isnan() & at.isnan())).float().argmax(1, keepdim=True).float(),
}


def evaluate_gemm(kernel: GemmKernel, given: Sequence[Given]) -> None:
    """Run a GEMM on the arguments of a launch: A, B, the outputs, the epilogue's operands, the scales, and
    launch-time integers.

    Raises ``Refusal`` for arguments that the kernel cannot take.
    """
    passed, integers = split(kernel, given)
    problem = launched(kernel, integers)
    assert isinstance(problem, GemmProblem)
    tensors = [
        each if isinstance(each, torch.Tensor) else torch.tensor(each if isinstance(each, int) else float(each))
        for each in passed
    ]
    first_word = len(tensors) - len(problem.epilogue.words)
    tensors, words = tensors[:first_word], tensors[first_word:]
    if words:
        await_messages(problem, words)
    evaluate_problem(problem, tensors)
    if words:
        signal_peers(problem, words)


def evaluate_problem(problem: GemmProblem, tensors: list[torch.Tensor]) -> None:
    """Evaluate a GEMM, or all of a batch or of groups of rows."""
    if problem.starts:
        tensors = [
            _offset_view(each, start) if start else each for each, start in zip(tensors, problem.starts, strict=True)
        ]
    batch = problem.batch
    if problem.groups is not None:
        _evaluate_groups(problem, problem.groups, tensors)
        return
    if problem.ends is not None and problem.ends.groups is not None:
        _evaluate_groups_of_k(problem, problem.ends.groups, tensors)
        return
    levels = batch.levels if batch is not None else ()
    more = [steps for each in problem.copied for steps in _steps_of_more(problem, each)]
    pitches = [
        (
            *(level.a, level.b, *level.outputs, *level.operands),
            *(each.batch for each in factors_of(problem.scales)),
            *(steps[at] for steps in more),
            *level.terms,
        )
        for at, level in enumerate(levels)
    ]
    for indices in itertools.product(*(range(level.size) for level in levels)):
        starts = [sum(map(operator.mul, indices, steps)) for steps in zip(*pitches, strict=True)]
        views = (_offset_view(tensor, start) for tensor, start in zip(tensors, starts, strict=True))
        _evaluate(problem, [*views] if levels else tensors)


def _steps_of_more(problem: GemmProblem, copied: Copied) -> list[tuple[int, ...]]:
    """Return the strides of a batch of the tensors of a copied operand after the first."""
    found = [steps_of(problem, copied, at) for at in range(1, len(copied.sources))]
    return [*found, *((0,) * problem.batches for _ in copied.tensors[len(copied.sources) :])]


def _evaluate_groups(problem: GemmProblem, groups: Groups, tensors: Sequence[torch.Tensor]) -> None:
    """Evaluate the rows of each group, which begin at its offset in each tensor with rows."""
    *tensors, offsets = tensors
    epilogue = problem.epilogue.operands
    pitches = [problem.a_pitch if problem.a_major == "k" else 1, 0]
    pitches += [each.pitch if each.lines is None else 0 for each in problem.outputs]
    pitches += [each.pitch if each.kind in ("exact", "column") else 0 for each in epilogue]
    pitches += [each.pitch if each.side == "row" else 0 for each in factors_of(problem.scales)]
    a = problem.copy_of("a")
    if a is not None:
        pitches[0] = _step_of_lines(a.sources[0])
    for copied in problem.copied:
        pitches += [_step_of_lines(each) if copied is a else 0 for each in copied.tensors[1:]]
    pitches += [each.lines.pitch for each in problem.outputs if each.lines is not None]
    of_group = [0] * len(tensors)
    if problem.batch is not None:
        steps = [problem.batch.a, problem.batch.b, *problem.batch.outputs, *problem.batch.operands]
        steps += [each.batch for each in factors_of(problem.scales)]
        of_group[: len(steps)] = steps
    for group, first, after in _groups_of_rows(problem, groups, offsets):
        first, after = max(first, 0), min(after, problem.m)
        after = after if groups.longest is None else min(after, first + groups.longest)
        if first < after:
            starts = (group * step + first * pitch for step, pitch in zip(of_group, pitches, strict=True))
            views = [_offset_view(tensor, start) for tensor, start in zip(tensors, starts, strict=True)]
            _evaluate(dataclasses.replace(problem, m=after - first), views)


def _groups_of_rows(problem: GemmProblem, groups: Groups, offsets: torch.Tensor) -> Iterator[tuple[int, int, int]]:
    """Yield the number of a group, its first row and the one after its last, of each group or block of rows."""
    if groups.span is not None:
        counts = _offset_view(offsets, 0).as_strided((groups.size,), (groups.pitch,)).tolist()
        for group, count in enumerate(counts):
            yield group, group * groups.span, group * groups.span + min(count, groups.span)
        return
    if groups.rows is None:
        bounds = _offset_view(offsets, 0).as_strided((groups.size + 1,), (groups.pitch,)).tolist()
        yield from ((group, *each) for group, each in enumerate(itertools.pairwise(bounds)))
        return
    firsts = range(0, problem.m, groups.rows)
    numbers = _offset_view(offsets, 0).as_strided((len(firsts),), (groups.pitch,)).tolist()
    for first, number in zip(firsts, numbers, strict=True):
        yield min(max(number, 0), groups.size - 1), first, first + groups.rows


def _evaluate_groups_of_k(problem: GemmProblem, groups: Groups, tensors: Sequence[torch.Tensor]) -> None:
    """Evaluate the matmul of each group, whose K begins at its offset."""
    *tensors, offsets = tensors
    epilogue, batch = problem.epilogue.operands, problem.batch
    pitches = [problem.a_pitch, problem.b_pitch, *(0 for _ in problem.outputs)]
    pitches += [each.pitch if each.kind == "product" else 0 for each in epilogue]
    of_group = [0] * len(tensors) if batch is None else [batch.a, batch.b, *batch.outputs, *batch.operands]
    bounds = _offset_view(offsets, 0).as_strided((groups.size + 1,), (groups.pitch,)).tolist()
    for group, (first, after) in enumerate(itertools.pairwise(bounds)):
        first, after = max(first, 0), min(after, problem.k)
        starts = (group * step + first * pitch for step, pitch in zip(of_group, pitches, strict=True))
        views = [_offset_view(tensor, start) for tensor, start in zip(tensors, starts, strict=True)]
        _evaluate(dataclasses.replace(problem, k=max(after - first, 0), ends=None), views)


def _step_of_lines(source: CopySource | LineNumbers) -> int:
    """Return the elements from one line of an operand to the next in a tensor; 0 in one whose lines are picked."""
    return 0 if isinstance(source, CopySource) and source.picked else source.pitch


def _offset_view(tensor: torch.Tensor, elements: int) -> torch.Tensor:
    """Return a view that begins ``elements`` after the start of `tensor`; later reads use strides."""
    return torch.as_strided(tensor, (1,), (1,), tensor.storage_offset() + elements)


def _evaluate(problem: GemmProblem, tensors: Sequence[torch.Tensor]) -> None:
    """Evaluate one GEMM."""
    a, b, *others = tensors
    outputs, operands = others[: len(problem.outputs)], others[len(problem.outputs) :]
    operands, factors = operands[: len(problem.epilogue.operands)], operands[len(problem.epilogue.operands) :]
    of_copies = sum(len(each.tensors) - 1 for each in problem.copied)
    sources = iter(factors[:of_copies])
    more = iter(factors[of_copies:] if problem.more_sources else ())
    sums = {each.operand: each for each in problem.summed}
    left = _multiplied(problem, "a", a, sources)
    if problem.scales is None:
        values = [_product(problem, left, "b", b, sources)]
    else:
        block = problem.scales.k * per_byte(problem.operand_dtype)
        values = [_scaled(left, _multiplied(problem, "b", b, sources).t(), problem.scales, factors, block)]
    for described, tensor in zip(problem.epilogue.operands, operands, strict=True):
        if described.kind == "product":
            values.append(_product(problem, left, described.label, tensor, sources))
        elif described.label in sums:
            values.append(_summed(sums[described.label], tensor, more, described.kind, problem))
        else:
            values.append(_operand(described, tensor, problem).float())
    _add_terms(problem, values, factors[of_copies:], sources)
    for instruction in problem.epilogue.instructions:
        if instruction.op == INTEGER_SUM:
            values.append(_integer_sum(problem, a, b, operands))
            continue
        given = [torch.tensor(float(x.text)) if isinstance(x, Constant) else values[x] for x in instruction.arguments]
        values.append(_apply(instruction.op, given, problem))
    for output, out in zip(problem.outputs, outputs, strict=True):
        if output.lines is not None:
            _store_lines(output, out, values[output.value], problem, next(more))
        else:
            _store(output, out, values[output.value], problem)


def _integer_sum(
    problem: GemmProblem, a: torch.Tensor, b: torch.Tensor, operands: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Return the matmul of integers plus those of the epilogue, which wraps at 32 bits, in fp32."""
    left, right = (_multiplied(problem, label, each, iter(())) for label, each in (("a", a), ("b", b)))
    added = (
        each
        for described, each in zip(problem.epilogue.operands, operands, strict=True)
        if described.kind == "integers"
    )
    described = problem.epilogue.of_kind("integers")[0]
    matrix = torch.as_strided(next(added), (problem.m, problem.n), (described.pitch, described.column_pitch))
    return ((left @ right.t()).long() + matrix).to(torch.int32).float()


def _add_terms(
    problem: GemmProblem, values: list[torch.Tensor], tensors: Sequence[torch.Tensor], more: Iterator[torch.Tensor]
) -> None:
    """Add the further terms of a sum of matmuls, of which ``tensors`` are the operands, to the accumulators."""
    labels = ["b", *(each.label for each in problem.epilogue.operands)]
    added = [each for each in problem.multiplicands if each.term]
    for operand, tensor in zip(added, tensors, strict=False):
        if operand.base == "a":
            left = _multiplied(problem, operand.label, tensor, more)
        else:
            at = labels.index(operand.base)
            values[at] = values[at] + _product(problem, left, operand.label, tensor, more)


def _product(
    problem: GemmProblem, left: torch.Tensor, operand: str, tensor: torch.Tensor, more: Iterator[torch.Tensor]
) -> torch.Tensor:
    """Return what a right operand adds to its accumulator, in fp32: nothing if it is absent."""
    if problem.multiplicand(operand).absent:
        return torch.zeros(problem.m, problem.n)
    right = _multiplied(problem, operand, tensor, more).t()
    return _multiply(left, right) if problem.ends is None else _ended(left, right, problem.ends)


def _ended(left: torch.Tensor, right: torch.Tensor, ends: Ends) -> torch.Tensor:
    """Return the product whose K ends with each tile of rows, or of columns."""
    if ends.side == "n":
        return _ended(right.t(), left.t(), Ends(side="m", tile=ends.tile)).t()
    tiles = range(0, len(left), ends.tile)
    return torch.cat([_multiply(left[at : at + ends.tile, : at + ends.tile], right[: at + ends.tile]) for at in tiles])


def _multiply(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the product in fp32. That of integers is exact before it is rounded."""
    exact = left.dtype == torch.float64
    return (left @ right).float() if exact else left @ right


def _multiplied(problem: GemmProblem, operand: str, tensor: torch.Tensor, more: Iterator[torch.Tensor]) -> torch.Tensor:
    """Return an operand of the matmul as (M or N, K) in fp32, or in fp64 of integers; ``more`` has the further sources of
    copied operands."""
    held = torch.float64 if problem.operand_dtype == "int8" else torch.float32
    each, copied = problem.multiplicand(operand), problem.copy_of(operand)
    lines, major = (problem.m, problem.a_major) if each.base == "a" else (problem.n, problem.b_major)
    if copied is None:
        held_as = _matrix(tensor, lines, each.k, major, each.pitch)
        return _pairs(held_as) if per_byte(problem.operand_dtype) > 1 else held_as.to(held)
    stored = _elements(copied, tensor, more, lines, each.k)
    return stored.to(getattr(torch, problem.operand_dtype)).to(held)


def _summed(
    copied: Copied, tensor: torch.Tensor, more: Iterator[torch.Tensor], kind: str, problem: GemmProblem
) -> torch.Tensor:
    """Return the sums of computed elements along K, as a column or as a row."""
    lines = problem.m if kind == "column" else problem.n
    sums = _elements(copied, tensor, more, lines, problem.k).sum(1)
    return sums[:, None] if kind == "column" else sums


def _elements(copied: Copied, tensor: torch.Tensor, more: Iterator[torch.Tensor], lines: int, k: int) -> torch.Tensor:
    """Return computed elements as (lines, K) in fp32."""
    given = (tensor, *itertools.islice(more, len(copied.tensors) - 1))
    numbers = None
    if copied.lines is not None:
        of_k = any(each.k_picked for each in copied.sources)
        numbers = torch.as_strided(given[-1], (k if of_k else lines,), (copied.lines.pitch,)).long()
    values = [_source(source, each, lines, k, numbers) for source, each in zip(copied.sources, given, strict=False)]
    for instruction in copied.instructions:
        arguments = [
            torch.tensor(float(x.text)) if isinstance(x, Constant) else values[x] for x in instruction.arguments
        ]
        values.append(_made(instruction.op, arguments, lines, k))
    return values[copied.last].expand(lines, k)


def _source(source: CopySource, tensor: torch.Tensor, lines: int, k: int, numbers: torch.Tensor | None) -> torch.Tensor:
    """Return the elements of a source as (M or N, K) in fp32; ``numbers`` are those of picked lines."""
    if per_byte(source.dtype) > 1:
        return _nibbles(tensor, source, lines, k)
    along = source.k_picked or -(-k // source.shared)
    held = torch.as_strided(tensor, (source.picked or lines, along), (source.pitch, source.k_pitch))
    held = held.repeat_interleave(source.shared, 1)[:, :k] if source.shared > 1 else held
    if source.picked and numbers is not None:
        held = held[numbers.clamp(0, source.picked - 1)]
    if source.k_picked and numbers is not None:
        held = held[:, numbers.clamp(0, source.k_picked - 1)]
    return held.float()


def _nibbles(tensor: torch.Tensor, source: CopySource, lines: int, k: int) -> torch.Tensor:
    """Return the numbers of 4 bits of a tensor as (lines, K) in fp32."""
    half = source.apart
    strides = (source.stored_pitch, half * source.k_pitch, source.k_pitch)
    held = torch.as_strided(tensor, (lines, -(-k // (2 * half)), half), strides).int() & 255
    halves = (held & 15, held >> 4)
    bits = torch.cat(halves[::-1] if source.high_first else halves, dim=2).flatten(1)[:, :k]
    if source.dtype == "float4_e2m1fn_x2":
        return _e2m1(bits)
    return ((bits ^ 8) - 8 if source.dtype == "int4" else bits).float()


def _pairs(held: torch.Tensor) -> torch.Tensor:
    """Return the numbers in e2m1 of bytes, of which the low half is the first."""
    bits = held.view(torch.uint8).int()
    return _e2m1(torch.stack((bits & 15, bits >> 4), dim=2).flatten(1))


def _e2m1(bits: torch.Tensor) -> torch.Tensor:
    return torch.tensor(E2M1)[bits & 7] * torch.where(bits < 8, 1.0, -1.0)


def _scaled(
    left: torch.Tensor, right: torch.Tensor, scales: BlockScales, factors: Sequence[torch.Tensor], size: int
) -> torch.Tensor:
    """Return the sum over blocks of ``size`` numbers of K, each times its scales."""
    sums = torch.zeros(left.shape[0], right.shape[1])
    for block, first in enumerate(range(0, left.shape[1], size)):
        part = _multiply(left[:, first : first + size], right[first : first + size])
        for scale, tensor in zip(scales.factors, factors, strict=True):
            lines = torch.arange(part.shape[0 if scale.side == "row" else 1]) // scale.lines
            start = tensor.storage_offset() + block * scale.k_pitch
            found = torch.as_strided(tensor, (int(lines[-1]) + 1,), (scale.pitch,), start)[lines]
            found = _exponents(found) if scales.micro and found.dtype == torch.uint8 else found.float()
            part = part * (found[:, None] if scale.side == "row" else found)
        sums += part
    return sums


def _exponents(scales: torch.Tensor) -> torch.Tensor:
    """Return powers of two from e8m0 exponents; 255 is NaN."""
    return torch.where(scales == 255, torch.nan, torch.exp2(scales.float() - 127))


def _apply(op: str, given: Sequence[torch.Tensor], problem: GemmProblem) -> torch.Tensor:
    if op not in REDUCTIONS:
        return _made(op, given, problem.m, problem.n)
    return REDUCTIONS[op](given[0].expand(problem.m, problem.n), *given[1:])


def _made(op: str, given: Sequence[torch.Tensor], rows: int, columns: int) -> torch.Tensor:
    """Return the result of an elementwise operation, or of one that gives indices."""
    if op == COLUMN_NUMBER:
        return torch.arange(columns, dtype=torch.float32)
    if op == ROW_NUMBER:
        return torch.arange(rows, dtype=torch.float32)[:, None]
    if op in BLOCK_REDUCTIONS:
        value, size = given[0].expand(rows, 1), int(given[1])
        return REDUCTIONS[BLOCK_REDUCTIONS[op]](value.reshape(-1, size)).repeat_interleave(size, 0)
    if op == PARTNER:
        return given[0].expand(rows, columns)[:, torch.arange(columns) ^ 1]
    if op == JOINED:
        return torch.where(torch.arange(columns) % 2 == 0, given[0], given[1])
    return OPERATIONS[op](*given)


def _store(output: EpilogueOutput, out: torch.Tensor, value: torch.Tensor, problem: GemmProblem) -> None:
    if output.divided:
        sides = ((problem.m, output.pitch, output.rows), (problem.n, 1, output.columns))
        sizes = [n for extent, _, parts in sides for n in ((extent // parts.size, parts.size) if parts else (extent,))]
        steps = [n for _, step, parts in sides for n in ((parts.step, step) if parts else (step,))]
        torch.as_strided(out, sizes, steps).copy_(value.expand(problem.m, problem.n).reshape(sizes))
    elif output in problem.matrices:
        stored = torch.as_strided(out, (problem.m, output.pairs or problem.n), (output.pitch, output.column_pitch))
        value = value.expand(problem.m, problem.n)[:, :: 2 if output.pairs else 1]
        stored.copy_(stored + value.to(stored.dtype) if output.adds else value)
    else:
        value = value.expand(problem.m, 1)[:: output.block or 1]
        stored = torch.as_strided(out, value.shape, (output.pitch, 1))
        stored.copy_(stored + value.to(stored.dtype) if output.adds else value)


def _store_lines(
    output: EpilogueOutput, out: torch.Tensor, value: torch.Tensor, problem: GemmProblem, vector: torch.Tensor
) -> None:
    """Store rows to the lines that ``vector`` has the numbers of, or add them; none outside of the tensor."""
    assert output.lines is not None
    stored = torch.as_strided(out, (output.picked, problem.n), (output.pitch, output.column_pitch))
    numbers = torch.as_strided(vector, (problem.m,), (output.lines.pitch,)).long()
    inside = (numbers >= 0) & (numbers < output.picked)
    rows = value.expand(problem.m, problem.n)[inside].to(stored.dtype)
    stored.index_put_((numbers[inside],), rows, accumulate=output.adds)


def _matrix(tensor: torch.Tensor, lines: int, k: int, major: Major, pitch: int) -> torch.Tensor:
    """Return an operand as (M or N, K), with the addresses of the kernel."""
    return torch.as_strided(tensor, (lines, k), (pitch, 1) if major == "k" else (1, pitch))


def _operand(described: EpilogueOperand, tensor: torch.Tensor, problem: GemmProblem) -> torch.Tensor:
    if described.kind == "number":
        return tensor
    if described.kind == "uniform":
        rows, columns = torch.arange(problem.m)[:, None], torch.arange(problem.n)
        offsets = rows * described.pitch + columns * described.column_pitch
        return uniform(philox(tensor, offsets if described.dtype == "int64" else offsets & WORD)[0])
    if described.repeated:
        strides = (described.pitch, described.column_pitch)
        again = torch.as_strided(tensor, (problem.m, described.repeated), strides)
        return again[:, torch.arange(problem.n) % described.repeated]
    if described.pairs:
        strides = (described.pitch, described.column_pitch)
        pairs = torch.as_strided(tensor, (problem.m, described.pairs), strides)
        return pairs[:, torch.arange(problem.n) // 2 % described.pairs]
    if described.kind in ("exact", "strided", "integers"):
        return torch.as_strided(tensor, (problem.m, problem.n), (described.pitch, described.column_pitch))
    if described.kind == "row":
        return torch.as_strided(tensor, (problem.n,), (described.pitch,))
    return torch.as_strided(tensor, (problem.m, 1), (described.pitch, 1))
