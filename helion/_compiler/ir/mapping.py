"""Rebuilds programs; what nothing changes stays the same object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .grammar import Op, Program, Region


def map_ops(program: Program, change: Callable[[Op], Op]) -> Program:
    """A program with every op changed, those in an op's regions before the op."""
    roots = []
    for root in program.roots:
        body = _region(root.body, change)
        roots.append(root if body is root.body else replace(root, body=body))
    same = all(new is old for new, old in zip(roots, program.roots, strict=True))
    return program if same else replace(program, roots=tuple(roots))


def _region(region: Region, change: Callable[[Op], Op]) -> Region:
    ops = []
    for op in region.ops:
        inner = tuple(_region(child, change) for child in op.regions)
        same = all(new is old for new, old in zip(inner, op.regions, strict=True))
        ops.append(change(op if same else replace(op, regions=inner)))
    if all(new is old for new, old in zip(ops, region.ops, strict=True)):
        return region
    return replace(region, ops=tuple(ops))
