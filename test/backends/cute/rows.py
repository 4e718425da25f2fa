"""Epilogues with reductions of whole rows, as several tests of this folder plan, evaluate, simulate or compile them."""

from __future__ import annotations

from collections.abc import Callable

from helion.backends.cute.plan.epilogue import (
    Constant,
    Epilogue,
    EpilogueOperand,
    EpilogueOutput,
    Instruction,
    OperandKind,
    OutputKind,
    constant,
)

Argument = int | float


class Chain:
    """Instructions one after the other; each call gives the number of its value."""

    def __init__(self, *operands: tuple[str, OperandKind, str, int]) -> None:
        self.operands = tuple(
            EpilogueOperand(name=name, kind=kind, dtype=dtype, pitch=pitch) for name, kind, dtype, pitch in operands
        )
        self.instructions: list[Instruction] = []

    def __call__(self, op: str, *arguments: Argument) -> int:
        given: tuple[int | Constant, ...] = tuple(constant(x) if isinstance(x, float) else x for x in arguments)
        self.instructions.append(Instruction(op, given))
        return len(self.operands) + len(self.instructions)

    def done(self, *outputs: tuple[str, int, OutputKind, str, int]) -> Epilogue:
        named = tuple(
            EpilogueOutput(name=name, value=value, kind=kind, dtype=dtype, pitch=pitch)
            for name, value, kind, dtype, pitch in outputs
        )
        return Epilogue(operands=self.operands, instructions=tuple(self.instructions), outputs=named)


def rms_norm(n: int, eps: float = 1e-6) -> Epilogue:
    e = Chain(("weight", "row", "bfloat16", 1))
    mean = e("mul", e("row_sum", e("mul", 0, 0)), 1.0 / n)
    e("mul", e("mul", 0, e("rsqrt", e("add", mean, eps))), 1)
    return e.done()


def silu_rms_norm(n: int) -> Epilogue:
    e = Chain(("weight", "row", "float32", 1))
    x = e("silu", 0)
    mean = e("mul", e("row_sum", e("mul", x, x)), 1.0 / n)
    e("mul", e("mul", x, e("rsqrt", e("add", mean, 1e-6))), 1)
    return e.done()


def layer_norm(n: int) -> Epilogue:
    """With a bias in front and the residual's kept sum as a second output, of which the mean is a third."""
    e = Chain(("bias", "row", "bfloat16", 1), ("weight", "row", "bfloat16", 1), ("shift", "row", "bfloat16", 1))
    x = e("add", 0, 1)
    mean = e("mul", e("row_sum", x), 1.0 / n)
    d = e("sub", x, mean)
    variance = e("mul", e("row_sum", e("mul", d, d)), 1.0 / n)
    y = e("add", e("mul", e("mul", d, e("rsqrt", e("add", variance, 1e-5))), 2), 3)
    return e.done(("d", y, "exact", "bfloat16", n), ("mean", mean, "column", "float32", 1))


def residual_layer_norm(n: int) -> Epilogue:
    """Two sums in one exchange, and the sum with the residual as an output of its own."""
    e = Chain(("residual", "exact", "bfloat16", n))
    x = e("add", 0, 1)
    mean = e("mul", e("row_sum", x), 1.0 / n)
    square = e("mul", e("row_sum", e("mul", x, x)), 1.0 / n)
    variance = e("maximum", e("sub", square, e("mul", mean, mean)), 0.0)
    y = e("mul", e("sub", x, mean), e("rsqrt", e("add", variance, 1e-5)))
    return e.done(("d", y, "exact", "bfloat16", n), ("hidden", x, "exact", "bfloat16", n))


def layer_gradient(n: int) -> Epilogue:
    """The gradient of a layer norm: sums of squares and of products with deviations from one mean."""
    e = Chain(("slope", "exact", "float32", n))
    d = e("sub", 0, e("mul", e("row_sum", 0), 1.0 / n))
    inverse = e("rsqrt", e("add", e("mul", e("row_sum", e("mul", d, d)), 1.0 / n), 1e-5))
    hat = e("mul", d, inverse)
    along = e("mul", e("mul", e("row_sum", e("mul", 1, d)), inverse), 1.0 / n)
    left = e("sub", 1, e("mul", e("row_sum", 1), 1.0 / n))
    return e.done(("d", e("mul", inverse, e("sub", left, e("mul", hat, along))), "exact", "float32", n))


def softmax(n: int) -> Epilogue:
    e = Chain()
    p = e("exp", e("sub", 0, e("row_maximum", 0)))
    e("div", p, e("row_sum", p))
    return e.done()


def log_softmax(n: int) -> Epilogue:
    e = Chain(("bias", "row", "float32", 1))
    x = e("add", 0, 1)
    shifted = e("sub", x, e("row_maximum", x))
    e("sub", shifted, e("log", e("row_sum", e("exp", shifted))))
    return e.done()


def logsumexp(n: int) -> Epilogue:
    """One number per row and nothing else."""
    e = Chain()
    largest = e("row_maximum", 0)
    total = e("row_sum", e("exp", e("sub", 0, largest)))
    return e.done(("lse", e("add", e("log", total), largest), "column", "float32", 1))


def l2_normalize(n: int) -> Epilogue:
    e = Chain()
    norm = e("sqrt", e("row_sum", e("mul", 0, 0)))
    e("div", 0, e("maximum", norm, 1e-12))
    return e.done()


def quantized(n: int, dtype: str = "int8") -> Epilogue:
    e = Chain()
    largest = 127.0 if dtype == "int8" else 448.0
    scale = e("div", e("maximum", e("row_maximum", e("abs", 0)), 1e-12), largest)
    q = e("div", 0, scale)
    if dtype == "int8":
        q = e("round", q)
    return e.done(("d", q, "exact", dtype, n), ("scale", scale, "column", "float32", 1))


def argmax(n: int) -> Epilogue:
    e = Chain(("bias", "row", "float32", 1))
    x = e("add", 0, 1)
    largest = e("row_maximum", x)
    first = e("row_first", x, largest)
    return e.done(("index", first, "column", "int64", 1), ("largest", largest, "column", "bfloat16", 1))


def swiglu_rms_norm(n: int, pitch: int) -> Epilogue:
    e = Chain(("up", "product", "bfloat16", pitch), ("weight", "row", "bfloat16", 1))
    x = e("mul", e("silu", 0), 1)
    mean = e("mul", e("row_sum", e("mul", x, x)), 1.0 / n)
    e("mul", e("mul", x, e("rsqrt", e("add", mean, 1e-6))), 2)
    return e.done()


def scaled_rms_norm(n: int) -> Epilogue:
    """Of 8-bit operands with a scale for each row and each column, quantised again with a scale of its own."""
    e = Chain(("row_scale", "column", "float32", 1), ("column_scale", "row", "float32", 1))
    x = e("mul", e("mul", 0, 1), 2)
    mean = e("mul", e("row_sum", e("mul", x, x)), 1.0 / n)
    y = e("mul", x, e("rsqrt", e("add", mean, 1e-6)))
    scale = e("div", e("row_maximum", e("abs", y)), 448.0)
    q = e("div", y, scale)
    return e.done(("d", q, "exact", "float8_e4m3fn", n), ("scale", scale, "column", "float32", 1))


def rounded_rms_norm(n: int) -> Epilogue:
    """Of a product that is rounded first, as eager torch does; what is stored is of the same type."""
    e = Chain(("weight", "row", "bfloat16", 1))
    x = e("round_bfloat16", 0)
    mean = e("mul", e("row_sum", e("mul", x, x)), 1.0 / n)
    e("mul", e("mul", x, e("rsqrt", e("add", mean, 1e-6))), 1)
    return e.done()


def rms_norm_backward(n: int) -> Epilogue:
    """The gradient of the product behind which rows are normalised and scaled: rows are reduced against a second matrix."""
    e = Chain(("grad", "exact", "bfloat16", n), ("weight", "row", "bfloat16", 1))
    r = e("rsqrt", e("add", e("mul", e("row_sum", e("mul", 0, 0)), 1.0 / n), 1e-6))
    scaled = e("mul", 1, 2)
    dot = e("mul", e("row_sum", e("mul", scaled, 0)), 1.0 / n)
    kept = e("mul", 0, e("mul", dot, e("mul", r, r)))
    e("mul", e("sub", scaled, kept), r)
    return e.done()


def gelu_and_its_input(n: int) -> Epilogue:
    e = Chain(("bias", "row", "bfloat16", 1))
    x = e("add", 0, 1)
    return e.done(("d", e("gelu", x), "exact", "bfloat16", n), ("x", x, "exact", "float32", n))


def gelu_and_more(n: int) -> Epilogue:
    """Two matrices, and numbers per row that no reduction gives."""
    e = Chain(("row_scale", "column", "float32", 1))
    scale = e("mul", 1, 0.5)
    x = e("mul", 0, scale)
    return e.done(
        ("scale", scale, "column", "float32", 1),
        ("x", x, "exact", "float16", n),
        ("y", e("gelu_tanh", x), "exact", "bfloat16", n),
    )


ROWS: dict[str, Callable[[int], Epilogue]] = {
    "rms_norm": rms_norm,
    "silu_rms_norm": silu_rms_norm,
    "layer_norm": layer_norm,
    "layer_gradient": layer_gradient,
    "residual_layer_norm": residual_layer_norm,
    "softmax": softmax,
    "log_softmax": log_softmax,
    "logsumexp": logsumexp,
    "l2_normalize": l2_normalize,
    "quantized": quantized,
    "argmax": argmax,
}
