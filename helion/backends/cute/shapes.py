"""The shapes of programs that the backend compiles: one record each, and the choice among them.

A program has the first shape that claims it by its structure. That shape compiles it, or refuses it with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ... import exc
from ..._compiler.decisions import Decisions
from ..._compiler.facts.records import KernelFacts
from ..._compiler.host.build import HostBuilder
from ..._compiler.ir.effects import meets_other_gpus
from ..._compiler.ir.grammar import Program
from ..._support.records import dataclass, replace
from ...autotuner.margins import PREDICTABLE_LEAD, Lead
from ...autotuner.proposal import Predicted
from ...autotuner.space.own import OwnKeys
from ...autotuner.space.program_shape import ProgramShape
from ...hardware import Target
from ...settings import Settings
from .attention_space import attention_keys, attention_refusal
from .backward_space import backward_keys, backward_refusal
from .chained import build_chained, chained_keys, chained_multiples, chained_refusal, is_chained, main_of, programs_of
from .codegen.attention.backward_kernel import backward_kernel
from .codegen.attention.kernel import attention_kernel
from .codegen.attention.umma.backward_kernel import umma_backward_kernel
from .codegen.attention.umma.kernel import umma_kernel
from .codegen.chained.module import chained_kernel_of
from .codegen.rowwise.module import row_kernel_of
from .codegen.whole import gemm_kernel_of
from .lower.attention.backward import has_backward
from .lower.attention.consecutive import with_joined_loops
from .lower.attention.kernel import (
    attention_multiples,
    attention_pieces,
    attention_ranges,
    backward_multiples,
    backward_pieces,
    build_attention,
    build_backward,
    known_attention,
    known_backward,
)
from .lower.attention.loops import has_attention
from .lower.epilogue.column_pairs import with_column_pairs
from .lower.groups import without_groups_of_k
from .lower.host import gemm_pieces
from .lower.kernel import build_plan, known_product, of_all_columns, with_parts
from .lower.peers.messages import plain
from .lower.rewrites.dimensions import with_joined_dimensions
from .lower.rewrites.ends import without_ends
from .lower.rewrites.key_parts import with_whole_keys
from .lower.rewrites.partials import with_whole_k
from .lower.rowwise import kernel as rows
from .lower.weights.nibbles import with_nibbles
from .lower.weights.pairs import with_pairs
from .plan.attention.numbers import is_known
from .plan.attention.plan import CuteAttentionPlan, CuteBackwardPlan
from .plan.build import unit_of
from .plan.chained.records import ChainedPlan
from .plan.kernel import CutePlan
from .plan.launch import LaunchPlan
from .plan.operands import FEW_ROWS, can_convert
from .plan.records import WGMMA_ROWS
from .plan.rowwise.kernel import RowsPlan
from .refusal import multiples, ranges, refusal, unproven
from .resources.attention import describes, predict_attention
from .resources.backward import describes_backward, predict_backward
from .resources.predict import predict
from .resources.rowwise.predict import describes_rows, predict_rows
from .resources.shape import shape_of
from .resources.umma_attention import predict_umma
from .resources.umma_backward import predict_umma_backward
from .roles.attention.umma import UmmaProgram
from .roles.attention.umma_backward import UmmaBackwardProgram
from .row_margins import rows_lead, rows_on_request
from .row_space import own_keys as row_keys
from .space import own_keys
from .toolchain.kernel import GemmKernel
from .verify.attention.verify import verify_attention, verify_backward
from .verify.rowwise.verify import verify_rows
from .verify.verify import verify

_REQUEST = "with backend='cute'"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One shape of programs, with the phases of its compilation.

    - ``claims``: returns whether a program has this shape; ``describes``: the same from facts.
    - ``refusal``: returns why the backend cannot run a program of this shape on a target, or None.
    - ``multiples``, ``ranges``, ``keys``, ``described``, ``predict``, ``plan``: those of ``backends.protocol.Backend``.
    - ``plan_type``: the class of its plans, which no other shape has.
    - ``pieces``: returns the work items of a launch in host code, of which each cluster takes several.
    - ``kernel``: returns the kernel of a plan; ``verify`` raises ``verify.Fault`` for a plan with a broken protocol.
    - ``on_request``: returns why ``auto`` leaves such a kernel to other backends that take it, or an empty string.
    - ``lead``: returns the lead in predicted time over the general backend from which ``auto`` takes such a kernel.
    """

    name: str
    claims: Callable[[Program], bool]
    describes: Callable[[KernelFacts], bool]
    refusal: Callable[[Program, Target], exc.Base | None]
    multiples: Callable[[Program], Mapping[str, int]]
    ranges: Callable[[Program], Mapping[str, range]] = lambda program: {}
    keys: Callable[[ProgramShape, Program, Target, Settings], OwnKeys]
    described: Callable[[Program], Program] = lambda program: program
    predict: Callable[[KernelFacts, Decisions, Target], Predicted]
    plan: Callable[[Program, Decisions, Target, Settings], LaunchPlan]
    plan_type: type[LaunchPlan]
    pieces: Callable[[Any, HostBuilder], str]
    kernel: Callable[[Any], GemmKernel]
    verify: Callable[[Any], None]
    on_request: Callable[[Program, KernelFacts, Target], str] = lambda program, facts, target: ""
    lead: Callable[[Program, KernelFacts], Lead] = lambda program, facts: PREDICTABLE_LEAD


def _verify_gemm(plan: CutePlan) -> None:
    verify(plan.roles)


def _matmul_on_request(program: Program, facts: KernelFacts, target: Target) -> str:
    """Return a reason for the parts of matmuls that have not run on a GPU."""
    part = unproven(program, target)
    return f"matmuls {part} run on request, {_REQUEST}" if part else ""


GENERAL_MATMULS, GENERAL_ATTENTION = 1.06, 1.15
"""Factors of the general backend's predicted times of matmuls and of attention, with which the leads below were timed.
Predictions for fewer rows than ``WGMMA_ROWS`` are as they were (measurement ``staged_leads``)."""


SEQUENCE_LEAD, LEAST_LOOPS = Lead(ratio=0.97, corrected=1.35), 4
"""The same for products of so many loops or more that follow each other and differ by more than constants. The general
backend fills a pipeline in each; here one loop has all steps (measurement ``loops_in_sequence``)."""


COPIES_LEAD = Lead(ratio=0.9)
"""The time of warps that copy operands through registers is one number for all types and strides. Predictions of operands
in memory, and of sums along K, are up to a tenth too low, without strided outputs
(benchmarks/results/cute/nvidia-h200-products.jsonl, nvidia-h200-parts.jsonl)."""


STORED_LEAD = Lead(ratio=0.9, saved_us=15.0)
"""The same where threads store the output, because TMA does not reach its rows. No next tile hides the stores of the last one
(biased_product in benchmarks/results/nvidia-h200-mechanisms.json, odd_outputs_8 in cute/nvidia-h200-parts.jsonl)."""


CONVERTED_LEADS = (Lead(ratio=0.95), Lead(ratio=0.9, corrected=1.2))
"""The same where the warps that multiply convert weights, for up to half of ``FEW_ROWS`` and for more. Stores of few rows are
short. For few rows predictions of both backends are a tenth too high; for more those of the general one are a fifth too low
(benchmarks/results/cute/nvidia-h200-few-rows.jsonl)."""


UNPACKED_LEADS = (Lead(ratio=0.6), Lead(corrected=1.5))
"""The same for 4-bit numbers that a kernel before unpacks, for up to ``MANY_ROWS`` and for more. For many the general
backend's predictions are a third too low, and those here a tenth too high
(nibbles in benchmarks/results/cute/nvidia-h200-parts.jsonl)."""
FEW_UNPACKED_LEAD = Lead(ratio=0.6, corrected=0.3)
"""The same for rows of one tile. Such a kernel moves nine times the bytes of the weights, and the general backend's times
are over-predicted by up to four times (nibbles_few_rows there, grouped_int4_weights in nvidia-h200-unseen.json)."""
MANY_ROWS = 1024
"""Rows of a matmul next to which the time of unpacking its weights is small."""


GATED_GROUPS_LEAD = Lead(ratio=0.97, corrected=1.4)
"""The same for two products of groups of few rows, for which the general backend takes 1.7 times as long as it predicts
(gated in benchmarks/results/cute/nvidia-h200-few-tiles.jsonl)."""


BLOCKS_LEAD = Lead(corrected=0.85)
"""The same where blocks of rows and columns are reduced, for which the general backend takes less than it predicts
(measurement ``product_pairs``)."""


def _matmul_lead(program: Program, facts: KernelFacts) -> Lead:
    shape = shape_of(facts)
    if isinstance(shape, str):
        return PREDICTABLE_LEAD
    if known_product(program).problem.epilogue.rows_of_blocks:
        return BLOCKS_LEAD
    if shape.problem.groups is not None and shape.problem.outputs_of("strided"):
        return STORED_LEAD
    if shape.problem.groups is not None and shape.products > 1:
        return GATED_GROUPS_LEAD
    if not (shape.problem.copied or shape.problem.summed):
        several = len(facts.matmuls) >= LEAST_LOOPS * shape.products and not facts.fusible_axes
        return SEQUENCE_LEAD if several else PREDICTABLE_LEAD
    if can_convert(shape.problem) and shape.problem.n <= FEW_ROWS:
        return CONVERTED_LEADS[2 * shape.problem.n > FEW_ROWS]
    if any(source.is_interleaved for each in known_product(program).problem.copied for source in each.sources):
        few = shape.problem.m <= WGMMA_ROWS
        return FEW_UNPACKED_LEAD if few else UNPACKED_LEADS[shape.problem.m >= MANY_ROWS]
    return STORED_LEAD if any(each.kind == "strided" for each in shape.problem.outputs) else COPIES_LEAD


def _over_all_of_k(program: Program) -> Program:
    """Return a program without messages, parts of K and ends of K by tiles or groups."""
    whole = with_joined_dimensions(with_whole_k(with_parts(plain(program)).program).program)
    return without_groups_of_k(without_ends(whole.program).program).program


def _described(program: Program) -> Program:
    """Return the program whose facts describe a matmul: with all columns of K, of pairs and of unpacked weights."""
    whole = of_all_columns(program)
    return with_column_pairs(
        with_nibbles(with_pairs(_over_all_of_k(program)).program).program if whole is None else whole
    )


MATMUL = Shape(
    name="matmul",
    claims=lambda program: True,
    describes=lambda facts: True,
    refusal=refusal,
    multiples=multiples,
    ranges=ranges,
    keys=own_keys,
    described=_described,
    predict=predict,
    plan=build_plan,
    plan_type=CutePlan,
    pieces=gemm_pieces,
    kernel=gemm_kernel_of,
    verify=_verify_gemm,
    on_request=_matmul_on_request,
    lead=_matmul_lead,
)
"""One matmul with an epilogue. It claims every program, since its refusals say what is missing."""


def _verify_chained(plan: ChainedPlan) -> None:
    verify(plan.roles_before)
    verify(plan.roles)


def _chained_on_request(program: Program, facts: KernelFacts, target: Target) -> str:
    """Return a reason for products in sequence on Blackwell, and for the parts of either that have not run on a GPU."""
    if unit_of(target) != "wgmma":
        return f"products in sequence, of a middle in the workspace, run on request, {_REQUEST}"
    parts = (unproven(each, target) for each in programs_of(program))
    return next((f"matmuls {part} run on request, {_REQUEST}" for part in parts if part), "")


CHAINED_LEADS = Lead(ratio=0.78), Lead(ratio=0.9)
"""The time of the first matmul, of few columns, is not predicted (low_rank in
benchmarks/results/cute/nvidia-h200-parts.jsonl). For fewer rows than ``WGMMA_ROWS``, the general backend takes less than it
predicts (measurement ``staged_leads``)."""

CHAINED = Shape(
    name="products in sequence",
    claims=is_chained,
    describes=lambda facts: False,
    refusal=chained_refusal,
    multiples=chained_multiples,
    keys=chained_keys,
    described=lambda program: MATMUL.described(main_of(program)),
    predict=predict,
    plan=build_chained,
    plan_type=ChainedPlan,
    pieces=gemm_pieces,
    kernel=chained_kernel_of,
    verify=_verify_chained,
    on_request=_chained_on_request,
    lead=lambda program, facts: CHAINED_LEADS[_has_many_rows(facts)],
)
"""Two matmuls, of which the last one multiplies the result of the first. Facts are those of the last one."""


def _rows_on_request(program: Program, facts: KernelFacts, target: Target) -> str:
    return rows_on_request(program, target, _REQUEST)


ROWS = Shape(
    name="rows",
    claims=rows.reads_rows,
    describes=describes_rows,
    refusal=rows.refusal,
    multiples=rows.multiples,
    ranges=rows.ranges,
    keys=row_keys,
    described=rows.with_tiles,
    predict=predict_rows,
    plan=rows.build_plan,
    plan_type=RowsPlan,
    pieces=rows.row_pieces,
    kernel=row_kernel_of,
    verify=verify_rows,
    on_request=_rows_on_request,
    lead=lambda program, facts: rows_lead(program),
)
"""Rows that a cluster reads once, reduces and maps, without a matmul."""


def _attention_kernel(plan: CuteAttentionPlan) -> GemmKernel:
    name, program = plan.kernel_names[0], plan.roles
    return umma_kernel(name, program) if isinstance(program, UmmaProgram) else attention_kernel(name, program)


def _predict_attention(facts: KernelFacts, decisions: Decisions, target: Target) -> Predicted:
    of_unit = predict_umma if target.has("tcgen05") else predict_attention
    return of_unit(facts, decisions, target)


def _verify_attention(plan: CuteAttentionPlan) -> None:
    verify_attention(plan.roles)


def _attention_on_request(program: Program, facts: KernelFacts, target: Target) -> str:
    """Return a reason for attention that has not run on a GPU."""
    return f"attention on tcgen05 runs on request, {_REQUEST}" if target.has("tcgen05") else ""


PAGES_LEAD = Lead(corrected=1.3)
"""The general backend's loads of pages take a third longer than it predicts, which is the time of contiguous keys
(pages in benchmarks/results/cute/nvidia-h200-attention.jsonl)."""


WEIGHTS_LEAD = Lead(corrected=1.07)
"""Without a softmax, the ratio of measured to predicted times is by so much larger in the general backend (measurement
``weights_without_softmax``)."""


RANDOM_LEAD = Lead(corrected=1 / GENERAL_ATTENTION)
"""The general backend's time of random numbers is predicted as it is
(dropout_times in benchmarks/results/cute/nvidia-h200-attention.jsonl)."""


def _attention_lead(program: Program, facts: KernelFacts) -> Lead:
    problem = known_attention(program).problem
    if problem.k.pages is not None:
        return PAGES_LEAD
    if problem.draws:
        return RANDOM_LEAD
    return PREDICTABLE_LEAD if problem.softmax else WEIGHTS_LEAD


ATTENTION = Shape(
    name="attention",
    claims=has_attention,
    describes=describes,
    refusal=attention_refusal,
    multiples=attention_multiples,
    ranges=attention_ranges,
    keys=attention_keys,
    described=lambda program: with_joined_loops(with_whole_keys(program).program),
    predict=_predict_attention,
    plan=build_attention,
    plan_type=CuteAttentionPlan,
    pieces=attention_pieces,
    kernel=_attention_kernel,
    verify=_verify_attention,
    on_request=_attention_on_request,
    lead=_attention_lead,
)
"""Two chained matmuls with an online softmax between them."""


def _backward_kernel(plan: CuteBackwardPlan) -> GemmKernel:
    name, program = plan.kernel_names[0], plan.roles
    if isinstance(program, UmmaBackwardProgram):
        return umma_backward_kernel(name, program)
    return backward_kernel(name, program)


def _predict_backward(facts: KernelFacts, decisions: Decisions, target: Target) -> Predicted:
    of_unit = predict_umma_backward if target.has("tcgen05") else predict_backward
    return of_unit(facts, decisions, target)


def _backward_on_request(program: Program, facts: KernelFacts, target: Target) -> str:
    """Return a reason for gradients that have not run on a GPU."""
    if target.has("tcgen05"):
        return f"gradients of attention on tcgen05 run on request, {_REQUEST}"
    problem = known_backward(program).problem
    if problem.spans_keys and any(source.dtype.startswith("int") for source in problem.formula.sources):
        return f"gradients of rows that integers of streamed rows hide as well run on request, {_REQUEST}"
    if any(not is_known(each.target.pitches[1]) for each in problem.loop_outputs):
        return f"numbers that the loop stores with strides that launches pass run on request, {_REQUEST}"
    return ""


def _verify_backward(plan: CuteBackwardPlan) -> None:
    verify_backward(plan.roles)


WIDE_HEAD, WIDE_GRADIENTS_LEAD = 128, Lead(corrected=1.2)
"""For gradients of heads of so many dimensions the general backend takes a fifth longer than it predicts, next to heads of 64
(sequence_times in benchmarks/results/cute/nvidia-h200-attention.jsonl)."""


def _backward_lead(program: Program, facts: KernelFacts) -> Lead:
    wide = known_backward(program).problem.owned[0].columns >= WIDE_HEAD
    return WIDE_GRADIENTS_LEAD if wide else PREDICTABLE_LEAD


BACKWARD = Shape(
    name="gradients of attention",
    claims=has_backward,
    describes=describes_backward,
    refusal=backward_refusal,
    multiples=backward_multiples,
    keys=backward_keys,
    predict=_predict_backward,
    plan=build_backward,
    plan_type=CuteBackwardPlan,
    pieces=backward_pieces,
    kernel=_backward_kernel,
    verify=_verify_backward,
    on_request=_backward_on_request,
    lead=_backward_lead,
)
"""Gradients of attention: two products of a tile with a block, and sums of what is computed from them @ the block."""

SHAPES: tuple[Shape, ...] = (BACKWARD, ATTENTION, ROWS, CHAINED, MATMUL)
"""Most specific first; the last one claims every program."""


def lead_of(program: Program, facts: KernelFacts) -> Lead:
    """Return the lead of a kernel over the general backend."""
    shape = shape_of_program(program)
    lead = shape.lead(program, facts)
    factor = GENERAL_ATTENTION if shape is ATTENTION else GENERAL_MATMULS if _has_many_rows(facts) else 1.0
    return replace(lead, corrected=lead.corrected * factor)


def _has_many_rows(facts: KernelFacts) -> bool:
    if not facts.matmuls:
        return False
    shape = shape_of(facts)
    return isinstance(shape, str) or min(shape.problem.m, shape.problem.n) >= WGMMA_ROWS


def shape_of_program(program: Program) -> Shape:
    """Return the shape that compiles or refuses a program: with messages to other GPUs it is a matmul."""
    if meets_other_gpus(program):
        return MATMUL
    return next(shape for shape in SHAPES if shape.claims(program))


def shape_of_facts(facts: KernelFacts) -> Shape:
    return next(shape for shape in SHAPES if shape.describes(facts))


def shape_of_plan(plan: LaunchPlan) -> Shape:
    return next(shape for shape in SHAPES if isinstance(plan, shape.plan_type))
