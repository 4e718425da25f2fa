"""A kernel for one specialization: its analysis, and its compiled configs."""

from __future__ import annotations

import logging
import pathlib
import pickle
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .. import exc
from .._exact import are_same
from .._support import logs as _logging
from .._support.lazy import lazy
from .._support.tracebacks import short_errors, shortened
from ..config import Config, as_config
from ..hardware import Target
from . import codecache, interpreted
from .choice import Choice, ConfigLike
from .compiled import Compiled
from .inputs import check_call
from .output_code import OutputCodeOptions
from .remembered import described
from .signature import Key, any_device, class_of, has_small_sizes, pick, tensors_in
from .size_buckets import Bucket
from .specialized import Specialized
from .targets import target_of

if TYPE_CHECKING:
    from .. import pipeline
    from .._compiler.context import CompileContext
    from .._compiler.facts.records import KernelFacts
    from .._compiler.host import program as host_program
    from .._compiler.ir import effects
    from ..autotuner import options as search_options
    from ..autotuner.cache.rows import Entry
    from ..autotuner.proposal import Seed
    from ..autotuner.space import ConfigSpace
    from ..backends.execution import Resources
    from . import aot, ref_mode, repro
    from .explanation import explain
    from .kernel import Kernel
    from .tuning import at_call, offline, several
    from .tuning import autotune as tuning
else:
    aot = lazy("helion.runtime.aot")
    effects = lazy("helion._compiler.ir.effects")
    host_program = lazy("helion._compiler.host.program")
    search_options = lazy("helion.autotuner.options")
    at_call = lazy("helion.runtime.tuning.at_call")
    offline = lazy("helion.runtime.tuning.offline")
    several = lazy("helion.runtime.tuning.several")
    tuning = lazy("helion.runtime.tuning.autotune")
    explain = lazy("helion.runtime.explanation.explain")
    ref_mode = lazy("helion.runtime.ref_mode")
    repro = lazy("helion.runtime.repro")

_LOG = _logging.logger(__name__)


class Peers:
    """The bound kernels for different sizes of one class, and the config that was set for all of them."""

    def __init__(self) -> None:
        self.members: weakref.WeakSet[BoundKernel] = weakref.WeakSet()
        self.config: Config | None = None


class BoundKernel:
    """A kernel for one specialization and one target, made by ``Kernel.bind``: its analysis, and its compiled configs.

    Facts, seeds and the config space are computed when first asked for; each config is compiled once.

    Attributes:
        kernel: the ``helion.Kernel``.
        settings: its ``helion.Settings``.
        configs: the configs that the decorator was given.
        target: the ``helion.hardware.Target`` it is compiled for.
    """

    def __init__(self, kernel: Kernel, values: tuple[Any, ...], key: Key, target: Target) -> None:
        self.kernel = kernel
        self.settings = kernel.settings
        self.target = target
        self.configs = kernel.configs
        self._of = Specialized(kernel, values, key, target)
        #: Bound kernels of the same class and sizes whose equal dimensions or strides need other code, and the one that
        #: leads this one.
        self.followers: weakref.WeakSet[BoundKernel] = weakref.WeakSet()
        self._first: BoundKernel | None = None
        #: State shared with bound kernels of the same class for other sizes.
        self._peers = Peers()
        self._is_own = False
        #: Its backward kernels, with the same lifetime.
        self.differentiation: Any = None
        self.compiled = Compiled(self._of, self._run_others)
        self._choice = Choice(self.compiled, lambda: kernel.calls.forget(self))
        #: Compiled configs of other backends, by the name of the backend.
        self._elsewhere: dict[str, Compiled] = {}
        if self.is_eager:  # an eager kernel need not compile
            return
        start = time.perf_counter()
        try:
            self._of.analyse(values)
        except exc.BaseError:
            repro.show_once(self._of, None, values)
            raise
        if _LOG.isEnabledFor(logging.INFO):
            elapsed = 1e3 * (time.perf_counter() - start)
            _LOG.info("bound %s for %s in %.1f ms, key %s", kernel.name, target.name, elapsed, key)

    def _run_others(self, args: tuple[Any, ...], config: Config) -> Any:
        """Run a config on arguments of its class whose sizes and strides need other code."""
        other = self.kernel.variant(args, self.target)
        if other is self:
            raise exc.InternalError(step="launch", reason="arguments of the key it was bound for are of another class")
        if config == self._choice.config and self._choice.asked is None:
            return other.run_unchecked(*args)
        try:
            run = other.compile_config(config)
        except exc.InvalidConfig:  # where sizes are not equal, the lists of a config may be longer
            return other.run_unchecked(*args)
        return run(*args)

    def follow(self, first: BoundKernel) -> None:
        """Run the config that the user sets on ``first``, the bound kernel that leads its class and sizes."""
        self._first = first
        first.followers.add(self)

    def join(self, others: Sequence[BoundKernel]) -> None:
        """Join the bound kernels for other sizes of the same class: one config may be set for all of them."""
        if others:
            self._peers = others[0]._peers
        self._peers.members.add(self)

    def _adopt(self, config: Config) -> bool:
        """Use a config of the bound kernel that this one follows, if it is legal here."""
        if not self._analysis.program.roots:  # it launches nothing
            return False
        try:
            self._use(*self._taking(config))
        except exc.InvalidConfig:
            return False
        return True

    @property
    def _analysis(self) -> pipeline.Analysis:
        return self._of.analysis

    @property
    def specialized(self) -> Mapping[str, Any]:
        """The paths in the arguments of the numbers that the compiled code depends on, by name; may be empty."""
        return {} if self.is_eager else self._analysis.traced.specialized

    @property
    def is_eager(self) -> bool:
        """True if calls run the Python function itself instead of compiled code."""
        return self._of.is_eager

    def has_numbers_of(self, values: tuple[Any, ...]) -> bool:
        """Return whether arguments have the numbers that the compiled code depends on, and sizes of the same bucket."""
        return self._of.has_numbers_of(values) and self._of.is_of_bucket(values)

    def serves(self, values: tuple[Any, ...]) -> bool:
        """Return whether the compiled code is right for the sizes and strides of arguments of its class."""
        return self.is_eager or self._of.serves(values)

    @property
    def has_small_sizes(self) -> bool:
        """True if a dynamic size that it was bound for is 0 or 1."""
        return has_small_sizes(self._of.key)

    def numbers_in(self, values: tuple[Any, ...]) -> tuple[tuple[str, Any], ...]:
        """Return the values in these arguments of the numbers that the compiled code depends on, by host expression."""
        return tuple((name, pick(values, at)) for name, at, _ in self._of.numbers)

    @property
    def bucket(self) -> tuple[Bucket, ...]:
        """The size hints that select its config."""
        return self._of.bucket

    def is_current(self) -> bool:
        """Return whether the globals that were compiled in are unchanged."""
        return self._of.is_current()

    def __copy__(self) -> BoundKernel:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> BoundKernel:
        return self

    def __reduce_ex__(self, protocol: Any) -> str:
        raise pickle.PicklingError(
            f"a bound kernel ({self.kernel.name!r}) cannot be pickled; pickle the kernel, and bind it where it is needed"
        )

    def __repr__(self) -> str:
        arguments = zip(self.kernel.signature.parameters, self._of.remembered, strict=True)
        shown = ", ".join(f"{name}={described(value)}" for name, value in arguments)
        numbers = "".join(f", {name} is {value}" for name, _, value in self._of.numbers)
        return f"<helion.BoundKernel {self.kernel.name}({shown}) for {self.target.name}{numbers}>"

    # --- analysis
    # ----------------------------------------------------------------------------------------------------------

    @property
    def env(self) -> CompileContext:
        """The environment that the kernel is compiled for: ``device``, ``settings``, ``target``, ``index_dtype``."""
        context = self._analysis.context
        assert context is not None
        return context

    @property
    def facts(self) -> KernelFacts:
        """Axes, memory operations, matmuls, reductions and their combinations, as analyzed from the kernel."""
        return self._analysis.facts

    @property
    def config_spec(self) -> ConfigSpace:
        """The space of configs: ranges, defaults, ``normalize`` and ``default_config()``."""
        return self._analysis.config_spec

    @property
    def backend(self) -> str:
        """The backend in use, ``"triton"`` or ``"cute"``: the one that was requested, or that ``auto`` selected."""
        return self._analysis.backend.name

    @property
    def backend_on_gpu(self) -> str:
        """The name of the backend that a call with tensors of the target GPU runs.

        It is the one in use, unless no backend was named: then tensors that are not on a GPU use the general backend.
        """
        return self._of.on_gpu.backend.name

    @property
    def seeds(self) -> tuple[Seed, ...]:
        """Legal configs the heuristics propose, best first, at most 10."""
        return self._analysis.seeds.seeds

    @property
    def declined(self) -> tuple[tuple[str, str], ...]:
        """Heuristics that proposed nothing, with the reason."""
        return self._analysis.seeds.declined

    @short_errors
    def default_config(self) -> Config:
        """Return the config that runs if nothing was tuned.

        It is the first promoted seed, unless another is predicted to be much faster. Without a promoted seed, it is the
        fastest by prediction of the seeds and the conservative config. A kernel decorated with ``helion.aot_kernel``
        takes it from its table.
        """
        return self._of.default_config

    def conservative_config(self) -> Config:
        """Return a config of small safe tiles, made without any heuristic."""
        return self._analysis.space.conservative()

    @property
    def config(self) -> Config | None:
        """The config in use; None before the first call."""
        if self._choice.config is not None:
            return self._choice.config
        return next((other.config for other in self.followers if other.config is not None), None)

    def _full(self, config: ConfigLike) -> Config:
        """Return a full config: the given one, else the one in use, the decorator's only one, or the default."""
        return self._choice.full(config, self.configs)

    def _taking(self, config: ConfigLike) -> tuple[Compiled, Config]:
        """Return the compiler of a config, and its full form.

        It is the backend in use, or another that accepts the config if the choice was left open.
        """
        if config is None:
            return self.compiled, self._full(None)
        analysis, full = self._analysis.taking(config)
        return self._compiled_by(analysis), full

    def _compiled_by(self, analysis: pipeline.Analysis) -> Compiled:
        if analysis is self._analysis:
            return self.compiled
        with self.compiled.lock:
            name = analysis.backend.name
            if name not in self._elsewhere:
                self._elsewhere[name] = self.compiled.of(self._of.of(analysis))
            return self._elsewhere[name]

    def _of_backend(self, name: str, config: ConfigLike) -> tuple[Compiled, Config]:
        """Return the result of ``_taking`` for a backend by name, with its default for None.

        The backend in use serves if the named one refuses the kernel.
        """
        analysis = self._analysis.led_by(name)
        if analysis is self._analysis:
            return self.compiled, self._full(config)
        compiled = self._compiled_by(analysis)
        return compiled, Choice(compiled, lambda: None).full(config, self.configs)

    # --- code ------------------------------------------------------------------------------------------------------------

    @short_errors
    def to_code(
        self,
        config: ConfigLike = None,
        *,
        options: OutputCodeOptions | None = None,
        emit_repro_caller: bool = False,
        output_origin_lines: bool | None = None,
    ) -> str:
        """Return the generated module for a config as text.

        Args:
            config: a ``helion.Config`` or a dict; None is the config in use, else the one that would run.
            options: ``OutputCodeOptions(allow_helion_deps=False)`` for a module that does not import helion.
            emit_repro_caller: append ``call()``, which runs the kernel on random arguments of the shapes it is bound
                to. Running the module as a script calls it.
            output_origin_lines: name the user's lines in comments; None leaves it to the setting.

        Raises:
            exc.InvalidConfig: the config is not legal for the kernel.
        """
        return self._text(*self._taking(config), options, emit_repro_caller, output_origin_lines)

    @short_errors
    def to_triton_code(
        self,
        config: ConfigLike = None,
        *,
        options: OutputCodeOptions | None = None,
        emit_repro_caller: bool = False,
        output_origin_lines: bool | None = None,
    ) -> str:
        """Return the text of ``to_code`` for the Triton backend.

        If another backend is in use, None means Triton's default config. If Triton is not among the candidate backends,
        the text is that of the backend in use.

        If Triton is not among the candidate backends, the text is that of the backend in use.
        """
        found = self._of_backend("triton", config)
        return self._text(*found, options, emit_repro_caller, output_origin_lines)

    @short_errors
    def to_cute_code(
        self,
        config: ConfigLike = None,
        *,
        options: OutputCodeOptions | None = None,
        emit_repro_caller: bool = False,
        output_origin_lines: bool | None = None,
    ) -> str:
        """Return the text of ``to_code`` for the cute backend. If another backend is in use, None means cute's default.

        Raises:
            exc.InvalidAPIUsage: the cute backend refuses the kernel, or is not a candidate.
        """
        compiled, full = self._of_backend("cute", config)
        backend = compiled.specialized.analysis.backend.name
        if backend != "cute":
            raise exc.InvalidAPIUsage(f"Kernel {self.kernel.name!r} has the backend {backend!r}; call to_code().")
        return self._text(compiled, full, options, emit_repro_caller, output_origin_lines)

    def _text(
        self,
        compiled: Compiled,
        config: Config,
        options: OutputCodeOptions | None,
        emit_repro_caller: bool,
        origin_lines: bool | None,
    ) -> str:
        of = compiled.specialized
        if options is not None and not isinstance(options, OutputCodeOptions):
            raise TypeError(f"options= takes a helion.OutputCodeOptions, got {options!r}")
        if options is not None and options.jax_fn:
            raise exc.InvalidAPIUsage(
                f"The backend {of.analysis.backend.name!r} makes no JAX functions; leave out jax_fn."
            )
        form = host_program.Form(
            alone=options is not None and not options.allow_helion_deps,
            source=repro.source_of(self.kernel) if emit_repro_caller else None,
        )
        text = of.analysis.text(config, origin_lines, form)
        return repro.with_caller(text, of) if emit_repro_caller else text

    def plan(self, config: ConfigLike = None) -> Any:
        """Return the plan of a config, as the backend's planner makes it: data that prints as text.

        The cute backend's plan has roles, pipelines, stages, shared and tensor memory.

        Raises:
            exc.InvalidConfig: the config is not legal for the kernel.
        """
        compiled, full = self._taking(config)
        return compiled.specialized.analysis.plan(full)

    def export_shared_object(self, path: str | pathlib.Path, config: ConfigLike = None) -> pathlib.Path:
        """Write the kernel of a config as a shared object that runs where neither its compiler nor helion is installed.

        Its functions take C types and return CUDA's status, 0 for success. ``int32_t helion_load(int32_t device)`` is
        called once per device. ``int32_t helion_clusters(void)`` returns how many clusters are resident at once.
        ``int32_t helion_launch(void *tensor, ..., int32_t clusters, void *stream)`` takes the tensors that
        ``plan(config).tensors`` names, in its order. They must have exactly the bound shapes and strides and begin at
        multiples of 16 bytes. If ``int64_t helion_workspace(void)`` is not 0, the last tensor is that many bytes of
        device memory, zero before the first launch. Launches that may overlap need one each. The process needs CUDA's
        runtime library.

        Args:
            path: the file to write.
            config: as for ``to_code``.

        Returns:
            The path.

        Raises:
            exc.InvalidAPIUsage: the backend has no such form.
        """
        compiled, full = self._taking(config)
        return compiled.export(full, pathlib.Path(path))

    @short_errors
    def compile_config(self, config: ConfigLike = None, *, allow_print: bool = True) -> Callable[..., Any]:
        """Generate, load and return the function for a config: it takes the arguments of a call.

        As in a call, tensors that do not begin at multiples of 16 bytes run a config with ``tensor_descriptor`` by pointers.

        Args:
            config: as for ``to_code``.
            allow_print: print the code where ``print_output_code`` is set.

        Raises:
            exc.InvalidConfig: the config is not legal for the kernel.
        """
        compiled, full = self._taking(config)
        return compiled.for_any_alignment(full, allow_print)

    def get_cached_path(self, config: ConfigLike = None) -> str:
        """Return the path of the file that holds the generated module of a config."""
        compiled, full = self._taking(config)
        return compiled.specialized.path(full)

    def backend_cache_key(self, config: ConfigLike = None) -> str:
        """Return the key of a config's generated module in the cache: equal for equal text, in every process."""
        return codecache.key(self.to_code(config))

    @short_errors
    def set_config(self, config: ConfigLike) -> None:
        """Use a config for all later calls.

        With ``backend="auto"`` it may belong to another backend that accepts the kernel, which is used from then on.
        With ``static_shapes=False`` it applies to all sizes, except those that a config was tuned or set for.

        Raises:
            exc.InvalidConfig: the config is not legal for the kernel.
        """
        compiled, full = self._taking(config)
        self._use(compiled, full)
        self._is_own = True
        for other in self.followers:
            other._adopt(full)
        self._peers.config = full
        for other in tuple(self._peers.members):
            if other is not self and not other._is_own:
                other._adopt(full)
                for follower in other.followers:
                    follower._adopt(full)

    def use(self, config: Config) -> None:
        """Use a full config for all later calls with such sizes."""
        self._use(self.compiled, config)
        self._is_own = True
        for other in self.followers:
            other._adopt(config)

    def _use(self, compiled: Compiled, config: Config) -> None:
        """Use a full config with its compiled configs; this may switch the backend."""
        if compiled is self.compiled:
            self._choice.use(config)
            return
        choice = Choice(compiled, self._choice.changed)
        choice.use(config)
        self._of, self.compiled, self._choice = compiled.specialized, compiled, choice
        self._elsewhere.clear()
        choice.changed()  # calls that were kept meanwhile run the former

    def short_config(self, config: ConfigLike = None) -> Config:
        """Return a config without the keys at their defaults, except tile sizes, warps and stages."""
        compiled, full = self._taking(config)
        return compiled.specialized.short_config(full)

    def format_kernel_decorator(self, config: ConfigLike = None, settings: Any = None) -> str:
        """Return the decorator line that fixes a config, without the keys at their defaults."""
        compiled, full = self._taking(config)
        return compiled.specialized.decorator(full, settings)

    @short_errors
    def resources(self, config: ConfigLike = None) -> Resources:
        """Compile a config for ``target`` with its real assembler, and read its resources from the binary.

        No GPU is needed. A config over a limit does not raise: see ``fits``.

        Args:
            config: as for ``to_code``.

        Returns:
            Registers per thread, spilled bytes per thread, bytes of shared memory and the limit, threads of a program.

        Raises:
            exc.InvalidConfig: the config is not legal for the kernel.
        """
        compiled, full = self._taking(config)
        return compiled.resources(full)

    # --- running ---------------------------------------------------------------------------------------------------------

    def run_ref(self, *args: Any) -> Any:
        """Run the Python function itself, eagerly, on these arguments."""
        return ref_mode.run_reference(self.kernel, self.kernel.normalize_args(*args))

    def __call__(self, *args: Any) -> Any:
        """Run on arguments like those it was bound for.

        Raises:
            exc.BoundToOtherArguments: the generated code is not valid for them. exc.WrongTarget: they are on a GPU it
            was not compiled for.
        """
        try:
            values = self.kernel.normalize_args(*args)
            if check_call(self.kernel, values):
                raise exc.UnsupportedTracer(
                    kernel=self.kernel.name,
                    where="as a bound kernel while torch records",
                    remedy="a call of the kernel itself",
                )
            self._check_arguments(values)
            return self.run_unchecked(*values)
        except exc.Base as error:
            raise shortened(error)  # noqa: B904 - the same error

    def _check_arguments(self, values: tuple[Any, ...]) -> None:
        if self.is_eager:
            return
        key = self.kernel.arguments_key(values)
        if key == self._of.key and not self._of.numbers:
            return
        ours, theirs = any_device(class_of(self._of.key)), any_device(class_of(key))
        for name, expected, actual in zip(
            (*self.kernel.signature.parameters, "memory shared"), ours, theirs, strict=True
        ):
            if expected != actual:
                raise exc.BoundToOtherArguments(
                    kernel=self.kernel.name, what=name, expected=repr(expected), actual=repr(actual)
                )
        for name, at, number in self._of.numbers:
            if not are_same(pick(values, at), number):
                raise exc.BoundToOtherArguments(
                    kernel=self.kernel.name, what=name, expected=repr(number), actual=repr(pick(values, at))
                )

    def run_unchecked(self, *args: Any) -> Any:
        """Run on all arguments in order, which must have the key of this bound kernel."""
        run = self._choice.run
        if run is None:
            if self.is_eager:
                return ref_mode.call_eagerly(self.kernel, self.kernel.normalize_args(*args))
            run = self._first_call(args)
        try:
            return run(*args)
        except self._of.executor.error as error:
            self._choice.give_up(run, error)
        return self.run_unchecked(*args)

    def _first_call(self, args: tuple[Any, ...]) -> Callable[..., Any]:
        self._check_device(args)
        self.ensure_config_exists(args)
        assert self._choice.run is not None
        return self._choice.run

    def ensure_config_exists(self, args: Sequence[Any]) -> None:
        """Choose and compile the config that a call with these arguments runs, unless one is in use.

        Raises:
            exc.NoFeasibleConfig: no config is given, and none can fit the GPU.
        """
        if self._choice.run is not None or self.is_eager:
            return
        if not self._analysis.program.roots:  # host loops over nothing: nothing to compile, and nothing is launched
            self._choice.run = self.run_ref
            return
        asked = self._peers.config if self._first is None else self._first._choice.asked
        if asked is not None and self._adopt(asked):
            return
        if not self.configs and self.kernel.aot is not None and aot.collecting(self.kernel):
            aot.record(self.kernel, self.target, args, self.short_config(self.autotune(args)).to_dict())
            for others in aot.others(self.kernel):
                self.kernel.bind(others).ensure_config_exists(others)
        elif self.settings.autotuner_fn is None and (not self.configs or self._is_forced(args)):
            given = self._legal_configs(self.configs)
            if not given:
                self._choice.check_feasible(args)
            tuned = at_call.tuned_config(self._of, args, given)
            config = tuned or (given[0] if given else self._untuned(args))
            if tuned is None and not given:
                asked, large = config, interpreted.is_interpreted(args)
                config = interpreted.in_large_tiles(self._of, config) if large else config
                self._announce(asked, config)
            self._choice.use(config, by_default=True)
        elif len(self.configs) == 1:
            self.set_config(self.configs[0])
        else:
            self.autotune(args, force=False)

    def _untuned(self, args: Sequence[Any]) -> Config:
        return at_call.untuned_config(self._of, args, self._choice.verified(args))

    def _is_forced(self, args: Sequence[Any]) -> bool:
        return bool(self.settings.force_autotune) and at_call.is_forced(self._of, args)

    def _check_device(self, args: tuple[Any, ...]) -> None:
        """Refuse CUDA tensors of another device than the target. CPU tensors are interpreted for any target."""
        device = next((a.device for a in args if isinstance(a, torch.Tensor)), None)
        misplaced = None if self.is_eager else self._analysis.traced.misplaced
        if misplaced is not None and all(tensor.device.type == "cpu" for tensor in tensors_in(args)):
            raise misplaced
        if device is None or device.type == "cpu":
            return
        if device.type == "meta":
            nothing = "meta tensors, which have no data; pass tensors that have, or look at the kernel with bind"
            raise exc.WrongTarget(kernel=self.kernel.name, bound=self.target.name, device=nothing, remedy="")
        actual = target_of(self.kernel.name, args)
        if actual.name != self.target.name:
            raise exc.WrongTarget(
                kernel=self.kernel.name,
                bound=self.target.name,
                device=f"{device} ({actual.name})",
                remedy="; bind it without target=, or with the target of that device",
            )

    def _announce(self, config: Config, used: Config) -> None:
        """Print once which config runs: ``used``, which may have larger tiles than ``config`` in the interpreter."""
        if self.kernel.announced or _logging.is_silent("default"):
            return
        self.kernel.announced = True
        if config == self._of.tabled:
            return
        at, seed = next(((at, s) for at, s in enumerate(self.seeds, 1) if s.config == config), (0, None))
        which = f"seed {at} of {len(self.seeds)}, by {seed.heuristic}" if seed else "the conservative config"
        verdict = self.compiled.verdict
        others = () if verdict is None else (f"; {self.short_config(r.config)!r} {r.reason}" for r in verdict.rejected)
        if used != config:
            which += " in larger tiles for CPU tensors (HELION_CPU_CONFIG=target keeps those of the target)"
        _logging.say(
            f"helion: {self.kernel.name}: no config given, using {which}: {self.format_kernel_decorator(used)}"
            f"{''.join(others)}"
        )

    @short_errors
    def autotune(self, args: Sequence[Any], *, force: bool = True, **options: Any) -> Config:
        """Search for the fastest config for these arguments, and use it from then on.

        The search begins with the given configs (and is limited to them), or the default config, the seeds and earlier
        results. Candidates run in a separate process and are compared with the result of reference mode. Results are
        cached (``HELION_CACHE_DIR``). On CPU tensors, and with the effort ``none``, nothing is searched: the first
        legal given config is used, or the default. The setting ``autotuner_fn`` replaces the search: it is called with
        the bound kernel, the arguments and ``options``, and ``autotune()`` of its result returns the config.

        Args:
            args: the arguments of a call.
            force: search also where a config was found before.
            options: ``effort``, ``seconds``, ``configs`` and other fields of ``autotuner.options.Options``, in place of the
                settings ``autotune_*``.

        Raises:
            exc.NoConfigFound: none of the given configs is legal, or none that was tried works.
            exc.NoFeasibleConfig: none is given, and none can fit the GPU.
            exc.InvalidAPIUsage: there is no such option.
            exc.AutotuningDisallowedInEnvironment: a search would be needed, and ``HELION_DISALLOW_AUTOTUNING`` is set.
        """
        if self.settings.autotuner_fn is not None:
            self.settings.check_autotuning_disabled()
            self.use(self._full(self.settings.autotuner_fn(self, args, **options).autotune()))
            return self._in_use()
        return self.search(args, force=force, **options)

    def search(
        self,
        args: Sequence[Any],
        candidates: Sequence[Config | Mapping[str, Any]] = (),
        /,
        *,
        force: bool = True,
        **options: Any,
    ) -> Config:
        """Search as ``autotune`` does where there is no ``autotuner_fn``; such a function may call it.

        Args:
            args: the arguments of a call.
            candidates: the configs to choose from; without any those of the decorator, or else the whole space.
            force: search also where a config was found before.
            options: as for ``autotune``.

        Raises:
            exc.NoConfigFound: none of the given configs is legal, or none that was tried works.
            exc.NoFeasibleConfig: none is given, and none can fit the GPU.
            exc.InvalidAPIUsage: there is no such option.
        """
        wanted = search_options.Options.of(self.settings, "full", options)
        listed = [as_config(config) for config in candidates] or self.configs
        if not listed:
            self._choice.check_feasible(args)
        given = self._legal_configs(listed)
        if len(given) > 1:
            self.settings.check_autotuning_disabled()
        on_gpu = any(isinstance(a, torch.Tensor) and a.device.type == "cuda" for a in args)
        if len(given) == 1 or not (on_gpu or wanted.simulated) or (wanted.effort == "none" and not given):
            self.use(given[0] if given else self.default_config())
            if not on_gpu:
                which = "the first given config" if given else "the default config"
                _logging.say_once(f"helion: {self.kernel.name}: no GPU: nothing was measured, {which} is used")
            return self._in_use()
        if effects.meets_other_gpus(self._analysis.program):
            raise exc.InvalidAPIUsage(
                f"Kernel {self.kernel.name!r} waits for other GPUs, and would never end if one rank ran it more often than the "
                "others. Give it one config, the same on all ranks; compare configs by timing calls on all ranks."
            )
        self.use(self._full(tuning.tuned(self._of, args, wanted, given, force=force).config))
        return self._in_use()

    def _legal_configs(self, configs: Sequence[Config]) -> list[Config]:
        """Return those that are legal, in full. Raises ``exc.NoConfigFound`` if none is."""
        legal, refusals = [], []
        for config in configs:
            try:
                legal.append(self.config_spec.worth_compiling(config))
            except exc.InvalidConfig as error:
                refusals.append(str(error))
        if refusals and not legal:
            raise exc.NoConfigFound(kernel=self.kernel.name, reason="; ".join(refusals))
        return list(dict.fromkeys(legal))

    def _in_use(self) -> Config:
        assert self.config is not None
        return self.config

    @short_errors
    def explain(self, format: str = "text") -> str:
        """Explain the kernel: its kind, its limiting resource, its seeds with reasons, and why other rules declined.

        Predicted and measured resources are shown together.

        Args:
            format: ``"text"``; ``"facts"``, which has every record of the analysis; ``"json"``, all of both; or
                ``"html"``, a self-contained page. The page has the device IR, a picture of each access, the roofline,
                and the kernel next to the generated code.

        Returns:
            The text.

        Raises:
            exc.InvalidAPIUsage: another format.
        """
        return explain.explain(self.compiled, format)


def tune_together(
    sets: Sequence[tuple[BoundKernel, Sequence[Any]]],
    options: search_options.Options,
    aggregation: str,
    relative_to: str | None,
    cache_tag: str | None,
    force: bool,
) -> Config:
    """Choose one config for several bound kernels with their arguments; see ``Kernel.autotune_multi``."""
    first, args = sets[0]
    on_gpu = any(isinstance(a, torch.Tensor) and a.device.type == "cuda" for a in args)
    if options.effort == "none" or not (on_gpu or options.simulated):
        config = first.default_config()
    else:
        pairs = [(bound._of, values) for bound, values in sets]
        config = several.tuned_for_all(pairs, options, aggregation, relative_to, cache_tag, force)
    for bound, _ in sets:
        bound.use(bound._full(config))
    return config


def ranked_offline(bound: BoundKernel, args: Sequence[Any], options: search_options.Options, configs: int) -> Entry:
    """Return the cache entry of an offline ranking for a bound kernel and its arguments."""
    return offline.entry_of(bound._of, args, offline.ranked(bound._of, options, configs))


def kept_entry(bound: BoundKernel, args: Sequence[Any]) -> Entry | None:
    """Return the cache entry of a bound kernel and its arguments, with all candidates tried."""
    return tuning.kept_entry(bound._of, args)
