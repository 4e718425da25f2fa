"""Chains of operations on values.

All are bounded and change little if their operands change little, so that fp64 predicts their results. Conditions are
on exact values.
"""

from __future__ import annotations

from collections.abc import Sequence

from .cases import Step

UNARY = {
    "tanh": "torch.tanh({a})",
    "sigmoid": "torch.sigmoid({a})",
    "relu": "torch.relu({a})",
    "abs": "torch.abs({a})",
    "neg": "-{a}",
    "half": "{a} * 0.5",
    "plus": "{a} + 0.25",
    "minus": "1.5 - {a}",
    "sin": "torch.sin({a})",
    "cos": "torch.cos({a})",
    "exp": "torch.exp(-torch.abs({a}))",
    "exp2": "torch.exp2(torch.clamp({a}, -3.0, 1.0))",
    "clamp": "torch.clamp({a}, -1.5, 2.0)",
    "sqrt": "torch.sqrt(torch.abs({a}) + 0.5)",
    "rsqrt": "torch.rsqrt(torch.abs({a}) + 1.0)",
    "log": "torch.log(torch.abs({a}) + 1.0)",
    "inverse": "1.0 / (torch.abs({a}) + 1.0)",
    "third": "{a} / 3.0",
    "erf": "torch.erf({a})",
    "gelu": "torch.nn.functional.gelu({a})",
    "silu": "torch.nn.functional.silu({a})",
    "softplus": "torch.nn.functional.softplus({a})",
    "square": "torch.square(torch.tanh({a}))",
}
BINARY = {
    "add": "{a} + {b}",
    "sub": "{a} - {b}",
    "gate": "{a} * torch.sigmoid({b})",
    "mul": "{a} * torch.tanh({b})",
    "maximum": "torch.maximum({a}, {b})",
    "minimum": "torch.minimum({a}, {b})",
    "ratio": "{a} / (torch.abs({b}) + 1.0)",
    "mean2": "({a} + {b}) * 0.5",
}
#: Row reductions of a two-dimensional value, with the reduced dimension kept.
REDUCING = {
    "r_mean": "torch.mean({a}, 1, keepdim=True)",
    "r_mean_method": "{a}.mean(-1)[:, None]",
    "r_sum": "torch.sum({a} * 0.001, 1, keepdim=True)",
    "r_amax": "torch.amax({a}, 1, keepdim=True)",
    "r_amin": "{a}.amin(-1).unsqueeze(-1)",
    "r_lse": "torch.logsumexp({a}, 1, keepdim=True) * 0.25",
    "r_var": "torch.var(torch.clamp({a}, -4.0, 4.0), 1, correction=0, keepdim=True)",
    "r_norm": "torch.rsqrt(torch.mean({a} * {a}, 1, keepdim=True) + 0.5)",
}
#: Operations from rows to rows, with reductions.
ROWS = {
    "softmax": "torch.softmax({a}, 1)",
    "log_softmax": "torch.log_softmax({a}, 1) * 0.125",
    "centred": "{a} - {a}.mean(1, keepdim=True)",
    "shifted": "torch.exp(({a} - torch.amax({a}, 1, keepdim=True)) * 0.5)",
    "rms": "{a} * torch.rsqrt({a}.pow(2).mean(-1, keepdim=True) + 0.5)",
}
ELEMENTWISE = (*UNARY, *BINARY, *BINARY)
TABLE = {**UNARY, **BINARY, **REDUCING, **ROWS}


def chain(steps: Sequence[Step], values: Sequence[str], prefix: str = "v") -> tuple[list[str], str]:
    """Return the lines of a chain that begins with ``values``, and the name or text of its last value.

    Columns from row reductions are operands like rows; values without a reader are added to the result.
    """
    columns: list[str] = []
    lines: list[str] = []
    rows = list(values)
    for number, step in enumerate(steps):
        name = f"{prefix}{number}"
        a = rows[-1] if step.a % 3 else rows[step.a % len(rows)]
        others = rows + columns
        b = columns[-1] if columns and step.b % 3 == 0 else others[step.b % len(others)]
        lines.append(f"{name} = {TABLE[step.op].format(a=a, b=b)}")
        (columns if step.op in REDUCING else rows).append(name)
    if not columns:
        return lines, rows[-1]
    return [*lines, f"{prefix}_last = {' + '.join([rows[-1], *columns[-2:]])}"], f"{prefix}_last"
