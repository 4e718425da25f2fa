"""``python -m helion calibrate``: the rates of this machine's GPU, and times of configs, as one file to send.

The file has the row of the GPU (``hardware/rows.py``), rates that predicted times are made of, and a sweep: configs of a few
kernels with their times. It has no names of users or paths.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import helion

from .. import hardware
from .. import language as hl
from ..autotuner.benchmarking import do_bench
from ..backends import BACKENDS
from ..runtime.bound import kept_entry, measured_row
from ..runtime.kernel import Kernel, kernel
from .command import Command
from .rates import experiments, measure

#: Changes with the form of the file.
FORMAT = 1
#: Milliseconds of runs of one experiment.
_MILLISECONDS = 50.0


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--send", metavar="FILE", default=None, help="write what was measured to this file, as JSON")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the search of each kernel (default: 20)")
    parser.add_argument("--dry", action="store_true", help="print what would be measured; needs no GPU")


def _run(options: argparse.Namespace) -> int:
    if options.seconds < 0:
        raise ValueError(f"--seconds must not be negative, got {options.seconds:g}")
    if options.dry:
        _print_plan(options.seconds)
        return 0
    if not torch.cuda.is_available():
        raise ValueError("calibrate measures a GPU, and torch sees none; --dry prints what it would measure")
    target = hardware.from_device_properties(torch.cuda.current_device())
    rates = measure(target, _microseconds)
    print(f"{target}: {target.num_sms} SMs, {target.bandwidth_gb_per_s:g} GB/s by the data sheet")
    for name, us in rates.items():
        print(f"  {name:22} {us:12.5g} us each", flush=True)
    found = record(target, rates, list(swept(cases(), options.seconds)))
    if options.send is None:
        print("nothing was written: --send FILE keeps all of it")
        return 0
    pathlib.Path(options.send).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"{options.send} has the row of this GPU, its rates and its sweep; attach it to an issue of the project")
    return 0


def _print_plan(seconds: float) -> None:
    for each in experiments(hardware.target(hardware.DEFAULT_TARGET)):
        print(f"{each.name:22} {each.less:10} and {each.more:10} times {each.of:g} {each.unit}")
    for case in cases("meta"):
        print(f"{case.kernel.name:22} configs for {seconds:g} s")


def _microseconds(function: Callable[[], Any]) -> float:
    return 1e3 * float(do_bench(function, _MILLISECONDS / 5, _MILLISECONDS, return_mode="median"))


# --- the sweep --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Case:
    """A kernel whose configs are timed, and its arguments."""

    kernel: Kernel
    args: tuple[Any, ...]


@kernel(ignore_warnings=["GradientNotRecorded"])
def scaled_gelu(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return ``gelu(x[M, N] * scale[N])``."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = torch.nn.functional.gelu(x[tile].to(torch.float32) * scale[tile[1]]).to(x.dtype)
    return out


@kernel(ignore_warnings=["GradientNotRecorded"])
def normalized_rows(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the RMS norm of the rows of ``x[M, N]`` times ``weight[N]``."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        values = x[tile, :].to(torch.float32)
        inverse = torch.rsqrt((values * values).mean(-1, keepdim=True) + 1e-6)
        out[tile, :] = (values * inverse * weight[:].to(torch.float32)).to(x.dtype)
    return out


@kernel(ignore_warnings=["GradientNotRecorded"])
def summed_columns(x: torch.Tensor) -> torch.Tensor:
    """Return the sums of the columns of ``x[M, N]`` in fp32."""
    out = torch.empty([x.size(1)], dtype=torch.float32, device=x.device)
    for tile_n in hl.tile(x.size(1)):
        total = hl.zeros([tile_n], dtype=torch.float32)
        for tile_m in hl.tile(x.size(0)):
            total = total + x[tile_m, tile_n].to(torch.float32).sum(0)
        out[tile_n] = total
    return out


@kernel(ignore_warnings=["GradientNotRecorded"])
def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return ``x[M, K] @ y[K, N]``."""
    out = torch.empty([x.size(0), y.size(1)], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile(out.size()):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


def cases(device: str = "cuda") -> Iterator[Case]:
    """Yield a kernel of each kind: elements, rows, columns and matmuls."""

    def made(*shape: int) -> torch.Tensor:
        if device == "meta":
            return torch.empty(shape, dtype=torch.bfloat16, device=device)
        return torch.randn(shape, device=device).to(torch.bfloat16)

    yield Case(kernel=scaled_gelu, args=(made(8192, 5120), made(5120)))
    yield Case(kernel=normalized_rows, args=(made(16384, 4096), made(4096)))
    yield Case(kernel=summed_columns, args=(made(65536, 1000),))
    yield Case(kernel=product, args=(made(4096, 4000), made(4000, 3000)))


def swept(found: Iterator[Case], seconds: float, **options: Any) -> Iterator[dict[str, Any]]:
    """Yield the measured configs of each case after a search of ``seconds``, with further ``options`` of ``autotune``."""
    for case in found if seconds else ():
        began = time.monotonic()
        asked = {"effort": "full", "seconds": seconds, "force": True, "progress": False, "random_seed": 1, **options}
        case.kernel.autotune(case.args, **asked)
        bound = case.kernel.bind(case.args)
        entry = kept_entry(bound, case.args)
        if entry is None:
            raise ValueError("times are kept in the cache: unset HELION_SKIP_CACHE")
        times = [
            {"config": bound.short_config(each.config).to_dict(), "microseconds": each.microseconds}
            for each in entry.sweep
            if each.microseconds is not None
        ]
        row = measured_row(bound, entry)
        print(f"  {case.kernel.name:22} {len(times)} configs in {time.monotonic() - began:.0f} s", flush=True)
        yield {
            "kernel": case.kernel.name,
            "arguments": [[*arg.size()] for arg in case.args],
            "times": times,
            "structure": row.structure,
            "best": row.to_list(),
        }


def record(target: hardware.Target, rates: dict[str, float], sweeps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the data of a file."""
    versions = {name: version for backend in BACKENDS.values() for name, version in backend.toolchain.versions()}
    return {
        "format": FORMAT,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else target.device,
        "date": datetime.date.today().isoformat(),
        "versions": {"helion": helion.__version__, "torch": torch.__version__, **versions},
        "row": {key: sorted(value) if isinstance(value, frozenset) else value for key, value in _fields(target)},
        "microseconds": rates,
        "sweeps": list(sweeps),
    }


def _fields(target: hardware.Target) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(target):
        value = getattr(target, field.name)
        yield field.name, dataclasses.asdict(value) if isinstance(value, hardware.Link) else value


COMMAND = Command(
    name="calibrate",
    help="measure this machine's GPU: rates and times of configs, for a row of its own",
    configure=_configure,
    run=_run,
)
