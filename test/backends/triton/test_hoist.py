"""Operands of matrix products that are computed first: which, what that gives, and when a seed does it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import sample_kernels
import torch
from harness import program_of, tensor

import helion
import helion.language as hl
from benchmarks.unfitted import CELLS
from helion import exc
from helion._compiler.rewrites.precompute_operands import computed_operands
from helion.backends.triton.execute.interpreter.races import detect_races


def widened(x, w, scale):
    """int8 weights with a scale for each column, applied in the loop."""
    m, k = x.size()
    out = torch.empty([m, w.size(0)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, w.size(0)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            weights = w[tile_n, tile_k].T.to(torch.float32) * scale[tile_n][None, :]
            acc = hl.dot(x[tile_m, tile_k], weights.to(x.dtype), acc=acc)
        out[tile_m, tile_n] = acc
    return out


def pairs(x, packed, scales):
    """Weights of 4 bits, two neighbours along K in a byte, a scale for each 32 of them."""
    m, n, half = x.size(0), packed.size(1), packed.size(0)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    block = hl.register_block_size(16)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_p in hl.tile(half, block_size=block):
            both = packed[tile_p, tile_n]
            whole = hl.join((both << 4) >> 4, both >> 4).permute(0, 2, 1).reshape(block * 2, tile_n)
            weights = whole.to(torch.float32) * scales[tile_p.begin // 16, tile_n][None, :]
            rows = x[tile_m, tile_p.begin * 2 + hl.arange(block * 2)]
            acc = hl.dot(rows, weights.to(x.dtype), acc=acc)
        out[tile_m, tile_n] = acc
    return out


def both_sides(x, w, scale):
    """The left operand is computed as well, and read again behind the product; so are its rows in two products."""
    m, k = x.size()
    n = w.size(0)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            rows = torch.relu(x[tile_m, tile_k])
            weights = w[tile_n, tile_k].T.to(x.dtype)
            acc = hl.dot(rows, weights, acc=acc)
            acc = hl.dot(rows * 2.0, weights, acc=acc)
        out[tile_m, tile_n] = acc * scale[tile_n][None, :]
    return out


def zero_points(x, w, zeros):
    """uint8 weights minus a zero point; lanes out of range would be minus the zero point."""
    m, k = x.size()
    out = torch.empty([m, w.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, w.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            weights = w[tile_k, tile_n].to(torch.float32) - zeros[tile_n][None, :]
            acc = hl.dot(x[tile_m, tile_k], weights.to(x.dtype), acc=acc)
        out[tile_m, tile_n] = acc
    return out


def joined(x, packed, book):
    """Weights of a book of 16 numbers: each 16 bytes of a column are joined to 32 rows, a constant."""
    m, n, half = x.size(0), packed.size(1), packed.size(0)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_p in hl.tile(half, block_size=16):
            code = packed[tile_p, tile_n].to(torch.int32)
            weights = hl.join(book[code & 15], book[(code >> 4) & 15]).permute(0, 2, 1).reshape(32, tile_n)
            rows = x[tile_m, tile_p.begin * 2 + hl.arange(32)]
            acc = hl.dot(rows, weights.to(x.dtype), acc=acc)
        out[tile_m, tile_n] = acc
    return out


def halves(x, packed, book):
    """The first half of each 32 along K in low bits: two operands of the same bytes."""
    m, n, half = x.size(0), packed.size(1), packed.size(0)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_p in hl.tile(half, block_size=16):
            code, at = packed[tile_p, tile_n].to(torch.int32), tile_p.begin * 2
            acc = hl.dot(x[tile_m, at + hl.arange(16)], book[code & 15].to(x.dtype), acc=acc)
            acc = hl.dot(x[tile_m, at + 16 + hl.arange(16)], book[(code >> 4) & 15].to(x.dtype), acc=acc)
        out[tile_m, tile_n] = acc
    return out


def diagonals(x, vector):
    """A matrix of constant diagonals from its vector, with an index for each element."""
    n, c = x.size()
    out = torch.empty([n, c], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([n, c]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(n):
            weights = vector[tile_m.index[:, None] - tile_k.index[None, :] + (n - 1)]
            acc = hl.dot(weights, x[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = acc
    return out


def written_weights(x, w, scale):
    """The kernel writes what it multiplies."""
    for tile_m in hl.tile(x.size(0)):
        for tile_n in hl.tile(w.size(0)):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(x.size(1)):
                acc = hl.dot(x[tile_m, tile_k], w[tile_n, tile_k].T.to(x.dtype), acc=acc)
            w[tile_m, tile_n] = (acc * scale[tile_n][None, :]).to(w.dtype)
    return w


def depends_on_rows(x, w, scale):
    """Weights are scaled by the row of the output: they differ from tile to tile."""
    m, k = x.size()
    out = torch.empty([m, w.size(0)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, w.size(0)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            factor = scale[tile_m.begin]
            acc = hl.dot(x[tile_m, tile_k], (w[tile_n, tile_k].T * factor).to(x.dtype), acc=acc)
        out[tile_m, tile_n] = acc
    return out


def _narrow(m: int, k: int, n: int, dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, ...]:
    stream = torch.Generator().manual_seed(m + k)
    x = (torch.randn(m, k, generator=stream) + 0.5).to(dtype)
    w = torch.randint(-128, 128, (n, k), dtype=torch.int8, generator=stream)
    return x, w, torch.rand(n, generator=stream) + 0.5


def _packed(m: int, half: int, n: int) -> tuple[torch.Tensor, ...]:
    x, packed, _ = _narrow(m, 2 * half, n)
    return x, packed[:, :half].T.contiguous(), torch.rand(half // 16, n) + 0.5


def _widened(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return x.double() @ (w.T.float() * scale).to(x.dtype).double()


def _pairs(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    whole = torch.stack([(packed << 4) >> 4, packed >> 4], 1).flatten(0, 1).float()
    return x.double() @ (whole * scales.repeat_interleave(32, 0)).to(x.dtype).double()


def _book(m: int, half: int, n: int) -> tuple[torch.Tensor, ...]:
    return *_packed(m, half, n)[:2], torch.randn(16, generator=torch.Generator().manual_seed(n))


def _joined(x: torch.Tensor, packed: torch.Tensor, book: torch.Tensor) -> torch.Tensor:
    codes = torch.stack([packed & 15, (packed >> 4) & 15], 1).flatten(0, 1).long()
    return x.double() @ book[codes].to(x.dtype).double()


def _halves(x: torch.Tensor, packed: torch.Tensor, book: torch.Tensor) -> torch.Tensor:
    parts = packed.view(-1, 16, packed.size(1))
    codes = torch.cat([parts & 15, (parts >> 4) & 15], 1).flatten(0, 1).long()
    return x.double() @ book[codes].to(x.dtype).double()


def _diagonals(x: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    at = torch.arange(x.size(0))
    return vector[at[:, None] - at + x.size(0) - 1].double() @ x.double()


def _vector(n: int, c: int) -> tuple[torch.Tensor, ...]:
    stream = torch.Generator().manual_seed(n)
    return tuple(torch.randn(s, generator=stream).to(torch.bfloat16) for s in ((n, c), (2 * n - 1,)))


def _both(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    rows = torch.relu(x)
    return (rows.double() + (rows * 2.0).double()) @ w.T.double() * scale.double()


def _zeros(x: torch.Tensor, w: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    return x.double() @ (w.float() - zeros).to(x.dtype).double()


Case = tuple[Callable[..., Any], Callable[..., torch.Tensor], tuple[torch.Tensor, ...], list[int], int]
CASES: dict[str, Case] = {
    "widened": (widened, _widened, _narrow(33, 77, 65), [16, 32, 32], 1),
    "whole tiles": (widened, _widened, _narrow(32, 64, 64), [16, 32, 32], 1),
    "one row": (widened, _widened, _narrow(1, 63, 3, torch.float16), [16, 16, 16], 1),
    "pairs": (pairs, _pairs, _packed(33, 48, 65), [16, 16, 32], 1),
    "both sides": (both_sides, _both, _narrow(33, 77, 45, torch.float32), [16, 16, 32], 3),
    "joined": (joined, _joined, _book(33, 48, 65), [16, 32], 1),
    "halves": (halves, _halves, _book(33, 48, 65), [16, 32], 2),
    "diagonals": (diagonals, _diagonals, _vector(65, 40), [16, 32, 32], 1),
    "zero points": (
        zero_points,
        _zeros,
        (_narrow(33, 77, 1)[0], torch.randint(0, 255, (77, 45), dtype=torch.uint8), torch.full((45,), 128.0)),
        [16, 16, 32],
        1,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_operands_computed_first_give_the_same(name: str) -> None:
    fn, reference, args, sizes, count = CASES[name]
    kernel = helion.kernel(fn, static_shapes=True)
    bound = kernel.bind(args)
    config = {"block_sizes": sizes, "precompute_operands": True}
    code = bound.to_triton_code(helion.Config(**config))
    assert len(re.findall(r"_helion_hoisted_\d+ = ", code)) == count
    with detect_races():
        result = bound.compile_config(helion.Config(**config))(*args)
    expected = reference(*args)
    assert (result.double() - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("beside", [{"split_k": 2}, {"pid_type": "persistent_blocked"}, {"pid_type": "xyz"}])
def test_with_other_keys(beside: dict[str, Any]) -> None:
    args = _narrow(33, 77, 65)
    config = helion.Config(block_sizes=[16, 32, 32], precompute_operands=True, **beside)
    bound = helion.kernel(widened, static_shapes=True).bind(args)
    assert "_helion_hoisted" in bound.to_triton_code(config)
    expected = _widened(*args)
    assert (bound.compile_config(config)(*args).double() - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("fn", [written_weights, depends_on_rows])
def test_operands_that_stay_in_their_loop(fn: Callable[..., Any]) -> None:
    args = tensor(64, 64, dtype=torch.bfloat16), tensor(64, 64, dtype=torch.int8), tensor(64)
    bound = helion.kernel(fn, static_shapes=True).bind(args, target="sm_90")
    with pytest.raises(exc.InvalidConfig, match=r"precompute_operands.*computed"):
        bound.to_triton_code(helion.Config(precompute_operands=True))


def test_plain_operands_are_not_computed() -> None:
    args = tensor(64, 64), tensor(64, 64)
    assert not computed_operands(program_of(sample_kernels.matmul, *args))


@pytest.mark.parametrize(("m", "first"), [(4096, True), (16, False)])
def test_many_rows_have_their_weights_computed_first(m: int, first: bool) -> None:
    args = tensor(m, 4096, dtype=torch.bfloat16), tensor(4096, 4096, dtype=torch.int8), tensor(4096)
    bound = helion.kernel(widened, static_shapes=True).bind(args, target="h200")
    assert bound.default_config()["precompute_operands"] is first


def test_lookups_of_many_rows_run_first() -> None:
    """What a view joins to a constant counts as unpacked."""
    packed, book = tensor(2048, 4096, dtype=torch.int8), tensor(16)
    for m, first in ((1024, True), (32, False)):
        x = tensor(m, 4096, dtype=torch.bfloat16)
        bound = helion.kernel(joined, static_shapes=True).bind((x, packed, book), target="h200")
        (fact,) = bound._analysis.facts.precomputable
        assert fact.shape == (4096, 4096) and fact.lanes == (2, 1) and fact.gathered is None
        assert bound.default_config()["precompute_operands"] is first


@pytest.mark.parametrize(
    ("rows", "columns", "first"), [(4096, 1024, True), (4096, 512, True), (4096, 128, False), (32768, 1024, False)]
)
def test_single_elements_of_many_columns_are_gathered_first(rows: int, columns: int, first: bool) -> None:
    """Measurement ``gathered_first``. A matrix that is much larger than all tensors stays in the loop."""
    x, vector = (tensor(*s, dtype=torch.bfloat16) for s in ((rows, columns), (2 * rows - 1,)))
    bound = helion.kernel(diagonals, static_shapes=True).bind((x, vector), target="h200")
    (fact,) = bound._analysis.facts.precomputable
    assert fact.gathered is not None and fact.role == "lhs" and fact.shape == (rows, rows)
    assert bound.default_config()["precompute_operands"] is first


@pytest.mark.parametrize("m", [16, 64, 1024])
def test_scattered_rows_are_copied_beside_unpacked_weights(m: int) -> None:
    """A tile has every second element of a row: its loads would wait in each step (measurement ``scattered_rows``)."""
    cell = CELLS["zero_point_linear"]
    _, *weights = cell.arguments("meta", False)
    x = tensor(m, 4096, dtype=torch.bfloat16)
    bound = helion.kernel(cell.kernel.fn, backend="triton").bind((x, *weights), target="h200")
    found = bound.default_config()
    assert found["pack_operands"] and found["precompute_operands"] is (m == 1024)
    plain = helion.kernel(pairs, static_shapes=True).bind(
        (x, tensor(2048, 4096, dtype=torch.int8), tensor(128, 4096)), target="h200"
    )
    assert "pack_operands" not in plain.default_config()


def test_lanes_that_no_step_divides_stay_in_their_loop() -> None:
    """A tile of 24 bytes gives 48 rows in 64 lanes."""

    def ragged(x, packed):
        out = torch.empty([x.size(0), packed.size(1)], dtype=torch.float32, device=x.device)
        for tile_m, tile_n in hl.tile(out.size()):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_p in hl.tile(packed.size(0), block_size=16):
                rows = packed[tile_p.begin + hl.arange(48), tile_n].to(x.dtype) * 2.0
                acc = hl.dot(x[tile_m, tile_p.begin * 3 + hl.arange(48)], rows, acc=acc)
            out[tile_m, tile_n] = acc
        return out

    args = tensor(64, 192, dtype=torch.bfloat16), tensor(64, 64, dtype=torch.int8)
    assert not computed_operands(program_of(ragged, *args))


def test_predicted_memory_is_that_of_the_binary() -> None:
    x, packed = tensor(2048, 4096, dtype=torch.bfloat16), tensor(2048, 1024, dtype=torch.int8)
    bound = helion.kernel(pairs, static_shapes=True).bind((x, packed, tensor(128, 1024)), target="h200")
    seed = bound.seeds[0]
    real = bound.resources(seed.config)
    assert real.shared_bytes <= seed.predicted.shared_bytes <= 1.1 * real.shared_bytes + 2048
    assert real.spill_bytes == 0


def test_few_rows_by_unpacked_weights_share_sums() -> None:
    """A tile has 64 bytes of a row of weights, as memory reads them (measurement ``packed_columns``)."""
    x, packed = tensor(16, 4096, dtype=torch.bfloat16), tensor(2048, 4096, dtype=torch.int8)
    bound = helion.kernel(pairs, static_shapes=True).bind((x, packed, tensor(128, 4096)), target="h200")
    found = bound.default_config()
    assert not found["precompute_operands"] and found["split_k"] == 16  # 23.5 us are predicted, 37.1 with 8


def test_short_groups_of_few_rows_are_shared_by_more_programs() -> None:
    """Each step multiplies 32 numbers of a row: with 8 parts of 90 steps 35 us are predicted, with 4 57."""
    cell = CELLS["mxfp4_few_tokens"]
    bound = helion.kernel(cell.kernel.fn, backend="triton").bind(cell.arguments("meta", False), target="h200")
    first = bound.seeds[0]
    assert first.config["split_k"] == 8 and first.predicted.occupancy_blocks >= 7
