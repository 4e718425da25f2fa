"""Check of the default seed by the resources of its binary, before it is launched.

The first call on a GPU compiles a kernel anyway. If the binary spills more than ``ALLOWED_SPILL_BYTES``, or cannot be
launched, the next seeds are compiled, and the best of them runs. One that can be launched is better than one that
cannot, then fewer spilled bytes, then the order of the seeds. With matmuls, the predicted time with that of the spills
takes the place of the bytes. Where no seed fits, the default with fewer stages and smaller tiles is tried, and with
smaller tiles where all seeds spill. The verdict is cached on disk, so that the next process compiles only that one.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ... import exc, knobs
from ..._shapes import hint_of
from ..._support import files as _files
from ..._support import logs as _logging
from ..._support.lazy import lazy
from ...config import Config
from .compiled import Compiled
from .smaller import smaller
from .specialized import Specialized

if TYPE_CHECKING:
    from ...autotuner import margins
    from ...autotuner.proposal import Predicted
else:
    margins = lazy("helion.autotuner.margins")

_LOG = _logging.logger(__name__)

#: Bytes per thread that a kernel may spill without being rejected. The data are 169 configs with registers near their
#: limit from sweeps of an H200 (benchmarks/results). The rates of configs within 5 % of the best of their cell are: 19
#: % without spills, 17 % with up to 64 bytes, 2 % with more.
ALLOWED_SPILL_BYTES = 64
#: Further seeds that are compiled if the first one can be launched, and a limit of time in seconds. After it only seeds
#: with fewer predicted registers are begun. A kernel compiles in 0.1 to 3 s, and the caller waits. One with thousands
#: of spilled bytes can take longer than the limit by itself, and one with fewer registers compiles much faster.
MORE_TRIES, PATIENCE_SECONDS = 3, 10.0

#: Configs that may compile longer than ``HELION_COMPILE_LIMIT_SECONDS``: after them only the last one is compiled.
MAX_SLOW = 2

#: Spilled bytes at which a kernel with matmuls is estimated to take twice as long. Its accumulators stay in registers,
#: and spilled values are mostly read before and after the mainloop (measurement ``spilled_gradients``).
DOUBLING_BYTES = 1024

#: Part of every key: it changes when the rule of verdicts changes.
_VERSION = 8

Candidate = tuple[Config, "Predicted"]


# --- records ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A config that does not run, with the reason; ``fits`` if it could be launched."""

    config: Config
    reason: str
    fits: bool


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The config that runs if none was requested, and those that were compiled and rejected."""

    config: Config
    rejected: tuple[Rejected, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as JSON data."""
        rejected = [{"config": r.config.to_dict(), "reason": r.reason, "fits": r.fits} for r in self.rejected]
        return {"config": self.config.to_dict(), "rejected": rejected}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Verdict:
        """Make a verdict from ``to_dict``'s data.

        Raises KeyError, TypeError, ValueError or AttributeError for any other.
        """
        rejected = (
            Rejected(config=Config.from_dict(each["config"]), reason=str(each["reason"]), fits=bool(each["fits"]))
            for each in data["rejected"]
        )
        return cls(config=Config.from_dict(data["config"]), rejected=tuple(rejected))


@dataclass(frozen=True, kw_only=True)
class BinaryResources:
    """Resources of a config's binary: spilled bytes per thread, and the reason why it cannot be launched, "" if it can."""

    spill_bytes: int = 0
    refusal: str = ""
    never_spills: bool = False
    """True if a spilled byte is enough to reject it."""
    shared_bytes: int = 0
    """Shared memory of a program, and its limit, for a config that needs too much."""
    limit_bytes: int = 0

    @property
    def is_good(self) -> bool:
        """True if no other config is needed."""
        return not self.refusal and self.spill_bytes <= (0 if self.never_spills else ALLOWED_SPILL_BYTES)

    def rank(self, predicted: Predicted, multiplies: bool) -> tuple[bool, float]:
        """Return the sort key; the least is the best.

        It is the predicted time with that of the spills where a kernel ``multiplies`` matrices, else the spilled bytes.
        """
        spilled = 0 if self.is_good else self.spill_bytes
        if multiplies and not self.never_spills:
            return bool(self.refusal), predicted.time_us * (1 + spilled / DOUBLING_BYTES)
        return bool(self.refusal), spilled

    def worth(self, multiplies: bool) -> float:
        """Return the predicted slowdown up to which a config with fewer spills is still worth compiling."""
        if self.never_spills or not multiplies:
            return margins.SPILLING_RATIO
        return min(margins.SPILLING_RATIO, 1 + self.spill_bytes / DOUBLING_BYTES)

    def __str__(self) -> str:
        return self.refusal or f"spills {self.spill_bytes} bytes per thread"


def candidates(of: Specialized) -> Iterator[Config]:
    """Yield the configs that may run if none was requested: the default, the seeds, the conservative one."""
    yield from dict.fromkeys((*_proposed(of), of.analysis.space.conservative()))


def _proposed(of: Specialized) -> tuple[Config, ...]:
    analysis = of.analysis
    return tuple(dict.fromkeys((analysis.default_config, *(seed.config for seed in analysis.seeds.seeds))))


def decide(
    options: Iterable[Candidate],
    measure: Callable[[Config], BinaryResources | None],
    has_time: Callable[[], bool],
    *,
    multiplies: bool = False,
) -> Verdict | None:
    """Return the best of ``options``, which are in order, by ``measure``; None if the first cannot be measured.

    While none can be launched, all are measured in turn. Then up to ``MORE_TRIES`` more are measured. They must not be
    predicted to take longer by more than a factor, which is smaller if a kernel ``multiplies`` matrices. When it no
    longer ``has_time``, they must be predicted to need fewer registers than each that was measured and spills.
    """
    tried: list[tuple[Candidate, BinaryResources]] = []
    best: tuple[Candidate, BinaryResources] | None = None

    def rank(each: tuple[Candidate, BinaryResources]) -> tuple[bool, float]:
        return each[1].rank(each[0][1], multiplies)

    for config, predicted in options:
        if best is not None and not best[1].refusal:
            if len(tried) > MORE_TRIES:
                break
            if predicted.time_us > best[1].worth(multiplies) * best[0][1].time_us:
                continue
            fewest = min(p.registers_per_thread for (_, p), measured in tried if not measured.refusal)
            if predicted.registers_per_thread >= fewest and not has_time():
                continue
        taken = measure(config)
        if taken is None and not tried:
            return None
        if taken is not None:
            tried.append(((config, predicted), taken))
            best = min(tried, key=rank)
            if taken.is_good:
                break
    if best is None:
        return None
    chosen = best[0][0]
    worse = (each for each in tried if rank(each) > rank(best))
    rejected = (Rejected(config=c, reason=str(t), fits=not t.refusal) for (c, _), t in worse)
    return Verdict(config=chosen, rejected=tuple(rejected))


def verdict_of(compiled: Compiled) -> Verdict:
    """Return the verdict that is known here, cached on disk, or measured now.

    Errors are not raised; the default config runs then.
    """
    with compiled.lock:
        if compiled.verdict is None:
            of = compiled.specialized
            known = kept(of, itertools.chain(candidates(of), smaller(of)))
            compiled.verdict = known or _measured(compiled)
        return compiled.verdict


def _measured(compiled: Compiled) -> Verdict:
    of, start = compiled.specialized, time.perf_counter()
    if of.analysis.refusal() is not None:  # none will be launched
        return Verdict(config=of.analysis.default_config)
    last, limit = of.analysis.space.conservative(), knobs.COMPILE_LIMIT_SECONDS.read() or None
    slow: set[Config] = set()
    proposed: dict[Config, BinaryResources | None] = {}

    def measure(config: Config) -> BinaryResources | None:
        if config != last and len(slow) == MAX_SLOW:
            return BinaryResources(refusal=f"was not compiled: {MAX_SLOW} configs before it took longer than {limit} s")
        began = time.perf_counter()
        taken = _resources_of(compiled, config, None if config == last else limit)
        if limit is not None and time.perf_counter() - began >= limit and (taken is None or taken.refusal):
            slow.add(config)
        if config in ordered:
            proposed[config] = taken
        return None if taken is None else replace(taken, never_spills=of.analysis.predict(config).never_spills)

    ordered = _proposed(of)

    def options() -> Iterator[Candidate]:
        yield from ((config, of.analysis.predict(config)) for config in ordered)
        if len(proposed) == len(ordered):
            yield from _fitting(of, proposed[ordered[0]], proposed.values())
        yield from _unspilled(of, proposed.values(), last)
        yield last, of.analysis.predict(last)

    found = decide(
        options(),
        measure,
        lambda: time.perf_counter() - start < PATIENCE_SECONDS,
        multiplies=bool(of.analysis.facts.matmuls),
    )
    if found is None:
        return Verdict(config=of.analysis.default_config)
    keep(of, found)
    if _LOG.isEnabledFor(logging.INFO):
        elapsed = 1e3 * (time.perf_counter() - start)
        _LOG.info("verified %s in %.1f ms: %s", of.kernel.name, elapsed, found)
    return found


def _fitting(
    of: Specialized, first: BinaryResources | None, proposed: Iterable[BinaryResources | None]
) -> list[Candidate]:
    """Return configs that are predicted to fit, the fastest first, where all that were proposed need too much memory.

    Their shared memory is taken to differ from the prediction by the factor of the first one.
    """
    if first is None or not all(each is not None and each.shared_bytes > each.limit_bytes for each in proposed):
        return []
    factor = max(1.0, first.shared_bytes / max(1, of.analysis.predict(of.analysis.default_config).shared_bytes))
    found = [(config, of.analysis.predict(config)) for config in smaller(of)]
    fitting = [each for each in found if each[1].fits and factor * each[1].shared_bytes <= first.limit_bytes]
    return sorted(fitting, key=lambda each: each[1].time_us)


def _unspilled(of: Specialized, proposed: Iterable[BinaryResources | None], last: Config) -> list[Candidate]:
    """Return smaller configs, the fastest by prediction first, where all seeds that were compiled spill.

    They must be predicted to be faster than the ``last``. Kernels with matmuls have none: their accumulators decide.
    """
    measured = list(proposed)
    spilled = all(each is not None and not each.refusal and not each.is_good for each in measured)
    if not measured or not spilled or of.analysis.facts.matmuls:
        return []
    stages, most = of.analysis.default_config.get("num_stages"), of.analysis.predict(last).time_us
    tried = [(config, of.analysis.predict(config)) for config in smaller(of) if config.get("num_stages") == stages]
    able = [each for each in tried if each[1].fits and not each[1].spills and each[1].time_us < most]
    return sorted(able, key=lambda each: each[1].time_us)


def _resources_of(compiled: Compiled, config: Config, seconds: float | None) -> BinaryResources | None:
    """Return the resources of a config, None if they are unknown.

    A config that compiles longer than ``seconds`` is refused.
    """
    of = compiled.specialized
    try:
        compiled.expect_launch(config)
        found = compiled.resources(config, count_opcodes=False, seconds=seconds)
    except Exception as error:  # a call does not fail for want of a better config
        if _is_failure(of, error):
            return BinaryResources(refusal=f"does not compile: {str(error).splitlines()[-1]}")
        _LOG.info("%s cannot be measured: %s: %s", of.kernel.name, type(error).__name__, error)
        return None
    refusal = f"does not fit: {'; '.join(found.overflow)}" if found.overflow else ""
    if not refusal:
        return BinaryResources(spill_bytes=found.spill_bytes)
    return BinaryResources(refusal=refusal, shared_bytes=found.shared_bytes, limit_bytes=found.limit_bytes)


def compile_failure(compiled: Compiled, config: Config) -> str:
    """Return the compiler's error for a config in one line; "" if it compiles, or that is unknown."""
    of = compiled.specialized
    try:
        compiled.resources(config, count_opcodes=False)
    except exc.BackendUnsupported as error:  # the toolchain is incomplete
        return str(error).splitlines()[0]
    except Exception as error:  # a call does not fail for want of a better backend
        if _is_failure(of, error):
            return str(error).splitlines()[0]
        _LOG.info("%s cannot be measured: %s: %s", of.kernel.name, type(error).__name__, error)
    return ""


def print_failure(of: Specialized) -> str:
    """Return why the backend in use has no code for its default config, in one line; "" if it has.

    Errors of its own code are raised only if the compiler is verified.
    """
    try:
        of.analysis.code(of.analysis.default_config)
    except Exception as error:
        if _is_failure(of, error):
            return str(error).splitlines()[0]
        if knobs.VERIFY.read():
            raise
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def _is_failure(of: Specialized, error: Exception) -> bool:
    """Return whether the compiler refuses the kernel."""
    return any(isinstance(each, Exception) and of.executor.is_failure(each) for each in (error, error.__cause__))


def replace_failed(compiled: Compiled, config: Config, reason: str) -> Config | None:
    """Replace a config that the device refused, and return the next one; None if it was the last.

    The choice is cached on disk.
    """
    with compiled.lock:
        former = compiled.verdict or Verdict(config=config)
        rejected = (*former.rejected, Rejected(config=config, reason=f"does not fit: {reason}", fits=False))
        unfit = {each.config for each in rejected if not each.fits}
        following = next((c for c in candidates(compiled.specialized) if c not in unfit), None)
        if following is not None:
            left = tuple(each for each in rejected if each.config != following)
            compiled.verdict = Verdict(config=following, rejected=left)
            keep(compiled.specialized, compiled.verdict)
        return following


# --- verdicts on disk -------------------------------------------------------------------------------------------------
# A file for each kernel, specialization, target and compiler. Failures to read or write them are ignored.


def kept(of: Specialized, candidates: Iterable[Config]) -> Verdict | None:
    """Return the cached verdict; None if there is none, or its config is no candidate any more."""
    if knobs.SKIP_CACHE.read():
        return None
    try:
        found = Verdict.from_dict(json.loads(_path(of).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # there is none, or half of one
        return None
    return found if found.config in candidates else None


def keep(of: Specialized, verdict: Verdict) -> None:
    """Keep a verdict for other processes, if that is possible."""
    if knobs.SKIP_CACHE.read():
        return
    path = _path(of)
    try:
        _files.make_folder(path.parent, _files.cache_dir())
        _files.write_whole(path, json.dumps(verdict.to_dict()), shared=True)
    except OSError as error:
        _logging.say_once(
            f"helion: {path.parent.parent} cannot be written ({error.strerror}); other processes check their seeds again"
        )


def _path(of: Specialized) -> pathlib.Path:
    digest = _key(of)
    return _files.cache_dir() / "verdicts" / digest[:2] / f"{of.kernel.name[:100]}_{digest}.json"


def _key(of: Specialized) -> str:
    """Return the key: the code of the default config, which contains the kernel and its specialization.

    Sizes of dimensions that differ from call to call are added.
    """
    analysis, target = of.analysis, of.target
    limit = knobs.COMPILE_LIMIT_SECONDS
    extents = [None if block.extent is None else hint_of(block.extent) for block in analysis.program.blocks]
    parts = (
        str(_VERSION),
        analysis.code(analysis.default_config).text,
        repr(extents),
        target.text,
        analysis.backend.toolchain.compiler(target),
        *([] if limit.read() == limit.default else [str(limit.read())]),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


__all__ = [
    "ALLOWED_SPILL_BYTES",
    "DOUBLING_BYTES",
    "MAX_SLOW",
    "MORE_TRIES",
    "PATIENCE_SECONDS",
    "BinaryResources",
    "Rejected",
    "Verdict",
    "candidates",
    "compile_failure",
    "decide",
    "keep",
    "kept",
    "replace_failed",
    "verdict_of",
]
