"""The facts of a program that a call reads. They are kept with its code: a later process needs no program to run it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from ..._support.lazy import lazy
from ..._support.records import dataclass

if TYPE_CHECKING:
    from . import effects, grammar, hints
else:
    # records that were kept are read without them
    effects = lazy("helion._compiler.ir.effects")
    grammar = lazy("helion._compiler.ir.grammar")
    hints = lazy("helion._compiler.ir.hints")


@dataclass(frozen=True, kw_only=True)
class CallFacts:
    """Facts of a program that a call reads.

    ``sizes``: the numeric arguments that block extents depend on, by name, with their paths in the arguments.
    ``definitions``: the source of functions in the target's language that the kernel calls.
    """

    is_empty: bool
    """It has no device loops."""
    meets_other_gpus: bool
    index_dtype: torch.dtype
    argument_checks: tuple[str, ...]
    sizes: tuple[tuple[str, tuple[Any, ...]], ...]
    definitions: tuple[str, ...]


def call_facts(program: grammar.Program, origins: Mapping[str, Any]) -> CallFacts:
    """Return the facts of a program, whose run-time numbers have these paths in the arguments."""
    attrs = (op.attrs for op in program.walk())
    inline = (each for each in attrs if isinstance(each, grammar.InlineAttrs))
    return CallFacts(
        is_empty=not program.roots,
        meets_other_gpus=effects.meets_other_gpus(program),
        index_dtype=program.index_dtype,
        argument_checks=tuple(program.host.argument_checks),
        sizes=tuple((name, origins[name]) for name in hints.sizes_of_blocks(program) if name in origins),
        definitions=tuple(repr(definition) for each in inline for definition in each.definitions),
    )


__all__ = ["CallFacts", "call_facts"]
