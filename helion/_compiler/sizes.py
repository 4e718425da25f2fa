"""Sizes of blocks under a normalised config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._shapes import Expr, hint_of, next_power_of_2
from .ir.grammar import Block


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


def dependent_size(block: Block, sizes: Mapping[int, int]) -> int:
    """The size of a block that is a part of that of another, when ``sizes`` has those of the others."""
    assert isinstance(block.size, Expr)
    return int(block.size.evaluate(lambda leaf: sizes[leaf.args[0]]))
