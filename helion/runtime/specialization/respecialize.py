"""Launches if the host code made other tensors than the compiler expected.

The host statements have run, and run once. The kernel is analyzed again for the tensors they made. The new module's
code for this launch then runs on the names they bound.
"""

from __future__ import annotations

import ast
import builtins
import functools
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch

from ... import exc, pipeline
from ..._compiler.context import Observed
from ..._compiler.ir.host_module import Check
from ..._shapes import Expr, dtype_name
from ..._support.locks import new_lock
from ...config import Config
from ..generated import codecache
from ..generated.result_guards import ExpectedTensor
from .specialized import Specialized

Names = Mapping[str, Any]
#: Function that runs a config on arguments that belong to another bound kernel.
Rebind = Callable[[tuple[Any, ...], Config], Any]
#: Launches for other tensors that a config keeps before it drops them all.
_KEPT = 64


class UnexpectedTensors:
    """Replacement for a launch of a loaded config.

    It is called with the number of the launch and the host code's local names, if tensors differ from the expected
    ones. Without a number, it is called with arguments of another class than the bound one.
    """

    def __init__(self, bound: Specialized, config: Config, module: dict[str, Any], rebind: Rebind) -> None:
        self._bound = bound
        self._config = config
        self._module = module
        self._rebind = rebind
        self._lock = new_lock()
        self._launches: dict[Any, Callable[[Names], None]] = {}  # by number and what the host code made

    def __call__(self, number: int | None, names: Any) -> Any:
        """Launch for these tensors.

        Raises ``exc.BoundToOtherArguments`` or ``exc.UnexpectedHostTensor`` if no code is valid for them.
        """
        if number is None:
            return self._rebind(names, self._config)
        bound = self._bound
        host = bound.analysis.program.host
        checks = host.checks[number]
        tensors = {check.made: eval(check.source, self._module, dict(names)) for check in checks}
        for check in checks:
            _refuse_elsewhere(bound, check, tensors[check.made], names)
        seen = {made: _observed(tensor) for made, tensor in tensors.items()}
        values = functools.partial(_value, bound, names, self._module)
        key = (number, *(each.holds(values) for each in host.narrow[number]), *seen.items())
        launch = self._launches.get(key)
        if launch is None:
            with self._lock:
                launch = self._launches.get(key) or _compiled(bound, self._config, number, seen, names)
                if len(self._launches) >= _KEPT:
                    self._launches.clear()
                self._launches[key] = launch
        launch(names)
        return None


def _observed(tensor: torch.Tensor) -> Observed:
    return Observed(dtype=tensor.dtype, shape=tuple(tensor.shape), strides=tuple(tensor.stride()))


def _refuse_elsewhere(bound: Specialized, check: Check, tensor: Any, names: Names) -> None:
    """Raise an error if a new analysis cannot help: for an object that is no tensor, or a tensor on another device."""
    reference = names.get(bound.analysis.program.host.reference)
    if not isinstance(tensor, torch.Tensor):
        raise _unexpected(bound, check, f"it is a {type(tensor).__name__}")
    as_it_is = ExpectedTensor(
        dtype_name(tensor.dtype),
        tuple(tensor.shape),
        tuple(tensor.stride()),
        None if check.device is None else str(check.device),
    )
    other = as_it_is.differs(tensor, reference)
    if other:
        raise _unexpected(bound, check, other)


def _unexpected(bound: Specialized, check: Check, how: str) -> exc.Base:
    return exc.UnexpectedHostTensor(kernel=bound.kernel.name, name=check.source, how=how)


def _arguments(bound: Specialized, names: Names) -> tuple[Any, ...] | None:
    """Return arguments of the key that a kernel is bound for.

    These are the call's arguments if the host code left them unchanged. Otherwise they are those it was bound for, if
    they still exist, or tensors like those.
    """
    kernel, reference = bound.kernel, names.get(bound.analysis.program.host.reference)
    of_call = tuple(names.get(name) for name in kernel.signature.parameters)
    remembered = bound.sample()
    device = getattr(reference, "device", torch.device("cpu"))
    for found in (of_call, remembered, tuple(_on(device, value) for value in remembered)):
        try:
            fits = bound.has_numbers_of(found)
            fits = fits and (kernel.arguments_key(found) == bound.key or bound.serves(found))
        except (TypeError, AttributeError, LookupError):  # a variable holds something else by now
            continue
        if fits:
            return found
    return None


def _on(device: torch.device, value: Any) -> Any:
    """Return a tensor that no longer exists, with new memory."""
    if not isinstance(value, torch.Tensor) or value.device.type != "meta":
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)


def _compiled(
    bound: Specialized, config: Config, number: int, seen: Mapping[str, Observed], names: Names
) -> Callable[[Names], None]:
    """Return the launch for the observed tensors, as a function of the names of the host code."""
    kernel, sample = bound.kernel, _arguments(bound, names)
    if sample is None:  # the host code has changed their sizes in place
        raise _differs(bound, number)
    arguments = dict(zip(kernel.signature.parameters, sample, strict=True))
    analysis = pipeline.analyse(
        *(kernel.fn, kernel.name, arguments, kernel.settings, bound.target, kernel.constants, seen),
        backend=bound.analysis.backend.name,
    )
    try:
        chosen = analysis.space.normalize(config)
    except exc.InvalidConfig:
        chosen = analysis.default_config
    code = analysis.code(chosen)
    module = codecache.load(code.text, kernel.name, bound.executor.prepare)
    loaded = getattr(module, kernel.name)
    statement = code.host.checked_launch(number)
    if statement is None and bound.analysis.program.host.narrow[number]:  # in 64 bits, which need no check
        statement = code.host.launch(number)
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
        run(**{name: given[name] for name in needed})

    return launch


def _refuse(bound: Specialized, number: int, names: Any) -> NoReturn:
    raise _differs(bound, number)


def _differs(bound: Specialized, number: int) -> exc.Base:
    checks = bound.analysis.program.host.checks[number]
    if not checks:
        return exc.InvalidAPIUsage(
            f"Kernel {bound.kernel.name!r} computes with integers that may not fit int32 in this call; give it index_dtype=torch.int64."
        )
    check = checks[0]
    return _unexpected(bound, check, "with its values the host code takes another path")


def _named(bound: Specialized, name: str, names: Names, sources: Mapping[str, str], namespace: dict[str, Any]) -> Any:
    """Return the value of a name of the launch: a local of the host code, or a number of the arguments."""
    if name in names:
        return names[name]
    if name in sources:
        return eval(sources[name], namespace, dict(names))
    raise exc.UnexpectedHostTensor(kernel=bound.kernel.name, name=name, how="the launch would need it")


def _value(bound: Specialized, names: Names, namespace: dict[str, Any], leaf: Expr) -> Any:
    """Return the value of a leaf of a number of a launch."""
    if leaf.op != "host":
        return leaf.hint
    deferred = bound.analysis.program.host.deferred_symbols
    if leaf.args[0] in deferred:
        return eval(deferred[leaf.args[0]], namespace, dict(names))
    return _named(bound, leaf.args[0], names, bound.analysis.program.host.symbols, namespace)


def _free_names(statement: ast.stmt, namespace: Mapping[str, Any]) -> tuple[str, ...]:
    """List the names that a statement reads and neither it nor the module binds."""
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


__all__ = ["Rebind", "UnexpectedTensors"]
