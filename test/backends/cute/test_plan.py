"""Plans: sums of memory, counts, and a refusal for everything else."""

from __future__ import annotations

import dataclasses
import re

import pytest
from backends.cute import gemms

from helion import hardware
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.counts import counts, k_range, multicast_masks, part_of, place, rank_at
from helion.backends.cute.plan.epilogue import Epilogue, EpilogueOperand, Instruction
from helion.backends.cute.plan.records import Choice
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.plan.shared import shared_bytes, shared_memory


# Worked out by hand: rings of A, B and two buffers of D, 16 bytes of barriers per stage of operands and sums, the
# address of tensor memory and, for pairs, one more barrier.
@pytest.mark.parametrize(
    ("name", "stages", "size"),
    [
        ("fp8_pair", 8, 8 * 24576 + 2 * 8192 + 16 * 8 + 16 * 2 + 12),
        ("bf16_pair", 6, 6 * 32768 + 2 * 8192 + 16 * 6 + 16 * 2 + 12),
        ("bf16", 4, 4 * 49152 + 2 * 8192 + 16 * 4 + 16 * 2 + 4),
    ],
)
def test_shared_memory_is_an_exact_sum(name: str, stages: int, size: int) -> None:
    plan = gemms.blackwell(name)
    assert plan.ab_stages == stages
    assert shared_bytes(plan) == size


@pytest.mark.parametrize("name", gemms.ON_HOPPER)
def test_as_many_stages_as_fit(name: str) -> None:
    problem, choice = gemms.ON_HOPPER[name]
    plan = plan_gemm(problem, dataclasses.replace(choice, ab_stages=None), gemms.HOPPER)
    more = dataclasses.replace(plan, ab_stages=plan.ab_stages + 1)
    limit = gemms.HOPPER.smem_per_block_bytes
    if choice.ctas_per_sm > 1:  # each of them takes 1 KB of the SM's as well
        limit = gemms.HOPPER.smem_per_sm_bytes // choice.ctas_per_sm - 1024
    assert shared_bytes(plan) <= limit
    assert plan.ab_stages == 8 or shared_bytes(more) > limit


def test_rings_lie_where_swizzles_can_be_read() -> None:
    for plan in gemms.all_plans().values():
        for allocation in shared_memory(plan):
            ring = allocation.alignment_bytes == 1024
            assert allocation.offset_bytes % allocation.alignment_bytes == 0
            rows = {f"shared_{operand.label}" for operand in plan.problem.epilogue.of_kind("row")}
            plain = {"shared_parts", "shared_rows", "shared_count", "shared_lines", *rows}
            assert ring == (allocation.name.startswith("shared_") and allocation.name not in plain)


def test_every_ring_has_two_barriers_per_slot() -> None:
    for plan in gemms.all_plans().values():
        words = {a.name: a.size_bytes // 8 for a in shared_memory(plan)}
        assert words["ab_barriers"] == 2 * plan.ab_stages
        assert words.get("accumulator_barriers", 2 * plan.accumulator_stages) == 2 * plan.accumulator_stages


def test_sums_take_a_power_of_two_of_columns() -> None:
    assert counts(gemms.blackwell("bf16_pair")).tensor_memory_columns == 512
    assert counts(gemms.blackwell("fp8_pair")).tensor_memory_columns == 256
    assert counts(gemms.hopper("bf16")).tensor_memory_columns == 0
    problem, choice = gemms.ON_BLACKWELL["bf16_odd"]
    narrow = plan_gemm(problem, dataclasses.replace(choice, tile=(128, 96, 64), epilogue_n=16), gemms.BLACKWELL)
    assert counts(narrow).tensor_memory_columns == 256


def test_parts_of_k_are_all_of_it() -> None:
    for splits, k_tiles in ((1, 5), (2, 9), (3, 3), (4, 129)):
        choice = Choice(tile=(64, 128, 64), cluster=(1, 2), splits=splits)
        plan = plan_gemm(gemms.product(k=64 * k_tiles), choice, gemms.HOPPER)
        parts = [k_range(plan, rank, k_tiles) for rank in range(0, plan.ctas, 2)]
        assert [k_tile for part in parts for k_tile in part] == list(range(k_tiles))
        assert all(parts) and max(map(len, parts)) - min(map(len, parts)) <= 1


def test_parts_of_k_share_nothing_but_their_own_operands() -> None:
    plan = plan_gemm(gemms.product(), Choice(tile=(64, 128, 64), cluster=(2, 1), splits=3), gemms.HOPPER)
    assert [part_of(plan, rank) for rank in range(plan.ctas)] == [0, 0, 1, 1, 2, 2]
    assert [multicast_masks(plan, rank) for rank in (0, 3)] == [(0b1, 0b11), (0b1000, 0b1100)]
    ranks = [rank_at(plan, *place(plan, rank), part_of(plan, rank)) for rank in range(plan.ctas)]
    assert ranks == list(range(plan.ctas))


@pytest.mark.parametrize("name", ["bf16_pair_multicast", "bf16_pair_of_pairs", "bf16_multicast"])
def test_every_cta_gets_each_part_of_its_operands_once(name: str) -> None:
    """Halves of a pair hold different halves; CTAs along N share A, pairs along M share B."""
    plan = gemms.blackwell(name)
    for reader in range(plan.ctas):
        half, pair_m, cta_n = place(plan, reader)
        from_a = [rank for rank in range(plan.ctas) if multicast_masks(plan, rank)[0] >> reader & 1]
        from_b = [rank for rank in range(plan.ctas) if multicast_masks(plan, rank)[1] >> reader & 1]
        assert [place(plan, rank)[:2] for rank in from_a] == [(half, pair_m)] * counts(plan).a_multicast
        assert [place(plan, rank)[::2] for rank in from_b] == [(half, cta_n)] * counts(plan).b_multicast
        assert rank_at(plan, half, pair_m, cta_n) == reader


def test_bytes_awaited_are_whole_tiles_of_both_ctas() -> None:
    assert counts(gemms.hopper("bf16_multicast_b")).ab.transaction_bytes == (128 + 256) * 64 * 2
    assert counts(gemms.blackwell("bf16_pair")).ab.transaction_bytes == (256 + 256) * 64 * 2
    assert counts(gemms.blackwell("fp8_pair")).ab.transaction_bytes == (256 + 128) * 128


def test_8_bit_sums_leave_the_matrix_unit_on_hopper_only() -> None:
    assert gemms.hopper("fp8").promote
    assert not gemms.hopper("fp8_unpromoted").promote
    for output, k_tiles in (("bfloat16", 2), ("float8_e4m3fn", 2), ("float16", 1), ("float32", 1)):
        plan = plan_gemm(gemms.product(operands=gemms.E4M3, output=output), Choice(tile=(128, 64, 128)), gemms.HOPPER)
        assert (plan.promote, plan.promote_k_tiles) == (True, k_tiles)
    assert not gemms.blackwell("fp8_pair").promote


WIDE, SQUARE, PAIR = gemms.WIDE, gemms.SQUARE, gemms.PAIR
TF32 = Choice(tile=(128, 128, 32))
ROWS = EpilogueOperand(name="x", kind="row", dtype="float32")


@pytest.mark.parametrize(
    ("target", "problem", "choice", "message"),
    [
        ("sm_80", gemms.product(), WIDE, "neither wgmma nor tcgen05"),
        ("sm_90", gemms.product(operands="float32", b_major="mn"), TF32, "contiguous along K"),
        ("sm_100", gemms.product(operands="float32", b_major="mn"), SQUARE, "contiguous along K"),
        ("sm_90", gemms.product(operands="int16"), WIDE, "matmuls of int16"),
        ("sm_90", gemms.product(output="int16"), WIDE, "outputs of int16"),
        ("sm_90", gemms.product(output=gemms.E5M2), WIDE, "outputs of float8_e5m2"),
        ("sm_90", gemms.product(epilogue=gemms.bias(dtype=gemms.E4M3)), WIDE, "operand bias is of float8_e4m3fn"),
        ("sm_90", gemms.product(k=0), WIDE, "extents"),
        ("sm_90", gemms.product(m=0), WIDE, "extents of 1"),
        ("sm_90", gemms.product(k=4001), WIDE, "A has a stride of 4001 elements, 8002 bytes"),
        ("sm_90", gemms.product(n=4001), WIDE, "D has a stride of 4001 elements"),
        ("sm_90", gemms.product(n=4004, b_major="mn"), WIDE, "B has a stride of 4004 elements"),
        ("sm_90", dataclasses.replace(gemms.product(), a_pitch=64), WIDE, "overlap"),
        ("sm_90", gemms.product(operands=gemms.E4M3, b_major="mn"), Choice(tile=(128, 128, 128)), "contiguous along K"),
        ("sm_90", gemms.product(), Choice(tile=(128, 256, 32)), "a K tile of 32"),
        ("sm_90", gemms.product(), Choice(tile=(192, 256, 64)), "a tile of 192 rows"),
        ("sm_90", gemms.product(), Choice(tile=(256, 256, 64)), "256 accumulator registers per thread"),
        (
            "sm_90",
            gemms.product(epilogue=gemms.scaled_residual(4096)),
            Choice(tile=(256, 192, 64)),
            "192 accumulator registers per thread; up to 128 leave room",
        ),
        ("sm_90", gemms.product(), Choice(tile=(256, 64, 64), pingpong=True), "a tile of 256 rows"),
        ("sm_90", gemms.product(), Choice(tile=(128, 256, 64), pingpong=True), "256 accumulator registers per thread"),
        ("sm_90", gemms.product(), Choice(tile=(128, 256, 64), splits=2), "no room for the partials of other CTAs"),
        ("sm_90", gemms.product(), Choice(tile=(128, 128, 64), splits=17, epilogue_n=8), "K split in 17 parts"),
        ("sm_90", gemms.product(), Choice(tile=(128, 128, 64), splits=5), "5 parts with 4 sub-tiles"),
        ("sm_90", gemms.product(k=128), Choice(tile=(128, 128, 64), splits=4), "4 parts of 2 K tiles"),
        ("sm_90", gemms.product(), Choice(tile=(128, 128, 64), splits=4, cluster=(4, 2)), "times 4 parts of K"),
        ("sm_90", gemms.product(), Choice(tile=(128, 128, 64), splits=2, pingpong=True), "without ping-pong"),
        ("sm_90", gemms.product(), Choice(tile=(128, 128, 64), promote_k_tiles=9), "every 9 K tiles"),
        ("sm_90", gemms.product(), Choice(tile=(128, 128, 64), residual_stages=1), "1 stages of residuals"),
        ("sm_90", gemms.product(epilogue=gemms.swiglu(4096)), WIDE, "a tile of 512 columns"),
        ("sm_90", gemms.product(epilogue=gemms.swiglu(4000)), SQUARE, "overlap"),
        ("sm_90", gemms.product(epilogue=gemms.swiglu(4096, gemms.E4M3)), SQUARE, "the first matmul's B of bfloat16"),
        ("sm_90", gemms.product(epilogue=gemms.swiglu(4096)), Choice(tile=(128, 64, 128)), "K tiles of 128 bytes"),
        (
            "sm_90",
            gemms.product(b_major="mn", epilogue=gemms.swiglu(4096)),
            Choice(tile=(128, 96, 64), epilogue_n=16),
            "96 lines in atoms of 64",
        ),
        ("sm_90", gemms.product(epilogue=gemms.swiglu(4096)), Choice(tile=(64, 64, 64), splits=2), "splitting K"),
        ("sm_100", gemms.product(), Choice(tile=(128, 128, 64), splits=2), "K is split on wgmma"),
        ("sm_100", gemms.product(), Choice(tile=(128, 128, 64), pingpong=True), "ping-pong is for wgmma"),
        ("sm_90", gemms.product(), Choice(tile=(128, 288, 64), epilogue_n=16), "a tile of 288 columns"),
        ("sm_90", gemms.product(), Choice(tile=(128, 256, 64), ctas_per_mma=2, cluster=(2, 1)), "pairs need tcgen05"),
        ("sm_90", gemms.product(), Choice(tile=(128, 256, 64), ab_stages=5), "stages need"),
        ("sm_90", gemms.product(), Choice(tile=(128, 256, 64), ab_stages=1), "1 stages of A and B"),
        ("sm_90", gemms.product(), Choice(tile=(128, 256, 64), store_stages=1), "1 buffers for 8 sub-tiles"),
        ("sm_90", gemms.product(), Choice(tile=(128, 256, 64), store_stages=9), "9 buffers for 8 sub-tiles"),
        ("sm_90", gemms.product(), Choice(tile=(128, 256, 64), cluster=(4, 4)), "a cluster of (4, 4)"),
        ("sm_90", gemms.product(), Choice(tile=(128, 240, 64), epilogue_n=32), "sub-tiles of 32 columns"),
        ("sm_90", gemms.product(), Choice(tile=(128, 256, 64), accumulator_stages=2), "2 accumulators of wgmma"),
        ("sm_90", gemms.product(a_major="mn"), Choice(tile=(64, 128, 64), cluster=(1, 2)), "slices of A"),
        (
            "sm_90",
            gemms.product(operands=gemms.E4M3),
            Choice(tile=(128, 256, 128)),
            "256 accumulator registers per thread",
        ),
        ("sm_100", gemms.product(), Choice(tile=(128, 128, 64), ctas_per_mma=2, cluster=(2, 1)), "64, and 128 per CTA"),
        ("sm_100", gemms.product(), Choice(tile=(256, 256, 64), ctas_per_mma=2), "groups of 2 along M"),
        ("sm_100", gemms.product(), Choice(tile=(128, 24, 64), epilogue_n=16), "sub-tiles of 16"),
        ("sm_100", gemms.product(), dataclasses.replace(PAIR, accumulator_stages=3), "columns of tensor memory"),
        ("sm_100", gemms.product(), dataclasses.replace(PAIR, promote=True), "neither promoted nor rounded"),
        ("sm_90", gemms.product(epilogue=Epilogue(instructions=(Instruction("sin", (0,)),))), WIDE, "'sin'"),
        ("sm_90", gemms.product(epilogue=Epilogue(instructions=(Instruction("add", (0, 1)),))), WIDE, "reads value 1"),
        ("sm_90", gemms.product(epilogue=Epilogue(operands=(ROWS, ROWS))), WIDE, "distinct"),
        ("sm_90", gemms.product(epilogue=gemms.scaled_residual(4100)), WIDE, "residual has a stride of 4100"),
    ],
)
def test_refusals_say_what_is_refused(target: str, problem: object, choice: Choice, message: str) -> None:
    with pytest.raises(Refusal, match=re.escape(message)):
        plan_gemm(problem, choice, hardware.target(target))  # type: ignore[arg-type]


def test_a_product_that_is_stored_as_it_is_has_larger_tiles() -> None:
    plan = plan_gemm(gemms.product(), Choice(tile=(256, 192, 64), cluster=(2, 1)), hardware.target("sm_90"))
    assert plan.row_atoms == 2 and plan.ab_stages == 3
