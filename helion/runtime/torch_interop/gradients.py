"""Gradients of kernels: backward kernels, made once per specialization, and their connection to autograd."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import linecache
import types
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch

from ... import exc
from ..._compiler.autodiff.adjoint import DIFFERENTIABLE
from ..._compiler.autodiff.transform import Backward, StagedBackward, check_accesses, differentiate, read_tensors
from ..._compiler.ir.grammar import Program
from ..._compiler.pipeline import differentiable
from ..._support.locks import new_lock
from ..._support.nested import map_nested, tensors_in
from ...backends import BACKENDS, GENERAL
from ...config import Config
from ...settings import RefMode, Settings
from ..generated.sources import forget_source
from ..variants.variant import Variant
from .recording import Bound, Recorder, Recording, Step

#: First lines of a module with backward kernels.
_IMPORTS = ("import torch", "", "import helion", "import helion.language as hl")
_NAME = "backward_kernel"
_NAMES = itertools.count()
_MADE = new_lock()
_OF_ANY_SIZE: weakref.WeakValueDictionary[tuple[Any, ...], BackwardKernel] = weakref.WeakValueDictionary()
"""Backward kernels that serve any sizes, by function, decorator and what was derived."""


class Kernel(Protocol):
    """Protocol of a kernel."""

    name: str
    fn: types.FunctionType
    configs: list[Config]
    settings: Settings
    key: Callable[..., Hashable] | None
    signature: inspect.Signature
    default_printed: bool
    printed_warnings: set[str]
    static_twin: Any

    @property
    def __call__(self) -> Callable[..., Any]: ...
    def normalize_args(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]: ...
    def bind(self, args: Sequence[Any]) -> Bound: ...
    def autotune(self, args: Sequence[Any]) -> Config: ...


# --- backward kernels ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BackwardKernel:
    """The backward of one grid loop, ready to run."""

    root: int
    of: Backward | StagedBackward
    kernel: Kernel
    """A kernel, or with a ``StagedBackward`` a function of several."""
    text: str
    forward: Kernel | None = None
    """A kernel that runs in place of the program's."""

    def run_forward(self, named: Mapping[int, torch.Tensor], numbers: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Run the forward on the tensors and numbers of a launch, and return what it keeps by name."""
        assert isinstance(self.of, StagedBackward) and self.of.forward is not None and self.forward is not None
        given = (
            numbers[each.number] if each.kind == "number" else named[each.tensor].detach()
            for each in self.of.forward.parameters
        )
        return named_results(self.of.forward.kept, self.forward(*given))

    def arguments(self, step: Step, gradients: Mapping[int, torch.Tensor]) -> tuple[Any, ...]:
        """Return the arguments for a recorded grid loop and the gradients of its outputs."""
        found: list[Any] = []
        for parameter in self.of.parameters:
            if parameter.kind == "gradient":
                found.append(gradients[parameter.tensor])
            elif parameter.kind == "tensor":
                found.append(step.reads[parameter.tensor].detach())
            elif parameter.kind == "result":
                if not step.keeps_results:
                    raise RuntimeError(
                        "a result of a kernel that its gradient is computed from has been modified by an"
                        " inplace operation; clone it before"
                    )
                found.append(step.written[parameter.tensor].detach())
            elif parameter.kind == "kept":
                found.append(step.kept[parameter.name])
            elif parameter.number in step.numbers:
                found.append(step.numbers[parameter.number])
            else:
                raise exc.AutodiffNotSupported(
                    what=f"a kernel that depends on {parameter.number!r}, a number of its host code that no launch takes",
                    remedy="pass it as an argument",
                )
        return tuple(found)

    def __call__(self, step: Step, gradients: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """Compute the gradients of the grid loop's inputs, by number of the tensor."""
        return named_results(self.of.results, self.kernel(*self.arguments(step, gradients)))


Name = TypeVar("Name", int, str)


def named_results(names: Sequence[Name], made: Any) -> dict[Name, torch.Tensor]:
    """Return the results of a function by name."""
    return dict(zip(names, made if isinstance(made, tuple) else (made,), strict=True))


def _decorator(settings: Settings, any_size: bool) -> str:
    """Return the decorator of a backward kernel, with the settings that change results or code."""
    options = [f"static_shapes={not any_size}", f"dot_precision={settings.dot_precision!r}"]
    if settings.index_dtype_name != "auto":
        options.append(f"index_dtype=torch.{settings.index_dtype_name}")
    if settings.backend is not None:  # a backend that supports a kernel may not support its backward
        options.append(f"backend={settings.backend if settings.backend == GENERAL else 'auto'!r}")
    options.append("ignore_warnings=[helion.exc.TensorOperationInWrapper]")
    return f"@helion.kernel({', '.join(options)})"


def _load(kernel: Kernel, backward: Backward | StagedBackward, name: str, root: int) -> BackwardKernel:
    """Run the source of a backward kernel as a module of its own. One that serves any sizes is loaded once."""
    any_size = isinstance(backward, StagedBackward) and backward.any_size
    decorator = _decorator(kernel.settings, any_size)
    key = (kernel.fn, decorator, backward)
    found = _OF_ANY_SIZE.get(key) if any_size else None
    if found is not None:
        return found
    lines = [decorator, *backward.lines]
    if isinstance(backward, StagedBackward):
        before = backward.kernels if backward.forward is None else (backward.forward.lines, *backward.kernels)
        kernels = ([decorator, *each, "", ""] for each in before)
        lines = [*itertools.chain.from_iterable(kernels), *backward.lines]
    text = "\n".join([*_IMPORTS, "", "", *lines, ""])
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    file = f"<helion: {name} of {kernel.name}, {digest}-{next(_NAMES)}>"
    # entries without a time are never compared with a file
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {"__name__": f"helion_{name}_of_{kernel.name}_{digest}"}
    exec(compile(text, file, "exec"), namespace)
    made: Kernel = namespace[name]
    for each in namespace.values():
        if getattr(each, "_is_helion_kernel", False):
            each.default_printed = True
    forward = backward.forward if isinstance(backward, StagedBackward) else None
    loaded = BackwardKernel(
        root, backward, made, "\n".join(lines) + "\n", None if forward is None else namespace[forward.name]
    )
    weakref.finalize(loaded, _release, namespace["__name__"], file)
    if any_size:
        _OF_ANY_SIZE[key] = loaded
    return loaded


def _release(module: str, file: str) -> None:
    """Forget the source of a backward kernel that is gone."""
    linecache.cache.pop(file, None)
    forget_source(module, file)


# --- what a kernel has, per specialization -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ahead:
    """A forward kernel that a call runs in place of its own, by the sources ``(kind, position)`` of its parameters.

    ``result`` is what the call returns, with tensors without memory, and ``kept`` the names of what the kernel returns.
    """

    kernel: Kernel
    sources: tuple[tuple[str, int], ...]
    result: Any
    kept: tuple[str, ...]

    def __call__(
        self, values: Sequence[Any], tensors: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
        """Return new results, and what is kept with them."""
        shown = tensors_in((self.result,))
        device = tensors[0].device
        results = [torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=device) for x in shown]
        of_kinds: dict[str, Sequence[Any]] = {"tensor": tensors, "written": results, "number": values}
        given = (of_kinds[kind][at] for kind, at in self.sources)
        made = self.kernel(*(each.detach() if isinstance(each, torch.Tensor) else each for each in given))
        return results, named_results(self.kept, made)


@dataclass(frozen=True)
class Direct:
    """A call whose launch reads arguments and writes results, with no other host code.

    Each parameter of the backward kernel has a source ``(kind, position)``. Each of its results has the argument that
    it is the gradient of. ``ahead`` is what runs in place of the call, if the backward needs more than results.
    """

    kernel: BackwardKernel
    sources: tuple[tuple[str, int], ...]
    targets: tuple[int, ...]
    ahead: Ahead | None = None


@dataclass
class Differentiation:
    """The backward kernels of a bound kernel, by grid loop and by what has gradients.

    They are derived from a ``variant`` with static shapes. ``launched`` runs the calls: the kernel itself, or that of the same
    function with dynamic shapes, whose variant the ``recorder`` is made for. ``dynamic`` is the program of that.
    """

    kernel: Kernel
    launched: Kernel
    variant: Variant
    recorder: Recorder
    dynamic: Program | None = None
    kernels: dict[tuple[Any, ...], BackwardKernel] = field(default_factory=dict)
    forwards: dict[tuple[int, ...], BackwardKernel | None] = field(default_factory=dict)
    direct: dict[tuple[bool, ...], Direct | None] = field(default_factory=dict)

    @property
    def program(self) -> Program:
        return self.recorder.program if self.dynamic is None else differentiable(self.variant.analysis.traced)

    def backward(self, step: Step, alone: bool = False) -> BackwardKernel | None:
        """Return the backward of a recorded grid loop; None if no tensor that it read requires a gradient. With ``alone`` it
        is one kernel."""
        wanted = _wanted(step.reads)
        if not wanted or not step.written:
            return None
        if step.kept and not alone:
            return self.forwards[wanted]
        key = (step.root, wanted, alone)
        found = self.kernels.get(key)
        if found is None:
            with _MADE:
                found = self.kernels.get(key) or self._derived(key, step)
                self.kernels[key] = found
        return found

    def _derived(self, key: tuple[int, tuple[int, ...], bool], step: Step) -> BackwardKernel:
        root, wanted, alone = key
        order = tuple(self.kernel.signature.parameters)
        name = _NAME if root == 0 else f"{_NAME}_{root}"
        if not alone and len(self.program.roots) == 1 and step.keeps_results:
            staged = self._staged(wanted)
            if staged is not None:
                return _load(self.kernel, staged, name, root)
        backward = differentiate(self.program, root, wanted, step.written, name, order)
        return _load(self.kernel, backward, name, root)

    def _staged(self, wanted: tuple[int, ...], ahead: bool = False) -> StagedBackward | None:
        """Return the backward that a backend derives from the program as a whole."""
        return _staged(self.kernel, self.variant, self.program, wanted, ahead, self.dynamic)

    def ahead(self, named: Mapping[int, torch.Tensor], numbers: Mapping[str, Any]) -> dict[str, torch.Tensor] | None:
        """Run a forward in place of a launch, and return what it keeps for gradients; None if the program's own is to run.

        ``named`` are the tensors of the launch by number. Configs of the user's are those of the program's kernel.
        """
        wanted = _wanted({at: named[at] for at in self.recorder.reads[0]})
        if wanted not in self.forwards:
            with _MADE:
                if wanted not in self.forwards:
                    self.forwards[wanted] = self._forward(wanted)
        kernel = self.forwards[wanted]
        return None if kernel is None else kernel.run_forward(named, numbers)

    def _forward(self, wanted: tuple[int, ...]) -> BackwardKernel | None:
        tuned = self.kernel.configs or self.kernel.settings.autotune_effort not in (None, "none")
        staged = None if tuned or not wanted or len(self.program.roots) > 1 else self._staged(wanted, ahead=True)
        return None if staged is None or staged.forward is None else _load(self.kernel, staged, _NAME, 0)


def _wanted(reads: Mapping[int, torch.Tensor]) -> tuple[int, ...]:
    """Return the numbers of the tensors that have gradients."""
    return tuple(at for at, each in reads.items() if each.requires_grad and each.dtype in DIFFERENTIABLE)


def _staged(
    kernel: Kernel, variant: Variant, program: Program, wanted: tuple[int, ...], ahead: bool, dynamic: Program | None
) -> StagedBackward | None:
    """Return the backward that a backend derives from a program as a whole."""
    target = None if kernel.settings.backend == GENERAL else variant.analysis.target
    found = (each.derivative(program, wanted, _NAME, target, ahead, dynamic) for each in BACKENDS.values())
    return next((each for each in found if each is not None), None)


def differentiation(kernel: Kernel, values: tuple[Any, ...]) -> Differentiation:
    """Return the backward kernels for arguments like these; made once."""
    static = _static(kernel)
    variant = static.bind(values).variant
    if variant.differentiation is None:
        with _MADE:
            if variant.differentiation is None:
                _refuse_host(kernel, variant)
                variant.differentiation = _any_size(kernel, values, static, variant) or Differentiation(
                    static, static, variant, Recorder(variant)
                )
    found: Differentiation = variant.differentiation
    return found


def _any_size(kernel: Kernel, values: tuple[Any, ...], static: Kernel, variant: Variant) -> Differentiation | None:
    """Return the same with a forward for any sizes, if gradients of all tensors are derived for any sizes as well."""
    if static is kernel or kernel.settings.ref_mode is not RefMode.OFF or kernel.settings.checked:
        return None
    program = differentiable(variant.analysis.traced)
    if len(program.roots) > 1:
        return None
    read = [program.tensors[at] for at in read_tensors(program, 0)]
    wanted = tuple(each.id for each in read if each.dtype in DIFFERENTIABLE)
    launched = kernel.bind(values).variant
    dynamic = differentiable(launched.analysis.traced)
    if len(wanted) == 0 or _described(dynamic) != _described(program):
        return None
    staged = _staged(static, variant, program, wanted, False, dynamic)
    if staged is None or not staged.any_size:
        return None
    return Differentiation(static, kernel, variant, Recorder(launched), dynamic)


def _described(program: Program) -> list[tuple[Any, ...]]:
    """Return the tensors of a program, which have the same numbers in programs of one function for other sizes."""
    return [(each.id, each.name, each.source, each.dtype, len(each.shape), each.made) for each in program.tensors]


def _static(kernel: Kernel) -> Kernel:
    """Return the kernel itself, or a static, compiled one if it has dynamic shapes or runs eagerly."""
    settings = kernel.settings
    if settings.static_shapes and settings.ref_mode is RefMode.OFF and not settings.checked:
        return kernel
    with _MADE:
        twin: Kernel = kernel.static_twin
        if kernel.static_twin is None:
            fields = {**settings.to_dict(), "static_shapes": True, "ref_mode": RefMode.OFF, "checked": False}
            make: Any = type(kernel)
            twin = make(kernel.fn, configs=kernel.configs, settings=Settings(**fields), key=kernel.key)
            twin.default_printed, twin.printed_warnings = True, kernel.printed_warnings
            kernel.static_twin = twin
    return twin


def _refuse_host(kernel: Kernel, variant: Variant) -> None:
    traced = variant.analysis.traced
    if not traced.program.roots:
        raise exc.NoDeviceLoopsInKernel(kernel=kernel.name)
    check_accesses(traced.program)


# --- from results to arguments -----------------------------------------------------------------------------------------------


def with_tensors(value: Any, tensors: Iterable[torch.Tensor]) -> Any:
    """Replace the tensors in ``value``, in order."""
    others = iter(tensors)
    return map_nested(value, torch.Tensor, lambda _: next(others))


def leaves(values: tuple[Any, ...], wanted: Sequence[bool]) -> tuple[tuple[Any, ...], list[torch.Tensor]]:
    """Detach arguments so that their tensors are leaves, and return both.

    ``wanted`` selects the tensors with gradients.
    """
    pairs = zip(tensors_in(values), wanted, strict=True)
    made = [tensor.detach().requires_grad_(want) for tensor, want in pairs]
    return with_tensors(values, made), made


def pulled_back(
    of: Differentiation,
    recording: Recording,
    outputs: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor | None],
    inputs: Sequence[torch.Tensor],
    used: Callable[[BackwardKernel, Step, Mapping[int, torch.Tensor]], None] | None = None,
) -> list[torch.Tensor | None]:
    """Compute gradients of ``inputs`` from those of ``outputs``.

    They pass through torch's graph of the host code and the backward kernels of the launches. ``used`` is called with
    each of these before it runs; each launch has one kernel then.
    """
    ends = [(o, g) for o, g in zip(outputs, gradients, strict=True) if g is not None and o.requires_grad]
    for step in reversed(recording.steps):
        kernel = of.backward(step, alone=used is not None)
        if kernel is None:
            continue
        step.check_versions(of.kernel.name, of.program)
        incoming = dict(zip(step.written, _gradients(ends, list(step.written.values())), strict=True))
        if all(g is None for g in incoming.values()):
            continue
        filled = {at: g if g is not None else torch.zeros_like(step.written[at]) for at, g in incoming.items()}
        if used is not None:
            used(kernel, step, filled)
        ends += [(step.reads[at], g) for at, g in kernel(step, filled).items()]
    return _gradients(ends, inputs)


def _gradients(
    ends: Sequence[tuple[torch.Tensor, torch.Tensor]], inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    if not ends or not inputs:
        return [None] * len(inputs)
    outputs, gradients = zip(*ends, strict=True)
    return list(torch.autograd.grad(outputs, inputs, gradients, allow_unused=True, retain_graph=True))


# --- helion.experimental.backward --------------------------------------------------------------------------------------------


def backward(
    kernel: Kernel,
    grad_out: torch.Tensor | Sequence[torch.Tensor | None],
    *inputs: Any,
    return_code: bool = False,
    autotune: bool = False,
    autotune_effort: str | None = None,
) -> Any:
    """Compute gradients; see ``helion.experimental.backward``."""
    _check_arguments(kernel, autotune_effort)
    values = kernel.normalize_args(*inputs)
    wanted = [t.dtype in DIFFERENTIABLE for t in tensors_in(values)]
    of = differentiation(kernel, values)
    _refuse_drawn(of)
    given, made = leaves(values, wanted)
    recording = of.recorder(given)
    outputs = list(tensors_in((recording.result,)))
    gradients = _matched(kernel.name, grad_out, outputs)
    texts: dict[str, tuple[str, str]] = {}

    def used(backward: BackwardKernel, step: Step, incoming: Mapping[int, torch.Tensor]) -> None:
        arguments = backward.arguments(step, incoming)
        if autotune:
            if autotune_effort is not None:
                backward.kernel.settings.autotune_effort = autotune_effort
            backward.kernel.autotune(arguments)
        if return_code:
            texts[backward.text] = ("", backward.kernel.bind(arguments).to_code())

    asked = [t for t in made if t.requires_grad]
    shown = used if return_code or autotune else None
    found = iter(pulled_back(of, recording, outputs, gradients, asked, shown))
    result = tuple(
        (g if (g := next(found)) is not None else torch.zeros_like(t)) if t.requires_grad else None for t in made
    )
    answer = result[0] if len(result) == 1 else result
    if not return_code:
        return answer
    source = "\n\n".join(["\n".join(_IMPORTS) + "\n", *texts])
    return answer, source, "\n\n".join(code for _, code in texts.values())


def _check_arguments(kernel: Any, autotune_effort: str | None) -> None:
    if not getattr(kernel, "_is_helion_kernel", False):
        raise TypeError(
            f"backward takes a kernel, what @helion.kernel makes of a function, got {type(kernel).__name__}"
        )
    if autotune_effort is not None:
        Settings(autotune_effort=autotune_effort)  # refuses what is none


def _refuse_drawn(of: Differentiation) -> None:
    if of.variant.analysis.traced.seeds:
        raise exc.AutodiffNotSupported(
            what=f"kernel {of.kernel.name!r}, which draws random numbers, after the call",
            remedy="use kernel.differentiable(), which keeps the seed, or hl.rand with a seed that is an argument",
        )


def _matched(
    kernel: str, grad_out: torch.Tensor | Sequence[torch.Tensor | None], outputs: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """Return one gradient per output. Raises ``exc.InvalidAPIUsage`` if they do not fit."""
    given = [grad_out] if isinstance(grad_out, torch.Tensor) else list(grad_out)
    floats = [o for o in outputs if o.is_floating_point()]
    if len(given) == len(floats) < len(outputs):
        each = iter(given)
        given = [next(each) if o.is_floating_point() else None for o in outputs]
    if len(given) != len(outputs):
        raise exc.InvalidAPIUsage(
            f"backward of kernel {kernel!r}: grad_out has {len(given)} gradients, the kernel returns {len(outputs)} tensors; "
            "pass a tuple of one for each."
        )
    for at, (gradient, output) in enumerate(zip(given, outputs, strict=True)):
        if gradient is not None and gradient.shape != output.shape:
            raise exc.InvalidAPIUsage(
                f"backward of kernel {kernel!r}: gradient {at} has the shape {list(gradient.shape)}, the output "
                f"{list(output.shape)}; it must have one element for each of the output."
            )
    return [
        None if g is None or not o.is_floating_point() else g.detach().to(o.dtype)
        for g, o in zip(given, outputs, strict=True)
    ]
