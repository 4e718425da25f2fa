"""Expressions of Triton code: parentheses where Python needs them, and what the module must provide."""

from __future__ import annotations

import ast
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import helion
import helion.language as hl
from helion.backends.triton.codegen.expressions import (
    LIBDEVICE,
    Expression,
    call,
    helper,
    infix,
    libdevice,
    method,
    number,
    prefix,
)

OPERATORS = {
    **{"+": ast.Add, "-": ast.Sub, "*": ast.Mult, "/": ast.Div, "//": ast.FloorDiv, "%": ast.Mod},
    **{"<<": ast.LShift, ">>": ast.RShift, "|": ast.BitOr, "^": ast.BitXor, "&": ast.BitAnd},
}
COMPARISONS = {"==": ast.Eq, "!=": ast.NotEq, "<": ast.Lt, "<=": ast.LtE, ">": ast.Gt, ">=": ast.GtE}
#: An expression, its tree, and what it needs.
Made = tuple[Expression, ast.expr, frozenset[str]]


def _infix(left: Made, symbol: str, right: Made) -> Made:
    if symbol in COMPARISONS:
        tree: ast.expr = ast.Compare(left[1], [COMPARISONS[symbol]()], [right[1]])
    else:
        tree = ast.BinOp(left[1], OPERATORS[symbol](), right[1])
    return infix(left[0], symbol, right[0]), tree, left[2] | right[2]


def _prefix(symbol: str, operand: Made) -> Made:
    operator = ast.USub() if symbol == "-" else ast.Invert()
    return prefix(symbol, operand[0]), ast.UnaryOp(operator, operand[1]), operand[2]


def _method(owner: Made) -> Made:
    tree = ast.Call(ast.Attribute(owner[1], "to", ast.Load()), [ast.Name("t", ast.Load())], [])
    return method(owner[0], "to(t)"), tree, owner[2]


def _call(arguments: list[Made]) -> Made:
    function = ast.Attribute(ast.Name("libdevice", ast.Load()), "f", ast.Load())
    needs = frozenset((LIBDEVICE,)).union(*(a[2] for a in arguments))
    return libdevice("f", *(a[0] for a in arguments)), ast.Call(function, [a[1] for a in arguments], []), needs


def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


LEAVES = st.one_of(
    st.sampled_from("abc").map(lambda name: (Expression(name), ast.Name(name, ast.Load()), frozenset())),
    st.sampled_from([0, 7, -3, 1.5, -2.0, True, float("-inf")]).map(
        lambda value: (number(value), _parsed(number(value).text), frozenset())
    ),
)
MADE: st.SearchStrategy[Made] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(_infix, inner, st.sampled_from([*OPERATORS, *COMPARISONS]), inner),
        st.builds(_prefix, st.sampled_from("-~"), inner),
        st.builds(_method, inner),
        st.builds(_call, st.lists(inner, max_size=2)),
    ),
    max_leaves=8,
)


@given(MADE)
def test_text_means_what_was_built(made: Made) -> None:
    expression, tree, needs = made
    assert ast.dump(_parsed(expression.text)) == ast.dump(tree)
    assert expression.needs == needs


def test_helpers_are_needed_where_they_are_called() -> None:
    inner = helper("_power", Expression("a"))
    assert infix(call("f", inner), "+", libdevice("g")).needs == {"_power", LIBDEVICE}
    assert call("f", Expression("a")).needs == frozenset()


@pytest.mark.parametrize(
    ("source", "needed"),
    [
        ("libdevice.tanh({0})", "from triton.language.extra import libdevice"),
        ("_log1p_unit({0})", "def _log1p_unit(u):"),
        ("{0} * _BLOCK_SIZE_0", "_BLOCK_SIZE_0 = tl.constexpr("),
        ("{0} * 2", ""),
    ],
)
def test_source_of_the_users_may_name_what_modules_have(source: str, needed: str) -> None:
    @helion.kernel
    def kernel(x: torch.Tensor, source: str) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = hl.inline_triton(source, args=(x[tile],), output_like=x[tile])
        return out

    code = kernel.bind((torch.ones(8), source)).to_code()
    assert needed in code
    if not needed:
        assert "libdevice" not in code and "_log1p_unit" not in code


def test_tanh_is_within_its_bound_and_keeps_signs() -> None:
    @helion.kernel(autotune_effort="none")
    def curve(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = torch.tanh(x[tile])
        return out

    edges = torch.tensor([0.0, -0.0, 1e-40, -1e-30, 0.625, -0.625, 0.62499994, 100.0, -3e38, math.inf, -math.inf])
    x = torch.cat([edges, torch.linspace(-12, 12, 20001), torch.logspace(-20, 0, 2001)])
    found, expected = curve(x), torch.tanh(x.double())
    spacing = torch.nextafter(expected.float().abs(), torch.tensor(math.inf)) - expected.float().abs()
    assert ((found.double() - expected).abs() <= 4 * spacing).all()
    assert torch.equal(torch.signbit(found), torch.signbit(x))
    assert curve(torch.full([3], math.nan)).isnan().all()
