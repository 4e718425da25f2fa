"""Matmuls in microscaling formats that Triton (3.6 to 3.9, compiled offline) does not lower."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
from collections.abc import Iterator

from ... import exc
from ..._compiler.ir.grammar import DotAttrs, Op, Scaled
from ...hardware import Target

_HALF = ("bf16", "fp16")


def scaled_refusals(op: Op, target: Target) -> Iterator[exc.Base]:
    """Yield the reasons why ``op`` cannot be compiled, if it is such a matmul."""
    scaled = op.attrs.scaled if isinstance(op.attrs, DotAttrs) else None
    if scaled is None:
        return
    for what, remedy in _reasons(scaled, target):
        yield exc.BackendUnsupported(what=what, backend="Triton", remedy=f"; {remedy}", location=op.location)


def _reasons(scaled: Scaled, target: Target) -> Iterator[tuple[str, str]]:
    """Yield each unsupported feature with its remedy."""
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


@functools.cache
def _decodes_any_on_hip() -> bool:
    """Return whether the installed Triton decodes both operands where the matrix unit has no scales: from 3.8 on."""
    for name in ("triton", "pytorch-triton-rocm", "pytorch-triton"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            major, minor = importlib.metadata.version(name).split(".")[:2]
            return (int(major), int(minor)) >= (3, 8)
    return True


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
