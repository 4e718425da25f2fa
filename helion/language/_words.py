"""Views of host tensors that generated host code passes to kernels with wider or narrower loads."""

from __future__ import annotations

import torch

from .. import exc

#: The size of a word of ``flat_words``.
BYTES = 8


def flat_words(tensor: torch.Tensor) -> torch.Tensor:
    """Return the 8-byte words (int64) of a contiguous tensor, without an incomplete last one.

    Raises ``exc.InvalidAPIUsage`` for a tensor that is not contiguous, or does not begin at a multiple of 8 bytes.
    """
    if not tensor.is_contiguous():
        raise exc.InvalidAPIUsage(
            f"Storage that is loaded in groups must be contiguous, got strides {tuple(tensor.stride())} for shape {tuple(tensor.shape)}; pass storage.contiguous()."
        )
    held = flat_bytes(tensor).reshape(-1)
    if held.storage_offset() % BYTES or (held.device.type != "meta" and held.data_ptr() % BYTES):
        raise exc.InvalidAPIUsage(
            "Storage that is loaded in groups must begin at a multiple of 8 bytes; pass storage.clone()."
        )
    return held[: held.numel() // BYTES * BYTES].view(torch.int64)


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor viewed as bytes along its last dimension."""
    return tensor.view(torch.uint8)
