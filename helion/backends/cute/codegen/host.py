"""Objects that the host function passes to the kernel: tensors, shared-memory layouts, TMA descriptors."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...._support.records import dataclass
from ..plan.copied import Copied
from ..plan.counts import counts, raw_operands
from ..plan.dtypes import per_byte
from ..plan.epilogue import Parts
from ..plan.operands import gathered
from ..plan.records import GemmPlan, Multiplicand
from . import copied, groups, raw
from .numbers import batch_modes, extent, in_groups_of_k, number
from .setups import blackwell_mma, by_tma, dsl, hopper_mma, is_a, mma_arguments, operand_dsl, second_b, tile_k

LARGEST_SIDE = 256
"""The largest tile extent along M and N."""
LOAD, STORE, ADD = "CopyBulkTensorTileG2SOp", "CopyBulkTensorTileS2GOp", "CopyReduceBulkTensorTileS2GOp"
"""The DSL's copies from and to global memory by TMA, and additions to it."""


@dataclass(frozen=True, kw_only=True)
class HostObjects:
    """Lines of the host function, and the parameters of the kernel among them: (name, annotation)."""

    lines: tuple[str, ...]
    parameters: tuple[tuple[str, str], ...]


def _operand_tensor(plan: GemmPlan, operand: Multiplicand) -> str:
    held, name, rows = plan.problem.operand_dtype, operand.label, operand.base == "a"
    pointer = f"cute.recast_ptr({name}, dtype={operand_dsl(plan)})" if dsl(held) != operand_dsl(plan) else name
    packed = per_byte(held)
    lines = number(plan, f"pitch_{name}", operand.pitch * packed)
    k_major = (plan.problem.a_major if rows else plan.problem.b_major) == "k"
    stride = f"({lines}, 1" if k_major else f"(1, {lines}"
    most = LARGEST_SIDE if operand.absent else 1  # no other tile coordinate exceeds K
    k = _bounded(str(operand.k * packed), most) if operand.term or packed > 1 else _extent(plan, "k", most)
    shape = f"({_extent(plan, 'm' if rows else 'n')}, {k}"
    shape, stride = _with_batch(plan, name, shape, stride)
    if in_groups_of_k(plan):
        shape, stride = groups.operand(plan, lines, _extent(plan, "m" if rows else "n"))
    return f"matrix_{name} = cute.make_tensor({pointer}, cute.make_layout({shape}, stride={stride}))"


def _with_batch(plan: GemmPlan, name: str, shape: str, stride: str) -> tuple[str, str]:
    """Append the dimensions of the batch to the layout of a tensor that has some."""
    modes = batch_modes(plan, name)
    sizes, strides = ("".join(f", {mode[at]}" for mode in modes) for at in (0, 1))
    return f"{shape}{sizes})", f"{stride}{strides})"


def _extent(plan: GemmPlan, side: str, most: int = LARGEST_SIDE) -> str:
    """Return an extent as the layouts of TMA descriptors need it: a runtime number where one tile may cover it.

    The DSL simplifies constant dimensions. A dimension with one tile would vanish, so that elements past the end alias
    the start. A dimension with one element would give instructions fewer coordinates than their descriptors have.
    """
    return _bounded(extent(plan, side), most)


def _bounded(size: str, most: int) -> str:
    return f"cutlass.Int32({size})" if size.isdigit() and int(size) <= most else size


def _operands(plan: GemmPlan) -> list[str]:
    loaded = by_tma(plan)
    operands = [each for each in plan.problem.multiplicands if each.label in loaded]
    return [*copied.tensors(plan), *(_operand_tensor(plan, each) for each in operands)]


def _parameters(*names: str) -> tuple[tuple[str, str], ...]:
    parameters = [("tiled_mma", "cute.TiledMma")] if "a" in names else []
    for name in names:
        parameters += [
            (f"tma_{name}", "cute.CopyAtom"),
            (f"tensor_{name}", "cute.Tensor"),
            (f"layout_{name}", "cute.ComposedLayout"),
        ]
    return tuple(parameters)


def _matrix_parameters(plan: GemmPlan) -> tuple[tuple[str, str], ...]:
    """Return the parameters of A and B, and of other operands, which share their stages. ``layout_part`` covers one of
    several B."""
    more = [("layout_part", "cute.ComposedLayout")] if second_b(plan) else []
    for each in plan.problem.multiplicands[2:]:
        more += [(f"tma_{each.label}", "cute.CopyAtom"), (f"tensor_{each.label}", "cute.Tensor")]
    more += [(name, "cute.Tensor") for each in plan.problem.copied for name in copied.source_names(each)]
    if gathered(plan) is not None:
        more += [("layout_gathered", "cute.ComposedLayout"), ("gathered_lines", "cute.Tensor")]
    gone = {f"{what}_{each.operand}" for each in plan.problem.copied for what in ("tma", "tensor")}
    gone |= {"layout_a"} if plan.converts else set()
    return tuple(each for each in (*_parameters("a", "b"), *more) if each[0] not in gone)


def _multicasts(plan: GemmPlan) -> tuple[tuple[str, str, int], ...]:
    """Return (operand, the layout that TMA fills, CTAs that share it) for each operand."""
    part = "layout_part" if second_b(plan) else "layout_b"
    shared = counts(plan).b_multicast
    of_a = ("layout_a", counts(plan).a_multicast)
    return tuple((name, *(of_a if is_a(plan, name) else (part, shared))) for name in by_tma(plan))


def _copy(multicast: int) -> str:
    return "CopyBulkTensorTileG2SMulticastOp" if multicast > 1 else LOAD


def _wgmma(plan: GemmPlan) -> HostObjects:
    m, n, k = plan.tile
    lines = [*_operands(plan), f"tiled_mma = {hopper_mma(plan, plan.sum_columns)}"]
    lines += [] if plan.converts else [f"layout_a = {_wgmma_layout(plan, 'a', n, 1)}"]
    lines.append(f"layout_b = {_wgmma_layout(plan, 'b', plan.sum_columns, 1)}")
    if plan.products > 1:
        lines.append(f"layout_part = {_wgmma_layout(plan, 'b', n, plan.products)}")
    for name, layout, multicast in _multicasts(plan):
        lines += [
            f"tma_{name}, tensor_{name} = cpasync.make_tiled_tma_atom(",
            f"    cpasync.{_copy(multicast)}(),",
            f"    matrix_{name},",
            f"    cute.select({layout}, mode=[0, 1]),",
            f"    ({m if is_a(plan, name) else n}, {k}),",
            f"    {multicast},",
            ")",
        ]
    return HostObjects(lines=tuple(lines), parameters=_matrix_parameters(plan))


def _wgmma_layout(plan: GemmPlan, name: str, columns: int, parts: int) -> str:
    """Return the layout of a pipeline whose stages have this many parts."""
    order = "ROW_MAJOR" if (plan.problem.a_major if name == "a" else plan.problem.b_major) == "k" else "COL_MAJOR"
    tile = f"({plan.tile[0]}, {columns}, {plan.tile[2]})"
    return f"hopper.make_smem_layout_{name}(LayoutEnum.{order}, {tile}, {operand_dsl(plan)}, {plan.ab_stages * parts})"


def _gathered(plan: GemmPlan, picked: Copied) -> list[str]:
    """Return the TMA objects of A, whose rows TMA gathers: the layout of a stage is that of the matrix unit."""
    (rows, columns, k), source = plan.tile, picked.sources[0]
    tile = f"({rows}, {columns}, {k})"
    return [
        f"matrix_a = cute.make_tensor(a, cute.make_layout(({source.picked}, {plan.problem.k}), stride=({source.pitch}, 1)))",
        f"gathered_lines = cute.make_tensor({copied.pointers_of(picked)[-1]},"
        f" cute.make_layout(({plan.problem.m}, {plan.problem.k}), stride=(1, 0)))",
        f"layout_gathered = hopper.make_smem_layout_a(LayoutEnum.ROW_MAJOR, {tile}, {operand_dsl(plan)}, {plan.ab_stages})",
        "tma_a, tensor_a = cpasync.make_tiled_tma_atom(",
        "    cpasync.CopyBulkTensor2DGather4G2SOp(), matrix_a, cute.select(layout_gathered, mode=[0, 1]),",
        f"    ({rows}, {k}), gmem_coord_tensor=gathered_lines,",
        ")",
    ]


def _umma(plan: GemmPlan) -> HostObjects:
    m, n, k = *plan.tile[:2], tile_k(plan)
    operand = operand_dsl(plan)
    group = "TWO" if plan.ctas_per_mma == 2 else "ONE"
    lines = [
        *_operands(plan),
        f"tiled_mma = {blackwell_mma(plan)}",
        f"cluster_shape = ({plan.ctas_per_mma}, {plan.cluster_tiles[0]}, {plan.cluster_tiles[1]}, 1)",
        f"layout_a = blackwell.make_smem_layout_a(tiled_mma, ({m}, {n}, {k}), {operand}, {plan.ab_stages})",
        f"layout_b = blackwell.make_smem_layout_b(tiled_mma, ({m}, {plan.sum_columns}, {k}), {operand}, {plan.ab_stages})",
    ]
    mma_b = "tiled_mma"
    if plan.products > 1:
        mma_b = "part_mma"
        lines += [
            f"part_mma = blackwell.make_trivial_tiled_mma({mma_arguments(plan, n)})",
            f"layout_part = blackwell.make_smem_layout_b("
            f"part_mma, ({m}, {n}, {k}), {operand}, {plan.ab_stages * plan.products})",
        ]
    picked = gathered(plan)
    if picked is not None:
        lines += _gathered(plan, picked)
    for name, layout, multicast in _multicasts(plan):
        if picked is not None and is_a(plan, name):
            continue
        lines += [
            f"tma_{name}, tensor_{name} = cute.nvgpu.make_tiled_tma_atom_{'A' if is_a(plan, name) else 'B'}(",
            f"    cpasync.{_copy(multicast)}(tcgen05.CtaGroup.{group}),",
            f"    matrix_{name},",
            f"    cute.slice_({layout}, (None, None, None, 0)),",
            f"    ({m}, {n}, {k}),",
            f"    {'tiled_mma' if is_a(plan, name) else mma_b},",
            "    cluster_shape,",
            ")",
        ]
    return HostObjects(lines=tuple(lines), parameters=_matrix_parameters(plan))


def _row_tiles(
    plan: GemmPlan,
    name: str,
    dtype: str,
    pitch: int,
    box: tuple[int, int],
    stages: int,
    copy: str,
    turned: int = 0,
    parts: tuple[Parts | None, Parts | None] = (None, None),
) -> list[str]:
    """Return the TMA objects of a matrix of D's shape, moved in tiles of shape ``box`` by an operation.

    If it is contiguous along M, a column begins ``turned`` elements after the one before. Its rows and columns may be in
    ``parts``.
    """
    library = "hopper" if plan.unit == "wgmma" else "blackwell"
    lines, first = number(plan, f"pitch_{name}", pitch), name
    order = "COL_MAJOR" if turned else "ROW_MAJOR"
    if copy != LOAD and plan.problem.groups is not None:
        first, shape, stride = groups.matrix(plan, name, lines, _extent(plan, "n"))
    elif any(parts):
        sides = ((plan.problem.m, pitch, parts[0]), (plan.problem.n, 1, parts[1]))
        shape, stride = (f"({', '.join(each)})" for each in zip(*(_in_parts(*side) for side in sides), strict=True))
    else:
        extents = f"({_extent(plan, 'm')}, {_extent(plan, 'n')}"
        shape, stride = _with_batch(plan, name, extents, f"(1, {turned}" if turned else f"({lines}, 1")
    return [
        f"matrix_{name} = cute.make_tensor({first}, cute.make_layout({shape}, stride={stride}))",
        f"layout_{name} = {library}.make_smem_layout_epi({dsl(dtype)}, LayoutEnum.{order}, {box}, {stages})",
        f"tma_{name}, tensor_{name} = cpasync.make_tiled_tma_atom(",
        f"    cpasync.{copy}(), matrix_{name}, cute.select(layout_{name}, mode=[0, 1]), {box}",
        ")",
    ]


def _in_parts(extent: int, step: int, parts: Parts | None) -> tuple[str, str]:
    """Return the shape and the strides of a dimension of so many elements, ``step`` from one to the next in a part."""
    if parts is None:
        return _bounded(str(extent), LARGEST_SIDE), str(step)
    count = extent // parts.size
    return f"({parts.size}, {_bounded(str(count), LARGEST_SIDE // parts.size)})", f"({step}, {parts.step})"


def _output(plan: GemmPlan) -> HostObjects:
    stages = plan.teams * plan.store_stages * plan.storing_warps
    lines: list[str] = []
    names = []
    for output in plan.problem.outputs_of("exact"):
        names.append(plan.problem.label_of(output))
        copy = ADD if output.adds else STORE
        turned = output.column_pitch if output.turned else 0
        parts = output.rows, output.columns
        lines += _row_tiles(plan, names[-1], output.dtype, output.pitch, plan.store_box, stages, copy, turned, parts)
    return HostObjects(lines=tuple(lines), parameters=_parameters(*names))


def _residuals(plan: GemmPlan) -> HostObjects:
    lines: list[str] = []
    names = []
    for operand in plan.problem.epilogue.of_kind("exact"):
        names.append(operand.label)
        box, stages = (plan.cta_tile[0], plan.epilogue_n), plan.residual_stages
        turned = operand.column_pitch if operand.turned else 0
        lines += _row_tiles(plan, operand.label, operand.dtype, operand.pitch, box, stages, LOAD, turned)
    return HostObjects(lines=tuple(lines), parameters=_parameters(*names))


def _raw_tiles(plan: GemmPlan) -> HostObjects:
    extents = {"m": _extent(plan, "m"), "n": _extent(plan, "n"), "k": _extent(plan, "k", 1)}
    parameters = [
        parameter
        for copied in raw_operands(plan)
        for parameter in (
            (f"tma_raw_{copied.operand}", "cute.CopyAtom"),
            (f"tensor_raw_{copied.operand}", "cute.Tensor"),
            (f"layout_raw_{copied.operand}", "cute.ComposedLayout" if plan.converts else "cute.Layout"),
        )
    ]
    return HostObjects(lines=tuple(raw.host(plan, extents)), parameters=tuple(parameters))


HOST: Mapping[str, Callable[[GemmPlan], HostObjects]] = {
    "wgmma": _wgmma,
    "umma": _umma,
    "output": _output,
    "residuals": _residuals,
    "raw_tiles": _raw_tiles,
}
