"""Compile every example under the oldest and the newest supported Triton, with scripts/compile_examples.py.

    .venv/bin/python scripts/test_versions.py [--only 3.9] [arguments of compile_examples.py]

Each Triton has an environment of its own, `.venv-triton-3.6` and so on. All other packages, such as torch, are those
of the environment that runs this. The script exits with 1 when a version has a failure.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Supported range of the package; a new Triton is one row here.
VERSIONS = {"3.6": "3.6.0", "3.9": "3.9.0"}


def environment(version: str, release: str) -> Path:
    """Return the Python of an environment with that Triton before this one's packages; make it if it does not exist."""
    folder = ROOT / f".venv-triton-{version}"
    python = folder / "bin" / "python"
    packages = sysconfig.get_path("purelib")
    # Another content means another Triton, Python or parent: the environment is made again.
    made_from = f"triton {release}, Python {sys.version}, beside {packages}"
    stamp = folder / "made-from.txt"
    if stamp.is_file() and stamp.read_text() == made_from and python.exists():
        return python
    if folder.exists():
        shutil.rmtree(folder)
    print(f"set-up: {folder.name}: installing triton=={release}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    # addsitedir puts the parent's packages after this environment's own and follows the parent's path files.
    Path(own, "parent.pth").write_text(f"import site; site.addsitedir({packages!r})\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-qq", "--disable-pip-version-check"]
    # --ignore-installed: pip sees the parent's Triton and would install nothing.
    subprocess.run([*pip, "--no-deps", "--ignore-installed", f"triton=={release}"], check=True)
    stamp.write_text(made_from)
    return python


def main() -> None:
    parser = argparse.ArgumentParser(description="compile the examples under other Tritons")
    parser.add_argument("--only", choices=VERSIONS, help="this version alone")
    arguments, rest = parser.parse_known_args()
    versions = [arguments.only] if arguments.only else list(VERSIONS)
    failed = []
    for version in versions:
        command = [environment(version, VERSIONS[version]), ROOT / "scripts" / "compile_examples.py"]
        if subprocess.run([*command, "--expect-triton", version, *rest]).returncode != 0:
            failed.append(version)
    print("".join(f"Triton {v}: {'FAILED' if v in failed else 'passed'}\n" for v in versions), end="")
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
