"""``kernel.differentiable()``: a kernel as a function with gradients for autograd."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ... import exc
from ..._compiler.autodiff.transform import Parameter, StagedBackward
from ..._support.lazy import lazy
from ..._support.nested import tensors_in
from ..._support.tracebacks import short_errors
from ..call.argument_checks import is_recorded
from .gradients import (
    Ahead,
    Differentiation,
    Direct,
    Kernel,
    differentiation,
    leaves,
    pulled_back,
    with_tensors,
)
from .recording import Recording

if TYPE_CHECKING:
    from . import calls as graph_calls
else:
    graph_calls = lazy("helion.runtime.torch_interop.calls")

#: Statements after which host code may do different things in the next call.
_BRANCHES = (ast.If, ast.IfExp, ast.For, ast.While, ast.Try, ast.With, ast.BoolOp, ast.Match, ast.comprehension)


class Differentiable:
    """A kernel whose results have gradients. It is called as the kernel is; see ``Kernel.differentiable``."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.__name__ = kernel.name
        self.__doc__ = kernel.fn.__doc__

    def __repr__(self) -> str:
        return f"<helion.Kernel {self.kernel.name}, differentiable>"

    @short_errors
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        kernel: Any = self.kernel
        values = kernel.normalize_args(*args, **kwargs)
        if is_recorded(kernel, values):
            return graph_calls.record_differentiable(kernel, values)
        tensors = tuple(tensors_in(values))
        if not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors)):
            return kernel(*values)
        call = _Call(differentiation(kernel, values), values)
        results = _Function.apply(call, *tensors)
        return with_tensors(call.result, results)


class _Call:
    """One call: its arguments, and the structure of its results."""

    def __init__(self, of: Differentiation, values: tuple[Any, ...]) -> None:
        self.of = of
        self.values = values
        self.result: Any = None


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        wanted = ctx.needs_input_grad[1:]
        ctx.of, ctx.wanted = call.of, wanted
        ctx.recording = ctx.direct = None
        direct = call.of.direct.get(wanted)
        if direct is not None:
            kept: dict[str, torch.Tensor] = {}
            if direct.ahead is None:
                call.result = call.of.launched(*with_tensors(call.values, (t.detach() for t in tensors)))
                outputs = tuple(tensors_in((call.result,)))
            else:
                made, kept = direct.ahead(call.values, tensors)
                call.result, outputs = direct.ahead.result, tuple(made)
            ctx.direct = direct
            _save(ctx, direct, call, {"tensor": tensors, "result": outputs, "kept": [*kept.values()]}, outputs)
        else:
            outputs = _recorded(ctx, call, wanted)
            ctx.save_for_backward(*tensors)
        ctx.mark_non_differentiable(*(o for o in outputs if not o.is_floating_point()))
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    @short_errors
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        with torch.no_grad():
            found = _backward(ctx, [None if g is None else g.detach() for g in gradients])
        if torch.is_grad_enabled():
            found = _once(ctx.of.kernel.name, found, [*ctx.saved_tensors, *(g for g in gradients if g is not None)])
        return (None, *found)


def _recorded(ctx: Any, call: _Call, wanted: tuple[bool, ...]) -> tuple[torch.Tensor, ...]:
    """Run a call, record its host code, and return the results."""
    of = call.of
    given, made = leaves(call.values, wanted)
    recording = ctx.recording = of.recorder(given, of.ahead)
    for step in recording.steps:
        of.backward(step)  # an operation without derivative is refused here, at the call
    outputs = list(tensors_in((recording.result,)))
    ctx.inputs, ctx.outputs = made, outputs
    if wanted not in of.direct:
        of.direct[wanted] = _direct(of, call.values, given, recording, outputs)
    call.result = recording.result
    return tuple(o.detach() for o in outputs)


def _backward(ctx: Any, gradients: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor | None, ...]:
    if ctx.direct is not None:
        return _called(ctx, gradients)
    asked = [t for t in ctx.inputs if t.requires_grad]
    given = [None if g is None or not o.requires_grad else g for g, o in zip(gradients, ctx.outputs, strict=True)]
    found = iter(pulled_back(ctx.of, ctx.recording, ctx.outputs, given, asked))
    return tuple(next(found) if t.requires_grad else None for t in ctx.inputs)


# --- calls without host code ---------------------------------------------------------------------------------------------


def _direct(
    of: Differentiation,
    values: tuple[Any, ...],
    given: tuple[Any, ...],
    recording: Recording,
    outputs: Sequence[torch.Tensor],
) -> Direct | None:
    """Return the direct call of the backward kernel, if host code only allocates the results."""
    function = of.program.host.function
    if len(recording.steps) != 1 or any(isinstance(node, _BRANCHES) for node in ast.walk(function)):
        return None
    (step,) = recording.steps
    kernel = of.backward(step)
    if kernel is None:
        return None
    flat = list(tensors_in(given))
    places = {id(tensor): at for at, tensor in enumerate(flat)}
    written = {}
    for at, node in step.nodes.items():
        same = [i for i, output in enumerate(outputs) if output.grad_fn is node]
        if len(same) != 1:
            return None
        written[at] = same[0]
    if sorted(written.values()) != [i for i, o in enumerate(outputs) if o.is_floating_point()]:
        return None
    parameters = list(of.kernel.signature.parameters)

    def source(parameter: Parameter) -> tuple[str, int] | None:
        """Return the source of a parameter; None if it is no argument, result or kept tensor."""
        if parameter.kind in ("gradient", "result", "written"):
            return parameter.kind, written[parameter.tensor]
        if parameter.kind == "kept":
            return parameter.kind, list(step.kept).index(parameter.name)
        if parameter.kind == "tensor":
            place = places.get(id(step.reads[parameter.tensor]))
            return None if place is None else (parameter.kind, place)
        symbol = of.program.host.symbols.get(parameter.number)
        known = symbol == parameter.number and parameter.number in parameters
        return (parameter.kind, parameters.index(parameter.number)) if known else None

    sources = [source(each) for each in kernel.of.parameters]
    targets = [places.get(id(step.reads[at])) for at in kernel.of.results]
    if None in sources or None in targets:
        return None
    direct = Direct(kernel, tuple(filter(None, sources)), tuple(at for at in targets if at is not None))
    if kernel.forward is None:
        return direct
    assert isinstance(kernel.of, StagedBackward) and kernel.of.forward is not None
    before = [source(each) for each in kernel.of.forward.parameters]
    if None in before or len(written) < len(outputs):
        return None
    shown = (torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device="meta") for x in outputs)
    result = with_tensors(recording.result, shown)
    ahead = Ahead(kernel.forward, tuple(filter(None, before)), result, kernel.of.forward.kept)
    return replace(direct, ahead=ahead)


def _save(
    ctx: Any,
    direct: Direct,
    call: _Call,
    kept: Mapping[str, Sequence[torch.Tensor]],
    outputs: Sequence[torch.Tensor],
) -> None:
    """Keep the arguments, results and others that the backward kernel needs, and no more."""
    ctx.save_for_backward(*(kept[kind][at] for kind, at in direct.sources if kind in kept))
    ctx.numbers = [call.values[at] for kind, at in direct.sources if kind == "number"]
    ctx.kinds = [(o.shape, o.dtype, o.device) for o in outputs]


def _called(ctx: Any, gradients: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor | None, ...]:
    direct: Direct = ctx.direct
    saved, numbers = iter(ctx.saved_tensors), iter(ctx.numbers)

    def argument(kind: str, at: int) -> Any:
        if kind in ("tensor", "result", "kept"):
            return next(saved).detach()
        if kind == "number":
            return next(numbers)
        gradient, (shape, dtype, device) = gradients[at], ctx.kinds[at]
        return gradient if gradient is not None else torch.zeros(shape, dtype=dtype, device=device)

    made = direct.kernel.kernel(*(argument(kind, at) for kind, at in direct.sources))
    results = dict(zip(direct.targets, made if isinstance(made, tuple) else (made,), strict=True))
    return tuple(results.get(at) if want else None for at, want in enumerate(ctx.wanted))


class _Once(torch.autograd.Function):
    """Compute gradients without double backward: the first ``count`` tensors, which depend on the others."""

    @staticmethod
    def forward(ctx: Any, kernel: str, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.kernel = kernel
        return tuple(g.view_as(g) for g in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise exc.AutodiffNotSupported(
            what=f"the gradients of kernel {ctx.kernel!r}", remedy="a kernel can be differentiated once"
        )


def _once(
    kernel: str, gradients: Sequence[torch.Tensor | None], sources: Sequence[torch.Tensor]
) -> tuple[torch.Tensor | None, ...]:
    given = [g for g in gradients if g is not None]
    made = iter(_Once.apply(kernel, len(given), *given, *sources))
    return tuple(None if g is None else next(made) for g in gradients)
