"""Families of kernels, drawn in proportion to their weights."""

from __future__ import annotations

from ..cases import Case, Draft, Draw, Family
from . import (
    atomics,
    attention,
    chunks,
    elements,
    indexed,
    integers,
    loops,
    operands,
    planes,
    products,
    rows,
    scans,
    softmaxes,
)

FAMILIES: tuple[Family, ...] = tuple(
    module.FAMILY
    for module in (
        elements,
        integers,
        rows,
        planes,
        chunks,
        products,
        operands,
        attention,
        scans,
        indexed,
        atomics,
        loops,
        softmaxes,
    )
)
BY_NAME = {family.name: family for family in FAMILIES}
_DEALT = tuple(family for family in FAMILIES for _ in range(family.weight))


def draw(seed: int, small: bool, only: tuple[str, ...] = ()) -> Draft:
    """Return the draft of a seed: families rotate by weight."""
    dealt = [family for family in _DEALT if not only or family.name in only]
    family = dealt[seed % len(dealt)]
    return family.draw(Draw(family.name, seed, small))


def render(draft: Draft) -> Case:
    """Return the case of a draft."""
    return BY_NAME[draft.family].render(draft)
