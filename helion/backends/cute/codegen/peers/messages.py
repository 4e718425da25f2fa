"""Code of waits for messages of peers and of signals to them, by lane 0 of a warp.

TMA uses the async proxy. A store by it that is complete is visible in the generic proxy, in which a signal releases it.
Loads by it follow a wait after a proxy fence.
"""

from __future__ import annotations

from ...plan.epilogue import Await, Word
from ...plan.records import GemmPlan
from ...roles.messages import AwaitMessages, MessageStep, StoresComplete
from .. import numbers

#: Polls of a word between two looks at the clock and at the notes.
_POLLS = 16
_REACHED, _WAITING, _LOST = range(3)
"""Results of polls: the messages are there, they are not, and some wait of the channel has given up."""
_POLL = (
    "{ .reg .pred p; .reg .u32 got, polls; mov.u32 polls, POLLS; mov.u32 {$w0}, REACHED;"
    " again: ld.acquire.sys.global.u32 got, [{$r0}]; sub.u32 got, got, {$r1}; setp.ge.s32 p, got, 0; @p bra done;"
    " sub.u32 polls, polls, 1; setp.ne.u32 p, polls, 0; @p bra again;"
    " ld.relaxed.sys.global.u32 got, [{$r2}]; setp.ne.u32 p, got, 0; selp.u32 {$w0}, LOST, WAITING, p; done: }"
)
_NOTE = "st.relaxed.sys.global.u32 [{$r0}], {$r2}; st.relaxed.sys.global.u32 [{$r1}], {$r2};"
_SIGNAL = "red.release.sys.global.add.u32 [{$r0}], {$r1};"

_MOST_WORDS = 2**30
"""Extent of the kernel's tensors of words, more than any has."""


def parameters(plan: GemmPlan) -> list[str]:
    """Return the names of the tensors of words, of the kernel and of the host function's pointers."""
    return [f"words_{at}" for at in range(len(plan.problem.epilogue.words))]


def tensors(plan: GemmPlan) -> list[tuple[str, str]]:
    """Return the host's tensors of words by name."""
    return [(name, f"cute.make_tensor({name}, cute.make_layout({_MOST_WORDS}))") for name in parameters(plan)]


def lines(step: MessageStep, plan: GemmPlan) -> list[str]:
    """Return the code of a step. Tiles outside of D neither wait nor signal."""
    if isinstance(step, StoresComplete):
        return ["cute.arch.cp_async_bulk_wait_group(0)"]
    epilogue = plan.problem.epilogue
    if isinstance(step, AwaitMessages):
        waits: dict[str, list[str]] = {}
        for number, wait in enumerate(epilogue.waits):
            for tile in _awaited_tiles(wait, plan):
                inside = _inside(plan, tile, _sides(wait, plan))
                waits.setdefault(inside, []).extend(_wait(wait, 2 * number, tile))
        found = [line for inside, each in waits.items() for line in _under(inside, each)]
        return ["if lane == 0:", *_indented(found), "cute.arch.sync_warp()", 'cute.arch.fence_proxy("async")']
    found = []
    for at, signal in enumerate(epilogue.signals, start=2 * len(epilogue.waits)):
        found += _asm(_SIGNAL, [_address(at, signal.word, _OWN), "cutlass.Int32(1)"])
    return _under(_inside(plan, _OWN), ["if lane == 0:", *_indented(found)])


_Tile = tuple[str, str]
"""Numbers of a tile along M and N, in the text of the kernel."""
_OWN: _Tile = ("tile_m", "tile_n")


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _awaited_tiles(wait: Await, plan: GemmPlan) -> list[_Tile]:
    """Return the tiles whose messages a CTA waits for: its own one, or those of all CTAs that share operands with it."""
    if wait.before == "matrices" or plan.ctas == 1:
        return [_OWN]
    sides = [
        [f"(tile_{side} - place[{at}] + {number})" for number in range(tiles)] if step else [f"tile_{side}"]
        for at, side, tiles, step in zip((1, 2), "mn", plan.cluster_tiles, wait.word.steps, strict=True)
    ]
    return [(m, n) for m in sides[0] for n in sides[1]]


def _wait(wait: Await, at: int, tile: _Tile) -> list[str]:
    """Return the code that waits for messages of one peer, and then counts them."""
    seen, lost = f"words_{at + 1}[{_index(wait.seen, tile)}]", f"(words_{at}.iterator + {wait.lost}).toint()"
    text = _POLL.replace("POLLS", str(_POLLS))
    for name, value in (("REACHED", _REACHED), ("WAITING", _WAITING), ("LOST", _LOST)):
        text = text.replace(name, str(value))
    poll = _asm(text, [_address(at, wait.word, tile), "wanted", lost], "state = ")
    late = [
        f"if cute.arch.globaltimer() - begun > {wait.seconds * 10**9}:",
        f"    state = cutlass.Int32({_LOST})",
    ]
    note = _asm(_NOTE, [lost, _address(at, wait.lost_word, tile), f"cutlass.Int32({wait.note})"])
    counted = [] if wait.keep else [f"{seen} = wanted"]
    return [
        f"wanted = {seen} + {wait.count}",
        "begun = cute.arch.globaltimer()",
        *poll,
        f"while state == {_WAITING}:",
        *(f"    {line}" for line in poll),
        f"    if state == {_WAITING}:" if wait.seconds else "",
        *(f"        {line}" for line in late if wait.seconds),
        f"if state == {_LOST}:",
        *(f"    {line}" for line in note),
        *counted,
    ]


def _asm(text: str, given: list[str], result: str = "") -> list[str]:
    made = ["    write_only_types=[cutlass.Int32],"] if result else []
    return [f"{result}cute.arch.inline_ptx(", f"    '{text}',", *made, f"    read_only_args=[{', '.join(given)}],", ")"]


def _address(at: int, word: Word, tile: _Tile) -> str:
    return f"(words_{at}.iterator + ({_index(word, tile)})).toint()"


def _index(word: Word, tile: _Tile) -> str:
    """Return the number of a tile's word in its tensor."""
    terms = [str(word.first), *(f"{number} * {step}" for number, step in zip(tile, word.steps, strict=True) if step)]
    return " + ".join(terms)


def _sides(wait: Await, plan: GemmPlan) -> str:
    """Return the sides on which a tile outside of D has no messages. CTAs load operands for others of their cluster even where
    their own tile is outside of D."""
    shared = wait.before == "operands" and plan.ctas > 1
    return "".join(side for side, step in zip("mn", wait.word.steps, strict=True) if step or not shared)


def _inside(plan: GemmPlan, tile: _Tile, sides: str = "mn") -> str:
    """Return the predicate of a tile inside D along some sides, or an empty string if all tiles of clusters are."""
    found = []
    for at, (side, number) in enumerate(zip("mn", tile, strict=True)):
        tiles, walked = numbers.parts(plan, side, plan.tile[at]), plan.work[at] * plan.cluster_tiles[at]
        if side in sides and (not tiles.isdigit() or int(tiles) < walked):
            found.append(f"{number} < {tiles}")
    return " and ".join(found)


def _under(predicate: str, lines: list[str]) -> list[str]:
    return [f"if {predicate}:", *_indented(lines)] if predicate else lines
