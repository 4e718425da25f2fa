"""Assembled code of kernels for NVIDIA's GPUs, as ``nvdisasm`` lists it: instructions, loops, and counts by unit.

A disassembler takes a quarter of a second to start, whatever it reads (measurement ``disassembly``). So the code of
several kernels is read by one process.
"""

from __future__ import annotations

import re
import struct
import subprocess
import tempfile
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from .._support.records import dataclass
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
    def conditional(self) -> bool:
        """True if the next instruction may follow a branch or an end."""
        return self.predicated or "," in self.operands

    @property
    def access_bytes(self) -> int:
        """Bytes of a thread in an access to memory; 0 for other instructions."""
        if self.unit not in _MEMORY:
            return 0
        widths = _MATRICES if self.opcode in ("LDSM", "STSM") else _WIDTHS
        return next((widths[each] for each in reversed(self.name.split(".")) if each in widths), REGISTER_BYTES)


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop: the place of its first instruction, and those of all, with the loops inside of it, in order."""

    head: int
    places: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Code:
    """The instructions of one kernel in the order of their addresses, and its loops by their heads."""

    instructions: tuple[Instruction, ...]
    loops: tuple[Loop, ...]

    @property
    def opcodes(self) -> Counter[str]:
        """Number of instructions by opcode."""
        return Counter(each.opcode for each in self.instructions)

    @property
    def depths(self) -> list[int]:
        """Number of loops around each instruction."""
        depths = [0] * len(self.instructions)
        for loop in self.loops:
            for place in loop.places:
                depths[place] += 1
        return depths

    def inside(self, loop: Loop) -> tuple[Instruction, ...]:
        """Return the instructions of a loop, with those of the loops inside of it."""
        return tuple(self.instructions[place] for place in loop.places)

    def by_depth(self) -> list[tuple[Instruction, ...]]:
        """Return the instructions outside of loops, then those in one loop, in two and so on, without padding."""
        depths = self.depths
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
    """Return the loops: of a branch to code that every way to it has passed, all code between.

    A wait that fails repeats at the end of a kernel and comes back. That is no loop around the code in between, and a
    loop of waits alone is none either. Nor is a branch to itself, which ends a kernel.
    """
    blocks = _blocks(instructions) if instructions else []
    dominators = _dominators([block.following for block in blocks])
    bodies: dict[int, set[int]] = {}
    preceding: list[list[int]] = [[] for _ in blocks]
    for at, block in enumerate(blocks):
        for each in block.following:
            preceding[each].append(at)
    for at, block in enumerate(blocks):
        for head in block.following:
            if head in dominators.get(at, ()):
                body = bodies.setdefault(head, {head})
                waiting = [at]
                while waiting:
                    if (one := waiting.pop()) not in body:
                        body.add(one)
                        waiting += [each for each in preceding[one] if each in dominators]
    found = []
    for head, body in sorted(bodies.items()):
        places = tuple(place for at in sorted(body) for place in blocks[at].places)
        if not {instructions[place].unit for place in places} <= _WAITING:
            found.append(Loop(blocks[head].places[0], places))
    return tuple(found)


#: Units of the instructions of a loop that only waits, or ends a kernel.
_WAITING = frozenset({"barrier", "branch", OTHER_UNIT})
#: Opcodes after which a kernel does not go on, unless a predicate guards them.
_ENDS = frozenset({"EXIT", "RET", "BRX", "JMP"})


@dataclass(frozen=True, slots=True)
class _Block:
    """Instructions that run one after the other, and the blocks that may follow."""

    places: range
    following: tuple[int, ...]


def _blocks(instructions: Sequence[Instruction]) -> list[_Block]:
    """Divide a kernel at branches and their targets."""
    count = len(instructions)
    place_of = {each.address: at for at, each in enumerate(instructions)}
    branches = {at: place_of.get(each.target) for at, each in enumerate(instructions) if each.target is not None}
    ends = {at for at, each in enumerate(instructions) if each.opcode in _ENDS}
    starts = sorted({0, *(to for to in branches.values() if to is not None), *(at + 1 for at in {*branches, *ends})})
    starts = [start for start in starts if start < count]
    number = {start: at for at, start in enumerate(starts)}
    found = []
    for start, end in zip(starts, [*starts[1:], count], strict=True):
        last = instructions[end - 1]
        to = branches.get(end - 1)
        following = [] if to is None else [number[to]]
        if end < count and (last.conditional or (last.target is None and last.opcode not in _ENDS)):
            following.append(number[end])
        found.append(_Block(range(start, end), tuple(dict.fromkeys(following))))
    return found


def _dominators(following: Sequence[Sequence[int]]) -> dict[int, frozenset[int]]:
    """Return the blocks on every way to each block from a function's first one, itself included."""
    reached = {each for after in following for each in after} - {0}
    found = {at: frozenset({at}) for at in range(len(following)) if at not in reached}
    waiting = deque(found)
    while waiting:
        at = waiting.popleft()
        for each in following[at]:
            former = found.get(each)
            now = found[at] if former is None else found[at] & former
            now |= {each}
            if now != former:
                found[each] = now
                waiting.append(each)
    return found


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
