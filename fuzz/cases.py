"""Drafts of kernels, which can be made smaller, and the cases that they are written out as."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .inputs import LAYOUTS, Input
from .judge import ROUNDOFF, Precision

#: Sizes of dimensions: for a GPU, and for the interpreter, which is slow.
SIZES = (1, 2, 7, 16, 31, 63, 64, 65, 100, 128, 129, 200, 256, 257)
LONG_SIZES = (1, 33, 64, 127, 128, 129, 256, 500, 513, 1000, 1024)
SMALL_SIZES = (1, 2, 5, 8, 16, 17, 24, 33)
FLOATS = ("float32", "float16", "bfloat16")

HEADER = "from __future__ import annotations\n\nimport torch\n\nimport helion\nimport helion.language as hl\n"


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of a chain: a key of a table of operations, and operand numbers, taken modulo the number of values."""

    op: str
    a: int = 0
    b: int = 0


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A kernel before it is written out: everything that a family chose.

    ``sizes`` are dimensions, ``options`` named choices, ``steps`` a chain of operations. Each can be made smaller alone.
    """

    family: str
    seed: int
    sizes: Mapping[str, int]
    options: Mapping[str, str] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the draft as plain data."""
        return {**dataclasses.asdict(self), "steps": [[s.op, s.a, s.b] for s in self.steps]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Draft:
        """Return the draft that ``to_json`` gave."""
        steps = tuple(Step(op=op, a=a, b=b) for op, a, b in data["steps"])
        return cls(**{**data, "steps": steps})

    @property
    def name(self) -> str:
        """A name for files and functions, which tells of family and seed."""
        return f"{self.family}_{self.seed}"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A kernel as text with its reference, inputs and precision.

    ``kernel`` defines a function of the name of the draft, ``reference`` one called ``reference``: both take ``inputs``.
    ``settings`` are keywords of ``helion.kernel``.
    """

    name: str
    kernel: str
    reference: str
    inputs: tuple[Input, ...]
    precision: Precision
    settings: Mapping[str, Any] = field(default_factory=dict)
    backends: tuple[str, ...] = ("triton",)

    @property
    def source(self) -> str:
        """The text of a module with kernel and reference."""
        return f"{HEADER}\n\n{self.kernel}\n\n{self.reference}"


@dataclass(frozen=True, kw_only=True)
class Family:
    """A kind of kernel. ``simplest`` are the values of options that a shrinker tries first."""

    name: str
    draw: Callable[[Draw], Draft]
    render: Callable[[Draft], Case]
    simplest: Mapping[str, str]
    weight: int = 1


class Draw:
    """Random choices of one draft."""

    def __init__(self, family: str, seed: int, small: bool) -> None:
        self.rng = random.Random(f"{family} {seed}")
        self.family, self.seed, self.small = family, seed, small

    def size(self, long: bool = False) -> int:
        """Return the size of a dimension; a long one is a row."""
        return self.rng.choice(SMALL_SIZES if self.small else LONG_SIZES if long else SIZES)

    def one(self, *choices: str) -> str:
        """Return one of ``choices``; repeated ones are more likely."""
        return self.rng.choice(choices)

    def float(self) -> str:
        """Return the name of a floating dtype."""
        return self.rng.choice(FLOATS)

    def layout(self) -> str:
        """Return a layout of an input."""
        return self.rng.choice(("contiguous", "contiguous", *LAYOUTS))

    def steps(self, ops: Sequence[str], least: int, most: int) -> tuple[Step, ...]:
        """Return a chain of operations out of ``ops``."""
        return tuple(
            Step(op=self.rng.choice(ops), a=self.rng.randrange(64), b=self.rng.randrange(64))
            for _ in range(self.rng.randint(least, most))
        )

    def draft(self, sizes: Mapping[str, int], options: Mapping[str, str], steps: tuple[Step, ...] = ()) -> Draft:
        """Return the draft of these choices; one in five takes sizes at run time."""
        shapes = {"shapes": self.one("static", "static", "static", "static", "dynamic")}
        return Draft(family=self.family, seed=self.seed, sizes=dict(sizes), options={**options, **shapes}, steps=steps)


def precision_of(*dtypes: str, operands: str = "float32") -> Precision:
    """Return the precision of values that pass through all of ``dtypes``."""
    return Precision(values=max(dtypes, key=ROUNDOFF.__getitem__), operands=operands)


def settings_of(draft: Draft) -> dict[str, Any]:
    """Return the settings that a draft asks for."""
    return {} if draft.options.get("shapes", "static") == "static" else {"static_shapes": False}


def indented(lines: Sequence[str], depth: int) -> str:
    """Return ``lines`` as text, ``depth`` levels in."""
    return "".join(f"{'    ' * depth}{line}\n" for line in lines)


def function(name: str, inputs: Sequence[Input], body: Sequence[str], decorator: str = "") -> str:
    """Return a function over ``inputs`` as text; lines of ``body`` carry their own indents."""
    head = f"{decorator}def {name}({', '.join(each.name for each in inputs)}):\n"
    return head + indented(body, 1)


def case_of(
    draft: Draft,
    inputs: Sequence[Input],
    kernel: Sequence[str],
    reference: Sequence[str],
    precision: Precision,
    backends: tuple[str, ...] = ("triton",),
) -> Case:
    """Return the case of a draft from the bodies of its kernel and its reference; inputs that neither names are left out."""
    words = set(re.findall(r"\w+", " ".join([*kernel, *reference])))
    inputs = [each for each in inputs if each.name in words]
    return Case(
        name=draft.name,
        kernel=function(draft.name, inputs, kernel, "@helion.kernel()\n"),
        reference=function("reference", inputs, reference),
        inputs=tuple(inputs),
        precision=precision,
        settings=settings_of(draft),
        backends=backends,
    )
