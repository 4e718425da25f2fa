"""A function has one rule: a second one is an error when it is registered."""

from __future__ import annotations

import pytest
import torch.nn.functional as F

from helion._compiler.frontend.hl_rules import HL_RULES
from helion._compiler.frontend.rules import Rules, union
from helion._compiler.frontend.torch_functions import RULES
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
    assert {function for function, where in DECLARED.items() if where != "loop"} - HL_RULES.keys() == set()
