"""Loops over taps around a loop over channels: which become one loop, and what that gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from harness import program_of, tensor

import helion
import helion.language as hl
from helion._compiler.ir.grammar import ForAttrs, Op, Program
from helion._compiler.ir.rewrite import map_ops
from helion._compiler.rewrites.fuse_loops import fusible_loops
from helion._compiler.rewrites.fuse_loops.nests import without_nests

BF16 = torch.bfloat16


def grid(x, w):
    b, hp, wp, c = x.size()
    c, h, wide, d = hl.specialize(c), hp - 2, wp - 2, w.size(3)
    out = torch.empty([b, h, wide, d], dtype=x.dtype, device=x.device)
    for tb, th, tw, td in hl.tile([b, h, wide, d], block_size=[1, 1, None, None]):
        acc = hl.zeros([tw, td], dtype=torch.float32)
        for i, j in hl.grid([3, 3]):
            for tc in hl.tile(c):
                acc = hl.dot(x[tb.begin, th.begin + i, tw.index + j, tc], w[i, j, tc, td], acc=acc)
        out[tb.begin, th.begin, tw, td] = acc.to(x.dtype)
    return out


def nested(x, w):
    b, hp, wp, c = x.size()
    c, h, wide, d = hl.specialize(c), hp - 2, wp - 2, w.size(3)
    out = torch.empty([b, h, wide, d], dtype=x.dtype, device=x.device)
    for tb, th, tw, td in hl.tile([b, h, wide, d], block_size=[1, 1, None, None]):
        acc = hl.zeros([tw, td], dtype=torch.float32)
        for i in range(3):
            y = th.begin + i
            for j in hl.grid(3):
                for tc in hl.tile(c):
                    acc = hl.dot(x[tb.begin, y, tw.index + j, tc], w[i, j, tc, td], acc=acc)
        out[tb.begin, th.begin, tw, td] = acc.to(x.dtype)
    return out


def mixed(x, w):
    """Unrolled by the user along one side."""
    b, hp, wp, c = x.size()
    c, h, wide, d = hl.specialize(c), hp - 2, wp - 2, w.size(3)
    out = torch.empty([b, h, wide, d], dtype=x.dtype, device=x.device)
    for tb, th, tw, td in hl.tile([b, h, wide, d], block_size=[1, 1, None, None]):
        acc = hl.zeros([tw, td], dtype=torch.float32)
        for i in hl.static_range(3):
            for j in range(3):
                for tc in hl.tile(c):
                    acc = hl.dot(x[tb.begin, th.begin + i, tw.index + j, tc], w[i, j, tc, td], acc=acc)
        out[tb.begin, th.begin, tw, td] = acc.to(x.dtype)
    return out


def tiles_of_one(x, w):
    """All in one loop, with the channels between the taps."""
    b, hp, wp, c = x.size()
    c, h, wide, d = hl.specialize(c), hp - 2, wp - 2, w.size(3)
    out = torch.empty([b, h, wide, d], dtype=x.dtype, device=x.device)
    for tb, th, tw, td in hl.tile([b, h, wide, d], block_size=[1, 1, None, None]):
        acc = hl.zeros([tw, td], dtype=torch.float32)
        for ti, tc, tj in hl.tile([3, c, 3], block_size=[1, None, 1]):
            i, j = ti.begin, tj.id
            acc = hl.dot(x[tb.begin, th.begin + i, tw.index + j, tc], w[i, j, tc, td], acc=acc)
        out[tb.begin, th.begin, tw, td] = acc.to(x.dtype)
    return out


def numbered(x, w):
    """One number for both sides, in steps, with the taps from last to first, and a count that is stored."""
    b, hp, wp, c = x.size()
    c, h, wide, d = hl.specialize(c), hp - 2, wp - 2, w.size(3)
    out = torch.empty([b, h, wide, d], dtype=x.dtype, device=x.device)
    for tb, th, tw, td in hl.tile([b, h, wide, d], block_size=[1, 1, None, None]):
        acc = hl.zeros([tw, td], dtype=torch.float32)
        for tap in hl.grid(4, 22, step=2):
            at = 8 - (tap // 2 - 2)
            i, j = at // 3, at % 3
            for tc in hl.tile(c):
                acc = hl.dot(x[tb.begin, th.begin + i, tw.index + j, tc], w[i, j, tc, td], acc=acc)
        out[tb.begin, th.begin, tw, td] = acc.to(x.dtype)
    return out


def padded(x, w):
    """Zeros around the image, which no memory holds."""
    b, h, wide, c = x.size()
    c, d = hl.specialize(c), w.size(3)
    out = torch.empty([b, h, wide, d], dtype=x.dtype, device=x.device)
    for tb, th, tw, td in hl.tile([b, h, wide, d], block_size=[1, 1, None, None]):
        acc = hl.zeros([tw, td], dtype=torch.float32)
        for i, j in hl.grid([3, 3]):
            y, z = th.begin + i - 1, tw.index + (j - 1)
            inside = (y >= 0) & (y < h) & (z >= 0) & (z < wide)
            for tc in hl.tile(c):
                rows = hl.load(x, [tb.begin, y, z, tc], extra_mask=inside[:, None])
                acc = hl.dot(rows, w[i, j, tc, td], acc=acc)
        out[tb.begin, th.begin, tw, td] = acc.to(x.dtype)
    return out


def activated(x, w):
    """A function of each tile, and of the sum."""
    b, hp, wp, c = x.size()
    c, h, wide, d = hl.specialize(c), hp - 2, wp - 2, w.size(3)
    out = torch.empty([b, h, wide, d], dtype=x.dtype, device=x.device)
    for tb, th, tw, td in hl.tile([b, h, wide, d], block_size=[1, 1, None, None]):
        acc = hl.zeros([tw, td], dtype=torch.float32)
        for i, j in hl.grid([3, 3]):
            for tc in hl.tile(c):
                rows = torch.relu(x[tb.begin, th.begin + i, tw.index + j, tc])
                acc = hl.dot(rows, w[i, j, tc, td], acc=acc)
        out[tb.begin, th.begin, tw, td] = torch.relu(acc).to(x.dtype)
    return out


def convolved(x: torch.Tensor, w: torch.Tensor, padding: int = 0) -> torch.Tensor:
    found = F.conv2d(x.double().permute(0, 3, 1, 2), w.double().permute(3, 2, 0, 1), padding=padding)
    return found.permute(0, 2, 3, 1)


FORMS: dict[str, Callable[..., Any]] = {
    fn.__name__: fn for fn in (grid, nested, mixed, tiles_of_one, numbered, padded, activated)
}


def _reference(fn: Callable[..., Any], x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    if fn is activated:
        return torch.relu(convolved(torch.relu(x), w))
    return convolved(x, w, int(fn is padded))


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize("name", FORMS)
def test_taps_in_loops_are_one_loop_and_right(name: str, dtype: torch.dtype, static: bool) -> None:
    fn = FORMS[name]
    x, w = torch.randn(2, 6, 9, 48).to(dtype), (torch.randn(3, 3, 48, 20) / 20).to(dtype)
    bound = helion.kernel(fn, static_shapes=static).bind((x, w))
    loops = len(bound.default_config()["block_sizes"]) - 2
    config = bound.config_spec.normalize(helion.Config(block_sizes=[16] * (2 + loops), fuse_loops=True))
    code = bound.to_triton_code(config)
    assert config["fuse_loops"] and code.count("tl.dot(") == 1 and code.count("tl.range(") == 1
    want, got = _reference(fn, x, w), bound.compile_config(config)(x, w).double()
    apart = bound.compile_config(helion.Config(block_sizes=[16] * (2 + loops)))(x, w).double()
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    assert (got - want).abs().max() <= tolerance * want.abs().max()
    assert (apart - want).abs().max() <= tolerance * want.abs().max()


@pytest.mark.parametrize("name", FORMS)
def test_the_loop_that_is_left_keeps_its_number(name: str) -> None:
    """Options of the loop over channels apply to it."""
    program = program_of(FORMS[name], tensor(2, 6, 9, 48), tensor(3, 3, 48, 20))
    run = fusible_loops(program)
    assert run is not None and len(run.loops) == 9
    inner = [op for op in program.walk() if isinstance(op.attrs, ForAttrs) and op.regions[0].ops[-1].kind != "for"]
    assert run.loops[0].number == inner[0].number
    assert len({op.number for op in without_nests(program).walk()}) == len(list(without_nests(program).walk()))


def stored(x, w):
    out = torch.empty([9, x.size(0), w.size(2)], dtype=torch.float32, device=x.device)
    for tm, td in hl.tile([x.size(0), w.size(2)]):
        acc = hl.zeros([tm, td], dtype=torch.float32)
        for i in hl.grid(9):
            for tc in hl.tile(x.size(1)):
                acc = hl.dot(x[tm, tc], w[i, tc, td], acc=acc)
            out[i, tm, td] = acc
    return out


def scaled(x, w):
    out = torch.empty([x.size(0), w.size(2)], dtype=torch.float32, device=x.device)
    for tm, td in hl.tile([x.size(0), w.size(2)]):
        acc = hl.zeros([tm, td], dtype=torch.float32)
        for i in hl.grid(9):
            for tc in hl.tile(x.size(1)):
                acc = hl.dot(x[tm, tc], w[i, tc, td], acc=acc)
            acc = acc * 0.5
        out[tm, td] = acc
    return out


def restarted(x, w):
    out = torch.empty([x.size(0), w.size(2)], dtype=torch.float32, device=x.device)
    for tm, td in hl.tile([x.size(0), w.size(2)]):
        total = hl.zeros([tm, td], dtype=torch.float32)
        for i in hl.grid(9):
            acc = hl.zeros([tm, td], dtype=torch.float32)
            for tc in hl.tile(x.size(1)):
                acc = hl.dot(x[tm, tc], w[i, tc, td], acc=acc)
            total = torch.maximum(total, acc)
        out[tm, td] = total
    return out


def squared(x, w):
    """Places of taps that are not linear in the number of the iteration."""
    out = torch.empty([x.size(0), w.size(2)], dtype=torch.float32, device=x.device)
    for tm, td in hl.tile([x.size(0), w.size(2)]):
        acc = hl.zeros([tm, td], dtype=torch.float32)
        for i in hl.grid(3):
            for tc in hl.tile(x.size(1)):
                acc = hl.dot(x[tm, tc], w[i * i, tc, td], acc=acc)
        out[tm, td] = acc
    return out


def weighted(x, w):
    """A number that each tap loads."""
    out = torch.empty([x.size(0), w.size(2)], dtype=torch.float32, device=x.device)
    for tm, td in hl.tile([x.size(0), w.size(2)]):
        acc = hl.zeros([tm, td], dtype=torch.float32)
        for i in hl.grid(9):
            weight = x[i, 0]
            for tc in hl.tile(x.size(1)):
                acc = hl.dot(x[tm, tc] * weight, w[i, tc, td], acc=acc)
        out[tm, td] = acc
    return out


def triangular(x, w):
    """Fewer channels for each tap."""
    out = torch.empty([x.size(0), w.size(2)], dtype=torch.float32, device=x.device)
    for tm, td in hl.tile([x.size(0), w.size(2)]):
        acc = hl.zeros([tm, td], dtype=torch.float32)
        for i in hl.grid(9):
            for tc in hl.tile(0, x.size(1) - 16 * i):
                acc = hl.dot(x[tm, tc], w[i, tc, td], acc=acc)
        out[tm, td] = acc
    return out


def counted(x, w):
    """As many taps as data say."""
    out = torch.empty([x.size(0), w.size(2)], dtype=torch.float32, device=x.device)
    for tm, td in hl.tile([x.size(0), w.size(2)]):
        acc = hl.zeros([tm, td], dtype=torch.float32)
        for i in hl.grid(x[0, 0].to(torch.int32)):
            for tc in hl.tile(x.size(1)):
                acc = hl.dot(x[tm, tc], w[i, tc, td], acc=acc)
        out[tm, td] = acc
    return out


def many(x, w):
    """More taps than windows have."""
    out = torch.empty([x.size(0), w.size(2)], dtype=torch.float32, device=x.device)
    for tm, td in hl.tile([x.size(0), w.size(2)]):
        acc = hl.zeros([tm, td], dtype=torch.float32)
        for i, j in hl.grid([9, 9]):
            for tc in hl.tile(x.size(1)):
                acc = hl.dot(x[tm + j, tc], w[i, tc, td], acc=acc)
        out[tm, td] = acc
    return out


def over_tiles(x, w):
    """Taps that are a dimension of what the loop loads."""
    out = torch.empty([x.size(0), w.size(2)], dtype=torch.float32, device=x.device)
    for tm, td in hl.tile([x.size(0), w.size(2)]):
        acc = hl.zeros([tm, td], dtype=torch.float32)
        for ti, tc in hl.tile([9, x.size(1)], block_size=[1, None]):
            acc = hl.dot(x[tm, tc], w[ti, tc, td].reshape([tc, td]), acc=acc)
        out[tm, td] = acc
    return out


def ends(x, w):
    """Another place of a tile of one element than its first."""
    out = torch.empty([x.size(0), w.size(2)], dtype=torch.float32, device=x.device)
    for tm, td in hl.tile([x.size(0), w.size(2)]):
        acc = hl.zeros([tm, td], dtype=torch.float32)
        for ti, tc in hl.tile([9, x.size(1)], block_size=[1, None]):
            acc = hl.dot(x[tm, tc], w[ti.end - 1, tc, td], acc=acc)
        out[tm, td] = acc
    return out


def two_inside(x, w):
    """Two loops over other tensors for each tap."""
    out = torch.empty([x.size(0), w.size(2)], dtype=torch.float32, device=x.device)
    for tm, td in hl.tile([x.size(0), w.size(2)]):
        acc = hl.zeros([tm, td], dtype=torch.float32)
        for i in hl.grid(4):
            for tc in hl.tile(x.size(1)):
                acc = hl.dot(x[tm, tc], w[i, tc, td], acc=acc)
            for tc in hl.tile(x.size(1)):
                acc = hl.dot(w[i, tm, tc], x[tc, td], acc=acc)
        out[tm, td] = acc
    return out


def two_dimensions(x, w):
    """Channels in two dimensions."""
    out = torch.empty([x.size(0), w.size(2)], dtype=torch.float32, device=x.device)
    for tm, td in hl.tile([x.size(0), w.size(2)]):
        acc = hl.zeros([tm, td], dtype=torch.float32)
        for ti, tc, te in hl.tile([9, x.size(1), 32], block_size=[1, None, None]):
            acc = hl.dot(x[tm, tc], w[ti.begin, tc, td], acc=acc) + te.begin
        out[tm, td] = acc
    return out


def begun_later(x, w):
    """Tiles of one element whose number is not their place."""
    out = torch.empty([x.size(0), w.size(2)], dtype=torch.float32, device=x.device)
    for tm, td in hl.tile([x.size(0), w.size(2)]):
        acc = hl.zeros([tm, td], dtype=torch.float32)
        for ti, tc in hl.tile([2, 0], [5, x.size(1)], block_size=[1, None]):
            acc = hl.dot(x[tm, tc], w[ti.id, tc, td], acc=acc)
        out[tm, td] = acc
    return out


def summed(x, w):
    """A reduction in the loop over channels."""
    out = torch.empty([x.size(0), w.size(2)], dtype=torch.float32, device=x.device)
    for tm, td in hl.tile([x.size(0), w.size(2)]):
        acc = hl.zeros([tm, td], dtype=torch.float32)
        for i in hl.grid(9):
            for tc in hl.tile(x.size(1)):
                rows = x[tm, tc]
                acc = hl.dot(rows - rows.sum(1, keepdim=True), w[i, tc, td], acc=acc)
        out[tm, td] = acc
    return out


def beside_another(x, w):
    """A loop without a matmul for each tap."""
    out = torch.empty([x.size(0), w.size(2)], dtype=torch.float32, device=x.device)
    for tm, td in hl.tile([x.size(0), w.size(2)]):
        acc = hl.zeros([tm, td], dtype=torch.float32)
        most = hl.zeros([td], dtype=torch.float32)
        for i in hl.grid(9):
            for tc in hl.tile(x.size(1)):
                acc = hl.dot(x[tm, tc], w[i, tc, td], acc=acc)
            for row in hl.grid(x.size(1)):
                most = torch.maximum(most, w[i, row, td])
        out[tm, td] = acc + most[None, :]
    return out


def divided_by_zero(x, w):
    """A number that no compiler knows."""
    out = torch.empty([x.size(0), w.size(2)], dtype=torch.float32, device=x.device)
    for tm, td in hl.tile([x.size(0), w.size(2)]):
        acc = hl.zeros([tm, td], dtype=torch.float32)
        for i, j in hl.grid([3, 3]):
            for tc in hl.tile(x.size(1)):
                acc = hl.dot(x[tm, tc], w[i // j, tc, td], acc=acc)
        out[tm, td] = acc
    return out


def in_two_grids(x, w):
    out, first = torch.empty([x.size(0), w.size(2)]), torch.empty([x.size(0), w.size(2)])
    for tm, td in hl.tile([x.size(0), w.size(2)]):
        acc = hl.zeros([tm, td], dtype=torch.float32)
        for i in hl.grid(9):
            for tc in hl.tile(x.size(1)):
                acc = hl.dot(x[tm, tc], w[i, tc, td], acc=acc)
        out[tm, td] = acc
    for tm, td in hl.tile([x.size(0), w.size(2)]):
        first[tm, td] = w[0, tm, td].to(torch.float32)
    return out, first


KEPT = (
    stored,
    triangular,
    counted,
    many,
    over_tiles,
    ends,
    two_dimensions,
    begun_later,
    summed,
    beside_another,
    in_two_grids,
)
#: Nests whose iterations differ by more than constants, or are not one chain of sums.
APART = (scaled, restarted, squared, weighted, two_inside, divided_by_zero)


def _program(fn: Callable[..., Any]) -> Program:
    return program_of(fn, tensor(64, 64), tensor(9, 64, 64))


@pytest.mark.parametrize("fn", KEPT, ids=lambda fn: fn.__name__)
def test_nests_with_other_effects_or_bounds_stay(fn: Callable[..., Any]) -> None:
    program = _program(fn)
    assert without_nests(program) is program and fusible_loops(program) is None


@pytest.mark.parametrize("fn", APART, ids=lambda fn: fn.__name__)
def test_iterations_that_are_no_chain_are_not_fused(fn: Callable[..., Any]) -> None:
    program = _program(fn)
    assert without_nests(program) is not program and fusible_loops(program) is None


def test_loops_that_wait_for_other_programs_stay() -> None:
    program = program_of(grid, tensor(2, 6, 9, 48), tensor(3, 3, 48, 20))

    def waiting(op: Op) -> Op:
        return replace(op, attrs=replace(op.attrs, mark=0)) if op.kind == "load" else op

    made = map_ops(program, waiting)
    assert without_nests(program) is not program and without_nests(made) is made


def test_other_kernels_are_the_same_program() -> None:
    def product(x, y):
        out = torch.empty([x.size(0), y.size(1)], dtype=x.dtype, device=x.device)
        for tm, tn in hl.tile(out.size()):
            acc = hl.zeros([tm, tn], dtype=torch.float32)
            for tk in hl.tile(x.size(1)):
                acc = hl.dot(x[tm, tk], y[tk, tn], acc=acc)
            out[tm, tn] = acc.to(x.dtype)
        return out

    program = program_of(product, tensor(64, 64), tensor(64, 64))
    assert without_nests(program) is program


@pytest.mark.parametrize("on", ["sm_80", "sm_90", "sm_100"])
def test_the_loop_assembles_without_spills(on: str) -> None:
    gpu = {"sm_80": "a100", "sm_90": "h200", "sm_100": "b200"}[on]
    bound = helion.kernel(grid).bind((tensor(8, 30, 30, 128), tensor(3, 3, 128, 128)), target=gpu)
    config = bound.default_config()
    assert config["fuse_loops"] and bound.resources(config).spill_bytes == 0


def test_options_of_the_loops_around_are_dropped() -> None:
    bound = helion.kernel(grid).bind((tensor(8, 30, 30, 128), tensor(3, 3, 128, 128)), target="h200")
    config = helion.Config(
        block_sizes=[128, 128, 64], fuse_loops=True, range_unroll_factors=[0, 2, 2, 2], static_ranges=[True, True, True]
    )
    full = bound.config_spec.normalize(config)
    assert full["fuse_loops"] and not any(full["static_ranges"])
    assert full["range_unroll_factors"] == [0, 0, 0, 2]
    assert "loop_unroll_factor=2" in bound.to_triton_code(full)
