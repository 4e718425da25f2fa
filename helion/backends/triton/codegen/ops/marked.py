"""Loads of marked words, which wait for other GPUs.

A word has an element of a message in its lower half, and the number of the message in its upper half. So it is its own
signal. All threads poll until the words of all of them have come: ``barrier.red`` gives them one answer, even where
several threads hold the same word. A load that takes too long notes the sender and goes on.
"""

from __future__ import annotations

from collections.abc import Mapping

from ....._compiler.ir.grammar import MemoryAttrs, Op
from ..emission import Emission
from ..expressions import Expression

#: The first lines of the assembly: of the time, and of the decision to poll again. The operands of the latter are: late
#: words, polls so far, address and number of the note, time of the first poll, nanoseconds to wait.
CLOCK_MARK, MORE_MARK = "// clock", "// poll marked words again"
_MORE = """
{
.reg .pred p, q;
.reg .u32 got;
.reg .u64 now;
setp.ne.u32 p, $1, 0;
barrier.cta.red.or.pred q, 0, p;
selp.u32 $0, 1, 0, q;
@!q bra done;
and.b32 got, $2, 15;
setp.ne.u32 p, got, 0;
@p bra done;
mov.u64 now, %globaltimer;
sub.u64 now, now, $5;
setp.gt.u64 p, now, $6;
ld.relaxed.sys.global.u32 got, [$3];
setp.ne.or.u32 p, got, 0, p;
barrier.cta.red.or.pred q, 0, p;
@!q bra done;
mov.u32 $0, 0;
st.relaxed.sys.global.u32 [$3], $4;
done:
}
"""

HELPERS: Mapping[str, str] = {
    "_marked": f"""\
@triton.jit
def _marked(places, inside, mark, notes, note, nanoseconds, bits: tl.constexpr):
    begin = tl.inline_asm_elementwise(
        {CLOCK_MARK + chr(10) + "mov.u64 $0, %globaltimer;"!r}, "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )
    low: tl.constexpr = (1 << bits) - 1
    words = tl.zeros(places.shape, places.dtype.element_ty)
    limit = tl.full([], nanoseconds, tl.int64)
    polls = tl.full([], 0, tl.int32)
    more = tl.full([], 1, tl.int32)
    while more != 0:
        if inside is None:
            words = tl.load(places, volatile=True)
            late = (((words >> bits) ^ mark) & low) != 0
        else:
            words = tl.load(places, mask=inside, other=0, volatile=True)
            late = ((((words >> bits) ^ mark) & low) != 0) & inside
        polls += 1
        more = tl.inline_asm_elementwise(
            {MORE_MARK + _MORE!r}, "=r,r,r,l,r,l,l",
            [tl.max(late.to(tl.int32), axis=None), polls, notes, note, begin, limit], dtype=tl.int32,
            is_pure=False, pack=1,
        )
    return words
""",
}


def load(e: Emission, op: Op, attrs: MemoryAttrs, places: str, mask: str) -> Expression:
    """Return the words at ``places``, once all of them have the mark."""
    assert attrs.mark is not None
    mark, note, nanoseconds = (e.operand(operand) for operand in op.operands[attrs.mark : attrs.mark + 3])
    tensor = e.kernel.tensors[attrs.tensor]
    ranks, stride = tensor.shape[1] - 1, tensor.strides[1]
    notes = f"{e.tensor_names[attrs.tensor]} + {e.number(ranks * stride)}"
    half = op.result.dtype.itemsize * 4
    call = f"_marked({places}, {mask or None}, {mark}, {notes}, {note}, {nanoseconds}, {half})"
    return Expression(call, needs=frozenset(("_marked",)))
