"""Ops in program order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from helion._compiler.ir.preorder import preorder


def op(name: str, *regions: tuple[Any, ...]) -> Any:
    return SimpleNamespace(name=name, regions=[SimpleNamespace(ops=ops) for ops in regions])


@pytest.mark.parametrize(
    ("ops", "expected"),
    [
        ((), ""),
        ((op("a"), op("b")), "ab"),
        ((op("a", (op("b", (op("c"),)), op("d")), (), (op("e"),)), op("f", ()), op("g")), "abcdefg"),
    ],
)
def test_each_op_stands_before_those_of_its_regions_in_their_order(ops: tuple[Any, ...], expected: str) -> None:
    assert "".join(each.name for each in preorder(ops)) == expected
