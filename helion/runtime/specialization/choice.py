"""The config that a bound kernel runs: its choice, its replacement on failure, and the wrappers that settings request."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ... import exc
from ..._shapes import hint_of
from ..._support import agreement
from ..._support import logs as _logging
from ..._support.lazy import lazy
from ...backends import stub
from ...backends.execution import OutOfResources
from ...config import Config
from .compiled import Compiled, ConfigLike
from .specialized import Specialized

if TYPE_CHECKING:
    from .. import checked
    from . import binary_check, repro
else:
    checked = lazy("helion.runtime.checked")
    repro = lazy("helion.runtime.specialization.repro")
    binary_check = lazy("helion.runtime.specialization.binary_check")


class Choice:
    """The config in use and ``run``, which runs it. ``changed`` is called when another config is used."""

    def __init__(self, compiled: Compiled, changed: Callable[[], None]) -> None:
        self.compiled = compiled
        self.config: Config | None = None
        self.run: Callable[..., Any] | None = None
        self.changed = changed
        # True if the config in use was not requested
        self._by_default = False

    @property
    def requested(self) -> Config | None:
        """The config in use, if the user requested it."""
        return None if self._by_default else self.config

    def full(self, config: ConfigLike) -> Config:
        """Return a full config: this one, else the one in use, the only one given to the decorator, or the default."""
        return self.config if config is None and self.config is not None else self.compiled.full(config)

    def use(self, config: Config, *, by_default: bool = False) -> None:
        """Run a full config from now on."""
        self._install(config)
        self._by_default = by_default

    def _install(self, config: Config) -> None:
        of = self.compiled.specialized
        _agree(of, config)
        run = self.compiled.for_any_alignment(config)
        code = of.analysis.code(config)
        if of.executor.without_alignment(code.needs_alignment) is None and of.depends_on_alignment(code):
            run = self._with_unaligned_fallback(run)
        if of.settings.checked:
            run = checked.run_checked(of.kernel, of.executor, run)
        if of.settings.print_repro:
            run = self._with_repro(config, run)
        self.config, self.run = config, run
        self.changed()

    def _with_unaligned_fallback(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``function``, which needs tensors aligned to 16 bytes; other tensors go to the next backend."""
        other: list[Choice] = []

        def run(*args: Any) -> Any:
            on_gpu = stub.active() or any(map(stub.on_gpu, args))
            if not on_gpu or all(a.data_ptr() % 16 == 0 for a in args if isinstance(a, torch.Tensor)):
                return function(*args)
            if not other:
                with self.compiled.lock:
                    other[:] = other or [self._for_next_backend(on_gpu)]
            assert other[0].run is not None
            return other[0].run(*args)

        return run

    def _for_next_backend(self, on_gpu: bool) -> Choice:
        """Return the choice for calls that the backend in use cannot serve."""
        of = self.compiled.specialized
        following = of.for_next_backend("tensors do not begin at multiples of 16 bytes")
        choice = Choice(self.compiled.with_specialized(following), lambda: None)
        given = [following.analysis.full_config(config) for config in of.kernel.configs[:1]]
        choice.use(given[0] if given else choice.verified(on_gpu), by_default=True)
        return choice

    def _with_repro(self, config: Config, run: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``run`` so that it prints the call as a script before it first runs."""

        def first(*args: Any) -> Any:
            if self.run is first:
                self.run = run
            repro.show_once(self.compiled.specialized, config, args)
            return run(*args)

        return first

    # --- configs that do not fit -----------------------------------------------------------------------------------------

    def verified(self, on_gpu: bool) -> Config:
        """Return the config that runs if none was requested: on a GPU the one verified by its binary, else the default.

        A kernel that launches nothing compiles nothing. If several backends are candidates, one that cannot compile is
        replaced by the next before anything is launched.
        """
        of = self.compiled.specialized
        if of.table_config is not None or not on_gpu or of.executor.inlining is None or of.analysis.is_empty:
            return of.default_config
        with self.compiled.lock:  # other threads wait here, and find the backend that works
            while of.analysis.alternatives and (reason := binary_check.print_failure(of)):
                self._switch_backend(reason)
            config = binary_check.verdict_of(self.compiled).config
            while of.analysis.alternatives and (reason := binary_check.compile_failure(self.compiled, config)):
                self._switch_backend(reason)
                config = binary_check.verdict_of(self.compiled).config
        return config

    def _switch_backend(self, reason: str) -> None:
        of, failed = self.compiled.specialized, self.compiled.specialized.analysis.backend.name
        of.switch_backend(reason)
        self.compiled.forget()
        used = of.analysis.backend.name
        _logging.say(f"helion: {of.kernel.name}: the backend {failed} failed ({reason}); using {used}")

    def check_feasible(self) -> None:
        """Raise ``exc.NoFeasibleConfig`` if certainly no config can launch on the target."""
        refusal = self.compiled.specialized.analysis.refusal()
        if refusal is not None:
            raise refusal

    def replace_failed(self, run: Callable[..., Any], error: exc.Base) -> None:
        """Replace the config after ``run`` failed, if it was not requested.

        If several backends are candidates, one whose launch fails is replaced by the next. Otherwise only a config that
        exceeds the GPU's resources is replaced. Both happen only if the call has changed nothing yet. The next configs
        are the default, the seeds in their order, then the conservative one. Raises ``exc.NoFeasibleConfig`` if there
        is none, and ``error`` if none is tried.
        """
        of = self.compiled.specialized
        exceeded = of.executor.out_of_resources(error.__cause__)
        if exceeded is None and self._may_switch_backend(error):
            with self.compiled.lock:
                if self.run is run:
                    self._switch_backend(str(error.__cause__))
                    self._install(binary_check.verdict_of(self.compiled).config)
            return
        if exceeded is None or self.config is None or not self._is_repeatable(self.config):
            raise error
        with self.compiled.lock:
            if self.run is not run:  # another thread has replaced it, or the user has set a config
                return
            if not self._by_default:  # it was requested
                raise error
            following = binary_check.replace_failed(self.compiled, self.config, str(error.__cause__))
            if following is None:
                raise of.analysis.space.nothing_fits(self._needs(self.config, exceeded)) from error
            _logging.say(
                f"helion: {of.kernel.name}: {self.config!r} does not fit {of.target.name} ({error.__cause__}); "
                f"using {of.decorator(following)}"
            )
            self._install(following)

    def _may_switch_backend(self, error: exc.Base) -> bool:
        """Return whether a launch failed that another backend can take over, and no config was requested."""
        of, cause = self.compiled.specialized, error.__cause__
        failed = isinstance(cause, Exception) and of.executor.is_failure(cause)
        left_open = self._by_default and bool(of.analysis.alternatives)
        return failed and left_open and self.config is not None and self._is_repeatable(self.config)

    def _is_repeatable(self, config: Config) -> bool:
        host = self.compiled.specialized.analysis.code(config).host
        return host.is_repeatable(self.compiled.launched(config))

    def _needs(self, config: Config, exceeded: OutOfResources) -> str:
        of = self.compiled.specialized
        unit = "bytes of " if exceeded.name == "shared memory" else ""
        short = of.short_config(config)
        return f"{short!r}, the last to try, needs {exceeded.required} {unit}{exceeded.name}, {of.target} has {exceeded.limit}"


def _agree(of: Specialized, config: Config) -> None:
    """Refuse a config of a kernel that waits for other ranks, if one of them runs it with another config."""
    if not of.analysis.call_facts.meets_other_gpus:
        return
    program = of.analysis.program
    shapes = "; ".join(f"{t.dtype} {[hint_of(n) for n in t.shape]}" for t in program.tensors)
    mine = of.short_config(config)
    other = agreement.another(f"{of.kernel.name} {shapes}", repr(mine))
    if other is not None:
        raise exc.InconsistantConfigsAcrossRanks(kernel=of.kernel.name, configs=f"{mine!r} here, and {other}")


__all__ = ["Choice", "ConfigLike"]
