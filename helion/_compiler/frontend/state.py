"""State of one trace: blocks and sizes, tensors, symbols, and what the program will depend on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ... import exc
from ..._shapes import ONE, Dim, Dims, Expr, Number, is_power_of_2, number_key, shared_memory
from ...fields import Fragment
from ..context import CompileContext
from ..ir.build import Builder, Mark
from ..ir.grammar import Block, BlockKind, Check, HostTensor, TileAttrs, Value
from ..source import Place
from . import journal
from .guards import Guard, guard
from .journal import Snapshot
from .values import DeviceValue, HostTensorValue, Recorder, Tile, describe

Origin = tuple[Any, ...]


@dataclass(frozen=True)
class Symbol:
    """A run-time number of the arguments: ``source`` is the host expression, ``origin`` the path ``("arg", position,
    step ...)`` that leads to it, where a step is an index, a key, an attribute name or a method with its arguments, as in
    ``("size", dim)``."""

    name: str
    source: str
    origin: Origin

    @property
    def is_size(self) -> bool:
        """Whether it is the size of a dimension that is neither 0 nor 1."""
        step = self.origin[-1] if self.origin else None
        return isinstance(step, tuple) and step[0] == "size"


@dataclass(frozen=True)
class Affine:
    """An integer value that is the indices of ``block`` plus ``shift`` plus the scalar ``operand``."""

    block: Block
    shift: Number = 0
    operand: DeviceValue | None = None


@dataclass(frozen=True)
class TraceSnapshot:
    """A trace as it was: its own attributes, its builder, and those of the host tensors it had made."""

    own: Snapshot
    builder: Mark
    host_tensors: tuple[tuple[HostTensorValue, Snapshot], ...]


class TraceState(Recorder):
    """What a trace has collected: blocks, tensors, symbols, guards. ``snapshot`` and ``restore`` cover every attribute;
    collections hold what is not changed in place, host tensors apart."""

    def __init__(self, context: CompileContext, rules: dict[Any, Any]) -> None:
        self.context = context
        self.builder = Builder()
        self.blocks: list[Block] = []
        self.tensors: list[HostTensor] = []
        #: The abstract host tensors that were made.
        self.host_tensors: list[HostTensorValue] = []
        self.used_tensors: list[HostTensorValue] = []
        #: The first of them that the launch being recorded passes; a variable may hold another tensor in the next one.
        self.first_tensor = 0
        self.active_blocks: dict[int, Tile | None] = {}
        self.specialized: dict[str, Any] = {}
        self.symbols: dict[str, Symbol] = {}
        #: Numbers that change from one iteration of a host loop to the next, by symbol: the user's variable.
        self.loop_numbers: dict[str, str] = {}
        #: Sizes and strides of tensors that the host code makes, by symbol: the tensor and how to ask it.
        self.late: dict[str, tuple[HostTensorValue, str]] = {}
        #: Lists made in device code, with the depth of regions they were made at.
        self.lists: dict[int, tuple[Any, int]] = {}
        #: What is read through globals, by where.
        self.guards: dict[tuple[Any, ...], Guard] = {}
        self.warnings: list[exc.Base] = []
        #: Containers whose content is known at run time only, by identity, and what stands for them.
        self.poisoned: dict[int, tuple[Any, Any]] = {}
        #: Attributes and global names that the kernel's own code changes: the object and what it then holds.
        self.attributes: dict[tuple[int, str], tuple[Any, Any]] = {}
        #: Containers from outside of the kernel, by identity, with the copies that are followed.
        self.copies: dict[int, tuple[Any, Any]] = {}
        #: How many calls and statements with effects of their own were met: they wait for the run of the host code.
        self.effects = 0
        self._rules = rules
        self._full: dict[Any, Block] = {}
        self._affine: dict[Value, Affine] = {}
        self._fields: dict[Value, TileAttrs] = {}
        self._sums: dict[Value, tuple[Value, Number]] = {}
        #: How the tiles in merged dimensions are ordered: their factors, outermost first; None where reshapes disagree.
        self.merged: dict[Dim, Dims | None] = {}
        self._slots = 0
        self._load_slots = 0
        self._atomic_slots = 0
        #: Calls a function of the user's on abstract values; set by whoever walks the kernel.
        self.call: Callable[[Any, tuple[Any, ...]], Any] = lambda function, args: function(*args)
        self.phase = 0
        self._storages = 0
        self._storage_ids: dict[int, int] = {}
        self.lifted: dict[tuple[int, str], HostTensorValue] = {}
        self.function_sources: dict[int, str] = {}
        self.registered: dict[tuple[int, int], int] = {}
        self.specialized_calls: set[tuple[int, int]] = set()
        #: Numbers made anew for every launch: host expressions by name, empty where the name itself is one.
        self.drawn: dict[str, str] = {}
        #: Expressions of the host code whose results launches need: a name for each time that one was walked.
        self.captures: dict[Place, tuple[str, ...]] = {}
        self.captured = 0
        #: Names that stand in the kernel's source.
        self.taken: frozenset[str] = frozenset()
        #: Host tensors whose sizes, strides or dtype the host code has read, and may not be as modelled.
        self.relied: list[HostTensorValue] = []
        #: Whether one of them has no name by which it could be compared, so that whatever follows may be otherwise too.
        self.unsure = False
        #: What each launch has to compare.
        self.checks: list[tuple[Check, ...]] = []
        #: With dynamic shapes: conditions on sizes and strides of the arguments that the trace assumes.
        self.argument_checks: list[str] = []
        #: How many host loops around launches are being walked.
        self.host_loops = 0
        self.tunables: dict[str, Fragment] = {}
        self.tunable_calls: dict[tuple[int, int], str] = {}

    @property
    def device(self) -> torch.device:
        return self.context.device

    def snapshot(self) -> TraceSnapshot:
        """What ``restore`` needs to forget everything recorded from here on."""
        tensors = tuple((tensor, journal.snapshot(tensor)) for tensor in self.host_tensors)
        return TraceSnapshot(journal.snapshot(self), self.builder.mark(), tensors)

    def restore(self, saved: TraceSnapshot) -> None:
        """Be as when ``saved`` was taken, which may be used again."""
        journal.restore(self, saved.own)
        self.builder.rewind(saved.builder)
        for tensor, attributes in saved.host_tensors:
            journal.restore(tensor, attributes)
            tensor.forget_meta()

    def made(self, tensor: HostTensorValue) -> None:
        self.host_tensors.append(tensor)

    def new_storage(self) -> int:
        self._storages += 1
        return self._storages

    def storage_of(self, tensor: torch.Tensor) -> int:
        """One number per memory: arguments that are views of one tensor share it, and so do those that ``meeting`` gave."""
        key = _storage_key(tensor)
        if key not in self._storage_ids:
            self._storage_ids[key] = self.new_storage()
        return self._storage_ids[key]

    def meeting(self, tensors: Sequence[torch.Tensor]) -> None:
        """Arguments whose memory may meet though their storages differ are taken to share it."""
        numbers: dict[int, int] = {}
        for tensor, first in zip(tensors, shared_memory(tensors), strict=True):
            if tensor.layout is torch.strided:
                numbers[first] = self.storage_of(tensor) if first not in numbers else numbers[first]
                self._storage_ids[_storage_key(tensor)] = numbers[first]

    def number_of(self, tensor: HostTensorValue) -> int | None:
        """The number of a tensor in the program, None before the launch being recorded uses it."""
        used = enumerate(self.used_tensors[self.first_tensor :], self.first_tensor)
        return next((at for at, known in used if known is tensor), None)

    def fresh_name(self, base: str, number: int) -> str:
        """A name of generated host code that the kernel's own has not."""
        name = f"{base}_{number}"
        while name in self.taken:
            name += "_"
        return name

    def assume(self, kind: Any, owner: Any, key: Any, value: Any) -> None:
        """Something outside of the arguments was read: the compiled code depends on it."""
        made = guard(kind, owner, key, value)
        if made is None or (kind, id(owner), key) in self.guards:
            return
        self.guards[(kind, id(owner), key)] = made
        # a container is the same object when its contents have changed
        if isinstance(value, dict):
            for inner, content in value.items():
                self.assume("item", value, inner, content)
        elif isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            for inner, content in enumerate(value):
                self.assume("item", value, inner, content)
        if isinstance(value, (list, dict)):
            self.assume("length", value, None, len(value))
        elif isinstance(value, set):
            self.assume("content", value, None, frozenset(value))

    def default_dtype(self) -> torch.dtype:
        """The default dtype, which the compiled code depends on from here on."""
        self.assume("state", torch.get_default_dtype, None, torch.get_default_dtype())
        return torch.get_default_dtype()

    # --- blocks and sizes ------------------------------------------------------------------------------------------------

    @property
    def on_device(self) -> bool:
        return self.builder.active

    def new_block(self, kind: BlockKind, extent: Number | None, **fields: Any) -> Block:
        block = Block(id=len(self.blocks), kind=kind, extent=extent, **fields)
        self.blocks.append(block)
        return block

    def update_block(self, block: int, **fields: Any) -> None:
        self.blocks[block] = replace(self.blocks[block], **fields)

    def known(self, number: Any) -> Any:
        """A number whose symbols were all specialized is the integer seen when binding."""
        if isinstance(number, Expr) and all(leaf.args[0] in self.specialized for leaf in number.leaves()):
            return number.hint
        return number

    def full_block(self, extent: Number) -> Block:
        """The block of whole dimensions of ``extent`` elements; equal extents share one."""
        extent = self.known(extent)
        key = number_key(extent)
        if key not in self._full:
            self._full[key] = self.new_block("full", extent, name=f"r{len(self._full)}")
        return self._full[key]

    def may_be_padded(self, dim: Dim) -> bool:
        """Whether some lanes of a dimension may lie out of range."""
        for block in dim.blocks:
            extent = self.blocks[block].extent
            known = self.blocks[block].kind == "full" and self.fills_lanes(extent)
            size = self.block_size(self.blocks[block])
            if not known and not (isinstance(size, int) and size == 1):
                return True
        return False

    def fills_lanes(self, extent: Number | None) -> bool:
        """Whether a whole dimension has no lanes besides its elements."""
        return isinstance(extent, int) and (is_power_of_2(extent) or not self.context.limits.powers_of_2)

    def block_size(self, block: Block) -> Number:
        block = self.blocks[block.id]
        if block.kind == "full":
            assert block.extent is not None
            return block.extent
        if block.size is not None:
            return block.size
        return Expr("block", (block.id,), 64)

    def dim_text(self, dim: Dim) -> str:
        parts = [
            self.blocks[b].name if self.blocks[b].kind != "full" else str(self.blocks[b].extent) for b in dim.blocks
        ]
        return "*".join([*([str(dim.const)] if dim.const != 1 or not parts else []), *parts])

    def dims_text(self, dims: Dims) -> str:
        return f"[{', '.join(map(self.dim_text, dims))}]"

    def size_of(self, dim: Dim) -> Number:
        size: Number = dim.const
        for block in dim.blocks:
            size = self.block_size(self.blocks[block]) * size
        return size

    def dim_of(self, size: Any) -> Dim:
        """The dimension a size in device code stands for: a tile, a block size, a constant, or a product of them."""
        if isinstance(size, Tile):
            return Dim(blocks=(size.block.id,))
        size = self.known(size)
        if isinstance(size, bool) or not isinstance(size, (int, Expr)):
            raise exc.ShapeSpecializingAllocation(size=describe(size))
        if isinstance(size, int):
            return ONE if size == 1 else Dim(blocks=(self.full_block(size).id,))
        if size.op == "block":
            return Dim(blocks=size.args)
        if size.op == "mul":
            return self.dim_of(size.args[0]) * self.dim_of(size.args[1])
        if number_key(size) in self._full:
            return Dim(blocks=(self._full[number_key(size)].id,))
        raise exc.ShapeSpecializingAllocation(size=repr(size))

    def dims_of(self, shape: Any) -> Dims:
        if isinstance(shape, (Tile, int, Expr)):
            shape = (shape,)
        if not isinstance(shape, (tuple, list)):
            raise exc.ShapeSpecializingAllocation(size=describe(shape))
        return tuple(self.dim_of(size) for size in shape)

    def symbol(self, name: str, source: str, origin: tuple[Any, ...], hint: Any) -> Expr:
        """A run-time number of the arguments: ``source`` is the host expression, ``origin`` the path to it."""
        while name in self.symbols and self.symbols[name].source != source:
            name = f"{name}_"
        self.symbols[name] = Symbol(name, source, origin)
        return Expr("host", (name,), hint)

    def begin_checks(self) -> None:
        """A launch begins: what was relied on up to here is compared before it."""
        self.checks.append(())
        for tensor in self.relied:
            self.check(tensor)

    def check(self, tensor: HostTensorValue) -> None:
        """Have the launch being recorded compare a tensor, if it may be otherwise than modelled."""
        if not tensor.checked or not self.checks:
            return
        source = tensor.source or tensor.made
        if not source:
            self.unsure = True
        elif all(known.source != source for known in self.checks[-1]):
            check = Check(
                source=source,
                made=tensor.made or source,
                dtype=tensor.dtype,
                shape=tuple(self._expected(tensor, n) for n in tensor.shape),
                strides=tuple(self._expected(tensor, n) for n in tensor.strides),
                device=None if tensor.device.type == self.device.type else tensor.device,
            )
            self.checks[-1] = (*self.checks[-1], check)

    def _expected(self, tensor: HostTensorValue, number: Number) -> Number | None:
        """A size or stride to compare; None for what is read off the tensor itself."""
        number = self.known(number)
        if isinstance(number, Expr) and number.op == "host" and number.args[0] in self.late:
            return None if self.late[number.args[0]][0] is tensor else number
        return number

    def rely(self, tensor: HostTensorValue) -> None:
        """What follows depends on the sizes, strides or dtype of a tensor."""
        if tensor.checked and not any(known is tensor for known in self.relied):
            self.relied.append(tensor)

    def specialize(self, value: Expr) -> Any:
        """The number seen when binding; the arguments it depends on become part of the specialization key."""
        for leaf in value.leaves():
            if leaf.op == "host" and leaf.args[0] in self.loop_numbers:
                raise exc.ChangesInHostLoop(name=self.loop_numbers[leaf.args[0]])
            if leaf.op != "host" or leaf.args[0] not in self.symbols:
                raise exc.SpecializeArgType(got=repr(value))
            self.specialized[leaf.args[0]] = self.symbols[leaf.args[0]].origin
        return value.hint

    def is_never_negative(self, number: Any) -> bool:
        """Whether a host number is known to be at least 0, as sizes are."""
        if not isinstance(number, Expr):
            return bool(number >= 0)
        if number.op == "host":
            name = number.args[0]
            measure = self.late[name][1] if name in self.late else ""
            return (name in self.symbols and self.symbols[name].is_size) or measure.startswith("size")
        if number.op == "neg":  # -(-a // b) rounds up
            inner = number.args[0]
            negated = inner.args[0] if isinstance(inner, Expr) and inner.op == "floordiv" else None
            if isinstance(negated, Expr) and negated.op == "neg":
                return self.is_never_negative(negated.args[0]) and self.is_never_negative(inner.args[1])
            return False
        if number.op == "max":
            return any(map(self.is_never_negative, number.args))
        if number.op in ("add", "mul", "floordiv", "mod", "min"):
            return all(map(self.is_never_negative, number.args))
        return number.op in ("block", "next_power_of_2")

    def changes(self, value: Any) -> bool:
        """Whether a number differs from one iteration of a host loop to the next."""
        return isinstance(value, Expr) and any(leaf.args[0] in self.loop_numbers for leaf in value.leaves())

    def warn(self, warning: exc.Base) -> None:
        if type(warning).__name__ not in self.context.settings.ignore_warnings:
            self.warnings.append(warning)


def _storage_key(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage()._cdata
    except (RuntimeError, NotImplementedError):  # wrapper subclasses may have no storage
        return id(tensor)
