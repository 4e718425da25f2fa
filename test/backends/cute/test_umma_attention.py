"""Attention on tcgen05: the values of the printed text, its polynomial, binaries, keys and refusals."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import types
from typing import Any

import pytest
import torch
from backends.cute import attention_kernels as kernels
from backends.cute import attention_spans as spans
from backends.cute import fp8_kernels, latent_kernels
from backends.cute import test_attention_spans as sequences
from backends.cute.printed_registers import unwritten_registers
from backends.cute.test_attention_sizes import caches, close
from backends.cute.test_dropout import cases as dropped_kernels_cases
from backends.cute.test_fp8_attention import ERROR as fp8_error
from backends.cute.test_fp8_attention import NAMES as fp8_names
from backends.cute.test_umma_verify import plan
from backends.cute.umma_lanes import evaluate_as, objects

import helion
from helion import exc
from helion.backends.cute.codegen.attention.umma.softmax import softmax_functions
from helion.backends.cute.execute import evaluators
from helion.backends.cute.plan.attention.records import AttentionProblem
from helion.backends.cute.plan.attention.umma import UmmaChoice, UmmaPlan
from helion.backends.cute.shapes import shape_of_plan

CASES = kernels.cases()
CHOICES = (
    UmmaChoice(groups=2, keys=128, lazy=True, polynomial=6),
    UmmaChoice(groups=1, keys=48, lazy=False, polynomial=0),
    UmmaChoice(groups=2, keys=32, lazy=True, polynomial=4),
)


def values(
    monkeypatch: pytest.MonkeyPatch, case: kernels.Case, arguments: tuple[Any, ...], choice: UmmaChoice
) -> tuple[UmmaPlan, list[float]]:
    """Return the plan, and the error of each output of the printed text against fp64."""
    plans: list[UmmaPlan] = []
    monkeypatch.setitem(evaluators.EVALUATORS, AttentionProblem, evaluate_as(choice, plans))  # type: ignore[arg-type]
    found, wanted = helion.kernel(backend="cute")(case.kernel)(*arguments), case.reference(*arguments)
    pairs = zip(*((x,) if torch.is_tensor(x) else x for x in (found, wanted)), strict=True)
    return plans[-1], [float((one.double() - other).norm() / other.norm()) for one, other in pairs]


@pytest.mark.prove
@pytest.mark.parametrize("choice", CHOICES, ids=[f"{each.groups}x{each.keys}" for each in CHOICES])
@pytest.mark.parametrize(("case", "arguments"), CASES, ids=[case.name for case, _ in CASES])
def test_values_of_the_text(
    monkeypatch: pytest.MonkeyPatch, case: kernels.Case, arguments: tuple[Any, ...], choice: UmmaChoice
) -> None:
    torch.manual_seed(0)
    _, errors = values(monkeypatch, case, arguments, choice)
    assert max(errors) < 5e-3
    assert all(error < 1e-6 for error in errors[1:]), "numbers per query are in fp32"


@pytest.mark.parametrize("lazy", [False, True])
def test_values_of_a_few_tiles(monkeypatch: pytest.MonkeyPatch, lazy: bool) -> None:
    """Causal rows of heads that share keys, with the logarithm of the sums; scores grow along the keys."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, rows, heads, 32) + 0.3 for rows, heads in ((70, 2), (150, 1), (150, 1)))
    k = k * torch.linspace(0.2, 6, 150)[:, None, None]
    arguments = (*(x.bfloat16() for x in (q, k, v)), True)
    case = kernels.Case(name="few", kernel=kernels.rows_of_heads, arguments=lambda: arguments, reference=kernels._rows)
    choice = UmmaChoice(groups=1, keys=48, lazy=lazy, polynomial=6)
    made, errors = values(monkeypatch, case, arguments, choice)
    assert made.restores_maxima == lazy
    assert errors[0] < 5e-3 and errors[1] < 1e-6


@pytest.mark.prove
@pytest.mark.parametrize("choice", CHOICES[1:], ids=[f"{each.groups}x{each.keys}" for each in CHOICES[1:]])
@pytest.mark.parametrize("static", [True, False])
def test_values_of_sequences(monkeypatch: pytest.MonkeyPatch, static: bool, choice: UmmaChoice) -> None:
    """Rows of sequences, loaded bounds, slots and pages, by the tests of them on wgmma."""
    blocks = dataclasses.replace(choice, keys=32)  # a divisor of the pages
    monkeypatch.setitem(evaluators.EVALUATORS, AttentionProblem, evaluate_as(blocks))  # type: ignore[arg-type]
    for name in spans.SEQUENCES:
        sequences.test_sequences_one_after_another(name, static)
    for name in sequences.PACKED:
        sequences.test_rows_of_a_sequence(name, static)
    sequences.test_bounds_in_masks_alone()
    sequences.test_a_prefix_of_keys_for_each_query()
    sequences.test_a_loop_over_the_rows_of_a_sequence()
    sequences.test_slots_of_caches()
    sequences.test_keys_in_pages(static, 64, torch.int32)


@pytest.mark.parametrize(
    "at", [2, *(pytest.param(at, marks=pytest.mark.prove) for at in range(len(fp8_names)) if at != 2)]
)
def test_values_of_operands_of_8_bits(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Words have the weights of four keys, and scales of values are part of weights that are rounded later."""
    torch.manual_seed(0)
    case = fp8_kernels.cases(batch=1)[at]
    choice = UmmaChoice(groups=1 + at % 2, keys=(32, 64, 96)[at % 3])
    monkeypatch.setitem(evaluators.EVALUATORS, AttentionProblem, evaluate_as(choice))  # type: ignore[arg-type]
    found = helion.kernel(backend="cute")(case.kernel)(*case.arguments)
    for one, other in zip((found,) if torch.is_tensor(found) else found, case.wanted, strict=True):
        assert (one.double() - other).norm() < fp8_error * other.norm()


@pytest.mark.parametrize("choice", CHOICES[1:], ids=[f"{each.groups}x{each.keys}" for each in CHOICES[1:]])
def test_values_of_dimensions_in_two_tensors(monkeypatch: pytest.MonkeyPatch, choice: UmmaChoice) -> None:
    torch.manual_seed(0)
    given = latent_kernels.of_positions(150)
    monkeypatch.setitem(evaluators.EVALUATORS, AttentionProblem, evaluate_as(choice))  # type: ignore[arg-type]
    found = helion.kernel(latent_kernels.with_positions, backend="cute")(*given)
    q, more, k, shared, v = (each.double() for each in given)
    scores = (q @ k.mT + more @ shared[:, None].mT) / math.sqrt(192)
    wanted = torch.softmax(scores.masked_fill(~torch.ones(150, 150).tril().bool(), -math.inf), -1) @ v
    assert (found.double() - wanted).norm() < 5e-3 * wanted.norm()


def test_two_tensors_fill_one_stage() -> None:
    """Both parts of a stage have the swizzles of the whole, one after another."""
    meta = tuple(each.to("meta") for each in latent_kernels.of_positions(2000))
    bound = helion.kernel(latent_kernels.with_positions, backend="cute").bind(meta, target="b200")
    made = bound.plan()
    text = shape_of_plan(made).kernel(made).source
    for name, rows in (("q", 128), ("k", made.attention.keys)):
        assert f"shared_{name}_rest = cute.make_tensor(shared_{name}.iterator + {128 * rows}, " in text
        assert f"tma_{name}_rest, from_{name}_rest[" in text


@pytest.mark.prove
@pytest.mark.parametrize("at", range(-1, len(fp8_names)), ids=("two tensors", *fp8_names))
def test_binaries_of_other_operands_are_not_spilled(at: int) -> None:
    torch.manual_seed(0)
    case = fp8_kernels.cases(scale=5)[at]
    kernel, given = (
        (case.kernel, case.arguments) if at >= 0 else (latent_kernels.with_positions, latent_kernels.of_positions(2000))
    )
    meta = tuple(each.to("meta") if torch.is_tensor(each) else each for each in given)
    bound = helion.kernel(backend="cute")(kernel).bind(meta, target="b200")
    for seed in bound.seeds[:2]:
        found = bound.resources(seed.config)
        assert found.spill_bytes == 0
        assert ("UTCQMMA" in found.sass_counts) == (given[0].dtype == torch.float8_e4m3fn)


@pytest.mark.parametrize(("splits", "lazy"), [(2, True), (3, False), (5, True)])
def test_values_of_split_keys(monkeypatch: pytest.MonkeyPatch, splits: int, lazy: bool) -> None:
    """Few rows of two heads, with the logarithm of the sums; scores grow along the keys, or shrink."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, rows, 2, 32) + 0.3 for rows in (7, 230, 230))
    k *= torch.stack([torch.linspace(0.2, 6, 230), torch.linspace(6, 0.2, 230)], 1)[..., None]
    arguments = (*(x.bfloat16() for x in (q, k, v)), splits == 3)
    case = kernels.Case(name="few", kernel=kernels.rows_of_heads, arguments=lambda: arguments, reference=kernels._rows)
    choice = UmmaChoice(groups=1, keys=32, lazy=lazy, splits=splits)
    made, errors = values(monkeypatch, case, arguments, choice)
    assert made.splits == splits and made.restores_maxima == lazy
    assert errors[0] < 5e-3 and errors[1] < 1e-6


@pytest.mark.parametrize(
    "name", ["dropout, causal, shared keys", pytest.param("a seed for each head", marks=pytest.mark.prove)]
)
def test_values_of_dropped_weights(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Sums are those of all weights; random numbers are those of the offsets that the user gives."""
    choice = UmmaChoice(groups=1, keys=32, lazy=True, polynomial=4)
    monkeypatch.setitem(evaluators.EVALUATORS, AttentionProblem, evaluate_as(choice))  # type: ignore[arg-type]
    case = dropped_kernels_cases()[name]
    found = helion.kernel(backend="cute")(case.kernel)(*case.arguments)
    for one, other in zip((found,) if torch.is_tensor(found) else found, case.wanted, strict=True):
        assert (one.double() - other).norm() < 4e-3 * other.norm()


@pytest.mark.prove
@pytest.mark.parametrize("name", ["dropout", "dropout, causal, shared keys", "a seed for each head"])
def test_binaries_with_dropout_do_not_spill(name: str) -> None:
    case = dropped_kernels_cases()[name]
    meta = tuple(each.to("meta") if torch.is_tensor(each) else each for each in case.arguments)
    bound = helion.kernel(backend="cute")(case.kernel).bind(meta, target="b200")
    for seed in bound.seeds:
        assert bound.resources(seed.config).spill_bytes == 0


@pytest.mark.parametrize("static", [True, pytest.param(False, marks=pytest.mark.prove)])
def test_values_of_split_caches(monkeypatch: pytest.MonkeyPatch, static: bool) -> None:
    """Keys of each sequence, or of none, some parts of which are empty; in pages as well."""
    choice = UmmaChoice(groups=1, keys=32, lazy=True, splits=3)
    found: list[UmmaPlan] = []
    monkeypatch.setitem(evaluators.EVALUATORS, AttentionProblem, evaluate_as(choice, found))  # type: ignore[arg-type]
    given = caches(200, [200, 0, 37])
    kernel = helion.kernel(kernels.cached, backend="cute", static_shapes=static)
    close(kernel(*given), kernels.of_cached(*given))
    if not static:
        sequences.test_keys_in_pages(static, 64, torch.int32)
    assert {each.splits for each in found} == {3}


def test_values_of_computed_queries_in_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(5)
    blocks = UmmaChoice(groups=1, keys=32, lazy=True, polynomial=2)
    monkeypatch.setitem(evaluators.EVALUATORS, AttentionProblem, evaluate_as(blocks))  # type: ignore[arg-type]
    sequences.test_a_loop_over_the_rows_of_a_sequence()


# The polynomial --------------------------------------------------------------------------------------------------------


@functools.cache
def power(long: bool) -> Any:
    """Return the printed polynomial, of 16-bit outputs or of those in fp32."""
    made = plan(polynomial=6)
    if long:
        output = made.problem.outputs[0]
        numbered = types.SimpleNamespace(dtype="float32")
        made = types.SimpleNamespace(polynomial=6, problem=types.SimpleNamespace(outputs=(output, numbered)))  # type: ignore[assignment]
    from helion.backends.cute.codegen.attention.umma import softmax

    names: dict[str, Any] = objects()
    exec("\n".join(softmax._polynomial(made)), names)
    return names["exp2_of_pair"]


@pytest.mark.parametrize(("long", "most"), [(False, 1e-4), (True, 3e-7)])
def test_polynomial(long: bool, most: float) -> None:
    x = torch.cat([torch.linspace(-126, 9, 20011), torch.arange(-126.0, 10.0)])
    one, other = power(long)(x, x.flip(0))
    for found, at in ((one, x), (other, x.flip(0))):
        wanted = torch.exp2(at.double())
        assert ((found.held.double() - wanted).abs() / wanted).max() < most
    assert torch.equal(
        power(long)(torch.arange(-20.0, 1.0), torch.zeros(21))[0].held, torch.exp2(torch.arange(-20.0, 1.0))
    )


def test_polynomial_of_numbers_out_of_range() -> None:
    x = torch.tensor([float("-inf"), -1e30, -127.0, -200.5, float("nan")])
    found = power(False)(x, x)[0].held
    assert torch.equal(found[:4], torch.zeros(4)) and found[4].isnan()


def test_texts_differ_in_what_they_need() -> None:
    text = {each: "\n".join(map("\n".join, softmax_functions(plan(polynomial=each)))) for each in (0, 6)}
    assert "exp2_of_pair" not in text[0] and "exp2_of_pair" in text[6]


# Programs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "arguments"), CASES, ids=[case.name for case, _ in CASES])
def test_every_register_is_written(case: kernels.Case, arguments: tuple[Any, ...]) -> None:
    meta = tuple(each.to("meta") if torch.is_tensor(each) else each for each in arguments)
    made = helion.kernel(backend="cute")(case.kernel).bind(meta, target="b200").plan()
    assert not unwritten_registers(shape_of_plan(made).kernel(made).source)


@pytest.mark.prove
@pytest.mark.parametrize(
    ("case", "arguments"), kernels.cases(device="meta", large=True), ids=lambda each: getattr(each, "name", "")
)
def test_binaries_do_not_spill(case: kernels.Case, arguments: tuple[Any, ...]) -> None:
    """Compile each seed for sm_100a; MMAs are those of the first block, of the loop, and of the last one. One block has none of
    the loop."""
    kernel = helion.kernel(backend="cute")(case.kernel)
    bound = kernel.bind(arguments, target="b200")
    for seed in bound.seeds:
        found, made = bound.resources(seed.config), bound.plan(seed.config).attention
        assert found.spill_bytes == 0
        assert found.tensor_memory_columns >= made.memory_columns
        blocks = 1 if made.problem.keys <= made.keys else 2
        assert found.sass_counts["UTCHMMA"] == blocks * (made.problem.q.columns + made.keys) // 16


TENSORS = tuple(torch.empty(2, 4, 1000, 128, dtype=torch.bfloat16, device="meta") for _ in range(3))


def test_auto_takes_triton() -> None:
    """No Blackwell GPU has run these kernels."""
    bound = helion.kernel(backend="auto")(kernels.attention.fn).bind((*TENSORS, True), target="b200")
    assert bound.backend_on_gpu == "triton"


def of_heads(batch: int, rows: int, dims: int) -> Any:
    tensors = tuple(torch.empty(batch, 16, rows, dims, dtype=torch.bfloat16, device="meta") for _ in range(3))
    return helion.kernel(backend="cute")(kernels.attention.fn).bind((*tensors, False), target="b200")


@pytest.mark.prove
def test_explanations_have_the_reasons_of_seeds() -> None:
    bound = of_heads(1, 300, 128)
    assert bound.seeds[0].reason in bound.explain()


def test_reasons_name_the_share_of_the_tensor_pipe() -> None:
    """The rest of a launch is that of exponentials, of the last tiles, and of heads that are too short."""
    shares = []
    for batch, rows, dims in ((4, 4096, 128), (4, 4096, 64), (1, 300, 128)):
        reason = of_heads(batch, rows, dims).seeds[0].reason
        found = re.search(r"(\d+)% of them on the tensor pipe", reason)
        assert found is not None
        shares.append(int(found[1]))
    assert 100 > shares[0] > shares[1] > shares[2] > 0


@pytest.mark.parametrize("name", ["biased", "decayed", "full"])
def test_blocks_are_shorter_where_formulas_need_registers(name: str) -> None:
    found = [each for each in kernels.cases(device="meta", large=True) if each[0].name.startswith(name)]
    keys = set()
    for case, arguments in found:
        bound = helion.kernel(backend="cute")(case.kernel).bind(arguments, target="b200")
        keys |= {bound.plan(seed.config).attention.keys for seed in bound.seeds}
    assert (max(keys) <= 64) == (name != "full")


def test_keys_of_configs() -> None:
    bound = helion.kernel(backend="cute")(kernels.attention.fn).bind((*TENSORS, True), target="b200")
    keys = {"tcgen05_kv_stages": 2, "tcgen05_lazy_rescale": False, "tcgen05_polynomial": 0}
    config = {**bound.default_config(), "block_sizes": [1, 256, 64], **keys}
    made = bound.plan(config).attention
    assert (made.groups, made.keys, made.stages, made.lazy, made.polynomial) == (2, 64, 2, False, 0)
    with pytest.raises(exc.InvalidConfig, match="tcgen05_cluster_m.*it is for matmuls; attention on tcgen05 has"):
        bound.plan({**bound.default_config(), "tcgen05_cluster_m": 2})
    text = str(bound.plan({**config, "block_sizes": [1, 256, 128]}))
    assert "tensor memory: 512 of 512 columns" in text and "predicted share of the tensor pipe in a block: 0." in text


def test_sizes_that_only_launches_know() -> None:
    """One binary serves all sizes: the text has their names."""
    bound = helion.kernel(kernels.attention.fn, backend="cute", static_shapes=False).bind(
        (*TENSORS, True), target="b200"
    )
    made = bound.plan()
    assert made.attention.problem.runtime
    source = shape_of_plan(made).kernel(made).source
    assert "while work < pieces:" in source and not unwritten_registers(source)


def refused() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Return kernels and arguments by the part that is refused."""
    meta = functools.partial(torch.empty, device="meta", dtype=torch.bfloat16)
    lengths = torch.empty(2, device="meta", dtype=torch.int32)
    return {
        "whose values are columns of its keys": (
            latent_kernels.decoded,
            (meta(2, 16, 320), meta(2, 300, 320), lengths, 256, False),
        ),
    }


@pytest.mark.parametrize("part", refused())
def test_parts_without_tcgen05_are_refused_by_name(part: str) -> None:
    kernel, arguments = refused()[part]
    message = f"attention {part} is implemented for wgmma, and not for tcgen05.*backend='triton'"
    with pytest.raises(exc.CuteUnsupported, match=message):
        helion.kernel(backend="cute")(kernel).bind(arguments, target="b200")


def test_outputs_that_exceed_tensor_memory_are_refused_with_their_columns() -> None:
    meta = functools.partial(torch.empty, device="meta", dtype=torch.bfloat16)
    given = meta(2, 16, 576), meta(2, 300, 576), torch.empty(2, device="meta", dtype=torch.int32), 512, False
    with pytest.raises(exc.CuteUnsupported, match="512 dimensions needs 528 columns .* a CTA has 512"):
        helion.kernel(latent_kernels.decoded, backend="cute").bind(given, target="b200")


def test_keys_of_configs_of_weights_without_a_softmax() -> None:
    case, arguments = next(
        each for each in kernels.cases(device="meta", large=True) if each[0].name.startswith("gated")
    )
    bound = helion.kernel(backend="cute")(case.kernel).bind(arguments, target="b200")
    made = bound.plan().attention
    assert (made.lazy, made.polynomial) == (False, 0)
    with pytest.raises(exc.InvalidConfig, match="tcgen05_key_splits are implemented for weights of a softmax"):
        bound.plan({**bound.default_config(), "tcgen05_lazy_rescale": True})


def test_blocks_are_within_pages() -> None:
    given = tuple(
        each.to("meta") if torch.is_tensor(each) else each for each in spans.paged_of([200, 64], 96, 8, 2, 4, 64)
    )
    bound = helion.kernel(spans.paged, backend="cute").bind(given, target="b200")
    assert all(96 % bound.plan(seed.config).attention.keys == 0 for seed in bound.seeds)
