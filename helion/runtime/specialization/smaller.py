"""Configs with less shared memory than a default that cannot be launched, when no seed can.

The conservative config has tiles of single rows, and takes many times as long as the default with one stage less.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from ... import exc
from ...config import Config
from .specialized import Specialized

#: Times that the largest tiles along the grid, and those of loops, are halved at most.
MOST_HALVINGS = 2

_STAGES = "num_stages"


def smaller(of: Specialized) -> Iterator[Config]:
    """Yield the default with fewer stages and smaller tiles, each config once.

    The tiles of the grid are halved together, and so are those of loops: grid loops of one launch often have the same.
    """
    space, default = of.analysis.space, of.analysis.default_config
    if _STAGES not in default:
        return
    found = {default}
    halvings = range(MOST_HALVINGS + 1)
    for on_grid, in_loops in itertools.product(halvings, halvings):
        tiles = default
        for grid, count in ((True, on_grid), (False, in_loops)):
            for _ in range(count):
                tiles = _halved(of, tiles, grid)
        for stages in range(default[_STAGES], 0, -1):
            try:
                config = space.repair({**tiles, _STAGES: stages})
            except exc.InvalidConfig:
                continue
            if config not in found:
                found.add(config)
                yield config


def _halved(of: Specialized, config: Config, on_grid: bool) -> Config:
    """Return the config with half of the largest tiles of the grid, or of the loops."""
    space, axes = of.analysis.space, of.analysis.facts.axes
    sizes = space.sizes(config)
    able = [b for b in space.tunable if axes[b].on_grid == on_grid and sizes[b] > space.lowest[b]]
    largest = max((sizes[block] for block in able), default=0)
    return space.resized(config, {b: space.half(b, sizes[b]) for b in able if sizes[b] == largest})
