"""The keys that predictions of attention count, and the stages that leave room for queries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from backends.cute.edited_source import edited
from backends.cute.test_chunks import LOOP
from backends.cute.test_chunks import TEXT as CHUNKS

import helion
from benchmarks.unfitted import CELLS
from helion.backends.cute.resources.attention import AttentionShape, shape_of

BF16 = torch.bfloat16


def meta(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def bound_of(name: str, *args: Any) -> helion.BoundKernel:
    return helion.kernel(CELLS[name].kernel.fn, backend="cute").bind(args, target="h200")


def shape(bound: helion.BoundKernel) -> AttentionShape:
    found = shape_of(bound.facts)
    assert isinstance(found, AttentionShape)
    return found


@pytest.mark.parametrize("groups", [16, 2])
def test_heads_that_share_keys_see_as_many(groups: int) -> None:
    """Half of the keys are seen behind a causal mask, not a quarter."""
    q, kv = meta(2, 16, 4096, 128), meta(2, groups, 4096, 128)
    found = shape(bound_of("output_gated_attention", q, kv, kv, meta(2, 4096, 16, 128)))
    assert found.bounded and 0.95 * 4096 < found.keys <= 4096


@pytest.mark.parametrize(("chunk", "keys"), [(1024, 1024), (100, 100), (8192, 8192)])
def test_chunks_take_as_long_as_heads(chunk: int, keys: int) -> None:
    bound = bound_of("chunked_attention", *(meta(2, 8192, 16, 128) for _ in range(3)), chunk)
    found = shape(bound)
    assert bound.facts.attention is not None and bound.facts.attention.chunk == chunk and found.bounded
    assert (found.keys, found.queries, found.heads) == (keys, keys, 32 * -(-8192 // keys))


@pytest.mark.parametrize(
    ("begin", "found"),
    [
        ("rows.begin // chunk * chunk", True),
        ("chunk * (rows.begin // chunk)", True),
        ("rows.begin - rows.begin % chunk", True),
        ("rows.begin // chunk * 64", False),
        ("rows.begin % chunk * chunk", False),
        ("rows.end - rows.begin % chunk", False),
    ],
)
def test_begins_of_chunks(begin: str, found: bool, tmp_path: Path) -> None:
    function = edited(CHUNKS, LOOP, f"hl.tile({begin}, rows.end)", tmp_path / "chunks.py").attend
    facts = helion.kernel(function, backend="triton").bind((*(meta(2, 2, 300, 64) for _ in range(3)), 96)).facts
    assert facts.attention is not None and facts.attention.chunk == (96 if found else None)


def test_windows_by_absolute_distances() -> None:
    q, lengths = meta(8, 2048, 12, 64), meta(8, dtype=torch.int32)
    bound = bound_of("capped_two_sided_window", q, q, q, lengths, 256, 50.0)
    assert bound.facts.attention is not None and bound.facts.attention.window == 513


@pytest.mark.parametrize(("dims", "stages"), [(96, 3), (128, 2)])
def test_stages_leave_room_for_the_queries_of_the_next_tile(dims: int, stages: int) -> None:
    q = meta(8, 1024, 12, dims)
    bound = bound_of("prefix_attention", q, q, q, meta(8, dtype=torch.int32))
    assert bound.default_config()["wgmma_kv_stages"] == stages
    plan = bound.plan().attention
    assert plan.row_buffers == 2 and plan.own_output
