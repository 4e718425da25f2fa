"""The GPU that a call is compiled for."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch

from .. import exc, hardware, knobs
from .._shapes import CONCRETE_TENSORS
from .signature import tensors_in

_NUMBERS = itertools.count()
_TOKENS: dict[int, tuple[hardware.Target, int]] = {}


def target_of(kernel: str, values: tuple[Any, ...]) -> hardware.Target:
    """Return the target of CUDA tensors among the arguments, else ``HELION_TARGET``. Raises ``exc.NoTensorArgs``."""
    device = next((v.device for v in values if type(v) in CONCRETE_TENSORS), None)
    if device is None:
        device = next((t.device for t in tensors_in(values)), None)
    if device is None:
        device = next((v for v in values if isinstance(v, torch.device)), None)
    if device is None:
        raise exc.NoTensorArgs(kernel=kernel)
    if device.type == "cuda" and torch.cuda.is_available():
        return hardware.from_device_properties(
            device.index if device.index is not None else torch.cuda.current_device()
        )
    return hardware.target(knobs.TARGET.read() or hardware.DEFAULT_TARGET)


def token(target: hardware.Target) -> int:
    """Return a number for a target, equal for equal ones; hashing all its fields is slower than a whole call."""
    known = _TOKENS.get(id(target))
    if known is None or known[0] is not target:
        if len(_TOKENS) >= 256:
            _TOKENS.clear()
        known = _TOKENS[id(target)] = (target, _number_of(target))
    return known[1]


@functools.lru_cache(maxsize=256)
def _number_of(target: hardware.Target) -> int:
    return next(_NUMBERS)
