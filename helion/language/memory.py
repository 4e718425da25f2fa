"""Loads and stores with more options than ``x[tile]`` and ``out[tile] = v``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .. import exc
from ._reference import access
from ._registry import declare, reference


@declare("device")
def load(
    tensor: torch.Tensor | access.Accessible,
    index: Sequence[Any],
    extra_mask: torch.Tensor | None = None,
    eviction_policy: str | None = None,
) -> torch.Tensor:
    """Load ``tensor[index]`` of a host tensor, with an additional mask.

    Lanes of tiles that are out of range, and those where ``extra_mask`` is false, read 0. Nothing else is masked:
    numbers and index tensors must be in range. A negative integer that is a constant or an argument counts from the
    end; one that is loaded or computed on the device does not.

    Args:
        tensor: a host tensor, or an ``hl.StackTensor``.
        index: one entry per dimension: tiles, integers, slices, None, and integer tensors. Index tensors that are all
            1-D select an outer product; if one has more dimensions, neighbours broadcast together as in PyTorch.
        extra_mask: a boolean device value that broadcasts to the result's shape.
        eviction_policy: ``""``, ``"evict_first"`` or ``"evict_last"`` for this load; None leaves it to the config
            (``load_eviction_policies``).

    Returns:
        A device value of the selected shape and the tensor's dtype.

    Raises:
        exc.RankMismatch: ``index`` has too few or too many entries.
        exc.InvalidIndexingType: an entry that cannot be an index.
        exc.IndexOutOfRange: at run time, if the kernel is ``checked`` or runs eagerly; undefined otherwise.

    Example::

        @helion.kernel
        def shifted(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            for tile in hl.tile(x.size(0)):
                out[tile] = hl.load(x, [tile.index - 1], extra_mask=tile.index > 0)
            return out

        shifted(torch.randn(10))
    """


@declare("device")
def store(
    tensor: torch.Tensor | access.Accessible,
    index: Sequence[Any],
    value: torch.Tensor | float,
    extra_mask: torch.Tensor | None = None,
) -> None:
    """Store into ``tensor[index]`` of a host tensor, with an additional mask.

    Lanes of tiles that are out of range, and those where ``extra_mask`` is false, are not stored. If several lanes
    select one element, one of their values remains; it is undefined which.

    Args:
        tensor: a host tensor.
        index: as for ``hl.load``.
        value: a number, or a device value that broadcasts to the selected shape; cast to the tensor's dtype.
        extra_mask: a boolean device value that broadcasts to the selected shape.

    Raises:
        exc.DeviceTensorSubscriptAssignmentNotAllowed: ``tensor`` is a device value.
        exc.RankMismatch: ``index`` has too few or too many entries.
        exc.ShapeMismatch: ``value`` does not broadcast to the selected shape; ``exc.RankMismatch`` if it has more
            dimensions.
        exc.OverlappingStore: it covers several indices of a dimension of stride 0, such as ``torch.Tensor.expand``
            makes.
        exc.IndexOutOfRange: at run time, if the kernel is ``checked`` or runs eagerly; undefined otherwise.

    Example::

        @helion.kernel
        def keep_positive(x: torch.Tensor) -> torch.Tensor:
            out = torch.zeros_like(x)
            for tile in hl.tile(x.size(0)):
                hl.store(out, [tile], x[tile], extra_mask=x[tile] > 0)
            return out

        keep_positive(torch.randn(10))
    """


# --- eager references ---------------------------------------------------------------------------------------------------


def _tensor(tensor: Any, name: str) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise exc.TypeInferenceError(f"{name} works on host tensors, got a {type(tensor).__name__}.")
    return tensor


@reference(load)
def _load(tensor: Any, index: Any, extra_mask: Any = None, eviction_policy: str | None = None) -> torch.Tensor:
    if eviction_policy not in (None, "", "evict_first", "evict_last"):
        raise exc.InvalidAPIUsage(
            f"eviction_policy must be '', 'evict_first' or 'evict_last', got {eviction_policy!r}."
        )
    if isinstance(tensor, access.Accessible):
        return tensor.load_eagerly(index, extra_mask)
    return access.load(_tensor(tensor, "hl.load"), index, extra_mask)


@reference(store, "once")
def _store(tensor: Any, index: Any, value: Any, extra_mask: Any = None) -> None:
    if isinstance(tensor, access.Accessible):
        tensor.store_eagerly(index, value, extra_mask)
        return
    access.store(_tensor(tensor, "hl.store"), index, value, extra_mask)
