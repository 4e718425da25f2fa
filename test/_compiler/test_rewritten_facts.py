"""Facts of rewritten kernels: those of the program that the rewrite makes, whatever the tile sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import program_of, tensor

import helion.language as hl
from helion._compiler.facts.collect import collect_facts
from helion._compiler.facts.records import KernelFacts
from helion._compiler.ir.grammar import Program
from helion._compiler.rewrites import REWRITES, rewrite_of
from helion._compiler.rewrites.steps import StepInputs
from helion._compiler.sizes import representative_sizes
from helion.backends.triton.heuristics.families.matmul.operand_access import operand_access
from helion.hardware import target

BF16, FP32, INT8 = torch.bfloat16, torch.float32, torch.int8


def linear(x, w):
    m, k = x.size()
    out = torch.empty([m, w.size(0)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, w.size(0)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], w[tile_n, tile_k].T, acc=acc)
        out[tile_m, tile_n] = acc
    return out


def plain(x, y):
    m, k = x.size()
    out = torch.empty([m, y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, y.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = torch.relu(acc)
    return out


def widened(x, w):
    m, k = x.size()
    out = torch.empty([m, w.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, w.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], (w[tile_k, tile_n].to(torch.float32) * 0.5).to(x.dtype))
        out[tile_m, tile_n] = acc
    return out


def unpacked(x, packed):
    m, n, half = x.size(0), packed.size(1), packed.size(0)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    block = hl.register_block_size(half)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_p in hl.tile(half, block_size=block):
            both = packed[tile_p, tile_n]
            whole = hl.join((both << 4) >> 4, both >> 4).permute(0, 2, 1).reshape(block * 2, tile_n)
            rows = x[tile_m, tile_p.begin * 2 + hl.arange(block * 2)]
            acc = hl.dot(rows, whole.to(x.dtype), acc=acc)
        out[tile_m, tile_n] = acc
    return out


def taps(x, w, v):
    """Three loops that differ in constants, and a matmul of their result."""
    m, c, n = x.size(0), x.size(1) // 3, hl.specialize(w.size(1))
    out = torch.empty([m, v.size(1)], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tap in hl.static_range(3):
            for tile_c in hl.tile(c):
                acc = hl.dot(x[tile_m, tile_c.index + tap * c], w[tile_c.index + tap * c, :], acc=acc)
        out[tile_m, :] = hl.dot(acc.to(x.dtype), v[:, :])
    return out


Made = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]
KERNELS: dict[str, Made] = {
    "swap_ab": (plain, (tensor(96, 80, dtype=FP32), tensor(80, 112, dtype=FP32))),
    "pack_operands": (linear, (tensor(96, 81), tensor(112, 81))),
    "transpose_operands": (plain, (tensor(96, 80, dtype=FP32), tensor(80, 112, dtype=FP32))),
    "precompute_operands": (widened, (tensor(96, 80), tensor(80, 112, dtype=INT8))),
    "fuse_loops": (taps, (tensor(96, 192), tensor(192, 64), tensor(64, 32))),
}


def known(fn: Callable[..., Any], *args: torch.Tensor) -> tuple[Program, KernelFacts]:
    program = program_of(fn, *args, static_shapes=True)
    return program, collect_facts(program, ())


def test_every_rewrite_that_changes_operands_has_a_kernel_here() -> None:
    assert {rewrite.key for rewrite in REWRITES if rewrite.model is not None} == set(KERNELS)


@pytest.mark.parametrize("key", KERNELS)
def test_facts_after_a_rewrite_are_those_of_the_program_that_it_makes(key: str) -> None:
    fn, args = KERNELS[key]
    program, facts = known(fn, *args)
    after = facts.after(key).facts
    assert after is not facts and after is facts.after(key).facts
    for size in (16, 32):
        sizes = {b: size if program.blocks[b].tunable else s for b, s in representative_sizes(program).items()}
        made = rewrite_of(key).apply(program, True, StepInputs(sizes=sizes, threads=128, steady=True))
        assert made is not program
        real = collect_facts(dataclasses.replace(made, roots=made.roots[: len(program.roots)]), ())
        if key == "fuse_loops":  # its loop counts tiles, so that K has other sizes
            assert len(after.matmuls) == len(real.matmuls) and len(after.staged) == len(real.staged)
            continue
        assert after.matmuls == real.matmuls and after.staged == real.staged and after.work == real.work
        assert after.live_tiles == real.live_tiles and after.resident_tiles == real.resident_tiles
        assert [op.dtype for op in after.memory_ops] == [op.dtype for op in real.memory_ops]


@pytest.mark.parametrize("key", KERNELS)
def test_rewrites_that_do_not_apply_change_no_facts(key: str) -> None:
    _, facts = known(plain, tensor(64, 64), tensor(64, 64))
    assert facts.after(key).facts is facts and facts.after(key).copied_bytes == 0


def test_swapped_operands() -> None:
    _, facts = known(*_case("swap_ab"))
    (before,), after = facts.matmuls, facts.after("swap_ab")
    (fact,) = after.facts.matmuls
    assert (fact.m_axis, fact.n_axis) == (before.n_axis, before.m_axis) and after.copied_bytes == 0
    assert (fact.static_m, fact.static_n) == (112, 96) and (fact.lhs_slot, fact.rhs_slot) == (1, 0)
    assert fact.lhs_prologue and not fact.rhs_prologue and fact.rhs_layout == "k_major"


def test_rows_of_copied_operands_are_aligned_also_of_transposed_ones() -> None:
    _, facts = known(*_case("pack_operands"))
    after = facts.after("pack_operands")
    operands = [op for op in after.facts.memory_ops if op.matmul_operand]
    assert [op.slot for op in operands] == [0, 1] and all(op.strides[0] % 16 == 0 for op in operands)
    assert after.facts.num_roots == facts.num_roots == 1 and len(after.facts.axes) == len(facts.axes)
    read = (96 + 112) * 81 * 2
    assert read < after.copied_bytes < 1.2 * read


def test_copies_along_k_and_of_unaligned_rows_together() -> None:
    _, facts = known(plain, tensor(96, 81, dtype=FP32), tensor(81, 111, dtype=FP32))
    after = facts.after("transpose_operands", "pack_operands")
    (fact,) = after.facts.matmuls
    assert (fact.lhs_layout, fact.rhs_layout) == ("k_major", "k_major")
    assert all(min(op.strides) == 1 and max(op.strides) % 16 == 0 for op in after.facts.memory_ops if op.matmul_operand)
    assert after.copied_bytes > facts.after("transpose_operands").copied_bytes > 0
    both = facts.after("pack_operands", "swap_ab")
    assert both.facts.matmuls[0].lhs_prologue and both.copied_bytes > 0


def test_precomputed_operands_are_loaded() -> None:
    _, facts = known(*_case("precompute_operands"))
    assert facts.matmuls[0].rhs_prologue
    after = facts.after("precompute_operands")
    (fact,) = after.facts.matmuls
    assert not fact.rhs_prologue and fact.rhs_slot == 1 and fact.rhs_layout == "mn_major"
    assert [op.dtype for op in after.facts.memory_ops if op.kind == "load"] == [BF16, BF16]
    assert after.copied_bytes == 80 * 112 * (1 + 2) // 2


def test_precomputed_operands_over_merged_lanes_are_contiguous() -> None:
    _, facts = known(unpacked, tensor(96, 160), tensor(80, 112, dtype=INT8))
    after = facts.after("precompute_operands").facts
    assert after is not facts and not any(op.gathered for op in after.memory_ops)
    (operand,) = [op for op in after.memory_ops if op.matmul_operand == "rhs"]
    assert operand.dtype == BF16 and operand.subscript_axes == facts.memory_ops[0].subscript_axes
    assert operand.accessed_numel == 160 * 112


def test_fused_loops_are_one_loop_over_the_elements_of_all() -> None:
    _, facts = known(*_case("fuse_loops"))
    after = facts.after("fuse_loops").facts
    assert [fact.number for fact in after.matmuls] == [0, 1] and after.matmuls[1].consumes == (0,)
    assert after.matmuls[0].static_k == 192 and len(after.regions) == 2
    assert {each.dot for each in after.staged} == {0, 1} and not after.fusible_axes


def test_operands_with_an_eviction_policy_of_their_own_are_operands_as_well() -> None:
    def kept(x, y):
        m, k = x.size()
        out = torch.empty([m, y.size(1)], dtype=torch.float32, device=x.device)
        for tile_m, tile_n in hl.tile([m, y.size(1)]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                rows = hl.load(x, [tile_m, tile_k], eviction_policy="evict_first")
                acc = hl.dot(rows, hl.load(y, [tile_k, tile_n], eviction_policy="evict_last"), acc=acc)
            out[tile_m, tile_n] = acc
        return out

    for columns, aligned in ((112, True), (111, False)):
        _, facts = known(kept, tensor(96, 80), tensor(80, columns))
        access = operand_access(facts, target("sm_90"), plain=True, narrow=True, rewritten=False, use_descriptors=True)
        assert access.aligned is aligned and access.slots == {0, 1}


def _case(key: str) -> tuple[Any, ...]:
    fn, args = KERNELS[key]
    return fn, *args
