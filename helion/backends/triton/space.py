"""Config keys of Triton: options of ``tl.range``, the launch, and memory accesses."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any

from ..._compiler.ir.grammar import Block, LoopAxis, OperandRef, Program
from ..._compiler.passes.ahead import stepping_loops
from ..._compiler.passes.hoist import computed_operands
from ..._compiler.passes.join import joinable_loops
from ..._compiler.passes.materialize import split_off
from ..._compiler.passes.pack import unaligned_operands
from ..._compiler.passes.peel import peelable
from ..._compiler.passes.split_sums import OPEN_GRID, spread_loops
from ..._shapes import Expr, cdiv, previous_power_of_2
from ...autotuner.space.fields import (
    Field,
    Indexing,
    OptionsFile,
    PerAccess,
    PerSlot,
    Scalar,
    Slot,
)
from ...autotuner.space.own import Missing, OwnKeys
from ...autotuner.space.survey import Survey
from ...config import RANGE_OPTIONS
from ...fields import BooleanFragment, EnumFragment, Fragment, IntegerFragment, PowerOfTwoFragment, values_of
from ...hardware import Target
from ...settings import Settings
from .held import check_held_values
from .product_tile import ProductTile
from .settle import bound_seen, crosswise, rules, split_axis, turns, unmaterialized, unsplit

#: Launcher options under any name; they are passed on as they are.
VERBATIM_PREFIX = "_triton_config_"
#: Most iterations of a loop that may be unrolled at compile time.
STATIC_TRIPS = 8
#: Most pipeline stages of a loop over single indices without a matmul, whose steps wait for loads alone.
_STEP_STAGES = 8
#: Largest split-K factor: the reduction kernel has this many loads in flight at once.
MOST_PARTS = 64
#: The same where programs share the loops after the accumulation too: a grid of one tile must fill all SMs a few times.
MOST_SPREAD = 512
#: Sides of tiles of unfused matmuls.
_LEAST_SIDE, _MOST_SIDE, _MOST_DEPTH = 16, 256, 256
#: Least elements of a split that searches try, sides of the tiles that they assume, and most waves of programs.
_LEAST_PART, _LARGE_TILE, _ROUNDS = 128, 128, 4

PID_TYPES = ("flat", "xyz", "persistent_blocked", "persistent_interleaved")
#: Keys that other implementations have, and why they are refused here.
_NOT_GENERATED = {
    "xcd_remap": "no code is generated for it",
    "num_ctas": "it is a key of the tileir backend, which is not here",
    "occupancy": "it is a key of the tileir backend, which is not here",
}


_FLAG = BooleanFragment()
#: Keys of a full config for other sizes, strides, settings or targets.
_MISSING: dict[str, Missing] = {
    **{option.key: Missing(fragment=option.values, initial=option.off) for option in RANGE_OPTIONS},
    "split_k": Missing(fragment=PowerOfTwoFragment(1, MOST_SPREAD), initial=1, structural=True),
    "swap_ab": Missing(fragment=_FLAG, initial=False, structural=True),
    "pack_operands": Missing(fragment=_FLAG, initial=False, structural=True),
    "transpose_operands": Missing(fragment=_FLAG, initial=False, structural=True),
    "precompute_operands": Missing(fragment=_FLAG, initial=False, structural=True),
    "fuse_loops": Missing(fragment=_FLAG, initial=False, structural=True),
    "peel_masks": Missing(fragment=_FLAG, initial=False, structural=True),
    "prefetch_distance": Missing(fragment=IntegerFragment(0, _STEP_STAGES), initial=0, structural=True),
    "unfuse_matmul": Missing(fragment=PowerOfTwoFragment(1, _MOST_SIDE), structural=True),
    "matmul_num_warps": Missing(fragment=PowerOfTwoFragment(1, 32), structural=True),
    "matmul_num_stages": Missing(fragment=IntegerFragment(1, 8), structural=True),
}
_PRODUCTS = frozenset(("dot", "dot_scaled"))
#: Matmul keys that depend on strides and dtypes, and those that sizes which differ from call to call rule out.
_OF_PRODUCTS = ("swap_ab", "pack_operands", "transpose_operands")
_OF_KNOWN_SIZES = ("precompute_operands", "unfuse_matmul", "matmul_num_warps", "matmul_num_stages")
#: Keys that no arguments of a kernel have on this target, with the values that request nothing.
_NEUTRAL: dict[str, Any] = {"waves_per_eu": 0, "matrix_instr_nonkdim": 0, "num_ctas": 1, "occupancy": 1}


def _missing(program: Program, settings: Settings, absent: Mapping[str, str]) -> dict[str, Missing]:
    """Return the keys that a kernel has with other arguments.

    The matmul keys depend on sizes, strides and dtypes alone where there is a matmul, and ``split_k`` where a grid has
    open sizes. A checked kernel has no rewrites.
    """
    multiplies = any(op.kind in _PRODUCTS for op in program.walk())
    is_open = any(isinstance(n, Expr) for tensor in program.tensors for n in tensor.shape)
    differing = {
        *(_OF_PRODUCTS if multiplies else ()),
        *(_OF_KNOWN_SIZES if multiplies and is_open else ()),
        *(("split_k",) if absent.get("split_k") == OPEN_GRID else ()),
    }
    known = {
        key: dataclasses.replace(each, structural=each.structural and key not in differing and not settings.checked)
        for key, each in _MISSING.items()
    }
    neutral = {key: Missing(fragment=None, initial=value) for key, value in _NEUTRAL.items()}
    return {**known, **neutral}


def own_keys(seen: Survey, program: Program, target: Target, settings: Settings) -> OwnKeys:
    """Return the keys of a program, and the rules that legalize them."""
    absent = dict(_NOT_GENERATED)
    fields = [
        *_range_fields(seen, target, settings, absent),
        _static_field(seen),
        *_launch_fields(seen, target, absent),
        *_split_fields(program, target, settings, absent),
        *_turn_fields(program, target, absent),
        *_pack_fields(program, settings, absent),
        *_transpose_fields(program, target, settings, absent),
        *_hoist_fields(program, settings, absent),
        *_join_fields(program, settings, absent),
        *_peel_fields(program, settings, absent),
        *_ahead_fields(program, settings, absent),
        *_product_fields(program, target, settings, absent),
        *_memory_fields(seen),
    ]
    return OwnKeys(
        fields=tuple(fields),
        absent=absent,
        verbatim=VERBATIM_PREFIX,
        missing=_missing(program, settings, absent),
        rules=rules(seen, program, target, settings),
        check=functools.partial(check_held_values, seen, program, target),
    )


# --- loops ---------------------------------------------------------------------------------------------------------


def _range_fields(seen: Survey, target: Target, settings: Settings, absent: dict[str, str]) -> list[Field]:
    """Return fields with one entry per grid loop and per dimension of a device loop."""
    fields: list[Field] = []
    for option in RANGE_OPTIONS:
        key = option.key
        if key == "range_warp_specializes" and (why := _no_specialization(target, settings)):
            absent[key] = why
            continue
        slots = tuple(_range_slots(seen, key, option.values))
        per = "grid loop and per dimension of a device loop"
        elsewhere = IntegerFragment(0, _STEP_STAGES) if key == "range_num_stages" else None
        fields.append(PerSlot(key=key, slots=slots, per=per, elsewhere=elsewhere))
    return fields


def _range_slots(seen: Survey, key: str, fragment: Fragment) -> Iterable[Slot]:
    for number, loop in enumerate(seen.loops):
        if key == "range_num_stages" and loop.rewritten:
            remedy = f"the loop loads and stores {loop.rewritten!r}, and prefetching could read it before it is written"
            choice: Fragment = EnumFragment((0,))
        else:
            choice, remedy = fragment, ""
        if loop.root is not None:
            name = f"the grid over {seen.axes_text(loop.axes)}"
            ids = tuple(axis.block for axis in loop.axes)
            yield Slot(name=name, at=number, fragment=choice, initial=choice.default(), ids=ids, remedy=remedy)
            continue
        for place, axis in enumerate(loop.axes):
            deep = key == "range_num_stages" and axis.scalar and not seen.matrix_blocks and not remedy
            yield Slot(
                name=f"the loop over {seen.blocks[axis.block].name}",
                at=(number, place),
                fragment=IntegerFragment(0, _STEP_STAGES, 0) if deep else choice,
                initial=choice.default(),
                ids=(axis.block,),
                remedy=remedy,
            )


def _no_specialization(target: Target, settings: Settings) -> str:
    if not target.has("warp_specialize"):
        return f"{target} has no warp specialization"
    return "" if settings.allow_warp_specialize else "the setting allow_warp_specialize is off"


def _static_field(seen: Survey) -> Field:
    slots = (
        Slot(
            name=f"the loop over {seen.blocks[axis.block].name}",
            at=(number, place),
            fragment=BooleanFragment(),
            initial=False,
        )
        for number, loop in enumerate(seen.loops)
        if loop.root is None
        for place, axis in enumerate(loop.axes)
        if _is_static(seen.blocks[axis.block], axis)
    )
    per = f"dimension of a device loop with constant bounds and at most {STATIC_TRIPS} iterations"
    return PerSlot(key="static_ranges", slots=tuple(slots), per=per, spare=True)  # other sizes take fewer iterations


def _is_static(block: Block, axis: LoopAxis) -> bool:
    if not (isinstance(axis.begin, int) and isinstance(axis.end, int)):
        return False
    step = axis.step if axis.scalar else 1 if block.size is None else block.size
    return isinstance(step, int) and step > 0 and cdiv(axis.end - axis.begin, step) <= STATIC_TRIPS


# --- launch and memory ---------------------------------------------------------------------------------------------


def _launch_fields(seen: Survey, target: Target, absent: dict[str, str]) -> list[Field]:
    warps = min(32, target.max_threads_per_block // target.warp_size)
    pid_types, remedies = _pid_types(seen, target)
    maxnreg = (None, 32, 64, 128, 256) if target.kind == "cuda" else (None,)
    # 32 registers leave ptxas too few besides the operands and accumulators of a warp group's matrix instruction
    searched = tuple(n for n in maxnreg if n != 32 or not (seen.matrix_blocks and target.has("wgmma")))
    fields: list[Field] = [
        Scalar(key="num_warps", weight=4.0, fragment=PowerOfTwoFragment(1, warps), initial=4),
        Scalar(key="num_stages", weight=2.0, fragment=IntegerFragment(1, 8), initial=1),
        Scalar(
            key="pid_type",
            fragment=EnumFragment(pid_types),
            initial=pid_types[0],
            remedies=remedies,
        ),
        Scalar(key="num_sm_multiplier", fragment=PowerOfTwoFragment(1, 128), initial=1),
        Scalar(key="maxnreg", fragment=EnumFragment(maxnreg), initial=None, searched=EnumFragment(searched)),
    ]
    # Ranges and defaults of the options of Triton's AMD backend; 0 leaves the choice to it.
    for key, choices in (("waves_per_eu", (0, 1, 2, 3, 4)), ("matrix_instr_nonkdim", (0, 16, 32))):
        if target.kind == "hip":
            fields.append(Scalar(key=key, fragment=EnumFragment(choices), initial=0))
        else:
            absent[key] = f"it is an option of AMD GPUs, and the target is {target}"
    if target.kind == "cuda":
        fields.append(OptionsFile(key="advanced_controls_file", fragment=EnumFragment((None,))))
    else:
        absent["advanced_controls_file"] = f"it is an option of ptxas, and the target is {target}"
    return fields


def _split_fields(program: Program, target: Target, settings: Settings, absent: dict[str, str]) -> list[Field]:
    if why := unsplit(program, settings):
        absent["split_k"] = why
        return []
    searched = PowerOfTwoFragment(1, _worth_trying(program, target))
    return [Scalar(key="split_k", fragment=PowerOfTwoFragment(1, _most_parts(program)), initial=1, searched=searched)]


def _most_parts(program: Program) -> int:
    return MOST_SPREAD if spread_loops(program) else MOST_PARTS


def _turn_fields(program: Program, target: Target, absent: dict[str, str]) -> list[Field]:
    if not target.has("wgmma"):
        absent["swap_ab"] = f"the matrix unit of {target} does not need K-major TF32 operands"
    elif not turns(program):
        absent["swap_ab"] = "no loop only accumulates a matmul of fp32 operands of which the left one alone is K-major"
    else:
        return [Scalar(key="swap_ab", fragment=BooleanFragment(), initial=False)]
    return []


def _pack_fields(program: Program, settings: Settings, absent: dict[str, str]) -> list[Field]:
    if settings.checked:
        absent["pack_operands"] = "checked kernels are compiled as written"
    elif not unaligned_operands(program):
        absent["pack_operands"] = "no matmul operand has rows of known size that are not aligned to 16 bytes"
    else:
        return [Scalar(key="pack_operands", fragment=BooleanFragment(), initial=False)]
    return []


def _transpose_fields(program: Program, target: Target, settings: Settings, absent: dict[str, str]) -> list[Field]:
    if settings.checked:
        absent["transpose_operands"] = "checked kernels are compiled as written"
    elif not target.has("wgmma"):
        absent["transpose_operands"] = f"the matrix unit of {target} does not need K-major operands"
    elif not crosswise(program):
        absent["transpose_operands"] = "no TF32 or 8-bit matmul operand of known size is MN-major"
    else:
        return [Scalar(key="transpose_operands", fragment=BooleanFragment(), initial=False)]
    return []


def _hoist_fields(program: Program, settings: Settings, absent: dict[str, str]) -> list[Field]:
    if settings.checked:
        absent["precompute_operands"] = "checked kernels are compiled as written"
    elif not computed_operands(program):
        absent["precompute_operands"] = (
            "no operand of a matmul in a loop is computed from tiles of known sizes that several programs share"
        )
    else:
        return [Scalar(key="precompute_operands", fragment=BooleanFragment(), initial=False)]
    return []


def _join_fields(program: Program, settings: Settings, absent: dict[str, str]) -> list[Field]:
    if settings.checked:
        absent["fuse_loops"] = "checked kernels are compiled as written"
    elif joinable_loops(program) is None:
        absent["fuse_loops"] = "the kernel has no consecutive loops with matmuls that differ only in constants"
    else:
        return [Scalar(key="fuse_loops", fragment=BooleanFragment(), initial=False)]
    return []


def _peel_fields(program: Program, settings: Settings, absent: dict[str, str]) -> list[Field]:
    if settings.checked:
        absent["peel_masks"] = "checked kernels are compiled as written"
    elif not peelable(program):
        absent["peel_masks"] = "the kernel has no innermost loop over tiles with two matmuls or more"
    else:
        return [Scalar(key="peel_masks", fragment=BooleanFragment(), initial=False)]
    return []


def _ahead_fields(program: Program, settings: Settings, absent: dict[str, str]) -> list[Field]:
    if settings.checked:
        absent["prefetch_distance"] = "checked kernels are compiled as written"
    elif next(stepping_loops(program), None) is None:
        absent["prefetch_distance"] = (
            "no loop over single indices loads data that it does not write, at addresses from its index"
        )
    else:
        return [Scalar(key="prefetch_distance", fragment=IntegerFragment(0, _STEP_STAGES, 0), initial=0)]
    return []


def _product_fields(program: Program, target: Target, settings: Settings, absent: dict[str, str]) -> list[Field]:
    if why := unmaterialized(program, settings):
        absent.update(dict.fromkeys(("unfuse_matmul", "matmul_num_warps", "matmul_num_stages"), why))
        return []
    made, blocks = split_off(program, (None, None, None))
    sides = [(blocks.rows, _MOST_SIDE), (blocks.columns, _MOST_SIDE), (blocks.depths, _MOST_DEPTH)]
    ranges = (
        PowerOfTwoFragment(max([_LEAST_SIDE, *(made.blocks[b].min_size for b in of)]), most) for of, most in sides
    )
    warps = values_of(PowerOfTwoFragment(1, min(32, target.max_threads_per_block // target.warp_size)))
    return [
        ProductTile(sides=tuple(ranges), weight=2.0),
        Scalar(key="matmul_num_warps", fragment=EnumFragment((None, *warps)), initial=None),
        Scalar(key="matmul_num_stages", fragment=EnumFragment((None, *range(1, 9))), initial=None),
    ]


def _worth_trying(program: Program, target: Target) -> int:
    """Return the largest split-K factor that searches try.

    Each split must be long enough, and the programs must not exceed a few waves of the target with large tiles.
    """
    (root,) = program.roots
    extents = [bound_seen(axis.end) for axis in root.axes]
    programs = math.prod(cdiv(extent, _LARGE_TILE) for extent in extents)
    longest = bound_seen(split_axis(program).end)
    most = min(_most_parts(program), longest // _LEAST_PART, _ROUNDS * target.num_sms // max(1, programs))
    return previous_power_of_2(most)


def _pid_types(seen: Survey, target: Target) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the legal pid types, the default first, and the reasons against the others."""
    roots = seen.roots
    if any(isinstance(bound, OperandRef) for root in roots for axis in root.axes for bound in (axis.begin, axis.end)):
        why = "the size of the grid depends on data, so the host cannot tell how many programs to launch"
        return PID_TYPES[2:], {"flat": why, "xyz": why}
    if len(roots) > 1:
        return ("flat", *PID_TYPES[2:]), {"xyz": f"it takes one grid loop, and the kernel has {len(roots)}"}
    if len(roots[0].axes) not in (2, 3):
        dims = len(roots[0].axes)
        return ("flat", *PID_TYPES[2:]), {"xyz": f"it takes a grid over 2 or 3 dimensions, and this one has {dims}"}
    return PID_TYPES, {}


def _memory_fields(seen: Survey) -> list[Field]:
    copied = bool(seen.rollable)  # rolling a reduction repeats accesses
    # an unsupported mechanism falls back to pointers, so that one config serves many shapes and targets
    pointers: dict[str, Any] = {"choice": EnumFragment(("pointer", "block_ptr", "tensor_descriptor")), "copied": copied}
    # "" caches at all levels. Loads: .cg bypasses L1. Stores: .cs is evicted first, .wt writes through L2.
    of_loads, of_stores = EnumFragment(("", ".cg")), EnumFragment(("", ".cs", ".wt"))
    eviction = EnumFragment(("", "first", "last"))

    def per_access(key: str, named: Iterable[tuple[int, str]], per: str, choice: EnumFragment) -> PerAccess:
        return PerAccess(key=key, slots=_access_slots(named, choice), per=per, choice=choice, copied=copied)

    accesses = _access_slots(enumerate(seen.accesses), pointers["choice"])
    open_loads = enumerate(seen.loads_left_open)
    return [
        Indexing(key="indexing", slots=accesses, per="load and store", **pointers),
        Indexing(
            key="atomic_indexing",
            slots=(),
            per="atomic operation",
            ignored="atomic operations use pointers",
            **{**pointers, "copied": True},
        ),
        per_access("load_eviction_policies", open_loads, "load without an eviction policy of its own", eviction),
        per_access("load_cache_modifiers", seen.loads.items(), "load", of_loads),
        per_access("store_cache_modifiers", seen.stores.items(), "store", of_stores),
    ]


def _access_slots(named: Iterable[tuple[int, str]], choice: EnumFragment) -> tuple[Slot, ...]:
    return tuple(Slot(name=name, at=at, fragment=choice, initial=choice.default(), ids=(at,)) for at, name in named)
