"""The effect of Triton source on memory, derived from the functions that it calls.

Source is pure if all functions that it calls are known to be pure. Other calls may do anything: store, wait, signal
other programs. So an unknown function costs a barrier, but never breaks the order of memory accesses.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any

import triton
from triton.language.extra import libdevice

from ...._compiler.ir.grammar import InlineEffect

#: Functions of Triton, and methods of its values, that are pure.
_PURE = frozenset(
    (
        "abs", "add", "arange", "argmax", "argmin", "associative_scan", "assume", "bitonic_merge", "broadcast", "broadcast_to",
        "cast", "cat", "cdiv", "ceil", "clamp", "condition", "constexpr", "cos", "cumprod", "cumsum", "div_rn", "dot",
        "dot_scaled", "erf", "exp", "exp2", "expand_dims", "fdiv", "flip", "floor", "fma", "full", "gather", "histogram",
        "interleave", "join", "log", "log2", "max", "max_constancy", "max_contiguous", "maximum", "min", "minimum", "mul",
        "multiple_of", "next_power_of_2", "num_programs", "permute", "philox", "program_id", "rand", "rand4x",
        "randint", "randint4x", "randn", "randn4x", "range", "ravel", "reduce", "reduce_or", "reshape", "rsqrt", "sigmoid",
        "sin", "softmax", "sort", "split", "sqrt", "sqrt_rn", "squeeze", "static_assert", "static_print", "static_range", "sub",
        "sum", "swizzle2d", "to", "topk", "trans", "tuple", "umulhi", "unsqueeze", "view", "where", "xor_sum", "zeros",
        "zeros_like",
    )
)  # fmt: skip
#: Those that also read memory.
_READING = frozenset(("load",))
_BUILTINS = frozenset(("abs", "bool", "float", "getattr", "int", "isinstance", "len", "max", "min", "range", "tuple"))
#: Modules whose functions are all pure.
_PURE_MODULES = ("triton.language.math", "triton.language.extra.libdevice", "math")
_ORDER: tuple[InlineEffect, ...] = ("none", "reads", "any")
#: Syntax that may contain a call in disguise.
_OPAQUE = (ast.AsyncFor, ast.AsyncWith, ast.Await, ast.ClassDef, ast.Lambda, ast.With)

#: The value of a name, or of attributes of one, in a function's module; ``UNKNOWN`` for values of the function.
Resolve = Callable[[ast.expr], Any]
UNKNOWN = object()


def joined(effects: Iterable[InlineEffect]) -> InlineEffect:
    """Return the strongest of the effects."""
    return max(effects, key=_ORDER.index, default="none")


def effect_of(tree: ast.AST, resolve: Resolve) -> InlineEffect:
    """Return the effect of a piece of source, without that of the ``@triton.jit`` functions it calls."""
    return joined(_effect(node, resolve) for node in ast.walk(tree))


def effect_of_text(text: str) -> InlineEffect:
    """Return the effect of statements in a generated module, which know Triton under its usual names."""
    return effect_of(ast.parse(text), _usual)


def is_jit(value: Any) -> bool:
    """Return whether a value is a ``@triton.jit`` function."""
    return hasattr(value, "fn") and hasattr(value, "cache_key")


def _usual(node: ast.expr) -> Any:
    known = {"tl": triton.language, "triton": triton, "libdevice": libdevice}
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    value = known.get(node.id, UNKNOWN) if isinstance(node, ast.Name) else UNKNOWN
    for name in reversed(names):
        value = UNKNOWN if value is UNKNOWN else getattr(value, name, UNKNOWN)
    return value


def _effect(node: ast.AST, resolve: Resolve) -> InlineEffect:
    if isinstance(node, _OPAQUE):
        return "any"
    return _effect_of_call(node, resolve) if isinstance(node, ast.Call) else "none"


def _effect_of_call(call: ast.Call, resolve: Resolve) -> InlineEffect:
    called = resolve(call.func)
    if isinstance(call.func, ast.Attribute) and called is UNKNOWN:
        return _by_name(call.func.attr, call)
    if isinstance(call.func, ast.Name) and called is UNKNOWN:
        return "none" if call.func.id in _BUILTINS else "any"
    module, name = getattr(called, "__module__", None) or "", getattr(called, "__name__", "")
    if is_jit(called) and not module.startswith("triton."):
        return "none"  # its own source is analyzed
    if module in _PURE_MODULES:
        return "none"
    return _by_name(name, call) if module.startswith("triton.") else "any"


def _by_name(name: str, call: ast.Call) -> InlineEffect:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if name == "inline_asm_elementwise":
        pure = given.get("is_pure")
        return "none" if isinstance(pure, ast.Constant) and pure.value is True else "any"
    if name in _READING:
        return "any" if "volatile" in given or None in given else "reads"
    return "none" if name in _PURE else "any"
