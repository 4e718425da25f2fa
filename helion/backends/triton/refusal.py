"""Refuses what a target cannot do at all, before anything is generated for it."""

from __future__ import annotations

import torch

from ... import exc
from ..._shapes import dtype_name
from ...hardware import Target
from ..ir.grammar import PointwiseAttrs, Program

_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_AMD_FLOAT8 = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


def check_support(program: Program, target: Target) -> Program:
    """e4m3, products of 8-bit floats and rounding to them need a target that has them. On others Triton has no e4m3, and
    3.6 writes instructions for rounding to e5m2 that its assembler refuses. Triton has no products of fp64 for AMD."""
    for op in program.walk() if target.kind == "hip" else ():
        if op.kind == "dot" and any(value.dtype is torch.float64 for value in op.values()):
            raise exc.BackendUnsupported(
                what=f"a matrix product of float64 on {target}",
                backend="Triton",
                remedy="; convert to float32 there, or sum up products",
                location=op.location,
            )
    for op in program.walk() if target.kind == "cuda" else ():
        for value in (*op.results, *op.values()):
            if value.dtype in _AMD_FLOAT8:
                raise exc.BackendUnsupported(
                    what=f"{dtype_name(value.dtype)} on {target}",
                    backend="Triton",
                    remedy="; it is AMD's format, convert the tensor to torch.float8_e4m3fn or float8_e5m2",
                    location=op.location,
                )
    if target.has("fp8"):
        return program
    for op in program.walk():
        rounded = isinstance(op.attrs, PointwiseAttrs) and op.attrs.name == "cast" and op.result.dtype in _FLOAT8
        for value in (*op.results, *op.values()):
            if value.dtype is torch.float8_e4m3fn or ((rounded or op.kind == "dot") and value.dtype in _FLOAT8):
                raise exc.BackendUnsupported(
                    what=f"{dtype_name(value.dtype)} on {target}",
                    backend="Triton",
                    remedy="; use bfloat16 there, or a target with 8-bit floats such as sm_90",
                    location=op.location,
                )
    return program
