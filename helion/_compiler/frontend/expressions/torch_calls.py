"""Calls of torch functions."""

from __future__ import annotations

import types
from typing import Any

import torch

from .... import exc
from ...._shapes import NeedsValue
from ..host import tensors as host_tensors
from ..host_uses import used_by
from ..purity import is_pure, kind_of_result
from ..runtime_values import opaques
from ..torch.functions import DATA_DEPENDENT
from ..tracer import torch_name
from ..values import HostTensorValue, Tile
from ..walk.kinds import any_abstract, tensors_in
from ..walk.scope import Scope
from .functions import call_user
from .run_time import runtime_number, try_settle, unknown

_TORCH_FACTORIES = (
    torch.zeros, torch.ones, torch.full, torch.empty, torch.arange, torch.rand, torch.randn, torch.tensor, torch.eye, torch.linspace, torch.scalar_tensor
)  # fmt: skip


#: Prefixes of functions that change torch's global state, such as torch.manual_seed and torch.set_default_dtype.
_CHANGES = ("manual_seed", "seed", "set_", "use_")


def call_torch(s: Scope, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a torch function: by its rule on abstract values, else directly."""
    if not s.t.on_device:
        return _call_torch_on_host(s, function, args, kwargs)
    if not (any_abstract((args, kwargs)) or function in _TORCH_FACTORIES):
        if getattr(function, "__name__", "").startswith(_CHANGES):
            raise exc.NotAllowedOnDevice(what=f"{torch_name(function)}, which changes the global state of torch,")
        result = function(*args, **kwargs)  # torch.finfo, torch.promote_types ...
        if isinstance(result, torch.Tensor):
            raise exc.UnsupportedTorchFunction(name=torch_name(function), remedy="; make the tensor in host code")
        return result
    if function in DATA_DEPENDENT:
        raise exc.DataDependentOutputShapeNotSupported(name=torch_name(function))
    for value in (*args, *kwargs.values()):
        if isinstance(value, HostTensorValue):
            raise used_by(value, torch_name(function))
        if isinstance(value, Tile) and function not in _TORCH_FACTORIES and not _is_shape_function(function):
            raise exc.IncorrectTileUsage(how=f"as a tensor, by {torch_name(function)}")
    if _is_plain_python(s, function):
        return call_user(s, function, args, kwargs)
    return s.t.torch_call(function, args, kwargs)


def _is_plain_python(s: Scope, function: Any) -> bool:
    """Return whether a torch function is plain Python without a rule, such as masks and scores of flex_attention.

    Such a function is traced like a user function.
    """
    module = getattr(function, "__module__", None) or ""
    plain = isinstance(function, types.FunctionType) and module.startswith("torch.nn.attention")
    return plain and function not in s.t.rules and not _asks_its_arguments(function)


def _asks_its_arguments(function: types.FunctionType) -> bool:
    """Return whether a function dispatches to ``__torch_function__`` of its arguments."""
    return "handle_torch_function" in function.__code__.co_names


def _call_torch_on_host(s: Scope, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    waits = next(opaques((args, kwargs)), None)
    kind = kind_of_result(function)
    if kind is not None:
        s.t.world.effects += 1
        return runtime_number(s, kind)
    if waits is not None:
        return unknown(s, function, (args, kwargs), waits.error)
    if is_pure(function) and not tensors_in((args, kwargs)):
        if function is torch.get_default_dtype:
            return s.t.world.default_dtype()
        settled = try_settle(s, (args, kwargs))
        return unknown(s, function, ()) if settled is None else function(*settled[0], **settled[1])
    if any_abstract((args, kwargs)) or function in _TORCH_FACTORIES or _is_tensor_factory(function):
        try:
            return host_tensors.call(s.t, function, args, kwargs)
        except NeedsValue:
            settled = try_settle(s, (args, kwargs))
            if settled is None:
                raise
            return host_tensors.call(s.t, function, *settled)
    return unknown(s, function, (args, kwargs))


def _is_tensor_factory(function: Any) -> bool:
    """Return whether a torch function makes tensors from numbers only."""
    name = getattr(function, "__name__", "")
    return isinstance(function, types.BuiltinFunctionType) and hasattr(torch._C._VariableFunctions, name)


def is_torch_function(function: Any) -> bool:
    """Return whether a callable is torch's own, methods of tensors included."""
    if isinstance(function, (type(torch.Tensor.exp), types.BuiltinFunctionType)) and not _plain_builtin(function):
        return True
    return (getattr(function, "__module__", None) or "").split(".")[0] == "torch" and not isinstance(function, type)


def _plain_builtin(function: Any) -> bool:
    module = getattr(function, "__module__", None)
    owner = getattr(function, "__objclass__", None)
    if owner is not None:
        return not owner.__module__.startswith("torch")
    return not (module or type(getattr(function, "__self__", None)).__name__).startswith("torch")


def _is_shape_function(function: Any) -> bool:
    name = getattr(function, "__name__", "")
    return name in ("view", "reshape", "expand", "broadcast_to", "new_zeros", "new_full", "layer_norm", "rms_norm")
