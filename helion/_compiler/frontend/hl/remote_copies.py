"""Rules for barriers between programs of several GPUs, and for copies to other GPUs.

Both use channels of their own, which the first launch makes: tensors of the host code that are calls of the runtime.
The word of a program is the number of its tile, counted over all loops around the call.
"""

from __future__ import annotations

from typing import Any

import torch

from .... import exc
from .... import language as hl
from ...._shapes import Expr
from ...._support import ranks
from ...._support.records import dataclass
from ...._support.symmetric import HIDDEN_WORDS
from ....language.several_gpus import RemoteCopy
from .. import memory, ops
from ..host.factories import contiguous_strides
from ..rules import Rules
from ..tracer import Tracer
from ..values import DeviceValue, HostTensorValue, describe
from .remote import Word, wait_at

RULES = Rules()


@dataclass(frozen=True, kw_only=True)
class _Hidden:
    """The channel of one call in a kernel: its counters have a row for each sender, or one for all.

    ``own`` are the words of this rank, ``seen`` the messages that it has waited for. ``program`` selects the word.
    """

    t: Tracer
    key: str
    rows: int
    own: HostTensorValue
    seen: HostTensorValue
    program: Any

    def signal(self, rank: Any) -> None:
        """Count a message from this rank in the words of another one."""
        words = _words(self.t, f"remote_words({self.key!r}, {self.rows}, {rank})", (HIDDEN_WORDS,), self.own.storage)
        memory.atomic(self.t, "add", words, (self.program,), (1,), "release", "sys")

    def wait(self, row: int, sender: int) -> None:
        at = Word(own=self.own, seen=self.seen, ranks=self.rows, peer=row, index=(self.program,), sender=sender)
        wait_at(self.t, at)


def _words(t: Tracer, call: str, shape: tuple[int, ...], storage: int) -> HostTensorValue:
    """Return words of a channel that a call of the runtime gives."""
    source, strides = f"_helion_runtime.{call}", contiguous_strides(shape)
    return HostTensorValue(t, shape, strides, torch.int32, t.device, storage, source)


def _hidden(t: Tracer, kind: str, rows: int) -> _Hidden:
    """Return the channel of the call that is traced."""
    place, storage = t.builder.location, t.tensors.new_storage()
    key = kind if place is None else f"{kind} {place.function}:{place.line}:{place.column}"
    own = _words(t, f"own_words({key!r}, {rows})", (rows + 1, HIDDEN_WORDS), storage)
    seen = _words(t, f"seen_words({key!r}, {rows})", (rows, HIDDEN_WORDS), t.tensors.new_storage())
    return _Hidden(t=t, key=key, rows=rows, own=own, seen=seen, program=_program(t))


def _program(t: Tracer) -> Any:
    """Return the number of the tile of all loops around the current position."""
    number: Any = 0
    for tile in t.blocks.active.values():
        if tile is None:
            raise exc.InvalidAPIUsage("Barriers and copies between GPUs need hl.tile loops around them, not hl.grid.")
        number = number * tile.count + tile.id
    return number


def _ranks_of(name: str) -> int:
    size = ranks.size_of_all()
    if size is None:
        raise exc.InvalidAPIUsage(
            f"The number of ranks of {name} is not known: initialize torch.distributed first, or bind the kernel with "
            "world_size=."
        )
    return size


@RULES.register(hl.remote_barrier)
def _barrier(t: Tracer, ids: Any) -> None:
    size = _ranks_of("hl.remote_barrier")
    given = list(ids) if isinstance(ids, (list, tuple, range)) else None
    if given is None or not all(isinstance(each, int) and not isinstance(each, bool) for each in given):
        raise exc.InvalidAPIUsage(f"ids of hl.remote_barrier must be a list of constants, got {describe(ids)}.")
    wrong = [each for each in given if not 0 <= each < size]
    if wrong or len(set(given)) != len(given):
        raise exc.InvalidAPIUsage(
            f"ids of hl.remote_barrier must be different numbers from 0 to {size - 1}, since there are {size} ranks; got {given}."
        )
    channel = _hidden(t, "barrier", size)
    for rank in given:
        channel.signal(rank)
    for rank in given:
        channel.wait(rank, ranks.code_of_rank(rank))


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """The tensors and indices of a copy, and the other rank as a host expression."""

    src: HostTensorValue
    src_index: Any
    rank: str
    dst: HostTensorValue
    dst_index: Any
    channel: _Hidden


@RULES.register(hl.make_async_remote_copy)
def _copy(t: Tracer, src: Any, src_index: Any, device_id: Any, dst: Any = None, dst_index: Any = None) -> RemoteCopy:
    size = _ranks_of("hl.make_async_remote_copy")
    there = src if dst is None else dst
    for name, tensor in (("src", src), ("dst", there)):
        if not isinstance(tensor, HostTensorValue) or not (tensor.source or tensor.made):
            raise exc.InvalidAPIUsage(
                f"{name} of hl.make_async_remote_copy must be a tensor of the host code with a name, got {describe(tensor)}."
            )
    rank = _rank_text(t, device_id, size)
    source = f"_helion_runtime.remote_tensor({there.source or there.made}, {rank})"
    remote = HostTensorValue(t, there.shape, there.strides, there.dtype, there.device, there.storage, source)
    parts = _Parts(
        src=src,
        src_index=src_index,
        rank=rank,
        dst=remote,
        dst_index=src_index if dst_index is None else dst_index,
        channel=_hidden(t, "copy", 1),
    )
    return RemoteCopy(parts)


def _rank_text(t: Tracer, rank: Any, size: int) -> str:
    """Return the host expression of a rank."""
    if isinstance(rank, int) and not isinstance(rank, bool):
        if not 0 <= rank < size:
            raise exc.InvalidAPIUsage(
                f"device_id of hl.make_async_remote_copy must be from 0 to {size - 1}, since there are {size} ranks; got {rank}."
            )
        return str(rank)
    names = t.numbers.symbols
    if isinstance(rank, Expr) and all(leaf.op == "host" and leaf.args[0] in names for leaf in rank.leaves()):
        return rank.render(lambda leaf: names[leaf.args[0]].source)
    raise exc.InvalidAPIUsage(
        f"device_id of hl.make_async_remote_copy must be a constant or a number of the host code, got {describe(rank)}."
    )


@RULES.register(RemoteCopy.start)
def _start(t: Tracer, self: Any) -> None:
    parts = self.parts
    value = memory.load(t, parts.src, _index(parts.src_index))
    memory.store(t, parts.dst, _index(parts.dst_index), _converted(t, value, parts.dst.dtype))
    parts.channel.signal(parts.rank)


def _index(index: Any) -> tuple[Any, ...]:
    return tuple(index) if isinstance(index, (list, tuple)) else (index,)


def _converted(t: Tracer, value: DeviceValue, dtype: torch.dtype) -> DeviceValue:
    return value if value.dtype == dtype else ops.cast(t, value, dtype)


@RULES.register(RemoteCopy.wait_send)
def _wait_send(t: Tracer, self: Any) -> None:
    """Record nothing: the source has been read before the data is stored."""


@RULES.register(RemoteCopy.wait_recv)
@RULES.register(RemoteCopy.wait)
def _wait_recv(t: Tracer, self: Any) -> None:
    self.parts.channel.wait(0, ranks.ANY_SENDER)
