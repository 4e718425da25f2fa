"""Functions that Triton compiles even under ``TRITON_INTERPRET``.

With that variable ``triton.jit`` makes functions that only Triton's own interpreter can run. This package interprets
kernels on CPU tensors itself, and the same process compiles them for GPUs. So kernels, and the functions of Triton's
library that they call, are restored to their compilable form.
"""

from __future__ import annotations

import sys
from typing import Any

import triton.language as tl
from triton.runtime.jit import JITFunction


def make_compilable(names: dict[str, Any]) -> None:
    """Replace functions that only Triton's interpreter can run, in the globals of a module and in Triton's library."""
    interpreter = sys.modules.get("triton.runtime.interpreter")  # triton.jit imports it before it makes such functions
    if interpreter is None:
        return
    interpreted = interpreter.InterpretedFunction
    if not isinstance(tl.sum, JITFunction):
        _mend_library(interpreted)
    _mend(names, interpreted, {})


def _mend_library(interpreted: Any) -> None:
    made: dict[int, JITFunction] = {}
    for name, module in list(sys.modules.items()):
        if name.split(".")[:2] == ["triton", "language"] and module is not None:
            _mend(vars(module), interpreted, made)


def _mend(names: dict[str, Any], interpreted: Any, made: dict[int, JITFunction]) -> None:
    for name, value in list(names.items()):
        if isinstance(value, interpreted):
            if id(value) not in made:
                made[id(value)] = JITFunction(value.fn)
            names[name] = made[id(value)]
