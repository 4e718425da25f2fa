"""Functions that the compiler may call for host code, and kinds of results of others.

A pure function has the same result for the same arguments and changes nothing. The compiler may call it on the values
seen at bind time. Any other function runs at run time, once per call; for some, the type of the result is known.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import dataclasses
import dis
import fractions
import functools
import inspect
import itertools
import random
import reprlib
import sys
import time
import types
import typing
from typing import Any

import torch

from ..._names import KERNEL_LIBRARIES
from ...fields import Fragment, ListOf

_BUILTIN_NAMES = (
    "abs", "all", "any", "ascii", "bin", "bool", "bytes", "callable", "chr", "complex", "dict", "divmod", "enumerate", "filter", "float", "format",
    "frozenset", "hash", "hex", "int", "iter", "issubclass", "len", "list", "map", "max", "min", "oct", "ord", "pow", "range", "repr", "reversed",
    "round", "set", "slice", "sorted", "str", "sum", "tuple", "zip",
)  # fmt: skip
_PURE_BUILTINS = frozenset(getattr(builtins, name) for name in _BUILTIN_NAMES)
#: Functions that use only operators of numbers, so that they work on symbolic ones.
_TRANSPARENT = frozenset(
    getattr(builtins, name)
    for name in (
        "abs", "all", "any", "dict", "divmod", "enumerate", "filter", "iter", "len", "list", "map", "max", "min", "pow", "range", "reversed", "round", "set",
        "slice", "sorted", "sum", "tuple", "zip",
    )
)  # fmt: skip
_PURE_MODULES = frozenset(
    (
        "math", "cmath", "operator", "_operator", "itertools", "functools", "_functools", "numbers", "string", "statistics", "copy",
        "dataclasses", "typing", "types", "re", "textwrap", "bisect", "_bisect", "fractions", "decimal", "_decimal", "enum", *KERNEL_LIBRARIES,
    )
)  # fmt: skip
_TRANSPARENT_MODULES = frozenset(
    ("operator", "_operator", "itertools", "functools", "_functools", "copy", *KERNEL_LIBRARIES)
)
#: Types whose methods are pure; the trace follows changes of lists, dicts and sets.
_PLAIN_OWNERS: tuple[type, ...] = (
    str, bytes, int, float, bool, complex, tuple, frozenset, range, slice, list, dict, set, type(None), torch.dtype, torch.device, type({}.keys()),
    type({}.values()), type({}.items()), fractions.Fraction, torch.finfo, torch.iinfo,
)  # fmt: skip
_NUMPY_IMPURE = frozenset(
    ("load", "save", "savez", "savetxt", "loadtxt", "fromfile", "genfromtxt", "empty", "empty_like", "seterr", "memmap")
)
_PURE_TORCH = frozenset(
    (
        "finfo", "iinfo", "promote_types", "result_type", "can_cast", "is_tensor", "is_storage", "broadcast_shapes", "get_default_dtype", "typename",
        "device_count", "is_available", "get_device_properties", "get_device_capability", "get_device_name", "is_bf16_supported", "is_compiling",
    )
)  # fmt: skip
_TORCH_CLASSES = (torch.dtype, torch.device, torch.finfo, torch.iinfo)
_STATE_OF_TORCH: dict[str, type] = {
    "initial_seed": int, "seed": int, "get_num_threads": int, "get_num_interop_threads": int, "is_grad_enabled": bool,
    "is_inference_mode_enabled": bool, "are_deterministic_algorithms_enabled": bool, "is_warn_always_enabled": bool, "is_autocast_enabled": bool,
    "memory_allocated": int, "max_memory_allocated": int, "memory_reserved": int, "current_device": int, "is_initialized": bool,
    "get_world_size": int, "get_rank": int,
}  # fmt: skip
#: Functions that cannot be followed but always return a number.
_KINDS: dict[Any, type] = {
    **{getattr(random, name): float for name in ("random", "uniform", "gauss", "normalvariate", "betavariate", "expovariate", "triangular", "lognormvariate", "vonmisesvariate", "gammavariate", "paretovariate", "weibullvariate")},
    **{getattr(random, name): int for name in ("randint", "randrange", "getrandbits")},
    **{getattr(time, name): float for name in ("time", "perf_counter", "monotonic", "process_time", "thread_time")},
    **{getattr(time, f"{name}_ns"): int for name in ("time", "perf_counter", "monotonic", "process_time", "thread_time")},
    int: int, float: float, bool: bool, len: int, hash: int, id: int, ord: int, isinstance: bool, issubclass: bool, callable: bool, hasattr: bool, any: bool, all: bool,
}  # fmt: skip
#: Functions among them whose results exceed 32 bits.
WIDE = frozenset((id, hash, random.getrandbits, *(f for f in _KINDS if getattr(f, "__name__", "").endswith("_ns"))))
#: Iterators that are finite if their arguments are.
_FINITE = frozenset(
    ("chain", "product", "permutations", "combinations", "combinations_with_replacement", "accumulate", "zip_longest", "pairwise", "starmap", "compress")
)  # fmt: skip
_MATH_INTEGERS = frozenset(("ceil", "floor", "trunc", "gcd", "lcm", "comb", "perm", "factorial", "isqrt"))
_MATH_OTHERS = frozenset(("modf", "frexp", "prod", "sumprod", "dist", "hypot"))
_STDLIB = frozenset(sys.stdlib_module_names) - {"__main__"}
#: Further modules whose functions are not traced.
_LIBRARIES = _STDLIB | {"torch", "numpy", *KERNEL_LIBRARIES}


def _module(function: Any) -> str:
    module = getattr(function, "__module__", None) or type(function).__module__
    return module if isinstance(module, str) else ""


def _root(function: Any) -> str:
    return _module(function).split(".")[0]


def is_library(function: Any) -> bool:
    """Return whether a function belongs to a library whose source is not followed."""
    return _root(function) in _LIBRARIES


def is_library_module(module: types.ModuleType) -> bool:
    """Return whether a module belongs to such a library."""
    return module.__name__.split(".")[0] in _LIBRARIES


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except Exception:
        return False
    return True


def is_pure(function: Any) -> bool:
    """Return whether a function may be called at compile time."""
    if isinstance(function, type):
        return _is_plain_class(function)
    if isinstance(function, types.MethodType) and not isinstance(function.__self__, type):
        return isinstance(function.__self__, _PLAIN_OWNERS)
    owner = getattr(function, "__self__", None)
    if owner is not None and not isinstance(owner, (types.ModuleType, type)):
        return isinstance(owner, _PLAIN_OWNERS)
    described = getattr(function, "__objclass__", None)
    if described is not None:
        return issubclass(described, _PLAIN_OWNERS)
    root = _root(function)
    name = getattr(function, "__name__", "")
    if root == "numpy":
        return not _module(function).startswith("numpy.random") and name not in _NUMPY_IMPURE
    if root == "torch":
        return name in _PURE_TORCH
    if root == "builtins" or (isinstance(owner, type) and issubclass(owner, _PLAIN_OWNERS)):
        return _hashable(function) and (function in _PURE_BUILTINS or isinstance(owner, type))
    return root in _PURE_MODULES and not isinstance(function, functools._lru_cache_wrapper)


def _is_plain_class(cls: type) -> bool:
    """Return whether the constructor of a class has no effects and stores its arguments."""
    if _root(cls) == "itertools":
        return cls.__name__ in _FINITE
    if (
        cls in _PURE_BUILTINS
        or cls in _PLAIN_OWNERS
        or cls in (torch.Size, types.SimpleNamespace, type, collections.OrderedDict)
    ):
        return True
    if issubclass(cls, BaseException):
        return cls.__module__ == "builtins" or "__init__" not in vars(cls)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return "__new__" not in vars(cls) or vars(cls)["__new__"].__module__ != cls.__module__
    if cls in FRAGMENTS:
        return True
    if dataclasses.is_dataclass(cls):
        made = "__init__" in vars(cls) and getattr(vars(cls)["__init__"], "__code__", None) is not None
        generated = made and vars(cls)["__init__"].__code__.co_filename == "<string>"
        factories = any(f.default_factory is not dataclasses.MISSING for f in dataclasses.fields(cls))
        return generated and not hasattr(cls, "__post_init__") and not factories
    return _root(cls) in ("fractions", "decimal", "operator", "functools", "numpy") or cls in _TORCH_CLASSES


#: Sets of values of a config, whose bounds are part of the space of configs.
FRAGMENTS: frozenset[type] = frozenset((*typing.get_args(Fragment), ListOf))


def is_transparent(function: Any) -> bool:
    """Return whether a pure function works on symbolic numbers, or raises ``NeedsValue``."""
    if _hashable(function) and function in _TRANSPARENT:
        return True
    owner = getattr(function, "__self__", None)
    if isinstance(owner, (list, dict, set, tuple)):
        return True
    if isinstance(function, type):
        return function not in _PURE_BUILTINS and function not in (torch.Size,) and not issubclass(function, (str, BaseException, fractions.Fraction)) and _root(function) != "numpy"  # fmt: skip
    return _root(function) in _TRANSPARENT_MODULES or (_root(function) == "math" and function.__name__ == "prod")


def kind_of_result(function: Any) -> type | None:
    """Return the type of the number that a function returns for any arguments; None if it is unknown."""
    if not _hashable(function):
        return None
    if function in _KINDS:
        return _KINDS[function]
    name = getattr(function, "__name__", "")
    if _root(function) == "torch" and not isinstance(function, type):
        return _STATE_OF_TORCH.get(name)
    if _module(function) == "math" and name not in _MATH_OTHERS:
        return bool if name.startswith("is") and name != "isqrt" else int if name in _MATH_INTEGERS else float
    return None


def runs_at_run_time(function: Any) -> bool:
    """Return whether a function of known kind must not be called at compile time."""
    return kind_of_result(function) is not None and not is_pure(function)


def acts(function: Any) -> bool:
    """Return whether a call has effects other than on tensors."""
    return not isinstance(function, str) and not is_pure(function) and _root(function) not in _SILENT


#: Modules whose functions change nothing but tensors, and torch's random numbers.
_SILENT = frozenset(("torch", "time", "math", "contextlib", "_contextvars"))
_TRUSTED_OPERATORS = frozenset(("enum", "torch", "numpy", "types", "fractions", "decimal", "collections", "dataclasses", *KERNEL_LIBRARIES))  # fmt: skip


#: Source files of the methods of dataclasses and the like.
_GENERATED = ("<string>", dataclasses.__file__, reprlib.__file__)


def operator_of(value: Any, name: str) -> types.FunctionType | None:
    """Return the Python function of an operator of an object's class, if it may have effects."""
    method = inspect.getattr_static(type(value), name, None)
    if not isinstance(method, types.FunctionType) or method.__code__.co_filename in _GENERATED:
        return None
    return None if _root(method) in _TRUSTED_OPERATORS else method


def may_swallow(made: Any) -> bool:
    """Return whether a user's context manager may suppress an error in its ``with`` statement."""
    if made is contextlib.ExitStack:
        return True
    if made is None or is_library(made):
        return False
    generator = getattr(made, "__wrapped__", None)
    if isinstance(generator, types.FunctionType):
        return any(i.opname == "CHECK_EXC_MATCH" for i in dis.get_instructions(generator))
    leave = inspect.getattr_static(made, "__exit__", None)
    return isinstance(leave, types.FunctionType) and not _gives_nothing(leave.__code__)


def _gives_nothing(code: types.CodeType) -> bool:
    """Return whether every return of a function is None or False."""
    given = [
        one if one.opname == "RETURN_CONST" else before
        for before, one in itertools.pairwise(dis.get_instructions(code))
        if one.opname in ("RETURN_VALUE", "RETURN_CONST")
    ]
    return all(one.opname in ("RETURN_CONST", "LOAD_CONST") and not one.argval for one in given)
