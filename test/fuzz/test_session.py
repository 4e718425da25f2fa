"""Runs: processes that die and hang, the journal, a run that goes on, failures made small, reproducers."""

from __future__ import annotations

import json
import runpy
import sys
import time
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fuzz import __main__ as command_line
from fuzz import families, reproducer, sanitize, worker
from fuzz.cases import Draft, Step
from fuzz.journal import Journal, summary
from fuzz.process import Process, environment_of
from fuzz.runner import Runner
from fuzz.session import Options, Session, unique
from fuzz.shrink import Failure, Shrinker

FAKE = Path(__file__).with_name("fake_worker.py")
#: Seconds that a run may take. No run here ends by its deadline.
DEADLINE = 600


def options(work: Path, **changes: Any) -> Options:
    given = {"device": "cpu", "workers": 2, "configs": 1, "first": 0, "pairs": 15, "only": (), "work": work}
    return Options(**{**given, **changes})


class Fake(Process):
    """A process of the fake worker, which waits briefly for the configs that never answer and long for all others."""

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        hangs = request["do"] == "run" and request["config"]["kind"] == "hang"
        return super().ask(request, 0.2 if hangs else seconds)


def fake(given: Options) -> Process:
    return Fake((sys.executable, str(FAKE)), given.work, environment_of(given.work))


def run_fake(tmp_path: Path, **changes: Any) -> Journal:
    given = options(tmp_path, **changes)
    journal = Journal(tmp_path / "out", given.settings)
    session = Session(given, journal, start=fake, say=lambda text: None)
    try:
        session.fuzz(time.monotonic() + DEADLINE)
    finally:
        session.close()
    return journal


# --- processes and journal ----------------------------------------------------------------------------------------------


def test_a_run_outlives_its_workers_and_blames_the_pair(tmp_path: Path) -> None:
    journal = run_fake(tmp_path)
    kinds = {(entry.seed, entry.number): entry.kind for entry in journal.entries if entry.backend == "triton"}
    assert len(kinds) >= 15
    for (_, number), kind in kinds.items():
        assert kind == ["right", "died", "hung", "wrong", "right"][number]
    died = next(entry for entry in journal.entries if entry.kind == "died")
    assert died.detail == "the process ended with SIGSEGV" and died.config == {"kind": "die"} and died.draft is not None
    assert Draft.from_json(died.draft) == families.draw(died.seed, True)


def test_a_later_run_goes_on_where_one_was_cut_off(tmp_path: Path) -> None:
    first = run_fake(tmp_path, pairs=7, workers=1)
    path = tmp_path / "out" / "journal.jsonl"
    with path.open("a") as file:
        file.write('{"seed": 99, "fam')  # killed while it wrote
    second = run_fake(tmp_path, pairs=12, workers=1)
    keys = [entry.key for entry in second.entries]
    assert len(keys) == len(set(keys)) and set(keys) > {entry.key for entry in first.entries}
    assert second.pairs() == 12 and {0, 1} <= second.finished
    again = Journal(tmp_path / "out", options(tmp_path).settings)
    assert [entry.key for entry in again.entries] == keys and again.finished == second.finished


def test_a_journal_of_other_settings_is_refused(tmp_path: Path) -> None:
    run_fake(tmp_path, pairs=5)
    with pytest.raises(ValueError, match="take another folder"):
        Journal(tmp_path / "out", options(tmp_path, configs=7).settings)


def test_the_summary_counts_by_family_and_names_failures(tmp_path: Path) -> None:
    journal = run_fake(tmp_path, pairs=12, workers=1)  # two kernels; several workers share them as it comes
    text = summary(journal, 12.0)
    assert text.startswith(f"{journal.pairs()} pairs of ")
    assert "wrong: 2" in text and "because wrong" in text and "no product" in text
    assert [line for line in text.splitlines() if line.startswith("elements")]


def test_workers_that_cannot_start_end_the_run_with_what_they_say(tmp_path: Path) -> None:
    given = options(tmp_path)
    command = (sys.executable, "-c", "raise SystemExit('no such module')")
    session = Session(given, Journal(tmp_path, given.settings), start=lambda some: Process(command, some.work, environment_of(some.work)), say=lambda text: None)  # fmt: skip
    with pytest.raises(RuntimeError, match=r"no worker can load a kernel: .* status 1: no such module"):
        session.fuzz(time.monotonic() + DEADLINE)


# --- shrinking ----------------------------------------------------------------------------------------------------------


def test_a_failure_is_made_as_small_as_it_fails() -> None:
    steps = tuple(Step(op=op) for op in ("tanh", "exp", "r_sum", "add", "gelu"))
    draft = replace(families.draw(3, False, ("rows",)), steps=steps)
    draft = replace(draft, sizes={"m": 129, "n": 1000}, options={**draft.options, "dtype": "bfloat16"})
    tried: list[Draft] = []

    def trial(some: Draft, backend: str, config: Mapping[str, Any]) -> tuple[str, str, Mapping[str, Any]]:
        tried.append(some)
        bad = config["num_warps"] == 8 and config["indexing"][1] == "block_ptr"
        bad = bad and some.sizes["n"] > 20 and "exp" in [step.op for step in some.steps]
        return ("wrong", "small", config) if bad else ("right", "", config)

    config = {"num_warps": 8, "num_stages": 5, "block_sizes": [16], "indexing": ["pointer", "block_ptr", "block_ptr"]}
    plain = {"num_warps": 4, "num_stages": 1, "block_sizes": [1], "indexing": ["pointer"] * 3}
    failure = Failure(draft=draft, backend="triton", config=config, kind="wrong")
    found = Shrinker(failure, trial, time.monotonic() + DEADLINE).run(plain)
    assert [step.op for step in found.draft.steps] == ["exp"]
    assert found.draft.sizes == {"m": 1, "n": 32} and found.draft.options["dtype"] == "float32"
    assert found.config == {**plain, "num_warps": 8, "indexing": ["pointer", "block_ptr", "pointer"]}
    assert found.trials == len(tried)


def test_another_kind_of_failure_is_not_taken_for_it() -> None:
    draft = families.draw(3, False, ("rows",))
    failure = Failure(draft=draft, backend="triton", config={"num_warps": 8}, kind="wrong")
    found = Shrinker(failure, lambda some, backend, config: ("hung", "", config), time.monotonic() + DEADLINE).run(
        {"num_warps": 4}
    )
    assert found.draft == draft and found.config == {"num_warps": 8}


def test_equal_small_failures_are_one() -> None:
    draft = families.draw(3, False, ("rows",))
    failure = Failure(draft=draft, backend="triton", config={}, kind="wrong")
    assert len(unique([failure, replace(failure, draft=replace(draft, seed=9)), replace(failure, kind="hung")])) == 2


# --- all of it ----------------------------------------------------------------------------------------------------------


class Planted:
    """A worker in this process, by which every kernel with a hyperbolic tangent under 8 warps is wrong."""

    def __init__(self, given: Options) -> None:
        self.runner = Runner(given.device, given.work)

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        if request["do"] == "open":
            return worker.answer(self.runner, {**request, "count": 0})
        draft = Draft.from_json(request["draft"])
        if not any(step.op == "tanh" for step in draft.steps):
            return {"kind": "right", "config": request["config"]}
        reply = worker.answer(self.runner, request)
        return {**reply, "kind": "wrong", "detail": "planted"} if reply["kind"] == "right" else reply

    def close(self) -> None:
        pass


def test_a_planted_fault_becomes_a_reproducer_that_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only = ("rows",)
    seed = next(n for n in range(200) if "tanh" in [step.op for step in families.draw(n, True, only).steps])
    given = options(tmp_path, workers=1, first=seed, pairs=2, only=only)
    session = Session(given, Journal(tmp_path / "out", given.settings), start=Planted, say=lambda text: None)
    session.fuzz(time.monotonic() + DEADLINE)
    (found,) = session.shrink(time.monotonic() + DEADLINE)
    assert found.kind == "wrong" and [step.op for step in found.draft.steps] == ["tanh"]
    assert set(found.draft.sizes.values()) == {1}
    reproducer.bundle([found], "cpu", tmp_path / "reproducers.zip")
    with zipfile.ZipFile(tmp_path / "reproducers.zip") as archive:
        (name,) = archive.namelist()
        archive.extract(name, tmp_path)
    text = (tmp_path / name).read_text()
    assert "import fuzz" not in text and "planted" in text
    runpy.run_path(str(tmp_path / name), run_name="__main__")
    assert capsys.readouterr().out.splitlines() == ["ok", "ok"]


@pytest.mark.prove
def test_the_command_runs_pairs_on_cpu_tensors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--device", "cpu", "--pairs", "8", "--workers", "1", "--configs", "1", "--out", str(tmp_path)]
    assert command_line.main(arguments) == 0
    assert "8 pairs" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"journal.jsonl", "summary.txt", "reproducers.zip"}
    lines = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    assert sum(line.get("number", -1) >= 0 for line in lines) == 8


def test_unknown_families_are_refused() -> None:
    with pytest.raises(SystemExit, match="no such families: sorts; there are elements"):
        command_line.main(["--families", "rows,sorts"])


# --- compute-sanitizer ----------------------------------------------------------------------------------------------------

CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
INVALID = (
    "========= COMPUTE-SANITIZER\n========= Invalid __global__ read of size 4 bytes\n=========     at _helion_rows_3\n"
)
RACE = "========= Error: Race reported between Write access at _helion_rows_3\n========= RACECHECK SUMMARY: 1 hazard\n"


def test_reports_of_the_sanitizer_are_read() -> None:
    assert sanitize.reported(CLEAN) == ""
    assert sanitize.reported(INVALID).startswith("========= Invalid __global__ read")
    assert "Race reported" in sanitize.reported(RACE)


def test_a_machine_without_the_sanitizer_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    report = sanitize.Sanitizer(1, tmp_path, time.monotonic() + DEADLINE).run(4)
    assert "not found" in report.text() and not report.pairs


def test_reports_name_the_kernels_of_their_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = tmp_path / "compute-sanitizer"  # --tool TOOL --log-file FILE COMMAND...
    stand_in.write_text(f'#!/bin/sh\necho noise\nprintf "{INVALID}" > "$4"\nshift 4\nexec "$@"\n')
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    command = (sys.executable, str(FAKE))
    sanitizer = sanitize.Sanitizer(2, tmp_path / "work", time.monotonic() + DEADLINE, ("rows",), command, ("memcheck",))
    report = sanitizer.run(2)
    (found,) = report.findings
    assert found.kernels == ("rows_1000000", "rows_1000001") and "Invalid __global__" in found.text
    assert sum(report.pairs.values()) == 2 and report.pairs["memcheck", "died"] == 1
    assert "memcheck in one of rows_1000000" in report.text()
