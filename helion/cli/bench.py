"""``helion bench``: time of a kernel on this machine's GPU, and those of eager PyTorch and torch.compile."""

from __future__ import annotations

import argparse
import functools
import json
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .._support.logs import say
from ..autotuner.benchmarking import do_bench
from ..runtime.bound import BoundKernel
from ..runtime.kernel import Kernel
from ..testing import check, map_tensors
from .arguments import HELP, find_kernel, parse_arguments
from .command import Command
from .work import filled

#: Rounds in which all variants are timed in turn, so that a change of clocks meets all of them alike.
ROUNDS = 5
#: Milliseconds of runs of a variant in one round.
MILLISECONDS = 20.0


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kernel", help="FILE.py::KERNEL")
    parser.add_argument("--args", nargs="*", default=[], help=f"{HELP}; floats are random, integers 0 or 1")
    parser.add_argument(
        "--reference",
        metavar="NAME",
        help="a function of FILE.py with the same arguments, in PyTorch, to compare with; `reference` if FILE.py has that",
    )
    parser.add_argument("--no-compile", action="store_true", help="do not time torch.compile of the reference")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _run(options: argparse.Namespace) -> int:
    kernel = find_kernel(options.kernel)
    reference = _reference(kernel, options.reference)
    positional, keywords = parse_arguments(options.args)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        say("helion bench: there is no GPU: the interpreter runs the kernel, and its time says nothing about a GPU's")
    torch.manual_seed(0)
    args = tuple(
        map_tensors(value, lambda t: filled(t, device)) for value in kernel.normalize_args(*positional, **keywords)
    )
    variants: dict[str, Callable[..., Any]] = {"helion": kernel}
    if reference is not None:
        variants["eager"] = reference
        if not options.no_compile:
            variants["torch.compile"] = torch.compile(reference)
    error = None if reference is None else check(kernel.name, kernel, reference, args)
    found = {
        "kernel": kernel.name,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu, interpreted",
        "max_error": error,
        "microseconds": _times(variants, args),
        **_bound(kernel.bind(args)),
    }
    print(json.dumps(found) if options.json else _text(found))
    return 0


def _reference(kernel: Kernel, name: str | None) -> Callable[..., Any] | None:
    found = kernel.fn.__globals__.get(name or "reference")
    if name is not None and not callable(found):
        raise ValueError(f"the file of {kernel.name} has no function {name!r} to compare with")
    return found if callable(found) else None


def _times(variants: Mapping[str, Callable[..., Any]], args: tuple[Any, ...]) -> dict[str, float]:
    """Return the median microseconds of each variant: of the device on a GPU, else of the host."""
    samples: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(ROUNDS if torch.cuda.is_available() else 1):
        for name, function in variants.items():
            call = functools.partial(function, *args)
            samples[name].append(1e3 * do_bench(call, 5.0, MILLISECONDS, return_mode="median"))
    return {name: statistics.median(each) for name, each in samples.items()}


def _bound(bound: BoundKernel) -> dict[str, Any]:
    """Return the config that ran, the predicted time and the least possible time on the kernel's target."""
    explained = json.loads(bound.explain("json"))
    roofline = explained["roofline"]
    return {
        "target": bound.target.name,
        "config": dict(bound.short_config()),
        "predicted_us": roofline["predicted_us"],
        "bound_us": max(roofline["memory_us"], roofline["arithmetic_us"]),
    }


def _text(found: Mapping[str, Any]) -> str:
    times = found["microseconds"]
    lines = [f"{found['kernel']} on {found['device']}"]
    for name, value in times.items():
        ratio = "" if name == "helion" else f"  {value / times['helion']:.2f} times the kernel's time"
        lines.append(f"  {name:14} {value:10.1f} us{ratio}")
    lines.append(f"  {'predicted':14} {found['predicted_us']:10.1f} us, for {found['target']}")
    lines.append(f"  {'bound':14} {found['bound_us']:10.1f} us, the least that memory and arithmetic allow")
    if found["max_error"] is not None:
        lines.append(f"  right: largest difference from the reference in fp64 is {found['max_error']:.1e}")
    lines.append(f"  config         {found['config']}")
    return "\n".join(lines)


COMMAND = Command(
    name="bench",
    help="time a kernel on this machine's GPU, compare it with PyTorch, and state its bound",
    configure=_configure,
    run=_run,
)
