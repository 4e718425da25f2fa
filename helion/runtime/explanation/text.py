"""An explanation as plain text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Data = Mapping[str, Any]


def render_text(data: Data) -> str:
    """Format the summary: kind, limiting resource, seeds with reasons, and predicted and measured resources."""
    lines = [f"{data['kernel']} on {data['target']} ({data['device']})", ""]
    lines += [f"  {name:<10} {value}" for name, value in overview(data)]
    lines += ["", "seeds (predicted / measured; * runs when nothing was tuned):" if data["seeds"] else "seeds: none"]
    if data["seeds"]:
        lines += columns([HEADINGS, *(row(data, seed, at) for at, seed in enumerate(data["seeds"], 1))])
    for at, seed in enumerate(data["seeds"], 1):
        lines.append(f"  {at}. {seed['heuristic']}: {seed['reason']}")
        lines.append(f"     {seed['decorator']}")
        if seed["measured"] is None:
            lines.append(f"     not measured: {seed['not_measured_because']}")
    return "\n".join([*lines, *_rest(data)])


def render_facts(data: Data) -> str:
    """Format the raw records."""
    lines = [f"{data['kernel']} on {data['target']}", "", f"facts: {data['summary']}"]
    for name, value in data["facts"].items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            lines.append(f"  {name}:")
            lines += [f"    {line(item)}" for item in value]
        elif isinstance(value, dict):
            lines.append(f"  {name}: {line(value)}")
    lines += ["", "seeds:"] if data["seeds"] else ["", "seeds: none"]
    for at, seed in enumerate(data["seeds"], 1):
        lines.append(f"  {at}. {seed['heuristic']}: {seed['reason']}")
        lines.append(f"     {seed['decorator']}")
        lines.append(f"     predicted: {line(seed['predicted'])}")
        measured = seed["measured"]
        lines.append(f"     measured:  {line(measured) if measured else seed['not_measured_because']}")
    lines += _rest(data)
    lines += ["", f"default config:      {line(data['default_config'])}"]
    lines += [f"conservative config: {line(data['conservative_config'])}"]
    return "\n".join(lines)


def _rest(data: Data) -> list[str]:
    lines = ["", f"refused on a GPU: {data['refusal']}"] if data["refusal"] else []
    lines += ["", "timed at the first call:", *map(_outcome, data["timed"])] if data["timed"] else []
    lines += ["", "adjusted:", *(f"  {change}" for change in data["adjusted"])] if data["adjusted"] else []
    return [*lines, "", "declined:", *(f"  {reason}: {names}" for reason, names in declined(data))]


def declined(data: Data) -> list[tuple[str, str]]:
    """Return each reason why rules gave no seed, with their names, in the order of the first one."""
    names: dict[str, list[str]] = {}
    for entry in data["declined"]:
        names.setdefault(entry["reason"], []).append(entry["heuristic"])
    return [(reason, ", ".join(of)) for reason, of in names.items()]


def _outcome(entry: Data) -> str:
    microseconds = entry["microseconds"]
    found = f"{entry['status']}: {entry['detail']}" if microseconds is None else _time(microseconds)
    return f"  {found}: {entry['decorator']}"


# --- parts that the table in a terminal and the page have, too --------------------------------------------------------

#: Fraction of the time below which a busy unit is not named.
_LEAST_SHARE = 0.1
_MOST_UNITS = 3
#: Fraction of the time below which the slowest unit does not explain it.
_EXPLAINED = 0.5
HEADINGS = ("", "seed", "time", "registers", "spills", "shared memory", "waves", "main choices")


def overview(data: Data) -> list[tuple[str, str]]:
    """List kind and limits of the kernel, by name."""
    bounds = data["roofline"]
    least = max(bounds["memory_us"], bounds["arithmetic_us"])
    share = f", {bounds['predicted_us'] / least:.2f} times the roofline" if least else ""
    return [
        ("kind", data["kind"]),
        *([("backend", _backend(data))] if data["backends"] else []),
        *([("on a GPU", f"{_backend(data['on_gpu'])}; below is {data['backend']}")] if data["on_gpu"] else []),
        *((("sizes", ", ".join(map(_bucket, data["sizes"]))),) if data["sizes"] else ()),
        ("axes", ", ".join(map(_axis, data["facts"]["axes"]))),
        (
            "moves",
            f"{_amount(bounds['bytes_moved'], 'B')}, at least {_time(bounds['memory_us'])} at {bounds['gb_per_s']:g} GB/s",
        ),
        (
            "computes",
            f"{_amount(bounds['flops'], 'FLOP')}, at least {_time(bounds['arithmetic_us'])} ({bounds['unit']})",
        ),
        ("bound by", f"{bounds['bound_by']}; predicted {_time(bounds['predicted_us'])}{share}"),
        *([("units", units(bounds))] if bounds["units"] else []),
        ("runs", _named(data, data["verdict"]["config"])),
        *(("not run", f"{_named(data, each['config'])}: {each['reason']}") for each in data["verdict"]["rejected"]),
    ]


def _backend(data: Data) -> str:
    """Format the backend, and the reasons against its alternatives."""
    others = [_alternative(data, each) for each in data["backends"] if each["backend"] != data["backend"]]
    own = next((each for each in data["backends"] if each["backend"] == data["backend"]), None)
    predicted = f", predicted {_time(own['us'])}" if own and own["us"] is not None else ""
    return "; not ".join([f"{data['backend']}{predicted}", *others])


def _alternative(data: Data, each: Data) -> str:
    """Format the reason against a backend: a refusal, or a predicted time with the one that it would replace."""
    if each["reason"]:
        return f"{each['backend']}: {each['reason']}"
    said = f"{each['backend']}: predicted {_time(each['us'])}"
    ahead = each["replaces_us"] > each["us"]
    return f"{said}, which replaces {data['backend']} above {_time(each['replaces_us'])}" if ahead else said


def _bucket(size: Data) -> str:
    low = "" if size["above"] is None else f" from {size['above'] + 1}"
    return f"{size['size']}{low}" + (f" to {size['most']}" if size["most"] is not None else "")


def _named(data: Data, config: Data) -> str:
    found = next((at for at, seed in enumerate(data["seeds"], 1) if seed["config"] == config), None)
    if found:
        return f"seed {found}"
    if config == data["conservative_config"]:
        return "the conservative config"
    return f"the default with tiles {config['block_sizes']}, stages {config['num_stages']}"


def units(bounds: Data) -> str:
    """Format the slowest units, if significant, and the fraction of the predicted time that each is busy."""
    total = bounds["predicted_us"]
    slow = [(name, us) for name, us in bounds["units"] if us >= _LEAST_SHARE * total]
    shown = [f"{name} {_time(us)} ({us / total:.0%})" for name, us in slow[:_MOST_UNITS]]
    most = max(us for _, us in bounds["units"])
    if most < _EXPLAINED * total:
        shown.append(f"{_time(total - most)} beyond the slowest of them")
    return ", ".join(shown)


def row(data: Data, seed: Data, at: int) -> tuple[str, ...]:
    """Format one seed under ``HEADINGS``: predicted / measured; a star marks the one that runs if nothing was tuned."""
    predicted, measured = seed["predicted"], seed["measured"]
    return (
        f"{at}{'*' if seed['config'] == data['verdict']['config'] else ''}",
        seed["heuristic"],
        _time(predicted["time_us"]),
        _both(str(predicted["registers_per_thread"]), measured and str(measured["registers"])),
        _both(
            "none" if predicted["spill_risk"] == 0 else f"risk {predicted['spill_risk']:.0%}",
            measured and _spills(measured),
        ),
        _both(_amount(predicted["shared_bytes"], "B"), measured and _amount(measured["shared_bytes"], "B")),
        f"{predicted['waves']:.3g}",
        choices(seed["config"]),
    )


def choices(config: Data) -> str:
    """Format the entries of a config that differ most between seeds."""
    names = {"block_sizes": "tiles", "reduction_loops": "chunks", "num_warps": "warps", "num_stages": "stages"}
    shown = ((name, config.get(key)) for key, name in names.items())
    return ", ".join(f"{name} {_short(value)}" for name, value in shown if value not in (None, [], [None]))


def line(record: Data) -> str:
    """Format a record on one line, without empty fields."""
    return ", ".join(f"{key}={_short(value)}" for key, value in record.items() if value not in (None, [], {}, ""))


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(each[at]) for each in rows) for at in range(len(rows[0]))]
    return [
        "  " + "  ".join(f"{text:<{width}}" for text, width in zip(each, widths, strict=True)).rstrip() for each in rows
    ]


def _axis(axis: Data) -> str:
    extent = "?" if axis["extent"] is None else axis["extent"]
    how = (
        "rolled"
        if axis["rollable"]
        else {"tile": "tiled", "full": "whole", "fixed": f"by {axis['size']}"}.get(axis["kind"], axis["kind"])
    )
    return f"{axis['name']} {extent} ({how})"


def _both(predicted: str, measured: str | None) -> str:
    return predicted if measured is None else f"{predicted} / {measured}"


def _spills(measured: Data) -> str:
    return _amount(measured["spill_bytes"], "B") if measured["spill_bytes"] else "none"


def _time(us: float) -> str:
    return f"{us / 1e3:.3g} ms" if us >= 1e3 else f"{us:.3g} µs"


def _amount(number: float, unit: str) -> str:
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {prefix}{unit}"
    return f"{number:g} {unit}"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return f"({line(value)})"
    return str(value).replace("'", "")
