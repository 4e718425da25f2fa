"""Sizes of blocks under a normalized config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._shapes import Expr, hint_of, next_power_of_2
from .ir.grammar import Block, Program

#: A representative tile size for analyses that do not depend on it.
_ANY_SIZE = 16


def padded_extent(block: Block) -> int:
    """Return the padded size of a whole dimension: the next power of two, at least the minimum of a matmul operand."""
    assert block.extent is not None
    return max(next_power_of_2(hint_of(block.extent)), block.min_size)


def representative_sizes(program: Program) -> dict[int, int]:
    """Return a size of each block, for analyses that do not depend on tile sizes."""

    def size(block: Block) -> int:
        if block.kind == "tile":
            return block.size if isinstance(block.size, int) else max(_ANY_SIZE, block.min_size)
        return padded_extent(block) if block.kind == "full" else 1

    return {block.id: size(block) for block in program.blocks}


def fixed_size(block: Block, config: Mapping[str, Any]) -> int:
    """Return the size that the kernel gives a block: a constant, or a function of its tunables."""
    if isinstance(block.size, Expr):
        return max(int(block.size.evaluate(lambda leaf: config[leaf.args[0]])), 1)
    assert isinstance(block.size, int)
    return block.size


def dependent_size(block: Block, sizes: Mapping[int, int]) -> int:
    """Return the size of a block that is a fraction of another block, given the ``sizes`` of the other blocks."""
    assert isinstance(block.size, Expr)
    return int(block.size.evaluate(lambda leaf: sizes[leaf.args[0]]))
