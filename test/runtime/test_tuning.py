"""Tuning bound kernels with no GPU: candidates are compiled for an H100 and run in the interpreter of a process that may
die, and times are simulated."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sample_kernels import softmax

import helion
import helion.language as hl
from helion import exc
from helion._testing import import_path
from helion.autotuner.cache.rows import Entry, Key, exported, merged
from helion.autotuner.cache.store import default_store
from helion.autotuner.measure.accuracy import Tolerance, difference
from helion.autotuner.options import Options
from helion.autotuner.outcome import Outcome, Status
from helion.autotuner.pool.children import ForkServer, shared_fork_server
from helion.runtime.bound import kept_entry
from helion.runtime.tuning import autotune, evaluator, loaded
from helion.runtime.tuning.bench import Bench, DirectBench
from helion.runtime.tuning.candidates import start_configs
from helion.runtime.tuning.keys import key_of
from helion.runtime.tuning.session import NEEDED, Candidate, Task, fork_server_of


def scale_in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(y)
    for tile in hl.tile(x.size(0)):
        x[tile] = x[tile] * 2
        out[tile] = y[tile] + x[tile]
    return out


GOOD = """
import torch
def kernel(x, y, *, _launcher=None):
    {before}
    x.mul_(2)
    out = torch.empty_like(y)
    {wrong}
    torch.add(x, y, out=out)
    {after}
    return out
"""
FAULTS = {
    "raises": ({"before": "raise RuntimeError('bad candidate')"}, Status.FAILED, "RuntimeError: bad candidate"),
    "segfaults": ({"before": "import os; os.kill(os.getpid(), 11)"}, Status.CRASHED, "crashed"),
    "aborts": ({"before": "import os; os.abort()"}, Status.CRASHED, "crashed"),
    "hangs": ({"before": "import time; time.sleep(1000)"}, Status.TIMED_OUT, "no answer within"),
    "exhausts memory": ({"before": "torch.empty(2**60, dtype=torch.int8)"}, Status.FAILED, "RuntimeError"),
    "is wrong": ({"after": "out[5] += 1"}, Status.INACCURATE, "result 0 "),
    "is not finite": ({"after": "out[5] = float('nan')"}, Status.INACCURATE, "NaN"),
    "writes nothing": ({"wrong": "return out"}, Status.INACCURATE, "NaN"),
    "spoils its input": ({"after": "y[3] = 100"}, Status.INACCURATE, "argument: result 1"),
    "writes before": ({"after": "out.as_strided((1,), (1,), out.storage_offset() - 1).fill_(0)"}, Status.INACCURATE, "writes outside"),
    "writes behind": ({"after": "y.as_strided((1,), (1,), y.storage_offset() + 64).fill_(0)"}, Status.INACCURATE, "writes outside"),
}  # fmt: skip


def task(**changes: Any) -> Task:
    x, y = torch.randn(64), torch.randn(64)
    after = (x * 2, y.clone())
    made = Task(
        name="kernel",
        backend="triton",
        args=(x, y),
        expected=x * 2 + y,
        changed=after,
        tolerance=Tolerance(),
        device=torch.device("cpu"),
        seed=0,
    )
    return dataclasses.replace(made, **changes)


def candidate(**lines: str) -> Candidate:
    return Candidate(text=GOOD.format(**{"before": "", "wrong": "", "after": "", **lines}), expected=7.0)


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    with ForkServer(NEEDED) as started:
        yield started


def test_a_faulty_candidate_loses_itself_only(fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(lambda: fork_server, task(), 600.0)
    for name, (lines, status, detail) in FAULTS.items():
        with monkeypatch.context() as patch:
            if name == "hangs":
                patch.setattr(bench, "_seconds", 1.0)
            trial = bench.run(candidate(**lines), 1e9)
        assert (trial.status, detail in trial.detail) == (status, True), (name, trial)
        good = bench.run(candidate(), 1e9)
        assert good.status is Status.OK and good.microseconds == pytest.approx(7.0, rel=0.1), (name, good)
    bench.close()


def test_a_candidate_is_run_by_the_next_fork_server() -> None:
    current = functools.partial(shared_fork_server, NEEDED)
    bench = Bench(current, task(), 600.0)
    assert bench.run(candidate(), 1e9).status is Status.OK
    os.kill(current().pid, signal.SIGKILL)
    assert bench.run(candidate(), 1e9).status is Status.OK
    bench.close()


def test_within_this_process_inputs_stay_what_they_are() -> None:
    given = task()
    before = [tensor.clone() for tensor in given.args]
    bench = DirectBench(given)
    for name in ("raises", "is wrong", "writes nothing", "spoils its input", "writes before"):
        lines, status, _ = FAULTS[name]
        assert bench.run(candidate(**lines), 1e9).status is status
        assert all(map(torch.equal, given.args, before))
    assert bench.run(candidate(), 1e9).status is not Status.INACCURATE or bench.run(candidate(), 1e9).fatal


def test_arguments_that_share_memory_still_do(fork_server: ForkServer) -> None:
    whole = torch.randn(128)
    x, y = whole[:64], whole[32:96]
    changed = whole.clone()
    changed[:64] *= 2
    shared = task(args=(x, y), expected=changed[:64] + changed[32:96], changed=(changed[:64], changed[32:96]))
    bench = Bench(lambda: fork_server, shared, 600.0)
    assert bench.run(candidate(), 1e9).status is Status.OK
    assert [list(row) for row in bench.turns([candidate(), candidate()], 3).rows] == [[0, 1]] * 3
    bench.close()


@pytest.fixture
def empty_store(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELION_CACHE_DIR", str(tmp_path))
    loaded.forget_loaded()


QUIET = {"simulated": True, "progress": False, "workers": 2}


def with_noise(x: torch.Tensor, rows: int) -> torch.Tensor:
    """Draws on the host and in the kernel, and writes some rows only."""
    noise, out = torch.rand_like(x), torch.empty_like(x)
    for tile in hl.tile(rows):
        out[tile, :] = x[tile, :] + noise[tile, :] * (torch.rand_like(x[tile, :]) > 0.5)
    return out


def test_random_numbers_and_rows_that_nobody_writes_are_compared_and_the_users_stay(empty_store: None) -> None:
    x, kernel = torch.randn(20, 33), helion.kernel(with_noise)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    kernel.autotune((x, 11), effort="minimal", **QUIET)
    assert torch.equal(torch.rand(3), expected)
    found = kernel.autotune((x, 11), configs=4, random_seed=2, isolated=False, **QUIET)
    entry = kept_entry(kernel.bind((x, 11)), (x, 11))
    assert entry is not None and entry.row.config == found
    assert {outcome.status for outcome in entry.sweep} == {Status.OK}


def test_a_kernel_is_tuned_and_the_answer_kept(empty_store: None, capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.randn(33, 100)
    kernel = helion.kernel(softmax)
    config = kernel.autotune((x,), configs=5, random_seed=1, **{**QUIET, "progress": True})
    said = capsys.readouterr().err
    assert "helion: tuned softmax on sm_90: " in said and "@helion.kernel(config=" in said
    assert kernel.bind((x,)).config == config
    torch.testing.assert_close(kernel(x), torch.softmax(x, -1))
    store = default_store()
    assert store is not None
    (row,) = store.all()
    assert row.config == config and row.tried == 5 and len(store.sweep(row.key)) == 5
    again = helion.kernel(softmax)
    assert again.autotune((x,), force=False, **QUIET) == config
    assert len(store.all()) == 1


def test_a_search_that_does_not_end_is_gone_on_with(empty_store: None, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(33, 100)
    finish = evaluator.Evaluator.finish
    tried: list[helion.Config] = []

    def ending(self: evaluator.Evaluator) -> Outcome:
        if len(tried) == 6:
            raise SystemExit("the machine goes down")
        outcome = finish(self)
        tried.append(outcome.config)
        return outcome

    monkeypatch.setattr(autotune.SweepKeeper, "INTERVAL", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(evaluator.Evaluator, "finish", ending)
        with pytest.raises(SystemExit):
            helion.kernel(softmax).autotune((x,), configs=9, random_seed=1, isolated=False, **QUIET)
    store, bound = default_store(), helion.kernel(softmax).bind((x,))
    assert store is not None and not store.all()
    key = key_of(bound.variant.specialized, (x,))
    assert key is not None and {outcome.config for outcome in store.sweep(key)} == set(tried)
    working = sorted((o for o in store.sweep(key) if o.microseconds is not None), key=lambda outcome: outcome.time)
    starts = start_configs(bound.variant.specialized, Options(), store, key)
    assert set(starts) >= {outcome.config for outcome in working[:4]} and starts[0] == bound.default_config()


@helion.kernel
def applied(x: torch.Tensor, function: hl.constexpr) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = function(x[tile])
    return out


def test_a_function_among_the_arguments_is_recognized_by_its_code(tmp_path: Path) -> None:
    def key(name: str, body: str) -> Key | None:
        file = tmp_path / f"{name}.py"
        file.write_text(f"def function(x):\n    return {body}\n")
        args = (torch.empty(64), import_path(file).function)
        return key_of(applied.bind(args).variant.specialized, args)

    first, same, other = key("first", "x * 3"), key("same", "x * 3"), key("other", "x * 4")
    assert first is not None and first == same and first != other


def test_tuning_is_repeatable(empty_store: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELION_SKIP_CACHE", "1")
    x, y = torch.randn(64), torch.randn(64)
    found = [
        helion.kernel(scale_in_place).autotune((x, y), configs=6, random_seed=3, isolated=False, **QUIET)
        for _ in range(2)
    ]
    assert found[0] == found[1] and default_store() is None


def test_inputs_are_what_they_were(empty_store: None) -> None:
    x, y = torch.randn(64), torch.randn(64)
    before = x.clone(), y.clone()
    helion.kernel(scale_in_place).autotune((x, y), effort="minimal", **QUIET)
    assert torch.equal(x, before[0]) and torch.equal(y, before[1])


def test_configs_of_a_file_are_used(empty_store: None, tmp_path: Any) -> None:
    x = torch.randn(33, 100)
    kernel = helion.kernel(softmax)
    tuned = kernel.autotune((x,), effort="minimal", **QUIET)
    store = default_store()
    assert store is not None
    (row,) = store.all()
    other = kernel.bind((x,)).config_spec.normalize({"block_sizes": [4], "num_warps": 8})
    file = tmp_path / "configs.json"
    stale = dataclasses.replace(row.key, versions="of long ago", space="another")
    file.write_text(exported([Entry(row=dataclasses.replace(row, key=stale, config=other))]))
    assert helion.load_configs(file) == 1
    fresh = helion.kernel(softmax)
    torch.testing.assert_close(fresh(x), torch.softmax(x, -1))
    assert fresh.bind((x,)).config == other != tuned
    elsewhere = torch.randn(5, 7)
    fresh(elsewhere)
    bound = fresh.bind((elsewhere,))
    assert bound.config == bound.default_config()
    file.write_text("{}")
    with pytest.raises(exc.InvalidConfig, match="configs.json: not made by"):
        helion.load_configs(file)


def test_tuning_that_is_not_allowed(empty_store: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELION_DISALLOW_AUTOTUNING", "1")
    with pytest.raises(exc.AutotuningDisallowedInEnvironment):
        helion.kernel(softmax).autotune((torch.randn(3, 10),), **QUIET)


@pytest.mark.parametrize(
    ("dtype", "off", "wrong"),
    [
        (torch.float32, 1e-5, False),
        (torch.float32, 1e-1, True),
        (torch.bfloat16, 4e-3, False),
        (torch.bfloat16, 3e-1, True),
        (torch.float64, 1e-6, True),
    ],
)
def test_tolerances_follow_the_dtype(dtype: torch.dtype, off: float, wrong: bool) -> None:
    expected = 3.0 + torch.randn(1000, dtype=torch.float64)
    actual = (expected * (1 + off)).to(dtype)
    assert bool(difference(actual, expected.to(dtype), Tolerance())) is wrong


def test_one_wrong_element_is_seen() -> None:
    expected = torch.randn(1_000_000)
    actual = expected.clone()
    actual[777] += 2.0
    assert "an element" in difference(actual, expected, Tolerance())
    assert difference(actual, expected, Tolerance(atol=3.0)) == ""
    assert "in 1 of 1000000" in difference(actual, expected, Tolerance(atol=1.0))
    assert "differs in 1 of" in difference(torch.tensor([1, 2]), torch.tensor([1, 3]), Tolerance())
    assert difference((expected, 3, None), (expected, 3, None), Tolerance()) == ""
    assert "is 4, not 3" in difference((expected, 4), (expected, 3), Tolerance())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"aggregation": "mean"}, "aggregation must be one of 'geomean', 'max', got 'mean'"),
        ({"relative_to": "seed"}, "relative_to must be None, 'default' or 'baseline', got 'seed'"),
        ({"cache_tag": ""}, "cache_tag must be None or a string that is not empty"),
        ({"cache_tag": 3}, "cache_tag must be None or a string"),
        ({"efort": "full"}, "Tuning has no option 'efort'"),
    ],
)
def test_options_of_several_sets_are_refused_before_anything_is_bound(options: dict[str, Any], message: str) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        return no_such_function(x)  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(exc.InvalidAPIUsage, match=message):
        helion.kernel(broken).autotune_multi([(torch.randn(3),)], **options)
    for sets in ([], torch.randn(3), [torch.randn(3)]):
        with pytest.raises(exc.InvalidAPIUsage, match="autotune_multi takes"):
            helion.kernel(broken).autotune_multi(sets)  # type: ignore[arg-type]


def test_rounded_integers_may_be_one_off() -> None:
    expected = torch.arange(10000).remainder(200).sub(100).to(torch.int8)
    few, many, far = expected.clone(), expected + 1, expected.clone()
    few[::1000] += 1
    far[7] += 2
    floating = [torch.ones(3)]
    assert difference(few, expected, Tolerance(), floating) == ""
    assert "differs in 10 of 10000 elements, by up to 1" in difference(few, expected, Tolerance(), [expected])
    weights = torch.ones(10)
    before, after, reference = [expected - 7, weights], [few, weights], [expected, weights]
    assert difference(after, reference, Tolerance(), sources=before) == ""
    assert "differs in 10 of" in difference(after, reference, Tolerance(), sources=reference), "it is not written"
    assert "autotune_baseline_accuracy_check_fn" in difference(many, expected, Tolerance(), floating)
    assert "by up to 2" in difference(far, expected, Tolerance(), floating)
    computed = Tolerance(rounded=(torch.float32,))
    assert difference(few, expected, computed, [expected]) == "", "the kernel computes floating-point numbers"
    assert "differs in" in difference(many, expected, computed, [expected])
    assert "by up to 2" in difference(far, expected, computed, [expected])
    assert difference(far, expected, Tolerance(atol=2.0), [expected]) == ""
    assert "by up to 2" in difference(far, expected, Tolerance(atol=1.0), floating)
    truths = torch.arange(1000) > 500
    assert difference(truths ^ (torch.arange(1000) == 500), truths, Tolerance(), floating) == ""


def test_rounded_integers_may_be_one_off_in_the_fields_of_larger_ones() -> None:
    low, high = torch.arange(10000) % 16, torch.arange(10000) // 7 % 16
    expected, floating, nibbles = (low | high << 4).to(torch.uint8), [torch.ones(3)], Tolerance(packed=(4,))
    near, wrapped, far = expected.clone(), expected.clone(), expected.clone()
    near[::1000] += torch.where((low < 15) & (high < 15), 17, 0)[::1000].to(torch.uint8)
    wrapped[16] = (high[16] << 4 | 15).to(torch.uint8)
    far[1000] = ((high[1000] ^ 2) << 4 | low[1000]).to(torch.uint8)
    assert low[16] == 0 and not torch.equal(near, expected)
    for right in (near, wrapped):
        assert difference(right, expected, nibbles, floating) == ""
        assert "by up to 1" in difference(right, expected, Tolerance(), floating)
        assert "differs in" in difference(right, expected, nibbles, [expected]), "nothing is rounded"
    assert "by up to 32" in difference(far, expected, nibbles, floating)
    assert "differs in 10000" in difference(expected ^ 17, expected, nibbles, floating)
    odd = expected.clone()
    odd[5] ^= 2
    assert "by up to 2" in difference(odd, expected, Tolerance(packed=(1, 2)), floating), "fields of one bit are equal"
    signed = expected.to(torch.int8)
    assert difference(near.to(torch.int8), signed, nibbles, floating) == ""


@pytest.mark.parametrize("relative_to", [None, "default", "baseline"])
def test_one_config_for_several_sets(empty_store: None, relative_to: str | None) -> None:
    sets = [(torch.randn(8, 16),), (torch.randn(3, 100),)]
    kernel = helion.kernel(softmax)
    options = {**QUIET, "configs": 4, "isolated": False}
    config = kernel.autotune_multi(sets, aggregation="max", relative_to=relative_to, **options)
    for (x,) in sets:
        torch.testing.assert_close(kernel(x), torch.softmax(x, -1))
        assert kernel.bind((x,)).config == kernel.bind((x,)).config_spec.normalize(config)
    again = helion.kernel(softmax)
    assert again.autotune_multi(sets, aggregation="max", relative_to=relative_to, force=False, **options) == config
    store = default_store()
    assert store is not None and len(store.all()) == 1
    assert helion.kernel(softmax).autotune_multi(sets) == again.bind(sets[0]).default_config()


def test_helpers_that_are_killed_are_started_again(empty_store: None) -> None:
    """All processes are killed twice while a kernel is tuned."""
    x = torch.randn(33, 100)
    kernel = helion.kernel(softmax)
    bound = kernel.bind((x,))
    killed = []

    def spoil(config: helion.Config) -> bool:
        if len(killed) < 2:
            os.kill(fork_server_of("triton", bound.target).pid, signal.SIGKILL)
            killed.append(config)
        return True

    original = bound._analysis.predict
    bound._analysis.predict = lambda config: (spoil(config), original(config))[1]  # type: ignore[method-assign]
    config = bound.autotune((x,), configs=5, **QUIET)
    assert len(killed) == 2
    torch.testing.assert_close(kernel(x), torch.softmax(x, -1))
    assert bound.config == config


def relu_of_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], dtype=x.dtype, device=x.device)
    for rows, columns in hl.tile(out.size()):
        acc = hl.zeros([rows, columns], dtype=torch.float32)
        for inner in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[rows, inner], y[inner, columns])
        out[rows, columns] = torch.relu(acc + 1).to(x.dtype)
    return out


@pytest.mark.prove
def test_kernels_of_the_cute_backend_are_tuned(empty_store: None) -> None:
    """With the DSL candidates are compiled in the pool; without it the reason says how to get it."""
    x, y = torch.randn(200, 128).bfloat16(), torch.randn(128, 192).bfloat16()
    kernel = helion.kernel(relu_of_product, backend="cute")
    options = {**QUIET, "configs": 2}
    if importlib.util.find_spec("cutlass") is None:
        with pytest.raises(exc.NoConfigFound, match="pip install"):
            kernel.autotune((x, y), **options)
    else:
        config = kernel.autotune((x, y), **options)
        assert kernel.bind((x, y)).config == config
    expected = torch.relu(x.float() @ y.float() + 1)
    torch.testing.assert_close(kernel(x, y).float(), expected, atol=0.2, rtol=0.02)


def test_simulated_answers_are_not_for_gpus(empty_store: None) -> None:
    x, kernel = torch.randn(3, 130), helion.kernel(softmax)
    kernel.autotune((x,), effort="minimal", **QUIET)
    entry = kept_entry(kernel.bind((x,)), (x,))
    assert entry is not None and entry.row.key.target.endswith(" simulated")
    on_gpu, store = key_of(kernel.bind((x,)).variant.specialized, (x,), measured=True), default_store()
    assert store is not None and on_gpu is not None and store.get(on_gpu) is None
    assert on_gpu.subject != entry.row.key.subject
    measured = Entry(row=dataclasses.replace(entry.row, key=on_gpu, microseconds=2 * entry.row.microseconds), sweep=())
    assert len(merged([entry, measured])) == 2  # neither replaces the other
