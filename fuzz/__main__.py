"""The command line of the fuzzer."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import torch

from . import reproducer, sanitize
from .families import FAMILIES
from .journal import Journal, summary
from .session import Options, Session

#: Fractions of a run's time after which kernels stop, and samples under compute-sanitizer stop; the rest is for
#: shrinking.
FUZZED, SANITIZED = 0.86, 0.25
NAMES = tuple(family.name for family in FAMILIES)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    found.add_argument(
        "--out",
        type=Path,
        default=Path("build/fuzz"),
        help="folder of the journal, the summary and the reproducers; a run resumes from an existing journal",
    )
    found.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu takes small sizes and Triton's interpreter"
    )
    found.add_argument("--minutes", type=float, default=8.0, help="of the whole run, shrinking included")
    found.add_argument("--pairs", type=int, help="end after so many pairs, those of the journal included")
    found.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    found.add_argument(
        "--configs",
        type=int,
        default=12,
        help="random configs of each kernel, in addition to its default and its seeds",
    )
    found.add_argument("--seed", type=int, default=0, help="of the first kernel")
    found.add_argument("--families", default="", help=f"comma separated, of {', '.join(NAMES)}")
    found.add_argument(
        "--sanitize",
        type=int,
        default=0,
        metavar="N",
        help="also run N pairs under compute-sanitizer memcheck and racecheck",
    )
    found.add_argument("--no-shrink", action="store_true", help="write reproducers of failures as they are")
    found.add_argument("--work", type=Path, help="folder for files of kernels and caches (default: a temporary one)")
    return found  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run, write what was found, and return 1 if there are failures."""
    given = parser().parse_args(arguments)
    only = tuple(name for name in given.families.split(",") if name)
    if unknown := set(only) - set(NAMES):
        raise SystemExit(f"no such families: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    if given.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(
            "no GPU here: torch.cuda.is_available() is False; --device cpu runs small kernels in the interpreter"
        )
    begin = time.monotonic()
    end = begin + 60 * given.minutes
    with tempfile.TemporaryDirectory(prefix="helion-fuzz-", ignore_cleanup_errors=True) as temporary:
        work = (given.work or Path(temporary)).absolute()
        options = Options(
            device=given.device,
            workers=given.workers,
            configs=given.configs,
            first=given.seed,
            pairs=given.pairs,
            only=only,
            work=work,
        )
        journal = Journal(given.out, options.settings)
        session = Session(options, journal, say=lambda text: print(text, flush=True))
        try:
            share = FUZZED - (SANITIZED if given.sanitize else 0.0)
            session.fuzz(begin + share * (end - begin))
            (given.out / "summary.txt").write_text(summary(journal, time.monotonic() - begin))
            failures = session.shrink(
                begin if given.no_shrink else end - (SANITIZED * (end - begin) if given.sanitize else 0)
            )
        finally:
            session.close()
        reproducer.bundle(failures, given.device, given.out / "reproducers.zip")
        text = summary(journal, time.monotonic() - begin)
        findings = 0
        if given.sanitize:
            report = sanitize.Sanitizer(given.workers, work, end, only).run(given.sanitize)
            text, findings = text + report.text(), len(report.findings)
    (given.out / "summary.txt").write_text(text)
    print(text, flush=True)
    return int(bool(failures) or findings > 0)


if __name__ == "__main__":
    sys.exit(main())
