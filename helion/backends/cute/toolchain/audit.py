"""Contents of a compiled kernel: registers, spills, opcodes, and barrier addresses as planned."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ..plan.counts import PipelineCounts, counts
from ..plan.records import GemmPlan
from ..plan.shared import WORD_BYTES, Allocation, shared_memory

# An instruction's address as a comment, an optional predicate, the opcode.
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P[0-9T]+\s+)?([A-Z][A-Z0-9_]*)", re.MULTILINE)
_LABEL = re.compile(r"^(\.L_x_\d+):")
_BRANCH = re.compile(r"\bBRA\b.*`\((\.L_x_\d+)\)")
MATRIX_OPCODES = ("HGMMA", "QGMMA", "UTCHMMA", "UTCQMMA")
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")
SPILLS = ("LDL", "STL")


@dataclass(frozen=True, kw_only=True)
class Audit:
    registers: int
    stack_bytes: int
    opcodes: Mapping[str, int]
    """Static count of each opcode in the kernel."""
    mainloop: int
    """Instructions of the smallest loop with MMAs: of one K tile, including waits."""

    @property
    def instructions(self) -> int:
        return sum(self.opcodes.values())

    @property
    def spills(self) -> int:
        """Loads and stores of local memory."""
        return sum(self.opcodes.get(opcode, 0) for opcode in SPILLS)


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
    return Audit(
        registers=max(int(registers) for registers, _ in usage),
        stack_bytes=stack_bytes,
        opcodes=Counter(_INSTRUCTION.findall(listing)),
        mainloop=mainloop_instructions(listing),
    )


def mainloop_instructions(listing: str) -> int:
    """Return the mainloop instructions of a disassembly: 0 if no loop contains MMAs."""
    found = (each for each in loops(listing) if any(each[opcode] for opcode in MATRIX_OPCODES))
    return min((each.total() for each in found), default=0)


def loops(listing: str) -> list[Counter[str]]:
    """Return the count of each opcode in each loop of a disassembly, with those of the loops inside of it."""
    labels: dict[str, int] = {}
    opcodes: list[str] = []
    found: list[Counter[str]] = []
    for line in listing.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(opcodes)
        elif instruction := _INSTRUCTION.match(line):
            opcodes.append(instruction[1])
            branch = _BRANCH.search(line)
            start = labels.get(branch[1]) if branch else None
            if start is not None:
                found.append(Counter(opcodes[start:]))
    return found


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
