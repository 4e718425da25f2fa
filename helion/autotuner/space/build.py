"""From a program to its space: which fields there are, how long their lists, and what each entry may be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ... import exc
from ..._compiler.ir.grammar import Block, LoopAxis, OperandRef, Program
from ..._compiler.passes.flatten import Nest, can_flatten, nests
from ..._compiler.passes.subtile import COUNTS, subtile_blocks
from ..._compiler.sizes import padded_extent
from ..._shapes import cdiv, hint_of, next_power_of_2, previous_power_of_2
from ...fields import BooleanFragment, EnumFragment, Fragment, IntegerFragment, PermutationFragment, PowerOfTwoFragment
from ...hardware import Target
from ...settings import Settings
from .core import ConfigSpace, RangeEntries
from .fields import (
    SMALLEST_CHUNK,
    BlockSizes,
    Chunk,
    EpilogueSubtile,
    Field,
    Indexing,
    LoopOrders,
    OptionsFile,
    PerAccess,
    PerSlot,
    ReductionLoops,
    Scalar,
    Slot,
)
from .survey import Survey, survey

#: Largest tile of a dimension whose extent is not fixed: it must serve calls larger than the one that was seen.
OPEN_MAXIMUM = 1024
#: Tiles of M and N may exceed a small problem: rows out of range cost little in a matrix unit, and more warps can share
#: the product.
MATRIX_MAXIMUM = 64
#: Rows up to this many elements are held at once unless the config says otherwise; longer ones go in chunks of it.
RESIDENT_ROW = 4096
#: Most iterations of a loop that may be unrolled at compile time.
STATIC_TRIPS = 8
#: A search tries 2 column subtiles where at least this many products are summed, and 4 from the second number on: in
#: shorter loops the epilogue is too large a part of the time to be done in pieces.
SUBTILED_K = (1024, 16384)
#: The conservative config stays within this many elements, rows included, when a kernel tiles three or more dimensions.
CONSERVATIVE_NUMEL = 32768

PID_TYPES = ("flat", "xyz", "persistent_blocked", "persistent_interleaved")
_TRISTATE = EnumFragment((None, True, False))
_RANGE_FIELDS: tuple[tuple[str, Fragment], ...] = (
    ("range_unroll_factors", IntegerFragment(0, 4, 0)),
    ("range_warp_specializes", _TRISTATE),
    ("range_num_stages", IntegerFragment(0, 4, 0)),
    ("range_multi_buffers", _TRISTATE),
    ("range_flattens", _TRISTATE),
)
#: Keys that exist elsewhere, and why they are refused here.
_NOT_GENERATED = {
    "xcd_remap": "no code is generated for it",
    "num_ctas": "no code is generated for it",
    "occupancy": "no code is generated for it",
}


def build_space(
    program: Program, rollable: tuple[int, ...], target: Target, settings: Settings, backend: str = "triton"
) -> ConfigSpace:
    """The space of ``program``, which is not rolled; ``rollable`` are the blocks that can be walked in chunks.

    Raises ``exc.BackendUnsupported`` for a backend without a space.
    """
    if backend != "triton":
        raise exc.BackendUnsupported(what="A config", backend=backend, remedy="; its config keys are not known here")
    seen = survey(program)
    chunks = tuple(_chunk(program.blocks[block]) for block in rollable)
    entries, range_slots = _range_entries(seen)
    absent = dict(_NOT_GENERATED)
    tiles = _block_slots(seen, chunks, target)
    fields: list[Field] = [
        BlockSizes(slots=tiles),
        *_loop_fields(seen, program),
        ReductionLoops(slots=chunks),
    ]
    for key, fragment in _RANGE_FIELDS:
        if key == "range_warp_specializes" and (why := _no_specialization(target, settings)):
            absent[key] = why
            continue
        slots = [_range_slot(key, fragment, *each) for each in range_slots]
        fields.append(
            PerSlot(key=key, slots=tuple(slots), per="grid loop and per dimension of a device loop", wish=_wish(key))
        )
    static = [range_slots[i] for i in entries.static]
    fields.append(
        PerSlot(
            key="static_ranges",
            slots=tuple(Slot(name=name, fragment=BooleanFragment(), initial=False) for name, _, _ in static),
            per=f"dimension of a device loop with constant bounds and at most {STATIC_TRIPS} iterations",
        )
    )
    fields += _launch_fields(seen, target, absent)
    fields += _memory_fields(seen, bool(rollable))
    fields.append(_epilogue_field(program, target))
    taken = {field.key for field in fields} | set(absent)
    for name, choices in program.tunables:
        if name in taken:
            raise exc.TunableNameConflict(name=name)
        fields.append(Scalar(key=name, fragment=choices, initial=choices.default()))
    return ConfigSpace(
        kernel=program.host.name,
        target=target,
        backend=backend,
        survey=seen,
        tunable=tuple(slot.ids[0] for slot in tiles),
        rollable=rollable,
        lowest={
            **{slot.ids[0]: seen.blocks[slot.ids[0]].min_size for slot in tiles},
            **{chunk.ids[0]: chunk.low for chunk in chunks},
        },
        fields=tuple(fields),
        range_entries=entries,
        absent=absent,
    )


def _no_specialization(target: Target, settings: Settings) -> str:
    if not target.has("warp_specialize"):
        return f"{target} has no warp specialization"
    return "" if settings.allow_warp_specialize else "the setting allow_warp_specialize is off"


def _wish(key: str) -> str:
    return "" if key == "range_warp_specializes" else key


# --- sizes ---------------------------------------------------------------------------------------------------------


def _extent(block: Block) -> int | None:
    """Elements of the block, None unless every call has the same."""
    return block.extent if isinstance(block.extent, int) else None


def _block_slots(seen: Survey, chunks: Sequence[Chunk], target: Target) -> tuple[Slot, ...]:
    tunable = [block for block in seen.blocks if block.tunable]
    highest: dict[int, int] = {}
    for block in tunable:
        highest[block.id] = min(_highest(block, seen, highest), target.max_tensor_numel)
    dims = sum(1 for block in tunable if max(highest[block.id], block.min_size) > 1)
    initial = _conservative_size(dims, _row_volume(seen, chunks))
    slots = []
    for block in tunable:
        low, high = block.min_size, max(highest[block.id], block.min_size)
        slots.append(
            Slot(
                name=block.name,
                fragment=PowerOfTwoFragment(low, high),
                initial=min(max(initial, low), max(_covering(block, high), low)),
                ids=(block.id,),
            )
        )
    return tuple(slots)


def _highest(block: Block, seen: Survey, outer: Mapping[int, int]) -> int:
    if block.id in seen.inner:
        around = seen.blocks[seen.inner[block.id]]
        return outer.get(around.id, OPEN_MAXIMUM if around.size is None else int(hint_of(around.size)))
    extent = _extent(block)
    if extent is None:
        natural = max(next_power_of_2(0 if block.extent is None else hint_of(block.extent)), OPEN_MAXIMUM)
        return natural if block.max_size is None else block.max_size
    natural = next_power_of_2(extent)
    high = natural if block.max_size is None else block.max_size
    # a smaller maximum is the kernel's own, as for the batch of a matrix product
    own = block.registered or high < natural
    return high if own or block.id not in seen.matrix_blocks else max(high, MATRIX_MAXIMUM)


def _covering(block: Block, high: int) -> int:
    """The smallest size that covers the dimension, if every call has the same extent."""
    extent = _extent(block)
    return high if extent is None else min(high, next_power_of_2(extent))


def _chunk(block: Block) -> Chunk:
    assert block.extent is not None
    low = max(SMALLEST_CHUNK, block.min_size)
    seen = hint_of(block.extent)
    chunks = tuple(1 << bit for bit in range(low.bit_length() - 1, next_power_of_2(seen).bit_length() - 1))
    return Chunk(
        name=f"{block.name} of {block.extent!r}",
        fragment=EnumFragment((*chunks, None)),
        initial=RESIDENT_ROW if seen > RESIDENT_ROW else None,
        ids=(block.id,),
        low=low,
        extent=_extent(block),
    )


def _row_volume(seen: Survey, chunks: Sequence[Chunk]) -> int:
    """Elements that one row holds at once along all whole dimensions."""
    chunk_of = {chunk.ids[0]: chunk.initial for chunk in chunks}
    used = {block for volume in seen.volumes for block in volume.blocks}
    whole = [b for b in seen.blocks if b.kind == "full" and b.id in used]
    return math.prod(chunk_of.get(b.id) or padded_extent(b) for b in whole)


def _conservative_size(dims: int, row: int) -> int:
    """The tile of each of ``dims`` dimensions, beside ``row`` elements: small enough whatever the kernel does with it."""
    if dims >= 3:
        shared = 1 << (previous_power_of_2(CONSERVATIVE_NUMEL // row).bit_length() - 1) // dims
        return shared if row > 1 else min(16, shared)
    if row <= 128:
        return 32
    return 16 if row <= 256 else 1


# --- loops ---------------------------------------------------------------------------------------------------------


def _loop_fields(seen: Survey, program: Program) -> list[Field]:
    loops = nests(program)
    roots = [nest for nest in loops if nest.root is not None]
    return [
        LoopOrders(slots=tuple(_order_slot(seen, nest) for nest in loops)),
        PerSlot(
            key="flatten_loops",
            slots=tuple(_flatten_slot(seen, program, nest) for nest in loops if nest.mergeable),
            per="hl.tile over several dimensions from 0 whose positions are not read",
        ),
        PerSlot(
            key="l2_groupings",
            slots=tuple(
                Slot(name=seen.axes_text(nest.axes), fragment=PowerOfTwoFragment(1, 64), initial=1, ids=_root_ids(nest))
                for nest in roots
            ),
            per="grid loop over several dimensions",
            wish="l2_groupings",
        ),
    ]


def _order_slot(seen: Survey, nest: Nest) -> Slot:
    order = PermutationFragment(len(nest.axes))
    initial, name = list(order.default()), seen.axes_text(nest.axes)
    if not nest.permutable:
        remedy = "an iteration of the loop may see what an earlier one did"
        return Slot(name=name, fragment=EnumFragment((initial,)), initial=initial, ids=_root_ids(nest), remedy=remedy)
    return Slot(name=name, fragment=order, initial=initial, ids=_root_ids(nest))


def _flatten_slot(seen: Survey, program: Program, nest: Nest) -> Slot:
    why = "it is a loop inside of a grid loop" if nest.root is None else can_flatten(program, nest.root)
    return Slot(
        name=seen.axes_text(nest.axes),
        fragment=BooleanFragment() if why is None else EnumFragment((False,)),
        initial=False,
        ids=_root_ids(nest),
        remedy=why or "",
    )


def _root_ids(nest: Nest) -> tuple[int, ...]:
    return () if nest.root is None else (nest.root,)


_RangeSlot = tuple[str, tuple[int, ...], str]


def _range_entries(seen: Survey) -> tuple[RangeEntries, list[_RangeSlot]]:
    """One entry per grid loop and per dimension of a loop inside: its name, block ids, and a tensor it rewrites."""
    slots: list[_RangeSlot] = []
    roots, static = [], []
    for loop in seen.loops:
        if loop.root is not None:
            roots.append(len(slots))
            slots.append(
                (f"the grid over {seen.axes_text(loop.axes)}", tuple(a.block for a in loop.axes), loop.rewritten)
            )
            continue
        for axis in loop.axes:
            if _is_static(seen.blocks[axis.block], axis):
                static.append(len(slots))
            slots.append((f"the loop over {seen.blocks[axis.block].name}", (axis.block,), loop.rewritten))
    return RangeEntries(roots=tuple(roots), static=tuple(static)), slots


def _is_static(block: Block, axis: LoopAxis) -> bool:
    if not (isinstance(axis.begin, int) and isinstance(axis.end, int)):
        return False
    step = axis.step if axis.scalar else 1 if block.size is None else block.size
    return isinstance(step, int) and step > 0 and cdiv(axis.end - axis.begin, step) <= STATIC_TRIPS


def _range_slot(key: str, fragment: Fragment, name: str, blocks: tuple[int, ...], rewritten: str) -> Slot:
    if key == "range_num_stages" and rewritten:
        remedy = f"the loop loads and stores {rewritten!r}, and prefetching could read it before it is written"
        return Slot(name=name, fragment=EnumFragment((0,)), initial=0, ids=blocks, remedy=remedy)
    return Slot(name=name, fragment=fragment, initial=fragment.default(), ids=blocks)


# --- launch and memory ---------------------------------------------------------------------------------------------


def _launch_fields(seen: Survey, target: Target, absent: dict[str, str]) -> list[Field]:
    warps = min(32, target.max_threads_per_block // target.warp_size)
    pid_types, remedies = _pid_types(seen, target)
    maxnreg = (None, 32, 64, 128, 256) if target.kind == "cuda" else (None,)
    # operands and accumulators of a warp group's matrix instruction leave ptxas nothing to work with in 32 registers
    searched = tuple(n for n in maxnreg if n != 32 or not (seen.matrix_blocks and target.has("wgmma")))
    fields: list[Field] = [
        Scalar(key="num_warps", fragment=PowerOfTwoFragment(1, warps), initial=4),
        Scalar(key="num_stages", fragment=IntegerFragment(1, 8), initial=1),
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
        absent["advanced_controls_file"] = f"it is for NVIDIA's assembler, and the target is {target}"
    return fields


def _pid_types(seen: Survey, target: Target) -> tuple[tuple[str, ...], dict[str, str]]:
    """The legal ones, the default first, and why the others are not."""
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


def _memory_fields(seen: Survey, copied: bool) -> list[Field]:
    """``copied``: whether there is a reduction to roll, which repeats accesses."""
    # what an access cannot use falls back to pointers, so that one config serves many shapes and targets
    pointers: dict[str, Any] = {"choice": EnumFragment(("pointer", "block_ptr", "tensor_descriptor")), "copied": copied}
    # "" caches at all levels. Loads: .cg bypasses L1. Stores: .cs is evicted first, .wt writes through L2.
    of_loads, of_stores = EnumFragment(("", ".cg")), EnumFragment(("", ".cs", ".wt"))
    eviction = EnumFragment(("", "first", "last"))

    def modifiers(key: str, names: Sequence[str], per: str, choice: EnumFragment) -> PerAccess:
        return PerAccess(key=key, slots=_access_slots(names, choice), per=per, choice=choice, copied=copied)

    return [
        Indexing(
            key="indexing", slots=_access_slots(seen.accesses, pointers["choice"]), per="load and store", **pointers
        ),
        # atomic operations have one mechanism: entries are checked, and have no effect
        Indexing(key="atomic_indexing", slots=(), per="atomic operation", **{**pointers, "copied": True}),
        PerAccess(
            key="load_eviction_policies",
            slots=_access_slots(seen.loads_left_open, eviction),
            per="load without an eviction policy of its own",
            wish="eviction",
            choice=eviction,
            copied=copied,
        ),
        modifiers("load_cache_modifiers", seen.loads, "load", of_loads),
        modifiers("store_cache_modifiers", seen.stores, "store", of_stores),
    ]


def _epilogue_field(program: Program, target: Target) -> Field:
    columns, why = subtile_blocks(program)
    fragment = EnumFragment((None, *COUNTS))
    if not columns:
        return EpilogueSubtile(fragment=fragment, searched=EnumFragment((None,)), columns=(), reason=why)
    counts = [count for count, least in zip(COUNTS, SUBTILED_K, strict=True) if _summed(program) >= least]
    # where the accumulator lies in tensor memory, a subtile of it is all that has to be in registers at once
    searched = (None, *counts) if target.has("tcgen05") else (None,)
    return EpilogueSubtile(fragment=fragment, searched=EnumFragment(searched), columns=columns)


def _summed(program: Program) -> int:
    """The most products that one element of a matrix product sums up, as seen when binding."""
    dims = [value.dims[-1] for op in program.walk() if op.kind == "dot" for value in (*op.values(),)[:1]]
    extents = (program.blocks[b].extent for dim in dims for b in dim.blocks)
    return max((hint_of(e) for e in extents if e is not None), default=0)


def _access_slots(names: Sequence[str], choice: EnumFragment) -> tuple[Slot, ...]:
    return tuple(Slot(name=name, fragment=choice, initial=choice.default(), ids=(i,)) for i, name in enumerate(names))
