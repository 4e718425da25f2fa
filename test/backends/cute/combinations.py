"""Random products, epilogues and choices for Hopper, as far as they can be planned."""

from __future__ import annotations

import random
from collections.abc import Iterator

from backends.cute import gemms, rows

from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.epilogue import Epilogue, EpilogueOperand, Instruction
from helion.backends.cute.plan.records import Choice, GemmPlan, GemmProblem, Major
from helion.backends.cute.plan.refusal import Refusal

OPERANDS = ("bfloat16", "float16", gemms.E4M3)
OUTPUTS = ("bfloat16", "float16", "float32", gemms.E4M3)


def random_plans(number: int, seed: int = 0) -> dict[str, GemmPlan]:
    """So many plans, as ``random_0`` and so on."""
    plans = _plans(random.Random(seed))
    return {f"random_{i}": next(plans) for i in range(number)}


def random_row_plans(number: int, seed: int = 0) -> dict[str, GemmPlan]:
    """So many plans that reduce rows, as ``random_rows_0`` and so on."""
    plans = _row_plans(random.Random(seed))
    return {f"random_rows_{i}": next(plans) for i in range(number)}


def _row_plans(draw: random.Random) -> Iterator[GemmPlan]:
    while True:
        name, dtype = draw.choice(tuple(rows.ROWS)), draw.choice(OPERANDS)
        m, k = draw.choice((1, 63, 200, 1000, 4097)), 16 * draw.randint(1, 70)
        n = 16 * draw.randint(1, 256)
        columns = 16 * draw.randint(4, 16)
        choice = Choice(
            tile=(draw.choice((64, 128, 128, 256)), columns, 128 if dtype == gemms.E4M3 else 64),
            cluster=(draw.choice((1, 1, 2)), draw.choice((1, 2, 4, 8, 16))),
            store_stages=draw.choice((2, 3, 4, 5)),
            epilogue_n=draw.choice((16, 32, 64)),
            ctas_per_sm=draw.choice((1, 1, 2)),
        )
        try:
            plan = plan_gemm(gemms.whole_rows(name, m, n, k, operands=dtype), choice, gemms.HOPPER)
        except Refusal:
            continue
        if (plan.cluster[1] - 1) * plan.tile[1] < n:  # every CTA has a part of the row
            yield plan


def _plans(draw: random.Random) -> Iterator[GemmPlan]:
    while True:
        try:
            yield plan_gemm(_problem(draw), _choice(draw), gemms.HOPPER)
        except Refusal:
            continue


def _problem(draw: random.Random) -> GemmProblem:
    dtype = draw.choice(OPERANDS)
    m, n, k = draw.choice((2, 64, 72, 1000)), draw.choice((16, 528, 2048)), draw.choice((16, 144, 1040, 4096))
    eight_bits = dtype == gemms.E4M3
    a_major: Major = "k" if eight_bits or m % 8 else draw.choice(("k", "mn"))
    b_major: Major = "k" if eight_bits else draw.choice(("k", "mn"))
    kinds = draw.sample(("row", "column", "exact", "product"), draw.randint(0, 3))
    operands = []
    for number, kind in enumerate(kinds):
        pitch = {"exact": n, "product": k if b_major == "k" else n}.get(kind, 1)
        held = dtype if kind == "product" else draw.choice(("float32", "bfloat16"))
        operands.append(EpilogueOperand(name=f"operand{number}", kind=kind, dtype=held, pitch=pitch))  # type: ignore[arg-type]
    chain: list[Instruction] = []
    for number in range(len(operands)):
        value = len(operands) + len(chain) if chain else 0
        chain.append(Instruction(draw.choice(("add", "mul")), (value, 1 + number)))
    if draw.random() < 0.5:
        chain.append(Instruction("relu", (len(operands) + len(chain) if chain else 0,)))
    return gemms.product(
        m,
        n,
        k,
        operands=dtype,
        output=draw.choice(OUTPUTS),
        a_major=a_major,
        b_major=b_major,
        epilogue=Epilogue(operands=tuple(operands), instructions=tuple(chain)),
    )


def _choice(draw: random.Random) -> Choice:
    return Choice(
        tile=(draw.choice((64, 128, 256)), draw.choice((16, 32, 64, 96, 128, 256)), draw.choice((64, 128, 256))),
        cluster=draw.choice(((1, 1), (2, 1), (1, 2), (2, 2), (4, 1))),
        store_stages=draw.choice((2, 4)),
        epilogue_n=draw.choice((8, 16, 32, 64)),
        group=draw.choice((1, 3, 8)),
        pingpong=draw.random() < 0.4,
        splits=draw.choice((1, 1, 2, 3, 4)),
        grid_splits=draw.choice((1, 1, 2, 3)),
        residual_stages=draw.choice((2, 3, 4)),
        promote_k_tiles=draw.choice((None, 1, 2, 3)),
    )
