"""Results of host calls: their certainty, their dependences on state, and their device."""

from __future__ import annotations

from typing import Any

import torch

from ..state import TraceState
from ..values import HostTensorValue
from .meta import tensors_in


def outs_of(kwargs: dict[str, Any]) -> Any:
    """Return the tensors that a call writes to through ``out=``."""
    out = kwargs.get("out")
    for tensor in tensors_in(out):
        tensor.checked = True  # torch resizes a tensor that does not fit
    return out


def noted(
    t: TraceState,
    made: HostTensorValue,
    inputs: list[HostTensorValue],
    exact: bool,
    typed: bool = False,
    placed: bool = False,
) -> HostTensorValue:
    """Record the certainty of a result, and its dependences on state other than the arguments. ``typed``, ``placed``:
    the call names dtype or device.

    Function modes, including the default device, determine properties that neither tensors nor arguments do.
    """
    modes = torch._C._len_torch_function_stack()
    if not (exact and (inputs or placed)):
        t.world.assume("state", torch._C._len_torch_function_stack, None, modes)
    made.checked = made.checked or not exact or modes > 0 or t.tensors.unsure or any(i.checked for i in inputs)
    if not typed and not any(i.dtype.is_floating_point for i in inputs) and made.dtype is torch.get_default_dtype():
        t.world.default_dtype()
    return made


def device_of(t: TraceState, inputs: list[HostTensorValue], free: bool = False) -> torch.device:
    """Return the device of the result of a call on ``inputs``: tensors without dimensions follow the others. ``free``:
    a call without tensors makes one on the default device.
    """
    if not inputs:
        return torch.get_default_device() if free else t.device
    return next((i.device for i in inputs if i.ndim and i.device.type != "cpu"), inputs[0].device)
