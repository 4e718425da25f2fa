"""Run of a kernel's host code so that autograd records it, with the tensors that its launches read and write.

Host code is plain torch: views, casts and sums around the launches are differentiated by torch itself. A launch is one
step in between: the tensors that it reads end a part of torch's graph, and those that it writes begin another.
"""

from __future__ import annotations

import ast
import contextlib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from ... import exc
from ..._compiler.autodiff.memory import coverage
from ..._compiler.autodiff.transform import read_tensors, written_tensors
from ..._compiler.host.build import RUNTIME_NAME
from ..._compiler.host.program import LAUNCHER, HostProgram, KernelLaunch
from ..._compiler.ir.grammar import Program
from ..._compiler.pipeline import differentiable
from ..._support.syntax import parse
from ..generated import codecache
from ..variants.variant import Variant

_BEFORE, _AFTER = "_before_launch", "_after_launch"


Instead = Callable[[Mapping[int, torch.Tensor], Mapping[str, Any]], Mapping[str, torch.Tensor] | None]
"""A function that may run in place of a launch, with its tensors by number and its numbers by name. It returns what it
keeps, or None if the launch is to run."""


class Bound(Protocol):
    """Protocol of a bound kernel."""

    variant: Variant

    def to_code(self) -> str: ...


@dataclass(frozen=True)
class Step:
    """A recorded grid loop.

    It has the tensors it read, by number, and the tensors that autograd sees in place of the written ones. It also has
    the old values of written tensors, and numbers by name.
    """

    root: int
    reads: Mapping[int, torch.Tensor]
    written: Mapping[int, torch.Tensor]
    numbers: Mapping[str, Any]
    versions: Mapping[int, int]
    #: The nodes of torch's graph that the written tensors had right after the launch.
    nodes: Mapping[int, Any]
    #: The versions of the written tensors right after the launch.
    written_versions: Mapping[int, int]
    #: Tensors that a forward in place of the launch keeps for its backward, by name.
    kept: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @property
    def keeps_results(self) -> bool:
        """True if no written tensor has been overwritten since."""
        return all(tensor._version == self.written_versions[at] for at, tensor in self.written.items())

    def check_versions(self, kernel: str, program: Program) -> None:
        """Raise RuntimeError, as autograd does, if a tensor that was read has been overwritten since."""
        for at, tensor in self.reads.items():
            if tensor._version != self.versions[at]:
                raise RuntimeError(
                    f"one of the variables needed for the gradient of kernel {kernel!r} has been modified by an inplace "
                    f"operation: {program.tensors[at].name!r} is at version {tensor._version}, expected {self.versions[at]}"
                )


@dataclass
class Recording:
    """The steps of one call, and what it returned."""

    steps: list[Step] = field(default_factory=list)
    result: Any = None


@dataclass(frozen=True)
class _Place:
    """The grid loops of one launch, and the tensors that they name."""

    roots: tuple[int, ...]
    tensors: tuple[int, ...]


class Recorder:
    """Recorder that runs the host code of a variant with its config."""

    def __init__(self, variant: Variant) -> None:
        of = variant.specialized
        analysis = of.analysis
        self.name = of.kernel.name
        self.program = differentiable(analysis.traced)
        self.reads = tuple(read_tensors(self.program, at) for at in range(len(self.program.roots)))
        self.writes = tuple(written_tensors(self.program, at) for at in range(len(self.program.roots)))
        variant.ensure_config_exists(of.sample())
        assert variant.config is not None
        code = analysis.code(variant.config)
        module = codecache.load(code.text, self.name, of.executor.prepare)
        host = self.program.host
        captured = (name for names in host.captures.values() for name in names)
        self.numbers = frozenset((*host.symbols, *host.deferred_symbols, *captured))
        self.places = tuple(self._place(number) for number in range(len(code.host.launches)))
        self._run = _function(code.host, self.places, self.program, vars(module))
        self._launch = (self._run.__kwdefaults__ or {})[LAUNCHER]
        for number, place in enumerate(self.places):
            self._check_order(number, place)

    def _place(self, number: int) -> _Place:
        roots = tuple(at for at, root in enumerate(self.program.roots) if root.launch == number)
        used = dict.fromkeys(t for at in roots for t in (*self.reads[at], *self.writes[at]))
        return _Place(roots, tuple(used))

    def _check_order(self, number: int, place: _Place) -> None:
        """Refuse grid loops that read values between two writes of one launch: these values are not kept."""
        for later, root in enumerate(place.roots):
            for other in place.roots[:later]:
                again = set(self.writes[other]) & set(self.writes[root])
                if again:
                    name = self.program.tensors[min(again)].name
                    raise exc.AutodiffNotSupported(
                        what=f"a kernel that writes {name!r} in several grid loops",
                        remedy="give each its own output",
                    ).at(self.program.roots[root].location)

    def __call__(self, values: Sequence[Any], instead: Instead | None = None) -> Recording:
        """Run on arguments, some of which require a gradient. ``instead`` may run in place of the one launch of a program."""
        recording = Recording()
        before: dict[int, torch.Tensor] = {}
        kept: dict[str, torch.Tensor] = {}

        def before_launch(number: int, tensors: tuple[torch.Tensor, ...], variables: Mapping[str, Any]) -> None:
            before.clear()
            place = self.places[number]
            named = dict(zip(place.tensors, tensors, strict=True))
            for root in place.roots:
                for at in set(self.reads[root]) & set(self.writes[root]):
                    before[at] = named[at].clone()
                for at in self.writes[root]:
                    self._check_written(at, named[at], values)
            if instead is not None and len(self.places) == 1:
                with torch.no_grad():
                    kept.update(instead(named, self._numbers(variables)) or {})

        def after_launch(number: int, tensors: tuple[torch.Tensor, ...], variables: Mapping[str, Any]) -> None:
            place = self.places[number]
            named = dict(zip(place.tensors, tensors, strict=True))
            for root in place.roots:
                step = self._step(root, named, self._numbers(variables), before)
                recording.steps.append(replace(step, kept=dict(kept)))

        def launch(*args: Any, **options: Any) -> Any:
            if kept:
                return None
            with torch.no_grad():
                return self._launch(*(a.detach() if isinstance(a, torch.Tensor) else a for a in args), **options)

        with _autograd():
            recording.result = self._run(*values, **{LAUNCHER: launch, _BEFORE: before_launch, _AFTER: after_launch})
        return recording

    def _numbers(self, variables: Mapping[str, Any]) -> dict[str, int | float]:
        """Return the numbers of a launch among the variables of host code."""
        return {
            name: value for name, value in variables.items() if name in self.numbers and isinstance(value, (int, float))
        }

    def _check_written(self, at: int, tensor: torch.Tensor, values: Sequence[Any]) -> None:
        storages = {v.untyped_storage()._cdata for v in values if isinstance(v, torch.Tensor)}
        if tensor.untyped_storage()._cdata in storages:
            raise exc.AutodiffNotSupported(
                what=f"a kernel that writes into its argument {self.program.tensors[at].name!r}",
                remedy="allocate the result in host code and return it",
            )

    def _written(self, root: int, at: int, tensor: torch.Tensor) -> torch.Tensor:
        """Return a leaf of torch's graph that ``tensor``, or the value added to it, derives from."""
        # reading `grad_fn` comes first: it makes a view of a written tensor see the write
        wanted = tensor.grad_fn is not None or tensor.requires_grad
        how = coverage(self.program, root, at) if wanted else "all"
        if how == "added":
            leaf = torch.zeros_like(tensor, requires_grad=True)
            tensor.add_(leaf)
            return leaf
        if how == "part":
            raise exc.AutodiffNotSupported(
                what=f"a kernel that may leave a part of {self.program.tensors[at].name!r} as host code has computed it",
                remedy="write every element in the same store, choosing by torch.where",
            ).at(self.program.roots[root].location)
        leaf = tensor.detach().requires_grad_()
        tensor.copy_(leaf)
        return leaf

    def _step(
        self,
        root: int,
        named: Mapping[int, torch.Tensor],
        numbers: Mapping[str, Any],
        before: Mapping[int, torch.Tensor],
    ) -> Step:
        reads = {at: before.get(at, named[at]) for at in self.reads[root]}
        written, nodes = {}, {}
        for at in self.writes[root]:
            tensor = named[at]
            if not tensor.is_floating_point():
                continue
            with _autograd():
                written[at] = self._written(root, at, tensor)
            nodes[at] = tensor.grad_fn
        versions = {at: tensor._version for at, tensor in reads.items()}
        written_versions = {at: tensor._version for at, tensor in written.items()}
        return Step(root, reads, written, numbers, versions, nodes, written_versions)


_KEYS = torch._C.DispatchKey
_AUTOGRAD = (_KEYS.AutogradFunctionality, _KEYS.AutogradOther, _KEYS.AutogradNestedTensor)


@contextlib.contextmanager
def _autograd() -> Iterator[None]:
    """Record torch's graph, also in the implementation of an operator, for which torch turns autograd off."""
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    for key in _AUTOGRAD:
        excluded = excluded.remove(key)
    with torch._C._ForceDispatchKeyGuard(included, excluded), torch.enable_grad():
        yield


class _Runtime:
    """Return the functions that generated host code calls, without the one that reports writes to autograd.

    The recorder replaces that.
    """

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime

    def overwrites(self, kernel: str, names: tuple[str, ...], *tensors: torch.Tensor) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)


def _function(
    host: HostProgram, places: Sequence[_Place], program: Program, names: Mapping[str, Any]
) -> types.FunctionType:
    """Compile the host function with calls before and after its launches."""
    numbers: dict[int, int] = {}
    first: dict[int, KernelLaunch] = {}
    last: dict[int, KernelLaunch] = {}
    for at, launch in enumerate(host.launches):
        for node in (n for s in launch for n in ast.walk(s) if isinstance(n, KernelLaunch)):
            numbers[id(node)] = at
            first.setdefault(at, node)
            last[at] = node

    def noted(node: KernelLaunch) -> list[ast.stmt]:
        number = numbers[id(node)]
        made = [node.call()]
        if node is first[number]:
            made.insert(0, _note(_BEFORE, number, places[number], program))
        if node is last[number]:
            made.append(_note(_AFTER, number, places[number], program))
        return made

    arguments = host.arguments
    extra = [ast.arg(_BEFORE), ast.arg(_AFTER)]
    function = ast.FunctionDef(
        name=host.name,
        args=ast.arguments(
            posonlyargs=arguments.posonlyargs,
            args=arguments.args,
            kwonlyargs=[*arguments.kwonlyargs, *extra],
            kw_defaults=[*arguments.kw_defaults, None, None],
            defaults=arguments.defaults,
        ),
        body=host.statements(noted),
        decorator_list=[],
        lineno=0,
    )
    text = ast.unparse(ast.fix_missing_locations(ast.Module([function], [])))
    namespace = {**names, RUNTIME_NAME: _Runtime(names.get(RUNTIME_NAME))}
    exec(compile(text, f"<host code of {host.name}, recorded>", "exec"), namespace)
    made: types.FunctionType = namespace[host.name]
    return made


def _note(function: str, number: int, place: _Place, program: Program) -> ast.stmt:
    tensors = "".join(f"{program.tensors[t].source}, " for t in place.tensors)
    return parse(f"{function}({number}, ({tensors}), locals())").body[0]
