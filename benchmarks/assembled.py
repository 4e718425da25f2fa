"""Scores of an order of leaders by their assembled code, beside the order by predicted times.

    python benchmarks/assembled.py                         fitted with other kernels, then with the other GPU
    python benchmarks/assembled.py --compile 8 --sample h100-samples --out TSV   compiles the first 8 leaders of each cell

Neither needs a GPU. The times are those of benchmarks/results/assembled.tsv, which has a line per config: the sample, the
kernel, case and dtype, the config, its place among the leaders of a first call (0 for the default config, "-" for no
leader), microseconds, and the code of each of its kernels (``Counts.text``). The score is the formula of predicted times
with the registers, instructions, waits for loads, barriers and shuffles of the binary. Fitting takes scipy (``pip install
--group fit``).
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.cells import Cell, swept_cells  # noqa: E402
from benchmarks.sweep import KEPT_TARGET, OTHER_SAMPLES, OTHER_TARGET, RECENT, Timed, parse  # noqa: E402
from benchmarks.time_model import mean_of, rank_correlation  # noqa: E402
from helion.backends import BACKENDS  # noqa: E402
from helion.backends.assembly import Code, Instruction, disassembled  # noqa: E402
from helion.backends.triton.resources.predict import occupancy_of  # noqa: E402
from helion.backends.triton.resources.time import model  # noqa: E402
from helion.backends.triton.resources.time.demand import Demand, demands  # noqa: E402
from helion.backends.triton.resources.time.launch import Launch, launch_of  # noqa: E402
from helion.backends.triton.resources.time.parameters import fitted  # noqa: E402
from helion.backends.triton.toolchain import compile_offline, measure  # noqa: E402
from helion.backends.triton.toolchain.signature import offline_signature  # noqa: E402
from helion.hardware import REGISTER_BYTES, WARP_THREADS, target  # noqa: E402
from helion.runtime.generated import codecache  # noqa: E402

Array = npt.NDArray[np.float64]

KEPT = ROOT / "benchmarks" / "results" / "assembled.tsv"
#: The GPU of each sample. The last one has today's default config and six leaders of 180 cells, timed in turns: torch
#: 2.11 with CUDA 13.0, 2026-11-30. Triton 3.6 has compiled all.
SAMPLES = {"h100-samples": OTHER_TARGET, "h200-recent-samples": KEPT_TARGET, "h200-leaders": KEPT_TARGET}
_FILES = {"h100-samples": OTHER_SAMPLES, "h200-recent-samples": RECENT}
#: Leaders that one is picked from, and their predicted times over the least one.
LEADERS, MARGIN = 6, 1.3
#: Parts that kernels are divided into: each is scored with parameters of the others.
_PARTS = 5
#: Parameters, with the values that a fit begins at: cycles of a scheduler for an instruction of each kind, relative to the
#: throughput in CUDA's programming guide; cycles from one instruction of a warp to the next; microseconds of a wait for
#: loads, of a program's start, a barrier, a warp's shuffle and access to shared memory; the exponent of the norm.
START = {
    "issue": 1.0,
    "simple": 1.0,
    "special": 1.0,
    "accesses": 1.0,
    "dependency": 4.0,
    "wait_us": 0.7,
    "start_us": 0.6,
    "barrier_us": 0.05,
    "shuffle_us": 0.01,
    "shared_us": 0.01,
    "together": 4.0,
}
#: Cycles of a scheduler for a simple and a special instruction of a warp, and for 128 bytes of memory.
_SIMPLE, _SPECIAL, _WAVE = 2, 8, 4
#: Weight of parameters that stay, the error from which on it counts less than its square, and steps of the fit.
_STAY, _LARGE, _STEPS = 0.15, 0.05, 25
#: Of the predicted steps of a loop, the least and the most that its bytes may show.
_FEWEST, _MOST_STEPS = 1 / 16, 4.0

_REGISTER = re.compile(r"\bR(\d+)\b")
_GROUP_PRODUCT = re.compile(r"[A-Z]GMMA\.(\d+)x(\d+)x(\d+)")
_WARP_PRODUCT = re.compile(r"[HIQ]MMA\.(16|8)(8|16)(4|8|16|32|64)\b")
#: Warps of one product of a warpgroup.
_GROUP = 4


# Counts of a binary -------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Depth:
    """Counts of a warp in the code at one depth of loops. ``bytes`` are those of global memory, ``operations`` of products."""

    issue: int
    simple: int
    special: int
    waves: int
    """128 bytes of global memory."""
    shared_waves: int
    local_bytes: int
    barriers: int
    shuffles: int
    shared: int
    bytes: int
    operations: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counts:
    """The counts of one kernel. ``rounds`` are waits for loads, outside of the innermost loops and in them."""

    registers: int
    spill_bytes: int
    shared_bytes: int
    warps: int
    depths: tuple[Depth, ...]
    rounds: tuple[int, int]

    @property
    def text(self) -> str:
        """All numbers: resources and rounds, then each depth after a slash."""
        first = (self.registers, self.spill_bytes, self.shared_bytes, self.warps, *self.rounds)
        return "/".join(" ".join(map(str, each)) for each in (first, *map(dataclasses.astuple, self.depths)))

    @classmethod
    def parsed(cls, text: str) -> Counts:
        first, *depths = [tuple(map(int, part.split())) for part in text.split("/")]
        registers, spill_bytes, shared_bytes, warps, outside, inside = first
        return cls(
            registers=registers,
            spill_bytes=spill_bytes,
            shared_bytes=shared_bytes,
            warps=warps,
            depths=tuple(Depth(*each) for each in depths),
            rounds=(outside, inside),
        )


def depths_of(code: Code) -> tuple[Depth, ...]:
    return tuple(map(_depth, code.by_depth()))


def _depth(part: Sequence[Instruction]) -> Depth:
    units = [each.unit for each in part]
    moving = [each for each in part if each.unit in ("load", "store")]
    shared = [each for each in part if each.unit in ("shared load", "shared store")]
    return Depth(
        issue=len(part),
        simple=units.count("simple"),
        special=units.count("special"),
        waves=sum(_words(each) for each in moving),
        shared_waves=sum(_words(each) for each in shared),
        local_bytes=WARP_THREADS * sum(each.access_bytes for each in part if each.unit == "local"),
        barriers=sum(each.opcode in ("BAR", "SYNCS") for each in part),
        shuffles=units.count("shuffle"),
        shared=len(shared),
        bytes=WARP_THREADS * sum(each.access_bytes for each in part if each.unit in ("load", "store", "atomic")),
        operations=sum(map(_operations, part)),
    )


def _words(each: Instruction) -> int:
    return max(1, each.access_bytes // REGISTER_BYTES)


def _operations(each: Instruction) -> int:
    """Return the operations of a product, of which each warp of a warpgroup has a part."""
    for pattern, warps in ((_GROUP_PRODUCT, _GROUP), (_WARP_PRODUCT, 1)):
        if match := pattern.match(each.name):
            return 2 * math.prod(map(int, match.groups())) // warps
    return 0


def rounds_of(code: Code) -> tuple[int, int]:
    """Count the waits for loads to registers: an instruction that reads one which was loaded after the last wait."""
    every = [frozenset(loop.places) for loop in code.loops]
    inner = [places for places in every if not any(other < places for other in every)]
    inside = frozenset().union(*inner)
    outside = [at for at in range(len(code.instructions)) if at not in inside]
    return _rounds(code, outside, 1), sum(_rounds(code, sorted(places), 2) for places in inner)


def _rounds(code: Code, places: Sequence[int], times: int) -> int:
    """Return the waits of the last of ``times`` passes."""
    loading: dict[int, int] = {}
    loads = last = found = 0
    for _ in range(times):
        found = 0
        for each in (code.instructions[place] for place in places):
            registers = [int(number) for number in _REGISTER.findall(each.operands)]
            waited = max([loading[number] for number in registers if number in loading], default=0)
            if waited > last:
                found, last = found + 1, loads
            loading = {number: load for number, load in loading.items() if load > waited}
            if each.opcode in ("LDG", "LD") and registers:
                loads += 1
                loading.update(dict.fromkeys(range(registers[0], registers[0] + _words(each)), loads))
    return found


def compiled(cell: Cell, config: Any, on: str) -> list[Counts]:
    """Compile the kernels of a config for ``on``, and count."""
    analysis = cell.function.bind(cell.args, target=on)._analysis
    code = analysis.code(config)
    names = vars(codecache.load(code.text, cell.function.name, BACKENDS["triton"].executor.prepare))
    found = []
    for kernel, phase in code.plan.launched:
        binary = compile_offline(names[kernel], **offline_signature(code.plan, target(on), phase))
        resources, read = measure(binary, target(on)), disassembled(binary.kernel)
        found.append(
            Counts(
                registers=resources.registers,
                spill_bytes=resources.spill_bytes,
                shared_bytes=resources.shared_bytes,
                warps=resources.threads // WARP_THREADS,
                depths=depths_of(read),
                rounds=rounds_of(read),
            )
        )
    return found


# Rows ---------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A config of a sample. ``place`` is that among the leaders of a first call, None for other configs."""

    sample: str
    timed: Timed
    place: int | None
    kernels: tuple[Counts, ...]

    @property
    def text(self) -> str:
        *key, config, microseconds = self.timed.text.split("\t")
        place = "-" if self.place is None else str(self.place)
        return "\t".join((self.sample, *key, config, place, microseconds, ";".join(each.text for each in self.kernels)))


def read(text: str) -> Iterator[Row]:
    for line in text.splitlines():
        sample, *key, config, place, microseconds, kernels = line.split("\t")
        (timed,) = parse("\t".join((*key, config, microseconds)))
        yield Row(
            sample=sample,
            timed=timed,
            place=None if place == "-" else int(place),
            kernels=tuple(map(Counts.parsed, kernels.split(";"))),
        )


def compiled_rows(sample: str, count: int) -> Iterator[Row]:
    """Compile the first ``count`` configs of each cell of a kept sample by predicted time."""
    on, by_cell = SAMPLES[sample], _by_cell(parse(_FILES[sample].read_text()))
    for cell in swept_cells():
        rows = by_cell.pop(cell.key[1:], [])
        analysis = cell.function.bind(cell.args, target=on)._analysis if rows else None
        known = {analysis.space.normalize(row.config): row for row in rows} if analysis is not None else {}
        for config in sorted(known, key=lambda config: analysis.predict(config).time_us)[:count]:  # type: ignore[union-attr]
            kernels = tuple(compiled(cell, config, on))
            place = 0 if analysis is not None and config == analysis.default_config else None
            yield Row(sample=sample, timed=known[config], place=place, kernels=kernels)


def _by_cell(rows: Iterable[Timed]) -> dict[tuple[str, str, str], list[Timed]]:
    found: dict[tuple[str, str, str], list[Timed]] = {}
    for row in rows:
        found.setdefault(row.key, []).append(row)
    return found


# The score ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Predicted:
    """A row with its prediction, and the demands of its grid loops."""

    row: Row
    on: str
    us: float
    spills: bool
    has_products: bool
    launch: Launch
    demands: tuple[Demand, ...]
    operations: float

    @property
    def is_read(self) -> bool:
        """True if each grid loop is a kernel, and each loop of the code one of the program.

        Rewrites add kernels. The loop of a fused tile loop has the code between tiles, which few of its steps run.
        """
        return len(self.row.kernels) == len(self.demands) and not self.launch.fused


def predicted(rows: Iterable[Row]) -> list[list[Predicted]]:
    """Return the rows of each cell of each sample that has several."""
    cells = {cell.key[1:]: cell for cell in swept_cells()}
    groups: dict[tuple[str, tuple[str, str, str]], list[Predicted]] = {}
    for row in rows:
        groups.setdefault((row.sample, row.timed.key), []).append(_predicted(row, cells[row.timed.key]))
    return [group for group in groups.values() if len(group) > 2]


def _predicted(row: Row, cell: Cell) -> Predicted:
    on = SAMPLES[row.sample]
    analysis = cell.function.bind(cell.args, target=on)._analysis
    config = analysis.space.normalize(row.timed.config)
    found, launch = analysis.predict(config), launch_of(analysis.space.decode(config))
    return Predicted(
        row=row,
        on=on,
        us=found.time_us,
        spills=found.spills,
        has_products=bool(analysis.facts.matmuls),
        launch=launch,
        demands=tuple(demands(analysis.facts, launch, found, target(on))),
        operations=found.flops,
    )


def runs(one: Predicted, demand: Demand, kernel: Counts) -> list[float]:
    """Return how often a tile of a program runs the code at each depth.

    Loops run as often as their bytes, or the products of loops with bulk copies, make up the demand.
    """
    depths = kernel.depths
    tiles = 1 if one.launch.persistent and len(depths) > 2 else 0
    if len(depths) <= tiles + 1:
        return [1.0] * len(depths)
    outside, loops = depths[: tiles + 1], depths[tiles + 1 :]
    steps, count = max(1.0, demand.iterations), max(1.0, demand.iterations)
    moved, products = (kernel.warps * sum(getattr(each, name) for each in loops) for name in ("bytes", "operations"))
    if products and one.launch.boxed:
        before = kernel.warps * sum(each.operations for each in outside)
        count = max(1.0, (one.operations / max(1.0, demand.programs) - before) / products)
    elif moved:
        count = max(1.0, (demand.asked_bytes - kernel.warps * sum(each.bytes for each in outside)) / moved)
    count = min(max(count, _FEWEST * steps), _MOST_STEPS * steps)
    return [1.0] * (tiles + 1) + [count ** ((at + 1) / len(loops)) for at in range(len(loops))]


class _Formula(model._Formula):
    """The formula of predicted times, with the counts ``code`` of binaries in place of those of facts."""

    def __init__(self, d: Demand, p: Any, on: Any, code: Mapping[str, Array], found: Mapping[str, float]) -> None:
        self.code, self.found = code, found
        super().__init__(d, p, on, np)

    def _resident(self) -> Array:
        return self.code["resident"]

    def _issued(self) -> Any:
        code, found = self.code, self.found
        units = (
            code["issue"] * found["issue"],
            code["simple"] * _SIMPLE * found["simple"],
            code["special"] * _SPECIAL * found["special"],
            (code["waves"] + code["shared_waves"]) * _WAVE * found["accesses"],
        )
        return self._norm(units, model._UNITS)

    def _spilled(self) -> Array:
        return self.code["local_bytes"]

    def _chain(self) -> Any:
        d, p, code, found = self.d, self.p, self.code, self.found
        own = code["issue"] / d.warps * found["dependency"] / self.clock
        instructions = np.maximum(own, self.issued / self.issue)
        alone = np.maximum(1.0, model._WARPS_FOR_ALL_UNITS / d.warps)
        matrix = self.matrix_us * alone + p.product_us * d.products
        arrived = d.staged_bytes * p.port_share / (model._PORT_BYTES_PER_CYCLE * self.clock)
        pipelined = d.pipelined_rounds * p.pipelined_us + arrived
        fixed = found["start_us"] * self.begun + code["barriers"] * found["barrier_us"]
        fixed = fixed + (code["shuffles"] * found["shuffle_us"] + code["shared"] * found["shared_us"]) / d.warps
        fixed = fixed + d.stores * p.store_us + d.descriptors * p.descriptor_us + d.turned_bytes * p.turned_us
        loop = self._norm((code["rounds"] * found["wait_us"], instructions, matrix, pipelined), found["together"])
        return fixed * (1 - d.fused * p.hidden) + loop


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Batch:
    """The demands of rows with or without products on one GPU. ``at`` is the row of each, ``us`` its time by facts."""

    on: str
    has_products: bool
    asked: Demand
    code: Mapping[str, Array]
    at: npt.NDArray[np.int64]

    def us(self, found: Mapping[str, float] | None) -> Any:
        """Return the times by the code, or by facts alone."""
        parameters = fitted().products if self.has_products else fitted().others
        if found is None:
            return model._Formula(self.asked, parameters, target(self.on), np).parts().total
        return _Formula(self.asked, parameters, target(self.on), self.code, found).parts().total


def _code_of(one: Predicted, demand: Demand, kernel: Counts) -> dict[str, float]:
    on, times = target(one.on), runs(one, demand, kernel)
    sums = {
        name: kernel.warps
        * sum(count * getattr(depth, name) for count, depth in zip(times, kernel.depths, strict=True))
        for name in (
            "issue",
            "simple",
            "special",
            "waves",
            "shared_waves",
            "local_bytes",
            "barriers",
            "shuffles",
            "shared",
        )
    }
    sums["barriers"] /= kernel.warps  # a barrier is one of all warps
    sums["local_bytes"] *= kernel.spill_bytes > 0  # other arrays are of paths that hardly run
    resident = max(1, occupancy_of(kernel.registers, kernel.shared_bytes, 0, kernel.warps, on))
    rounds = kernel.rounds[0] + (times[-1] * kernel.rounds[1] if len(kernel.depths) > 1 else 0)
    return {**sums, "resident": min(resident, one.launch.per_sm or math.inf), "rounds": rounds}


class Table:
    """The rows of many cells as arrays. ``cell`` is the number of each row's cell."""

    def __init__(self, cells: Sequence[Sequence[Predicted]]) -> None:
        self.cells = cells
        self.rows = [one for cell in cells for one in cell]
        self.cell = np.repeat(np.arange(len(cells)), [len(cell) for cell in cells])
        self.log_us = np.log([one.row.timed.microseconds for one in self.rows])
        self.log_predicted = np.log([one.us for one in self.rows])
        self.batches = [
            batch
            for on in dict.fromkeys(SAMPLES.values())
            for kind in (True, False)
            if (batch := self._batch(on, kind))
        ]
        self.by_facts = self._sums(None)

    def _batch(self, on: str, has_products: bool) -> _Batch | None:
        asked, code, at = [], [], []
        for place, one in enumerate(self.rows):
            if one.on == on and one.has_products == has_products and one.is_read:
                for demand, kernel in zip(one.demands, one.row.kernels, strict=True):
                    asked.append(demand)
                    code.append(_code_of(one, demand, kernel))
                    at.append(place)
        if not at:
            return None
        columns = {name: np.array([each[name] for each in code]) for name in code[0]}
        return _Batch(
            on=on,
            has_products=has_products,
            asked=Demand(*np.array(asked, dtype=np.float64).T),
            code=columns,
            at=np.array(at),
        )

    def _sums(self, found: Mapping[str, float] | None) -> Array:
        sums = np.zeros(len(self.rows))
        for batch in self.batches:
            np.add.at(sums, batch.at, batch.us(found))
        return sums

    def log_times(self, found: Mapping[str, float]) -> Array:
        """Return predicted times, scaled by the ratio of those by code and by facts.

        The ratio of a config whose code is not read is the mean of its cell.
        """
        known = self.by_facts > 0
        ratios = np.log(np.divide(self._sums(found), self.by_facts, out=np.ones(len(known)), where=known))
        means = np.bincount(self.cell, ratios) / np.maximum(1, np.bincount(self.cell, known))
        return self.log_predicted + np.where(known, ratios, means[self.cell])

    def fit(self, inside: npt.NDArray[np.bool_]) -> dict[str, float]:
        """Return the parameters of the order within the cells of the rows ``inside``."""
        from scipy.optimize import least_squares

        start = np.log(list(START.values()))
        weight = inside / np.maximum(1, np.bincount(self.cell, inside))[self.cell]

        def errors(logs: Array) -> Array:
            off = self.log_times(dict(zip(START, np.exp(logs), strict=True))) - self.log_us
            off = off - np.bincount(self.cell, off * weight)[self.cell]
            return np.concatenate([off[inside], _STAY * math.sqrt(inside.sum() / 100) * (logs - start)])

        found = least_squares(errors, start, loss="soft_l1", f_scale=_LARGE, max_nfev=_STEPS)
        return dict(zip(START, map(float, np.exp(found.x)), strict=True))

    def held_out(self, group_of: Mapping[str, Any] | Any) -> Array:
        """Return the score of each row by parameters of the rows of other groups."""
        groups = np.array([group_of(one) for one in self.rows])
        scores = np.zeros(len(self.rows))
        for group in sorted(set(groups)):
            mine = groups == group
            scores[mine] = self.log_times(self.fit(~mine))[mine]
        return scores


def part_of(one: Predicted) -> int:
    """Return the part of a kernel, by its name alone."""
    return int(hashlib.md5(one.row.timed.kernel.encode()).hexdigest(), 16) % _PARTS


# What an order gives ------------------------------------------------------------------------------------------------


def lines(table: Table, orders: Mapping[str, Array]) -> Iterator[str]:
    """Format each order: the first of the leaders over their best and over that of the cell, and rank correlations."""
    for sample in SAMPLES:
        for name, scores in orders.items():
            firsts, of_cell, correlations = [], [], []
            for at in _places(table, sample):
                leaders = _leaders(table, at)
                us = np.exp(table.log_us[leaders])
                first = us[int(np.argmin(scores[leaders]))]
                firsts.append(first / us.min())
                of_cell.append(first / math.exp(table.log_us[at].min()))
                if len(leaders) > 3:
                    correlations.append(rank_correlation(scores[leaders], us))
            if firsts:
                yield (
                    f"{sample}, {name}: {len(firsts)} cells, first / best leader {mean_of(firsts):.3f}, / best "
                    f"{mean_of(of_cell):.3f}, worst {max(of_cell):.2f}; rank correlation {np.mean(correlations):.2f}"
                )


def of_defaults(table: Table, orders: Mapping[str, Array]) -> Iterator[str]:
    """Format what replaces the default: nothing, the best by each order, or the best of it and the first few."""
    (sample,) = [name for name in SAMPLES if name not in _FILES]
    cells = [(at, next(i for i in at if table.rows[i].row.place == 0)) for at in _places(table, sample)]
    best = [math.exp(table.log_us[at].min()) for at, _ in cells]

    def ratio(chosen: Iterable[Sequence[int]]) -> float:
        return mean_of(math.exp(table.log_us[list(each)].min()) / of for each, of in zip(chosen, best, strict=True))

    yield f"{sample}: default / best {ratio([default] for _, default in cells):.3f}"
    for name, scores in orders.items():
        parts = []
        for lead in (0.0, 0.1, 0.2, 0.3):
            parts.append(f"{ratio([_replaced(scores, at, default, lead)] for at, default in cells):.3f} by {lead:.0%}")
        timed = []
        for count in (1, 2, 3):
            order = [sorted((i for i in at if i != d), key=lambda i: scores[i])[:count] for at, d in cells]
            timed.append(f"{ratio([d, *rest] for (_, d), rest in zip(cells, order, strict=True)):.4f}")
        yield f"{name}: untimed, where another is better {', '.join(parts)}; 1, 2, 3 leaders timed {', '.join(timed)}"


def _replaced(scores: Array, at: Sequence[int], default: int, lead: float) -> int:
    first = min(at, key=lambda place: scores[place])
    return first if scores[first] < scores[default] - lead else default


def _places(table: Table, sample: str) -> Iterator[npt.NDArray[np.int64]]:
    for number, cell in enumerate(table.cells):
        if cell[0].row.sample == sample:
            yield np.flatnonzero(table.cell == number)


def _leaders(table: Table, at: npt.NDArray[np.int64]) -> list[int]:
    kept = [int(place) for place in at if not table.rows[place].spills] or [int(place) for place in at]
    order = sorted(kept, key=lambda place: table.log_predicted[place])[:LEADERS]
    return [place for place in order if table.log_predicted[place] <= table.log_predicted[order[0]] + math.log(MARGIN)]


def main() -> int:
    parser = argparse.ArgumentParser(description="score an order of leaders by their assembled code")
    parser.add_argument("--compile", type=int, metavar="COUNT", help="compile so many configs of each cell of a sample")
    parser.add_argument("--sample", choices=list(_FILES), help="the sample to compile")
    parser.add_argument("--out", type=Path, help="the file to write compiled rows to")
    options = parser.parse_args()
    if options.compile:
        if options.sample is None or options.out is None:
            parser.error("--compile needs --sample and --out")
        with options.out.open("w") as file:
            file.writelines(f"{row.text}\n" for row in compiled_rows(options.sample, options.compile))
        return 0
    table = Table(predicted(read(KEPT.read_text())))
    orders = {"by prediction": table.log_predicted}
    for name, group_of in (("kernels", part_of), ("GPU", lambda one: one.on)):
        scores = table.held_out(group_of)
        orders[f"by code, other {name}"] = scores
        orders[f"mean of both, other {name}"] = (scores + table.log_predicted) / 2
    places = [one.row.place for one in table.rows]
    first_calls = np.array([math.inf if place is None else place for place in places])
    print(*lines(table, orders), *of_defaults(table, {**orders, "as in first calls": first_calls}), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
