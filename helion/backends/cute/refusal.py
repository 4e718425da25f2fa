"""Limits of the backend on a target, checked before any code is generated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ... import exc
from ..._compiler.ir.grammar import NumberAttrs, Program
from ..._shapes import Expr, NeedsValue
from ...hardware import Target
from .bounds import smallest
from .lower.kernel import check_strides, known_product
from .lower.kernel import multiples as of_strides
from .lower.names import as_written
from .lower.rewrites.dimensions import with_joined_dimensions
from .plan.build import plan_gemm, unit_of
from .plan.copied import Copied
from .plan.finish import counts_rows
from .plan.operands import in_both_majors
from .plan.records import Choice, GemmProblem
from .plan.refusal import Refusal


def refusal(program: Program, target: Target) -> exc.Base | None:
    """Return why the backend cannot run a program on a target, or None.

    It takes programs that are one GEMM with an epilogue, on GPUs with wgmma or tcgen05, if some smallest tile has a
    plan.
    """
    reason: Refusal | None = None
    try:
        unit = unit_of(target)
        product = known_product(program)
        if product.problem.operand_dtype == "int8" and unit == "tcgen05" and not _multiplies_bytes(target):
            raise Refusal(
                f"matmuls of int8 are implemented where tcgen05 has instructions for them, unlike on {target}"
            )
        _check_tunables(program, product.batch_blocks)
        check_strides(product)
        fixed = [product.fixed.get(block) for block in product.blocks]
        for choice in smallest(product.problem, product.whole_rows, target, fixed):
            refused = _refused(product.problem, choice, target)
            if refused is None:
                return None
            reason = reason or refused
    except Refusal as error:
        reason = error
    except NeedsValue as error:
        reason = Refusal(f"a size that tiles depend on is known only when it runs ({error}); use hl.specialize")
    assert reason is not None
    return exc.CuteUnsupported(kernel=program.host.name, target=target, reason=as_written(program, reason))


def _multiplies_bytes(target: Target) -> bool:
    """Return whether int8 has at least the rate of 16-bit numbers, as with instructions of its own."""
    return target.matrix_tflops_for("int8") >= target.matrix_tflops_for("bfloat16")


def _check_tunables(program: Program, free: Sequence[int]) -> None:
    """Check that the kernel's own tunables size blocks alone that have no tiles here. Raises ``Refusal``."""
    numbers: list[object] = [block.size for block in program.blocks if block.id not in free]
    numbers += [block.extent for block in program.blocks]
    numbers += [number for tensor in program.tensors for number in (*tensor.shape, *tensor.strides)]
    numbers += [op.attrs.expr for op in program.walk() if isinstance(op.attrs, NumberAttrs)]
    used = any(leaf.op == "tunable" for number in numbers if isinstance(number, Expr) for leaf in number.leaves())
    if program.tunables and (used or not free):
        raise Refusal(f"it has tunables of its own: {', '.join(name for name, _ in program.tunables)}")


MOST_RUN_CHAIN = 5
"""Row reductions, each of which depends on the one before, that have run on a GPU."""


def unproven(program: Program, target: Target) -> str:
    """Return the first part of a GEMM that has not run on a GPU, which needs a request; or an empty string.

    Hopper has run all but copies for each launch (cute/nvidia-h200-parts.jsonl, cute/nvidia-h200-products.jsonl,
    cute/nvidia-h200-row-counts.jsonl, measurement ``product_forms``, measurement ``product_forms_again`` and
    measurement ``product_forms_timed``).
    """
    product = known_product(program)
    given = [program.tensors[at] for at in product.arguments if isinstance(at, int)]
    unaligned = [tensor.name for tensor in given if not tensor.aligned]
    if unaligned:
        part = f"of {unaligned[0]}, which may begin between multiples of 16 bytes and is copied for each launch,"
    elif unit_of(target) == "tcgen05" and with_joined_dimensions(program).blocks:
        part = "of which one dimension is two of the program"
    elif unit_of(target) == "tcgen05" and product.depth is not None and _gives_indices(product.problem):
        part = "over all of K at once, with indices of minima or maxima,"
    else:
        parts = _not_run_on_blackwell(product.problem) if unit_of(target) == "tcgen05" else ()
        part = next((part for holds, part in parts if holds), "")
    return str(as_written(program, Refusal(part)))


def _gives_indices(problem: GemmProblem) -> bool:
    return any(made.op == "row_first" for made in problem.epilogue.instructions)


def _lie_between(problem: GemmProblem) -> bool:
    """Return whether matrices of a batch have elements between neighbors of another one."""
    sides = (
        (min(each.pitch, each.column_pitch), problem.batch_pitches(problem.label_of(each))) for each in problem.matrices
    )
    return problem.batch is not None and any(0 < step < least for least, steps in sides for step in steps)


def _not_run_on_blackwell(problem: GemmProblem) -> Iterator[tuple[object, str]]:
    """Yield parts that have not run on Blackwell, each with whether a GEMM has it."""
    picked = [each.sources[0].name for each in problem.copied if each.lines is not None]
    picked += [each.name for each in problem.outputs if each.lines is not None]
    strided = [each.name for each in problem.epilogue.of_kind("strided")]
    strided += [each.name for each in problem.outputs_of("strided")]
    yield problem.scales is not None and problem.scales.micro, "in a microscaling format"
    yield counts_rows(problem), "of rows in memory that the launch counts"
    yield problem.batch is not None and problem.epilogue.reduces_rows, "whose rows are reduced in a batch"
    yield (
        problem.scales is not None and problem.batch is not None,
        "of a batch, or of groups, with scales of blocks of K",
    )
    yield problem.groups is None and _lie_between(problem), "of a batch whose outputs lie between each other's elements"
    yield problem.summed, "next to sums along K"
    yield problem.epilogue.in_pairs, "over pairs of neighboring columns"
    yield picked, f"with lines of {''.join(picked[:1])} that an index picks"
    yield problem.groups, f"over groups of rows by {'' if problem.groups is None else problem.groups.name}"
    yield _has_several_products(problem), "of several products that are stored separately, or of more than two,"
    yield problem.batch is not None and problem.batch.outer, "in a batch of several dimensions"
    yield any(problem.starts), "of operands that begin within a tensor"
    yield problem.terms, "of several terms"
    yield max(problem.epilogue.levels) > MOST_RUN_CHAIN, f"of more than {MOST_RUN_CHAIN} dependent reductions of a row"
    yield problem.operand_dtype == "int8", "of int8"
    yield any(each.adds for each in problem.outputs), "that are added to memory"
    yield in_both_majors(problem), f"whose operand {_first(problem.copied)} of 8 bits is not contiguous along K"
    yield problem.copied, f"whose operand {_first(problem.copied)} is copied by warps"
    yield strided, f"whose matrix {''.join(strided[:1])} has strides that TMA cannot take"
    yield any(each.divided for each in problem.outputs), "whose output has rows or columns in parts"
    yield any(each.turned for each in problem.outputs), "of few rows, whose output TMA stores transposed,"
    yield problem.epilogue.of_kind("uniform"), "with random numbers in the epilogue"
    yield problem.epilogue.of_kind("integers"), "with integers that are added in int32"
    groups = None if problem.ends is None else problem.ends.groups
    yield groups, f"over groups of K by {'' if groups is None else groups.name}"
    yield problem.ends, "whose K ends with tiles"


def _first(copied: Sequence[Copied]) -> str:
    return "".join(each.sources[0].name for each in copied[:1])


def _has_several_products(problem: GemmProblem) -> bool:
    """Return whether there are more matmuls of one A than two, or outputs without the sums of the first of two."""
    products = len(problem.epilogue.of_kind("product"))
    of_first = [True, *(False for _ in problem.epilogue.operands)]
    for made in problem.epilogue.instructions:
        of_first.append(any(of_first[x] for x in made.arguments if isinstance(x, int)))
    return products > 1 or (products == 1 and not all(of_first[output.value] for output in problem.outputs))


def multiples(program: Program) -> dict[str, int]:
    """Return divisibility assumptions about host numbers that generated code depends on; none for refused programs."""
    try:
        return of_strides(known_product(program))
    except (Refusal, NeedsValue):
        return {}


def ranges(program: Program) -> dict[str, range]:
    """Return the values of host numbers that generated code is for; none for refused programs."""
    try:
        return known_product(program).ranges
    except (Refusal, NeedsValue):
        return {}


def _refused(problem: GemmProblem, choice: Choice, target: Target) -> Refusal | None:
    try:
        plan_gemm(problem, choice, target)
    except Refusal as error:
        return error
    return None
