"""Blocks of keys that masks leave whole, by the tiles alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .numbers import is_known

if TYPE_CHECKING:
    from .records import ScorePlan


def last_keys_share_a_block(plan: ScorePlan) -> bool:
    """Return whether the last keys of each tile's queries are in one block, which is then the last that the tile visits.

    Tiles begin at multiples of their rows. The last key of each first query is at such a multiple as well. Blocks of
    a multiple of so many keys then end with a tile's last keys or after them.
    """
    band = plan.problem.band
    if band.last is None or not is_known(band.last) or band.shift or band.prefix or band.period:
        return False
    return plan.keys % plan.rows == 0 and band.last % plan.rows == 0
