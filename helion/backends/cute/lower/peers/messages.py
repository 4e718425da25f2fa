"""Messages between ranks, taken out of a program that is a GEMM without them.

::

    acc = loop over K                                      acc = loop over K
    hl.wait(ch, [tile_m.id, tile_n.id], sender=1)      →   acc = acc + inbox[0][1, tile_m, tile_n]
    acc = acc + inbox[0][1, tile_m, tile_n]                out[tile_m, tile_n] = acc
    out[tile_m, tile_n] = acc
    hl.signal(done, [0], to=1)

A tile then waits before its matrices are loaded, and signals after it is stored. The program has to have that order. A wait
before the loop is for the loads of A and B.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import cast

from ....._compiler.ir.effects import is_message
from ....._compiler.ir.grammar import HostTensor, MemoryAttrs, Op, Program
from ....._compiler.ir.rewrite import Makers
from ....._compiler.passes.always.simplify import drop_dead
from ....._compiler.passes.analysis.messages import Form, Message, Messages, load_in, messages_of
from ....._support.records import dataclass
from ...plan.epilogue import Await, Awaiting, Signal, Word
from ...plan.refusal import Refusal
from ..numbers import known
from ..product import Product


@dataclass(frozen=True, kw_only=True)
class Apart:
    """A ``program`` without messages, and those of the original one. ``late`` are the tensors that it loads after a wait,
    which are ``early`` where waits precede the loop over K.

    Without messages the program is the original one.
    """

    program: Program
    found: Messages | None = None
    late: frozenset[int] = frozenset()
    early: bool = False


def without_messages(program: Program) -> Apart:
    """Return the program without its messages. Raises ``Refusal`` for an order that a GEMM does not have."""
    remote = [op for op in program.walk() if is_message(op)]
    if not remote:
        return Apart(program=program)
    found = messages_of(program)
    if found is None or found.opaque or {op.number for op in remote} != {each.op.number for each in _events(found)}:
        raise Refusal(
            "messages other than hl.signal and hl.wait on a channel of helion.distributed are not implemented"
        )
    if any(isinstance(op.attrs, MemoryAttrs) and op.attrs.mark is not None for op in remote):
        raise Refusal("marked mail is not implemented; hl.signal and hl.wait are")
    if len(program.roots) != 1 or any(each.path for each in _events(found)):
        raise Refusal("messages in a loop, under a condition, or of several grids are not implemented")
    body = program.roots[0].body
    counters = {_seen(program, wait).id for wait in found.waits}
    late, early = _check_order(program, found, counters)
    gone = {each.op.number for each in _events(found)}
    gone |= {op.number for op in body.ops if op.kind == "store" and op.attrs.tensor in counters}
    ops = tuple(op for op in body.ops if op.number not in gone)
    root = dataclasses.replace(program.roots[0], body=dataclasses.replace(body, ops=ops))
    rest = drop_dead(dataclasses.replace(program, roots=(root,)))
    counters |= {op.attrs.tensor for op in remote if isinstance(op.attrs, MemoryAttrs)}
    for op in rest.walk():
        if isinstance(op.attrs, MemoryAttrs) and op.attrs.tensor in counters:
            name = program.tensors[op.attrs.tensor].name
            raise Refusal(f"{name} is read by more than waits; a place that it selects is not implemented")
    return Apart(program=rest, found=found, late=late, early=early)


def plain(program: Program) -> Program:
    """Return the program without its messages, or itself where ``without_messages`` refuses it."""
    try:
        return without_messages(program).program
    except Refusal:
        return program


def _events(found: Messages) -> tuple[Message, ...]:
    return (*found.waits, *found.signals)


def _check_order(program: Program, found: Messages, counters: set[int]) -> tuple[frozenset[int], bool]:
    """Check that all waits precede the loop over K, or follow it, and precede signals.

    Return the tensors that are loaded after a wait, and whether waits precede the loop.
    """
    ops = program.roots[0].body.ops
    at = {op.number: number for number, op in enumerate(ops)}
    loop = max((number for number, op in enumerate(ops) if op.regions), default=-1)
    waits, signals = ([at[each.op.number] for each in events] for events in (found.waits, found.signals))
    early = bool(waits) and min(waits) < loop
    if early and max(waits) > loop:
        raise Refusal("waits before the loop over K and after it are not implemented in one kernel")
    if waits and signals and min(signals) < max(waits):
        raise Refusal("a signal before a wait of the same tile is not implemented; a kernel for each is")
    after = ops[min(waits) :] if waits else ()
    late = {op.attrs.tensor for each in after for op in each.walk() if op.kind == "load"} - counters
    stored = {program.tensors[op.attrs.tensor].storage for op in ops if op.kind in ("store", "atomic")}
    for tensor in late:
        if program.tensors[tensor].storage in stored:
            raise Refusal(f"{program.tensors[tensor].name} is loaded after a wait, and stored to as well")
    return frozenset(late), early


def _seen(program: Program, wait: Message) -> HostTensor:
    """Return the tensor that counts the messages that a wait has seen."""
    return program.tensors[_count(program, wait).attrs.tensor]


def _count(program: Program, wait: Message) -> Op:
    """Return the load of the number of messages seen."""
    makers = Makers.among(program.walk())
    load = load_in(makers.of(wait.op.operands[3]), makers)
    assert load is not None
    return load


def with_messages(product: Product, apart: Apart, program: Program) -> Product:
    """Return the product of a program without messages with those of ``program``. Raises ``Refusal``."""
    if apart.found is None:
        return product
    _check_late(product, apart, program)
    words = _Words(program, product.blocks, "operands" if apart.early else "matrices")
    waits = tuple(words.wait(wait) for wait in apart.found.waits)
    signals = tuple(words.signal(signal) for signal in apart.found.signals)
    epilogue = dataclasses.replace(product.problem.epilogue, waits=waits, signals=signals)
    return dataclasses.replace(
        product, problem=dataclasses.replace(product.problem, epilogue=epilogue), words=tuple(words.tensors)
    )


def _check_late(product: Product, apart: Apart, program: Program) -> None:
    """Check that TMA loads all that a tile may load after a wait alone, in the role that waits."""
    if apart.early:
        others = [program.tensors[each].name for each in sorted(apart.late - {product.a, product.b})]
        if others:
            raise Refusal(
                f"{others[0]} is loaded after a wait before the loop over K; that is implemented for operands of one matmul"
            )
        return
    pairs = [*zip(product.operands, product.problem.epilogue.operands, strict=True)]
    waited = [each for source, each in pairs if source in apart.late]
    moved = [each.name for each in waited if each.kind != "exact"]
    found = {source for source, _ in pairs}
    moved += [program.tensors[each].name for each in apart.late if each not in found]
    if moved:
        raise Refusal(f"{moved[0]} is loaded after a wait; that is implemented for matrices that TMA loads")
    assert apart.found is not None
    if apart.found.waits and not waited:
        raise Refusal("a wait that no load of a matrix follows is not implemented")


class _Words:
    """The words of messages by their tensors: the arguments of a launch, in the order of ``Epilogue.words``."""

    def __init__(self, program: Program, blocks: Sequence[int], before: Awaiting) -> None:
        self.program, self.blocks, self.before = program, blocks, before
        self.tensors: list[int] = []

    def wait(self, wait: Message) -> Await:
        own, seen = self.program.tensors[wait.op.attrs.tensors[0]], _seen(self.program, wait)
        if wait.peer is None or wait.count is None:
            raise Refusal("waits for a number of messages, and for a sender, that the compiler knows are implemented")
        _, first, _, _, note = wait.op.operands
        (seconds,) = wait.op.attrs.lines
        if not isinstance(note, int) or not isinstance(first, int):
            raise Refusal(f"{own.name} has strides that are known only when it runs")
        notes = self._word(own, wait.ranks, wait.word)
        self.tensors += [own.id, seen.id]
        return Await(
            before=self.before,
            word=self._word(own, wait.peer, wait.word),
            seen=self._word(seen, wait.peer, wait.word),
            count=wait.count,
            keep=wait.keep,
            seconds=int(seconds),
            note=note,
            lost=first,
            lost_word=notes,
        )

    def signal(self, signal: Message) -> Signal:
        if signal.peer is None:
            raise Refusal("signals to a peer that the compiler knows are implemented; pass it as an hl.constexpr")
        words = self.program.tensors[signal.op.attrs.tensor]
        self.tensors.append(words.id)
        return Signal(word=self._word(words, (signal.ranks - signal.peer) % signal.ranks, signal.word))

    def _word(self, tensor: HostTensor, row: int, index: Sequence[Form]) -> Word:
        if not tensor.aligned:
            raise Refusal(f"{tensor.name} may begin at an address that is no multiple of 16 bytes")
        strides = [known(stride, f"a stride of {tensor.name}") for stride in tensor.strides]
        first, steps = row * strides[0], [0, 0]
        for form, stride in zip(index, strides[1:], strict=True):
            if form.number is not None:
                first += form.number * stride
                continue
            block, parts = form.tile or (-1, ("", 0, 0))
            field, factor, constant = cast("tuple[str, int, int]", parts)
            if field != "id" or block not in self.blocks[:2]:
                raise Refusal(f"words of {tensor.name} are those of constants and of tile.id, of the grid's tiles")
            steps[self.blocks.index(block)] += factor * stride
            first += constant * stride
        return Word(name=tensor.name, first=first, steps=(steps[0], steps[1]))
