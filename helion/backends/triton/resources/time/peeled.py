"""The demand of loops that are split where masks are known: ``peel_masks`` (measurement ``peeled_predictions``)."""

from __future__ import annotations

from collections.abc import Sequence

from ....._compiler.facts.records import KernelFacts
from .....autotuner.proposal import Predicted
from .....hardware import Target
from .demand import demands
from .launch import Launch
from .record import Demand


def with_known_masks(
    found: Sequence[Demand], facts: KernelFacts, launch: Launch, predicted: Predicted, target: Target
) -> list[Demand]:
    """Return the demands ``found`` of all grid loops, less the work of tiles in which comparisons are known.

    A loop is the mean of its kinds of tiles, by their number.
    """
    peeled = facts.rewrite("peel_masks")
    if peeled is None:
        return list(found)
    roots = {fact.axes: fact.root for fact in facts.regions if fact.kind == "loop"}
    shares: dict[int, list[tuple[float, float]]] = {}
    for loop in peeled.loops:
        shares.setdefault(roots[(loop.columns,)], []).append(loop.shares(launch.sizes))
    numbers = [fact.root for fact in facts.regions if fact.kind == "root"]
    mixed = list(found)
    for at, known in enumerate((peeled.first, peeled.last)):
        changed = demands(known, launch, predicted, target) if known is not None else []
        for place, less in enumerate(changed):
            of_root = [pair[at] for pair in shares.get(numbers[place], ())]
            share = sum(of_root) / max(1, len(of_root))
            pairs = zip(mixed[place], found[place], less, strict=True)
            mixed[place] = Demand(*(value + share * (part - own) for value, own, part in pairs))
    return mixed
