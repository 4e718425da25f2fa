"""``backward_of``: turn a program with the gradients of attention into a ``BackwardProblem``.

A loop over blocks of streamed rows has two products with the tile's rows, from which left operands are computed. It carries
one or two sums of a left operand @ streamed rows::

    s = q @ k.T;  t = do @ v.T;  p = exp(s - lse);  dv += p.T @ do;  dk += (p * (t - delta)).T @ q

Left operands may be transposed, as here, where the loop is over queries. A loop over heads may be around that over rows. The
loop may also add the gradient of the streamed rows to memory: ``atomic_add(dq, rows, ds @ k)``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ....._compiler.ir.grammar import ForAttrs, Op, Operand, Program, Region, Value
from ....._shapes import Expr, Number, dtype_name, fixed_at
from ....._support.records import dataclass
from ...plan.attention.gradients import PRODUCTS, BackwardProblem, Gradient, check_backward
from ...plan.attention.numbers import is_known
from ...plan.attention.operands import Matrix
from ...plan.attention.records import AttentionOutput, Formula
from ...plan.epilogue import constant
from ...plan.refusal import Refusal
from ..names import name_of
from ..numbers import equal, size
from .addition import addition_of, loop_output, loop_outputs_of
from .band import covered_keys, key_span
from .formula import FormulaReader
from .lefts import EXPONENTIALS, Lefts, Visible
from .loops import Loops, check_axis, is_tile
from .numbers import LaunchNumbers
from .operands import ComputedRows, Rows, check_dot, check_storage, check_strides, matrix_of
from .outputs import unrounded
from .places import access_of, check_reach
from .ranges import check_range, key_range
from .values import name_of_op, same_value, terms_of

STARTS = tuple(f"product_{at}" for at in range(PRODUCTS))


@dataclass(frozen=True, kw_only=True)
class Backward:
    """The gradients of attention of a program; ``sources`` are ids of tensors or host expressions of other inputs."""

    problem: BackwardProblem
    loops: Loops
    tensors: tuple[int, ...]
    """Ids of owned and streamed matrices, and of outputs."""
    sources: tuple[int | Expr, ...]

    @property
    def arguments(self) -> tuple[int | Expr, ...]:
        """Arguments of a launch, in order."""
        return (*self.tensors, *self.sources)


@dataclass(frozen=True, kw_only=True)
class Carried:
    """A value that the loops carry: its initial value, parameter and result in the inner loop, and value after the loops."""

    initial: Operand
    param: Value
    result: Operand
    final: Value


def has_backward(program: Program) -> bool:
    """Return whether a loop has a dot that depends on two others through an exponential, and no reduction of a dot."""
    return any(_is_backward(op.regions[0]) for op in program.walk() if op.kind == "for")


def _is_backward(body: Region) -> bool:
    dots = [op for op in body.ops if op.kind == "dot"]
    if len(dots) <= PRODUCTS:
        return False
    reduced = [each for op in body.ops if op.kind == "reduce" for each in _before(body, op)]
    if any(op.kind == "dot" for op in reduced):
        return False
    for dot in dots:
        before = _before(body, dot, operands=1)
        exponential = any(name_of_op(op) in EXPONENTIALS for op in before)
        if exponential and sum(op.kind == "dot" for op in before) == PRODUCTS:
            return True
    return False


def _before(body: Region, op: Op, operands: int | None = None) -> list[Op]:
    """Return the ops of a loop's body that the first operands of an op depend on."""
    makers = {result.number: each for each in body.ops for result in each.results}
    waiting, found = [*op.operands[:operands]], dict[int, Op]()
    while waiting:
        value = waiting.pop()
        made = makers.get(value.number) if isinstance(value, Value) else None
        if made is not None and made.number not in found:
            found[made.number] = made
            waiting += made.operands
    return [*found.values()]


def backward_of(program: Program) -> Backward:
    """Return the gradients of attention that ``program`` computes. Raises ``Refusal``."""
    loops, number, carried = _loops(program)
    repeats = loops.numbers.of(number, "size_repeats")
    repeated = not is_known(repeats) or repeats > 1
    sums = [_sum(loops, each) for each in carried]
    addition = addition_of(loops)
    dots = [*sums, *([addition.dot] if addition else ())]
    products, computed = _products(loops, dots), ComputedRows(loops)
    owned, streamed = zip(*(_sides(loops, dot, computed) for dot in products), strict=True)
    lefts = _lefts(products, owned, streamed, computed)
    stored_in_loop = loop_outputs_of(loops)
    visible = Visible() if stored_in_loop else lefts.visible([dot.operands[0] for dot in sums])
    stored = loops.numbers.least([_extent(loops, each.load, loops.keys) for each in streamed], "size_keys")
    check_range(loops, visible.range)
    loaded_range, bounds = key_range(lefts.reader, visible.range)
    if key_span(loops, None) is not None:
        raise Refusal("gradients of attention in a loop to a number of rows that is loaded are not implemented")
    keys = covered_keys(loops, visible.band, stored)
    own, matrices = ([each.matrix for each in rows] for rows in (owned, streamed))
    formula, values = lefts.formula([dot.operands[0] for dot in dots], [unrounded(loops, op) for op in stored_in_loop])
    rights = [_right(loops, dot, matrices, computed) for dot in sums]
    outputs = _Outputs(loops, sums, carried, [factor for _, factor in rights])
    atomic = None if addition is None else addition.record(values[len(sums)], own, keys)
    outputs_of_loop = zip(stored_in_loop, values[len(dots) :], strict=True)
    problem = BackwardProblem(
        heads=tuple(loops.extent(block) for block in (loops.heads[:-1] if repeated else loops.heads)) or (1,),
        repeats=repeats,
        queries=loops.extent(loops.queries),
        keys=keys,
        band=visible.band,
        key_range=loaded_range,
        owned=tuple(own),
        streamed=tuple(matrices),
        formula=formula,
        gradients=tuple(
            Gradient(left=left, right=right, finish=finish, output=output)
            for left, (right, _), finish, output in zip(values, rights, outputs.formulas, outputs.records, strict=False)
        ),
        atomic=atomic,
        loop_outputs=tuple(loop_output(loops, op, value, keys) for op, value in outputs_of_loop),
        units=tuple(loops.numbers.units),
        values=tuple(computed.found.values()),
        names=tuple(loops.tensor(each.load).name for each in (*owned, *streamed)),
    )
    _check(loops, problem, (*stored_in_loop, *(() if addition is None else (addition.op,))))
    added = () if addition is None else (loops.tensor(addition.op).id,)
    return Backward(
        problem=problem,
        loops=loops,
        tensors=(*(loops.tensor(each.load).id for each in (*owned, *streamed)), *outputs.tensors, *added),
        sources=(
            *(loops.tensor(op).id for op in stored_in_loop),
            *lefts.reader.arguments(formula),
            *outputs.sources,
            *(() if addition is None else addition.sources),
            *bounds,
            *computed.tensors,
        ),
    )


def _lefts(products: Sequence[Op], owned: Sequence[Rows], streamed: Sequence[Rows], computed: ComputedRows) -> Lefts:
    """Return the reader of left operands, with the factors of both sides of their products."""
    factors = [one.factor * other.factor for one, other in zip(owned, streamed, strict=True)]
    starts = dict(zip(STARTS, products, strict=True))
    return Lefts(computed.loops, starts, "gradients", loaded=True, factors=factors, sums=computed.sum_of)


def _check(loops: Loops, problem: BackwardProblem, written: Sequence[Op]) -> None:
    """Check that tensors can be loaded, and that the loop writes what nothing reads: ``written``. Raises ``Refusal``."""
    check_backward(problem)
    if loops.loaded:
        raise Refusal("gradients of attention that read integers of each head are not implemented")
    check_strides(loops, problem)
    check_storage(loops, written)


# Loops -----------------------------------------------------------------------------------------------------------------


def _loops(program: Program) -> tuple[Loops, Number, tuple[Carried, ...]]:
    """Return the loops, the repetitions of the one over streamed rows, and what they carry. Raises ``Refusal``."""
    if len(program.roots) != 1:
        raise Refusal("gradients of attention in one grid loop are implemented; write a kernel for each")
    (root,) = program.roots
    outer = _only_loop(root.body)
    inner = outer if not any(op.regions for op in outer.regions[0].ops) else _only_loop(outer.regions[0])
    axes, body = inner.attributes(ForAttrs).axes, inner.regions[0]
    dots = [op for op in body.ops if op.kind == "dot"]
    if any(op.regions for op in body.ops) or len(axes) != 1 or not dots:
        raise Refusal("gradients of attention with all products in one loop over tiles of rows are implemented")
    blocks = [axis.block for axis in root.axes]
    rows = [dim.block for dim in dots[0].result.dims if dim.block in blocks and is_tile(program, dim.block)]
    if not rows or rows[-1] is None:
        raise Refusal("gradients of attention need a tile of rows in the grid")
    for axis in root.axes:
        check_axis(program, axis, axis.block == rows[-1])
    heads = [block for block in blocks if block != rows[-1]]
    repeats: Number = 1
    if outer is not inner:
        block, repeats = _repeats(program, outer)
        heads.append(block)
    loops = Loops(
        program=program,
        root=root,
        loop=inner,
        makers={result.number: op for op in program.walk() for result in op.results},
        heads=tuple(heads),
        queries=rows[-1],
        keys=axes[0].block,
        first=dots[0],
        second=dots[-1],
        numbers=LaunchNumbers(program.host.specialized),
    )
    return loops, repeats, _carried(outer, inner)


def _only_loop(body: Region) -> Op:
    nested = [op for op in body.ops if op.regions]
    if len(nested) != 1 or nested[0].kind != "for":
        raise Refusal(
            "gradients of attention with one loop over rows in its grid, or in a loop over heads, are implemented"
        )
    return nested[0]


def _repeats(program: Program, loop: Op) -> tuple[int, Number]:
    """Return the block and the number of the heads of a loop."""
    axes = loop.attributes(ForAttrs).axes
    if len(axes) == 1:
        axis, block = axes[0], program.blocks[axes[0].block]
        end = size(axis.end)
        plain = axis.jagged is None and axis.split is None and not axis.merged and not axis.backwards
        one = block.kind == "grid" or fixed_at(block.size, 1)
        counted = isinstance(end, Expr) or end > 0
        if plain and one and equal(axis.begin, 0) and equal(axis.step, 1) and counted:
            return axis.block, end
    raise Refusal("a loop over heads, from 0 to a number of the host, of one head at a time, is implemented")


def _carried(outer: Op, inner: Op) -> tuple[Carried, ...]:
    """Return what the loops carry. An outer loop has to pass it on as it is."""
    body, found = inner.regions[0], []
    number = inner.attributes(ForAttrs).carried
    for at in range(number):
        initial, final = inner.operands[at], inner.results[at]
        if outer is not inner:
            around = outer.regions[0]
            places = [each for each, param in enumerate(around.params) if param == initial]
            if len(places) != 1 or around.results[places[0]] != final:
                raise Refusal("sums that change between the loop over heads and that over rows are not implemented")
            initial, final = outer.operands[places[0]], outer.results[places[0]]
        found.append(Carried(initial=initial, param=body.params[at], result=body.results[at], final=final))
    if not found or outer.attributes(ForAttrs).carried != number:
        raise Refusal("gradients of attention that carry sums, and nothing else, are implemented")
    return tuple(found)


# Products --------------------------------------------------------------------------------------------------------------


def _sum(loops: Loops, carried: Carried) -> Op:
    """Return the dot that is added to a carried value, which begins with 0. Raises ``Refusal``."""
    start = loops.stripped(carried.initial)
    if start is None or start.kind != "full" or start.operands[0] != 0:
        raise Refusal("sums of gradients that begin with another number than 0 are not implemented")
    made = loops.stripped(carried.result)
    accumulates = made is not None and made.kind == "dot" and len(made.operands) == 3
    if made is not None and accumulates and same_value(loops, made.operands[2], carried.param):
        return _checked_sum(loops, made)
    terms = terms_of(loops, carried.result, "add")
    for one, other in (terms, terms[::-1]) if terms else ():
        dot = loops.stripped(other)
        if same_value(loops, one, carried.param) and dot is not None and dot.kind == "dot" and len(dot.operands) == 2:
            if dot.result.dtype != torch.float32:
                raise Refusal(
                    f"a product is rounded to {dtype_name(dot.result.dtype)} before it is added; hl.dot(x, y, acc=acc) adds"
                    " it as it is"
                )
            return _checked_sum(loops, dot)
    raise Refusal("gradients of attention whose loop carries sums acc + x @ y, and nothing else, are implemented")


def _checked_sum(loops: Loops, dot: Op) -> Op:
    check_dot(dot)
    left, right = (loops.blocks(each) for each in dot.operands[:2])
    if left != (loops.queries, loops.keys) or len(right) != 2 or right[0] != loops.keys:
        raise Refusal("gradients that are a tile's rows by streamed rows @ streamed rows are implemented")
    return dot


def _products(loops: Loops, sums: Sequence[Op]) -> tuple[Op, Op]:
    """Return the products that left operands start from: first the one that exponentials are computed from."""
    body = loops.loop.regions[0]
    others = [op for op in body.ops if op.kind == "dot" and op not in sums]
    weighed = [op for op in body.ops if name_of_op(op) in EXPONENTIALS]
    fed = {each.number for op in weighed for each in _before(body, op) if each.kind == "dot"}
    first = [op for op in others if op.number in fed]
    if len(others) != PRODUCTS or len(first) != 1:
        raise Refusal("gradients of attention with two products, of which exponentials depend on one, are implemented")
    (second,) = (op for op in others if op is not first[0])
    return first[0], second


def _sides(loops: Loops, dot: Op, computed: ComputedRows) -> tuple[Rows, Rows]:
    """Return the owned and streamed rows of a product."""
    check_dot(dot)
    left, right = (loops.blocks(each) for each in dot.operands[:2])
    rows = {loops.queries, loops.keys}
    if len(dot.operands) != 2 or len(left) != 2 or len(right) != 2 or left[1] != right[0] or left[1] in rows:
        raise Refusal("products of a tile's rows with streamed rows over the dimensions of a head are implemented")
    if {left[0], right[1]} != rows:
        raise Refusal("products of a tile's rows with streamed rows are implemented")
    sides = dot.operands if left[0] == loops.queries else dot.operands[::-1]
    owned, streamed = (computed.rows(x, block) for x, block in zip(sides, (loops.queries, loops.keys), strict=True))
    if _extent(loops, owned.load, loops.queries) != loops.extent(loops.queries):
        raise Refusal(f"{loops.tensor(owned.load).name} has another number of rows than tiles cover")
    return owned, streamed


def _extent(loops: Loops, load: Op, block: int) -> int:
    access = access_of(loops, load)
    if block not in access.extents:
        raise Refusal(f"{access.tensor.name} is not indexed by a tile of rows")
    return access.extents[block]


def _right(loops: Loops, dot: Op, streamed: Sequence[Matrix], computed: ComputedRows) -> tuple[int, float]:
    """Return the number of the streamed matrix that a gradient multiplies, and a factor of it."""
    found = computed.rows(dot.operands[1], loops.keys)
    if found.matrix not in streamed:
        raise Refusal(f"{loops.tensor(found.load).name} is multiplied by a gradient, and by no product before it")
    return streamed.index(found.matrix), found.factor


# Outputs ---------------------------------------------------------------------------------------------------------------


class _Outputs:
    """The output of each gradient: its formula, record, and the id of its tensor."""

    def __init__(self, loops: Loops, sums: Sequence[Op], carried: Sequence[Carried], factors: Sequence[float]) -> None:
        stores = [op for op in loops.root.body.ops if op.kind == "store"]
        by_gradient = [[op for op in stores if self._depends(loops, op, each.final)] for each in carried]
        if any(len(each) != 1 for each in by_gradient) or len(stores) != len(carried):
            raise Refusal("gradients that are stored once each, and nothing else, are implemented")
        self.formulas: list[Formula] = []
        self.records: list[AttentionOutput] = []
        self.tensors: list[int] = []
        self.sources: list[int | Expr] = []
        for dot, each, (store,), factor in zip(sums, carried, by_gradient, factors, strict=True):
            (columns,) = (block for block in loops.blocks(dot.result) if block != loops.queries)
            self._add(loops, store, each.final, columns, factor)

    def _add(self, loops: Loops, store: Op, final: Value, columns: int | None, factor: float) -> None:
        reader = FormulaReader(loops, ("gradient",), columns, "outputs")
        reader.known[final.number] = "gradient" if factor == 1.0 else reader.step("mul", ("gradient", constant(factor)))
        formula, numbers = reader.formula({"output": reader.read(unrounded(loops, store))})
        matrix, name = matrix_of(loops, store, loops.queries, "rows"), name_of(loops.tensor(store))
        if matrix.dtype == "float32":  # threads store it, by offsets of 32 bits
            check_reach(access_of(loops, store))
        if "output" not in numbers or _extent(loops, store, loops.queries) != loops.extent(loops.queries):
            raise Refusal(f"{name} is a constant, or has another number of rows than tiles cover")
        self.formulas.append(_with_value(formula, numbers["output"]))
        self.records.append(AttentionOutput(name=name, value=0, kind="exact", dtype=matrix.dtype, matrix=matrix))
        self.tensors.append(loops.tensor(store).id)
        self.sources += reader.arguments(formula)

    def _depends(self, loops: Loops, op: Op, final: Value) -> bool:
        waiting, seen = [*op.operands], set[int]()
        while waiting:
            value = waiting.pop()
            if not isinstance(value, Value) or value.number in seen:
                continue
            if value.number == final.number:
                return True
            seen.add(value.number)
            made = loops.maker(value)
            waiting += made.operands if made is not None and made.kind != "for" else ()
        return False


def _with_value(formula: Formula, value: int) -> Formula:
    return Formula(sources=formula.sources, instructions=formula.instructions, starts=formula.starts, value=value)
