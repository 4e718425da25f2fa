"""From a stored value back to the sums: the epilogue of a product, one instruction per op."""

from __future__ import annotations

import torch

from ...._compiler.ir.grammar import HostTensor, Op, Operand, PointwiseAttrs, Value, ViewAttrs
from ...._shapes import Dim, dtype_name
from ..plan.epilogue import ARITY, Constant, Epilogue, EpilogueOperand, Instruction, constant
from ..plan.refusal import Refusal
from .frame import Frame, kind_of

ROUNDED = {torch.bfloat16: "round_bfloat16", torch.float16: "round_float16"}
"""Types that eager rounds every result to; arithmetic itself is in fp32."""
EXACT_INTEGERS = 2**24
"""Integers up to here are what they are in fp32."""


class Chain:
    """Walks from the stored value back to the sums, and numbers what it meets as ``Epilogue`` does.

    Operands come first there, so instructions refer to them by name until ``finish``.
    """

    def __init__(self, frame: Frame, sums: Value) -> None:
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
        tensor, (kind, pitch) = self.frame.tensor(op), kind_of(self.frame, op)
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


def _check_ranks(op: Op, frame: Frame) -> None:
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
