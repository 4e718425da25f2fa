"""Projection of a heuristic's proposal to the space: the result compiles, fits, and has predicted resources."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .. import exc
from ..config import Config
from .margins import SAME_TIME_RATIO
from .proposal import Predict, Predicted, Proposal
from .space import ConfigSpace

#: Config keys that need less shared memory, None if there are none; see ``backends.protocol.Backend.with_less_smem``.
Lighter = Callable[[Config], Mapping[str, Any] | None]


def legalise(
    proposal: Proposal, space: ConfigSpace, predict: Predict, lighter: Lighter
) -> tuple[Config, Predicted] | str:
    """Return the legal config nearest to ``proposal``, full and normalized, and its prediction.

    Numbers out of range are brought into it. While the launch is predicted not to fit, it gets ``lighter`` keys. If
    there are none, the tile that helps most is halved, then whole rows become chunks. If nothing fits, returns a text
    with the need and the limit, or with the reason of a refusal. Raises KeyError if the proposal names a block, a root
    or a load that has no such setting.
    """
    # a smaller tile may allow settings that a large one does not: each step starts again from the proposal
    wish = space.encode(proposal)
    try:
        config = space.approach(wish)
        if lost := next(space.dropped(wish), None):  # without it the config is not what was proposed
            return str(lost)
    except (exc.InvalidConfig, exc.NoFeasibleConfig) as error:
        return error.message
    while True:
        predicted = predict(config)
        if predicted.fits:
            return config, predicted
        changed = lighter(config)
        if changed is None:
            smaller = [{**wish, **sizes} for sizes in _smaller(config, space)]
            if not smaller:
                return _refusal(predicted, space, space.sizes(config))
            options = [space.approach(option) for option in smaller]
            at = _nearest(predicted, [predict(option) for option in options])
            wish, config = smaller[at], options[at]
        else:
            wish = {**wish, **changed}
            config = space.approach(wish)


def _nearest(now: Predicted, after: list[Predicted]) -> int:
    """Return the first option of ``after`` that brings the launch nearer to fitting without being much slower.

    If none does, return the first one.
    """

    def helps(predicted: Predicted) -> bool:
        shared, columns = predicted.shared_bytes, predicted.tensor_memory_columns
        return predicted.fits or shared < now.shared_bytes or columns < now.tensor_memory_columns

    helpful = [(at, predicted) for at, predicted in enumerate(after) if helps(predicted)]
    fitting = [option for option in helpful if option[1].fits] or helpful
    least = min((predicted.time_us for _, predicted in fitting), default=0.0)
    return next((at for at, predicted in fitting if predicted.time_us <= SAME_TIME_RATIO * least), 0)


def _refusal(predicted: Predicted, space: ConfigSpace, sizes: dict[int, int]) -> str:
    blocks = (block for block in space.shape.blocks if block.kind != "grid")
    tiles = ", ".join(f"{block.name}={sizes[block.id]}" for block in blocks)
    needs = predicted.reason or (
        f"{predicted.shared_bytes} bytes of shared memory are needed, and a block has {space.target.smem_per_block_bytes}"
    )
    return f"does not fit {space.target}, even with one stage and the smallest tiles ({tiles}): {needs}"


def _smaller(config: Config, space: ConfigSpace) -> list[dict[str, Any]]:
    """List the sizes of a config with one tile halved, or with all at their minimum, one row, the largest first.

    Empty if nothing can shrink.
    """
    sizes = space.sizes(config)
    for blocks in (space.tunable, space.rollable):
        larger = [block for block in blocks if sizes[block] > space.lowest[block]]
        if larger:
            ordered = sorted(larger, key=lambda block: -sizes[block])
            return [space.sized(config, {block: space.half(block, sizes[block])}) for block in ordered]
    return []
