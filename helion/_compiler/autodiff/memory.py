"""Classification of stores of gradients, by the programs of the backward that own the elements of a gradient.

- ``direct``: each element is written by one program, in one iteration, which stores it.
- ``partial``: programs that share elements store a partial sum each, and the host adds these up.
- ``transposed``: a separate grid loop has one program for each tile of elements, and loops over everything that shares
  them. It recomputes cheap values of the first grid loop and reads others from memory.
- ``atomic``: programs add to the elements in no particular order, in at least fp32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..ir.grammar import (
    ForAttrs,
    LoopAxis,
    MemoryAttrs,
    Op,
    OperandRef,
    Program,
    Root,
)
from ..ir.rewrite import count_uses
from ..passes.analysis.places import Places, is_covered, is_single
from .prepare import access_key
from .refusal import not_supported
from .statements import Nest, Sink, Statement

Way = Literal["direct", "partial", "transposed", "atomic"]


@dataclass(frozen=True, kw_only=True)
class Site:
    """One load that receives a gradient.

    ``axes`` are those of the grid, ``loops`` those of the loops around it, outer ones first. ``missing`` are the axes
    whose programs or iterations share elements. ``leaving`` says of each index of a masked load whether lanes that read
    nothing may be outside of the tensor. ``covers``: each element of the tensor is written. ``nests`` are the loops of the
    backward around the sink.
    """

    sink: Sink
    op: Op
    axes: tuple[LoopAxis, ...]
    loops: tuple[tuple[LoopAxis, ...], ...]
    nests: tuple[Nest, ...]
    missing: tuple[LoopAxis, ...]
    leaving: tuple[bool, ...]
    covers: bool
    way: Way

    @property
    def tensor(self) -> int:
        return self.op.attributes(MemoryAttrs).tensor


def coverage(program: Program, at: int, tensor: int) -> Literal["all", "added", "part"]:
    """Return the extent of the writes of grid loop ``at`` to a tensor: all elements, only ``added`` to, or possibly a
    part.
    """
    alone = replace(program, roots=(program.roots[at],))
    writes = [
        op for op in alone.walk() if op.kind in ("store", "atomic") and op.attributes(MemoryAttrs).tensor == tensor
    ]
    if all(op.kind == "atomic" for op in writes):
        return "added"
    return "all" if is_covered(alone, tensor) else "part"


def classify(program: Program, statements: Sequence[Statement], loads: dict[int, Op]) -> list[Site]:
    """Return the site of every sink, with its way to memory."""
    (root,) = program.roots
    places = Places(program)
    loops = {op.number: op.attrs.axes for op in program.walk() if isinstance(op.attrs, ForAttrs)}
    return [
        _site(places, root, sink, loads[sink.load], nests, [loops[n.op] for n in nests if n.op is not None], in_branch)
        for sink, nests, in_branch in _sinks(statements, (), False)
    ]


def _sinks(
    statements: Sequence[Statement], nests: tuple[Nest, ...], in_branch: bool
) -> list[tuple[Sink, tuple[Nest, ...], bool]]:
    found: list[tuple[Sink, tuple[Nest, ...], bool]] = []
    for statement in statements:
        if isinstance(statement, Sink):
            found.append((statement, nests, in_branch))
        elif isinstance(statement, Nest):
            branch = in_branch or (statement.op is None and not statement.ordered)
            inner = (*nests, statement)
            found += _sinks(statement.body, inner, branch) + _sinks(statement.orelse, inner, branch)
    return found


def _site(
    places: Places,
    root: Root,
    sink: Sink,
    op: Op,
    nests: tuple[Nest, ...],
    loops: list[tuple[LoopAxis, ...]],
    in_branch: bool,
) -> Site:
    walked = places.walked_by(op)
    around = (*root.axes, *(a for axes in loops for a in axes))
    missing = tuple(a for a in around if a.block not in walked and not is_single(a))
    constant = not any(isinstance(bound, OperandRef) for a in around for bound in (a.begin, a.end))
    leaving = tuple(leaves and sink.mask is not None for leaves in places.may_leave(op))
    plain = places.is_plain(op) and not any(leaving)
    owned = len(missing) < len(around) and not any(nest.ordered for nest in nests)
    way: Way = "atomic"
    if not missing and places.is_injective(op):
        way = "direct"
    elif plain and missing and not nests:
        way = "partial"
    elif plain and missing and constant and owned and not in_branch:
        way = "transposed"
    return Site(
        sink=sink,
        op=op,
        axes=root.axes,
        loops=tuple(loops),
        nests=nests,
        missing=missing,
        leaving=leaving,
        covers=places.covers(op) and not in_branch,
        way=way,
    )


# --- refusals ---------------------------------------------------------------------------------------------------------


def check_memory(program: Program) -> None:
    """Raise ``exc.AutodiffNotSupported`` where the value of an element depends on the order of stores."""
    places = Places(program)
    (root,) = program.roots
    uses = count_uses(program)
    accesses: dict[int, list[tuple[Op, tuple[int, ...]]]] = {}
    _collect(program, root.body.ops, (), accesses)
    for found in accesses.values():
        writes = [(op, path) for op, path in found if op.kind != "load"]
        plain = _holds_results_without_gradient(program, found)
        for op, path in writes:
            if op.kind == "store":
                if not plain:
                    _check_owned(places, op, path)
            elif any(uses[result.number] for result in op.results):
                raise not_supported(
                    "the value that an atomic operation returns", "use the operation for its effect only", op
                )
        for at, (op, path) in enumerate(() if plain else writes):
            for other, other_path in writes[:at]:
                _check_apart(places, op, path, other, other_path)
        if writes:
            for op, path in found:
                if op.kind == "load":
                    _check_before(op, path, writes, found)


def _holds_results_without_gradient(program: Program, found: Sequence[tuple[Op, tuple[int, ...]]]) -> bool:
    """Return whether a tensor has integers that the kernel stores and does not read, such as places of maxima."""
    dtypes = {program.tensors[op.attributes(MemoryAttrs).tensor].dtype for op, _ in found}
    return all(op.kind != "load" for op, _ in found) and not any(d.is_floating_point for d in dtypes)


def _collect(
    program: Program, ops: Sequence[Op], path: tuple[int, ...], found: dict[int, list[tuple[Op, tuple[int, ...]]]]
) -> None:
    """Collect accesses by storage, each with the loops and sides of branches around it."""
    for op in ops:
        if isinstance(op.attrs, MemoryAttrs):
            found.setdefault(program.tensors[op.attrs.tensor].storage, []).append((op, path))
        if op.kind in ("for", "while", "if"):
            for at, region in enumerate(op.regions):
                _collect(program, region.ops, (*path, op.number * 2 + at), found)


def _name(program: Program, op: Op) -> str:
    return program.tensors[op.attributes(MemoryAttrs).tensor].name


def _check_owned(places: Places, op: Op, path: tuple[int, ...]) -> None:
    """Refuse a store whose elements several programs or iterations share."""
    loops = {other.number: other.attrs.axes for other in places.program.walk() if isinstance(other.attrs, ForAttrs)}
    around = [*places.root.axes, *(a for number in path for a in loops.get(number // 2, ()))]
    used = places.depends_on(op)
    for axis in around:
        if axis.block not in used and not is_single(axis):
            raise not_supported(
                f"storing into the same elements of {_name(places.program, op)!r} in every iteration over "
                f"{places.program.blocks[axis.block].name!r}",
                "store once, after that loop, or index the tensor by it",
                op,
            )


def _check_apart(places: Places, op: Op, path: tuple[int, ...], other: Op, other_path: tuple[int, ...]) -> None:
    """Refuse two writes into one tensor that may have elements in common."""
    if op.kind == other.kind == "atomic":
        return
    exclusive = any(a != b and a // 2 == b // 2 for a in path for b in other_path)
    if op.kind == other.kind == "store" and (exclusive or places.apart(op, other)):
        return
    raise not_supported(
        f"writing {_name(places.program, op)!r} in several places that may be the same elements",
        "give each its own output, or choose with torch.where what is stored once",
        op,
    )


def _check_before(
    op: Op,
    path: tuple[int, ...],
    writes: Sequence[tuple[Op, tuple[int, ...]]],
    found: Sequence[tuple[Op, tuple[int, ...]]],
) -> None:
    """Refuse a load of a written tensor unless it reads the value before the kernel. The same program must read an
    element and then store it.
    """
    order = [each for each, _ in found]
    for write, write_path in writes:
        same = write.kind == "store" and write_path == path and access_key(write)[:2] == access_key(op)[:2]
        if not same or order.index(write) < order.index(op):
            raise not_supported(
                "reading elements of a tensor that the same kernel writes in another place",
                "keep the value in a variable, or write into another tensor",
                op,
            )
