"""A call of a kernel while torch records it: its operator, and views of its results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ... import exc
from ..._support.lazy import lazy
from ..call.argument_checks import remedies
from .kernels import Kernel
from .operators import Operator, operator_for
from .outcome import Outcome, outcome_of
from .trees import Flattened, flatten, unflatten

if TYPE_CHECKING:
    from . import fusion
else:
    # needed only with the setting
    fusion = lazy("helion.runtime.torch_interop.fusion")


def record(kernel: Kernel, values: Sequence[Any]) -> Any:
    """Return the results of a call for tensors that torch traces.

    Raises ``exc.NoPlaceInGraph`` if no operator can represent it, ``exc.NoGradient`` and ``exc.InPlaceOnGradient`` if
    autograd would have to record what is written.
    """
    if kernel.settings.torch_compile_fusion:
        fusion.install()
    given = flatten(kernel, values)
    outcome = outcome_of(kernel, given)
    _check_gradients(kernel, given, outcome)
    return _results(operator_for(kernel, given, outcome.effects), given, outcome)


def record_differentiable(kernel: Kernel, values: Sequence[Any]) -> Any:
    """Return the results of ``record`` for a call with the kernel's own backward.

    Raises ``exc.NoPlaceInGraph`` for calls that write into their arguments, or return tensors that are not new.
    """
    given = flatten(kernel, values)
    outcome = outcome_of(kernel, given)
    made, places = outcome.effects.made, outcome.places
    if outcome.effects.written or len(made) != len(places) or any(each.base for each in made):
        raise exc.NoPlaceInGraph(
            kernel=kernel.name,
            why="it is to be differentiated, and writes into its arguments or returns views of other tensors",
            remedy="return tensors that the call has made, or decorate the function that calls it with torch.compiler.disable",
        )
    return _results(operator_for(kernel, given, outcome.effects, len(places)), given, outcome)


def _results(operator: Operator, given: Flattened, outcome: Outcome) -> Any:
    made = operator.overload(*given.leaves)
    tensors = (made,) if isinstance(made, torch.Tensor) else tuple(made or ())
    return unflatten(outcome.tree, [place.tensor(given.leaves, tensors) for place in outcome.places])


def custom_op(kernel: Kernel, values: Sequence[Any]) -> tuple[torch._ops.OpOverload, tuple[Any, ...]]:
    """Return the operator of such a call, and its arguments."""
    given = flatten(kernel, values)
    return operator_for(kernel, given, outcome_of(kernel, given).effects).overload, given.leaves


def _check_gradients(kernel: Kernel, given: Flattened, outcome: Outcome) -> None:
    """Refuse a call that writes into a tensor that requires a gradient: such an operator cannot have a backward."""
    written = outcome.effects.written
    if not written or not torch.is_grad_enabled():
        return
    for at, tensor in given.tensors.items():
        if tensor.requires_grad and at in written:
            what = "a leaf Variable that requires grad" if tensor.is_leaf else "which requires grad"
            raise exc.InPlaceOnGradient(kernel=kernel.name, name=given.names[at], what=what)
        if tensor.requires_grad:
            raise exc.NoGradient(kernel=kernel.name, name=given.names[at], remedies=remedies())


__all__ = ["custom_op", "record", "record_differentiable"]
