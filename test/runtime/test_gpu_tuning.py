"""The tuner on a GPU: its clock, what it chooses, and candidates that spoil the device."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion.autotuner.measure.accuracy import Tolerance
from helion.autotuner.measure.comparison import log_ratios, median_interval
from helion.autotuner.outcome import Status
from helion.autotuner.pool.children import ForkServer
from helion.runtime.bound import kept_entry
from helion.runtime.specialization.choice import Choice
from helion.runtime.tuning import chosen_before, first_call
from helion.runtime.tuning.bench import Bench
from helion.runtime.tuning.clocks import DeviceClock
from helion.runtime.tuning.device_lock import DeviceLock, lock_of
from helion.runtime.tuning.session import NEEDED, Candidate, Task

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELION_CACHE_DIR", str(tmp_path))


def shifted(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = x[tile, :] - torch.amax(x[tile, :], dim=-1, keepdim=True)
    return out


def test_rounds_tell_no_difference_where_there_is_none() -> None:
    x = torch.randn(8192, 8192, device="cuda")
    clock = DeviceClock(x.device, 0)
    functions = [(lambda: torch.exp(x), 1.0), (lambda: torch.exp(x), 1.0), (lambda: torch.exp(x[:7000]), 1.0)]
    rounds = [dict(enumerate(row)) for _ in range(4) for row in clock.rounds(functions, 40)]
    low, high = median_interval(log_ratios(rounds, 0, 1))
    assert -0.01 < low <= high < 0.01
    assert median_interval(log_ratios(rounds, 2, 0))[1] < -0.05
    alone = statistics.median(clock.time(functions[0][0], 1.0, float("inf")))
    assert alone == pytest.approx(statistics.median(row[0] for row in rounds), rel=0.05)


@pytest.mark.parametrize("seen", [True, False])
def test_host_code_that_waits_is_timed_without_a_graph(seen: bool) -> None:
    """Whether torch sees that it waits or not, what comes after runs as if nothing had been tried."""
    x = torch.randn(1000, 1000, device="cuda")

    def waits() -> torch.Tensor:
        if seen:
            return x * x[0, 0].item()
        torch.cuda.synchronize()
        return x * 2

    stream = torch.cuda.current_stream()
    clock = DeviceClock(x.device, 0)
    rows = clock.rounds([(waits, 1.0), (lambda: x * 2, 1.0)], 10)
    assert len(rows) == 10 and all(0 < time < 1e4 for row in rows for time in row)
    assert torch.cuda.current_stream() == stream and torch.cuda.get_sync_debug_mode() == 0
    torch.manual_seed(3)
    assert torch.randn(3, device="cuda").isfinite().all()
    assert len(clock.rounds([(lambda: x * 2, 1.0)], 10)) == 10  # captured, as nothing is left of what failed
    assert torch.equal(torch.ones(3, device="cuda") * 2, torch.full((3,), 2.0, device="cuda"))


@pytest.mark.parametrize("effort", ["minimal", "quick"])
def test_a_kernel_is_tuned(effort: str) -> None:
    x = torch.randn(4097, 1000, device="cuda").bfloat16() + 3
    kernel = helion.kernel(shifted)
    more: dict[str, Any] = {"seconds": 10.0} if effort == "quick" else {}
    kernel.autotune((x,), effort=effort, progress=False, **more)
    torch.testing.assert_close(kernel(x), x - x.amax(-1, keepdim=True))


def test_a_search_takes_the_lock_of_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    x, taken = torch.randn(1000, 1000, device="cuda"), []
    original = DeviceLock._acquire

    def acquired(self: DeviceLock, *args: Any) -> None:
        taken.append(self)
        original(self, *args)

    monkeypatch.setattr(DeviceLock, "_acquire", acquired)
    assert lock_of(x.device, 1.0).is_shared
    helion.kernel(shifted).autotune((x,), effort="minimal", progress=False)
    assert taken


#: All warps load the same 32 elements at a time.
SLOW = {"block_sizes": [1], "reduction_loops": [32], "num_warps": 32}


def seeded(monkeypatch: pytest.MonkeyPatch, x: torch.Tensor) -> tuple[helion.runtime.kernel.Kernel, helion.Config]:
    """A kernel that would run a slow config, with its seed for the only contender."""
    kernel = helion.kernel(shifted)
    bound = kernel.bind((x,))
    seed, slow = bound.default_config(), bound.config_spec.normalize(SLOW)
    monkeypatch.setattr(first_call, "contenders", lambda of, config, times: [seed])
    monkeypatch.setattr(Choice, "verified", lambda self, args: slow)
    return kernel, seed


def test_a_seed_in_doubt_is_measured_at_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(16384, 4096, device="cuda") + 3
    kernel, seed = seeded(monkeypatch, x)
    kernel.bind((x,)).compile_config(seed)(x)
    torch.manual_seed(5)
    expected = torch.rand(3, device="cuda")
    torch.manual_seed(5)
    found = kernel(x)
    bound = kernel.bind((x,))
    assert bound.config == seed, chosen_before.timed(bound.variant.specialized, (x,))
    assert torch.equal(torch.rand(3, device="cuda"), expected)
    torch.testing.assert_close(found, x - x.amax(-1, keepdim=True))


def test_a_first_call_that_is_captured_or_compiled_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(1024, 4096, device="cuda")
    monkeypatch.setattr(first_call.autotune, "tuned", None)
    kernel, seed = seeded(monkeypatch, x)
    kernel.bind((x,)).compile_config(SLOW)(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = kernel(x)
    graph.replay()
    torch.testing.assert_close(found, x - x.amax(-1, keepdim=True))
    assert kernel.bind((x,)).config != seed
    recorded, _ = seeded(monkeypatch, x)
    compiled = torch.compile(lambda x: recorded(x) + 1, mode="reduce-overhead", fullgraph=True)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), x - x.amax(-1, keepdim=True) + 1)


def drawn(x: torch.Tensor) -> torch.Tensor:
    noise, out = torch.rand_like(x), torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = x[tile, :] + noise[tile, :] * (torch.rand_like(x[tile, :]) > 0.5)
    return out


@pytest.mark.parametrize("isolated", [True, False])
def test_a_kernel_that_draws_random_numbers_is_tuned(isolated: bool) -> None:
    x, kernel = torch.randn(1000, 130, device="cuda"), helion.kernel(drawn)
    torch.manual_seed(5)
    expected = torch.rand(3, device="cuda")
    torch.manual_seed(5)
    kernel.autotune((x,), configs=4, isolated=isolated, progress=False)
    assert torch.equal(torch.rand(3, device="cuda"), expected)
    entry = kept_entry(kernel.bind((x,)), (x,))
    assert entry is not None and {outcome.status for outcome in entry.sweep} == {Status.OK}


def test_a_slow_config_is_never_chosen() -> None:
    """One warp for a row of 4096."""
    x = torch.randn(16384, 4096, device="cuda")
    bound = helion.kernel(shifted).bind((x,))
    seed, slow = (
        bound.default_config(),
        bound.config_spec.normalize(SLOW),
    )
    listed = helion.kernel(shifted, configs=[seed, slow])
    for _ in range(3):
        assert listed.autotune((x,), progress=False) == seed


TEXT = """
import torch
def kernel(x, *, _launcher=None):
    {first}
    return x + 1
"""
LINES = {
    "reads nowhere": "x.gather(0, torch.full_like(x, 2**40, dtype=torch.int64)); torch.cuda.synchronize()",
    "takes all memory": "torch.empty(2**45, dtype=torch.uint8, device='cuda')",
    "never ends": "torch.cuda._sleep(2**60); torch.cuda.synchronize()",
}


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    with ForkServer(NEEDED) as started:
        yield started


@pytest.mark.parametrize("name", LINES)
def test_a_candidate_that_spoils_the_device_costs_itself(fork_server: ForkServer, name: str) -> None:
    x = torch.randn(1000, device="cuda")
    task = Task(
        name="kernel", backend="triton", args=(x,), expected=x + 1, changed=(x,), tolerance=Tolerance(),
        device=x.device, seed=0,
    )  # fmt: skip
    bench = Bench(lambda: fork_server, task, 20.0)
    try:
        bad = bench.run(Candidate(text=TEXT.format(first=LINES[name]), expected=5.0), 1e9)
        assert bad.status in (Status.FAILED, Status.CRASHED, Status.TIMED_OUT, Status.NO_MEMORY), bad
        good = bench.run(Candidate(text=TEXT.format(first="pass"), expected=5.0), 1e9)
        assert good.status is Status.OK and good.microseconds is not None, good
    finally:
        bench.close()
    assert torch.equal(x + 0, x)
