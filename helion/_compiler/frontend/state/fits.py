"""Integer dtypes and the numbers that they hold."""

from __future__ import annotations

from typing import Any

import torch

from .... import exc

_NARROW = (torch.int8, torch.uint8, torch.int16)


def check_fits(value: int, dtype: torch.dtype) -> None:
    """Raise ``exc.TorchOpTracingError`` as eager does for a number beyond an integer dtype; negative numbers of an
    unsigned one wrap.
    """
    if dtype.is_floating_point or dtype == torch.bool:
        return
    limits = torch.iinfo(dtype)
    if not (limits.min or -limits.max) <= value <= limits.max:
        reason = (
            f"it does not fit {dtype}, which holds {limits.min} to {limits.max}; convert the tensor to a wider dtype"
        )
        raise exc.TorchOpTracingError(name=f"The number {value}", reason=reason)


def common_integer(dtype: torch.dtype, number: Any, of_symbol: torch.dtype) -> torch.dtype:
    """Return a dtype that holds integers of ``dtype`` and a number: an int, or a symbol of dtype ``of_symbol``."""
    if type(number) is not int:
        return torch.promote_types(dtype, of_symbol) if dtype in _NARROW else dtype
    if dtype not in (*_NARROW, torch.int32):
        return dtype
    limits = torch.iinfo(dtype)
    return dtype if limits.min <= number <= limits.max else torch.int64
