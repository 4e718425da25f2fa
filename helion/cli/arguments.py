"""Kernels and their arguments as text on a command line."""

from __future__ import annotations

import ast
import importlib.util
import math
import pathlib
import pkgutil
import re
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..runtime.kernel import Kernel

#: Help text of subcommands about arguments.
HELP = (
    "tensors as bf16[4096,8192], with strides in elements as bf16[4096,4096]@(1,4096); dtypes as torch.float32 or f32; "
    "functions as module:function; Python literals, and tuples, lists and dicts of all these but functions; "
    "with name= in front by keyword; several in one text with commas between them"
)
_DTYPES: dict[str, torch.dtype] = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int64,
    "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "i1": torch.bool,
    "f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2,
}  # fmt: skip
_DTYPES.update({name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)})
_FLOATS = {"inf": math.inf, "nan": math.nan}
_KEYWORD = re.compile(r"^\s*(?P<name>[A-Za-z_]\w*)\s*=(?!=)(?P<value>.*)$", re.DOTALL)
_NO_DIMENSIONS = re.compile(r"\b(\w+)\[\s*\]")
_FUNCTION = re.compile(r"^\s*(?P<module>[A-Za-z_][\w.]*):(?P<name>[A-Za-z_][\w.]*)\s*$")


def parse_arguments(texts: Sequence[str]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Parse positional and keyword arguments of a call. Raises ValueError naming the argument.

    A text with commas outside of brackets has several arguments.
    """
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for text in (part for each in texts for part in _split(each)):
        match = _KEYWORD.match(text)
        if match is None:
            if keywords:
                raise ValueError(f"argument {text!r} without a name follows {next(iter(keywords))}=")
            positional.append(parse_argument(text))
        elif match["name"] in keywords:
            raise ValueError(f"argument {match['name']}= is given twice")
        else:
            keywords[match["name"]] = parse_argument(match["value"])
    return tuple(positional), keywords


def _split(text: str) -> list[str]:
    """Return the parts of a text between commas that are outside of brackets and strings."""
    parts, begin, depth, quote = [], 0, 0, ""
    for at, character in enumerate(text):
        if quote:
            quote = "" if character == quote and text[at - 1] != "\\" else quote
        elif character in "'\"":
            quote = character
        elif character == "," and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
        else:
            depth += (character in "([{") - (character in ")]}")
    last = text[begin:]
    return [*parts, last] if last.strip() or not parts else parts


def parse_argument(text: str) -> Any:
    """Parse one argument to its value.

    It is ``bf16[4096,8192]`` (row-major), ``bf16[4096,4096]@(1,4096)`` (strides in elements), a dtype,
    ``module:function``, a Python literal, or a tuple, list or dict of them.

    Tensors are meta tensors. Raises ValueError naming the argument.
    """
    function = _FUNCTION.match(text)
    try:
        if function is not None:
            return _function(function["module"], function["name"])
        return _value(_parsed(text.strip()))
    except SyntaxError as error:
        raise ValueError(f"argument {text!r} is {_NEITHER}") from error
    except ValueError as error:
        raise ValueError(f"argument {text!r}: {error}") from error


def _parsed(text: str) -> ast.expr:
    """Parse an expression. ``f32[]``, a tensor without dimensions, is not Python; it is read as ``f32[()]``."""
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        return ast.parse(_NO_DIMENSIONS.sub(r"\1[()]", text), mode="eval").body


_NEITHER = (
    "neither a tensor such as bf16[4096,8192], a dtype such as torch.float32, module:function, nor an int, float, bool, "
    "None or quoted string, nor a tuple, list or dict of these"
)


def _value(node: ast.expr) -> Any:
    match node:
        case ast.BinOp(left=ast.Subscript() as tensor, op=ast.MatMult(), right=strides):
            return _tensor(tensor, _integers(strides))
        case ast.Subscript():
            return _tensor(node, None)
        case ast.Name(id=name) | ast.Attribute(value=ast.Name(id="torch"), attr=name) if name in _DTYPES:
            return _DTYPES[name]
        case ast.Name(id=name) if name in _FLOATS:
            return _FLOATS[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id=name)) if name in _FLOATS:
            return -_FLOATS[name]
        case ast.Tuple(elts=items):
            return tuple(map(_value, items))
        case ast.List(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values) if None not in keys:
            return {_value(k): _value(v) for k, v in zip(keys, values, strict=True) if k is not None}
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise ValueError(f"{ast.unparse(node)} is {_NEITHER}") from error


def _tensor(node: ast.Subscript, strides: tuple[int, ...] | None) -> torch.Tensor:
    match node.value:
        case ast.Name(id=name) | ast.Attribute(value=ast.Name(id="torch"), attr=name) if name in _DTYPES:
            dtype = _DTYPES[name]
        case other:
            raise ValueError(f"unknown dtype {ast.unparse(other)!r}; known are {', '.join(_DTYPES)}")
    shape = _integers(node.slice)
    if strides is not None and len(strides) != len(shape):
        raise ValueError(f"{len(strides)} strides for {len(shape)} dimensions")
    if max((*shape, *(strides or ()), 1)) >= 2**62 or math.prod(max(n, 1) for n in shape) >= 2**62:
        raise ValueError("no tensor is so large")
    if strides is None:
        return torch.empty(shape, dtype=dtype, device="meta")
    return torch.empty_strided(shape, strides, dtype=dtype, device="meta")


def _integers(node: ast.expr) -> tuple[int, ...]:
    nodes = node.elts if isinstance(node, ast.Tuple) else [node]
    values = [each.value if isinstance(each, ast.Constant) else None for each in nodes]
    if not all(type(value) is int for value in values):
        raise ValueError(f"sizes and strides are integers, got {ast.unparse(node)}")
    return tuple(value for value in values if isinstance(value, int))


def _function(module: str, name: str) -> Callable[..., Any]:
    sys.path.insert(0, str(pathlib.Path.cwd()))
    try:
        found = pkgutil.resolve_name(f"{module}:{name}")
    except ImportError as error:
        raise ValueError(f"there is no module {module!r} ({error})") from error
    except AttributeError as error:
        raise ValueError(f"{module} has no function {name!r}") from error
    if not callable(found):
        raise ValueError(f"{module}:{name} is no function but {type(found).__name__}")
    return found


def find_kernel(spec: str) -> Kernel:
    """Import the kernel ``FILE.py::NAME``. Raises ValueError naming what is missing."""
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
