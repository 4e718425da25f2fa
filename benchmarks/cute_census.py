"""Print the matmul kernels that the CuTe backend takes on each target, and its reasons to refuse the others.

    python benchmarks/cute_census.py [--targets sm_90,sm_100] [--suites unseen,workloads] [--kernels linear_fp8] [--brief] [--json FILE.jsonl]

The kernels are the matmuls among those of ``benchmarks/unseen``, ``benchmarks/workloads``, ``benchmarks/holdout.py``,
``test/unseen_kernels.py`` and the cases of the examples. Nothing is run or compiled, and no GPU is needed. Tensors are
on ``meta``. A kernel counts if some backend binds it and its program has a matmul. Attention and its gradients, by the
structure of their programs, are no products and do not count; ``--all`` counts them too.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

TARGETS = ("sm_90", "sm_100")
SUITES = ("unseen", "workloads", "holdout", "unseen_kernels", "examples")
TAKEN = ""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer of the CuTe backend about one kernel: ``reason`` is empty where it takes it."""

    suite: str
    kernel: str
    case: str
    target: str
    reason: str

    @property
    def line(self) -> str:
        said = f"no: {self.reason}" if self.reason else "yes"
        return f"{self.target:7} {self.suite:15} {self.kernel:34} {self.case:34} {said}"


def cases(suites: Sequence[str]) -> Iterator[tuple[str, str, Any, tuple[Any, ...]]]:
    """Yield suite, case, kernel and arguments."""
    from benchmarks import cells
    from helion._testing import import_path

    made = {
        "unseen": cells.unseen_cells,
        "workloads": cells.workload_cells,
        "holdout": cells.holdout_cells,
        "examples": cells.example_cells,
    }
    for suite in suites:
        if suite == "unseen_kernels":
            sys.path[:0] = [str(ROOT / "test")]
            for varied in import_path(ROOT / "test" / "unseen_kernels.py").unseen():
                yield suite, varied.case, varied.kernel, varied.args
        else:
            for cell in made[suite]():
                yield suite, f"{cell.case} {cell.dtype}", cell.function, cell.args


def answers(
    suites: Sequence[str], targets: Sequence[str], kernels: Sequence[str], attention: bool = False
) -> Iterator[Answer]:
    """Yield the answers about each case on each target, with those about ``attention`` or without."""
    for suite, case, kernel, args in cases(suites):
        if kernels and kernel.name not in kernels:
            continue
        for target in targets:
            reason = refusal(kernel, args, target, attention)
            if reason is not None:
                yield Answer(suite=suite, kernel=kernel.name, case=case, target=target, reason=reason)


def refusal(kernel: Any, args: tuple[Any, ...], target: str, attention: bool = False) -> str | None:
    """Return the reason why the CuTe backend refuses a kernel, or ""; None for one that does not count."""
    from helion import exc
    from helion.backends.cute.shapes import CHAINED, MATMUL, shape_of_program

    general = _with_backend(kernel, "triton")
    try:
        bound = general.bind(args, target=target)
        counted = attention or shape_of_program(bound._analysis.program) in (MATMUL, CHAINED)
        if not bound.facts.matmuls or not counted:
            return None
    except exc.Base:
        return None
    try:
        _with_backend(kernel, "cute").bind(args, target=target)
    except (exc.CuteUnsupported, exc.InvalidConfig) as refused:
        return shortened(str(refused))
    return TAKEN


def _with_backend(kernel: Any, backend: str) -> Any:
    """Return the kernel without configs of its own, for one backend."""
    import helion

    settings = {**kernel.settings.to_dict(), "backend": backend}
    return helion.kernel(kernel.fn, settings=helion.Settings(**settings))


def shortened(message: str) -> str:
    """Return the reason in the message of a refusal."""
    text = re.sub(r"^Kernel '.*?' cannot be compiled by the cute backend on .*?\): ", "", " ".join(message.split()))
    return re.sub(r"\. Use backend='triton'.*$", "", text)


def share(found: Sequence[Answer]) -> str:
    """Return the shares of cases and of kernels that are taken; a kernel is taken if all of its cases are."""
    kernels: dict[tuple[str, str], bool] = {}
    for one in found:
        key = (one.suite, one.kernel)
        kernels[key] = kernels.get(key, True) and not one.reason
    cases_taken, taken = sum(not one.reason for one in found), sum(kernels.values())
    return (
        f"{cases_taken} of {len(found)} cases ({cases_taken / max(1, len(found)):.0%}),"
        f" {taken} of {len(kernels)} kernels ({taken / max(1, len(kernels)):.0%})"
    )


def summary(found: Sequence[Answer], targets: Sequence[str]) -> str:
    """Return the shares by target and suite, and the reasons by how many kernels each refuses."""
    lines = []
    for target in targets:
        own = [one for one in found if one.target == target]
        lines.append(f"{target}: {share(own)}")
        for suite in dict.fromkeys(one.suite for one in own):
            lines.append(f"  {suite}: {share([one for one in own if one.suite == suite])}")
        kernels = {(one.kernel, re.sub(r"\d+", "#", one.reason)) for one in own if one.reason}
        for reason, count in Counter(reason for _, reason in kernels).most_common():
            names = sorted({kernel for kernel, other in kernels if other == reason})
            lines.append(f"  {count:3} kernels: {reason}: {', '.join(names)}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="print the matmuls that the CuTe backend takes")
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--suites", default=",".join(SUITES))
    parser.add_argument("--kernels", default="", help="these alone, by name")
    parser.add_argument("--all", action="store_true", help="attention and its gradients too")
    parser.add_argument("--brief", action="store_true", help="the summary alone")
    parser.add_argument("--json", type=Path, metavar="FILE.jsonl", help="append the shares of each target")
    arguments = parser.parse_args()
    targets = arguments.targets.split(",")
    found = []
    kernels = [name for name in arguments.kernels.split(",") if name]
    for one in answers(arguments.suites.split(","), targets, kernels, arguments.all):
        found.append(one)
        if not arguments.brief:
            print(one.line, flush=True)
    print(summary(found, targets))
    if arguments.json:
        with arguments.json.open("a") as file:
            for target in targets:
                own = [not one.reason for one in found if one.target == target]
                line = {"target": target, "taken": sum(own), "of": len(own), "date": datetime.date.today().isoformat()}
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
