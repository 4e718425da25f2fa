"""Rows that begin anywhere, which kernels before the matmul load by granules of 16 bytes and shift: their text, run by a
small model of the DSL."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import pytest
import torch
from backends.cute import gemms
from backends.cute.copies import copied

from helion.backends.cute.codegen import prepare as code
from helion.backends.cute.codegen.copied import source_names
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.records import Choice, GemmProblem


class Integer(int):
    """An integer of the DSL."""

    def to(self, dtype: Any) -> Integer:
        return self

    def __and__(self, other: int) -> Integer:
        return Integer(int(self) & other)

    def __add__(self, other: int) -> Integer:
        return Integer(int(self) + other)

    def __mul__(self, other: int) -> Integer:
        return Integer(int(self) * other)

    def toint(self) -> Integer:
        return self


class Words(list[int]):
    """Registers of 32 bits, or a part of them from ``first`` on."""

    @property
    def iterator(self) -> Part:
        return Part(self, 0)


@dataclasses.dataclass
class Part:
    held: Any
    first: int

    def __add__(self, step: int) -> Part:
        return Part(self.held, self.first + step)


class Memory:
    """A source in bytes, of which granules alone are loaded that have some byte of it."""

    def __init__(self, given: torch.Tensor, begin: int, layout: tuple[int, ...]) -> None:
        self.bytes, self.begin, self.layout, self.iterator = (
            given.view(torch.uint8).tolist(),
            begin,
            layout,
            Integer(begin),
        )

    def granule(self, at: int) -> list[int]:
        assert at % 16 == 0 and self.begin - 16 < at < self.begin + len(self.bytes)
        found = [
            self.bytes[x] if 0 <= x < len(self.bytes) else 0xEE for x in range(at - self.begin, at - self.begin + 16)
        ]
        return [int.from_bytes(found[word : word + 4], "little") for word in range(0, 16, 4)]


def run(shape: code.Shape, memory: Memory, size: int) -> dict[tuple[int, ...], list[int]]:
    """Return the granules that all threads store, by (row, column)."""
    stored: dict[tuple[int, ...], list[int]] = {}

    def copy(source: Any, target: Any) -> None:
        if isinstance(source, int):
            target.held[target.first : target.first + 4] = memory.granule(source)
        else:
            first = source.first * size // 4
            stored[target] = source.held[first : first + 4]

    def align(at: tuple[int, ...]) -> Any:
        return types.SimpleNamespace(align=lambda size: at)

    def shift(text: str, write_only_types: Any, read_only_args: list[int]) -> int:
        low, high, bits = read_only_args
        return (low | high << 32) >> bits & 0xFFFFFFFF

    cutlass = types.SimpleNamespace(
        range_constexpr=range, min=min, select_=lambda condition, x, y: x if condition else y,
        **{name: Integer for name in ("Int64", "Int32", "Uint32", "Uint16", "Uint8")},
    )  # fmt: skip
    label = shape.prepared.copied.operand
    (name,) = source_names(shape.prepared.copied)
    to = types.SimpleNamespace(iterator=types.SimpleNamespace(), layout=None)
    text = "\n".join(code.body(shape)).replace(f"(to_{label}.iterator + cute.crd2idx(", "align(").replace(f", to_{label}.layout)).align(16)", ").align(16)")  # fmt: skip
    program = compile(text, label, "exec")
    for cta in range(shape.ctas):
        for thread in range(shape.threads):
            cute = types.SimpleNamespace(
                make_rmem_tensor=lambda size, dtype: Words([0xDDDDDDDD] * size),
                make_layout=lambda size: size,
                make_tensor=lambda held, size: held,
                make_ptr=lambda dtype, at, space, assumed_align: int(at),
                AddressSpace=types.SimpleNamespace(gmem=None),
                crd2idx=lambda at, layout: sum(x * step for x, step in zip(at, layout, strict=True)) * size,
                recast_tensor=lambda held, dtype: held,
                autovec_copy=copy,
                arch=types.SimpleNamespace(
                    thread_idx=lambda thread=thread: (thread, 0, 0),
                    block_idx=lambda cta=cta: (cta, 0, 0),
                    inline_ptx=shift,
                ),
            )
            exec(program, {"cutlass": cutlass, "cute": cute, name: memory, f"to_{label}": to, "align": align})
    return stored


@pytest.mark.parametrize(
    ("operand", "dtype", "pitch", "k_pitch", "begin"),
    [("a", torch.bfloat16, 45, 1, 64), ("b", torch.bfloat16, 1, 99, 64), ("a", torch.bfloat16, 46, 1, 70), ("a", torch.float32, 47, 1, 4), ("a", torch.float8_e4m3fn, 51, 1, 3)],
)  # fmt: skip
def test_granules_have_the_elements_of_a_row(
    operand: str, dtype: torch.dtype, pitch: int, k_pitch: int, begin: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code, "SHIFTED", (1, 2, 4))
    kind, size = str(dtype).removeprefix("torch."), dtype.itemsize
    lines, k = (40, 45) if operand == "a" else (96, 37)
    given = copied(operand, ("x", kind, pitch, k_pitch))
    given = dataclasses.replace(given, sources=(dataclasses.replace(given.sources[0], aligned=begin == 64),), granule=0)
    whole: GemmProblem = dataclasses.replace(
        gemms.product(48, 96, 48, operands=kind), m=lines if operand == "a" else 48, k=k, copied=(given,)
    )
    made = plan_gemm(whole, Choice(tile=(64, 64, 128 // size), copies_in="memory"), gemms.HOPPER)
    assert made.prepare is not None
    (prepared,) = made.prepare.operands
    shape = code.shape_of(prepared, whole)
    assert shape.shifts(prepared.copied.sources[0]) and shape.vector == 16 // size
    span = (lines - 1) * pitch + (k - 1) * k_pitch + 1
    flat = torch.randint(0, 256, (span * size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    layout = (pitch, k_pitch, 0)
    stored = run(shape, Memory(flat, begin, layout), size)
    assert len(stored) == prepared.rows * -(-prepared.columns // shape.vector)
    for (row, column, _), words in stored.items():
        found = [byte for word in words for byte in word.to_bytes(4, "little")]
        for at in range(min(shape.vector, prepared.columns - column)):
            line, element = (row, column + at) if prepared.major == "k" else (column + at, row)
            first = (line * pitch + element * k_pitch) * size
            assert found[at * size : (at + 1) * size] == flat[first : first + size].tolist()
