"""Contents of a compiled kernel: registers, spills, opcodes, and barrier addresses as planned."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass

from ...assembly import UNITS, Code, Loop, read
from ..plan.counts import PipelineCounts, counts
from ..plan.records import GemmPlan
from ..plan.shared import WORD_BYTES, Allocation, shared_memory

_USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")


@dataclass(frozen=True, kw_only=True)
class Audit:
    registers: int
    stack_bytes: int
    opcodes: Mapping[str, int]
    """Static count of each opcode in the kernel."""
    mainloop: int
    """Instructions of the smallest loop with MMAs: of one K tile, including waits that succeed at once."""

    @property
    def instructions(self) -> int:
        return sum(self.opcodes.values())

    @property
    def spills(self) -> int:
        """Loads and stores of local memory."""
        return sum(self.opcodes.get(opcode, 0) for opcode in UNITS["local"])


def audit(cubin: bytes, *, nvdisasm: str, cuobjdump: str, always_disassembled: bool = True) -> Audit:
    """Inspect a binary, in 0.2 s; a binary without a stack, which cannot spill, takes 10 ms unless
    ``always_disassembled``.

    Raises ``subprocess.CalledProcessError`` if a tool cannot read the binary.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = _USAGE.findall(_run(cuobjdump, "--dump-resource-usage", file.name))
        stack_bytes = max(int(stack) for _, stack in usage)
        listing = _run(nvdisasm, "-c", file.name) if always_disassembled or stack_bytes else ""
    code = read(listing)
    return Audit(
        registers=max(int(registers) for registers, _ in usage),
        stack_bytes=stack_bytes,
        opcodes=code.opcodes,
        mainloop=mainloop_instructions(code),
    )


def mainloop_instructions(code: Code) -> int:
    """Return the instructions of the smallest loop with MMAs, without repeated waits; 0 if there is none."""
    loops = (loop for loop in code.loops if any(each.unit == "matrix" for each in code.inside(loop)))
    return min((_instructions_in_line(code, loop) for loop in loops), default=0)


def _instructions_in_line(code: Code, loop: Loop) -> int:
    """Return the instructions up to the branch back. A wait that fails repeats after it and takes no slots otherwise."""
    start = code.instructions[loop.head].address
    back = [place for place in loop.places if code.instructions[place].target == start]
    return sum(place <= max(back, default=loop.places[-1]) for place in loop.places)


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


# Barriers in PTX -----------------------------------------------------------------------------------------------------

_BASE = re.compile(r"mov\.b32\s+(%r\d+), __dynamic_shmem__0;")
# A copy, or lane 0's value in every lane.
_COPY = re.compile(r"(?:mov|shfl\.sync\.idx)\.b32\s+(%r\d+), (%r\d+)(?:, 0, 31, -1)?;")
_SUM = re.compile(r"add\.s32\s+(%r\d+), (%r\d+), (\d+);")
_INIT = re.compile(r"mbarrier\.init\.shared\.b64\s+\[(%r\d+)(?:\+(\d+))?\]")


def barrier_offsets(ptx: str) -> list[int]:
    """Return the byte offsets in shared memory at which `ptx` initializes barriers, in order of the text.

    Raises ``ValueError`` for an address that is not the start plus a constant.
    """
    offsets: dict[str, int] = {}
    found: list[int] = []
    for line in ptx.splitlines():
        if match := _BASE.search(line):
            offsets[match[1]] = 0
        elif match := _COPY.search(line):
            if match[2] in offsets:
                offsets[match[1]] = offsets[match[2]]
        elif match := _SUM.search(line):
            if match[2] in offsets:
                offsets[match[1]] = offsets[match[2]] + int(match[3])
        elif match := _INIT.search(line):
            if match[1] not in offsets:
                raise ValueError(f"a barrier is at {match[1]}, whose offset in shared memory is not a constant")
            found.append(offsets[match[1]] + int(match[2] or 0))
    return found


def misplaced_barriers(ptx: str, plan: GemmPlan) -> set[int]:
    """Return offsets of barriers that only one of `ptx` and `plan` has."""
    rows = counts(plan).rows
    planned = {
        offset
        for allocation in shared_memory(plan)
        if allocation.name.endswith(("_barriers", "free_barrier"))
        for offset in range(allocation.offset_bytes, allocation.offset_bytes + _used_bytes(allocation, rows), 8)
    }
    return planned ^ set(barrier_offsets(ptx))


def _used_bytes(allocation: Allocation, rows: PipelineCounts | None) -> int:
    """Return the bytes of an allocation without unused barriers."""
    spare = rows.spare_words if rows is not None and allocation.name == "rows_barriers" else 0
    return allocation.size_bytes - spare * WORD_BYTES
