"""All rules for torch functions on device values, by function. Functions without a rule are refused by name."""

from __future__ import annotations

from typing import Any

from ... import exc
from . import (
    hl_functions,
    hl_random,
    torch_composites,
    torch_lanes,
    torch_losses,
    torch_matmul,
    torch_order,
    torch_parts,
    torch_pointwise,
    torch_products,
    torch_reductions,
    torch_shapes,
)
from .rules import Rule, Rules, union

_REFUSALS = Rules()
#: Functions whose result has a shape that depends on the data, also of tensors that are not loaded.
_OF_DATA = ("nonzero", "argwhere", "masked_select", "unique", "unique_consecutive")


def _refusal(name: str, error: type[exc.Base]) -> Rule:
    def call(t: Any, *_: Any, **__: Any) -> Any:
        raise error(name=name, remedy="")

    return call


for _names, _error in ((_OF_DATA, exc.DataDependentOutputShapeNotSupported),):
    for _name in _names:
        _REFUSALS.register(*torch_pointwise.named(_name))(_refusal(f"torch.{_name}", _error))

DATA_DEPENDENT = frozenset(f for name in _OF_DATA for f in torch_pointwise.named(name))

RULES = union(
    torch_pointwise.RULES,
    torch_shapes.RULES,
    torch_reductions.RULES,
    torch_matmul.RULES,
    torch_lanes.RULES,
    torch_order.RULES,
    torch_composites.RULES,
    torch_losses.RULES,
    torch_parts.RULES,
    torch_products.RULES,
    hl_functions.TORCH_RULES,
    hl_random.TORCH_RULES,
    _REFUSALS,
)
