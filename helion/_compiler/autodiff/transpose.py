"""Grid loops whose programs own the elements of a gradient, and loop over everything that shares them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..._shapes import fixed_at
from ..ir.grammar import LoopAxis, OperandRef, Program
from ..passes.analysis.places import Places
from .layout import Layout, unmasked
from .memory import Site
from .spelling import Names, Spelling
from .statements import Assign, Effect, Nest, Statement, Var, closure, defined, hoist, names_of, prune, render

Levels = Sequence[tuple[Statement, ...]]


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A value of the first grid loop that others read from memory: its allocation, store and read."""

    allocation: str
    store: Effect
    read: str


@dataclass
class Transposition:
    """The grid loops of transposed sites, and the values of the first grid loop that they read from memory."""

    program: Program
    places: Places
    spelling: Spelling
    names: Names
    layout: Layout
    kept: dict[str, Kept] = field(default_factory=dict)

    def settled(self, site: Site, statements: tuple[Statement, ...]) -> Site:
        """Return the site; by atomics if a separate grid loop needs values that cannot be stored."""
        if site.way != "transposed":
            return site
        _, kept = self._needed(site, _levels(site, statements))
        can = bool(self._own(site)) and all(self._can_keep(var, site, level) for var, level in kept)
        return site if can else replace(site, way="atomic")

    def lines(self, site: Site, statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
        """Return the grid loop of a site as one nest."""
        parts, kept = self._needed(site, _levels(site, statements))
        body: list[Statement] = [
            Assign(targets=(var,), text=self._keep(var, site, level).read, cost="load") for var, level in kept
        ]
        for part in reversed(parts):
            body += part
        value = site.sink.value
        total = Var(
            name=self.names.fresh(f"sum_{self.layout.gradients[site.tensor].name}"), dtype=value.dtype, dims=value.dims
        )
        inner: Sequence[Statement] = _accumulating(body, site, total)
        for header, tiles in reversed(self._inner_headers(site)):
            inner = [Nest(header=header, body=tuple(inner), tiles=tiles)]
        sink = site.sink
        stored = self.spelling.converted(total.name, total.dtype, self.layout.dtypes[sink])
        store = Effect(text=f"{self.layout.buffers[sink]}[{', '.join(sink.indices)}] = {stored}")
        header, scalars = self._header(site)
        whole = hoist(prune([*scalars, self.layout.zeros(total), *inner, store]))
        return (Nest(header=header, body=whole),)

    # --- loops --------------------------------------------------------------------------------------------------------

    def _own(self, site: Site) -> list[LoopAxis]:
        """Return the axes of the grid: those that index the elements, in the order of the tensor's dimensions."""
        missing = {a.block for a in site.missing}
        order = [d.block for d in site.op.result.dims]
        own = [a for a in _axes(site, len(site.loops)) if a.block not in missing]
        return sorted(own, key=lambda a: order.index(a.block) if a.block in order else -1)

    def _bounds(self, axis: LoopAxis) -> tuple[str, str]:
        assert not isinstance(axis.begin, OperandRef) and not isinstance(axis.end, OperandRef)
        return self.spelling.number(axis.begin), self.spelling.number(axis.end)

    def _header(self, site: Site) -> tuple[str, list[Statement]]:
        """Return the header of the grid loop, and assignments of the indices of ``hl.grid``, which become tiles of one
        element.
        """
        variables, sizes, scalars = [], [], []
        axes = self._own(site)
        for axis in axes:
            tile = self.spelling.tile(axis.block)
            if axis.scalar:
                variables.append(self.names.fresh(f"{tile}_tile"))
                index = Var(name=tile, dtype=self.program.index_dtype, dims=())
                scalars.append(Assign(targets=(index,), text=f"{variables[-1]}.begin"))
                sizes.append("1")
            else:
                variables.append(tile)
                sizes.append(self._size(axis))
        return self._tiles(variables, axes, sizes), [*scalars]

    def _size(self, axis: LoopAxis) -> str:
        return self.spelling.size_of(axis.block) or "None"

    def _tiles(self, variables: Sequence[str], axes: Sequence[LoopAxis], sizes: Sequence[str]) -> str:
        begins, ends = zip(*map(self._bounds, axes), strict=True)
        given = [_list(ends)] if set(begins) == {"0"} else [_list(begins), _list(ends)]
        if set(sizes) != {"None"}:
            given.append(f"block_size={_list(sizes)}")
        return f"for {', '.join(variables)} in hl.tile({', '.join(given)}):"

    def _inner_headers(self, site: Site) -> list[tuple[str, tuple[str, ...]]]:
        """Return the headers of the loops over everything that shares elements, and the variables that they bind."""
        found: list[tuple[str, tuple[str, ...]]] = []
        for axis in (a for a in site.missing if a.scalar):
            tile, (begin, end) = self.spelling.tile(axis.block), self._bounds(axis)
            step = "" if fixed_at(axis.step, 1) else f", step={self.spelling.number(axis.step)}"
            found.append((f"for {tile} in hl.grid({begin}, {end}{step}):", (tile,)))
        tiles = [a for a in site.missing if not a.scalar]
        if tiles:
            names = tuple(self.spelling.tile(a.block) for a in tiles)
            found.append((self._tiles(names, tiles, [self._size(a) for a in tiles]), names))
        return found

    # --- recomputed and stored values ---------------------------------------------------------------------------------

    def _needed(self, site: Site, levels: Levels) -> tuple[list[tuple[Statement, ...]], list[tuple[Var, int]]]:
        """Return the statements of each level that a gradient depends on, inner ones first, and the values of outer
        levels to read from memory.
        """
        own, free = closure(levels[-1], site.sink.reads)
        parts, kept = [own], []
        for at in range(len(levels) - 2, -1, -1):
            level = [s for s in levels[at] if not any(s is nest for nest in site.nests)]
            known = defined(level)
            wanted = sorted(free & set(known))
            cheap = [name for name in wanted if _is_cheap(closure(level, [name])[0], known[name])]
            kept += [(known[name], at) for name in wanted if name not in cheap]
            made, more = closure(level, cheap)
            parts.append(made)
            free = (free - set(wanted)) | (more - set(cheap))
        return parts, kept

    def _can_keep(self, var: Var, site: Site, level: int) -> bool:
        """Return whether each element of a value belongs to one program or iteration."""
        axes = _axes(site, level)
        blocks = {b for d in var.dims for b in d.blocks}
        return all(d.is_one or d.block is not None for d in var.dims) and all(
            not isinstance(a.end, OperandRef) and (a.scalar or a.block in blocks) for a in axes
        )

    def _keep(self, var: Var, site: Site, level: int) -> Kept:
        if var.name not in self.kept:
            buffer = self.names.fresh(f"kept_{var.name}")
            scalars = [a for a in _axes(site, level) if a.scalar]
            sizes = [self._bounds(a)[1] for a in scalars]
            index = [self.spelling.tile(a.block) for a in scalars]
            dims = tuple(d for d in var.dims if not d.is_one)
            for dim in dims:
                assert dim.block is not None
                block = self.program.blocks[dim.block]
                whole = block.kind == "full"
                sizes.append(
                    self.spelling.number(block.extent or 0) if whole else self._bounds(self.places.axes[block.id][0])[1]
                )
                index.append(":" if whole else self.spelling.tile(block.id))
            place = f"{buffer}[{', '.join(index)}]"
            self.kept[var.name] = Kept(
                allocation=self.layout.buffer(buffer, "empty", sizes, var.dtype),
                store=Effect(text=f"{place} = {self.spelling.reshaped(var.name, var.dims, dims)}"),
                read=self.spelling.reshaped(place, dims, var.dims),
            )
        return self.kept[var.name]


def _axes(site: Site, level: int) -> list[LoopAxis]:
    """Return the axes of the grid and of the outer ``level`` loops around a site."""
    return [*site.axes, *(a for axes in site.loops[:level] for a in axes)]


def _levels(site: Site, statements: tuple[Statement, ...]) -> Levels:
    return [statements, *(nest.body for nest in site.nests)]


def _is_cheap(made: Sequence[Statement], var: Var) -> bool:
    """Return whether a value is cheap to recompute: elementwise, and with no more bytes to load than the value has."""
    if any(not isinstance(s, Assign) or s.cost == "costly" for s in made):
        return False
    loads = (s.targets[0] for s in made if isinstance(s, Assign) and s.cost == "load")
    return sum(v.dtype.itemsize for v in loads if len(v.dims) >= len(var.dims)) <= max(var.dtype.itemsize, 4)


def _accumulating(body: Sequence[Statement], site: Site, total: Var) -> list[Statement]:
    """Append the addition of the gradient to ``total`` to ``body``; a dot takes ``total`` as its accumulator."""
    value = site.sink.value
    maker = next((s for s in body if isinstance(s, Assign) and s.targets == (value,)), None)
    reads = sum(value.name in s.reads for s in body)
    alone = site.sink.mask is None and not reads
    if maker is not None and alone and maker.text.startswith("hl.dot(") and ", out_dtype=" in maker.text:
        text = f"{maker.text.rpartition(', out_dtype=')[0]}, acc={total.name})"
        rest = [s for s in body if s is not maker]
        return [*rest, Assign(targets=(total,), text=text, carried=True)]
    return [*body, Assign(targets=(total,), text=f"{total.name} + {unmasked(site.sink)}", carried=True)]


def behind(statements: Sequence[Statement], name: str, effect: Effect) -> tuple[Statement, ...]:
    """Insert ``effect`` after the last statement that assigns ``name``, in the same nest."""
    here = [at for at, s in enumerate(statements) if isinstance(s, Assign) and name in {v.name for v in s.targets}]
    if here:
        last = max(at for at, s in enumerate(statements) if name in defined([s]))
        return (*statements[: last + 1], effect, *statements[last + 1 :])
    return tuple(
        replace(s, body=behind(s.body, name, effect)) if isinstance(s, Nest) and name in defined(s.body) else s
        for s in statements
    )


def _list(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


__all__ = ["Kept", "Transposition", "behind", "names_of", "render"]
