"""Capabilities of Triton: its limits on a target, its indexing mechanisms, and programs that it cannot compile."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from ... import exc, knobs
from ..._compiler.context import Limits
from ..._shapes import dtype_name
from ..._support.lazy import lazy
from ...hardware import Target
from ...language.matmul import SCALE_GROUP

if TYPE_CHECKING:
    from ..._compiler.ir import grammar
    from ..._compiler.ir.grammar import Op, Program, Scaled
else:
    # the limits are read without a program
    grammar = lazy("helion._compiler.ir.grammar")

#: Elements along K of one instruction when both operands are e2m1 (``kind::mxf4`` of PTX's mma and tcgen05.mma).
_FOUR_BIT_K = 64


def limits(target: Target) -> Limits:
    """Return the limits of ``target``.

    Triton passes Python floats in fp32. On AMD it has no tf32x3, and tf32 only where the matrix unit has it (MI300X,
    not MI355X).
    """
    precisions = {"ieee", "tf32", "tf32x3"}
    if target.kind == "hip":
        precisions = {"ieee", "tf32"} if "tf32" in dict(target.matrix_tflops) else {"ieee"}
    return Limits(
        backend="Triton",
        powers_of_2=True,
        loads_rows=True,
        tile_step=None,
        min_dot={itemsize: target.min_dot(itemsize) for itemsize in (1, 2, 4, 8)},
        min_four_bit_k=_FOUR_BIT_K if target.has("scaled_mma") else SCALE_GROUP,
        dot_precisions=frozenset(precisions),
        float_arguments=torch.float32,
        stops=knobs.TRITON_INTERPRET.read(),
    )


@functools.cache
def mechanisms() -> frozenset[str]:
    """Return its indexing mechanisms: 3.9 has no block pointers."""
    import triton  # 0.2 s, paid when a kernel first asks for more than pointers

    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    return frozenset(("pointer", "tensor_descriptor", *(("block_ptr",) if version < (3, 9) else ())))


# --- refused programs ---------------------------------------------------------------------------------------------------

_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_AMD_FLOAT8 = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


def refusal(program: Program, target: Target) -> exc.Base | None:
    """Return the first reason why Triton cannot compile ``program`` for ``target``.

    e4m3, dots of 8-bit floats and rounding to them need a target that has them. Elsewhere Triton has no e4m3, and for
    rounding to e5m2 Triton 3.6 generates instructions that ptxas rejects. Triton has no dots of fp64 for AMD.
    """
    return next(_refusals(program, target), None)


def _refusals(program: Program, target: Target) -> Iterator[exc.Base]:
    for op in program.walk():
        yield from _scaled_refusals(op, target)
    for op in program.walk() if target.kind == "hip" else ():
        if op.kind == "dot" and any(value.dtype is torch.float64 for value in op.values()):
            yield _unsupported(
                torch.float64, op, target, "convert to float32 there, or sum elementwise products", "a matmul of "
            )
    for op in program.walk() if target.kind == "cuda" else ():
        for value in (*op.results, *op.values()):
            if value.dtype in _AMD_FLOAT8:
                remedy = "the format is AMD's; convert the tensor to torch.float8_e4m3fn or float8_e5m2"
                yield _unsupported(value.dtype, op, target, remedy)
    for op in program.walk() if not target.has("fp8") else ():
        rounded = (
            isinstance(op.attrs, grammar.PointwiseAttrs) and op.attrs.name == "cast" and op.result.dtype in _FLOAT8
        )
        for value in (*op.results, *op.values()):
            if value.dtype is torch.float8_e4m3fn or ((rounded or op.kind == "dot") and value.dtype in _FLOAT8):
                remedy = "use bfloat16 there, or a target with 8-bit floats such as sm_90"
                yield _unsupported(value.dtype, op, target, remedy)


def _unsupported(dtype: torch.dtype, op: Op, target: Target, remedy: str, of: str = "") -> exc.Base:
    return exc.BackendUnsupported(
        what=f"{of}{dtype_name(dtype)} on {target}", backend="Triton", remedy=f"; {remedy}", location=op.location
    )


# --- matmuls in microscaling formats (Triton 3.6 to 3.9, compiled offline) ----------------------------------------------

_HALF = ("bf16", "fp16")


def _scaled_refusals(op: Op, target: Target) -> Iterator[exc.Base]:
    """Yield the reasons why ``op`` cannot be compiled, if it is such a matmul."""
    scaled = op.attrs.scaled if isinstance(op.attrs, grammar.DotAttrs) else None
    if scaled is None:
        return
    held = (op.operands[at] for at in (scaled.lhs_scale, scaled.rhs_scale) if at is not None)
    for what, remedy in _reasons(scaled, target, [scale.dtype for scale in held if isinstance(scale, grammar.Value)]):
        yield exc.BackendUnsupported(what=what, backend="Triton", remedy=f"; {remedy}", location=op.location)


def _reasons(scaled: Scaled, target: Target, scales: Sequence[torch.dtype]) -> Iterator[tuple[str, str]]:
    """Yield each unsupported feature with its remedy."""
    if torch.float8_e4m3fn in scales:
        yield "hl.dot_scaled with scales in float8_e4m3fn", "decode the operands"
    formats = {scaled.lhs_format, scaled.rhs_format}
    if formats == set(_HALF):
        yield "hl.dot_scaled of bf16 and fp16", "convert one of the operands"
    for side, name, has_scale in _sides(scaled):
        if has_scale and name in _HALF and target.has("scaled_mma"):
            yield f"A scale of a {name} operand on {target}", _multiply_in(side)
    if not target.has("fp8") and formats == {"e2m1", "fp16"}:
        yield f"hl.dot_scaled of e2m1 and fp16 on {target}", "convert fp16 to bf16"
    if target.kind == "hip" and not target.has("scaled_mma") and not _decodes_any_on_hip():
        for what, remedy in _undecoded(scaled):
            yield f"{what} on {target}", f"{remedy}, or use Triton 3.8"


def _sides(scaled: Scaled) -> Iterator[tuple[int, str, bool]]:
    yield 1, scaled.lhs_format, scaled.lhs_scale is not None
    yield 2, scaled.rhs_format, scaled.rhs_scale is not None


def _multiply_in(side: int) -> str:
    return f"multiply it into the operand and pass None as mat{side}_scale"


def _decodes_any_on_hip() -> bool:
    """Return whether the installed Triton decodes both operands where the matrix unit has no scales: from 3.8 on."""
    return _installed() >= (3, 8)


def prefers_first_lanes() -> bool:
    """Return whether lanes lie along the first dimension where no addresses are known to be neighbors: up to 3.6.

    From 3.7 on they lie along the last one.
    """
    return _installed() < (3, 7)


@functools.cache
def _installed() -> tuple[int, int]:
    """Return the version of the installed Triton without importing it; a later one if there is none."""
    for name in ("triton", "pytorch-triton-rocm", "pytorch-triton"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            major, minor = importlib.metadata.version(name).split(".")[:2]
            return int(major), int(minor)
    return 4, 0


def _undecoded(scaled: Scaled) -> Iterator[tuple[str, str]]:
    """Yield the unsupported cases of decoding: one operand has a scale and is decoded, the other has no scale."""
    if scaled.lhs_scale is not None and scaled.rhs_scale is not None:
        yield (
            "hl.dot_scaled with two scales",
            "decode one operand on its own (multiply its scale in, as bf16) and pass None as its scale",
        )
    for side, name, has_scale in _sides(scaled):
        if not has_scale and name == "e2m1":
            yield f"mat{side} of hl.dot_scaled as e2m1 without a scale", "decode it to bf16"
        if has_scale and name in _HALF:
            yield f"A scale of a {name} operand", _multiply_in(side)
