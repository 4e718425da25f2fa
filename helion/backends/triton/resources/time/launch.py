"""What of a config the predicted time depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .....autotuner.decisions import Decisions

_BOXES = "tensor_descriptor"


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One config as the time sees it: ``sizes`` in elements by block id, orders and groupings by the number of the grid loop,
    and the memory slots that the copy engine moves or that have an eviction policy. ``own_stages`` are those that a loop asks for by
    itself, with which loads that feed no product are prefetched too. ``flattened`` are the grid loops over the
    product of their extents, ``fused`` those whose loop over tiles is one with the loops inside, ``parts`` the programs that
    share a sum, ``copied_bytes`` those of operands that are copied first, ``per_sm`` the programs that are launched for each SM
    where they go on to other tiles, ``blocked`` whether that is to the tile next to the last one."""

    sizes: Mapping[int, int]
    warps: int
    stages: int
    own_stages: int = 1
    boxed: frozenset[int] = frozenset()
    evictions: Mapping[int, str] = field(default_factory=dict)
    orders: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    groupings: Mapping[int, int] = field(default_factory=dict)
    flattened: frozenset[int] = frozenset()
    fused: frozenset[int] = frozenset()
    persistent: bool = False
    blocked: bool = False
    per_sm: int | None = None
    parts: int = 1
    copied_bytes: int = 0


def launch_of(decisions: Decisions) -> Launch:
    values, stages = decisions.values, decisions.entries["range_num_stages"]
    # an entry of a grid loop is about the loop, that of one inside about one of its dimensions
    roots = tuple(enumerate(sorted(place for place in stages if isinstance(place, int))))
    orders = {root: decisions.at("loop_orders", loop) for root, loop in roots}
    persistent = values["pid_type"].startswith("persistent")
    inside = [given or values["num_stages"] for place, given in stages.items() if not isinstance(place, int)]
    return Launch(
        sizes=decisions.sizes,
        warps=values["num_warps"],
        stages=max(inside, default=values["num_stages"]),
        own_stages=max([1, *(given for place, given in stages.items() if given and not isinstance(place, int))]),
        boxed=frozenset(slot for slot, way in decisions.accesses("indexing").items() if way == _BOXES),
        evictions={slot: how for slot, how in decisions.accesses("load_eviction_policies").items() if how},
        orders={root: tuple(order) for root, order in orders.items() if order},
        groupings={root: decisions.at("l2_groupings", loop) or 1 for root, loop in roots},
        flattened=frozenset(root for root, loop in roots if decisions.at("flatten_loops", loop)),
        persistent=persistent,
        blocked=values["pid_type"] == "persistent_blocked",
        per_sm=values["num_sm_multiplier"] if persistent else None,
        parts=values.get("split_k", 1),
        fused=frozenset(root for root, loop in roots if persistent and decisions.at("range_flattens", loop)),
    )
