"""Attention, and its gradients, of sizes and strides that only launches know: one kernel for all of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from backends.cute import attention_kernels, backward_kernels
from backends.cute.printed_blocks import function

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.codegen.attention import bounds, numbers, spans
from helion.backends.cute.codegen.attention import splits as splits_code
from helion.backends.cute.execute import problems
from helion.backends.cute.execute.launcher import LaunchFailed
from helion.backends.cute.plan.attention import launch
from helion.backends.cute.plan.attention import numbers as launch_numbers
from helion.backends.cute.plan.attention.build import check_problem
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.shapes import shape_of_plan
from helion.ops.kernels import attention as ops

FORWARD = {case.name.split(" (")[0]: (case, arguments) for case, arguments in attention_kernels.cases()}
BACKWARD = {case.name: case for case in backward_kernels.cases()}
SAMPLED = ("published", "causal", "flex capped_window", "rows of heads True", "packed", "documents")
GRADIENTS = ("queries, causal", "shared keys, causal", "all, causal")
SIZES = ((4, 1, 577, 577), (4, 2, 63, 1000), (4, 4, 130, 131), (6, 2, 5, 300), (4, 2, 64, 130), (4, 2, 61, 64))
"""Heads, heads of K and V, queries and keys. A number that equals the dimensions of a head, 64, is a constant as they are."""


def dynamic(function: Any, **settings: Any) -> Any:
    return helion.kernel(backend="cute", static_shapes=False, **settings)(function)


def prove_others(names: Any, sampled: tuple[str, ...]) -> list[Any]:
    return [name if name in sampled else pytest.param(name, marks=pytest.mark.prove) for name in names]


def close(found: Any, wanted: Any, limit: float = 6e-3) -> None:
    pairs = (x if isinstance(x, tuple) else (x,) for x in (found, wanted))
    for one, other in zip(*pairs, strict=True):
        assert (one.double() - other.double()).norm() < limit * other.double().norm()


@pytest.mark.parametrize("name", prove_others(FORWARD, SAMPLED))
def test_values(name: str) -> None:
    case, arguments = FORWARD[name]
    close(dynamic(case.kernel)(*arguments), case.reference(*arguments))


@pytest.mark.parametrize("name", prove_others([name for name in BACKWARD if "queries, 96" not in name], GRADIENTS))
def test_gradients(name: str) -> None:
    case = BACKWARD[name]
    close(dynamic(case.kernel)(*case.arguments), tuple(case.wanted))


@pytest.mark.parametrize(
    ("causal", "window"),
    [(True, 100), pytest.param(True, 0, marks=pytest.mark.prove), pytest.param(False, 0, marks=pytest.mark.prove)],
)
def test_one_config_for_many_sizes(causal: bool, window: int) -> None:
    config = helion.Config(block_sizes=[128, 64], wgmma_tile_scheduler="dynamic")
    names = ("attention", "attention_queries_backward", "attention_keys_backward")
    forward, of_queries, of_keys = (dynamic(getattr(ops, f"{name}_kernel").fn, config=config) for name in names)
    for at, (heads, groups, m, n) in enumerate(SIZES):
        generator = torch.Generator().manual_seed(at)
        shapes = ((heads, m, 64), (groups, n, 64), (groups, n, 64), (heads, m, 64))
        q, k, v, grad = ((torch.randn(shape, generator=generator) + 0.2).bfloat16() for shape in shapes)
        leaves = [x.double().requires_grad_() for x in (q, k, v)]
        scores = leaves[0] @ leaves[1].repeat_interleave(heads // groups, 0).mT / 8
        after = torch.arange(n) - torch.arange(m)[:, None] - (n - m if causal else n)
        scores = scores.masked_fill((after > 0) | (after <= -window if window else after > 0), float("-inf"))
        out = torch.softmax(scores, -1) @ leaves[2].repeat_interleave(heads // groups, 0)
        logsum = (torch.logsumexp(scores, -1) * 1.4426950408889634).detach().float()
        options = heads // groups, None, causal, window, 0.0
        close(forward(q, k, v, None, *options), (out, logsum))
        given = grad, q, k, v, logsum, (grad * out).sum(-1).detach().float(), *options
        wanted = torch.autograd.grad(out, leaves, grad.double())
        close((of_queries(*given), *of_keys(*given)), wanted)


@pytest.mark.parametrize("name", ["attention", "attention_queries_backward", "attention_keys_backward"])
def test_text_does_not_depend_on_the_bound_sizes(name: str) -> None:
    """Bind a kernel to other sizes: under one config its text is the same, so that no size of the first is part of it."""
    function, texts = getattr(ops, f"{name}_kernel").fn, set()
    for heads, groups, m, n in ((8, 2, 580, 1000), (64, 16, 2000, 6000)):
        q, k, v = (
            torch.empty(x, rows, 128, device="meta").bfloat16() for x, rows in ((heads, m), (groups, n), (groups, n))
        )
        vector = torch.empty(heads, m, device="meta")
        tensors = (q, k, v, None) if name == "attention" else (torch.empty_like(q), q, k, v, vector, vector)
        bound = dynamic(function).bind((*tensors, 4, None, True, 300, 0.0), target="sm_90")
        plan = bound.plan(helion.Config(block_sizes=[128, 64], wgmma_tile_scheduler="dynamic", wgmma_kv_stages=2))
        kernel = shape_of_plan(plan).kernel(plan)
        assert len(kernel.pointers) == len(plan.arguments) + bool(kernel.workspace_bytes)
        texts.add(kernel.source)
    assert len(texts) == 1


# Printed functions -----------------------------------------------------------------------------------------------------


def numbers_of(plan: Any, arguments: dict[str, Any]) -> dict[str, int]:
    """Return the numbers of a launch by name: those that it passes, and those that the host function derives."""
    host = plan.program.host
    leaves = {name: eval(source, arguments) for name, source in host.symbols.items()}
    found = {name: number.evaluate(lambda leaf: leaves[leaf.args[0]]) for name, number in plan.runtime}
    names = {"cutlass": SimpleNamespace(min=min, max=max, select_=lambda chosen, one, other: one if chosen else other)}
    for name, text in numbers.definitions(scores_of(plan)).items():
        found[name] = eval(text, {**names, **found})
    return found


def scores_of(plan: Any) -> Any:
    return plan.attention if hasattr(plan, "attention") else plan.backward


def bound_plan(name: str, static: bool, shape: tuple[int, int, int, int], window: int) -> tuple[Any, dict[str, Any]]:
    heads, groups, m, n = shape
    q, k, v = (torch.empty(x, rows, 64, device="meta").bfloat16() for x, rows in ((heads, m), (groups, n), (groups, n)))
    of_rows = (torch.empty(heads, m, device="meta"), torch.empty(heads, m, device="meta"))
    tensors = (q, k, v, None) if name == "attention" else (torch.empty_like(q), q, k, v, *of_rows)
    given = dict(zip(("grad", "q", "k", "v", "normalizers", "along"), tensors, strict=True)) if len(tensors) > 4 else {}
    kernel = helion.kernel(getattr(ops, f"{name}_kernel").fn, backend="cute", static_shapes=static)
    bound = kernel.bind((*tensors, heads // groups, None, True, window, 0.0), target="sm_90")
    config = helion.Config(block_sizes=[128, 64], wgmma_tile_scheduler="dynamic", wgmma_kv_stages=2)
    return bound.plan(config), given or {"q": q, "k": k, "v": v}


@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize("name", ["attention", "attention_queries_backward", "attention_keys_backward"])
def test_tiles_and_blocks_are_those_of_a_kernel_for_one_size(name: str, window: int) -> None:
    made, _ = bound_plan(name, False, (48, 12, 1000, 3000), window)
    any_size = scores_of(made)
    for shape in ((48, 12, 577, 1000), (8, 2, 64, 1001), (12, 3, 1300, 1301), (400, 100, 700, 6000)):
        static, arguments = bound_plan(name, True, shape, window)
        one_size, given = scores_of(static), numbers_of(made, arguments)
        more = [given[each] for each in numbers.parameters(any_size)]
        assert given["pieces"] == one_size.pieces
        blocks, blocks_of_one = (function(bounds.bounds_function(plan), "blocks_of") for plan in (any_size, one_size))
        place, place_of_one = (function(bounds.place_function(plan), "place") for plan in (any_size, one_size))
        for tile in range(-(-one_size.problem.queries // one_size.rows)):
            assert blocks(tile, *more) == blocks_of_one(tile)
        assert [place(work, *more) for work in range(one_size.pieces)] == [*map(place_of_one, range(one_size.pieces))]


# Launches that are refused ---------------------------------------------------------------------------------------------


def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, shared: int) -> torch.Tensor:
    heads, m, _ = q.size()
    n, dims = k.size(1), hl.specialize(q.size(2))
    out = torch.empty_like(q)
    for tile_h, tile_m in hl.tile([heads, m], block_size=[1, None]):
        group = tile_h.begin // shared
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(n):
            scores = hl.dot(q[tile_h.begin, tile_m, :], k[group, tile_n, :].T) * 0.125
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[group, tile_n, :], acc=acc * shrink[:, None])
            highest = raised
        out[tile_h.begin, tile_m, :] = acc / total[:, None]
    return out


def three(heads: int, groups: int, m: int, n: int) -> tuple[torch.Tensor, ...]:
    shapes = ((heads, m, 64), (groups, n, 64), (groups, n, 64))
    return tuple((torch.randn(shape) + 0.2).bfloat16() for shape in shapes)


def test_the_ratio_of_heads_may_be_a_number_of_a_launch() -> None:
    kernel = dynamic(grouped)
    for shared in (2, 3):
        q, k, v = three(6, 6 // shared, 100, 130)
        wide = [x.double().repeat_interleave(shared, 0) for x in (k, v)]
        close(kernel(q, k, v, shared), torch.softmax(q.double() @ wide[0].mT / 8, -1) @ wide[1])


def test_divisors_are_positive() -> None:
    with pytest.raises((LaunchFailed, exc.CuteError, exc.CuteUnsupported), match="divided by -2"):
        dynamic(grouped)(*three(6, 3, 100, 130), -2)


def test_integers_of_a_launch_are_checked() -> None:
    """Numbers that no kernel can take are refused by name before a launch."""
    plan, arguments = bound_plan("attention", False, (8, 2, 577, 1000), 0)
    given = {name: numbers_of(plan, arguments)[name] for name in plan.attention.problem.runtime}
    launch.check_launch(launch_numbers.filled(plan.attention.problem, given))
    for name, number, message in (
        ("size_q_0_0", 0, "0 heads"),
        ("size_k_1_1", -3, "-3 keys"),
        ("stride_k_1_0", 0, "stride of 0"),
    ):
        with pytest.raises(Refusal, match=message):
            launch.check_launch(launch_numbers.filled(plan.attention.problem, {**given, name: number}))
    with pytest.raises(Refusal, match="TMA needs a multiple of 16 bytes"):
        check_problem(launch_numbers.filled(plan.attention.problem, {**given, "stride_q_0_0": 577 * 64 + 4}))


def test_integers_of_a_launch_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches of a bound kernel do not fill in and check its problem each time, which takes longer than many kernels."""
    found: list[int] = []
    monkeypatch.setattr(problems.launch, "check_launch", lambda problem: found.append(problem.keys))
    kernel = dynamic(grouped)
    for keys in (131, 131, 77, 131):
        given = (*three(6, 3, 40, keys), 2)
        kernel.bind(given)(*given)
    assert found == [131, 77]


# Loops to a loaded number of keys ----------------------------------------------------------------------------------------


def caches(n: int, lengths: list[int], dtype: torch.dtype = torch.int32) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(n)
    shapes = ((3, 2, 4, 64), (3, n, 2, 64), (3, n, 2, 64))
    q, k, v = ((torch.randn(shape, generator=generator) + 0.2).bfloat16() for shape in shapes)
    for at, length in enumerate(lengths):  # what lies in the rest of a cache does not matter
        k[at, length:], v[at, length:] = float("nan"), float("nan")
    return q, k, v, torch.tensor(lengths, dtype=dtype)


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("splits", [1, 3])
def test_sequences_of_any_length(static: bool, splits: int) -> None:
    config = helion.Config(block_sizes=[64, 64], wgmma_key_splits=splits)
    kernel = helion.kernel(attention_kernels.cached, backend="cute", config=config, static_shapes=static)
    for n, dtype in ((200, torch.int32), (65, torch.int64)):
        given = caches(n, [n, 0, 37], dtype)
        found = kernel(*given)
        close(found, attention_kernels.of_cached(*given))
        assert not found[1].any(), "a sequence without keys gives 0"


@pytest.mark.parametrize("splits", [1, 2, 3, 16])
@pytest.mark.parametrize("static", [True, False])
def test_parts_visit_each_key_once(static: bool, splits: int) -> None:
    """Run the printed bounds of all parts: their keys, less the masked ones, are those of the sequence."""
    given = (*(x.to("meta") for x in caches(1000, [1, 1, 1])[:3]), torch.empty(3, dtype=torch.int32, device="meta"))
    kernel = helion.kernel(attention_kernels.cached, backend="cute", static_shapes=static)
    config = helion.Config(block_sizes=[64, 64], wgmma_key_splits=splits)
    plan = kernel.bind(given, target="sm_90").plan(config).attention
    cutlass = SimpleNamespace(min=min, max=max, Int32=int)
    blocks = function(bounds.bounds_function(plan), "blocks_of")
    sizes = [1000 for _ in numbers.parameters(plan)]
    (source,) = plan.problem.loaded
    cute = SimpleNamespace(arch=SimpleNamespace(make_warp_uniform=int))
    for length in (0, 1, 63, 64, 65, 127, 200, 999, 1000, 5000, -3):
        seen: list[int] = []
        for work in range(splits):
            names = {
                "cutlass": cutlass,
                "cute": cute,
                "work": work,
                "head_0": 1,
                f"vector_{source.label}": {(0, 0, 1): length},
            }
            names |= dict(zip(numbers.parameters(plan), sizes, strict=True))
            exec("\n".join([*spans.coordinates(plan), *spans.of_tile(plan)]), names)
            names["begin"], names["end"], *_ = blocks(0, names["limit"], *sizes)
            if splits > 1:
                exec("\n".join(splits_code.part_of_keys(plan)), names)
            assert 0 <= names["begin"] < names["end"] <= -(-1000 // 64), "a part visits blocks that there are"
            first, last = names["begin"] * 64, names["end"] * 64
            assert names["limit"] <= last, "keys from the limit on are in the first block, which is masked"
            assert names["limit"] > last - 64 or last - first == 64
            seen += range(first, min(last, names["limit"]))
        assert seen == [*range(max(0, min(length, 1000)))]
