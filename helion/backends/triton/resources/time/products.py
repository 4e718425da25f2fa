"""The demand of matmuls: matrix units, operands in shared memory, and operands that programs compute."""

from __future__ import annotations

from collections.abc import Mapping

from ....._compiler.facts.records import MatmulFact
from .....hardware import WARP_ROWS, Target
from ..layouts import fragment_warps
from ..matrix import rate_name, tile_shape, unit_of

#: Rows of one instruction of each matrix unit.
_UNIT_ROWS = {"mma": 16, "wgmma": 64, "tcgen05": 128}
_LEAST_COLUMNS = 8
#: Rows of the tiles that the fitted rate of converted operands is of.
_CONVERTED_ROWS = 128
_ACCUMULATOR_BYTES = 4
#: Accesses to the same bank of an operand that is computed in registers (measurement ``computed_operands``).
_SAME_BANK = 2.0
#: Bytes of an operand that one warp instruction (ldmatrix) loads to registers for the synchronous unit.
_FRAGMENT_BYTES = 256
#: Cost of such an instruction, which computes no address and has no mask, relative to another access. Tiles of few rows,
#: which alone have this unit on a GPU with another, take the time of a whole access (measurement ``staged_loops``).
_FRAGMENT_ACCESSES = 0.2


def warps_of_rows(fact: MatmulFact, sizes: Mapping[int, int], warps: int, target: Target) -> int:
    """Return the number of warps that compute each row of a result that another matmul consumes.

    Triton puts all warps along its rows, so that sums over a row stay within a warp. Of 64 rows, eight warps compute
    each twice (measurement ``repeated_scores``).
    """
    if unit_of(fact, sizes, warps, target) != "wgmma":
        return 1
    rows, _, _ = tile_shape(fact, sizes)
    return max(1, warps * WARP_ROWS // rows)


def warps_of_columns(fact: MatmulFact, sizes: Mapping[int, int], warps: int, target: Target) -> int:
    """Return the number of warps that compute each element of a right operand from what is loaded.

    Ops run in the layout of ``mma``'s fragments, which all warps along rows have (measurement ``repeated_operands``). No
    AMD GPU has timed it.
    """
    if not fact.rhs_prologue or fact.consumes or target.kind != "cuda" or unit_of(fact, sizes, warps, target) != "mma":
        return 1
    rows, columns, _ = tile_shape(fact, sizes)
    _, (below, _) = fragment_warps((rows, columns), warps, target)
    return below


def product(
    fact: MatmulFact,
    sizes: Mapping[int, int],
    warps: int,
    target: Target,
    *,
    times: float,
    repeats: int | None,
    loaded: int,
) -> dict[str, float]:
    """Return the demand of ``times`` runs of a matmul, by field.

    ``repeats`` are the warps of each row if another matmul consumes the result, else None. ``loaded`` are the bytes of a
    loaded element of the right operand.
    """
    rows, columns, depth = tile_shape(fact, sizes)
    unit = unit_of(fact, sizes, warps, target)
    padded, of_row = max(rows, _UNIT_ROWS[unit]), repeats or 1
    flops = 2.0 * padded * max(columns, _LEAST_COLUMNS) * depth * of_row
    took = times * flops / (target.matrix_tflops_for(rate_name(fact)) * 1e6) * target.num_sms
    other = target.has("wgmma") or target.has("tcgen05")
    found = {"matrix_us": took, "products": times}
    if unit == "mma":
        # each warp loads the rows and columns of its own fragments to registers
        _, (below, beside) = fragment_warps((rows, columns), warps, target)
        if other:
            found["synchronous_us"] = took
    else:
        groups = max(1, warps // 4)
        below = max(1, min(groups, padded // _UNIT_ROWS[unit]))
        beside = groups // below if repeats is None else 1
        if fact.lhs_dtype.itemsize == 4 and fact.rhs_layout != "k_major":
            found["converted_us"] = took * _CONVERTED_ROWS / padded
    read = times * (padded * beside * fact.lhs_dtype.itemsize + columns * below * fact.rhs_dtype.itemsize) * depth
    found["operand_bytes"] = read = read * of_row
    if unit == "mma":
        found["accesses"] = read / _FRAGMENT_BYTES * (1.0 if other else _FRAGMENT_ACCESSES)
    elif fact.rhs_prologue and not fact.consumes:
        # loaded to registers, computed, and stored to shared memory, for which all warps wait
        found["computed_bytes"] = times * columns * depth * (loaded + fact.rhs_dtype.itemsize) * _SAME_BANK
        found["barriers"] = times
    if fact.consumes and rows < WARP_ROWS * warps:
        found["turned_bytes"] = times * rows * depth * fact.lhs_dtype.itemsize
    if unit != "tcgen05":
        found["accumulated_bytes"] = times * padded * columns * _ACCUMULATOR_BYTES
    return found
