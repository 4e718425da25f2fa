"""Matmuls of tiles."""

from __future__ import annotations

from typing import Any

import torch

from .. import exc
from ._reference.access import fit
from ._reference.session import axes_of, current, set_axes
from ._registry import declare, reference


@declare("device")
def dot(
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    acc: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Multiply two tiles, ``mat1 @ mat2`` or ``acc + mat1 @ mat2``, on the tensor cores.

    Args:
        mat1: ``[M, K]`` or ``[B, M, K]``, of float16, bfloat16, float32, int8 or 8-bit floats. Products of float32 run
            in the precision of the setting ``dot_precision``, TF32 by default.
        mat2: ``[K, N]`` or ``[B, K, N]``. A matrix and a batch of matrices broadcast as in ``torch.matmul``.
        acc: ``[M, N]``, or ``[B, M, N]`` where an operand is a batch, added in its own dtype, which is the result's.
        out_dtype: dtype of the result; float32 by default, int32 for int8.

    Raises:
        exc.ShapeMismatch: K differs, or ``acc`` has another shape.
        exc.DotBatchDimensionMismatch: B differs.

    Example::

        @helion.kernel
        def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            (m, k), n = a.size(), b.size(1)
            out = torch.empty([m, n], dtype=a.dtype, device=a.device)
            for tile_m, tile_n in hl.tile([m, n]):
                acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
                for tile_k in hl.tile(k):
                    acc = hl.dot(a[tile_m, tile_k], b[tile_k, tile_n], acc=acc)
                out[tile_m, tile_n] = acc
            return out

        matmul(torch.randn(20, 30), torch.randn(30, 40))
    """


@declare("device")
def dot_scaled(
    mat1: torch.Tensor,
    mat1_scale: torch.Tensor | None,
    mat1_format: str,
    mat2: torch.Tensor,
    mat2_scale: torch.Tensor | None,
    mat2_format: str,
    acc: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Multiply tiles of numbers in microscaling formats (OCP MX specification 1.0): ``acc + mat1[M, K] @ mat2[K,
    N]``.

    A format is one of:

    - ``"e2m1"``: uint8, two numbers per byte along K, the first one in the low half. ``mat1`` is ``[M, K / 2]`` and
      ``mat2`` is ``[K / 2, N]``.
    - ``"e4m3"`` or ``"e5m2"``: float8 or uint8.
    - ``"bf16"`` or ``"fp16"``.

    Targets without the formats compute in bf16.

    Scales in e4m3 are those of NVFP4, one per 16 numbers in e2m1. The cute backend takes them on Blackwell, on request.

    Tiles of K are whole groups of 32: a whole dimension, an ``hl.tile`` with a constant ``block_size``, or a tile of
    groups. The elements of a tile of groups are at ``tile_g.begin * 32 + hl.arange(tile_g.block_size * 32)``.

    Args:
        mat1: ``[M, K]``, or ``[M, K / 2]`` in e2m1.
        mat1_scale: ``[M, K / 32]`` uint8, one scale per 32 numbers along K: e8m0, ``2 ** (scale - 127)``, 255 for nan.
            ``[M, K / 16]`` float8_e4m3fn of a matrix in e2m1. None is a scale of 1.
        mat1_format: the format of ``mat1``.
        mat2: ``[K, N]``, or ``[K / 2, N]`` in e2m1.
        mat2_scale: ``[N, K / 32]`` uint8, ``[N, K / 16]`` float8_e4m3fn, or None.
        mat2_format: the format of ``mat2``.
        acc: ``[M, N]``, added in its own dtype, which is the result's.
        out_dtype: dtype of the result; float32 by default.

    Raises:
        exc.InvalidAPIUsage: an unknown format.
        exc.TypeInferenceError: a dtype that does not match the format.
        exc.ShapeMismatch: the shapes do not match.

    Example::

        @helion.kernel
        def mx_matmul(a: torch.Tensor, a_scale: torch.Tensor, b: torch.Tensor, b_scale: torch.Tensor) -> torch.Tensor:
            (m, k), n = a.size(), b.size(1)
            out = torch.empty([m, n], dtype=torch.float32, device=a.device)
            for tile_m, tile_n in hl.tile([m, n]):
                out[tile_m, tile_n] = hl.dot_scaled(
                    a[tile_m, :], a_scale[tile_m, :], "e4m3", b[:, tile_n], b_scale[tile_n, :], "e4m3"
                )
            return out

        ones = torch.full([16, 2], 127, dtype=torch.uint8)
        mx_matmul(torch.ones(16, 64).to(torch.float8_e4m3fn), ones, torch.ones(64, 16).to(torch.float8_e4m3fn), ones)
    """


#: Numbers along K that share a scale in e8m0, and in e4m3.
SCALE_GROUP, SMALL_GROUP = 32, 16
#: The dtypes that hold each format.
SCALED_FORMATS: dict[str, tuple[torch.dtype, ...]] = {
    "e2m1": (torch.uint8,),
    "e4m3": (torch.float8_e4m3fn, torch.uint8),
    "e5m2": (torch.float8_e5m2, torch.uint8),
    "bf16": (torch.bfloat16,),
    "fp16": (torch.float16,),
}


def scale_group(dtype: torch.dtype) -> int:
    """Return the numbers along K that share a scale of ``dtype``."""
    return SMALL_GROUP if dtype == torch.float8_e4m3fn else SCALE_GROUP


def check_scaled(mat: Any, scale: Any, name: str, side: int) -> None:
    """Check that an operand of ``hl.dot_scaled`` and its scale, any objects with a dtype and ``ndim``, fit the
    format."""
    if name not in SCALED_FORMATS:
        known = ", ".join(map(repr, SCALED_FORMATS))
        raise exc.InvalidAPIUsage(f"mat{side}_format of hl.dot_scaled must be one of {known}, got {name!r}.")
    if mat.dtype not in SCALED_FORMATS[name]:
        expected = " or ".join(map(str, SCALED_FORMATS[name]))
        raise exc.TypeInferenceError(
            f"mat{side} of hl.dot_scaled has the format {name!r}, which is held as {expected}, got {mat.dtype}."
        )
    if scale is not None and scale.dtype == torch.float8_e4m3fn and name != "e2m1":
        raise exc.TypeInferenceError(
            f"mat{side}_scale of hl.dot_scaled is in torch.float8_e4m3fn, which scales numbers in 'e2m1', not in {name!r}."
        )
    if scale is not None and scale.dtype not in (torch.uint8, torch.float8_e4m3fn):
        raise exc.TypeInferenceError(
            f"mat{side}_scale of hl.dot_scaled must be e8m0 exponents as torch.uint8, got {scale.dtype}; use .view(torch.uint8) on the host."
        )
    for what, value in (("", mat), ("_scale", scale)):
        if value is not None and value.ndim != 2:
            raise exc.ShapeMismatch(
                lhs=f"mat{side}{what} of rank {value.ndim}", rhs="rank 2", detail=": hl.dot_scaled takes matrices"
            )


# --- eager reference ----------------------------------------------------------------------------------------------------

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
#: Dtypes of operands. Tensor cores of Triton's products take int8 and not uint8.
DOT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, *FLOAT8)


def check_dtypes(lhs: torch.dtype, rhs: torch.dtype) -> None:
    """Raise ``exc.TypeInferenceError`` for operands that no tensor core multiplies."""
    for side, dtype in (("left", lhs), ("right", rhs)):
        if dtype not in DOT_DTYPES:
            raise exc.TypeInferenceError(
                f"A matmul of {dtype} is not supported; convert the {side} operand to a floating point type or int8."
            )
    if lhs != rhs and (lhs in FLOAT8 or rhs in FLOAT8):
        raise exc.TypeInferenceError(
            f"A matmul of {lhs} and {rhs} is not supported; convert one operand to the dtype of the other, or both to "
            "torch.bfloat16."
        )


def accumulator_dtype(lhs: torch.dtype, rhs: torch.dtype) -> torch.dtype:
    """Return the dtype of the accumulator: int32 for int8, fp64 for fp64, else fp32."""
    if lhs == rhs == torch.int8:
        return torch.int32
    return torch.float64 if torch.float64 in (lhs, rhs) else torch.float32


def product(lhs: torch.Tensor, rhs: torch.Tensor, acc: torch.Tensor | None, dtype: torch.dtype | None) -> torch.Tensor:
    """Compute ``lhs @ rhs (+ acc)``, accumulated wide and rounded once to ``dtype`` (None: the accumulator's).

    Raises ``exc.ShapeMismatch``, ``exc.DotBatchDimensionMismatch`` and ``exc.TypeInferenceError`` for dtypes that no
    tensor core supports.
    """
    _check_operands(lhs, rhs)
    shared = current().common(lhs.shape[-1], rhs.shape[-2])
    if shared is None:
        raise exc.ShapeMismatch(
            lhs=list(lhs.shape),
            rhs=list(rhs.shape),
            detail=f": the inner dimensions {lhs.shape[-1]} and {rhs.shape[-2]} differ",
        )
    wide = accumulator_dtype(lhs.dtype, rhs.dtype)
    # GPUs have no integer product in torch; fp64 holds every sum of fewer than 2**37 products of 8-bit integers
    compute = torch.float64 if wide == torch.int32 else wide
    result = (lhs[..., :shared].to(compute) @ rhs[..., :shared, :].to(compute)).to(wide)
    rows = axes_of(lhs)[:-1] if lhs.ndim >= rhs.ndim else (axes_of(rhs)[0], axes_of(lhs)[0])
    axes = (*rows, axes_of(rhs)[-1])
    if acc is None:
        return set_axes(result.to(dtype or wide), axes)
    fitted = fit(acc, tuple(result.shape), current())
    if fitted is None:
        acc, result = current().aligned((acc, result))
    else:
        acc = fitted
    return set_axes((result + acc.to(wide)).to(dtype or acc.dtype), axes)


def _check_operands(lhs: Any, rhs: Any) -> None:
    for operand in (lhs, rhs):
        if not isinstance(operand, torch.Tensor):
            raise exc.TypeInferenceError("A matmul needs two device values.")
    check_dtypes(lhs.dtype, rhs.dtype)
    if {lhs.ndim, rhs.ndim} - {2, 3}:
        raise exc.ShapeMismatch(
            lhs=list(lhs.shape),
            rhs=list(rhs.shape),
            detail=": the operands of a matmul must be matrices or batches of them, of rank 2 or 3",
        )
    if (
        lhs.ndim == rhs.ndim == 3
        and current().common(lhs.shape[0], rhs.shape[0]) is None
        and 1 not in (lhs.shape[0], rhs.shape[0])
    ):
        raise exc.DotBatchDimensionMismatch(lhs=list(lhs.shape), rhs=list(rhs.shape), detail="")


@reference(dot)
def _dot(mat1: Any, mat2: Any, acc: Any = None, out_dtype: torch.dtype | None = None) -> torch.Tensor:
    return product(mat1, mat2, acc, out_dtype)


#: Values of the codes of e2m1: a sign bit, two bits of exponent, one of mantissa.
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
_FLOATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def _decoded(mat: torch.Tensor, scale: torch.Tensor | None, name: str, side: int) -> torch.Tensor:
    """Return the numbers ``[rows, K]`` of an operand, K last, times their scales."""
    if name == "e2m1":
        codes = torch.stack((mat & 15, mat >> 4), -1).flatten(1)
        values = torch.tensor(_E2M1, device=mat.device)[codes.long()]
    else:
        values = (mat.view(_FLOATS[name]) if mat.dtype == torch.uint8 else mat).float()
    if scale is None:
        return values
    group = scale_group(scale.dtype)
    groups, rows = -(-values.shape[1] // group), current().common(scale.shape[0], values.shape[0])
    if rows is None or scale.shape[1] < groups:
        raise exc.ShapeMismatch(
            lhs=list(scale.shape),
            rhs=[values.shape[0], groups],
            detail=f": mat{side}_scale of hl.dot_scaled has one scale for {group} numbers along K",
        )
    if scale.dtype == torch.uint8:
        powers = torch.ldexp(torch.ones_like(scale, dtype=torch.float32), scale.int() - 127)
        factors = powers.masked_fill(scale == 255, float("nan"))
    else:
        factors = scale.float()
    spread = factors.repeat_interleave(group, -1)[:rows, : values.shape[1]]
    return values[:rows] * spread


@reference(dot_scaled)
def _dot_scaled(
    mat1: Any,
    mat1_scale: Any,
    mat1_format: str,
    mat2: Any,
    mat2_scale: Any,
    mat2_format: str,
    acc: Any = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    for side, mat, scale, name in ((1, mat1, mat1_scale, mat1_format), (2, mat2, mat2_scale, mat2_format)):
        for value in (mat, scale):
            if not isinstance(value, torch.Tensor) and (value is not None or value is mat):
                raise exc.TypeInferenceError("hl.dot_scaled takes tiles, and None for a scale of 1.")
        check_scaled(mat, scale, name, side)
    lhs = _decoded(mat1, mat1_scale, mat1_format, 1)
    rhs = _decoded(mat2.t(), mat2_scale, mat2_format, 2).t()
    return product(lhs, rhs, acc, out_dtype)
