"""The printed code of copying warps, run thread by thread in Python, against the operand that it should store."""

from __future__ import annotations

import itertools
import types
from typing import Any

import pytest
import torch
from backends.cute import copies
from backends.cute.ptx import rounded_to

from helion.backends.cute.codegen import copied as code
from helion.backends.cute.execute.evaluate import _multiplied
from helion.backends.cute.plan.copied import COPY_WARPS, Copied
from helion.backends.cute.plan.counts import along_lines, is_raw, turns
from helion.backends.cute.plan.records import GemmPlan
from helion.backends.cute.roles import grammar as g
from helion.backends.cute.roles.programs import kernel_program


class Number(float):
    """A scalar of the DSL."""

    def to(self, dtype: Any) -> Number:
        return self


class Place:
    """A pointer: a memory and an index there."""

    def __init__(self, memory: Any, at: Any = 0) -> None:
        self.memory, self.at = memory, at

    def __add__(self, step: Any) -> Place:
        return Place(self.memory, step if isinstance(step, tuple) else self.at + step)

    def align(self, size: int) -> Place:
        return self


class Registers(list[Number]):
    @property
    def iterator(self) -> Place:
        return Place(self)

    def store(self, values: list[Number]) -> None:
        self[:] = values


class Source:
    """A tensor in global memory with bounds; coordinates are (line, k)."""

    def __init__(self, values: torch.Tensor, *, along_lines: bool = False) -> None:
        self.values, self.layout, self.iterator = values, None, Place(self)
        self.along_lines = along_lines

    def __getitem__(self, at: tuple[int, int]) -> Number:
        assert all(0 <= index < extent for index, extent in zip(at, self.values.shape, strict=True))
        return Number(float(self.values[at]))


class Stage:
    """Shared memory, by (line, k) of the tile; every element is written once."""

    def __init__(self) -> None:
        self.held: dict[tuple[int, int], float] = {}
        self.layout, self.iterator = None, Place(self)


class View:
    """Consecutive elements from a pointer on, along K in a source or a stage."""

    def __init__(self, place: Place, size: int) -> None:
        self.place, self.size = place, size

    def load(self) -> View:
        return self

    def to(self, dtype: Any) -> list[Number]:
        return self.read()

    def read(self) -> list[Number]:
        memory, at = self.place.memory, self.place.at
        if isinstance(memory, Source):
            along = [(step, 0) if memory.along_lines else (0, step) for step in range(self.size)]
            return [memory[at[0] + line, at[1] + k] for line, k in along]
        return memory[at : at + self.size]

    def write(self, values: list[Number]) -> None:
        memory, at = self.place.memory, self.place.at
        if isinstance(memory, Registers):
            memory[at : at + self.size] = values
            return
        line, k = at[:2]
        if isinstance(line, tuple):  # ((line, k of an instruction), 0, instruction, stage)
            k = line[1] + at[2] * 32 // memory.itemsize
            line = line[0]
        for step, value in enumerate(values):
            place = (line + step, k) if memory.along_lines else (line, k + step)
            assert place not in memory.held
            memory.held[place] = value


def _rounded(dtype: torch.dtype) -> Any:
    return lambda values: [Number(float(torch.tensor(float(x)).to(dtype))) for x in values]


def round_by_pair(text: str, write_only_types: object, read_only_args: list[float]) -> Number:
    (x,) = read_only_args
    return Number(float(torch.tensor(float(x)).to(rounded_to(text))))


class Loaded(list[Number]):
    def to(self, convert: Any) -> list[Number]:
        return convert(self)


Registers.load = lambda self: Loaded(self)  # type: ignore[attr-defined]


def run(
    plan: GemmPlan, copied: Copied, tile: int, k_tile: int, sources: list[torch.Tensor]
) -> dict[tuple[int, int], float]:
    """The elements of a stage after all threads have copied K tile ``k_tile`` of tile number ``tile``."""
    role = next(each for each in kernel_program(plan).roles if each.name == "copy")
    stage: Any = Stage()
    stage.itemsize, stage.along_lines = plan.operand_bytes, along_lines(plan, copied)
    cutlass = types.SimpleNamespace(
        range_constexpr=range,
        min=min,
        select_=lambda condition, x, y: x if condition else y,
        Float32=Number,
        **{name: Number for name in ("Uint8", "Uint16", "Uint32", "Int8")},
        BFloat16=_rounded(torch.bfloat16),
        Float8E4M3FN=_rounded(torch.float8_e4m3fn),
        TFloat32=Number,
    )
    cute = types.SimpleNamespace(
        make_rmem_tensor=lambda size, dtype: Registers([Number(-77.0)] * size),
        make_layout=lambda size: size,
        make_tensor=lambda place, size: View(place, size),
        crd2idx=lambda at, layout: at,
        recast_ptr=lambda place, swizzle=None, dtype=None: place,
        autovec_copy=lambda source, target: (
            target.write(source) if isinstance(source, list) else target.write(source.read())
        ),
        arch=types.SimpleNamespace(fmax=lambda x, y, nan: Number(max(x, y)), inline_ptx=round_by_pair),
    )
    names: dict[str, Any] = {"cutlass": cutlass, "cute": cute, "tile_m": tile, "tile_n": tile, "k_tile": k_tile - 1}
    names |= {
        "ab_copy": types.SimpleNamespace(index=0),
        "widen_bytes": widen_bytes,
        "layout_a": types.SimpleNamespace(inner=0),
        "layout_b": types.SimpleNamespace(inner=0),
    }
    names |= dict.fromkeys(("shared_a", "shared_b"), stage)
    tensors = (Source(each, along_lines=stage.along_lines) for each in sources)
    names |= dict(zip(code.source_names(copied), tensors, strict=True))
    setup = [line for line in code.set_up(plan, role) if not line.startswith("copy_part")]
    load = code.lines(g.LoadElements(copied.operand, ahead=1), plan, role, 2)
    read: list[str] = []
    if is_raw(plan, copied):
        read = code.lines(g.ReadRaw(copied.operand, "raw_read"), plan, role, 2)
        names["raw_read"] = types.SimpleNamespace(index=1)
        names[f"shared_raw_{copied.operand}"] = types.SimpleNamespace(
            iterator=Place(raw_tiles(plan, copied, tile, k_tile, sources[0]))
        )
    write = code.lines(g.WriteElements(copied.operand, "ab_copy"), plan, role, 2)
    program = compile("\n".join([*setup, *load, "k_tile += 1", *read, *write]), copied.operand, "exec")
    for warp, lane in itertools.product(range(0, COPY_WARPS, turns(plan)), range(32)):  # of one group
        places = {"thread": (role.first_warp + warp) * 32 + lane, "warp": role.first_warp + warp, "lane": lane}
        exec(program, {**names, **places, "copy_part": stage})
    return stage.held


def raw_tiles(plan: GemmPlan, copied: Copied, tile: int, k_tile: int, source: torch.Tensor) -> Registers:
    """Two stages in shared memory: TMA has written the K tile to the second one, and zeros past the ends of the source."""
    lines, depth = (plan.cta_tile[0] if copied.operand == "a" else plan.tile[1]), plan.tile[2]
    whole = torch.zeros(lines, depth)
    inside = source[tile * lines : (tile + 1) * lines, k_tile * depth : (k_tile + 1) * depth]
    whole[: inside.shape[0], : inside.shape[1]] = inside
    held = whole if copied.sources[0].k_pitch == 1 else whole.t()
    return Registers([Number(-55.0)] * whole.numel() + [Number(x) for x in held.flatten().tolist()])


def widen_bytes(numbers: View, least: int, wide: Registers) -> None:
    wide[:] = numbers.read()
    assert all(least <= x <= least + 255 for x in wide)


#: Plans whose operands pass through registers. ``test_granules.py`` has those of cp.async.
NAMES = (
    "raw_n_major_scaled",
    "raw_m_major",
    "raw_lines",
    "raw_to_fp8",
    "odd",
    "int8_scaled",
    "fp8_odd",
    "computed",
)


@pytest.mark.parametrize(
    ("name", "target"),
    [("fp8_odd", "sm_90"), ("fp8_odd", "sm_100"), ("raw_m_major", "sm_90"), ("raw_n_major_scaled", "sm_100")],
)
def test_the_last_elements_are_stored_once(name: str, target: str) -> None:
    check(name, target, first=False)


@pytest.mark.prove
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
@pytest.mark.parametrize("name", NAMES)
def test_every_element_is_stored_once(name: str, target: str) -> None:
    check(name, target, first=True)


def check(name: str, target: str, *, first: bool) -> None:
    plan = copies.plan(name, target)
    problem, generator = plan.problem, torch.Generator().manual_seed(7)
    assert not any(copied.granule for copied in problem.copied)
    for copied in problem.copied:
        lines = problem.m if copied.operand == "a" else problem.n
        tensors, sources = [], []
        for source in copied.sources:
            span = 1 + (lines - 1) * source.pitch + (problem.k - 1) * source.k_pitch
            flat = (torch.randn(span, generator=generator) * 4 + 1).to(getattr(torch, source.dtype))
            tensors.append(flat)
            sources.append(torch.as_strided(flat, (lines, problem.k), (source.pitch, source.k_pitch)).float())
        exact = _multiplied(problem, copied.operand, tensors[0], iter(tensors[1:]))
        height, depth = (plan.cta_tile[0] if copied.operand == "a" else plan.tile[1]), plan.tile[2]
        tiles, k_tiles = -(-lines // height), -(-problem.k // depth)
        for tile, k_tile in (*(((0, 0),) if first else ()), (tiles - 1, k_tiles - 1)):
            held = run(plan, copied, tile, k_tile, sources)
            assert {*held} == {(line, k) for line in range(height) for k in range(depth)}
            inside = exact[tile * height : (tile + 1) * height, k_tile * depth : (k_tile + 1) * depth]
            for line in range(inside.shape[0]):
                stored = torch.tensor([held[line, k] for k in range(depth)])
                torch.testing.assert_close(stored[: inside.shape[1]], inside[line], rtol=0, atol=0)
                assert not stored[inside.shape[1] :].any()
