"""Values that a program stores and reads again, rounded to the type of the tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from ...._compiler.ir.grammar import Op, Region, Value
from ...._shapes import dtype_name
from ..plan.refusal import Refusal
from .chain import ROUNDED, Chain
from .frame import Frame, blocks_of


class Stored:
    """The last store to each tensor, by its id."""

    def __init__(self, frame: Frame, chain: Chain) -> None:
        self.frame = frame
        self.chain = chain
        self.stores: dict[int, Op] = {}

    def keep(self, stores: Iterable[Op]) -> None:
        for store in stores:
            tensor = store.attrs.tensor
            before = self.stores.pop(tensor, store)
            if before is not store and "atomic" in (before.kind, store.kind):
                raise Refusal(f"{self.frame.tensor(store).name} is added to, and stored to as well")
            if blocks_of(self.frame, before) != blocks_of(self.frame, store):
                raise Refusal(f"{self.frame.tensor(store).name} is stored in two ways")
            self.stores[tensor] = store

    def read_back(self, load: Op) -> None:
        """Read the value that ``load`` returns, of a tensor that was stored to."""
        tensor, store = self.frame.tensor(load), self.stores[load.attrs.tensor]
        if store.kind == "atomic":
            raise Refusal(f"{tensor.name} is read after it was added to")
        if blocks_of(self.frame, load) != blocks_of(self.frame, store):
            raise Refusal(f"{tensor.name} is read with other indices than it was stored")
        if tensor.dtype != torch.float32 and tensor.dtype not in ROUNDED:
            raise Refusal(f"{tensor.name} is stored as {dtype_name(tensor.dtype)} and read back")
        value = store.operands[0]
        known = self.chain.read(value)
        if not isinstance(value, Value) or value.dtype != tensor.dtype:
            known = self.chain.rounded(known, tensor.dtype)
        self.chain.known[load.result.number] = known


def stores_after_loop(body: Region, frame: Frame, chain: Chain) -> list[Op]:
    """Return the final stores of a program that stores, and may read that again, after its loop over K."""
    stored = Stored(frame, chain)
    for op in body.ops:
        if op.kind in ("store", "atomic"):
            stored.keep([op])
        elif op.kind == "load" and op.attrs.tensor in stored.stores:
            stored.read_back(op)
    return list(stored.stores.values())


def check_memory(frame: Frame, read: Sequence[int], written: Sequence[int], updated: frozenset[int]) -> None:
    """Check that inputs and outputs share no memory: tiles are written while others are still read, in any order.

    Outputs that are ``updated`` may be read, because each program reads only the elements that it writes.
    """
    tensors = frame.program.tensors
    for at, output in enumerate(written):
        for other in (*(each for each in read if each != output or each not in updated), *written[:at]):
            if tensors[other].storage == tensors[output].storage:
                raise Refusal(f"{tensors[other].name} shares memory with the output {tensors[output].name}")
