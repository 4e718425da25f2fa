"""Seeds: the proposals of the heuristics for a kernel, made legal and ranked."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .._compiler.facts.records import FlatFacts, KernelFacts
from .._support.records import dataclass, replace
from ..config import Config
from ..hardware import Target
from .proposal import Declined, Heuristic, Predicted, Proposal, Seed

#: Seeds kept per kernel; enough for the alternates of two heuristics and the fallback.
MAX_SEEDS = 10

Legalise = Callable[[Proposal], "tuple[Config, Predicted] | str"]


@dataclass(frozen=True, kw_only=True)
class SeedReport:
    """Seeds of a kernel.

    ``seeds`` are distinct and legal, the best first. ``declined`` has name and reason of every heuristic without a
    seed, so that each heuristic of the backend is in exactly one of the two. ``promoted`` are the first configs of
    heuristics whose first seed may become the default, including configs that another heuristic proposed first.
    ``competing`` are those of heuristics that compete by predicted time. Each has the
    largest ratio of predicted times at which it replaces the promoted seed.
    """

    seeds: tuple[Seed, ...]
    declined: tuple[tuple[str, str], ...]
    promoted: tuple[Config, ...] = ()
    competing: tuple[tuple[Config, float], ...] = ()


def make_seeds(facts: KernelFacts, target: Target, heuristics: Iterable[Heuristic], legalise: Legalise) -> SeedReport:
    """Run ``heuristics`` in their order, which is the only policy.

    A fallback is skipped after a heuristic that promotes a config. Half of the time goes to heuristics (measurement
    ``seeding_parts``). Keeping keys of arguments gains nothing (measurement ``seeding_memo``), the last times a little.

    ``legalise`` converts a proposal to a full config and its prediction, or returns the reason why it cannot.

    Where loops iterate over runs in memory, heuristics first see the kernel with these loops flattened: only its last
    tile has lanes out of range, and rows need no alignment (measurement ``flat_runs``).
    """
    flat = facts.flat.value if facts.flat is not None else None
    seeds: dict[Config, Seed] = {}
    declined: list[tuple[str, str]] = []
    promoted: list[Config] = []
    competing: list[tuple[Config, float]] = []
    promoting = ""
    heuristics = tuple(heuristics)
    asked = [(heuristic, flat) for heuristic in heuristics if flat is not None and not heuristic.fallback_only]
    for heuristic, runs in (*asked, *((heuristic, None) for heuristic in heuristics)):
        proposals: tuple[Proposal, ...] | Declined
        if heuristic.fallback_only and promoting:
            proposals = Declined(f"it is a fallback, and {promoting} promotes a seed")
        elif runs is not None:
            proposals = _of_runs(heuristic.propose(runs.facts, target), runs)
        else:
            proposals = heuristic.propose(facts, target)
        if isinstance(proposals, Declined):
            declined.append((heuristic.name, proposals.reason))
            continue
        refusals: list[str] = []
        found = 0
        for proposal in proposals:
            legal = legalise(proposal)
            if isinstance(legal, str):
                refusals.append(legal)
                continue
            config, predicted = legal
            if ratio := heuristic.competes_within(facts, target):
                competing.append((config, ratio))
            if heuristic.promote_seed_to_default:
                promoted.append(config)
                promoting = promoting or heuristic.name
            known = seeds.get(config)
            if known is not None:
                refusals.append(f"same config as a seed of {known.heuristic}")
            elif len(seeds) >= MAX_SEEDS:
                refusals.append(f"{MAX_SEEDS} seeds are ahead of it")
            else:
                seeds[config] = _seed(heuristic, proposal, config, predicted)
                found += 1
        if not found:
            declined.append((heuristic.name, "; ".join(dict.fromkeys(refusals)) or "it proposed nothing"))
    seeding = {seed.heuristic for seed in seeds.values()}
    declined = [(name, why) for name, why in dict(declined).items() if name not in seeding]
    return SeedReport(
        seeds=tuple(seeds.values()), declined=tuple(declined), promoted=tuple(promoted), competing=tuple(competing)
    )


def _seed(heuristic: Heuristic, proposal: Proposal, config: Config, predicted: Predicted) -> Seed:
    return Seed(
        config=config,
        heuristic=heuristic.name,
        reason=proposal.reason,
        predicted=predicted,
        may_spill=proposal.may_spill,
    )


def _of_runs(proposals: tuple[Proposal, ...] | Declined, flat: FlatFacts) -> tuple[Proposal, ...] | Declined:
    """Return proposals for flattened loops as those for the kernel: tiles of the last dimension, then of the others."""
    if isinstance(proposals, Declined):
        return proposals
    made = []
    for proposal in (each for each in proposals if each.flattens_runs):
        sizes = dict(proposal.block_sizes)
        for *others, last in flat.loops.values():
            size = sizes.pop(last, 1)
            for block in (last, *reversed(others)):
                axis = flat.axes[block]
                sizes[block] = max(axis.min_size, min(size, axis.max_size or size))
                size = max(1, size // sizes[block])
        flags = {**proposal.flatten_loops, **{-number: True for number in flat.loops}}
        reason = f"{proposal.reason}, of one run in memory"
        made.append(replace(proposal, reason=reason, block_sizes=sizes, flatten_loops=flags))
    return tuple(made)
