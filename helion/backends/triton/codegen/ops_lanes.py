"""Ops that move or combine lanes: scans, folds, gathers, sorting, joining and splitting, random numbers."""

from __future__ import annotations

import torch

from ...._compiler.ir.grammar import FoldAttrs, GatherAttrs, Op, RandomAttrs, ScanAttrs, SeedAttrs
from . import ops_reduction
from .combine import render_combine
from .emission import Emission
from .expressions import Expression


def _function(e: Emission, op: Op) -> str:
    """The helper of a scan or a fold, written before the kernel; equal functions are written once."""
    function = render_combine(op.regions[0])
    if function not in e.functions:
        name = e.names.fresh("_combine")
        while name in e.plan.bound:
            name = e.names.fresh("_combine")
        e.functions[function] = name
    e.needs |= function.needs
    return e.functions[function]


def _operands(e: Emission, op: Op) -> str:
    names = [e.names.of(v) for v in op.values()]
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


def _assign(e: Emission, op: Op, text: str) -> None:
    if len(op.results) == 1:
        e.assign(op, op.kind, text)
        return
    e.lines.add(f"{', '.join(e.names.define(r, op.kind) for r in op.results)} = {text}")


def scan(e: Emission, op: Op) -> None:
    attrs = op.attributes(ScanAttrs)
    reverse = ", reverse=True" if attrs.reverse else ""
    _assign(e, op, f"tl.associative_scan({_operands(e, op)}, {attrs.dim}, {_function(e, op)}{reverse})")


def fold(e: Emission, op: Op) -> None:
    attrs = op.attributes(FoldAttrs)
    _assign(e, op, f"tl.reduce({_operands(e, op)}, {attrs.dim}, {_function(e, op)})")


def gather(e: Emission, op: Op) -> None:
    attrs = op.attributes(GatherAttrs)
    value, index = op.values()
    narrow = e.names.of(index) if index.dtype == torch.int32 else f"{e.names.of(index)}.to(tl.int32)"
    source = e.names.of(value)
    if value.dtype == torch.bool:
        source = f"{source}.to(tl.int8)"
    source = _doubled(e, op, source)
    text = f"tl.gather({source}, {narrow}, {attrs.dim})"
    e.assign(op, "gather", f"({text} != 0)" if value.dtype == torch.bool else text)


def _doubled(e: Emission, op: Op, source: str) -> str:
    """The source of a gather, put beside itself along its axis as often as the op says."""
    attrs = op.attributes(GatherAttrs)
    value, _ = op.values()
    dim = attrs.dim
    sizes = [e.size(d) for d in value.dims]
    last = len(sizes)
    order = [*range(dim), last, *range(dim, last)]
    for _ in range(attrs.doubled):
        sizes[dim] *= 2
        wide = e.names.fresh("wide")
        e.lines.add(f"{wide} = tl.reshape(tl.permute(tl.join({source}, {source}), {order}), {sizes})")
        source = wide
    return source


def sort(e: Emission, op: Op) -> None:
    (value,) = op.values()
    e.assign(op, "sort", f"tl.sort({e.names.of(value)})")


def join(e: Emission, op: Op) -> None:
    first, second = op.values()
    e.assign(op, "join", f"tl.join({e.names.of(first)}, {e.names.of(second)})")


def split(e: Emission, op: Op) -> None:
    (value,) = op.values()
    names = [e.names.define(r, "half") for r in op.results]
    e.lines.add(f"{', '.join(names)} = tl.split({e.names.of(value)})")


#: Functions of Triton, by the names of ``RandomAttrs``.
_RANDOM = {"uniform": "tl.rand", "normal": "tl.randn", "bits": "tl.randint"}


def random(e: Emission, op: Op) -> None:
    attrs = op.attributes(RandomAttrs)
    seed, offset = (e.names.of(v) for v in op.values())
    text = f"{_RANDOM[attrs.name]}({seed}, {offset})"
    e.assign(op, "random", ops_reduction.cast(Expression(text), op.result.dtype) if attrs.name == "bits" else text)


def seed(e: Emission, op: Op) -> None:
    attrs = op.attributes(SeedAttrs)
    e.assign(op, "seed", f"tl.load({e.tensor_names[attrs.tensor]} + {attrs.at})")


def random4(e: Emission, op: Op) -> None:
    seed, offset = (e.names.of(v) for v in op.values())
    names = [e.names.define(r, "random") for r in op.results]
    e.lines.add(f"{', '.join(names)} = tl.rand4x({seed}, {offset})")


OPS = {
    "scan": scan,
    "fold": fold,
    "gather": gather,
    "sort": sort,
    "join": join,
    "split": split,
    "seed": seed,
    "random": random,
    "random4": random4,
}
