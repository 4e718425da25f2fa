"""Code of bits of comparisons of random numbers, of which a thread has one for each of its elements of a tile.

A bit is shifted into the last word, and all others by one. After all draws the first bit is that of element 0 of sub-tile 0.
"""

from __future__ import annotations

import re

from ...plan.epilogue import Constant
from ...plan.passes import draw_words, drawn
from ...plan.records import GemmPlan
from ...roles.elements.drawn import Draw, StartDraws
from ..epilogue import drawn_words, first_column, first_row, fragment, literal, uniform

SYMBOLS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}
HIGHEST = "cutlass.Int32(-2147483648)"
OWN_NAMES = {"i": "draw_i", "first_row": "draw_row", "first_column": "draw_column"}
_OWN = re.compile("|".join(rf"\b{name}\b" for name in OWN_NAMES))
UNROLLED = 4
"""Draws of an iteration before the mainloop, whose chains of instructions hide each other's latency."""


def lines(plan: GemmPlan, step: StartDraws | Draw, rows: str) -> list[str]:
    """Return the code of a step; ``rows`` is the CTA's index among tiles along M."""
    if isinstance(step, Draw):
        place = f"(k_tile - 1) * {step.count} + draw" + (f" + {step.after}" if step.after else "")
        found = [f"for draw in cutlass.range_constexpr({step.count}):", f"    draw_at = {place}"]
        return [*found, *(f"    {line}" for line in _one(plan, rows))]
    found = []
    for value in drawn(plan):
        name = drawn_words(plan, value)
        found += [f"{name} = cute.make_rmem_tensor({draw_words(plan)}, cutlass.Int32)", f"{name}.fill(0)"]
    if step.count:
        found.append(f"for draw_at in cutlass.range({step.count}, unroll={UNROLLED}):")
        found += [f"    {line}" for line in _one(plan, rows)]
    return found


def _one(plan: GemmPlan, rows: str) -> list[str]:
    """Return the code that draws the bits number ``draw_at``."""
    values, epilogue = fragment(plan).values, plan.problem.epilogue
    column = re.sub(r"\bsubtile\b", f"(draw_at // {values})", first_column(plan))
    found = [f"i = draw_at % {values}", first_row(plan, rows), column]
    for value in drawn(plan):
        made, name, last = epilogue.instruction(value), drawn_words(plan, value), draw_words(plan) - 1
        texts = [literal(each) if isinstance(each, Constant) else _read(plan, each) for each in made.arguments]
        found.append(f"draw_bit = cutlass.select_({f' {SYMBOLS[made.op]} '.join(texts)}, {HIGHEST}, cutlass.Int32(0))")
        shifted = [f"(({name}[{word}] >> 1) & 0x7fffffff)" for word in range(last + 1)]
        found += [f"{name}[{word}] = {shifted[word]} | ({name}[{word + 1}] << 31)" for word in range(last)]
        found.append(f"{name}[{last}] = {shifted[last]} | cutlass.Int32(draw_bit)")
    return [_OWN.sub(lambda match: OWN_NAMES[match[0]], line) for line in found]


def _read(plan: GemmPlan, number: int) -> str:
    operand = plan.problem.epilogue.operands[number - 1]
    return uniform(plan, operand) if operand.kind == "uniform" else operand.label
