"""Config keys of Triton: options of ``tl.range``, the launch, and memory accesses."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..._compiler.ir.grammar import Block, LoopAxis, OperandRef, Program
from ..._compiler.rewrites import REWRITES
from ..._compiler.rewrites.record import TileSides
from ..._shapes import cdiv
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
from ...autotuner.space.program_shape import ProgramShape
from ...config import RANGE_OPTIONS
from ...fields import BooleanFragment, EnumFragment, Fragment, IntegerFragment, PowerOfTwoFragment
from ...hardware import Target
from ...settings import Settings
from .legality import rules
from .tile_field import Tile
from .together import TOGETHER, why_apart
from .value_limits import check_held_values, warps_that_fit

#: Launcher options under any name; they are passed on as they are.
VERBATIM_PREFIX = "_triton_config_"
#: Most iterations of a loop that may be unrolled at compile time.
STATIC_TRIPS = 8
#: Most pipeline stages of a loop over single indices without a matmul, whose steps wait for loads alone.
_STEP_STAGES = 8

_DEEP, _NO_STAGES = IntegerFragment(0, _STEP_STAGES, 0), EnumFragment((0,))
#: Ways to access memory. An unsupported one falls back to pointers, so that one config serves many shapes and targets.
_WAYS = EnumFragment(("pointer", "block_ptr", "tensor_descriptor"))
#: "" caches at all levels. Loads: .cg bypasses L1. Stores: .cs is evicted first, .wt writes through L2.
_OF_LOADS, _OF_STORES, _EVICTION = (
    EnumFragment(("", ".cg")),
    EnumFragment(("", ".cs", ".wt")),
    EnumFragment(("", "first", "last")),
)

PID_TYPES = ("flat", "xyz", "persistent_blocked", "persistent_interleaved")
#: Keys that other implementations have, and why they are refused here.
_NOT_GENERATED = {
    "num_ctas": "it is a key of the tileir backend, which is not here",
    "occupancy": "it is a key of the tileir backend, which is not here",
}


#: Keys of a full config for other sizes, strides, settings or targets.
_MISSING: dict[str, Missing] = {
    **{option.key: Missing(fragment=option.values, initial=option.off) for option in RANGE_OPTIONS},
    **{each.key: Missing(fragment=each.range, initial=each.off, structural=True) for each in REWRITES},
    **{key.key: Missing(fragment=key.range, structural=True) for each in REWRITES for key in each.launch},
    TOGETHER: Missing(fragment=BooleanFragment(), initial=False, structural=True),
}
#: Keys that no arguments of a kernel have on this target, with the values that request nothing.
_NEUTRAL: dict[str, Any] = {
    "waves_per_eu": 0, "matrix_instr_nonkdim": 0, "kpack": None, "xcd_remap": False, "num_ctas": 1, "occupancy": 1
}  # fmt: skip


def _missing(program: Program, settings: Settings) -> Mapping[str, Missing]:
    """Return the keys that a kernel has with other arguments. A checked kernel has no rewrites."""
    asked = dict.fromkeys(each.varies for each in REWRITES)
    return _missing_of(frozenset(varies for varies in asked if varies(program)), settings.checked)


@functools.lru_cache(maxsize=16)
def _missing_of(varying: frozenset[Callable[[Program], bool]], checked: bool) -> Mapping[str, Missing]:
    """Return the same for the rewrites whose ``varies`` is among these."""
    differing = {key for each in REWRITES if each.varies in varying for key in each.keys}
    known = {
        key: dataclasses.replace(each, structural=each.structural and key not in differing and not checked)
        for key, each in _MISSING.items()
    }
    neutral = {key: Missing(fragment=None, initial=value) for key, value in _NEUTRAL.items()}
    return {**known, **neutral}


def own_keys(shape: ProgramShape, program: Program, target: Target, settings: Settings) -> OwnKeys:
    """Return the keys of a program, and the rules that legalize them."""
    absent = dict(_NOT_GENERATED)
    fields = [
        *_range_fields(shape, target, settings, absent),
        _static_field(shape),
        *_launch_fields(shape, target, absent),
        *_barrier_fields(program, target, settings, absent),
        *_rewrite_fields(program, target, settings, absent),
        *_memory_fields(shape),
    ]
    return OwnKeys(
        fields=tuple(fields),
        absent=absent,
        verbatim=VERBATIM_PREFIX,
        missing=_missing(program, settings),
        rules=rules(shape, program, target, settings, absent),
        check=functools.partial(check_held_values, shape, program, target),
    )


# --- loops ---------------------------------------------------------------------------------------------------------


def _range_fields(shape: ProgramShape, target: Target, settings: Settings, absent: dict[str, str]) -> list[Field]:
    """Return fields with one entry per grid loop and per dimension of a device loop."""
    fields: list[Field] = []
    per, spread = "grid loop and per dimension of a device loop", tuple(_spread_slots(shape))
    grids = [f"the grid over {shape.axes_text(loop.axes)}" if loop.root is not None else "" for loop in shape.loops]
    for option in RANGE_OPTIONS:
        key = option.key
        if key == "range_warp_specializes" and (why := _no_specialization(target, settings)):
            absent[key] = why
            continue
        slots = tuple(_range_slots(shape, grids, key, option.values))
        elsewhere = _DEEP if key == "range_num_stages" else None
        fields.append(PerSlot(key=key, slots=slots, per=per, elsewhere=elsewhere, spread=spread))
    return fields


def _spread_slots(shape: ProgramShape) -> Iterable[int]:
    """Yield the places of loops that became dimensions of their grid, among the slots of the loops as written."""
    at = 0
    for loop in shape.loops:
        at += 1 if loop.root is not None else len(loop.axes)
        yield from range(at, at + loop.spread)
        at += loop.spread


def _range_slots(shape: ProgramShape, grids: Sequence[str], key: str, fragment: Fragment) -> Iterable[Slot]:
    """Yield the slots of one option; ``grids`` are the names of the grid loops, by the number of the loop."""
    for number, loop in enumerate(shape.loops):
        if key == "range_num_stages" and loop.rewritten:
            remedy = f"the loop loads and stores {loop.rewritten!r}, and prefetching could read it before it is written"
            choice: Fragment = _NO_STAGES
        else:
            choice, remedy = fragment, ""
        if loop.root is not None:
            ids = tuple([axis.block for axis in loop.axes])
            yield Slot(name=grids[number], at=number, fragment=choice, initial=choice.default(), ids=ids, remedy=remedy)
            continue
        for place, axis in enumerate(loop.axes):
            deep = key == "range_num_stages" and axis.scalar and not shape.matrix_blocks and not remedy
            yield Slot(
                name=f"the loop over {shape.blocks[axis.block].name}",
                at=(number, place),
                fragment=_DEEP if deep else choice,
                initial=choice.default(),
                ids=(axis.block,),
                remedy=remedy,
            )


def _no_specialization(target: Target, settings: Settings) -> str:
    if not target.has("warp_specialize"):
        return f"{target} has no warp specialization"
    return "" if settings.allow_warp_specialize else "the setting allow_warp_specialize is off"


def _static_field(shape: ProgramShape) -> Field:
    slots = (
        Slot(
            name=f"the loop over {shape.blocks[axis.block].name}",
            at=(number, place),
            fragment=BooleanFragment(),
            initial=False,
        )
        for number, loop in enumerate(shape.loops)
        if loop.root is None
        for place, axis in enumerate(loop.axes)
        if _is_static(shape.blocks[axis.block], axis)
    )
    per = f"dimension of a device loop with constant bounds and at most {STATIC_TRIPS} iterations"
    return PerSlot(key="static_ranges", slots=tuple(slots), per=per, spare=True)  # other sizes take fewer iterations


def _is_static(block: Block, axis: LoopAxis) -> bool:
    if not (isinstance(axis.begin, int) and isinstance(axis.end, int)):
        return False
    step = axis.step if axis.scalar else 1 if block.size is None else block.size
    return isinstance(step, int) and step > 0 and cdiv(axis.end - axis.begin, step) <= STATIC_TRIPS


# --- launch and memory ---------------------------------------------------------------------------------------------


def _launch_fields(shape: ProgramShape, target: Target, absent: dict[str, str]) -> list[Field]:
    pid_types, remedies = _pid_types(shape, target)
    pid_type = Scalar(key="pid_type", fragment=EnumFragment(pid_types), initial=pid_types[0], remedies=remedies)
    first, others, lacking = _options_of(target, multiplies=bool(shape.matrix_blocks))
    absent.update(lacking)
    return [*first, pid_type, *others]


@functools.lru_cache(maxsize=16)
def _options_of(target: Target, *, multiplies: bool) -> tuple[tuple[Field, ...], tuple[Field, ...], Mapping[str, str]]:
    """Return the fields of launches before ``pid_type`` and after it, and the reasons against other options."""
    absent: dict[str, str] = {}
    maxnreg = (None, 32, 64, 128, 256) if target.kind == "cuda" else (None,)
    # 32 registers leave ptxas too few besides the operands and accumulators of a warp group's matrix instruction
    searched = tuple(n for n in maxnreg if n != 32 or not (multiplies and target.has("wgmma")))
    first = (
        Scalar(key="num_warps", weight=4.0, fragment=PowerOfTwoFragment(1, warps_that_fit(target)), initial=4),
        Scalar(key="num_stages", weight=2.0, fragment=IntegerFragment(1, 8), initial=1),
    )
    fields: list[Field] = [
        Scalar(key="num_sm_multiplier", fragment=PowerOfTwoFragment(1, 128), initial=1),
        Scalar(key="maxnreg", fragment=EnumFragment(maxnreg), initial=None, searched=EnumFragment(searched)),
    ]
    # Ranges and defaults of the options of Triton's AMD backend; 0 leaves the choice to it.
    for key, choices in (("waves_per_eu", (0, 1, 2, 3, 4)), ("matrix_instr_nonkdim", (0, 16, 32))):
        if target.kind == "hip":
            fields.append(Scalar(key=key, fragment=EnumFragment(choices), initial=0))
        else:
            absent[key] = f"it is an option of AMD GPUs, and the target is {target}"
    if target.has("packed_k"):
        fields.append(Scalar(key="kpack", fragment=EnumFragment((None, 1, 2)), initial=None))
    else:
        absent["kpack"] = f"it is an option of AMD's CDNA 3, and the target is {target}"
    if target.xcds > 1:
        fields.append(Scalar(key="xcd_remap", fragment=BooleanFragment(), initial=False))
    else:
        absent["xcd_remap"] = f"it is an option of GPUs with several dies, and the target is {target}"
    if target.kind == "cuda":
        fields.append(OptionsFile(key="advanced_controls_file", fragment=EnumFragment((None,))))
    else:
        absent["advanced_controls_file"] = f"it is an option of ptxas, and the target is {target}"
    return first, tuple(fields), absent


def _barrier_fields(program: Program, target: Target, settings: Settings, absent: dict[str, str]) -> Iterator[Field]:
    """Yield the field of kernels whose programs can meet at a barrier, or note the reason against it."""
    if why := why_apart(program, target, settings):
        absent[TOGETHER] = why
    else:
        yield Scalar(key=TOGETHER, fragment=BooleanFragment(), initial=False)


def _rewrite_fields(program: Program, target: Target, settings: Settings, absent: dict[str, str]) -> Iterator[Field]:
    """Yield the fields of rewrites that apply to a program, and collect the reasons against the others."""
    for rewrite in REWRITES:
        if why := rewrite.why_absent(program, target, checked=settings.checked):
            absent.update(dict.fromkeys(rewrite.keys, why))
            continue
        values = rewrite.values(program, target)
        if isinstance(values.legal, TileSides):
            yield Tile(key=rewrite.key, sides=values.legal.sides, weight=2.0)
        else:
            yield Scalar(key=rewrite.key, fragment=values.legal, initial=rewrite.off, searched=values.searched)
        for key in rewrite.launch:
            yield Scalar(key=key.key, fragment=EnumFragment((None, *key.values(target))), initial=None)


def _pid_types(shape: ProgramShape, target: Target) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the legal pid types, the default first, and the reasons against the others."""
    roots = shape.roots
    if any(isinstance(bound, OperandRef) for root in roots for axis in root.axes for bound in (axis.begin, axis.end)):
        why = "the size of the grid depends on data, so the host cannot tell how many programs to launch"
        return PID_TYPES[2:], {"flat": why, "xyz": why}
    if len(roots) > 1:
        return ("flat", *PID_TYPES[2:]), {"xyz": f"it takes one grid loop, and the kernel has {len(roots)}"}
    if len(roots[0].axes) not in (2, 3):
        dims = len(roots[0].axes)
        return ("flat", *PID_TYPES[2:]), {"xyz": f"it takes a grid over 2 or 3 dimensions, and this one has {dims}"}
    return PID_TYPES, {}


def _memory_fields(shape: ProgramShape) -> list[Field]:
    copied = bool(shape.rollable)  # rolling a reduction repeats accesses
    pointers: dict[str, Any] = {"choice": _WAYS, "copied": copied}

    def per_access(key: str, named: Iterable[tuple[int, str]], per: str, choice: EnumFragment) -> PerAccess:
        return PerAccess(key=key, slots=_access_slots(named, choice), per=per, choice=choice, copied=copied)

    accesses = _access_slots(enumerate(shape.accesses), _WAYS)
    open_loads = enumerate(shape.loads_left_open)
    return [
        Indexing(key="indexing", slots=accesses, per="load and store", **pointers),
        Indexing(
            key="atomic_indexing",
            slots=(),
            per="atomic operation",
            ignored="atomic operations use pointers",
            **{**pointers, "copied": True},
        ),
        per_access("load_eviction_policies", open_loads, "load without an eviction policy of its own", _EVICTION),
        per_access("load_cache_modifiers", shape.loads.items(), "load", _OF_LOADS),
        per_access("store_cache_modifiers", shape.stores.items(), "store", _OF_STORES),
    ]


def _access_slots(named: Iterable[tuple[int, str]], choice: EnumFragment) -> tuple[Slot, ...]:
    initial = choice.default()
    return tuple([Slot(name=name, at=at, fragment=choice, initial=initial, ids=(at,)) for at, name in named])
