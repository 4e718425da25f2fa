"""Ranks of kernels over several GPUs: their memory, and runs of several ranks in one process without a GPU.

A rank is a process of ``torch.distributed`` with a GPU, or one of the ranks that :func:`run` simulates on CPU tensors.
Peer ``i`` of a rank is the one ``i`` places after it, modulo the number of ranks; peer 0 is the rank itself.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from . import exc
from ._support import ranks as _ranks
from ._support import symmetric
from .hardware import NVLINK4
from .language.several_gpus import Channel, Mailbox

_R = TypeVar("_R")
_MOST_NAMED = 8


def run(function: Callable[[], _R], ranks: int = 2, *, seed: int = 0, shuffled: bool = False) -> list[_R]:
    """Call a function on several ranks.

    In processes that ``torchrun`` started, each one is a rank with a GPU of its own, and calls the function once.
    Otherwise this process simulates the ranks: kernels on CPU tensors run in Triton's interpreter, and their programs
    take turns in an order that the seed decides. Accesses that no signal and wait put in order are found in every
    order, deadlocks in some.

    Args:
        function: called on each rank. :func:`rank` and :func:`world_size` tell it where it is.
        ranks: the number of simulated ranks.
        seed: the order of turns; the same seed gives the same run.
        shuffled: start the programs of a launch in any order, instead of that of their numbers. GPUs keep that order, though
            CUDA does not promise it.

    Returns:
        The results of the ranks of this process, by rank.

    Raises:
        exc.Deadlock: no simulated rank can go on; says what each one waits for, and where.
        exc.DataRace: simulated programs access an element, and no signal and wait is between the two.
        exc.InvalidAPIUsage: ``ranks`` is not positive, or this is a simulated rank already.
    """
    if torch.distributed.is_available() and torch.distributed.is_torchelastic_launched():
        _start()
        return [function()]
    if ranks < 1:
        raise exc.InvalidAPIUsage(f"ranks of helion.distributed.run must be positive, got {ranks}.")
    if _ranks.current() is not None:
        raise exc.InvalidAPIUsage(
            "helion.distributed.run was called on a simulated rank; call it once, around all ranks."
        )
    _simulate_remote_tensors()
    return _ranks.World(ranks, seed, shuffled=shuffled).run([function] * ranks)


@functools.cache
def _simulate_remote_tensors() -> torch.library.Library:
    """Give ``torch.ops.symm_mem.get_remote_tensors``, which torch has for GPUs only, a meaning on simulated ranks."""
    from torch.distributed import _symmetric_memory  # noqa: F401 - declares the operator

    library = torch.library.Library("symm_mem", "IMPL")
    library.impl("get_remote_tensors", _remote_tensors, "CPU")
    return library


def _remote_tensors(local: torch.Tensor, group_name: str) -> tuple[torch.Tensor, ...]:
    """Return the tensors that all ranks give in this call, by rank."""
    here = _ranks.current()
    if here is None:
        raise exc.InvalidAPIUsage(
            "torch.ops.symm_mem.get_remote_tensors was called with a CPU tensor outside of simulated ranks; call it in a "
            "function that helion.distributed.run runs on each rank."
        )
    return tuple(here[0].gather(here[1], local, ordered=False))


def _start() -> None:
    """Join the process group of ``torchrun``, with one GPU for each process."""
    if torch.distributed.is_initialized():
        return
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    if torch.cuda.is_available():
        torch.cuda.set_device(torch.distributed.get_node_local_rank())


def _group(group: Any) -> Any:
    """Return a process group, given by itself, by name or as None for that of all ranks."""
    if isinstance(group, str):
        return torch.distributed.distributed_c10d._resolve_process_group(group)  # type: ignore[arg-type]
    return group


def _is_real() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _members(here: tuple[_ranks.World, _ranks.Task], group: Any) -> tuple[int, ...]:
    """Return the simulated ranks of a group."""
    return group.members if isinstance(group, _ranks.Group) else tuple(range(here[0].size))


def _simulated(group: Any) -> _ranks.Group | None:
    return group if isinstance(group, _ranks.Group) else None


def mesh(shape: Sequence[int]) -> tuple[Any, ...]:
    """Return the groups of this rank in a grid of all ranks, numbered row by row.

    All ranks call it. The groups are for the other functions here.

    Args:
        shape: the number of ranks in each dimension.

    Returns:
        For each dimension, the group of the ranks that differ from this one in this dimension only.

    Raises:
        exc.InvalidAPIUsage: the product of the sizes is not the number of ranks.
    """
    sizes = [int(size) for size in shape]
    if math.prod(sizes) != world_size():
        raise exc.InvalidAPIUsage(f"A mesh of shape {sizes} has {math.prod(sizes)} ranks; there are {world_size()}.")
    if _ranks.current() is None and _is_real():
        kind = "cuda" if torch.cuda.is_available() else "cpu"
        made = torch.distributed.device_mesh.init_device_mesh(kind, tuple(sizes))
        return tuple(made.get_group(dim) for dim in range(len(sizes)))
    me, groups = rank(), []
    for dim in range(len(sizes)):
        step = math.prod(sizes[dim + 1 :])
        first = me - me // step % sizes[dim] * step
        groups.append(_ranks.Group(tuple(first + at * step for at in range(sizes[dim]))))
    return tuple(groups)


def rank(group: Any = None) -> int:
    """Return the number of this rank in a group: of :func:`mesh`, a process group, its name, or None for all ranks.

    Alone it is 0.
    """
    here = _ranks.current()
    if here is not None:
        return _members(here, group).index(here[1].rank)
    return torch.distributed.get_rank(_group(group)) if _is_real() else 0


def world_size(group: Any = None) -> int:
    """Return the number of ranks of a group, as for :func:`rank`."""
    here = _ranks.current()
    if here is not None:
        return len(_members(here, group))
    return torch.distributed.get_world_size(_group(group)) if _is_real() else 1


def barrier(group: Any = None) -> None:
    """Wait until all ranks of a group are here, with their GPUs idle."""
    here = _ranks.current()
    if here is not None:
        here[0].gather(here[1], None, _simulated(group))
    elif _is_real():
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        torch.distributed.barrier(_group(group))


def empty(
    shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    *,
    group: Any = None,
    device: Any = None,
    ranks: int | None = None,
) -> tuple[torch.Tensor, ...]:
    """Allocate a symmetric tensor: each rank gets one of its own, and access to those of its peers.

    All ranks call it, in the same order and with the same shape. On GPUs it uses torch's symmetric memory, or CUDA IPC
    where that is refused. It is slow, and the memory stays allocated: allocate before the first call of a kernel.

    Args:
        shape: the sizes.
        dtype: the dtype.
        group: a process group, its name, or None for all ranks.
        device: the device; None is this rank's GPU, or the CPU for simulated ranks. On ``meta`` nothing is allocated,
            and no other rank is needed: for ``kernel.bind`` without a GPU.
        ranks: with ``device="meta"``, the number of ranks.

    Returns:
        The tensors of this rank and of its peers, in the order of the peers. Their data is undefined.

    Raises:
        exc.InvalidAPIUsage: several ranks without GPUs that are not simulated, or ``ranks`` on another device.
    """
    sizes = tuple(int(size) for size in shape)
    if device is not None and torch.device(device).type == "meta":
        count = world_size(group) if ranks is None else ranks
        return symmetric.as_peers([torch.empty(sizes, dtype=dtype, device="meta") for _ in range(count)])
    if ranks is not None:
        raise exc.InvalidAPIUsage(f"ranks={ranks} is for device='meta'; on {device} the ranks are those of the group.")
    made = symmetric.simulated(sizes, dtype, _simulated(group))
    if made is not None:
        return _relative(made, rank(group))
    count, me = world_size(group), rank(group)
    where = symmetric.own_device() if device is None else torch.device(device)
    if count == 1:
        return symmetric.as_peers([torch.empty(sizes, dtype=dtype, device=where)])
    if where.type != "cuda":
        raise exc.InvalidAPIUsage(
            f"A symmetric tensor of {count} processes needs GPUs, got device {where}; simulate ranks on the CPU with "
            "helion.distributed.run, without torchrun."
        )
    return _relative(symmetric.mapped(sizes, dtype, where, _group(group) or torch.distributed.group.WORLD), me)


def _relative(by_rank: Sequence[torch.Tensor], me: int) -> tuple[torch.Tensor, ...]:
    return symmetric.as_peers([by_rank[(me + peer) % len(by_rank)] for peer in range(len(by_rank))])


def channel(shape: Sequence[int], *, group: Any = None, device: Any = None, ranks: int | None = None) -> Channel:
    """Allocate counters of messages between ranks, for ``hl.signal`` and ``hl.wait``.

    All ranks call it, as :func:`empty`. A kernel needs one word for each program that waits, per peer; more do no harm.
    One channel serves all calls of a kernel, in the order of one stream and with one tile size: with another one, a word
    is for other elements.

    Args:
        shape: the words for each peer.
        group: as for :func:`empty`.
        device: as for :func:`empty`.
        ranks: as for :func:`empty`.

    Returns:
        The channel, an argument of kernels.

    Raises:
        exc.InvalidAPIUsage: as for :func:`empty`.
    """
    sizes = tuple(int(size) for size in shape)
    count = world_size(group) if ranks is None else ranks
    words = empty((count + 1, *sizes), torch.int32, group=group, device=device, ranks=ranks)
    found = Channel(words, torch.zeros((count, *sizes), dtype=torch.int32, device=words[0].device))
    if words[0].device.type != "meta":
        words[0].zero_()
        barrier(group)
    return found


#: Most words of the channel of a mailbox, for each peer.
_MAIL_WORDS = 2**18
#: The words of marked mail, by the bytes of an element: they have an element and the number of its message.
_MARKED = {2: torch.int32, 4: torch.int64}


def mailbox(
    shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    *,
    marked: bool | None = False,
    group: Any = None,
    device: Any = None,
    ranks: int | None = None,
) -> Mailbox:
    """Allocate memory for tiles that ranks send to each other, with ``mail.send`` and ``mail.receive`` in kernels.

    All ranks call it, as :func:`empty`. One mailbox serves all calls of a kernel, in the order of one stream and with
    one tile size.

    Each element of *marked* mail carries the number of its message. So no signal follows the elements: they are there
    in half the time, and take twice the bytes. That suits little data. A call of a kernel sends all of it.

    Args:
        shape: the shape of all data from one rank in one call of a kernel.
        dtype: the dtype.
        marked: mark each element. None marks those of 2 or 4 bytes if the link takes less time for all marks than for half
            of a signal.
        group: as for :func:`empty`.
        device: as for :func:`empty`.
        ranks: as for :func:`empty`.

    Returns:
        The mailbox, an argument of kernels.

    Raises:
        exc.InvalidAPIUsage: as for :func:`empty`, or ``marked`` with elements of neither 2 nor 4 bytes.
    """
    sizes = [int(size) for size in shape]
    count = world_size(group) if ranks is None else ranks
    where: dict[str, Any] = {"group": group, "device": device, "ranks": ranks}
    inbox = empty((2, count, *sizes), dtype, **where)
    words = list(sizes)
    while math.prod(words) > _MAIL_WORDS:
        words[words.index(max(words))] //= 2
    found = channel(words, **where)
    if marked is None:
        marked = dtype.itemsize in _MARKED and math.prod(sizes) * dtype.itemsize * (count - 1) <= _marked_bytes()
    return Mailbox(inbox, found, torch.zeros_like(found.seen), _marked(sizes, dtype, count, where) if marked else ())


def _marked_bytes() -> float:
    """Return the most bytes that a rank sends faster in marked words than with a signal.

    Their marks take as long as the bytes. A signal waits until the bytes have arrived, for about half of its own trip.
    """
    return NVLINK4.stores_gb_per_s * NVLINK4.trip_us / 2 * 1e3


def _marked(sizes: Sequence[int], dtype: torch.dtype, count: int, where: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """Allocate marked words without marks."""
    words = _MARKED.get(dtype.itemsize)
    if words is None:
        raise exc.InvalidAPIUsage(
            f"Elements of marked mail must have 2 or 4 bytes, got {dtype}; use marked=False, or send them as another dtype."
        )
    made = empty((2, count + 1, *sizes), words, **where)
    here = _ranks.current()
    if here is not None:
        here[0].marked[made[0].data_ptr()] = made[0]
    if made[0].device.type != "meta":
        made[0].zero_()
        barrier(where["group"])
    return made


def check(found: Channel | Mailbox | None = None, group: Any = None) -> None:
    """Raise an error if a wait of a channel has timed out. Waits for the GPU.

    Args:
        found: the channel or mailbox; None is all channels of ``hl.remote_barrier`` and ``hl.make_async_remote_copy``.
        group: the group of the channel.

    Raises:
        exc.PeerLost: names the lines and words of the waits, and the ranks whose messages did not come. The channel is unusable until all ranks
            call :func:`reset`.
    """
    if found is None:
        for hidden in symmetric.all_hidden():
            _check_notes(hidden.words[hidden.me][-1], hidden.me, range(len(hidden.words)))
        return
    words = (found.channel if isinstance(found, Mailbox) else found).words
    members = range(len(words)) if group is None else _ranks_of(group)
    _check_notes(words[0][-1], members[rank(group)], members)
    if isinstance(found, Mailbox) and found.marked:
        _check_notes(found.marked[0][0, -1].flatten()[:1], members[rank(group)], members)


def _ranks_of(group: Any) -> Sequence[int]:
    """Return the ranks of a group, among all."""
    here = _ranks.current()
    return _members(here, group) if here is not None else torch.distributed.get_process_group_ranks(_group(group))


def _check_notes(notes: torch.Tensor, me: int, members: Sequence[int]) -> None:
    """Raise an error if waits of rank ``me``, one of ``members``, have noted the peers that did not send."""
    if not bool(notes.any()):
        return
    late = notes.nonzero()[:_MOST_NAMED].tolist()
    found = [int(notes[tuple(at)]) for at in late]
    peers = {_ranks.sender_of(note, me, members) for note in found}
    lines = sorted({note // _ranks.NOTE_LINE for note in found})
    places = ", ".join(str(at) for at in late)
    raise exc.PeerLost(
        f"rank {me} waited longer than HELION_WAIT_TIMEOUT in line {', '.join(map(str, lines))} for messages of {', '.join(sorted(peers))}, in words "
        f"{places} of a channel (the first word is noted for all others, too). Results since then are wrong; stop, or call "
        "helion.distributed.reset on all ranks."
    )


def reset(found: Channel | Mailbox, group: Any = None) -> None:
    """Set the counters of a channel back to zero, on all ranks, which all call it.

    Args:
        found: the channel or mailbox.
        group: the group of the channel.
    """
    barrier(group)
    counters = found.channel if isinstance(found, Mailbox) else found
    counters.words[0].zero_()
    counters.seen.zero_()
    if isinstance(found, Mailbox):
        found.sent.zero_()
        for words in found.marked[:1]:
            words.zero_()
    barrier(group)


__all__ = ["barrier", "channel", "check", "empty", "mailbox", "mesh", "rank", "reset", "run", "world_size"]
