"""Checks of a kernel's arguments, and reports to autograd.

A kernel accesses memory by address and records nothing. Without checks that would silently give wrong results under
tracers, for views of negated memory, and for tensors that require a gradient. A call reports these cases by the
kernel's name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from ... import exc
from ..._shapes import CONCRETE_TENSORS
from ..._support import logs as _logging
from ..._support.nested import tensors_in
from ...backends import stub
from .definition import Definition

_KEY: Any = torch._C.DispatchKey
_PLAIN_DISPATCH = torch._C._disabled_torch_dispatch_impl

_FAKE = "torch.library.custom_op with register_fake"
#: Types of proxy tensors while torch records, by name, since importing them takes long.
_TRACED = frozenset(("FakeTensor", "FunctionalTensor"))
#: Dispatch keys of proxy tensors inside a transform: the name of the transform, and what a custom operator needs for
#: it.
_TRANSFORMS: tuple[tuple[Any, str, str], ...] = (
    (_KEY.FuncTorchBatched, "inside torch.vmap", "torch.library.custom_op with register_vmap"),
    (
        _KEY.FuncTorchGradWrapper,
        "inside torch.func.grad, vjp, jvp or the like",
        "a torch.autograd.Function with setup_context (torch refuses register_autograd of a custom operator there)",
    ),
    (
        _KEY.Functionalize,
        "inside torch.func.functionalize",
        "torch.library.custom_op, which names what it writes in mutates_args",
    ),
)
#: Transforms in which torch wraps every allocated tensor, with their index in the table above.
_WRAPPING: dict[Any, int] = {
    torch._C._functorch.TransformType.Grad: 1,
    torch._C._functorch.TransformType.Jvp: 1,
    torch._C._functorch.TransformType.Functionalize: 2,
}
#: Dispatch keys of tensors whose values differ from their memory: the description, and what to pass instead.
_KINDS: tuple[tuple[Any, str, str], ...] = (
    (_KEY.Negative, "a view with lazy negation (is_neg())", "pass {name}.resolve_neg()"),
    (_KEY.Conjugate, "a view with lazy conjugation (is_conj())", "pass {name}.resolve_conj()"),
    (_KEY.NestedTensor, "a nested tensor", "pass {name}.values() and {name}.offsets(), or to_padded_tensor(...)"),
    (_KEY.Quantized, "a quantized tensor", "pass {name}.int_repr() with its scale and zero point, or dequantize()"),
    (_KEY.ZeroTensor, "a tensor of zeros without memory", "pass torch.zeros_like({name})"),
)


def _bits(*keys: Any) -> int:
    bits = 0
    for key in keys:
        bits |= torch._C.DispatchKeySet(key).raw_repr()
    return bits


_UNUSUAL = tuple((_bits(key), what, remedy) for key, what, remedy in (*_TRANSFORMS, *_KINDS))
_KINDS_BITS = _bits(*(key for key, _, _ in _KINDS))
_ANY_UNUSUAL = _bits(*(key for key, _, _ in (*_TRANSFORMS, *_KINDS)))


def check_call(kernel: Definition, values: Sequence[Any]) -> bool:
    """Check all arguments of a call, in the order of the parameters, before any of them is used.

    Returns True if torch records the call, so that an operator must represent it: under FakeTensorMode,
    functionalization, make_fx, torch.export and torch.vmap, and with fake tensors.

    Warns once per kernel if a tensor requires a gradient that will not be computed. Raises ``exc.CudaInForkedProcess``.
    Raises ``exc.UnsupportedTracer`` under a tracer or transform of torch that would miss the kernel's effects. Raises
    ``exc.UnsupportedTensor`` for tensors that are more than memory with strides.
    """
    if _is_under_tracer(kernel):
        return _check_recorded(kernel, values)
    check_process(kernel, values)
    if kernel.usual_inputs.hold(values):
        return False
    wanted = None
    for name, tensor in _named(kernel, values):
        if type(tensor).__name__ in _TRACED:
            return _check_recorded(kernel, values)
        _check_tensor(kernel.name, name, tensor)
        if wanted is None and tensor.requires_grad:
            wanted = name
    if wanted is None:
        kernel.usual_inputs.learn(values)
    if wanted is not None and not kernel.warned_no_gradient and _is_recording():
        kernel.warned_no_gradient = True
        warning = exc.GradientNotRecorded(kernel=kernel.name, name=wanted, remedies=remedies())
        if type(warning).__name__ not in kernel.settings.ignore_warnings:
            _logging.say(f"WARNING[{type(warning).__name__}]: {warning}")
    return False


def launches_on_gpu(values: Sequence[Any]) -> bool:
    """Return whether a call launches on a GPU, or on the stub of one; other calls are interpreted."""
    return stub.active() or any(map(stub.on_gpu, tensors_in(values)))


def check_process(kernel: Definition, values: Sequence[Any]) -> None:
    """Raise ``exc.CudaInForkedProcess`` for tensors of a GPU where CUDA was initialized before this process was forked."""
    if torch.cuda._is_in_bad_fork() and any(map(stub.on_gpu, tensors_in(values))):
        raise exc.CudaInForkedProcess(kernel=kernel.name)


def is_recorded(kernel: Definition, values: Sequence[Any]) -> bool:
    """Return whether torch records operations on the arguments of a call.

    Raises the errors of ``check_call`` about tracers.
    """
    traced = _is_under_tracer(kernel) or any(type(tensor).__name__ in _TRACED for _, tensor in _named(kernel, values))
    return traced and _check_recorded(kernel, values)


def _is_under_tracer(kernel: Definition) -> bool:
    if torch._C._get_tracing_state() is not None:
        raise exc.UnsupportedTracer(kernel=kernel.name, where="inside torch.jit.trace", remedy=_FAKE)
    transform: Any = torch._C._functorch.peek_interpreter_stack()
    if transform is not None and transform.key() in _WRAPPING:
        _, where, remedy = _TRANSFORMS[_WRAPPING[transform.key()]]
        raise exc.UnsupportedTracer(kernel=kernel.name, where=where, remedy=remedy)
    return transform is not None or _is_traced()


def _named(kernel: Definition, values: Sequence[Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors among and inside the arguments, with the parameter's name."""
    for name, value in zip(kernel.signature.parameters, values, strict=False):
        if type(value) in CONCRETE_TENSORS:
            yield name, value
        elif not isinstance(value, (int, float, str, type(None))):
            yield from ((name, tensor) for tensor in tensors_in((value,), closures=True))


def _is_traced() -> bool:
    """Return whether a mode is active in this thread that records or replaces operators instead of running them."""
    if not torch._C._len_torch_dispatch_stack():
        return False
    modes = torch._C._TorchDispatchModeKey
    return any(torch._C._get_dispatch_mode(mode) is not None for mode in (modes.PROXY, modes.FUNCTIONAL, modes.FAKE))


def _check_recorded(kernel: Definition, values: Sequence[Any]) -> bool:
    """Refuse tensors that an operator cannot take; others may be fake ones, and those of a transform."""
    for name, tensor in _named(kernel, values):
        keys = torch._C._dispatch_keys(tensor).raw_repr()
        if keys & _KINDS_BITS:
            _refuse(kernel.name, name, keys)
        if type(tensor) not in CONCRETE_TENSORS and type(tensor).__name__ not in _TRACED:
            _check_subclass(kernel.name, name, tensor)
        _check_layout(kernel.name, name, tensor)
    return True


def _check_tensor(kernel: str, name: str, tensor: torch.Tensor) -> None:
    keys = torch._C._dispatch_keys(tensor).raw_repr()
    if keys & _ANY_UNUSUAL:
        _refuse(kernel, name, keys)
    if type(tensor) not in CONCRETE_TENSORS:
        _check_subclass(kernel, name, tensor)
    _check_layout(kernel, name, tensor)
    level = forward_ad._current_level
    if level >= 0 and torch._VF._unpack_dual(tensor, level=level)[1] is not None:
        where = f"in forward-mode AD (argument {name!r} is a dual tensor)"
        raise exc.UnsupportedTracer(kernel=kernel, where=where, remedy="a torch.autograd.Function with a jvp")


def _check_layout(kernel: str, name: str, tensor: torch.Tensor) -> None:
    if tensor.layout is not torch.strided:
        raise exc.UnsupportedTensor(
            kernel=kernel,
            name=name,
            what=f"a tensor with layout {tensor.layout}",
            remedy="kernels address memory by strides: pass its parts (crow_indices(), col_indices(), values() ...) or to_dense()",
        )


def check_launch(kernel: Any, args: Sequence[Any]) -> None:
    """Refuse tensors that host code passes to a launch but the device cannot represent.

    Raises ``exc.UnsupportedTensor`` for complex numbers, views with lazy negation, and subclasses that compute in their
    own way. Raises ``exc.UnsupportedTracer`` for tensors that were allocated inside a transform.
    """
    for at, tensor in enumerate(args):
        if not isinstance(tensor, torch.Tensor):
            continue
        keys = torch._C._dispatch_keys(tensor).raw_repr()
        if tensor.dtype.is_complex:
            what, remedy = f"a tensor of {tensor.dtype}", f"pass torch.view_as_real({kernel.arg_names[at]})"
            raise exc.UnsupportedTensor(
                kernel=_user_name(kernel),
                name=kernel.arg_names[at],
                what=what,
                remedy=f"{remedy}, pairs of real numbers",
            )
        if keys & _ANY_UNUSUAL:
            _refuse(_user_name(kernel), kernel.arg_names[at], keys)
        if type(tensor) not in CONCRETE_TENSORS:
            _check_subclass(_user_name(kernel), kernel.arg_names[at], tensor)


def check_bound(kernel: Definition, values: Sequence[Any]) -> None:
    """Raise ``exc.UnsupportedTensor`` for tensors that calls refuse too.

    These are subclasses that compute in their own way, except proxies for tensors without data.
    """
    for name, tensor in _named(kernel, values):
        if type(tensor) not in CONCRETE_TENSORS and type(tensor).__name__ not in _TRACED:
            _check_subclass(kernel.name, name, tensor)


def _user_name(kernel: Any) -> str:
    name: str = kernel.__name__
    return name.removeprefix("_helion_")


def _refuse(kernel: str, name: str, keys: int) -> None:
    what, remedy = next((what, remedy) for bits, what, remedy in _UNUSUAL if keys & bits)
    if keys & _bits(*(key for key, *_ in _TRANSFORMS)):
        raise exc.UnsupportedTracer(kernel=kernel, where=what, remedy=remedy)
    raise exc.UnsupportedTensor(kernel=kernel, name=name, what=what, remedy=remedy.format(name=name))


def _check_subclass(kernel: str, name: str, tensor: torch.Tensor) -> None:
    """Refuse subclasses that compute in their own way; those that only add attributes and methods are accepted."""
    kind = type(tensor)
    if kind.__torch_dispatch__ is _PLAIN_DISPATCH:
        return
    raise exc.UnsupportedTensor(
        kernel=kernel,
        name=name,
        what=f"a {kind.__name__}, a tensor subclass that computes in its own way",
        remedy="pass the plain tensors that it is made of (a DTensor's to_local()), or wrap the call in torch.library.custom_op",
    )


# --- autograd ------------------------------------------------------------------------------------------------------------


def _is_recording() -> bool:
    """Return whether autograd would record a torch operation here.

    Inside the implementation of an operator it would not.
    """
    return torch.is_grad_enabled() and not torch._C._dispatch_tls_is_dispatch_key_excluded(_KEY.AutogradOther)


def remedies() -> str:
    """Name the ways to give a kernel a backward."""
    names = ["kernel.differentiable()", "torch.autograd.Function", "torch.library.custom_op and register_autograd"]
    experimental = getattr(sys.modules[__package__.partition(".")[0]], "experimental", None)
    if hasattr(experimental, "backward"):
        names.append("helion.experimental.backward")
    return " or ".join((", ".join(names[:-1]), names[-1]))


# in C, because every call of a kernel that writes into its arguments runs it (measurement ``host_calls``)
_any_requires_grad = torch._C._any_requires_grad
_increment_version: Callable[[Sequence[torch.Tensor]], None] = getattr(
    torch._C, "_increment_version", torch.autograd.graph.increment_version
)


def overwrites(kernel: str, names: tuple[str, ...], *tensors: torch.Tensor) -> None:
    """Tell autograd that ``kernel`` is about to write into ``tensors``, ``names`` in the user's code.

    Their version counters increase, so that a backward which has saved one of them raises instead of using the
    overwritten values. Raises ``exc.InPlaceOnGradient`` if autograd would have to record the write.
    """
    if _any_requires_grad(*tensors) and _is_recording():
        name, tensor = next((n, t) for n, t in zip(names, tensors, strict=True) if t.requires_grad)
        what = "a leaf Variable that requires grad" if tensor.is_leaf else "which requires grad"
        raise exc.InPlaceOnGradient(kernel=kernel, name=name, what=what)
    _increment_version(tensors)


__all__ = ["check_bound", "check_call", "check_launch", "is_recorded", "overwrites", "remedies"]
