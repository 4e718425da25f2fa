"""A sample of pairs under compute-sanitizer: memcheck for accesses out of bounds, racecheck for shared memory."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import families
from .cases import Draft
from .process import Lost, Process, environment_of, worker_command

TOOLS = ("memcheck", "racecheck")
#: Pairs of one process, and seconds for a pair: everything is many times slower, the first one starts the process.
BATCH, SECONDS = 6, 180.0
#: Seeds of sampled kernels begin here; their sizes are those of the interpreter.
FIRST_SEED = 1_000_000
_ERROR = re.compile(
    r"={3,} (Invalid|Race reported|Error: Race|Misaligned|Address|Error:|Uninitialized|Hazard|ERROR: Race)"
)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one tool says of the kernels of one process: the first lines of its report."""

    tool: str
    kernels: tuple[str, ...]
    text: str


@dataclass
class Report:
    """What a sample came to: pairs by tool and outcome, and findings."""

    pairs: dict[tuple[str, str], int]
    findings: list[Finding]
    note: str = ""

    def text(self) -> str:
        """Return it for the summary."""
        lines = ["", f"compute-sanitizer: {self.note or 'done'}"]
        lines += [f"  {tool} {kind}: {count}" for (tool, kind), count in sorted(self.pairs.items())]
        for found in self.findings:
            lines += [
                f"  {found.tool} in one of {', '.join(found.kernels)}:",
                *(f"    {line}" for line in found.text.splitlines()[:12]),
            ]
        return "\n".join(lines) + "\n"


def reported(log: str) -> str:
    """Return the lines of a log of compute-sanitizer from its first error on; "" if it has none."""
    lines = log.splitlines()
    first = next((at for at, line in enumerate(lines) if _ERROR.match(line)), None)
    return "" if first is None else "\n".join(lines[first : first + 40])


def run(count: int, workers: int, work: Path, only: tuple[str, ...], deadline: float) -> Report:
    """Run ``count`` pairs under each tool, one config of a kernel each, until the deadline."""
    report = Report({}, [])
    if shutil.which("compute-sanitizer") is None:
        report.note = "not found in PATH: nothing was run"
        return report
    drafts = [families.draw(FIRST_SEED + number, True, only) for number in range(count)]
    batches = [(tool, drafts[at : at + BATCH]) for at in range(0, count, BATCH) for tool in TOOLS]
    lock = threading.Lock()

    def drive() -> None:
        while time.monotonic() < deadline:
            with lock:
                if not batches:
                    return
                tool, some = batches.pop(0)
                number = len(batches)
            _batch(report, lock, tool, some, work / f"sanitize-{number}", deadline)

    threads = [threading.Thread(target=drive) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if batches:
        report.note = f"{len(batches)} of its batches were left out: time was up"
    return report


def _batch(
    report: Report, lock: threading.Lock, tool: str, drafts: Sequence[Draft], work: Path, deadline: float
) -> None:
    log = work / f"{tool}.log"
    work.mkdir(parents=True, exist_ok=True)
    prefix = ("compute-sanitizer", "--tool", tool, "--target-processes", "all", "--log-file", str(log))
    environment = {**environment_of(work), "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    process = Process((*prefix, *worker_command("cuda", work)), work, environment)
    outcomes: list[str] = []
    for draft in drafts:
        if time.monotonic() > deadline:
            break
        outcomes.append(_pair(process, draft, deadline))
    process.finish()
    found = reported(log.read_text() if log.exists() else "")
    with lock:
        for kind in outcomes:
            report.pairs[tool, kind] = report.pairs.get((tool, kind), 0) + 1
        if found:
            report.findings.append(
                Finding(tool=tool, kernels=tuple(draft.name for draft in drafts[: len(outcomes)]), text=found)
            )


def _pair(process: Process, draft: Draft, deadline: float) -> str:
    """Return the kind of outcome of one config of a draft, not always the first."""
    data: dict[str, Any] = draft.to_json()
    seconds = max(1.0, min(SECONDS, deadline - time.monotonic()))
    try:
        reply = process.ask({"do": "open", "draft": data, "count": 4}, seconds)
        found = reply["backends"].get("triton", {})
        if "configs" not in found:
            return str(found.get("kind"))
        config = found["configs"][draft.seed % len(found["configs"])]
        return str(process.ask({"do": "run", "draft": data, "backend": "triton", "config": config}, seconds)["kind"])
    except Lost as lost:
        return lost.kind
