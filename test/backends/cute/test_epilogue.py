"""The printed arithmetic of epilogues, executed on the CPU with stand-ins for the DSL's functions, against torch."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from backends.cute import gemms
from backends.cute.ptx import rounded_to

import helion
import helion.language as hl
from helion.backends.cute.codegen.epilogue import evaluate
from helion.backends.cute.plan.epilogue import ARITY, Epilogue, Instruction, constant


@dataclasses.dataclass
class Number:
    """fp32 values with the DSL's way of converting; every operation rounds to fp32, as the GPU's do."""

    held: torch.Tensor

    def to(self, kind: Callable[[Any], Number]) -> Number:
        return kind(self)


def _held(value: Any) -> torch.Tensor:
    return value.held if isinstance(value, Number) else torch.tensor(value, dtype=torch.float32)


def _lift(function: Callable[..., torch.Tensor]) -> Callable[..., Number]:
    return lambda *values, **_: Number(function(*map(_held, values)))


for _name in ("add", "sub", "mul", "truediv"):
    _function = getattr(__import__("operator"), _name)
    setattr(Number, f"__{_name}__", _lift(_function))
    setattr(Number, f"__r{_name}__", _lift(lambda x, y, f=_function: f(y, x)))
Number.__neg__ = _lift(torch.neg)  # type: ignore[attr-defined]
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
for _name in COMPARISONS:
    setattr(Number, f"__{_name}__", _lift(getattr(torch, _name)))

CUTLASS = types.SimpleNamespace(
    Float32=_lift(lambda x: x.float()),
    Float16=_lift(lambda x: x.half().float()),
    BFloat16=_lift(lambda x: x.bfloat16().float()),
    select_=_lift(torch.where),
)
UNARY = (
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "tanh",
    "expm1",
    "log2",
    "log10",
    "log1p",
    "floor",
    "ceil",
    "trunc",
)
MATH = types.SimpleNamespace(**{name: _lift(getattr(torch, name)) for name in UNARY}, roundeven=_lift(torch.round))
MATH.erf, MATH.abs, MATH.exp2 = _lift(torch.erf), _lift(torch.abs), _lift(torch.exp2)
MATH.fma = _lift(lambda x, y, z: (x.double() * y.double() + z.double()).float())
ARCH = types.SimpleNamespace(rcp_approx=_lift(torch.reciprocal), fmax=_lift(torch.maximum), fmin=_lift(torch.minimum))
ARCH.inline_ptx = lambda text, write_only_types, read_only_args: _lift(lambda x: x.to(rounded_to(text)).float())(
    *read_only_args
)
CUTE = types.SimpleNamespace(math=MATH, arch=ARCH)


def _truth(name: str) -> Callable[..., torch.Tensor]:
    return lambda *values: getattr(torch, name)(*values).float()


functional = torch.nn.functional
EAGER: dict[str, Callable[..., torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "one_plus_tanh": lambda x: (1.0 + torch.tanh(x.double())).float(),
    **{name: _truth(name) for name in (*COMPARISONS, "isnan", "isinf", "isfinite")},
    "where": lambda condition, x, y: torch.where(condition != 0, x, y),
    "round_float16": lambda x: x.half().float(),
    "round_bfloat16": lambda x: x.bfloat16().float(),
}
VALUES = torch.cat([torch.linspace(-30, 30, 4001), torch.logspace(-20, 1, 500), -torch.logspace(-20, 1, 500)])


def run(epilogue: Epilogue, values: torch.Tensor, output: str = "bfloat16") -> torch.Tensor:
    plan = dataclasses.replace(gemms.hopper("bf16"), problem=gemms.product(output=output, epilogue=epilogue))
    names: dict[str, Any] = {"values": [Number(values)], "i": 0, "cutlass": CUTLASS, "cute": CUTE}
    exec("\n".join(evaluate(plan)), names)
    return names["values"][0].held


@pytest.mark.parametrize("output", ["bfloat16", "float32"])
@pytest.mark.parametrize("op", ARITY)
def test_every_operation_is_torchs(op: str, output: str) -> None:
    values = VALUES.abs() if op in ("sqrt", "rsqrt") or op.startswith("log") else VALUES
    given = (0, constant(0.7), constant(-2.0))[: ARITY[op]]
    found = run(Epilogue(instructions=(Instruction(op, given),)), values, output)
    eager = EAGER.get(op) or getattr(torch, op)
    wanted = eager(*(values, torch.tensor(0.7), torch.tensor(-2.0))[: ARITY[op]])
    # gelu cancels for negative values in torch too: there the sum 1 + erf is what is compared.
    floor = VALUES.abs().max() * 1e-7 if op in ("gelu", "gelu_tanh", "one_plus_tanh") else 1e-30
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=float(floor))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_number_is_rounded_as_one_of_a_pair(dtype: str) -> None:
    """The conversion of a single number takes the unit of exp2, twice for each score of attention."""
    plan = gemms.product(epilogue=Epilogue(instructions=(Instruction(f"round_{dtype}", (0,)),)))
    (line,) = (x for x in evaluate(dataclasses.replace(gemms.hopper("bf16"), problem=plan)) if "cvt" in x)
    packed = {"float16": "cvt.rn.f16x2.f32 p, 0f00000000, {$r0}", "bfloat16": "cvt.rn.bf16x2.f32 p, {$r0}, 0f00000000"}
    assert packed[dtype] in line and ".to(" not in line


@pytest.mark.parametrize("op", ["relu", "maximum", "minimum", "tanh", "sigmoid", "abs"])
def test_nan_stays_nan(op: str) -> None:
    found = run(
        Epilogue(instructions=(Instruction(op, (0, constant(0.7))[: ARITY[op]]),)), torch.tensor([float("nan")])
    )
    assert found.isnan().all()


def test_truth_of_special_numbers() -> None:
    """Nothing equals what is not a number, which is no infinity and not finite."""
    values = torch.tensor([float("nan"), float("inf"), -float("inf"), 3.0])
    for op in ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite"):
        found = run(Epilogue(instructions=(Instruction(op, (0, 0)[: ARITY[op]]),)), values)
        assert torch.equal(found, EAGER[op](*(values, values)[: ARITY[op]])), op


def test_arguments_keep_their_order() -> None:
    values = torch.tensor([3.0])
    assert run(Epilogue(instructions=(Instruction("sub", (constant(1.0), 0)),)), values) == -2.0
    assert (
        run(Epilogue(instructions=(Instruction("div", (0, constant(2.0))), Instruction("sub", (0, 1)))), values) == 1.5
    )


def test_roots_are_one_instruction() -> None:
    """An exact one has a branch for numbers that it scales, and takes 15."""

    @helion.kernel(backend="cute")
    def roots(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
        for tile in hl.tile(x.size(0)):
            out[tile] = torch.sqrt(x[tile, :]).sum(-1)
        return out

    bound = roots.bind((torch.empty(64, 4096, device="meta"),), target="h200")
    found = bound.resources(bound.seeds[0].config).sass_counts
    assert found["MUFU"] > 0 and found.get("FFMA", 0) < found["MUFU"]
