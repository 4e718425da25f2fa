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


@declare("device")
def make_async_remote_copy(
    src: torch.Tensor, src_index: Any, device_id: Any, dst: torch.Tensor | None = None, dst_index: Any = None
) -> Any:
    """Start a copy of a part of a tensor to another GPU. Not implemented.

    Args:
        src: a host tensor.
        src_index: the part of it.
        device_id: the rank of the other GPU.
        dst: the tensor there.
        dst_index: the part of it.

    Raises:
        exc.SeveralGpusUnsupported: always.
    """


@declare("device")
def remote_barrier(ids: Any) -> None:
    """Wait for other GPUs. Not implemented.

    Args:
        ids: their ranks.

    Raises:
        exc.SeveralGpusUnsupported: always.
    """


#: The remedy for functions of other interfaces to several GPUs.
WITH_CHANNELS = "; allocate memory with helion.distributed.empty, and order accesses with hl.signal and hl.wait"
_WHEN_COMPILED = " in eager mode; compile the kernel, which also runs on CPU tensors, in helion.distributed.run"


def refusing(name: str, remedy: str = WITH_CHANNELS) -> Any:
    """Return a function that accepts any arguments and refuses the function of this name."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise exc.SeveralGpusUnsupported(name=name, remedy=remedy)

    return refuse


for _function, _remedy in (
    (signal, _WHEN_COMPILED),
    (wait, _WHEN_COMPILED),
    (make_async_remote_copy, WITH_CHANNELS),
    (remote_barrier, WITH_CHANNELS),
):
    reference(_function, "raw")(refusing(f"hl.{_function.__name__}", _remedy))
