"""Launches that are refused, by Triton or before: an error that names the kernel, or the next config."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from triton.errors import TritonError
from triton.runtime.errors import OutOfResources

from .. import exc
from .._compiler.ir.grammar import Launch
from ..backends.triton.execute import fast_launch
from ..backends.triton.execute.fast_launch import FastLauncher
from ..config import Config
from . import stub
from .checked import located
from .inputs import UsualInputs, check_launch

if TYPE_CHECKING:
    from .bound import BoundKernel

#: What Triton says when a pass of its compiler gives up; such errors have no class of their own.
_PASS_FAILED = "PassManager::run failed"


def launcher(ordinary: Callable[..., Any], bound: BoundKernel, config: Config) -> Callable[..., Any]:
    """``ordinary``, a launcher, with Triton's errors as ``exc.TritonError``; a ``FastLauncher`` stays one."""

    def translated(error: Exception) -> exc.Base | None:
        if isinstance(error, (AssertionError, IndexError)):
            return located(error, bound.kernel.name, bound._analysis.code(config).plan.program)
        if not isinstance(error, TritonError) and _PASS_FAILED not in str(error):
            return None
        bound._show_repro(config, bound._sample())
        return exc.TritonError(
            kernel=bound.kernel.name,
            decorator=bound.format_kernel_decorator(config),
            reason=str(error).strip() or type(error).__name__,
            path=bound.get_cached_path(config),
        )

    if isinstance(ordinary, FastLauncher):
        return _TranslatingLauncher(ordinary, translated)
    return _Translating(ordinary, translated)


class _Translating:
    """A launcher with Triton's errors as ours. ``launched``: one of its launches succeeded."""

    def __init__(self, launch: Callable[..., Any], translated: Callable[[Exception], exc.Base | None]) -> None:
        self._inner = launch
        self._translated = translated
        self._usual: dict[int, UsualInputs] = {}
        self.launched = False

    def __call__(self, kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> Any:
        usual = self._usual.get(id(kernel))
        if usual is None or not usual.hold(args):
            check_launch(kernel, args)
            self._usual.setdefault(id(kernel), UsualInputs()).learn(args)
        try:
            result = self._inner(kernel, grid, *args, **options)
        except (TritonError, RuntimeError, AssertionError, IndexError) as error:
            report = self._translated(error)
            if report is None:
                raise
            raise report from error
        if not self.launched:
            self.launched = all(grid)
        return result


class _TranslatingLauncher(_Translating, FastLauncher):
    """A ``FastLauncher`` with Triton's errors as ours."""

    def __init__(self, fast: FastLauncher, translated: Callable[[Exception], exc.Base | None]) -> None:
        FastLauncher.__init__(self, fast.ordinary, fast.target)
        _Translating.__init__(self, functools.partial(FastLauncher.__call__, self), translated)


def check_feasible(bound: BoundKernel, args: Sequence[Any]) -> None:
    """Raises ``exc.NoFeasibleConfig`` where these arguments would go to a GPU and certainly no config can launch there.

    The interpreter, which runs CPU tensors, knows no limits.
    """
    if stub.active() or any(map(fast_launch.on_gpu, args)):
        refusal = bound._analysis.refusal()
        if refusal is not None:
            raise refusal


def recover(bound: BoundKernel, run: Callable[..., Any], args: tuple[Any, ...], error: exc.Base) -> Any:
    """The result of a call that ``run`` failed with, by the next config when nobody asked for this one.

    Only a config that takes more than the GPU has is given up, and only if the call has changed nothing yet. The
    configs after it are the seeds in their order, then the conservative one. Raises ``exc.NoFeasibleConfig`` when there
    is none, and ``error`` where none is tried.
    """
    lack = error.__cause__
    if not isinstance(lack, OutOfResources) or not _repeatable(bound):
        raise error
    with bound._lock:
        if bound._run is run:  # else another thread has been here, or somebody has set a config
            if not bound._by_default:  # it was asked for
                raise error
            following = _following(bound)
            if following is None:
                raise bound._analysis.space.nothing_fits(_needs(bound, lack)) from error
            print(
                f"helion: {bound.kernel.name}: {bound._config!r} does not fit {bound.target.name} ({lack}); "
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


def _needs(bound: BoundKernel, lack: OutOfResources) -> str:
    unit = "bytes of " if lack.name == "shared memory" else ""
    config = bound.short_config(bound._config)
    return f"{config!r}, the last to try, needs {lack.required} {unit}{lack.name}, {bound.target} has {lack.limit}"


def _candidates(bound: BoundKernel) -> Iterator[Config]:
    yield from (seed.config for seed in bound.seeds)
    yield bound.conservative_config()


def _repeatable(bound: BoundKernel) -> bool:
    """Whether a call whose launch failed can be made again: nothing was launched before in it, and no host statement
    before it writes into what was there before the call."""
    host = bound._analysis.program.host
    assert bound._config is not None
    keywords = getattr(bound._compiled[bound._config], "__kwdefaults__", None) or {}
    launched = keywords["_launcher"].launched
    single = len(bound._analysis.code(bound._config).plan.kernel_names) == 1
    alone = single and any(isinstance(statement, Launch) for statement in host.function.body)
    if launched and not alone:  # it may have been in this call
        return False
    holds = [i for i, s in enumerate(host.function.body) if any(isinstance(n, Launch) for n in ast.walk(s))]
    before = host.function.body[: holds[-1] + 1]
    return not any(_writes(node) for statement in before for node in ast.walk(statement))


def _writes(node: ast.AST) -> bool:
    if isinstance(node, ast.AugAssign):
        return True
    if isinstance(node, (ast.Subscript, ast.Attribute)) and not isinstance(node.ctx, ast.Load):
        return True
    if isinstance(node, ast.keyword):
        return node.arg == "out"
    name = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
    return name.endswith("_") and not name.endswith("__")
