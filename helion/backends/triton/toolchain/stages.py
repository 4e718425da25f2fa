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

Stage = Callable[[Any, Any], Any]
#: Called with a function that returns the seconds that the fastest compilation so far took from a stage on; returns whether
#: that is too long. It may wait for that compilation before.
IsLate = Callable[[Callable[[], float]], bool]
#: The stage from which on a compilation takes most of its time.
_LONGEST = "llir"


class OutOfTime(Exception):
    """A compilation ended before a stage for which its time does not suffice."""


@contextlib.contextmanager
def ending_late(is_late: Callable[[], IsLate | None], parsed: Callable[[], object]) -> Iterator[None]:
    """End compilations inside before a stage after which they would be late.

    ``is_late`` gives the rule of the compilation in the calling thread; None ends none. ``parsed`` is called there when
    the first stage begins.
    """
    from triton.backends import backends

    least: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        for compiler in {backend.compiler for backend in backends.values()}:
            stack.callback(setattr, compiler, "add_stages", compiler.add_stages)
            compiler.add_stages = _ending(compiler.add_stages, least, is_late, parsed)
        yield


def _ending(
    add_stages: Callable[..., None],
    least: dict[str, float],
    is_late: Callable[[], IsLate | None],
    parsed: Callable[[], object],
) -> Any:
    """Return ``add_stages`` of a compiler with stages that check the time. ``least`` has that from each stage on."""

    @functools.wraps(add_stages)
    def added(self: Any, stages: MutableMapping[str, Stage], *args: Any) -> None:
        add_stages(self, stages, *args)
        begun: dict[str, float] = {}
        for name, stage in tuple(stages.items()):
            stages[name] = functools.partial(run, name, stage, name == list(stages)[-1], begun)

    def run(name: str, stage: Stage, is_last: bool, begun: dict[str, float], source: Any, metadata: Any) -> Any:
        if not begun:
            parsed()
        rule = is_late() if name == _LONGEST or name in least else None
        if rule is not None and rule(lambda: least.get(name, 0.0)):
            raise OutOfTime(f"there is no time for the stage {name}")
        begun[name] = time.monotonic()
        result = stage(source, metadata)
        if is_last:
            end = time.monotonic()
            least.update({each: min(end - at, least.get(each, math.inf)) for each, at in begun.items()})
        return result

    return added


__all__ = ["IsLate", "OutOfTime", "ending_late"]
