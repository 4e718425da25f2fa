"""Kernels of several grid loops: tiles of loops that a heuristic leaves out, and one launch for all of them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import helion
import helion.language as hl
from benchmarks.unfitted import CELLS
from benchmarks.unfitted.attention import feature_attention
from helion.autotuner.proposal import Declined
from helion.backends.execution import Resources
from helion.backends.triton.heuristics import several_loops
from helion.backends.triton.heuristics.families.pointwise import TritonPointwiseHeuristic
from helion.backends.triton.heuristics.several_loops import (
    in_one_launch,
    loop_by_loop,
    with_other_loops,
    with_smaller_tiles,
)
from helion.backends.triton.proposal import TritonProposal
from helion.backends.triton.resources.time.launch import launch_of
from helion.backends.triton.resources.time.predict import MEETING_GAIN_US, timing
from helion.backends.triton.toolchain.report import checked_residents
from helion.hardware import target


@helion.kernel(static_shapes=True)
def by_maximum(x: torch.Tensor) -> torch.Tensor:
    highest = torch.full([1], 0.0, dtype=torch.float32, device=x.device)
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        hl.atomic_max(highest, [0], torch.amax(torch.abs(x[tile]), dim=0))
    hl.barrier()
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] / highest[0]
    return out


@helion.kernel(static_shapes=True)
def in_parts(x: torch.Tensor, y: torch.Tensor, parts: hl.constexpr) -> torch.Tensor:
    (m, k), n = x.size(), y.size(1)
    step = helion.cdiv(k, parts)
    partial = torch.empty([parts, m, n], dtype=torch.float32, device=x.device)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_p, tile_m, tile_n in hl.tile([parts, m, n], block_size=[1, None, None]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(tile_p.begin * step, min(tile_p.begin * step + step, k)):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        partial[tile_p.begin, tile_m, tile_n] = acc
    hl.barrier()
    for tile_m, tile_n in hl.tile([m, n]):
        out[tile_m, tile_n] = torch.sum(partial[:, tile_m, tile_n], dim=0)
    return out


@helion.kernel(static_shapes=True)
def decode_in_parts(q: torch.Tensor, cache: torch.Tensor, width: hl.constexpr, parts: hl.constexpr) -> torch.Tensor:
    b, h, n = q.size(0), q.size(1), cache.size(1)
    step = helion.cdiv(n, parts)
    sums = torch.empty([b, parts, h, width], dtype=torch.float32, device=q.device)
    lse = torch.empty([b, parts, h], dtype=torch.float32, device=q.device)
    for tile_b, part, tile_h in hl.tile([b, parts, h], block_size=[1, 1, None]):
        top = hl.full([tile_h], float("-inf"), dtype=torch.float32)
        den = hl.zeros([tile_h], dtype=torch.float32)
        acc = hl.zeros([tile_h, width], dtype=torch.float32)
        for tile_n in hl.tile(part.begin * step, min(part.begin * step + step, n)):
            keys = cache[tile_b.begin, tile_n, :width]
            s = hl.dot(q[tile_b.begin, tile_h, :width], keys.T)
            new = torch.maximum(top, s.amax(-1))
            p = torch.exp(s - new[:, None])
            den = den * torch.exp(top - new) + p.sum(-1)
            acc = hl.dot(p.to(keys.dtype), keys, acc=acc * torch.exp(top - new)[:, None])
            top = new
        sums[tile_b.begin, part.begin, tile_h, :] = acc / den[:, None]
        lse[tile_b.begin, part.begin, tile_h] = top + torch.log(den)
    out = torch.empty([b, h, width], dtype=torch.float32, device=q.device)
    for tile_b, tile_h in hl.tile([b, h], block_size=[1, None]):
        weights = torch.softmax(lse[tile_b.begin, :, tile_h], 0)
        out[tile_b.begin, tile_h, :] = (sums[tile_b.begin, :, tile_h, :] * weights[:, :, None]).sum(0)
    return out


def tensors(device: str = "meta") -> tuple[torch.Tensor, torch.Tensor]:
    x, y = torch.randn(16, 4096), torch.randn(4096, 1024)
    return x.bfloat16().to(device), y.bfloat16().to(device)


def test_tiles_of_other_loops_grow() -> None:
    """A tile of one element takes a thousand times as long."""
    bound = by_maximum.bind((torch.empty(2**22, device="meta"),), target="h200")
    first, second = bound.default_config()["block_sizes"]
    assert first >= 1024 and second >= 512
    small = TritonProposal(reason="", block_sizes={0: 2048, 1: 1}, num_warps=4)
    grown = with_other_loops(small, bound.facts, target("h200"))
    assert grown.block_sizes[0] == 2048 and grown.block_sizes[1] >= 512
    x = torch.randn(5000)
    torch.testing.assert_close(by_maximum(x), x / x.abs().max())


@pytest.mark.parametrize(("ratio", "tile"), [(0.95, 64), (0.75, 2**14)])
def test_tiles_that_leave_sms_idle_have_to_be_faster(monkeypatch: pytest.MonkeyPatch, ratio: float, tile: int) -> None:
    """A predicted time within the error does not take programs from SMs: 2**14 elements by 128 are 128 programs."""
    bound = by_maximum.bind((torch.empty(2**14, device="meta"),), target="h200")
    monkeypatch.setattr(several_loops, "proposal_us", lambda _f, each, _t: ratio ** math.log2(each.block_sizes[1]))
    small = TritonProposal(reason="", block_sizes={0: 2048, 1: 1}, num_warps=4)
    assert with_other_loops(small, bound.facts, target("h200")).block_sizes == {0: 2048, 1: tile}


def test_whole_dimensions_of_other_loops_leave_registers_for_products() -> None:
    """128 parts of 512 numbers are 512 registers a thread, which no tile of the first loop has room next to."""
    q, cache = (torch.empty(1, n, 512, dtype=torch.bfloat16, device="meta") for n in (16, 65536))
    bound = decode_in_parts.bind((q, cache, 512, 128), target="h200")
    assert bound.seeds[0].heuristic == "TritonAttentionHeuristic" and bound.default_config() == bound.seeds[0].config
    assert bound.default_config()["reduction_loops"] == [8] and not bound.seeds[0].predicted.spills
    q, cache = torch.randn(2, 5, 32), torch.randn(2, 63, 32)
    expected = torch.softmax(q.double() @ cache.double().mT, -1) @ cache.double()
    config = helion.Config(block_sizes=[16, 16, 1], reduction_loops=[2], num_warps=4)
    made = decode_in_parts.bind((q, cache, 32, 7)).compile_config(config)(q, cache, 32, 7)
    torch.testing.assert_close(made.double(), expected, atol=1e-4, rtol=1e-4)
    few = torch.empty(1, 65536, 64, dtype=torch.bfloat16, device="meta")
    whole = decode_in_parts.bind((few[:, :16], few, 64, 8), target="h200").default_config()
    assert whole["reduction_loops"] == [None]


def test_loops_of_products_keep_their_tiles() -> None:
    bound = in_parts.bind((*tensors(), 8), target="h200")
    small = TritonProposal(reason="", block_sizes={1: 16, 2: 16, 3: 16, 4: 1, 5: 1}, num_warps=4)
    grown = with_other_loops(small, bound.facts, target("h200")).block_sizes
    assert [grown[at] for at in (1, 2, 3)] == [16, 16, 16] and grown[4] * grown[5] > 4


def test_one_launch_is_chosen_by_its_predicted_time() -> None:
    bound = in_parts.bind((*tensors(), 8), target="h200")
    together, apart = bound.seeds[:2]
    assert bound.facts.meetings == 1 and bound.default_config() == together.config
    assert together.config["cooperative_launch"] and not apart.config["cooperative_launch"]
    assert together.predicted.time_us < apart.predicted.time_us and "in one launch of" in together.reason
    alone = replace(bound.facts, meetings=0)
    decisions = bound.config_spec.decode(together.config)
    us = [timing(facts, launch_of(decisions), together.predicted, target("h200")).us for facts in (bound.facts, alone)]
    assert us[1] - us[0] == pytest.approx(MEETING_GAIN_US)
    x, y = tensors("cpu")
    found = in_parts(x, y, 8).double()
    assert (found - x.double() @ y.double()).norm() < 5e-3 * found.norm()


def test_one_launch_may_have_twice_the_tile() -> None:
    """One launch of 64 x 256 tiles takes 73 us, two launches of 64 x 128 78 (H200)."""
    rows = torch.empty(128, 2048, 64, dtype=torch.bfloat16, device="meta")
    first, second, *_ = feature_attention.bind((rows, rows, rows), target="h200").seeds
    assert (first.config["block_sizes"], first.config["num_warps"]) == ([64, 256], 8)
    assert (second.config["block_sizes"], second.config["num_warps"]) == ([64, 128], 4)
    assert first.config["cooperative_launch"] and "twice the tile" in first.reason


@helion.kernel(static_shapes=True)
def with_host_code(x: torch.Tensor) -> torch.Tensor:
    highest = torch.full([1], 0.0, dtype=torch.float32, device=x.device)
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        hl.atomic_max(highest, [0], torch.amax(torch.abs(x[tile]), dim=0))
    highest = highest + 1.0
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] / highest[0]
    return out


def test_other_kernels_have_a_launch_for_each_phase() -> None:
    """Host code between the loops, GPUs without cooperative launches, and messages to other GPUs."""
    between = with_host_code.bind((torch.empty(2**16, device="meta"),), target="h200")
    elsewhere = in_parts.bind((*tensors(), 8), target="gfx942")
    assert (between.facts.meetings, elsewhere.facts.meetings) == (0, 1)
    for bound in (between, elsewhere):
        assert bound.seeds and not any(seed.config.get("cooperative_launch") for seed in bound.seeds)
    messages = replace(elsewhere.facts, messages=1)
    plain = TritonProposal(reason="", block_sizes={1: 16, 2: 64, 3: 64, 4: 16, 5: 64}, num_warps=4)
    assert in_one_launch(plain, messages, target("h200")) == ()


def test_checked_kernels_take_the_proposal_of_several_launches() -> None:
    checked = helion.kernel(in_parts.fn, static_shapes=True, checked=True)
    bound = checked.bind((*tensors(), 8), target="h200")
    assert bound.seeds and "cooperative_launch" not in bound.default_config()


@pytest.mark.parametrize(
    ("registers", "shared", "programs", "fits"),
    [(128, 4096, 4, True), (255, 4096, 4, False), (64, 120000, 2, False), (255, 200000, 1, True)],
)
def test_programs_that_wait_for_each_other_are_all_resident(
    registers: int, shared: int, programs: int, fits: bool
) -> None:
    found = Resources(
        registers=registers, registers_limit=255, spill_bytes=0, shared_bytes=shared, limit_bytes=232448,
        tensor_memory_columns=0, threads=128, overflow=(), source="ptxas",
    )  # fmt: skip
    checked = checked_residents(found, programs, target("h200"))
    assert checked.fits == fits
    if not fits:
        assert f"{programs} programs that wait for each other on each SM" in checked.overflow[0]


@helion.kernel(static_shapes=True)
def gram_of_centered(x: torch.Tensor) -> torch.Tensor:
    n, d = x.size()
    mean = torch.empty([d], dtype=torch.float32, device=x.device)
    out = torch.empty([d, d], dtype=torch.float32, device=x.device)
    for tile in hl.tile(d):
        total = hl.zeros([tile], dtype=torch.float32)
        for rows in hl.tile(n):
            total += x[rows, tile].to(torch.float32).sum(0)
        mean[tile] = total / n
    hl.barrier()
    for tile_m, tile_n in hl.tile([d, d]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for rows in hl.tile(n):
            a = (x[rows, tile_m].to(torch.float32) - mean[tile_m]).to(x.dtype)
            b = (x[rows, tile_n].to(torch.float32) - mean[tile_n]).to(x.dtype)
            acc = torch.addmm(acc, a.T, b)
        out[tile_m, tile_n] = acc
    return out


@pytest.mark.parametrize("name", ["h200", "a100", "b200"])
def test_sums_before_a_product_do_not_spill(name: str) -> None:
    """The rule of the product leaves tiles of 512 by 512 to the loop of the sums."""
    bound = gram_of_centered.bind((torch.empty(32768, 512, dtype=torch.bfloat16, device="meta"),), target=name)
    first = bound.seeds[0]
    assert bound.default_config() == first.config != bound.conservative_config()
    assert not first.predicted.spill_risk and "smaller tiles" in first.reason
    assert 5 * first.predicted.time_us < bound._analysis.predict(bound.conservative_config()).time_us
    rows, columns = first.config["block_sizes"][:2]
    assert rows * columns >= 1024


def test_tiles_that_do_not_spill_stay() -> None:
    bound = gram_of_centered.bind((torch.empty(32768, 512, dtype=torch.bfloat16, device="meta"),), target="h200")
    given = TritonProposal(reason="", block_sizes={0: 32, 1: 64, 2: 64, 3: 64, 4: 64}, num_warps=4, num_stages=3)
    assert with_smaller_tiles(given, bound.facts, target("h200")) is given
    spilling = replace(given, block_sizes={0: 32, 1: 64, 2: 1024, 3: 1024, 4: 64})
    assert with_smaller_tiles(spilling, bound.facts, target("h200")) is spilling, "the product spills by itself"


def test_sums_before_a_product_are_right() -> None:
    x = torch.randn(129, 33)
    centered = x.double() - x.double().mean(0)
    torch.testing.assert_close(gram_of_centered(x).double(), centered.T @ centered, atol=1e-3, rtol=1e-3)


@helion.kernel(static_shapes=True)
def shifted_and_turned(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of neighbours in rows, and the transposed of another matrix, each by its own loop."""
    m, n = x.size()
    sums, turned = (
        torch.empty([m, n - 1], dtype=x.dtype, device=x.device),
        torch.empty([n, m], dtype=y.dtype, device=y.device),
    )
    for rows, columns in hl.tile([m, n - 1]):
        sums[rows, columns] = x[rows, columns] + x[rows, columns.index + 1]
    for rows, columns in hl.tile([n, m]):
        turned[rows, columns] = y[columns, rows].T
    return sums, turned


def test_elementwise_loops_have_the_tiles_of_each_alone() -> None:
    cell = CELLS["maxwell_step"]
    bound = cell.kernel.bind(cell.arguments("meta", False), target="h200")
    facts, config = bound._analysis.facts, bound.default_config()
    assert facts.pointwise is not None and facts.pointwise.total_numel == 4096 * 4096
    assert [each.value.pointwise.total_numel for each in facts.apart] == [4096 * 4095, 4095 * 4096, 4096 * 4096]
    alone = [TritonPointwiseHeuristic().propose(each.value, target("h200")) for each in facts.apart]
    sizes = [
        size for each in alone if not isinstance(each, Declined) for _, size in sorted(each[0].block_sizes.items())
    ]
    assert config["block_sizes"] == sizes and config["loop_orders"] == [[1, 0]] * 3
    # one tile for all six axes had 4096 programs of one row in the first loop alone
    before = bound.config_spec.normalize({"block_sizes": [1, 16, 1, 128, 1, 2048], "num_warps": 4, "num_stages": 1})
    assert bound._analysis.predict(config).time_us < 0.3 * bound._analysis.predict(before).time_us


def test_each_loop_has_its_own_order() -> None:
    x = torch.empty(4096, 1025, device="meta")
    bound = shifted_and_turned.bind((x, x), target="h200")
    facts = bound._analysis.facts
    found = loop_by_loop(TritonPointwiseHeuristic(), facts, target("h200"))
    first, second = (TritonPointwiseHeuristic().propose(each.value, target("h200")) for each in facts.apart)
    assert found is not None and not isinstance(first, Declined) and not isinstance(second, Declined)
    assert found.block_sizes == {**first[0].block_sizes, **second[0].block_sizes}
    orders = {root: dict(each[0].loop_orders)[0] for root, each in enumerate((first, second)) if each[0].loop_orders}
    assert orders and found.loop_orders == orders
    assert found.num_warps in (first[0].num_warps, second[0].num_warps)


def test_facts_of_one_loop_are_those_of_a_kernel_that_has_no_other() -> None:
    x = torch.empty(4096, 1025, device="meta")
    facts = shifted_and_turned.bind((x, x), target="h200")._analysis.facts
    first, second = (each.value for each in facts.apart)
    assert [axis.block_id for axis in first.axes] == [axis.block_id for axis in facts.axes]
    assert (
        [axis.name for axis in first.tunable_axes] == [axis.name for axis in second.tunable_axes] == ["rows", "columns"]
    )
    assert len(first.grid_axes) == len(second.grid_axes) == 2 and not set(first.grid_axes) & set(second.grid_axes)
    assert first.num_roots == second.num_roots == 1 and first.apart == ()
    assert sum(op.kind == "store" for op in first.memory_ops) == 1


def test_elementwise_loops_are_right_in_their_default() -> None:
    x, y = torch.randn(63, 130), torch.randn(63, 130)
    bound = shifted_and_turned.bind((x, y))
    proposed = loop_by_loop(TritonPointwiseHeuristic(), bound._analysis.facts, target("h200"))
    assert proposed is not None
    sizes = [proposed.block_sizes[axis.block_id] for axis in bound._analysis.facts.tunable_axes]
    config = helion.Config(block_sizes=sizes, loop_orders=[[1, 0], [1, 0]], num_warps=proposed.num_warps)
    sums, turned = bound.compile_config(config)(x, y)
    torch.testing.assert_close(sums, x[:, :-1] + x[:, 1:])
    assert torch.equal(turned, y.T)


@helion.kernel(backend="triton")
def places_of_choices(ids: torch.Tensor, e: int) -> tuple[torch.Tensor, torch.Tensor]:
    t, e = ids.size(0), hl.specialize(e)
    out = torch.empty_like(ids)
    counts = torch.empty([e], dtype=torch.int32, device=ids.device)
    for choices in hl.tile(e):
        total = hl.zeros([choices], dtype=torch.int32)
        for rows in hl.tile(t):
            total += (ids[rows][:, None] == choices.index[None, :]).to(torch.int32).sum(0)
        counts[choices] = total
    for rows in hl.tile(t):
        own = ids[rows]
        before = hl.zeros([rows], dtype=torch.int32)
        for others in hl.tile(0, rows.end):
            same = (ids[others][None, :] == own[:, None]) & (others.index[None, :] < rows.index[:, None])
            before += same.to(torch.int32).sum(1)
        out[rows] = before
    return out, counts


@pytest.mark.parametrize("choices", [8, 64, 1000])
def test_loops_of_unknown_length_have_the_tiles_of_their_own_rule(choices: int) -> None:
    ids = torch.empty(16384, dtype=torch.int32, device="meta")
    first = places_of_choices.bind((ids, choices), target="h200").seeds[0]
    assert first.config["block_sizes"][-1] >= 256 and "loop 1: tiles of" in first.reason
    assert first.predicted.time_us < 200 and first.predicted.spill_risk < 0.5


def test_places_are_right_with_these_tiles() -> None:
    ids = torch.randint(0, 5, [333], dtype=torch.int32)
    out, counts = places_of_choices(ids, 5)
    hot = torch.nn.functional.one_hot(ids.long(), 5)
    torch.testing.assert_close(out, (hot.cumsum(0).gather(1, ids.long()[:, None])[:, 0] - 1).to(torch.int32))
    torch.testing.assert_close(counts, hot.sum(0).to(torch.int32))


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("centered_int8_keys", {"block_sizes": [256], "num_warps": 4}),
        # sums over windows: threads lie along the lags, of which there are more in a tile than samples
        ("pitch_differences", {"block_sizes": [256, 16, 1, 8], "num_warps": 4}),
    ],
)
def test_reductions_have_the_tiles_of_each_loop_alone(name: str, config: dict[str, object]) -> None:
    cell = CELLS[name]
    bound = helion.kernel(cell.kernel.fn, backend="triton").bind(cell.arguments("meta", False), target="h200")
    found = bound.default_config()
    assert {key: found[key] for key in config} == config


def test_loops_alone_replace_a_rule_only_where_much_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    cell, gpu = CELLS["centered_int8_keys"], target("h200")
    bound = helion.kernel(cell.kernel.fn, backend="triton").bind(cell.arguments("meta", False), target="h200")
    facts = bound._analysis.facts
    (block,) = {axis.block_id for axis in facts.tunable_axes}
    ruled = TritonProposal(reason="", block_sizes={block: 1024}, num_warps=32)
    assert several_loops.each_alone(ruled, facts, gpu).num_warps == 4
    less = replace(several_loops.trust(gpu), loops_alone=0.5)
    monkeypatch.setattr(several_loops, "trust", lambda _: less)
    assert several_loops.each_alone(ruled, facts, gpu) is ruled


def test_loops_with_matmuls_keep_their_rule() -> None:
    x, y = (torch.empty(512, 512, device="meta", dtype=torch.bfloat16) for _ in range(2))
    facts = in_parts.bind((x, y, 4), target="h200")._analysis.facts
    ruled = TritonProposal(reason="", block_sizes={}, num_warps=4)
    assert several_loops.each_alone(ruled, facts, target("h200")) is ruled


def test_loops_alone_keep_their_chunks_and_grow() -> None:
    """Measured on an H200: 162 us by the rule of one loop, 127 to 136 with columns held whole."""
    cell = CELLS["global_response_norm"]
    config = cell.kernel.bind(cell.arguments("meta", False), target="h200").default_config()
    assert config["reduction_loops"] == [None, None] and config["block_sizes"][1:] == [32, 16]
