"""Products of groups of rows, whose tiles data on the device schedule."""

from __future__ import annotations

import dataclasses
import itertools
import types
from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from backends.cute import cubins, grouped_kernels, products
from backends.cute.grouped_kernels import CHOICES, WITH_RESIDUAL, K, N, plan_of, problem
from backends.cute.products import BF16, BOUNDS
from backends.cute.test_verify import is_found_at_once

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.codegen import groups
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.epilogue import Epilogue, Instruction
from helion.backends.cute.plan.records import Batch, Choice, GemmPlan, Groups
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.resources.shape import shape_of
from helion.backends.cute.resources.time import expected_pieces
from helion.backends.cute.roles.edits import edit_role
from helion.backends.cute.roles.grammar import GroupViews, Step, TileLoop
from helion.backends.cute.roles.programs import kernel_program
from helion.backends.cute.shapes import MATMUL
from helion.backends.cute.verify.verify import verify
from helion.hardware import target as target_of

#: First rows of groups: with empty ones, groups of one row, one of most rows, and rows that are in no group.
BOUNDARIES = {
    "even": (0, 64, 128, 192, 256),
    "skewed": (0, 1, 1, 300, 301),
    "empty": (7, 7, 7, 7, 7),
    "one": (0, 143),
    "inside": (5, 70, 71, 200, 290),
}


def tensor(*shape: int, seed: int = 0, dtype: torch.dtype = BF16) -> torch.Tensor:
    return products.values(*shape, dtype=dtype, device="cpu", seed=seed)


def multiplied(x: torch.Tensor, w: torch.Tensor, bounds: Sequence[int]) -> torch.Tensor:
    """Return the product of each group in fp64, and 0 in rows of none."""
    out = torch.zeros(x.size(0), w.size(2), dtype=torch.float64)
    for at, (first, after) in enumerate(itertools.pairwise(bounds)):
        out[first:after] = x[first:after].double() @ w[at].double()
    return out


def check(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert products.row_error(actual, expected) < BOUNDS[BF16]
    assert not actual[expected.abs().sum(1) == 0].any(), "rows of no group stay as they are"


@pytest.mark.parametrize("spelling", grouped_kernels.SPELLINGS)
@pytest.mark.parametrize("bounds", BOUNDARIES)
def test_products_of_groups(spelling: str, bounds: str) -> None:
    offsets = torch.tensor(BOUNDARIES[bounds], dtype=torch.int32 if bounds == "even" else torch.int64)
    x, w = tensor(310, K), tensor(len(offsets) - 1, K, N, seed=1)
    kernel = grouped_kernels.SPELLINGS[spelling]
    check(kernel(x, w, offsets), multiplied(x, w, BOUNDARIES[bounds]))
    problem = kernel.bind((x, w, offsets), target="sm_90").plan().gemm.problem
    size = len(offsets) - 1
    dtype, longest = str(offsets.dtype).split(".")[1], 310 if spelling == "by_masks" else None
    assert problem.groups == Groups(name=problem.groups.name, size=size, dtype=dtype, longest=longest)
    assert problem.batch == (Batch(size=size, a=0, b=K * N, d=0) if size > 1 else None)


def test_offsets_with_a_stride_and_rows_along_columns() -> None:
    offsets = torch.tensor([[0, 9], [40, 9], [300, 9]])[:, 0]
    x, w = tensor(K, 304).t(), tensor(2, N, K, seed=1).transpose(1, 2)
    check(grouped_kernels.by_bounds(x, w, offsets), multiplied(x, w, offsets.tolist()))


def test_no_more_rows_of_a_group_than_the_grid_has_are_computed() -> None:
    bounds, x, w = (5, 70, 71, 200), tensor(310, K), tensor(3, K, N, seed=1)
    wanted = multiplied(x, w, bounds)
    wanted[5 + 40 : 70], wanted[71 + 40 : 200] = 0, 0
    check(grouped_kernels.by_masks(x, w, torch.tensor(bounds), 40), wanted)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_blocks_of_rows_have_the_numbers_of_their_groups(dtype: torch.dtype) -> None:
    numbers, x, w = torch.tensor([2, 0, 0, 1, 2], dtype=dtype), tensor(300, K), tensor(3, K, N, seed=1)
    wanted = torch.cat([rows.double() @ w[at].double() for rows, at in zip(x.split(64), numbers, strict=True)])
    check(grouped_kernels.by_blocks(x, w, numbers), wanted)
    bound = grouped_kernels.by_blocks.bind((x, w, numbers), target="sm_90")
    groups, shape = bound.plan().gemm.problem.groups, shape_of(bound.facts)
    assert groups == Groups(name=groups.name, size=3, dtype=str(dtype).split(".")[1], rows=64)
    assert not isinstance(shape, str) and dataclasses.replace(shape.problem.groups, name=groups.name) == groups
    assert not on_request(bound)
    assert "blocks of 64 rows of 3 groups" in str(bound.plan())


@pytest.mark.parametrize("choice", [choice for choice, each in CHOICES.items() if each.cluster[0] == 1])
def test_every_row_of_a_block_is_stored_once(choice: str) -> None:
    numbers = [1, 4, 0, 0, 7, -1]  # others than those of groups pick the nearest one
    groups = Groups(name="offsets", size=5, dtype="int64", rows=128)
    plan = plan_of(choice, dataclasses.replace(problem(rows=700), groups=groups))
    found = sum((stored_rows(plan, numbers, at, 3) for at in range(3)), Counter())
    tiles = plan.work[1] * plan.cluster_tiles[1]
    of_row = [min(max(numbers[row // 128], 0), 4) for row in range(700)]
    assert found == Counter((of_row[row], row, column) for row in range(700) for column in range(tiles))


def test_a_tile_has_rows_of_one_block() -> None:
    blocks = dataclasses.replace(problem(), groups=Groups(name="offsets", size=5, dtype="int64", rows=64))
    with pytest.raises(Refusal, match="groups of blocks of 64 rows by offsets"):
        plan_gemm(blocks, Choice(tile=(128, 128, 64)), target_of("sm_90"))
    with pytest.raises(Refusal, match="with one CTA along M"):
        plan_gemm(blocks, Choice(tile=(64, 128, 64), cluster=(2, 1)), target_of("sm_90"))
    with pytest.raises(Refusal, match="blocks of rows by offsets .* use hl.specialize"):
        plan_gemm(dataclasses.replace(blocks, runtime=("size_m",)), Choice(tile=(64, 128, 64)), target_of("sm_90"))


def test_sizes_that_only_the_launch_knows() -> None:
    dynamic = helion.kernel(grouped_kernels.by_bounds.fn, backend="cute", static_shapes=False)
    for bounds in ((0, 30, 200), (0, 5, 5, 64, 128, 300)):
        x, w = tensor(bounds[-1], K), tensor(len(bounds) - 1, K, N, seed=1)
        check(dynamic(x, w, torch.tensor(bounds)), multiplied(x, w, bounds))
    text = dynamic.bind((x, w, torch.tensor(bounds)), target="sm_90").to_cute_code()
    assert "work_m = size_m // " in text and "while row_group < batches:" in text


def test_an_epilogue_reads_what_is_of_each_group_and_each_row() -> None:
    bounds, rows = (0, 40, 40, 150), 150
    x, gate, up = tensor(rows, K), tensor(3, N, K, seed=1), tensor(3, N, K, seed=2)
    bias, residual = tensor(3, N, seed=3), tensor(rows, N, seed=4)
    scale, weight = torch.rand(3) + 0.5, torch.rand(rows) + 0.5
    out, plain = grouped_kernels.fused(x, gate, up, bias, scale, weight, residual, torch.tensor(bounds))
    of_row = torch.repeat_interleave(torch.arange(3), torch.tensor(bounds).diff())
    first = multiplied(x, gate.transpose(1, 2), bounds) + bias.double()[of_row]
    wanted = torch.nn.functional.silu(first) * multiplied(x, up.transpose(1, 2), bounds) * scale.double()[of_row, None]
    assert products.row_error(plain, wanted) < 1e-5
    check(out, wanted * weight.double()[:, None] + residual.double())


# The scheduler -----------------------------------------------------------------------------------------------------------


class Int(int):
    """An integer of the DSL."""

    def to(self, kind: type) -> Int:
        return Int(self)


#: The parts of the DSL that the scheduler's code uses, on Python's numbers.
CUTLASS = types.SimpleNamespace(
    Int32=Int, min=min, max=max, select_=lambda condition, yes, no: yes if condition else no
)


def stored_rows(plan: GemmPlan, offsets: Sequence[int], first: int, step: int) -> Counter[tuple[int, int, int]]:
    """Run the printed code of the scheduler and of the stores' views: return (group, row, tile of columns) of each row
    that a cluster stores."""
    find, condition, body = groups.find(plan)
    views = groups.views(plan, "stores")
    lines = [
        *groups.start(),
        f"work = {first}",
        *find,
        f"while {condition or False}:",
        *(f"    {line}" for line in body or ["pass"]),
        f"while row_group < {plan.problem.groups.size}:",
        "    for place in places:",
        *(f"        {line}" for line in (*groups.tile(plan), *views[:2])),
        "        store(row_group, tile_begin, tile_rows, tile_n)",
        f"    work += {step}",
        *(f"    {line}" for line in find),
        f"    while {condition or False}:",
        *(f"        {line}" for line in body or ["pass"]),
    ]
    found: Counter[tuple[int, int, int]] = Counter()

    def store(group: int, begin: int, rows: int, column: int) -> None:
        high = plan.store_box[0]
        assert 0 <= rows <= high
        for row in range(high):  # of the buffer; coordinates of the tensor, and its address
            inner, moved = high - rows + row, begin + rows
            if inner < high:
                found[group, inner + moved - high, column] += 1

    rows, columns = plan.cluster_tiles
    halves = range(plan.ctas_per_mma)
    places = [(half, m, n, 0) for half in halves for m in range(rows) for n in range(columns)]
    names = {groups.PARAMETER: [*map(Int, offsets)], "cutlass": CUTLASS, "store": store, "places": places}
    exec("\n".join(lines), names)
    return found


def test_tiles_of_a_band_come_first() -> None:
    """Clusters that run together share columns of a matrix: three tiles along M of a band, then one of the last."""
    plan = dataclasses.replace(plan_of("sm_90", problem(rows=2000)), group=3)
    (rows, _), columns = plan.cluster_tiles, plan.work[1]
    high = plan.tile[0] * rows
    places = [*stored_rows(plan, [0, 1, 1, 4 * high + 1, 0, 0], 0, 1)]
    walked = list(dict.fromkeys(((row - 1) // high, column) for g, row, column in places if g == 2))
    first = [(row, column) for column in range(columns) for row in range(3)]
    assert walked == first + [(3, column) for column in range(columns)]


REDUCED = Epilogue(instructions=(Instruction("row_sum", (0,)), Instruction("div", (0, 1))))


@helion.kernel(backend="cute")
def normalized(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """Rows with a residual, of which each is divided by its norm."""
    (rows, k), groups, n = x.size(), w.size(0), hl.specialize(w.size(2))
    out = torch.zeros([rows, n], dtype=x.dtype, device=x.device)
    for g in hl.grid(groups):
        for tile_m in hl.tile(offsets[g], offsets[g + 1]):
            acc = hl.zeros([tile_m, n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_m, tile_k], w[g, tile_k, :], acc=acc)
            acc = acc + residual[tile_m, :]
            out[tile_m, :] = (acc * torch.rsqrt((acc * acc).sum(-1))[:, None]).to(x.dtype)
    return out


def test_rows_of_groups_are_reduced() -> None:
    """Where warps store rows of their own, a view per warp would have to begin at them."""
    x, w, residual = tensor(300, K), tensor(3, K, N, seed=1), tensor(300, N, seed=2)
    offsets = torch.tensor([0, 70, 70, 299])
    rows = torch.cat([x[a:b].double() @ w[g].double() for g, (a, b) in enumerate(((0, 70), (70, 70), (70, 299)))])
    rows = torch.nn.functional.normalize(rows + residual[:299].double(), dim=-1)
    bound = normalized.bind((x, w, offsets, residual), target="sm_90")
    found = bound(x, w, offsets, residual)
    assert products.row_error(found[:299], rows) < BOUNDS[BF16] and not found[299].any()
    gemm = bound.plan().gemm
    assert gemm.problem.epilogue.reduces_rows and gemm.finish is None and not gemm.warp_stores
    assert not on_request(bound)


@pytest.mark.parametrize("choice", [*CHOICES, "rows"])
def test_every_row_of_a_group_is_stored_once(choice: str) -> None:
    generator = torch.Generator().manual_seed(0)
    for trial in range(20):
        sizes = torch.randint(0, 1 + 40 * trial, (5,), generator=generator)
        sizes[torch.randint(0, 5, (trial % 4,), generator=generator)] = trial % 2
        offsets = [0, *sizes.cumsum(0).tolist()]
        longest = 30 * (trial % 5) if trial % 3 == 0 else None
        limited = Groups(name="offsets", size=5, dtype="int64", longest=longest)
        grouped = dataclasses.replace(problem(rows=max(1, offsets[-1])), groups=limited)
        if choice == "rows":
            grouped = dataclasses.replace(grouped, epilogue=REDUCED)
            plan = plan_gemm(grouped, Choice(tile=(64, 128, 64), cluster=(1, 2)), target_of("sm_90"))
        else:
            plan = plan_of(choice, grouped)
        clusters = 1 + trial % 7
        found = sum((stored_rows(plan, offsets, at, clusters) for at in range(clusters)), Counter())
        tiles = plan.work[1] * plan.cluster_tiles[1]
        rows = [(g, row) for g in range(5) for row in range(offsets[g], offsets[g + 1])]
        rows = [(g, row) for g, row in rows if longest is None or row < offsets[g] + longest]
        assert found == Counter((g, row, column) for g, row in rows for column in range(tiles))
        assert len(stored_rows(plan, offsets, plan.tiles, 1)) == 0, "the grid covers all tiles"


def test_offsets_that_decrease_or_leave_the_matrix_store_inside_of_it() -> None:
    plan = plan_of("sm_90")
    assert plan.group > 1
    rows = {row for _, row, _ in stored_rows(plan, [-9, 100, 20, 650, 9000, 3], 0, 1)}
    assert rows and min(rows) >= 0 and max(rows) < plan.problem.m


# Roles -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("role", ["load", "load_residual", "store"])
def test_views_of_another_group_are_found(choice: str, role: str) -> None:
    program = kernel_program(plan_of(choice, WITH_RESIDUAL))
    verify(program)
    name = next(each.name for each in program.roles if each.name.startswith(role))
    missing = edit_role(program, name, lambda step: () if isinstance(step, GroupViews) else (step,))

    def once(step: Step) -> tuple[Step, ...]:
        if isinstance(step, TileLoop) and isinstance(step.body[0], GroupViews):
            return step.body[0], dataclasses.replace(step, body=step.body[1:])
        return (step,)

    for faulty in (missing, edit_role(program, name, once)):
        assert is_found_at_once(faulty)


@pytest.mark.prove
@pytest.mark.parametrize("choice", CHOICES)
def test_kernels_of_groups_compile_without_spills(choice: str) -> None:
    found = cubins.measure(plan_of(choice, WITH_RESIDUAL))
    assert found["stack_bytes"] == 0 and not found["misplaced_barriers"]


# Decisions ---------------------------------------------------------------------------------------------------------------


def bound(kernel: helion.Kernel, target: str, backend: str = "cute", rows: int = 4096) -> helion.BoundKernel:
    meta = {"dtype": BF16, "device": "meta"}
    args = torch.empty(rows, 512, **meta), torch.empty(8, 512, 1024, **meta), torch.empty(9, device="meta").long()
    return helion.kernel(kernel.fn, backend=backend).bind(args, target=target)


@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
@pytest.mark.parametrize("spelling", ["by_bounds", "by_lengths", "by_masks"])
def test_seeds_count_the_tiles_of_groups(target: str, spelling: str) -> None:
    kernel = bound(grouped_kernels.SPELLINGS[spelling], target)
    shape, plan = shape_of(kernel.facts), kernel.plan()
    assert not isinstance(shape, str) and kernel.seeds
    assert shape.problem.groups.size == 8 and shape.problem.batch == Batch(size=8, a=0, b=512 * 1024, d=0)
    rows = plan.gemm.tile[0] * plan.gemm.cluster_tiles[0]
    assert plan.gemm.work[0] == 4096 // rows + 8
    assert shape.flops == 2 * 4096 * 1024 * 512
    assert "rows of 8 groups from offsets" in str(plan)
    assert "a scheduler on the device gives each of 8 groups of rows those that it fills" in kernel.seeds[0].reason


def on_request(kernel: helion.BoundKernel) -> str:
    return MATMUL.on_request(kernel._analysis.program, kernel.facts, kernel.env.target)


def test_groups_that_have_not_run_on_a_gpu_run_on_request() -> None:
    asked = "matmuls over groups of rows by offsets run on request, with backend='cute'"
    assert not on_request(bound(grouped_kernels.by_bounds, "sm_90"))
    assert not on_request(bound(grouped_kernels.by_masks, "sm_90"))
    assert on_request(bound(grouped_kernels.by_bounds, "sm_100")) == asked
    meta = {"dtype": BF16, "device": "meta"}
    x, w, row = torch.empty(300, K, **meta), torch.empty(3, N, K, **meta), torch.empty(300, device="meta")
    given = x, w, w, torch.empty(3, N, **meta), row[:3], row, torch.empty(300, N, **meta), torch.arange(4)
    assert not on_request(grouped_kernels.fused.bind(given, target="sm_90"))
    assert on_request(grouped_kernels.fused.bind(given, target="sm_100")) == asked
    dynamic = helion.kernel(grouped_kernels.by_bounds.fn, backend="cute", static_shapes=False)
    assert not on_request(dynamic.bind((x, w.transpose(1, 2), torch.arange(4)), target="sm_90"))


def test_auto_takes_groups_that_it_predicts_to_be_faster() -> None:
    args = torch.empty(4096, 1024), torch.empty(8, 1024, 2048), torch.empty(9).long()
    given = tuple(each.to("meta", BF16 if each.is_floating_point() else each.dtype) for each in args)
    kernel = helion.kernel(grouped_kernels.by_bounds.fn, backend="auto")
    assert kernel.bind(given, target="h200").backend_on_gpu == "cute"


@helion.kernel(backend="cute")
def numbered(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    rows, k = x.size()
    groups, _, n = w.size()
    out = torch.zeros([rows, n], dtype=x.dtype, device=x.device)
    for g, tile_n in hl.tile([groups, n], block_size=[1, None]):
        start = offsets[g.id]
        for tile_m in hl.tile(offsets[g.id + 1] - start):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[start + tile_m.index, tile_k], w[g.id, tile_k, tile_n], acc=acc)
            out[start + tile_m.index, tile_n] = (acc * tile_m.index[:, None]).to(x.dtype)
    return out


@helion.kernel(backend="cute")
def by_ends(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    rows, k = x.size()
    groups, _, n = w.size()
    out = torch.zeros([rows, n], dtype=x.dtype, device=x.device)
    for g, tile_n in hl.tile([groups, n], block_size=[1, None]):
        for tile_m in hl.tile(0, offsets[g.id + 1]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_m, tile_k], w[g.id, tile_k, tile_n], acc=acc)
            out[tile_m, tile_n] = acc.to(x.dtype)
    return out


@helion.kernel(backend="cute")
def local_rows(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    rows, k = x.size()
    groups, _, n = w.size()
    out = torch.zeros([rows, n], dtype=x.dtype, device=x.device)
    for g, tile_n in hl.tile([groups, n], block_size=[1, None]):
        for tile_m in hl.tile(offsets[g.id + 1] - offsets[g.id]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_m, tile_k], w[g.id, tile_k, tile_n], acc=acc)
            out[tile_m, tile_n] = acc.to(x.dtype)
    return out


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (numbered, "the position of a row within its group is used for more than its index"),
        (by_ends, "a loop over as many rows as a number on the device"),
        (local_rows, "is not indexed by the rows of its group"),
    ],
)
def test_other_loops_over_rows_are_refused(kernel: helion.Kernel, reason: str) -> None:
    with pytest.raises(exc.CuteUnsupported, match=reason):
        bound(kernel, "sm_90")


def test_parts_of_k_and_numbers_per_row_are_refused() -> None:
    with pytest.raises(Refusal, match="not of groups of rows"):
        plan_gemm(problem(k=4096, a_pitch=4096), Choice(tile=(128, 128, 64), grid_splits=2), target_of("sm_90"))
    counted = Epilogue(instructions=(Instruction("row_number", ()), Instruction("add", (0, 1))))
    with pytest.raises(Refusal, match="without numbers and indices of rows"):
        plan_gemm(problem(epilogue=counted), Choice(tile=(128, 256, 64)), target_of("sm_90"))
    with pytest.raises(Refusal, match="rows"):
        plan_gemm(problem(epilogue=REDUCED), Choice(tile=(128, 64, 64), rows_in="memory"), target_of("sm_90"))


def test_time_counts_the_tiles_of_even_groups() -> None:
    """The last tile of each group is half full on average; groups of a few rows have one tile each."""
    plan = grouped_kernels.plan_of("sm_90")
    rows, columns = plan.tile[0] * plan.cluster_tiles[0], plan.work[1]
    for size, m, wanted in ((8, 64 * rows, 68), (100, 7 * 100, 100), (1, 5 * rows, 5)):
        problem = dataclasses.replace(
            plan.problem, m=m, groups=dataclasses.replace(plan.problem.groups, size=size), batch=None
        )
        assert expected_pieces(dataclasses.replace(plan, problem=problem)) == wanted * columns
