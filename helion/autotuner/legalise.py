"""Projects a heuristic's wish on the space: what comes out compiles, fits and says what it takes."""

from __future__ import annotations

from typing import Any, Protocol

from .. import exc
from .._compiler.facts.records import KernelFacts
from .._compiler.resources.predict import Predicted, predict
from ..config import Config
from ..hardware import Target
from .heuristics.base import Proposal
from .space import ConfigSpace


class Predict(Protocol):
    """What ``resources.predict.predict`` is."""

    def __call__(
        self,
        facts: KernelFacts,
        sizes: dict[int, int],
        *,
        num_warps: int,
        num_stages: int,
        target: Target,
        boxed: frozenset[int] = ...,
        once: bool = ...,
    ) -> Predicted: ...


def legalise(
    proposal: Proposal, space: ConfigSpace, facts: KernelFacts, target: Target, *, model: Predict = predict
) -> tuple[Config, Predicted] | str:
    """The legal config nearest to ``proposal``, full and normalized, and what ``model`` predicts for it.

    Numbers out of range are brought into it. While the launch is predicted not to fit, it gets one pipeline stage
    less, then, with one stage left, half of its largest tile, then chunks instead of whole rows. Gives a text that says
    what is needed and what there is when nothing fits, or why a setting is refused. Raises KeyError when the proposal
    names a block, a root or a load that has no such setting.
    """
    try:
        config = space.repair(space.encode(proposal))
    except (exc.InvalidConfig, exc.NoFeasibleConfig) as error:
        return error.message
    while True:
        sizes = space.sizes(config)
        stages = _stages(config)
        boxed = frozenset(i for i, way in enumerate(config["indexing"]) if way == "tensor_descriptor")
        more: dict[str, Any] = {"boxed": boxed, "once": config["pid_type"] == "flat"} if boxed else {}
        predicted = model(facts, sizes, num_warps=config["num_warps"], num_stages=stages, target=target, **more)
        if predicted.fits:
            return config, predicted
        if stages > 1:
            config = _with_stages(config, space, stages - 1)
        elif (smaller := _smaller(config, space)) is not None:
            config = smaller
        else:
            return _refusal(predicted, space, sizes)


def _refusal(predicted: Predicted, space: ConfigSpace, sizes: dict[int, int]) -> str:
    blocks = (block for block in space.survey.blocks if block.kind != "grid")
    tiles = ", ".join(f"{block.name}={sizes[block.id]}" for block in blocks)
    needs = predicted.reason or (
        f"{predicted.shared_bytes} bytes of shared memory are needed, and a block has {space.target.smem_per_block_bytes}"
    )
    return f"does not fit {space.target}, even with one stage and the smallest tiles ({tiles}): {needs}"


def _stages(config: Config) -> int:
    """The most iterations of a loop that are in flight; a loop's own number replaces the launch's there."""
    return max(config["num_stages"], *config["range_num_stages"], 1)


def _with_stages(config: Config, space: ConfigSpace, stages: int) -> Config:
    per_loop = [min(own, stages) for own in config["range_num_stages"]]
    return space.repair({**config, "num_stages": min(config["num_stages"], stages), "range_num_stages": per_loop})


def _smaller(config: Config, space: ConfigSpace) -> Config | None:
    """Half of the largest tile, or with all at their minimum, half of the longest row; None if nothing can shrink."""
    sizes = space.sizes(config)
    for blocks in (space.tunable, space.rollable):
        larger = [block for block in blocks if sizes[block] > space.lowest[block]]
        if larger:
            largest = max(larger, key=lambda block: sizes[block])
            return space.resized(config, {largest: sizes[largest] // 2})
    return None
