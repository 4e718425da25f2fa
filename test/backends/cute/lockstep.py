"""The printed text of a kernel's epilogue, executed on the CPU: every name stands for all threads of all CTAs of a cluster at
once, so that shuffles and stores into other CTAs' memory are what they are on the GPU.

Left out are waiting and copies to global memory; the fragments of the matrix units are laid out as ``fragment`` says, which
``test_partitions`` holds to the DSL.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import re
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from helion.backends.cute.codegen import rows
from helion.backends.cute.codegen.epilogue import fragment
from helion.backends.cute.codegen.steps import print_steps
from helion.backends.cute.codegen.writer import Writer
from helion.backends.cute.plan.counts import counts
from helion.backends.cute.plan.records import GemmPlan
from helion.backends.cute.roles import grammar as g
from helion.backends.cute.roles.edits import rewrite
from helion.backends.cute.roles.programs import kernel_program

WAITING = (
    *(g.Acquire, g.Wait, g.Release, g.Tail, g.ArmRows, g.BarrierSync, g.StoreWait, g.LoadVectors, g.ShareVectors),
    *(g.WgmmaFence, g.WgmmaCommit, g.WgmmaWait, g.Mma, g.KLoop, g.AllocateSums, g.FindSums, g.FreeSums),
    *(g.WriteStage, g.FenceShared, g.TmaStore, g.WarpSync, g.ClearSums, g.KGroups, g.LoadScales, g.Promote),
)
"""Steps that have no part in what is computed."""


class Lanes:
    """One number for each (CTA, thread)."""

    def __init__(self, held: Any) -> None:
        self.held: torch.Tensor = held.held if isinstance(held, Lanes) else torch.as_tensor(held)

    def to(self, kind: Callable[[Any], Any]) -> Any:
        return kind(self)

    def bitcast(self, kind: object) -> Lanes:
        return self


def _plain(value: Any) -> Any:
    return value.held if isinstance(value, Lanes) else value


def lifted(function: Callable[..., Any]) -> Callable[..., Lanes]:
    return lambda *values, **named: Lanes(function(*map(_plain, values), **named))


def _reverse(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda x, y: function(torch.as_tensor(y), x)


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "lt", "le", "gt", "ge", "eq", "ne", "and_", "or_"):
    _function = getattr(operator, _name)
    setattr(Lanes, f"__{_name.rstrip('_')}__", lifted(_function))
    setattr(Lanes, f"__r{_name.rstrip('_')}__", lifted(_reverse(_function)))
Lanes.__neg__ = lifted(torch.neg)  # type: ignore[attr-defined]


class Registers:
    """A tensor in registers; what it is set to takes the place of those for which all conditions hold."""

    def __init__(self, cluster: Cluster, values: int) -> None:
        self.cluster, self.values = cluster, [Lanes(torch.zeros(cluster.shape)) for _ in range(values)]

    def __getitem__(self, at: int) -> Lanes:
        return self.values[at]

    def __setitem__(self, at: int, value: Any) -> None:
        kept = self.values[at].held
        self.values[at] = Lanes(torch.where(self.cluster.active, _plain(value) + torch.zeros(()), kept))

    def fill(self, value: Any) -> None:
        self.values = [Lanes(torch.zeros(self.cluster.shape) + _plain(value)) for _ in self.values]

    def load(self) -> Registers:
        return self

    def to(self, kind: Callable[[Any], Any]) -> list[Lanes]:
        return [kind(value) for value in self.values]


class NumbersOfWarps:
    """A number of each warp in shared memory, which its active lanes write, and all threads of the CTA read."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.held = cluster, torch.full((cluster.shape[0], cluster.shape[1] // 32), float("nan"))

    def __setitem__(self, warp: Lanes, value: Lanes) -> None:
        cta, warps = torch.arange(self.cluster.shape[0])[:, None].expand(self.cluster.shape), _plain(warp)
        active, value = self.cluster.active, _plain(value).expand(self.cluster.shape)
        self.held[cta[active], warps.expand(self.cluster.shape)[active]] = value[active]

    def __getitem__(self, warp: int) -> Lanes:
        return Lanes(self.held[:, warp : warp + 1].expand(self.cluster.shape))


def with_conditions(text: str) -> str:
    """`text` whose conditions of single threads are those of ``only``."""
    return re.sub(
        r"^(\s*)if (.+):$",
        lambda found: f"{found[1]}with only(({found[2].replace(' and ', ') & (')})):",
        text,
        flags=re.MULTILINE,
    )


class View:
    """Something that is read by the numbers of its place."""

    def __init__(self, read: Callable[..., Any]) -> None:
        self.read = read

    def __getitem__(self, at: Any) -> Any:
        return self.read(*at)


class Rounded:
    """Where values of an output end."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name = cluster, name

    def store(self, values: list[Lanes]) -> None:
        self.cluster.outputs[self.name][self.cluster.names["subtile"]] = values


class Column:
    """An output of one number per row, or of one for the cluster's tile of each row, in global memory."""

    def __init__(self, cluster: Cluster, extent: int) -> None:
        self.cluster, self.values, self.stores = cluster, torch.zeros(extent, dtype=torch.float64), torch.zeros(extent)

    def __setitem__(self, at: Any, value: Any) -> None:
        row = at[0] if isinstance(at, tuple) else at
        active, rows = self.cluster.active, row.held.expand(self.cluster.shape)
        self.values[rows[active]] = _plain(value)[active].double()
        self.stores[rows[active]] += 1


class Place:
    """A cursor of the exchange."""

    def __init__(self, stages: int) -> None:
        self.index, self.stages = 0, stages

    def advance(self) -> None:
        self.index = (self.index + 1) % self.stages


class Address:
    """A place in shared memory, counted in words."""

    def __init__(self, at: Any = 0) -> None:
        self.at = at

    def __add__(self, more: Any) -> Address:
        return Address(self.at + more)

    def toint(self) -> Address:
        return self

    def to(self, kind: object) -> Address:
        return self


def _integer(value: Any) -> Lanes:
    return Lanes(torch.as_tensor(_plain(value)).trunc().long())


def _exactly(function: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda x, fastmath=False: function(x)


def _fma(x: Any, y: Any, z: Any) -> torch.Tensor:
    return (torch.as_tensor(x).double() * torch.as_tensor(y).double() + torch.as_tensor(z).double()).float()


def _largest(x: Any, y: Any, nan: bool = False) -> torch.Tensor:
    return (torch.maximum if nan else torch.fmax)(x, torch.as_tensor(y))


def _smallest(x: Any, y: Any, nan: bool = False) -> torch.Tensor:
    return (torch.minimum if nan else torch.fmin)(x, torch.as_tensor(y))


def _rounded(dtype: torch.dtype) -> Callable[[Any], Lanes]:
    return lifted(lambda x: x.to(dtype).float())


CONVERSIONS = {
    "Float32": lifted(lambda x: torch.as_tensor(x, dtype=torch.float32)),
    "Float16": _rounded(torch.float16),
    "BFloat16": _rounded(torch.bfloat16),
    "Float8E4M3FN": _rounded(torch.float8_e4m3fn),
    "Int8": lifted(lambda x: x.to(torch.int8).float()),
    "Int32": _integer,
    "Int64": _integer,
    "Int128": _integer,
}
FUNCTIONS = ("exp", "log", "sqrt", "rsqrt", "tanh", "erf", "abs", "exp2")


class Elements:
    """A matrix whose elements threads read one by one."""

    def __init__(self, matrix: torch.Tensor) -> None:
        self.matrix = matrix

    def __getitem__(self, place: tuple[Any, Any]) -> Lanes:
        row, column = torch.broadcast_tensors(*map(_plain, place))
        return Lanes(self.matrix[row, column])


class Cluster:
    """One cluster and its first tile of rows. ``sums`` are (M tile, columns of the cluster) of each product, operands by name.

    ``tile`` is the number of the cluster's tile of columns among all of them.
    """

    def __init__(
        self, plan: GemmPlan, sums: list[torch.Tensor], operands: Mapping[str, torch.Tensor], tile: int = 0
    ) -> None:
        self.plan, self.sums, self.operands, self.tile = plan, sums, operands, tile
        self.shape = (plan.cluster[1], counts(plan).consumer_threads)
        self.active = torch.ones(self.shape, dtype=torch.bool)
        self.memory = torch.full((plan.cluster[1], max(1, 2 * counts(plan).rows_stage_bytes // 4)), float("nan"))
        self.outputs: dict[str, dict[int, list[Lanes]]] = {}
        self.columns = {output.name: Column(self, plan.problem.m) for output in plan.problem.numbers}
        self.names: dict[str, Any] = {}
        self.stages = 0
        """Of every ring, where that is not what the plan says."""

    # Who holds what ---------------------------------------------------------------------------------------------------

    def _threads(self) -> tuple[Lanes, dict[str, Any]]:
        thread = torch.arange(self.shape[1]).expand(self.shape)
        names = {"store_thread": Lanes(thread), "store_warp": Lanes(thread // 32), "lane": Lanes(thread % 32)}
        return Lanes(torch.arange(self.shape[0])[:, None].expand(self.shape)), names

    def place(self, i: int, subtile: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Row and column, within the tile of the whole cluster, of value `i` of a sub-tile."""
        places = fragment(self.plan)
        cta, names = self._threads()
        row = eval(places.first_row, names) + eval(places.row_offset, {"i": eval(places.row_of, {"i": i})})
        held = self._columns()[eval(places.column_of, {"i": i})]
        first = cta * self.plan.tile[1] + subtile * self.plan.epilogue_n
        column = first + held + eval(places.first_column, names)
        return _plain(row).expand(self.shape), _plain(column)

    def _columns(self) -> list[int]:
        shape, strides = eval(f"(lambda shape, stride: (shape, stride))(shape={fragment(self.plan).columns})")
        held = [0]
        for extent, stride in zip(shape, strides, strict=True):
            held = [x + at * stride for at in range(extent) for x in held]
        return held

    def _of_subtile(self, matrix: torch.Tensor, subtile: int) -> list[Lanes]:
        """The values of a sub-tile of `matrix` (M tile, N), with zeros behind its end."""
        values = []
        for i in range(fragment(self.plan).values):
            row, column = self.place(i, subtile)
            inside = (row < matrix.shape[0]) & (column < matrix.shape[1])
            found = matrix[row.clamp(max=matrix.shape[0] - 1), column.clamp(max=matrix.shape[1] - 1)]
            values.append(Lanes(torch.where(inside, found.float(), torch.zeros(()))))
        return values

    # The text ---------------------------------------------------------------------------------------------------------

    def text(self) -> str:
        """Of one tile, from the sums on; conditions of single threads are those of ``only``."""
        program = kernel_program(self.plan)
        role, rule = program.role("store"), self.kept
        out = Writer()
        print_steps(
            out, program, g.Role(name="store", first_warp=0, warps=role.warps, program=rewrite(role.program, rule))
        )
        return with_conditions(out.text())

    def kept(self, step: g.Step) -> tuple[g.Step, ...]:
        """What is executed in the place of a step."""
        if isinstance(step, (*WAITING, g.StoreStrided)) or (isinstance(step, g.SetUp) and step.name != "rows"):
            return ()
        if isinstance(step, (g.TileLoop, g.Gate)):
            return step.body if isinstance(step, g.TileLoop) else ()
        ab = isinstance(step, (g.Cursor, g.Advance)) and "rows" not in getattr(
            step, "name", getattr(step, "cursor", "")
        )
        return () if ab and not (isinstance(step, g.Cursor) and step.pipeline != "ab") else (step,)

    def run(self) -> None:
        """Executes it; what is stored is in ``matrix`` and ``columns`` then."""
        cta, names = self._threads()
        self.names = {
            **names,
            "cutlass": types.SimpleNamespace(
                **CONVERSIONS,
                range_constexpr=range,
                range=lambda *bounds, unroll=1, unroll_full=False: range(*bounds),
                select_=lifted(_select),
                min=_least,
                max=_most,
            ),
            "cute": self._cute(),
            "pipeline": types.SimpleNamespace(
                make_pipeline_state=lambda user, stages: Place(self.stages or stages),
                PipelineUserType=types.SimpleNamespace(Consumer=0, Producer=1),
            ),
            "only": self._only,
            "rank": cta * self.plan.cluster[0],
            "place": (0, 0, cta, 0),
            "tile_m": 0,
            "tile_n": cta + self.tile,
            "shared_rows": Address(),
            "rows_barriers": Address(),
            "shared_blocks": NumbersOfWarps(self),
            **self._held(),
        }
        exec(self.text(), self.names)

    def matrix(self, name: str) -> torch.Tensor:
        """(M tile, N) of an output."""
        found = torch.full(self.sums[0].shape, float("nan"))
        for subtile, values in self.outputs[name].items():
            for i, value in enumerate(values):
                row, column = self.place(i, subtile)
                inside = (row < found.shape[0]) & (column < found.shape[1])
                found[row[inside], column[inside]] = value.held.expand(self.shape)[inside]
        return found

    def _held(self) -> dict[str, Any]:
        """Sums, operands and outputs, by their names in the text."""
        plan, problem = self.plan, self.plan.problem
        values = fragment(plan).values
        names: dict[str, Any] = {"values": Registers(self, values)}
        names |= self._sums()
        for operand in (each for each in problem.epilogue.operands if each.kind != "product"):
            label, tensor = operand.label, self.operands[operand.name]
            if operand.kind == "row":
                names[f"{label}_view"] = View(lambda *at, held=tensor: self._row_operand(held, at[-1]))
                names[f"{label}_columns"] = Registers(self, len(self._columns()))
            elif operand.kind == "column":
                names[f"{label}_rows"] = [Lanes(tensor.float()[self.row_of(i)]) for i in range(fragment(plan).rows)]
            elif operand.kind == "number":
                names[label] = float(tensor)
            elif operand.kind == "strided":
                names[label] = Elements(tensor)
            elif operand.kind == "exact":
                names[f"{label}_values"] = names[f"{label}_registers"] = Registers(self, values)
                names[f"{label}_part"] = View(lambda *at, held=tensor: self._of_subtile(held, self.names["subtile"]))
                names[f"{label}_copy"] = None
        for output in problem.matrices:
            label = problem.label_of(output)
            prefix = "" if label == "d" else f"{label}_"
            self.outputs[output.name] = {}
            names[f"{prefix}rounded"] = Rounded(self, output.name)
            names.setdefault(f"{prefix}values", Registers(self, values))
        return names | {output.label: self.columns[output.name] for output in problem.numbers}

    def _sums(self) -> dict[str, Any]:
        plan, values = self.plan, fragment(self.plan).values
        products = [operand.label for operand in plan.problem.epilogue.of_kind("product")]
        names: dict[str, Any] = {f"{label}_values": Registers(self, values) for label in products}
        if plan.unit == "tcgen05":
            names["sums_copy"] = None
            names["sums_read"] = types.SimpleNamespace(index=0)
            names["sums_part"] = View(
                lambda *at: self._of_subtile(self.sums[at[4] // plan.subtiles], at[4] % plan.subtiles)
            )
            return names
        sums = Registers(self, plan.sum_columns // 2 * plan.row_atoms)
        atom = plan.epilogue_n // 2
        for subtile in range(plan.subtiles):
            for number, held in enumerate(self.sums):
                for i, value in enumerate(self._of_subtile(held, subtile)):
                    first = number * plan.tile[1] // 2 + subtile * atom
                    sums.values[first + i // atom * (plan.sum_columns // 2) + i % atom] = value
        return names | {"total" if plan.promote else "sums": sums}

    def row_of(self, i: int) -> torch.Tensor:
        """The row of each thread's row number `i`."""
        places, (_, names) = fragment(self.plan), self._threads()
        return _plain(eval(places.first_row, names) + eval(places.row_offset, {"i": i})).expand(self.shape)

    def _row_operand(self, held: torch.Tensor, subtile: int) -> list[Lanes]:
        cta, names = self._threads()
        first = cta * self.plan.tile[1] + subtile * self.plan.epilogue_n + eval(fragment(self.plan).first_column, names)
        return [Lanes(held.float()[_plain(first + at).clamp(max=len(held) - 1)]) for at in self._columns()]

    @contextlib.contextmanager
    def _only(self, condition: Any) -> Iterator[None]:
        before = self.active
        self.active = before & _plain(condition)
        yield
        self.active = before

    # What the DSL has -------------------------------------------------------------------------------------------------

    def _cute(self) -> Any:
        math = {name: lifted(_exactly(getattr(torch, name))) for name in FUNCTIONS}
        arch = types.SimpleNamespace(
            fmax=lifted(_largest),
            fmin=lifted(_smallest),
            rcp_approx=lifted(torch.reciprocal),
            shuffle_sync_bfly=lambda value, offset: Lanes(
                value.held.expand(self.shape)[:, torch.arange(self.shape[1]) ^ offset]
            ),
            shuffle_sync=self._shuffled,
            inline_ptx=self._inline_ptx,
            sync_warp=lambda: None,
            barrier=lambda barrier_id, number_of_threads: None,
            fence_view_async_tmem_load=lambda: None,
        )
        return types.SimpleNamespace(
            math=types.SimpleNamespace(**math, fma=lifted(_fma), roundeven=lifted(torch.round)),
            arch=arch,
            make_rmem_tensor=lambda values, kind: Registers(self, values),
            make_layout=lambda shape, stride=(): stride,
            recast_ptr=lambda pointer, dtype: pointer,
            make_tensor=lambda pointer, strides: (
                pointer if isinstance(pointer, NumbersOfWarps) else View(lambda *at: self._received(at, strides))
            ),
            copy=lambda how, source, to: self._copy(source, to),
            autovec_copy=self._copy,
        )

    def _shuffled(self, value: Lanes, offset: Any) -> Lanes:
        """What lane number `offset` of each warp has."""
        first = torch.arange(self.shape[1]).expand(self.shape) // 32 * 32
        return Lanes(value.held.expand(self.shape).gather(1, first + _plain(offset)))

    def _copy(self, source: list[Lanes], to: Registers) -> None:
        to.values = list(source)

    def _inline_ptx(self, text: str, read_only_args: list[Any]) -> None:
        """A store into the memory of other CTAs, the only one that is left."""
        assert text in rows.SEND.values()
        address, _, peer, *words = read_only_args
        first = (address.at * len(words)).held.expand(self.shape)[self.active]
        to = peer.held.expand(self.shape)[self.active] // self.plan.cluster[0]
        for number, word in enumerate(words):
            self.memory[to, first + number] = word.held.expand(self.shape)[self.active]

    def _received(self, at: tuple[Any, ...], strides: tuple[int, ...]) -> Registers:
        """What each thread finds in the memory of its own CTA."""
        cta, _ = self._threads()
        _, *rest = at
        first = sum(
            (x * stride for x, stride in zip(rest, strides[1:], strict=True)), Lanes(torch.zeros(self.shape).long())
        )
        together = 2 if self.plan.paired else 1
        found = Registers(self, together)
        for word in range(together):
            place = _plain(first + word).clamp(max=self.memory.shape[1] - 1)
            found.values[word] = Lanes(self.memory[cta.held, place])
        return found


class Blocks(Cluster):
    """The main loop as well, of the first tile of a product with factors of blocks of K; ``a`` (M tile, K), ``b`` (N, K).

    Slots of rings are numbered by K tile, or by block, so that a cursor says what is in its slot.
    """

    def __init__(
        self,
        plan: GemmPlan,
        a: torch.Tensor,
        b: torch.Tensor,
        factors: Mapping[str, torch.Tensor],
        operands: Mapping[str, torch.Tensor],
    ) -> None:
        super().__init__(plan, [torch.zeros(a.shape[0], b.shape[0])], operands)
        self.a, self.b, self.factors, self.stages = a.float(), b.float(), factors, 1 << 30
        self.accumulate = True

    def kept(self, step: g.Step) -> tuple[g.Step, ...]:
        mainloop = (g.ClearSums, g.KLoop, g.KGroups, g.LoadScales, g.Promote, g.Mma)
        places = (g.Cursor, g.Advance)
        if isinstance(step, mainloop) or (isinstance(step, places) and _ring(step) in ("ab_read", "sums_read")):
            return (step,)
        if isinstance(step, g.SetUp) and step.name == "scales":
            return (step,)
        return super().kept(step)

    def _sums(self) -> dict[str, Any]:
        names: dict[str, Any] = {}
        for scale in self.plan.problem.scales.factors if self.plan.problem.scales else ():
            names[scale.label] = View(functools.partial(self._factor, self.factors[scale.name]))
        if self.plan.unit == "tcgen05":
            names["sums_copy"] = None
            names["sums_part"] = View(lambda *at: self._of_subtile(self._block(at[5]), at[4]))
            return names
        count = self.plan.sum_columns // 2 * self.plan.row_atoms
        fragments = View(lambda *at: at[2:])
        return names | {
            "sums": Registers(self, count),
            "total": Registers(self, count),
            "tiled_mma": types.SimpleNamespace(set=lambda field, value: setattr(self, "accumulate", value)),
            "warpgroup": types.SimpleNamespace(Field=types.SimpleNamespace(ACCUMULATE=0)),
            "fragment_a": fragments,
            "fragment_b": fragments,
        }

    def _cute(self) -> Any:
        found = super()._cute()
        found.gemm = self._multiply
        return found

    def _factor(self, held: torch.Tensor, line: Any, block: int) -> Lanes:
        """Raises ``IndexError`` for one that is not there."""
        return Lanes(held[torch.as_tensor(_plain(line)).expand(self.shape), block].float())

    def _part(self, first: int, size: int) -> torch.Tensor:
        return self.a[:, first : first + size] @ self.b[:, first : first + size].t()

    def _block(self, number: int) -> torch.Tensor:
        size = self.plan.tile[2] * self.plan.promote_k_tiles
        return self._part(number * size, size)

    def _multiply(self, mma: Any, sums: Registers, a: tuple[int, int], b: tuple[int, int], to: Registers) -> None:
        """One instruction of a K tile."""
        assert a == b and sums is to
        (step, k_tile), depth = a, self.plan.tile[2] // self.plan.mma_steps
        part = self._part(k_tile * self.plan.tile[2] + step * depth, depth)
        atom = self.plan.epilogue_n // 2
        for subtile in range(self.plan.subtiles):
            for i, value in enumerate(self._of_subtile(part, subtile)):
                at = subtile * atom + i // atom * (self.plan.sum_columns // 2) + i % atom
                sums.values[at] = sums.values[at] + value if self.accumulate else value  # type: ignore[operator]


def _ring(step: g.Step) -> str:
    return getattr(step, "name", "") or getattr(step, "cursor", "")


def _least(x: Any, y: Any) -> Any:
    if isinstance(x, int) and isinstance(y, int):
        return min(x, y)
    return Lanes(torch.minimum(torch.as_tensor(_plain(x)), torch.as_tensor(_plain(y))))


def _most(x: Any, y: Any) -> Any:
    if isinstance(x, int) and isinstance(y, int):
        return max(x, y)
    return Lanes(torch.maximum(torch.as_tensor(_plain(x)), torch.as_tensor(_plain(y))))


def _select(condition: Any, x: Any, y: Any) -> torch.Tensor:
    return torch.where(condition, torch.as_tensor(x), torch.as_tensor(y))
