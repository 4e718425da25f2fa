"""Rewrites that a config selects, as steps. Backends order them, together with their own steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..._support.lazy import lazy
from ..ir.grammar import Program
from ..ir.watch import watching
from . import branches, order_memory, rolling
from .accesses import Launched

if TYPE_CHECKING:
    from . import ahead, checks, flatten, hoist, join, materialize, pack, peel, split_sums, subtile
else:
    # Binding needs only the names of the steps.
    ahead = lazy("helion._compiler.passes.ahead")
    checks = lazy("helion._compiler.passes.checks")
    flatten = lazy("helion._compiler.passes.flatten")
    hoist = lazy("helion._compiler.passes.hoist")
    join = lazy("helion._compiler.passes.join")
    materialize = lazy("helion._compiler.passes.materialize")
    pack = lazy("helion._compiler.passes.pack")
    peel = lazy("helion._compiler.passes.peel")
    split_sums = lazy("helion._compiler.passes.split_sums")
    subtile = lazy("helion._compiler.passes.subtile")


@dataclass(frozen=True, kw_only=True)
class Scheduled:
    """Inputs of the steps that follow from a config.

    - ``sizes``: sizes of the traced program's blocks, in elements.
    - ``chunked``: whole dimensions that are rolled into loops over chunks.
    - ``flattened``: the loop order of each grid that becomes one loop, by number of its root.
    - ``subtiles``: the number of column subtiles of an epilogue, 0 for none.
    - ``parts``: the number of programs that share a reduction loop (split-K).
    - ``turned``: matmuls are computed with A and B swapped.
    - ``packed``: operands with unaligned rows are copied.
    - ``crosswise``: MN-major operands are copied to K-major.
    - ``hoisted``: computed operands are precomputed.
    - ``joined``: loops that differ only in constants are fused.
    - ``peeled``: loops are split where masks are known.
    - ``ahead``: prefetch distance of loops over single indices.
    - ``staged``: other loops have pipeline stages with asynchronous copies of their loads.
    - ``products``: M, N and K tiles of matmuls that are computed first, None if they are not.
    - ``threads``, ``steady``, ``block_accesses``: those of ``accesses.Launched``.
    - ``checked``: the kernel checks its accesses at run time.
    - ``unrolled``: loops are fully unrolled.
    - ``float_counts``: sums of conditions are computed in fp32.
    - ``float_reads``: float instructions are the first to read the accumulators of matmuls.
    - ``tunables``: values of the kernel's own keys.
    """

    sizes: Mapping[int, int]
    chunked: frozenset[int] = frozenset()
    flattened: Mapping[int, tuple[int, ...]]
    subtiles: int = 0
    parts: int = 1
    turned: bool = False
    packed: bool = False
    crosswise: bool = False
    hoisted: bool = False
    joined: bool = False
    peeled: bool = False
    ahead: int = 0
    staged: bool = False
    products: tuple[int, int, int] | None = None
    threads: int
    steady: bool
    block_accesses: frozenset[int] = frozenset()
    checked: bool = False
    unrolled: bool = False
    float_counts: bool = False
    float_reads: bool = False
    tunables: Mapping[str, Any] = field(default_factory=dict)

    def sizes_in(self, program: Program) -> dict[int, int]:
        """Return the size of every block of a rewritten program, which may have more blocks than the traced one."""
        sizes = dict(self.sizes)
        for block in program.blocks:
            if block.merged:
                sizes[block.id] = math.prod(sizes[part] for part in block.merged)
            elif block.part is not None:
                sizes[block.id] = sizes[block.part.block] // block.part.count
            elif block.id not in sizes:
                assert isinstance(block.size, int), "a step makes blocks of known size"
                sizes[block.id] = block.size
        return sizes

    def launched(self, program: Program) -> Launched:
        """Return the launch properties that the order of memory accesses depends on."""
        lanes = order_memory.least_lanes(program, self.sizes_in(program))
        return Launched(lanes=lanes, threads=self.threads, steady=self.steady, block_accesses=self.block_accesses)


@dataclass(frozen=True)
class Step:
    """A pure rewrite with the name that dumps and the verifier print."""

    name: str
    rewrite: Callable[[Program, Scheduled], Program]


def _choose_branches(program: Program, scheduled: Scheduled) -> Program:
    return branches.choose_branches(program, scheduled.sizes, scheduled.tunables)


def _unfuse_matmul(program: Program, scheduled: Scheduled) -> Program:
    if scheduled.products is None:
        return program
    return materialize.unfuse_matmul(program, scheduled.products)


def _roll(program: Program, scheduled: Scheduled) -> Program:
    return rolling.roll(program, scheduled.chunked)


def _flatten(program: Program, scheduled: Scheduled) -> Program:
    for root, order in scheduled.flattened.items():
        program = flatten.flatten(program, root, order)
    return program


def _split_sums(program: Program, scheduled: Scheduled) -> Program:
    if scheduled.parts == 1:
        return program
    return split_sums.split_sums(program, scheduled.parts, scheduled.sizes_in(program))


def _fuse_loops(program: Program, scheduled: Scheduled) -> Program:
    return join.fuse_loops(program, scheduled.sizes_in(program)) if scheduled.joined else program


def _precompute_operands(program: Program, scheduled: Scheduled) -> Program:
    return hoist.precompute_operands(program, scheduled.sizes_in(program)) if scheduled.hoisted else program


def _pack_operands(program: Program, scheduled: Scheduled) -> Program:
    if not (scheduled.packed or scheduled.crosswise):
        return program
    sizes = scheduled.sizes_in(program)
    return pack.copy_operands(program, sizes, packed=scheduled.packed, crosswise=scheduled.crosswise)


def _peel_masks(program: Program, scheduled: Scheduled) -> Program:
    return peel.peel_masks(program, scheduled.sizes_in(program)) if scheduled.peeled else program


def _prefetch_distance(program: Program, scheduled: Scheduled) -> Program:
    if not scheduled.ahead:
        return program
    copying = scheduled.threads if scheduled.staged else 0
    return ahead.prefetch_distance(program, scheduled.ahead, scheduled.sizes_in(program), copying)


def _subtile(program: Program, scheduled: Scheduled) -> Program:
    if not scheduled.subtiles:
        return program
    return subtile.subtile(program, scheduled.subtiles, scheduled.sizes_in(program))


def _order_memory(program: Program, scheduled: Scheduled) -> Program:
    return order_memory.order_memory(program, scheduled.launched(program))


def _insert_checks(program: Program, scheduled: Scheduled) -> Program:
    return checks.insert_checks(program) if scheduled.checked else program


#: First of all, so that the other steps see one branch.
CHOOSE_BRANCHES = Step("choose_branches", _choose_branches)
#: Precedes steps that split loops, which then see only the remaining kernel.
UNFUSE_MATMUL = Step("unfuse_matmul", _unfuse_matmul)
#: Also moves centred sums into the pass of their centre (``online``).
ROLL = Step("roll", _roll)
FLATTEN = Step("flatten", _flatten)
FUSE_LOOPS = Step("fuse_loops", _fuse_loops)
#: After every step that changes the axes of a grid.
SPLIT_SUMS = Step("split_sums", _split_sums)
#: After split_sums: the reduction of partials reads no operands.
PRECOMPUTE_OPERANDS = Step("precompute_operands", _precompute_operands)
PACK_OPERANDS = Step("pack_operands", _pack_operands)
SUBTILE = Step("subtile", _subtile)
PEEL_MASKS = Step("peel_masks", _peel_masks)
PREFETCH_DISTANCE = Step("prefetch_distance", _prefetch_distance)
#: After every step that moves, repeats or splits accesses.
ORDER_MEMORY = Step("order_memory", _order_memory)
INSERT_CHECKS = Step("insert_checks", _insert_checks)


def run_steps(program: Program, scheduled: Scheduled, steps: Iterable[Step]) -> Program:
    """Run each step in turn; ``HELION_DUMP`` prints the program after a step, ``HELION_VERIFY`` checks it after
    each."""
    watch = watching()
    for step in steps:
        program = watch(step.name, step.rewrite(program, scheduled))
    return program
