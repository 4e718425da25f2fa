"""The code that two teams share, which is that of each role of the program where ``team`` has its number."""

from __future__ import annotations

import ast

import pytest
from backends.cute import copies, gemms
from backends.cute.combinations import random_plans

from helion.backends.cute.codegen.module import build
from helion.backends.cute.codegen.steps import print_steps
from helion.backends.cute.codegen.writer import Writer, in_one
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.records import GemmPlan
from helion.backends.cute.roles.programs import kernel_program

COPIED = ("odd_pingpong", "even_pingpong", "tf32_pingpong", "raw_pingpong", "strided_pingpong", "strided_sums_pingpong")
PLANS = {
    name: plan
    for name, plan in {
        **gemms.all_plans(),
        **random_plans(24),
        **{name: plan_gemm(*copies.COPIES[name], gemms.HOPPER) for name in COPIED},
    }.items()
    if plan.teams == 2
}


class Of(ast.NodeTransformer):
    """The code of one team: its number, its barriers, and constants that follow."""

    def __init__(self, team: int) -> None:
        self.team = team

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id == "team":
            return ast.Constant(self.team)
        for side, team in (("own", self.team), ("other", 1 - self.team)):
            if node.id.endswith(f"_{side}_barrier"):
                return ast.Name(node.id.replace(f"_{side}_barrier", f"_{team}_barrier"), node.ctx)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        numbers = [each.value for each in (node.left, node.right) if isinstance(each, ast.Constant)]
        if len(numbers) == 2 and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
            return ast.Constant(eval(ast.unparse(node)))
        return node

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        if isinstance(node.test, ast.Compare) and isinstance(node.test.left, ast.Constant):
            return node.body if eval(ast.unparse(node.test)) else []
        return node


def shared_code(plan: GemmPlan) -> tuple[dict[str, ast.expr], list[ast.stmt]]:
    """Return what the teams' names are bound to, and the code that follows."""
    tree = ast.parse(build(plan))
    (body,) = [
        node.body for node in ast.walk(tree) if isinstance(node, ast.If) and "team = " in ast.unparse(node.body[0])
    ]
    bound, rest = {}, list(body)
    while isinstance(rest[0], ast.Assign) and (
        "team" in (name := ast.unparse(rest[0].targets[0])) or "_barrier" in name
    ):
        bound[name] = rest.pop(0).value
    return bound, rest


@pytest.mark.parametrize("name", PLANS)
def test_the_teams_run_the_code_of_their_roles(name: str) -> None:
    program = kernel_program(PLANS[name])
    bound, code = shared_code(PLANS[name])
    numbers = {barrier.name: barrier.number for barrier in program.barriers}
    for team in range(2):
        role, out = program.role(f"store_{team}"), Writer()
        print_steps(out, program, role)
        found = Of(team).visit(ast.parse("\n".join(map(ast.unparse, code))))
        expected = Of(team).visit(ast.parse(out.text()))
        assert ast.unparse(found) == ast.unparse(expected)
        first_warps = (role.first_warp, role.first_warp + role.warps - 1)
        assert [eval(ast.unparse(bound["team"]), {"warp": warp}) for warp in first_warps] == [team, team]
        for stem in ("epilogue", "turn"):
            for side, other in (("own", team), ("other", 1 - team)):
                barrier = ast.unparse(bound[f"{stem}_{side}_barrier"])
                got = eval(barrier, {"team": team, "pipeline": Pipelines})
                assert got == numbers[f"{stem}_{other}"]


class Pipelines:
    @staticmethod
    def NamedBarrier(barrier_id: int, num_threads: int) -> int:
        return barrier_id


def test_texts_in_one() -> None:
    names = {("a_0", "a_1"): "a_own", ("a_1", "a_0"): "a_other"}
    first, second = ("x = 4", "a_0(y)", "z"), ("x = 12", "  a_0.skip(2)", "  a_1.skip()", "a_1(y)", "z")
    assert in_one(first, second, "t", names) == [
        "x = (4 + t * 8)",
        "  if t == 1:",
        "      a_other.skip(2)",
        "      a_own.skip()",
        "a_own(y)",
        "z",
    ]


@pytest.mark.parametrize("second", [("x = b",), ("x = 1.5",), ("x = 2 + a", "more")])
def test_texts_that_differ_in_more(second: tuple[str, ...]) -> None:
    assert in_one(("x = a", "y"), second, "t", {}) is None
    assert in_one(("x = 2.5",), ("x = 1.5",), "t", {}) is None
