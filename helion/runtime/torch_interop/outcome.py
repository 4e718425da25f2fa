"""Results and effects of a call of a kernel, from its host code run on fake tensors, without a launch.

Sizes may be symbols. Conditions of the host code on them become guards of the graph, as for torch's own operators. No
other conditions do, except numbers that the kernel's code depends on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ... import exc
from ..._compiler.host.unlaunched import LAUNCHED, SOURCE_NAME, unlaunched
from ..._support.nested import map_nested, tensors_in
from ..call.signature import pick
from ..generated.sources import source_module
from .kernels import BoundKernel, Kernel
from .trees import Flattened, Leaf, unflatten

#: Placeholder for a size known only at run time, for binding a kernel to find the arguments it writes.
_UNKNOWN_SIZE = 4096


@dataclass(frozen=True)
class Made:
    """A tensor that an operator returns: the tensor leaf ``at`` of the results.

    With ``base`` it is all of its memory as a one-dimensional tensor, of which several results are views.
    """

    at: int
    base: bool


@dataclass(frozen=True)
class Effects:
    """Effects in an operator's schema: written leaves of the arguments, returned tensors, and randomness.

    Random means that two calls with the same arguments differ.
    """

    written: tuple[int, ...]
    made: tuple[Made, ...]
    random: bool


@dataclass(frozen=True)
class Step:
    """A view of a tensor: the operator that returns it, with ``Leaf(0)`` for the tensor, and the index of its result."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: int | None = None

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        results = self.function(*unflatten(self.args, [tensor]), **self.kwargs)
        view: torch.Tensor = results if self.result is None else results[self.result]
        return view


@dataclass(frozen=True)
class Place:
    """Source of a tensor of the results: argument leaf or made tensor ``of``, or the view of it that ``steps`` make."""

    argument: bool
    of: int
    steps: tuple[Step, ...]

    def tensor(self, leaves: Sequence[Any], made: Sequence[torch.Tensor]) -> torch.Tensor:
        found: torch.Tensor = leaves[self.of] if self.argument else made[self.of]
        for step in self.steps:
            found = step.of(found)
        return found


@dataclass(frozen=True)
class Outcome:
    """Outcome of a call.

    ``tree`` is the return value, with a ``Leaf`` for each of ``places``; ``made`` are fake tensors.
    """

    effects: Effects
    tree: Any
    places: tuple[Place, ...]
    made: tuple[torch.Tensor, ...]


def outcome_of(kernel: Kernel, given: Flattened) -> Outcome:
    """Return the outcome of a call.

    Raises ``exc.NoPlaceInGraph`` if results depend on data, and every error of the user's host code.
    """
    mode = detect_fake_mode(list(given.tensors.values())) or FakeTensorMode()
    with _untraced():
        with mode:
            leaves = _copies(given.leaves)
        arguments = unflatten(given.tree, leaves)
        bound = kernel.variant(_sample(kernel, arguments))
        for at in bound.specialized.values():
            _settle(pick(arguments, at))
        launches = _Launches()
        run = _host_function(bound, launches)
        watch = _Watch()
        before = {at: leaf._version for at, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
        with mode, watch, _data_dependence(kernel.name):
            results = run(*arguments)
        _check_containers(kernel.name, given.tree, arguments)
        launches.check(kernel.name, leaves, results)
        changed = {at for at, version in before.items() if leaves[at]._version != version}
        random = watch.found or any(op.kind.startswith("random") for op in _program(bound).walk())
        return _outcome(kernel.name, leaves, results, changed, launches.written, random, watch)


@contextlib.contextmanager
def _untraced() -> Iterator[None]:
    """Run the body with all recording modes disabled."""
    with temporarily_clear_interpreter_stack(), _disable_current_modes(), torch.no_grad():
        yield


@contextlib.contextmanager
def _data_dependence(kernel: str) -> Iterator[None]:
    try:
        yield
    except (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode) as error:
        raise exc.NoPlaceInGraph(
            kernel=kernel,
            why=f"its host code needs the data of a tensor ({str(error).splitlines()[0]})",
            remedy="decorate the function that calls it with torch.compiler.disable, or read the data outside and pass it",
        ) from error


# --- arguments --------------------------------------------------------------------------------------------------------


def _copies(leaves: Sequence[Any]) -> list[Any]:
    """Return fake tensors like those among ``leaves``, in new memory, with the same sharing of memory."""
    bases: dict[Any, torch.Tensor] = {}
    return [_copy(leaf, bases) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


def _copy(tensor: torch.Tensor, bases: dict[Any, torch.Tensor]) -> torch.Tensor:
    inner = tensor
    while isinstance(inner, FunctionalTensor) or torch._is_functional_tensor(inner):
        inner = torch._from_functional_tensor(inner.elem if isinstance(inner, FunctionalTensor) else inner)
    if torch._C._functorch.is_batchedtensor(inner):
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    storage = inner.untyped_storage()
    base = bases.get(storage._cdata)
    if base is None:
        count = storage.nbytes() // inner.element_size()
        base = bases[storage._cdata] = torch.empty((count,), dtype=inner.dtype, device=inner.device)
    typed = base if base.dtype == inner.dtype else base.view(inner.dtype)
    return typed.as_strided(inner.size(), inner.stride(), inner.storage_offset())


def _sample(kernel: Kernel, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments without symbols. If all sizes are compiled in, their values become guards of the graph."""
    number = _settle if kernel.settings.static_shapes else _hint
    mode = FakeTensorMode()

    def concrete(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            with mode:
                sizes, strides = map(number, value.size()), map(number, value.stride())
                made = torch.empty_strided(tuple(sizes), tuple(strides), dtype=value.dtype, device=value.device)
            for name in ("_dynamo_static_indices",):
                if hasattr(value, name):
                    setattr(made, name, getattr(value, name))
            return made
        return _hint(value)

    return map_nested(arguments, (torch.Tensor, torch.SymInt, torch.SymFloat), concrete)


def _settle(value: Any) -> Any:
    """Return the value of a symbol, which becomes a guard of the graph."""
    if isinstance(value, torch.SymInt):
        return int(value)
    return float(value) if isinstance(value, torch.SymFloat) else value


def _hint(value: Any) -> Any:
    """Return the value of a symbol in the current call, if known, else a placeholder."""
    if not isinstance(value, (torch.SymInt, torch.SymFloat)):
        return value
    known = value.node.maybe_as_int() if isinstance(value, torch.SymInt) else None
    if known is not None:
        return known
    if not value.node.has_hint():
        return _UNKNOWN_SIZE if isinstance(value, torch.SymInt) else 1.0
    return value.node.hint


# --- host code --------------------------------------------------------------------------------------------------------


def _program(bound: BoundKernel) -> Any:
    return bound.variant.analysis.program


def _host_function(bound: BoundKernel, launches: _Launches) -> Callable[..., Any]:
    analysis = bound.variant.analysis
    host, configs = analysis.program.host, bound.variant.kernel.configs
    sizes: Mapping[int, int] = {}
    values: Mapping[str, Any] = {}
    if host.registered or host.tunable_calls:
        fixed = configs[0] if len(configs) == 1 else analysis.default_config
        decisions = analysis.space.decode(analysis.full_config(bound.variant.config or fixed))
        sizes, values = decisions.sizes, decisions.values
    made = unlaunched(analysis.program, lambda block: sizes[block], values)
    namespace: dict[str, Any] = {LAUNCHED: launches}
    if made.reads_source:
        namespace[SOURCE_NAME] = source_module(host.source_module, host.device_source)
    text = "\n".join((*(each.line for each in made.imports), made.text))
    exec(compile(text, f"<host code of {host.name}>", "exec"), namespace)
    function: Callable[..., Any] = namespace[host.name]
    return function


class _Launches:
    """Replacement of the launches, which records the tensors that kernels access and those they write."""

    def __init__(self) -> None:
        self._accessed: list[torch.Tensor] = []
        self.written: list[torch.Tensor] = []

    def __call__(self, accessed: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> None:
        self._accessed += accessed
        self.written += written

    def check(self, kernel: str, leaves: Sequence[Any], results: Any) -> None:
        """Raise ``exc.NoPlaceInGraph`` for tensors that are neither arguments nor made by the call."""
        for tensor in (*self._accessed, *tensors_of(results)):
            if not isinstance(tensor, FakeTensor):
                shape = ", ".join(map(str, tensor.shape))
                raise exc.NoPlaceInGraph(
                    kernel=kernel,
                    why=f"it uses a global tensor of shape [{shape}], which the graph would not track",
                    remedy="make the tensor an argument of the kernel",
                )


class _Watch(TorchDispatchMode):
    """Mode that detects operators that draw random numbers, and records which tensors are views."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False
        self._views: dict[int, tuple[torch.Tensor, torch.Tensor, Step]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found = self.found or torch.Tag.nondeterministic_seeded in func.tags
        results = func(*args, **(kwargs or {}))
        if func.is_view and args and isinstance(args[0], torch.Tensor):
            several = isinstance(results, (tuple, list))
            for at, view in enumerate(results if several else [results]):
                step = Step(func, (Leaf(0), *args[1:]), kwargs or {}, at if several else None)
                self._views[id(view)] = (view, args[0], step)
        return results

    def origin(self, tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[Step, ...]]:
        """Return the tensor that another one is a view of, and the steps to it.

        A tensor that is no view is its own origin.
        """
        steps: list[Step] = []
        while id(tensor) in self._views:
            _, tensor, step = self._views[id(tensor)]
            steps.insert(0, step)
        return tensor, tuple(steps)


def _check_containers(kernel: str, before: Any, after: Any) -> None:
    if _shape_of(before) != _shape_of(after):
        raise exc.NoPlaceInGraph(
            kernel=kernel,
            why="its host code changes a list or dict among its arguments",
            remedy="return what is to be in it",
        )


def _shape_of(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_shape_of(item) for item in value]
    if isinstance(value, dict):
        return {key: _shape_of(item) for key, item in value.items()}
    return None


# --- results ----------------------------------------------------------------------------------------------------------


def tensors_of(results: Any) -> list[torch.Tensor]:
    """List the tensors among results, in order."""
    return list(tensors_in((results,)))


def _outcome(
    kernel: str,
    leaves: Sequence[Any],
    results: Any,
    changed: set[int],
    written: Sequence[torch.Tensor],
    random: bool,
    watch: _Watch,
) -> Outcome:
    arguments = {at: leaf for at, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
    touched = {_memory(leaves[at]) for at in changed} | {_memory(tensor) for tensor in written}
    found = tensors_of(results)
    made, places = _places(kernel, arguments, found, watch)
    effects = Effects(
        written=tuple(at for at, leaf in arguments.items() if _memory(leaf) in touched),
        made=tuple(each for each, _ in made),
        random=random,
    )
    numbers = iter(range(len(found)))
    tree = map_nested(results, torch.Tensor, lambda tensor: Leaf(next(numbers)))
    tree = map_nested(tree, (torch.SymInt, torch.SymFloat), _settle)
    return Outcome(effects, tree, tuple(places), tuple(tensor for _, tensor in made))


def _places(
    kernel: str, arguments: Mapping[int, torch.Tensor], found: Sequence[torch.Tensor], watch: _Watch
) -> tuple[list[tuple[Made, torch.Tensor]], list[Place]]:
    """Return the tensors that an operator returns, and the place of each result in these and in the arguments."""
    of_arguments = {_memory(tensor) for tensor in arguments.values()}
    shared: dict[int, list[torch.Tensor]] = {}
    for tensor in found:
        shared.setdefault(_memory(tensor), []).append(tensor)
    made: list[tuple[Made, torch.Tensor]] = []
    numbers: dict[int, int] = {}
    places: list[Place] = []
    for at, tensor in enumerate(found):
        origin, steps = watch.origin(tensor)
        key = _memory(tensor)
        if key in of_arguments:
            of = next((leaf for leaf, argument in arguments.items() if argument is origin), None)
            if of is None or any(step.function is torch.ops.aten.as_strided.default for step in steps):
                raise _no_view(kernel, "of an argument")
            places.append(Place(True, of, steps))
            continue
        group = shared[key]
        alone = all(other is group[0] for other in group)
        if key not in numbers:
            numbers[key] = len(made)
            made.append((Made(at, not alone), tensor if alone else base_of(tensor)))
        places.append(Place(False, numbers[key], () if alone else (*_of_base(kernel, origin), *steps)))
    return made, places


def _of_base(kernel: str, tensor: torch.Tensor) -> tuple[Step, ...]:
    """Return the steps that view ``base_of`` a tensor as the tensor, which fills its memory."""
    strides = [_hint(stride) for stride in tensor.stride()]
    order = sorted(range(tensor.dim()), key=lambda dim: -strides[dim])
    count = 1
    for dim in reversed(order):
        if tensor.size(dim) != 1 and tensor.stride(dim) != count:
            raise _no_view(kernel, "that leaves gaps in the memory of others")
        count = count * tensor.size(dim)
    if tensor.storage_offset() != 0 or count * tensor.element_size() != tensor.untyped_storage().nbytes():
        raise _no_view(kernel, "that leaves gaps in the memory of others")
    back = [order.index(dim) for dim in range(tensor.dim())]
    sizes = [tensor.size(dim) for dim in order]
    return (
        Step(torch.ops.aten.view.default, (Leaf(0), sizes), {}),
        Step(torch.ops.aten.permute.default, (Leaf(0), back), {}),
    )


def _no_view(kernel: str, which: str) -> exc.Base:
    return exc.NoPlaceInGraph(
        kernel=kernel,
        why=f"it returns a view {which} that it has not made with view, select, slice, permute or the like",
        remedy="return a copy",
    )


def base_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return all memory of a tensor as one dimension, in elements of its dtype."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.as_strided((count,), (1,), 0)


def _memory(tensor: torch.Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key


__all__ = ["Effects", "Made", "Outcome", "Place", "Step", "base_of", "outcome_of", "tensors_of"]
