"""Instructions, loops, units and widths of disassembled kernels."""

from __future__ import annotations

import pytest
import triton
import triton.language as tl

from helion.backends.assembly import (
    OTHER_UNIT,
    UNITS,
    Code,
    by_unit,
    by_width,
    disassembled,
    disassembled_together,
    read,
    sections_of,
)
from helion.backends.triton.toolchain import compile_offline
from helion.hardware import target

LISTING = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   LDS.128 R4, [R1] ;
.L_x_2:
        /*0020*/                   FADD R2, R3, R4 ;
        /*0030*/              @!P0 BRA `(.L_x_2) ;
        /*0040*/                   HGMMA.64x8x16.F32 R24, gdesc[UR4], R24 ;
        /*0050*/               @P1 BRA `(.L_x_1) ;
        /*0060*/               @P1 BRA `(.L_x_3) ;
.L_x_3:
        /*0070*/                   EXIT ;
.L_x_4:
        /*0080*/                   BRA `(.L_x_4) ;
        /*0090*/                   NOP ;
"""


def test_loops_of_a_listing() -> None:
    code = read(LISTING)
    outer, inner = code.loops
    assert [each.opcode for each in code.inside(inner)] == ["FADD", "BRA"]
    assert [each.opcode for each in code.inside(outer)] == ["LDS", "FADD", "BRA", "HGMMA", "BRA"]
    assert code.depths == [0, 1, 2, 2, 1, 1, 0, 0, 0, 0]
    assert [[each.opcode for each in part] for part in code.by_depth()] == [
        ["MOV", "BRA", "EXIT", "BRA"],
        ["LDS", "HGMMA", "BRA"],
        ["FADD", "BRA"],
    ]
    assert [at for at, each in enumerate(code.instructions) if each.predicated] == [3, 5, 6]
    assert read("") == Code(instructions=(), loops=())


#: A loop with a wait that repeats after the end of the kernel, a loop of two ways, and one that the kernel jumps into.
WAITING = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R2 ;
        /*0020*/              @!P0 BRA `(.L_x_8) ;
.L_x_1:
        /*0030*/                   FADD R2, R3, R4 ;
        /*0040*/                   BRA.U UP0, `(.L_x_2) ;
        /*0050*/                   LDS R4, [R1] ;
.L_x_2:
        /*0060*/              @!P1 BRA `(.L_x_0) ;
        /*0070*/              @!P2 BRA `(.L_x_4) ;
.L_x_3:
        /*0080*/                   FMUL R2, R3, R4 ;
.L_x_4:
        /*0090*/                   FFMA R2, R3, R4, R4 ;
        /*00a0*/              @!P1 BRA `(.L_x_3) ;
        /*00b0*/                   EXIT ;
.L_x_8:
        /*00c0*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R2 ;
        /*00d0*/              @!P0 BRA `(.L_x_8) ;
        /*00e0*/                   BRA `(.L_x_1) ;
"""


def test_waits_are_no_loops() -> None:
    (loop,) = read(WAITING).loops
    assert [each.opcode for each in read(WAITING).inside(loop)] == [
        *("SYNCS", "BRA", "FADD", "BRA", "LDS", "BRA"),
        *("SYNCS", "BRA", "BRA"),  # repeated after the end
    ]


def test_branches_to_addresses() -> None:
    addresses = {"(.L_x_1)": 0x10, "(.L_x_2)": 0x20, "(.L_x_3)": 0x70, "(.L_x_4)": 0x80}
    listing = LISTING
    for label, address in addresses.items():
        listing = listing.replace(f"`{label}", f"{address:#x}")
    assert ".L_x_1)" not in listing
    assert read(listing).loops == read(LISTING).loops


def test_a_second_function_has_loops_of_its_own() -> None:
    twice = read(LISTING + LISTING.replace(".L_x_", ".L_y_"))
    once = read(LISTING)
    count = len(once.instructions)
    assert len(twice.instructions) == 2 * count
    assert twice.loops[:2] == once.loops
    assert [[place - count for place in each.places] for each in twice.loops[2:]] == [
        list(each.places) for each in once.loops
    ]


@pytest.mark.parametrize(
    ("name", "unit", "width"),
    [
        ("LDG.E.128", "load", 16),
        ("LDG.E.U16.CONSTANT", "load", 2),
        ("LDGSTS.E.BYPASS.LTC128B.128", "load", 16),
        ("STG.E.64", "store", 8),
        ("LDS.U8", "shared load", 1),
        ("LDSM.16.MT88.4", "shared load", 16),
        ("LDSM.16.M88.2", "shared load", 8),
        ("STL", "local", 4),
        ("RED.E.ADD.F32.FTZ.RN.STRONG.GPU", "atomic", 4),
        ("MUFU.EX2", "special", 0),
        ("IMAD.MOV.U32", "multiply-add", 0),
        ("HGMMA.64x128x16.F32.BF16", "matrix", 0),
        ("UTMALDG.2D", "bulk copy", 0),
        ("BAR.SYNC.DEFER_BLOCKING", "barrier", 0),
        ("LOP3.LUT", OTHER_UNIT, 0),
    ],
)
def test_units_and_widths(name: str, unit: str, width: int) -> None:
    (each,) = read(f"        /*0000*/              @!P0 {name} R4, R2 ;").instructions
    assert (each.name, each.unit, each.access_bytes, each.predicated) == (name, unit, width, True)


def test_an_opcode_has_one_unit() -> None:
    assert sum(map(len, UNITS.values())) == len(frozenset().union(*UNITS.values()))


@triton.jit
def sums(x, out, n, BLOCK: tl.constexpr, LOOPED: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    if LOOPED:
        total = tl.zeros([BLOCK], tl.float32)
        for start in range(0, n, BLOCK):
            total += tl.load(x + row + start + lanes)
    else:
        total = tl.load(x + row + lanes)
    tl.store(out + tl.program_id(0), tl.sum(total))


def binaries(name: str) -> list[bytes]:
    types = {"x": "*fp32", "out": "*fp32", "n": "i32"}
    options = {"signature": types, "divisible": ("x", "out", "n"), "target": target(name)}
    return [
        compile_offline(sums, **options, constexprs={"BLOCK": 1024, "LOOPED": looped}).asm["cubin"]
        for looped in (True, False)
    ]


@pytest.mark.parametrize(("name", "architecture"), [("sm_80", "SM80"), ("sm_90", "SM90a")])
def test_binaries(name: str, architecture: str) -> None:
    cubins = binaries(name)
    looped, straight = found = [disassembled(cubin) for cubin in cubins]
    assert not straight.loops and looped.loops
    (loads,) = {each for part in looped.by_depth()[1:] for each in by_width(part) if each[0] == "load"}
    assert loads == ("load", 16)
    assert by_width(straight.instructions)["load", 16] == 1024 // 4 // 128
    assert by_unit(straight.instructions)["shuffle"] >= 5
    together = disassembled_together(cubins, architecture)
    for alone, other in zip(found, together, strict=True):
        assert [each.name for each in alone.instructions] == [each.name for each in other.instructions]
        assert alone.loops == other.loops


def test_a_binary_without_code_is_refused() -> None:
    (cubin, _) = binaries("sm_80")
    (code,) = sections_of(cubin)
    assert len(code) == 16 * len(disassembled(cubin).instructions)
    with pytest.raises(ValueError, match="binary 1 of 2 has no code"):
        disassembled_together([cubin, cubin.replace(b".text.", b".texx.")], "SM80")
