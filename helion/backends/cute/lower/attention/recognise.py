"""``attention_of``: turn a program with an online softmax between two matmuls into an ``AttentionProblem``.

The loop carries the row maximum m, the row sum l and the accumulator of p @ v. For scores x computed from q @ k.T it has
to compute, up to the order of operands and the base of the exponential::

    m' = max(m, rowmax(x));  p = exp(unit * (x - m'));  c = exp(unit * (m - m'))
    l' = l * c + rowsum(p);  acc' = acc * c + p @ v
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ....._compiler.ir.grammar import (
    DotAttrs,
    ForAttrs,
    Op,
    Operand,
    OperandRef,
    PointwiseAttrs,
    Program,
    ReduceAttrs,
    Value,
)
from ....._shapes import Expr, dtype_name
from ...plan.attention.build import check_problem
from ...plan.attention.records import AttentionOutput, AttentionProblem, Band, Formula, Matrix
from ...plan.epilogue import Constant
from ...plan.refusal import Refusal
from ..chain import ROUNDED
from ..names import name_of
from ..numbers import equal, size
from .band import EVERY_KEY, End, band_of, begin_of_loop, end_of_loop, every_query_sees, joined
from .formula import FormulaReader
from .loops import Loops, loops_of
from .packing import with_packed_heads
from .places import access_of, check_reach, matrix_of

LOG2E = math.log2(math.e)
LOWEST = -1e9
"""Initial maxima up to this one are below all scores, as minus infinity is."""
QUERY, PRODUCT, ACCUMULATOR, TOTAL, MAXIMUM = "query", "product", "accumulator", "total", "maximum"


@dataclass(frozen=True, kw_only=True)
class Attention:
    """An attention of a program; ``sources`` are ids of tensors or host expressions of the launch's other inputs."""

    problem: AttentionProblem
    loops: Loops
    tensors: tuple[int, ...]
    """Ids of q, k, v and the outputs."""
    sources: tuple[int | Expr, ...]

    @property
    def arguments(self) -> tuple[int | Expr, ...]:
        """Arguments of a launch, in order."""
        return (*self.tensors, *self.sources)


@dataclass(frozen=True, kw_only=True)
class Softmax:
    """The values of the online softmax: scores, the weights and factors of a step, and the unit of the exponents in
    powers of two."""

    scores: Value
    raised: Value
    unit: float
    maximum: int
    """Position of the carried maximum; then of the sum and the accumulator."""
    total: int
    accumulator: int


def attention_of(program: Program) -> Attention:
    """Return the attention that ``program`` computes. Raises ``Refusal``."""
    loops = loops_of(program)
    softmax = _softmax(loops)
    queries = _Queries(loops)
    q, k, v = _operands(loops, queries)
    scores = _Scores(loops, softmax.scores)
    band, keys = _covered(loops, scores.band)
    start = _start(loops, softmax, every_query_sees(band, loops.extent(loops.queries), keys))
    finish = _Finish(loops, softmax)
    outputs = finish.outputs()
    problem = AttentionProblem(
        heads=tuple(loops.extent(block) for block in loops.heads) or (1,),
        queries=loops.extent(loops.queries),
        keys=keys,
        q=q[0],
        k=k[0],
        v=v[0],
        scale=scores.scale * queries.factor(scores.formula),
        unit=softmax.unit,
        query=queries.formula,
        score=scores.formula,
        guarded=_may_be_infinite(scores.formula),
        start=start,
        band=band,
        finish=finish.formula,
        outputs=outputs,
        names=tuple(name for _, _, name in (q, k, v)),  # type: ignore[arg-type]
    )
    problem = with_packed_heads(problem)
    check_problem(problem)
    _check_storage(loops)
    return Attention(
        problem=problem,
        loops=loops,
        tensors=(q[1], k[1], v[1], *finish.tensors),
        sources=(
            *queries.reader.arguments(queries.formula),
            *scores.reader.arguments(scores.formula),
            *finish.reader.arguments(finish.formula),
        ),
    )


KINDS = ("number", "tile", "iota", "full", "load", "store", "pointwise", "reduce", "dot", "view", "mask", "for")


def _check_storage(loops: Loops) -> None:
    """Check that the program only loads and stores, and does not read what it stores. Raises ``Refusal``."""
    others = [op.kind for op in loops.program.walk() if op.kind not in KINDS]
    if others:
        raise Refusal(f"{others[0]} in attention is not implemented")
    read = {loops.tensor(op).storage for op in loops.program.walk() if op.kind == "load"}
    for op in loops.program.walk():
        if op.kind == "store" and (loops.tensor(op).storage in read or op not in loops.root.body.ops):
            raise Refusal(f"{loops.tensor(op).name} is stored in the loop over keys, or read by the kernel as well")


# Operands --------------------------------------------------------------------------------------------------------------


def _operands(loops: Loops, queries: _Queries) -> Sequence[tuple[Matrix, int, str]]:
    """Return the matrices of q, k and v, with the ids and names of their tensors."""
    rows = (loops.queries, loops.keys, loops.keys)
    found = []
    for dot, at, block, what in zip((loops.first, loops.first, loops.second), (0, 1, 1), rows, "qkv", strict=True):
        _check_dot(dot)
        load = queries.load if what == "q" else _loaded(loops, dot.operands[at], what)
        matrix = matrix_of(loops, load, block, "queries" if what == "q" else "keys")
        access = access_of(loops, load)
        if what == "q" and access.extents[block] != loops.extent(block):
            raise Refusal(
                f"{access.tensor.name} has {access.extents[block]} queries, of which tiles cover another number"
            )
        found.append((matrix, access.tensor.id, access.tensor.name))
    scores = loops.blocks(loops.first.result)
    if scores != (loops.queries, loops.keys) or loops.blocks(loops.second.result)[:1] != (loops.queries,):
        raise Refusal("scores of a tile of queries with a tile of keys, in this order, are implemented")
    return found


def _check_dot(dot: Op) -> None:
    attrs = dot.attributes(DotAttrs)
    if attrs.scaled is not None:
        raise Refusal("attention with microscaling formats is not implemented")
    if dot.result.dtype != torch.float32 and dot.result.dtype not in ROUNDED:
        raise Refusal(f"matmuls to {dtype_name(dot.result.dtype)} in attention are not implemented")


def _loaded(loops: Loops, value: Operand, what: str) -> Op:
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


class _Queries:
    """The left operand of the scores: a load, or a formula of its elements and of numbers."""

    def __init__(self, loops: Loops) -> None:
        self.reader = FormulaReader(loops, (QUERY,), None, "queries")
        self.formula = Formula()
        value = loops.first.operands[0]
        made = loops.stripped(value)
        if _name(made) == "" or (made is not None and _name(made) == "cast" and _is_widening(made)):
            self.load = _loaded(loops, value, "q")
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


# The online softmax ----------------------------------------------------------------------------------------------------


def _name(op: Op | None) -> str:
    return op.attrs.name if op is not None and isinstance(op.attrs, PointwiseAttrs) else ""


def _softmax(loops: Loops) -> Softmax:
    """Return the values of the online softmax, each relation checked. Raises ``Refusal``."""
    loop, body = loops.loop, loops.loop.regions[0]
    if loop.attributes(ForAttrs).carried != 3 or len(body.results) != 3:
        raise Refusal("a loop over keys that carries maximum, sum and accumulator, and nothing else, is implemented")
    power = _weights(loops)
    exponent, unit = _exponent(loops, power)
    scores, raised = exponent
    maximum = _carried(loops, raised)
    total = _position(loops, lambda at: _is_total(loops, at, power, maximum, unit))
    accumulator = _position(loops, lambda at: _is_accumulated(loops, at, maximum, unit))
    if {maximum, total, accumulator} != {0, 1, 2}:
        raise Refusal(
            "a loop over keys that carries its maximum, the sum l * c + sum(p) and the accumulator acc * c + p @ v is"
            " implemented"
        )
    _check_maximum(loops, maximum, raised, scores)
    return Softmax(scores=scores, raised=raised, unit=unit, maximum=maximum, total=total, accumulator=accumulator)


def _weights(loops: Loops) -> Op:
    """Return the exponential whose result, rounded to the type of v, is the left operand of the second dot."""
    made = loops.stripped(loops.second.operands[0])
    right = loops.second.operands[1]
    if _name(made) == "cast" and made is not None:
        if isinstance(right, Value) and made.result.dtype not in (right.dtype, torch.float32):
            raise Refusal("weights that are rounded to another type than that of v are not implemented")
        made = loops.stripped(made.operands[0])
    if _name(made) not in ("exp", "exp2") or made is None:
        raise Refusal("weights other than exponentials of scores, rounded to the type of v, are not implemented")
    if made.result.dtype != torch.float32:
        raise Refusal(f"exponentials in {dtype_name(made.result.dtype)} are not implemented; in float32 they are")
    return made


def _exponent(loops: Loops, power: Op) -> tuple[tuple[Value, Value], float]:
    """Return the minuend and subtrahend of an exponent, and its unit in powers of two."""
    unit = LOG2E if _name(power) == "exp" else 1.0
    made = loops.stripped(power.operands[0])
    while _name(made) in ("mul", "div") and made is not None:
        value, number = made.operands
        if isinstance(value, (int, float)):
            value, number = number, value
        if (
            not isinstance(value, Value)
            or isinstance(number, Value)
            or (made.operands[0] is not value and _name(made) == "div")
        ):
            break
        unit = unit * number if _name(made) == "mul" else unit / number
        made = loops.stripped(value)
    if (
        _name(made) != "sub"
        or made is None
        or not loops.is_aligned(made)
        or not all(isinstance(each, Value) for each in made.operands)
    ):
        raise Refusal("exponents other than a score less the maximum, times a number, are not implemented")
    if not unit > 0:
        raise Refusal(f"exponents in units of {unit} are not implemented; units are positive")
    one, other = made.operands
    assert isinstance(one, Value) and isinstance(other, Value)
    return (one, other), unit


def _same(loops: Loops, one: Operand, other: Operand) -> bool:
    """Return whether two operands are the same value through views, masks and exact casts."""
    return _core(loops, one) == _core(loops, other)


def _core(loops: Loops, value: Operand) -> tuple[str, float]:
    while isinstance(value, Value):
        made = loops.maker(value)
        widens = made is not None and _name(made) == "cast" and _is_widening(made)
        if made is None or not (made.kind in ("view", "mask") or widens):
            return "value", value.number
        value = made.operands[0]
    return "number", float(value)


def _is_widening(op: Op) -> bool:
    source = op.operands[0]
    exact = isinstance(source, Value) and source.dtype in (*ROUNDED, torch.float32)
    return exact and op.result.dtype == torch.float32


def _carried(loops: Loops, raised: Value) -> int:
    """Return the position of the carried value that becomes ``raised``."""
    body = loops.loop.regions[0]
    for at, result in enumerate(body.results):
        if _same(loops, result, raised):
            return at
    raise Refusal("exponents less another value than the maximum that the loop carries are not implemented")


def _position(loops: Loops, holds: object) -> int:
    found = [at for at in range(3) if holds(at)]  # type: ignore[operator]
    return found[0] if len(found) == 1 else -1


def _terms(loops: Loops, value: Operand, name: str) -> tuple[Operand, ...]:
    """Return the two operands of an op called ``name`` that makes a value, or nothing."""
    made = loops.stripped(value)
    if made is None or _name(made) != name or len(made.operands) != 2 or not loops.is_aligned(made):
        return ()
    return made.operands


def _is_shrunk(loops: Loops, value: Operand, at: int, maximum: int, unit: float) -> bool:
    """Return whether a value is carried value ``at`` times the factor exp(unit * (m - m'))."""
    body = loops.loop.regions[0]
    terms = _terms(loops, value, "mul")
    for one, other in (terms, terms[::-1]) if terms else ():
        if _same(loops, one, body.params[at]) and _is_factor(loops, other, maximum, unit):
            return True
    return False


def _is_factor(loops: Loops, value: Operand, maximum: int, unit: float) -> bool:
    body, made = loops.loop.regions[0], loops.stripped(value)
    if made is None or _name(made) not in ("exp", "exp2"):
        return False
    (former, raised), found = _exponent(loops, made)
    same = _same(loops, former, body.params[maximum]) and _same(loops, raised, body.results[maximum])
    return same and math.isclose(found, unit, rel_tol=1e-12)


def _is_total(loops: Loops, at: int, power: Op, maximum: int, unit: float) -> bool:
    """Return whether carried value ``at`` becomes itself times the factor, plus the row sum of the weights."""
    terms = _terms(loops, loops.loop.regions[0].results[at], "add")
    for one, other in (terms, terms[::-1]) if terms else ():
        made = loops.stripped(other)
        if not _is_shrunk(loops, one, at, maximum, unit) or made is None or made.kind != "reduce":
            continue
        if made.attributes(ReduceAttrs).name == "sum" and _same(loops, made.operands[0], power.result):
            return loops.blocks(made.result) == (loops.queries,)
    return False


def _is_accumulated(loops: Loops, at: int, maximum: int, unit: float) -> bool:
    """Return whether carried value ``at`` becomes itself times the factor, plus the second dot."""
    dot, made = loops.second, loops.stripped(loops.loop.regions[0].results[at])
    if made is dot and len(dot.operands) == 3:
        return _is_shrunk(loops, dot.operands[2], at, maximum, unit)
    terms = _terms(loops, loops.loop.regions[0].results[at], "add")
    for one, other in (terms, terms[::-1]) if terms else ():
        if _is_shrunk(loops, one, at, maximum, unit) and _same(loops, other, dot.result):
            if dot.result.dtype != torch.float32:
                raise Refusal(
                    f"p @ v is rounded to {dtype_name(dot.result.dtype)} before it is added;"
                    " hl.dot(p, v, acc=acc) and torch.baddbmm(acc, p, v) add it as it is"
                )
            return len(dot.operands) == 2
    return False


def _check_maximum(loops: Loops, at: int, raised: Value, scores: Value) -> None:
    """Check that carried value ``at`` becomes its maximum with the row maximum of the scores.

    The row maximum may be taken before multiplications by positive numbers and roundings: these keep the order.
    """
    body = loops.loop.regions[0]
    terms = _terms(loops, raised, "maximum")
    for one, other in (terms, terms[::-1]) if terms else ():
        if _same(loops, one, body.params[at]) and _is_row_maximum(loops, other, scores):
            return
    raise Refusal("a maximum other than that of the carried one and the row maximum of the scores is not implemented")


def _is_row_maximum(loops: Loops, value: Operand, scores: Operand) -> bool:
    made, scored = loops.stripped(value), loops.stripped(scores)
    if made is None:
        return False
    if made.kind == "reduce":
        named = made.attributes(ReduceAttrs).name in ("max", "amax")
        return named and loops.blocks(made.result) == (loops.queries,) and _same(loops, made.operands[0], scores)
    if _name(made) == "cast" and _is_widening(made):
        return _is_row_maximum(loops, made.operands[0], scores)
    if scored is not None and _name(scored) == "cast" and _is_widening(scored):
        return _is_row_maximum(loops, value, scored.operands[0])
    if scored is None or _name(made) != _name(scored) or made.result.dtype != scored.result.dtype:
        return False
    if _name(made) == "cast":
        return _is_row_maximum(loops, made.operands[0], scored.operands[0])
    if _name(made) not in ("mul", "div"):
        return False
    (one, number), (other, again) = _by_number(made), _by_number(scored)
    same = isinstance(number, (int, float)) and number == again and number > 0
    return same and _is_row_maximum(loops, one, other)


def _by_number(op: Op) -> tuple[Operand, Operand]:
    """Return the operands of a product with a number, the number last; of a quotient as they are."""
    one, other = op.operands
    return (other, one) if not isinstance(one, Value) and _name(op) == "mul" else (one, other)


# Scores ----------------------------------------------------------------------------------------------------------------


class _Scores:
    """The formula of the scores, without the masks by bands and without a factor of q @ k.T.

    Masks set scores to minus infinity. The operations after a mask must keep that: products with positive numbers,
    roundings, and sums.
    """

    def __init__(self, loops: Loops, scores: Operand) -> None:
        self.loops, self.band = loops, Band()
        self.reader = FormulaReader(loops, (PRODUCT,), loops.keys, "scores")
        product = loops.first.result
        self.reader.known[product.number] = self.reader.rounded(PRODUCT, product.dtype)
        self.finite = False
        """True if a mask is a number so low that its weights are zero where a query sees any key."""
        self.hidden: dict[int, Operand] = {}
        """By the number of a mask's result: the scores that it hides."""
        self._find_masks(scores)
        for number, value in reversed(self.hidden.items()):
            self.reader.known[number] = self.reader.read(value)
        self.scale = 1.0
        self.scale, value = self._scaled(scores)
        score = self.reader.read(value)
        if isinstance(score, Constant) or not self.reader.reads(score, PRODUCT):
            raise Refusal("scores that do not depend on q @ k.T are not implemented")
        formula, numbers = self.reader.formula({"score": score})
        self.formula = replace(formula, value=numbers["score"])

    def _find_masks(self, value: Operand) -> None:
        while True:
            made = self.loops.stripped(value)
            if made is None or made is self.loops.first:
                return
            following = self._masked(made) or self._kept(made)
            if following is None:
                return
            value = following

    def _masked(self, made: Op) -> Operand | None:
        """Return the scores that a mask by a band hides, and add the band."""
        if _name(made) != "where":
            return None
        condition, one, other = made.operands
        seen = not _is_lowest(self.loops, one)
        if not seen:
            one, other = other, one
        band = band_of(self.loops, condition, seen) if _is_lowest(self.loops, other) else None
        if band is None:
            return None
        if not _is_minus_infinity(self.loops, other):
            both = joined(self.band, band)
            if not every_query_sees(both, self.loops.extent(self.loops.queries), _keys(self.loops)):
                return None
            self.finite = True
        self.band = joined(self.band, band)
        self.hidden[made.result.number] = one
        return one

    def _kept(self, made: Op) -> Operand | None:
        """Return the operand whose minus infinity an operation keeps."""
        name = _name(made)
        if name == "cast" and (made.result.dtype in ROUNDED or made.result.dtype == torch.float32):
            return made.operands[0]
        if name in ("mul", "div"):
            one, number = _by_number(made)
            return one if not isinstance(number, Value) and number > 0 else None
        if name in ("add", "sub"):
            terms = made.operands[:1] if name == "sub" else made.operands
            return next((each for each in terms if self._has_product(each)), None)
        return None

    def _has_product(self, value: Operand) -> bool:
        made = self.loops.stripped(value)
        return made is not None and (made is self.loops.first or any(map(self._has_product, made.operands)))

    def _bare(self, value: Operand) -> Op | None:
        """Return the op that makes a value, without views and the masks found."""
        made = self.loops.stripped(value)
        while made is not None and made.result.number in self.hidden:
            made = self.loops.stripped(self.hidden[made.result.number])
        return made

    def _scaled(self, value: Operand) -> tuple[float, Operand]:
        """Return the positive number that scores in fp32 are multiplied by at last, and the value without it."""
        made = self._bare(value)
        if made is None or made.result.dtype != torch.float32 or _name(made) not in ("mul", "div"):
            return 1.0, value
        one, number = _by_number(made)
        if isinstance(number, Value) or not isinstance(one, Value) or not number > 0 or one.dtype != torch.float32:
            return 1.0, value
        return (float(number) if _name(made) == "mul" else 1.0 / number), one


def _is_lowest(loops: Loops, value: Operand) -> bool:
    """Return whether a value is minus infinity, or a number that no score is expected to reach."""
    made = loops.stripped(value)
    number = made.operands[0] if made is not None and made.kind == "full" else value
    return isinstance(number, (int, float)) and number <= LOWEST


def _is_minus_infinity(loops: Loops, value: Operand) -> bool:
    made = loops.stripped(value)
    number = made.operands[0] if made is not None and made.kind == "full" else value
    return isinstance(number, float) and number == -math.inf


def _may_be_infinite(formula: Formula) -> bool:
    """Return whether a formula may give minus infinity: it has selections, or reads numbers."""
    infinite = any(
        isinstance(each, Constant) and math.isinf(float(each.text))
        for made in formula.instructions
        for each in made.arguments
    )
    return infinite or any(source.kind != "number" for source in formula.sources)


def _keys(loops: Loops) -> int:
    """Return the keys that k and v have."""
    pairs = ((loops.first, "k"), (loops.second, "v"))
    return min(access_of(loops, _loaded(loops, dot.operands[1], what)).extents[loops.keys] for dot, what in pairs)


def _covered(loops: Loops, band: Band) -> tuple[Band, int]:
    """Return the band and the number of keys of the loop. Raises ``Refusal`` if tiles would change the result."""
    (axis,) = loops.loop.attributes(ForAttrs).axes
    block = loops.program.blocks[axis.block]
    plain = block.kind == "tile" and not axis.scalar and axis.jagged is None and axis.split is None
    begin = loops.loop.operands[axis.begin.at] if isinstance(axis.begin, OperandRef) else axis.begin
    first = begin_of_loop(loops, begin) if isinstance(begin, (int, Value)) else None
    if not plain or first is None or not equal(axis.step, 1):
        raise Refusal("a loop over keys from 0, or from the first query of the tile plus a number, is implemented")
    if first > EVERY_KEY and (band.first is None or band.first < first):
        raise Refusal(
            "the loop over keys begins with the tile of queries, and its mask lets a query see earlier keys: the result"
            " would depend on the size of tiles"
        )
    stored = _keys(loops)
    end = axis.end
    found = end_of_loop(loops, loops.loop.operands[end.at]) if isinstance(end, OperandRef) else _known(end)
    if found is None:
        raise Refusal("a loop over keys ends at a number, or at the end of the tile of queries")
    if found.past is not None and (band.last is None or band.last > found.past):
        raise Refusal(
            "the loop over keys ends with the tile of queries, and its mask lets a query see later keys: the result would"
            " depend on the size of tiles"
        )
    keys = stored if found.limit is None else found.limit
    if keys > stored or (found.limit is None and loops.extent(loops.queries) + (found.past or 0) > stored):
        raise Refusal(f"the loop over keys has more of them than the {stored} of k and v")
    return band, keys


def _known(end: object) -> End | None:
    found = size(end)
    if not isinstance(found, int):
        raise Refusal("attention of sizes known only at launch is not implemented; use static_shapes=True")
    return End(limit=found)


def _start(loops: Loops, softmax: Softmax, sees: bool) -> float:
    """Return the initial maximum. Raises ``Refusal`` for initial values that change the result."""
    starts = [_initial(loops, softmax, at) for at in range(3)]
    maximum, total, accumulator = (starts[at] for at in (softmax.maximum, softmax.total, softmax.accumulator))
    if maximum is None or not (maximum == -math.inf or maximum <= LOWEST):
        raise Refusal(f"an initial maximum of {maximum} is not implemented; use minus infinity or {LOWEST:g}")
    if accumulator != 0 or total is None or (total != 0 and not (sees and math.isfinite(total))):
        raise Refusal("an initial sum and accumulator other than 0 are not implemented")
    return maximum


def _initial(loops: Loops, softmax: Softmax, at: int) -> float | None:
    made = loops.stripped(loops.loop.operands[at])
    number = made.operands[0] if made is not None and made.kind == "full" else None
    return float(number) if isinstance(number, (int, float)) else None


# Outputs ---------------------------------------------------------------------------------------------------------------


class _Finish:
    """The outputs that are computed after the loop."""

    def __init__(self, loops: Loops, softmax: Softmax) -> None:
        self.loops = loops
        columns = [each for each in loops.blocks(loops.second.result) if each != loops.queries]
        self.columns = columns[0] if columns else None
        self.reader = FormulaReader(loops, (ACCUMULATOR, TOTAL, MAXIMUM), self.columns, "outputs")
        results = loops.loop.results
        places = {softmax.accumulator: ACCUMULATOR, softmax.total: TOTAL, softmax.maximum: MAXIMUM}
        for at, name in places.items():
            self.reader.known[results[at].number] = name
        self.formula = Formula()
        self.tensors: tuple[int, ...] = ()

    def outputs(self) -> tuple[AttentionOutput, ...]:
        """Return the outputs, the matrix first, and set the formula and the ids of their tensors."""
        stored = [op for op in self.loops.root.body.ops if op.kind == "store"]
        stores = sorted(stored, key=lambda op: -len(access_of(self.loops, op).strides))
        values = {name_of(self.loops.tensor(op)): self.reader.read(self._unrounded(op)) for op in stores}
        if len(values) < len(stores):
            raise Refusal("a tensor that is stored twice is not implemented")
        self.formula, numbers = self.reader.formula(values)
        self.tensors = tuple(self.loops.tensor(op).id for op in stores)
        return tuple(self._output(op, numbers) for op in stores)

    def _unrounded(self, store: Op) -> Operand:
        """Return the stored value without a cast that the store makes redundant."""
        made = self.loops.maker(store.operands[0])
        if made is not None and _name(made) == "cast" and made.result.dtype == self.loops.tensor(store).dtype:
            return made.operands[0]
        return store.operands[0]

    def _output(self, op: Op, numbers: dict[str, int]) -> AttentionOutput:
        access, name = access_of(self.loops, op), name_of(self.loops.tensor(op))
        if name not in numbers:
            raise Refusal(f"{access.tensor.name} does not depend on the attention")
        if self.columns in access.strides:
            matrix = matrix_of(self.loops, op, self.loops.queries, "queries")
            return AttentionOutput(name=name, value=numbers[name], kind="exact", dtype=matrix.dtype, matrix=matrix)
        if set(access.strides) != {self.loops.queries}:
            raise Refusal(f"{access.tensor.name} is no matrix of queries, nor has it one number for each")
        check_reach(access)
        dtype = dtype_name(access.tensor.dtype)
        if access.tensor.dtype not in (torch.float32, *ROUNDED):
            raise Refusal(f"numbers per query in {dtype} are not implemented")
        matrix = Matrix(
            name=name,
            dtype=dtype,
            columns=1,
            pitch=access.strides[self.loops.queries],
            offset=access.offset,
            modes=access.modes,
        )
        return AttentionOutput(name=name, value=numbers[name], kind="query", dtype=dtype, matrix=matrix)
