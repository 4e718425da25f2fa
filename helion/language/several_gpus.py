"""Kernels over several GPUs: signals, waits and copies between the programs of all ranks.

Each rank has its own copy of a *symmetric* tensor and can access the copies of its peers. Peer ``i`` is the rank ``i``
places after this one, counted modulo the number of ranks; peer 0 is the rank itself. Kernels therefore do not depend
on their rank, and one binary serves all ranks.

A :class:`Channel` has words that count messages. They only count up, so nothing is ever reset, and captured CUDA
graphs can be replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import torch

from .. import exc
from ._registry import declare, reference


class Channel(NamedTuple):
    """Counters of messages between ranks. ``helion.distributed.channel`` makes one; it is an argument of kernels.

    Attributes:
        words: int32 tensors of shape ``[ranks + 1, *shape]``, one for each peer. Word ``[i, *index]`` of a rank counts the
            messages from its peer ``i``. The last row notes waits that timed out.
        seen: an int32 tensor of shape ``[ranks, *shape]`` of this rank: the number of messages that it has waited for.
    """

    words: tuple[torch.Tensor, ...]
    seen: torch.Tensor

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return len(self.words)


@declare("device")
def signal(channel: Channel, index: Sequence[Any], to: int) -> None:
    """Send a message without data to a peer, after all earlier accesses of this program.

    The program at the peer that waits for the message sees everything that this program wrote or had seen before.

    Args:
        channel: the counters.
        index: the word of the channel: one number per dimension of its shape.
        to: the peer: a constant from 0 to the number of ranks less 1, or the counter of a host loop around this one.

    Raises:
        exc.InvalidAPIUsage: ``channel`` is no channel, ``index`` does not have its rank or is no number, or there is no
            such peer.

    Example::

        @helion.kernel
        def exchange(x: torch.Tensor, inbox: tuple[torch.Tensor, ...], ch: hl.Channel) -> torch.Tensor:
            out = torch.empty_like(x)
            for tile in hl.tile(x.size(0)):
                inbox[0][tile] = x[tile]
                hl.signal(ch, [tile.id], to=0)
                hl.wait(ch, [tile.id], sender=0)
                out[tile] = inbox[0][tile]
            return out

        def on_rank() -> torch.Tensor:
            return exchange(torch.randn(100), helion.distributed.empty([100]), helion.distributed.channel([100]))

        helion.distributed.run(on_rank, ranks=1)
    """


@declare("device")
def wait(channel: Channel, index: Sequence[Any], sender: int, count: int = 1, keep: bool = False) -> None:
    """Wait for messages of a peer; all later accesses of this program see what their senders had written.

    Each message is waited for by one program, which counts it as seen. If several programs wait for the same messages,
    all of them pass ``keep=True``, and host code adds ``count`` to ``channel.seen`` after their loop.

    A wait that takes longer than ``HELION_WAIT_TIMEOUT`` seconds gives up and notes the peer in the channel;
    ``helion.distributed.check`` raises ``exc.PeerLost``.

    Args:
        channel: the counters.
        index: the word of the channel: one number per dimension of its shape.
        sender: the peer, as for ``hl.signal``.
        count: the number of messages, an integer.
        keep: leave the messages to other programs that wait for them.

    Raises:
        exc.InvalidAPIUsage: as for ``hl.signal``.

    Example::

        @helion.kernel
        def meet(x: torch.Tensor, ch: hl.Channel) -> torch.Tensor:
            out = torch.empty_like(x)
            for tile in hl.tile(x.size(0)):
                for _ in hl.static_range(2):
                    hl.signal(ch, [tile.id], to=0)
                hl.wait(ch, [tile.id], sender=0, count=2)
                out[tile] = x[tile]
            return out

        helion.distributed.run(lambda: meet(torch.randn(100), helion.distributed.channel([100])), ranks=1)
    """


class Mailbox(NamedTuple):
    """Memory for messages with data. ``helion.distributed.mailbox`` makes one; it is an argument of kernels.

    It has a part for each sender, of the shape of all data from one rank. There are two of each, used in turn: a peer may
    be one call ahead. In each call, every element is sent to a peer once and received there once, in tiles of one size.

    Attributes:
        inbox: tensors of shape ``[2, ranks, *shape]``, one for each peer.
        channel: the counters of the messages.
        sent: an int32 tensor, the number of messages sent to each peer.
        marked: none, or tensors of words for *marked* mail, which has no signals. A word has an element, and in its upper
            half the number of the message. The last of their ``[2, ranks + 1, *shape]`` notes a wait that timed out.

    Example::

        @helion.kernel
        def all_reduce(x: torch.Tensor, mail: hl.Mailbox) -> torch.Tensor:
            out = torch.empty_like(x)
            for tile in hl.tile(x.size(0)):
                total = x[tile]
                for peer in hl.static_range(1, mail.world_size):
                    mail.send(peer, [tile], x[tile])
                for peer in hl.static_range(1, mail.world_size):
                    total = total + mail.receive(peer, [tile])
                out[tile] = total
            return out

        helion.distributed.run(lambda: all_reduce(torch.ones(100), helion.distributed.mailbox([100])), ranks=2)
    """

    inbox: tuple[torch.Tensor, ...]
    channel: Channel
    sent: torch.Tensor
    marked: tuple[torch.Tensor, ...] = ()

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return len(self.inbox)

    @declare("device")
    def send(self, peer: int, index: Sequence[Any], value: Any) -> None:
        """Send a tile to a peer.

        The peer also sees all earlier accesses of this program once it has received the tile, unless the mail is marked.

        Args:
            peer: the peer: a constant, or the counter of a host loop around this one, as for ``hl.signal``.
            index: the part of the shape: a tile or ``:`` for each dimension.
            value: the tile; it is converted to the dtype of the mailbox.

        Raises:
            exc.InvalidAPIUsage: there is no such peer, or the index is not of tiles. Marked mail: the tiles do not
                certainly cover the whole shape.
        """

    @declare("device")
    def receive(self, peer: int, index: Sequence[Any], keep: bool = False) -> Any:
        """Wait for a tile of a peer, and return it.

        One program receives each tile. If several programs receive the same tile, all of them pass ``keep=True``, and
        host code adds 1 to ``mail.channel.seen`` after their loop.

        Args:
            peer: the sender, as for ``send``.
            index: the part of the shape, as for ``send``.
            keep: leave the tile to other programs that receive it.

        Raises:
            exc.InvalidAPIUsage: as for ``send``.
        """


@declare("device")
def make_async_remote_copy(
    src: torch.Tensor, src_index: Any, device_id: Any, dst: torch.Tensor | None = None, dst_index: Any = None
) -> RemoteCopy:
    """Describe a copy of a part of a tensor to another GPU, which its ``start`` begins.

    All ranks run the copy. Each one waits with ``wait_recv`` for the copy that another rank sends to it from the same
    place of the kernel.

    Args:
        src: a host tensor.
        src_index: the part of it, as in a subscript.
        device_id: the rank of the other GPU: a constant, or a number of the host code.
        dst: the tensor there, by this rank's copy of it: one of torch's symmetric memory. None is ``src``.
        dst_index: the part of it. None is ``src_index``.

    Returns:
        The copy, with the methods ``start``, ``wait_send``, ``wait_recv``, and ``wait`` for both.

    Raises:
        exc.InvalidAPIUsage: ``src`` or ``dst`` is no host tensor, ``device_id`` is a device value, or the number of ranks
            is not known.

    Example::

        @helion.kernel
        def to_the_next(x: torch.Tensor, buffer: torch.Tensor, rank: int, ranks: hl.constexpr) -> torch.Tensor:
            out = torch.empty_like(x)
            for tile in hl.tile(x.size(0)):
                copy = hl.make_async_remote_copy(x, [tile], (rank + 1) % ranks, buffer)
                copy.start()
                copy.wait()
                out[tile] = buffer[tile]
            return out

        def on_rank() -> torch.Tensor:
            return to_the_next(torch.ones(100), torch.empty(100), helion.distributed.rank(), 2)

        helion.distributed.run(on_rank, ranks=2)
    """


@declare("device")
def remote_barrier(ids: Any) -> None:
    """Wait until the program of the same tile is here on other GPUs, which wait for this one.

    Each program sees what those programs did before.

    Args:
        ids: their ranks, a list of constants. All of these ranks call it, each with all others; its own rank may be
            among them.

    Raises:
        exc.InvalidAPIUsage: ``ids`` is no list of constants, or has no such rank, or the number of ranks is not known.

    Example::

        @helion.kernel
        def together(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            for tile in hl.tile(x.size(0)):
                hl.remote_barrier([0, 1])
                out[tile] = x[tile]
            return out

        helion.distributed.run(lambda: together(torch.ones(100)), ranks=2)
    """


class RemoteCopy:
    """A copy to another GPU, of ``hl.make_async_remote_copy``. ``parts`` is the compiler's description of it."""

    def __init__(self, parts: Any) -> None:
        self.parts = parts

    @declare("device")
    def start(self) -> None:
        """Copy the data, and signal to the other GPU."""

    @declare("device")
    def wait_send(self) -> None:
        """Wait until the source may be written again: at once, since ``start`` has read it."""

    @declare("device")
    def wait_recv(self) -> None:
        """Wait for the data that another rank copies to this one."""

    @declare("device")
    def wait(self) -> None:
        """Wait for both."""


_WHEN_COMPILED = " in eager mode; compile the kernel, which also runs on CPU tensors, in helion.distributed.run"
#: The remedy for functions of other interfaces to several GPUs.
WITH_CHANNELS = "; allocate memory with helion.distributed.empty, and order accesses with hl.signal and hl.wait"


def refusing(name: str, remedy: str = WITH_CHANNELS) -> Any:
    """Return a function that accepts any arguments and refuses the function of this name."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise exc.SeveralGpusUnsupported(name=name, remedy=remedy)

    return refuse


COPY_METHODS = (RemoteCopy.start, RemoteCopy.wait_send, RemoteCopy.wait_recv, RemoteCopy.wait)
for _function in (
    signal,
    wait,
    Mailbox.send,
    Mailbox.receive,
    make_async_remote_copy,
    remote_barrier,
    *COPY_METHODS,
):
    reference(_function, "raw")(refusing(f"hl.{_function.__qualname__}", _WHEN_COMPILED))
