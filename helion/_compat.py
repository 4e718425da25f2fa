"""Queries of the toolchain under the names of the public API."""

from __future__ import annotations

import torch

from .hardware import from_device_properties


def use_tileir_tunables() -> bool:
    """Return whether config keys of the TileIR backend apply: never, there is no such backend here."""
    return False


def supports_amd_cdna_tunables() -> bool:
    """Return whether config keys for AMD's CDNA GPUs apply to the current GPU."""
    return torch.cuda.is_available() and torch.version.hip is not None


def supports_tensor_descriptor() -> bool:
    """Return whether kernels run here use tensor descriptors: on GPUs that have them, and in the interpreter."""
    if not torch.cuda.is_available():
        return True
    return from_device_properties(torch.cuda.current_device()).has("tensor_descriptor")
