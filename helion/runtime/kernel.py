"""``@helion.kernel``: the object that replaces a decorated function."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import pickle
import sys
import textwrap
import types
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, overload

import torch

from .. import exc, hardware, knobs
from .._compiler.source import FunctionSource, Location, parse_function, parse_kernel
from .._names import RESERVED, SHARED_MODULES, is_reserved, is_reserved_function
from .._support import collecting, ranks
from .._support import distribution as _distribution
from .._support import logs as _logging
from .._support.lazy import lazy, when_imported
from .._support.tracebacks import short_errors, shortened
from ..backends import stub
from ..config import Config, as_config, key_named
from ..settings import RefMode, Settings
from . import bind_times
from .bound import BoundKernel
from .call.argument_checks import check_bound, check_call
from .call.definition import AotOptions, Definition
from .dispatch import Calls, dispatchable, leave_untraced
from .generated.host_lines import note_line
from .generated.sources import register_kernel, register_source
from .variants.table import Variants

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, TypeVar

    from ..autotuner import options as search_options
    from . import ref_mode
    from .specialization import aot
    from .torch_interop import calls as graph_calls
    from .torch_interop import differentiable, dynamo
    from .tuning import requests, several

    # a bare `helion.Kernel` in an annotation is a kernel of any function
    _Parameters = ParamSpec("_Parameters", default=...)
    _Result = TypeVar("_Result", default=Any)
else:
    search_options = lazy("helion.autotuner.options")
    requests = lazy("helion.runtime.tuning.requests")
    several = lazy("helion.runtime.tuning.several")
    from typing import ParamSpec, TypeVar

    dynamo = lazy("helion.runtime.torch_interop.dynamo")
    graph_calls = lazy("helion.runtime.torch_interop.calls")
    differentiable = lazy("helion.runtime.torch_interop.differentiable")
    aot = lazy("helion.runtime.specialization.aot")
    ref_mode = lazy("helion.runtime.ref_mode")
    _Parameters, _Result = ParamSpec("_Parameters"), TypeVar("_Result")

#: Attributes that prepared fast calls have read.
_ASSUMED = frozenset(("fn", "settings", "configs", "key", "signature"))


class Kernel(Definition, Generic[_Parameters, _Result]):
    """A function decorated with ``helion.kernel``: call it as the function, or ``bind`` it to inspect its compilation.

    A kernel is compiled once per specialization: dtypes, shapes or their classes, strides, constants and target; each is a
    ``BoundKernel``.

    Attributes:
        fn: the decorated function.
        name: its name.
        signature: its ``inspect.Signature``.
        settings: the ``helion.Settings`` it was given.
        configs: the ``helion.Config`` list it was given.
    """

    __slots__ = ()

    _is_helion_kernel = True

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        configs: Sequence[Config] = (),
        settings: Settings | None = None,
        key: Callable[..., Hashable] | None = None,
    ) -> None:
        _refuse_decorated(fn)
        if not isinstance(fn, types.FunctionType):
            remedy = "; did you forget .fn?" if isinstance(fn, Definition) else ""
            if isinstance(fn, (staticmethod, classmethod)):
                remedy = "; put @staticmethod above @helion.kernel" + (
                    "" if isinstance(fn, staticmethod) else ", in place of @classmethod"
                )
            elif isinstance(fn, functools.partial):
                remedy = "; decorate the function and pass all of its arguments"
            raise TypeError(f"@helion.kernel takes a plain Python function, got {type(fn).__name__}{remedy}")
        super().__init__(fn, configs=configs, settings=settings or Settings(), key=key)
        self.__call__ = self._call  # type: ignore[method-assign]
        self.calls = Calls(self, self._call)
        self.variants = Variants(self, self.calls, BoundKernel)
        _check_names(fn, self.signature)
        register_source(fn.__module__, fn.__code__.co_filename, fn.__globals__)
        register_kernel(fn, self)

    if TYPE_CHECKING:  # at run time a slot holds the function last written for a call like it

        def __call__(self, *args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result: ...

    def specialization_key(self, args: Sequence[Any]) -> Hashable:
        """Return the hashable key under which a call with these arguments finds compiled code.

        Dependencies that compilation discovers, such as ``hl.specialize(x.stride(0))``, are part of it from then on.
        """
        return self.variants.class_key(self.normalize_args(*args))

    @short_errors
    def bind(
        self, args: Sequence[Any], target: str | hardware.Target | None = None, *, world_size: int | None = None
    ) -> BoundKernel:
        """Compile the kernel for these arguments, without running it.

        Args:
            args: a tuple or list of the arguments: CPU, CUDA, meta or fake tensors, and scalars. Nothing is read of tensors
                but dtype, shape, strides and device.
            target: a name such as ``"sm_90"`` or ``"h200"``, or a ``helion.hardware.Target``; no such GPU is needed. None
                means the device of CUDA arguments, else ``HELION_TARGET``, else sm_90.
            world_size: the number of ranks of the process groups that the host code names; no such group is needed.

        Raises:
            TypeError: ``args`` is no tuple or list, or does not fit the signature.
            exc.NoTensorArgs: no argument is a tensor.
            exc.UnsupportedTensor: an argument is a tensor subclass that computes in its own way, such as a DTensor.
            exc.BaseError: every compile error.
        """
        self._check_tuple("bind", args)
        values = self.normalize_args(*args)
        check_bound(self, values)
        if world_size is None:
            return self.variant(values, target, of_class=True)
        with ranks.bound_for(world_size):
            return self.variant(values, target, of_class=True)

    def variant(
        self, values: tuple[Any, ...], target: str | hardware.Target | None = None, *, of_class: bool = False
    ) -> BoundKernel:
        """Return the bound kernel that runs for all arguments, in order.

        Args:
            values: the arguments, with defaults filled in.
            target: as for ``bind``.
            of_class: the bound kernel that leads their class of sizes and strides.
        """
        if bind_times.ENABLED:
            with bind_times.measured(self.name):
                bound: BoundKernel = self.variants.find(values, self.arguments_key(values), target, of_class).face
        else:
            bound = self.variants.find(values, self.arguments_key(values), target, of_class).face
        return bound

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        """Run a call on the slow path: key, bound kernel, generated host function."""
        try:
            return self._call_slow(self.normalize_args(*args, **kwargs))
        except exc.Base as error:
            raise shortened(error)  # noqa: B904 - the same error
        except Exception as error:
            note_line(error, self.fn)
            raise

    def _call_slow(self, values: tuple[Any, ...]) -> Any:
        if check_call(self, values):
            return graph_calls.record(self, values)
        if self.settings.ref_mode is RefMode.EAGER:
            return ref_mode.call_eagerly(self, values)
        if self.key is not None or self.settings.checked or bind_times.ENABLED or not dispatchable(values):
            return self.variant(values).variant.run(*values)
        # from the analysis to the first launch: a collection would begin between the two
        with collecting.paused() if any(map(stub.on_gpu, values)) else contextlib.nullcontext():
            generation, arguments = self.calls.generation, self.arguments_key(values)
            variant = self.variants.find(values, arguments)
            config = variant.config
            result = variant.run(*values)
            if config is None and variant.specialized.kept is not None:
                return result  # a call that is not repeated needs no written function; the second one writes it
            # the first run chooses a config, which ends a generation
            self.calls.learn(variant, values, arguments, generation if config is not None else self.calls.generation)
        return result

    leave_untraced(_call)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name in _ASSUMED and "calls" in self.__dict__:
            self.calls.forget()

    def reset(self) -> None:
        """Drop all compiled code, so that the next call compiles again."""
        self.variants.clear()
        self.static_twin = None
        self.printed_warnings.clear()
        self.calls.forget()

    def differentiable(self) -> differentiable.Differentiable:
        """Return the kernel as a function with gradients: autograd runs kernels that are derived from this one.

        Its calls are those of the kernel, with tensors of any shapes. Each class of arguments gets its own backward
        kernels at the first call. Host code around the device loops is differentiated by torch. The function raises
        ``exc.AutodiffNotSupported`` for second derivatives, and where ``helion.experimental.backward`` raises it.
        """
        return differentiable.Differentiable(self)

    def _check_tuple(self, called: str, args: Any) -> None:
        if not isinstance(args, (tuple, list)):
            raise TypeError(
                f"kernel {self.name!r}: {called} takes a tuple of the arguments, got {type(args).__name__}; write {called}((x,))"
            )

    def __getitem__(self, grid: Any) -> Any:
        """Refuse ``kernel[grid](...)``, which is how Triton launches kernels."""
        raise TypeError(
            f"kernel {self.name!r} takes no grid; call {self.name}(...), and its hl.tile loops determine the grid"
        )

    def autotune(self, args: Sequence[Any], *, force: bool = True, **options: Any) -> Config:
        """Search for the fastest config for these arguments, and use it from then on; see ``BoundKernel.autotune``.

        Args:
            args: the arguments of a call.
            force: search also where a config was found before.
            options: ``effort``, ``seconds`` and others, in place of the settings ``autotune_*``; passed on to
                ``autotuner_fn``, where the settings have one.

        Returns:
            The config.

        Raises:
            exc.NoConfigFound: none of the given configs is legal, or none that was tried works.
            exc.NoFeasibleConfig: none is given, and none can fit the GPU.
            exc.InvalidAPIUsage: there is no such option.
            exc.AutotuningDisallowedInEnvironment: a search would be needed, and ``HELION_DISALLOW_AUTOTUNING`` is set.
        """
        self._check_tuple("autotune", args)
        bound, first = self.variant(self.normalize_args(*args)), self.bind(args)
        config = bound.autotune(args, force=force, **options)
        if first is not bound:
            first.variant.use(config)
        return config

    def autotune_multi(
        self,
        arg_sets: Sequence[Sequence[Any]],
        *,
        aggregation: str = "geomean",
        relative_to: str | None = None,
        cache_tag: str | None = None,
        force: bool = True,
        **options: Any,
    ) -> Config:
        """Search for the config that is fastest for several argument sets together, and use it for each from then on.

        On CPU tensors nothing is searched, and the default config of the first set is used.

        Args:
            arg_sets: the arguments of a call each.
            aggregation: ``"geomean"`` or ``"max"`` of the times.
            relative_to: None compares times directly. ``"default"`` divides them by the time of each set's default
                config, ``"baseline"`` by that of its ``autotune_baseline_fn`` or of reference mode.
            cache_tag: a name that is part of the key of the cached result, with the argument sets.
            force: search also where a config was found before.
            options: as for ``autotune``.

        Raises:
            exc.InvalidAPIUsage: an option that there is not, before anything is bound.
            exc.NoConfigFound: nothing that was tried works.
        """
        several.check_options(aggregation, relative_to, cache_tag)
        wanted = search_options.Options.of(self.settings, "full", options)
        if isinstance(arg_sets, (str, torch.Tensor)) or not all(isinstance(args, (tuple, list)) for args in arg_sets):
            raise exc.InvalidAPIUsage("autotune_multi takes a list of the arguments of calls: [(x,), (y,)].")
        if not arg_sets:
            raise exc.InvalidAPIUsage("autotune_multi takes at least one argument set.")
        sets = [self.normalize_args(*args) for args in arg_sets]
        found = [self.bind(args).variant for args in sets]
        return requests.tune_together(
            list(zip(found, sets, strict=True)), wanted, aggregation, relative_to, cache_tag, force
        )

    def custom_op(self, *args: Any, **kwargs: Any) -> tuple[torch._ops.OpOverload, tuple[Any, ...]]:
        """Return the operator of ``torch.library`` that represents such a call in torch graphs, and its arguments.

        It takes the tensors and numbers among the arguments, and returns the results that are new tensors. Its schema
        declares the arguments it writes. ``torch.library.opcheck(*kernel.custom_op(x))`` checks it. Call this before
        loading a saved program that contains the operator.

        Args:
            args: the arguments of a call.
            kwargs: arguments by keyword.

        Raises:
            exc.NoPlaceInGraph: no operator can represent the call.
        """
        return graph_calls.custom_op(self, self.normalize_args(*args, **kwargs))

    def kernel_source(self) -> str:
        """Return the source text of the function."""
        return textwrap.dedent(inspect.getsource(self.fn))

    def __repr__(self) -> str:
        return f"<helion.Kernel {self.name}>"

    # as for functions: copies are the kernel itself, and pickles contain only its module and name
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


# importing torch.compile takes 1 s, which only its users should pay
when_imported("torch._dynamo", lambda: dynamo.register(Kernel, differentiable.Differentiable))


def _check_names(fn: types.FunctionType, signature: inspect.Signature) -> None:
    """Refuse closures, decorators below ours, and names that generated code uses."""
    source = parse_kernel(fn)
    assert isinstance(source.node, ast.FunctionDef)

    def first(name: str) -> Location:
        """Return the location of the first mention of a name."""
        mentions = (n for n in ast.walk(source.node) if name in (getattr(n, "id", None), getattr(n, "arg", None)))
        return source.location(next(mentions, source.node))

    if fn.__code__.co_freevars:
        name = fn.__code__.co_freevars[0]
        raise exc.ClosuresNotSupported(kernel=fn.__name__, name=name, location=first(name))
    own = fn.__code__.co_name
    if is_reserved_function(own):
        raise exc.NamingConflict(name=own, what="function", kernel=own, location=first(own))
    for name in signature.parameters:
        if is_reserved(name):
            raise exc.NamingConflict(name=name, what="parameter", kernel=fn.__name__, location=first(name))
    for name in (*fn.__code__.co_varnames, *fn.__code__.co_names):
        bound_to = fn.__globals__.get(name)
        if name in fn.__code__.co_varnames and is_reserved(name):
            raise exc.NamingConflict(name=name, what="variable", kernel=fn.__name__, location=first(name))
        is_global = name in fn.__globals__ and name not in fn.__code__.co_varnames
        if (
            is_global
            and name in RESERVED
            and getattr(bound_to, "__name__", None) != SHARED_MODULES.get(name, "libdevice")
        ):
            raise exc.NamingConflict(name=name, what="global", kernel=fn.__name__, location=first(name))
    _refuse_decorator_below(fn.__name__, source)


#: Names of the kernel decorators in source text.
_OURS = frozenset(("kernel", "jit", "aot_kernel"))


def _refuse_decorator_below(name: str, source: FunctionSource) -> None:
    """Refuse a function whose decorators, in its source text, are ours and another one below."""
    decorators = [] if isinstance(source.node, ast.Lambda) else source.node.decorator_list
    names = [ast.unparse(d.func if isinstance(d, ast.Call) else d).split(".")[-1] for d in decorators]
    if names and names[-1] not in _OURS and _OURS & set(names):
        raise exc.DecoratorAfterHelionKernelDecorator(
            kernel=name, decorator=ast.unparse(decorators[-1]), location=source.location(decorators[-1])
        )


def _refuse_decorated(fn: Any) -> None:
    """Refuse what another decorator made of a function: compiled code would run without that decorator's effect."""
    if isinstance(fn, Definition):
        return
    inner = inspect.unwrap(fn)
    for function in (inner,) if inner is not fn else _closed_over(fn):
        source = parse_function(function) if isinstance(function, types.FunctionType) else None
        if source is not None:
            _refuse_decorator_below(function.__name__, source)
    if inner is not fn and not isinstance(fn, (staticmethod, classmethod)):  # ``Kernel`` refuses these, with remedies
        made_by = getattr(fn, "__code__", None)
        decorator = (
            type(fn).__name__
            if made_by is None
            else getattr(made_by, "co_qualname", made_by.co_name).split(".<locals>")[0]
        )
        raise exc.DecoratorAfterHelionKernelDecorator(kernel=inner.__name__, decorator=decorator)


def _closed_over(fn: Any) -> Iterator[Any]:
    """Yield what a function closes over; a variable that is assigned after its definition has nothing yet."""
    for cell in getattr(fn, "__closure__", None) or ():
        with contextlib.suppress(ValueError):
            yield cell.cell_contents


# Bare, the decorator returns a kernel of the function's signature; with options, a decorator that does.
@overload
def kernel(fn: Callable[_Parameters, _Result], /) -> Kernel[_Parameters, _Result]: ...
@overload
def kernel(
    fn: Callable[_Parameters, _Result],
    *,
    config: Config | Mapping[str, Any] | None = None,
    configs: Sequence[Config | Mapping[str, Any]] | None = None,
    key: Callable[..., Hashable] | None = None,
    settings: Settings | None = None,
    **options: Any,
) -> Kernel[_Parameters, _Result]: ...
@overload
def kernel(
    fn: None = None,
    *,
    config: Config | Mapping[str, Any] | None = None,
    configs: Sequence[Config | Mapping[str, Any]] | None = None,
    key: Callable[..., Hashable] | None = None,
    settings: Settings | None = None,
    **options: Any,
) -> Callable[[Callable[_Parameters, _Result]], Kernel[_Parameters, _Result]]: ...
def kernel(
    fn: Callable[..., Any] | None = None,
    *,
    config: Config | Mapping[str, Any] | None = None,
    configs: Sequence[Config | Mapping[str, Any]] | None = None,
    key: Callable[..., Hashable] | None = None,
    settings: Settings | None = None,
    **options: Any,
) -> Any:
    """Decorate a function as a kernel: ``@helion.kernel``, or ``@helion.kernel(config=..., static_shapes=False)``.

    Args:
        fn: a plain function at the top level of a module, with positional parameters.
        config: a ``helion.Config`` or a dict to compile with. None leaves the choice to the compiler.
        configs: several; the fastest on a GPU, the first legal one elsewhere. An empty list is as None.
        key: called with the arguments; its hashable result becomes part of the specialization key.
        settings: a ``helion.Settings``; or its fields by name, as ``options``.
        options: fields of ``helion.Settings``.

    Returns:
        A ``helion.Kernel``, to be called as the function.

    Raises:
        TypeError: unknown settings, and parameters kernels cannot have.
        exc.ClosuresNotSupported: the function uses local variables of another one.
        exc.NamingConflict: it uses a name that generated code needs.
        exc.DecoratorAfterHelionKernelDecorator: another decorator is below this one.
    """
    if config is not None and configs is not None:
        raise TypeError("give either config= or configs=, not both")
    if settings is not None and options:
        raise TypeError(f"give either settings= or its fields, not both (got {', '.join(sorted(options))})")
    for option in options:
        if option not in knobs.SETTINGS and (meant := key_named(option)) is not None:
            raise TypeError(f"{option!r} is a config key, not a setting: pass config=helion.Config({meant}=...)")
    known = _configs(config, configs)
    if settings is not None and not isinstance(settings, Settings):
        raise TypeError(f"settings= takes a helion.Settings, got {settings!r}")
    if key is not None and not callable(key):
        raise TypeError(f"key= takes a function of the arguments, got {key!r}")
    if clash := _distribution.clash():
        _logging.say_once(f"helion: {clash}")
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
    collect_fn: Callable[[], Sequence[Sequence[Any]]] | None = None,
    measure_fn: Callable[[], Sequence[Sequence[Any]]] | None = None,
    **options: Any,
) -> Any:
    """Decorate a function as a kernel with configs tuned ahead of time, by shape, in a table next to its source.

    For ``ops.py`` the table of an H100 is ``_helion_aot_ops_cuda_sm90.py``. For each kernel it has a function
    ``autotune_<kernel>(*args)`` that returns the config for these arguments. An optional ``key_<kernel>(*args)``
    returns a hashable value that is equal if the config is equal, which separates sizes with ``static_shapes=False``.
    If there is no table for this GPU, that of an older one is used. With no usable table a warning
    (``exc.NoAOTHeuristicWarning``) is printed, and the default config runs. ``config=`` and ``configs=`` take
    precedence over the table. ``HELION_AOT_MODE=collect`` tunes each called specialization and writes the table;
    ``disabled`` ignores tables.

    Args:
        fn: as for ``helion.kernel``.
        batched: which dimensions of the arguments are batches; accepted without effect.
        collect_fn: returns a list of argument tuples that are tuned too while a table is collected.
        measure_fn: returns more of them.
        options: as for ``helion.kernel``.
    """
    for name, given in (("collect_fn", collect_fn), ("measure_fn", measure_fn)):
        if given is not None and not callable(given):
            raise TypeError(f"{name}= takes a function that returns a list of argument tuples, got {given!r}")
    tables = AotOptions(batched=batched, collect_fn=collect_fn, measure_fn=measure_fn)

    def wrap(function: Callable[..., Any]) -> Kernel:
        made: Kernel = kernel(function, **options)
        made.aot = tables
        if not made.settings.static_shapes:
            made.key = aot.TableKey(made, made.key)
        return made

    return wrap if fn is None else wrap(fn)
