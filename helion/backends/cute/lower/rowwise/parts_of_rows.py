"""``with_loops_of_parts``: turn a grid over parts of rows, of a fixed size, into one over rows with a loop over their parts.

::

    for tile, part in hl.tile([m, n], block_size=[None, 128]):       for tile in hl.tile(m):
        row = x[tile, part]                                     →        for part in hl.tile(n, block_size=128):
        scale[tile, part.id] = row.amax(-1)                                  row = x[tile, part]
                                                                             scale[tile, part.id] = row.amax(-1)
"""

from __future__ import annotations

from dataclasses import replace

from ....._compiler.ir.grammar import ForAttrs, Op, Program, ReduceAttrs, Root


def with_loops_of_parts(program: Program) -> Program:
    """Return the program with a loop over the parts of rows, or the same one if its grid has none that it reduces."""
    if len(program.roots) != 1 or len(program.roots[0].axes) < 2 or not _reduces_parts(program, program.roots[0]):
        return program
    (root,) = program.roots
    *rows, parts = root.axes
    number = 1 + max(max(op.number, *(value.number for value in op.results), 0) for op in program.walk())
    loop = Op(number, "for", (), (), ForAttrs(axes=(parts,), carried=0), regions=(root.body,), location=root.location)
    body = replace(root.body, ops=(loop,))
    return replace(program, roots=(replace(root, axes=(*rows,), body=body, spread=0),))


def _reduces_parts(program: Program, root: Root) -> bool:
    """Return whether the last dimension of a grid has tiles of a fixed size, of several elements, that are reduced."""
    axis = root.axes[-1]
    size = program.blocks[axis.block].size
    if axis.scalar or axis.merged or not isinstance(size, int) or size == 1 or root.body.params:
        return False
    reduced = {
        operand.dims[dim].block
        for op in root.body.ops
        if op.kind == "reduce"
        for operand in op.values()
        for dim in op.attributes(ReduceAttrs).dims
    }
    return reduced == {axis.block} and not any(op.regions for op in root.body.ops)
