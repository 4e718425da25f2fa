"""Rules for signals and mail between ranks, and the arguments that they share with waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from .... import exc, knobs
from .... import language as hl
from ...._shapes import Expr
from ...._support.ranks import NOTE_LINE
from ...._support.records import dataclass
from ....language.several_gpus import Channel, Mailbox
from .. import memory, ops
from ..rules import Rules
from ..torch.shapes import bitcast
from ..tracer import Tracer
from ..values import DeviceValue, HostTensorValue, Tile, describe

RULES = Rules()


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word of a channel as the front end sees it: its peer, and the numbers that select it.

    ``sender`` is the code of the sender that a late wait notes (``_support/ranks.py``).
    """

    own: HostTensorValue
    seen: HostTensorValue
    ranks: int
    peer: int | Expr
    index: tuple[Any, ...]
    sender: int | Expr


@dataclass(frozen=True, kw_only=True)
class ChangingPeer:
    """A peer that changes from one iteration of a host loop to the next, with its words, and its inbox if it gets mail."""

    number: Expr
    words: HostTensorValue
    inbox: HostTensorValue | None = None


def word(t: Tracer, function: str, channel: Any, index: Any, peer: Any, name: str) -> Word:
    """Return the word that a call of ``function`` names; ``name`` is its argument with the peer.

    Raises:
        exc.InvalidAPIUsage: one of the arguments has the wrong form.
    """
    given: tuple[Any, Any] = (channel.words, channel.seen) if isinstance(channel, Channel) else ((), None)
    words, seen = given
    if not all(map(_is_words, (*words, seen))):
        raise exc.InvalidAPIUsage(
            f"{function} takes a channel of helion.distributed.channel as its first argument, got {describe(channel)}."
        )
    ranks = len(words)
    changing = peer.number if isinstance(peer, ChangingPeer) else peer if t.numbers.changes(peer) else None
    if changing is None and (isinstance(peer, Expr) or not isinstance(peer, int)):
        raise exc.InvalidAPIUsage(
            f"{name} of {function} must be a constant from 0 to {ranks - 1}, got {describe(peer)}; loop over peers with "
            "hl.static_range, or by a loop of host code around the hl.tile loop."
        )
    if changing is None and not 0 <= peer < ranks:
        raise exc.InvalidAPIUsage(
            f"{name} of {function} must be from 0 to {ranks - 1}, since the channel has {ranks} ranks; got {peer}."
        )
    places = tuple(index) if isinstance(index, (list, tuple)) else (index,)
    rank = seen.ndim - 1
    if len(places) != rank or not all(map(_is_number, places)):
        got = ", ".join(map(describe, places))
        raise exc.InvalidAPIUsage(
            f"index of {function} must be {rank} number{'s' if rank != 1 else ''}, one per dimension of the channel, got "
            f"{len(places)}: {got}. Use tile.id or tile.begin for a tile."
        )
    which = int(peer) if changing is None else changing
    return Word(own=words[0], seen=seen, ranks=ranks, peer=which, index=places, sender=which + 1)


def _is_words(value: Any) -> bool:
    return isinstance(value, HostTensorValue) and value.dtype == torch.int32


def _is_number(value: Any) -> bool:
    if isinstance(value, DeviceValue):
        return not value.dims and not value.dtype.is_floating_point
    return isinstance(value, (int, Expr)) and not isinstance(value, bool)


def take(t: Tracer, at: Word, count: Any, *, keep: bool) -> DeviceValue:
    """Return the number of messages to wait for, all earlier ones included; count them as seen unless ``keep``."""
    seen = memory.load(t, at.seen, (at.peer, *at.index))
    want = seen + count
    if not isinstance(want, DeviceValue) or want.dims or want.dtype.is_floating_point:
        raise exc.InvalidAPIUsage(f"count of hl.wait must be an integer, got {describe(count)}.")
    if not keep:
        memory.store(t, at.seen, (at.peer, *at.index), want)
    return want


@RULES.register(hl.signal)
def _signal(t: Tracer, channel: Any, index: Any, to: Any) -> None:
    at = word(t, "hl.signal", channel, index, to, "to")
    sender: Sequence[Any] = ((at.ranks - at.peer) % at.ranks, *at.index)
    words = to.words if isinstance(to, ChangingPeer) else channel.words[at.peer]
    memory.atomic(t, "add", words, tuple(sender), (1,), "release", "sys")


def awaited(
    t: Tracer, channel: Any, index: Any, sender: Any, count: Any, keep: Any
) -> tuple[HostTensorValue, tuple[Any, ...]]:
    """Return the words of a channel, and the numbers that a wait needs.

    They are its word, the first note, the note of its word, the messages to wait for, and what to note.
    ``channel`` may be a ``Word``, whose index and sender are known.
    """
    at = channel if isinstance(channel, Word) else word(t, "hl.wait", channel, index, sender, "sender")
    if not isinstance(keep, bool):
        raise exc.InvalidAPIUsage(f"keep of hl.wait must be True or False, got {describe(keep)}.")
    want = take(t, at, count, keep=keep)
    words = at.own
    lanes: Any = 0
    for place, stride in zip(at.index, words.strides[1:], strict=True):
        lanes = lanes + (place if isinstance(stride, int) and stride == 1 else place * stride)
    first = at.ranks * words.strides[0]
    return words, (lanes + at.peer * words.strides[0], first, lanes + first, want, note_of(t, at))


def wait_at(t: Tracer, at: Word, count: Any = 1, keep: bool = False) -> None:
    """Wait for messages in a word, by the rule of the backend."""
    rule = t.context.rules.get(hl.wait)
    if rule is None:
        raise exc.BackendUnsupported(what="hl.wait", backend=t.context.limits.backend, remedy="")
    rule(t, at, (), None, count, keep)


def note_of(t: Tracer, at: Word) -> Any:
    """Return the number that a wait which takes too long notes: its sender and its line."""
    return at.sender + (t.builder.location.line if t.builder.location is not None else 0) * NOTE_LINE


# --- mail -------------------------------------------------------------------------------------------------------------

_PARTS = 2
#: Nanoseconds that a wait without a limit takes at most.
_NEVER = 2**62


def _listed(index: Any) -> tuple[Any, ...]:
    return tuple(index) if isinstance(index, (list, tuple)) else (index,)


def _words_of(name: str, index: Any) -> tuple[Any, ...]:
    """Return the indices of the word for a tile of mail."""
    places = _listed(index)
    if not all(isinstance(each, Tile) or (isinstance(each, slice) and each == slice(None)) for each in places):
        raise exc.InvalidAPIUsage(
            f"index of {name} must be a tile or ':' for each dimension, got {', '.join(map(describe, places))}."
        )
    return tuple(each.id if isinstance(each, Tile) else 0 for each in places)


@dataclass(frozen=True, kw_only=True)
class _Mail:
    """A mailbox and the tile that a call names. ``memory`` is the inbox, or the marked words of each peer."""

    dtype: torch.dtype
    memory: tuple[HostTensorValue, ...]
    is_marked: bool
    counter: HostTensorValue
    channel: Channel
    at: Word


def _mail(t: Tracer, name: str, mail: Any, peer: Any, index: Any) -> _Mail:
    if not isinstance(mail, Mailbox) or not isinstance(mail.channel, Channel):
        raise exc.InvalidAPIUsage(f"{name} takes a mailbox of helion.distributed.mailbox, got {describe(mail)}.")
    inbox, channel, counter, marked = cast("tuple[Any, Any, Any, Any]", mail)
    words = _words_of(name, index)
    at = word(t, name, channel, words, peer, "peer")
    if marked:
        _check_backend(t, name)
        _check_covers(name, inbox[0], _listed(index))
    return _Mail(
        dtype=inbox[0].dtype,
        memory=tuple(marked or inbox),
        is_marked=bool(marked),
        counter=counter,
        channel=channel,
        at=at,
    )


def _check_covers(name: str, inbox: HostTensorValue, index: Sequence[Any]) -> None:
    """Refuse tiles of marked mail that may leave out elements: those would keep the mark of an earlier message."""
    for dim, (place, size) in enumerate(zip(index, inbox.shape[2:], strict=True)):
        known = isinstance(place, Tile) and isinstance(place.last, int) and isinstance(size, int)
        if isinstance(place, Tile) and not (known and (place.first, place.last) == (0, size)):
            ends = (
                f"from {place.first} to {place.last}, not from 0 to {size}"
                if known
                else "of a size known at run time only"
            )
            raise exc.InvalidAPIUsage(
                f"index of {name} has a tile of a loop {ends}, in dimension {dim} of marked mail; send all of its elements "
                "in each call, under static_shapes=True, or use helion.distributed.mailbox(marked=False)."
            )


@RULES.register(Mailbox.send)
def _send(t: Tracer, self: Any, peer: Any, index: Any, value: Any) -> None:
    mail = _mail(t, "hl.Mailbox.send", self, peer, index)
    number = peer.number if isinstance(peer, ChangingPeer) else mail.at.peer
    memory_of = peer.inbox if isinstance(peer, ChangingPeer) else mail.memory[mail.at.peer]
    assert isinstance(memory_of, HostTensorValue)
    counted = (number, *mail.at.index)
    sent = memory.load(t, mail.counter, counted)
    place = (sent % _PARTS, (mail.at.ranks - number) % mail.at.ranks, *_listed(index))
    if mail.is_marked:
        tile = ops.cast(t, ops.as_device(t, value, "as the value of hl.Mailbox.send"), mail.dtype)
        mark = sent + 1
        memory.store(t, memory_of, place, _marked(t, tile, mark, memory_of.dtype), mark=(mark,))
        memory.store(t, mail.counter, counted, mark)
        return
    memory.store(t, memory_of, place, ops.cast(t, value, mail.dtype) if isinstance(value, DeviceValue) else value)
    memory.store(t, mail.counter, counted, sent + 1)
    _signal(t, mail.channel, mail.at.index, peer)


@RULES.register(Mailbox.receive)
def _receive(t: Tracer, self: Any, peer: Any, index: Any, keep: Any = False) -> DeviceValue:
    mail = _mail(t, "hl.Mailbox.receive", self, peer, index)
    part = memory.load(t, mail.at.seen, (mail.at.peer, *mail.at.index)) % _PARTS
    place = (part, mail.at.peer, *_listed(index))
    if not mail.is_marked:
        wait_at(t, mail.at, keep=keep)
        return memory.load(t, mail.memory[0], place)
    mark = (take(t, mail.at, 1, keep=keep), note_of(t, mail.at), knobs.WAIT_TIMEOUT.read() * 10**9 or _NEVER)
    return _unmarked(t, memory.load(t, mail.memory[0], place, eviction="", mark=mark), mail.dtype)


def _check_backend(t: Tracer, name: str) -> None:
    """Refuse marked mail on backends without waits."""
    if t.context.rules.get(hl.wait) is None or t.context.target.kind != "cuda":
        raise exc.BackendUnsupported(
            what=f"{name} of marked mail",
            backend=t.context.limits.backend,
            remedy=f" on {t.context.target.name}; it needs an NVIDIA GPU and a backend that has hl.wait",
        )


def _marked(t: Tracer, tile: DeviceValue, mark: Any, words: torch.dtype) -> DeviceValue:
    """Return words with an element in the lower half and the mark in the upper one."""
    half = tile.dtype.itemsize * 8
    bits = ops.cast(t, bitcast(t, tile, _INTEGERS[tile.dtype.itemsize]), words)
    upper = ops.pointwise(t, "lshift", ops.cast(t, mark, words), half)
    return ops.pointwise(t, "bitwise_or", ops.pointwise(t, "bitwise_and", bits, 2**half - 1), upper)


def _unmarked(t: Tracer, words: DeviceValue, dtype: torch.dtype) -> DeviceValue:
    return bitcast(t, ops.cast(t, words, _INTEGERS[dtype.itemsize]), dtype)


_INTEGERS = {2: torch.int16, 4: torch.int32}
