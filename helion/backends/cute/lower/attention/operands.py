"""The operands of the two matmuls of attention: loads of q, k and v, and queries that are computed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from ....._compiler.ir.grammar import DotAttrs, Op, Operand, PointwiseAttrs, Value
from ....._shapes import Expr, dtype_name
from ...plan.attention.operands import Matrix
from ...plan.attention.records import Formula
from ...plan.epilogue import Constant
from ...plan.refusal import Refusal
from ..chain import ROUNDED
from .formula import FormulaReader
from .loops import Loops
from .places import access_of, matrix_of
from .values import is_widening, name_of_op

QUERY = "query"


def operands_of(loops: Loops, queries: Queries) -> Sequence[tuple[Matrix, int, str]]:
    """Return the matrices of q, k and v, with the ids and names of their tensors."""
    rows = (loops.queries, loops.keys, loops.keys)
    found = []
    for dot, at, block, what in zip((loops.first, loops.first, loops.second), (0, 1, 1), rows, "qkv", strict=True):
        check_dot(dot)
        load = queries.load if what == "q" else loaded(loops, dot.operands[at], what)
        rows_of = "queries" if what == "q" else "keys"
        matrix = matrix_of(loops, load, block, rows_of, spanned=True, may_turn=what == "v")
        access = access_of(loops, load)
        if what == "q" and not access.rows and access.extents[block] != loops.extent(block):
            raise Refusal(
                f"{access.tensor.name} has {access.extents[block]} queries, of which tiles cover another number"
            )
        found.append((matrix, access.tensor.id, access.tensor.name))
    scores = loops.blocks(loops.first.result)
    if scores != (loops.queries, loops.keys) or loops.blocks(loops.second.result)[:1] != (loops.queries,):
        raise Refusal("scores of a tile of queries with a tile of keys, in this order, are implemented")
    return found


def check_dot(dot: Op) -> None:
    attrs = dot.attributes(DotAttrs)
    if attrs.scaled is not None:
        raise Refusal("attention with microscaling formats is not implemented")
    if dot.result.dtype != torch.float32 and dot.result.dtype not in ROUNDED:
        raise Refusal(f"matmuls to {dtype_name(dot.result.dtype)} in attention are not implemented")


def loaded(loops: Loops, value: Operand, what: str) -> Op:
    """Return the load of an operand, through views and exact widening."""
    made = loops.stripped(value)
    if made is not None and made.attrs == PointwiseAttrs("cast"):
        source = made.operands[0]
        if isinstance(source, Value) and source.dtype in ROUNDED and made.result.dtype == torch.float32:
            made = loops.stripped(source)
    if made is None or made.kind != "load":
        raise Refusal(
            f"{what} that is computed from its tensor in the kernel is not implemented; scale the scores instead"
        )
    return made


class Queries:
    """The left operand of the scores: a load, or a formula of its elements and of numbers."""

    def __init__(self, loops: Loops) -> None:
        self.reader = FormulaReader(loops, (QUERY,), None, "queries")
        self.formula = Formula()
        value = loops.first.operands[0]
        made = loops.stripped(value)
        if name_of_op(made) == "" or (made is not None and name_of_op(made) == "cast" and is_widening(made)):
            self.load = loaded(loops, value, "q")
            return
        self.load = self._load_of(loops, value)
        self.reader.known[self.load.result.number] = QUERY
        assert isinstance(value, Value)
        if value.dtype != self.load.result.dtype:
            raise Refusal(
                f"queries in {dtype_name(value.dtype)} of a tensor in {dtype_name(self.load.result.dtype)} are not"
                " implemented; round them to the tensor's type, or scale the scores instead"
            )
        found = self.reader.read(value)
        formula, numbers = self.reader.formula({QUERY: found})
        if any(source.kind != "number" for source in formula.sources) or isinstance(found, Constant):
            raise Refusal("queries that are computed with other tensors are not implemented")
        self.formula = replace(formula, value=numbers[QUERY])

    def _load_of(self, loops: Loops, value: Operand) -> Op:
        """Return the one load of a tile that a value is computed from."""
        waiting, loads = [value], dict[int, Op]()
        while waiting:
            made = loops.stripped(waiting.pop())
            if made is not None and made.kind == "load" and loops.blocks(made.result):
                loads[made.number] = made
            elif made is not None:
                waiting += made.operands
        if len(loads) != 1:
            raise Refusal("queries that are computed from other than one tensor are not implemented")
        return next(iter(loads.values()))

    def factor(self, score: Formula) -> float:
        """Return a power of two that queries are multiplied by, for the scores instead, where these have no formula.
        That is exact; the formula of the queries is empty then."""
        made = self.formula.instructions
        if (
            score.instructions
            or not made
            or made[0].op != "mul"
            or any(each.op not in ROUNDED.values() for each in made[1:])
        ):
            return 1.0
        numbers = [float(each.text) for each in made[0].arguments if isinstance(each, Constant)]
        if len(numbers) != 1 or numbers[0] <= 0 or math.frexp(numbers[0])[0] != 0.5:
            return 1.0
        self.formula = Formula()
        return numbers[0]


def stored_keys(loops: Loops) -> int:
    """Return the keys that k and v have, or that their pages have. Raises ``Refusal``."""
    pairs = ((loops.first, "k"), (loops.second, "v"))
    loads = [access_of(loops, loaded(loops, dot.operands[1], what)) for dot, what in pairs]
    for access in loads:
        if loops.keys not in access.extents:
            raise Refusal(f"{access.tensor.name} is not indexed by a tile of keys, or has a single one")
    pages = [access.pages[loops.keys][0] for access in loads if access.pages]
    if pages:
        return loops.numbers.of(loops.numbers.number(pages[0].most) * pages[0].size, "size_keys")
    return loops.numbers.least([access.extents[loops.keys] for access in loads], "size_keys")


def table_of(loops: Loops) -> tuple[int | Expr, ...]:
    """Return the argument of a launch for the table of pages of k, if there is one."""
    access = access_of(loops, loaded(loops, loops.first.operands[1], "k"))
    return tuple(table for _, table in access.pages.values())
