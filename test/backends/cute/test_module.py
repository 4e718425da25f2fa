"""The printed module, read as text and as a syntax tree; none of it runs."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import itertools
import re
import sys

import pytest
from backends.cute import copies, gemms, grouped_kernels
from backends.cute.printed_registers import unwritten_registers
from costs import calls

from helion import exc
from helion.backends.cute.codegen.module import build, render
from helion.backends.cute.codegen.steps import print_steps
from helion.backends.cute.codegen.writer import Writer
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.counts import counts
from helion.backends.cute.plan.epilogue import ARITY, Epilogue, EpilogueOperand, Instruction, constant
from helion.backends.cute.plan.records import Choice, GemmPlan, Term
from helion.backends.cute.plan.shared import shared_bytes
from helion.backends.cute.roles import grammar as g
from helion.backends.cute.roles.edits import edit_role
from helion.backends.cute.roles.programs import kernel_program
from helion.backends.cute.toolchain.offline import compile_text
from helion.backends.cute.verify.state import Fault
from helion.hardware import target

PLANS = gemms.all_plans()


def role_text(plan: GemmPlan, name: str) -> str:
    program, out = kernel_program(plan), Writer()
    print_steps(out, program, program.role(name))
    return out.text()


def undefined(text: str) -> set[str]:
    """Names of a module that nothing in it, and nothing of Python's own, gives a meaning."""
    tree = ast.parse(text)
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    known = {node.id for node in names if not isinstance(node.ctx, ast.Load)} | {*dir(builtins)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.arg)):
            known.add(node.arg if isinstance(node, ast.arg) else node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            known |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return {node.id for node in names} - known


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_has_one_text(name: str) -> None:
    text = build(PLANS[name])
    assert undefined(text) == set()
    assert text == build(dataclasses.replace(PLANS[name]))
    functions = [node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    plan = PLANS[name]
    own = ["tf32_mma"] if plan.problem.operand_dtype == "float32" and plan.unit == "wgmma" else []
    assert functions == [*own, "kernel", *(["finish"] if plan.finish else []), "gemm"]


def undefined_names(text: str) -> set[str]:
    """Names that a function of `text` reads and nobody gives a value."""
    module = ast.parse(text)
    shared = {alias.asname or alias.name.split(".")[0] for node in module.body for alias in getattr(node, "names", ())}
    shared |= {node.name for node in module.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))} | set(
        dir(builtins)
    )
    missing = set()
    for function in (node for node in module.body if isinstance(node, ast.FunctionDef)):
        names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
        known = {argument.arg for argument in function.args.args}
        known |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
        missing |= {node.id for node in names} - known - shared
    return missing


@pytest.mark.parametrize("name", PLANS)
def test_every_name_has_a_value(name: str) -> None:
    assert not undefined_names(build(PLANS[name]))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("y.store(x.load())", {"x"}),
        ("y[0] = x[0]", {"x"}),
        ("x[0] = x[0] + 1.0", {"x"}),
        ("y[0] = x[0]\nx.fill(0.0)", {"x"}),
        ("x[0] = 1.0\ny[0] = x[0]", set()),
        ("cute.copy(z, x)\ny.store(x.load())", set()),
    ],
)
def test_registers_that_are_read_before_they_are_written_are_found(text: str, found: set[str]) -> None:
    made = "x = cute.make_rmem_tensor(4, float)\ny = cute.make_rmem_tensor(4, float)\n"
    assert unwritten_registers(made + text) == found


@pytest.mark.parametrize("name", PLANS)
def test_every_register_is_written(name: str) -> None:
    assert not unwritten_registers(build(PLANS[name]))


@pytest.mark.parametrize(("name", "target"), copies.NAMES)
def test_every_register_of_copies_and_strided_matrices_is_written(name: str, target: str) -> None:
    assert not unwritten_registers(build(copies.plan(name, target)))


@pytest.mark.parametrize("architecture", ["sm_90", "sm_100"])
def test_numbers_of_rows_have_values_without_vectors(architecture: str) -> None:
    number = EpilogueOperand(name="least", kind="number", dtype="float32")
    steps = (("mul", (0, 0)), ("row_sum", (2,)), ("maximum", (3, 1)), ("div", (0, 4)))
    epilogue = Epilogue(operands=(number,), instructions=tuple(Instruction(op, arguments) for op, arguments in steps))
    plan = plan_gemm(
        gemms.product(1000, 1024, 512, epilogue=epilogue), gemms.clusters((128, 128, 64), 8), target(architecture)
    )
    text = build(plan)
    assert not undefined_names(text) and text.count("_operand_rows.fill(") == 1


@pytest.mark.parametrize("name", PLANS)
def test_one_rolled_loop_loads_each_operand_once(name: str) -> None:
    text = role_text(PLANS[name], "load")
    assert text.count("cute.copy(tma_a,") == text.count("cute.copy(tma_b,") == 1
    assert text.count("for k_tile in") == text.count("unroll=1") == 1
    assert "if " not in text


@pytest.mark.parametrize("name", PLANS)
def test_places_in_the_cluster_are_found_once(name: str) -> None:
    text = build(PLANS[name])
    assert text.count("block_idx_in_cluster()") == 1
    assert text.count("get_flat_coord") == 1


@pytest.mark.parametrize("name", PLANS)
def test_numbers_of_the_text_are_those_of_the_plan(name: str) -> None:
    plan = PLANS[name]
    text, numbers = build(plan), counts(plan)
    assert f"ab_barriers = memory.allocate_array(cutlass.Int64, {2 * plan.ab_stages}," in text
    assert f"tx_count={numbers.ab.transaction_bytes}," in text
    assert f"smem={shared_bytes(plan)}," in text
    assert ("mcast_mask=mask_a" in text) == (numbers.a_multicast > 1)
    assert ("mcast_mask=mask_b" in text) == (numbers.b_multicast > 1)


@pytest.mark.parametrize(
    ("m", "n", "conditions"),
    [
        (256, 128, set()),
        (192, 128, {"tile_m < 3"}),
        (256, 8, {"tile_n * 2 + subtile < 1"}),
        (250, 96, {"tile_n * 2 + subtile < 3"}),
        (8, 8, {"tile_m < 1", "tile_n * 2 + subtile < 1"}),
    ],
)
def test_nothing_is_stored_behind_the_output(m: int, n: int, conditions: set[str]) -> None:
    """Of one sub-tile of columns the copy engine has but one coordinate, at which others would overwrite it."""
    plan = plan_gemm(gemms.product(m, n, 64), Choice(tile=(64, 64, 64), cluster=(2, 1)), gemms.HOPPER)
    text = role_text(plan, "store")
    (stored,) = (number for number, line in enumerate(text.splitlines()) if "cute.copy(tma_d" in line)
    gate = text.splitlines()[stored - 1].strip()
    assert set(gate.removeprefix("if ").removesuffix(":").split(" and ")) - {"warp == 4"} == conditions
    assert text.splitlines()[stored + 1].strip() == "cute.arch.cp_async_bulk_commit_group()"


def test_only_the_leader_of_a_pair_issues() -> None:
    assert "if place[0] == 0:" in role_text(gemms.blackwell("bf16_pair"), "multiply")
    assert "place[0] == 0" not in build(gemms.blackwell("bf16"))


def test_names_of_operands_meet_none_of_the_kernel() -> None:
    """An operand may be called as anything in the kernel is."""
    for name in ("a", "sums", "tile_m", "stage", "values", "i"):
        operand = EpilogueOperand(name=name, kind="row", dtype="float32")
        epilogue = Epilogue(operands=(operand,), instructions=(Instruction("add", (0, 1)),))
        plan = dataclasses.replace(gemms.hopper("bf16"), problem=gemms.product(epilogue=epilogue))
        assert f"    {name}_operand: cute.Pointer," in build(plan)


@pytest.mark.parametrize("op", ARITY)
def test_every_operation_prints(op: str) -> None:
    arguments = (0, constant(0.5), constant(-1.0))[: ARITY[op]]
    epilogue = Epilogue(instructions=(Instruction(op, arguments),))
    plan = dataclasses.replace(gemms.hopper("bf16"), problem=gemms.product(epilogue=epilogue))
    assert "x1 = " in build(plan)


def test_every_step_prints() -> None:
    """No step of the grammar is without a rule, for a program that has all of them."""
    printed = set()
    copied = (copies.plan(name, "sm_90") for name in ("odd", "even", "strided", "raw_n_major"))
    summed = dataclasses.replace(gemms.product(), terms=(Term(k=64, a_pitch=64, b_pitches=(64,)),))
    of_terms = dataclasses.replace(gemms.hopper("bf16"), problem=summed)
    for plan in (*PLANS.values(), *copied, grouped_kernels.plan_of("sm_90"), of_terms):
        render(kernel_program(plan))
        for role in kernel_program(plan).roles:
            printed |= {type(step) for step in _steps(role.program)}
    defined = {kind for kind in vars(g).values() if isinstance(kind, type) and issubclass(kind, g.Step)}
    assert defined - printed == {g.Step, g.CopyStep, g.ClusterExit}


def _steps(steps: tuple[g.Step, ...]) -> list[g.Step]:
    return [inner for step in steps for inner in (step, *_steps(getattr(step, "body", ())))]


def test_building_verifies(monkeypatch: pytest.MonkeyPatch) -> None:
    from helion.backends.cute.codegen import module

    def broken(plan: GemmPlan) -> g.KernelProgram:
        return edit_role(kernel_program(plan), "store", lambda s: () if s == g.Release("ab_free") else (s,))

    monkeypatch.setattr(module, "kernel_program", broken)
    with pytest.raises(Fault, match="deadlock"):
        build(gemms.hopper("bf16"))


def test_printing_another_extent_costs_little() -> None:
    """Once the protocol of a plan is known to be sound, other extents of the same tile cost the printing alone."""
    problem, choice = gemms.ON_BLACKWELL["fp8_pair_scales"]
    build(gemms.plan_gemm(problem, choice, gemms.BLACKWELL))
    rows = itertools.count(2048, 256)

    def another() -> None:
        build(gemms.plan_gemm(dataclasses.replace(problem, m=next(rows)), choice, gemms.BLACKWELL))

    assert calls(another) <= 13_000


def test_a_machine_without_the_dsl_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cutlass", None)
    with pytest.raises(exc.CuteBackendUnavailable, match=re.escape("pip install 'helion-tiles[cute]'")):
        compile_text("", PLANS["sm_90/bf16"])


# Extents of one tile or less: (m, n, k) with 64 × 64 tiles in sub-tiles of 32 columns.
@pytest.mark.parametrize("extents", [(1, 8, 8), (1, 64, 64), (64, 8, 64), (64, 32, 1), (4097, 8, 72), (65, 40, 72)])
def test_small_extents_keep_their_coordinates(extents: tuple[int, int, int]) -> None:
    """Each copy has both coordinates of its descriptor, and the second sub-tile begins behind the first."""
    pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (the cute extra)")
    problem = dataclasses.replace(gemms.product(*extents), a_pitch=136, b_pitch=136, d_pitch=136)
    plan = plan_gemm(problem, Choice(tile=(64, 64, 64)), gemms.HOPPER)
    ptx = compile_text(build(plan), plan).ptx
    assert "cp.async.bulk.tensor.2d" in ptx and "cp.async.bulk.tensor.1d" not in ptx
    columns = re.findall(r"tensor\.2d\.global\.shared\S* \[%rd\d+, \{(%r\d+),", ptx)
    assert len(columns) == min(2, -(-extents[1] // plan.epilogue_n)), "what lies behind the output is not stored"
    if len(columns) == 2:
        assert re.search(rf"\s{re.escape(columns[1])},(?: %r\d+,)? {plan.epilogue_n};", ptx), "what it is set to"


def multiplied(text: str) -> list[str]:
    """The heads of the loops that multiply, in order."""
    return re.findall(r"for step in (.*):\n +cute\.gemm\(", text)


def test_multiplications_are_traced_once() -> None:
    """Loops that change the MMA of the main loop are unrolled while they are traced: the loop would carry it."""
    late, traced = "cutlass.range(4, unroll_full=True)", "cutlass.range_constexpr(4)"
    assert multiplied(build(PLANS["sm_90/bf16"])) == [late, late]
    assert set(multiplied(build(PLANS["sm_90/fp8_blockwise"]))) == {traced}
    assert multiplied(build(PLANS["sm_100/bf16"])) == [traced]


def test_loops_that_are_traced_once_leave_the_same_binary() -> None:
    pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (the cute extra)")
    plan = PLANS["sm_90/bf16"]
    late, traced = "for step in cutlass.range(4, unroll_full=True):", "for step in cutlass.range_constexpr(4):"
    text = build(plan)
    assert text.count(late) == 2
    assert compile_text(text, plan).cubin == compile_text(text.replace(late, traced), plan).cubin
