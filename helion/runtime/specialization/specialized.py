"""A kernel for one specialization: its arguments, target and analysis."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ... import exc
from ..._exact import are_same
from ..._support import logs as _logging
from ..._support.lazy import lazy
from ...backends import GENERAL, stub
from ...config import Config
from ...hardware import Target
from ...settings import RefMode, Settings
from ..call.arg_snapshot import restore, snapshot
from ..call.definition import Definition
from ..call.signature import Key, pick, with_a_batch
from ..call.size_buckets import Bucket, SizeBuckets, buckets_of
from ..generated import codecache
from . import kept, remembered

if TYPE_CHECKING:
    from ... import pipeline
    from ..._compiler.host.code import Code
    from ...backends.execution import Executor
    from . import aot
else:
    pipeline = lazy("helion.pipeline")
    aot = lazy("helion.runtime.specialization.aot")

_LOG = _logging.logger(__name__)
#: Keys that a printed config has even at their defaults, because users look for them first.
_ALWAYS_SHOWN = ("block_sizes", "reduction_loops", "num_warps", "num_stages")


class Specialized:
    """A kernel for arguments of given dtypes, shapes and target. It is analyzed on first use."""

    def __init__(self, kernel: Definition, values: tuple[Any, ...], key: Key, target: Target) -> None:
        self.kernel = kernel
        self.key = key
        self.settings: Settings = kernel.settings
        self.target = target
        self.snapshots = tuple(map(snapshot, values))
        # numbers that the compiled code depends on: name, path in the arguments, value
        self.numbers: tuple[tuple[str, tuple[Any, ...], Any], ...] = ()
        #: Configs for which a script was printed.
        self.printed_scripts: set[Config | None] = set()
        #: Sizes that select different configs, and the bucket of this one; empty before the analysis.
        self.buckets = SizeBuckets()
        self.bucket: tuple[Bucket, ...] = ()
        #: The record of a former process for such a call; whether another backend than the first one is used.
        self.kept: kept.Kept | None = None
        self.is_switched = False

    @functools.cached_property
    def analysis(self) -> pipeline.Analysis:
        return kept.analysis_of(self, self.sample()) or self.analysed_anew()

    def analysed_anew(self) -> pipeline.Analysis:
        """Return the analysis as it is made where no other process has kept one."""
        kernel, values = self.kernel, self.sample()
        found = self._for_any_batch_size(values) or self._analysed(values)
        if self.settings.static_shapes or len(kernel.configs) == 1:
            return found
        self.buckets = buckets_of(found.call_facts.sizes, values, self.settings.size_hints)
        self.bucket = self.buckets.of(values)
        buckets = self.buckets.by_name(self.bucket)
        return found.with_size_hints({name: b.hint_like(int(pick(values, at))) for name, (at, b) in buckets.items()})

    def _analysed(self, values: tuple[Any, ...], backend: str | None = None) -> pipeline.Analysis:
        kernel = self.kernel

        def analyse(values: tuple[Any, ...], name: str | None) -> pipeline.Analysis:
            arguments = dict(zip(kernel.signature.parameters, values, strict=True))
            return pipeline.analyse(
                *(kernel.fn, kernel.name, arguments, self.settings, self.target, kernel.constants),
                configs=kernel.configs,
                backend=name,
            )

        return analyse(values, backend) if backend else remembered.analysed(self, values, analyse)

    def _for_any_batch_size(self, values: tuple[Any, ...]) -> pipeline.Analysis | None:
        """Return an analysis for arguments that are a batch of one which is right for any batch, if there is one."""
        longer = None if self.settings.static_shapes else with_a_batch(values)
        if longer is None:
            return None
        try:
            found = self._analysed(longer)
        except Exception as error:  # the analysis of the arguments themselves reports what is wrong with the kernel
            _LOG.debug("%s has code of its own for a batch of one: %s", self.kernel.name, error)
            return None
        numbers = (at for each in (found, *found.alternatives) for at in each.traced.specialized.values())
        if not all(are_same(pick(values, at), pick(longer, at)) for at in numbers):
            return None
        return found if self.accepts(found, values) else None

    def serves(self, values: tuple[Any, ...]) -> bool:
        """Return whether the code is right for the sizes and strides of arguments of its class."""
        return self.accepts(self.analysis, values)

    def accepts(self, analysis: pipeline.Analysis, values: tuple[Any, ...]) -> bool:
        """Return whether the code of an analysis is right for the sizes and strides of arguments of its class."""
        checks = analysis.call_facts.argument_checks
        return _check(tuple(self.kernel.signature.parameters), checks)(*values)

    @functools.cached_property
    def gpu_analysis(self) -> pipeline.Analysis:
        """The analysis for a call with tensors of the target GPU: if no backend is named, the fastest by prediction.

        Tensors that are not on a GPU use the general backend for any target.
        """
        if self.settings.backend is not None or self.analysis.is_chosen or any(map(stub.on_gpu, self.sample())):
            return self.analysis
        return self._analysed(self.sample(), "auto")

    @functools.cached_property
    def table_config(self) -> Config | None:
        """The config in the kernel's table of tuned configs, if it has one."""
        if self.kernel.aot is None or self.kernel.configs:
            return None
        return aot.config_of(self.kernel, self.target, self.sample(), self.analysis.full_config)

    @property
    def default_config(self) -> Config:
        """The config that runs if nothing was tuned: the one in the kernel's table, else the compiler's choice."""
        return self.table_config or self.analysis.default_config

    def analyse(self) -> None:
        """Trace the kernel, and record the numbers in its arguments that its code depends on."""
        warnings, values = self.analysis.traced.warnings, self.sample()
        self.numbers = tuple((name, at, pick(values, at)) for name, at in self.analysis.traced.specialized.items())
        self.warn(warnings)

    @property
    def executor(self) -> Executor:
        return self.analysis.backend.executor

    @property
    def is_eager(self) -> bool:
        """True if calls run the Python function itself instead of compiled code."""
        return self.settings.ref_mode is RefMode.EAGER

    def depends_on_alignment(self, code: Code) -> bool:
        """Return whether calls with tensors not aligned to 16 bytes run another config or backend."""
        executor, needed = self.executor, code.needs_alignment
        return executor.without_alignment(needed) is not None or (
            executor.aligned_only and len(self.analysis.others) > 0
        )

    def with_analysis(self, analysis: pipeline.Analysis) -> Specialized:
        """Return a copy for another analysis, whose configs may be others."""
        other = copy.copy(self)
        other._take(analysis)
        return other

    def _take(self, analysis: pipeline.Analysis) -> None:
        self.analysis, self.is_switched = analysis, True
        for name in ("table_config", "gpu_analysis"):
            vars(self).pop(name, None)

    def for_next_backend(self, reason: str) -> Specialized:
        """Return a copy for the backend that is predicted to be the next fastest; there must be one."""
        return self.with_analysis(self.analysis.drop_backend(reason))

    def switch_backend(self, reason: str) -> None:
        """Switch to the backend that is predicted to be the next fastest, because of ``reason``; there must be one."""
        self._take(self.analysis.drop_backend(reason))

    def sample(self) -> tuple[Any, ...]:
        """Return arguments like those of every call: the bound ones while they exist, then tensors without data."""
        return tuple(map(restore, self.snapshots))

    def has_numbers_of(self, values: tuple[Any, ...]) -> bool:
        """Return whether the numbers that the compiled code depends on have the same values as at binding."""
        return not self.numbers or all(are_same(pick(values, at), number) for _, at, number in self.numbers)

    def is_of_bucket(self, values: tuple[Any, ...]) -> bool:
        """Return whether the sizes in these arguments are in the bucket that its seeds are made for."""
        return self.buckets.of(values) == self.bucket

    def is_current(self) -> bool:
        """Return whether the globals that were compiled in are unchanged."""
        return self.is_eager or all(guard.holds() for guard in self.analysis.traced.guards)

    def warn(self, warnings: Iterable[exc.Base]) -> None:
        """Print warnings that were not printed before for the kernel."""
        for warning in warnings:
            text = f"WARNING[{type(warning).__name__}]: {warning}"
            if text not in self.kernel.printed_warnings:
                self.kernel.printed_warnings.add(text)
                _logging.say(text)

    def path(self, config: Config) -> str:
        """Return the path of the generated module of a full config."""
        return str(codecache.module_path(self.analysis.text(config), self.kernel.name))

    def short_config(self, config: Config) -> Config:
        """Return a full config without the keys at their defaults, except those that users look for first."""
        changed = config.minimize(self.analysis.space)
        shown = [k for k in config if k in changed or (k in _ALWAYS_SHOWN and config[k] not in ([], None))]
        return Config(**{k: config[k] for k in shown})

    def decorator(self, config: Config, settings: Settings | None = None) -> str:
        """Format the decorator line that fixes a full config."""
        static = (settings or self.settings).static_shapes
        wanted = self.settings.index_dtype
        extra = f", index_dtype={wanted!r}" if wanted not in (None, "auto") else ""
        backend = self.analysis.backend.name
        chosen = f", backend={backend!r}" if backend != GENERAL else ""
        return f"@helion.kernel(config={self.short_config(config)!r}, static_shapes={static}{extra}{chosen})"


@functools.lru_cache(maxsize=256)
def _check(parameters: tuple[str, ...], conditions: tuple[str, ...]) -> Callable[..., bool]:
    """Return a function of the arguments that checks the conditions of generated host code on them."""
    made: Callable[..., bool] = eval(f"lambda {', '.join(parameters)}: bool({' and '.join(conditions) or True})", {})
    return made
