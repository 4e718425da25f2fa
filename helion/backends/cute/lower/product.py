"""``product_of``: a program that is one matrix product with an epilogue of arithmetic and reductions of rows, as a ``GemmProblem``.

Everything else is refused by name, and so is everything that the kernel would compute differently from eager torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from ...._compiler.ir.grammar import (
    DotAttrs,
    ForAttrs,
    LoopAxis,
    Op,
    Operand,
    PointwiseAttrs,
    Program,
    Region,
    Root,
    Value,
    ViewAttrs,
)
from ...._compiler.ir.ops import OPS
from ...._shapes import Expr, Number, dtype_name
from ..plan.records import SWIZZLE_BYTES, GemmProblem
from ..plan.refusal import Refusal
from .chain import EXAMPLE_MULTIPLE, Chain
from .frame import Frame, Place, blocks_of, major_of, place_of
from .numbers import equal, example, size
from .scales import Nest, Scaled, ScaleReader, nest_of
from .tiled import TiledRows, loops_over_columns


@dataclass(frozen=True, kw_only=True)
class Product:
    """``a``, ``b``, ``outputs`` and ``operands`` are ids of host tensors, operands that are numbers expressions of the host;
    ``blocks`` are those of M, N and K. Where a program holds ``whole_rows``, the block of N is no tile."""

    problem: GemmProblem
    a: int
    b: int
    outputs: tuple[int, ...]
    operands: tuple[int | Expr, ...]
    runtime: tuple[tuple[str, Expr], ...]
    """What only the launch knows: names as in the problem, and expressions of the host."""
    blocks: tuple[int, int, int]
    whole_rows: bool
    undecided: tuple[int, ...] = ()
    """Tiles of the program that mean nothing here: of columns where it has whole rows."""
    is_empty: bool = False
    """Whether there is nothing to compute, and the problem is that of one row."""
    batch_block: int | None = None
    """That of products side by side, of which a program takes one."""
    scales: tuple[int, ...] = ()
    """Ids of the tensors of factors of blocks of K."""
    fixed: Mapping[int, int] = field(default_factory=dict)
    """The tiles whose size the program says."""

    @property
    def arguments(self) -> tuple[int | Expr, ...]:
        """What a launch takes, in order."""
        return (self.a, self.b, *self.outputs, *self.operands, *self.scales, *(number for _, number in self.runtime))


def product_of(program: Program) -> Product:
    """The product that `program` is. Raises ``Refusal``."""
    if len(program.roots) != 1 or len(program.roots[0].axes) not in (1, 2):
        raise Refusal("products over one grid, of tiles of M and N or of whole rows, are implemented")
    root = program.roots[0]
    outer = loops_over_columns(root) if len(root.axes) == 1 else ()
    loop = _loop(outer[0].regions[0] if outer else root.body)
    nest = nest_of(program, loop)
    for axis in (*root.axes, *(_axes(loop) if nest is None else ())):
        _check_axis(axis, program)
    stores = _stores(program, [root.body, *(each.regions[0] for each in outer)])
    frame = _tiled_frame(program, root, outer, loop) if outer else _oriented(_frame(program, root, loop, nest), stores)
    dots, scaled = _dots(frame, loop, nest)
    a, *others = (_operand(frame, dot.operands[0], (frame.m, frame.k)) for dot in dots)
    if any(other != a for other in others):
        raise Refusal("products that share an epilogue share their first operand as well")
    b, *second = (_operand(frame, dot.operands[1], (frame.k, frame.n)) for dot in dots)
    chain = Chain(frame, loop.results[0])
    for place, sums in zip(second, loop.results[1:], strict=True):
        chain.add_product(sums, place.tensor, _second_pitch(frame, b, place))
    if outer and scaled.scales is not None:
        raise Refusal("products with factors of blocks of K in loops over tiles of columns are not implemented")
    if outer:
        stores = TiledRows(frame, chain, loop, lambda other: _is_same(frame, other, (a, b, *second))).stores(root)
    for store in sorted(stores, key=lambda store: len(blocks_of(frame, store)), reverse=True):
        chain.store(store)
    return _product(frame, a, b, chain, scaled)


# Loops -----------------------------------------------------------------------------------------------------------------


def _loop(body: Region) -> Op:
    others = [op.kind for op in body.ops if op.regions and op.kind != "for"]
    if others:
        raise Refusal(f"{others[0]} in an epilogue is not implemented")
    loops = [op for op in body.ops if op.kind == "for"]
    if len(loops) != 1:
        raise Refusal("one loop over K between the grid and the store is implemented")
    return loops[0]


def _frame(program: Program, root: Root, loop: Op, nest: Nest | None) -> Frame:
    """Rows are whole where the sums have a dimension that nothing walks over."""
    blocks = [axis.block for axis in root.axes]
    whole = len(blocks) == 1
    if whole:
        blocks.append(_whole_block(program, loop, blocks[0]))
    (k,) = (axis.block for axis in _axes(loop if nest is None else nest.inner))
    makers = {result.number: op for op in program.walk() for result in op.results}
    return Frame(
        program=program,
        makers=makers,
        m=blocks[0],
        n=blocks[1],
        k=k,
        whole_rows=whole,
        k_extent=None if nest is None else nest.extent,
    )


def _tiled_frame(program: Program, root: Root, outer: Sequence[Op], loop: Op) -> Frame:
    """Rows are walked over in tiles of columns, by every loop from the first column to the last."""
    n, *others = (each.attributes(ForAttrs).axes[0] for each in outer)
    (k,) = _axes(loop)
    same = {axis.block: n.block for axis in others}
    for axis in (n, *others):
        _check_axis(axis, program)
        if not equal(size(program.blocks[axis.block].extent), size(program.blocks[n.block].extent)):
            raise Refusal("loops over columns go over different numbers of them")
    for inner in (op for each in outer[1:] for op in each.regions[0].ops if op.kind == "for"):
        (again,) = _axes(inner)
        _check_axis(again, program)
        if equal(size(program.blocks[again.block].extent), size(program.blocks[k.block].extent)):
            same[again.block] = k.block
    makers = {result.number: op for op in program.walk() for result in op.results}
    return Frame(
        program=program,
        makers=makers,
        m=root.axes[0].block,
        n=n.block,
        k=k.block,
        whole_rows=True,
        by_tiles=True,
        same=same,
    )


def _is_same(frame: Frame, loop: Op, places: Sequence[Place]) -> bool:
    """Whether a loop adds up the products of the same tensors once more."""
    dots = [_dot(frame, loop, at) for at in range(len(loop.results))]
    left = [_operand(frame, dot.operands[0], (frame.m, frame.k)) for dot in dots]
    right = [_operand(frame, dot.operands[1], (frame.k, frame.n)) for dot in dots]
    return all(each == places[0] for each in left) and right == list(places[1:])


def _whole_block(program: Program, loop: Op, rows: int) -> int:
    """The block of N, all of which is in the sums of each program."""
    blocks = [dim.block for value in loop.results for dim in value.dims if dim.block != rows]
    if not blocks or blocks[0] is None or any(block != blocks[0] for block in blocks):
        raise Refusal("sums of tiles of rows, as wide as the output, are implemented")
    if program.blocks[blocks[0]].kind != "full":
        raise Refusal("sums of whole rows, over all columns at once, are implemented")
    return blocks[0]


def _axes(loop: Op) -> Sequence[LoopAxis]:
    attrs = loop.attrs
    if not isinstance(attrs, ForAttrs) or len(attrs.axes) != 1 or attrs.carried not in (1, 2):
        raise Refusal("a loop over K that carries one sum, or two, is implemented")
    if len(loop.results) != attrs.carried:
        raise Refusal("a loop over K that gives its sums and nothing else is implemented")
    return attrs.axes


def _check_axis(axis: LoopAxis, program: Program) -> None:
    block = program.blocks[axis.block]
    plain = block.kind == "tile" and not axis.scalar and axis.jagged is None and not axis.merged
    if not plain or not all(map(equal, (axis.begin, axis.step, size(axis.end)), (0, 1, size(block.extent)))):
        raise Refusal(f"dimension {block.name or block.id} is no plain tile loop from 0 to an extent that is known")


def _dots(frame: Frame, loop: Op, nest: Nest | None) -> tuple[list[Op], Scaled]:
    """The dots of the sums that `loop` carries, and the factors of their blocks of K, if any."""
    plain = nest is None and all(_kind(frame.maker(result)) == "dot" for result in loop.regions[0].results)
    if plain or len(loop.results) != 1:
        return [_dot(frame, loop, at) for at in range(len(loop.results))], Scaled(scales=None, tensors=())
    _check_zero(frame, loop, 0)
    dot = _dot(frame, nest.inner, 0) if nest is not None else _term(loop)
    part = dot.result if nest is None else nest.inner.result
    line = SWIZZLE_BYTES // max(1, _item_bytes(dot))
    return [dot], ScaleReader(frame, loop, part, nest).read(line)


def _kind(op: Op | None) -> str:
    return "" if op is None else op.kind


def _item_bytes(dot: Op) -> int:
    left = dot.operands[0]
    return left.dtype.itemsize if isinstance(left, Value) else 0


def _term(loop: Op) -> Op:
    """The one dot of `loop`, whose result is added to what the loop carries."""
    dots = [op for op in loop.regions[0].ops if op.kind == "dot"]
    if len(dots) != 1 or len(dots[0].operands) != 2:
        raise Refusal("a loop over K with one dot of two loads per sum is implemented, not with more")
    _check_dot(dots[0])
    return dots[0]


def _dot(frame: Frame, loop: Op, at: int) -> Op:
    """The dot of `loop` that adds to its carried value number `at`, from zero on."""
    body = loop.regions[0]
    dots = [op for op in body.ops if op.kind == "dot"]
    others = [_name(op) for op in body.ops if op.kind not in ("dot", "load", "view")]
    if len(dots) != len(loop.results) or others:
        raise Refusal(
            f"a loop over K with one dot of two loads per sum is implemented, not with {', '.join(others) or 'more'}"
        )
    dot = next((dot for dot in dots if dot.results[0] is body.results[at]), dots[at])
    if len(dot.operands) != 3 or dot.operands[2] is not body.params[at] or body.results[at] is not dot.results[0]:
        raise Refusal("a dot that adds to what the loop carries is implemented")
    _check_dot(dot)
    _check_zero(frame, loop, at)
    return dot


def _check_dot(dot: Op) -> None:
    attrs = dot.attributes(DotAttrs)
    if attrs.scaled is not None or attrs.single:
        raise Refusal("a dot that adds to what the loop carries is implemented")
    of_float32 = any(isinstance(x, Value) and x.dtype == torch.float32 for x in dot.operands[:2])
    if of_float32 and attrs.precision != "tf32":
        raise Refusal(f"products of float32 in {attrs.precision} precision are not implemented; in tf32 they are")
    if dot.results[0].dtype != torch.float32:
        raise Refusal(f"sums in float32 are implemented, not in {dtype_name(dot.results[0].dtype)}")


def _check_zero(frame: Frame, loop: Op, at: int) -> None:
    start = frame.maker(loop.operands[at])
    zero = start is not None and start.kind == "full" and isinstance(start.operands[0], (int, float))
    if start is None or not zero or start.operands[0] != 0:
        raise Refusal("sums that start from zero are implemented")


def _name(op: Op) -> str:
    return op.attrs.name if isinstance(op.attrs, PointwiseAttrs) else op.kind


# Memory -----------------------------------------------------------------------------------------------------------------------


def _operand(frame: Frame, value: Operand, wanted: tuple[int, int]) -> Place:
    """Where an operand of the dot is loaded from."""
    op = frame.maker(value)
    if op is not None and op.kind == "view" and op.attrs == ViewAttrs("permute", (1, 0)):
        op, wanted = frame.maker(op.operands[0]), (wanted[1], wanted[0])
    if op is None or op.kind != "load":
        raise Refusal("operands of the dot that are loaded as they are are implemented")
    if blocks_of(frame, op) != wanted:
        raise Refusal(f"{frame.tensor(op).name} is not tiled by the dimensions of the dot")
    return place_of(frame, op)


def _stores(program: Program, bodies: Sequence[Region]) -> list[Op]:
    effects = [op for op in program.walk() if OPS[op.kind].stays]
    known = {op.number for body in bodies for op in body.ops if op.kind == "store"}
    if not effects or any(op.number not in known for op in effects):
        raise Refusal("stores behind the loop over K are implemented, and no other effect")
    return effects


def _oriented(frame: Frame, stores: Sequence[Op]) -> Frame:
    """M is the first dimension of the output, whatever the order of the grid."""
    first = next((blocks_of(frame, store) for store in stores if len(blocks_of(frame, store)) == 2), (frame.m, frame.n))
    if set(first) != {frame.m, frame.n}:
        raise Refusal(f"{frame.tensor(stores[0]).name} is not tiled by the grid")
    if frame.whole_rows or first == (frame.m, frame.n):
        return frame
    return replace(frame, m=first[0], n=first[1])


# The whole -----------------------------------------------------------------------------------------------------------------


def _product(frame: Frame, a: Place, b: Place, chain: Chain, scaled: Scaled) -> Product:
    operands = tuple(source for _, source in chain.loads.values())
    outputs = tuple(output.place.tensor.id for output in chain.outputs)
    read = [each for each in (a.tensor.id, b.tensor.id, *operands, *scaled.tensors) if isinstance(each, int)]
    _check_memory(frame, read, outputs)
    if a.tensor.dtype != b.tensor.dtype:
        raise Refusal(f"a product of {dtype_name(a.tensor.dtype)} and {dtype_name(b.tensor.dtype)} is not implemented")
    a_major, a_pitch = major_of(frame, a)
    b_major, b_pitch = major_of(frame, b)
    sizes = {f"size_{side}": frame.extent(getattr(frame, side)) for side in "mnk"}
    if frame.whole_rows and isinstance(sizes["size_n"], Expr):
        raise Refusal(
            "whole rows have a number of columns that is known when the kernel is compiled; use hl.specialize"
        )
    numbers: dict[str, Number] = {**sizes, "pitch_a": a_pitch, "pitch_b": b_pitch, **chain.runtime}
    runtime = tuple((name, number) for name, number in numbers.items() if isinstance(number, Expr))
    problem = GemmProblem(
        m=max(1, example(sizes["size_m"])),
        n=example(sizes["size_n"]),
        k=example(sizes["size_k"]),
        operand_dtype=dtype_name(a.tensor.dtype),
        output_dtype=dtype_name(chain.outputs[0].place.tensor.dtype),
        a_pitch=example(a_pitch, EXAMPLE_MULTIPLE),
        b_pitch=example(b_pitch, EXAMPLE_MULTIPLE),
        d_pitch=chain.outputs[0].pitch,
        a_major=a_major,
        b_major=b_major,
        epilogue=chain.epilogue(),
        scales=scaled.scales,
        runtime=tuple(name for name, _ in runtime),
        names=(a.tensor.name, b.tensor.name, chain.outputs[0].place.tensor.name),
    )
    return Product(
        problem=problem,
        a=a.tensor.id,
        b=b.tensor.id,
        outputs=outputs,
        operands=operands,
        runtime=runtime,
        is_empty=equal(sizes["size_m"], 0),
        blocks=(frame.m, frame.n, frame.k),
        whole_rows=frame.whole_rows,
        undecided=(frame.n, *frame.same) if frame.by_tiles else (),
        scales=scaled.tensors,
        fixed={block.id: block.size for block in frame.program.blocks if isinstance(block.size, int)},
    )


def _check_memory(frame: Frame, read: Sequence[int], written: Sequence[int]) -> None:
    """Tiles are written while others are still read, in no order."""
    tensors = frame.program.tensors
    for at, output in enumerate(written):
        for other in (*read, *written[:at]):
            if tensors[other].storage == tensors[output].storage:
                raise Refusal(f"{tensors[other].name} shares memory with the output {tensors[output].name}")


def _second_pitch(frame: Frame, first: Place, second: Place) -> Number:
    """Of the second product's B, which lies like the first one's."""
    major, pitch = major_of(frame, second)
    if second.tensor.dtype != first.tensor.dtype or major != major_of(frame, first)[0]:
        raise Refusal(f"{second.tensor.name} and {first.tensor.name} differ in type or in what is contiguous")
    return pitch
