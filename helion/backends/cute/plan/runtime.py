"""Numbers of a GEMM known only at launch: sizes, pitches of lines, and batch strides.

They are ``size_m``, ``size_n``, ``size_k`` and ``batches``, and ``pitch_`` and ``batch_stride_`` with the label of an
operand or output: parameters of the kernel have these names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from .dtypes import itemsize
from .records import TMA_ALIGNMENT_BYTES, Batch, GemmProblem

SIZES = ("size_m", "size_n", "size_k", "batches")


def is_size(name: str) -> bool:
    """Return whether a number is a count in 32 bits; the others are strides."""
    return name in SIZES


def multiple_of(problem: GemmProblem, name: str) -> int:
    """Return the required divisor of a stride in elements: 16 bytes for TMA, or 1 where TMA does not use it."""
    dtypes = {"a": problem.operand_dtype, "b": problem.operand_dtype}
    dtypes |= {problem.label_of(output): output.dtype for output in problem.outputs_of("exact")}
    moved = ("exact", "product")
    dtypes |= {operand.label: operand.dtype for operand in problem.epilogue.operands if operand.kind in moved}
    dtype = dtypes.get(name.partition("_")[2])
    return 1 if dtype is None or is_size(name) else TMA_ALIGNMENT_BYTES // itemsize(dtype)


def shown(problem: GemmProblem, name: str) -> str:
    """Return the name of a stride's tensor in messages."""
    label = name.partition("_")[2]
    others = {problem.label_of(output): output.name for output in problem.outputs}
    others |= {operand.label: operand.name for operand in problem.epilogue.operands}
    return dict(zip("abd", problem.names, strict=True)).get(label) or others[label]


def filled(problem: GemmProblem, numbers: Mapping[str, int]) -> GemmProblem:
    """Return `problem` of one launch, with these numbers by name."""

    def known(name: str, example: int) -> int:
        return numbers[name] if name in problem.runtime else example

    epilogue, batch = problem.epilogue, problem.batch
    operands = tuple(
        dataclasses.replace(each, pitch=known(f"pitch_{each.label}", each.pitch)) for each in epilogue.operands
    )
    outputs = tuple(
        dataclasses.replace(each, pitch=known(f"pitch_{problem.label_of(each)}", each.pitch))
        for each in epilogue.outputs
    )
    strides = (
        known(f"batch_stride_{operand.label}", pitch)
        for operand, pitch in zip(epilogue.operands, batch.operands if batch else (), strict=False)
    )
    written = (
        known(f"batch_stride_{problem.label_of(output)}", pitch)
        for output, pitch in zip(problem.outputs, batch.outputs if batch else (), strict=False)
    )
    d, *more = written if batch else (0,)
    return dataclasses.replace(
        problem,
        m=known("size_m", problem.m),
        n=known("size_n", problem.n),
        k=known("size_k", problem.k),
        a_pitch=known("pitch_a", problem.a_pitch),
        b_pitch=known("pitch_b", problem.b_pitch),
        d_pitch=outputs[0].pitch if outputs else known("pitch_d", problem.d_pitch),
        epilogue=dataclasses.replace(epilogue, operands=operands, outputs=outputs),
        batch=None
        if batch is None
        else Batch(
            size=known("batches", batch.size),
            a=known("batch_stride_a", batch.a),
            b=known("batch_stride_b", batch.b),
            d=d,
            operands=tuple(strides),
            more=tuple(more),
        ),
        runtime=(),
    )
