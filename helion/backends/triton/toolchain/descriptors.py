"""Descriptors of wgmma operands that ptxas 12.8 computes from the wrong registers.

wgmma finds an operand in shared memory by a 64-bit descriptor. Its lower half has the address of the tile and the
offset of the step along K; its upper half has the swizzle. PTX computes it as one register, the address, plus a
constant::

    or.b64   %rd9, %rd35, 4611686293305294848;    // 128-byte swizzle, first step
    add.s64  %rd10, %rd35, 4611686293305294976;   // second step
    or.b64   %rd23, %rd35, -9223371899415822336;  // 64-byte swizzle, first step of a later matmul

If matmuls share the address and differ in the upper half, ptxas 12.8 may add constants of later steps to an unwritten
register. The kernel then multiplies other memory. That takes two steps with the smaller upper
half, and three with the larger one. The smaller one comes first, or three matmuls share the address. ptxas 12.9 is
correct. ``lower/early_operands.py`` keeps most kernels from such descriptors.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from triton.errors import TritonError

from ...._support.records import dataclass, field

if TYPE_CHECKING:
    from triton.compiler import CompiledKernel

#: The first release of ptxas that computes all descriptors correctly.
CORRECT_SINCE = (12, 9)
#: Steps along K of the matmul with the smaller upper half, and of the other, from which ptxas fails; matmuls of one
#: address from which their order does not matter.
_FEWER_STEPS, _MORE_STEPS, _MANY_MATMULS = 2, 3, 3
#: Bytes of the swizzle by the top two bits of a descriptor.
_SWIZZLES = {1: "128-byte swizzle", 2: "64-byte swizzle", 3: "32-byte swizzle", 0: "no swizzle"}
_CONSTANT = re.compile(r"(?:or|add)\.[bsu]64\s+(%rd\d+), (%rd\d+), (-?\d+);")


class MiscompiledError(TritonError):
    """A binary that the assembler made computes something else than its PTX."""


def check_descriptors(compiled: CompiledKernel, ptxas: str) -> None:
    """Raise ``MiscompiledError`` for a kernel with descriptors that the release ``ptxas`` computes wrongly."""
    if tuple(map(int, ptxas.split(".")[:2])) >= CORRECT_SINCE:
        return
    found = clash(compiled.asm.get("ptx") or "")
    if found is not None:
        first, second = (_SWIZZLES[upper >> 30] for upper in found)
        raise MiscompiledError(
            f"ptxas {ptxas} computes wrong addresses for the operands of two matmuls of {compiled.name!r}, which lie at one"
            f" place of shared memory (one with {first}, the other with {second}). Choose other block sizes or another"
            f" num_stages, or set TRITON_PTXAS_PATH to ptxas {CORRECT_SINCE[0]}.{CORRECT_SINCE[1]} or later."
        )


@dataclass
class _Half:
    """An upper half of descriptors at one address: its lower halves, and the numbers of the matmuls that have it."""

    lower: set[int] = field(default_factory=set)
    matmuls: set[int] = field(default_factory=set)


def clash(ptx: str) -> tuple[int, int] | None:
    """Return the upper halves of two descriptors, of which ptxas 12.8 may compute one wrongly; None if there are none."""
    if "wgmma" not in ptx:
        return None
    for halves in _halves(ptx):
        matmuls = {number for half in halves.values() for number in half.matmuls}
        for (less, few), (more, many) in itertools.permutations(halves.items(), 2):
            late = min(few.matmuls) < max(many.matmuls) or len(matmuls) >= _MANY_MATMULS
            if less < more and late and len(few.lower) >= _FEWER_STEPS and len(many.lower) >= _MORE_STEPS:
                return less, more
    return None


def _halves(ptx: str) -> Iterator[dict[int, _Half]]:
    """Yield the upper halves of descriptors at each address of shared memory. A commit ends a matmul."""
    constants: dict[str, tuple[str, int]] = {}
    addresses: dict[str, dict[int, _Half]] = {}
    matmul = 0
    for line in ptx.splitlines():
        if found := _CONSTANT.search(line):
            address, constant = constants.get(found[2], (found[2], 0))
            constants[found[1]] = address, (constant + int(found[3])) % 2**64
        elif "wgmma.commit_group" in line:
            matmul += 1
        elif "wgmma.mma_async" in line:
            for register in re.findall(r"%rd\d+", line):
                address, constant = constants.get(register, (register, 0))
                half = addresses.setdefault(address, {}).setdefault(constant >> 32, _Half())
                half.lower.add(constant % 2**32)
                half.matmuls.add(matmul)
    yield from addresses.values()
