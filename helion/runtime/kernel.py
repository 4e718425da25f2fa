"""``@helion.kernel``: the object a decorated function becomes."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import itertools
import pickle
import sys
import textwrap
import threading
import types
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .. import _logging, exc, hardware, knobs
from .._compiler.source import Location, parse_kernel
from .._lazy import lazy
from .._names import RESERVED, SHARED_MODULES, is_reserved
from .._shapes import CONCRETE_TENSORS
from ..config import Config, as_config
from ..language.constants import ConstExpr
from ..settings import RefMode, Settings
from . import bind_times
from .bound import BoundKernel
from .dispatch import Calls, dispatchable, leave_untraced
from .inputs import UsualInputs, check_call
from .sources import register_source
from .specialization import Key, arguments_key, tensors_in
from .table import BoundKernels

if TYPE_CHECKING:
    from . import ref_mode
else:
    ref_mode = lazy("helion.runtime.ref_mode")

#: Attributes that calls which were prepared for speed have read.
_ASSUMED = frozenset(("fn", "settings", "configs", "key", "signature"))


class Kernel:
    """A kernel: call it with tensors, or ``bind`` it to look at what the compiler makes of it.

    One ``Kernel`` holds a ``BoundKernel`` per specialization: dtypes, shapes, strides, constants and target.
    """

    # ``__call__`` is a slot: a call of a kernel goes straight to the function last written for a call like it
    __slots__ = ("__call__", "__dict__", "__weakref__")

    __call__: Callable[..., Any]
    _is_helion_kernel = True

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        configs: Sequence[Config] = (),
        settings: Settings | None = None,
        key: Callable[..., Hashable] | None = None,
    ) -> None:
        if not isinstance(fn, types.FunctionType):
            raise TypeError(f"@helion.kernel takes a plain Python function, got {type(fn).__name__}")
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.name = fn.__name__
        self.settings = settings or Settings()
        self.configs = list(configs)
        self.key = key
        self.announced = False
        self.told_about_gradients = False
        self.signature = _signature(fn)
        self._constants = frozenset(_constant_parameters(fn, self.signature))
        self._constant_at = tuple(name in self._constants for name in self.signature.parameters)
        self._bound = BoundKernels()
        self._lock = threading.Lock()
        self.__call__ = self._call
        self.usual_inputs = UsualInputs()
        self._calls = Calls(self)
        _check_names(fn, self.signature)
        register_source(fn.__module__, fn.__code__.co_filename, fn.__globals__)

    # --- arguments -------------------------------------------------------------------------------------------------------

    def normalize_args(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """All arguments in the order of the parameters, with defaults filled in."""
        parameters = self.signature.parameters
        if len(args) > len(parameters):
            raise TypeError(f"Too many arguments passed to the kernel, expected: {len(parameters)} got: {len(args)}.")
        if not kwargs and len(args) == len(parameters):
            return args
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return tuple(bound.arguments.values())

    def specialization_key(self, args: Sequence[Any]) -> Hashable:
        """What compiled code for these arguments depends on (before constants found while compiling)."""
        values = self.normalize_args(*args)
        extra = None if self.key is None else self.key(*values)
        return (self.arguments_key(values), extra)

    def arguments_key(self, values: Sequence[Any]) -> Key:
        """The part of the specialization key that the arguments make, all of them in the order of the parameters."""
        return arguments_key(values, self._constant_at, self.settings.static_shapes)

    def bind(self, args: Sequence[Any], target: str | hardware.Target | None = None) -> BoundKernel:
        """The kernel for these arguments: CPU, CUDA, meta or fake tensors, and scalars.

        ``target`` is a name such as ``"sm_90"`` or a ``helion.hardware.Target``. None means the device of CUDA
        arguments, else ``HELION_TARGET``, else sm_90. Raises ``exc.NoTensorArgs``, TypeError for ``args`` that are no tuple or
        list, and every compile error.
        """
        if not isinstance(args, (tuple, list)):
            raise TypeError(
                f"kernel {self.name!r}: bind takes a tuple of the arguments, got {type(args).__name__}; write bind((x,))"
            )
        values = self.normalize_args(*args)
        if bind_times.ENABLED:
            with bind_times.measured(self.name):
                return self._bind(values, self.arguments_key(values), target)
        return self._bind(values, self.arguments_key(values), target)

    def _bind(self, values: tuple[Any, ...], arguments: Key, target: str | hardware.Target | None) -> BoundKernel:
        chosen = self._target(values, target)
        key = (arguments, None if self.key is None else self.key(*values), _token(chosen), self.settings.checked)
        if getattr(_THREAD, "binding", None) is not None:  # its host code runs while it is compiled
            raise exc.NestedKernelCallsNotSupported(name=self.name)
        found = self._bound.find(key, values)
        if found is None:
            with self._binding():
                found = self._bound.find(key, values)
                if found is None:
                    found = BoundKernel(self, values, arguments, chosen)
                    for gone in self._bound.add(key, found, self._calls.served):
                        self._calls.forget(gone)
        return found

    @contextlib.contextmanager
    def _binding(self) -> Iterator[None]:
        """The lock of the table. A thread holds no other kernel's at the same time, so that none can wait in a circle."""
        with self._lock:
            _THREAD.binding = self
            try:
                yield
            finally:
                _THREAD.binding = None

    def _target(self, values: tuple[Any, ...], target: str | hardware.Target | None) -> hardware.Target:
        if target is not None:
            return hardware.target(target)
        device = next((v.device for v in values if type(v) in CONCRETE_TENSORS), None)
        if device is None:
            device = next((t.device for t in tensors_in(values)), None)
        if device is None:
            device = next((v for v in values if isinstance(v, torch.device)), None)
        if device is None:
            raise exc.NoTensorArgs(kernel=self.name)
        if device.type == "cuda" and torch.cuda.is_available():
            return hardware.from_device_properties(
                device.index if device.index is not None else torch.cuda.current_device()
            )
        return hardware.target(knobs.TARGET.read() or hardware.DEFAULT_TARGET)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        """A call on the full way: key, bound kernel, generated host function. Calls like it are quicker afterwards."""
        values = self.normalize_args(*args, **kwargs)
        check_call(self, values)
        if self.settings.ref_mode is RefMode.EAGER:
            return ref_mode.call_eagerly(self, values)
        if self.key is not None or self.settings.checked or bind_times.ENABLED or not dispatchable(values):
            return self.bind(values).run_unchecked(*values)
        generation, arguments = self._calls.generation, self.arguments_key(values)
        bound = self._bind(values, arguments, None)
        config = bound._config
        result = bound.run_unchecked(*values)
        # the first run chooses a config, which ends a generation
        self._calls.learn(bound, values, arguments, generation if config is not None else self._calls.generation)
        return result

    leave_untraced(_call)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name in _ASSUMED and "_calls" in self.__dict__:
            self._calls.forget()

    def reset(self) -> None:
        """Forget everything compiled."""
        with self._lock:
            self._bound = BoundKernels()
        self._calls.forget()

    def autotune(self, args: Sequence[Any], *, force: bool = True, **options: Any) -> Config:
        """Pick the best config for these arguments and use it from now on; gives that config.

        The fastest of ``configs=[...]``, or of the default config and the seeds, on a GPU; the first legal one elsewhere.
        """
        bound = self.bind(args)
        return bound.autotune(args, force=force, **options)

    def kernel_source(self) -> str:
        """The source text of the function."""
        return textwrap.dedent(inspect.getsource(self.fn))

    def __repr__(self) -> str:
        return f"<helion.Kernel {self.name}>"

    # as functions are: copies are the kernel itself, and what is pickled is where to find it
    def __copy__(self) -> Kernel:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Kernel:
        return self

    def __reduce_ex__(self, protocol: Any) -> str:
        name = self.fn.__qualname__
        found: Any = sys.modules.get(self.fn.__module__)
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is not self:
            raise pickle.PicklingError(
                f"kernel {self.name!r} cannot be pickled: kernels are pickled by reference, as functions are, and "
                f"{self.fn.__module__}.{name} is not this kernel; define it with @helion.kernel at the top level of a module"
            )
        return name

    # functions wrapped by others are looked at through these
    @property
    def __code__(self) -> types.CodeType:
        return self.fn.__code__

    @property
    def __globals__(self) -> dict[str, Any]:
        return self.fn.__globals__

    @property
    def __defaults__(self) -> tuple[Any, ...] | None:
        return self.fn.__defaults__

    @property
    def __signature__(self) -> inspect.Signature:
        return self.signature


@functools.lru_cache(maxsize=256)
def _number_of(target: hardware.Target) -> int:
    return next(_NUMBERS)


_NUMBERS = itertools.count()
#: What a thread is binding, if it is.
_THREAD = threading.local()
_TOKENS: dict[int, tuple[hardware.Target, int]] = {}


def _token(target: hardware.Target) -> int:
    """A number for a target, equal for equal ones; hashing all of a target's fields takes longer than the whole call."""
    known = _TOKENS.get(id(target))
    if known is None or known[0] is not target:
        if len(_TOKENS) >= 256:
            _TOKENS.clear()
        known = _TOKENS[id(target)] = (target, _number_of(target))
    return known[1]


def _signature(fn: types.FunctionType) -> inspect.Signature:
    signature = inspect.signature(fn)
    for parameter in signature.parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise TypeError(
                f"kernel {fn.__name__!r}: parameter {parameter.name!r} is {parameter.kind.description}; kernels take plain positional parameters only"
            )
    return signature


def _constant_parameters(fn: types.FunctionType, signature: inspect.Signature) -> list[str]:
    """Parameters annotated ``hl.constexpr``, also as a string or a subscript of it."""
    found = []
    for name, parameter in signature.parameters.items():
        annotation = parameter.annotation
        text = annotation if isinstance(annotation, str) else ""
        origin = getattr(annotation, "__origin__", annotation)
        if origin is ConstExpr or text.split("[")[0].split(".")[-1] in ("constexpr", "ConstExpr"):
            found.append(name)
    return found


def _check_names(fn: types.FunctionType, signature: inspect.Signature) -> None:
    """Refuse closures, decorators below ours, and names that generated code uses."""
    source = parse_kernel(fn)
    assert isinstance(source.node, ast.FunctionDef)

    def first(name: str) -> Location:
        """Where a name is first mentioned."""
        mentions = (n for n in ast.walk(source.node) if name in (getattr(n, "id", None), getattr(n, "arg", None)))
        return source.location(next(mentions, source.node))

    if fn.__code__.co_freevars:
        name = fn.__code__.co_freevars[0]
        raise exc.ClosuresNotSupported(kernel=fn.__name__, name=name, location=first(name))
    if is_reserved(fn.__name__):
        raise exc.NamingConflict(name=fn.__name__, what="function", kernel=fn.__name__, location=first(fn.__name__))
    for name in signature.parameters:
        if is_reserved(name) or name in SHARED_MODULES:
            raise exc.NamingConflict(name=name, what="parameter", kernel=fn.__name__, location=first(name))
    for name in (*fn.__code__.co_varnames, *fn.__code__.co_names):
        bound_to = fn.__globals__.get(name)
        if name in fn.__code__.co_varnames and (is_reserved(name) or name in SHARED_MODULES):
            raise exc.NamingConflict(name=name, what="variable", kernel=fn.__name__, location=first(name))
        is_global = name in fn.__globals__ and name not in fn.__code__.co_varnames
        if (
            is_global
            and name in RESERVED
            and getattr(bound_to, "__name__", None) != SHARED_MODULES.get(name, "libdevice")
        ):
            raise exc.NamingConflict(name=name, what="global", kernel=fn.__name__, location=first(name))
    decorators = source.node.decorator_list
    names = [ast.unparse(d.func if isinstance(d, ast.Call) else d).split(".")[-1] for d in decorators]
    if names and names[-1] not in ("kernel", "jit", "aot_kernel") and any(n in ("kernel", "jit") for n in names):
        raise exc.DecoratorAfterHelionKernelDecorator(
            kernel=fn.__name__, decorator=ast.unparse(decorators[-1]), location=source.location(decorators[-1])
        )


def kernel(
    fn: Callable[..., Any] | None = None,
    *,
    config: Config | Mapping[str, Any] | None = None,
    configs: Sequence[Config | Mapping[str, Any]] | None = None,
    key: Callable[..., Hashable] | None = None,
    settings: Settings | None = None,
    **options: Any,
) -> Any:
    """Decorate a function as a kernel, bare or with options.

    Args:
        config: compile with this config.
        configs: pick the fastest of these on a GPU, the first legal one elsewhere; an empty list is as none.
        key: called with the positional arguments; its result becomes part of the specialization key.
        settings: a ``helion.Settings``; or its fields by name as ``options``.

    Raises TypeError for unknown settings and parameters kernels cannot have, ``exc.ClosuresNotSupported`` and
    ``exc.NamingConflict`` for functions that cannot be kernels.
    """
    if config is not None and configs is not None:
        raise TypeError("give either config= or configs=, not both")
    if settings is not None and options:
        raise TypeError(f"give either settings= or its fields, not both (got {', '.join(sorted(options))})")
    known = _configs(config, configs)
    if settings is not None and not isinstance(settings, Settings):
        raise TypeError(f"settings= takes a helion.Settings, got {settings!r}")
    if key is not None and not callable(key):
        raise TypeError(f"key= takes a function of the arguments, got {key!r}")
    if unknown := knobs.unknown_variables():
        _logging.say_once(f"helion: environment variables that nothing reads: {', '.join(unknown)}")

    def wrap(function: Callable[..., Any]) -> Kernel:
        return Kernel(function, configs=known, settings=settings or Settings(**options), key=key)

    return wrap if fn is None else wrap(fn)


def _configs(config: Any, configs: Any) -> list[Config]:
    if config is not None:
        configs = [config]
    if configs is None:
        return []
    if not isinstance(configs, Iterable) or isinstance(configs, (str, bytes, Mapping)):
        raise TypeError(f"configs= takes a list of helion.Config or dicts, got {configs!r}")
    configs = list(configs)
    for given in configs:
        if not isinstance(given, Mapping):
            raise TypeError(f"config= takes a helion.Config or a dict, and configs= a list of them; got {given!r}")
    return [as_config(given) for given in configs]


def aot_kernel(
    fn: Callable[..., Any] | None = None,
    *,
    batched: Any = None,
    collect_fn: Callable[..., Any] | None = None,
    measure_fn: Callable[..., Any] | None = None,
    **options: Any,
) -> Any:
    """``kernel`` for code that is tuned ahead of time: with no table of tuned configs, its default config is what runs.

    ``batched``, ``collect_fn`` and ``measure_fn`` say how such a table would be collected, and are not looked at.
    """
    return kernel(fn, **options)
