"""The operands of the matmuls of attention: loads of q, k and v, queries that are computed, and rows of gradients that a kernel
before computes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from ....._compiler.ir.grammar import DotAttrs, Op, Operand, PointwiseAttrs, ReduceAttrs, Value
from ....._shapes import Expr, dtype_name, hint_of
from ....._support.records import dataclass, replace
from ...plan.attention.launch import strides_of
from ...plan.attention.numbers import is_known
from ...plan.attention.operands import Matrix, Source
from ...plan.attention.records import Formula, ScoreProblem
from ...plan.attention.row_values import RowValues, check_row_values
from ...plan.epilogue import Constant
from ...plan.refusal import Refusal
from ..chain import ROUNDED
from ..names import name_of
from ..numbers import dividing
from .formula import FormulaReader
from .loops import Loops
from .places import access_of, check_reach
from .values import is_widening, name_of_op

QUERY = "query"


Operands = Sequence[tuple[Matrix, int, str]]
"""Matrices, with the ids and names of their tensors."""


def operands_of(loops: Loops, queries: Queries) -> tuple[Operands, dict[str, tuple[Matrix, int, str]]]:
    """Return the matrices of q, k and v. Then those with the last columns of q and k, by ``q_rest`` and ``k_rest``."""
    for dot in (*loops.terms, loops.second):
        check_dot(dot)
    if len(loops.terms) > 1 and any(dot.result.dtype != torch.float32 for dot in loops.terms):
        raise Refusal("scores that are sums of matmuls in other types than float32 are not implemented")
    of_keys = [loaded(loops, dot.operands[1], "k") for dot in loops.terms]
    q = [_operand(loops, load, loops.queries, "queries") for load in queries.loads]
    k = [_operand(loops, load, loops.keys, "keys") for load in of_keys]
    v = _operand(loops, loaded(loops, loops.second.operands[1], "v"), loops.keys, "keys", may_turn=True)
    (q_parts, k_parts) = _joined(q, k, v[1])
    found = [q_parts[0], k_parts[0], v]
    rests = {f"{name}_rest": rest for name, (_, *others) in (("q", q_parts), ("k", k_parts)) for rest in others}
    scores = loops.blocks(loops.first.result)
    if scores != (loops.queries, loops.keys) or loops.blocks(loops.second.result)[:1] != (loops.queries,):
        raise Refusal("scores of a tile of queries with a tile of keys, in this order, are implemented")
    return found, rests


def _operand(loops: Loops, load: Op, block: int, what: str, may_turn: bool = False) -> tuple[Matrix, int, str]:
    """Return the matrix that a load reads, with the id and the name of its tensor."""
    access = access_of(loops, load)
    if block == loops.queries and not access.rows and access.extents[block] != loops.extent(block):
        raise Refusal(f"{access.tensor.name} has {access.extents[block]} queries, of which tiles cover another number")
    matrix = matrix_of(loops, load, block, what, spanned=True, may_turn=may_turn)
    return matrix, access.tensor.id, access.tensor.name


def _joined(q: Operands, k: Operands, values: int) -> list[Operands]:
    """Return Q and K with the columns of all terms of the scores: adjacent ones of one tensor, or those of a second tensor
    as well. The tensor ``values`` of V comes first. Raises ``Refusal``."""
    at = sorted(range(len(k)), key=lambda at: (k[at][1] != values, int(k[at][0].offset)))
    return [_columns([parts[each] for each in at]) for parts in (q, k)]


def _columns(parts: Operands) -> Operands:
    """Return one matrix with the columns of all parts, and that of the last ones if these are in another tensor."""
    (first, tensor, name), *others = parts
    for matrix, other, rest in others:
        columns = first.columns + matrix.columns
        if other == tensor and is_known(matrix.offset):
            if matrix != replace(first, offset=first.offset + first.columns, columns=matrix.columns):
                raise Refusal(
                    f"scores that are sums of matmuls of dimensions of {name} that are not adjacent, or not in the order of"
                    " those of the keys, are not implemented"
                )
            first = replace(first, columns=columns)
            continue
        if (matrix.row, matrix.pages, matrix.turned) != (first.row, first.pages, first.turned):
            raise Refusal(f"scores that are sums of matmuls of other rows of {name} than of {rest} are not implemented")
        return [(replace(first, columns=columns), tensor, name), (matrix, other, rest)]
    return [(first, tensor, name)]


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
        self.loads = tuple(self._loads(loops))

    def _loads(self, loops: Loops) -> Iterator[Op]:
        """Return the loads of the queries of each term of the scores, and set their formula."""
        if len(loops.terms) > 1:
            yield from (loaded(loops, dot.operands[0], "q") for dot in loops.terms)
            return
        (dot,) = loops.terms
        value = dot.operands[0]
        made = loops.stripped(value)
        if name_of_op(made) == "" or (made is not None and name_of_op(made) == "cast" and is_widening(made)):
            yield loaded(loops, value, "q")
            return
        load = self._load_of(loops, value)
        self.reader.known[load.result.number] = QUERY
        assert isinstance(value, Value)
        if value.dtype != load.result.dtype:
            raise Refusal(
                f"queries in {dtype_name(value.dtype)} of a tensor in {dtype_name(load.result.dtype)} are not"
                " implemented; round them to the tensor's type, or scale the scores instead"
            )
        found = self.reader.read(value)
        formula, numbers = self.reader.formula({QUERY: found})
        if any(source.kind != "number" for source in formula.sources) or isinstance(found, Constant):
            raise Refusal("queries that are computed with other tensors are not implemented")
        self.formula = replace(formula, value=numbers[QUERY])
        yield load

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
        found = 1.0 if score.instructions else factor_of(self.formula)
        if found != 1.0:
            self.formula = Formula()
        return found


def factor_of(formula: Formula) -> float:
    """Return the power of two that a formula multiplies by, or 1 for another formula."""
    made = formula.instructions
    if not made or made[0].op != "mul" or any(each.op not in ROUNDED.values() for each in made[1:]):
        return 1.0
    numbers = [float(each.text) for each in made[0].arguments if isinstance(each, Constant)]
    return numbers[0] if len(numbers) == 1 and numbers[0] > 0 and math.frexp(numbers[0])[0] == 0.5 else 1.0


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows that a matmul of gradients multiplies: ``factor`` times a matrix, whose tensor ``load`` loads or is computed from."""

    load: Op
    matrix: Matrix
    factor: float = 1.0


class ComputedRows:
    """Values of rows that a kernel before that of gradients computes from loads of the same rows."""

    def __init__(self, loops: Loops) -> None:
        self.loops = loops
        self.found: dict[int, RowValues] = {}
        """Values by the number of the program's value."""
        self.loads: dict[int, tuple[Op, ...]] = {}
        """What each is computed from."""

    @property
    def tensors(self) -> tuple[int, ...]:
        """Ids of the tensors that all of them are computed from."""
        return tuple(self.loops.tensor(load).id for loads in self.loads.values() for load in loads)

    def rows(self, value: Operand, block: int) -> Rows:
        """Return the rows of ``block`` that an operand is: loaded ones, multiples by powers of two of them, or computed ones.
        Raises ``Refusal``."""
        made = self.loops.stripped(value)
        if made is None or made.kind != "pointwise" or (name_of_op(made) == "cast" and is_widening(made)):
            load = loaded(self.loops, value, "an operand")
            return Rows(load=load, matrix=matrix_of(self.loops, load, block, "rows"))
        values = self._values(made.result, block)
        (load, *others) = self.loads[made.result.number]
        factor = 1.0 if others else factor_of(values.formula)
        if factor != 1.0:
            del self.found[made.result.number], self.loads[made.result.number]
            return Rows(load=load, matrix=values.reads[0], factor=factor)
        if values.dtype != values.reads[0].dtype:
            raise Refusal(
                f"rows in {values.dtype} that are computed from {values.reads[0].name} in {values.reads[0].dtype}; round them"
                " to its type"
            )
        return Rows(load=load, matrix=values.matrix)

    def sum_of(self, op: Op) -> tuple[Source, int]:
        """Return the source that a sum over the dimensions of a head is, and the tensor that a launch passes in its place.
        Raises ``Refusal``."""
        name, blocks = op.attributes(ReduceAttrs).name, self.loops.blocks(op.result)
        if name != "sum" or len(blocks) != 1 or blocks[0] not in (self.loops.queries, self.loops.keys):
            raise Refusal(f"{name} in gradients, other than a sum over the dimensions of a head, is not implemented")
        (block,) = blocks
        assert block is not None
        values = self._values(op.operands[0], block, op.result)
        kind = "query" if block == self.loops.queries else "key"
        return values.source(kind), self.loops.tensor(self.loads[op.result.number][0]).id  # type: ignore[arg-type]

    def _values(self, value: Operand, block: int, total: Value | None = None) -> RowValues:
        """Return the formula of rows of ``block``, or with ``total`` of its sums."""
        assert isinstance(value, Value)
        number = value.number if total is None else total.number
        if number in self.found:
            return self.found[number]
        loads = self._loads(value)
        matrices = tuple(matrix_of(self.loops, load, block, "rows") for load in loads)
        for load in loads:
            access = access_of(self.loops, load)
            check_reach(access)
            if not self.loops.numbers.at_most(self.loops.extent(block), access.extents[block]):
                raise Refusal(f"{access.tensor.name} has fewer rows than the loop that computes with them")
        columns = [each for each in self.loops.blocks(loads[0].result) if each != block]
        starts = tuple(f"rows_{at}" for at in range(len(loads)))
        reader = FormulaReader(replace(self.loops, queries=block), starts, columns[0], "computed rows")
        reader.known |= {load.result.number: start for load, start in zip(loads, starts, strict=True)}
        found = reader.read(value)
        formula, numbers = reader.formula({"value": found})
        if formula.sources or isinstance(found, Constant) or len({each.columns for each in matrices}) > 1:
            raise Refusal(
                f"rows of {matrices[0].name} that are computed with other numbers than rows of as many columns"
            )
        axes = sorted({axis for each in matrices for mode in each.modes for axis in mode.at.coordinates})
        values = RowValues(
            name=f"rows_{len(self.found)}",
            reads=matrices,
            formula=replace(formula, value=numbers["value"]),
            sums=total is not None,
            axes=tuple(axes),
            heads=tuple(self._size(axis) for axis in axes),
            rows=self.loops.extent(block),
            columns=matrices[0].columns,
            dtype="float32" if total is not None else dtype_name(value.dtype),
        )
        check_row_values(values)
        self.found[number], self.loads[number] = values, loads
        return values

    def _size(self, axis: int) -> int:
        return self.loops.extent(self.loops.heads[axis])

    def _loads(self, value: Value) -> tuple[Op, ...]:
        """Return the loads of rows and columns that a value is computed from, in order."""
        waiting, found = [value], dict[int, Op]()
        while waiting:
            made = self.loops.stripped(waiting.pop())
            if made is not None and made.kind == "load" and len(self.loops.blocks(made.result)) > 1:
                found[made.number] = made
            elif made is not None and made.kind == "pointwise":
                waiting += [each for each in made.operands[::-1] if isinstance(each, Value)]
        if not found:
            raise Refusal("rows that are computed from other than rows of tensors are not implemented")
        return tuple(found.values())


def stored_keys(loops: Loops) -> int:
    """Return the keys that k and v have, or that their pages have. Raises ``Refusal``."""
    pairs = (*((dot, "k") for dot in loops.terms), (loops.second, "v"))
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
    access = access_of(loops, loaded(loops, loops.terms[0].operands[1], "k"))
    return tuple(table for _, table in access.pages.values())


def matrix_of(loops: Loops, op: Op, rows: int, what: str, spanned: bool = False, may_turn: bool = False) -> Matrix:
    """Return the matrix of a head whose rows are those of block ``rows``, or with ``spanned`` a span of them. With
    ``may_turn``, rows may be contiguous instead of columns. Raises ``Refusal``."""
    access = access_of(loops, op)
    if not spanned or (access.pages and rows != loops.keys):
        access.check_plain()
    if {*access.rows, *access.ends} - {rows}:
        raise Refusal(f"{access.tensor.name} is no matrix of all dimensions of {what}")
    others = [block for block in access.strides if block != rows]
    if rows not in access.strides or len(others) != 1:
        raise Refusal(f"{access.tensor.name} is no matrix of {what} for each head")
    (columns,) = others
    if not is_known(access.extents[columns]):
        raise Refusal(
            f"{access.tensor.name} has a number of dimensions of a head that is known only at launch; use hl.specialize on it"
        )
    turned = may_turn and access.strides[rows] == 1 and access.strides[columns] != 1
    contiguous = turned or access.strides[columns] == 1 or loops.require_one(access.strides[columns])
    if not contiguous and access.extents[columns] > 1:
        raise Refusal(
            f"{access.tensor.name} has a stride of {int(access.strides[columns])} along the dimensions of a head; it must be"
            " contiguous there"
        )
    return Matrix(
        name=name_of(access.tensor),
        dtype=dtype_name(access.tensor.dtype),
        columns=access.extents[columns],
        pitch=access.strides[columns if turned else rows],
        offset=access.offset,
        modes=access.modes,
        row=access.rows.get(rows),
        pages=access.pages[rows][0] if rows in access.pages else None,
        turned=turned,
    )


KINDS = (
    "number",
    "tile",
    "iota",
    "full",
    "load",
    "store",
    "pointwise",
    "reduce",
    "dot",
    "view",
    "mask",
    "for",
    "random",
)


def check_storage(loops: Loops, added: Sequence[Op] = ()) -> None:
    """Check that the program only loads and stores, but for what the loop has ``added``, and does not read what it writes. Raises
    ``Refusal``."""
    others = [op.kind for op in loops.program.walk() if op.kind not in KINDS and op not in added]
    if others:
        raise Refusal(f"{others[0]} in attention is not implemented")
    for op in added:
        accesses = [
            each for each in loops.program.walk() if each.kind in ("load", "store", "atomic") and each is not op
        ]
        if loops.tensor(op).storage in [loops.tensor(each).storage for each in accesses]:
            raise Refusal(f"{loops.tensor(op).name} is added to, and read or stored by the kernel as well")
    read = {loops.tensor(op).storage for op in loops.program.walk() if op.kind == "load"}
    for op in loops.program.walk():
        if op.kind == "store" and (loops.tensor(op).storage in read or op not in (*loops.root.body.ops, *added)):
            raise Refusal(f"{loops.tensor(op).name} is stored in the loop over keys, or read by the kernel as well")


def check_strides(loops: Loops, problem: ScoreProblem) -> None:
    """Check strides of arguments that only launches know: for the bound arguments, TMA takes them. Launches check the others.
    Raises ``Refusal``."""
    for matrix in problem.matrices:
        for name, multiple in strides_of([matrix], []).items():
            number = loops.numbers.expressions[name]
            known = isinstance(number, Expr) and all(
                leaf.args[0] in loops.program.host.symbols for leaf in number.leaves()
            )
            if known and dividing(multiple, number) is None:
                raise Refusal(
                    f"{matrix.name} has a stride or offset of {hint_of(number)} elements; TMA needs a multiple of {multiple}"
                )
