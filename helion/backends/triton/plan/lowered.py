"""The program as it is printed: rewritten by decisions, with the accesses by block pointer or descriptor."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from ...._compiler.decisions import Decisions
from ...._compiler.ir.grammar import MemoryAttrs, Op, Program, Region, Root
from ...._compiler.ir.loops import loops_of
from ...._compiler.rewrites import keys
from ...._compiler.rewrites.copy_operands import multiplies
from ...._compiler.rewrites.steps import Step, StepInputs, run_steps
from ...._support.records import dataclass
from ....hardware import Target
from ....settings import Settings
from ..capabilities import mechanisms, prefers_first_lanes
from ..resources.late import accumulator_room
from ..resources.registers import register_limit
from .indexing import Box, plan_boxes


@dataclass(frozen=True, kw_only=True, eq=False)
class Lowered:
    """A rewritten program. ``sizes`` are those of all its blocks; ``boxes`` the accesses that do not use pointers, by
    op.
    """

    program: Program
    sizes: Mapping[int, int]
    boxes: Mapping[int, Box]


def lower(
    program: Program, decisions: Decisions, target: Target, settings: Settings, steps: tuple[Step, ...]
) -> Lowered:
    """Return ``program`` after ``steps``.

    A repeated call returns the same object, because rules look at the program that a plan is later made of.
    """
    inputs = _inputs(program, decisions, settings, target)
    return _lower(_Asked(program, inputs, decisions.accesses("indexing")), target, steps)


def rewritten(
    program: Program, decisions: Decisions, target: Target, settings: Settings, steps: tuple[Step, ...]
) -> Program:
    """Return ``program`` after the first of its ``steps``. A repeated call returns the same object."""
    return _rewritten(_Asked(program, _inputs(program, decisions, settings, target), {}), steps)


class _Asked:
    """A program, compared by identity, with the inputs of the steps."""

    __slots__ = ("_key", "indexing", "inputs", "program")

    def __init__(self, program: Program, inputs: StepInputs, indexing: Mapping[int, str]) -> None:
        self.program, self.inputs, self.indexing = program, inputs, indexing
        asked = (getattr(inputs, name) for name in inputs.__dataclass_fields__)
        self._key = (id(program), *map(_plain, asked), _plain(indexing))

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Asked) and other._key == self._key and other.program is self.program


def _plain(value: Any) -> Any:
    """Return a value as a hashable one."""
    if isinstance(value, Mapping):
        return tuple(value.items())
    return tuple(value) if isinstance(value, list) else value


@functools.lru_cache(maxsize=16)
def _rewritten(asked: _Asked, steps: tuple[Step, ...]) -> Program:
    return run_steps(asked.program, asked.inputs, steps)


@functools.lru_cache(maxsize=16)
def _lower(asked: _Asked, target: Target, steps: tuple[Step, ...]) -> Lowered:
    program = run_steps(asked.program, asked.inputs, steps)
    sizes = asked.inputs.sizes_in(program)
    if all(way == "pointer" for way in asked.indexing.values()):
        return Lowered(program=program, sizes=sizes, boxes={})
    launched = asked.inputs.launched(program)
    wanted = {**asked.indexing, **_stored_products(asked, program)}
    boxes = plan_boxes(program, sizes, wanted, mechanisms(), launched, target)
    return Lowered(program=program, sizes=sizes, boxes=boxes)


def _stored_products(asked: _Asked, program: Program) -> dict[int, str]:
    """Return the mechanism of the unfused matmuls' stores: that of all operands' loads, unless these are copied first.

    Then the tiles leave no shared memory for a descriptor of the accumulator.
    """
    if asked.inputs.values.get("unfuse_matmul") is None or asked.inputs.values.get("transpose_operands"):
        return {}
    made = (op for root in program.roots if multiplies(root) for op in root.body.walk())
    accesses = [op for op in made if isinstance(op.attrs, MemoryAttrs)]
    ways = {asked.indexing.get(op.attrs.slot, "pointer") for op in accesses if op.kind == "load"}
    return {op.attrs.slot: way for way in ways for op in accesses if op.kind == "store"} if len(ways) == 1 else {}


def _inputs(program: Program, decisions: Decisions, settings: Settings, target: Target) -> StepInputs:
    """Return the inputs that ``decisions`` give the steps that rewrite ``program``."""
    staged, specialized = (decisions.entries.get(key, {}) for key in ("range_num_stages", "range_warp_specializes"))
    return StepInputs(
        sizes=decisions.sizes,
        values={key: _plain(decisions.values[key]) for key in keys() if key in decisions.values},
        chunked=decisions.chunked,
        flattened=_flattened(program, decisions, Root),
        flat_runs=_flattened(program, decisions, Op),
        subtiles=decisions.values["epilogue_subtile"] or 0,
        staged=target.kind == "cuda" and any(stages > 1 for stages in staged.values()),
        copied_ahead=target.kind == "cuda" and max(decisions.values["num_stages"], *staged.values(), 0) > 1,
        threads=decisions.values["num_warps"] * target.warp_size,
        steady=all(stages <= 1 for stages in staged.values()) and not any(specialized.values()),
        block_accesses=frozenset(slot for slot, way in decisions.accesses("indexing").items() if way != "pointer"),
        checked=settings.checked,
        unrolled=any(decisions.entries.get("static_ranges", {}).values()),
        repeated=any(factor > 1 for factor in decisions.entries.get("range_unroll_factors", {}).values()),
        float_counts=target.kind == "cuda",
        first_lanes=prefers_first_lanes(),
        early_operands=target.has("wgmma"),
        filling_programs=target.num_sms,
        float_reads=target.has("wgmma"),
        near_lanes=target.kind == "cuda",
        summed_logs=target.kind == "cuda",
        rounded_products=target.kind == "cuda",
        accumulator_registers=accumulator_room(register_limit(decisions.values["num_warps"], target)),
        tunables={name: decisions.values[name] for name, _ in program.tunables},
    )


def _flattened(program: Program, decisions: Decisions, kind: type[Root | Op]) -> dict[int, tuple[int, ...]]:
    """Return the loop orders of the grids that are flattened, by root, or of the loops inside of them, by op."""
    flags = decisions.entries["flatten_loops"]
    if not any(flags.values()):
        return {}
    chosen = [(number, loop) for number, loop in enumerate(loops_of(program)) if isinstance(loop, kind)]
    orders = decisions.entries["loop_orders"]
    return {
        (loop.number if isinstance(loop, Op) else at): tuple(orders[number])
        for at, (number, loop) in enumerate(chosen)
        if flags.get(number)
    }


def waits(region: Region) -> bool:
    """Return whether a region contains a barrier."""
    return any(op.kind == "barrier" for op in region.walk())


def waiting_loops(program: Program, lowered: Program) -> frozenset[int]:
    """Return the loops of ``program``, by place, that contain a barrier once it is ``lowered``."""
    waiting = {op.number for op in lowered.walk() if op.kind == "for" and waits(op.regions[0])}
    grids = iter(lowered.roots)
    return frozenset(
        place
        for place, loop in enumerate(loops_of(program))
        if (waits(next(grids).body) if isinstance(loop, Root) else loop.number in waiting)
    )
