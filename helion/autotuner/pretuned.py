"""Measured configs of other kernels with the same structure, which a first call and a search try.

The package's rows are the best configs of the sweeps in benchmarks/results, made by scripts/pretuned.py. A row is found
by facts: the accesses, matmuls and reductions of a kernel and the extents of its axes, never by a name.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import knobs
from .._compiler.facts.records import KernelFacts, MatmulFact, MemoryOpFact
from .._support import logs
from ..config import Config
from ..hardware import Target

#: Header of a file; the version changes with the definition of ``structure``.
FORMAT, VERSION = "helion-pretuned", 1
PACKAGED = Path(__file__).with_name("pretuned.json")
#: Number of configs for one kernel, and the largest distance of a row's extents and target in factors of two. Larger
#: distances found no faster configs in the kept sweeps (scripts/pretuned.py --score).
MOST, FARTHEST = 2, 4.0
#: Distance of a row of another GPU, per factor of two of its bandwidth or number of SMs.
_PER_TARGET = 0.5


@dataclass(frozen=True, kw_only=True)
class Row:
    """The best measured config of a kernel of one structure.

    ``extents`` are those of its axes. ``arch``, ``sms`` and ``gb_per_s`` describe the GPU that was measured.
    ``microseconds`` is the config's time, ``untuned`` that of the first seed, None if it was not measured.
    """

    structure: str
    extents: tuple[int, ...]
    backend: str
    arch: str
    sms: int
    gb_per_s: float
    config: Mapping[str, Any]
    microseconds: float
    untuned: float | None = None

    def distance(self, extents: Sequence[int], target: Target) -> float:
        """Return the distance to a kernel of the same structure on a GPU of the same architecture, in factors of two."""
        sizes = sum(_octaves(mine, other) for mine, other in zip(self.extents, extents, strict=True))
        gpu = _octaves(self.sms, target.num_sms) + _octaves(self.gb_per_s, target.bandwidth_gb_per_s)
        return sizes + _PER_TARGET * gpu

    def to_list(self) -> list[Any]:
        """Return the values of a row as JSON data, without its structure."""
        gpu = [self.backend, self.arch, self.sms, self.gb_per_s]
        return [list(self.extents), *gpu, dict(self.config), self.microseconds, self.untuned]

    @classmethod
    def from_list(cls, structure: str, values: Sequence[Any]) -> Row:
        """Make a row from ``to_list``'s data. Raises ValueError or TypeError for any other."""
        extents, backend, arch, sms, gb_per_s, config, microseconds, untuned = values
        return cls(
            structure=structure,
            extents=tuple(map(int, extents)),
            backend=str(backend),
            arch=str(arch),
            sms=int(sms),
            gb_per_s=float(gb_per_s),
            config=dict(config),
            microseconds=float(microseconds),
            untuned=None if untuned is None else float(untuned),
        )


def row_of(
    facts: KernelFacts, target: Target, backend: str, config: Config, microseconds: float, untuned: float | None = None
) -> Row:
    """Return the row for a config that was measured for a kernel with these facts."""
    return Row(
        structure=structure(facts),
        extents=extents(facts),
        backend=backend,
        arch=target.name,
        sms=target.num_sms,
        gb_per_s=target.bandwidth_gb_per_s,
        config=config.to_dict(),
        microseconds=round(microseconds, 1),
        untuned=None if untuned is None else round(untuned, 1),
    )


def pretuned(facts: KernelFacts, target: Target, backend: str) -> list[Config]:
    """List measured configs of the nearest kernels of the same structure, the nearest first.

    They are not normalized. A kernel's own space may refuse them.
    """
    known = _known()
    if not known:
        return []
    return nearest(known.get(structure(facts), ()), extents(facts), target, backend)


def nearest(rows: Iterable[Row], extents: Sequence[int], target: Target, backend: str) -> list[Config]:
    """List the configs of the nearest ``rows`` of one structure, each once."""
    same = (row for row in rows if row.backend == backend and row.arch == target.name)
    near = sorted(((row.distance(extents, target), row) for row in same), key=lambda pair: pair[0])
    configs = dict.fromkeys(Config(**row.config) for distance, row in near if distance <= FARTHEST)
    return list(configs)[:MOST]


def extents(facts: KernelFacts) -> tuple[int, ...]:
    """Return the extents of all axes, 0 for one that depends on data."""
    return tuple(axis.extent or axis.mean or 0 for axis in facts.axes)


def structure(facts: KernelFacts) -> str:
    """Return a digest of a kernel's loops, accesses, matmuls and reductions, which names and extents do not change."""
    parts = (
        [(axis.kind, axis.rollable, axis.on_grid, axis.outer, axis.roots) for axis in facts.axes],
        [(region.kind, region.root, region.parent, region.axes) for region in facts.regions],
        [_access(op) for op in (*facts.memory_ops, *facts.atomics)],
        [_matmul(matmul) for matmul in facts.matmuls],
        [(fact.axis, fact.region, fact.stages) for fact in facts.reductions],
        [(fact.axes, fact.of_dot) for fact in facts.accumulators],
        [*((scan.kind, scan.axis) for scan in facts.scans), *(("sort", fact.axis) for fact in facts.sorts)],
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _access(op: MemoryOpFact) -> tuple[Any, ...]:
    contiguous = tuple(at for at, stride in enumerate(op.strides) if stride == 1)
    reads = (op.matmul_operand, op.reductions_fed, op.feeds_store)
    return (op.kind, _width(op.dtype), op.region, op.tile_axes, op.subscript_axes, contiguous, op.gathered, *reads)


def _matmul(matmul: MatmulFact) -> tuple[Any, ...]:
    axes = (matmul.m_axis, matmul.n_axis, matmul.k_axis, matmul.batch_axes)
    operands = (_width(matmul.lhs_dtype), _width(matmul.rhs_dtype), matmul.lhs_layout, matmul.rhs_layout)
    prologues = (matmul.lhs_prologue, matmul.rhs_prologue, matmul.lhs_format, matmul.rhs_format)
    return (matmul.region, axes, operands, prologues, matmul.precision, matmul.consumes)


def _width(dtype: torch.dtype) -> str:
    """Return a dtype's kind and bytes: those that time depends on."""
    return f"{'f' if dtype.is_floating_point else 'i'}{dtype.itemsize}"


def _octaves(a: float, b: float) -> float:
    return abs(math.log2(max(a, 1) / max(b, 1)))


# --- files ------------------------------------------------------------------------------------------------------------


def formatted(rows: Iterable[Row]) -> str:
    """Format rows as JSON: one line per row, sorted, the same for the same rows."""
    lines = sorted({f" [{json.dumps(row.structure)}, {json.dumps(row.to_list())}]" for row in rows})
    return f'{{"format": "{FORMAT}", "version": {VERSION}, "rows": [\n' + ",\n".join(lines) + "\n]}\n"


def parsed(text: str) -> list[Row]:
    """Parse ``formatted``'s text. Raises ValueError for any other."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f"not made by `python -m helion tune --contribute`: there is no format {FORMAT!r} in it")
    if data.get("version") != VERSION:
        raise ValueError(f"made by another version of helion: version {data.get('version')!r}, known is {VERSION}")
    try:
        return [Row.from_list(structure, values) for structure, values in data["rows"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"a row has other values: {type(error).__name__}: {error}") from error


def _known() -> Mapping[str, tuple[Row, ...]]:
    paths = knobs.PRETUNED.read()
    return {} if paths == "0" else _rows(paths or "")


@functools.lru_cache(maxsize=4)
def _rows(paths: str) -> Mapping[str, tuple[Row, ...]]:
    """Return the rows of these files, separated as in ``PATH``, then the package's, by structure."""
    found: dict[str, tuple[Row, ...]] = {}
    for path in (*map(Path, filter(None, paths.split(os.pathsep))), PACKAGED):
        try:
            rows = parsed(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            logs.say_once(f"helion: pretuned configs of {path} are not used (HELION_PRETUNED): {error}")
            continue
        for row in rows:
            found[row.structure] = (*found.get(row.structure, ()), row)
    return found
