"""The backward of one grid loop as a kernel: its grid loops, and the host code around them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..._names import identifier
from ..._support.syntax import parse
from ..ir.effects import is_message
from ..ir.grammar import InlineAttrs, LoopAxis, MemoryAttrs, Program
from ..ir.ops import OPS
from ..passes.analysis.places import Places
from .adjoint import DIFFERENTIABLE, Sweep, computed
from .layout import Gradient, Layout
from .memory import Site, check_memory, classify
from .prepare import prepare
from .refusal import not_supported
from .rules import RULES
from .spelling import Names, Spelling
from .statements import Assign, Effect, Nest, Sink, Statement, hoist, merge, prune, render, replace_sinks, walk
from .transpose import Transposition, behind


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter of a backward kernel, by ``name``.

    Its ``kind`` is ``gradient`` or ``tensor`` (of a tensor of the forward program), or ``result`` (a tensor that it wrote). A
    ``number`` of the host code is called ``symbol`` there, or as the parameter. A ``StagedForward`` returns ``kept`` tensors,
    and has parameters for those that are to be ``written``.
    """

    name: str
    kind: str
    tensor: int = -1
    symbol: str = ""

    @property
    def number(self) -> str:
        """The name of a number in the host code."""
        return self.symbol or self.name


@dataclass(frozen=True, kw_only=True)
class Backward:
    """A backward kernel: ``lines`` of source, its parameters, and the tensors whose gradients it returns, in order."""

    lines: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    results: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class StagedForward:
    """A kernel called ``name`` that runs in place of a program's: it writes the program's results, and returns what its
    backward reads as well, under the names ``kept``."""

    name: str
    lines: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    kept: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class StagedBackward:
    """A backward of several kernels: the source of each, and ``lines`` of a function that calls them. Its parameters and
    results are those of ``Backward``. ``forward`` has to have run in place of the program's kernel, if it is not None. With
    ``any_size`` the source depends on no size of the program but those that ``hl.specialize`` makes constants."""

    kernels: tuple[tuple[str, ...], ...]
    lines: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    results: tuple[int, ...]
    forward: StagedForward | None = None
    any_size: bool = False


def differentiate(
    program: Program, at: int, wanted: Iterable[int], through: Iterable[int], name: str, order: Sequence[str]
) -> Backward:
    """Return the backward of grid loop ``at`` of a program, as a kernel called ``name``.

    Args:
        wanted: tensors to differentiate with respect to; gradients are those of their values before the loop.
        through: tensors that the loop writes and that contribute to results.
        order: names of tensors and numbers in the order of the parameters, for those that are parameters.

    Raises ``exc.AutodiffNotSupported`` for an op without a derivative, or without one that is implemented. The error
    names the op and its line.
    """
    prepared = prepare(program, at)
    check_memory(prepared)
    return _Construction(prepared, frozenset(wanted), tuple(through), name, order).kernel()


def check_accesses(program: Program) -> None:
    """Raise ``exc.AutodiffNotSupported`` for memory accesses to unknown tensors, and for messages between ranks."""
    for op in program.walk():
        if is_message(op):
            remedy = "call the kernel in a torch.autograd.Function whose backward sends the gradients to the ranks they are for"
            raise not_supported("a message between ranks", remedy, op)
        known = op.kind in ("load", "store", "atomic") or (isinstance(op.attrs, InlineAttrs) and not op.attrs.tensors)
        if (OPS[op.kind].reads or OPS[op.kind].writes) and not known:
            raise not_supported(f"an op of kind {op.kind!r}", "pass the tensors that it accesses, and index them", op)


def written_tensors(program: Program, at: int) -> tuple[int, ...]:
    """Return the tensors that a grid loop writes."""
    attrs = (op.attrs for op in program.roots[at].body.walk() if op.kind in ("store", "atomic"))
    return tuple(dict.fromkeys(each.tensor for each in attrs))


def read_tensors(program: Program, at: int) -> tuple[int, ...]:
    """Return the tensors that a grid loop reads."""
    attrs = (op.attrs for op in program.roots[at].body.walk() if op.kind in ("load", "seed"))
    return tuple(dict.fromkeys(each.tensor for each in attrs))


class _Construction:
    def __init__(
        self, program: Program, wanted: frozenset[int], through: tuple[int, ...], name: str, order: Sequence[str]
    ) -> None:
        host = program.host
        taken = [*host.symbols, *host.deferred_symbols, *(n for names in host.captures.values() for n in names), name]
        floats = {t.id for t in program.tensors if t.dtype in DIFFERENTIABLE}
        self.program, self.name, self.order = program, name, order
        self.names = Names(taken)
        self.tensors = {t.id: self.names.fresh(identifier(t.name)) for t in program.tensors}
        self.incoming = {t: self.names.fresh(f"grad_{self.tensors[t]}") for t in through if t in floats}
        if not self.incoming:
            raise not_supported("a kernel that stores no floats", "its results have no gradients", program.roots[0])
        self.wanted = tuple(t.id for t in program.tensors if t.id in wanted & floats)
        gradients = {t: Gradient(self.names.fresh(f"grad_{self.tensors[t]}"), t) for t in self.wanted}
        self.spelling = Spelling(program, self.names, self.tensors)
        self.places = Places(program)
        device = f"{next(iter(self.incoming.values()))}.device"
        self.layout = Layout(program, self.places, self.spelling, self.names, gradients, device)
        self.sweep = Sweep(program, self.spelling, self.incoming, frozenset(self.wanted), RULES, self.layout.count)

    def kernel(self) -> Backward:
        statements = prune(merge(hoist(prune(self.sweep.run()))))
        if not any(isinstance(s, Sink) for s in walk(statements)):
            statements = self._zeros()
        transposition = Transposition(self.program, self.places, self.spelling, self.names, self.layout)
        sites = classify(self.program, statements, self.sweep.loads)
        sites = [transposition.settled(site, statements) for site in sites]
        self.layout.allocate(sites)
        own = [nest for site in sites if site.way == "transposed" for nest in transposition.lines(site, statements)]
        main = self._main(statements, [site for site in sites if site.way != "transposed"], transposition)
        for statement in walk([*main, *own]):
            self._check(statement)
        buffers = [kept.allocation for kept in transposition.kept.values()]
        lines = self._lines(main, own, [*self._tapes(main), *buffers])
        parameters = self._parameters(lines)
        return Backward(lines=tuple(self._function(lines, parameters)), parameters=parameters, results=self.wanted)

    def _check(self, statement: Statement) -> None:
        """Raise the error of a value that a statement reads although it cannot be computed."""
        for name in statement.reads:
            if name in self.sweep.missing:
                raise self.sweep.missing[name]

    def _zeros(self) -> tuple[Statement, ...]:
        """Return a loop that stores zeros, where no gradient arrives."""
        (root,) = self.program.roots
        for op in root.body.ops:
            if op.kind == "load" and op.attributes(MemoryAttrs).tensor in self.wanted and len(op.operands) == 0:
                return self.sweep.zeros(op)
        raise not_supported(
            "a kernel whose results do not depend on its inputs through floats", "its gradients are zero", root
        )

    # --- the grid loop with the axes of the forward -------------------------------------------------------------------

    def _main(
        self, statements: tuple[Statement, ...], sites: Sequence[Site], transposition: Transposition
    ) -> tuple[Statement, ...]:
        """Return the grid loop with the axes of the forward as one nest; nothing if it has no effects left."""
        wrapped = self._wrapped(sites, statements)
        outer = "" if wrapped is None else self.names.fresh(f"{self.spelling.tile(wrapped.block)}_block")
        by_sink = {site.sink: site for site in sites}
        before: list[Statement] = []
        after: list[Statement] = []

        def effects(sink: Sink) -> Sequence[Statement]:
            site = by_sink.get(sink)
            if site is None:
                return ()
            if site.way != "partial" or wrapped is None:
                return (self.layout.effect(site),)
            init, update, store = self.layout.running(site, wrapped, outer)
            before.append(init)
            after.append(store)
            return (update,)

        body = replace_sinks(statements, effects)
        for name, kept in transposition.kept.items():
            body = behind(body, name, kept.store)
        running = {v.name for s in before if isinstance(s, Assign) for v in s.targets}
        body = prune(body, running)
        if not any(isinstance(s, Effect) for s in walk([*body, *after])):
            return ()
        (root,) = self.program.roots
        if wrapped is None:
            header = self.spelling.header(root.axes, None, self.sweep.text, self.layout.sizes)
            return (Nest(header=header, body=hoist(body)),)
        tile = self.spelling.tile(wrapped.block)
        self.spelling.tiles[wrapped.block] = outer
        header = self.spelling.header(root.axes, None, self.sweep.text, self.layout.sizes)
        self.spelling.tiles[wrapped.block] = tile
        inner = Nest(header=f"for {tile} in hl.tile({outer}.begin, {outer}.end):", body=tuple(body), tiles=(tile,))
        return (Nest(header=header, body=hoist([*before, inner, *after])),)

    def _wrapped(self, sites: Sequence[Site], statements: Sequence[Statement]) -> LoopAxis | None:
        """Return the grid axis over which a program accumulates before it stores a partial sum; its tiles are
        subdivided.
        """
        partial = [site for site in sites if site.way == "partial"]
        # a nest has large tiles, so that one partial sum per program is cheap
        if not partial or any(isinstance(s, Nest) for s in statements):
            return None
        shared = [a for a in partial[0].missing if all(a in site.missing for site in partial)]
        texts = [s.text for s in walk(statements) if isinstance(s, (Assign, Effect))]
        shared = [a for a in shared if not a.scalar and self._can_wrap(a, texts)]
        return max(shared, key=lambda a: a.end if isinstance(a.end, int) else 0, default=None)

    def _can_wrap(self, axis: LoopAxis, texts: Iterable[str]) -> bool:
        block, tile = self.program.blocks[axis.block], self.spelling.tile(axis.block)
        numbered = any(f"{tile}.{part}" in text for text in texts for part in ("id", "count"))
        return self.spelling.size_of(block.id) is None and not block.registered and not numbered

    # --- text ---------------------------------------------------------------------------------------------------------

    def _lines(self, main: Sequence[Statement], own: Sequence[Statement], kept: Sequence[str]) -> list[str]:
        gradients = list(self.layout.gradients.values())
        indent = " " * 4
        lines = [f"# {note}" for g in gradients for note in g.notes]
        lines += [
            *self.spelling.registered(),
            *self.layout.registered,
            *kept,
            *(line for g in gradients for line in g.before),
        ]
        text = [indent + line for line in lines] + render(main, indent)
        text += [indent + line for g in gradients for line in g.later] + render(own, indent)
        for gradient in gradients:
            text += [indent + line for line in self._sum(gradient)]
        return [*text, f"{indent}return {', '.join(g.name for g in gradients)}"]

    def _sum(self, gradient: Gradient) -> list[str]:
        """Return the statement that adds up the terms of a gradient, if it is not one of them."""
        host = self.program.tensors[gradient.tensor]
        if gradient.terms == [gradient.name]:
            return []
        if not gradient.terms:
            return [
                self.layout.buffer(gradient.name, "zeros", [self.spelling.number(n) for n in host.shape], host.dtype)
            ]
        total = " + ".join(gradient.terms)
        text = f"({total})" if len(gradient.terms) > 1 else total
        return [f"{gradient.name} = {self.spelling.converted(text, computed(host.dtype), host.dtype)}"]

    def _tapes(self, main: Sequence[Statement]) -> list[str]:
        """Return the statements that allocate the buffers of carried values."""
        read = {name for statement in walk(main) for name in statement.reads}
        tapes = [tape for tape in self.sweep.reversals.tapes if tape.name in read]
        self.layout.registered += [line for line in self.sweep.reversals.registered if line.partition(" ")[0] in read]
        return [tape.allocation(self.layout.device) for tape in tapes]

    def _parameters(self, lines: Sequence[str]) -> tuple[Parameter, ...]:
        tree = parse("\n".join(["def backward():", *lines]))
        read = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
        grads = [Parameter(name=name, kind="gradient", tensor=t) for t, name in self.incoming.items() if name in read]
        rest = [Parameter(name=name, kind="tensor", tensor=t) for t, name in self.tensors.items() if name in read]
        rest += [Parameter(name=name, kind="number") for name in self.spelling.numbers if name in read]
        place = {name: at for at, name in enumerate(self.order)}
        return (*grads, *sorted(rest, key=lambda p: place.get(p.name, len(place))))

    def _function(self, lines: Sequence[str], parameters: Sequence[Parameter]) -> list[str]:
        given = ", ".join(p.name if p.kind == "number" else f"{p.name}: torch.Tensor" for p in parameters)
        count = len(self.wanted)
        returned = "torch.Tensor" if count == 1 else f"tuple[{', '.join(['torch.Tensor'] * count)}]"
        of = ", ".join(self.tensors[t] for t in self.wanted)
        return [
            f"def {self.name}({given}) -> {returned}:",
            f'    """Gradients of {self.program.host.name} with respect to {of}."""',
            *lines,
        ]


__all__ = [
    "Backward",
    "Parameter",
    "StagedBackward",
    "StagedForward",
    "check_accesses",
    "differentiate",
    "read_tensors",
    "written_tensors",
]
