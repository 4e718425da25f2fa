"""Random programs that load, store and update memory that several tensors share, against eager PyTorch.

Rows are loaded, reduced, stored whole, in part and under masks, updated in place and by atomics, through tensors that are
one tensor, views of it, or overlapping windows of one buffer; in loops and branches; under configs that walk rows in
chunks. Tiles never touch each other's rows, so the statements in their order say what must come out.
`make prove` runs many more.
"""

from __future__ import annotations

import random
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from generated_source import load
from sampling import seeds, shown

import helion

#: How tensors of [rows, C] are made of what the kernel gets; the same text runs in both functions.
PLAIN = ("b = a", "b = c", "b = c.clone()", "b = a.view(a.size(0), a.size(1))")
TENSORS = (
    *PLAIN,
    "b = buffer[:, 3:3 + a.size(1)]",
    "b = buffer[:, :a.size(1)]",
    "b = buffer[:, ::2][:, :a.size(1)]",
    "b = torch.as_strided(buffer, (a.size(0), a.size(1)), (buffer.stride(0), 1), 5)",
)
#: How the arguments share memory.
ARGUMENTS = ("apart", "same", "shifted", "a of buffer", "c of buffer")


class Program:
    """Statements on the tensors a, b, c and ``buffer``, wide values ``v*`` and numbers per row ``s*``."""

    def __init__(self, rng: random.Random, static: bool) -> None:
        self.rng = rng
        self.smooth = rng.random() < 0.3
        self.mixed = rng.random() < 0.6
        self.names = 0
        # windows have sizes of their own, which are other numbers than those of ``a`` where sizes are run-time numbers
        self.tensors = rng.choice(TENSORS if static else PLAIN) if self.mixed else "b = c.clone()"
        self.arguments = rng.choice(ARGUMENTS)
        wide, narrow = ["v0"], list[str]()
        body = self.block(0, wide, narrow, rng.randint(3, 9))
        last = rng.choice(["store", "store masked", "store masked"])
        self.body = [("load", "v0", "a"), *body, (last, "b", self.expression(wide, narrow))]

    def fresh(self, letter: str) -> str:
        self.names += 1
        return f"{letter}{self.names}"

    def block(self, depth: int, wide: list[str], narrow: list[str], count: int) -> list[Any]:
        """Statements as tuples; names that they define are added to ``wide`` and ``narrow``."""
        made: list[Any] = []
        for _ in range(count):
            kind = self.rng.random()
            # often tensors are only read or only written: what is stored twice is what may go wrong there
            tensor = self.rng.choice("aabbc") if self.mixed else "ac"[kind < 0.05] if kind < 0.48 else "b"
            if kind < 0.14:
                name = self.fresh("v")
                made.append((self.rng.choice(["load", "load", "load masked", "load reversed"]), name, tensor))
                wide.append(name)
            elif kind < 0.27:
                name = self.fresh("v")
                made.append(("let", name, self.expression(wide, narrow)))
                wide.append(name)
            elif kind < 0.42:
                name = self.fresh("s")
                made.append(("let", name, self.reduction(wide)))
                narrow.append(name)
            elif kind < 0.48:
                name = self.fresh("s")
                made.append(("load one", name, tensor, self.rng.randrange(4)))
                narrow.append(name)
            elif kind < 0.74:
                how = self.rng.choice(["store", "store", "store", "add", "store masked", "store reversed"])
                made.append((how, tensor, self.expression(wide, narrow)))
            elif kind < 0.8:
                if not narrow:
                    continue
                made.append(("store one", tensor, self.rng.randrange(4), self.rng.choice(narrow)))
            elif kind < 0.86:
                if not narrow:
                    continue
                name = self.fresh("s")
                made.append(("atomic", name, tensor, self.rng.randrange(4), self.rng.choice(narrow)))
                narrow.append(name)
            elif kind < 0.87:
                made.append(("atomic row", tensor, self.rng.choice(wide)))
            elif depth < 2:
                how = self.rng.choice(["if", "grid", "tile"])
                if how == "tile":
                    # tiles of a loop over windows that overlap would depend on their size
                    made.append(("tile", tensor, self.rng.choice([*narrow, "1"])))
                else:
                    name = self.fresh("i")
                    # rows that are walked in chunks are not held across a loop or a branch
                    first = self.fresh("v")
                    known = [first, *wide] if self.rng.random() < 0.3 else [first]
                    inner = self.block(depth + 1, known, list(narrow), self.rng.randint(1, 3))
                    made.append(
                        (
                            how,
                            self.rng.randrange(2),
                            name,
                            [("load", first, tensor), *inner, ("store", tensor, first)],
                        )
                    )
        return made

    def expression(self, wide: list[str], narrow: list[str]) -> str:
        first, second = self.rng.choices(wide, k=2)
        forms = [first, f"{first} + {second}", f"{first} - 2", f"torch.maximum({first}, {second})", f"{first} * 3"]
        if narrow:
            forms += [f"{first} + {self.rng.choice(narrow)}[:, None]"] * 3
        if self.smooth:
            forms += [f"torch.softmax({first} * 0.1, -1)", f"torch.tanh({first})", f"{first} * 0.25"]
        return self.bounded(self.rng.choice(forms))

    def reduction(self, wide: list[str]) -> str:
        value = self.rng.choice(wide)
        forms = [f"{value}.sum(-1)", f"{value}.amax(-1)", f"{value}.amin(-1)"]
        if self.smooth:
            forms += [f"{value}.mean(-1)", f"{value}.var(-1)", f"torch.logsumexp({value} * 0.1, -1)"]
        return self.bounded(self.rng.choice(forms))

    def bounded(self, text: str) -> str:
        return f"torch.tanh(({text}) * 0.125) * 8" if self.smooth else f"({text}) % 97"

    # --- as text ---------------------------------------------------------------------------------------------------------

    def source(self, device: bool) -> str:
        name = "kernel" if device else "eager"
        lines = ["def " + name + "(a, c, buffer, flag):", f"    {self.tensors}"]
        lines = ["@helion.kernel", *lines] if device else lines
        lines.append("    for t in hl.tile(a.size(0)):" if device else "    for t in [slice(None)]:")
        lines += [f"        {line}" for line in self.lines(self.body, device)]
        return "\n".join([*lines, "    return b", ""])

    def lines(self, statements: list[Any], device: bool) -> list[str]:
        return [line for statement in statements for line in self.statement(statement, device)]

    def statement(self, statement: Any, device: bool) -> list[str]:
        lanes = "hl.arange(a.size(1))" if device else "torch.arange(a.size(1))"
        match statement:
            case ("let", name, text):
                return [f"{name} = {text}"]
            case ("load", name, tensor):
                return [f"{name} = {tensor}[t, :]" + ("" if device else ".clone()")]
            case ("load masked", name, tensor):
                if device:
                    return [f"{name} = hl.load({tensor}, [t, slice(None)], extra_mask=({lanes} % 3 != 0)[None, :])"]
                return [f"{name} = {tensor} * ({lanes} % 3 != 0)"]
            case ("load reversed", name, tensor):
                return [f"{name} = {tensor}[t, a.size(1) - 1 - {lanes}]"]
            case ("load one", name, tensor, at):
                return [f"{name} = {tensor}[t, {at}]" + ("" if device else ".clone()")]
            case ("store", tensor, text):
                return [f"{tensor}[t, :] = {text}"]
            case ("add", tensor, text):
                return [
                    f"{tensor}[t, :] = ({tensor}[t, :] + {text}) * 0.5" if self.smooth else f"{tensor}[t, :] += {text}"
                ]
            case ("store reversed", tensor, text):
                return [f"{tensor}[t, a.size(1) - 1 - {lanes}] = {text}"]
            case ("store masked", tensor, text):
                if device:
                    return [f"hl.store({tensor}, [t, slice(None)], {text}, extra_mask=({lanes} % 2 == 0)[None, :])"]
                return [f"{tensor}[:, ::2] = ({text})[:, ::2]"]
            case ("store one", tensor, at, value):
                return [f"{tensor}[t, {at}] = {value}"]
            case ("atomic", name, tensor, at, value):
                if device:
                    return [f"{name} = hl.atomic_add({tensor}, [t, {at}], {value})"]
                return [f"{name} = {tensor}[:, {at}].clone()", f"{tensor}[:, {at}] += {value}"]
            case ("atomic row", tensor, value):
                return [
                    f"hl.atomic_max({tensor}, [t, slice(None)], {value})"
                    if device
                    else f"{tensor}[:] = torch.maximum({tensor}, {value})"
                ]
            case ("tile", tensor, value):
                column = value if value == "1" else f"{value}[:, None]"
                loop = "for j in hl.tile(a.size(1)):" if device else "for j in [slice(None)]:"
                return [loop, f"    {tensor}[t, j] = {tensor}[t, j] - {column}"]
            case ("if", at, _, inner):
                return [f"if flag[{at}] > 0:", *(f"    {line}" for line in self.lines(inner, device))]
            case ("grid", _, name, inner):
                loop = f"for {name} in hl.grid(2):" if device else f"for {name} in range(2):"
                return [loop, *(f"    {line}" for line in self.lines(inner, device))]
        raise AssertionError(statement)


def arguments(how: str, rows: int, columns: int, seed: int, smooth: bool) -> tuple[torch.Tensor, ...]:
    """a and c of [rows, columns], a buffer of [rows, 2 * columns + 8], which they may be windows of, and flags."""
    generator = torch.Generator().manual_seed(seed)
    buffer = torch.randint(-9, 10, (rows, 2 * columns + 8), generator=generator)
    a, c = (torch.randint(-9, 10, (rows, columns), generator=generator) for _ in range(2))
    if smooth:
        a, c, buffer = a.double(), c.double(), buffer.double()
    match how:
        case "same":
            c = a
        case "shifted":
            wide = torch.cat([a, c], 1)
            a, c = wide[:, :columns], wide[:, 2 : columns + 2]
        case "a of buffer":
            a = buffer[:, 2 : columns + 2]
        case "c of buffer":
            c = buffer[:, ::2][:, :columns]
    return a, c, buffer, torch.tensor([1, -1])


def copied(args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Copies that share memory as the originals do."""
    memory: dict[int, Any] = {}
    made = []
    for t in args:
        key = t.untyped_storage().data_ptr()
        if key not in memory:
            memory[key] = t.untyped_storage().clone()
        made.append(torch.empty(0, dtype=t.dtype).set_(memory[key], t.storage_offset(), t.shape, t.stride()))
    return tuple(made)


def configs(bound: Any, rng: random.Random) -> list[helion.Config]:
    """All rows in small chunks, and a random config."""
    rolled = dict(bound.conservative_config())
    rolled["reduction_loops"] = [8] * len(rolled["reduction_loops"])
    return [helion.Config(**rolled), bound.config_spec.random(rng)]


def run(seed: int, directory: Path, static: bool = True) -> None:
    rng = random.Random(seed)
    program = Program(rng, static)
    text = f"{program.source(True)}\n{program.source(False)}"
    module: ModuleType = load(text, directory, f"effects_{seed}")
    args = arguments(program.arguments, rng.choice([1, 3]), rng.choice([11, 19]), seed, program.smooth)
    expected = copied(args)
    out = module.eager(*expected)
    kernel = module.kernel if static else helion.kernel(module.kernel.fn, static_shapes=False)
    bound = kernel.bind(args)
    for config in configs(bound, rng):
        given = copied(args)
        found = bound.compile_config(config)(*given)
        for name, got, want in zip(("b", "a", "c", "buffer"), (found, *given), (out, *expected), strict=False):
            close = torch.allclose(got, want, rtol=1e-6, atol=1e-6) if program.smooth else torch.equal(got, want)
            assert close, f"{program.source(True)}\nseed {seed}, {program.arguments}, {name} with {config}"


@pytest.mark.parametrize("of", seeds(30, 2000), ids=shown)
def test_effects_keep_their_order(of: range, tmp_path: Path) -> None:
    for seed in of:
        run(seed, tmp_path, static=seed % 4 != 0)
