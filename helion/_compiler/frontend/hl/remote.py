"""Rules for signals between ranks, and the arguments that they share with waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .... import exc
from .... import language as hl
from ...._shapes import Expr
from ....language.several_gpus import Channel, refusing
from .. import memory
from ..rules import Rules
from ..tracer import Tracer
from ..values import DeviceValue, HostTensorValue, describe

RULES = Rules()


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word of a channel as the front end sees it: its peer, and the numbers that select it."""

    own: HostTensorValue
    seen: HostTensorValue
    ranks: int
    peer: int | Expr
    index: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class ChangingPeer:
    """A peer that changes from one iteration of a host loop to the next, and its words."""

    number: Expr
    words: HostTensorValue


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
    return Word(own=words[0], seen=seen, ranks=ranks, peer=which, index=places)


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


RULES.register(hl.make_async_remote_copy)(refusing("hl.make_async_remote_copy"))
RULES.register(hl.remote_barrier)(refusing("hl.remote_barrier"))
