"""Workspaces: one for each stream, cleared once, and one of its own for every launch that is captured."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from backends.cute import gemms, products

from helion.backends.cute.execute import workspace as workspace_module
from helion.backends.cute.execute.workspace import Workspaces
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.counts import k_range, takes_turns
from helion.backends.cute.plan.records import Choice, GemmPlan
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.plan.workspace import COUNTER_BYTES, MAX_COUNTERS, counter_bytes, sums_shape, workspace_bytes
from helion.backends.cute.resources.time import resident_clusters
from helion.backends.cute.roles.programs import kernel_program
from helion.backends.cute.verify.verify import verify
from helion.hardware import target as target_of

HEAD = MAX_COUNTERS * COUNTER_BYTES


class Memory:
    """Allocations full of ones, in order."""

    def __init__(self) -> None:
        self.given: list[torch.Tensor] = []
        self.captured = False

    def allocate(self, size: int) -> torch.Tensor:
        self.given.append(torch.full((size,), 255, dtype=torch.uint8))
        return self.given[-1]

    def workspaces(self) -> Workspaces:
        return Workspaces(self.allocate, lambda: self.captured)


def test_a_stream_has_one_workspace_and_grows_it() -> None:
    memory = Memory()
    known = memory.workspaces()
    first = known.address(HEAD + 64, 32, stream=7)
    assert known.address(HEAD + 16, 32, stream=7) == known.address(HEAD + 64, 32, stream=7) == first
    assert known.address(HEAD + 64, 32, stream=8) != first
    assert known.address(HEAD + 128, 32, stream=7) == memory.given[-1].data_ptr()
    assert [each.numel() - HEAD for each in memory.given] == [64, 64, 128]
    for each in memory.given:
        assert not each[:HEAD].any(), "counters are zero"
        assert bool((each[HEAD:] == 255).all()), "sums need not be"


def test_a_captured_launch_has_a_workspace_of_its_own() -> None:
    memory = Memory()
    known = memory.workspaces()
    kept = known.address(HEAD + 64, 32, stream=7)
    memory.captured = True
    captured = [known.address(HEAD + 64, 32, stream=7) for _ in range(2)]
    assert [each.data_ptr() for each in memory.given[1:]] == captured
    assert not any(each[:32].any() for each in memory.given)
    assert all(bool((each[32:] == 255).all()) for each in memory.given[1:]), "what the launch does not count with"
    known.address(HEAD + 64, 0, stream=7)
    assert bool((memory.given[-1] == 255).all()), "a launch without counters clears none"
    memory.captured = False
    assert known.address(HEAD + 64, 32, stream=7) == kept


def test_a_large_workspace_goes_back_to_the_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a product are gigabytes, which other kernels use when their launch is over."""
    monkeypatch.setattr(workspace_module, "KEPT_BYTES", HEAD + 64)
    memory = Memory()
    known = memory.workspaces()
    kept = known.address(HEAD + 64, 32, stream=7)
    large = [known.address(HEAD + 128, 32, stream=7) for _ in range(2)]
    assert [each.data_ptr() for each in memory.given[1:]] == large
    assert known.address(HEAD + 64, 32, stream=7) == kept


def split(**changes: object) -> GemmPlan:
    choice = dataclasses.replace(Choice(tile=(128, 128, 64), grid_splits=4), **changes)  # type: ignore[arg-type]
    return plan_gemm(gemms.product(250, 248, 8200), choice, gemms.HOPPER)


def test_a_workspace_holds_the_sums_of_every_part_once() -> None:
    """Counters, then an fp32 tile for each of 4 tiles and 4 clusters, whether CTAs of a cluster split K as well or not."""
    assert workspace_bytes(split()) == HEAD + 4 * 4 * 128 * 128 * 4
    assert workspace_bytes(split(splits=4)) == HEAD + 4 * 4 * 128 * 128 * 4
    assert sums_shape(split(splits=4)) == (4, 256, 4, 1, 4, 4, 4)
    assert workspace_bytes(split(grid_splits=1)) == counter_bytes(split(grid_splits=1)) == 0
    assert (counter_bytes(split()), counter_bytes(split(splits=4))) == (4 * 4, 4 * 4 * 4)


@pytest.mark.parametrize(("splits", "clusters"), [(1, 3), (3, 1), (4, 8), (2, 5)])
@pytest.mark.parametrize("k_tiles", [40, 41, 63])
def test_parts_cover_all_of_k_once(splits: int, clusters: int, k_tiles: int) -> None:
    plan = split(splits=splits, grid_splits=clusters)
    parts = [k_range(plan, rank, k_tiles, part) for part in range(clusters) for rank in range(plan.ctas)]
    assert sorted(k_tile for part in parts for k_tile in part) == list(range(k_tiles))
    assert all(part.step == (len(parts) if takes_turns(plan) else 1) for part in parts)
    assert takes_turns(plan) == (clusters > 1)
    assert all(len(part) in (k_tiles // len(parts), k_tiles // len(parts) + 1) for part in parts)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid_splits": 65}, "across 65 clusters; 1 to 64"),
        ({"grid_splits": 0}, "across 0 clusters"),
        ({"grid_splits": 64, "splits": 4}, "K in 256 parts of 129 K tiles"),
        ({"pingpong": True}, "without ping-pong"),
    ],
)
def test_what_cannot_be_split_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(Refusal, match=message):
        split(**changes)


def test_many_tiles_are_not_split_among_clusters() -> None:
    with pytest.raises(Refusal, match="16384 counters"):
        plan_gemm(gemms.product(16384, 16384, 8200), Choice(tile=(128, 128, 64), grid_splits=2), gemms.HOPPER)


@pytest.mark.parametrize("shape", [(256, 256, 65536), (512, 512, 16384)])
def test_clusters_of_few_tiles_share_operands_and_split_k(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    with torch.device("meta"):
        given = torch.empty(m, k, dtype=torch.bfloat16), torch.empty(k, n, dtype=torch.bfloat16)
    plan = products.matmul.bind(given, target="h200").plan().gemm
    assert plan.grid_splits > 1 and plan.ctas > plan.splits
    assert plan.pieces <= resident_clusters(plan.ctas, target_of("h200")), "all of them run at once"
    verify(kernel_program(plan))
