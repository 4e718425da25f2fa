"""``product_of``: turn a program that is one matmul, with an epilogue of arithmetic and row reductions, into a
``GemmProblem``.

Everything else is refused by name, as is everything that the kernel would compute differently from eager torch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import torch

from ...._compiler.ir.grammar import (
    DotAttrs,
    ForAttrs,
    LoopAxis,
    MemoryAttrs,
    Op,
    Operand,
    PointwiseAttrs,
    Program,
    Region,
    Root,
    Value,
)
from ...._compiler.ir.ops import OPS
from ...._shapes import Expr, Number, dtype_name
from ...._support.records import dataclass, field, replace
from ..plan.epilogue import MAX_PRODUCTS
from ..plan.finish import SIZE_M, counts_rows, with_most_rows
from ..plan.operands import gains_by_turning, stores_along_m
from ..plan.records import SWIZZLE_BYTES, GemmProblem
from ..plan.refusal import Refusal
from .chain import EXAMPLE_MULTIPLE, ROUNDED, Chain, starts_from_zero
from .epilogue.column_pairs import pairs_of, same_columns, with_column_pairs
from .epilogue.compared import ProductChain
from .epilogue.row_blocks import same_rows, with_row_blocks
from .frame import Frame, blocks_of, place_of
from .numbers import equal, example, size
from .operands import Multiplied, common_dtype, multiplied, sum_along_k
from .rewrites.picks import Pick
from .rewrites.sums import with_sums
from .scales import Nest, Scaled, ScaleReader, nest_of
from .stored import check_memory, stores_after_loop
from .tiled import TiledRows, loops_over_columns


@dataclass(frozen=True, kw_only=True)
class Product:
    """A GEMM of a program. ``a``, ``b``, ``outputs`` and ``operands`` are ids of host tensors; scalar operands are host
    expressions.

    ``blocks`` are those of M, N and K. If a program holds ``whole_rows``, the block of N is no tile.
    """

    problem: GemmProblem
    a: int
    b: int
    outputs: tuple[int, ...]
    operands: tuple[int | Expr, ...]
    runtime: tuple[tuple[str, Expr], ...]
    """Numbers known only at launch: names as in the problem, and host expressions."""
    blocks: tuple[int, int, int]
    whole_rows: bool
    undecided: tuple[int, ...] = ()
    """Tiles of the program without a meaning here: of columns where it has whole rows."""
    one_tile: frozenset[int] = frozenset()
    """Those of them that have to cover all columns."""
    is_empty: bool = False
    """True if there is nothing to compute, and the problem has one row instead."""
    batch_blocks: tuple[int, ...] = ()
    """Blocks of the batch, of which a program takes one element."""
    scales: tuple[int, ...] = ()
    """Ids of the tensors of scales for blocks of K."""
    sources: tuple[int, ...] = ()
    """Ids of the sources of copied operands, after the first of each."""
    fixed: Mapping[int, int] = field(default_factory=dict)
    """Tile sizes that the program sets."""
    terms: tuple[int, ...] = ()
    """Ids of the operands of further terms of a sum of matmuls."""
    offsets: int | None = None
    """Id of the tensor with the first rows of groups."""
    depth: int | None = None
    """K of a tile, if the program has all of K at once."""
    words: tuple[int, ...] = ()
    """Ids of the tensors of words that count messages, in the order of the epilogue."""
    all_columns: Program | None = None
    """The program whose products with even and with odd columns are one."""
    exact: tuple[tuple[str, range], ...] = ()
    """Numbers of the launch that integers are compared with, and their values that fp32 holds."""

    @property
    def ranges(self) -> dict[str, range]:
        """The values of numbers of the launch that a kernel is for, by name: a workspace has room for ``m`` rows."""
        rows = dict(self.runtime)[SIZE_M].args[0] if counts_rows(self.problem) else None
        return dict(self.exact) | ({} if rows is None else {rows: range(1, self.problem.m + 1)})

    @property
    def arguments(self) -> tuple[int | Expr, ...]:
        """Arguments of a launch, in order."""
        groups = () if self.offsets is None else (self.offsets,)
        read = (*self.operands, *self.scales, *self.sources, *self.terms)
        tensors = (self.a, self.b, *self.outputs, *read, *groups, *self.words)
        return (*tensors, *(number for _, number in self.runtime))


def product_of(
    program: Program,
    batch_strides: Mapping[int, tuple[Number, ...]] | None = None,
    picks: Mapping[int, Pick] | None = None,
    along_k: frozenset[str] = frozenset(),
    pairs: Mapping[int, bool] | None = None,
    turns: bool = True,
) -> Product:
    """Return the GEMM that `program` computes, or the transposed one if that is faster and it ``turns``. Raises ``Refusal``.

    ``batch_strides`` are those of tensors along each dimension of a batch, of which `program` is one matmul. ``picks`` are
    tensors of picked lines. Operands of the sides ``along_k``, of A or B, are copied unless they are contiguous along K.
    ``pairs`` are tensors of 4-bit numbers, of which neighbors along K share a byte: True where the even one has the high bits.
    """
    product = _traced(program, batch_strides or {}, picks or {}, along_k=along_k, pairs=pairs)
    if product.whole_rows or not turns or picks:
        return product
    if not batch_strides and stores_along_m(product.problem):
        return _traced(program, {}, {}, turned=True, along_m=True)
    if not gains_by_turning(product.problem):
        return product
    return _traced(program, batch_strides or {}, {}, turned=True, along_k=along_k, pairs=pairs)


def _traced(
    program: Program,
    batch_strides: Mapping[int, tuple[Number, ...]],
    picks: Mapping[int, Pick],
    *,
    turned: bool = False,
    along_m: bool = False,
    along_k: frozenset[str] = frozenset(),
    pairs: Mapping[int, bool] | None = None,
) -> Product:
    """Return the GEMM of a program. The output is contiguous along N, or ``turned``: stored by TMA, ``along_m``, or by threads."""
    summed = with_sums(program)
    program = with_row_blocks(with_column_pairs(summed.program))
    root = _grid(program)
    outer = loops_over_columns(root) if len(root.axes) == 1 else ()
    loop = _loop(outer[0].regions[0] if outer else root.body)
    nest = nest_of(program, loop)
    for axis in (*root.axes, *(_axes(loop) if nest is None else ())):
        check_axis(axis, program)
    stores = _stores(program, [root.body, *(each.regions[0] for each in outer)])
    frame = tiled_frame(program, root, outer, loop) if outer else _oriented(_frame(program, root, loop, nest), stores)
    frame = replace(frame, batch_strides=batch_strides, picks=picks, sums=summed.sums, pairs=pairs or {})
    frame = replace(frame, m=frame.n, n=frame.m, along_m=along_m) if turned else frame
    dots, scaled = _dots(frame, loop, nest)
    (a, b), *others = _pairs(frame, dots, along_k)
    if any(other != a for other, _ in others):
        raise Refusal("matmuls that share an epilogue need the same first operand")
    second = [right for _, right in others]
    chain = ProductChain(frame, loop.results[0])
    copied = {label: each.copied for label, each in (("a", a), ("b", b))}
    for other, sums in zip(second, loop.results[1:], strict=True):
        label = chain.add_product(sums, other.tensor, other.dtype, _second_pitch(b, other))
        copied[label] = other.copied
    if scaled.scales is not None and outer:
        raise Refusal("matmuls with factors of blocks of K in loops over tiles of columns are not implemented")
    for result, start in zip(loop.results, loop.operands, strict=False):
        if outer and not starts_from_zero(frame, start):
            raise Refusal("accumulators that start from zero are implemented where loops go over tiles of columns")
        chain.begin(result, start)
    if outer:
        tiled = TiledRows(root, frame, chain, loop, lambda other: _is_same(frame, other, (a, b, *second)))
        stores = tiled.stores()
    else:
        stores = stores_after_loop(root.body, frame, chain)
    for store in sorted(stores, key=lambda store: len(blocks_of(frame, store)), reverse=True):
        chain.store(store)
    labelled = tuple(replace(each, operand=label) for label, each in copied.items() if each is not None)
    sources = tuple(tensor.id for each in (a, b, *second) for tensor in each.tensors[1:])
    lines = tuple(output.lines.id for output in chain.outputs if output.lines is not None)
    product = replace(_product(frame, a, b, chain, scaled, (*sources, *lines)), sources=(*sources, *lines))
    product = _with_sums(
        frame, replace(product, problem=replace(product.problem, copied=labelled)), chain, len(sources)
    )
    return replace(product, one_tile=frozenset(frame.column_blocks)) if outer and tiled.one_tile else product


def _grid(program: Program) -> Root:
    """Return the only grid loop of a program."""
    if len(program.roots) != 1:
        raise Refusal(
            f"the kernel has {len(program.roots)} grid loops, and a matmul of one is implemented; write each loop as a kernel of its own"
        )
    if len(program.roots[0].axes) not in (1, 2):
        raise Refusal("matmuls over one grid, of tiles of M and N or of whole rows, are implemented")
    return program.roots[0]


def _with_sums(frame: Frame, product: Product, chain: Chain, copies: int) -> Product:
    """Return the product with the tensors that sums along K are of in place of their vectors. Other sources than the first
    follow those of ``copies``."""
    operands, summed, more = list(product.operands), [], list[int]()
    for at, (operand, source) in enumerate(chain.loads.values()):
        if isinstance(source, int) and source in frame.sums:
            copied, (first, *others) = sum_along_k(frame, frame.sums[source], operand.label)
            operands[at] = first.id
            summed.append(copied)
            more += [tensor.id for tensor in others]
    if not summed:
        return product
    sources = (*product.sources[:copies], *more, *product.sources[copies:])
    problem = replace(product.problem, summed=tuple(summed))
    return replace(product, operands=tuple(operands), sources=sources, problem=problem)


# Loops -----------------------------------------------------------------------------------------------------------------


def _loop(body: Region) -> Op:
    others = [op.kind for op in body.ops if op.regions and op.kind != "for"]
    if others:
        remedy = "; torch.where chooses values" if others[0] == "if" else ""
        raise Refusal(f"{others[0]} in an epilogue is not implemented{remedy}")
    loops = [op for op in body.ops if op.kind == "for"]
    if not any(op.kind == "dot" for op in body.walk()):
        raise Refusal("it has no matmul, and reduces no rows of several columns")
    if len(loops) != 1:
        raise Refusal(
            "one loop over K between the grid and the store is implemented, or several that go on with all accumulators"
        )
    return loops[0]


def _frame(program: Program, root: Root, loop: Op, nest: Nest | None) -> Frame:
    """Find the loops of a program; rows are whole if the accumulator has a dimension without a loop."""
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
        same=same_columns(program, (blocks[0], blocks[1], k)) | same_rows(program, blocks[0]),
        k_extent=None if nest is None else nest.extent,
    )


def tiled_frame(program: Program, root: Root, outer: Sequence[Op], loop: Op) -> Frame:
    """Find the loops of a program that iterates over tiles of columns: every loop covers all columns."""
    n, *others = (each.attributes(ForAttrs).axes[0] for each in outer)
    (k,) = _axes(loop)
    same = {axis.block: n.block for axis in others}
    for axis in (n, *others):
        check_axis(axis, program)
        if not equal(size(program.blocks[axis.block].extent), size(program.blocks[n.block].extent)):
            raise Refusal("loops over columns have different extents")
    for inner in (op for each in outer[1:] for op in each.regions[0].ops if op.kind == "for"):
        (again,) = _axes(inner)
        check_axis(again, program)
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


def _is_same(frame: Frame, loop: Op, places: Sequence[Multiplied]) -> bool:
    """Return whether a loop computes the matmul of the same tensors again."""
    pairs = _pairs(frame, [_dot(frame, loop, at) for at in range(len(loop.results))], frozenset())
    if not all(starts_from_zero(frame, start) for start in loop.operands):
        return False
    return all(left == places[0] for left, _ in pairs) and [right for _, right in pairs] == list(places[1:])


def _whole_block(program: Program, loop: Op, rows: int) -> int:
    """Return the block of N, all of which is in the accumulator of each program."""
    blocks = [dim.block for value in loop.results for dim in value.dims if dim.block != rows]
    if not blocks or blocks[0] is None or any(block != blocks[0] for block in blocks):
        raise Refusal("accumulators of tiles of rows, as wide as the output, are implemented")
    if program.blocks[blocks[0]].kind != "full":
        raise Refusal("accumulators of whole rows, over all columns at once, are implemented")
    return blocks[0]


def _axes(loop: Op) -> Sequence[LoopAxis]:
    attrs = loop.attrs
    if not isinstance(attrs, ForAttrs) or len(attrs.axes) != 1 or not 1 <= attrs.carried <= MAX_PRODUCTS:
        raise Refusal(f"a loop over K that carries one accumulator, or up to {MAX_PRODUCTS}, is implemented")
    if len(loop.results) != attrs.carried:
        raise Refusal("a loop over K that returns its accumulators and nothing else is implemented")
    return attrs.axes


def check_axis(axis: LoopAxis, program: Program) -> None:
    block = program.blocks[axis.block]
    plain = block.kind == "tile" and not axis.scalar and axis.jagged is None and not axis.merged
    if not plain or not all(map(equal, (axis.begin, axis.step, size(axis.end)), (0, 1, size(block.extent)))):
        raise Refusal(f"dimension {block.name or block.id} is no plain tile loop from 0 to an extent that is known")


def _dots(frame: Frame, loop: Op, nest: Nest | None) -> tuple[list[Op], Scaled]:
    """Return the dots of the accumulators that `loop` carries, and the scales of their blocks of K, if any."""
    body = loop.regions[0]
    plain = nest is None and all(
        _kind(frame.maker(each)) == "dot" or _added(frame, body, at) for at, each in enumerate(body.results)
    )
    if plain or len(loop.results) != 1:
        return [_dot(frame, loop, at) for at in range(len(loop.results))], Scaled(scales=None, tensors=())
    if nest is None and (rounded := _rounded_term(frame, body)) is not None:
        return [_term(frame, loop)], Scaled(scales=None, tensors=(), rounded=rounded)
    _check_zero(frame, loop, 0)
    if nest is not None:
        _check_zero(frame, nest.inner, 0)
    dot = _dot(frame, nest.inner, 0) if nest is not None else _term(frame, loop)
    part = dot.result if nest is None else nest.inner.result
    line = SWIZZLE_BYTES // max(1, _item_bytes(dot))
    return [dot], ScaleReader(frame, loop, part, nest).read(line)


def _kind(op: Op | None) -> str:
    return "" if op is None else op.kind


def _item_bytes(dot: Op) -> int:
    left = dot.operands[0]
    return left.dtype.itemsize if isinstance(left, Value) else 0


def _term(frame: Frame, loop: Op) -> Op:
    """Return the one dot of `loop`, whose result is added to the loop-carried value."""
    dots = [op for op in loop.regions[0].ops if op.kind == "dot"]
    if len(dots) != 1 or len(dots[0].operands) != 2:
        raise Refusal("a loop over K with one dot of two loads per accumulator is implemented, not with more")
    _check_dot(frame, dots[0])
    return dots[0]


def _dot(frame: Frame, loop: Op, at: int) -> Op:
    """Return the dot of `loop` that adds to its carried value number `at`."""
    body = loop.regions[0]
    dots = [op for op in body.ops if op.kind == "dot"]
    adds = [_added(frame, body, number) for number in range(len(loop.results))]
    used = {op.number for pair in adds for op in pair}
    computed = [*(value for dot in dots for value in dot.operands[:2]), *(each.terms for each in frame.sums.values())]
    used |= {op.number for op in _computing(frame, computed)}
    others = [_name(op) for op in body.ops if op.kind not in ("dot", "load", "view") and op.number not in used]
    if len(dots) != len(loop.results) or others:
        raise Refusal(
            f"a loop over K with one dot of two loads per accumulator is implemented, not with {', '.join(others) or 'more'}"
        )
    if not adds[at]:
        raise Refusal("a dot that adds to the loop-carried accumulator is implemented")
    dot = adds[at][0]
    _check_dot(frame, dot)
    return dot


def _check_dot(frame: Frame, dot: Op) -> None:
    attrs = dot.attributes(DotAttrs)
    if attrs.scaled is not None or attrs.single:
        raise Refusal("a dot that adds to the loop-carried accumulator is implemented")
    if common_dtype(frame, dot) == torch.float32 and attrs.precision != "tf32":
        raise Refusal(f"matmuls of float32 in {attrs.precision} precision are not implemented; in tf32 they are")
    if dot.results[0].dtype == torch.int32 and common_dtype(frame, dot) == torch.int8:
        return
    if dot.results[0].dtype != torch.float32:
        raise Refusal(f"accumulators in float32 are implemented, not in {dtype_name(dot.results[0].dtype)}")


def _check_zero(frame: Frame, loop: Op, at: int) -> None:
    if not starts_from_zero(frame, loop.operands[at]):
        raise Refusal("accumulators that start from zero are implemented")


def _added(frame: Frame, body: Region, at: int) -> tuple[Op, ...]:
    """Return the ops that add to carried value number `at`: a dot, and its separate add, if any; else nothing."""
    param, made = body.params[at], frame.maker(body.results[at])
    if made is not None and made.kind == "dot" and len(made.operands) == 3 and made.operands[2] is param:
        return (made,)
    terms = made.operands if made is not None and made.attrs == PointwiseAttrs("add") else ()
    if made is not None and len(terms) == 2 and any(term is param for term in terms):
        term = frame.maker(terms[1] if terms[0] is param else terms[0])
        if term is not None and term.kind == "dot" and len(term.operands) == 2:
            return term, made
    return ()


def _rounded_term(frame: Frame, body: Region) -> str | None:
    """Return the type that the one dot of a loop is rounded to before it is added to the carried value; None if it is not.

    Raises ``Refusal`` for a type that is not implemented.
    """
    made = frame.maker(body.results[0])
    terms = made.operands if made is not None and made.attrs == PointwiseAttrs("add") else ()
    if len(terms) != 2 or not any(term is body.params[0] for term in terms):
        return None
    term, types = terms[1] if terms[0] is body.params[0] else terms[0], set[torch.dtype]()
    product = frame.maker(term)
    while product is not None and product.attrs == PointwiseAttrs("cast"):
        types.add(product.result.dtype)
        product = frame.maker(product.operands[0])
    narrow = types - {torch.float32}
    if product is None or product.kind != "dot" or not narrow:
        return None
    if len(narrow) > 1 or not narrow <= {*ROUNDED} or product.result.dtype != torch.float32:
        raise Refusal(
            f"a matmul of each tile that is rounded to {' and '.join(sorted(map(dtype_name, narrow)))} before it is added is not"
            " implemented; hl.dot(a, b, acc=acc) and torch.addmm(acc, a, b) add it as it is"
        )
    return dtype_name(narrow.pop())


def _computing(frame: Frame, values: Sequence[Operand]) -> Iterator[Op]:
    """Yield the ops that values are computed by."""
    waiting = [*values]
    while waiting:
        op = frame.maker(waiting.pop())
        if op is not None and not op.regions:
            yield op
            waiting += op.operands


def _name(op: Op) -> str:
    return op.attrs.name if isinstance(op.attrs, PointwiseAttrs) else op.kind


# Memory -----------------------------------------------------------------------------------------------------------------------


def _pairs(frame: Frame, dots: Sequence[Op], along_k: frozenset[str]) -> list[tuple[Multiplied, Multiplied]]:
    """Return A and B of each dot. All B have the major mode of the first, for which others are copied."""
    pairs = [_operands(frame, dot) for dot in dots]
    if len({right.major for _, right in pairs}) > 1:
        along_k |= {"b"}
    turned = [{side for side, each in zip("ab", pair, strict=True) if each.major != "k"} & along_k for pair in pairs]
    return [
        _operands(frame, dot, copies) if copies else pair for dot, pair, copies in zip(dots, pairs, turned, strict=True)
    ]


def _operands(frame: Frame, dot: Op, copies: Collection[str] = ()) -> tuple[Multiplied, Multiplied]:
    """Return A and B: if the dot computes D transposed, its second operand is A. ``copies`` are those that TMA does not
    load."""
    left, right = dot.operands[:2]
    dtype = common_dtype(frame, dot)
    a, b = (left, (frame.m, frame.k)), (right, (frame.k, frame.n))
    if _is_swapped(frame, dot):
        a, b = (right, (frame.k, frame.m)), (left, (frame.n, frame.k))
    return multiplied(frame, *a, dtype, "a" in copies), multiplied(frame, *b, dtype, "b" in copies)


def _is_swapped(frame: Frame, dot: Op) -> bool:
    return [frame.block(dim) for dim in dot.results[0].dims] == [frame.n, frame.m]


def _stores(program: Program, bodies: Sequence[Region]) -> list[Op]:
    effects = [op for op in program.walk() if OPS[op.kind].stays]
    known = {op.number for body in bodies for op in body.ops if op.kind in ("store", "atomic")}
    if not effects or any(op.number not in known for op in effects):
        raise Refusal("stores and atomic additions after the loop over K are implemented, and no other effect")
    for op in effects:
        check_atomic(op, program)
    return effects


def check_atomic(op: Op, program: Program) -> None:
    """Check that an atomic is an addition as TMA makes it, of relaxed order and without a result. Raises ``Refusal``."""
    if op.kind != "atomic":
        return
    attrs, tensor = op.attributes(MemoryAttrs), program.tensors[op.attrs.tensor]
    read = any(value is op.result for other in program.walk() for value in other.reads())
    if attrs.atomic != "add" or attrs.sem != "relaxed" or attrs.scope != "gpu" or read:
        raise Refusal(
            f"an atomic {attrs.atomic} to {tensor.name} in {attrs.sem} order, for {attrs.scope}, is not implemented;"
            " relaxed additions whose result is not read are"
        )


def _oriented(frame: Frame, stores: Sequence[Op]) -> Frame:
    """Make N the contiguous dimension of the output, for any order of the grid and of the output's dimensions."""
    matrix = next((each for each in stores if len(blocks_of(frame, each)) == 2 and not pairs_of(frame, each)), None)
    first = (frame.m, frame.n) if matrix is None else blocks_of(frame, matrix)
    first = first[::-1] if matrix is None and frame.m in frame.same.values() else first
    if matrix is not None and set(first) == {frame.m, frame.n}:
        strides = place_of(frame, matrix).strides
        first = first[::-1] if equal(strides[0], 1) and not equal(strides[1], 1) else first
    if set(first) != {frame.m, frame.n}:
        raise Refusal(f"{frame.tensor(stores[0]).name} is not tiled by the grid")
    if frame.whole_rows or first == (frame.m, frame.n):
        return frame
    return replace(frame, m=first[0], n=first[1])


def _argument(program: Program, number: Number) -> str | None:
    """Return the name of a number that the arguments have; None for others."""
    known = isinstance(number, Expr) and number.op == "host" and number.args[0] in program.host.symbols
    return number.args[0] if isinstance(number, Expr) and known else None


# The whole -----------------------------------------------------------------------------------------------------------------


def _product(
    frame: Frame, a: Multiplied, b: Multiplied, chain: ProductChain, scaled: Scaled, sources: Sequence[int]
) -> Product:
    operands = tuple(source for _, source in chain.loads.values())
    outputs = tuple(output.place.tensor.id for output in chain.outputs)
    second = (source for operand, source in chain.loads.values() if operand.kind == "product")
    # every tile reads these while others write
    everywhere = (a.tensor.id, b.tensor.id, *second, *scaled.tensors, *sources)
    read = [each for each in (*everywhere, *operands) if isinstance(each, int)]
    check_memory(frame, read, outputs, chain.updated().difference(everywhere))
    sizes = {f"size_{side}": frame.extent(getattr(frame, side)) for side in "mnk"}
    if frame.whole_rows:
        sizes["size_n"] = frame.columns
    numbers: dict[str, Number] = {**sizes, "pitch_a": a.pitch, "pitch_b": b.pitch, **chain.runtime}
    runtime = tuple((name, number) for name, number in numbers.items() if isinstance(number, Expr))
    problem = GemmProblem(
        m=max(1, example(sizes["size_m"])),
        n=example(sizes["size_n"]),
        k=example(sizes["size_k"]),
        operand_dtype=dtype_name(a.dtype),
        output_dtype=dtype_name(chain.outputs[0].place.tensor.dtype),
        a_pitch=example(a.pitch, EXAMPLE_MULTIPLE),
        b_pitch=example(b.pitch, EXAMPLE_MULTIPLE),
        d_pitch=chain.outputs[0].pitch,
        a_major=a.major,
        b_major=b.major,
        epilogue=chain.epilogue(),
        scales=scaled.scales,
        rounded=scaled.rounded,
        runtime=tuple(name for name, _ in runtime),
        names=(a.tensor.name, b.tensor.name, chain.outputs[0].place.tensor.name),
    )
    if counts_rows(problem) and _argument(frame.program, sizes["size_m"]) is None:
        raise Refusal(f"{sizes['size_m']!r} rows in memory, a number that the host computes; use hl.specialize")
    return Product(
        problem=with_most_rows(problem),
        exact=tuple(chain.exact.items()),
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
        fixed={
            block.id: block.size
            for block in frame.program.blocks
            if isinstance(block.size, int) and not (frame.by_tiles and block.id in frame.column_blocks)
        },
    )


def _second_pitch(first: Multiplied, second: Multiplied) -> Number:
    """Return the pitch of another matmul's B, which needs the type and major mode of the first one's."""
    if (second.dtype, second.major) != (first.dtype, first.major):
        raise Refusal(f"{second.tensor.name} and {first.tensor.name} differ in type or in what is contiguous")
    return second.pitch
