"""Derivatives where functions have kinks, poles and ties: what torch's autograd gives there, never nan where it has a number.

Functions come from the compiler's own tables: each pointwise op, and each rule for a torch function, is compared over a grid
of special values or has a reason in ``OTHERWISE``. One kernel computes many functions, each from a row of its own.
"""

from __future__ import annotations

import linecache
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

import helion
import helion.language as hl
from helion._compiler.autodiff.functions import FUNCTIONS
from helion._compiler.autodiff.pointwise import POINTWISE as DERIVATIVES
from helion._compiler.frontend.torch import (
    composites as torch_composites,
)
from helion._compiler.frontend.torch import (
    losses as torch_losses,
)
from helion._compiler.frontend.torch import (
    pointwise as torch_pointwise,
)
from helion._compiler.frontend.torch import (
    reductions as torch_reductions,
)
from helion._compiler.ir.pointwise import POINTWISE

INF, NAN = math.inf, math.nan
HEAD = "import math\n\nimport torch\nimport torch.nn.functional as F\n\nimport helion.language as hl\n\n"

ANYWHERE = (
    0.0, -0.0, 0.25, -0.25, 0.5, -0.5, 1.0, -1.0, 1.5, 2.0, -2.0, 2.5, 3.0, -3.0, 6.0, -6.0, 20.0, 25.0, -25.0, -100.0,
    1e-310, -1e-310, INF, -INF, NAN,
)  # fmt: skip
PAIRS = (0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 3.0, INF, -INF, NAN)
UNIT = (0.0, 1.0, 0.5, 0.25, 1e-310, 1e-50, 1.0 - 1e-16)
ROWS = (
    (0.0, 0.0, 0.0, 0.0), (1.0, 1.0, 1.0, 1.0), (3.0, 3.0, 1.0, 1.0), (-1.0, 2.0, 2.0, -1.0), (0.0, 0.0, 2.0, 3.0),
    (0.0, 1.0, 2.0, 3.0), (-INF, -INF, -INF, -INF), (-INF, 1.0, 2.0, -INF), (INF, 1.0, 2.0, 3.0), (INF, INF, 1.0, 2.0),
    (NAN, 1.0, 2.0, 3.0), (-2.0, -2.0, -2.0, 2.0), (0.0, -0.0, 0.0, 1.0), (1e-310, 0.0, 0.0, 0.0), (-3.0, 3.0, -3.0, 3.0),
)  # fmt: skip
FINITE = tuple(row for row in ROWS if all(map(math.isfinite, row)))
SINGLE = tuple((value,) for value in (0.0, -0.0, 2.0, -1.0))


@dataclass(frozen=True)
class Grid:
    """Operands of functions: ``indices`` and ``result`` are the subscripts of an operand and of a result in the kernel."""

    operands: tuple[torch.Tensor, ...]
    indices: str
    result: str


def grid(*columns: Sequence[Any]) -> Grid:
    """Every combination of values, elementwise."""
    parts = torch.meshgrid(*(torch.tensor(c, dtype=torch.float64) for c in columns), indexing="ij")
    return Grid(tuple(p.flatten().contiguous() for p in parts), "t", "t")


def rows(*tables: Sequence[Sequence[float]], reduced: bool) -> Grid:
    operands = tuple(torch.tensor(table, dtype=torch.float64) for table in tables)
    return Grid(operands, "t, :", "t" if reduced else "t, :")


GRIDS = {
    "one": grid(ANYWHERE),
    "two": grid(PAIRS, PAIRS),
    "three": grid((0.0, 1.0, -1.0, 2.0, INF, NAN), (0.0, 1.0, -1.0, NAN), (0.0, 1.0, 2.0, -1.0)),
    "unit": grid(UNIT, UNIT),
    "reduced": rows(ROWS, reduced=True),
    "products": rows(FINITE, reduced=True),
    "single": rows(SINGLE, reduced=True),
    "rows": rows(ROWS, reduced=False),
    "scans": rows(FINITE, reduced=False),
    "pairs": rows(ROWS, tuple(reversed(ROWS)), reduced=True),
    "alike": rows(FINITE, FINITE, reduced=True),
}


def split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.replace("\n", " ").split(";") if part.strip())


#: What is compared in each run; the rest is proved.
ALWAYS = {
    "one": split("""
        torch.clamp(v, 0, 1); torch.clamp(v, 0, 1) + v.abs(); v.clamp(min=0) + v.abs(); torch.clamp(v, 0, 1) + torch.log1p(v.abs());
        F.relu6(v); F.hardtanh(v); F.hardsigmoid(v); F.hardswish(v); torch.sinc(v); F.logsigmoid(v); F.elu(v); F.threshold(v, 1.0, 2.0);
        F.softshrink(v); torch.logit(v, 0.25); torch.sqrt(v); v**0.5; v**0; v.relu(); torch.where(v == 0, 1.0, torch.sin(v) / v)
    """),
    "two": split("""
        torch.maximum(v, w); torch.minimum(v, w); torch.clamp(v, min=w); torch.clamp(v, -1.0 * w, w); torch.atan2(v, w); v**w;
        torch.xlogy(v, w); torch.logaddexp(v, w); F.huber_loss(v, w, reduction="none"); torch.hypot(v, w)
    """),
    "single": split("v.norm(2, 1); v.norm(3, 1); v.norm(0.5, 1); torch.std(v, 1, correction=0); v.std(1); v.var(1); v.amax(1); v.prod(1)"),
    "reduced": split("v.norm(2, 1); v.norm(0.5, 1); v.norm(3, 1); v.norm(math.inf, 1); v.std(1); v.max(1)[0]; v.amax(1); v.logsumexp(1)"),
    "scans": split("torch.cumprod(v, 1)"),
}  # fmt: skip

#: What ``make prove`` compares, too.
PROVED = {
    "one": split("""
        v**1; v**2; v**3; v**4; v**-1; v**-0.5; v**-2; v**1.5; v**2.5; 2.0**v; 0.0**v; (-2.0) ** v; 1.0**v; v.square(); -v;
        v.clamp(max=0); v.clamp(1, 0); v.clamp_min(1.0); v.clamp_max(1.0); F.hardtanh(v, -2.0, 3.0); F.leaky_relu(v); F.leaky_relu(v, 0.0); F.leaky_relu(v, -0.5); F.elu(v, 2.0);
        F.elu(v, -1.0); F.selu(v); F.celu(v); F.celu(v, 2.0); F.gelu(v); F.gelu(v, approximate="tanh"); F.silu(v); F.mish(v);
        F.softplus(v); F.softplus(v, 2.0, 3.0); F.softplus(v, -1.0); F.softsign(v); F.tanhshrink(v); F.softshrink(v, 1.0);
        F.hardshrink(v); F.hardshrink(v, 1.0); torch.nan_to_num(v); torch.nan_to_num(v, 1.0, 2.0, 3.0); torch.logit(v);
        torch.deg2rad(v); torch.rad2deg(v); torch.sgn(v); torch.rsub(v, 1.0); torch.special.ndtr(v); torch.special.entr(v);
        v.masked_fill(v > 0, 1.0); torch.where(v > 0, v, 0.0); v.where(v > 0, 1.0); v % 0.75; torch.fmod(v, 0.75);
        torch.round(v, decimals=1); torch.xlogy(v, 2.0); torch.xlogy(v, v); torch.xlogy(v, 0.0); torch.copysign(v, torch.full_like(v, -1.0));
        torch.sqrt(v * v); torch.float_power(v, 2); v / v; torch.maximum(v, torch.zeros_like(v)); torch.positive(v); v.clone();
        v.to(torch.float32).to(v.dtype); v.double(); v.clamp(min=v); torch.hypot(v, v); 1.0 / v; 1.0 - v; torch.special.xlog1py(v, v);
        torch.floor(v) * v; torch.div(v, 2.0, rounding_mode="trunc"); torch.isclose(v, v) * v; torch.round(v)
    """),
    "two": split("""
        v + w; v - w; v * w; v / w; v % w; torch.fmod(v, w); torch.div(v, w, rounding_mode="floor"); torch.logaddexp2(v, w);
        torch.special.xlog1py(v, w); torch.clamp(v, max=w); torch.clamp(v, w, w + 1); v.clamp_min(w); v.clamp_max(w); torch.where(v > w, v, w);
        torch.where(v == w, v, w); torch.lerp(v, w, 0.5); torch.lerp(v, w, w); torch.addcmul(v, v, w); torch.addcdiv(v, v, w); torch.max(v, w); torch.min(v, w);
        F.mse_loss(v, w, reduction="none"); F.l1_loss(v, w, reduction="none"); F.smooth_l1_loss(v, w, reduction="none");
        F.smooth_l1_loss(v, w, reduction="none", beta=0.0); F.smooth_l1_loss(v, w, reduction="none", beta=0.5);
        F.huber_loss(v, w, reduction="none", delta=0.5); F.kl_div(v, w, reduction="none"); F.kl_div(v, w, reduction="none", log_target=True);
        F.binary_cross_entropy_with_logits(v, w, reduction="none");
        F.binary_cross_entropy_with_logits(v, w, reduction="none", pos_weight=torch.full_like(v, 2.0));
        F.soft_margin_loss(v, (w > 0) * 2.0 - 1.0, reduction="none"); F.poisson_nll_loss(v, w, reduction="none");
        F.poisson_nll_loss(v, w, log_input=False, reduction="none"); F.gaussian_nll_loss(v, w, w * w, reduction="none");
        F.gaussian_nll_loss(v, w, w * w, full=True, eps=1.0, reduction="none"); torch.ldexp(v, w); torch.float_power(v, w); torch.rsub(v, w); (v > w) * v;
        F.hinge_embedding_loss(v, torch.where(w > 0, 1.0, -1.0), reduction="none");
        F.margin_ranking_loss(v, w, torch.ones_like(v), margin=1.0, reduction="none"); torch.masked_fill(v, w > 0, 0.0)
    """),
    "three": split("torch.where(u > 0, v, w); torch.clamp(v, w, u); torch.addcmul(v, w, u); torch.addcdiv(v, w, u); torch.lerp(v, w, u)"),
    "unit": split('F.binary_cross_entropy(v, w, reduction="none"); torch.logit(v) * w'),
    "reduced": split("""
        v.sum(1); v.mean(1); v.amin(1); v.min(1)[0]; torch.max(v, 1, keepdim=True).values[:, 0]; v.norm(1, 1); v.norm(1.5, 1); v.norm(4, 1); v.norm(dim=1);
        torch.linalg.vector_norm(v, 2, 1); torch.linalg.vector_norm(v, 0.5, 1); torch.linalg.vector_norm(v, math.inf, 1); torch.linalg.norm(v, 2, 1);
        torch.std(v, 1, correction=0); torch.var(v, 1, correction=0); torch.std(v, 1, correction=4); torch.var(v, 1, correction=4);
        torch.std(v, 1, correction=5); torch.var(v, 1, correction=5); torch.var_mean(v, 1)[0]; torch.std_mean(v, 1)[0]; torch.std_mean(v, 1)[1]; v.var(1);
        v.nansum(1); v.nanmean(1); torch.aminmax(v, dim=1).max; torch.aminmax(v, dim=1).min; torch.sqrt((v * v).sum(1)); torch.sqrt(v.sum(1));
        torch.linalg.vecdot(v, v, dim=1); torch.count_nonzero(v, 1) * v.sum(1); v.any(1) * v.sum(1); v.all(1) * v.sum(1); v.argmax(1) * v.sum(1)
    """),
    "products": split("v.prod(1); (v * v).prod(1)"),
    "single": split("v.norm(1, 1); v.norm(1.5, 1); v.norm(math.inf, 1); v.norm(4, 1); torch.linalg.norm(v, dim=1); v.min(1)[0]; v.max(1)[0]; v.logsumexp(1); torch.std_mean(v, 1, correction=0)[0]; v.mean(1)"),
    "rows": split("""
        v.softmax(1); F.softmax(v, 1); torch.log_softmax(v, 1); F.log_softmax(v, 1); F.softmin(v, 1); v.cumsum(1); F.layer_norm(v, [4]); F.layer_norm(v, [4], eps=0.0); F.rms_norm(v, [4]);
        F.rms_norm(v, [4], eps=0.0); F.normalize(v); F.normalize(v, p=1.0); F.normalize(v, p=3.0); F.normalize(v, p=math.inf); F.normalize(v, eps=0.0);
        v.flip(1); v - v.amax(1, keepdim=True); v / v.norm(2, 1, keepdim=True); v * v.std(1, keepdim=True); v - v.max(1, keepdim=True)[0];
        torch.softmax(torch.where(v > 0, v, -math.inf), 1); v * torch.logsumexp(v, 1, keepdim=True); F.pad(v[:, :2], (1, 1)); v.roll(1, 1);
        torch.cat([v, v], 1)[:, :4]; torch.gather(v, 1, (v * 0 == 0).to(torch.int64)); v.expand(v.shape) * v; v[:, None, :].squeeze(1)
    """),
    "scans": split("torch.cumprod(v.flip(1), 1); torch.cumprod(v, 1) * v"),
    "pairs": split("F.cosine_similarity(v, w, 1); F.pairwise_distance(v, w); F.pairwise_distance(v, w, p=1.0); (v * w).sum(1); torch.linalg.vecdot(v, w, dim=1)"),
    "alike": split("""
        F.cosine_similarity(v, w, 1); F.cosine_similarity(v, torch.zeros_like(v), 1); F.pairwise_distance(v, w, p=3.0, eps=0.0);
        F.pairwise_distance(v, w, p=2.0, eps=0.0); F.pairwise_distance(v, w, p=1.5, eps=0.0); F.cross_entropy(v, w, reduction="none");
        torch.maximum(v, w).sum(1); (torch.maximum(v, w) - torch.minimum(v, w)).norm(2, 1)
    """),
}  # fmt: skip

#: Pointwise ops that torch has no function of the same name for.
SPELLED = {
    "add": "v + w", "sub": "v - w", "mul": "v * w", "div": "v / w", "truncdiv": 'torch.div(v, w, rounding_mode="trunc")',
    "where": "torch.where(u > 0, v, w)", "log1p_unit": "torch.log1p(v)",
}  # fmt: skip


def of_table() -> dict[str, tuple[str, ...]]:
    """The pointwise ops of floats that have a derivative, by the grid that they are compared over."""
    found: dict[str, list[str]] = {"one": [], "two": [], "three": []}
    for name, op in POINTWISE.items():
        if (
            isinstance(DERIVATIVES[name], str)
            or op.result in ("bool", "given")
            or not _takes_floats(op.eager, op.arity[1])
        ):
            continue
        if name == "floordiv":  # torch has no derivative of it; ours is 0
            continue
        letters = ("v", "v, w", "v, w, u")[op.arity[1] - 1]
        found[("one", "two", "three")[op.arity[1] - 1]].append(SPELLED.get(name) or f"torch.{name}({letters})")
    return {name: tuple(texts) for name, texts in found.items()}


def _takes_floats(eager: Any, arity: int) -> bool:
    first = torch.ones(1, dtype=torch.bool) if eager is torch.where else torch.ones(1)
    try:
        return bool(eager(first, *[torch.ones(1)] * (arity - 1)).is_floating_point())
    except (TypeError, RuntimeError):  # an op of integers
        return False


#: Rules for values that are not compared, by the name of their first function.
OTHERWISE = {
    **dict.fromkeys(("eq", "ge", "le", "lt", "ne", "isfinite", "isinf", "isnan", "isneginf", "isposinf", "isreal", "signbit"), "bool"),
    **dict.fromkeys(("logical_and", "logical_not", "logical_or", "logical_xor", "bool"), "bool"),
    **dict.fromkeys(("byte", "char", "int", "long", "short", "one_hot", "argmin"), "integers"),
    **dict.fromkeys(("__rand__", "__ror__", "__rxor__", "__rlshift__", "__rrshift__"), "integers"),
    **dict.fromkeys(("bfloat16", "float", "half"), "conversions, as double"),
    **dict.fromkeys(("__rfloordiv__", "heaviside"), "torch has no derivative"),
    **dict.fromkeys(("__rmod__",), "remainder of a number"),
    **dict.fromkeys(("i0", "lgamma"), "refused, see test_refusals.py"),
    "detach": "see kernels.py",
    **dict.fromkeys(("atleast_1d", "atleast_2d", "diff", "linear", "outer", "tril", "triu", "nll_loss"), "linear"),
    "dist": "a norm over all dimensions",
    "prelu": "see test_prelu",
}  # fmt: skip


def loaded(text: str) -> dict[str, Any]:
    """The names that a module of this text defines."""
    file = f"<kinks {hash(text)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    names: dict[str, Any] = {"__name__": "kinks"}
    exec(compile(text, file, "exec"), names)
    return names


def module_of(texts: Sequence[str], where: Grid) -> dict[str, Any]:
    """A kernel that computes function ``at`` from row ``at`` of its arguments, and the functions ``reference_0`` ..."""
    letters = "vwu"[: len(where.operands)]
    size = "[*v_all.size()]" if where.result == where.indices else "[v_all.size(0), v_all.size(1)]"
    lines = [
        f"def kernel({', '.join(f'{c}_all' for c in letters)}):",
        f"    out = torch.empty({size}, dtype=v_all.dtype)",
    ]
    lines += ["    for t in hl.tile(v_all.size(1)):"]
    for at, text in enumerate(texts):
        lines += [f"        {c} = {c}_all[{at}, {where.indices}]" for c in letters]
        lines += [f"        out[{at}, {where.result}] = {text}"]
    lines += ["    return out", ""]
    for at, text in enumerate(texts):
        lines += [f"def reference_{at}({', '.join(letters)}):", f"    return {text}", ""]
    return loaded(HEAD + "\n".join(lines))


def gradients(function: Any, operands: Sequence[torch.Tensor], grad: torch.Tensor) -> list[torch.Tensor]:
    """Those of torch in fp64."""
    leaves = [o.clone().requires_grad_() for o in operands]
    found = torch.autograd.grad(function(*leaves), leaves, grad, allow_unused=True)
    return [torch.zeros_like(o) if g is None else g for g, o in zip(found, leaves, strict=True)]


def compare(texts: Sequence[str], where: Grid, dtype: torch.dtype = torch.float64) -> None:
    module = module_of(texts, where)
    stacked = [torch.stack([o.to(dtype)] * len(texts)).requires_grad_() for o in where.operands]
    out = helion.kernel(module["kernel"]).differentiable()(*stacked)
    grad = torch.linspace(0.5, 2.0, out[0].numel(), dtype=torch.float64).reshape(out[0].shape)
    found = torch.autograd.grad(out, stacked, torch.stack([grad.to(dtype)] * len(texts)))
    wrong = []
    for at, text in enumerate(texts):
        given = [o.detach()[at].double() for o in stacked]
        wanted = gradients(module[f"reference_{at}"], given, grad.to(dtype).double())
        for number, reference in enumerate(wanted):
            wrong += differences(text, found[number][at].double(), reference, given, dtype)
    assert not wrong, "\n".join(wrong)


def differences(
    text: str, found: torch.Tensor, wanted: torch.Tensor, given: Sequence[torch.Tensor], dtype: torch.dtype
) -> list[str]:
    # torch's hardsigmoid divides by 6 in fp32, its binary_cross_entropy has 1e-12 in fp32
    tol = 1e-7 if dtype == torch.float64 else 1e-3
    near = torch.isclose(found, wanted, rtol=tol, atol=tol, equal_nan=True)
    return [
        f"{text} at {[g[place].item() if g.shape == found.shape else g for g in given]}: {found[place]}, torch {wanted[place]}"
        for place in (tuple(each.tolist()) for each in (~near).nonzero())
    ]


def parts(table: dict[str, tuple[str, ...]], size: int = 24) -> list[Any]:
    """Cases of a table, so many functions to a kernel."""
    return [
        pytest.param(texts[at : at + size], GRIDS[name], id=f"{name}-{at // size}")
        for name, texts in table.items()
        for at in range(0, len(texts), size)
    ]


@pytest.mark.parametrize("texts, where", parts(ALWAYS, 48))
def test_kinks(texts: tuple[str, ...], where: Grid) -> None:
    compare(texts, where)


@pytest.mark.prove
@pytest.mark.parametrize("texts, where", parts(PROVED))
def test_all_functions(texts: tuple[str, ...], where: Grid) -> None:
    compare(texts, where)


@pytest.mark.prove
@pytest.mark.parametrize("texts, where", parts(ALWAYS))
def test_kinks_in_float32(texts: tuple[str, ...], where: Grid) -> None:
    subnormal = torch.finfo(torch.float32).tiny
    kept = tuple(torch.where((o.abs() < subnormal), torch.zeros_like(o), o) for o in where.operands)
    compare(texts, Grid(kept, where.indices, where.result), torch.float32)


@pytest.mark.prove
@pytest.mark.parametrize("texts, where", parts(of_table()))
def test_every_pointwise_op(texts: tuple[str, ...], where: Grid) -> None:
    compare(texts, where)


def test_prelu() -> None:
    @helion.kernel
    def kernel(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile, :] = torch.nn.functional.prelu(x[tile, :], weight[:])
        return out

    x = torch.tensor([(0.0, -0.0, 1.0), (-2.0, 3.0, INF), (-INF, NAN, 0.0)], dtype=torch.float64)
    weight = torch.tensor((0.5, -2.0, 0.0), dtype=torch.float64)
    grad = torch.linspace(0.5, 2.0, 9, dtype=torch.float64).reshape(3, 3)
    found = helion.experimental.backward(kernel, grad, x, weight)
    for gradient, wanted in zip(found, gradients(torch.nn.functional.prelu, (x, weight), grad), strict=True):
        torch.testing.assert_close(gradient, wanted, equal_nan=True)


# --- nothing is left out ---------------------------------------------------------------------------------------------------


class _Called(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.functions: set[Any] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.functions.add(func)
        return func(*args, **(kwargs or {}))


def test_every_rule_is_compared() -> None:
    """A new rule for a torch function needs an expression in a table above, or a reason."""
    with _Called() as called:
        for table in (ALWAYS, PROVED, of_table()):
            for name, texts in table.items():
                module = module_of(texts, GRIDS[name])
                for at in range(len(texts)):
                    module[f"reference_{at}"](*GRIDS[name].operands)
    by_rule: dict[Any, list[Any]] = {}
    for room in (torch_pointwise, torch_composites, torch_losses, torch_reductions):
        for function, rule in room.RULES.items():
            by_rule.setdefault(rule, []).append(function)
    missing = {found[0].__name__ for found in by_rule.values() if not called.functions & set(found)}
    assert missing == set(OTHERWISE)


def test_every_derivative_of_a_function_is_used() -> None:
    room = Path(torch_pointwise.__file__).parent
    text = "".join(path.read_text() for path in room.glob("*.py"))
    assert [name for name in FUNCTIONS if f'"{name}"' not in text] == []
