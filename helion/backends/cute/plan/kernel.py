"""The plan of one user kernel: the GEMM, its arguments, and a printable report."""

from __future__ import annotations

import functools

from ...._support.records import dataclass
from ..roles.grammar import KernelProgram
from ..roles.programs import kernel_program
from .copied import Copied
from .counts import counts, is_raw
from .finish import counts_rows, ctas_of, threads_of
from .launch import LaunchPlan
from .operands import gathered
from .records import Finish, GemmPlan, Prepared, RowFinish, TileFinish
from .reductions import exchanges
from .report import memory_lines, pipeline_lines, role_lines
from .runtime import SIZES
from .scales import LONGEST, Scale
from .shared import shared_bytes, shared_memory
from .workspace import split_tiles, workspace_bytes


@dataclass(frozen=True, kw_only=True)
class CutePlan(LaunchPlan):
    """The plan of a kernel that is a GEMM, whose plan is ``gemm``."""

    gemm: GemmPlan

    @functools.cached_property
    def roles(self) -> KernelProgram:
        """The programs of the warps, the pipelines between them and their barriers."""
        return kernel_program(self.gemm)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of one CTA."""
        return shared_bytes(self.gemm)

    @property
    def tensor_memory_columns(self) -> int:
        """Tensor-memory columns of one CTA; 0 on GPUs without tensor memory."""
        return counts(self.gemm).tensor_memory_columns

    def __str__(self) -> str:
        program = self.roles
        roles = role_lines(program.warps, program.roles, program.registers)
        return "\n".join([*_product_lines(self), *roles, *pipeline_lines(program.pipelines), *_memory_lines(self)])


def _product_lines(plan: CutePlan) -> list[str]:
    gemm, problem, epilogue = plan.gemm, plan.gemm.whole, plan.gemm.whole.epilogue
    dtypes = f"{problem.operand_dtype} to {problem.output_dtype}"
    majors = f"A {problem.a_major}-major, B {problem.b_major}-major"
    tile, cluster = (" x ".join(map(str, each)) for each in (gemm.tile, gemm.cluster))
    pair = " by pairs of CTAs" if gemm.ctas_per_mma == 2 else ""
    varying = {name: repr(number) for name, number in plan.runtime}
    batch = f"{varying.get('batches', problem.batches)} of " if problem.batch and problem.groups is None else ""
    extents = " x ".join(varying.get(f"size_{side}", str(getattr(problem, side))) for side in "mnk")
    clusters = f"{gemm.tiles} of them " if {*SIZES}.isdisjoint(varying) else ""
    lines = [
        f"{plan.kernel_names[0]}: {batch}{extents}, {dtypes}, {majors}",
        f"  {gemm.unit}, tiles of {tile}{pair}, clusters of {cluster}, {clusters}in groups of {gemm.group}",
        f"  {gemm.ab_stages} stages of A and B, {gemm.store_stages} of D, {gemm.accumulator_stages} of the accumulator;"
        f" {gemm.subtiles} sub-tiles of {gemm.epilogue_n} columns"
        + (f"; accumulators promoted to fp32 every {gemm.promote_k_tiles} K tiles" if gemm.totals else ""),
    ]
    if problem.scales is not None:
        factors = [f"{each.name} ({_shared_by(each)}, {each.dtype})" for each in problem.scales.factors]
        lines.append(f"  factors of blocks of {problem.scales.k} along K: {', '.join(factors)}")
    copied = gemm.problem.copied
    lines += [f"  producer of {_copied(each, is_raw(gemm, each), gemm.converts)}" for each in copied]
    lines += [_prepared(each) for each in (gemm.prepare.operands if gemm.prepare is not None else ())]
    if (picked := gathered(gemm)) is not None and picked.lines is not None:
        lines.append(f"  TMA gathers the rows of {picked.sources[0].name} by {picked.lines.name}")
    if problem.groups is not None:
        groups = varying.get("batches", problem.groups.size)
        blocks = "" if problem.groups.rows is None else f"blocks of {problem.groups.rows} "
        most = blocks if problem.groups.longest is None else f"at most {varying.get(LONGEST, problem.groups.longest)} "
        lines.append(
            f"  tile scheduler: {most}rows of {groups} groups from {problem.groups.name}, as many tiles as they need"
        )
    operands = [f"{each.name} ({each.kind}, {each.dtype})" for each in problem.epilogue.operands]
    if problem.ends is not None and problem.ends.groups is not None:
        groups = varying.get("batches", problem.ends.groups.size)
        lines.append(f"  K of {groups} groups from {problem.ends.groups.name}, as many K tiles as they need")
    if gemm.grid_splits > 1:
        last = f" of the last {split_tiles(gemm)} tiles" if gemm.whole_tiles else ""
        lines.append(
            f"  K{last} in {gemm.parts} parts, {gemm.grid_splits} of them by clusters that pass partials to the last one in"
            f" {workspace_bytes(gemm)} bytes of global memory"
        )
    chain = [each.op for each in problem.epilogue.instructions]
    if chain or operands:
        lines.append(f"  epilogue: {', '.join(chain) or 'none'}; operands: {', '.join(operands) or 'none'}")
    if problem.epilogue.outputs:
        named = [f"{each.name} ({each.kind}, {each.dtype})" for each in problem.outputs]
        lines.append(f"  outputs: {', '.join(named)}")
    if gemm.finish is not None:
        return [*lines, *_finish_lines(gemm, gemm.finish)]
    if exchanges(gemm):
        reduced = [", ".join(epilogue.instruction(value).op for value in exchange) for exchange in exchanges(gemm)]
        once = ", exchanged at once" if gemm.joins else ""
        lines.append(f"  rows held by {gemm.cluster[1]} CTAs, reduced in turn: {'; '.join(reduced)}{once}")
    return lines


_OPERANDS = {"a": "A", "b": "B"}


def _prepared(prepared: Prepared) -> str:
    """Describe the kernel that writes an operand to memory."""
    copied = prepared.copied
    sources = ", ".join(f"{each.name} ({each.dtype})" for each in copied.sources)
    computed = "".join(f", {each.op}" for each in copied.instructions)
    matrices = f"{prepared.batches} of " if prepared.batches > 1 else ""
    if prepared.totals:
        return f"  a kernel before sums {prepared.rows} lines along K as {copied.operand}: of {sources}{computed}"
    return (
        f"  a kernel before writes {_OPERANDS.get(copied.operand, copied.operand)}, {matrices}{prepared.rows} rows of {prepared.pitch}"
        f" elements, to the workspace: from {sources}{computed}"
    )


def _copied(copied: Copied, raw: bool, converts: bool) -> str:
    """Describe the copy of an operand by warps."""
    sources = ", ".join(f"{each.name} ({each.dtype})" for each in copied.sources)
    how = f"cp.async of {copied.granule} bytes" if copied.granule else "loads to registers"
    how = "reads of raw tiles that TMA loads" if raw else how
    computed = "".join(f", {each.op}" for each in copied.instructions)
    warps = "warps that multiply" if converts else "warps"
    return f"{_OPERANDS.get(copied.operand, copied.operand)}: {warps}, by {how} of {sources}{computed}"


def _shared_by(scale: Scale) -> str:
    if not scale.pitch:
        return f"one for all {scale.side}s"
    return f"per {scale.side}" if scale.lines == 1 else f"per {scale.lines} {scale.side}s"


def _finish_lines(gemm: GemmPlan, finish: Finish) -> list[str]:
    """Describe the kernel after the matmul, and its inputs."""
    ctas, threads = f"{'up to ' if counts_rows(finish.problem) else ''}{ctas_of(finish)}", threads_of(finish)
    if isinstance(finish, TileFinish):
        stored = f"{len(finish.parts)} numbers of each row of {finish.tiles} tiles"
        joins = f"{ctas} CTAs of {threads} threads join them, a warp for each row"
    else:
        stored = f"rows of {finish.problem.n} {finish.dtype}"
        kept = "once" if finish.kept else "for each reduction, and to store"
        kept += ", to shared memory" if finish.shared else ""
        joins = f"{ctas} CTAs of {threads} threads finish a row each, which they read {kept}"
    where = (
        finish.home if isinstance(finish, RowFinish) and finish.home else f"{workspace_bytes(gemm)} bytes of workspace"
    )
    return [f"the matmul stores {stored} in {where}; {joins}"]


def _memory_lines(plan: CutePlan) -> list[str]:
    lines = memory_lines(shared_memory(plan.gemm), plan.gemm.shared_limit_bytes)
    if plan.gemm.tensor_memory_limit_columns:
        lines.append(f"tensor memory: {plan.tensor_memory_columns} of {plan.gemm.tensor_memory_limit_columns} columns")
    return lines
