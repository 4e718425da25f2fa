"""Messages between ranks and the accesses that they order: the events of a program, with symbolic indices.

All ranks run the same program. Peer ``i`` of a rank is the one ``i`` places after it, modulo the number of ranks. So
sender ``n - p`` of a wait is the rank that signals to its peer ``p``. A rank stores into item ``p`` of a tuple of
symmetric tensors, and its peer ``p`` loads that from item 0.

A store of marked words is data and a signal, and a load of such words waits for it. Their channel is the memory itself.
"""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from ...._shapes import Expr, Number, cdiv, fixed_at
from ...._support.records import dataclass, field
from ...ir.effects import order_of
from ...ir.grammar import (
    Block,
    ForAttrs,
    HostTensor,
    Index,
    InlineAttrs,
    LoopAxis,
    MemoryAttrs,
    NumberAttrs,
    Op,
    Operand,
    PointwiseAttrs,
    Program,
    Region,
    Root,
    TileAttrs,
    Value,
)
from ...ir.host_module import Launch, Member
from ...ir.rewrite import Makers

#: A number that is not known at compile time: a field of a tile, a host number, a count of messages modulo a number ...
Atom = tuple[Hashable, ...]
#: The operand of the op of a wait that is the number of messages.
_WANT = 3


@dataclass(frozen=True)
class Form:
    """A sum of atoms times integers, plus ``constant``."""

    terms: tuple[tuple[Atom, int], ...] = ()
    constant: int = 0

    def plus(self, other: Form, times: int = 1) -> Form:
        found = dict(self.terms)
        for atom, factor in other.terms:
            found[atom] = found.get(atom, 0) + times * factor
        kept = tuple(sorted(((a, f) for a, f in found.items() if f), key=repr))
        return Form(kept, self.constant + times * other.constant)

    @property
    def number(self) -> int | None:
        """Its value if it is a constant."""
        return None if self.terms else self.constant

    @property
    def atoms(self) -> tuple[Atom, ...]:
        return tuple(atom for atom, _ in self.terms)

    @property
    def tile(self) -> tuple[int, Hashable] | None:
        """The block of its tile, and its field, factor and constant, if it has no other atom."""
        if len(self.terms) != 1 or self.terms[0][0][0] != "tile":
            return None
        (_, block, name), factor = self.terms[0]
        return int(block), (name, factor, self.constant)  # type: ignore[call-overload]


ONE = Form(constant=1)


@dataclass(frozen=True)
class Place:
    """Index of an access in one dimension: ``form``, plus the lanes of ``block``. ``form`` is None for a tensor."""

    form: Form | None
    block: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Event:
    """A message, or an access to a symmetric tensor.

    ``peer`` is None if a host loop counts it. ``root`` and ``at`` give its place in the program, ``path`` the loops and
    branches around it, as (op, region) pairs. ``axes`` are those of the grid and the loops around it.
    """

    op: Op
    root: int
    at: int
    path: tuple[tuple[int, int], ...]
    axes: tuple[LoopAxis, ...]
    guarded: bool
    peer: int | None
    ranks: int

    @property
    def line(self) -> str:
        """File, line and source text."""
        place = self.op.location
        return "an unknown line" if place is None else f"{place.short()} ({place.text})"


@dataclass(frozen=True, kw_only=True, eq=False)
class Message(Event):
    """A signal or a wait. ``channel`` names its counters of ``shape``, ``word`` are the indices of the word.

    ``messages``: the number that a wait is for. ``keep``: it leaves them to other programs.
    """

    channel: str
    shape: tuple[Number, ...]
    word: tuple[Form, ...]
    messages: Form = ONE
    keep: bool = False

    @property
    def count(self) -> int | None:
        return self.messages.number


@dataclass(frozen=True, kw_only=True, eq=False)
class Transfer(Event):
    """A store into memory of a peer, or a load of what peers store. ``memory`` names the tuple of symmetric tensors."""

    memory: str
    shape: tuple[Hashable, ...]
    index: tuple[Place, ...]


@dataclass(frozen=True, kw_only=True)
class Messages:
    """The events of a program. ``opaque``: other ops order accesses as other GPUs see them, such as the user's own
    source. ``looped`` has the roots that a loop of the host code launches, ``counters`` the names that count its
    iterations. ``sizes`` are the block sizes of a config, if one is known."""

    program: Program
    signals: tuple[Message, ...]
    waits: tuple[Message, ...]
    sent: tuple[Transfer, ...]
    received: tuple[Transfer, ...]
    opaque: bool
    looped: frozenset[int]
    counters: frozenset[str]
    sizes: Mapping[int, int] | None

    def block(self, number: int) -> Block:
        return self.program.blocks[number]

    def size(self, axis: LoopAxis) -> Any:
        """Return the elements of a tile: a number, or a key if only the config fixes it."""
        if axis.scalar:
            return axis.step.key if isinstance(axis.step, Expr) else axis.step
        if self.sizes is not None:
            return self.sizes[axis.block]
        block = self.block(axis.block)
        if block.tunable or block.twin_of is not None:
            return "block", block.id if block.tunable else block.twin_of
        return block.size.key if isinstance(block.size, Expr) else block.size

    def tiles(self, axis: LoopAxis) -> int | None:
        """Return the number of tiles of an axis, if it is known."""
        size = self.size(axis)
        if fixed_at(axis.begin, 0) and isinstance(axis.end, Expr) and axis.end.key == size:
            return 1
        if not all(isinstance(number, int) for number in (axis.begin, axis.end, size)):
            return None
        return cdiv(max(0, int(axis.end) - int(axis.begin)), max(1, int(size)))  # type: ignore[arg-type]


def messages_of(program: Program, sizes: Mapping[int, int] | None = None) -> Messages | None:
    """Return the messages of a program and the accesses that they may order; None if it sends none and waits
    for none."""
    if all(tensor.member is None for tensor in program.tensors):
        return None
    ops = tuple(program.walk())
    channels = frozenset(filter(None, (_channel(program, op) for op in ops)))
    if not channels:
        return None
    found = _Collector(program, channels)
    for number, root in enumerate(program.roots):
        found.root(number, root)
    opaque = any(
        found.is_opaque(op) for op in ops if isinstance(op.attrs, (MemoryAttrs, InlineAttrs)) or op.kind == "asm"
    )
    written = {event.memory for event in found.sent}
    return Messages(
        program=program,
        signals=tuple(found.signals),
        waits=tuple(found.waits),
        sent=tuple(found.sent),
        received=tuple(event for event in found.loaded if event.memory in written),
        opaque=opaque,
        looped=_looped(program),
        counters=frozenset(
            node.target.id
            for node in ast.walk(program.host.function)
            if isinstance(node, ast.For) and isinstance(node.target, ast.Name)
        ),
        sizes=sizes,
    )


def _channel(program: Program, op: Op) -> str | None:
    """Return the name of the words that an op counts a message in, or waits for."""
    match op.attrs:
        case InlineAttrs(waits=True, tensors=(tensor, *_)) | MemoryAttrs(mark=int(), tensor=tensor):
            member = program.tensors[tensor].member
            return None if member is None else member.of
        case MemoryAttrs(scope="sys", tensor=tensor):
            member = program.tensors[tensor].member
            return member.of if member is not None and member.of.endswith(".words") else None
    return None


def _looped(program: Program) -> frozenset[int]:
    """Return the roots that are launched in a loop of the host code."""
    loops = (node for node in ast.walk(program.host.function) if isinstance(node, (ast.For, ast.While)))
    launches = {node.number for loop in loops for node in ast.walk(loop) if isinstance(node, Launch)}
    return frozenset(number for number, root in enumerate(program.roots) if root.launch in launches)


@dataclass
class _Collector:
    """Collector of the events of a program. ``forms`` are those of the current root."""

    program: Program
    channels: frozenset[str]
    signals: list[Message] = field(default_factory=list)
    waits: list[Message] = field(default_factory=list)
    sent: list[Transfer] = field(default_factory=list)
    loaded: list[Transfer] = field(default_factory=list)
    at: int = 0

    def root(self, number: int, root: Root) -> None:
        self.makers = Makers.among(root.body.walk())
        self.forms = Forms(self.program, self.makers, self.channels)
        self._region(root.body, {"root": number, "path": (), "axes": root.axes, "guarded": False})

    def _region(self, region: Region, around: dict[str, Any]) -> None:
        for op in region.ops:
            self.at += 1
            self._event(op, around)
            for number, child in enumerate(op.regions):
                axes = op.attrs.axes if isinstance(op.attrs, ForAttrs) else ()
                inner = {
                    "root": around["root"],
                    "path": (*around["path"], (op.number, number)),
                    "axes": (*around["axes"], *axes),
                    "guarded": around["guarded"] or op.kind != "for",
                }
                self._region(child, inner)

    def _event(self, op: Op, around: dict[str, Any]) -> None:
        common = {"op": op, "at": self.at, **around}
        if isinstance(op.attrs, InlineAttrs) and op.attrs.waits:
            self._wait(op, self.program.tensors[op.attrs.tensors[0]], op.operands[_WANT], common)
        if not isinstance(op.attrs, MemoryAttrs):
            return
        tensor = self.program.tensors[op.attrs.tensor]
        member = tensor.member
        if member is None:
            return
        peer = member.number if isinstance(member.number, int) else None
        common |= {"peer": peer, "ranks": member.count}
        if op.attrs.mark is not None:
            self._marked(op, op.attrs, tensor, common)
            return
        if member.of in self.channels:
            if self._is_signal(op, member):
                word = tuple(self.forms.of_index(op, index) for index in op.attrs.indices[1:])
                common["guarded"] |= op.attrs.mask is not None
                self.signals.append(Message(channel=member.of, shape=tensor.shape, word=word, **common))
            return
        self._transfer(op, op.attrs, tensor, member, common)

    def _transfer(self, op: Op, attrs: MemoryAttrs, tensor: HostTensor, member: Member, common: dict[str, Any]) -> None:
        shape = tuple(n.key if isinstance(n, Expr) else n for n in tensor.shape)
        index = tuple(self.forms.place(op, each) for each in attrs.indices)
        event = Transfer(memory=member.of, shape=shape, index=index, **common)
        if common["peer"] == 0 and op.kind == "load":
            self.loaded.append(event)
        elif common["peer"] != 0 and op.kind == "store":
            self.sent.append(event)

    def _marked(self, op: Op, attrs: MemoryAttrs, tensor: HostTensor, common: dict[str, Any]) -> None:
        """Record marked words as data and a signal, or as a wait and then data."""
        member, mark = tensor.member, op.operands[attrs.mark or 0]
        assert member is not None
        if op.kind == "load":
            self._wait(op, tensor, mark, dict(common))
            self.at += 1
            self._transfer(op, attrs, tensor, member, {**common, "at": self.at})
            return
        self._transfer(op, attrs, tensor, member, common)
        self.at += 1
        counted = load_in(self.makers.of(mark), self.makers)
        if counted is not None:
            _, *places = counted.attributes(MemoryAttrs).indices
            words = tuple(self.forms.of_index(counted, place) for place in places)
            shape = self.program.tensors[counted.attributes(MemoryAttrs).tensor].shape
            self.signals.append(Message(channel=member.of, shape=shape, word=words, **{**common, "at": self.at}))

    def _wait(self, op: Op, words: HostTensor, want: Operand, common: dict[str, Any]) -> None:
        member, total = words.member, self.makers.of(want)
        load = load_in(total, self.makers)
        if member is None or total is None or load is None:
            return
        peer, *word = load.attributes(MemoryAttrs).indices
        messages = self.forms.of(total.result).plus(self.forms.of(load.result), -1)
        common |= {"peer": self.forms.of_index(load, peer).number, "ranks": member.count}
        self.waits.append(
            Message(
                channel=member.of,
                shape=self.program.tensors[load.attributes(MemoryAttrs).tensor].shape,
                word=tuple(self.forms.of_index(load, index) for index in word),
                messages=messages,
                keep=not self._counts(total.result, load),
                **common,
            )
        )

    def _counts(self, total: Value, load: Op) -> bool:
        """Return whether an op stores the new count where ``load`` has read the old one."""
        tensor = load.attributes(MemoryAttrs).tensor
        return any(
            op.kind == "store" and op.attrs.tensor == tensor and op.operands[0] is total for op in self.program.walk()
        )

    def _is_signal(self, op: Op, member: Member) -> bool:
        attrs = op.attributes(MemoryAttrs)
        return op.kind == "atomic" and attrs.atomic == "add" and attrs.scope == "sys" and order_of(op).releases

    def is_opaque(self, op: Op) -> bool:
        """Return whether an op orders accesses of several GPUs, and is no signal or wait."""
        match op.attrs:
            case InlineAttrs(waits=waits, effect=effect):
                return not waits and effect == "any"
            case MemoryAttrs(scope="sys", tensor=tensor):
                member = self.program.tensors[tensor].member
                return member is None or member.of not in self.channels or not self._is_signal(op, member)
        return op.kind == "asm" and not op.attrs.is_pure


def load_in(total: Op | None, makers: Makers) -> Op | None:
    """Return the load of the messages seen so far, which a wait adds its count to."""
    if total is None or total.kind == "load":
        return total
    made = (makers.of(operand) for operand in total.operands)
    return next((op for op in made if op is not None and op.kind == "load"), None)


@dataclass
class Forms:
    """Symbolic values of the scalars of a root. ``channels`` are the names of the words that count messages."""

    program: Program
    makers: Makers
    channels: frozenset[str]
    known: dict[int, Form] = field(default_factory=dict)

    def of(self, operand: Operand) -> Form:
        if not isinstance(operand, Value):
            return self.of_number(operand)
        if operand.number not in self.known:
            self.known[operand.number] = self._made(operand)
        return self.known[operand.number]

    def of_number(self, number: Number | None) -> Form:
        if isinstance(number, int) and not isinstance(number, bool):
            return Form(constant=number)
        return Form(((("host", number.key if isinstance(number, Expr) else repr(number)), 1),))

    def of_index(self, op: Op, index: Index) -> Form:
        """Return the value of a scalar index."""
        own = self.of_number(index.shift)
        return own if index.operand is None else own.plus(self.of(op.operands[index.operand]))

    def place(self, op: Op, index: Index) -> Place:
        return Place(None if index.kind == "tensor" else self.of_index(op, index), index.block)

    def _made(self, value: Value) -> Form:
        op = self.makers.of(value)
        match None if op is None else op.attrs:
            case TileAttrs(block=block, field=name):
                kind = "size" if name in ("count", "block_size") else "tile"
                return Form((((kind, block, name), 1),))
            case NumberAttrs(expr=expr):
                return self.of_number(expr)
            case PointwiseAttrs(name=name):
                assert op is not None
                found = self._pointwise(name, op)
                if found is not None:
                    return found
        if op is not None and op.kind == "full":
            return self.of(op.operands[0])
        return Form(((("value", value.number), 1),))

    def _pointwise(self, name: str, op: Op) -> Form | None:
        if name == "cast":
            return self.of(op.operands[0])
        if len(op.operands) != 2 or op.result.dims:
            return None
        a, b = map(self.of, op.operands)
        match name:
            case "add" | "sub":
                return a.plus(b, 1 if name == "add" else -1)
            case "mul" if a.number is not None or b.number is not None:
                factor, other = (a.number, b) if a.number is not None else (b.number, a)
                return Form().plus(other, factor or 0)
            case "remainder" | "bitwise_and" if b.number is not None:
                channel = self._counted(op.operands[0])
                turns = b.number if name == "remainder" else 2 if b.number == 1 else 0
                return Form(((("turn", channel, turns), 1),)) if channel and turns > 0 else None
        return None

    def _counted(self, operand: Operand) -> str | None:
        """Return the channel if a value is the number of its messages that have been seen, which each call raises."""
        op = self.makers.of(operand)
        if op is None or op.kind != "load":
            return None
        source = self.program.tensors[op.attributes(MemoryAttrs).tensor].source
        names = (
            (name, f"{name.removesuffix('words')}seen", f"{name.removesuffix('channel.words')}sent")
            for name in self.channels
        )
        marks = (
            (name, f"{name.removesuffix('marked')}channel.seen", f"{name.removesuffix('marked')}sent")
            for name in self.channels
        )
        return next((name for name, *counters in (*names, *marks) if source in counters), None)


def walked(event: Message) -> Iterator[LoopAxis]:
    """Yield the axes around a message that do not select its word: it is repeated along them, for the same word."""
    selected = {atom[1] for form in event.word for atom in form.atoms if atom[0] == "tile"}
    return (axis for axis in event.axes if axis.block not in selected)


__all__ = ["Event", "Form", "Message", "Messages", "Place", "Transfer", "load_in", "messages_of", "walked"]
