"""The first call of a kernel without a config on a GPU: CPU tensors stand for those of a GPU, whose times are simulated."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime.jit import JITCallable

import helion
import helion.language as hl
from helion import exc
from helion._support.locks import TRITON_LOCK
from helion._support.nested import copy_tensors
from helion.autotuner import tuner
from helion.autotuner.cache.store import default_store
from helion.autotuner.measure.comparison import Verdict
from helion.autotuner.options import Options
from helion.autotuner.outcome import Status
from helion.autotuner.pool.threads import ThreadPool, left_running
from helion.backends.stub import stub_driver
from helion.backends.triton.toolchain.chain import TritonToolchain
from helion.runtime.specialization import binary_check
from helion.runtime.specialization.binary_check import BinaryResources
from helion.runtime.tuning import autotune, chosen_before, evaluator, first_call, session
from helion.runtime.tuning.candidates import start_configs
from helion.runtime.tuning.keys import key_of
from helion.runtime.tuning.session import Candidate, OfflineJob
from helion.runtime.variants import policies
from helion.settings import Settings

pytestmark = pytest.mark.usefixtures("as_on_a_gpu")

#: Long enough that no deadline passes on a busy machine.
LONG = 1e4
ROWS = torch.randn(3, 130) + 5.0


def shifted_rows(x: torch.Tensor) -> torch.Tensor:
    """Each row less its largest element."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = x[tile, :] - torch.amax(x[tile, :], dim=-1, keepdim=True)
    return out


def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A kernel that changes its second argument."""
    for tile in hl.tile(x.size(0)):
        y[tile, :] += x[tile, :]
    return y


SEEN: list[int] = []


def noted(x: torch.Tensor) -> torch.Tensor:
    """A kernel whose host code changes a global list."""
    SEEN.append(x.size(0))
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = x[tile, :] - torch.amax(x[tile, :], dim=-1, keepdim=True)
    return out


def check(found: torch.Tensor, x: torch.Tensor) -> None:
    torch.testing.assert_close(found, x - x.amax(-1, keepdim=True))


def kernel(function: Callable[..., Any] = shifted_rows, **settings: Any) -> Any:
    asked = {"autotune_progress_bar": False, "autotune_random_seed": 1, "first_call_seconds": LONG, **settings}
    return helion.kernel(function, settings=Settings(**asked))


def as_predicted(fast: helion.Config) -> Callable[[evaluator.Evaluator, helion.Config], Candidate]:
    def made(self: evaluator.Evaluator, config: helion.Config) -> Candidate:
        return Candidate(text=self._of.analysis.code(config).text, expected=5.0 if config == fast else 10.0)

    return made


def contending(monkeypatch: pytest.MonkeyPatch, of: Any, args: tuple[Any, ...], **other: Any) -> helion.Config:
    """Let one config contend that is simulated to be the fastest, and compile nothing."""
    bound = of.bind(args)
    config = bound.config_spec.normalize({**bound.default_config(), "num_warps": 16, **other})
    monkeypatch.setattr(first_call, "contenders", lambda of, default, times: [config])
    monkeypatch.setattr(first_call, "_threads", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(evaluator.Evaluator, "_candidate", as_predicted(config))
    return config


@pytest.fixture
def doubted(monkeypatch: pytest.MonkeyPatch) -> helion.Config:
    return contending(monkeypatch, kernel(), (ROWS,))


# --- the choice -------------------------------------------------------------------------------------------------------


def test_the_fastest_contender_runs_and_later_processes_remember_it(
    searches: list[int],
    doubted: helion.Config,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = kernel()
    check(first(ROWS), ROWS)
    assert first.bind((ROWS,)).config == doubted and searches == [2]
    assert "using a config near the seeds, which this call measured to be faster" in capsys.readouterr().err
    again = kernel()
    with monkeypatch.context() as patched:  # another process predicts nothing
        patched.setattr(first_call, "contenders", None)
        check(again(ROWS), ROWS)
    assert again.bind((ROWS,)).config == doubted and searches == [2]
    assert "seeds" not in vars(again.bind((ROWS,)).variant.analysis)
    monkeypatch.setenv("HELION_ASSERT_CACHE_HIT", "1")  # it is no config that somebody tuned
    with pytest.raises(exc.CacheAssertionError):
        kernel()(ROWS)
    monkeypatch.delenv("HELION_ASSERT_CACHE_HIT")
    check(kernel(autotune_effort="minimal")(ROWS), ROWS)
    assert len(searches) == 2


def test_the_default_runs_and_is_remembered_where_no_other_is_faster(
    searches: list[int], doubted: helion.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = kernel().bind((ROWS,)).default_config()
    monkeypatch.setattr(evaluator.Evaluator, "_candidate", as_predicted(default))
    for _ in range(2):
        one = kernel()
        check(one(ROWS), ROWS)
        assert one.bind((ROWS,)).config == default
    assert searches == [2]


def test_a_faster_config_with_other_results_is_refused(
    searches: list[int], doubted: helion.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = session.Session._loaded

    def wrong(self: session.Session, text: str) -> Callable[..., Any]:
        function = original(self, text)
        return (lambda x: function(x) + 1) if "num_warps=16" in text else function

    monkeypatch.setattr(session.Session, "_loaded", wrong)
    one = kernel()
    check(one(ROWS), ROWS)
    assert one.bind((ROWS,)).config == one.bind((ROWS,)).default_config() and searches == [2]
    store = default_store()
    assert store is not None
    (refused,) = [outcome for outcome in store.sweep(store.all()[0].key) if outcome.config == doubted]
    assert refused.status is Status.INACCURATE


def test_arguments_that_a_kernel_changes_are_changed_once(searches: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.randn(5, 33), torch.randn(5, 33)
    one, expected = kernel(added), x + y
    config = contending(monkeypatch, one, (x, y))
    torch.testing.assert_close(one(x, y), expected)
    torch.testing.assert_close(y, expected)
    assert one.bind((x, y)).config == config and searches == [2]


def test_host_code_with_effects_runs_once(searches: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    one = kernel(noted)
    contending(monkeypatch, one, (ROWS,))
    SEEN.clear()
    check(one(ROWS), ROWS)
    assert SEEN == [3] and searches == []


def test_explanations_show_the_times_of_the_first_call(doubted: helion.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    one = kernel()
    assert "timed at the first call" not in one.bind((ROWS,)).explain()
    original = chosen_before.key_of  # tensors of a CPU have simulated times
    monkeypatch.setattr(chosen_before, "key_of", lambda of, args, tag, measured=None: original(of, args, tag))
    one(ROWS)
    bound = one.bind((ROWS,))
    text = bound.explain()
    assert "timed at the first call:\n  5 µs: @helion.kernel" in text and "\n  10 µs: @helion.kernel" in text
    timed = json.loads(bound.explain("json"))["timed"]
    assert [each["microseconds"] for each in timed] == pytest.approx([5.0, 10.0], rel=0.05)
    assert timed[0]["config"]["num_warps"] == 16


# --- calls that measure nothing ---------------------------------------------------------------------------------------

LEFT_ALONE = {
    "effort none": {"autotune_effort": "none"},
    "no seconds": {"first_call_seconds": 0},
    "a filter": {"autotune_config_filter": lambda config: True},
    "a baseline": {"autotune_baseline_fn": lambda x: x},
}


@pytest.mark.parametrize("settings", LEFT_ALONE.values(), ids=list(LEFT_ALONE))
def test_what_users_decide_is_left_to_them(
    searches: list[int], doubted: helion.Config, settings: dict[str, Any]
) -> None:
    check(kernel()(ROWS), ROWS)
    one = kernel(**settings)
    check(one(ROWS), ROWS)
    assert searches == [2]  # nothing is remembered for it either
    assert one.bind((ROWS,)).config == one.bind((ROWS,)).default_config()


def test_the_seconds_are_a_variable_and_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().first_call_seconds == 1.0
    monkeypatch.setenv("HELION_FIRST_CALL_SECONDS", "0.25")
    assert Settings().first_call_seconds == 0.25
    monkeypatch.setenv("HELION_FIRST_CALL_SECONDS", "-1")
    with pytest.raises(ValueError, match="HELION_FIRST_CALL_SECONDS='-1': expected a number of seconds"):
        Settings()
    monkeypatch.delenv("HELION_FIRST_CALL_SECONDS")
    for wrong in (-1, float("nan"), float("inf"), True, "1"):
        with pytest.raises(TypeError, match="first_call_seconds must be a number of seconds that is not negative"):
            Settings(first_call_seconds=wrong)


def test_calls_that_must_be_the_same_everywhere_or_are_recorded_measure_nothing(
    searches: list[int], doubted: helion.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def untuned(at: int) -> None:
        x = ROWS[:, :at].clone()
        check(kernel()(x), x)
        assert searches == []

    with torch.inference_mode():
        untuned(3)
    with stub_driver():
        kernel()(ROWS[:, :4].clone())
    torch.use_deterministic_algorithms(True)
    try:
        untuned(5)
    finally:
        torch.use_deterministic_algorithms(False)
    with monkeypatch.context() as patched:
        patched.setattr(torch.distributed, "is_initialized", lambda: True)
        patched.setattr(torch.distributed, "get_world_size", lambda: 2)
        untuned(6)
    with monkeypatch.context() as patched:
        for name in ("is_initialized", "is_current_stream_capturing"):
            patched.setattr(torch.cuda, name, lambda: True)
        untuned(7)
    with monkeypatch.context() as patched:
        patched.setenv("HELION_DISALLOW_AUTOTUNING", "1")
        untuned(8)
    with monkeypatch.context() as patched:  # as while another thread measures
        patched.setattr(first_call, "_UNDER_WAY", threading.Lock())
        with first_call._UNDER_WAY:
            untuned(9)
    recorded = kernel()
    torch.compile(recorded, backend="eager", fullgraph=True)(ROWS)
    assert searches == [] and recorded.is_in_graphs


def test_measuring_that_goes_wrong_costs_the_call_nothing(
    searches: list[int], doubted: helion.Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(autotune, "copy_tensors", broken)
    check(kernel()(ROWS), ROWS)
    assert "an error of the kernel" not in capsys.readouterr().err
    monkeypatch.setattr(autotune, "copy_tensors", copy_tensors)
    monkeypatch.setattr(evaluator.Evaluator, "finish", interrupted)
    with pytest.raises(KeyboardInterrupt):  # it was meant for the program
        kernel(first_call_seconds=2 * LONG)(ROWS)


def broken(*args: Any) -> Any:
    raise RuntimeError("an error of the kernel")


def interrupted(*args: Any) -> Any:
    raise KeyboardInterrupt


# --- the contenders ---------------------------------------------------------------------------------------------------

#: Times of a first call that never end, and of one that has no time to predict.
ENDLESS = first_call.Times(compiling=0.0, predicting=float("inf"), timing=float("inf"), end=float("inf"))
LATE = dataclasses.replace(ENDLESS, predicting=0.0)


def test_contenders_have_other_code_and_are_predicted_to_fit() -> None:
    bound = kernel().bind((torch.empty(4096, 5000, device="meta"),), target="h200")
    of, default = bound.variant.specialized, bound.default_config()
    found = first_call.contenders(of, default, ENDLESS)
    assert len(found) == first_call.MOST and default not in found
    texts = [of.analysis.code(config).text for config in (default, *found)]
    assert len(set(texts)) == len(texts)
    assert all(of.analysis.predict(config).fits for config in found)
    assert {config["num_stages"] for config in found} == {default["num_stages"]}  # without matmuls it has no effect
    assert first_call.contenders(of, default, ENDLESS) == found  # the same in every process
    seeds = {seed.config for seed in bound.seeds}
    assert not seeds.issuperset(found)
    assert seeds.issuperset(first_call.contenders(of, default, LATE))


def test_predicted_spills_count_by_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The assembler spills less often than is predicted."""
    bound = kernel().bind((torch.empty(4096, 5000, device="meta"),), target="h200")
    of, default = bound.variant.specialized, bound.default_config()
    first, predict = first_call.contenders(of, default, ENDLESS)[0], type(of.analysis).predict

    def spilling(self: Any, config: helion.Config) -> Any:
        found = predict(self, config)
        return dataclasses.replace(found, spill_risk=1.0) if config == first else found

    monkeypatch.setattr(type(of.analysis), "predict", spilling)
    assert of.analysis.predict(first).spills
    assert first in first_call.contenders(of, default, ENDLESS)


def test_kernels_that_run_too_long_have_no_contenders(monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds, any_contends in ((1.0, False), (10.0, True)):
        bound = kernel(first_call_seconds=seconds).bind((torch.empty(4096, 5000, device="meta"),), target="h200")
        of, default = bound.variant.specialized, bound.default_config()
        predict = type(of.analysis).predict
        with monkeypatch.context() as patched:
            patched.setattr(
                type(of.analysis),
                "predict",
                lambda self, config, predict=predict: dataclasses.replace(predict(self, config), time_us=2e5),
            )
            assert bool(first_call.contenders(of, default, ENDLESS)) == any_contends


def test_longer_code_is_expected_to_compile_for_longer_by_less_than_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = kernel().bind((torch.empty(4096, 5000, device="meta"),), target="h200")
    of, first = bound.variant.specialized, bound.default_config()
    other = bound.config_spec.normalize({**first, "num_warps": 16})
    for ratio, waits in ((1.0, False), (0.25, False), (4.0, True)):
        submitted: list[dict[str, Any]] = []
        pool = types.SimpleNamespace(submit=lambda *_, into=submitted, **given: into.append(given))
        lengths = {first: 100.0, other: 100.0 * ratio}
        monkeypatch.setattr(first_call, "_code_length", lambda of, config, of_each=lengths: of_each[config])
        first_call._submit(of, pool, first, [other], ENDLESS)
        (given,) = submitted
        assert given["waits"] == waits and given["longer"] == (1.0 if ratio <= 1.0 else pytest.approx(2.3, abs=0.1))


def test_a_backend_that_compiles_one_at_a_time_has_seeds_that_are_predicted_to_be_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TritonToolchain, "together", lambda self: None)
    bound = kernel(first_call_seconds=1.0).bind((torch.empty(20000, 1000, device="meta"),), target="h200")
    seeds, of = bound.seeds, bound.variant.specialized
    by_time = sorted(seeds, key=lambda seed: seed.predicted.time_us)
    fastest, slowest = by_time[0], by_time[-1]
    assert len(seeds) > 1 and fastest.predicted.time_us < slowest.predicted.time_us

    def found(config: helion.Config, compiling: float) -> list[helion.Config]:
        return first_call.contenders(of, config, dataclasses.replace(ENDLESS, compiling=compiling))

    assert found(fastest.config, 0.01) == []
    several = found(slowest.config, 0.01)
    assert several[0] == fastest.config and len(several) <= 2 and slowest.config not in several
    assert found(slowest.config, 0.5) == [fastest.config]
    assert found(slowest.config, 0.7) == []  # there is no time for a second compilation
    assert found(slowest.config, 0.0) == []  # it may take longer than that: the first one was not compiled here


def test_the_most_promising_contenders_are_compiled_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the first compilations waits for the other to have begun."""
    meeting = threading.Barrier(2, timeout=600.0)
    original, compiled = OfflineJob.run_within, []

    def met(self: OfflineJob, seconds: float | None) -> Any:
        if len(compiled) < 2:
            meeting.wait()
        compiled.append(original(self, seconds))
        return compiled[-1]

    monkeypatch.setattr(OfflineJob, "run_within", met)
    monkeypatch.setattr(first_call, "cpus", lambda: 16)
    monkeypatch.setattr(first_call, "MOST", 2)
    one = kernel()
    check(one(ROWS), ROWS)
    assert len(compiled) == 2 and all(resources.fits for resources in compiled)


def launching(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls with CPU tensors compile what they would launch, on a machine with processors for it."""
    monkeypatch.setattr(policies, "launches_on_gpu", lambda values: True)
    monkeypatch.setattr(first_call, "cpus", lambda: 16)


def test_contenders_are_compiled_along_with_the_default(
    searches: list[int], doubted: helion.Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Both compilations wait for the other at a late stage; neither is done twice."""
    meeting, texts = threading.Barrier(2, timeout=600.0), []
    original, stage = OfflineJob.run_within, CUDABackend.make_ptx

    def begun(self: OfflineJob, seconds: float | None) -> Any:
        texts.append(self.text)
        return original(self, seconds)

    def met(*args: Any) -> Any:
        meeting.wait()
        return stage(*args)

    monkeypatch.setattr(OfflineJob, "run_within", begun)
    monkeypatch.setattr(CUDABackend, "make_ptx", met)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(first_call, "_threads", None)
    launching(monkeypatch)
    one = kernel()
    check(one(ROWS), ROWS)
    bound = one.bind((ROWS,))
    assert len(texts) == 2 and texts[0] == bound.variant.analysis.code(bound.default_config()).text
    assert bound.config == doubted and searches == [2]
    remembered(monkeypatch, doubted, searches)


def test_contenders_that_begin_too_late_are_not_compiled(
    searches: list[int], doubted: helion.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But those are that are predicted to be clearly faster."""
    submitted: list[int] = []
    original = first_call._submit

    def counted(of: Any, pool: Any, first: Any, others: Any, times: Any) -> None:
        submitted.append(len(others))
        original(of, pool, first, others, times)

    monkeypatch.setattr(first_call, "_submit", counted)
    launching(monkeypatch)
    for part, faster, expected in ((0.35, False, 1), (0.0, False, 0), (0.0, True, 1)):
        monkeypatch.setattr(first_call, "_COMPILING_ALONG", part)
        monkeypatch.setattr(
            first_call, "_worth_timing", lambda of, best, others, all_of=faster: others if all_of else []
        )
        x = ROWS[: 1 + len(submitted)].clone()
        check(kernel(first_call_seconds=LONG + len(submitted))(x), x)
        assert submitted[-1] == expected
    assert len(searches) == 2


@pytest.mark.parametrize("part, waits", [(1.5, True), (0.0, False)])
def test_contenders_are_waited_for_up_to_a_time_after_the_call_begins(
    searches: list[int], doubted: helion.Config, monkeypatch: pytest.MonkeyPatch, part: float, waits: bool
) -> None:
    until: list[float] = []
    original = ThreadPool.take_at

    def noted(self: ThreadPool, at: float) -> None:
        until.append(at - time.monotonic())
        original(self, at)

    monkeypatch.setattr(ThreadPool, "take_at", noted)
    monkeypatch.setattr(first_call, "_ASSEMBLING_ALONG", part)
    launching(monkeypatch)
    x = ROWS.clone()
    check(kernel(first_call_seconds=LONG if waits else 1.0)(x), x)
    assert (until[0] > 100.0) if waits else (until[0] <= 0.0)


def test_the_contenders_of_a_default_whose_binary_is_refused_are_not_measured(
    searches: list[int], doubted: helion.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = binary_check._resources_of
    default = kernel().bind((ROWS,)).default_config()

    def refused(compiled: Any, config: helion.Config, seconds: float | None) -> Any:
        found = original(compiled, config, seconds)
        return BinaryResources(refusal="does not fit") if config == default else found

    monkeypatch.setattr(binary_check, "_resources_of", refused)
    measured: list[helion.Config] = []
    monkeypatch.setattr(first_call, "_decided", lambda of, args, config, *_: measured.append(config) or config)
    launching(monkeypatch)
    one = kernel()
    check(one(ROWS), ROWS)
    assert measured == [one.bind((ROWS,)).config] != [default] and searches == []


def test_a_failure_of_what_compiles_along_costs_the_call_nothing(
    searches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def failing(*_: Any) -> list[helion.Config]:
        asked.append(True)
        if len(asked) == 1:
            raise RuntimeError("no such config")
        return []

    monkeypatch.setattr(first_call, "contenders", failing)
    launching(monkeypatch)
    one = kernel()
    check(one(ROWS), ROWS)
    assert len(asked) == 2 and one.bind((ROWS,)).config == one.bind((ROWS,)).default_config()
    assert not first_call._UNDER_WAY._is_owned()


# --- what is remembered -----------------------------------------------------------------------------------------------


def pooled(pool: ThreadPool) -> Callable[..., Any]:
    """Stand for the threads of a first call: submit the jobs, and wait for them at the end."""

    @contextlib.contextmanager
    def threads(of: Any, first: helion.Config, others: list[helion.Config], times: Any) -> Iterator[ThreadPool]:
        yield pool
        pool.close()

    return threads


def remembered(monkeypatch: pytest.MonkeyPatch, expected: helion.Config, searches: list[int]) -> None:
    """Check that another process uses a config, and predicts and measures nothing."""
    count, other = len(searches), kernel()
    with monkeypatch.context() as patched:
        patched.setattr(first_call, "measured", None)
        patched.setattr(policies, "launches_on_gpu", lambda values: True)
        check(other(ROWS), ROWS)
    assert other.bind((ROWS,)).config == expected and len(searches) == count
    assert "seeds" not in vars(other.bind((ROWS,)).variant.analysis)


def test_what_never_began_to_compile_is_not_tried_again(
    searches: list[int], doubted: helion.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = kernel().bind((ROWS,)).default_config()
    monkeypatch.setattr(
        first_call, "_threads", pooled(ThreadPool(lambda function, _: function(), 1, 0.0, compiled=(default,)))
    )
    check(kernel()(ROWS), ROWS)
    assert searches == [2]
    remembered(monkeypatch, default, searches)


def called_with_a_late_contender(monkeypatch: pytest.MonkeyPatch, default: helion.Config) -> Any:
    """Return a kernel whose first call has ended before its only contender was compiled."""
    begun, polled = threading.Event(), threading.Event()
    late = ThreadPool(lambda function, _: function(), 1, float("inf"), compiled=(default,))

    def compiling(self: OfflineJob, seconds: float | None) -> None:
        begun.set()
        polled.wait()

    def poll(seconds: float) -> list[Any]:
        begun.wait()
        late._until = 0.0
        found = ThreadPool.poll(late, seconds)
        polled.set()
        return found

    with monkeypatch.context() as patched:
        patched.setattr(OfflineJob, "run_within", compiling)
        patched.setattr(late, "poll", poll)
        patched.setattr(first_call, "_threads", pooled(late))
        one = kernel()
        check(one(ROWS), ROWS)
    return one


@pytest.mark.parametrize("is_faster", [True, False])
def test_what_compiled_late_is_timed_at_the_end_and_by_no_other_process(
    searches: list[int], doubted: helion.Config, monkeypatch: pytest.MonkeyPatch, is_faster: bool
) -> None:
    default = kernel().bind((ROWS,)).default_config()
    if not is_faster:
        monkeypatch.setattr(evaluator.Evaluator, "_candidate", as_predicted(default))
    monkeypatch.setattr(first_call, "_LESS", float("inf"))
    one = called_with_a_late_contender(monkeypatch, default)
    best = doubted if is_faster else default
    assert one.bind((ROWS,)).config == best and searches == [2, 2]
    store = default_store()
    assert store is not None
    statuses = {outcome.config: outcome.status for outcome in store.sweep(store.all()[0].key)}
    assert statuses == {default: Status.OK, doubted: Status.OK}
    remembered(monkeypatch, best, searches)


def test_what_compiled_late_is_forgotten_if_it_is_not_predicted_to_be_faster(
    searches: list[int], doubted: helion.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = kernel().bind((ROWS,)).default_config()
    called_with_a_late_contender(monkeypatch, default)
    remembered(monkeypatch, default, searches)


def test_a_contender_that_is_late_and_not_wanted_is_left_in_its_stage(
    searches: list[int], doubted: helion.Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The call returns with all that compilations share as it was. Others compile meanwhile, and the late one ends early."""
    begun, go, assembled = threading.Event(), threading.Event(), list[int]()
    lower, emit, take_at = CUDABackend.make_llir, CUDABackend.make_ptx, ThreadPool.take_at

    def lowered(self: Any, source: Any, metadata: Any, *args: Any) -> Any:
        if metadata["num_warps"] == 16:
            begun.set()
            assert go.wait(600.0)
        return lower(self, source, metadata, *args)

    def emitted(self: Any, source: Any, metadata: Any, *args: Any) -> Any:
        assembled.append(metadata["num_warps"])
        return emit(self, source, metadata, *args)

    def at_once(self: ThreadPool, until: float) -> None:
        begun.wait()
        take_at(self, 0.0)

    for owner, name, function in (
        (CUDABackend, "make_llir", lowered),
        (CUDABackend, "make_ptx", emitted),
        (ThreadPool, "take_at", at_once),
        (first_call, "_worth_timing", lambda *_: []),
    ):
        monkeypatch.setattr(owner, name, function)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    launching(monkeypatch)
    shared = (CUDABackend.add_stages, JITCallable.parse, sys.getswitchinterval())
    one, before = kernel(), left_running()
    try:
        check(one(ROWS), ROWS)
        bound = one.bind((ROWS,))
        default, warps = bound.default_config(), bound.default_config()["num_warps"]
        assert bound.config == default and searches == [2] and left_running() == before + 1
        assert shared == (CUDABackend.add_stages, JITCallable.parse, sys.getswitchinterval())
        for lock in (TRITON_LOCK, first_call._UNDER_WAY, bound.variant.compiled.lock):
            assert not lock._is_owned() and lock.acquire(blocking=False)
            lock.release()
        assert kernel().bind((ROWS[:, :9].clone(),)).variant.compiled.resources(default).fits
        assert assembled == [warps, warps] and left_running() == before + 1
    finally:
        go.set()
    while left_running() > before:
        time.sleep(0.001)
    assert assembled == [warps, warps]
    remembered(monkeypatch, default, searches)


def test_only_those_are_waited_for_that_may_be_faster_than_the_default_and_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others have no time of their own after the deadline: they give up before their next stage."""
    first, best, *others = (helion.Config(num_warps=1 << at) for at in range(6))
    faster = {first: others[:2], best: others[1:3]}
    monkeypatch.setattr(
        first_call, "_worth_timing", lambda of, than, some: [each for each in some if each in faster[than]]
    )
    asked: list[helion.Config] = []

    def late(keys: list[helion.Config]) -> list[Any]:
        asked.extend(keys)
        return [types.SimpleNamespace(key=key) for key in keys]

    pool: Any = types.SimpleNamespace(in_flight=lambda: others, late=late)
    of: Any = None
    assert first_call._late(of, first, best, pool) == asked == [others[1]]


UNTIMED = {"none contends": {}, "one compilation takes all the time": {"compiling": 2 * LONG}}


def test_a_contender_that_does_not_compile_costs_itself(
    searches: list[int], doubted: helion.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = kernel().bind((ROWS,)).default_config()
    pool = ThreadPool(lambda function, _: function(), 1, float("inf"), compiled=(default,))
    monkeypatch.setattr(first_call, "_threads", pooled(pool))
    monkeypatch.setattr(OfflineJob, "run_within", broken)
    check(kernel()(ROWS), ROWS)
    assert searches == [2]
    remembered(monkeypatch, default, searches)
    store = default_store()
    assert store is not None
    failed = {each.config: each.detail for each in store.sweep(store.all()[0].key) if each.status is Status.FAILED}
    assert failed == {doubted: "an error of the kernel"}


def test_searches_begin_with_what_the_first_call_chose_and_its_candidates(
    searches: list[int], doubted: helion.Config
) -> None:
    first = kernel()
    check(first(ROWS), ROWS)
    of = first.bind((ROWS,)).variant.specialized
    store, key = default_store(), key_of(of, (ROWS,))
    quick, full = (start_configs(of, Options.of(of.settings, name, {}), store, key) for name in ("quick", "full"))
    seeds = [seed.config for seed in of.analysis.seeds.seeds]
    assert quick == full and quick[0] == of.analysis.default_config and {doubted, *seeds} <= set(quick)


@pytest.mark.parametrize("case", UNTIMED.values(), ids=list(UNTIMED))
def test_a_choice_without_times_is_remembered_too(
    searches: list[int], monkeypatch: pytest.MonkeyPatch, case: dict[str, float]
) -> None:
    if case:
        original = first_call.Times.of
        monkeypatch.setattr(first_call.Times, "of", lambda seconds, compiling: original(seconds, case["compiling"]))
    monkeypatch.setattr(first_call, "contenders", None if case else lambda *_: [])
    check(kernel()(ROWS), ROWS)
    monkeypatch.setattr(first_call, "contenders", None)
    remembered(monkeypatch, kernel().bind((ROWS,)).default_config(), searches)
    assert searches == []
    asked: list[bool] = []
    monkeypatch.setattr(first_call, "contenders", lambda *_: asked.append(True) or [])
    check(kernel(first_call_seconds=9 * LONG)(ROWS), ROWS)  # more time may suffice
    assert asked


def test_a_comparison_without_times_is_remembered(
    searches: list[int], doubted: helion.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuner, "compared", lambda *_: Verdict(replaces=False, times={}))
    check(kernel()(ROWS), ROWS)
    remembered(monkeypatch, kernel().bind((ROWS,)).default_config(), searches)


def test_an_error_is_remembered_as_well(
    searches: list[int], doubted: helion.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autotune, "copy_tensors", broken)
    check(kernel()(ROWS), ROWS)
    remembered(monkeypatch, kernel().bind((ROWS,)).default_config(), searches)


PASSING = (OSError("no space left on device"), torch.OutOfMemoryError("CUDA out of memory"), MemoryError())


@pytest.mark.parametrize("error", PASSING, ids=lambda error: type(error).__name__)
def test_an_error_of_the_moment_is_not_remembered(
    searches: list[int], doubted: helion.Config, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def full(*_: Any) -> Any:
        raise error

    default = kernel().bind((ROWS,)).default_config()
    with monkeypatch.context() as patched:
        patched.setattr(autotune, "copy_tensors", full)
        one = kernel()
        check(one(ROWS), ROWS)
    assert one.bind((ROWS,)).config == default
    check(kernel()(ROWS), ROWS)
    remembered(monkeypatch, doubted, searches)


def test_a_contender_without_memory_is_measured_by_the_next_process(
    searches: list[int], doubted: helion.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = session.Session._loaded

    def full(self: session.Session, text: str) -> Callable[..., Any]:
        if "num_warps=16" in text:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(self, text)

    default = kernel().bind((ROWS,)).default_config()
    with monkeypatch.context() as patched:
        patched.setattr(session.Session, "_loaded", full)
        one = kernel()
        check(one(ROWS), ROWS)
    assert one.bind((ROWS,)).config == default
    check(kernel()(ROWS), ROWS)
    remembered(monkeypatch, doubted, searches)
