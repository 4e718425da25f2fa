"""The parts of a config that the predicted time depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....._compiler.decisions import Decisions
from ....._support.records import dataclass, field
from ...together import are_together

_BOXES = "tensor_descriptor"


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One config as the time model sees it. ``sizes`` are in elements by block id.

    Orders and groupings go by the number of the grid loop. ``boxed`` and ``evictions`` name the memory slots with
    tensor descriptors or an eviction policy. ``own_stages`` are those of a loop's own option, which also prefetch loads
    that feed no dot. ``tile_stages`` are those of the loop over tiles of a persistent program. Loops over single indices load ``ahead`` steps before the use. ``flattened`` are the grid loops over the product of their extents, ``fused`` those whose tile
    loop is flattened with the loops inside. ``parts`` is the split-K factor, and ``copied_bytes`` those of operands
    that are copied first. ``per_sm`` is the number of persistent programs launched per SM, and ``blocked`` is set where
    each of them takes consecutive tiles. ``together``: programs meet at barriers, in place of a launch for each phase.
    ``peeled``: loops are split where masks are known.
    """

    sizes: Mapping[int, int]
    warps: int
    stages: int
    own_stages: int = 1
    tile_stages: Mapping[int, int] = field(default_factory=dict)
    ahead: int = 0
    boxed: frozenset[int] = frozenset()
    evictions: Mapping[int, str] = field(default_factory=dict)
    uncached: frozenset[int] = frozenset()
    orders: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    groupings: Mapping[int, int] = field(default_factory=dict)
    flattened: frozenset[int] = frozenset()
    fused: frozenset[int] = frozenset()
    persistent: bool = False
    blocked: bool = False
    per_sm: int | None = None
    parts: int = 1
    copied_bytes: int = 0
    together: bool = False
    peeled: bool = False


def changed_orders(orders: Mapping[int, Sequence[int] | None]) -> dict[int, tuple[int, ...]]:
    """Return the orders of dimensions without those as written, so that equal launches compare equal."""
    return {root: tuple(order) for root, order in orders.items() if order and list(order) != sorted(order)}


def grouped(groupings: Mapping[int, int]) -> dict[int, int]:
    """Return the same of the groups of rows, without those of one row."""
    return {root: rows for root, rows in groupings.items() if rows > 1}


def launch_of(decisions: Decisions, copied_bytes: int = 0) -> Launch:
    values, stages = decisions.values, decisions.entries["range_num_stages"]
    # an entry of a grid loop belongs to the loop, that of an inner loop to one of its dimensions
    roots = tuple(enumerate(sorted(place for place in stages if isinstance(place, int))))
    orders = {root: decisions.at("loop_orders", loop) for root, loop in roots}
    persistent = values["pid_type"].startswith("persistent")
    inside = [given or values["num_stages"] for place, given in stages.items() if not isinstance(place, int)]
    return Launch(
        sizes=decisions.sizes,
        warps=values["num_warps"],
        stages=max(inside, default=values["num_stages"]),
        own_stages=max([1, *(given for place, given in stages.items() if given and not isinstance(place, int))]),
        tile_stages={root: stages[loop] or values["num_stages"] for root, loop in roots} if persistent else {},
        ahead=values.get("prefetch_distance", 0),
        boxed=frozenset(slot for slot, way in decisions.accesses("indexing").items() if way == _BOXES),
        evictions={slot: how for slot, how in decisions.accesses("load_eviction_policies").items() if how},
        uncached=frozenset(slot for slot, how in decisions.accesses("load_cache_modifiers").items() if how == ".cg"),
        orders=changed_orders(orders),
        groupings=grouped({root: decisions.at("l2_groupings", loop) or 1 for root, loop in roots}),
        flattened=frozenset(root for root, loop in roots if decisions.at("flatten_loops", loop)),
        persistent=persistent,
        blocked=values["pid_type"] == "persistent_blocked",
        per_sm=values["num_sm_multiplier"] if persistent else None,
        parts=values.get("split_k", 1),
        copied_bytes=copied_bytes,
        fused=frozenset(root for root, loop in roots if persistent and decisions.at("range_flattens", loop)),
        together=are_together(decisions),
        peeled=values.get("peel_masks", False),
    )
