"""Generate code, and compare it with the texts in test/replay/expected. There is one text per example, and one per
config key for a small kernel.

    python scripts/replay.py [EXAMPLE | keys/KEY ...] [--update]

Each case of an example gives two modules for sm_90, with the conservative config and with the default one. Each entry
of test/replay/config_keys.py gives the changes of its key in a module, for each of its targets. Comments that name
lines of the source are left out. Equal texts of one file appear once, under all their names.

The script exits with 1 and prints a diff when code differs; `--update` writes the files instead.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
EXPECTED = ROOT / "test" / "replay" / "expected"
KEYS = "keys/"
TARGET = "sm_90"
NO_EXAMPLES = ("demo",)
#: The path of the kernel's module, which differs between machines.
_PLACE = re.compile(r"^_source_module = source_module\(.*\)$", re.MULTILINE)
_DIFF_LINES = 60


def example_names() -> list[str]:
    """Return the names of the examples, sorted."""
    return sorted(p.stem for p in (ROOT / "examples").glob("*.py") if p.stem not in NO_EXAMPLES and p.stem[0] != "_")


def key_names() -> list[str]:
    """Return the files of the config keys, as `keys/KEY`."""
    keys = _config_keys()
    return [f"{KEYS}{key}" for key in (keys.PLAIN, *keys.KEYS)]


def _config_keys() -> Any:
    from helion._testing import import_path  # 2 s of torch and triton, after the environment is cleared

    return import_path(ROOT / "test" / "replay" / "config_keys.py")


def generate(name: str) -> str:
    """Return the text of one file: the modules of an example, or the entries of a config key."""
    texts: dict[str, list[str]] = {}
    for label, code in _config_keys().modules(name.removeprefix(KEYS)) if name.startswith(KEYS) else _cases(name):
        texts.setdefault(_PLACE.sub("_source_module = source_module(<module>, <file>)", code).rstrip(), []).append(
            label
        )
    parts = ["\n".join([*(f"#### {label}" for label in labels), "", code, ""]) for code, labels in texts.items()]
    return "\n\n".join(parts)


def _cases(example: str) -> Iterator[tuple[str, str]]:
    """Yield labels and modules of an example."""
    from helion._testing import as_meta, import_path  # 2 s of torch and triton, after the environment is cleared

    for case, kernel, args in import_path(ROOT / "examples" / f"{example}.py").cases():
        bound = kernel.bind(as_meta(args), target=TARGET)
        for name, config in (("conservative", bound.conservative_config()), ("default", bound.default_config())):
            yield f"{case}: {name}", bound.to_triton_code(config, output_origin_lines=False)


def path_of(name: str) -> Path:
    return EXPECTED / f"{name}.txt"


def difference(name: str) -> str:
    """Return the begin of a diff between the expected and the generated text; empty when they are the same."""
    path = path_of(name)
    kept = path.read_text() if path.exists() else ""
    now = generate(name)
    if kept == now:
        return ""
    lines = list(difflib.unified_diff(kept.splitlines(), now.splitlines(), f"kept/{name}", f"now/{name}", lineterm=""))
    more = [f"... {len(lines) - _DIFF_LINES} more lines"] if len(lines) > _DIFF_LINES else []
    return "\n".join([*lines[:_DIFF_LINES], *more])


def stale() -> list[Path]:
    """Return the files of examples and keys that no longer exist."""
    known = {path_of(name) for name in (*example_names(), *key_names())}
    return sorted(path for path in EXPECTED.rglob("*.*") if path not in known)


def main() -> None:
    parser = argparse.ArgumentParser(description="compare generated code with what is kept")
    parser.add_argument("names", nargs="*", help="as in examples/, or keys/KEY; all by default")
    parser.add_argument("--update", action="store_true", help="keep what is generated now")
    arguments = parser.parse_args()
    # settings from outside would change the code
    for name in [n for n in os.environ if n.startswith("HELION_") or n == "TRITON_F32_DEFAULT"]:
        del os.environ[name]
    sys.path[:0] = [str(ROOT), str(ROOT / "test")]
    differing = 0
    for name in arguments.names or (*example_names(), *key_names()):
        if arguments.update:
            update(name)
            continue
        found = difference(name)
        differing += bool(found)
        print(*[found] if found else [], sep="\n", end="\n" if found else "")
    for path in stale():
        if arguments.update:
            path.unlink()
        print(f"{'removed' if arguments.update else 'belongs to nothing:'} {path.relative_to(ROOT)}")
        differing += not arguments.update
    if differing:
        raise SystemExit(f"{differing} files differ; look at the changes, then run: python scripts/replay.py --update")


def update(name: str) -> None:
    """Keep what is generated now."""
    path, text = path_of(name), generate(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
