"""Generates the code of every case of every example and compares it with what is kept in test/replay/expected.

    python scripts/replay.py [EXAMPLE ...] [--update]

Each case gives two modules for sm_90, with the conservative config and with the default one, without the comments that
name lines of the example. Equal modules of one example stand in its file once, under all their names. Exits with 1 and
prints a diff when code differs; `--update` writes the files anew instead.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXPECTED = ROOT / "test" / "replay" / "expected"
TARGET = "sm_90"
NO_EXAMPLES = ("demo",)
#: Where the kernel's module lies, which differs between machines.
_PLACE = re.compile(r"^_source_module = source_module\(.*\)$", re.MULTILINE)
_DIFF_LINES = 60


def example_names() -> list[str]:
    """The examples, sorted."""
    return sorted(p.stem for p in (ROOT / "examples").glob("*.py") if p.stem not in NO_EXAMPLES and p.stem[0] != "_")


def generate(example: str) -> str:
    """The modules of all cases of an example as the text of its file."""
    from helion._testing import as_meta, import_path  # 2 s of torch and triton, after the environment is cleared

    texts: dict[str, list[str]] = {}
    for case, kernel, args in import_path(ROOT / "examples" / f"{example}.py").cases():
        bound = kernel.bind(as_meta(args), target=TARGET)
        for name, config in (("conservative", bound.conservative_config()), ("default", bound.default_config())):
            code = bound.to_triton_code(config, output_origin_lines=False)
            code = _PLACE.sub("_source_module = source_module(<module>, <file>)", code).rstrip()
            texts.setdefault(code, []).append(f"{case}: {name}")
    parts = ["\n".join([*(f"#### {label}" for label in labels), "", code, ""]) for code, labels in texts.items()]
    return "\n\n".join(parts)


def path_of(example: str) -> Path:
    return EXPECTED / f"{example}.txt"


def difference(example: str) -> str:
    """What is generated now against what is kept, as the begin of a diff; empty when they are the same."""
    path = path_of(example)
    kept = path.read_text() if path.exists() else ""
    now = generate(example)
    if kept == now:
        return ""
    lines = list(
        difflib.unified_diff(kept.splitlines(), now.splitlines(), f"kept/{example}", f"now/{example}", lineterm="")
    )
    more = [f"... {len(lines) - _DIFF_LINES} more lines"] if len(lines) > _DIFF_LINES else []
    return "\n".join([*lines[:_DIFF_LINES], *more])


def stale() -> list[Path]:
    """Files of examples that are gone."""
    known = {path_of(example) for example in example_names()}
    return sorted(path for path in EXPECTED.glob("*") if path not in known)


def main() -> None:
    parser = argparse.ArgumentParser(description="compare generated code of the examples with what is kept")
    parser.add_argument("examples", nargs="*", help="names as in examples/, all by default")
    parser.add_argument("--update", action="store_true", help="keep what is generated now")
    arguments = parser.parse_args()
    # settings from outside would change the code
    for name in [n for n in os.environ if n.startswith("HELION_") or n == "TRITON_F32_DEFAULT"]:
        del os.environ[name]
    sys.path.insert(0, str(ROOT))
    differing = 0
    for example in arguments.examples or example_names():
        if arguments.update:
            EXPECTED.mkdir(parents=True, exist_ok=True)
            text = generate(example)
            if not path_of(example).exists() or path_of(example).read_text() != text:
                path_of(example).write_text(text)
                print(f"wrote {path_of(example).relative_to(ROOT)}")
            continue
        found = difference(example)
        differing += bool(found)
        print(*[found] if found else [], sep="\n", end="\n" if found else "")
    for path in stale():
        if arguments.update:
            path.unlink()
        print(f"{'removed' if arguments.update else 'no such example:'} {path.relative_to(ROOT)}")
        differing += not arguments.update
    if differing:
        raise SystemExit(f"{differing} files differ; look at the changes, then run: python scripts/replay.py --update")


if __name__ == "__main__":
    main()
