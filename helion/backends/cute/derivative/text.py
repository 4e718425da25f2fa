"""The source of the kernels that compute the gradients of an attention. Queries by keys are the order of all products."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...._compiler.autodiff.transform import Parameter, StagedBackward, StagedForward
from ...._shapes import dtype_name
from ..plan.attention.operands import Place
from ..plan.attention.records import AttentionProblem
from .indexed import FIRST, Indexed, axis_of, group_of
from .ranges import Ranges
from .scores import Input, Score, Sink, name_of_number
from .sizes import Sizes

LOWEST = repr(-(2.0**128 - 2.0**104))
"""The least finite number in fp32, which no finite score is below."""
DIFFERENCES = "ds = p * (dp - delta_rows[:, None])"


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


@dataclass(frozen=True, kw_only=True)
class Known:
    """An attention in the form that gradients are derived from.

    ``shared`` has the heads that share a matrix of keys and values, by coordinate. ``indexed`` are q, k, v and the gradient of
    the output. ``ids`` are the tensors by their names in the kernels, ``outputs`` those of outputs by kind. A ``guarded`` output
    is 0 for a query without keys. With ``ranged`` the keys of a query are a range that is loaded for it, and ``zeros`` are the
    program's outputs of queries without keys. ``length`` is the number of keys of a head, if it is loaded.
    """

    problem: AttentionProblem
    score: Score
    sink: Sink | None
    guarded: bool
    ranged: bool
    zeros: bool
    length: Indexed | None
    shared: tuple[int, ...]
    indexed: dict[str, Indexed]
    saved: Saved | None
    ids: dict[str, int]
    outputs: dict[str, int]

    @property
    def hides(self) -> bool:
        """True if a query may see no key."""
        return self.score.selects or self.ranged or self.length is not None


@dataclass(frozen=True, kw_only=True)
class Derived:
    """The kernels of the gradients of the tensors ``results``; ``together``: one for all gradients of q, k and v, if its order
    may vary. With ``ahead`` a kernel that stores logarithms runs in place of the program's. With ``aligned`` the kernels serve
    any sizes."""

    known: Known
    name: str
    results: tuple[int, ...]
    together: bool
    ahead: bool
    aligned: tuple[bool, bool] | None = None

    @property
    def problem(self) -> AttentionProblem:
        return self.known.problem

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(f"h{at}.begin" for at in range(len(self.problem.heads)))

    @property
    def place(self) -> str:
        """The rows of a tile of queries in tensors of one number for each."""
        return ", ".join((*self.axes, "tile_m"))

    @functools.cached_property
    def sizes(self) -> Sizes:
        known = self.known
        return Sizes(problem=known.problem, indexed=known.indexed, shared=known.shared, aligned=self.aligned)

    @property
    def ranges(self) -> Ranges:
        known, sizes = self.known, self.sizes
        length = "" if known.length is None else known.length.places(self.axes)
        return Ranges(is_loaded=known.ranged, length=length, queries=sizes.queries, keys=sizes.keys)

    @property
    def wanted(self) -> tuple[Input, ...]:
        """The inputs of scores that have gradients."""
        return tuple(each for each in self.known.score.inputs if self.known.ids.get(each.name) in self.results)

    @property
    def wanted_sink(self) -> Sink | None:
        """The score without a value, if it has a gradient."""
        sink = self.known.sink
        return sink if sink is not None and self.known.ids.get(sink.input.name) in self.results else None

    @property
    def has_all_slopes(self) -> bool:
        """True if the score has a derivative by each input that has a gradient, whose heads are coordinates."""
        score, sink = self.known.score, self.wanted_sink
        slopes = dict(zip((each.name for each in score.inputs), score.slopes[1:], strict=True))
        known = all(slopes[each.name] is not None for each in self.wanted)
        return known and all(_of_axes(each) for each in (*self.wanted, *((sink.input,) if sink else ())))

    # Host code -------------------------------------------------------------------------------------------------------------

    @property
    def others(self) -> tuple[str, ...]:
        """The parameters of kernels with scores, other than q, k, v and what they are differentiated with."""
        found = [name for each in self.known.score.inputs for name in each.parameters]
        return (*dict.fromkeys(found), *self.ranges.parameters)

    @property
    def statistics(self) -> tuple[str, ...]:
        """Names of the statistics of rows that are kept. With large scores, logarithms are of sums relative to the maxima."""
        return ("logsum", "peaks") if self.problem.has_large_scores else ("logsum",)

    @property
    def of_sink(self) -> tuple[str, ...]:
        """The parameters that a score without a value reads."""
        return () if self.known.sink is None else self.known.sink.input.parameters

    def staged(self) -> StagedBackward:
        """Return the kernels, and the function that calls them."""
        kernels, lines, parameters = self._first()
        needed = {name for name, at in self.known.ids.items() if at in self.results}
        given = ", ".join(("q", "k", "v", "grad", *self.statistics, "delta", *self.others))
        apart = []
        if "q" in needed:
            kernels.append(self.of_queries())
            apart.append(f"grad_q = gradient_of_queries({given})")
        if needed & {"k", "v"}:
            kernels.append(self.of_keys())
            apart += self.ranges.lines(f"k.size({self.known.indexed['k'].dims.index('rows')})")
            apart.append(f"grad_k, grad_v = gradients_of_keys({', '.join((given, *self.ranges.of_keys))})")
        if self.together:
            kernels.append(self.of_all())
            lines += [
                "if torch.are_deterministic_algorithms_enabled():",
                *(f"    {line}" for line in apart),
                "else:",
                f"    sum_q, grad_k, grad_v = all_gradients({given})",
                "    grad_q = sum_q.to(q.dtype)",
            ]
        else:
            lines += apart
        for each in self.wanted:
            kernels.append(self.of_input(each))
            lines.append(f"grad_{each.name} = {self._summed(each, f'gradient_of_{each.name}({given})')}")
        order = {at: name for name, at in self.known.ids.items()}
        lines.append(f"return {', '.join(self.returned(at) for at in self.results)}")
        return StagedBackward(
            kernels=tuple(tuple(each) for each in kernels),
            lines=(
                f"def {self.name}({', '.join(each.name for each in parameters)}):",
                f'    """Gradients of attention with respect to {", ".join(order[at] for at in self.results)}."""',
                *(f"    {line}" for line in lines),
            ),
            parameters=tuple(parameters),
            results=self.results,
            forward=self.forward() if self.ahead else None,
            any_size=self.aligned is not None,
        )

    def _first(self) -> tuple[list[list[str]], list[str], list[Parameter]]:
        """Return the kernels and the lines before those of gradients, and the parameters."""
        known, outputs = self.known, self.known.outputs
        kernels, lines = [self.sums()], list[str]()
        result = Parameter(name="out", kind="result", tensor=outputs["exact"])
        parameters = [Parameter(name="grad", kind="gradient", tensor=outputs["exact"])]
        parameters += [Parameter(name=name, kind="tensor", tensor=at) for name, at in known.ids.items()]
        parameters += self._numbers()
        if known.saved is not None:
            parameters += [
                result,
                Parameter(name="grad_logsum", kind="gradient", tensor=outputs["query"]),
                Parameter(name="logsum", kind="result", tensor=outputs["query"]),
            ]
        elif self.ahead:
            parameters += [result, *(Parameter(name=each, kind="kept") for each in self.statistics)]
        else:
            kernels.insert(0, self.again())
            lines.append(f"out, {', '.join(self.statistics)} = attention_again({self._read})")
        sums = f"sums_of_products({', '.join(self._read_by_sums)})"
        if self.wanted_sink is None:
            lines.append(f"delta = {sums}")
        else:
            lines += [f"delta, shares = {sums}", f"grad_{self.wanted_sink.input.name} = {self._of_shares()}"]
        return kernels, lines, parameters

    @property
    def _read(self) -> str:
        return ", ".join(("q", "k", "v", *dict.fromkeys((*self.others, *self.of_sink))))

    def _numbers(self) -> list[Parameter]:
        """Return the parameters that are numbers of host code."""
        symbols = dict.fromkeys(symbol for each in self.known.score.inputs for symbol in each.symbols)
        return [Parameter(name=name_of_number(each), kind="number", symbol=each) for each in symbols]

    @property
    def _read_by_sums(self) -> tuple[str, ...]:
        saved = ("grad_logsum",) if self.known.saved is not None else ()
        shares = ("logsum", *self.of_sink) if self.wanted_sink is not None else ()
        return "grad", "out", *saved, *shares, *self.ranges.parameters

    def _of_shares(self) -> str:
        sink = self.wanted_sink
        assert sink is not None
        return self._summed(sink.input, f"shares * {-sink.factor * math.log(2)!r}")

    def _summed(self, of: Input, partial: str) -> str:
        """Return the gradient of an input from one number for each head, and for each query or key but for ``exact`` ones."""
        assert of.indexed is not None
        if of.kind == "exact":
            return partial
        own = [each for each in of.indexed.dims if each != FIRST]
        heads = len(self.problem.heads)
        axes = [heads if isinstance(each, str) else axis_of(each) for each in own]
        others = [at for at in range(heads + 1) if at not in axes]
        order = [sorted(axes).index(at) for at in axes]
        shape = [int(size) for size in of.indexed.tensor.shape]
        found = f"({partial})"
        found += f".sum({tuple(others)})" if others else ""
        found += f".permute({tuple(order)})" if order != sorted(order) else ""
        return f"{found}.reshape({shape}).to({of.name}.dtype)"

    def returned(self, tensor: int) -> str:
        """Return the gradient of a tensor in its shape. Those of q, k and v are stacked if they are in one tensor."""
        names = [name for name, at in self.known.ids.items() if at == tensor]
        if len(names) == 1:
            return self._in_shape(names[0])
        ordered = sorted(names, key=self._number_in_tensor)
        (dim,) = self.known.indexed["q"].chosen
        return f"torch.stack(({', '.join(map(self._in_shape, ordered))}), {dim})"

    def _in_shape(self, of: str) -> str:
        found = self.known.indexed[of].own if of in self.known.indexed else None
        if found is None or found.columns == len(found.dims) - 1:
            return f"grad_{of}"
        return f"grad_{of}.movedim(-1, {found.columns})"

    def _number_in_tensor(self, of: str) -> int:
        indexed = self.known.indexed[of]
        place = indexed.dims[indexed.chosen[0]]
        assert isinstance(place, Place) and isinstance(place.arguments[0], int)
        return place.arguments[0]

    # Parts of kernels ------------------------------------------------------------------------------------------------------

    def load(self, name: str, rows: str, axes: tuple[str, ...] | None = None) -> str:
        return self.known.indexed[name].text(name, self.axes if axes is None else axes, rows)

    def grid(self, heads: Sequence[str], tile: str, rows: str) -> str:
        names = [f"h{at}" for at in range(len(heads))]
        sizes, ones = ", ".join((*heads, rows)), ", ".join("1" for _ in heads)
        return f"    for {', '.join([*names, tile])} in hl.tile([{sizes}], block_size=[{ones}, None]):"

    def allocated(self, name: str, of: str) -> str:
        dtype = dtype_name(self.known.indexed[of].tensor.dtype)
        return f"    {name} = torch.empty({self.sizes.shape(of)}, dtype=torch.{dtype}, device=q.device)"

    def scores(self, query: str, key: str, axes: tuple[str, ...]) -> list[str]:
        """Return the lines of scores ``s`` of a tile of queries by a tile of keys: large ones, or else in powers of two."""
        score = self.known.score
        unit = "" if self.problem.has_large_scores else f" * {score.unit!r}"
        lines = [
            f"x = hl.dot({query}, {key}.T)",
            *score.reads(axes),
            *score.lines,
            f"s = {score.value}{unit}",
        ]
        seen = " & ".join(each for each in (self.sizes.seen(), *self.ranges.seen) if each)
        return [*lines, f's = torch.where({seen}, s, float("-inf"))'] if seen else lines

    def changes(self, of: int = 0) -> list[str]:
        """Return the lines of the gradients ``ds`` of products, or of an input, but for their unit."""
        slope = self.known.score.slopes[of]
        return [DIFFERENCES, *([] if slope == "1.0" else [f"ds = ds * {slope}"])]

    @property
    def unit(self) -> float:
        return self.known.score.unit * math.log(2)

    def rows(self, axes: tuple[str, ...]) -> str:
        """Return the line that loads logarithms in powers of two, and sums."""
        place, saved = ", ".join(axes), self.known.saved
        logsum = f"logsum[{place}, tile_m]" if saved is None else saved.text(axes)
        if saved is not None and self.known.hides:
            logsum = f'torch.where({logsum} > float("-inf"), {logsum}, float("inf"))'
        if self.problem.has_large_scores:
            return f"logsum_rows, peak_rows, delta_rows = {logsum}, peaks[{place}, tile_m], delta[{place}, tile_m]"
        return f"logsum_rows, delta_rows = {logsum}, delta[{place}, tile_m]"

    def relative(self, scores: str, maxima: str) -> str:
        """Return scores less maxima in powers of two."""
        if self.problem.has_large_scores:
            return f"({scores} - {maxima}) * {self.known.score.unit!r}"
        return f"{scores} - {maxima}"

    @property
    def weights(self) -> str:
        """The line of the weights ``p`` of a tile, by the logarithms of their rows."""
        scores = self.relative("s", "peak_rows[:, None]") if self.problem.has_large_scores else "s"
        return f"p = torch.exp2({scores} - logsum_rows[:, None])"

    def header(self, name: str, *more: str) -> str:
        return f"def {name}({', '.join(('q', 'k', 'v', 'grad', *self.statistics, 'delta', *self.others, *more))}):"

    # Kernels of the output and of sums -------------------------------------------------------------------------------------

    def again(self) -> list[str]:
        """Return the kernel that computes the output again, and logarithms of sums."""
        dtype = f"[{', '.join((*self.sizes.heads, self.sizes.queries, str(self.problem.v.columns)))}], dtype=v.dtype"
        return [
            f"def attention_again({self._read}):",
            *self.sizes.lines("q", "k", "v"),
            f"    out = torch.empty({dtype}, device=q.device)",
            *self._attention(f"out[{self.place}, :]"),
            f"    return out, {', '.join(self.statistics)}",
        ]

    def forward(self) -> StagedForward:
        """Return the kernel that runs in place of the program's, and stores logarithms of sums as well."""
        ids, outputs = self.known.ids, self.known.outputs
        tensors = [(name, at) for name, at in ids.items() if name in ("q", "k", "v", *self.others, *self.of_sink)]
        parameters = [Parameter(name=name, kind="tensor", tensor=at) for name, at in tensors]
        parameters += self._numbers()
        parameters.append(Parameter(name="out", kind="written", tensor=outputs["exact"]))
        return StagedForward(
            name="attention_with_logarithms",
            lines=(
                f"def attention_with_logarithms({', '.join(each.name for each in parameters)}):",
                *self.sizes.lines("q", "k", "v"),
                *self._attention(self.known.indexed["grad"].text("out", self.axes, "tile_m")),
                f"    return {', '.join(self.statistics)}",
            ),
            parameters=tuple(parameters),
            kept=self.statistics,
        )

    def _attention(self, output: str) -> list[str]:
        problem, sink = self.problem, self.known.sink
        body = [
            *self.scores("query", self.load("k", "tile_n"), self.axes),
            "raised = torch.maximum(highest, torch.amax(s, -1))",
            f"p = torch.exp2({self.relative('s', 'raised[:, None]')})",
            f"shrink = torch.exp2({self.relative('highest', 'raised')})",
            "total = total * shrink + torch.sum(p, -1)",
            f"acc = hl.dot(p.to(v.dtype), {self.load('v', 'tile_n')}, acc=acc * shrink[:, None])",
            "highest = raised",
        ]
        large = self.problem.has_large_scores
        logsum, start = ("torch.log2(total)", LOWEST) if large else ("highest + torch.log2(total)", "-1e30")
        if self.known.hides:  # else weights of a query without keys are no numbers
            logsum = f'torch.where(total > 0, {logsum}, float("inf"))'
        guarded = "torch.where(total > 0, total, 1.0)" if self.known.guarded else "total"
        added = [] if sink is None else [f"        total = total + torch.exp2({sink.text(self.axes)} - highest)"]
        return [
            *(
                f"    {name} = torch.empty({self.sizes.row}, dtype=torch.float32, device=q.device)"
                for name in self.statistics
            ),
            self.grid(self.sizes.heads, "tile_m", self.sizes.queries),
            f"        query = {self.load('q', 'tile_m')}",
            *(f"        {line}" for line in self.ranges.loads),
            f"        highest = hl.full([tile_m], {start}, dtype=torch.float32)",
            "        total = hl.zeros([tile_m], dtype=torch.float32)",
            f"        acc = hl.zeros([tile_m, {problem.v.columns}], dtype=torch.float32)",
            f"        for tile_n in {self.ranges.loop_of_keys}:",
            *(f"            {line}" for line in body),
            *added,
            f"        {output} = acc / {guarded}[:, None]",
            f"        logsum[{self.place}] = {logsum}",
            *([f"        peaks[{self.place}] = highest"] if large else []),
        ]

    def sums(self) -> list[str]:
        """Return the kernel of the sums of gradient * output, less the gradient of logarithms of sums. With a score without a
        value it also returns its weights times these sums."""
        saved, sink = self.known.saved, self.wanted_sink
        less, out = "", f"out[{self.place}, :]"
        if saved is not None:
            less = f" - {saved.indexed.text('grad_logsum', self.axes, 'tile_m')} * {saved.unit!r}"
        if saved is not None or self.ahead:
            out = self.known.indexed["grad"].text("out", self.axes, "tile_m")
        logsum = f"logsum[{self.place}]" if saved is None else saved.text(self.axes)
        sums = f"torch.sum({self.ranges.product(f'given * {out}.to(torch.float32)')}, -1){less}"
        shares = []
        if sink is not None:
            shares = ["    shares = torch.empty_like(delta)"]
            sums = f"delta_rows = {sums}"
        return [
            f"def sums_of_products({', '.join(self._read_by_sums)}):",
            *self.sizes.lines("grad"),
            f"    delta = torch.empty({self.sizes.row}, dtype=torch.float32, device=grad.device)",
            *shares,
            self.grid(self.sizes.heads, "tile_m", self.sizes.queries),
            f"        given = {self.load('grad', 'tile_m')}.to(torch.float32)",
            *(
                [f"        delta[{self.place}] = {sums}", "    return delta"]
                if sink is None
                else [
                    f"        {sums}",
                    f"        delta[{self.place}] = delta_rows",
                    f"        shares[{self.place}] = torch.exp2({sink.text(self.axes)} - {logsum}) * delta_rows",
                    "    return delta, shares",
                ]
            ),
        ]

    # Kernels of gradients --------------------------------------------------------------------------------------------------

    def of_queries(self) -> list[str]:
        problem = self.problem
        body = [
            f"key = {self.load('k', 'tile_n')}",
            *self.scores("query", "key", self.axes),
            self.weights,
            f"dp = hl.dot(upstream, {self.load('v', 'tile_n')}.T)",
            *self.changes(),
            "acc = hl.dot(ds.to(key.dtype), key, acc=acc)",
        ]
        return [
            self.header("gradient_of_queries"),
            *self.sizes.lines("q", "k", "v", "grad"),
            self.allocated("grad_q", "q"),
            self.grid(self.sizes.heads, "tile_m", self.sizes.queries),
            f"        query, upstream = {self.load('q', 'tile_m')}, {self.load('grad', 'tile_m')}",
            f"        {self.rows(self.axes)}",
            *(f"        {line}" for line in self.ranges.loads),
            f"        acc = hl.zeros([tile_m, {problem.q.columns}], dtype=torch.float32)",
            f"        for tile_n in {self.ranges.loop_of_keys}:",
            *(f"            {line}" for line in body),
            f"        {self.known.indexed['q'].own.ordered.text('grad_q', self.axes, 'tile_m')} = acc * {self.unit!r}",
            "    return grad_q",
        ]

    def of_keys(self) -> list[str]:
        """Return the kernel of the gradients of keys and values, whose tiles are keys."""
        return [
            self.header("gradients_of_keys", *self.ranges.of_keys),
            *self.sizes.lines("q", "k", "v", "grad"),
            *self.tiles_of_keys(["key_sum = hl.dot(ds.to(query.dtype).T, query, acc=key_sum)"]),
            "    return grad_k, grad_v",
        ]

    def of_all(self) -> list[str]:
        """Return the same kernel with the gradient of queries, which tiles of keys add to memory in fp32."""
        query = self.known.indexed["q"].own.ordered
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
            self.header("all_gradients"),
            *self.sizes.lines("q", "k", "v", "grad"),
            f"    sum_q = torch.zeros({self.sizes.shape('q')}, dtype=torch.float32, device=q.device)",
            *self.tiles_of_keys(differences),
            "    return sum_q, grad_k, grad_v",
        ]

    @property
    def members(self) -> tuple[str, ...]:
        """The coordinates of a head, of those that share the keys of a tile, in the loop over these."""
        pairs = zip(self.axes, self.known.shared, strict=True)
        return tuple(f"({axis} * {number} + member)" if number > 1 else axis for axis, number in pairs)

    def tiles_of_keys(self, differences: list[str]) -> list[str]:
        """Return the loops over tiles of keys, and in these over queries; ``differences`` are the lines that use ``ds``. Heads
        that share keys are a loop around that over queries."""
        problem, member = self.problem, any(number > 1 for number in self.known.shared)
        heads, indent = self.members, "    " if member else ""
        body = [
            f"query, upstream = {self.load('q', 'tile_m', heads)}, {self.load('grad', 'tile_m', heads)}",
            self.rows(heads),
            *self.ranges.loads_in_loop,
            *self.scores("query", "key", heads),
            self.ranges.of_rows(self.weights),
            "value_sum = hl.dot(p.to(upstream.dtype).T, upstream, acc=value_sum)",
            "dp = hl.dot(upstream, value.T)",
            *self.changes(),
            *differences,
        ]
        loop = [f"        for member in hl.grid({max(self.known.shared)}):"] if member else []
        return [
            self.allocated("grad_k", "k"),
            self.allocated("grad_v", "v"),
            self.grid(self.sizes.groups, "tile_n", self.sizes.keys),
            f"        key, value = {self.owned('k')}, {self.owned('v')}",
            *(f"        {line}" for line in self.ranges.loads_of_keys),
            f"        key_sum = hl.zeros([tile_n, {problem.k.columns}], dtype=torch.float32)",
            f"        value_sum = hl.zeros([tile_n, {problem.v.columns}], dtype=torch.float32)",
            *loop,
            f"        {indent}for tile_m in {self.ranges.loop_of_queries}:",
            *(f"            {indent}{line}" for line in body),
            f"        {self.owned('k', 'grad_k')} = {self.ranges.gradient(f'key_sum * {self.unit!r}')}",
            f"        {self.owned('v', 'grad_v')} = {self.ranges.gradient('value_sum')}",
        ]

    def owned(self, of: str, name: str = "") -> str:
        """Return the rows of a tile of keys, whose coordinates are those of groups of heads."""
        found = self.known.indexed[of].own.ordered if name else self.known.indexed[of]
        plain = tuple(group_of(each) if isinstance(each, Place) else each for each in found.dims)
        return replace(found, dims=plain).text(name or of, self.axes, "tile_n")

    def of_input(self, of: Input) -> list[str]:
        """Return the kernel of the gradient of an input of scores: of an ``exact`` one, or else its sums for each head and
        query, or key."""
        return self._of_elements(of) if of.kind == "exact" else self._of_vectors(of)

    def _tile(self, of: Input, axes: tuple[str, ...]) -> list[str]:
        """Return the lines of the gradients ``ds`` of an input for a tile of queries by a tile of keys."""
        return [
            f"query, upstream = {self.load('q', 'tile_m', axes)}, {self.load('grad', 'tile_m', axes)}",
            f"key, value = {self.load('k', 'tile_n', axes)}, {self.load('v', 'tile_n', axes)}",
            self.rows(axes),
            *self.scores("query", "key", axes),
            self.weights,
            "dp = hl.dot(upstream, value.T)",
            *self.changes(1 + self.known.score.inputs.index(of)),
        ]

    def _of_elements(self, of: Input) -> list[str]:
        """Return the kernel whose tiles are those of the input, and which loops over the heads that share its elements."""
        assert of.indexed is not None
        problem, tensor = self.problem, of.indexed.tensor
        own = [axis_of(each) for each in of.indexed.dims if isinstance(each, Place) and each != FIRST]
        names = [*(f"h{at}" for at in own), "tile_m", "tile_n"]
        sizes = [*(problem.heads[at] for at in own), problem.queries, problem.keys]
        ones = ", ".join([*("1" for _ in own), "None", "None"])
        axes = tuple(f"h{at}.begin" if at in own else f"h{at}" for at in range(len(problem.heads)))
        indent, loops = " " * 8, list[str]()
        for at, size in enumerate(problem.heads):
            if at not in own:
                loops.append(f"{indent}for h{at} in hl.grid({size}):")
                indent += " " * 4
        dtype = dtype_name(tensor.dtype)
        return [
            self.header(f"gradient_of_{of.name}"),
            f"    made = torch.empty({[int(size) for size in tensor.shape]}, dtype=torch.{dtype}, device=q.device)",
            f"    for {', '.join(names)} in hl.tile({sizes}, block_size=[{ones}]):",
            "        total = hl.zeros([tile_m, tile_n], dtype=torch.float32)",
            *loops,
            *(f"{indent}{line}" for line in (*self._tile(of, axes), "total = total + ds")),
            f"        made[{of.indexed.places(axes)}] = total{'.T' if of.indexed.is_turned else ''} * {self.unit!r}",
            "    return made",
        ]

    def _of_vectors(self, of: Input) -> list[str]:
        """Return the kernel of the sums over keys of each query, or over queries of each key."""
        problem = self.problem
        tiles = ("tile_m", str(problem.queries)), ("tile_n", str(problem.keys))
        (own, rows), (other, others) = tiles if of.kind != "key" else tiles[::-1]
        return [
            self.header(f"gradient_of_{of.name}"),
            f"    made = torch.empty([{', '.join((*self.sizes.heads, rows))}], dtype=torch.float32, device=q.device)",
            self.grid(self.sizes.heads, own, rows),
            f"        total = hl.zeros([{own}], dtype=torch.float32)",
            f"        for {other} in hl.tile({others}):",
            *(f"            {line}" for line in self._tile(of, self.axes)),
            f"            total = total + torch.sum(ds, {-1 if own == 'tile_m' else 0})",
            f"        made[{', '.join((*self.axes, own))}] = total * {self.unit!r}",
            "    return made",
        ]


def _of_axes(each: Input) -> bool:
    """Return whether the dimensions of an input are coordinates of a head, rows and columns."""
    places = () if each.indexed is None else each.indexed.dims
    return all(isinstance(at, str) or at == FIRST or at.op == "axis" for at in places)
