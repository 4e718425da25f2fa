"""The end of a compilation between two stages of Triton, where its time does not suffice for those that are left.

LLVM and Triton's passes run in this process and cannot be interrupted. A stage that has begun runs to its end.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

from ...._support.terms import Terms

Stage = Callable[[Any, Any], Any]
#: The stage from which on a compilation takes most of its time.
_LONGEST = "llir"


class OutOfTime(Exception):
    """A compilation ended before a stage for which its time does not suffice."""


@contextlib.contextmanager
def ending_late(terms: Callable[[], Terms | None]) -> Iterator[None]:
    """End compilations inside before a stage after which they would be late, or once they are dropped.

    ``terms`` gives those of the compilation in the calling thread; None ends none. It is outside of Python from its first
    stage on.
    """
    from triton.backends import backends

    least: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        for compiler in {backend.compiler for backend in backends.values()}:
            stack.callback(setattr, compiler, "add_stages", compiler.add_stages)
            compiler.add_stages = _ending(compiler.add_stages, least, terms)
        yield


def _ending(add_stages: Callable[..., None], least: dict[str, float], terms: Callable[[], Terms | None]) -> Any:
    """Return ``add_stages`` of a compiler with stages that check the time. ``least`` has that from each stage on."""

    @functools.wraps(add_stages)
    def added(self: Any, stages: MutableMapping[str, Stage], *args: Any) -> None:
        add_stages(self, stages, *args)
        begun: dict[str, float] = {}
        for name, stage in tuple(stages.items()):
            stages[name] = functools.partial(run, name, stage, name == list(stages)[-1], begun)

    def run(name: str, stage: Stage, is_last: bool, begun: dict[str, float], source: Any, metadata: Any) -> Any:
        given = terms()
        if given is not None:
            given.outside.set()
            is_asked = name == _LONGEST or name in least
            if given.dropped.is_set() or (is_asked and given.is_late(lambda: least.get(name, 0.0))):
                raise OutOfTime(f"there is no time for the stage {name}")
        begun[name] = time.monotonic()
        result = stage(source, metadata)
        if is_last:
            end = time.monotonic()
            least.update({each: min(end - at, least.get(each, math.inf)) for each, at in begun.items()})
        return result

    return added


__all__ = ["OutOfTime", "ending_late"]
