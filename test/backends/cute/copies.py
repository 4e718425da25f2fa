"""Plans whose operands warps copy, or whose matrices threads read and store, for the simulation and for binaries."""

from __future__ import annotations

import dataclasses
from typing import Any

from backends.cute import gemms
from backends.cute.gemms import E4M3, SQUARE

from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.copied import Copied, CopySource, granule_of, raw_major
from helion.backends.cute.plan.epilogue import Epilogue, EpilogueOperand, EpilogueOutput, Instruction, constant
from helion.backends.cute.plan.records import Choice, GemmPlan, GemmProblem
from helion.backends.cute.plan.scales import BlockScales, Scale


def copied(operand: str, *sources: tuple[str, str, int, int], chain: tuple[Instruction, ...] = ()) -> Copied:
    """Sources are (name, dtype, pitch, stride along K)."""
    made = tuple(CopySource(name=name, dtype=dtype, pitch=pitch, k_pitch=k) for name, dtype, pitch, k in sources)
    return Copied(operand=operand, sources=made, instructions=chain)


def problem(*copies: Copied, k: int = 479, operands: str = "bfloat16", epilogue: Epilogue | None = None) -> GemmProblem:
    """M = 1000, N = 520; pitches of copied operands are not those in memory."""
    whole = gemms.product(1000, 520, -(-k // 16) * 16, operands=operands, epilogue=epilogue)
    made = tuple(by_its_way(each, operands) for each in copies)
    turned = [each.operand for each in made if each.raw and raw_major(each.sources[0], ()) == "mn"]
    layouts: dict[str, Any] = {f"{operand}_major": "mn" for operand in turned}
    layouts |= {f"{operand}_pitch": 1008 for operand in turned}
    return dataclasses.replace(whole, k=k, copied=made, **layouts)


def by_its_way(copied: Copied, operands: str) -> Copied:
    """Copy past registers what can be, and load raw tiles of what TMA can: of 16-bit operands in both major modes."""
    (source, *others) = copied.sources
    moves = not others and not copied.instructions and source.dtype == operands
    major = None if moves else raw_major(source, ())
    raw = major == "k" or (major == "mn" and operands in ("bfloat16", "float16"))
    return dataclasses.replace(copied, granule=granule_of(source, 0) if moves else 0, raw=raw)


def odd(dtype: str = "bfloat16") -> tuple[Copied, Copied]:
    return copied("a", ("x", dtype, 479, 1)), copied("b", ("y", dtype, 1, 520))


def even(pitch: int = 482, dtype: str = "bfloat16") -> Copied:
    return copied("a", ("x", dtype, pitch, 1))


def strided(dtype: str) -> GemmProblem:
    """N = 520: a residual in every second column, an output of each way to store it."""
    operands = (EpilogueOperand(name="residual", kind="strided", dtype="bfloat16", pitch=1040, column_pitch=2),)
    outputs = (
        EpilogueOutput(name="turned", value=2, kind="strided", dtype=dtype, pitch=1, column_pitch=1001),
        EpilogueOutput(name="plain", value=3, kind="exact", dtype="float32", pitch=520),
    )
    chain = (Instruction("add", (0, 1)), Instruction("relu", (2,)))
    epilogue = Epilogue(operands=operands, instructions=chain, outputs=outputs)
    return dataclasses.replace(gemms.product(1000, 520, 480, epilogue=epilogue), b_pitch=480)


def strided_sums(dtype: str) -> GemmProblem:
    """N = 519: accumulators that threads store as they are."""
    output = EpilogueOutput(name="turned", value=0, kind="strided", dtype=dtype, pitch=1, column_pitch=1001)
    epilogue = Epilogue(operands=(), instructions=(), outputs=(output,))
    return dataclasses.replace(gemms.product(1000, 519, 480, epilogue=epilogue), b_pitch=480)


def strided_softmax() -> GemmProblem:
    """Rows of 511 columns, reduced in a cluster and stored by threads."""
    whole = gemms.whole_rows("softmax", 1000, 512, 480)
    (output,) = whole.outputs
    output = dataclasses.replace(output, name="out", kind="strided", pitch=511)
    return dataclasses.replace(
        whole, n=511, d_pitch=511, epilogue=dataclasses.replace(whole.epilogue, outputs=(output,))
    )


NUMBERED = (
    Instruction("add", (0, 1)),
    Instruction("row_number", ()),
    Instruction("column_number", ()),
    Instruction("ge", (3, 4)),
    Instruction("where", (5, 2, constant(0.5))),
    Instruction("round_bfloat16", (6,)),
)
"""Of a matrix and a second source: rows from the diagonal on."""
SCALED = (Instruction("mul", (0, 1)), Instruction("relu", (2,)))
SMALL, NARROW = Choice(tile=(64, 64, 64)), Choice(tile=(128, 64, 64))
COPIES: dict[str, tuple[GemmProblem, Choice]] = {
    "odd": (problem(*odd()), Choice(tile=(64, 128, 64))),
    "odd_two": (problem(*odd()), NARROW),
    "odd_pingpong": (problem(*odd()), dataclasses.replace(SMALL, pingpong=True)),
    "odd_splits": (problem(*odd()), dataclasses.replace(SMALL, splits=2)),
    "odd_grid": (problem(*odd()), dataclasses.replace(SMALL, grid_splits=3)),
    "odd_residual": (problem(*odd(), epilogue=gemms.scaled_residual(520)), NARROW),
    "n_major_fp8": (
        problem(copied("b", ("y", E4M3, 1, 520)), k=480, operands=E4M3),
        Choice(tile=(128, 64, 128), promote_k_tiles=1),
    ),
    "n_major_tf32": (problem(copied("b", ("y", "float32", 1, 520)), k=480, operands="float32"), Choice(tile=(128, 128, 32))),
    "tf32_odd": (problem(even(479, "float32"), copied("b", ("y", "float32", 1, 521)), k=479, operands="float32"), Choice(tile=(128, 192, 32))),
    "even": (problem(even(), k=482), SQUARE),
    "even_8_bytes": (problem(even(484), k=483), Choice(tile=(64, 256, 64), cluster=(1, 2))),
    "even_pingpong": (problem(even(), k=482), dataclasses.replace(SMALL, pingpong=True)),
    "tf32_pingpong": (problem(even(479, "float32"), copied("b", ("y", "float32", 1, 521)), k=479, operands="float32"), Choice(tile=(128, 128, 32), pingpong=True)),
    "even_splits": (problem(even(), k=482), dataclasses.replace(SMALL, splits=2)),
    "even_residual": (problem(even(), k=482, epilogue=gemms.scaled_residual(520)), NARROW),
    "even_and_odd": (problem(even(), odd()[1], k=482), NARROW),
    "int8": (problem(copied("b", ("y", "int8", 480, 1)), k=480), SQUARE),
    "int8_scaled": (problem(copied("b", ("y", "int8", 480, 1), ("scale", "float32", 1, 0), chain=SCALED), k=480), SQUARE),
    "fp8_odd": (problem(copied("b", ("y", E4M3, 479, 1))), SQUARE),
    "computed": (
        problem(
            copied(
                "a",
                ("x", "bfloat16", 480, 1),
                ("depth", "bfloat16", 0, 1),
                chain=NUMBERED,
            ),
            k=480,
        ),
        SQUARE,
    ),
    "raw_n_major": (problem(copied("b", ("y", "int8", 1, 528)), k=479), SQUARE),
    "raw_n_major_scaled": (problem(copied("b", ("y", "uint8", 1, 528), ("scale", "float32", 1, 0), chain=SCALED), k=479), Choice(tile=(128, 128, 64))),
    "raw_m_major": (problem(copied("a", ("x", "bfloat16", 1, 1008), ("depth", "bfloat16", 0, 1), chain=NUMBERED), k=479), SQUARE),
    "raw_lines": (problem(copied("a", ("x", "float32", 484, 1), ("scale", "float32", 1, 0), chain=SCALED), k=483), SQUARE),
    "raw_fp8": (problem(copied("b", ("y", E4M3, 480, 1)), k=479), dataclasses.replace(SMALL, splits=2)),
    "raw_both": (
        problem(copied("a", ("x", "int8", 480, 1)), copied("b", ("y", E4M3, 1, 528)), k=480),
        dataclasses.replace(SMALL, grid_splits=3),
    ),
    "raw_to_fp8": (problem(copied("b", ("y", "int8", 480, 1)), k=480, operands=E4M3), Choice(tile=(128, 64, 128), promote_k_tiles=1)),
    "raw_to_tf32": (problem(copied("b", ("y", "int16", 480, 1)), k=480, operands="float32"), Choice(tile=(128, 128, 32))),
    "raw_residual": (problem(copied("b", ("y", "int8", 1, 528)), k=480, epilogue=gemms.scaled_residual(520)), NARROW),
    "raw_pingpong": (problem(copied("b", ("y", "int8", 480, 1)), k=480), dataclasses.replace(SMALL, pingpong=True)),
    "raw_and_even": (problem(even(), copied("b", ("y", "int8", 1, 528)), k=482), NARROW),
    "raw_swiglu": (
        problem(copied("b", ("gate", "int8", 480, 1)), copied("up_operand", ("up", "int8", 480, 1)), k=480, epilogue=gemms.swiglu(480)),
        Choice(tile=(64, 64, 64)),
    ),
    "swiglu": (
        problem(copied("b", ("gate", "bfloat16", 479, 1)), copied("up_operand", ("up", "bfloat16", 479, 1)), epilogue=gemms.swiglu(480)),
        Choice(tile=(64, 64, 64)),
    ),
    "strided": (strided("bfloat16"), NARROW),
    "strided_fp8": (strided(E4M3), SQUARE),
    "strided_fp32_splits": (strided("float32"), dataclasses.replace(SMALL, splits=2, grid_splits=2)),
    "strided_int8_grid": (strided("int8"), dataclasses.replace(SMALL, grid_splits=3)),
    "strided_pingpong": (strided("bfloat16"), dataclasses.replace(SMALL, pingpong=True)),
    "strided_sums": (strided_sums("bfloat16"), NARROW),
    "strided_sums_fp8_splits": (strided_sums(E4M3), dataclasses.replace(SMALL, splits=2, grid_splits=2)),
    "strided_sums_pingpong": (strided_sums("float32"), dataclasses.replace(SMALL, pingpong=True)),
    "odd_strided_sums": (dataclasses.replace(strided_sums("bfloat16"), k=479, copied=odd()), NARROW),
    "strided_softmax": (strided_softmax(), Choice(tile=(128, 128, 64), cluster=(1, 4))),
    "softmax": (
        dataclasses.replace(gemms.whole_rows("softmax", 1000, 512, 480), copied=(copied("b", ("y", "bfloat16", 1, 512)),)),
        Choice(tile=(128, 128, 64), cluster=(1, 4)),
    ),
}  # fmt: skip


def scaled_groups(whole: GemmProblem) -> GemmProblem:
    """A scale per row of A for each group of 128 elements along K."""
    scale = Scale(name="scale", side="row", dtype="float32", pitch=-(-whole.k // 128), k_pitch=1)
    return dataclasses.replace(whole, scales=BlockScales(k=128, factors=(scale,)))


IN_REGISTERS = Choice(tile=(128, 64, 128), copies_in="registers")
SLICES = Choice(tile=(64, 16, 128), copies_in="slices", epilogue_n=8, ctas_per_sm=2)
ZEROED = (Instruction("sub", (0, constant(8.0))), Instruction("row_number", ()), Instruction("column_number", ()))
WEIGHED = (*ZEROED, Instruction("ge", (2, 3)), Instruction("where", (4, 1, constant(0.5))))
"""Of bytes with a zero point: rows from the diagonal on."""
COPIES |= {
    "registers_int8": (problem(copied("a", ("x", "int8", 480, 1)), k=479), IN_REGISTERS),
    "registers_fp16": (problem(copied("a", ("x", "int8", 480, 1)), k=479, operands="float16"), dataclasses.replace(IN_REGISTERS, splits=2, grid_splits=2)),
    "registers_fp8": (problem(copied("a", ("x", E4M3, 480, 1)), k=480), dataclasses.replace(IN_REGISTERS, tile=(64, 32, 128), splits=2, epilogue_n=16)),
    "registers_int4": (scaled_groups(problem(copied("a", ("x", "int4", 640, 1)), k=640)), dataclasses.replace(IN_REGISTERS, splits=2)),
    "registers_two_ctas": (scaled_groups(problem(copied("a", ("x", "int4", 640, 1)), k=640)), dataclasses.replace(IN_REGISTERS, tile=(64, 32, 128), epilogue_n=16, splits=2, ctas_per_sm=2)),
    "registers_uint4": (
        scaled_groups(problem(copied("a", ("x", "uint4", 640, 1), chain=(Instruction("sub", (0, constant(7.0))),)), k=640, operands="float16")),
        dataclasses.replace(IN_REGISTERS, tile=(64, 32, 128), epilogue_n=16),
    ),
    "slices_int8": (problem(copied("a", ("x", "int8", 480, 1)), k=479), dataclasses.replace(SLICES, grid_splits=3)),
    "slices_int4": (scaled_groups(problem(copied("a", ("x", "int4", 640, 1)), k=640)), SLICES),
    "slices_uint4": (
        scaled_groups(problem(copied("a", ("x", "uint4", 640, 1), chain=(Instruction("sub", (0, constant(7.0))),)), k=640, operands="float16")),
        dataclasses.replace(SLICES, splits=2),
    ),
    "registers_computed": (problem(copied("a", ("x", "uint8", 480, 1), chain=WEIGHED), k=479, epilogue=gemms.scaled_residual(520)), dataclasses.replace(IN_REGISTERS, grid_splits=3)),
}  # fmt: skip
ON_WGMMA_ALONE = (
    "registers_int8",
    "registers_fp16",
    "registers_fp8",
    "registers_int4",
    "registers_two_ctas",
    "registers_uint4",
    "registers_computed",
    "slices_int8",
    "slices_int4",
    "slices_uint4",
    "even_pingpong",
    "even_splits",
    "tf32_pingpong",
    "odd_pingpong",
    "odd_splits",
    "raw_fp8",
    "raw_pingpong",
    "strided_fp32_splits",
    "strided_pingpong",
    "strided_sums_fp8_splits",
    "strided_sums_pingpong",
)


def plan(name: str, target: str) -> GemmPlan:
    made, choice = COPIES[name]
    on_blackwell = target == "sm_100"
    return plan_gemm(made, choice, gemms.BLACKWELL if on_blackwell else gemms.HOPPER)


NAMES = tuple(
    (name, target)
    for name in COPIES
    for target in ("sm_90", "sm_100")
    if target == "sm_90" or name not in ON_WGMMA_ALONE
)
