"""Matmuls of which each member of a batch has the K of its group, whose bounds are on the device."""

from __future__ import annotations

import dataclasses
import itertools
import types
from collections.abc import Sequence

import pytest
import torch
from backends.cute import products
from backends.cute.products import BF16, BOUNDS
from backends.cute.test_groups import BOUNDARIES

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.codegen.groups import views_of_k
from helion.backends.cute.codegen.module import build
from helion.backends.cute.codegen.numbers import end_of_k
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.records import Choice, GemmPlan
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.resources.shape import shape_of
from helion.backends.cute.resources.time import predicted_time
from helion.backends.cute.roles.edits import edit_role
from helion.backends.cute.roles.grammar import KLoop, Step
from helion.backends.cute.roles.programs import kernel_program
from helion.backends.cute.shapes import MATMUL
from helion.backends.cute.toolchain.offline import compile_text
from helion.backends.cute.verify.state import Fault
from helion.backends.cute.verify.verify import verify
from helion.hardware import target as target_of

M, N = 72, 136
TARGETS = ("sm_90", "sm_100")


@helion.kernel(backend="cute")
def by_rows(x: torch.Tensor, grad: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    groups, m, n = offsets.size(0) - 1, x.size(1), grad.size(1)
    out = torch.empty([groups, m, n], dtype=x.dtype, device=x.device)
    for tile_g, tile_m, tile_n in hl.tile([groups, m, n], block_size=[1, None, None]):
        g = tile_g.begin
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(offsets[g], offsets[g + 1]):
            acc = hl.dot(x[tile_k, tile_m].T, grad[tile_k, tile_n], acc=acc)
        out[g, tile_m, tile_n] = acc.to(x.dtype)
    return out


@helion.kernel(backend="cute")
def by_lengths(x: torch.Tensor, grad: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    m, n = x.size(1), grad.size(1)
    out = torch.empty([offsets.size(0) - 1, m, n], dtype=x.dtype, device=x.device)
    for g in hl.grid(offsets.size(0) - 1):
        start, end = offsets[g], offsets[g + 1]
        for tile_m, tile_n in hl.tile([m, n]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(end - start):
                acc = hl.dot(x[start + tile_k.index, tile_m].T, grad[start + tile_k.index, tile_n], acc=acc)
            out[g, tile_m, tile_n] = acc.to(x.dtype)
    return out


@helion.kernel(backend="cute")
def with_two(
    x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, offsets: torch.Tensor, w: torch.Tensor
) -> torch.Tensor:
    """Two products of the same rows, and a matrix of each group in the epilogue."""
    groups, m, n = w.size()
    out = torch.empty([groups, m, n], dtype=torch.float32, device=x.device)
    for tile_g, tile_m, tile_n in hl.tile([groups, m, n], block_size=[1, None, None]):
        g = tile_g.begin
        first = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        second = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(offsets[g], offsets[g + 1]):
            rows = x[tile_k, tile_m].T
            first = hl.dot(rows, gate[tile_k, tile_n], acc=first)
            second = hl.dot(rows, up[tile_k, tile_n], acc=second)
        out[g, tile_m, tile_n] = first - second + w[g, tile_m, tile_n]
    return out


@helion.kernel(backend="cute")
def numbered(x: torch.Tensor, grad: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """The length of a group is a factor as well."""
    groups, m, n = offsets.size(0) - 1, x.size(1), grad.size(1)
    out = torch.empty([groups, m, n], dtype=torch.float32, device=x.device)
    for tile_g, tile_m, tile_n in hl.tile([groups, m, n], block_size=[1, None, None]):
        g = tile_g.begin
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(offsets[g], offsets[g + 1]):
            acc = hl.dot(x[tile_k, tile_m].T, grad[tile_k, tile_n], acc=acc)
        out[g, tile_m, tile_n] = acc * (offsets[g + 1] - offsets[g]).to(torch.float32)
    return out


def tensor(*shape: int, seed: int = 0, dtype: torch.dtype = BF16) -> torch.Tensor:
    return products.values(*shape, dtype=dtype, device="cpu", seed=seed)


def multiplied(x: torch.Tensor, grad: torch.Tensor, bounds: Sequence[int]) -> torch.Tensor:
    """Return the product of each group in fp64: zeros of a group without rows."""
    return torch.stack([x[a:b].double().t() @ grad[a:b].double() for a, b in itertools.pairwise(bounds)])


def check(found: torch.Tensor, wanted: torch.Tensor) -> None:
    full = wanted.abs().sum((1, 2)) > 0
    assert not found[~full].any()
    if full.any():
        assert products.row_error(found[full].flatten(0, 1), wanted[full].flatten(0, 1)) < BOUNDS[BF16]


@pytest.mark.parametrize("kernel", [by_rows, by_lengths])
@pytest.mark.parametrize("bounds", BOUNDARIES)
def test_products_of_groups(kernel: helion.Kernel, bounds: str) -> None:
    offsets = torch.tensor(BOUNDARIES[bounds], dtype=torch.int32 if bounds == "even" else torch.int64)
    x, grad = tensor(310, M), tensor(310, N, seed=1)
    x[offsets[-1] :] = torch.nan  # rows of no group are not read
    bound = kernel.bind((x, grad, offsets), target="sm_90")
    check(bound(x, grad, offsets), multiplied(x, grad, BOUNDARIES[bounds]))
    ends = bound.plan().gemm.problem.ends
    assert ends is not None and ends.side == "batch"
    assert ends.groups is not None and ends.groups.size == len(offsets) - 1


def test_sizes_that_only_the_launch_knows() -> None:
    """One bound kernel serves numbers of rows and of groups."""
    kernel = helion.kernel(by_rows.fn, backend="cute", static_shapes=False)
    for bounds in ((0, 30, 200), (0, 5, 5, 64, 128, 300)):
        x, grad = tensor(bounds[-1] + 3, M), tensor(bounds[-1] + 3, N, seed=1)
        check(kernel(x, grad, torch.tensor(bounds)), multiplied(x, grad, bounds))
    text = kernel.bind((x, grad, torch.tensor(bounds)), target="sm_90").to_cute_code()
    assert "group_end = cutlass.min(group_offsets[batch + 1].to(cutlass.Int32), size_k)" in text


def test_two_products_and_a_matrix_of_each_group() -> None:
    bounds = BOUNDARIES["inside"]
    x, gate, up, w = tensor(310, M), tensor(310, N, seed=1), tensor(310, N, seed=2), tensor(4, M, N, seed=3)
    found = with_two(x, gate, up, torch.tensor(bounds), w)
    wanted = multiplied(x, gate, bounds) - multiplied(x, up, bounds) + w.double()
    assert products.row_error(found.flatten(0, 1), wanted.flatten(0, 1)) < 1e-5


def plan_of(target: str = "sm_90", **changes: object) -> GemmPlan:
    bounds = BOUNDARIES["skewed"]
    problem = by_rows.bind((tensor(310, M), tensor(310, N), torch.tensor(bounds)), target=target).plan().gemm.problem
    choice = Choice(**{"tile": (64 if target == "sm_90" else 128, 128, 64), **changes})  # type: ignore[arg-type]
    return plan_gemm(problem, choice, target_of(target))


def loaded(plan: GemmPlan, offsets: Sequence[int], batch: int) -> list[list[int]]:
    """Run the printed code of a group's end and of the views of its K tiles: return the rows that each K tile loads. TMA
    writes zeros for lines before the first of dimension 1 of its tensor, and dimension 2 moves the matrix by rows."""
    depth, rows = plan.tile[2], plan.problem.k

    class Int(int):
        def to(self, kind: type) -> int:
            return int(self)

    known = {"cutlass": types.SimpleNamespace(Int32=int, min=min, max=max), "batch": batch}
    known["group_offsets"] = [Int(each) for each in offsets]
    exec("\n".join(end_of_k(plan)), known)
    found = []
    for k_tile in range(int(str(known["k_end"]))):
        lines = views_of_k(plan, "a")
        exec("\n".join(lines[:2]), known | {"k_tile": k_tile}, tile := dict[str, int]())
        assert f"cute.domain_offset((0, k_lines - {depth}, cutlass.min(k_begin, {rows - 1})), tensor_a)" in lines[2]
        first, moved = tile["k_lines"] - depth, min(tile["k_begin"], rows - 1)
        assert 0 <= moved < rows and first <= 0
        found.append([moved + line for line in range(first, first + depth) if line >= 0])
    return found


@pytest.mark.parametrize("bounds", [*BOUNDARIES.values(), (-3, 70, 60, 500, 310)])
def test_k_tiles_load_each_row_of_a_group_once(bounds: Sequence[int]) -> None:
    plan = plan_of()
    for batch, (first, after) in enumerate(itertools.pairwise(bounds)):
        tiles = loaded(plan, bounds, batch)
        assert tiles and all(len(each) == plan.tile[2] for each in tiles[:-1])
        assert [row for each in tiles for row in each] == [*range(max(first, 0), min(after, 310))]


@pytest.mark.parametrize("target", TARGETS)
def test_roles_that_do_not_agree_are_faults(target: str) -> None:
    """Plant a load of all K tiles but the first."""
    for cluster in ((1, 1), (2, 1)) if target == "sm_90" else ((1, 1),):
        program = kernel_program(plan_of(target, cluster=cluster))
        verify(program)

        def plant(step: Step) -> tuple[Step, ...]:
            return (dataclasses.replace(step, first=1) if isinstance(step, KLoop) else step,)

        with pytest.raises(Fault):
            verify(edit_role(program, "load", plant))


def test_what_is_refused() -> None:
    offsets = torch.tensor([0, 100, 310])
    for given, message in (
        ((tensor(M, 310).t(), tensor(310, N)), "x is read by groups of K"),
        ((tensor(310, M, dtype=torch.float32), tensor(310, N, dtype=torch.float32)), "is read by groups of K"),
        ((tensor(310, M), tensor(309, N)), "where all operands have 310 elements along it"),
    ):
        with pytest.raises(exc.CuteUnsupported, match=message):
            by_rows.bind((*given, offsets), target="sm_90")
    with pytest.raises(exc.CuteUnsupported, match="offsets is read for more than the rows of a group"):
        numbered.bind((tensor(310, M), tensor(310, N), offsets), target="sm_90")
    for changes in ({"pingpong": True}, {"splits": 2}, {"grid_splits": 2}):
        with pytest.raises(Refusal, match="without ping-pong and without splitting K"):
            plan_of(**changes)


@pytest.mark.parametrize("target", TARGETS)
def test_blackwell_takes_them_on_request(target: str) -> None:
    bound = by_rows.bind((tensor(310, M), tensor(310, N), torch.tensor([0, 100, 310])), target=target)
    asked = MATMUL.on_request(bound._analysis.program, bound.facts, bound.env.target)
    assert asked.startswith("matmuls over groups of K by offsets run on request") if target == "sm_100" else not asked
    assert "K of 2 groups from offsets" in str(bound.plan())


def test_predicted_time_is_that_of_all_rows_once() -> None:
    """More groups of as many rows store more matrices, and multiply no more."""
    of_groups = []
    for groups in (8, 64):
        with torch.device("meta"):
            given = (
                torch.empty(16384, 512).bfloat16(),
                torch.empty(16384, 512).bfloat16(),
                torch.empty(groups + 1).int(),
            )
        bound = by_rows.bind(given, target="h200")
        shape = shape_of(bound.facts)
        assert not isinstance(shape, str) and shape.problem.ends is not None
        gemm = plan_gemm(bound.plan().gemm.problem, Choice(tile=(128, 128, 64)), target_of("h200"))
        of_groups.append(predicted_time(gemm, shape.bytes_moved, target_of("h200")).total_us)
    assert of_groups[0] < of_groups[1] < 4 * of_groups[0]


@pytest.mark.prove
@pytest.mark.parametrize("target", TARGETS)
def test_kernels_compile_without_spills(target: str) -> None:
    assert ".local" not in compile_text(build(plan := plan_of(target)), plan).ptx
