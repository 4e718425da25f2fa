"""``rows_of``: turn a program that reads, reduces and maps whole rows into a ``RowProblem``.

Rows are a whole dimension (``x[tile, :]``), or loops over tiles of columns whose result is that of all columns at once.
A second load of an element is the value that the first one has read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ....._compiler.ir.grammar import ForAttrs, Op, Program, Region, Root
from ....._compiler.ir.ops import OPS
from ....._shapes import Expr, dtype_name
from ...plan.build import MAX_EXTENT
from ...plan.dtypes import COLUMN_DTYPES, COLUMN_OUTPUT_DTYPES, EPILOGUE_DTYPES, OUTPUT_DTYPES
from ...plan.epilogue import COLUMN_NUMBER, MAX_NUMBERED, ROW_NUMBER, Epilogue, EpilogueOutput
from ...plan.refusal import Refusal
from ...plan.rowwise.records import RowProblem
from ..chain import Chain, Written
from ..frame import Frame, blocks_of
from ..names import name_of
from ..numbers import equal, example, size
from ..product import check_axis, check_memory
from ..stored import stores_after_loop
from ..tiled import TiledRows


@dataclass(frozen=True, kw_only=True)
class RowKernel:
    """A row kernel of a program. ``outputs`` and ``operands`` are ids of host tensors; scalar operands are host
    expressions. ``rows`` is the block of the grid, ``columns`` are those that iterate over columns."""

    problem: RowProblem
    outputs: tuple[int, ...]
    operands: tuple[int | Expr, ...]
    runtime: tuple[tuple[str, Expr], ...]
    rows: int
    columns: tuple[int, ...]
    is_empty: bool = False
    one_tile: bool = False
    """True if a tile of columns has to cover all of them."""

    @property
    def arguments(self) -> tuple[int | Expr, ...]:
        """Arguments of a launch, in order."""
        return (*self.outputs, *self.operands, *(number for _, number in self.runtime))


class RowChain(Chain):
    """A trace from stored values back to loads: rows of inputs are operands like any other."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.known = {}
        self.loads = {}
        self.steps = []
        self.numbers = {}
        self.outputs = []
        self.read_from = []
        self.runtime = {}
        self.tiles = None

    def epilogue(self) -> Epilogue:
        """Return the program with all outputs named."""
        found = super().epilogue()
        if found.outputs:
            return found
        (output,) = self.outputs
        return replace(found, outputs=(_named(output, found.last),))

    def _has_sums(self, value: object) -> bool:
        """Return True: a stored value may depend on any input."""
        return True


def _named(output: Written, value: int) -> EpilogueOutput:
    tensor = output.place.tensor
    return EpilogueOutput(
        name=name_of(tensor),
        value=value,
        kind="exact" if output.kind == "exact" else "column",
        dtype=dtype_name(tensor.dtype),
        pitch=output.pitch,
    )


class RowTiles(TiledRows):
    """A reader of loops over tiles of columns, without a matmul."""

    def __init__(self, root: Root, frame: Frame, chain: Chain, first: Op) -> None:
        super().__init__(root, frame, chain, first, lambda loop: False)

    def _product(self, loop: Op) -> None:
        raise Refusal("loops within loops over tiles of columns are not implemented")


def rows_of(program: Program) -> RowKernel:
    """Return the row kernel that `program` computes. Raises ``Refusal``."""
    if len(program.roots) != 1 or len(program.roots[0].axes) != 1:
        raise Refusal("row kernels over one grid of tiles of rows are implemented")
    root = program.roots[0]
    check_axis(root.axes[0], program)
    loops = [op for op in root.body.ops if op.kind == "for"]
    _check_effects(program, [root.body, *(loop.regions[0] for loop in loops)])
    frame = _frame(program, root, loops)
    chain = RowChain(frame)
    tiled = RowTiles(root, frame, chain, loops[0]) if loops else None
    stores = tiled.stores() if tiled else stores_after_loop(root.body, frame, chain)
    for store in sorted(stores, key=lambda store: len(blocks_of(frame, store)), reverse=True):
        chain.store(store)
    return replace(_kernel(frame, chain), one_tile=tiled is not None and tiled.one_tile)


def _check_effects(program: Program, bodies: list[Region]) -> None:
    others = [op.kind for body in bodies for op in body.ops if op.regions and op.kind != "for"]
    if others:
        raise Refusal(f"{others[0]} in a row kernel is not implemented")
    known = {op.number for body in bodies for op in body.ops if op.kind == "store"}
    for op in program.walk():
        if OPS[op.kind].stays and op.number not in known:
            raise Refusal(f"{op.kind} in a row kernel is not implemented")


def _frame(program: Program, root: Root, loops: list[Op]) -> Frame:
    """Find the dimension of columns: every loop, and every whole dimension, covers all of it."""
    rows = root.axes[0].block
    columns = []
    for loop in loops:
        axes = loop.attributes(ForAttrs).axes
        if len(axes) != 1:
            raise Refusal("loops over tiles of columns, and over nothing else, are implemented")
        check_axis(axes[0], program)
        columns.append(axes[0].block)
    used = {dim.block for op in program.walk() for value in op.results for dim in value.dims}
    columns += [block.id for block in program.blocks if block.kind == "full" and block.id in used]
    if not columns:
        raise Refusal("the kernel has no dimension of columns besides its grid")
    first, *others = columns
    extent = size(program.blocks[first].extent)
    for other in others:
        if not equal(size(program.blocks[other].extent), extent):
            raise Refusal(f"the kernel has rows of {extent} and of {program.blocks[other].extent} columns")
    makers = {result.number: op for op in program.walk() for result in op.results}
    return Frame(
        program=program,
        makers=makers,
        m=rows,
        n=first,
        k=-1,
        whole_rows=True,
        by_tiles=bool(loops),
        same={other: first for other in others},
    )


def _kernel(frame: Frame, chain: RowChain) -> RowKernel:
    rows = frame.extent(frame.m)
    if chain.runtime:
        raise Refusal(f"strides of rows that are known only at launch are not implemented: {', '.join(chain.runtime)}")
    epilogue = chain.epilogue()
    outputs = tuple(output.place.tensor.id for output in chain.outputs)
    operands = tuple(source for _, source in chain.loads.values())
    read = [each for each in operands if isinstance(each, int)]
    check_memory(frame, read, outputs, chain.updated())
    problem = RowProblem(
        m=max(1, example(rows)),
        n=frame.columns,
        epilogue=epilogue,
        runtime=("size_m",) if isinstance(rows, Expr) else (),
    )
    _check(problem)
    return RowKernel(
        problem=problem,
        outputs=outputs,
        operands=operands,
        runtime=(("size_m", rows),) if isinstance(rows, Expr) else (),
        rows=frame.m,
        columns=frame.column_blocks,
        is_empty=equal(rows, 0),
    )


def _check(problem: RowProblem) -> None:
    """Check types, extents and reductions. Raises ``Refusal``."""
    problem.epilogue.check()
    if not 0 < problem.n <= MAX_EXTENT or problem.m > MAX_EXTENT:
        raise Refusal(f"{problem.m} rows of {problem.n} columns; extents of 1 to {MAX_EXTENT} are implemented")
    if not problem.inputs:
        raise Refusal("the kernel reads no tensor of rows")
    if not problem.epilogue.reduces_rows:
        raise Refusal("the kernel reduces no row")
    for what, op, extent in (("rows", ROW_NUMBER, problem.m), ("columns", COLUMN_NUMBER, problem.n)):
        if extent > MAX_NUMBERED and problem.epilogue.numbers(op):
            raise Refusal(f"indices of {extent} {what}; up to {MAX_NUMBERED} are exact in float32")
    for operand in problem.epilogue.operands:
        known = COLUMN_DTYPES if operand.kind == "column" else EPILOGUE_DTYPES
        if operand.dtype not in known:
            raise Refusal(f"{operand.name} is of {operand.dtype}; {', '.join(known)} are implemented")
    for output in problem.outputs:
        known = OUTPUT_DTYPES if output.kind == "exact" else COLUMN_OUTPUT_DTYPES
        if output.dtype not in known:
            raise Refusal(f"output {output.name} is of {output.dtype}; {', '.join(known)} are implemented")
