"""The views and fragments that roles make before their loops, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..plan.counts import counts, in_fragments, leaves_cache
from ..plan.dtypes import DTYPES, per_byte
from ..plan.epilogue import EpilogueOutput
from ..plan.operands import gathered
from ..plan.records import WARPGROUP_THREADS, GemmPlan, Multiplicand
from ..plan.shared import lines_bytes, lines_shape, staged_as, stores_lines
from ..roles.grammar import Role
from . import copied, exchange, raw, rows, scales, workspace
from .attention.formula import uniform_function
from .epilogue import dealt_columns, fragment, keeps_integers, suffixed, sum_dsl, values_of
from .numbers import batch_modes, in_groups_of_k, of_team, tile_of
from .slices import sliced


def dsl(dtype: str) -> str:
    """Return the DSL's name of `dtype`."""
    return f"cutlass.{DTYPES[dtype].dsl}"


def operand_dsl(plan: GemmPlan) -> str:
    """Return the DSL's name of the MMA's operand type for A and B."""
    dtype = plan.problem.operand_dtype
    return f"cutlass.{DTYPES[dtype].operand or DTYPES[dtype].dsl}"


def tile_k(plan: GemmPlan) -> int:
    """Return the numbers along K of a tile; a plan counts the bytes of 4-bit ones."""
    return plan.tile[2] * per_byte(plan.problem.operand_dtype)


def stage_of(plan: GemmPlan, role: Role) -> str:
    """Return the store buffer of a sub-tile, among those of the role's consumer group."""
    number = "subtile" if plan.splits == 1 else f"subtile // {plan.splits}"
    return f"{of_team(plan, role, plan.store_stages)}{number} % {plan.store_stages}"


def rows_of(plan: GemmPlan) -> str:
    """Return the index of the CTA's rows among those of all CTAs along M."""
    return "tile_m" if plan.ctas_per_mma == 1 else f"(tile_m * {plan.ctas_per_mma} + place[0])"


def _modes(plan: GemmPlan, name: str) -> str:
    """Return the tile coordinates of an operand, or an output: all of them.

    After rows and columns there are those of the batch, or the distance by which stores to a group of rows are moved. Loads
    of a group of K have that too.
    """
    stored = plan.problem.groups is not None and name in map(plan.problem.label_of, plan.problem.outputs_of("exact"))
    moved = stored or (in_groups_of_k(plan) and name in by_tma(plan))
    more = 1 if moved else len(batch_modes(plan, name))
    return f"(None, None{', None' * more})"


def mma_arguments(plan: GemmPlan, columns: int) -> str:
    """Return the arguments of the DSL's constructor of a tiled MMA with `columns`."""
    operand = operand_dsl(plan)
    majors = f"{major(plan.problem.a_major)}, {major(plan.problem.b_major)}"
    if plan.unit == "wgmma":
        return f"{operand}, {operand}, {majors}, {sum_dsl(plan)}, ({plan.warpgroups}, 1, 1), (64, {columns})"
    group = "TWO" if plan.ctas_per_mma == 2 else "ONE"
    return f"{operand}, {operand}, {majors}, {sum_dsl(plan)}, tcgen05.CtaGroup.{group}, ({plan.tile[0]}, {columns})"


def hopper_mma(plan: GemmPlan, columns: int) -> str:
    """Return the construction of a tiled MMA of wgmma with `columns`; that of TF32 is ``TF32_MMA``."""
    if plan.problem.operand_dtype == "float32":
        source = ", warpgroup.OperandSource.RMEM" if in_fragments(plan) else ""
        return f"tf32_mma({plan.warpgroups}, {columns}{source})"
    source = ", warpgroup.OperandSource.RMEM" if plan.converts else ""
    return f"hopper.make_trivial_tiled_mma({mma_arguments(plan, columns)}{source})"


def blackwell_mma(plan: GemmPlan) -> str:
    """Return the construction of the tiled MMA of tcgen05, of all accumulators."""
    scales = plan.problem.scales
    if scales is None or not scales.micro:
        return f"blackwell.make_trivial_tiled_mma({mma_arguments(plan, plan.sum_columns)})"
    operand, majors = operand_dsl(plan), f"{major(plan.problem.a_major)}, {major(plan.problem.b_major)}"
    shape, block = f"({plan.tile[0]}, {plan.sum_columns})", scales.k * per_byte(plan.problem.operand_dtype)
    return (
        f"blackwell.make_blockscaled_trivial_tiled_mma({operand}, {operand}, {majors}, {scales.dsl}, {block},"
        f" tcgen05.CtaGroup.ONE, {shape})"
    )


TF32_MMA = (
    "",
    "",
    "class Tf32Op(warpgroup.MmaF16BF16Op):",
    "    def _verify(self) -> None:",
    '        object.__setattr__(self, "shape_mnk", (*self.shape_mnk[:2], 8))',
    "",
    "",
    "def tf32_mma(warpgroups, columns, source=warpgroup.OperandSource.SMEM):",
    "    shape, major = (64, columns, 8), OperandMajorMode.K",
    "    op = Tf32Op(cutlass.TFloat32, cutlass.Float32, shape, source, major, major)",
    "    return cute.make_tiled_mma(cute.make_mma_atom(op), (warpgroups, 1, 1))",
)
"""Definitions of wgmma in TF32, for which the DSL has an atom and no class: one instruction covers 8 elements of K."""


def definitions(plan: GemmPlan) -> tuple[str, ...]:
    """Return the definitions that a module needs after its imports."""
    tf32 = plan.unit == "wgmma" and plan.problem.operand_dtype == "float32"
    drawn = ("", "", *uniform_function()) if plan.problem.epilogue.of_kind("uniform") else ()
    return (*(TF32_MMA if tf32 else ()), *drawn, *copied.definitions(plan))


def major(name: str) -> str:
    return f"OperandMajorMode.{name.upper()}"


def second_b(plan: GemmPlan) -> list[str]:
    """Return the label of a second B, if any."""
    return [operand.label for operand in plan.problem.epilogue.of_kind("product")]


def sums_of(plan: GemmPlan) -> list[str]:
    """Return the registers of the accumulator of each matmul."""
    return ["values", *(f"{label}_values" for label in second_b(plan))]


def by_tma(plan: GemmPlan) -> list[str]:
    """Return the labels of the operands of the matmul that TMA loads."""
    return [each.label for each in plan.problem.multiplicands if plan.problem.copy_of(each.label) is None]


def is_a(plan: GemmPlan, name: str) -> bool:
    """Return whether an operand of the matmul has rows of the output, rather than columns."""
    return plan.problem.multiplicand(name).base == "a"


def _tiles(plan: GemmPlan, name: str, tensor: str) -> str:
    lines = plan.tile[0 if is_a(plan, name) else 1]
    return f"tiles_{name} = cute.local_tile({tensor}, ({lines}, {tile_k(plan)}), {_modes(plan, name)})"


def _partition(plan: GemmPlan, name: str) -> list[str]:
    """Define the TMA views of an operand: the part of a tile that this CTA loads, and its destination. The matrix unit
    of tcgen05 has its own partition of tiles."""
    modes, part = (2, "{tiles}") if plan.unit == "wgmma" else (3, "half_{side}.partition_{side}({tiles})")
    rows, shared_b = is_a(plan, name), "shared_b" if plan.products == 1 else "shared_part"
    sharing = [
        f"place[{2 if rows else 1}]",
        f"cute.make_layout(cute.slice_(cluster_layout, {'(0, 0, None, 0)' if rows else '(0, None, 0, 0)'}).shape)",
    ]
    if rows and not plan.shares_a:
        sharing = ["0", "cute.make_layout(1)"]
    tiles = part.format(side="A" if rows else "B", tiles=f"tiles_{name}")
    return [
        f"to_{name}, from_{name} = cpasync.tma_partition(",
        f"    tma_{name},",
        *(f"    {line}," for line in sharing),
        f"    cute.group_modes({'shared_a' if rows else shared_b}, 0, {modes}),",
        f"    cute.group_modes({tiles}, 0, {modes}),",
        ")",
    ]


def load_views(plan: GemmPlan, name: str, tensor: str) -> list[str]:
    """Define the TMA views of an operand of which ``tensor`` are the coordinates."""
    return [_tiles(plan, name, tensor), *_partition(plan, name)]


def _views(plan: GemmPlan) -> list[str]:
    """Define the TMA views of all operands; with groups of rows, those of A begin with each tile, and with groups of K those
    of all with each K tile."""
    names = [name for name in by_tma(plan) if name != "a" or plan.problem.groups is None]
    names = [] if in_groups_of_k(plan) else names
    names = names if gathered(plan) is None else names[1:]
    lines = [_tiles(plan, name, f"tensor_{name}") for name in names]
    if plan.products > 1:
        lines.append("shared_part = cute.make_tensor(shared_b.iterator, layout_part.outer)")
    lines += [line for name in names for line in _partition(plan, name)]
    lines += _gathered_views(plan) if gathered(plan) is not None else []
    lines += raw.READ_ONCE if any(leaves_cache(plan, name) for name in by_tma(plan)) else []
    if counts(plan).a_multicast > 1:
        lines.append("mask_a = cpasync.create_tma_multicast_mask(cluster_layout, place, mcast_mode=2)")
    if counts(plan).b_multicast > 1:
        lines.append("mask_b = cpasync.create_tma_multicast_mask(cluster_layout, place, mcast_mode=1)")
    return lines


def _wgmma_loads(plan: GemmPlan, role: Role) -> list[str]:
    return _views(plan)


def _gathered_views(plan: GemmPlan) -> list[str]:
    """Define the views of A whose rows TMA gathers, and of their numbers: of each tile, both have the same coordinates."""
    views = [_tiles(plan, "a", "tensor_a"), _tiles(plan, "a", "gathered_lines").replace("tiles_a", "tiles_lines")]
    grouped = (f"cute.group_modes(cute.group_modes({name}, 0, 2), 1, 3)" for name in ("tiles_a", "tiles_lines"))
    return [
        *views,
        "gathered_a = cute.make_tensor(shared_a.iterator, layout_gathered.outer)",
        "to_a, from_a, lines_of_a = cpasync.tma_partition(",
        f"    tma_a, 0, cute.make_layout(1), cute.group_modes(gathered_a, 0, 2), [{', '.join(grouped)}]",
        ")",
    ]


def tile_source(plan: GemmPlan, operand: Multiplicand) -> str:
    """Return the current tile of an operand as TMA reads it; of rows that it gathers, with their numbers."""
    place = tile_of(plan, operand)
    if operand.base == "a" and gathered(plan) is not None:
        return f"[from_a[None, ({place})], lines_of_a[None, ({place})]]"
    return f"from_{operand.label}[None, {place}]"


def _umma_loads(plan: GemmPlan, role: Role) -> list[str]:
    lines = ["half_A = tiled_mma.get_slice(place[0])"]
    if plan.products > 1:
        lines.append(f"part_mma = blackwell.make_trivial_tiled_mma({mma_arguments(plan, plan.tile[1])})")
        lines.append("half_B = part_mma.get_slice(place[0])")
    else:
        lines.append("half_B = half_A")
    return [*lines, *_views(plan)]


def _store_views(plan: GemmPlan, output: EpilogueOutput) -> list[str]:
    """Define the views from registers to a buffer in shared memory, and from there to global memory."""
    label = plan.problem.label_of(output)
    views = tile_views(plan, label, plan.store_box, f"tensor_{label}") if plan.problem.groups is None else []
    if staged_as(plan.problem, output) != output:
        return views
    staged, lines = f"shared_{label}", []
    if plan.warp_stores:  # the same memory as the tile of all warps
        staged, tile = f"staged_{label}", (plan.cta_tile[0], plan.epilogue_n)
        layout = f"hopper.make_smem_layout_epi({dsl(output.dtype)}, LayoutEnum.ROW_MAJOR, {tile}, {plan.store_stages})"
        lines = [f"{staged} = cute.make_tensor(shared_{label}.iterator, {layout}.outer)"]
    copy, thread, part, registers, rounded = (
        suffixed(plan, name, output)
        for name in ("stage_copy", "thread_stage", "stage_part", "stage_registers", "rounded")
    )
    return [
        *lines,
        f"{thread} = {copy}.get_slice(store_thread)",
        f"{part} = {thread}.partition_D({staged})",
        f"{registers} = {copy}.retile({rounded})",
        *views,
    ]


def tile_views(plan: GemmPlan, label: str, box: tuple[int, int], tensor: str, *, stored: bool = True) -> list[str]:
    """Define the TMA views of a matrix of the output's shape, of which ``tensor`` are the coordinates."""
    first, second = ("from", "to") if stored else ("to", "from")
    outputs = {plan.problem.label_of(each): each for each in plan.problem.outputs_of("exact")}
    held = plan.problem.label_of(staged_as(plan.problem, outputs[label])) if label in outputs else label
    return [
        f"tiles_{label} = cute.local_tile({tensor}, ({box[0]}, {box[1]}), {_modes(plan, label)})",
        f"{first}_{label}, {second}_{label} = cpasync.tma_partition(",
        f"    tma_{label}, 0, cute.make_layout(1),"
        f" cute.group_modes(shared_{held}, 0, 2), cute.group_modes(tiles_{label}, 0, 2)",
        ")",
    ]


def _thread_numbers(role: Role) -> list[str]:
    first_warp = role.first_warp
    return [
        f"store_thread = thread - {first_warp * 32}" if first_warp else "store_thread = thread",
        f"store_warp = warp - {first_warp}" if first_warp else "store_warp = warp",
    ]


def _wgmma_sums(plan: GemmPlan, role: Role) -> list[str]:
    return [
        *_thread_numbers(role),
        f"group_layout = cute.make_layout({plan.warpgroups}, stride={WARPGROUP_THREADS})",
        "group_slice = tiled_mma.get_slice(group_layout(store_warp // 4))",
        *_wgmma_fragments(plan),
        f"sums_shape = tiled_mma.partition_shape_C(({plan.tile[0]}, {plan.sum_columns}))",
        f"sums = cute.make_rmem_tensor(sums_shape, {sum_dsl(plan)})",
        *([f"other_sums = cute.make_rmem_tensor(sums_shape, {sum_dsl(plan)})"] if plan.accumulator_stages > 1 else []),
        *(["total = cute.make_rmem_tensor(sums_shape, cutlass.Float32)"] if plan.promote else []),
        f"subtile_mma = {hopper_mma(plan, plan.epilogue_n)}",
        f"subtile_shape = subtile_mma.partition_shape_C(({plan.cta_tile[0]}, {plan.epilogue_n}))",
        *(
            f"{name} = cute.make_rmem_tensor(subtile_shape, cutlass.Float32)"
            for name in (*sums_of(plan), *_more_values(plan))
        ),
        *(line for output in plan.problem.outputs_of("exact") for line in _wgmma_store(plan, output)),
        *strided_registers(plan),
        *(exchange.view(plan) if plan.splits > 1 else []),
        *(workspace.view(plan) if plan.grid_splits > 1 else []),
    ]


def _wgmma_fragments(plan: GemmPlan) -> list[str]:
    """Return the definitions of the operands of MMAs."""
    if plan.sliced:
        return sliced.set_up(plan)
    a = ["fragment_a = tiled_mma.make_fragment_A(group_slice.partition_A(shared_a))"]
    b = "fragment_b = tiled_mma.make_fragment_B(group_slice.partition_B(shared_b))"
    read = raw.set_up_words(plan) if in_fragments(plan) else a
    return [*(raw.set_up(plan) if plan.converts else read), b]


def _wgmma_store(plan: GemmPlan, output: EpilogueOutput) -> list[str]:
    dtype, size = dsl(output.dtype), DTYPES[output.dtype].itemsize_bytes
    atom = (
        f"cute.nvgpu.warp.StMatrix8x8x16bOp({output.turned}, {4 if plan.epilogue_n >= 16 else 2}), {dtype}"
        if size == 2
        else f"cute.nvgpu.CopyUniversalOp(), {dtype}, num_bits_per_copy={(8 if output.turned else 16) * size}"
    )
    copy = f"cute.make_tiled_copy_C(cute.make_copy_atom({atom}), subtile_mma)"
    if staged_as(plan.problem, output) != output:
        return _store_views(plan, output)
    return [
        f"{suffixed(plan, 'rounded', output)} = cute.make_rmem_tensor(subtile_shape, {dtype})",
        f"{suffixed(plan, 'stage_copy', output)} = {copy}",
        *_store_views(plan, output),
    ]


def _more_values(plan: GemmPlan) -> list[str]:
    """Return registers for the values of matrices other than D, which uses those of the accumulator."""
    names = dict.fromkeys(values_of(plan, output) for output in plan.problem.matrices)
    return [name for name in names if name != "values"]


def strided_registers(plan: GemmPlan) -> list[str]:
    """Return the registers of the rounded values of outputs that threads store, and those of accumulators in int32."""
    kept = ["integers = cute.make_rmem_tensor(subtile_shape, cutlass.Int32)"] if keeps_integers(plan) else []
    for output in plan.problem.outputs_of("strided"):
        kept.append(f"{suffixed(plan, 'rounded', output)} = cute.make_rmem_tensor(subtile_shape, {dsl(output.dtype)})")
        if stores_lines(plan, output):
            warps, rows, pitch = lines_shape(plan, output)
            step = lines_bytes(plan) // DTYPES[output.dtype].itemsize_bytes
            layout = f"({warps}, {rows}, {plan.epilogue_n}), stride=({step}, {pitch}, 1)"
            pointer = f"cute.recast_ptr(shared_lines, dtype={dsl(output.dtype)})"
            kept.append(f"{output.label}_rows = cute.make_tensor({pointer}, cute.make_layout({layout}))")
    return kept


def _all_sums(plan: GemmPlan) -> list[str]:
    shape = f"tiled_mma.partition_shape_C(({plan.tile[0]}, {plan.sum_columns}))"
    return [
        f"sums_layout = tiled_mma.make_fragment_C(cute.append({shape}, {plan.accumulator_stages})).layout",
        "all_sums = cute.make_tensor(sums_pointer, sums_layout)",
    ]


def _as_integers(plan: GemmPlan) -> list[str]:
    """Return the view of integers that the matrix unit adds to: readers move their bits, and convert them after."""
    if sum_dsl(plan) == "cutlass.Float32":
        return []
    return [f"all_sums = cute.make_tensor(cute.recast_ptr(sums_pointer, dtype={sum_dsl(plan)}), sums_layout)"]


def _umma_fragments(plan: GemmPlan, role: Role) -> list[str]:
    return [
        *_all_sums(plan),
        *_as_integers(plan),
        "fragment_a = tiled_mma.make_fragment_A(shared_a)",
        "fragment_b = tiled_mma.make_fragment_B(shared_b)",
    ]


def _umma_sums(plan: GemmPlan, role: Role) -> list[str]:
    rows, columns = plan.cta_tile[0], plan.epilogue_n
    read = (
        f"Ld16x256bOp(tcgen05.Repetition.x{columns // 8})"
        if plan.paired
        else f"Ld32x32bOp(tcgen05.Repetition.x{columns})"
    )
    return [
        *_thread_numbers(role),
        *_all_sums(plan),
        f"sums_tiles = cute.flat_divide(all_sums[(None, None), 0, 0, None], ({rows}, {columns}))",
        "sums_copy = tcgen05.make_tmem_copy(",
        f"    cute.make_copy_atom(tcgen05.{read}, cutlass.Float32),",
        "    sums_tiles[None, None, 0, 0, 0],",
        ")",
        "thread_sums = sums_copy.get_slice(store_thread)",
        "sums_part = thread_sums.partition_S(sums_tiles)",
        f"subtile_shape = thread_sums.partition_D(cute.make_identity_tensor(({rows}, {columns}))).shape",
        *(
            f"{name} = cute.make_rmem_tensor(subtile_shape, cutlass.Float32)"
            for name in (*sums_of(plan), *_more_values(plan))
        ),
        *(line for output in plan.problem.outputs_of("exact") for line in _umma_store(plan, output)),
        *strided_registers(plan),
        *(workspace.view(plan) if plan.grid_splits > 1 else []),
    ]


def _umma_store(plan: GemmPlan, output: EpilogueOutput) -> list[str]:
    dtype, order = dsl(output.dtype), "COL_MAJOR" if output.turned else "ROW_MAJOR"
    if staged_as(plan.problem, output) != output:
        return _store_views(plan, output)
    return [
        f"{suffixed(plan, 'rounded', output)} = cute.make_rmem_tensor(subtile_shape, {dtype})",
        f"{suffixed(plan, 'stage_copy', output)} = cute.make_tiled_copy_D(",
        f"    blackwell.get_smem_store_op(LayoutEnum.{order}, {dtype}, cutlass.Float32, sums_copy), sums_copy",
        ")",
        *_store_views(plan, output),
    ]


def _vectors(plan: GemmPlan, role: Role) -> list[str]:
    places, lines = fragment(plan), []
    for operand in plan.problem.epilogue.of_kind("column"):
        lines.append(f"{operand.label}_rows = cute.make_rmem_tensor({places.rows}, cutlass.Float32)")
    registers = -(-plan.tile[1] // counts(plan).consumer_threads)
    first = of_team(plan, role, plan.tile[1])
    for operand in plan.problem.epilogue.of_kind("row"):
        first_column, shape, strides = dealt_columns(plan)
        lines += [
            f"{operand.label}_loaded = cute.make_rmem_tensor({registers}, cutlass.Float32)",
            f"{operand.label}_columns = cute.make_rmem_tensor(cute.make_layout({shape}), cutlass.Float32)",
            f"{operand.label}_view = cute.make_tensor(",
            f"    shared_{operand.label}.iterator + {first}{first_column},",
            f"    cute.make_layout(({shape[1:-1].rstrip(',')}, {plan.subtiles}), stride=({strides[1:-1].rstrip(',')}, {plan.epilogue_n})),",
            ")",
        ]
    return lines


def _residual_loads(plan: GemmPlan, role: Role) -> list[str]:
    if plan.problem.groups is not None:
        return []  # they begin with each tile
    return residual_views(plan, "tensor_{name}")


def residual_views(plan: GemmPlan, tensor: str) -> list[str]:
    """Define the TMA views of residuals, of which ``tensor``, with the name of each, are the coordinates."""
    box = plan.cta_tile[0], plan.epilogue_n
    names = [operand.label for operand in plan.problem.epilogue.of_kind("exact")]
    return [line for name in names for line in tile_views(plan, name, box, tensor.format(name=name), stored=False)]


def _residual_reads(plan: GemmPlan, role: Role) -> list[str]:
    lines = []
    for operand in plan.problem.epilogue.of_kind("exact"):
        name, dtype = operand.label, dsl(operand.dtype)
        bits = 16 * DTYPES[operand.dtype].itemsize_bytes if plan.paired else 128
        bits = 8 * DTYPES[operand.dtype].itemsize_bytes if operand.turned else bits
        atom = f"cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), {dtype}, num_bits_per_copy={bits})"
        of = (
            f"make_tiled_copy_C({atom}, subtile_mma)"
            if plan.unit == "wgmma"
            else f"make_tiled_copy_D({atom}, sums_copy)"
        )
        lines += [
            f"{name}_copy = cute.{of}",
            f"{name}_values = cute.make_rmem_tensor(subtile_shape, {dtype})",
            f"{name}_registers = {name}_copy.retile({name}_values)",
            f"{name}_part = {name}_copy.get_slice(store_thread).partition_S(shared_{name})",
        ]
    return lines


SETUPS: Mapping[str, Callable[[GemmPlan, Role], list[str]]] = {
    "wgmma_loads": _wgmma_loads,
    "umma_loads": _umma_loads,
    "wgmma_sums": _wgmma_sums,
    "umma_fragments": _umma_fragments,
    "umma_sums": _umma_sums,
    "vectors": _vectors,
    "rows": rows.set_up,
    "scales": lambda plan, role: scales.set_up(plan),
    "copies": copied.set_up,
    "raw_loads": lambda plan, role: raw.views(plan),
    "residual_loads": _residual_loads,
    "residual_reads": _residual_reads,
}
