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
    return Refusal(re.sub(r"\w+", lambda word: names.get(word[0], word[0]), str(refusal)))
