"""The config of untuned calls with CPU tensors: the default one in other tiles.

The interpreter takes milliseconds for each program with any tile, so tiles that suit a GPU make it slow. Checked mode
detects races between programs, of which small tensors have one in such tiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ... import exc, knobs
from ..._shapes import hint_of
from ...autotuner.space.fields import BlockSizes
from ...config import Config
from ...fields import values_of
from ..specialization.specialized import Specialized

#: Elements of the largest value of a program: arrays of this size stay in the cache of a CPU core.
MOST_ELEMENTS = 2**17


def in_other_tiles(of: Specialized, config: Config) -> Config:
    """Return a full config with its tiles doubled, the smallest first, as long as no value has more than ``MOST_ELEMENTS``.

    The config stays unchanged with ``HELION_CPU_CONFIG=target``, and if the backend refuses the larger tiles. In checked
    mode, an axis of the grid has at least two tiles.
    """
    space = of.analysis.space
    if knobs.CPU_CONFIG.read() == "target" or of.table_config is not None:
        return config
    tiles = space.field("block_sizes")
    assert isinstance(tiles, BlockSizes)
    slots = {slot.at: values_of(slot.fragment) for slot in tiles.slots}
    sizes = {block: size for block, size in space.sizes(config).items() if block in slots}
    if of.settings.checked:
        divided = space.resized(config, {**sizes, **_divided(of, sizes, slots)})
        return divided if _is_legal(of, divided) else config
    growing = set(sizes)
    while growing:
        block = min(growing, key=lambda b: (sizes[b], -b))
        larger = {**sizes, block: 2 * sizes[block]}
        if 2 * sizes[block] in slots[block] and _fits(of, config, larger):
            sizes = larger
        else:
            growing.discard(block)
    enlarged = space.resized(config, sizes)
    return enlarged if _is_legal(of, enlarged) else config


def _divided(of: Specialized, sizes: Mapping[Any, int], slots: Mapping[Any, Sequence[int]]) -> dict[Any, int]:
    """Return the sizes of the tiles that cover a whole axis of the grid, made smaller than the axis."""
    program, found = of.analysis.program, {}
    for block in (axis.block for root in program.roots for axis in root.axes if axis.block in sizes):
        extent = program.blocks[block].extent
        extent = 0 if extent is None else hint_of(extent)
        smaller = [size for size in slots[block] if size < extent]
        if smaller and sizes[block] >= extent:
            found[block] = max(smaller)
    return found


def _is_legal(of: Specialized, config: Config) -> bool:
    """Return whether a backend takes a config in these tiles: pipelines of its own may need too much memory."""
    try:
        of.analysis.space.decode(config)
    except exc.InvalidConfig:
        return False
    return True


def _fits(of: Specialized, config: Config, sizes: dict[int, int]) -> bool:
    space = of.analysis.space
    known = {**space.sizes(config), **sizes}
    return all(volume.numel(known) <= MOST_ELEMENTS for volume in space.shape.volumes)
