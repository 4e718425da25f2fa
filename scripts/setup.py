"""Make the environment that the make targets run in; return at once when it exists already.

    python3 scripts/setup.py run|test|lint|docs|plot|fit [--venv .venv]   what `make demo`, `test`, ... need
    python3 scripts/setup.py remove                      [--venv .venv]   delete it again

Two kinds of machine:

* The invoking Python has torch built for CUDA or ROCm. That torch, its triton and its numpy are used as they are:
  the environment sees the invoking Python's packages, pip may only add what is missing, and `run` needs no network.
* It has not. pip installs torch, triton and then the rest, in the exact versions of constraints-cpu.txt. (For a torch
  *range* pip would choose the newest CUDA build, several GB.)

The script uses the standard library and pip only, since it runs before anything is installed. uv and nox do not keep a
machine's torch.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import runpy
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

if sys.version_info < (3, 10):  # noqa: UP036  (a person's `python3` may be older; say so instead of failing in a syntax)
    raise SystemExit("set-up: Python 3.10 or newer is needed, this is " + platform.python_version() + "; set PYTHON=")

ROOT = Path(__file__).resolve().parents[1]
PROJECT = ROOT / "pyproject.toml"
CONSTRAINTS = ROOT / "constraints-cpu.txt"
STATE = "helion-setup.json"
OLDEST_TORCH = (2, 11)
# The order matters without a torch of the machine's own: triton follows torch.
PINNED_FIRST = ("torch", "triton")
# An accelerator's torch comes with these; replacing one of them breaks it.
KEPT = ("torch", "triton", "numpy")
# Needs of each kind of run beyond the package's own dependencies: extras and groups of pyproject.toml.
STAGES: dict[str, tuple[str, ...]] = {
    "run": ("cli",),
    "test": ("cli", "test", "report"),
    "lint": ("lint",),
    "docs": ("docs",),
    "plot": ("report",),
    "fit": ("fit",),
}
# Optional extras of a stage, which runs without them if they are unavailable. With an accelerator's torch they are left
# out, since they could replace its CUDA bindings.
OPTIONAL: dict[str, tuple[str, ...]] = {"test": ("cute",)}


class SetupError(Exception):
    """The environment cannot be made; the message says what is missing and what to do."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inherited:
    """The invoking Python's accelerator build of torch."""

    torch: str  # version, as its metadata has it
    site_dirs: tuple[str, ...]  # the package folders to see from the environment, in order


@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """The origin of an environment and the progress of its installation, a JSON file in the environment."""

    python: str  # the Python that made it
    identity: dict[str, str]  # another value: build afresh
    inputs: str  # another value: install again, in place
    stages: tuple[str, ...] = ()  # finished ones
    unfinished: str | None = None  # begun and then killed: nothing in the environment is trusted


def say(text: str) -> None:
    print(f"set-up: {text}", flush=True)


# ---------------------------------------------------------------------------------------------------------------------
# Requirements


def find_inherited() -> Inherited | None:
    """Return the invoking Python's torch if it is built for an accelerator and new enough. Read files, import
    nothing."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    version_file = Path(spec.origin).with_name("version.py")
    if not version_file.is_file():
        return None
    built = runpy.run_path(str(version_file))
    if not (built.get("cuda") or built.get("hip")):
        return None
    numbers = re.match(r"(\d+)\.(\d+)", built["__version__"])
    if numbers is None or (int(numbers[1]), int(numbers[2])) < OLDEST_TORCH:
        say(f"torch {built['__version__']} of {sys.executable} is older than 2.11 and is not used")
        return None
    site_dirs = tuple(p for p in sys.path if Path(p).name in ("site-packages", "dist-packages"))
    return Inherited(torch=importlib.metadata.version("torch"), site_dirs=site_dirs)


def pins() -> dict[str, list[str]]:
    """Return the lines of constraints-cpu.txt by normalized name."""
    found: dict[str, list[str]] = {}
    for line in CONSTRAINTS.read_text().splitlines():
        if line and not line.startswith("#"):
            found.setdefault(normalised(line.split("==")[0]), []).append(line)
    return found


def normalised(name: str) -> str:
    """Return the spelling under which package names compare equal."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def identity(inherited: Inherited | None) -> dict[str, str]:
    if inherited is None:
        torch = ", ".join(line for name in PINNED_FIRST for line in pins()[name])
    else:
        torch = f"torch {inherited.torch} of {os.pathsep.join(inherited.site_dirs)}"
    return {"Python": f"{platform.python_version()} {platform.machine()}", "torch": torch, "checkout": str(ROOT)}


def inputs() -> str:
    return hashlib.sha256(b"\0".join(p.read_bytes() for p in (PROJECT, CONSTRAINTS, Path(__file__)))).hexdigest()


def pyproject() -> dict[str, Any]:
    """Return the tables of pyproject.toml."""
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10: pip carries one
        from pip._vendor import tomli as tomllib  # type: ignore[import-not-found,no-redef,unused-ignore]
    found: dict[str, Any] = tomllib.loads(PROJECT.read_text())
    return found


def extra_lines(extras: tuple[str, ...]) -> list[str]:
    """Return the requirement strings of extras and of dependency groups."""
    tables = pyproject()
    known = {**tables["dependency-groups"], **tables["project"]["optional-dependencies"]}
    return [line for extra in extras for line in known[extra]]


def requirements(stage: str, inherited: Inherited | None) -> list[str]:
    """Return the requirement strings of a stage."""
    extras = extra_lines(STAGES[stage])
    if stage != "run":
        return extras
    # With an accelerator's torch `run` uses the installed packages, so that it works with no network.
    return list(pyproject()["project"]["dependencies"]) + ([] if inherited else extras)


# ---------------------------------------------------------------------------------------------------------------------
# The environment


def read_state(venv: Path) -> State | None:
    try:
        fields = json.loads((venv / STATE).read_text())
    except FileNotFoundError:
        return None
    return State(**{**fields, "stages": tuple(fields["stages"])})


def write_state(venv: Path, state: State) -> None:
    draft = venv / (STATE + ".new")
    draft.write_text(json.dumps(dataclasses.asdict(state), indent=1))
    draft.replace(venv / STATE)  # a kill leaves the old state or the new one, never half of one


def interpreter(venv: Path) -> Path:
    return venv / "bin" / "python"


def why_rebuild(venv: Path, wanted: dict[str, str]) -> str | None:
    """Return None when the environment can be kept, else the reason why not."""
    state = read_state(venv)
    if state is None:
        return "it is new"
    if state.unfinished is not None:
        return "the last set-up was interrupted"
    if not interpreter(venv).exists():
        return "its Python is gone"
    was = state.identity
    return "; ".join(f"{k} was {was.get(k)}, is {v}" for k, v in wanted.items() if was.get(k) != v) or None


def remove(venv: Path) -> None:
    """Delete an environment made here. If it is interrupted, the next call deletes the rest."""
    doomed = venv.with_name(venv.name + ".removing")
    shutil.rmtree(doomed, ignore_errors=True)
    if read_state(venv) is not None:
        venv.rename(doomed)
        shutil.rmtree(doomed)


def clear(venv: Path) -> None:
    """Clear `venv`; a folder of another origin is renamed, never deleted."""
    remove(venv)
    if not venv.exists():
        return
    names = (venv.with_name(f"{venv.name}.replaced-{n}") for n in range(1, 1000))
    aside = next(name for name in names if not name.exists())
    say(f"{venv} was not made here; it is now {aside.name}")
    venv.rename(aside)


def create(venv: Path, state: State, inherited: Inherited | None) -> None:
    """Create an empty environment that sees this checkout and, with an inherited torch, the invoking Python's
    packages."""
    clear(venv)
    venv.mkdir(parents=True)
    write_state(venv, dataclasses.replace(state, unfinished="create"))
    own_pip = importlib.util.find_spec("ensurepip") is not None  # Debian keeps it in a package of its own
    command = [sys.executable, "-m", "venv", *([] if own_pip else ["--without-pip"]), str(venv)]
    if subprocess.run(command, stdin=subprocess.DEVNULL).returncode != 0:
        raise SetupError(f"`{' '.join(command)}` failed (above)")
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.run([interpreter(venv), "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    # A path file, not an editable install, which would need setuptools.
    Path(packages, "helion-checkout.pth").write_text(f"{ROOT}\n")
    if inherited is not None:
        # --system-site-packages would show the base Python's packages, not those of an environment that invokes this.
        lines = [f"import site; site.addsitedir({folder!r})\n" for folder in inherited.site_dirs]
        Path(packages, "helion-inherited.pth").write_text("".join(lines))


def constraints_file(venv: Path, inherited: Inherited | None) -> Path:
    """Return constraints-cpu.txt, without the packages that an inherited torch's Python already has."""
    if inherited is None:
        return CONSTRAINTS
    present = {normalised(d.metadata["Name"]): d.version for d in importlib.metadata.distributions()}
    lines = [line for name, group in pins().items() if name not in present for line in group]
    lines += [f"{name}=={present[name]}" for name in KEPT if name in present]
    file = venv / "constraints.txt"
    file.write_text("\n".join(lines) + "\n")
    return file


def pip_install(venv: Path, constraints: Path, wanted: list[str]) -> None:
    own = [str(interpreter(venv)), "-m", "pip"]
    theirs = [sys.executable, "-m", "pip", "--python", str(interpreter(venv))]
    has_own = any(venv.glob("lib/python*/site-packages/pip"))
    if not has_own and importlib.util.find_spec("pip") is None:
        raise SetupError(f"{sys.executable} has neither pip nor ensurepip; install one of them")
    options = ["-qq", "--disable-pip-version-check", "--no-input", "--retries", "2", "-c", str(constraints)]
    command = [*(own if has_own else theirs), "install", *options, *wanted]
    began = time.monotonic()
    say("installing " + " ".join(wanted))
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        said = "\n".join("    " + line for line in done.stderr.strip().splitlines()[-8:])
        raise SetupError(f"pip could not install {', '.join(wanted)}:\n{said}")
    say(f"  done in {time.monotonic() - began:.0f} s")


def missing(venv: Path, wanted: list[str]) -> list[str]:
    """Return the requirements of which the environment has no version at all."""
    ask = "import importlib.metadata as m; print(*(d.metadata['Name'] for d in m.distributions()))"
    listed = subprocess.run([interpreter(venv), "-c", ask], capture_output=True, text=True, check=True).stdout
    present = set(map(normalised, listed.split()))
    return [line for line in wanted if normalised(re.split(r"[^\w.-]", line)[0]) not in present]


def install(venv: Path, stage: str, inherited: Inherited | None) -> None:
    constraints = constraints_file(venv, inherited)
    wanted = requirements(stage, inherited)
    if stage == "run" and inherited is not None:
        # pip would also judge what that torch itself requires, which a machine's own build need not declare.
        wanted = missing(venv, wanted)
    try:
        if stage == "run" and inherited is None:
            for name in PINNED_FIRST:
                pip_install(venv, constraints, pins()[name])
        if wanted:
            pip_install(venv, constraints, wanted)
    except SetupError as error:
        lacking = ", ".join(missing(venv, wanted)) or "another version of what is installed"
        rest = "" if stage == "run" else "\n    `make demo` does not need them."
        raise SetupError(f"`{stage}` lacks {lacking}. {error}{rest}") from None
    if inherited is None and stage in OPTIONAL:
        install_optional(venv, stage, constraints)


def install_optional(venv: Path, stage: str, constraints: Path) -> None:
    try:
        pip_install(venv, constraints, extra_lines(OPTIONAL[stage]))
    except SetupError as error:
        say(
            f"{error}\n    `{stage}` goes on without and skips what needs it; `make clean` lets the next set-up try again"
        )


def ensure(venv: Path, stage: str) -> None:
    """Install everything `stage` needs into `venv`.

    Raises:
        SetupError: a requirement is neither installed nor available. Packages that were installed before remain.
    """
    inherited = find_inherited()
    wanted = identity(inherited)
    reason = why_rebuild(venv, wanted)
    if reason is not None:
        say(f"making {venv} with Python {platform.python_version()} and {wanted['torch'].split(' of ')[0]}: {reason}")
        state = State(python=sys.executable, identity=wanted, inputs=inputs())
        create(venv, state, inherited)
    else:
        known = read_state(venv)
        assert known is not None
        state = known if known.inputs == inputs() else dataclasses.replace(known, inputs=inputs(), stages=())
    for each in dict.fromkeys(("run", stage)):
        if each in state.stages:
            continue
        write_state(venv, dataclasses.replace(state, unfinished=each))
        try:
            install(venv, each, inherited)
        except SetupError:
            write_state(venv, state)
            raise
        state = dataclasses.replace(state, stages=(*state.stages, each))
        write_state(venv, state)


def leave_own_environment(venv: Path) -> None:
    """Restart with the parent Python when the running Python is the environment's own (someone activated it)."""
    if Path(sys.prefix).resolve() != venv:
        return
    state = read_state(venv)
    if state is None:
        raise SetupError(f"{venv} runs this and was not made here; choose another place: make VENV=.venv-helion ...")
    os.execv(state.python, [state.python, *sys.argv])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("action", choices=[*STAGES, "remove"])
    parser.add_argument("--venv", type=Path, default=Path(".venv"), help="folder, relative to the checkout")
    arguments = parser.parse_args()
    venv = (ROOT / arguments.venv).resolve()
    try:
        leave_own_environment(venv)
        # Two makes at once (make -j lint test): the second waits, then finds the work done.
        with open(venv.with_name(venv.name + ".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if arguments.action == "remove":
                remove(venv)
            else:
                ensure(venv, arguments.action)
    except SetupError as error:
        raise SystemExit(f"set-up: {error}") from None


if __name__ == "__main__":
    main()
