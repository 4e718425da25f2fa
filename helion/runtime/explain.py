"""What the compiler thinks of a bound kernel, for people and for programs."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from .. import exc
from ..backends.execution import CompileError
from .compiled import Compiled


def collect(compiled: Compiled) -> dict[str, Any]:
    """Facts, verdicts, seeds with predicted and measured resources, the default config, and why it is refused, if it
    is, as plain data."""
    analysis = compiled.specialized.analysis
    refusal = analysis.refusal()
    return {
        "kernel": analysis.name,
        "target": analysis.target.name,
        "facts": _plain(analysis.facts),
        "summary": analysis.facts.summary(),
        "seeds": [_seed(compiled, seed) for seed in analysis.seeds.seeds],
        "declined": [{"heuristic": name, "reason": reason} for name, reason in analysis.seeds.declined],
        "refusal": None if refusal is None else refusal.message,
        "default_config": analysis.default_config.to_dict(),
        "adjusted": _adjusted(compiled),
        "conservative_config": analysis.space.conservative().to_dict(),
    }


def _adjusted(compiled: Compiled) -> list[str]:
    """What the configs that were asked for do not get."""
    analysis = compiled.specialized.analysis
    for config in compiled.specialized.kernel.configs:
        analysis.full_config(config)
    return [str(change) for changes in analysis.adjusted.values() for change in changes]


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
    """Records as data that JSON can hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (tuple, list, frozenset, set)):
        return [_plain(v) for v in value]
    if isinstance(value, (int, float, str, bool)) or value is None:
        return value
    return str(value).removeprefix("torch.")


def render_text(data: dict[str, Any]) -> str:
    lines = [f"{data['kernel']} on {data['target']}", "", f"facts: {data['summary']}"]
    for name, value in data["facts"].items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            lines.append(f"  {name}:")
            lines += [f"    {_line(item)}" for item in value]
        elif isinstance(value, dict):
            lines.append(f"  {name}: {_line(value)}")
    lines += ["", "seeds:"] if data["seeds"] else ["", "seeds: none"]
    for at, seed in enumerate(data["seeds"], 1):
        lines.append(f"  {at}. {seed['heuristic']}: {seed['reason']}")
        lines.append(f"     {seed['decorator']}")
        lines.append(f"     predicted: {_line(seed['predicted'])}")
        measured = seed["measured"]
        lines.append(f"     measured:  {_line(measured) if measured else seed['not_measured_because']}")
    lines += ["", "declined:"]
    lines += [f"  {entry['heuristic']}: {entry['reason']}" for entry in data["declined"]]
    lines += ["", f"refused on a GPU: {data['refusal']}"] if data["refusal"] else []
    lines += ["", "adjusted:", *(f"  {change}" for change in data["adjusted"])] if data["adjusted"] else []
    lines += ["", f"default config:      {_line(data['default_config'])}"]
    lines += [f"conservative config: {_line(data['conservative_config'])}"]
    return "\n".join(lines)


def _line(record: dict[str, Any]) -> str:
    return ", ".join(f"{key}={_short(value)}" for key, value in record.items() if value not in (None, [], {}, ""))


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return f"({_line(value)})"
    return str(value).replace("'", "")


def explain(compiled: Compiled, format: str) -> str:
    """The text or JSON of ``BoundKernel.explain``. Raises ``exc.InvalidAPIUsage`` for another format."""
    if format not in ("text", "json"):
        raise exc.InvalidAPIUsage(f"explain takes format='text' or 'json', got {format!r}.")
    data = collect(compiled)
    return json.dumps(data, indent=2) if format == "json" else render_text(data)
