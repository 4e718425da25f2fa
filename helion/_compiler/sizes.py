"""Sizes of blocks under a normalised config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._shapes import Expr, hint_of, next_power_of_2
from .ir.grammar import Block, Program


def chunks(rollable: tuple[int, ...], config: Mapping[str, Any]) -> dict[int, int]:
    """Chunk sizes, in elements, of the whole dimensions that the config loops over, by block id."""
    return {b: c for b, c in zip(rollable, config["reduction_loops"], strict=True) if c is not None}


def padded_extent(block: Block) -> int:
    """The size of a whole dimension held at once: the next power of two, at least what a matrix product takes."""
    assert block.extent is not None
    return max(next_power_of_2(hint_of(block.extent)), block.min_size)


def fixed_size(block: Block, config: Mapping[str, Any]) -> int:
    """The size the kernel gave a block: a constant, or a function of its tunables."""
    if isinstance(block.size, Expr):
        return max(int(block.size.evaluate(lambda leaf: config[leaf.args[0]])), 1)
    assert isinstance(block.size, int)
    return block.size


def block_sizes(program: Program, rollable: tuple[int, ...], config: Mapping[str, Any]) -> dict[int, int]:
    """The size in elements of every block of the program as traced, by block id."""
    tunable = [block.id for block in program.blocks if block.tunable]
    sizes = dict(zip(tunable, config["block_sizes"], strict=True))
    looped = chunks(rollable, config)
    for block in program.blocks:
        if block.kind == "full":
            sizes[block.id] = looped.get(block.id) or padded_extent(block)
        elif not block.tunable:
            sizes[block.id] = fixed_size(block, config)
    return sizes
