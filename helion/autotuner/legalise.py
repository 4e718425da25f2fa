"""Projects a heuristic's wish on the space: what comes out compiles, fits and says what it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .. import exc
from ..config import Config
from .proposal import Predict, Predicted, Proposal
from .space import ConfigSpace

#: Predictions of times that differ by less than this do not tell two configs apart.
_HARDLY = 1.25


#: Keys of a config with which it takes less, None when there are none; see ``backends.protocol.Backend.lighter``.
Lighter = Callable[[Config], Mapping[str, Any] | None]


def legalise(
    proposal: Proposal, space: ConfigSpace, predict: Predict, lighter: Lighter
) -> tuple[Config, Predicted] | str:
    """The legal config nearest to ``proposal``, full and normalized, and what ``predict`` says of it.

    Numbers out of range are brought into it. While the launch is predicted not to fit, it gets ``lighter``, and where it
    cannot, half of the tile that brings it nearest, then chunks instead of whole rows. Gives a text that says what is
    needed and what there is when nothing fits, or why a setting is refused. Raises KeyError when the proposal names a
    block, a root or a load that has no such setting.
    """
    try:
        config = space.repair(space.encode(proposal))
    except (exc.InvalidConfig, exc.NoFeasibleConfig) as error:
        return error.message
    while True:
        predicted = predict(config)
        if predicted.fits:
            return config, predicted
        changed = lighter(config)
        if changed is not None:
            config = space.repair({**config, **changed})
            continue
        options = _smaller(config, space)
        if not options:
            return _refusal(predicted, space, space.sizes(config))
        config = _nearest(options, predicted, [predict(option) for option in options])


def _nearest(options: list[Config], now: Predicted, after: list[Predicted]) -> Config:
    """Of ``options``, the first that brings the launch nearer to fitting and takes hardly longer than the others that do;
    the first one where none does."""

    def helps(predicted: Predicted) -> bool:
        shared, columns = predicted.shared_bytes, predicted.tensor_memory_columns
        return predicted.fits or shared < now.shared_bytes or columns < now.tensor_memory_columns

    helpful = [(config, predicted) for config, predicted in zip(options, after, strict=True) if helps(predicted)]
    fitting = [option for option in helpful if option[1].fits] or helpful
    least = min((predicted.time_us for _, predicted in fitting), default=0.0)
    near = (config for config, predicted in fitting if predicted.time_us <= _HARDLY * least)
    return next(near, options[0])


def _refusal(predicted: Predicted, space: ConfigSpace, sizes: dict[int, int]) -> str:
    blocks = (block for block in space.survey.blocks if block.kind != "grid")
    tiles = ", ".join(f"{block.name}={sizes[block.id]}" for block in blocks)
    needs = predicted.reason or (
        f"{predicted.shared_bytes} bytes of shared memory are needed, and a block has {space.target.smem_per_block_bytes}"
    )
    return f"does not fit {space.target}, even with one stage and the smallest tiles ({tiles}): {needs}"


def _smaller(config: Config, space: ConfigSpace) -> list[Config]:
    """The config with one tile halved, or with all at their minimum, one row: the largest first. Empty if nothing can
    shrink."""
    sizes = space.sizes(config)
    for blocks in (space.tunable, space.rollable):
        larger = [block for block in blocks if sizes[block] > space.lowest[block]]
        if larger:
            ordered = sorted(larger, key=lambda block: -sizes[block])
            return [space.resized(config, {block: sizes[block] // 2}) for block in ordered]
    return []
