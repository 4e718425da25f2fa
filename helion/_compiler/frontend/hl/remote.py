"""Rules for signals and mail between ranks, and the arguments that they share with waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from .... import exc
from .... import language as hl
from ...._shapes import Expr
from ....language.several_gpus import Channel, Mailbox
from .. import memory, ops
from ..rules import Rules
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


def wait_at(t: Tracer, at: Word, count: Any = 1, keep: bool = False) -> None:
    """Wait for messages in a word, by the rule of the backend."""
    rule = t.context.rules.get(hl.wait)
    if rule is None:
        raise exc.BackendUnsupported(what="hl.wait", backend=t.context.limits.backend, remedy="")
    rule(t, at, (), None, count, keep)


# --- mail -------------------------------------------------------------------------------------------------------------

_PARTS = 2


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


def _parts_of(name: str, mail: Any) -> tuple[tuple[HostTensorValue, ...], Channel, HostTensorValue]:
    """Return the inbox, the channel and the counter of a mailbox."""
    if not isinstance(mail, Mailbox) or not isinstance(mail.channel, Channel):
        raise exc.InvalidAPIUsage(f"{name} takes a mailbox of helion.distributed.mailbox, got {describe(mail)}.")
    inbox, channel, sent = cast("tuple[Any, Any, Any]", mail)
    return inbox, channel, sent


@RULES.register(Mailbox.send)
def _send(t: Tracer, self: Any, peer: Any, index: Any, value: Any) -> None:
    inboxes, channel, counter = _parts_of("hl.Mailbox.send", self)
    words = _words_of("hl.Mailbox.send", index)
    at = word(t, "hl.Mailbox.send", channel, words, peer, "peer")
    number = peer.number if isinstance(peer, ChangingPeer) else at.peer
    inbox = peer.inbox if isinstance(peer, ChangingPeer) else inboxes[at.peer]
    assert isinstance(inbox, HostTensorValue)
    sent = memory.load(t, counter, (number, *words))
    place = (sent % _PARTS, (at.ranks - number) % at.ranks, *_listed(index))
    memory.store(t, inbox, place, ops.cast(t, value, inbox.dtype) if isinstance(value, DeviceValue) else value)
    memory.store(t, counter, (number, *words), sent + 1)
    _signal(t, channel, words, peer)


@RULES.register(Mailbox.receive)
def _receive(t: Tracer, self: Any, peer: Any, index: Any, keep: Any = False) -> DeviceValue:
    inboxes, channel, _ = _parts_of("hl.Mailbox.receive", self)
    words = _words_of("hl.Mailbox.receive", index)
    at = word(t, "hl.Mailbox.receive", channel, words, peer, "peer")
    part = memory.load(t, at.seen, (at.peer, *words)) % _PARTS
    wait_at(t, at, keep=keep)
    return memory.load(t, inboxes[0], (part, at.peer, *_listed(index)))
