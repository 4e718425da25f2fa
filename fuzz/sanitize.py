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
    """Report of one tool on the kernels of one process: its first lines."""

    tool: str
    kernels: tuple[str, ...]
    text: str


@dataclass
class Report:
    """Summary of a sample: number of pairs by tool and outcome, and findings."""

    pairs: dict[tuple[str, str], int]
    findings: list[Finding]
    note: str = ""

    def text(self) -> str:
        """Format the report for the summary."""
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


@dataclass
class Sanitizer:
    """A run of samples: ``work`` holds logs and caches, ``only`` names families, ``command`` runs a worker."""

    workers: int
    work: Path
    deadline: float
    only: tuple[str, ...] = ()
    command: Sequence[str] = ()
    tools: tuple[str, ...] = TOOLS

    def run(self, count: int) -> Report:
        """Run ``count`` pairs under each tool, one config of a kernel each, until the deadline."""
        report, lock = Report({}, []), threading.Lock()
        if shutil.which("compute-sanitizer") is None:
            report.note = "not found in PATH: nothing was run"
            return report
        drafts = [families.draw(FIRST_SEED + number, True, self.only) for number in range(count)]
        batches = [(tool, drafts[at : at + BATCH]) for at in range(0, count, BATCH) for tool in self.tools]
        errors: list[BaseException] = []

        def drive() -> None:
            try:
                while time.monotonic() < self.deadline:
                    with lock:
                        if not batches:
                            return
                        tool, some = batches.pop(0)
                        work = self.work / f"sanitize-{len(batches)}"
                    outcomes, found = self._batch(tool, some, work)
                    with lock:
                        for kind in outcomes:
                            report.pairs[tool, kind] = report.pairs.get((tool, kind), 0) + 1
                        if found:
                            names = tuple(draft.name for draft in some[: len(outcomes)])
                            report.findings.append(Finding(tool=tool, kernels=names, text=found))
            except BaseException as error:  # shown by the thread that waits
                errors.append(error)

        threads = [threading.Thread(target=drive, daemon=True) for _ in range(self.workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        if batches:
            report.note = f"{len(batches)} batches were left out, since time was up"
        return report

    def _batch(self, tool: str, drafts: Sequence[Draft], work: Path) -> tuple[list[str], str]:
        """Return the outcomes of some pairs in one process, and what the tool reports of them."""
        work.mkdir(parents=True, exist_ok=True)
        prefix = ("compute-sanitizer", "--tool", tool, "--log-file", str(work / f"{tool}-%p.log"))
        environment = {**environment_of(work), "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        process = Process((*prefix, *(self.command or worker_command("cuda", work))), work, environment)
        outcomes: list[str] = []
        for draft in drafts:
            if time.monotonic() > self.deadline:
                break
            outcomes.append(self._pair(process, draft))
        process.finish()
        logs = (reported(path.read_text()) for path in sorted(work.glob(f"{tool}-*.log")))
        return outcomes, "\n".join(filter(None, logs))

    def _pair(self, process: Process, draft: Draft) -> str:
        """Return the kind of outcome of one config of a draft, not always the first."""
        data: dict[str, Any] = draft.to_json()
        seconds = max(1.0, min(SECONDS, self.deadline - time.monotonic()))
        try:
            reply = process.ask({"do": "open", "draft": data, "count": 4}, seconds)
            found = reply["backends"].get("triton", {})
            if "configs" not in found:
                return str(found.get("kind"))
            config = found["configs"][draft.seed % len(found["configs"])]
            request = {"do": "run", "draft": data, "backend": "triton", "config": config}
            return str(process.ask(request, seconds)["kind"])
        except Lost as lost:
            return lost.kind
