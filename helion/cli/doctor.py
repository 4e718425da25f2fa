"""``python -m helion doctor``: what works on this machine."""

from __future__ import annotations

import argparse
import platform

import torch

import helion

from .. import hardware, knobs
from .._files import cache_dir
from ..backends import BACKENDS
from .command import Command


def _configure(parser: argparse.ArgumentParser) -> None:
    """No options."""


def _run(_: argparse.Namespace) -> int:
    for name, value in _rows():
        print(f"{name:>10}  {value}")
    return 0


def _rows() -> list[tuple[str, str]]:
    cuda = torch.cuda.is_available()
    target = (
        hardware.from_device_properties(0) if cuda else hardware.target(knobs.TARGET.read() or hardware.DEFAULT_TARGET)
    )
    rows = [
        ("helion", helion.__version__),
        ("python", platform.python_version()),
        ("torch", torch.__version__),
        *(each for backend in BACKENDS.values() for each in backend.toolchain.versions()),
        ("device", torch.cuda.get_device_name(0) if cuda else "none"),
        ("target", f"{target.name} ({target.device})"),
        ("cache", str(cache_dir())),
    ]
    if cuda:
        rows.append(
            ("works", "kernels on the GPU, on CPU tensors in Triton's interpreter, and offline resource reports")
        )
    else:
        rows.append(
            ("works", "kernels on CPU tensors in Triton's interpreter, and offline resource reports for any target")
        )
        rows.append(("missing", "a GPU: nothing can be timed here"))
    return rows


COMMAND = Command(name="doctor", help="versions, device, target, and what works here", configure=_configure, run=_run)
