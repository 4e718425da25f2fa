"""The printed functions of attention's gradients, executed for all threads of a consumer group at once.

MMAs and loads are torch's; all else is the printed text: the tiles and their order, blocks and parts, masks, formulas, and
the elements that threads hold.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from backends.cute.printed_blocks import function, visited

from helion._support.philox import WORD, philox, uniform
from helion.backends.cute.codegen.attention import atomic as printed_sums
from helion.backends.cute.codegen.attention import backward as printed
from helion.backends.cute.codegen.attention import bounds, spans, vectors
from helion.backends.cute.codegen.attention.formula import arguments_of
from helion.backends.cute.plan.attention.backward import BackwardPlan
from helion.backends.cute.plan.attention.operands import Matrix, Mode, Source

THREADS = torch.arange(128)
LANE, WARP = THREADS % 32, THREADS // 32


class Lanes(torch.Tensor):
    """One number for each thread, of which a conversion to a type of the DSL is itself."""

    def to(self, *kind: Any) -> Any:  # type: ignore[override]
        return self

    def toint(self) -> Any:
        return self


def _lanes(value: Any) -> Lanes:
    return torch.as_tensor(value).as_subclass(Lanes)


def _wide(one: Any, other: Any, function: Callable[..., torch.Tensor]) -> Lanes:
    return _lanes(function(torch.as_tensor(one), torch.as_tensor(other)))


CUTLASS = SimpleNamespace(
    range=lambda *bounds, unroll_full: range(*bounds),
    range_constexpr=range,
    Int32=lambda value: value,
    Int64=lambda value: value,
    Float32=lambda value: value,
    min=lambda *values: functools.reduce(lambda x, y: _wide(x, y, torch.minimum), values),
    max=lambda *values: functools.reduce(lambda x, y: _wide(x, y, torch.maximum), values),
    select_=lambda condition, one, other: _lanes(torch.where(torch.as_tensor(condition), one, other)),
    BFloat16=torch.bfloat16,
    Float16=torch.float16,
)
CUTE = SimpleNamespace(
    jit=lambda function: function,
    make_rmem_tensor=lambda size, kind: [None] * size,
    recast_tensor=lambda tensor, kind: tensor,
    math=SimpleNamespace(exp2=lambda x, **given: _lanes(torch.exp2(x))),
    arch=SimpleNamespace(rcp_approx=lambda x: _lanes(1 / x)),
    crd2idx=lambda places, layout: _lanes(layout(places)),
)


class Held(list):
    """A tensor in registers: its elements, or the pairs of a packed one."""

    def load(self) -> Held:
        return self

    def to(self, kind: torch.dtype) -> Held:
        return Held(each.as_subclass(torch.Tensor).to(kind) for each in self)

    def store(self, other: Held) -> None:
        self[:] = other


def _elements(columns: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return row and column of each element of a thread in an accumulator of 64 rows."""
    return [(WARP * 16 + LANE // 4 + e // 2 % 2 * 8, e // 4 * 8 + LANE % 4 * 2 + e % 2) for e in range(columns // 2)]


STAGE = 1
"""The stage that printed functions are given."""


def _number(mode: Mode, head: Sequence[int]) -> int:
    axes = {f"head_{at}": number for at, number in enumerate(head)}
    return int(eval(mode.at.text(tuple(axes)), {}, axes))


def _place(modes: Sequence[Mode], head: Sequence[int]) -> int:
    return sum(mode.stride * _number(mode, head) for mode in modes)


def _matrix(matrix: Matrix, tensor: torch.Tensor, head: Sequence[int], rows: int) -> torch.Tensor:
    start = matrix.offset + _place(matrix.modes, head)
    return torch.as_strided(tensor, (rows, matrix.columns), (matrix.pitch, 1), start)


class Vector:
    """A source in global memory, indexed as the kernel does."""

    def __init__(self, source: Source, tensor: torch.Tensor) -> None:
        self.source, self.flat, self.iterator = source, torch.as_strided(tensor, (tensor.numel(),), (1,)), 0

    def layout(self, places: tuple[Any, ...]) -> torch.Tensor:
        """Return the number of an element, as the layout of the tensor and its offset give it."""
        strides = (*self.source.pitches, *(mode.stride for mode in self.source.modes))
        found = [torch.as_tensor(place) * stride for place, stride in zip(places, strides, strict=True)]
        return torch.as_tensor(self.source.offset + sum(found))

    def write(self, adds: bool, address: Any, room: Any, first: int, low: Any, high: Any) -> None:
        """Store two numbers of a row, those that are in it. ``address`` and ``room`` are those of the thread's first element."""
        for more, value in enumerate((low, high)):
            inside = torch.as_tensor(room) > first + more
            at = (torch.as_tensor(address) + (first + more) * self.source.pitches[1])[inside]
            value = value[inside].as_subclass(torch.Tensor).to(self.flat.dtype)
            self.flat.index_put_((at,), value, accumulate=adds)

    def write_vector(self, address: Any, room: Any, first: int, words: Sequence[Any]) -> None:
        """Store eight numbers of a row."""
        for at, pair in enumerate(words):
            self.write(False, address, room, first + 2 * at, *pair)

    def __getitem__(self, places: tuple[Any, ...]) -> Lanes:
        found = self.flat[self.layout(places)]
        return _lanes(found if found.dtype == torch.int32 else found.float())


class Staged:
    """The stage of a source in shared memory: the numbers of a block's rows, and zeros past the end, as TMA loads them."""

    def __init__(self, plan: BackwardPlan, source: Source, vector: Vector, first: int, head: Sequence[int]) -> None:
        rows = torch.arange(first, first + plan.keys)
        places = (0, rows.clamp(max=plan.problem.keys - 1), *(_number(mode, head) for mode in source.modes))
        self.rows = torch.where(rows < plan.problem.keys, vector[places], 0.0).as_subclass(torch.Tensor)

    def __getitem__(self, places: tuple[None, torch.Tensor, int, int]) -> SimpleNamespace:
        pair, of_lane, column, stage = places
        assert pair is None and stage == STAGE
        first = 2 * of_lane + 8 * column
        return SimpleNamespace(load=lambda: [_lanes(self.rows[first + i]) for i in range(2)])


def _uniform(seed: int, offset: torch.Tensor, wide: bool) -> Lanes:
    found = philox(
        torch.tensor(seed), offset.as_subclass(torch.Tensor) if wide else offset.as_subclass(torch.Tensor) & WORD
    )
    return _lanes(uniform(found[0]))


def _block(rows: torch.Tensor, first: int, count: int) -> torch.Tensor:
    """Return rows of a matrix in fp32, with zeros past the end, as TMA loads them."""
    found = torch.zeros(count, rows.shape[1])
    part = rows[first : first + count].float()
    found[: len(part)] = part
    return found


def computed_as_printed(plan: BackwardPlan, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the outputs of the printed text for the arguments of a launch."""
    problem = plan.problem
    names: dict[str, Any] = {"cutlass": CUTLASS, "cute": CUTE}
    for lines in printed.backward_functions(plan):
        exec("\n".join(lines), names)
    dtype = tensors[0].dtype
    names["exp2"] = lambda x: _lanes(torch.exp2(x))
    names["pack"] = lambda low, high: (low.as_subclass(torch.Tensor), high.as_subclass(torch.Tensor))
    names["pack_owned"] = lambda owned, *pair: tuple(
        torch.where(owned, each, 0.0).as_subclass(torch.Tensor) for each in pair
    )
    owned, streamed, rest = tensors[:2], tensors[2:4], tensors[4:]
    outputs = [torch.full_like(each, float("nan")) for each in rest[: len(problem.gradients)]]
    outputs += [] if problem.atomic is None else [torch.zeros_like(rest[len(outputs)])]
    names["uniform"] = _uniform
    sources, rest = problem.sources, rest[len(outputs) :]
    stored = [
        torch.full_like(rest[at], 0 if each.adds else float("nan")) for at, each in enumerate(problem.loop_outputs)
    ]
    written = [(each.target, tensor, each.adds) for each, tensor in zip(problem.loop_outputs, stored, strict=True)]
    written += [
        (each.wide[0], outputs[at], False) for at, each in enumerate(problem.gradients) if each.wide is not None
    ]
    for source, tensor, adds in written:
        names[f"vector_{source.label}"] = vector = Vector(source, tensor)
        names[f"write_{source.name}"] = functools.partial(vector.write, adds)
    for each in problem.loop_outputs:
        if vectors.in_vectors(plan, each):
            names[f"write_{each.target.name}"] = names[f"vector_{each.target.label}"].write_vector
    names["exchanged_words"] = _exchanged_words
    for source, given in zip(sources[len(stored) :], rest[len(stored) :], strict=True):
        scalar = source.passed.kind == "number"
        names[source.label if scalar else f"vector_{source.label}"] = given if scalar else Vector(source.passed, given)
    for source in problem.formula.sources:
        if vectors.width_of(plan, source) > 1:
            names[f"vectors_of_{source.label}"] = functools.partial(_vector_of, plan, source)
            names[f"exchanged_{source.label}"] = lambda ahead, lane, row, group: ahead(lane, row, group)
    place = function(bounds.place_function(plan), "place")
    for work in range(plan.tiles):
        tile, head = place(work)
        coordinates = []
        for size in reversed(problem.heads):
            coordinates.insert(0, head % size)
            head //= size
        for group in range(plan.groups):
            _run(plan, names, owned, streamed, outputs, tile, group, coordinates, dtype)
    return [*outputs, *stored]


def _exchanged_words(words: Sequence[Any], lane: torch.Tensor) -> list[Any]:
    """Return the pairs of a lane's own columns, of which the lanes of a row have one each."""
    own = torch.stack([torch.stack(list(pair)) for pair in words])  # column of eight, element of the pair, thread
    columns, quad = lane % 4, THREADS // 4 * 4
    return [tuple(own[columns, i, quad + at] for i in range(2)) for at in range(4)]


def _vector_of(plan: BackwardPlan, source: Source, vector: Vector, lane: torch.Tensor, *place: Any) -> list[Lanes]:
    """Return a lane's elements of some columns, after those of a row have exchanged what they loaded."""
    width, (query, key, *heads) = vectors.width_of(plan, source), place
    assert (key % width == 0).all()
    first = key - lane % 4 * (width - 2)  # of the lane's own columns, in bounds
    places = [first + 8 * column + i for column in range(width // 2) for i in range(2)]
    return [vector[(query, each.clamp(0, plan.problem.keys - 1), *heads)] for each in places]


class _Ahead:
    """A block of a source that was loaded ahead: what lanes have of some columns after their exchange."""

    def __init__(self, plan: BackwardPlan, source: Source, given: dict[str, Any], head: Sequence[int]) -> None:
        self.plan, self.source, self.given = plan, source, given
        self.head = [_number(mode, head) for mode in source.modes]

    def __call__(self, lane: torch.Tensor, row: int, group: int) -> list[Lanes]:
        width = vectors.width_of(self.plan, self.source)
        query = (self.given["first_query"] + 8 * row).clamp(max=self.plan.problem.queries - 1)
        key = self.given["first_key"] + lane % 4 * (width - 2) + 4 * width * group
        vector = self.given[f"vector_{self.source.label}"]
        return _vector_of(self.plan, self.source, vector, lane, query, key, *self.head)


def _run(plan, names, owned, streamed, outputs, tile, group, head, dtype) -> None:  # type: ignore[no-untyped-def]
    problem, rows = plan.problem, tile * plan.rows + group * 64
    own = [
        _block(_matrix(matrix, tensor, head, problem.queries), rows, 64)
        for matrix, tensor in zip(problem.owned, owned, strict=True)
    ]
    sums = [torch.zeros(64, each.output.matrix.columns) for each in problem.gradients]
    thread = {"first_query": rows + WARP * 16 + LANE // 4, "lane": LANE}
    span, loaded, empty = _span(plan, names, tile, thread)
    if plan.clears_rows:
        assert problem.atomic is not None
        own[problem.atomic.right][empty[group * 64 :][:64]] = 0
    for (block, masked), repeat in itertools.product(visited(plan, tile, loaded), range(problem.repeats)):
        place = [*head, repeat] if problem.repeats > 1 else head
        thread |= {f"head_{at}": number for at, number in enumerate(place)}
        blocks = [
            _block(_matrix(matrix, tensor, place, problem.keys)[span], block * plan.keys, plan.keys)
            for matrix, tensor in zip(problem.streamed, streamed, strict=True)
        ]
        products = [left @ right.t() for left, right in zip(own, blocks, strict=True)]
        lefts = _lefts(plan, names, thread, products, block, masked, span.start)
        for total, left, each in zip(sums, lefts, problem.gradients, strict=True):
            total += left.to(dtype).float() @ blocks[each.right]
        if problem.atomic is not None:
            at = printed_sums.exchanged_gradient(plan)
            part = _finished_sum(plan, names, lefts[at].to(dtype).float().t() @ own[problem.atomic.right])
            target = _matrix(problem.atomic.matrix, outputs[-1], place, problem.keys)[span][block * plan.keys :]
            target[: plan.keys] += part[: len(target)]
    for at, (total, each) in enumerate(zip(sums, problem.gradients, strict=True)):
        elements = _elements(total.shape[1])
        thread |= {f"gradient_{at}": Held(_lanes(total[place]) for place in elements), f"rounded_{at}": Held()}
        given = [{**names, **thread}[name] for name in printed.finish_arguments(plan, at)]
        names[f"finish_{at}"](*given)
        if each.wide is not None:
            continue  # threads have stored it
        stored = torch.zeros(64, total.shape[1], dtype=dtype)
        for place, value in zip(elements, thread[f"rounded_{at}"], strict=True):
            stored[place] = value
        target = _matrix(each.output.matrix, outputs[at], head, problem.queries)
        left = max(0, min(64, problem.queries - rows))
        target[rows : rows + left] = stored[:left]


def _finished_sum(plan: BackwardPlan, names: dict[str, Any], product: torch.Tensor) -> torch.Tensor:
    """Return a block's gradient after its formula, which consumer groups apply to 64 columns each, or to some rows transposed."""
    assert plan.problem.atomic is not None
    formula = plan.problem.atomic.finish
    parts = [each.t() for each in product.split(plan.keys // plan.groups)] if plan.turned else product.split(64, dim=1)
    for part in parts if formula.instructions else ():
        elements = _elements(part.shape[1])
        held = Held(_lanes(part[place]) for place in elements)
        names["finish_sum"](held, *(names[each] for each in arguments_of(formula)))
        for place, value in zip(elements, held, strict=True):
            part[place] = value.as_subclass(torch.Tensor)
    return product


def _span(
    plan: BackwardPlan, names: dict[str, Any], tile: int, thread: dict[str, Any]
) -> tuple[slice, list[int], torch.Tensor]:
    """Return the streamed rows of a tile, the numbers that its blocks depend on, and flags of owned rows without any. Add the
    bounds of a thread's rows."""
    ends = {"begins": torch.zeros(plan.rows), "ends": torch.full((plan.rows,), plan.problem.keys)}
    rows, found = torch.arange(tile * plan.rows, (tile + 1) * plan.rows), {"origin": 0, "limit": plan.problem.keys}
    for name, (source, shift) in spans.bounds_of(plan).items():

        def bound(query: torch.Tensor, source: Source = source, shift: int = shift) -> Lanes:
            places = query.clamp(max=plan.problem.queries - 1), 0, *(0 for _ in source.modes)
            return _lanes((names[f"vector_{source.label}"][places] + shift).clamp(0, plan.problem.keys))

        ends[name] = of_tile = bound(rows).as_subclass(torch.Tensor)
        if plan.clears_rows:
            past = 0 if name == "ends" else plan.problem.keys
            of_tile = torch.where(rows < plan.problem.queries, of_tile, past)
        found[f"most_{name}"], found[f"least_{name}"] = int(of_tile.max()), int(of_tile.min())
        thread[f"row_{name}"] = [bound(thread["first_query"] + 8 * row) for row in range(2)]
    found["origin"] = found.get("least_begins", 0)
    found["limit"] = max(0, found.get("most_ends", plan.problem.keys) - found["origin"])
    span = slice(found["origin"], found["origin"] + found["limit"])
    return span, [found[name] for name in spans.names(plan)], ends["begins"] >= ends["ends"]


def _lefts(plan, names, thread, products, block, masked, origin) -> list[torch.Tensor]:  # type: ignore[no-untyped-def]
    """Return the left operands of a block, as the printed functions leave them in registers."""
    elements = _elements(plan.keys)
    held = {f"held_{value}": Held([None] * len(elements)) for value in plan.problem.held}
    held |= {f"drawn_{value}": Held([0] * printed.drawn_words(plan)) for value in plan.problem.drawn}
    packed = {f"left_{at}": Held([None] * (len(elements) // 2)) for at in range(len(plan.problem.gradients))}
    taken = {f"product_{at}": [_lanes(product[place]) for place in elements] for at, product in enumerate(products)}
    given = {**names, **thread, **held, **packed, **taken, "first_key": origin + block * plan.keys + LANE % 4 * 2}
    head = [thread[f"head_{at}"] for at in range(len(plan.problem.coordinates))]
    for source in itertools.chain.from_iterable(plan.staged.values()):
        given[f"staged_{source.label}"] = Staged(
            plan, source, names[f"vector_{source.label}"], origin + block * plan.keys, head
        )
    for source in printed.loaded_ahead(plan):
        given[f"{source.label}_ahead"] = _Ahead(plan, source, given, head)
    given["seen_bits"] = [None] * 2
    if plan.clears_rows and masked:
        names["keep_seen"](*(given[name] for name in printed.seen_arguments(plan)))
    for late, only in printed.values_of_passes(plan):
        arguments = [given[name] for name in printed.values_arguments(plan, late, only)]
        names[printed.values_name(late, only)](*arguments, STAGE, masked)
    found = []
    for pairs in packed.values():
        left = torch.zeros(64, plan.keys)
        for place, value in zip(elements, itertools.chain.from_iterable(pairs), strict=True):
            left[place] = value
        found.append(left)
    return found
