"""Writes docs/performance.md and its plots from benchmarks/results/*.json; needs no GPU.

    python benchmarks/report.py [--results FOLDER] [--out docs/performance.md]

The files are what benchmarks/seeds.py writes, one per device and suite, and *-dispatch.json of benchmarks/dispatch.py.
What is not there is called not measured. The same files give the same bytes.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import (  # noqa: E402
    attention_report,
    axes_report,
    cute_report,
    distributed_report,
    first_call_report,
    goals,
    gpus_report,
    ops_report,
    product_goals,
    row_report,
    slow_cells,
    sweep,
    unfitted_report,
)
from benchmarks.cells import timed_cells  # noqa: E402
from benchmarks.goals import Finding, number, table  # noqa: E402
from benchmarks.seeds import BOUNDS, RESULTS, SUITES, Row  # noqa: E402
from benchmarks.timing import FLUSH_BYTES, REPETITIONS, SLOW, SLOW_REPETITIONS  # noqa: E402
from helion.backends import BACKENDS  # noqa: E402

PAGE = ROOT / "docs" / "performance.md"
README = ROOT / "README.md"
#: Stands for the device where there are no results at all.
NO_DEVICE = "No device"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Results:
    """One file of benchmarks/seeds.py: a suite on a device."""

    suite: str
    environment: Mapping[str, Any]
    rows: tuple[Row, ...]

    @property
    def slug(self) -> str:
        return f"{self.environment['device'].lower().replace(' ', '-')}-{self.suite}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dispatch:
    """One file of benchmarks/dispatch.py."""

    environment: Mapping[str, Any]
    counts: tuple[int, ...]
    tables: tuple[Mapping[str, Any], ...]


# ------------------------------------------------------------------------------------------------------------- reading


def read(folder: Path) -> tuple[list[Results], list[Dispatch]]:
    """All results in ``folder``, by name of the file.

    Raises:
        SystemExit: a file is none of ours, or has rows of more than one suite.
    """
    results, dispatches = [], []
    for path in sorted(set(folder.glob("*.json")) - set(folder.glob(f"*{first_call_report.SUFFIX}.json"))):
        try:
            found = json.loads(path.read_text())
            if path.stem.endswith("-dispatch"):
                counts, tables = tuple(found["counts"]), tuple(found["tables"])
                dispatches.append(Dispatch(environment=found["environment"], counts=counts, tables=tables))
                continue
            rows = tuple(Row(**fields) for fields in found["rows"])
            (suite,) = {row.suite for row in rows}
            results.append(Results(suite=suite, environment=found["environment"], rows=rows))
        except (ValueError, KeyError, TypeError) as error:
            raise SystemExit(f"{path} is not of benchmarks/seeds.py or benchmarks/dispatch.py: {error!r}") from error
    return results, dispatches


def by_device(results: Iterable[Results]) -> dict[str, dict[str, Results]]:
    """Results by device and suite; one device without results where there are none."""
    found: dict[str, dict[str, Results]] = {}
    for each in results:
        found.setdefault(each.environment["device"], {})[each.suite] = each
    return found or {NO_DEVICE: {}}


def copy_bandwidth(suites: Mapping[str, Results]) -> float | None:
    """The highest bandwidth of a copy that any run on the device measured, in 10**9 bytes per second."""
    return max((each.environment["copy_gb_per_s"] for each in suites.values()), default=None)


@functools.cache
def _known_keys() -> frozenset[tuple[str, str, str, str]]:
    return frozenset(cell.key for cell in timed_cells())


def coverage(suite: str, rows: Sequence[Row]) -> str:
    """How many of the cells that benchmarks/cells.py names have a row."""
    wanted = {key for key in _known_keys() if key[0] == suite}
    measured = {(row.suite, row.kernel, row.case, row.dtype) for row in rows}
    return f"{len(wanted & measured)} of {len(wanted)}"


# ------------------------------------------------------------------------------------------------------------- writing


def method() -> list[str]:
    bounds = ", ".join(f"{bound:g} in {str(dtype).removeprefix('torch.')}" for dtype, bound in BOUNDS.items())
    return [
        "## How it was measured",
        "",
        f"- Device time between two events around one call in a CUDA graph, the median of {REPETITIONS} runs",
        f"  ({SLOW_REPETITIONS} where one takes over {SLOW / 1000:.0f} ms). Before each run {FLUSH_BYTES // 2**20} MiB are written, so that",
        "  L2 is cold. The variants of a cell run in turn, so that a change of clocks meets all of them alike.",
        "- Random data. A variant counts only if its result is right: its distance from the same computation in fp64,",
        f"  relative in the 2-norm, is at most {bounds}.",
        "  What fails or is wrong is listed with the reason. Products of fp32 matrices run in TF32 everywhere.",
        "- *seed* is the first seed, *fastest seed* the best of those that were timed. The first seed runs when nothing",
        "  was tuned, but for cells that are listed under *another default*. *conservative* is Triton's config of small",
        "  safe tiles, *cute* and *triton* the default of the backend that does not run. *eager* is the same computation in PyTorch (a plain product is cuBLAS's), *torch.compile* that",
        "  computation compiled for these static shapes.",
        "- Ratios are the other's time over the seed's: above 1 the seed is faster. Means are geometric, over the cells",
        "  where both are right.",
        "- Bandwidths count inputs and outputs once. They stand against an elementwise copy of 1 GiB on the same device,",
        f"  the fastest of all its runs, for cells that move {goals.LARGE_BYTES // 10**6} MB or more.",
        "",
        "`make bench-seeds` repeats it on your GPU, `make report` writes this page.",
        "",
    ]


def limits(rows: Sequence[Row]) -> list[str]:
    """What the missed goals come from; the numbers are those of ``rows``, all of one device."""
    return [
        "## What holds seeds back",
        "",
        "- *Whole rows, N ≤ 512.* A program of 64 whole rows reads all of the right operand"
        + _read_again(rows)
        + ". One of 128",
        "  rows would halve that, but its fp32 accumulator is the whole register file. torch.compile's product has tiles of N,",
        "  and leaves the norm to a second kernel. What the default reaches is listed under *another default*.",
        "- *Whole rows, N ≥ 2048*, for the same reason: a loop over tiles of N is faster"
        + _tiled_gain(rows)
        + ". It still gives",
        "  all of a row to one program, so that few rows keep few SMs busy.",
        "- *Share of the copy rate.* bf16 kernels with a logarithm or a power of each element are short of instructions: in",
        "  fp32, with the same instructions for twice the bytes, they are closer to the copy. Kernels that only read take half",
        "  the time in bf16, so that starting and draining count twice. Rows of 131072 elements are longer than a program can",
        "  hold: read twice and written once, they reach two thirds at most by a count that has them read once, and more only by",
        "  what the second pass finds in the cache, where it begins with what the first one read last.",
        "- *`fused_linear_jsd_tiled`* never stores the logits and computes them twice: four products, in kernels that reduce their",
        "  rows, against the two that cuBLAS does for `fused_linear_jsd` and torch.compile. It is for memory, not for time, and",
        "  counts in no goal.",
        "- *Products.* Programs share the sums of few tiles and a long K (`split_k`), as for K = 65536 and an output of",
        "  256 x 256. Rows of 4097 elements are not aligned for vectors unless",
        "  operands are copied first (`pack_operands`), and TF32 products whose right operand is not contiguous along K reach",
        "  Hopper's asynchronous unit as their transposes (`swap_ab`) or from a copy (`transpose_operands`): defaults on an H200",
        "  have what is predicted to be faster.",
        "- *Sums of columns* (`column_sum`) are one program per tile of columns, which walks all rows. Programs can share them",
        "  (`split_k`), which a search tries and no default does.",
        "",
    ]


def _read_again(rows: Sequence[Row]) -> str:
    """Bytes that 64 rows a program read at M = 131072, K = N = 512 in bf16, and their rate in the fastest seed's time."""
    wanted = ("matmul_layernorm", "M=131072 K=512 N=512", "bfloat16")
    row = next((row for row in rows if (row.kernel, row.case, row.dtype) == wanted), None)
    times = [goals.microseconds(row, name) for name in row.times if goals.is_seed(name)] if row else []
    known = [time for time in times if time is not None]
    if not known:
        return ""
    moved = 2 * (131072 // 64 * 512 * 512 + 131072 * 512)
    fastest = min(known)
    return f": {moved / 1e9:.1f} GB at M = 131072, K = N = 512, {moved / fastest / 1e6:.1f} TB/s in {fastest:.0f} µs"


def _tiled_gain(rows: Sequence[Row]) -> str:
    """How many times as fast the seeds of kernels with tiled columns are, over the cells with M = 131072."""
    long = [row for row in rows if row.suite == "epilogue" and "M=131072 " in row.case and goals.columns(row) >= 2048]
    times = {(row.kernel, row.case, row.dtype): goals.microseconds(row, "seed") for row in long}
    gains = []
    for (kernel, case, dtype), whole in times.items():
        tiled = times.get((f"{kernel}_tiled", case, dtype))
        if whole is not None and tiled is not None:
            gains.append(whole / tiled)
    return f", {goals.number(min(gains))} to {goals.number(max(gains))} times at M = 131072" if gains else ""


def backends(rows: Sequence[Row]) -> str:
    """Return the backends whose first seeds ran, each with its number of cells, by the names of their heuristics."""
    ran = collections.Counter(
        next((name for name in BACKENDS if row.heuristic.lower().startswith(name)), "none") for row in rows
    )
    return ", ".join(f"{name} {count}" for name, count in ran.most_common())


def machines(results: Sequence[Results], dispatches: Sequence[Dispatch]) -> list[str]:
    header = (
        "suite",
        "device",
        "torch",
        "Triton",
        "Python",
        "fp32 products",
        "date",
        "copy, GB/s",
        "cells",
        "seeds by",
    )
    lines = []
    for each in results:
        known = each.environment
        names = ("device", "torch", "triton", "python", "float32_matmul_precision", "date", "copy_gb_per_s")
        runs = f", in {known['runs']} runs" if known.get("runs", 1) > 1 else ""
        cells = coverage(each.suite, each.rows) + runs
        shown = {**known, "date": " to ".join(dict.fromkeys((known.get("since", known["date"]), known["date"])))}
        lines.append((each.suite, *(str(shown[name]) for name in names), cells, backends(each.rows)))
    for dispatch in dispatches:
        known = dispatch.environment
        device = f"{known['device']}, {known['processor']}"
        lines.append(
            ("dispatch", device, known["torch"], known["triton"], known["python"], "-", known["date"], "-", "-", "-")
        )
    if not lines:
        lines = [("not measured", *["-"] * (len(header) - 1))]
    return ["## Devices and versions", "", *table(header, "lllllllrrl", lines), ""]


def goal_table(found: Sequence[tuple[str, Finding]]) -> list[str]:
    lines = [
        (
            suite,
            each.goal,
            f"≥ {100 * each.wanted:g} %" if each.percent else f"≥ {each.wanted:g}",
            number(each.measured, percent=each.percent),
            each.verdict,
            str(each.cells),
            each.remark,
        )
        for suite, each in found
    ]
    return table(("suite", "goal", "wanted", "measured", "verdict", "cells", "remark"), "llrrlrl", lines)


def summary(rows: Sequence[Row], copy: float | None) -> list[str]:
    """One line a kernel and dtype."""
    header = ["kernel", "dtype", "cells", "torch.compile", "lowest", "fastest seed", "eager", "conservative"]
    compute, memory = any(row.flops for row in rows), rows[0].suite in goals.MEMORY_SUITES
    header += ["TFLOP/s, highest"] * compute + ["share of copy"] * memory
    lines = []
    for (kernel, dtype), group in goals.by_kernel(rows).items():

        def mean(value: goals.Value, group: list[Row] = group) -> float | None:
            return goals.geometric_mean(goals.values_of(group, value))

        good = sum("seed" in row.times for row in group)
        lowest = min(goals.values_of(group, goals.over_seed("compile")), default=None)
        line = [kernel, dtype, str(len(group)) if good == len(group) else f"{good} of {len(group)}"]
        line += [number(mean(goals.over_seed("compile"))), number(lowest)]
        line += [number(mean(goals.over_fastest("compile")))]
        line += [number(mean(goals.over_seed("eager"))), number(mean(goals.over_seed("conservative")))]
        if compute:
            line.append(number(max(goals.values_of(group, goals.teraflops), default=None)))
        if memory:
            line.append(number(mean(goals.share_of(copy)), percent=True))
        lines.append(line)
    return [
        "Geometric means of the time of torch.compile, eager and the conservative config over the seed's; *lowest* is the",
        "lowest torch.compile / seed of a cell, *fastest seed* is torch.compile / fastest seed.",
        "",
        *table(header, "ll" + "r" * (len(header) - 2), lines),
        "",
    ]


def failures(rows: Sequence[Row]) -> list[str]:
    """What failed or was wrong, with the reason."""
    lines = [
        (row.kernel, row.case, row.dtype, variant, f"`{why[:160].replace('`', chr(39))}`")
        for row in rows
        for variant, why in row.failures.items()
    ]
    if not lines:
        return ["Nothing failed, every result is right.", ""]
    return ["Failed or wrong:", "", *table(("kernel", "case", "dtype", "variant", "reason"), "lllll", lines), ""]


def defaults(rows: Sequence[Row]) -> list[str]:
    """Where another config than the first seed runs when nothing was tuned."""
    lines, unknown = [], 0
    for row in rows:
        variant = goals.default_variant(row)
        if variant is None:
            unknown += 1
        elif variant != "seed":
            default, compiled = goals.microseconds(row, variant), goals.microseconds(row, "compile")
            ratio = compiled / default if compiled is not None and default is not None else None
            config = f"`{row.configs['default']}`".replace("helion.Config", "")
            figures = number(goals.over_seed("compile")(row)), number(ratio)
            lines.append((row.kernel, row.case, row.dtype, *figures, variant, config))
    text = []
    if unknown:
        text += [f"For {unknown} cells with several seeds the results do not tell which of them is the default.", ""]
    if lines:
        header = ("kernel", "case", "dtype", "torch.compile / seed", "torch.compile / default", "which", "config")
        text += ["Another default:", "", *table(header, "lllrrll", lines), ""]
    return text


def details(rows: Sequence[Row]) -> list[str]:
    """Every cell on a line, folded."""
    header = ["kernel", "case", "dtype", "seed, µs", "± quartiles", "torch.compile", "fastest seed", "eager"]
    others = ["conservative", *(name for name in BACKENDS if any(name in row.times for row in rows))]
    header += [*others, "GB/s", "TFLOP/s", "error", "config of the seed"]
    lines = []
    for row in rows:
        ours = row.times.get("seed")
        spread = (ours["high"] - ours["low"]) / 2 / ours["median"] if ours else None
        fastest = goals.over_fastest("compile")(row)
        ratios = [goals.over_seed(other)(row) for other in ("compile", "eager", *others)]
        figures = [ratios[0], fastest, *ratios[1:]]
        bandwidth = row.bytes / ours["median"] * 1e-3 if ours else None
        error = f"{row.errors['seed']:.0e}" if "seed" in row.errors else "-"
        config = f"`{row.configs['seed']}`" if "seed" in row.configs else "-"
        line = [row.kernel, row.case, row.dtype, number(ours["median"] if ours else None)]
        line += [number(spread, percent=True), *map(number, figures), number(bandwidth)]
        lines.append([*line, number(goals.teraflops(row)), error, config.replace("helion.Config", "")])
    return [
        "<details>",
        f"<summary>All {len(rows)} cells</summary>",
        "",
        *table(header, "lll" + "r" * (len(header) - 4) + "l", lines),
        "",
        "</details>",
        "",
    ]


def has_plot(results: Results) -> bool:
    return bool(goals.values_of(results.rows, goals.over_seed("compile")))


def pictures(results: Iterable[Results], folder: str) -> list[str]:
    """The plots of all suites, by device, in front of the tables."""
    lines: list[str] = []
    for device, suites in by_device(results).items():
        drawn = [suites[suite] for suite in SUITES if suite in suites and has_plot(suites[suite])]
        lines += [f"## At a glance, {device}", ""] if drawn else []
        if drawn:
            lines += [
                "Time of torch.compile over that of the seed, by kernel and dtype: above 1 the seed is faster.",
                "",
            ]
        for each in drawn:
            lines += [f"![torch.compile / seed by kernel and dtype, {each.suite}]({folder}/{each.slug}.svg)", ""]
    return lines


def suite_section(suite: str, results: Results | None, copy: float | None) -> list[str]:
    if results is None or not results.rows:
        return [f"### {suite}", "", "Not measured.", ""]
    return [
        f"### {suite}",
        "",
        *((results.environment["note"], "") if "note" in results.environment else ()),
        *summary(results.rows, copy),
        *failures(results.rows),
        *defaults(results.rows),
        *details(results.rows),
    ]


def dispatch_sections(dispatches: Sequence[Dispatch]) -> list[str]:
    lines = ["## What a call costs before the kernel runs", ""]
    if not dispatches:
        return [*lines, "Not measured.", ""]
    lines += [
        "Wall µs per call of a kernel that adds tensors of 4096 fp32 elements, allocation of the output included;",
        "benchmarks/dispatch.py says what each row is. With the driver stubbed the launch is a no-op.",
        "",
    ]
    for each in dispatches:
        for one in each.tables:
            header = (f"{one['title']}, {each.environment['processor']}", *(f"{n} tensors" for n in each.counts))
            body = []
            for row in one["rows"]:
                body.append((row["label"], *(f"{value:.2f}" for value in row["microseconds"])))
                if row["label"] in one["goals"]:
                    body.append(("*its goal*", *(f"{value:.2f}" for value in one["goals"][row["label"]])))
            lines += [*table(header, "l" + "r" * len(each.counts), body), ""]
        found = [("dispatch", finding) for finding in goals.dispatch_findings(each.tables)]
        lines += [*goal_table(found), ""]
    return lines


def sweep_section(scores: Iterable[sweep.Score]) -> list[str]:
    """How far first seeds are from the best of many configs, by kernel and dtype."""
    groups: dict[tuple[str, str, str], list[sweep.Score]] = {}
    for score in scores:
        groups.setdefault((score.cell.suite, score.cell.kernel, score.cell.dtype), []).append(score)
    if not groups:
        return []
    body = []
    for key, group in groups.items():
        known = [score.ratio for score in group if score.ratio is not None]
        mean, highest = (goals.geometric_mean(known), max(known)) if known else (None, None)
        cells = f"{len(known)} of {len(group)}"
        body.append(
            (*key, cells, str(sum(score.configs for score in group)), goals.number(mean), goals.number(highest))
        )
    return [
        "## Seeds beside sweeps",
        "",
        f"The time of the first seed over that of the best of the configs in `{sweep.KEPT.relative_to(ROOT)}`, measured on an",
        "H200 as above: the geometric mean over cells, and the highest. Cells whose seed is not among the swept configs have",
        "no ratio. For whole rows behind a product the first seed is the published one, and not the default.",
        "",
        *table(("suite", "kernel", "dtype", "cells", "configs", "seed / best", "highest"), "lllrrrr", body),
        "",
    ]


def render(
    results: Sequence[Results],
    dispatches: Sequence[Dispatch],
    scores: Iterable[sweep.Score] = (),
    folder: str = "performance",
    cute: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    distributed: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    first_calls: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    rows: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    attention: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    operators: Mapping[str, ops_report.Operators] | None = None,
    products: Mapping[str, Sequence[str]] | None = None,
    unfitted: Mapping[str, Mapping[str, unfitted_report.Row]] | None = None,
    pairs: Sequence[gpus_report.Pair] = (),
    axes: Mapping[str, Sequence[axes_report.Row]] | None = None,
) -> str:
    """The page; ``folder`` is where its plots are, relative to it."""
    lines = [
        "# Performance",
        "",
        "How seeds, the configs that the heuristics propose with no tuning, stand against torch.compile, eager PyTorch and",
        "the conservative config, and against the goals of the project, missed ones included. `make report` writes this",
        "page from `benchmarks/results/`.",
        "",
        *pictures(results, folder),
        *method(),
        *machines(results, dispatches),
    ]
    for device, suites in by_device(results).items():
        copy = copy_bandwidth(suites)
        found = [
            (suite, finding)
            for suite in SUITES
            for finding in goals.findings(suite, suites[suite].rows if suite in suites else (), copy)
        ]
        met = sum(finding.met for _, finding in found)
        unmeasured = sum(finding.measured is None for _, finding in found)
        missed = len(found) - met - unmeasured
        lines += [
            f"## {device}",
            "",
            f"Of {len(found)} goals {met} are met, {missed} missed and {unmeasured} not measured.",
            "",
            *goal_table(found),
            "",
        ]
        for suite in SUITES:
            lines += suite_section(suite, suites.get(suite), copy)
    lines += [*gpus_report.sections(pairs), *unfitted_report.sections(unfitted or {}), *sweep_section(scores)]
    for suites in by_device(results).values():
        lines += slow_cells.section([row for each in suites.values() for row in each.rows], RESULTS)
        if suites:
            lines += limits([row for each in suites.values() for row in each.rows])
    lines += [*cute_report.sections(cute or {}, products or {}), *attention_report.sections(attention or {})]
    lines += distributed_report.sections(distributed or {})
    lines += [*first_call_report.sections(first_calls or {}), *axes_report.sections(axes or {})]
    lines += [*ops_report.sections(operators or {})]
    lines += [*row_report.sections(rows or {}), *dispatch_sections(dispatches)]
    return "\n".join(lines).rstrip() + "\n"


def write_plots(results: Sequence[Results], folder: Path) -> None:
    """One SVG file per suite and device; others in ``folder`` are of results that are gone, and are deleted."""
    from benchmarks.plots import plot  # imports matplotlib, which the page itself does without

    current = {folder / f"{each.slug}.svg": each for each in results if has_plot(each)}
    for path, each in current.items():
        plot(each.rows, f"{each.suite}, {each.environment['device']}", path)
    for path in set(folder.glob("*.svg")) - set(current):
        path.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON files")
    parser.add_argument("--out", type=Path, default=PAGE, help="the page; plots go to a folder of its name")
    options = parser.parse_args()
    results, dispatches = read(options.results)
    folder = options.out.with_suffix("")
    write_plots(results, folder)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    scores = sweep.scores(sweep.parse(sweep.KEPT.read_text()))
    cute, distributed = cute_report.read(options.results / "cute"), distributed_report.read(options.results)
    products = product_goals.read(options.results, cute)
    first_calls, operators = first_call_report.read(options.results), ops_report.read(options.results / "ops")
    rows, attention = row_report.read(options.results / "cute"), attention_report.read(options.results)
    page = render(
        results,
        dispatches,
        scores,
        folder.name,
        cute,
        distributed,
        first_calls,
        rows,
        attention,
        operators,
        products,
        unfitted_report.read(options.results),
        gpus_report.read(options.results, [row for each in results for row in each.rows]),
        axes_report.read(options.results),
    )
    options.out.write_text(page)
    if options.out == PAGE:
        README.write_text(cute_report.with_figures(README.read_text(), cute))
    print(f"{options.out}: {len(results)} suites, {len(dispatches)} of dispatch")
    return 0


if __name__ == "__main__":
    sys.exit(main())
