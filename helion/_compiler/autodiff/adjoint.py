"""The reverse sweep over a grid loop. It recomputes forward values and propagates gradients from stores to loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from ... import exc
from ..._shapes import ONE, Dims
from ..ir.grammar import (
    ForAttrs,
    LoopAxis,
    MemoryAttrs,
    Op,
    Operand,
    PointwiseAttrs,
    Program,
    Region,
    Value,
    VjpAttrs,
)
from ..passes.analysis.places import Places
from .activity import active_values
from .carried import Reversal, Reversals, needs_iterations, without_ones
from .refusal import not_supported
from .spelling import Spelling, broadcast, dtype_text, in_list, literal
from .statements import Assign, Cost, Effect, Nest, Sink, Statement, Var

#: Dtypes of values that have gradients.
DIFFERENTIABLE = (
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
)


def computed(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which gradients of values of a dtype are computed: fp64 for fp64, else fp32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


Rule = Callable[["Sweep", Op, "Sequence[Var | None]"], None]


class Sweep:
    """The backward of one grid loop under construction.

    ``gradients`` are the parameters that contain the gradients of the tensors that the loop writes. ``wanted`` are the
    tensors whose gradients are computed.
    """

    def __init__(
        self,
        program: Program,
        spelling: Spelling,
        gradients: Mapping[int, str],
        wanted: frozenset[int],
        rules: Mapping[str, Rule | str],
        count_of: Callable[[LoopAxis], str],
    ) -> None:
        (self.root,) = program.roots
        self.program = program
        self.spelling = spelling
        self.gradients = gradients
        self.wanted = wanted
        self.rules = rules
        self.active = active_values(self.root.body, wanted)
        self.places = Places(program)
        self.makers = self.places.makers
        self.reversals = Reversals(program, spelling, self.active, count_of)
        #: Numbers of the ops of the region that is being recomputed for its own backward.
        self.returning: frozenset[int] = frozenset()
        self.values: dict[int, Var | str] = {}
        #: Errors to raise for values that the backward cannot read, by the names of their placeholder variables.
        self.missing: dict[str, exc.Base] = {}
        self.loads: dict[int, Op] = {}
        self._statements: list[list[Statement]] = [[]]
        self._shares: list[dict[int, tuple[Value, Var]]] = []
        self._wide: dict[tuple[str, torch.dtype], Var] = {}

    def run(self) -> tuple[Statement, ...]:
        """Return the statements of the loop body, with gradients of loads as sinks."""
        self.recompute(self.root.body)
        self.backward(self.root.body, ())
        return tuple(self._statements[0])

    def zeros(self, op: Op) -> tuple[Statement, ...]:
        """Return statements that give a load a gradient of zeros."""
        self._statements = [[]]
        dims, dtype = op.result.dims, computed(op.result.dtype)
        text = f"hl.zeros({self.spelling.shape(dims)}, dtype={dtype_text(dtype)})"
        self.loaded(op, self.assign(text, dtype, dims, "zero"))
        return tuple(self._statements[0])

    # --- statements ---------------------------------------------------------------------------------------------------

    def assign(self, text: str, dtype: torch.dtype, dims: Dims, hint: str, cost: Cost = "cheap") -> Var:
        """Assign an expression to a new variable and return it."""
        var = Var(name=self.spelling.names.fresh(hint), dtype=dtype, dims=dims)
        self.put(Assign(targets=(var,), text=text, cost=cost))
        return var

    def put(self, statement: Statement) -> None:
        self._statements[-1].append(statement)

    # --- forward values -----------------------------------------------------------------------------------------------

    def text(self, operand: Operand) -> str:
        """Return an operand as text of the backward program."""
        if not isinstance(operand, Value):
            return literal(operand)
        found = self.values[operand.number]
        return found if isinstance(found, str) else found.name

    def known(self, operand: Operand) -> object:
        """Return the number that an operand is, as a number or as text; None for values."""
        if not isinstance(operand, Value):
            return operand
        maker = self.makers.of(operand)
        return self.text(operand) if maker is not None and maker.kind == "number" else None

    def wide(self, operand: Operand) -> str:
        """Return an operand in the dtype that gradients are computed in."""
        if not isinstance(operand, Value) or not operand.dtype.is_floating_point or self.known(operand) is not None:
            return self.text(operand)
        dtype, text = computed(operand.dtype), self.text(operand)
        return f"{text}.to({dtype_text(dtype)})" if dtype != operand.dtype else text

    def recompute(self, region: Region) -> None:
        """Compute the values of a region whose backward follows. Its loops store the carried values that their backward
        needs.
        """
        self.returning = frozenset(op.number for op in region.ops)
        self.forward(region)

    def forward(self, region: Region) -> None:
        """Compute the values of a region."""
        for op in region.ops:
            try:
                self._forward(op)
            except exc.AutodiffNotSupported as refusal:
                for result in op.results:
                    self.lose(result, refusal.at(op.location))

    def lose(self, value: Value, why: exc.Base) -> None:
        """Give a value a placeholder variable that must not be read."""
        name = self.spelling.names.fresh(f"missing_{value.name or 'value'}")
        self.missing[name] = why
        self.values[value.number] = Var(name=name, dtype=value.dtype, dims=value.dims)

    def _forward(self, op: Op) -> None:
        if op.kind in ("store", "print", "check", "barrier"):
            return
        if op.kind == "for":
            self._forward_loop(op)
        elif op.kind == "if":
            self._forward_branch(op)
        elif op.kind == "load":
            self.loads[op.number] = op
            self.define(
                op.result, *self._load_text(op, self.spelling.tensors[op.attributes(MemoryAttrs).tensor]), "load"
            )
        elif op.kind == "vjp" and op.attributes(VjpAttrs).name == "reshape":
            _, source = op.values()
            text = self.spelling.reshaped(self.text(source), source.dims, op.result.dims)
            self.define(op.result, text, op.result.dims, "cheap")
        elif op.kind in ("mask", "vjp"):
            operand = next(op.values())
            self.values[op.result.number] = self.values[operand.number]
        elif op.kind == "number":
            self.values[op.result.number] = self.spelling.expression(op, self.text)[0]
        elif op.kind == "split":
            self._several(op, "hl.split", "half")
        elif op.kind == "random4":
            self._several(op, "hl.rand4x", "drawn")
        elif op.kind == "sort":
            self.define(op.result, self.spelling.ranking(op, self.text), op.result.dims, "costly")
        elif op.kind in ("atomic", "while", "asm", "inline"):
            remedy = "keep its result out of computations that have a gradient"
            raise not_supported(f"the value of an op of kind {op.kind!r}", remedy)
        else:
            text, cost = self.spelling.expression(op, self.text)
            self.define(op.result, text, op.result.dims, cost)

    def define(self, value: Value, text: str, dims: Dims, cost: Cost) -> None:
        """Assign a value to a variable; ``dims`` are the dimensions of ``text``."""
        text = self.spelling.expanded(text, dims, value.dims)
        maker = self.makers.of(value)
        hint = value.name if value.name.isidentifier() else _hint(maker)
        self.values[value.number] = self.assign(text, value.dtype, value.dims, hint, cost)

    def _several(self, op: Op, function: str, hint: str) -> None:
        """Assign the results of a function of the op's operands."""
        targets = tuple(
            Var(name=self.spelling.names.fresh(v.name or hint), dtype=v.dtype, dims=v.dims) for v in op.results
        )
        self.put(Assign(targets=targets, text=f"{function}({', '.join(map(self.text, op.operands))})"))
        self.values.update((v.number, target) for v, target in zip(op.results, targets, strict=True))

    def halves(self, var: Var) -> tuple[Var, Var]:
        """Split a last dimension of 2 and return both halves."""
        names = (self.spelling.names.fresh(f"{var.name}_0"), self.spelling.names.fresh(f"{var.name}_1"))
        first, second = (Var(name=name, dtype=var.dtype, dims=var.dims[:-1]) for name in names)
        self.put(Assign(targets=(first, second), text=f"hl.split({var.name})"))
        return first, second

    def _load_text(self, op: Op, tensor: str) -> tuple[str, Dims]:
        """Return an access like ``op`` of a tensor, and its dimensions."""
        attrs = op.attributes(MemoryAttrs)
        dims = self.accessed(op)
        indices, walked = self.spelling.index(op, self.text)
        found = tuple(dims[at] for at in walked)
        if attrs.mask is None:
            text = f"{tensor}[{', '.join(indices) or '()'}]"
        else:
            lists = ", ".join(map(in_list, indices))
            text = f"hl.load({tensor}, [{lists}], extra_mask={self.mask(op, walked)})"
        full = tuple(d if at in walked else ONE for at, d in enumerate(dims))
        return self.spelling.reshaped(text, found, full), full

    def mask(self, op: Op, walked: Sequence[int]) -> str:
        """Return the extra mask of an access, for the positions ``walked`` that its indices vary over."""
        at = op.attributes(MemoryAttrs).mask
        assert at is not None
        mask, dims = op.operands[at], self.accessed(op)
        assert isinstance(mask, Value)
        if len(walked) != len(dims):
            raise not_supported("an extra_mask over a dimension of size 1", "index that dimension by 0")
        return self.text(mask)

    def accessed(self, op: Op) -> Dims:
        """Return the dimensions of the tile that an access reads or writes."""
        return op.results[0].dims

    def _forward_loop(self, op: Op) -> None:
        (region,) = op.regions
        carried = [self._carried(p, init) for p, init in zip(region.params, op.operands, strict=False)]
        reversal = self._reversal(op)
        sizes = {} if reversal is None or not reversal.size else {reversal.axis.block: reversal.size}
        header = self.spelling.header(op.attributes(ForAttrs).axes, op, self.text, sizes)
        self._statements.append([])
        self.values.update((p.number, var) for p, var in zip(region.params, carried, strict=True))
        if reversal is not None:
            self._record(reversal, carried)
        self.forward(region)
        self._update(carried, region.results)
        self._close(op, header)
        self.values.update((r.number, var) for r, var in zip(op.results, carried, strict=True))

    def _reversal(self, op: Op) -> Reversal | None:
        """Return the reversal of a loop if its values in each iteration are needed and can be stored."""
        if op.number not in self.returning:
            return None
        try:
            return self.reversals.of(op, self.text)
        except exc.AutodiffNotSupported:  # the backward of the loop raises this error
            return None

    def _record(self, reversal: Reversal, carried: Sequence[Var]) -> None:
        """Store the carried values at the start of an iteration."""
        for tape, var in zip(reversal.tapes, carried, strict=True):
            value = self.spelling.reshaped(var.name, var.dims, without_ones(var.dims))
            self.put(Effect(text=f"{tape.place(reversal.iteration)} = {value}", wanted=tape.name))

    def _close(self, op: Op, header: str, backward: bool = False) -> None:
        body = self._statements.pop()
        tiles = tuple(self.spelling.tile(a.block) for a in op.attributes(ForAttrs).axes)
        self.put(Nest(header=header, body=tuple(body), op=op.number if backward else None, tiles=tiles))

    def _carried(self, value: Value, init: Operand) -> Var:
        text = self.text(init)
        if not isinstance(init, Value):
            text = f"hl.full({self.spelling.shape(value.dims)}, {text}, dtype={dtype_text(value.dtype)})"
        return self.assign(text, value.dtype, value.dims, value.name or "carried")

    def _update(self, targets: Sequence[Var], values: Sequence[Operand]) -> None:
        """Assign variables that outlive a region their values at its end."""
        texts = [self.text(v) for v in values]
        names = [t.name for t in targets]
        if any(text in names[:at] for at, text in enumerate(texts)):
            texts = [
                self.assign(text, t.dtype, t.dims, f"next_{t.name}").name if text in names else text
                for t, text in zip(targets, texts, strict=True)
            ]
        for target, text in zip(targets, texts, strict=True):
            if text != target.name:
                self.put(Assign(targets=(target,), text=text, carried=True))

    def _forward_branch(self, op: Op) -> None:
        results = [
            Var(name=self.spelling.names.fresh(v.name or "chosen"), dtype=v.dtype, dims=v.dims) for v in op.results
        ]
        bodies = []
        for region in op.regions:
            self._statements.append([])
            self.forward(region)
            for target, value in zip(results, region.results, strict=True):
                self.put(Assign(targets=(target,), text=self.text(value), carried=True))
            bodies.append(tuple(self._statements.pop()))
        self.put(Nest(header=f"if {self.text(op.operands[0])}:", body=bodies[0], orelse=bodies[1]))
        self.values.update((v.number, var) for v, var in zip(op.results, results, strict=True))

    # --- gradients ----------------------------------------------------------------------------------------------------

    def backward(self, region: Region, seeds: Sequence[tuple[Operand, Var | None]]) -> dict[int, tuple[Value, Var]]:
        """Return gradients of the values that a region reads from outside, its params included; ``seeds`` are the
        gradients of its results.
        """
        self._shares.append({})
        for result, seed in seeds:
            if seed is not None and isinstance(result, Value):
                self.add(result, seed)
        for op in reversed(region.ops):
            self._backward(op)
        own = {r.number for op in region.ops for r in op.results}
        return {number: share for number, share in self._shares.pop().items() if number not in own}

    def gradient(self, value: Value) -> Var | None:
        """Return the gradient that is accumulated for a value so far, or None."""
        found = self._shares[-1].get(value.number)
        return None if found is None else found[1]

    def is_active(self, operand: Operand) -> bool:
        return isinstance(operand, Value) and operand.number in self.active

    def add(self, operand: Operand, share: Var) -> None:
        """Add to the gradient of an operand; the dimensions of ``share`` broadcast to those of the operand."""
        if not isinstance(operand, Value) or not self.is_active(operand):
            return
        dtype = computed(operand.dtype)
        if share.dtype != dtype:
            share = self.assign(f"{share.name}.to({dtype_text(dtype)})", dtype, share.dims, share.name)
        before = self.gradient(operand)
        if before is not None:
            dims = broadcast(before.dims, share.dims)
            share = self.assign(f"{before.name} + {share.name}", dtype, dims, f"grad_{self.hint(operand)}")
        self._shares[-1][operand.number] = (operand, share)

    def hint(self, value: Value) -> str:
        found = self.values.get(value.number)
        return found.name if isinstance(found, Var) else value.name or "value"

    def share(self, operand: Value, text: str, like: Var, dims: Dims, cost: Cost = "cheap") -> Var:
        """Assign a contribution to the gradient of a value to a new variable of the dtype of the gradient ``like``."""
        return self.assign(text, like.dtype, dims, f"grad_{self.hint(operand)}", cost)

    def aligned(self, var: Var, rank: int) -> Var:
        """Return ``var`` with dimensions of 1 before its own, up to ``rank``."""
        missing = rank - len(var.dims)
        if not missing:
            return var
        dims = (*(ONE,) * missing, *var.dims)
        return Var(name=self.spelling.reshaped(var.name, var.dims, dims), dtype=var.dtype, dims=dims)

    def spread(self, var: Var, dims: Dims) -> Var:
        """Return ``var`` broadcast to ``dims``."""
        if var.dims == dims:
            return var
        return self.assign(self.spelling.expanded(var.name, var.dims, dims), var.dtype, dims, var.name)

    def summed(self, var: Var, dims: Dims, target: Dims) -> Var:
        """Reduce the gradient of a broadcast from ``dims`` to the dimensions ``target`` of the value before it."""
        rank = len(dims)
        aligned = (*(ONE,) * (rank - len(target)), *target)
        over = tuple(at for at in range(rank) if aligned[at].is_one and not dims[at].is_one)
        if not over:
            own = var.dims[max(0, len(var.dims) - len(target)) :]  # the dimensions before these are of size 1
            return Var(name=self.spelling.reshaped(var.name, var.dims, own), dtype=var.dtype, dims=own)
        var = self.spread(var, dims)
        left = tuple(d for at, d in enumerate(dims) if at not in over)
        where = str(over[0]) if len(over) == 1 else str(over)
        text = self.spelling.reshaped(f"torch.sum({var.name}, {where})", left, target)
        return self.assign(text, var.dtype, target, var.name, "costly")

    def _backward(self, op: Op) -> None:
        grads = [self.gradient(r) for r in op.results]
        if op.kind in ("store", "atomic"):
            if any(self.is_active(o) for o in op.operands):
                self._apply(op, grads)
            return
        if op.kind in ("for", "if"):
            if self._reaches(op):
                self._apply(op, grads)
            return
        is_source = op.kind == "load" and self.is_active(op.results[0])
        if (any(g is not None for g in grads) and (is_source or any(map(self.is_active, op.operands)))) or (
            op.kind in ("while", "inline") and any(self.is_active(r) for r in op.reads())
        ):
            self._apply(op, grads)

    def _reaches(self, op: Op) -> bool:
        """Return whether a loop or branch has values that a gradient may reach."""
        return any(r.number in self.active for inner in op.walk() for r in inner.results) or any(
            self.is_active(value) for inner in op.walk() for value in inner.reads()
        )

    def _apply(self, op: Op, grads: Sequence[Var | None]) -> None:
        rule = self.rules[op.kind]
        if isinstance(rule, str):
            raise not_supported(f"an op of kind {op.kind!r}", rule, op)
        try:
            rule(self, op, grads)
        except exc.AutodiffNotSupported as refusal:
            raise refusal.at(op.location) from None

    # --- memory -------------------------------------------------------------------------------------------------------

    def stored(self, op: Op) -> None:
        """Load the gradient of a stored value from the gradient of the tensor, at the same indices."""
        attrs = op.attributes(MemoryAttrs)
        name = self.gradients.get(attrs.tensor)
        value = op.operands[0]
        if name is None or not isinstance(value, Value):
            return
        text, dims = self._load_text(op, name)
        tensor = self.program.tensors[attrs.tensor]
        dtype = computed(tensor.dtype)
        text = self.spelling.converted(text, tensor.dtype, dtype)
        grad = self.assign(text, dtype, dims, name, "load")
        full = self.accessed(op)
        self.add(value, self.summed(grad, full, value.dims))

    def loaded(self, op: Op, grad: Var) -> None:
        """Emit a sink that takes the gradient of a loaded value to memory."""
        attrs, dims = op.attributes(MemoryAttrs), op.result.dims
        kinds = zip(attrs.indices, self.places.may_leave(op), strict=True)
        masked = attrs.mask is not None and any(leaves and index.kind != "scalar" for index, leaves in kinds)
        indices, walked = self.spelling.index(op, self.text, spread=masked)
        found = tuple(dims[at] for at in walked)
        if len(walked) == len(dims):
            grad = self.spread(grad, dims)
        else:
            target = tuple(d if at in walked else ONE for at, d in enumerate(dims))
            grad = self.summed(self.aligned(grad, len(dims)), dims, target)
            grad = self.spread(grad, target)
            grad = Var(name=self.spelling.reshaped(grad.name, target, found), dtype=grad.dtype, dims=found)
            grad = self.assign(grad.name, grad.dtype, found, "grad")
        mask = None if attrs.mask is None else self.mask(op, walked)
        self.put(Sink(load=op.number, value=grad, indices=tuple(indices), mask=mask))

    # --- control flow -------------------------------------------------------------------------------------------------

    def loop(self, op: Op, grads: Sequence[Var | None]) -> None:
        """Differentiate a loop. One that only accumulates has the same gradient in every iteration; others run in
        reverse.
        """
        reversal = self.reversals.of(op, self.text)
        if reversal is not None:
            self._reversed(op, reversal, grads)
            return
        (region,) = op.regions
        initial = op.operands[: len(region.params)]
        kept = dict(self.values)
        header = self.spelling.header(op.attributes(ForAttrs).axes, op, self.text)
        self._statements.append([])
        for param in region.params:
            self.lose(param, needs_iterations(op, param.name))
        self.recompute(region)
        captured = self.backward(region, tuple(zip(region.results, grads, strict=True)))
        for param, grad in zip(region.params, grads, strict=True):
            _, share = captured.pop(param.number, (param, None))
            if (share is None) != (grad is None) or (
                share is not None and grad is not None and share.name != grad.name
            ):
                raise needs_iterations(op, param.name)
        totals = [(value, self._total(value), share) for value, share in captured.values()]
        for _, total, share in totals:
            self.put(Assign(targets=(total,), text=f"{total.name} + {share.name}", carried=True))
        body = self._statements.pop()
        for _, total, _ in totals:
            text = f"hl.zeros({self.spelling.shape(total.dims)}, dtype={dtype_text(total.dtype)})"
            self.put(Assign(targets=(total,), text=text))
        self._statements.append(body)
        self._close(op, header, backward=True)
        self.values = kept
        for value, total, _ in totals:
            self.add(value, total)
        for init, grad in zip(initial, grads, strict=True):
            if grad is not None:
                self.add(init, grad)

    def _reversed(self, op: Op, reversal: Reversal, grads: Sequence[Var | None]) -> None:
        """Run a loop from its last iteration to its first one and carry the gradients of what it carries."""
        (region,) = op.regions
        kept = dict(self.values)
        pairs = [(p, g) for p, g in zip(region.params, grads, strict=True) if p.number in self.active]
        carried = {p.number: self._total(p) for p, _ in pairs}
        for param, grad in pairs:
            total = carried[param.number]
            start = None if grad is None else self.spelling.expanded(grad.name, grad.dims, total.dims)
            self.put(self._start(total, start))
        self._statements.append([])
        place = self.spelling.names.fresh("iteration")
        for param, tape in zip(region.params, reversal.tapes, strict=True):
            text = self.spelling.reshaped(tape.place(place), without_ones(param.dims), param.dims)
            self.define(param, text, param.dims, "load")
        self.recompute(region)
        seeds = [(r, carried.get(p.number)) for p, r in zip(region.params, region.results, strict=True)]
        captured = self.backward(region, seeds)
        back = {number: captured.pop(number, None) for number in carried}
        totals = [(value, self._total(value), share) for value, share in captured.values()]
        # a share may be the carried gradient itself: read it before this iteration updates it
        for _, total, share in totals:
            self.put(Assign(targets=(total,), text=f"{total.name} + {share.name}", carried=True))
        self._carry(carried, back)
        body = tuple(self._statements.pop())
        for _, total, _ in totals:
            self.put(self._start(total, None))
        self.put(self._backwards(op, reversal, place, body))
        self.values = kept
        for value, total, _ in totals:
            self.add(value, total)
        for init, param in zip(op.operands, region.params, strict=False):
            if param.number in carried:
                self.add(init, carried[param.number])

    def _start(self, var: Var, text: str | None) -> Assign:
        zeros = f"hl.zeros({self.spelling.shape(var.dims)}, dtype={dtype_text(var.dtype)})"
        return Assign(targets=(var,), text=text or zeros)

    def _carry(self, carried: Mapping[int, Var], back: Mapping[int, tuple[Value, Var] | None]) -> None:
        """Assign the carried gradients their values for the preceding iteration, all at once."""
        texts = {}
        for number, share in back.items():
            var = carried[number]
            if share is not None and share[1].name == var.name:
                continue
            zeros = f"hl.zeros({self.spelling.shape(var.dims)}, dtype={dtype_text(var.dtype)})"
            text = zeros if share is None else self.spelling.expanded(share[1].name, share[1].dims, var.dims)
            texts[number] = self.assign(text, var.dtype, var.dims, f"next_{var.name}").name
        for number, text in texts.items():
            self.put(Assign(targets=(carried[number],), text=text, carried=True))

    def _backwards(self, op: Op, reversal: Reversal, place: str, body: tuple[Statement, ...]) -> Nest:
        """Return the loops that run ``body`` for the iterations of a loop in reverse order. ``place`` names the
        variable of the iteration number.
        """
        axis, index = reversal.axis, self.program.index_dtype
        step = self.spelling.names.fresh("step")
        tile = self.spelling.tile(axis.block)
        number = Assign(targets=(Var(name=place, dtype=index, dims=()),), text=f"{reversal.count} - 1 - {step}")
        inner: tuple[Statement, ...]
        first = "" if reversal.begin == "0" else f"{reversal.begin} + "
        if axis.scalar:
            inner = (Assign(targets=(Var(name=tile, dtype=index, dims=()),), text=f"{first}{place}"), *body)
        else:
            begin = Var(name=self.spelling.names.fresh(f"begin_{tile}"), dtype=index, dims=())
            end = f"torch.clamp({begin.name} + {reversal.size}, max={reversal.end})"
            header = f"for {tile} in hl.tile({begin.name}, {end}, block_size={reversal.size}):"
            once = Nest(header=header, body=body, op=op.number, tiles=(tile,), ordered=True)
            inner = (Assign(targets=(begin,), text=f"{first}{place} * {reversal.size}"), once)
        header = f"for {step} in hl.grid({reversal.count}):"
        own = op.number if axis.scalar else None
        return Nest(header=header, body=(number, *inner), op=own, tiles=(step,), ordered=True)

    def _total(self, value: Value) -> Var:
        name = self.spelling.names.fresh(f"total_grad_{self.hint(value)}")
        return Var(name=name, dtype=computed(value.dtype), dims=value.dims)

    def branch(self, op: Op, grads: Sequence[Var | None]) -> None:
        """Differentiate each side of a branch separately; a value that one side does not reach gets zeros from it."""
        kept = dict(self.values)
        sides: list[tuple[list[Statement], dict[int, tuple[Value, Var]]]] = []
        for region in op.regions:
            self._statements.append([])
            self.recompute(region)
            captured = self.backward(region, tuple(zip(region.results, grads, strict=True)))
            sides.append((self._statements.pop(), captured))
            self.values = dict(kept)
        values = {number: value for _, captured in sides for number, (value, _) in captured.items()}
        results = {number: self._total(value) for number, value in values.items()}
        bodies = []
        for statements, captured in sides:
            self._statements.append(statements)
            for number, target in results.items():
                if number in captured:
                    text = self.spelling.expanded(captured[number][1].name, captured[number][1].dims, target.dims)
                else:
                    text = f"hl.zeros({self.spelling.shape(target.dims)}, dtype={dtype_text(target.dtype)})"
                self.put(Assign(targets=(target,), text=text, carried=True))
            bodies.append(tuple(self._statements.pop()))
        self.put(Nest(header=f"if {self.text(op.operands[0])}:", body=bodies[0], orelse=bodies[1]))
        for number, target in results.items():
            self.add(values[number], target)


def _hint(op: Op | None) -> str:
    if op is None:
        return "value"
    return op.attrs.name if isinstance(op.attrs, PointwiseAttrs) else op.kind
