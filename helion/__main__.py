"""``python -m helion explain|doctor``."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import math
import pathlib
import platform
import re
import sys
import types
from collections.abc import Sequence
from typing import Any

import torch

import helion

from . import exc, hardware, knobs
from ._files import cache_dir
from .backends import BACKENDS
from .runtime.kernel import Kernel

_DTYPES: dict[str, torch.dtype] = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int64,
    "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool, "i1": torch.bool,
    "f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2,
}  # fmt: skip
_DTYPES.update({str(d).removeprefix("torch."): d for d in list(_DTYPES.values())})
_TENSOR = re.compile(r"^(?P<dtype>\w+)\[(?P<shape>[\d,\s]*)\](?:@\((?P<strides>[\d,\s]*)\))?$")


def parse_argument(text: str) -> Any:
    """``bf16[4096,8192]`` (row-major), ``bf16[4096,4096]@(1,4096)`` (strides in elements), or a Python literal.

    Tensors are meta tensors. Raises ValueError naming the argument.
    """
    match = _TENSOR.match(text.strip())
    if match is None:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError) as error:
            raise ValueError(
                f"argument {text!r} is neither a tensor such as bf16[4096,8192] nor an int, float, bool, None or quoted string"
            ) from error
    dtype = _DTYPES.get(match["dtype"])
    if dtype is None:
        raise ValueError(f"argument {text!r}: unknown dtype {match['dtype']!r}; known are {', '.join(_DTYPES)}")
    shape = _integers(match["shape"])
    largest = max((*shape, 1)) if match["strides"] is None else max((*shape, *_integers(match["strides"]), 1))
    if largest >= 2**62 or math.prod(max(n, 1) for n in shape) >= 2**62:
        raise ValueError(f"argument {text!r}: no tensor is so large")
    if match["strides"] is None:
        return torch.empty(shape, dtype=dtype, device="meta")
    strides = _integers(match["strides"])
    if len(strides) != len(shape):
        raise ValueError(f"argument {text!r}: {len(strides)} strides for {len(shape)} dimensions")
    return torch.empty_strided(shape, strides, dtype=dtype, device="meta")


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part.strip())


def find_kernel(spec: str) -> Kernel:
    """The kernel ``FILE.py::NAME``. Raises ValueError naming what is missing."""
    file, separator, name = spec.partition("::")
    path = pathlib.Path(file)
    if not separator or not name:
        raise ValueError(f"{spec!r} must have the form FILE.py::KERNEL")
    if not path.is_file():
        raise ValueError(f"there is no file {file!r}")
    module = _import(path)
    found = getattr(module, name, None)
    if not isinstance(found, Kernel):
        kernels = sorted(n for n, v in vars(module).items() if isinstance(v, Kernel))
        raise ValueError(f"{file} has no kernel {name!r}; it has {', '.join(kernels) or 'none'}")
    return found


def _import(path: pathlib.Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{str(path)!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever the user's file raises
        raise ValueError(f"{str(path)!r} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def explain(options: argparse.Namespace) -> int:
    kernel = find_kernel(options.kernel)
    bound = kernel.bind([parse_argument(a) for a in options.args], target=options.target)
    print(bound.explain("json" if options.json else "text"))
    if options.code:
        print(f"\n{bound.to_triton_code()}")
    return 0


def doctor(_: argparse.Namespace) -> int:
    for name, value in _doctor():
        print(f"{name:>10}  {value}")
    return 0


def _doctor() -> list[tuple[str, str]]:
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


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(prog="python -m helion", description=__doc__)
    commands = root.add_subparsers(dest="command", required=True)
    show = commands.add_parser(
        "explain", help="facts, seeds with reasons, predicted and measured resources of a kernel"
    )
    show.add_argument("kernel", help="FILE.py::KERNEL")
    show.add_argument(
        "--args",
        nargs="*",
        default=[],
        help="tensors as bf16[4096,8192], with strides as bf16[4096,4096]@(1,4096); literals for int, float, bool, None, str",
    )
    show.add_argument("--target", default=None, help="sm_80, sm_90, sm_100, gfx942 ...")
    show.add_argument("--code", action="store_true", help="also print the generated module")
    show.add_argument("--json", action="store_true", help="print JSON")
    show.set_defaults(run=explain)
    check = commands.add_parser("doctor", help="versions, device, target, and what works here")
    check.set_defaults(run=doctor)
    return root


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        return options.run(options)
    except (ValueError, exc.Base, AssertionError, TypeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
