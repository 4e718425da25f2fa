"""Attention of 8-bit operands on the cute backend, and of values with contiguous keys."""

from __future__ import annotations

import functools
import random
import types
from typing import Any

import pytest
import torch
from backends.cute import fp8_kernels as kernels
from backends.cute.backward_kernels import Case
from backends.cute.edited_roles import edited, without

import helion
from helion import exc
from helion.backends.cute.codegen.attention import softmax
from helion.backends.cute.plan.attention.records import AttentionPlan
from helion.backends.cute.roles import grammar as g
from helion.backends.cute.roles.attention import grammar as a
from helion.backends.cute.roles.attention.programs import attention_program
from helion.backends.cute.shapes import shape_of_plan
from helion.backends.cute.verify.attention.verify import verify_attention
from helion.backends.cute.verify.state import Fault

NAMES = (
    "scales of heads, 64 and 64 dimensions",
    "scales of heads, 128 and 128 dimensions, causal",
    "scales of heads, 256 and 96 dimensions, causal",
    "scales of rows, window",
    "one scale",
    "turned values, causal",
)
ERROR = 1.2e-2
"""Weights have 3 bits of mantissa, so their errors are up to 2**-4, and mostly cancel in sums."""


@functools.cache
def cases() -> dict[str, Case]:
    torch.manual_seed(0)
    return {case.name: case for case in kernels.cases()}


def bound_of(case: Case, gpu: str = "h100") -> helion.BoundKernel:
    meta = tuple(each.to("meta") if torch.is_tensor(each) else each for each in case.arguments)
    return helion.kernel(backend="cute")(case.kernel).bind(meta, target=gpu)


def attention_plan(name: str, **keys: Any) -> AttentionPlan:
    bound = bound_of(cases()[name])
    config = {**bound.seeds[0].config, **keys}
    return bound.plan(helion.Config(**config)).attention


def test_names_are_those_of_the_cases() -> None:
    assert NAMES == tuple(cases())


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_values_on_cpu_tensors(name: str, static: bool) -> None:
    case = cases()[name]
    found = helion.kernel(backend="cute", static_shapes=static)(case.kernel)(*case.arguments)
    for one, other in zip((found,) if torch.is_tensor(found) else found, case.wanted, strict=True):
        assert (one.double() - other).norm() < ERROR * other.norm()


@pytest.mark.parametrize("keys", [64, 96, 192])
def test_printed_registers_are_those_of_the_mma(keys: int) -> None:
    """Follow keys from memory to operand A.

    TMA fills half ``h`` of the rows with rows ``2 * h`` and ``2 * h + 1`` of each four. Thread ``t`` of four has columns
    ``8 * j + 2 * t`` and the next one of the scores. In operand A of 8 bits, its register ``2 * b + row`` has elements
    ``16 * b + 4 * t`` and the three after it.
    """
    plan = attention_plan(NAMES[0], block_sizes=[64, keys], wgmma_kv_stages=2)
    order = [4 * group + 2 * half + i for half in range(2) for group in range(keys // 4) for i in range(2)]
    printed = "\n".join(softmax._round(plan))
    distance = eval(f"lambda column, i: {softmax.key_distance(plan)}")
    for thread in range(4):
        scores = [order[8 * (e // 4) + 2 * thread + e % 2] + 1000 * (e // 2 % 2) for e in range(keys // 2)]
        first = 4 * thread
        for e, key in enumerate(scores):
            assert key % 1000 == first + distance(e // 4, e % 2), "masks and formulas count keys so"
        packed: list[Any] = [None] * (keys // 8)
        names: dict[str, Any] = {"cutlass": types.SimpleNamespace(Int32=None), "cute": types.SimpleNamespace()}
        names["cute"].recast_tensor = lambda rounded, dtype, packed=packed: packed
        names["cute"].arch = types.SimpleNamespace(
            inline_ptx=lambda text, write_only_types, read_only_args: read_only_args
        )
        exec(printed, names)
        names["round_weights"](scores, None)
        for at, word in enumerate(packed):
            block, row = divmod(at, 2)
            assert word == [1000 * row + 16 * block + 4 * thread + byte for byte in range(4)]


@pytest.mark.parametrize("name", (NAMES[0], NAMES[3]))
def test_numbers_out_of_range_saturate(name: str) -> None:
    text = "".join(softmax._round(attention_plan(name)))
    assert "cvt.rn.satfinite.e4m3x2.f32" in text
    assert "nan" not in text


@pytest.mark.prove
@pytest.mark.parametrize("name", NAMES)
def test_binaries_are_neither_spilled_nor_serialized(name: str) -> None:
    torch.manual_seed(0)
    case = next(each for each in kernels.cases(scale=5) if each.name == name)
    bound = bound_of(case)
    for seed in bound.seeds:
        found, plan = bound.resources(seed.config), bound.plan(seed.config).attention
        assert found.spill_bytes == 0
        assert found.sass_counts["WARPGROUP"] <= 5 + 3 * len(plan.parts)
        assert ("QGMMA" in found.sass_counts) == plan.takes_quads


@pytest.mark.parametrize("static", [True, False])
def test_auto_takes_the_faster_backend(static: bool) -> None:
    q, k, v = (
        torch.empty(4, 32, *sizes, dtype=kernels.E4M3, device="meta") for sizes in ((4096, 64), (4096, 64), (64, 4096))
    )
    scales = [torch.empty(4, 32, device="meta") for _ in range(3)]
    kernel = helion.kernel(static_shapes=static)(kernels.scales_of_heads)
    bound = kernel.bind((q, k, v, *scales, True), target="h200")
    assert bound.backend_on_gpu == "cute"


@pytest.mark.parametrize("static", [True, False])
def test_auto_may_take_turned_values(static: bool) -> None:
    """Return no reason against it, for known and for any sizes: a GPU has run both."""
    meta = tuple(each.to("meta") if torch.is_tensor(each) else each for each in cases()[NAMES[-1]].arguments)
    kernel = helion.kernel(backend="cute", static_shapes=static)(kernels.turned_values)
    found = kernel.bind(meta, target="h200").variant.analysis
    assert not found.backend.on_request(found.program, found.facts, found.target)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("plain values", r"pass v.mT.contiguous\(\).mT"),
        ("odd keys", "with 302 keys is not implemented; with a multiple of 4"),
        ("other dimensions", "heads of 48 dimensions; multiples of 32"),
        ("mixed", "not z in bfloat16"),
    ],
)
def test_refusals(arguments: str, reason: str) -> None:
    n, dims = 302 if arguments == "odd keys" else 304, 48 if arguments == "other dimensions" else 64
    q, k, v = (torch.zeros(2, rows, dims).to(kernels.E4M3) for rows in (200, n, n))
    v = v if arguments == "plain values" else torch.zeros(2, dims, 320).to(kernels.E4M3)[..., :n].mT
    if arguments == "mixed":
        v = v.to(torch.bfloat16)
    with pytest.raises(exc.CuteUnsupported, match=reason.replace("z in", "v in")):
        helion.kernel(backend="cute")(kernels.one_scale)(q, k, v, 1.0, 1.0)


def test_any_number_of_keys_that_is_a_multiple() -> None:
    """Take other multiples of 4 by the same kernel, and leave other numbers to the general backend."""
    kernel = helion.kernel(backend="cute", static_shapes=False)(kernels.one_scale)
    q, bounds = torch.zeros(2, 200, 64).to(kernels.E4M3), []
    for n in (300, 336, 304, 302):  # sizes up to 512 are planned as 511, of which 4 is no divisor
        v = torch.zeros(2, 64, 352).to(kernels.E4M3)[..., :n].mT
        given = (q, torch.zeros(2, n, 64).to(kernels.E4M3), v, 1.0, 1.0)
        if n % 4:
            with pytest.raises(exc.CuteUnsupported, match="with 302 keys"):
                kernel.bind(given)
        else:
            bounds.append(kernel.bind(given).variant)
            assert kernel.bind(given).seeds
    assert bounds[0] is bounds[1] is bounds[2]
    meta = tuple(each.to("meta") if torch.is_tensor(each) else each for each in cases()[NAMES[4]].arguments)
    plan = kernel.bind(meta, target="h100").plan()
    assert "// 4" in shape_of_plan(plan).kernel(plan).source


def test_lazy_rescaling_is_refused() -> None:
    """Refuse weights of up to 2**8 that may be 2**8 times larger; those of at most 1 are taken."""
    with pytest.raises(exc.InvalidConfig, match=r"wgmma_lazy_rescale .* of up to 2\*\*8"):
        attention_plan(NAMES[1], wgmma_lazy_rescale=True)
    assert attention_plan(NAMES[3], wgmma_lazy_rescale=True).lazy
    space = bound_of(cases()[NAMES[1]]).config_spec
    drawn = [{**space.random(random.Random(at)), "wgmma_lazy_rescale": True} for at in range(4)]
    assert not any(space.repair(each)["wgmma_lazy_rescale"] for each in drawn)


@pytest.mark.parametrize("number", ["sum", "factor"])
def test_lifted_factors_are_no_softmax(number: str) -> None:
    """Refuse an exponent of the factor with a number that is added: only weights may have one."""

    def lifted(q, k, v):
        import helion.language as hl

        m, dims = q.size(0), hl.specialize(q.size(1))
        out = torch.empty_like(q)
        for tile_m in hl.tile(m):
            highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
            total = hl.zeros([tile_m], dtype=torch.float32)
            acc = hl.zeros([tile_m, dims], dtype=torch.float32)
            for tile_n in hl.tile(k.size(0)):
                scores = hl.dot(q[tile_m, :], k[tile_n, :].T)
                raised = torch.maximum(highest, torch.amax(scores, -1))
                weights = torch.exp(scores - raised[:, None] + 1)
                shrink = torch.exp(highest - raised + 1)
                total = total * shrink + weights.sum(-1)
                acc = hl.dot(weights.to(v.dtype), v[tile_n, :], acc=acc * shrink[:, None])
                highest = raised
            out[tile_m, :] = (acc / total[:, None]).to(out.dtype)
        return out

    tensors = [torch.randn(n, 64).bfloat16() for n in (70, 90, 90)]
    with pytest.raises(exc.CuteUnsupported):
        helion.kernel(backend="cute")(lifted)(*tensors)


@pytest.mark.parametrize("at", [0, 1])
def test_products_are_added_in_fp32(at: int) -> None:
    """Add the product of each block, before the accumulator is rescaled, and once: MMAs of 8 bits add in less than fp32."""
    program = attention_program(attention_plan(NAMES[at]))
    verify_attention(program)
    twice = edited(program, "attend", lambda step: (step, step) if step == a.AddProduct() else (step,))
    early = edited(program, "attend", lambda step: (a.AddProduct(), step) if step == g.WgmmaWait(0) else (step,))
    for changed, message in (
        (edited(program, "attend", without(a.AddProduct())), "without the product|overwritten"),
        (twice, "added twice"),
        (early, "while MMAs write it|before its MMAs"),
    ):
        with pytest.raises(Fault, match=message):
            verify_attention(changed)


def test_wide_values_are_refused() -> None:
    """Refuse heads whose accumulator and product need more registers than a thread has."""
    tensors = [torch.zeros(2, 304, 256).to(kernels.E4M3) for _ in range(2)]
    v = torch.zeros(2, 256, 304).to(kernels.E4M3).mT
    with pytest.raises(exc.CuteUnsupported, match="registers per thread"):
        helion.kernel(backend="cute")(kernels.one_scale)(*tensors, v, 1.0, 1.0)


def test_plans_print_their_protocol() -> None:
    plan = bound_of(cases()[NAMES[3]]).plan()
    kernel = shape_of_plan(plan).kernel(plan)
    assert "to_k_1" in kernel.source and "half_k" in kernel.source
    shape_of_plan(plan).verify(plan)
