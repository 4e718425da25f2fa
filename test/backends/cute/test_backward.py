"""Gradients of attention of the cute backend: recognition, evaluation on CPU tensors, printed text and configs."""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from backends.cute import backward_kernels as kernels
from backends.cute import gradient_launches
from backends.cute.printed_gradients import computed_as_printed
from backends.cute.printed_registers import unwritten_registers

import helion
import helion.language as hl
from helion._compiler.ir.grammar import HostTensor
from helion._shapes import hint_of
from helion.backends.cute.codegen.attention import vectors
from helion.backends.cute.codegen.attention.backward import loaded_ahead
from helion.backends.cute.codegen.attention.backward_kernel import backward_kernel
from helion.backends.cute.plan.attention.backward import BackwardChoice, least_choice, plan_backward
from helion.backends.cute.plan.attention.plan import CuteBackwardPlan
from helion.backends.cute.roles.attention.backward import backward_program
from helion.backends.cute.toolchain.offline import compile_source
from helion.hardware import target

HOPPER = target("sm_90")


@functools.cache
def cases() -> list[kernels.Case]:
    torch.manual_seed(0)
    return kernels.cases()


NAMES = (
    "queries",
    "queries, causal",
    "queries, 96 and 64 dimensions",
    "queries, capped in a window",
    "keys",
    "keys, 96 and 64 dimensions",
    "keys, causal",
    "shared keys",
    "shared keys, causal",
    "a head of each key",
    "keys, documents",
    "all",
    "all, causal",
    "all, 64 and 96 dimensions",
    "queries, 256 dimensions",
    "keys, 256 dimensions",
    "shared keys, 256 dimensions",
    "queries, stored bias",
    "keys, added bias",
)


def case_of(name: str) -> kernels.Case:
    return next(case for case in cases() if case.name == name)


def bound_of(case: kernels.Case, gpu: str = "h100") -> helion.BoundKernel:
    meta = tuple(each.to("meta") if torch.is_tensor(each) else each for each in case.arguments)
    return helion.kernel(backend="cute")(case.kernel).bind(meta, target=gpu)


def launch_arguments(case: kernels.Case, plan: CuteBackwardPlan) -> list[Any]:
    """Return the arguments of a launch: those of the kernel by name, outputs of the shapes of the gradients, and numbers."""
    given = inspect.signature(case.kernel).bind(*case.arguments).arguments
    by_name = {
        each.name: given[each.name]
        if each.name in given
        else torch.empty_strided(each.shape, each.strides, dtype=each.dtype)
        for each in sorted(plan.program.tensors, key=lambda tensor: tensor.name)
    }
    return [by_name[each.name] if isinstance(each, HostTensor) else hint_of(each) for each in plan.arguments]


def test_names_are_those_of_the_cases() -> None:
    assert NAMES == tuple(case.name for case in cases())


@pytest.mark.parametrize("name", NAMES)
def test_values_on_cpu_tensors(name: str) -> None:
    """Evaluate a kernel, whose problem is all that is read of the program, against fp64."""
    case = case_of(name)
    found = helion.kernel(backend="cute")(case.kernel)(*case.arguments)
    for one, other in zip((found,) if torch.is_tensor(found) else found, case.wanted, strict=True):
        assert (one.double() - other).norm() < 6e-3 * other.norm()


@pytest.mark.parametrize("at", range(len(NAMES)), ids=NAMES)
def test_printed_text_computes_the_gradients(at: int) -> None:
    """Run the printed functions for every thread: tiles, blocks, masks, left operands and outputs, against fp64."""
    case = case_of(NAMES[at])
    plan = bound_of(case).plan()
    choice = BackwardChoice(groups=1 + at % 2, keys=(48, 64, 80)[at % 3])
    if plan.backward.problem.atomic is not None:
        choice = least_choice(plan.backward.problem)
    made = plan_backward(plan.backward.problem, choice, HOPPER)
    assert not unwritten_registers(backward_kernel("gradients", backward_program(made)).source)
    staged = [source for sources in made.staged.values() for source in sources]
    assert len(staged) == (0 if NAMES[at].startswith("queries") or NAMES[at] == "keys, documents" else 2)
    outputs = [each.output.name for each in made.problem.gradients]
    outputs += [] if made.problem.atomic is None else [made.problem.atomic.matrix.name]
    outputs += [each.target.name for each in made.problem.loop_outputs]
    found = dict(zip(outputs, computed_as_printed(made, launch_arguments(case, plan)), strict=True))
    order = sorted(found, key=lambda name: ("dq", "dk", "dv", "db").index(name[:2]))
    for name, other in zip(order, case.wanted, strict=True):
        assert (found[name].double() - other).norm() < 6e-3 * other.norm()


def test_launches_of_random_sizes(tmp_path: Path) -> None:
    """Run the script that launches kernels on a GPU."""
    out = tmp_path / "launches.jsonl"
    gradient_launches.main(
        ["--out", str(out), "--launches", "4", "--most", "40", "queries:64:causal:1", "bias:32:full:2"]
    )
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(line["launches"], line["differing"], line["ok"]) for line in lines] == [(4, 0, True)] * 2


def test_printed_text_stores_eight_numbers_at_once() -> None:
    """Run the printed functions for rows of whole vectors: biases and their gradients are exchanged by the lanes of a row."""
    torch.manual_seed(1)
    shapes = [(1, 2, 70, 64), *[(1, 2, 104, 64)] * 2, (1, 2, 70, 64)]
    operands, bias = [torch.randn(shape).bfloat16() for shape in shapes], torch.randn(1, 2, 70, 104).bfloat16()
    logsum, delta, wanted = kernels.gradients(*operands, bias=bias.double())
    case = kernels.Case(
        name="", kernel=kernels.gradient_of_queries_and_bias, arguments=(*operands, logsum, delta, bias), wanted=()
    )
    plan = bound_of(case).plan()
    made = plan_backward(plan.backward.problem, BackwardChoice(groups=1, keys=96), HOPPER)
    assert all(vectors.in_vectors(made, each) for each in made.problem.loop_outputs)
    found = computed_as_printed(made, launch_arguments(case, plan))
    for one, other in zip(found, (wanted[0], wanted[3]), strict=True):
        assert (one.double() - other).norm() < 4e-3 * other.norm()


@pytest.mark.parametrize("keys", [104, 102, 101])
def test_a_bias_is_loaded_ahead_in_vectors(keys: int) -> None:
    """Execute the printed loads and exchanges for the four lanes of a row: each has the pairs of its columns."""
    shapes = [(1, 2, 70, 64), *[(1, 2, keys, 64)] * 2, (1, 2, 70, 64)]
    operands = [torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in shapes]
    numbers = [torch.empty(1, 2, 70, device="meta") for _ in range(2)]
    given = torch.empty(1, 2, 70, keys, dtype=torch.bfloat16, device="meta")
    bound = helion.kernel(kernels.gradient_of_queries_and_bias, backend="cute").bind(
        (*operands, *numbers, given), target="h200"
    )
    plan = plan_backward(bound.plan().backward.problem, BackwardChoice(groups=2, keys=64), HOPPER)
    ahead = loaded_ahead(plan)
    assert bool(ahead) == (keys % 2 == 0)
    lanes, bias = torch.arange(4), torch.arange(70 * keys, dtype=torch.int16)
    for source in ahead:
        width = vectors.width_of(plan, source)
        held = torch.zeros(4, 2, 64 // (32 if width == 8 else 8), width, dtype=torch.int16)
        registers = SimpleNamespace(part=lambda place, held=held: held[:, place[1], place[2]])
        fakes = SimpleNamespace(
            crd2idx=lambda place, layout: place[0] * keys + place[1],
            assume=lambda at, divby: at,
            make_tensor=lambda at, layout: bias[at[:, None] + torch.arange(layout)],
            make_layout=lambda size: size,
            autovec_copy=lambda loaded, part: part.copy_(loaded),
            recast_tensor=lambda part, dtype: part.view(torch.int32).T,
            arch=SimpleNamespace(shuffle_sync_bfly=lambda value, offset: value[lanes ^ offset]),
        )
        kinds = {"Int32": None, "select_": torch.where}
        kinds["min"] = lambda one, other: torch.minimum(torch.as_tensor(one), torch.as_tensor(other))
        names: dict[str, Any] = {"cute": fakes, "cutlass": SimpleNamespace(**kinds)}
        assert any(vectors.in_vectors(plan, each) for each in plan.problem.loop_outputs) == (width == 8)
        for function in vectors.ahead_functions(plan, source):
            exec("\n".join(function).replace("held[None, row, group]", "held.part((None, row, group))"), names)
        names[f"load_{source.label}"](registers, SimpleNamespace(layout=None, iterator=0), 5, 2 * lanes, lanes)
        for row, group in itertools.product(range(2), range(held.shape[2] - 1)):
            found = names[f"exchanged_{source.label}"](registers, lanes, row, group)
            first = (5 + 8 * row) * keys + 4 * width * group
            for lane in range(4):
                pairs = [bias[first + 8 * column + 2 * lane + i] for column in range(width // 2) for i in range(2)]
                assert width != 8 or found[lane].tolist() == pairs
                assert width != 2 or found[lane].tolist() == pairs[:2]


@pytest.mark.prove
@pytest.mark.parametrize("name", NAMES)
def test_binaries_are_neither_spilled_nor_serialized(name: str) -> None:
    """Compile each seed of more rows. ptxas serializes MMAs, with an arrival for each, where registers are short."""
    torch.manual_seed(0)
    case = next(each for each in kernels.cases(scale=5) if each.name == name)
    bound = bound_of(case)
    for seed in bound.seeds:
        found, plan = bound.resources(seed.config), bound.plan(seed.config)
        fences = 1 + len(plan.backward.parts) + (plan.backward.problem.repeats > 1)
        atomic = plan.backward.problem.atomic is not None
        spilled = 96 if atomic else 32 if name == "keys, documents" else 0
        assert found.spill_bytes <= spilled, "a bias per score takes addresses, and so do views of exchanged operands"
        assert found.sass_counts.get("USETMAXREG", 0) == (2 if plan.backward.groups > 1 else 0)
        planned = 9 * fences + 2 if atomic else 7 * fences * len(plan.backward.problem.passes)
        assert found.sass_counts["WARPGROUP"] <= planned, "4 or 5 fences of a block, and waits"


def test_auto_takes_the_backend_that_is_faster_on_a_gpu() -> None:
    """Compare with ``loop_outputs`` of an H200: Triton is faster where the loop adds to memory, of 64 dimensions."""
    shape = (1, 16, 2048, 64)
    operands, numbers = (
        [torch.empty(shape, dtype=torch.bfloat16, device="meta")] * 4,
        [torch.empty(shape[:3], device="meta")] * 2,
    )
    bias = torch.empty(*shape[:3], 2048, dtype=torch.bfloat16, device="meta")

    def in_fp32(q, k, v, do, logsum, delta):
        heads, dims = q.size(1), hl.specialize(q.size(3))
        dq = torch.empty_like(q, dtype=torch.float32)
        for h, tile_m in hl.tile([heads, q.size(2)], block_size=[1, None]):
            acc = hl.zeros([tile_m, dims], dtype=torch.float32)
            for tile_n in hl.tile(k.size(2)):
                scores = hl.dot(q[0, h.begin, tile_m, :], k[0, h.begin, tile_n, :].T)
                weights = torch.exp(scores - logsum[0, h.begin, tile_m][:, None])
                changes = hl.dot(do[0, h.begin, tile_m, :], v[0, h.begin, tile_n, :].T)
                differences = weights * (changes - delta[0, h.begin, tile_m][:, None])
                acc = hl.dot(differences.to(k.dtype), k[0, h.begin, tile_n, :], acc=acc)
            dq[0, h.begin, tile_m, :] = acc
        return dq

    given = (*operands, *numbers)
    stored = helion.kernel(kernels.gradient_of_queries_and_bias).bind((*given, bias), target="h200")
    assert stored.backend_on_gpu == "cute"
    added = helion.kernel(kernels.gradients_of_keys_and_bias).bind((*given, bias[0, 0]), target="h200")
    assert added.backend_on_gpu == "triton"
    assert helion.kernel(in_fp32).bind(given, target="h200").backend_on_gpu == "cute"


@pytest.mark.parametrize(
    ("kernel", "dims"),
    [(kernels.gradient_of_queries, 128), (kernels.all_gradients, 128), (kernels.gradients_of_keys, 256)],
)
def test_auto_takes_gradients(kernel: Any, dims: int) -> None:
    tensors = tuple(torch.empty(4, 32, 4096, dims, dtype=torch.bfloat16, device="meta") for _ in range(4))
    numbers = tuple(torch.empty(4, 32, 4096, device="meta") for _ in range(2))
    bound = helion.kernel()(kernel).bind((*tensors, *numbers, True), target="h100")
    assert bound.backend_on_gpu == "cute"


@pytest.mark.parametrize("static", [True, False])
def test_auto_may_take_two_passes(static: bool) -> None:
    tensors = [torch.empty(2, 1000, heads, 256, dtype=torch.bfloat16, device="meta") for heads in (8, 4, 4, 8)]
    numbers = [torch.empty(2, 8, 1000, device="meta")] * 2
    kernel = helion.kernel(backend="cute", static_shapes=static)(kernels.gradients_of_shared_keys)
    found = kernel.bind((*tensors, *numbers, False), target="h200").variant.analysis
    assert not found.backend.on_request(found.program, found.facts, found.target)


@pytest.mark.parametrize("dims", [128, 192, 256])
def test_wide_heads_have_passes(dims: int) -> None:
    """Registers hold both sums of 128 dimensions. Of wider heads, blocks are as short as the tile's memory asks for."""
    tensors = [torch.empty(2, 8, 1000, each, dtype=torch.bfloat16, device="meta") for each in (dims, dims, 128, 128)]
    if dims != 192:
        tensors = [torch.empty(2, 8, 1000, dims, dtype=torch.bfloat16, device="meta")] * 4
    numbers = [torch.empty(2, 8, 1000, device="meta")] * 2
    bound = helion.kernel(backend="cute")(kernels.gradients_of_keys).bind((*tensors, *numbers, False), target="h200")
    plan = bound.plan().backward
    assert len(plan.problem.passes) == (2 if dims == 256 else 1)
    sizes = [tuple(seed.config["block_sizes"]) for seed in bound.seeds]
    assert sizes[0] == (128, 64 if dims == 128 else 48)
    assert dims < 256 or (64, 80) in sizes


@pytest.mark.parametrize(
    "name", ["keys", "keys, causal", "shared keys, causal", "all, causal", "all", "queries, causal"]
)
def test_schedulers_are_seeds_by_the_lengths_of_tiles(name: str) -> None:
    """A loop that begins with the tile has seeds, as others have. Causal tiles of two gradients, and those that add to memory,
    have a counter."""
    seeds = bound_of(case_of(name)).seeds
    schedulers = [seed.config["wgmma_tile_scheduler"] for seed in seeds[:2]]
    dynamic = ("causal" in name and not name.startswith("queries")) or name == "all"
    assert schedulers == (["dynamic", "static"] if dynamic else ["static", "dynamic"])


@pytest.mark.parametrize(
    ("dims", "causal", "first"), [(64, True, "static"), (128, False, "static"), (128, True, "dynamic")]
)
def test_long_heads_of_different_lengths_have_a_counter(dims: int, causal: bool, first: str) -> None:
    tensors = [torch.empty(2, 16, 2048, dims, dtype=torch.bfloat16, device="meta")] * 4
    numbers = [torch.empty(2, 16, 2048, device="meta")] * 2
    bound = helion.kernel(backend="cute")(kernels.gradient_of_queries).bind((*tensors, *numbers, causal), target="h200")
    assert bound.default_config()["wgmma_tile_scheduler"] == first


def test_few_tiles_of_different_lengths_come_longest_first() -> None:
    """All heads are in one band then, with four heads that share keys; whole tiles, and many, keep the L2 cache's bands."""

    def band(batch: int, causal: bool) -> int:
        sizes = [(batch, 4096, heads, 128) for heads in (32, 8, 8, 32)]
        tensors = (torch.empty(size, dtype=torch.bfloat16, device="meta") for size in sizes)
        numbers = (torch.empty(batch, 32, 4096, device="meta") for _ in range(2))
        bound = helion.kernel(backend="cute")(kernels.gradients_of_shared_keys).bind(
            (*tensors, *numbers, causal), target="h100"
        )
        return bound.plan().backward.heads_per_band

    assert band(2, causal=True) == 16
    assert band(2, causal=False) == band(32, causal=True) == 3


@pytest.mark.parametrize("name", ["queries, causal", "shared keys"])
def test_random_configs_have_a_plan(name: str) -> None:
    bound = bound_of(case_of(name))
    space, rng = bound.config_spec, random.Random(0)
    seen = set()
    for _ in range(12):
        drawn = {field.key: field.random(rng) for field in space.fields}
        for config in (space.random(rng), space.repair(drawn)):
            assert space.normalize(config) == config
            plan = bound.plan(config).backward
            seen.add((plan.groups, plan.keys, plan.scheduler))
    assert len(seen) >= 6


def test_blocks_are_seen_transposed_at_the_same_addresses() -> None:
    """A streamed block is operand B of both kinds of MMAs: rows by dimensions, and dimensions by rows."""
    cute = pytest.importorskip("cutlass.cute")
    cutlass, hopper = importlib.import_module("cutlass"), importlib.import_module("cutlass.utils.hopper_helpers")
    majors = importlib.import_module("cutlass.tensor_utils").LayoutEnum
    compared = []

    def offset(layout: Any, places: tuple[int, ...]) -> int:
        total = 0
        for place, shape, stride in zip(places, layout.outer.shape, layout.outer.stride, strict=True):
            sizes, steps = (each if isinstance(each, tuple) else (each,) for each in (shape, stride))
            for size, step in zip(sizes, steps, strict=True):
                total += place % size * step
                place //= size
        return total

    def compare() -> None:
        for dims, keys in itertools.product((16, 48, 96, 128, 192, 256), (48, 112)):
            rows = hopper.make_smem_layout_b(majors.ROW_MAJOR, (64, keys, dims), cutlass.BFloat16, 2)
            columns = hopper.make_smem_layout_b(majors.COL_MAJOR, (64, dims, keys), cutlass.BFloat16, 2)
            places = itertools.product(range(0, keys, 11), range(0, dims, 7))
            same = all(offset(rows, (row, column, 1)) == offset(columns, (column, row, 1)) for row, column in places)
            compared.append(same and str(rows.inner) == str(columns.inner))

    @cute.jit
    def run() -> None:
        compare()

    run()
    assert compared == [True] * 12


def rowwise_kernel(causal: bool) -> Any:
    """Return the kernel of gradients of keys and values, in blocks that divide all queries."""
    rows = [torch.empty(1, 2, 256, 64, dtype=torch.bfloat16, device="meta") for _ in range(4)]
    rows += [torch.empty(1, 2, 256, device="meta") for _ in range(2)]
    plan = helion.kernel(backend="cute")(kernels.gradients_of_keys).bind((*rows, causal), target="h100").plan()
    made = plan_backward(plan.backward.problem, BackwardChoice(groups=2, keys=64), HOPPER)
    return backward_kernel("gradients", backward_program(made))


def test_columns_without_masks_are_traced_once() -> None:
    late, traced = "for column in cutlass.range(8, unroll_full=True):", "for column in range(8):"
    assert rowwise_kernel(causal=False).source.count(late) == 2
    assert late not in (masked := rowwise_kernel(causal=True).source) and masked.count(traced) == 2


def test_columns_that_are_traced_once_leave_the_same_binary() -> None:
    pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (the cute extra)")
    made = rowwise_kernel(causal=False)
    early = made.source.replace("cutlass.range(8, unroll_full=True)", "range(8)")
    for name in ("weights", "differences"):
        head = f"def {name}("
        assert f"@cute.jit\n{head}" in early
        early = early.replace(f"@cute.jit\n{head}", head)
    for name in ("row", "i"):
        early = early.replace(f"for {name} in cutlass.range_constexpr(2)", f"for {name} in range(2)")
    texts = (made.source, early)
    first, second = (compile_source(text, "wgmma", made.pointers, made.entry).cubin for text in texts)
    assert first == second
