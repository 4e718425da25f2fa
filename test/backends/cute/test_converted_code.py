"""The printed code that converts raw tiles in registers, run thread by thread in Python, against the fragments of A."""

from __future__ import annotations

import re
import types
from typing import Any

import pytest
import torch
from backends.cute import copies

from helion.backends.cute.codegen import copied, raw
from helion.backends.cute.execute.evaluate import _multiplied
from helion.backends.cute.plan.dtypes import per_byte
from helion.backends.cute.plan.records import GemmPlan
from helion.backends.cute.roles import grammar as g
from helion.backends.cute.roles.halves import ConvertHalf

LINE, CHUNK = 128, 16
HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class Word(int):
    """An unsigned integer of the DSL."""

    def __rshift__(self, by: int) -> Word:
        return Word(int(self) >> by)

    def to(self, dtype: Any) -> Word:
        return self


class Words:
    """Registers as bytes, which views of other types share."""

    def __init__(self, memory: bytearray, dtype: torch.dtype, first: int = 0, size: int = -1) -> None:
        self.memory, self.dtype, self.first, self.size = memory, dtype, first, size

    def __add__(self, elements: int) -> Words:
        return Words(self.memory, self.dtype, self.first + elements)

    @property
    def iterator(self) -> Words:
        return self

    def values(self) -> torch.Tensor:
        whole = torch.frombuffer(self.memory, dtype=self.dtype)[self.first :]
        return whole if self.size < 0 else whole[: self.size]

    def __getitem__(self, at: int) -> Any:
        value = self.values()[at].item()
        return Word(value) if self.dtype in (torch.uint16, torch.uint32) else value

    def __setitem__(self, at: int, value: Any) -> None:
        self.values()[at] = value

    def __len__(self) -> int:
        return len(self.values())

    def load(self) -> Words:
        return self

    def to(self, dtype: torch.dtype) -> torch.Tensor:
        return self.values().to(dtype)

    def store(self, values: torch.Tensor) -> None:
        self.values()[:] = values


def inline_ptx(code: str, write_only_types: Any, read_only_args: list[int]) -> Word:
    """Execute one instruction, whose second operand may be a constant in a register."""
    if code.startswith("{"):
        constant = re.fullmatch(r"\{ \.reg \.b32 less; mov\.b32 less, (0x\w+); (.*), less; \}", code)
        assert constant is not None
        read_only_args, code = [*read_only_args, int(constant[1], 16)], constant[2]
    first, second = (torch.tensor([int(x)], dtype=torch.uint32) for x in read_only_args)
    if code.startswith("prmt.b32"):
        both = [*first.view(torch.uint8).tolist(), *second.view(torch.uint8).tolist()]
        selector = int(code.rstrip(";").split(",")[-1], 16)
        return Word(sum(both[selector >> 4 * at & 7] << 8 * at for at in range(4)))
    half = torch.bfloat16 if code.startswith("sub.rn.bf16x2") else torch.float16
    assert code.startswith(("sub.rn.bf16x2", "sub.rn.f16x2"))
    return Word((first.view(half) - second.view(half)).view(torch.uint32).item())


def widen_bytes(numbers: Words, least: int, wide: Words) -> None:
    wide.store(numbers.to(torch.float32))


def fragments(plan: GemmPlan, memory: bytearray, tile: int, k_tile: int, warp: int) -> torch.Tensor:
    """Return the 16 rows of a tile of A that the registers of a warp have."""
    types_of = {
        "Uint8": torch.uint8,
        "Int8": torch.int8,
        "Uint16": torch.uint16,
        "Uint32": torch.uint32,
        "Float32": torch.float32,
        "BFloat16": torch.bfloat16,
        "Float16": torch.float16,
        "Float8E4M3FN": torch.float8_e4m3fn,
    }
    cutlass = types.SimpleNamespace(range_constexpr=range, select_=lambda c, x, y: x if c else y, **types_of)
    cutlass.Uint32, cutlass.Float32 = Word, float  # as functions
    known = {Word: torch.uint32, float: torch.float32}
    k = plan.tile[2]

    def registers(size: int, dtype: Any) -> Words:
        dtype = known.get(dtype, dtype)
        return Words(bytearray(size * dtype.itemsize), dtype)

    cute = types.SimpleNamespace(
        make_rmem_tensor=registers,
        make_layout=lambda size: size,
        make_tensor=lambda place, size: Words(place.memory, place.dtype, place.first, size),
        recast_ptr=lambda place, dtype: Words(place.memory, dtype),
        recast_tensor=lambda place, dtype: Words(place.memory, known.get(dtype, dtype)),
        arch=types.SimpleNamespace(inline_ptx=inline_ptx, grid_dim=lambda: (1, 4, 1)),
    )
    names: dict[str, Any] = {"cutlass": cutlass, "cute": cute, "widen_bytes": widen_bytes}
    names |= {"tile_m": tile, "k_tile": k_tile, "raw_read": types.SimpleNamespace(index=1)}
    names["shared_raw_a"] = Words(memory, torch.uint8)
    names["tiled_mma"] = types.SimpleNamespace(partition_shape_A=lambda shape: k // 2)
    exec("\n".join(raw.definitions(plan)), names)
    read = copied.lines(g.ReadRaw("a", "raw_read"), plan, None, 2)  # type: ignore[arg-type]
    halves = [line for half in (0, 1) for line in raw.of_half(plan, ConvertHalf(half), "k_tile")]
    lines = [*raw.set_up(plan), *read, *halves]
    program = compile("\n".join(lines), "converted", "exec")
    found = torch.full((16, k), torch.nan, dtype=torch.float64)
    for lane in range(32):
        here = {**names, "store_warp": warp, "lane": lane}
        exec(program, here)
        for at, value in enumerate(here["fragment_a"].values().double().tolist()):
            row = lane // 4 + at // 2 % 2 * 8
            place = at // 8 * 16 + lane % 4 * 2 + at % 2 + at // 4 % 2 * 8
            assert found[row, place].isnan()
            found[row, place] = value
    return found


def raw_stages(plan: GemmPlan, source: torch.Tensor, tile: int, k_tile: int) -> bytearray:
    """Return two stages, of which the second has the K tile as TMA writes it: swizzled, with zeros past the ends."""
    (copied,) = plan.problem.copied
    m, k = plan.tile[0], plan.tile[2] // per_byte(copied.sources[0].dtype)
    whole = torch.zeros(m, k, dtype=torch.uint8)
    inside = source.view(torch.uint8)[tile * m : (tile + 1) * m, k_tile * k : (k_tile + 1) * k]
    whole[: inside.shape[0], : inside.shape[1]] = inside
    memory = bytearray([0xA5]) * (2 * m * k)
    for row in range(m):
        for chunk in range(k // CHUNK):
            pattern = row % 8 if k == LINE else row // 2 % 4
            first = (m + row) * k + (chunk ^ pattern) * CHUNK
            memory[first : first + CHUNK] = bytes(whole[row, chunk * CHUNK : (chunk + 1) * CHUNK].tolist())
    return memory


@pytest.mark.parametrize(
    "name",
    ["registers_int8", "registers_fp16", "registers_fp8", "registers_computed", "registers_int4", "registers_uint4"],
)
def test_fragments_are_those_of_the_operand(name: str) -> None:
    plan = copies.plan(name, "sm_90")
    problem = plan.problem
    (source,) = problem.copied[0].sources
    pitch, packed = source.pitch // per_byte(source.dtype), per_byte(source.dtype) > 1
    bits = torch.randint(0, 256, (problem.m, pitch), generator=torch.Generator().manual_seed(3)).to(torch.uint8)
    bits[:, 7] = 0x80  # the least integer
    if source.dtype == "float8_e4m3fn":
        bits[bits & 0x7F == 0x7F] = 0x3C
    values = bits if packed else bits.view(getattr(torch, source.dtype))
    exact = _multiplied(problem, "a", values.flatten(), iter(())).double()
    m, k = plan.tile[0], plan.tile[2]
    last = (problem.m - 1) // m, (problem.k - 1) // k
    for tile, k_tile, warp in ((0, 0, m // 16 - 1), (*last, 1)):
        found = fragments(plan, raw_stages(plan, values, tile, k_tile), tile, k_tile, warp)
        inside = exact[tile * m : (tile + 1) * m, k_tile * k : (k_tile + 1) * k][warp * 16 : (warp + 1) * 16]
        assert torch.equal(found[: inside.shape[0], : inside.shape[1]], inside)
        assert problem.copied[0].instructions == () or packed or not found[:, inside.shape[1] :].any()
