"""What tensors are called in the text of kernels, and in messages."""

from __future__ import annotations

import re

from ...._compiler.ir.grammar import HostTensor, Program
from ..plan.refusal import Refusal


def name_of(tensor: HostTensor) -> str:
    """An identifier that no other tensor of the program has."""
    return f"{tensor.name}_{tensor.id}" if tensor.name.isidentifier() else f"operand_{tensor.id}"


def as_written(program: Program, refusal: Refusal) -> Refusal:
    """``refusal`` with tensors by the names that they have in the program."""
    names = {name_of(tensor): tensor.name for tensor in program.tensors}
    return Refusal(re.sub(r"\w+", lambda word: names.get(word[0], word[0]), str(refusal)))
