"""The printed text of the second kernel of a launch, executed on the CPU: every name stands for all threads of all CTAs at once.

What a warp has written to shared memory is there for others behind the next barrier only.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from backends.cute.lockstep import (
    CONVERSIONS,
    FUNCTIONS,
    Lanes,
    _exactly,
    _fma,
    _largest,
    _select,
    _smallest,
    lifted,
    with_conditions,
)

from helion.backends.cute.codegen.finish import ROWS, parameters, print_kernel
from helion.backends.cute.codegen.writer import Writer
from helion.backends.cute.plan.finish import ctas_of, shared_words, threads_of
from helion.backends.cute.plan.records import Finish, RowFinish


class Fragment:
    """A tensor in registers."""

    def __init__(self, grid: Grid, values: int) -> None:
        self.grid, self.values = grid, [Lanes(torch.full(grid.shape, float("nan"))) for _ in range(values)]

    def __getitem__(self, at: int) -> Lanes:
        return self.values[at]

    def __setitem__(self, at: int, value: Any) -> None:
        new = value.held if isinstance(value, Lanes) else torch.as_tensor(value)
        self.values[at] = Lanes(torch.where(self.grid.active, new + torch.zeros(()), self.values[at].held))

    def fill(self, value: float) -> None:
        for at in range(len(self.values)):
            self[at] = value

    def load(self) -> Fragment:
        return self

    def to(self, kind: Any) -> list[Lanes]:
        return [kind(value) for value in self.values]

    def store(self, values: list[Lanes]) -> None:
        for at, value in enumerate(values):
            self[at] = value


class Memory:
    """A tensor in global memory, as its layout says: of a vector's columns, vectors and rows, or of rows alone. What the
    product has stored is ``late``: it is there behind the wait only."""

    def __init__(
        self, grid: Grid, held: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...], late: bool
    ) -> None:
        self.grid, self.held, self.shape, self.strides, self.late = grid, held, shape, strides, late
        self.stores = torch.zeros_like(held, dtype=torch.int64)

    def places(self, at: tuple[Any, ...]) -> torch.Tensor:
        """Elements that the active threads address."""
        assert self.grid.awaited or not self.late, "read before the product has ended"
        numbers = [torch.as_tensor(x.held if isinstance(x, Lanes) else x).expand(self.grid.shape) for x in at]
        for number, extent in zip(numbers, self.shape, strict=True):
            inside = (number >= 0) & (number < extent)
            assert bool(inside[self.grid.active].all()), f"a coordinate of {self.shape} lies outside"
        return sum(number * stride for number, stride in zip(numbers, self.strides, strict=True))  # type: ignore[return-value]

    def __getitem__(self, at: Any) -> Any:
        at = at if isinstance(at, tuple) else (at,)
        if at[0] is None:
            return Vector(self, at[1:])
        place, active = self.places(at), self.grid.active
        return Lanes(torch.where(active, self.held[torch.where(active, place, 0)].double(), torch.nan).float())

    def __setitem__(self, at: Any, value: Any) -> None:
        place = self.places(at if isinstance(at, tuple) else (at,))[self.grid.active]
        self.held[place] = value.held.expand(self.grid.shape)[self.grid.active].to(self.held.dtype)
        self.stores[place] += 1


class Vector:
    """The columns that a thread moves at a time."""

    def __init__(self, memory: Memory | Row, at: tuple[Any, ...]) -> None:
        self.memory, self.at, self.size = memory, at, memory.shape[0]


class Shared:
    """Words of the shared memory of each CTA; of those written since the last barrier a thread sees only its own."""

    def __init__(self, grid: Grid, words: int) -> None:
        self.grid, self.held = grid, torch.full((grid.shape[0], words), float("nan"))
        self.fresh = torch.full((grid.shape[0], words), -1)

    def __getitem__(self, at: Lanes) -> Lanes:
        place = at.held.expand(self.grid.shape)
        cta = torch.arange(self.grid.shape[0])[:, None].expand(self.grid.shape)
        by = self.fresh[cta, place]
        assert bool(((by < 0) | (by == self.grid.thread)).all()), "read before a barrier"
        return Lanes(self.held[cta, place])

    def __setitem__(self, at: Lanes, value: Lanes) -> None:
        active = self.grid.active
        cta = torch.arange(self.grid.shape[0])[:, None].expand(self.grid.shape)[active]
        place = at.held.expand(self.grid.shape)[active]
        assert bool(torch.isnan(self.held[cta, place]).all()), "a place is written twice"
        self.held[cta, place] = value.held.expand(self.grid.shape)[active]
        self.fresh[cta, place] = self.grid.thread[active]


class Row:
    """The row that a CTA keeps in shared memory, in words of its own for each thread: of a vector, threads and chunks."""

    def __init__(self, grid: Grid, shape: tuple[int, int, int]) -> None:
        vector, self.threads, self.chunks = shape
        self.shape, self.grid = (vector,), grid
        self.words = [[Fragment(grid, 1) for _ in range(vector)] for _ in range(self.chunks)]

    def _words(self, at: tuple[Any, ...]) -> Fragment:
        i, thread, chunk = at
        assert bool((thread.held == self.grid.thread).all()) and self.threads == self.grid.shape[1]
        return self.words[chunk][i]

    def __getitem__(self, at: tuple[Any, ...]) -> Any:
        return Vector(self, at[1:]) if at[0] is None else self._words(at)[0]

    def __setitem__(self, at: tuple[Any, ...], value: Any) -> None:
        self._words(at)[0] = value


class Grid:
    """All CTAs of a second kernel. ``tensors`` are flat memory by name; layouts are those that the host function makes."""

    def __init__(self, finish: Finish, tensors: Mapping[str, torch.Tensor], layouts: Mapping[str, str]) -> None:
        self.finish = finish
        self.shape = (ctas_of(finish), threads_of(finish))
        self.thread = torch.arange(self.shape[1]).expand(self.shape)
        self.active = torch.ones(self.shape, dtype=torch.bool)
        self.awaited = False
        self.shared = Shared(self, max(1, shared_words(finish)))
        self.memory = {}
        for name, layout in layouts.items():
            shape, strides = eval(
                f"(lambda shape, stride=1: (shape, stride))({layout.replace('), stride', '), stride')})"
            )
            shape, strides = (x if isinstance(x, tuple) else (x,) for x in (shape, strides))
            self.memory[name] = Memory(self, tensors[name], shape, strides, name.startswith("stored_"))

    def text(self) -> str:
        out = Writer()
        print_kernel(out, self.finish)
        return with_conditions(out.text().replace("@cute.kernel\n", "").replace("cutlass.Int64(cta)", "cta"))

    def run(self, numbers: Mapping[str, float]) -> None:
        cta = Lanes(torch.arange(self.shape[0])[:, None].expand(self.shape))
        threads = Lanes(self.thread)
        names: dict[str, Any] = {
            "cutlass": types.SimpleNamespace(
                **{**CONVERSIONS, "Tensor": None},
                range_constexpr=range,
                range=lambda n, unroll: range(n),
                select_=lifted(_select),
                min=lifted(lambda x, y: torch.clamp(x, max=y)),
                memory=types.SimpleNamespace(
                    SmemAllocator=lambda: types.SimpleNamespace(allocate_tensor=self._allocate)
                ),
            ),
            "cute": self._cute(cta, threads),
            "only": self._only,
        }
        exec(self.text(), names)
        given = {name: self.memory[name] for name, kind in parameters(self.finish) if kind == "cute.Tensor"}
        names["finish"](**given, **{name: Lanes(torch.tensor(value)) for name, value in numbers.items()})

    def _allocate(self, kind: Any, words: int | tuple[int, int, int], alignment: int) -> Shared | Row:
        if isinstance(words, tuple):
            return Row(self, words)
        assert words == shared_words(self.finish)
        return self.shared

    @contextlib.contextmanager
    def _only(self, condition: Any) -> Iterator[None]:
        before = self.active
        self.active = before & torch.as_tensor(condition.held if isinstance(condition, Lanes) else condition)
        yield
        self.active = before

    def _cute(self, cta: Lanes, threads: Lanes) -> Any:
        math = {name: lifted(_exactly(getattr(torch, name))) for name in FUNCTIONS}
        arch = types.SimpleNamespace(
            thread_idx=lambda: (threads, 0, 0),
            block_idx=lambda: (cta, 0, 0),
            warp_idx=lambda: Lanes(self.thread // 32),
            lane_idx=lambda: Lanes(self.thread % 32),
            make_warp_uniform=lambda x: x,
            fmax=lifted(_largest),
            fmin=lifted(_smallest),
            rcp_approx=lifted(torch.reciprocal),
            shuffle_sync_bfly=lambda value, offset: Lanes(
                value.held.expand(self.shape)[:, torch.arange(self.shape[1]) ^ offset]
            ),
            griddepcontrol_wait=lambda: setattr(self, "awaited", True),
            sync_threads=lambda: self.shared.fresh.fill_(-1),
        )
        return types.SimpleNamespace(
            Tensor=None,
            math=types.SimpleNamespace(**math, fma=lifted(_fma), roundeven=lifted(torch.round)),
            arch=arch,
            make_rmem_tensor=lambda values, kind: Fragment(self, values),
            make_layout=lambda words: words,
            autovec_copy=_copy,
        )


def _copy(source: Any, to: Any) -> None:
    vector, fragment = (source, to) if isinstance(source, Vector) else (to, source)
    for i in range(vector.size):
        if vector is source:
            fragment[i] = vector.memory[(i, *vector.at)]
        else:
            vector.memory[(i, *vector.at)] = fragment[i]


def stored_name(finish: Finish, at: int = 0) -> str:
    """Of what the product has left."""
    return ROWS if isinstance(finish, RowFinish) else f"stored_part_{at}"
