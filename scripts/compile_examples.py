"""Compiles every case of every example with the real ptxas and prints what each kernel takes; needs no GPU.

    python scripts/compile_examples.py [EXAMPLE ...] [--targets sm_80,sm_90,sm_100] [--expect-triton 3.9]

One line a case and target: registers a thread, spilled bytes a thread, shared memory a block. Exits with 1 when a case
does not bind, does not compile or does not fit its target; the others are compiled all the same. An example is a
module of examples/ with a function `cases()` giving (name, kernel, args); `demo.py` and names with a leading
underscore are no examples.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
TARGETS = ("sm_80", "sm_90", "sm_100")
NO_EXAMPLES = ("demo",)


class Case(NamedTuple):
    example: str
    name: str
    kernel: Any  # helion.Kernel
    args: tuple[Any, ...]


def example_names() -> list[str]:
    """Return the examples as dotted names below `examples`, sorted."""
    paths = [path.relative_to(EXAMPLES).with_suffix("") for path in EXAMPLES.rglob("*.py")]
    shown = [p for p in paths if p.parts[-1] not in NO_EXAMPLES and not any(part.startswith("_") for part in p.parts)]
    return sorted(".".join(path.parts) for path in shown)


def cases(example: str) -> Iterator[Case]:
    module = importlib.import_module(f"examples.{example}")
    for name, kernel, args in module.cases():
        yield Case(example, name, kernel, args)


def compile_case(case: Case, target: str) -> str | None:
    """Print the case's line, and return the reason if the result does not fit the target."""
    began = time.perf_counter()
    from helion import exc  # 1.6 s of torch and triton, after the cache folder is chosen

    try:
        report = case.kernel.bind(case.args, target=target).resources()
    except exc.BackendUnsupported as refusal:
        print(f"{case.example:18} {case.name:32} {target:7} not on this target: {refusal.message}", flush=True)
        return None
    seconds = time.perf_counter() - began
    print(
        f"{case.example:18} {case.name:32} {target:7} {report.registers:4d} registers"
        f" {report.spill_bytes:6d} B spilled {report.shared_bytes:7d} B shared {seconds:6.2f} s",
        flush=True,
    )
    return None if report.fits else f"does not fit {target}: {report.shared_bytes} B of shared memory"


def main() -> None:
    parser = argparse.ArgumentParser(description="compile the examples offline and print their resources")
    parser.add_argument("examples", nargs="*", help="names as in examples/, all by default")
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--expect-triton", metavar="X.Y", help="fail at once under another Triton")
    arguments = parser.parse_args()

    # A separate cache, so that every kernel is compiled by this Triton and this helion; chosen before either is imported.
    with tempfile.TemporaryDirectory(prefix="helion-compile-") as cache:
        os.environ["TRITON_CACHE_DIR"] = os.path.join(cache, "triton")
        os.environ["HELION_CACHE_DIR"] = os.path.join(cache, "helion")
        sys.path.insert(0, str(ROOT))
        import torch
        import triton

        print(f"torch {torch.__version__}, triton {triton.__version__}, targets {arguments.targets}", flush=True)
        if arguments.expect_triton and not triton.__version__.startswith(arguments.expect_triton + "."):
            raise SystemExit(
                f"this is Triton {triton.__version__} from {triton.__file__}, not {arguments.expect_triton}"
            )
        compiled, failures = compile_all(arguments.examples or example_names(), arguments.targets.split(","))

    print(f"{compiled} compiled, {len(failures)} failed")
    print(*(f"FAILED {failure}" for failure in failures), sep="\n", end="\n" if failures else "")
    if failures or not compiled:
        raise SystemExit(1)


def compile_all(examples: list[str], targets: list[str]) -> tuple[int, list[str]]:
    """Return the number of compiled cases, and a line for each failure. Every exception becomes such a line: this is
    a report."""
    compiled, failures = 0, []
    for example in examples:
        try:
            found = list(cases(example))
        except Exception as error:
            traceback.print_exc()
            failures.append(f"{example}: {type(error).__name__}: {error}")
            continue
        for case in found:
            for target in targets:
                label = f"{example}, {case.name}, {target}"
                try:
                    reason = compile_case(case, target)
                except Exception as error:
                    traceback.print_exc()
                    reason = f"{type(error).__name__}: {error}"
                compiled += reason is None
                failures += [f"{label}: {reason}"] if reason else []
    return compiled, failures


if __name__ == "__main__":
    main()
