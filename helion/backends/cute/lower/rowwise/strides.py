"""``launch_strides``: strides of rows that only the launch knows, and what they have to be multiples of."""

from __future__ import annotations

from typing import Protocol

from ....._shapes import Expr, Number
from ...plan.dtypes import itemsize
from ...plan.epilogue import Epilogue
from ...plan.refusal import Refusal
from ...plan.rowwise.demand import GRANULE_BYTES
from ...plan.rowwise.records import pitch_name
from ..numbers import dividing

FIRST_OUTPUT = "pitch_d"
"""The name of the first matrix's stride in a chain."""
Strides = tuple[tuple[str, Expr], ...]


class Chain(Protocol):
    runtime: dict[str, Expr]


def launch_strides(chain: Chain, epilogue: Epilogue, columns: Number) -> tuple[Strides, tuple[tuple[str, int], ...]]:
    """Return the strides by name, and the divisors of host numbers so that rows begin at multiples of 16 bytes.

    A kernel is for ``columns`` of which only the launch knows the number if all are multiples of 16 bytes, or none is.
    Raises ``Refusal`` for strides of others than matrices, and for rows that begin elsewhere.
    """
    inputs = epilogue.of_kind("exact")
    matrices = [output for output in epilogue.outputs if output.kind == "exact"]
    lanes = GRANULE_BYTES // min((itemsize(operand.dtype) for operand in inputs), default=1)
    labels = [*(operand.label for operand in inputs), *(output.label for output in matrices)]
    names = {pitch_name(label) for label in labels}
    strides: list[tuple[str, Expr]] = []
    divisors: dict[str, int] = {columns.args[0]: lanes} if isinstance(columns, Expr) else {}
    anywhere = isinstance(columns, Expr) and columns.hint % lanes != 0
    for given, number in chain.runtime.items():
        name = pitch_name(matrices[0].label) if given == FIRST_OUTPUT and matrices else given
        if name not in names:
            raise Refusal(f"strides that are known only at launch are implemented for matrices, not for {name}")
        if anywhere:
            raise Refusal(
                f"rows whose columns only the launch knows are contiguous, unless they are multiples of {lanes} elements;"
                f" {name} is another stride"
            )
        found = dividing(lanes, number)
        if found is None:
            raise Refusal(
                f"strides of rows that are known only at launch are multiples of {lanes} elements; {name} is not"
            )
        divisors |= dict.fromkeys(found, lanes)
        strides.append((name, number))
    return tuple(strides), tuple(divisors.items())
