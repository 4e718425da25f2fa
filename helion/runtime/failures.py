"""Launches that are refused, by Triton or before: an error that names the kernel, or the next config."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .. import exc
from ..backends import stub
from ..backends.execution import Lack, Launcher
from ..config import Config
from .checked import located
from .inputs import UsualInputs, check_launch

if TYPE_CHECKING:
    from .bound import BoundKernel


class Reporting:
    """A launcher whose errors are ours. ``launched``: one of its launches succeeded."""

    def __init__(self, inner: Launcher, bound: BoundKernel, config: Config) -> None:
        self.inner = inner
        self.launched = False
        self._bound = bound
        self._config = config
        self._errors: tuple[type[Exception], ...] = (*bound.executor.errors, AssertionError, IndexError)
        self._usual: dict[int, UsualInputs] = {}

    def __call__(self, kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> Any:
        usual = self._usual.get(id(kernel))
        if usual is None or not usual.hold(args):
            check_launch(kernel, args)
            self._usual.setdefault(id(kernel), UsualInputs()).learn(args)
        try:
            result = self.inner(kernel, grid, *args, **options)
        except self._errors as error:
            report = self._report(error)
            if report is None:
                raise
            raise report from error
        if not self.launched:
            self.launched = all(grid)
        return result

    def _report(self, error: Exception) -> exc.Base | None:
        """What the user is told; None for what is not about the kernel."""
        bound, config = self._bound, self._config
        if isinstance(error, (AssertionError, IndexError)):
            return located(error, bound.kernel.name, bound._analysis.code(config).plan.program)
        if not bound.executor.is_failure(error):
            return None
        bound._show_repro(config, bound._sample())
        return bound.executor.error(
            kernel=bound.kernel.name,
            decorator=bound.format_kernel_decorator(config),
            reason=str(error).strip() or type(error).__name__,
            path=bound.get_cached_path(config),
        )


def check_feasible(bound: BoundKernel, args: Sequence[Any]) -> None:
    """Raises ``exc.NoFeasibleConfig`` where these arguments would go to a GPU and certainly no config can launch there.

    The interpreter, which runs CPU tensors, knows no limits.
    """
    if stub.active() or any(map(stub.on_gpu, args)):
        refusal = bound._analysis.refusal()
        if refusal is not None:
            raise refusal


def recover(bound: BoundKernel, run: Callable[..., Any], args: tuple[Any, ...], error: exc.Base) -> Any:
    """The result of a call that ``run`` failed with, by the next config when nobody asked for this one.

    Only a config that takes more than the GPU has is given up, and only if the call has changed nothing yet. The
    configs after it are the seeds in their order, then the conservative one. Raises ``exc.NoFeasibleConfig`` when there
    is none, and ``error`` where none is tried.
    """
    lack = bound.executor.lack(error.__cause__)
    if lack is None or not _repeatable(bound):
        raise error
    with bound._lock:
        if bound._run is run:  # else another thread has been here, or somebody has set a config
            if not bound._by_default:  # it was asked for
                raise error
            following = _following(bound)
            if following is None:
                raise bound._analysis.space.nothing_fits(_needs(bound, lack)) from error
            print(
                f"helion: {bound.kernel.name}: {bound._config!r} does not fit {bound.target.name} ({error.__cause__}); "
                f"using {bound.format_kernel_decorator(following)}",
                file=sys.stderr,
            )
            bound._use(following)
    return bound.run_unchecked(*args)


def _following(bound: BoundKernel) -> Config | None:
    """The next config to try, or None when this one was the last."""
    assert bound._config is not None
    bound._refused.add(bound._config)
    return next((c for c in _candidates(bound) if c not in bound._refused), None)


def _needs(bound: BoundKernel, lack: Lack) -> str:
    unit = "bytes of " if lack.name == "shared memory" else ""
    config = bound.short_config(bound._config)
    return f"{config!r}, the last to try, needs {lack.required} {unit}{lack.name}, {bound.target} has {lack.limit}"


def _candidates(bound: BoundKernel) -> Iterator[Config]:
    yield from (seed.config for seed in bound.seeds)
    yield bound.conservative_config()


def _repeatable(bound: BoundKernel) -> bool:
    """Whether a call whose launch failed can be made again: nothing was launched before in it, and no host statement
    before it writes into what was there before the call."""
    assert bound._config is not None
    keywords = getattr(bound._compiled[bound._config], "__kwdefaults__", None) or {}
    return bound._analysis.code(bound._config).host.is_repeatable(keywords["_launcher"].launched)
