"""Instruction counts of a compiled CUDA kernel."""

from __future__ import annotations

from collections import Counter

from ...assembly import disassembled


def opcode_counts(cubin: bytes, *, modifiers: bool = False) -> Counter[str]:
    """Return the number of occurrences of each opcode in `cubin`: ``LDG``, ``HGMMA``, ``UTMALDG``, ``STL`` (a spill)
    ...

    The counts are static: an instruction in a loop counts once. With `modifiers` the keys are whole, as in
    ``LDG.E.128``. Takes 0.2-0.4 s. Raises ``subprocess.CalledProcessError`` if ``nvdisasm`` cannot read `cubin`.
    """
    code = disassembled(cubin)
    return Counter(each.name for each in code.instructions) if modifiers else code.opcodes
