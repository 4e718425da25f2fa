"""Launches that are refused, by Triton or before: an error that names the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import exc
from ..._support.lazy import lazy
from ...backends.execution import Launcher
from ...config import Config
from ..call.argument_checks import check_launch
from ..call.signature import UsualInputs
from .specialized import Specialized

if TYPE_CHECKING:
    from .. import checked
    from . import repro
else:
    checked = lazy("helion.runtime.checked")
    repro = lazy("helion.runtime.specialization.repro")


class Reporting:
    """A launcher that raises the project's errors. ``launched``: one of its launches succeeded."""

    def __init__(self, inner: Launcher, bound: Specialized, config: Config) -> None:
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
        """Return the error to raise; None if the failure is not about the kernel."""
        bound, config = self._bound, self._config
        if isinstance(error, (AssertionError, IndexError)):
            code = bound.analysis.code(config)
            return checked.located(error, bound.kernel.name, code.plan.program, code.module)
        if not bound.executor.is_failure(error):
            return None
        repro.show_once(bound, config, bound.sample())
        return bound.executor.error(
            kernel=bound.kernel.name,
            decorator=bound.decorator(config),
            reason=bound.executor.reason(error),
            path=bound.path(config),
        )
