"""Rewrites that config keys select, in the order in which they run.

A new rewrite is a file with its record and pass, and its place in ``REWRITES``.
"""

from __future__ import annotations

from ... import config
from ..ir.grammar import Program
from .copy_operands import PACK_OPERANDS, TRANSPOSE_OPERANDS
from .fuse_loops import FUSE_LOOPS
from .legality import in_order_of_legality
from .peel_masks import PEEL_MASKS
from .precompute_operands import PRECOMPUTE_OPERANDS
from .prefetch_distance import PREFETCH_DISTANCE
from .record import Rewrite
from .split_k import SPLIT_K
from .steps import Step, StepInputs
from .swap_ab import SWAP_AB
from .unfuse_matmul import UNFUSE_MATMUL

#: In order of execution.
REWRITES = (
    UNFUSE_MATMUL,
    FUSE_LOOPS,
    SPLIT_K,
    PRECOMPUTE_OPERANDS,
    TRANSPOSE_OPERANDS,
    PACK_OPERANDS,
    PEEL_MASKS,
    PREFETCH_DISTANCE,
    SWAP_AB,
)
#: In order of their legalization rules.
LEGALIZED = in_order_of_legality(REWRITES)

for _rewrite in REWRITES:
    config.declare(_rewrite.key, _rewrite.doc)
    for _launch in _rewrite.launch:
        config.declare(_launch.key, _launch.doc)


def keys() -> tuple[str, ...]:
    """Return all config keys of rewrites."""
    return tuple(key for rewrite in REWRITES for key in rewrite.keys)


_BY_KEY = {rewrite.key: rewrite for rewrite in REWRITES}


def rewrite_of(key: str) -> Rewrite:
    """Return the record of a key."""
    return _BY_KEY[key]


def between(order: tuple[Rewrite, ...], first: str | None, until: str | None) -> tuple[Rewrite, ...]:
    """Return the rewrites in an order from key ``first`` on, up to but without key ``until``; None for the ends."""
    names = [rewrite.key for rewrite in order]
    return order[names.index(first) if first else 0 : names.index(until) if until else len(names)]


def schedule(first: str | None = None, until: str | None = None) -> tuple[Step, ...]:
    """Return the steps of the rewrites from key ``first`` on, up to but without key ``until``."""
    return tuple(_step(rewrite) for rewrite in between(REWRITES, first, until))


def _step(rewrite: Rewrite) -> Step:
    def apply(program: Program, inputs: StepInputs) -> Program:
        value = inputs.values.get(rewrite.key, rewrite.off)
        return program if value == rewrite.off else rewrite.apply(program, value, inputs)

    return Step(rewrite.key, apply)
