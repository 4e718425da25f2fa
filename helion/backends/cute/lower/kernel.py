"""From a program and the decisions of a config to the plan of its kernel."""

from __future__ import annotations

import dataclasses

from .... import exc
from ...._compiler.host.analysis import overwritten
from ...._compiler.ir.grammar import Program
from ...._shapes import Expr
from ....autotuner.decisions import Decisions
from ....hardware import Target
from ....settings import Settings
from ..plan.build import plan_gemm
from ..plan.kernel import CutePlan
from ..plan.records import Batch
from ..plan.refusal import Refusal
from ..settle import choice_of
from .batch import without_batch
from .product import Product, product_of

KEPT = 64
_PRODUCTS: dict[int, tuple[Program, Product]] = {}


def known_product(program: Program) -> Product:
    """``product_of``, once per program, which is told by its identity: hashing one takes milliseconds. Raises ``Refusal``."""
    known = _PRODUCTS.get(id(program))
    if known is None or known[0] is not program:
        if len(_PRODUCTS) >= KEPT:
            _PRODUCTS.clear()
        known = _PRODUCTS[id(program)] = (program, _product(program))
    return known[1]


def _product(program: Program) -> Product:
    batched = without_batch(program)
    product = product_of(batched.program)
    if batched.block is None:
        return product
    if len(product.outputs) > 1:
        raise Refusal("several outputs of products side by side are not implemented")
    a, b, d, *operands = (0 if isinstance(at, Expr) else batched.strides.get(at, 0) for at in product.arguments)
    if batched.size > 1 and not d:
        raise Refusal("all products of the batch are stored in the same place")
    batch = Batch(size=batched.size, a=a, b=b, d=d, operands=tuple(operands)) if batched.size > 1 else None
    return dataclasses.replace(
        product, problem=dataclasses.replace(product.problem, batch=batch), batch_block=batched.block
    )


def build_plan(program: Program, decisions: Decisions, target: Target, settings: Settings) -> CutePlan:
    """Raises ``exc.InvalidConfig`` for decisions that the plan refuses."""
    product = known_product(program)
    try:
        gemm = plan_gemm(product.problem, choice_of(decisions, product, target), target)
    except Refusal as refusal:
        raise exc.InvalidConfig(f"{program.host.name} on {target}: {refusal}.") from refusal
    return CutePlan(
        program=program,
        gemm=gemm,
        arguments=tuple(at if isinstance(at, Expr) else program.tensors[at] for at in product.arguments),
        sizes=tuple(decisions.sizes[block.id] for block in program.blocks),
        overwritten=tuple(dict.fromkeys(tensor.source for tensor in overwritten(program, program))),
        origin_lines=settings.output_origin_lines,
    )
