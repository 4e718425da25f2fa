"""The wait for messages of other ranks, as an op that ``lower.peers`` takes out of a kernel."""

from __future__ import annotations

from typing import Any

from ... import knobs
from ... import language as hl
from ..._compiler.frontend import memory, ops
from ..._compiler.frontend.hl import remote as hl_remote
from ..._compiler.frontend.rules import Rules
from ..._compiler.frontend.tracer import Tracer
from ..._compiler.ir.grammar import InlineAttrs

RULES = Rules()


@RULES.register(hl.wait)
def _wait(t: Tracer, channel: Any, index: Any, sender: Any, count: Any = 1, keep: Any = False) -> None:
    """Append an op whose only line is the number of seconds after which the wait gives up; 0 is never."""
    words, places = hl_remote.awaited(t, channel, index, sender, count, keep)
    attrs = InlineAttrs((str(knobs.WAIT_TIMEOUT.read()),), (), (memory.tensor_id(t, words),), "any", waits=True)
    t.builder.append("inline", [ops.operand(t, each) for each in places], (), attrs)
