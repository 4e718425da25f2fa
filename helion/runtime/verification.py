"""The seed that runs where nothing was tuned, checked by what its binary takes before it is launched.

The first call on a GPU compiles a kernel anyway. If the binary spills more than ``ALLOWED_SPILL_BYTES``, or cannot be
launched, the next seeds are compiled, and the best of them runs: one that can be launched before one that cannot, then
fewer spilled bytes, then the order of the seeds. The verdict is kept on disk, so that the next process compiles that one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import _logging, exc, knobs
from .._lazy import lazy
from ..config import Config
from .compiled import Compiled
from .specialized import Specialized
from .verdict import Rejected, Verdict

if TYPE_CHECKING:
    from ..autotuner import default
    from ..autotuner.proposal import Predicted
    from . import verdicts
else:
    default = lazy("helion.autotuner.default")
    verdicts = lazy("helion.runtime.verdicts")

_LOG = _logging.logger(__name__)

#: Bytes per thread that a kernel may spill and still be what was predicted. Of 169 configs from the sweeps of an H200
#: (benchmarks/results) with registers near their limit, 19 % of those that spill nothing are within 5 % of the best of their
#: cell, 17 % of those that spill up to 64 bytes, and 2 % of those that spill more.
ALLOWED_SPILL_BYTES = 64
#: Further seeds that are compiled where the first one can be launched, and seconds after which no other is begun: a kernel
#: compiles in 0.1 to 3 s, and the caller waits.
MORE_TRIES, PATIENCE_SECONDS = 3, 10.0

#: Configs that may compile longer than ``HELION_COMPILE_LIMIT_SECONDS``: after them only the last one is compiled.
MOST_SLOW = 2

#: Spilled bytes that make a kernel with matrix products take twice as long, at most: what its loops multiply stays in registers, and
#: what is spilled is mostly read before and behind them. Gradients of attention on an H200 (2026-11-23): heads of 128 take 53 us
#: with 184 bytes spilled and 75 in the next config, which spills none; of 256, 154 us with 452 and 190 with none.
DOUBLING_BYTES = 1024

Candidate = tuple[Config, "Predicted"]


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What the binary of a config takes: bytes per thread that are spilled, and why it cannot be launched, "" if it can."""

    spill_bytes: int = 0
    refusal: str = ""

    @property
    def is_good(self) -> bool:
        """Whether no other config is looked for."""
        return not self.refusal and self.spill_bytes <= ALLOWED_SPILL_BYTES

    @property
    def rank(self) -> tuple[bool, int]:
        """The least is the best."""
        return bool(self.refusal), 0 if self.is_good else self.spill_bytes

    def worth(self, multiplies: bool) -> float:
        """How many times as long a config may be predicted to take that spills less."""
        return min(default.SPILLING, 1 + self.spill_bytes / DOUBLING_BYTES) if multiplies else default.SPILLING

    def __str__(self) -> str:
        return self.refusal or f"spills {self.spill_bytes} bytes per thread"


def candidates(of: Specialized) -> Iterator[Config]:
    """The configs that run where nobody asked for one, in their order: the default, the seeds, the conservative one."""
    analysis = of.analysis
    others = (*(seed.config for seed in analysis.seeds.seeds), analysis.space.conservative())
    yield from dict.fromkeys((analysis.default_config, *others))


def decide(
    options: Iterable[Candidate],
    measure: Callable[[Config], Taken | None],
    has_time: Callable[[], bool],
    *,
    multiplies: bool = False,
) -> Verdict | None:
    """The best of ``options``, which are in order, by what ``measure`` says of them; None where it cannot say of the first.

    While none can be launched, all are measured in turn. Then there is ``MORE_TRIES`` while it ``has_time``, for those that
    are not predicted to take longer by a factor for which spills are worth it, which is less where a kernel ``multiplies`` matrices.
    """
    tried: list[tuple[Candidate, Taken]] = []
    best: tuple[Candidate, Taken] | None = None
    for config, predicted in options:
        if best is not None and not best[1].refusal:
            if len(tried) > MORE_TRIES or not has_time():
                break
            if predicted.time_us > best[1].worth(multiplies) * best[0][1].time_us:
                continue
        taken = measure(config)
        if taken is None and not tried:
            return None
        if taken is not None:
            tried.append(((config, predicted), taken))
            best = min(tried, key=lambda each: each[1].rank)
            if taken.is_good:
                break
    if best is None:
        return None
    chosen = best[0][0]
    rejected = (Rejected(config=c, reason=str(t), fits=not t.refusal) for (c, _), t in tried if t.rank > best[1].rank)
    return Verdict(config=chosen, rejected=tuple(rejected))


def verdict_of(compiled: Compiled) -> Verdict:
    """Which config runs: as it is known here, as it is kept on disk, or as the compiler says now. Nothing that goes wrong
    with it is raised; the default config runs then."""
    with compiled.lock:
        if compiled.verdict is None:
            of = compiled.specialized
            known = verdicts.kept(of, frozenset(candidates(of)))
            compiled.verdict = known or _measured(compiled)
        return compiled.verdict


def _measured(compiled: Compiled) -> Verdict:
    of, start = compiled.specialized, time.perf_counter()
    if of.analysis.refusal() is not None:  # none will be launched
        return Verdict(config=of.analysis.default_config)
    last, limit = of.analysis.space.conservative(), knobs.COMPILE_LIMIT_SECONDS.read() or None
    slow: set[Config] = set()

    def measure(config: Config) -> Taken | None:
        if config != last and len(slow) == MOST_SLOW:
            return Taken(refusal=f"was not compiled: {MOST_SLOW} configs before it took longer than {limit} s")
        began = time.perf_counter()
        taken = _taken(compiled, config, None if config == last else limit)
        if limit is not None and time.perf_counter() - began >= limit and (taken is None or taken.refusal):
            slow.add(config)
        return taken

    options = ((config, of.analysis.predict(config)) for config in candidates(of))
    found = decide(
        options,
        measure,
        lambda: time.perf_counter() - start < PATIENCE_SECONDS,
        multiplies=bool(of.analysis.facts.matmuls),
    )
    if found is None:
        return Verdict(config=of.analysis.default_config)
    verdicts.keep(of, found)
    if _LOG.isEnabledFor(logging.INFO):
        elapsed = 1e3 * (time.perf_counter() - start)
        _LOG.info("verified %s in %.1f ms: %s", of.kernel.name, elapsed, found)
    return found


def _taken(compiled: Compiled, config: Config, seconds: float | None) -> Taken | None:
    """Return what the binary of a config takes, None where it cannot be measured.

    A config is refused where it compiles longer than ``seconds``.
    """
    of = compiled.specialized
    try:
        found = compiled.resources(config, count_opcodes=False, seconds=seconds)
    except Exception as error:  # a call does not fail for want of a better config
        if _is_failure(of, error):
            return Taken(refusal=f"does not compile: {str(error).splitlines()[-1]}")
        _LOG.info("%s cannot be measured: %s: %s", of.kernel.name, type(error).__name__, error)
        return None
    refusal = f"does not fit: {'; '.join(found.overflow)}" if found.overflow else ""
    return Taken(spill_bytes=found.spill_bytes, refusal=refusal)


def compile_failure(compiled: Compiled, config: Config) -> str:
    """Why a config cannot be compiled here, in one line; "" where it can, or nobody can say."""
    of = compiled.specialized
    try:
        compiled.resources(config, count_opcodes=False)
    except exc.BackendUnsupported as error:  # what compiles for it is not whole
        return str(error).splitlines()[0]
    except Exception as error:  # a call does not fail for want of a better backend
        if _is_failure(of, error):
            return str(error).splitlines()[0]
        _LOG.info("%s cannot be measured: %s: %s", of.kernel.name, type(error).__name__, error)
    return ""


def _is_failure(of: Specialized, error: Exception) -> bool:
    """Whether the compiler refuses the kernel."""
    return any(isinstance(each, Exception) and of.executor.is_failure(each) for each in (error, error.__cause__))


def give_up(compiled: Compiled, config: Config, reason: str) -> Config | None:
    """The config to run in place of one that the device refused, which is kept on disk; None where it was the last."""
    with compiled.lock:
        former = compiled.verdict or Verdict(config=config)
        rejected = (*former.rejected, Rejected(config=config, reason=f"does not fit: {reason}", fits=False))
        unfit = {each.config for each in rejected if not each.fits}
        following = next((c for c in candidates(compiled.specialized) if c not in unfit), None)
        if following is not None:
            left = tuple(each for each in rejected if each.config != following)
            compiled.verdict = Verdict(config=following, rejected=left)
            verdicts.keep(compiled.specialized, compiled.verdict)
        return following


__all__ = [
    "ALLOWED_SPILL_BYTES",
    "DOUBLING_BYTES",
    "MORE_TRIES",
    "MOST_SLOW",
    "PATIENCE_SECONDS",
    "Taken",
    "candidates",
    "compile_failure",
    "decide",
    "give_up",
    "verdict_of",
]
