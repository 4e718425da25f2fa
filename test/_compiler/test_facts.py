"""Facts of small kernels, as values."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from costs import calls
from harness import facts_of, program_of, tensor
from sample_kernels import add, attention, bmm, matmul, row_sum, scan, softmax, transpose

import helion
import helion.language as hl
from helion._compiler.facts.collect import collect_facts
from helion._compiler.facts.liveness import maximal
from helion._compiler.facts.records import KernelFacts, MatmulFact, ReductionFact
from helion._compiler.facts.summary import summarize
from helion._compiler.rewrites.reduction_loops.roll import rollable_blocks

BF16, FP32 = torch.bfloat16, torch.float32


# --- kernels -------------------------------------------------------------------------------------------------------------


def cross_entropy(logits, labels):
    n, classes = logits.size()
    flat = logits.view(-1)
    losses = torch.empty([n], dtype=torch.float32, device=logits.device)
    for tile in hl.tile(n):
        row = logits[tile, :].to(torch.float32)
        highest = torch.amax(row, dim=-1)
        total = torch.sum(torch.exp(row - highest[:, None]), dim=-1)
        picked = hl.load(flat, [tile.index * classes + labels[tile]]).to(torch.float32)
        losses[tile] = torch.log(total) + highest - picked
    return losses


def two_pass_softmax(x):
    m, n = x.size()
    out = torch.empty_like(x)
    for tile_m in hl.tile(m):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            values = x[tile_m, tile_n].to(torch.float32)
            raised = torch.maximum(highest, torch.amax(values, dim=1))
            total = total * torch.exp(highest - raised) + torch.sum(torch.exp(values - raised[:, None]), dim=1)
            highest = raised
        for tile_n in hl.tile(n):
            out[tile_m, tile_n] = torch.exp(x[tile_m, tile_n].to(torch.float32) - highest[:, None]) / total[:, None]
    return out


def wide_sum(x):
    m, n = x.size()
    out = torch.empty([m], dtype=x.dtype, device=x.device)
    block_n = hl.register_block_size(n)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, block_n], dtype=torch.float32)
        for tile_n in hl.tile(n, block_size=block_n):
            acc += x[tile_m, tile_n].to(torch.float32)
        out[tile_m] = acc.sum(-1)
    return out


def norm_gradient(x, grad, weight):
    m, n = x.size()
    n = hl.specialize(n)
    block = hl.register_block_size(m)
    partial = torch.empty([(m + block - 1) // block, n], dtype=torch.float32, device=x.device)
    grad_x = torch.empty_like(x)
    for outer in hl.tile(m, block_size=block):
        acc = hl.zeros([n], dtype=torch.float32)
        for inner in hl.tile(outer.begin, outer.end):
            row, upper = x[inner, :].to(torch.float32), grad[inner, :].to(torch.float32)
            acc += (row * upper).sum(0)
            grad_x[inner, :] = upper * weight[:] - row * (row * upper).mean(-1, keepdim=True)
        partial[outer.id, :] = acc
    return partial, grad_x


def matmul_cast(x, y):
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = acc + torch.mm(x[tile_m, tile_k].to(torch.bfloat16), y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


def matmul_in_tiles(x, y):
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            mean = torch.sum(acc, dim=-1) / n
            out[tile_m, tile_n] = acc - mean[:, None]
            total = total + torch.sum(acc * acc, dim=-1)
        for tile_n in hl.tile(n):
            out[tile_m, tile_n] = out[tile_m, tile_n].to(torch.float32) * total[:, None]
    return out


def _epilogue(name: str, n: int = 1000) -> KernelFacts:
    return facts_of(EPILOGUES[name], tensor(512, 256), tensor(256, n))


def matmul_rms_norm(x, y):
    m, k = x.size()
    n = hl.specialize(y.size(1))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, :])
        out[tile_m, :] = acc * torch.rsqrt((acc * acc).mean(-1, keepdim=True) + 1e-6)
    return out


def matmul_layer_norm(x, y):
    m, k = x.size()
    n = hl.specialize(y.size(1))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, :])
        variance, mean = torch.var_mean(acc, dim=-1, keepdim=True, correction=0)
        out[tile_m, :] = (acc - mean) * torch.rsqrt(variance + 1e-5)
    return out


def matmul_softmax(x, y):
    m, k = x.size()
    n = hl.specialize(y.size(1))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, :])
        out[tile_m, :] = torch.softmax(acc, dim=-1)
    return out


def matmul_logsumexp(x, y):
    m, k = x.size()
    n = hl.specialize(y.size(1))
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, :])
        highest = torch.amax(acc, dim=-1)
        out[tile_m] = highest + torch.log(torch.sum(torch.exp(acc - highest[:, None]), dim=-1))
    return out


def matmul_max(x, y):
    m, k = x.size()
    n = hl.specialize(y.size(1))
    out = torch.empty([m], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, :])
        out[tile_m] = torch.amax(acc, dim=-1)
    return out


EPILOGUES = {
    "rms_norm": matmul_rms_norm,
    "layer_norm": matmul_layer_norm,
    "softmax": matmul_softmax,
    "logsumexp": matmul_logsumexp,
    "max": matmul_max,
}


def every_other(x):
    n = x.size(0) // 2
    out = torch.empty([n], dtype=x.dtype, device=x.device)
    for tile in hl.tile(n):
        out[tile] = x[tile.index * 2] + x[tile.index * 2 + 1]
    return out


def look_up(table, index):
    out = torch.empty([index.size(0), table.size(1)], dtype=table.dtype, device=table.device)
    for tile_i, tile_f in hl.tile(out.size()):
        out[tile_i, tile_f] = table[index[tile_i], tile_f]
    return out


def gathered(x, rows, columns, out):
    """An index that no step changes, one that each step loads, and, with a store in the loop, both again."""
    for tile_m in hl.tile(rows.size(0)):
        acc = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(columns.size(0)):
            acc = acc + hl.load(x, [rows[tile_m], tile_n]).sum(1)
        for tile_n in hl.tile(columns.size(0)):
            acc = acc + hl.load(x, [rows[tile_m], columns[tile_n]]).sum(1)
        out[tile_m, 0] = acc
        for tile_n in hl.tile(columns.size(0)):
            out[tile_m, tile_n] = hl.load(x, [rows[tile_m], tile_n])


def count(x, out):
    for tile in hl.tile(x.size(0)):
        hl.atomic_add(out, [x[tile]], 1)
    return out


# --- axes ----------------------------------------------------------------------------------------------------------------


def test_axes_of_a_reduction() -> None:
    facts = facts_of(softmax, tensor(100, 1000))
    rows, columns = facts.axes
    assert (rows.block_id, rows.kind, rows.extent, rows.padded, rows.on_grid) == (0, "tile", 100, 128, True)
    assert (columns.block_id, columns.kind, columns.extent, columns.padded, columns.on_grid) == (1, "full", 1000, 1024, False)  # fmt: skip
    assert columns.rollable and not rows.rollable and rows.static
    assert facts.grid_axes == (0,) and facts.num_roots == 1
    assert [axis.block_id for axis in facts.tunable_axes] == [0]
    assert [axis.block_id for axis in facts.rolled_axes] == [1]


def test_axes_of_loops() -> None:
    facts = facts_of(norm_gradient, tensor(4096, 512), tensor(4096, 512), tensor(512))
    outer, feature, inner = facts.axes
    assert (inner.extent, inner.padded, inner.outer, inner.on_grid) == (None, 0, outer.block_id, False)
    assert not feature.rollable and feature.kind == "full"
    assert [(r.region, r.kind, r.parent, r.axes) for r in facts.regions] == [
        (0, "root", None, (outer.block_id,)),
        (1, "loop", 0, (inner.block_id,)),
    ]
    assert facts.enclosing_axes(1) == (outer.block_id, inner.block_id)


def test_lookups_of_indices_that_no_step_changes() -> None:
    index = tensor(100, dtype=torch.int64)
    facts = facts_of(gathered, tensor(1000, 200, dtype=FP32), index, index, tensor(100, 100, dtype=FP32))
    loops = [region for region in facts.regions if region.kind == "loop"]
    assert [(loop.gathers, loop.lookups) for loop in loops] == [(1, 0), (1, 1), (1, 1)]


def test_dynamic_extents_are_hints() -> None:
    facts = facts_of(matmul, tensor(256, 64), tensor(64, 128), static_shapes=False)
    assert [(axis.extent, axis.static) for axis in facts.axes] == [(256, False), (128, False), (64, False)]
    assert facts.matmuls[0].static_m is None


# --- reductions ----------------------------------------------------------------------------------------------------------


def only(facts: KernelFacts) -> ReductionFact:
    (fact,) = facts.reductions
    return fact


def test_softmax() -> None:
    fact = only(facts_of(softmax, tensor(64, 1000)))
    assert (fact.axis, fact.region, fact.category, fact.extent, fact.names) == (
        1,
        0,
        "full_slice",
        1000,
        ("max", "sum"),
    )
    assert (fact.itemsize, fact.input_load_itemsize, fact.num_loads) == (4, 2, 1)
    assert fact.re_read and fact.re_read_slot == 0 and fact.store_only_re_read
    assert fact.body_live_tiles == 2 and fact.carried_2d == 0
    assert set(fact.live_tiles) == {((0, 1), 4), ((0,), 4)}
    assert fact.sized and fact.full_extent and not fact.per_feature_accumulator


def test_rows_read_once() -> None:
    fact = only(facts_of(row_sum, tensor(64, 1000)))
    assert not fact.re_read and fact.re_read_slot is None and not fact.store_only_re_read
    assert set(fact.live_tiles) == {((0, 1), 2), ((0, 1), 4)}  # the loaded row and its fp32 copy


def test_a_gather_of_the_reduced_tensor_is_no_second_read_of_its_rows() -> None:
    facts = facts_of(cross_entropy, tensor(64, 1000), tensor(64, dtype=torch.int64))
    fact = only(facts)
    assert fact.re_read and not fact.store_only_re_read
    assert [None in op.subscript_axes for op in facts.memory_ops if op.kind == "load"] == [False, False, True]
    # in chunks, one pass finds the maximum and the sum of powers about it
    assert [op.looped for op in facts.memory_ops if op.kind == "load"] == [((1, 1),), (), ()]
    assert facts.memory_ops[0].reductions_fed == ((1, 2),)


def test_rows_that_the_kernel_walks_over() -> None:
    fact = only(facts_of(two_pass_softmax, tensor(64, 1000)))
    assert (fact.category, fact.region, fact.extent) == ("user_tile", 1, 1000)
    assert fact.re_read and fact.re_read_slot == 0  # the second loop loads the row again


def test_a_carried_tile() -> None:
    facts = facts_of(wide_sum, tensor(64, 1000))
    fact = only(facts)
    assert (fact.category, fact.region, fact.carried_2d, fact.num_loads) == ("user_tile", 0, 1, 1)
    assert not fact.re_read
    (carried,) = facts.accumulators
    assert not carried.of_dot and carried.axes == (facts.grid_axes[0], fact.axis)
    assert fact.body_live_tiles == 3  # the sum so far, the row, and the new sum


def test_a_gradient_per_feature() -> None:
    facts = facts_of(norm_gradient, tensor(4096, 512), tensor(4096, 512), tensor(512))
    outer, feature, inner = (axis.block_id for axis in facts.axes)
    by_axis = {fact.axis: fact for fact in facts.reductions}
    rows, features = by_axis[inner], by_axis[feature]
    assert rows.per_feature_accumulator
    assert (rows.category, rows.extent) == ("user_tile", 0)
    assert not features.per_feature_accumulator and features.category == "full_slice"
    assert facts.primary_reduction == features
    assert all(outer not in axes for fact in facts.reductions for axes, _ in fact.live_tiles)


# --- matrix products -----------------------------------------------------------------------------------------------------


def dot(facts: KernelFacts) -> MatmulFact:
    (fact,) = facts.matmuls
    return fact


def test_matmul() -> None:
    facts = facts_of(matmul, tensor(256, 64), tensor(64, 128))
    fact = dot(facts)
    assert (fact.m_block_id, fact.n_block_id, fact.k_block_id) == (0, 1, 2)
    assert (fact.static_m, fact.static_n, fact.static_k) == (256, 128, 64)
    assert (fact.lhs_rank, fact.rhs_rank, fact.batch_axes) == (2, 2, ())
    assert (fact.lhs_dtype, fact.rhs_dtype) == (BF16, BF16)
    assert (fact.lhs_layout, fact.rhs_layout) == ("k_major", "mn_major")
    assert (fact.lhs_prologue, fact.rhs_prologue) == (False, False)
    assert fact.accumulator_loop == 1 and fact.consumes == ()
    assert [op.matmul_operand for op in facts.memory_ops] == ["lhs", "rhs", None]
    assert [(s.role, s.axes, s.itemsize, s.direct) for s in facts.staged] == [
        ("lhs", (0, 2), 2, True),
        ("rhs", (2, 1), 2, True),
    ]
    assert [a.of_dot for a in facts.accumulators] == [True]
    # the operands are in shared memory; the sum is carried, then narrowed for the store
    assert set(facts.resident_tiles[0]) == {(((0, 1), 4),), (((0, 1), 2),)}


def test_operand_layouts_and_casts() -> None:
    fact = dot(facts_of(matmul, tensor(64, 256).T, tensor(128, 64).T))
    assert (fact.lhs_layout, fact.rhs_layout) == ("mn_major", "k_major")
    cast = dot(facts_of(matmul_cast, tensor(256, 64, dtype=FP32), tensor(64, 128)))
    assert cast.lhs_prologue and not cast.rhs_prologue
    assert cast.accumulator_loop == 1 and cast.lhs_dtype == BF16


def test_bmm() -> None:
    fact = dot(facts_of(bmm, tensor(16, 256, 64), tensor(16, 64, 128)))
    assert (fact.lhs_rank, fact.batch_axes, fact.m_block_id, fact.n_block_id, fact.k_block_id) == (3, (0,), 1, 2, 3)


@pytest.mark.parametrize("name", EPILOGUES)
def test_reduction_epilogues(name: str) -> None:
    for n, padded in ((1000, 1024), (64, 64)):
        facts = _epilogue(name, n)
        fact = facts.matmul_with_reduction_epilogue
        assert fact is not None
        assert fact.matmul is facts.matmuls[0] and fact.reduction is facts.reductions[0]
        assert fact.n_extent == padded
        assert facts.axes[fact.m_block_id].name == "tile_m" and facts.axes[fact.k_block_id].name == "tile_k"
        assert fact.n_block_id is None
        assert fact.reduction.axis == fact.matmul.n_axis


@pytest.mark.parametrize(
    ("kernel", "args"),
    [
        (matmul, (tensor(64, 64), tensor(64, 64))),
        (softmax, (tensor(64, 64),)),
        (add, (tensor(64, 64), tensor(64, 64))),
        (attention, (tensor(4, 64, 32), tensor(4, 32, 64), tensor(4, 64, 32))),
    ],
)
def test_no_reduction_epilogue(kernel: Any, args: Any) -> None:
    assert facts_of(kernel, *args).matmul_with_reduction_epilogue is None


def matmul_of_normalised_columns(x, y):
    m, k = x.size()
    n = hl.specialize(y.size(1))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            columns = y[tile_k, :].to(torch.float32)
            columns = columns * torch.rsqrt((columns * columns).sum(-1, keepdim=True))
            acc = torch.addmm(acc, x[tile_m, tile_k], columns.to(x.dtype))
        out[tile_m, :] = acc
    return out


def matmul_beside_sums_of_columns(x, y):
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            total += out[tile_m, tile_n].to(torch.float32).sum(-1)
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            out[tile_m, tile_n] = acc + total[:, None]
    return out


def test_reductions_of_an_operand_are_no_epilogue() -> None:
    facts = facts_of(matmul_of_normalised_columns, tensor(512, 256), tensor(256, 1000))
    (reduction,) = facts.sized_reductions
    assert reduction.axis == facts.matmuls[0].n_axis and reduction.full_extent
    assert facts.matmul_with_reduction_epilogue is None
    tiled = facts_of(matmul_beside_sums_of_columns, tensor(512, 256), tensor(256, 1000))
    assert tiled.sized_reductions and tiled.matmul_with_tiled_reduction_epilogue is None


def test_reduction_epilogue_over_tiles() -> None:
    facts = facts_of(matmul_in_tiles, tensor(512, 256), tensor(256, 1000))
    fact = facts.matmul_with_tiled_reduction_epilogue
    assert fact is not None and facts.matmul_with_reduction_epilogue is None
    assert fact.matmuls == facts.matmuls and fact.reductions == facts.reductions
    assert (fact.m_block_id, fact.n_block_ids, fact.k_block_ids, fact.apply_axes) == (0, (1,), (2,), (3,))
    assert summarize(facts).endswith(
        "matmul with reduction epilogue over tiles of axis 1, applied over 3; 3 loads, 2 stores"
    )
    for kernel, args in (
        (matmul, (tensor(64, 64), tensor(64, 64))),
        (matmul_rms_norm, (tensor(64, 64), tensor(64, 64))),
        (attention, (tensor(4, 64, 32), tensor(4, 32, 64), tensor(4, 64, 32))),
    ):
        assert facts_of(kernel, *args).matmul_with_tiled_reduction_epilogue is None


def test_stages_with_sums_of_exponentials() -> None:
    (reduction,) = facts_of(softmax, tensor(64, 64)).reductions
    assert (reduction.stages, reduction.exponential_stages) == ((("max",), ("sum",)), (1,))
    assert all(not each.exponential_stages for each in _epilogue("rms_norm", 64).reductions)


def test_what_is_stored_while_its_sources_stay_is_made_piece_by_piece() -> None:
    facts = facts_of(matmul_in_tiles, tensor(512, 256), tensor(256, 1000))
    # the distance from the mean goes to memory while the product waits for its second reduction
    assert not any(sum(axes == (0, 1) for axes, _ in tiles) > 1 for tiles in facts.held_tiles[0])
    assert any(sum(axes == (0, 1) for axes, _ in tiles) > 1 for tiles in facts.resident_tiles[0])


def test_operands_are_loaded_behind_other_dots() -> None:
    facts = facts_of(attention, tensor(8, 512, 64), tensor(8, 64, 512), tensor(8, 512, 64))
    assert [(operand.dot, operand.role, operand.after) for operand in facts.staged] == [
        (0, "lhs", 0),
        (0, "rhs", 0),
        (1, "rhs", 1),
    ]


def test_attention() -> None:
    facts = facts_of(attention, tensor(8, 512, 64), tensor(8, 64, 512), tensor(8, 512, 64))
    fact = facts.attention
    assert fact is not None
    names = {axis.name: axis.block_id for axis in facts.axes}
    assert fact.query_axis == names["tile_m"] and fact.key_axis == names["tile_n"]
    scores, output = facts.matmuls
    assert output.consumes == (0,)
    assert scores.accumulator_loop is None and output.accumulator_loop == 1
    assert facts_of(matmul, tensor(64, 64), tensor(64, 64)).attention is None


def banded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keys: hl.constexpr) -> torch.Tensor:
    out = torch.empty_like(q)
    d, later = hl.specialize(q.size(1)), k.size(0) - q.size(0)
    for tile_m in hl.tile(q.size(0)):
        top = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        acc = hl.zeros([tile_m, d], dtype=torch.float32)
        end = k.size(0)
        if keys == "up to the query":
            end = tile_m.end
        elif keys == "and later ones":
            end = tile_m.end + later
        elif keys == "as far as there are":
            end = min(tile_m.end + later, k.size(0))
        for tile_n in hl.tile(0, end):
            scores = hl.dot(q[tile_m, :], k[tile_n, :].T)
            new = torch.maximum(top, scores.amax(-1))
            p = torch.exp(scores - new[:, None])
            acc = hl.dot(p.to(q.dtype), v[tile_n, :], acc=acc * torch.exp(top - new)[:, None])
            top = new
        out[tile_m, :] = acc.to(q.dtype)
    return out


@pytest.mark.parametrize("keys", ["up to the query", "and later ones", "as far as there are", "all"])
@pytest.mark.parametrize("static_shapes", [True, False])
def test_attention_up_to_a_diagonal(keys: str, static_shapes: bool) -> None:
    kernel = helion.kernel(banded, static_shapes=static_shapes)
    fact = kernel.bind((tensor(100, 64), tensor(300, 64), tensor(300, 64), keys), target="sm_90").facts.attention
    assert fact is not None and fact.diagonal is (keys != "all")


FORMS = {
    "reshape": (128 * 3, 128 * 3, 64, 1),
    "view": (128 * 3, 64, 1),
    "flatten": (128 * 3, 1),
    "copied by reshape": (128 * 7, 1),
    "clone": (128, 128 * 3, 1),
    "cast": (128 * 3, 128, 1),
    "cat": (128 * 3, 128, 1),
}


def in_form(x: torch.Tensor, form: hl.constexpr) -> torch.Tensor:
    source = x
    if form == "reshape":
        source = x.reshape([-1, 1, x.size(1) * 2, 64])
    elif form == "view":
        source = x.view(x.size(0), -1, 64)
    elif form == "flatten":
        source = x.flatten(1, 2)
    elif form == "copied by reshape":
        source = x.transpose(0, 1).reshape([x.size(1), -1])
    elif form == "clone":
        source = x.transpose(0, 1).clone()
    elif form == "cast":
        source = x.to(torch.float32)
    elif form == "cat":
        source = torch.cat([x, x])
    out = torch.empty_like(source)
    for tile in hl.tile(source.size()):
        out[tile] = source[tile]
    return out


@pytest.mark.parametrize("form", FORMS)
def test_strides_that_are_read_at_run_time_have_those_seen(form: str) -> None:
    kernel = helion.kernel(in_form, static_shapes=False)
    load, store = kernel.bind((tensor(7, 3, 128), form), target="sm_90").facts.memory_ops
    assert load.strides == FORMS[form] and not load.static
    assert store.strides == FORMS[form]


# --- elementwise ---------------------------------------------------------------------------------------------------------


def test_add() -> None:
    facts = facts_of(add, tensor(64, 1024), tensor(64, 1024))
    fact = facts.pointwise
    assert fact is not None
    assert (fact.total_numel, fact.slab_numel, fact.storage_itemsize, fact.compute_itemsize) == (65536, 3, 2, 2)
    assert (fact.contiguous_axes, fact.gather_stride, fact.max_op_slab) == ((1,), 1, 1)
    assert facts.work[0].ops == 1


def test_a_broadcast_operand_is_smaller_than_the_problem() -> None:
    facts = facts_of(add, tensor(64, 1024), torch.empty(1, 1024, dtype=FP32, device="meta").expand(64, 1024))
    fact = facts.pointwise
    assert fact is not None
    assert [op.accessed_numel for op in facts.memory_ops] == [65536, 1024, 65536]
    assert (fact.slab_numel, fact.storage_itemsize, fact.compute_itemsize) == (2, 2, 4)


def test_transposed_accesses_disagree_on_the_contiguous_axis() -> None:
    fact = facts_of(transpose, tensor(64, 128)).pointwise
    assert fact is not None and fact.contiguous_axes == (0, 1)


def test_index_scales() -> None:
    facts = facts_of(every_other, tensor(4096))
    assert [op.scales for op in facts.memory_ops] == [(2,), (2,), (1,)]
    assert [op.subscript_axes for op in facts.memory_ops] == [(0,), (0,), (0,)]
    assert facts.pointwise is not None and facts.pointwise.gather_stride == 2


def test_indices_do_not_widen_the_arithmetic() -> None:
    facts = facts_of(look_up, tensor(1000, 64), tensor(256, dtype=torch.int64))
    assert facts.pointwise is not None and facts.pointwise.compute_itemsize == 2
    assert [op.subscript_axes[0] is None for op in facts.memory_ops] == [False, True, False]


def test_scans_and_atomics_are_no_elementwise_kernels() -> None:
    scanned = facts_of(scan, tensor(64, 128))
    assert scanned.pointwise is None and [(s.kind, s.axis) for s in scanned.scans] == [("scan", 1)]
    counted = facts_of(count, tensor(64, dtype=torch.int64), tensor(10, dtype=torch.int32))
    assert counted.pointwise is None
    assert [(a.kind, a.name, a.subscript_axes) for a in counted.atomics] == [("atomic", "out", (None,))]


# --- the rest ------------------------------------------------------------------------------------------------------------


def test_only_snapshots_that_no_other_contains_are_kept() -> None:
    one, two = ((0, 1), 4), ((1,), 4)
    assert maximal({(one,), (one, two), (one, one), (two,), ()}) == ((one, one), (one, two))


def test_what_is_held_across_reductions() -> None:
    facts = facts_of(softmax, tensor(64, 1000))
    assert facts.held_tiles == facts.resident_tiles
    streamed = facts_of(row_sum, tensor(64, 1000))
    assert set(streamed.held_tiles[0]) == {(((0,), 4),), (((0,), 2),)}  # the row is summed up while it is loaded
    assert any(((0, 1), 4) in tiles for tiles in streamed.resident_tiles[0])


def test_reductions_take_values_of_lower_rank_one_by_one() -> None:
    def of_pairs(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = torch.exp(x[tile][:, None] - y[:][None, :]).sum(-1)
        return out

    def of_pairs_used_again(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty([x.size(0), y.size(0)], dtype=x.dtype, device=x.device)
        for tile in hl.tile(x.size(0)):
            apart = torch.exp(x[tile][:, None] - y[:][None, :])
            out[tile, :] = apart / apart.sum(-1)[:, None]
        return out

    x, y = tensor(64, dtype=torch.float32), tensor(100, dtype=torch.float32)
    facts = facts_of(of_pairs, x, y)
    assert any(((0, 1), 4) in tiles for tiles in facts.resident_tiles[0])
    assert not any(((0, 1), 4) in tiles for tiles in facts.needed_tiles[0])
    for fn, args in ((of_pairs_used_again, (x, y)), (softmax, (tensor(64, 1000),)), (row_sum, (tensor(64, 1000),))):
        facts = facts_of(fn, *args)
        assert facts.needed_tiles == facts.resident_tiles


def test_rows_of_a_dot_that_are_reduced_again_stay_in_their_own_dtype() -> None:
    def of_pairs(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty(x.size(0), dtype=torch.float32, device=x.device)
        for tile in hl.tile(x.size(0)):
            rows, most = x[tile, :], hl.full([tile], 0.0, dtype=torch.float32)
            for other in hl.tile(y.size(0)):
                most = torch.maximum(most, hl.dot(rows, y[other, :].T).amax(-1))
            out[tile] = most - (rows.to(torch.float32) * y[tile, :].to(torch.float32)).sum(-1)
        return out

    facts = facts_of(of_pairs, tensor(64, 256), tensor(64, 256))
    (resident,), (needed,) = facts.resident_tiles, facts.needed_tiles
    assert max(tiles.count(((0, 1), 4)) for tiles in resident) == 2
    assert max(tiles.count(((0, 1), 4)) for tiles in needed) == 1
    assert max(tiles.count(((0, 1), 2)) for tiles in needed) == 2


def test_rows_that_are_only_converted_stay_in_their_own_dtype() -> None:
    def unit_rows(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            row = x[tile, :].to(torch.float32)
            out[tile, :] = (row * torch.rsqrt((row * row).sum(-1))[:, None]).to(x.dtype)
        return out

    def centred_rows(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            row = x[tile, :].to(torch.float32)
            apart = row - row.mean(-1)[:, None]
            out[tile, :] = (apart * torch.rsqrt((apart * apart).sum(-1))[:, None]).to(x.dtype)
        return out

    def across(facts: KernelFacts) -> set[int]:
        return {itemsize for tiles in facts.kept_tiles[0] for axes, itemsize in tiles if axes == (0, 1)}

    converted = facts_of(unit_rows, tensor(64, 1000))
    assert across(converted) == {2} and ((0, 1), 4) in converted.held_tiles[0][0]
    assert max(tiles.count(((0, 1), 4)) for tiles in converted.packed_tiles[0]) < max(
        tiles.count(((0, 1), 4)) for tiles in converted.needed_tiles[0]
    )
    assert across(facts_of(centred_rows, tensor(64, 1000))) == {2, 4}
    wide = facts_of(unit_rows, tensor(64, 1000, dtype=torch.float32))
    assert (wide.kept_tiles, wide.packed_tiles) == (wide.held_tiles, wide.needed_tiles)


def test_operands_that_others_are_computed_from_and_those_of_indices() -> None:
    def masked(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        out = torch.empty([x.size(0), w.size(1)], dtype=torch.float32, device=x.device)
        for i, j in hl.tile(out.size()):
            acc = hl.zeros([i, j], dtype=torch.float32)
            for d in hl.tile(x.size(1)):
                acc = hl.dot(torch.where(i.index[:, None] > d.index[None, :], x[i, d], 0.0), w[d, j], acc=acc)
            out[i, j] = acc
        return out

    def scaled(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        out = torch.empty([x.size(0), w.size(1)], dtype=torch.float32, device=x.device)
        for i, j in hl.tile(out.size()):
            acc = hl.zeros([i, j], dtype=torch.float32)
            for d in hl.tile(x.size(1)):
                rows, columns = x[i, d], w[d, j]
                acc = hl.dot(rows * s[i][:, None], columns, acc=hl.dot(rows, columns, acc=acc))
            out[i, j] = acc
        return out

    (fact,) = facts_of(masked, tensor(64, 64), tensor(64, 64)).matmuls
    facts = facts_of(scaled, tensor(64, 64), tensor(64, 64), tensor(64))
    assert fact.indexed and not any(each.indexed for each in facts.matmuls)
    assert {(each.dot, each.role): each.worked for each in facts.staged} == {
        (0, "lhs"): True,
        (0, "rhs"): False,
        (1, "rhs"): False,
    }


def test_summary_is_one_line() -> None:
    for fn, args in ((softmax, (tensor(64, 1000),)), (matmul, (tensor(64, 64), tensor(64, 64)))):
        assert "\n" not in summarize(facts_of(fn, *args))
    text = summarize(facts_of(softmax, tensor(64, 1000)))
    assert text == (
        "axes 0:tile grid 64, 1:r0 rolled 1000; "
        "max+sum over axis 1 (full_slice of 1000, 2 live, re-read); 1 loads, 1 stores"
    )


def test_facts_are_values_in_all_but_their_comparison() -> None:
    facts = facts_of(softmax, tensor(64, 1000))
    assert repr(facts) == repr(facts_of(softmax, tensor(64, 1000)))
    assert repr(facts) != repr(facts_of(softmax, tensor(64, 1001)))
    assert facts != facts_of(softmax, tensor(64, 1000)), "caches compare them by identity"


def test_collecting_costs_little() -> None:
    for fn, args in ((softmax, (tensor(64, 1000),)), (matmul, (tensor(64, 64), tensor(64, 64)))):
        program = program_of(fn, *args)
        rollable = rollable_blocks(program)[0]
        assert calls(functools.partial(collect_facts, program, rollable)) <= 12_000


@helion.kernel()
def _following_loops(x: torch.Tensor, window: int, ahead: int) -> torch.Tensor:
    """Sums over loops whose bounds follow the tile of the rows, in all forms."""
    m, n = x.size()
    out = torch.zeros([m], dtype=torch.float32, device=x.device)
    for rows in hl.tile(m):
        total = hl.zeros([rows], dtype=torch.float32)
        for below in hl.tile(0, rows.end):
            total = total + x[rows, below].sum(-1)
        for shifted in hl.tile(0, min(rows.end + ahead, n)):
            total = total + x[rows, shifted].sum(-1)
        for windowed in hl.tile(max(rows.begin + ahead - window + 1, 0), min(ahead + rows.end, n)):
            total = total + x[rows, windowed].sum(-1)
        for above in hl.tile(rows.begin, n):
            total = total + x[rows, above].sum(-1)
        for later in hl.tile(max(rows.begin - ahead, 0), n):
            total = total + x[rows, later].sum(-1)
        for own in hl.tile(rows.begin, rows.end):
            total = total + x[rows, own].sum(-1)
        out[rows] = total
    return out


@helion.kernel()
def _shared_rows(x: torch.Tensor, lengths: torch.Tensor, begins: torch.Tensor) -> torch.Tensor:
    """Sums of rows `x[B, N]` that all heads share up to a length, and of rows that sequences have one after another."""
    batch, heads = lengths.size(0), 6
    out = torch.empty([batch, heads], dtype=torch.float32, device=x.device)
    for tile_b, tile_h in hl.tile([batch, heads], block_size=[1, 1]):
        b = tile_b.begin
        total = hl.zeros([tile_b, tile_h], dtype=torch.float32)
        for own in hl.tile(lengths[b]):
            total = total + x[b, own].sum(-1)
        for packed in hl.tile(begins[b], begins[b + 1]):
            total = total + x[0, packed].sum(-1)
        out[tile_b, tile_h] = total
    return out


def test_rows_of_a_loop_belong_to_what_looks_up_its_length() -> None:
    numbers = torch.empty(5, dtype=torch.int32, device="meta")
    bound = _shared_rows.bind((torch.empty(4, 1200, device="meta"), numbers[:4], numbers), target="h100")
    assert {axis.name: axis.mean for axis in bound.facts.axes if axis.extent is None} == {"own": 1200, "packed": 50}


@helion.kernel(static_shapes=True)
def _listed_blocks(x: torch.Tensor, counts: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """Sums of the blocks of 64 columns in `blocks[T / 64, N]`, for each 64 rows of `x[B, T, D]`."""
    batch, rows, _ = x.size()
    out = torch.zeros([batch, rows], dtype=torch.float32, device=x.device)
    for tile_b, tile_m in hl.tile([batch, rows], block_size=[1, 64]):
        b, m = tile_b.begin, tile_m.id
        total = hl.zeros([tile_m], dtype=torch.float32)
        for i in hl.grid(counts[m]):
            at = blocks[m, i] * 64 + hl.arange(64)
            total = total + x[b, at, :].sum(-1)
        out[b, tile_m] = total
    return out


def test_a_tile_number_selects_the_length_of_a_loop() -> None:
    """The list of a tile has up to 24 blocks, in each of the three batches."""
    counts, blocks = (torch.empty(n, dtype=torch.int32, device="meta") for n in ((32,), (32, 24)))
    bound = _listed_blocks.bind((torch.empty(3, 2048, 128, device="meta"), counts, blocks), target="h100")
    assert [axis.mean for axis in bound.facts.axes if axis.extent is None] == [24]


@pytest.mark.parametrize("static_shapes", (True, False))
@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (100, {"below": 500, "shifted": 700, "windowed": 99, "above": 700, "later": 880, "own": None}),
        (10**6, {"below": 500, "shifted": 700, "windowed": 700, "above": 700, "later": 880, "own": None}),
    ],
)
def test_loops_that_follow_a_tile_have_a_mean_length(
    static_shapes: bool, window: int, expected: dict[str, int | None]
) -> None:
    kernel = helion.kernel(_following_loops.fn, static_shapes=static_shapes)
    bound = kernel.bind((torch.empty(1000, 1200, device="meta"), window, 200), target="h100")
    axes = {axis.name: axis for axis in bound.facts.axes if axis.name in expected}
    assert {name for name, axis in axes.items() if axis.outer is not None} == {"own"}
    scale = (bound.facts.axes[0].extent or 0) / 1000  # sizes of one bucket share a kernel, and the largest counts
    if scale == 1:
        found = {name: axis.mean for name, axis in axes.items()}
        assert found == {name: mean and pytest.approx(mean, abs=2) for name, mean in expected.items()}
    else:
        assert all((axis.mean is None) == (expected[name] is None) for name, axis in axes.items())
