"""Names of tensors in generated code and in messages."""

from __future__ import annotations

import re

from ...._compiler.ir.grammar import HostTensor, Program
from ..plan.refusal import Refusal


def name_of(tensor: HostTensor) -> str:
    """Return an identifier that no other tensor of the program has."""
    return f"{tensor.name}_{tensor.id}" if tensor.name.isidentifier() else f"operand_{tensor.id}"


def as_written(program: Program, refusal: Refusal) -> Refusal:
    """Return ``refusal`` with the tensor names of the user's program."""
    names = {name_of(tensor): tensor.name for tensor in program.tensors}
    written = {*names.values()}

    def name(word: re.Match[str]) -> str:
        before, _, number = word[0].rpartition("_")
        window = number.isdigit() and before in written and word[0] not in written
        return names.get(word[0], before if window else word[0])

    return Refusal(re.sub(r"\w+", name, str(refusal)))
