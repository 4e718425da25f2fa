"""Limits on the elements of one value per thread."""

from __future__ import annotations

from collections.abc import Iterable

from ... import exc
from ..._compiler.decisions import Decisions
from ..._compiler.ir.grammar import Program
from ..._compiler.ir.rewrite import remembered
from ..._compiler.rewrites.unfuse_matmul import matmul_tile
from ..._compiler.rewrites.unfuse_matmul.loops import unfuse_matmul
from ..._shapes import previous_power_of_2
from ...autotuner.space.program_shape import ProgramShape, Volume, program_shape
from ...hardware import Target

#: Most elements of one value per thread, in register files of a thread. Tiles beyond that spill kilobytes, and ptxas
#: takes minutes: for sm_90 12 s for twice the registers, 85 s for eight times.
_FILES_OF_A_VALUE = 2
#: The same for kernels with matmuls, whose operands go through shared memory: sweeps have measured such tiles.
_FILES_OF_A_PRODUCT = 8
#: Most warps of a program that configs have, on targets whose warps are narrow, too.
_MOST_WARPS = 32


def warps_that_fit(target: Target) -> int:
    """Return the most warps that a config may give a program."""
    return min(_MOST_WARPS, target.max_threads_per_block // target.warp_size)


def most_elements(shape: ProgramShape, target: Target, warps: int) -> int:
    """Return the most elements of one value in a program of ``warps`` warps."""
    files = _FILES_OF_A_PRODUCT if shape.matrix_blocks else _FILES_OF_A_VALUE
    return files * target.max_registers_per_thread * warps * target.warp_size


def enough_warps(shape: ProgramShape, target: Target, decisions: Decisions) -> int:
    """Return the warps of ``decisions``, or as many more as its largest value needs."""
    return _warps_of(shape.volumes, shape, target, decisions)


def enough_warps_of_rows(shape: ProgramShape, program: Program, target: Target, decisions: Decisions) -> int:
    """Return the warps of ``decisions``, or as many more as the largest value with a whole dimension needs."""
    volumes = [v for v in _held(shape, program, decisions) if _has_whole_dimension(v, shape, decisions)]
    return _warps_of(volumes, shape, target, decisions)


def _warps_of(volumes: Iterable[Volume], shape: ProgramShape, target: Target, decisions: Decisions) -> int:
    warps: int = decisions.values["num_warps"]
    numel = max((volume.numel(decisions.sizes) for volume in volumes), default=0)
    while numel > most_elements(shape, target, warps) and 2 * warps <= warps_that_fit(target):
        warps *= 2
    return warps


def _has_whole_dimension(volume: Volume, shape: ProgramShape, decisions: Decisions) -> bool:
    return any(shape.blocks[block].kind == "full" and block not in decisions.chunked for block in volume.blocks)


@remembered
def _left(program: Program) -> tuple[Volume, ...]:
    """Return what programs hold whose products are computed in front: neither operands nor accumulators of these."""
    made = program_shape(unfuse_matmul(program, (None, None, None)), ())
    return tuple(volume for volume in made.volumes if max(volume.blocks, default=-1) < len(program.blocks))


def _held(shape: ProgramShape, program: Program, decisions: Decisions) -> tuple[Volume, ...]:
    """Return what programs hold under a config."""
    return shape.volumes if matmul_tile(decisions) is None else _left(program)


def check_held_values(shape: ProgramShape, program: Program, target: Target, decisions: Decisions) -> None:
    """Raise ``exc.InvalidConfig`` where threads have many more elements of a value than registers."""
    volume = max(_held(shape, program, decisions), key=lambda v: v.numel(decisions.sizes), default=None)
    warps = decisions.values["num_warps"]
    limit = most_elements(shape, target, warps)
    if volume is None or (numel := volume.numel(decisions.sizes)) <= limit:
        return
    sides = " x ".join(f"{shape.blocks[b].name}={decisions.sizes[b]}" for b in volume.blocks)
    threads, enough = warps * target.warp_size, enough_warps(shape, target, decisions)
    wider = f"num_warps={enough}, or " if numel <= most_elements(shape, target, enough) else ""
    raise exc.InvalidConfig(
        f"{volume.name} has {numel} elements ({sides}), {numel // threads} for each thread of num_warps={warps}, and a thread "
        f"of {target} has {target.max_registers_per_thread} registers: {limit // threads} are the most, or compiling takes minutes; "
        f"use {wider}tiles of at most {previous_power_of_2(limit)} elements.",
        location=volume.location,
    )
