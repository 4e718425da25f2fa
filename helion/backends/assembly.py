"""Assembled code of kernels for NVIDIA's GPUs, as ``nvdisasm`` lists it: instructions, loops, and counts by unit.

A disassembler takes a quarter of a second to start, whatever it reads (measurement ``disassembly``). So the code of
several kernels is read by one process.
"""

from __future__ import annotations

import re
import struct
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..hardware import REGISTER_BYTES
from .binaries import tool

#: An instruction's address as a comment, an optional predicate, the opcode with its modifiers, its operands.
_INSTRUCTION = re.compile(
    r"^\s+/\*([0-9a-f]{4,})\*/\s+(@!?U?P[0-9T]+\s+)?([A-Z][A-Z0-9_]*(?:\.[A-Za-z0-9_]+)*)\s*([^;]*)"
)
_LABEL = re.compile(r"^(\.L_\w+):")
#: The target of a branch: a label, or an address where the code was read without its file's symbols.
_TARGET = re.compile(r"`\((\.L_\w+)\)|\b0x([0-9a-f]+)\s*$")
_BRANCH = "BRA"
#: Units of an SM by opcode. ``simple`` is the integer unit, to which the opcodes of no other one go.
UNITS: Mapping[str, frozenset[str]] = {
    "multiply-add": frozenset({"FFMA", "FMUL", "FADD", "IMAD", "HFMA2", "HADD2", "HMUL2", "FFMA2", "FADD2", "FMUL2"}),
    "special": frozenset({"MUFU", "I2F", "F2I", "F2F", "FRND", "POPC", "FLO", "BREV"}),
    "double": frozenset({"DADD", "DMUL", "DFMA", "DSETP", "DMNMX"}),
    "matrix": frozenset(
        {"HGMMA", "QGMMA", "IGMMA", "HMMA", "IMMA", "DMMA", "QMMA", "UTCHMMA", "UTCQMMA", "UTCIMMA", "UTCOMMA"}
    ),
    "load": frozenset({"LDG", "LD", "LDGSTS"}),
    "store": frozenset({"STG", "ST"}),
    "atomic": frozenset({"ATOM", "ATOMG", "ATOMS", "RED", "REDG"}),
    "bulk copy": frozenset({"UTMALDG", "UTMASTG", "UTMAREDG", "UTMAPF", "UBLKCP", "UBLKRED"}),
    "shared load": frozenset({"LDS", "LDSM"}),
    "shared store": frozenset({"STS", "STSM"}),
    "local": frozenset({"LDL", "STL"}),
    "shuffle": frozenset({"SHFL", "REDUX"}),
    "barrier": frozenset({"BAR", "SYNCS", "DEPBAR", "LDGDEPBAR", "WARPSYNC", "WARPGROUP", "MEMBAR", "FENCE", "ERRBAR"}),
    "branch": frozenset({"BRA", "BRX", "BSSY", "BSYNC", "BREAK", "CALL", "RET", "EXIT", "JMP"}),
}
OTHER_UNIT = "simple"
_UNIT_OF = {opcode: unit for unit, opcodes in UNITS.items() for opcode in opcodes}
#: Opcodes that fill the space after a kernel's end.
_PADDING = frozenset({"NOP"})
_MEMORY = frozenset({"load", "store", "atomic", "shared load", "shared store", "local"})
_WIDTHS = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
#: Bytes of a thread in one of the matrices that ``LDSM`` and ``STSM`` move.
_MATRICES = {"4": 16, "2": 8, "M88": REGISTER_BYTES}
_REGISTER = re.compile(r"\bR(\d+)\b")


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction: its address, its opcode with modifiers, whether a predicate guards it, its operands, and the
    address that it branches to."""

    address: int
    name: str
    predicated: bool
    operands: str
    target: int | None

    @property
    def opcode(self) -> str:
        return self.name.split(".", 1)[0]

    @property
    def unit(self) -> str:
        """The unit of an SM that runs it: a key of ``UNITS``, or ``OTHER_UNIT``."""
        return _UNIT_OF.get(self.opcode, OTHER_UNIT)

    @property
    def access_bytes(self) -> int:
        """Bytes of a thread in an access to memory; 0 for other instructions."""
        if self.unit not in _MEMORY:
            return 0
        widths = _MATRICES if self.opcode in ("LDSM", "STSM") else _WIDTHS
        return next((widths[each] for each in reversed(self.name.split(".")) if each in widths), REGISTER_BYTES)


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop: the places of its first and its last instruction, and 1 more than the loops around it."""

    first: int
    last: int
    depth: int


@dataclass(frozen=True, kw_only=True)
class Code:
    """The instructions of one kernel in the order of their addresses, and its loops, each before those inside of it."""

    instructions: tuple[Instruction, ...]
    loops: tuple[Loop, ...]

    @property
    def opcodes(self) -> Counter[str]:
        """Number of instructions by opcode."""
        return Counter(each.opcode for each in self.instructions)

    def inside(self, loop: Loop) -> tuple[Instruction, ...]:
        """Return the instructions of a loop, with those of the loops inside of it."""
        return self.instructions[loop.first : loop.last + 1]

    def by_depth(self) -> list[tuple[Instruction, ...]]:
        """Return the instructions outside of loops, then those in one loop, in two and so on, without padding."""
        depths = [0] * len(self.instructions)
        for loop in self.loops:
            depths[loop.first : loop.last + 1] = [loop.depth] * (loop.last + 1 - loop.first)
        found: list[list[Instruction]] = [[] for _ in range(1 + max(depths, default=0))]
        for depth, each in zip(depths, self.instructions, strict=True):
            if each.opcode not in _PADDING:
                found[depth].append(each)
        return [tuple(each) for each in found]


def by_unit(instructions: Iterable[Instruction]) -> Counter[str]:
    """Count instructions by unit."""
    return Counter(each.unit for each in instructions)


def by_width(instructions: Iterable[Instruction]) -> Counter[tuple[str, int]]:
    """Count accesses to memory by unit and by bytes of a thread."""
    return Counter((each.unit, each.access_bytes) for each in instructions if each.access_bytes)


def read(listing: str) -> Code:
    """Return the code of a disassembly. The addresses of a second function follow those of the first one."""
    labels: dict[str, int] = {}
    waiting: list[str] = []
    rows: list[tuple[int, int, re.Match[str]]] = []
    start = address = 0
    for line in listing.splitlines():
        if match := _INSTRUCTION.match(line):
            if rows and start + int(match[1], 16) <= address:
                start = address + 1
            address = start + int(match[1], 16)
            labels.update(dict.fromkeys(waiting, address))
            waiting.clear()
            rows.append((start, address, match))
        elif match := _LABEL.match(line):
            waiting.append(match[1])
    instructions = tuple(_instruction(*row, labels) for row in rows)
    return Code(instructions=instructions, loops=_loops(instructions))


def _instruction(start: int, address: int, row: re.Match[str], labels: Mapping[str, int]) -> Instruction:
    _, predicate, name, operands = row.groups()
    target = _TARGET.search(operands) if name.split(".", 1)[0] == _BRANCH else None
    at = None if target is None else labels.get(target[1]) if target[1] else start + int(target[2], 16)
    return Instruction(address, name, predicate is not None, operands.strip(), at)


def _loops(instructions: Sequence[Instruction]) -> tuple[Loop, ...]:
    """Return the loops: instructions from the target of a branch backwards to the last such branch.

    A branch to itself, which ends a kernel, is none.
    """
    places = {each.address: at for at, each in enumerate(instructions)}
    lasts: dict[int, int] = {}
    for at, each in enumerate(instructions):
        first = places.get(each.target, at) if each.target is not None else at
        if first < at:
            lasts[first] = at
    return tuple(_nested(sorted(lasts.items(), key=lambda pair: (pair[0], -pair[1]))))


def _nested(ranges: Iterable[tuple[int, int]]) -> Iterator[Loop]:
    around: list[int] = []
    for first, last in ranges:
        while around and around[-1] < first:
            around.pop()
        around.append(last)
        yield Loop(first, last, len(around))


def disassembled(cubin: bytes) -> Code:
    """Return the code of a binary.

    Raises ``subprocess.CalledProcessError`` if ``nvdisasm`` cannot read it, ``CompileError`` if there is none.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return read(_run(tool("nvdisasm"), "-c", file.name))


def disassembled_together(cubins: Sequence[bytes], architecture: str) -> list[Code]:
    """Return the code of several binaries for ``architecture``, such as ``SM90a``, by one process.

    Raises the errors of ``disassembled``, and ``ValueError`` for a binary without code.
    """
    codes = [b"".join(sections_of(cubin)) for cubin in cubins]
    if not all(codes):
        raise ValueError(f"binary {codes.index(b'')} of {len(codes)} has no code")
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        file.write(b"".join(codes))
        file.flush()
        whole = read(_run(tool("nvdisasm"), "-b", architecture, file.name)).instructions
    found, start = [], 0
    for code in codes:
        end = start + len(code)
        instructions = tuple(each for each in whole if start <= each.address < end)
        found.append(Code(instructions=instructions, loops=_loops(instructions)))
        start = end
    return found


#: Places in the header of an ELF file of 64 bits, and its records of sections.
_SECTIONS_AT, _SIZES_AT, _SECTION = 0x28, 0x3A, "<IIQQQQIIQQ"


def sections_of(cubin: bytes) -> Iterator[bytes]:
    """Yield the code of each function in a binary, which is an ELF file."""
    (start,) = struct.unpack_from("<Q", cubin, _SECTIONS_AT)
    size, count, names_at = struct.unpack_from("<HHH", cubin, _SIZES_AT)
    sections = [struct.unpack_from(_SECTION, cubin, start + size * at) for at in range(count)]
    names = sections[names_at][4]
    for name, _, _, _, offset, length, *_ in sections:
        if cubin[names + name :].startswith(b".text."):
            yield cubin[offset : offset + length]


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
