"""Instruction counts of a compiled CUDA kernel."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter

# An instruction's address as a comment, an optional predicate, the opcode, its modifiers.
_INSTRUCTION = re.compile(
    r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P[0-9T]+\s+)?([A-Z][A-Z0-9_]*)((?:\.[A-Za-z0-9_]+)*)", re.MULTILINE
)


def opcode_counts(cubin: bytes, *, modifiers: bool = False) -> Counter[str]:
    """Return the number of occurrences of each opcode in `cubin`: ``LDG``, ``HGMMA``, ``UTMALDG``, ``STL`` (a spill)
    ...

    The counts are static: an instruction in a loop counts once. With `modifiers` the keys are whole, as in
    ``LDG.E.128``. Takes 0.2-0.4 s. Raises ``subprocess.CalledProcessError`` if Triton's ``nvdisasm`` cannot read
    `cubin`.
    """
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.nvdisasm.path, "-c", file.name]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return Counter(m[1] + m[2] if modifiers else m[1] for m in _INSTRUCTION.finditer(listing))
