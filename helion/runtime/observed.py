"""Launches where the host code made other tensors than the compiler expected.

The host statements have run, and run once. The kernel is analysed anew for what they have made, and what the resulting
module has for this launch runs on the names they have bound.
"""

from __future__ import annotations

import ast
import builtins
import functools
import textwrap
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from .. import exc, pipeline
from .._compiler.context import Observed
from .._compiler.ir.grammar import Check
from .._shapes import dtype_name
from ..config import Config
from . import codecache
from .modelled import Modelled

if TYPE_CHECKING:
    from .bound import BoundKernel

Names = Mapping[str, Any]
#: Launches for other tensors that a bound kernel keeps before it forgets them all.
_KEPT = 64


def otherwise(bound: BoundKernel, config: Config, number: int | None, names: Any) -> Any:
    """Launch ``number`` of a bound kernel's host code, whose local ``names`` hold other tensors than expected; or, with
    no number, the call with the arguments ``names``, which are of another class than those it was bound for.

    Raises ``exc.BoundToOtherArguments`` or ``exc.UnexpectedHostTensor`` where there is no code that is right for them.
    """
    if number is None:
        return _bound_anew(bound, config, names)
    checks = bound._analysis.program.host.checks[number]
    tensors = {check.made: _value(bound, config, check, names) for check in checks}
    for check in checks:
        _refuse_elsewhere(bound, check, tensors[check.made], names)
    seen = {made: _observed(tensor) for made, tensor in tensors.items()}
    key = (config, number, *seen.items())
    launch = bound._observed.get(key)
    if launch is None:
        with bound._lock:
            launch = bound._observed.get(key) or _compiled(bound, config, number, seen, names)
            if len(bound._observed) >= _KEPT:
                bound._observed.clear()
            bound._observed[key] = launch
    launch(names)
    return None


def _bound_anew(bound: BoundKernel, config: Config, args: tuple[Any, ...]) -> Any:
    other = bound.kernel.bind(args, target=bound.target)
    if other is bound:
        raise exc.InternalError(step="launch", reason="arguments of the key it was bound for are of another class")
    return other.compile_config(config)(*args)


def _value(bound: BoundKernel, config: Config, check: Check, names: Names) -> Any:
    return eval(check.source, bound.compile_config(config).__globals__, dict(names))


def _observed(tensor: torch.Tensor) -> Observed:
    return Observed(dtype=tensor.dtype, shape=tuple(tensor.shape), strides=tuple(tensor.stride()))


def _refuse_elsewhere(bound: BoundKernel, check: Check, tensor: Any, names: Names) -> None:
    """Raises for what no analysis helps with: something else than a tensor, or one on another device."""
    reference = names.get(bound._analysis.program.host.reference)
    if not isinstance(tensor, torch.Tensor):
        raise _unexpected(bound, check, f"it is a {type(tensor).__name__}")
    as_it_is = Modelled(
        dtype_name(tensor.dtype),
        tuple(tensor.shape),
        tuple(tensor.stride()),
        None if check.device is None else str(check.device),
    )
    other = as_it_is.differs(tensor, reference)
    if other:
        raise _unexpected(bound, check, other)


def _unexpected(bound: BoundKernel, check: Check, how: str) -> exc.Base:
    return exc.UnexpectedHostTensor(kernel=bound.kernel.name, name=check.source, how=how)


def _arguments(bound: BoundKernel, names: Names) -> tuple[Any, ...] | None:
    """Arguments of the key that a kernel is bound for: those of the call, if the host code has left them as they were, or
    the ones it was bound for, if they are still there; otherwise tensors like those."""
    kernel, reference = bound.kernel, names.get(bound._analysis.program.host.reference)
    of_call = tuple(names.get(name) for name in kernel.signature.parameters)
    remembered = bound._sample()
    device = getattr(reference, "device", torch.device("cpu"))
    for found in (of_call, remembered, tuple(_on(device, value) for value in remembered)):
        try:
            fits = kernel.arguments_key(found) == bound._key and bound.has_numbers_of(found)
        except (TypeError, AttributeError, LookupError):  # a variable holds something else by now
            continue
        if fits:
            return found
    return None


def _on(device: torch.device, value: Any) -> Any:
    """A tensor that is gone, with memory again."""
    if not isinstance(value, torch.Tensor) or value.device.type != "meta":
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)


def _compiled(
    bound: BoundKernel, config: Config, number: int, seen: Mapping[str, Observed], names: Names
) -> Callable[[Names], None]:
    """What launches for tensors as seen: a function of the names of the host code."""
    kernel, sample = bound.kernel, _arguments(bound, names)
    if sample is None:  # the host code has changed their sizes in place
        raise _differs(bound, number)
    arguments = dict(zip(kernel.signature.parameters, sample, strict=True))
    analysis = pipeline.analyse(
        kernel.fn, kernel.name, arguments, kernel.settings, bound.target, kernel._constants, seen
    )
    try:
        chosen = analysis.space.normalize(config)
    except exc.InvalidConfig:
        chosen = analysis.default_config
    code = analysis.code(chosen)
    module = codecache.load(code.text, kernel.name, bound.executor.prepare)
    loaded = getattr(module, kernel.name)
    statement = code.host.checked_launch(number)
    if statement is None:
        raise _differs(bound, number)
    needed = _free_names(statement, vars(module))
    sources = analysis.program.host.symbols
    run = _function(statement, needed, vars(module))
    launcher = bound.executor.launcher((loaded.__kwdefaults__ or {})["_launcher"], bound.target)

    def launch(names: Names) -> None:
        given = {"_launcher": launcher, "_otherwise": functools.partial(_refuse, bound)}
        for name in needed:
            if name not in given:
                given[name] = _named(bound, name, names, sources, vars(module))
        run(**given)

    return launch


def _refuse(bound: BoundKernel, number: int, names: Any) -> NoReturn:
    raise _differs(bound, number)


def _differs(bound: BoundKernel, number: int) -> exc.Base:
    check = bound._analysis.program.host.checks[number][0]
    return _unexpected(bound, check, "with what it is the host code goes another way")


def _named(bound: BoundKernel, name: str, names: Names, sources: Mapping[str, str], namespace: dict[str, Any]) -> Any:
    """What a name of the launch stands for: a local of the host code, or a number of the arguments."""
    if name in names:
        return names[name]
    if name in sources:
        return eval(sources[name], namespace, dict(names))
    raise exc.UnexpectedHostTensor(kernel=bound.kernel.name, name=name, how="the launch would need it")


def _free_names(statement: ast.stmt, namespace: Mapping[str, Any]) -> tuple[str, ...]:
    """Names that a statement reads and neither it nor the module binds."""
    names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
    stored = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    read = dict.fromkeys(node.id for node in names if node.id not in stored)
    return tuple(n for n in read if n not in namespace and not hasattr(builtins, n))


def _function(statement: ast.stmt, parameters: tuple[str, ...], namespace: dict[str, Any]) -> Callable[..., None]:
    body = textwrap.indent(ast.unparse(statement), "    ")
    found: dict[str, Any] = {}
    exec(compile(f"def launch({', '.join(parameters)}):\n{body}", "<helion launch>", "exec"), namespace, found)
    launch: Callable[..., None] = found["launch"]
    return launch


__all__ = ["otherwise"]
