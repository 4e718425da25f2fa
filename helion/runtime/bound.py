"""``BoundKernel``: a kernel for one specialization, as users see it."""

from __future__ import annotations

import html
import pickle
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import exc
from .._support.lazy import lazy
from .._support.tracebacks import short_errors, shortened
from ..config import Config
from ..hardware import Target
from ..settings import Settings
from .call.arg_snapshot import describe
from .call.argument_checks import check_call
from .call.size_buckets import Bucket
from .specialization import kept
from .specialization.compiled import ConfigLike
from .variants.variant import Variant
from .views import Views

if TYPE_CHECKING:
    from .. import pipeline
    from .._compiler.context import CompileContext
    from .._compiler.facts.records import KernelFacts
    from ..autotuner import pretuned
    from ..autotuner.cache.rows import Entry
    from ..autotuner.options import Options
    from ..autotuner.proposal import Seed
    from ..autotuner.space import ConfigSpace
    from .tuning import autotune as tuning
    from .tuning import offline, requests
else:
    pretuned = lazy("helion.autotuner.pretuned")
    offline = lazy("helion.runtime.tuning.offline")
    requests = lazy("helion.runtime.tuning.requests")
    tuning = lazy("helion.runtime.tuning.autotune")


class BoundKernel(Views):
    """A kernel for one specialization and one target, made by ``Kernel.bind``: its analysis, and its compiled configs.

    Facts, seeds and the config space are computed on first use; each config is compiled once.

    Attributes:
        kernel: the ``helion.Kernel``.
        settings: its ``helion.Settings``.
        configs: the configs that the decorator was given.
        target: the ``helion.hardware.Target`` it is compiled for.
    """

    def __init__(self, variant: Variant) -> None:
        self.variant = variant
        self.kernel: Any = variant.kernel
        self.settings: Settings = variant.kernel.settings
        self.configs: list[Config] = variant.kernel.configs
        self.target: Target = variant.target

    def __copy__(self) -> BoundKernel:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> BoundKernel:
        return self

    def __reduce_ex__(self, protocol: Any) -> str:
        raise pickle.PicklingError(
            f"a bound kernel ({self.kernel.name!r}) cannot be pickled; pickle the kernel, and bind it where it is needed"
        )

    def __repr__(self) -> str:
        arguments = zip(self.kernel.signature.parameters, self.variant.specialized.snapshots, strict=True)
        shown = ", ".join(f"{name}={describe(value)}" for name, value in arguments)
        numbers = "".join(f", {name} is {value}" for name, _, value in self.variant.specialized.numbers)
        return f"<helion.BoundKernel {self.kernel.name}({shown}) for {self.target.name}{numbers}>"

    def _repr_html_(self) -> str:
        """Return the page of ``explain("html")`` in a frame, as notebooks show it."""
        page = html.escape(self.explain("html"))
        return f'<iframe srcdoc="{page}" title="{html.escape(repr(self))}" width="100%" height="600"></iframe>'

    # --- analysis -----------------------------------------------------------------------------------------------------

    @property
    def _analysis(self) -> pipeline.Analysis:
        return self.variant.analysis

    @property
    def specialized(self) -> Mapping[str, Any]:
        """The paths in the arguments of the numbers that the compiled code depends on, by name; may be empty."""
        return {} if self.is_eager else self._analysis.traced.specialized

    @property
    def is_eager(self) -> bool:
        """True if calls run the Python function itself instead of compiled code."""
        return self.variant.specialized.is_eager

    @property
    def bucket(self) -> tuple[Bucket, ...]:
        """The size hints that select its config."""
        return self.variant.bucket

    @property
    def env(self) -> CompileContext:
        """The environment that the kernel is compiled for: ``device``, ``settings``, ``target``, ``index_dtype``."""
        context = self._analysis.context
        return kept.context_of(self.variant.specialized) if context is None else context

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
        of = self.variant.specialized
        name = of.gpu_analysis.backend.name
        kept.keep(of, None)
        return name

    @property
    def seeds(self) -> tuple[Seed, ...]:
        """Legal configs the heuristics propose, best first, at most 10."""
        return self._analysis.seeds.seeds

    @property
    def declined(self) -> tuple[tuple[str, str], ...]:
        """Heuristics that proposed nothing, with the reason."""
        return self._analysis.seeds.declined

    # --- configs ------------------------------------------------------------------------------------------------------

    @short_errors
    def default_config(self) -> Config:
        """Return the config that runs if nothing was tuned.

        It is the first promoted seed, unless another is predicted to be much faster. Without a promoted seed, it is the
        fastest by prediction of the seeds and the conservative config. A kernel decorated with ``helion.aot_kernel``
        takes it from its table.
        """
        return self.variant.specialized.default_config

    def conservative_config(self) -> Config:
        """Return a config of small safe tiles, made without any heuristic."""
        return self._analysis.space.conservative()

    @property
    def config(self) -> Config | None:
        """The config in use; None before the first call."""
        return self.variant.config

    @short_errors
    def set_config(self, config: ConfigLike) -> None:
        """Use a config for all later calls.

        With ``backend="auto"`` it may belong to another backend that accepts the kernel, which is used from then on.
        With ``static_shapes=False`` it applies to all sizes, except those that a config was tuned or set for.

        Raises:
            exc.InvalidConfig: the config is not legal for the kernel.
        """
        self.variant.set_config(config)

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
        return requests.autotune(self.variant, args, force=force, **options)

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
        return requests.search(self.variant, args, candidates, force=force, **options)

    # --- running ------------------------------------------------------------------------------------------------------

    def run_ref(self, *args: Any) -> Any:
        """Run the Python function itself, eagerly, on these arguments."""
        return self.variant.run_reference(*args)

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
            self.variant.check_arguments(values)
            return self.variant.run(*values)
        except exc.Base as error:
            raise shortened(error)  # noqa: B904 - the same error


def ranked_offline(bound: BoundKernel, args: Sequence[Any], options: Options, configs: int) -> Entry:
    """Return the cache entry of an offline ranking for a bound kernel and its arguments."""
    of = bound.variant.specialized
    return offline.entry_of(of, args, offline.ranked(of, options, configs))


def kept_entry(bound: BoundKernel, args: Sequence[Any]) -> Entry | None:
    """Return the cache entry of a bound kernel and its arguments, with all candidates tried."""
    return tuning.kept_entry(bound.variant.specialized, args)


def measured_row(bound: BoundKernel, entry: Entry) -> pretuned.Row:
    """Return the row of a measured cache entry for kernels of the same structure. It has no names and no source."""
    of = bound.variant.specialized
    analysis, row = of.analysis, entry.row
    config = of.short_config(row.config)
    times = (row.microseconds, row.baseline_microseconds)
    return pretuned.row_of(analysis.facts, of.target, analysis.backend.name, config, *times)
