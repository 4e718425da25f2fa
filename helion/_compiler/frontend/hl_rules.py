"""All rules for functions of ``hl``, by function."""

from __future__ import annotations

from . import hl_escape, hl_functions, hl_random
from .rules import union

HL_RULES = union(hl_functions.RULES, hl_escape.RULES, hl_random.RULES)
