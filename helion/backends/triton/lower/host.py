"""The launches of a plan in host code: grids, arguments and options of its kernels."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...._compiler.host.analysis import written
from ...._compiler.host.build import HostBuilder, KernelCall
from ...._compiler.host.program import HostProgram
from ...._compiler.ir.grammar import HostTensor
from ...._shapes import Expr, Number, dtype_name
from ..plan.records import ARRIVED, BlockPlan, GridPlan, LaunchArguments, Plan, constexpr_parameters
from ..plan.units import KNOWN

#: The variable with the number of SMs for persistent programs.
_NUM_SM = "_NUM_SM"


def host_program(plan: Plan) -> HostProgram:
    """Return the host function of a plan."""
    host = HostBuilder(plan.program.host, plan.size, plan.tunables)
    for launch in plan.launches:
        arguments = [host.source(a.tensor.source) for a in launch.tensors]
        arguments += [host.number(a.expr) for a in launch.numbers]
        before = list(_before(plan, launch, host))
        if plan.are_together(launch):
            arguments.append(ARRIVED)
        arguments += constexpr_parameters(plan, launch)
        calls = [
            KernelCall(kernel=name, grid=_grid(plan, phase, host), arguments=arguments, options=plan.options_of(phase))
            for name, phase in plan.launched
            if phase in launch.phases
        ]
        host.launch(before, calls)
    return host.program(written(plan.program))


def _before(plan: Plan, launch: LaunchArguments, host: HostBuilder) -> Iterator[str]:
    """Yield the statements before the kernels of one place."""
    for block in launch.blocks:
        if block.dynamic is not None:
            yield _dynamic_size(plan, block, block.dynamic, host)
    for number in launch.numbers:
        if number.unit:
            value = host.number(number.expr, parent=True)
            yield f"{number.unit} = ({value} | {KNOWN}) & -({value} | {KNOWN})"
    if plan.launch.persistent:
        device = host.source(launch.tensors[0].tensor.source)
        reserved = f", {plan.launch.reserved_sms}" if plan.launch.reserved_sms else ""
        yield f"{_NUM_SM} = {host.runtime('get_num_sm')}({device}.device{reserved})"
    if plan.are_together(launch):
        device = host.source(launch.tensors[0].tensor.source)
        yield f"{ARRIVED} = {host.runtime('arrived_programs')}({device}.device)"
    if plan.needs_alignment:
        # Triton keeps the allocator for descriptors per thread, so setting it at import of the module is too early
        yield f"{host.runtime('set_triton_allocator')}()"
    for tensor in (a.tensor for a in launch.tensors if a.tensor.made):
        device = host.source(launch.tensors[0].tensor.source)
        dtype, numel = host.torch(dtype_name(tensor.dtype)), _numel(tensor, host)
        yield f"{tensor.source} = {host.torch('empty')}({numel}, dtype={dtype}, device={device}.device)"
    if launch.overwritten:
        tensors = ", ".join(map(host.source, launch.overwritten))
        yield f"{host.runtime('overwrites')}({plan.program.host.name!r}, {launch.overwritten!r}, {tensors})"


def _numel(tensor: HostTensor, host: HostBuilder) -> str:
    """Return the elements of a tensor that a launch allocates, from the dimension with the greatest reach in memory."""
    reach = [(extent, stride) for extent, stride in zip(tensor.shape, tensor.strides, strict=True)]
    if all(isinstance(number, int) for pair in reach for number in pair):
        return str(max(math.prod(pair) for pair in reach))
    return " * ".join(host.number(number, parent=True) for number in reach[0])


def _dynamic_size(plan: Plan, block: BlockPlan, extent: Expr, host: HostBuilder) -> str:
    size = f"triton.next_power_of_2({host.number(extent)})"
    least = plan.program.blocks[block.id].min_size
    enough = least <= 1 and host.is_size(extent)
    return f"{block.symbol} = {size}" if enough else f"{block.symbol} = max({size}, {least})"


def _grid(plan: Plan, phase: int, host: HostBuilder) -> list[str]:
    launch = plan.launch
    if launch.persistent:
        return [f"{_NUM_SM} * {launch.persistent}" if launch.persistent > 1 else _NUM_SM]
    grids = [g for g, root in zip(plan.grids, plan.program.roots, strict=True) if root.phase == phase]
    if launch.pid_type == "xyz":
        (grid,) = grids
        return [_count(grid.axes[at].count, host) for at in grid.order]
    return [" + ".join(_programs(grid, host) for grid in grids)]


def _programs(grid: GridPlan, host: HostBuilder) -> str:
    counts = [a.count for a in grid.axes]
    known = [count for count in counts if isinstance(count, int)]
    if len(known) == len(counts):
        return str(math.prod(known))
    return " * ".join(_count(count, host) for count in counts)


def _count(count: Number | None, host: HostBuilder) -> str:
    assert count is not None, "a grid whose size only the device knows needs persistent programs"
    return host.number(count, parent=True)
