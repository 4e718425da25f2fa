"""The printed code of copies by cp.async, run thread by thread in Python, against the stage that the matrix unit reads."""

from __future__ import annotations

import re
import types
from typing import Any

import pytest
import torch
from backends.cute import copies

from helion.backends.cute.codegen import copied as code
from helion.backends.cute.codegen.granules import set_up
from helion.backends.cute.plan.copied import Copied
from helion.backends.cute.plan.counts import copied_lines, copy_warps
from helion.backends.cute.plan.records import GemmPlan
from helion.backends.cute.roles import grammar as g

STAGE, STAGES, LINE = 1, 2, 128
"""The stage that is filled, of so many, and the bytes of a line in it."""
COPY = re.compile(r"cp\.async\.(ca|cg)\.shared\.global \[\{\$r0\}\], \[\{\$r1\}\], (\d+), \{\$r2\};")


class Address(int):
    def to(self, kind: Any) -> Address:
        return self


class Pointer:
    """An address, in elements of ``size`` bytes; indices are those of elements."""

    def __init__(self, size: int, at: int = 0) -> None:
        self.size, self.at = size, at

    def __add__(self, elements: int) -> Pointer:
        return Pointer(self.size, self.at + elements)

    def toint(self) -> Address:
        return Address(self.at * self.size)


class Device:
    """Global memory with the bytes of an operand, and shared memory in which each byte is written once."""

    def __init__(self, plan: GemmPlan, copied: Copied, memory: torch.Tensor) -> None:
        self.plan, self.copied = plan, copied
        self.bytes = memory.view(torch.uint8).tolist()
        self.shared: dict[int, int] = {}

    def index(self, at: tuple[Any, ...], layout: str) -> int:
        if layout == "source":
            source = self.copied.sources[0]
            return at[0] * source.pitch + at[1] * source.k_pitch
        row = LINE // self.plan.operand_bytes
        if isinstance(at[0], tuple):  # tcgen05: (line, k of an instruction), 0, instruction, stage
            (line, k), _, step, stage = at
            k += step * 32 // self.plan.operand_bytes
        else:
            line, k, stage = at
        return (stage * copied_lines(self.plan, self.copied) + line) * row + k

    def run(self, text: str, read_only_args: list[int]) -> None:
        """Copy a granule as the instruction does: aligned, the first bytes from memory, and zeros."""
        match = COPY.fullmatch(text)
        assert match is not None, text
        size, (to, source, left) = int(match[2]), read_only_args
        assert (match[1] == "cg") == (size == 16) and 0 <= left <= size
        assert to % size == 0 and source % size == 0
        read = self.bytes[source : source + left] if left else []
        assert len(read) == left, "past the end of the tensor"
        for at, value in enumerate([*read, *[0] * (size - left)]):
            assert to + at not in self.shared
            self.shared[to + at] = value


def stage(plan: GemmPlan, copied: Copied, tile: int, k_tile: int, memory: torch.Tensor) -> dict[int, int]:
    """Return the bytes of shared memory after all threads have copied a K tile."""
    device, name = Device(plan, copied, memory), copied.operand
    tensor = types.SimpleNamespace(iterator=Pointer(1), layout="stages")
    names: dict[str, Any] = {
        "cutlass": types.SimpleNamespace(
            range_constexpr=range, min=min, max=max, Int32=int, Uint8=None, select_=lambda one, x, y: x if one else y
        ),
        "cute": types.SimpleNamespace(
            recast_ptr=lambda pointer, dtype: pointer,
            crd2idx=device.index,
            arch=types.SimpleNamespace(inline_ptx=device.run),
        ),
        **dict.fromkeys(("shared_a", "shared_b", "copy_part"), tensor),
        **{"tile_m": tile, "tile_n": tile, "k_tile": k_tile, "ab_copy": types.SimpleNamespace(index=STAGE)},
    }
    (source,) = code.source_names(copied)
    names[source] = types.SimpleNamespace(iterator=Pointer(plan.operand_bytes), layout="source")
    lines = code.lines(g.StartCopies(name, "ab_copy"), plan, None, STAGES)  # type: ignore[arg-type]
    program = compile("\n".join([*set_up(copied, "shared_a"), *lines]), name, "exec")
    for thread in range(copy_warps(plan) * 32):
        exec(program, {**names, "copy_thread": thread})
    return device.shared


CASES = [
    (name, target, copied)
    for name, target in copies.NAMES
    for copied in copies.COPIES[name][0].copied
    if copied.granule and "splits" not in name and "pingpong" not in name
]


@pytest.mark.parametrize(("name", "target", "copied"), CASES, ids=[f"{n}-{t}-{c.operand}" for n, t, c in CASES])
def test_stages_are_as_the_matrix_unit_reads_them(name: str, target: str, copied: Copied) -> None:
    """Each byte is written once, at the address of its line and place along K with 128-byte swizzling."""
    plan = copies.plan(name, target)
    problem, height, depth = plan.problem, copied_lines(plan, copied), plan.tile[2]
    extent, source = (problem.m if copied.operand == "a" else problem.n), copied.sources[0]
    memory = torch.randint(
        1, 255, (1 + (extent - 1) * source.pitch + (problem.k - 1) * source.k_pitch, plan.operand_bytes)
    )
    memory = memory.to(torch.uint8)
    elements = torch.as_strided(torch.arange(memory.shape[0]), (extent, problem.k), (source.pitch, source.k_pitch))
    for tile, k_tile in ((0, 0), (-(-extent // height) - 1, -(-problem.k // depth) - 1)):
        shared = stage(plan, copied, tile, k_tile, memory.flatten())
        first = STAGE * height * LINE
        assert {*shared} == {*range(first, first + height * LINE)}
        for line in range(height):
            swizzled = [(line * LINE + at) ^ (line % 8 * 16) for at in range(LINE)]
            found = torch.tensor([shared[first + at] for at in swizzled]).view(depth, plan.operand_bytes)
            row = tile * height + line
            wanted = torch.zeros(depth, plan.operand_bytes, dtype=torch.int64)
            if row < extent:
                inside = elements[row, k_tile * depth : (k_tile + 1) * depth]
                wanted[: len(inside)] = memory[inside].long()
            assert torch.equal(found, wanted), (tile, k_tile, line)
