"""Numbers of values and ops, and what rewrites are made of."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from harness import program_of, tensor

import helion.language as hl
from helion._compiler.ir.build import Builder, Numbers
from helion._compiler.ir.grammar import ForAttrs, Op, Program, Region
from helion._compiler.ir.rewrite import Makers, count_uses, expand_ops, map_ops, nested_regions
from helion._compiler.ir.verifier import verify
from helion._compiler.rewrites.reduction_loops.roll import roll, rollable_blocks


def walked(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for row in hl.tile(x.size(0)):
        total = hl.zeros([row])
        for column in hl.tile(y.size(1)):
            total = total + y[row, column].sum(1)
        out[row, :] = torch.softmax(x[row, :], dim=1) * total[:, None]
    return out


@pytest.fixture(scope="module")
def program() -> Program:
    return program_of(walked, tensor(64, 100), tensor(64, 200))


def loops(program: Program) -> dict[int, ForAttrs]:
    return {op.number: op.attrs for op in program.walk() if isinstance(op.attrs, ForAttrs)}


def test_new_numbers_are_above_all_others(program: Program) -> None:
    numbers, ops = Numbers.after(program), list(program.walk())
    params = [p for root in program.roots for region in nested_regions(root.body) for p in region.params]
    values = [*(r for op in ops for r in op.results), *params]
    assert numbers.op() == max(op.number for op in ops) + 1
    assert numbers.value(torch.float32, ()).number == max(v.number for v in values) + 1
    assert min(op.number for op in ops) > 0


def test_loops_keep_their_number_and_copies_get_others(program: Program) -> None:
    """A row of softmax is read twice when it is rolled: no load is there twice under one number."""
    rolled = roll(program, frozenset(rollable_blocks(program)[0]))
    ((number, attrs),) = loops(program).items()
    assert loops(rolled)[number].axes == attrs.axes and not attrs.chunked
    made = [found for found in loops(rolled) if found != number]
    assert made and all(loops(rolled)[found].chunked for found in made)
    loads = [op.number for op in rolled.walk() if op.kind == "load"]
    assert len(set(loads)) == len(loads) > sum(op.kind == "load" for op in program.walk())
    assert verify(rolled, "test") is rolled


def test_what_nothing_changes_stays_the_same_object(program: Program) -> None:
    assert map_ops(program, lambda op: op) is program
    loop = next(op for op in program.walk() if op.kind == "for")

    def moved(op: Op) -> Op:
        return replace(op, location=None) if op.kind == "reduce" and op in loop.regions[0].ops else op

    changed = map_ops(program, moved)
    assert changed is not program and verify(changed, "test") is changed
    old = {op.number: op for op in program.walk()}
    different = [op for op in changed.walk() if old[op.number] is not op]
    assert {op.kind for op in different} == {"reduce", "for"}


def test_ops_are_put_around_an_op_of_a_loop(program: Program) -> None:
    numbers = Numbers.after(program)

    def surrounded(op: Op) -> list[Op]:
        ops: list[Op] = []
        out = Builder(numbers, op.location, ops)
        if op.kind != "reduce":
            return [op]
        out.append("barrier", (), ())
        ops.append(op)
        out.append("barrier", (), ())
        return ops

    changed = expand_ops(program, surrounded)
    reductions = sum(op.kind == "reduce" for op in program.walk())
    assert sum(op.kind == "barrier" for op in changed.walk()) == 2 * reductions > 2
    assert verify(changed, "test") is changed


def test_makers_and_uses(program: Program) -> None:
    makers, uses = Makers.among(program.walk()), count_uses(program)
    (loop,) = (op for op in program.walk() if op.kind == "for")
    assert makers.of(loop.result) is loop and makers.of(1.0) is None and makers.of(None) is None
    assert makers.of(loop.regions[0].params[0]) is None
    assert uses[loop.result.number] == 1
    # what a region yields is read
    assert all(uses[value.number] for value in loop.reads())


def test_rewinding_gives_the_same_numbers_again() -> None:
    builder = Builder()
    with builder.region() as ops:
        builder.emit("full", (0.0,), torch.float32, ())
        mark = builder.mark()
        first = builder.emit("full", (1.0,), torch.float32, ()), ops[-1].number
        builder.rewind(mark)
        again = builder.emit("full", (2.0,), torch.float32, ()), ops[-1].number
    assert len(ops) == 2 and ops[-1].operands == (2.0,)
    assert (first[0].number, first[1]) == (again[0].number, again[1])


def test_a_repeated_op_has_a_number_of_its_own() -> None:
    numbers = Numbers()
    builder = Builder(numbers, ops=[])
    value = builder.emit("full", (1.0,), torch.float32, (), name="one")
    other = builder.repeat(builder.ops[0], results=(builder.value(torch.float32, ()),))
    assert other.kind == "full" and other.number != builder.ops[0].number and other.result is not value
    assert Region((), tuple(builder.ops), ()).ops == (builder.ops[0], other)
