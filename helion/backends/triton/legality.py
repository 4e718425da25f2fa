"""Rules that legalize decisions in combination, for limits of Triton and of the program."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterable

from ... import exc
from ..._compiler.decisions import Decisions, Place
from ..._compiler.ir.grammar import Bound, Op, OperandRef, Program, Root
from ..._compiler.ir.loops import loops_of
from ..._compiler.passes.always.order_memory import rewrites
from ..._compiler.rewrites import LEGALIZED, between, rewrite_of
from ..._compiler.rewrites.epilogue_subtile import largest_count
from ..._compiler.rewrites.legality import LOOP_OPTIONS, legalize, without_gone_accesses
from ..._compiler.rewrites.record import RuleContext
from ..._compiler.rewrites.unfuse_matmul import matmul_tile
from ..._shapes import cdiv, hint_of
from ..._support.records import dataclass
from ...autotuner.space.own import Rule
from ...autotuner.space.program_shape import ProgramShape
from ...config import RANGE_OPTIONS
from ...hardware import Target
from ...settings import Settings
from .chains import chained_products, may_unroll, most_warps
from .column_warps import asynchronous_products, with_wide_columns
from .lower.accesses.pairs import may_pair
from .lower.steps import REWRITING, STEPS
from .plan.lowered import Lowered, lower, rewritten, waiting_loops
from .together import TOGETHER
from .value_limits import enough_warps, enough_warps_of_rows

#: Warps of a warp-specialized loop: one group of four for each role.
_SPECIALIZED_WARPS = 4
#: Legal values of ``maxnreg``.
REGISTER_LIMITS = (32, 64, 128, 256)


@dataclass(frozen=True, kw_only=True)
class LaunchContext(RuleContext):
    """The context of all rules, besides decisions.

    ``chained`` are the dots that the kernel chains, and ``asynchronous`` those that wgmma may compute.
    """

    shape: ProgramShape
    settings: Settings
    chained: tuple[Op, ...]
    asynchronous: tuple[Op, ...]

    @functools.cached_property
    def orders_memory(self) -> bool:
        """Set where some loads read what the kernel stores."""
        return any(rewrites(self.program, root.body) for root in self.program.roots)

    @functools.cached_property
    def paired(self) -> bool:
        """Set where accesses of two neighboring elements may become one."""
        return not self.settings.checked and may_pair(self.program)


_Step = Callable[[LaunchContext, Decisions, bool], Decisions]


def rules(
    shape: ProgramShape, program: Program, target: Target, settings: Settings, absent: Container[str] = ()
) -> tuple[Rule, ...]:
    """Return the rules for one program, which lacks the keys in ``absent``, in the order in which they run."""
    is_asynchronous = bool(shape.matrix_blocks) and target.has("wgmma")
    context = LaunchContext(
        program=program,
        shape=shape,
        target=target,
        settings=settings,
        chained=chained_products(program) if is_asynchronous else (),
        asynchronous=asynchronous_products(program) if is_asynchronous else (),
        rewritten=functools.partial(_rewritten, program, target, settings),
    )
    return tuple(
        [Rule(why=why, legalize=functools.partial(step, context)) for key, why, step in _RULES if key not in absent]
    )


def _is_persistent(decisions: Decisions) -> bool:
    return decisions.values["pid_type"].startswith("persistent")


def _plain(decisions: Decisions, places: Iterable[Place]) -> Decisions:
    """Return decisions with default options for the loops at ``places``."""
    for option in RANGE_OPTIONS:
        if option.key in decisions.entries:
            decisions = decisions.with_entries(option.key, dict.fromkeys(places, option.off))
    return decisions


# --- grids -----------------------------------------------------------------------------------------------------------


def _check_lanes(context: LaunchContext, decisions: Decisions, repair: bool) -> Decisions:
    """Keep loops unflattened in checked mode: a flattened index does not tell which dimension is out of range."""
    if not context.settings.checked:
        return decisions
    return decisions.with_entries("flatten_loops", dict.fromkeys(decisions.entries["flatten_loops"], False))


def _flattened_grids(context: LaunchContext, decisions: Decisions, repair: bool) -> Decisions:
    """Restrict options of flattened grids: one dimension has nothing to group, and ``xyz`` is the same as ``flat``."""
    grouped = decisions.entries["l2_groupings"]
    flattened = [loop for loop, flag in decisions.entries["flatten_loops"].items() if flag and loop in grouped]
    if not flattened:
        return decisions
    decisions = decisions.with_entries("l2_groupings", dict.fromkeys(flattened, 1))
    return decisions.with_values(pid_type="flat") if decisions.values["pid_type"] == "xyz" else decisions


def _single_tiles(context: LaunchContext, decisions: Decisions, repair: bool) -> Decisions:
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
    decisions = _plain(decisions, [at for at, loop in enumerate(context.shape.loops) if loop.root is not None])
    if pid_type == "xyz":
        decisions = decisions.with_entries("l2_groupings", dict.fromkeys(decisions.entries["l2_groupings"], 1))
    return decisions


def _resident_programs(context: LaunchContext, decisions: Decisions, repair: bool) -> Decisions:
    """Require persistent programs where all of them meet at a barrier.

    They access memory through pointers: TMA may read what it had before the barrier.
    """
    if not decisions.values.get(TOGETHER):
        return decisions
    apart = matmul_tile(decisions) is not None or decisions.values.get("split_k", 1) > 1
    if not _is_persistent(decisions) or apart:
        if not repair:
            raise exc.InvalidConfig(
                f"{TOGETHER}=True needs programs that are all resident, of one number of warps; use a persistent pid_type "
                "without unfuse_matmul and split_k, or leave it out."
            )
        return decisions.with_values(**{TOGETHER: False})
    most = _most_residents(context, decisions)
    if decisions.values["num_sm_multiplier"] > most:
        if not repair:
            raise exc.InvalidConfig(
                f"num_sm_multiplier={decisions.values['num_sm_multiplier']} with {TOGETHER}=True asks for more programs of "
                f"{decisions.values['num_warps']} warps than an SM of {context.target} holds; use at most {most}."
            )
        decisions = decisions.with_values(num_sm_multiplier=most)
    for key in ("range_warp_specializes", "indexing"):
        plain = {"indexing": "pointer"}.get(key)
        entries = decisions.entries.get(key)
        if entries and any(value not in (plain, None, False) for value in entries.values()):
            decisions = decisions.with_entries(key, dict.fromkeys(entries, plain))
    return decisions


def _most_residents(context: LaunchContext, decisions: Decisions) -> int:
    """Return the most programs per SM by its warps, and by its registers where the config limits those of a thread.

    It is a power of two. Binaries that need more registers or shared memory are refused once they are measured.
    """
    warps, registers = decisions.values["num_warps"], decisions.values.get("maxnreg")
    held = context.target.max_warps_per_sm // warps
    if registers is not None:
        held = min(held, context.target.registers_per_sm // (registers * warps * context.target.warp_size))
    return 1 << max(1, held).bit_length() - 1


def _long_axes(context: LaunchContext, decisions: Decisions, repair: bool) -> Decisions:
    """Use ``pid_type="flat"`` where an axis is too long for a dimension of the launch."""
    return decisions.with_values(pid_type="flat") if _is_too_long(context, decisions) else decisions


def _is_too_long(context: LaunchContext, decisions: Decisions) -> bool:
    """Return whether an axis of the grid is too long for ``pid_type="xyz"``."""
    if decisions.values["pid_type"] != "xyz":
        return False
    (root,) = context.shape.roots
    (order,) = (order for loop, order in decisions.entries["loop_orders"].items() if loop == 0)
    for limit, at in zip(context.target.max_grid, order, strict=False):
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


def _numbered_programs(context: LaunchContext, decisions: Decisions, repair: bool) -> Decisions:
    """Keep the numbers of programs where the grid has several dimensions."""
    if decisions.values["pid_type"] != "xyz" or not decisions.values.get("xcd_remap"):
        return decisions
    return decisions.with_values(xcd_remap=False)


# --- loops -----------------------------------------------------------------------------------------------------------


def _one_specialized(context: LaunchContext, decisions: Decisions, repair: bool) -> Decisions:
    """Limit warp specialization to one loop, which is not unrolled."""
    asked = decisions.entries.get("range_warp_specializes", {})
    places = [place for place, flag in asked.items() if flag]
    if not places:
        return decisions
    decisions = decisions.with_entries("range_warp_specializes", dict.fromkeys(places[1:]))
    decisions = decisions.with_entries("range_unroll_factors", {places[0]: 0})
    return decisions.with_values(num_warps=max(decisions.values["num_warps"], _SPECIALIZED_WARPS))


def _unrolled_products(context: LaunchContext, decisions: Decisions, repair: bool) -> Decisions:
    """Forbid unrolling of loops whose dots have too few rows for the warps; see ``chains``."""
    unrolled = {place for place, factor in decisions.entries["range_unroll_factors"].items() if factor}
    static = {place for place, flag in decisions.entries["static_ranges"].items() if flag}
    places = [place for place in unrolled | static if isinstance(place, tuple)]
    if not places or not context.target.has("wgmma") or not context.shape.matrix_blocks:
        return decisions
    loops = loops_of(context.program)
    warps = decisions.values["num_warps"]
    kept = {place for place in places if not may_unroll(_op(loops[place[0]]).regions[0], decisions.sizes, warps)}
    decisions = decisions.with_entries("range_unroll_factors", dict.fromkeys(unrolled & kept, 0))
    return decisions.with_entries("static_ranges", dict.fromkeys(static & kept, False))


def _op(loop: Root | Op) -> Op:
    assert isinstance(loop, Op)
    return loop


def _static_loops(context: LaunchContext, decisions: Decisions, repair: bool) -> Decisions:
    """Reset the other options of loops that are unrolled at compile time."""
    static = [place for place, flag in decisions.entries["static_ranges"].items() if flag]
    return _plain(decisions, static) if static else decisions


# --- launch ----------------------------------------------------------------------------------------------------------


def _chained_warps(context: LaunchContext, decisions: Decisions, repair: bool) -> Decisions:
    """Limit the warps to the rows of the dots that the kernel chains; see ``chains``."""
    if not context.chained:
        return decisions
    return decisions.with_values(num_warps=most_warps(context.chained, decisions.sizes, decisions.values["num_warps"]))


def _wide_columns(context: LaunchContext, decisions: Decisions, repair: bool) -> Decisions:
    """Lower warps that would divide the columns of a matmul too far, except those that a user gives; see ``column_warps``."""
    return with_wide_columns(context.asynchronous, decisions) if context.asynchronous and repair else decisions


def _held_values(context: LaunchContext, decisions: Decisions, repair: bool) -> Decisions:
    """Raise the warps until registers hold a good part of each value, unless the config gives the warps.

    The exception is a value with a whole dimension, which may be shorter with other arguments. Chained dots allow few
    warps and are exempt; see ``chains``.
    """
    if context.chained:
        return decisions
    if not repair and "num_warps" in decisions.given:
        warps = enough_warps_of_rows(context.shape, context.program, context.target, decisions)
    else:
        warps = enough_warps(context.shape, context.target, decisions)
    return decisions.with_values(num_warps=warps)


def _short_chunks(context: LaunchContext, decisions: Decisions, repair: bool) -> Decisions:
    """Lower the warps of a kernel in chunks until each thread has an element of the largest tile, or one warp is left.

    Triton 3.6 fails where threads repeat the results of a row: it places a conversion for one loop, and uses it in the
    next.
    """
    if not decisions.chunked or context.shape.matrix_blocks:
        return decisions
    warps = decisions.values["num_warps"]
    numel = max((volume.numel(decisions.sizes) for volume in context.shape.volumes), default=0)
    while warps > 1 and numel < warps * context.target.warp_size:
        warps //= 2
    return decisions.with_values(num_warps=warps)


def _registers(context: LaunchContext, decisions: Decisions, repair: bool) -> Decisions:
    """Limit ``maxnreg`` so that a block fits the register file of an SM: the driver refuses others."""
    each = decisions.values["maxnreg"]
    warps, has = decisions.values["num_warps"], context.target.registers_per_sm
    threads = warps * context.target.warp_size
    if not each or each * threads <= has:
        return decisions
    if not repair:
        raise exc.InvalidConfig(
            f"maxnreg={each} with num_warps={warps} takes {each * threads} registers a block, and "
            f"{context.target} has {has}; use fewer warps, a smaller maxnreg, or leave it out."
        )
    return decisions.with_values(
        maxnreg=max((n for n in REGISTER_LIMITS if n < each and n * threads <= has), default=None)
    )


def _subtiles(context: LaunchContext, decisions: Decisions, repair: bool) -> Decisions:
    """Limit the subtiles to the width of the tiles; None where there is nothing to split."""
    asked, flattened = decisions.values["epilogue_subtile"], decisions.entries["flatten_loops"]
    if asked is None:
        return decisions
    if any(flattened.values()) and not repair:
        raise exc.InvalidConfig(
            f"epilogue_subtile={asked} splits tiles along their columns, which flatten_loops="
            f"{list(flattened.values())} leaves without any; keep one of them."
        )
    count = 1 if any(flattened.values()) else largest_count(decisions.sizes, context.shape.columns, asked)
    return decisions.with_values(epilogue_subtile=count if count > 1 else None)


# --- what the rewritten program leaves room for ----------------------------------------------------------------------


def _rewritten(program: Program, target: Target, settings: Settings, decisions: Decisions) -> Program:
    return rewritten(program, decisions, target, settings, REWRITING)


def _rewrite(key: str, context: LaunchContext, decisions: Decisions, repair: bool) -> Decisions:
    return legalize(rewrite_of(key), context, decisions)


def _of_rewrites(first: str | None, until: str | None) -> tuple[tuple[str, str, _Step], ...]:
    """Return the rules of rewrites, derived from their records, in the order of their legality."""
    return tuple(
        (each.key, each.needs, functools.partial(_rewrite, each.key))
        for each in between(LEGALIZED, first, until)
        if each.needs
    )


def _lowered(context: LaunchContext, decisions: Decisions) -> Lowered:
    return lower(context.program, decisions, context.target, context.settings, STEPS)


def _until_legal(rule: _Step, context: LaunchContext, decisions: Decisions, repair: bool) -> Decisions:
    """Apply ``rule`` until nothing changes: an option that it removes may leave room for less, or for more."""
    while (settled := rule(context, decisions, repair)) is not decisions:
        decisions = settled
    return decisions


def _boxes(context: LaunchContext, decisions: Decisions, repair: bool) -> Decisions:
    """Give each access the mechanism that it can have, or pointers."""
    asked = {slot: way for slot, way in decisions.accesses("indexing").items() if way != "pointer"}
    if not asked:
        return decisions
    lowered = _lowered(context, decisions)
    granted = {op.attrs.slot for op in lowered.program.walk() if op.number in lowered.boxes}
    return decisions.with_entries("indexing", dict.fromkeys(asked.keys() - granted, "pointer"))


def _loops_in_order(context: LaunchContext, decisions: Decisions, repair: bool) -> Decisions:
    """Keep loads in their iteration, and warps without roles, in loops that contain a barrier."""
    asked = {
        place
        for key in ("range_num_stages", "range_flattens", "range_warp_specializes")
        for place, value in decisions.entries.get(key, {}).items()
        if value != LOOP_OPTIONS[key]
    }
    if not asked or not (context.orders_memory or decisions.chunked):
        return decisions
    waiting = waiting_loops(context.program, _lowered(context, decisions).program)
    for key in ("range_num_stages", "range_flattens", "range_warp_specializes"):
        if key in decisions.entries:
            held = [place for place in asked if (place[0] if isinstance(place, tuple) else place) in waiting]
            decisions = decisions.with_entries(key, dict.fromkeys(held, LOOP_OPTIONS[key]))
    return decisions


def _access_options(context: LaunchContext, decisions: Decisions, repair: bool) -> Decisions:
    """Drop cache options that an access cannot have.

    Descriptors take neither eviction policies nor cache modifiers. Other accesses take one of the two: ptxas rejects a
    cache operator with an eviction priority (ld.global.cg.L1::evict_first). The policy is the finer instruction, so it
    is kept.
    """
    shape = context.shape
    policies = {slot: policy for slot, policy in decisions.accesses("load_eviction_policies").items() if policy}
    modifiers = {
        (key, slot)
        for key in ("load_cache_modifiers", "store_cache_modifiers")
        for slot, modifier in decisions.accesses(key).items()
        if modifier
    }
    if not policies and not modifiers:
        return decisions
    plain = _described(context, decisions)
    unused = [at for at in policies if shape.load_slots.get(at) in plain or at not in shape.load_slots]
    decisions = decisions.with_entries("load_eviction_policies", dict.fromkeys(unused, ""))
    evicting = {shape.load_slots[at] for at in policies if at not in unused} | shape.evicted
    for key, slot in modifiers:
        if slot in plain or slot in evicting:
            decisions = decisions.with_entries(key, {slot: ""})
    return decisions


def _pairs(context: LaunchContext, decisions: Decisions, repair: bool) -> Decisions:
    """Drop the cache options of an access that another one covers."""
    keys = ("load_eviction_policies", "load_cache_modifiers", "store_cache_modifiers")
    if not any(any(decisions.accesses(key).values()) for key in keys) or not context.paired:
        return decisions
    return without_gone_accesses(_lowered(context, decisions).program, decisions)


def _repeated(context: LaunchContext, decisions: Decisions, repair: bool) -> Decisions:
    """Let keys for the launch of another kernel follow the keys whose values they repeat."""
    values = decisions.values
    own = [each for rewrite in LEGALIZED for each in rewrite.launch if values.get(each.key) is not None]
    return decisions.with_values(**{each.key: None for each in own if values[each.key] == values[each.of]})


def _described(context: LaunchContext, decisions: Decisions) -> frozenset[int]:
    """Return the accesses that use descriptors wherever they occur in the program."""
    if "tensor_descriptor" not in decisions.accesses("indexing").values():
        return frozenset()
    lowered = _lowered(context, decisions)
    ways: dict[int, set[str]] = {}
    for op in lowered.program.walk():
        if op.kind in ("load", "store"):
            box = lowered.boxes.get(op.number)
            ways.setdefault(op.attrs.slot, set()).add("pointer" if box is None else box.mechanism)
    return frozenset(slot for slot, found in ways.items() if found == {"tensor_descriptor"})


#: Rules in the order in which they run, each with the key without which it changes nothing, if there is one.
_RULES: tuple[tuple[str, str, _Step], ...] = (
    ("", "its tiles do not fit in the registers of fewer warps", _held_values),
    ("", "a checked kernel reports indices by dimension", _check_lanes),
    ("", "a flattened grid has a single dimension", _flattened_grids),
    ("", "programs of this pid_type take one tile each", _single_tiles),
    (TOGETHER, "programs that meet at a barrier are persistent, and use pointers", _resident_programs),
    (
        "range_warp_specializes",
        "at most one loop is warp-specialized, with at least 4 warps and no unrolling",
        _one_specialized,
    ),
    (
        "",
        "unrolling chains the dots of a loop, and Triton miscompiles chained dots with fewer than 16 rows per warp",
        _unrolled_products,
    ),
    *_of_rewrites(None, "precompute_operands"),
    ("", "a loop that is unrolled at compile time has no other options", _static_loops),
    ("", "Triton miscompiles chained dots with fewer than 16 rows per warp", _chained_warps),
    *_of_rewrites("precompute_operands", None),
    (
        "",
        "matmul instructions of 8 columns are slow, and some releases of ptxas leave them out of loops",
        _wide_columns,
    ),
    ("", "its chunks have fewer elements than threads, which Triton 3.6 fails on", _short_chunks),
    ("", "a block with this many registers per thread does not fit an SM", _registers),
    ("", "no epilogue tile has enough columns", _subtiles),
    ("", "a dimension of the grid is too long for the launch", _long_axes),
    ("xcd_remap", "dies take the programs of a grid of one dimension in turn", _numbered_programs),
    ("", "this access cannot use it on this target, or with these tile sizes", functools.partial(_until_legal, _boxes)),
    ("", "the loop has a barrier in each iteration", functools.partial(_until_legal, _loops_in_order)),
    ("", "the access has another cache option, or a descriptor, which takes none", _access_options),
    ("", "the kernel accesses it together with its neighbor, whose cache options both have", _pairs),
    ("", "it is what None means", _repeated),
)
