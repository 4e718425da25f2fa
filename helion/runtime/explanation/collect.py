"""The analysis of a bound kernel, as plain data."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..._compiler.facts.records import KernelFacts
from ..._compiler.facts.summary import summarize
from ...backends.execution import CompileError
from ..specialization.binary_check import verdict_of
from ..specialization.compiled import Compiled
from ..tuning import chosen_before
from .roofline import roofline


def collect(compiled: Compiled) -> dict[str, Any]:
    """Collect facts, verdicts, seeds with predicted and measured resources, the default config, and any refusal.

    ``timed`` are the configs that a first call on the target has measured, as far as this machine remembers.
    """
    analysis = compiled.specialized.analysis
    refusal = analysis.refusal()
    verdict = _verdict(compiled)
    runs = analysis.predict(verdict_of(compiled).config)
    return {
        "kernel": analysis.name,
        "target": analysis.target.name,
        "device": analysis.target.device,
        "backend": analysis.backend.name,
        "backends": _plain(analysis.backend_candidates),
        "on_gpu": _on_gpu(compiled),
        "kind": kind_of(analysis.facts),
        "sizes": _sizes(compiled),
        "roofline": _plain(roofline(analysis.facts, runs, analysis.target)),
        "facts": _plain(analysis.facts),
        "summary": summarize(analysis.facts),
        "seeds": [_seed(compiled, seed) for seed in analysis.seeds.seeds],
        "declined": [{"heuristic": name, "reason": reason} for name, reason in analysis.seeds.declined],
        "refusal": None if refusal is None else refusal.message,
        "default_config": analysis.default_config.to_dict(),
        "verdict": verdict,
        "adjusted": _adjusted(compiled),
        "timed": _timed(compiled),
        "conservative_config": analysis.space.conservative().to_dict(),
    }


def _on_gpu(compiled: Compiled) -> dict[str, Any] | None:
    """Describe the backend that runs on the target GPU, if that is another one than the one in use."""
    of = compiled.specialized
    there = of.gpu_analysis
    if there.backend.name == of.analysis.backend.name:
        return None
    return {"backend": there.backend.name, "backends": _plain(there.backend_candidates)}


def kind_of(facts: KernelFacts) -> str:
    """Name the kind of a kernel in a few words."""
    if facts.attention is not None:
        return "attention"
    if facts.matmul_with_reduction_epilogue is not None or facts.matmul_with_tiled_reduction_epilogue is not None:
        return "matmul whose rows are reduced"
    if facts.matmuls:
        return "matmul" if len(facts.matmuls) == 1 else f"{len(facts.matmuls)} matmuls"
    others = (("scan", facts.scans), ("sort", facts.sorts), ("atomics", facts.atomics))
    extras = [each for each, there in others if there]
    if facts.reductions:
        names = ", ".join(dict.fromkeys(name for fact in facts.reductions for name in fact.names))
        over = " and ".join(dict.fromkeys(_extent(facts, fact.axis) for fact in facts.reductions))
        return " and ".join([f"reduction ({names}) over {over}", *extras])
    if facts.pointwise is not None:
        return " and ".join([f"elementwise, {facts.pointwise.total_numel} elements", *extras])
    return " and ".join(extras) or "loads and stores"


def _extent(facts: KernelFacts, axis: int) -> str:
    fact = next(each for each in facts.axes if each.block_id == axis)
    return f"{fact.name}, {'an unknown number of' if fact.extent is None else fact.extent} elements"


def _adjusted(compiled: Compiled) -> list[str]:
    """List the changes that the space made to the requested configs."""
    analysis = compiled.specialized.analysis
    for config in compiled.specialized.kernel.configs:
        analysis.full_config(config)
    return [str(change) for changes in analysis.adjusted.values() for change in changes]


def _sizes(compiled: Compiled) -> list[dict[str, Any]]:
    """List the sizes that share this config, if they differ from call to call."""
    of = compiled.specialized
    sources = of.analysis.program.host.symbols
    buckets = ((sources[name], bucket) for name, (_, bucket) in of.buckets.by_name(of.bucket).items())
    return [{"size": source, **_plain(bucket)} for source, bucket in buckets]


def _verdict(compiled: Compiled) -> dict[str, Any]:
    """Describe the config that runs on a GPU if none was requested, and those rejected because of their binaries."""
    verdict = verdict_of(compiled)
    decorators = [compiled.specialized.decorator(each.config) for each in verdict.rejected]
    found = verdict.to_dict()
    rejected = [{**r, "decorator": text} for r, text in zip(found["rejected"], decorators, strict=True)]
    return {**found, "rejected": rejected}


def _timed(compiled: Compiled) -> list[dict[str, Any]]:
    """List the outcomes of the first call, the fastest first."""
    of = compiled.specialized
    outcomes = sorted(chosen_before.timed(of, of.sample()), key=lambda outcome: outcome.time)
    return [{**each.to_dict(), "decorator": of.decorator(each.config)} for each in outcomes]


def _seed(compiled: Compiled, seed: Any) -> dict[str, Any]:
    entry = {
        "heuristic": seed.heuristic,
        "reason": seed.reason,
        "config": seed.config.to_dict(),
        "decorator": compiled.specialized.decorator(seed.config),
        "predicted": _plain(seed.predicted),
    }
    try:
        measured = compiled.resources(seed.config)
    except CompileError as error:
        # a target without an offline compiler still has facts and predictions
        return {**entry, "measured": None, "not_measured_because": str(error).splitlines()[0]}
    return {**entry, "measured": {**_plain(measured), "fits": measured.fits}}


def _plain(value: Any) -> Any:
    """Convert records to data that JSON can represent."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (tuple, list, frozenset, set)):
        return [_plain(v) for v in value]
    if isinstance(value, (int, float, str, bool)) or value is None:
        return value
    return str(value).removeprefix("torch.")
