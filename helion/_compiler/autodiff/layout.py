"""Buffers that the host code of a backward kernel allocates, and the stores of its programs into them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ..._shapes import Number
from ..ir.grammar import LoopAxis, MemoryAttrs, OperandRef, Program
from ..passes.analysis.places import Places
from .adjoint import computed
from .memory import Site
from .spelling import Names, Spelling, dtype_text, in_list
from .statements import Assign, Effect, Sink, Statement, Var


@dataclass
class Gradient:
    """The gradient of one tensor in host code.

    ``before`` are statements before the loops, ``later`` those before its own loops. ``terms`` are the summands of the
    gradient, ``notes`` the comments about it.
    """

    name: str
    tensor: int
    before: list[str] = field(default_factory=list)
    later: list[str] = field(default_factory=list)
    terms: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class Layout:
    """Buffers of all gradients. ``device`` is the expression of their device."""

    program: Program
    places: Places
    spelling: Spelling
    names: Names
    gradients: dict[int, Gradient]
    device: str
    #: Expressions of block sizes by block, and the statements that define them.
    sizes: dict[int, str] = field(default_factory=dict)
    registered: list[str] = field(default_factory=list)
    buffers: dict[Sink, str] = field(default_factory=dict)
    dtypes: dict[Sink, torch.dtype] = field(default_factory=dict)
    #: Sinks that add to what the same program has stored before.
    again: set[Sink] = field(default_factory=set)

    def allocate(self, sites: Sequence[Site]) -> None:
        for tensor in self.gradients:
            mine = [site for site in sites if site.tensor == tensor]
            groups = self._groups([site for site in mine if site.way == "direct"])
            rest = [site for site in mine if site.way != "direct"]
            several = len(groups) + len(rest) > 1
            for group in groups:
                self._direct(tensor, group, several)
            for site in rest:
                self._own(site, several)

    def _own(self, site: Site, several: bool) -> None:
        match site.way:
            case "partial":
                self._partial(site)
            case "atomic":
                self._atomic(site)
            case _:
                self._transposed(site, several)

    def buffer(self, name: str, kind: str, sizes: Sequence[str], dtype: torch.dtype) -> str:
        """Return a statement that allocates."""
        return f"{name} = torch.{kind}([{', '.join(sizes)}], dtype={dtype_text(dtype)}, device={self.device})"

    def _shape(self, shape: Sequence[Number]) -> list[str]:
        return [self.spelling.number(n) for n in shape]

    def _groups(self, sites: Sequence[Site]) -> list[list[Site]]:
        """Group sites of a tensor whose elements belong to the same programs."""
        groups: list[list[Site]] = []
        for site in sites:
            for group in groups:
                if all(self._owned_alike(site, other) for other in group):
                    group.append(site)
                    break
            else:
                groups.append([site])
        return groups

    def _owned_alike(self, site: Site, other: Site) -> bool:
        """Return whether each element that both access belongs to one program: the same indices vary over the axes of
        the grid.
        """
        plain = self.places.is_plain(site.op) and self.places.is_plain(other.op)
        return plain and self.places.owner(site.op) == self.places.owner(other.op)

    def _direct(self, tensor: int, group: Sequence[Site], several: bool) -> None:
        gradient, host = self.gradients[tensor], self.program.tensors[tensor]
        wide = several or len(group) > 1
        dtype = computed(host.dtype) if wide else host.dtype
        name = self.names.fresh(f"{gradient.name}_part") if several else gradient.name
        if wide and dtype != host.dtype and not several:
            name = self.names.fresh(f"{gradient.name}_wide")
        apart = all(self.places.apart(a.op, b.op) for a in group for b in group if a is not b)
        full = group[0].covers and (len(group) == 1 or not apart)
        gradient.before.append(self.buffer(name, "empty" if full else "zeros", self._shape(host.shape), dtype))
        for at, site in enumerate(group):
            self.buffers[site.sink], self.dtypes[site.sink] = name, dtype
            if at and not apart:
                self.again.add(site.sink)
        gradient.terms.append(name)

    def _partial(self, site: Site) -> None:
        gradient, host = self.gradients[site.tensor], self.program.tensors[site.tensor]
        name = self.names.fresh(f"partial_{gradient.name}")
        counts = [self.count(axis) for axis in site.missing]
        full = site.covers and all(isinstance(a.begin, int) and a.begin == 0 for a in site.missing)
        sizes = [*counts, *self._shape(host.shape)]
        gradient.before.append(self.buffer(name, "empty" if full else "zeros", sizes, computed(host.dtype)))
        over = str(tuple(range(len(counts)))) if len(counts) > 1 else "0"
        gradient.terms.append(f"{name}.sum({over})")
        gradient.notes.append(f"{gradient.name}: a sum per program, added up at the end")
        self.buffers[site.sink] = name

    def count(self, axis: LoopAxis) -> str:
        """Return the number of programs of an axis as a host expression."""
        assert not isinstance(axis.end, OperandRef)
        end = self.spelling.number(axis.end)
        if axis.scalar:
            return end
        if axis.block not in self.sizes:
            given = self.spelling.size_of(axis.block)
            if given is not None:
                self.sizes[axis.block] = given
            else:
                size = self.sizes[axis.block] = self.names.fresh(f"block_{self.spelling.tile(axis.block)}")
                self.registered.append(f"{size} = hl.register_block_size({end})")
        return f"helion.cdiv({end}, {self.sizes[axis.block]})"

    def _atomic(self, site: Site) -> None:
        gradient, host = self.gradients[site.tensor], self.program.tensors[site.tensor]
        name = self.names.fresh(f"total_{gradient.name}")
        gradient.before.append(self.buffer(name, "zeros", self._shape(host.shape), computed(host.dtype)))
        gradient.terms.append(name)
        gradient.notes.append(f"{gradient.name}: programs add to the same elements, in any order")
        self.buffers[site.sink] = name

    def _transposed(self, site: Site, several: bool) -> None:
        gradient, host = self.gradients[site.tensor], self.program.tensors[site.tensor]
        dtype = computed(host.dtype) if several else host.dtype
        name = self.names.fresh(f"{gradient.name}_part") if several else gradient.name
        gradient.later.append(self.buffer(name, "empty" if site.covers else "zeros", self._shape(host.shape), dtype))
        gradient.terms.append(name)
        self.buffers[site.sink], self.dtypes[site.sink] = name, dtype

    # --- stores of programs -------------------------------------------------------------------------------------------

    def zeros(self, var: Var) -> Assign:
        """Return the initialization of an accumulator with zeros."""
        text = f"hl.zeros({self.spelling.shape(var.dims)}, dtype={dtype_text(var.dtype)})"
        return Assign(targets=(var,), text=text)

    def running(self, site: Site, wrapped: LoopAxis, outer: str) -> tuple[Statement, Statement, Statement]:
        """Return the statements of a partial sum over a block of tiles: before, in and after the loop over these."""
        sink = site.sink
        name = self.names.fresh(f"sum_{self.gradients[site.tensor].name}")
        total = Var(name=name, dtype=sink.value.dtype, dims=sink.value.dims)
        indices = [*self._programs(site, wrapped, outer), *sink.indices]
        update = Assign(targets=(total,), text=f"{total.name} + {unmasked(sink)}", carried=True)
        store = Effect(text=f"{self.buffers[sink]}[{', '.join(indices)}] = {total.name}")
        return self.zeros(total), update, store

    def _programs(self, site: Site, wrapped: LoopAxis | None, outer: str) -> list[str]:
        """Return the indices that distinguish the programs that share elements."""
        tiles = [(a, outer if a is wrapped else self.spelling.tile(a.block)) for a in site.missing]
        return [tile if axis.scalar else f"{tile}.id" for axis, tile in tiles]

    def effect(self, site: Site) -> Effect:
        """Return the statement with which a program stores or adds a gradient."""
        sink, buffer = site.sink, self.buffers[site.sink]
        indices = ", ".join(sink.indices) or "()"
        if site.way == "partial":
            return Effect(
                text=f"{buffer}[{', '.join([*self._programs(site, None, ''), *sink.indices])}] = {unmasked(sink)}"
            )
        shape = self.program.tensors[site.tensor].shape
        if site.way == "atomic" and any(site.leaving) and any(isinstance(n, int) and n == 0 for n in shape):
            return Effect(text="pass")  # no lane reads, and there is no element to add 0 to
        if site.way == "atomic":
            lists = ", ".join(in_list(i) for i in self._safe_indices(site))
            return Effect(text=f"hl.atomic_add({buffer}, [{lists}], {unmasked(sink)})")
        lists = ", ".join(map(in_list, sink.indices))
        value = self.spelling.converted(sink.value.name, sink.value.dtype, self.dtypes[sink])
        if sink in self.again:
            old = (
                f"{buffer}[{indices}]" if sink.mask is None else f"hl.load({buffer}, [{lists}], extra_mask={sink.mask})"
            )
            value = f"{old} + {value}"
        if sink.mask is None:
            return Effect(text=f"{buffer}[{indices}] = {value}")
        return Effect(text=f"hl.store({buffer}, [{lists}], {value}, extra_mask={sink.mask})")

    def _safe_indices(self, site: Site) -> Sequence[str]:
        """Return indices that are in range for lanes that read nothing, too. Those that vary over lanes have all dimensions
        then, if one of them may leave the tensor.
        """
        sink, attrs = site.sink, site.op.attributes(MemoryAttrs)
        scalar = [index.kind == "scalar" for index in attrs.indices]
        spread = any(leaves and not alone for leaves, alone in zip(site.leaving, scalar, strict=True))
        sizes, found = self.program.tensors[attrs.tensor].shape, []
        for text, alone, leaves, size in zip(sink.indices, scalar, site.leaving, sizes, strict=True):
            if not alone:
                found.append(f"torch.where({sink.mask}, {text}, 0)" if spread else text)
            elif leaves:
                found.append(f"torch.clamp({text}, 0, {self.spelling.number(size - 1)})")
            else:
                found.append(text)
        return found


def unmasked(sink: Sink) -> str:
    """Return the value of a sink, 0 for lanes that read nothing."""
    return sink.value.name if sink.mask is None else f"torch.where({sink.mask}, {sink.value.name}, 0.0)"
