"""A comparison of PTX with the code that ptxas makes of it: left operands of the matrix unit that share registers by mistake.

Each product takes its left operand from four registers. Two products whose registers are written at different places in PTX must
not read, in the binary, what one and the same instruction wrote.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_LABEL = re.compile(r"(\$?[\w.]+):$")
_UNWRITTEN_PTX = (
    *("st.", "bra", "bar", "cp.", "mbarrier.try", "mbarrier.ar", "mbarrier.in", "wgmma.fence", "wgmma.commit"),
    *("wgmma.wait", "setp", "red.", "fence", "tensormap", "ret", "membar"),
)
_UNWRITTEN_SASS = frozenset("STG STS ST STL BAR LDGSTS SYNCS UTMALDG ISETP FSETP STSM RED HSETP2 R2UR BRA EXIT".split())

#: Where each of the registers of a left operand was written, by number of the instruction.
Places = tuple[frozenset[int], ...]


def mixed_operands(ptx: str, binary: bytes) -> list[tuple[int, int]]:
    """Return pairs of products, numbered as they stand, whose left operands differ in ``ptx`` and share a register's value in
    ``binary``."""
    before, after = left_operands_of_ptx(ptx), left_operands_of_binary(binary)
    assert len(before) == len(after), "the assembler has repeated products, or left some out"
    return [
        (first, second)
        for second in range(len(after))
        for first in range(second)
        if _mixed(before[first], before[second], after[first], after[second])
    ]


def _mixed(
    before: Places | None, other_before: Places | None, after: Places | None, other_after: Places | None
) -> bool:
    if before is None or other_before is None or after is None or other_after is None:
        return False
    return any(
        written and also_written and written.isdisjoint(also_written) and not found.isdisjoint(also_found)
        for written, found in zip(before, after, strict=True)
        for also_written, also_found in zip(other_before, other_after, strict=True)
    )


def left_operands_of_ptx(ptx: str) -> list[Places | None]:
    """Return the left operands of products in PTX, None for those that lie in shared memory."""
    lines = [line.split("//")[0].strip() for line in ptx[ptx.index(".visible .entry") :].splitlines()]
    code = _Code.of(
        [line for line in lines if not line.startswith((".", "{", "}", "(", ")"))],
        r"\bbra(?:\.uni)?\s+(\$?\w+)",
        _written_ptx,
    )
    return [
        code.places(at, _numbers(found[1])) if (found := re.search(r"\},\s*(\{[^}]*\})", line)) else None
        for at, line in enumerate(code.lines)
        if "wgmma.mma_async" in line
    ]


def left_operands_of_binary(binary: bytes) -> list[Places | None]:
    """Return the same of a compiled kernel."""
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(binary)
        listing = subprocess.run(
            [knobs.nvidia.nvdisasm.path, "-c", str(path)], capture_output=True, text=True, check=True
        ).stdout
    lines = []
    for line in listing.splitlines():
        if found := re.match(r"\s*/\*[0-9a-f]+\*/\s+(.*?)\s*;", line):
            lines.append(found[1])
        elif re.match(r"\.L_x_\d+:", line.strip()):
            lines.append(line.strip())
    code = _Code.of(lines, r"\bBRA\b[^`]*`\((\.L_x_\d+)\)", _written_sass)
    return [
        code.places(at, range(int(found[1]), int(found[1]) + 4))
        if (found := re.match(r"R(\d+)$", line.split(", ")[1]))
        else None
        for at, line in enumerate(code.lines)
        if "HGMMA" in line
    ]


@dataclass(frozen=True)
class _Code:
    """Instructions, those that may run before each, and the registers that each writes."""

    lines: Sequence[str]
    before: Sequence[Sequence[int]]
    written: Sequence[frozenset[int]]

    @classmethod
    def of(cls, lines: Sequence[str], branch: str, written: Callable[[str], frozenset[int]]) -> _Code:
        instructions: list[str] = []
        labels: dict[str, int] = {}
        for line in filter(None, lines):
            if found := _LABEL.match(line):
                labels[found[1]] = len(instructions)
            else:
                instructions.append(line)
        before: list[list[int]] = [[] for _ in instructions]
        for at, line in enumerate(instructions):
            target = re.search(branch, line)
            if target is not None and labels.get(target[1], len(before)) < len(before):
                before[labels[target[1]]].append(at)
            ends = (target is not None and not line.startswith("@")) or re.match(r"(ret|EXIT)\b", line)
            if not ends and at + 1 < len(before):
                before[at + 1].append(at)
        return cls(instructions, before, [written(line) for line in instructions])

    def places(self, at: int, registers: Sequence[int]) -> Places:
        return tuple(frozenset(self._writers(at, register)) for register in registers)

    def _writers(self, at: int, register: int) -> Iterator[int]:
        seen: set[int] = set()
        ahead = list(self.before[at])
        while ahead:
            here = ahead.pop()
            if here in seen:
                continue
            seen.add(here)
            if register in self.written[here]:
                yield here
                if not self.lines[here].startswith("@"):
                    continue
            ahead += self.before[here]


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"%r(\d+)\b", text)]


def _written_ptx(line: str) -> frozenset[int]:
    opcode, _, rest = re.sub(r"^@!?%p\d+\s+", "", line).partition("\t" if "\t" in line else " ")
    if opcode.startswith(_UNWRITTEN_PTX):
        return frozenset()
    found = re.match(r"\{[^}]*\}|[^,;]+", rest.strip())
    return frozenset(_numbers(found[0])) if found else frozenset()


def _written_sass(line: str) -> frozenset[int]:
    opcode, _, rest = re.sub(r"^@!?U?P\w+\s+", "", line).partition(" ")
    if opcode.split(".")[0] in _UNWRITTEN_SASS:
        return frozenset()
    places = [place.strip() for place in rest.split(",")[:2]]
    found = re.match(r"R(\d+)(?:\.64)?$", places[0])
    if found is None and re.match(r"P\w+$", places[0]) and len(places) > 1:  # SHFL PT, R1
        found = re.match(r"R(\d+)$", places[1])
    return frozenset(range(int(found[1]), int(found[1]) + _width(opcode))) if found else frozenset()


def _width(opcode: str) -> int:
    """Return how many registers an instruction writes."""
    if product := re.match(r"HGMMA\.64x(\d+)x\d+\.(F32|F16)", opcode):
        return int(product[1]) // (2 if product[2] == "F32" else 4)
    if opcode.startswith("LDSM"):
        return 4 if ".4" in opcode else 2 if ".2" in opcode else 1
    if opcode.startswith("LD"):
        return 4 if ".128" in opcode else 2 if ".64" in opcode else 1
    return 2 if "WIDE" in opcode or ".64" in opcode else 1
