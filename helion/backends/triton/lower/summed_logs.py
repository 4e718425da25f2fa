"""Logarithms of 16-bit elements that are summed, by one lg2 instruction.

``tl.log`` has 22 instructions on NVIDIA. The instruction of ``libdevice.fast_logf`` has an absolute error of 2**-22 to base 2
near 1, and a relative one of 2**-22 elsewhere. That is 2**-13 of what the rounding of a bf16 argument changes. Before::

    %1 = load x[b0, b1]                     # bf16
    %2 = log cast %1
    %3 = reduce sum %1 * %2

After::

    %1 = load x[b0, b1]
    %2 = inline _summed_log({cast %1})
    %3 = reduce sum %1 * %2

A stored element would show the relative error near 1, and so keeps the exact logarithm, as do 32-bit arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from ...._compiler.ir.grammar import InlineAttrs, Op, PointwiseAttrs, Program, ReduceAttrs, Value
from ...._compiler.ir.rewrite import Makers, map_ops
from ...._compiler.rewrites.steps import StepInputs

SUMMED_LOG = "_summed_log"
#: Ops that compute elements from elements.
_ELEMENTWISE = ("pointwise", "view", "mask")
_HALF = (torch.bfloat16, torch.float16)


def shorten_logs(program: Program, inputs: StepInputs) -> Program:
    """Return the program with short logarithms of 16-bit elements that only sums read, if ``inputs``."""
    logs = [op for op in program.walk() if _is_log(op)]
    if not inputs.summed_logs or not logs:
        return program
    makers, readers = Makers.among(program.walk()), _readers(program)
    short = {op.number for op in logs if _is_half(op, makers) and _is_summed(op, readers)}
    attrs = InlineAttrs((f"{SUMMED_LOG}({{0}})",), effect="none")
    return map_ops(program, lambda op: replace(op, kind="inline", attrs=attrs) if op.number in short else op)


def _is_log(op: Op) -> bool:
    return op.attrs == PointwiseAttrs("log") and op.result.dtype == torch.float32


def _is_half(log: Op, makers: Makers) -> bool:
    """Return whether a logarithm's argument is computed from loaded 16-bit elements alone."""
    left, seen = [*log.values()], set[int]()
    while left:
        value = left.pop()
        if value.number in seen:
            continue
        seen.add(value.number)
        made = makers.of(value)
        if made is None or made.kind not in (*_ELEMENTWISE, "load", "full"):
            return False
        if made.kind == "load" and value.dtype not in _HALF:
            return False
        left += made.values() if made.kind in _ELEMENTWISE else ()
    return True


def _is_summed(log: Op, readers: dict[int, list[Op | None]]) -> bool:
    """Return whether only sums read a logarithm, and what elementwise ops make of it in floats."""
    left, seen = [log.result], set[int]()
    while left:
        value = left.pop()
        for reader in readers.get(value.number, ()):
            if reader is None or reader.number in seen:
                if reader is None:
                    return False
                continue
            seen.add(reader.number)
            if isinstance(reader.attrs, ReduceAttrs) and reader.attrs.name == "sum":
                continue
            if reader.kind not in _ELEMENTWISE or not reader.result.dtype.is_floating_point:
                return False
            left.append(reader.result)
    return True


def _readers(program: Program) -> dict[int, list[Op | None]]:
    """Return the ops that read each value, by its number; None for the results of regions."""
    found: dict[int, list[Op | None]] = {}
    for op in program.walk():
        for value in op.values():
            found.setdefault(value.number, []).append(op)
        for value in _results(op):
            found.setdefault(value.number, []).append(None)
    return found


def _results(op: Op) -> Iterator[Value]:
    every: Iterable[object] = (each for region in op.regions for each in region.results)
    return (each for each in every if isinstance(each, Value))
