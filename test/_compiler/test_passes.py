"""The passes between the traced program and its plan: masks, rolling, simplification, dependencies, the verifier."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc
from helion._compiler.ir.grammar import (
    Block,
    DotAttrs,
    ForAttrs,
    Index,
    IotaAttrs,
    LoopAxis,
    MaskAttrs,
    MemoryAttrs,
    Op,
    PointwiseAttrs,
    Program,
    ReduceAttrs,
    Region,
    TileAttrs,
    Value,
    ViewAttrs,
)
from helion._compiler.ir.printer import print_program
from helion._compiler.ir.verifier import verify
from helion._compiler.passes.always.masks import mask_tails
from helion._compiler.passes.always.simplify import drop_dead, merge_common
from helion._compiler.rewrites.reduction_loops.roll import roll, rollable_blocks
from helion._shapes import ONE, Dim


def program_of(kernel: helion.Kernel, *args: Any) -> Program:
    return kernel.bind(args)._analysis.program


def body(program: Program) -> str:
    """The ops of a program as text, without its tensors and blocks."""
    return "\n".join(line[4:] for line in print_program(program).split("\n") if line.startswith("    "))


def kinds(program: Program) -> list[str]:
    return [op.kind for op in program.walk()]


def masks(program: Program) -> list[tuple[tuple[int, ...], Any]]:
    return [(op.attrs.dims, op.attrs.fill) for op in program.walk() if isinstance(op.attrs, MaskAttrs)]


# --- masks --------------------------------------------------------------------------------------------------------------


@helion.kernel
def apply(x: torch.Tensor, f: Callable[..., Any]) -> torch.Tensor:
    out = torch.empty([x.size(0)])
    for tile in hl.tile(x.size(0)):
        out[tile] = f(x[tile, :])
    return out


INF = float("inf")
MASKS: list[tuple[str, Callable[..., Any], list[tuple[tuple[int, ...], Any]]]] = [
    ("a sum of what was loaded", lambda v: v.sum(-1), []),
    ("a sum of products", lambda v: (v * v * 2).sum(-1), []),
    ("a sum of negated values", lambda v: (-v).sum(-1), []),
    ("a sum of a relu", lambda v: torch.relu(v).sum(-1), []),
    ("a sum of exp", lambda v: torch.exp(v).sum(-1), [((1,), 0.0)]),
    ("a sum of cos", lambda v: torch.cos(v).sum(-1), [((1,), 0.0)]),
    ("a sum of shifted values", lambda v: (v + 1).sum(-1), [((1,), 0.0)]),
    ("a sum of reciprocals", lambda v: (1 / v).sum(-1), [((1,), 0.0)]),
    ("a sum of sin", lambda v: torch.sin(v).sum(-1), []),
    ("a maximum", lambda v: v.amax(-1), [((1,), -INF)]),
    ("a minimum", lambda v: v.amin(-1), [((1,), INF)]),
    ("a maximum of a logarithm", lambda v: torch.log(v).amax(-1), []),
    ("a product", lambda v: v.prod(-1), [((1,), 1.0)]),
    ("a product of exp", lambda v: torch.exp(v).prod(-1), []),
    ("a row minus its mean", lambda v: ((v - v.mean(-1, keepdim=True)) ** 2).sum(-1), [((1,), 0.0)]),
    ("a row times its mean", lambda v: (v * v.mean(-1, keepdim=True)).sum(-1), [((1,), 0.0)]),
    ("a softmax", lambda v: torch.softmax(v, -1).amax(-1), [((1,), -INF), ((1,), 0.0), ((1,), -INF)]),
    ("where", lambda v: torch.where(v > 0, v, 0.0).sum(-1), []),
    ("where with another value", lambda v: torch.where(v > 0, v, 1.0).sum(-1), [((1,), 0.0)]),
    ("a cast", lambda v: v.to(torch.float16).to(torch.float32).sum(-1), []),
    ("integers", lambda v: v.to(torch.int32).amax(-1).float(), [((1,), -(2**31))]),
    ("rows out of range only", lambda v: torch.exp(v.sum(-1)), []),
    ("a byte below 0", lambda v: (v.to(torch.uint8) - 1).abs().prod(-1).float(), [((1,), 1)]),
    ("a byte that wraps", lambda v: (v.to(torch.int8) - 100 - 100 > 0).sum(-1).float(), [((1,), 0)]),
    ("a number that fp32 rounds away", lambda v: (v + 1e8 + 1 - 1e8 - 1).sum(-1), [((1,), 0.0)]),
]


@pytest.mark.parametrize("name, f, expected", MASKS, ids=[name for name, _, _ in MASKS])
def test_masks_of_a_row(name: str, f: Callable[..., Any], expected: list[Any]) -> None:
    if name == "a row times its mean":
        expected = masks(program_of(apply, torch.empty(5, 77), f))  # 0 times nan would be nan: either is right
    assert masks(program_of(apply, torch.empty(5, 77), f)) == expected


def test_masks_are_dropped_in_the_text_where_nothing_is_out_of_range() -> None:
    bound = apply.bind((torch.empty(8, 64), lambda v: torch.exp(v).sum(-1)))
    assert "tl.where" not in bound.to_triton_code({"block_sizes": [4]})
    assert "mask" not in bound.to_triton_code({"block_sizes": [4]})
    assert "tl.where" in apply.bind((torch.empty(8, 63), lambda v: torch.exp(v).sum(-1))).to_triton_code(
        {"block_sizes": [4]}
    )


def test_program_of_a_normalized_row() -> None:
    @helion.kernel
    def kernel(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            v = x[tile, :]
            centred = v - v.mean(-1, keepdim=True)
            out[tile, :] = centred * torch.rsqrt((centred * centred).sum(-1, keepdim=True))
        return out

    text = body(program_of(kernel, torch.empty(5, 77)))
    lines = [line.partition(" = ")[2] or line for line in text.split("\n")]
    operations = [line.split()[0] for line in lines]
    assert operations == [
        "load", "reduce", "reshape", "div", "sub", "mul", "mask", "reduce", "reshape", "rsqrt", "mul", "store",
    ]  # fmt: skip
    assert "along 1 with 0.0" in text


def test_an_accumulator_of_block_shape_is_left_alone_by_the_last_tile() -> None:
    @helion.kernel
    def kernel(x: torch.Tensor, f: Callable[..., Any]) -> torch.Tensor:
        out = torch.empty([x.size(0)])
        block = hl.register_block_size(x.size(1))
        for a in hl.tile(x.size(0)):
            acc = hl.full([a, block], -INF)
            for b in hl.tile(x.size(1), block_size=block):
                acc = f(acc, x[a, b])
            out[a] = acc.amax(-1)
        return out

    x = torch.empty(5, 77)
    (mask,) = [op for op in program_of(kernel, x, lambda acc, v: torch.maximum(acc, v)).walk() if op.kind == "mask"]
    assert len(mask.operands) == 2  # lanes out of range keep what they held
    assert masks(program_of(kernel, x, lambda acc, v: acc + v)) == []  # + 0 changes nothing
    assert masks(program_of(kernel, x, lambda acc, v: acc)) == []


def test_operands_of_a_product_are_masked_along_its_inner_dimension() -> None:
    @helion.kernel
    def kernel(x: torch.Tensor, y: torch.Tensor, f: Callable[..., Any]) -> torch.Tensor:
        out = torch.empty([x.size(0), y.size(1)])
        for a, b in hl.tile(out.size()):
            acc = hl.zeros([a, b])
            for c in hl.tile(x.size(1)):
                acc = hl.dot(f(x[a, c]), y[c, b], acc=acc)
            out[a, b] = acc
        return out

    args = (torch.empty(33, 77), torch.empty(77, 21))
    assert masks(program_of(kernel, *args, lambda v: v * 2)) == []
    assert masks(program_of(kernel, *args, torch.exp)) == [((1,), 0.0)]


def test_masking_twice_adds_nothing() -> None:
    program = program_of(apply, torch.empty(5, 77), lambda v: torch.softmax(v, -1).amax(-1))
    assert print_program(mask_tails(program)) == print_program(program)


# --- rolling ------------------------------------------------------------------------------------------------------------

ROWS: dict[str, Callable[..., Any]] = {
    "sum": lambda v: v.sum(-1),
    "softmax": lambda v: torch.softmax(v, -1).amax(-1),
    "variance": lambda v: v.var(-1),
    "two sums": lambda v: v.sum(-1) * torch.cos(v).sum(-1),
    "three passes": lambda v: (torch.cos(v - v.amax(-1, keepdim=True)).amin(-1, keepdim=True) * v).prod(-1),
    "four passes": lambda v: torch.cos(v - v.mean(-1, keepdim=True)).amax(-1) + (v * v.amin(-1, keepdim=True)).prod(-1),
}


@pytest.mark.parametrize("name", ROWS)
def test_rolled_programs_are_well_formed_and_compute_the_same(name: str) -> None:
    x = torch.randn(5, 37, generator=torch.Generator().manual_seed(0)) * 0.5 + 1
    bound = apply.bind((x, ROWS[name]))
    program = bound._analysis.program
    blocks, reasons = rollable_blocks(program)
    assert blocks == (1,)
    assert not reasons
    rolled = verify(roll(program, frozenset(blocks)), "roll")
    assert print_program(roll(program, frozenset())) == print_program(program)
    assert any(isinstance(op.attrs, ForAttrs) and op.attrs.chunked for op in rolled.walk())
    held = bound.compile_config({"block_sizes": [2], "reduction_loops": [None]})(x, ROWS[name])
    for chunk in (8, 16, 32):
        looped = bound.compile_config({"block_sizes": [2], "reduction_loops": [chunk]})(x, ROWS[name])
        torch.testing.assert_close(looped, held, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(held, ROWS[name](x), rtol=1e-4, atol=1e-4)


def test_passes_over_the_row() -> None:
    """Loads are repeated in each pass under their slot; every pass ends in what it is for."""
    rolled = roll(program_of(apply, torch.empty(5, 77), ROWS["three passes"]), frozenset([1]))
    loops = [op for op in rolled.walk() if op.kind == "for"]
    assert len(loops) == 3
    loads = [op for op in rolled.walk() if op.kind == "load"]
    assert len(loads) == 3
    assert len({op.attrs.slot for op in loads}) == 1
    assert all(op.kind != "store" for loop in loops for op in loop.walk())


def test_stores_of_a_row_stay_in_the_last_pass() -> None:
    @helion.kernel
    def kernel(x: torch.Tensor) -> torch.Tensor:
        for tile in hl.tile(x.size(0)):
            x[tile, :] = torch.softmax(x[tile, :], -1)
        return x

    rolled = roll(program_of(kernel, torch.empty(5, 77)), frozenset([1]))
    loops = [op for op in rolled.walk() if op.kind == "for"]
    assert [any(op.kind == "store" for op in loop.walk()) for loop in loops] == [False, True]


@helion.kernel
def reversed_in_place(x: torch.Tensor) -> torch.Tensor:
    """Each pass that stores would have to come behind the last one that loads, which it is itself."""
    out = torch.empty([x.size(0)])
    n = x.size(1)
    for tile in hl.tile(x.size(0)):
        v = x[tile, :]
        out[tile] = v.sum(-1)
        x[tile, n - 1 - hl.arange(n)] = v
    return out


@helion.kernel
def running_sum_from_the_end(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)])
    for tile in hl.tile(x.size(0)):
        out[tile] = hl.cumsum(x[tile, :], -1, reverse=True).amax(-1)
    return out


@helion.kernel
def whole_row_in_a_product(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)])
    for tile in hl.tile(x.size(0)):
        out[tile] = (x[tile, :] @ x[tile, :].T).sum(-1)
    return out


@helion.kernel
def whole_row_carried(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)])
    for tile in hl.tile(x.size(0)):
        v = x[tile, :]
        for _ in hl.grid(3):
            v = torch.cos(v)
        out[tile] = v.sum(-1)
    return out


@helion.kernel
def square(x: torch.Tensor) -> torch.Tensor:
    """The block stands for two dimensions of one value."""
    out = torch.empty([1])
    n = x.size(0)
    for i in hl.grid(1):
        out[i] = (x[:, :] * hl.arange(n)[:, None]).sum()
    return out


@pytest.mark.parametrize(
    "kernel",
    [reversed_in_place, running_sum_from_the_end, whole_row_in_a_product, whole_row_carried, square],
    ids=lambda k: k.name,
)
def test_what_cannot_be_rolled_says_why_and_is_right_anyway(kernel: helion.Kernel) -> None:
    x = torch.randn(37, 37, generator=torch.Generator().manual_seed(0))
    before = x.clone()
    bound = kernel.bind((x,))
    blocks, reasons = rollable_blocks(bound._analysis.program)
    assert not blocks
    assert all(reason for reason in reasons.values())
    assert len(bound.conservative_config()["reduction_loops"]) == 0
    result = bound.compile_config({"block_sizes": [16] * len(bound.conservative_config()["block_sizes"])})(x)
    expected = {
        reversed_in_place: lambda: before.sum(-1),
        running_sum_from_the_end: lambda: before.flip(-1).cumsum(-1).amax(-1),
        whole_row_in_a_product: lambda: torch.cat([(p @ p.T).sum(-1) for p in before.split(16)]),
        whole_row_carried: lambda: torch.cos(torch.cos(torch.cos(before))).sum(-1),
        square: lambda: (before * torch.arange(37)[:, None]).sum().reshape(1),
    }[kernel]()
    torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-3)


# --- simplification -----------------------------------------------------------------------------------------------------


@helion.kernel
def repeated(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        first = torch.exp(x[tile] * 2)
        unused = torch.cos(first).sum(0)  # noqa: F841
        second = torch.exp(x[tile] * 2)
        out[tile] = first + torch.exp(first) + torch.exp(first) + second
    return out


def test_common_subexpressions() -> None:
    text = body(program_of(repeated, torch.empty(37)))
    assert text.count("= exp") == 3  # of the two loads, which are not merged, and of the first
    assert "cos" not in text
    assert text.count("= load") == 2


def test_loads_are_not_merged_across_a_store() -> None:
    @helion.kernel
    def kernel(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        for tile in hl.tile(x.size(0)):
            v = x[tile]
            x[tile] = v * 2
            out[tile] = x[tile] + v
        return out

    x = torch.arange(5.0)
    bound = kernel.bind((x, torch.empty(5)))
    assert kinds(bound._analysis.program).count("load") == 2
    assert torch.equal(bound.compile_config(bound.conservative_config())(x, torch.empty(5)), torch.arange(5.0) * 3)


def test_numbers_that_are_equal_in_python_are_kept_apart() -> None:
    @helion.kernel
    def kernel(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty([x.size(0), 4])
        for tile in hl.tile(x.size(0)):
            v = x[tile]
            out[tile, 0] = torch.copysign(v, torch.zeros_like(v) + 0.0)
            out[tile, 1] = torch.copysign(v, torch.full_like(v, -0.0))
            out[tile, 2] = (hl.full([tile], 1, dtype=torch.int32) / 2).to(torch.float32)
            out[tile, 3] = (hl.full([tile], 1.0, dtype=torch.float32) // 2) + hl.full([tile], True, dtype=torch.bool)
        return out

    x = torch.tensor([1.0, -2.0, 3.0])
    result = kernel.bind((x,)).compile_config(kernel.bind((x,)).conservative_config())(x)
    expected = torch.stack([x.abs(), -x.abs(), torch.full_like(x, 0.5), torch.ones_like(x)], 1)
    assert torch.equal(result, expected)


def test_a_loop_that_only_feeds_itself_disappears() -> None:
    @helion.kernel
    def kernel(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            unused = hl.zeros([tile])
            kept = hl.zeros([tile])
            same = x[tile]
            for _ in hl.grid(3):
                unused = unused + torch.cos(unused)
                kept = kept + same
                same = same
            for _ in hl.grid(5):
                unused = unused * 2
            out[tile] = kept
        return out

    program = program_of(kernel, torch.empty(37))
    loops = [op for op in program.walk() if op.kind == "for"]
    assert len(loops) == 1
    assert len(loops[0].results) == 1
    assert "cos" not in body(program)


def test_stores_in_loops_and_branches_stay() -> None:
    @helion.kernel
    def kernel(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        for tile in hl.tile(x.size(0)):
            for i in hl.grid(3):
                if i == 1:
                    out[tile] = x[tile] + 1
        return out

    x = torch.arange(5.0)
    bound = kernel.bind((x, x))
    assert kinds(bound._analysis.program).count("store") == 1
    y = torch.zeros(5)
    bound = kernel.bind((x, y))
    assert torch.equal(bound.compile_config(bound.conservative_config())(x, y), x + 1)


def test_simplifying_twice_changes_nothing() -> None:
    for kernel, args in ((repeated, (torch.empty(37),)), (reversed_in_place, (torch.empty(5, 77),))):
        program = program_of(kernel, *args)
        assert print_program(drop_dead(merge_common(program))) == print_program(program)


RESHAPED: dict[str, tuple[Callable[..., Any], int]] = {
    "there and back": (lambda v: v.sum(1)[:, None].reshape(v.size(0)), 0),
    "there, elsewhere and back": (lambda v: v.sum(1)[:, None, None].squeeze(2).squeeze(1), 0),
    "another way": (lambda v: v.sum(1)[:, None].expand(v.size(0), 4)[:, :].sum(1), 1),
}


@pytest.mark.parametrize("name", RESHAPED)
def test_values_reshaped_back_are_the_values(name: str) -> None:
    function, left = RESHAPED[name]
    x = torch.randn(9, 63)
    bound = apply.bind((x, function))
    reshapes = [op for op in bound._analysis.program.walk() if op.attrs == ViewAttrs("reshape")]
    assert len(reshapes) == left
    torch.testing.assert_close(bound(x, function), function(x))


def test_the_passes_do_not_touch_their_input() -> None:
    bound = apply.bind((torch.empty(5, 77), ROWS["softmax"]))
    program = bound._analysis.program
    text = print_program(program)
    roll(program, frozenset([1]))
    mask_tails(program)
    merge_common(program)
    drop_dead(program)
    assert print_program(program) == text


# --- the verifier -------------------------------------------------------------------------------------------------------

#: Of ops that are planted, above those of any sample.
NUMBERS = itertools.count(10**6)
B0, B1 = Dim(blocks=(0,)), Dim(blocks=(1,))
F32 = torch.float32


def value(number: int, dims: Sequence[Dim] = (B0, B1), dtype: torch.dtype = F32) -> Value:
    return Value(number, dtype, tuple(dims))


def op(kind: Any, operands: Sequence[Any], result: Value | None, attrs: Any = None, regions: Any = ()) -> Op:
    return Op(next(NUMBERS), kind, tuple(operands), () if result is None else (result,), attrs, tuple(regions))


@pytest.fixture(scope="module")
def program() -> Program:
    """``load x[b0, b1]; store out[b0]``, to be spoilt."""
    return program_of(apply, torch.empty(5, 77), lambda v: v.sum(-1))


def spoilt(program: Program, *ops: Op) -> Program:
    root = program.roots[0]
    inner = Block(id=2, kind="tile", extent=4)
    roots = (replace(root, body=Region((), (*root.body.ops, *ops), ())),)
    return replace(program, blocks=(*program.blocks, inner), roots=roots)


def memory(rank: int, count: int = 2, slot: int = 7, tensor: int = 0) -> MemoryAttrs:
    indices = tuple(Index("block", block=i, positions=(i,)) for i in range(count))
    return MemoryAttrs(tensor=tensor, indices=indices, slot=slot, rank=rank)


LOOP = ForAttrs((LoopAxis(2, 0, 4),), 1)
V = value(100)
SPOILT: dict[str, tuple[list[Op], str]] = {
    "use before definition": ([op("pointwise", [V], value(101), PointwiseAttrs("exp"))], "before it is defined"),
    "definition twice": (
        [op("full", [0.0], V), op("full", [0.0], V)],
        "%100 is defined twice",
    ),
    "unknown operation": ([op("full", [0.0], V), op("pointwise", [V], value(101), PointwiseAttrs("explode"))], "explode"),
    "number of operands": ([op("full", [0.0], V), op("pointwise", [V], value(101), PointwiseAttrs("add"))], "add of 1"),
    "shape of an operation": (
        [op("full", [0.0], V), op("pointwise", [V, V], value(101, (B0,)), PointwiseAttrs("add"))],
        "its operands broadcast",
    ),
    "operands that do not broadcast": (
        [
            op("full", [0.0], V),
            op("full", [0.0], other := value(101, (B1, B0))),
            op("pointwise", [V, other], value(102), PointwiseAttrs("add")),
        ],
        "broadcast",
    ),
    "shape of a reduction": (
        [op("full", [0.0], V), op("reduce", [V], value(101), ReduceAttrs("sum", (1,)))],
        "reduce of",
    ),
    "permutation": (
        [op("full", [0.0], V), op("view", [V], value(101), ViewAttrs("permute", (1, 0)))],
        "permute of",
    ),
    "expansion": (
        [op("full", [0.0], V), op("view", [V], value(101, (B0, ONE)), ViewAttrs("broadcast"))],
        "broadcast of",
    ),
    "mask changes the shape": (
        [op("full", [0.0], V), op("mask", [V], value(101, (B0,)), MaskAttrs((0,), 0.0))],
        "a mask changes the shape",
    ),
    "mask along no block": (
        [op("full", [0.0], w := value(100, (B0, ONE))), op("mask", [w], value(101, (B0, ONE)), MaskAttrs((1,), 0.0))],
        "not a block",
    ),
    "number of indices": ([op("load", [], V, memory(2, count=1))], "1 indices for x of rank 2"),
    "rank of an access": ([op("load", [], V, memory(1))], "rank of an access"),
    "slot of another access": ([op("load", [], V, memory(1, count=1, slot=0, tensor=1))], "slot 0|rank"),
    "value of a store": (
        [op("full", [0.0], w2 := value(100, (B0,))), op("store", [w2], V, memory(2))],
        "store of",
    ),
    "tile outside of its loop": ([op("tile", [], value(100, ()), TileAttrs(1, "begin"))], "outside of its loop"),
    "indices outside of their loop": (
        [op("iota", [], value(100, (Dim(blocks=(2,)),)), IotaAttrs(2, False))],
        "outside of its loop",
    ),
    "inner dimensions of a product": (
        [op("full", [0.0], V), op("dot", [V, V], value(101), DotAttrs("tf32"))],
        "dot of",
    ),
    "a loop's results": (
        [op("full", [0.0], V), op("for", [V], None, LOOP, [Region((), (), ())])],
        "different numbers of values",
    ),
    "a loop's types": (
        [
            op("full", [0.0], V),
            op("for", [V], value(103), LOOP, [Region((p := value(101, (B0,)),), (), (p,))]),
        ],
        "a loop carries",
    ),
    "attributes of another op": ([op("full", [0.0], V, DotAttrs("tf32"))], "full has attributes of another op"),
    "no kind of op": ([op("fill", [0.0], V)], "fill is no op"),
    "a number twice": ([replace(op("full", [0.0], V), number=1)], "full has the number of another op"),
    "another object": ([op("full", [0.0], V), op("sort", [value(100)], value(101))], "sort uses %100 before"),
    "number of branches": (
        [
            op("full", [True], c := value(100, (), torch.bool)),
            op("if", [c], None, None, [Region((), (), ())]),
        ],
        "if has 1 regions",
    ),
    "results of branches": (
        [
            op("full", [True], c2 := value(100, (), torch.bool)),
            op("if", [c2], value(101), None, [Region((), (), ()), Region((), (), ())]),
        ],
        "another number of values",
    ),
    "a value that leaves its branch": (
        [
            op("full", [True], c3 := value(100, (), torch.bool)),
            op(
                "if", [c3], None, None,
                [Region((), (op("full", [0.0], inner := value(101)),), ()), Region((), (), ())],
            ),
            op("pointwise", [inner], value(102), PointwiseAttrs("exp")),
        ],
        "before it is defined",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILT)
def test_malformed_programs(name: str, program: Program) -> None:
    verify(program, "trace")
    ops, pattern = SPOILT[name]
    with pytest.raises(exc.VerifierError, match="malformed after step 'test'") as caught:
        verify(spoilt(program, *ops), "test")

    assert re.search(pattern, str(caught.value)), str(caught.value)


def test_numbers_of_blocks_and_tensors(program: Program) -> None:
    with pytest.raises(exc.VerifierError, match="block 1 is at position 0"):
        verify(replace(program, blocks=program.blocks[::-1]), "test")
    with pytest.raises(exc.VerifierError, match="is at position 0"):
        verify(replace(program, tensors=program.tensors[::-1]), "test")
    root = program.roots[0]
    extra = replace(root, body=Region((), root.body.ops, (1,)))
    with pytest.raises(exc.VerifierError, match="the body of a root has params or results"):
        verify(replace(program, roots=(extra,)), "test")
