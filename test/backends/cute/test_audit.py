"""Instructions of a disassembly's mainloop."""

from __future__ import annotations

from helion.backends.assembly import read
from helion.backends.cute.toolchain.audit import mainloop_instructions

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
"""


def test_mainloop_of_a_listing() -> None:
    assert mainloop_instructions(read(LISTING)) == 5 and mainloop_instructions(read("")) == 0


WAITING = """
.L_x_1:
        /*0010*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR6], R4 ;
        /*0020*/              @!P0 BRA `(.L_x_3) ;
.L_x_2:
        /*0030*/                   HGMMA.64x8x16.F32 R24, gdesc[UR4], R24 ;
        /*0040*/               @P1 BRA `(.L_x_1) ;
        /*0050*/                   EXIT ;
.L_x_3:
        /*0060*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR6], R4 ;
        /*0070*/              @!P0 BRA `(.L_x_3) ;
        /*0080*/                   BRA `(.L_x_2) ;
"""


def test_waits_that_are_repeated_are_no_part_of_the_mainloop() -> None:
    assert mainloop_instructions(read(WAITING)) == 4
    assert max(len(loop.places) for loop in read(WAITING).loops) == 7
