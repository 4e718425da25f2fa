"""Bits of dropout that are drawn behind the MMAs: the printed code, executed for threads, and faults that are planted."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion._support.philox import philox, uniform
from helion.backends.cute.codegen import epilogue as printed
from helion.backends.cute.codegen.elements import drawn as code
from helion.backends.cute.codegen.module import build
from helion.backends.cute.codegen.setups import rows_of
from helion.backends.cute.plan.passes import drawn, draws
from helion.backends.cute.plan.records import GemmPlan
from helion.backends.cute.roles.edits import rewrite
from helion.backends.cute.roles.elements.drawn import Draw, StartDraws
from helion.backends.cute.roles.grammar import KernelProgram, KLoop, Step, SubtileLoop, TileLoop
from helion.backends.cute.roles.programs import kernel_program
from helion.backends.cute.verify.state import Fault
from helion.backends.cute.verify.verify import verify

SEED, SHARE = 7, 0.3
PING_PONG = {"block_sizes": [128, 128, 64], "wgmma_pingpong": True}
TILES = (
    PING_PONG,
    {"block_sizes": [128, 192, 64], "wgmma_epilogue_columns": 32},
    {"block_sizes": [64, 256, 64], "wgmma_epilogue_columns": 64, "wgmma_pingpong": True},
    {"block_sizes": [256, 64, 64], "wgmma_epilogue_columns": 16},
    {"block_sizes": [64, 32, 64], "wgmma_epilogue_columns": 8},
)


@helion.kernel(backend="cute", static_shapes=True)
def dropped(x: torch.Tensor, w: torch.Tensor, share: float, seed: int) -> torch.Tensor:
    (m, k), n = x.size(), w.size(0)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            acc = hl.dot(x[i, d], w[j, d].T, acc=acc)
        out[i, j] = torch.where(share <= hl.rand([i, j], seed=seed), acc, 0.0).to(x.dtype)
    return out


@helion.kernel(backend="cute", static_shapes=True)
def dropped_twice(x: torch.Tensor, w: torch.Tensor, share: float, seed: int) -> torch.Tensor:
    (m, k), n = x.size(), w.size(0)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            acc = hl.dot(x[i, d], w[j, d].T, acc=acc)
        kept = torch.where(hl.rand([i, j], seed=seed) > 0.25, acc, 0.0)
        out[i, j] = torch.where(hl.rand([i, j], seed=seed + 1) < share, -1.0, kept).to(x.dtype)
    return out


@helion.kernel(backend="cute", static_shapes=True)
def rounded_at_random(x: torch.Tensor, w: torch.Tensor, share: float, seed: int) -> torch.Tensor:
    """The random numbers themselves are added."""
    (m, k), n = x.size(), w.size(0)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            acc = hl.dot(x[i, d], w[j, d].T, acc=acc)
        out[i, j] = (acc + share * hl.rand([i, j], seed=seed)).to(x.dtype)
    return out


@helion.kernel(backend="cute", static_shapes=True)
def dropped_by_sums(x: torch.Tensor, w: torch.Tensor, share: float, seed: int) -> torch.Tensor:
    """The bound is a number of each element."""
    (m, k), n = x.size(), w.size(0)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            acc = hl.dot(x[i, d], w[j, d].T, acc=acc)
        out[i, j] = torch.where(hl.rand([i, j], seed=seed) > share * acc, acc, 0.0).to(x.dtype)
    return out


def plan_of(
    kernel: helion.Kernel,
    config: dict[str, Any] | None,
    m: int = 300,
    n: int = 328,
    k: int = 1024,
    target: str = "h200",
) -> GemmPlan:
    x, w = (torch.empty(size, k, dtype=torch.bfloat16, device="meta") for size in (m, n))
    return kernel.bind((x, w, SHARE, SEED), target=target).plan(config and helion.Config(**config)).gemm


class Words:
    """Registers of 32 bits."""

    def __init__(self, count: int, _: object) -> None:
        self.held = [0] * count

    def fill(self, value: int) -> None:
        self.held = [value] * len(self.held)

    def __getitem__(self, at: int) -> int:
        return self.held[at]

    def __setitem__(self, at: int, value: int) -> None:
        self.held[at] = (int(value) + 2**31) % 2**32 - 2**31


def names_of(plan: GemmPlan, seed: int) -> dict[str, Any]:
    """Return names of the printed code, as one thread of tile (1, 1) has them."""
    ranges = {name: lambda *bounds, **_: range(*bounds) for name in ("range", "range_constexpr")}
    cutlass = types.SimpleNamespace(
        **ranges, Int32=int, Int64=int, Float32=float, select_=lambda condition, x, y: x if condition else y
    )
    cute = types.SimpleNamespace(make_rmem_tensor=Words)
    numbers = {each.label: SHARE for each in plan.problem.epilogue.of_kind("number")}
    seeds = {each.label: seed + at for at, each in enumerate(plan.problem.epilogue.of_kind("uniform"))}
    drawing = {"uniform": lambda seed, offset, wide: _uniform(seed, offset)}
    return {"cutlass": cutlass, "cute": cute, **numbers, **seeds, **drawing, "tile_m": 1, "tile_n": 1}


_KNOWN: dict[tuple[int, int], float] = {}


def _uniform(seed: int, offset: int) -> float:
    if (seed, offset) not in _KNOWN:
        _KNOWN[seed, offset] = float(uniform(philox(torch.tensor(seed), torch.tensor([offset]))[0])[0])
    return _KNOWN[seed, offset]


def threads(plan: GemmPlan) -> Iterator[dict[str, int]]:
    for thread in (0, 37, plan.consumer_warps * 32 - 1):
        yield {"store_warp": thread // 32, "lane": thread % 32, "store_thread": thread}


def steps_of(plan: GemmPlan) -> tuple[StartDraws, Draw | None, range]:
    """Return the steps that draw, and their K tiles."""
    role = next(role for role in kernel_program(plan).roles if role.name.startswith("store"))
    (loop,) = (step for step in role.program if isinstance(step, TileLoop))
    (start,) = (step for step in loop.body if isinstance(step, StartDraws))
    for step in loop.body:
        if isinstance(step, KLoop) and (inner := [each for each in step.body if isinstance(each, Draw)]):
            return start, inner[0], range(step.first, step.stop)  # type: ignore[attr-defined]
    return start, None, range(0)


@pytest.mark.parametrize("k", [1024, 1096, 4096])
@pytest.mark.parametrize("config", TILES)
@pytest.mark.parametrize("kernel", [dropped, dropped_twice])
def test_bits_are_those_of_their_elements(kernel: helion.Kernel, config: dict[str, Any], k: int) -> None:
    """Each thread has the bit of a comparison at the place of each of its elements, with the seed of the comparison."""
    plan = plan_of(kernel, config, k=k)
    start, draw, k_tiles = steps_of(plan)
    assert start.count + (draw.count * len(k_tiles) if draw else 0) == draws(plan) and draw is not None
    epilogue, rows = plan.problem.epilogue, rows_of(plan)
    for thread in list(threads(plan))[: 3 if k == 1024 else 1]:
        names = {**names_of(plan, SEED), **thread}
        exec("\n".join(code.lines(plan, start, rows)), names)
        for names["k_tile"] in k_tiles:
            assert draw is not None
            exec("\n".join(code.lines(plan, draw, rows)), names)
        for names["subtile"] in range(plan.subtiles):
            exec("\n".join(printed.positions(plan, rows)), names)
            for names["i"] in range(printed.fragment(plan).values):
                for value in drawn(plan):
                    made = epilogue.instruction(value)
                    parts = [
                        printed.literal(each)
                        if not isinstance(each, int)
                        else printed.uniform(plan, epilogue.operands[each - 1])
                        if epilogue.operands[each - 1].kind == "uniform"
                        else epilogue.operands[each - 1].label
                        for each in made.arguments
                    ]
                    wanted = eval(printed.EXPRESSIONS[made.op](*parts), dict(names))
                    assert eval(printed.drawn_bit(plan, value), dict(names)) == wanted


@pytest.mark.parametrize("config", TILES)
def test_numbers_are_drawn_before_the_epilogue(config: dict[str, Any]) -> None:
    text = build(plan_of(dropped, config))
    before, after = text.split("for subtile in", 1)
    assert "draw_bit = " in before and "uniform(random" in before and "uniform(random" not in after


@pytest.mark.parametrize(
    ("kernel", "config", "target"),
    [
        (rounded_at_random, PING_PONG, "h200"),
        (dropped_by_sums, PING_PONG, "h200"),
        (dropped, {"block_sizes": [64, 128, 64], "wgmma_k_splits": 2}, "h200"),
        (dropped, {"block_sizes": [64, 128, 64], "wgmma_grid_splits": 2}, "h200"),
        (dropped, None, "sm_100"),
    ],
)
def test_other_plans_draw_in_the_epilogue(kernel: helion.Kernel, config: dict[str, Any] | None, target: str) -> None:
    """Of random numbers that other values need, with bounds of each element, of other mainloops and short ones."""
    plan = plan_of(kernel, config, target=target)
    assert drawn(plan) == ()
    text = build(plan)
    assert "draw_at" not in text and "uniform(random" in text[text.index("for subtile in") :]


def test_short_mainloops_draw_in_the_epilogue() -> None:
    """There are 128 elements of a thread, and 8 bits in a K tile."""
    assert [bool(drawn(plan_of(dropped, PING_PONG, k=k))) for k in (64, 960, 968, 1024)] == [False, False, True, True]


def test_wide_tiles_are_first_where_the_loop_draws() -> None:
    """Random numbers in an epilogue would delay the next tile, the more the larger it is."""
    x, w = (torch.empty(size, 1024, dtype=torch.bfloat16, device="meta") for size in (8192, 4096))
    bound = dropped.bind((x, w, SHARE, SEED), target="h200")
    assert drawn(bound.plan().gemm) and bound.default_config()["block_sizes"] == [128, 128, 64]


def _without(kind: type[Step]) -> Any:
    return lambda step: () if isinstance(step, kind) else (step,)


def _planted(program: KernelProgram, rule: Any) -> KernelProgram:
    roles = tuple(dataclasses.replace(role, program=rewrite(role.program, rule)) for role in program.roles)
    return dataclasses.replace(program, roles=roles)


def _moved(count: int) -> Any:
    """Draw the first bits after the sub-tiles, as those of the next tile."""
    return lambda step: (
        (step, StartDraws(count)) if isinstance(step, SubtileLoop) else () if isinstance(step, StartDraws) else (step,)
    )


@pytest.mark.parametrize("config", TILES[:2])
def test_planted_faults_are_found(config: dict[str, Any]) -> None:
    plan = plan_of(dropped, config)
    program, (start, _, _) = kernel_program(plan), steps_of(plan)
    verify(program)
    for rule, message in (
        (_without(Draw), "draws .* bits of a tile"),
        (_without(StartDraws), "draws .* bits of a tile|after those of None"),
        (lambda s: (dataclasses.replace(s, after=s.after + 4),) if isinstance(s, Draw) else (s,), "are drawn after"),
        (lambda s: (s, s) if isinstance(s, Draw) else (s,), "draws .* bits of a tile"),
        (lambda s: (dataclasses.replace(s, stop=99),) if getattr(s, "stop", None) else (s,), "past that of"),
        (_moved(start.count), "has the bits of|are drawn after"),
    ):
        with pytest.raises(Fault, match=message):
            verify(_planted(program, rule))


@pytest.mark.prove
@pytest.mark.parametrize("k", [1024, 3072])
def test_binaries_draw_once_and_spill_nothing(k: int) -> None:
    from helion.backends.cute.toolchain.offline import compile_text

    plan = plan_of(dropped, PING_PONG, m=4096, n=768, k=k)
    ptx = compile_text(build(plan), plan).ptx
    # ten rounds of two products for each of the numbers that are drawn at a time, in a loop each
    start, draw, _ = steps_of(plan)
    at_a_time = (code.UNROLLED if start.count else 0) + (draw.count if draw else 0)
    assert ".local" not in ptx and ptx.count("mul.wide.u32") <= 2 * 20 * (at_a_time + 1)
