"""Values on which the processes of all ranks have to agree, compared without waiting for each other."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

#: How often this process has told a value of each name.
_TOLD: Counter[str] = Counter()


def first_of(store: Any, name: str, value: str) -> str:
    """Return the value of this name in a store: that of the first process that tells one."""
    found: bytes = store.compare_set(f"helion/{name}", "", value)
    return found.decode()


def another(name: str, value: str) -> str | None:
    """Return the value that another process has told first under the same name, if it is another one.

    The processes tell values of a name in the same order: the first one is compared with their first one.
    """
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() == 1:
        return None
    _TOLD[name] += 1
    told = f"{value} on rank {distributed.get_rank()}"
    found = first_of(distributed.distributed_c10d._get_default_store(), f"{name}/{_TOLD[name]}", told)
    return None if found.rpartition(" on rank ")[0] == value else found
