"""All rules for torch functions on device values, by function. What has no rule is refused by name."""

from __future__ import annotations

from typing import Any

import torch

from ... import exc
from . import torch_composites, torch_lanes, torch_matmul, torch_reductions, torch_shapes
from .torch_pointwise import RULES, Rule

#: The families register themselves in one table when imported.
FAMILIES = (torch_shapes, torch_reductions, torch_matmul, torch_lanes, torch_composites)


def _refusal(name: str, error: type[exc.Base]) -> Rule:
    def call(t: Any, *_: Any, **__: Any) -> Any:
        raise error(name=name, remedy="")

    return call


for _name in ("chunk", "split", "unbind", "tensor_split"):
    for _owner in (torch, torch.Tensor):
        RULES[getattr(_owner, _name)] = _refusal(f"torch.{_name}", exc.UnsupportedSplitOperation)
for _name in ("nonzero", "masked_select", "unique"):
    for _owner in (torch, torch.Tensor):
        RULES[getattr(_owner, _name)] = _refusal(f"torch.{_name}", exc.DataDependentOutputShapeNotSupported)

__all__ = ["FAMILIES", "RULES"]
