"""Random host programs: statements of every kind in front of device loops that copy what the host made.

A program is built statement by statement. Each is kept only if plain Python runs the whole program so far on every call
of the program's call list, so that a program is right by construction, and so is what it should give.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

IMPORTS = """\
import contextlib, functools, itertools, math, operator, os, random
import torch
import torch.nn.functional as F
import helion
import helion.language as hl
"""
GLOBALS = """\
LOG = []
TABLE = {"n3": 4, "k": 2}
SCALE = 2
FACTORS = [1, 2, 3]
class Box:
    width = 3
    calls = 0
def count():
    LOG.append("count")
    return len(LOG)
def twice(v):
    return v + v
def scaled(v):
    return v * SCALE
def with_default(v, by=3):
    return v + by
def alloc(n):
    return torch.zeros(n) + 1
def pair(v):
    return v, v * 2
def make_adder(k):
    def add(v):
        return v + k
    return add
add_two = make_adder(2)
def span(extent):
    return [slice(None)] if isinstance(extent, int) else [tuple(slice(None) for _ in extent)]
def once(n):
    return range(n)
"""
PARAMETERS = "x, y, i, n, m, f, flag, s, opt, fn"
TENSOR_KINDS = (torch.float32, torch.float64, torch.int64, torch.int32, torch.bool, torch.float16)

NUMBERS = (
    "n", "m", "n + 1", "n * m", "n - m", "n // 2", "n % 3", "-m", "n ** 2", "x.size(0)", "x.size(-1)", "x.shape[0]", "x.shape[-1]",
    "len(y)", "y.numel()", "x.stride(0)", "x.stride(1)", "x.stride()[0]", "x.dim()", "x.ndim", "x.element_size()", "x.numel() // 2",
    "x.storage_offset()", "max(n, 2)", "min(n, x.size(0))", "max(n, m, 1)", "abs(m - n)", "int(f)", "round(f)", "math.ceil(f)",
    "math.floor(f * n)", "n << 1", "n >> 1", "n & 3", "n | 4", "n ^ m", "~n", "divmod(n, 2)[1]", "[4, 5, 6][n % 3]", "(4, 5, 6)[m % 3]",
    "TABLE.get(f'n{n}', 1)", "TABLE['k']", "{1: 5, 3: 7}.get(n, 2)", "n.bit_length()", "sum([n, m])", "sorted((n, m))[0]", "len(s)",
    "int(flag)", "bool(n) + 1", "SCALE", "SCALE * n", "FACTORS[1]", "FACTORS[n % 3]", "Box.width", "len(str(n))", "len(f'{n}:{m}')",
    "int('1' * (n % 3 + 1))", "twice(n)", "scaled(n)", "with_default(n)", "with_default(n, by=m)", "pair(n)[1]", "add_two(n)", "fn(n)",
    "functools.reduce(operator.add, [n, m, 1])", "operator.mul(n, m)", "len([v for v in range(n)])", "sum(v for v in range(n) if v % 2)",
    "next(iter((n, m)))", "list(range(n))[-1]", "max((n, m), key=lambda v: -v)", "len({n, m, 3})", "[n, m].index(m)", "(n, m).count(n)",
    "int(n == m)", "1 if n > m else 2", "n if flag else m", "(n and m)", "(n or m)", "int(not flag)", "any([n > 3, flag]) + 1",
    "all((n > 0, m > 0)) + 1", "len(x.shape)", "x.shape.numel()", "x[0].numel()", "x.t().size(0)", "x.reshape(-1).size(0)",
    "torch.arange(n).numel()", "torch.cat([y, y]).size(0)", "pow(n, 2, 7)", "n.__add__(m)", "int(math.sqrt(n * n))", "math.gcd(n, 4)",
    "len(x)", "y.size(0) * n", "torch.zeros(n, 2).stride(0)", "int(torch.finfo(x.dtype).bits) if x.dtype.is_floating_point else 1",
)  # fmt: skip
RUN_TIME_NUMBERS = (
    "int(y[0].item())", "i.max().item()", "int(i[0])", "i.tolist()[0]", "int(y.sum())", "len(i.tolist())", "i.sum().item() % 5",
    "random.randint(0, 9)", "torch.randint(0, 9, (1,)).item()", "int(torch.rand(1).item() * 8)", "count()", "len(LOG)",
    "int(random.random() * 9)", "random.choice([1, 2, 3])", "int(os.environ.get('HOST_PROGRAM', '3'))",
)  # fmt: skip
FLOATS = ("f", "f * 2", "n / 2", "f + n", "float(n)", "math.sqrt(n * n + 1)", "1.5", "float(x.size(0))", "-f", "f ** 2", "abs(f)", "max(f, 0.25)",
          "float('1.5')", "float(f'{n}.5')", "round(f, 1)", "math.exp(-n)", "f if flag else 0.5", "x.size(0) ** -0.5")  # fmt: skip
CONDITIONS = (
    "n > 3", "n == m", "n == 3", "n != m", "n < m < 9", "flag", "not flag", "flag is True", "flag is False", "flag == True", "s == 'a'", "s in ('a', 'b')",
    "s.startswith('a')", "n in (2, 3)", "n in [1, 4]", "n not in {2, 5}", "n in range(3)", "isinstance(n, int)", "isinstance(f, float)", "isinstance(flag, bool)",
    "isinstance(n, bool)", "isinstance(x, torch.Tensor)", "isinstance(n, (float, str))", "isinstance(opt, torch.Tensor)", "isinstance(x.shape, torch.Size)",
    "isinstance(x.shape, tuple)", "isinstance(s, str)", "opt is None", "opt is not None", "x is y", "type(n) is int", "type(f) is float", "type(x) is torch.Tensor",
    "type(x).__name__ == 'Tensor'", "type(flag) == bool", "f'{n}' == '3'", "str(n) == '3'", "'%d' % n == '3'", "'{}'.format(m) == '2'", "x.is_contiguous()",
    "x.t().is_contiguous()", "x.stride(0) == 1", "x.stride(-1) == 1", "x.dtype is torch.float32", "x.dtype == torch.int64", "x.is_floating_point()", "torch.is_tensor(x)",
    "x.size(0) > 3", "x.size(0) == x.size(1)", "x.shape == x.t().shape", "x.shape[-1] == y.shape[0]", "x.shape == (2, 3)", "list(x.shape) == [2, 3]", "len(x) > 3",
    "y.size(0) == n", "x.numel() > 10", "x.storage_offset() == 0", "x.device.type == 'cpu'", "x.is_cuda", "n & 1", "n and m", "n or flag", "bool(n)", "(n, m) == (3, 2)",
    "(n, m) < (3, 3)", "[n, m] == [3, 2]", "f > 1", "f == 1.5", "not n", "callable(fn)", "hasattr(x, 'shape')", "x.ndim == 2", "SCALE == 2", "max(n, m) > 3",
    "n % 2 == 0", "any([n > 3, m > 3])", "all([n, m])", "{n: 1}.get(3) is None", "f'n{n}' in TABLE", "n.bit_length() > 1", "x.requires_grad", "math.isclose(f, 1.5)",
)  # fmt: skip
UNARY = (
    "{T} * 2", "{T} + {N}", "{T} * {F}", "-{T}", "{T}.abs()", "torch.exp({T} * 0.1)", "{T} - 1", "1 - {T}", "{T} / 2", "{T} // 2", "{T} % 3", "{T} ** 2", "torch.sigmoid({T})",
    "{T}.relu()", "torch.clamp({T}, 0, 2)", "{T} > 1", "{T} == {T}", "~({T} > 1)", "{T}.float()", "{T}.double()", "{T}.to(torch.float32)", "{T}.to(torch.int64)", "{T}.int()",
    "{T}.half()", "{T}.bool()", "torch.where({T} > 1, {T}, 0)", "{T}.clone()", "{T}.contiguous()", "{T}.detach()", "torch.sqrt({T}.abs())", "torch.neg({T})", "torch.round({T}.float())",
    "{T}.masked_fill({T} > 2, 0)", "torch.maximum({T}, {T})", "{T}.sign()", "{T}.sin()", "torch.add({T}, 2)", "torch.mul({T}, other=3)", "torch.add(input={T}, other=1)",
    "{T}.type_as(y)", "{T}.to(y)", "{T}.to({T}.device)", "{T}.cpu()", "{T}.clamp(min=1)", "F.relu({T})", "torch.nan_to_num({T})", "{T}.logical_not()", "fn({T})", "twice({T})", "scaled({T})",
    "with_default({T})", "pair({T})[1]", "add_two({T})", "(lambda v: v * {N})({T})", "{T}.cumsum(0)", "{T}.softmax(-1) if {T}.is_floating_point() else {T} + 1",
    "{T}.float().clone(memory_format=torch.contiguous_format)", "torch.mul({T}, 2, out=torch.empty(0, dtype={T}.dtype))", "torch.add({T}, {T}, alpha=2)",
)  # fmt: skip
VIEWS = (
    "{T}.t()", "{T}.T", "{T}.transpose(0, 1)", "{T}.transpose(-1, -2)", "{T}.permute(1, 0)", "{T}.reshape(-1)", "{T}.view(-1)", "{T}.flatten()", "{T}.ravel()", "{T}[0]", "{T}[-1]",
    "{T}[1:]", "{T}[:2]", "{T}[::2]", "{T}[:, 0]", "{T}[:, 1:]", "{T}[:, ::2]", "{T}[..., -1]", "{T}[None]", "{T}[:, None]", "{T}.unsqueeze(0)", "{T}.unsqueeze(-1)", "{T}.squeeze()", "{T}.squeeze(0)",
    "{T}.select(0, 1)", "{T}.narrow(0, 0, 2)", "{T}.expand(2, -1)", "{T}.expand(3, *{T}.shape)", "{T}[:1].expand({N}, -1)", "torch.broadcast_to({T}[:1], ({N}, {T}.size(1)))", "{T}.unfold(0, 2, 1)",
    "{T}.chunk(2)[0]", "{T}.split(2)[-1]", "{T}.unbind(0)[0]", "torch.movedim({T}, 0, 1)", "{T}.swapaxes(0, 1)", "{T}.diagonal()", "{T}.as_strided((2, 2), (1, 2))", "{T}[:{N}]", "{T}[{N}:]",
    "{T}.view({T}.size(0), -1)", "{T}.reshape({T}.size(1), {T}.size(0))", "{T}.view_as({T})", "{T}.mT", "torch.atleast_2d({T})", "{T}.data", "{T}[{N} % {T}.size(0)]", "{T}.view(torch.int32)",
    "{T}.unflatten(0, (-1, 1))", "torch.squeeze({T}[None, :, None])", "{T}.expand_as({T})", "{T}[i % {T}.size(0)]", "{T}[[0, 1]]", "{T}.movedim(0, -1)", "{T}.flip(0)", "{T}.roll(1, 0)",
    "{T}.rot90()", "{T}.narrow(-1, 0, min({N}, 2))", "{T}.hsplit(2)[0]", "torch.real({T})", "{T}.repeat(2, 1)", "{T}.tile(2)", "{T}.take_along_dim({T}.argsort(0), 0)",
)  # fmt: skip
BINARY = (
    "{T} + {T}", "{T} - {T}", "{T} * {T}", "{T} / ({T}.abs() + 1)", "torch.minimum({T}, {T})", "{T} > {T}", "torch.where({T} > 0, {T}, {T})", "torch.stack([{T}, {T}])", "torch.cat([{T}, {T}])",
    "torch.cat([{T}[:{N}], {T}])", "torch.stack([{T}, {T}], 1)", "torch.hstack([{T}, {T}])", "torch.vstack(({T}, {T}))", "torch.concat([{T}, {T}], dim=-1)", "torch.outer({T}, {T})", "{T} @ {T}",
    "torch.broadcast_tensors({T}, {T})[0]", "torch.addcmul({T}, {T}, {T})", "torch.lerp({T}, {T}, 0.5)", "torch.meshgrid({T}, {T}, indexing='ij')[0]", "{T} + torch.ones({N})", "{T}.add({T}, alpha=2)",
    "torch.column_stack([{T}, {T}])", "torch.dstack([{T}, {T}])[0]", "{T}.mul({T})", "{T} + {T}[:1]", "torch.cdist({T}, {T})", "torch.kron({T}, {T})",
)  # fmt: skip
REDUCTIONS = (
    "{T}.sum(0)", "{T}.sum(-1, keepdim=True)", "{T}.amax(0)", "{T}.float().mean(-1)", "torch.sum({T}, 0)", "torch.sum({T}, axis=0)", "torch.sum(input={T}, dim=0)", "{T}.sum(dim=0, dtype=torch.float64)",
    "{T}.argmax(0)", "{T}.max(0).values", "{T}.sort(0)[0]", "torch.topk({T}, 1, 0)[0]", "{T}.topk(k={N} % {T}.size(0) + 1, dim=0)[0]", "{T}.std(0)", "{T}.prod(0)", "{T}.cumsum(-1)", "{T}.norm(dim=0)",
    "{T}.any(0)", "{T}.all(-1)", "{T}.min(0)[1]", "{T}.argsort(0)", "torch.var_mean({T}, 0)[1]", "{T}.sum().reshape(1)", "{T}.logsumexp(0)", "{T}.sum(axis=-1, keepdims=True)",
)  # fmt: skip
FACTORIES = (
    "torch.arange({N})", "torch.arange({N}, dtype=torch.float32)", "torch.arange(0, {N}, 2)", "torch.arange(1, {N} + 2)", "torch.linspace(0, 1, {N})", "torch.full(({N},), 3)", "torch.full(({N}, 2), {F})",
    "torch.zeros({N})", "torch.ones({N}, 3)", "torch.zeros([2, {N}])", "torch.eye({N})", "torch.ones_like({T})", "torch.zeros_like({T}, dtype=torch.int64)", "torch.full_like({T}, 2)",
    "{T}.new_ones({N})", "{T}.new_full(({N}, 2), 3)", "{T}.new_zeros({T}.shape)", "torch.tensor([1, 2, 3])", "torch.tensor([{N}, 2])", "torch.tensor({F}).reshape(1)", "torch.as_tensor([1.0, 2.0])",
    "torch.zeros({T}.shape)", "torch.ones({T}.size(0), {N})", "F.pad({T}, (0, {N}))", "F.pad({T}, (1, 0))", "{T}.repeat_interleave(2, 0)", "{T}.repeat_interleave(repeats={N} % 3 + 1, dim=0)",
    "torch.tril(torch.ones({N}, {N}))", "torch.logspace(0, 1, {N})", "torch.hann_window({N})", "torch.empty_strided((2, {N}), (1, 2)).fill_(1)", "torch.tile({T}, ({N} % 3 + 1,))",
    "torch.tril_indices({N}, {N})", "torch.empty_like({T}.t(), memory_format=torch.contiguous_format).fill_(2)", "alloc({N})", "torch.scalar_tensor({N}).reshape(1)", "{T}.new_tensor([1, 2])",
    "F.one_hot(i % 4, 5)", "torch.zeros({N}, {T}.size(-1), dtype={T}.dtype)", "torch.combinations(torch.arange(4))", "torch.from_numpy({T}.contiguous().numpy()).clone()", "torch.diag({T})",
)  # fmt: skip
RANDOM = ("torch.rand({N})", "torch.randn(2, {N})", "torch.randint(0, 9, ({N},))", "torch.randperm({N})", "torch.rand_like({T}.float())", "torch.normal(0.0, 1.0, ({N},))", "torch.randint_like({T}, 5)",
          "torch.bernoulli(torch.full(({N},), 0.5))", "torch.rand({N}) * {N}")  # fmt: skip
DATA_DEPENDENT = (
    "{T}[{T} > 1]",
    "torch.nonzero({T})",
    "torch.unique({T})",
    "torch.masked_select({T}, {T} > 1)",
    "torch.bincount(i)",
    "torch.where({T} > 1)[0]",
)
IN_PLACE = (
    "{V} *= 2", "{V} += 1", "{V} -= {N}", "{V}.add_(1)", "{V}.mul_({F})", "{V}.t().add_(1)", "{V}[0] = 7", "{V}[:, 0] = 5", "{V}[1:] += 1", "{V}.zero_()", "{V}.fill_({N})", "{V}.t_()", "{V}.transpose_(0, 1)",
    "{V}.squeeze_()", "{V}.unsqueeze_(0)", "{V}.copy_({T})", "{V}.clamp_(0, 3)", "{V}.neg_()", "{V}.swapaxes_(0, 1)", "{V}.masked_fill_({V} > 2, 1)", "torch.mul({V}, 2, out={V})", "{V}.flatten()[0] = 3",
    "{V}.index_fill_(0, torch.tensor([0]), 4)", "{V}.resize_(1, 1)", "{V}[{V} > 2] = 0", "{V}.uniform_()", "{V}.exponential_()", "{V}.normal_()", "{V}.relu_()", "{V}.cumsum_(0)",
)  # fmt: skip
EFFECTS = (
    "LOG.append(1)", "LOG.append(n)", "LOG.extend([n, m])", "count()", "Box.calls += 1", "LOG.append(f'{n}')", "LOG.append(tuple(x.shape))", "LOG.append(len(LOG))", "[LOG.append(v) for v in range(2)]",
    "LOG.append(type(n).__name__)", "LOG.append(x.stride())", "LOG.append(str(flag))", "assert isinstance(x, torch.Tensor)", "assert n > -100, f'bad {n}'", "assert x.dim() == 2", "pass", "'a docstring'",
    "LOG.append(random.random())", "x.data_ptr()", "del_me = n", "LOG.append(float(f))", "LOG.append(max(n, m))",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Call:
    """Argument expressions, by parameter, and globals to set before the call."""

    arguments: dict[str, str]
    globals: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Program:
    """``body``: host statements, each one line or a block. ``tail`` copies what they made."""

    body: tuple[str, ...]
    tail: tuple[str, ...]
    calls: tuple[Call, ...]
    static: bool

    def function(self, name: str, device: bool) -> str:
        text = "\n".join((*self.body, *self.tail))
        if device:
            text = text.replace("span(", "hl.tile(").replace("once(", "hl.grid(")
            decorator = f"@helion.kernel(static_shapes={self.static}, autotune_effort='none')\n"
        return f"{decorator if device else ''}def {name}({PARAMETERS}):\n{textwrap.indent(text, '    ')}\n"

    def source(self) -> str:
        return f"{IMPORTS}\n{GLOBALS}\n{self.function('kernel', True)}\n{self.function('eager', False)}"

    def text(self) -> str:
        """A program that shows what differs, to run as it is."""
        lines = [self.source(), ""]
        for call in self.calls:
            lines += [f"{name} = {value}" for name, value in call.globals.items()]
            arguments = ", ".join(call.arguments[name] for name in PARAMETERS.split(", "))
            for name in ("eager", "kernel"):
                lines += ["torch.manual_seed(0); random.seed(0)", f"print({name}({arguments}))"]
        return "\n".join(lines)


# --- arguments ---------------------------------------------------------------------------------------------------------


def _matrix(rng: random.Random, rows: int, columns: int, dtype: str) -> str:
    start, count = rng.choice([-3, 0, 1]), rows * columns
    base = f"torch.arange({start}, {start + count}).to(torch.{dtype})"
    layout = rng.random()
    if layout < 0.4:
        return f"{base}.view({rows}, {columns})"
    if layout < 0.65:
        return f"{base}.view({columns}, {rows}).t()"
    if layout < 0.75:
        return f"torch.arange({2 * count}).to(torch.{dtype}).view({rows}, {2 * columns})[:, ::2]"
    if layout < 0.85:
        return f"torch.arange({2 * count}).to(torch.{dtype}).view({2 * rows}, {columns})[{rows}:]"
    if layout < 0.92:
        return f"torch.arange({columns}).to(torch.{dtype}).expand({rows}, {columns})"
    return f"torch.arange({3 * count}).to(torch.{dtype}).view({columns}, {rows}, 3).permute(1, 0, 2)[..., 1]"


def call(rng: random.Random, dtype: str) -> Call:
    rows, columns = rng.choice([1, 2, 2, 3, 4, 5, 7]), rng.choice([1, 2, 3, 3, 4, 6])
    length = rng.choice([columns, columns, rows, 3])
    return Call(
        {
            "x": _matrix(rng, rows, columns, dtype),
            "y": rng.choice([f"torch.arange({length}.) + 0.5", f"torch.arange({2 * length}.)[::2]"]),
            "i": f"torch.tensor({[rng.randint(0, 3) for _ in range(rng.choice([1, 2, 3]))]})",
            "n": str(rng.choice([1, 2, 3, 4, 5, 7])),
            "m": str(rng.choice([1, 2, 3, 4])),
            "f": str(rng.choice([1.5, 0.25, 2.0, 3.75])),
            "flag": str(rng.choice([True, False])),
            "s": repr(rng.choice(["a", "bc"])),
            "opt": rng.choice(["None", "torch.arange(3.)", "None"]),
            "fn": rng.choice(["twice", "scaled", "with_default", "add_two"]),
        },
        {"SCALE": str(rng.choice([2, 2, 3])), "Box.width": str(rng.choice([3, 3, 4]))},
    )


# --- statements --------------------------------------------------------------------------------------------------------


class Statements:
    """Draws statements that use and assign names; ``tensors`` and ``numbers`` are those that may be read."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.tensors = ["x", "y", "x"]
        self.numbers = ["n", "m"]
        self.made = 0

    def name(self, prefix: str) -> str:
        self.made += 1
        return f"{prefix}{self.made}"

    def fill(self, template: str) -> str:
        while "{" in template.replace("{n}", "").replace("{m}", ""):
            before = template
            template = template.replace("{T}", self.rng.choice(self.tensors[-4:] + self.tensors), 1)
            template = template.replace("{N}", self.number(), 1) if self.rng.random() < 0.9 else template
            template = template.replace("{F}", self.rng.choice(FLOATS[:6]), 1)
            if before == template and "{N}" not in template:
                break
        return template

    def number(self) -> str:
        return self.rng.choice(self.numbers) if self.rng.random() < 0.7 else f"({self.rng.choice(NUMBERS[:12])})"

    def tensor(self) -> str:
        families = (UNARY, VIEWS, BINARY, REDUCTIONS, FACTORIES, RANDOM, DATA_DEPENDENT)
        family = self.rng.choices(families, weights=(24, 30, 14, 8, 18, 4, 1))[0]
        return self.fill(self.rng.choice(family))

    def any_number(self) -> str:
        kind = self.rng.random()
        if kind < 0.15:
            return self.rng.choice(RUN_TIME_NUMBERS)
        return self.rng.choice(FLOATS) if kind < 0.3 else self.rng.choice(NUMBERS)

    def assignment(self, name: str | None = None) -> str:
        if name is None and self.rng.random() < 0.3:
            name = self.name("k")
            self.numbers.append(name)
            return f"{name} = {self.any_number()}"
        if name is None:
            name = self.rng.choice(self.tensors[3:]) if len(self.tensors) > 3 and self.rng.random() < 0.15 else None
            value = self.tensor()
            if name is None:
                name = self.name("v")
                self.tensors.append(name)
            return f"{name} = {value}"
        return f"{name} = {self.tensor()}"

    def statement(self) -> str:
        kind = self.rng.random()
        if kind < 0.55:
            return self.assignment()
        if kind < 0.67:
            target = self.rng.choice(self.tensors[3:] or ["x"])
            return self.fill(self.rng.choice(IN_PLACE).replace("{V}", target))
        if kind < 0.77:
            return self.rng.choice(EFFECTS)
        if kind < 0.89:
            return self.branch()
        return self.block()

    def branch(self) -> str:
        """Both ways assign the same name."""
        condition = self.rng.choice(CONDITIONS)
        if self.rng.random() < 0.4:
            name, one, other = self.name("k"), self.any_number(), self.any_number()
            self.numbers.append(name)
        else:
            name, one, other = self.name("v"), self.tensor(), self.tensor()
            self.tensors.append(name)
        if self.rng.random() < 0.2:
            return f"{name} = {one} if {condition} else {other}"
        if self.rng.random() < 0.15:
            return f"if {condition}:\n    {self.rng.choice(EFFECTS)}\n{name} = {one}"
        return f"if {condition}:\n    {name} = {one}\nelse:\n    {name} = {other}"

    def block(self) -> str:
        name, value, number = self.name("v"), self.tensor(), self.number()
        self.tensors.append(name)
        form = self.rng.choice(
            (
                "with torch.no_grad():\n    {v} = {e}",
                "with contextlib.nullcontext():\n    {v} = {e}",
                "try:\n    {v} = {e}\nfinally:\n    LOG.append('end')",
                "try:\n    {v} = {e}\nexcept ValueError:\n    {v} = y",
                "{v} = {e}\nfor step in range({n}):\n    {v} = {v} + step",
                "{v} = {e}\nfor step in (1, 2):\n    {v} = {v} * step",
                "{v} = {e}\nwhile {v}.numel() > 8:\n    {v} = {v}[:-1]",
                "def inner(v):\n    return v + {n}\n{v} = inner({e})",
                "inner = lambda v: v + {n}\n{v} = inner({e})",
                "parts = [{e}, y]\n{v} = parts[0]",
                "parts = {{'a': {e}}}\n{v} = parts['a']",
                "{v}, _ = {e}, n",
                "{v} = other = {e}",
                "if ({v} := {e}).numel() > 100:\n    LOG.append('large')",
                "{v} = [{e} for _ in range(2)][1]",
                "{v} = {{q: {e} for q in (1, 2)}}[2]",
                "if n > 1000:\n    raise ValueError(f'too many {{n}}')\n{v} = {e}",
                "if n == 3 and m == 2:\n    return y\n{v} = {e}",
                "if x.size(0) > 6:\n    raise ValueError('rows')\n{v} = {e}",
                "{v} = {e}\n{v}_alias = {v}\n{v}_alias += 1",
                "first, *rest = [n, m, 3]\n{v} = {e} + len(rest)",
            )
        )
        return form.format(v=name, e=value, n=number)


# --- programs ----------------------------------------------------------------------------------------------------------


class Result(tuple[Any, ...]):
    """What a call gives: the value or the type of its exception, then what it left in the module."""


def namespace_of(source: str, filename: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "host_program"}
    exec(compile(source, filename, "exec"), namespace)
    return namespace


def run(function: Callable[..., Any], namespace: dict[str, Any], call: Call) -> Any:
    """The function on fresh arguments, with the world as the call wants it."""
    for name, value in call.globals.items():
        exec(f"{name} = {value}", namespace)
    arguments = [eval(call.arguments[name], namespace) for name in PARAMETERS.split(", ")]
    torch.manual_seed(0)
    random.seed(0)
    return function(*arguments), arguments[0]


def outcome(function: Callable[..., Any], namespace: dict[str, Any], call: Call, refused: type[Exception]) -> Any:
    """``("value", ..)`` or ``("raises", type, message)``, and the effects so far."""
    try:
        found: tuple[Any, ...] = ("value", run(function, namespace, call))
    except refused:
        raise
    except Exception as error:
        found = ("raises", type(error).__name__, str(error))
    return (*found, list(namespace["LOG"]), namespace["Box"].calls)


def _locals(body: Sequence[str], calls: Sequence[Call]) -> list[dict[str, Any]] | None:
    """The variables behind the statements in every call, None where Python refuses one; an early return gives {}."""
    text = textwrap.indent("\n".join(body) or "pass", "    ")
    source = f"{IMPORTS}\n{GLOBALS}\ndef eager({PARAMETERS}):\n{text}\n    return locals()\n"
    try:
        namespace = namespace_of(source, "<host program>")
    except SyntaxError:
        return None
    found = []
    for one in calls:
        try:
            with torch.no_grad(), torch.device("cpu"):
                result = run(namespace["eager"], namespace, one)[0]
        except ValueError as error:
            if str(error) not in ("rows",):
                return None
            result = {}
        except Exception:
            return None
        found.append(result if isinstance(result, dict) else {})
    return found


def _copied(states: list[dict[str, Any]], rng: random.Random) -> list[tuple[str, int]]:
    """Tensors that a device loop may copy, with their ranks: those that have one in all calls."""
    whole = [state for state in states if state]
    names = [n for n in (whole[0] if whole else {}) if n[0] == "v"] or ["x"]
    ranked = []
    for name in names:
        values = [state.get(name) for state in whole]
        ranks = {v.dim() if isinstance(v, torch.Tensor) else 0 for v in values}
        if len(ranks) == 1 and ranks <= {1, 2} and all(v.dtype in TENSOR_KINDS and v.numel() <= 512 for v in values):
            ranked.append((name, ranks.pop()))
    rng.shuffle(ranked)
    return ranked[:2]


def _numbers(states: list[dict[str, Any]]) -> list[str]:
    whole = [state for state in states if state]
    names = [n for n in (whole[0] if whole else {}) if n[0] == "k"]
    kinds = {n: {type(state.get(n)) for state in whole} for n in names}
    good = [n for n in names if len(kinds[n]) == 1 and kinds[n] <= {int, float, bool}]
    return [n for n in good if all(abs(state[n]) < 2**31 for state in whole)][-3:]


def _tail(states: list[dict[str, Any]], rng: random.Random) -> tuple[str, ...]:
    made, lines, results = [], [], []
    for at, (name, rank) in enumerate(_copied(states, rng)):
        out = f"out{at}"
        made.append(f"{out} = torch.zeros({name}.shape, dtype={name}.dtype)")
        form = rng.random()
        if rank == 1:
            lines.append(f"for t in span({name}.size(0)):\n    {out}[t] = {name}[t]")
        elif form < 0.5:
            lines.append(f"for t in span({name}.size(0)):\n    {out}[t, :] = {name}[t, :]")
        else:
            lines.append(f"for a, b in span({name}.shape):\n    {out}[a, b] = {name}[a, b]")
        results.append(out)
    numbers = _numbers(states)
    if numbers:
        made.append(f"nums = torch.zeros({len(numbers)}, dtype=torch.float64)")
        stores = "".join(f"\n    nums[{at}] = {name}" for at, name in enumerate(numbers))
        lines.append(f"for g in once(1):{stores}")
        results.append("nums")
    return (*made, *lines, f"return [{', '.join(results)}]")


def build(seed: int, statements: int = 6) -> Program:
    """The program of ``seed``."""
    rng = random.Random(seed)
    dtype = rng.choice(["float32", "float32", "float32", "int64", "float64"])
    calls = tuple(call(rng, dtype) for _ in range(3))
    draw = Statements(rng)
    body: list[str] = []
    states = _locals(body, calls)
    for _ in range(4 * statements):
        kept = (list(draw.tensors), list(draw.numbers))
        candidate = [*body, draw.statement()]
        after = _locals(candidate, calls)
        if after is None or not any(after):
            draw.tensors, draw.numbers = kept
            continue
        body, states = candidate, after
        if len(body) >= statements:
            break
    assert states is not None
    return Program(tuple(body), _tail(states, rng), calls, rng.random() < 0.5)


# --- verdicts ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Verdict:
    """``right``, ``wrong``, ``crashed`` or ``refused``, and what was seen."""

    kind: str
    detail: str


def same(a: Any, b: Any) -> bool:
    """Equal results: tensors with dtype, shape and elements but for the rounding of numbers that launches pass."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.allclose(a, b, 1e-6, 1e-6, equal_nan=True)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(same(one, other) for one, other in zip(a, b, strict=True))
    return type(a) is type(b) and (a == b or (a != a and b != b))


def judge(program: Program, load: Callable[[str], dict[str, Any]], refused: type[Exception]) -> Verdict:
    """Calls the kernel and plain Python, each in a module of its own; ``load`` makes one of source text."""
    eager, kernel = load(program.source()), load(program.source())
    with torch.no_grad():
        for at, one in enumerate(program.calls):
            expected = outcome(eager["eager"], eager, one, refused)
            try:
                got = outcome(kernel["kernel"], kernel, one, refused)
            except refused as error:
                return Verdict("refused", f"call {at}: {type(error).__name__}: {error}")
            if not same(expected, got):
                kind = "crashed" if got[0] == "raises" and expected[0] != "raises" else "wrong"
                return Verdict(kind, f"call {at}:\nexpected {expected}\ngot      {got}")
    return Verdict("right", "")


def smaller(program: Program) -> Iterator[Program]:
    """Programs with less in them."""
    for at in reversed(range(len(program.body))):
        yield dataclasses.replace(program, body=program.body[:at] + program.body[at + 1 :])
        lines = program.body[at].split("\n")
        if len(lines) == 4 and lines[2] == "else:":
            for kept in (1, 3):
                body = (*program.body[:at], lines[kept].strip(), *program.body[at + 1 :])
                yield dataclasses.replace(program, body=body)
    for at in range(len(program.calls) if len(program.calls) > 1 else 0):
        yield dataclasses.replace(program, calls=program.calls[:at] + program.calls[at + 1 :])
    results = program.tail[-1].removeprefix("return [").removesuffix("]").split(", ")
    for name in results if len(results) > 1 else ():
        left = tuple(line for line in program.tail[:-1] if name not in line)
        yield dataclasses.replace(program, tail=(*left, f"return [{', '.join(r for r in results if r != name)}]"))


def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """The smallest program found that plain Python still runs and that still fails."""
    with contextlib.suppress(StopIteration):
        while True:
            program = next(p for p in smaller(program) if _runs(p) and fails(p))
    return program


def _runs(program: Program) -> bool:
    return _locals([*program.body, *program.tail[:-1]], program.calls) is not None
