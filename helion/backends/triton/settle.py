"""Rules that legalize decisions in combination, for limits of Triton and of the program."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ... import exc
from ..._compiler.decisions import Decisions, Place
from ..._compiler.ir.grammar import Bound, ForAttrs, LoopAxis, MemoryAttrs, Op, OperandRef, Program, Root
from ..._compiler.ir.loops import loops_of
from ..._compiler.ir.rewrite import Declined
from ..._compiler.passes.hoist import computed_operands, may_hoist
from ..._compiler.passes.join import joinable_loops, may_join
from ..._compiler.passes.materialize import offsets_fit, products, unfuse_matmul
from ..._compiler.passes.order_memory import rewrites
from ..._compiler.passes.pack import Operand2D, copied_operands, crosswise_operands, may_pack, multiplying
from ..._compiler.passes.split_sums import summing_loop
from ..._compiler.passes.subtile import largest_count
from ..._compiler.passes.turn import turnable
from ..._shapes import Dim, cdiv, hint_of, previous_power_of_2
from ...autotuner.space.own import Rule
from ...autotuner.space.survey import Survey
from ...config import RANGE_OPTIONS
from ...hardware import Target
from ...settings import Settings
from .chains import chained_products, may_unroll, most_warps
from .held import enough_warps
from .lower.steps import STEPS
from .plan.lowered import Lowered, lower, product_launch, product_tile, waiting_loops

#: Warps of a warp-specialized loop: one group of four for each role.
_SPECIALIZED_WARPS = 4
#: Rows per warp of wgmma, and the fewest warps that it takes.
_WARP_ROWS, _GROUP_WARPS = 16, 4
#: Legal values of ``maxnreg``.
REGISTER_LIMITS = (32, 64, 128, 256)
#: The default options of one loop.
_PLAIN_RANGE: Mapping[str, Any] = {option.key: option.off for option in RANGE_OPTIONS}


@dataclass(frozen=True, kw_only=True)
class Scene:
    """The context of the rules, besides decisions."""

    program: Program
    seen: Survey
    target: Target
    settings: Settings
    products: tuple[Op, ...]
    rewrites: bool


_Step = Callable[[Scene, Decisions, bool], Decisions]


def rules(seen: Survey, program: Program, target: Target, settings: Settings) -> tuple[Rule, ...]:
    """Return all rules for one program, in the order in which they run."""
    products = chained_products(program) if seen.matrix_blocks and target.has("wgmma") else ()
    scene = Scene(
        program=program,
        seen=seen,
        target=target,
        settings=settings,
        products=products,
        rewrites=any(rewrites(program, root.body) for root in program.roots),
    )
    return tuple(Rule(why=why, settle=functools.partial(step, scene)) for why, step in _RULES)


def _is_persistent(decisions: Decisions) -> bool:
    return decisions.values["pid_type"].startswith("persistent")


def _plain(decisions: Decisions, places: Iterable[Place]) -> Decisions:
    """Return decisions with default options for the loops at ``places``."""
    for key, plain in _PLAIN_RANGE.items():
        if key in decisions.entries:
            decisions = decisions.with_entries(key, dict.fromkeys(places, plain))
    return decisions


# --- grids -----------------------------------------------------------------------------------------------------------


def _check_lanes(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """Keep loops unflattened in checked mode: a flattened index does not tell which dimension is out of range."""
    if not scene.settings.checked:
        return decisions
    return decisions.with_entries("flatten_loops", dict.fromkeys(decisions.entries["flatten_loops"], False))


def _flattened_grids(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """Restrict options of flattened grids: one dimension has nothing to group, and ``xyz`` is the same as ``flat``."""
    flattened = [loop for loop, flag in decisions.entries["flatten_loops"].items() if flag]
    if not flattened:
        return decisions
    grouped = decisions.entries["l2_groupings"]
    decisions = decisions.with_entries("l2_groupings", {loop: 1 for loop in flattened if loop in grouped})
    return decisions.with_values(pid_type="flat") if decisions.values["pid_type"] == "xyz" else decisions


def _single_tiles(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """Reset loop options of grids that are not persistent: a program computes one tile, without a loop over tiles."""
    if _is_persistent(decisions):
        return decisions
    pid_type, multiplier = decisions.values["pid_type"], decisions.values["num_sm_multiplier"]
    if multiplier != 1 and not repair:
        raise exc.InvalidConfig(
            f"num_sm_multiplier={multiplier} sizes a persistent grid, but pid_type is "
            f"{pid_type!r}; use 'persistent_blocked' or 'persistent_interleaved', or leave it out."
        )
    decisions = decisions.with_values(num_sm_multiplier=1, maxnreg=None)
    decisions = _plain(decisions, [at for at, loop in enumerate(scene.seen.loops) if loop.root is not None])
    if pid_type == "xyz":
        decisions = decisions.with_entries("l2_groupings", dict.fromkeys(decisions.entries["l2_groupings"], 1))
    return decisions


def _long_axes(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """Use ``pid_type="flat"`` where an axis is too long for a dimension of the launch."""
    return decisions.with_values(pid_type="flat") if _is_too_long(scene, decisions) else decisions


def _is_too_long(scene: Scene, decisions: Decisions) -> bool:
    """Return whether an axis of the grid is too long for ``pid_type="xyz"``."""
    if decisions.values["pid_type"] != "xyz":
        return False
    (root,) = scene.seen.roots
    (order,) = (order for loop, order in decisions.entries["loop_orders"].items() if loop == 0)
    for limit, at in zip(scene.target.max_grid, order, strict=False):
        axis = root.axes[at]
        step = hint_of(axis.step) if axis.scalar else decisions.sizes[axis.block]
        count = cdiv(bound_seen(axis.end) - bound_seen(axis.begin), step)
        if count > limit:
            return True
    return False


def bound_seen(bound: Bound) -> int:
    """Return the value of a host bound, as seen when binding."""
    assert not isinstance(bound, OperandRef)
    return int(hint_of(bound))


# --- loops -----------------------------------------------------------------------------------------------------------


def _one_specialized(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """Limit warp specialization to one loop, which is not unrolled."""
    asked = decisions.entries.get("range_warp_specializes", {})
    places = [place for place, flag in asked.items() if flag]
    if not places:
        return decisions
    decisions = decisions.with_entries("range_warp_specializes", dict.fromkeys(places[1:]))
    decisions = decisions.with_entries("range_unroll_factors", {places[0]: 0})
    return decisions.with_values(num_warps=max(decisions.values["num_warps"], _SPECIALIZED_WARPS))


def _unrolled_products(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """Forbid unrolling of loops whose dots have too few rows for the warps; see ``chains``."""
    unrolled = {place for place, factor in decisions.entries["range_unroll_factors"].items() if factor}
    static = {place for place, flag in decisions.entries["static_ranges"].items() if flag}
    places = [place for place in unrolled | static if isinstance(place, tuple)]
    if not places or not scene.target.has("wgmma") or not scene.seen.matrix_blocks:
        return decisions
    loops = loops_of(scene.program)
    warps = decisions.values["num_warps"]
    kept = {place for place in places if not may_unroll(_op(loops[place[0]]).regions[0], decisions.sizes, warps)}
    decisions = decisions.with_entries("range_unroll_factors", dict.fromkeys(unrolled & kept, 0))
    return decisions.with_entries("static_ranges", dict.fromkeys(static & kept, False))


def _op(loop: Root | Op) -> Op:
    assert isinstance(loop, Op)
    return loop


def _static_loops(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """Reset the other options of loops that are unrolled at compile time."""
    static = [place for place, flag in decisions.entries["static_ranges"].items() if flag]
    return _plain(decisions, static) if static else decisions


# --- launch ----------------------------------------------------------------------------------------------------------


def _chained_warps(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """Limit the warps to the rows of the dots that the kernel chains; see ``chains``."""
    if not scene.products:
        return decisions
    return decisions.with_values(num_warps=most_warps(scene.products, decisions.sizes, decisions.values["num_warps"]))


def _held_values(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """Raise the warps until registers hold a good part of each value, unless the config gives the warps.

    Chained dots allow few warps and are exempt; see ``chains``.
    """
    if scene.products or (not repair and "num_warps" in decisions.given):
        return decisions
    return decisions.with_values(num_warps=enough_warps(scene.seen, scene.target, decisions))


def _registers(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """Limit ``maxnreg`` so that a block fits the register file of an SM: the driver refuses others."""
    each = decisions.values["maxnreg"]
    warps, has = decisions.values["num_warps"], scene.target.registers_per_sm
    threads = warps * scene.target.warp_size
    if not each or each * threads <= has:
        return decisions
    if not repair:
        raise exc.InvalidConfig(
            f"maxnreg={each} with num_warps={warps} takes {each * threads} registers a block, and "
            f"{scene.target} has {has}; use fewer warps, a smaller maxnreg, or leave it out."
        )
    return decisions.with_values(
        maxnreg=max((n for n in REGISTER_LIMITS if n < each and n * threads <= has), default=None)
    )


def _subtiles(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """Limit the subtiles to the width of the tiles; None where there is nothing to split."""
    asked, flattened = decisions.values["epilogue_subtile"], decisions.entries["flatten_loops"]
    if asked is None:
        return decisions
    if any(flattened.values()) and not repair:
        raise exc.InvalidConfig(
            f"epilogue_subtile={asked} splits tiles along their columns, which flatten_loops="
            f"{list(flattened.values())} leaves without any; keep one of them."
        )
    count = 1 if any(flattened.values()) else largest_count(decisions.sizes, scene.seen.columns, asked)
    return decisions.with_values(epilogue_subtile=count if count > 1 else None)


def unsplit(program: Program, settings: Settings) -> str:
    """Return the reason why the program's accumulation cannot be split over programs; empty where it can."""
    if settings.checked:
        return "checked kernels are compiled as written"
    try:
        summing_loop(program)
    except Declined as declined:
        return str(declined)
    return ""


def split_axis(program: Program) -> LoopAxis:
    """Return the axis of the accumulation loop of a program that can be split."""
    loop = summing_loop(program)
    (axis,) = next(op.attributes(ForAttrs).axes for op in program.walk() if op.number == loop)
    return axis


def _parts(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """Limit the split-K factor to the number of tiles, and drop it where tiles leave no room for a split.

    A split needs numbered programs. Its loop has bounds of its own, so that it is neither unrolled nor flattened, and
    the epilogue becomes a separate kernel.
    """
    if decisions.values.get("split_k", 1) == 1:
        return decisions
    decisions = decisions.with_values(split_k=min(decisions.values["split_k"], _most_parts(scene, decisions)))
    if len(_lowered(scene, decisions).program.roots) == len(scene.program.roots):
        return decisions.with_values(split_k=1)
    decisions = decisions.with_values(epilogue_subtile=None)
    for key, plain in (("static_ranges", False), ("range_flattens", None), ("range_warp_specializes", None)):
        decisions = decisions.with_entries(key, dict.fromkeys(decisions.entries.get(key, {}), plain))
    return decisions.with_values(pid_type="flat") if decisions.values["pid_type"] == "xyz" else decisions


def _most_parts(scene: Scene, decisions: Decisions) -> int:
    """Return the largest split-K factor, a power of two: each split has a tile, for the extent seen when binding.

    The end of each split must also fit in a 32-bit index.
    """
    axis = split_axis(scene.program)
    end, size = bound_seen(axis.end), decisions.sizes[axis.block]
    parts = previous_power_of_2(cdiv(end, size))
    narrow = scene.program.index_dtype == torch.int32
    while (
        narrow and parts > 1 and end + parts * size > 2**31
    ):  # the end of the last split is computed before it is clamped
        parts //= 2
    return parts


def unmaterialized(program: Program, settings: Settings) -> str:
    """Return the reason why the program's matmuls cannot be unfused; empty where they can."""
    if settings.checked:
        return "checked kernels are compiled as written"
    try:
        products(program)
    except Declined as declined:
        return str(declined)
    return ""


def turns(program: Program) -> bool:
    """Return whether A and B of a matmul can be swapped, where it is or in the kernel of unfused matmuls."""
    if turnable(program):
        return True
    try:
        return bool(turnable(unfuse_matmul(program, (None, None, None))))
    except Declined:
        return False


def crosswise(program: Program) -> bool:
    """Return whether operands can be copied K-major, where they are or in the kernel of unfused matmuls."""
    if crosswise_operands(program):
        return True
    try:
        return bool(crosswise_operands(multiplying(unfuse_matmul(program, (None, None, None)))))
    except Declined:
        return False


def _materialized(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """Unfuse matmuls where 32-bit offsets reach all of the intermediate, in a numbered grid.

    The accumulation loops disappear, with all options that rewrite them.
    """
    if "unfuse_matmul" not in decisions.values:
        return decisions
    if product_tile(decisions) is None or not offsets_fit(scene.program):
        return decisions.with_values(unfuse_matmul=None, matmul_num_warps=None, matmul_num_stages=None)
    others = {
        "split_k": 1,
        "pack_operands": False,
        "precompute_operands": False,
        "fuse_loops": False,
    }
    decisions = decisions.with_values(
        epilogue_subtile=None, **{key: plain for key, plain in others.items() if key in decisions.values}
    )
    decisions = decisions.with_entries("flatten_loops", dict.fromkeys(decisions.entries["flatten_loops"], False))
    decisions = _without_gone_loops(scene, decisions)
    decisions = _without_gone(scene, decisions)
    return decisions.with_values(pid_type="flat") if decisions.values["pid_type"] == "xyz" else decisions


def _without_gone_loops(scene: Scene, decisions: Decisions) -> Decisions:
    """Reset the options of loops that the rewritten program does not have."""
    left = {op.number for op in _lowered(scene, decisions).program.walk() if isinstance(op.attrs, ForAttrs)}
    gone = {at for at, loop in enumerate(loops_of(scene.program)) if isinstance(loop, Op) and loop.number not in left}
    for key, plain in (("static_ranges", False), *_PLAIN_RANGE.items()):
        places = [at for at in decisions.entries.get(key, {}) if isinstance(at, tuple) and at[0] in gone]
        decisions = decisions.with_entries(key, dict.fromkeys(places, plain))
    return decisions


def _turned(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """Swap A and B only where the columns give at least 16 rows of wgmma to each of at least 4 warps.

    Loops with swapped dots are not unrolled, because chained dots have different layouts.
    """
    if not decisions.values.get("swap_ab", False):
        return decisions
    if (tile := product_tile(decisions)) is not None:
        warps, rows = product_launch(decisions)[0], [tile[1]]
    else:
        warps = decisions.values["num_warps"]
        rows = [_lanes(found.columns, decisions.sizes) for found in turnable(scene.program)]
    unrolled = any(decisions.entries["range_unroll_factors"].values()) or any(
        decisions.entries["static_ranges"].values()
    )
    copied = decisions.values.get("transpose_operands", False)
    if copied or unrolled or warps < _GROUP_WARPS or min(rows, default=0) < _WARP_ROWS * warps:
        return decisions.with_values(swap_ab=False)
    return decisions


def _copied(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """Copy operands only where rows of whole tiles are multiples of 16 bytes and offsets fit in 32 bits, in a numbered
    grid.
    """
    for key in ("transpose_operands", "pack_operands"):
        if decisions.values.get(key, False) and not _may_copy(scene, decisions):
            decisions = decisions.with_values(**{key: False})
    if decisions.values.get("transpose_operands", False) and not _copies(scene, decisions):
        decisions = decisions.with_values(transpose_operands=False)
    xyz = decisions.values["pid_type"] == "xyz" and _copies(scene, decisions)
    return decisions.with_values(pid_type="flat") if xyz else decisions


def _copies(scene: Scene, decisions: Decisions) -> tuple[Operand2D, ...]:
    packed, crosswise = (decisions.values.get(key, False) for key in ("pack_operands", "transpose_operands"))
    return copied_operands(_multiplied(scene, decisions), packed=packed, crosswise=crosswise)


def _multiplied(scene: Scene, decisions: Decisions) -> Program:
    """Return the program with the matmuls: as written, or the kernel of the unfused ones."""
    tile = product_tile(decisions)
    return scene.program if tile is None else multiplying(unfuse_matmul(scene.program, tile))


def _may_copy(scene: Scene, decisions: Decisions) -> bool:
    flattened = any(decisions.entries["flatten_loops"].values())
    sizes = dict(decisions.sizes)
    if product_tile(decisions) is not None:
        sizes.update((b.id, b.size) for b in _multiplied(scene, decisions).blocks if isinstance(b.size, int))
    return not flattened and all(may_pack(each, sizes) for each in _copies(scene, decisions))


def _hoisted(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """Allow precomputed operands only where offsets fit in 32 bits; the grid loop that computes them needs a numbered
    grid.
    """
    if not decisions.values.get("precompute_operands", False):
        return decisions
    found = computed_operands(scene.program)
    if any(decisions.entries["flatten_loops"].values()) or not all(may_hoist(each, decisions.sizes) for each in found):
        return decisions.with_values(precompute_operands=False)
    decisions = _without_gone(scene, decisions)
    return decisions.with_values(pid_type="flat") if decisions.values["pid_type"] == "xyz" else decisions


def _joined(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """Fuse loops only with equal tile sizes that divide the extent; the first loop's options apply to all."""
    if not decisions.values.get("fuse_loops", False):
        return decisions
    run = joinable_loops(scene.program)
    others = any(
        decisions.values.get(key, False) for key in ("precompute_operands", "pack_operands", "transpose_operands")
    )
    if run is None or others or not may_join(run, decisions.sizes):
        return decisions.with_values(fuse_loops=False)
    numbers = {op.number: at for at, op in enumerate(run.loops)}
    places = {
        at: numbers[loop.number]
        for at, loop in enumerate(loops_of(scene.program))
        if isinstance(loop, Op) and loop.number in numbers
    }
    for key in ("static_ranges", *_PLAIN_RANGE):
        gone = [
            place
            for place in decisions.entries.get(key, {})
            if isinstance(place, tuple) and (key == "static_ranges" or places.get(place[0], 0))
        ]
        decisions = decisions.with_entries(key, dict.fromkeys(gone, _PLAIN_RANGE.get(key, False)))
    return _without_gone(scene, decisions)


def _peeled(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """Peel masks only where tiles need none; peeled loops are neither unrolled nor warp-specialized."""
    if not decisions.values.get("peel_masks", False):
        return decisions
    static, special = (decisions.entries.get(key, {}) for key in ("static_ranges", "range_warp_specializes"))
    peeled = any(isinstance(op.attrs, ForAttrs) and op.attrs.like for op in _lowered(scene, decisions).program.walk())
    if any(static.values()) or any(special.values()) or not peeled:
        return decisions.with_values(peel_masks=False)
    return decisions


def _without_gone(scene: Scene, decisions: Decisions) -> Decisions:
    """Reset the options of loads that the rewritten program does not have."""
    attrs = [op.attrs for op in _lowered(scene, decisions).program.walk() if isinstance(op.attrs, MemoryAttrs)]
    slots, loads = {each.slot for each in attrs}, {each.load_slot for each in attrs}
    for key, known in (("load_eviction_policies", loads), ("load_cache_modifiers", slots)):
        gone = [slot for slot, option in decisions.accesses(key).items() if option and slot not in known]
        decisions = decisions.with_entries(key, dict.fromkeys(gone, ""))
    return decisions


def _lanes(dim: Dim, sizes: Mapping[int, int]) -> int:
    return math.prod((sizes[block] for block in dim.blocks), start=dim.const)


# --- what the rewritten program leaves room for ----------------------------------------------------------------------


def _lowered(scene: Scene, decisions: Decisions) -> Lowered:
    return lower(scene.program, decisions, scene.target, scene.settings, STEPS)


def _until_settled(rule: _Step, scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """Apply ``rule`` until nothing changes: an option that it removes may leave room for less, or for more."""
    while (settled := rule(scene, decisions, repair)) is not decisions:
        decisions = settled
    return decisions


def _boxes(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """Give each access the mechanism that it can have, or pointers."""
    asked = {slot: way for slot, way in decisions.accesses("indexing").items() if way != "pointer"}
    if not asked:
        return decisions
    lowered = _lowered(scene, decisions)
    granted = {op.attrs.slot for op in lowered.program.walk() if op.number in lowered.boxes}
    return decisions.with_entries("indexing", dict.fromkeys(asked.keys() - granted, "pointer"))


def _loops_in_order(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """Keep loads in their iteration, and warps without roles, in loops that contain a barrier."""
    asked = {
        place
        for key in ("range_num_stages", "range_flattens", "range_warp_specializes")
        for place, value in decisions.entries.get(key, {}).items()
        if value != _PLAIN_RANGE[key]
    }
    if not asked or not (scene.rewrites or decisions.chunked):
        return decisions
    waiting = waiting_loops(scene.program, _lowered(scene, decisions).program)
    for key in ("range_num_stages", "range_flattens", "range_warp_specializes"):
        if key in decisions.entries:
            held = [place for place in asked if (place[0] if isinstance(place, tuple) else place) in waiting]
            decisions = decisions.with_entries(key, dict.fromkeys(held, _PLAIN_RANGE[key]))
    return decisions


def _access_options(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """Drop cache options that an access cannot have.

    Descriptors take neither eviction policies nor cache modifiers. Other accesses take one of the two: ptxas rejects a
    cache operator with an eviction priority (ld.global.cg.L1::evict_first). The policy is the finer instruction, so it
    is kept.
    """
    seen = scene.seen
    policies = {slot: policy for slot, policy in decisions.accesses("load_eviction_policies").items() if policy}
    modifiers = {
        (key, slot)
        for key in ("load_cache_modifiers", "store_cache_modifiers")
        for slot, modifier in decisions.accesses(key).items()
        if modifier
    }
    if not policies and not modifiers:
        return decisions
    plain = _described(scene, decisions)
    unused = [at for at in policies if seen.load_slots.get(at) in plain or at not in seen.load_slots]
    decisions = decisions.with_entries("load_eviction_policies", dict.fromkeys(unused, ""))
    evicting = {seen.load_slots[at] for at in policies if at not in unused} | seen.evicted
    for key, slot in modifiers:
        if slot in plain or slot in evicting:
            decisions = decisions.with_entries(key, {slot: ""})
    return decisions


def _described(scene: Scene, decisions: Decisions) -> frozenset[int]:
    """Return the accesses that use descriptors wherever they occur in the program."""
    if "tensor_descriptor" not in decisions.accesses("indexing").values():
        return frozenset()
    lowered = _lowered(scene, decisions)
    ways: dict[int, set[str]] = {}
    for op in lowered.program.walk():
        if op.kind in ("load", "store"):
            box = lowered.boxes.get(op.number)
            ways.setdefault(op.attrs.slot, set()).add("pointer" if box is None else box.mechanism)
    return frozenset(slot for slot, found in ways.items() if found == {"tensor_descriptor"})


_RULES: tuple[tuple[str, _Step], ...] = (
    ("its tiles do not fit in the registers of fewer warps", _held_values),
    ("a checked kernel reports indices by dimension", _check_lanes),
    ("a flattened grid has a single dimension", _flattened_grids),
    ("programs of this pid_type take one tile each", _single_tiles),
    ("at most one loop is warp-specialized, with at least 4 warps and no unrolling", _one_specialized),
    (
        "unrolling chains the dots of a loop, and Triton miscompiles chained dots with fewer than 16 rows per warp",
        _unrolled_products,
    ),
    (
        "unfused matmuls need an intermediate below 2**31 elements and a pid_type other than 'xyz', and replace their loops with all options",
        _materialized,
    ),
    (
        "split-K needs a tile per split, a pid_type other than 'xyz' and a loop of its own, and moves the epilogue to another kernel",
        _parts,
    ),
    ("a loop that is unrolled at compile time has no other options", _static_loops),
    ("Triton miscompiles chained dots with fewer than 16 rows per warp", _chained_warps),
    (
        "operand copies need whole tiles with rows of a multiple of 16 bytes, fewer than 2**31 elements, no flatten_loops and a pid_type other than 'xyz'",
        _copied,
    ),
    (
        "swapped A and B need at least 4 warps, 16 columns of the tile per warp, no unrolled loop and no K-major copies of the operands",
        _turned,
    ),
    (
        "precomputed operands need fewer than 2**31 elements, no flatten_loops and a pid_type other than 'xyz'",
        _hoisted,
    ),
    (
        "fused loops need equal tile sizes that divide the extent, use the first loop's options, and exclude precomputed or copied operands",
        _joined,
    ),
    ("no tiles are known to need no masks, or a loop is unrolled or warp-specialized", _peeled),
    ("a block with this many registers per thread does not fit an SM", _registers),
    ("no epilogue tile has enough columns", _subtiles),
    ("a dimension of the grid is too long for the launch", _long_axes),
    ("this access cannot use it on this target, or with these tile sizes", functools.partial(_until_settled, _boxes)),
    ("the loop has a barrier in each iteration", functools.partial(_until_settled, _loops_in_order)),
    ("the access has another cache option, or a descriptor, which takes none", _access_options),
)
