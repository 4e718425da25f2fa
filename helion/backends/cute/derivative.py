"""The gradients of an attention, derived from its problem as kernels of the language: for any backend, and in the form that
this one takes as gradients of attention.

The derivative of a softmax needs no value of the loop over keys but the logarithm of the sums: with the sums of gradient *
output, a row's weights and their gradients follow from the scores alone. One kernel computes these sums, one the gradient of
queries, and one those of keys and values. Results are the same in every run. For some sizes one kernel computes all, and adds
the gradient of queries to memory in any order, unless torch is asked for deterministic algorithms. Where the program stores no
logarithms, a kernel before them computes these and the output again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..._compiler.autodiff.transform import Parameter, StagedBackward
from ..._compiler.ir.grammar import HostTensor, Program
from ..._shapes import NeedsValue, dtype_name
from ...hardware import Target
from .lower.attention.kernel import known_attention
from .lower.attention.loops import has_attention
from .plan.attention.build import HALF_DTYPES
from .plan.attention.operands import Matrix, Place
from .plan.attention.records import ACCUMULATOR, MAXIMUM, TOTAL, AttentionProblem, Band, Formula
from .plan.epilogue import Constant, Instruction
from .plan.refusal import Refusal

TOGETHER = 128
"""Dimensions of heads for which one kernel of all gradients is faster than two: it computes five products of each block, and not
seven (gradients named ``all`` in benchmarks/results/cute/nvidia-h200-attention.jsonl)."""
BINARY = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
ROUNDED = {"round_bfloat16": "torch.bfloat16", "round_float16": "torch.float16"}


def derivative(
    program: Program, wanted: Iterable[int], name: str, target: Target | None = None
) -> StagedBackward | None:
    """Return the kernels that compute the gradients of an attention's q, k and v, or None for other programs.

    Attention is left to the general derivation if its formulas read tensors or numbers of the launch, or if weights are
    dropped. So it is if keys are bounded by loaded integers, or if a query may see no key. Tensors have dimensions of heads,
    rows and columns alone.

    ``target`` is that of the kernels, if this backend may compile them.
    """
    if not has_attention(program):
        return None
    try:
        found = known_attention(program)
    except (Refusal, NeedsValue):
        return None
    tensors = [program.tensors[at] for at in found.tensors]
    problem = found.problem
    if not _is_plain(problem) or len({each.storage for each in tensors}) < len(tensors):
        return None
    matrices = problem.q, problem.k, problem.v, problem.matrix.matrix
    stored = tensors[3 + problem.outputs.index(problem.matrix)]
    q, k, v, out = (
        _indexed(tensor, matrix, problem) for tensor, matrix in zip((*tensors[:3], stored), matrices, strict=True)
    )
    shared, score, saved = _shared(problem), _score(problem), _saved(problem, tensors[3:])
    if q is None or k is None or v is None or out is None or shared is None or score is None:
        return None
    if saved is None and len(problem.outputs) > 1:
        return None
    ids = {"q": found.tensors[0], "k": found.tensors[1], "v": found.tensors[2]}
    results = tuple(at for at in sorted(ids.values()) if at in {*wanted})
    if not results or set(wanted) - set(ids.values()):
        return None
    outputs: dict[str, int] = {each.kind: at for each, at in zip(problem.outputs, found.tensors[3:], strict=True)}
    text = _Text(problem, score, shared, {"q": q, "k": k, "v": v, "grad": out}, saved, name)
    together = len(results) == len(ids) and target is not None and target.has("wgmma")
    return text.staged(ids, outputs, results, together and problem.q.columns == problem.v.columns == TOGETHER)


# The forms that are derived ----------------------------------------------------------------------------------------------


def _is_plain(problem: AttentionProblem) -> bool:
    formula, finish = problem.score, problem.finish
    exact = _made(finish, problem.matrix.value) == Instruction("div", (ACCUMULATOR, TOTAL))
    plain = problem.softmax and problem.dropped is None and not problem.query.instructions and not problem.runtime
    bounded = bool(problem.loaded) or problem.key_range is not None
    rounded = problem.q.dtype in HALF_DTYPES and not problem.lift
    return (
        exact and plain and rounded and not bounded and not problem.sources and _sees(problem) and formula.starts == 1
    )


def _sees(problem: AttentionProblem) -> bool:
    """Return whether every query sees a key."""
    band = problem.band
    first = band.last is None or band.last >= 0
    return first and (band.first is None or problem.queries - 1 + band.first < problem.keys)


def _made(formula: Formula, value: int) -> Instruction | None:
    """Return the instruction that makes a value."""
    return formula.instructions[value - formula.computed] if value >= formula.computed else None


@dataclass(frozen=True, kw_only=True)
class Saved:
    """Logarithms of sums that the program stores: ``unit`` times natural ones."""

    indexed: Indexed
    unit: float

    def text(self, axes: tuple[str, ...]) -> str:
        """Return the logarithms of a tile's rows in powers of two."""
        scale = math.log2(math.e) / self.unit
        found = self.indexed.text("logsum", axes, "tile_m")
        return found if math.isclose(scale, 1) else f"{found} * {scale!r}"


def _saved(problem: AttentionProblem, tensors: Sequence[HostTensor]) -> Saved | None:
    """Return the logarithms of sums, if they are the one other output, in fp32."""
    pairs = [(each, tensor) for each, tensor in zip(problem.outputs, tensors, strict=True) if each.kind == "query"]
    if len(pairs) != 1 or pairs[0][0].dtype != "float32":
        return None
    ((output, tensor),) = pairs
    unit = _logarithm(problem, output.value)
    indexed = _indexed(tensor, output.matrix, problem, vector=True)
    return None if unit is None or indexed is None else Saved(indexed=indexed, unit=unit)


def _logarithm(problem: AttentionProblem, value: int) -> float | None:
    """Return n if a value is n times the natural logarithm of the sums: maximum * unit + log(total), in base 2 or e."""
    made = _made(problem.finish, value)
    if made is None or made.op != "add":
        return None
    for one, other in (made.arguments, made.arguments[::-1]):
        log = _made(problem.finish, other) if isinstance(other, int) else None
        if log is None or log.op not in ("log", "log2") or log.arguments != (TOTAL,):
            continue
        base = 1.0 if log.op == "log2" else math.log(2)
        factor = 1.0 if one == MAXIMUM else _factor(problem, one)
        if factor is not None and math.isclose(factor, problem.unit * base, rel_tol=1e-6):
            return base * math.log2(math.e)
    return None


def _factor(problem: AttentionProblem, value: int | Constant) -> float | None:
    """Return the number that the maximum is multiplied by, or None for other values."""
    made = None if isinstance(value, Constant) else _made(problem.finish, value)
    if made is None or made.op != "mul" or MAXIMUM not in made.arguments:
        return None
    (number,) = (each for each in made.arguments if each != MAXIMUM)
    return float(number.text) if isinstance(number, Constant) else None


@dataclass(frozen=True, kw_only=True)
class Indexed:
    """A tensor whose dimensions are those of heads, rows and columns: ``dims`` has a place, ``rows`` or ``columns`` for
    each."""

    tensor: HostTensor
    dims: tuple[Place | str, ...]

    @property
    def columns(self) -> int:
        """Number of the dimension of columns."""
        return self.dims.index("columns")

    @property
    def ordered(self) -> Indexed:
        """Return it with the columns last, as gradients are stored."""
        others = [at for at in range(len(self.dims)) if at != self.columns]
        return Indexed(tensor=self.tensor, dims=(*(self.dims[at] for at in others), "columns"))

    def shape(self) -> list[int]:
        """Return the shape with the columns last."""
        sizes = [int(size) for size in self.tensor.shape]
        return [*(size for at, size in enumerate(sizes) if at != self.columns), sizes[self.columns]]

    def text(self, name: str, axes: tuple[str, ...], rows: str) -> str:
        """Return the rows of a head as a matrix."""
        found = []
        for each in self.dims:
            found.append({"rows": rows, "columns": ":"}[each] if isinstance(each, str) else each.text(axes))
        turned = ".T" if "columns" in self.dims and self.columns < self.dims.index("rows") else ""
        return f"{name}[{', '.join(found)}]{turned}"


def _indexed(tensor: HostTensor, matrix: Matrix, problem: AttentionProblem, vector: bool = False) -> Indexed | None:
    """Return how a tensor is indexed, if each of its dimensions is known by its stride and covered. A ``vector`` has no
    columns."""
    rows = problem.keys if matrix in (problem.k, problem.v) else problem.queries
    of_rows, of_columns = matrix.strides
    known: list[tuple[int, int, Place | str]] = [(rows, of_rows, "rows")]
    known += [] if vector else [(matrix.columns, of_columns, "columns")]
    known += [(mode.size, mode.stride, mode.at) for mode in matrix.modes]
    dims: list[Place | str] = []
    for size, stride in zip(tensor.shape, tensor.strides, strict=True):
        fitting = [what for n, step, what in known if (n, step) == (size, stride)]
        if size == 1:
            dims.append(Place("number", (0,)))
        elif len(fitting) == 1:
            dims.append(fitting[0])
        else:
            return None
    whole = matrix.offset == 0 and len([x for x in dims if x != Place("number", (0,))]) == len(known)
    return Indexed(tensor=tensor, dims=tuple(dims)) if whole else None


def _shared(problem: AttentionProblem) -> tuple[int, ...] | None:
    """Return the heads that share a matrix of keys and values, by coordinate: 1 but for one of them."""
    found = []
    for axis, size in enumerate(problem.heads):
        numbers = {_divisor(matrix, axis, size) for matrix in (problem.k, problem.v)}
        number = numbers.pop()
        if numbers or number is None or size % number:
            return None
        found.append(number)
    of_query = [mode.at for mode in problem.q.modes]
    if any(size > 1 and Place("axis", (axis,)) not in of_query for axis, size in enumerate(problem.heads)):
        return None
    return tuple(found) if sum(number > 1 for number in found) < 2 else None


def _divisor(matrix: Matrix, axis: int, size: int) -> int | None:
    """Return the number of heads of a coordinate that share a matrix."""
    own = Place("axis", (axis,))
    for mode in matrix.modes:
        if mode.at == own:
            return 1
        if mode.at.op == "floordiv" and mode.at.arguments[0] == own:
            divisor = mode.at.arguments[1]
            number = divisor.arguments[0] if isinstance(divisor, Place) and divisor.op == "number" else None
            return number if isinstance(number, int) else None
    return size


# Formulas ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Score:
    """The text of scores ``s`` in powers of two, from products ``x``: ``lines``, and the ``slope`` of ds/dx over ``unit``."""

    lines: tuple[str, ...]
    value: str
    slope: str
    unit: float


def _score(problem: AttentionProblem) -> Score | None:
    """Return the text of the scores and of their derivative, or None for other operations."""
    formula, names, slopes = problem.score, ["x"], ["1.0"]
    lines = []
    for at, made in enumerate(formula.instructions):
        given = [repr(float(each.text)) if isinstance(each, Constant) else names[each] for each in made.arguments]
        steps = ["0.0" if isinstance(each, Constant) else slopes[each] for each in made.arguments]
        found = _step(made.op, given, steps, f"y{at}")
        if found is None:
            return None
        names.append(f"y{at}")
        slopes.append(found[1])
        lines.append(f"y{at} = {found[0]}")
    return Score(
        lines=tuple(lines), value=names[formula.value], slope=slopes[formula.value], unit=problem.unit * problem.scale
    )


def _step(op: str, given: Sequence[str], steps: Sequence[str], name: str) -> tuple[str, str] | None:
    """Return the text of an operation, and of its derivative."""
    if op in ROUNDED:
        return f"{given[0]}.to({ROUNDED[op]}).to(torch.float32)", steps[0]
    if op == "tanh":
        return f"torch.tanh({given[0]})", _product(f"(1 - {name} * {name})", steps[0])
    if op == "neg":
        return f"-{given[0]}", _product("-1.0", steps[0])
    if op not in BINARY:
        return None
    text = f"{given[0]} {BINARY[op]} {given[1]}"
    if op in ("add", "sub"):
        return text, _sum(steps[0], steps[1] if op == "add" else _product("-1.0", steps[1]))
    if op == "mul":
        return text, _sum(_product(steps[0], given[1]), _product(given[0], steps[1]))
    return (text, _product(steps[0], f"(1.0 / {given[1]})")) if steps[1] == "0.0" else None


def _product(one: str, other: str) -> str:
    if "0.0" in (one, other):
        return "0.0"
    return other if one == "1.0" else one if other == "1.0" else f"({one} * {other})"


def _sum(one: str, other: str) -> str:
    return other if one == "0.0" else one if other == "0.0" else f"({one} + {other})"


# Text --------------------------------------------------------------------------------------------------------------------


class _Text:
    """The source of the kernels of one problem. Queries by keys are the order of all products."""

    def __init__(
        self,
        problem: AttentionProblem,
        score: Score,
        shared: tuple[int, ...],
        indexed: dict[str, Indexed],
        saved: Saved | None,
        name: str,
    ) -> None:
        self.problem, self.score, self.shared, self.indexed, self.name = problem, score, shared, indexed, name
        self.saved = saved
        self.axes = tuple(f"h{at}.begin" for at in range(len(problem.heads)))
        self.row = f"[{', '.join(map(str, (*problem.heads, problem.queries)))}]"

    def staged(
        self, ids: dict[str, int], outputs: dict[str, int], results: tuple[int, ...], together: bool
    ) -> StagedBackward:
        """Return the kernels, and the function that calls them; ``together``: one for all gradients, if its order may vary."""
        parameters = [Parameter(name="grad", kind="gradient", tensor=outputs["exact"])]
        parameters += [Parameter(name=name, kind="tensor", tensor=at) for name, at in ids.items()]
        kernels, lines = [self.sums(), self.of_queries(), self.of_keys()], ["delta = sums_of_products(grad, out)"]
        if self.saved is None:
            kernels.insert(0, self.again())
            lines.insert(0, "out, logsum = attention_again(q, k, v)")
        else:
            parameters += [
                Parameter(name="out", kind="result", tensor=outputs["exact"]),
                Parameter(name="grad_logsum", kind="gradient", tensor=outputs["query"]),
                Parameter(name="logsum", kind="result", tensor=outputs["query"]),
            ]
            lines = ["delta = sums_of_products(grad, out, grad_logsum)"]
        needed = {name for name, at in ids.items() if at in results}
        apart = []
        if "q" in needed:
            apart.append("grad_q = gradient_of_queries(q, k, v, grad, logsum, delta)")
        if needed - {"q"}:
            apart.append("grad_k, grad_v = gradients_of_keys(q, k, v, grad, logsum, delta)")
        if together:
            kernels.append(self.of_all())
            lines += [
                "if torch.are_deterministic_algorithms_enabled():",
                *(f"    {line}" for line in apart),
                "else:",
                "    sum_q, grad_k, grad_v = all_gradients(q, k, v, grad, logsum, delta)",
                "    grad_q = sum_q.to(q.dtype)",
            ]
        else:
            lines += apart
        order = {at: name for name, at in ids.items()}
        lines.append(f"return {', '.join(self.returned(order[at]) for at in results)}")
        head = f"def {self.name}({', '.join(each.name for each in parameters)}):"
        return StagedBackward(
            kernels=tuple(tuple(each) for each in kernels),
            lines=(
                head,
                '    """Gradients of attention with respect to q, k and v."""',
                *(f"    {line}" for line in lines),
            ),
            parameters=tuple(parameters),
            results=results,
        )

    def returned(self, of: str) -> str:
        """Return the gradient of a tensor in its shape."""
        columns = self.indexed[of].columns
        last = columns == len(self.indexed[of].dims) - 1
        return f"grad_{of}" if last else f"grad_{of}.movedim(-1, {columns})"

    def load(self, name: str, rows: str, axes: tuple[str, ...] | None = None) -> str:
        return self.indexed[name].text(name, self.axes if axes is None else axes, rows)

    def grid(self, heads: Sequence[int], tile: str, rows: int) -> str:
        names = [f"h{at}" for at in range(len(heads))]
        sizes, ones = ", ".join(map(str, (*heads, rows))), ", ".join("1" for _ in heads)
        return f"    for {', '.join([*names, tile])} in hl.tile([{sizes}], block_size=[{ones}, None]):"

    def allocated(self, name: str, of: str) -> str:
        found = self.indexed[of]
        return (
            f"    {name} = torch.empty({found.shape()}, dtype=torch.{dtype_name(found.tensor.dtype)}, device=q.device)"
        )

    def scores(self, query: str, key: str) -> list[str]:
        """Return the lines of scores in powers of two, ``s``, of a tile of queries by a tile of keys."""
        lines = [f"x = hl.dot({query}, {key}.T)", *self.score.lines, f"s = {self.score.value} * {self.score.unit!r}"]
        seen = _seen(self.problem.band)
        return [*lines, f's = torch.where({seen}, s, float("-inf"))'] if seen else lines

    def changes(self) -> list[str]:
        """Return the lines of the weights ``p``, and of the gradients ``ds`` of products but for their unit."""
        slope = [] if self.score.slope == "1.0" else [f"ds = ds * {self.score.slope}"]
        return ["ds = p * (dp - delta_rows[:, None])", *slope]

    @property
    def unit(self) -> float:
        return self.score.unit * math.log(2)

    def again(self) -> list[str]:
        problem = self.problem
        body = [
            *self.scores("query", self.load("k", "tile_n")),
            "raised = torch.maximum(highest, torch.amax(s, -1))",
            "p = torch.exp2(s - raised[:, None])",
            "shrink = torch.exp2(highest - raised)",
            "total = total * shrink + torch.sum(p, -1)",
            f"acc = hl.dot(p.to(v.dtype), {self.load('v', 'tile_n')}, acc=acc * shrink[:, None])",
            "highest = raised",
        ]
        return [
            "def attention_again(q, k, v):",
            f"    out = torch.empty({self.row[:-1]}, {problem.v.columns}], dtype=v.dtype, device=q.device)",
            f"    logsum = torch.empty({self.row}, dtype=torch.float32, device=q.device)",
            self.grid(problem.heads, "tile_m", problem.queries),
            f"        query = {self.load('q', 'tile_m')}",
            "        highest = hl.full([tile_m], -1e30, dtype=torch.float32)",
            "        total = hl.zeros([tile_m], dtype=torch.float32)",
            f"        acc = hl.zeros([tile_m, {problem.v.columns}], dtype=torch.float32)",
            f"        for tile_n in hl.tile({problem.keys}):",
            *(f"            {line}" for line in body),
            f"        out[{', '.join(self.axes)}, tile_m, :] = acc / total[:, None]",
            f"        logsum[{', '.join(self.axes)}, tile_m] = highest + torch.log2(total)",
            "    return out, logsum",
        ]

    def sums(self) -> list[str]:
        """Return the kernel of the sums of gradient * output, less the gradient of logarithms of sums."""
        place = ", ".join(self.axes)
        more, less, out = "", "", f"out[{place}, tile_m, :]"
        if self.saved is not None:
            given = self.saved.indexed.text("grad_logsum", self.axes, "tile_m")
            more, less = ", grad_logsum", f" - {given} * {self.saved.unit!r}"
            out = self.indexed["grad"].text("out", self.axes, "tile_m")
        return [
            f"def sums_of_products(grad, out{more}):",
            f"    delta = torch.empty({self.row}, dtype=torch.float32, device=grad.device)",
            self.grid(self.problem.heads, "tile_m", self.problem.queries),
            f"        given = {self.load('grad', 'tile_m')}.to(torch.float32)",
            f"        delta[{place}, tile_m] = torch.sum(given * {out}.to(torch.float32), -1){less}",
            "    return delta",
        ]

    def rows(self, axes: tuple[str, ...]) -> str:
        """Return the line that loads logarithms in powers of two, and sums."""
        place = ", ".join(axes)
        logsum = f"logsum[{place}, tile_m]" if self.saved is None else self.saved.text(axes)
        return f"logsum_rows, delta_rows = {logsum}, delta[{place}, tile_m]"

    def of_queries(self) -> list[str]:
        problem = self.problem
        body = [
            f"key = {self.load('k', 'tile_n')}",
            *self.scores("query", "key"),
            "p = torch.exp2(s - logsum_rows[:, None])",
            f"dp = hl.dot(upstream, {self.load('v', 'tile_n')}.T)",
            *self.changes(),
            "acc = hl.dot(ds.to(key.dtype), key, acc=acc)",
        ]
        return [
            "def gradient_of_queries(q, k, v, grad, logsum, delta):",
            self.allocated("grad_q", "q"),
            self.grid(problem.heads, "tile_m", problem.queries),
            f"        query, upstream = {self.load('q', 'tile_m')}, {self.load('grad', 'tile_m')}",
            f"        {self.rows(self.axes)}",
            f"        acc = hl.zeros([tile_m, {problem.q.columns}], dtype=torch.float32)",
            f"        for tile_n in hl.tile({problem.keys}):",
            *(f"            {line}" for line in body),
            f"        {self.indexed['q'].ordered.text('grad_q', self.axes, 'tile_m')} = acc * {self.unit!r}",
            "    return grad_q",
        ]

    def of_keys(self) -> list[str]:
        """Return the kernel of the gradients of keys and values, whose tiles are keys."""
        return [
            "def gradients_of_keys(q, k, v, grad, logsum, delta):",
            *self.tiles_of_keys(["key_sum = hl.dot(ds.to(query.dtype).T, query, acc=key_sum)"]),
            "    return grad_k, grad_v",
        ]

    def of_all(self) -> list[str]:
        """Return the same kernel with the gradient of queries, which tiles of keys add to memory in fp32."""
        query = self.indexed["q"].ordered
        places = [
            {"rows": "tile_m", "columns": "slice(None)"}[each] if isinstance(each, str) else each.text(self.members)
            for each in query.dims
        ]
        differences = [
            "differences = ds.to(query.dtype)",
            "key_sum = hl.dot(differences.T, query, acc=key_sum)",
            f"hl.atomic_add(sum_q, [{', '.join(places)}], hl.dot(differences, key) * {self.unit!r})",
        ]
        return [
            "def all_gradients(q, k, v, grad, logsum, delta):",
            f"    sum_q = torch.zeros({self.indexed['q'].shape()}, dtype=torch.float32, device=q.device)",
            *self.tiles_of_keys(differences),
            "    return sum_q, grad_k, grad_v",
        ]

    @property
    def members(self) -> tuple[str, ...]:
        """The coordinates of a head, of those that share the keys of a tile, in the loop over these."""
        pairs = zip(self.axes, self.shared, strict=True)
        return tuple(f"({axis} * {number} + member)" if number > 1 else axis for axis, number in pairs)

    def tiles_of_keys(self, differences: list[str]) -> list[str]:
        """Return the loops over tiles of keys, and in these over queries; ``differences`` are the lines that use ``ds``. Heads
        that share keys are a loop around that over queries."""
        problem, member = self.problem, any(number > 1 for number in self.shared)
        groups = [size // number for size, number in zip(problem.heads, self.shared, strict=True)]
        heads, indent = self.members, "    " if member else ""
        body = [
            f"query, upstream = {self.load('q', 'tile_m', heads)}, {self.load('grad', 'tile_m', heads)}",
            self.rows(heads),
            *self.scores("query", "key"),
            "p = torch.exp2(s - logsum_rows[:, None])",
            "value_sum = hl.dot(p.to(upstream.dtype).T, upstream, acc=value_sum)",
            "dp = hl.dot(upstream, value.T)",
            *self.changes(),
            *differences,
        ]
        loop = [f"        for member in hl.grid({max(self.shared)}):"] if member else []
        return [
            self.allocated("grad_k", "k"),
            self.allocated("grad_v", "v"),
            self.grid(groups, "tile_n", problem.keys),
            f"        key, value = {self.owned('k')}, {self.owned('v')}",
            f"        key_sum = hl.zeros([tile_n, {problem.k.columns}], dtype=torch.float32)",
            f"        value_sum = hl.zeros([tile_n, {problem.v.columns}], dtype=torch.float32)",
            *loop,
            f"        {indent}for tile_m in hl.tile({problem.queries}):",
            *(f"            {indent}{line}" for line in body),
            f"        {self.owned('k', 'grad_k')} = key_sum * {self.unit!r}",
            f"        {self.owned('v', 'grad_v')} = value_sum",
        ]

    def owned(self, of: str, name: str = "") -> str:
        """Return the rows of a tile of keys, whose coordinates are those of groups of heads."""
        found = self.indexed[of].ordered if name else self.indexed[of]
        plain = tuple(_of_group(each) if isinstance(each, Place) else each for each in found.dims)
        return Indexed(tensor=found.tensor, dims=plain).text(name or of, self.axes, "tile_n")


def _of_group(place: Place) -> Place:
    """Return the coordinate of a group of heads whose quotient is a place."""
    first = place.arguments[0]
    return first if place.op == "floordiv" and isinstance(first, Place) else place


def _seen(band: Band) -> str:
    """Return the text of a mask by the distance of key and query."""
    distance = "tile_n.index[None, :] - tile_m.index[:, None]"
    parts = [f"({distance} <= {band.last})"] if band.last is not None else []
    parts += [f"({distance} >= {band.first})"] if band.first is not None else []
    return " & ".join(parts)
