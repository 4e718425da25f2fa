"""The stages of a compilation: source → program → facts → space → seeds → plan → text."""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from . import exc, knobs
from ._compiler.context import CompileContext, Observed, device_of
from ._compiler.frontend.guards import Traced
from ._compiler.host.code import Code
from ._compiler.host.program import PLAIN, Form
from ._compiler.ir.call_facts import CallFacts, call_facts
from ._shapes import NeedsValue, hint_of
from ._support import logs
from ._support.lazy import lazy
from ._support.locks import new_lock
from ._support.records import dataclass, field, replace
from .backends import BACKENDS, GENERAL
from .backends.protocol import Backend
from .config import Config, as_config
from .hardware import Target
from .settings import Settings

if TYPE_CHECKING:
    from ._compiler.facts import collect
    from ._compiler.facts.records import KernelFacts
    from ._compiler.frontend import trace
    from ._compiler.ir import hints as hints_of
    from ._compiler.ir.grammar import Program
    from ._compiler.rewrites.reduction_loops import roll
    from ._compiler.rewrites.steps import Step
    from .autotuner import default, legalise, margins, seeds, space
    from .autotuner.proposal import Predicted
    from .autotuner.seeds import SeedReport
    from .autotuner.space import ConfigSpace
    from .autotuner.space.adjusted import Adjustment, Dropped
    from .backends import tracing
else:
    # Binding needs only the front end, and a call that was kept not even that.
    trace = lazy("helion._compiler.frontend.trace")
    hints_of = lazy("helion._compiler.ir.hints")
    roll = lazy("helion._compiler.rewrites.reduction_loops.roll")
    tracing = lazy("helion.backends.tracing")
    collect = lazy("helion._compiler.facts.collect")
    default = lazy("helion.autotuner.default")
    legalise = lazy("helion.autotuner.legalise")
    margins = lazy("helion.autotuner.margins")
    seeds = lazy("helion.autotuner.seeds")
    space = lazy("helion.autotuner.space")

_LOG = logs.logger(__name__)
#: Kernels and configs whose adjustments were already reported.
_REPORTED: set[tuple[str, Config]] = set()


@dataclass(frozen=True)
class BackendCandidate:
    """A backend that ``auto`` considers: its predicted time in microseconds, or the reason why it is excluded.

    It replaces the general backend where that one is predicted to take more than ``replaces_us``.
    """

    backend: str
    us: float | None = None
    reason: str = ""
    replaces_us: float | None = None


class Others:
    """The backends that ``auto`` considers for a kernel besides the one of an analysis, made on first use.

    ``make`` gives the prediction or reason for each backend, and the analyses for those that accept the kernel.
    ``count`` is the number of these analyses, where it is known before.
    """

    def __init__(
        self,
        make: Callable[[], tuple[tuple[BackendCandidate, ...], tuple[Analysis, ...]]],
        count: Callable[[], int] | None = None,
    ) -> None:
        self._make = make
        self._count = count

    @functools.cached_property
    def _made(self) -> tuple[tuple[BackendCandidate, ...], tuple[Analysis, ...]]:
        return self._make()

    @property
    def candidates(self) -> tuple[BackendCandidate, ...]:
        return self._made[0]

    @property
    def analyses(self) -> tuple[Analysis, ...]:
        return self._made[1]

    def __len__(self) -> int:
        return len(self.analyses) if self._count is None else self._count()

    def map(self, change: Callable[[Analysis], Analysis]) -> Others:
        """Return these with changed analyses. Where there is no choice, there is none after a change."""
        if self is ALONE:
            return self
        return Others(lambda: (self.candidates, tuple(map(change, self.analyses))), self.__len__)

    @staticmethod
    def of(candidates: tuple[BackendCandidate, ...], analyses: tuple[Analysis, ...]) -> Others:
        return Others(lambda: (candidates, analyses))


#: There is no choice: a backend was named.
ALONE = Others.of((), ())


@dataclass
class Analysis:
    """The analysis of one specialization. Each part is computed on first use."""

    traced: Traced
    name: str
    target: Target
    settings: Settings
    backend: Backend[Any]
    #: The context it was compiled for; None for an analysis made by hand.
    context: CompileContext | None = None
    #: Changes that the space made to the requested configs, by config.
    adjusted: dict[Config, tuple[Adjustment | Dropped, ...]] = field(default_factory=dict)
    others: Others = ALONE
    _codes: dict[Config, Code] = field(default_factory=dict)
    _given: dict[Config, Config] = field(default_factory=dict)
    _lock: Any = field(default_factory=new_lock)

    @property
    def program(self) -> Program:
        return self.traced.program

    @property
    def is_chosen(self) -> bool:
        """True if ``auto`` has chosen the backend."""
        return self.others is not ALONE

    @property
    def backend_candidates(self) -> tuple[BackendCandidate, ...]:
        """Predicted time or reason against every backend that ``auto`` considered."""
        return self.others.candidates

    @property
    def alternatives(self) -> tuple[Analysis, ...]:
        """The same kernel for the other backends that accept it, the fastest by prediction first."""
        return self.others.analyses

    @functools.cached_property
    def call_facts(self) -> CallFacts:
        return call_facts(self.program, self.traced.origins)

    def with_size_hints(self, hints: Mapping[str, int]) -> Analysis:
        """Return the analysis with facts, space and seeds for these values of its run-time numbers.

        Numbers whose range the code depends on keep their values.
        """
        fixed = self.backend.required_ranges(self.program)
        program = hints_of.with_hints(self.program, {name: hint for name, hint in hints.items() if name not in fixed})
        if program is self.program:
            return self
        others = self.others.map(lambda each: each.with_size_hints(hints))
        return replace(self, traced=replace(self.traced, program=program), others=others)

    def specialize_on(self, numbers: Mapping[str, Any]) -> Analysis:
        """Return the analysis specialized on these numbers.

        The mapping goes from their paths in the arguments to values.
        """
        if not numbers:
            return self
        others = self.others.map(lambda each: each.specialize_on(numbers))
        traced = replace(self.traced, specialized={**self.traced.specialized, **numbers})
        return replace(self, traced=traced, others=others)

    def with_others(self, others: Others) -> Analysis:
        """Return the analysis with other backends to choose from."""
        return replace(self, others=others)

    def full_config(self, config: Config | Mapping[str, Any], *, printed: bool = False) -> Config:
        """Normalize a user's config. Values that the space changes are reported once per kernel and config.

        Tiles that take minutes to compile are refused, unless the code is only ``printed``.
        """
        asked = as_config(config)
        if asked in self._given:
            return self._given[asked]
        full = self.space.normalize(asked) if printed else self.space.worth_compiling(asked)
        if asked not in self.adjusted and any(full.get(key) != value for key, value in asked.items()):
            changes = self.adjusted[asked] = self.space.adjusted(asked)
            if changes and (self.name, asked) not in _REPORTED:
                _REPORTED.add((self.name, asked))
                _LOG.warning(
                    "helion: config of %s on %s: %s", self.name, self.target.name, "; ".join(map(str, changes))
                )
        return full

    def predict(self, config: Config) -> Predicted:
        """Predict the time and resources of a launch with a normalized config."""
        return self.backend.predict(self.facts, self.space.decode(config), self.target)

    def for_config(self, config: Config | Mapping[str, Any], *, printed: bool = False) -> tuple[Analysis, Config]:
        """Return an analysis that accepts a user's config, with the normalized config.

        The analysis is this one, or the first of ``alternatives`` whose backend accepts the config. Raises this one's
        ``exc.InvalidConfig`` if none does.
        """
        try:
            return self, self.full_config(config, printed=printed)
        except exc.InvalidConfig:
            for other in self.alternatives:
                with contextlib.suppress(exc.InvalidConfig):
                    return self.prefer_backend(other.backend.name), other.full_config(config, printed=printed)
            raise

    def prefer_backend(self, backend: str) -> Analysis:
        """Return the analysis with another backend in front, or itself if that backend leads already or refused."""
        first = next((each for each in self.alternatives if each.backend.name == backend), None)
        if first is None:
            return self
        led = copy.copy(first)  # keeps its cached properties
        following = (self, *(each for each in self.alternatives if each is not first))
        led.others = Others.of(self.backend_candidates, following)
        return led

    def drop_backend(self, reason: str) -> Analysis:
        """Return the next of ``alternatives``, because this one failed for ``reason``."""
        first, *others = self.alternatives
        failed = BackendCandidate(self.backend.name, reason=reason)
        backend_candidates = (*(each for each in self.backend_candidates if each.backend != failed.backend), failed)
        return replace(first, others=Others.of(backend_candidates, tuple(others)))

    def predicted_us(self, configs: Sequence[Config]) -> float:
        """Predict the time of the fastest of the kernel's own ``configs``, or of the default config if it has none."""
        options = [self.space.normalize(config) for config in configs] or [self.default_config]
        return min(self.predict(config).time_us for config in options)

    @functools.cached_property
    def rollable(self) -> tuple[int, ...]:
        return roll.rollable_blocks(self.program)[0]

    @functools.cached_property
    def facts(self) -> KernelFacts:
        if not self.program.roots:
            raise exc.NoDeviceLoopsInKernel(kernel=self.name)
        facts = collect.collect_facts(self.backend.described(self.program), self.rollable)
        _LOG.debug("facts of %s: %s", self.name, facts)
        return facts

    @functools.cached_property
    def space(self) -> ConfigSpace:
        if not self.program.roots:
            raise exc.NoDeviceLoopsInKernel(kernel=self.name)
        others = tuple((b.name, b.key_prefixes) for b in BACKENDS.values() if b.name != self.backend.name)
        return space.build_space(self.program, self.rollable, self.target, self.settings, self.backend.keys, others)

    @functools.cached_property
    def seeds(self) -> SeedReport:
        if self.settings.disable_autotuner_heuristics:
            return seeds.SeedReport(seeds=(), declined=(("all", "disable_autotuner_heuristics is set"),))
        report = seeds.make_seeds(
            self.facts,
            self.target,
            self.backend.heuristics,
            lambda proposal: legalise.legalise(proposal, self.space, self.predict, self.backend.with_less_smem),
        )
        for at, seed in enumerate(report.seeds, 1):
            _LOG.debug("seed %d of %s, by %s (%s): %r", at, self.name, seed.heuristic, seed.reason, seed.config)
        for heuristic, reason in report.declined:
            _LOG.debug("no seed of %s by %s: %s", self.name, heuristic, reason)
        return report

    @functools.cached_property
    def default_config(self) -> Config:
        backend, target = self.backend, self.target
        config = default.choose_default(
            self.seeds, self.space, self.predict, lambda config: backend.with_max_registers(config, target)
        )
        heuristic = next(
            (s.heuristic for s in self.seeds.seeds if s.config == config), "no heuristic: the conservative one"
        )
        _LOG.info("default config of %s on %s by %s: %r", self.name, self.target.name, heuristic, config)
        return config

    @property
    def is_empty(self) -> bool:
        """True if all grids are empty for the sizes seen when binding, so nothing is launched."""
        blocks = self.program.blocks
        grids = (
            [hint_of(e) for a in root.axes if (e := blocks[a.block].extent) is not None] for root in self.program.roots
        )
        return all(0 in extents for extents in grids)

    def refusal(self) -> exc.Base | None:
        """Return ``exc.NoFeasibleConfig`` for a kernel that certainly no config can launch on the target, else None.

        This is certain if there are no seeds, and both the conservative config and the smallest tiles need too much
        shared memory. Too much is more than a block has, by more than the error of the prediction. Dimensions that
        differ from call to call count as their smallest. An empty grid launches nothing, and needs nothing.
        """
        if self.seeds.seeds or self.is_empty:
            return None
        space = self.space
        options = (space.fewest(config) for config in (space.conservative(), space.smallest()))
        nearest = min(
            (self.backend.predict(self.facts, decisions, self.target) for decisions in options),
            key=lambda predicted: predicted.shared_bytes,
        )
        if nearest.least_shared_bytes <= self.target.smem_per_block_bytes:
            return None
        has = f"{self.target} has {self.target.smem_per_block_bytes}"
        return space.nothing_fits(
            f"even in the smallest tiles {nearest.shared_bytes} bytes of shared memory are needed, {has}"
        )

    @functools.cached_property
    def config_spec(self) -> ConfigSpace:
        """The space as users see it, with the default config."""
        return replace(self.space, default=self.default_config)

    def plan(self, config: Config) -> Any:
        """Return the backend's plan for a normalized config."""
        code = self._codes.get(config)
        if code is not None:
            return code.plan
        return self.backend.plan(self.program, self.space.decode(config), self.target, self.settings)

    @functools.cached_property
    def space_key(self) -> str:
        """A digest of the keys of the space and their defaults."""
        text = repr([(field.key, field.default()) for field in self.space.fields])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def take(self, config: Config, code: Code, given: Sequence[Config]) -> None:
        """Take over from an equal analysis the code of a full config, and that the ``given`` configs lead to it."""
        self._codes[config] = code
        self._given.update(dict.fromkeys(given, config))

    def has_code(self, config: Config) -> bool:
        """Return whether this is a full config whose code was made before."""
        return config in self._codes

    def code(self, config: Config) -> Code:
        """Return the module for a normalized config, and cache it."""
        code = self._codes.get(config)
        if code is None:
            plan = self.plan(config)
            code = self._codes[config] = Code(plan, self.backend.emit(plan, PLAIN))
        return code

    def text(self, config: Config, origin_lines: bool | None = None, form: Form = PLAIN) -> str:
        """Emit the module's text, with or without comments that name the user's lines.

        None takes the choice of the settings.
        """
        code = self.code(config)
        plan = code.plan if origin_lines is None else replace(code.plan, origin_lines=origin_lines)
        if form == PLAIN and plan.origin_lines == code.plan.origin_lines:
            return code.text
        return self.backend.emit(plan, form).text


def analyse(
    fn: Callable[..., Any],
    name: str,
    arguments: Mapping[str, Any],
    settings: Settings,
    target: Target,
    constants: frozenset[str],
    observed: Mapping[str, Observed] | None = None,
    configs: Sequence[Config] = (),
    backend: str | None = None,
) -> Analysis:
    """Trace a kernel on its arguments.

    ``observed`` has tensors of its host code that are known from a run, by name. ``backend`` overrides that of
    ``settings``; if neither names one, tensors of a GPU get ``auto``.

    Backend ``auto`` takes the backend with the shortest predicted time among those that accept the kernel and all
    ``configs`` (those the kernel was given). If all refuse, the last one's reason is raised. Raises every error of the
    user's program.
    """

    divisibility: dict[str, Any] = {}

    def analyse_for(asked: Backend[Any]) -> Analysis:
        return _analyse_with(asked, fn, name, arguments, settings, target, constants, observed or {}, divisibility)

    *others, last = _backends_named(name, backend or settings.backend or _default_backend(device_of(name, arguments)))
    found = {each.name: _analysis_or_reason(analyse_for, each, configs) for each in others}
    if any(isinstance(each, Analysis) for each in found.values()):
        found = _with_plans({**found, last.name: _analysis_or_reason(analyse_for, last, configs)}, configs)
    if any(isinstance(each, Analysis) for each in found.values()):
        chosen = _fastest(found, configs)
    else:
        others_refused = {name: each for name, each in found.items() if name != last.name}
        chosen = _last_resort(analyse_for, last, others_refused)
        if others_refused:
            chosen = replace(chosen, others=Others.of(_refusals(others_refused), ()))
    for defect in (each for each in chosen.backend_candidates if isinstance(each.reason, _Defect)):
        _LOG.warning(_FAILED, defect.backend, name, chosen.backend.name, defect.reason)
    return chosen.specialize_on({**divisibility, **_ranges(chosen)})


def _ranges(analysis: Analysis) -> dict[str, Any]:
    """Return the paths of comparisons of arguments with the ends of the ranges that an analysis is right for."""
    found: dict[str, Any] = {}
    for number, values in analysis.backend.required_ranges(analysis.program).items():
        path = analysis.traced.origins[number]
        found[f"{number} >= {values.start}"] = (*path, ("__ge__", values.start))
        found[f"{number} < {values.stop}"] = (*path, ("__lt__", values.stop))
    return found


_FAILED = "helion: the %s backend failed on kernel %r, which %s compiles: %s. Please report it with the kernel."


class _Defect(str):
    """The reason against a backend whose own code failed."""


_T = TypeVar("_T")


def _or_reason(make: Callable[[], _T]) -> _T | str:
    """Return the result of ``make``, or the reason why a backend that has alternatives does not take a kernel.

    Errors of the user's program are reasons too: the last backend raises them again. So are errors of the backend's own
    code, unless the compiler is verified.
    """
    try:
        return make()
    except (exc.Base, NeedsValue) as refusal:
        return str(refusal)
    except Exception as error:
        if knobs.VERIFY.read():
            raise
        return _Defect(f"{type(error).__name__}: {error}")


def _analysis_or_reason(
    analyse_for: Callable[[Backend[Any]], Analysis], backend: Backend[Any], configs: Sequence[Config]
) -> Analysis | str:
    """Return a backend's analysis of a kernel and all configs it was given, or the reason why it refuses them."""

    def analysed() -> Analysis | str:
        found = analyse_for(backend)
        for config in configs:
            found.space.normalize(config)
        refused = found.refusal()
        return found if refused is None else refused.message

    return _or_reason(analysed)


def _with_plans(found: Mapping[str, Analysis | str], configs: Sequence[Config]) -> dict[str, Analysis | str]:
    """Keep the analyses whose backend has a plan for the config that would run; replace the others by their reasons.

    The general backend plans everything it accepts.
    """

    def planned(each: Analysis) -> Analysis:
        if each.backend.name != GENERAL and each.program.roots:
            each.plan(each.space.normalize(configs[0]) if configs else each.default_config)
            _candidate(each, configs)
        return each

    return {
        name: each if isinstance(each, str) else _or_reason(functools.partial(planned, each))
        for name, each in found.items()
    }


def _last_resort(
    analyse_for: Callable[[Backend[Any]], Analysis], last: Backend[Any], refused: Mapping[str, Analysis | str]
) -> Analysis:
    """Return the last backend's analysis of a kernel that all others refuse.

    If it refuses too, its error lists all reasons.
    """
    try:
        return analyse_for(last)
    except exc.BackendUnsupported as error:
        for name, reason in refused.items():
            if str(reason).split("\nWhile processing:")[0] not in error.message:
                error.message += f" Not {name} either: {reason}"
        raise


def _refusals(found: Mapping[str, Analysis | str]) -> tuple[BackendCandidate, ...]:
    return tuple(BackendCandidate(name, reason=each) for name, each in found.items() if isinstance(each, str))


def _fastest(found: Mapping[str, Analysis | str], configs: Sequence[Config]) -> Analysis:
    """Return the analysis with the shortest predicted time, with all others attached.

    The general backend is preferred unless another one has its lead. A backend that takes the kernel only on request
    comes last. At least one analysis exists.
    """

    def rank(pair: tuple[BackendCandidate, Analysis]) -> tuple[bool, float]:
        candidate, _ = pair
        return bool(candidate.reason), candidate.replaces_us or float("inf")  # 0: no config is predicted

    timed = sorted(
        ((_candidate(each, configs), each) for each in found.values() if isinstance(each, Analysis)), key=rank
    )
    backend_candidates = (*(candidate for candidate, _ in timed), *_refusals(found))
    for candidate in backend_candidates:
        _LOG.debug("%s: %s", timed[0][1].name, candidate)
    first, *alternatives = (each for _, each in timed)
    if not _ranges(first):  # what replaces it serves the same calls
        alternatives = [each for each in alternatives if not _ranges(each)]
    return replace(first, others=Others.of(backend_candidates, tuple(alternatives)))


def _candidate(analysis: Analysis, configs: Sequence[Config]) -> BackendCandidate:
    program, facts, target = analysis.program, analysis.facts, analysis.target
    reason, lead = analysis.backend.on_request(program, facts, target), analysis.backend.lead(program, facts)
    us = analysis.predicted_us(configs)
    return BackendCandidate(analysis.backend.name, us=us, reason=reason, replaces_us=lead.handicapped(us))


def _default_backend(device: torch.device) -> str:
    """Return the backend for a kernel that names none: ``auto`` on a GPU, else the general one.

    Without a GPU nothing is launched, and the general backend's code is the one to show.
    """
    return "auto" if device.type == "cuda" else GENERAL


def _backends_named(name: str, wanted: str) -> Sequence[Backend[Any]]:
    """List the backends that a setting names, in order."""
    if wanted == "auto":
        return tuple(backend for backend in BACKENDS.values() if backend.is_installed)
    if wanted in BACKENDS:
        return (BACKENDS[wanted],)
    known = ", ".join(map(repr, (*BACKENDS, "auto")))
    raise exc.BackendUnsupported(what=f"Kernel {name!r}", backend=wanted, remedy=f"; there is {known}")


def _analyse_with(
    backend: Backend[Any],
    fn: Callable[..., Any],
    name: str,
    arguments: Mapping[str, Any],
    settings: Settings,
    target: Target,
    constants: frozenset[str],
    observed: Mapping[str, Observed],
    divisibility: dict[str, Any],
) -> Analysis:
    """Trace and analyze a kernel for one backend.

    ``divisibility`` receives the numeric arguments whose divisibility the backend's code depends on.
    """
    wanted = settings.index_dtype_name
    index = trace.index_dtype(wanted, arguments)
    context = context_of(backend, device_of(name, arguments), settings, target, index, observed)
    try:
        traced = tracing.traced_for(backend, _steps, fn, arguments, context, constants, divisibility)
    except exc.IndexOffsetOutOfRangeForInt32:
        if wanted != "auto":
            raise
        context = replace(context, index_dtype=torch.int64)
        traced = tracing.traced_for(backend, _steps, fn, arguments, context, constants, divisibility)
    return Analysis(traced, name, target, settings, backend, context)


def _steps() -> Iterator[Step]:
    return (step for each in BACKENDS.values() for step in each.steps)


def context_of(
    backend: Backend[Any],
    device: torch.device,
    settings: Settings,
    target: Target,
    index: torch.dtype,
    seen: Mapping[str, Observed],
) -> CompileContext:
    """Return the context of a compilation by a backend, with offsets of the dtype ``index`` and observed tensors."""
    limits, rules = backend.limits(target), backend.rules
    return CompileContext(
        settings=settings, target=target, limits=limits, rules=rules, device=device, index_dtype=index, observed=seen
    )
