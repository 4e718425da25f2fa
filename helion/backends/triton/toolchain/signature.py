"""The facts that Triton derives from a kernel's arguments at a launch, for compilation without a GPU."""

from __future__ import annotations

import math
from typing import Any

from ...._compiler.ir.grammar import HostTensor
from ...._shapes import hint_of
from ....hardware import Target
from ..codegen.ops.literals import SIGNATURE_DTYPES
from ..plan.records import ARRIVED, NumberArgument, Plan
from ..plan.units import KNOWN

#: AMD's backend addresses smaller tensors with buffer instructions.
_SMALL_BYTES = 2**31


def offline_signature(plan: Plan, target: Target, phase: int = 0) -> dict[str, Any]:
    """Return the signature of one phase's kernel, for arguments aligned to 16 bytes and the numbers seen when binding."""
    launch = plan.launch_of(phase)
    types = {a.name: f"*{SIGNATURE_DTYPES[a.tensor.dtype]}" for a in launch.tensors}
    types.update({a.name: _number_type(a) for a in launch.numbers})
    if plan.are_together(launch):
        types[ARRIVED] = "*i32"
    constexprs = {b.symbol: b.size for b in launch.blocks if b.dynamic is not None}
    constexprs |= {a.unit: math.gcd(a.hint, KNOWN) for a in launch.numbers if a.unit}
    if plan.launch.persistent:
        constexprs["_NUM_SM"] = target.num_sms
    types.update(dict.fromkeys(constexprs, "constexpr"))
    integers = [a for a in launch.numbers if a.kind is int]
    divisible = [a.name for a in launch.tensors if a.tensor.place == 0]
    divisible += [a.name for a in integers if a.hint % 16 == 0]
    return {
        "signature": types,
        "constexprs": constexprs,
        "divisible": frozenset(divisible),
        "equal_to_one": frozenset(a.name for a in integers if a.hint == 1),
        "small_pointers": frozenset(a.name for a in launch.tensors if _bytes(a.tensor) < _SMALL_BYTES),
        "target": target,
        "options": dict(plan.options_of(phase)),
    }


def _number_type(argument: NumberArgument) -> str:
    """Return Triton's type of a Python number that is passed to a kernel."""
    if argument.kind is bool:
        return "u1"
    if argument.kind is float:
        return "fp32"
    return "i32" if -(2**31) <= argument.hint < 2**31 else "i64"


def _bytes(tensor: HostTensor) -> int:
    return math.prod(hint_of(size) for size in tensor.shape) * tensor.dtype.itemsize
