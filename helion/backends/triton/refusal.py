"""Programs that Triton cannot compile for a target, refused before code is generated."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ... import exc
from ..._compiler.ir.grammar import Op, PointwiseAttrs, Program
from ..._shapes import dtype_name
from ...hardware import Target
from .scaled import scaled_refusals

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
        yield from scaled_refusals(op, target)
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
        rounded = isinstance(op.attrs, PointwiseAttrs) and op.attrs.name == "cast" and op.result.dtype in _FLOAT8
        for value in (*op.results, *op.values()):
            if value.dtype is torch.float8_e4m3fn or ((rounded or op.kind == "dot") and value.dtype in _FLOAT8):
                remedy = "use bfloat16 there, or a target with 8-bit floats such as sm_90"
                yield _unsupported(value.dtype, op, target, remedy)


def _unsupported(dtype: torch.dtype, op: Op, target: Target, remedy: str, of: str = "") -> exc.Base:
    return exc.BackendUnsupported(
        what=f"{of}{dtype_name(dtype)} on {target}", backend="Triton", remedy=f"; {remedy}", location=op.location
    )
