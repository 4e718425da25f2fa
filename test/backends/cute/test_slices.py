"""Warps that multiply K tiles of their own: the numbers they convert, the elements they pair, and refused plans."""

from __future__ import annotations

import dataclasses
import functools
import types
from typing import Any

import pytest
import torch
from backends.cute import copies, gemms

import helion
import helion.language as hl
from helion.backends.cute.codegen import numbers
from helion.backends.cute.codegen.module import build
from helion.backends.cute.codegen.slices import pairs, sliced
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.counts import counts, slice_columns, slice_values, slices, stage_readers
from helion.backends.cute.plan.epilogue import EpilogueOutput
from helion.backends.cute.plan.records import GemmPlan
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.roles.sliced import MultiplySlice, ReadColumns

HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@pytest.mark.parametrize("name", ["slices_int8", "slices_int4", "slices_uint4"])
def test_all_bytes_are_converted_exactly(name: str) -> None:
    plan = copies.plan(name, "sm_90")
    (copied,), dtype = plan.problem.copied, plan.problem.operand_dtype
    found = pairs.conversion(copied, dtype)
    bits = torch.arange(256, dtype=torch.int32)
    kind, offset = copied.sources[0].dtype, copied.offset or 0
    for at, pair in enumerate(found.pairs):
        number = (bits >> 4 * at) & 15
        wanted = (bits ^ 128) - 128 if kind == "int8" else ((number ^ 8) - 8 if kind == "int4" else number) + offset
        half = ((bits & pair.mask) ^ pair.flipped).to(torch.int16).view(HALVES[dtype]).double()
        made = half * pair.factor + pair.added
        assert torch.equal(made * found.divisor, wanted.double())
        assert torch.equal(made.to(HALVES[dtype]).double(), made), "the FMA rounds"
        for constant in (pair.factor, pair.added):
            pairs.halves_of(constant, dtype)


class Lane:
    """One thread of the generated code, whose words are the places of their bytes or elements in a K tile."""

    def __init__(self, plan: GemmPlan, lane: int, rows: int) -> None:
        self.plan, self.lane, self.rows = plan, lane, rows
        self.mmas: list[tuple[int, list[Any], list[Any]]] = []
        """Of each MMA: its first accumulator, its words of A and its words of B."""
        self.promoted: dict[int, int] = {}
        """The number of the row's scale of each accumulator, in eighths of the rows."""

    def run(self) -> None:
        plan, cursor = self.plan, types.SimpleNamespace(index=0)
        lines = [f"{name}_mask = {at}" for at, name in enumerate(["low_pair", "high_pair"])] + ["byte_pair_mask = 0"]
        lines += sliced.lines(plan, ReadColumns("cursor"), ("0", "1"))
        lines += sliced.lines(plan, MultiplySlice("cursor"), ("0", "1"))
        scope = {
            "cutlass": types.SimpleNamespace(range_constexpr=range, Uint32=int, Float32=float),
            **{"cursor": cursor, "columns_base": 0, "raw_base": 1 << 20, "own_rows": self.rows},
            **{"slice_row": self.lane // 4, "slice_quad": self.lane % 4},
            **{name: [None] * 64 for name in ("slice_read", "slice_columns", "slice_words", "slice_pairs")},
            **{"slice_sums": list(range(64)), "slice_total": [0.0] * 64, "row_factors": [0, 1]},
            **{"slice_factors": [None] * 2, "lane": self.lane},
            "cute": types.SimpleNamespace(
                math=types.SimpleNamespace(fma=self.promote), arch=types.SimpleNamespace(shuffle_sync=self.shuffle)
            ),
            "load_words": self.load,
            "permuted": self.permute,
            "multiply": self.multiply,
            **{each: functools.partial(self.pair, each) for each in ("low_pair", "high_pair", "byte_pair")},
        }
        cleared = f"block * {slice_columns(plan) // 2} + i"
        exec("\n".join(lines).replace("cutlass.Float32(0.0)", cleared), scope)

    def load(self, address: int) -> list[Any]:
        """Return the words at an address: of a swizzled stage of B, or of a raw tile."""
        assert address % 16 == 0
        if address < 1 << 20:
            atom, line, chunk = address // 1024, address // 128 % 8, address // 16 % 8
            column, k = atom % 2 * 8 + line, atom // 2 * 64 + (chunk ^ line) * 8
            return [[(column, k + 2 * word), (column, k + 2 * word + 1)] for word in range(4)]
        width = sliced._line_bytes(self.plan)
        line, chunk = (address - (1 << 20)) // width, address // 16 % (width // 16)
        chunk ^= line % 8 if width == 128 else line // 2 % 4
        return [Word([(line, chunk * 16 + 4 * word + byte) for byte in range(4)]) for word in range(4)]

    def permute(self, first: Any, second: Any, order: str) -> Any:
        four = [*first, *second]
        at = {"0x5410": (0, 2), "0x7632": (1, 3)}[order]
        return [four[each] for each in at]

    def pair(self, name: str, word: Word, mask: int) -> Any:
        """Return the places of the numbers of bytes 0 and 2: high nibbles are 64 elements after low ones."""
        return [(line, k + (64 if name == "high_pair" else 0)) for line, k in (word.bytes[0], word.bytes[2])]

    def shuffle(self, half: int, offset: int) -> int:
        assert offset // 4 == self.lane // 4
        return offset % 4 * 2 + half

    def promote(self, sums: int, factor: int, total: float) -> float:
        self.promoted[sums] = factor
        return total

    def multiply(self, *given: Any) -> list[Any]:
        self.mmas.append((given[0], [*given[4:8]], [*given[8:]]))
        return [*given[:4]]


class Word:
    def __init__(self, of: list[Any]) -> None:
        self.bytes = of

    def __rshift__(self, bits: int) -> Word:
        return Word([*self.bytes[bits // 8 :], *[None] * (bits // 8)])


@pytest.mark.parametrize(
    ("name", "rows", "n"),
    [
        ("slices_int8", 0, 16),
        ("slices_int8", 0, 8),
        ("slices_int4", 0, 16),
        ("slices_int4", 3, 16),
        ("slices_int4", 1, 8),
    ],
)
def test_mmas_pair_the_same_elements_along_k(name: str, rows: int, n: int) -> None:
    """Each accumulator adds up all 128 elements of its row of A times those of its column of B."""
    problem, choice = copies.COPIES[name]
    problem, atoms = dataclasses.replace(problem, n=n), -(-n // 8)
    tile = (64 * (1 + rows), 16, 128)
    choice = dataclasses.replace(choice, tile=tile, ctas_per_sm=1, grid_splits=1)
    plan = plan_gemm(problem, choice, gemms.HOPPER)
    added: dict[tuple[int, int, int], list[int]] = {}
    for lane in range(32):
        one = Lane(plan, lane, rows)
        one.run()
        assert not one.promoted or one.promoted == {
            each: each // (4 * atoms) * 2 + each // 2 % 2 for each in range(slice_values(plan))
        }
        for first, a, b in one.mmas:
            assert first % 4 == 0
            for half in (0, 1):
                upper, lower, columns = a[2 * half], a[2 * half + 1], b[half]
                block, atom = first // (4 * atoms), first // 4 % atoms
                for place, row in ((upper, lane // 4), (lower, lane // 4 + 8)):
                    assert [line for line, _ in place] == [rows * 64 + block * 16 + row] * 2
                    assert [k for _, k in place] == [k for _, k in columns]
                assert [column for column, _ in columns] == [atom * 8 + lane // 4] * 2
                added.setdefault((first, lane // 4, half), []).extend(k for _, k in columns)
    assert {first for first, _, _ in added} == {*range(0, slice_values(plan), 4)}
    for first in {first for first, _, _ in added}:
        for row in range(8):
            assert sorted(added[first, row, 0] + added[first, row, 1]) == [*range(128)]


@pytest.mark.parametrize("rows", [64, 128, 256])
def test_slices_have_stages_of_their_own(rows: int) -> None:
    problem, choice = copies.COPIES["slices_int4"]
    plan = plan_gemm(problem, dataclasses.replace(choice, tile=(rows, 16, 128), ctas_per_sm=1), gemms.HOPPER)
    raw = counts(plan).raw
    assert raw is not None
    assert (stage_readers(plan), slices(plan)) == {64: (1, 4), 128: (2, 4), 256: (4, 2)}[rows]
    assert raw.stages % slices(plan) == plan.ab_stages % slices(plan) == 0
    assert raw.empty_arrivals == counts(plan).ab.empty_arrivals == stage_readers(plan)


def int8_linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    (m, k), n = x.size(), w.size(0)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], w[tile_n, tile_k].to(x.dtype).T, acc=acc)
        out[tile_m, tile_n] = acc
    return out


@pytest.mark.parametrize(
    ("m", "n", "place"), [(16, 28672, "slices"), (32, 28672, "registers"), (16, 4096, "registers")]
)
def test_large_weights_of_few_rows_are_sliced(m: int, n: int, place: str) -> None:
    x, w = (
        torch.empty(m, 4096, dtype=torch.bfloat16, device="meta"),
        torch.empty(n, 4096, dtype=torch.int8, device="meta"),
    )
    bound = helion.kernel(int8_linear, backend="cute", static_shapes=True).bind((x, w), target="h200")
    assert bound.seeds[0].config["wgmma_copies_in"] == place


def test_what_cannot_be_sliced_is_refused() -> None:
    problem, choice = copies.COPIES["slices_int8"]

    def refused(match: str, **changes: Any) -> None:
        with pytest.raises(Refusal, match=match):
            plan_gemm(problem, dataclasses.replace(choice, **changes), gemms.HOPPER)

    refused("16 columns and 128 elements", tile=(64, 32, 128))
    refused("16 columns and 128 elements", pingpong=True, ctas_per_sm=1, grid_splits=1)
    refused("registers of 3 CTAs with 64 rows, or of one", tile=(128, 16, 128))
    other, _ = copies.COPIES["slices_int4"]
    plan_gemm(other, dataclasses.replace(choice, ctas_per_sm=3, grid_splits=1), gemms.HOPPER)
    with pytest.raises(Refusal, match="4 CTAs on an SM with a tile"):
        plan_gemm(other, dataclasses.replace(choice, ctas_per_sm=4, grid_splits=1), gemms.HOPPER)
    refused("at least 8 are needed", ab_stages=6)
    for name in ("registers_fp8", "registers_computed"):
        other, _ = copies.COPIES[name]
        with pytest.raises(Refusal, match="int8 or 4-bit integers without arithmetic"):
            plan_gemm(other, choice, gemms.HOPPER)


@pytest.mark.parametrize("changes", [{"grid_splits": 1}, {"grid_splits": 1, "splits": 2, "epilogue_n": 8}])
def test_a_tile_takes_all_k_tiles_in_an_order_of_its_own(changes: dict[str, Any]) -> None:
    problem, choice = copies.COPIES["slices_int4"]
    plan = plan_gemm(problem, dataclasses.replace(choice, **changes), gemms.HOPPER)
    assert numbers.of_k_tile(plan, "k_tile") == "k_tile"
    output = EpilogueOutput(name="out", value=0, kind="strided", dtype="bfloat16", pitch=1, column_pitch=1000)
    few = dataclasses.replace(
        problem, n=1, d_pitch=1, epilogue=dataclasses.replace(problem.epilogue, outputs=(output,))
    )
    plan = plan_gemm(few, dataclasses.replace(choice, **changes), gemms.HOPPER)
    place = numbers.of_k_tile(plan, "k_tile")
    assert build(plan).count(f"tile_m, {place}]") == build(plan).count(f"tile_n, {place}]") == 1
    for begin, end in ((0, plan.k_tiles), (2, plan.k_tiles)) if plan.splits > 1 else ((0, plan.k_tiles),):
        names = {"k_begin": begin, "k_end": end}
        orders = [[eval(place, names | {"work": work, "k_tile": k}) for k in range(begin, end)] for work in range(2)]
        assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1]) == [*range(begin, end)]
