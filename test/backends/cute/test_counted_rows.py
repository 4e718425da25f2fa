"""Rows of a matmul in memory that only the launch counts: the second kernel's text, values on the CPU, keys and refusals."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from backends.cute.finishing import Grid, stored_name
from harness import tensor

import helion
import helion.language as hl
from helion import exc
from helion._testing import EXAMPLES_DIR, import_path
from helion.backends.cute.codegen.finish import launch, layouts
from helion.backends.cute.codegen.whole import gemm_kernel_of
from helion.backends.cute.execute.problems import launched, problem_of
from helion.backends.cute.plan.records import GemmPlan, RowFinish, TileFinish
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.plan.workspace import workspace_bytes
from helion.backends.cute.roles.programs import kernel_program
from helion.backends.cute.verify.verify import verify

row_counts = import_path(EXAMPLES_DIR.parent / "benchmarks" / "row_counts.py")
largest, normalizers, probabilities = row_counts.largest, row_counts.normalizers, row_counts.probabilities

N, K = 5008, 96


def given(m: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(m)
    x = torch.randn(m, K, generator=random) * 0.2 + 0.05
    return x.bfloat16(), (torch.randn(N, K, generator=random) + 0.3).bfloat16()


def planned(kernel: helion.Kernel, m: int) -> GemmPlan:
    bound = kernel.bind(tuple(each.to("meta") for each in given(m)), target="h200")
    return bound.plan(bound.seeds[0].config).gemm


def test_each_launch_has_the_rows_that_it_counts() -> None:
    """The workspace has room for the most rows of the bucket, and CTAs follow the launch."""
    plan = planned(normalizers, 300)
    finish = plan.finish
    assert isinstance(finish, TileFinish) and finish.problem.m == 512
    assert workspace_bytes(plan) >= 512 * len(finish.parts) * finish.tiles * 4
    assert "grid=((size_m + 3) // 4, 1, 1)," in "\n".join(launch(plan))
    verify(kernel_program(plan))


def test_a_launch_of_more_rows_is_refused() -> None:
    bound = normalizers.bind(tuple(each.to("meta") for each in given(300)), target="h200")
    kernel = gemm_kernel_of(bound.plan(bound.seeds[0].config))
    numbers = {"size_m": 512, "size_k": K, "pitch_a": K, "pitch_b": K}
    names = problem_of(kernel.problem).runtime
    launched(kernel, tuple(numbers[name] for name in names))
    with pytest.raises(Refusal, match="513 rows in memory, of which the workspace of this kernel has room for 512"):
        launched(kernel, tuple((numbers | {"size_m": 513})[name] for name in names))


@pytest.mark.parametrize("m", [1, 6, 509])
def test_rows_of_tiles(m: int) -> None:
    """Warps after the last row that the launch counts store nothing."""
    finish = planned(normalizers, 300).finish
    assert isinstance(finish, TileFinish)
    parts, tiles = len(finish.parts), finish.tiles
    stored = torch.randn(512, parts, tiles, generator=torch.Generator().manual_seed(m)).abs() + 1
    stored[m:] = torch.nan
    out = torch.full((512,), 7.0)
    (output,) = finish.problem.outputs
    memory = {stored_name(finish, at): stored.reshape(-1)[at * tiles :] for at in range(parts)} | {output.label: out}
    grid = Grid(finish, memory, layouts(finish))
    grid.run({"size_m": m})
    top, total = stored[:m, 0].double(), stored[:m, 1].double()
    want = top.amax(-1) + (total * (top - top.amax(-1, keepdim=True)).exp()).sum(-1).log()
    assert ((out[:m].double() - want).abs() < 1e-5 * want.abs()).all() and (out[m:] == 7).all()


def test_whole_rows() -> None:
    finish, m = planned(probabilities, 300).finish, 5
    assert isinstance(finish, RowFinish) and finish.problem.m == 512
    few = dataclasses.replace(finish, problem=dataclasses.replace(finish.problem, m=m))
    rows = torch.randn(m, 5008, generator=torch.Generator().manual_seed(0)) + 3
    (output,) = finish.problem.outputs
    memory = {stored_name(finish): rows.reshape(-1).clone(), output.label: torch.zeros(m * N)}
    if finish.home:
        memory[output.label] = memory[stored_name(finish)]
    Grid(few, memory, layouts(few)).run({"size_m": m})
    assert torch.allclose(memory[output.label].view(m, N).double(), torch.softmax(rows.double(), -1), atol=1e-9)


def test_one_binary_serves_a_bucket() -> None:
    bound: dict[int, list[int]] = {}
    for m in (70, 128, 65, 3, 200):
        x, w = given(m)
        scores = x.double() @ w.double().T
        assert (normalizers(x, w) - torch.logsumexp(scores, -1)).abs().max() < 1e-4
        place, top = largest(x, w)
        assert (scores.gather(1, place[:, None])[:, 0] - scores.amax(-1)).abs().max() < 1e-4
        assert (top - scores.amax(-1)).abs().max() < 1e-4
        assert (probabilities(x, w) - torch.softmax(scores, -1)).abs().max() < 1e-6
        bound.setdefault(id(normalizers.bind((x, w))), []).append(m)
    assert [*bound.values()] == [[70, 128, 65], [3], [200]]


def head_loss(x: torch.Tensor, w: torch.Tensor, labels: torch.Tensor, ignored: int) -> torch.Tensor:
    m, k = x.size()
    n = hl.specialize(w.size(0))
    loss = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[:, tile_k].T)
        hit = hl.arange(n)[None, :] == labels[tile_m][:, None]
        picked = torch.where(hit, acc, 0.0).sum(-1)
        loss[tile_m] = torch.where(ignored == labels[tile_m], 0.0, torch.logsumexp(acc, -1) - picked)
    return loss


@pytest.mark.parametrize("static", [True, False])
def test_the_loss_of_a_head_without_labels_to_ignore(static: bool) -> None:
    """The number to ignore is one of the call: fp32 has to hold it."""
    kernel = helion.kernel(head_loss, backend="cute", static_shapes=static)
    for m, ignored in ((70, -100), (66, -1)):
        x, w = given(m)
        labels = torch.randint(N, (m,), generator=torch.Generator().manual_seed(m))
        labels[::5] = ignored
        scores = x.double() @ w.double().T
        lost = torch.logsumexp(scores, -1) - scores.gather(1, labels.clamp(min=0)[:, None])[:, 0]
        assert (kernel(x, w, labels, ignored) - torch.where(labels == ignored, 0.0, lost)).abs().max() < 1e-4
    with pytest.raises(exc.CuteUnsupported, match="ignored, which is 16777216; less than 16777216 is exact in fp32"):
        kernel(x, w, labels, 2**24)


@helion.kernel(backend="cute", static_shapes=False)
def of_halves(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    n, k = hl.specialize(w.size(0)), hl.specialize(w.size(1))
    rows = x.view(-1, k)
    m = rows.size(0)
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, rows[tile_m, tile_k], w[:, tile_k].T)
        out[tile_m] = torch.logsumexp(acc, -1)
    return out


def test_refusals() -> None:
    with pytest.raises(exc.CuteUnsupported, match="rows in memory, a number that the host computes; use hl.specialize"):
        of_halves.bind((tensor(300, 2 * K), tensor(N, K)), target="h200")
    auto = helion.kernel(normalizers.fn, backend="auto", static_shapes=False)
    candidates = auto.bind((tensor(300, K), tensor(N, K)), target="b200")._analysis.backend_candidates
    assert any("of rows in memory that the launch counts" in each.reason for each in candidates)


@pytest.mark.parametrize("kernel", [normalizers, largest, probabilities])
def test_auto_takes_them_on_hopper(kernel: helion.Kernel) -> None:
    auto = helion.kernel(kernel.fn, backend="auto", static_shapes=False)
    assert auto.bind((tensor(300, K), tensor(N, K)), target="h200").backend_on_gpu == "cute"
