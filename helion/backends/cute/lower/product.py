"""``product_of``: a program that is one matrix product with a pointwise epilogue, as a ``GemmProblem``.

Everything else is refused by name, and so is everything that the kernel would compute differently from eager torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ...._compiler.ir.grammar import (
    DotAttrs,
    ForAttrs,
    HostTensor,
    LoopAxis,
    MemoryAttrs,
    Op,
    Operand,
    PointwiseAttrs,
    Program,
    Region,
    Value,
    ViewAttrs,
)
from ...._compiler.ir.ops import OPS
from ...._shapes import Dim, dtype_name
from ..plan.epilogue import ARITY, Constant, Epilogue, EpilogueOperand, Instruction, OperandKind, constant
from ..plan.records import GemmProblem, Major
from ..plan.refusal import Refusal

ROUNDED = {torch.bfloat16: "round_bfloat16", torch.float16: "round_float16"}
"""Types that eager rounds every result to; arithmetic itself is in fp32."""
EXACT_INTEGERS = 2**24
"""Integers up to here are what they are in fp32."""


@dataclass(frozen=True, kw_only=True)
class Product:
    """``a``, ``b``, ``d`` and ``operands`` are ids of host tensors, ``blocks`` those of the tiles of M, N and K."""

    problem: GemmProblem
    a: int
    b: int
    d: int
    operands: tuple[int, ...]
    blocks: tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class _Frame:
    """The loops of the program, and which op gives each value."""

    program: Program
    makers: Mapping[int, Op]
    m: int
    n: int
    k: int

    def maker(self, value: Operand) -> Op | None:
        return self.makers.get(value.number) if isinstance(value, Value) else None

    def tensor(self, op: Op) -> HostTensor:
        return self.program.tensors[op.attrs.tensor]

    def extent(self, block: int) -> int:
        return _integer(self.program.blocks[block].extent, "an extent")


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
    frame = _Frame(
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
    epilogue = _Chain(frame, loop.results[0])
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


def _dot(frame: _Frame, loop: Op, at: int) -> Op:
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


# Memory ------------------------------------------------------------------------------------------------------------------


def _blocks(op: Op) -> tuple[int, ...]:
    """Which block walks over each dimension of the tensor that `op` addresses."""
    attrs = op.attrs
    assert isinstance(attrs, MemoryAttrs)
    plain = all(
        i.kind == "block" and isinstance(i.shift, int) and i.shift == 0 and i.operand is None for i in attrs.indices
    )
    if not plain or attrs.mask is not None:
        raise Refusal("loads and stores of whole tiles, without offsets and masks, are implemented")
    return tuple(index.block for index in attrs.indices if index.block is not None)


def _shape(frame: _Frame, op: Op, blocks: Sequence[int]) -> HostTensor:
    """The tensor of `op`, whose extents are those of the loops over it."""
    tensor = frame.tensor(op)
    wanted = tuple(frame.extent(block) for block in blocks)
    if not all(isinstance(number, int) for number in (*tensor.shape, *tensor.strides)):
        raise Refusal(f"{tensor.name} has a shape that is known only at run time")
    if tensor.shape != wanted:
        raise Refusal(f"{tensor.name} is {tuple(tensor.shape)}, of which tiles cover {wanted}")
    if not tensor.aligned:
        raise Refusal(f"{tensor.name} may begin at an address that is no multiple of 16 bytes")
    return tensor


def _operand(frame: _Frame, value: Operand, wanted: tuple[int, int]) -> tuple[HostTensor, tuple[int, ...]]:
    """The tensor that an operand of the dot is loaded from, and the blocks over its dimensions."""
    op = frame.maker(value)
    if op is not None and op.kind == "view" and op.attrs == ViewAttrs("permute", (1, 0)):
        op, wanted = frame.maker(op.operands[0]), (wanted[1], wanted[0])
    if op is None or op.kind != "load":
        raise Refusal("operands of the dot that are loaded as they are are implemented")
    blocks = _blocks(op)
    if blocks != wanted:
        raise Refusal(f"{frame.tensor(op).name} is not tiled by the dimensions of the dot")
    return _shape(frame, op, blocks), blocks


def _store(frame: _Frame, body: Region) -> Op:
    effects = [op for op in frame.program.walk() if OPS[op.kind].stays]
    if len(effects) != 1 or effects[0].kind != "store" or effects[0] not in body.ops:
        raise Refusal("one store behind the loop over K is implemented, and no other effect")
    store = effects[0]
    if set(_blocks(store)) != {frame.m, frame.n} or len(_blocks(store)) != 2:
        raise Refusal(f"{frame.tensor(store).name} is not tiled by the grid")
    return store


def _oriented(frame: _Frame, store: Op) -> _Frame:
    """M is the first dimension of the output, whatever the order of the grid."""
    m, n = _blocks(store)
    return _Frame(program=frame.program, makers=frame.makers, m=m, n=n, k=frame.k)


def _integer(number: object, what: str) -> int:
    if not isinstance(number, int):
        raise Refusal(f"{what} is known only at run time")
    return number


# The epilogue --------------------------------------------------------------------------------------------------------------


def _unrounded(frame: _Frame, store: Op) -> Operand:
    """What is stored, before a cast to the type that storing rounds to anyway."""
    value = store.operands[0]
    maker = frame.maker(value)
    casts = maker is not None and maker.kind == "pointwise" and maker.attrs == PointwiseAttrs("cast")
    if maker is not None and casts and maker.results[0].dtype == frame.tensor(store).dtype:
        return maker.operands[0]
    return value


class _Chain:
    """Walks from the stored value back to the sums, and numbers what it meets as ``Epilogue`` does.

    Operands come first there, so instructions refer to them by name until ``finish``.
    """

    def __init__(self, frame: _Frame, sums: Value) -> None:
        self.frame = frame
        self.known: dict[int, object] = {sums.number: "sums"}
        self.loads: dict[str, tuple[EpilogueOperand, int]] = {}
        self.steps: list[tuple[str, tuple[object, ...]]] = []
        self.instructions: tuple[Instruction, ...] = ()

    def add_product(self, sums: Value, tensor: HostTensor, pitch: int) -> None:
        """The sums of a second product are read like an operand."""
        name = _name_of(tensor)
        operand = EpilogueOperand(name=name, kind="product", dtype=dtype_name(tensor.dtype), pitch=pitch)
        self.known[sums.number] = name
        self.loads[name] = (operand, tensor.id)

    def read(self, value: Operand) -> object:
        """A number, the name of an operand, or the position of an instruction."""
        if not isinstance(value, Value):
            return _constant(value)
        if value.number not in self.known:
            self._check_dims(value)
            self.known[value.number] = self._made(value)
        return self.known[value.number]

    def _made(self, value: Value) -> object:
        op = self.frame.maker(value)
        if op is None:
            raise Refusal("the epilogue reads a value of the loop over K")
        if op.kind == "load":
            return self._load(op)
        if op.kind == "view" and isinstance(op.attrs, ViewAttrs) and op.attrs.name != "permute":
            return self.read(op.operands[0])
        if op.kind == "full":
            return _constant(op.operands[0])
        if op.kind == "pointwise":
            return self._pointwise(op, value.dtype)
        raise Refusal(f"{op.kind} in an epilogue is not implemented")

    def _check_dims(self, value: Value) -> None:
        """Values may lack a dimension of the tile, but none is transposed or merged."""
        allowed = {2: ({self.frame.m, None}, {self.frame.n, None}), 1: ({self.frame.m, self.frame.n, None},), 0: ()}
        dims = allowed.get(len(value.dims))
        if dims is None or not all(_block(dim) in known for dim, known in zip(value.dims, dims, strict=True)):
            raise Refusal("values of an epilogue have the dimensions of the output's tile, or some of them")

    def _load(self, op: Op) -> str:
        tensor, (kind, pitch) = self.frame.tensor(op), _kind(self.frame, op)
        name = _name_of(tensor)
        if name in self.loads and self.loads[name][0].kind == "product":
            raise Refusal(f"{tensor.name} is multiplied, and read by the epilogue as well")
        operand = EpilogueOperand(name=name, kind=kind, dtype=dtype_name(tensor.dtype), pitch=pitch)
        self.loads[name] = (operand, tensor.id)
        return name

    def _pointwise(self, op: Op, dtype: torch.dtype) -> object:
        assert isinstance(op.attrs, PointwiseAttrs)
        name = op.attrs.name
        if dtype != torch.float32 and dtype not in ROUNDED:
            raise Refusal(f"{name} of {dtype_name(dtype)} in an epilogue is not implemented")
        _check_ranks(op, self.frame)
        arguments = tuple(self.read(operand) for operand in op.operands)
        if name == "cast":
            source = op.operands[0]
            same = isinstance(source, Value) and (source.dtype == dtype or dtype == torch.float32)
            return arguments[0] if same else self._step(ROUNDED[dtype], arguments)
        tanh_of = self._tanh_plus_one(name, arguments)
        if tanh_of is not None and dtype == torch.float32:
            return self._step("one_plus_tanh", (tanh_of,))
        if name not in ARITY or name.startswith("round_"):
            raise Refusal(f"{name} in an epilogue is not implemented")
        result = self._step(name, arguments)
        return result if dtype == torch.float32 else self._step(ROUNDED[dtype], (result,))

    def _tanh_plus_one(self, name: str, arguments: tuple[object, ...]) -> object | None:
        """The argument of a tanh that 1 is added to: twice a logistic function, which does not cancel and is shorter."""
        rest = [argument for argument in arguments if argument != constant(1.0)]
        if name == "add" and len(rest) == 1 and isinstance(rest[0], int) and self.steps[rest[0]][0] == "tanh":
            return self.steps[rest[0]][1][0]
        return None

    def _step(self, name: str, arguments: tuple[object, ...]) -> int:
        self.steps.append((name, arguments))
        return len(self.steps) - 1

    def finish(self, result: object) -> None:
        """Numbers operands and the instructions that `result` needs; it has to depend on the sums."""
        if result != "sums" and not any("sums" in arguments for _, arguments in self.steps):
            raise Refusal("what is stored does not come from the product")
        names: dict[object, int] = {"sums": 0}
        names |= {name: number for number, name in enumerate(self.loads, start=1)}
        instructions: list[Instruction] = []
        for position in self._needed(result):
            op, arguments = self.steps[position]
            numbers = tuple(x if isinstance(x, Constant) else names[x] for x in arguments)
            names[position] = 1 + len(self.loads) + len(instructions)
            instructions.append(Instruction(op, numbers))
        self.instructions = tuple(instructions)

    def _needed(self, result: object) -> list[int]:
        needed: set[int] = set()
        waiting = [result]
        while waiting:
            position = waiting.pop()
            if isinstance(position, int) and position not in needed:
                needed.add(position)
                waiting += self.steps[position][1]
        return sorted(needed)

    @property
    def epilogue(self) -> Epilogue:
        operands = tuple(operand for operand, _ in self.loads.values())
        return Epilogue(operands=operands, instructions=self.instructions)


def _name_of(tensor: HostTensor) -> str:
    return f"{tensor.name}_{tensor.id}" if tensor.name.isidentifier() else f"operand_{tensor.id}"


def _block(dim: Dim) -> int | None:
    if dim.is_one:
        return None
    return -1 if dim.block is None else dim.block


def _check_ranks(op: Op, frame: _Frame) -> None:
    """A vector along M would be taken for one along N where the other operand has both dimensions."""
    values = [operand for operand in op.operands if isinstance(operand, Value)]
    along_m = any(len(value.dims) == 1 and _block(value.dims[0]) == frame.m for value in values)
    if along_m and any(len(value.dims) != 1 for value in values):
        raise Refusal("a vector along M without its second dimension")


def _constant(value: object) -> Constant:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Refusal("numbers of an epilogue that are known only at run time, or truth values, are not implemented")
    if isinstance(value, int) and abs(value) > EXACT_INTEGERS:
        raise Refusal(f"{value} has no exact value in float32")
    return constant(value)


def _kind(frame: _Frame, op: Op) -> tuple[OperandKind, int]:
    """The kind of an operand and its pitch. A stride of 0 is looked for before an exact operand: an expanded vector is read as the vector that it is."""
    blocks = _blocks(op)
    tensor = _shape(frame, op, blocks)
    step = max((_integer(stride, "a stride") for stride in tensor.strides), default=0)
    if blocks == (frame.n,) and step:
        return "row", step
    if blocks == (frame.m,) and step:
        return "column", step
    if blocks == (frame.m, frame.n):
        if tensor.strides[0] == 0 and step:
            return "row", step
        if tensor.strides[1] == 0 and step:
            return "column", step
        if tensor.strides[1] == 1:
            return "exact", _integer(tensor.strides[0], "a stride")
    raise Refusal(f"{tensor.name} with strides {tuple(tensor.strides)} is no matrix, row or column of the epilogue")


# The whole -----------------------------------------------------------------------------------------------------------------


def _product(
    frame: _Frame,
    a: tuple[HostTensor, tuple[int, ...]],
    b: tuple[HostTensor, tuple[int, ...]],
    store: Op,
    chain: _Chain,
) -> Product:
    d = _shape(frame, store, (frame.m, frame.n))
    if d.strides[1] != 1:
        raise Refusal(f"{d.name} has a stride of {d.strides[1]} along N; contiguous rows are implemented")
    operands = tuple(tensor for _, tensor in chain.loads.values())
    for tensor in (a[0].id, b[0].id, *operands):
        if frame.program.tensors[tensor].storage == d.storage:
            raise Refusal(f"{frame.program.tensors[tensor].name} shares memory with the output {d.name}")
    if a[0].dtype != b[0].dtype:
        raise Refusal(f"a product of {dtype_name(a[0].dtype)} and {dtype_name(b[0].dtype)} is not implemented")
    a_major, a_pitch = _major(frame, *a)
    b_major, b_pitch = _major(frame, *b)
    problem = GemmProblem(
        m=frame.extent(frame.m),
        n=frame.extent(frame.n),
        k=frame.extent(frame.k),
        operand_dtype=dtype_name(a[0].dtype),
        output_dtype=dtype_name(d.dtype),
        a_pitch=a_pitch,
        b_pitch=b_pitch,
        d_pitch=_integer(d.strides[0], "a stride"),
        a_major=a_major,
        b_major=b_major,
        epilogue=chain.epilogue,
    )
    return Product(problem=problem, a=a[0].id, b=b[0].id, d=d.id, operands=operands, blocks=(frame.m, frame.n, frame.k))


def _second_pitch(
    frame: _Frame, first: tuple[HostTensor, tuple[int, ...]], second: tuple[HostTensor, tuple[int, ...]]
) -> int:
    """Of the second product's B, which lies like the first one's."""
    (tensor, _), (other, _) = first, second
    major, pitch = _major(frame, *second)
    if tensor.dtype != other.dtype or major != _major(frame, *first)[0]:
        raise Refusal(f"{tensor.name} and {other.name} differ in type or in what is contiguous")
    return pitch


def _major(frame: _Frame, tensor: HostTensor, blocks: tuple[int, ...]) -> tuple[Major, int]:
    """Which dimension is contiguous, and the stride of the other; K where both strides are 1."""
    along_k = blocks.index(frame.k)
    k_stride, other = (_integer(tensor.strides[at], "a stride") for at in (along_k, 1 - along_k))
    if k_stride == 1:
        return "k", other
    if other == 1:
        return "mn", k_stride
    raise Refusal(f"{tensor.name} has strides {tuple(tensor.strides)}, of which none is 1")
