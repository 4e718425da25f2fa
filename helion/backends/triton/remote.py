"""The wait for messages of other ranks, in Triton and PTX.

One thread polls a word until its count is reached. The barrier after it, which ``order_memory`` inserts as after every
acquire, makes what it has seen visible to all threads. A wait that times out notes the peer in the channel and goes
on, so that a lost peer never hangs a GPU. Waits of a channel with such a note give up after a few polls.
"""

from __future__ import annotations

from typing import Any

from ... import exc, knobs
from ... import language as hl
from ..._compiler.frontend import memory, ops
from ..._compiler.frontend.hl import remote as hl_remote
from ..._compiler.frontend.rules import Rules
from ..._compiler.frontend.tracer import Tracer
from ..._compiler.ir.grammar import Definition, InlineAttrs
from .source import escaped

RULES = Rules()

#: The first line of the assembly of a wait. Its operands: the word, the count, the first word of the notes, the note of
#: this word, and the number to note.
WAIT_MARK = "// wait for messages"
#: Polls between two looks at the clock and at the notes, which would delay a message. A power of two.
_POLLS = 16
_POLL = """
{
.reg .pred p;
.reg .u32 tid, got, polls;
.reg .u64 begin, now;
mov.u32 $0, 0;
mov.u32 polls, 0;
mov.u32 tid, %tid.x;
setp.ne.u32 p, tid, 0;
@p bra done;
mov.u64 begin, %globaltimer;
poll:
ld.acquire.sys.global.u32 got, [$1];
sub.u32 got, got, $2;
setp.ge.s32 p, got, 0;
@p bra done;
LIMIT
bra poll;
lost:
st.relaxed.sys.global.u32 [$3], $5;
st.relaxed.sys.global.u32 [$4], $5;
done:
}
"""
_LIMIT = """add.u32 polls, polls, 1;
and.b32 got, polls, POLLS;
setp.ne.u32 p, got, 0;
@p bra poll;
ld.relaxed.sys.global.u32 got, [$3];
setp.ne.u32 p, got, 0;
@p bra lost;
mov.u64 now, %globaltimer;
sub.u64 now, now, begin;
setp.gt.u64 p, now, NANOSECONDS;
@p bra lost;"""


def wait_ptx(seconds: int) -> str:
    """Return the assembly of a wait that gives up after some seconds; 0 is never."""
    limit = _LIMIT.replace("NANOSECONDS", str(seconds * 10**9)).replace("POLLS", str(_POLLS - 1)) if seconds else ""
    return WAIT_MARK + _POLL.replace("LIMIT\n", f"{limit}\n" if limit else "")


def _definition(seconds: int) -> Definition:
    body = f"""@triton.jit
def \0(words, word, first, note, want, peer):
    tl.inline_asm_elementwise(
        {wait_ptx(seconds)!r}, "=r,l,r,l,l,r", [words + word, want, words + first, words + note, peer], dtype=tl.int32,
        is_pure=False, pack=1,
    )"""
    return Definition("_wait_for_messages", escaped(body).replace("\0", "{0}"))


@RULES.register(hl.wait)
def _wait(t: Tracer, channel: Any, index: Any, sender: Any, count: Any = 1, keep: Any = False) -> None:
    if t.context.target.kind != "cuda":
        raise exc.BackendUnsupported(
            what="hl.wait", backend="triton", remedy=f" on {t.context.target.name}; it needs an NVIDIA GPU"
        )
    words, places = hl_remote.awaited(t, channel, index, sender, count, keep)
    operands = [ops.operand(t, each) for each in places]
    text = ", ".join(f"{{{number}}}" for number in range(len(operands)))
    called = f"{{{len(operands) + 1}}}({{{len(operands)}}}, {text})"
    definition = _definition(knobs.WAIT_TIMEOUT.read())
    attrs = InlineAttrs((called,), (definition,), (memory.tensor_id(t, words),), "any", waits=True)
    t.builder.append("inline", operands, (), attrs)
