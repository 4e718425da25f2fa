"""Descriptors of operands that ptxas computes from the wrong registers: found in PTX, and compared with the binary."""

from __future__ import annotations

import itertools
import re
import subprocess
from pathlib import Path

import pytest
import triton
import triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from helion import hardware
from helion.backends.triton.toolchain import OfflineCompileError, compile_offline, ptxas_version
from helion.backends.triton.toolchain.descriptors import MiscompiledError, check_descriptors, clash

#: Upper halves of descriptors with swizzles of 128, 64 and 32 bytes, and without.
WIDE, MIDDLE, NARROW, NONE = 0x40000040, 0x80000020, 0xC0000010, 0x00000040
TYPES = {"q": "*fp16", "k": "*fp16", "v": "*fp16", "out": "*fp32"}


@triton.jit
def chain(q, k, v, out, N: tl.constexpr, D: tl.constexpr, E: tl.constexpr, EARLY: tl.constexpr):
    rows, keys, inner, columns = tl.arange(0, 64), tl.arange(0, N), tl.arange(0, D), tl.arange(0, E)
    left = (tl.load(q + (rows[:, None] * D + inner[None, :])) * 0.25).to(tl.float16)
    right = tl.load(k + (inner[:, None] * N + keys[None, :]))
    if EARLY:
        values = tl.load(v + (keys[:, None] * E + columns[None, :]))
    scores = tl.maximum(tl.dot(left, right), 0.0).to(tl.float16)
    if not EARLY:
        values = tl.load(v + (keys[:, None] * E + columns[None, :]))
    tl.store(out + (rows[:, None] * E + columns[None, :]), tl.dot(scores, values))


def ptx(*matmuls: tuple[str, int, int]) -> str:
    """Return the lines of matmuls, each with its register of an address, its upper half, and its steps along K."""
    lines, registers = [], itertools.count(100)
    for address, upper, steps in matmuls:
        for step in range(steps):
            constant, register = (upper << 32) + 64 * step, next(registers)
            lines.append(f"\tadd.s64 \t%rd{register}, {address}, {constant - (constant >> 63 << 64)};")
            lines.append(f"\twgmma.mma_async.sync.aligned.m64n32k16 {{%r1}}, {{%r2}}, %rd{register}, 1;")
        lines.append("\twgmma.commit_group.sync.aligned;")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("matmuls", "wrong"),
    [
        ([("%rd1", WIDE, 2), ("%rd1", MIDDLE, 3)], True),
        ([("%rd1", WIDE, 1), ("%rd1", MIDDLE, 3)], False),
        ([("%rd1", WIDE, 2), ("%rd1", MIDDLE, 2)], False),
        ([("%rd1", WIDE, 2), ("%rd2", MIDDLE, 3)], False),
        ([("%rd1", WIDE, 4), ("%rd1", WIDE, 4)], False),
        ([("%rd1", MIDDLE, 4), ("%rd1", WIDE, 4)], False),
        ([("%rd1", MIDDLE, 4), ("%rd1", WIDE, 4), ("%rd1", WIDE, 4)], True),
        ([("%rd1", MIDDLE, 4), ("%rd1", WIDE, 4), ("%rd2", WIDE, 4)], False),
        ([("%rd1", NONE, 2), ("%rd1", WIDE, 3)], True),
        ([("%rd1", MIDDLE, 2), ("%rd1", NARROW, 3)], True),
    ],
)
def test_descriptors_clash(matmuls: list[tuple[str, int, int]], wrong: bool) -> None:
    assert (clash(ptx(*matmuls)) is not None) == wrong


def binary(compiled: triton.compiler.CompiledKernel, folder: Path) -> str:
    path = folder / "kernel.cubin"
    path.write_bytes(compiled.asm["cubin"])
    command = [knobs.nvidia.nvdisasm.path, "-c", "-ndf", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def unwritten(listing: str) -> set[int]:
    """Return the uniform registers that additions of a binary read and that nothing in it writes."""
    written, read = set[int](), set[int]()
    for opcode, operands in re.findall(
        r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_.]+)\s+(.*?)\s*;", listing, re.M
    ):
        target, *others = operands.split(", ")
        if found := re.fullmatch(r"UR(\d+)", target):
            both = re.search(r"\.(64|128|WIDE)\b", opcode) is not None
            written.update(range(int(found[1]), int(found[1]) + (4 if ".128" in opcode else 2 if both else 1)))
        if opcode.startswith("UIADD3"):
            read.update(int(number) for number in re.findall(r"\bUR(\d+)", ", ".join(others)))
    return read - written


def compiled(n: int, d: int, e: int, early: bool) -> triton.compiler.CompiledKernel:
    constants = {"N": n, "D": d, "E": e, "EARLY": early}
    aligned = {(at,): [["tt.divisibility", 16]] for at in range(4)}
    source = ASTSource(chain, {**TYPES, **dict.fromkeys(constants, "constexpr")}, constants, aligned)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})


def fails() -> bool:
    return ptxas_version(hardware.target("h100")) == "12.8"


def test_the_assembler_reads_unwritten_registers(tmp_path: Path) -> None:
    """ptxas 12.8 does; a later one may not. Operands in memory at the same time have addresses of their own."""
    late, early = (compiled(64, 32, 32, each) for each in (False, True))
    assert clash(late.asm["ptx"]) == (WIDE, MIDDLE) and clash(early.asm["ptx"]) is None
    assert bool(unwritten(binary(late, tmp_path))) == fails()
    assert not unwritten(binary(early, tmp_path))


@pytest.mark.prove
@pytest.mark.parametrize("early", [False, True])
def test_descriptors_that_do_not_clash_are_right(early: bool, tmp_path: Path) -> None:
    for n, d, e in itertools.product((32, 64, 128), (16, 32, 64), (16, 32, 64)):
        kernel = compiled(n, d, e, early)
        assert clash(kernel.asm["ptx"]) is not None or not unwritten(binary(kernel, tmp_path)), (n, d, e)


def test_a_miscompiled_kernel_is_refused() -> None:
    constants = {"N": 64, "D": 32, "E": 32, "EARLY": False}
    kernel = compiled(64, 32, 32, False)
    check_descriptors(kernel, "12.9")
    with pytest.raises(MiscompiledError, match=r"128-byte swizzle, the other with 64-byte swizzle.*Choose other block"):
        check_descriptors(kernel, "12.8")
    if fails():
        with pytest.raises(OfflineCompileError, match=r"MiscompiledError: ptxas 12\.8 computes wrong addresses"):
            compile_offline(
                chain, signature=TYPES, constexprs=constants, divisible=TYPES, target=hardware.target("h100")
            )
