"""Config space of a program: its fields, the lengths of lists, and the range of each entry."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from ... import exc
from ..._compiler.ir.grammar import Block, Program
from ..._compiler.rewrites.epilogue_subtile import COUNTS
from ..._compiler.rewrites.flatten_loops import Nest, can_flatten, nests
from ..._compiler.rewrites.flatten_runs import can_flatten_run
from ..._compiler.sizes import padded_extent
from ..._shapes import hint_of, next_power_of_2, previous_power_of_2
from ...config import OWN_KEYS, TUNABLE
from ...fields import BooleanFragment, EnumFragment, Fragment, MultipleFragment, PermutationFragment, PowerOfTwoFragment
from ...hardware import Target
from ...settings import Settings
from .core import ConfigSpace
from .fields import (
    SMALLEST_CHUNK,
    BlockSizes,
    Chunk,
    EpilogueSubtile,
    Field,
    FlattenLoops,
    LoopOrders,
    PerSlot,
    ReductionLoops,
    Slot,
    Tunable,
    nearest,
    values_of,
)
from .own import OwnKeys
from .program_shape import ProgramShape, program_shape

#: Largest tile of a dimension whose extent is not fixed: it must serve calls larger than the one seen when binding.
OPEN_MAXIMUM = 1024
#: Tiles of M and N may exceed a small problem: rows out of range cost little in a matrix unit, and more warps can share
#: the matmul.
MATRIX_MAXIMUM = 64
#: Rows up to this many elements are held at once unless the config chooses a chunk; longer ones use chunks of it.
RESIDENT_ROW = 4096
#: A search tries 2 column subtiles if K has at least this many elements, and 4 from the second number on. With a
#: shorter mainloop the epilogue is too large a part of the time to be split.
SUBTILED_K = (1024, 16384)
#: The conservative config stays within this many elements, rows included, if a kernel tiles three or more dimensions.
CONSERVATIVE_NUMEL = 32768

#: Kinds of ops that access memory in tiles.
_ACCESSES = frozenset(("load", "store", "atomic"))

#: The backend's additions for the shape of a program, the program, a target and the settings; see ``backends.protocol.Backend.keys``.
Own = Callable[[ProgramShape, Program, Target, Settings], OwnKeys]


def build_space(
    program: Program,
    rollable: tuple[int, ...],
    target: Target,
    settings: Settings,
    own: Own,
    elsewhere: tuple[tuple[str, tuple[str, ...]], ...] = (),
) -> ConfigSpace:
    """Build the space of ``program``, which is not rolled; ``rollable`` are the blocks that can be loops over chunks.

    ``own`` returns the backend's additions, ``elsewhere`` the prefixes of other backends' keys, by their names.
    """
    shape = program_shape(program, rollable)
    chunks = tuple(_chunk(program.blocks[block], program) for block in rollable)
    more = own(shape, program, target, settings)
    if not more.rolls:
        rollable, chunks = (), ()
    tiles = _block_slots(shape, chunks, target, more)
    fields: list[Field] = [
        BlockSizes(slots=tiles),
        *_loop_fields(shape, program),
        ReductionLoops(slots=chunks, spare=any(root.sliced for root in program.roots)),
        *more.fields,
        _epilogue_field(shape, program, target),
    ]
    narrow = _is_narrow(program)
    if narrow:
        fields = [_spare(field) for field in fields]
    named = {
        name.removeprefix(TUNABLE) if name.startswith(TUNABLE) else name for name, _ in program.tunables
    } & OWN_KEYS
    fields = [field for field in fields if field.key not in named]
    absent = {key: why for key, why in more.absent.items() if key not in named}
    taken = {field.key for field in fields} | set(absent)
    for name, choices in program.tunables:
        key = name.removeprefix(TUNABLE) if name.removeprefix(TUNABLE) in named else name
        if key in taken:
            raise exc.TunableNameConflict(name=key)
        taken.add(key)
        fields.append(Tunable(key=key, fragment=choices, initial=choices.default(), name=name))
    return ConfigSpace(
        kernel=program.host.name,
        target=target,
        shape=shape if more.holds_values else dataclasses.replace(shape, volumes=()),
        tunable=tuple(slot.ids[0] for slot in tiles),
        rollable=rollable,
        check=more.check,
        lowest={
            **{slot.ids[0]: values_of(slot.fragment)[0] for slot in tiles},
            **{chunk.ids[0]: chunk.low for chunk in chunks},
        },
        fields=tuple(fields),
        absent=absent,
        verbatim=more.verbatim,
        rules=more.rules,
        planned=more.planned,
        elsewhere=elsewhere,
        missing={key: value for key, value in more.missing.items() if key in absent},
        narrow=narrow,
    )


def _is_narrow(program: Program) -> bool:
    """Return whether a dimension has no or one element: then its loops and reductions, and their loads, do not exist."""
    shapes = (tensor.shape for tensor in program.tensors)
    extents = (block.extent for block in program.blocks)
    return any(isinstance(n, int) and n < 2 for sizes in (*shapes, extents) for n in sizes)


def _spare(field: Field) -> Field:
    """Return a field whose lists may have surplus entries."""
    if isinstance(field, BlockSizes) or not isinstance(field, PerSlot):
        return field
    return dataclasses.replace(field, spare=True)


# --- sizes ---------------------------------------------------------------------------------------------------------


def _extent(block: Block) -> int | None:
    """Return the elements of the block, None unless every call has the same."""
    return block.extent if isinstance(block.extent, int) else None


def _block_slots(shape: ProgramShape, chunks: Sequence[Chunk], target: Target, own: OwnKeys) -> tuple[Slot, ...]:
    tunable = [block for block in shape.blocks if block.tunable]
    highest: dict[int, int] = {}
    for block in tunable:
        highest[block.id] = min(_highest(block, shape, highest), target.max_tensor_numel)
    dims = sum(1 for block in tunable if max(highest[block.id], block.min_size) > 1)
    initial = _conservative_size(dims, _row_volume(shape, chunks))
    slots = []
    for block in tunable:
        low = own.least.get(block.id, block.min_size)
        high = max(highest[block.id], low)
        if block.id in own.sizes:
            low, high = max(low, own.sizes[block.id][0]), max(low, own.sizes[block.id][1])
        fragment = _sizes_between(low, high, own.multiples.get(block.id))
        first = max(low, own.initial.get(block.id, min(max(initial, low), max(_covering(block, high), low))))
        slots.append(
            Slot(
                name=block.name,
                at=block.id,
                fragment=fragment,
                initial=nearest(fragment, first, low),
                ids=(block.id,),
            )
        )
    return tuple(slots)


def _sizes_between(low: int, high: int, step: int | None) -> Fragment:
    if step is None:
        return PowerOfTwoFragment(low, high)
    least = -(-low // step) * step
    return MultipleFragment(step, least, max(least, high // step * step))


def _highest(block: Block, shape: ProgramShape, outer: Mapping[int, int]) -> int:
    if block.id in shape.inner:
        around = shape.blocks[shape.inner[block.id]]
        return outer.get(around.id, OPEN_MAXIMUM if around.size is None else int(hint_of(around.size)))
    extent = _extent(block)
    if extent is None:
        natural = max(next_power_of_2(0 if block.extent is None else hint_of(block.extent)), OPEN_MAXIMUM)
        return natural if block.max_size is None else block.max_size
    natural = next_power_of_2(extent)
    high = natural if block.max_size is None else block.max_size
    # a smaller maximum is the kernel's own, as for the batch of a matmul
    own = block.registered or high < natural
    return high if own or block.id not in shape.matrix_blocks else max(high, MATRIX_MAXIMUM)


def _covering(block: Block, high: int) -> int:
    """Return the smallest size that covers the dimension, if every call has the same extent."""
    extent = _extent(block)
    return high if extent is None else min(high, next_power_of_2(extent))


def _chunk(block: Block, program: Program) -> Chunk:
    assert block.extent is not None
    low = max(SMALLEST_CHUNK if _in_rows(block, program) else 1, block.min_size)
    extent = hint_of(block.extent)
    chunks = tuple(1 << bit for bit in range(low.bit_length() - 1, next_power_of_2(extent).bit_length() - 1))
    return Chunk(
        name=f"{block.name} of {block.extent!r}",
        at=block.id,
        fragment=EnumFragment((*chunks, None)),
        initial=RESIDENT_ROW if extent > RESIDENT_ROW else None,
        ids=(block.id,),
        low=low,
        extent=_extent(block),
    )


def _in_rows(block: Block, program: Program) -> bool:
    """Return whether chunks of ``block`` are parts of rows.

    They are not if tiles cover other dimensions too and none of them is in memory. Then each element along ``block`` is
    read once for a whole tile of the others.
    """
    tiled = accessed = False
    for op in program.walk():
        for value in (*op.values(), *op.results):
            if any([block.id in dim.blocks for dim in value.dims]) and sum([not dim.is_one for dim in value.dims]) > 1:
                tiled = True
                accessed |= op.kind in _ACCESSES
    return accessed or not tiled


def _row_volume(shape: ProgramShape, chunks: Sequence[Chunk]) -> int:
    """Return the elements of one row along all whole dimensions."""
    chunk_of = {chunk.ids[0]: chunk.initial for chunk in chunks}
    used = {block for volume in shape.volumes for block in volume.blocks}
    whole = [b for b in shape.blocks if b.kind == "full" and b.id in used]
    return math.prod(chunk_of.get(b.id) or padded_extent(b) for b in whole)


def _conservative_size(dims: int, row: int) -> int:
    """Return the tile size of each of ``dims`` dimensions next to ``row`` elements: small enough for any kernel."""
    if dims >= 3:
        shared = 1 << (previous_power_of_2(CONSERVATIVE_NUMEL // row).bit_length() - 1) // dims
        return shared if row > 1 else min(16, shared)
    if row <= 128:
        return 32
    return 16 if row <= 256 else 1


# --- loops ---------------------------------------------------------------------------------------------------------


def _loop_fields(shape: ProgramShape, program: Program) -> list[Field]:
    loops = nests(program)
    roots = [nest for nest in loops if nest.root is not None]
    spare = any(loop.spread or loop.joined for loop in shape.loops)  # the loops as written may have more entries
    # Loops whose elements have no numbers are first: a config may end with them.
    plain = [nest for nest in loops if nest.mergeable]
    numbered = [nest for nest in loops if nest.indexed and _why_not_flat(program, nest) is None]
    flat = tuple(_flatten_slot(shape, program, nest) for nest in (*plain, *numbered))
    return [
        LoopOrders(slots=tuple(_order_slot(shape, nest) for nest in loops), spare=spare),
        FlattenLoops(slots=flat, spare=spare),
        PerSlot(
            key="l2_groupings",
            slots=tuple(
                Slot(
                    name=shape.axes_text(nest.axes),
                    at=nest.loop,
                    fragment=PowerOfTwoFragment(1, 64),
                    initial=1,
                    ids=_root_ids(nest),
                )
                for nest in roots
            ),
            per="grid loop over several dimensions",
        ),
    ]


def _order_slot(shape: ProgramShape, nest: Nest) -> Slot:
    order = PermutationFragment(len(nest.axes))
    initial, name = list(order.default()), shape.axes_text(nest.axes)
    if not nest.permutable:
        remedy = "an iteration of the loop may see what an earlier one did"
        return Slot(
            name=name,
            at=nest.loop,
            fragment=EnumFragment((initial,)),
            initial=initial,
            ids=_root_ids(nest),
            remedy=remedy,
        )
    return Slot(name=name, at=nest.loop, fragment=order, initial=initial, ids=_root_ids(nest))


def _flatten_slot(shape: ProgramShape, program: Program, nest: Nest) -> Slot:
    why = _why_not_flat(program, nest)
    return Slot(
        name=shape.axes_text(nest.axes),
        at=nest.loop,
        fragment=BooleanFragment() if why is None else EnumFragment((False,)),
        initial=False,
        ids=_flat_ids(nest),
        remedy=why or "",
    )


def _why_not_flat(program: Program, nest: Nest) -> str | None:
    return can_flatten_run(program, nest.loop) if nest.root is None else can_flatten(program, nest.root)


def _flat_ids(nest: Nest) -> tuple[int, ...]:
    """Return the key of a proposal's entry: a grid loop's number, or less than 0 for the loops inside."""
    return (-nest.loop,) if nest.root is None else (nest.root,)


def _root_ids(nest: Nest) -> tuple[int, ...]:
    return () if nest.root is None else (nest.root,)


# --- epilogues -----------------------------------------------------------------------------------------------------


def _epilogue_field(shape: ProgramShape, program: Program, target: Target) -> Field:
    fragment = EnumFragment((None, *COUNTS))
    if not shape.columns:
        return EpilogueSubtile(fragment=fragment, searched=EnumFragment((None,)), columns=(), reason=shape.unsplit)
    counts = [count for count, least in zip(COUNTS, SUBTILED_K, strict=True) if _summed(program) >= least]
    # if the accumulator is in tensor memory, only a subtile of it must be in registers at once
    searched = (None, *counts) if target.has("tcgen05") else (None,)
    return EpilogueSubtile(fragment=fragment, searched=EnumFragment(searched), columns=shape.columns)


def _summed(program: Program) -> int:
    """Return the largest K of the matmuls, as seen when binding."""
    dims = [value.dims[-1] for op in program.walk() if op.kind == "dot" for value in (*op.values(),)[:1]]
    extents = (program.blocks[b].extent for dim in dims for b in dim.blocks)
    return max((hint_of(e) for e in extents if e is not None), default=0)
