"""Latent attention: values are the first dimensions of the keys, and two consumer groups share a tile of queries."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from backends.cute import latent_kernels as latent
from backends.cute.edited_roles import edited, without

import helion
from helion import exc
from helion.backends.cute.codegen.attention import finish
from helion.backends.cute.plan.attention.build import plan_attention
from helion.backends.cute.plan.attention.records import AttentionChoice
from helion.backends.cute.roles import grammar as g
from helion.backends.cute.roles.attention import grammar as a
from helion.backends.cute.roles.attention.programs import attention_program
from helion.backends.cute.shapes import shape_of_plan
from helion.backends.cute.verify.attention.machine import Machine
from helion.backends.cute.verify.attention.rules import execute
from helion.backends.cute.verify.attention.verify import verify_attention
from helion.backends.cute.verify.state import Fault
from helion.hardware import target

HOPPER = target("sm_90")


def close(found: Any, wanted: Any, limit: float = 6e-3) -> None:
    assert (found.double() - wanted).norm() < limit * wanted.norm()


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("static", [True, False])
def test_decoding(static: bool, scaled: bool) -> None:
    torch.manual_seed(static)
    config = helion.Config(block_sizes=[64, 64], wgmma_key_splits=3)
    for (dims, width), numbers in zip(latent.WIDTHS, (torch.int32, torch.int64, torch.int32), strict=True):
        given = (*latent.caches([200, 0, 77], 200, 100, dims, numbers=numbers), width, scaled)
        found = helion.kernel(latent.decoded, backend="cute", config=config, static_shapes=static)(*given)
        close(found, latent.of_decoded(*given))
        assert not found[1].any(), "a sequence without keys gives 0"


def test_pages_and_prefill() -> None:
    torch.manual_seed(3)
    given = (*latent.pages([150, 0, 64], 32, 5, 20, 576), 32, 512)
    close(helion.kernel(latent.paged, backend="cute", static_shapes=False)(*given), latent.of_paged(*given))
    q, cache, _ = latent.caches([130, 130], 130, 1, 320)
    q, gates = torch.randn(2, 3, 70, 320).bfloat16(), torch.rand(256) + 0.5
    found = helion.kernel(latent.causal, backend="cute")(q, cache, gates, 256)
    for one, other in zip(found, latent.of_causal(q, cache, gates, 256), strict=True):
        close(one, other)


def test_sequences_one_after_another() -> None:
    torch.manual_seed(4)
    given = latent.packed_of((100, 1, 130), (150, 40, 130), 576, 512)
    found = helion.kernel(latent.packed, backend="cute", static_shapes=False)(*given)
    for one, other in zip(found, latent.of_packed(*given), strict=True):
        close(one, other)


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize(("dims", "width"), [(576, 512), (192, 128)])
def test_scores_in_two_parts(dims: int, width: int, added: bool) -> None:
    torch.manual_seed(5)
    for static in (True, False):
        given = (*latent.caches([200, 0, 77], 200, 100, dims), width, added)
        close(helion.kernel(latent.summed, backend="cute", static_shapes=static)(*given), latent.of_decoded(*given))


def test_scores_in_two_parts_are_those_of_all_dimensions() -> None:
    """The kernel is the same, and is predicted to be as fast."""
    meta = [x.to("meta") for x in latent.caches([1] * 32, 8192, 128, 576)]
    plans, times = [], []
    for kernel in (latent.decoded, latent.summed):
        bound = helion.kernel(kernel, backend="cute").bind((*meta, 512, False), target="h200")
        plans.append(bound.plan().attention.problem)
        times.append(bound.seeds[0].predicted.time_us)
    assert plans[0] == plans[1] and times[0] == times[1]


@pytest.mark.parametrize(("dims", "width"), [(576, 512), (192, 128)])
def test_dimensions_in_two_tensors(dims: int, width: int) -> None:
    torch.manual_seed(6)
    for static in (True, False):
        given = latent.caches([200, 0, 77], 200, 100, dims)
        found = helion.kernel(latent.apart, backend="cute", static_shapes=static)(*latent.parts_of(*given, width))
        close(found, latent.of_decoded(*given, width))


@pytest.mark.parametrize(("batch", "n", "splits", "us"), [(32, 8192, 2, 177), (128, 4096, 1, 330), (1, 65536, 64, 74)])
def test_predicted_times_are_near_measured_ones(batch: int, n: int, splits: int, us: float) -> None:
    """Compare with an H200. More parts shorten the loop over keys, and take longer to combine."""
    meta = [x.to("meta") for x in latent.caches([1] * batch, 1, 128, 576)]
    given = (meta[0], torch.empty(batch, n, 576, dtype=torch.bfloat16, device="meta"), meta[2], 512, False)
    bound = helion.kernel(latent.decoded, backend="cute").bind(given, target="h200")
    (seed, *_) = (each for each in bound.seeds if each.config["wgmma_key_splits"] == splits)
    assert seed.predicted.time_us == pytest.approx(us, rel=0.3)


def test_two_tensors_fill_one_stage() -> None:
    """Both parts of a stage have the swizzles of the whole, one after another, and one barrier counts their bytes."""
    meta = [x.to("meta") for x in latent.parts_of(*latent.caches([1] * 32, 8192, 128, 576), 512)]
    bound = helion.kernel(latent.apart, backend="cute").bind(tuple(meta), target="h200")
    plan = bound.plan(bound.seeds[0].config)
    text = shape_of_plan(plan).kernel(plan).source
    for name, rows in (("q", 64), ("k", 64)):
        assert f"shared_{name}_rest = cute.make_tensor(shared_{name}.iterator + {512 * rows}, " in text
        assert f"tma_{name}_rest, from_{name}_rest[" in text
    assert attention_program(plan.attention).pipelines[0].counts.transaction_bytes == 64 * 576 * 2
    assert bound.seeds[0].config["wgmma_key_splits"] == 2


def test_two_tensors_have_whole_swizzles() -> None:
    given = latent.parts_of(*latent.caches([200, 77], 200, 100, 160), 128)
    with pytest.raises(exc.CuteUnsupported, match="128 dimensions of q and 32 of turned_q; multiples of 64"):
        helion.kernel(latent.apart, backend="cute").bind(given, target="sm_90")


def test_a_part_of_the_dimensions_of_a_head() -> None:
    """Narrow heads have copies of keys and of values, also where these are columns of one tensor."""
    given = (*latent.caches([100, 40], 100, 70, 128), 64, False)
    close(helion.kernel(latent.decoded, backend="cute")(*given), latent.of_decoded(*given))


def problem_of(dims: int = 576, width: int = 512, name: str = "decoded", scaled: bool = False) -> Any:
    meta = functools.partial(torch.empty, dtype=torch.bfloat16, device="meta")
    given: tuple[Any, ...] = (meta(2, 128, dims), meta(2, 8192, dims), torch.empty(2, dtype=torch.int32, device="meta"))
    given = (*given, width, scaled)
    if name == "causal":
        given = (meta(2, 4, 500, dims), meta(2, 800, dims), torch.empty(width, device="meta"), width)
    bound = helion.kernel(getattr(latent, name), backend="cute").bind(given, target="sm_90")
    return bound.plan().attention.problem


def plans() -> Any:
    for name, splits, scheduler in itertools.product(("decoded", "causal"), (1, 3), ("static", "dynamic")):
        if splits == 1 or (name, scheduler) == ("decoded", "static"):
            choice = AttentionChoice(groups=1, keys=64, lazy=True, splits=splits, scheduler=scheduler)  # type: ignore[arg-type]
            made = plan_attention(problem_of(name=name), choice, HOPPER)
            yield made
            if splits > 1:
                yield dataclasses.replace(made, combining=2)


def test_programs_are_right() -> None:
    for made in plans():
        program = attention_program(made)
        verify_attention(program)
        for seed in range(6):
            Machine(program, tiles=seed, seed=seed).run(execute)


def _without_barrier_after_queries(step: g.Step) -> tuple[g.Step, ...]:
    """Remove the barrier between the computed queries and the first MMAs, and not that before outputs."""
    if not isinstance(step, a.WorkLoop) or a.RowsSync() not in step.body:
        return (step,)
    at = step.body.index(a.RowsSync())
    return (dataclasses.replace(step, body=step.body[:at] + step.body[at + 1 :]),)


FAULTS = {
    "queries are overwritten while they are read": (
        "attend",
        without(a.RowsSync()),
        "overwrites queries|stale operands",
    ),
    "no wait for keys": ("attend", without(g.Wait("k_read")), "stale"),
    "keys are not released": ("attend", without(g.Release("k_read")), "deadlock"),
    "queries are not released": ("attend", without(g.Release("q_read")), "deadlock"),
    "no wait for MMAs": ("attend", without(g.WgmmaWait(0)), "released while|reads registers|while MMAs"),
    "no fence": ("attend", without(g.WgmmaFence()), "without a fence"),
    "no rescaling": ("attend", without(a.Rescale()), "has not been rescaled"),
    "weights are not rounded": ("attend", without(a.RoundWeights()), "overwrite|stale"),
    "no group barrier": ("attend", without(a.GroupSync()), "is stored while|overwrites|stale|is read as"),
    "no wait for stores": ("attend", without(g.StoreWait(0)), "being stored|leaves while"),
    "keys are loaded early": ("load", without(g.Acquire("k_fill")), "filled while|stale|negative|deadlock"),
    "queries are loaded early": (
        "load_rows",
        without(g.Acquire("q_fill")),
        "filled|stale|negative|deadlock|being stored",
    ),
    "queries are computed while they are read": ("attend", _without_barrier_after_queries, "before all warps"),
    "queries are computed twice": (
        "attend",
        lambda each: (each, each) if each == a.TransformQueries() else (each,),
        "or twice",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found(name: str) -> None:
    role, edit, message = FAULTS[name]
    scaled = problem_of(scaled=name.startswith("queries are computed"))
    for splits in (1, 3):
        made = plan_attention(scaled, AttentionChoice(groups=1, keys=64, splits=splits), HOPPER)
        changed = edited(attention_program(made), role, edit)
        with pytest.raises((Fault, AssertionError), match=message):
            verify_attention(changed)


def test_a_stage_has_keys_and_values() -> None:
    made = next(plans())
    assert (made.consumer_groups, made.output_columns, made.stages) == (2, 256, 2)
    program = attention_program(made)
    assert [each.name for each in program.pipelines][:2] == ["k", "q"]
    assert {each.counts.empty_arrivals for each in program.pipelines if each.name == "q"} == {2}


class Elements(list[float]):
    """Registers of a thread, which a printed function rounds at its end."""

    def load(self) -> Elements:
        return self

    def to(self, dtype: object) -> Elements:
        return self

    def store(self, values: Elements) -> None:
        self[:] = values


@pytest.mark.parametrize("combining", [1, 4])
def test_printed_outputs_of_a_group_are_its_columns(combining: int) -> None:
    """Run the printed end of a tile: both groups read the gates of their own columns, and one stores numbers per query."""
    problem = problem_of(320, 256, "causal")
    made = plan_attention(problem, AttentionChoice(groups=1, keys=64), HOPPER)
    made = dataclasses.replace(made, splits=combining, combining=combining)
    names: dict[str, Any] = {
        "cutlass": SimpleNamespace(Float32=float, BFloat16=None, min=min, select_=lambda c, x, y: x if c else y),
        "cute": SimpleNamespace(
            jit=lambda function: function,
            Tensor=None,
            arch=SimpleNamespace(rcp_approx=lambda x: 1 / x),
            math=SimpleNamespace(log=lambda x, **more: math.log(x)),
        ),
    }
    for lines in finish.finish_functions(made):
        exec("\n".join(lines).replace(".to(cutlass.Float32)", ""), names)
    (gates,) = (source for source in problem.finish.sources)
    for group, lane, split in itertools.product(range(2), (0, 5), range(combining)):
        stored: dict[Any, float] = {}
        values = {
            "output": Elements([float(e + 1) for e in range(64 // combining)]),
            "rounded_output": Elements(),
            "highest": [1.0, 2.0],
            "total": [2.0, 4.0],
            "first_query": 8,
            "lane": lane,
            "head_0": 1,
            "head_1": 3,
            "vector_logsum_4_output": stored,
            f"vector_{gates.label}": {(0, at): float(at) for at in range(256)},
        }
        (call,) = finish.finish_call(made, ("head_0", "head_1"))
        exec(call, {**names, **values, "group": group, "split": split})
        for e, found in enumerate(values["rounded_output"]):
            column = group * 128 + split * (128 // combining) + lane % 4 * 2 + e // 4 * 8 + e % 2
            assert found == pytest.approx((e + 1) / (2.0, 4.0)[e // 2 % 2] * column)
        assert len(stored) == (2 if group == split == 0 and lane % 4 == 0 else 0)


@pytest.mark.parametrize(
    ("dims", "width", "message"),
    [
        (576, 448, "first 448 are values; multiples of 64 and 128 up to 576 and 512"),
        (592, 512, "multiples of 64"),
        (640, 512, "up to 576 and 512"),
    ],
)
def test_other_widths_are_refused(dims: int, width: int, message: str) -> None:
    with pytest.raises(exc.CuteUnsupported, match=message):
        problem_of(dims, width)


def test_wide_values_of_another_tensor_are_refused() -> None:
    text = "heads of 576 dimensions; multiples of 16 up to 256 are implemented, or more where values are the first"
    wide = dataclasses.replace(problem_of(), latent=False)
    with pytest.raises(Exception, match=text):
        plan_attention(wide, AttentionChoice(groups=1, keys=64), HOPPER)


@pytest.mark.prove
@pytest.mark.parametrize("splits", [1, 2])
def test_binaries_are_neither_spilled_nor_serialized(splits: int) -> None:
    meta = functools.partial(torch.empty, dtype=torch.bfloat16, device="meta")
    rows, table = meta(30 * 64, 576), torch.empty(2, 15, dtype=torch.int32, device="meta")
    given = (meta(2, 128, 576), rows, table, torch.empty(2, dtype=torch.int32, device="meta"), 64, 512)
    bound = helion.kernel(latent.paged, backend="cute").bind(given, target="sm_90")
    found = bound.resources(helion.Config(block_sizes=[64, 64], wgmma_key_splits=splits, wgmma_lazy_rescale=True))
    assert found.spill_bytes == 0 and found.sass_counts["WARPGROUP"] <= 8
