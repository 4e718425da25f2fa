"""Limits of the backend on a target, checked before any code is generated."""

from __future__ import annotations

from collections.abc import Sequence

from ... import exc
from ..._compiler.ir.grammar import NumberAttrs, Program
from ..._shapes import Expr, NeedsValue
from ...hardware import Target
from .bounds import smallest
from .lower.kernel import check_strides, known_product
from .lower.kernel import multiples as of_strides
from .lower.names import as_written
from .plan.build import plan_gemm, unit_of
from .plan.epilogue import MAX_PRODUCTS
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
        reason = Refusal(f"a size that tiles depend on is known only when it runs ({error})")
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


def unproven(program: Program, target: Target) -> str:
    """Return the first part of a GEMM that has not run on a GPU, which needs a request; or an empty string.

    Hopper has run copies of A and B, strided outputs, TF32, int8, windows, and additions to fp32. It has run up to two
    products of groups of rows, and one of picked rows and to such. It has run batches of several dimensions, sums of
    products, sums along K, and three products with an output each (cute/nvidia-h200-parts.jsonl,
    cute/nvidia-h200-products.jsonl).
    """
    problem = known_product(program).problem
    proven = unit_of(target) == "wgmma"
    ran = proven and not problem.epilogue.of_kind("product")
    copied = [each for each in problem.copied if not ran]
    several = bool(problem.epilogue.of_kind("product"))
    picked = [each.sources[0].name for each in problem.copied if each.lines is not None and (several or not proven)]
    picked += [each.name for each in problem.outputs if each.lines is not None and not proven]
    in_memory = [each for each in problem.copied if each.lines is None]
    strided = [each.name for each in problem.epilogue.of_kind("strided")]
    strided += [] if proven else [each.name for each in problem.outputs_of("strided")]
    part = ""
    given = [program.tensors[at] for at in known_product(program).arguments if isinstance(at, int)]
    unaligned = [tensor.name for tensor in given if not tensor.aligned]
    if unaligned:
        part = f"of {unaligned[0]}, which may begin between multiples of 16 bytes and is copied for each launch,"
    elif problem.summed and not proven:
        part = "next to sums along K"
    elif picked:
        part = f"with lines of {picked[0]} that an index picks"
    elif problem.groups is not None and (
        in_memory or any(each.lines is None for each in problem.outputs_of("strided"))
    ):
        part = f"over groups of rows by {problem.groups.name} with matrices that TMA does not move"
    elif problem.groups is not None and not (proven and len(problem.epilogue.of_kind("product")) <= 1):
        part = f"over groups of rows by {problem.groups.name}"
    elif _has_several_products(problem) and not (
        proven and len(problem.epilogue.of_kind("product")) < MAX_PRODUCTS - 1
    ):
        part = "of several products that are stored separately, or of more than two,"
    elif problem.batch is not None and problem.batch.outer is not None and not proven:
        part = "in a batch of several dimensions"
    elif any(problem.starts) and not proven:
        part = "of operands that begin within a tensor"
    elif problem.terms and not (proven and not problem.epilogue.of_kind("product")):
        part = "of several terms" if not proven else "of several terms in more than one accumulator"
    elif problem.operand_dtype == "int8" and not (ran and _is_plain(problem)):
        part = "of int8 other than by TMA and without scales of blocks,"
    elif any(
        output.adds and not (proven and (output.kind == "exact" or output.lines) and output.dtype == "float32")
        for output in problem.outputs
    ):
        part = "that are added to memory"
    elif copied:
        part = f"whose operand {copied[0].sources[0].name} is copied by warps"
    elif strided:
        part = f"whose matrix {strided[0]} has strides that TMA cannot take"
    return str(as_written(program, Refusal(part)))


def _is_plain(problem: GemmProblem) -> bool:
    """Return whether TMA loads A and B of all rows, without scales of blocks of K."""
    return not problem.copied and problem.scales is None and problem.groups is None


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


def _refused(problem: GemmProblem, choice: Choice, target: Target) -> Refusal | None:
    try:
        plan_gemm(problem, choice, target)
    except Refusal as error:
        return error
    return None
