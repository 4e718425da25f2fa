"""Tensors of other ranks in host code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .... import exc
from ...._support import ranks
from ..state import TraceState
from ..values import HostTensorValue, describe
from .factories import contiguous_strides


def remote_tensors(t: TraceState, local: Any, group_name: Any) -> tuple[HostTensorValue, ...]:
    """Evaluate ``torch.ops.symm_mem.get_remote_tensors``: the copies of a symmetric tensor on all ranks, by rank.

    One of them is the tensor itself; which one differs from rank to rank. So all count as sharing its memory.
    """
    if not isinstance(local, HostTensorValue) or not isinstance(group_name, str):
        given = ", ".join(map(describe, (local, group_name)))
        raise exc.TypeInferenceError(f"get_remote_tensors takes a tensor and the name of a process group, got {given}.")
    size = ranks.size_of(group_name)
    if size is None:
        raise exc.InvalidAPIUsage(
            f"The number of ranks of process group {group_name!r} is not known: initialize torch.distributed first, or bind "
            "the kernel with world_size=."
        )
    strides = contiguous_strides(local.shape)
    made = replace(local, strides=strides, source="", made="", aligned=True)
    return tuple(replace(made) for _ in range(size))
