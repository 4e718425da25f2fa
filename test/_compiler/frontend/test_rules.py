"""A function has one rule: a second one is an error when it is registered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from harness import context_for, tensor

import helion.language as hl
from helion import exc
from helion._compiler.frontend.hl import (
    escape as hl_escape,
)
from helion._compiler.frontend.hl import (
    functions as hl_functions,
)
from helion._compiler.frontend.hl import (
    quantized as hl_quantized,
)
from helion._compiler.frontend.hl import (
    random as hl_random,
)
from helion._compiler.frontend.hl import (
    remote as hl_remote,
)
from helion._compiler.frontend.hl import (
    remote_copies as hl_remote_copies,
)
from helion._compiler.frontend.hl import (
    stack as hl_stack,
)
from helion._compiler.frontend.hl.rules import HL_RULES
from helion._compiler.frontend.rules import Rules, union
from helion._compiler.frontend.torch.functions import RULES
from helion._compiler.pipeline import front_end
from helion.backends import BACKENDS
from helion.language._registry import DECLARED


def test_a_second_rule_is_refused() -> None:
    rules = Rules()
    rules.register(len, abs)(lambda t, value: value)
    with pytest.raises(ValueError, match="<built-in function abs> has two rules"):
        rules.register(abs)(lambda t, value: value)


def test_one_rule_may_have_two_names_of_a_function() -> None:
    rules = Rules()
    rules.register(abs, abs)(lambda t, value: value)
    assert list(rules) == [abs]


def test_tables_have_no_function_in_common() -> None:
    first, second = Rules(), Rules()
    for table in (first, second):
        table.register(abs)(lambda t, value: value)
    with pytest.raises(ValueError, match="two rules"):
        union(first, second)


def test_relu6_takes_no_bounds() -> None:
    assert RULES[F.relu6] is not RULES[F.hardtanh]


def test_every_function_of_the_language_has_a_rule() -> None:
    known = union(
        hl_functions.RULES,
        hl_escape.RULES,
        hl_quantized.RULES,
        hl_random.RULES,
        hl_remote.RULES,
        hl_remote_copies.RULES,
        hl_stack.RULES,
    ).keys()
    of_backends = {function for backend in BACKENDS.values() for function in backend.rules}
    assert {function for function, where in DECLARED.items() if where != "loop"} == known | of_backends
    assert HL_RULES.keys() == known | of_backends


def test_what_another_backend_has_is_refused_by_name() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        for tile in hl.tile(x.size(0)):
            x[tile] = hl.inline_triton("{0} + 1", [x[tile]], x[tile])
        return x

    context = context_for()
    other = replace(context, rules={}, limits=replace(context.limits, backend="Other"))
    with pytest.raises(exc.BackendUnsupported, match=r"hl.inline_triton is not supported by the Other backend"):
        front_end(fn, {"x": tensor(64)}, other, frozenset())
    assert front_end(fn, {"x": tensor(64)}, context, frozenset()).program.roots


def test_tiles_are_padded_as_the_limits_say() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty([64, 105 * 105], dtype=x.dtype, device=x.device)
        for tile in hl.tile(64):
            out[tile, :] = x[tile, :, :].reshape(tile, 105 * 105)
        return out

    def gathers(context: Any) -> int:
        program = front_end(fn, {"x": tensor(64, 105, 105)}, context, frozenset()).program
        return sum(op.kind == "gather" for op in program.walk())

    context = context_for()
    assert gathers(context) == 1  # elements move: rows of 105 have 128 lanes
    assert gathers(replace(context, limits=replace(context.limits, powers_of_2=False))) == 0
