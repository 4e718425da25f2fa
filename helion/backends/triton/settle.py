"""The rules by which decisions go together: the only place that says what Triton, or the program, cannot have."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ... import exc
from ..._compiler.ir.grammar import Bound, ForAttrs, LoopAxis, MemoryAttrs, Op, OperandRef, Program, Root
from ..._compiler.ir.loops import loops_of
from ..._compiler.ir.rewrite import Declined
from ..._compiler.passes.hoist import computed_operands, may_hoist
from ..._compiler.passes.join import joinable_loops, may_join
from ..._compiler.passes.materialize import materialize_products, offsets_fit, products
from ..._compiler.passes.order_memory import rewrites
from ..._compiler.passes.pack import Operand2D, copied_operands, crosswise_operands, may_pack, multiplying
from ..._compiler.passes.split_sums import summing_loop
from ..._compiler.passes.subtile import largest_count
from ..._compiler.passes.turn import turnable
from ..._shapes import Dim, cdiv, hint_of, previous_power_of_2
from ...autotuner.decisions import Decisions, Place
from ...autotuner.space.own import Rule
from ...autotuner.space.survey import Survey
from ...hardware import Target
from ...settings import Settings
from .chains import chained_products, may_unroll, most_warps
from .held import enough_warps
from .lower.steps import STEPS
from .plan.lowered import Lowered, lower, product_launch, product_tile, waiting_loops

#: Warps that a warp-specialized loop needs: one group of four for each role.
_SPECIALIZED_WARPS = 4
#: Rows of a warp of the asynchronous matrix unit, and the fewest warps that it takes.
_WARP_ROWS, _GROUP_WARPS = 16, 4
#: Registers of a thread that a launch may be limited to.
REGISTER_LIMITS = (32, 64, 128, 256)
#: The options of one loop, as they are when nothing is asked for.
_PLAIN_RANGE: Mapping[str, Any] = {
    "range_unroll_factors": 0,
    "range_warp_specializes": None,
    "range_num_stages": 0,
    "range_multi_buffers": None,
    "range_flattens": None,
}


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What rules look at beside decisions."""

    program: Program
    seen: Survey
    target: Target
    settings: Settings
    products: tuple[Op, ...]
    rewrites: bool


_Step = Callable[[Scene, Decisions, bool], Decisions]


def rules(seen: Survey, program: Program, target: Target, settings: Settings) -> tuple[Rule, ...]:
    """All rules for one program, in the order in which they run."""
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
    """Without options of the loops at ``places``."""
    for key, plain in _PLAIN_RANGE.items():
        if key in decisions.entries:
            decisions = decisions.having(key, dict.fromkeys(places, plain))
    return decisions


# --- grids -----------------------------------------------------------------------------------------------------------


def _check_lanes(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """Lanes of a flattened loop do not say in which dimension they are out of range."""
    if not scene.settings.checked:
        return decisions
    return decisions.having("flatten_loops", dict.fromkeys(decisions.entries["flatten_loops"], False))


def _flattened_grids(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """A flattened grid has one dimension: nothing to group, and the same mapping under ``xyz`` as under ``flat``."""
    flattened = [loop for loop, flag in decisions.entries["flatten_loops"].items() if flag]
    if not flattened:
        return decisions
    grouped = decisions.entries["l2_groupings"]
    decisions = decisions.having("l2_groupings", {loop: 1 for loop in flattened if loop in grouped})
    return decisions.valued(pid_type="flat") if decisions.values["pid_type"] == "xyz" else decisions


def _single_tiles(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """A program of a grid that is not persistent takes one tile: it has no loop over tiles."""
    if _is_persistent(decisions):
        return decisions
    pid_type, multiplier = decisions.values["pid_type"], decisions.values["num_sm_multiplier"]
    if multiplier != 1 and not repair:
        raise exc.InvalidConfig(
            f"num_sm_multiplier={multiplier} sizes a persistent grid, but pid_type is "
            f"{pid_type!r}; use 'persistent_blocked' or 'persistent_interleaved', or leave it out."
        )
    decisions = decisions.valued(num_sm_multiplier=1, maxnreg=None)
    decisions = _plain(decisions, [at for at, loop in enumerate(scene.seen.loops) if loop.root is not None])
    if pid_type == "xyz":
        decisions = decisions.having("l2_groupings", dict.fromkeys(decisions.entries["l2_groupings"], 1))
    return decisions


def _long_axes(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """A grid that is too long for a dimension of the launch is numbered, as shorter ones of the kernel need not be."""
    return decisions.valued(pid_type="flat") if _is_too_long(scene, decisions) else decisions


def _is_too_long(scene: Scene, decisions: Decisions) -> bool:
    """Tell that an axis of the grid is too long for ``pid_type="xyz"``."""
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
    """A bound that the host knows, as seen when binding."""
    assert not isinstance(bound, OperandRef)
    return int(hint_of(bound))


# --- loops -----------------------------------------------------------------------------------------------------------


def _one_specialized(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """One loop at most is warp-specialized, and it is not unrolled."""
    asked = decisions.entries.get("range_warp_specializes", {})
    places = [place for place, flag in asked.items() if flag]
    if not places:
        return decisions
    decisions = decisions.having("range_warp_specializes", dict.fromkeys(places[1:]))
    decisions = decisions.having("range_unroll_factors", {places[0]: 0})
    return decisions.valued(num_warps=max(decisions.values["num_warps"], _SPECIALIZED_WARPS))


def _unrolled_products(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """Loops whose products have few rows for the warps are not unrolled; see ``chains``."""
    unrolled = {place for place, factor in decisions.entries["range_unroll_factors"].items() if factor}
    static = {place for place, flag in decisions.entries["static_ranges"].items() if flag}
    places = [place for place in unrolled | static if isinstance(place, tuple)]
    if not places or not scene.target.has("wgmma") or not scene.seen.matrix_blocks:
        return decisions
    loops = loops_of(scene.program)
    warps = decisions.values["num_warps"]
    kept = {place for place in places if not may_unroll(_op(loops[place[0]]).regions[0], decisions.sizes, warps)}
    decisions = decisions.having("range_unroll_factors", dict.fromkeys(unrolled & kept, 0))
    return decisions.having("static_ranges", dict.fromkeys(static & kept, False))


def _op(loop: Root | Op) -> Op:
    assert isinstance(loop, Op)
    return loop


def _static_loops(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """Loops that are unrolled when compiling have no other options."""
    static = [place for place, flag in decisions.entries["static_ranges"].items() if flag]
    return _plain(decisions, static) if static else decisions


# --- launch ----------------------------------------------------------------------------------------------------------


def _chained_warps(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """As many warps as the rows of products allow that the kernel adds up in a row; see ``chains``."""
    if not scene.products:
        return decisions
    return decisions.valued(num_warps=most_warps(scene.products, decisions.sizes, decisions.values["num_warps"]))


def _held_values(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """Values are divided among so many threads that registers hold a good part of them, unless the config names the warps. Not
    where products in a row allow few warps; see ``chains``."""
    if scene.products or (not repair and "num_warps" in decisions.given):
        return decisions
    return decisions.valued(num_warps=enough_warps(scene.seen, scene.target, decisions))


def _registers(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """A block whose threads have ``maxnreg`` registers each must fit an SM: the driver refuses others."""
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
    return decisions.valued(maxnreg=max((n for n in REGISTER_LIMITS if n < each and n * threads <= has), default=None))


def _subtiles(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """As many subtiles as the tiles are wide enough for; none where there is nothing to split."""
    asked, flattened = decisions.values["epilogue_subtile"], decisions.entries["flatten_loops"]
    if asked is None:
        return decisions
    if any(flattened.values()) and not repair:
        raise exc.InvalidConfig(
            f"epilogue_subtile={asked} splits tiles along their columns, which flatten_loops="
            f"{list(flattened.values())} leaves without any; keep one of them."
        )
    count = 1 if any(flattened.values()) else largest_count(decisions.sizes, scene.seen.columns, asked)
    return decisions.valued(epilogue_subtile=count if count > 1 else None)


def unsplit(program: Program, settings: Settings) -> str:
    """Why the sums of a program's product cannot be split over programs; empty where they can."""
    if settings.checked:
        return "a checked kernel computes in the programs that it was written for"
    try:
        summing_loop(program)
    except Declined as declined:
        return str(declined)
    return ""


def split_axis(program: Program) -> LoopAxis:
    """The axis of the loop that adds up; its program can be split."""
    loop = summing_loop(program)
    (axis,) = next(op.attributes(ForAttrs).axes for op in program.walk() if op.number == loop)
    return axis


def _parts(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """No more parts than there are tiles, and none where tiles leave no room for them. Programs have a number, whose loop over
    a part has bounds of its own, so that it is neither unrolled nor one with another; what follows the sums stands in a
    kernel of its own."""
    if decisions.values.get("split_k", 1) == 1:
        return decisions
    decisions = decisions.valued(split_k=min(decisions.values["split_k"], _most_parts(scene, decisions)))
    if len(_lowered(scene, decisions).program.roots) == len(scene.program.roots):
        return decisions.valued(split_k=1)
    decisions = decisions.valued(epilogue_subtile=None)
    for key, plain in (("static_ranges", False), ("range_flattens", None), ("range_warp_specializes", None)):
        decisions = decisions.having(key, dict.fromkeys(decisions.entries.get(key, {}), plain))
    return decisions.valued(pid_type="flat") if decisions.values["pid_type"] == "xyz" else decisions


def _most_parts(scene: Scene, decisions: Decisions) -> int:
    """Return a power of two: parts of at least one tile for the size that was seen when binding, whose ends 32-bit indices reach."""
    axis = split_axis(scene.program)
    end, size = bound_seen(axis.end), decisions.sizes[axis.block]
    parts = previous_power_of_2(cdiv(end, size))
    narrow = scene.program.index_dtype == torch.int32
    while (
        narrow and parts > 1 and end + parts * size > 2**31
    ):  # the end of the last part is computed before it is cut off
        parts //= 2
    return parts


def unmaterialized(program: Program, settings: Settings) -> str:
    """Why the matrix products of a program cannot be computed by a kernel in front; empty where they can."""
    if settings.checked:
        return "a checked kernel computes in the programs that it was written for"
    try:
        products(program)
    except Declined as declined:
        return str(declined)
    return ""


def turns(program: Program) -> bool:
    """Whether products can be turned where they are, or where a kernel in front computes them."""
    if turnable(program):
        return True
    try:
        return bool(turnable(materialize_products(program, (None, None, None))))
    except Declined:
        return False


def crosswise(program: Program) -> bool:
    """Whether operands can be copied contiguous along K, as they are or where a kernel in front computes products."""
    if crosswise_operands(program):
        return True
    try:
        return bool(crosswise_operands(multiplying(materialize_products(program, (None, None, None)))))
    except Declined:
        return False


def _materialized(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """Products are computed first where 32-bit offsets reach all of them, in a numbered grid; the loops that added them up, with
    all that rewrites these, are gone."""
    if "materialize_products" not in decisions.values:
        return decisions
    if product_tile(decisions) is None or not offsets_fit(scene.program):
        return decisions.valued(materialize_products=None, product_num_warps=None, product_num_stages=None)
    others = {
        "split_k": 1,
        "pack_operands": False,
        "hoist_operands": False,
        "join_loops": False,
    }
    decisions = decisions.valued(
        epilogue_subtile=None, **{key: plain for key, plain in others.items() if key in decisions.values}
    )
    decisions = decisions.having("flatten_loops", dict.fromkeys(decisions.entries["flatten_loops"], False))
    decisions = _without_gone_loops(scene, decisions)
    decisions = _without_gone(scene, decisions)
    return decisions.valued(pid_type="flat") if decisions.values["pid_type"] == "xyz" else decisions


def _without_gone_loops(scene: Scene, decisions: Decisions) -> Decisions:
    """Options of loops that the rewritten program does not have are as they are where nothing is said."""
    left = {op.number for op in _lowered(scene, decisions).program.walk() if isinstance(op.attrs, ForAttrs)}
    gone = {at for at, loop in enumerate(loops_of(scene.program)) if isinstance(loop, Op) and loop.number not in left}
    for key, plain in (("static_ranges", False), *_PLAIN_RANGE.items()):
        places = [at for at in decisions.entries.get(key, {}) if isinstance(at, tuple) and at[0] in gone]
        decisions = decisions.having(key, dict.fromkeys(places, plain))
    return decisions


def _turned(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """The columns of products that are turned are rows of the matrix unit, 16 for each of at least 4 warps; loops with
    them are not unrolled, as products in a row have a layout each."""
    if not decisions.values.get("turn_products", False):
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
        return decisions.valued(turn_products=False)
    return decisions


def _copied(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """Rows of whole tiles begin at multiples of 16 bytes, and their offsets have 32 bits; copies have a numbered grid."""
    for key in ("transpose_operands", "pack_operands"):
        if decisions.values.get(key, False) and not _may_copy(scene, decisions):
            decisions = decisions.valued(**{key: False})
    if decisions.values.get("transpose_operands", False) and not _copies(scene, decisions):
        decisions = decisions.valued(transpose_operands=False)
    xyz = decisions.values["pid_type"] == "xyz" and _copies(scene, decisions)
    return decisions.valued(pid_type="flat") if xyz else decisions


def _copies(scene: Scene, decisions: Decisions) -> tuple[Operand2D, ...]:
    packed, crosswise = (decisions.values.get(key, False) for key in ("pack_operands", "transpose_operands"))
    return copied_operands(_multiplied(scene, decisions), packed=packed, crosswise=crosswise)


def _multiplied(scene: Scene, decisions: Decisions) -> Program:
    """What multiplies: the program as written, or the kernel of the products that are computed first."""
    tile = product_tile(decisions)
    return scene.program if tile is None else multiplying(materialize_products(scene.program, tile))


def _may_copy(scene: Scene, decisions: Decisions) -> bool:
    flattened = any(decisions.entries["flatten_loops"].values())
    sizes = dict(decisions.sizes)
    if product_tile(decisions) is not None:
        sizes.update((b.id, b.size) for b in _multiplied(scene, decisions).blocks if isinstance(b.size, int))
    return not flattened and all(may_pack(each, sizes) for each in _copies(scene, decisions))


def _hoisted(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """Offsets of what is computed first have 32 bits; the grid loop that computes it has a numbered grid."""
    if not decisions.values.get("hoist_operands", False):
        return decisions
    found = computed_operands(scene.program)
    if any(decisions.entries["flatten_loops"].values()) or not all(may_hoist(each, decisions.sizes) for each in found):
        return decisions.valued(hoist_operands=False)
    decisions = _without_gone(scene, decisions)
    return decisions.valued(pid_type="flat") if decisions.values["pid_type"] == "xyz" else decisions


def _joined(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """Loops that are joined have the same tiles, all of them whole; the first one's options are those of all."""
    if not decisions.values.get("join_loops", False):
        return decisions
    run = joinable_loops(scene.program)
    others = any(decisions.values.get(key, False) for key in ("hoist_operands", "pack_operands", "transpose_operands"))
    if run is None or others or not may_join(run, decisions.sizes):
        return decisions.valued(join_loops=False)
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
        decisions = decisions.having(key, dict.fromkeys(gone, _PLAIN_RANGE.get(key, False)))
    return _without_gone(scene, decisions)


def _peeled(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """Loops are split where something is known of their tiles; runs of them are neither unrolled nor have they warps with roles."""
    if not decisions.values.get("peel_masks", False):
        return decisions
    static, special = (decisions.entries.get(key, {}) for key in ("static_ranges", "range_warp_specializes"))
    peeled = any(isinstance(op.attrs, ForAttrs) and op.attrs.like for op in _lowered(scene, decisions).program.walk())
    if any(static.values()) or any(special.values()) or not peeled:
        return decisions.valued(peel_masks=False)
    return decisions


def _without_gone(scene: Scene, decisions: Decisions) -> Decisions:
    """Options of loads that the rewritten program does not have are as they are where nothing is said."""
    attrs = [op.attrs for op in _lowered(scene, decisions).program.walk() if isinstance(op.attrs, MemoryAttrs)]
    slots, loads = {each.slot for each in attrs}, {each.load_slot for each in attrs}
    for key, known in (("load_eviction_policies", loads), ("load_cache_modifiers", slots)):
        gone = [slot for slot, option in decisions.accesses(key).items() if option and slot not in known]
        decisions = decisions.having(key, dict.fromkeys(gone, ""))
    return decisions


def _lanes(dim: Dim, sizes: Mapping[int, int]) -> int:
    return math.prod((sizes[block] for block in dim.blocks), start=dim.const)


# --- what the rewritten program leaves room for ----------------------------------------------------------------------


def _lowered(scene: Scene, decisions: Decisions) -> Lowered:
    return lower(scene.program, decisions, scene.target, scene.settings, STEPS)


def _until_settled(rule: _Step, scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """``rule`` again and again while it changes something: what it takes away may leave room for less, or for more."""
    while (settled := rule(scene, decisions, repair)) is not decisions:
        decisions = settled
    return decisions


def _boxes(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """Accesses use the mechanism they can have, or pointers."""
    asked = {slot: way for slot, way in decisions.accesses("indexing").items() if way != "pointer"}
    if not asked:
        return decisions
    lowered = _lowered(scene, decisions)
    granted = {op.attrs.slot for op in lowered.program.walk() if op.number in lowered.boxes}
    return decisions.having("indexing", dict.fromkeys(asked.keys() - granted, "pointer"))


def _loops_in_order(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """A loop with a barrier inside has its loads in their iteration, and warps of one role."""
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
            decisions = decisions.having(key, dict.fromkeys(held, _PLAIN_RANGE[key]))
    return decisions


def _access_options(scene: Scene, decisions: Decisions, repair: bool) -> Decisions:
    """Descriptors know neither eviction policies nor cache modifiers. Of the two an access has one: an instruction of PTX
    takes no cache operator beside an eviction priority (the assembler refuses ld.global.cg.L1::evict_first), and the
    policy is the finer instruction."""
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
    decisions = decisions.having("load_eviction_policies", dict.fromkeys(unused, ""))
    evicting = {seen.load_slots[at] for at in policies if at not in unused} | seen.evicted
    for key, slot in modifiers:
        if slot in plain or slot in evicting:
            decisions = decisions.having(key, {slot: ""})
    return decisions


def _described(scene: Scene, decisions: Decisions) -> frozenset[int]:
    """The accesses that use descriptors, however often they stand in the program."""
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
    ("so few threads do not hold its tiles in registers", _held_values),
    ("a checked kernel needs the dimensions of its loops", _check_lanes),
    ("a flattened grid has one dimension", _flattened_grids),
    ("programs of this pid_type take one tile each", _single_tiles),
    ("one loop at most is warp-specialized, with no unrolling and at least 4 warps", _one_specialized),
    ("products of so few rows are wrong when they stand in a row in so many warps", _unrolled_products),
    (
        "32-bit offsets do not reach all of the products that are computed first, or these have no numbered grid, and loops of their own",
        _materialized,
    ),
    (
        "a sum has as many parts as tiles at most, whose programs are numbered and whose loop is their own; what follows is the same in other tiles",
        _parts,
    ),
    ("a loop that is unrolled when compiling has no other options", _static_loops),
    ("products of so few rows in a row are wrong in more warps", _chained_warps),
    ("rows of whole tiles would not begin at multiples of 16 bytes, or copies have no numbered grid", _copied),
    (
        "the matrix unit takes 16 columns of a product that is turned for each of 4 warps or more, in no unrolled loop, and none whose operands are copied contiguous along K",
        _turned,
    ),
    (
        "32-bit offsets do not reach all of the operands that are computed first, or these have no numbered grid",
        _hoisted,
    ),
    (
        "tiles of loops that are joined are the same, and whole, with options of the first loop and no operands of kernels in front",
        _joined,
    ),
    ("nothing is known of masks in some of the tiles, or a loop is unrolled or specialized", _peeled),
    ("a block of threads with so many registers does not fit an SM", _registers),
    ("no tile of an epilogue is wide enough", _subtiles),
    ("a dimension of the grid is too long", _long_axes),
    ("it cannot be moved as a box on this target, or in these sizes", functools.partial(_until_settled, _boxes)),
    ("the loop waits for other threads in each iteration", functools.partial(_until_settled, _loops_in_order)),
    ("the access has another option, or a descriptor, which has none", _access_options),
)
