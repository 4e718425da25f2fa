"""Derivatives of functions that consist of several ops, as torch defines them, one row each.

The ops of a function may have other derivatives at its kinks, or a pole that the function does not have. A row has one
expression for each input, in the notation of ``pointwise.py``: ``g`` is the gradient of the result ``y``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

_PI = repr(math.pi)
#: Huber and smooth L1: ``a`` is the difference, ``b`` the end of the parabola.
_HUBER = "torch.where({a} <= -{b}, -%s, torch.where({a} >= {b}, %s, %s))"

FUNCTIONS: Mapping[str, tuple[str | None, ...]] = {
    "identity": ("{g}",),
    # a value that counts as constant: detached, or a shift on which the result does not depend
    "constant": (),
    # --- activations ---
    "hardtanh": ("torch.where(({a} <= {b}) | ({a} >= {c}), 0.0, {g})",),
    "hardsigmoid": ("torch.where(({a} > -3.0) & ({a} < 3.0), {g} / 6.0, 0.0)",),
    "hardswish": ("torch.where({a} <= -3.0, 0.0, torch.where({a} < 3.0, {g} * ({a} / 3.0 + 0.5), {g}))",),
    # b: slope at 0 from the left, c: slope from the right, d: scale of the exponent
    "elu": ("torch.where({a} <= 0, {g} * {b} * torch.exp({a} * {d}), {g} * {c})",),
    "softplus": ("torch.where({a} * {b} > {c}, {g}, {g} * torch.sigmoid({a} * {b}))",),
    "logsigmoid": ("{g} * torch.sigmoid(-{a})",),
    "threshold": ("torch.where({a} <= {b}, 0.0, {g})",),
    "softshrink": ("torch.where(({a} >= -{b}) & ({a} <= {b}), 0.0, {g})",),
    "prelu": ("torch.where({a} > 0, {g}, {g} * {b})", "torch.where({a} > 0, 0.0, {g} * {a})"),
    # --- bounds that are tensors ---
    "clamp_min": ("torch.where({a} >= {b}, {g}, 0.0)", "torch.where({a} < {b}, {g}, 0.0)"),
    "clamp_max": ("torch.where({a} <= {b}, {g}, 0.0)", "torch.where({a} > {b}, {g}, 0.0)"),
    "clamp": (
        "torch.where(({a} >= {b}) & ({a} <= {c}), {g}, 0.0)",
        "torch.where(({a} < {b}) & ({b} < {c}), {g}, 0.0)",
        "torch.where(({a} > {c}) | ({c} < {b}), {g}, 0.0)",
    ),
    # --- functions with a pole inside ---
    "sinc": (
        f"torch.where({{a}} * {{a}} == 0, 0.0, {{g}} * ({{a}} * {_PI} * torch.cos({{a}} * {_PI}) - torch.sin({{a}} * {_PI}))"
        f" / ({{a}} * {{a}} * {_PI}))",
    ),
    "logit": ('torch.where(({a} < 0) | ({a} > 1), float("nan"), {g} / ({a} * (1.0 - {a})))',),
    "logit_within": ("torch.where(({a} < {b}) | ({a} > {c}), 0.0, {g} / ({a} * (1.0 - {a})))",),
    "entr": ("-{g} * (1.0 + torch.log({a}))",),
    "xlogy": ("torch.where(({a} == 0) & ({b} <= 0), 0.0, torch.xlogy({g}, {b}))", "{g} * {a} / {b}"),
    "xlog1py": (
        "torch.where(({a} == 0) & ({b} <= -1), 0.0, torch.special.xlog1py({g}, {b}))",
        "{g} * {a} / ({b} + 1.0)",
    ),
    "logaddexp": ("{g} / (1.0 + torch.exp({b} - {a}))", "{g} / (1.0 + torch.exp({a} - {b}))"),
    "logaddexp2": ("{g} / (1.0 + torch.exp2({b} - {a}))", "{g} / (1.0 + torch.exp2({a} - {b}))"),
    # --- losses ---
    "smooth_l1": (_HUBER % ("{g}", "{g}", "{g} * {a} / {b}"),),
    "huber": (_HUBER % ("{g} * {b}", "{g} * {b}", "{g} * {a}"),),
    "binary_cross_entropy": (
        "{g} * ({a} - {b}) / torch.clamp((1.0 - {a}) * {a}, min=1e-12)",
        "{g} * (torch.log(1.0 - {a}) - torch.log({a}))",
    ),
    "binary_cross_entropy_with_logits": ("{g} * (torch.sigmoid({a}) - {b})", "-{g} * {a}"),
    "binary_cross_entropy_with_weights": (
        "{g} * (({c} * {b} + 1.0 - {b}) * torch.sigmoid({a}) - {c} * {b})",
        "{g} * (torch.nn.functional.logsigmoid(-{a}) - {c} * torch.nn.functional.logsigmoid({a}))",
        "-{g} * {b} * torch.nn.functional.logsigmoid({a})",
    ),
    # --- reductions ---
    # b: the selected lane, c: the lanes
    "select": ("torch.where({c} == {b}, {g}, 0.0)",),
    "logsumexp": ("{g} * torch.exp({a} - {y})",),
    # the square root of a sum of squares
    "root": ("torch.where({y} == 0, 0.0, {g} / (2.0 * {y}))",),
    # b: the mean, c: the degrees of freedom
    "variance": ("{g} * ({a} - {b}) * 2.0 / {c}",),
    # b: the order
    "norm": ("torch.where({y} == 0, 0.0, {g} / {y} ** ({b} - 1)) * ({a} * torch.abs({a}) ** ({b} - 2))",),
    "norm_2": ("{g} * torch.where({y} == 0, 0.0, {a} / {y})",),
    "norm_below_2": ("torch.where({y} == 0, 0.0, {g} / {y} ** ({b} - 1)) * (torch.sign({a}) * torch.abs({a}) ** ({b} - 1))",),
    "norm_below_1": (
        "torch.where({a} == 0, 0.0, torch.sign({a}) * torch.abs({a}) ** ({b} - 1)) * ({g} * {y} ** (1 - {b}))",
    ),
    # b: number of elements with that magnitude
    "norm_inf": ("torch.where(torch.abs({a}) == {y}, torch.sign({a}), 0.0) * ({g} / {b})",),
}  # fmt: skip
