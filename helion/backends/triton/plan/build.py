"""Build a plan: a program and all decisions of a config about it that are printed."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...._compiler.decisions import Decisions, Place
from ...._compiler.host.analysis import overwritten
from ...._compiler.ir.grammar import (
    Block,
    CheckAttrs,
    Definition,
    ForAttrs,
    InlineAttrs,
    LoopAxis,
    MemoryAttrs,
    NumberAttrs,
    Op,
    Program,
    Root,
    SeedAttrs,
)
from ...._compiler.ir.loops import loops_of, tile_of_bound
from ...._compiler.ir.rewrite import Makers
from ...._compiler.passes.analysis.overlaps import overlapping_stores
from ...._compiler.passes.analysis.programs import check_programs
from ...._compiler.passes.analysis.protocol import check_messages_under
from ...._compiler.rewrites.copy_operands import multiplies
from ...._compiler.rewrites.steps import Step
from ...._compiler.rewrites.unfuse_matmul import matmul_launch, matmul_tile
from ...._names import LAUNCH_OPTIONS, RESERVED, NameSpace
from ...._shapes import Expr, Number, cdiv, fixed_at, hint_of
from ....config import RANGE_OPTIONS
from ....hardware import Target
from ....settings import Settings
from ..resources.unfused import GROUP
from ..together import are_together
from .addressed import addressed
from .bins import Counted, counted
from .byte_operands import converted_bytes
from .dots import partial_sums, settled_loops, settled_sums
from .lowered import Lowered, lower, waits
from .records import (
    AxisPlan,
    BlockPlan,
    GridPlan,
    LaunchArguments,
    LaunchPlan,
    LoopPlan,
    NumberArgument,
    Plan,
    RangePlan,
    TensorArgument,
)
from .renewed import renewed_operands
from .units import host_parts, numbers_with_units

#: The prefix of launch options under any name.
_VERBATIM = "_triton_config_"
#: Config keys that are passed to the launch unchanged, where present.
_LAUNCH_KEYS = ("num_warps", "num_stages", "maxnreg", "waves_per_eu", "matrix_instr_nonkdim", "kpack", "num_ctas")


def build_plan(
    program: Program, decisions: Decisions, target: Target, settings: Settings, steps: tuple[Step, ...]
) -> Plan:
    """Return the plan of a normalized config's ``decisions`` for ``program``. ``steps`` are the backend's rewrites."""
    lowered = lower(program, decisions, target, settings, steps)
    check_messages_under(program, lowered.sizes)
    plan = _Planner(program, lowered, decisions, settings, target).plan()
    found = (*check_programs(program, lowered.sizes), *overlapping_stores(program))
    warnings = (w for w in found if type(w).__name__ not in settings.ignore_warnings)
    return replace(plan, warnings=tuple(warnings))


#: Functions that the printer may put before a kernel.
HELPERS = (
    "_difference", "_int8_to_fp16", "_int8_to_fp32", "_integer_power", "_log1p_unit", "_long_floordiv", "_long_remainder", "_marked", "_max_nan",
    "_min_nan", "_prod", "_renewed", "_rounded_bf16", "_settled", "_sort_by_extrema", "_sort_in_steps", "_summed_log", "_tanh",
    "_uint8_to_bf16", "_uint8_to_fp16", "_uint8_to_fp32",
)  # fmt: skip


class _Planner:
    def __init__(
        self,
        program: Program,
        lowered: Lowered,
        decisions: Decisions,
        settings: Settings,
        target: Target,
    ) -> None:
        self.boxes = lowered.boxes
        self.target = target
        self.program = program
        self.rolled = rolled = lowered.program
        self.sizes = lowered.sizes
        self.decisions = decisions
        self.settings = settings
        verbatim = {key.removeprefix(_VERBATIM) for key in decisions.values if key.startswith(_VERBATIM)}
        self.names = NameSpace(RESERVED | LAUNCH_OPTIONS | verbatim | {program.host.name})
        self.blocks = tuple(self.block(block) for block in rolled.blocks)

    def plan(self) -> Plan:
        arguments = self.arguments()
        grids, root_ranges, loops = self.loops()
        policies = self.decisions.accesses("load_eviction_policies")
        evictions = {slot: policy for slot, policy in policies.items() if policy}
        return Plan(
            program=self.rolled,
            kernel_names=self.kernel_names(),
            blocks=self.blocks,
            grids=grids,
            root_ranges=root_ranges,
            loops=loops,
            launches=arguments,
            evictions=evictions,
            cache_modifiers=self.cache_modifiers(),
            launch=self.launch(),
            boxes=self.boxes,
            counted=self.counted,
            definitions=self.definitions(),
            bound=self.bound(),
            partial_sums={
                dot: number
                for warps, part in self.parts()
                for dot, number in partial_sums(part, self.sizes, warps, self.target).items()
            },
            settled_sums=frozenset(
                op for warps, part in self.parts() for op in settled_sums(part, self.sizes, warps, self.target)
            ),
            settled_loops={
                loop: at
                for warps, part in self.parts()
                for loop, at in settled_loops(part, self.sizes, warps, self.target).items()
            },
            renewed_operands=frozenset(
                op
                for warps, part in self.parts()
                for op in renewed_operands(part, self.sizes, warps, self.target, self.boxes)
            ),
            converted_bytes=frozenset(
                op for warps, part in self.parts() for op in converted_bytes(part, self.sizes, warps, self.target)
            ),
            rounds_in_fp32=self.target.kind == "cuda",
            origin_lines=self.settings.output_origin_lines,
            tunables={name: self.decisions.values[name] for name, _ in self.program.tunables},
            full_masked=frozenset(
                b.id for b in self.rolled.blocks if b.kind == "full" and self.is_ragged(b.extent, b.id)
            ),
        )

    def parts(self) -> list[tuple[int, Program]]:
        """Return the parts of the program by number of warps."""
        warps = self.decisions.values["num_warps"]
        if matmul_tile(self.decisions) is None:
            return [(warps, self.rolled)]
        traced = len(self.program.roots)
        rows, first = (replace(self.rolled, roots=r) for r in (self.rolled.roots[:traced], self.rolled.roots[traced:]))
        return [(warps, rows), (matmul_launch(self.decisions)[0], first)]

    @functools.cached_property
    def counted(self) -> dict[int, Counted]:
        found: dict[int, Counted] = {}
        for warps, part in self.parts():
            found |= counted(part, self.sizes, warps, self.target)
        return found

    def definitions(self) -> dict[Definition, str]:
        """Return unique names for the definitions, those of each before the ones that use it."""
        for name in (*HELPERS, *self.kernel_names(), *self.bound()):
            self.names.claim(name)
        named: dict[Definition, str] = {}
        waiting = [d for op in self.rolled.walk() if isinstance(op.attrs, InlineAttrs) for d in op.attrs.definitions]
        while waiting:
            definition = waiting.pop(0)
            if definition not in named:
                named[definition] = self.names.claim(definition.name)
                waiting += definition.uses
        return named

    def bound(self) -> frozenset[str]:
        """Return the names of the module that host code needs."""
        host = self.program.host
        return frozenset((host.name, *(name for name, module in host.source_globals.items() if module)))

    def kernel_names(self) -> tuple[str, ...]:
        base = f"_helion_{self.program.host.name}"
        phases = 1 + max(root.phase for root in self.rolled.roots)
        return tuple(base if phase == 0 else f"{base}_{phase}" for phase in range(phases))

    # --- blocks
    # ----------------------------------------------------------------------------------------------------------

    def block(self, block: Block) -> BlockPlan:
        if block.kind == "grid":
            return BlockPlan(id=block.id, size=1, symbol="")
        if block.part is not None:
            return BlockPlan(id=block.id, size=self.sizes[block.id], symbol=f"_SUBTILE_SIZE_{block.part.block}")
        if block.kind == "tile":
            return BlockPlan(id=block.id, size=self.sizes[block.id], symbol=f"_BLOCK_SIZE_{block.label}")
        looped = block.id in self.decisions.chunked
        name = "_REDUCTION_BLOCK" if looped else "_RDIM_SIZE"
        return BlockPlan(
            id=block.id,
            size=self.sizes[block.id],
            symbol=f"{name}_{block.id}",
            looped=looped,
            dynamic=block.extent if isinstance(block.extent, Expr) and not looped else None,
        )

    def is_ragged(self, extent: Number | None, block: int) -> bool:
        """Return whether tiles of ``block`` may extend past ``extent`` elements."""
        size = self.sizes[block]
        if isinstance(extent, int):
            return extent == 0 or extent % size != 0
        # the size of an unchunked dimension is that seen when binding, and may differ in other calls
        return size != 1 or self.rolled.blocks[block].kind == "full"

    # --- arguments
    # -------------------------------------------------------------------------------------------------------

    def arguments(self) -> tuple[LaunchArguments, ...]:
        """Return the arguments of the kernels, by place in the host code."""
        tensors = self.tensors()
        known: dict[Any, NumberArgument] = {}
        launches = []
        for number in range(1 + max(root.launch for root in self.rolled.roots)):
            roots = tuple(root for root in self.rolled.roots if root.launch == number)
            part = self.rolled if len(roots) == len(self.rolled.roots) else replace(self.rolled, roots=roots)
            blocks = set(range(len(self.blocks))) if part is self.rolled else _blocks(part)
            used = _tensors(part)
            launches.append(
                LaunchArguments(
                    phases=tuple(sorted({root.phase for root in roots})),
                    tensors=tuple(t for t in tensors if t.tensor.id in used),
                    numbers=self.numbers(part, blocks, known),
                    blocks=tuple(block for block in self.blocks if block.id in blocks),
                    overwritten=tuple(dict.fromkeys(t.source for t in overwritten(self.rolled, part))),
                )
            )
        return tuple(launches)

    def tensors(self) -> tuple[TensorArgument, ...]:
        used = _tensors(self.rolled)
        return tuple(
            TensorArgument(name=self.names.fresh(_short(t.name)), tensor=t) for t in self.rolled.tensors if t.id in used
        )

    def numbers(self, part: Program, blocks: set[int], known: dict[Any, NumberArgument]) -> tuple[NumberArgument, ...]:
        """Return one argument for each host number that device code reads: whole expressions are evaluated on
        the host.
        """
        found: dict[Any, NumberArgument] = {}
        plain, units = self.unspecialized(), numbers_with_units(part)
        for expr in (*_expressions(part, blocks), *self.numbers_of_bins(part)):
            for each in host_parts(expr):
                if each.key not in known:
                    name = self.names.fresh(_argument_name(each))
                    specialized = all(leaf.args[0] not in plain for leaf in each.leaves())
                    known[each.key] = NumberArgument(
                        name=name,
                        expr=each,
                        specialized=specialized or each.kind is not int,
                        unit=f"_UNIT_{name}" if specialized and each.key in units else "",
                    )
                found[each.key] = known[each.key]
        return tuple(found.values())

    def numbers_of_bins(self, part: Program) -> list[Expr]:
        """Return the numbers of bins that are known at launch only."""
        ops = {op.number for op in part.walk()}
        sizes = [found.bins.size for op, found in self.counted.items() if op in ops]
        return [size for size in sizes if isinstance(size, Expr)]

    def unspecialized(self) -> frozenset[Any]:
        """Return the names of numbers that change in a host loop and are in no address."""
        changing = self.rolled.host.changing
        return (
            changing - {leaf.args[0] for expr in addressed(self.rolled) for leaf in expr.leaves()}
            if changing
            else changing
        )

    def cache_modifiers(self) -> dict[int, str]:
        """Return the cache modifiers by memory slot."""
        asked = map(self.decisions.accesses, ("load_cache_modifiers", "store_cache_modifiers"))
        return {slot: modifier for entries in asked for slot, modifier in entries.items() if modifier}

    # --- loops
    # -----------------------------------------------------------------------------------------------------------

    def axis(self, axis: LoopAxis) -> AxisPlan:
        if axis.whole:
            return AxisPlan(block=axis.block, masked=False)
        if not isinstance(axis.begin, (int, Expr)) or not isinstance(axis.end, (int, Expr)):
            return AxisPlan(block=axis.block, masked=not axis.scalar and self.sizes[axis.block] != 1)
        extent = axis.end - axis.begin
        step = axis.step if axis.scalar else self.sizes[axis.block]
        masked = not axis.scalar and (axis.jagged is not None or self.is_ragged(extent, axis.block))
        if isinstance(extent, int) and isinstance(step, int):
            extent = max(extent, 0)
        return AxisPlan(block=axis.block, masked=masked, count=cdiv(extent, step))  # type: ignore[arg-type]

    def order(self, loop: int, axes: tuple[LoopAxis, ...]) -> tuple[int, ...]:
        return tuple(self.decisions.at("loop_orders", loop, range(len(axes))))

    def range(self, place: Place) -> RangePlan:
        at = self.decisions.at
        if at("static_ranges", place):
            return RangePlan(static=True)
        asked = ((option, at(option.key, place, option.off)) for option in RANGE_OPTIONS)
        return RangePlan(options={o.keyword: not v if o.inverted else v for o, v in asked if v != o.off})

    def loops(self) -> tuple[tuple[GridPlan, ...], tuple[RangePlan, ...], dict[int, LoopPlan]]:
        """Return the plans of grids, root ranges and loops.

        Decisions refer to the loops of the program as traced, which rolling may reorder; a loop keeps its number.
        """
        grids: list[GridPlan] = []
        ranges: list[RangePlan] = []
        traced: dict[int, LoopPlan] = {}
        for number, loop in enumerate(loops_of(self.program)):
            if isinstance(loop, Op):
                traced[loop.number] = self.loop(number, loop.attrs)
            else:
                grids.append(self.grid(number, loop, self.rolled.roots[len(grids)]))
                ranges.append(self.range(number))
        for root in self.rolled.roots[len(grids) :]:
            grids.append(self.made_grid(root))
            ranges.append(RangePlan())
        loops = {}
        for op in self.rolled.walk():
            if isinstance(op.attrs, ForAttrs):
                plan = traced.get(op.attrs.like or op.number) or self.made(op.attrs)
                if len(plan.axes) > len(op.attrs.axes):
                    # the options of a flattened loop are those of its last dimension
                    axes = tuple(map(self.axis, op.attrs.axes))
                    plan = LoopPlan(axes=axes, order=(0,), ranges=plan.ranges[-1:])
                if op.attrs.like:
                    plan = replace(plan, axes=tuple(map(self.axis, op.attrs.axes)))
                loops[op.number] = plan if not waits(op.regions[0]) else replace(plan, ranges=_in_order(plan.ranges))
        roots = (
            _in_order((chosen,))[0] if waits(planned.body) else chosen
            for chosen, planned in zip(ranges, self.rolled.roots, strict=True)
        )
        return tuple(grids), tuple(roots), loops

    def grid(self, number: int, root: Root, planned: Root) -> GridPlan:
        """Return the grid of ``planned``; ``root`` is the same before flattening."""
        growing = growing_axes(planned)
        axes = tuple(
            replace(plan, descending=plan.block in growing and not fixed_at(plan.count, 1))
            for plan in map(self.axis, planned.axes)
        )
        if len(axes) < len(root.axes):
            return GridPlan(axes=axes, order=(0,))
        # an axis over split-K parts is the slowest: resident programs then share operands
        order = (*self.order(number, root.axes), *range(len(root.axes), len(axes)))
        return GridPlan(axes=axes, order=order, group=self.decisions.at("l2_groupings", number, 1))

    def made_grid(self, root: Root) -> GridPlan:
        """Return the grid of a root that a step made: its last axis is the fastest; for a matmul its rows."""
        axes = tuple(map(self.axis, root.axes))
        order = tuple(range(len(axes)))[::-1]
        if matmul_tile(self.decisions) is None or not multiplies(root):
            return GridPlan(axes=axes, order=order)
        column, row, *others = order
        return GridPlan(axes=axes, order=(row, column, *others), group=GROUP)

    def made(self, attrs: ForAttrs) -> LoopPlan:
        """Return the plan of a loop that a step made, without slots of its own.

        A loop over split-K partials is unrolled, so that all loads are in flight at once.
        """
        ranges = RangePlan(static=not attrs.chunked)
        return LoopPlan(axes=tuple(map(self.axis, attrs.axes)), order=(0,), ranges=(ranges,))

    def loop(self, number: int, attrs: ForAttrs) -> LoopPlan:
        ranges = tuple(self.range((number, at)) for at in range(len(attrs.axes)))
        return LoopPlan(axes=tuple(map(self.axis, attrs.axes)), order=self.order(number, attrs.axes), ranges=ranges)

    def launch(self) -> LaunchPlan:
        chosen = self.decisions.values
        pid_type = chosen["pid_type"]
        options = [(key, chosen[key]) for key in _LAUNCH_KEYS if chosen.get(key) is not None]
        if chosen.get("advanced_controls_file"):
            # an option of the ptxas of CUDA 13; older ones reject it
            options.append(("ptx_options", f"--apply-controls {chosen['advanced_controls_file']}"))
        if self.settings.checked:
            # Triton would also turn integer overflow, which hashes rely on, into failed assertions
            options += [("debug", True), ("sanitize_overflow", False)]
        options += [(k.removeprefix(_VERBATIM), v) for k, v in chosen.items() if k.startswith(_VERBATIM)]
        return LaunchPlan(
            pid_type=pid_type,
            options=tuple(options),
            own=self.own_options(options),
            persistent=chosen["num_sm_multiplier"] if pid_type.startswith("persistent") else 0,
            reserved_sms=self.settings.persistent_reserved_sms,
            together=are_together(self.decisions),
            dies=self.target.xcds if chosen.get("xcd_remap") else 1,
        )

    def own_options(self, options: list[tuple[str, Any]]) -> dict[int, tuple[tuple[str, Any], ...]]:
        """Return the launch options of the unfused matmul kernel."""
        if matmul_tile(self.decisions) is None:
            return {}
        warps, stages = matmul_launch(self.decisions)
        others = {"num_warps": warps, "num_stages": stages}
        own = tuple((key, others.get(key, value)) for key, value in options)
        return {root.phase: own for root in self.rolled.roots[len(self.program.roots) :]}


def growing_axes(root: Root) -> frozenset[int]:
    """Return the blocks of a grid whose later tiles have more work: a loop over tiles ends where they do, and does not
    begin there.

    Programs with the most work should begin first, because the last ones of a launch leave SMs idle.
    """
    makers = Makers.among(root.body.walk())
    on_grid = {axis.block for axis in root.axes}
    found: set[int] = set()
    for op in root.body.walk():
        if not isinstance(op.attrs, ForAttrs):
            continue
        for axis in op.attrs.axes:
            begin, end = (tile_of_bound(makers, op, bound) for bound in (axis.begin, axis.end))
            if end is not None and end.field == "end" and end.block in on_grid and begin is None:
                found.add(end.block)
    return frozenset(found)


def _in_order(ranges: tuple[RangePlan, ...]) -> tuple[RangePlan, ...]:
    """Return the ranges of a loop with a barrier inside: its loads stay in their iteration, its warps have one role."""
    return tuple(chosen if chosen.static else replace(chosen, options=_waiting(chosen.options)) for chosen in ranges)


def _waiting(options: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in options.items() if key not in ("flatten", "warp_specialize")}
    return {**kept, "num_stages": 1}


def _short(source: str) -> str:
    """Return a name for a host expression: ``epilogue.__closure__[0].cell_contents`` becomes ``epilogue_0``."""
    source = source.replace("_helion_runtime.flat_", "").replace(".__globals__['", "_").replace("']", "")
    return source.replace(".__closure__[", "_").replace("].cell_contents", "").replace("_source_module.", "")


def _argument_name(expr: Expr) -> str:
    """Return the variable that an argument is, or its upper bound: ``max(0, n)`` is ``n`` too."""
    if expr.op == "max":
        (*_, last) = expr.args
        return _argument_name(last) if isinstance(last, Expr) else "number"
    return str(expr.args[0]) if expr.op == "host" else "number"


def _tensors(program: Program) -> set[int]:
    """Return the tensors that the device code uses."""
    used = {op.attrs.tensor for op in program.walk() if isinstance(op.attrs, (MemoryAttrs, SeedAttrs))}
    return used | {at for op in program.walk() if isinstance(op.attrs, InlineAttrs) for at in op.attrs.tensors}


def _blocks(program: Program) -> set[int]:
    """Return the blocks that the device code iterates over or has values of."""
    axes = [axis for root in program.roots for axis in root.axes]
    axes += [axis for op in program.walk() if isinstance(op.attrs, ForAttrs) for axis in op.attrs.axes]
    used = {b for op in program.walk() for v in (*op.results, *op.values()) for dim in v.dims for b in dim.blocks}
    return used | {axis.block for axis in axes}


def _expressions(program: Program, blocks: set[int]) -> list[Expr]:
    """Return every host number that the device code reads: values, loop bounds, shifts of subscripts."""
    found: list[Any] = []
    for root in program.roots:
        axes = [*root.axes, *(part for axis in root.axes for part in axis.merged)]
        found += [n for axis in axes for n in (axis.begin, axis.end, axis.step)]
        for op in root.body.walk():
            if isinstance(op.attrs, NumberAttrs):
                found.append(op.attrs.expr)
            elif isinstance(op.attrs, ForAttrs):
                found += [n for axis in op.attrs.axes for n in (axis.begin, axis.end, axis.step)]
            elif isinstance(op.attrs, CheckAttrs) and op.attrs.index is not None:
                found += [op.attrs.index.shift, op.attrs.size]
            elif isinstance(op.attrs, MemoryAttrs):
                found += [index.shift for index in op.attrs.indices]
                tensor = program.tensors[op.attrs.tensor]
                found += tensor.strides
    found += [block.extent for block in program.blocks if block.kind == "full" and block.id in blocks]
    return [n for n in found if isinstance(n, Expr)]


__all__ = ["build_plan", "hint_of"]
