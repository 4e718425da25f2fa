"""``hl.dot_scaled``: products of matrices in microscaling formats."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
from typing import Any

import torch

from ... import exc
from ..._shapes import Dim
from ...language.matmul import SCALE_GROUP, check_scaled
from .tracer import Tracer
from .values import DeviceValue, describe

_HALF = ("bf16", "fp16")
#: Numbers along K of one instruction when both operands are e2m1 (``kind::mxf4`` of PTX's mma and tcgen05.mma).
_FOUR_BIT_K = 64


def dot_scaled(
    t: Tracer,
    mats: tuple[Any, Any],
    scales: tuple[Any, Any],
    formats: tuple[Any, Any],
    acc: DeviceValue | None,
    out_dtype: torch.dtype | None,
) -> DeviceValue:
    """``mats[0] @ mats[1] (+ acc)``; see ``hl.dot_scaled`` for shapes and dtypes."""
    for side, mat, scale, name in zip((1, 2), mats, scales, formats, strict=True):
        for value in (mat,) if scale is None else (mat, scale):
            t.refuse_operand(value, "in hl.dot_scaled")
            if not isinstance(value, DeviceValue):
                raise exc.TypeInferenceError(
                    f"hl.dot_scaled takes tiles, and None for a scale of 1, got {describe(value)}."
                )
        check_scaled(mat, scale, name, side)
    _check_target(t, scales, formats)
    lhs, rhs = mats
    inner = [
        _count(t, dim, 2 if name == "e2m1" else 1)
        for dim, name in zip((lhs.dims[1], rhs.dims[0]), formats, strict=True)
    ]
    if inner[0] != inner[1]:
        raise exc.ShapeMismatch(
            lhs=repr(lhs),
            rhs=repr(rhs),
            detail=f": as {formats[0]} and {formats[1]} they have {_text(t, inner[0])} and {_text(t, inner[1])} numbers along K",
        )
    for side, scale, rows, count in zip((1, 2), scales, (lhs.dims[0], rhs.dims[1]), inner, strict=True):
        if scale is not None:
            _check_scale(t, scale, rows, count, side)
    _raise_minimums(t, lhs, rhs, formats)
    result = out_dtype or (acc.dtype if acc is not None else torch.float32)
    if acc is not None:
        dims = (lhs.dims[0], rhs.dims[1])
        acc = t.cast(t.broadcast(acc, dims) if acc.dims != dims else acc, torch.float32)
    return t.cast(t.dot_scaled(lhs, rhs, acc, scales, formats), result)


def _check_target(t: Tracer, scales: tuple[Any, Any], formats: tuple[str, str]) -> None:
    """What Triton (3.6 to 3.9, compiled offline) does not lower."""
    if set(formats) == set(_HALF):
        raise exc.BackendUnsupported(
            what="hl.dot_scaled of bf16 and fp16", backend="Triton", remedy="; convert one of the operands"
        )
    for side, scale, name in zip((1, 2), scales, formats, strict=True):
        if scale is not None and name in _HALF and t.context.target.has("scaled_mma"):
            raise exc.BackendUnsupported(
                what=f"A scale of a {name} operand on {t.context.target}",
                backend="Triton",
                remedy=f"; multiply it into the operand and pass None as mat{side}_scale",
            )
    if not t.context.target.has("fp8") and set(formats) == {"e2m1", "fp16"}:
        raise exc.BackendUnsupported(
            what=f"hl.dot_scaled of e2m1 and fp16 on {t.context.target}",
            backend="Triton",
            remedy="; convert fp16 to bf16",
        )
    if t.context.target.kind == "hip" and not t.context.target.has("scaled_mma") and not _decodes_any_on_hip():
        _check_decoding(t, scales, formats)


@functools.cache
def _decodes_any_on_hip() -> bool:
    """Whether the installed Triton decodes both operands where the matrix unit has no scales: from 3.8 on."""
    for name in ("triton", "pytorch-triton-rocm", "pytorch-triton"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            major, minor = importlib.metadata.version(name).split(".")[:2]
            return (int(major), int(minor)) >= (3, 8)
    return True


def _check_decoding(t: Tracer, scales: tuple[Any, Any], formats: tuple[str, str]) -> None:
    """One operand is decoded by its scale there, and the other one is a matrix as it is."""

    def refuse(what: str, remedy: str) -> exc.Base:
        return exc.BackendUnsupported(
            what=f"{what} on {t.context.target}", backend="Triton", remedy=f"{remedy}, or use Triton 3.8"
        )

    if scales[0] is not None and scales[1] is not None:
        raise refuse(
            "hl.dot_scaled with two scales",
            "; decode one operand on its own (multiply its scale in, as bf16) and pass None as its scale",
        )
    for side, scale, name in zip((1, 2), scales, formats, strict=True):
        if scale is None and name == "e2m1":
            raise refuse(f"mat{side} of hl.dot_scaled as e2m1 without a scale", "; decode it to bf16")
        if scale is not None and name in _HALF:
            remedy = f"; multiply it into the operand and pass None as mat{side}_scale"
            raise refuse(f"A scale of a {name} operand", remedy)


#: A number of lanes: a constant times blocks whose size is not known when tracing.
_Count = tuple[int, tuple[int, ...]]


def _count(t: Tracer, dim: Dim, factor: int) -> _Count:
    """``factor`` times the elements of a dimension, as far as they are known."""
    count, open_blocks = dim.const * factor, []
    for block in dim.blocks:
        known = t.blocks[block].extent if t.blocks[block].kind == "full" else t.blocks[block].size
        if isinstance(known, int):
            count *= known
        else:
            open_blocks.append(block)
    return count, tuple(sorted(open_blocks))


def _text(t: Tracer, count: _Count) -> str:
    return " * ".join([str(count[0]), *(t.blocks[block].name for block in count[1])])


def _check_scale(t: Tracer, scale: DeviceValue, rows: Dim, numbers: _Count, side: int) -> None:
    found = _count(t, scale.dims[1], SCALE_GROUP)
    if scale.dims[0] == rows and found == numbers:
        return
    groups = f"{numbers[0] // SCALE_GROUP} * ..." if numbers[1] else f"{numbers[0]} / {SCALE_GROUP}"
    detail = (
        f": mat{side}_scale of hl.dot_scaled must be [{t.dim_text(rows)}, {groups}], one scale for {SCALE_GROUP} of the "
        f"{_text(t, numbers)} numbers along K"
    )
    if numbers[1] and numbers[0] % SCALE_GROUP:
        detail += "; give the loop over K a constant block_size, or tile over groups"
    raise exc.ShapeMismatch(lhs=repr(scale), rhs=f"mat{side}", detail=detail)


def _raise_minimums(t: Tracer, lhs: DeviceValue, rhs: DeviceValue, formats: tuple[str, str]) -> None:
    """Tiles are at least what the matrix unit takes, and along K a group of numbers with one scale."""
    rows, columns, _ = t.context.target.min_dot(1)
    packs = [2 if name == "e2m1" else 1 for name in formats]
    four_bit = packs == [2, 2] and t.context.target.has("scaled_mma")
    inner = _FOUR_BIT_K if four_bit else SCALE_GROUP
    numbers, open_blocks = _count(t, lhs.dims[1], packs[0])
    if not open_blocks and numbers < inner:
        raise exc.BackendUnsupported(
            what=f"hl.dot_scaled of {numbers} numbers along K on {t.context.target}",
            backend="Triton",
            remedy=f": of these formats it takes at least {inner}; pad with zeros",
        )
    sides = (
        (lhs.dims[0], rows),
        (rhs.dims[1], columns),
        (lhs.dims[1], inner // packs[0]),
        (rhs.dims[0], inner // packs[1]),
    )
    for dim, minimum in sides:
        known, open_blocks = _count(t, dim, 1)
        for block in open_blocks[-1:]:
            if t.blocks[block].tunable:
                t.update_block(block, min_size=max(-(-minimum // known), t.blocks[block].min_size))
