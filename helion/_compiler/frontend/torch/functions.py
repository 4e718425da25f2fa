"""All rules for torch functions on device values, by function. Functions without a rule are refused by name."""

from __future__ import annotations

from typing import Any

from .... import exc
from ..hl import functions as hl_functions
from ..hl import random as hl_random
from ..rules import Rule, Rules, union
from . import composites, lanes, losses, matmul, order, parts, pointwise, products, reductions, shapes

_REFUSALS = Rules()
#: Functions whose result has a shape that depends on the data, also of tensors that are not loaded.
_OF_DATA = ("nonzero", "argwhere", "masked_select", "unique", "unique_consecutive")


def _refusal(name: str, error: type[exc.Base]) -> Rule:
    def call(t: Any, *_: Any, **__: Any) -> Any:
        raise error(name=name, remedy="")

    return call


for _names, _error in ((_OF_DATA, exc.DataDependentOutputShapeNotSupported),):
    for _name in _names:
        _REFUSALS.register(*pointwise.named(_name))(_refusal(f"torch.{_name}", _error))

DATA_DEPENDENT = frozenset(f for name in _OF_DATA for f in pointwise.named(name))

RULES = union(
    pointwise.RULES,
    shapes.RULES,
    reductions.RULES,
    matmul.RULES,
    lanes.RULES,
    order.RULES,
    composites.RULES,
    losses.RULES,
    parts.RULES,
    products.RULES,
    hl_functions.TORCH_RULES,
    hl_random.TORCH_RULES,
    _REFUSALS,
)
