"""What the host function makes and hands to the kernel: tensors, layouts of shared memory, TMA descriptors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..plan.counts import counts
from ..plan.records import GemmPlan
from .setups import dsl, mma_arguments


@dataclass(frozen=True, kw_only=True)
class HostObjects:
    """Lines of the host function, and what of them becomes a parameter of the kernel: (name, annotation)."""

    lines: tuple[str, ...]
    parameters: tuple[tuple[str, str], ...]


def _operand_tensor(name: str, lines: int, k: int, pitch: int, k_major: bool) -> str:
    stride = f"({pitch}, 1)" if k_major else f"(1, {pitch})"
    return f"matrix_{name} = cute.make_tensor({name}, cute.make_layout(({lines}, {k}), stride={stride}))"


def _operands(plan: GemmPlan) -> list[str]:
    problem = plan.problem
    return [
        _operand_tensor("a", problem.m, problem.k, problem.a_pitch, problem.a_major == "k"),
        _operand_tensor("b", problem.n, problem.k, problem.b_pitch, problem.b_major == "k"),
    ]


def _parameters(*names: str) -> tuple[tuple[str, str], ...]:
    parameters = [("tiled_mma", "cute.TiledMma")] if "a" in names else []
    for name in names:
        parameters += [
            (f"tma_{name}", "cute.CopyAtom"),
            (f"tensor_{name}", "cute.Tensor"),
            (f"layout_{name}", "cute.ComposedLayout"),
        ]
    return tuple(parameters)


def _wgmma(plan: GemmPlan) -> HostObjects:
    m, n, k = plan.tile
    operand = dsl(plan.problem.operand_dtype)
    lines = [*_operands(plan), f"tiled_mma = hopper.make_trivial_tiled_mma({mma_arguments(plan, n)})"]
    for name, extent, major, multicast in (
        ("a", m, plan.problem.a_major, counts(plan).a_multicast),
        ("b", n, plan.problem.b_major, counts(plan).b_multicast),
    ):
        order = "ROW_MAJOR" if major == "k" else "COL_MAJOR"
        op = "CopyBulkTensorTileG2SMulticastOp" if multicast > 1 else "CopyBulkTensorTileG2SOp"
        lines += [
            f"layout_{name} = hopper.make_smem_layout_{name}("
            f"LayoutEnum.{order}, ({m}, {n}, {k}), {operand}, {plan.ab_stages})",
            f"tma_{name}, tensor_{name} = cpasync.make_tiled_tma_atom(",
            f"    cpasync.{op}(),",
            f"    matrix_{name},",
            f"    cute.select(layout_{name}, mode=[0, 1]),",
            f"    ({extent}, {k}),",
            f"    {multicast},",
            ")",
        ]
    return HostObjects(lines=tuple(lines), parameters=_parameters("a", "b"))


def _umma(plan: GemmPlan) -> HostObjects:
    m, n, k = plan.tile
    operand = dsl(plan.problem.operand_dtype)
    group = "TWO" if plan.ctas_per_mma == 2 else "ONE"
    lines = [
        *_operands(plan),
        f"tiled_mma = blackwell.make_trivial_tiled_mma({mma_arguments(plan, n)})",
        f"cluster_shape = ({plan.ctas_per_mma}, {plan.cluster_tiles[0]}, {plan.cluster_tiles[1]}, 1)",
    ]
    for name, multicast in (("a", counts(plan).a_multicast), ("b", counts(plan).b_multicast)):
        op = "CopyBulkTensorTileG2SMulticastOp" if multicast > 1 else "CopyBulkTensorTileG2SOp"
        lines += [
            f"layout_{name} = blackwell.make_smem_layout_{name}(tiled_mma, ({m}, {n}, {k}), {operand}, {plan.ab_stages})",
            f"tma_{name}, tensor_{name} = cute.nvgpu.make_tiled_tma_atom_{name.upper()}(",
            f"    cpasync.{op}(tcgen05.CtaGroup.{group}),",
            f"    matrix_{name},",
            f"    cute.slice_(layout_{name}, (None, None, None, 0)),",
            f"    ({m}, {n}, {k}),",
            "    tiled_mma,",
            "    cluster_shape,",
            ")",
        ]
    return HostObjects(lines=tuple(lines), parameters=_parameters("a", "b"))


def _row_tiles(plan: GemmPlan, name: str, dtype: str, pitch: int, stages: int, op: str) -> list[str]:
    """A matrix of D's shape that moves in sub-tiles."""
    library = "hopper" if plan.unit == "wgmma" else "blackwell"
    tile = f"({plan.cta_tile[0]}, {plan.epilogue_n})"
    return [
        f"matrix_{name} = cute.make_tensor("
        f"{name}, cute.make_layout(({plan.problem.m}, {plan.problem.n}), stride=({pitch}, 1)))",
        f"layout_{name} = {library}.make_smem_layout_epi({dsl(dtype)}, LayoutEnum.ROW_MAJOR, {tile}, {stages})",
        f"tma_{name}, tensor_{name} = cpasync.make_tiled_tma_atom(",
        f"    cpasync.{op}(), matrix_{name}, cute.select(layout_{name}, mode=[0, 1]), {tile}",
        ")",
    ]


def _output(plan: GemmPlan) -> HostObjects:
    problem = plan.problem
    stages = plan.teams * plan.store_stages
    lines = _row_tiles(plan, "d", problem.output_dtype, problem.d_pitch, stages, "CopyBulkTensorTileS2GOp")
    return HostObjects(lines=tuple(lines), parameters=_parameters("d"))


def _residuals(plan: GemmPlan) -> HostObjects:
    lines: list[str] = []
    names = []
    for operand in plan.problem.epilogue.of_kind("exact"):
        names.append(operand.label)
        lines += _row_tiles(
            plan, operand.label, operand.dtype, operand.pitch, plan.residual_stages, "CopyBulkTensorTileG2SOp"
        )
    return HostObjects(lines=tuple(lines), parameters=_parameters(*names))


HOST: Mapping[str, Callable[[GemmPlan], HostObjects]] = {
    "wgmma": _wgmma,
    "umma": _umma,
    "output": _output,
    "residuals": _residuals,
}
