"""Ops that move or combine lanes: scans, folds, gathers, sorting, joining and splitting, random numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from ....._compiler.ir.grammar import FoldAttrs, GatherAttrs, Op, RandomAttrs, ScanAttrs, SeedAttrs
from ...sorts import Network
from ..combine import render_combine
from ..emission import Emission
from ..expressions import Expression
from . import reduction as ops_reduction

#: A gather from more lanes uses a single dimension. Triton assigns each row of a gather to one warp, whose code grows
#: with the square of the lanes of a thread: for sm_90 ``ptxas`` takes 14 s for 4096 lanes.
_WARP_LANES = 1024

HELPERS: Mapping[str, str] = {
    # A bitonic network for keys of 32 bits, without a loop. Exchanges are between registers, lanes of a warp, or warps.
    # Both extrema and one choice take fewer instructions than the comparison and the choice of ``tl.sort``.
    "_sort_by_extrema": """\
@triton.jit
def _sort_by_extrema(keys, bits: tl.constexpr, stages: tl.constexpr):
    cube = tl.reshape(keys, [2] * bits)
    for stage in tl.static_range(1, stages + 1):
        for apart in tl.static_range(stage - 1, -1, -1):
            other = cube ^ tl.xor_sum(cube, bits - 1 - apart, True)
            greater = tl.reshape(tl.arange(0, 2), [1] * (bits - 1 - apart) + [2] + [1] * apart)
            if stage < stages:
                greater ^= tl.reshape(tl.arange(0, 2), [1] * (bits - 1 - stage) + [2] + [1] * stage)
            cube = tl.where(greater != 0, tl.maximum(cube, other), tl.minimum(cube, other))
    return tl.reshape(cube, keys.shape)
""",
    # The same in a loop over the merges, for keys of any width. In `descending` runs keys have their bits inverted, so
    # that the greater of two keys is always the later one. Steps from `first` to `last` exchange between warps.
    "_sort_in_steps": """\
@triton.jit
def _sort_in_steps(keys, bits: tl.constexpr, stages: tl.constexpr, first: tl.constexpr, last: tl.constexpr):
    flat = tl.arange(0, 1 << bits)
    cube, places = tl.reshape(keys, [2] * bits), tl.reshape(flat, [2] * bits)
    even = places & -2
    changes = places ^ (even << 1)
    for stage in tl.range(1, stages + 1):
        if stage < stages:
            cube ^= ((changes << (31 - stage)) >> 31).to(keys.dtype)
        else:
            cube ^= ((even << (32 - stage)) >> 31).to(keys.dtype)
        for apart in tl.static_range(stages - 1, -1, -1):
            if apart < stage:
                if apart >= first and apart < last:
                    other = tl.reshape(tl.gather(tl.reshape(cube, [1 << bits]), flat ^ (1 << apart), 0), [2] * bits)
                else:
                    other = cube ^ tl.xor_sum(cube, bits - 1 - apart, True)
                later = tl.reshape(tl.arange(0, 2), [1] * (bits - 1 - apart) + [2] + [1] * apart) != 0
                if keys.dtype.primitive_bitwidth <= 32:
                    cube = tl.where(later, tl.maximum(cube, other), tl.minimum(cube, other))
                else:
                    cube = tl.where((cube > other) != later, other, cube)
    return tl.reshape(cube, keys.shape)
""",
}


def _function(e: Emission, op: Op) -> str:
    """Return the helper of a scan or a fold, printed before the kernel; equal functions are printed once."""
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
    if len(value.dims) > 1 and e.size(value.dims[attrs.dim]) << attrs.doubled > _WARP_LANES:
        text = _flat_gather(e, op, source, narrow)
    else:
        text = f"tl.gather({source}, {narrow}, {attrs.dim})"
    e.assign(op, "gather", f"({text} != 0)" if value.dtype == torch.bool else text)


def _flat_gather(e: Emission, op: Op, source: str, index: str) -> str:
    """Return a gather in one dimension, from the flattened elements of the source."""
    dim = op.attributes(GatherAttrs).dim
    value, places = op.values()
    sizes = [e.size(d) for d in value.dims]
    sizes[dim] <<= op.attributes(GatherAttrs).doubled
    strides = [math.prod(sizes[at + 1 :]) for at in range(len(sizes))]
    terms = [f"{index} * {strides[dim]}" if strides[dim] > 1 else index]
    for at, size in enumerate(sizes):
        if at != dim and size > 1:
            terms.append(e.spread(f"(tl.arange(0, {size}) * {strides[at]})", (at,), len(sizes)))
    elements = math.prod(e.size(d) for d in places.dims)
    flat = f"tl.gather(tl.reshape({source}, [{math.prod(sizes)}]), tl.reshape({' + '.join(terms)}, [{elements}]), 0)"
    return f"tl.reshape({flat}, {e.shape(places.dims)})"


def _doubled(e: Emission, op: Op, source: str) -> str:
    """Return the source of a gather, repeated along its axis as often as the op requires."""
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
    source = e.names.of(value)
    sizes = [e.size(d) for d in value.dims]
    elements, lanes = math.prod(sizes), sizes[-1]
    network = Network.of(elements, lanes, value.dtype.itemsize, dict(e.plan.launch.options)["num_warps"])
    if not network.stages:
        e.assign(op, "sort", source)
        return
    helper, sizes = "_sort_by_extrema", [(elements - 1).bit_length(), network.stages]
    if not network.is_unrolled:
        helper, sizes = "_sort_in_steps", [*sizes, *network.bits_between]
    call = f"{helper}({source}, {', '.join(map(str, sizes))})"
    e.assign(op, "sort", Expression(call, needs=frozenset((helper,))))


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
