"""Pointwise ops: dtype rules, constants, and the Triton expressions, all against eager PyTorch.

The values are compared by evaluating every op on every combination of dtypes that eager mode accepts, a few hundred
expressions to a generated kernel, in the interpreter.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import itertools
import math
import re
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from helion._compiler.ir import pointwise
from helion._compiler.ir.pointwise import POINTWISE, common_dtype, fold_cast, result_dtype
from helion._support.locks import TRITON_LOCK
from helion.backends.triton.codegen.expressions import LIBDEVICE, Expression, infix
from helion.backends.triton.codegen.ops import forms, literals
from helion.backends.triton.codegen.ops import pointwise as ops_pointwise
from helion.backends.triton.codegen.ops.forms import Operand
from helion.backends.triton.codegen.ops.literals import SIGNATURE_DTYPES, TRITON_DTYPES, literal
from helion.backends.triton.codegen.ops.pointwise import render
from helion.backends.triton.execute.interpreter import interpret

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
DTYPES = (torch.bool, *INTEGERS, *FLOATS)
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)

UNARY = [name for name, op in POINTWISE.items() if op.arity == (1, 1) and op.result != "given"]
BINARY = [name for name, op in POINTWISE.items() if op.arity == (2, 2)]


# --- dtype rules ------------------------------------------------------------------------------------------------------

# Operands of a dtype rule next to what eager mode gets for them.
KINDS: list[tuple[Any, Any]] = [
    *(((d, 1), torch.ones(3, dtype=d)) for d in DTYPES),
    *(((d, 0), torch.ones((), dtype=d)) for d in DTYPES),
    *((n, n) for n in (2, 1.5, True)),
]
TENSORS_ONLY = ("maximum", "minimum", "fmax", "fmin", "atan2", "hypot", "logical_and", "logical_or", "logical_xor")


def eager_dtype(name: str, operands: Sequence[Any]) -> torch.dtype | str:
    """The dtype of the eager result, or the message of the refusal."""
    if name in TENSORS_ONLY:  # PyTorch's scripting equivalent for a number is a tensor of the promoted dtype
        common = torch.result_type(*operands)
        operands = [o if isinstance(o, torch.Tensor) else torch.tensor(o).to(common) for o in operands]
    try:
        return POINTWISE[name].eager(*operands).dtype
    except (RuntimeError, TypeError) as error:
        return str(error)


def ruled_dtype(name: str, operands: Sequence[Any]) -> torch.dtype | str:
    try:
        return result_dtype(name, operands)
    except TypeError as error:
        return str(error)


@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_result_dtype_is_that_of_eager(name: str) -> None:
    arity = POINTWISE[name].arity[0]
    accepted = 0
    for kinds in itertools.product(KINDS, repeat=arity):
        if not any(isinstance(value, torch.Tensor) for _, value in kinds):
            continue
        rule, eager = [k for k, _ in kinds], [v for _, v in kinds]
        expected = eager_dtype(name, eager)
        assert ruled_dtype(name, rule) == expected, rule
        if not isinstance(expected, torch.dtype):
            continue
        accepted += 1
        declared = POINTWISE[name].result
        common = common_dtype(name, rule) if arity == 2 else eager[0].dtype
        if declared == "same":
            assert expected == common, rule
        elif declared == "float":
            assert expected == (common if common.is_floating_point else torch.float32), rule
        else:
            assert expected == torch.bool, rule
    assert accepted


def test_result_dtype_of_where() -> None:
    condition = torch.ones(3, dtype=torch.bool)
    for (a, eager_a), (b, eager_b) in itertools.product(KINDS, repeat=2):
        expected = torch.where(condition, eager_a, eager_b).dtype
        assert result_dtype("where", [(torch.bool, 1), a, b]) == expected
        if (a, b) not in ((True, True),):
            assert common_dtype("where", [(torch.bool, 1), a, b]) == expected
    with pytest.raises(TypeError, match="expected condition to be a boolean tensor"):
        result_dtype("where", [(torch.int64, 1), 1, 2])


def test_result_dtype_of_numbers() -> None:
    assert result_dtype("add", [1, 2]) == torch.int64
    assert result_dtype("mul", [1, 0.5]) == torch.float32
    assert result_dtype("div", [1, 2]) == torch.float32
    assert result_dtype("lt", [1, 2.0]) == torch.bool
    # A number whose value is not known yet is named by its type.
    assert result_dtype("mul", [(torch.bfloat16, 2), float]) == torch.bfloat16
    assert result_dtype("pow", [(torch.int32, 2), int]) == torch.int32


def test_result_dtype_ignores_modes() -> None:
    key = [(torch.int16, 3), (torch.float64, 0)]
    with torch.device("meta"), torch.autocast("cpu", dtype=torch.bfloat16):
        assert result_dtype("atan2", key) == torch.float64
        assert POINTWISE["atan2"].fold(0.0, 7.0) == 0.0


@pytest.mark.parametrize(
    ("name", "operands", "message"),
    [
        ("sub", [(torch.bool, 1), (torch.bool, 1)], "Subtraction, the `-` operator, with two bool tensors"),
        ("bitwise_and", [(torch.float32, 1), (torch.float32, 1)], "\"bitwise_and_cpu\" not implemented for 'Float'"),
        ("pow", [(torch.int32, 1), -1], "Integers to negative integer powers are not allowed"),
        ("add", [(torch.float8_e4m3fn, 1), 1.0], "not implemented for 'Float8_e4m3fn'"),
        ("cast", [(torch.int32, 1)], "the result dtype of 'cast' does not follow from its operands"),
        ("clamp", [(torch.int32, 1)], "there is no pointwise operation 'clamp'"),
        ("add", [1], r"'add' takes 2 operand\(s\), got 1"),
    ],
)
def test_result_dtype_refuses(name: str, operands: list[Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        result_dtype(name, operands)


def test_the_table_names_no_backend() -> None:
    tree = ast.parse(Path(pointwise.__file__).read_text())
    imported = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [module for module in imported if module.startswith("triton") or "backends" in module]


# --- constants --------------------------------------------------------------------------------------------------------

CONSTANTS = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1e300, math.inf, -math.inf, math.nan, 0, 1, -1, 7, -8, True, False]


def identical(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return a == b


@pytest.mark.parametrize("name", [*UNARY, *BINARY, "where"])
def test_fold_is_eager_on_constants(name: str) -> None:
    op = POINTWISE[name]
    dtypes = {float: torch.float64, int: torch.int64, bool: torch.bool}
    choices = [CONSTANTS] * op.arity[0] if name != "where" else [[True, False], CONSTANTS, CONSTANTS]
    folded = 0
    for values in itertools.product(*choices):
        # One-dimensional tensors, unlike those of the implementation.
        tensors = [torch.tensor([v], dtype=dtypes[type(v)]) for v in values]
        try:
            expected = op.eager(*tensors)[0].item()
        except RuntimeError:
            expected = None
        actual = op.fold(*values)
        assert identical(actual, expected), (values, actual, expected)
        folded += expected is not None
    assert folded


def test_fold_of_division_by_zero() -> None:
    fold = {name: op.fold for name, op in POINTWISE.items()}
    assert fold["div"](1.0, 0.0) == math.inf
    assert fold["div"](1, 0) == math.inf
    assert math.isnan(fold["remainder"](1.0, 0.0))
    assert fold["floordiv"](1, 0) is None
    assert fold["log"](0) == -math.inf


@pytest.mark.parametrize("dtype", [*DTYPES, *FP8])
def test_fold_cast_is_eager(dtype: torch.dtype) -> None:
    for value in [*CONSTANTS, 0.1, 300, -300, 1e6, 2**40 + 1]:
        if not dtype.is_floating_point and isinstance(value, float) and not abs(value) < 1e6:
            continue  # not defined in eager mode
        source = torch.float64 if isinstance(value, float) else torch.int64
        expected = torch.tensor([value], dtype=source).to(dtype)[0].item()
        assert identical(fold_cast(value, dtype), expected), value
    if not dtype.is_floating_point and dtype != torch.bool:
        assert fold_cast(math.nan, dtype) is None


# --- values -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Case:
    """One expression on loaded names, and the eager result it must have."""

    name: str
    operands: tuple[Operand, ...]
    dtypes: tuple[torch.dtype | None, ...]
    result: torch.dtype
    expected: torch.Tensor
    common: torch.dtype | None = None

    @property
    def expression(self) -> Expression:
        return render(self.name, self.operands, self.dtypes, self.result, common_dtype=self.common)

    def __str__(self) -> str:
        return f"{self.name}{self.operands} of {self.dtypes} -> {self.result}: {self.expression.text}"


def module_text(cases: Sequence[Case], inputs: Sequence[str], scalars: Sequence[str], numbers: Sequence[str]) -> str:
    """A kernel that loads `inputs` (blocks) and `scalars` and stores the value of each case to its own tensor."""
    outputs = [f"out{i}" for i in range(len(cases))]
    pointers = [f"{name}_ptr" for name in (*inputs, *scalars)]
    lines = [
        "import triton",
        "import triton.language as tl",
        "from triton.language.extra import libdevice",
        "",
        *(text for name, text in literals.HELPERS.items() if any(name in c.expression.needs for c in cases)),
        "",
        "@triton.jit",
        f"def kernel({', '.join([*pointers, *numbers, *outputs, 'SIZE: tl.constexpr'])}):",
        "    lanes = tl.arange(0, SIZE)",
        *(f"    {name} = tl.load({name}_ptr + lanes)" for name in inputs),
        *(f"    {name} = tl.load({name}_ptr)" for name in scalars),
    ]
    for i, case in enumerate(cases):
        lines.append(f"    v{i} = {case.expression.text}")
        lines.append(f"    tl.static_assert(v{i}.dtype == {TRITON_DTYPES[case.result]})")
        lines.append(f"    tl.store(out{i} + lanes, v{i})")
    return "\n".join(lines) + "\n"


_MODULES = itertools.count()


def load_module(folder: Path, text: str) -> types.ModuleType:
    path = folder / f"generated_{next(_MODULES)}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(
    folder: Path,
    cases: Sequence[Case],
    inputs: dict[str, torch.Tensor],
    scalars: dict[str, torch.Tensor] | None = None,
    numbers: dict[str, Any] | None = None,
) -> list[torch.Tensor]:
    scalars, numbers = scalars or {}, numbers or {}
    module = load_module(folder, module_text(cases, list(inputs), list(scalars), list(numbers)))
    size = next(iter(inputs.values())).numel()
    outputs = [torch.zeros(size, dtype=case.result) for case in cases]
    args = (*inputs.values(), *scalars.values(), *numbers.values(), *outputs)
    interpret(module.kernel, (1,), args, {"SIZE": size})
    return outputs


def ulps(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Distance in units in the last place of `expected`; infinity counts as the number after the greatest finite."""
    info = torch.finfo(expected.dtype)
    a, e = actual.double(), expected.double()
    if expected.dtype != torch.float64:
        beyond = 2.0 ** math.frexp(info.max)[1]
        a, e = (torch.where(t.isinf(), t.sign() * beyond, t) for t in (a, e))
    unit = info.eps * torch.exp2(torch.floor(torch.log2(e.abs().clamp(min=info.tiny))))
    distance = torch.where(a == e, 0.0, (a - e).abs() / unit)
    return torch.where(a.isnan() & e.isnan(), 0.0, distance.nan_to_num(nan=math.inf))


# Units in the last place by which an interpreted op on fp32 or fp64 may differ from the eager one: none, unless both
# sides approximate. On a CPU that includes the eager `sqrt`.
APPROXIMATE = {"div": 1, "sqrt": 1, "lgamma": 16, "erfinv": 16, "i0": 16}


# A power of e is one of 2, whose exponent is rounded: by half a unit of a number that is 1.44 times as large as it.
ROUNDED_EXPONENT = ("exp", "sigmoid")


def allowed_ulps(case: Case) -> int | torch.Tensor:
    if case.expected.dtype in (torch.float16, torch.bfloat16):
        return 1
    if case.name in ROUNDED_EXPONENT and case.expected.dtype is torch.float32:
        return 4 + 1.2 * case.expected.double().log().abs().nan_to_num(0, 0, 0)
    op = POINTWISE[case.name]
    transcendental = (op.cost == "sfu" and op.result == "float") or case.name in ("pow", "hypot")
    return APPROXIMATE.get(case.name, 4 if transcendental else 0)


# Ops that may give either zero: extrema of two zeros, and floor division.
EITHER_ZERO = ("maximum", "minimum", "fmax", "fmin", "relu", "floordiv")


def check(case: Case, actual: torch.Tensor) -> str | None:
    """What is wrong with the result, or None."""
    expected = case.expected
    if actual.dtype != expected.dtype:
        return f"{case}: dtype {actual.dtype}, expected {expected.dtype}"
    if expected.is_floating_point():
        wrong = ulps(actual, expected) > allowed_ulps(case)
        if case.name not in EITHER_ZERO:
            wrong |= (expected == 0) & (actual.signbit() != expected.signbit())
    else:
        wrong = actual != expected
    if not wrong.any():
        return None
    where = wrong.nonzero().flatten().tolist()
    shown = ", ".join(f"lane {i}: {actual[i].item()!r}, expected {expected[i].item()!r}" for i in where[:4])
    return f"{case}: {len(where)} lanes differ: {shown}"


def expect(cases: Sequence[Case], outputs: Sequence[torch.Tensor]) -> None:
    assert cases
    failures = [f for f in map(check, cases, outputs) if f]
    assert not failures, "\n".join(failures[:20])


@functools.cache
def column(dtype: torch.dtype) -> torch.Tensor:
    """32 values of a dtype: the special ones, both signs, large and small ones, and noise with a mean of 0.3."""
    generator = torch.Generator().manual_seed(0)
    if dtype == torch.bool:
        return torch.arange(32) % 2 == 0
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        values = [
            0,
            1,
            -1,
            2,
            -2,
            3,
            -3,
            5,
            7,
            -7,
            8,
            31,
            33,
            63,
            -64,
            100,
            -100,
            127,
            info.max,
            info.max // 3,
            -info.max,
        ]
        noise = torch.randint(-12, 20, (32 - len(values),), generator=generator)
        return torch.cat([torch.tensor(values), noise]).to(dtype)
    values = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -3.0, 2.5, 0.1, -7.0, 40.0, -90.0, 1000.0, 1e-3, 1e-4, 1e30]
    values += [math.inf, -math.inf, math.nan]
    noise = 0.3 + torch.randn(32 - len(values), generator=generator, dtype=torch.float64)
    return torch.cat([torch.tensor(values, dtype=torch.float64), noise]).to(dtype)


def without_zero(values: torch.Tensor) -> torch.Tensor:
    return values if values.is_floating_point() else torch.where(values == 0, 3, values).to(values.dtype)


def domain(name: str, values: torch.Tensor) -> torch.Tensor:
    """`values` where both sides agree on what the op means: Bessel functions and the like lose all digits far out."""
    if name == "i0" and values.is_floating_point():
        return values.clamp(-80, 80)
    if name == "log1p_unit":
        return values.abs().clamp(0, 1) if values.is_floating_point() else (values != 0).to(values.dtype)
    return values


DIVISIONS = ("floordiv", "truncdiv", "remainder", "fmod")
NUMBERS = (2.5, 0.1, -1.0, 0.0, math.inf, 3, -2, 300, 0, True)
# Some have expressions of their own: powers that are products or roots, divisions by powers of two.
SPECIAL_NUMBERS = {
    "pow": (-2.0, -0.5, 0.5, 1.0, 2.0, 3.0, 1, 2, 4, 5, 11),
    "div": (4, 0.5, -0.25, 1e-38, 2.0**-140),
    "floordiv": (8, 7, -8, 1),
    "remainder": (8, 7, -8, 1),
    "lshift": (1, 7, 31, 64, -1),
    "rshift": (1, 7, 31, 64, -1),
}


def accepts(name: str, operands: Sequence[Any]) -> bool:
    try:
        result_dtype(name, operands)
    except TypeError:
        return False
    return True


def eager(name: str, *operands: Any) -> torch.Tensor:
    result = result_dtype(name, [(o.dtype, o.dim()) if isinstance(o, torch.Tensor) else o for o in operands])
    numbers = [o for o in operands if not isinstance(o, torch.Tensor)]
    if result in (torch.float16, torch.bfloat16) and (
        name in ("floordiv", "truncdiv") or (numbers and name in ("add", "sub", "mul", "div", "pow"))
    ):
        # Eager mode on a GPU computes in fp32. On a CPU it rounds in between, or rounds the number, depending on the op
        # and the lane, and x ** 0.5 is the square root for bf16 and not for fp16 (they differ at -0.0 and -inf).
        if name == "pow":
            operands = tuple(o if isinstance(o, torch.Tensor) else torch.tensor(o).to(result).item() for o in operands)
        operands = tuple(o.to(result).float() if isinstance(o, torch.Tensor) else o for o in operands)
    if numbers and name in ("copysign", "atan2"):
        # Both become the float result dtype, numbers outside the range of the integer dtype included.
        operands = tuple(torch.as_tensor(o, dtype=torch.float64).to(result) for o in operands)
    return POINTWISE[name].eager(*operands).to(result)


def pair_cases(a: torch.Tensor, b: torch.Tensor, nonzero: torch.Tensor) -> Iterator[Case]:
    kinds = [(a.dtype, 1), (b.dtype, 1)]
    for name in BINARY:
        if not accepts(name, kinds):
            continue
        divides = name in DIVISIONS
        yield Case(
            name=name,
            operands=("a", "n" if divides else "b"),
            dtypes=(a.dtype, b.dtype),
            result=result_dtype(name, kinds),
            expected=eager(name, a, nonzero if divides else b),
        )
    if b.dtype == a.dtype or b.dtype in (torch.float32, torch.int8):
        yield Case(
            name="where",
            operands=("a", "a", "b") if a.dtype == torch.bool else ("c", "a", "b"),
            dtypes=(torch.bool, a.dtype, b.dtype),
            result=result_dtype("where", [(torch.bool, 1), *kinds]),
            expected=torch.where(a if a.dtype == torch.bool else torch.arange(a.numel()) % 3 == 0, a, b),
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_binary_ops_on_tensors(dtype: torch.dtype, tmp_path: Path) -> None:
    for other in DTYPES:
        a = column(dtype).repeat_interleave(32)
        b = column(other).repeat(32)
        nonzero = without_zero(b)
        cases = list(pair_cases(a, b, nonzero))
        inputs = {"a": a, "b": b, "n": nonzero, "c": torch.arange(a.numel()) % 3 == 0}
        expect(cases, run(tmp_path, cases, inputs))


def number_cases(a: torch.Tensor) -> Iterator[Case]:
    """Every op of a tensor and a Python number, on either side."""
    pairs = [(name, number) for name in BINARY for number in (*NUMBERS, *SPECIAL_NUMBERS.get(name, ()))]
    for (name, number), left in itertools.product(pairs, (True, False)):
        integral = not isinstance(number, float) and not a.dtype.is_floating_point
        if name in DIVISIONS and integral:
            if (not left and number == 0) or (a.dtype == torch.int8 and number == 300 and not left):
                continue
            tensor, label = (without_zero(a), "n") if left else (a, "a")
        else:
            tensor, label = a, "a"
        kinds = [number, (a.dtype, 1)] if left else [(a.dtype, 1), number]
        if not accepts(name, kinds):
            continue
        result = result_dtype(name, kinds)
        yield Case(
            name=name,
            operands=(number, label) if left else (label, number),
            dtypes=(None, a.dtype) if left else (a.dtype, None),
            result=result,
            expected=eager(name, number, tensor) if left else eager(name, tensor, number),
        )
    mask = torch.arange(a.numel()) % 3 == 0
    for number in NUMBERS:
        if not accepts("where", [(torch.bool, 1), (a.dtype, 1), number]):
            continue
        result = result_dtype("where", [(torch.bool, 1), (a.dtype, 1), number])
        for operands in (("a", number), (number, "a")):
            values = [a if o == "a" else number for o in operands]
            yield Case(
                name="where",
                operands=("c", *operands),
                dtypes=(torch.bool, *(a.dtype if o == "a" else None for o in operands)),
                result=result,
                expected=torch.where(mask, *values),
            )


@pytest.mark.parametrize("dtype", DTYPES)
def test_binary_ops_on_a_tensor_and_a_number(dtype: torch.dtype, tmp_path: Path) -> None:
    a = column(dtype)
    cases = list(number_cases(a))
    inputs = {"a": a, "n": without_zero(a), "c": torch.arange(a.numel()) % 3 == 0}
    expect(cases, run(tmp_path, cases, inputs))


@pytest.mark.parametrize("dtype", DTYPES)
def test_unary_ops(dtype: torch.dtype, tmp_path: Path) -> None:
    a = column(dtype)
    cases = []
    inputs = {"a": a}
    for name in UNARY:
        if not accepts(name, [(dtype, 1)]):
            continue
        operand = domain(name, a)
        label = "a" if operand is a else f"a_{name}"
        inputs[label] = operand
        cases.append(
            Case(
                name=name,
                operands=(label,),
                dtypes=(dtype,),
                result=result_dtype(name, [(dtype, 1)]),
                expected=eager(name, operand),
            )
        )
    expect(cases, run(tmp_path, cases, inputs))


@pytest.mark.parametrize("dtype", DTYPES)
def test_operands_without_dimensions(dtype: torch.dtype, tmp_path: Path) -> None:
    """They promote only across kinds and are rounded to the common dtype before the op computes."""
    a = column(dtype)
    cases, scalars = [], {}
    for other in DTYPES:
        s = torch.tensor(3.3, dtype=torch.float64).to(other)
        label = f"s_{SIGNATURE_DTYPES[other]}"
        scalars[label] = s
        kinds = [(dtype, 1), (other, 0)]
        for name in ("add", "sub", "div", "eq", "lt", "maximum", "atan2", "remainder"):
            if accepts(name, kinds):
                cases.append(
                    Case(
                        name=name,
                        operands=("a", label),
                        dtypes=(dtype, other),
                        result=result_dtype(name, kinds),
                        expected=eager(name, a, s),
                        common=common_dtype(name, kinds),
                    )
                )
    expect(cases, run(tmp_path, cases, {"a": a}, scalars))


def castable(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`values` with those replaced whose conversion to `dtype` is not defined in eager mode."""
    if not values.is_floating_point() or dtype.is_floating_point or dtype == torch.bool:
        return values
    info = torch.iinfo(dtype)
    low, high = (-300, 50000) if dtype == torch.uint8 else (info.min // 2, info.max // 2)
    if values.dtype in (torch.float16, *FP8):  # no infinities
        low, high = max(low, -50000), min(high, 50000)
    return values.double().nan_to_num(nan=-1.5).clamp(low, high).to(values.dtype)


@pytest.mark.parametrize("dtype", [*DTYPES, *FP8])
def test_casts(dtype: torch.dtype, tmp_path: Path) -> None:
    cases, inputs = [], {}
    for source in (*DTYPES, *FP8):
        values = column(torch.float32 if source in FP8 else source)
        if source == torch.float32:
            # Overflow of the fp8 types: halfway points and their neighbours.
            edges = [447.0, 449.0, 464.0, 464.1, 480.0, -500.0, 57344.0, 61439.0, 61440.0, -61440.0, 65504.0, 65520.0]
            values = torch.cat([values[:20], torch.tensor(edges)])
        values = castable(values.to(source), dtype)
        label = f"x_{SIGNATURE_DTYPES[source]}"
        inputs[label] = values
        cases.append(Case(name="cast", operands=(label,), dtypes=(source,), result=dtype, expected=values.to(dtype)))
    cases = [c for c in cases if c.dtypes[0] is not dtype]
    outputs = run(tmp_path, cases, inputs)
    for case, output in zip(cases, outputs, strict=True):
        if dtype in FP8:
            same = (output.float() == case.expected.float()) | (output.float().isnan() & case.expected.float().isnan())
            assert same.all(), str(case)
        else:
            failure = check(case, output) or (ulps(output, case.expected).max() if dtype.is_floating_point else None)
            assert not failure, failure


def test_bitcasts(tmp_path: Path) -> None:
    sources = (*DTYPES, *FP8)
    cases, inputs = [], {}
    for source, target in itertools.permutations(sources, 2):
        if source.itemsize != target.itemsize or target is torch.bool:
            continue
        label = f"x_{SIGNATURE_DTYPES[source]}"
        inputs[label] = (column(torch.float32 if source in FP8 else source)).to(source)
        cases.append(
            Case(
                name="bitcast",
                operands=(label,),
                dtypes=(source,),
                result=target,
                expected=inputs[label].view(target),
            )
        )
    for case, output in zip(cases, run(tmp_path, cases, inputs), strict=True):
        integer = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[case.result.itemsize]
        nan = case.expected.isnan() if case.result.is_floating_point else torch.zeros((), dtype=torch.bool)
        assert ((output.view(integer) == case.expected.view(integer)) | nan).all(), str(case)


def test_numbers_known_only_at_run_time(tmp_path: Path) -> None:
    """The name of a Python number stands for a value of whatever dtype Triton gives the argument."""
    inputs = {f"a_{SIGNATURE_DTYPES[d]}": column(d) for d in (torch.bfloat16, torch.int8, torch.int64, torch.float64)}
    numbers = {"n": 3, "f": 0.75}
    cases = []
    for name, (label, a), (key, number) in itertools.product(
        ("add", "sub", "mul", "maximum", "lt", "pow", "remainder", "where"), inputs.items(), numbers.items()
    ):
        kinds = [(a.dtype, 1), number]
        if name == "where":
            label, kinds = ("c", label), [(torch.bool, 1), *kinds]
            expected = torch.where(torch.arange(32) % 3 == 0, a, number)
        else:
            label, expected = (label,), eager(name, a, number)
        cases.append(
            Case(
                name=name,
                operands=(*label, key),
                dtypes=(*(k[0] for k in kinds[:-1]), None),
                result=result_dtype(name, kinds),
                expected=expected,
                common=common_dtype(name, kinds),
            )
        )
    expect(cases, run(tmp_path, cases, {**inputs, "c": torch.arange(32) % 3 == 0}, numbers=numbers))


def test_numbers_alone(tmp_path: Path) -> None:
    mask = torch.arange(32) % 3 == 0
    cases = [
        Case(
            name="where",
            operands=("c", x, y),
            dtypes=(torch.bool, None, None),
            result=result_dtype("where", [(torch.bool, 1), x, y]),
            expected=torch.where(mask, x, y),
        )
        for x, y in ((1, 0), (1.5, 0.0), (1, 2.5), (True, False), (math.inf, -math.inf))
    ]
    expect(cases, run(tmp_path, cases, {"c": mask}))


# --- text -------------------------------------------------------------------------------------------------------------


def test_every_op_has_a_triton_form() -> None:
    assert set(forms.TABLE) | set(ops_pointwise._OWN_DTYPES) == set(POINTWISE)
    assert not set(forms.TABLE) & set(ops_pointwise._OWN_DTYPES)


def texts(*rows: tuple[str, str, Any]) -> Callable[..., None]:
    return pytest.mark.parametrize(("expected", "name", "operands"), rows)


F32, BF16, I32, U8, F64 = torch.float32, torch.bfloat16, torch.int32, torch.uint8, torch.float64


@texts(
    ("x + y", "add", [("x", F32), ("y", F32)]),
    ("x + 1.0", "add", [("x", F32), (1, None)]),
    ("(x.to(tl.float32) + y.to(tl.float32)).to(tl.bfloat16)", "add", [("x", BF16), ("y", BF16)]),
    ("x.to(tl.float32) * y", "mul", [("x", BF16), ("y", F32)]),
    ("x.to(tl.float32) < 0.10009765625", "lt", [("x", BF16), (0.1, None)]),
    ("x > 2.0", "lt", [(2.0, None), ("x", F32)]),
    ("x / y", "div", [("x", F32), ("y", F32)]),
    ("x * 0.25", "div", [("x", F32), (4, None)]),
    ("tl.div_rn(x.to(tl.float32), 3.0)", "div", [("x", I32), (3, None)]),
    ("x & 7", "remainder", [("x", I32), (8, None)]),
    ("x >> 3", "floordiv", [("x", I32), (8, None)]),
    ("x % 7 + (x % 7 < 0).to(tl.int32) * 7", "remainder", [("x", I32), (7, None)]),
    ("x % y + ((x % y != 0) & ((x < 0) != (y < 0))).to(tl.int32) * y", "remainder", [("x", I32), ("y", I32)]),
    ("x // y", "floordiv", [("x", U8), ("y", U8)]),
    ("x * x", "pow", [("x", F32), (2, None)]),
    ("tl.sqrt_rn(x)", "pow", [("x", F32), (0.5, None)]),
    ("libdevice.pow(x, tl.full((), 2.5, tl.float64))", "pow", [("x", F64), (2.5, None)]),
    ("_integer_power(x, y, 32)", "pow", [("x", I32), ("y", I32)]),
    ("tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)", "maximum", [("x", F32), ("y", F32)]),
    ("tl.where(c, x, float('-inf'))", "where", [("c", torch.bool), ("x", F32), (-math.inf, None)]),
    (
        "libdevice.fast_dividef(1.0, 1.0 + tl.exp2(x.to(tl.float32) * -1.4426950408889634)).to(tl.bfloat16)",
        "sigmoid",
        [("x", BF16)],
    ),
    ("tl.exp2(x * 1.4426950408889634)", "exp", [("x", torch.float32)]),
    ("tl.exp(x)", "exp", [("x", torch.float64)]),
    ("tl.abs(x)", "abs", [("x", BF16)]),
    ("~x", "logical_not", [("x", torch.bool)]),
    ("x == 0.0", "logical_not", [("x", F32)]),
    ("libdevice.nearbyint(x)", "round", [("x", F32)]),
)
def test_text(expected: str, name: str, operands: list[tuple[Operand, torch.dtype | None]]) -> None:
    kinds = [(d, 1) if d is not None else o for o, d in operands]
    made = render(name, [o for o, _ in operands], [d for _, d in operands], result_dtype(name, kinds))
    assert made.text == expected
    called = {word for word in (LIBDEVICE, *literals.HELPERS) if re.search(rf"\b{word}\b", expected)}
    assert made.needs == called


def test_text_of_casts() -> None:
    fp8 = torch.float8_e4m3fn
    x, y = Expression("x"), Expression("y")
    assert literals.cast(x, F32, F32) is x
    for operand, source, target, expected in (
        (x, F32, torch.bool, "x != 0.0"),
        (infix(x, "+", y), F32, BF16, "(x + y).to(tl.bfloat16)"),
        (x, F64, BF16, "x.to(tl.float32).to(tl.bfloat16)"),
        (x, F32, U8, "x.to(tl.int32).to(tl.uint8)"),
        (x, F32, fp8, "x.to(tl.float8e4nv)"),
        (x, fp8, I32, "x.to(tl.float32).to(tl.int32)"),
    ):
        assert literals.cast(operand, source, target).text == expected
    assert literals.bitcast(x, F32, I32).text == "x.to(tl.int32, bitcast=True)"


def test_literals() -> None:
    assert literal(math.inf) == "float('inf')"
    assert literal(-math.inf, torch.float16) == "float('-inf')"
    assert literal(math.nan) == "float('nan')"
    assert literal(1, F32) == "1.0"
    assert literal(True, I32) == "1"
    assert literal(300, U8) == "44"
    assert literal(0.1, F32) == "0.1"
    assert literal(0.1, BF16) == "0.10009765625"
    assert literal(1e39, F32) == "float('inf')"
    with pytest.raises(ValueError, match=r"inf has no value as torch\.int32"):
        literal(math.inf, I32)


def test_refusals() -> None:
    with pytest.raises(KeyError, match="no Triton form of pointwise operation 'clamp'"):
        render("clamp", ["x"], [F32], F32)
    with pytest.raises(TypeError, match=r"'bitwise_and' does not exist for torch\.float32; convert the operands"):
        render("bitwise_and", ["x", "y"], [F32, F32], F32)
    with pytest.raises(TypeError, match=r"cannot view torch\.float32 as torch\.int8: 4 and 1 bytes"):
        render("bitcast", ["x"], [F32], torch.int8)
    with pytest.raises(TypeError, match="a number of unknown kind: pass common_dtype"):
        render("lt", ["x", "n"], [I32, None], torch.bool)


# --- offline compilation ----------------------------------------------------------------------------------------------


def test_all_fp32_ops_compile_for_hopper(tmp_path: Path) -> None:
    a = column(F32)
    cases = [c for c in pair_cases(a, a, a)]
    for name in UNARY:
        if accepts(name, [(F32, 1)]):
            cases.append(
                Case(name=name, operands=("a",), dtypes=(F32,), result=result_dtype(name, [(F32, 1)]), expected=a)
            )
    for dtype in (*DTYPES, *FP8):
        cases.append(Case(name="cast", operands=("a",), dtypes=(F32,), result=dtype, expected=a))
    cases.append(Case(name="bitcast", operands=("a",), dtypes=(F32,), result=I32, expected=a))
    module = load_module(tmp_path, module_text(cases, ["a", "b", "n", "c"], [], []))
    signature = {"a_ptr": "*fp32", "b_ptr": "*fp32", "n_ptr": "*fp32", "c_ptr": "*i1"}
    signature |= {f"out{i}": f"*{SIGNATURE_DTYPES[case.result]}" for i, case in enumerate(cases)}
    source = ASTSource(module.kernel, signature={**signature, "SIZE": "constexpr"}, constexprs={"SIZE": 128})
    with TRITON_LOCK:
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert compiled.asm["cubin"]
