"""The nodes of a tree, next to those of the standard library."""

import ast
import inspect

from helion._compiler import source
from helion._compiler.source import parse_kernel
from helion._support import syntax


def test_nodes_are_those_of_the_standard_library_in_its_order() -> None:
    for module in (source, syntax, inspect):
        tree = syntax.parse(inspect.getsource(module))
        assert list(map(id, syntax.nodes_of(tree))) == [id(node) for node in ast.walk(tree)]


def test_nodes_of_a_function_are_kept() -> None:
    known = parse_kernel(test_nodes_of_a_function_are_kept)
    assert known.nodes is known.nodes and known.nodes == tuple(ast.walk(known.node))
