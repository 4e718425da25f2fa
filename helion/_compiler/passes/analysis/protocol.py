"""Proofs about the messages between ranks, from indices alone.

A program is refused if, for some config, it certainly

- waits for a message that no rank sends, or sends one that no rank waits for (``UnmatchedMessage``);
- waits for a message that is sent after the wait, or by programs that may start after it (``MessageOrder``);
- loads what a peer stores, and no signal and wait are between the two (``UnorderedTransfer``);
- stores to memory of a peer again before the peer has acknowledged that it has read it (``UnacknowledgedReuse``);
- stores to memory of a peer, and does not tell the peer (``UncoveredOutput``).

The setting ``ignore_warnings`` may name the last two, for kernels that other kernels or host code keep in order.

All that indices do not decide passes, such as words that data selects and accesses under a condition. Simulated ranks
find faults there. One kernel may send messages and another one wait for them. So a channel with signals alone in a
kernel, or with waits alone, passes too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from .... import exc
from ...._shapes import cdiv, hint_of, number_key
from ...ir.grammar import LoopAxis, OperandRef, Program
from .messages import Event, Form, Message, Messages, Transfer, messages_of, walked


def check_messages(program: Program) -> Program:
    """Return the program. Raises an error if its messages are certainly wrong within a call, for any config."""
    _check(messages_of(program))
    return program


def check_messages_under(program: Program, sizes: Mapping[int, int]) -> None:
    """Raise an error if messages are wrong under the block ``sizes`` of a config, or a channel has too few words."""
    _check_hidden(program, sizes)
    found = messages_of(program, sizes)
    _check(found)
    if found is not None:
        _check_words(found)


def _check_hidden(program: Program, sizes: Mapping[int, int]) -> None:
    """Refuse more programs than a channel has words, for barriers and copies, which count tiles over all axes."""
    hidden = {t.id for t in program.tensors if t.source.startswith("_helion_runtime.remote_words(")}
    for root in program.roots if hidden else ():
        used = [op for op in root.body.walk() if op.kind == "atomic" and op.attrs.tensor in hidden]
        bounds = [(a.begin, a.end, sizes[a.block]) for a in root.axes]
        counts = [
            cdiv(int(hint_of(end) - hint_of(begin)), size)
            for begin, end, size in bounds
            if not isinstance(begin, OperandRef) and not isinstance(end, OperandRef)
        ]
        words = program.tensors[used[0].attrs.tensor].shape[-1] if used else 0
        if used and math.prod(counts) > int(hint_of(words)):
            raise exc.ChannelTooSmall(
                channel="of the kernel itself",
                words=words,
                dim=0,
                axis=program.blocks[root.axes[0].block].name,
                tiles=math.prod(counts),
                size=sizes[root.axes[0].block],
                location=used[0].location,
            )


def _check(found: Messages | None) -> None:
    if found is None:
        return
    for wait in found.waits:
        _check_wait(found, wait)
    for signal in found.signals:
        _check_signal(found, signal)
    if not found.opaque:
        for sent in found.sent:
            _check_transfers(found, sent)


def between_calls(program: Program) -> Iterator[exc.BaseError]:
    """Yield an error for each store to a peer that is in order only if other kernels or host code order it.

    ``exc.UnacknowledgedReuse``: it may replace what the peer still reads in an earlier call. ``exc.UncoveredOutput``: no
    message tells the peer that it is done.
    """
    found = messages_of(program)
    if found is None or found.opaque:
        return
    for sent in found.sent:
        loads = [load for load in found.received if _may_meet(sent, load)]
        for load in loads:
            yield from _check_parts(found, sent, load)
        signals = [s for s in found.signals if s.peer == sent.peer or s.peer is None or sent.peer is None]
        if not loads and not any(_may_precede(found, sent, signal) for signal in signals):
            yield exc.UncoveredOutput(memory=sent.memory, kernel=found.program.host.name, location=sent.op.location)


def _check_words(found: Messages) -> None:
    """Refuse a channel with fewer words than a grid or loop has tiles."""
    for message in (*found.signals, *found.waits):
        for dim, form in enumerate(message.word):
            if form.tile is None or form.tile[1] != ("id", 1, 0) or message.guarded:
                continue
            axis = _axis(message, form.tile[0])
            if isinstance(axis.begin, OperandRef) or isinstance(axis.end, OperandRef):
                continue
            size = int(hint_of(axis.step)) if axis.scalar else found.size(axis)
            tiles = cdiv(int(hint_of(axis.end) - hint_of(axis.begin)), size)
            words = int(hint_of(message.shape[dim + 1]))
            if tiles > words:
                raise exc.ChannelTooSmall(
                    channel=message.channel.removesuffix(".words"),
                    words=words,
                    dim=dim,
                    axis=found.block(axis.block).name,
                    tiles=tiles,
                    size=size,
                    location=message.op.location,
                )


# --- signals and waits that belong together ---------------------------------------------------------------------------


def _sender(signal: Event) -> int | None:
    """Return the number that a receiver gives to the rank that a signal or store is from."""
    return None if signal.peer is None else (signal.ranks - signal.peer) % signal.ranks


def _is_from(signal: Message, wait: Message) -> bool:
    """Return whether a wait names the channel of a signal, and its sender."""
    sender = _sender(signal)
    return signal.channel == wait.channel and (sender is None or wait.peer is None or sender == wait.peer)


def _partners(found: Messages, wait: Message) -> list[Message]:
    """Return the signals that may be those of a wait."""
    return [s for s in found.signals if _is_from(s, wait) and _differ(found, s, wait) is None]


def _differ(found: Messages, signal: Message, wait: Message) -> str | None:
    """Return how the words of a signal certainly differ from those of a wait; None if they may be the same."""
    if signal.guarded or wait.guarded:
        return None
    pairs = zip(signal.word, wait.word, strict=True)
    return next((how for a, b in pairs if (how := _forms_differ(found, (signal, a), (wait, b)))), None)


def _forms_differ(found: Messages, signal: tuple[Message, Form], wait: tuple[Message, Form]) -> str | None:
    (sends, a), (waits, b) = signal, wait
    if a.number is not None and b.number is not None:
        return f"words {a.number} and {b.number} differ" if a.number != b.number else None
    one, other = a.tile, b.tile
    if one is None or other is None:
        alone, event = (a, waits) if one is None else (b, sends)
        tiled = other if one is None else one
        if alone.number is None or tiled is None or found.tiles(_axis(event, tiled[0])) == 1:
            return None
        return f"one names word {alone.number}, the other a word for each tile"
    first, second = _axis(sends, one[0]), _axis(waits, other[0])
    how = _tiles_differ(found, first, second)
    if how is not None or one[1] == other[1]:
        return how
    same_but_constant = one[1][:2] == other[1][:2]  # type: ignore[index]
    return "their words are those of other tiles" if same_but_constant else None


def _axis(event: Message, block: int) -> LoopAxis:
    return next(axis for axis in event.axes if axis.block == block)


def _tiles_differ(found: Messages, a: LoopAxis, b: LoopAxis) -> str | None:
    """Return how the tiles of two axes differ for some config; None if they may be the same under each."""
    if a.block == b.block:
        return None
    for one, other in ((a.begin, b.begin), (a.end, b.end)):
        if isinstance(one, int) and isinstance(other, int) and one != other:
            return f"their loops have {one} and {other} as a bound"
    one, other = found.size(a), found.size(b)
    if not isinstance(one, int) or not isinstance(other, int) or one == other:
        return None
    return f"the tiles of their loops have {one} and {other} elements; share the size with hl.register_block_size"


def _check_wait(found: Messages, wait: Message) -> None:
    """Refuse a wait without a signal, with another number of messages, or before its signal."""
    of_channel = [signal for signal in found.signals if signal.channel == wait.channel]
    if not of_channel or wait.guarded:
        return
    from_sender = [signal for signal in of_channel if _is_from(signal, wait)]
    if not from_sender:
        assert wait.peer is not None
        whom = (wait.ranks - wait.peer) % wait.ranks
        raise exc.UnmatchedMessage(
            what=f"hl.wait for peer {wait.peer}",
            why=f"its messages are those of signals to={whom}, and the one at {of_channel[0].line} is to={of_channel[0].peer}",
            kernel=found.program.host.name,
            location=wait.op.location,
        )
    partners = _partners(found, wait)
    if not partners:
        signal = from_sender[0]
        why = f"the hl.signal at {signal.line} names other words: {_differ(found, signal, wait)}"
        _refuse_words(found, wait, "hl.wait", why)
    _check_order(found, wait, partners)
    _check_count(found, wait, partners)


def _check_signal(found: Messages, signal: Message) -> None:
    """Refuse a signal that no wait counts, though others of its channel are waited for."""
    of_channel = [wait for wait in found.waits if wait.channel == signal.channel]
    if not of_channel or signal.guarded or any(signal in _partners(found, wait) for wait in of_channel):
        return
    named = [wait for wait in of_channel if _is_from(signal, wait)]
    why = f"no hl.wait is for sender={_sender(signal)}"
    if named:
        why = f"the hl.wait at {named[0].line} names other words: {_differ(found, signal, named[0])}"
    _refuse_words(found, signal, "hl.signal", why)


def _refuse_words(found: Messages, one: Message, call: str, why: str) -> None:
    raise exc.UnmatchedMessage(
        what=f"{call} on {one.channel.removesuffix('.words')!r}",
        why=why,
        kernel=found.program.host.name,
        location=one.op.location,
    )


# --- number of messages -----------------------------------------------------------------------------------------------


def _check_count(found: Messages, wait: Message, partners: list[Message]) -> None:
    """Refuse a wait for more messages than a call sends, or for fewer, if nothing else waits for the rest."""
    if wait.peer is None or any(s.guarded or (s.root in found.looped and s.peer is not None) for s in partners):
        return
    waits = [w for w in found.waits if _partners(found, w) == partners and w.peer == wait.peer]
    if wait is not waits[0] or any(w.guarded or w.count is None or w.root in found.looped for w in waits):
        return
    sent = [_times(found, signal, walked(signal)) for signal in partners]
    awaited = [_times(found, w, (axis for axis in walked(w) if axis.block not in _grid(found, w))) for w in waits]
    if None in sent or None in awaited:
        return
    total = sum(filter(None, sent))
    wanted = sum((w.count or 0) * (times or 0) for w, times in zip(waits, awaited, strict=True))
    if wanted > total or (wanted < total and not any(w.keep for w in waits)):
        raise exc.UnmatchedMessage(
            what=f"hl.wait with count={wait.count}",
            why=f"the hl.signal at {partners[0].line} sends {total} in each call, of which {wanted} are waited for",
            kernel=found.program.host.name,
            location=wait.op.location,
        )


def _grid(found: Messages, event: Event) -> frozenset[int]:
    """Return the blocks of the grid around an event."""
    return frozenset(axis.block for axis in found.program.roots[event.root].axes)


def _times(found: Messages, event: Message, axes: Iterator[LoopAxis]) -> int | None:
    """Return how often an event happens along axes; None if that is not fixed."""
    counts = [found.tiles(axis) for axis in axes]
    return None if None in counts or len(event.path) > len(event.axes) else math.prod(c or 0 for c in counts)


# --- order ------------------------------------------------------------------------------------------------------------


def _phase(found: Messages, event: Event) -> tuple[int, int]:
    root = found.program.roots[event.root]
    return root.launch, root.phase


def _share_a_loop(found: Messages, a: Event, b: Event) -> bool:
    """Return whether one event may precede the other and also follow it, in the next iteration of a loop."""
    looped = a.root in found.looped and b.root in found.looped
    return looped or (a.root == b.root and bool({op for op, _ in a.path} & {op for op, _ in b.path}))


def _may_precede(found: Messages, a: Event, b: Event) -> bool:
    """Return whether event ``a`` may precede ``b`` in a program, or in the order of launches."""
    if _share_a_loop(found, a, b):
        return True
    return a.at < b.at if a.root == b.root else _phase(found, a) < _phase(found, b)


def _check_order(found: Messages, wait: Message, partners: list[Message]) -> None:
    """Refuse a wait for messages that are sent after it, or by programs that may start after it."""
    after = [s for s in partners if s.at > wait.at and not _share_a_loop(found, s, wait)]
    if len(after) == len(partners):
        raise exc.MessageOrder(
            why=f"sent at {after[0].line}, which follows the wait",
            remedy="send before waiting",
            kernel=found.program.host.name,
            location=wait.op.location,
        )
    for signal in partners:
        if signal.root == wait.root and not signal.guarded and _is_for_all(found, signal, wait):
            raise exc.MessageOrder(
                why=f"sent at {signal.line} by all programs of the loop that waits, of which some start when others end",
                remedy="wait in a loop of its own, after hl.barrier()",
                kernel=found.program.host.name,
                location=wait.op.location,
            )


def _is_for_all(found: Messages, signal: Message, wait: Message) -> bool:
    """Return whether a wait is for messages of all programs along an axis of the grid that sends them."""
    shared = any(a.block in _grid(found, signal) and found.tiles(a) != 1 for a in walked(signal))
    by_program = any(atom[0] == "tile" for atom in wait.messages.atoms)
    return shared and wait.count != 1 and not by_program


# --- what messages order ----------------------------------------------------------------------------------------------


def _may_meet(sent: Transfer, load: Transfer) -> bool:
    """Return whether a load may read what the same line stores on a peer."""
    if sent.memory != load.memory:
        return False
    if sent.shape != load.shape:
        return True
    numbers = (
        (a.form.number, b.form.number)
        for a, b in zip(sent.index, load.index, strict=True)
        if a.form is not None and b.form is not None and a.block is None and b.block is None
    )
    return all(a == b or a is None or b is None for a, b in numbers)


def _check_transfers(found: Messages, sent: Transfer) -> None:
    """Refuse a store to a peer without a signal after it, or whose reader does not wait for that."""
    to_peer = [s for s in found.signals if s.peer == sent.peer or s.peer is None or sent.peer is None]
    after = [s for s in to_peer if _may_precede(found, sent, s)]
    loads = [load for load in found.received if _may_meet(sent, load)]
    if not after and loads:
        _refuse_transfer(found, sent, f"no hl.signal to that peer follows the store, read at {loads[0].line}")
    for load in loads:
        pairs = [
            (s, w) for w in found.waits for s in _partners(found, w) if s in after and _may_precede(found, w, load)
        ]
        if not pairs:
            _refuse_transfer(found, sent, f"the load at {load.line} does not wait for the hl.signal at {after[0].line}")
        elif all(_reads_other_tiles(found, sent, s, w, load) for s, w in pairs):
            wait = pairs[0][1]
            _refuse_transfer(
                found, sent, f"the load at {load.line} also reads other tiles than those of the hl.wait at {wait.line}"
            )


def _refuse_transfer(found: Messages, sent: Transfer, why: str) -> None:
    raise exc.UnorderedTransfer(memory=sent.memory, why=why, kernel=found.program.host.name, location=sent.op.location)


def _reads_other_tiles(found: Messages, sent: Transfer, signal: Message, wait: Message, load: Transfer) -> bool:
    """Return whether a load certainly covers tiles of which its wait does not tell."""
    if signal.guarded or wait.guarded or sent.shape != load.shape or wait.root != load.root or signal.root != sent.root:
        return False
    for dim, place in enumerate(sent.index):
        words = zip(signal.word, wait.word, strict=True)
        awaited = [b.tile for a, b in words if place.block is not None and a.tile and a.tile[0] == place.block]
        read = load.index[dim]
        if not awaited or awaited[0] is None or read.block is None or read.block == awaited[0][0]:
            continue
        axes = {axis.block: axis for axis in load.axes}
        axis, own = axes.get(read.block), _axis(wait, awaited[0][0])
        whole = found.block(read.block).kind == "full" and found.tiles(own) != 1
        if whole or (
            axis is not None
            and number_key(axis.begin) == number_key(own.begin)
            and _same_end(axis, own)
            and found.tiles(own) != 1
        ):
            return True
    return False


def _same_end(a: LoopAxis, b: LoopAxis) -> bool:
    return isinstance(a.end, int) and isinstance(b.end, int) and a.end == b.end


# --- memory that is written again -------------------------------------------------------------------------------------


def _check_parts(found: Messages, sent: Transfer, load: Transfer) -> Iterator[exc.BaseError]:
    """Yield an error for a store that a later call repeats before the peer is known to have read it."""
    parts = _parts(found, sent)
    peers = range(1, sent.ranks) if sent.peer is None else (sent.peer,)
    each = [_needed(found, peer, sent, load) for peer in peers]
    needed = None if None in each else max((number or 0 for number in each), default=0)
    if parts is None or (needed is not None and parts >= needed):
        return
    more = "an acknowledgment" if needed is None else f"{needed} parts used in turn, by ch.seen[...] % {needed}"
    yield exc.UnacknowledgedReuse(
        memory=sent.memory,
        parts=f"{parts} part" + "s" * (parts != 1),
        load=load.line,
        remedy=more,
        kernel=found.program.host.name,
        location=sent.op.location,
    )


def _parts(found: Messages, sent: Transfer) -> int | None:
    """Return the number of calls after which a store is to the same elements again; None if it is unknown."""
    parts = 1
    for place in sent.index:
        for atom in place.form.atoms if place.form is not None else (("value",),):
            if atom[0] == "turn":
                growth = {w.count for w in found.waits if w.channel == atom[1]}
                turns = int(atom[2])  # type: ignore[call-overload]
                if len(growth) != 1 or None in growth:
                    return None
                parts = max(parts, turns // math.gcd(turns, next(iter(growth)) or 0))
            elif atom[0] != "tile" and not _is_fixed(found, atom):
                return None
    return parts


def _is_fixed(found: Messages, atom: Any) -> bool:
    """Return whether an atom is the same in each call: a size, or the counter of a host loop."""
    if atom[0] != "host" or not isinstance(atom[1], tuple):
        return False
    sources = found.program.host.symbols
    return all(name in found.counters or ".size(" in sources.get(name, "") for name in _leaves(atom[1]))


def _leaves(key: tuple[Any, ...]) -> Iterator[str]:
    for part in key[1:]:
        if isinstance(part, tuple):
            yield from _leaves(part)
        elif isinstance(part, str):
            yield part


def _needed(found: Messages, peer: int, sent: Transfer, load: Transfer) -> int | None:
    """Return the number of parts of the memory of a peer that suffice; None if no number does.

    One suffices if the peer acknowledges in the same call what it has read. It also suffices if the store waits for a
    message that the peer sends in the same call. Otherwise a wait for a rank shows that it has ended the call before.
    """
    pairs = [(s, w) for w in found.waits for s in _partners(found, w)]
    if any(
        wait.peer in (peer, None) and (_may_precede(found, load, signal) or _may_precede(found, wait, sent))
        for signal, wait in pairs
    ):
        return 1
    steps = {wait.peer for _, wait in pairs if wait.peer != 0}
    if None in steps:
        return 2
    reached = {0}
    for number in range(2, sent.ranks + 2):
        reached = {(at + step) % sent.ranks for at in reached for step in steps if step is not None}
        if peer in reached:
            return number
    return None


__all__ = ["between_calls", "check_messages", "check_messages_under"]
