"""Build the wheel, and test it in a clean environment of each supported Python that this machine has.

    python scripts/test_wheel.py [--python PATH ...] [--wheel FILE] [--torch VERSION] [--triton VERSION] [--cuda]

Without ``--python`` it takes the first of each version on the path and of pyenv. The environment of a Python with torch
uses that torch. Otherwise pip installs ``--torch``; by default that is the CPU build of constraints-cpu.txt, if pip finds
one for this Python. With ``--cuda`` it is PyPI's build, which has CUDA's libraries (some 5 GB) and runs without a GPU, too.
Where there is no torch, the wheel's modules are compiled to bytecode, and warnings are errors. The script prints a line
per version, and exits with 1 if one fails.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SMOKE = ROOT / "scripts" / "wheel_smoke.py"
#: Versions of Python that pyproject.toml names.
VERSIONS = tuple(re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text()))


class Failed(Exception):
    """A command failed; the text is the end of its output."""


def run(command: Sequence[str | Path], folder: Path | None = None) -> str:
    """Run a command; return its output, or raise ``Failed``."""
    found = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if found.returncode != 0:
        raise Failed("\n".join(found.stdout.strip().splitlines()[-15:]))
    return found.stdout


def version_of(python: str | Path) -> str | None:
    """Return the version of a Python, such as 3.12, or None if it does not run."""
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    found = subprocess.run([python, "-c", ask], capture_output=True, text=True)
    return found.stdout.strip() if found.returncode == 0 else None


def installed() -> dict[str, str]:
    """Return a Python for each version that is on the path or in pyenv's folder."""
    found: dict[str, str] = {}
    for version in VERSIONS:
        folders = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin"))
        names = [shutil.which(f"python{version}"), *(str(folder / f"python{version}") for folder in folders)]
        for name in filter(None, names):
            if version_of(name) == version:
                found[version] = name
                break
    return found


def pinned(package: str) -> str:
    """Return the version of a package in constraints-cpu.txt."""
    (version,) = re.findall(rf"^{package}==(\S+)$", (ROOT / "constraints-cpu.txt").read_text(), re.M)
    return str(version)


def environment(python: str, folder: Path, *, sees_packages: bool) -> Path:
    """Make an environment; return its Python."""
    options = ["--system-site-packages"] if sees_packages else []
    run([python, "-m", "venv", *options, folder])
    return folder / "bin" / "python"


def has_torch(python: str) -> bool:
    return subprocess.run([python, "-c", "import torch, triton"], capture_output=True).returncode == 0


def requirements(torch: str | None, triton: str | None, *, cuda: bool) -> list[str]:
    """Return what pip installs before the wheel."""
    if cuda:  # this build requires its own Triton
        wanted = {"torch": torch, "triton": triton}
        return [f"{name}=={version}" if version else name for name, version in wanted.items()]
    return [f"torch=={torch or pinned('torch') + '+cpu'}", f"triton=={triton or pinned('triton')}"]


def test(python: str, wheel: Path, folder: Path, torch: str | None, triton: str | None, *, cuda: bool = False) -> str:
    """Test a wheel with one Python; return what was tested, or raise ``Failed``."""
    own = torch is None and not cuda and has_torch(python)
    inside = environment(python, folder / "environment", sees_packages=own)
    pip: list[str | Path] = [inside, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    if not own:
        try:
            run([*pip, *requirements(torch, triton, cuda=cuda)])
        except Failed:
            if torch is not None or cuda:
                raise
            run([*pip, "--no-deps", wheel])
            return compiled(inside)
    run([*pip, wheel])
    if not own:
        run([inside, "-m", "pip", "check"])
    empty = folder / "empty"
    empty.mkdir()
    shutil.copy(SMOKE, empty)
    return run([inside, SMOKE.name], empty).strip().splitlines()[-1]


def compiled(python: Path) -> str:
    """Compile the installed modules to bytecode, with warnings as errors."""
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    package = Path(run([python, "-c", ask]).strip(), "helion")
    run([python, "-W", "error", "-m", "compileall", "-q", "-f", package])
    return (
        f"{sum(1 for _ in package.rglob('*.py'))} modules compile; no CPU build of torch for this Python, nothing ran"
    )


def report(
    pythons: Iterable[tuple[str, str]], wheel: Path, torch: str | None, triton: str | None, *, cuda: bool
) -> bool:
    """Test a wheel with each Python and print a line per version; return whether all passed."""
    passed = True
    for version, python in pythons:
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = test(python, wheel, Path(folder), torch, triton, cuda=cuda)
                print(f"Python {version}: passed, {found}", flush=True)
            except Failed as error:
                passed = False
                print(f"Python {version}: FAILED\n{error}", flush=True)
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", nargs="*", metavar="PATH", help="Pythons to test with")
    parser.add_argument("--wheel", type=Path, metavar="FILE", help="a wheel that was built before")
    parser.add_argument("--torch", metavar="VERSION", help="version that pip installs")
    parser.add_argument("--triton", metavar="VERSION", help="version that pip installs")
    parser.add_argument("--cuda", action="store_true", help="PyPI's build of torch, with CUDA's libraries")
    options = parser.parse_args()
    if options.python:
        pythons = [(version_of(python) or "?", python) for python in options.python]
    else:
        pythons = list(installed().items())
        for version in VERSIONS:
            if version not in dict(pythons):
                print(f"Python {version}: not on this machine")
    with tempfile.TemporaryDirectory() as folder:
        wheel = options.wheel
        if wheel is None:
            run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT])
            (wheel,) = Path(folder).glob("*.whl")
        return 0 if report(pythons, wheel.resolve(), options.torch, options.triton, cuda=options.cuda) else 1


if __name__ == "__main__":
    sys.exit(main())
