"""Effects keep their order: which may meet, in which pass over a row each of them is done, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc
from helion._compiler.ir.effects import Effect, apart_along, apart_by_numbers, effects_of, may_alias, may_meet, ordered
from helion._compiler.ir.grammar import MemoryAttrs, Op, Program
from helion._compiler.rewrites.epilogue_subtile import subtile_blocks
from helion._compiler.rewrites.reduction_loops.roll import roll, rollable_blocks


def program_of(kernel: helion.Kernel, *args: Any) -> Program:
    return kernel.bind(args)._analysis.program


def accesses(program: Program) -> list[Op]:
    return [op for op in program.walk() if isinstance(op.attrs, MemoryAttrs)]


# --- which may meet ------------------------------------------------------------------------------------------------------


def test_what_may_meet() -> None:
    load, store = Effect(storage=1, reads=True, writes=False), Effect(storage=1, reads=False, writes=True)
    other = Effect(storage=2, reads=False, writes=True)
    fence = Effect(storage=None, reads=True, writes=True, fence=True)
    seen = Effect(storage=None, reads=True, writes=True)
    assert not may_meet(load, load)
    assert may_meet(load, store) and may_meet(store, load) and may_meet(store, store)
    assert not may_meet(store, other)
    assert may_meet(load, fence) and may_meet(fence, other)
    assert may_meet(seen, seen) and not may_meet(seen, store)
    assert may_meet(seen, fence) and may_meet(fence, fence)


@helion.kernel
def many(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    shifted = x[:, 1:]
    for t in hl.tile(x.size(0)):
        x[t, :] = x[t, :] + 1
        y[t, 0] = hl.atomic_add(y, [t, 1], 1.0)
        print("row", y[t, 2])
        for j in hl.tile(y.size(1)):
            shifted[t, j] = y[t, j]
    return x


@helion.kernel(static_shapes=True)
def numbered(x: torch.Tensor, y: torch.Tensor, at: int) -> torch.Tensor:
    for t in hl.tile(x.size(0)):
        y[t, 0] = x[t]
        y[t, 1] = x[t]
        y[t, -1] = x[t]
        y[t, at] = x[t]
    return y


def test_numbers_tell_places_apart() -> None:
    x, y = torch.ones(4), torch.ones(4, 2)
    program = numbered.bind((x, y, 1))._analysis.program
    first, second, last, given = (op for op in accesses(program) if op.kind == "store")
    assert apart_by_numbers(program, first, second)
    # the last place is the second one, and the place that the launch gives may be any
    assert not apart_by_numbers(program, second, last)
    assert not apart_by_numbers(program, first, given) and not apart_by_numbers(program, given, second)
    assert not apart_by_numbers(program, first, first)
    shared = numbered.bind((x, torch.ones(4, 1).expand(4, 2), 1))._analysis.program
    first, second, *_ = (op for op in accesses(shared) if op.kind == "store")
    assert not apart_by_numbers(shared, first, second)


def test_effects_of_ops() -> None:
    program = program_of(many, torch.ones(4, 9), torch.ones(4, 8))
    first, second, atomic, third, fourth, *inside = accesses(program)
    (loop,) = (op for op in program.walk() if op.kind == "for")
    (printed,) = (op for op in program.walk() if op.kind == "print")
    x, y = (next(t.storage for t in program.tensors if t.name == name) for name in "xy")
    assert effects_of(program, first) == (Effect(storage=x, reads=True, writes=False),)
    assert effects_of(program, atomic) == (Effect(storage=y, reads=True, writes=True),)
    load, store = Effect(storage=y, reads=True, writes=False), Effect(storage=x, reads=False, writes=True)
    assert set(effects_of(program, loop)) == {load, store}
    assert effects_of(program, printed) == (Effect(storage=None, reads=True, writes=True),)
    assert ordered(program, second, loop) and ordered(program, third, loop) and not ordered(program, first, fourth)
    shifted = next(t for t in program.tensors if t.name == "shifted")
    assert may_alias(shifted, program.tensors[first.attrs.tensor])
    assert inside and not apart_along(program, second, inside[-1], first.attrs.indices[1].block)


def test_only_one_place_of_one_tensor_is_apart() -> None:
    @helion.kernel
    def kernel(x: torch.Tensor, wide: torch.Tensor, i: int) -> torch.Tensor:
        for t in hl.tile(x.size(0)):
            x[t, :] = x[t, :] + x[i, :] + x[t, 0][:, None]
            wide[t, :] = wide[t, :] + 1
        return x

    program = program_of(kernel, torch.ones(4, 8), torch.ones(11).as_strided((4, 8), (1, 1)), 0)
    row, other, column, store, overlapping, stored = accesses(program)
    block = row.attrs.indices[1].block
    assert apart_along(program, row, store, block) and apart_along(program, other, store, block)
    assert not apart_along(program, column, store, block)
    assert not apart_along(program, row, store, row.attrs.indices[0].block + 7)
    assert not apart_along(program, overlapping, stored, block)


# --- rows in chunks ------------------------------------------------------------------------------------------------------


def two_stores(x: torch.Tensor, y: torch.Tensor) -> None:
    for t in hl.tile(x.size(0)):
        v = x[t, :]
        y[t, :] = v + v.sum(-1)[:, None]
        y[t, :] = v + 1


def row_then_lanes(x: torch.Tensor, y: torch.Tensor) -> None:
    for t in hl.tile(x.size(0)):
        v = x[t, :]
        y[t, :] = v * v.amax(-1)[:, None]
        hl.store(y, [t, slice(None)], v * 0, extra_mask=v > 0)


def stored_before_the_last_load(x: torch.Tensor, y: torch.Tensor) -> None:
    for t in hl.tile(x.size(0)):
        v = x[t, :]
        total = v.sum(-1, keepdim=True)
        x[t, :] = v + 1
        y[t, 0] = torch.cos(v - total - (v * total).amax(-1, keepdim=True)).sum(-1)


def loaded_again(x: torch.Tensor, y: torch.Tensor) -> None:
    for t in hl.tile(x.size(0)):
        x[t, :] = x[t, :] + 1
        y[t, 0] = x[t, :].sum(-1)


def number_between(x: torch.Tensor, y: torch.Tensor) -> None:
    for t in hl.tile(x.size(0)):
        v = x[t, :]
        y[t, :] = v
        y[t, 3] = y[t, 2] + 1
        y[t, :] = y[t, :] * 2 + v.sum(-1)[:, None]


def atomic_between(x: torch.Tensor, y: torch.Tensor) -> None:
    for t in hl.tile(x.size(0)):
        v = x[t, :]
        y[t, :] = v
        before = hl.atomic_add(y, [t, 5], v.sum(-1))
        y[t, 4] = before
        x[t, :] = y[t, :] * 3


def in_a_branch(x: torch.Tensor, y: torch.Tensor) -> None:
    for t in hl.tile(x.size(0)):
        v = x[t, :]
        y[t, :] = v + v.sum(-1)[:, None]
        high = v.amax(-1)
        if x[0, 0] == x[0, 0]:
            y[t, 1] = high
        x[t, :] = y[t, :] + 1


def chosen_in_a_branch(x: torch.Tensor, y: torch.Tensor) -> None:
    for t in hl.tile(x.size(0)):
        total = x[t, :].sum(-1)
        if x[0, 0] == x[0, 0]:
            kept = total
        else:
            kept = total * 0
        y[t, :] = x[t, :] + kept[:, None]


def through_a_view(x: torch.Tensor, y: torch.Tensor) -> None:
    shifted = y[:, 1:]
    for t in hl.tile(x.size(0)):
        s = x[t, :].sum(-1)
        y[t, :] = x[t, :] + s[:, None]
        shifted[t, :] = x[t, 0][:, None] + shifted[t, :].amax(-1)[:, None]


ROLLED = (
    two_stores,
    row_then_lanes,
    stored_before_the_last_load,
    loaded_again,
    number_between,
    atomic_between,
    in_a_branch,
    chosen_in_a_branch,
    through_a_view,
)


def eager(function: Callable[..., None], x: torch.Tensor, y: torch.Tensor) -> None:
    helion.kernel(function, ref_mode=helion.RefMode.EAGER)(x, y)


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("function", ROLLED, ids=lambda f: f.__name__)
def test_rows_in_chunks(function: Callable[..., None], static: bool) -> None:
    x = torch.randn(5, 37, generator=torch.Generator().manual_seed(1))
    y = torch.zeros(5, 37)
    bound = helion.kernel(function, static_shapes=static).bind((x, y))
    blocks, reasons = rollable_blocks(bound._analysis.program)
    assert blocks and not reasons
    expected = x.double(), y.double()
    eager(function, *expected)
    for size, chunk in ((2, 8), (1, 16), (8, 32)):
        found = x.clone(), y.clone()
        bound.compile_config({"block_sizes": [size], "reduction_loops": [chunk] * len(blocks)})(*found)
        for got, want in zip(found, expected, strict=True):
            torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def test_the_default_of_a_long_row() -> None:
    x = torch.ones(1, 140000)
    y = torch.empty_like(x)
    kernel = helion.kernel(two_stores)
    assert kernel.bind((x, y)).config_spec.default_config()["reduction_loops"] != [None]
    kernel(x, y)
    assert torch.equal(y, x + 1)


def test_one_memory_in_two_arguments() -> None:
    memory = torch.arange(80.0).reshape(2, 40)
    x, y = memory[:, :37], memory[:, 3:]
    expected = memory.clone()
    expected[:, 3:] = memory[:, :37] + 1
    kernel = helion.kernel(copied_plus_one)
    assert rollable_blocks(program_of(kernel, x, y)) == (
        (),
        {1: "loads and stores of the same element would change their order"},
    )
    kernel(x, y)
    assert torch.equal(memory, expected)


def copied_plus_one(x: torch.Tensor, y: torch.Tensor) -> None:
    for t in hl.tile(x.size(0)):
        y[t, :] = x[t, :] + 1


def test_several_rows_roll_in_any_combination() -> None:
    @helion.kernel
    def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for t in hl.tile(x.size(0)):
            v, w = x[t, :], y[t, :]
            x[t, :] = v * w.sum(-1)[:, None]
            y[t, :] = w + v.amax(-1)[:, None]
            x[t, :] = x[t, :] + y[t, 0][:, None]
        return x

    x, y = torch.randn(3, 20), torch.randn(3, 33)
    program = program_of(kernel, x, y)
    blocks, _ = rollable_blocks(program)
    assert len(blocks) == 2
    want = x * y.sum(-1)[:, None] + (y[:, 0] + x.amax(-1))[:, None]
    for chunks in ([8, None], [None, 8], [16, 8]):
        roll(program, frozenset(b for b, chunk in zip(blocks, chunks, strict=True) if chunk))
        bound = kernel.bind((x, y))
        found = bound.compile_config({"block_sizes": [2], "reduction_loops": chunks})(x.clone(), y.clone())
        torch.testing.assert_close(found, want)


# --- loops over several dimensions ---------------------------------------------------------------------------------------


def order_slot(kernel: helion.Kernel, *args: Any) -> Any:
    (field,) = (f for f in kernel.bind(args)._analysis.space.fields if f.key == "loop_orders")
    return field.slots[0].fragment


def last_one_wins(x: torch.Tensor, y: torch.Tensor) -> None:
    for t in hl.tile(x.size(0)):
        for i, j in hl.grid([3, 4]):
            y[t, i + j] = x[t, i] * 10 + x[t, j]


def weighted_by_turn(x: torch.Tensor, y: torch.Tensor) -> None:
    for t in hl.tile(x.size(0)):
        total = x[t, 0] * 0
        for i, j in hl.grid([3, 4]):
            total = total * 2 + x[t, i + j]
        y[t, 0] = total


def exchanged(x: torch.Tensor, y: torch.Tensor) -> None:
    for t in hl.tile(x.size(0)):
        for i, j in hl.grid([3, 4]):
            y[t, i + 4] = hl.atomic_xchg(y, [t, 0], x[t, j])


def own_elements(x: torch.Tensor, y: torch.Tensor) -> None:
    for t in hl.tile(x.size(0)):
        y[t, 0] = 1.0
        for i, j in hl.grid([2, 2]):
            x[i, j] = x[i, j] + 1


def summed(x: torch.Tensor, y: torch.Tensor) -> None:
    for t in hl.tile(x.size(0)):
        total = hl.zeros([t])
        for i, j in hl.tile([3, 4]):
            total = total + x[i, j].sum() + y[i, j].amax()
        y[t, 6] = total
        for i, j in hl.grid([3, 4]):
            hl.atomic_add(y, [t, 7], x[i, j])


@pytest.mark.parametrize("function", [last_one_wins, weighted_by_turn, exchanged])
def test_iterations_stay_in_order(function: Callable[..., None]) -> None:
    x, y = torch.randn(2, 8), torch.zeros(2, 8)
    kernel = helion.kernel(function)
    expected = x.clone(), y.clone()
    eager(function, *expected)
    bound = kernel.bind((x, y))
    bound.compile_config(bound.config_spec.random(Random(3)))(x, y)
    torch.testing.assert_close((x, y), expected)
    with pytest.raises(exc.InvalidConfig, match="may see what an earlier one did"):
        bound.compile_config({"block_sizes": [2], "loop_orders": [[1, 0]]})
    bound.compile_config({"block_sizes": [2], "loop_orders": [(0, 1)]})


@pytest.mark.parametrize("function", [own_elements, summed])
def test_iterations_apart_may_change_places(function: Callable[..., None]) -> None:
    fragment = order_slot(helion.kernel(function), torch.randn(8, 8), torch.zeros(8, 8))
    assert fragment.why_not([1, 0]) is None


# --- other rewrites ------------------------------------------------------------------------------------------------------


def test_subtiles_tell_scalars_apart() -> None:
    """Rows ``i`` and ``j`` of one tensor have subscripts of one form, and other values."""

    @helion.kernel
    def kernel(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, turned: torch.Tensor) -> torch.Tensor:
        for a, b in hl.tile([x.size(0), y.size(1)]):
            acc = hl.zeros([a, b])
            for c in hl.tile(x.size(1)):
                acc = torch.addmm(acc, x[a, c], y[c, b])
            turned[a, b + 1] = acc
            out[a, b] = acc + turned[a, b]
        return out

    args = (torch.randn(32, 32), torch.randn(32, 64), torch.zeros(32, 64), torch.zeros(32, 65))
    assert subtile_blocks(program_of(kernel, *args)) == ((), "the epilogue accesses a tensor at several positions")


def test_what_is_stored_twice_is_not_copied_asynchronously() -> None:
    @helion.kernel(config=helion.Config(block_sizes=[64, 64], indexing="tensor_descriptor"))
    def kernel(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out, other = torch.empty_like(x), torch.empty_like(x)
        for a, b in hl.tile(x.size()):
            out[a, b] = x[a, b]
            out[a, b] = x[a, b] * 2
            other[a, b] = x[a, b]
        return out, other

    text = kernel.bind((torch.empty(256, 256, device="meta"),), target="sm_90").to_code()
    assert "out_desc" not in text and "other_desc.store(" in text
