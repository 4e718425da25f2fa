"""Releases, acquires and source of the user's order the whole program: in the program as it is printed, and in the PTX.

Random kernels hold fences among loads and stores, in loops and branches. However a config rewrites them, what happens
between two fences stays between them, each is done as often as it was written, and on every way through the program a
barrier stands between an access and a later release, and between an acquire and a later access.
"""

from __future__ import annotations

import inspect
import itertools
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from generated_source import load
from harness import skeleton
from sampling import seeds, shown

import helion
import helion.language as hl
from helion._compiler.ir.effects import is_fence, order_of
from helion._compiler.ir.grammar import MemoryAttrs, Op, Program, Region
from helion._compiler.ir.verifier import verify
from helion.backends.triton.source import effect_of_text
from helion.backends.triton.toolchain.offline import compile_offline
from helion.backends.triton.toolchain.signature import offline_signature

HEADER = """
import triton
import triton.language as tl

@triton.jit
def touch(pointer):
    tl.atomic_add(pointer, 1)

@triton.jit
def peek(pointer, value):
    return value + tl.load(pointer)
"""


# --- random programs ----------------------------------------------------------------------------------------------------


class _Kernel:
    """Statements on rows of a, b and c, and on ``flags``."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.names = itertools.count()
        lines = ["@helion.kernel", "def kernel(a, b, c, flags, n):", "    for t in hl.tile(a.size(0), block_size=2):"]
        lines += ["        v = a[t, :]", "        s = v.sum(-1)"]
        self.source = "\n".join(
            [*lines, *self.block("v", "s", 8, self.rng.randint(4, 9)), "        c[t, :] = a[t, :]", ""]
        )

    def block(self, wide: str, narrow: str, indent: int, count: int, depth: int = 0) -> Iterator[str]:
        pad = " " * indent
        for _ in range(count):
            kind = self.rng.random()
            tensor = self.rng.choice("abc")
            if kind < 0.15:
                wide = f"v{next(self.names)}"
                yield f"{pad}{wide} = {tensor}[t, :] + {narrow}[:, None]"
            elif kind < 0.3:
                narrow = f"s{next(self.names)}"
                yield f"{pad}{narrow} = {tensor}[t, :].{self.rng.choice(['sum', 'amax', 'mean'])}(-1)"
            elif kind < 0.45:
                yield f"{pad}{tensor}[t, :] = {tensor}[t, :] * 2 + {narrow}[:, None]"
            elif kind < 0.55:
                # in every other column: Triton stores the elements of a pair at once
                yield f"{pad}{tensor}[t, {2 * self.rng.randrange(3)}] = {narrow}"
            elif kind < 0.6:
                yield f'{pad}hl.device_print("{narrow}", {narrow})'
            elif kind < 0.9 or depth == 2:
                yield pad + self.fence(narrow)
            elif kind < 0.95:
                yield f"{pad}for i in hl.grid(n):"
                inner = f"w{next(self.names)}"
                yield f"{pad}    {inner} = {tensor}[i, 0] + flags[3].to(torch.float32)"
                yield f"{pad}    {tensor}[t, 7] = hl.zeros([t]) + {inner}"
                yield from self.block(wide, narrow, indent + 4, 0, depth + 1)
                yield f"{pad}    {self.fence(narrow)}"
            else:
                yield f"{pad}if flags[4] > 0:"
                yield f"{pad}    {tensor}[t, 2] = {narrow}"
                yield f"{pad}    {self.fence(narrow)}"

    def fence(self, narrow: str) -> str:
        sem = self.rng.choice(["relaxed", "release", "acquire", "acq_rel"])
        return self.rng.choice(
            [
                f'hl.atomic_add(flags, [t.id], 1, sem="{sem}")',
                f'hl.atomic_add(flags, [{self.rng.randrange(3)}], 1, sem="{sem}")',
                f'hl.atomic_add(c, [t, 3], {narrow}, sem="{sem}")',
                "hl.triton_kernel(touch, args=(flags,), output_like=None)",
                f"{narrow} = hl.triton_kernel(peek, args=(flags, {narrow}), output_like={narrow})",
                'hl.inline_triton("tl.debug_barrier()", args=(), output_like=None)',
            ]
        )


def paths(region: Region, rng: random.Random) -> Iterator[Op]:
    """The ops of one way through a region. Loops run twice; branches are chosen by where they stand in the source."""
    for op in region.ops:
        if op.kind == "if":
            yield from paths(op.regions[_line(op) % 2], rng)
        elif op.kind == "for":
            yield from itertools.chain(paths(op.regions[0], rng), paths(op.regions[0], rng))
        elif op.kind == "while":
            yield from itertools.chain(*(paths(r, rng) for r in (*op.regions, *op.regions, op.regions[0])))
        else:
            yield op


def _line(op: Op) -> int:
    assert op.location is not None
    return op.location.line


def happens(program: Program) -> list[Op]:
    """Accesses, fences and barriers of a program in the order in which they happen."""
    rng = random.Random(0)
    ops = (op for root in program.roots for op in paths(root.body, rng))
    return [op for op in ops if is_fence(op) or op.kind in ("barrier", "print") or isinstance(op.attrs, MemoryAttrs)]


def between_fences(program: Program) -> list[set[tuple[str, int]]]:
    """What happens between one fence and the next, and the fences themselves, by kind and line."""
    found: list[set[tuple[str, int]]] = [set()]
    for op in happens(program):
        if is_fence(op):
            found += [{(op.kind, _line(op))}, set()]
        elif op.kind != "barrier":
            found[-1].add((op.kind, _line(op)))
    return found


def unordered(program: Program) -> list[tuple[Op, Op]]:
    """Pairs of an access and a later release, or of an acquire and a later access, without a barrier between them."""
    missing: list[tuple[Op, Op]] = []
    since: list[Op] = []
    for op in happens(program):
        if op.kind == "barrier":
            since = []
        if op.kind in ("barrier", "print"):
            continue
        for before in since:
            scalars = all(each.kind == "atomic" and not each.result.dims for each in (before, op))
            if not scalars and (order_of(op).releases or order_of(before).acquires):
                missing.append((before, op))
        since.append(op)
    return missing


@pytest.mark.parametrize("of", seeds(20, 600), ids=shown)
def test_fences_keep_their_place(of: range, tmp_path: Path) -> None:
    checked = 0
    for seed in of:
        kernel = _Kernel(seed)
        module = load(HEADER + kernel.source, tmp_path, f"fences_{seed}")
        rows = torch.ones(4, 40)
        bound = module.kernel.bind(
            (rows, rows.clone(), rows.clone(), torch.zeros(5, dtype=torch.int32), 3), target="sm_90"
        )
        analysis, rng = bound._analysis, random.Random(seed)
        wanted = between_fences(analysis.program)
        rolled = {
            key: [8] * len(value) for key, value in bound.conservative_config().items() if key == "reduction_loops"
        }
        for config in ({**bound.conservative_config(), **rolled}, *(bound.config_spec.random(rng) for _ in range(2))):
            program = analysis.code(analysis.space.normalize(config)).plan.program
            assert between_fences(program) == wanted, f"{kernel.source}\nseed {seed}, {config}"
            assert not unordered(program), f"{kernel.source}\nseed {seed}, {config}, {skeleton(program)}"
            verify(program, "test")
            checked += len(wanted)
    assert checked > 10 * len(of), "most programs have fences"


# --- where barriers stand -----------------------------------------------------------------------------------------------


def x(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def ready(x, y, flags, sem):
    for t in hl.tile(x.size(0), block_size=1):
        y[t, :] = x[t, :] * 2
        hl.atomic_xchg(flags, [t.begin], 1, sem=sem)


def waits(x, y, flags, sem):
    for t in hl.tile(x.size(0), block_size=1):
        seen = hl.atomic_add(flags, [t.begin], 1, sem=sem)
        y[t, :] = x[t, :] * seen


def counts(x, y, flags, sem):
    for t in hl.tile(x.size(0), block_size=1):
        hl.atomic_add(flags, [0], 1, sem=sem)
        hl.atomic_add(flags, [1], 1, sem=sem)


def last_arriver(x, y, flags, sem):
    for t in hl.tile(x.size(0), block_size=1):
        y[t, :] = x[t, :]
        before = hl.atomic_add(flags, [0], 1, sem=sem)
        if before == x.size(0) - 1:
            y[0, :] = y[:, :].sum(0)


def adds_then_signals(x, y, flags, sem):
    for t in hl.tile(x.size(0), block_size=1):
        hl.atomic_add(y, [t, slice(None)], x[t, :])
        hl.atomic_add(flags, [0], 1, sem=sem)


def locked(x, y, flags, sem):
    for t in hl.tile(x.size(0), block_size=1):
        v = x[t, :]
        while hl.atomic_cas(flags, [0], 0, 1, sem="acquire") == 1:
            pass
        y[0, :] = y[0, :] + v.sum(0)
        hl.atomic_xchg(flags, [0], 0, sem="release")


def tile_of_flags(x, y, flags, sem):
    for t in hl.tile(x.size(0)):
        y[t, 0] = x[t, 0]
        hl.atomic_add(flags, [t], 1, sem=sem)
        y[t, 1] = x[t, 1]


def in_a_loop(x, y, flags, sem):
    for t in hl.tile(x.size(1)):
        for i in hl.grid(x.size(0)):
            y[i, t] = x[i, t]
            hl.atomic_add(flags, [i], 1, sem=sem)


def assembly(x, y, flags, sem):
    for t in hl.tile(x.size(0), block_size=1):
        y[t, :] = x[t, :]
        hl.inline_asm_elementwise("fence.sc.gpu; mov.b32 $0, $1;", "=r,r", [t.begin], torch.int32, sem == "relaxed", 1)
        y[t, :] = x[t, :] * 2


PLACES: tuple[tuple[Any, str, str], ...] = (
    (ready, "release", "load x; store y; barrier; atomic flags"),
    (ready, "acq_rel", "load x; store y; barrier; atomic flags"),
    (ready, "acquire", "load x; store y; atomic flags"),
    (ready, "relaxed", "load x; store y; atomic flags"),
    (waits, "acquire", "atomic flags; barrier; load x; store y"),
    (waits, "acq_rel", "atomic flags; barrier; load x; store y"),
    (waits, "release", "atomic flags; load x; store y"),
    (waits, "relaxed", "atomic flags; load x; store y"),
    (counts, "acq_rel", "atomic flags; atomic flags"),
    (counts, "relaxed", "atomic flags; atomic flags"),
    (last_arriver, "acq_rel", "load x; store y; barrier; atomic flags; if(barrier; load y; barrier; store y / )"),
    (adds_then_signals, "release", "load x; atomic y; barrier; atomic flags"),
    (adds_then_signals, "relaxed", "load x; atomic y; atomic flags"),
    (locked, "", "load x; while(atomic flags do ); barrier; load y; store y; barrier; atomic flags"),
    (tile_of_flags, "acq_rel", "load x; store y; barrier; atomic flags; barrier; load x; store y"),
    (in_a_loop, "release", "for(load x; store y; barrier; atomic flags)"),
    (in_a_loop, "acq_rel", "for(load x; store y; barrier; atomic flags; barrier)"),
    (assembly, "acq_rel", "load x; store y; barrier; barrier; load x; store y"),
)


def plan_of(function: Any, sem: str, target: str = "sm_90", **config: Any) -> Any:
    bound = bound_of(function, sem, target)
    return bound._analysis.code(bound.config_spec.normalize(config)).plan


def bound_of(function: Any, sem: str, target: str, rows: int = 8, columns: int = 2048) -> Any:
    args = (x(rows, columns), x(rows, columns), x(rows, dtype=torch.int32), sem)
    return helion.kernel(function).bind(args, target=target)


@pytest.mark.parametrize(("function", "sem", "wanted"), PLACES, ids=lambda v: getattr(v, "__name__", None))
def test_places(function: Any, sem: str, wanted: str) -> None:
    program = plan_of(function, sem).program
    assert skeleton(program) == wanted
    assert not unordered(program)


@pytest.mark.parametrize("function", [ready, waits, adds_then_signals, tile_of_flags, assembly])
def test_a_missing_barrier_is_seen(function: Any) -> None:
    program = plan_of(function, "acq_rel").program
    barriers = [op.number for op in program.walk() if op.kind == "barrier"]
    assert barriers
    for number in barriers:
        fewer = program.map_regions(lambda r: replace(r, ops=tuple(o for o in r.ops if o.number != number)))  # noqa: B023
        assert unordered(fewer)


@pytest.mark.parametrize("function", [ready, waits, in_a_loop, tile_of_flags])
@pytest.mark.parametrize("sem", ["release", "acquire"])
def test_the_copy_engine_takes_no_part(function: Any, sem: str) -> None:
    """Stores before a release, and accesses after an acquire, are those of threads, which barriers order."""
    plan = plan_of(function, sem, indexing="tensor_descriptor")
    ops = {op.number: op for op in plan.program.walk()}
    order = [op.number for op in plan.program.walk()]
    looped = function is in_a_loop
    (fence,) = (op for op in ops.values() if is_fence(op))
    for number in plan.boxes:
        before = order.index(number) < order.index(fence.number)
        assert not (sem == "release" and ops[number].kind == "store" and (before or looped))
        assert not (sem == "acquire" and (not before or looped))


EVENTS = {
    "cuda": {"ld.global.v": "load", "ld.global.b": "load", "st.global": "store", "bar.sync": "barrier", "atom.global": "atomic"},
    "hip": {
        "buffer_load": "load", "global_load": "load", "buffer_store": "store", "global_store": "store",
        "s_barrier": "barrier", "global_atomic": "atomic",
    },
}  # fmt: skip


def events(function: Any, sem: str, target: str, num_warps: int) -> list[str]:
    """The runs of loads, stores, barriers and atomics in the code for a target."""
    bound = bound_of(function, sem, target)
    full = bound.config_spec.normalize({"num_warps": num_warps})
    plan = bound._analysis.code(full).plan
    compiled = inspect.unwrap(bound.compile_config(full)).__globals__[plan.kernel_names[0]]
    asm = compile_offline(compiled, **offline_signature(plan, bound.target)).asm
    kinds = EVENTS["cuda" if "ptx" in asm else "hip"]
    pattern = "|".join(map(re.escape, kinds))
    found = [
        kinds[m[1]] for m in re.finditer(rf"^\s*(?:@\S+ )?({pattern})", asm.get("ptx") or asm["amdgcn"], re.MULTILINE)
    ]
    return [kind for kind, _ in itertools.groupby(found)]


@pytest.mark.parametrize(
    ("target", "num_warps"),
    [("sm_80", 4), ("sm_90", 8), ("gfx942", 4), pytest.param("sm_100", 16, marks=pytest.mark.prove)],
)
def test_in_the_code_of_a_target(target: str, num_warps: int) -> None:
    assert events(ready, "release", target, num_warps)[-4:] == ["load", "store", "barrier", "atomic"]
    found = events(waits, "acquire", target, num_warps)
    assert found[:2] == ["atomic", "barrier"] and "load" not in found[: found.index("barrier")]
    assert events(ready, "relaxed", target, num_warps)[-3:] == ["load", "store", "atomic"]


# --- source of the user's -----------------------------------------------------------------------------------------------


@triton.jit
def signal(pointer):
    tl.atomic_add(pointer, 1, sem="acq_rel", scope="sys")


@triton.jit
def scaled(value, pointer):
    return tl.where(value > 0, value, value * tl.load(pointer)).to(tl.float32)


def signalled(x, y, flags, sem):
    for t in hl.tile(x.size(0), block_size=1):
        y[t, :] = x[t, :] - x[t, :].mean(-1, keepdim=True)
        hl.triton_kernel(signal, args=(flags,), output_like=None)


def computed(x, y, flags, sem):
    for t in hl.tile(x.size(0), block_size=1):
        v = x[t, :]
        y[t, :] = hl.triton_kernel(scaled, args=(v, flags), output_like=v)
        y[t, :] = hl.inline_triton("tl.exp({0}) + {1}", args=(x[t, :], 1.0), output_like=v)


@pytest.mark.parametrize("columns", [300, 4096, 65536, 200000])
def test_the_rows_of_every_seed_are_stored_before_the_signal(columns: int) -> None:
    bound = bound_of(signalled, "", "h100", columns=columns)
    for seed in bound.seeds:
        program = bound._analysis.code(bound._analysis.space.normalize(seed.config)).plan.program
        assert skeleton(program).endswith("barrier; inline()"), skeleton(program)
        assert [op.kind for op in happens(program)].count("inline") == 1


def test_source_that_computes_is_no_fence() -> None:
    assert "barrier" not in skeleton(plan_of(computed, "").program).replace("barrier; store y", "store y")
    assert not any(is_fence(op) for op in plan_of(computed, "").program.walk())


@pytest.mark.parametrize(
    ("text", "effect"),
    [
        ("tl.exp({0})", "none"),
        ("total = {0} + 1\nfor i in tl.static_range(3):\n    total = total.to(tl.float32)\ntotal", "none"),
        ("tl.where({0} > 0, libdevice.tanh({0}), tl.cdiv({0}, 2)).sum(0)", "none"),
        ("tl.load({0}).to(tl.int32)", "reads"),
        ("tl.load({0}, volatile=True)", "any"),
        ("tl.store({0}, 1)", "any"),
        ("tl.atomic_cas({0}, 0, 1)", "any"),
        ("{0}.store([0], 1)", "any"),
        ("tl.debug_barrier()", "any"),
        ("tl.device_print('x', {0})", "any"),
        ("tl.inline_asm_elementwise('', '=r,r', [{0}], dtype=tl.int32, is_pure=False, pack=1)", "any"),
        ("tl.inline_asm_elementwise('', '=r,r', [{0}], dtype=tl.int32, is_pure=True, pack=1)", "none"),
        ("tl.inline_asm_elementwise('', '=r,r', [{0}], dtype=tl.int32, is_pure={0}, pack=1)", "any"),
        ("unknown({0})", "any"),
        ("tl.extra.cuda.globaltimer()", "any"),
        ("(lambda: tl.store({0}, 1))()", "any"),
    ],
)
def test_what_source_may_do(text: str, effect: str) -> None:
    assert effect_of_text(text.format("value")) == effect


# --- products -----------------------------------------------------------------------------------------------------------


def product_between(x, w, y, flags, sem):
    """A product of a computed operand, whose rows begin anywhere, after an acquire and before a release."""
    for a, b in hl.tile([x.size(0), w.size(1)]):
        if sem != "relaxed":
            hl.atomic_add(flags, [0], 1, sem="acquire")
        acc = hl.zeros([a, b])
        for c in hl.tile(x.size(1)):
            acc = hl.dot(x[a, c], (w[c, b] * 2).to(x.dtype), acc=acc)
        y[a, b] = acc
        if sem != "relaxed":
            hl.atomic_add(flags, [1], 1, sem="release")


@pytest.mark.parametrize("sem", ["acq_rel", "relaxed"])
def test_no_kernel_in_front_reads_past_an_acquire(sem: str) -> None:
    half = x(301, 1003, dtype=torch.float16)
    args = (half, x(1003, 517, dtype=torch.int8), x(301, 517), x(4, dtype=torch.int32), sem)
    bound = helion.kernel(product_between).bind(args, target="h100")
    analysis, rng, kernels = bound._analysis, random.Random(3), set()
    keys = [
        key for key in ("precompute_operands", "pack_operands", "transpose_operands") if key in bound.default_config()
    ]
    wished = [{**bound.default_config(), key: True} for key in keys]
    for config in (*wished, *(bound.config_spec.random(rng) for _ in range(20))):
        program = analysis.code(analysis.space.normalize(dict(config))).plan.program
        kernels.add(len(program.roots))
        if sem != "relaxed":
            assert between_fences(program) == between_fences(analysis.program)
            assert not unordered(program)
    assert (max(kernels) > 1) == (sem == "relaxed"), "only a kernel without fences is taken apart"
