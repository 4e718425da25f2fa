"""A whole tuning, in a process of its own, while it is killed, interrupted or has no room on the disk; and one whose candidates
go wrong in every way there is."""

from __future__ import annotations

import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import helion
import helion.language as hl
from helion.autotuner.cache.store import default_store
from helion.runtime.tuning import evaluator
from helion.runtime.tuning.session import Candidate

SCRIPT = """
import json, sys
import torch, helion
import helion.language as hl

@helion.kernel
def smoothed(x, weight):
    out, total = torch.empty_like(x), torch.zeros([x.size(1)], dtype=torch.float32)
    for tile in hl.tile(x.size(1)):
        acc = hl.zeros([tile], dtype=torch.float32)
        for rows in hl.tile(x.size(0)):
            values = x[rows, tile] * weight[rows][:, None]
            out[rows, tile] = values
            acc = acc + values.sum(0)
        total[tile] = acc
    return out, total

x, weight = torch.randn(17, 70) + 2, torch.rand(17)
config = smoothed.autotune((x, weight), simulated=True, effort="quick", configs=int(sys.argv[1]), seconds=60, workers=2, random_seed=1)
out, total = smoothed(x, weight)
torch.testing.assert_close(out, x * weight[:, None])
torch.testing.assert_close(total, (x * weight[:, None]).sum(0))
print("right", json.dumps(config.to_dict()))
"""


def started(tmp_path: Path, configs: int, **options: object) -> subprocess.Popen[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {
        **os.environ,
        "HELION_CACHE_DIR": str(tmp_path / "cache"),
        "HELION_AUTOTUNE_LOG": str(tmp_path / "log"),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    command = [sys.executable, str(script), str(configs)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True,
        **options,
    )  # type: ignore[call-overload, no-any-return]  # fmt: skip


def events(tmp_path: Path) -> list[dict[str, object]]:
    log = tmp_path / "log"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []


def wait_for(tmp_path: Path, process: subprocess.Popen[str], tried: int) -> None:
    while process.poll() is None and sum(event["event"] == "tried" for event in events(tmp_path)) < tried:
        time.sleep(0.05)
    assert process.poll() is None


def members(session: int) -> list[int]:
    """Living processes of a session, or whose parents were in it; fork servers have sessions of their own."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if words[0] != "Z" and (int(words[3]) == session or int(words[1]) == session):
            found.append(int(stat.parent.name))
    return found


def all_gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        if not any(Path(f"/proc/{pid}").exists() and _runs(pid) for pid in pids):
            return True
        time.sleep(0.1)
    return False


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.prove
def test_an_interrupt_ends_the_search_and_the_call_is_right(tmp_path: Path) -> None:
    with started(tmp_path, 100_000) as process:
        wait_for(tmp_path, process, 3)
        pids = members(process.pid)
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=600)
    assert process.returncode == 0 and out.startswith("right {"), err
    end = events(tmp_path)[-1]
    assert end["event"] == "end" and end["why"] == "interrupted"
    assert len(pids) > 1 and all_gone(pids)


@pytest.mark.prove
def test_what_was_killed_leaves_nothing_and_can_be_started_again(tmp_path: Path) -> None:
    with started(tmp_path, 100_000) as process:
        wait_for(tmp_path, process, 8)
        pids = members(process.pid)
        process.kill()
    assert len(pids) > 1 and all_gone(pids)
    with sqlite3.connect(tmp_path / "cache" / "tuned.sqlite") as connection:
        kept = [json.loads(config) for (config,) in connection.execute("select config from tried where status = 'ok'")]
    assert kept  # what it had tried
    (tmp_path / "log").unlink()
    with started(tmp_path, 12) as process:
        out, err = process.communicate(timeout=600)
    assert process.returncode == 0 and out.startswith("right {"), err
    again = [event["config"] for event in events(tmp_path) if event["event"] == "tried"]
    assert any(config in kept for config in again)


@pytest.mark.prove
def test_a_full_disk_costs_what_would_be_kept_and_no_more(tmp_path: Path) -> None:
    """What is written beyond 64 KiB fails, in the cache as in the log."""

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))

    with started(tmp_path, 12, preexec_fn=limited) as process:
        out, err = process.communicate(timeout=600)
    assert process.returncode == 0 and out.startswith("right {"), err


#: What goes wrong with every second candidate, at the beginning of the user's host code.
WRONGS = (
    "raise RuntimeError('no')",
    "import os; os.kill(os.getpid(), 11)",
    "import os; os._exit(3)",
    "import time; time.sleep(1000)",
    "return x * 0, x[0] * 0",
    "x.mul_(2)",
    "bytearray(2**60)",
    "x.as_strided((1,), (1,), x.storage_offset() + x.numel()).fill_(0)",
)


@helion.kernel(autotune_seed_configs=[{"block_sizes": [n, 8], "num_warps": w} for n in (4, 8, 16) for w in (1, 2, 4)])
def ordered(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Counts of positive elements along rows, and the columns' largest."""
    counts = torch.empty([x.size(0)], dtype=torch.int64, device=x.device)
    for tile in hl.tile(x.size(0)):
        counts[tile] = (x[tile, :] > 0).to(torch.int64).sum(-1)
    largest = torch.empty([x.size(1)], dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(1)):
        largest[tile] = torch.amax(x[:, tile], 0)
    return counts, largest


def test_candidates_that_go_wrong_in_every_way_cost_themselves_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HELION_CACHE_DIR", str(tmp_path))
    x = torch.randn(7, 30)
    bound = ordered.bind((x,))
    default = bound.default_config()
    spoilt: dict[str, str] = {}
    original = evaluator.Evaluator._candidate

    def spoiling(self: evaluator.Evaluator, config: helion.Config) -> Candidate:
        made = original(self, config)
        if config == default or (len(spoilt) == len(WRONGS) and repr(config) not in spoilt):
            return made
        wrong = spoilt.setdefault(repr(config), WRONGS[len(spoilt) % len(WRONGS)])
        head, brace, body = made.text.partition("\ndef ordered(")
        line, newline, rest = body.partition(":\n")
        return Candidate(text=f"{head}{brace}{line}{newline}    {wrong}\n{rest}", expected=made.expected)

    monkeypatch.setattr(evaluator.Evaluator, "_candidate", spoiling)
    config = bound.autotune((x,), simulated=True, configs=12, run_seconds=1.5, workers=2)
    assert repr(config) not in spoilt and len(spoilt) == len(WRONGS)
    counts, largest = ordered(x)
    assert torch.equal(counts, (x > 0).sum(-1)) and torch.equal(largest, x.amax(0))
    store = default_store()
    assert store is not None
    (row,) = store.all()
    statuses = {repr(outcome.config): outcome.status.value for outcome in store.sweep(row.key)}
    assert all(statuses[name] != "ok" for name in spoilt), statuses
    assert {"failed", "crashed", "timed out", "inaccurate", "ok"} == set(statuses.values())
    said = capsys.readouterr().err
    assert "a config was left out: " in said and "Traceback" not in said
