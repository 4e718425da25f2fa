"""The config keys of a GEMM by matrix unit: clusters, pipeline stages, columns of sub-tiles."""

from __future__ import annotations

from collections.abc import Iterator

from ..._compiler.ir.grammar import Program
from ..._shapes import next_power_of_2
from ...autotuner.space.fields import Field, Scalar
from ...autotuner.space.own import OwnKeys
from ...autotuner.space.program_shape import ProgramShape
from ...fields import BooleanFragment, EnumFragment
from ...hardware import Target
from ...settings import Settings
from .bounds import (
    column_step,
    held_by_cluster,
    least_rows,
    lies_in_memory,
    places_of_copies,
    row_clusters,
    tile_bounds,
)
from .legality import TILE_COLUMNS, Asked, Legalizer, key
from .limits import COLUMN_STEP, LEAST_COLUMNS
from .lower.kernel import known_product
from .plan.build import MAX_CLUSTER, MAX_RESIDUAL_STAGES, MAX_ROW_CLUSTER, MAX_SPLITS, unit_of
from .plan.dtypes import IMPRECISE_DTYPES
from .plan.operands import can_convert, residents_of
from .plan.records import WGMMA_ROWS, GemmProblem, Unit
from .plan.shared import MAX_STAGES
from .subtiles import ODD_STORE_STAGES, STORE_STAGES

#: Prefix of options that are passed through; there are none.
VERBATIM_PREFIX = "_cute_config_"

_ROLES = "the warp roles of the kernel fix its warps and registers"
_RINGS = "its pipeline stages are {unit}_ab_stages, {unit}_c_stages and the like"
_COPY_ENGINE = "TMA moves all tiles"
#: Keys of other backends, and why they are refused here.
ELSEWHERE = {
    "num_warps": _ROLES,
    "maxnreg": _ROLES,
    "occupancy": _ROLES,
    "num_stages": _RINGS,
    "range_num_stages": _RINGS,
    "pid_type": "its programs are persistent clusters",
    "num_sm_multiplier": "its programs are persistent clusters",
    "num_ctas": "clusters are {unit}_cluster_m and {unit}_cluster_n",
    "indexing": _COPY_ENGINE,
    "atomic_indexing": _COPY_ENGINE,
    "load_eviction_policies": _COPY_ENGINE,
    "load_cache_modifiers": _COPY_ENGINE,
    "store_cache_modifiers": _COPY_ENGINE,
    "range_unroll_factors": "its loops are generated per role",
    "range_warp_specializes": "its warps are always specialized",
    "range_multi_buffers": _RINGS,
    "range_flattens": "its loops are generated per role",
    "static_ranges": "its loops are generated per role",
    "waves_per_eu": "it is an option of AMD GPUs",
    "matrix_instr_nonkdim": "it is an option of AMD GPUs",
    "kpack": "it is an option of AMD GPUs",
    "xcd_remap": "it is an option of AMD GPUs",
    "advanced_controls_file": "the DSL has no such option",
}


#: Config keys of a GEMM without the unit's name in front, and their meaning.
DOCS: dict[str, str] = {
    "cluster_m": "CTAs of a cluster along M: they share each tile of B through multicast.",
    "cluster_n": "CTAs of a cluster along N: they share each tile of A through multicast.",
    "ab_stages": "Pipeline stages of A and B in shared memory; None is as many as fit.",
    "c_stages": "Store buffers of the epilogue in shared memory, one sub-tile each.",
    "epilogue_columns": "Columns of an epilogue sub-tile.",
    "acc_stages": "Accumulators of a CTA. In tensor memory one is stored while the next is computed; None is as many as fit. Of wgmma 2 take turns where they are promoted: one is added to fp32 registers while the unit multiplies the next K tile.",
    "pingpong": "Whether two consumer warpgroups alternate (ping-pong): one runs the mainloop while the other runs the epilogue.",
    "k_splits": "Split K within a cluster: number of CTAs that each accumulate a part of K.",
    "grid_splits": "Split K across clusters: number of clusters per tile. The last one adds the partials in the order of K.",
    "split_tiles": "Tiles whose K clusters split: `all`, or `last`, those of the last wave, which others would wait for (hybrid stream-K).",
    "ctas_per_sm": "CTAs per SM where whole rows are reduced, or the warps that multiply convert A: one runs while the other waits.",
    "rows_in": "Place of rows that are reduced: `cluster`, registers of CTAs that exchange partial results, or `memory`, from which a second kernel finishes them.",
    "tile_columns": "Columns of a tile where rows are in global memory.",
    "copies_in": "Place of operands that TMA cannot load as they are: `shared`, stages that warps fill in each tile, `memory`, where kernels before the matmul write them, or `registers` of the warps that multiply, which convert 8-bit elements; with `slices` each of these warps has K tiles of its own. With `tma` they are loaded as they are, for a matrix unit that takes them in either major mode, by warps that multiply and read fp32 to registers, or gathered by TMA if they are picked rows.",
    "residual_stages": "Pipeline stages of residuals: sub-tiles of epilogue inputs of the output's shape, loaded in advance.",
}  # fmt: skip
#: Clusters per tile.
GRID_SPLITS = (*range(1, 17), 22, 32)
#: Parts of K, including values between powers of two that fill a GPU better.
SPLITS = (1, 2, 3, 4, 6, 8, 12, MAX_SPLITS)


def own_keys(shape: ProgramShape, program: Program, target: Target, settings: Settings) -> OwnKeys:
    """Return the keys of a GEMM, the bounds of its tiles, and the rules that legalize a config."""
    product, unit = known_product(program), unit_of(target)
    settling = Legalizer(program.host.name, product, target)
    sizes = dict(zip(product.blocks, tile_bounds(product.problem, target), strict=True))
    step, initial = column_step(product.problem, target), dict[int, int]()
    sizes |= dict.fromkeys(product.batch_blocks, (1, 1))
    if product.depth is not None:
        del sizes[product.blocks[2]]
    if product.whole_rows:
        del sizes[product.blocks[1]]
        sizes |= dict.fromkeys(product.undecided, (LEAST_COLUMNS, LEAST_COLUMNS))
        sizes |= dict.fromkeys(product.one_tile, (next_power_of_2(product.problem.n),) * 2)
        rows = product.blocks[0]
        held = held_by_cluster(product.problem, target)
        first = least_rows(product.problem, row_clusters(product.problem, target)[0]) if held else WGMMA_ROWS
        fewest = WGMMA_ROWS if lies_in_memory(product.problem) else first
        sizes[rows], initial[rows] = (fewest, max(first, sizes[rows][1])), first
    return OwnKeys(
        fields=tuple(_fields(product, unit, target)),
        absent={**_absent(product.problem, unit), **{name: why.format(unit=unit) for name, why in ELSEWHERE.items()}},
        verbatim=VERBATIM_PREFIX,
        rules=settling.rules(),
        sizes=sizes,
        initial=initial,
        multiples={} if step is None or product.whole_rows else {product.blocks[1]: step},
        holds_values=False,
        planned=True,
    )


def _fields(product: Asked, unit: Unit, target: Target) -> list[Field]:
    problem = product.problem
    stages = EnumFragment((None, *range(2, MAX_STAGES + 1)))
    fields: list[Field] = [
        _clusters_field("cluster_m", target),
        _columns_field(product, target) if product.whole_rows else _clusters_field("cluster_n", target),
        Scalar(key=key("ab_stages", target), fragment=stages, initial=None),
        _stores_field(product, target),
        Scalar(key=key("epilogue_columns", target), fragment=EnumFragment((8, 16, 32, 64)), initial=32),
    ]
    if problem.epilogue.reduces_rows:
        fields += _memory_fields(product, target)
    if problem.copied:
        places = places_of_copies(problem, target)
        fields.append(Scalar(key=key("copies_in", target), fragment=EnumFragment(places), initial=places[0]))
    fields.append(Scalar(key=key("grid_splits", target), fragment=EnumFragment(GRID_SPLITS), initial=1))
    if unit == "tcgen05":
        sums = EnumFragment((None, 1, 2, 4))
        fields.append(Scalar(key=key("acc_stages", target), fragment=sums, initial=None))
    else:
        if problem.epilogue.reduces_rows or can_convert(problem):
            residents = tuple(range(1, 1 + (residents_of(problem) if can_convert(problem) else 2)))
            fields.append(Scalar(key=key("ctas_per_sm", target), fragment=EnumFragment(residents), initial=1))
        if promotes(problem):
            fields.append(Scalar(key=key("acc_stages", target), fragment=EnumFragment((1, 2)), initial=1))
        fields.append(Scalar(key=key("pingpong", target), fragment=BooleanFragment(), initial=False))
        fields.append(Scalar(key=key("k_splits", target), fragment=EnumFragment(SPLITS), initial=1))
        fields.append(Scalar(key=key("split_tiles", target), fragment=EnumFragment(("all", "last")), initial="all"))
    if problem.epilogue.of_kind("exact"):
        ahead = EnumFragment(tuple(range(2, MAX_RESIDUAL_STAGES + 1)))
        fields.append(Scalar(key=key("residual_stages", target), fragment=ahead, initial=2))
    return fields


def promotes(problem: GemmProblem) -> bool:
    """Return whether wgmma may need its accumulators promoted."""
    return problem.operand_dtype in IMPRECISE_DTYPES or problem.scales is not None or bool(problem.rounded)


def _stores_field(product: Asked, target: Target) -> Field:
    """Return the field of the store buffers. Odd counts are for tiles whose columns are a multiple of 16 only, with an
    odd number of sub-tiles."""
    odd = ODD_STORE_STAGES if not product.whole_rows and column_step(product.problem, target) == COLUMN_STEP else ()
    fragment = EnumFragment((*STORE_STAGES, *odd))
    return Scalar(key=key("c_stages", target), fragment=fragment, initial=STORE_STAGES[0])


def _clusters_field(name: str, target: Target) -> Field:
    clusters = EnumFragment(tuple(1 << bit for bit in range(MAX_CLUSTER.bit_length())))
    return Scalar(key=key(name, target), fragment=clusters, initial=1, searched=EnumFragment((1, 2, 4)))


def _columns_field(product: Asked, target: Target) -> Field:
    """Return the field of CTAs that share the columns of whole rows: the minimum and more; 1 where rows are in memory."""
    problem = product.problem
    known = row_clusters(problem, target) if held_by_cluster(problem, target) else (1,)
    legal = {1, *known} if problem.epilogue.reduces_rows else known
    others = EnumFragment(tuple(1 << bit for bit in range(MAX_ROW_CLUSTER.bit_length())))
    fragment = EnumFragment(tuple(sorted(legal)))
    return Scalar(key=key("cluster_n", target), fragment=fragment, initial=known[0], elsewhere=others)


def _memory_fields(product: Asked, target: Target) -> Iterator[Field]:
    """Yield the fields for the place of rows, and for the tiles of rows in memory."""
    held, stored = held_by_cluster(product.problem, target), lies_in_memory(product.problem)
    places = (*(["cluster"] if held or not stored else []), *(["memory"] if stored else []))
    yield Scalar(key=key("rows_in", target), fragment=EnumFragment(places), initial=places[0])
    most = tile_bounds(product.problem, target)[1][1]
    columns = tuple(each for each in TILE_COLUMNS if each <= most) or (most,)
    yield Scalar(key=key("tile_columns", target), fragment=EnumFragment(columns), initial=columns[-1])


def _absent(problem: GemmProblem, unit: Unit) -> dict[str, str]:
    """Return the keys of the other matrix unit, and those of other kinds of GEMMs, with the reason."""
    other = "wgmma" if unit == "tcgen05" else "tcgen05"
    names = ["cluster_m", "cluster_n", "ab_stages", "c_stages", "epilogue_columns", "grid_splits", "residual_stages"]
    names += ["rows_in", "tile_columns", "copies_in"]
    absent = {f"{other}_{name}": f"the matrix unit is {unit}, and the key {unit}_{name}" for name in names}
    if not problem.epilogue.of_kind("exact"):
        absent[f"{unit}_residual_stages"] = "the epilogue reads no tensor of the output's shape"
    if not problem.copied:
        absent[f"{unit}_copies_in"] = "TMA loads all operands"
    if not problem.epilogue.reduces_rows:
        absent |= {f"{unit}_{name}": "the epilogue reduces no rows" for name in ("rows_in", "tile_columns")}
        if not can_convert(problem):
            absent["wgmma_ctas_per_sm"] = (
                "two CTAs share an SM only where the epilogue reduces whole rows, or warps that multiply convert A"
            )
    if unit == "wgmma":
        if not promotes(problem):
            absent["wgmma_acc_stages"] = "accumulators are not promoted, and wgmma has one in registers"
        return {**absent, "tcgen05_acc_stages": "accumulators of wgmma stay in registers"}
    why = "is for wgmma, whose accumulators are in registers"
    others = {
        "acc_stages": "promotion",
        "pingpong": "ping-pong",
        "k_splits": "splitting K",
        "split_tiles": "splitting the last wave",
        "ctas_per_sm": "sharing an SM",
    }
    return {**absent, **{f"wgmma_{name}": f"{what} {why}" for name, what in others.items()}}
