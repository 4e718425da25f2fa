"""Workspaces: one for each stream, cleared once, and one of its own for every launch that is captured."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from backends.cute import gemms, products

import helion
from helion.backends.cute.execute import workspace as workspace_module
from helion.backends.cute.execute.workspace import Workspaces
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.counts import k_range, takes_turns
from helion.backends.cute.plan.records import Choice, GemmPlan
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.plan.workspace import COUNTER_BYTES, MAX_COUNTERS, counter_bytes, sums_shape, workspace_bytes
from helion.backends.cute.resources.time import predicted_time, resident_clusters
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


def last_wave(**changes: object) -> GemmPlan:
    choice = Choice(tile=(128, 256, 64), cluster=(2, 1), grid_splits=11, split_last=True)
    return plan_gemm(gemms.product(1536, 3072, 16384), dataclasses.replace(choice, **changes), gemms.HOPPER)  # type: ignore[arg-type]


def test_clusters_split_the_tiles_of_the_last_wave_alone() -> None:
    """66 pairs run at once, so that 6 of 72 tiles are left."""
    plan = last_wave()
    assert (plan.tiles, plan.whole_tiles, plan.pieces) == (72, 66, 66 + 6 * 11)
    assert sums_shape(plan)[-3:] == (11, 2, 6) and counter_bytes(plan) == 6 * 2 * 4
    assert [*k_range(plan, 0, 256, whole=True)] == [*range(256)]
    assert (last_wave(split_last=False).whole_tiles, last_wave(split_last=False).pieces) == (0, 72 * 11)
    usual = predicted_time(last_wave(grid_splits=1, split_last=False), 0, gemms.HOPPER)
    found = predicted_time(plan, 0, gemms.HOPPER)
    assert found.waves == usual.waves == 2 and found.total_us < 0.8 * usual.total_us


def test_seeds_split_the_last_wave_of_few() -> None:
    """Of 160 tiles in pairs 14 are left; a matmul of many waves keeps them whole."""
    with torch.device("meta"):
        x, y, wide = (
            torch.empty(shape, dtype=torch.bfloat16) for shape in ((5120, 16384), (16384, 1024), (16384, 9216))
        )
    plan = products.matmul.bind((x, y), target="h200").plan().gemm
    assert (plan.whole_tiles, plan.tiles, plan.grid_splits) == (66, 80, 4)
    assert products.matmul.bind((x, wide), target="h200").plan().gemm.whole_tiles == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cluster": (2, 2)}, "in clusters of up to 2 CTAs without k_splits; these are 4 CTAs"),
        ({"splits": 2, "cluster": (1, 1)}, "without k_splits"),
        ({"grid_splits": 1}, "1 clusters split K"),
        ({"tile": (256, 256, 64), "cluster": (1, 1)}, "72 tiles on 132 clusters at once have no part of a wave"),
        ({"pingpong": True, "tile": (128, 128, 64)}, "without ping-pong"),
    ],
)
def test_what_has_no_last_wave_to_split_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(Refusal, match=message):
        last_wave(**changes)


def test_a_config_without_a_last_wave_splits_all_tiles() -> None:
    """Equal configs have equal code: a full config of other sizes becomes one without the key."""
    with torch.device("meta"):
        given = torch.empty(1536, 16384, dtype=torch.bfloat16), torch.empty(16384, 3072, dtype=torch.bfloat16)
    bound = products.matmul.bind(given, target="h200")
    asked = {"block_sizes": [128, 256, 64], "wgmma_cluster_m": 2, "wgmma_split_tiles": "last"}
    kept = bound.config_spec.normalize(helion.Config(**asked, wgmma_grid_splits=11))
    assert kept["wgmma_split_tiles"] == "last"
    alone = bound.config_spec.normalize(helion.Config(**asked))
    assert alone["wgmma_split_tiles"] == "all"


@pytest.mark.parametrize("shape", [(256, 256, 65536), (512, 512, 16384)])
def test_clusters_of_few_tiles_share_operands_and_split_k(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    with torch.device("meta"):
        given = torch.empty(m, k, dtype=torch.bfloat16), torch.empty(k, n, dtype=torch.bfloat16)
    plan = products.matmul.bind(given, target="h200").plan().gemm
    assert plan.grid_splits > 1 and plan.ctas > plan.splits
    assert plan.pieces <= resident_clusters(plan.ctas, target_of("h200")), "all of them run at once"
    verify(kernel_program(plan))
