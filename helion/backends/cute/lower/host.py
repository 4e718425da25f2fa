"""The launch of a plan in host code."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from ...._compiler.host.analysis import written
from ...._compiler.host.build import HostBuilder, KernelCall
from ...._compiler.host.program import HostProgram
from ...._shapes import Expr, Number
from ..plan.kernel import CutePlan
from ..plan.launch import LaunchPlan
from ..plan.records import Groups


def host_program(plan: LaunchPlan, pieces: Callable[[Any, HostBuilder], str]) -> HostProgram:
    """Build the host function of a plan: one launch over its work items, whose number ``pieces`` returns."""
    host = HostBuilder(plan.program.host, plan.sizes.__getitem__, dict(plan.tunables))
    call = KernelCall(
        kernel=plan.kernel_names[0],
        grid=["0" if plan.is_empty else pieces(plan, host)],
        arguments=[
            host.number(each) if isinstance(each, Expr) else host.source(each.source) for each in plan.arguments
        ],
        options=(),
    )
    host.launch(list(_before(plan, host)), [call])
    return host.program(written(plan.program))


def gemm_pieces(plan: CutePlan, host: HostBuilder) -> str:
    """Return the number of work items in the persistent tile loop."""
    numbers = dict(plan.runtime)
    gemm, problem = plan.gemm, plan.gemm.problem
    if problem.groups is not None:
        return host.number(_group_pieces(plan, problem.groups))
    if gemm.whole_tiles:
        return host.number(gemm.pieces)
    covered = zip(("size_m", "size_n"), gemm.tile, gemm.cluster_tiles, strict=False)
    factors = [-(-numbers[name] // (tile * tiles)) for name, tile, tiles in covered if name in numbers]
    known = [pieces for name, pieces in zip(("size_m", "size_n"), gemm.work, strict=True) if name not in numbers]
    factors.append(numbers.get("batches", problem.batches) * gemm.grid_splits * math.prod(known))
    return host.number(math.prod(factors))


def _group_pieces(plan: CutePlan, groups: Groups) -> Number:
    """Return the most tiles that groups of rows have: of each, one that its rows do not fill."""
    numbers = dict(plan.runtime)
    gemm, problem = plan.gemm, plan.gemm.problem
    rows, columns = (tile * tiles for tile, tiles in zip(gemm.tile, gemm.cluster_tiles, strict=False))
    along_m = numbers.get("size_m", problem.m) // rows + numbers.get("batches", groups.size)
    along_m = along_m if groups.rows is None else gemm.work[0]
    return along_m * -(-numbers.get("size_n", problem.n) // columns)


def _before(plan: LaunchPlan, host: HostBuilder) -> Iterator[str]:
    if plan.overwritten:
        tensors = ", ".join(map(host.source, plan.overwritten))
        yield f"{host.runtime('overwrites')}({plan.program.host.name!r}, {plan.overwritten!r}, {tensors})"
