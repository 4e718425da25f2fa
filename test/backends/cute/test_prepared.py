"""Kernels before the matmul: their printed code, run thread by thread in Python, their plans and their binaries."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import pytest
import torch
from backends.cute import cubins, gemms
from backends.cute.copies import NUMBERED, SCALED, copied
from backends.cute.gemms import E4M3
from backends.cute.test_copied_code import Number, Place, Registers, _rounded, round_by_pair

from helion.backends.cute.codegen import prepare as code
from helion.backends.cute.codegen.copied import source_names
from helion.backends.cute.codegen.module import build
from helion.backends.cute.execute.evaluate import _multiplied
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.operands import is_turned
from helion.backends.cute.plan.records import Batch, Choice, GemmPlan, GemmProblem
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.plan.workspace import MAX_COUNTERS, prepared_offset, workspace_bytes


@pytest.fixture(autouse=True)
def unshifted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load rows that begin anywhere element by element; ``test_shifted.py`` runs the other text."""
    monkeypatch.setattr(code, "SHIFTED", ())


class Matrix:
    """A tensor in global or shared memory with bounds; vectors go along dimension ``along``."""

    def __init__(self, values: torch.Tensor, along: int) -> None:
        self.values, self.along, self.layout, self.iterator = values, along, None, Place(self)

    def __getitem__(self, at: tuple[int, ...]) -> Number:
        assert all(0 <= index < extent for index, extent in zip(at, self.values.shape, strict=True))
        return Number(float(self.values[at]))

    def __setitem__(self, at: tuple[int, ...], value: Number) -> None:
        assert torch.isnan(self.values[at]), "an element is written once"
        self.values[at] = float(value)


class Vector:
    """Consecutive elements from a pointer on."""

    def __init__(self, place: Place, size: int) -> None:
        self.place, self.size = place, size

    def each(self) -> list[Any]:
        memory, at = self.place.memory, self.place.at
        if isinstance(memory, Registers):
            return list(range(at, at + self.size))
        return [tuple(x + step * (n == memory.along) for n, x in enumerate(at)) for step in range(self.size)]

    def copy_to(self, other: Vector) -> None:
        for source, target in zip(self.each(), other.each(), strict=True):
            other.place.memory[target] = self.place.memory[source]


def run(shape: code.Shape, sources: list[torch.Tensor]) -> torch.Tensor:
    """The matrix of an operand after all threads of all CTAs have run."""
    prepared, label = shape.prepared, shape.prepared.copied.operand
    along_k = prepared.major == "k"
    matrix = Matrix(torch.full((prepared.rows, prepared.columns, prepared.batches), float("nan")), 1)
    names: dict[str, Any] = {f"to_{label}": matrix}
    names |= {
        name: Matrix(each, 1 if along_k and not shape.turned else 0)
        for name, each in zip(source_names(prepared.copied), sources, strict=True)
    }
    program = "\n".join(code.body(shape))
    phases = [compile(part, label, "exec") for part in program.split("cute.arch.sync_threads()")]
    for batch in range(prepared.batches):
        for cta in range(shape.ctas):
            square = Matrix(torch.full((shape.side, shape.side), float("nan")), 1)
            threads = [names | _dsl(thread, cta, batch, square) for thread in range(shape.threads)]
            for phase in phases:
                for each in threads:
                    exec(phase, each)
    return matrix.values


def _dsl(thread: int, cta: int, batch: int, square: Matrix) -> dict[str, Any]:
    cutlass = types.SimpleNamespace(
        range_constexpr=range,
        min=min,
        select_=lambda condition, x, y: x if condition else y,
        Float32=lambda given: list(given) if isinstance(given, list) else Number(given),
        BFloat16=_rounded(torch.bfloat16),
        Float8E4M3FN=_rounded(torch.float8_e4m3fn),
        memory=types.SimpleNamespace(
            SmemAllocator=lambda: types.SimpleNamespace(allocate_tensor=lambda *given: square)
        ),
        **{name: Number for name in ("Uint8", "Uint16", "Uint32", "Int8")},
    )
    cute = types.SimpleNamespace(
        make_rmem_tensor=lambda size, dtype: Registers([Number(-77.0)] * size),
        make_layout=lambda size, stride=None: size,
        make_tensor=Vector,
        crd2idx=lambda at, layout: at,
        recast_tensor=lambda values, dtype: values,
        autovec_copy=lambda source, target: source.copy_to(target),
        arch=types.SimpleNamespace(
            fmax=lambda x, y, nan: Number(max(x, y)),
            inline_ptx=round_by_pair,
            thread_idx=lambda: (thread, 0, 0),
            block_idx=lambda: (cta, batch, 0),
        ),
    )
    return {"cutlass": cutlass, "cute": cute}


def problem(m: int, n: int, k: int, *given: Any, operands: str = "bfloat16", batch: Batch | None = None) -> GemmProblem:
    whole = gemms.product(m, -(-n // 16) * 16, -(-k // 16) * 16, operands=operands)
    return dataclasses.replace(whole, n=n, k=k, copied=given, batch=batch)


SIDES = Choice(tile=(64, 64, 64), copies_in="memory")
PROBLEMS: dict[str, GemmProblem] = {
    "odd_rows": problem(70, 96, 45, copied("a", ("x", "bfloat16", 45, 1))),
    "odd_columns": problem(64, 104, 70, copied("b", ("y", "bfloat16", 1, 105))),
    "int8": problem(64, 80, 72, copied("b", ("y", "int8", 72, 1), ("scale", "float32", 1, 0), chain=SCALED)),
    "int8_columns": problem(64, 80, 37, copied("b", ("y", "int8", 1, 80))),
    "fp8_odd": problem(64, 80, 37, copied("b", ("y", E4M3, 37, 1))),
    "numbered": problem(70, 80, 72, copied("a", ("x", "bfloat16", 72, 1), ("depth", "bfloat16", 0, 1), chain=NUMBERED)),
    "numbered_columns": problem(72, 80, 37, copied("a", ("x", "bfloat16", 1, 72), ("depth", "bfloat16", 0, 1), chain=NUMBERED)),
    "turned_fp32": problem(64, 104, 70, copied("b", ("y", "float32", 1, 105)), operands="float32"),
    "turned_fp8": problem(64, 80, 37, copied("b", ("y", "bfloat16", 1, 80), ("scale", "float32", 0, 1), chain=SCALED), operands=E4M3),
    "turned_vectors": problem(64, 104, 140, copied("b", ("y", "float32", 1, 112)), operands="float32"),
    "turned_bytes": problem(64, 80, 96, copied("b", ("y", E4M3, 1, 80)), operands=E4M3, batch=Batch(size=2, a=6144, b=7680, d=5120)),
    "spread": problem(64, 80, 37, copied("b", ("y", "bfloat16", 2, 161))),
    "both": problem(70, 80, 45, copied("a", ("x", "int8", 48, 1)), copied("b", ("y", "bfloat16", 1, 81))),
    "batched": problem(
        70, 96, 45, copied("a", ("x", "bfloat16", 45, 1)), copied("b", ("y", "bfloat16", 1, 97)),
        batch=Batch(size=2, a=3150, b=0, d=6720),
    ),
}  # fmt: skip
SAMPLED = ("odd_columns", "int8", "numbered_columns", "turned_fp8", "turned_vectors", "turned_bytes")


def plan(name: str, target: str = "sm_90") -> GemmPlan:
    line = {"float32": 32, E4M3: 128}.get(PROBLEMS[name].operand_dtype, 64)
    choice = dataclasses.replace(SIDES, tile=(64, 64, line))
    return plan_gemm(PROBLEMS[name], choice, gemms.BLACKWELL if target == "sm_100" else gemms.HOPPER)


def check(name: str) -> None:
    made = plan(name)
    assert made.prepare is not None and not made.problem.copied and made.whole == PROBLEMS[name]
    for prepared in made.prepare.operands:
        whole, label, generator = made.whole, prepared.copied.operand, torch.Generator().manual_seed(7)
        lines, tensors, views = (whole.m if label == "a" else whole.n), [], []
        for at, source in enumerate(prepared.copied.sources):
            step = whole.batch_pitch(label) if at == 0 else 0
            shape, strides = (lines, whole.k, prepared.batches), (source.pitch, source.k_pitch, step)
            span = 1 + sum((n - 1) * each for n, each in zip(shape, strides, strict=True))
            flat = (torch.randn(span, generator=generator) * 4 + 1).to(getattr(torch, source.dtype))
            tensors.append((flat, step))
            views.append(torch.as_strided(flat, shape, strides).float())
        matrix = run(code.shape_of(prepared, whole), views)
        for batch in range(prepared.batches):
            first, *more = (flat[batch * step :] for flat, step in tensors)
            exact = _multiplied(whole, label, first, iter(more))
            exact = exact.to(getattr(torch, whole.operand_dtype)).float()
            torch.testing.assert_close(
                matrix[..., batch], exact if prepared.major == "k" else exact.t(), rtol=0, atol=0
            )


@pytest.mark.parametrize("name", SAMPLED)
def test_every_element_is_written_once(name: str) -> None:
    check(name)


@pytest.mark.prove
@pytest.mark.parametrize("name", [name for name in PROBLEMS if name not in SAMPLED])
def test_every_element_of_all_operands_is_written_once(name: str) -> None:
    check(name)


def test_matrices_are_in_the_order_of_their_sources_if_the_unit_takes_it() -> None:
    turned = {name: [is_turned(each) for each in made.operands] for name in PROBLEMS if (made := plan(name).prepare)}
    assert [name for name, each in turned.items() if any(each)] == [
        "turned_fp32",
        "turned_fp8",
        "turned_vectors",
        "turned_bytes",
    ]
    columns = plan("odd_columns")
    assert (columns.problem.b_major, columns.problem.b_pitch) == ("mn", 104)
    vectors = {name: code.shape_of(plan(name).prepare.operands[0], PROBLEMS[name]).vector for name in PROBLEMS}  # type: ignore[union-attr]
    assert {name for name, size in vectors.items() if size > 1} == {
        "int8",
        "int8_columns",
        "numbered",
        "numbered_columns",
        "turned_vectors",
        "turned_bytes",
    }


def test_operands_follow_the_partials_in_the_workspace() -> None:
    whole = PROBLEMS["both"]
    made = plan_gemm(whole, dataclasses.replace(SIDES, ab_stages=2), gemms.HOPPER)
    assert prepared_offset(made) == 4 * MAX_COUNTERS and made.prepare is not None
    first, second = made.prepare.operands
    assert (first.offset_bytes, second.offset_bytes) == (0, 6784) and first.rows * first.pitch * 2 <= 6784
    assert workspace_bytes(made) == 4 * MAX_COUNTERS + 6784 + 2 * second.rows * second.pitch


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (dataclasses.replace(PROBLEMS["odd_rows"], copied=()), "where TMA cannot load them as they are"),
        (problem(2**16, 64, 2**15 - 1, copied("a", ("x", "bfloat16", 2**15 - 1, 1))), "in memory; up to 2147483647"),
    ],
)  # fmt: skip
def test_what_is_not_implemented_is_named(given: GemmProblem, message: str) -> None:
    with pytest.raises(Refusal, match=message):
        plan_gemm(given, SIDES, gemms.HOPPER)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_modules_launch_the_kernels_before_the_matmul(name: str, target: str) -> None:
    made = plan(name, target)
    assert made.prepare is not None
    text = build(made)
    for prepared in made.prepare.operands:
        label = prepared.copied.operand
        assert text.index(f"def prepare_{label}(") < text.index(f"    prepare_{label}(") < text.index("    kernel(")
        assert f"    {label} = cute.recast_ptr(workspace + " in text
    assert (
        text.count("griddepcontrol_wait")
        == 1
        < text.index("griddepcontrol_launch_dependents")
        < text.index("use_pdl=True")
    )


@pytest.mark.prove
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_binaries_spill_nothing(name: str, target: str) -> None:
    row = cubins.measure(plan(name, target))
    assert row["stack_bytes"] == 0 and not {"LDL", "STL"} & {*row["opcodes"]}  # type: ignore[misc]
