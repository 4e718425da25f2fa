"""Products that several tests of this folder plan, print, simulate or compile."""

from __future__ import annotations

import dataclasses

from backends.cute import rows

from helion import hardware
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.epilogue import Epilogue, EpilogueOperand, EpilogueOutput, Instruction, constant
from helion.backends.cute.plan.records import Batch, Choice, GemmPlan, GemmProblem, Major
from helion.backends.cute.plan.scales import BlockScales, Scale, Side

HOPPER = hardware.target("sm_90")
BLACKWELL = hardware.target("sm_100")

RELU = Epilogue(instructions=(Instruction("relu", (0,)),))
CAST_AND_SCALE = Epilogue(instructions=(Instruction("round_bfloat16", (0,)), Instruction("mul", (1, constant(0.125)))))


def bias(then: str | None = None, dtype: str = "bfloat16") -> Epilogue:
    operand = EpilogueOperand(name="bias", kind="row", dtype=dtype)
    chain = (Instruction("add", (0, 1)), *((Instruction(then, (2,)),) if then else ()))
    return Epilogue(operands=(operand,), instructions=chain)


def row_and_column_scales() -> Epilogue:
    return Epilogue(
        operands=(
            EpilogueOperand(name="row_scale", kind="column", dtype="float32"),
            EpilogueOperand(name="column_scale", kind="row", dtype="float32"),
        ),
        instructions=(Instruction("mul", (0, 1)), Instruction("mul", (3, 2))),
    )


def scaled_residual(pitch: int, dtype: str = "bfloat16") -> Epilogue:
    return Epilogue(
        operands=(
            EpilogueOperand(name="scale", kind="row", dtype="bfloat16"),
            EpilogueOperand(name="residual", kind="exact", dtype=dtype, pitch=pitch),
        ),
        instructions=(Instruction("mul", (0, 1)), Instruction("add", (3, 2))),
    )


def swiglu(pitch: int, dtype: str = "bfloat16") -> Epilogue:
    return Epilogue(
        operands=(EpilogueOperand(name="up", kind="product", dtype=dtype, pitch=pitch),),
        instructions=(Instruction("silu", (0,)), Instruction("mul", (2, 1))),
    )


def odd_rows(n: int) -> Epilogue:
    """Return an epilogue whose output has rows that TMA does not store."""
    output = EpilogueOutput(name="out", value=1, kind="strided", dtype="bfloat16", pitch=n)
    return Epilogue(instructions=(Instruction("relu", (0,)),), outputs=(output,))


def along_m(m: int) -> Epilogue:
    """Return an epilogue whose output and residual have ``m`` elements from one column to the next."""
    turned = EpilogueOutput(name="out", value=4, kind="exact", dtype="bfloat16", pitch=1, column_pitch=m)
    column = EpilogueOperand(name="bias", kind="column", dtype="bfloat16")
    residual = EpilogueOperand(name="residual", kind="exact", dtype="bfloat16", pitch=1, column_pitch=m)
    added = Instruction("add", (0, 1)), Instruction("add", (2, 3))
    return Epilogue(operands=(column, residual), instructions=added, outputs=(turned,))


def product(
    m: int = 4096,
    n: int = 4096,
    k: int = 4096,
    *,
    operands: str = "bfloat16",
    output: str = "bfloat16",
    a_major: Major = "k",
    b_major: Major = "k",
    epilogue: Epilogue | None = None,
) -> GemmProblem:
    """A problem without gaps between lines; ``output`` is the type of D where the epilogue names no outputs."""
    named = epilogue.outputs if epilogue else ()
    return GemmProblem(
        m=m,
        n=n,
        k=k,
        operand_dtype=operands,
        output_dtype=named[0].dtype if named else output,
        a_pitch=k if a_major == "k" else m,
        b_pitch=k if b_major == "k" else n,
        d_pitch=named[0].pitch if named else n,
        a_major=a_major,
        b_major=b_major,
        epilogue=epilogue or Epilogue(),
    )


WIDE = Choice(tile=(128, 256, 64))
SQUARE = Choice(tile=(128, 128, 64))
PINGPONG = Choice(tile=(128, 128, 64), cluster=(2, 1), pingpong=True)
PAIR = Choice(tile=(256, 256, 64), cluster=(2, 1), ctas_per_mma=2)
FP8_PAIR = Choice(tile=(256, 128, 128), cluster=(2, 1), ctas_per_mma=2)
E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"


def scale(side: Side, lines: int, extent: int, k: int, *, block: int = 128, dtype: str = "float32") -> Scale:
    """Of lines, blocks of K next to each other."""
    blocks = -(-k // block)
    pitch = 0 if lines >= extent else blocks
    return Scale(name=f"{side}_factors", side=side, dtype=dtype, pitch=pitch, k_pitch=1, lines=lines)


def blockwise(
    m: int = 4096,
    n: int = 4096,
    k: int = 4096,
    *,
    rows: int | None = 1,
    columns: int | None = 128,
    block: int = 128,
    operands: str = "float8_e4m3fn",
    output: str = "bfloat16",
    epilogue: Epilogue | None = None,
) -> GemmProblem:
    """With factors of blocks of K for so many rows, and so many columns; None for none."""
    factors = [scale("row", rows, m, k, block=block)] if rows else []
    factors += [scale("column", columns, n, k, block=block)] if columns else []
    problem = product(m, n, k, operands=operands, output=output, epilogue=epilogue)
    return dataclasses.replace(problem, scales=BlockScales(k=block, factors=tuple(factors)))


def _with(choice: Choice, **changes: object) -> Choice:
    return dataclasses.replace(choice, **changes)  # type: ignore[arg-type]


def whole_rows(name: str, m: int, n: int, k: int, *, operands: str = "bfloat16") -> GemmProblem:
    return product(m, n, k, operands=operands, epilogue=rows.ROWS[name](n))


def clusters(tile: tuple[int, int, int], ctas: int, **changes: object) -> Choice:
    """As many CTAs along N."""
    return _with(Choice(tile=tile, cluster=(1, ctas)), **changes)


def in_memory(tile: tuple[int, int, int], **changes: object) -> Choice:
    """Rows that a second kernel finishes."""
    return _with(Choice(tile=tile, rows_in="memory"), **changes)


# Name -> (problem, choice); odd extents end in the middle of a tile of M, N and K.
ON_HOPPER: dict[str, tuple[GemmProblem, Choice]] = {
    "bf16": (product(), WIDE),
    "bf16_store4": (product(), _with(WIDE, ab_stages=4, store_stages=4)),
    "bf16_multicast_b": (product(), _with(WIDE, cluster=(2, 1))),
    "bf16_multicast_a": (product(), _with(WIDE, cluster=(1, 2))),
    "bf16_n_major": (product(b_major="mn"), WIDE),
    "bf16_n_major_multicast": (product(b_major="mn"), _with(WIDE, cluster=(2, 1))),
    "bf16_m_major": (product(a_major="mn", b_major="mn"), SQUARE),
    "bf16_odd": (product(1000, 520, 136), WIDE),
    "bf16_small": (product(192, 64, 64), Choice(tile=(64, 64, 64))),
    "bf16_tiny": (product(2, 8, 16, b_major="mn"), Choice(tile=(64, 64, 64))),
    "bf16_one_subtile": (product(4097, 8, 136, b_major="mn"), Choice(tile=(64, 64, 64), splits=2)),
    "bf16_one_subtile_fused": (
        product(63, 24, 72, epilogue=scaled_residual(24)),
        Choice(tile=(64, 128, 64), cluster=(2, 2), store_stages=4),
    ),
    "bf16_one_subtile_pingpong": (product(4097, 16, 136), Choice(tile=(64, 64, 64), cluster=(1, 2), pingpong=True)),
    "bf16_deep_k": (product(256, 256, 8200), _with(SQUARE, cluster=(2, 1))),
    "bf16_wide_k": (product(), Choice(tile=(128, 128, 128))),
    "fp16_relu": (product(operands="float16", output="float16", epilogue=RELU), WIDE),
    "fp16_to_fp32": (product(1000, 520, 136, operands="float16", output="float32"), SQUARE),
    "bf16_cast_and_scale": (product(epilogue=CAST_AND_SCALE), SQUARE),
    "bf16_bias_gelu_tanh": (product(epilogue=bias("gelu_tanh")), _with(WIDE, cluster=(2, 1))),
    "bf16_bias_gelu": (product(1000, 520, 136, epilogue=bias("gelu")), SQUARE),
    "bf16_bias_silu": (product(epilogue=bias("silu")), WIDE),
    "bf16_residual": (product(epilogue=scaled_residual(4096)), SQUARE),
    "bf16_residual_wide": (product(epilogue=scaled_residual(4096)), _with(WIDE, ab_stages=3)),
    "bf16_residual_odd": (product(1000, 520, 136, epilogue=scaled_residual(520, "float32")), SQUARE),
    "bf16_tall": (product(), Choice(tile=(256, 128, 64))),
    "bf16_narrow": (product(4096, 64, 4096), Choice(tile=(256, 64, 64))),
    "bf16_pingpong": (product(), PINGPONG),
    "bf16_pingpong_64": (product(), Choice(tile=(64, 256, 64), pingpong=True)),
    "bf16_pingpong_odd": (product(1000, 520, 136, epilogue=bias("silu")), Choice(tile=(64, 128, 64), pingpong=True)),
    "bf16_pingpong_bias_gelu_tanh": (product(epilogue=bias("gelu_tanh")), PINGPONG),
    "bf16_pingpong_residual": (product(epilogue=scaled_residual(4096)), _with(PINGPONG, residual_stages=4)),
    "bf16_pingpong_residual_odd": (
        product(1000, 520, 136, epilogue=scaled_residual(520, "float32")),
        Choice(tile=(128, 64, 64), pingpong=True),
    ),
    "bf16_splits": (product(256, 256, 8200), Choice(tile=(128, 128, 64), splits=4)),
    "bf16_splits_deep": (product(512, 512, 16384), Choice(tile=(128, 128, 64), splits=8, epilogue_n=16)),
    "bf16_splits_multicast": (product(1000, 520, 1096), Choice(tile=(128, 128, 64), cluster=(2, 1), splits=3)),
    "bf16_splits_multicast_residual": (
        product(1000, 520, 1000, epilogue=scaled_residual(520)),
        Choice(tile=(64, 128, 64), cluster=(1, 2), splits=4),
    ),
    "bf16_splits_16": (product(256, 248, 8200), Choice(tile=(128, 128, 64), splits=16, epilogue_n=8)),
    "bf16_splits_tall": (product(1000, 520, 1096), Choice(tile=(256, 64, 64), splits=2)),
    "bf16_splits_residual_odd": (
        product(1000, 520, 1000, epilogue=scaled_residual(520, "float32")),
        Choice(tile=(64, 64, 64), splits=3, epilogue_n=16),
    ),
    "bf16_grid_splits": (product(256, 256, 8200), Choice(tile=(128, 128, 64), grid_splits=4)),
    "bf16_grid_splits_of_splits": (
        product(250, 248, 8200, epilogue=bias("silu")),
        Choice(tile=(128, 128, 64), splits=4, grid_splits=8),
    ),
    "bf16_grid_splits_multicast_residual": (
        product(1000, 520, 1096, epilogue=scaled_residual(520, "float32")),
        Choice(tile=(64, 128, 64), cluster=(2, 1), grid_splits=3, residual_stages=3),
    ),
    "bf16_odd_rows": (product(1000, 301, 520, epilogue=odd_rows(301)), Choice(tile=(128, 64, 64), pingpong=True)),
    "bf16_last_wave": (
        product(4000, 2440, 1096, epilogue=scaled_residual(2440, "float32")),
        Choice(tile=(128, 256, 64), cluster=(2, 1), grid_splits=3, residual_stages=3, split_last=True),
    ),
    "bf16_along_m": (
        product(4096, 300, 1096, epilogue=along_m(4096)),
        Choice(tile=(128, 160, 64), cluster=(2, 1), epilogue_n=16),
    ),
    "bf16_grid_splits_tall": (product(1000, 520, 1096), Choice(tile=(256, 64, 64), splits=2, grid_splits=2)),
    "fp8_grid_splits": (
        product(1000, 528, 2064, operands=E4M3, epilogue=row_and_column_scales()),
        Choice(tile=(64, 64, 128), splits=2, grid_splits=3, epilogue_n=16),
    ),
    "fp8_splits": (
        product(1000, 528, 2064, operands=E4M3, epilogue=row_and_column_scales()),
        Choice(tile=(128, 128, 128), splits=3),
    ),
    "fp8_pingpong": (
        product(operands=E4M3, epilogue=row_and_column_scales()),
        Choice(tile=(64, 128, 128), pingpong=True),
    ),
    "fp8_to_fp8": (
        product(1000, 528, 144, operands=E4M3, output=E4M3, epilogue=row_and_column_scales()),
        Choice(tile=(128, 128, 128)),
    ),
    "bf16_columns_80": (
        product(1000, 4104, 136, epilogue=bias("silu")),
        Choice(tile=(128, 80, 64), cluster=(2, 1), epilogue_n=16, store_stages=5),
    ),
    "bf16_columns_112_splits": (
        product(250, 1000, 1096),
        Choice(tile=(128, 112, 64), splits=3, grid_splits=2, epilogue_n=8),
    ),
    "bf16_columns_144_pingpong": (
        product(1000, 3000, 136, epilogue=scaled_residual(3000)),
        Choice(tile=(64, 144, 64), pingpong=True, epilogue_n=16, store_stages=3),
    ),
    "bf16_columns_192": (product(1000, 520, 136, b_major="mn"), Choice(tile=(128, 192, 64), cluster=(1, 2))),
    "bf16_swiglu": (product(epilogue=swiglu(4096)), _with(SQUARE, cluster=(2, 1))),
    "bf16_swiglu_pingpong": (product(epilogue=swiglu(4096)), Choice(tile=(128, 64, 64), cluster=(2, 1), pingpong=True)),
    "bf16_swiglu_odd": (product(1000, 520, 136, epilogue=swiglu(136)), Choice(tile=(64, 96, 64), epilogue_n=16)),
    "bf16_swiglu_n_major": (product(1000, 520, 136, b_major="mn", epilogue=swiglu(520)), SQUARE),
    "fp8_promoted_each": (product(operands=E4M3), Choice(tile=(128, 128, 128), promote_k_tiles=1)),
    "fp8_promoted_3": (
        product(1000, 528, 2064, operands=E4M3, epilogue=row_and_column_scales()),
        Choice(tile=(128, 128, 128), cluster=(2, 1), promote_k_tiles=3),
    ),
    "fp8_to_fp32": (product(1000, 528, 2064, operands=E4M3, output="float32"), Choice(tile=(128, 64, 128))),
    "fp8_swiglu": (product(1000, 528, 144, operands=E4M3, epilogue=swiglu(144, E4M3)), Choice(tile=(128, 64, 128))),
    "tf32": (product(operands="float32", output="float32"), Choice(tile=(128, 256, 32), cluster=(2, 1))),
    "tf32_pingpong_odd": (
        product(1000, 520, 136, operands="float32", epilogue=scaled_residual(520, "float32")),
        Choice(tile=(64, 128, 32), pingpong=True),
    ),
    "tf32_splits": (product(63, 256, 1096, operands="float32"), Choice(tile=(64, 64, 64), splits=2, grid_splits=2)),
    "bf16_to_fp8": (product(1000, 528, 136, output=E4M3, epilogue=bias("silu")), PINGPONG),
    "fp8": (product(operands=E4M3), Choice(tile=(128, 128, 128))),
    "fp8_scales": (product(operands=E4M3, epilogue=row_and_column_scales()), Choice(tile=(128, 128, 128))),
    "fp8_blockwise": (blockwise(), Choice(tile=(128, 128, 128))),
    "fp8_blockwise_multicast": (blockwise(), Choice(tile=(128, 128, 128), cluster=(2, 1))),
    "fp8_blockwise_columns": (blockwise(columns=1), Choice(tile=(128, 128, 128), cluster=(1, 2))),
    "fp8_blockwise_odd": (blockwise(1000, 520, 1040, columns=1), Choice(tile=(128, 64, 128), cluster=(2, 1))),
    "fp8_blockwise_rows": (blockwise(1000, 520, 1040, columns=None), Choice(tile=(64, 128, 128))),
    "fp8_blockwise_columns_only": (blockwise(1000, 520, 1040, rows=None, columns=1), Choice(tile=(256, 64, 128))),
    "fp8_blockwise_one": (blockwise(1000, 520, 1040, rows=None, columns=4096), Choice(tile=(128, 128, 128))),
    "fp8_blockwise_gathered": (blockwise(1000, 520, 1040, rows=64, columns=32), Choice(tile=(128, 128, 128))),
    "fp8_blockwise_256": (blockwise(1000, 520, 1040, block=256), Choice(tile=(128, 128, 128), cluster=(1, 2))),
    "fp8_blockwise_pingpong": (blockwise(1000, 520, 1040), Choice(tile=(64, 64, 128), pingpong=True)),
    "fp8_blockwise_splits": (blockwise(250, 256, 8208), Choice(tile=(128, 64, 128), splits=2, grid_splits=4)),
    "fp8_blockwise_residual": (
        blockwise(1000, 528, 1040, epilogue=scaled_residual(528)),
        Choice(tile=(128, 128, 128), cluster=(2, 1)),
    ),
    "e5m2_blockwise_fp32": (
        blockwise(1000, 528, 1040, operands=E5M2, output="float32"),
        Choice(tile=(128, 64, 128), cluster=(2, 2)),
    ),
    "bf16_blockwise": (blockwise(1000, 520, 1040, operands="bfloat16"), Choice(tile=(128, 128, 64))),
    "fp8_unpromoted": (product(operands=E4M3), Choice(tile=(128, 256, 128), promote=False)),
    "fp8_e5m2_odd": (
        product(1000, 528, 144, operands=E5M2, epilogue=row_and_column_scales()),
        Choice(tile=(64, 128, 128)),
    ),
}
BIG, SMALL_ROWS, PAIR_TILE = (128, 256, 64), (64, 128, 64), (256, 256, 64)
ON_HOPPER |= {
    "several_outputs": (product(1000, 520, 136, epilogue=rows.gelu_and_more(520)), SQUARE),
    "several_outputs_pingpong": (product(1000, 520, 136, epilogue=rows.gelu_and_its_input(520)), PINGPONG),
    "several_outputs_splits": (
        product(256, 256, 8200, epilogue=rows.gelu_and_its_input(256)),
        _with(SQUARE, splits=4),
    ),
    "rows_of_one_tile": (whole_rows("rms_norm", 1000, 256, 136), WIDE),
    "rows_rms_norm": (whole_rows("rms_norm", 8192, 1024, 512), clusters(BIG, 4)),
    "rows_rms_norm_2048": (whole_rows("rms_norm", 8192, 2048, 512), clusters(BIG, 8)),
    "rows_rms_norm_4096": (whole_rows("rms_norm", 8192, 4096, 512), clusters(BIG, 16)),
    "rows_rms_norm_two_per_sm": (
        whole_rows("rms_norm", 8192, 1024, 512),
        clusters((128, 128, 64), 8, epilogue_n=16, ctas_per_sm=2),
    ),
    "rows_rms_norm_64": (whole_rows("rms_norm", 1024, 1024, 4096), clusters(SMALL_ROWS, 8)),
    "rows_silu_rms_norm": (whole_rows("silu_rms_norm", 8192, 1024, 512), clusters(BIG, 4)),
    "rows_layer_norm_odd": (whole_rows("layer_norm", 1000, 1536, 136), clusters((128, 192, 64), 8)),
    "rows_residual_layer_norm_odd": (
        whole_rows("residual_layer_norm", 1000, 1000, 136),
        clusters((128, 128, 64), 8),
    ),
    "rows_softmax": (whole_rows("softmax", 8192, 4096, 1024), clusters(BIG, 16)),
    "rows_softmax_odd": (whole_rows("softmax", 1000, 3000, 136), clusters((128, 192, 64), 16)),
    "rows_log_softmax_multicast_b": (
        whole_rows("log_softmax", 1000, 520, 136),
        _with(SQUARE, cluster=(2, 4), tile=(128, 144, 64), epilogue_n=16, store_stages=3),
    ),
    "rows_logsumexp_odd": (whole_rows("logsumexp", 1000, 1000, 136), clusters(SMALL_ROWS, 8)),
    "rows_layer_norm_at_once": (whole_rows("layer_norm", 1000, 3000, 520), clusters((128, 192, 64), 16)),
    "rows_logsumexp_at_once": (whole_rows("logsumexp", 1000, 1000, 1032), clusters((256, 128, 64), 8)),
    "rows_argmax_at_once": (
        whole_rows("argmax", 1000, 1000, 1032),
        _with(SQUARE, tile=(64, 256, 64), cluster=(2, 4)),
    ),
    "rows_l2_normalize": (whole_rows("l2_normalize", 131077, 512, 512), clusters(BIG, 2)),
    "rows_quantized_odd": (whole_rows("quantized", 1000, 1008, 136), clusters(BIG, 4)),
    "rows_argmax_odd": (whole_rows("argmax", 1000, 1000, 136), clusters((256, 128, 64), 8)),
    "rows_swiglu_norm": (
        product(1000, 1040, 136, epilogue=rows.swiglu_rms_norm(1040, 136)),
        clusters((128, 80, 64), 16, epilogue_n=16, store_stages=5),
    ),
    "memory_rms_norm_odd": (whole_rows("rms_norm", 1000, 4104, 136), in_memory(BIG, cluster=(2, 1))),
    "memory_layer_norm_pingpong": (
        whole_rows("layer_norm", 4097, 8192, 520),
        in_memory(SQUARE.tile, cluster=(2, 1), pingpong=True),
    ),
    "memory_residual_layer_norm": (whole_rows("residual_layer_norm", 1000, 16384, 136), in_memory(BIG)),
    "memory_softmax_long": (whole_rows("softmax", 63, 50264, 136), in_memory(BIG)),
    "memory_log_softmax_few": (
        whole_rows("log_softmax", 1, 8192, 8200),
        in_memory((64, 128, 64), splits=2, grid_splits=3),
    ),
    "memory_quantized": (whole_rows("quantized", 1000, 8192, 136), in_memory(BIG)),
    "memory_logsumexp_long": (whole_rows("logsumexp", 1000, 50264, 136), in_memory(BIG, cluster=(2, 1))),
    "memory_argmax_odd": (whole_rows("argmax", 1000, 4104, 136), in_memory((64, 256, 64))),
    "memory_rounded_in_place": (
        product(1000, 4104, 136, epilogue=rows.rounded_rms_norm(4104)),
        in_memory(BIG, store_stages=4),
    ),
    "memory_swiglu_norm": (
        product(1000, 4112, 136, epilogue=rows.swiglu_rms_norm(4112, 136)),
        in_memory(SQUARE.tile),
    ),
    "fp8_memory_rows": (
        product(1000, 4112, 528, operands=E4M3, epilogue=rows.scaled_rms_norm(4112)),
        in_memory((128, 128, 128)),
    ),
    "memory_backward": (
        product(1000, 4104, 136, epilogue=rows.rms_norm_backward(4104)),
        in_memory(BIG, cluster=(2, 1)),
    ),
    "fp8_rows": (
        product(1000, 1040, 528, operands=E4M3, epilogue=rows.scaled_rms_norm(1040)),
        clusters((128, 80, 128), 16, epilogue_n=16, store_stages=5),
    ),
}
ON_BLACKWELL: dict[str, tuple[GemmProblem, Choice]] = {
    "bf16": (product(), WIDE),
    "bf16_one_subtile": (product(72, 8, 72, epilogue=scaled_residual(8)), _with(PAIR, cluster=(2, 2))),
    "bf16_swiglu": (product(epilogue=swiglu(4096)), _with(SQUARE, cluster=(1, 2))),
    "bf16_swiglu_n_major": (product(1000, 520, 136, b_major="mn", epilogue=swiglu(520)), SQUARE),
    "tf32": (product(operands="float32", output="float32"), Choice(tile=(128, 128, 32))),
    "tf32_pair": (
        product(operands="float32", output="float32"),
        Choice(tile=(256, 128, 32), cluster=(2, 1), ctas_per_mma=2),
    ),
    "bf16_64": (product(), Choice(tile=(64, 256, 64))),
    "bf16_64_columns_80": (
        product(1000, 4104, 136, epilogue=scaled_residual(4104, "float32")),
        Choice(tile=(64, 80, 64), epilogue_n=16, store_stages=5),
    ),
    "bf16_pair_columns_96": (
        product(1000, 3000, 136, epilogue=bias("silu")),
        Choice(tile=(256, 96, 64), cluster=(2, 1), ctas_per_mma=2, epilogue_n=16),
    ),
    "bf16_columns_144": (product(1000, 520, 136), Choice(tile=(128, 144, 64), epilogue_n=16, store_stages=3)),
    "bf16_64_residual_odd": (
        product(1000, 520, 136, epilogue=scaled_residual(520, "float32")),
        Choice(tile=(64, 64, 64), cluster=(1, 2)),
    ),
    "fp8_64_scales": (product(operands=E4M3, epilogue=row_and_column_scales()), Choice(tile=(64, 128, 128))),
    "bf16_grid_splits": (product(256, 256, 8200), Choice(tile=(128, 128, 64), grid_splits=4)),
    "bf16_along_m": (product(4096, 300, 1096, epilogue=along_m(4096)), Choice(tile=(128, 160, 64), epilogue_n=16)),
    "bf16_64_grid_splits": (product(200, 248, 8200, epilogue=bias("silu")), Choice(tile=(64, 128, 64), grid_splits=3)),
    "bf16_pair_grid_splits_residual": (
        product(1000, 520, 1096, epilogue=scaled_residual(520, "float32")),
        _with(PAIR, tile=(256, 128, 64), cluster=(2, 2), grid_splits=3),
    ),
    "bf16_pair": (product(), _with(PAIR, ab_stages=6)),
    "bf16_pair_n_major": (product(b_major="mn"), PAIR),
    "bf16_pair_multicast": (product(), _with(PAIR, cluster=(2, 2))),
    "bf16_pair_of_pairs": (product(), _with(PAIR, cluster=(4, 1))),
    "bf16_multicast": (product(), _with(WIDE, cluster=(1, 2))),
    "bf16_m_major": (product(a_major="mn", b_major="mn"), SQUARE),
    "bf16_odd": (product(1000, 520, 136), SQUARE),
    "fp16_relu": (product(operands="float16", output="float16", epilogue=RELU), PAIR),
    "bf16_bias_gelu_tanh": (product(epilogue=bias("gelu_tanh")), PAIR),
    "bf16_residual": (product(epilogue=scaled_residual(4096)), PAIR),
    "bf16_to_fp32": (product(output="float32"), SQUARE),
    "fp8_to_fp8": (
        product(1000, 528, 144, operands=E4M3, output=E4M3, epilogue=row_and_column_scales()),
        Choice(tile=(128, 128, 128)),
    ),
    "fp8_pair": (product(operands=E4M3), _with(FP8_PAIR, ab_stages=8)),
    "fp8_pair_scales": (product(operands=E4M3, epilogue=row_and_column_scales()), _with(FP8_PAIR, ab_stages=8)),
    "fp8_e5m2_odd": (product(1000, 528, 144, operands=E5M2), Choice(tile=(128, 128, 128))),
    "fp8_blockwise": (blockwise(), Choice(tile=(128, 64, 128), cluster=(1, 2))),
    "fp8_blockwise_pair": (blockwise(), _with(FP8_PAIR, tile=(256, 64, 128), cluster=(2, 2))),
    "fp8_blockwise_columns_odd": (blockwise(1000, 520, 1040, columns=1), Choice(tile=(128, 64, 128))),
    "fp8_blockwise_64_odd": (blockwise(1000, 520, 1040, columns=1), Choice(tile=(64, 128, 128), cluster=(2, 1))),
    "fp8_blockwise_256_residual": (
        blockwise(1000, 528, 1040, block=256, epilogue=scaled_residual(528)),
        Choice(tile=(128, 64, 128), cluster=(2, 2)),
    ),
    "fp8_blockwise_one": (blockwise(1000, 520, 1040, rows=None, columns=4096), Choice(tile=(128, 64, 128))),
    "fp8_blockwise_grid_splits": (blockwise(250, 256, 8208), Choice(tile=(128, 64, 128), grid_splits=4)),
    "bf16_blockwise": (blockwise(1000, 520, 1040, operands="bfloat16"), Choice(tile=(128, 64, 64))),
}
ON_BLACKWELL |= {
    "several_outputs": (product(1000, 520, 136, epilogue=rows.gelu_and_more(520)), SQUARE),
    "rows_of_one_tile": (whole_rows("layer_norm", 1000, 256, 136), WIDE),
    "rows_rms_norm": (whole_rows("rms_norm", 8192, 1024, 512), clusters(BIG, 4)),
    "rows_rms_norm_4096": (whole_rows("rms_norm", 8192, 4096, 512), clusters(BIG, 16)),
    "rows_rms_norm_pair": (whole_rows("rms_norm", 8192, 1024, 512), _with(PAIR, cluster=(2, 4))),
    "rows_layer_norm_pair": (whole_rows("layer_norm", 1000, 2048, 136), _with(PAIR, cluster=(2, 8))),
    "rows_residual_layer_norm_odd": (
        whole_rows("residual_layer_norm", 1000, 1000, 136),
        clusters((128, 128, 64), 8),
    ),
    "rows_softmax_64_odd": (whole_rows("softmax", 1000, 1000, 136), clusters(SMALL_ROWS, 8)),
    "rows_log_softmax": (whole_rows("log_softmax", 8192, 1024, 512), clusters(BIG, 4)),
    "rows_logsumexp_odd": (whole_rows("logsumexp", 1000, 1000, 136), clusters(BIG, 4)),
    "rows_quantized_odd": (whole_rows("quantized", 1000, 1008, 136), clusters(BIG, 4)),
    "rows_argmax_odd": (whole_rows("argmax", 1000, 1000, 136), clusters(BIG, 4)),
    "memory_rms_norm_pair": (
        whole_rows("rms_norm", 1000, 8192, 136),
        in_memory((256, 256, 64), cluster=(2, 1), ctas_per_mma=2),
    ),
    "memory_softmax_splits": (whole_rows("softmax", 16, 16384, 8200), in_memory((64, 128, 64), grid_splits=3)),
    "memory_logsumexp": (whole_rows("logsumexp", 1000, 50264, 136), in_memory(BIG)),
    "fp8_rows_pair": (
        product(1000, 1040, 528, operands=E4M3, epilogue=rows.scaled_rms_norm(1040)),
        _with(FP8_PAIR, cluster=(2, 8), tile=(256, 160, 128), store_stages=5),
    ),
}


def batched(problem: GemmProblem, size: int = 5, **strides: int) -> GemmProblem:
    """`size` products whose matrices and rows lie one behind the other, unless `strides` says otherwise; columns are shared."""
    pitches = {"exact": problem.m * problem.n, "product": problem.n * problem.k, "row": problem.n, "column": 0}
    known = {"a": problem.m * problem.k, "b": problem.n * problem.k, "d": problem.m * problem.n, **strides}
    operands = tuple(pitches[operand.kind] for operand in problem.epilogue.operands)
    more = tuple(problem.m * (problem.n if output.kind == "exact" else 1) for output in problem.outputs[1:])
    return dataclasses.replace(problem, batch=Batch(size=size, operands=operands, more=more, **known))


INTERLEAVED = dataclasses.replace(product(1000, 520, 136), a_pitch=5 * 136, d_pitch=5 * 520)
BATCHES: dict[str, tuple[GemmProblem, Choice, hardware.Target]] = {
    "sm_90/batch": (batched(product(1000, 520, 136)), SQUARE, HOPPER),
    "sm_90/batch_interleaved": (batched(INTERLEAVED, a=136, d=520), SQUARE, HOPPER),
    "sm_90/batch_shared": (
        batched(product(1000, 520, 136, b_major="mn", epilogue=scaled_residual(520)), b=0),
        _with(SQUARE, cluster=(2, 1)),
        HOPPER,
    ),
    "sm_90/batch_swiglu_pingpong": (
        batched(product(65, 72, 72, epilogue=swiglu(72))), Choice(tile=(64, 64, 64), pingpong=True), HOPPER,
    ),
    "sm_90/batch_rows": (
        batched(whole_rows("layer_norm", 1000, 1000, 136)), clusters(SMALL_ROWS, 8), HOPPER,
    ),
    "sm_100/batch_rows": (
        batched(whole_rows("quantized", 250, 1008, 136), 3), clusters(BIG, 4), BLACKWELL,
    ),
    "sm_90/batch_splits": (
        batched(product(64, 64, 1000), 3), Choice(tile=(64, 64, 64), splits=2, grid_splits=2), HOPPER,
    ),
    "sm_100/batch_pair": (
        batched(product(250, 248, 136, epilogue=scaled_residual(248))), _with(PAIR, tile=(256, 128, 64)), BLACKWELL,
    ),
}  # fmt: skip


def hopper(name: str) -> GemmPlan:
    return plan_gemm(*ON_HOPPER[name], HOPPER)


def blackwell(name: str) -> GemmPlan:
    return plan_gemm(*ON_BLACKWELL[name], BLACKWELL)


def all_plans() -> dict[str, GemmPlan]:
    """Every plan of this file, as ``sm_90/bf16`` and so on."""
    plans = {f"sm_90/{name}": hopper(name) for name in ON_HOPPER}
    plans |= {f"sm_100/{name}": blackwell(name) for name in ON_BLACKWELL}
    return plans | {name: plan_gemm(*case) for name, case in BATCHES.items()}
