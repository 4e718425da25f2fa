"""``python -m helion tune``: kernels for arguments that a file lists.

target = "h200"            # with no GPU: what is compiled for (default: HELION_TARGET, else sm_90)

[[tune]]
kernel = "kernels.py::softmax"
args = [["bf16[4096,8192]"], ["bf16[4096,1000]"]]
effort = "quick"           # and other options of kernel.autotune
"""

from __future__ import annotations

import argparse
import importlib
import pathlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .. import exc
from ..autotuner.cache.rows import Entry, exported
from ..autotuner.options import Options
from ..runtime.bound import ranked_offline
from ..runtime.kernel import Kernel
from ..testing import map_tensors
from .arguments import find_kernel, parse_arguments
from .command import Command


@dataclass(frozen=True, kw_only=True)
class Item:
    """One kernel with the arguments of one call, of meta tensors."""

    kernel: Kernel
    text: str
    args: tuple[Any, ...]
    options: Mapping[str, Any]


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("spec", help="a TOML file: [[tune]] tables with kernel, args and options of kernel.autotune")
    parser.add_argument("--out", default=None, help="with no GPU: the file for the configs (default: SPEC with .json)")
    parser.add_argument("--configs", type=int, default=8, help="with no GPU: mutations of the seeds that are compiled")
    parser.add_argument("--force", action="store_true", help="tune also what was tuned before")
    parser.add_argument("--offline", action="store_true", help="as with no GPU")


def _run(options: argparse.Namespace) -> int:
    path = pathlib.Path(options.spec)
    spec = _read(path)
    items = list(_items(spec, path))
    if torch.cuda.is_available() and not options.offline:
        failed = sum(not _tuned(item, options.force) for item in items)
        print(f"{len(items) - failed} of {len(items)} tuned")
        return 1 if failed else 0
    entries = [entry for item in items if (entry := _ranked(item, spec.get("target"), options.configs)) is not None]
    out = path.with_suffix(".json") if options.out is None else pathlib.Path(options.out)
    out.write_text(exported(entries), encoding="utf-8")
    print(f"{len(entries)} of {len(items)} compiled and ranked: {out}")
    return 1 if len(entries) < len(items) else 0


def _read(path: pathlib.Path) -> dict[str, Any]:
    toml = _toml()
    try:
        found: dict[str, Any] = toml.loads(path.read_text(encoding="utf-8"))
    except toml.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from error
    if unknown := sorted(set(found) - {"target", "tune"}):
        raise ValueError(f"{path}: unknown keys {', '.join(unknown)}; known are target and [[tune]]")
    return found


def _toml() -> Any:
    try:
        return importlib.import_module("tomllib")
    except ModuleNotFoundError:  # Python 3.10
        pass
    try:
        return importlib.import_module("tomli")
    except ModuleNotFoundError as error:
        raise ValueError("reading TOML needs Python 3.11, or tomli: pip install tomli") from error


def _items(spec: Mapping[str, Any], path: pathlib.Path) -> Iterator[Item]:
    for at, table in enumerate(spec.get("tune", ())):
        if not isinstance(table.get("kernel"), str) or not isinstance(table.get("args"), list):
            raise ValueError(f'{path}: [[tune]] number {at + 1} needs kernel = "FILE.py::NAME" and args = [[...], ...]')
        kernel = find_kernel(str(path.parent / table["kernel"]))
        options = {key: value for key, value in table.items() if key not in ("kernel", "args")}
        Options.of(kernel.settings, "quick", options)
        for texts in table["args"]:
            positional, keywords = parse_arguments(texts)
            yield Item(
                kernel=kernel,
                text=f"{kernel.name}({', '.join(texts)})",
                args=kernel.normalize_args(*positional, **keywords),
                options=options,
            )


def _tuned(item: Item, force: bool) -> bool:
    args = tuple(map_tensors(value, _filled) for value in item.args)
    try:
        item.kernel.autotune(args, force=force, **{"effort": "quick", **item.options})
    except exc.Base as error:
        print(f"error: {item.text}: {error}", file=sys.stderr)
        return False
    return True


def _filled(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on the GPU like this meta tensor: normally distributed numbers, integers that are 0 or 1."""
    values = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cuda")
    if tensor.is_floating_point():
        return values.copy_(torch.randn(tensor.size(), device="cuda"))
    return values.copy_(torch.randint(0, 2, tensor.size(), device="cuda"))


def _ranked(item: Item, target: str | None, configs: int) -> Entry | None:
    options = Options.of(item.kernel.settings, "quick", item.options)
    try:
        bound = item.kernel.bind(item.args, target=target)
        entry = ranked_offline(bound, item.args, options, configs)
    except exc.Base as error:
        print(f"error: {item.text}: {error}", file=sys.stderr)
        return None
    left_out = sum(outcome.microseconds is None for outcome in entry.sweep)
    print(
        f"{item.text}: {len(entry.sweep)} compiled, {left_out} left out: {bound.format_kernel_decorator(entry.row.config)}"
    )
    return entry


COMMAND = Command(
    name="tune",
    help="tune kernels that a file lists; with no GPU, compile and rank them",
    configure=_configure,
    run=_run,
)
