"""Memory that every rank has, and that its peers access: simulated, through torch's symmetric memory, or CUDA IPC."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from . import ranks

#: Memory that other processes have mapped: it stays allocated until the process ends.
_MAPPED: list[Any] = []
#: Words of a hidden channel for each peer: at least one for each program of a launch.
HIDDEN_WORDS = 2**16


#: The attribute of a tensor that is that of a peer: the number of the peer.
_PEER = "_helion_peer"
#: Addresses of memory that ranks share, as this process sees it.
_SHARED: set[int] = set()


def as_peers(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Return memory of all ranks, given in the order of the peers, as tensors that are marked as such."""
    found = tuple(tensor.data for tensor in tensors)  # simulated ranks count their own writes, as processes do
    for number, tensor in enumerate(found):
        setattr(tensor, _PEER, number)
        if tensor.device.type != "meta":
            _SHARED.add(tensor.untyped_storage().data_ptr())
    return found


def is_shared(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is memory that ranks share, and no copy of it."""
    return tensor.untyped_storage().data_ptr() in _SHARED


def are_peers(values: Sequence[Any]) -> bool:
    """Return whether values are the tensors of one call of ``as_peers``, in their order."""
    return bool(values) and all(getattr(value, _PEER, None) == number for number, value in enumerate(values))


def simulated(
    sizes: tuple[int, ...], dtype: torch.dtype, group: ranks.Group | None = None
) -> list[torch.Tensor] | None:
    """Return new memory of all simulated ranks of a group, by rank; None outside of a simulated run."""
    here = ranks.current()
    if here is None:
        return None
    mine = _unwritten(sizes, dtype)
    if group is not None:
        here[0].sharing[mine.data_ptr()] = group.members
    return here[0].gather(here[1], mine, group)


def _unwritten(sizes: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return CPU memory whose content no kernel may rely on: NaN, or a large number."""
    fill = float("nan") if dtype.is_floating_point else 0 if dtype == torch.bool else torch.iinfo(dtype).max
    return torch.full(sizes, fill, dtype=dtype)


def mapped(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device, group: Any) -> list[torch.Tensor]:
    """Return new GPU memory of all ranks of a group, by rank."""
    found, problem = _by_symmetric_memory(sizes, dtype, device, group)
    problems: list[Any] = [None] * group.size()
    torch.distributed.all_gather_object(problems, problem, group=group)
    return found if not any(problems) else _by_ipc(sizes, dtype, device, group)


def _by_symmetric_memory(
    sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device, group: Any
) -> tuple[list[torch.Tensor], str]:
    """Return torch's symmetric memory of all ranks, or the reason why there is none."""
    from torch.distributed import _symmetric_memory

    try:
        mine = _symmetric_memory.empty(sizes, dtype=dtype, device=device)
        handle = _symmetric_memory.rendezvous(mine, group.group_name)
        found = [mine if r == group.rank() else handle.get_buffer(r, sizes, dtype, 0) for r in range(group.size())]
    except RuntimeError as error:  # no fabric handles, a container without the needed capabilities ...
        return [], str(error).partition("\n")[0] or "refused"
    _MAPPED.append((mine, handle))
    return found, ""


def _contiguous(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(sizes[at + 1 :]) for at in range(len(sizes)))


def _by_ipc(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device, group: Any) -> list[torch.Tensor]:
    """Return memory of all ranks that processes of one host map into each other by CUDA IPC."""
    mine = torch.empty(sizes, dtype=dtype, device=device)
    torch.cuda.synchronize(device)
    handles: list[Any] = [None] * group.size()
    torch.distributed.all_gather_object(handles, mine.untyped_storage()._share_cuda_(), group=group)
    found = []
    for other, handle in enumerate(handles):
        if other == group.rank():
            found.append(mine)
            continue
        # opened on this rank's GPU, which gets access to the other one; no event to wait for: it is idle
        storage = torch.UntypedStorage._new_shared_cuda(mine.device.index, *handle[1:-1], False)
        found.append(torch.empty(0, dtype=dtype, device=device).set_(storage, 0, sizes, _contiguous(sizes)))
    _MAPPED.append((mine, found))
    return found


class Hidden:
    """A channel that a compiled kernel uses for itself. ``rows`` counters of each word are for different senders.

    All ranks make it at the same launch. ``words`` are those of all ranks, with a last row that notes late waits;
    ``seen`` are the messages that this rank has waited for.
    """

    def __init__(self, rows: int) -> None:
        sizes = (rows + 1, HIDDEN_WORDS)
        here, size = ranks.current(), world_size()
        found = simulated(sizes, torch.int32)
        if found is None and size > 1:
            device = torch.device("cuda", torch.cuda.current_device())
            found = mapped(sizes, torch.int32, device, torch.distributed.group.WORLD)
        self.me = (
            0 if size == 1 and here is None else here[1].rank if here is not None else torch.distributed.get_rank()
        )
        self.words = found or [torch.empty(sizes, dtype=torch.int32, device=own_device())]
        self.words[self.me].zero_()
        self.seen = torch.zeros((rows, HIDDEN_WORDS), dtype=torch.int32, device=self.words[self.me].device)
        if here is not None:
            here[0].gather(here[1], None)
        elif size > 1:
            torch.cuda.synchronize()
            torch.distributed.barrier()


#: Hidden channels of this process, by their keys.
_HIDDEN: dict[str, Hidden] = {}


def own_device() -> torch.device:
    """Return the device of this process's memory: its current GPU, or the CPU without one."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def world_size() -> int:
    """Return the number of simulated ranks, or of processes of the default group."""
    here = ranks.current()
    if here is not None:
        return here[0].size
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def all_hidden() -> list[Hidden]:
    """Return the channels that kernels of this rank use for themselves."""
    here = ranks.current()
    known = _HIDDEN if here is None else here[0].notes.get(f"hidden of rank {here[1].rank}", {})
    return list(known.values())


def hidden(key: str, rows: int) -> Hidden:
    """Return the channel of a key, on which all ranks agree; the first launch makes it."""
    here = ranks.current()
    known = _HIDDEN if here is None else here[0].notes.setdefault(f"hidden of rank {here[1].rank}", {})
    if key not in known:
        known[key] = Hidden(rows)
    return known[key]


def remote_words(key: str, rows: int, rank: int) -> torch.Tensor:
    """Return the words in which a rank counts the messages from this one; with one row it counts those from all."""
    found = hidden(key, rows)
    return found.words[rank % len(found.words)][found.me if rows > 1 else 0]


def own_words(key: str, rows: int) -> torch.Tensor:
    """Return this rank's words of a hidden channel, ``[rows + 1, words]``."""
    found = hidden(key, rows)
    return found.words[found.me]


def seen_words(key: str, rows: int) -> torch.Tensor:
    """Return the messages of a hidden channel that this rank has waited for, ``[rows, words]``."""
    return hidden(key, rows).seen


def remote_tensor(local: torch.Tensor, rank: int) -> torch.Tensor:
    """Return the copy of a symmetric tensor on another rank."""
    if world_size() == 1:
        return local
    world = None if ranks.current() is not None else torch.distributed.group.WORLD
    group = "0" if world is None else world.group_name
    return torch.ops.symm_mem.get_remote_tensors(local, group)[rank]
