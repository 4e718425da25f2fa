"""Host tensors that a launch writes as a whole are allocated without a fill, which is a launch of its own
(measurement ``dropped_fill``).

Example::

    out = torch.zeros_like(x)                              out = torch.empty_like(x)
    for tile_m in hl.tile(m):                     ->       for tile_m in hl.tile(m):
        out[tile_m, :] = torch.where(keep, y, 0.0)             out[tile_m, :] = torch.where(keep, y, 0.0)
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from ...host.analysis import filled_names, unfilled, unread_until
from ...ir.grammar import AddressAttrs, AsmAttrs, InlineAttrs, MemoryAttrs, Op, Program, SeedAttrs
from ...ir.host_module import Launch
from ..analysis.places import is_covered


def drop_fills(program: Program) -> Program:
    """Replace the fill of each tensor that the first launch with an access to it stores whole, without reading it.

    Return the same program if there is none. Host code reads only metadata of the tensor in between. A tensor whose
    kind or size is compared before a launch keeps its fill, because another variant may run then.
    """
    filled = filled_names(program.host.function)
    if not filled or any(program.host.checks):
        return program
    dropped = {name: call for name, call in filled.items() if _is_stored_whole(program, name)}
    if not dropped:
        return program
    function = _without_fills(program.host.function, dropped)
    return replace(program, host=replace(program.host, function=function))


def _is_stored_whole(program: Program, name: str) -> bool:
    known = {tensor.id for tensor in program.tensors if tensor.source == name and not tensor.made}
    storages = {program.tensors[at].storage for at in known}
    if len(storages) != 1 or known != {each.id for each in program.tensors if each.storage in storages}:
        return False  # a view, whose accesses are not looked at
    for place, statement in enumerate(program.host.function.body):
        if not isinstance(statement, Launch):
            if any(isinstance(node, Launch) for node in ast.walk(statement)):
                return False
            continue
        launched = replace(program, roots=tuple(root for root in program.roots if root.launch == statement.number))
        touching = [op for op in launched.walk() if _touches(op, known)]
        if not touching:
            continue
        return (
            all(op.kind == "store" for op in touching)
            and unread_until(program.host.function, name, place)
            and any(is_covered(replace(launched, roots=(root,)), at) for root in launched.roots for at in known)
        )
    return False


def _touches(op: Op, tensors: AbstractSet[int]) -> bool:
    """Return whether an op may access one of the tensors: inline code declares its own, an address may be anywhere."""
    if isinstance(op.attrs, (MemoryAttrs, SeedAttrs)):
        return op.attrs.tensor in tensors
    if isinstance(op.attrs, InlineAttrs):
        return op.attrs.effect == "any" or bool(tensors & {*op.attrs.tensors})
    return isinstance(op.attrs, (AddressAttrs, AsmAttrs))


def _without_fills(function: ast.FunctionDef, dropped: Mapping[str, ast.Call]) -> ast.FunctionDef:
    """Return a copy of the function in which these calls leave their tensors unfilled."""
    calls = {id(call): call for call in dropped.values()}
    memo: dict[int, object] = {}
    copied = copy.deepcopy(function, memo)
    for known, call in calls.items():
        name, made = unfilled(call), memo[known]
        assert isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute) and name is not None
        made.func.attr = name
    return copied
