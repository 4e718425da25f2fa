"""Checked mode around a call, and the user's line of an error inside of one.

The generated code of a checked kernel has the assertions (``_compiler/passes/always/checks.py``). This module marks memory of
``torch.empty`` before it is written, and searches the result of a call for the mark. Interpreted launches detect races.
"""

from __future__ import annotations

import ast
import contextlib
import linecache
import os
import pathlib
import re
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .. import exc
from .._compiler.host.program import Module
from .._compiler.ir.grammar import CheckAttrs, Program
from .._compiler.source import Location, parse_function
from .._support import logs as _logging
from .._support.nested import tensors_in
from ..backends import stub
from ..backends.execution import Executor
from ..language._unwritten import mark_unwritten, unwritten
from .call.definition import Definition
from .generated import codecache

_ALLOCATORS = frozenset(
    getattr(owner, name)
    for owner in (torch, torch.Tensor)
    for name in ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
    if hasattr(owner, name)
)
#: Error texts of a driver after a failed assertion, and after an access that no check predicted.
_FAILURES = ("device-side assert", "illegal memory access", "unspecified launch failure")
#: The nearest argument that an error of the interpreter names, and the names in it.
_NEIGHBOUR = re.compile(r", \d+ bytes (?:before|past the end of) argument .*?\(\d+ bytes\)")
_QUOTED = re.compile(r"'(\w+)'")
#: The arguments whose addresses a generated line accesses.
_ACCESSED = re.compile(r"\btl\.(?:load|store|atomic_\w+)\(\(*(\w+)")
#: Folders of frames between host code and this module.
_BETWEEN = (str(pathlib.Path(torch.__file__).parent), str(pathlib.Path(__file__).parents[1]))


@dataclass(frozen=True, kw_only=True)
class _Made:
    """A tensor that host code allocated, and the place where it did: a file and a line."""

    tensor: torch.Tensor
    file: str
    line: int


class _Marking(TorchFunctionMode):
    """Mode that marks memory that torch allocates without filling it."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[_Made] = []

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _ALLOCATORS and isinstance(result, torch.Tensor) and not result.is_meta:
            mark_unwritten(result)
            frame: types.FrameType | None = sys._getframe(1)
            while frame is not None and frame.f_code.co_filename.startswith(_BETWEEN):
                frame = frame.f_back
            if frame is not None:
                self.made.append(_Made(tensor=result, file=frame.f_code.co_filename, line=frame.f_lineno))
        return result

    def of(self, tensor: torch.Tensor) -> _Made | None:
        """Return the place where the memory of a tensor was allocated."""
        storage = tensor.untyped_storage()._cdata
        return next((made for made in self.made if made.tensor.untyped_storage()._cdata == storage), None)


@contextlib.contextmanager
def checking(kernel: Definition) -> Iterator[Callable[[Any], Any]]:
    """Run host code of ``kernel`` in the body.

    The yielded function takes the result of the call and warns of unwritten elements.
    """
    with _Marking() as marking:
        yield lambda result: _warn(kernel, marking, result)


def run_checked(kernel: Definition, executor: Executor, run: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``run``, the function of a checked config, with the checks outside of the generated code."""

    def checked(*args: Any) -> Any:
        if stub.active() or not any(map(stub.on_gpu, tensors_in(args))):
            with checking(kernel) as finish, executor.detecting_races():
                return finish(run(*args))
        try:
            with checking(kernel) as finish, executor.detecting_races():
                result = run(*args)
            torch.cuda.synchronize()  # which is when a GPU tells of a failed assertion
        except RuntimeError as error:
            if not any(word in str(error) for word in _FAILURES):
                raise
            raise exc.CheckFailed(kernel=kernel.name, reason=str(error).partition("\n")[0]) from error
        return finish(result)

    return checked


# --- results with unwritten elements
# ---------------------------------------------------------------------------------------


def _warn(kernel: Definition, marking: _Marking, result: Any) -> Any:
    for at, tensor in enumerate(tensors_in((result,))):
        made = marking.of(tensor) if tensor.layout is torch.strided and marking.made else None
        holes = None if made is None else unwritten(tensor.detach())
        if made is None or holes is None or not bool(holes.any()):
            continue
        first = tuple(holes.nonzero()[0].tolist())
        what = f"result {at}, {_place(kernel, made)},"
        warning = exc.UnwrittenOutput(kernel=kernel.name, what=what, count=int(holes.sum()), first=list(first))
        if type(warning).__name__ not in kernel.settings.ignore_warnings:
            _logging.say(f"WARNING[{type(warning).__name__}]: {warning}")
    return result


def _place(kernel: Definition, made: _Made) -> str:
    """Return the statement that allocated a tensor, with the user's file and line.

    Generated host code has the same statement.
    """
    text = linecache.getline(made.file, made.line).strip()
    source = parse_function(kernel.fn)
    if source is not None and made.file != source.file:
        lines = (n.lineno for n in ast.walk(source.node) if isinstance(n, ast.stmt) and _unparsed(n) == text)
        line = next(lines, None)
        return f"`{text}`" if line is None else f"`{text}` ({os.path.basename(source.file)}:{line})"
    return f"`{text}` ({os.path.basename(made.file)}:{made.line})"


def _unparsed(node: ast.stmt) -> str:
    return ast.unparse(node) if isinstance(node, (ast.Assign, ast.AnnAssign, ast.Return, ast.Expr)) else ""


# --- errors of the interpreter, by the user's line -------------------------------------------------------------------------


def located(error: Exception, kernel: str, program: Program, module: Module) -> exc.Base | None:
    """Convert an error of an interpreted launch to one with the user's line; None if it is not about an access."""
    if isinstance(error, AssertionError):
        failed = next((op for op in program.walk() if op.kind == "check" and op.attrs.message in str(error)), None)
        if failed is None:
            return None
        attrs = failed.attributes(CheckAttrs)
        kind = exc.UnwrittenRead if attrs.index is None else exc.IndexOutOfRange
        found: exc.Base = kind(attrs.message, location=failed.location)
        return found
    if not isinstance(error, IndexError) or "out-of-bounds access" not in str(error):
        return None
    location, line = _origin(error, kernel, module)
    where = f"{location.short()}: " if location is not None else ""
    reason = str(error)
    tensors = set(_ACCESSED.findall(line))
    neighbour = _NEIGHBOUR.search(reason)
    if neighbour is not None and tensors and tensors.isdisjoint(_QUOTED.findall(neighbour[0])):
        names = " or ".join(map(repr, sorted(tensors)))
        reason = reason.replace(neighbour[0], f", outside of {names}")
    return exc.IndexOutOfRange(
        f"{where}kernel {kernel!r} reaches outside of the memory of a tensor: {reason} HELION_CHECKED=1, or checked=True, "
        "says which index of which tensor is out of range.",
        location=location,
    )


def _origin(error: BaseException, kernel: str, module: Module) -> tuple[Location | None, str]:
    """Return the user's line for the innermost frame of a generated module in a traceback, and the generated line."""
    file = codecache.module_path(module.text, kernel).name
    found, trace = None, error.__traceback__
    lines, text = module.text.splitlines(), ""
    while trace is not None:
        if os.path.basename(trace.tb_frame.f_code.co_filename) == file:
            found = module.origin(trace.tb_lineno) or found
            text = lines[trace.tb_lineno - 1]
        trace = trace.tb_next
    return found, text


__all__ = ["checking", "located", "run_checked"]
