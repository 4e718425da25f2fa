"""``product_of``: a program that is one matrix product with a pointwise epilogue, as a ``GemmProblem``.

Everything else is refused by name, and so is everything that the kernel would compute differently from eager torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...._compiler.ir.grammar import (
    DotAttrs,
    ForAttrs,
    HostTensor,
    LoopAxis,
    Op,
    Operand,
    PointwiseAttrs,
    Program,
    Region,
    Value,
    ViewAttrs,
)
from ...._compiler.ir.ops import OPS
from ...._shapes import dtype_name
from ..plan.records import GemmProblem
from ..plan.refusal import Refusal
from .chain import Chain
from .frame import Frame, blocks_of, covered, integer, major_of


@dataclass(frozen=True, kw_only=True)
class Product:
    """``a``, ``b``, ``d`` and ``operands`` are ids of host tensors, ``blocks`` those of the tiles of M, N and K."""

    problem: GemmProblem
    a: int
    b: int
    d: int
    operands: tuple[int, ...]
    blocks: tuple[int, int, int]
    batch_block: int | None = None
    """That of products side by side, of which a program takes one."""


def product_of(program: Program) -> Product:
    """The product that `program` is. Raises ``Refusal``."""
    if len(program.roots) != 1 or len(program.roots[0].axes) != 2:
        raise Refusal("products over one grid of two tiled dimensions are implemented")
    root = program.roots[0]
    loops = [op for op in root.body.ops if op.regions]
    if len(loops) != 1 or loops[0].kind != "for":
        raise Refusal("one loop over K between the grid and the store is implemented")
    loop = loops[0]
    axes = [*root.axes, *_axes(loop)]
    for axis in axes:
        _check_axis(axis, program)
    frame = Frame(
        program=program,
        makers={result.number: op for op in program.walk() for result in op.results},
        m=axes[0].block,
        n=axes[1].block,
        k=axes[2].block,
    )
    dots = [_dot(frame, loop, at) for at in range(len(loop.results))]
    store = _store(frame, root.body)
    frame = _oriented(frame, store)
    a, *others = (_operand(frame, dot.operands[0], (frame.m, frame.k)) for dot in dots)
    if any(other != a for other in others):
        raise Refusal("products that share an epilogue share their first operand as well")
    b, *second = (_operand(frame, dot.operands[1], (frame.k, frame.n)) for dot in dots)
    epilogue = Chain(frame, loop.results[0])
    for (tensor, blocks), sums in zip(second, loop.results[1:], strict=True):
        epilogue.add_product(sums, tensor, _second_pitch(frame, b, (tensor, blocks)))
    result = epilogue.read(_unrounded(frame, store))
    epilogue.finish(result)
    return _product(frame, a, b, store, epilogue)


# Loops -----------------------------------------------------------------------------------------------------------------


def _axes(loop: Op) -> Sequence[LoopAxis]:
    attrs = loop.attrs
    if not isinstance(attrs, ForAttrs) or len(attrs.axes) != 1 or attrs.carried not in (1, 2):
        raise Refusal("a loop over K that carries one sum, or two, is implemented")
    if len(loop.results) != attrs.carried:
        raise Refusal("a loop over K that gives its sums and nothing else is implemented")
    return attrs.axes


def _check_axis(axis: LoopAxis, program: Program) -> None:
    block = program.blocks[axis.block]
    known = all(isinstance(number, int) for number in (axis.begin, axis.end, axis.step, block.extent))
    plain = block.kind == "tile" and not axis.scalar and axis.jagged is None and not axis.merged
    if not known or not plain or (axis.begin, axis.end, axis.step) != (0, block.extent, 1):
        raise Refusal(f"dimension {block.name or block.id} is no plain tile loop from 0 to an extent that is known")


def _dot(frame: Frame, loop: Op, at: int) -> Op:
    """The dot of `loop` that adds to its carried value number `at`, from zero on."""
    body = loop.regions[0]
    dots = [op for op in body.ops if op.kind == "dot"]
    others = [op.kind for op in body.ops if op.kind not in ("dot", "load", "view")]
    if len(dots) != len(loop.results) or others:
        raise Refusal(
            f"a loop over K with one dot of two loads per sum is implemented, not with {', '.join(others) or 'more'}"
        )
    dot = next((dot for dot in dots if dot.results[0] is body.results[at]), dots[at])
    attrs = dot.attrs
    assert isinstance(attrs, DotAttrs)
    adds = len(dot.operands) == 3 and dot.operands[2] is body.params[at] and body.results[at] is dot.results[0]
    if attrs.scaled is not None or attrs.single or not adds:
        raise Refusal("a dot that adds to what the loop carries is implemented")
    of_float32 = any(isinstance(x, Value) and x.dtype == torch.float32 for x in dot.operands[:2])
    if of_float32 and attrs.precision != "tf32":
        raise Refusal(f"products of float32 in {attrs.precision} precision are not implemented; in tf32 they are")
    if dot.results[0].dtype != torch.float32:
        raise Refusal(f"sums in float32 are implemented, not in {dtype_name(dot.results[0].dtype)}")
    start = frame.maker(loop.operands[at])
    zero = start is not None and start.kind == "full" and isinstance(start.operands[0], (int, float))
    if start is None or not zero or start.operands[0] != 0:
        raise Refusal("sums that start from zero are implemented")
    return dot


# Memory -----------------------------------------------------------------------------------------------------------------------


def _operand(frame: Frame, value: Operand, wanted: tuple[int, int]) -> tuple[HostTensor, tuple[int, ...]]:
    """The tensor that an operand of the dot is loaded from, and the blocks over its dimensions."""
    op = frame.maker(value)
    if op is not None and op.kind == "view" and op.attrs == ViewAttrs("permute", (1, 0)):
        op, wanted = frame.maker(op.operands[0]), (wanted[1], wanted[0])
    if op is None or op.kind != "load":
        raise Refusal("operands of the dot that are loaded as they are are implemented")
    blocks = blocks_of(op)
    if blocks != wanted:
        raise Refusal(f"{frame.tensor(op).name} is not tiled by the dimensions of the dot")
    return covered(frame, op, blocks), blocks


def _store(frame: Frame, body: Region) -> Op:
    effects = [op for op in frame.program.walk() if OPS[op.kind].stays]
    if len(effects) != 1 or effects[0].kind != "store" or effects[0] not in body.ops:
        raise Refusal("one store behind the loop over K is implemented, and no other effect")
    store = effects[0]
    if set(blocks_of(store)) != {frame.m, frame.n} or len(blocks_of(store)) != 2:
        raise Refusal(f"{frame.tensor(store).name} is not tiled by the grid")
    return store


def _oriented(frame: Frame, store: Op) -> Frame:
    """M is the first dimension of the output, whatever the order of the grid."""
    m, n = blocks_of(store)
    return Frame(program=frame.program, makers=frame.makers, m=m, n=n, k=frame.k)


def _unrounded(frame: Frame, store: Op) -> Operand:
    """What is stored, before a cast to the type that storing rounds to anyway."""
    value = store.operands[0]
    maker = frame.maker(value)
    casts = maker is not None and maker.kind == "pointwise" and maker.attrs == PointwiseAttrs("cast")
    if maker is not None and casts and maker.results[0].dtype == frame.tensor(store).dtype:
        return maker.operands[0]
    return value


# The whole -----------------------------------------------------------------------------------------------------------------


def _product(
    frame: Frame,
    a: tuple[HostTensor, tuple[int, ...]],
    b: tuple[HostTensor, tuple[int, ...]],
    store: Op,
    chain: Chain,
) -> Product:
    d = covered(frame, store, (frame.m, frame.n))
    if d.strides[1] != 1:
        raise Refusal(f"{d.name} has a stride of {d.strides[1]} along N; contiguous rows are implemented")
    operands = tuple(tensor for _, tensor in chain.loads.values())
    for tensor in (a[0].id, b[0].id, *operands):
        if frame.program.tensors[tensor].storage == d.storage:
            raise Refusal(f"{frame.program.tensors[tensor].name} shares memory with the output {d.name}")
    if a[0].dtype != b[0].dtype:
        raise Refusal(f"a product of {dtype_name(a[0].dtype)} and {dtype_name(b[0].dtype)} is not implemented")
    a_major, a_pitch = major_of(frame, *a)
    b_major, b_pitch = major_of(frame, *b)
    problem = GemmProblem(
        m=frame.extent(frame.m),
        n=frame.extent(frame.n),
        k=frame.extent(frame.k),
        operand_dtype=dtype_name(a[0].dtype),
        output_dtype=dtype_name(d.dtype),
        a_pitch=a_pitch,
        b_pitch=b_pitch,
        d_pitch=integer(d.strides[0], "a stride"),
        a_major=a_major,
        b_major=b_major,
        epilogue=chain.epilogue,
    )
    return Product(problem=problem, a=a[0].id, b=b[0].id, d=d.id, operands=operands, blocks=(frame.m, frame.n, frame.k))


def _second_pitch(
    frame: Frame, first: tuple[HostTensor, tuple[int, ...]], second: tuple[HostTensor, tuple[int, ...]]
) -> int:
    """Of the second product's B, which lies like the first one's."""
    (tensor, _), (other, _) = first, second
    major, pitch = major_of(frame, *second)
    if tensor.dtype != other.dtype or major != major_of(frame, *first)[0]:
        raise Refusal(f"{tensor.name} and {other.name} differ in type or in what is contiguous")
    return pitch
