"""Matrix products."""

from __future__ import annotations

from typing import Any

import torch

from .. import exc
from ._reference import current
from ._reference_access import fit
from ._registry import declare, reference


@declare("device")
def dot(mat1: Any, mat2: Any, acc: Any = None, out_dtype: torch.dtype | None = None) -> Any:
    """``mat1[.., M, K] @ mat2[.., K, N] (+ acc)``, both of rank 2 or both of rank 3.

    Operands are fp16, bf16, fp32, int8 or fp8. The result is fp32 (int32 for int8) unless ``acc`` or ``out_dtype``
    says otherwise. Raises ``exc.ShapeMismatch`` and ``exc.DotBatchDimensionMismatch``.
    """


# --- eager reference ----------------------------------------------------------------------------------------------------

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_EIGHT_BIT_INTEGERS = (torch.int8, torch.uint8)
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, *_EIGHT_BIT_INTEGERS, *FLOAT8)


def accumulator_dtype(lhs: torch.dtype, rhs: torch.dtype) -> torch.dtype:
    """What products accumulate in: int32 for 8-bit integers, fp64 for fp64, else fp32."""
    if lhs in _EIGHT_BIT_INTEGERS and rhs in _EIGHT_BIT_INTEGERS:
        return torch.int32
    return torch.float64 if torch.float64 in (lhs, rhs) else torch.float32


def product(lhs: torch.Tensor, rhs: torch.Tensor, acc: torch.Tensor | None, dtype: torch.dtype | None) -> torch.Tensor:
    """``lhs @ rhs (+ acc)``, accumulated wide and rounded once to ``dtype`` (None: the accumulator's).

    Raises ``exc.ShapeMismatch``, ``exc.DotBatchDimensionMismatch`` and ``exc.TypeInferenceError`` for dtypes that no
    matrix unit takes.
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
    if acc is None:
        return result.to(dtype or wide)
    fitted = fit(acc, tuple(result.shape), current())
    if fitted is None:
        acc, result = current().aligned((acc, result))
    else:
        acc = fitted
    return (result + acc.to(wide)).to(dtype or acc.dtype)


def _check_operands(lhs: Any, rhs: Any) -> None:
    for operand in (lhs, rhs):
        if not isinstance(operand, torch.Tensor):
            raise exc.TypeInferenceError("A matrix product needs two device values.")
        if operand.dtype not in _DTYPES:
            raise exc.TypeInferenceError(
                f"A matrix product of {operand.dtype} is not supported; convert the operands to a floating point type or int8."
            )
    if lhs.ndim != rhs.ndim or lhs.ndim not in (2, 3):
        raise exc.ShapeMismatch(
            lhs=list(lhs.shape),
            rhs=list(rhs.shape),
            detail=": a matrix product needs two operands of rank 2, or two of rank 3",
        )
    if lhs.ndim == 3 and current().common(lhs.shape[0], rhs.shape[0]) is None and 1 not in (lhs.shape[0], rhs.shape[0]):
        raise exc.DotBatchDimensionMismatch(lhs=list(lhs.shape), rhs=list(rhs.shape), detail="")


@reference(dot)
def _dot(mat1: Any, mat2: Any, acc: Any = None, out_dtype: torch.dtype | None = None) -> torch.Tensor:
    return product(mat1, mat2, acc, out_dtype)
