"""Scales that the matrix unit multiplies by: copies to shared memory in its order, and from there to tensor memory."""

from __future__ import annotations

import functools

from ...plan.counts import micro_atoms, micro_columns, scale_columns
from ...plan.dtypes import per_byte
from ...plan.records import WARP_THREADS, GemmPlan
from ...plan.scales import ATOM_BLOCKS, ATOM_BYTES, ATOM_COLUMNS, ATOM_LINES, Scale
from ...roles.micro import MicroMma, MicroStep, MicroViews, MoveScales, StartScales
from ..setups import tile_k

ROW_BYTES = 16
"""Bytes of a row of an atom: a word for each of four lines."""
WORD_BYTES = 4


def _factors(plan: GemmPlan) -> list[tuple[str, Scale, int, int, str]]:
    """Return the scales of both sides: operand, scale, lines of a tile, lines of the matrix, and the tile's index."""
    assert plan.problem.scales is not None
    rows, columns = plan.problem.scales.factors
    (m, n, _), problem = plan.tile, plan.problem
    return [("a", rows, m, problem.m, "tile_m"), ("b", columns, n, problem.n, "tile_n")]


def imports(plan: GemmPlan) -> list[str]:
    """Return the imports that the scales need."""
    return ["import cutlass.utils.blockscaled_layout as blockscaled"] if micro_columns(plan) else []


@functools.singledispatch
def lines(step: MicroStep, plan: GemmPlan) -> list[str]:
    """Return the code of a step."""
    raise NotImplementedError(type(step).__name__)


@lines.register
def _(step: MicroViews, plan: GemmPlan) -> list[str]:
    if step.copies:
        return [f"scales_{side} = shared_scales_{side}.iterator.toint().to(cutlass.Int32)" for side in "ab"]
    found = [f"scale_copy = cute.make_copy_atom(tcgen05.Cp4x32x128bOp(tcgen05.CtaGroup.ONE), {_dsl(plan)})"]
    shape, block = f"({plan.tile[0]}, {plan.tile[1]}, {tile_k(plan)})", _block(plan)
    for side in "ab":
        name = f"scales_{side}"
        found += [
            f"layout_{name} = blockscaled.make_smem_layout_sf{side}(tiled_mma, {shape}, {block}, {plan.ab_stages})",
            f"stages_{name} = cute.make_tensor("
            f"cute.recast_ptr(shared_{name}.iterator, dtype={_dsl(plan)}), layout_{name})",
            f"places_{name} = blockscaled.make_tmem_layout_sf{side}("
            f"tiled_mma, {shape}, {block}, cute.slice_(layout_{name}, (None, None, None, 0)))",
        ]
    return found


def _dsl(plan: GemmPlan) -> str:
    assert plan.problem.scales is not None
    return plan.problem.scales.dsl


def _block(plan: GemmPlan) -> int:
    assert plan.problem.scales is not None
    return plan.problem.scales.k * per_byte(plan.problem.operand_dtype)


@lines.register
def _(step: StartScales, plan: GemmPlan) -> list[str]:
    """Copy a word of four scales of a line at a time: each lane has a row of 16 bytes of each atom. Atoms of the same lines
    follow each other along K."""
    found = []
    for (side, scale, tile, extent, index), atoms in zip(_factors(plan), micro_atoms(plan), strict=True):
        along_k = atoms // -(-tile // ATOM_LINES)
        line = f"{index} * {tile} + atom // {along_k} * {ATOM_LINES} + word * {WARP_THREADS} + lane"
        block = f"k_tile * {along_k * ATOM_BLOCKS} + atom % {along_k} * {ATOM_BLOCKS}"
        place = f"({step.cursor}.index * {atoms} + atom) * {ATOM_BYTES} + lane * {ROW_BYTES} + word * {WORD_BYTES}"
        found += [
            f"for atom in cutlass.range_constexpr({atoms}):",
            f"    for word in cutlass.range_constexpr({ROW_BYTES // WORD_BYTES}):",
            f"        line = {line}",
            f"        inside = cutlass.Int32(cutlass.select_(line < {extent}, cutlass.Int32({WORD_BYTES}), cutlass.Int32(0)))",
            f"        from_scale = {scale.label}.iterator + cute.crd2idx((line, {block}), {scale.label}.layout)",
            "        cute.arch.inline_ptx(",
            f'            "cp.async.ca.shared.global [{{$r0}}], [{{$r1}}], {WORD_BYTES}, {{$r2}};",',
            f"            read_only_args=[scales_{side} + {place}, from_scale.toint(), inside],",
            "        )",
        ]
    return found


@lines.register
def _(step: MoveScales, plan: GemmPlan) -> list[str]:
    found, first = [], scale_columns(plan)
    for side, atoms in zip("ab", micro_atoms(plan), strict=True):
        name = f"scales_{side}"
        column = f"{step.cursor}.index * {micro_columns(plan)} + {first}"
        found += [
            f"held_{name} = cute.make_tensor("
            f"cute.recast_ptr(sums_pointer + ({column}), dtype={_dsl(plan)}), places_{name})",
            f"move_{name} = tcgen05.make_s2t_copy(scale_copy, cute.filter_zeros(held_{name}))",
            f"mover_{name} = move_{name}.get_slice(0)",
            f"moved_{name} = tcgen05.get_s2t_smem_desc_tensor("
            f"move_{name}, mover_{name}.partition_S(cute.filter_zeros(stages_{name})))",
            f"cute.copy(move_{name}, moved_{name}[None, None, None, None, {step.cursor}.index],"
            f" mover_{name}.partition_D(cute.filter_zeros(held_{name})))",
        ]
        first += atoms * ATOM_COLUMNS
    return found


@lines.register
def _(step: MicroMma, plan: GemmPlan) -> list[str]:
    place = f"[None, None, step, {step.cursor}.index]"
    return [
        f"for step in cutlass.range_constexpr({plan.mma_steps}):",
        "    tiled_mma.set(tcgen05.Field.SFA, held_scales_a[None, None, step].iterator)",
        "    tiled_mma.set(tcgen05.Field.SFB, held_scales_b[None, None, step].iterator)",
        f"    cute.gemm(tiled_mma, sums, fragment_a{place}, fragment_b{place}, sums)",
        "    tiled_mma.set(tcgen05.Field.ACCUMULATE, True)",
    ]
