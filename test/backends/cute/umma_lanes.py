"""The printed text of attention's softmax and correction on tcgen05, executed on the CPU: a name stands for the 128 threads of
a group at once. MMAs are matmuls in fp32 between the two.

Waiting, fences and partitions are left out; what crosses the roles goes through queues in the order of the program.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from backends.cute.edited_roles import edited
from backends.cute.lockstep import CONVERSIONS, FUNCTIONS, Lanes, lifted

from helion._support.philox import WORD, philox, uniform
from helion.backends.cute.codegen.attention import spans
from helion.backends.cute.codegen.attention.umma.finish import chunk_of
from helion.backends.cute.codegen.attention.umma.kernel import umma_kernel
from helion.backends.cute.codegen.attention.umma.softmax import chunk_of_weights, pairs_of_word
from helion.backends.cute.codegen.attention.umma.steps import print_steps
from helion.backends.cute.codegen.writer import Writer
from helion.backends.cute.execute.attention import _matrix, _rows, _source, place_at
from helion.backends.cute.execute.problems import launched, split
from helion.backends.cute.plan.attention.operands import Matrix, Source, Table
from helion.backends.cute.plan.attention.records import AttentionProblem, ScoreProblem, without_rest
from helion.backends.cute.plan.attention.umma import (
    MESSAGE_VALUES,
    UMMA_ROWS,
    UmmaChoice,
    UmmaPlan,
    plan_umma_attention,
)
from helion.backends.cute.plan.dtypes import SEED
from helion.backends.cute.roles import grammar as g
from helion.backends.cute.roles.attention import grammar as a
from helion.backends.cute.roles.attention import umma as u
from helion.backends.cute.roles.attention.umma import umma_program
from helion.backends.cute.toolchain.kernel import GemmKernel
from helion.hardware import target

LEFT_OUT = (
    *(g.SetUp, g.Cursor, g.Acquire, g.Wait, g.Commit, g.Release, g.Advance, g.AllocateSums, g.FindSums, g.FreeSums),
    *(g.BarrierSync, g.FenceShared, g.WorkspaceRelease, u.TensorFence, a.FirstWarp),
)
"""Steps that have no part in what is computed."""
OF_OUTPUTS = (u.ReadMessage, u.FinishRow, a.Rescale, g.StorePartials, a.LastSplit)


MATH = (*FUNCTIONS, "log1p", "log2", "expm1", "sin", "cos", "floor", "ceil")


class Row:
    """Registers of each thread."""

    def __init__(self, values: int) -> None:
        self.values: list[Any] = [Lanes(torch.full((UMMA_ROWS,), float("nan"))) for _ in range(values)]

    def __getitem__(self, at: int) -> Any:
        return self.values[at]

    def __setitem__(self, at: int, value: Any) -> None:
        self.values[at] = value

    @property
    def matrix(self) -> torch.Tensor:
        return torch.stack([torch.as_tensor(_plain(each)).expand(UMMA_ROWS) for each in self.values], 1)


def _plain(value: Any) -> Any:
    return value.held if isinstance(value, Lanes) else value


def _pairs(function: Any) -> Any:
    """Return an operation on pairs of numbers of fp32, computed in fp64 and rounded as ``rnd`` says."""

    def of_pairs(*pairs: Any, rnd: str = "rn") -> tuple[Lanes, Lanes]:
        return tuple(Lanes(_to_fp32(function(*map(_double, each)), rnd)) for each in zip(*pairs, strict=True))  # type: ignore[return-value]

    return of_pairs


def _double(value: Any) -> torch.Tensor:
    return torch.as_tensor(_plain(value), dtype=torch.float32).double()


def _to_fp32(value: torch.Tensor, rounding: str) -> torch.Tensor:
    found = value.float()
    if rounding == "rn":
        return found
    assert rounding == "rm"
    lower = torch.nextafter(found, torch.tensor(-math.inf))
    return torch.where(found.double() > value, lower, found)


def _of_warps(value: Lanes, kind: str) -> Lanes:
    """Return the least or largest number of each warp's threads, in all of them."""
    warps = value.held.view(-1, 32)
    return Lanes({"min": warps.amin, "max": warps.amax}[kind](1, keepdim=True).expand_as(warps).reshape(-1))


def _approximate(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Lanes]:
    return lifted(lambda x, **options: function(x))


def objects(**of_warps: Any) -> dict[str, Any]:
    """Return what the text takes from the DSL, without copies; ``of_warps`` are functions of all threads of a warp."""
    arch = types.SimpleNamespace(
        fmax=lifted(lambda x, y, nan=False: (torch.maximum if nan else torch.fmax)(*map(_fp32, (x, y)))),
        fmin=lifted(lambda x, y, nan=False: (torch.minimum if nan else torch.fmin)(*map(_fp32, (x, y)))),
        rcp_approx=lifted(lambda x: 1 / x),
        fma_packed_f32x2=_pairs(lambda x, y, z: x * y + z),
        add_packed_f32x2=_pairs(torch.add),
        sub_packed_f32x2=_pairs(torch.sub),
        mul_packed_f32x2=_pairs(torch.mul),
        inline_ptx=_ptx,
        shuffle_sync_bfly=lambda value, offset: Lanes(_plain(value)[torch.arange(UMMA_ROWS) ^ offset]),
        warp_redux_sync=_of_warps,
        make_warp_uniform=lambda value: int(value.held[0]) if isinstance(value, Lanes) else value,
        block_idx=lambda: (0, 0, 0),
        grid_dim=lambda: (1, 1, 1),
        fence_view_async_tmem_load=lambda: None,
        fence_view_async_tmem_store=lambda: None,
        **of_warps,
    )
    named = {name: _approximate(getattr(torch, name)) for name in MATH}
    fma = lifted(lambda x, y, z: _to_fp32(_double(x) * _double(y) + _double(z), "rn"))
    cute = types.SimpleNamespace(
        arch=arch,
        math=types.SimpleNamespace(**named, fma=fma, roundeven=lifted(torch.round)),
        make_rmem_tensor=lambda size, dtype: Row(size),
        local_tile=lambda stage, shape, place: (stage, shape, place),
    )
    cutlass = types.SimpleNamespace(
        **{name: _scalars(function) for name, function in CONVERSIONS.items()},
        select_=_select,
        min=_extreme(min, torch.minimum),
        max=_extreme(max, torch.maximum),
        range=lambda *bounds, unroll=1: range(*map(int, bounds)),
        range_constexpr=range,
    )
    return {"cutlass": cutlass, "cute": cute}


def _select(condition: Any, one: Any, other: Any) -> Any:
    if isinstance(condition, bool):
        return one if condition else other
    return lifted(lambda c, x, y: torch.where(torch.as_tensor(c), *map(_fp32, (x, y))))(condition, one, other)


def _ptx(text: str, write_only_types: Sequence[Any], read_only_args: Sequence[Any]) -> Any:
    if text.startswith("{ .reg .b32 p;"):  # rounded to 16 bits, and back
        (value,) = read_only_args
        return Lanes(_plain(value).to(torch.bfloat16 if "bf16" in text else torch.float16).float())
    if "e4m3x2" in text:
        return [torch.as_tensor(_plain(each)).to(torch.float8_e4m3fn).float() for each in read_only_args]
    if text.startswith("cvt.rn"):
        dtype = torch.bfloat16 if "bf16x2" in text else torch.float16
        low, high = (torch.as_tensor(_plain(each)).to(dtype) for each in reversed(read_only_args))
        return low, high
    assert text == "shl.b32 {$w0}, {$r0}, 23;"
    (value,) = read_only_args
    bits = torch.as_tensor(_plain(value)).view(torch.int32).long() << 23
    return Lanes((((bits + 2**31) % 2**32) - 2**31).int().view(torch.float32))


class Execution:
    """A plan, and the tensors of its launch by their labels."""

    def __init__(self, plan: UmmaPlan, tensors: Mapping[str, torch.Tensor]) -> None:
        self.plan, self.tensors, self.program = plan, tensors, umma_program(plan)
        self.weights: dict[int, collections.deque[torch.Tensor]] = collections.defaultdict(collections.deque)
        self.messages: dict[int, collections.deque[dict[int, Any]]] = collections.defaultdict(collections.deque)
        self.outputs = torch.full((plan.groups, UMMA_ROWS, plan.problem.v.columns), float("nan"))
        self.names: dict[str, Any] = {}
        self.added: dict[tuple[Any, ...], int] = {}
        self.rescaled = 0
        self.counts: dict[tuple[int, int], int] = {}
        """By tile and group: the parts of its keys that were counted."""
        self.partials: dict[tuple[int, int], Lanes] = {}
        self.queries: dict[tuple[int, int], torch.Tensor] = {}
        """By tile and group: those that threads have computed."""

    def run(self) -> None:
        """Execute all tiles; the outputs are in their tensors then."""
        if self.plan.computes_queries:
            self._role("correct", None, (*LEFT_OUT, a.LoadLoop, *OF_OUTPUTS))
        for group in range(self.plan.groups):
            self._role("softmax", group)
        self._role("correct", None, (*LEFT_OUT, a.TransformQueries))
        assert not any(self.weights.values()) and not any(self.messages.values()), "something was not read"

    def _role(self, name: str, group: int | None, left_out: tuple[type[g.Step], ...] = LEFT_OUT) -> None:
        kept = edited(
            self.program,
            name,
            lambda step: () if isinstance(step, left_out) or getattr(step, "body", None) == () else (step,),
        )
        out = Writer()
        print_steps(out, self.program, kept.role(name).program)
        threads = Lanes(torch.arange(UMMA_ROWS))
        chunk = chunk_of(self.plan.problem.v.columns)
        registers = {"scores": self.plan.keys, "values": chunk, "message": MESSAGE_VALUES}
        names = dict.fromkeys(("highest", "total", "factors", "shifts", "peaks"), 1)
        self.names = {
            **self._objects(),
            **{each: Row(size) for each, size in {**registers, **names}.items()},
            **dict.fromkeys(("group_thread", "correction_thread"), threads),
            "lane": Lanes(threads.held % 32),
            "shared_q": types.SimpleNamespace(iterator=0),
            **({} if group is None else {"group": group}),
            "packed": {},
            **dict.fromkeys(("score_reads", "weight_writes", "output_reads", "output_writes")),
            "score_parts": "scores",
            "weight_parts": _Parts(("weights",)),
            "rounded_weights": _Parts(("rounded",)),
            **dict.fromkeys(("from_parts", "to_parts"), _Parts(("output",))),
            "shared_message": _Messages(self),
            "shared_o": _Parts(("stage",)),
            "shared_counts": _Counts(self),
            "partials": _Partials(self),
        }
        source = umma_kernel("kernel", self.program).source
        functions = source[source.index("def ") : source.index("@cute.kernel")]
        functions = functions.replace("@cute.jit", "").replace("if inside:", "if True:")  # rows past the last query too
        exec(functions, self.names)
        self.names["store_number"], self.names["uniform"] = self._store_number, uniform_lanes
        exec(out.text(), self.names)

    def _objects(self) -> dict[str, Any]:
        """Return what the text takes from the DSL, and the tensors."""
        named = objects(vote_any_sync=self._vote)
        named["cute"].copy, named["cute"].autovec_copy = self._copy, self._store
        named["cute"].assume, named["cute"].make_tensor = (lambda at, divby: at), (lambda at, layout: ("queries", at))
        named["cute"].make_layout = lambda size: size
        problem = self.plan.problem
        sources = sources_of(self, problem)
        outputs = {f"vector_{each.label}": each for each in problem.outputs if each.kind == "query"}
        return {**named, **sources, **outputs}

    # What the text does ------------------------------------------------------------------------------------------------

    def _copy(self, kind: Any, source: Any, target: Any) -> None:
        if source == "scores":
            self._load_scores(target)
        elif isinstance(target, tuple) and target[0] == "weights":
            self._take_weights(target[1])
        elif isinstance(source, tuple):
            target.values = [Lanes(each) for each in self._chunk(source).unbind(1)]
        else:
            self._chunk(target).copy_(source.matrix)

    def _take_weights(self, part: int) -> None:
        """Take the rounded weights of a block when its last chunk is stored."""
        words = self.plan.keys // 2 // pairs_of_word(self.plan)
        if part + 1 == words // chunk_of_weights(self.plan):
            found = [self.names["packed"].pop(at) for at in range(words)]
            rows = [each.expand(UMMA_ROWS) for word in found for each in word]
            self.weights[self.names["group"]].append(torch.stack(rows, 1))

    def _chunk(self, part: tuple[Any, ...]) -> torch.Tensor:
        _, at, group = part
        chunk = chunk_of(self.plan.problem.v.columns)
        return self.outputs[group][:, chunk * at : chunk * (at + 1)]

    def head(self) -> tuple[int, ...]:
        """Return the coordinates of the head; those that are loaded follow the others, and are 0 before."""
        return tuple(int(self.names.get(f"head_{at}", 0)) for at in range(len(self.plan.problem.coordinates)))

    def _rows(self, name: str, matrix: Matrix, first: int, count: int, end: int) -> torch.Tensor:
        """Return rows of a matrix for the current head, zeros from ``end`` on, as TMA reads them: those of both tensors that
        it is in, side by side."""
        rest = self.plan.problem.rests.get(f"{name}_rest")
        if rest is not None:
            own = self._rows(f"{name}_own", without_rest(matrix, rest), first, count, end)
            return torch.cat((own, self._rows(f"{name}_rest", rest, first, count, end)), 1)
        stop, pages, table = min(first + count, end), matrix.pages, None
        if pages is not None:
            table = _source(self.plan.problem, pages.table, self.tensors[pages.table.label], self.head(), pages.most)
        span = slice(min(first, stop), stop)
        return _rows(matrix, self.tensors[name.removesuffix("_own")], self.head(), span, first + count, table)[
            first:
        ].float()

    def _block(self, name: str, matrix: Matrix, block: int) -> torch.Tensor:
        """Return a block of streamed rows, of those that the tile's keys are."""
        names, problem = self.names, self.plan.problem
        origin = int(names["origin"]) if spans.has_origin(self.plan) else 0
        end = origin + int(names["limit"]) if self.plan.is_limited else problem.keys
        return self._rows(name, matrix, origin + block * self.plan.keys, self.plan.keys, end)

    def _first_row(self) -> int:
        return int(self.names["tile_m"]) * self.plan.rows + int(self.names["group"]) * UMMA_ROWS

    def _query_end(self) -> int:
        problem = self.plan.problem
        return int(self.names["query_limit"]) if problem.spans_queries else problem.queries

    def _load_scores(self, registers: Row) -> None:
        problem, names = self.plan.problem, self.names
        tile = (names["work"], names["group"])
        at = self.added[tile] = self.added.get(tile, -1) + 1
        k = self._block("k", problem.k, names["end"] - 1 - at)
        q = self.queries.get(tile)
        if q is None:
            q = self._rows("q", problem.q, self._first_row(), UMMA_ROWS, self._query_end())
        registers.values = [Lanes(each) for each in (q @ k.T).unbind(1)]

    def multiply(self, group: int) -> None:
        """Add the product of the next weights, those of the current block or of the one before."""
        problem, names = self.plan.problem, self.names
        tile = (names["work"], group, "output")
        at = self.added[tile] = self.added.get(tile, -1) + 1
        v = self._block("v", problem.v, names["end"] - 1 - at)
        product = self.weights[group].popleft().float() @ v
        self.outputs[group] = product if at == 0 else self.outputs[group] + product

    def _vote(self, condition: Lanes) -> bool:
        self.rescaled += 1
        return bool(torch.as_tensor(_plain(condition)).any())

    def _store_number(self, output: Any, place: tuple[Any, ...], value: Lanes, inside: Lanes) -> None:
        kept = torch.as_tensor(inside.held).expand(UMMA_ROWS)
        row, tensor = place[0].held[kept], self.tensors[output.label]
        if len(row):
            numbers = view(output.matrix, tensor, self.head(), int(row.max()) + 1)
            numbers[row, 0] = value.held.to(tensor.dtype)[kept]

    def _store(self, rounded: Any, target: Any) -> None:
        if isinstance(rounded, tuple) or target[0] == "queries":
            self._move_queries(rounded, target)
            return
        _, (_, width), (thread, vector) = target
        output, end, first = self.plan.problem.matrix, self._query_end(), self._first_row()
        held = _matrix(output.matrix, self.tensors[output.label], self.head(), end)
        count = max(0, min(UMMA_ROWS, end - first))
        assert torch.equal(thread.held, torch.arange(UMMA_ROWS))
        held[first : first + count, width * vector : width * (vector + 1)] = rounded.matrix[:count].to(held.dtype)

    def _move_queries(self, source: Any, target: Any) -> None:
        """Copy a vector of each thread from a stage of queries to registers, or back."""
        problem = self.plan.problem
        tile = (self.names["work"], self.names["group"])
        if tile not in self.queries:
            self.queries[tile] = self._rows("q", problem.q, self._first_row(), UMMA_ROWS, self._query_end())
        first = (source if isinstance(source, tuple) else target)[1].held - tile[1] * UMMA_ROWS * problem.q.columns
        flat = self.queries[tile].view(-1)
        if isinstance(source, tuple):
            target.values = [Lanes(flat[first + i]) for i in range(len(target.values))]
        else:
            for i, value in enumerate(source.values):
                flat[first + i] = value.held


class _Parts:
    """A view whose last two indices are a part and a group."""

    def __init__(self, head: tuple[str, ...]) -> None:
        self.head = head

    def __getitem__(self, at: tuple[Any, ...]) -> Any:
        if at[:2] != (None, None):
            raise AssertionError(at)
        if len(at) == 4 and at[2] is None:  # all parts of a group
            return _Group(self.head, at[3])
        return (*self.head, *at[2:])


class _Group:
    """The parts of one group."""

    def __init__(self, head: tuple[str, ...], group: int) -> None:
        self.head, self.group = head, group

    def __getitem__(self, at: tuple[Any, ...]) -> Any:
        return (*self.head, at[2], self.group)


class _Messages:
    """Shared memory between softmax and correction: a queue of messages for each group."""

    def __init__(self, execution: Execution) -> None:
        self.execution = execution
        self.open: dict[int, dict[int, Any]] = {}

    def _place(self, at: Lanes) -> tuple[int, int]:
        first = int(at.held[0])
        assert torch.equal(at.held, first + torch.arange(UMMA_ROWS))
        return first // UMMA_ROWS // MESSAGE_VALUES, first // UMMA_ROWS % MESSAGE_VALUES

    def __setitem__(self, at: Lanes, value: Any) -> None:
        group, number = self._place(at)
        if number == 0:
            self.execution.messages[group].append({})
        self.execution.messages[group][-1][number] = Lanes(torch.as_tensor(_plain(value)).expand(UMMA_ROWS).clone())

    def __getitem__(self, at: Lanes) -> Any:
        group, number = self._place(at)
        if number == 0:
            self.open[group] = self.execution.messages[group].popleft()
            names, softmax = self.execution.names, self.execution.plan.problem.softmax
            for _ in range(1 if softmax else names["end"] - names["begin"]):
                self.execution.multiply(group)
        return self.open[group].pop(number)


class _Counts:
    """The parts of a tile's keys that were counted before that of a group."""

    def __init__(self, execution: Execution) -> None:
        self.execution = execution

    def __getitem__(self, group: int) -> int:
        execution = self.execution
        tile = execution.names["work"] // execution.plan.splits, group
        execution.counts[tile] = execution.counts.get(tile, 0) + 1
        return execution.counts[tile] - 1


class _Partials:
    """Partials of rows by value and part."""

    def __init__(self, execution: Execution) -> None:
        self.held = execution.partials

    def __setitem__(self, at: tuple[Lanes, int, int], value: Lanes) -> None:
        assert torch.equal(at[0].held, torch.arange(UMMA_ROWS)) and at[1:] not in self.held
        self.held[at[1:]] = Lanes(value.held.clone())

    def __getitem__(self, at: tuple[Lanes, int, int]) -> Lanes:
        return self.held[at[1:]]


def sources_of(execution: Any, problem: ScoreProblem) -> dict[str, Any]:
    """Return the tensors and numbers of formulas by their names in the text."""
    passed = [source.passed for source in problem.sources]
    found: dict[str, Any] = {f"vector_{source.label}": Vector(execution, source) for source in passed}
    numbers = [source for source in passed if source.kind == "number"]
    kinds = {source.label: int if source.argument == SEED else float for source in numbers}
    return {**found, **{label: kind(execution.tensors[label]) for label, kind in kinds.items()}}


def uniform_lanes(seed: Any, offset: Any, wide: bool) -> Lanes:
    """Return the random numbers of offsets."""
    words = torch.as_tensor(_plain(offset)) if wide else torch.as_tensor(_plain(offset)) & WORD
    return Lanes(uniform(philox(torch.as_tensor(_plain(seed)), words)[0]))


class Vector:
    """A source, read at a query and a key."""

    def __init__(self, execution: Execution, source: Source) -> None:
        self.execution, self.source = execution, source

    def __getitem__(self, at: Any) -> Lanes:
        source, tensor = self.source, self.execution.tensors[self.source.label]
        head, (row, column) = self.execution.head(), at[:2]
        first = int(tensor.storage_offset()) + source.offset
        first += sum(mode.stride * place_at(mode.at, head) for mode in source.modes)
        flat = torch.as_strided(tensor, (tensor.untyped_storage().nbytes() // tensor.itemsize,), (1,), 0)
        steps = {"exact": (0, 1), "query": (0,), "key": (1,)}.get(source.kind, ())
        steps = (1,) if isinstance(source, Table) else steps
        place: Any = torch.as_tensor(first)
        for which in steps:
            place = place + torch.as_tensor(_plain((row, column)[which])) * source.pitches[which]
        return Lanes(flat[place].expand(UMMA_ROWS))


def _fp32(value: Any) -> torch.Tensor:
    found = torch.as_tensor(value)
    return found.float() if found.dtype == torch.float64 else found


def _scalars(function: Any) -> Any:
    """Return a conversion that leaves Python's integers as they are."""
    return lambda value=0: value if type(value) is int else function(value)


def _extreme(of_integers: Any, of_lanes: Any) -> Any:
    def found(*values: Any) -> Any:
        if all(isinstance(each, int) for each in values):
            return of_integers(values)
        one, other = (torch.as_tensor(_plain(each)) for each in values)
        return Lanes(of_lanes(*torch.broadcast_tensors(one, other)))

    return found


def view(matrix: Matrix, tensor: torch.Tensor, head: tuple[int, ...], rows: int) -> torch.Tensor:
    """Return the rows of a head's matrix."""
    start = int(tensor.storage_offset()) + matrix.offset
    start += sum(mode.stride * place_at(mode.at, head) for mode in matrix.modes)
    return torch.as_strided(tensor, (rows, matrix.columns), matrix.strides, start)


def evaluate_as(choice: UmmaChoice, found: list[UmmaPlan] | None = None) -> Callable[[GemmKernel, Sequence[Any]], None]:
    """Return the evaluation of a launch by the printed text of a choice's plan; plans are appended to ``found``."""

    def evaluate(kernel: GemmKernel, given: Sequence[Any]) -> None:
        given, integers = split(kernel, given)
        problem = launched(kernel, integers)
        assert isinstance(problem, AttentionProblem)
        of_softmax = choice if problem.softmax else dataclasses.replace(choice, lazy=False, polynomial=None)
        plan = plan_umma_attention(problem, of_softmax, target("sm_100"))
        labels = [
            "q",
            "k",
            "v",
            *problem.rests,
            *(each.label for each in (*problem.outputs, *(each.passed for each in problem.sources))),
        ]
        tensors = (each if isinstance(each, torch.Tensor) else torch.tensor(each) for each in given)
        Execution(plan, dict(zip(labels, tensors, strict=True))).run()
        if found is not None:
            found.append(plan)

    return evaluate
