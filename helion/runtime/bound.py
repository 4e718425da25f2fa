"""A kernel for one specialization: what the compiler knows of it, and its compiled configs."""

from __future__ import annotations

import functools
import logging
import pickle
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .. import _logging, exc
from .._compiler.host.program import Form
from .._lazy import lazy
from ..backends import BACKENDS
from ..config import Config
from ..hardware import Target
from ..settings import RefMode
from . import codecache, failures
from .checked import run_checked
from .inputs import check_call
from .output_code import OutputCodeOptions
from .remembered import described, recall, remember
from .specialization import Key, any_device, pick

if TYPE_CHECKING:
    from .. import pipeline
    from .._compiler.facts.records import KernelFacts
    from ..autotuner.proposal import Seed
    from ..autotuner.space import ConfigSpace
    from ..backends.execution import Executor, Resources
    from . import explain, measure, observed, ref_mode, repro
    from .kernel import Kernel
else:
    pipeline = lazy("helion.pipeline")
    measure = lazy("helion.runtime.measure")
    observed = lazy("helion.runtime.observed")
    explain = lazy("helion.runtime.explain")
    ref_mode = lazy("helion.runtime.ref_mode")
    repro = lazy("helion.runtime.repro")

_LOG = _logging.logger(__name__)
#: Keys a printed config has even at their defaults: they are what people look for first.
_ALWAYS_SHOWN = ("block_sizes", "reduction_loops", "num_warps", "num_stages")

ConfigLike = Config | Mapping[str, Any] | None


class BoundKernel:
    """The analysis of a kernel for given dtypes, shapes and target, and what was compiled from it.

    Facts, seeds and the config space are computed when first asked for; each config is compiled once.
    """

    def __init__(self, kernel: Kernel, values: tuple[Any, ...], key: Key, target: Target) -> None:
        self.kernel = kernel
        self._key = key
        self.settings = kernel.settings
        self.target = target
        self.configs = kernel.configs
        self._used = 0  # a time, for the table of bound kernels
        self._remembered = tuple(map(remember, values))
        self._compiled: dict[Config, Callable[..., Any]] = {}
        self._lock = threading.RLock()
        self._run: Callable[..., Any] | None = None
        self._config: Config | None = None
        # whether nobody asked for the config in use, and the configs that turned out not to fit
        self._by_default = False
        self._refused: set[Config] = set()
        self._reproduced: set[Config | None] = set()
        self._warned: set[str] = set()
        # what launches where host code made other tensors than was expected: by config, launch, and what it made
        self._observed: dict[Any, Callable[..., Any]] = {}
        # numbers that the compiled code turned out to depend on: what they are called, where they come from, what they are
        self._numbers: tuple[tuple[str, tuple[Any, ...], Any], ...] = ()
        if self.is_eager:  # an eager kernel need not compile
            return
        start = time.perf_counter()
        try:
            warnings = self._analysis.traced.warnings
        except exc.BaseError:
            self._show_repro(None, values)
            raise
        self._numbers = tuple((name, at, pick(values, at)) for name, at in self.specialized.items())
        self._warn(warnings)
        if _LOG.isEnabledFor(logging.INFO):
            elapsed = 1e3 * (time.perf_counter() - start)
            _LOG.info("bound %s for %s in %.1f ms, key %s", kernel.name, target.name, elapsed, key)

    def _warn(self, warnings: Iterable[exc.Base]) -> None:
        """Print warnings that were not printed before."""
        for warning in warnings:
            text = f"WARNING[{type(warning).__name__}]: {warning}"
            if text not in self._warned:
                self._warned.add(text)
                print(text, file=sys.stderr)

    @functools.cached_property
    def _analysis(self) -> pipeline.Analysis:
        kernel = self.kernel
        arguments = dict(zip(kernel.signature.parameters, self._sample(), strict=True))
        return pipeline.analyse(kernel.fn, kernel.name, arguments, kernel.settings, self.target, kernel._constants)

    def _sample(self) -> tuple[Any, ...]:
        """Arguments like those of every call: the ones it was bound for as long as they live, tensors of their shapes
        without data after that."""
        return tuple(map(recall, self._remembered))

    @property
    def specialized(self) -> Mapping[str, Any]:
        """Where the numbers that the compiled code depends on come from, by name; empty when nothing was compiled."""
        return {} if self.is_eager else self._analysis.traced.specialized

    @property
    def executor(self) -> Executor:
        """What runs it."""
        return BACKENDS[self.settings.backend].executor

    @property
    def is_eager(self) -> bool:
        """Whether calls run the Python function itself instead of compiled code."""
        return self.settings.ref_mode is RefMode.EAGER

    def has_numbers_of(self, values: tuple[Any, ...]) -> bool:
        """Whether the numbers that the compiled code depends on are in these arguments what they were at binding."""
        return all(pick(values, at) == number for _, at, number in self._numbers)

    def is_current(self) -> bool:
        """Whether the globals that were compiled in still are what they were."""
        return self.is_eager or all(guard.holds() for guard in self._analysis.traced.guards)

    def __copy__(self) -> BoundKernel:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> BoundKernel:
        return self

    def __reduce_ex__(self, protocol: Any) -> str:
        raise pickle.PicklingError(
            f"a bound kernel ({self.kernel.name!r}) cannot be pickled; pickle the kernel, and bind it where it is needed"
        )

    def __repr__(self) -> str:
        arguments = zip(self.kernel.signature.parameters, self._remembered, strict=True)
        shown = ", ".join(f"{name}={described(value)}" for name, value in arguments)
        numbers = "".join(f", {name} is {value}" for name, _, value in self._numbers)
        return f"<helion.BoundKernel {self.kernel.name}({shown}) for {self.target.name}{numbers}>"

    # --- what the compiler knows -----------------------------------------------------------------------------------------

    @property
    def facts(self) -> KernelFacts:
        """Axes, memory operations, dots, reductions and what is composed of them."""
        return self._analysis.facts

    @property
    def config_spec(self) -> ConfigSpace:
        """The space of configs: ranges, defaults, ``normalize`` and ``default_config()``."""
        return self._analysis.config_spec

    @property
    def seeds(self) -> tuple[Seed, ...]:
        """Legal configs the heuristics propose, best first, at most 10."""
        return self._analysis.seeds.seeds

    @property
    def declined(self) -> tuple[tuple[str, str], ...]:
        """Heuristics that proposed nothing, with the reason."""
        return self._analysis.seeds.declined

    def default_config(self) -> Config:
        """What runs when nothing was tuned: the first promoted seed, unless another is predicted to be much faster; where
        none is promoted, the fastest by prediction of the seeds and the conservative config."""
        return self._analysis.default_config

    def conservative_config(self) -> Config:
        """Small safe tiles, no heuristic involved."""
        return self._analysis.space.conservative()

    def _resolve(self, config: ConfigLike) -> Config:
        """A full config: the given one, else the one in use, the only one given to the decorator, or the default."""
        if config is not None:
            return self._analysis.full_config(config)
        if self._config is not None:
            return self._config
        if len(self.configs) == 1:
            return self._analysis.full_config(self.configs[0])
        return self.default_config()

    # --- code ------------------------------------------------------------------------------------------------------------

    def to_triton_code(
        self,
        config: ConfigLike = None,
        *,
        options: OutputCodeOptions | None = None,
        emit_repro_caller: bool = False,
        output_origin_lines: bool | None = None,
    ) -> str:
        """The generated module for a config (default: the one that would run) as text.

        Args:
            config: as given, not changed.
            options: ``OutputCodeOptions(allow_helion_deps=False)`` for a module that does not import helion.
            emit_repro_caller: append ``call()``, which runs the kernel on random arguments like those it is bound to,
                and call it when the module is run as a script.
            output_origin_lines: name the user's lines in comments; None leaves it to the setting.
        """
        if options is not None and options.jax_fn:
            raise exc.InvalidAPIUsage(
                f"The backend {self.settings.backend!r} makes no JAX functions; leave out jax_fn."
            )
        form = Form(
            alone=options is not None and not options.allow_helion_deps,
            source=repro.source_of(self.kernel) if emit_repro_caller else None,
        )
        text = self._analysis.text(self._resolve(config), output_origin_lines, form)
        return repro.with_caller(text, self) if emit_repro_caller else text

    to_code = to_triton_code

    def compile_config(self, config: ConfigLike = None, *, allow_print: bool = True) -> Callable[..., Any]:
        """Generate, load and return the host function for a config; each config is loaded once."""
        full = self._resolve(config)
        found = self._compiled.get(full)
        if found is None:
            with self._lock:
                found = self._compiled.get(full) or self._load(full, allow_print)
                self._compiled[full] = found
        return found

    def _load(self, config: Config, allow_print: bool) -> Callable[..., Any]:
        start = time.perf_counter()
        try:
            code = self._analysis.code(config)
        except exc.BaseError:
            self._show_repro(config, self._sample())
            raise
        self._warn(code.plan.warnings)
        module = codecache.load(code.text, self.kernel.name, self.executor.prepare)
        elapsed = 1e3 * (time.perf_counter() - start)
        _LOG.info("compiled %s in %.1f ms: %s: %r", self.kernel.name, elapsed, module.__file__, config)
        if self.settings.print_output_code and allow_print:
            print(f"# Output code written to: {module.__file__}\n{code.text}", file=sys.stderr)
        loaded = getattr(module, self.kernel.name)
        # a copy: the module's own function keeps the launcher it was written with
        function = types.FunctionType(
            loaded.__code__, loaded.__globals__, loaded.__name__, self.kernel.fn.__defaults__, loaded.__closure__
        )
        function.__kwdefaults__ = {
            **(loaded.__kwdefaults__ or {}),
            "_launcher": failures.Reporting(
                self.executor.launcher(loaded.__kwdefaults__["_launcher"], self.target), self, config
            ),
        }
        if "_otherwise" in function.__kwdefaults__:
            function.__kwdefaults__["_otherwise"] = functools.partial(observed.otherwise, self, config)
        return function

    def _guarded(self, config: Config, keys: Mapping[str, Any], function: Callable[..., Any]) -> Callable[..., Any]:
        """``function`` for tensors that begin at multiples of 16 bytes; others run the config with other ``keys``."""
        anywhere = self._analysis.space.normalize({**config, **keys})

        def run(*args: Any) -> Any:
            if all(a.data_ptr() % 16 == 0 for a in args if isinstance(a, torch.Tensor)):
                return function(*args)
            return self.compile_config(anywhere)(*args)

        return run

    def get_cached_path(self, config: ConfigLike = None) -> str:
        """The file the generated module of a config is kept in."""
        return str(codecache.module_path(self.to_triton_code(config), self.kernel.name))

    def backend_cache_key(self, config: ConfigLike = None) -> str:
        """What the generated module of a config is kept under: equal for equal text, in every process."""
        return codecache.key(self.to_triton_code(config))

    def set_config(self, config: ConfigLike) -> None:
        """Use a config from now on."""
        self._use(self._resolve(config))
        self._by_default = False

    def _use(self, full: Config) -> None:
        run = self.compile_config(full)
        keys = self.executor.without_alignment(self._analysis.code(full).plan)
        if keys is not None:
            run = self._guarded(full, keys, run)
        if self.settings.checked:
            run = run_checked(self.kernel, self.executor, run)
        if self.settings.print_repro:
            run = repro.at_first_call(self, full, run)
        self._config, self._run = full, run
        self.kernel._calls.forget(self)

    def _show_repro(self, config: Config | None, args: Sequence[Any]) -> None:
        """Print the script that makes this call, once per config, if the setting asks for it."""
        if self.settings.print_repro and config not in self._reproduced:
            self._reproduced.add(config)
            repro.show(self, config, args)

    def short_config(self, config: ConfigLike = None) -> Config:
        """A config without the keys at their defaults, but for those that people look for first."""
        full = self._resolve(config)
        changed = full.minimize(self._analysis.space)
        shown = [k for k in full if k in changed or (k in _ALWAYS_SHOWN and full[k] not in ([], None))]
        return Config(**{k: full[k] for k in shown})

    def format_kernel_decorator(self, config: ConfigLike = None, settings: Any = None) -> str:
        """The decorator line that fixes a config, without the keys at their defaults."""
        static = (settings or self.settings).static_shapes
        extra = (
            f", index_dtype={self.settings.index_dtype!r}" if self.settings.index_dtype not in (None, "auto") else ""
        )
        return f"@helion.kernel(config={self.short_config(config)!r}, static_shapes={static}{extra})"

    def resources(self, config: ConfigLike = None) -> Resources:
        """What a config takes on ``target``, compiled offline with its real assembler: registers, spills, shared memory.

        Never raises for being over a limit: see ``fits``. Answers are cached by binary.
        """
        full = self._resolve(config)
        module = self.compile_config(full, allow_print=False)
        plan = self._analysis.code(full).plan
        return BACKENDS[self.settings.backend].toolchain.resources(module.__globals__, plan, self.target)

    # --- running ---------------------------------------------------------------------------------------------------------

    def run_ref(self, *args: Any) -> Any:
        """Run the kernel eagerly on these arguments: the result every config is compared with."""
        return ref_mode.run_reference(self.kernel, self.kernel.normalize_args(*args))

    def __call__(self, *args: Any) -> Any:
        """Run on arguments like those it was bound for; data may stand on another device (see ``Kernel.bind``).

        Raises ``exc.BoundToOtherArguments`` where the generated code would not be right for them.
        """
        values = self.kernel.normalize_args(*args)
        check_call(self.kernel, values)
        self._check_arguments(values)
        return self.run_unchecked(*values)

    def _check_arguments(self, values: tuple[Any, ...]) -> None:
        if self.is_eager:
            return
        key = self.kernel.arguments_key(values)
        if key == self._key and not self._numbers:
            return
        ours, theirs = any_device(self._key), any_device(key)
        for name, expected, actual in zip(
            (*self.kernel.signature.parameters, "memory shared"), ours, theirs, strict=True
        ):
            if expected != actual:
                raise exc.BoundToOtherArguments(
                    kernel=self.kernel.name, what=name, expected=repr(expected), actual=repr(actual)
                )
        for name, at, number in self._numbers:
            if pick(values, at) != number:
                raise exc.BoundToOtherArguments(
                    kernel=self.kernel.name, what=name, expected=repr(number), actual=repr(pick(values, at))
                )

    def run_unchecked(self, *args: Any) -> Any:
        """``__call__`` for all arguments in order, known to have the key of this bound kernel."""
        run = self._run
        if run is None:
            if self.is_eager:
                return ref_mode.call_eagerly(self.kernel, self.kernel.normalize_args(*args))
            run = self._first_call(args)
        try:
            return run(*args)
        except self.executor.error as error:
            return failures.recover(self, run, args, error)

    def _first_call(self, args: tuple[Any, ...]) -> Callable[..., Any]:
        self._check_device(args)
        self.ensure_config_exists(args)
        assert self._run is not None
        return self._run

    def ensure_config_exists(self, args: Sequence[Any]) -> None:
        """Choose and compile the config that a call with these arguments would run, unless there is one in use.

        Raises ``exc.NoFeasibleConfig`` if they would go to a GPU that, with no config given, none can fit.
        """
        if self._run is not None or self.is_eager:
            return
        if not self._analysis.program.roots:  # host loops over nothing: nothing to compile, and nothing is launched
            self._run = self.run_ref
            return
        if not self.configs and self.settings.autotuner_fn is None:
            failures.check_feasible(self, args)
            config = self.default_config()
            self._announce(config)
            self._use(config)
            self._by_default = True
        elif len(self.configs) == 1:
            self.set_config(self.configs[0])
        else:
            self.autotune(args, force=False)

    def _check_device(self, args: tuple[Any, ...]) -> None:
        """CUDA tensors run only what was compiled for their device; CPU tensors are interpreted whatever the target."""
        device = next((a.device for a in args if isinstance(a, torch.Tensor)), None)
        if device is None or device.type == "cpu":
            return
        if device.type == "meta":
            raise exc.WrongTarget(
                kernel=self.kernel.name, bound=self.target.name, device="meta tensors, which have no data"
            )
        actual = self.kernel._target(args, None)
        if actual.name != self.target.name:
            raise exc.WrongTarget(kernel=self.kernel.name, bound=self.target.name, device=f"{device} ({actual.name})")

    def _announce(self, config: Config) -> None:
        if self.kernel.announced:
            return
        self.kernel.announced = True
        heuristic = next((s.heuristic for s in self.seeds if s.config == config), "the conservative config")
        print(
            f"helion: {self.kernel.name}: no config given, using {heuristic}: {self.format_kernel_decorator(config)}",
            file=sys.stderr,
        )

    def autotune(self, args: Sequence[Any], *, force: bool = True, **options: Any) -> Config:
        """Choose among the given configs, or the default config and the seeds when none are given: the fastest on a
        GPU, the first legal one on CPU. With ``autotune_effort="none"`` the only config, or the default. A kernel's
        ``autotuner_fn`` is called with the bound kernel, the arguments and ``options`` instead; the config is what
        ``autotune()`` of its result gives.

        Raises ``exc.AutotuningDisallowedInEnvironment`` if several would have to be tried and the environment forbids
        it, and ``exc.NoFeasibleConfig`` where none is given and none can fit the GPU.
        """
        if self.settings.autotuner_fn is not None:
            self.settings.check_autotuning_disabled()
            self.set_config(self.settings.autotuner_fn(self, args, **options).autotune())
            assert self._config is not None
            return self._config
        if not self.configs:
            failures.check_feasible(self, args)
        if self.settings.autotune_effort == "none" and len(self.configs) < 2:
            self.set_config(None if self.configs else self.default_config())
            assert self._config is not None
            return self._config
        legal, refusals = [], []
        for config in self.configs:
            try:
                legal.append(self.config_spec.normalize(config))
            except exc.InvalidConfig as error:
                refusals.append(str(error))
        if not self.configs:
            legal = list(dict.fromkeys((self.default_config(), *(seed.config for seed in self.seeds))))
        if not legal:
            raise exc.NoConfigFound(kernel=self.kernel.name, reason="; ".join(refusals))
        if len(legal) > 1:
            self.settings.check_autotuning_disabled()
        on_gpu = any(isinstance(a, torch.Tensor) and a.device.type == "cuda" for a in args)
        best = measure.fastest(self, legal, args) if on_gpu and len(legal) > 1 else legal[0]
        self.set_config(best)
        return best

    def explain(self, format: str = "text") -> str:
        """Facts, verdicts with reasons, seeds, predicted beside measured resources; ``format`` is text or json."""
        return explain.explain(self, format)
